//! HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH, HASH_OF_MAPS and TASK_STORAGE.
//!
//! Buckets of chained elements. A lookup takes no lock: it walks links. An element that is deleted and used
//! again in another bucket could lead a walk astray, so the end of a chain names its bucket (as the kernel's
//! `hlist_nulls` does): a walk that ends elsewhere starts again. Writers of a bucket exclude each other by a
//! lock that names its owner; each change becomes visible by one store of a link, so a dead owner's lock is
//! taken over without repair. Elements never move, and free ones are used before fresh ones, so memory is
//! touched as the map fills.
//!
//! The programs of a signal handler may find their own thread's lock. They update elements under it all the same, and
//! may so add one to the chain. So whoever has the lock exchanges links instead of storing them, and begins again if the
//! chain has changed. They take no element out (`EBUSY`): who has the lock may be about to write into it.
//!
//! What a death can leave is an element that is in no chain and not free either: taken and not yet linked, or
//! unlinked and not yet given back. One element a death at most, and the count may be one too low. A map that seems
//! full and has a reason to doubt that collects such elements ([`Hash::reclaim`]).
//!
//! A full LRU map makes room: a hand goes round the elements, spares those that were looked up since it came by
//! last, and takes the first other one out of its bucket (the second-chance clock; approximate, as the kernel's
//! lists are). It holds no lock while it looks, and one while it takes.
//!
//! Own words (64-bit): 6: elements ever taken; 8: waits that were given up; 9: the LRU hand; 10: locks
//! taken over from dead owners since elements were collected; 11: lock of who collects; 12: doubts whether a full
//! map is full; 13: updates by signal handlers under their own thread's lock; 16, 24 ...: free lists, tag and index + 1; 17, 25 ...: their parts of the number of elements in use.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, compiler_fence};

use ring3_layout::map::{BUCKET_BYTES, ELEMENT_HASH_OFFSET, ELEMENT_KEY_OFFSET, TABLES_OFFSET};
use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_ANY, BPF_EXIST, BPF_F_LOCK, BPF_NOEXIST};

use crate::Context;
use crate::hashing::hash_bytes;
use crate::lock::{Acquired, NAPS, YIELDS, acquire, release_dead, unlock};
use crate::raw_memory::Memory;

/// A link with this bit is the end of a chain; the other bits name the bucket.
pub(crate) const END: u32 = 1 << 31;
/// Links followed in one walk at most: a bound for damaged chains, far beyond what chance makes.
pub(crate) const WALK_MAX: u32 = 4096;
/// Walks begun again because a chain led elsewhere.
pub(crate) const RESTARTS_MAX: u32 = 64;
/// Lists of free elements, each in a cache line of its own: threads that insert and delete keep out of each other's way.
pub(crate) const FREE_LISTS: u32 = 8;
const WORD_FREE: u64 = 16;
const WORD_COUNT: u64 = 17;
const WORDS_OF_LINE: u64 = 8;
pub(crate) const WORD_FRESH: u64 = 6;
const WORD_GAVE_UP: u64 = 8;
const WORD_HAND: u64 = 9;
pub(crate) const WORD_TAKEOVERS: u64 = 10;
const WORD_COLLECTOR: u64 = 11;
const WORD_DOUBTS: u64 = 12;
const WORD_INTERRUPTED: u64 = 13;
/// Locks looked at per doubt, on average.
const LOOKS_PER_DOUBT: u64 = 64;
/// Owners of locks that are judged in one doubt, and locks taken over in one collection, at most.
const JUDGED_MAX: usize = 256;
const TAKEN_OVER_MAX: u64 = 1024;
/// Elements that the hand spares at most, and that it looks at at most, before it takes what comes or gives up.
const SPARED_MAX: u32 = 128;
const LOOKS_MAX: u32 = 1024;
/// Locked buckets that the hand passes at most.
const BUSY_MAX: u32 = 8;
/// Times that an update makes room, if others take it away.
const EVICTIONS_MAX: u32 = 16;
/// Links followed at most while elements are collected, per element and besides: a bound for damaged chains.
const COLLECT_STEPS: u64 = 256;
const COLLECT_STEPS_MORE: u64 = 1 << 18;

/// A hash map's operations on its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash<'m>(pub(crate) &'m Memory<'m>);

impl Hash<'_> {
    pub(crate) fn word(&self, index: u64) -> &core::sync::atomic::AtomicU64 {
        self.0.word64(self.0.own_word(index))
    }

    /// Elements in use.
    pub(crate) fn count(&self) -> u64 {
        (0..FREE_LISTS).fold(0, |sum, list| sum.wrapping_add(self.part_of_count(list).load(Relaxed)))
    }

    /// The part of that number that goes with a free list; each is modulo 2^64.
    fn part_of_count(&self, list: u32) -> &core::sync::atomic::AtomicU64 {
        self.word(WORD_COUNT + u64::from(list % FREE_LISTS) * WORDS_OF_LINE)
    }

    /// Waits for its locks that were given up.
    pub(crate) fn gave_up(&self) -> u64 {
        self.word(WORD_GAVE_UP).load(Relaxed)
    }

    pub(crate) fn bucket_at(&self, bucket: u32) -> u64 {
        self.0.private(TABLES_OFFSET + u64::from(bucket) * BUCKET_BYTES)
    }

    pub(crate) fn bucket_of(&self, hash: u32) -> u32 {
        hash & self.0.geometry.hash.bucket_mask
    }

    pub(crate) fn element_at(&self, index: u32) -> u64 {
        let layout = &self.0.geometry.hash;
        self.0.private(layout.elements + u64::from(index) * layout.element_stride)
    }

    /// The hash of an element's key; of a free one a link.
    fn hash_of(&self, index: u32) -> &AtomicU32 {
        self.0.word32(self.element_at(index) + ELEMENT_HASH_OFFSET)
    }

    /// Offset of an element's value for a CPU.
    pub(crate) fn value_at(&self, index: u32, cpu: u32) -> u64 {
        let layout = &self.0.geometry.hash;
        let cpu = cpu.min(self.0.geometry.header.cpus - 1);
        let of_cpu = u64::from(cpu) * self.0.geometry.cpu_stride;
        self.0.private(layout.values + u64::from(index) * layout.value_stride + of_cpu)
    }

    /// The element that a link names, if it is one.
    pub(crate) fn element_of(&self, link: u32) -> Option<u32> {
        (link & END == 0 && link != 0).then(|| link - 1).filter(|index| *index < self.0.geometry.header.max_entries)
    }

    pub(crate) fn first_link(&self, bucket: u32) -> u32 {
        self.0.word32(self.bucket_at(bucket)).load(Acquire)
    }

    pub(crate) fn next_link(&self, index: u32) -> u32 {
        self.0.word32(self.element_at(index)).load(Acquire)
    }

    /// Whether a walk that ended with `link` ended in `bucket` (0: a bucket never used).
    pub(crate) fn is_end_of(&self, link: u32, bucket: u32) -> bool {
        link == 0 || link == END | bucket
    }

    fn is_key(&self, index: u32, hash: u32, key: &[u8]) -> bool {
        let element = self.element_at(index);
        self.hash_of(index).load(Acquire) == hash && self.0.equals(element + ELEMENT_KEY_OFFSET, key)
    }

    /// The element with this key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<u32> {
        let hash = hash_bytes(key);
        self.find_in(hash, self.bucket_of(hash), key)
    }

    /// The element with this key, whose hash and bucket are known.
    #[inline(always)]
    fn find_in(&self, hash: u32, bucket: u32, key: &[u8]) -> Option<u32> {
        for _ in 0..RESTARTS_MAX {
            let mut link = self.first_link(bucket);
            for _ in 0..WALK_MAX {
                let Some(index) = self.element_of(link) else { break };
                if self.is_key(index, hash, key) {
                    return Some(index);
                }
                link = self.next_link(index);
            }
            if self.is_end_of(link, bucket) {
                return None;
            }
        }
        None
    }

    /// Runs `change` with the bucket of `key` locked, or if it `goes_under_own`, with the lock that this thread has already.
    fn with_bucket<T>(
        &self,
        cx: &Context,
        key: &[u8],
        goes_under_own: bool,
        change: impl FnOnce(u32, u32) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let hash = hash_bytes(key);
        let bucket = self.bucket_of(hash);
        let acquired = self.acquire_bucket(cx, bucket, NAPS);
        if acquired == Acquired::Own && goes_under_own {
            self.word(WORD_INTERRUPTED).fetch_add(1, Relaxed);
        } else if !acquired.is_had() {
            self.word(WORD_GAVE_UP).fetch_add(1, Relaxed);
            return Err(Errno::EBUSY);
        }
        let result = change(hash, bucket);
        if acquired.is_had() {
            self.unlock_bucket(bucket);
        }
        result
    }

    #[inline]
    fn bucket_lock(&self, bucket: u32) -> &AtomicU32 {
        self.0.word32(self.bucket_at(bucket) + 4)
    }

    fn acquire_bucket(&self, cx: &Context, bucket: u32, rounds: u32) -> Acquired {
        let acquired = acquire(self.bucket_lock(bucket), cx, rounds);
        if acquired == Acquired::TakenOver {
            self.word(WORD_TAKEOVERS).fetch_add(1, Relaxed);
        }
        acquired
    }

    fn lock_bucket(&self, cx: &Context, bucket: u32, rounds: u32) -> bool {
        self.acquire_bucket(cx, bucket, rounds).is_had()
    }

    fn unlock_bucket(&self, bucket: u32) {
        unlock(self.bucket_lock(bucket));
    }

    /// An element's bit among the references: the word and the bit.
    fn reference(&self, index: u32) -> (&core::sync::atomic::AtomicU64, u64) {
        let word = self.0.private(self.0.geometry.references + u64::from(index) / 64 * 8);
        (self.0.word64(word), 1 << (index % 64))
    }

    /// Notes that an element of an LRU map was looked up.
    pub(crate) fn touch(&self, index: u32) {
        let (word, bit) = self.reference(index);
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Frees an element of a full LRU map; false if none could be taken.
    fn evict(&self, cx: &Context) -> bool {
        let (mut spared, mut busy) = (0, 0);
        for _ in 0..LOOKS_MAX {
            let hand = self.word(WORD_HAND).fetch_add(1, Relaxed);
            let index = (hand % u64::from(self.0.geometry.header.max_entries.max(1))) as u32;
            let (word, bit) = self.reference(index);
            if spared < SPARED_MAX && word.fetch_and(!bit, Relaxed) & bit != 0 {
                spared += 1;
                continue;
            }
            // Of a free element this is a link, and its bucket does not have it.
            let bucket = self.bucket_of(self.hash_of(index).load(Relaxed));
            if !self.lock_bucket(cx, bucket, YIELDS) {
                busy += 1;
                if busy > BUSY_MAX {
                    return false;
                }
                continue;
            }
            let taken = self.unlink(cx, bucket, |candidate| candidate == index).is_ok();
            self.unlock_bucket(bucket);
            if taken {
                return true;
            }
        }
        false
    }

    /// Takes the first element that is `wanted` out of a bucket, which is locked. It stays readable.
    fn unlink(&self, cx: &Context, bucket: u32, mut wanted: impl FnMut(u32) -> bool) -> Result<(), Errno> {
        for _ in 0..RESTARTS_MAX {
            let mut link_at = self.bucket_at(bucket);
            let mut link = self.first_link(bucket);
            let mut steps = 0;
            let index = loop {
                let index = self.element_of(link).filter(|_| steps < WALK_MAX).ok_or(Errno::ENOENT)?;
                if wanted(index) {
                    break index;
                }
                link_at = self.element_at(index);
                link = self.next_link(index);
                steps += 1;
            };
            // First, and in `update` last: after deaths the count is never more than there is.
            let count = self.part_of_count(cx.owner);
            count.fetch_sub(1, Relaxed);
            if self.0.replace32(link_at, link, self.next_link(index)) {
                self.give_element(cx.owner, index);
                return Ok(());
            }
            count.fetch_add(1, Relaxed);
        }
        Err(Errno::EBUSY)
    }

    /// As [`Hash::update`], and a full LRU map makes room. Mirrors kernel/bpf/hashtab.c:htab_lru_map_update_elem.
    pub(crate) fn update_or_evict(
        &self,
        cx: &Context,
        key: &[u8],
        flags: u64,
        write: impl Fn(u32, bool),
    ) -> Result<(), Errno> {
        for _ in 0..EVICTIONS_MAX {
            match self.update(cx, key, flags, &write) {
                Err(Errno::E2BIG) if self.reclaim(cx) => {}
                Err(Errno::E2BIG) if !self.0.geometry.is_lru() => return Err(Errno::E2BIG),
                Err(Errno::E2BIG) if self.evict(cx) => {}
                Err(Errno::E2BIG) => break,
                done => return done,
            }
        }
        Err(if self.0.geometry.is_lru() { Errno::ENOMEM } else { Errno::E2BIG })
    }

    /// After deaths: makes every element that is in no chain a free one, also those that dead owners had in hand.
    /// Elements are in hand only while a bucket is locked, so all buckets are locked meanwhile, each with the
    /// patience of yields and not of naps. False if there is no reason to, if a living owner holds a bucket, or if
    /// the map is full indeed.
    pub(crate) fn reclaim(&self, cx: &Context) -> bool {
        let collector = self.0.word32(self.0.own_word(WORD_COLLECTOR));
        if !self.is_doubtful(cx) || !acquire(collector, cx, YIELDS).is_had() {
            return false;
        }
        let last = self.0.geometry.hash.bucket_mask;
        // A collector that died holds them all: they are taken over some at a time.
        let takeovers = self.word(WORD_TAKEOVERS).load(Relaxed);
        let is_enough = || self.word(WORD_TAKEOVERS).load(Relaxed).wrapping_sub(takeovers) > TAKEN_OVER_MAX;
        let locked = (0..=last).find(|bucket| is_enough() || !self.lock_bucket(cx, *bucket, YIELDS));
        let found = locked.is_none() && self.collect();
        (0..locked.unwrap_or(last.saturating_add(1))).for_each(|bucket| self.unlock_bucket(bucket));
        unlock(collector);
        found
    }

    /// Whether a map without a free element may have some in the hands of the dead: a lock was taken over, or
    /// fewer elements are linked than there are and a dead owner holds a lock. Living ones have elements in hand all the
    /// time, so a large map's locks are looked at once in many doubts.
    fn is_doubtful(&self, cx: &Context) -> bool {
        if self.word(WORD_TAKEOVERS).load(Relaxed) != 0 {
            return true;
        }
        if self.count() >= u64::from(self.0.geometry.header.max_entries) {
            return false;
        }
        let last = self.0.geometry.hash.bucket_mask;
        if self.word(WORD_DOUBTS).fetch_add(LOOKS_PER_DOUBT, Relaxed).saturating_add(LOOKS_PER_DOUBT)
            < u64::from(last)
        {
            return false;
        }
        self.word(WORD_DOUBTS).store(0, Relaxed);
        let owners = (0..=last).map(|bucket| self.0.word32(self.bucket_at(bucket) + 4).load(Relaxed));
        owners.filter(|owner| *owner != 0).take(JUDGED_MAX).any(|owner| cx.is_dead(owner))
    }

    /// Lets go of the buckets that are locked by dead owners, and collects what these had in hand. `touched` says what
    /// part of the file at or behind an offset is the next one that has memory: what was never touched stays so.
    pub(crate) fn reclaim_dead_owner(
        &self,
        cx: &Context,
        is_dead: impl Fn(u32) -> bool,
        touched: impl Fn(u64) -> Range<u64>,
    ) {
        let buckets = u64::from(self.0.geometry.hash.bucket_mask) + 1;
        let bucket_behind = |at: u64| at.saturating_sub(self.bucket_at(0)).div_ceil(BUCKET_BYTES).min(buckets);
        let mut next = 0;
        while next < buckets {
            let part = touched(self.bucket_at(next as u32));
            // (Of a bucket at its start the lock may be in it.)
            let first = bucket_behind(part.start.saturating_sub(BUCKET_BYTES - 1)).max(next);
            next = bucket_behind(part.end).max(next + 1);
            for bucket in first..next {
                if release_dead(self.bucket_lock(bucket as u32), &is_dead) {
                    self.word(WORD_TAKEOVERS).fetch_add(1, Relaxed);
                }
            }
        }
        release_dead(self.0.word32(self.0.own_word(WORD_COLLECTOR)), &is_dead);
        self.reclaim(cx);
    }

    /// Rebuilds the free lists. All buckets are locked. A death on the way leaves elements for the next time.
    fn collect(&self) -> bool {
        let max = self.0.geometry.header.max_entries;
        let fresh = self.word(WORD_FRESH).load(Relaxed).min(u64::from(max)) as u32;
        for list in (0..FREE_LISTS).map(|list| self.free_list(list)) {
            list.store((list.load(Relaxed) >> 32).wrapping_add(1) << 32, Release);
        }
        let mut steps = COLLECT_STEPS * u64::from(fresh) + COLLECT_STEPS_MORE;
        let mut linked = 0;
        for index in (0..fresh).map(|turn| self.fresh_element(turn)) {
            let bucket = self.bucket_of(self.hash_of(index).load(Relaxed));
            match self.is_linked(bucket, index, &mut steps) {
                Some(true) => linked += 1,
                Some(false) => self.give_element(index, index),
                None => {
                    // Damaged chains do not get better by trying again.
                    self.word(WORD_TAKEOVERS).store(0, Relaxed);
                    return false;
                }
            }
        }
        for list in 0..FREE_LISTS {
            self.part_of_count(list).store(if list == 0 { linked } else { 0 }, Relaxed);
        }
        self.word(WORD_TAKEOVERS).store(0, Relaxed);
        linked < u64::from(max)
    }

    /// Whether an element is in a bucket's chain; `None` when the steps are used up.
    pub(crate) fn is_linked(&self, bucket: u32, element: u32, steps: &mut u64) -> Option<bool> {
        let mut link = self.first_link(bucket);
        while let Some(index) = self.element_of(link) {
            if index == element {
                return Some(true);
            }
            *steps = steps.checked_sub(1)?;
            link = self.next_link(index);
        }
        Some(false)
    }

    /// `bpf_map_update_elem`: `write(index)` stores the value. Mirrors kernel/bpf/hashtab.c:htab_map_update_elem.
    fn update(&self, cx: &Context, key: &[u8], flags: u64, write: impl Fn(u32, bool)) -> Result<(), Errno> {
        if flags & !BPF_F_LOCK > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        if flags & BPF_F_LOCK != 0 {
            return Err(Errno::EINVAL); // no bpf_spin_lock in values yet
        }
        self.with_bucket(cx, key, true, |hash, bucket| {
            let mut in_hand = None;
            for _ in 0..RESTARTS_MAX {
                let head = self.first_link(bucket);
                if let Some(index) = self.find_in(hash, bucket, key) {
                    if let Some(fresh) = in_hand {
                        self.give_element(cx.owner, fresh);
                    }
                    if flags == BPF_NOEXIST {
                        return Err(Errno::EEXIST);
                    }
                    self.write_whole(|| write(index, false));
                    return Ok(());
                }
                if flags == BPF_EXIST {
                    return Err(Errno::ENOENT);
                }
                debug_assert!(flags == BPF_ANY || flags == BPF_NOEXIST);
                let index = in_hand.or_else(|| self.take_element(cx)).ok_or(Errno::E2BIG)?;
                let element = self.element_at(index);
                if self.0.geometry.is_lru() {
                    let (word, bit) = self.reference(index);
                    if word.load(Relaxed) & bit != 0 {
                        word.fetch_and(!bit, Relaxed);
                    }
                }
                // A walk may still stand on the element since its last life: it takes it for the new one by the hash only.
                write(index, true);
                self.0.write(element + ELEMENT_KEY_OFFSET, key);
                self.hash_of(index).store(hash, Release);
                let next = if head == 0 { END | bucket } else { head };
                self.0.word32(element).store(next, Release);
                if self.0.replace32(self.bucket_at(bucket), head, index + 1) {
                    self.part_of_count(cx.owner).fetch_add(1, Relaxed);
                    return Ok(());
                }
                in_hand = Some(index);
            }
            if let Some(fresh) = in_hand {
                self.give_element(cx.owner, fresh);
            }
            Err(Errno::EBUSY)
        })
    }

    /// Writes a value again if a signal handler's programs have written in between, perhaps into the same one, of which
    /// each had written a part then.
    fn write_whole(&self, write: impl Fn()) {
        for _ in 0..RESTARTS_MAX {
            let before = self.word(WORD_INTERRUPTED).load(Acquire);
            write();
            compiler_fence(SeqCst);
            if self.word(WORD_INTERRUPTED).load(Acquire) == before {
                return;
            }
        }
    }

    /// Removes a key; `last_look(index)` sees the element before it goes.
    pub(crate) fn delete(&self, cx: &Context, key: &[u8], mut last_look: impl FnMut(u32)) -> Result<(), Errno> {
        self.with_bucket(cx, key, false, |hash, bucket| {
            self.unlink(cx, bucket, |index| {
                let found = self.is_key(index, hash, key);
                if found {
                    last_look(index);
                }
                found
            })
        })
    }

    /// A free element, or one never used. The free list's links lie in the elements' hash words, since a
    /// walk may still follow the link of an element that has just been deleted.
    fn take_element(&self, cx: &Context) -> Option<u32> {
        let own = cx.owner % FREE_LISTS;
        let lists = (0..FREE_LISTS).map(|step| (own + step) % FREE_LISTS);
        lists.map(|list| self.take_free(list)).find(Option::is_some).unwrap_or_else(|| self.take_fresh())
    }

    pub(crate) fn free_list(&self, list: u32) -> &core::sync::atomic::AtomicU64 {
        self.word(WORD_FREE + u64::from(list % FREE_LISTS) * WORDS_OF_LINE)
    }

    fn take_free(&self, list: u32) -> Option<u32> {
        let list = self.free_list(list);
        let mut head = list.load(Acquire);
        while let Some(index) = self.element_of(head as u32) {
            let next = self.hash_of(index).load(Relaxed);
            let tag = (head >> 32).wrapping_add(1) << 32;
            match list.compare_exchange_weak(head, tag | u64::from(next), AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
        None
    }

    /// The element whose turn to be taken it is; also, whose turn an element is. In each block of 64 those that are taken
    /// one after the other, by several threads perhaps, lie eight apart: in other cache lines, on the same page.
    pub(crate) fn fresh_element(&self, turn: u32) -> u32 {
        let block = turn & !63;
        if block.checked_add(64).is_none_or(|end| end > self.0.geometry.header.max_entries) {
            return turn;
        }
        block | (turn & 7) << 3 | (turn >> 3) & 7
    }

    fn take_fresh(&self) -> Option<u32> {
        let max = u64::from(self.0.geometry.header.max_entries);
        let fresh = self.word(WORD_FRESH).fetch_update(AcqRel, Acquire, |n| (n < max).then(|| n + 1));
        fresh.ok().map(|turn| self.fresh_element(turn as u32))
    }

    /// Puts an element on a free list.
    fn give_element(&self, list: u32, index: u32) {
        let list = self.free_list(list);
        let mut head = list.load(Acquire);
        loop {
            self.hash_of(index).store(head as u32, Relaxed);
            let tag = (head >> 32).wrapping_add(1) << 32;
            match list.compare_exchange_weak(head, tag | u64::from(index + 1), AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// The element behind `key` in iteration order; the first one if `key` is not there.
    /// Mirrors kernel/bpf/hashtab.c:htab_map_get_next_key.
    pub(crate) fn next(&self, key: Option<&[u8]>) -> Option<u32> {
        let mut first_bucket = 0;
        if let Some((key, index)) = key.and_then(|key| Some((key, self.find(key)?))) {
            if let Some(next) = self.element_of(self.next_link(index)) {
                return Some(next);
            }
            first_bucket = self.bucket_of(hash_bytes(key)).checked_add(1)?;
        }
        (first_bucket..=self.0.geometry.hash.bucket_mask).find_map(|bucket| self.element_of(self.first_link(bucket)))
    }

    /// Offset of an element's key.
    pub(crate) fn key_at(&self, index: u32) -> u64 {
        self.element_at(index) + ELEMENT_KEY_OFFSET
    }

    /// Calls `visit` with each element until it says false. It may delete the element that it sees; a chain that leads
    /// to another bucket, since an element was used again there, is left.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u32) -> bool) {
        for bucket in 0..=self.0.geometry.hash.bucket_mask {
            let mut link = self.first_link(bucket);
            for _ in 0..WALK_MAX {
                let Some(index) = self.element_of(link) else { break };
                if self.bucket_of(self.hash_of(index).load(Relaxed)) != bucket {
                    break;
                }
                link = self.next_link(index);
                if !visit(index) {
                    return;
                }
            }
        }
    }

    /// Shows the elements of a bucket to `see`; false if the walk was led into another bucket, whose elements it saw.
    pub(crate) fn visit(&self, bucket: u32, mut see: impl FnMut(u32)) -> bool {
        let mut link = self.first_link(bucket);
        for _ in 0..WALK_MAX {
            let Some(index) = self.element_of(link) else { break };
            see(index);
            link = self.next_link(index);
        }
        self.is_end_of(link, bucket)
    }

    /// Copies an element's key.
    pub(crate) fn read_key(&self, index: u32, out: &mut [u8]) -> bool {
        self.0.read(self.key_at(index), out)
    }
}
