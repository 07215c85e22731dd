//! Faults in a target that are the agent's: programs read memory there at the speed of a copy.
//!
//! Memory that a program names may not be there. Where the agent handles SIGSEGV and SIGBUS, it touches such memory and learns from
//! the fault that it is not (`inside/runtime/src/raw_guarded.rs`); where it does not, it asks the kernel: hundreds of nanoseconds instead of a few. As
//! for `int3` sites (`traps.rs`), no thread may block these signals meanwhile. A process in which that cannot be seen to is read by
//! system calls: nothing is refused.

use std::collections::BTreeMap;
use std::mem::offset_of;

use ring3_inject as inject;
use ring3_layout::sud::{FAULT_BITS, SudState};
use ring3_uapi::Errno;

use super::actions;
use super::actions::{field, write_flag};
use crate::realm::process::read_value;
use crate::realm::refusal::refusal_of;
use crate::realm::sites::Site;
use crate::realm::target::{Link, STOP_WITHIN, Target};
use crate::realm::{AttachmentId, Refusal, Shared};

/// SIGSEGV and SIGBUS.
const SIGNALS: [u64; 2] = [11, 7];
/// The memory of a process whose masks never become stable is read by system calls.
const TRIES_MAX: u32 = 12;

/// What the server knows of a target's faults.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct FaultState {
    /// Displaced instructions may fault, and the process is to find the faults at the original ones.
    wanted: bool,
    /// SIGSEGV and SIGBUS are taken, and blocked nowhere.
    armed: bool,
    /// How often that was tried in vain.
    tries: u32,
    /// Why it will not be done, whatever happens.
    given_up: Option<String>,
}

impl FaultState {
    /// Whether the process finds faults of displaced instructions at the original ones.
    pub(in crate::realm) fn is_ready(&self) -> bool {
        self.armed && self.given_up.is_none()
    }
}

/// Gives the signals back. False: a thread may still rely on them. No thread is inside the agent.
pub(in crate::realm) fn disable(stopped: &mut inject::Stopped, region: u64) -> Result<bool, inject::Error> {
    let given = actions::give_back_for_good(stopped, region, &SIGNALS)?;
    if given {
        write_flag(stopped, field(region, offset_of!(SudState, catches_faults)), false)?;
    }
    Ok(given)
}

impl Target {
    /// Whether the agent handles faults here, or should because programs read memory. (Once it has their handlers it is to see what
    /// the process makes of them, also if it has given up.)
    pub(in crate::realm) fn wants_faults(&self, links: &BTreeMap<AttachmentId, Link>) -> bool {
        let may_be = self.faults.given_up.is_none();
        // (It is asked at each of thousands of links, most of which may read nothing.)
        let reads =
            || links.values().any(|link| link.spec.reads) && self.links_for(links).any(|(_, spec)| spec.reads);
        self.faults.armed || may_be && (self.faults.wanted || reads())
    }

    /// A process that handles faults, now or later, is to find those of displaced instructions at the original ones, if that is
    /// possible.
    pub(in crate::realm) fn see_faults(
        &mut self,
        stopped: &mut inject::Stopped,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
    ) {
        let may_fault = |site: &Site| site.patched && site.plan.may_fault();
        if self.faults.wanted || self.faults.given_up.is_some() || !self.sites.values().any(may_fault) {
            return;
        }
        if let Err(refusal) = self.prepare_faults(stopped, shared, links) {
            tracing::info!(pid = self.pid, "handlers of faults may find stubs: {refusal}");
        }
    }

    /// Makes the stopped process ready for sites whose displaced instructions may fault where it must know where.
    pub(in crate::realm) fn prepare_faults(
        &mut self,
        stopped: &mut inject::Stopped,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> Result<(), Refusal> {
        let refuse = |errno, why: &str| Refusal::new(errno, format!("an instruction there may fault, and {why}"));
        if let Some(why) = &self.faults.given_up {
            return Err(refuse(Errno::ENOTSUPP, why));
        }
        if !self.faults.armed {
            self.faults.wanted = true;
            self.reconcile_calls_now(stopped, shared, links)?;
            self.take_faults(stopped, shared, links);
        }
        match &self.faults.given_up {
            Some(why) => Err(refuse(Errno::ENOTSUPP, why)),
            None if self.faults.armed => Ok(()),
            None => Err(refuse(Errno::EBUSY, "a thread blocks SIGSEGV at present; it is tried again")),
        }
    }

    /// Whether they are to, and do not.
    pub(in crate::realm) fn lacks_faults(&self, links: &BTreeMap<AttachmentId, Link>) -> bool {
        !self.faults.armed && self.wants_faults(links)
    }

    /// How programs read memory, for `ring3 status -v`.
    pub(in crate::realm) fn reads_how(&self) -> Option<String> {
        match &self.faults {
            FaultState { given_up: Some(why), .. } => Some(format!("by system calls: {why}")),
            FaultState { armed: true, .. } => {
                // (The agent may have given up by itself.)
                let catches = field(self.region, offset_of!(SudState, catches_faults));
                let is_direct = read_value::<u32>(self.pid, catches).is_ok_and(|catches| catches != 0);
                let why = "by system calls: a thread was sent SIGSEGV or SIGBUS, and blocks it";
                Some(if is_direct { "directly" } else { why }.to_owned())
            }
            FaultState { .. } => None,
        }
    }

    /// Makes the agent handle faults in the stopped process, whose calls that change signal masks are seen. It is tried again where
    /// only a moment is in the way ([`Target::lacks_faults`]).
    pub(in crate::realm) fn take_faults(
        &mut self,
        stopped: &mut inject::Stopped,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
    ) {
        if self.faults.given_up.is_some() || !self.wants_faults(links) {
            return;
        }
        if let Some(call) = self.syscalls.unseen_change() {
            let why = format!("the call at {call:#x}, which may block SIGSEGV, cannot be seen");
            return match self.faults.armed {
                true => self.leave_faults(stopped, &why),
                false => self.faults.given_up = Some(why),
            };
        }
        if self.faults.armed || shared.modules().passes_over() {
            return;
        }
        match self.try_to_take_faults(stopped, shared) {
            Ok(true) => self.faults.armed = true,
            Ok(false) => {
                self.faults.tries += 1;
                if self.faults.tries >= TRIES_MAX {
                    self.faults.given_up = Some("a thread blocks SIGSEGV or SIGBUS".to_owned());
                }
            }
            Err(refusal) => self.faults.given_up = Some(refusal.message),
        }
    }

    fn try_to_take_faults(&self, stopped: &mut inject::Stopped, shared: &Shared) -> Result<bool, Refusal> {
        if !actions::may_take(stopped, shared).map_err(refusal_of)? {
            return Err(Refusal::new(Errno::EPERM, actions::MAY_NOT_TAKE));
        }
        // (What a thread has blocked before is known nowhere then.)
        for tid in stopped.threads() {
            if stopped.signal_mask(*tid).map_err(refusal_of)? & FAULT_BITS != 0 {
                return Ok(false);
            }
        }
        let taken =
            actions::take_for_good(stopped, self.region, &SIGNALS, "ring3_fault_signal").map_err(refusal_of)?;
        if taken {
            write_flag(stopped, field(self.region, offset_of!(SudState, catches_faults)), true)
                .map_err(refusal_of)?;
        }
        Ok(taken)
    }

    /// From now on programs read by system calls. (Handlers stay: a thread may be in the middle of a copy.)
    fn leave_faults(&mut self, stopped: &mut inject::Stopped, why: &str) {
        self.faults.given_up = Some(why.to_owned());
        let needing = self.sites.values().filter(|site| site.patched && site.plan.needs_faults);
        for address in needing.map(|site| site.place.address).collect::<Vec<u64>>() {
            if let Err(error) = self.restore_bytes(stopped, address) {
                tracing::warn!(pid = self.pid, "a site whose faults are not seen any more is not restored: {error}");
            }
        }
        let left = write_flag(stopped, field(self.region, offset_of!(SudState, catches_faults)), false)
            .and_then(|()| actions::let_block(stopped, self.region, FAULT_BITS));
        if let Err(error) = left {
            tracing::warn!(pid = self.pid, "faults are not left to the process: {error}");
        }
    }

    /// The process is about to block these signals unseen.
    pub(in crate::realm) fn abandon_faults(&mut self, why: &str) {
        if self.faults.given_up.is_some() {
            return;
        }
        if !self.faults.armed {
            self.faults.given_up = Some(why.to_owned());
            return;
        }
        let pid = inject::Pid(self.pid);
        let left = inject::while_stopped(pid, STOP_WITHIN, |stopped| self.leave_faults(stopped, why));
        if let Err(error) = left {
            tracing::warn!(pid = self.pid, "faults are not left to the process: {error}");
        }
    }
}
