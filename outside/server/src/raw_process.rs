//! Signals, descriptors, limits and scheduling of the server process.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use ring3_uapi::pidfd::{PIDFD_GET_INFO, PIDFD_INFO_EXIT, PidfdInfo};

/// Blocks SIGTERM, SIGINT and SIGHUP for this thread and those it starts, and returns an fd that is
/// readable when one is pending. SIGPIPE stays ignored (the standard library's choice).
pub(crate) fn signals() -> std::io::Result<OwnedFd> {
    // SAFETY: sigset_t is plain data, for which zero is valid; sigemptyset initialises it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: wants a valid sigset_t: the local one.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: wants an initialised sigset_t and a valid signal number.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: wants an initialised set; the old one is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    // SAFETY: wants an initialised set; -1 makes a new fd.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: signalfd returned a new fd that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Open files that the server needs at least: a handful of its own, two per target, one per map and link.
const OPEN_FILES_MIN: u64 = 256;
/// Bytes that the server's largest memfds have.
const FILE_BYTES_MIN: u64 = 256 << 20;
const _: () = assert!(ring3_layout::region::CONTROL_BYTES <= FILE_BYTES_MIN);

/// Makes the server independent of the soft limits of whoever started it: open files and file sizes (which
/// hold for memfds as well) are raised to the hard ones. What is larger than allowed fails with EFBIG then,
/// instead of killing by SIGXFSZ. Errors are for people.
pub(crate) fn lift_limits() -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    for resource in [Resource::Nofile, Resource::Fsize] {
        let maximum = getrlimit(resource).maximum;
        let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
    }
    if let Some(files) = getrlimit(Resource::Nofile).maximum.filter(|files| *files < OPEN_FILES_MIN) {
        return Err(format!("the limit of open files is {files} (ulimit -n); it must be {OPEN_FILES_MIN} or more"));
    }
    if let Some(bytes) = getrlimit(Resource::Fsize).maximum.filter(|bytes| *bytes < FILE_BYTES_MIN) {
        return Err(format!(
            "the limit of file sizes is {bytes} bytes (ulimit -f); it must be {FILE_BYTES_MIN} or more"
        ));
    }
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    Ok(())
}

/// Closes every descriptor but the standard ones: a daemon must not keep a pipe or a terminal of whoever
/// happened to start it. Only for the very beginning of the process, before it opens anything.
pub(crate) fn close_inherited() {
    // SAFETY: wants that nobody owns a descriptor from 3 on, which the caller promises; kernels without
    // close_range (before 5.9) leave them open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// Asks for short time slices for the calling thread: then it is let run soon, also while others use all CPUs
/// (EEVDF, kernels from 6.12; others ignore it). Needs no right, gives no more time.
pub(crate) fn take_short_slices() {
    /// `struct sched_attr`, version 0.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    /// The shortest that the kernel grants, ns.
    const SLICE: u64 = 100_000;
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let size = size_of::<Attributes>() as u32;
    let policy = libc::SCHED_OTHER as u32;
    let wanted = Attributes { size, policy, flags: 0, nice, priority: 0, runtime: SLICE, deadline: 0, period: 0 };
    // SAFETY: sched_setattr reads `size` bytes of a sched_attr: the pointer is to one.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
}

/// The soft and the hard limit of a process's address space, bytes; `None` also if this user may not set them.
pub(crate) fn address_space_limits(pid: u32) -> Option<[u64; 2]> {
    let mut limits = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: without new limits it only writes the old ones, for which there is room.
    let told = unsafe { libc::prlimit64(pid as libc::pid_t, libc::RLIMIT_AS, std::ptr::null(), &raw mut limits) };
    (told == 0).then_some([limits.rlim_cur, limits.rlim_max])
}

/// Whether two processes have the same memory, as a `vfork` child and its parent; `None` if the kernel does not say
/// (`CONFIG_KCMP`) or one of them is gone.
pub(crate) fn share_memory(one: u32, other: u32) -> Option<bool> {
    /// linux/kcmp.h
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: kcmp takes numbers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0usize, 0usize) };
    (order >= 0).then_some(order == 0)
}

/// `NS_GET_PARENT`, `NS_GET_OWNER_UID` (linux/nsfs.h).
const NS_GET_PARENT: libc::c_ulong = 0xb702;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;

/// The namespace around a user namespace; `None` beyond the process's own.
pub(crate) fn namespace_parent(namespace: BorrowedFd<'_>) -> Option<OwnedFd> {
    // SAFETY: this request has no argument; of another file than a namespace it is refused.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    // SAFETY: the request returned a new descriptor that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Who made a user namespace.
pub(crate) fn namespace_owner(namespace: BorrowedFd<'_>) -> Option<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: this request writes a uid_t: the pointer is to one.
    let done = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    (done == 0).then_some(uid)
}

/// `SO_PEERPIDFD` (asm-generic/socket.h).
const SO_PEERPIDFD: libc::c_int = 77;

/// The process that made a connection; `None` where the kernel does not tell (before 6.5), or there is none any more.
pub(crate) fn peer_process(stream: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: this option is an int: the pointers are to one, and to its size.
    let done = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut bytes)
    };
    // SAFETY: the option was a new descriptor that nobody else owns.
    (done == 0 && fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Process id, as this process's PID namespace has it, and user id of who made a connection. The id is 0 where that is in no PID
/// namespace below this one.
pub(crate) fn peer_credentials(stream: BorrowedFd<'_>) -> std::io::Result<(u32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: this option is a ucred: the pointers are to one, and to its size.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    if done == 0 { Ok((peer.pid as u32, peer.uid)) } else { Err(std::io::Error::last_os_error()) }
}

/// The exit code, as wait(2) tells it, of a process that has been waited for; `None` where the kernel does not tell (before 6.15).
pub(crate) fn exit_code_of(pidfd: BorrowedFd<'_>) -> Option<u32> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: this request reads and writes the structure that its number has the size of.
    let done = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (done == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

/// Has a command begun by fork(2) and not by `posix_spawn`, whose child begins with the signals 32 and 33 ignored in glibc.
pub fn without_posix_spawn(command: &mut std::process::Command) -> &mut std::process::Command {
    // SAFETY: what runs in the child does nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, || Ok(())) }
}
