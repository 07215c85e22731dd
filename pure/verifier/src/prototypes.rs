//! The helpers that programs may call. The agent has a symbol for each; a test proves that.

use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::helper;

/// What the verifier knows of a helper (`struct bpf_func_proto`).
#[derive(Clone, Copy, Debug)]
pub struct Prototype {
    /// Number.
    pub id: u32,
    /// Only for programs under a GPL-compatible licence.
    pub gpl_only: bool,
    /// Which argument register is a map.
    pub map_argument: Option<u8>,
    /// Which argument register is the address of a subprogram that the helper calls.
    pub callback_argument: Option<u8>,
    /// Map types that argument may have.
    map_types: &'static [u32],
    /// Program types that may call it; empty: all.
    prog_types: &'static [u32],
}

impl Prototype {
    /// Whether programs of this type may call it.
    pub fn allows(&self, prog_type: u32) -> bool {
        self.prog_types.is_empty() || self.prog_types.contains(&prog_type)
    }

    /// Whether it changes which elements its map has.
    pub fn writes_map(&self) -> bool {
        let writers = [helper::MAP_UPDATE_ELEM, helper::MAP_DELETE_ELEM, helper::MAP_PUSH_ELEM, helper::MAP_POP_ELEM];
        writers.contains(&self.id)
    }

    /// Whether its map argument may be of this type.
    pub fn takes(&self, map_type: u32) -> bool {
        self.map_types.contains(&map_type)
    }
}

const TRACING: &[u32] =
    &[prog_type::KPROBE, prog_type::TRACEPOINT, prog_type::RAW_TRACEPOINT, prog_type::PERF_EVENT, prog_type::SYSCALL];
/// Types whose elements programs look up, change and delete by their keys.
const KEYED: &[u32] = LOOKED_UP.split_at(7).0;
/// Of those, the ones that can be walked.
const WALKED: &[u32] = LOOKED_UP.split_at(6).0;
/// Those, and those whose elements are maps.
const LOOKED_UP: &[u32] = &[
    map_type::HASH,
    map_type::ARRAY,
    map_type::PERCPU_HASH,
    map_type::PERCPU_ARRAY,
    map_type::LRU_HASH,
    map_type::LRU_PERCPU_HASH,
    map_type::LPM_TRIE,
    map_type::ARRAY_OF_MAPS,
    map_type::HASH_OF_MAPS,
];
const RING: &[u32] = &[map_type::RINGBUF];
const TASKS: &[u32] = &[map_type::TASK_STORAGE];
const QUEUES: &[u32] = &[map_type::QUEUE, map_type::STACK];
const KEYLESS: &[u32] = &[map_type::QUEUE, map_type::STACK, map_type::BLOOM_FILTER];

const PER_CPU: &[u32] = &[map_type::PERCPU_HASH, map_type::PERCPU_ARRAY, map_type::LRU_PERCPU_HASH];
/// Program types with registers or a sample to take a stack from.
const STACKED: &[u32] = &[prog_type::KPROBE, prog_type::TRACEPOINT, prog_type::RAW_TRACEPOINT, prog_type::PERF_EVENT];

const fn plain(id: u32) -> Prototype {
    Prototype { id, gpl_only: false, map_argument: None, callback_argument: None, map_types: &[], prog_types: &[] }
}

const fn tracing(id: u32, gpl_only: bool) -> Prototype {
    Prototype { gpl_only, prog_types: TRACING, ..plain(id) }
}

const fn on_map(id: u32, map_types: &'static [u32]) -> Prototype {
    Prototype { map_argument: Some(1), map_types, ..plain(id) }
}

static PROTOTYPES: &[Prototype] = &[
    on_map(helper::MAP_LOOKUP_ELEM, LOOKED_UP),
    on_map(helper::MAP_UPDATE_ELEM, KEYED),
    on_map(helper::MAP_DELETE_ELEM, KEYED),
    on_map(helper::MAP_PUSH_ELEM, KEYLESS),
    on_map(helper::MAP_POP_ELEM, QUEUES),
    on_map(helper::MAP_PEEK_ELEM, KEYLESS),
    tracing(helper::PROBE_READ, true),
    plain(helper::KTIME_GET_NS),
    Prototype { gpl_only: true, ..plain(helper::TRACE_PRINTK) },
    plain(helper::GET_PRANDOM_U32),
    Prototype { map_argument: Some(2), map_types: &[map_type::PROG_ARRAY], ..plain(helper::TAIL_CALL) },
    plain(helper::GET_SMP_PROCESSOR_ID),
    tracing(helper::GET_CURRENT_PID_TGID, false),
    tracing(helper::GET_CURRENT_UID_GID, false),
    tracing(helper::GET_CURRENT_COMM, false),
    Prototype {
        map_argument: Some(2),
        map_types: &[map_type::PERF_EVENT_ARRAY],
        gpl_only: true,
        ..tracing(helper::PERF_EVENT_OUTPUT, true)
    },
    Prototype {
        map_argument: Some(2),
        map_types: &[map_type::STACK_TRACE],
        gpl_only: true,
        prog_types: STACKED,
        ..plain(helper::GET_STACKID)
    },
    tracing(helper::GET_CURRENT_TASK, true),
    tracing(helper::GET_CURRENT_TASK_BTF, true),
    Prototype { map_argument: Some(1), map_types: TASKS, ..tracing(helper::TASK_STORAGE_GET, false) },
    Prototype { map_argument: Some(1), map_types: TASKS, ..tracing(helper::TASK_STORAGE_DELETE, false) },
    tracing(helper::PROBE_WRITE_USER, true),
    Prototype {
        map_argument: Some(1),
        map_types: &[map_type::CGROUP_ARRAY],
        ..tracing(helper::CURRENT_TASK_UNDER_CGROUP, false)
    },
    plain(helper::GET_NUMA_NODE_ID),
    tracing(helper::PROBE_READ_STR, true),
    Prototype { gpl_only: true, prog_types: STACKED, ..plain(helper::GET_STACK) },
    tracing(helper::PROBE_READ_USER, true),
    tracing(helper::PROBE_READ_KERNEL, true),
    tracing(helper::PROBE_READ_USER_STR, true),
    tracing(helper::PROBE_READ_KERNEL_STR, true),
    plain(helper::KTIME_GET_BOOT_NS),
    on_map(helper::RINGBUF_OUTPUT, RING),
    on_map(helper::RINGBUF_RESERVE, RING),
    plain(helper::RINGBUF_SUBMIT),
    plain(helper::RINGBUF_DISCARD),
    on_map(helper::RINGBUF_QUERY, RING),
    tracing(helper::COPY_FROM_USER, false),
    Prototype { gpl_only: true, ..plain(helper::SNPRINTF) },
    plain(helper::KTIME_GET_COARSE_NS),
    tracing(helper::GET_FUNC_IP, true),
    tracing(helper::GET_ATTACH_COOKIE, false),
    Prototype { gpl_only: true, ..plain(helper::TRACE_VPRINTK) },
    Prototype { callback_argument: Some(2), ..on_map(helper::FOR_EACH_MAP_ELEM, WALKED) },
    Prototype { callback_argument: Some(2), ..plain(helper::LOOP) },
    plain(helper::STRNCMP),
    plain(helper::DYNPTR_FROM_MEM),
    on_map(helper::RINGBUF_RESERVE_DYNPTR, RING),
    plain(helper::RINGBUF_SUBMIT_DYNPTR),
    plain(helper::RINGBUF_DISCARD_DYNPTR),
    plain(helper::DYNPTR_READ),
    plain(helper::DYNPTR_WRITE),
    plain(helper::DYNPTR_DATA),
    plain(helper::KTIME_GET_TAI_NS),
    Prototype { callback_argument: Some(2), ..on_map(helper::USER_RINGBUF_DRAIN, &[map_type::USER_RINGBUF]) },
    on_map(helper::MAP_LOOKUP_PERCPU_ELEM, PER_CPU),
    // Of any map; such without a count have none.
    Prototype { gpl_only: true, ..plain(helper::MAP_SUM_ELEM_COUNT) },
];

/// All helpers.
pub fn prototypes() -> &'static [Prototype] {
    PROTOTYPES
}

/// A helper by its number.
pub fn prototype(id: u32) -> Option<&'static Prototype> {
    PROTOTYPES.iter().find(|prototype| prototype.id == id)
}
