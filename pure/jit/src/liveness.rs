//! Arguments of subprograms: which of r1 to r5 each reads, and whether it needs the environment. Calls pass no more.

use ring3_isa::{Call, Immediate, Op, op};
use ring3_verifier::Verified;
use ring3_verifier::liveness::{ARGUMENTS, Registers, live_before};

/// What a subprogram takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Takes {
    arguments: Registers,
    /// The environment: it calls helpers, or what needs it.
    pub(crate) env: bool,
    /// Helpers call it, with all arguments that there can be.
    by_address: bool,
}

impl Takes {
    /// Registers of the arguments, in order.
    pub(crate) fn arguments(self) -> impl Iterator<Item = u8> {
        (1..=5).filter(move |register| self.by_address || self.arguments & 1 << register != 0)
    }

    /// Whether the environment is the last parameter.
    pub(crate) fn takes_env(self) -> bool {
        self.env || self.by_address
    }
}

/// What each subprogram takes; all that count rounds need the environment.
pub(crate) fn takes(program: &Verified, counts_rounds: bool) -> Vec<Takes> {
    let ops: Vec<Option<Op>> = (0..program.insns().len())
        .map(|at| if program.is_live(at) { op(program.insns(), at).ok() } else { None })
        .collect();
    let subprograms = program.subprograms();
    let index_of = |start: usize| subprograms.iter().position(|subprogram| subprogram.start == start);
    let mut all = vec![Takes::default(); subprograms.len()];
    for decoded in ops.iter().flatten() {
        if let Op::LoadImm64 { value: Immediate::Func(target), .. } = decoded
            && let Some(index) = index_of(*target)
        {
            all[index].by_address = true;
        }
    }
    // Calls form no cycles: each round settles those whose callees are settled.
    loop {
        let before = all.clone();
        for (index, subprogram) in subprograms.iter().enumerate() {
            let callee = |target: usize| index_of(target).map_or(ARGUMENTS, |index| before[index].mask());
            let live = live_before(&ops, subprogram.start..subprogram.end, callee);
            all[index].arguments = live[0] & ARGUMENTS;
            all[index].env |= counts_rounds
                || (subprogram.start..subprogram.end).any(|at| match ops[at] {
                    Some(Op::Call(Call::Local(target))) => {
                        index_of(target).is_none_or(|callee| before[callee].takes_env())
                    }
                    Some(Op::Call(_) | Op::MayGoto(_)) => true,
                    _ => false,
                });
        }
        if all == before {
            return all;
        }
    }
}

impl Takes {
    fn mask(self) -> Registers {
        if self.by_address { ARGUMENTS } else { self.arguments }
    }
}
