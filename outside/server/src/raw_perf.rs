//! perf_event_open(2) on behalf of loaders: the kernel checks events, and samples.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use ring3_uapi::perf::{ATTR_BYTES, FLAG_FD_CLOEXEC};

/// `struct perf_event_attr` of the size that is known here.
pub(crate) type AttrBytes = [u8; ATTR_BYTES];

/// Opens an event of a thread (`None`: of all) on a CPU (`None`: on all).
///
/// # Errors
/// Those of perf_event_open(2) for the server.
pub(crate) fn open(attr: &AttrBytes, thread: Option<u32>, cpu: Option<u32>) -> io::Result<OwnedFd> {
    let number = |id: Option<u32>| id.map_or(-1, |id| id as i32);
    let (pid, cpu, group) = (number(thread), number(cpu), -1);
    // SAFETY: the kernel reads, and on E2BIG writes, at most the size that the attributes begin with, which is that of `attr`.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, attr.as_ptr().cast_mut(), pid, cpu, group, FLAG_FD_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: perf_event_open returned a new fd that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A request that takes a number.
///
/// # Errors
/// Those of the request.
pub(crate) fn request(event: BorrowedFd<'_>, request: u32, number: u64) -> io::Result<()> {
    // SAFETY: the requests that are made here take a number.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request.into(), number) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `PERF_EVENT_IOC_PERIOD`, which takes the address of a number.
///
/// # Errors
/// `EINVAL` for a period that events cannot have.
pub(crate) fn set_period(event: BorrowedFd<'_>, period: u64) -> io::Result<()> {
    // SAFETY: the kernel reads a word at the address.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), ring3_uapi::perf::IOC_PERIOD.into(), &raw const period) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
