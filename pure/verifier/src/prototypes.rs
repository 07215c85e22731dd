//! The helpers that programs may call, and what they take and give (`struct bpf_func_proto`).
//!
//! One row each, in order of number. The agent has a symbol for each helper that runs in targets; the others are known
//! only so that programs which call them can be judged. A helper that differs by who calls it has a row for
//! each; the first one that lets a program type call it is meant.
//!
//! These are facts about Linux 6.18, and `tests/tests/prototypes.rs` compares them with the running kernel.

use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::helper::*;

use crate::prototype::Arg::*;
use crate::prototype::Return::{DynptrDataOrNull, MapValueOrNull, PerCpuMemory, RecordOrNull, Void};
use crate::prototype::{Arg, DynptrUse, IteratorUse, Prototype, Return, row};

// ---- who calls ----

/// Programs that look at what happens, and those that make calls for others.
const TRACED: &[u32] = &[
    prog_type::KPROBE,
    prog_type::TRACEPOINT,
    prog_type::RAW_TRACEPOINT,
    prog_type::RAW_TRACEPOINT_WRITABLE,
    prog_type::PERF_EVENT,
    prog_type::TRACING,
    prog_type::LSM,
    prog_type::SYSCALL,
];
/// Of those, the ones whose place has a cookie.
const ATTACHED: &[u32] = TRACED.split_at(7).0;
/// Programs that know the kernel's types.
const TYPED: &[u32] = TRACED.split_at(5).1;
/// Of those, the ones that are attached.
const ATTACHED_TYPED: &[u32] = &[prog_type::TRACING, prog_type::LSM];
/// Only those attached to functions know an address.
const AT_FUNCTIONS: &[u32] = &[prog_type::KPROBE, prog_type::TRACING];
const TRACING: &[u32] = &[prog_type::TRACING];
const LSM: &[u32] = &[prog_type::LSM];
const SYSCALL: &[u32] = &[prog_type::SYSCALL];
const KPROBE: &[u32] = &[prog_type::KPROBE];
const PERF_EVENT: &[u32] = &[prog_type::PERF_EVENT];
/// Traffic control: classifiers and actions.
const TC: &[u32] = &[prog_type::SCHED_CLS, prog_type::SCHED_ACT];
const XDP: &[u32] = &[prog_type::XDP];
const TC_XDP: &[u32] = &[prog_type::SCHED_CLS, prog_type::SCHED_ACT, prog_type::XDP];
/// Traffic control and socket filters: they have a `struct __sk_buff`.
const PACKETS: &[u32] = &[prog_type::SCHED_CLS, prog_type::SCHED_ACT, prog_type::SOCKET_FILTER];
const NETWORK: &[u32] = SOCKETS.split_at(4).0;
/// Programs that may turn one kind of socket into another.
const SOCKETS: &[u32] = &[
    prog_type::SCHED_CLS,
    prog_type::SCHED_ACT,
    prog_type::SOCKET_FILTER,
    prog_type::XDP,
    prog_type::TRACING,
    prog_type::LSM,
    prog_type::SYSCALL,
];

// ---- which maps ----

/// Types whose elements programs look up, change and delete by their keys.
const KEYED: &[u32] = LOOKED_UP.split_at(9).0;
/// Of those, the ones that can be walked.
const WALKED: &[u32] = LOOKED_UP.split_at(6).0;
/// Those, and those whose elements are only to be looked at.
const LOOKED_UP: &[u32] = &[
    map_type::HASH,
    map_type::ARRAY,
    map_type::PERCPU_HASH,
    map_type::PERCPU_ARRAY,
    map_type::LRU_HASH,
    map_type::LRU_PERCPU_HASH,
    map_type::LPM_TRIE,
    map_type::SOCKMAP,
    map_type::SOCKHASH,
    map_type::ARRAY_OF_MAPS,
    map_type::HASH_OF_MAPS,
    map_type::DEVMAP,
    map_type::DEVMAP_HASH,
    map_type::XSKMAP,
];
const RING: &[u32] = &[map_type::RINGBUF];
const TASKS: &[u32] = &[map_type::TASK_STORAGE];
const INODES: &[u32] = &[map_type::INODE_STORAGE];
const CGROUPS: &[u32] = &[map_type::CGRP_STORAGE];
const SOCKET_STORAGE: &[u32] = &[map_type::SK_STORAGE];
const CGROUP_ARRAY: &[u32] = &[map_type::CGROUP_ARRAY];
const EVENTS: &[u32] = &[map_type::PERF_EVENT_ARRAY];
const QUEUES: &[u32] = &[map_type::QUEUE, map_type::STACK];
const KEYLESS: &[u32] = &[map_type::QUEUE, map_type::STACK, map_type::BLOOM_FILTER];
const PER_CPU: &[u32] = &[map_type::PERCPU_HASH, map_type::PERCPU_ARRAY, map_type::LRU_PERCPU_HASH];
const REDIRECTED: &[u32] = &[map_type::DEVMAP, map_type::DEVMAP_HASH, map_type::CPUMAP, map_type::XSKMAP];
/// Types whose values may have a timer.
const TIMED: &[u32] = &[map_type::HASH, map_type::ARRAY, map_type::LRU_HASH];

// ---- what they take ----

const CONTEXT: Arg = Context { nullable: false };
const MEMORY: Arg = Memory { nullable: false };
const MEMORY_OUT: Arg = MemoryOut { nullable: false };
const LONG_OUT: Arg = Fixed { bytes: 8, align: 8, write: true };
const IPV4: Arg = Fixed { bytes: 20, align: 1, write: false };
const IPV6: Arg = Fixed { bytes: 40, align: 1, write: false };
const TCP: Arg = Fixed { bytes: 20, align: 1, write: false };
const TASK: Arg = object("task_struct");
const SEQ_FILE: Arg = object("seq_file");
/// Any kind of socket.
const SOCKET: Arg = object("sock_common");

const fn object(name: &'static str) -> Arg {
    Arg::Object { name, nullable: false, release: false }
}

const fn object_or_null(name: &'static str) -> Arg {
    Arg::Object { name, nullable: true, release: false }
}

// ---- what they give ----

/// Null, or an object that stays while the program runs.
const fn found(name: &'static str) -> Return {
    Return::Object { name, nullable: true, trusted: false, acquired: false }
}

/// Null, or a reference that must be given back.
const fn acquired(name: &'static str) -> Return {
    Return::Object { name, nullable: true, trusted: false, acquired: true }
}

static PROTOTYPES: &[Prototype] = &[
    row(MAP_LOOKUP_ELEM).given(&[Map, MapKey]).gives(MapValueOrNull).maps(LOOKED_UP).runs(),
    row(MAP_UPDATE_ELEM).given(&[Map, MapKey, MapValue { nullable: false }, Anything]).maps(KEYED).runs(),
    row(MAP_DELETE_ELEM).given(&[Map, MapKey]).maps(KEYED).runs(),
    row(PROBE_READ).given(&[MEMORY_OUT, SizeOrZero, Anything]).gpl().from(TRACED).runs(),
    row(KTIME_GET_NS).runs(),
    row(TRACE_PRINTK).given(&[MEMORY, Size]).gpl().runs(),
    row(GET_PRANDOM_U32).runs(),
    row(GET_SMP_PROCESSOR_ID).runs(),
    row(SKB_STORE_BYTES).given(&[CONTEXT, Anything, MEMORY, Size, Anything]).from(TC),
    row(L3_CSUM_REPLACE).given(&[CONTEXT, Anything, Anything, Anything, Anything]).from(TC),
    row(L4_CSUM_REPLACE).given(&[CONTEXT, Anything, Anything, Anything, Anything]).from(TC),
    row(TAIL_CALL).given(&[CONTEXT, Map, Anything]).gives(Void).maps(&[map_type::PROG_ARRAY]).runs(),
    row(CLONE_REDIRECT).given(&[CONTEXT, Anything, Anything]).from(TC),
    row(GET_CURRENT_PID_TGID).runs(),
    row(GET_CURRENT_UID_GID).runs(),
    row(GET_CURRENT_COMM).given(&[MEMORY_OUT, Size]).runs(),
    row(GET_CGROUP_CLASSID).given(&[CONTEXT]).from(TC),
    row(GET_CGROUP_CLASSID),
    row(SKB_VLAN_PUSH).given(&[CONTEXT, Anything, Anything]).from(TC),
    row(SKB_VLAN_POP).given(&[CONTEXT]).from(TC),
    row(SKB_GET_TUNNEL_KEY).given(&[CONTEXT, MEMORY_OUT, Size, Anything]).from(TC),
    row(SKB_SET_TUNNEL_KEY).given(&[CONTEXT, MEMORY, Size, Anything]).from(TC),
    row(PERF_EVENT_READ).given(&[Map, Anything]).gpl().maps(EVENTS),
    row(REDIRECT).given(&[Anything, Anything]).from(TC_XDP),
    row(GET_ROUTE_REALM).given(&[CONTEXT]).from(TC),
    row(PERF_EVENT_OUTPUT).given(&[CONTEXT, Map, Anything, MEMORY, SizeOrZero]).gpl().maps(EVENTS).runs(),
    row(SKB_LOAD_BYTES).given(&[CONTEXT, Anything, MEMORY_OUT, Size]).from(PACKETS),
    row(GET_STACKID).given(&[CONTEXT, Map, Anything]).maps(&[map_type::STACK_TRACE]).from(PERF_EVENT).runs(),
    row(GET_STACKID).given(&[CONTEXT, Map, Anything]).gpl().maps(&[map_type::STACK_TRACE]).from(TRACED).runs(),
    row(CSUM_DIFF)
        .given(&[Memory { nullable: true }, SizeOrZero, Memory { nullable: true }, SizeOrZero, Anything])
        .from(TC_XDP),
    row(SKB_GET_TUNNEL_OPT).given(&[CONTEXT, MEMORY_OUT, Size]).from(TC),
    row(SKB_SET_TUNNEL_OPT).given(&[CONTEXT, MEMORY, Size]).from(TC),
    row(SKB_CHANGE_PROTO).given(&[CONTEXT, Anything, Anything]).from(TC),
    row(SKB_CHANGE_TYPE).given(&[CONTEXT, Anything]).from(TC),
    row(SKB_UNDER_CGROUP).given(&[CONTEXT, Map, Anything]).maps(CGROUP_ARRAY).from(TC),
    row(GET_HASH_RECALC).given(&[CONTEXT]).from(TC),
    row(GET_CURRENT_TASK).gpl().runs(),
    row(PROBE_WRITE_USER).given(&[Anything, MEMORY, Size]).gpl().from(TRACED).runs(),
    row(CURRENT_TASK_UNDER_CGROUP).given(&[Map, Anything]).maps(CGROUP_ARRAY).runs(),
    row(SKB_CHANGE_TAIL).given(&[CONTEXT, Anything, Anything]).from(TC),
    row(SKB_PULL_DATA).given(&[CONTEXT, Anything]).from(TC),
    row(CSUM_UPDATE).given(&[CONTEXT, Anything]).from(TC),
    row(SET_HASH_INVALID).given(&[CONTEXT]).from(TC),
    row(GET_NUMA_NODE_ID).runs(),
    row(SKB_CHANGE_HEAD).given(&[CONTEXT, Anything, Anything]).from(TC),
    row(XDP_ADJUST_HEAD).given(&[CONTEXT, Anything]).from(XDP),
    row(PROBE_READ_STR).given(&[MEMORY_OUT, SizeOrZero, Anything]).gpl().from(TRACED).runs(),
    row(GET_SOCKET_COOKIE).given(&[CONTEXT]).from(PACKETS),
    row(GET_SOCKET_COOKIE).given(&[object_or_null("sock_common")]).from(TYPED),
    row(GET_SOCKET_UID).given(&[CONTEXT]).from(PACKETS),
    row(SET_HASH).given(&[CONTEXT, Anything]).from(TC),
    row(SETSOCKOPT).given(&[SOCKET, Anything, Anything, MEMORY, Size]).from(ATTACHED_TYPED),
    row(SKB_ADJUST_ROOM).given(&[CONTEXT, Anything, Anything, Anything]).from(TC),
    row(REDIRECT_MAP).given(&[Map, Anything, Anything]).maps(REDIRECTED).from(XDP),
    row(XDP_ADJUST_META).given(&[CONTEXT, Anything]).from(XDP),
    row(PERF_EVENT_READ_VALUE).given(&[Map, Anything, MEMORY_OUT, Size]).gpl().maps(EVENTS),
    row(PERF_PROG_READ_VALUE).given(&[CONTEXT, MEMORY_OUT, Size]).gpl().from(PERF_EVENT),
    row(GETSOCKOPT).given(&[SOCKET, Anything, Anything, MEMORY_OUT, Size]).from(ATTACHED_TYPED),
    row(OVERRIDE_RETURN).given(&[CONTEXT, Anything]).gpl().from(KPROBE).runs(),
    row(XDP_ADJUST_TAIL).given(&[CONTEXT, Anything]).from(XDP),
    row(SKB_GET_XFRM_STATE).given(&[CONTEXT, Anything, MEMORY_OUT, Size, Anything]).from(TC),
    row(GET_STACK).given(&[CONTEXT, MEMORY_OUT, SizeOrZero, Anything]).gpl().from(TRACED).runs(),
    row(SKB_LOAD_BYTES_RELATIVE).given(&[CONTEXT, Anything, MEMORY_OUT, Size, Anything]).from(PACKETS),
    row(FIB_LOOKUP).given(&[CONTEXT, MEMORY_OUT, Size, Anything]).gpl().from(TC_XDP),
    row(SKB_CGROUP_ID).given(&[CONTEXT]).from(TC),
    row(GET_CURRENT_CGROUP_ID).runs(),
    row(GET_LOCAL_STORAGE)
        .given(&[Map, Anything])
        .gives(Return::MapValue)
        .maps(&[map_type::CGROUP_STORAGE, map_type::PERCPU_CGROUP_STORAGE])
        .from(LSM),
    row(SKB_ANCESTOR_CGROUP_ID).given(&[CONTEXT, Anything]).from(TC),
    row(SK_LOOKUP_TCP).given(&[CONTEXT, MEMORY, SizeOrZero, Anything, Anything]).gives(acquired("sock")).from(TC_XDP),
    row(SK_LOOKUP_UDP).given(&[CONTEXT, MEMORY, SizeOrZero, Anything, Anything]).gives(acquired("sock")).from(TC_XDP),
    row(SK_RELEASE).given(&[Arg::Object { name: "sock_common", nullable: false, release: true }]).from(TC_XDP),
    row(MAP_PUSH_ELEM).given(&[Map, MapValue { nullable: false }, Anything]).maps(KEYLESS).runs(),
    row(MAP_POP_ELEM).given(&[Map, MapValueOut]).maps(QUEUES).runs(),
    row(MAP_PEEK_ELEM).given(&[Map, MapValueOut]).maps(KEYLESS).runs(),
    row(SPIN_LOCK).given(&[SpinLock]).gives(Void),
    row(SPIN_UNLOCK).given(&[SpinLock]).gives(Void),
    row(SK_FULLSOCK).given(&[SOCKET]).gives(found("sock")).from(TC),
    // As programs see it, not as the kernel does.
    row(TCP_SOCK).given(&[SOCKET]).gives(found("bpf_tcp_sock")).from(TC),
    row(SKB_ECN_SET_CE).given(&[CONTEXT]).from(TC),
    row(GET_LISTENER_SOCK).given(&[SOCKET]).gives(found("sock")).from(TC),
    row(SKC_LOOKUP_TCP)
        .given(&[CONTEXT, MEMORY, SizeOrZero, Anything, Anything])
        .gives(acquired("sock_common"))
        .from(TC_XDP),
    row(TCP_CHECK_SYNCOOKIE).given(&[SOCKET, MEMORY, Size, MEMORY, Size]).gpl().from(TC_XDP),
    row(STRTOL).given(&[MEMORY, Size, Anything, LONG_OUT]).runs(),
    row(STRTOUL).given(&[MEMORY, Size, Anything, LONG_OUT]).runs(),
    row(SK_STORAGE_GET)
        .given(&[Map, SOCKET, MapValue { nullable: true }, Anything])
        .gives(MapValueOrNull)
        .maps(SOCKET_STORAGE)
        .from(TC),
    row(SK_STORAGE_GET)
        .given(&[Map, object_or_null("sock_common"), MapValue { nullable: true }, Anything])
        .gives(MapValueOrNull)
        .maps(SOCKET_STORAGE)
        .from(ATTACHED_TYPED),
    row(SK_STORAGE_DELETE).given(&[Map, SOCKET]).maps(SOCKET_STORAGE).from(TC),
    row(SK_STORAGE_DELETE).given(&[Map, object_or_null("sock_common")]).maps(SOCKET_STORAGE).from(ATTACHED_TYPED),
    row(SEND_SIGNAL).given(&[Anything]).runs(),
    row(TCP_GEN_SYNCOOKIE).given(&[SOCKET, MEMORY, Size, MEMORY, Size]).gpl().from(TC_XDP),
    row(SKB_OUTPUT).given(&[object("sk_buff"), Map, Anything, MEMORY, SizeOrZero]).gpl().maps(EVENTS).from(TYPED),
    row(PROBE_READ_USER).given(&[MEMORY_OUT, SizeOrZero, Anything]).gpl().runs(),
    row(PROBE_READ_KERNEL).given(&[MEMORY_OUT, SizeOrZero, Anything]).gpl().runs(),
    row(PROBE_READ_USER_STR).given(&[MEMORY_OUT, SizeOrZero, Anything]).gpl().runs(),
    row(PROBE_READ_KERNEL_STR).given(&[MEMORY_OUT, SizeOrZero, Anything]).gpl().runs(),
    row(SEND_SIGNAL_THREAD).given(&[Anything]).runs(),
    row(JIFFIES64).runs(),
    row(READ_BRANCH_RECORDS)
        .given(&[CONTEXT, MemoryOut { nullable: true }, SizeOrZero, Anything])
        .gpl()
        .from(PERF_EVENT)
        .runs(),
    row(GET_NS_CURRENT_PID_TGID).given(&[Anything, Anything, MEMORY_OUT, Size]).runs(),
    row(XDP_OUTPUT).given(&[object("xdp_buff"), Map, Anything, MEMORY, SizeOrZero]).gpl().maps(EVENTS).from(TYPED),
    row(GET_NETNS_COOKIE).given(&[Context { nullable: true }]).from(PACKETS),
    row(GET_CURRENT_ANCESTOR_CGROUP_ID).given(&[Anything]).runs(),
    row(SK_ASSIGN).given(&[CONTEXT, SOCKET, Anything]).from(TC),
    row(KTIME_GET_BOOT_NS).runs(),
    row(SEQ_PRINTF).given(&[SEQ_FILE, MEMORY, Size, Memory { nullable: true }, SizeOrZero]).gpl().from(TRACING),
    row(SEQ_WRITE).given(&[SEQ_FILE, MEMORY, SizeOrZero]).gpl().from(TRACING),
    row(RINGBUF_OUTPUT).given(&[Map, MEMORY, SizeOrZero, Anything]).maps(RING).runs(),
    row(RINGBUF_RESERVE).given(&[Map, AllocSize, Anything]).gives(RecordOrNull).maps(RING).runs(),
    row(RINGBUF_SUBMIT).given(&[Record, Anything]).gives(Void).runs(),
    row(RINGBUF_DISCARD).given(&[Record, Anything]).gives(Void).runs(),
    row(RINGBUF_QUERY).given(&[Map, Anything]).maps(RING).runs(),
    row(CSUM_LEVEL).given(&[CONTEXT, Anything]).from(TC),
    row(SKC_TO_TCP6_SOCK).given(&[SOCKET]).gives(found("tcp6_sock")).from(SOCKETS),
    row(SKC_TO_TCP_SOCK).given(&[SOCKET]).gives(found("tcp_sock")).from(SOCKETS),
    row(SKC_TO_TCP_TIMEWAIT_SOCK).given(&[SOCKET]).gives(found("tcp_timewait_sock")).from(SOCKETS),
    row(SKC_TO_TCP_REQUEST_SOCK).given(&[SOCKET]).gives(found("tcp_request_sock")).from(SOCKETS),
    row(SKC_TO_UDP6_SOCK).given(&[SOCKET]).gives(found("udp6_sock")).from(SOCKETS),
    row(GET_TASK_STACK).given(&[TASK, MEMORY_OUT, SizeOrZero, Anything]).runs(),
    row(INODE_STORAGE_GET)
        .given(&[Map, object_or_null("inode"), MapValue { nullable: true }, Anything])
        .gives(MapValueOrNull)
        .maps(INODES)
        .from(LSM),
    row(INODE_STORAGE_DELETE).given(&[Map, object_or_null("inode")]).maps(INODES).from(LSM),
    row(D_PATH).given(&[object("path"), MEMORY_OUT, SizeOrZero]).from(ATTACHED_TYPED),
    row(COPY_FROM_USER).given(&[MEMORY_OUT, SizeOrZero, Anything]).sleeping().runs(),
    row(SNPRINTF_BTF).given(&[MEMORY_OUT, Size, MEMORY, Size, Anything]),
    row(SEQ_PRINTF_BTF).given(&[SEQ_FILE, MEMORY, SizeOrZero, Anything]).gpl().from(TRACING),
    row(SKB_CGROUP_CLASSID).given(&[CONTEXT]).from(TC),
    row(REDIRECT_NEIGH).given(&[Anything, Memory { nullable: true }, SizeOrZero, Anything]).from(TC),
    row(PER_CPU_PTR).given(&[PerCpuVariable, Anything]).gives(PerCpuMemory { nullable: true }),
    row(THIS_CPU_PTR).given(&[PerCpuVariable]).gives(PerCpuMemory { nullable: false }),
    row(REDIRECT_PEER).given(&[Anything, Anything]).from(TC),
    row(TASK_STORAGE_GET)
        .given(&[Map, object_or_null("task_struct"), MapValue { nullable: true }, Anything])
        .gives(MapValueOrNull)
        .maps(TASKS)
        .runs(),
    row(TASK_STORAGE_DELETE).given(&[Map, object_or_null("task_struct")]).maps(TASKS).runs(),
    row(GET_CURRENT_TASK_BTF)
        .gives(Return::Object { name: "task_struct", nullable: false, trusted: true, acquired: false })
        .gpl()
        .runs(),
    row(BPRM_OPTS_SET).given(&[object("linux_binprm"), Anything]).from(LSM),
    row(KTIME_GET_COARSE_NS).from(NETWORK).runs(),
    row(IMA_INODE_HASH).given(&[object("inode"), MEMORY_OUT, Size]).sleeping().from(LSM),
    row(SOCK_FROM_FILE).given(&[object("file")]).gives(found("socket")).from(TYPED),
    row(CHECK_MTU)
        .given(&[CONTEXT, Anything, Fixed { bytes: 4, align: 4, write: true }, Anything, Anything])
        .gpl()
        .from(TC_XDP),
    row(FOR_EACH_MAP_ELEM).given(&[Map, Function, Stack { nullable: true }, Anything]).maps(WALKED).runs(),
    row(SNPRINTF)
        .given(&[MemoryOut { nullable: true }, SizeOrZero, ConstString, Memory { nullable: true }, SizeOrZero])
        .gpl()
        .runs(),
    row(SYS_BPF).given(&[Anything, MEMORY, Size]).from(SYSCALL),
    row(BTF_FIND_BY_NAME_KIND).given(&[MEMORY, Size, Anything, Anything]).from(SYSCALL),
    row(SYS_CLOSE).given(&[Anything]).from(SYSCALL),
    row(TIMER_INIT).given(&[Timer, Map, Anything]).gpl().maps(TIMED),
    row(TIMER_SET_CALLBACK).given(&[Timer, Function]).gpl(),
    row(TIMER_START).given(&[Timer, Anything, Anything]).gpl(),
    row(TIMER_CANCEL).given(&[Timer]).gpl(),
    row(GET_FUNC_IP).given(&[CONTEXT]).gpl().from(AT_FUNCTIONS).runs(),
    row(GET_ATTACH_COOKIE).given(&[CONTEXT]).from(ATTACHED).runs(),
    row(TASK_PT_REGS)
        .given(&[TASK])
        .gives(Return::Object { name: "pt_regs", nullable: false, trusted: false, acquired: false })
        .gpl()
        .runs(),
    row(GET_BRANCH_SNAPSHOT).given(&[MEMORY_OUT, SizeOrZero]).gpl(),
    row(TRACE_VPRINTK).given(&[MEMORY, Size, Memory { nullable: true }, SizeOrZero]).gpl().runs(),
    row(SKC_TO_UNIX_SOCK).given(&[SOCKET]).gives(found("unix_sock")).from(SOCKETS),
    row(KALLSYMS_LOOKUP_NAME).given(&[MEMORY, SizeOrZero, Anything, LONG_OUT]).from(SYSCALL),
    row(FIND_VMA).given(&[TASK, Anything, Function, Stack { nullable: true }, Anything]),
    row(LOOP).given(&[Anything, Function, Stack { nullable: true }, Anything]).runs(),
    row(STRNCMP).given(&[MEMORY, Size, ConstString]).runs(),
    row(GET_FUNC_ARG).given(&[CONTEXT, Anything, LONG_OUT]).from(ATTACHED_TYPED).runs(),
    row(GET_FUNC_RET).given(&[CONTEXT, LONG_OUT]).from(ATTACHED_TYPED).runs(),
    row(GET_FUNC_ARG_CNT).given(&[CONTEXT]).from(ATTACHED_TYPED).runs(),
    row(GET_RETVAL).from(LSM),
    row(SET_RETVAL).given(&[Anything]).from(LSM),
    row(XDP_GET_BUFF_LEN).given(&[CONTEXT]).from(XDP),
    row(XDP_GET_BUFF_LEN).given(&[object("xdp_buff")]).from(TYPED),
    row(XDP_LOAD_BYTES).given(&[CONTEXT, Anything, MEMORY_OUT, Size]).from(XDP),
    row(XDP_STORE_BYTES).given(&[CONTEXT, Anything, MEMORY, Size]).from(XDP),
    row(COPY_FROM_USER_TASK).given(&[MEMORY_OUT, SizeOrZero, Anything, TASK, Anything]).gpl().sleeping().runs(),
    row(SKB_SET_TSTAMP).given(&[CONTEXT, Anything, Anything]).from(TC),
    row(IMA_FILE_HASH).given(&[object("file"), MEMORY_OUT, Size]).sleeping().from(LSM),
    // Of the type that the place in the map's value has.
    row(KPTR_XCHG).given(&[Kptr, Arg::Object { name: "", nullable: true, release: true }]).gives(acquired("")),
    row(MAP_LOOKUP_PERCPU_ELEM).given(&[Map, MapKey, Anything]).gives(MapValueOrNull).maps(PER_CPU).runs(),
    row(SKC_TO_MPTCP_SOCK).given(&[SOCKET]).gives(found("mptcp_sock")).from(SOCKETS),
    row(DYNPTR_FROM_MEM).given(&[MEMORY_OUT, SizeOrZero, Anything, Dynptr(DynptrUse::NewLocal)]).runs(),
    row(RINGBUF_RESERVE_DYNPTR).given(&[Map, Anything, Anything, Dynptr(DynptrUse::NewRecord)]).maps(RING).runs(),
    row(RINGBUF_SUBMIT_DYNPTR).given(&[Dynptr(DynptrUse::ReleaseRecord), Anything]).gives(Void).runs(),
    row(RINGBUF_DISCARD_DYNPTR).given(&[Dynptr(DynptrUse::ReleaseRecord), Anything]).gives(Void).runs(),
    row(DYNPTR_READ).given(&[MEMORY_OUT, SizeOrZero, Dynptr(DynptrUse::Any), Anything, Anything]).runs(),
    row(DYNPTR_WRITE).given(&[Dynptr(DynptrUse::Any), Anything, MEMORY, SizeOrZero, Anything]).runs(),
    row(DYNPTR_DATA).given(&[Dynptr(DynptrUse::Any), Anything, AllocSize]).gives(DynptrDataOrNull).runs(),
    row(TCP_RAW_GEN_SYNCOOKIE_IPV4).given(&[IPV4, MEMORY, SizeOrZero]).gpl().from(TC_XDP),
    row(TCP_RAW_GEN_SYNCOOKIE_IPV6).given(&[IPV6, MEMORY, SizeOrZero]).gpl().from(TC_XDP),
    row(TCP_RAW_CHECK_SYNCOOKIE_IPV4).given(&[IPV4, TCP]).gpl().from(TC_XDP),
    row(TCP_RAW_CHECK_SYNCOOKIE_IPV6).given(&[IPV6, TCP]).gpl().from(TC_XDP),
    row(KTIME_GET_TAI_NS).runs(),
    row(USER_RINGBUF_DRAIN)
        .given(&[Map, Function, Stack { nullable: true }, Anything])
        .maps(&[map_type::USER_RINGBUF])
        .runs(),
    row(CGRP_STORAGE_GET)
        .given(&[Map, object_or_null("cgroup"), MapValue { nullable: true }, Anything])
        .gives(MapValueOrNull)
        .maps(CGROUPS),
    row(CGRP_STORAGE_DELETE).given(&[Map, object_or_null("cgroup")]).maps(CGROUPS),
    // A kernel function: a map of any type; such without a count have none.
    row(MAP_SUM_ELEM_COUNT).given(&[object("bpf_map")]).gpl().runs(),
    row(ITER_NUM_NEW).given(&[Iterator(IteratorUse::New), Anything, Anything]).gpl().runs(),
    row(ITER_NUM_NEXT).given(&[Iterator(IteratorUse::Next)]).gpl().runs(),
    row(ITER_NUM_DESTROY).given(&[Iterator(IteratorUse::Destroy)]).gives(Void).gpl().runs(),
    // Strings at any addresses: the functions read them as `bpf_probe_read_kernel` does.
    row(STRCMP).given(&[Anything, Anything]).gpl().runs(),
    row(STRCASECMP).given(&[Anything, Anything]).gpl().runs(),
    row(STRCHR).given(&[Anything, Anything]).gpl().runs(),
    row(STRCHRNUL).given(&[Anything, Anything]).gpl().runs(),
    row(STRNCHR).given(&[Anything, Anything, Anything]).gpl().runs(),
    row(STRRCHR).given(&[Anything, Anything]).gpl().runs(),
    row(STRLEN).given(&[Anything]).gpl().runs(),
    row(STRNLEN).given(&[Anything, Anything]).gpl().runs(),
    row(STRSPN).given(&[Anything, Anything]).gpl().runs(),
    row(STRCSPN).given(&[Anything, Anything]).gpl().runs(),
    row(STRSTR).given(&[Anything, Anything]).gpl().runs(),
    row(STRNSTR).given(&[Anything, Anything, Anything]).gpl().runs(),
    row(DYNPTR_SIZE).given(&[Dynptr(DynptrUse::Any)]).runs(),
    row(DYNPTR_IS_NULL).given(&[Dynptr(DynptrUse::Any)]).runs(),
    row(DYNPTR_IS_RDONLY).given(&[Dynptr(DynptrUse::Any)]).runs(),
    row(DYNPTR_FROM_SLICE).given(&[HostSlice, Anything, Dynptr(DynptrUse::NewLocal)]).runs(),
];

/// All helpers, those that run and those that do not.
pub fn prototypes() -> &'static [Prototype] {
    PROTOTYPES
}

/// A helper by its number, whoever calls it.
pub fn prototype(id: u32) -> Option<&'static Prototype> {
    PROTOTYPES.iter().find(|prototype| prototype.id == id)
}

/// A helper by its number, as programs of this type may call it.
pub fn prototype_for(id: u32, prog_type: u32) -> Option<&'static Prototype> {
    PROTOTYPES.iter().find(|prototype| prototype.id == id && prototype.allows(prog_type))
}
