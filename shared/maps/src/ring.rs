//! RINGBUF: many producers, one consumer that has the pages mapped.
//!
//! File: consumer page, producer page, then twice the buffer's bytes of data, of which a record that begins in
//! the first half may use the second: the loader sees contiguous records, as in the kernel's doubly mapped
//! buffer. A record's header is its length with a busy bit, and its owner's thread id where the kernel keeps a
//! page offset (consumers ignore it): what a dead owner never submitted is discarded by the server.
//!
//! Own word 0: the producers' lock.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use ring3_layout::PAGE_BYTES;
use ring3_uapi::Errno;
use ring3_uapi::flags::{
    BPF_RB_AVAIL_DATA, BPF_RB_CONS_POS, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_PROD_POS, BPF_RB_RING_SIZE,
    BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT, BPF_RINGBUF_HDR_SZ,
};

use crate::Context;
use crate::lock::{lock, release_dead, unlock};
use crate::raw_memory::Memory;

pub(crate) const CONSUMER_AT: u64 = 0;
pub(crate) const PRODUCER_AT: u64 = PAGE_BYTES;
pub(crate) const DATA_AT: u64 = 2 * PAGE_BYTES;
/// `RINGBUF_MAX_RECORD_SZ`: a quarter of what a length can say.
const RECORD_BYTES_MAX: u64 = (u32::MAX / 4) as u64;

/// Bytes that a record with so much data takes, its header included.
pub(crate) fn record_bytes(data: u64) -> u64 {
    (data + u64::from(BPF_RINGBUF_HDR_SZ)).next_multiple_of(8)
}

/// A ring buffer.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'m> {
    pub(crate) memory: Memory<'m>,
}

/// A reserved record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Address of its data.
    pub address: u64,
}

impl<'m> Ring<'m> {
    pub(crate) fn new(memory: Memory<'m>) -> Ring<'m> {
        Ring { memory }
    }

    pub(crate) fn size(&self) -> u64 {
        u64::from(self.memory.geometry.header.max_entries)
    }

    pub(crate) fn mask(&self) -> u64 {
        self.size() - 1
    }

    pub(crate) fn position(&self, at: u64) -> u64 {
        self.memory.word64(at).load(Acquire)
    }

    /// Reserves `bytes`; `None` if there is no room now. Mirrors kernel/bpf/ringbuf.c:__bpf_ringbuf_reserve.
    pub fn reserve(&self, cx: &Context, bytes: u64) -> Option<Record> {
        if bytes > RECORD_BYTES_MAX {
            return None;
        }
        let length = record_bytes(bytes);
        if length > self.size() {
            return None;
        }
        let lock_at = self.memory.own_word(0);
        if !lock(&self.memory, lock_at, cx) {
            return None;
        }
        let producer = self.position(PRODUCER_AT);
        let used = producer.wrapping_add(length).wrapping_sub(self.position(CONSUMER_AT));
        let record = (used <= self.mask() + 1).then(|| {
            let at = DATA_AT + (producer & self.mask() & !7);
            self.memory.word32(at + 4).store(cx.owner, Relaxed);
            self.memory.word32(at).store(bytes as u32 | BPF_RINGBUF_BUSY_BIT, Release);
            self.memory.word64(PRODUCER_AT).store(producer.wrapping_add(length), Release);
            Record { address: self.memory.pointer(at + u64::from(BPF_RINGBUF_HDR_SZ), bytes) as u64 }
        });
        unlock(&self.memory, lock_at);
        record.filter(|record| record.address != 0)
    }

    /// Ends a reservation. True if the consumer must be woken. Mirrors kernel/bpf/ringbuf.c:bpf_ringbuf_commit.
    pub fn commit(&self, record: Record, flags: u64, discard: bool) -> bool {
        let header_bytes = u64::from(BPF_RINGBUF_HDR_SZ);
        let Some(at) = record.address.checked_sub(header_bytes).and_then(|a| self.memory.offset_of(a)) else {
            return false;
        };
        let word = self.memory.word32(at);
        let mut length = word.load(Relaxed) & !BPF_RINGBUF_BUSY_BIT;
        if discard {
            length |= BPF_RINGBUF_DISCARD_BIT;
        }
        word.swap(length, AcqRel);
        let consumer = self.position(CONSUMER_AT) & self.mask();
        if flags & BPF_RB_FORCE_WAKEUP != 0 {
            return true;
        }
        consumer == at.wrapping_sub(DATA_AT) && flags & BPF_RB_NO_WAKEUP == 0
    }

    /// `bpf_ringbuf_output`: `Ok(true)` if the consumer must be woken.
    ///
    /// # Errors
    /// `EINVAL` for unknown flags, `EAGAIN` without room.
    pub fn output(&self, cx: &Context, data: &[u8], flags: u64) -> Result<bool, Errno> {
        if flags & !(BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP) != 0 {
            return Err(Errno::EINVAL);
        }
        let record = self.reserve(cx, data.len() as u64).ok_or(Errno::EAGAIN)?;
        if let Some(at) = self.memory.offset_of(record.address) {
            self.memory.write(at, data);
        }
        Ok(self.commit(record, flags, false))
    }

    /// `bpf_ringbuf_query`.
    pub fn query(&self, what: u64) -> u64 {
        let (consumer, producer) = (self.position(CONSUMER_AT), self.position(PRODUCER_AT));
        match what {
            BPF_RB_AVAIL_DATA => producer.wrapping_sub(consumer).min(self.size()),
            BPF_RB_RING_SIZE => self.size(),
            BPF_RB_CONS_POS => consumer,
            BPF_RB_PROD_POS => producer,
            _ => 0,
        }
    }

    /// Where the consumer and the producers are.
    pub fn positions(&self) -> [u64; 2] {
        [self.position(CONSUMER_AT), self.position(PRODUCER_AT)]
    }

    /// Whether the consumer has something to read.
    pub fn has_data(&self) -> bool {
        self.position(CONSUMER_AT) != self.position(PRODUCER_AT)
    }

    /// Whether the consumer stands before a record that was reserved and not yet submitted or discarded.
    pub fn is_held_up(&self) -> bool {
        let consumer = self.position(CONSUMER_AT);
        let header = self.memory.word32(DATA_AT + (consumer & self.mask() & !7));
        consumer != self.position(PRODUCER_AT) && header.load(Acquire) & BPF_RINGBUF_BUSY_BIT != 0
    }

    /// Discards what dead owners reserved and never submitted; true if there was any, and the consumer should be
    /// woken. Bounded by the buffer's size whatever its bytes say. Producers are kept out meanwhile: the
    /// consumer may pass a record, but its header is not reused while it is looked at.
    pub fn discard_dead(&self, cx: &Context, is_dead: impl Fn(u32) -> bool) -> bool {
        let lock_at = self.memory.own_word(0);
        release_dead(&self.memory, lock_at, &is_dead);
        if !lock(&self.memory, lock_at, cx) {
            return false;
        }
        let any = self.discard_locked(&is_dead);
        unlock(&self.memory, lock_at);
        any
    }

    fn discard_locked(&self, is_dead: &impl Fn(u32) -> bool) -> bool {
        let producer = self.position(PRODUCER_AT);
        let mut at = self.position(CONSUMER_AT) & !7;
        let mut any = false;
        for _ in 0..self.size() / 8 {
            if at == producer || producer.wrapping_sub(at) > self.size() {
                break;
            }
            let offset = DATA_AT + (at & self.mask());
            let length = self.memory.word32(offset).load(Acquire);
            let owner = self.memory.word32(offset + 4).load(Relaxed);
            if length & BPF_RINGBUF_BUSY_BIT != 0 && is_dead(owner) {
                let dead = length & !BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT;
                any |= self.memory.word32(offset).compare_exchange(length, dead, AcqRel, Relaxed).is_ok();
            }
            let bytes = u64::from(length & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT));
            at = at.wrapping_add(record_bytes(bytes));
        }
        any
    }
}
