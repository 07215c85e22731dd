//! The ring of a perf event, into which the kernel puts samples, and `bpf_perf_event_output` what programs write
//! (perf_event_open(2), "MMAP layout").

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use ring3_uapi::perf::{RING_DATA_HEAD, RING_DATA_TAIL};
use rustix::mm::ProtFlags;

use crate::raw_mapped::{Mapped, page_bytes};

/// `sizeof(struct perf_event_header)`.
const HEADER_BYTES: u64 = 8;

/// A perf event's ring, of which this is the only reader.
#[derive(Debug)]
pub struct PerfRing {
    mapped: Mapped,
    /// Bytes of the data: a power of two.
    data: usize,
    tail: u64,
}

/// A record: its `PERF_RECORD_*`, and what is behind its header.
pub type Record<'r> = (u32, &'r [u8]);

impl PerfRing {
    /// Maps the ring of an event; `pages` of data: a power of two.
    ///
    /// # Errors
    /// Those of mmap(2): `EPERM` if the user has no more memory that may be locked (`kernel.perf_event_mlock_kb`).
    pub fn new(event: &impl AsFd, pages: usize) -> io::Result<PerfRing> {
        let data = page_bytes() * pages;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = Mapped::new(event.as_fd(), 0, page_bytes() + data, protection)?;
        let tail = mapped.long(RING_DATA_TAIL.at).load(Ordering::Relaxed);
        Ok(PerfRing { mapped, data, tail })
    }

    /// Leaves out what it holds.
    pub fn skip(&mut self) {
        self.tail = self.mapped.long(RING_DATA_HEAD.at).load(Ordering::Acquire);
        self.consumed();
    }

    fn consumed(&self) {
        self.mapped.long(RING_DATA_TAIL.at).store(self.tail, Ordering::Release);
    }

    /// Copies bytes of the data, which begin anew behind their end.
    fn copy(&self, from: u64, to: &mut [u8]) {
        let at = (from % self.data as u64) as usize;
        let first = to.len().min(self.data - at);
        let (before, behind) = to.split_at_mut(first);
        self.mapped.copy(page_bytes() + at, before);
        self.mapped.copy(page_bytes(), behind);
    }

    /// Takes the next record into a buffer; `None`: there is none.
    pub fn next<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Option<Record<'b>> {
        let head = self.mapped.long(RING_DATA_HEAD.at).load(Ordering::Acquire);
        if head.wrapping_sub(self.tail) < HEADER_BYTES {
            return None;
        }
        let mut header = [0; HEADER_BYTES as usize];
        self.copy(self.tail, &mut header);
        let bytes = u64::from(u16::from_ne_bytes([header[6], header[7]])).max(HEADER_BYTES);
        buffer.resize((bytes - HEADER_BYTES) as usize, 0);
        self.copy(self.tail + HEADER_BYTES, buffer);
        self.tail = self.tail.wrapping_add(bytes);
        self.consumed();
        Some((u32::from_ne_bytes([header[0], header[1], header[2], header[3]]), buffer))
    }
}
