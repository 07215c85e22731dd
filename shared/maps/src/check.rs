//! Is a map whole? A walk over every structure, for tests that kill.
//!
//! What a death may leave is counted ([`Census`]); what neither an operation nor a death can make is damage.
//! Nobody else operates on the map meanwhile.

use core::sync::atomic::Ordering::Relaxed;

use ring3_uapi::flags::{BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT};

use crate::geometry::ELEMENT_KEY_OFFSET;
use crate::hash::{FREE_LISTS, Hash, WORD_FRESH, WORD_TAKEOVERS};
use crate::hashing::hash_bytes;
use crate::queue::{Queue, WORD_LOCK, WORD_STATE};
use crate::ring::{CONSUMER_AT, DATA_AT, PRODUCER_AT, Ring, record_bytes};

/// Longer keys are not hashed again.
const KEY_BYTES_MAX: usize = 512;

/// What there is in a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Elements of a hash map in chains, of a queue, or records of a ring buffer that are not consumed.
    pub elements: u64,
    /// Elements of a hash map on the free list.
    pub free: u64,
    /// Elements of a hash map that dead owners had in hand: one a death at most, until they are collected.
    pub in_hand: u64,
    /// Locks held.
    pub locked: u64,
    /// Difference of the count that a hash map keeps: one a death at most, until elements are collected.
    pub miscounted: u64,
    /// Locks of a hash map taken over since elements were collected.
    pub takeovers: u64,
    /// Records of a ring buffer that were reserved and not submitted.
    pub busy: u64,
}

/// A structure that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong.
    pub what: &'static str,
    /// Bucket, element or position.
    pub at: u64,
}

fn damage<T>(what: &'static str, at: impl Into<u64>) -> Result<T, Damage> {
    Err(Damage { what, at: at.into() })
}

impl Hash<'_> {
    /// Chains end in their own bucket, elements are in the chain of their key's hash, once, and none of them is free.
    pub(crate) fn check(&self) -> Result<Census, Damage> {
        let mut census = Census { takeovers: self.word(WORD_TAKEOVERS).load(Relaxed), ..Census::default() };
        let max = u64::from(self.0.geometry.header.max_entries);
        let fresh = self.word(WORD_FRESH).load(Relaxed);
        if fresh > max {
            return damage("more elements were ever taken than there are", fresh);
        }
        for bucket in 0..=self.0.geometry.hash.bucket_mask {
            census.locked += u64::from(self.0.word32(self.bucket_at(bucket) + 4).load(Relaxed) != 0);
            census.elements += self.check_chain(bucket, fresh)?;
        }
        for list in 0..FREE_LISTS {
            census.free += self.check_free(list, fresh)?;
        }
        let Some(in_hand) = fresh.checked_sub(census.elements + census.free) else {
            return damage("more elements are linked and free than were ever taken", fresh);
        };
        census.in_hand = in_hand;
        census.miscounted = self.count().wrapping_sub(census.elements).cast_signed().unsigned_abs();
        Ok(census)
    }

    /// Elements of a chain.
    fn check_chain(&self, bucket: u32, fresh: u64) -> Result<u64, Damage> {
        let mut link = self.first_link(bucket);
        let mut count = 0;
        while let Some(index) = self.element_of(link) {
            count += 1;
            if u64::from(self.fresh_element(index)) >= fresh {
                return damage("a chain has an element that was never taken", index);
            }
            if count > fresh {
                return damage("a chain is a ring", bucket);
            }
            let hash = self.0.word32(self.element_at(index) + 4).load(Relaxed);
            if self.bucket_of(hash) != bucket {
                return damage("an element is in another bucket than its hash says", index);
            }
            if self.key_hash(index).is_some_and(|of_key| of_key != hash) {
                return damage("an element's hash is not its key's", index);
            }
            link = self.next_link(index);
        }
        if self.is_end_of(link, bucket) { Ok(count) } else { damage("a chain ends in another bucket", bucket) }
    }

    /// Elements of a free list.
    fn check_free(&self, list: u32, fresh: u64) -> Result<u64, Damage> {
        let mut link = self.free_list(list).load(Relaxed) as u32;
        let mut count = 0;
        while let Some(index) = self.element_of(link) {
            count += 1;
            if u64::from(self.fresh_element(index)) >= fresh {
                return damage("an element is free that was never taken", index);
            }
            if count > fresh {
                return damage("the free list is a ring", index);
            }
            let of_key = self.key_hash(index).map(|hash| self.bucket_of(hash));
            if of_key.is_some_and(|bucket| self.is_linked(bucket, index, &mut (fresh + 1)) != Some(false)) {
                return damage("an element is linked and free", index);
            }
            link = self.0.word32(self.element_at(index) + 4).load(Relaxed);
        }
        if link == 0 { Ok(count) } else { damage("the free list ends in no element", link) }
    }

    fn key_hash(&self, index: u32) -> Option<u32> {
        let mut buffer = [0; KEY_BYTES_MAX];
        let key = buffer.get_mut(..self.0.geometry.header.key_size as usize)?;
        self.0.read(self.element_at(index) + ELEMENT_KEY_OFFSET, key);
        Some(hash_bytes(key))
    }
}

impl Queue<'_> {
    /// The place of the oldest is a place, and there are no more elements than fit.
    pub(crate) fn check(&self) -> Result<Census, Damage> {
        let header = &self.0.geometry.header;
        let state = self.0.word64(self.0.own_word(WORD_STATE)).load(Relaxed);
        let locked = self.0.word32(self.0.own_word(WORD_LOCK)).load(Relaxed) != 0;
        if u64::from(state as u32) > u64::from(header.max_entries) {
            return damage("the oldest element is in no place", state);
        }
        if state >> 32 > u64::from(header.max_entries) {
            return damage("there are more elements than fit", state >> 32);
        }
        Ok(Census { elements: state >> 32, locked: locked.into(), ..Census::default() })
    }
}

impl Ring<'_> {
    /// Records lead from the consumer's position exactly to the producer's.
    pub(crate) fn check(&self) -> Result<Census, Damage> {
        let (mut at, producer) = (self.position(CONSUMER_AT), self.position(PRODUCER_AT));
        let locked = self.memory.word32(self.memory.own_word(0)).load(Relaxed) != 0;
        let mut census = Census { locked: locked.into(), ..Census::default() };
        if at % 8 != 0 || producer % 8 != 0 {
            return damage("a position is between words", at);
        }
        while at != producer {
            if producer.wrapping_sub(at) > self.size() {
                return damage("records lead beyond the producer's position", at);
            }
            let header = self.memory.word32(DATA_AT + (at & self.mask())).load(Relaxed);
            census.elements += 1;
            census.busy += u64::from(header & BPF_RINGBUF_BUSY_BIT != 0);
            let bytes = u64::from(header & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT));
            at = at.wrapping_add(record_bytes(bytes));
        }
        Ok(census)
    }
}
