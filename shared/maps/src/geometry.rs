//! Where everything lies in a map's file, computed from its attributes alone.
//!
//! The server keeps a map's `Geometry` in its own memory and never reads a size or an offset from the
//! shared file. Targets use a copy in their read-only control page, the map's [`View`].

use ring3_layout::PAGE_BYTES;
use ring3_layout::map::{BUCKET_BYTES, ELEMENT_KEY_OFFSET, MAP_MAGIC, MapHeader, TABLES_OFFSET};
use ring3_layout::ring::RING3_F_BLOCK;
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{
    BPF_F_CLONE, BPF_F_INNER_MAP, BPF_F_MMAPABLE, BPF_F_NO_COMMON_LRU, BPF_F_NO_PREALLOC, BPF_F_NUMA_NODE,
    BPF_F_PRESERVE_ELEMS, BPF_F_RDONLY, BPF_F_RDONLY_PROG, BPF_F_STACK_BUILD_ID, BPF_F_WRONLY, BPF_F_WRONLY_PROG,
    BPF_F_ZERO_SEED, STACK_BUILD_ID_BYTES, STACK_FRAMES_MAX,
};

use crate::hash::END;
use crate::pool::NODE_HEADER_BYTES;
use crate::trie::KEY_DATA_OFFSET;

/// What `kmalloc` gives at most (`KMALLOC_MAX_SIZE` of x86-64), bytes: the kernel's limit for an element.
const ELEMENT_BYTES_MAX: u64 = 4 << 20;
/// `sizeof(struct htab_elem)` in the kernel, which counts against that limit.
const KERNEL_ELEMENT_HEADER: u64 = 48;
/// `PCPU_MIN_UNIT_SIZE`: the kernel's limit for a per-CPU value, bytes.
const PER_CPU_VALUE_MAX: u64 = 32 << 10;
/// Threads whose values a task storage keeps.
const TASKS_MAX: u32 = 1 << 16;
/// `BPF_LOCAL_STORAGE_MAX_VALUE_SIZE`, bytes.
const TASK_VALUE_MAX: u32 = 65407;
/// Files larger than this are refused, bytes.
const FILE_BYTES_MAX: u64 = 1 << 40;
/// Access bits of file descriptors and programs.
const ACCESS: u32 = BPF_F_RDONLY | BPF_F_WRONLY | BPF_F_RDONLY_PROG | BPF_F_WRONLY_PROG;
/// Hash functions of a Bloom filter that names no number, and the bits of `map_extra` that name one.
const BLOOM_HASHES: u32 = 5;
const BLOOM_HASHES_MASK: u32 = 0xf;
/// Bytes of a stack map's bucket.
pub(crate) const STACK_BUCKET_BYTES: u64 = 8;
/// Bytes before a stack's addresses: the pool's, hash and length.
pub(crate) const STACK_DATA_OFFSET: u64 = NODE_HEADER_BYTES + 8;
/// Bytes before a prefix's data: the pool's, two links, length and flags.
pub(crate) const TRIE_DATA_OFFSET: u64 = NODE_HEADER_BYTES + 24;
/// Nodes lie before this, bytes from the private area's start: links have 32 bits for words of 8 bytes.
const POOL_BYTES_MAX: u64 = (u32::MAX as u64) * 8;
/// Bytes of a prefix's data.
pub(crate) const TRIE_DATA_BYTES_MAX: u32 = 256;
/// `sizeof(struct lpm_trie_node)` in the kernel, which counts against its limit for a value.
const KERNEL_TRIE_NODE_HEADER: u64 = 24;
/// A perf buffer is a map of ours only; the number is outside `enum bpf_map_type`.
pub(crate) const TYPE_PERF_BUFFER: u32 = 0x1000;

/// A map's attributes, as `BPF_MAP_CREATE` has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Elements at most.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub map_flags: u32,
    /// CPUs that per-CPU values are kept for.
    pub cpus: u32,
    /// What the type makes of it; for a Bloom filter the number of hash functions.
    pub map_extra: u64,
}

/// Where a hash map's parts lie, from its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HashLayout {
    /// Buckets minus one; their number is a power of two.
    pub bucket_mask: u32,
    /// Zero.
    reserved: u32,
    /// Offset of element 0.
    pub elements: u64,
    /// Bytes from one element to the next.
    pub element_stride: u64,
    /// Offset of the value of element 0 for CPU 0.
    pub values: u64,
    /// Bytes from one element's value to the next's.
    pub value_stride: u64,
}

/// Where the nodes of a trie or a stack map lie.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolLayout {
    /// Offset of the first node in the private area.
    pub nodes: u64,
    /// Offset of the last node.
    pub last: u64,
    /// Bytes from one node to the next.
    pub stride: u32,
    /// Buckets of a stack map minus one; their number is a power of two.
    pub bucket_mask: u32,
}

/// A map's file: sizes and offsets. What lookups need comes first, and together.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Geometry {
    /// For hash types.
    pub hash: HashLayout,
    /// Bytes from one CPU's values to the next CPU's.
    pub cpu_stride: u64,
    /// For LRU types: offset of a bit per element, set by a look-up.
    pub references: u64,
    /// Bytes of the file.
    bytes: u64,
    /// Attributes, and what follows from them.
    pub header: MapHeader,
    /// For tries and stack maps.
    pub pool: PoolLayout,
    /// For Bloom filters: bits minus one; their number is a power of two.
    pub bloom_mask: u32,
    /// Zero.
    reserved: u32,
}

/// A map as a program holds it, by the address of this: in memory of its process that only the server writes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct View {
    /// Address of the file's first byte.
    pub base: u64,
    /// Sizes and offsets.
    pub geometry: Geometry,
}

const _: () = assert!(size_of::<View>() as u64 <= ring3_layout::control::VIEW_BYTES);

/// Whether a type is a hash table.
pub const fn is_hash(map_type: u32) -> bool {
    use map_type::{HASH, HASH_OF_MAPS, LRU_HASH, LRU_PERCPU_HASH, PERCPU_HASH, TASK_STORAGE};
    matches!(map_type, HASH | PERCPU_HASH | LRU_HASH | LRU_PERCPU_HASH | HASH_OF_MAPS | TASK_STORAGE)
}

/// Whether a type's elements are objects that the server puts in: programs only look them up.
pub const fn is_of_objects(map_type: u32) -> bool {
    use map_type::{ARRAY_OF_MAPS, CGROUP_ARRAY, HASH_OF_MAPS, PERF_EVENT_ARRAY, PROG_ARRAY};
    matches!(map_type, PROG_ARRAY | PERF_EVENT_ARRAY | CGROUP_ARRAY | ARRAY_OF_MAPS | HASH_OF_MAPS)
}

/// Whether a type keeps a value per CPU.
const fn is_per_cpu(map_type: u32) -> bool {
    matches!(map_type, map_type::PERCPU_HASH | map_type::PERCPU_ARRAY | map_type::LRU_PERCPU_HASH)
}

/// Whether a full map of this type makes room by itself. Values of threads that have ended are never used again, so in
/// task storage it is those that go.
const fn is_lru(map_type: u32) -> bool {
    matches!(map_type, map_type::LRU_HASH | map_type::LRU_PERCPU_HASH | map_type::TASK_STORAGE)
}

/// Whether looking at an element changes the map's memory: an LRU map notes it, a queue that is busy takes its lock.
pub const fn is_changed_by_reads(map_type: u32) -> bool {
    is_lru(map_type) || matches!(map_type, map_type::QUEUE | map_type::STACK)
}

/// A list per CPU in the kernel; here there is one, but the number of elements is rounded as there.
/// Mirrors kernel/bpf/hashtab.c:htab_map_alloc.
fn rounded_entries(a: &Attributes) -> u32 {
    if a.map_type == map_type::TASK_STORAGE {
        return TASKS_MAX;
    }
    if !is_lru(a.map_type) || a.map_flags & BPF_F_NO_COMMON_LRU == 0 {
        return a.max_entries;
    }
    let cpus = a.cpus.max(1);
    a.max_entries.checked_next_multiple_of(cpus).unwrap_or(a.max_entries / cpus * cpus)
}

impl Geometry {
    /// Checks the attributes as the kernel does and lays the file out.
    ///
    /// # Errors
    /// `EINVAL` and `E2BIG` as the types' `map_alloc_check` (kernel/bpf/arraymap.c, hashtab.c, ringbuf.c;
    /// v6.18) return them; `ENOTSUPP` for types that are not here.
    pub fn new(attributes: &Attributes) -> Result<Geometry, Errno> {
        check(attributes)?;
        Geometry::lay_out(attributes).ok_or(Errno::E2BIG)
    }

    /// A perf buffer with `data_pages` pages of data (a power of two) behind its control page.
    ///
    /// # Errors
    /// `EINVAL` as `perf_mmap` (kernel/events/core.c).
    pub fn perf_buffer(data_pages: u32) -> Result<Geometry, Errno> {
        if !data_pages.is_power_of_two() {
            return Err(Errno::EINVAL);
        }
        let attributes =
            Attributes { map_type: TYPE_PERF_BUFFER, max_entries: data_pages, cpus: 1, ..Attributes::default() };
        Geometry::lay_out(&attributes).ok_or(Errno::ENOMEM)
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a value as bpf(2) passes it: all CPUs' copies for per-CPU types.
    pub fn user_value_bytes(&self) -> usize {
        match self.header.map_type {
            t if is_per_cpu(t) => self.header.stride as usize * self.header.cpus as usize,
            _ => self.header.value_size as usize,
        }
    }

    /// A full map evicts an element that was not used lately.
    pub fn is_lru(&self) -> bool {
        is_lru(self.header.map_type)
    }

    /// A hash table.
    pub fn is_hash(&self) -> bool {
        is_hash(self.header.map_type)
    }

    /// A value per CPU.
    pub fn is_per_cpu(&self) -> bool {
        is_per_cpu(self.header.map_type)
    }

    fn lay_out(a: &Attributes) -> Option<Geometry> {
        let stride = u64::from(a.value_size).checked_next_multiple_of(8)?;
        let max_entries = rounded_entries(a);
        let entries = u64::from(max_entries);
        let cpus = if is_per_cpu(a.map_type) { a.cpus.max(1) } else { 1 };
        let mut geometry = Geometry {
            header: MapHeader {
                magic: MAP_MAGIC,
                map_type: a.map_type,
                key_size: a.key_size,
                value_size: a.value_size,
                max_entries,
                map_flags: a.map_flags,
                stride: u32::try_from(stride).ok()?,
                cpus,
                data_bytes: 0,
                private_bytes: TABLES_OFFSET,
                doorbell: 0,
                id: 0,
                map_extra: a.map_extra,
                id_base: 0,
                reserved0: 0,
                reserved: [0; 7],
            },
            bytes: 0,
            cpu_stride: 0,
            hash: HashLayout::default(),
            pool: PoolLayout::default(),
            references: 0,
            bloom_mask: 0,
            reserved: 0,
        };
        match a.map_type {
            t if is_hash(t) => geometry.lay_out_hash(cpus)?,
            map_type::QUEUE | map_type::STACK => {
                geometry.header.private_bytes += (entries + 1).checked_mul(stride)?
            }
            map_type::BLOOM_FILTER => geometry.lay_out_bloom(),
            map_type::LPM_TRIE => geometry.lay_out_trie(),
            map_type::STACK_TRACE => geometry.lay_out_stacks()?,
            map_type::RINGBUF | map_type::USER_RINGBUF => geometry.header.data_bytes = 2 * PAGE_BYTES + 2 * entries,
            TYPE_PERF_BUFFER => geometry.header.data_bytes = PAGE_BYTES + entries.checked_mul(PAGE_BYTES)?,
            t if is_of_objects(t) => {
                geometry.header.stride = 4;
                geometry.header.data_bytes = entries * 4;
            }
            _ => {
                geometry.cpu_stride = entries.checked_mul(stride)?.checked_next_multiple_of(64)?;
                geometry.header.data_bytes = geometry.cpu_stride.checked_mul(u64::from(cpus))?;
            }
        }
        let header = &mut geometry.header;
        header.data_bytes = header.data_bytes.checked_next_multiple_of(PAGE_BYTES)?;
        header.private_bytes = header.private_bytes.checked_next_multiple_of(PAGE_BYTES)?;
        geometry.bytes = header.data_bytes + header.private_bytes;
        (geometry.bytes <= FILE_BYTES_MAX).then_some(geometry)
    }

    /// Hash functions of a Bloom filter.
    pub(crate) fn bloom_hashes(&self) -> u32 {
        match self.header.map_extra as u32 & BLOOM_HASHES_MASK {
            0 => BLOOM_HASHES,
            given => given,
        }
    }

    /// 7 bits for 5 hashes of each element, a power of two in all. Mirrors kernel/bpf/bloom_filter.c:bloom_map_alloc.
    fn lay_out_bloom(&mut self) {
        let hashes = self.header.max_entries.checked_mul(self.bloom_hashes());
        let bits = hashes.and_then(|hashes| (hashes / 5).checked_mul(7)).filter(|bits| *bits <= 1 << 31);
        self.bloom_mask = bits.map_or(u32::MAX, |bits| bits.max(64).next_power_of_two() - 1);
        self.header.private_bytes += (u64::from(self.bloom_mask) + 1) / 8;
    }

    /// Each prefix may need a node that parts it from another one, and an update one more. There cannot be more than all
    /// prefixes of a short key. Of what the file has no room for, an update is told that there is no memory, as of
    /// the kernel's nodes, which are allocated as they are needed.
    fn lay_out_trie(&mut self) {
        let header = &mut self.header;
        let data = header.key_size.saturating_sub(KEY_DATA_OFFSET as u32);
        let stride = TRIE_DATA_OFFSET + u64::from(data).next_multiple_of(8) + u64::from(header.stride);
        let prefixes = if data < 4 { 2u64 << (data * 8) } else { u64::MAX };
        let room = (POOL_BYTES_MAX - TABLES_OFFSET) / stride;
        let count = (2 * u64::from(header.max_entries) + 1).min(prefixes).min(room);
        header.private_bytes = TABLES_OFFSET + count * stride;
        let last = header.private_bytes - stride;
        self.pool = PoolLayout { nodes: TABLES_OFFSET, last, stride: stride as u32, bucket_mask: 0 };
    }

    /// Mirrors kernel/bpf/stackmap.c:stack_map_alloc.
    fn lay_out_stacks(&mut self) -> Option<()> {
        let header = &mut self.header;
        let buckets = header.max_entries.checked_next_power_of_two()?;
        let nodes = TABLES_OFFSET + u64::from(buckets) * STACK_BUCKET_BYTES;
        let stride = STACK_DATA_OFFSET + u64::from(header.stride);
        header.private_bytes = nodes.checked_add(u64::from(header.max_entries).checked_mul(stride)?)?;
        let last = header.private_bytes.checked_sub(stride)?;
        self.pool = PoolLayout { nodes, last, stride: u32::try_from(stride).ok()?, bucket_mask: buckets - 1 };
        (header.private_bytes <= POOL_BYTES_MAX).then_some(())
    }

    /// (A chain's end is a link, too, which names no element.)
    fn lay_out_hash(&mut self, cpus: u32) -> Option<()> {
        let header = &mut self.header;
        let entries = Some(u64::from(header.max_entries)).filter(|entries| *entries < END.into())?;
        let buckets = entries.checked_next_power_of_two()?;
        let key = u64::from(header.key_size).checked_next_multiple_of(8)?;
        let stride = u64::from(header.stride);
        let per_cpu = is_per_cpu(header.map_type);
        let elements = (TABLES_OFFSET + buckets * BUCKET_BYTES).checked_next_multiple_of(64)?;
        let element_stride = ELEMENT_KEY_OFFSET + key + if per_cpu { 0 } else { stride };
        let end = elements.checked_add(entries.checked_mul(element_stride)?)?;
        let (values, value_stride, cpu_stride, end) = if per_cpu {
            let values = end.checked_next_multiple_of(64)?;
            let cpu_stride = entries.checked_mul(stride)?.checked_next_multiple_of(64)?;
            (values, stride, cpu_stride, values.checked_add(cpu_stride.checked_mul(u64::from(cpus))?)?)
        } else {
            (elements + ELEMENT_KEY_OFFSET + key, element_stride, 0, end)
        };
        header.private_bytes = end;
        if is_lru(header.map_type) {
            self.references = end.checked_next_multiple_of(8)?;
            header.private_bytes = self.references.checked_add(entries.div_ceil(64) * 8)?;
        }
        self.cpu_stride = cpu_stride;
        self.hash = HashLayout {
            bucket_mask: (buckets - 1) as u32,
            reserved: 0,
            elements,
            element_stride,
            values,
            value_stride,
        };
        Some(())
    }
}

fn check(a: &Attributes) -> Result<(), Errno> {
    let invalid = |wrong: bool| if wrong { Err(Errno::EINVAL) } else { Ok(()) };
    let both = |x: u32, y: u32| a.map_flags & (x | y) == x | y;
    match a.map_type {
        // Mirrors kernel/bpf/bpf_local_storage.c:bpf_local_storage_map_alloc_check.
        map_type::TASK_STORAGE => {
            invalid(a.map_flags & !(BPF_F_NO_PREALLOC | BPF_F_CLONE) != 0 || a.map_flags & BPF_F_NO_PREALLOC == 0)?;
            invalid(a.max_entries != 0 || a.key_size != 4 || a.value_size == 0)?;
            check_size(a, a.value_size > TASK_VALUE_MAX)
        }
        t if is_hash(t) => {
            let known = BPF_F_NO_PREALLOC | BPF_F_NUMA_NODE | BPF_F_ZERO_SEED | BPF_F_NO_COMMON_LRU | ACCESS;
            let lru = is_lru(a.map_type);
            invalid(a.map_flags & !known != 0 || both(BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG))?;
            invalid(both(BPF_F_RDONLY, BPF_F_WRONLY) || !lru && a.map_flags & BPF_F_NO_COMMON_LRU != 0)?;
            if lru && a.map_flags & BPF_F_NO_PREALLOC != 0 {
                return Err(Errno::ENOTSUPP);
            }
            invalid(a.max_entries == 0 || a.key_size == 0 || a.value_size == 0)?;
            invalid(a.map_type == map_type::HASH_OF_MAPS && a.value_size != 4)?;
            let element = u64::from(a.key_size) + u64::from(a.value_size);
            check_size(a, element >= ELEMENT_BYTES_MAX - KERNEL_ELEMENT_HEADER)
        }
        map_type::ARRAY | map_type::PERCPU_ARRAY => {
            let plain = BPF_F_MMAPABLE | BPF_F_INNER_MAP;
            let known = BPF_F_NUMA_NODE | ACCESS | if a.map_type == map_type::ARRAY { plain } else { 0 };
            invalid(a.max_entries == 0 || a.key_size != 4 || a.value_size == 0)?;
            invalid(a.map_flags & !known != 0 || both(BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG))?;
            invalid(both(BPF_F_RDONLY, BPF_F_WRONLY))?;
            check_size(a, a.value_size > i32::MAX as u32)
        }
        t if is_of_objects(t) => {
            let perf = if a.map_type == map_type::PERF_EVENT_ARRAY { BPF_F_PRESERVE_ELEMS } else { 0 };
            let known = BPF_F_NUMA_NODE | BPF_F_RDONLY | BPF_F_WRONLY | perf;
            invalid(a.map_flags & !known != 0 || a.max_entries == 0 || a.key_size != 4 || a.value_size != 4)
        }
        map_type::QUEUE | map_type::STACK => {
            invalid(a.max_entries == 0 || a.key_size != 0 || a.value_size == 0)?;
            invalid(a.map_flags & !(BPF_F_NUMA_NODE | ACCESS) != 0 || both(BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG))?;
            invalid(both(BPF_F_RDONLY, BPF_F_WRONLY))?;
            check_size(a, u64::from(a.value_size) > ELEMENT_BYTES_MAX)
        }
        map_type::BLOOM_FILTER => {
            let known = BPF_F_NUMA_NODE | BPF_F_ZERO_SEED | ACCESS;
            check_size(a, u64::from(a.value_size) > ELEMENT_BYTES_MAX)?;
            invalid(a.max_entries == 0 || a.key_size != 0 || a.value_size == 0)?;
            invalid(a.map_flags & !known != 0 || both(BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG))?;
            invalid(both(BPF_F_RDONLY, BPF_F_WRONLY) || a.map_extra & !u64::from(BLOOM_HASHES_MASK) != 0)
        }
        map_type::LPM_TRIE => {
            let known = BPF_F_NO_PREALLOC | BPF_F_NUMA_NODE | ACCESS;
            let values = ELEMENT_BYTES_MAX - u64::from(TRIE_DATA_BYTES_MAX) - KERNEL_TRIE_NODE_HEADER;
            let data = a.key_size.saturating_sub(KEY_DATA_OFFSET as u32);
            invalid(a.max_entries == 0 || a.map_flags & BPF_F_NO_PREALLOC == 0 || a.map_flags & !known != 0)?;
            invalid(both(BPF_F_RDONLY, BPF_F_WRONLY) || both(BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG))?;
            invalid(data == 0 || data > TRIE_DATA_BYTES_MAX || a.value_size == 0 || u64::from(a.value_size) > values)
        }
        map_type::STACK_TRACE => {
            let known = BPF_F_NUMA_NODE | BPF_F_RDONLY | BPF_F_WRONLY | BPF_F_STACK_BUILD_ID;
            let entry = if a.map_flags & BPF_F_STACK_BUILD_ID == 0 { 8 } else { STACK_BUILD_ID_BYTES as u32 };
            invalid(a.map_flags & !known != 0 || a.max_entries == 0 || a.key_size != 4 || a.value_size == 0)?;
            invalid(!a.value_size.is_multiple_of(entry) || a.value_size / entry > STACK_FRAMES_MAX as u32)
        }
        map_type::RINGBUF | map_type::USER_RINGBUF => {
            let pages = u64::from(a.max_entries).is_multiple_of(PAGE_BYTES);
            let known = BPF_F_NUMA_NODE | if a.map_type == map_type::RINGBUF { RING3_F_BLOCK } else { 0 };
            invalid(a.map_flags & !known != 0 || a.key_size != 0 || a.value_size != 0)?;
            invalid(!a.max_entries.is_power_of_two() || !pages)
        }
        _ => Err(Errno::ENOTSUPP),
    }
}

fn check_size(a: &Attributes, too_big: bool) -> Result<(), Errno> {
    let per_cpu = is_per_cpu(a.map_type) && u64::from(a.value_size).next_multiple_of(8) > PER_CPU_VALUE_MAX;
    if too_big || per_cpu { Err(Errno::E2BIG) } else { Ok(()) }
}
