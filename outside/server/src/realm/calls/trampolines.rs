//! The system calls of a target: which of its `syscall` instructions go through trampolines.
//!
//! A link wants one call or all of them. Sites whose number is known to be another stay as they are. What is written where
//! stands in the table of sites in the control page, so that whoever cleans up needs nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ring3_inject as inject;
use ring3_layout::region::{CONTROL_OFFSET, TRAMPOLINES_OFFSET};
use ring3_layout::syscall::{
    CALL_AT, CLONE_SYSCALLS, SITES_MAX, SITES_OFFSET, SYSCALL_BYTES, SyscallSite, SyscallTables, TABLES_OFFSET,
    TRAMPOLINE_BYTES,
};
use ring3_patch::{JUMP_BYTES, NEAR_BYTES_MAX, Replaced, SyscallPlan, TrampolineLinks};
use ring3_uapi::Errno;
use ring3_uapi::nr;

use super::callers::number_of;
use super::interest::{CallSeries, SyscallInterest, may_change_masks};
use super::subscribers::{Listed, Published};
use super::sud;
use super::unseen::Unseen;
use crate::realm::files::{Modules, SyscallPlans, is_dynamic_loader, likely_key_of};
use crate::realm::process::{put_back, read_process};
use crate::realm::refusal::refusal_of;
use crate::realm::sites::{Batch, CaughtCalls, CodeMemory, Site, WantedSite, in_agent, is_written};
use crate::realm::target::{Link, Target};
use crate::realm::{AttachmentId, Refusal, Shared};

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
        // (None: the vDSO's.)
        let plans: Option<Arc<SyscallPlans>> = match &mapping.path[..] {
            "[vdso]" if interest.any || interest.follow => None,
            path if mapping.inode != 0 && !mapping.is_shared() && !path.starts_with("/memfd:ring3-") => {
                let Some((file, key)) = likely_key_of(pid, mapping) else { continue };
                let plans = modules.syscalls(key, &file);
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
                any_small |= plans.small_stacks;
                Some(plans)
            }
            _ => continue,
        };
        found.push((mapping, plans));
    }
    // (What comes behind a call that was caught needs more room than there is in Go.)
    wanted.sud = unscanned.filter(|_| interest.any && !any_small).and_then(|unscanned| refused.or_else(unscanned));
    let uses_sud = wanted.sud.is_some();
    for (mapping, plans) in found {
        let small_stacks = plans.as_ref().is_some_and(|plans| plans.small_stacks);
        let Some(plans) = plans.as_deref().or(vdso) else { continue };
        let in_loader = is_loader(&mapping.path);
        // (The C library makes hundreds of calls, of which few are wanted mostly.)
        let calls = plans.in_mapping(mapping, |plan| interest.has(plan, in_loader, uses_sud));
        let file = (mapping.dev, mapping.inode);
        let wants = |plan| WantedCall { plan, mapping: mapping.range.clone(), file, small_stacks };
        wanted.calls.extend(calls.map(wants));
    }
    wanted
}

/// Whether a call's site displaces some of these bytes.
fn overlaps(plan: &SyscallPlan, bytes: &Range<u64>) -> bool {
    let own = plan.bytes();
    own.start < bytes.end && bytes.start < own.end
}

/// A call that is replaced, or was.
#[derive(Clone, Debug)]
struct CallSite {
    index: u32,
    /// As it was wanted; its plan may be one of several.
    want: WantedCall,
    plan: SyscallPlan,
    near: u64,
    jump: Vec<u8>,
    /// Original address and address in the near stub of each displaced instruction.
    moved: Vec<(u64, u64)>,
    patched: bool,
}

/// A jump back to the original code, at the end of a near stub. Threads may be on their way there for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WayBack {
    at: u64,
    to: u64,
    /// Device and inode of the file that was mapped there.
    file: (u64, u64),
}

/// The system call sites of a target, by the address of the call.
#[derive(Clone, Debug, Default)]
pub(in crate::realm) struct Syscalls {
    sites: BTreeMap<u64, CallSite>,
    used: u32,
    /// Of all near stubs of a call that were ever made.
    ways_back: BTreeMap<u64, Vec<WayBack>>,
    /// Calls that could not be replaced, and why.
    refused: BTreeMap<u64, String>,
    pub(super) unseen: Unseen,
    /// Calls that may change signal masks.
    changing: Vec<u64>,
    /// Why those are seen that are.
    pub(in crate::realm) interest: SyscallInterest,
    /// Tools make links of one call after the other.
    pub(in crate::realm) series: CallSeries,
    pub(super) listed: Listed,
    /// Links whose programs see calls here.
    pub(in crate::realm) subscribers: BTreeSet<AttachmentId>,
    /// What the tables were made from.
    pub(super) published: Option<Published>,
    /// The hook that counts, by its index, and its address.
    pub(super) hook: Option<(u32, u64)>,
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
        self.sites.values().any(|placed| placed.patched && overlaps(&placed.plan, bytes))
    }

    /// Whether the code for a call is there, or will be when a batch is written.
    pub(in crate::realm) fn knows(&self, key: u64) -> bool {
        self.sites.contains_key(&key)
    }

    /// Whether threads may still go back to a call from a near stub of before.
    pub(in crate::realm) fn had(&self, key: u64) -> bool {
        self.ways_back.contains_key(&key)
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
        self.want.file == want.file && self.want.plan == want.plan
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
        let interest = if self.before_program { interest.in_executions() } else { interest };
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
        self.place_calls(stopped, wanted);
    }

    /// Makes sites of system calls exist, as far as they are not there.
    pub(in crate::realm) fn place_calls(&mut self, stopped: &mut inject::Stopped, wanted: Vec<WantedCall>) {
        let are_there = stopped.has_all(self.syscalls.written());
        let (mut batch, mut fresh) = (Batch::default(), vec![]);
        let caught = self.caught_calls();
        for want in wanted {
            let call = want.plan.key();
            match self.prepare_call(stopped, want, are_there, &mut batch, &caught) {
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

    /// Makes a site exist, the code for which joins the batch; whether it is still to be patched. `are_there`: all jumps are as they were
    /// written.
    fn prepare_call(
        &mut self,
        stopped: &mut inject::Stopped,
        want: WantedCall,
        are_there: bool,
        batch: &mut Batch,
        caught: &CaughtCalls,
    ) -> Result<bool, Refusal> {
        let call = want.plan.key();
        // (Another file is mapped there now, the old site went with its mapping; or a probe has come meanwhile.)
        let is_void =
            |placed: &CallSite| !placed.is(&want) || !placed.patched && self.probe_in(&placed.plan).is_some();
        if self.syscalls.sites.get(&call).is_some_and(is_void) {
            self.syscalls.sites.remove(&call);
        }
        if let Some(placed) = self.syscalls.sites.get(&call) {
            let is_there = placed.patched && (are_there || is_written(stopped, placed.plan.site, &placed.jump));
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
        let plan = self.free_window(&want, caught)?;
        let trampoline = trampoline_address(self.region, index);
        let (near, area) = self.stub_room(memory, plan.site, want.mapping.clone(), NEAR_BYTES_MAX as u64)?;
        let stub = if plan.replaced == Replaced::Instruction {
            let (stub, tail) = plan.near(near, trampoline).map_err(refuse)?;
            let links = self.trampoline_links(&plan, index, near + u64::from(tail), want.small_stacks);
            batch.0.push((trampoline, plan.trampoline(trampoline, &links).map_err(refuse)?));
            stub
        } else {
            plan.near_of_caller(near, &self.caller_links(&plan, index)).map_err(refuse)?
        };
        let jump = plan.jump(near).map_err(refuse)?;
        let moved = stub.moved.iter().map(|m| (m.original, near + u64::from(m.stub_offset))).collect();
        let end = near + stub.bytes.len() as u64;
        let placed = CallSite { index, want, plan, near, jump, moved, patched: false };
        let redirected = self.redirect_ways_back(&placed)?;
        self.take_stub_room(area, stub.bytes.len() as u64);
        self.syscalls.used += 1;
        batch.0.push((near, stub.bytes));
        batch.0.extend(redirected);
        if let Some(to) = placed.plan.goes_on().filter(|_| placed.plan.replaced == Replaced::Instruction) {
            let ways = self.syscalls.ways_back.entry(placed.plan.key()).or_default();
            ways.push(WayBack { at: end - JUMP_BYTES as u64, to, file: placed.want.file });
        }
        Ok(placed)
    }

    /// Who comes back from a call's earlier near stub, into bytes that the new jump replaces, goes on in the new near stub. What is to be
    /// written for that.
    fn redirect_ways_back(&self, placed: &CallSite) -> Result<Vec<(u64, Vec<u8>)>, Refusal> {
        let ways = self.syscalls.ways_back.get(&placed.plan.key()).into_iter().flatten();
        let redirected = ways.filter(|way| way.file == placed.want.file && placed.has_inside(way.to)).map(|way| {
            let to = placed
                .near_of(way.to)
                .and_then(|to| i32::try_from(to.wrapping_sub(way.at + JUMP_BYTES as u64) as i64).ok());
            let to = to.ok_or_else(|| Refusal::new(Errno::EBUSY, "calls go back there that were made before"))?;
            Ok((way.at + 1, to.to_le_bytes().to_vec()))
        });
        redirected.collect()
    }

    /// A probe that is in the bytes of a call's jump.
    fn probe_in(&self, plan: &SyscallPlan) -> Option<&Site> {
        let bytes = plan.bytes();
        self.sites.values().find(|site| site.patched && site.overlaps(&bytes))
    }

    /// Where the jump of a call can be: in the best place, or if a probe is there in another one. (Threads that were caught may come
    /// back to the call, too, which the middle of another jump may cover: for them there is the best place only.)
    fn free_window(&self, want: &WantedCall, caught: &CaughtCalls) -> Result<SyscallPlan, Refusal> {
        let leads = |plan: &SyscallPlan| caught.lead_into(&plan.bytes());
        let is_free = |plan: &SyscallPlan| {
            let is_mapped = plan.site >= want.mapping.start && plan.bytes().end <= want.mapping.end;
            is_mapped && self.probe_in(plan).is_none() && !leads(plan)
        };
        match self.probe_in(&want.plan) {
            None if leads(&want.plan) => Err(Refusal::new(Errno::EBUSY, "calls go back there that were caught")),
            None => Ok(want.plan.clone()),
            Some(site) => want
                .plan
                .windows()
                .skip(1)
                .find(is_free)
                .ok_or_else(|| Refusal::new(Errno::EBUSY, format!("the probe of {} is there", site.name))),
        }
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

    /// Restores calls in the bytes of a wanted site, for which a user asked: those whose jumps can be elsewhere, and those that ring3
    /// sees for its own ends and can do without. [`Target::place_calls`] has those seen again for which there is room then.
    pub(in crate::realm) fn take_calls_out_of_the_way(
        &mut self,
        stopped: &mut inject::Stopped,
        want: &WantedSite,
    ) -> Vec<WantedCall> {
        let Ok(plan) = want.plan() else { return vec![] };
        let (syscalls, bytes) = (&self.syscalls, want.place.address..plan.resume);
        let in_the_way = syscalls.sites.iter().filter(|(_, placed)| {
            let number = placed.plan.number.map(i64::from);
            let may_go = || {
                let mut windows = placed.want.plan.windows();
                windows.any(|plan| !overlaps(&plan, &bytes)) || syscalls.interest.can_do_without(number)
            };
            placed.patched && overlaps(&placed.plan, &bytes) && may_go()
        });
        let in_the_way: Vec<(u64, WantedCall)> =
            in_the_way.map(|(call, placed)| (*call, placed.want.clone())).collect();
        for (call, _) in &in_the_way {
            self.remove_call(stopped, *call);
            self.syscalls.forget_unpatched(*call);
        }
        in_the_way.into_iter().map(|(_, want)| want).collect()
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
}
