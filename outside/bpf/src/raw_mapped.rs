//! Memory that is shared with whoever writes records into it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};

pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// A mapping.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: *mut u8,
    bytes: usize,
}

impl Mapped {
    /// Maps so many bytes of a file, from an offset on.
    ///
    /// # Errors
    /// As mmap(2).
    pub(crate) fn new(of: BorrowedFd<'_>, offset: usize, bytes: usize, protection: ProtFlags) -> io::Result<Mapped> {
        let (anywhere, shared) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: asks for memory that nobody has.
        let base = unsafe { rustix::mm::mmap(anywhere, bytes, protection, shared, of, offset as u64) }?;
        Ok(Mapped { base: base.cast(), bytes })
    }

    /// A word, at a multiple of 8.
    pub(crate) fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at.checked_add(8).is_some_and(|end| end <= self.bytes), "inside the mapping");
        // SAFETY: an aligned word of the mapping, which lives as long as this value; others change it only atomically.
        unsafe { &*self.base.wrapping_add(at).cast::<AtomicU64>() }
    }

    /// Half a word, at a multiple of 4.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at.checked_add(4).is_some_and(|end| end <= self.bytes), "inside the mapping");
        // SAFETY: as `long`.
        unsafe { &*self.base.wrapping_add(at).cast::<AtomicU32>() }
    }

    /// Copies bytes. Only a target that breaks its own records writes them meanwhile: then the copy is of no use, as they are.
    pub(crate) fn copy(&self, at: usize, to: &mut [u8]) {
        assert!(at.checked_add(to.len()).is_some_and(|end| end <= self.bytes), "inside the mapping");
        // SAFETY: `at + to.len() <= self.bytes`, checked above; `to` is memory of this process's own.
        unsafe { std::ptr::copy_nonoverlapping(self.base.wrapping_add(at), to.as_mut_ptr(), to.len()) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, and nothing of it is in use any more. An error changes nothing.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

// SAFETY: the mapping belongs to this value alone, and any thread may use it.
unsafe impl Send for Mapped {}
// SAFETY: the words are atomic; `copy` reads what other processes may write in any case.
unsafe impl Sync for Mapped {}
