//! ptrace(2) and wait4(2), as the thread that traces calls them, and the server's requests that read or write something.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{c_int, c_uint, pid_t};

use crate::raw_tracer::Event;

/// Of a thread's vector registers, and of a filter of system calls.
const PAYLOAD_BYTES_MAX: usize = 0x8000;
/// Signals of a tracee that the server is told of at a time.
const PENDING_MAX: usize = 8;

/// The result of a request: a value, or the error's number.
pub(crate) type Done = Result<i64, i32>;

/// A system call's result, by the C library.
pub(crate) fn check(result: i64) -> Done {
    if result < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(result) }
}

/// A descriptor that is none of the standard ones. A new one is if those are closed, and strace opens them anew later.
pub(crate) fn above_standard(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    match descriptor.as_raw_fd() {
        0..=libc::STDERR_FILENO => Ok(rustix::io::fcntl_dupfd_cloexec(&descriptor, libc::STDERR_FILENO + 1)?),
        _ => Ok(descriptor),
    }
}

/// The system call, not the C library's function, which changes results. (Nor one that somebody has put before that.)
///
/// # Safety
/// Where the request reads or writes memory of ours, `address` and `data` are as it wants them.
pub(crate) unsafe fn ptrace(request: c_uint, tid: pid_t, address: usize, data: usize) -> Done {
    // SAFETY: the caller's promise.
    check(unsafe { libc::syscall(libc::SYS_ptrace, request as usize, tid as usize, address, data) })
}

/// A request whose arguments are numbers.
pub(crate) fn plain(request: c_uint, tid: pid_t, data: usize) -> Done {
    // SAFETY: the requests that this is used for take no pointers.
    unsafe { ptrace(request, tid, 0, data) }
}

/// A request that fills a structure, or reads one.
pub(crate) fn with<T>(request: c_uint, tid: pid_t, address: usize, structure: &mut T) -> Done {
    // SAFETY: the requests that this is used for want a pointer to a T.
    unsafe { ptrace(request, tid, address, std::ptr::from_mut(structure).addr()) }
}

/// What the next of this thread's tracees has done; never of another thread's children.
pub(crate) fn wait_for_next() -> Option<Event> {
    wait_for(-1, libc::WNOHANG)
}

pub(crate) fn wait_for(tid: pid_t, options: c_int) -> Option<Event> {
    let mut status = 0;
    let mut rusage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let options = libc::__WALL | libc::__WNOTHREAD | options;
    loop {
        // SAFETY: pointers to a status and to a struct rusage.
        let tid = unsafe { libc::syscall(libc::SYS_wait4, tid, &raw mut status, options, rusage.as_mut_ptr()) };
        match check(tid) {
            Err(libc::EINTR) => {}
            // SAFETY: made of integers, zeroed and perhaps filled.
            Ok(1..) => return Some(Event { tid: tid as pid_t, status, rusage: unsafe { rusage.assume_init() } }),
            _ => return None,
        }
    }
}

pub(crate) fn mask(tid: pid_t) -> Result<u64, i32> {
    let mut mask = 0u64;
    with(libc::PTRACE_GETSIGMASK, tid, size_of::<u64>(), &mut mask).map(|_| mask)
}

pub(crate) fn set_mask(tid: pid_t, mut mask: u64) -> Done {
    with(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), &mut mask)
}

pub(crate) fn signal_info(tid: pid_t) -> Option<libc::siginfo_t> {
    // SAFETY: made of integers (and a union of such), for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    with(libc::PTRACE_GETSIGINFO, tid, 0, &mut info).ok().map(|_| info)
}

/// Has a signal that a tracee is stopped for, or gets, come from somewhere.
pub(crate) fn set_signal_info(tid: pid_t, info: &mut libc::siginfo_t) -> Done {
    with(libc::PTRACE_SETSIGINFO, tid, 0, info)
}

pub(crate) fn registers(tid: pid_t) -> Result<libc::user_regs_struct, i32> {
    // SAFETY: made of integers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    with(libc::PTRACE_GETREGS, tid, 0, &mut registers).map(|_| registers)
}

/// A word of a stopped tracee (`PTRACE_PEEKTEXT`), or of its `struct user` (`PTRACE_PEEKUSER`).
pub(crate) fn peek(request: c_uint, tid: pid_t, at: u64) -> Option<u64> {
    let mut word = 0u64;
    with(request, tid, at as usize, &mut word).ok().map(|_| word)
}

pub(crate) fn poke(tid: pid_t, at: u64, word: u64) -> Done {
    // SAFETY: the word is a number here.
    unsafe { ptrace(libc::PTRACE_POKEDATA, tid, at as usize, word as usize) }
}

/// The bytes of a structure of integers.
fn bytes_of<T>(value: &T) -> Vec<u8> {
    // SAFETY: as many bytes as the value has; the structures that this is used for have no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

/// A request of the server that reads or writes something of a stopped tracee.
pub(crate) fn read_or_write(op: u32, tid: pid_t, a: u64, payload: &[u8]) -> Result<(u64, Vec<u8>), i32> {
    const SET_DISPATCH: c_uint = 0x4210;
    const GET_DISPATCH: c_uint = 0x4211;
    const GET_FILTER: c_uint = 0x420c;
    const FILTER_INSN_BYTES: usize = 8;
    let nothing = |_: i64| (0, vec![]);
    match op {
        5 => registers(tid).map(|registers| (0, bytes_of(&registers))),
        6 if payload.len() == size_of::<libc::user_regs_struct>() => {
            let mut registers = [0u64; size_of::<libc::user_regs_struct>() / 8];
            fill(&mut registers, payload);
            with(libc::PTRACE_SETREGS, tid, 0, &mut registers).map(nothing)
        }
        7 => {
            let mut image = vec![0u8; PAYLOAD_BYTES_MAX];
            let mut part = libc::iovec { iov_base: image.as_mut_ptr().cast(), iov_len: image.len() };
            with(libc::PTRACE_GETREGSET, tid, a as usize, &mut part)?;
            image.truncate(part.iov_len);
            Ok((0, image))
        }
        8 => mask(tid).map(|mask| (mask, vec![])),
        9 => set_mask(tid, a).map(nothing),
        10 => pending(tid).map(|pending| (0, pending)),
        11 => {
            let mut config = [0u64; 4];
            with(GET_DISPATCH, tid, size_of_val(&config), &mut config)?;
            Ok((0, bytes_of(&config)))
        }
        12 if payload.len() == 32 => {
            let mut config = [0u64; 4];
            fill(&mut config, payload);
            with(SET_DISPATCH, tid, size_of_val(&config), &mut config).map(nothing)
        }
        13 => {
            let mut filter = vec![0u8; PAYLOAD_BYTES_MAX];
            const _: () = assert!(PAYLOAD_BYTES_MAX == 4096 * FILTER_INSN_BYTES);
            // SAFETY: writes at most BPF_MAXINSNS (4096) instructions, for which there is room.
            let count = unsafe { ptrace(GET_FILTER, tid, a as usize, filter.as_mut_ptr().addr()) }?;
            filter.truncate(count as usize * FILTER_INSN_BYTES);
            Ok((0, filter))
        }
        _ => Err(libc::EINVAL),
    }
}

fn fill(words: &mut [u64], bytes: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    }
}

/// Number and code of the first signals that wait for a stopped tracee alone.
fn pending(tid: pid_t) -> Result<Vec<u8>, i32> {
    let which = libc::ptrace_peeksiginfo_args { off: 0, flags: 0, nr: PENDING_MAX as i32 };
    let mut infos = [const { std::mem::MaybeUninit::<libc::siginfo_t>::zeroed() }; PENDING_MAX];
    let which = (&raw const which).addr();
    // SAFETY: reads the arguments, and writes at most `nr` structures: there is room for as many.
    let filled = unsafe { ptrace(libc::PTRACE_PEEKSIGINFO, tid, which, infos.as_mut_ptr().addr()) }?;
    let mut pending = vec![];
    for info in infos.iter().take(filled as usize) {
        // SAFETY: made of integers, zeroed and then filled.
        let info = unsafe { info.assume_init_ref() };
        pending.extend(info.si_signo.to_le_bytes());
        pending.extend(info.si_code.to_le_bytes());
    }
    Ok(pending)
}
