//! The memory of one map: every access goes through [`Memory`], which checks offsets against the geometry.
//! And the hash lookups that compiled programs call directly.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ring3_layout::map::MapHeader;

use crate::geometry::{BUCKET_BYTES, ELEMENT_KEY_OFFSET, Geometry, HashLayout, WORDS_OFFSET};
use crate::hash::{END, RESTARTS_MAX, WALK_MAX, hash_bytes, hash_word, hash_words};

/// A mapped map: base of the file's first byte, and the geometry that bounds every access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    base: *mut u8,
    pub(crate) geometry: Geometry,
}

// SAFETY: what is shared between threads and processes is accessed by atomics, or as bytes that may be torn
// as a map's values may be in the kernel.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `base..base + geometry.file_bytes()` stays mapped, readable and (for operations that write) writable as
    /// long as the value is used.
    pub(crate) unsafe fn new(base: *mut u8, geometry: Geometry) -> Memory {
        Memory { base, geometry }
    }

    /// The map whose header is at `header` in this process; `None` if that is no header.
    ///
    /// # Safety
    /// `header` is the address of a mapped map's header, mapped as a whole.
    pub(crate) unsafe fn from_header(header: u64) -> Option<Memory> {
        // SAFETY: the caller says that a MapHeader is mapped there; it is page-aligned.
        let read = unsafe { (header as *const MapHeader).read_volatile() };
        let geometry = Geometry::from_header(&read)?;
        Some(Memory { base: header.checked_sub(geometry.header.data_bytes)? as *mut u8, geometry })
    }

    /// Writes the header (into zeroed memory).
    pub(crate) fn write_header(&self) {
        let header = self.pointer(self.private(0), size_of::<MapHeader>() as u64).cast::<MapHeader>();
        if !header.is_null() {
            // SAFETY: `pointer` proved room; the private area is page-aligned.
            unsafe { header.write(self.geometry.header) };
        }
    }

    /// Offset in the file of an offset in the private area.
    pub(crate) fn private(&self, offset: u64) -> u64 {
        self.geometry.header.data_bytes + offset
    }

    /// Offset in the file of the type's own word `index`.
    pub(crate) fn own_word(&self, index: u64) -> u64 {
        self.private(WORDS_OFFSET + index * 8)
    }

    /// Address of `bytes` bytes at `offset` of the file; null if they are not all in it.
    pub(crate) fn pointer(&self, offset: u64, bytes: u64) -> *mut u8 {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.geometry.file_bytes() => self.base.wrapping_add(offset as usize),
            _ => core::ptr::null_mut(),
        }
    }

    /// Offset in the file of an address in the map's memory.
    pub(crate) fn offset_of(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.base as u64).filter(|offset| *offset < self.geometry.file_bytes())
    }

    /// The offset if a word of `bytes` bytes is there, else that of a reserved word of the header: the agent has
    /// no memory of its own for a dummy.
    fn checked(&self, offset: u64, bytes: u64) -> usize {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.geometry.file_bytes());
        let spare = self.private(size_of::<MapHeader>() as u64 - 8);
        if inside && offset.is_multiple_of(bytes) { offset as usize } else { spare as usize }
    }

    /// The atomic word at `offset`, which the geometry says is there.
    pub(crate) fn word32(&self, offset: u64) -> &AtomicU32 {
        let pointer = self.base.wrapping_add(self.checked(offset, 4));
        // SAFETY: inside the mapping, aligned (the base is page-aligned), and atomics are valid for any bytes.
        unsafe { AtomicU32::from_ptr(pointer.cast()) }
    }

    /// As [`Memory::word32`], 64 bits.
    pub(crate) fn word64(&self, offset: u64) -> &AtomicU64 {
        let pointer = self.base.wrapping_add(self.checked(offset, 8));
        // SAFETY: as in word32.
        unsafe { AtomicU64::from_ptr(pointer.cast()) }
    }

    /// `N` words at `offset`, if they are in the file: checked once, read as one likes.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, offset: u64) -> Option<&[AtomicU64; N]> {
        let inside = offset.checked_add(N as u64 * 8).is_some_and(|end| end <= self.geometry.file_bytes());
        let pointer: *const [AtomicU64; N] = self.base.wrapping_add(offset as usize).cast();
        // SAFETY: inside the mapping, aligned (the base is page-aligned), and atomics are valid for any bytes.
        (inside && offset.is_multiple_of(8)).then(|| unsafe { &*pointer })
    }

    /// Copies from the map to `out`; true if the bytes are in the file.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let pointer = self.pointer(offset, out.len() as u64);
        if pointer.is_null() {
            return false;
        }
        // SAFETY: `pointer` proved the source; the destination is a distinct Rust slice.
        unsafe { core::ptr::copy_nonoverlapping(pointer, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies `bytes` into the map; true if they fit into the file.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let pointer = self.pointer(offset, bytes.len() as u64);
        if pointer.is_null() {
            return false;
        }
        // SAFETY: `pointer` proved the destination; the source is a distinct Rust slice, or part of another map.
        unsafe { core::ptr::copy(bytes.as_ptr(), pointer, bytes.len()) };
        true
    }

    /// Fills with zeros.
    pub(crate) fn clear(&self, offset: u64, bytes: u64) {
        let pointer = self.pointer(offset, bytes);
        if !pointer.is_null() {
            // SAFETY: `pointer` proved the destination.
            unsafe { core::ptr::write_bytes(pointer, 0, bytes as usize) };
        }
    }

    /// Whether the bytes at `offset` equal `bytes`.
    pub(crate) fn equals(&self, offset: u64, bytes: &[u8]) -> bool {
        let pointer = self.pointer(offset, bytes.len() as u64);
        if pointer.is_null() {
            return false;
        }
        // SAFETY: `pointer` proved the range. Others may write there at the same time; a torn read is a mismatch or
        // a match that was true a moment ago.
        let there = unsafe { core::slice::from_raw_parts(pointer, bytes.len()) };
        there == bytes
    }
}

/// A program's key or value: `bytes` readable bytes at `address`.
///
/// # Safety
/// The verifier proved that the program may read `bytes` bytes at `address`.
pub(crate) unsafe fn program_bytes<'a>(address: u64, bytes: usize) -> &'a [u8] {
    // SAFETY: the caller passes on the verifier's proof.
    unsafe { core::slice::from_raw_parts(address as *const u8, bytes) }
}

/// Where a program wants a value: `bytes` writable bytes at `address`.
///
/// # Safety
/// The verifier proved that the program may write `bytes` bytes at `address`.
pub(crate) unsafe fn program_bytes_mut<'a>(address: u64, bytes: usize) -> &'a mut [u8] {
    // SAFETY: the caller passes on the verifier's proof.
    unsafe { core::slice::from_raw_parts_mut(address as *mut u8, bytes) }
}

/// Words of a hash map's private area that specialised lookups load; see `hash.rs`.
#[inline(always)]
unsafe fn lookup(header: u64, hash: u32, same: impl Fn(u64) -> bool) -> u64 {
    let words = header + WORDS_OFFSET;
    // SAFETY: the caller passes the address of a mapped hash map's header, whose words follow it.
    let layout = unsafe { (words as *const HashLayout).read() };
    let bucket = hash & layout.bucket_mask;
    let tables = header + WORDS_OFFSET + crate::geometry::WORDS_BYTES;
    for _ in 0..RESTARTS_MAX {
        let head = tables + u64::from(bucket) * BUCKET_BYTES;
        // SAFETY: the bucket index is masked, so the head lies in the bucket table.
        let mut link = unsafe { AtomicU32::from_ptr(head as *mut u32) }.load(Ordering::Acquire);
        let mut steps = 0;
        while link & END == 0 && link != 0 && steps < WALK_MAX {
            let index = u64::from(link - 1);
            let element = header + layout.elements + index * layout.element_stride;
            // SAFETY: links are written by map operations only and name elements of this map.
            let element_hash = unsafe { AtomicU32::from_ptr((element + 4) as *mut u32) }.load(Ordering::Relaxed);
            if element_hash == hash && same(element + ELEMENT_KEY_OFFSET) {
                return header + layout.values + index * layout.value_stride;
            }
            // SAFETY: as above.
            link = unsafe { AtomicU32::from_ptr(element as *mut u32) }.load(Ordering::Acquire);
            steps += 1;
        }
        if link == 0 || link == END | bucket {
            return 0;
        }
    }
    0
}

/// Looks up a 4-byte key in a (not per-CPU) hash map: the value's address, or 0.
///
/// # Safety
/// `header` is the address of such a map's header in this process, `key` of 4 readable bytes.
#[inline]
pub unsafe fn hash_lookup_4(header: u64, key: u64) -> u64 {
    // SAFETY: the caller proved 4 readable bytes.
    let wanted = unsafe { (key as *const u32).read_unaligned() };
    // SAFETY: `lookup` passes the address of a key of this map, 4 bytes.
    let same = |at: u64| unsafe { (at as *const u32).read_unaligned() } == wanted;
    // SAFETY: the header is the caller's.
    unsafe { lookup(header, hash_word(u64::from(wanted)), same) }
}

/// Looks up an 8-byte key; see [`hash_lookup_4`].
///
/// # Safety
/// As for [`hash_lookup_4`], with 8 bytes.
#[inline]
pub unsafe fn hash_lookup_8(header: u64, key: u64) -> u64 {
    // SAFETY: the caller proved 8 readable bytes.
    let wanted = unsafe { (key as *const u64).read_unaligned() };
    // SAFETY: `lookup` passes the address of a key of this map, 8 bytes.
    let same = |at: u64| unsafe { (at as *const u64).read_unaligned() } == wanted;
    // SAFETY: the header is the caller's.
    unsafe { lookup(header, hash_word(wanted), same) }
}

/// Looks up a 16-byte key; see [`hash_lookup_4`].
///
/// # Safety
/// As for [`hash_lookup_4`], with 16 bytes.
#[inline]
pub unsafe fn hash_lookup_16(header: u64, key: u64) -> u64 {
    // SAFETY: the caller proved 16 readable bytes.
    let wanted = unsafe { (key as *const [u64; 2]).read_unaligned() };
    let hash = hash_words(wanted);
    // SAFETY: `lookup` passes the address of a key of this map, 16 bytes.
    let same = |at: u64| unsafe { (at as *const [u64; 2]).read_unaligned() } == wanted;
    // SAFETY: the header is the caller's.
    unsafe { lookup(header, hash, same) }
}

/// The hash of a key of any length, equal to the specialised ones for 4, 8 and 16 bytes.
pub(crate) fn hash_key(key: &[u8]) -> u32 {
    hash_bytes(key)
}
