//! A map's memory: one memfd, `[data area][private area]`.
//!
//! The data area is what a loader may `mmap` (array elements, ring buffer pages, perf buffer
//! pages) and starts at file offset 0, as the kernel's does; hash types have none. The private
//! area holds tables, locks and positions. What bounds all access, the [`MapHeader`] and what follows from it,
//! does not lie in this memory, which every target of the map can write.

/// Offset in the private area of the type's own words, in cache lines of their own, up to [`TABLES_OFFSET`]. A ring buffer's first one is
/// the writers' lock: the owner id of the thread that holds it, or 0.
pub const WORDS_OFFSET: u64 = 256;
/// Offset in the private area of what lies behind the type's own words: the buckets of hash types.
pub const TABLES_OFFSET: u64 = 896;
/// Of hash types: bytes of a bucket. It begins with a link of 4 bytes: 1 more than the index of its first element.
pub const BUCKET_BYTES: u64 = 8;
/// Offset of an element's hash, 4 bytes, behind its link. It is written when key and value are there: who reads it first finds them.
pub const ELEMENT_HASH_OFFSET: u64 = 4;
/// Offset of an element's key.
pub const ELEMENT_KEY_OFFSET: u64 = 8;
/// What keys are multiplied by: the hash of one of 4 bytes is the product's upper half, that of one of 8 bytes the lower word of the
/// halves' xor.
pub const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// `MapHeader::magic`.
pub const MAP_MAGIC: u32 = u32::from_le_bytes(*b"r3mp");

/// A map's attributes and sizes. 128 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MapHeader {
    /// [`MAP_MAGIC`].
    pub magic: u32,
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value as the loader gave it.
    pub value_size: u32,
    /// Elements at most (or bytes, for a ring buffer).
    pub max_entries: u32,
    /// `BPF_F_*` of creation.
    pub map_flags: u32,
    /// Bytes from one element to the next: `value_size` rounded up to 8.
    pub stride: u32,
    /// Per-CPU copies of a value; 1 for types without.
    pub cpus: u32,
    /// Bytes of the data area; the private area begins this far behind the first byte of the file.
    pub data_bytes: u64,
    /// Bytes of the private area.
    pub private_bytes: u64,
    /// Number of the map's doorbell ([`crate::realm::Doorbell`]); 0: none.
    pub doorbell: u32,
    /// The map's id.
    pub id: u32,
    /// `map_extra` of creation.
    pub map_extra: u64,
    /// Of a stack map: what is added to ids, so that those of several memories of one map differ.
    pub id_base: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u64; 7],
}

const _: () = assert!(size_of::<MapHeader>() == 128);
