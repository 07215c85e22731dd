//! Nodes of one size that the holder of one lock takes, publishes and gives back.
//!
//! A holder prepares nodes that nobody sees yet, then writes down everything that the change is going to store,
//! declares that record valid, and carries it out: one store that readers see, the nodes given back, the counts.
//! Each of these stores may be made twice. Whoever gets the lock and finds a valid record, because its owner died,
//! carries it out once more. So a death at any instant loses neither a node nor a count; a change that was written down is
//! made at the latest by the next one, as if its owner had been slow.
//!
//! Readers take no lock. A link tells where a node is (in words from the private area's start: what is read at each step of a walk
//! should need no multiplication), a label that it was given, and its generation, which changes before the node is
//! used again. A reader that has read a node asks whether it still has the link's label and generation, else what it
//! read is void. A node that was taken out and is not used yet reads as it was. A node that a reader finds was in use at
//! some time since it began; so generations, of which there are a million, are told apart if fewer nodes than that were taken
//! meanwhile, which is counted.
//!
//! Own words (64-bit): 0: the root, for tries; 1: lock; 2: waits that were given up; 3: free list; 4: nodes
//! that are not fresh; 5: elements; 6: whether the record is valid; 7-12: the record; 13: nodes ever taken.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use ring3_uapi::Errno;

use crate::Context;
use crate::lock::{lock, release_dead, unlock};
use crate::raw_memory::Memory;

const WORD_ROOT: u64 = 0;
const WORD_LOCK: u64 = 1;
const WORD_GAVE_UP: u64 = 2;
const WORD_FREE: u64 = 3;
const WORD_FRESH: u64 = 4;
const WORD_COUNT: u64 = 5;
const WORD_VALID: u64 = 6;
const RECORD_PLACE: u64 = 7;
const RECORD_VALUE: u64 = 8;
const RECORD_FREED: u64 = 9;
const RECORD_FREE: u64 = 10;
const RECORD_FRESH: u64 = 11;
const RECORD_COUNT: u64 = 12;
const WORD_TAKEN: u64 = 13;
/// Bits of a label, the lowest of a node's first word; its generation's are those above, of 32.
const LABEL_BITS: u32 = 12;
/// What a generation is more than the one before.
const GENERATION: u32 = 1 << LABEL_BITS;
/// Generations of a node until they come round.
const GENERATIONS: u64 = 1 << (32 - LABEL_BITS);
/// Bytes of a node before what its type keeps there: label and generation, and the link of the free list.
pub(crate) const NODE_HEADER_BYTES: u64 = 8;
const NODE_NEXT: u64 = 4;

/// What was read is of a node that is being used anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale;

/// Whether a node, of which this is the first word, is what a link names.
#[inline(always)]
pub(crate) fn check(first: &AtomicU64, link: u64) -> Result<(), Stale> {
    fence(Acquire);
    if first.load(Relaxed) as u32 == (link >> 32) as u32 { Ok(()) } else { Err(Stale) }
}

/// The label that a link tells.
#[inline(always)]
pub(crate) fn label(link: u64) -> u32 {
    (link >> 32) as u32 % GENERATION
}

/// A map's nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'m>(pub(crate) &'m Memory<'m>);

/// The pool while this thread holds its lock: what was taken is remembered until the change is made.
#[derive(Debug)]
pub(crate) struct LockedPool<'m> {
    pool: Pool<'m>,
    free: u32,
    fresh: u64,
}

/// A change: the one store that readers see, and what goes with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    /// Offset in the file of the 64-bit word.
    pub(crate) place: u64,
    /// What it is going to hold.
    pub(crate) value: u64,
    /// Links of the nodes that nothing leads to any more; 0: none.
    pub(crate) freed: [u64; 2],
    /// Elements more, or fewer.
    pub(crate) added: i64,
}

impl<'m> Pool<'m> {
    /// The first `N` words of the node that a link names, the first one with its label and generation, and which node it is.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, link: u64) -> Option<(u32, &'m [AtomicU64; N])> {
        let index = link as u32;
        Some((index, self.0.nodes()?.at(index)?))
    }

    fn word(&self, index: u64) -> &'m AtomicU64 {
        self.0.word64(self.0.own_word(index))
    }

    /// Offset in the file of the word with the root's link.
    pub(crate) fn root_at(&self) -> u64 {
        self.0.own_word(WORD_ROOT)
    }

    /// Elements.
    pub(crate) fn count(&self) -> u64 {
        self.word(WORD_COUNT).load(Relaxed)
    }

    /// Offset in the file of a node.
    #[inline(always)]
    pub(crate) fn node_at(&self, index: u32) -> u64 {
        self.0.private(u64::from(index) * 8)
    }

    /// The node that a link names, if one can be there.
    #[inline(always)]
    pub(crate) fn index(&self, link: u64) -> Option<u32> {
        let (index, layout) = (link as u32, &self.0.geometry.pool);
        let at = u64::from(index) * 8;
        (layout.nodes <= at && at <= layout.last).then_some(index)
    }

    fn generation(&self, index: u32) -> &'m AtomicU32 {
        self.0.word32(self.node_at(index))
    }

    /// How many nodes were ever taken: for [`Pool::check`], before the first link is read.
    #[inline(always)]
    pub(crate) fn taken(&self) -> u64 {
        self.word(WORD_TAKEN).load(Acquire)
    }

    /// `Stale` unless what was read since is the content of the node that the link names, if it names one, and of all that was
    /// checked by its first word.
    #[inline(always)]
    pub(crate) fn check(&self, link: u64, since: u64) -> Result<(), Stale> {
        if let Some(index) = self.index(link) {
            check(self.0.word64(self.node_at(index)), link)?;
        }
        if self.taken().wrapping_sub(since) < GENERATIONS { Ok(()) } else { Err(Stale) }
    }

    /// The link that names a node as it is now.
    pub(crate) fn link(&self, index: u32) -> u64 {
        u64::from(self.generation(index).load(Relaxed)) << 32 | u64::from(index)
    }

    fn lock(&self) -> &'m AtomicU32 {
        self.0.word32(self.0.own_word(WORD_LOCK))
    }

    /// Waits for the lock that were given up, ever.
    pub(crate) fn gave_up(&self) -> u64 {
        self.word(WORD_GAVE_UP).load(Relaxed)
    }

    /// Lets go of the lock if a dead owner has it; what it wrote down is for whoever gets it next.
    pub(crate) fn reclaim_dead_owner(&self, is_dead: impl Fn(u32) -> bool) {
        release_dead(self.lock(), is_dead);
    }

    /// Runs `change` with the lock held. `EBUSY` if its owner lives and does not let go.
    pub(crate) fn locked<T>(
        &self,
        cx: &Context,
        change: impl FnOnce(&mut LockedPool<'m>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !lock(self.lock(), cx) {
            self.word(WORD_GAVE_UP).fetch_add(1, Relaxed);
            return Err(Errno::EBUSY);
        }
        self.finish();
        let (free, fresh) = (self.word(WORD_FREE).load(Relaxed) as u32, self.word(WORD_FRESH).load(Relaxed));
        let result = change(&mut LockedPool { pool: *self, free, fresh });
        unlock(self.lock());
        result
    }

    /// Carries out a change that its owner, who died, wrote down.
    pub(crate) fn finish(&self) {
        if self.word(WORD_VALID).load(Acquire) != 0 {
            self.carry_out();
        }
    }

    /// The number of the first node that is fresh still.
    pub(crate) fn first_fresh(&self) -> u64 {
        self.word(WORD_FRESH).load(Relaxed)
    }

    /// Nodes that there are room for.
    pub(crate) fn room(&self) -> u64 {
        let layout = &self.0.geometry.pool;
        (layout.last - layout.nodes) / u64::from(layout.stride) + 1
    }

    /// Which node, counted from the first one, is at this index, if one is.
    pub(crate) fn number(&self, index: u32) -> Option<u64> {
        let layout = &self.0.geometry.pool;
        let at = (u64::from(index) * 8).checked_sub(layout.nodes)?;
        at.is_multiple_of(layout.stride.into()).then(|| at / u64::from(layout.stride))
    }

    /// The first node of the free list, and the next.
    pub(crate) fn first_free(&self) -> u64 {
        self.word(WORD_FREE).load(Relaxed)
    }

    /// See [`Pool::first_free`].
    pub(crate) fn next_free(&self, index: u32) -> u64 {
        self.0.word32(self.node_at(index) + NODE_NEXT).load(Relaxed).into()
    }

    /// Whether somebody has the lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.lock().load(Relaxed) != 0
    }

    /// Makes the stores of the record.
    fn carry_out(&self) {
        let record = |index| self.word(index).load(Relaxed);
        self.0.word64(record(RECORD_PLACE)).store(record(RECORD_VALUE), Release);
        let (freed, mut free) = (record(RECORD_FREED), record(RECORD_FREE) as u32);
        for link in [freed as u32, (freed >> 32) as u32] {
            if let Some(index) = self.index(link.into()) {
                self.0.word32(self.node_at(index) + NODE_NEXT).store(free, Release);
                free = link;
            }
        }
        self.word(WORD_FREE).store(free.into(), Release);
        self.word(WORD_FRESH).store(record(RECORD_FRESH), Release);
        self.word(WORD_COUNT).store(record(RECORD_COUNT), Release);
        self.word(WORD_VALID).store(0, Release);
    }
}

impl LockedPool<'_> {
    /// A node that nobody reads, with this label and a generation of its own.
    pub(crate) fn take(&mut self, label: u32) -> Option<u32> {
        let index = if let Some(index) = self.pool.index(self.free.into()) {
            self.free = self.pool.next_free(index) as u32;
            index
        } else {
            let layout = &self.pool.0.geometry.pool;
            let at = layout.nodes.checked_add(self.fresh.checked_mul(layout.stride.into())?)?;
            let index = self.pool.index(at / 8).filter(|_| at <= layout.last)?;
            self.fresh += 1;
            index
        };
        let (taken, generation) = (self.pool.word(WORD_TAKEN), self.pool.generation(index));
        taken.store(taken.load(Relaxed).wrapping_add(1), Relaxed);
        let next = (generation.load(Relaxed) / GENERATION).wrapping_add(1).wrapping_mul(GENERATION);
        // Who reads the new generation also reads that a node was taken.
        generation.store(next + label % GENERATION, Release);
        // Who reads what is written to the node from here on also reads its new generation.
        fence(Release);
        Some(index)
    }

    /// Makes a change, and takes what was taken for it.
    pub(crate) fn commit(&mut self, change: &Change) {
        let pool = &self.pool;
        let set = |index, value| pool.word(index).store(value, Relaxed);
        let [first, second] = change.freed;
        set(RECORD_PLACE, change.place);
        set(RECORD_VALUE, change.value);
        set(RECORD_FREED, u64::from(first as u32) | second << 32);
        set(RECORD_FREE, self.free.into());
        set(RECORD_FRESH, self.fresh);
        set(RECORD_COUNT, pool.count().wrapping_add_signed(change.added));
        pool.word(WORD_VALID).store(1, Release);
        pool.carry_out();
    }
}

#[cfg(test)]
mod tests {
    use super::{GENERATIONS, Pool, Stale};
    use crate::raw_memory::Memory;
    use crate::{Attributes, Context};
    use ring3_uapi::Errno;
    use ring3_uapi::bpf::map_type::STACK_TRACE;

    #[test]
    fn what_was_read_is_void_when_generations_may_have_come_round() {
        let attributes =
            Attributes { map_type: STACK_TRACE, key_size: 4, value_size: 8, max_entries: 1, ..Attributes::default() };
        let memory = Memory::fresh(&attributes);
        let pool = Pool(&memory);
        let cx = Context { owner: 1, cpu: 0, owner_is_dead: |_| false, relax: |_| (), interrupts: false };
        // What is taken and not committed is taken again.
        let take = || pool.locked(&cx, |held| held.take(7).ok_or(Errno::ENOMEM)).expect("a node");
        let (link, since) = (pool.link(take()), pool.taken());
        assert_eq!(pool.check(link, since), Ok(()));
        take();
        assert_eq!(pool.check(link, since), Err(Stale));
        for _ in 2..GENERATIONS {
            take();
        }
        assert_eq!(pool.check(link, since), Err(Stale));
        assert_eq!((pool.link(take()), pool.taken() - since), (link, GENERATIONS));
        assert_eq!((pool.check(link, since), pool.check(link, since + 1)), (Err(Stale), Ok(())));
    }
}
