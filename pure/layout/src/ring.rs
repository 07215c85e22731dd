//! Ring buffers whose writers wait for the reader.
//!
//! In the page of a ring buffer's file that has the consumer's position, behind that position: what the reader and the threads that
//! write share. Writers and the reader sleep on futexes in it, so neither needs a descriptor of the other's. Each of them may be
//! killed at any moment: nothing here counts, and whoever sleeps looks again from time to time.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// `map_flags` of a `BPF_MAP_TYPE_RINGBUF`: a program that finds no room waits for it, if the reader has announced itself. (The
/// kernel's flags are lower bits.)
pub const RING3_F_BLOCK: u32 = 1 << 31;
/// Flag of `bpf_ringbuf_output` and `bpf_ringbuf_submit` for such a ring buffer: the thread waits until the reader has consumed the
/// record.
pub const RING3_RB_WAIT_CONSUMED: u64 = 1 << 32;

/// Offset of [`ReaderWords`] in the file. (The position has a cache line of its own.)
pub const READER_OFFSET: u64 = 64;

/// What the reader and the writers tell each other.
#[repr(C)]
#[derive(Debug)]
pub struct ReaderWords {
    /// Process id of the reader, from when it is ready to read until it is no more; 0: there is none, and nobody waits for it.
    pub reader: AtomicU32,
    /// 1: the reader sleeps on this word. Who takes that away wakes it.
    pub sleeping: AtomicU32,
    /// The lowest position at which a waiting thread wants to be woken; 0: none.
    pub wake_at: AtomicU64,
    /// Threads that wait for the reader sleep on this word. The reader changes it when it takes `wake_at` away.
    pub progress: AtomicU32,
    /// Inode number of the reader's pid namespace, in which `reader` is its id; 0: not known. It is written before `reader`.
    pub namespace: AtomicU32,
    /// Records that were lost although there was a reader, since the map was made. Writers count them; the number wraps.
    pub lost: AtomicU32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(READER_OFFSET + size_of::<ReaderWords>() as u64 <= crate::PAGE_BYTES);
