//! Is a map whole? A walk over every structure, for tests that kill.
//!
//! What a death may leave is counted ([`Census`]); what neither an operation nor a death can make is damage.
//! Nobody else operates on the map meanwhile.

use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::map::ELEMENT_KEY_OFFSET;
use ring3_uapi::flags::{BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT};

use crate::geometry::TRIE_DATA_BYTES_MAX;
use crate::hash::{FREE_LISTS, Hash, WORD_FRESH, WORD_TAKEOVERS};
use crate::hashing::hash_bytes;
use crate::pool::{Pool, check, label};
use crate::queue::{Queue, WORD_LOCK, WORD_STATE};
use crate::ring::{Ring, record_bytes};
use crate::stacks::Stacks;
use crate::trie::{Key, Trie};

/// Longer keys are not hashed again.
const KEY_BYTES_MAX: usize = 512;

/// What there is in a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Elements of a hash map in chains, of a queue, prefixes, stacks, or records of a ring buffer that are not consumed.
    pub elements: u64,
    /// Elements of a hash map, or nodes, on the free list.
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

/// The nodes of a pool that were counted so far.
struct Nodes<'m> {
    pool: Pool<'m>,
    /// The first that was never taken.
    fresh: u64,
    linked: u64,
    elements: u64,
}

impl<'m> Nodes<'m> {
    /// What a dead owner wrote down is carried out first.
    fn of(pool: Pool<'m>) -> Result<Nodes<'m>, Damage> {
        pool.finish();
        let fresh = pool.first_fresh();
        if fresh > pool.room() {
            return damage("more nodes were ever taken than there are", fresh);
        }
        Ok(Nodes { pool, fresh, linked: 0, elements: 0 })
    }

    fn was_taken(&self, index: u32) -> bool {
        self.pool.number(index).is_some_and(|number| number < self.fresh)
    }

    /// Counts the node that a link names.
    fn follow(&mut self, link: u64) -> Result<u32, Damage> {
        self.linked += 1;
        if self.linked > self.fresh {
            return damage("more nodes are linked than were ever taken", self.linked);
        }
        match self.pool.words::<1>(link) {
            Some((index, [tag])) if self.was_taken(index) && check(tag, link).is_ok() => Ok(index),
            _ => damage("a link leads to no node, or to one that is used anew", link),
        }
    }

    /// Of the nodes that were ever taken each is linked or free, and there are as many elements as are counted.
    fn census(&self) -> Result<Census, Damage> {
        let (mut free, mut link) = (0, self.pool.first_free());
        while let Some(index) = self.pool.index(link) {
            free += 1;
            if !self.was_taken(index) {
                return damage("a node is free that was never taken", index);
            }
            if self.linked + free > self.fresh {
                return damage("the free list is a ring, or has nodes that are linked", index);
            }
            link = self.pool.next_free(index);
        }
        if link != 0 {
            return damage("the free list ends in no node", link);
        }
        if self.linked + free != self.fresh {
            return damage("nodes are lost", self.fresh - self.linked - free);
        }
        if self.elements != self.pool.count() {
            return damage("elements are miscounted", self.elements);
        }
        let locked = self.pool.is_locked().into();
        Ok(Census { elements: self.elements, free, locked, ..Census::default() })
    }
}

impl Trie<'_> {
    /// Prefixes go on from those above them, on their side; where two part there are two.
    pub(crate) fn check(&self) -> Result<Census, Damage> {
        let mut nodes = Nodes::of(self.pool())?;
        self.check_below(&mut nodes, self.root(), &Key::of(0, &[]), None)?;
        nodes.census()
    }

    fn check_below(
        &self,
        nodes: &mut Nodes<'_>,
        link: u64,
        above: &Key<'_>,
        side: Option<usize>,
    ) -> Result<(), Damage> {
        if link == 0 {
            return Ok(());
        }
        let index = nodes.follow(link)?;
        let Ok(Some(node)) = self.read(link, above) else { return damage("a node is no node", index) };
        if label(link) != node.bits || node.bits > self.bits_max() {
            return damage("a link tells another length than its node", index);
        }
        let goes_on =
            |key: &Key<'_>, side| node.bits > above.bits && node.matched == above.bits && key.bit(above.bits) == side;
        let mut data = [0; TRIE_DATA_BYTES_MAX as usize];
        let data = data.get_mut(..self.data_bytes()).unwrap_or_default();
        self.0.read(self.data_at(index), data);
        let key = Key::of(node.bits, data);
        if side.is_some_and(|side| !goes_on(&key, side)) {
            return damage("a prefix does not go on from the one above it", index);
        }
        if node.intermediate && node.children.contains(&0) {
            return damage("two prefixes part where there are not two", index);
        }
        nodes.elements += u64::from(!node.intermediate);
        for (side, child) in node.children.into_iter().enumerate() {
            self.check_below(nodes, child, &key, Some(side))?;
        }
        Ok(())
    }
}

impl Stacks<'_> {
    /// Stacks are in the buckets of their hashes, and no longer than they may be.
    pub(crate) fn check(&self) -> Result<Census, Damage> {
        let mut nodes = Nodes::of(self.pool())?;
        for id in 0..=self.0.geometry.pool.bucket_mask {
            let link = self.bucket(id);
            if link == 0 {
                continue;
            }
            let index = nodes.follow(link)?;
            nodes.elements += 1;
            let summary = self.0.word64(self.summary(index)).load(Relaxed);
            if summary as u32 & self.0.geometry.pool.bucket_mask != id {
                return damage("a stack is in another bucket than its hash says", id);
            }
            if summary >> 32 > self.depth() as u64 {
                return damage("a stack is longer than stacks may be", id);
            }
        }
        nodes.census()
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
        let [mut at, producer] = self.positions();
        let locked = self.0.writers.lock.load(Relaxed) != 0;
        let mut census = Census { locked: locked.into(), ..Census::default() };
        if at % 8 != 0 || producer % 8 != 0 {
            return damage("a position is between words", at);
        }
        while at != producer {
            if producer.wrapping_sub(at) > self.0.size() {
                return damage("records lead beyond the producer's position", at);
            }
            let [header, _] = self.0.header(at);
            let header = header.load(Relaxed);
            census.elements += 1;
            census.busy += u64::from(header & BPF_RINGBUF_BUSY_BIT != 0);
            let bytes = u64::from(header & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT));
            at = at.wrapping_add(record_bytes(bytes));
        }
        Ok(census)
    }
}
