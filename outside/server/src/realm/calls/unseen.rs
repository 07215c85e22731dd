//! Calls of a target that go through no trampoline. Most of them the SUD fallback sees; nobody sees those by `int $0x80`, the gate of
//! 32-bit programs, which 64-bit code can use, too. So strace is told of them by the kernel: such a process is no target of its. All
//! others are told that these calls are not seen.

use ring3_inject as inject;
use ring3_uapi::Errno;

use crate::realm::files::{Modules, likely_key_of};
use crate::realm::target::Target;
use crate::realm::tracer::Actor;
use crate::realm::{Refusal, Shared};

/// Why no tool sees such calls, where the instruction was not found before it ran.
const BY_GATE: &str = "it makes system calls by `int $0x80`";

/// What is found out beside the calls themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct Unseen {
    /// What may be calls and was left alone, and why.
    pub(in crate::realm) left: Vec<String>,
    /// Addresses behind calls whose place matters.
    pub(in crate::realm) left_in_place: Vec<u64>,
    /// An `int $0x80`, as people are told of it.
    pub(in crate::realm) gate: Option<String>,
}

/// Whether strace traces these processes or what comes from them.
pub(in crate::realm) fn are_of_strace<'a>(mut family: impl Iterator<Item = &'a u32>) -> bool {
    let tracers = inject::traced_through();
    family.any(|pid| tracers.contains(pid))
}

impl Target {
    /// Whether strace traces it, and would miss calls that are not seen.
    pub(in crate::realm) fn is_of_strace(&self) -> bool {
        are_of_strace(self.forebears.iter())
    }

    /// Refuses a process of strace's whose code has an `int $0x80`.
    pub(in crate::realm) fn check_gates(&self, shared: &Shared, mappings: &[inject::Mapping]) -> Result<(), Refusal> {
        if !self.is_of_strace() {
            return Ok(());
        }
        let mut modules = shared.modules();
        let why = self.code_not_ours(mappings).find_map(|mapping| gate_in(self.pid, mapping, &mut modules));
        why.map_or(Ok(()), |why| Err(Refusal::new(Errno::ENOTSUPP, why)))
    }
}

fn gate_in(pid: u32, mapping: &inject::Mapping, modules: &mut Modules) -> Option<String> {
    if !mapping.is_executable() || mapping.inode == 0 || mapping.is_shared() {
        return None;
    }
    let (file, key) = likely_key_of(pid, mapping)?;
    modules.syscalls(key, &file).gate_in(mapping)
}

impl Actor {
    /// The code of a target has an `int $0x80`, perhaps.
    pub(in crate::realm) fn meet_gate(&mut self, pid: u32) {
        let Some(target) = self.targets.get(&pid).filter(|target| !target.is_detaching()) else { return };
        let Some(why) = target.syscalls.unseen.gate.clone() else { return };
        match target.is_of_strace() {
            true => self.detach_with_reason(pid, &why),
            false => self.say_of_gate(pid, &why),
        }
    }

    /// A thread of a target, which waits for the answer, is about to make such a call.
    pub(in crate::realm) fn meet_call_by_gate(&mut self, pid: u32, own_pid: u32) {
        let Some(target) = self.targets.get(&pid) else { return };
        match target.is_of_strace() {
            true => self.let_go_at_once((pid, own_pid), BY_GATE),
            false => self.say_of_gate(pid, BY_GATE),
        }
    }

    /// Says once that calls of a target are not seen.
    fn say_of_gate(&mut self, pid: u32, why: &str) {
        let Some(target) = self.targets.get_mut(&pid) else { return };
        if !std::mem::replace(&mut target.told_of_gate, true) {
            self.say_of(pid, &format!("makes system calls that are not shown: {why}"));
        }
    }
}
