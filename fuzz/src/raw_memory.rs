//! Memory that whoever leaves it is caught.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

const PAGE: usize = 4096;

/// Memory between two pages that may not be touched.
pub(crate) struct Fenced {
    base: *mut u8,
    bytes: usize,
}

impl Fenced {
    pub(crate) fn new(bytes: usize) -> Fenced {
        let bytes = bytes.next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: asks for fresh memory that nobody may touch.
        let fence = unsafe { libc::mmap(std::ptr::null_mut(), bytes + 2 * PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(fence, libc::MAP_FAILED);
        let base = fence.cast::<u8>().wrapping_add(PAGE);
        // SAFETY: opens what lies between the fences.
        assert_eq!(unsafe { libc::mprotect(base.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        Fenced { base, bytes }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// The bytes, as whoever has them alone sees them.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped with this size, readable and writable, and nobody else refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }

    /// Stores a word as another process would.
    pub(crate) fn write(&self, at: usize, value: u64, wide: bool) {
        if wide {
            let word = self.base.wrapping_add((at % self.bytes) & !7);
            // SAFETY: a whole aligned word inside the memory, whose size is a multiple of 8.
            unsafe { AtomicU64::from_ptr(word.cast()) }.store(value, Relaxed);
        } else {
            let word = self.base.wrapping_add((at % self.bytes) & !3);
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(word.cast()) }.store(value as u32, Relaxed);
        }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size.
        unsafe { libc::munmap(self.base.wrapping_sub(PAGE).cast(), self.bytes + 2 * PAGE) };
    }
}
