//! Flags of bpf(2) and of helpers (`linux/bpf.h`).

/// Update: create or change.
pub const BPF_ANY: u64 = 0;
/// Update: create only.
pub const BPF_NOEXIST: u64 = 1;
/// Update: change only.
pub const BPF_EXIST: u64 = 2;
/// Lookup and update under the value's `bpf_spin_lock`.
pub const BPF_F_LOCK: u64 = 4;

/// Map creation: allocate elements as they are used.
pub const BPF_F_NO_PREALLOC: u32 = 1 << 0;
/// Map creation: one LRU list per CPU.
pub const BPF_F_NO_COMMON_LRU: u32 = 1 << 1;
/// Map creation: `numa_node` is valid.
pub const BPF_F_NUMA_NODE: u32 = 1 << 2;
/// The loader's fd may not write.
pub const BPF_F_RDONLY: u32 = 1 << 3;
/// The loader's fd may not read.
pub const BPF_F_WRONLY: u32 = 1 << 4;
/// Stack traces hold build ids.
pub const BPF_F_STACK_BUILD_ID: u32 = 1 << 5;
/// Hash with seed zero.
pub const BPF_F_ZERO_SEED: u32 = 1 << 6;
/// Programs may not write.
pub const BPF_F_RDONLY_PROG: u32 = 1 << 7;
/// Programs may not read.
pub const BPF_F_WRONLY_PROG: u32 = 1 << 8;
/// Array memory can be mapped by the loader.
pub const BPF_F_MMAPABLE: u32 = 1 << 10;
/// Perf events stay in the array after their fd is closed.
pub const BPF_F_PRESERVE_ELEMS: u32 = 1 << 11;
/// Inner maps may differ in size.
pub const BPF_F_INNER_MAP: u32 = 1 << 12;
/// Map creation: `map_token_fd` is valid.
pub const BPF_F_TOKEN_FD: u32 = 1 << 16;
/// Program load: it may sleep.
pub const BPF_F_SLEEPABLE: u32 = 1 << 4;
/// Program load: it knows XDP frames of several fragments.
pub const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// `bpf_task_storage_get`: make a value if there is none.
pub const BPF_LOCAL_STORAGE_GET_F_CREATE: u64 = 1;
/// Map creation: a clone of a task gets copies of its values.
pub const BPF_F_CLONE: u32 = 1 << 9;

/// Pinning: the path is relative to `path_fd`.
pub const BPF_F_PATH_FD: u32 = 1 << 14;
/// `bpf_get_stack`, `bpf_get_stackid`: frames to leave out.
pub const BPF_F_SKIP_FIELD_MASK: u64 = 0xff;
/// `bpf_get_stack`, `bpf_get_stackid`: the user's stack, not the kernel's.
pub const BPF_F_USER_STACK: u64 = 1 << 8;
/// `bpf_get_stackid`: stacks with the same hash are the same.
pub const BPF_F_FAST_STACK_CMP: u64 = 1 << 9;
/// `bpf_get_stackid`: another stack with the same id is replaced.
pub const BPF_F_REUSE_STACKID: u64 = 1 << 10;
/// `bpf_get_stack`: entries are `struct bpf_stack_build_id`.
pub const BPF_F_USER_BUILD_ID: u64 = 1 << 11;
/// `struct bpf_stack_build_id`: bytes.
pub const STACK_BUILD_ID_BYTES: usize = 32;
/// `struct bpf_stack_build_id`: offset of the address.
pub const STACK_BUILD_ID_IP_AT: usize = 24;
/// `struct bpf_stack_build_id::status`: there is an address instead of a build id (`BPF_STACK_BUILD_ID_IP`).
pub const STACK_BUILD_ID_IP: u32 = 2;
/// Frames of a stack at most (`kernel.perf_event_max_stack`, as kernels come).
pub const STACK_FRAMES_MAX: usize = 127;

/// `bpf_perf_event_output`: index bits.
pub const BPF_F_INDEX_MASK: u64 = 0xffff_ffff;
/// `bpf_perf_event_output`: the current CPU's entry.
pub const BPF_F_CURRENT_CPU: u64 = BPF_F_INDEX_MASK;

/// Ring buffer: do not wake the consumer.
pub const BPF_RB_NO_WAKEUP: u64 = 1;
/// Ring buffer: wake the consumer in any case.
pub const BPF_RB_FORCE_WAKEUP: u64 = 2;
/// `bpf_ringbuf_query`: unread bytes.
pub const BPF_RB_AVAIL_DATA: u64 = 0;
/// `bpf_ringbuf_query`: size of the buffer.
pub const BPF_RB_RING_SIZE: u64 = 1;
/// `bpf_ringbuf_query`: consumer position.
pub const BPF_RB_CONS_POS: u64 = 2;
/// `bpf_ringbuf_query`: producer position.
pub const BPF_RB_PROD_POS: u64 = 3;
/// Ring buffer record header: not yet submitted.
pub const BPF_RINGBUF_BUSY_BIT: u32 = 1 << 31;
/// Ring buffer record header: discarded.
pub const BPF_RINGBUF_DISCARD_BIT: u32 = 1 << 30;
/// Bytes of a ring buffer record header.
pub const BPF_RINGBUF_HDR_SZ: u32 = 8;

/// `bpf_read_branch_records`: tell only how many bytes there are.
pub const BPF_F_GET_BRANCH_RECORDS_SIZE: u64 = 1;
