//! Forks: processes that run with the tables of the one that made them, until they are given their own.
//!
//! What the tables lose, such a fork loses, too: whoever takes something away waits for it. What they gain it must not see,
//! for it lacks what goes with it, in its memory and in its code: the creator gets other tables before that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_layout::PAGE_BYTES;
use ring3_layout::control::ControlHeader;
use ring3_layout::region::{PROCESS_OFFSET, WITNESS_FILE_BYTES, WITNESS_OFFSET};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

use crate::realm::memory::Pending;
use crate::realm::process::{nonce_at, read_value};
use crate::realm::reports::{ReportTo, report_untraced};
use crate::realm::target::Target;
use crate::realm::tracer::Actor;
use crate::realm::{Shared, process};

/// All threads of a fork must have stopped within this time; else it is adopted later.
const ADOPT_WITHIN: Duration = Duration::from_millis(100);
/// Forks are adopted for this long, then everybody else has a turn: a process may make thousands.
const ADOPTING_AT_ONCE: Duration = Duration::from_millis(50);

/// A fork that executes a program mostly does so within this time. What it executes is followed, whether it was adopted or not.
const YOUNG_FOR: Duration = Duration::from_millis(5);
/// More forks than this do not wait to be adopted.
const YOUNG_MAX: usize = 256;

/// Forks that have said that they are there, and are not adopted yet: mostly they execute a program soon.
#[derive(Debug, Default)]
pub(in crate::realm) struct YoungForks(VecDeque<YoungFork>);

#[derive(Clone, Copy, Debug)]
struct YoungFork {
    since: Instant,
    /// Of the tables that it runs with.
    nonce: u64,
    /// In its own pid namespace.
    own_pid: u32,
}

impl YoungForks {
    pub(in crate::realm) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// It need not be adopted any more.
    pub(in crate::realm) fn forget(&mut self, nonce: u64, own_pid: u32) {
        self.0.retain(|fork| (fork.nonce, fork.own_pid) != (nonce, own_pid));
    }

    fn add(&mut self, nonce: u64, own_pid: u32) {
        self.forget(nonce, own_pid);
        self.0.push_back(YoungFork { since: Instant::now(), nonce, own_pid });
    }

    fn take_grown(&mut self) -> Option<YoungFork> {
        let is_grown = self.0.front().is_some_and(|fork| fork.since.elapsed() >= YOUNG_FOR);
        if is_grown || self.0.len() > YOUNG_MAX { self.0.pop_front() } else { None }
    }
}

/// Whether a process is no `vfork` child, which runs in its creator's memory: then the process word there is its own, or wiped.
fn has_own_memory(pid: u32, region: u64) -> bool {
    let generation = read_value::<u64>(pid, region + PROCESS_OFFSET).ok();
    generation.is_some_and(|word| word == 0 || process::own_pid(pid).map(u64::from) == Some(word))
}

/// Whether the page at an address is mapped by this process alone (fs/proc/task_mmu.c, `PM_MMAP_EXCLUSIVE`); `false` also if the
/// kernel does not say.
fn has_page_alone(pid: u32, address: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    const MAPPED_ONCE: u64 = 1 << 56;
    let mut entry = [0; 8];
    let file = std::fs::File::open(format!("/proc/{pid}/pagemap"));
    let read = file.and_then(|file| file.read_exact_at(&mut entry, address / PAGE_BYTES * 8));
    read.is_ok() && u64::from_le_bytes(entry) & (PRESENT | MAPPED_ONCE) == PRESENT | MAPPED_ONCE
}

/// A file that a target and its forks map until they are adopted, and nobody else.
#[derive(Debug)]
pub(in crate::realm) struct WitnessFile(OwnedFd);

impl WitnessFile {
    pub(in crate::realm) fn new() -> Result<WitnessFile, Errno> {
        let file = memfd_create("ring3-witness", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, WITNESS_FILE_BYTES)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)?;
        Ok(WitnessFile(file))
    }

    /// Whether no process maps it any more; nobody can from then on. (mm/memfd.c, `memfd_add_seals`: a file with a shared mapping
    /// that may become writable is not sealed.)
    fn is_unmapped(&self) -> bool {
        fcntl_add_seals(&self.0, SealFlags::WRITE).is_ok()
    }
}

impl Target {
    /// What is mapped into this process only.
    pub(in crate::realm) fn own_files(&self) -> inject::OwnFiles<'_> {
        inject::OwnFiles { control: self.control.file(), witness: self.witness.0.as_fd() }
    }

    /// Whether a fork that has not been adopted may be there. The witness page says so while the process runs with these tables, and
    /// the witness file when it does no more.
    pub(in crate::realm) fn may_have_forks(&self) -> bool {
        // (A target that nothing is mapped into yet has none, and its file is not to be sealed.)
        self.region != 0
            && (self.forks_only || !has_page_alone(self.pid, self.region + WITNESS_OFFSET))
            && !self.witness.is_unmapped()
    }

    /// Whether a process runs in this one's memory: a `vfork` child. (Where the kernel does not say, a thread that cannot be stopped
    /// waits for one.)
    fn shares_memory_with(&self, pid: u32) -> bool {
        crate::raw_process::share_memory(self.pid, pid).unwrap_or_else(|| process::is_held(self.pid))
    }

    /// Processes that use this target's control page and are not it: forks that have not been adopted. A `vfork` child,
    /// of the target or of such a fork, runs in its creator's memory and is none: the process word there is not its
    /// own, if it was not the first to come by. All processes of the machine are asked only if there may be a fork.
    pub(in crate::realm) fn find_children(&self) -> Vec<u32> {
        if !self.may_have_forks() {
            return vec![];
        }
        let is_child = |pid: &u32| {
            *pid != self.pid
                && nonce_at(*pid, self.region) == Some(self.nonce)
                && has_own_memory(*pid, self.region)
                && !self.shares_memory_with(*pid)
        };
        process::all_processes().into_iter().filter(is_child).collect()
    }

    /// The process with this id in its own pid namespace that runs with this target's tables: a fork that has not been adopted,
    /// or a `vfork` child.
    pub(in crate::realm) fn find_unadopted(&self, own_pid: u32) -> Option<u32> {
        let is_it =
            |pid: &u32| nonce_at(*pid, self.region) == Some(self.nonce) && process::own_pid(*pid) == Some(own_pid);
        Some(own_pid).filter(is_it).or_else(|| process::all_processes().into_iter().find(is_it))
    }

    /// Gives a fork of this target its own control page, a copy of ours.
    pub(super) fn adopt(&self, shared: &Shared, child: u32) -> Result<Target, inject::Error> {
        let mut target = Target::prepare(shared, child, self.explicit)?;
        inject::while_stopped(inject::Pid(child), ADOPT_WITHIN, |stopped| {
            target.take_after(self, shared);
            // (It may have come by a filter before its calls were seen.)
            target.deny(&stopped.filters()?.without(&shared.loader_filter));
            inject::replace_own(stopped, self.region, target.own_files())
        })??;
        target.tell_perf(shared);
        Ok(target)
    }

    /// Gives the process, which is stopped, a control page of its own if forks run with its: what changes from now on is not
    /// in them. The result is what they go on with.
    pub(in crate::realm) fn unshare(
        &mut self,
        shared: &Shared,
        stopped: &mut inject::Stopped,
    ) -> Result<Option<Target>, inject::Error> {
        if self.find_children().is_empty() {
            return Ok(None);
        }
        // (It has its share.)
        let mut fresh = Target::prepare(shared, self.pid, true)?;
        fresh.keep_share(self);
        fresh.take_after(self, shared);
        fresh.executed = self.executed;
        fresh.series = self.series.take();
        (fresh.inject_us, fresh.stopped_us) = (self.inject_us, self.stopped_us.clone());
        inject::replace_own(stopped, self.region, fresh.own_files())?;
        fresh.perf_map = self.perf_map.take();
        let mut forks = std::mem::replace(self, fresh);
        forks.retire();
        Ok(Some(forks))
    }

    /// Only forks that have not been adopted run with these tables from now on: nothing is run there until they are.
    pub(in crate::realm) fn retire(&mut self) {
        self.forks_only = true;
        self.control.word32(offset_of!(ControlHeader, retired) as u64).store(1, Ordering::SeqCst);
    }

    /// What the adopted fork of a target that had unshared its control page has been brought in line with the links.
    pub(in crate::realm) fn resume(&mut self) {
        self.forks_only = false;
        self.control.word32(offset_of!(ControlHeader, retired) as u64).store(0, Ordering::SeqCst);
    }

    /// Becomes a copy of another target, for another process, or for the same one.
    fn take_after(&mut self, other: &Target, shared: &Shared) {
        self.following = other.following;
        self.forebears = other.with_forebears();
        self.is_expected = other.is_expected;
        self.inherit_domain(other);
        self.terminal = other.terminal;
        self.told = other.told.clone();
        self.told_of_gate = other.told_of_gate;
        (self.budget, self.lies) = (other.budget, other.lies);
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
        self.faults = other.faults.clone();
        self.sites = other.sites.iter().map(|(address, site)| (*address, site.copy())).collect();
        self.ranges = other.ranges.copy();
        self.extensions = other.extensions.clone();
        self.protection = other.protection.clone();
        self.syscalls = other.syscalls.clone();
        self.sud = other.sud.clone();
        self.counts = other.counts;
        self.counts_runs = other.counts_runs;
        if other.forks_only {
            self.retire();
        }
    }
}

impl Actor {
    /// Forks that have not been adopted, by the nonce of the tables that they run with. (Targets are none: one look at each other
    /// process is enough for all.)
    pub(in crate::realm) fn find_orphans(&self) -> BTreeMap<u64, Vec<u32>> {
        let creators: Vec<&Target> = self.all_tables().filter(|tables| tables.may_have_forks()).collect();
        let nonces: BTreeSet<u64> = creators.iter().map(|tables| tables.nonce).collect();
        let regions: BTreeSet<u64> = creators.iter().map(|tables| tables.region).collect();
        let mut orphans: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        if nonces.is_empty() {
            return orphans;
        }
        for pid in process::all_processes().into_iter().filter(|pid| !self.targets.contains_key(pid)) {
            let is_ours = |region: &u64| {
                let nonce = nonce_at(pid, *region).filter(|nonce| nonces.contains(nonce))?;
                has_own_memory(pid, *region).then_some(nonce)
            };
            if let Some(nonce) = regions.iter().find_map(is_ours) {
                orphans.entry(nonce).or_default().push(pid);
            }
        }
        orphans
    }

    /// Finds processes that run with a target's tables but are not it (forks), and gives them their own.
    pub(in crate::realm) fn adopt_children_of(&mut self, pid: u32) {
        let Some(parent) = self.targets.remove(&pid) else { return };
        let until = Instant::now() + ADOPTING_AT_ONCE;
        self.has_orphans |= !self.adopt_children(&parent, &parent.find_children(), until);
        self.targets.insert(pid, parent);
    }

    /// As [`Actor::adopt_children_of`], of one fork, by its process id in its own pid namespace. (Others ask for themselves.)
    pub(in crate::realm) fn adopt_child_of(&mut self, pid: u32, child: u32) {
        let Some(parent) = self.targets.remove(&pid) else { return };
        let child = parent.find_unadopted(child).filter(|child| has_own_memory(*child, parent.region));
        let until = Instant::now() + ADOPTING_AT_ONCE;
        self.has_orphans |= !self.adopt_children(&parent, child.as_slice(), until);
        self.targets.insert(pid, parent);
    }

    /// Whether none of them is left; there is time `until` then.
    fn adopt_children(&mut self, parent: &Target, children: &[u32], until: Instant) -> bool {
        // What waits for a `vfork` child, which may wait for us, is adopted later.
        let mut adopt = |child: &u32| Instant::now() < until && !self.is_held(*child) && self.adopt(parent, *child);
        children.iter().filter(|child| !parent.shares_memory_with(**child) && !adopt(child)).count() == 0
    }

    /// A fork of `creator`, which runs with the tables of `nonce`, has said that it is there. It is adopted later: to stop a process
    /// that is about to execute a program is of no use.
    pub(in crate::realm) fn meet_fork(&mut self, creator: u32, nonce: u64, own_pid: u32) {
        // (Who has its end shown must know it before that.)
        if self.shows_ends_of(creator) {
            self.adopt_fork(creator, nonce, own_pid);
        } else {
            self.young_forks.add(nonce, own_pid);
        }
    }

    /// Adopts forks that have run for a while.
    pub(in crate::realm) fn adopt_grown_forks(&mut self) {
        while let Some(YoungFork { nonce, own_pid, .. }) = self.young_forks.take_grown() {
            // (Forks of those that are gone are looked for by themselves.)
            let creator = self.targets.values().find(|target| target.nonce == nonce);
            if let Some(creator) = creator.filter(|creator| creator.may_have_forks()).map(|creator| creator.pid) {
                self.adopt_fork(creator, nonce, own_pid);
            }
        }
    }

    fn adopt_fork(&mut self, creator: u32, nonce: u64, own_pid: u32) {
        let is_it = |target: &Target| target.own_pid == own_pid && target.is_family(nonce);
        match self.targets.values().find(|target| is_it(target)).map(|target| target.pid) {
            // (In another pid namespace it may have its creator's process id.)
            Some(pid) if pid == creator => self.adopt_children_of(creator),
            Some(_) => {}
            None => self.adopt_child_of(creator, own_pid),
        }
        self.show_end_of_fork(creator, own_pid);
    }

    /// As [`Actor::adopt_children_of`], of all targets and of those that are gone.
    pub(in crate::realm) fn adopt_all_children(&mut self) {
        self.has_orphans = false;
        self.orphans_sought = Instant::now();
        let orphans = self.find_orphans();
        let of = |parent: &Target| orphans.get(&parent.nonce).map_or(&[][..], Vec::as_slice);
        let until = Instant::now() + ADOPTING_AT_ONCE;
        for parent in std::mem::take(&mut self.forks_only) {
            if !self.adopt_children(&parent, of(&parent), until) {
                self.has_orphans = true;
                self.forks_only.push(parent);
            }
        }
        let parents: Vec<u32> =
            self.targets.values().filter(|target| !of(target).is_empty()).map(|t| t.pid).collect();
        for pid in parents {
            let Some(parent) = self.targets.remove(&pid) else { continue };
            self.has_orphans |= !self.adopt_children(&parent, of(&parent), until);
            self.targets.insert(pid, parent);
        }
    }

    /// Gives a fork its own tables; false: it must be tried again.
    fn adopt(&mut self, parent: &Target, child: u32) -> bool {
        match parent.adopt(&self.shared, child) {
            Ok(target) => {
                tracing::info!(pid = child, parent = parent.pid, "fork adopted");
                let stays = parent.following.follows() && !parent.is_detaching();
                self.targets.insert(child, target);
                // It may be inside what its parent uses.
                for Pending { users, .. } in
                    self.pending.iter_mut().filter(|pending| pending.users.contains(&parent.pid))
                {
                    users.push(child);
                }
                if !stays {
                    self.targets.get_mut(&child).expect("just inserted").begin_detach();
                    return true;
                }
                // It has its parent's probes: some programs may be for one of the two only.
                let differs = parent.forks_only
                    || self.targets.get(&child).is_some_and(Target::changes_domain)
                    || self.links.values().any(|link| link.spec.filter.chooses() || !link.spec.rights.reaches_all());
                let applied = if differs { self.apply(child, ReportTo::Starter) } else { Ok(()) };
                if let Err(refusal) = applied {
                    tracing::warn!(pid = child, "{refusal}");
                }
                if parent.forks_only
                    && let Some(target) = self.targets.get_mut(&child)
                {
                    target.resume();
                }
                true
            }
            Err(error) if error.is_gone() => true,
            Err(error @ inject::Error::ThreadDoesNotStop { .. }) => {
                tracing::debug!(pid = child, parent = parent.pid, "a fork is adopted later: {error}");
                false
            }
            Err(error) => {
                report_untraced(
                    parent.terminal,
                    child,
                    &format!("a fork of {} could not be adopted: {error}", parent.pid),
                );
                true
            }
        }
    }
}
