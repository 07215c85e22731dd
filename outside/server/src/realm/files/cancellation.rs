//! Callers of routines whose system calls must stay in place, because threads are cancelled by the call's address.

use std::collections::BTreeSet;

use ring3_patch::{Arrival, Function, JUMP_BYTES, Replaced, Routine, SyscallPlan};

use super::code::{CodeFile, between, called_in};
use super::modules::{BEHIND_FUNCTION_BYTES, SyscallPlans};

impl CodeFile {
    /// Plans for all who call a routine.
    pub(super) fn plan_callers(&self, routine: &Routine, found: &mut SyscallPlans) {
        let calls = self.calls();
        let candidates = &calls[calls.partition_point(|call| call.to < routine.start)..];
        for call in candidates.iter().take_while(|call| call.to == routine.start) {
            match self.plan_caller(routine, call.from) {
                Ok(plans) => found.plans.extend(plans.into_iter().flatten()),
                Err(why) => found.left.push((call.from, format!("a call of where threads are cancelled: {why}"))),
            }
        }
        let jumps = &self.far()[self.far().partition_point(|jump| jump.to < routine.start)..];
        for jump in jumps.iter().take_while(|jump| jump.to == routine.start) {
            let code =
                self.bounds(jump.from).and_then(|(bounds, _)| Some((self.elf().code(bounds.clone())?, bounds.start)));
            if code.is_none_or(|(code, start)| ring3_patch::is_branch(code, start, *jump)) {
                found.left.push((jump.from, "a jump to where threads are cancelled, not a call".to_owned()));
            }
        }
    }

    /// The function around an address, and whether it is what lies between known ones.
    fn bounds(&self, vaddr: u64) -> Option<(std::ops::Range<u64>, bool)> {
        let known = self.elf().function_bounds(vaddr).map(|bounds| (bounds, false));
        known.or_else(|| Some((between(self.elf(), vaddr)?, true)))
    }

    /// Plans for what may be a call of a routine, if it is one.
    fn plan_caller(&self, routine: &Routine, from: u64) -> Result<Option<[SyscallPlan; 2]>, String> {
        let unknown = || "no symbol and no unwind table says where its function begins".to_owned();
        let (bounds, is_gap) = self.bounds(from).ok_or_else(unknown)?;
        let room = [BEHIND_FUNCTION_BYTES, 0].into_iter();
        let code =
            room.filter_map(|more| self.elf().code(bounds.start..bounds.end + more)).next().ok_or_else(unknown)?;
        let size = (bounds.end - bounds.start) as usize;
        let call = ring3_patch::Branch { to: routine.start, from };
        if !ring3_patch::is_branch(&code[..size], bounds.start, call) {
            return Ok(None);
        }
        let back = from + JUMP_BYTES as u64;
        let inside = back + 1..back + JUMP_BYTES as u64;
        let called = if is_gap { called_in(self.calls(), &inside).map(Arrival::Direct) } else { None };
        let entered = called.or_else(|| self.entered_in(inside));
        let function = Function { bytes: code, address: bounds.start, size, entered, computed: false };
        routine.plan_caller(&function, from).map(Some).map_err(|why| why.to_string())
    }
}

impl SyscallPlans {
    /// Leaves alone what lies where routines return to, and says no more of instructions whose callers are replaced.
    pub(super) fn keep_callers_apart(&mut self) {
        let returns: Vec<SyscallPlan> =
            self.plans.iter().filter(|plan| plan.replaced == Replaced::Return).cloned().collect();
        let end = |plan: &SyscallPlan| plan.site + plan.displaced.len() as u64;
        let overlaps = |plan: &SyscallPlan| {
            let is_other = plan.replaced == Replaced::Instruction;
            is_other && returns.iter().any(|back| plan.site < end(back) && back.site < end(plan))
        };
        let (apart, plans) = std::mem::take(&mut self.plans).into_iter().partition(overlaps);
        self.plans = plans;
        let because = "what a call returns to is there in which threads are cancelled";
        self.left.extend(apart.iter().map(|plan: &SyscallPlan| (plan.call, because.to_owned())));
        let seen: BTreeSet<u64> = returns.iter().map(|plan| plan.call).collect();
        self.left.retain(|(call, _)| !seen.contains(call));
    }
}
