//! How many instructions a run can have.
//!
//! Compiled code counts no instructions, it counts rounds of loops: each jump back takes one from the run's fuel. Between two of
//! them control only goes forward, so each instruction of a function runs at most once, and so does each call. With that, a limit
//! of rounds is a limit of instructions.

use ring3_isa::{Call, Immediate, Op, op};
use ring3_jit::FUEL;
use ring3_verifier::Verified;

/// How many instructions a run has at most, those of helpers and functions not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The verifier has proved it: nothing is counted at run time.
    Proved(u64),
    /// A run that has as many is ended.
    Enforced(u64),
}

impl Bound {
    /// The number.
    pub fn instructions(self) -> u64 {
        match self {
            Bound::Proved(insns) | Bound::Enforced(insns) => insns,
        }
    }
}

/// What a compiled program is told, and what follows.
pub(crate) struct Plan {
    /// Rounds that it counts; `None`: it is not to count because of a budget.
    pub(crate) rounds: Option<u32>,
    pub(crate) bound: Bound,
}

/// Stretches behind the last round: from it to the end, and that of the callback which had the last one.
const STRETCHES_BEHIND: u64 = 2;

/// How a program keeps to a budget of instructions.
///
/// # Errors
/// It cannot: so many instructions can follow each other without a loop.
pub(crate) fn plan(program: &Verified, budget: Option<u64>) -> Result<Plan, String> {
    let processed = program.statistics().processed;
    let stretch = longest_stretch(program);
    let Some(budget) = budget else {
        let bound = if program.needs_fuel() {
            Bound::Enforced((FUEL as u64 + STRETCHES_BEHIND).saturating_mul(stretch))
        } else {
            Bound::Proved(processed)
        };
        return Ok(Plan { rounds: None, bound });
    };
    if !program.needs_fuel() && processed <= budget {
        return Ok(Plan { rounds: None, bound: Bound::Proved(processed) });
    }
    if !program.needs_fuel() && !has_jumps_back(program) && stretch <= budget {
        return Ok(Plan { rounds: None, bound: Bound::Proved(stretch) });
    }
    let Some(rounds) = (budget / stretch).checked_sub(STRETCHES_BEHIND) else {
        return Err(format!(
            "the budget of {budget} instructions is too small: the program can run {stretch} without a loop, and {} are needed for \
             one with loops",
            stretch.saturating_mul(STRETCHES_BEHIND)
        ));
    };
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX).min(FUEL as u32);
    Ok(Plan { rounds: Some(rounds), bound: Bound::Enforced((u64::from(rounds) + STRETCHES_BEHIND) * stretch) })
}

fn ops(program: &Verified) -> impl Iterator<Item = (usize, Op)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let insn = *program.insns().get(at)?;
        let here = at;
        at += if insn.is_wide() { 2 } else { 1 };
        Some((here, op(program.insns(), here).ok()?))
    })
}

fn has_jumps_back(program: &Verified) -> bool {
    ops(program).any(|(at, op)| match op {
        Op::Ja(target) | Op::MayGoto(target) | Op::Jump { target, .. } => target <= at,
        _ => false,
    })
}

/// Instructions that a run can have without a jump back: those of each function once for each place that calls it. (Calls form no
/// cycles.)
fn longest_stretch(program: &Verified) -> u64 {
    let subprograms = program.subprograms();
    let index_of = |start: usize| subprograms.iter().position(|subprogram| subprogram.start == start);
    let own: Vec<u64> = subprograms.iter().map(|subprogram| (subprogram.end - subprogram.start) as u64).collect();
    let mut calls = vec![vec![]; subprograms.len()];
    for (at, op) in ops(program) {
        let target = match op {
            Op::Call(Call::Local(target)) | Op::LoadImm64 { value: Immediate::Func(target), .. } => target,
            _ => continue,
        };
        let caller = subprograms.iter().position(|subprogram| (subprogram.start..subprogram.end).contains(&at));
        if let (Some(caller), Some(callee)) = (caller, index_of(target)) {
            calls[caller].push(callee);
        }
    }
    let mut all = own.clone();
    // (Each round settles those whose callees are settled.)
    for _ in 0..subprograms.len() {
        for (index, callees) in calls.iter().enumerate() {
            let below = callees.iter().fold(0u64, |sum, callee| sum.saturating_add(all[*callee]));
            all[index] = own[index].saturating_add(below);
        }
    }
    all.first().copied().unwrap_or(1).max(1)
}
