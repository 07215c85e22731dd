//! What agents ask of the server, and how much of the acting thread's time each gets for it.
//!
//! Whatever a request says is a claim of a process that can write the realm block. It is only used to find a target, whose
//! identity the server knows for itself. No target can have others wait: those that took least time come first, for
//! [`SERVE_AT_ONCE`] together, and then loaders and users are heard again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_layout::PAGE_BYTES;
use ring3_layout::realm::{Request, request};
use ring3_layout::thread::THREADS_MAX;

use super::life::{Announcer, InheritedState};
use super::memory::Death;
use super::programs::Ended;
use super::reports::ReportTo;
use super::target::Target;
use super::tracer::Actor;
use super::{Shared, calls, process};

/// Pauses behind attempts to restore the code of a process that waits to be let go, if it could not be stopped.
const RESTORED_AGAIN_AFTER_MS: [u64; 3] = [1, 10, 50];

/// Requests are served for this long, then everybody else has a turn.
const SERVE_AT_ONCE: Duration = Duration::from_millis(20);
/// A target that has taken so much time waits as long again as its next requests take.
const TIME_AT_ONCE: Duration = Duration::from_secs(5);
/// How many times as long.
const TIME_PRICE: u32 = 2;

/// The time that a target's requests have taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// When it has waited for all of it.
    paid: Option<Instant>,
}

impl Budget {
    pub(super) fn is_spent(self, now: Instant) -> bool {
        self.paid.is_some_and(|paid| paid > now + TIME_AT_ONCE)
    }

    pub(super) fn charge(&mut self, now: Instant, spent: Duration) {
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + spent * TIME_PRICE);
    }
}

/// A request as it was found.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The number of the domain by whose block it came.
    domain: u32,
    index: usize,
    kind: u32,
    pid: u32,
    tid: u32,
    nonce: u64,
    argument: u64,
}

impl Claim {
    fn of(domain: u32, index: usize, entry: &Request) -> Claim {
        Claim {
            domain,
            index,
            kind: entry.kind.load(Relaxed),
            pid: entry.pid.load(Relaxed),
            tid: entry.tid.load(Relaxed),
            nonce: entry.nonce.load(Relaxed),
            argument: entry.argument.load(Relaxed),
        }
    }

    fn is_exec(self) -> bool {
        self.kind == request::KIND_EXEC
    }

    /// Whoever waits goes on; what nobody waits for is free again. (It may be somebody else's by now.)
    fn answer(self, shared: &Shared) {
        self.answer_with(shared, self.argument);
    }

    /// The same, with a number as the answer.
    fn answer_with(self, shared: &Shared, number: u64) {
        let Some(domain) = shared.domains.numbered(self.domain) else { return };
        let entry = &domain.block().file.realm().requests[self.index];
        let now = Claim::of(self.domain, self.index, entry);
        let what = |claim: Claim| (claim.pid, claim.tid, claim.nonce, claim.kind, claim.argument);
        if what(now) != what(self) {
            return;
        }
        if number != self.argument && entry.state.load(Acquire) == request::PENDING {
            entry.argument.store(number, Relaxed);
        }
        if entry.state.compare_exchange(request::PENDING, request::DONE, AcqRel, Acquire).is_ok() {
            process::futex_wake(&entry.state);
        } else if matches!(entry.state.load(Acquire), request::UNATTENDED | request::ABANDONED) {
            entry.state.store(request::FREE, Release);
        }
    }
}

/// A request that is answered when this is dropped.
struct Unanswered {
    claim: Claim,
    shared: Arc<Shared>,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.claim.answer(&self.shared);
    }
}

/// What became of a request.
enum Served {
    Done,
    /// Its time has not come.
    Later,
    /// Somebody else answers it.
    Handed,
}

impl Actor {
    /// Serves what agents ask for, as far as there is time.
    pub(super) fn serve_requests(&mut self) {
        if !std::mem::take(&mut self.rung) {
            return;
        }
        self.requests_wait = false;
        let began = Instant::now();
        let shared = self.shared.clone();
        for claim in self.claims() {
            let now = Instant::now();
            if now > began + SERVE_AT_ONCE {
                self.rung = true;
                return;
            }
            if self.budget(claim).is_none_or(|budget| budget.is_spent(now)) {
                self.requests_wait = true;
                continue;
            }
            match self.serve(claim) {
                Served::Done => claim.answer(&shared),
                Served::Later => self.requests_wait = true,
                Served::Handed => {}
            }
            if let Some(budget) = self.budget(claim) {
                budget.charge(now, now.elapsed());
            }
        }
    }

    /// Requests of targets in the order in which they are served. Those that nobody waits for any more, and those of nobody, are
    /// free again.
    fn claims(&self) -> Vec<Claim> {
        let shared = self.shared.clone();
        let mut claims = vec![];
        let domains = shared.domains.all();
        let entries = domains.iter().flat_map(|domain| {
            let requests = domain.block().file.realm().requests.iter().enumerate();
            requests.map(move |(index, entry)| (domain.number(), index, entry))
        });
        for (domain, index, entry) in entries {
            let state = entry.state.load(Acquire);
            if !matches!(state, request::PENDING | request::UNATTENDED | request::ABANDONED) {
                continue;
            }
            let claim = Claim::of(domain, index, entry);
            match self.owner(claim) {
                Some(owner) if state != request::ABANDONED => {
                    claims.push((owner.budget.paid, !claim.is_exec(), claim));
                }
                _ => claim.answer(&shared),
            }
        }
        // Who is about to execute a program may be waited for by others.
        claims.sort_by_key(|(paid, is_other, _)| (*paid, *is_other));
        claims.into_iter().map(|(_, _, claim)| claim).collect()
    }

    /// The tables that a claim names, in its own domain (the claims of a target are about targets of that); if nobody has them any
    /// more, those of the process that makes it: it was adopted meanwhile, and its creator has ended.
    fn owner(&self, claim: Claim) -> Option<&Target> {
        let is_of_domain = |tables: &&Target| tables.domain.number() == claim.domain;
        let named = self.all_tables().filter(is_of_domain).find(|tables| tables.nonce == claim.nonce);
        let is_its = |target: &&Target| target.own_pid == claim.pid && target.is_family(claim.nonce);
        named.or_else(|| self.targets.values().filter(is_of_domain).find(is_its))
    }

    /// A target has ended, which ran with the tables of `nonce` and called itself `own_pid`: what it was about to ask is nothing any
    /// more. So is whatever names no target: what ends while it asks, or scribbles, would take it from others for good.
    pub(super) fn free_requests_of_nobody(&self, (nonce, own_pid): (u64, u32)) {
        for domain in self.shared.domains.all() {
            for (index, entry) in domain.block().file.realm().requests.iter().enumerate() {
                let state = entry.state.load(Acquire);
                let claim = Claim::of(domain.number(), index, entry);
                let is_dead = (claim.nonce, claim.pid) == (nonce, own_pid);
                if state != request::FREE && (is_dead || self.owner(claim).is_none()) {
                    let _ = entry.state.compare_exchange(state, request::FREE, AcqRel, Relaxed);
                }
            }
        }
    }

    fn budget(&mut self, claim: Claim) -> Option<&mut Budget> {
        let nonce = self.owner(claim)?.nonce;
        let mut all = self.targets.values_mut().chain(&mut self.forks_only);
        all.find(|tables| tables.nonce == nonce).map(|tables| &mut tables.budget)
    }

    fn serve(&mut self, claim: Claim) -> Served {
        let Claim { kind, pid, nonce, argument, .. } = claim;
        let is_of_domain = |t: &Target| t.domain.number() == claim.domain;
        let Some(owner) = self.owner(claim) else { return Served::Done };
        let requester = |targets: &BTreeMap<u32, Target>| {
            targets.values().find(|t| t.own_pid == pid && t.is_family(nonce) && is_of_domain(t)).map(|t| t.pid)
        };
        if claim.is_exec() {
            // Who has not been adopted need not be any more.
            let requester = requester(&self.targets);
            let Some(process) = requester.or_else(|| owner.find_unadopted(pid)) else { return Served::Done };
            self.young_forks.forget(nonce, pid);
            return self.serve_exec(claim, process, requester);
        }
        if kind == request::KIND_IDS {
            // (Nor need who asks this: it may be about to execute a program, with its creator's memory.)
            let process = requester(&self.targets).or_else(|| owner.find_unadopted(pid));
            let thread = process.and_then(|pid| Some((pid, process::thread_named(pid, claim.tid)?)));
            claim.answer_with(&self.shared, thread.map_or(0, |(pid, tid)| u64::from(pid) << 32 | u64::from(tid)));
            return Served::Handed;
        }
        let (owner, forks_only, is_requester) = (owner.pid, owner.forks_only, owner.own_pid == pid);
        // (A fork that has not been adopted asks with its creator's nonce.)
        if forks_only {
            self.adopt_all_children();
        } else if kind == request::KIND_FORKED {
            self.meet_fork(owner, nonce, pid);
            return Served::Done;
        } else if !is_requester && requester(&self.targets).is_none() {
            self.adopt_child_of(owner, pid);
        } else if is_requester && kind != request::KIND_MAPPING_ADDED {
            self.adopt_children_of(owner);
        }
        let requester = requester(&self.targets).unwrap_or(owner);
        let stops_requester = matches!(
            kind,
            request::KIND_SUD_OFF
                | request::KIND_TRAPS_OFF
                | request::KIND_FILTER
                | request::KIND_OWN_DISPATCH
                | request::KIND_CODE_MOVES
                | request::KIND_GATE
        );
        if stops_requester && self.executions.contains_key(&requester) {
            // Only the thread that follows its `execve` may stop it now. When that ends, requests are looked at again.
            return Served::Handed;
        }
        match kind {
            request::KIND_SUD_OFF => {
                if let Some(target) = self.targets.get_mut(&requester) {
                    target.abandon_sud("the process filters or dispatches its own calls");
                }
            }
            request::KIND_TRAPS_OFF => {
                if let Some(target) = self.targets.get_mut(&requester) {
                    target.abandon_traps("the process waits with SIGTRAP blocked");
                    target.abandon_faults("the process waits with SIGSEGV blocked");
                }
                self.apply_or_log(requester);
            }
            request::KIND_OVER_BUDGET => {
                self.switch_off_overrunning(requester, (argument >> 32) as u32, argument as u32);
            }
            request::KIND_FAULT => match self.end_faulted_run(requester, claim.tid, claim.index, argument) {
                Ended::NotYet => return Served::Later,
                Ended::Answered => {}
                Ended::Holding(death) => {
                    // The thread may hold something again as soon as it goes on.
                    let unanswered = Arc::new(Unanswered { claim, shared: self.shared.clone() });
                    self.shared.deaths.tell(Death { until_tended: Some(unanswered), ..death });
                    return Served::Handed;
                }
            },
            request::KIND_FILTER => {
                let is_met = self.meet_filter((requester, pid), nonce, argument);
                if is_met {
                    claim.answer_with(&self.shared, request::FILTER_MET);
                    return Served::Handed;
                }
            }
            request::KIND_NO_BLOCK => {
                let what = format!(
                    "has more than {THREADS_MAX} threads at a time: what further ones do is not seen; `ring3 status` counts it"
                );
                self.say_of(requester, &what);
            }
            request::KIND_OWN_DISPATCH => {
                const WHY: &str = "it is about to catch its own system calls (syscall user dispatch)";
                self.let_go_at_once((requester, pid), WHY);
            }
            request::KIND_CODE_MOVES => {
                let first = (argument >> request::PAGES_BITS) * PAGE_BYTES;
                let end = first.saturating_add((argument & ((1 << request::PAGES_BITS) - 1)) * PAGE_BYTES);
                let mappings = inject::mappings(inject::Pid(requester)).unwrap_or_default();
                // (A library may have been where other memory is now.)
                let is_code = |mapping: &inject::Mapping| {
                    mapping.is_executable() && mapping.range.start < end && first < mapping.range.end
                };
                if mappings.iter().any(is_code) {
                    self.let_go_at_once((requester, pid), "it is about to move code that is probed (mremap)");
                }
            }
            request::KIND_GATE => self.meet_call_by_gate(requester, pid),
            request::KIND_MAPPING_ADDED => {
                let mappings = inject::mappings(inject::Pid(requester)).unwrap_or_default();
                self.look_for_large_files(requester, &mappings);
                if self.awaits_files(requester) {
                    // (Requests are looked at again when they are analysed.)
                    return Served::Handed;
                }
                if let Some(target) = self.targets.get_mut(&requester) {
                    // (A library may have been mapped again where it was before: its code is as in its file.)
                    target.find_disturbed();
                }
                if let Err(refusal) = self.apply(requester, ReportTo::Starter) {
                    tracing::warn!(pid = requester, "new mappings: {refusal}");
                }
            }
            _ => {}
        }
        Served::Done
    }

    /// `requester`: the target that asks; `process` may be a child of one.
    fn serve_exec(&mut self, claim: Claim, process: u32, requester: Option<u32>) -> Served {
        // (Of who has not been adopted the id was looked up just now.)
        let is_first = requester.is_none() && claim.tid == claim.pid;
        let thread = if is_first { Some(process) } else { process::thread_named(process, claim.tid) };
        let Some(thread) = thread else { return Served::Done };
        if let Some(execution) = self.executions.get(&process) {
            // That of `ring3 start` in a target is what is announced here. Any other one that is followed ends, or the process does;
            // then requests are looked at again.
            return if execution.is_of_user(thread) { Served::Done } else { Served::Handed };
        }
        if !self.may_follow(claim.nonce) {
            return Served::Later;
        }
        let parent = match requester.and_then(|pid| self.targets.get(&pid)) {
            Some(parent) => parent,
            None => match self.owner(claim) {
                Some(owner) => owner,
                None => return Served::Done,
            },
        };
        if parent.is_detaching() {
            return Served::Done;
        }
        let kept = InheritedState {
            explicit: parent.explicit,
            following: parent.following,
            terminal: parent.terminal,
            forebears: parent.with_forebears(),
        };
        // An agent that waits for an answer gets it as soon as its thread is held, or cannot be.
        let unanswered = Unanswered { claim, shared: self.shared.clone() };
        self.follow((process, thread), kept, Announcer::Family(claim.nonce), Box::new(move || drop(unanswered)));
        Served::Handed
    }

    /// A process that runs with the tables of `nonce` is about to filter its calls: a target, or a child that calls itself `own_pid`. False:
    /// its tables do not say what the filter forbids.
    fn meet_filter(&mut self, (pid, own_pid): (u32, u32), nonce: u64, argument: u64) -> bool {
        let is_itself = self.targets.get(&pid).is_some_and(|target| target.own_pid == own_pid);
        let its_tables = || self.all_tables().find(|tables| tables.nonce == nonce);
        let process =
            if is_itself { Some(pid) } else { its_tables().and_then(|tables| tables.find_unadopted(own_pid)) };
        let Some(process) = process else { return false };
        let Some(filter) = calls::filter_at(process, argument) else { return true };
        let why = if filter.judge_places() {
            Some("it is about to filter its system calls by where they are made (seccomp)")
        } else if !rustix::process::geteuid().is_root() {
            Some("it is about to filter its system calls, and only root could read its filters")
        } else {
            None
        };
        if let Some(why) = why {
            self.let_go_at_once((pid, own_pid), why);
        }
        // (Last: with the call by which it waits forbidden, the thread would not wait for the answer.)
        let is_its = |tables: &&Target| if is_itself { tables.pid == pid } else { tables.nonce == nonce };
        let tables = self.all_tables().find(is_its);
        tables.inspect(|tables| tables.deny(&filter)).is_some()
    }

    /// A thread of a target, which waits for the answer, is about to do something with which it cannot be one.
    pub(super) fn let_go_at_once(&mut self, (pid, own_pid): (u32, u32), why: &str) {
        // (A `vfork` child has the same memory.)
        if self.targets.get(&pid).is_none_or(|target| target.own_pid != own_pid) {
            return;
        }
        self.detach_with_reason(pid, why);
        // Its code is restored before the answer. A thread is inside; the rest follows.
        for pause in RESTORED_AGAIN_AFTER_MS {
            let left = self.targets.get_mut(&pid).map(|target| target.detach(Duration::ZERO));
            let Some(Err(error)) = left else { return };
            tracing::warn!(pid, "its code is not restored yet: {error}");
            std::thread::sleep(Duration::from_millis(pause));
        }
    }
}
