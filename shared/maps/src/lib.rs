//! Maps, ring buffers and perf buffers in memory that loaders, targets and the server share.
//!
//! Runs: in the server and, called by programs, in every target, possibly in a signal handler.
//! May touch: the memory of one map, within the geometry it was told.
//! Never: allocates, panics, waits without a bound, follows an index that it has not checked.
//! Start reading at: `geometry.rs`, then `hash.rs`.
#![no_std]

mod array;
mod blocking;
mod bloom;
mod check;
mod geometry;
mod hash;
mod hashing;
mod lock;
mod pool;
mod queue;
mod raw_lookup;
mod raw_map;
mod raw_memory;
mod raw_perf;
mod ring;
mod stacks;
mod trie;
mod user_ring;
mod wake;

pub use blocking::Goal;
pub use check::{Census, Damage};
pub use geometry::{Attributes, Geometry, View, is_changed_by_reads, is_hash, is_of_objects};
pub use raw_lookup::{hash_lookup_4, hash_lookup_8, hash_lookup_16, hash_lookup_64};
pub use raw_lookup::{lru_hash_lookup_4, lru_hash_lookup_8, lru_hash_lookup_16, lru_hash_lookup_64};
pub use raw_lookup::{
    lru_percpu_hash_lookup_4, lru_percpu_hash_lookup_8, lru_percpu_hash_lookup_16, lru_percpu_hash_lookup_64,
};
pub use raw_lookup::{percpu_hash_lookup_4, percpu_hash_lookup_8, percpu_hash_lookup_16, percpu_hash_lookup_64};
pub use raw_lookup::{trie_lookup_8, trie_lookup_20};
pub use raw_map::Map;
pub use raw_perf::{PERF_SAMPLE_RAW, PERF_SAMPLE_TIME, PerfBuffer, RecordContent, Sample};
pub use ring::{Record, Ring, Taken, Unreserved};
pub use user_ring::{Sampled, UserRing};
pub use wake::Wake;

/// Length of a nap, ns.
pub const NAP_NS: u64 = 250_000;

/// Who operates on a map, and how it waits.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Names the owner of locks and of ring buffer records (`ring3_layout::owner`). Not 0.
    pub owner: u32,
    /// CPU (slot) whose copy of per-CPU values is meant.
    pub cpu: u32,
    /// Whether the thread with this id, in the caller's own pid namespace, has ended.
    pub owner_is_dead: fn(u32) -> bool,
    /// Lets other threads run (`sched_yield`), or if it is told so sleeps for [`NAP_NS`].
    pub relax: fn(sleeps: bool),
    /// A signal handler does this, which has interrupted programs of the same thread: they go on when it is done.
    pub interrupts: bool,
}

impl Context {
    /// Whether the owner with this name has certainly ended: one of another pid namespace never has, as far as can be
    /// told from here; the server releases what it held ([`Map::reclaim_dead_owner`]).
    pub(crate) fn is_dead(&self, owner: u32) -> bool {
        ring3_layout::owner::is_near(self.owner, owner) && (self.owner_is_dead)(ring3_layout::owner::tid(owner))
    }
}
