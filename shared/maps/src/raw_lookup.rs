//! The lookups in hash maps and tries that compiled programs call directly, by type of map and size of key.
//!
//! They do what `Map::lookup` does, with key sizes that the compiler knows. Links and hashes lie in memory that others
//! may write: an index is checked before it is followed.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ring3_layout::map::{BUCKET_BYTES, ELEMENT_HASH_OFFSET, ELEMENT_KEY_OFFSET, TABLES_OFFSET};

use crate::geometry::{Geometry, View};
use crate::hash::{END, RESTARTS_MAX, WALK_MAX};
use crate::hashing::{hash_blocks, hash_half, hash_word, hash_words};
use crate::raw_memory::{Memory, program_bytes};
use crate::trie::Trie;

/// A key of a size that the compiler knows.
trait Key: Copy {
    /// Compiled code looks at the first element of a bucket itself, unless it has to be noted that it is used
    /// (`pure/jit/src/translate.rs`).
    const FIRST_BY_CODE: bool;

    /// # Safety
    /// `address` is that of a readable key.
    unsafe fn at(address: u64) -> Self;

    fn hash(self) -> u32;

    /// Whether the key at `address` is this one.
    ///
    /// # Safety
    /// As for [`Key::at`].
    unsafe fn is_at(self, address: u64) -> bool;
}

macro_rules! small_keys {
    ($($type:ty, $key:ident => $hash:expr;)*) => {
        $(
            impl Key for $type {
                const FIRST_BY_CODE: bool = size_of::<$type>() <= 8;

                #[inline(always)]
                unsafe fn at(address: u64) -> Self {
                    // SAFETY: the caller's promise.
                    unsafe { (address as *const $type).read_unaligned() }
                }

                #[inline(always)]
                fn hash(self) -> u32 {
                    let $key = self;
                    $hash
                }

                #[inline(always)]
                unsafe fn is_at(self, address: u64) -> bool {
                    // SAFETY: the caller's promise.
                    unsafe { (address as *const $type).read_unaligned() == self }
                }
            }
        )*
    };
}

small_keys! {
    u32, key => hash_half(key);
    u64, key => hash_word(key);
    [u64; 2], key => hash_words(key);
}

/// A key of 64 bytes, where it lies.
#[derive(Clone, Copy)]
struct Long(*const [u64; 8]);

impl Key for Long {
    const FIRST_BY_CODE: bool = false;

    #[inline(always)]
    unsafe fn at(address: u64) -> Self {
        Long(address as *const [u64; 8])
    }

    #[inline(always)]
    fn hash(self) -> u32 {
        // SAFETY: `at` was promised a readable key.
        let words = unsafe { self.0.read_unaligned() };
        hash_blocks(words)
    }

    #[inline(always)]
    unsafe fn is_at(self, address: u64) -> bool {
        // SAFETY: `at` was promised a readable key.
        let own = unsafe { self.0.read_unaligned() };
        // SAFETY: the caller's promise.
        let there = unsafe { (address as *const [u64; 8]).read_unaligned() };
        let different = own.iter().zip(&there).fold(0, |different, (x, y)| different | (x ^ y));
        different == 0
    }
}

/// The link to a bucket's first element.
///
/// # Safety
/// `header` is the address of a mapped hash map's first byte; `bucket` is one of its buckets.
#[inline(always)]
unsafe fn first_link(header: u64, bucket: u32) -> u32 {
    let head = header + TABLES_OFFSET + u64::from(bucket) * BUCKET_BYTES;
    // SAFETY: the head lies in the bucket table.
    unsafe { AtomicU32::from_ptr(head as *mut u32) }.load(Ordering::Acquire)
}

/// Index and address of the element that a link leads to.
#[inline(always)]
fn element(header: u64, geometry: &Geometry, link: u32) -> Option<(u32, u64)> {
    let layout = &geometry.hash;
    // (Of the end of a chain and of 0 this is no index either.)
    let index = link.wrapping_sub(1);
    let at = header + layout.elements + u64::from(index) * layout.element_stride;
    (index < geometry.header.max_entries).then_some((index, at))
}

/// Whether the element at this address has the key, with this hash.
///
/// # Safety
/// `at` is the address of an element of a mapped map, with keys of this size.
#[inline(always)]
unsafe fn is_element<K: Key>(at: u64, hash: u32, key: K) -> bool {
    // SAFETY: the caller's promise.
    let its_hash = unsafe { AtomicU32::from_ptr((at + ELEMENT_HASH_OFFSET) as *mut u32) }.load(Ordering::Acquire);
    // SAFETY: an element has room for a key of the map's size.
    its_hash == hash && unsafe { key.is_at(at + ELEMENT_KEY_OFFSET) }
}

/// The index of the element with this key, and the link at which the walk ended.
///
/// # Safety
/// As for `first_link`, with keys of this size.
#[inline(always)]
unsafe fn walk<K: Key>(header: u64, geometry: &Geometry, hash: u32, bucket: u32, key: K) -> (Option<u32>, u32) {
    // SAFETY: the caller's promise.
    let mut link = unsafe { first_link(header, bucket) };
    for _ in 0..WALK_MAX {
        let Some((index, at)) = element(header, geometry, link) else { break };
        // SAFETY: the index is below the number of elements.
        if unsafe { is_element(at, hash, key) } {
            return (Some(index), link);
        }
        // SAFETY: as above; an element begins with the link to the next.
        link = unsafe { AtomicU32::from_ptr(at as *mut u32) }.load(Ordering::Acquire);
    }
    (None, link)
}

/// The index of the element with this key. Mirrors `hash.rs`.
///
/// # Safety
/// `header` is the address of a mapped hash map's first byte, with keys of this size.
#[inline(always)]
unsafe fn find<K: Key>(header: u64, geometry: &Geometry, key: K) -> Option<u32> {
    let hash = key.hash();
    let bucket = hash & geometry.hash.bucket_mask;
    // SAFETY: the caller's promise; the bucket is masked.
    let (found, end) = unsafe { walk(header, geometry, hash, bucket, key) };
    if found.is_some() || end == 0 || end == END | bucket {
        return found;
    }
    // SAFETY: as above.
    unsafe { find_again(header, geometry, hash, bucket, key) }
}

/// The chain led elsewhere: once more.
///
/// # Safety
/// As for [`walk`].
#[cold]
#[inline(never)]
unsafe fn find_again<K: Key>(header: u64, geometry: &Geometry, hash: u32, bucket: u32, key: K) -> Option<u32> {
    for _ in 1..RESTARTS_MAX {
        // SAFETY: the caller's promise.
        let (found, end) = unsafe { walk(header, geometry, hash, bucket, key) };
        if found.is_some() || end == 0 || end == END | bucket {
            return found;
        }
    }
    None
}

/// The address of the value of a key, or 0. Here the key is that of the bucket's first element, as of most: what else may be is
/// elsewhere, so that this takes no registers that functions keep.
///
/// # Safety
/// `view` is the address of a mapped hash map's view, `key` of a readable key of its size, `cpu` one of its CPUs; a
/// map that notes references is writable.
#[inline(always)]
unsafe fn lookup<K: Key, const LRU: bool>(view: u64, key: u64, cpu: u64) -> u64 {
    if K::FIRST_BY_CODE && !LRU {
        // SAFETY: the caller's promise.
        return unsafe { lookup_further::<K, LRU>(view, key, cpu) };
    }
    // SAFETY: the caller's promise.
    let View { base, geometry } = unsafe { &*(view as *const View) };
    // Of hash types nothing lies before the private area.
    let header = *base;
    // SAFETY: the caller's promise.
    let wanted = unsafe { K::at(key) };
    let hash = wanted.hash();
    // SAFETY: the caller's promise; the bucket is masked.
    let link = unsafe { first_link(header, hash & geometry.hash.bucket_mask) };
    if let Some((index, at)) = element(header, geometry, link)
        // SAFETY: the index is below the number of elements.
        && unsafe { is_element(at, hash, wanted) }
    {
        // SAFETY: the caller's promise.
        return unsafe { value::<LRU>(header, geometry, index, cpu) };
    }
    // SAFETY: the caller's promise.
    unsafe { lookup_further::<K, LRU>(view, key, cpu) }
}

/// As [`lookup`], wherever the key is.
///
/// # Safety
/// As for `lookup`.
#[inline(never)]
unsafe fn lookup_further<K: Key, const LRU: bool>(view: u64, key: u64, cpu: u64) -> u64 {
    // SAFETY: the caller's promise.
    let View { base, geometry } = unsafe { &*(view as *const View) };
    // SAFETY: the caller's promise.
    let key = unsafe { K::at(key) };
    // SAFETY: the caller's promise.
    let Some(index) = (unsafe { find(*base, geometry, key) }) else { return 0 };
    // SAFETY: the caller's promise.
    unsafe { value::<LRU>(*base, geometry, index, cpu) }
}

/// The address of an element's value. It is noted that it is used.
///
/// # Safety
/// `header` is the address of a mapped hash map's first byte, which is writable if it notes references; `index` is below the
/// number of elements.
#[inline(always)]
unsafe fn value<const LRU: bool>(header: u64, geometry: &Geometry, index: u32, cpu: u64) -> u64 {
    if LRU {
        let word = header + geometry.references + u64::from(index / 64) * 8;
        // SAFETY: there is a bit for each element.
        let word = unsafe { AtomicU64::from_ptr(word as *mut u64) };
        let bit = 1 << (index % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
    let layout = &geometry.hash;
    header + layout.values + u64::from(index) * layout.value_stride + cpu * geometry.cpu_stride
}

macro_rules! lookups {
    ($($name:ident, $per_cpu:ident, $lru:ident, $lru_per_cpu:ident: $key:ty;)*) => {
        $(
            /// Looks up a key of this size in a hash map: the value's address, or 0.
            ///
            /// # Safety
            /// `view` is the address of such a map's view in this process, `key` of that many readable bytes.
            #[inline]
            pub unsafe fn $name(view: u64, key: u64) -> u64 {
                // SAFETY: the caller's promise.
                unsafe { lookup::<$key, false>(view, key, 0) }
            }

            /// As the plain one, in a per-CPU map; `cpu` is one of the map's CPUs.
            ///
            /// # Safety
            /// As for the plain one.
            #[inline]
            pub unsafe fn $per_cpu(view: u64, key: u64, cpu: u64) -> u64 {
                // SAFETY: the caller's promise.
                unsafe { lookup::<$key, false>(view, key, cpu) }
            }

            /// As the plain one, in an LRU map.
            ///
            /// # Safety
            /// As for the plain one; the map is writable.
            #[inline]
            pub unsafe fn $lru(view: u64, key: u64) -> u64 {
                // SAFETY: the caller's promise.
                unsafe { lookup::<$key, true>(view, key, 0) }
            }

            /// As the plain one, in a per-CPU LRU map; `cpu` is one of the map's CPUs.
            ///
            /// # Safety
            /// As for the plain one; the map is writable.
            #[inline]
            pub unsafe fn $lru_per_cpu(view: u64, key: u64, cpu: u64) -> u64 {
                // SAFETY: the caller's promise.
                unsafe { lookup::<$key, true>(view, key, cpu) }
            }
        )*
    };
}

lookups! {
    hash_lookup_4, percpu_hash_lookup_4, lru_hash_lookup_4, lru_percpu_hash_lookup_4: u32;
    hash_lookup_8, percpu_hash_lookup_8, lru_hash_lookup_8, lru_percpu_hash_lookup_8: u64;
    hash_lookup_16, percpu_hash_lookup_16, lru_hash_lookup_16, lru_percpu_hash_lookup_16: [u64; 2];
    hash_lookup_64, percpu_hash_lookup_64, lru_hash_lookup_64, lru_percpu_hash_lookup_64: Long;
}

/// # Safety
/// As for [`trie_lookup_8`], with a key of this many bytes.
#[inline(always)]
unsafe fn trie_lookup<const BYTES: usize>(view: u64, key: u64) -> u64 {
    // SAFETY: the caller's promise.
    let View { base, geometry } = unsafe { &*(view as *const View) };
    // SAFETY: the view is that of a mapped map.
    let memory = unsafe { Memory::new(*base as *mut u8, geometry) };
    // SAFETY: the caller's promise.
    let key = unsafe { program_bytes(key, BYTES) };
    let value_bytes = u64::from(geometry.header.value_size);
    Trie(&memory).find(key).map_or(0, |offset| memory.pointer(offset, value_bytes) as u64)
}

/// Looks up a key of this size in a trie: the address of the value of the longest prefix that fits, or 0.
///
/// # Safety
/// `view` is the address of such a map's view in this process, `key` of that many readable bytes.
#[inline]
pub unsafe fn trie_lookup_8(view: u64, key: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { trie_lookup::<8>(view, key) }
}

/// See [`trie_lookup_8`].
///
/// # Safety
/// As there.
#[inline]
pub unsafe fn trie_lookup_20(view: u64, key: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { trie_lookup::<20>(view, key) }
}
