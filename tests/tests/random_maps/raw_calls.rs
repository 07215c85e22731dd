//! bpf(2) as it is, and memory at whose end nothing is mapped.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::calls::raw_bpf::{Attr, bpf, result};
use ring3_uapi::Errno;

use super::sequence::Data;

/// Bytes of a [`Slot`].
pub(crate) const SLOT_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Where nothing is ever mapped.
const BAD_ADDRESS: u64 = 8;

/// bpf(2) with a command that gives a descriptor.
pub(crate) fn bpf_fd(command: u32, attr: &mut Attr) -> Result<OwnedFd, Errno> {
    let fd = bpf(command, attr)?;
    // SAFETY: the call made the descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// perf_event_open(2) of a `struct perf_event_attr`.
pub(crate) fn perf_event_open(attr: &[u8; 136], pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: perf_event_open reads 136 bytes at the address.
    let opened = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), pid, -1, -1, 8) };
    let fd = result(opened)?;
    // SAFETY: the call made the descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(crate) fn ioctl(fd: &OwnedFd, request: u32, argument: u64) -> Result<i64, Errno> {
    // SAFETY: the requests that are made here take numbers.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(request), argument) }.into())
}

/// Binds this thread to CPU 0.
pub(crate) fn stay_on_one_cpu() {
    let first = 1u64;
    // SAFETY: reads the 8 bytes of the set.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, 8, &raw const first) };
}

/// Memory for one argument: it lies at the end, and behind the end is nothing.
pub(crate) struct Slot {
    end: *mut u8,
    read_only_end: *mut u8,
}

fn mapped(bytes: usize, protection: i32, at: *mut u8) -> *mut u8 {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: a new mapping, or one in place of a part of a slot that only this file knows.
    let base = unsafe { libc::mmap(at.cast(), bytes, protection, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    base.cast()
}

impl Slot {
    pub(crate) fn new() -> Slot {
        let end_of = |protection: i32| {
            let base = mapped(SLOT_BYTES + PAGE_BYTES, libc::PROT_NONE, std::ptr::null_mut());
            mapped(SLOT_BYTES, protection, base).wrapping_add(SLOT_BYTES)
        };
        Slot { end: end_of(libc::PROT_READ | libc::PROT_WRITE), read_only_end: end_of(libc::PROT_READ) }
    }

    /// Puts `bytes` into it, and says where a pointer of this kind leads.
    pub(crate) fn place(&mut self, data: Data, bytes: &[u8]) -> u64 {
        let bytes = &bytes[..bytes.len().min(SLOT_BYTES)];
        let start = self.end.wrapping_sub(bytes.len());
        // SAFETY: the SLOT_BYTES before the end are mapped and belong to this slot alone.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        match data {
            Data::Null => 0,
            Data::Bad => BAD_ADDRESS,
            Data::Short => self.end.wrapping_sub(bytes.len() / 2) as u64,
            Data::ReadOnly => self.read_only_end.wrapping_sub(bytes.len()) as u64,
            Data::Number(_) | Data::Fd(_) | Data::Last => start as u64,
        }
    }

    /// The last `bytes` of it.
    pub(crate) fn bytes(&self, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes.min(SLOT_BYTES)];
        let start = self.end.wrapping_sub(copy.len());
        // SAFETY: as in `place`.
        unsafe { start.copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len()) };
        copy
    }
}
