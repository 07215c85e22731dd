//! One target: its control page, its sites, and how they are brought in line with the links.
//!
//! The links say what should be; [`Target::apply_links`] compares that with what is, plans outside any
//! stop, and stops the target only if bytes or mappings must change. Order of a change: stub, hook,
//! then the jump; of a removal: hook, then the bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_layout::control::{
    ATTACHMENT_EXTENSION, ATTACHMENT_EXTENSION_SHIFT, ATTACHMENTS_OFFSET, Attachment, AttachmentValue, CONTROL_MAGIC,
    ControlHeader, ControlHeaderValue, HOOK_MANY, HOOKS_MAX, HOOKS_OFFSET, Hook, HookKind, HookValue,
    TASK_TABLE_OFFSET, range_pack, range_unpack,
};
use ring3_layout::region::{CONTROL_BYTES, CONTROL_NAME, CONTROL_OFFSET, TEXT_OFFSET};
use ring3_uapi::Errno;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::applying::{Ahead, Calls, Series, Settled};
use super::calls::{SudFallback, Syscalls, WantedCalls};
use super::files::{Modules, Program, VdsoClock, copies_stacks, likely_file_of, vdso_clock};
use super::hosted::Host;
use super::life::{Life, WitnessFile};
use super::memory::{Death, Protection, opened_for_targets, sources};
use super::process::{Cleaning, RetryDelay, SharedFile, Sharers, code_of, limits, nonce_at};
use super::programs::{Extensions, FaultCount};
use super::refusal::refusal_of;
use super::reports::{PerfMap, Terminal};
use super::requests::Budget;
use super::signals::{FaultState, TrapState};
use super::sites::{
    Area, FIRST_STUB_AREA_BYTES, Place, RangeAllocator, RelayPage, Site, Use, WantedSite, attachment_flags, place_in,
    places, taken,
};
use super::{AttachmentId, Domain, Following, LinkSpec, MapSlot, Point, Refusal, Shared, process};
use crate::quota::Share;
use crate::rights::Subject;

/// All threads of a target must have stopped within this time.
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(2);
/// A target must be free of our memory within this time, or it is finished in the background.
pub(super) const DETACH_WITHIN: Duration = Duration::from_secs(5);
/// Agents wait this long at a time for the server, us.
const REQUEST_WAIT_US: u32 = 200_000;
/// How often it is looked whose a target is, at most.
const SUBJECT_EVERY: Duration = Duration::from_millis(50);

/// When the server began, clock ticks since boot.
static SERVER_STARTED: LazyLock<u64> = LazyLock::new(|| inject::started(std::process::id()).unwrap_or(0));

/// A link and where it could not be applied.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) spec: LinkSpec,
    /// By pid.
    pub(super) refused: BTreeMap<u32, Refusal>,
    /// The process in which its program sees ends of targets that no program in them has seen, once there was one.
    pub(super) host: Option<Arc<Host>>,
}

/// A process that is instrumented.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) pid: u32,
    /// Process id in its own namespace.
    pub(super) own_pid: u32,
    /// In how many pid namespaces it can be seen from here.
    levels: u32,
    pub(super) comm: String,
    /// What the kernel has told of it when it became a target.
    pub(super) life: Life,
    pub(super) explicit: bool,
    /// Whose it is, when that was read last.
    pub(super) subject: Subject,
    subject_read: Instant,
    /// Whose memory it has, and whose it is to have.
    pub(super) domain: Arc<Domain>,
    pub(super) next_domain: Arc<Domain>,
    /// Its part of the room that users share, if another user's tools have it traced and nobody has named it.
    share: Option<Arc<Share>>,
    /// Links that hold for it, of programs that need what its domain cannot have.
    pub(super) kept_out: BTreeMap<AttachmentId, &'static str>,
    /// Links that overran their budget here too often, and what was said of it.
    pub(super) switched_off: BTreeMap<AttachmentId, Refusal>,
    /// Programs that have faulted, by link and program.
    pub(super) faulted: BTreeMap<(u32, u32), FaultCount>,
    /// The targets that it comes from, by `fork` or `execve`.
    pub(super) forebears: BTreeSet<u32>,
    /// What becomes of its children and of what it executes.
    pub(super) following: Following,
    /// It stands at the first instruction of its program: the end of `execve` is still to be seen.
    pub(super) executed: bool,
    /// It was said that its calls by `int $0x80` are not seen.
    pub(super) told_of_gate: bool,
    /// The id that the thread had which executed it, if that was another than it has now, in its own pid namespace; else 0.
    pub(super) executed_by: u32,
    /// It runs ring3 until it executes its program, by the C library: nothing else is looked at, and nothing but that call is seen.
    pub(super) before_program: bool,
    pub(super) nonce: u64,
    /// Where whoever began it reads what could not be done.
    pub(super) terminal: Option<Terminal>,
    /// The links of which it has been said that they could not be applied here.
    pub(super) told: BTreeSet<AttachmentId>,
    /// What its requests have taken of the acting thread's time.
    pub(super) budget: Budget,
    /// Executions that it announced and did not make.
    pub(super) lies: u32,
    /// Nonces of the targets this one was forked from: a claim with one of them may be this process's.
    pub(super) ancestors: Vec<u64>,
    pidfd: OwnedFd,
    pub(super) region: u64,
    pub(super) control: SharedFile,
    pub(super) witness: WitnessFile,
    /// Address and bytes of each mapped map.
    pub(super) maps: BTreeMap<MapSlot, (u64, u64)>,
    pub(super) sites: BTreeMap<u64, Site>,
    pub(super) hooks_used: u32,
    pub(super) ranges: RangeAllocator,
    /// Extensions' places in its table.
    pub(super) extensions: Extensions,
    /// What keeps it from their maps.
    pub(super) protection: Protection,
    /// Where system calls are seen.
    pub(super) syscalls: Syscalls,
    /// What catches the others.
    pub(super) sud: SudFallback,
    /// Where stubs lie.
    pub(super) areas: Vec<Area>,
    /// Those of them where punned jumps lead.
    pub(super) relays: Vec<RelayPage>,
    /// Sites that are an `int3`.
    pub(super) traps: TrapState,
    /// Whether programs may touch memory that may not be there.
    pub(super) faults: FaultState,
    /// Everything is being taken out.
    detaching: Option<RetryDelay>,
    /// Somebody else has written over a jump of ours.
    pub(super) disturbed: bool,
    /// Counters of probes may be up here.
    pub(super) counts: bool,
    /// Its attachments have runs counted.
    pub(super) counts_runs: bool,
    /// Return addresses are replaced here: the unwinders are sites.
    pub(super) awaits_returns: bool,
    /// How often all links were looked at.
    pub(super) looks: u64,
    /// Sites that are being placed in several stops.
    pub(super) series: Option<Series>,
    /// What it was last brought in line with; `None`: it has to be looked at wholly.
    pub(super) settled: Option<Settled>,
    /// Its process has gone, or has other tables now: forks that have not been adopted run with these.
    pub(super) forks_only: bool,
    vdso_clock: VdsoClock,
    /// The program that it ran when it was looked at first.
    program: Program,
    /// When it became one.
    pub(super) since: Instant,
    /// No link wants it yet; it may map a library that one is on.
    pub(super) is_expected: bool,
    pub(super) rseq_offset: u64,
    /// What perf reads of the stubs.
    pub(super) perf_map: Option<PerfMap>,
    pub(super) inject_us: u64,
    pub(super) stopped_us: Arc<AtomicU64>,
}

/// What is to be patched in a process that has this code.
#[derive(Debug)]
pub(super) struct PatchPlan {
    code: Vec<inject::Mapping>,
    places: Vec<WantedSite>,
    calls: WantedCalls,
}

impl Target {
    /// What can be done before the process is stopped: checks, and the control page.
    pub(super) fn prepare(shared: &Shared, pid: u32, explicit: bool) -> Result<Target, inject::Error> {
        Target::prepare_with(shared, pid, explicit, &|| inject::mappings(inject::Pid(pid)).map(Arc::from))
    }

    /// Takes the place of another one of the same process.
    pub(super) fn keep_share(&mut self, other: &Target) {
        (self.explicit, self.share) = (other.explicit, other.share.clone());
    }

    /// As [`Target::prepare`]; `mappings` tells those of the process, or what they are while it is stopped.
    pub(super) fn prepare_with(
        shared: &Shared,
        pid: u32,
        explicit: bool,
        mappings: &dyn Fn() -> Result<Arc<[inject::Mapping]>, inject::Error>,
    ) -> Result<Target, inject::Error> {
        // First of all: what is read by number is of this process if that has not ended when it is stopped (`check_identity`).
        let raw = rustix::process::Pid::from_raw(pid as i32).ok_or(inject::Error::NoSuchProcess { pid })?;
        let pidfd = rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty());
        let info = inject::inspect(inject::Pid(pid))?;
        // (Before all that is read of its memory.)
        let mappings = mappings()?;
        let control = SharedFile::new(CONTROL_NAME, CONTROL_BYTES, true)
            .map_err(|error| inject::Error::io("memfd_create", error.into()))?;
        control.write(TASK_TABLE_OFFSET, crate::kernel::known().tasks);
        let witness = WitnessFile::new().map_err(|error| inject::Error::io("memfd_create", error.into()))?;
        let pidfd = pidfd.map_err(|error| inject::Error::io("pidfd_open", error.into()))?;
        let subject = Subject::of(pid).map_err(|_| inject::Error::NoSuchProcess { pid })?;
        let domain =
            shared.domains.of(&subject).map_err(|refusal| inject::Error::Unsupported { what: refusal.message })?;
        // (Root, and the server's own user, may take all.)
        let own = rustix::process::geteuid().as_raw();
        let user = subject.identity().and_then(|identity| identity.user());
        let sharer = user.filter(|user| !explicit && *user != own);
        let share = sharer.map(|user| shared.room.take(user)).transpose();
        let share = share.map_err(|what| inject::Error::Unsupported { what })?;
        Ok(Target {
            pid,
            share: share.map(Arc::new),
            subject,
            subject_read: Instant::now(),
            since: Instant::now(),
            is_expected: false,
            program: Program::of(&mappings),
            next_domain: domain.clone(),
            domain,
            kept_out: BTreeMap::new(),
            switched_off: BTreeMap::new(),
            faulted: BTreeMap::new(),
            own_pid: info.own_pid,
            levels: info.levels,
            comm: info.comm,
            life: Life::of(pid).unwrap_or_default(),
            explicit,
            forebears: BTreeSet::new(),
            following: Following::All,
            executed: false,
            told_of_gate: false,
            executed_by: 0,
            before_program: false,
            terminal: None,
            told: BTreeSet::new(),
            budget: Budget::default(),
            lies: 0,
            nonce: fresh_nonce(),
            ancestors: vec![],
            pidfd,
            region: 0,
            control,
            witness,
            maps: BTreeMap::new(),
            sites: BTreeMap::new(),
            hooks_used: 0,
            ranges: RangeAllocator::default(),
            extensions: Extensions::default(),
            protection: Protection::default(),
            syscalls: Syscalls::default(),
            sud: SudFallback::default(),
            areas: vec![],
            relays: vec![],
            traps: TrapState::default(),
            faults: FaultState::default(),
            detaching: None,
            disturbed: false,
            counts: false,
            counts_runs: shared.domains.runs.are_counted(),
            awaits_returns: false,
            looks: 0,
            series: None,
            settled: None,
            forks_only: false,
            vdso_clock: vdso_clock(pid, &mappings).unwrap_or_default(),
            rseq_offset: 0,
            perf_map: None,
            inject_us: 0,
            stopped_us: Arc::default(),
        })
    }

    /// From now on, and for whoever is forked from now on.
    pub(super) fn set_following(&mut self, following: Following) {
        self.following = following;
        self.publish_following();
    }

    /// Looks at what there is to do, so that this need not happen while the process is stopped.
    pub(super) fn look(&mut self, shared: &Shared, links: &mut BTreeMap<AttachmentId, Link>) -> Option<PatchPlan> {
        let mappings = inject::mappings(inject::Pid(self.pid)).ok()?;
        self.find_rseq(&mut shared.modules(), &mappings);
        Some(self.look_at(&mappings, shared, links))
    }

    /// Whether the process, which is stopped, still runs the program that was looked at: addresses in it are remembered.
    pub(super) fn runs_what_was_seen(&self, stopped: &inject::Stopped) -> bool {
        stopped.mappings().is_ok_and(|mappings| self.program == Program::of(&mappings))
    }

    fn look_at(
        &mut self,
        mappings: &[inject::Mapping],
        shared: &Shared,
        links: &mut BTreeMap<AttachmentId, Link>,
    ) -> PatchPlan {
        self.keep_out(shared, links);
        self.publish_unwind_tables(shared, links, mappings);
        let places = self.wanted(&mut shared.modules(), links, mappings);
        let calls = self.wanted_calls(shared, links, mappings);
        PatchPlan { code: code_of(mappings).cloned().collect(), places, calls }
    }

    /// Maps the region into the stopped process, and applies all links; `patch_plan` is from before it was stopped.
    /// (With the other threads running meanwhile, each of the remote system calls would wait for its turn on a busy
    /// machine.)
    pub(super) fn enter(
        &mut self,
        shared: &Shared,
        links: &mut BTreeMap<AttachmentId, Link>,
        stopped: &mut inject::Stopped,
        patch_plan: Option<PatchPlan>,
    ) -> Result<(), Refusal> {
        self.check_identity()?;
        stopped.tell_time(&self.stopped_us);
        self.keep_out(shared, links);
        self.check_reader(shared, links)?;
        let domain = self.domain.clone();
        let slots: Vec<MapSlot> = self.slots_wanted(shared, links).into_iter().collect();
        let map_files = shared.map_files(&slots, &domain)?;
        let opened = opened_for_targets(&map_files)?;
        let mappings = stopped.mappings().map_err(refusal_of)?;
        self.check_gates(shared, &mappings)?;
        self.respect(shared, stopped).map_err(refusal_of)?;
        self.protect(stopped, &map_files)?;
        let files = inject::RegionFiles {
            agent: shared.agent.file(),
            agent_bytes: (ring3_image::bytes().len() as u64).next_multiple_of(4096),
            own: self.own_files(),
            realm: domain.block().file.file(),
            text: shared.text.file(),
            unwind: shared.unwind.file(),
        };
        let sent = sources(&map_files, &opened, &self.protection);
        let announce = |region: &inject::Region| {
            self.write_header(shared, region.base);
            self.announce_maps(map_files.iter().map(|(slot, _)| *slot), &region.maps);
        };
        limits::make_room(self.pid);
        let mapped = inject::map_region(stopped, &files, &sent, FIRST_STUB_AREA_BYTES, announce);
        let region = mapped.map_err(|error| {
            self.unprotect(stopped);
            limits::take_back(self.pid);
            refusal_of(error)
        })?;
        self.region = region.base;
        self.note_area(region.stubs.start, FIRST_STUB_AREA_BYTES);
        self.publish_thread_blocks();
        self.publish_tcb_validity(stopped).map_err(refusal_of)?;
        for ((slot, file), address) in map_files.iter().zip(region.maps) {
            self.note_map(*slot, address, &file.geometry);
        }
        let patch_plan = patch_plan.filter(|patch_plan| patch_plan.code.iter().eq(code_of(&mappings)));
        let PatchPlan { places, calls, .. } = patch_plan.unwrap_or_else(|| self.look_at(&mappings, shared, links));
        if self.leaves_rest_for_next_stop(stopped, &places, &calls.calls) {
            return Ok(());
        }
        let calls = self.note_calls(calls);
        match self.reconcile(stopped, places, shared, links) {
            Calls::Later => {}
            reconciled => {
                if reconciled == Calls::AsTheyWere {
                    self.reconcile_calls(stopped, calls);
                }
                self.publish_calls(links);
                self.update_cancel_handler(stopped);
                self.reconcile_sud(stopped);
                self.take_faults(stopped, shared, links);
                self.reconcile_counters(stopped, links);
            }
        }
        if self.executed {
            self.finish_exec(stopped).map_err(refusal_of)?;
        }
        self.settle(&mappings);
        Ok(())
    }

    pub(super) fn write_header(&self, shared: &Shared, region_base: u64) {
        // A fork's are its parent's.
        let unwind = self.control.word(offset_of!(ControlHeader, unwind) as u64).load(Ordering::SeqCst);
        let [all_registers, hooks, maps, awaits_counters] = [
            offset_of!(ControlHeader, all_registers),
            offset_of!(ControlHeader, hooks),
            offset_of!(ControlHeader, maps),
            offset_of!(ControlHeader, awaits_counters),
        ]
        .map(|at| self.control.word32(at as u64).load(Ordering::SeqCst));
        self.control.write(
            0,
            ControlHeaderValue {
                magic: CONTROL_MAGIC,
                version: ring3_layout::LAYOUT_VERSION,
                pid: self.own_pid,
                nonce: self.nonce,
                region_base,
                vdso_clock_gettime: self.vdso_clock.function,
                vdso_begin: self.vdso_clock.range.start,
                vdso_end: self.vdso_clock.range.end,
                rseq_offset: self.rseq_offset,
                cpus: shared.cpus,
                request_wait_us: REQUEST_WAIT_US,
                retired: 0,
                server_pid: std::process::id(),
                server_started: *SERVER_STARTED,
                namespace: shared.namespaces.number_of(self.pid),
                directory: shared.directory,
                rdpid: u32::from(ring3_image::cpu_has_rdpid()),
                all_registers,
                hooks,
                maps,
                awaits_counters,
                maps_key: self.protection.access_bit(),
                unwind,
                levels: self.levels,
                tick_ns: ring3_run::tick_ns(),
            },
        );
    }

    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// That a process which is stopped by its number is this one: it has not ended, so the number is not another's.
    ///
    /// # Errors
    /// `ESRCH`
    pub(super) fn check_identity(&self) -> Result<(), Refusal> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) => Ok(()),
            _ => Err(refusal_of(inject::Error::Exited { pid: self.pid })),
        }
    }

    /// What its end means for others.
    pub(super) fn death(&self) -> Death {
        self.death_of(self.own_pid)
    }

    /// What the end of one of its threads means for others.
    pub(super) fn death_of(&self, own_tid: u32) -> Death {
        let namespace = self.control.word32(offset_of!(ControlHeader, namespace) as u64).load(Ordering::Relaxed);
        let owner = ring3_layout::owner::name(namespace, own_tid);
        Death { owner, maps: self.maps.keys().copied().collect(), until_tended: None }
    }

    pub(super) fn is_detaching(&self) -> bool {
        self.detaching.is_some()
    }

    pub(super) fn has_map(&self, slot: MapSlot) -> bool {
        self.maps.contains_key(&slot)
    }

    /// Whether a claim with this nonce may come from this process.
    pub(super) fn is_family(&self, nonce: u64) -> bool {
        self.nonce == nonce || self.ancestors.contains(&nonce)
    }

    /// Whether our region is still in the process (an `execve` removes it).
    pub(super) fn is_present(&self) -> bool {
        nonce_at(self.pid, self.region) == Some(self.nonce)
    }

    /// As [`Target::check_identity`], and it still runs the program in which it became a target. To be asked while it is stopped:
    /// before that it may execute another one at any moment.
    pub(super) fn check_presence(&self) -> Result<(), Refusal> {
        self.check_identity()?;
        if !self.is_present() {
            return Err(refusal_of(inject::Error::Executed { pid: self.pid }));
        }
        Ok(())
    }

    // ---- links ----

    /// Brings the sites in line with the links. Links that cannot be applied keep the reason. If forks run with the
    /// tables, they go on with what there was, which becomes one of `forks_only`. `is_followed`: nobody else may stop
    /// the process, since it is about to execute a program.
    pub(super) fn apply_links(
        &mut self,
        shared: &Shared,
        links: &mut BTreeMap<AttachmentId, Link>,
        forks_only: &mut Vec<Target>,
        is_followed: bool,
    ) -> Result<(), Refusal> {
        self.series.get_or_insert_default();
        let mut applied = self.apply_links_once(shared, links, forks_only, is_followed);
        while applied.is_ok() && self.goes_on_placing() {
            applied = self.apply_links_once(shared, links, forks_only, is_followed);
        }
        self.series = None;
        applied
    }

    fn apply_links_once(
        &mut self,
        shared: &Shared,
        links: &mut BTreeMap<AttachmentId, Link>,
        forks_only: &mut Vec<Target>,
        is_followed: bool,
    ) -> Result<(), Refusal> {
        self.settled = None;
        self.looks += 1;
        if self.is_detaching() {
            return Ok(());
        }
        self.judge_for(shared, links.values())?;
        self.keep_out(shared, links);
        let mappings = inject::mappings(inject::Pid(self.pid)).map_err(refusal_of)?;
        self.publish_unwind_tables(shared, links, &mappings);
        let mut wanted = self.wanted(&mut shared.modules(), links, &mappings);
        if !self.is_amid_series() {
            self.set_blocked_aside(&mut wanted, links);
        }
        let missing: Vec<MapSlot> =
            self.slots_wanted(shared, links).into_iter().filter(|slot| !self.maps.contains_key(slot)).collect();
        let calls = self.wanted_calls(shared, links, &mappings);
        if self.sud.armed && calls.sud.is_none() && (is_followed || !self.disable_sud()) {
            // While it is enabled, the trampolines stay.
            self.unpublish_removed_links(links);
            return Err(Refusal::new(Errno::EBUSY, "could not quiesce all threads to disable SUD"));
        }
        let calls = self.note_calls(calls);
        self.forget_unmapped_calls(&calls);
        let counters = self.wanted_counters(links, &mappings);
        let is_same = self.is_same_but_uses(&wanted)
            && self.syscalls.are(&calls)
            && !self.disturbed
            && self.has_counters(&counters);
        if missing.is_empty()
            && is_same
            && self.sud.is_settled()
            && !self.changes_domain()
            && !self.lacks_faults(links)
        {
            self.unpublish_unwanted(&wanted);
            for want in wanted {
                let address = want.place.address;
                self.publish(address, &want.uses, links);
            }
            self.publish_calls(links);
            self.await_counters(&counters);
            self.settle(&mappings);
            return Ok(());
        }
        let pid = inject::Pid(self.pid);
        // (An attach has stopped it a moment ago.)
        let is_held = is_followed || !self.is_mapped_ahead() && process::is_held(pid.0);
        let ahead = if is_held { Ahead::default() } else { self.write_ahead(&wanted, &calls) };
        let sharers = Sharers::of(pid.0);
        let change = |stopped: &mut inject::Stopped| {
            self.check_presence()?;
            sharers.check().map_err(refusal_of)?;
            forks_only.extend(self.unshare_ahead(shared, stopped, &ahead).map_err(refusal_of)?);
            self.change_domain(shared, stopped, links)?;
            self.map_missing(shared, stopped, &missing)?;
            let reconciled = self.reconcile(stopped, wanted, shared, links);
            if reconciled == Calls::Later {
                return Ok(true);
            }
            self.publish_calls(links);
            if reconciled == Calls::AsTheyWere {
                self.reconcile_calls(stopped, calls);
            }
            self.update_cancel_handler(stopped);
            let settled = self.reconcile_sud(stopped);
            self.take_faults(stopped, shared, links);
            self.reconcile_counters(stopped, links);
            Ok(settled)
        };
        let held = || Err(inject::Error::ThreadDoesNotStop { tid: pid.0, state: 'D' });
        let changed = if is_held { held() } else { inject::while_stopped(pid, STOP_WITHIN, change) };
        match changed.map_err(refusal_of).flatten() {
            Ok(settled) => {
                self.disturbed = false;
                if !settled {
                    self.reconcile_sud_with_retries();
                }
                self.settle(&mappings);
            }
            Err(refusal) => {
                self.forget_ahead(&ahead);
                self.unpublish_removed_links(links);
                return Err(refusal);
            }
        }
        self.tell_perf(shared);
        Ok(())
    }

    /// Looks whose it is now, if that may decide about these links or was not looked at lately.
    pub(super) fn judge_for<'l>(
        &mut self,
        shared: &Shared,
        mut links: impl Iterator<Item = &'l Link>,
    ) -> Result<(), Refusal> {
        let is_judged = links.any(|link| !link.spec.rights.reaches_all());
        if is_judged || self.subject_read.elapsed() >= SUBJECT_EVERY { self.judge(shared) } else { Ok(()) }
    }

    /// Looks whose it is now, and so whose memory it is to have.
    pub(super) fn judge(&mut self, shared: &Shared) -> Result<(), Refusal> {
        self.subject = Subject::of(self.pid).map_err(|errno| Refusal::new(errno, "it is gone"))?;
        self.subject_read = Instant::now();
        self.next_domain = shared.domains.of(&self.subject)?;
        Ok(())
    }

    /// The process cannot be stopped (a debugger holds it): sites stay, but what no link wants runs no more, and nothing new.
    /// Its code may be gone soon.
    fn unpublish_removed_links(&mut self, links: &BTreeMap<AttachmentId, Link>) {
        for address in self.sites.keys().copied().collect::<Vec<_>>() {
            let mut uses = self.sites[&address].uses.clone();
            uses.retain(|use_| links.contains_key(&use_.attachment));
            self.publish(address, &uses, links);
        }
        self.publish_calls_of(&self.syscalls.subscribers.clone(), links);
    }

    pub(super) fn slots_wanted(&self, shared: &Shared, links: &BTreeMap<AttachmentId, Link>) -> BTreeSet<MapSlot> {
        shared.with_companions(self.links_for(links).flat_map(|(_, spec)| spec.text.maps.iter().copied()))
    }

    /// All places that should be instrumented, from the process's mappings and the links. What could not be applied before may
    /// be now.
    fn wanted(
        &mut self,
        modules: &mut Modules,
        links: &mut BTreeMap<AttachmentId, Link>,
        mappings: &[inject::Mapping],
    ) -> Vec<WantedSite> {
        let mut wanted: BTreeMap<u64, WantedSite> = BTreeMap::new();
        let mut failed: Vec<(AttachmentId, Refusal)> = vec![];
        // Once returns were awaited, frames whose return addresses are replaced may stand on stacks until the process is detached.
        let mut awaited = self.sites.values().any(|site| site.place.kind.is_of_unwinder());
        let in_copies = copies_stacks(mappings);
        // (Thousands of links are in few files.)
        let mut files = BTreeMap::new();
        for (id, spec) in self.links_for(links) {
            let Point::Probe(probe) = &spec.point else { continue };
            let at = |offset, kind| places(mappings, self.pid, probe.id, offset, kind);
            let sites = at(probe.offset, HookKind::Probe);
            if sites.is_empty() {
                continue;
            }
            let key = files.entry(probe.file.clone()).or_insert_with(|| Modules::key(&probe.file)).clone();
            let site = key.and_then(|key| modules.site_of(key, &probe.file, probe.offset));
            let code = match site
                .and_then(|code| if probe.ret { code.check_return(in_copies).map(|()| code) } else { Ok(code) })
            {
                Ok(code) => code,
                Err(refusal) => {
                    failed.push((id, refusal));
                    continue;
                }
            };
            if probe.ret && code.never_returns() {
                continue;
            }
            let returns = code.returns(in_copies).enumerate().filter(|_| probe.ret);
            let mut spots: Vec<(Place, Option<usize>)> = returns
                .flat_map(|(ret, inside)| {
                    at(probe.offset + inside, HookKind::Return).into_iter().map(move |place| (place, Some(ret)))
                })
                .collect();
            if spots.is_empty() {
                awaited |= probe.ret;
                spots = sites.into_iter().map(|place| (place, None)).collect();
            }
            // (Ahead, while the process runs.)
            let _ = code.planned();
            for (place, ret) in spots {
                let kind = place.kind;
                let want = WantedSite { place, code: code.clone(), ret, uses: vec![] };
                let want = wanted.entry(want.place.address).or_insert(want);
                if want.place.kind == kind {
                    want.uses.push(Use { attachment: id, ret: probe.ret });
                } else {
                    failed.push((id, taken(&code.name, want.place.address)));
                }
            }
        }
        for link in links.values_mut() {
            link.refused.remove(&self.pid);
        }
        failed.extend(self.refused_to_domain(links, mappings));
        failed.extend(self.switched_off.iter().map(|(id, why)| (*id, why.clone())));
        let is_failed = |one: &Use| failed.iter().any(|(id, _)| *id == one.attachment);
        // A function of which one return would not be seen is not probed.
        for want in wanted.values_mut().filter(|want| want.ret.is_some()) {
            want.uses.retain(|one| !is_failed(one));
        }
        wanted.retain(|_, want| !want.uses.is_empty());
        for (id, refusal) in failed {
            refuse(links, id, self.pid, refusal);
        }
        self.awaits_returns = awaited;
        for want in self.specials(modules, mappings, awaited) {
            wanted.entry(want.place.address).or_insert(want);
        }
        wanted.into_values().collect()
    }

    /// ring3's own places: the unwinders, if returns are awaited.
    fn specials(&self, modules: &mut Modules, mappings: &[inject::Mapping], returns: bool) -> Vec<WantedSite> {
        let mut found = vec![];
        for mapping in self.code_not_ours(mappings).filter(|m| returns && m.inode != 0 && !m.is_shared()) {
            let Some(path) = likely_file_of(self.pid, mapping) else { continue };
            for (kind, offset) in modules.specials(&path).iter().copied() {
                let Ok(code) = modules.site(&path, offset) else { continue };
                if let Some(place) = place_in(mapping, offset, kind) {
                    found.push(WantedSite { place, code, ret: None, uses: vec![] });
                }
            }
        }
        found
    }

    /// The next hook is in use now; its index.
    pub(super) fn take_hook(&mut self) -> u32 {
        self.hooks_used += 1;
        self.control.word32(offset_of!(ControlHeader, hooks) as u64).store(self.hooks_used, Ordering::SeqCst);
        self.hooks_used - 1
    }

    /// A hook that is no place, only counts: its index and its address.
    pub(super) fn add_counting_hook(&mut self) -> Option<(u32, u64)> {
        if self.hooks_used >= HOOKS_MAX {
            return None;
        }
        let index = self.take_hook();
        let offset = HOOKS_OFFSET + u64::from(index) * size_of::<Hook>() as u64;
        let hook = HookValue { kind: HookKind::Syscalls as u32, index, only: HOOK_MANY, ..HookValue::default() };
        self.control.write(offset, hook);
        Some((index, self.region + CONTROL_OFFSET + offset))
    }

    /// Publishes who runs at a site: new ranges first, then one store each.
    pub(super) fn publish(&mut self, address: u64, uses: &[Use], links: &BTreeMap<AttachmentId, Link>) {
        let Some(site) = self.sites.get_mut(&address) else { return };
        if site.uses == uses {
            return;
        }
        site.uses = uses.to_vec();
        let hook = HOOKS_OFFSET + u64::from(site.hook) * size_of::<Hook>() as u64;
        let specs = uses.iter().filter_map(|used| Some(&links.get(&used.attachment)?.spec));
        self.retire_extensions(address, specs.map(|spec| (spec.link_id, spec.prog_id)));
        let needs = |ret: bool| {
            let mut specs =
                uses.iter().filter(|u| u.ret == ret).filter_map(|u| Some(&links.get(&u.attachment)?.spec));
            specs.any(|spec| spec.all_registers)
        };
        if needs(true) {
            self.control.word32(offset_of!(ControlHeader, all_registers) as u64).store(1, Ordering::SeqCst);
        }
        if needs(false) {
            self.control.word32(hook + offset_of!(Hook, all_registers) as u64).store(1, Ordering::SeqCst);
        }
        let mut only = [HOOK_MANY; 2];
        for ret in [false, true] {
            let specs: Vec<&LinkSpec> =
                uses.iter().filter(|u| u.ret == ret).filter_map(|u| Some(&links.get(&u.attachment)?.spec)).collect();
            let Some(first) = self.write_attachments(&specs, address) else { continue };
            let entry = ATTACHMENTS_OFFSET + u64::from(first) * size_of::<Attachment>() as u64;
            only[usize::from(ret)] = match &specs[..] {
                [] => 0,
                [spec] if spec.extension.is_none() => self.region + CONTROL_OFFSET + entry,
                _ => HOOK_MANY,
            };
            let at = hook + if ret { offset_of!(Hook, ret) } else { offset_of!(Hook, entry) } as u64;
            let old = self.control.word(at).swap(range_pack(first, specs.len() as u32), Ordering::SeqCst);
            self.ranges.retire(range_unpack(old));
        }
        let only_at = self.control.word(hook + offset_of!(Hook, only) as u64);
        if only.contains(&HOOK_MANY) {
            only_at.store(HOOK_MANY, Ordering::SeqCst);
            return;
        }
        // Whoever has seen that there is only one on entry looks for the other after that.
        let [entry, ret] = only;
        self.control.word(hook + offset_of!(Hook, only_return) as u64).store(ret, Ordering::SeqCst);
        only_at.store(entry, Ordering::SeqCst);
    }

    /// Writes a range of the attachment table that nobody reads yet, of a hook at `address`, or of one at no address (0); where it
    /// begins.
    pub(super) fn write_attachments(&mut self, specs: &[&LinkSpec], address: u64) -> Option<u32> {
        let Some(first) = self.ranges.reserve(specs.len() as u32) else {
            tracing::warn!(pid = self.pid, "the attachment table is full; {} programs are not run", specs.len());
            return None;
        };
        for (index, spec) in specs.iter().enumerate() {
            let entry = ATTACHMENTS_OFFSET + (u64::from(first) + index as u64) * size_of::<Attachment>() as u64;
            let program = self.region + TEXT_OFFSET + u64::from(spec.text.entry);
            let extends = match &spec.extension {
                Some(class) => match self.place_extension(class, (spec.link_id, spec.prog_id), address) {
                    Ok(index) => ATTACHMENT_EXTENSION | index << ATTACHMENT_EXTENSION_SHIFT,
                    Err(refusal) => {
                        tracing::warn!(pid = self.pid, "extension {:?} is not run: {refusal}", spec.prog_name);
                        return None;
                    }
                },
                None => 0,
            };
            let budget_ns = spec.budget.map_or(0, |budget| u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX));
            self.control.write(
                entry,
                AttachmentValue {
                    code: self.called_for(program, budget_ns),
                    cookie: spec.cookie,
                    pid: if spec.pid.is_some() { self.own_pid } else { 0 },
                    flags: attachment_flags(spec) | extends,
                    link_id: spec.link_id,
                    prog_id: spec.prog_id,
                    program,
                    budget_ns,
                },
            );
        }
        Some(first)
    }

    // ---- threads ----

    /// True if no thread was inside a program or the dispatcher when its block was looked at; nor one of a fork.
    pub(super) fn is_quiescent(&self) -> bool {
        let is_quiescent = |pid| process::guards_clear(pid, self.region);
        is_quiescent(self.pid) && self.find_children().into_iter().all(is_quiescent)
    }

    // ---- detaching ----

    /// From now on hooks pass through; [`Target::detach`] or [`Target::try_detach`] does the rest.
    pub(super) fn begin_detach(&mut self) {
        self.detaching = Some(RetryDelay::awaited_for(DETACH_WITHIN));
        self.perf_map = None;
        let retired = offset_of!(ControlHeader, retired) as u64;
        self.control.word32(retired).store(1, Ordering::SeqCst);
    }

    /// Restores all bytes and return addresses, and unmaps everything once no thread is inside.
    /// `Ok(false)`: a thread stays inside.
    pub(super) fn detach(&mut self, within: Duration) -> Result<bool, inject::Error> {
        if !self.is_present() {
            return Ok(true);
        }
        (Cleaning { pid: self.pid, region: self.region }).finish(within)
    }

    /// One attempt, if it is time for one, in the background. True: nothing of ours is left.
    pub(super) fn try_detach(&mut self) -> bool {
        let pid = self.pid;
        if !self.detaching.as_mut().is_some_and(|delay| delay.is_over(|| process::is_held(pid))) {
            return false;
        }
        self.detach(Duration::ZERO).unwrap_or_else(|error| match error {
            // It filters its calls, so that nobody may make it unmap what is idle there.
            inject::Error::Seccomp { .. } => self.is_quiescent(),
            error => {
                tracing::warn!(pid = self.pid, "not detached yet: {error}");
                false
            }
        })
    }
}

pub(super) fn refuse(links: &mut BTreeMap<AttachmentId, Link>, id: AttachmentId, pid: u32, refusal: Refusal) {
    if let Some(link) = links.get_mut(&id) {
        link.refused.insert(pid, refusal);
    }
}

/// A number that nobody knows.
pub fn fresh_nonce() -> u64 {
    let mut bytes = [0u8; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert!(filled == Ok(8), "getrandom never fails for 8 bytes");
    u64::from_le_bytes(bytes)
}
