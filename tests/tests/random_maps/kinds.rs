//! The map types that the random test knows: a line each.

use ring3_uapi::bpf::map_type;

/// What of a type's answers is defined, and which operations make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Keys in no order.
    Hash,
    /// As a hash; below [`LOOSE_BELOW`] elements, what is evicted is the implementation's own affair.
    Lru,
    /// Keys in an order.
    Ordered,
    /// Values without keys.
    Queue,
    /// May say yes to what was never pushed.
    Bloom,
    /// Nothing that a program could do by the helpers for elements.
    Other,
}

/// LRU maps for fewer elements than this evict at times that differ; in larger ones sequences never come near the end.
pub(crate) const LOOSE_BELOW: u32 = 1000;

/// A map type: with which attributes it can be made.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) number: u32,
    pub(crate) shape: Shape,
    /// Bytes.
    pub(crate) keys: &'static [u32],
    /// Bytes.
    pub(crate) values: &'static [u32],
    pub(crate) entries: &'static [u32],
    /// `BPF_F_*` that it may be made with, one at a time.
    pub(crate) flags: &'static [u32],
    /// Needs a map of this type to be made after.
    pub(crate) inner: Option<&'static str>,
    /// Values are descriptors going in, and the kernel's ids coming out.
    pub(crate) holds_objects: bool,
}

const NO_PREALLOC: u32 = 1;
const NO_COMMON_LRU: u32 = 2;
const NUMA_NODE: u32 = 4;
const RDONLY: u32 = 8;
const WRONLY: u32 = 0x10;
const ZERO_SEED: u32 = 0x40;
const RDONLY_PROG: u32 = 0x80;
const WRONLY_PROG: u32 = 0x100;
const MMAPABLE: u32 = 0x400;
const PRESERVE: u32 = 0x800;
const INNER: u32 = 0x1000;

const KEYS: &[u32] = &[1, 2, 3, 4, 4, 4, 5, 7, 8, 8, 9, 12, 16, 16, 20, 33, 64, 100];
const WORD: &[u32] = &[4];
const NONE: &[u32] = &[0];
const VALUES: &[u32] = &[1, 2, 3, 4, 5, 7, 8, 8, 9, 12, 16, 24, 33, 64, 100, 500];
const FEW: &[u32] = &[1, 2, 3, 4, 5, 7, 8, 12, 16, 33, 64];
const FEW_OR_MANY: &[u32] = &[1, 2, 3, 4, 5, 7, 8, 12, 16, 33, 64, 1000, 4096];
const LRU: &[u32] = &[1, 2, 3, 5, 8, 33, 100, 1000, 1000, 1500, 2000, 4096];
const HASH_FLAGS: &[u32] = &[NO_PREALLOC, NUMA_NODE, ZERO_SEED, RDONLY, WRONLY, RDONLY_PROG, WRONLY_PROG];
const PERCPU_FLAGS: &[u32] = &[NO_PREALLOC, ZERO_SEED, RDONLY, WRONLY, RDONLY_PROG, WRONLY_PROG];
const LRU_FLAGS: &[u32] = &[NO_COMMON_LRU, ZERO_SEED, RDONLY, WRONLY, RDONLY_PROG, WRONLY_PROG];
const ARRAY_FLAGS: &[u32] = &[NUMA_NODE, MMAPABLE, INNER, RDONLY, WRONLY, RDONLY_PROG, WRONLY_PROG];
const OBJECT_FLAGS: &[u32] = &[NUMA_NODE, PRESERVE, RDONLY, WRONLY];
const QUEUE_FLAGS: &[u32] = &[NUMA_NODE, RDONLY, WRONLY, RDONLY_PROG, WRONLY_PROG];
const BLOOM_FLAGS: &[u32] = &[NUMA_NODE, ZERO_SEED, RDONLY, WRONLY, RDONLY_PROG, WRONLY_PROG];

type Numbers = &'static [u32];

const fn kind(
    (name, number): (&'static str, u32),
    shape: Shape,
    keys: Numbers,
    values: Numbers,
    entries: Numbers,
    flags: Numbers,
) -> Kind {
    Kind { name, number, shape, keys, values, entries, flags, inner: None, holds_objects: false }
}

const fn of_objects(kind: Kind, inner: Option<&'static str>) -> Kind {
    Kind { inner, holds_objects: true, ..kind }
}

/// All types.
pub(crate) const KINDS: &[Kind] = &[
    kind(("HASH", map_type::HASH), Shape::Hash, KEYS, VALUES, FEW_OR_MANY, HASH_FLAGS),
    kind(("ARRAY", map_type::ARRAY), Shape::Ordered, WORD, VALUES, FEW, ARRAY_FLAGS),
    kind(("PERCPU_HASH", map_type::PERCPU_HASH), Shape::Hash, KEYS, VALUES, FEW_OR_MANY, PERCPU_FLAGS),
    kind(("PERCPU_ARRAY", map_type::PERCPU_ARRAY), Shape::Ordered, WORD, VALUES, FEW, &[RDONLY, WRONLY, 0x80, 0x100]),
    kind(("LRU_HASH", map_type::LRU_HASH), Shape::Lru, KEYS, VALUES, LRU, LRU_FLAGS),
    kind(("LRU_PERCPU_HASH", map_type::LRU_PERCPU_HASH), Shape::Lru, KEYS, VALUES, LRU, LRU_FLAGS),
    kind(("QUEUE", map_type::QUEUE), Shape::Queue, NONE, VALUES, FEW, QUEUE_FLAGS),
    kind(("STACK", map_type::STACK), Shape::Queue, NONE, VALUES, FEW, QUEUE_FLAGS),
    kind(("BLOOM_FILTER", map_type::BLOOM_FILTER), Shape::Bloom, NONE, VALUES, FEW_OR_MANY, BLOOM_FLAGS),
    kind(("RINGBUF", map_type::RINGBUF), Shape::Other, NONE, NONE, &[4096, 8192], &[NUMA_NODE]),
    kind(("PERF_EVENT_ARRAY", map_type::PERF_EVENT_ARRAY), Shape::Other, WORD, WORD, FEW, OBJECT_FLAGS),
    kind(("LPM_TRIE", map_type::LPM_TRIE), Shape::Ordered, &[5, 6, 8, 12, 20, 68], VALUES, FEW, &[NO_PREALLOC]),
    kind(("STACK_TRACE", map_type::STACK_TRACE), Shape::Other, WORD, &[8, 64, 1016], FEW, &[NUMA_NODE]),
    kind(("USER_RINGBUF", map_type::USER_RINGBUF), Shape::Other, NONE, NONE, &[4096, 8192], &[NUMA_NODE]),
    of_objects(kind(("PROG_ARRAY", map_type::PROG_ARRAY), Shape::Other, WORD, WORD, FEW, OBJECT_FLAGS), None),
    of_objects(
        kind(("ARRAY_OF_MAPS", map_type::ARRAY_OF_MAPS), Shape::Ordered, WORD, WORD, FEW, OBJECT_FLAGS),
        Some("ARRAY"),
    ),
    of_objects(
        kind(("HASH_OF_MAPS", map_type::HASH_OF_MAPS), Shape::Hash, KEYS, WORD, FEW, HASH_FLAGS),
        Some("ARRAY"),
    ),
    kind(("CGROUP_ARRAY", map_type::CGROUP_ARRAY), Shape::Other, WORD, WORD, FEW, &[NUMA_NODE, RDONLY, WRONLY]),
];

/// The type of this name.
pub(crate) fn named(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

impl Kind {
    /// A value per CPU.
    pub(crate) fn is_per_cpu(&self) -> bool {
        self.name.contains("PERCPU")
    }

    /// Elements have keys.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys != NONE
    }
}
