//! The memory of one map: every access goes through [`Memory`], which checks offsets against the geometry.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64};

use ring3_layout::map::{MAP_MAGIC, WORDS_OFFSET};
use ring3_layout::ring::{READER_OFFSET, ReaderWords};
use ring3_uapi::flags::BPF_RINGBUF_HDR_SZ;

use crate::geometry::{Geometry, View};
use crate::ring::{CONSUMER_AT, DATA_AT, PRODUCER_AT};

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

/// The nodes of a pool: a value of its own, which stays in registers whatever the atomics do. What is counted in words, is
/// counted from the private area's start.
#[derive(Clone, Copy)]
pub(crate) struct Nodes<'g, const N: usize> {
    area: *mut u64,
    /// The first node's word, and how many words from it to the last's.
    first: u64,
    span: u64,
    geometry: PhantomData<&'g Geometry>,
}

impl<'g, const N: usize> Nodes<'g, N> {
    /// The first words of the node at the word `index`, if one can be there.
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> Option<&'g [AtomicU64; N]> {
        let index = u64::from(index);
        let inside = index.wrapping_sub(self.first) <= self.span;
        let pointer: *const [AtomicU64; N] = self.area.wrapping_add(index as usize).cast();
        // SAFETY: between the first and the last node there is room for `N` words of a node; aligned (the private area is
        // page-aligned), and atomics are valid for any bytes.
        inside.then(|| unsafe { &*pointer })
    }
}

/// A ring buffer's own words.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RingWriters {
    /// Who reserves.
    pub(crate) lock: AtomicU32,
    _padding: AtomicU32,
    /// The position that its owner is about to reserve, and 1; or 0.
    pub(crate) intended: AtomicU64,
    /// Bytes of data to be reserved there.
    pub(crate) intended_bytes: AtomicU64,
}

/// A ring buffer's memory, whose geometry was looked at once: positions, which may be any, lead to places in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory<'g> {
    pub(crate) writers: &'g RingWriters,
    pub(crate) consumer: &'g AtomicU64,
    pub(crate) producer: &'g AtomicU64,
    /// First of twice as many bytes as a power of two less `mask`.
    data: *mut u8,
    mask: u64,
}

// SAFETY: as for Memory.
unsafe impl Send for RingMemory<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for RingMemory<'_> {}

impl<'g> RingMemory<'g> {
    /// Bytes of the buffer.
    pub(crate) fn size(&self) -> u64 {
        self.mask + 1
    }

    /// Offset in the data of the record at a position.
    fn place(&self, position: u64) -> usize {
        (position & self.mask & !7) as usize
    }

    /// A header's length and flags, and its record's owner.
    #[inline(always)]
    pub(crate) fn header(&self, position: u64) -> &'g [AtomicU32; 2] {
        let pointer: *const [AtomicU32; 2] = self.data.wrapping_add(self.place(position)).cast();
        // SAFETY: a place lies before the mask's end, behind which there is as much again; aligned, and atomics are valid
        // for any bytes.
        unsafe { &*pointer }
    }

    /// Address of the data of the record at a position.
    #[inline(always)]
    pub(crate) fn address(&self, position: u64) -> u64 {
        self.data.wrapping_add(self.place(position)) as u64 + u64::from(BPF_RINGBUF_HDR_SZ)
    }

    /// What reader and writers tell each other, in the consumer's page.
    pub(crate) fn reader(&self) -> &'g ReaderWords {
        let pointer: *const ReaderWords =
            self.data.wrapping_sub((DATA_AT - CONSUMER_AT - READER_OFFSET) as usize).cast();
        // SAFETY: in the first page of the file, aligned, and atomics are valid for any bytes.
        unsafe { &*pointer }
    }

    /// The position in the buffer of the record whose data is at this address.
    #[inline(always)]
    pub(crate) fn position_of(&self, address: u64) -> Option<u64> {
        let at = address.wrapping_sub(self.data as u64 + u64::from(BPF_RINGBUF_HDR_SZ));
        (at <= self.mask).then_some(at)
    }

    /// Copies a record's data to `out`, if that is not longer than the buffer.
    pub(crate) fn read(&self, position: u64, out: &mut [u8]) {
        if out.len() as u64 + u64::from(BPF_RINGBUF_HDR_SZ) <= self.size() {
            let data = self.address(position) as *const u8;
            // SAFETY: from a place on there is as much as the buffer has; the destination is a distinct Rust slice.
            unsafe { core::ptr::copy_nonoverlapping(data, out.as_mut_ptr(), out.len()) };
        }
    }

    /// Writes a record's data, if that is not longer than the buffer.
    #[inline(always)]
    pub(crate) fn write(&self, position: u64, bytes: &[u8]) {
        if bytes.len() as u64 + u64::from(BPF_RINGBUF_HDR_SZ) <= self.size() {
            let data = self.address(position) as *mut u8;
            // SAFETY: from a place on there is as much as the buffer has; the source is a distinct slice, or part of another map.
            unsafe { core::ptr::copy(bytes.as_ptr(), data, bytes.len()) };
        }
    }
}

impl<'g> Memory<'g> {
    /// As a ring buffer; `None` if its geometry is not one's.
    #[inline(always)]
    pub(crate) fn ring(&self) -> Option<RingMemory<'g>> {
        let size = u64::from(self.geometry.header.max_entries);
        let private = self.geometry.header.data_bytes;
        let fits = size.is_power_of_two() && size >= 8 && private == DATA_AT + 2 * size;
        let at = |offset: u64| self.base.wrapping_add(offset as usize);
        if !fits || private + WORDS_OFFSET + size_of::<RingWriters>() as u64 > self.geometry.file_bytes() {
            return None;
        }
        let pointer: *const RingWriters = at(private + WORDS_OFFSET).cast();
        // SAFETY: as in word64: these own words are in the file, as was seen.
        let writers = unsafe { &*pointer };
        // SAFETY: as in word64: the positions lie before the data.
        let consumer = unsafe { AtomicU64::from_ptr(at(CONSUMER_AT).cast()) };
        // SAFETY: as above.
        let producer = unsafe { AtomicU64::from_ptr(at(PRODUCER_AT).cast()) };
        Some(RingMemory { writers, consumer, producer, data: at(DATA_AT), mask: size - 1 })
    }

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

    /// Stores `new` at `offset` if `old` is there still; whether it did. Who calls it holds the lock that keeps all others
    /// away but the signal handlers of its own thread, against which one instruction is enough, without the `lock` prefix.
    #[inline(always)]
    pub(crate) fn replace32(&self, offset: u64, old: u32, new: u32) -> bool {
        let pointer = self.word32(offset).as_ptr();
        let done: u8;
        // SAFETY: an aligned word inside the mapping; x86-64 stores are releases.
        unsafe {
            core::arch::asm!(
                "cmpxchg dword ptr [{pointer}], {new:e}",
                "sete {done}",
                pointer = in(reg) pointer,
                new = in(reg) new,
                done = out(reg_byte) done,
                inout("eax") old => _,
                options(nostack),
            );
        }
        done != 0
    }

    /// The nodes of its pool, of which `N` words are looked at; `None` if they have not that many.
    #[inline(always)]
    pub(crate) fn nodes<const N: usize>(&self) -> Option<Nodes<'g, N>> {
        let pool = &self.geometry.pool;
        let room = pool.stride as usize >= N * 8;
        let area = self.base.wrapping_add(self.private(0) as usize).cast();
        let span = pool.last.checked_sub(pool.nodes).filter(|_| room)?;
        Some(Nodes { area, first: pool.nodes / 8, span: span / 8, geometry: PhantomData })
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

#[cfg(test)]
impl Memory<'static> {
    /// Memory of its own, which stays.
    pub(crate) fn fresh(attributes: &crate::Attributes) -> Memory<'static> {
        extern crate std;
        let geometry = std::boxed::Box::leak(std::boxed::Box::new(Geometry::new(attributes).expect("valid")));
        let words = std::vec![0u64; geometry.file_bytes().div_ceil(8) as usize].leak();
        // SAFETY: as many bytes, which are never freed.
        unsafe { Memory::new(words.as_mut_ptr().cast(), geometry) }
    }
}
