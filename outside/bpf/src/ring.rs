//! Ring buffers, read through their mappings (kernel/bpf/ringbuf.c; the protocol is that of src/ringbuf.c of libbpf).
//!
//! A target can write into the buffer: neither positions nor lengths are trusted, and a record is copied before anybody looks at it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::ProtFlags;

use crate::raw_mapped::{Mapped, page_bytes};

/// The record is not complete yet (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// It was given up (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;
/// Length and flags, and a distance (`BPF_RINGBUF_HDR_SZ`).
const HEADER_BYTES: u64 = 8;

/// The reading end of a `BPF_MAP_TYPE_RINGBUF`.
#[derive(Debug)]
pub struct RingBuffer {
    /// The page with the consumer's position.
    consumer: Mapped,
    /// The page with the producer's position, then the data, twice.
    producer: Mapped,
    bytes: usize,
    record: Vec<u8>,
}

impl RingBuffer {
    /// Maps the buffer of a map with so many bytes (its `max_entries`).
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(map: &impl AsFd, bytes: usize) -> io::Result<RingBuffer> {
        let (map, page) = (map.as_fd(), page_bytes());
        let consumer = Mapped::new(map, 0, page, ProtFlags::READ | ProtFlags::WRITE)?;
        let producer = Mapped::new(map, page, page + 2 * bytes, ProtFlags::READ)?;
        Ok(RingBuffer { consumer, producer, bytes, record: vec![] })
    }

    fn consumed(&self) -> &AtomicU64 {
        self.consumer.long(0)
    }

    fn produced(&self) -> &AtomicU64 {
        self.producer.long(0)
    }

    /// Hands over each record that is complete, in order, and frees it. The result is how many there were.
    ///
    /// A record that a writer has reserved and not submitted holds those behind it.
    pub fn take(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let mut record = std::mem::take(&mut self.record);
        let mut count = 0;
        // (Records are aligned to 8 bytes.)
        let aligned = |position: u64| position & !(HEADER_BYTES - 1);
        let mut at = aligned(self.consumed().load(Ordering::Relaxed));
        let end = aligned(self.produced().load(Ordering::Acquire));
        if end.wrapping_sub(at) > self.bytes as u64 {
            // (No producer gets so far ahead: something else wrote the position.)
            at = end;
        }
        while at != end {
            let offset = page_bytes() + (at as usize & (self.bytes - 1));
            let word = self.producer.word(offset).load(Ordering::Acquire);
            if word & BUSY != 0 {
                break;
            }
            let length = (word & !(BUSY | DISCARDED)) as usize;
            let whole = (HEADER_BYTES + length as u64).next_multiple_of(HEADER_BYTES);
            if whole > end.wrapping_sub(at) {
                at = end;
                break;
            }
            if word & DISCARDED == 0 {
                record.resize(length, 0);
                self.producer.copy(offset + HEADER_BYTES as usize, &mut record);
                each(&record);
                count += 1;
            }
            at = at.wrapping_add(whole);
            self.consumed().store(at, Ordering::Release);
        }
        self.consumed().store(at, Ordering::Release);
        self.record = record;
        count
    }
}
