//! The tracer: the one thread that changes targets, or waits for one that does.
//!
//! An actor: it owns all targets and links; others send [`Command`]s. It never waits for a target
//! without a deadline, so a command is answered within seconds even when targets misbehave.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_layout::realm::{Request, request};
use ring3_uapi::Errno;
use rustix::event::{PollFd, PollFlags};

use super::TargetStatus;
use super::doorbell::EventFd;
use super::recovery::Patience;
use super::target::{LEAVE_WITHIN, Link, STOP_WITHIN, Target};
use super::terminal::{Hearer, Terminal, tell_untraced};
use ring3_names::elf::Placed;

use super::text::TextRange;
use super::{
    AttachmentId, Following, LinkSpec, MapSlot, Refusal, Shared, filters, owners, privileges, raw_mapping, recovery,
};
use crate::rights::{Rights, Subject};

/// A command is answered within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How often unfinished cleaning is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// A process that announced an `execve` must do it within this time.
pub(super) const EXEC_WITHIN: Duration = Duration::from_secs(10);

/// What the tracer can be asked.
pub(super) enum Command {
    Attach(Box<LinkSpec>, Sender<Result<AttachmentId, Refusal>>),
    Detach(AttachmentId),
    AddTarget(u32, Following, Sender<Result<TargetStatus, Refusal>>),
    AddTargetAtExec(u32, Following, Box<dyn FnOnce() + Send>, Sender<Result<TargetStatus, Refusal>>),
    RemoveTarget(u32, Sender<Result<(), Refusal>>),
    MapCompanions(Sender<Result<(), Refusal>>),
    ThreadSerial(u32, u32, Sender<Option<u32>>),
    DropMap(MapSlot),
    DropText(TextRange),
    Requests,
    Snapshot(Sender<Vec<TargetStatus>>),
    Symbols(u32, Sender<Option<Vec<Placed>>>),
    Count(Sender<usize>),
    ShutDown(Sender<()>),
}

/// Sends commands and wakes the tracer.
#[derive(Clone, Debug)]
pub(super) struct CommandSender {
    queue: Sender<Command>,
    wake: Arc<EventFd>,
}

impl CommandSender {
    pub(super) fn send(&self, command: Command) {
        if self.queue.send(command).is_ok() {
            self.wake.signal();
        }
    }
}

/// The tracer as others see it.
#[derive(Debug)]
pub(super) struct Tracer {
    sender: Mutex<CommandSender>,
}

impl Tracer {
    pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<Tracer> {
        let (queue, commands) = channel();
        let wake = Arc::new(EventFd::new()?);
        let sender = CommandSender { queue, wake: wake.clone() };
        std::thread::Builder::new().name("ring3-tracer".into()).spawn(move || {
            Actor {
                shared,
                commands,
                wake,
                targets: BTreeMap::new(),
                links: BTreeMap::new(),
                next_attachment: 1,
                pending: vec![],
                has_orphans: false,
                parted: vec![],
                behind: BTreeMap::new(),
                cleaned: BTreeSet::new(),
            }
            .run();
        })?;
        Ok(Tracer { sender: Mutex::new(sender) })
    }

    pub(super) fn sender(&self) -> CommandSender {
        self.sender.lock().expect("no panic under this lock").clone()
    }

    pub(super) fn send(&self, command: Command) {
        self.sender().send(command);
    }

    /// Asks and waits for the answer.
    pub(super) fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, Refusal> {
        self.ask_within(command, ANSWER_WITHIN)
    }

    /// Asks something that waits for a process first.
    pub(super) fn ask_long<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, Refusal> {
        self.ask_within(command, ANSWER_WITHIN + EXEC_WITHIN)
    }

    fn ask_within<T>(&self, command: impl FnOnce(Sender<T>) -> Command, wait: Duration) -> Result<T, Refusal> {
        let (reply, answer) = channel();
        self.send(command(reply));
        answer.recv_timeout(wait).map_err(|_| Refusal::new(Errno::ETIMEDOUT, "the server's tracer does not answer"))
    }
}

/// Text or a map slot that may be reused once no target uses it.
enum Garbage {
    Text(TextRange),
    Map(MapSlot),
}

/// What a process keeps of the target that it was when it executes a program.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// The user asked for it.
    explicit: bool,
    following: Following,
    terminal: Option<Terminal>,
}

struct Actor {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    targets: BTreeMap<u32, Target>,
    links: BTreeMap<AttachmentId, Link>,
    next_attachment: u64,
    /// What to free, and the processes that may still use it.
    pending: Vec<(Garbage, Vec<u32>)>,
    /// There are forks that could not be adopted yet.
    has_orphans: bool,
    /// Targets that are gone, or have other tables now, while forks run with theirs.
    parted: Vec<Target>,
    /// Targets in which something should have changed and could not, and when it is tried again.
    behind: BTreeMap<u32, Patience>,
    /// Processes that were cleaned at the start and that nobody has asked to be cleaned yet.
    cleaned: BTreeSet<u32>,
}

impl Actor {
    fn run(mut self) {
        crate::raw_process::take_short_slices();
        self.cleaned = recovery::clean_orphans(self.shared.folder);
        loop {
            let timeout = self.has_unfinished().then_some(RETRY_EVERY);
            let exited = self.wait(timeout);
            for pid in exited {
                self.forget_exited(pid);
            }
            self.wake.clear();
            let mut detached = vec![];
            while let Ok(command) = self.commands.try_recv() {
                if let Command::Detach(id) = command {
                    detached.push(id);
                    continue;
                }
                self.detach(&std::mem::take(&mut detached));
                if let Command::ShutDown(reply) = command {
                    self.shut_down();
                    let _ = reply.send(());
                    return;
                }
                self.handle(command);
            }
            self.detach(&detached);
            self.collect_garbage();
            self.finish_leaving();
            self.catch_up();
            if self.has_orphans {
                self.adopt_all_children();
            }
        }
    }

    /// Sleeps until a command arrives, a target exits or `timeout` passes; the pids that exited.
    fn wait(&self, timeout: Option<Duration>) -> Vec<u32> {
        let pids: Vec<u32> = self.targets.keys().copied().collect();
        let mut fds = vec![PollFd::from_borrowed_fd(self.wake.0.as_fd(), PollFlags::IN)];
        fds.extend(self.targets.values().map(|t| PollFd::from_borrowed_fd(t.pidfd(), PollFlags::IN)));
        let timeout = timeout.map(|t| rustix::event::Timespec { tv_sec: 0, tv_nsec: t.as_nanos() as i64 });
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return vec![];
        }
        fds[1..].iter().zip(pids).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, pid)| pid).collect()
    }

    fn has_unfinished(&self) -> bool {
        self.has_orphans
            || !self.behind.is_empty()
            || !self.pending.is_empty()
            || self.targets.values().any(Target::is_leaving)
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Attach(spec, reply) => drop(reply.send(self.attach(*spec))),
            Command::AddTarget(pid, following, reply) => {
                let added = self.add_target(pid, Some(following), Hearer::Asker);
                let status = added.map(|()| self.status_of(pid));
                let _ = reply.send(status);
            }
            Command::AddTargetAtExec(pid, following, ready, reply) => {
                let _ = reply.send(self.add_target_at_exec(pid, following, ready));
            }
            Command::RemoveTarget(pid, reply) => drop(reply.send(self.remove_target(pid))),
            Command::MapCompanions(reply) => drop(reply.send(self.apply_everywhere())),
            Command::ThreadSerial(pid, tid, reply) => {
                let _ = reply.send(self.targets.get(&pid).and_then(|target| target.serial(tid)));
            }
            Command::DropMap(slot) => self.drop_map(slot),
            Command::DropText(range) => {
                let users = self.all_tables().map(|target| target.pid).collect();
                self.pending.push((Garbage::Text(range), users));
            }
            Command::Requests => self.serve_requests(),
            Command::Snapshot(reply) => {
                self.forget_vanished();
                self.adopt_all_children();
                drop(reply.send(self.targets.values().map(|t| t.status(&self.links)).collect()));
            }
            Command::Symbols(pid, reply) => {
                let _ = reply.send(self.targets.get(&pid).map(|target| target.named(&self.shared)));
            }
            Command::Count(reply) => drop(reply.send(self.targets.len())),
            Command::Detach(_) | Command::ShutDown(_) => unreachable!("handled by run"),
        }
    }

    fn status_of(&self, pid: u32) -> TargetStatus {
        self.targets[&pid].status(&self.links)
    }

    // ---- targets ----

    /// Makes a process a target with all links that hold for it. `asked`: by the user, so it stays one when its own links are
    /// gone.
    fn add_target(&mut self, pid: u32, asked: Option<Following>, hearer: Hearer) -> Result<(), Refusal> {
        self.forget_vanished();
        if let Some(target) = self.targets.get_mut(&pid) {
            if !target.is_leaving() {
                target.explicit |= asked.is_some();
                if let Some(following) = asked {
                    target.set_following(following);
                }
                return Ok(());
            }
            self.see_off(pid, LEAVE_WITHIN)?;
        }
        recovery::clean_orphan_in(pid, &self.known_nonces());
        if let Some(server) = recovery::other_server(pid) {
            return Err(Refusal::new(
                Errno::EBUSY,
                format!(
                    "process {pid} is a target of another ring3 server (process {server}); detach it there first"
                ),
            ));
        }
        let started = Instant::now();
        let mut prepared = recovery::patiently(|| Target::prepare(pid, asked.is_some())).map_err(refusal_of)?;
        prepared.set_following(asked.unwrap_or(Following::All));
        let mut outlook = prepared.look(&self.shared, &mut self.links);
        let entered = recovery::patiently(|| {
            inject::while_stopped(inject::Pid(pid), STOP_WITHIN, |stopped| {
                prepared.enter(&self.shared, &mut self.links, stopped, outlook.take())
            })
        });
        entered.map_err(refusal_of)??;
        self.finish_adding(prepared, started, hearer);
        Ok(())
    }

    fn add_target_at_exec(
        &mut self,
        pid: u32,
        following: Following,
        ready: Box<dyn FnOnce() + Send>,
    ) -> Result<TargetStatus, Refusal> {
        let gains = AtomicBool::new(false);
        let keeps = |stopped: &inject::Stopped, registers: &inject::Registers| {
            gains.store(privileges::gained(stopped, registers), Relaxed);
            !gains.load(Relaxed)
        };
        let kept = Kept { explicit: true, following, terminal: Terminal::of(pid) };
        let enter = |stopped: &mut inject::Stopped| self.enter_executed(stopped, kept, false);
        let entered = inject::while_stopped_at_exec(inject::Pid(pid), pid, EXEC_WITHIN, ready, keeps, enter);
        let entered = entered.map_err(refusal_of)?.ok_or_else(|| {
            if gains.load(Relaxed) {
                Refusal::new(Errno::EPERM, "it has privileges that it would lose; trace it as root")
            } else {
                // Whoever wanted to execute it says why that cannot be.
                Refusal::new(Errno::ESRCH, "it was not executed")
            }
        })?;
        let (target, started) = entered?;
        self.finish_adding(target, started, Hearer::Beginner);
        Ok(self.status_of(pid))
    }

    /// Makes a process a target that has just executed a program, with what is `kept`; `is_known`: who executed it was one.
    fn enter_executed(
        &mut self,
        stopped: &mut inject::Stopped,
        kept: Kept,
        is_known: bool,
    ) -> Result<(Target, Instant), Refusal> {
        let started = Instant::now();
        let mut target = Target::prepare(stopped.pid(), kept.explicit).map_err(refusal_of)?;
        target.set_following(kept.following);
        target.terminal = kept.terminal;
        target.executed = is_known;
        target.find_rseq(&mut self.shared.modules());
        target.enter(&self.shared, &mut self.links, stopped, None)?;
        Ok((target, started))
    }

    /// A thread of a target, or of a `vfork` child of one, is about to execute a program: that is a target, too, with what is
    /// `kept`: whether the user asked for it, and what becomes of its children. `ready` lets the thread go ahead.
    fn follow_exec(
        &mut self,
        kept: Kept,
        (pid, tid): (u32, u32),
        ready: impl FnOnce() + Send,
    ) -> Result<(), Refusal> {
        let gains =
            |stopped: &inject::Stopped, registers: &inject::Registers| !privileges::gained(stopped, registers);
        let enter = |stopped: &mut inject::Stopped| {
            self.forget_vanished();
            self.enter_executed(stopped, kept, true)
        };
        let entered = inject::while_stopped_at_exec(inject::Pid(pid), tid, EXEC_WITHIN, ready, gains, enter);
        let Some(entered) = entered.map_err(refusal_of)? else { return Ok(()) };
        let (target, started) = entered?;
        self.finish_adding(target, started, Hearer::Beginner);
        Ok(())
    }

    /// The process is one of the targets, and goes on.
    fn finish_adding(&mut self, mut target: Target, started: Instant, hearer: Hearer) {
        let pid = target.pid;
        target.inject_us = started.elapsed().as_micros() as u64;
        target.tell_perf(&self.shared);
        target.tell_refused(&self.links, hearer);
        tracing::info!(pid, comm = target.comm, "target added");
        if !target.net.is_settled() {
            self.behind.entry(pid).or_insert_with(Patience::new);
        }
        self.targets.insert(pid, target);
    }

    fn remove_target(&mut self, pid: u32) -> Result<(), Refusal> {
        self.forget_vanished();
        self.adopt_children_of(pid);
        let Some(target) = self.targets.get_mut(&pid) else {
            return if self.cleaned.remove(&pid) || recovery::clean_orphan_in(pid, &self.known_nonces()) {
                Ok(())
            } else {
                Err(Refusal::new(
                    Errno::ESRCH,
                    format!("process {pid} is not a target; `ring3 status` shows targets"),
                ))
            };
        };
        target.begin_leaving();
        self.see_off(pid, LEAVE_WITHIN)?;
        tracing::info!(pid, "target removed");
        Ok(())
    }

    /// Waits until a leaving target is free of everything. If that fails it stays among the targets, and
    /// [`Actor::finish_leaving`] goes on.
    fn see_off(&mut self, pid: u32, within: Duration) -> Result<(), Refusal> {
        let Some(target) = self.targets.get_mut(&pid) else { return Ok(()) };
        if !target.leave(within).map_err(refusal_of)? {
            let what = "all probes are removed, but a thread is still inside ring3's code; its memory is \
                        released when the thread leaves";
            return Err(Refusal::new(Errno::EBUSY, format!("process {pid}: {what}")));
        }
        self.part_with(pid);
        Ok(())
    }

    /// A target is one no more. Forks that have not been adopted are not forgotten.
    fn part_with(&mut self, pid: u32) {
        let Some(mut target) = self.targets.remove(&pid) else { return };
        if !target.find_children().is_empty() {
            target.retire();
            self.has_orphans = true;
            self.parted.push(target);
        }
    }

    /// A target exited (its pidfd says so): its unadopted children are adopted, the rest is dropped.
    fn forget_exited(&mut self, pid: u32) {
        self.adopt_children_of(pid);
        if let Some(target) = self.targets.get(&pid) {
            tracing::info!(pid, comm = target.comm, "target exited");
            let death = target.death();
            owners::free_cpu_slots(self.shared.block.realm(), &self.shared.namespaces, death.leader);
            self.shared.deaths.tell(death);
        }
        // (Forks may have forked meanwhile, and gone before they were looked at: they are looked for again.)
        self.part_with(pid);
        for link in self.links.values_mut() {
            link.refused.remove(&pid);
        }
    }

    /// Drops targets that exec'ed another program: nothing of ours is in the new image.
    fn forget_vanished(&mut self) {
        let gone: Vec<u32> = self.targets.values().filter(|t| !t.is_present()).map(|t| t.pid).collect();
        for pid in gone {
            tracing::info!(pid, "target runs another program now (execve); no longer a target");
            self.forget_exited(pid);
        }
    }

    fn finish_leaving(&mut self) {
        let leaving = self.targets.iter_mut().filter(|(_, target)| target.is_leaving());
        let left: Vec<u32> = leaving.filter_map(|(pid, target)| target.try_leave().then_some(*pid)).collect();
        for pid in left {
            self.part_with(pid);
        }
    }

    /// Whatever processes run with.
    fn all_tables(&self) -> impl Iterator<Item = &Target> {
        self.targets.values().chain(&self.parted)
    }

    fn known_nonces(&self) -> Vec<u64> {
        self.targets.values().map(|t| t.nonce).collect()
    }

    // ---- forks ----

    /// Finds processes that run with a target's tables but are not it (forks), and gives them their own.
    fn adopt_children_of(&mut self, pid: u32) {
        let Some(parent) = self.targets.remove(&pid) else { return };
        self.has_orphans |= !self.adopt_children(&parent);
        self.targets.insert(pid, parent);
    }

    /// Whether none is left.
    fn adopt_children(&mut self, parent: &Target) -> bool {
        // What waits for a `vfork` child, which may wait for us, is adopted later.
        let mut adopt = |child: &u32| !recovery::is_held(*child) && self.adopt(parent, *child);
        parent.find_children().iter().filter(|child| !adopt(child)).count() == 0
    }

    fn adopt_all_children(&mut self) {
        self.has_orphans = false;
        for parent in std::mem::take(&mut self.parted) {
            if !self.adopt_children(&parent) {
                self.has_orphans = true;
                self.parted.push(parent);
            }
        }
        let pids: Vec<u32> = self.targets.keys().copied().collect();
        for pid in pids {
            self.adopt_children_of(pid);
        }
    }

    /// Gives a fork its own tables; false: it must be tried again.
    fn adopt(&mut self, parent: &Target, child: u32) -> bool {
        match parent.adopt(&self.shared, child) {
            Ok(target) => {
                tracing::info!(pid = child, parent = parent.pid, "fork adopted");
                let stays = parent.following == Following::All && !parent.is_leaving();
                self.targets.insert(child, target);
                // It may be inside what its parent uses.
                for (_, users) in self.pending.iter_mut().filter(|(_, users)| users.contains(&parent.pid)) {
                    users.push(child);
                }
                if !stays {
                    self.targets.get_mut(&child).expect("just inserted").begin_leaving();
                    return true;
                }
                // It has its parent's probes: some programs may be for one of the two only.
                let differs = parent.parted
                    || self.links.values().any(|link| link.spec.filter.chooses() || !link.spec.rights.reaches_all());
                let applied = if differs { self.apply(child, Hearer::Beginner) } else { Ok(()) };
                if let Err(refusal) = applied {
                    tracing::warn!(pid = child, "{refusal}");
                }
                if parent.parted
                    && let Some(target) = self.targets.get_mut(&child)
                {
                    target.resume();
                }
                true
            }
            Err(inject::Error::Exited { .. } | inject::Error::NoSuchProcess { .. }) => true,
            Err(error @ inject::Error::ThreadDoesNotStop { .. }) => {
                tracing::debug!(pid = child, parent = parent.pid, "a fork is adopted later: {error}");
                false
            }
            Err(error) => {
                tell_untraced(
                    parent.terminal,
                    child,
                    &format!("a fork of {} could not be adopted: {error}", parent.pid),
                );
                true
            }
        }
    }

    // ---- links ----

    fn attach(&mut self, spec: LinkSpec) -> Result<AttachmentId, Refusal> {
        self.forget_vanished();
        self.adopt_all_children();
        let id = AttachmentId(self.next_attachment);
        self.next_attachment += 1;
        let pid = spec.pid;
        if let Some(pid) = pid {
            check_reach(&spec.rights, pid)?;
            self.await_children_of(pid);
        }
        self.links.insert(id, Link { spec, refused: BTreeMap::new() });
        let result = match pid {
            Some(pid) if !self.targets.contains_key(&pid) => self.add_target(pid, None, Hearer::AskerOf(id)),
            Some(pid) => self.apply(pid, Hearer::AskerOf(id)),
            None => {
                for pid in self.targets.keys().copied().collect::<Vec<_>>() {
                    if let Err(refusal) = self.apply(pid, Hearer::Loader) {
                        tracing::warn!(pid, "{refusal}");
                    }
                }
                Ok(())
            }
        };
        let refused = pid.and_then(|pid| self.links[&id].refused.get(&pid).cloned());
        if let Some(refusal) = result.err().or(refused) {
            self.detach(&[id]);
            return Err(refusal);
        }
        Ok(id)
    }

    fn apply(&mut self, pid: u32, hearer: Hearer) -> Result<(), Refusal> {
        let Some(target) = self.targets.get_mut(&pid) else { return Ok(()) };
        let before = self.parted.len();
        let applied = target.apply_links(&self.shared, &mut self.links, &mut self.parted);
        self.has_orphans |= self.parted.len() > before;
        target.tell_refused(&self.links, hearer);
        let is_busy = |refusal: &Refusal| refusal.errno == Errno::EBUSY;
        let refused = self.links.values().filter_map(|link| link.refused.get(&pid)).any(is_busy);
        if refused || applied.as_ref().is_err_and(is_busy) || !target.net.is_settled() {
            self.behind.entry(pid).or_insert_with(Patience::new);
        } else {
            self.behind.remove(&pid);
        }
        applied
    }

    /// Changes what could not be changed before. (A thread that waits for its `vfork` child goes on soon.)
    fn catch_up(&mut self) {
        self.behind.retain(|pid, _| self.targets.contains_key(pid));
        let stoppable = self.behind.iter_mut().filter(|(pid, _)| !recovery::is_held(**pid));
        let due: Vec<u32> = stoppable.filter_map(|(pid, patience)| patience.is_over().then_some(*pid)).collect();
        for pid in due {
            if let Err(refusal) = self.apply(pid, Hearer::Beginner) {
                tracing::debug!(pid, "{refusal}");
            }
        }
    }

    /// Waits until no thread of a process waits for a `vfork` child, which in turn may wait for an answer.
    fn await_children_of(&mut self, pid: u32) {
        let deadline = Instant::now() + LEAVE_WITHIN;
        while recovery::is_held(pid) && Instant::now() < deadline {
            self.serve_requests();
            std::thread::sleep(RETRY_EVERY);
        }
    }

    fn detach(&mut self, ids: &[AttachmentId]) {
        if ids.is_empty() {
            return;
        }
        self.forget_vanished();
        self.adopt_all_children();
        ids.iter().for_each(|id| drop(self.links.remove(id)));
        for pid in self.targets.keys().copied().collect::<Vec<_>>() {
            if let Err(refusal) = self.apply(pid, Hearer::Beginner) {
                tracing::warn!(pid, "{refusal}");
            }
            let Some(target) = self.targets.get_mut(&pid) else { continue };
            let wanted = target.explicit || self.links.values().any(|link| link.spec.pid == Some(pid));
            if !wanted && !target.is_leaving() {
                target.begin_leaving();
            }
        }
        self.finish_leaving();
    }

    fn apply_everywhere(&mut self) -> Result<(), Refusal> {
        self.forget_vanished();
        self.adopt_all_children();
        self.targets
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|pid| self.apply(pid, Hearer::Beginner))
    }

    // ---- memory that must outlive its users ----

    fn drop_map(&mut self, slot: MapSlot) {
        let users = self.all_tables().filter(|t| t.has_map(slot)).map(|t| t.pid).collect();
        self.pending.push((Garbage::Map(slot), users));
        self.collect_garbage();
    }

    /// Whether no thread is inside a program of a process, or of forks that run with its tables or had them; `None`: there is
    /// nobody any more.
    fn is_quiet(&self, pid: u32) -> Option<bool> {
        self.all_tables().filter(|tables| tables.pid == pid).map(Target::is_quiet).reduce(|all, one| all && one)
    }

    /// Frees what no thread can be using: every process that might has been seen outside all programs.
    fn collect_garbage(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        let mut unmap: BTreeMap<u32, Vec<MapSlot>> = BTreeMap::new();
        let mut seen: BTreeMap<u32, Option<bool>> = BTreeMap::new();
        for (garbage, users) in &mut pending {
            users.retain(|pid| {
                let Some(quiet) = *seen.entry(*pid).or_insert_with(|| self.is_quiet(*pid)) else { return false };
                match garbage {
                    Garbage::Map(slot) if quiet => {
                        unmap.entry(*pid).or_default().push(*slot);
                        false
                    }
                    _ => !quiet,
                }
            });
        }
        for (pid, slots) in unmap {
            if let Some(target) = self.targets.get_mut(&pid)
                && let Err(error) = target.unmap(&slots)
            {
                // A debugger holds it, perhaps. Until it lets go, the slots are not free.
                tracing::debug!(pid, "maps could not be unmapped: {error}");
                for (garbage, users) in &mut pending {
                    if matches!(garbage, Garbage::Map(slot) if slots.contains(slot)) {
                        users.push(pid);
                    }
                }
            }
        }
        pending.retain(|(garbage, users)| {
            if users.is_empty() {
                match garbage {
                    Garbage::Text(range) => self.shared.text.release(*range),
                    Garbage::Map(slot) => self.shared.free_map(*slot),
                }
            }
            !users.is_empty()
        });
        self.pending = pending;
    }

    // ---- requests of agents ----

    fn serve_requests(&mut self) {
        let shared = self.shared.clone();
        // Who is about to execute a program may be waited for by others.
        let all = &shared.block.realm().requests;
        let is_exec = |entry: &&Request| entry.kind.load(std::sync::atomic::Ordering::Relaxed) == request::KIND_EXEC;
        for entry in all.iter().filter(is_exec).chain(all.iter().filter(|entry| !is_exec(entry))) {
            use std::sync::atomic::Ordering::{Acquire, Relaxed};
            let state = entry.state.load(Acquire);
            if !matches!(state, request::PENDING | request::UNATTENDED | request::ABANDONED) {
                continue;
            }
            if state != request::ABANDONED {
                let kind = entry.kind.load(Relaxed);
                let ids = (entry.pid.load(Relaxed), entry.tid.load(Relaxed));
                let nonce = entry.nonce.load(Relaxed);
                let argument = entry.argument.load(Relaxed);
                // An agent that waits for an answer may get it at once.
                let answered = AtomicBool::new(false);
                self.serve((kind, argument), ids, nonce, || {
                    answered.store(true, Relaxed);
                    answer(entry);
                });
                if answered.load(Relaxed) {
                    continue;
                }
            }
            answer(entry);
        }

        /// Whoever waits goes on; what nobody waits for is free again.
        fn answer(entry: &Request) {
            if entry.state.compare_exchange(request::PENDING, request::DONE, AcqRel, Acquire).is_ok() {
                raw_mapping::futex_wake(&entry.state);
            } else {
                entry.state.store(request::FREE, Release);
            }
        }
    }

    /// `pid`, `tid` and `nonce` are claims of a process that can write the realm block; they are only used to find
    /// a target, whose identity the server knows for itself. `answer` lets the asker go on before the work is done.
    fn serve(
        &mut self,
        (kind, argument): (u32, u64),
        (pid, tid): (u32, u32),
        nonce: u64,
        answer: impl FnOnce() + Send,
    ) {
        let Some(owner) = self.all_tables().find(|t| t.nonce == nonce) else { return };
        let asker = |targets: &BTreeMap<u32, Target>| {
            targets.values().find(|t| t.own_pid == pid && t.is_family(nonce)).map(|t| t.pid)
        };
        if kind == request::KIND_EXEC {
            // Who has not been adopted need not be any more.
            let asker = asker(&self.targets);
            let Some(process) = asker.or_else(|| owner.find_kin(pid)) else { return };
            let Some(thread) = recovery::thread_named(process, tid) else { return };
            let parent = asker.and_then(|pid| self.targets.get(&pid)).unwrap_or(owner);
            let kept = Kept { explicit: parent.explicit, following: parent.following, terminal: parent.terminal };
            if let Err(refusal) = self.follow_exec(kept, (process, thread), answer) {
                tell_untraced(kept.terminal, process, &format!("what it has executed: {refusal}"));
            }
            return;
        }
        let (owner, parted, is_asker) = (owner.pid, owner.parted, owner.own_pid == pid);
        // (A fork that has not been adopted asks with its creator's nonce.)
        if parted {
            self.adopt_all_children();
        } else if !is_asker || kind != request::KIND_MAPPING_ADDED {
            self.adopt_children_of(owner);
        }
        let asker = asker(&self.targets).unwrap_or(owner);
        if kind == request::KIND_NET_OFF {
            if let Some(target) = self.targets.get_mut(&asker) {
                target.abandon_net("the process filters or dispatches its own calls");
            }
            return;
        }
        if kind == request::KIND_TRAPS_OFF {
            if let Some(target) = self.targets.get_mut(&asker) {
                target.abandon_traps("the process waits with SIGTRAP blocked");
            }
            if let Err(refusal) = self.apply(asker, Hearer::Beginner) {
                tracing::warn!(pid = asker, "{refusal}");
            }
            return;
        }
        if kind == request::KIND_FILTER {
            self.meet_filter((asker, pid), argument);
            return;
        }
        if kind != request::KIND_MAPPING_ADDED {
            return;
        }
        if let Err(refusal) = self.apply(asker, Hearer::Beginner) {
            tracing::warn!(pid = asker, "new mappings: {refusal}");
        }
    }

    /// A process that runs with a target's tables is about to filter its calls: the target, or a child that calls itself `own_pid`.
    fn meet_filter(&mut self, (pid, own_pid): (u32, u32), argument: u64) {
        let Some(target) = self.targets.get_mut(&pid) else { return };
        // (A `vfork` child has the same memory.)
        let is_own = target.own_pid == own_pid;
        let Some(filter) = filters::filter_at(pid, argument) else { return };
        target.deny(&filter);
        if is_own && !rustix::process::geteuid().is_root() {
            tracing::warn!(
                pid,
                "let go: it is about to filter its system calls, and only root could read its filters"
            );
            target.begin_leaving();
            // What is written into its code is taken back while it may be stopped. A thread is inside, the rest follows.
            if let Err(error) = target.leave(Duration::ZERO) {
                tracing::warn!(pid, "leaving: {error}");
            }
        }
    }

    fn shut_down(&mut self) {
        self.adopt_all_children();
        for target in self.targets.values_mut() {
            target.begin_leaving();
        }
        let deadline = Instant::now() + LEAVE_WITHIN;
        for pid in self.targets.keys().copied().collect::<Vec<_>>() {
            if let Err(refusal) = self.see_off(pid, deadline.saturating_duration_since(Instant::now())) {
                tracing::warn!(pid, "{refusal}; the next server cleans up");
            }
        }
    }
}

/// Whether a process may be reached with these rights.
pub(super) fn check_reach(rights: &Rights, pid: u32) -> Result<(), Refusal> {
    let gone = |errno| Refusal::new(errno, format!("no process with id {pid}"));
    if rights.reaches_all() || rights.reaches(&Subject::of(pid).map_err(gone)?) {
        return Ok(());
    }
    let why = "it is another user's, has more rights than the asker, or may not be traced";
    Err(Refusal::new(Errno::EPERM, format!("process {pid}: not permitted: {why}")))
}

/// An injection error as a loader or a user sees it.
pub(super) fn refusal_of(error: inject::Error) -> Refusal {
    Refusal::new(errno_of(&error), error.to_string())
}

fn errno_of(error: &inject::Error) -> Errno {
    match error {
        inject::Error::NoSuchProcess { .. } | inject::Error::Exited { .. } => Errno::ESRCH,
        inject::Error::NotPermitted { .. } | inject::Error::Seccomp { .. } => Errno::EPERM,
        inject::Error::AlreadyTraced { .. } | inject::Error::ThreadDoesNotStop { .. } => Errno::EBUSY,
        _ => Errno::EINVAL,
    }
}
