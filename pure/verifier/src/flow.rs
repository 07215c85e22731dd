//! Control flow: subprograms, reachability, call depth, stack depth, and where paths may stop.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ring3_isa::{Call, Immediate, Op};
use ring3_uapi::{Errno, helper};

use crate::liveness::{ARGUMENTS, Registers, live_before};
use crate::{CALL_FRAMES_MAX, Report, Subprogram, prototypes};

/// Whether a path may stop before an instruction because what is known there was known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Never asked.
    Never,
    /// Where paths part and meet.
    Maybe,
    /// Where rounds begin whose number is not known: it must be asked each time.
    Always,
}

/// A program's shape.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) subprograms: Vec<Subprogram>,
    pub(crate) stops: Vec<Stop>,
    /// Registers that may be read from each instruction on.
    pub(crate) live: Vec<Registers>,
    /// Those that each subprogram calls, or has called.
    callees: Vec<BTreeSet<usize>>,
    /// The subprograms that the entry comes to, each before those that it calls.
    calls_first: Vec<usize>,
}

impl Flow {
    pub(crate) fn new(ops: &[Option<Op>]) -> Result<Flow, Report> {
        let subprograms = subprograms(ops)?;
        check_reachable(ops, &subprograms)?;
        let callees: Vec<_> = subprograms.iter().map(|subprogram| callees(ops, &subprograms, *subprogram)).collect();
        let calls_first = calls_first(&subprograms, &callees)?;
        let stops = stops(ops, &subprograms);
        let live_in = |of: &Subprogram| live_before(ops, of.start..of.end, |_| ARGUMENTS);
        let live = subprograms.iter().flat_map(live_in).collect();
        let flow = Flow { subprograms, stops, live, callees, calls_first };
        flow.check_calls()?;
        Ok(flow)
    }

    /// Index of the subprogram that starts at an instruction.
    pub(crate) fn subprogram_at(&self, start: usize) -> usize {
        self.subprograms.binary_search_by_key(&start, |subprogram| subprogram.start).unwrap_or(0)
    }

    /// Mirrors kernel/bpf/verifier.c:check_max_stack_depth, of which this needs no walk.
    fn check_calls(&self) -> Result<(), Report> {
        let mut frames = vec![1; self.subprograms.len()];
        for index in &self.calls_first {
            let depth = frames[*index];
            if depth > CALL_FRAMES_MAX {
                let message = format!("the call stack of {depth} frames is too deep");
                return Err(Report::new(Errno::E2BIG, Some(self.subprograms[*index].start), message));
            }
            for callee in &self.callees[*index] {
                frames[*callee] = frames[*callee].max(depth + 1);
            }
        }
        Ok(())
    }

    /// What the frames of calls within calls need together. Mirrors kernel/bpf/verifier.c:check_max_stack_depth.
    /// `called` tells the helpers of `callx`.
    pub(crate) fn check_stack(
        &self,
        ops: &[Option<Op>],
        called: &BTreeMap<usize, u32>,
        stack_bytes: &[u32],
    ) -> Result<(), Report> {
        /// `MAX_BPF_STACK`
        const TOTAL_MAX: u32 = 512;
        /// What frames above one that makes tail calls may need.
        const BEFORE_TAIL_CALLS_MAX: u32 = 256;
        let mut above = vec![(0, 1); self.subprograms.len()];
        for index in &self.calls_first {
            let subprogram = self.subprograms[*index];
            let (before, frames) = above[*index];
            let depth: u32 = before + stack_bytes[*index].next_multiple_of(16);
            let tail_call = Some(Op::Call(Call::Helper(helper::TAIL_CALL)));
            let mut places = subprogram.start..subprogram.end;
            let tail_calls = places.any(|at| ops[at] == tail_call || called.get(&at) == Some(&helper::TAIL_CALL));
            if before >= BEFORE_TAIL_CALLS_MAX && tail_calls {
                let message = format!(
                    "tail_calls are not allowed when call stack of previous frames is {before} bytes. Too large"
                );
                return Err(Report::new(Errno::EACCES, None, message));
            }
            if depth > TOTAL_MAX {
                let message = format!("combined stack size of {frames} calls is {depth}. Too large");
                return Err(Report::new(Errno::EACCES, None, message));
            }
            for callee in &self.callees[*index] {
                above[*callee] = above[*callee].max((depth, frames + 1));
            }
        }
        Ok(())
    }
}

/// Mirrors kernel/bpf/verifier.c:visit_insn.
fn stops(ops: &[Option<Op>], subprograms: &[Subprogram]) -> Vec<Stop> {
    let mut stops = vec![Stop::Never; ops.len()];
    for subprogram in &subprograms[1..] {
        stops[subprogram.start] = Stop::Maybe;
    }
    for (at, op) in ops.iter().enumerate() {
        match op {
            Some(Op::Jump { target, .. }) => (stops[at], stops[*target]) = (Stop::Maybe, Stop::Maybe),
            Some(Op::Ja(target)) => stops[*target] = Stop::Maybe,
            Some(Op::MayGoto(target)) => stops[*target] = Stop::Maybe,
            Some(Op::Call(_)) if at + 1 < ops.len() => stops[at + 1] = Stop::Maybe,
            Some(Op::LoadImm64 { value: Immediate::Func(_), .. }) if at + 2 < ops.len() => {
                stops[at + 2] = Stop::Maybe
            }
            _ => {}
        }
    }
    for (at, op) in ops.iter().enumerate() {
        match op {
            Some(Op::MayGoto(_) | Op::Call(Call::Kfunc(helper::ITER_NUM_NEXT))) => stops[at] = Stop::Always,
            Some(Op::Call(Call::Helper(id) | Call::Kfunc(id))) if calls_back(*id) => stops[at] = Stop::Always,
            _ => {}
        }
    }
    stops
}

/// Whether there are rounds that can be reached of which only the number is known to have an end.
pub(crate) fn counts_rounds(stops: &[Stop], live: &[bool]) -> bool {
    stops.iter().zip(live).any(|(stop, live)| *live && *stop == Stop::Always)
}

/// Whether a helper calls a subprogram.
pub(crate) fn calls_back(id: u32) -> bool {
    prototypes::prototype(id).is_some_and(|row| row.callback_argument().is_some())
}

fn refuse(at: usize, message: impl Into<String>) -> Report {
    Report::new(Errno::EINVAL, Some(at), message)
}

/// The program's subprograms: its entry, and what calls and function references name.
fn subprograms(ops: &[Option<Op>]) -> Result<Vec<Subprogram>, Report> {
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
    Ok(starts.iter().zip(ends).map(|(start, end)| Subprogram { start: *start, end, stack_bytes: 0 }).collect())
}

/// Where control goes from an instruction, inside its subprogram.
pub(crate) fn successors(ops: &[Option<Op>], at: usize) -> (Option<usize>, Option<usize>) {
    let next = if matches!(ops[at], Some(Op::LoadImm64 { .. })) { at + 2 } else { at + 1 };
    match ops[at] {
        Some(Op::Exit) => (None, None),
        Some(Op::Ja(target)) => (None, Some(target)),
        Some(Op::Jump { target, .. } | Op::MayGoto(target)) => (Some(next), Some(target)),
        _ => (Some(next), None),
    }
}

/// The subprograms that the entry comes to, each before those that it calls.
fn calls_first(subprograms: &[Subprogram], callees: &[BTreeSet<usize>]) -> Result<Vec<usize>, Report> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Above,
        Done,
    }
    let mut seen = vec![Seen::No; subprograms.len()];
    let mut order = vec![];
    let mut open = vec![(0, callees[0].iter())];
    seen[0] = Seen::Above;
    while let Some((index, rest)) = open.last_mut() {
        match rest.next() {
            None => {
                seen[*index] = Seen::Done;
                order.push(*index);
                open.pop();
            }
            Some(callee) if seen[*callee] == Seen::Above => {
                let message = format!("the call stack of {} frames is too deep: a recursive call", open.len() + 1);
                return Err(Report::new(Errno::E2BIG, Some(subprograms[*callee].start), message));
            }
            Some(callee) if seen[*callee] == Seen::No => {
                seen[*callee] = Seen::Above;
                open.push((*callee, callees[*callee].iter()));
            }
            Some(_) => {}
        }
    }
    order.reverse();
    Ok(order)
}

/// Subprograms that a subprogram calls, or has called.
fn callees(ops: &[Option<Op>], subprograms: &[Subprogram], of: Subprogram) -> BTreeSet<usize> {
    let targets = (of.start..of.end).filter_map(|at| match ops[at] {
        Some(Op::Call(Call::Local(target)) | Op::LoadImm64 { value: Immediate::Func(target), .. }) => Some(target),
        _ => None,
    });
    targets.filter_map(|target| subprograms.binary_search_by_key(&target, |other| other.start).ok()).collect()
}

/// Mirrors kernel/bpf/verifier.c:check_cfg and check_subprogs.
fn check_reachable(ops: &[Option<Op>], subprograms: &[Subprogram]) -> Result<(), Report> {
    let mut seen = vec![false; ops.len()];
    for subprogram in subprograms {
        let inside = subprogram.start..subprogram.end;
        let mut open = vec![subprogram.start];
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            let (next, target) = successors(ops, at);
            for to in [target, next].into_iter().flatten() {
                check_step(ops, &inside, at, to, Some(to) == target)?;
                open.push(to);
            }
        }
        if let Some(at) = inside.filter(|at| ops[*at].is_some()).find(|at| !seen[*at]) {
            return Err(refuse(at, format!("unreachable insn {at}")));
        }
    }
    Ok(())
}

/// A jump, or what falls through, stays inside and meets a whole instruction.
fn check_step(ops: &[Option<Op>], inside: &Range<usize>, at: usize, to: usize, jumps: bool) -> Result<(), Report> {
    if !inside.contains(&to) && jumps {
        return Err(refuse(at, format!("jump out of range from insn {at} to {to}")));
    }
    if !inside.contains(&to) {
        return Err(refuse(at, "last insn is not an exit or jmp"));
    }
    if ops[to].is_none() {
        return Err(refuse(at, format!("jump into the middle of ldimm64 insn {}", to - 1)));
    }
    Ok(())
}
