//! ptrace(2) and its neighbours, typed. One function per request. Requests for a thread that a proxy holds go there.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use ring3_uapi::seccomp::{FILTER_INSNS_MAX, FilterInsn};

use crate::proxy::{self, Op};
use crate::raw_wait::sleep_until_something;

/// A thread id.
pub type Tid = u32;

/// Registers of a stopped thread, `struct user_regs_struct`.
pub type Registers = libc::user_regs_struct;

/// What a traced thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing yet.
    Nothing,
    /// It or its process ended.
    Gone,
    /// Entry to or exit from a system call.
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// `PTRACE_EVENT_STOP`: our interrupt, or a group stop (the signal says which).
    EventStop(i32),
    /// Another `PTRACE_EVENT_*`.
    Event(i32),
}

/// Polls a wait this often without sleeping before it sleeps. (Threads that are waited for may run on our own CPU: they get it from who
/// sleeps only.)
const SPINS: u32 = 5;
/// Between two waits by proxy.
const PROXY_PAUSE: Duration = Duration::from_micros(200);
/// A proxy that does not answer is asked again after this time.
const BROKEN_PAUSE: Duration = Duration::from_millis(10);
/// Sleep between polls.
const POLL_SLEEP: Duration = Duration::from_micros(30);

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn request(kind: libc::c_uint, tid: Tid, address: usize, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: requests used through this function take no pointers (address and data are numbers).
    check(unsafe { libc::ptrace(kind, tid as libc::pid_t, address, data) })
}

pub(crate) fn seize(tid: Tid, options: libc::c_int) -> io::Result<()> {
    match request(libc::PTRACE_SEIZE, tid, 0, options as usize) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            proxy::seize(tid, options as u64).unwrap_or(Err(error))
        }
        done => done.map(drop),
    }
}

/// Makes a request by proxy that has no payload and no answer but that it is done; `None`: no proxy holds the thread.
fn by_proxy(tid: Tid, op: Op, a: u64, payload: &[u8]) -> Option<io::Result<()>> {
    proxy::ask(tid, op, a, payload).map(|answer| answer.map(drop))
}

pub(crate) fn interrupt(tid: Tid) -> io::Result<()> {
    if let Some(done) = by_proxy(tid, Op::Interrupt, 0, &[]) {
        return done;
    }
    request(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

pub(crate) fn resume(tid: Tid, signal: i32) -> io::Result<()> {
    if let Some(done) = by_proxy(tid, Op::Resume, signal as u64, &[]) {
        return done;
    }
    request(libc::PTRACE_CONT, tid, 0, signal as usize).map(drop)
}

pub(crate) fn resume_to_syscall(tid: Tid, signal: i32) -> io::Result<()> {
    if let Some(done) = by_proxy(tid, Op::ResumeToSyscall, signal as u64, &[]) {
        return done;
    }
    request(libc::PTRACE_SYSCALL, tid, 0, signal as usize).map(drop)
}

pub(crate) fn registers(tid: Tid) -> io::Result<Registers> {
    if let Some(answer) = proxy::ask(tid, Op::Registers, 0, &[]) {
        let (_, bytes) = answer?;
        if bytes.len() != size_of::<Registers>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: as many bytes as the structure has, which is made of integers; their address need not be aligned.
        return Ok(unsafe { bytes.as_ptr().cast::<Registers>().read_unaligned() });
    }
    let mut registers = std::mem::MaybeUninit::<Registers>::zeroed();
    // SAFETY: GETREGS fills a user_regs_struct: the pointer is to one.
    check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid as libc::pid_t, 0usize, registers.as_mut_ptr()) })?;
    // SAFETY: made of integers, zeroed and then filled.
    Ok(unsafe { registers.assume_init() })
}

pub(crate) fn set_registers(tid: Tid, registers: &Registers) -> io::Result<()> {
    let pointer: *const Registers = registers;
    if proxy::holds(tid) {
        // SAFETY: the bytes of a structure of 64-bit integers, which has no padding.
        let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size_of::<Registers>()) };
        return by_proxy(tid, Op::SetRegisters, 0, bytes).unwrap_or(Ok(()));
    }
    // SAFETY: SETREGS reads a user_regs_struct: the pointer is to one.
    check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid as libc::pid_t, 0usize, pointer) }).map(drop)
}

/// Vector registers as an XSAVE image (`NT_X86_XSTATE`).
pub(crate) fn vectors(tid: Tid) -> io::Result<Vec<u8>> {
    const NT_X86_XSTATE: usize = 0x202;
    const BYTES_MAX: usize = 0x4000;
    if let Some(answer) = proxy::ask(tid, Op::RegisterSet, NT_X86_XSTATE as u64, &[]) {
        return answer.map(|(_, image)| image);
    }
    let mut image = vec![0u8; BYTES_MAX];
    let mut part = libc::iovec { iov_base: image.as_mut_ptr().cast(), iov_len: image.len() };
    let pointer: *mut libc::iovec = &mut part;
    // SAFETY: GETREGSET fills what the iovec describes, which is `image`, and stores the length there.
    check(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid as libc::pid_t, NT_X86_XSTATE, pointer) })?;
    image.truncate(part.iov_len);
    Ok(image)
}

pub(crate) fn signal_mask(tid: Tid) -> io::Result<u64> {
    if let Some(answer) = proxy::ask(tid, Op::SignalMask, 0, &[]) {
        return answer.map(|(mask, _)| mask);
    }
    let mut mask = 0u64;
    let pointer: *mut u64 = &mut mask;
    // SAFETY: GETSIGMASK with size 8 writes 8 bytes: the pointer is to a u64.
    check(unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, tid as libc::pid_t, 8usize, pointer) })?;
    Ok(mask)
}

pub(crate) fn set_signal_mask(tid: Tid, mask: u64) -> io::Result<()> {
    if let Some(done) = by_proxy(tid, Op::SetSignalMask, mask, &[]) {
        return done;
    }
    let pointer: *const u64 = &mask;
    // SAFETY: SETSIGMASK with size 8 reads 8 bytes: the pointer is to a u64.
    check(unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, tid as libc::pid_t, 8usize, pointer) }).map(drop)
}

/// Signals that wait for a stopped thread are looked at so many at a time.
pub(crate) const PENDING_MAX: usize = 8;

/// Number and `si_code` of the first signals, at most [`PENDING_MAX`], that wait for a stopped thread alone.
pub(crate) fn pending(tid: Tid) -> Vec<(i32, i32)> {
    if let Some(answer) = proxy::ask(tid, Op::Pending, 0, &[]) {
        let word = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let (_, pending) = answer.unwrap_or_default();
        return pending.chunks_exact(8).take(PENDING_MAX).map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect();
    }
    let which = libc::ptrace_peeksiginfo_args { off: 0, flags: 0, nr: PENDING_MAX as i32 };
    let mut infos = [const { std::mem::MaybeUninit::<libc::siginfo_t>::zeroed() }; PENDING_MAX];
    let (arguments, buffer) = (&raw const which, infos.as_mut_ptr());
    // SAFETY: PEEKSIGINFO reads the arguments, and writes at most `nr` structures: there is room for as many.
    let filled = unsafe { libc::ptrace(libc::PTRACE_PEEKSIGINFO, tid as libc::pid_t, arguments, buffer) };
    let filled = infos.into_iter().take(usize::try_from(filled).unwrap_or(0)).map(|info| {
        // SAFETY: made of integers, zeroed and then filled.
        let info = unsafe { info.assume_init() };
        (info.si_signo, info.si_code)
    });
    filled.collect()
}

/// Whether a signal waits for a stopped thread that one of its own instructions has caused (kernel/signal.c:SYNCHRONOUS_MASK), and
/// that the thread does not block.
pub(crate) fn has_exception_pending(tid: Tid) -> bool {
    const SYNCHRONOUS: [i32; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGTRAP, libc::SIGFPE, libc::SIGSYS];
    pending(tid).into_iter().any(|(signal, code)| {
        // (What a process has sent has a code that is not positive.)
        let is_own = code > 0 && SYNCHRONOUS.contains(&signal);
        is_own && signal_mask(tid).is_ok_and(|mask| mask & (1 << (signal - 1)) == 0)
    })
}

/// Which calls of a thread are dispatched to it as signals: `struct ptrace_sud_config` (include/uapi/linux/ptrace.h). Those from
/// outside of `bytes` bytes at `offset`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// 0: none.
    pub mode: u64,
    /// Address of the byte that says whether there are any at present; 0: always.
    pub selector: u64,
    /// First address of the code whose calls are not.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

const PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4210;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

/// Since Linux 6.4.
pub(crate) fn dispatch(tid: Tid) -> io::Result<Dispatch> {
    if let Some(answer) = proxy::ask(tid, Op::Dispatch, 0, &[]) {
        let (_, bytes) = answer?;
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let mut next = || words.next().ok_or(io::Error::from(io::ErrorKind::InvalidData));
        return Ok(Dispatch { mode: next()?, selector: next()?, offset: next()?, bytes: next()? });
    }
    let mut config = Dispatch::default();
    let pointer: *mut Dispatch = &mut config;
    let kind = PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG;
    // SAFETY: writes the 32 bytes that it is told of: the pointer is to as many.
    check(unsafe { libc::ptrace(kind, tid as libc::pid_t, size_of::<Dispatch>(), pointer) })?;
    Ok(config)
}

pub(crate) fn set_dispatch(tid: Tid, config: &Dispatch) -> io::Result<()> {
    if proxy::holds(tid) {
        let words = [config.mode, config.selector, config.offset, config.bytes];
        let bytes = words.map(u64::to_le_bytes);
        return by_proxy(tid, Op::SetDispatch, 0, bytes.as_flattened()).unwrap_or(Ok(()));
    }
    let pointer: *const Dispatch = config;
    let kind = PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG;
    // SAFETY: reads the 32 bytes that it is told of: the pointer is to as many.
    check(unsafe { libc::ptrace(kind, tid as libc::pid_t, size_of::<Dispatch>(), pointer) }).map(drop)
}

/// A filter of a thread's system calls, the latest one first; `None`: there are not so many.
///
/// # Errors
/// `EINVAL`: its calls are not filtered by programs; `EACCES`: without `CAP_SYS_ADMIN`, or filtered ourselves.
pub(crate) fn filter(tid: Tid, index: usize) -> io::Result<Option<Vec<FilterInsn>>> {
    const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
    if let Some(answer) = proxy::ask(tid, Op::Filter, index as u64, &[]) {
        return match answer {
            Ok((_, bytes)) => Ok(Some(bytes.chunks_exact(8).map(filter_insn).collect())),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        };
    }
    let mut filter = vec![FilterInsn::default(); FILTER_INSNS_MAX];
    // SAFETY: writes at most BPF_MAXINSNS instructions, for which there is room.
    let count =
        check(unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid as libc::pid_t, index, filter.as_mut_ptr()) });
    match count {
        Ok(count) => {
            filter.truncate(count as usize);
            Ok(Some(filter))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `struct sock_filter`.
fn filter_insn(bytes: &[u8]) -> FilterInsn {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("8 bytes"));
    FilterInsn { code: word(0) as u16, jt: bytes[2], jf: bytes[3], k: word(4) }
}

/// What `tid`, a tracee of this thread, has done; never blocks and never touches other children.
pub(crate) fn poll(tid: Tid) -> Wait {
    if let Some(done) = wait_by_proxy(tid, 0) {
        return done.unwrap_or(Wait::Nothing);
    }
    let mut status = 0;
    // SAFETY: wants a valid pointer to a status word.
    let result = unsafe { libc::waitpid(tid as libc::pid_t, &mut status, libc::__WALL | libc::WNOHANG) };
    if result == 0 || (result < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted) {
        return Wait::Nothing;
    }
    if result < 0 { Wait::Gone } else { what_happened(status) }
}

/// What the status of a thread that was waited for means.
fn what_happened(status: i32) -> Wait {
    if !libc::WIFSTOPPED(status) {
        return Wait::Gone;
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_STOP => Wait::EventStop(signal),
        0 if signal == libc::SIGTRAP | 0x80 => Wait::Syscall,
        0 => Wait::Signal(signal),
        event => Wait::Event(event),
    }
}

/// Waits for so many microseconds; `None`: no proxy holds the thread.
fn wait_by_proxy(tid: Tid, microseconds: u64) -> Option<io::Result<Wait>> {
    Some(match proxy::ask(tid, Op::Wait, microseconds, &[])? {
        Ok((proxy::NOTHING_YET, _)) => Ok(Wait::Nothing),
        Ok((proxy::GONE, _)) => Ok(Wait::Gone),
        Ok((status, _)) => Ok(what_happened(status as i32)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(Wait::Gone),
        Err(error) => Err(error),
    })
}

/// Waits for the next thing that `tid` does; [`Wait::Nothing`] if the deadline passed, or if its proxy does not answer.
pub(crate) fn wait(tid: Tid, deadline: Instant, pause: &mut Pause) -> Wait {
    while proxy::holds(tid) {
        let left = deadline.saturating_duration_since(Instant::now());
        let microseconds =
            u64::try_from(left.as_micros()).map_or(proxy::WAIT_MAX_US, |left| left.min(proxy::WAIT_MAX_US));
        match wait_by_proxy(tid, microseconds) {
            // (Other threads of ours ask the same proxy, and get their turn now.)
            Some(Ok(Wait::Nothing)) if microseconds != 0 => std::thread::sleep(PROXY_PAUSE),
            Some(Ok(done)) => return done,
            _ => {
                std::thread::sleep(left.min(BROKEN_PAUSE));
                return Wait::Nothing;
            }
        }
    }
    loop {
        match poll(tid) {
            Wait::Nothing if pause.is_long() && Instant::now() >= deadline => return Wait::Nothing,
            // (A wait that cannot be slept through is one of polls.)
            Wait::Nothing if pause.is_long() && sleep_until_something(tid, deadline) => {}
            Wait::Nothing => pause.go_by(),
            other => return other,
        }
    }
}

/// From one poll to the next.
#[derive(Default)]
pub(crate) struct Pause {
    spins: u32,
}

impl Pause {
    /// Whether the clock may be asked meanwhile.
    pub(crate) fn is_long(&self) -> bool {
        self.spins >= SPINS
    }

    pub(crate) fn go_by(&mut self) {
        if self.is_long() {
            std::thread::sleep(POLL_SLEEP);
        } else {
            self.spins += 1;
            std::thread::yield_now();
        }
    }
}

/// A duplicate of a file descriptor of another process.
pub(crate) fn get_fd(pidfd: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_getfd takes numbers only.
    let result = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0usize) })?;
    // SAFETY: the kernel returned a new fd that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}

/// Reads many pieces of a stopped process's memory, by address; false: not all of them can be read like this (what nobody may read,
/// say, or too many at a time), and nothing is known of any.
pub(crate) fn read_pieces<'a>(pid: u32, pieces: impl Iterator<Item = (u64, &'a mut [u8])>) -> bool {
    let (mut local, mut remote, mut bytes) = (vec![], vec![], 0);
    for (address, piece) in pieces {
        bytes += piece.len();
        remote.push(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: piece.len() });
        local.push(libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() });
    }
    let count = local.len() as libc::c_ulong;
    // SAFETY: process_vm_readv wants valid iovecs; each of `local` covers a piece, which this call alone borrows, and `remote` is
    // checked by the kernel.
    let read =
        unsafe { libc::process_vm_readv(pid as libc::pid_t, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    read == bytes as isize
}

/// Whether user code may use `rdfsbase` and its kin (`AT_HWCAP2` bit 1).
pub fn fsgsbase_available() -> bool {
    // SAFETY: getauxval has no preconditions.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & 2 != 0 }
}

/// Whether a thread of this process is there yet.
pub(crate) fn is_own_thread(tid: Tid) -> bool {
    // SAFETY: tgkill takes numbers only; signal 0 is none.
    unsafe { libc::tgkill(std::process::id() as libc::pid_t, tid as libc::pid_t, 0) == 0 }
}
