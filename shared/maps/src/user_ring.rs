//! USER_RINGBUF: one producer that has the pages mapped, the loader; consumers are programs.
//!
//! The file is as a ring buffer's. What the producer writes is hostile: positions and lengths are checked against the
//! buffer each time. One consumer at a time: own word 0 names its thread.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT, BPF_RINGBUF_HDR_SZ};

use crate::Context;
use crate::lock::release_dead;
use crate::raw_memory::Memory;
use crate::ring::{CONSUMER_AT, DATA_AT, PRODUCER_AT, record_bytes};

/// A user ring buffer.
#[derive(Clone, Copy, Debug)]
pub struct UserRing<'m> {
    memory: Memory<'m>,
}

/// What is next in a user ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// No sample that was submitted.
    Nothing,
    /// One that the producer discarded; it is gone.
    Discarded,
    /// A sample.
    Sample {
        /// Address of its data.
        address: u64,
        /// Its size.
        bytes: u64,
        /// For [`UserRing::release`].
        next: u64,
    },
}

impl<'m> UserRing<'m> {
    pub(crate) fn new(memory: Memory<'m>) -> UserRing<'m> {
        UserRing { memory }
    }

    /// Becomes the consumer; false if another thread is.
    pub fn begin(&self, cx: &Context) -> bool {
        let busy = self.memory.word32(self.memory.own_word(0));
        match busy.compare_exchange(0, cx.owner, Acquire, Relaxed) {
            Ok(_) => true,
            // What a dead one left half done is the sample that it was shown, which is shown again.
            Err(owner) => cx.is_dead(owner) && busy.compare_exchange(owner, cx.owner, Acquire, Relaxed).is_ok(),
        }
    }

    /// Is the consumer no more.
    pub fn end(&self) {
        self.memory.word32(self.memory.own_word(0)).store(0, Release);
    }

    /// Makes room for another consumer if this one is dead.
    pub(crate) fn reclaim_dead_owner(&self, is_dead: impl Fn(u32) -> bool) {
        release_dead(self.memory.word32(self.memory.own_word(0)), is_dead);
    }

    /// Whether the producer may write. Mirrors kernel/bpf/ringbuf.c:ringbuf_map_poll_user.
    pub fn has_room(&self) -> bool {
        let (consumer, producer) =
            (self.memory.word64(CONSUMER_AT).load(Acquire), self.memory.word64(PRODUCER_AT).load(Acquire));
        producer.wrapping_sub(consumer) < u64::from(self.memory.geometry.header.max_entries)
    }

    /// Looks at the next sample of at most `bytes_max` bytes. Mirrors kernel/bpf/ringbuf.c:__bpf_user_ringbuf_peek.
    ///
    /// # Errors
    /// `EINVAL` and `E2BIG` if the producer wrote nonsense.
    pub fn next(&self, bytes_max: u64) -> Result<Sampled, Errno> {
        let size = u64::from(self.memory.geometry.header.max_entries);
        let producer = self.memory.word64(PRODUCER_AT).load(Acquire);
        if !producer.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        let consumer = self.memory.word64(CONSUMER_AT).load(Acquire);
        if consumer >= producer {
            return Ok(Sampled::Nothing);
        }
        let at = DATA_AT + (consumer & (size - 1) & !7);
        let word = self.memory.word32(at).load(Acquire);
        let bytes = u64::from(word & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT));
        let total = record_bytes(bytes);
        if total > producer - consumer {
            return Err(Errno::EINVAL);
        }
        if total > size || bytes > bytes_max {
            return Err(Errno::E2BIG);
        }
        let next = consumer.wrapping_add(total);
        if word & BPF_RINGBUF_DISCARD_BIT != 0 {
            self.release(next);
            return Ok(Sampled::Discarded);
        }
        if word & BPF_RINGBUF_BUSY_BIT != 0 {
            return Ok(Sampled::Nothing);
        }
        let address = self.memory.pointer(at + u64::from(BPF_RINGBUF_HDR_SZ), bytes) as u64;
        if address == 0 { Err(Errno::EINVAL) } else { Ok(Sampled::Sample { address, bytes, next }) }
    }

    /// Lets the producer have the room up to `next` again.
    pub fn release(&self, next: u64) {
        self.memory.word64(CONSUMER_AT).store(next, Release);
    }
}
