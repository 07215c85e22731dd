//! Control flow: subprograms, reachability, call depth, and constants in straight-line code.

use std::collections::BTreeSet;

use ring3_isa::{Call, Immediate, Op};
use ring3_uapi::Errno;

use crate::{CALL_FRAMES_MAX, Report, Subprogram};

fn refuse(at: usize, message: impl Into<String>) -> Report {
    Report::new(Errno::EINVAL, Some(at), message)
}

/// The program's subprograms: its entry, and what calls and function references name.
pub(crate) fn subprograms(ops: &[Option<Op>]) -> Result<Vec<Subprogram>, Report> {
    let mut starts = BTreeSet::from([0]);
    for (at, op) in ops.iter().enumerate() {
        let target = match op {
            Some(Op::Call(Call::Local(target))) => *target,
            Some(Op::LoadImm64 { value: Immediate::Func(target), .. }) => *target,
            _ => continue,
        };
        if ops[target].is_none() {
            return Err(refuse(at, "call into the middle of an instruction"));
        }
        starts.insert(target);
    }
    let starts: Vec<usize> = starts.into_iter().collect();
    let ends = starts[1..].iter().copied().chain([ops.len()]);
    Ok(starts.iter().zip(ends).map(|(start, end)| Subprogram { start: *start, end }).collect())
}

/// Where control goes from an instruction, inside its subprogram.
pub(crate) fn successors(ops: &[Option<Op>], at: usize) -> (Option<usize>, Option<usize>) {
    let next = if matches!(ops[at], Some(Op::LoadImm64 { .. })) { at + 2 } else { at + 1 };
    match ops[at] {
        Some(Op::Exit) => (None, None),
        Some(Op::Ja(target)) => (Some(target), None),
        Some(Op::Jump { target, .. }) => (Some(next), Some(target)),
        _ => (Some(next), None),
    }
}

/// Mirrors kernel/bpf/verifier.c:check_cfg, check_subprogs and check_max_stack_depth.
pub(crate) fn check(ops: &[Option<Op>], subprograms: &[Subprogram]) -> Result<(), Report> {
    for subprogram in subprograms {
        check_reachable(ops, *subprogram)?;
    }
    let depth = call_depth(ops, subprograms, 0, &mut vec![])?;
    if depth > CALL_FRAMES_MAX {
        return Err(refuse(0, format!("the call stack of {depth} frames is too deep")));
    }
    Ok(())
}

fn check_reachable(ops: &[Option<Op>], subprogram: Subprogram) -> Result<(), Report> {
    let inside = subprogram.start..subprogram.end;
    let mut seen = BTreeSet::new();
    let mut open = vec![subprogram.start];
    while let Some(at) = open.pop() {
        if !seen.insert(at) {
            continue;
        }
        let (next, target) = successors(ops, at);
        for to in [next, target].into_iter().flatten() {
            if !inside.contains(&to) {
                let message = if to >= ops.len() || Some(to) == next {
                    "last insn is not an exit or jmp".to_owned()
                } else {
                    format!("jump out of range from insn {at} to {to}")
                };
                return Err(refuse(at, message));
            }
            if ops[to].is_none() {
                return Err(refuse(at, "jump into the middle of ldimm64 insn"));
            }
            open.push(to);
        }
    }
    match inside.filter(|at| ops[*at].is_some()).find(|at| !seen.contains(at)) {
        Some(at) => Err(refuse(at, format!("unreachable insn {at}"))),
        None => Ok(()),
    }
}

/// Frames needed from a subprogram on; recursion is refused.
fn call_depth(
    ops: &[Option<Op>],
    subprograms: &[Subprogram],
    index: usize,
    path: &mut Vec<usize>,
) -> Result<usize, Report> {
    let subprogram = subprograms[index];
    if path.contains(&index) {
        return Err(refuse(subprogram.start, "recursive call"));
    }
    if path.len() >= CALL_FRAMES_MAX {
        return Err(refuse(subprogram.start, format!("the call stack of {} frames is too deep", path.len() + 1)));
    }
    path.push(index);
    let mut deepest = 1;
    let callees: BTreeSet<usize> = (subprogram.start..subprogram.end)
        .filter_map(|at| match ops[at] {
            // Whoever names a subprogram has it called by a helper.
            Some(Op::Call(Call::Local(target)) | Op::LoadImm64 { value: Immediate::Func(target), .. }) => {
                subprograms.iter().position(|s| s.start == target)
            }
            _ => None,
        })
        .collect();
    for callee in callees {
        deepest = deepest.max(1 + call_depth(ops, subprograms, callee, path)?);
    }
    path.pop();
    Ok(deepest)
}

/// The `ld_imm64` that certainly set argument register `register` of the call at `at`: the search goes
/// back through straight-line code that nothing jumps into.
pub(crate) fn constant_load(ops: &[Option<Op>], at: usize, register: u8) -> Option<usize> {
    let mut wanted = register;
    let targets: BTreeSet<usize> = ops
        .iter()
        .flatten()
        .filter_map(|op| match op {
            Op::Jump { target, .. } | Op::Ja(target) => Some(*target),
            Op::Call(Call::Local(target)) => Some(*target),
            _ => None,
        })
        .collect();
    let mut index = at;
    while index > 0 && !targets.contains(&index) {
        index -= 1;
        use ring3_isa::{AluOp, Operand, Width};
        match ops[index] {
            None => {}
            Some(Op::LoadImm64 { dst, .. }) if dst == wanted => return Some(index),
            Some(Op::Alu { width: Width::W64, op: AluOp::Mov, dst, src: Operand::Reg(src) }) if dst == wanted => {
                wanted = src;
            }
            Some(Op::Call(_)) if wanted <= 5 => return None,
            Some(Op::Exit | Op::Ja(_)) => return None,
            Some(other) if writes(&other, wanted) => return None,
            Some(_) => {}
        }
    }
    None
}

fn writes(op: &Op, register: u8) -> bool {
    use ring3_isa::AtomicOp;
    match *op {
        Op::Alu { dst, .. }
        | Op::MovSx { dst, .. }
        | Op::Neg { dst, .. }
        | Op::Swap { dst, .. }
        | Op::Load { dst, .. }
        | Op::LoadAcquire { dst, .. }
        | Op::LoadImm64 { dst, .. } => dst == register,
        Op::Atomic { op: AtomicOp::Cmpxchg, .. } => register == 0,
        Op::Atomic { fetch: true, src, .. } => src == register,
        _ => false,
    }
}
