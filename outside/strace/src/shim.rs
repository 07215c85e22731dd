//! What strace is told of its tracees, and in which order.
//!
//! There are two sources: real events ([`Tracer`]), and records in the ring buffer. A real event is told after all records that were there when
//! it was seen; records are told in their order. Each tracee has at most one stop that strace has been told of and has not resumed; a record
//! of such a tracee holds up those behind it, which costs little, because strace resumes it next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use crate::companion::Companion;
use crate::process;
use crate::raw_agent_signals::places_of;
use crate::raw_steps::{Places, is_taken_back};
use crate::raw_tracer::{Event, NOBODY, RELEASED, SignalInfo, Tracer};
use crate::record::{Phase, Record};
use crate::ring::Ring;
use crate::status::{INTERRUPT, is_signal};

/// What the kernel lets its own code see of a call that a signal has interrupted (include/linux/errno.h): `ERESTARTSYS`,
/// `ERESTARTNOINTR`, `ERESTARTNOHAND` and `ERESTART_RESTARTBLOCK`.
pub(crate) const RESTARTS: [i64; 4] = [-512, RESTART_NO_INTERRUPT, -514, RESTART_BLOCK];
/// It is made again in any case.
const RESTART_NO_INTERRUPT: i64 = -513;
/// It is made again as `restart_syscall`.
pub(crate) const RESTART_BLOCK: i64 = -516;
/// Signals that a thread raises by what it does. The kernel ends a process that blocks them then.
pub(crate) const RAISED: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// Signals that stop a process.
pub(crate) const STOPPING: [i32; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// Why a process is traced by ptrace alone.
const HAS_OTHER_IDS: &str = "it is in another PID namespace";
/// A stop at a system call of a tracee with `PTRACE_O_TRACESYSGOOD`.
const SYSCALL_STOP: i32 = (libc::SIGTRAP | 0x80) << 8 | 0x7f;

/// What strace has been told of a tracee last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// It runs: strace has resumed it.
    Running,
    /// It is at the start or the end of a system call.
    Call(Phase),
    /// The kernel has stopped it.
    Stopped,
}

/// A call whose end strace was told before a record says it.
#[derive(Clone, Copy, Debug)]
struct KnownEnd {
    number: i64,
    arguments: [u64; 6],
    result: i64,
    /// It is made again, and no record tells that either.
    is_repeated: bool,
    /// Handlers that had begun and not returned then.
    handlers: u32,
    /// No record of its end comes: it only says what the thread was at when a handler interrupted it.
    is_over: bool,
}

/// What became of a record.
enum Step {
    Told(Told),
    Skipped,
    /// As far as strace knows its thread is stopped.
    Blocked,
}

/// A thread that strace traces.
#[derive(Debug)]
struct Tracee {
    pid: i32,
    shown: Shown,
    /// strace wants stops at system calls.
    wants_calls: bool,
    start: Record,
    end: Record,
    /// The call that it is in, as far as strace knows.
    call: Option<i64>,
    known_ends: Vec<KnownEnd>,
    /// The signal that comes next has interrupted the last of them.
    is_interrupted: bool,
    /// The stop that was told is a signal's.
    is_at_signal: bool,
    /// The stop that was told is that of an execution.
    is_at_exec: bool,
    /// It has gone on behind the end of its `execve` before strace could be told of that.
    owes_end_of_exec: bool,
    /// The signal that came last, if its handler may be ring3's, and the thread has made no call since.
    faulted: Option<SignalInfo>,
    /// Handlers that have begun and not returned.
    handlers: u32,
    /// Time in calls, ns.
    in_calls: u64,
    /// Position of the record for which the thread waits.
    held: Option<u64>,
    /// It was interrupted, and is to be resumed by `PTRACE_SYSCALL`: strace is not told of that stop.
    is_converted: bool,
    /// It was so once: `call` is the call in which strace believes it to be.
    is_adjusted: bool,
    /// The kernel has stopped it at a call since.
    is_seen: bool,
    /// Where its process has ring3's code, if that was asked for since it has executed its program.
    places: Option<Places>,
}

impl Tracee {
    fn new(pid: i32) -> Tracee {
        Tracee {
            pid,
            shown: Shown::Running,
            wants_calls: false,
            start: Record::default(),
            end: Record::default(),
            call: None,
            known_ends: vec![],
            is_interrupted: false,
            is_at_signal: false,
            is_at_exec: false,
            owes_end_of_exec: false,
            faulted: None,
            handlers: 0,
            in_calls: 0,
            held: None,
            is_converted: false,
            is_adjusted: false,
            is_seen: false,
            places: None,
        }
    }

    /// Whether it is in the call that ends its process, where natively nothing is delivered any more, though it is still on its way into
    /// the kernel: the process's exit status is as good as known.
    fn ends_whatever_comes(&self, status: i32) -> bool {
        self.call == Some(libc::SYS_exit_group) && !RAISED.contains(&libc::WSTOPSIG(status))
    }

    /// Whether it is in a call that sends SIGKILL to its own thread or process. (The agent knows of no others: `ends_process` in
    /// `raw_syscalls.rs`.)
    fn kills_itself(&self, tid: i32) -> bool {
        let [first, second, third, ..] = self.start.arguments();
        let signal = match self.call {
            Some(libc::SYS_kill | libc::SYS_rt_sigqueueinfo) if first == self.pid as u64 => second,
            Some(libc::SYS_tkill) if first == tid as u64 => second,
            Some(libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo)
                if (first, second) == (self.pid as u64, tid as u64) =>
            {
                third
            }
            _ => return false,
        };
        signal == libc::SIGKILL as u64
    }

    /// Forgets what handlers interrupted that have returned, or were left by a jump.
    fn forget_interrupted(&mut self) {
        self.known_ends.retain(|known| !known.is_over || known.handlers < self.handlers);
    }

    fn told_call(&self, tid: i32) -> Told {
        Told { tid, status: SYSCALL_STOP, usage: None, in_calls: Some(self.in_calls) }
    }

    fn record(&self) -> Option<&Record> {
        match self.shown {
            Shown::Call(Phase::Start) => Some(&self.start),
            Shown::Call(Phase::End) => Some(&self.end),
            _ => None,
        }
    }
}

/// A system call at which strace believes a tracee to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStop {
    Start { number: i64, arguments: [u64; 6] },
    End { result: i64 },
}

/// What `wait4` returns.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) tid: i32,
    pub(crate) status: i32,
    /// None: of a stop that the kernel does not know of.
    pub(crate) usage: Option<libc::rusage>,
    /// Time that the thread has spent in calls (ns), for `ru_stime`: strace takes a call's time from it. None: that of `usage` holds.
    pub(crate) in_calls: Option<u64>,
}

/// A real event that strace has not been told of.
struct Waiting {
    event: Event,
    /// Position behind the records that come before it.
    behind: u64,
}

/// See the module's documentation.
pub(crate) struct Shim {
    pub(crate) tracer: Tracer,
    ring: Ring,
    companion: Companion,
    /// The companion has ended: there are no records any more.
    is_alone: bool,
    /// The server ends.
    is_ending: bool,
    tracees: BTreeMap<i32, Tracee>,
    /// Processes whose system calls the kernel stops: they are no targets.
    native: BTreeSet<i32>,
    waiting: VecDeque<Waiting>,
    /// What [`Tracer::wakeups`] was when real events were fetched last.
    seen: u32,
    /// Positions of records for which threads wait.
    held: BTreeSet<u64>,
    /// Time of the stop that strace was told of last (`CLOCK_MONOTONIC`, ns).
    pub(crate) time: Option<u64>,
}

impl Shim {
    pub(crate) fn new(tracer: Tracer, ring: Ring, companion: Companion) -> Shim {
        Shim {
            tracer,
            ring,
            companion,
            is_alone: false,
            is_ending: false,
            tracees: BTreeMap::new(),
            native: BTreeSet::new(),
            waiting: VecDeque::new(),
            seen: 0,
            held: BTreeSet::new(),
            time: None,
        }
    }

    /// Whether strace traces the thread.
    pub(crate) fn traces(&self, tid: i32) -> bool {
        self.tracees.contains_key(&tid)
    }

    pub(crate) fn has_tracees(&self) -> bool {
        !self.tracees.is_empty() || !self.waiting.is_empty() || self.tracer.has_tracees() || self.has_unseen()
    }

    /// Whether there are real events that were not fetched.
    fn has_unseen(&self) -> bool {
        self.tracer.wakeups().load(Ordering::Acquire) != self.seen
    }

    /// `PTRACE_SEIZE`. The process becomes a target first, while nobody traces it.
    pub(crate) fn seize(&mut self, tid: i32, address: usize, options: usize) -> Result<i64, i32> {
        let pid = process::process_of(tid).unwrap_or(tid);
        let is_known = self.tracees.values().any(|other| other.pid == pid);
        let attached = match is_known {
            true => Ok(()),
            false if process::has_other_ids(pid) => Err(HAS_OTHER_IDS.to_owned()),
            false => self.companion.attach(pid),
        };
        let done = self.tracer.request(libc::PTRACE_SEIZE, tid, address, options)?;
        if let Err(why) = attached {
            self.note_native(pid, &why);
        }
        self.tracees.insert(tid, Tracee::new(pid));
        Ok(done)
    }

    fn note_native(&mut self, pid: i32, why: &str) {
        if self.native.insert(pid) && !self.is_ending {
            eprintln!("ring3: process {pid} is traced by ptrace alone, which is slower: {why}");
        }
    }

    /// As `note_native`, where it is the server that knows why.
    fn note_refused(&mut self, pid: i32, what: &str) {
        if self.native.contains(&pid) || self.is_ending || self.is_alone {
            return self.note_native(pid, what);
        }
        let why = self.companion.why(pid).map_or_else(String::new, |why| format!(": {why}"));
        self.note_native(pid, &format!("{what}{why}"));
    }

    /// `PTRACE_CONT`, `PTRACE_SYSCALL` and their kin.
    pub(crate) fn resume(&mut self, request: libc::c_uint, tid: i32, signal: usize) -> Result<i64, i32> {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return Err(libc::ESRCH) };
        let is_native = self.native.contains(&tracee.pid);
        tracee.wants_calls = request == libc::PTRACE_SYSCALL;
        if let Shown::Call(_) = tracee.shown {
            self.leave_call_stop(tid);
            return Ok(0);
        }
        if tracee.is_at_signal && signal != 0 && process::catches(tracee.pid, signal as i32) {
            tracee.handlers += 1;
        } else if tracee.is_interrupted
            && (!tracee.is_at_signal || signal == 0 || !process::is_ended_by(tracee.pid, signal as i32))
            && let Some(known) = tracee.known_ends.last_mut()
        {
            known.is_repeated = true;
        }
        (tracee.is_at_signal, tracee.is_interrupted) = (false, false);
        // (The server brings a thread that has executed a program to that's first instruction.)
        let is_at_exec = std::mem::take(&mut tracee.is_at_exec) && is_native && tracee.wants_calls;
        tracee.owes_end_of_exec = is_at_exec && !self.tracer.is_in_exec(tid);
        let request = if request == libc::PTRACE_SYSCALL && !is_native { libc::PTRACE_CONT } else { request };
        let done = self.tracer.request(request, tid, 0, signal)?;
        tracee.shown = Shown::Running;
        Ok(done)
    }

    /// `PTRACE_INTERRUPT`.
    pub(crate) fn interrupt(&mut self, tid: i32) -> Result<i64, i32> {
        let tracee = self.tracees.get_mut(&tid).ok_or(libc::ESRCH)?;
        tracee.is_converted = false;
        self.tracer.request(libc::PTRACE_INTERRUPT, tid, 0, 0)
    }

    /// The process that has loaded the programs has ended, and so have they: from now on the kernel stops all tracees at their calls.
    fn convert_all(&mut self) {
        self.is_alone = true;
        eprintln!(
            "ring3: the loader of strace's programs has ended. strace goes on by ptrace, which is slower; the last calls may be missing"
        );
        for (tid, tracee) in &mut self.tracees {
            if self.native.contains(&tracee.pid) {
                continue;
            }
            tracee.known_ends.clear();
            tracee.is_adjusted = self.tracer.request(libc::PTRACE_INTERRUPT, *tid, 0, 0).is_ok();
            (tracee.is_converted, tracee.is_seen) = (tracee.is_adjusted, !tracee.is_adjusted);
        }
        self.native.extend(self.tracees.values().map(|tracee| tracee.pid));
    }

    /// `PTRACE_DETACH`.
    pub(crate) fn detach(&mut self, tid: i32, signal: usize) -> Result<i64, i32> {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return Err(libc::ESRCH) };
        if let Shown::Call(_) = tracee.shown {
            // (The thread is not stopped, in fact. Its tracer interrupts it and detaches then.)
            tracee.wants_calls = false;
            self.leave_call_stop(tid);
            return Err(libc::ESRCH);
        }
        let done = self.tracer.request(libc::PTRACE_DETACH, tid, 0, signal)?;
        self.forget(tid);
        Ok(done)
    }

    /// strace has resumed a tracee that it believes to be at a system call. If the thread waits there, it goes on.
    fn leave_call_stop(&mut self, tid: i32) {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return };
        tracee.shown = Shown::Running;
        if let Some(held) = tracee.held.take() {
            self.held.remove(&held);
            self.release();
        }
    }

    fn forget(&mut self, tid: i32) {
        match self.ring.newly_lost() {
            0 => {}
            lost => eprintln!("ring3: {lost} starts and ends of system calls were lost, and are not shown"),
        }
        let Some(tracee) = self.tracees.remove(&tid) else { return };
        if let Some(held) = tracee.held {
            self.held.remove(&held);
        }
        if !self.tracees.values().any(|other| other.pid == tracee.pid) {
            self.native.remove(&tracee.pid);
        }
    }

    /// The system call at which strace believes a tracee to be stopped, if we have made it believe that.
    pub(crate) fn call_stop(&self, tid: i32) -> Option<CallStop> {
        let tracee = self.tracees.get(&tid)?;
        let record = tracee.record()?;
        Some(match record.phase() {
            Phase::Start => CallStop::Start { number: record.number(), arguments: record.arguments() },
            Phase::End => CallStop::End { result: record.result() },
        })
    }

    /// Copies memory of a tracee as it was at the stop that strace was told of; false: it is as it is now. (strace reads whole pages, and looks
    /// at the part of them that was copied.)
    pub(crate) fn copy_memory(&self, tid: i32, address: u64, into: &mut [u8]) -> bool {
        let record = self.tracees.get(&tid).and_then(|tracee| Some((tracee, tracee.record()?)));
        let Some((tracee, record)) = record.filter(|(_, record)| !record.waits()) else { return false };
        into.fill(0);
        let at_start = record.phase() == Phase::End && tracee.start.copy_memory(address, into);
        record.copy_memory(address, into) || at_start
    }

    /// The next event: of one tracee, or of any.
    pub(crate) fn next(&mut self, of: Option<i32>) -> Option<Told> {
        loop {
            self.collect();
            if of.is_none()
                && let Some(told) = self.tell_end_of_exec()
            {
                return Some(told);
            }
            if let Some(told) = self.tell_real(of, false) {
                return Some(told);
            }
            if !self.ring.read() {
                // (The record that is next may be one whose writer a signal has interrupted.)
                return self.tell_real(of, true);
            }
            match self.tell_record(of) {
                Step::Told(told) => return Some(told),
                Step::Skipped => {}
                Step::Blocked => return None,
            }
        }
    }

    /// Waits until there may be something; strace has nothing to do.
    ///
    /// # Errors
    /// `EINTR`: a signal has arrived.
    pub(crate) fn wait(&mut self) -> Result<(), i32> {
        self.release();
        self.time = None;
        if !self.is_alone && self.companion.has_ended() {
            self.convert_all();
        }
        let (wakeups, seen) = (self.tracer.wakeups(), self.seen);
        self.ring.wait(|| wakeups.load(Ordering::Acquire) != seen)
    }

    /// What no record tells: ends of handlers, and new starts of calls that the kernel makes again. strace is told of them when there is
    /// nothing else.
    pub(crate) fn tell_untold(&mut self) -> Option<Told> {
        let is_native = |tracee: &Tracee| self.native.contains(&tracee.pid);
        let is_running = |tracee: &Tracee| tracee.shown == Shown::Running && tracee.wants_calls && !is_native(tracee);
        let has_returned = |tracee: &Tracee| is_running(tracee) && tracee.call == Some(libc::SYS_rt_sigreturn);
        if let Some((tid, _)) = self.tracees.iter().find(|(_, tracee)| has_returned(tracee)) {
            return self.end_of_return(*tid);
        }
        let is_repeated = |tracee: &Tracee| {
            let is_due = |known: &KnownEnd| known.is_repeated && tracee.handlers <= known.handlers;
            is_running(tracee) && tracee.call.is_none() && tracee.known_ends.last().is_some_and(is_due)
        };
        let (tid, _) = self.tracees.iter().find(|(_, tracee)| is_repeated(tracee))?;
        let tid = *tid;
        // (It may have stopped again meanwhile, for a group stop say. SIGCONT stops a seized thread twice.)
        if process::has_pending(tid, libc::SIGCONT) || !process::runs(tid) {
            return None;
        }
        self.repeat_start(tid)
    }

    fn repeat_start(&mut self, tid: i32) -> Option<Told> {
        let tracee = self.tracees.get_mut(&tid)?;
        let known = tracee.known_ends.pop()?;
        let (number, arguments) = match known.result {
            RESTART_BLOCK => (libc::SYS_restart_syscall, [0; 6]),
            _ => (known.number, known.arguments),
        };
        tracee.start.synthesize(Phase::Start, (tracee.pid, tid), number, arguments);
        tracee.call = Some(number);
        tracee.shown = Shown::Call(Phase::Start);
        self.time = None;
        Some(tracee.told_call(tid))
    }

    /// Fetches real events.
    fn collect(&mut self) {
        let wakeups = self.tracer.wakeups().load(Ordering::Acquire);
        if wakeups == self.seen {
            return;
        }
        self.seen = wakeups;
        while let Some(event) = self.tracer.try_event() {
            let behind = self.ring.produced();
            if event.status == RELEASED {
                self.note_released(event.tid);
                continue;
            }
            if libc::WIFSTOPPED(event.status) && event.status >> 16 == libc::PTRACE_EVENT_EXEC {
                self.note_exec(event.tid);
            } else if libc::WIFSTOPPED(event.status) && !self.tracees.contains_key(&event.tid) {
                self.note_new(event.tid);
            }
            self.waiting.push_back(Waiting { event, behind });
        }
    }

    /// The server has let a thread go, or ends: the kernel stops it at its calls from now on. The records that there are come first.
    fn note_released(&mut self, tid: i32) {
        if tid == NOBODY {
            self.is_ending = true;
            eprintln!("ring3: the server ends. strace goes on by ptrace, which is slower");
            return;
        }
        if !self.tracees.contains_key(&tid) {
            self.note_new(tid);
        }
        let Some(tracee) = self.tracees.get_mut(&tid) else { return };
        (tracee.is_converted, tracee.is_adjusted) = (true, true);
        let pid = tracee.pid;
        self.note_refused(pid, "ring3 has let it go");
    }

    /// A thread that the kernel has attached for strace.
    fn note_new(&mut self, tid: i32) {
        let pid = process::process_of(tid).unwrap_or(tid);
        let is_native = |parent: i32| self.native.contains(&parent);
        if tid == pid && !self.native.is_empty() && process::parent_of(pid).is_some_and(is_native) {
            self.native.insert(pid);
        } else if tid == pid && process::has_other_ids(pid) {
            self.note_native(pid, HAS_OTHER_IDS);
            // (It stands where it was made. A `vfork` child cannot be detached: strace shows what ring3's agent calls there, too.)
            if places_of(pid).is_some() {
                let _ = self.companion.detach(pid);
            }
        }
        // (What a parent that was let go has made may still write records.)
        let is_adjusted = self.native.contains(&pid) && self.tracees.values().any(|other| other.is_adjusted);
        self.tracees.insert(tid, Tracee { is_adjusted, ..Tracee::new(pid) });
    }

    /// A process has executed a program: by its leader, or by another thread, which is the leader from now on.
    fn note_exec(&mut self, pid: i32) {
        let mut former = 0usize;
        let asked = self.tracer.request(libc::PTRACE_GETEVENTMSG, pid, 0, (&raw mut former).addr());
        if let (Ok(_), Some(mut tracee)) = (asked, self.tracees.remove(&(former as i32))) {
            tracee.pid = pid;
            self.tracees.insert(pid, tracee);
        }
        if places_of(pid).is_none() {
            self.note_refused(pid, "ring3 cannot trace the program that it executes now");
        } else if !self.is_alone && !process::has_other_ids(pid) {
            self.native.remove(&pid);
            if let Some(tracee) = self.tracees.get_mut(&pid) {
                (tracee.is_converted, tracee.is_adjusted, tracee.is_seen) = (false, false, false);
            }
        }
    }

    /// Tells of the first real event whose time has come; `is_late`: no record that comes before it can be read.
    fn tell_real(&mut self, of: Option<i32>, is_late: bool) -> Option<Told> {
        let position = self.ring.position();
        let is_next = |waiting: &Waiting| {
            let Event { tid, status, .. } = waiting.event;
            let is_wanted = of.is_none_or(|of| of == tid);
            let is_running = self.tracees.get(&tid).is_none_or(|tracee| tracee.shown == Shown::Running);
            let is_in_order = waiting.behind <= position || of.is_some() || is_late;
            is_wanted && is_in_order && (is_running || !libc::WIFSTOPPED(status))
        };
        let index = self.waiting.iter().position(is_next)?;
        let tid = self.waiting[index].event.tid;
        let status = self.waiting[index].event.status;
        let is_signal = is_signal(status);
        if is_signal && self.tracees.get(&tid).is_some_and(|tracee| tracee.ends_whatever_comes(status)) {
            self.waiting.remove(index);
            let _ = self.tracer.request(libc::PTRACE_CONT, tid, 0, 0);
            return self.tell_real(of, is_late);
        }
        if is_signal
            && of.is_none()
            && let Some(told) = self.tell_end_before_signal(tid)
        {
            return Some(told);
        }
        if of.is_none()
            && let Some(step) = self.adjust(tid, status)
        {
            let Step::Told(told) = step else {
                self.waiting.remove(index);
                return self.tell_real(of, is_late);
            };
            return Some(told);
        }
        if is_signal && (self.is_taken_back(tid, status) || self.comes_again(tid, status)) {
            self.waiting.remove(index);
            return self.tell_real(of, is_late);
        }
        if is_signal && of.is_none() {
            self.note_interrupted(tid);
        }
        let Waiting { event, .. } = self.waiting.remove(index)?;
        self.time = None;
        let mut in_calls = None;
        if !libc::WIFSTOPPED(status) {
            self.forget(tid);
            // (A stop that it was still to be told of is over.)
            self.waiting.retain(|waiting| waiting.event.tid != tid);
        } else if let Some(tracee) = self.tracees.get_mut(&tid) {
            tracee.shown = Shown::Stopped;
            tracee.is_at_signal = is_signal;
            tracee.is_at_exec = status >> 16 == libc::PTRACE_EVENT_EXEC;
            tracee.places = tracee.places.filter(|_| !tracee.is_at_exec);
            in_calls = (!self.native.contains(&tracee.pid)).then_some(tracee.in_calls);
        }
        Some(Told { tid, status, usage: Some(event.rusage), in_calls })
    }

    /// Of a tracee that records have shown, and that the kernel stops at its calls now: strace expects starts and ends in turn, and a record
    /// may have told it of a start that the kernel shows again. `Step::Told`: what strace is told first; `Step::Skipped`: the stop is passed
    /// over.
    fn adjust(&mut self, tid: i32, status: i32) -> Option<Step> {
        let tracee = self.tracees.get_mut(&tid)?;
        if !tracee.is_adjusted {
            return None;
        }
        if !tracee.wants_calls {
            let is_unwanted = status == SYSCALL_STOP;
            return is_unwanted.then(|| self.pass_over(tid, libc::PTRACE_CONT)).flatten();
        }
        if status != SYSCALL_STOP {
            let is_signal = is_signal(status);
            if !is_signal && (!tracee.is_converted || status != INTERRUPT) {
                return None;
            }
            // (What is made again, or is made only now, is the call of which strace knows.)
            let registers = self.tracer.registers(tid).ok()?;
            let result = registers.rax as i64;
            let is_over = match tracee.call {
                None | Some(libc::SYS_execve | libc::SYS_execveat) => false,
                Some(libc::SYS_rt_sigreturn) => true,
                Some(number) => {
                    // (A signal is told behind the end of the call that it interrupts.)
                    let is_repeated = !is_signal && RESTARTS.contains(&result);
                    registers.orig_rax as i64 == number && !is_repeated
                }
            };
            let is_in_ring3 = || places_of(tid).is_some_and(|places| places.have_of_ring3(registers.rip));
            if is_over && !is_in_ring3() {
                return self.tell_end(tid, result).map(Step::Told);
            }
            if status != INTERRUPT {
                return None;
            }
            tracee.is_converted = false;
            return self.pass_over(tid, libc::PTRACE_SYSCALL);
        }
        tracee.is_seen = true;
        tracee.known_ends.clear();
        match (self.tracer.is_at_start(tid), tracee.call) {
            (Some((true, number)), Some(known)) if [known, libc::SYS_restart_syscall].contains(&number) => {
                self.pass_over(tid, libc::PTRACE_SYSCALL)
            }
            // (The thread stood behind its `execve` when the server let it go.)
            (Some((true, _)), Some(libc::SYS_execve | libc::SYS_execveat)) => self.tell_end(tid, 0).map(Step::Told),
            (Some((true, _)), Some(_)) => self.tell_end(tid, RESTART_NO_INTERRUPT).map(Step::Told),
            (Some((true, number)), None) => {
                tracee.call = Some(number);
                None
            }
            (Some((false, _)), None) => self.pass_over(tid, libc::PTRACE_SYSCALL),
            (Some((false, _)), Some(_)) => {
                tracee.call = None;
                None
            }
            (None, _) => None,
        }
    }

    /// Resumes a tracee from a stop of which strace is not told.
    fn pass_over(&mut self, tid: i32, request: libc::c_uint) -> Option<Step> {
        self.tracer.request(request, tid, 0, 0).ok().map(|_| Step::Skipped)
    }

    /// Whether a stopping signal has come in a system call, and a SIGCONT since. Natively the stop at the end of the call comes before the
    /// signal, which SIGCONT takes back then (a terminal stops strace, too). Then the thread is resumed without it.
    fn is_taken_back(&mut self, tid: i32, status: i32) -> bool {
        let tracee = self.tracees.get(&tid).filter(|tracee| tracee.wants_calls);
        tracee.is_some_and(|tracee| !self.native.contains(&tracee.pid))
            && is_taken_back(tid, libc::WSTOPSIG(status))
            && self.tracer.registers(tid).is_ok_and(|registers| registers.orig_rax as i64 >= 0)
            && self.tracer.request(libc::PTRACE_CONT, tid, 0, 0).is_ok()
    }

    /// Whether a signal comes for the second time: ring3 has a handler of faults, which sends the signal once more, as it was, when it is to
    /// end the process. Then the thread is resumed with it.
    fn comes_again(&mut self, tid: i32, status: i32) -> bool {
        let signal = libc::WSTOPSIG(status);
        let Some(tracee) = self.tracees.get_mut(&tid) else { return false };
        if ![libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP, libc::SIGSYS].contains(&signal) {
            tracee.faulted = None;
            return false;
        }
        let is_caught = process::catches(tracee.pid, signal);
        let info = self.tracer.signal_info(tid).ok();
        if is_caught || info.is_none() || info != tracee.faulted {
            tracee.faulted = info.filter(|_| is_caught);
            return false;
        }
        let is_native = self.native.contains(&tracee.pid);
        let request = if is_native && tracee.wants_calls { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
        self.tracer.request(request, tid, 0, signal as usize).is_ok()
    }

    /// A signal is delivered where a system call returns, before the thread's own code, and so before a record of the call's end: its
    /// registers have the result. (Natively the stop at the call's end comes first, too.)
    fn tell_end_before_signal(&mut self, tid: i32) -> Option<Told> {
        let tracee = self.tracees.get_mut(&tid)?;
        let number = tracee.call?;
        if self.native.contains(&tracee.pid) || !tracee.wants_calls {
            return None;
        }
        let registers = self.tracer.registers(tid).ok()?;
        let result = registers.rax as i64;
        if number == libc::SYS_rt_sigreturn {
            return self.end_of_return(tid);
        }
        // (A thread that is not in the kernel is in the agent: its call is about to be made, or its result is known when it goes on. So
        // strace is told that the call is made again.)
        // (The kernel looks at 32 bits of a number.)
        let is_made = registers.orig_rax as i32 == number as i32;
        let result = if is_made { result } else { RESTART_NO_INTERRUPT };
        tracee.is_interrupted = is_made && RESTARTS.contains(&result);
        let (arguments, handlers) = (tracee.start.arguments(), tracee.handlers);
        tracee.known_ends.push(KnownEnd {
            number,
            arguments,
            result,
            is_repeated: !is_made,
            handlers,
            is_over: false,
        });
        self.tell_end(tid, result)
    }

    /// Takes note of the last call if a signal comes in ring3's code around one: what its handler's `rt_sigreturn` shows is that call's
    /// result, and not what ring3's code has in `rax`.
    fn note_interrupted(&mut self, tid: i32) {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return };
        tracee.forget_interrupted();
        if tracee.call.is_some() || !tracee.wants_calls || self.native.contains(&tracee.pid) {
            return;
        }
        let Ok(registers) = self.tracer.registers(tid) else { return };
        tracee.places = tracee.places.or_else(|| places_of(tid));
        // (At the end of a call of the program's own it is the kernel that has said what is there.)
        let is_inside = |places: Places| {
            places.have_of_ring3(registers.rip)
                || places.have_in_region(registers.rip) && (registers.orig_rax as i64) < 0
        };
        if tracee.places.is_some_and(is_inside) {
            let (number, result, handlers) = (tracee.end.number(), tracee.end.result(), tracee.handlers);
            let (arguments, is_repeated) = ([0; 6], false);
            tracee.known_ends.push(KnownEnd { number, arguments, result, is_repeated, handlers, is_over: true });
        }
    }

    /// Tells of the end of an `execve` that no stop and no record tells.
    fn tell_end_of_exec(&mut self) -> Option<Told> {
        let is_due = |tracee: &Tracee| tracee.owes_end_of_exec && tracee.shown == Shown::Running;
        let (tid, tracee) = self.tracees.iter_mut().find(|(_, tracee)| is_due(tracee))?;
        (tracee.owes_end_of_exec, tracee.call) = (false, Some(libc::SYS_execve));
        let tid = *tid;
        self.tell_end(tid, 0)
    }

    /// Tells of the end of the call that strace believes a tracee to be in, without a record.
    fn tell_end(&mut self, tid: i32, result: i64) -> Option<Told> {
        let tracee = self.tracees.get_mut(&tid)?;
        let number = tracee.call.take()?;
        tracee.end.synthesize(Phase::End, (tracee.pid, tid), number, [result as u64, 0, 0, 0, 0, 0]);
        tracee.shown = Shown::Call(Phase::End);
        self.time = None;
        Some(tracee.told_call(tid))
    }

    /// A handler has returned: no record tells that. The result is what the interrupted code finds in `rax`.
    fn end_of_return(&mut self, tid: i32) -> Option<Told> {
        let tracee = self.tracees.get_mut(&tid)?;
        let [_, rax, _, _, rip, _] = tracee.start.arguments();
        let is_in_ring3 = tracee.places.is_some_and(|places| places.have_in_region(rip));
        let last = tracee.known_ends.last().filter(|known| is_in_ring3 && known.is_over);
        let result = last.map_or(rax as i64, |known| known.result);
        tracee.handlers = tracee.handlers.saturating_sub(1);
        tracee.forget_interrupted();
        self.tell_end(tid, result)
    }

    /// Tells of the record that was read, or passes over it.
    fn tell_record(&mut self, of: Option<i32>) -> Step {
        let record = &mut self.ring.record;
        let tid = record.tid();
        let Some(tracee) = self.tracees.get_mut(&tid) else { return self.skip() };
        if tracee.shown != Shown::Running && of.is_none() {
            return Step::Blocked;
        }
        let (phase, number) = (record.phase(), record.number());
        if tracee.is_seen {
            // (The kernel has shown this call.)
            return self.skip();
        }
        let is_wanted = tracee.wants_calls && of.is_none();
        if is_wanted && tracee.call == Some(libc::SYS_rt_sigreturn) {
            return self.end_of_return(tid).map_or(Step::Blocked, Step::Told);
        }
        if is_wanted && phase == Phase::Start && tracee.call.is_some() {
            // (A handler has interrupted it, or the record of its end was lost.)
            if let Some(handlers) = tracee.handlers.checked_sub(1) {
                let (number, arguments, result) =
                    (tracee.start.number(), tracee.start.arguments(), RESTART_NO_INTERRUPT);
                tracee.known_ends.push(KnownEnd {
                    number,
                    arguments,
                    result,
                    is_repeated: true,
                    handlers,
                    is_over: false,
                });
            }
            return self.tell_end(tid, RESTART_NO_INTERRUPT).map_or(Step::Blocked, Step::Told);
        }
        if phase == Phase::End && tracee.call.is_none() {
            let known = tracee.known_ends.iter().rposition(|known| known.number == number && !known.is_over);
            let Some(known) = known else {
                // (It was under way when strace came, or is the return from the call that has made this thread.)
                return self.skip();
            };
            // (Handlers of later ones have been left by a jump.)
            tracee.known_ends.truncate(known + 1);
            if is_wanted && tracee.known_ends[known].is_repeated {
                return self.repeat_start(tid).map_or(Step::Blocked, Step::Told);
            }
            tracee.known_ends.pop();
            return self.skip();
        }
        // (The agent has made it before the call, in which the process ends: natively there is none.)
        if phase == Phase::End && tracee.call == Some(number) && tracee.kills_itself(tid) {
            return self.skip();
        }
        // (The end of a call whose start is not told is not told, either.)
        tracee.call = (is_wanted && phase == Phase::Start).then_some(number);
        if !is_wanted {
            return self.skip();
        }
        let (waits, time) = (record.waits(), record.time());
        let kept = if phase == Phase::Start { &mut tracee.start } else { &mut tracee.end };
        std::mem::swap(kept, record);
        tracee.shown = Shown::Call(phase);
        // (Most of an execution's time is ours. A start that no record has told has no time.)
        let begun = tracee.start.time();
        if phase == Phase::End && begun != 0 && !matches!(number, libc::SYS_execve | libc::SYS_execveat) {
            tracee.in_calls += time.saturating_sub(begun);
        }
        tracee.faulted = None;
        let told = tracee.told_call(tid);
        if waits {
            let at = self.ring.position();
            tracee.held = Some(at);
            self.held.insert(at);
        }
        self.ring.advance();
        if self.ring.is_worth_releasing() {
            self.release();
        }
        self.time = (time != 0).then_some(time);
        Step::Told(told)
    }

    /// Passes over a record. If its thread waits, it goes on.
    fn skip(&mut self) -> Step {
        self.ring.advance();
        if self.ring.record.waits() || self.ring.is_worth_releasing() {
            self.release();
        }
        Step::Skipped
    }

    /// Gives memory back to the writers. Threads that wait for that go on.
    fn release(&mut self) {
        let until = self.held.first().copied().unwrap_or_else(|| self.ring.position());
        self.ring.release_to(until);
    }
}
