//! System calls that a thread of a stopped process makes for us.
//!
//! One call at a time: the thread runs to it and from it by system call stops. That takes four switches between processes, so
//! a thread that is to receive files, after which there is much to do, is given an end of a pair of sockets: it waits there for
//! lists of calls, makes them one after another until one fails, and sends back what they returned. It runs meanwhile, but
//! nothing else than that, with all signals blocked. If we die, the other end is closed, and the thread goes home by its
//! [`rescue_frame`].

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};

use crate::Error;
use crate::keys::ProtectionKey;
use crate::process::Pid;
use crate::raw_ptrace::{self as ptrace, Dispatch, Pause, Registers, Tid, Wait};
use crate::raw_rescue_frame::{CALL_BYTES, page};
use crate::region::rescue_place;
use crate::rescue_frame;
use crate::stopped::{CALL_WITHIN, Stopped};

/// How often threads in a dead server's rescue frame are let go on, and for how long.
const HOMEWARD_MAX: u32 = 20;
const HOMEWARD_PAUSE: Duration = Duration::from_micros(50);
/// How long a thread whose end was closed may take to die of what closed it.
const GONE_WITHIN: Duration = Duration::from_millis(100);
/// File descriptors per message (the kernel's `SCM_MAX_FD` is 253).
const FDS_PER_MESSAGE: usize = 128;
/// Calls per message; the word behind the last one says that it was that.
const CALLS_PER_MESSAGE: usize = (page::LIST_BYTES as usize - 8) / CALL_BYTES;
const CMSG_HEADER_BYTES: usize = 16;

const _: () = assert!(CMSG_HEADER_BYTES + FDS_PER_MESSAGE * 4 <= page::CONTROL_BYTES as usize);

/// A system call to be made inside a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Its name, for error messages.
    pub(crate) name: &'static str,
    /// Its number.
    pub(crate) number: i64,
    /// Its arguments.
    pub(crate) args: [u64; 6],
}

impl Call {
    /// `mmap`; of a file: from its beginning.
    pub(crate) fn mmap(address: u64, bytes: u64, protection: i32, flags: i32, file: Option<RemoteFd>) -> Call {
        let file = file.map_or(u64::MAX, |RemoteFd(fd)| fd as u64);
        let args = [address, bytes, protection as u64, flags as u64, file, 0];
        Call { name: "mmap", number: libc::SYS_mmap, args }
    }

    /// `munmap`.
    pub(crate) fn munmap(address: u64, bytes: u64) -> Call {
        Call { name: "munmap", number: libc::SYS_munmap, args: [address, bytes, 0, 0, 0, 0] }
    }

    /// `madvise`.
    pub(crate) fn madvise(address: u64, bytes: u64, advice: i32) -> Call {
        Call { name: "madvise", number: libc::SYS_madvise, args: [address, bytes, advice as u64, 0, 0, 0] }
    }

    /// `pkey_mprotect`.
    pub(crate) fn pkey_mprotect(address: u64, bytes: u64, protection: i32, key: ProtectionKey) -> Call {
        let args = [address, bytes, protection as u64, u64::from(key.number()), 0, 0];
        Call { name: "pkey_mprotect", number: libc::SYS_pkey_mprotect, args }
    }

    fn close(RemoteFd(fd): RemoteFd) -> Call {
        Call { name: "close", number: libc::SYS_close, args: [fd as u64, 0, 0, 0, 0, 0] }
    }
}

/// A duplicate of ours of a descriptor of a process.
pub fn duplicate(Pid(pid): Pid, fd: i32) -> Result<OwnedFd, Error> {
    let known = rustix::process::Pid::from_raw(pid as i32).ok_or(Error::NoSuchProcess { pid })?;
    let pidfd = rustix::process::pidfd_open(known, rustix::process::PidfdFlags::empty());
    let pidfd = pidfd.map_err(|error| Error::io("pidfd_open", error.into()))?;
    ptrace::get_fd(pidfd.as_fd(), fd).map_err(|error| Error::io("pidfd_getfd", error))
}

/// A list of calls was not made to its end.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// What the calls returned that were made before.
    pub(crate) done: Vec<u64>,
    /// Why the next one failed.
    pub(crate) error: Error,
}

/// A file descriptor inside the target; closed by [`Stopped::close_files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFd(pub i32);

/// A thread that makes calls for us, and what it goes on with.
#[derive(Debug)]
pub(crate) struct Borrowed {
    pub(crate) tid: Tid,
    pub(crate) registers: Registers,
    /// Its vector registers as an XSAVE image. (Nothing that it does for us changes them.)
    vectors: Vec<u8>,
    pub(crate) mask: u64,
    /// The signals that it blocked, those of a call that blocks some for its own time among them.
    pub(crate) blocked: u64,
    /// What is dispatched of its calls: of remote ones nothing.
    pub(crate) dispatch: Dispatch,
    /// Where remote calls are made from, once there is such a place.
    rescue_frame: Option<RescueFrame>,
    /// Through which it is told what to call, once it is.
    channel: Option<Channel>,
}

/// Address and bytes of a [`rescue_frame`].
#[derive(Clone, Copy, Debug)]
struct RescueFrame {
    address: u64,
    bytes: usize,
    /// Mapped for this, not the vDSO's end.
    mapped: bool,
}

/// What leads to a thread that waits for lists of calls.
#[derive(Debug)]
struct Channel {
    socket: OwnedFd,
    /// Its [`page`]s.
    page: u64,
    /// It did not answer in time, or not any more: whatever comes yet is not the answer to what it is told next.
    broken: bool,
}

impl Channel {
    /// What the thread `tid` sends back; nothing if it has closed its end.
    ///
    /// # Errors
    /// What it did instead: [`Wait::Gone`], or nothing in time.
    fn await_answer(&self, tid: Tid) -> Result<Vec<u8>, Wait> {
        let mut answer = vec![0u8; page::LIST_BYTES as usize];
        let deadline = Instant::now() + CALL_WITHIN;
        let mut pause = Pause::default();
        loop {
            if let Ok((bytes, _)) = rustix::net::recv(&self.socket, answer.as_mut_slice(), RecvFlags::DONTWAIT) {
                answer.truncate(bytes);
                return Ok(answer);
            }
            match ptrace::poll(tid) {
                Wait::Nothing if pause.is_long() && Instant::now() >= deadline => return Err(Wait::Nothing),
                Wait::Nothing if pause.is_long() => self.sleep_until_answered(),
                Wait::Nothing => pause.go_by(),
                Wait::Gone => return Err(Wait::Gone),
                Wait::Signal(signal) => drop(ptrace::resume(tid, signal)),
                Wait::Syscall | Wait::EventStop(_) | Wait::Event(_) => drop(ptrace::resume(tid, 0)),
            }
        }
    }
}

impl Channel {
    /// Sleeps until there is an answer, but no longer than a signal that comes first may wait.
    fn sleep_until_answered(&self) {
        const SIGNAL_WAITS: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut answered = [PollFd::new(&self.socket, PollFlags::IN)];
        let _ = rustix::event::poll(&mut answered, Some(&SIGNAL_WAITS));
    }
}

impl Stopped {
    /// Makes a system call inside the process. Returns what it returns.
    ///
    /// # Errors
    /// [`Error::RemoteCall`] if the call itself fails.
    pub fn syscall(&mut self, name: &'static str, number: i64, args: [u64; 6]) -> Result<u64, Error> {
        self.make(Call { name, number, args })
    }

    /// Makes a system call inside the process once with each of these arguments, until it fails.
    ///
    /// # Errors
    /// As [`Stopped::syscall`].
    pub fn syscall_with_each(&mut self, name: &'static str, number: i64, args: &[[u64; 6]]) -> Result<(), Error> {
        let calls: Vec<Call> = args.iter().map(|args| Call { name, number, args: *args }).collect();
        self.syscalls(&calls).map(drop).map_err(|unfinished| unfinished.error)
    }

    pub(crate) fn make(&mut self, call: Call) -> Result<u64, Error> {
        self.syscalls(&[call]).map(|done| done[0]).map_err(|unfinished| unfinished.error)
    }

    /// Makes system calls inside the process, one after another until one fails. Returns what they return.
    pub(crate) fn syscalls(&mut self, calls: &[Call]) -> Result<Vec<u64>, Unfinished> {
        let mut done = vec![];
        let changes_handlers = calls.iter().any(|call| call.number == libc::SYS_rt_sigaction);
        let borrowed = self.borrow_thread();
        if changes_handlers {
            self.handled.set(None);
        }
        let result = match borrowed {
            Err(error) => Err(error),
            Ok(()) if self.channel().is_none() => calls.iter().try_for_each(|call| {
                done.push(self.borrowed_call(*call)?);
                Ok(())
            }),
            Ok(()) => calls.chunks(CALLS_PER_MESSAGE).try_for_each(|chunk| match self.exchange(chunk, &[]) {
                Ok(results) => {
                    done.extend(results);
                    Ok(())
                }
                Err(unfinished) => {
                    done.extend(unfinished.done);
                    Err(unfinished.error)
                }
            }),
        };
        match result {
            Ok(()) => Ok(done),
            Err(error) => Err(Unfinished { done, error }),
        }
    }

    // ---- one at a time ----

    /// A call of the borrowed thread: from its rescue frame, or at a `syscall` instruction of the process.
    fn borrowed_call(&mut self, Call { name, number, args }: Call) -> Result<u64, Error> {
        let Borrowed { tid, registers, rescue_frame, .. } =
            self.borrowed.as_ref().ok_or(Error::Exited { pid: self.pid() })?;
        let (tid, registers, rescue_frame) = (*tid, *registers, *rescue_frame);
        let (rip, rsp) = match rescue_frame {
            Some(RescueFrame { address, .. }) => (address, rescue_frame::stack_pointer(address)),
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
        outcome(name, result)
    }

    fn run_to_syscall_stop(&mut self, tid: Tid, name: &'static str) -> Result<(), Error> {
        let deadline = Instant::now() + CALL_WITHIN;
        ptrace::resume_to_syscall(tid, 0).map_err(|error| self.gone("thread", error))?;
        loop {
            let mut passed_on = 0;
            match ptrace::wait(tid, deadline, &mut Pause::default()) {
                Wait::Syscall => return Ok(()),
                Wait::Signal(signal) => passed_on = signal,
                Wait::EventStop(_) | Wait::Event(_) => {}
                Wait::Gone => return Err(Error::Exited { pid: self.pid() }),
                Wait::Nothing => return Err(Error::RemoteCall { name, errno: libc::ETIMEDOUT }),
            }
            ptrace::resume_to_syscall(tid, passed_on).map_err(|error| self.gone("thread", error))?;
        }
    }

    fn find_syscall_instruction(&mut self) -> Result<u64, Error> {
        if let Some(address) = self.syscall_instruction {
            return Ok(address);
        }
        let mut candidates = self.mappings()?.to_vec();
        if candidates.is_empty() {
            return Err(Error::Exited { pid: self.pid() });
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
        Err(Error::Unsupported { what: format!("process {} has no system call instruction", self.pid()) })
    }

    // ---- many at a time ----

    /// Gives the process duplicates of files of ours. [`Stopped::close_files`] closes them.
    pub fn send_files(&mut self, files: &[BorrowedFd<'_>]) -> Result<Vec<RemoteFd>, Error> {
        self.send_files_and_call(files, None).map(|(received, _)| received)
    }

    /// As [`Stopped::send_files`]; the last message has a call with it. The result is what that returned, or 0.
    pub(crate) fn send_files_and_call(
        &mut self,
        files: &[BorrowedFd<'_>],
        call: Option<Call>,
    ) -> Result<(Vec<RemoteFd>, u64), Error> {
        self.borrow_thread()?;
        if self.channel().is_none() {
            self.open_channel()?;
        }
        let (mut received, mut returned) = (vec![], 0);
        let page = self.channel().ok_or(Error::Exited { pid: self.pid })?.page;
        let chunks = files.chunks(FDS_PER_MESSAGE);
        let last = chunks.len().saturating_sub(1);
        let sent = chunks.enumerate().try_for_each(|(index, chunk)| {
            let calls = if index == last { call.as_slice() } else { &[] };
            // Where no descriptor has room, the kernel writes nothing.
            self.write(page + page::CONTROL, &[0; CMSG_HEADER_BYTES])?;
            let done = self.exchange(calls, chunk);
            // (Whether the call fails or not, the descriptors are there.)
            self.take_files(chunk.len(), &mut received)?;
            returned = done.map_err(|unfinished| unfinished.error)?.first().copied().unwrap_or(0);
            Ok(())
        });
        if let Err(error) = sent {
            self.close_files(&received);
            return Err(error);
        }
        Ok((received, returned))
    }

    /// Closes descriptors inside the process.
    pub fn close_files(&mut self, files: &[RemoteFd]) {
        let calls: Vec<Call> = close_calls(files).collect();
        if let Err(Unfinished { done, error }) = self.syscalls(&calls) {
            tracing::warn!(pid = self.pid(), "{} descriptors left open: {error}", files.len() - done.len());
        }
    }

    fn channel(&self) -> Option<&Channel> {
        self.borrowed.as_ref()?.channel.as_ref()
    }

    /// Has the borrowed thread wait for lists of calls.
    fn open_channel(&mut self) -> Result<(), Error> {
        let page = self.borrowed_call(Call::mmap(0, page::BYTES, READ_WRITE, PRIVATE_ANONYMOUS, None))?;
        let mut ends = vec![];
        let opened = self.open_at(page, &mut ends);
        if opened.is_err() {
            self.close_files(&ends);
            self.borrowed_call(Call::munmap(page, page::BYTES))?;
        }
        opened
    }

    fn open_at(&mut self, page: u64, ends: &mut Vec<RemoteFd>) -> Result<(), Error> {
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
        let args = [libc::AF_UNIX as u64, kind, 0, page, 0, 0];
        self.borrowed_call(Call { name: "socketpair", number: libc::SYS_socketpair, args })?;
        let mut pair = [0u8; 8];
        self.read(page, &mut pair)?;
        ends.extend([0, 4].map(|at| RemoteFd(i32::from_le_bytes(pair[at..at + 4].try_into().expect("4 bytes")))));
        let socket = duplicate(Pid(self.pid()), ends[0].0)?;
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let header = words(&[0, 0, page + page::IOVEC, 1, page + page::CONTROL, page::CONTROL_BYTES, 0]);
        self.write(page + page::HEADER, &header)?;
        self.write(page + page::IOVEC, &words(&[page + page::LIST, page::LIST_BYTES]))?;
        let borrowed = self.borrowed.as_mut().ok_or(Error::Exited { pid: self.pid })?;
        let Some(RescueFrame { address, .. }) = borrowed.rescue_frame else {
            let what = format!("process {} must not map code", self.pid);
            return Err(Error::Unsupported { what });
        };
        let serving = Registers {
            orig_rax: u64::MAX,
            rip: rescue_frame::serve(address),
            rsp: rescue_frame::stack_pointer(address),
            rbx: ends[1].0 as u64,
            r13: ends[0].0 as u64,
            rbp: page,
            eflags: borrowed.registers.eflags & !0x500,
            ..borrowed.registers
        };
        let tid = borrowed.tid;
        ptrace::set_registers(tid, &serving).map_err(|error| self.gone("registers", error))?;
        ptrace::resume(tid, 0).map_err(|error| self.gone("thread", error))?;
        let borrowed = self.borrowed.as_mut().expect("just seen");
        borrowed.channel = Some(Channel { socket, page, broken: false });
        Ok(())
    }

    /// Sends a list of calls, and files, and waits for what the calls return.
    fn exchange(&mut self, calls: &[Call], files: &[BorrowedFd<'_>]) -> Result<Vec<u64>, Unfinished> {
        let at_once = |error| Unfinished { done: vec![], error };
        let words = calls.iter().flat_map(|call| std::iter::once(call.number as u64).chain(call.args));
        let list: Vec<u8> = words.chain([u64::MAX]).flat_map(u64::to_le_bytes).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let name = calls.first().map_or("recvmsg", |call| call.name);
        let Some(Borrowed { tid, channel: Some(channel), .. }) = &mut self.borrowed else {
            return Err(at_once(Error::Exited { pid: self.pid }));
        };
        let tid = *tid;
        if std::mem::replace(&mut channel.broken, true) {
            return Err(at_once(self.no_answer(name, Wait::Nothing)));
        }
        rustix::net::sendmsg(&channel.socket, &[IoSlice::new(&list)], &mut control, SendFlags::NOSIGNAL)
            .map_err(|error| at_once(Error::io("sendmsg", error.into())))?;
        let answer = channel.await_answer(tid);
        let answer = answer.map_err(|instead| at_once(self.no_answer(name, instead)))?;
        if answer.is_empty() {
            // It dies, or has gone home.
            let instead = ptrace::wait(tid, Instant::now() + GONE_WITHIN, &mut Pause::default());
            return Err(at_once(self.no_answer(name, instead)));
        }
        if let Some(Borrowed { channel: Some(channel), .. }) = &mut self.borrowed {
            channel.broken = false;
        }
        let results =
            answer.chunks_exact(CALL_BYTES).map(|call| u64::from_le_bytes(call[..8].try_into().expect("8 bytes")));
        let mut done = vec![];
        for (call, result) in calls.iter().zip(results) {
            match outcome(call.name, result) {
                Ok(result) => done.push(result),
                Err(error) => return Err(Unfinished { done, error }),
            }
        }
        match calls.get(done.len()) {
            Some(call) => Err(Unfinished { done, error: Error::RemoteCall { name: call.name, errno: libc::EIO } }),
            None => Ok(done),
        }
    }

    fn no_answer(&self, name: &'static str, instead: Wait) -> Error {
        match instead {
            Wait::Gone => Error::Exited { pid: self.pid },
            _ => Error::RemoteCall { name, errno: libc::ETIMEDOUT },
        }
    }

    /// The descriptors that came with the last list.
    fn take_files(&mut self, count: usize, received: &mut Vec<RemoteFd>) -> Result<(), Error> {
        let page = self.channel().ok_or(Error::Exited { pid: self.pid() })?.page;
        let mut control = vec![0u8; CMSG_HEADER_BYTES + count * 4];
        self.read(page + page::CONTROL, &mut control)?;
        let (header, descriptors) = control.split_at(CMSG_HEADER_BYTES);
        let length = u64::from_le_bytes(header[..8].try_into().expect("8 bytes")) as usize;
        let arrived = length.saturating_sub(CMSG_HEADER_BYTES) / 4;
        let descriptors = descriptors.chunks_exact(4).take(arrived);
        received.extend(descriptors.map(|fd| RemoteFd(i32::from_le_bytes(fd.try_into().expect("4 bytes")))));
        if arrived < count {
            return Err(Error::RemoteCall { name: "recvmsg", errno: libc::EMFILE });
        }
        Ok(())
    }

    // ---- the thread ----

    /// Takes a thread for remote calls: its registers are saved, its signals blocked, its rescue frame laid.
    fn borrow_thread(&mut self) -> Result<(), Error> {
        if self.borrowed.is_some() {
            return Ok(());
        }
        let (tid, registers) = self.thread_for_calls()?;
        self.check_unsuspended(tid)?;
        let mask = ptrace::signal_mask(tid).map_err(|error| self.gone("signal mask", error))?;
        let vectors = ptrace::vectors(tid).map_err(|error| self.gone("vector registers", error))?;
        let (blocked, dispatch) = (self.signals_blocked(tid)?, ptrace::dispatch(tid).unwrap_or_default());
        if dispatch.mode != 0 {
            ptrace::set_dispatch(tid, &Dispatch::default()).map_err(|error| self.gone("dispatch", error))?;
        }
        self.borrowed =
            Some(Borrowed { tid, registers, vectors, mask, blocked, dispatch, rescue_frame: None, channel: None });
        self.lay_rescue_frame()?;
        ptrace::set_signal_mask(tid, u64::MAX).map_err(|error| self.gone("signal mask", error))
    }

    /// A thread that is in a system call if there is one, else the first.
    fn thread_for_calls(&self) -> Result<(Tid, Registers), Error> {
        let first = *self.threads().first().ok_or(Error::Exited { pid: self.pid() })?;
        let all = self.threads().iter().filter_map(|tid| Some((*tid, self.known_registers(*tid).ok()?)));
        match all.into_iter().find(|(_, registers)| rescue_frame::is_in_call(registers)) {
            Some(found) => Ok(found),
            None => Ok((first, self.known_registers(first)?)),
        }
    }

    /// In the vDSO if there is room, or in ring3's region, else in a page that the first remote call maps; some policies forbid that,
    /// and then it goes without.
    fn lay_rescue_frame(&mut self) -> Result<(), Error> {
        let mappings = self.mappings()?;
        let vdso = mappings.iter().find(|mapping| mapping.path == "[vdso]");
        let vdso = vdso.map(|vdso| vdso.range.end - rescue_frame::VDSO_BYTES as u64..vdso.range.end);
        for range in vdso.into_iter().chain(rescue_place(&mappings)) {
            let bytes = (range.end - range.start) as usize;
            let mut there = vec![0u8; bytes];
            let deserted = self.resume_stranded_threads(range.clone())?;
            let readable = self.read(range.start, &mut there).is_ok();
            let place = RescueFrame { address: range.start, bytes, mapped: false };
            if deserted && readable && rescue_frame::is_free(&there) && self.fill(place)? {
                return Ok(());
            }
        }
        self.lay_rescue_frame_in_page()
    }

    /// Before memory goes in which the rescue frame may lie: a frame there moves to a page, or if that is forbidden there is none.
    pub(crate) fn move_rescue_frame_out_of(&mut self, range: &Range<u64>) -> Result<(), Error> {
        self.borrow_thread()?;
        let Some(Borrowed { rescue_frame: Some(place), channel: None, .. }) = &self.borrowed else { return Ok(()) };
        let old = *place;
        if old.mapped || old.address >= range.end || range.start >= old.address + old.bytes as u64 {
            return Ok(());
        }
        let moved = self.lay_rescue_frame_in_page();
        if let Some(borrowed) = &mut self.borrowed {
            borrowed.rescue_frame.take_if(|place| !place.mapped);
        }
        moved
    }

    fn lay_rescue_frame_in_page(&mut self) -> Result<(), Error> {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let page = Call::mmap(0, rescue_frame::PAGE_BYTES as u64, protection, PRIVATE_ANONYMOUS, None);
        match self.borrowed_call(page) {
            Ok(address) => {
                let place = RescueFrame { address, bytes: rescue_frame::PAGE_BYTES, mapped: true };
                if !self.fill(place)? {
                    self.borrowed_call(Call::munmap(address, place.bytes as u64))?;
                }
                Ok(())
            }
            Err(Error::RemoteCall { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Lets threads go on that a server which died a moment ago has left in its rescue frame: they are a few
    /// instructions from home. True if none is left there.
    fn resume_stranded_threads(&mut self, rescue_frame: Range<u64>) -> Result<bool, Error> {
        let borrowed = self.borrowed.as_ref().map(|borrowed| borrowed.tid);
        for _ in 0..HOMEWARD_MAX {
            let inside = self.threads_inside(std::slice::from_ref(&rescue_frame))?;
            if inside.is_empty() {
                return Ok(true);
            }
            for tid in inside {
                ptrace::resume(tid, 0).map_err(|error| self.gone("thread", error))?;
                std::thread::sleep(HOMEWARD_PAUSE);
                ptrace::interrupt(tid).map_err(|error| self.gone("thread", error))?;
                self.await_stop(tid, Instant::now() + CALL_WITHIN, &mut Pause::default())?;
                if borrowed == Some(tid) {
                    let registers = ptrace::registers(tid).map_err(|error| self.gone("registers", error))?;
                    let vectors = ptrace::vectors(tid).map_err(|error| self.gone("vector registers", error))?;
                    let mask = ptrace::signal_mask(tid).map_err(|error| self.gone("signal mask", error))?;
                    if let Some(borrowed) = &mut self.borrowed {
                        (borrowed.registers, borrowed.vectors, borrowed.mask) = (registers, vectors, mask);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Writes what the borrowed thread goes on with if we die; from now on calls are made from there. False if it
    /// does not fit.
    fn fill(&mut self, place: RescueFrame) -> Result<bool, Error> {
        let Some(Borrowed { registers, vectors, mask, .. }) = &self.borrowed else { return Ok(false) };
        let Some(image) = rescue_frame::image(place.address, place.bytes, registers, *mask, vectors) else {
            return Ok(false);
        };
        self.write(place.address, &image)?;
        if let Some(borrowed) = &mut self.borrowed {
            borrowed.rescue_frame = Some(place);
        }
        Ok(true)
    }

    /// Changes what the borrowed thread goes on with.
    pub(crate) fn set_borrowed_registers(&mut self, registers: &Registers) -> Result<(), Error> {
        let Some(borrowed) = &mut self.borrowed else { return Ok(()) };
        borrowed.registers = *registers;
        borrowed.rescue_frame.map_or(Ok(()), |place| self.fill(place).map(drop))
    }

    /// The place is as before.
    fn remove_rescue_frame(&mut self) -> Result<(), Error> {
        let Some(place) = self.borrowed.as_mut().and_then(|borrowed| borrowed.rescue_frame.take()) else {
            return Ok(());
        };
        if place.mapped {
            return self.borrowed_call(Call::munmap(place.address, place.bytes as u64)).map(drop);
        }
        self.write(place.address, &vec![0; place.bytes])
    }

    /// The borrowed thread, which was told to go, is stopped on its way home. False: it is there, with all that is its own.
    fn close_channel(&mut self) -> Result<bool, Error> {
        let Some(Borrowed { tid, rescue_frame: Some(place), channel, .. }) = &mut self.borrowed else {
            return Ok(true);
        };
        let (tid, place) = (*tid, *place);
        let Some(channel) = channel.take() else { return Ok(true) };
        if rustix::net::send(&channel.socket, b"g", SendFlags::NOSIGNAL).is_err() {
            // Where nothing comes any more, it goes home by itself.
            let _ = rustix::net::shutdown(&channel.socket, Shutdown::Write);
        }
        loop {
            let answer = channel.await_answer(tid);
            // (What comes before it has closed its end are answers that came too late.)
            if answer.map_err(|instead| self.no_answer("munmap", instead))?.is_empty() {
                break;
            }
        }
        // At home signals may come, and stops end calls.
        ptrace::interrupt(tid).map_err(|error| self.gone("thread", error))?;
        self.await_stop(tid, Instant::now() + CALL_WITHIN, &mut Pause::default())?;
        let rip = ptrace::registers(tid).map_err(|error| self.gone("registers", error))?.rip;
        Ok((place.address..place.address + place.bytes as u64).contains(&rip))
    }

    pub(crate) fn give_thread_back(&mut self) -> Result<(), Error> {
        let Some(tid) = self.borrowed.as_ref().map(|borrowed| borrowed.tid) else { return Ok(()) };
        let was_told = self.channel().is_some();
        if self.close_channel()? {
            // A page goes by a call of the thread; the vDSO is needed until the thread has its own registers again.
            let place = self.borrowed.as_ref().and_then(|borrowed| borrowed.rescue_frame);
            let is_mapped = place.is_some_and(|place| place.mapped);
            if is_mapped {
                self.remove_rescue_frame()?;
            }
            if !was_told || is_mapped {
                self.interrupt_again(tid)?;
            }
            let borrowed = self.borrowed.as_ref().expect("just seen");
            ptrace::set_registers(tid, &borrowed.registers).map_err(|error| self.gone("registers", error))?;
            ptrace::set_signal_mask(tid, borrowed.mask).map_err(|error| self.gone("signal mask", error))?;
        } else if let Some(borrowed) = &mut self.borrowed {
            tracing::warn!(pid = self.pid, tid, "a thread makes no more calls for us");
            borrowed.rescue_frame = borrowed.rescue_frame.filter(|place| !place.mapped);
        }
        let dispatch = self.borrowed.as_ref().expect("just seen").dispatch;
        if dispatch.mode != 0 {
            ptrace::set_dispatch(tid, &dispatch).map_err(|error| self.gone("dispatch", error))?;
        }
        self.remove_rescue_frame()?;
        self.borrowed = None;
        self.forget_registers_of(tid);
        Ok(())
    }
}

/// What closes descriptors inside a process.
pub(crate) fn close_calls(files: &[RemoteFd]) -> impl Iterator<Item = Call> {
    files.iter().copied().map(Call::close)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE_ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// What a system call returned, or its error.
fn outcome(name: &'static str, result: u64) -> Result<u64, Error> {
    if (-4095..0).contains(&(result as i64)) {
        return Err(Error::RemoteCall { name, errno: -(result as i64) as i32 });
    }
    Ok(result)
}
