//! QUEUE and STACK.
//!
//! One word says where the oldest element is and how many there are. A push writes into a free place and then stores
//! that word, a pop copies and then stores it: each change is one store, so the lock of an owner that
//! died is taken over without repair. There is one place more than elements, so a push that takes
//! the oldest one's turn writes into a free place as well.
//!
//! A peek takes no lock: what it read is whole if the word is what it was before, and no change was declared meanwhile after
//! which it could be that again.
//!
//! Own words (64-bit): 0: place of the oldest, count << 32; 1: lock; 2: waits that were given up; 3: changes declared.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use ring3_layout::map::TABLES_OFFSET;
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_EXIST, BPF_NOEXIST};

use crate::Context;
use crate::lock::{lock, release_dead, unlock};
use crate::raw_memory::Memory;

pub(crate) const WORD_STATE: u64 = 0;
pub(crate) const WORD_LOCK: u64 = 1;
const WORD_GAVE_UP: u64 = 2;
const WORD_CHANGES: u64 = 3;
/// Peeks without the lock that changes come between, until one with it.
const PEEKS_MAX: u32 = 64;

/// A queue's or a stack's operations on its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'m>(pub(crate) &'m Memory<'m>);

impl Queue<'_> {
    fn places(&self) -> u32 {
        self.0.geometry.header.max_entries.saturating_add(1)
    }

    /// Offset of the place `distance` behind `place`.
    fn place_at(&self, place: u32, distance: u32) -> u64 {
        // (Both are at most the number of places. A division would take longer than all the rest.)
        let (sum, places) = (u64::from(place) + u64::from(distance), u64::from(self.places()));
        let number = if sum < places { sum } else { sum - places };
        self.0.private(TABLES_OFFSET + number * u64::from(self.0.geometry.header.stride))
    }

    /// The place itself, or the first one for a number behind the last place.
    fn place(&self, number: u32) -> u32 {
        if number < self.places() { number } else { 0 }
    }

    /// Place of the oldest element, and the number of elements. The word may be damaged.
    fn state(&self) -> (u32, u32) {
        let word = self.0.word64(self.0.own_word(WORD_STATE)).load(Acquire);
        (self.place(word as u32), ((word >> 32) as u32).min(self.0.geometry.header.max_entries))
    }

    fn changes(&self) -> &AtomicU64 {
        self.0.word64(self.0.own_word(WORD_CHANGES))
    }

    fn set_state(&self, oldest: u32, count: u32) {
        self.changes().store(self.changes().load(Relaxed).wrapping_add(1), Relaxed);
        let word = u64::from(self.place(oldest)) | u64::from(count) << 32;
        self.0.word64(self.0.own_word(WORD_STATE)).store(word, Release);
        // Who reads what is written to places from here on also reads the word.
        fence(Release);
    }

    fn lock(&self) -> &AtomicU32 {
        self.0.word32(self.0.own_word(WORD_LOCK))
    }

    pub(crate) fn gave_up(&self) -> u64 {
        self.0.word64(self.0.own_word(WORD_GAVE_UP)).load(Relaxed)
    }

    /// Lets go of the lock if a dead owner has it.
    pub(crate) fn reclaim_dead_owner(&self, is_dead: impl Fn(u32) -> bool) {
        release_dead(self.lock(), is_dead);
    }

    fn locked<T>(&self, cx: &Context, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if !lock(self.lock(), cx) {
            self.0.word64(self.0.own_word(WORD_GAVE_UP)).fetch_add(1, Relaxed);
            return Err(Errno::EBUSY);
        }
        let result = change();
        unlock(self.lock());
        result
    }

    /// `bpf_map_push_elem`: with `BPF_EXIST` a full map loses its oldest element.
    /// Mirrors kernel/bpf/queue_stack_maps.c:queue_stack_map_push_elem.
    pub(crate) fn push(&self, cx: &Context, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags & BPF_NOEXIST != 0 || flags > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        self.locked(cx, || {
            let (oldest, count) = self.state();
            let full = count == self.0.geometry.header.max_entries;
            if full && flags & BPF_EXIST == 0 {
                return Err(Errno::E2BIG);
            }
            self.0.write(self.place_at(oldest, count), value);
            if full {
                self.set_state(oldest + 1, count);
            } else {
                self.set_state(oldest, count + 1);
            }
            Ok(())
        })
    }

    fn is_stack(&self) -> bool {
        self.0.geometry.header.map_type == map_type::STACK
    }

    /// Copies the next element of this state. `ENOENT` if there is none, and zeros.
    fn read_next(&self, (oldest, count): (u32, u32), out: &mut [u8]) -> Result<(), Errno> {
        if count == 0 {
            out.fill(0);
            return Err(Errno::ENOENT);
        }
        self.0.read(self.place_at(oldest, if self.is_stack() { count - 1 } else { 0 }), out);
        Ok(())
    }

    /// `bpf_map_peek_elem`. `ENOENT` from an empty map, and zeros.
    /// Mirrors kernel/bpf/queue_stack_maps.c:__queue_map_get and __stack_map_get.
    pub(crate) fn peek(&self, cx: &Context, out: &mut [u8]) -> Result<(), Errno> {
        for _ in 0..PEEKS_MAX {
            let (changes, state) = (self.changes().load(Acquire), self.state());
            let result = self.read_next(state, out);
            fence(Acquire);
            if self.state() == state && self.changes().load(Relaxed) == changes {
                return result;
            }
        }
        // (What was read so far may be of several.)
        out.fill(0);
        self.locked(cx, || self.read_next(self.state(), out))
    }

    /// `bpf_map_pop_elem`. `ENOENT` from an empty map, and zeros. Mirrors the same.
    pub(crate) fn pop(&self, cx: &Context, out: &mut [u8]) -> Result<(), Errno> {
        self.locked(cx, || {
            let (oldest, count) = self.state();
            self.read_next((oldest, count), out)?;
            self.set_state(if self.is_stack() { oldest } else { oldest + 1 }, count - 1);
            Ok(())
        })
    }
}
