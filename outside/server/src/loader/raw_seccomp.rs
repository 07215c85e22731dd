//! Seccomp user notification (`seccomp_unotify(2)`), and the memory and descriptors of loaders.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use ring3_uapi::seccomp::FilterInsn;

use super::calls;
use crate::realm;

/// A caught system call (`struct seccomp_notif`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notification {
    /// Names it in answers.
    pub(crate) id: u64,
    /// Thread that makes it.
    pub(crate) tid: u32,
    flags: u32,
    /// Number.
    pub(crate) number: i32,
    arch: u32,
    instruction: u64,
    /// Arguments.
    pub(crate) args: [u64; 6],
}

impl Notification {
    /// A call of a thread of this process, which nobody was notified of.
    pub(crate) fn of_own(tid: u32, number: i32, args: [u64; 6]) -> Notification {
        Notification { id: 0, tid, flags: 0, number, arch: AUDIT_X86_64, instruction: 0, args }
    }
}

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    source: u32,
    target: u32,
    target_flags: u32,
}

const fn ioctl(direction: u64, number: u64, bytes: usize) -> u64 {
    direction << 30 | (bytes as u64) << 16 | (b'!' as u64) << 8 | number
}
const RECV: u64 = ioctl(3, 0, size_of::<Notification>());
const SEND: u64 = ioctl(3, 1, size_of::<Response>());
const ID_VALID: u64 = ioctl(1, 2, 8);
const ADD_FD: u64 = ioctl(1, 3, size_of::<AddFd>());
const SET_FLAGS: u64 = ioctl(1, 4, 8);
const CONTINUE: u32 = 1;
const ADD_FD_SEND: u32 = 1 << 1;
const SYNC_WAKE_UP: u64 = 1;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn call<T>(listener: BorrowedFd<'_>, request: u64, argument: *mut T) -> io::Result<libc::c_int> {
    loop {
        // SAFETY: callers pass a structure of the request's type.
        let result = check(unsafe { libc::ioctl(listener.as_raw_fd(), request, argument) });
        // A stop of the server interrupts the kernel's wait for its lock (kernel/seccomp.c:seccomp_notify_send, v6.18); an answer
        // that is lost is never made again. Who receives waits for calls again by itself.
        let is_interrupted = result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINTR));
        if !is_interrupted || request == RECV {
            return result;
        }
    }
}

/// The next caught call; `None` if its thread was killed meanwhile.
pub(crate) fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    // SAFETY: Notification is made of integers.
    let mut notification: Notification = unsafe { std::mem::zeroed() };
    receive_at(listener, &raw mut notification).map(|received| received.then_some(notification))
}

/// Receives into memory that must be zeroed (kernel/seccomp.c:seccomp_notify_recv).
fn receive_at(listener: BorrowedFd<'_>, at: *mut Notification) -> io::Result<bool> {
    match call(listener, RECV, at) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The start of a file, mapped, into which the kernel itself writes each caught call as it hands it over: whoever has the file knows
/// of the call even if the receiver is killed at once.
pub(crate) struct NotificationPage(NonNull<Notification>);

// SAFETY: the mapping belongs to this value alone, and only `receive`, which takes it exclusively, touches it.
unsafe impl Send for NotificationPage {}

impl NotificationPage {
    /// Maps the start of `file`, which has a [`Notification`]'s size at least.
    pub(crate) fn new(file: BorrowedFd<'_>) -> io::Result<NotificationPage> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: mmap wants no existing object at the address; a null hint lets the kernel choose.
        let base =
            unsafe { mmap(std::ptr::null_mut(), size_of::<Notification>(), access, MapFlags::SHARED, file, 0)? };
        Ok(NotificationPage(NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    /// As [`receive`]. The call received before must be answered, or written down elsewhere.
    pub(crate) fn receive(&mut self, listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
        let at = self.0.as_ptr();
        // The id goes first: a call without one is nobody's.
        // SAFETY: it is mapped, aligned to a page, and begins with the id.
        unsafe { at.cast::<u64>().write_volatile(0) };
        compiler_fence(Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { at.write_bytes(0, 1) };
        let received = receive_at(listener, at)?;
        // SAFETY: as above; every pattern of bits is a Notification.
        Ok(received.then(|| unsafe { at.read_volatile() }))
    }
}

impl Drop for NotificationPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody refers to it any more. (Nothing is left to do if it fails.)
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), size_of::<Notification>()) };
    }
}

/// Whether the thread still waits for the answer: what was read of its memory before was its own.
pub(crate) fn is_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    let mut id = id;
    call(listener, ID_VALID, &mut id).is_ok()
}

/// Answers with a result, or with an error number.
pub(crate) fn answer(listener: BorrowedFd<'_>, id: u64, result: Result<i64, i32>) {
    let mut response = Response { id, value: result.unwrap_or(0), error: -result.err().unwrap_or(0), flags: 0 };
    // The thread may be gone; then nobody waits.
    let _ = call(listener, SEND, &mut response);
}

/// Lets the kernel carry the call out as it was made.
pub(crate) fn pass_on(listener: BorrowedFd<'_>, id: u64) {
    let mut response = Response { id, value: 0, error: 0, flags: CONTINUE };
    let _ = call(listener, SEND, &mut response);
}

/// Installs a descriptor in the loader and makes its number the call's result.
pub(crate) fn answer_fd(
    listener: BorrowedFd<'_>,
    id: u64,
    fd: BorrowedFd<'_>,
    close_on_exec: bool,
) -> io::Result<()> {
    let target_flags = if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 };
    let mut add = AddFd { id, flags: ADD_FD_SEND, source: fd.as_raw_fd() as u32, target: 0, target_flags };
    match call(listener, ADD_FD, &mut add) {
        Ok(_) => Ok(()),
        Err(error) => {
            answer(listener, id, Err(error.raw_os_error().unwrap_or(libc::EMFILE)));
            Err(error)
        }
    }
}

/// Hands the CPU over with the answer where the kernel can.
pub(crate) fn wake_synchronously(listener: BorrowedFd<'_>) {
    // SAFETY: the argument of this request is a number.
    let _ = unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
}

/// A duplicate of a loader's descriptor.
pub(crate) fn get_fd(tid: u32, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let open = |pid: u32| check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0usize) } as libc::c_int);
    // (Most callers are the first thread of their group, which need not be looked for then.)
    let pidfd = open(tid).or_else(|_| open(leader(tid)))?;
    // SAFETY: a new descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: takes numbers.
    let copy = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0usize) } as libc::c_int)?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Thread group id of a thread.
pub(crate) fn leader(tid: u32) -> u32 {
    realm::leader(tid).unwrap_or(tid)
}

/// How many descriptors a thread's table has room for.
pub(crate) fn fd_table_size(tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    ring3_inject::status_field(&status, "FDSize")?.parse().ok()
}

/// Reads a loader's memory.
pub(crate) fn read(tid: u32, address: u64, out: &mut [u8]) -> Result<(), i32> {
    transfer(libc::SYS_process_vm_readv, tid, address, out.as_mut_ptr(), out.len())
}

/// Writes a loader's memory.
pub(crate) fn write(tid: u32, address: u64, bytes: &[u8]) -> Result<(), i32> {
    transfer(libc::SYS_process_vm_writev, tid, address, bytes.as_ptr().cast_mut(), bytes.len())
}

fn transfer(number: libc::c_long, tid: u32, address: u64, local: *mut u8, bytes: usize) -> Result<(), i32> {
    if bytes == 0 {
        return Ok(());
    }
    let local = libc::iovec { iov_base: local.cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
    // SAFETY: `local` covers the caller's slice (written only by readv); the kernel checks `remote`.
    let done = unsafe { libc::syscall(number, tid as libc::pid_t, &local, 1usize, &remote, 1usize, 0usize) };
    if done == bytes as libc::c_long { Ok(()) } else { Err(libc::EFAULT) }
}

pub(super) const AUDIT_X86_64: u32 = 0xc000_003e;

/// Whether a filter that this thread has refuses the calls of loaders. Of a call that two filters have something to say about, the
/// refusal counts, and no supervisor hears of it (`kernel/seccomp.c:seccomp_run_filters`).
fn is_refused() -> bool {
    // SAFETY: prctl with numbers.
    let is_filtered = unsafe { libc::prctl(libc::PR_GET_SECCOMP) } > 0;
    let refused = |call: libc::c_long, arguments: [libc::c_long; 5]| {
        let [a, b, c, d, e] = arguments;
        // SAFETY: numbers that the kernel refuses with EINVAL before it looks at memory: an unknown command, unknown flags.
        let result = unsafe { libc::syscall(call, a, b, c, d, e) };
        let error = std::io::Error::last_os_error().raw_os_error();
        result < 0 && matches!(error, Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
    };
    is_filtered
        && (refused(libc::SYS_bpf, [libc::c_int::MAX.into(), 0, 0, 0, 0])
            || refused(libc::SYS_perf_event_open, [0, 0, -1, -1, -1]))
}

/// Installs the filter in this thread, for it and all its descendants, and returns the listener.
///
/// # Errors
/// A message for people: another supervisor holds the listener, another filter refuses loaders' calls, or the kernel has no user
/// notification.
pub fn install_filter() -> Result<OwnedFd, String> {
    const SET_MODE_FILTER: libc::c_long = 1;
    const NEW_LISTENER: u64 = 1 << 3;
    const WAIT_KILLABLE_RECV: u64 = 1 << 5;
    if is_refused() {
        return Err("a seccomp filter of this process refuses bpf(2) or perf_event_open(2), so ring3 cannot answer them. \
             In a container it is the runtime's: run ring3 outside of the container, or the container with a profile that allows \
             both"
            .into());
    }
    let insn = |FilterInsn { code, jt, jf, k }| libc::sock_filter { code, jt, jf, k };
    let mut program: Vec<libc::sock_filter> = calls::filter().into_iter().map(insn).collect();
    let descriptor = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let set = |flags: u64| {
        // SAFETY: wants a sock_fprog that describes a filter: both live here.
        let fd = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &descriptor) };
        check(fd as libc::c_int)
    };
    let mut result = set(NEW_LISTENER | WAIT_KILLABLE_RECV);
    if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EACCES)) {
        // SAFETY: prctl with numbers. Without privileges a filter needs the promise to gain none.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        result = set(NEW_LISTENER | WAIT_KILLABLE_RECV);
    }
    if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
        result = set(NEW_LISTENER);
    }
    match result {
        // SAFETY: a new descriptor that nobody else owns.
        Ok(fd) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            Err("another supervisor (a container runtime, or another `ring3 load`) already answers system calls of \
                 this process; run ring3 outside of it"
                .into())
        }
        Err(error) => Err(format!("seccomp user notification is not available: {error}")),
    }
}
