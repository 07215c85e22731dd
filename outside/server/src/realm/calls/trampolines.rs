//! The system calls of a target: which of its `syscall` instructions go through trampolines, and which links subscribe
//! to them.
//!
//! A link wants one call or all of them. Sites whose number is known to be another stay as they are. What is written where
//! stands in the table of sites in the control page, so that whoever cleans up needs nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ring3_inject as inject;
use ring3_layout::control::{ATTACHMENTS_OFFSET, Attachment, range_pack, range_unpack};
use ring3_layout::region::{CONTROL_OFFSET, STATE_OFFSET, TRAMPOLINES_OFFSET};
use ring3_layout::syscall::{
    ALWAYS, CALL_AT, CALL_SHIFT, CLONE_SYSCALLS, IDENTITY_CHANGERS, NO_PROCESS, OTHER_NUMBERS, SITES_MAX,
    SITES_OFFSET, SLOW_PATH_SYSCALLS, SYSCALL_BYTES, Subscribers, SyscallSite, SyscallTables, TABLES_OFFSET,
    TRAMPOLINE_BYTES,
};
use ring3_layout::task_event::TaskEvent;
use ring3_layout::thread::{COUNTED_HOOKS_MAX, STATE_HEADER_BYTES, ThreadBlock};
use ring3_patch::{JUMP_BYTES, NEAR_BYTES_MAX, Replaced, SyscallPlan, TrampolineLinks};
use ring3_uapi::Errno;
use ring3_uapi::nr;

use super::callers::number_of;
use super::interest::{
    CallSeries, SyscallInterest, concerns_sud, concerns_traps, is_always, is_of_event, may_change_masks,
};
use super::sud;
use super::unseen::Unseen;
use crate::kernel::known;
use crate::realm::files::{Modules, SyscallPlans, is_dynamic_loader, likely_key_of};
use crate::realm::process::{put_back, read_process};
use crate::realm::refusal::refusal_of;
use crate::realm::sites::{Batch, CaughtCalls, CodeMemory, in_agent, is_written};
use crate::realm::target::{Link, Target};
use crate::realm::{AttachmentId, Calls, LinkSpec, Point, Refusal, Shared, SyscallContext};

/// Where in the control page the attachment of nobody is.
const NOBODY_OFFSET: u64 = TABLES_OFFSET + offset_of!(SyscallTables, nobody) as u64;

/// Calls of a process, and what it has beside them.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct WantedCalls {
    pub(in crate::realm) calls: Vec<WantedCall>,
    pub(super) unseen: Unseen,
    /// Why the SUD fallback is wanted.
    pub(in crate::realm) sud: Option<String>,
    /// Why they are wanted.
    interest: SyscallInterest,
}

/// A site that should be there.
#[derive(Clone, Debug)]
pub(in crate::realm) struct WantedCall {
    pub(in crate::realm) plan: SyscallPlan,
    /// Range of the mapping, for the near stub's neighbourhood.
    pub(in crate::realm) mapping: std::ops::Range<u64>,
    /// Device and inode of the file.
    pub(in crate::realm) file: (u64, u64),
    /// The code may run on stacks that have room for nothing else.
    pub(in crate::realm) small_stacks: bool,
}

/// The calls that should be seen in a process with these mappings, and what may be others that cannot. `vdso` is what that has;
/// `unscanned` why the SUD fallback is wanted, if it can be had and nothing else is a reason.
pub(in crate::realm) fn wanted(
    interest: &SyscallInterest,
    pid: u32,
    mappings: &[inject::Mapping],
    modules: &mut Modules,
    vdso: Option<&SyscallPlans>,
    is_loader: impl Fn(&str) -> bool,
    unscanned: Option<&dyn Fn() -> Option<String>>,
) -> WantedCalls {
    let mut wanted = WantedCalls { interest: interest.clone(), ..WantedCalls::default() };
    let (mut found, mut refused, mut any_small) = (vec![], None, false);
    let mut told = BTreeSet::new();
    for mapping in mappings.iter().filter(|mapping| mapping.is_executable()) {
        let in_loader = is_loader(&mapping.path);
        let (plans, small_stacks) = match &mapping.path[..] {
            "[vdso]" if interest.any || interest.follow => match vdso {
                Some(plans) => (plans.in_mapping(mapping).collect(), false),
                None => continue,
            },
            path if mapping.inode != 0 && !mapping.is_shared() && !path.starts_with("/memfd:ring3-") => {
                let Some((file, key)) = likely_key_of(pid, mapping) else { continue };
                let plans: Arc<SyscallPlans> = modules.syscalls(key, &file);
                // (A file's code may be mapped in parts.)
                if interest.any && told.insert((mapping.dev, mapping.inode)) {
                    wanted
                        .unseen
                        .left
                        .extend(plans.left.iter().map(|(vaddr, why)| format!("{path}: {vaddr:#x}: {why}")));
                }
                if interest.any {
                    wanted.unseen.left_in_place.extend(plans.after_left_in_place_in(mapping));
                    wanted.unseen.gate = wanted.unseen.gate.or_else(|| plans.gate_in(mapping));
                    refused = refused.or_else(|| {
                        let call = plans.refused_in(mapping).next()?;
                        Some(format!("a call of {path} at {call:#x} cannot be replaced"))
                    });
                }
                (plans.in_mapping(mapping).collect::<Vec<_>>(), plans.small_stacks)
            }
            _ => continue,
        };
        any_small |= small_stacks;
        found.extend(plans.into_iter().map(|plan| {
            let call =
                WantedCall { plan, mapping: mapping.range.clone(), file: (mapping.dev, mapping.inode), small_stacks };
            (call, in_loader)
        }));
    }
    // (What comes behind a call that was caught needs more room than there is in Go.)
    wanted.sud = unscanned.filter(|_| interest.any && !any_small).and_then(|unscanned| refused.or_else(unscanned));
    let uses_sud = wanted.sud.is_some();
    found.retain(|(call, in_loader)| interest.has(&call.plan, *in_loader, uses_sud));
    wanted.calls = found.into_iter().map(|(call, _)| call).collect();
    wanted
}

/// A call that is replaced, or was.
#[derive(Clone, Debug)]
struct CallSite {
    index: u32,
    plan: SyscallPlan,
    file: (u64, u64),
    near: u64,
    jump: Vec<u8>,
    /// Original address and address in the near stub of each displaced instruction.
    moved: Vec<(u64, u64)>,
    patched: bool,
}

/// What the tables of system calls depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Published {
    subscribers: BTreeSet<AttachmentId>,
    follow: bool,
    uses_sud: bool,
    traps: bool,
}

/// Who sees which calls, as the tables have it.
#[derive(Clone, Debug, Default)]
struct Listed {
    /// By whether it is the end of the call, and its number.
    by_call: BTreeMap<(bool, usize), Vec<AttachmentId>>,
    events: BTreeSet<TaskEvent>,
    /// Packed ranges of the attachment table, by who is in them.
    ranges: BTreeMap<Vec<AttachmentId>, u64>,
}

/// The system call sites of a target, by the address of the call.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct Syscalls {
    sites: BTreeMap<u64, CallSite>,
    used: u32,
    /// Calls that could not be replaced, and why.
    refused: BTreeMap<u64, String>,
    pub(super) unseen: Unseen,
    /// Calls that may change signal masks.
    changing: Vec<u64>,
    /// Why those are seen that are.
    pub(in crate::realm) interest: SyscallInterest,
    /// Tools make links of one call after the other.
    pub(in crate::realm) series: CallSeries,
    listed: Listed,
    /// Links whose programs see calls here.
    pub(in crate::realm) subscribers: BTreeSet<AttachmentId>,
    /// What the tables were made from.
    published: Option<Published>,
    /// The hook that counts, by its index, and its address.
    hook: Option<(u32, u64)>,
}

impl Syscalls {
    /// Whether these sites are there, and no others.
    pub(in crate::realm) fn are(&self, wanted: &[WantedCall]) -> bool {
        let known = |want: &WantedCall| match self.sites.get(&want.plan.key()) {
            Some(placed) => placed.patched && placed.is(want),
            None => self.refused.contains_key(&want.plan.key()),
        };
        let patched = self.sites.values().filter(|placed| placed.patched).count();
        let refused = wanted.iter().filter(|want| self.refused.contains_key(&want.plan.key())).count();
        patched + refused == wanted.len() && wanted.iter().all(known)
    }

    /// Whether a site that is there has displaced some of these bytes.
    pub(in crate::realm) fn overlap(&self, bytes: &Range<u64>) -> bool {
        let patched = self.sites.values().filter(|placed| placed.patched).map(|placed| &placed.plan);
        patched.into_iter().any(|plan| plan.site < bytes.end && bytes.start < plan.site + plan.displaced.len() as u64)
    }

    /// Whether the code for a call is there, or will be when a batch is written.
    pub(in crate::realm) fn knows(&self, key: u64) -> bool {
        self.sites.contains_key(&key)
    }

    /// The code for a call is not there, unless the call goes through it.
    pub(in crate::realm) fn forget_unpatched(&mut self, key: u64) {
        if !self.sees(key) {
            self.sites.remove(&key);
        }
    }

    /// Whether a call goes through a trampoline.
    pub(in crate::realm) fn sees(&self, key: u64) -> bool {
        self.sites.get(&key).is_some_and(|placed| placed.patched)
    }

    /// A call that may change signal masks, and is not seen.
    pub(in crate::realm) fn unseen_change(&self) -> Option<u64> {
        self.changing.iter().copied().find(|call| !self.sees(*call))
    }

    /// Index of the hook that counts.
    pub(in crate::realm) fn hook_index(&self) -> Option<usize> {
        self.hook.map(|(index, _)| index as usize)
    }

    /// Where jumps should stand, with their bytes.
    pub(in crate::realm) fn written(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let patched = self.sites.values().filter(|placed| placed.patched);
        patched.map(|placed| (placed.plan.site, &placed.jump[..]))
    }

    /// How many calls go through trampolines, and those that could not be replaced.
    pub(in crate::realm) fn status(&self) -> (usize, Vec<String>) {
        let patched = self.sites.values().filter(|placed| placed.patched).count();
        let refused = self.refused.iter().map(|(call, why)| format!("{call:#x}: {why}"));
        (patched, refused.chain(self.unseen.left.iter().chain(&self.unseen.gate).cloned()).collect())
    }
}

impl CallSite {
    fn is(&self, want: &WantedCall) -> bool {
        self.file == want.file && self.plan == want.plan
    }

    /// Whether an address is in the middle of what the jump replaces.
    fn has_inside(&self, rip: u64) -> bool {
        rip > self.plan.site && rip < self.plan.site + self.jump.len() as u64
    }

    /// Where in the near stub a displaced instruction is.
    fn near_of(&self, address: u64) -> Option<u64> {
        self.moved.iter().find(|(from, _)| *from == address).map(|(_, to)| *to)
    }

    /// The registers of a thread that is in the middle of what the jump replaces, or for which the kernel would make the call
    /// again there, with which it goes on; `Some(None)`: it cannot.
    fn moved_in(&self, registers: &inject::Registers) -> Option<Option<inject::Registers>> {
        let is_behind = self.plan.replaced == Replaced::Instruction && registers.rip == self.plan.after();
        let again = if is_behind { inject::made_again(registers) } else { None };
        match again {
            Some(again) => Some(self.near_of(self.plan.call).map(|rip| inject::Registers { rip, ..again })),
            None if self.has_inside(registers.rip) => {
                Some(self.near_of(registers.rip).map(|rip| inject::Registers { rip, ..*registers }))
            }
            None => None,
        }
    }
}

fn trampoline_address(region: u64, index: u32) -> u64 {
    region + TRAMPOLINES_OFFSET + u64::from(index) * TRAMPOLINE_BYTES
}

fn site_offset(index: u32) -> u64 {
    SITES_OFFSET + u64::from(index) * size_of::<SyscallSite>() as u64
}

impl Target {
    /// The system calls that should be seen: those that links want, and the mappings that the dynamic loader makes.
    pub(in crate::realm) fn wanted_calls(
        &self,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
        mappings: &[inject::Mapping],
    ) -> WantedCalls {
        let interest = SyscallInterest::of(
            self.following,
            self.watches_masks(links),
            self.syscalls.series.places_all(),
            self.links_for(links).map(|(_, spec)| spec),
        );
        let vdso = shared.vdso.as_ref();
        // (With `RING3_PERF` ours have files, too.)
        let mappings: Vec<_> = self.code_not_ours(mappings).cloned().collect();
        // (Such code comes and goes.)
        let unscanned = || self.sud.why.clone().or_else(|| sud::unscanned(self.pid, &mappings));
        let may_be = self.sud.given_up.is_none();
        let unscanned = may_be.then_some(&unscanned as &dyn Fn() -> Option<String>);
        wanted(&interest, self.pid, &mappings, &mut shared.modules(), vdso, is_dynamic_loader, unscanned)
    }

    /// Brings the sites of system calls in line with what has just become wanted.
    pub(in crate::realm) fn reconcile_calls_now(
        &mut self,
        stopped: &mut inject::Stopped,
        shared: &Shared,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> Result<(), Refusal> {
        let mappings = stopped.mappings().map_err(refusal_of)?;
        let calls = self.wanted_calls(shared, links, &mappings);
        let calls = self.note_calls(calls);
        self.reconcile_calls(stopped, calls);
        self.publish_calls(links);
        Ok(())
    }

    /// Whether calls that change signal masks are to be seen.
    pub(in crate::realm) fn watches_masks(&self, links: &BTreeMap<AttachmentId, Link>) -> bool {
        self.traps.wanted || self.wants_faults(links)
    }

    /// Remembers what was found out beside the calls themselves.
    pub(in crate::realm) fn note_calls(&mut self, wanted: WantedCalls) -> Vec<WantedCall> {
        let changing = wanted.calls.iter().filter(|call| may_change_masks(&call.plan));
        self.syscalls.interest = wanted.interest;
        self.syscalls.changing = changing.map(|call| call.plan.key()).collect();
        (self.syscalls.unseen, self.sud.why) = (wanted.unseen, wanted.sud);
        wanted.calls
    }

    /// Brings the sites of system calls in line with what is wanted.
    pub(in crate::realm) fn reconcile_calls(&mut self, stopped: &mut inject::Stopped, wanted: Vec<WantedCall>) {
        let keep: BTreeMap<u64, &WantedCall> = wanted.iter().map(|want| (want.plan.key(), want)).collect();
        let is_stale = |placed: &CallSite| keep.get(&placed.plan.key()).is_none_or(|want| !placed.is(want));
        let stale: Vec<u64> =
            self.syscalls.sites.values().filter(|placed| is_stale(placed)).map(|placed| placed.plan.key()).collect();
        for call in stale {
            self.remove_call(stopped, call);
        }
        self.syscalls.refused.clear();
        let (mut batch, mut fresh) = (Batch::default(), vec![]);
        let caught = self.caught_calls();
        for want in wanted {
            let call = want.plan.key();
            match self.prepare_call(stopped, want, &mut batch, &caught) {
                Ok(true) => fresh.push(call),
                Ok(false) => {}
                Err(refusal) => self.refuse_call(call, refusal),
            }
        }
        if let Err(error) = batch.write(stopped) {
            let refusal = refusal_of(error);
            for call in fresh {
                // Its code may not be there: a later try makes it anew.
                self.syscalls.sites.remove(&call);
                self.refuse_call(call, refusal.clone());
            }
            return;
        }
        for (call, refusal) in self.move_threads_in(stopped, &fresh) {
            fresh.retain(|other| *other != call);
            self.refuse_call(call, refusal);
        }
        // A beginning is seen only where its end is.
        let is_call = |key: &u64| matches!(self.syscalls.sites[key].plan.replaced, Replaced::Call(_));
        let (calls, others): (Vec<u64>, Vec<u64>) = fresh.into_iter().partition(is_call);
        self.patch_calls(stopped, others);
        let is_seen = |key: &u64| self.syscalls.sites.get(&(key + JUMP_BYTES as u64)).is_some_and(|end| end.patched);
        let (calls, unseen): (Vec<u64>, Vec<u64>) = calls.into_iter().partition(is_seen);
        for key in unseen {
            self.refuse_call(key, Refusal::new(Errno::ENOTSUPP, "the end of what is called there cannot be seen"));
        }
        self.patch_calls(stopped, calls);
    }

    /// Of mappings that are others than those that were there before, in their place: nothing is written there yet.
    pub(in crate::realm) fn forget_unmapped_calls(&mut self, wanted: &[WantedCall]) {
        // All sites of a mapping are there or none, so the first one tells.
        for calls in wanted.chunk_by(|a, b| a.mapping == b.mapping) {
            let mut placed = calls.iter().filter_map(|want| self.syscalls.sites.get(&want.plan.key()));
            let Some(first) = placed.find(|placed| placed.patched) else { continue };
            let mut there = vec![0u8; first.jump.len()];
            let read = read_process(self.pid, first.plan.site, &mut there);
            // (In doubt it is ours: what is remembered is what is put back in the end.)
            if read.is_err() || there != first.plan.displaced[..there.len()] {
                continue;
            }
            for want in calls {
                if let Some(placed) = self.syscalls.sites.get_mut(&want.plan.key()) {
                    placed.patched = false;
                }
            }
        }
    }

    fn refuse_call(&mut self, call: u64, refusal: Refusal) {
        tracing::debug!(pid = self.pid, "the system call at {call:#x} is not seen: {refusal}");
        self.syscalls.refused.insert(call, refusal.message);
    }

    /// Makes a site exist, the code for which joins the batch; whether it is still to be patched.
    fn prepare_call(
        &mut self,
        stopped: &mut inject::Stopped,
        want: WantedCall,
        batch: &mut Batch,
        caught: &CaughtCalls,
    ) -> Result<bool, Refusal> {
        let call = want.plan.key();
        if self.syscalls.sites.get(&call).is_some_and(|placed| !placed.is(&want)) {
            // Another file is mapped there now; the old site went with its mapping.
            self.syscalls.sites.remove(&call);
        }
        if let Some(placed) = self.syscalls.sites.get(&call) {
            let is_there = placed.patched && is_written(stopped, placed.plan.site, &placed.jump);
            if placed.patched && !is_there {
                // Somebody has written there since: what is left of ours goes first.
                self.remove_call(stopped, call);
            }
            return Ok(!is_there);
        }
        self.add_call(stopped, want, batch, caught)?;
        Ok(true)
    }

    /// Makes a site exist that is not known, the code for which joins the batch.
    pub(in crate::realm) fn add_call(
        &mut self,
        memory: &mut dyn CodeMemory,
        want: WantedCall,
        batch: &mut Batch,
        caught: &CaughtCalls,
    ) -> Result<(), Refusal> {
        let call = want.plan.key();
        let placed = self.build_call(memory, want, batch, caught)?;
        self.syscalls.sites.insert(call, placed);
        // Whoever cleans up reads the table up to the first entry that was never written.
        self.write_call(call);
        Ok(())
    }

    /// Makes the near stub and the trampoline; the site itself is untouched.
    fn build_call(
        &mut self,
        memory: &mut dyn CodeMemory,
        want: WantedCall,
        batch: &mut Batch,
        caught: &CaughtCalls,
    ) -> Result<CallSite, Refusal> {
        let index = self.syscalls.used;
        if index >= SITES_MAX {
            return Err(Refusal::new(Errno::ENOSPC, format!("more than {SITES_MAX} system calls in one process")));
        }
        let refuse = |why: ring3_patch::Refusal| Refusal::new(Errno::ENOTSUPP, why.to_string());
        let plan = want.plan;
        let bytes = plan.site..plan.site + plan.displaced.len() as u64;
        if let Some(site) = self.sites.values().find(|site| site.patched && site.overlaps(&bytes)) {
            return Err(Refusal::new(Errno::EBUSY, format!("the probe of {} is there", site.name)));
        }
        if caught.lead_into(&bytes) {
            return Err(Refusal::new(Errno::EBUSY, "calls go back there that were caught"));
        }
        let trampoline = trampoline_address(self.region, index);
        let (near, area) = self.stub_room(memory, plan.site, want.mapping, NEAR_BYTES_MAX as u64)?;
        let stub = if plan.replaced == Replaced::Instruction {
            let (stub, tail) = plan.near(near, trampoline).map_err(refuse)?;
            let links = self.trampoline_links(&plan, index, near + u64::from(tail), want.small_stacks);
            batch.0.push((trampoline, plan.trampoline(trampoline, &links).map_err(refuse)?));
            stub
        } else {
            plan.near_of_caller(near, &self.caller_links(&plan, index)).map_err(refuse)?
        };
        let jump = plan.jump(near).map_err(refuse)?;
        self.take_stub_room(area, stub.bytes.len() as u64);
        self.syscalls.used += 1;
        let moved = stub.moved.iter().map(|m| (m.original, near + u64::from(m.stub_offset))).collect();
        batch.0.push((near, stub.bytes));
        Ok(CallSite { index, plan, file: want.file, near, jump, moved, patched: false })
    }

    /// Moves threads out of bytes that are about to be replaced, also those that come back there from signal handlers; the
    /// sites for which that cannot be done.
    fn move_threads_in(&self, stopped: &mut inject::Stopped, fresh: &[u64]) -> Vec<(u64, Refusal)> {
        let mut by_site: BTreeMap<u64, &CallSite> = BTreeMap::new();
        by_site.extend(fresh.iter().map(|call| &self.syscalls.sites[call]).map(|placed| (placed.plan.site, placed)));
        let site_of = |rip: u64| by_site.range(..rip).next_back().map(|(_, placed)| *placed);
        let mut refused = vec![];
        for tid in stopped.threads().to_vec() {
            let Ok(registers) = stopped.registers(tid) else { continue };
            let Some(placed) = site_of(registers.rip) else { continue };
            let moved = placed.moved_in(&registers).map(|to| {
                to.and_then(|to| stopped.set_registers(tid, &to).ok())
                    .ok_or(inject::Error::ThreadInside { tid, address: registers.rip })
            });
            if let Some(Err(error)) = moved {
                refused.push((placed.plan.key(), refusal_of(error)));
            }
        }
        for context in stopped.saved_contexts().unwrap_or_default() {
            let Some(placed) = site_of(context.rip).filter(|placed| placed.has_inside(context.rip)) else { continue };
            let to = placed.near_of(context.rip).map(|rip| inject::SavedContext { rip, ..context });
            if to.is_none_or(|to| stopped.set_context(&to).is_err()) {
                let error = inject::Error::ThreadInside { tid: stopped.pid(), address: context.rip };
                refused.push((placed.plan.key(), refusal_of(error)));
            }
        }
        refused
    }

    /// Writes the jumps.
    fn patch_calls(&mut self, stopped: &mut inject::Stopped, mut calls: Vec<u64>) {
        calls.sort_by_key(|call| self.syscalls.sites[call].plan.site);
        // Whoever cleans up after us has to know of the jumps before they are there.
        calls.iter().for_each(|call| self.note_call_patched(*call, true));
        let sites = calls.iter().map(|call| &self.syscalls.sites[call]);
        // (Threads were moved before.)
        let change = |placed: &'_ CallSite| (placed.plan.site, placed.plan.displaced.clone(), placed.jump.clone());
        let bytes: Vec<_> = sites.map(change).collect();
        let changes: Vec<_> = bytes
            .iter()
            .map(|(site, expected, new)| inject::SiteChange { site: *site, expected, new, moved: &[] })
            .collect();
        for (call, result) in calls.into_iter().zip(stopped.write_sites(&changes)) {
            if let Err(error) = result {
                // (Some of it may be written.)
                self.remove_call(stopped, call);
                self.refuse_call(call, refusal_of(error));
            }
        }
    }

    fn note_call_patched(&mut self, call: u64, patched: bool) {
        self.syscalls.sites.get_mut(&call).expect("callers name sites").patched = patched;
        self.write_call(call);
    }

    /// Restores the bytes of a site. The near stub and the trampoline stay for threads that are in there.
    fn remove_call(&mut self, stopped: &mut inject::Stopped, call: u64) {
        let Some(placed) = self.syscalls.sites.get_mut(&call) else { return };
        let original = &placed.plan.displaced[..placed.jump.len()];
        if placed.patched
            && let Err(error) = put_back(
                stopped,
                vec![inject::SiteRestoration { site: placed.plan.site, written: &placed.jump, original }],
            )
        {
            tracing::warn!(pid = self.pid, "system call at {call:#x}: not restored: {error}");
            return;
        }
        placed.patched = false;
        let ends = placed.plan.replaced == Replaced::Return;
        self.write_call(call);
        if ends {
            self.count_restored_returns();
        }
    }

    fn write_call(&self, call: u64) {
        let placed = &self.syscalls.sites[&call];
        let mut entry = SyscallSite {
            site: if placed.patched { placed.plan.site } else { 0 },
            call: placed.plan.call,
            near: placed.near,
            number: number_of(&placed.plan),
            displaced: placed.plan.displaced.len() as u32,
            ..SyscallSite::default()
        };
        entry.original[..placed.jump.len()].copy_from_slice(&placed.plan.displaced[..placed.jump.len()]);
        entry.written[..placed.jump.len()].copy_from_slice(&placed.jump);
        self.control.write(site_offset(placed.index), entry);
    }

    /// Publishes who sees which call.
    pub(in crate::realm) fn publish_calls(&mut self, links: &BTreeMap<AttachmentId, Link>) {
        let subscribers = self.links_for(links).filter(|(_, spec)| !matches!(spec.point, Point::Probe(_)));
        let subscribers = subscribers.map(|(id, _)| id).collect();
        self.publish_calls_of(&subscribers, links);
        self.syscalls.subscribers = subscribers;
    }

    /// Publishes who sees which call, of these links: new ranges first, then one store for each number.
    pub(in crate::realm) fn publish_calls_of(
        &mut self,
        subscribers: &BTreeSet<AttachmentId>,
        links: &BTreeMap<AttachmentId, Link>,
    ) {
        let follow = self.following.follows();
        let uses_sud = self.sud.armed || self.sud.why.is_some();
        let subscribers = self.links_for(links).map(|(id, _)| id).filter(|id| subscribers.contains(id)).collect();
        let traps = self.watches_masks(links);
        let published = Published { subscribers, follow, uses_sud, traps };
        if self.syscalls.published.as_ref() == Some(&published) {
            return;
        }
        let mut wanted: BTreeMap<(bool, usize), Vec<AttachmentId>> = BTreeMap::new();
        let mut events: BTreeMap<TaskEvent, Vec<AttachmentId>> = BTreeMap::new();
        for id in &published.subscribers {
            let point = match &links[id].spec.point {
                Point::Probe(_) => continue,
                Point::Syscall(point) => point,
                Point::Task(point) => {
                    events.entry(point.event).or_default().push(*id);
                    continue;
                }
            };
            let numbers = match point.calls {
                Calls::Of(number) => (number as usize).min(OTHER_NUMBERS)..=(number as usize).min(OTHER_NUMBERS),
                Calls::All | Calls::Unnamed => 0..=OTHER_NUMBERS,
                Calls::Never => continue,
            };
            for number in numbers.filter(|number| point.calls.has(*number as u32)) {
                wanted.entry((point.exit, number)).or_default().push(*id);
            }
        }
        let any = !wanted.is_empty() || !events.is_empty();
        if any && self.syscalls.hook.is_none() {
            self.syscalls.hook = self.add_counting_hook();
            let (index, address) = self.syscalls.hook.unwrap_or_default();
            let hits_at = offset_of!(ThreadBlock, hits) as u64 + u64::from(index % COUNTED_HOOKS_MAX) * 8;
            self.control.word(TABLES_OFFSET + offset_of!(SyscallTables, hits_at) as u64).store(hits_at, SeqCst);
            self.control.word(TABLES_OFFSET + offset_of!(SyscallTables, hook) as u64).store(address, SeqCst);
        }
        let at = TABLES_OFFSET + offset_of!(SyscallTables, uses_sud) as u64;
        self.control.word32(at).store(uses_sud.into(), SeqCst);
        let ranges: BTreeMap<Vec<AttachmentId>, u64> = wanted
            .values()
            .chain(events.values())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|ids| (ids.clone(), self.range_of_calls(ids, links)))
            .collect();
        let old: BTreeSet<u64> = self.syscalls.listed.ranges.values().copied().collect();
        for event in TaskEvent::ALL {
            let at = offset_of!(SyscallTables, task_events) + event as usize * size_of::<u64>();
            let range = events.get(&event).map_or(0, |ids| ranges[ids]);
            self.control.word(TABLES_OFFSET + at as u64).store(range, SeqCst);
        }
        let at = TABLES_OFFSET + offset_of!(SyscallTables, fork_is_fixed) as u64;
        self.control.word32(at).store(known().forks_are_fixed.into(), SeqCst);
        let listed = Listed { by_call: wanted, events: events.into_keys().collect(), ranges };
        for number in 0..=OTHER_NUMBERS {
            self.publish_call(number, &listed, &published, links);
        }
        let ranges = &listed.ranges;
        let kept: BTreeSet<u64> = ranges.values().copied().collect();
        for range in old.difference(&kept) {
            self.ranges.retire(range_unpack(*range));
        }
        // For which there was no room they may find some the next time.
        let has_room = ranges.values().all(|range| *range != 0);
        self.syscalls.listed = listed;
        self.syscalls.listed.ranges.retain(|_, range| *range != 0);
        self.syscalls.published = has_room.then_some(published);
    }

    /// Publishes who sees one call.
    fn publish_call(
        &self,
        number: usize,
        listed: &Listed,
        published: &Published,
        links: &BTreeMap<AttachmentId, Link>,
    ) {
        let Published { follow, uses_sud, traps, .. } = *published;
        let Listed { by_call, events, ranges } = listed;
        let any = !by_call.is_empty() || !events.is_empty();
        let mut words = [false, true].map(|exit| {
            let range = by_call.get(&(exit, number)).map_or(0, |ids| ranges[ids]);
            let changes = traps && !exit && concerns_traps(number as i64);
            let of_event = events.iter().any(|event| is_of_event(*event, number as i64, exit));
            let always =
                is_always(number, exit, any, follow) || uses_sud && concerns_sud(number) || changes || of_event;
            range | if always { ALWAYS } else { 0 }
        });
        if number == OTHER_NUMBERS && any {
            words = words.map(|word| word | ALWAYS);
        }
        if words[1] != 0 {
            // Whose end is to be shown is remembered from its beginning on.
            words[0] |= ALWAYS;
        }
        // First what is looked at first.
        self.store_call_word(number, offset_of!(Subscribers, enter_only), 0);
        self.store_call_word(number, offset_of!(Subscribers, exit_only), 0);
        self.store_call_word(number, offset_of!(Subscribers, enter), words[0]);
        self.store_call_word(number, offset_of!(Subscribers, exit), words[1]);
        for (exit, word) in [(false, offset_of!(Subscribers, enter_only)), (true, offset_of!(Subscribers, exit_only))]
        {
            let ids = by_call.get(&(exit, number)).map_or(&[][..], |ids| ids);
            let only = if uses_sud || traps && concerns_traps(number as i64) {
                0
            } else {
                self.only_of_call(number, ids, ranges, links)
            };
            self.store_call_word(number, word, only);
        }
    }

    /// Publishes that one more link, of one call, sees that; false: all have to be published.
    pub(in crate::realm) fn publish_call_also(
        &mut self,
        id: AttachmentId,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> bool {
        let Some(Point::Syscall(point)) = links.get(&id).map(|link| &link.spec.point) else { return false };
        let (Calls::Of(number), Some(mut published)) = (point.calls, self.syscalls.published.take()) else {
            return false;
        };
        let (number, exit) = (number as usize, point.exit);
        let is_same = published.follow == self.following.follows()
            && published.uses_sud == (self.sud.armed || self.sud.why.is_some())
            && published.traps == self.watches_masks(links);
        if number >= OTHER_NUMBERS || !is_same || self.syscalls.listed.by_call.is_empty() {
            return false;
        }
        let old = self.syscalls.listed.by_call.get(&(exit, number)).cloned().unwrap_or_default();
        let ids = [&old[..], &[id]].concat();
        let range = self.range_of_calls(&ids, links);
        if range == 0 {
            return false;
        }
        let mut listed = std::mem::take(&mut self.syscalls.listed);
        listed.ranges.insert(ids.clone(), range);
        listed.by_call.insert((exit, number), ids);
        published.subscribers.insert(id);
        self.syscalls.subscribers.insert(id);
        self.publish_call(number, &listed, &published, links);
        // (One that events have, too, is left for whoever publishes all.)
        if listed.events.is_empty() && !old.is_empty() && !listed.by_call.values().any(|ids| *ids == old) {
            listed.ranges.remove(&old).into_iter().for_each(|range| self.ranges.retire(range_unpack(range)));
        }
        self.syscalls.listed = listed;
        self.syscalls.published = Some(published);
        true
    }

    /// Tells the agent whether it is to announce what is executed.
    pub(in crate::realm) fn publish_following(&self) {
        let at = TABLES_OFFSET + offset_of!(SyscallTables, follow) as u64;
        self.control.word32(at).store(u32::from(self.following.follows()), SeqCst);
    }

    /// Tells the agent where thread blocks are, and its handler of SIGCANCEL, once that is known.
    pub(in crate::realm) fn publish_thread_blocks(&self) {
        let word = |offset: usize| self.control.word(TABLES_OFFSET + offset as u64);
        word(offset_of!(SyscallTables, blocks)).store(self.region + STATE_OFFSET + STATE_HEADER_BYTES, SeqCst);
        word(offset_of!(SyscallTables, cancel_handler)).store(sud::cancel_handler(self.region), SeqCst);
        self.control.word32(NOBODY_OFFSET + offset_of!(Attachment, pid) as u64).store(NO_PROCESS, SeqCst);
    }

    /// Has the only thread of a process that has just executed a program go by the end of `execve` first, which programs see
    /// as any other: in a trampoline of its own.
    pub(in crate::realm) fn finish_exec(&self, stopped: &mut inject::Stopped) -> Result<(), inject::Error> {
        let index = SITES_MAX;
        let Some(tid) = stopped.threads().first().copied() else { return Ok(()) };
        let registers = stopped.registers(tid)?;
        let (trampoline, entry) = (trampoline_address(self.region, index), registers.rip);
        let plan = SyscallPlan {
            number: Some(nr::EXECVE as u32),
            keeps_flags: true,
            ..SyscallPlan::at(entry, entry - SYSCALL_BYTES)
        };
        let Ok(code) = plan.trampoline(trampoline, &self.trampoline_links(&plan, index, entry, false)) else {
            return Ok(());
        };
        let at = TABLES_OFFSET + offset_of!(SyscallTables, executed_by) as u64;
        self.control.word32(at).store(self.executed_by, SeqCst);
        let record = SyscallSite { call: plan.call, number: nr::EXECVE as i32, ..SyscallSite::default() };
        self.control.write(site_offset(index), record);
        stopped.write(trampoline, &code)?;
        stopped.set_registers(tid, &inject::Registers { rip: trampoline + CALL_AT + SYSCALL_BYTES, ..registers })
    }

    /// Where the trampoline of a site leads; `tail`: where the near stub goes on.
    fn trampoline_links(&self, plan: &SyscallPlan, index: u32, tail: u64, small_stacks: bool) -> TrampolineLinks {
        let symbol = |name: &str| in_agent(self.region, name);
        // Behind munmap a thread that ends may have no stack any more.
        let number = plan.number.map(i64::from);
        let unmaps = matches!(number, Some(nr::MUNMAP | nr::EXIT));
        let begins = number.is_some_and(|number| CLONE_SYSCALLS.contains(&number));
        let (enter, exit) = match (unmaps || plan.stackless || small_stacks, plan.keeps_flags) {
            // A new thread has a stack of its own from the start, and no block yet.
            (true, _) if begins => ("ring3_syscall_enter_on_agent_stack", "ring3_syscall_exit_of_clone"),
            (true, _) => ("ring3_syscall_enter_on_agent_stack", "ring3_syscall_exit_on_agent_stack"),
            (false, true) => ("ring3_syscall_enter_with_flags", "ring3_syscall_exit_with_flags"),
            (false, false) => ("ring3_syscall_enter", "ring3_syscall_exit"),
        };
        TrampolineLinks {
            index,
            after: plan.after(),
            tail,
            tables: self.region + CONTROL_OFFSET + TABLES_OFFSET,
            enter: symbol(enter),
            exit: symbol(exit),
        }
    }

    fn store_call_word(&self, number: usize, word: usize, value: u64) {
        let at = TABLES_OFFSET + ((number as u64) << CALL_SHIFT) + word as u64;
        let word = self.control.word(at);
        if word.load(SeqCst) != value {
            word.store(value, SeqCst);
        }
    }

    /// [`Subscribers::enter_only`] or `exit_only` for a call that these see.
    fn only_of_call(
        &self,
        number: usize,
        ids: &[AttachmentId],
        ranges: &BTreeMap<Vec<AttachmentId>, u64>,
        links: &BTreeMap<AttachmentId, Link>,
    ) -> u64 {
        let needs_slow_path = CLONE_SYSCALLS
            .into_iter()
            .chain(SLOW_PATH_SYSCALLS)
            .chain(IDENTITY_CHANGERS)
            .any(|call| call as usize == number);
        if needs_slow_path || number == OTHER_NUMBERS || self.syscalls.hook.is_none() {
            return 0;
        }
        let in_function = |point: &Point| matches!(point, Point::Syscall(p) if p.context == SyscallContext::Kprobe);
        match ids {
            [] => self.region + CONTROL_OFFSET + NOBODY_OFFSET,
            [id] if links.get(id).is_some_and(|link| !in_function(&link.spec.point)) => {
                let (first, count) = ranges.get(ids).map_or((0, 0), |range| range_unpack(*range));
                let address = self.region + CONTROL_OFFSET + ATTACHMENTS_OFFSET;
                if count == 1 { address + u64::from(first) * size_of::<Attachment>() as u64 } else { 0 }
            }
            _ => 0,
        }
    }

    /// The packed range of these attachments; 0 if there is no room for them.
    fn range_of_calls(&mut self, ids: &[AttachmentId], links: &BTreeMap<AttachmentId, Link>) -> u64 {
        if let Some(range) = self.syscalls.listed.ranges.get(ids) {
            return *range;
        }
        let specs: Vec<&LinkSpec> = ids.iter().filter_map(|id| Some(&links.get(id)?.spec)).collect();
        let Some(first) = self.write_attachments(&specs, 0) else { return 0 };
        range_pack(first, specs.len() as u32)
    }
}
