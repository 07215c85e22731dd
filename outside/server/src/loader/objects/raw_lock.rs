//! Locks of open file descriptions (`F_OFD_SETLK`, `fcntl(2)`).

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

fn range(kind: i32, byte: u32) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: byte.into(), l_len: 1, l_pid: 0 }
}

/// Locks a byte for a description, until its last descriptor is closed.
pub(super) fn lock(fd: BorrowedFd<'_>, byte: u32, write: bool) -> Result<(), Errno> {
    let mut range = range(if write { libc::F_WRLCK } else { libc::F_RDLCK }, byte);
    // SAFETY: F_OFD_SETLK reads a `struct flock`.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &mut range) };
    if done == 0 { Ok(()) } else { Err(Errno::NOLCK) }
}

/// Whether another description than that of `fd` has the byte locked.
pub(super) fn is_locked(fd: BorrowedFd<'_>, byte: u32) -> bool {
    let mut range = range(libc::F_WRLCK, byte);
    // SAFETY: F_OFD_GETLK reads and writes a `struct flock`.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut range) };
    done == 0 && i32::from(range.l_type) != libc::F_UNLCK
}
