//! A map of any type: what programs and bpf(2) do with it.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::map::MapHeader;
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::BPF_NOEXIST;

use crate::Context;
use crate::array::Array;
use crate::bloom::Bloom;
use crate::check::{Census, Damage};
use crate::geometry::{Geometry, is_hash, is_of_objects};
use crate::hash::Hash;
use crate::queue::Queue;
use crate::raw_memory::{Memory, program_bytes, program_bytes_mut};
use crate::ring::Ring;
use crate::stacks::Stacks;
use crate::trie::Trie;
use crate::user_ring::UserRing;

/// A mapped map.
#[derive(Clone, Copy, Debug)]
pub struct Map<'g> {
    memory: Memory<'g>,
}

enum Kind<'m> {
    Hash(Hash<'m>),
    Array(Array<'m>),
    Objects(Array<'m>),
    Queue(Queue<'m>),
    Bloom(Bloom<'m>),
    Trie(Trie<'m>),
    Stacks(Stacks<'m>),
    Other,
}

impl<'g> Map<'g> {
    /// A map, in memory that was zeroed when it was made, and that may be hostile.
    ///
    /// # Safety
    /// `base` is the start of a mapping of `geometry.file_bytes()` bytes that outlives the value.
    pub unsafe fn trusted(base: *mut u8, geometry: &'g Geometry) -> Map<'g> {
        // SAFETY: the caller's promise.
        Map { memory: unsafe { Memory::new(base, geometry) } }
    }

    /// A map as a program holds it: by the address of its view.
    ///
    /// # Safety
    /// `view` is the address of a mapped map's view.
    #[inline(always)]
    pub unsafe fn from_view(view: u64) -> Option<Map<'g>> {
        // SAFETY: the caller's promise.
        Some(Map { memory: unsafe { Memory::from_view(view) }? })
    }

    /// The header as the geometry has it.
    pub fn header(&self) -> &MapHeader {
        &self.memory.geometry.header
    }

    /// Sizes and offsets.
    pub fn geometry(&self) -> &Geometry {
        self.memory.geometry
    }

    /// The ring buffer in it.
    pub fn ring(&self) -> Option<Ring<'g>> {
        self.memory.ring().filter(|_| self.header().map_type == map_type::RINGBUF).map(Ring)
    }

    /// The user ring buffer in it.
    pub fn user_ring(&self) -> Option<UserRing<'g>> {
        (self.header().map_type == map_type::USER_RINGBUF).then_some(UserRing::new(self.memory))
    }

    /// Takes away what dead owners left: locks, records never submitted, elements in hand. True if a ring buffer's
    /// consumer should be woken. `is_dead` judges owners of any pid namespace; `touched` says what part of the file
    /// at or behind an offset is the next one that has memory, so that memory never touched stays so.
    pub fn reclaim_dead_owner(
        &self,
        cx: &Context,
        is_dead: impl Fn(u32) -> bool,
        touched: impl Fn(u64) -> Range<u64>,
    ) -> bool {
        match self.kind() {
            Kind::Hash(hash) => hash.reclaim_dead_owner(cx, is_dead, touched),
            Kind::Queue(queue) => queue.reclaim_dead_owner(is_dead),
            Kind::Trie(trie) => trie.pool().reclaim_dead_owner(is_dead),
            Kind::Stacks(stacks) => stacks.pool().reclaim_dead_owner(is_dead),
            Kind::Array(_) | Kind::Objects(_) | Kind::Bloom(_) => {}
            Kind::Other => {
                if let Some(ring) = self.user_ring() {
                    ring.reclaim_dead_owner(&is_dead);
                }
                return self.ring().is_some_and(|ring| ring.discard_dead(cx, is_dead));
            }
        }
        false
    }

    /// Waits for locks of this map that were given up, ever.
    pub fn gave_up(&self) -> u64 {
        match self.kind() {
            Kind::Hash(hash) => hash.gave_up(),
            Kind::Queue(queue) => queue.gave_up(),
            Kind::Trie(trie) => trie.pool().gave_up(),
            Kind::Stacks(stacks) => stacks.pool().gave_up(),
            Kind::Array(_) | Kind::Objects(_) | Kind::Bloom(_) | Kind::Other => 0,
        }
    }

    /// Walks every structure of the map and counts; nobody else operates on it meanwhile. For tests.
    ///
    /// # Errors
    /// The first thing that no sequence of operations and deaths can have made.
    pub fn check(&self) -> Result<Census, Damage> {
        match self.kind() {
            Kind::Hash(hash) => hash.check(),
            Kind::Queue(queue) => queue.check(),
            Kind::Trie(trie) => trie.check(),
            Kind::Stacks(stacks) => stacks.check(),
            _ => self.ring().map_or(Ok(Census::default()), |ring| ring.check()),
        }
    }

    fn kind(&self) -> Kind<'_> {
        match self.header().map_type {
            t if is_hash(t) => Kind::Hash(Hash(&self.memory)),
            map_type::ARRAY | map_type::PERCPU_ARRAY => Kind::Array(Array(&self.memory)),
            t if is_of_objects(t) => Kind::Objects(Array(&self.memory)),
            map_type::QUEUE | map_type::STACK => Kind::Queue(Queue(&self.memory)),
            map_type::BLOOM_FILTER => Kind::Bloom(Bloom(&self.memory)),
            map_type::LPM_TRIE => Kind::Trie(Trie(&self.memory)),
            map_type::STACK_TRACE => Kind::Stacks(Stacks(&self.memory)),
            _ => Kind::Other,
        }
    }

    fn check_key<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Errno> {
        if key.len() == self.header().key_size as usize { Ok(key) } else { Err(Errno::EINVAL) }
    }

    /// Whether its elements are maps.
    pub fn is_of_maps(&self) -> bool {
        matches!(self.header().map_type, map_type::ARRAY_OF_MAPS | map_type::HASH_OF_MAPS)
    }

    // ---- from programs ----

    /// `bpf_map_lookup_elem`: address of the value (of this CPU's copy), or 0.
    ///
    /// # Safety
    /// The program may read `key_size` bytes at `key`.
    pub unsafe fn lookup(&self, key: u64, cpu: u32) -> u64 {
        // SAFETY: the caller's promise.
        let key = unsafe { program_bytes(key, self.header().key_size as usize) };
        let offset = match self.kind() {
            Kind::Hash(hash) => hash.find(key).map(|index| {
                if self.geometry().is_lru() {
                    hash.touch(index);
                }
                hash.value_at(index, cpu)
            }),
            Kind::Array(array) => array.index(key).map(|index| array.value_at(index, cpu)),
            Kind::Objects(array) if self.is_of_maps() => array.index(key).map(|index| array.object_at(index)),
            Kind::Trie(trie) => trie.find(key),
            Kind::Objects(_) | Kind::Queue(_) | Kind::Bloom(_) | Kind::Stacks(_) | Kind::Other => None,
        };
        let bytes = u64::from(self.header().value_size);
        offset.map_or(0, |offset| self.memory.pointer(offset, bytes) as u64)
    }

    /// `bpf_map_update_elem`.
    ///
    /// # Safety
    /// The program may read `key_size` bytes at `key` and `value_size` bytes at `value`.
    pub unsafe fn update(&self, cx: &Context, key: u64, value: u64, flags: u64) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let key = unsafe { program_bytes(key, self.header().key_size as usize) };
        // SAFETY: the caller's promise.
        let value = unsafe { program_bytes(value, self.header().value_size as usize) };
        match self.kind() {
            Kind::Hash(hash) => hash.update_or_evict(cx, key, flags, |index, fresh| {
                if fresh {
                    self.clear_other_cpus(&hash, index, cx.cpu);
                }
                self.memory.write(hash.value_at(index, cx.cpu), value);
            }),
            Kind::Array(array) => {
                let index = array.check_update(key, flags)?;
                self.memory.write(array.value_at(index, cx.cpu), value);
                Ok(())
            }
            Kind::Trie(trie) => trie.update(cx, key, value, flags),
            Kind::Objects(_) | Kind::Queue(_) | Kind::Bloom(_) | Kind::Stacks(_) | Kind::Other => Err(Errno::EINVAL),
        }
    }

    /// `bpf_map_lookup_percpu_elem`: address of the value for `cpu`, or 0. Mirrors
    /// kernel/bpf/hashtab.c:htab_percpu_map_lookup_percpu_elem.
    ///
    /// # Safety
    /// As for [`Map::lookup`].
    pub unsafe fn lookup_percpu(&self, key: u64, cpu: u32) -> u64 {
        if cpu >= self.header().cpus {
            return 0;
        }
        // SAFETY: the caller's promise.
        unsafe { self.lookup(key, cpu) }
    }

    /// `bpf_map_sum_elem_count`: elements of a hash, 0 for other types. Mirrors
    /// kernel/bpf/map_iter.c:bpf_map_sum_elem_count.
    pub fn count(&self) -> u64 {
        if let Kind::Hash(hash) = self.kind() { hash.count() } else { 0 }
    }

    /// `bpf_get_stackid` of a stack's addresses; `flags` are `BPF_F_FAST_STACK_CMP` and `BPF_F_REUSE_STACKID`.
    ///
    /// # Errors
    /// `EFAULT` without addresses, `EEXIST` if another stack has the id, `ENOMEM` from a full map, `EBUSY` if its lock
    /// cannot be had, `EINVAL` if this is no stack map.
    pub fn stack_id(&self, cx: &Context, addresses: &[u64], flags: u64) -> Result<u32, Errno> {
        match self.kind() {
            Kind::Stacks(stacks) => stacks.id(cx, addresses, flags),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Addresses that a stack map keeps of a stack at most; 0 for other maps.
    pub fn stack_depth(&self) -> usize {
        if let Kind::Stacks(stacks) = self.kind() { stacks.depth() } else { 0 }
    }

    /// `bpf_map_push_elem`.
    ///
    /// # Safety
    /// The program may read `value_size` bytes at `value`.
    pub unsafe fn push(&self, cx: &Context, value: u64, flags: u64) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let value = unsafe { program_bytes(value, self.header().value_size as usize) };
        self.user_push(cx, value, flags)
    }

    /// `bpf_map_pop_elem`.
    ///
    /// # Safety
    /// The program may write `value_size` bytes at `value`.
    pub unsafe fn pop(&self, cx: &Context, value: u64) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let value = unsafe { program_bytes_mut(value, self.header().value_size as usize) };
        self.user_pop(cx, value)
    }

    /// `bpf_map_peek_elem`.
    ///
    /// # Safety
    /// The program may read and write `value_size` bytes at `value`.
    pub unsafe fn peek(&self, cx: &Context, value: u64) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let value = unsafe { program_bytes_mut(value, self.header().value_size as usize) };
        self.user_peek(cx, value)
    }

    /// Mirrors kernel/bpf/hashtab.c:pcpu_init_value: a new element is zero on all other CPUs.
    fn clear_other_cpus(&self, hash: &Hash<'_>, index: u32, own: u32) {
        let bytes = u64::from(self.header().stride);
        for cpu in (0..self.header().cpus).filter(|cpu| *cpu != own) {
            self.memory.clear(hash.value_at(index, cpu), bytes);
        }
    }

    /// `bpf_map_delete_elem`.
    ///
    /// # Safety
    /// The program may read `key_size` bytes at `key`.
    pub unsafe fn delete(&self, cx: &Context, key: u64) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let key = unsafe { program_bytes(key, self.header().key_size as usize) };
        self.user_delete(cx, key)
    }

    /// `bpf_for_each_map_elem`: calls `visit` with the addresses of each key and value (this CPU's) until it says false;
    /// how many elements it saw. Elements may be added and deleted meanwhile.
    pub fn for_each(&self, cpu: u32, mut visit: impl FnMut(u64, u64) -> bool) -> Result<u64, Errno> {
        let (key_bytes, value_bytes) = (u64::from(self.header().key_size), u64::from(self.header().value_size));
        let mut seen = 0;
        match self.kind() {
            Kind::Hash(hash) => hash.for_each(|index| {
                seen += 1;
                let key = self.memory.pointer(hash.key_at(index), key_bytes) as u64;
                let value = self.memory.pointer(hash.value_at(index, cpu), value_bytes) as u64;
                key != 0 && value != 0 && visit(key, value)
            }),
            Kind::Array(array) => {
                for index in 0..self.header().max_entries {
                    let value = self.memory.pointer(array.value_at(index, cpu), value_bytes) as u64;
                    seen += 1;
                    if value == 0 || !visit(&raw const index as u64, value) {
                        break;
                    }
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(seen)
    }

    /// `bpf_task_storage_get`: address of a thread's value, which with `create` is made of `value` (0: zeros) if there is
    /// none; 0 without one.
    ///
    /// # Safety
    /// The program may read `value_size` bytes at `value`, unless that is 0.
    pub unsafe fn task_value(&self, cx: &Context, thread: u32, value: u64, create: bool) -> u64 {
        let Kind::Hash(hash) = self.kind() else { return 0 };
        let (key, bytes) = (thread.to_le_bytes(), u64::from(self.header().value_size));
        // SAFETY: a key of 4 bytes, as this type's are.
        let find = || unsafe { self.lookup(key.as_ptr() as u64, 0) };
        let there = find();
        if there != 0 || !create {
            return there;
        }
        let write = |index, _| {
            if value == 0 {
                self.memory.clear(hash.value_at(index, 0), bytes);
            } else {
                // SAFETY: the caller's promise.
                self.memory.write(hash.value_at(index, 0), unsafe { program_bytes(value, bytes as usize) });
            }
        };
        if hash.update_or_evict(cx, &key, BPF_NOEXIST, write).is_err() { 0 } else { find() }
    }

    /// For arrays of objects: the number stored at `index`, 0 for none; `E2BIG` beyond the end.
    pub fn object(&self, index: u32) -> Result<u32, Errno> {
        match self.kind() {
            Kind::Objects(array) if index < self.header().max_entries => Ok(array.object(index)),
            Kind::Objects(_) => Err(Errno::E2BIG),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Stores an object's number (0: none) and returns the old one.
    pub fn set_object(&self, index: u32, object: u32) -> Result<u32, Errno> {
        let old = self.object(index)?;
        if let Kind::Objects(array) = self.kind() {
            array.set_object(index, object);
        }
        Ok(old)
    }

    // ---- of the data that loaders map ----

    /// Copies from the data area, if all of it is there.
    pub fn read_data(&self, offset: u64, out: &mut [u8]) -> bool {
        self.is_data(offset, out.len()) && self.memory.read(offset, out)
    }

    /// Copies into the data area, if all of it is there.
    pub fn write_data(&self, offset: u64, bytes: &[u8]) -> bool {
        self.is_data(offset, bytes.len()) && self.memory.write(offset, bytes)
    }

    /// Adds to a word of 4 or 8 bytes of the data area.
    pub fn add_to_data(&self, offset: u64, bytes: usize, number: u64) {
        match bytes {
            _ if !self.is_data(offset, bytes) => {}
            4 => drop(self.memory.word32(offset).fetch_add(number as u32, Relaxed)),
            8 => drop(self.memory.word64(offset).fetch_add(number, Relaxed)),
            _ => {}
        }
    }

    fn is_data(&self, offset: u64, bytes: usize) -> bool {
        offset.checked_add(bytes as u64).is_some_and(|end| end <= self.header().data_bytes)
    }

    // ---- from bpf(2) ----

    /// `BPF_MAP_UPDATE_ELEM` of types without keys.
    pub fn user_push(&self, cx: &Context, value: &[u8], flags: u64) -> Result<(), Errno> {
        match self.kind() {
            Kind::Queue(queue) => queue.push(cx, value, flags),
            Kind::Bloom(bloom) => bloom.push(value, flags),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM` of types without keys.
    pub fn user_pop(&self, cx: &Context, out: &mut [u8]) -> Result<(), Errno> {
        match self.kind() {
            Kind::Queue(queue) => queue.pop(cx, out),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// `BPF_MAP_LOOKUP_ELEM` of types without keys: a queue gives a value, a Bloom filter is asked for one.
    pub fn user_peek(&self, cx: &Context, value: &mut [u8]) -> Result<(), Errno> {
        match self.kind() {
            Kind::Queue(queue) => queue.peek(cx, value),
            Kind::Bloom(bloom) => bloom.peek(value),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Whether elements have no keys: they are pushed, popped and peeked at.
    pub fn is_keyless(&self) -> bool {
        matches!(self.kind(), Kind::Queue(_) | Kind::Bloom(_))
    }

    /// `BPF_MAP_LOOKUP_ELEM`: copies the value, all CPUs' copies for per-CPU types. `out` has
    /// [`Geometry::user_value_bytes`] bytes.
    pub fn user_lookup(&self, key: &[u8], out: &mut [u8]) -> Result<(), Errno> {
        let key = self.check_key(key)?;
        match self.kind() {
            Kind::Hash(hash) => {
                let index = hash.find(key).ok_or(Errno::ENOENT)?;
                self.copy_out(|cpu| hash.value_at(index, cpu), out)
            }
            Kind::Array(array) => {
                let index = array.index(key).ok_or(Errno::ENOENT)?;
                self.copy_out(|cpu| array.value_at(index, cpu), out)
            }
            Kind::Trie(trie) => {
                let out = out.get_mut(..self.header().value_size as usize).ok_or(Errno::EINVAL)?;
                trie.copy(key, out)
            }
            Kind::Stacks(stacks) => stacks.copy(key, out),
            Kind::Queue(_) | Kind::Bloom(_) => Err(Errno::ENOENT),
            Kind::Objects(_) | Kind::Other => Err(Errno::ENOTSUPP),
        }
    }

    fn copy_out(&self, offset: impl Fn(u32) -> u64, out: &mut [u8]) -> Result<(), Errno> {
        let value = self.header().value_size as usize;
        if !self.geometry().is_per_cpu() {
            self.memory.read(offset(0), out.get_mut(..value).ok_or(Errno::EINVAL)?);
            return Ok(());
        }
        let stride = self.header().stride as usize;
        for (cpu, chunk) in out.chunks_exact_mut(stride).enumerate().take(self.header().cpus as usize) {
            self.memory.read(offset(cpu as u32), chunk);
        }
        Ok(())
    }

    /// `BPF_MAP_UPDATE_ELEM` with the whole value, all CPUs' copies for per-CPU types.
    pub fn user_update(&self, cx: &Context, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let key = self.check_key(key)?;
        if value.len() < self.geometry().user_value_bytes() {
            return Err(Errno::EINVAL);
        }
        match self.kind() {
            Kind::Hash(hash) => {
                hash.update_or_evict(cx, key, flags, |index, _| self.copy_in(|cpu| hash.value_at(index, cpu), value))
            }
            Kind::Array(array) => {
                let index = array.check_update(key, flags)?;
                self.copy_in(|cpu| array.value_at(index, cpu), value);
                Ok(())
            }
            Kind::Trie(trie) => {
                let value = value.get(..self.header().value_size as usize).ok_or(Errno::EINVAL)?;
                trie.update(cx, key, value, flags)
            }
            Kind::Objects(_) | Kind::Stacks(_) => Err(Errno::EINVAL),
            Kind::Queue(_) | Kind::Bloom(_) | Kind::Other => Err(Errno::ENOTSUPP),
        }
    }

    /// Per-CPU values are copied in whole words, as kernel/bpf/hashtab.c:bpf_percpu_hash_update has it.
    fn copy_in(&self, offset: impl Fn(u32) -> u64, value: &[u8]) {
        let stride = if self.geometry().is_per_cpu() { self.header().stride } else { self.header().value_size };
        for (cpu, chunk) in value.chunks_exact(stride.max(1) as usize).enumerate().take(self.header().cpus as usize) {
            self.memory.write(offset(cpu as u32), chunk);
        }
    }

    /// `BPF_MAP_DELETE_ELEM`.
    pub fn user_delete(&self, cx: &Context, key: &[u8]) -> Result<(), Errno> {
        let key = self.check_key(key)?;
        match self.kind() {
            Kind::Hash(hash) => hash.delete(cx, key, |_| {}),
            Kind::Array(_) | Kind::Objects(_) | Kind::Queue(_) => Err(Errno::EINVAL),
            Kind::Bloom(_) => Err(Errno::EOPNOTSUPP),
            Kind::Trie(trie) => trie.delete(cx, key),
            Kind::Stacks(stacks) => stacks.delete(cx, key),
            Kind::Other => Err(Errno::ENOTSUPP),
        }
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`.
    pub fn user_lookup_and_delete(&self, cx: &Context, key: &[u8], out: &mut [u8]) -> Result<(), Errno> {
        let key = self.check_key(key)?;
        match self.kind() {
            Kind::Hash(hash) => {
                let mut copied = Ok(());
                hash.delete(cx, key, |index| {
                    copied = self.copy_out(|cpu| hash.value_at(index, cpu), out);
                })?;
                copied
            }
            Kind::Stacks(stacks) => stacks.take(cx, key, out),
            _ => Err(Errno::ENOTSUPP),
        }
    }

    /// For hash types: shows the keys of a bucket to `see`, each copied into `key`. False if others changed the bucket
    /// meanwhile so that it saw some of another one.
    pub fn user_bucket(&self, bucket: u32, key: &mut [u8], mut see: impl FnMut(&[u8])) -> bool {
        let Kind::Hash(hash) = self.kind() else { return true };
        bucket <= self.geometry().hash.bucket_mask
            && hash.visit(bucket, |element| {
                if hash.read_key(element, key) {
                    see(key);
                }
            })
    }

    /// `BPF_MAP_GET_NEXT_KEY`; `ENOENT` behind the last.
    pub fn user_next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        let key = key.map(|key| self.check_key(key)).transpose()?;
        let out = out.get_mut(..self.header().key_size as usize).ok_or(Errno::EINVAL)?;
        match self.kind() {
            Kind::Queue(_) => Err(Errno::EINVAL),
            Kind::Bloom(_) => Err(Errno::EOPNOTSUPP),
            Kind::Hash(hash) => {
                let next = hash.next(key).ok_or(Errno::ENOENT)?;
                if hash.read_key(next, out) { Ok(()) } else { Err(Errno::ENOENT) }
            }
            Kind::Array(array) | Kind::Objects(array) => {
                let next = array.next(key).ok_or(Errno::ENOENT)?;
                out.copy_from_slice(&next.to_le_bytes());
                Ok(())
            }
            Kind::Trie(trie) => trie.next(key, out),
            Kind::Stacks(stacks) => {
                let next = stacks.next(key).ok_or(Errno::ENOENT)?;
                out.copy_from_slice(&next.to_le_bytes());
                Ok(())
            }
            Kind::Other => Err(Errno::ENOTSUPP),
        }
    }
}
