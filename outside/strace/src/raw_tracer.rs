//! The thread that traces, T. It makes the requests of its user (the rest of its process) and those of ring3's server, which cannot
//! trace what T traces.
//!
//! The hard part is that a thread is stopped for two. What its user knows of a tracee (`told`: a stop that the user has been told
//! of and has not resumed) is kept apart from what the server has (`Held`), and from what the kernel says. While the server has a
//! tracee stopped, its user's resuming is put off until the server leaves; a tracee that waits for its user in a harmless stop can
//! be lent to the server, and comes back stopped. So each of the two sees what it would see alone.
//!
//! Who is told of a stop:
//! - `PTRACE_EVENT_STOP`: who has asked for an interrupt; the server also when it has been shown a stop and not left yet. A new
//!   tracee's first stop, and a group stop, are the user's.
//! - Signals: the server once it has been shown a stop, else the user; those that ring3's agent raises for itself, nobody.
//! - System calls: the server if it has resumed the tracee so.
//! - `PTRACE_EVENT_EXEC`: the server if it holds the tracee, then the user when the server leaves. Other events: the user.
//!
//! When the server lets a tracee go for good, its user is told so (`RELEASED`), and then of an interrupt if the tracee runs. From
//! then on the kernel stops it at its system calls, until it executes a program.
//!
//! The server's requests come by a socket of type `SOCK_SEQPACKET`. Request: u32 id, u32 op, u32 tid, u32 zero, u64 a, u64 b,
//! payload. Answer: u32 id, i32 errno, u64 value, payload. If the other end is closed, the server has left all tracees: they run on
//! as the kernel lets those run whose tracer has died.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libc::{c_int, c_uint, pid_t};

use crate::raw_agent_signals::{is_of_agent, places_of};
use crate::raw_calls::{
    Done, above_standard, check, plain, ptrace, read_or_write, registers, signal_info, wait_for_next, with,
};
use crate::raw_postponed::Postponed;
use crate::raw_steps::{Places, Settled, settle, settle_in_call};
use crate::shim::RESTARTS;
use crate::status::{INTERRUPT, event_of, is_group_stop, is_interrupt, is_signal};

/// What T traces with in any case: the server needs it.
const OPTIONS: usize = (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC) as usize;
/// Tracers of a process at a time.
const TRACERS_MAX: usize = 64;
/// The server waits for so long at most.
const WAIT_MAX: Duration = Duration::from_millis(2);
/// Requests of the server are made one after another before others have their turn.
const REQUESTS_AT_ONCE: u32 = 64;
/// So many events of tracees are looked at before requests have their turn, and for so long: where a signal's stop is to be may take
/// thousands of instructions, one at a time.
const EVENTS_AT_ONCE: u32 = 64;
const EVENTS_WITHIN: Duration = Duration::from_millis(10);
const REQUEST_HEADER_BYTES: usize = 32;
const REQUEST_BYTES_MAX: usize = 4096;
/// Answers of the server's op `WAIT`.
const NOTHING_YET: u64 = u64::MAX;
const GONE: u64 = u64::MAX - 1;

/// What a tracee did, as wait4(2) tells it.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The thread.
    pub tid: pid_t,
    /// The raw status.
    pub status: c_int,
    /// What the thread has used so far.
    pub rusage: libc::rusage,
}

/// The status of an event of a thread that the server has let go for good. (wait4(2) has no such status here.)
pub(crate) const RELEASED: c_int = 0xffff;
/// The thread of such an event by which the server says that it ends.
pub(crate) const NOBODY: pid_t = 0;

/// What the user's threads and T share.
#[derive(Debug)]
struct Shared {
    /// Wakes T.
    wake: OwnedFd,
    events: Mutex<VecDeque<Event>>,
    traced: Mutex<BTreeSet<pid_t>>,
    wakeups: AtomicU32,
}

/// The kernel's bytes of a `siginfo_t`.
pub type SignalInfo = [u64; size_of::<libc::siginfo_t>() / 8];

#[derive(Debug)]
enum Command {
    Request { request: c_uint, tid: pid_t, address: usize, data: usize, reply: Sender<Done> },
    Serve(OwnedFd),
    End,
}

/// A thread that traces. Its end lets its tracees go.
#[derive(Debug)]
pub struct Tracer {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Starts the thread; `server` is where ring3's server makes requests. It calls `on_event` when an event has come. Where a signal
    /// stops a tracee that `is_busy`, it is told when it is that no more: that must not take more than some instructions.
    ///
    /// # Errors
    /// No descriptor, thread, or place.
    pub fn start(
        server: Option<OwnedFd>,
        on_event: impl Fn() + Send + 'static,
        is_busy: impl Fn(pid_t) -> bool + Send + 'static,
    ) -> io::Result<Tracer> {
        // SAFETY: takes numbers only.
        let wake = check(i64::from(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }));
        // SAFETY: a new descriptor that nobody else owns.
        let wake = unsafe { OwnedFd::from_raw_fd(wake.map_err(io::Error::from_raw_os_error)? as c_int) };
        let wake = above_standard(wake)?;
        let shared =
            Arc::new(Shared { wake, events: Mutex::default(), traced: Mutex::default(), wakeups: AtomicU32::new(0) });
        let woken = Woken::new(shared.wake.as_raw_fd())?;
        let (commands, given) = channel();
        let of_thread = shared.clone();
        let builder = std::thread::Builder::new().name("ring3-tracer".into());
        let thread = builder.spawn(move || {
            let _woken = woken;
            let (on_event, is_busy) = (Box::new(on_event), Box::new(is_busy));
            Thread { shared: of_thread, server, tracees: BTreeMap::new(), waits: vec![], on_event, is_busy }
                .run(&given);
        })?;
        Ok(Tracer { shared, commands, thread: Some(thread) })
    }

    /// Has ring3's server make its requests here. What one served before has is let go.
    pub fn serve(&self, server: OwnedFd) {
        self.command(Command::Serve(server));
    }

    fn command(&self, command: Command) {
        let _ = self.commands.send(command);
        wake(self.shared.wake.as_raw_fd());
    }

    /// Makes a ptrace request as the system call does: `PTRACE_PEEK*` store the word where `data` points to.
    ///
    /// # Errors
    /// The error's number.
    pub fn request(&self, request: c_uint, tid: pid_t, address: usize, data: usize) -> Done {
        let (reply, answer) = channel();
        self.command(Command::Request { request, tid, address, data, reply });
        answer.recv().unwrap_or(Err(libc::ESRCH))
    }

    /// The registers of a stopped tracee.
    ///
    /// # Errors
    /// The error's number.
    pub fn registers(&self, tid: pid_t) -> Result<libc::user_regs_struct, i32> {
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
        self.request(libc::PTRACE_GETREGS, tid, 0, registers.as_mut_ptr().addr())?;
        // SAFETY: made of integers, zeroed and then filled.
        Ok(unsafe { registers.assume_init() })
    }

    /// What the kernel says of the signal that has stopped a tracee.
    ///
    /// # Errors
    /// The error's number.
    pub fn signal_info(&self, tid: pid_t) -> Result<SignalInfo, i32> {
        let mut info = SignalInfo::default();
        self.request(libc::PTRACE_GETSIGINFO, tid, 0, info.as_mut_ptr().addr()).map(|_| info)
    }

    /// Whether the kernel has a tracee stopped in its `execve`, so that the end of that is still to come.
    pub fn is_in_exec(&self, tid: pid_t) -> bool {
        const CODE: usize = 1;
        const EXEC: i32 = libc::PTRACE_EVENT_EXEC << 8 | libc::SIGTRAP;
        self.signal_info(tid).is_ok_and(|info| info[CODE] as i32 == EXEC)
    }

    /// Whether a tracee that the kernel has stopped at a system call is at the call's start; and the call's number, then. `None`: the
    /// kernel does not say it.
    pub fn is_at_start(&self, tid: pid_t) -> Option<(bool, i64)> {
        const ENTRY: u8 = 1;
        const EXIT: u8 = 2;
        let mut info = std::mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
        let bytes = size_of::<libc::ptrace_syscall_info>();
        self.request(libc::PTRACE_GET_SYSCALL_INFO, tid, bytes, info.as_mut_ptr().addr()).ok()?;
        // SAFETY: made of integers, zeroed and then filled.
        let info = unsafe { info.assume_init() };
        // SAFETY: of integers, too.
        let number = unsafe { info.u.entry }.nr as i64;
        matches!(info.op, ENTRY | EXIT).then_some((info.op == ENTRY, number))
    }

    /// The next event.
    pub fn try_event(&self) -> Option<Event> {
        lock(&self.shared.events).pop_front()
    }

    /// Is increased when an event comes.
    pub fn wakeups(&self) -> &AtomicU32 {
        &self.shared.wakeups
    }

    /// Whether it traces anybody.
    pub fn has_tracees(&self) -> bool {
        !lock(&self.shared.traced).is_empty()
    }

    /// Whether it traces a thread.
    pub fn traces(&self, tid: pid_t) -> bool {
        lock(&self.shared.traced).contains(&tid)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.command(Command::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- waking ----

/// The descriptors that a SIGCHLD writes to, less 1 (0: none). The kernel sends it for each tracee to T if T can take it, else
/// to any thread.
static WOKEN: [AtomicI32; TRACERS_MAX] = [const { AtomicI32::new(0) }; TRACERS_MAX];

/// A place in [`WOKEN`].
#[derive(Debug)]
struct Woken(usize);

impl Woken {
    fn new(descriptor: c_int) -> io::Result<Woken> {
        let is_taken = |slot: &AtomicI32| slot.compare_exchange(0, descriptor + 1, AcqRel, Relaxed).is_ok();
        let place = WOKEN.iter().position(is_taken).ok_or(io::ErrorKind::QuotaExceeded)?;
        // SAFETY: integers and a set of signals, for which zero is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = child_did_something as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the action is a whole one, with a handler that may run in any thread at any time: it stores nothing but errno.
        let done = unsafe { libc::sigaction(libc::SIGCHLD, &action, std::ptr::null_mut()) };
        if done != 0 { Err(io::Error::last_os_error()) } else { Ok(Woken(place)) }
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        WOKEN[self.0].store(0, Release);
    }
}

fn wake(descriptor: c_int) {
    let one = 1u64;
    // SAFETY: writes the 8 bytes of `one`.
    unsafe { libc::write(descriptor, (&raw const one).cast(), size_of::<u64>()) };
}

extern "C" fn child_did_something(_: c_int) {
    // SAFETY: the address of this thread's errno, which every thread has.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    for slot in &WOKEN {
        let descriptor = slot.load(Acquire) - 1;
        if descriptor >= 0 {
            wake(descriptor);
        }
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

// ---- tracees ----

/// What the server has of a tracee that it holds.
#[derive(Debug, Default)]
struct Held {
    /// It has asked for an interrupt that has not come yet.
    interrupting: bool,
    /// It has resumed the tracee to its next system call.
    by_syscall: bool,
    /// It was told of a stop since it holds the tracee.
    shown: bool,
    /// The tracee is stopped for it.
    has: bool,
    /// What it is told next.
    report: Option<c_int>,
    /// The stop that it has had last.
    last: c_int,
}

#[derive(Debug)]
struct Tracee {
    /// How its user has resumed it.
    resumed_by: c_uint,
    /// Its user has asked for an interrupt that has not come yet.
    interrupting: bool,
    /// It is a new one, whose first stop its user has not seen yet.
    is_new: bool,
    /// The stop that its user was told of last and has not resumed.
    told: Option<c_int>,
    /// What its user asked for while the server had it stopped.
    put_off: Option<(c_uint, usize)>,
    /// What its user is told when the server leaves.
    later: Option<c_int>,
    /// `PTRACE_GETEVENTMSG` of the stop that its user is told of.
    message: u64,
    /// The kernel has it stopped, or has it listen.
    stopped: bool,
    /// An interrupt will come that nobody wants any more.
    stale_interrupt: bool,
    server: Option<Held>,
    /// The server has let it go for good.
    is_released: bool,
    /// The stop before was an interrupt of the server's.
    was_interrupted: bool,
    /// Where its process has code of ring3, once known.
    places: Option<Places>,
    /// Signals that come to it later.
    postponed: Postponed,
}

impl Tracee {
    fn new(is_new: bool) -> Tracee {
        Tracee {
            resumed_by: libc::PTRACE_CONT,
            interrupting: false,
            is_new,
            told: None,
            put_off: None,
            later: None,
            message: 0,
            stopped: false,
            stale_interrupt: false,
            server: None,
            is_released: false,
            was_interrupted: false,
            places: None,
            postponed: Postponed::default(),
        }
    }

    fn is_listening(&self) -> bool {
        self.resumed_by == libc::PTRACE_LISTEN
    }

    /// Resumes it as the kernel does, for its user.
    fn resume(&mut self, tid: pid_t, request: c_uint, signal: usize) -> Done {
        let by_syscall = self.server.as_ref().is_some_and(|held| held.by_syscall);
        let to_syscall =
            request == libc::PTRACE_CONT && (by_syscall || self.is_released || self.postponed.await_call());
        let kernel_request = if to_syscall { libc::PTRACE_SYSCALL } else { request };
        if self.interrupting {
            // (The one that was asked for may have been the server's, too.)
            plain(libc::PTRACE_INTERRUPT, tid, 0)?;
        }
        let done = plain(kernel_request, tid, signal)?;
        self.stopped = false;
        self.resumed_by = request;
        Ok(done)
    }
}

/// A wait of the server for a tracee that has done nothing yet.
#[derive(Debug)]
struct Waiting {
    id: u32,
    tid: pid_t,
    until: Instant,
}

/// T.
struct Thread {
    shared: Arc<Shared>,
    server: Option<OwnedFd>,
    tracees: BTreeMap<pid_t, Tracee>,
    waits: Vec<Waiting>,
    /// Tells the user of an event.
    on_event: Box<dyn Fn() + Send>,
    is_busy: Box<dyn Fn(pid_t) -> bool + Send>,
}

impl Thread {
    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            self.sleep();
            while let Ok(command) = commands.try_recv() {
                match command {
                    Command::Request { request, tid, address, data, reply } => {
                        self.collect();
                        let _ = reply.send(self.user_request(request, tid, address, data));
                    }
                    Command::Serve(server) => {
                        self.lose_server();
                        self.server = Some(server);
                    }
                    Command::End => return,
                }
            }
            self.collect();
            self.serve();
            self.answer_waits();
        }
    }

    /// Until there is something to do.
    fn sleep(&self) {
        let server = self.server.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let fds = [self.shared.wake.as_raw_fd(), server];
        let mut fds = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let left = self.waits.iter().map(|wait| wait.until.saturating_duration_since(Instant::now())).min();
        let timeout = left.map(|left| libc::timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: two descriptors, and a time or none.
        unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as u64, timeout, std::ptr::null()) };
        if fds[0].revents != 0 {
            let mut count = 0u64;
            // SAFETY: reads 8 bytes into `count`.
            unsafe { libc::read(fds[0].fd, (&raw mut count).cast(), size_of::<u64>()) };
        }
    }

    fn tell_user(&mut self, event: Event) {
        if libc::WIFSTOPPED(event.status)
            && let Some(tracee) = self.tracees.get_mut(&event.tid)
        {
            tracee.told = Some(event.status);
            tracee.message = 0;
            if event_of(event.status) != 0 {
                let _ = with(libc::PTRACE_GETEVENTMSG, event.tid, 0, &mut tracee.message);
            }
        }
        lock(&self.shared.events).push_back(event);
        self.shared.wakeups.fetch_add(1, Release);
        (self.on_event)();
    }

    fn add(&mut self, tid: pid_t, tracee: Tracee) {
        self.tracees.insert(tid, tracee);
        lock(&self.shared.traced).insert(tid);
    }

    fn remove(&mut self, tid: pid_t) -> Option<Tracee> {
        lock(&self.shared.traced).remove(&tid);
        self.tracees.remove(&tid)
    }

    // ---- what tracees do ----

    /// (A tracee whose calls all raise signals, say, has a next event at once: others have their turn in between.)
    fn collect(&mut self) {
        let until = Instant::now() + EVENTS_WITHIN;
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = wait_for_next() else { return };
            let event = if is_signal(event.status) { self.settle(event) } else { Some(event) };
            let Some(event) = event else { continue };
            if libc::WIFSTOPPED(event.status) {
                self.stopped(event);
            } else {
                self.remove(event.tid);
                self.tell_user(event);
            }
            if Instant::now() >= until {
                break;
            }
        }
        wake(self.shared.wake.as_raw_fd());
    }

    /// Where a signal's stop is to be (`raw_steps.rs`). `None`: there will be another one.
    fn settle(&mut self, event: Event) -> Option<Event> {
        let tid = event.tid;
        let Some(tracee) = self.tracees.get_mut(&tid) else { return Some(event) };
        // (What the server has resumed, it waits for.)
        let is_ours = tracee.server.is_none() && !tracee.is_released && tracee.resumed_by == libc::PTRACE_CONT;
        if is_ours && tracee.places.is_none() {
            tracee.places = places_of(tid);
        }
        let is_interrupted = is_ours && std::mem::take(&mut tracee.was_interrupted);
        let Tracee { postponed, .. } = tracee;
        let in_call = is_interrupted.then(|| settle_in_call(event, postponed)).flatten();
        match in_call.unwrap_or_else(|| settle(event, tracee.places.filter(|_| is_ours), postponed, &self.is_busy)) {
            Settled::At(event) => Some(event),
            Settled::PutOff | Settled::TakenBack => None,
        }
    }

    fn stopped(&mut self, event: Event) {
        let Event { tid, status, .. } = event;
        if !self.tracees.contains_key(&tid) {
            self.add(tid, Tracee::new(true));
        }
        if event_of(status) == libc::PTRACE_EVENT_EXEC {
            self.executed(tid);
        }
        let Some(tracee) = self.tracees.get_mut(&tid) else { return };
        (tracee.stopped, tracee.was_interrupted) = (true, false);
        let signal = libc::WSTOPSIG(status);
        let (mut for_server, mut for_user) = (false, true);
        match event_of(status) {
            libc::PTRACE_EVENT_STOP => {
                let wanted = tracee.interrupting || tracee.is_new;
                let is_stale = std::mem::take(&mut tracee.stale_interrupt);
                for_server = tracee.server.as_ref().is_some_and(|held| held.interrupting || held.shown);
                if for_server {
                    // (A group stop is told when the server leaves, if it lasts.)
                    for_user = wanted && tracee.told.is_none();
                } else {
                    // (One that was brought here from the stop that its user knows is stopped as far as that knows.)
                    let is_wanted = wanted || !is_interrupt(status) || tracee.is_listening() || !is_stale;
                    for_user = tracee.told.is_none() && tracee.put_off.is_none() && is_wanted;
                }
                if for_user {
                    (tracee.interrupting, tracee.is_new) = (false, false);
                }
            }
            libc::PTRACE_EVENT_EXEC => {
                for_server = tracee.server.is_some();
                for_user = !for_server;
                if for_server {
                    tracee.later = Some(status);
                    let _ = with(libc::PTRACE_GETEVENTMSG, tid, 0, &mut tracee.message);
                }
            }
            0 if signal == libc::SIGTRAP | 0x80 => {
                for_server = tracee.server.as_ref().is_some_and(|held| held.by_syscall);
                if let Some(places) = tracee.places.filter(|_| !for_server && tracee.postponed.await_call()) {
                    tracee.postponed.at_call(tid, places);
                }
                let is_wanted = tracee.is_released || tracee.resumed_by == libc::PTRACE_SYSCALL;
                if !for_server && (!is_wanted || tracee.is_released && is_unseen(tid, tracee)) {
                    let _ = tracee.resume(tid, tracee.resumed_by, 0);
                    return;
                }
                for_user = !for_server;
            }
            0 => {
                for_server = tracee.server.as_ref().is_some_and(|held| held.shown);
                if !for_server && is_of_agent(tid, signal, &mut tracee.places) {
                    let _ = tracee.resume(tid, tracee.resumed_by, signal as usize);
                    return;
                }
                for_user = !for_server;
            }
            _ => {}
        }
        if for_server && let Some(held) = &mut tracee.server {
            // (What comes between the stops of the server is the server's.)
            tracee.postponed.send(tid);
            held.interrupting &= event_of(status) != libc::PTRACE_EVENT_STOP;
            (held.has, held.shown, held.report, held.last) = (true, true, Some(status), status);
        }
        if for_user {
            self.tell_user(event);
        } else if !for_server && tracee.told.is_none() {
            self.resume_as_asked(tid, status);
        }
    }

    /// A thread that executes a program has its process's id from then on.
    fn executed(&mut self, tid: pid_t) {
        let mut former = 0u64;
        let _ = with(libc::PTRACE_GETEVENTMSG, tid, 0, &mut former);
        let former = former as pid_t;
        if former != tid
            && let Some(tracee) = self.remove(former)
        {
            self.add(tid, tracee);
        }
        if let Some(tracee) = self.tracees.get_mut(&tid) {
            tracee.postponed.executed(tid);
            (tracee.places, tracee.is_released) = (None, false);
        }
    }

    // ---- the user ----

    fn user_request(&mut self, request: c_uint, tid: pid_t, address: usize, data: usize) -> Done {
        if request == libc::PTRACE_SEIZE {
            let done = plain(request, tid, data | OPTIONS)?;
            self.add(tid, Tracee::new(false));
            return Ok(done);
        }
        let Some(tracee) = self.tracees.get_mut(&tid) else { return Err(libc::ESRCH) };
        let is_lent = tracee.server.as_ref().is_some_and(|held| held.has) || !tracee.stopped;
        match request {
            libc::PTRACE_CONT
            | libc::PTRACE_SYSCALL
            | libc::PTRACE_LISTEN
            | libc::PTRACE_SINGLESTEP
            | libc::PTRACE_DETACH => {
                let told = tracee.told.take().ok_or(libc::ESRCH)?;
                if is_lent {
                    tracee.put_off = Some((request, data));
                    return Ok(0);
                }
                let done = self.resume_for_user(tid, request, data);
                if done.is_err()
                    && let Some(tracee) = self.tracees.get_mut(&tid)
                {
                    tracee.told = Some(told);
                }
                done.map(|_| 0)
            }
            libc::PTRACE_INTERRUPT => {
                let is_servers = tracee.server.as_ref().is_some_and(|held| held.has);
                let done = if is_servers { 0 } else { plain(request, tid, 0)? };
                tracee.interrupting = true;
                Ok(done)
            }
            libc::PTRACE_SETOPTIONS => plain(request, tid, data | OPTIONS),
            libc::PTRACE_GETEVENTMSG if tracee.told.is_some() => {
                // SAFETY: the user's promise: this request wants a pointer to such a word.
                unsafe { (data as *mut u64).write_unaligned(tracee.message) };
                Ok(0)
            }
            // SAFETY: the user's promise, as of the system call.
            _ => unsafe { ptrace(request, tid, address, data) },
        }
    }

    /// Resumes a tracee as its user has asked for meanwhile, or as before.
    fn resume_as_asked(&mut self, tid: pid_t, status: c_int) {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return };
        let (request, signal) = tracee.put_off.take().unwrap_or((tracee.resumed_by, 0));
        let done = self.resume_for_user(tid, request, signal);
        // What was a group stop is none any more: its user hears of that.
        if done == Err(libc::EIO) {
            self.tell_user(without_usage(tid, status));
        }
    }

    fn resume_for_user(&mut self, tid: pid_t, request: c_uint, signal: usize) -> Done {
        if request == libc::PTRACE_DETACH {
            if let Some(tracee) = self.tracees.get_mut(&tid) {
                tracee.postponed.send(tid);
            }
            let done = plain(request, tid, signal);
            if done.is_ok() {
                self.remove(tid);
            }
            return done;
        }
        // (A thread that listens in another stop than that of its group sleeps for good: the SIGCONT that has ended that has woken it,
        // while the server had it.)
        if request == libc::PTRACE_LISTEN && signal_info(tid).is_some_and(|info| info.si_code == INTERRUPT >> 8) {
            self.tell_user(without_usage(tid, INTERRUPT));
            return Ok(0);
        }
        let Some(tracee) = self.tracees.get_mut(&tid) else { return Err(libc::ESRCH) };
        tracee.resume(tid, request, signal)
    }

    // ---- the server ----

    fn serve(&mut self) {
        let Some(server) = &self.server else { return };
        let server = server.as_raw_fd();
        for _ in 0..REQUESTS_AT_ONCE {
            let mut request = [0u8; REQUEST_BYTES_MAX];
            // SAFETY: receives at most as many bytes as `request` has.
            let got = unsafe { libc::recv(server, request.as_mut_ptr().cast(), request.len(), libc::MSG_DONTWAIT) };
            let bytes = match check(got as i64) {
                Ok(bytes) if bytes as usize >= REQUEST_HEADER_BYTES => bytes as usize,
                Err(libc::EAGAIN) => return,
                Err(libc::EINTR) => continue,
                _ => return self.lose_server(),
            };
            let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("4 bytes"));
            let number = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().expect("8 bytes"));
            let (id, op, tid, a) = (word(0), word(4), word(8) as pid_t, number(16));
            self.collect();
            let payload = &request[REQUEST_HEADER_BYTES..bytes];
            match self.server_request(op, tid, a, payload) {
                Ok(Some((value, payload))) => self.answer(id, 0, value, &payload),
                Ok(None) => {
                    let until = Instant::now() + WAIT_MAX.min(Duration::from_micros(a));
                    self.waits.push(Waiting { id, tid, until });
                }
                Err(errno) => self.answer(id, errno, 0, &[]),
            }
        }
        // (There may be more.)
        wake(self.shared.wake.as_raw_fd());
    }

    fn answer(&self, id: u32, errno: i32, value: u64, payload: &[u8]) {
        let Some(server) = &self.server else { return };
        let mut answer = Vec::with_capacity(16 + payload.len());
        answer.extend(id.to_le_bytes());
        answer.extend(errno.to_le_bytes());
        answer.extend(value.to_le_bytes());
        answer.extend(payload);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: sends the bytes of `answer`. (A server that does not take its answers has to do without.)
        unsafe { libc::send(server.as_raw_fd(), answer.as_ptr().cast(), answer.len(), flags) };
    }

    fn answer_waits(&mut self) {
        for wait in std::mem::take(&mut self.waits) {
            match self.report(wait.tid) {
                Ok(NOTHING_YET) if Instant::now() < wait.until => self.waits.push(wait),
                Ok(value) => self.answer(wait.id, 0, value, &[]),
                Err(errno) => self.answer(wait.id, errno, 0, &[]),
            }
        }
    }

    /// What the server is to be told of a tracee.
    fn report(&mut self, tid: pid_t) -> Result<u64, i32> {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return Ok(GONE) };
        let held = tracee.server.as_mut().ok_or(libc::ESRCH)?;
        Ok(held.report.take().map_or(NOTHING_YET, |status| status as u32 as u64))
    }

    /// A value and a payload; `None`: it waits.
    fn server_request(&mut self, op: u32, tid: pid_t, a: u64, payload: &[u8]) -> Result<Option<(u64, Vec<u8>)>, i32> {
        let nothing = |_: i64| Some((0, vec![]));
        match op {
            1 => return self.hold(tid).map(|()| Some((0, vec![]))),
            14 => {
                let report = self.report(tid)?;
                return Ok((report != NOTHING_YET || a == 0).then(|| (report, vec![])));
            }
            15 => {
                self.leave(tid, a != 0);
                return Ok(Some((0, vec![])));
            }
            16 => {
                self.tell_user(without_usage(NOBODY, RELEASED));
                return Ok(Some((0, vec![])));
            }
            _ => {}
        }
        let tracee = self.tracees.get_mut(&tid).ok_or(libc::ESRCH)?;
        let has = tracee.server.as_ref().ok_or(libc::ESRCH)?.has;
        if op == 2 {
            return self.interrupt_for_server(tid).map(nothing);
        }
        if !has {
            return Err(libc::ESRCH);
        }
        match op {
            3 | 4 => {
                let to_syscall = op == 4 || tracee.is_released;
                let request = if to_syscall { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
                plain(request, tid, a as usize)?;
                tracee.stopped = false;
                if let Some(held) = &mut tracee.server {
                    (held.has, held.report, held.by_syscall) = (false, None, op == 4);
                }
                Ok(Some((0, vec![])))
            }
            op => read_or_write(op, tid, a, payload).map(Some),
        }
    }

    fn hold(&mut self, tid: pid_t) -> Result<(), i32> {
        if !self.tracees.contains_key(&tid) {
            // A new one that has not stopped yet; the kernel knows whose it is.
            plain(libc::PTRACE_INTERRUPT, tid, 0)?;
            self.add(tid, Tracee::new(true));
        }
        let tracee = self.tracees.get_mut(&tid).ok_or(libc::ESRCH)?;
        if tracee.server.is_some() {
            return Err(libc::EBUSY);
        }
        tracee.server = Some(Held::default());
        Ok(())
    }

    fn interrupt_for_server(&mut self, tid: pid_t) -> Done {
        let tracee = self.tracees.get_mut(&tid).ok_or(libc::ESRCH)?;
        let held = tracee.server.as_mut().ok_or(libc::ESRCH)?;
        match tracee.told.filter(|_| tracee.stopped && !held.has) {
            // It is in such a stop.
            Some(status) if event_of(status) == libc::PTRACE_EVENT_STOP => {
                (held.has, held.shown, held.report, held.last) = (true, true, Some(status), status);
                return Ok(0);
            }
            // It can be brought into one before it does anything.
            Some(status) => {
                const MOVABLE: [c_int; 4] = [
                    libc::PTRACE_EVENT_EXEC,
                    libc::PTRACE_EVENT_FORK,
                    libc::PTRACE_EVENT_CLONE,
                    libc::PTRACE_EVENT_VFORK_DONE,
                ];
                plain(libc::PTRACE_INTERRUPT, tid, 0)?;
                held.interrupting = true;
                if MOVABLE.contains(&event_of(status)) {
                    plain(libc::PTRACE_CONT, tid, 0)?;
                    tracee.stopped = false;
                }
            }
            None => {
                plain(libc::PTRACE_INTERRUPT, tid, 0)?;
                held.interrupting = true;
            }
        }
        Ok(0)
    }

    /// The server lets go of a tracee.
    fn leave(&mut self, tid: pid_t, for_good: bool) {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return };
        let Some(held) = tracee.server.take() else { return };
        if for_good || tracee.is_released {
            tracee.places = places_of(tid);
        }
        if for_good && !tracee.is_released {
            tracee.is_released = true;
            if tracee.told.is_none() && tracee.put_off.is_none() && !tracee.is_listening() {
                tracee.interrupting = true;
            }
            if !held.has && tracee.interrupting {
                let _ = plain(libc::PTRACE_INTERRUPT, tid, 0);
            }
            self.tell_user(without_usage(tid, RELEASED));
        }
        let Some(tracee) = self.tracees.get_mut(&tid) else { return };
        tracee.stale_interrupt |= held.interrupting;
        if !held.has {
            // (If it is on its way from one stop to another, its user has it when it is there.)
            return;
        }
        let status = held.last;
        let is_signal = event_of(status) == 0 && libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80;
        let stopped_anew = is_group_stop(status) && !tracee.is_listening();
        let wanted = tracee.interrupting && event_of(status) == libc::PTRACE_EVENT_STOP;
        if let Some(later) = tracee.later.take() {
            let message = tracee.message;
            self.tell_user(without_usage(tid, later));
            if let Some(tracee) = self.tracees.get_mut(&tid) {
                tracee.message = message;
            }
        } else if tracee.told.is_some() {
            // It was lent, and is stopped as it was.
        } else if tracee.put_off.is_none() && (is_signal || wanted || stopped_anew) {
            tracee.interrupting &= !wanted;
            self.tell_user(without_usage(tid, status));
        } else {
            tracee.was_interrupted = is_interrupt(status);
            self.resume_as_asked(tid, status);
        }
    }

    /// The server is gone: its tracees run on.
    fn lose_server(&mut self) {
        self.server = None;
        self.waits.clear();
        for tid in self.tracees.keys().copied().collect::<Vec<_>>() {
            self.leave(tid, false);
        }
    }
}

/// Whether a stop at a system call of a thread that was let go for good is no matter of the program's: ring3's code, which is still mapped,
/// makes the call, or the server has interrupted it, and it is made again.
fn is_unseen(tid: pid_t, tracee: &Tracee) -> bool {
    let is_interrupting = tracee.server.as_ref().is_some_and(|held| held.interrupting);
    if tracee.places.is_none() && !is_interrupting {
        return false;
    }
    let Ok(registers) = registers(tid) else { return false };
    is_interrupting && RESTARTS.contains(&(registers.rax as i64))
        || tracee.places.is_some_and(|places| places.have_of_ring3(registers.rip))
}

/// An event that was seen earlier.
fn without_usage(tid: pid_t, status: c_int) -> Event {
    // SAFETY: made of integers.
    Event { tid, status, rusage: unsafe { std::mem::zeroed() } }
}
