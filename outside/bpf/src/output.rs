//! The ring of a perf event into which `bpf_perf_event_output` writes.

use std::io;
use std::os::fd::AsFd;

use ring3_uapi::perf::RECORD_SAMPLE;

use crate::perf_ring::PerfRing;

/// `PERF_RECORD_LOST`.
const RECORD_LOST: u32 = 2;
/// Pages of data of a perf event's ring.
const OUTPUT_PAGES: usize = 64;

/// The ring of a perf event into which `bpf_perf_event_output` writes.
#[derive(Debug)]
pub struct OutputRing {
    ring: PerfRing,
}

impl OutputRing {
    /// Maps the ring of an event.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new(event: &impl AsFd) -> io::Result<OutputRing> {
        Ok(OutputRing { ring: PerfRing::new(event, OUTPUT_PAGES)? })
    }

    /// Takes the next record into a buffer: what the program wrote, perhaps with bytes of 0 behind it, or how many records were
    /// lost before it. `None`: there is none.
    pub fn next(&mut self, buffer: &mut Vec<u8>) -> Option<Output> {
        loop {
            let (kind, _) = self.ring.next(buffer)?;
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
