//! The memory of one map: every access goes through [`Memory`], which checks offsets against the geometry.

use core::sync::atomic::{AtomicU32, AtomicU64};

use ring3_layout::map::MAP_MAGIC;

use crate::geometry::{Geometry, View, WORDS_OFFSET};

/// A mapped map: base of the file's first byte, and the geometry that bounds every access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory<'g> {
    base: *mut u8,
    pub(crate) geometry: &'g Geometry,
}

// SAFETY: what is shared between threads and processes is accessed by atomics, or as bytes that may be torn
// as a map's values may be in the kernel.
unsafe impl Send for Memory<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Memory<'_> {}

impl<'g> Memory<'g> {
    /// # Safety
    /// `base..base + geometry.file_bytes()` stays mapped, readable and (for operations that write) writable as
    /// long as the value is used.
    pub(crate) unsafe fn new(base: *mut u8, geometry: &'g Geometry) -> Memory<'g> {
        Memory { base, geometry }
    }

    /// The map that is seen by the view at `view`; `None` if there is none.
    ///
    /// # Safety
    /// `view` is the address of a view of a mapped map, which stays mapped for as long as the value is used.
    #[inline(always)]
    pub(crate) unsafe fn from_view(view: u64) -> Option<Memory<'g>> {
        // SAFETY: the caller's promise; any bytes are a valid view.
        let view = unsafe { &*(view as *const View) };
        if view.geometry.header.magic != MAP_MAGIC {
            return None;
        }
        Some(Memory { base: view.base as *mut u8, geometry: &view.geometry })
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

    /// The offset if a word of `bytes` bytes is there, else that of a spare one before the own words: the agent has
    /// no memory of its own for a dummy.
    fn checked(&self, offset: u64, bytes: u64) -> usize {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.geometry.file_bytes());
        let spare = self.private(WORDS_OFFSET - 8);
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

    /// The first `N` words of the node of a pool that is at `at`, words from the private area's start times 8, if one can be there.
    #[inline(always)]
    pub(crate) fn node<const N: usize>(&self, at: u64) -> Option<&'g [AtomicU64; N]> {
        let pool = &self.geometry.pool;
        let inside = at.wrapping_sub(pool.nodes) <= pool.last.wrapping_sub(pool.nodes);
        let room = pool.stride as usize >= N * 8 && pool.nodes <= pool.last;
        let pointer: *const [AtomicU64; N] = self.base.wrapping_add(self.private(at) as usize).cast();
        // SAFETY: between the first and the last node there is room for a node's words; aligned (the private area is
        // page-aligned, `at` a multiple of 8), and atomics are valid for any bytes.
        (inside && room).then(|| unsafe { &*pointer })
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
        same(there, bytes)
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

/// Whether two slices of one length are equal, word by word.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    let ((words_a, rest_a), (words_b, rest_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let words = words_a.iter().zip(words_b).all(|(x, y)| u64::from_le_bytes(*x) == u64::from_le_bytes(*y));
    let ((half_a, rest_a), (half_b, rest_b)) = (rest_a.as_chunks::<4>(), rest_b.as_chunks::<4>());
    let half = half_a.iter().zip(half_b).all(|(x, y)| u32::from_le_bytes(*x) == u32::from_le_bytes(*y));
    words && half && rest_a.iter().zip(rest_b).all(|(x, y)| x == y)
}
