//! The ring of a perf event into which `bpf_perf_event_output` writes (perf_event_open(2), "MMAP layout").

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use ring3_uapi::perf::{RECORD_SAMPLE, RING_DATA_HEAD, RING_DATA_TAIL};
use rustix::mm::ProtFlags;

use crate::raw_mapped::{Mapped, page_bytes};

/// `sizeof(struct perf_event_header)`.
const HEADER_BYTES: u64 = 8;
/// `PERF_RECORD_LOST`.
const RECORD_LOST: u32 = 2;
/// Pages of data of a perf event's ring.
const OUTPUT_PAGES: usize = 64;

/// The ring of a perf event into which `bpf_perf_event_output` writes.
#[derive(Debug)]
pub struct OutputRing {
    mapped: Mapped,
}

impl OutputRing {
    /// Maps the ring of an event.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new(event: &impl AsFd) -> io::Result<OutputRing> {
        let bytes = page_bytes() * (1 + OUTPUT_PAGES);
        Ok(OutputRing { mapped: Mapped::new(event.as_fd(), 0, bytes, ProtFlags::READ | ProtFlags::WRITE)? })
    }

    fn copy(&self, from: u64, to: &mut [u8]) {
        let data = page_bytes() * OUTPUT_PAGES;
        let at = (from % data as u64) as usize;
        let first = to.len().min(data - at);
        let (before, behind) = to.split_at_mut(first);
        self.mapped.copy(page_bytes() + at, before);
        self.mapped.copy(page_bytes(), behind);
    }

    /// Takes the next record into a buffer: what the program wrote, perhaps with bytes of 0 behind it, or how many records were
    /// lost before it. `None`: there is none.
    pub fn next(&mut self, buffer: &mut Vec<u8>) -> Option<Output> {
        loop {
            let tail = self.mapped.long(RING_DATA_TAIL.at).load(Ordering::Relaxed);
            let head = self.mapped.long(RING_DATA_HEAD.at).load(Ordering::Acquire);
            if head.wrapping_sub(tail) < HEADER_BYTES {
                return None;
            }
            let mut header = [0; HEADER_BYTES as usize];
            self.copy(tail, &mut header);
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let bytes = u64::from(u16::from_ne_bytes([header[6], header[7]])).max(HEADER_BYTES);
            buffer.resize((bytes - HEADER_BYTES) as usize, 0);
            self.copy(tail + HEADER_BYTES, buffer);
            self.mapped.long(RING_DATA_TAIL.at).store(tail.wrapping_add(bytes), Ordering::Release);
            match kind {
                RECORD_SAMPLE if buffer.len() >= 4 => {
                    let size = u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as usize;
                    buffer.drain(..4);
                    buffer.truncate(size);
                    return Some(Output::Record);
                }
                RECORD_LOST if buffer.len() >= 16 => {
                    let lost = buffer[8..16].try_into().expect("8 bytes");
                    return Some(Output::Lost(u64::from_ne_bytes(lost)));
                }
                _ => {}
            }
        }
    }
}

/// What is next in an [`OutputRing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A record, which is in the buffer now.
    Record,
    /// So many records found no room.
    Lost(u64),
}
