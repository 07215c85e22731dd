//! Signals and descriptors of the server process.

use std::os::fd::{FromRawFd, OwnedFd};

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

/// Closes every descriptor but the standard ones: a daemon must not keep a pipe or a terminal of whoever
/// happened to start it. Only for the very beginning of the process, before it opens anything.
pub(crate) fn close_inherited() {
    // SAFETY: wants that nobody owns a descriptor from 3 on, which the caller promises; kernels without
    // close_range (before 5.9) leave them open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}
