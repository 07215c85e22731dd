//! A process whose threads are all stopped by us.
//!
//! The hard part is to be invisible. Threads are seized and interrupted, never sent a signal; a signal that
//! arrives first is delivered at once and the thread stops behind it. Remote system calls run with all
//! signals blocked (the mask is the tracer's to change) and are driven by system call stops, since a
//! single-step trap would be a SIGTRAP that changes the disposition of a target which ignores it. A SIGSTOP,
//! which cannot be blocked, is delivered: the thread goes on for us, and the kernel stops the process when we
//! let it go, unless a SIGCONT has come meanwhile. Before a
//! thread goes on it is brought back into an interrupt stop: only on the way out of one does the kernel look
//! at the restored registers and restart the system call that we interrupted.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::Error;
use crate::calls::Borrowed;
use crate::memory::open_memory;
use crate::process::{Mapping, Pid, Statuses, is_live, mappings, not_permitted, thread_state, threads, tracer_of};
use crate::raw_ptrace::{self as ptrace, Pause, Registers, Tid, Wait};
use crate::{proxy, rescue_frame};

/// Rounds of looking for new threads before giving up on a process that creates them faster than we stop them.
const ROUNDS_MAX: u32 = 1000;
/// Stacks of a thread that are looked at for signal frames.
const STACKS_MAX: u32 = 8;
/// A remote system call must return within this time.
pub(crate) const CALL_WITHIN: Duration = Duration::from_secs(2);
/// Stops at system calls of a thread that has announced an `execve`, until it makes that. (Handlers of signals may come first.)
const CALLS_BEFORE_EXEC_MAX: u32 = 1000;
/// Whether the caller has given up is asked this often.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// A thread that has ended is gone within this time.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// All threads of a process, stopped by the running thread, whose end lets them go.
#[derive(Debug)]
pub struct Stopped {
    pub(crate) pid: u32,
    threads: Vec<Tid>,
    pub(crate) statuses: Statuses,
    memory: File,
    mappings: OnceCell<Arc<[Mapping]>>,
    /// Registers that were read since a thread stopped: a request for each thread and site would take longer than all else.
    known: RefCell<BTreeMap<Tid, Registers>>,
    /// What was found on the stacks, once somebody has looked.
    contexts: RefCell<Option<Vec<SavedContext>>>,
    /// Where threads are, and where they go back to if they make a call again, in order, once it was asked for.
    pub(crate) places: RefCell<Option<Vec<u64>>>,
    /// The signals that it handles, once it was asked for.
    pub(crate) handled: Cell<Option<u64>>,
    /// Registers and signal mask of the thread that makes remote system calls, while it does.
    pub(crate) borrowed: Option<Borrowed>,
    pub(crate) syscall_instruction: Option<u64>,
    options: libc::c_int,
    since: Instant,
    /// Where it is said how long it was stopped.
    clock: Option<Arc<AtomicU64>>,
}

/// A part of what a signal frame keeps of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedContext {
    /// Where its `rax`, `rcx`, `rsp` and `rip` lie.
    pub address: u64,
    /// The registers.
    pub rcx: u64,
    /// See `rcx`.
    pub rsp: u64,
    /// See `rcx`.
    pub rip: u64,
}

/// A signal frame in memory.
struct SignalFrame {
    context: SavedContext,
    /// The alternate stack of its thread (`uc_stack`).
    alternate: Range<u64>,
}

impl SignalFrame {
    /// Whether a thread whose stack pointer is `rsp` may return to it. On the alternate stack the frames of handlers stay that have
    /// returned; a thread that is not on that stack does not return to them.
    fn may_be_of(&self, rsp: u64) -> bool {
        let at = self.context.address;
        at >= rsp && (self.alternate.contains(&rsp) || !self.alternate.contains(&at))
    }
}

/// Stops all threads of a process for as long as `work` takes.
///
/// # Errors
/// [`Error::NotPermitted`], [`Error::AlreadyTraced`], [`Error::ThreadDoesNotStop`], [`Error::Exited`], [`Error::Executed`];
/// then every thread goes on as before.
pub fn while_stopped<R: Send>(
    pid: Pid,
    within: Duration,
    work: impl FnOnce(&mut Stopped) -> R + Send,
) -> Result<R, Error> {
    in_a_thread(|| {
        let mut stopped = Stopped::seize(pid, within)?;
        let result = work(&mut stopped);
        Ok((result, stopped.finish()))
    })
    .map(|(result, _)| result)
}

/// Stops processes that others trace through proxies, and has these let them go for good if `is_done` says so: from then on the kernel
/// tells their tracers of their system calls. A thread that cannot be stopped, because it waits for a `vfork` child, say, stops
/// before it makes its next call.
///
/// # Errors
/// There is no thread for it.
pub fn let_go(pids: &[u32], within: Duration, is_done: impl FnOnce() -> bool + Send) -> Result<bool, Error> {
    in_a_thread(|| {
        let stopped: Vec<_> = pids.iter().map(|pid| Stopped::seize(Pid(*pid), within)).collect();
        let is_done = is_done();
        if is_done {
            proxy::leave_for_good();
        }
        drop(stopped);
        Ok(is_done)
    })
}

/// What became of an execution that was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced<R> {
    /// The program was executed, and `work` done.
    Executed(R),
    /// The call failed, took too long, or must not be followed.
    NotFollowed,
    /// The thread did something else.
    NotCalled,
    /// The caller gave up.
    Cancelled,
}

/// How an announced execution is followed.
pub struct Following<'a> {
    /// The thread must call `execve` within this time.
    pub call_within: Duration,
    /// That must end within this time.
    pub exec_within: Duration,
    /// Asked again and again: whether the caller has given up.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Whether the program may be followed; is told whose memory and registers say what it is.
    pub may_follow: &'a (dyn Fn(&Stopped, &Registers) -> bool + Sync),
    /// The thread is in its `execve` already, which goes on after `ready`: what it calls is not looked at.
    pub in_call: bool,
}

/// Stops a process for as long as `work` takes, at the first instruction of the program that its thread `tid`, which waits for
/// `ready`, is about to execute. The running thread, which must have been made for this, lets it go when it ends: whoever joins it
/// waits for that by [`await_release`].
///
/// # Errors
/// As [`while_stopped`].
pub fn while_stopped_at_exec<R>(
    pid: Pid,
    tid: Tid,
    following: &Following<'_>,
    ready: impl FnOnce(),
    work: impl FnOnce(&mut Stopped) -> R,
) -> Result<Announced<R>, Error> {
    take_pauses_as_they_are();
    // (A proxy, which does not end with this thread, is told in any case.)
    let _leaving = proxy::Leaving;
    Ok(match Stopped::follow_exec(pid, tid, following, ready)? {
        Announced::Executed(mut stopped) => {
            let result = work(&mut stopped);
            stopped.finish();
            Announced::Executed(result)
        }
        Announced::NotFollowed => Announced::NotFollowed,
        Announced::NotCalled => Announced::NotCalled,
        Announced::Cancelled => Announced::Cancelled,
    })
}

/// Pauses of the running thread are as short as they say: the kernel may add 50 us to each else.
fn take_pauses_as_they_are() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Waits until a thread of ours that was joined has let go of all that it has traced. (It can be joined a little before.)
pub fn await_release(tid: Tid) {
    let deadline = Instant::now() + GONE_WITHIN;
    while ptrace::is_own_thread(tid) && Instant::now() < deadline {
        std::thread::yield_now();
    }
}

/// Does what stops a process in a thread of its own: when that ends the kernel lets go of all that it has traced, at once
/// (kernel/ptrace.c:exit_ptrace), whatever state it is in. (Let go one after another, the first ones would take the CPU from
/// us, and the last ones be stopped for milliseconds more.)
fn in_a_thread<R: Send>(job: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, Error> {
    let (tid, result) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("ring3-stop".into());
        let thread = thread.spawn_scoped(scope, || {
            take_pauses_as_they_are();
            // (A proxy, which does not end with us, is told, however the job ends.)
            let _leaving = proxy::Leaving;
            (rustix::thread::gettid().as_raw_nonzero().get() as Tid, job())
        });
        let thread = thread.map_err(|error| Error::io("a thread to stop a process", error))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    await_release(tid);
    result
}

/// The end of the next part of a wait.
fn slice_of(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + ASK_EVERY)
}

impl Stopped {
    fn seize(pid: Pid, within: Duration) -> Result<Stopped, Error> {
        let mut stopped = Stopped::unattached(pid.0)?;
        stopped.stop_all(within)?;
        stopped.checked()
    }

    /// Stops the threads that are not yet, those that are made meanwhile included.
    fn stop_all(&mut self, within: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + within;
        for _ in 0..ROUNDS_MAX {
            let mut new = threads(self.pid)?;
            new.retain(|tid| !self.threads.contains(tid) && self.statuses.is_live(*tid));
            if new.is_empty() {
                return Ok(());
            }
            let mut seized = vec![];
            for tid in new {
                if self.seize_thread(tid)? {
                    seized.push(tid);
                }
            }
            if self.threads.len() == seized.len() {
                self.since = Instant::now();
            }
            // Who sleeps is woken by this, and may take the CPU from us while others are stopped: most often the first one.
            seized.iter().rev().for_each(|tid| drop(ptrace::interrupt(*tid)));
            let mut pause = Pause::default();
            let mut stopped = Ok(());
            for tid in seized {
                // (Whatever becomes of others: who was interrupted makes its call again.)
                stopped = stopped.and(self.await_stop(tid, deadline, &mut pause));
            }
            stopped?;
        }
        Err(Error::ThreadDoesNotStop { tid: self.pid, state: 'R' })
    }

    /// See [`while_stopped_at_exec`].
    fn follow_exec(
        pid: Pid,
        tid: Tid,
        following: &Following<'_>,
        ready: impl FnOnce(),
    ) -> Result<Announced<Stopped>, Error> {
        const NOT_YET: i64 = -(libc::ENOSYS as i64);
        let mut stopped = Stopped::unattached(pid.0)?;
        let mut deadline = Instant::now() + following.call_within;
        if !stopped.seize_thread(tid)? {
            return Err(Error::Exited { pid: pid.0 });
        }
        let (mut tid, mut calls, mut is_called) = (tid, 0, following.in_call);
        if following.in_call {
            ready();
            // (If the call fails, the thread stops where it returns.)
            let _ = ptrace::interrupt(tid);
            deadline = Instant::now() + following.exec_within;
        } else {
            let _ = ptrace::interrupt(tid);
            while let Err(error) = stopped.await_stop(tid, slice_of(deadline), &mut Pause::default()) {
                if (following.cancelled)() {
                    return Ok(Announced::Cancelled);
                }
                if !matches!(error, Error::ThreadDoesNotStop { .. }) || Instant::now() >= deadline {
                    return Err(error);
                }
            }
            ready();
            stopped.end_futile_wait(tid);
            let _ = ptrace::resume_to_syscall(tid, 0);
        }
        loop {
            stopped.forget_registers();
            if (following.cancelled)() {
                return Ok(Announced::Cancelled);
            }
            if Instant::now() >= deadline {
                return Ok(if is_called { Announced::NotFollowed } else { Announced::NotCalled });
            }
            let mut signal = 0;
            match ptrace::wait(tid, slice_of(deadline), &mut Pause::default()) {
                Wait::Event(libc::PTRACE_EVENT_EXEC) => break,
                Wait::Signal(arrived) => signal = arrived,
                Wait::EventStop(libc::SIGTRAP) if following.in_call => {
                    // (It may have become a tracee when its call had almost ended.)
                    let registers = stopped.registers(tid)?;
                    let executes = matches!(registers.orig_rax as i64, libc::SYS_execve | libc::SYS_execveat);
                    if !executes || registers.rax != 0 {
                        return Ok(Announced::NotFollowed);
                    }
                    break;
                }
                Wait::EventStop(_) | Wait::Event(_) => {}
                Wait::Syscall => {
                    let registers = stopped.registers(tid)?;
                    let executes = matches!(registers.orig_rax as i64, libc::SYS_execve | libc::SYS_execveat);
                    let begins = registers.rax as i64 == NOT_YET;
                    if executes && (!begins || !(following.may_follow)(&stopped, &registers)) {
                        return Ok(Announced::NotFollowed);
                    }
                    if executes {
                        is_called = true;
                        deadline = Instant::now() + following.exec_within;
                    }
                    calls += 1;
                    if calls > CALLS_BEFORE_EXEC_MAX {
                        return Ok(Announced::NotCalled);
                    }
                }
                // A thread that executes a program becomes the leader.
                Wait::Gone if tid != pid.0 => {
                    proxy::rename(tid, pid.0);
                    stopped.threads = vec![pid.0];
                    tid = pid.0;
                    continue;
                }
                Wait::Gone => return Err(Error::Exited { pid: pid.0 }),
                Wait::Nothing => continue,
            }
            let _ = match following.in_call {
                true => ptrace::resume(tid, signal),
                false => ptrace::resume_to_syscall(tid, signal),
            };
        }
        stopped.at_new_program().map(Announced::Executed)
    }

    /// A stopped thread that would wait by futex(2) again, for a word that has changed meanwhile, goes on with what the kernel would
    /// tell it at once: two stops at system calls less.
    fn end_futile_wait(&self, tid: Tid) {
        let Ok(registers) = self.registers(tid) else { return };
        let waits = registers.orig_rax as i64 == libc::SYS_futex
            && matches!(registers.rsi as i32 & libc::FUTEX_CMD_MASK, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET);
        let mut word = [0u8; 4];
        let is_futile = waits
            && made_again(&registers).is_some()
            && self.read(registers.rdi, &mut word).is_ok()
            && u32::from_le_bytes(word) != registers.rdx as u32;
        if is_futile {
            let rax = i64::from(-libc::EAGAIN) as u64;
            let _ = ptrace::set_registers(tid, &Registers { rax, orig_rax: u64::MAX, ..registers });
        }
    }

    /// A tracee has executed a program.
    fn at_new_program(mut self) -> Result<Stopped, Error> {
        self.since = Instant::now();
        let pid = self.pid;
        self.memory = open_memory(pid, pid)?;
        self.mappings = OnceCell::new();
        self.handled.set(None);
        self.interrupt_again(pid)?;
        self.forget_registers();
        self.checked()
    }

    /// Whether no filter holds for what its threads call while they are stopped.
    pub(crate) fn suspends_filters(&self) -> bool {
        self.options & libc::PTRACE_O_SUSPEND_SECCOMP != 0
    }

    fn unattached(pid: u32) -> Result<Stopped, Error> {
        rescue_frame::prepare();
        let mut options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
        let info = crate::process::look(Pid(pid), true)?;
        if info.seccomp {
            options |= libc::PTRACE_O_SUSPEND_SECCOMP;
        }
        Ok(Stopped {
            pid,
            threads: vec![],
            statuses: Statuses::of(pid),
            memory: open_memory(pid, info.thread)?,
            mappings: OnceCell::new(),
            known: RefCell::default(),
            contexts: RefCell::default(),
            places: RefCell::default(),
            handled: Cell::default(),
            borrowed: None,
            syscall_instruction: None,
            options,
            since: Instant::now(),
            clock: None,
        })
    }

    /// Becomes a thread's tracer; false if it is gone.
    fn seize_thread(&mut self, tid: Tid) -> Result<bool, Error> {
        match ptrace::seize(tid, self.options) {
            Ok(()) => {
                self.threads.push(tid);
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(_) if matches!(thread_state(self.pid, tid), None | Some('Z' | 'X')) => Ok(false),
            Err(_) => Err(self.why_not(tid)),
        }
    }

    fn why_not(&self, tid: Tid) -> Error {
        match tracer_of(tid) {
            Some(tracer) => Error::AlreadyTraced { pid: self.pid, tracer },
            None => not_permitted(self.pid),
        }
    }

    /// Waits until an interrupted thread has stopped; signals that come first are delivered.
    pub(crate) fn await_stop(&mut self, tid: Tid, deadline: Instant, pause: &mut Pause) -> Result<(), Error> {
        loop {
            match ptrace::wait(tid, deadline, pause) {
                // The signal of an exception comes first, too: with remote calls in between it would be lost, or come as one
                // that somebody has sent. (Another interrupt could come before it each time.)
                Wait::EventStop(libc::SIGTRAP) if ptrace::has_exception_pending(tid) => {
                    let _ = ptrace::resume(tid, 0);
                }
                Wait::EventStop(_) => {
                    self.restart_what_we_interrupted(tid);
                    return Ok(());
                }
                Wait::Signal(signal) => {
                    let _ = ptrace::resume(tid, signal);
                    let _ = ptrace::interrupt(tid);
                }
                // The program that was to be stopped is gone: the process runs another one.
                Wait::Event(libc::PTRACE_EVENT_EXEC) => return Err(Error::Executed { pid: self.pid }),
                Wait::Syscall | Wait::Event(_) => {
                    let _ = ptrace::resume(tid, 0);
                    let _ = ptrace::interrupt(tid);
                }
                Wait::Gone => {
                    self.threads.retain(|other| *other != tid);
                    return if self.is_alive() { Ok(()) } else { Err(Error::Exited { pid: self.pid }) };
                }
                Wait::Nothing => {
                    let state = thread_state(self.pid, tid).unwrap_or('?');
                    return Err(Error::ThreadDoesNotStop { tid, state });
                }
            }
        }
    }

    /// A few system calls return EINTR for a mere stop (signal(7), "Interruption of system calls ... by stop
    /// signals"; those of sockets with a timeout). Nobody may see that: the call is made again.
    fn restart_what_we_interrupted(&self, tid: Tid) {
        self.forget_registers_of(tid);
        const NOT_RESTARTED: [i64; 18] = [
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_io_getevents,
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_recvmmsg,
            libc::SYS_write,
            libc::SYS_writev,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_accept,
            libc::SYS_accept4,
        ];
        /// The kernel would have the thread go on with its call by `restart_syscall` (`ERESTART_RESTARTBLOCK`).
        const RESTART_BLOCK: i64 = -516;
        let Ok(mut registers) = ptrace::registers(tid) else { return };
        let in_call = registers.orig_rax as i64 >= 0;
        let interrupted = match registers.rax as i64 {
            RESTART_BLOCK if in_call && self.suspends_filters() => !self.may_restart(tid),
            result => result == -i64::from(libc::EINTR) && NOT_RESTARTED.contains(&(registers.orig_rax as i64)),
        };
        let mut before = [0u8; 2];
        let at = registers.rip.wrapping_sub(2);
        if interrupted && self.memory.read_exact_at(&mut before, at).is_ok() && before == [0x0f, 0x05] {
            registers.rax = registers.orig_rax;
            registers.rip = at;
            registers.orig_rax = u64::MAX;
            if ptrace::set_registers(tid, &registers).is_err() {
                return;
            }
        }
        // (A borrowed thread's own are others.)
        if self.borrowed.is_none() {
            self.known.borrow_mut().insert(tid, registers);
            *self.places.borrow_mut() = None;
        }
    }

    /// A thread ran again.
    pub(crate) fn forget_registers_of(&self, tid: Tid) {
        self.known.borrow_mut().remove(&tid);
        *self.places.borrow_mut() = None;
        *self.contexts.borrow_mut() = None;
    }

    fn forget_registers(&self) {
        self.known.borrow_mut().clear();
        *self.places.borrow_mut() = None;
        *self.contexts.borrow_mut() = None;
    }

    /// Whether the process still has the memory that we opened before we stopped it, so has executed no program since. (From a
    /// memory that no process has any more, a read at any address returns 0 bytes: fs/proc/base.c:mem_rw.)
    fn has_its_memory(&self) -> bool {
        !matches!(self.memory.read_at(&mut [0], 0), Ok(0))
    }

    /// The last look before the caller gets it: 64-bit code, somebody left, the same program.
    fn checked(self) -> Result<Stopped, Error> {
        const CS_64: u64 = 0x33;
        self.check_filters()?;
        let Some(tid) = self.threads.first() else { return Err(Error::Exited { pid: self.pid }) };
        if !self.has_its_memory() {
            return Err(Error::Executed { pid: self.pid });
        }
        let registers = self.registers(*tid)?;
        if registers.cs != CS_64 {
            return Err(Error::NotX86_64 { pid: self.pid, what: "running 32-bit code".into() });
        }
        Ok(self)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Has it said, when they are let go, for how many microseconds its threads were stopped. (What the kernel takes to
    /// let them go, less than 100, nobody can say who may have to wait for a CPU then.)
    pub fn tell_time(&mut self, clock: &Arc<AtomicU64>) {
        self.clock = Some(clock.clone());
    }

    /// Its threads.
    pub fn threads(&self) -> &[Tid] {
        &self.threads
    }

    /// Its mappings, as they were when this was first asked: what was mapped for us since is not among them.
    pub fn mappings(&self) -> Result<Arc<[Mapping]>, Error> {
        if let Some(mappings) = self.mappings.get() {
            return Ok(mappings.clone());
        }
        let mappings: Arc<[Mapping]> = mappings(Pid(self.pid))?.into();
        Ok(self.mappings.get_or_init(|| mappings).clone())
    }

    fn is_alive(&self) -> bool {
        threads(self.pid).is_ok_and(|threads| threads.iter().any(|tid| is_live(self.pid, *tid)))
    }

    pub(crate) fn gone(&self, what: &str, error: std::io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ESRCH) => Error::Exited { pid: self.pid },
            _ => Error::io(format!("{what} of process {}", self.pid), error),
        }
    }

    /// A thread's registers as they were when it stopped.
    pub fn registers(&self, tid: Tid) -> Result<Registers, Error> {
        match &self.borrowed {
            Some(borrowed) if borrowed.tid == tid => Ok(borrowed.registers),
            _ => self.known_registers(tid),
        }
    }

    /// Those with which a thread stopped, or those that it has been given since.
    pub(crate) fn known_registers(&self, tid: Tid) -> Result<Registers, Error> {
        if let Some(registers) = self.known.borrow().get(&tid) {
            return Ok(*registers);
        }
        let registers = ptrace::registers(tid).map_err(|error| self.gone("registers", error))?;
        self.known.borrow_mut().insert(tid, registers);
        Ok(registers)
    }

    /// Changes the registers with which a thread goes on.
    pub fn set_registers(&mut self, tid: Tid, registers: &Registers) -> Result<(), Error> {
        match &self.borrowed {
            Some(borrowed) if borrowed.tid == tid => self.set_borrowed_registers(registers)?,
            _ => ptrace::set_registers(tid, registers).map_err(|error| self.gone("registers", error))?,
        }
        self.known.borrow_mut().insert(tid, *registers);
        *self.places.borrow_mut() = None;
        Ok(())
    }

    /// Reads memory.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Error> {
        self.memory.read_exact_at(out, address).map_err(|error| self.gone("memory", error))
    }

    /// Writes memory, read-only code included; pages of files become private copies.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write_all_at(bytes, address).map_err(|error| self.gone("memory", error))
    }

    /// Where threads go on when signal handlers return that they are in: found on their stacks, by what a signal frame looks
    /// like (`struct sigcontext`, arch/x86/include/uapi/asm/sigcontext.h).
    pub fn saved_contexts(&self) -> Result<Vec<SavedContext>, Error> {
        if let Some(contexts) = &*self.contexts.borrow() {
            return Ok(contexts.clone());
        }
        let found = self.find_contexts()?;
        *self.contexts.borrow_mut() = Some(found.clone());
        Ok(found)
    }

    fn find_contexts(&self) -> Result<Vec<SavedContext>, Error> {
        let mappings = self.mappings()?;
        let mut stack_pointers = vec![];
        for tid in &self.threads {
            stack_pointers.push(self.registers(*tid)?.rsp & !7);
        }
        // A mapping may be many stacks: those of Go are on its heap. It is read once, from the lowest one on.
        stack_pointers.sort_unstable();
        let mut known = BTreeMap::<u64, (u64, Vec<SignalFrame>)>::new();
        let mut found = vec![];
        for mut rsp in stack_pointers {
            // A handler on a stack of its own may have interrupted another one.
            for _ in 0..STACKS_MAX {
                let Some(stack) = mappings.iter().find(|mapping| mapping.range.contains(&rsp)) else { break };
                let end = stack.range.end;
                let frames = match known.get(&end) {
                    Some((from, frames)) if *from <= rsp => frames,
                    _ => &known.entry(end).insert_entry((rsp, self.frames_in(rsp..end))).into_mut().1,
                };
                let before = found.len();
                found.extend(frames.iter().filter(|frame| frame.may_be_of(rsp)).map(|frame| frame.context));
                let Some(last) = found[before..].last() else { break };
                if stack.range.contains(&last.rsp) {
                    break;
                }
                rsp = last.rsp & !7;
            }
        }
        found.sort_by_key(|context| context.address);
        found.dedup();
        Ok(found)
    }

    /// What looks like a signal frame in a part of memory.
    fn frames_in(&self, memory: Range<u64>) -> Vec<SignalFrame> {
        /// `cs`, `gs`, `fs`, `ss` of user code.
        const SEGMENTS: u64 = 0x002b_0000_0000_0033;
        const FLAGS_MAX: u64 = 1 << 22;
        /// Bytes from `uc_stack` to the `rax` of `uc_mcontext` (include/uapi/asm-generic/ucontext.h), and from there to `cs`.
        const SINCE_STACK: usize = 16 * 8;
        const UNTIL_SEGMENTS: usize = 5 * 8;
        const BEFORE_SEGMENTS: usize = SINCE_STACK + UNTIL_SEGMENTS;
        const PIECE_BYTES: usize = 256 << 10;
        let mut frames = vec![];
        // (Most stacks are short, and there may be many.)
        let mut piece = vec![0u8; PIECE_BYTES.min((memory.end - memory.start) as usize)];
        let mut start = memory.start;
        while start < memory.end {
            let bytes = PIECE_BYTES.min((memory.end - start) as usize);
            let piece = &mut piece[..bytes];
            let is_there = self.memory.read_exact_at(piece, start).is_ok();
            let word = |at: usize| u64::from_le_bytes(piece[at..at + 8].try_into().expect("8 bytes"));
            let candidates = (BEFORE_SEGMENTS..bytes.saturating_sub(7)).step_by(8);
            for at in candidates.filter(|at| is_there && word(*at) == SEGMENTS) {
                let rax = at - UNTIL_SEGMENTS;
                let (rcx, rsp, rip, flags) = (word(rax + 8), word(rax + 16), word(rax + 24), word(rax + 32));
                let stack = word(rax - SINCE_STACK);
                if flags & 2 != 0 && flags < FLAGS_MAX {
                    let alternate = stack..stack.saturating_add(word(rax - SINCE_STACK + 16));
                    let context = SavedContext { address: start + rax as u64, rcx, rsp, rip };
                    frames.push(SignalFrame { context, alternate });
                }
            }
            start += match start + bytes as u64 == memory.end {
                true => bytes as u64,
                false => (bytes - BEFORE_SEGMENTS) as u64,
            };
        }
        frames
    }

    /// Changes where a thread goes on when a signal handler returns.
    pub fn set_context(&mut self, context: &SavedContext) -> Result<(), Error> {
        self.write(context.address + 8, &context.rcx.to_le_bytes())?;
        self.write(context.address + 24, &context.rip.to_le_bytes())?;
        let mut known = self.contexts.borrow_mut();
        for known in known.iter_mut().flatten().filter(|known| known.address == context.address) {
            *known = *context;
        }
        Ok(())
    }

    /// Threads whose instruction pointer lies in one of the ranges.
    pub fn threads_inside(&self, ranges: &[Range<u64>]) -> Result<Vec<Tid>, Error> {
        let mut inside = vec![];
        for tid in &self.threads {
            let rip = self.registers(*tid)?.rip;
            if ranges.iter().any(|range| range.contains(&rip)) {
                inside.push(*tid);
            }
        }
        Ok(inside)
    }

    /// Brings a stopped thread into an interrupt stop on its way to user mode.
    pub(crate) fn interrupt_again(&mut self, tid: Tid) -> Result<(), Error> {
        ptrace::interrupt(tid).map_err(|error| self.gone("thread", error))?;
        ptrace::resume(tid, 0).map_err(|error| self.gone("thread", error))?;
        self.await_interrupt(tid)
    }

    /// Waits for the interrupt stop of a thread that runs.
    pub(crate) fn await_interrupt(&mut self, tid: Tid) -> Result<(), Error> {
        let deadline = Instant::now() + CALL_WITHIN;
        loop {
            match ptrace::wait(tid, deadline, &mut Pause::default()) {
                Wait::EventStop(_) => return Ok(()),
                Wait::Signal(signal) => drop(ptrace::resume(tid, signal)),
                Wait::Syscall | Wait::Event(_) => drop(ptrace::resume(tid, 0)),
                Wait::Gone => return Err(Error::Exited { pid: self.pid }),
                Wait::Nothing => return Err(Error::ThreadDoesNotStop { tid, state: '?' }),
            }
        }
    }
}

impl Stopped {
    /// The process may resume once the running thread has ended. The result is what is better dropped after that.
    fn finish(mut self) -> Statuses {
        self.restore_thread();
        if let Some(clock) = &self.clock {
            clock.store(self.since.elapsed().as_micros() as u64, Relaxed);
        }
        std::mem::take(&mut self.statuses)
    }

    fn restore_thread(&mut self) {
        if let Err(error) = self.give_thread_back()
            && !matches!(error, Error::Exited { .. })
        {
            tracing::error!(pid = self.pid, "a thread's registers could not be restored: {error}");
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.restore_thread();
    }
}

/// The registers of a thread whose system call the kernel would make again when it goes on, set so that it makes the call itself.
/// Mirrors arch/x86/kernel/signal.c:arch_do_signal_or_restart.
pub fn made_again(registers: &Registers) -> Option<Registers> {
    const RESTART_BLOCK: i64 = -516;
    const RESTART: [i64; 3] = [-512, -513, -514];
    const SYSCALL_BYTES: u64 = 2;
    let result = registers.rax as i64;
    let in_call = registers.orig_rax as i64 >= 0;
    let number = match result {
        RESTART_BLOCK => libc::SYS_restart_syscall as u64,
        _ => registers.orig_rax,
    };
    let again = in_call && (result == RESTART_BLOCK || RESTART.contains(&result));
    let rip = registers.rip.wrapping_sub(SYSCALL_BYTES);
    again.then_some(Registers { rax: number, orig_rax: u64::MAX, rip, ..*registers })
}
