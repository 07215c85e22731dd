//! RINGBUF: many producers, one consumer that has the pages mapped.
//!
//! File: consumer page, producer page, then twice the buffer's bytes of data, of which a record that begins in
//! the first half may use the second: the loader sees contiguous records, as in the kernel's doubly mapped
//! buffer. A record's header is its length with a busy bit, and its owner's thread id where the kernel keeps a
//! page offset (consumers ignore it): what a dead owner never submitted is discarded by the server.
//!
//! Own word 0: the producers' lock.
//!
//! `blocking.rs` has what writers need that wait for the reader (`RING3_F_BLOCK`).

use core::hint::cold_path;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use ring3_layout::PAGE_BYTES;
use ring3_uapi::Errno;
use ring3_uapi::flags::{
    BPF_RB_AVAIL_DATA, BPF_RB_CONS_POS, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_PROD_POS, BPF_RB_RING_SIZE,
    BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT, BPF_RINGBUF_HDR_SZ,
};

use crate::Context;
use crate::lock::{lock, release_dead, unlock};
use crate::raw_memory::{RingMemory, RingWriters};
use crate::wake::Wake;

pub(crate) const CONSUMER_AT: u64 = 0;
pub(crate) const PRODUCER_AT: u64 = PAGE_BYTES;
pub(crate) const DATA_AT: u64 = 2 * PAGE_BYTES;
/// `RINGBUF_MAX_RECORD_SZ`: a quarter of what a length can say.
const RECORD_BYTES_MAX: u64 = (u32::MAX / 4) as u64;
/// A reservation begins again this often at most, each time for a signal handler; a hostile process could have it begin again without end.
const RESERVE_TRIES_MAX: u32 = 64;

/// Bytes that a record with so much data takes, its header included.
pub(crate) fn record_bytes(data: u64) -> u64 {
    (data + u64::from(BPF_RINGBUF_HDR_SZ)).next_multiple_of(8)
}

/// A ring buffer.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'m>(pub(crate) RingMemory<'m>);

/// What a consumer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// No record, or none that is ready or was accepted.
    Nothing,
    /// A record, or what is none: there may be more behind it.
    Passed,
}

/// Why nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreserved {
    /// There is no room as long as the consumer stays where it is.
    Full,
    /// Another thread holds the producers' lock for long, or programs of this one do, which a signal handler has interrupted.
    Locked,
    /// So much never fits.
    Refused,
}

/// A reserved record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Address of its data.
    pub address: u64,
}

impl Ring<'_> {
    /// Reserves `bytes`; `None` if there is no room now. Mirrors kernel/bpf/ringbuf.c:__bpf_ringbuf_reserve.
    #[inline]
    pub fn reserve(&self, cx: &Context, bytes: u64) -> Option<Record> {
        let address = self.0.address(self.reserve_at(cx, bytes, 0).ok()?);
        Some(Record { address })
    }

    /// The position of what was reserved; so many bytes stay free.
    #[inline(always)]
    pub(crate) fn reserve_at(&self, cx: &Context, bytes: u64, spare: u64) -> Result<u64, Unreserved> {
        if bytes > RECORD_BYTES_MAX {
            return Err(Unreserved::Refused);
        }
        if record_bytes(bytes).saturating_add(spare) > self.0.size() {
            return Err(Unreserved::Refused);
        }
        let is_locked = lock(&self.0.writers.lock, cx);
        if !is_locked {
            if !cx.interrupts || !self.is_locked_by(cx.owner) {
                return Err(Unreserved::Locked);
            }
            self.finish_intended(cx);
        }
        let reserved = self.reserve_locked(cx, bytes, self.0.size() - spare);
        if is_locked {
            unlock(&self.0.writers.lock);
        }
        reserved.ok_or(Unreserved::Full)
    }

    /// Reserves with the lock held, by this program or by one of the same thread that it has interrupted. At most `size` bytes
    /// of the buffer are used then.
    ///
    /// A signal handler may run at any instruction, and its programs may reserve. If they find what is intended here, they
    /// finish that first; else this begins again behind what they have reserved.
    #[inline(always)]
    fn reserve_locked(&self, cx: &Context, bytes: u64, size: u64) -> Option<u64> {
        let RingWriters { intended, intended_bytes, .. } = self.0.writers;
        for _ in 0..RESERVE_TRIES_MAX {
            let producer = self.0.producer.load(Acquire);
            let used = producer.wrapping_add(record_bytes(bytes)).wrapping_sub(self.0.consumer.load(Acquire));
            if used > size {
                return None;
            }
            intended_bytes.store(bytes, Relaxed);
            intended.store(producer | 1, Release);
            if self.0.producer.load(Acquire) != producer && intended.load(Acquire) != 0 {
                cold_path();
                continue;
            }
            self.place(cx, producer, bytes);
            intended.store(0, Release);
            return Some(producer);
        }
        None
    }

    /// Writes a record's header and takes it into the buffer, if that has not been done: to do it again changes nothing.
    #[inline(always)]
    fn place(&self, cx: &Context, position: u64, bytes: u64) {
        let [header, owner] = self.0.header(position);
        owner.store(cx.owner, Relaxed);
        header.store(bytes as u32 | BPF_RINGBUF_BUSY_BIT, Release);
        let next = position.wrapping_add(record_bytes(bytes));
        let _ = self.0.producer.compare_exchange(position, next, Release, Relaxed);
    }

    /// Finishes what the interrupted program of this thread, which holds the lock, is about to reserve. (It has seen that there is
    /// room; of what a hostile process writes here, no more than a record is believed.)
    #[cold]
    fn finish_intended(&self, cx: &Context) {
        let RingWriters { intended, intended_bytes, .. } = self.0.writers;
        let producer = self.0.producer.load(Acquire);
        if intended.load(Acquire) == producer | 1 {
            self.place(cx, producer, intended_bytes.load(Relaxed) & RECORD_BYTES_MAX);
            intended.store(0, Release);
        }
    }

    /// Ends a reservation. Mirrors kernel/bpf/ringbuf.c:bpf_ringbuf_commit.
    #[inline]
    pub fn commit(&self, record: Record, flags: u64, discard: bool) -> Wake {
        let position = self.0.position_of(record.address);
        position.map_or_else(Wake::default, |position| self.commit_at(position, flags, discard))
    }

    #[inline(always)]
    pub(crate) fn commit_at(&self, position: u64, flags: u64, discard: bool) -> Wake {
        let [header, _] = self.0.header(position);
        let length = header.load(Relaxed) & !BPF_RINGBUF_BUSY_BIT;
        let ended = length | if discard { BPF_RINGBUF_DISCARD_BIT } else { 0 };
        if flags & (BPF_RB_FORCE_WAKEUP | BPF_RB_NO_WAKEUP) == BPF_RB_NO_WAKEUP {
            // Where the consumer is does not matter: what would order looking at that costs half of the rest.
            header.store(ended, Release);
            return Wake::default();
        }
        header.swap(ended, AcqRel);
        let (consumer, size) = (self.0.consumer.load(Acquire), self.0.size());
        let is_due = flags & BPF_RB_FORCE_WAKEUP != 0 || (consumer ^ position) & (size - 1) == 0;
        let before = position.wrapping_sub(consumer);
        Wake::new(is_due, [before, before.wrapping_add(record_bytes(u64::from(length)))], size)
    }

    /// `bpf_ringbuf_output`.
    ///
    /// # Errors
    /// `EINVAL` for unknown flags, `EAGAIN` without room.
    pub fn output(&self, cx: &Context, data: &[u8], flags: u64) -> Result<Wake, Errno> {
        if flags & !(BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP) != 0 {
            return Err(Errno::EINVAL);
        }
        let position = self.reserve_at(cx, data.len() as u64, 0).map_err(|_| Errno::EAGAIN)?;
        self.0.write(position, data);
        Ok(self.commit_at(position, flags, false))
    }

    /// `bpf_ringbuf_query`.
    pub fn query(&self, what: u64) -> u64 {
        let [consumer, producer] = self.positions();
        match what {
            BPF_RB_AVAIL_DATA => producer.wrapping_sub(consumer).min(self.0.size()),
            BPF_RB_RING_SIZE => self.0.size(),
            BPF_RB_CONS_POS => consumer,
            BPF_RB_PROD_POS => producer,
            _ => 0,
        }
    }

    /// Where the consumer and the producers are.
    pub fn positions(&self) -> [u64; 2] {
        [self.0.consumer.load(Acquire), self.0.producer.load(Acquire)]
    }

    /// Whether the consumer has something to read.
    pub fn has_data(&self) -> bool {
        let [consumer, producer] = self.positions();
        consumer != producer
    }

    /// Whether the consumer stands before a record that was reserved and not yet submitted or discarded.
    pub fn is_held_up(&self) -> bool {
        let [consumer, producer] = self.positions();
        let [header, _] = self.0.header(consumer);
        consumer != producer && header.load(Acquire) & BPF_RINGBUF_BUSY_BIT != 0
    }

    /// As the consumer: copies the next record to `out` and gives it to `accept`; if that takes it, it is passed. Whatever the
    /// producers have written, nothing outside of the buffer is read, and each call but the last passes something.
    pub fn take(&self, out: &mut [u8], accept: impl FnOnce(&[u8]) -> bool) -> Taken {
        let [consumer, producer] = self.positions();
        let waiting = producer.wrapping_sub(consumer);
        if waiting == 0 {
            return Taken::Nothing;
        }
        let length = self.0.header(consumer)[0].load(Acquire);
        if length & BPF_RINGBUF_BUSY_BIT != 0 && waiting <= self.0.size() {
            return Taken::Nothing;
        }
        let bytes = u64::from(length & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT));
        let room = usize::try_from(bytes).ok().and_then(|bytes| out.get_mut(..bytes));
        let is_record = consumer & 7 == 0 && waiting <= self.0.size() && record_bytes(bytes) <= waiting;
        let Some(room) = room.filter(|_| is_record) else {
            // What no producer writes: all of it is passed.
            self.0.consumer.store(producer, SeqCst);
            return Taken::Passed;
        };
        if length & BPF_RINGBUF_DISCARD_BIT == 0 {
            self.0.read(consumer, room);
            if !accept(room) {
                return Taken::Nothing;
            }
        }
        // A producer that finds the consumer before its record rings; one that does not has its record found here.
        self.0.consumer.store(consumer.wrapping_add(record_bytes(bytes)), SeqCst);
        Taken::Passed
    }

    /// Discards what dead owners reserved and never submitted; true if there was any, and the consumer should be
    /// woken. Bounded by the buffer's size whatever its bytes say. Producers are kept out meanwhile: the
    /// consumer may pass a record, but its header is not reused while it is looked at.
    pub fn discard_dead(&self, cx: &Context, is_dead: impl Fn(u32) -> bool) -> bool {
        release_dead(&self.0.writers.lock, &is_dead);
        if !lock(&self.0.writers.lock, cx) {
            return false;
        }
        let any = self.discard_locked(&is_dead);
        unlock(&self.0.writers.lock);
        any
    }

    fn discard_locked(&self, is_dead: &impl Fn(u32) -> bool) -> bool {
        let [consumer, producer] = self.positions();
        let mut at = consumer & !7;
        let mut any = false;
        for _ in 0..self.0.size() / 8 {
            if at == producer || producer.wrapping_sub(at) > self.0.size() {
                break;
            }
            let [header, owner] = self.0.header(at);
            let (length, owner) = (header.load(Acquire), owner.load(Relaxed));
            if length & BPF_RINGBUF_BUSY_BIT != 0 && is_dead(owner) {
                let dead = length & !BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT;
                any |= header.compare_exchange(length, dead, AcqRel, Relaxed).is_ok();
            }
            let bytes = u64::from(length & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT));
            at = at.wrapping_add(record_bytes(bytes));
        }
        any
    }
}
