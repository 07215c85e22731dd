//! HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH and HASH_OF_MAPS.
//!
//! Buckets of chained elements. A lookup takes no lock: it walks links. An element that is deleted and used
//! again in another bucket could lead a walk astray, so the end of a chain names its bucket (as the kernel's
//! `hlist_nulls` does): a walk that ends elsewhere starts again. Writers of a bucket exclude each other by a
//! lock that names its owner; each change becomes visible by one store of a link, so a dead owner's lock is
//! taken over without repair. Elements never move, and free ones are used before fresh ones, so memory is
//! touched as the map fills.
//!
//! A full LRU map makes room: a hand goes round the elements, spares those that were looked up since it came by
//! last, and takes the first other one out of its bucket (the second-chance clock; approximate, as the kernel's
//! lists are). It holds no lock while it looks, and one while it takes.
//!
//! Words (64-bit, behind the header): 0-4 [`HashLayout`]; 5: free list, tag and index + 1; 6: elements ever
//! taken; 7: elements in use; 8: waits that were given up; 9: the LRU hand.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_ANY, BPF_EXIST, BPF_F_LOCK, BPF_NOEXIST};

use crate::Context;
use crate::geometry::{BUCKET_BYTES, ELEMENT_KEY_OFFSET, WORDS_BYTES, WORDS_OFFSET};
use crate::raw_memory::{Memory, hash_key};

/// A link with this bit is the end of a chain; the other bits name the bucket.
pub(crate) const END: u32 = 1 << 31;
/// Links followed in one walk at most: a bound for damaged chains, far beyond what chance makes.
pub(crate) const WALK_MAX: u32 = 4096;
/// Walks begun again because a chain led elsewhere.
pub(crate) const RESTARTS_MAX: u32 = 64;
/// Rounds of waiting for a lock: first on the CPU, then letting others run, then asleep. An owner that lost its CPU
/// gets it back within some tens of milliseconds; all naps together are 0.1 s.
const SPINS: u32 = 256;
const YIELDS: u32 = SPINS + 64;
const NAPS: u32 = YIELDS + 400;
/// It is asked whether the owner lives once in this many rounds.
const DEAD_CHECK_EVERY: u32 = 16;

const WORD_FREE: u64 = 5;
const WORD_FRESH: u64 = 6;
const WORD_COUNT: u64 = 7;
const WORD_GAVE_UP: u64 = 8;
const WORD_HAND: u64 = 9;
/// Elements that the hand spares at most, and that it looks at at most, before it takes what comes or gives up.
const SPARED_MAX: u32 = 128;
const LOOKS_MAX: u32 = 1024;
/// Times that an update makes room, if others take it away.
const EVICTIONS_MAX: u32 = 16;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hash of a key of at most 8 bytes, zero-extended.
#[inline(always)]
pub(crate) fn hash_word(word: u64) -> u32 {
    let mixed = (word ^ (word >> 32)).wrapping_mul(MULTIPLIER);
    (mixed >> 32) as u32
}

/// Hash of a key of 16 bytes.
#[inline(always)]
pub(crate) fn hash_words(words: [u64; 2]) -> u32 {
    let first = (words[0] ^ (words[0] >> 32)).wrapping_mul(MULTIPLIER);
    hash_word(first.rotate_left(23) ^ words[1])
}

/// Hash of a key of any length; equals the above for 4, 8 and 16 bytes.
pub(crate) fn hash_bytes(key: &[u8]) -> u32 {
    let word = |bytes: &[u8]| {
        let mut padded = [0u8; 8];
        padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(padded)
    };
    if key.len() <= 8 {
        return hash_word(word(key));
    }
    let mut state = 0u64;
    for (index, chunk) in key.chunks(8).enumerate() {
        let chunk = word(chunk);
        state =
            if index == 0 { chunk } else { (state ^ (state >> 32)).wrapping_mul(MULTIPLIER).rotate_left(23) ^ chunk };
    }
    hash_word(state)
}

/// Takes a lock word for `cx`, waiting within bounds; false if its owner lives and does not let go.
pub(crate) fn lock(memory: &Memory, offset: u64, cx: &Context) -> bool {
    let word = memory.word32(offset);
    let mut round = 0;
    loop {
        let owner = match word.compare_exchange_weak(0, cx.owner, Acquire, Relaxed) {
            Ok(_) => return true,
            Err(owner) => owner,
        };
        round += 1;
        if round < SPINS {
            core::hint::spin_loop();
            continue;
        }
        if owner != 0 && round % DEAD_CHECK_EVERY == 0 && (cx.owner_is_dead)(owner) {
            // Whatever the dead owner did was one store, done or not done.
            if word.compare_exchange(owner, cx.owner, Acquire, Relaxed).is_ok() {
                return true;
            }
        }
        if round >= NAPS {
            return false;
        }
        (cx.relax)(round >= YIELDS);
    }
}

pub(crate) fn unlock(memory: &Memory, offset: u64) {
    memory.word32(offset).store(0, Release);
}

/// A hash map's operations on its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash<'m>(pub(crate) &'m Memory);

impl Hash<'_> {
    /// Fresh memory: the layout for the specialised lookups, and every chain's end.
    pub(crate) fn initialize(&self) {
        let layout = self.0.geometry.hash;
        let words = [
            u64::from(layout.bucket_mask),
            layout.elements,
            layout.element_stride,
            layout.values,
            layout.value_stride,
        ];
        for (index, word) in words.into_iter().enumerate() {
            self.0.word64(self.0.own_word(index as u64)).store(word, Relaxed);
        }
    }

    fn word(&self, index: u64) -> &core::sync::atomic::AtomicU64 {
        self.0.word64(self.0.own_word(index))
    }

    /// Elements in use.
    pub(crate) fn count(&self) -> u64 {
        self.word(WORD_COUNT).load(Relaxed)
    }

    fn bucket_at(&self, bucket: u32) -> u64 {
        self.0.private(WORDS_OFFSET + WORDS_BYTES + u64::from(bucket) * BUCKET_BYTES)
    }

    fn bucket_of(&self, hash: u32) -> u32 {
        hash & self.0.geometry.hash.bucket_mask
    }

    fn element_at(&self, index: u32) -> u64 {
        let layout = &self.0.geometry.hash;
        self.0.private(layout.elements + u64::from(index) * layout.element_stride)
    }

    /// Offset of an element's value for a CPU.
    pub(crate) fn value_at(&self, index: u32, cpu: u32) -> u64 {
        let layout = &self.0.geometry.hash;
        let cpu = cpu.min(self.0.geometry.header.cpus - 1);
        let of_cpu = u64::from(cpu) * self.0.geometry.cpu_stride;
        self.0.private(layout.values + u64::from(index) * layout.value_stride + of_cpu)
    }

    /// The element that a link names, if it is one.
    fn element_of(&self, link: u32) -> Option<u32> {
        (link & END == 0 && link != 0).then(|| link - 1).filter(|index| *index < self.0.geometry.header.max_entries)
    }

    fn first_link(&self, bucket: u32) -> u32 {
        self.0.word32(self.bucket_at(bucket)).load(Acquire)
    }

    fn next_link(&self, index: u32) -> u32 {
        self.0.word32(self.element_at(index)).load(Acquire)
    }

    /// Whether a walk that ended with `link` ended in `bucket` (0: a bucket never used).
    fn is_end_of(&self, link: u32, bucket: u32) -> bool {
        link == 0 || link == END | bucket
    }

    fn is_key(&self, index: u32, hash: u32, key: &[u8]) -> bool {
        let element = self.element_at(index);
        self.0.word32(element + 4).load(Relaxed) == hash && self.0.equals(element + ELEMENT_KEY_OFFSET, key)
    }

    /// The element with this key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<u32> {
        let hash = hash_key(key);
        let bucket = self.bucket_of(hash);
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

    /// Runs `change` with the bucket of `key` locked.
    fn with_bucket<T>(
        &self,
        cx: &Context,
        key: &[u8],
        change: impl FnOnce(u32, u32) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let hash = hash_key(key);
        let bucket = self.bucket_of(hash);
        self.with_locked(cx, bucket, || change(hash, bucket))
    }

    fn with_locked<T>(
        &self,
        cx: &Context,
        bucket: u32,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let lock_at = self.bucket_at(bucket) + 4;
        if !lock(self.0, lock_at, cx) {
            self.word(WORD_GAVE_UP).fetch_add(1, Relaxed);
            return Err(Errno::EBUSY);
        }
        let result = change();
        unlock(self.0, lock_at);
        result
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
        let mut spared = 0;
        for _ in 0..LOOKS_MAX {
            let hand = self.word(WORD_HAND).fetch_add(1, Relaxed);
            let index = (hand % u64::from(self.0.geometry.header.max_entries.max(1))) as u32;
            let (word, bit) = self.reference(index);
            if spared < SPARED_MAX && word.fetch_and(!bit, Relaxed) & bit != 0 {
                spared += 1;
                continue;
            }
            // Of a free element this is a link, and its bucket does not have it.
            let bucket = self.bucket_of(self.0.word32(self.element_at(index) + 4).load(Relaxed));
            if self.with_locked(cx, bucket, || self.unlink(bucket, |candidate| candidate == index)).is_ok() {
                return true;
            }
        }
        false
    }

    /// Takes the first element that is `wanted` out of a bucket, which is locked. It stays readable.
    fn unlink(&self, bucket: u32, mut wanted: impl FnMut(u32) -> bool) -> Result<(), Errno> {
        let mut link_at = self.bucket_at(bucket);
        let mut link = self.first_link(bucket);
        for _ in 0..WALK_MAX {
            let Some(index) = self.element_of(link) else { break };
            if wanted(index) {
                self.0.word32(link_at).store(self.next_link(index), Release);
                self.word(WORD_COUNT).fetch_sub(1, Relaxed);
                self.give_element(index);
                return Ok(());
            }
            link_at = self.element_at(index);
            link = self.next_link(index);
        }
        Err(Errno::ENOENT)
    }

    /// As [`Hash::update`], and a full LRU map makes room. Mirrors kernel/bpf/hashtab.c:htab_lru_map_update_elem.
    pub(crate) fn update_or_evict(
        &self,
        cx: &Context,
        key: &[u8],
        flags: u64,
        write: impl Fn(u32, bool),
    ) -> Result<(), Errno> {
        if !self.0.geometry.is_lru() {
            return self.update(cx, key, flags, write);
        }
        for _ in 0..EVICTIONS_MAX {
            match self.update(cx, key, flags, &write) {
                Err(Errno::E2BIG) if self.evict(cx) => {}
                Err(Errno::E2BIG) => break,
                done => return done,
            }
        }
        Err(Errno::ENOMEM)
    }

    /// `bpf_map_update_elem`: `write(index)` stores the value. Mirrors kernel/bpf/hashtab.c:htab_map_update_elem.
    fn update(&self, cx: &Context, key: &[u8], flags: u64, write: impl Fn(u32, bool)) -> Result<(), Errno> {
        if flags & !BPF_F_LOCK > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        if flags & BPF_F_LOCK != 0 {
            return Err(Errno::EINVAL); // no bpf_spin_lock in values yet
        }
        self.with_bucket(cx, key, |hash, bucket| {
            if let Some(index) = self.find(key) {
                if flags == BPF_NOEXIST {
                    return Err(Errno::EEXIST);
                }
                write(index, false);
                return Ok(());
            }
            if flags == BPF_EXIST {
                return Err(Errno::ENOENT);
            }
            debug_assert!(flags == BPF_ANY || flags == BPF_NOEXIST);
            let index = self.take_element().ok_or(Errno::E2BIG)?;
            let element = self.element_at(index);
            if self.0.geometry.is_lru() {
                let (word, bit) = self.reference(index);
                word.fetch_and(!bit, Relaxed);
            }
            self.0.word32(element + 4).store(hash, Relaxed);
            self.0.write(element + ELEMENT_KEY_OFFSET, key);
            write(index, true);
            let head = self.first_link(bucket);
            let next = if head == 0 { END | bucket } else { head };
            self.0.word32(element).store(next, Release);
            self.0.word32(self.bucket_at(bucket)).store(index + 1, Release);
            self.word(WORD_COUNT).fetch_add(1, Relaxed);
            Ok(())
        })
    }

    /// Removes a key; `last_look(index)` sees the element before it goes.
    pub(crate) fn delete(&self, cx: &Context, key: &[u8], last_look: impl FnOnce(u32)) -> Result<(), Errno> {
        self.with_bucket(cx, key, |hash, bucket| {
            let mut last_look = Some(last_look);
            self.unlink(bucket, |index| {
                let found = self.is_key(index, hash, key);
                if found && let Some(look) = last_look.take() {
                    look(index);
                }
                found
            })
        })
    }

    /// A free element, or one never used. The free list's links lie in the elements' hash words, since a
    /// walk may still follow the link of an element that has just been deleted.
    fn take_element(&self) -> Option<u32> {
        let list = self.word(WORD_FREE);
        let mut head = list.load(Acquire);
        while let Some(index) = self.element_of(head as u32) {
            let next = self.0.word32(self.element_at(index) + 4).load(Relaxed);
            let tag = (head >> 32).wrapping_add(1) << 32;
            match list.compare_exchange_weak(head, tag | u64::from(next), AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
        let max = u64::from(self.0.geometry.header.max_entries);
        let fresh = self.word(WORD_FRESH).fetch_update(AcqRel, Acquire, |n| (n < max).then_some(n + 1));
        fresh.ok().map(|index| index as u32)
    }

    fn give_element(&self, index: u32) {
        let list = self.word(WORD_FREE);
        let mut head = list.load(Acquire);
        loop {
            self.0.word32(self.element_at(index) + 4).store(head as u32, Relaxed);
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
            first_bucket = self.bucket_of(hash_key(key)).checked_add(1)?;
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
                if self.bucket_of(self.0.word32(self.element_at(index) + 4).load(Relaxed)) != bucket {
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
