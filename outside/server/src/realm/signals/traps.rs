//! Sites of a target that are an `int3`, and the handler of SIGTRAP that leads threads from there to stubs.
//!
//! The kernel ends a process for which SIGTRAP is blocked where an `int3` is. So before there is one, no thread blocks it, no
//! handler has it in its mask, and all calls that change masks go through trampolines, where the agent sees to that
//! (`inside/runtime/src/raw_actions.rs`). As for the SUD fallback, that begins and ends while no thread is in between.

use std::mem::offset_of;

use ring3_inject as inject;
use ring3_layout::control::{TRAPS_OFFSET, Trap, trap_slots};
use ring3_layout::sud::SIGTRAP_BIT;
use ring3_patch::Tactic;
use ring3_uapi::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

use super::actions;
use crate::realm::refusal::refusal_of;
use crate::realm::target::{Link, STOP_WITHIN, Target};
use crate::realm::{AttachmentId, Refusal, Shared};

const SIGTRAP: u64 = 5;

/// What the server knows of a target's `int3`s.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct TrapState {
    /// There are some, or were to be: calls that change masks go through trampolines.
    pub(in crate::realm) wanted: bool,
    /// SIGTRAP is taken, and blocked nowhere.
    pub(in crate::realm) armed: bool,
    /// Why there will be none, whatever happens.
    pub(in crate::realm) given_up: Option<String>,
}

impl TrapState {
    /// Whether there may be some now.
    pub(in crate::realm) fn is_ready(&self) -> bool {
        self.armed && self.given_up.is_none()
    }
}

/// Gives SIGTRAP back, in a process in which no site is an `int3` any more. False: a thread may still come from one.
pub(in crate::realm) fn disable(stopped: &mut inject::Stopped, region: u64) -> Result<bool, inject::Error> {
    actions::give_back_for_good(stopped, region, &[SIGTRAP])
}

impl Target {
    /// Makes the stopped process ready for sites that are an `int3`.
    pub(in crate::realm) fn prepare_traps(
        &mut self,
        stopped: &mut inject::Stopped,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> Result<(), Refusal> {
        let refuse = |why: &str| Refusal::new(Errno::ENOTSUPP, format!("only an `int3` fits there, and {why}"));
        if let Some(why) = &self.traps.given_up {
            return Err(refuse(why));
        }
        if self.traps.armed {
            return Ok(());
        }
        if !actions::may_take(stopped, shared).map_err(refusal_of)? {
            return Err(refuse(actions::MAY_NOT_TAKE));
        }
        self.traps.wanted = true;
        self.reconcile_calls_now(stopped, shared, links)?;
        if let Some(call) = self.syscalls.unseen_change() {
            return Err(refuse(&format!("the call at {call:#x}, which may block SIGTRAP, cannot be seen")));
        }
        match actions::take_for_good(stopped, self.region, &[SIGTRAP], "ring3_trap_signal") {
            Ok(true) => {
                self.traps.armed = true;
                Ok(())
            }
            Ok(false) => {
                let why = "a thread changes its signal mask, or waits with SIGTRAP blocked; it is tried again";
                Err(Refusal::new(Errno::EBUSY, format!("only an `int3` fits there, and {why}")))
            }
            Err(error) => Err(refusal_of(error)),
        }
    }

    /// Tells the agent where a thread goes on that comes from the `int3` at an address.
    pub(in crate::realm) fn set_trap(&self, address: u64, stub: u64) -> Result<(), Refusal> {
        let behind = address + 1;
        let place = |at: usize| TRAPS_OFFSET + (at * size_of::<Trap>()) as u64;
        let word = |at: usize| self.control.word(place(at) + offset_of!(Trap, behind) as u64);
        let slot = trap_slots(behind).find(|at| [0, behind].contains(&word(*at).load(SeqCst)));
        let slot = slot.ok_or_else(|| Refusal::new(Errno::ENOSPC, "too many `int3` sites in one process"))?;
        self.control.word(place(slot) + offset_of!(Trap, stub) as u64).store(stub, SeqCst);
        word(slot).store(behind, SeqCst);
        Ok(())
    }

    /// The process is about to block SIGTRAP unseen: no site is an `int3` from now on.
    pub(in crate::realm) fn abandon_traps(&mut self, why: &str) {
        self.traps.given_up = Some(why.to_owned());
        let traps: Vec<u64> = self
            .sites
            .values()
            .filter(|site| site.plan.tactic == Tactic::Trap)
            .map(|site| site.place.address)
            .collect();
        let region = self.region;
        let restored = inject::while_stopped(inject::Pid(self.pid), STOP_WITHIN, |stopped| {
            for address in traps {
                let _ = self.restore_bytes(stopped, address);
            }
            actions::let_block(stopped, region, SIGTRAP_BIT)
        });
        if let Err(error) = restored.flatten() {
            tracing::warn!(pid = self.pid, "`int3` sites are not restored: {error}");
        }
    }
}
