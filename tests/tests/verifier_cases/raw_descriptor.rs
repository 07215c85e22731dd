//! Descriptors as bpf(2) gives them.

use std::os::fd::{FromRawFd, OwnedFd};

pub(crate) fn own(number: i64) -> OwnedFd {
    // SAFETY: from_raw_fd wants an open descriptor that nobody else owns; bpf(2) has just made it for the caller.
    unsafe { OwnedFd::from_raw_fd(number as i32) }
}
