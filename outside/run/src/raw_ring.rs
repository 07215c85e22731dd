//! The ring into which the kernel puts the samples of a perf event (perf_event_open(2), "MMAP layout").

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use ring3_layout::PAGE_BYTES;
use ring3_uapi::perf::{RING_DATA_HEAD, RING_DATA_TAIL};
use rustix::mm::{MapFlags, ProtFlags};

/// Pages of samples: a power of two. A sample with two whole stacks takes two kilobytes.
const DATA_PAGES: u64 = 32;
const DATA_BYTES: u64 = DATA_PAGES * PAGE_BYTES;
/// `struct perf_event_header`.
const HEADER_BYTES: u64 = 8;

/// A perf event's ring, of which this is the only reader.
#[derive(Debug)]
pub(crate) struct PerfRing {
    base: *mut u8,
    tail: u64,
}

/// A record: its `PERF_RECORD_*`, and what is behind its header.
pub(crate) type Record<'r> = (u32, &'r [u8]);

impl PerfRing {
    /// Maps the ring of an event. What it holds already is not read.
    ///
    /// # Errors
    /// Those of mmap(2): `EPERM` if the user has no more memory that may be locked (`kernel.perf_event_mlock_kb`).
    pub(crate) fn new(event: BorrowedFd<'_>) -> io::Result<PerfRing> {
        let (bytes, protection) = ((PAGE_BYTES + DATA_BYTES) as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: asks for memory that nobody has.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, event, 0) }?;
        let mut ring = PerfRing { base: base.cast(), tail: 0 };
        ring.tail = ring.word(RING_DATA_HEAD.at).load(Ordering::Acquire);
        ring.consumed();
        Ok(ring)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the first page, which is mapped as long as this value lives, and which the kernel
        // shares with this process.
        unsafe { &*self.base.wrapping_add(at).cast::<AtomicU64>() }
    }

    fn consumed(&self) {
        self.word(RING_DATA_TAIL.at).store(self.tail, Ordering::Release);
    }

    /// Copies bytes of the data, which begin anew behind their end.
    fn copy(&self, from: u64, to: &mut [u8]) {
        for (index, byte) in to.iter_mut().enumerate() {
            let at = PAGE_BYTES + (from + index as u64) % DATA_BYTES;
            // SAFETY: inside the mapping; the kernel does not write what is not consumed.
            *byte = unsafe { self.base.wrapping_add(at as usize).read_volatile() };
        }
    }

    /// Takes the next record into a buffer; `None`: there is none.
    pub(crate) fn next<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Option<Record<'b>> {
        let head = self.word(RING_DATA_HEAD.at).load(Ordering::Acquire);
        if head.wrapping_sub(self.tail) < HEADER_BYTES {
            return None;
        }
        let mut header = [0; HEADER_BYTES as usize];
        self.copy(self.tail, &mut header);
        let bytes = u64::from(u16::from_le_bytes([header[6], header[7]])).max(HEADER_BYTES);
        buffer.resize((bytes - HEADER_BYTES) as usize, 0);
        self.copy(self.tail + HEADER_BYTES, buffer);
        self.tail = self.tail.wrapping_add(bytes);
        self.consumed();
        Some((u32::from_le_bytes([header[0], header[1], header[2], header[3]]), buffer))
    }
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for PerfRing {}

impl Drop for PerfRing {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, and nothing of it is in use any more. An error changes nothing.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), (PAGE_BYTES + DATA_BYTES) as usize) };
    }
}
