//! Ring buffers whose writers wait for the reader (`RING3_F_BLOCK`): what there is to wait for, and who wakes whom.
//!
//! A writer that wants the reader to reach a position stores that in `wake_at` and then looks at the reader's position. The reader
//! stores its position and then looks at `wake_at` (`outside/bpf/src/ring.rs`). So one of the two sees the other. `wake_at` has the
//! lowest position that is wanted: when the reader takes it away, it wakes all, and those that want more store theirs again.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use ring3_layout::ring::ReaderWords;
use ring3_uapi::flags::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT};

use crate::Context;
use crate::ring::{Record, Ring, Unreserved, record_bytes};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// The position that the reader must reach.
    position: u64,
    /// Where it is to wake the thread: there, or a bit later, so that a writer which is faster than the reader is not woken for
    /// each record.
    wake_at: u64,
}

/// Whether `position` is at or behind `goal`.
fn reaches(position: u64, goal: u64) -> bool {
    position.wrapping_sub(goal) as i64 >= 0
}

impl Ring<'_> {
    /// What reader and writers tell each other.
    pub fn reader(&self) -> &ReaderWords {
        self.0.reader()
    }

    /// As [`Ring::reserve`], but so many bytes stay free; and with the reason of a failure.
    ///
    /// # Errors
    /// The reason.
    pub fn try_reserve(&self, cx: &Context, bytes: u64, spare: u64) -> Result<Record, Unreserved> {
        self.reserve_at(cx, bytes, spare).map(|position| Record { address: self.0.address(position) })
    }

    /// Bytes that stay free for who cannot wait: the programs of a signal handler that has interrupted one with a reserved record,
    /// which the reader cannot pass.
    pub fn spare(&self) -> u64 {
        self.0.size() / 8
    }

    /// Whether a thread holds the producers' lock.
    pub fn is_locked_by(&self, owner: u32) -> bool {
        self.0.writers.lock.load(Relaxed) == owner
    }

    /// What a record with so much data has to wait for that has no room now, if so many bytes stay free.
    pub fn room_goal(&self, bytes: u64, spare: u64) -> Goal {
        let [consumer, producer] = self.positions();
        let position = producer.wrapping_add(record_bytes(bytes) + spare).wrapping_sub(self.0.size());
        let ahead = producer.wrapping_sub(consumer).min(self.0.size() / 4);
        let later = consumer.wrapping_add(ahead);
        Goal { position, wake_at: if reaches(later, position) { later } else { position } }
    }

    /// What to wait for until a record has been consumed that is reserved and not committed yet. `None`: it is no such record.
    pub fn consumed_goal(&self, record: Record) -> Option<Goal> {
        let place = self.0.position_of(record.address)?;
        let producer = self.0.producer.load(Acquire);
        let behind = match producer.wrapping_sub(place) & (self.0.size() - 1) {
            0 => self.0.size(),
            behind => behind,
        };
        let start = producer.wrapping_sub(behind);
        let length = self.0.header(start)[0].load(Relaxed) & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
        let position = start.wrapping_add(record_bytes(u64::from(length)));
        Some(Goal { position, wake_at: position })
    }

    /// Writes into a reserved record.
    pub fn fill(&self, record: Record, data: &[u8]) {
        if let Some(place) = self.0.position_of(record.address) {
            self.0.write(place, data);
        }
    }

    /// After a commit: whether the reader sleeps, and the caller has to wake it (it sleeps on [`ReaderWords::sleeping`]).
    pub fn finds_sleeping_reader(&self, flags: u64) -> bool {
        if flags & (BPF_RB_FORCE_WAKEUP | BPF_RB_NO_WAKEUP) == BPF_RB_NO_WAKEUP {
            return false;
        }
        // (The commit has exchanged the record's header, which on x86-64 orders that before this.)
        let sleeping = &self.reader().sleeping;
        sleeping.load(SeqCst) != 0 && sleeping.swap(0, SeqCst) != 0
    }

    /// Whether the reader has reached a goal.
    pub fn reached(&self, goal: Goal) -> bool {
        reaches(self.0.consumer.load(SeqCst), goal.position)
    }

    /// Asks the reader to wake threads that sleep on [`ReaderWords::progress`] while that has the value that is returned. `None`: the
    /// goal is reached.
    pub fn ask_to_be_woken(&self, goal: Goal) -> Option<u32> {
        let words = self.reader();
        let progress = words.progress.load(SeqCst);
        let mut wanted = words.wake_at.load(SeqCst);
        while wanted == 0 || !reaches(goal.wake_at, wanted) {
            match words.wake_at.compare_exchange(wanted, goal.wake_at, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(other) => wanted = other,
            }
        }
        (!self.reached(goal)).then_some(progress)
    }

    /// Whether an owner holds a record before the goal that is not committed. The reader cannot pass it, and the owner does not
    /// commit it while it waits: programs that a signal handler has interrupted may have reserved it. Bounded by the buffer's
    /// size whatever its bytes say.
    pub fn holds_back(&self, owner: u32, goal: Goal) -> bool {
        let mut at = self.0.consumer.load(Acquire) & !7;
        for _ in 0..self.0.size() / 8 {
            if reaches(at, goal.position) {
                break;
            }
            let [header, of] = self.0.header(at);
            let length = header.load(Acquire);
            if length & BPF_RINGBUF_BUSY_BIT != 0 && of.load(Relaxed) == owner {
                return true;
            }
            let bytes = u64::from(length & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT));
            at = at.wrapping_add(record_bytes(bytes));
        }
        false
    }

    /// There is no reader any more. The caller wakes all who sleep on [`ReaderWords::progress`].
    pub fn reader_is_gone(&self) {
        let words = self.reader();
        words.reader.store(0, SeqCst);
        words.wake_at.store(0, SeqCst);
        words.progress.fetch_add(1, SeqCst);
    }
}
