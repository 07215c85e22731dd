//! A process whose threads are all stopped by us.
//!
//! The hard part is to be invisible. Threads are seized and interrupted, never sent a signal; a signal that
//! arrives first is delivered at once and the thread stops behind it. Remote system calls run with all
//! signals blocked (the mask is the tracer's to change) and are driven by system call stops, since a
//! single-step trap would be a SIGTRAP that changes the disposition of a target which ignores it. Before a
//! thread goes on it is brought back into an interrupt stop: only on the way out of one does the kernel look
//! at the restored registers and restart the system call that we interrupted.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Error;
use crate::lifeline;
use crate::process::{Pid, live_threads, mappings, not_permitted, status_field, thread_state};
use crate::raw_ptrace::{self as ptrace, Dispatch, Registers, Tid, Wait};

/// Rounds of looking for new threads before giving up on a process that creates them faster than we stop them.
const ROUNDS_MAX: u32 = 1000;
/// How often threads in a dead server's lifeline are let go on, and for how long.
const HOMEWARD_MAX: u32 = 20;
const HOMEWARD_PAUSE: Duration = Duration::from_micros(50);
/// Stacks of a thread that are looked at for signal frames.
const STACKS_MAX: u32 = 8;
/// A remote system call must return within this time.
const CALL_WITHIN: Duration = Duration::from_secs(2);
/// Threads that do not stop for as long as this are let go later.
const LET_GO_WITHIN: Duration = Duration::from_millis(20);

/// All threads of a process, stopped. Dropping it lets them go.
#[derive(Debug)]
pub struct Stopped {
    pid: u32,
    threads: Vec<Tid>,
    memory: File,
    /// Registers and signal mask of the thread that makes remote system calls, while it does.
    pub(crate) borrowed: Option<Borrowed>,
    syscall_instruction: Option<u64>,
    /// A stop signal that arrived during remote calls; sent again at the end.
    stop_signal: i32,
    options: libc::c_int,
    since: Instant,
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

#[derive(Debug)]
pub(crate) struct Borrowed {
    pub(crate) tid: Tid,
    registers: Registers,
    mask: u64,
    /// The signals that it blocked, those of a call that blocks some for its own time among them.
    pub(crate) blocked: u64,
    /// What is dispatched of its calls: of remote ones nothing.
    pub(crate) dispatch: Dispatch,
    /// Where remote calls are made from, once there is such a place.
    lifeline: Option<Lifeline>,
}

/// Address and bytes of a [`lifeline`].
#[derive(Clone, Copy, Debug)]
struct Lifeline {
    address: u64,
    bytes: usize,
    /// Mapped for this, not the vDSO's end.
    mapped: bool,
}

impl Stopped {
    /// Stops all threads of a process.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::AlreadyTraced`], [`Error::ThreadDoesNotStop`], [`Error::Exited`]; then every
    /// thread goes on as before.
    pub fn seize(pid: Pid, within: Duration) -> Result<Stopped, Error> {
        let mut stopped = Stopped::unattached(pid.0)?;
        stopped.stop_all(within)?;
        stopped.checked()
    }

    /// Stops the threads that are not yet, those that are made meanwhile included.
    fn stop_all(&mut self, within: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + within;
        for _ in 0..ROUNDS_MAX {
            let new: Vec<Tid> =
                live_threads(self.pid)?.into_iter().filter(|tid| !self.threads.contains(tid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            let mut waiting = vec![];
            for tid in new {
                if self.attach_thread(tid)? {
                    waiting.push(tid);
                }
            }
            for tid in waiting {
                self.await_stop(tid, deadline)?;
            }
        }
        Err(Error::ThreadDoesNotStop { tid: self.pid, state: 'R' })
    }

    /// Stops a process at the first instruction of the program that its thread `tid`, which waits for `ready`, is about to
    /// execute. `None`: the call failed, or `may_follow` does not allow it, being told whose memory and registers say what.
    pub fn follow_exec(
        pid: Pid,
        tid: Tid,
        within: Duration,
        ready: impl FnOnce(),
        may_follow: impl Fn(&Stopped, &Registers) -> bool,
    ) -> Result<Option<Stopped>, Error> {
        const NOT_YET: i64 = -(libc::ENOSYS as i64);
        let mut stopped = Stopped::unattached(pid.0)?;
        stopped.options |= libc::PTRACE_O_TRACEEXEC;
        let deadline = Instant::now() + within;
        if !stopped.attach_thread(tid)? {
            return Err(Error::Exited { pid: pid.0 });
        }
        stopped.await_stop(tid, deadline)?;
        ready();
        let (mut tid, mut signal) = (tid, 0);
        loop {
            let _ = ptrace::resume_to_syscall(tid, signal);
            signal = 0;
            match ptrace::wait(tid, deadline) {
                Wait::Event(libc::PTRACE_EVENT_EXEC) => break,
                Wait::Signal(arrived) => signal = arrived,
                Wait::EventStop(_) | Wait::Event(_) => {}
                Wait::Syscall => {
                    let registers = stopped.registers(tid)?;
                    let executes = matches!(registers.orig_rax as i64, libc::SYS_execve | libc::SYS_execveat);
                    let begins = registers.rax as i64 == NOT_YET;
                    if executes && (!begins || !may_follow(&stopped, &registers)) {
                        return Ok(None);
                    }
                }
                // A thread that executes a program becomes the leader.
                Wait::Gone if tid != pid.0 => {
                    stopped.threads = vec![pid.0];
                    tid = pid.0;
                }
                Wait::Gone => {
                    stopped.threads.clear();
                    return Err(Error::Exited { pid: pid.0 });
                }
                Wait::Nothing => return Ok(None),
            }
        }
        stopped.at_new_program().map(Some)
    }

    /// A tracee has executed a program.
    fn at_new_program(mut self) -> Result<Stopped, Error> {
        self.since = Instant::now();
        let pid = self.pid;
        let _ = ptrace::set_options(pid, self.options & !libc::PTRACE_O_TRACEEXEC);
        self.memory = open_memory(pid)?;
        self.interrupt_again(pid)?;
        self.checked()
    }

    fn unattached(pid: u32) -> Result<Stopped, Error> {
        let_go();
        let mut options = libc::PTRACE_O_TRACESYSGOOD;
        if crate::process::inspect(Pid(pid))?.seccomp {
            options |= libc::PTRACE_O_SUSPEND_SECCOMP;
        }
        Ok(Stopped {
            pid,
            threads: vec![],
            memory: open_memory(pid)?,
            borrowed: None,
            syscall_instruction: None,
            stop_signal: 0,
            options,
            since: Instant::now(),
        })
    }

    /// Seizes and interrupts a thread; false if it is gone.
    fn attach_thread(&mut self, tid: Tid) -> Result<bool, Error> {
        if !self.attach_one(tid)? {
            return Ok(false);
        }
        let _ = ptrace::interrupt(tid);
        Ok(true)
    }

    fn attach_one(&mut self, tid: Tid) -> Result<bool, Error> {
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
        let status = std::fs::read_to_string(format!("/proc/{}/task/{tid}/status", self.pid)).unwrap_or_default();
        let tracer = status_field(&status, "TracerPid").and_then(|tracer| tracer.parse().ok());
        match tracer {
            Some(tracer @ 1..) => Error::AlreadyTraced { pid: self.pid, tracer },
            _ => not_permitted(self.pid),
        }
    }

    /// Waits until an interrupted thread has stopped; signals that come first are delivered.
    fn await_stop(&mut self, tid: Tid, deadline: Instant) -> Result<(), Error> {
        loop {
            match ptrace::wait(tid, deadline) {
                Wait::EventStop(_) => {
                    self.restart_what_we_interrupted(tid);
                    return Ok(());
                }
                Wait::Signal(signal) => {
                    let _ = ptrace::resume(tid, signal);
                    let _ = ptrace::interrupt(tid);
                }
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
    /// signals"). Nobody may see that: the call is made again.
    fn restart_what_we_interrupted(&self, tid: Tid) {
        const NOT_RESTARTED: [i64; 7] = [
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_io_getevents,
        ];
        let Ok(mut registers) = ptrace::registers(tid) else { return };
        let interrupted =
            registers.rax as i64 == -i64::from(libc::EINTR) && NOT_RESTARTED.contains(&(registers.orig_rax as i64));
        let mut before = [0u8; 2];
        let at = registers.rip.wrapping_sub(2);
        if interrupted && self.memory.read_exact_at(&mut before, at).is_ok() && before == [0x0f, 0x05] {
            registers.rax = registers.orig_rax;
            registers.rip = at;
            registers.orig_rax = u64::MAX;
            let _ = ptrace::set_registers(tid, &registers);
        }
    }

    /// The last look before the caller gets it: 64-bit code, somebody left.
    fn checked(self) -> Result<Stopped, Error> {
        const CS_64: u64 = 0x33;
        let Some(tid) = self.threads.first() else { return Err(Error::Exited { pid: self.pid }) };
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

    /// When its threads were asked to stop.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Its threads.
    pub fn threads(&self) -> &[Tid] {
        &self.threads
    }

    fn is_alive(&self) -> bool {
        live_threads(self.pid).is_ok_and(|threads| !threads.is_empty())
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
            _ => ptrace::registers(tid).map_err(|error| self.gone("registers", error)),
        }
    }

    /// Changes the registers with which a thread goes on.
    pub fn set_registers(&mut self, tid: Tid, registers: &Registers) -> Result<(), Error> {
        match &mut self.borrowed {
            Some(borrowed) if borrowed.tid == tid => {
                borrowed.registers = *registers;
                let place = borrowed.lifeline;
                place.map_or(Ok(()), |place| self.fill(place).map(drop))
            }
            _ => ptrace::set_registers(tid, registers).map_err(|error| self.gone("registers", error)),
        }
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
        let mappings = mappings(Pid(self.pid))?;
        let mut found = vec![];
        for tid in &self.threads {
            let mut rsp = self.registers(*tid)?.rsp;
            // A handler on a stack of its own may have interrupted another one.
            for _ in 0..STACKS_MAX {
                let Some(stack) = mappings.iter().find(|mapping| mapping.range.contains(&rsp)) else { break };
                let frames = self.contexts_on(rsp & !7..stack.range.end);
                let Some(last) = frames.last().copied() else { break };
                found.extend(frames);
                if stack.range.contains(&last.rsp) {
                    break;
                }
                rsp = last.rsp;
            }
        }
        Ok(found)
    }

    /// The signal frames in a part of a stack.
    fn contexts_on(&self, stack: Range<u64>) -> Vec<SavedContext> {
        /// `cs`, `gs`, `fs`, `ss` of user code.
        const SEGMENTS: u64 = 0x002b_0000_0000_0033;
        const FLAGS_MAX: u64 = 1 << 22;
        let mut bytes = vec![0u8; (stack.end - stack.start) as usize];
        if self.memory.read_exact_at(&mut bytes, stack.start).is_err() {
            return vec![];
        }
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
        let frames =
            words.windows(6).enumerate().filter(|(_, w)| w[5] == SEGMENTS && w[4] & 2 != 0 && w[4] < FLAGS_MAX);
        let context = |(at, w): (usize, &[u64])| SavedContext {
            address: stack.start + at as u64 * 8,
            rcx: w[1],
            rsp: w[2],
            rip: w[3],
        };
        frames.map(context).collect()
    }

    /// Changes where a thread goes on when a signal handler returns.
    pub fn set_context(&mut self, context: &SavedContext) -> Result<(), Error> {
        self.write(context.address + 8, &context.rcx.to_le_bytes())?;
        self.write(context.address + 24, &context.rip.to_le_bytes())
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

    /// Replaces `expected` at `site` by `new`; a thread that stands inside is moved as `moved` says (`from`, `to`).
    ///
    /// # Errors
    /// [`Error::BytesDiffer`] or [`Error::ThreadInside`]; then nothing was written.
    pub fn write_site(&mut self, site: u64, expected: &[u8], new: &[u8], moved: &[(u64, u64)]) -> Result<(), Error> {
        let mut found = vec![0u8; expected.len()];
        self.read(site, &mut found)?;
        if found != expected {
            return Err(Error::BytesDiffer { address: site, expected: expected.to_vec(), found });
        }
        let mut moves = vec![];
        for tid in self.threads.clone() {
            let registers = self.registers(tid)?;
            if registers.rip > site && registers.rip < site + new.len() as u64 {
                let to = moved.iter().find(|(from, _)| *from == registers.rip);
                let (_, to) = to.ok_or(Error::ThreadInside { tid, address: registers.rip })?;
                moves.push((tid, Registers { rip: *to, ..registers }));
            }
        }
        self.write(site, new)?;
        moves.iter().try_for_each(|(tid, registers)| self.set_registers(*tid, registers))
    }

    // ---- remote system calls ----

    /// Makes a system call inside the process. Returns what it returns.
    ///
    /// # Errors
    /// [`Error::RemoteCall`] if the call itself fails.
    pub fn syscall(&mut self, name: &'static str, number: i64, args: [u64; 6]) -> Result<u64, Error> {
        self.borrow_thread()?;
        self.borrowed_call(name, number, args)
    }

    /// A call of the borrowed thread: from its lifeline, or at a `syscall` instruction of the process.
    fn borrowed_call(&mut self, name: &'static str, number: i64, args: [u64; 6]) -> Result<u64, Error> {
        let &Borrowed { tid, registers, lifeline, .. } =
            self.borrowed.as_ref().ok_or(Error::Exited { pid: self.pid })?;
        let (rip, rsp) = match lifeline {
            Some(Lifeline { address, .. }) => (address, lifeline::stack_pointer(address)),
            None => (self.find_syscall_instruction()?, registers.rsp),
        };
        let call = Registers {
            rax: number as u64,
            orig_rax: u64::MAX,
            rip,
            rsp,
            rdi: args[0],
            rsi: args[1],
            rdx: args[2],
            r10: args[3],
            r8: args[4],
            r9: args[5],
            eflags: registers.eflags & !0x500,
            ..registers
        };
        ptrace::set_registers(tid, &call).map_err(|error| self.gone("registers", error))?;
        self.run_to_syscall_stop(tid, name)?;
        self.run_to_syscall_stop(tid, name)?;
        let result = ptrace::registers(tid).map_err(|error| self.gone("registers", error))?.rax;
        if (-4095..0).contains(&(result as i64)) {
            return Err(Error::RemoteCall { name, errno: -(result as i64) as i32 });
        }
        Ok(result)
    }

    /// Takes a thread for remote calls: its registers are saved, its signals blocked, its lifeline laid.
    fn borrow_thread(&mut self) -> Result<(), Error> {
        if self.borrowed.is_some() {
            return Ok(());
        }
        let (tid, registers) = self.thread_for_calls()?;
        let mask = ptrace::signal_mask(tid).map_err(|error| self.gone("signal mask", error))?;
        let (blocked, dispatch) = (self.signals_blocked(tid)?, ptrace::dispatch(tid).unwrap_or_default());
        if dispatch.mode != 0 {
            ptrace::set_dispatch(tid, &Dispatch::default()).map_err(|error| self.gone("dispatch", error))?;
        }
        self.borrowed = Some(Borrowed { tid, registers, mask, blocked, dispatch, lifeline: None });
        self.lay_lifeline()?;
        ptrace::set_signal_mask(tid, u64::MAX).map_err(|error| self.gone("signal mask", error))
    }

    /// A thread that is in a system call if there is one, else the first.
    fn thread_for_calls(&self) -> Result<(Tid, Registers), Error> {
        let first = *self.threads.first().ok_or(Error::Exited { pid: self.pid })?;
        let all = self.threads.iter().filter_map(|tid| Some((*tid, ptrace::registers(*tid).ok()?)));
        match all.into_iter().find(|(_, registers)| lifeline::is_in_call(registers)) {
            Some(found) => Ok(found),
            None => Ok((first, ptrace::registers(first).map_err(|error| self.gone("registers", error))?)),
        }
    }

    /// In the vDSO if there is room, else in a page that the first remote call maps; some policies forbid that, and
    /// then it goes without.
    fn lay_lifeline(&mut self) -> Result<(), Error> {
        let vdso = mappings(Pid(self.pid))?.into_iter().find(|mapping| mapping.path == "[vdso]");
        if let Some(vdso) = vdso {
            let (bytes, mapped) = (lifeline::VDSO_BYTES, false);
            let place = Lifeline { address: vdso.range.end - bytes as u64, bytes, mapped };
            let mut there = vec![0u8; bytes];
            let deserted = self.send_home(place.address..vdso.range.end)?;
            let readable = self.read(place.address, &mut there).is_ok();
            if deserted && readable && lifeline::is_free(&there) && self.fill(place)? {
                return Ok(());
            }
        }
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let page = [0, lifeline::PAGE_BYTES as u64, protection, flags, u64::MAX, 0];
        match self.borrowed_call("mmap", libc::SYS_mmap, page) {
            Ok(address) => {
                let place = Lifeline { address, bytes: lifeline::PAGE_BYTES, mapped: true };
                if !self.fill(place)? {
                    self.borrowed_call("munmap", libc::SYS_munmap, [address, place.bytes as u64, 0, 0, 0, 0])?;
                }
                Ok(())
            }
            Err(Error::RemoteCall { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Lets threads go on that a server which died a moment ago has left in its lifeline: they are a few
    /// instructions from home. True if none is left there.
    fn send_home(&mut self, lifeline: Range<u64>) -> Result<bool, Error> {
        let borrowed = self.borrowed.as_ref().map(|borrowed| borrowed.tid);
        for _ in 0..HOMEWARD_MAX {
            let inside = self.threads_inside(std::slice::from_ref(&lifeline))?;
            if inside.is_empty() {
                return Ok(true);
            }
            for tid in inside {
                ptrace::resume(tid, 0).map_err(|error| self.gone("thread", error))?;
                std::thread::sleep(HOMEWARD_PAUSE);
                ptrace::interrupt(tid).map_err(|error| self.gone("thread", error))?;
                self.await_stop(tid, Instant::now() + CALL_WITHIN)?;
                if borrowed == Some(tid) {
                    let registers = ptrace::registers(tid).map_err(|error| self.gone("registers", error))?;
                    let mask = ptrace::signal_mask(tid).map_err(|error| self.gone("signal mask", error))?;
                    if let Some(borrowed) = &mut self.borrowed {
                        (borrowed.registers, borrowed.mask, borrowed.lifeline) = (registers, mask, None);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Writes what the borrowed thread goes on with if we die; from now on calls are made from there. False if it
    /// does not fit.
    fn fill(&mut self, place: Lifeline) -> Result<bool, Error> {
        let Some(Borrowed { tid, registers, mask, .. }) = &self.borrowed else { return Ok(false) };
        let vectors = ptrace::vectors(*tid).map_err(|error| self.gone("vector registers", error))?;
        let Some(image) = lifeline::image(place.address, place.bytes, registers, *mask, &vectors) else {
            return Ok(false);
        };
        self.write(place.address, &image)?;
        if let Some(borrowed) = &mut self.borrowed {
            borrowed.lifeline = Some(place);
        }
        Ok(true)
    }

    /// The place is as before.
    fn take_lifeline_up(&mut self) -> Result<(), Error> {
        let Some(place) = self.borrowed.as_mut().and_then(|borrowed| borrowed.lifeline.take()) else { return Ok(()) };
        if place.mapped {
            let range = [place.address, place.bytes as u64, 0, 0, 0, 0];
            return self.borrowed_call("munmap", libc::SYS_munmap, range).map(drop);
        }
        self.write(place.address, &vec![0; place.bytes])
    }

    fn run_to_syscall_stop(&mut self, tid: Tid, name: &'static str) -> Result<(), Error> {
        let deadline = Instant::now() + CALL_WITHIN;
        ptrace::resume_to_syscall(tid, 0).map_err(|error| self.gone("thread", error))?;
        loop {
            match ptrace::wait(tid, deadline) {
                Wait::Syscall => return Ok(()),
                Wait::Signal(signal) => self.stop_signal = signal,
                Wait::EventStop(_) | Wait::Event(_) => {}
                Wait::Gone => return Err(Error::Exited { pid: self.pid }),
                Wait::Nothing => return Err(Error::RemoteCall { name, errno: libc::ETIMEDOUT }),
            }
            ptrace::resume_to_syscall(tid, 0).map_err(|error| self.gone("thread", error))?;
        }
    }

    fn find_syscall_instruction(&mut self) -> Result<u64, Error> {
        if let Some(address) = self.syscall_instruction {
            return Ok(address);
        }
        let mut candidates = mappings(Pid(self.pid))?;
        if candidates.is_empty() {
            return Err(Error::Exited { pid: self.pid });
        }
        candidates.retain(|mapping| mapping.is_executable() && mapping.path != "[vsyscall]");
        candidates.sort_by_key(|mapping| mapping.path != "[vdso]");
        for mapping in candidates {
            let mut code = vec![0u8; (mapping.range.end - mapping.range.start) as usize];
            if self.read(mapping.range.start, &mut code).is_err() {
                continue;
            }
            if let Some(at) = code.windows(2).position(|pair| pair == [0x0f, 0x05]) {
                self.syscall_instruction = Some(mapping.range.start + at as u64);
                return Ok(mapping.range.start + at as u64);
            }
        }
        Err(Error::Unsupported { what: format!("process {} has no system call instruction", self.pid) })
    }

    /// Brings a stopped thread into an interrupt stop on its way to user mode.
    fn interrupt_again(&mut self, tid: Tid) -> Result<(), Error> {
        ptrace::interrupt(tid).map_err(|error| self.gone("thread", error))?;
        ptrace::resume(tid, 0).map_err(|error| self.gone("thread", error))?;
        let deadline = Instant::now() + CALL_WITHIN;
        loop {
            match ptrace::wait(tid, deadline) {
                Wait::EventStop(_) => return Ok(()),
                Wait::Signal(signal) => {
                    self.stop_signal = signal;
                    let _ = ptrace::resume(tid, 0);
                }
                Wait::Syscall | Wait::Event(_) => drop(ptrace::resume(tid, 0)),
                Wait::Gone => return Err(Error::Exited { pid: self.pid }),
                Wait::Nothing => return Err(Error::ThreadDoesNotStop { tid, state: '?' }),
            }
        }
    }

    fn give_thread_back(&mut self) -> Result<(), Error> {
        let Some(tid) = self.borrowed.as_ref().map(|borrowed| borrowed.tid) else { return Ok(()) };
        // A page goes by a call of the thread; the vDSO is needed until the thread has its own registers again.
        if self.borrowed.as_ref().is_some_and(|borrowed| borrowed.lifeline.is_some_and(|place| place.mapped)) {
            self.take_lifeline_up()?;
        }
        self.interrupt_again(tid)?;
        let borrowed = self.borrowed.as_ref().expect("just seen");
        ptrace::set_registers(tid, &borrowed.registers).map_err(|error| self.gone("registers", error))?;
        ptrace::set_signal_mask(tid, borrowed.mask).map_err(|error| self.gone("signal mask", error))?;
        if borrowed.dispatch.mode != 0 {
            ptrace::set_dispatch(tid, &borrowed.dispatch).map_err(|error| self.gone("dispatch", error))?;
        }
        self.take_lifeline_up()?;
        self.borrowed = None;
        Ok(())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Err(error) = self.give_thread_back()
            && !matches!(error, Error::Exited { .. })
        {
            tracing::error!(pid = self.pid, "a thread's registers could not be restored: {error}");
        }
        release(std::mem::take(&mut self.threads));
        if self.stop_signal != 0 {
            ptrace::kill(self.pid, self.stop_signal);
        }
    }
}

/// Threads that could not be let go yet: what waits for a `vfork` child stops when that is over, a dead leader outlives its
/// threads, large processes die slowly. (A dead tracee that nobody waits for stays a zombie, also for its parent.)
static HELD: Mutex<Vec<Tid>> = Mutex::new(vec![]);

/// Lets go of threads: those that are stopped at once, those that run behind their next stop, dead ones by
/// waiting for them.
fn release(threads: Vec<Tid>) {
    let mut left: Vec<Tid> = threads.into_iter().filter(|tid| ptrace::detach(*tid, 0).is_err()).collect();
    left.iter().for_each(|tid| drop(ptrace::interrupt(*tid)));
    let deadline = Instant::now() + LET_GO_WITHIN;
    while !left.is_empty() && Instant::now() < deadline {
        left.retain(|tid| !is_released(*tid));
        std::thread::yield_now();
    }
    HELD.lock().unwrap_or_else(PoisonError::into_inner).append(&mut left);
}

/// Whether a thread that was not stopped before is no longer our tracee now.
fn is_released(tid: Tid) -> bool {
    match ptrace::poll(tid) {
        Wait::Nothing => false,
        Wait::Gone => true,
        Wait::Signal(signal) => ptrace::detach(tid, signal).is_ok(),
        Wait::Syscall | Wait::EventStop(_) | Wait::Event(_) => ptrace::detach(tid, 0).is_ok(),
    }
}

/// Lets threads go, without blocking, that could not be let go when their process was; false while some are left. To be called
/// again then, by the thread that stopped them: until then they stay stopped.
pub fn let_go() -> bool {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.retain(|tid| !is_released(*tid));
    held.is_empty()
}

fn open_memory(pid: u32) -> Result<File, Error> {
    File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::NoSuchProcess { pid },
        std::io::ErrorKind::PermissionDenied => not_permitted(pid),
        _ => Error::io(format!("/proc/{pid}/mem"), error),
    })
}
