//! Descriptors that bpf(2) made.

use std::os::fd::{FromRawFd, OwnedFd};

use ring3_uapi::Errno;

use crate::raw_bpf::{Attr, bpf};

/// Makes an object; closed when dropped.
pub(crate) fn made(command: u32, attr: &mut Attr) -> Result<OwnedFd, Errno> {
    let fd = bpf(command, attr)?;
    // SAFETY: from_raw_fd wants a descriptor that nobody else closes; the kernel made it for this call only.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
