//! Forks: processes that run with the tables of the one that made them, until they are given their own.
//!
//! What the tables lose, such a fork loses, too: whoever takes something away waits for it. What they gain it must not see,
//! for it lacks what goes with it, in its memory and in its code: the creator gets other tables before that.

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ring3_inject as inject;
use ring3_layout::control::ControlHeader;
use ring3_layout::region::PROCESS_OFFSET;

use super::Shared;
use super::raw_mapping::read_value;
use super::recovery;
use super::target::{Target, nonce_at};

/// All threads of a fork must have stopped within this time; else it is adopted later.
const ADOPT_WITHIN: Duration = Duration::from_millis(100);

impl Target {
    /// Processes that use this target's control block and are not it: forks that have not been adopted. A `vfork` child, of the
    /// target or of such a fork, runs in its creator's memory and is none: the process word there is not its own.
    pub(super) fn find_children(&self) -> Vec<u32> {
        let is_child = |pid: &u32| {
            let generation = || read_value::<u64>(*pid, self.region + PROCESS_OFFSET).ok();
            *pid != self.pid
                && nonce_at(*pid, self.region) == Some(self.nonce)
                && generation().is_some_and(|word| word == 0 || recovery::own_pid(*pid).map(u64::from) == Some(word))
        };
        recovery::all_processes().into_iter().filter(is_child).collect()
    }

    /// The process with this id in its own pid namespace that runs with this target's tables: a fork that has not been adopted,
    /// or a `vfork` child.
    pub(super) fn find_kin(&self, own_pid: u32) -> Option<u32> {
        let is_it =
            |pid: &u32| nonce_at(*pid, self.region) == Some(self.nonce) && recovery::own_pid(*pid) == Some(own_pid);
        Some(own_pid).filter(is_it).or_else(|| recovery::all_processes().into_iter().find(is_it))
    }

    /// Gives a fork of this target its own control block, a copy of ours.
    pub(super) fn adopt(&self, shared: &Shared, child: u32) -> Result<Target, inject::Error> {
        let mut target = Target::prepare(child, self.explicit)?;
        inject::while_stopped(inject::Pid(child), ADOPT_WITHIN, |stopped| {
            target.take_after(self, shared);
            inject::replace_control(stopped, self.region, target.control.file())
        })??;
        target.tell_perf(shared);
        Ok(target)
    }

    /// Gives the process, which is stopped, a control block of its own if forks run with its: what changes from now on is not
    /// in them. The result is what they go on with.
    pub(super) fn part(
        &mut self,
        shared: &Shared,
        stopped: &mut inject::Stopped,
    ) -> Result<Option<Target>, inject::Error> {
        if self.find_children().is_empty() {
            return Ok(None);
        }
        let mut fresh = Target::prepare(self.pid, self.explicit)?;
        fresh.take_after(self, shared);
        fresh.executed = self.executed;
        (fresh.inject_us, fresh.stopped_us) = (self.inject_us, self.stopped_us.clone());
        inject::replace_control(stopped, self.region, fresh.control.file())?;
        fresh.perf_map = self.perf_map.take();
        let mut forks = std::mem::replace(self, fresh);
        forks.retire();
        Ok(Some(forks))
    }

    /// Only forks that have not been adopted run with these tables from now on: nothing is run there until they are.
    pub(super) fn retire(&mut self) {
        self.parted = true;
        self.control.word32(offset_of!(ControlHeader, retired) as u64).store(1, Ordering::SeqCst);
    }

    /// What the adopted fork of a target that had parted has been brought in line with the links.
    pub(super) fn resume(&mut self) {
        self.parted = false;
        self.control.word32(offset_of!(ControlHeader, retired) as u64).store(0, Ordering::SeqCst);
    }

    /// Becomes a copy of another target, for another process, or for the same one.
    fn take_after(&mut self, other: &Target, shared: &Shared) {
        self.following = other.following;
        self.terminal = other.terminal;
        self.told = other.told.clone();
        self.control.copy_from(&other.control);
        self.region = other.region;
        self.rseq_offset = other.rseq_offset;
        self.ancestors = other.ancestors.iter().copied().chain([other.nonce]).collect();
        self.write_header(shared, self.region);
        self.maps = other.maps.clone();
        self.hooks_used = other.hooks_used;
        self.areas = other.areas.clone();
        self.relays = other.relays.clone();
        self.traps = other.traps.clone();
        self.sites = other.sites.iter().map(|(address, site)| (*address, site.copy())).collect();
        self.ranges = other.ranges.copy();
        self.syscalls = other.syscalls.clone();
        self.net = other.net.clone();
        if other.parted {
            self.retire();
        }
    }
}
