//! Executions that were announced. A thread of its own follows each, so nobody waits for a process that does not do what it said.
//!
//! That thread is the tracer of the one that announced. At the first instruction of the new program it asks the acting thread
//! what to do there ([`Command::AtNewProgram`]), and does it while that waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_uapi::Errno;

use super::turns::OfUser;
use super::{Asked, privileges};
use crate::realm::files::{self, ANALYSIS_AT_ONCE};
use crate::realm::meant::{holds, is_of_family};
use crate::realm::refusal::refusal_of;
use crate::realm::reports::{ReportTo, Terminal};
use crate::realm::target::{Link, Target};
use crate::realm::tracer::{Actor, Command, CommandSender, Ready};
use crate::realm::{AttachmentId, Following, LinkSpec, Refusal, Shared, TargetStatus, process};
use crate::rights::Subject;

/// A process that announced an `execve` must call it within this time.
const CALL_WITHIN: Duration = Duration::from_secs(2);
/// An `execve` must end within this time.
pub(in crate::realm) const EXEC_WITHIN: Duration = Duration::from_secs(10);
/// Executions that are followed at a time, of all processes and of those with the same tables.
const EXECUTIONS_MAX: usize = 256;
const EXECUTIONS_OF_ONE_MAX: usize = 32;
/// Those of one user of which the kernel tells, at a time: others have room in any case.
const EXECUTIONS_OF_USER_MAX: usize = EXECUTIONS_MAX / 2;
/// A process that has announced so many programs and executed none of them is let go.
const LIES_MAX: u32 = 8;
/// Whether it is cancelled is asked this often by an execution that waits for the acting thread.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// What a process keeps of the target that it was when it executes a program.
#[derive(Clone, Debug)]
pub(in crate::realm) struct InheritedState {
    /// The user asked for it.
    pub(in crate::realm) explicit: bool,
    pub(in crate::realm) following: Following,
    pub(in crate::realm) terminal: Option<Terminal>,
    /// See [`Target::forebears`]; with the target itself.
    pub(in crate::realm) forebears: BTreeSet<u32>,
}

/// Whose execution is followed, and for whom.
#[derive(Debug)]
pub(in crate::realm) enum Announcer {
    /// `ring3 start`, which waits for the answer.
    User(Sender<Result<TargetStatus, Refusal>>),
    /// A process that runs with the tables of this nonce.
    Family(u64),
    /// The kernel: the thread is in its `execve` and waits there.
    Kernel,
}

/// What is done to a process at the first instruction of its new program.
pub(in crate::realm) type Work = Box<dyn FnOnce(&mut inject::Stopped) + Send>;

/// Of one execution.
pub(in crate::realm) type ExecutionOutcome = Result<inject::Announced<()>, inject::Error>;

/// Whether a process cannot be stopped at present: a thread waits for its `vfork` child, say, which in turn may wait for an
/// answer; or an execution is followed.
pub(in crate::realm) fn is_held(executions: &BTreeMap<u32, Execution>, pid: u32) -> bool {
    executions.contains_key(&pid) || process::is_held(pid)
}

/// A thread in its `execve` for which there was no room yet.
pub(in crate::realm) struct InCall {
    pid: u32,
    tid: u32,
    user: u32,
    ready: Ready,
}

impl OfUser for InCall {
    fn user(&self) -> u32 {
        self.user
    }
}

/// An execution that is followed.
pub(in crate::realm) struct Execution {
    /// Distinguishes it from earlier ones of the process.
    number: u64,
    /// The thread that announced it.
    tid: u32,
    /// Whose it was then.
    user: u32,
    kept: InheritedState,
    announcer: Announcer,
    gains: Arc<AtomicBool>,
    cancelled: Arc<AtomicBool>,
    /// Ends with its own thread id.
    thread: JoinHandle<u32>,
}

impl Execution {
    /// The thread has let the process go. It needs milliseconds.
    fn join(self) -> (InheritedState, Announcer, bool) {
        let tid = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        inject::await_release(tid);
        (self.kept, self.announcer, self.gains.load(Relaxed))
    }

    /// Whether it was begun by `ring3 start`, which this thread runs.
    pub(in crate::realm) fn is_of_user(&self, tid: u32) -> bool {
        self.tid == tid && matches!(self.announcer, Announcer::User(_))
    }
}

impl Actor {
    /// Whether one more execution of a process that runs with the tables of `nonce` can be followed now.
    pub(in crate::realm) fn may_follow(&self, nonce: u64) -> bool {
        let is_of_it = |execution: &&Execution| matches!(execution.announcer, Announcer::Family(of) if of == nonce);
        self.executions.len() < EXECUTIONS_MAX
            && self.executions.values().filter(is_of_it).count() < EXECUTIONS_OF_ONE_MAX
    }

    /// A thread of a process is about to execute a program, which is to be a target with what is `kept`. `ready` lets the thread
    /// go ahead.
    pub(in crate::realm) fn follow(
        &mut self,
        (pid, tid): (u32, u32),
        kept: InheritedState,
        announcer: Announcer,
        ready: Ready,
    ) {
        self.executions_begun += 1;
        let (gains, cancelled) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        // (`ring3 start` has something to print before.)
        let call_within = if matches!(announcer, Announcer::User(_)) { EXEC_WITHIN } else { CALL_WITHIN };
        let thread = Thread {
            call_within,
            in_call: matches!(announcer, Announcer::Kernel),
            pid,
            tid,
            number: self.executions_begun,
            sender: self.sender.clone(),
            gains: gains.clone(),
            cancelled: cancelled.clone(),
        };
        let builder = std::thread::Builder::new().name("ring3-exec".into());
        match builder.spawn(move || thread.run(ready)) {
            Ok(thread) => {
                let number = self.executions_begun;
                let user = process::user_of(pid);
                let execution = Execution { number, tid, user, kept, announcer, gains, cancelled, thread };
                self.executions.insert(pid, execution);
            }
            Err(error) => {
                let error = inject::Error::io("a thread to follow an execution", error);
                self.report_not_followed(pid, kept, announcer, refusal_of(error));
            }
        }
    }

    /// `ring3 start` is about to execute a program. If a link wants to see that call, the process is a target before.
    pub(in crate::realm) fn show_execution(&mut self, pid: u32) {
        let Ok(subject) = Subject::of(pid) else { return };
        let (whose, family) = ((pid, subject), BTreeSet::from([pid]));
        let sees =
            |spec: &LinkSpec| spec.point.sees_executions() && holds(spec, &whose) && is_of_family(spec, &family);
        // (A static ring3 makes the call itself.)
        if !self.links.values().any(|link| sees(&link.spec)) || !files::maps_c_library(pid) {
            return;
        }
        if let Err(refusal) = self.add_target(pid, Asked::BeforeProgram, ReportTo::Requester) {
            tracing::warn!(pid, "the call that executes its program is not seen: {refusal}");
        }
    }

    /// A thread is in its `execve`, and goes on after `ready`: what it runs then is to be a target if a link wants it.
    pub(in crate::realm) fn follow_in_call(&mut self, pid: u32, tid: u32, ready: Ready) {
        let is_known = self.targets.contains_key(&pid) || self.executions.contains_key(&pid);
        if is_known || self.is_left_alone(pid) {
            return ready();
        }
        let user = process::user_of(pid);
        if !self.has_room_for(user) {
            return self.waiting_in_call.push(InCall { pid, tid, user, ready });
        }
        let kept = InheritedState {
            explicit: false,
            following: Following::Wanted,
            terminal: None,
            forebears: BTreeSet::new(),
        };
        self.follow((pid, tid), kept, Announcer::Kernel, ready);
    }

    /// Whether one more execution of a user can be followed of which the kernel tells.
    fn has_room_for(&self, user: u32) -> bool {
        let is_of_user = |one: &&Execution| one.user == user && matches!(one.announcer, Announcer::Kernel);
        self.executions.len() < EXECUTIONS_MAX
            && self.executions.values().filter(is_of_user).count() < EXECUTIONS_OF_USER_MAX
    }

    /// Executions for which there was no room are followed when there is.
    pub(in crate::realm) fn follow_those_who_wait(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting_in_call);
        while let Some(InCall { pid, tid, ready, .. }) = waiting.next(|one| self.has_room_for(one.user)) {
            self.follow_in_call(pid, tid, ready);
        }
        // (Who has become another user's meanwhile may wait again.)
        waiting.append(&mut self.waiting_in_call);
        self.waiting_in_call = waiting;
    }

    fn take_execution(&mut self, pid: u32, number: u64) -> Option<Execution> {
        self.executions.remove(&pid).filter(|execution| execution.number == number)
    }

    /// The process stands at the first instruction of its new program: `give` the work to the thread that holds it.
    pub(in crate::realm) fn at_new_program(&mut self, pid: u32, number: u64, give: Sender<Work>) {
        if self.executions.get(&pid).is_none_or(|execution| execution.number != number) {
            return;
        }
        self.forget_vanished();
        let Some(execution) = self.take_execution(pid, number) else { return };
        let is_wanted = execution.kept.following != Following::Wanted || self.is_wanted(pid);
        if !is_wanted && !self.may_map_a_wanted_library(pid) {
            let _ = give.send(Box::new(|_| ()));
            execution.join();
            self.rung = true;
            return;
        }
        let (kept, tid) = (execution.kept.clone(), execution.tid);
        let entering = kept.clone();
        let (shared, mut links) = (self.shared.clone(), std::mem::take(&mut self.links));
        let (tell, told) = channel();
        let work = move |stopped: &mut inject::Stopped| {
            let entered = enter(&shared, &mut links, stopped, (entering, tid));
            let _ = tell.send((links, entered));
        };
        // (It gives up only if this thread has said so.)
        self.shared.modules().begin_turn(ANALYSIS_AT_ONCE);
        give.send(Box::new(work)).expect("the thread waits for this");
        let (links, entered) = told.recv().expect("the thread does what it was given");
        let is_cut_short = self.shared.modules().end_turn();
        self.links = links;
        if let (Err(refusal), Announcer::Family(_)) = (&entered, &execution.announcer) {
            // (While it is stopped: it may end in a moment.)
            self.tell_untraced(pid, &kept, refusal);
        }
        let (_, announcer, _) = execution.join();
        self.rung = true;
        match entered {
            Ok((mut target, started)) => {
                target.is_expected = !is_wanted;
                // (What is behind is told with the refused links.)
                if let Err(refusal) = self.finish_adding(target, started, ReportTo::Starter, is_cut_short) {
                    tracing::warn!(pid, "{refusal}");
                }
                if let Announcer::User(reply) = announcer {
                    let _ = reply.send(Ok(self.status_of(pid)));
                }
            }
            Err(_) if matches!(announcer, Announcer::Family(_)) => {}
            Err(refusal) => self.report_not_followed(pid, kept, announcer, refusal),
        }
    }

    /// An execution is not followed any more: nothing was executed, or it must not be followed.
    /// What could not be followed goes on when this has been reported: it may end at once, and then the loader that is told.
    pub(in crate::realm) fn end_execution(
        &mut self,
        pid: u32,
        number: u64,
        ended: ExecutionOutcome,
        held: Option<Ready>,
    ) {
        if self.executions.get(&pid).is_none_or(|execution| execution.number != number) {
            return;
        }
        let Some(execution) = self.take_execution(pid, number) else { return };
        let (kept, announcer, gains) = execution.join();
        self.rung = true;
        match (announcer, ended) {
            (announcer, Err(error)) => self.report_not_followed(pid, kept, announcer, refusal_of(error)),
            (Announcer::Family(nonce), Ok(inject::Announced::NotCalled)) => self.note_lie(nonce),
            (Announcer::Family(_), Ok(_)) => {}
            (Announcer::Kernel, Ok(_)) => self.takes.add([pid].into()),
            (announcer, Ok(_)) => {
                let refusal = match gains {
                    true => Refusal::new(Errno::EPERM, "it has privileges that it would lose; trace it as root"),
                    // Whoever wanted to execute it says why that cannot be.
                    false => Refusal::new(Errno::ESRCH, "it was not executed"),
                };
                self.report_not_followed(pid, kept, announcer, refusal);
            }
        }
        drop(held);
    }

    fn report_not_followed(&mut self, pid: u32, kept: InheritedState, announcer: Announcer, refusal: Refusal) {
        match announcer {
            Announcer::User(reply) => drop(reply.send(Err(refusal))),
            // (A link may want what it runs now all the same.)
            Announcer::Kernel => self.note_not_followed(pid, &refusal),
            Announcer::Family(_) => self.tell_untraced(pid, &kept, &refusal),
        }
    }

    /// A process that runs with these tables has announced an execution, and done something else.
    fn note_lie(&mut self, nonce: u64) {
        let Some(target) = self.targets.values_mut().find(|target| target.nonce == nonce) else { return };
        target.lies += 1;
        if target.lies >= LIES_MAX && !target.is_detaching() {
            let pid = target.pid;
            self.detach_with_reason(pid, &format!("it announced {LIES_MAX} programs that it did not execute"));
        }
    }

    /// The process may be stopped by others from now on; what it executes is no target.
    pub(in crate::realm) fn cancel_execution(&mut self, pid: u32) {
        let Some(execution) = self.executions.remove(&pid) else { return };
        execution.cancelled.store(true, Relaxed);
        let (kept, announcer, _) = execution.join();
        self.rung = true;
        if matches!(announcer, Announcer::User(_)) {
            self.report_not_followed(pid, kept, announcer, Refusal::new(Errno::EINTR, "it was detached meanwhile"));
        }
    }

    /// As [`Actor::cancel_execution`], of all processes.
    pub(in crate::realm) fn cancel_executions(&mut self) {
        self.executions.values().for_each(|execution| execution.cancelled.store(true, Relaxed));
        for pid in self.executions.keys().copied().collect::<Vec<_>>() {
            self.cancel_execution(pid);
        }
    }
}

/// Makes a process a target that has just executed a program, with what is `kept`.
fn enter(
    shared: &Shared,
    links: &mut BTreeMap<AttachmentId, Link>,
    stopped: &mut inject::Stopped,
    (kept, tid): (InheritedState, u32),
) -> Result<(Target, Instant), Refusal> {
    let started = Instant::now();
    let mut target =
        Target::prepare_with(shared, stopped.pid(), kept.explicit, &|| stopped.mappings()).map_err(refusal_of)?;
    target.set_following(kept.following);
    target.terminal = kept.terminal;
    target.forebears = kept.forebears;
    target.executed = true;
    let is_near = target.own_pid == stopped.pid();
    target.executed_by = if is_near && tid != stopped.pid() { tid } else { 0 };
    target.find_rseq(&mut shared.modules(), &stopped.mappings().map_err(refusal_of)?);
    target.enter(shared, links, stopped, None)?;
    Ok((target, started))
}

/// What the thread that follows an execution knows.
struct Thread {
    call_within: Duration,
    in_call: bool,
    pid: u32,
    tid: u32,
    number: u64,
    sender: CommandSender,
    gains: Arc<AtomicBool>,
    cancelled: Arc<AtomicBool>,
}

impl Thread {
    fn run(self, ready: Ready) -> u32 {
        let may_follow = |stopped: &inject::Stopped, registers: &inject::Registers| {
            self.gains.store(privileges::gained(stopped, registers), Relaxed);
            !self.gains.load(Relaxed)
        };
        let following = inject::Following {
            call_within: self.call_within,
            exec_within: EXEC_WITHIN,
            cancelled: &|| self.cancelled.load(Relaxed),
            may_follow: &may_follow,
            in_call: self.in_call,
        };
        let enter = |stopped: &mut inject::Stopped| self.do_what_is_given(stopped);
        let mut held = Some(ready);
        let ready = || held.take().into_iter().for_each(|ready| ready());
        let ended = inject::while_stopped_at_exec(inject::Pid(self.pid), self.tid, &following, ready, enter);
        self.sender.send(Command::ExecutionEnded(self.pid, self.number, ended, held));
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    fn do_what_is_given(&self, stopped: &mut inject::Stopped) {
        let (give, given) = channel::<Work>();
        let mappings = stopped.mappings().unwrap_or_default();
        self.sender.send(Command::AtNewProgram(self.pid, self.number, mappings, give));
        loop {
            match given.recv_timeout(ASK_EVERY) {
                Ok(work) => return work(stopped),
                Err(RecvTimeoutError::Timeout) if !self.cancelled.load(Relaxed) => {}
                Err(_) => return,
            }
        }
    }
}
