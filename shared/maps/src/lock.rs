//! Locks that name their owner, and are taken over from a dead one.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::Context;

/// Rounds of waiting for a lock: first on the CPU, then letting others run, then asleep. An owner that lost its CPU
/// gets it back within some tens of milliseconds; all naps together are 0.1 s.
const SPINS: u32 = 32;
/// Pauses of the CPU between two looks at the lock, at most: each look takes its cache line from who works there.
const PAUSES_MAX: u32 = 16;
/// Rounds before naps.
pub(crate) const YIELDS: u32 = SPINS + 64;
/// All rounds.
pub(crate) const NAPS: u32 = YIELDS + 400;
/// It is asked whether the owner lives once in this many rounds.
const DEAD_CHECK_EVERY: u32 = 16;

/// How a lock word was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// Its owner lives and does not let go.
    Not,
    /// Not: it is held by programs that a signal handler, whose programs these are, has interrupted, or that were left.
    Own,
    /// It was free.
    Free,
    /// Its owner was dead.
    TakenOver,
}

impl Acquired {
    /// Whether it is to be let go of again.
    pub(crate) fn is_had(self) -> bool {
        matches!(self, Acquired::Free | Acquired::TakenOver)
    }
}

/// Takes a lock word for `cx`, waiting within bounds; false if its owner lives and does not let go.
#[inline(always)]
pub(crate) fn lock(word: &AtomicU32, cx: &Context) -> bool {
    acquire(word, cx, NAPS).is_had()
}

/// As [`lock`], waiting for as many rounds.
#[inline(always)]
pub(crate) fn acquire(word: &AtomicU32, cx: &Context, rounds: u32) -> Acquired {
    match word.compare_exchange(0, cx.owner, Acquire, Relaxed) {
        Ok(_) => Acquired::Free,
        Err(_) => wait(word, cx, rounds),
    }
}

#[cold]
#[inline(never)]
fn wait(word: &AtomicU32, cx: &Context, rounds: u32) -> Acquired {
    let (mut round, mut pauses) = (0, 1);
    loop {
        let owner = word.load(Relaxed);
        if owner == cx.owner {
            return Acquired::Own;
        }
        if owner == 0 && word.compare_exchange_weak(0, cx.owner, Acquire, Relaxed).is_ok() {
            return Acquired::Free;
        }
        round += 1;
        if round < SPINS {
            (0..pauses).for_each(|_| core::hint::spin_loop());
            pauses = (pauses * 2).min(PAUSES_MAX);
            continue;
        }
        if owner != 0 && round % DEAD_CHECK_EVERY == 0 && cx.is_dead(owner) {
            // Whatever the dead owner did was one store, done or not done.
            if word.compare_exchange(owner, cx.owner, Acquire, Relaxed).is_ok() {
                return Acquired::TakenOver;
            }
        }
        if round >= rounds {
            return Acquired::Not;
        }
        (cx.relax)(round >= YIELDS);
    }
}

/// Lets go of a lock.
pub(crate) fn unlock(word: &AtomicU32) {
    word.store(0, Release);
}

/// Frees a lock whose owner is dead; whether there was one.
pub(crate) fn release_dead(word: &AtomicU32, is_dead: impl Fn(u32) -> bool) -> bool {
    let owner = word.load(Relaxed);
    owner != 0 && is_dead(owner) && word.compare_exchange(owner, 0, AcqRel, Relaxed).is_ok()
}
