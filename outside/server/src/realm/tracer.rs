//! The tracer: the one thread that changes targets, or waits for one that does.
//!
//! An actor: it owns all targets and links; others send [`Command`]s. It never waits for a target
//! without a deadline, so a command is answered within seconds even when targets misbehave.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Release;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_uapi::Errno;
use rustix::event::{PollFd, PollFlags};

use super::applying::{Removed, Series};
use super::files::{ANALYSIS_AT_ONCE, FileKey};
use super::leaving::{Orphans, leftovers};
use super::life::{
    Announcer, Asked, Candidate, EXEC_WITHIN, Execution, ExecutionOutcome, InCall, InheritedState, RecentEnds, Takes,
    Turns, Work, YoungForks,
};
use super::memory::{EventFd, Garbage, Pending, TextRange, Untended, free_cpu_slots};
use super::process::{RetryDelay, Sharers};
use super::refusal::refusal_of;
use super::reports::{ReportTo, Terminal};
use super::target::{DETACH_WITHIN, Link, STOP_WITHIN, Target};
use super::{AttachmentId, Following, LinkSpec, MapSlot, NotTraced, Refusal, Shared, TargetStatus, life, process};
use ring3_names::elf::PlacedSymbol;

/// A tool that ends closes its links one by one. Each change of a target stops it: links that are closed this soon after one another are
/// taken away together.
const MORE_LINKS_WITHIN: Duration = Duration::from_millis(5);
/// Everybody else waits no longer for that than this, however many come.
const MORE_LINKS_AT_MOST: Duration = Duration::from_millis(50);
/// A command is answered within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// What takes longer in a target is charged to it.
pub(super) const LONG: Duration = Duration::from_millis(200);
/// A process that has just been started may execute a program while it is made a target. Then that is tried again, at most this
/// often.
const NEW_PROGRAMS_MAX: u32 = 8;
/// How often it is looked whether somebody else has written over our jumps.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whose the targets are: system calls change that.
const JUDGE_EVERY: Duration = Duration::from_millis(900);
/// How often unfinished cleaning is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// Large files of a process are analysed before something is done in it, if that takes no longer than this.
const ANALYSED_WITHIN: Duration = Duration::from_secs(25);
/// What a process held as an earlier target is released before it is one again, if that takes no longer than this.
const TENDED_WITHIN: Duration = Duration::from_secs(2);
/// A process that is being detached is waited for so long while everybody else waits.
const DETACH_AT_ONCE: Duration = Duration::from_millis(20);

/// Lets a thread go on that waits in a system call.
pub type Ready = Box<dyn FnOnce() + Send>;

/// What the tracer can be asked.
pub(super) enum Command {
    /// Links of the same process, or of any, and processes that may have to become targets for them.
    Attach(Vec<LinkSpec>, BTreeSet<u32>, Sender<Result<Vec<AttachmentId>, Refusal>>),
    Detach(AttachmentId),
    AddTarget(u32, Asked, Option<u32>, Sender<Result<TargetStatus, Refusal>>),
    AddTargetAtExec(u32, Following, Ready, Sender<Result<TargetStatus, Refusal>>),
    RemoveTarget(u32, bool, Sender<Result<Vec<String>, Refusal>>),
    /// Processes that links may want.
    Take(BTreeSet<u32>),
    TakeOne(Candidate),
    /// A thread, by process and id, is in its `execve` and goes on when it is told that it may.
    FollowInCall(u32, u32, Ready),
    /// A process has waited for that for too long, and runs its program.
    RanOn(u32),
    MapCompanions(Sender<()>),
    ThreadSerial(u32, u32, Sender<Option<u32>>),
    DropMap(MapSlot),
    DropText(TextRange),
    /// Somebody wants runs of programs counted, or does not any more.
    CountRuns(Option<Sender<()>>),
    Requests,
    /// Large files are wanted.
    AnalyseFiles,
    /// With what is mapped there.
    AtNewProgram(u32, u64, Arc<[inject::Mapping]>, Sender<Work>),
    /// With what the thread still waits for, if it was not let go.
    ExecutionEnded(u32, u64, ExecutionOutcome, Option<Ready>),
    Snapshot(Sender<(Vec<TargetStatus>, Vec<NotTraced>)>),
    Symbols(u32, Sender<Option<Vec<PlacedSymbol>>>),
    Count(Sender<usize>),
    ShutDown(Sender<()>),
}

impl Command {
    /// The process that has to be stopped for it.
    fn needs(&self) -> Option<u32> {
        match self {
            Command::Attach(specs, ..) => specs.first()?.pid,
            Command::AddTarget(pid, ..) => Some(*pid),
            Command::TakeOne(candidate) => Some(candidate.pid),
            _ => None,
        }
    }

    /// The process that it makes a target, or that is to be none.
    pub(super) fn is_about(&self) -> Option<u32> {
        match self {
            Command::AddTargetAtExec(pid, ..) | Command::RemoveTarget(pid, ..) => Some(*pid),
            command => command.needs(),
        }
    }

    /// The process whose files are looked at first.
    fn looks_at(&self) -> Option<u32> {
        match self {
            Command::AtNewProgram(pid, ..) => Some(*pid),
            Command::AddTarget(_, Asked::BeforeProgram, ..) => None,
            command => command.needs(),
        }
    }
}

/// Sends commands and wakes the tracer.
#[derive(Clone, Debug)]
pub(super) struct CommandSender {
    queue: Sender<Command>,
    pub(super) wake: Arc<EventFd>,
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
        let sender = CommandSender { queue, wake };
        let for_others = sender.clone();
        std::thread::Builder::new().name("ring3-tracer".into()).spawn(move || {
            Actor {
                shared,
                commands,
                sender: for_others,
                targets: BTreeMap::new(),
                links: BTreeMap::new(),
                next_attachment: 1,
                pending: vec![],
                has_orphans: false,
                orphans_sought: Instant::now(),
                forks_only: vec![],
                young_forks: YoungForks::default(),
                executions: BTreeMap::new(),
                executions_begun: 0,
                ends: RecentEnds::default(),
                waiting_in_call: Turns::default(),
                rung: false,
                requests_wait: false,
                deferred: vec![],
                unanalysed: BTreeMap::new(),
                detach_requests: vec![],
                behind: BTreeMap::new(),
                untended: BTreeMap::new(),
                takes: Takes::default(),
                orphans: Orphans::default(),
                watched: Instant::now(),
                judged: Instant::now(),
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

/// Somebody waits for a target to be detached.
struct DetachRequest {
    pid: u32,
    /// Where ring3's memory was in it, if it is to be looked at afterwards.
    ours: Option<Vec<Range<u64>>>,
    until: Instant,
    reply: Sender<Result<Vec<String>, Refusal>>,
}

/// Why a target is not detached.
struct DetachFailure {
    refusal: Refusal,
    /// It will most often have within seconds.
    is_soon: bool,
}

impl DetachRequest {
    fn end(self, left: Result<(), DetachFailure>) {
        let DetachRequest { pid, ours, reply, .. } = self;
        if left.is_ok() {
            tracing::info!(pid, "target removed");
        }
        let left = left.map_err(|not| not.refusal);
        let found = left.and_then(|()| ours.map_or(Ok(vec![]), |ours| leftovers(pid, &ours).map_err(refusal_of)));
        let _ = reply.send(found);
    }
}

/// The acting thread.
pub(super) struct Actor {
    pub(super) shared: Arc<Shared>,
    commands: Receiver<Command>,
    /// For those who do something for this thread.
    pub(super) sender: CommandSender,
    pub(super) targets: BTreeMap<u32, Target>,
    pub(super) links: BTreeMap<AttachmentId, Link>,
    pub(super) next_attachment: u64,
    /// What to free, and the processes that may still use it.
    pub(super) pending: Vec<Pending>,
    /// There are forks that could not be adopted yet.
    pub(super) has_orphans: bool,
    /// When all of them were looked for last.
    pub(super) orphans_sought: Instant,
    /// Targets that are gone, or have other tables now, while forks run with theirs.
    pub(super) forks_only: Vec<Target>,
    /// Forks that may execute a program before they are adopted.
    pub(super) young_forks: YoungForks,
    /// By process id: executions that are followed. Such a process is stopped by nobody else.
    pub(super) executions: BTreeMap<u32, Execution>,
    pub(super) executions_begun: u64,
    pub(super) ends: RecentEnds,
    /// Threads in their `execve` for which there is no room among these.
    pub(super) waiting_in_call: Turns<InCall>,
    /// Agents may have asked for something.
    pub(super) rung: bool,
    /// Requests wait for their time.
    pub(super) requests_wait: bool,
    /// What is for a process that cannot be stopped at present, or is being detached, and until when it may wait.
    pub(super) deferred: Vec<(Instant, Command)>,
    /// Large files of processes that are being analysed.
    pub(super) unanalysed: BTreeMap<u32, Vec<FileKey>>,
    /// Targets that users want to be none any more.
    detach_requests: Vec<DetachRequest>,
    /// Targets in which something should have changed and could not, and when it is tried again.
    pub(super) behind: BTreeMap<u32, RetryDelay>,
    /// Processes that were targets, and have ended or executed a program: dropped when what they held is released.
    pub(super) untended: BTreeMap<u32, Weak<Untended>>,
    /// Processes that links want.
    pub(super) takes: Takes,
    /// What other servers left.
    pub(super) orphans: Orphans,
    /// When it was looked last whether jumps are as they were written.
    watched: Instant,
    /// When it was looked at last whose the targets are.
    judged: Instant,
}

impl Actor {
    fn run(mut self) {
        crate::raw_process::take_short_slices();
        self.orphans = Orphans::find(self.shared.directory);
        self.clean_orphans();
        loop {
            let watching = (!self.targets.is_empty()).then_some(WATCH_EVERY.min(JUDGE_EVERY));
            let timeout = match self.rung || !self.takes.is_empty() {
                true => Some(Duration::ZERO),
                false => self.has_unfinished().then_some(RETRY_EVERY).or(watching),
            };
            let exited = self.wait(timeout);
            for pid in exited {
                self.forget_exited(pid);
            }
            self.sender.wake.clear();
            let (mut removed, until) = (Removed::default(), Instant::now() + MORE_LINKS_AT_MOST);
            while let Some(command) = self.next_command((!removed.links.is_empty()).then_some(until)) {
                let Err(command) = removed.take(command) else { continue };
                self.remove(std::mem::take(&mut removed));
                if let Command::ShutDown(reply) = command {
                    self.shut_down();
                    let _ = reply.send(());
                    return;
                }
                self.handle(command);
            }
            self.remove(removed);
            self.handle_deferred();
            self.take_candidates();
            self.tell_who_sees_nothing();
            self.follow_those_who_wait();
            self.rung |= self.requests_wait;
            self.serve_requests();
            self.adopt_grown_forks();
            self.collect_garbage();
            self.finish_detach();
            self.end_departures();
            self.watch();
            self.catch_up();
            self.clean_orphans();
            if self.has_orphans && self.orphans_sought.elapsed() >= RETRY_EVERY {
                self.adopt_all_children();
            }
            if self.judged.elapsed() >= JUDGE_EVERY {
                self.judge_all();
                self.let_unwanted_go();
                self.end_call_series();
            }
        }
    }

    /// The next command, if there is one, or if one comes soon and before this moment.
    fn next_command(&self, until: Option<Instant>) -> Option<Command> {
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        self.commands.recv_timeout(left.min(MORE_LINKS_WITHIN)).ok()
    }

    /// Looks whose the targets are. Those that are another user's now get that one's memory.
    fn judge_all(&mut self) {
        self.judged = Instant::now();
        let (shared, mut changed, mut gone) = (self.shared.clone(), vec![], vec![]);
        for target in self.targets.values_mut().filter(|target| !target.is_detaching()) {
            match target.judge(&shared) {
                Ok(()) if target.changes_domain() => changed.push(target.pid),
                // It must not keep what it has.
                Err(refusal) if refusal.errno == Errno::EUSERS => gone.push((target.pid, refusal.message)),
                _ => {}
            }
        }
        for (pid, why) in gone {
            self.detach_with_reason(pid, &why);
        }
        for pid in changed {
            self.apply_or_log(pid);
        }
    }

    /// Sleeps until a command arrives, a target exits or `timeout` passes; the pids that exited.
    fn wait(&self, timeout: Option<Duration>) -> Vec<u32> {
        let pids: Vec<u32> = self.targets.keys().copied().collect();
        self.shared.has_targets.store(!pids.is_empty(), Release);
        let mut fds = vec![PollFd::from_borrowed_fd(self.sender.wake.0.as_fd(), PollFlags::IN)];
        fds.extend(self.targets.values().map(|t| PollFd::from_borrowed_fd(t.pidfd(), PollFlags::IN)));
        let timeout = timeout
            .map(|t| rustix::event::Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return vec![];
        }
        fds[1..].iter().zip(pids).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, pid)| pid).collect()
    }

    fn has_unfinished(&self) -> bool {
        self.has_orphans
            || !self.orphans.is_empty()
            || self.requests_wait
            || self.takes.has_to_tell()
            || !self.young_forks.is_empty()
            || !self.deferred.is_empty()
            || !self.detach_requests.is_empty()
            || !self.behind.is_empty()
            || !self.pending.is_empty()
            || self.targets.values().any(Target::is_detaching)
    }

    /// Does what had to wait, if it need not any more, or has waited for too long.
    fn handle_deferred(&mut self) {
        let now = Instant::now();
        for (until, command) in std::mem::take(&mut self.deferred) {
            match self.is_for_later(&command).is_some() && now < until {
                true => self.deferred.push((until, command)),
                false => self.handle_command(command),
            }
        }
    }

    pub(super) fn handle(&mut self, command: Command) {
        let is_new = |pid: &u32| matches!(command, Command::AtNewProgram(..)) || !self.targets.contains_key(pid);
        if let Some(pid) = command.looks_at().filter(is_new) {
            match &command {
                Command::AtNewProgram(_, _, mappings, _) => self.look_for_large_files(pid, mappings),
                _ => self.look_for_large_files(pid, &inject::mappings(inject::Pid(pid)).unwrap_or_default()),
            }
        }
        self.take_up_orphan(&command);
        match self.is_for_later(&command) {
            Some(within) => {
                // (Whoever makes a link waits until files are analysed, but not for one of many processes that cannot be stopped.)
                let command = match command {
                    Command::TakeOne(candidate) if !self.awaits_files(candidate.pid) => {
                        Command::TakeOne(candidate.unawaited())
                    }
                    command => command,
                };
                self.deferred.push((Instant::now() + within, command));
            }
            None => self.handle_command(command),
        }
    }

    /// Whether a command has to wait, and for how long at most.
    fn is_for_later(&mut self, command: &Command) -> Option<Duration> {
        if command.looks_at().is_some_and(|pid| self.awaits_files(pid)) {
            return Some(ANALYSED_WITHIN);
        }
        if command.looks_at().is_some_and(|pid| self.is_untended(pid)) {
            return Some(TENDED_WITHIN);
        }
        let must_wait = command.needs().is_some_and(|pid| self.must_wait_for(pid))
            || command.is_about().is_some_and(|pid| self.is_unclean(pid));
        must_wait.then_some(DETACH_WITHIN)
    }

    pub(super) fn handle_command(&mut self, command: Command) {
        match command {
            Command::Attach(specs, found, reply) => match self.attach(specs) {
                Err(refusal) => drop(reply.send(Err(refusal))),
                Ok(ids) => self.take_for(ids, found, reply),
            },
            Command::Take(pids) => self.takes.add(pids),
            Command::FollowInCall(pid, tid, ready) => self.follow_in_call(pid, tid, ready),
            Command::RanOn(pid) => self.note_ran_on(pid),
            Command::TakeOne(candidate) => self.take(&candidate),
            Command::AddTarget(pid, asked, of_family, reply) => {
                let added = self.add_target_of(pid, asked, of_family, ReportTo::Requester);
                let status = added.map(|()| self.status_of(pid));
                let _ = reply.send(status);
            }
            Command::AddTargetAtExec(pid, following, ready, reply) => {
                let forebears = BTreeSet::new();
                let kept = InheritedState { explicit: true, following, terminal: Terminal::of(pid), forebears };
                self.cancel_execution(pid);
                self.show_execution(pid);
                self.follow((pid, pid), kept, Announcer::User(reply), ready);
            }
            Command::AtNewProgram(pid, number, _, give) => self.at_new_program(pid, number, give),
            Command::ExecutionEnded(pid, number, ended, held) => self.end_execution(pid, number, ended, held),
            Command::RemoveTarget(pid, verify, reply) => self.remove_target(pid, verify, reply),
            Command::MapCompanions(reply) => {
                self.apply_everywhere();
                let _ = reply.send(());
            }
            Command::ThreadSerial(pid, tid, reply) => {
                let _ = reply.send(self.targets.get(&pid).and_then(|target| target.serial(tid)));
            }
            Command::DropMap(slot) => self.drop_map(slot),
            Command::DropText(range) => {
                let users = self.all_tables().map(|target| target.pid).collect();
                self.add_garbage(Garbage::Text(range), users);
            }
            Command::CountRuns(reply) => {
                self.count_runs();
                if let Some(reply) = reply {
                    let _ = reply.send(());
                }
            }
            Command::AnalyseFiles => self.analyse_files(),
            Command::Requests => {
                self.shared.rung.store(false, Release);
                self.rung = true;
            }
            Command::Snapshot(reply) => {
                self.forget_vanished();
                self.adopt_all_children();
                let targets = self.targets.values().map(|t| t.status(&self.links)).collect();
                let _ = reply.send((targets, self.not_traced()));
            }
            Command::Symbols(pid, reply) => {
                let _ = reply.send(self.targets.get(&pid).map(|target| target.named(&self.shared)));
            }
            Command::Count(reply) => drop(reply.send(self.targets.len())),
            Command::Detach(_) | Command::ShutDown(_) => unreachable!("handled by run"),
        }
    }

    pub(super) fn status_of(&self, pid: u32) -> TargetStatus {
        self.targets[&pid].status(&self.links)
    }

    // ---- targets ----

    /// Stops a process and enters it, with what holds for the program that it runs now. The flag: not all of its files were looked at.
    fn enter(
        &mut self,
        pid: u32,
        asked: Asked,
        of_family: Option<u32>,
    ) -> Result<Result<(Target, bool), Refusal>, inject::Error> {
        let mut prepared = process::patiently(|| Target::prepare(&self.shared, pid, asked.is_explicit()))?;
        prepared.set_following(asked.following());
        prepared.before_program = asked == Asked::BeforeProgram;
        prepared.forebears.extend(of_family);
        prepared.terminal = of_family.and_then(Terminal::of);
        self.shared.modules().begin_turn(ANALYSIS_AT_ONCE);
        let mut patch_plan = prepared.look(&self.shared, &mut self.links);
        prepared.series = Some(Series::default());
        let sharers = Sharers::of(pid);
        let entered = process::patiently(|| {
            inject::while_stopped(inject::Pid(pid), STOP_WITHIN, |stopped| {
                sharers.check()?;
                // (What it has executed meanwhile is looked at anew.)
                let is_same = prepared.runs_what_was_seen(stopped);
                Ok(is_same.then(|| prepared.enter(&self.shared, &mut self.links, stopped, patch_plan.take())))
            })??
            .ok_or(inject::Error::Executed { pid })
        });
        let is_cut_short = self.shared.modules().end_turn();
        Ok(entered?.map(|()| (prepared, is_cut_short)))
    }

    /// Makes a process a target with all links that hold for it.
    pub(super) fn add_target(&mut self, pid: u32, asked: Asked, report_to: ReportTo) -> Result<(), Refusal> {
        self.add_target_of(pid, asked, None, report_to)
    }

    /// As [`Actor::add_target`], of a process that belongs to the family of another one, too.
    fn add_target_of(
        &mut self,
        pid: u32,
        asked: Asked,
        of_family: Option<u32>,
        report_to: ReportTo,
    ) -> Result<(), Refusal> {
        self.forget_vanished();
        if let Some(target) = self.targets.get_mut(&pid) {
            if !target.is_detaching() {
                target.explicit |= asked.is_explicit();
                if asked != Asked::Links && (asked.is_explicit() || target.following == Following::Wanted) {
                    target.set_following(asked.following());
                }
                let is_new = of_family.is_some_and(|family| target.forebears.insert(family));
                return if is_new { self.apply(pid, report_to) } else { Ok(()) };
            }
            self.detach_within(pid, DETACH_AT_ONCE).map_err(|not| not.refusal)?;
        }
        if let Some(server) = process::other_server(pid) {
            let how = server.how_to_detach(pid);
            let what = format!("process {pid} is a target of another ring3 server ({server}); {how}");
            return Err(Refusal::new(Errno::EBUSY, what));
        }
        let started = Instant::now();
        let mut programs_left = NEW_PROGRAMS_MAX;
        loop {
            let is_last = programs_left == 0;
            programs_left = programs_left.saturating_sub(1);
            let (prepared, is_cut_short) = match self.enter(pid, asked, of_family) {
                Err(inject::Error::Executed { .. }) if !is_last => continue,
                entered => entered.map_err(refusal_of)??,
            };
            let added = self.finish_adding(prepared, started, report_to, is_cut_short);
            // (Between two stops, too, it may execute a program.)
            if added.is_ok() || is_last || self.targets.get(&pid).is_some_and(Target::is_present) {
                return added;
            }
            self.forget_vanished();
        }
    }

    /// The process is one of the targets, and goes on. What has not been done in it yet is done now, or later.
    ///
    /// # Errors
    /// It is a target, but not all could be done, and is tried again.
    pub(super) fn finish_adding(
        &mut self,
        mut target: Target,
        started: Instant,
        report_to: ReportTo,
        is_cut_short: bool,
    ) -> Result<(), Refusal> {
        let pid = target.pid;
        target.inject_us = started.elapsed().as_micros() as u64;
        target.tell_perf(&self.shared);
        tracing::info!(pid, comm = target.comm, "target added");
        let goes_on = target.goes_on_placing();
        if !goes_on {
            target.series = None;
        }
        target.count_runs(self.shared.domains.runs.are_counted());
        self.targets.insert(pid, target);
        self.orphans.forget(pid);
        let applied = if goes_on || self.is_refused_for_now(pid) {
            self.apply(pid, report_to)
        } else {
            self.settle(pid, report_to, false);
            Ok(())
        };
        if is_cut_short {
            self.try_again(pid);
        }
        applied.map_err(|Refusal { errno, message }| {
            Refusal::new(
                errno,
                format!("it is a target now, but not all probes are in place: {message}; it is tried again"),
            )
        })
    }

    fn remove_target(&mut self, pid: u32, verify: bool, reply: Sender<Result<Vec<String>, Refusal>>) {
        self.cancel_execution(pid);
        self.forget_vanished();
        if !self.targets.contains_key(&pid) {
            // (It may be a fork that has not been adopted.)
            self.adopt_all_children();
        }
        self.adopt_children_of(pid);
        let Some(target) = self.targets.get_mut(&pid) else {
            let _ = reply.send(self.detached_orphan(pid));
            return;
        };
        let ours = verify.then(|| target.own_ranges());
        let target = &self.targets[&pid];
        if target.is_of_strace() {
            self.shared.note_let_go(pid, &target.comm, "`ring3 detach` asks for that");
        } else {
            self.say_to_tools(target, "is let go, because `ring3 detach` asks for that: this tool sees it no more");
        }
        let detach_request = DetachRequest { pid, ours, until: Instant::now() + DETACH_WITHIN, reply };
        self.begin_detach(pid);
        match self.detach_within(pid, DETACH_AT_ONCE) {
            Err(DetachFailure { is_soon: true, .. }) => self.detach_requests.push(detach_request),
            left => detach_request.end(left),
        }
    }

    /// Answers those who wait for a target to be detached: that it is, or that it takes too long.
    fn end_departures(&mut self) {
        for detach_request in std::mem::take(&mut self.detach_requests) {
            match self.targets.contains_key(&detach_request.pid) {
                true if Instant::now() < detach_request.until => self.detach_requests.push(detach_request),
                true => {
                    let left = self.detach_within(detach_request.pid, Duration::ZERO);
                    detach_request.end(left);
                }
                false => detach_request.end(Ok(())),
            }
        }
    }

    /// Waits until a target that is being detached is free of everything, for so long that others may wait. If that
    /// fails it stays among the targets, and [`Actor::finish_detach`] goes on.
    fn detach_within(&mut self, pid: u32, within: Duration) -> Result<(), DetachFailure> {
        let Some(target) = self.targets.get_mut(&pid) else { return Ok(()) };
        match target.detach(within) {
            Ok(true) => {
                self.drop_target(pid);
                Ok(())
            }
            Ok(false) => {
                let what = "all probes are removed, but a thread is still inside ring3's code; its memory is \
                            released when the thread leaves";
                let refusal = Refusal::new(Errno::EBUSY, format!("process {pid}: {what}"));
                Err(DetachFailure { refusal, is_soon: true })
            }
            Err(error) => {
                let is_soon = matches!(error, inject::Error::ThreadDoesNotStop { .. });
                let passes = is_soon || matches!(error, inject::Error::AlreadyTraced { .. });
                let Refusal { errno, message } = refusal_of(error);
                let more = if passes {
                    "; no program runs there any more, and it is detached once it can be stopped"
                } else {
                    ""
                };
                Err(DetachFailure { refusal: Refusal { errno, message: message + more }, is_soon })
            }
        }
    }

    /// Removes a target that is detached or has ended. Forks of it that have not been adopted are not forgotten.
    fn drop_target(&mut self, pid: u32) {
        let Some(mut target) = self.targets.remove(&pid) else { return };
        // (One that was made while all processes were looked at is found later.)
        if target.may_have_forks() {
            target.retire();
            self.has_orphans = true;
            self.forks_only.push(target);
        }
    }

    /// A target exited (its pidfd says so): its unadopted children are adopted, the rest is dropped.
    fn forget_exited(&mut self, pid: u32) {
        self.adopt_children_of(pid);
        self.show_end(pid);
        let known_as = self.targets.get(&pid).map(|target| (target.nonce, target.own_pid));
        if let Some(target) = self.targets.get(&pid) {
            tracing::info!(pid, comm = target.comm, "target exited");
            let death = target.death();
            let block = target.domain.block().file.realm();
            free_cpu_slots(block, &self.shared.namespaces, death.owner);
            self.tell_death(pid, death);
        }
        // (Forks may have forked meanwhile, and gone before they were looked at: they are looked for again.)
        self.drop_target(pid);
        // (What forks ask, that run with its tables or have done so, is still something.)
        if let Some(known_as) = known_as {
            self.free_requests_of_nobody(known_as);
        }
        for link in self.links.values_mut() {
            link.refused.remove(&pid);
        }
    }

    /// Drops targets that exec'ed another program: nothing of ours is in the new image.
    pub(super) fn forget_vanished(&mut self) {
        let gone: Vec<u32> = self.targets.values().filter(|t| !t.is_present()).map(|t| t.pid).collect();
        for pid in gone {
            tracing::info!(pid, "no longer a target: it ended, or executed another program");
            self.forget_exited(pid);
        }
    }

    pub(super) fn finish_detach(&mut self) {
        let executions = &self.executions;
        let may_stop = |(pid, target): &(&u32, &mut Target)| target.is_detaching() && !executions.contains_key(pid);
        let detaching = self.targets.iter_mut().filter(may_stop);
        let left: Vec<u32> = detaching.filter_map(|(pid, target)| target.try_detach().then_some(*pid)).collect();
        for pid in left {
            self.drop_target(pid);
        }
    }

    /// Whatever processes run with.
    pub(super) fn all_tables(&self) -> impl Iterator<Item = &Target> {
        self.targets.values().chain(&self.forks_only)
    }

    /// Nonces of all tables: forks that have not been adopted have those of what their creator was before.
    pub(super) fn known_nonces(&self) -> Vec<u64> {
        self.all_tables().map(|tables| tables.nonce).collect()
    }

    /// Takes back what is left of jumps over which somebody else has written, a kernel's uprobe say: its removal would leave half of
    /// the original bytes there, and half of ours.
    fn watch(&mut self) {
        if self.watched.elapsed() < WATCH_EVERY {
            return;
        }
        self.watched = Instant::now();
        for (pid, target) in &mut self.targets {
            if target.find_disturbed() {
                tracing::warn!(pid, "somebody else has written over probes: a kernel's uprobe, perhaps");
                self.behind.entry(*pid).or_insert_with(RetryDelay::new);
            }
        }
    }

    /// As [`life::is_held`].
    pub(super) fn is_held(&self, pid: u32) -> bool {
        life::is_held(&self.executions, pid)
    }

    /// Whether a command for a process is for later: it cannot be stopped, or is being detached.
    fn must_wait_for(&self, pid: u32) -> bool {
        self.targets.get(&pid).is_some_and(Target::is_detaching) || self.is_held(pid)
    }

    /// Applies all links in all targets. A failure in one target, which may just have ended, is no failure of the request.
    fn apply_everywhere(&mut self) {
        self.forget_vanished();
        self.adopt_all_children();
        for pid in self.targets.keys().copied().collect::<Vec<_>>() {
            self.apply_or_log(pid);
        }
    }

    fn shut_down(&mut self) {
        inject::tell_end();
        self.cancel_executions();
        self.adopt_all_children();
        for pid in self.targets.keys().copied().collect::<Vec<_>>() {
            self.begin_detach(pid);
        }
        let deadline = Instant::now() + DETACH_WITHIN;
        for pid in self.targets.keys().copied().collect::<Vec<_>>() {
            let within = deadline.saturating_duration_since(Instant::now());
            if let Err(DetachFailure { refusal, .. }) = self.detach_within(pid, within) {
                tracing::warn!(pid, "{refusal}; the next server cleans up");
            }
        }
    }
}
