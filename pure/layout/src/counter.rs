//! Reference counters of probes (USDT semaphores): the words of a target that the server has counted up.
//!
//! The table lies in private memory of the target, as the counters themselves do. So a fork, which inherits counters that are up,
//! inherits the entries that say so, and whoever cleans the process up, this server or the next one, finds them.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Counters of one target that can be up at a time.
pub const COUNTERS_MAX: u32 = 4096;
/// Bytes of the table: [`CountersHeader`], then the entries.
pub const TABLE_BYTES: u64 = (size_of::<CountersHeader>() as u64
    + COUNTERS_MAX as u64 * size_of::<CountedCounter>() as u64)
    .next_multiple_of(crate::PAGE_BYTES);

/// The head of the table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
pub struct CountersHeader {
    /// Entries `0..used` have been used at some time.
    pub used: u64,
}

/// A counter that the server has counted up. 40 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct CountedCounter {
    /// Address of the counter, a word of 16 bits.
    pub address: u64,
    /// Device of the file that is mapped there, `st_dev`.
    pub dev: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Offset of the counter in the file.
    pub offset: u64,
    /// How many probes count it; 0: the entry is free.
    pub count: u64,
}

/// Offset of an entry in the table.
pub const fn entry_offset(index: u64) -> u64 {
    size_of::<CountersHeader>() as u64 + index * size_of::<CountedCounter>() as u64
}
