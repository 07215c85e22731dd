//! Names and numbers of bpf(2): commands, map types, program types, attach types (`linux/bpf.h`).

/// Commands of bpf(2), `enum bpf_cmd`.
pub mod cmd {
    /// `BPF_MAP_CREATE`
    pub const MAP_CREATE: u32 = 0;
    /// `BPF_MAP_LOOKUP_ELEM`
    pub const MAP_LOOKUP_ELEM: u32 = 1;
    /// `BPF_MAP_UPDATE_ELEM`
    pub const MAP_UPDATE_ELEM: u32 = 2;
    /// `BPF_MAP_DELETE_ELEM`
    pub const MAP_DELETE_ELEM: u32 = 3;
    /// `BPF_MAP_GET_NEXT_KEY`
    pub const MAP_GET_NEXT_KEY: u32 = 4;
    /// `BPF_PROG_LOAD`
    pub const PROG_LOAD: u32 = 5;
    /// `BPF_OBJ_PIN`
    pub const OBJ_PIN: u32 = 6;
    /// `BPF_OBJ_GET`
    pub const OBJ_GET: u32 = 7;
    /// `BPF_PROG_ATTACH`
    pub const PROG_ATTACH: u32 = 8;
    /// `BPF_PROG_DETACH`
    pub const PROG_DETACH: u32 = 9;
    /// `BPF_PROG_TEST_RUN`
    pub const PROG_TEST_RUN: u32 = 10;
    /// `BPF_PROG_GET_NEXT_ID`
    pub const PROG_GET_NEXT_ID: u32 = 11;
    /// `BPF_MAP_GET_NEXT_ID`
    pub const MAP_GET_NEXT_ID: u32 = 12;
    /// `BPF_PROG_GET_FD_BY_ID`
    pub const PROG_GET_FD_BY_ID: u32 = 13;
    /// `BPF_MAP_GET_FD_BY_ID`
    pub const MAP_GET_FD_BY_ID: u32 = 14;
    /// `BPF_OBJ_GET_INFO_BY_FD`
    pub const OBJ_GET_INFO_BY_FD: u32 = 15;
    /// `BPF_PROG_QUERY`
    pub const PROG_QUERY: u32 = 16;
    /// `BPF_RAW_TRACEPOINT_OPEN`
    pub const RAW_TRACEPOINT_OPEN: u32 = 17;
    /// `BPF_BTF_LOAD`
    pub const BTF_LOAD: u32 = 18;
    /// `BPF_BTF_GET_FD_BY_ID`
    pub const BTF_GET_FD_BY_ID: u32 = 19;
    /// `BPF_TASK_FD_QUERY`
    pub const TASK_FD_QUERY: u32 = 20;
    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`
    pub const MAP_LOOKUP_AND_DELETE_ELEM: u32 = 21;
    /// `BPF_MAP_FREEZE`
    pub const MAP_FREEZE: u32 = 22;
    /// `BPF_BTF_GET_NEXT_ID`
    pub const BTF_GET_NEXT_ID: u32 = 23;
    /// `BPF_MAP_LOOKUP_BATCH`
    pub const MAP_LOOKUP_BATCH: u32 = 24;
    /// `BPF_MAP_LOOKUP_AND_DELETE_BATCH`
    pub const MAP_LOOKUP_AND_DELETE_BATCH: u32 = 25;
    /// `BPF_MAP_UPDATE_BATCH`
    pub const MAP_UPDATE_BATCH: u32 = 26;
    /// `BPF_MAP_DELETE_BATCH`
    pub const MAP_DELETE_BATCH: u32 = 27;
    /// `BPF_LINK_CREATE`
    pub const LINK_CREATE: u32 = 28;
    /// `BPF_LINK_UPDATE`
    pub const LINK_UPDATE: u32 = 29;
    /// `BPF_LINK_GET_FD_BY_ID`
    pub const LINK_GET_FD_BY_ID: u32 = 30;
    /// `BPF_LINK_GET_NEXT_ID`
    pub const LINK_GET_NEXT_ID: u32 = 31;
    /// `BPF_ENABLE_STATS`
    pub const ENABLE_STATS: u32 = 32;
    /// `BPF_ITER_CREATE`
    pub const ITER_CREATE: u32 = 33;
    /// `BPF_LINK_DETACH`
    pub const LINK_DETACH: u32 = 34;
    /// `BPF_PROG_BIND_MAP`
    pub const PROG_BIND_MAP: u32 = 35;
    /// `BPF_TOKEN_CREATE`
    pub const TOKEN_CREATE: u32 = 36;
    /// `BPF_PROG_STREAM_READ_BY_FD`
    pub const PROG_STREAM_READ_BY_FD: u32 = 37;

    /// The kernel's name of a value.
    pub const fn name(value: u32) -> Option<&'static str> {
        Some(match value {
            0 => "BPF_MAP_CREATE",
            1 => "BPF_MAP_LOOKUP_ELEM",
            2 => "BPF_MAP_UPDATE_ELEM",
            3 => "BPF_MAP_DELETE_ELEM",
            4 => "BPF_MAP_GET_NEXT_KEY",
            5 => "BPF_PROG_LOAD",
            6 => "BPF_OBJ_PIN",
            7 => "BPF_OBJ_GET",
            8 => "BPF_PROG_ATTACH",
            9 => "BPF_PROG_DETACH",
            10 => "BPF_PROG_TEST_RUN",
            11 => "BPF_PROG_GET_NEXT_ID",
            12 => "BPF_MAP_GET_NEXT_ID",
            13 => "BPF_PROG_GET_FD_BY_ID",
            14 => "BPF_MAP_GET_FD_BY_ID",
            15 => "BPF_OBJ_GET_INFO_BY_FD",
            16 => "BPF_PROG_QUERY",
            17 => "BPF_RAW_TRACEPOINT_OPEN",
            18 => "BPF_BTF_LOAD",
            19 => "BPF_BTF_GET_FD_BY_ID",
            20 => "BPF_TASK_FD_QUERY",
            21 => "BPF_MAP_LOOKUP_AND_DELETE_ELEM",
            22 => "BPF_MAP_FREEZE",
            23 => "BPF_BTF_GET_NEXT_ID",
            24 => "BPF_MAP_LOOKUP_BATCH",
            25 => "BPF_MAP_LOOKUP_AND_DELETE_BATCH",
            26 => "BPF_MAP_UPDATE_BATCH",
            27 => "BPF_MAP_DELETE_BATCH",
            28 => "BPF_LINK_CREATE",
            29 => "BPF_LINK_UPDATE",
            30 => "BPF_LINK_GET_FD_BY_ID",
            31 => "BPF_LINK_GET_NEXT_ID",
            32 => "BPF_ENABLE_STATS",
            33 => "BPF_ITER_CREATE",
            34 => "BPF_LINK_DETACH",
            35 => "BPF_PROG_BIND_MAP",
            36 => "BPF_TOKEN_CREATE",
            37 => "BPF_PROG_STREAM_READ_BY_FD",
            _ => return None,
        })
    }
}
/// Map types, `enum bpf_map_type`.
pub mod map_type {
    /// `BPF_MAP_TYPE_UNSPEC`
    pub const UNSPEC: u32 = 0;
    /// `BPF_MAP_TYPE_HASH`
    pub const HASH: u32 = 1;
    /// `BPF_MAP_TYPE_ARRAY`
    pub const ARRAY: u32 = 2;
    /// `BPF_MAP_TYPE_PROG_ARRAY`
    pub const PROG_ARRAY: u32 = 3;
    /// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`
    pub const PERF_EVENT_ARRAY: u32 = 4;
    /// `BPF_MAP_TYPE_PERCPU_HASH`
    pub const PERCPU_HASH: u32 = 5;
    /// `BPF_MAP_TYPE_PERCPU_ARRAY`
    pub const PERCPU_ARRAY: u32 = 6;
    /// `BPF_MAP_TYPE_STACK_TRACE`
    pub const STACK_TRACE: u32 = 7;
    /// `BPF_MAP_TYPE_CGROUP_ARRAY`
    pub const CGROUP_ARRAY: u32 = 8;
    /// `BPF_MAP_TYPE_LRU_HASH`
    pub const LRU_HASH: u32 = 9;
    /// `BPF_MAP_TYPE_LRU_PERCPU_HASH`
    pub const LRU_PERCPU_HASH: u32 = 10;
    /// `BPF_MAP_TYPE_LPM_TRIE`
    pub const LPM_TRIE: u32 = 11;
    /// `BPF_MAP_TYPE_ARRAY_OF_MAPS`
    pub const ARRAY_OF_MAPS: u32 = 12;
    /// `BPF_MAP_TYPE_HASH_OF_MAPS`
    pub const HASH_OF_MAPS: u32 = 13;
    /// `BPF_MAP_TYPE_DEVMAP`
    pub const DEVMAP: u32 = 14;
    /// `BPF_MAP_TYPE_SOCKMAP`
    pub const SOCKMAP: u32 = 15;
    /// `BPF_MAP_TYPE_CPUMAP`
    pub const CPUMAP: u32 = 16;
    /// `BPF_MAP_TYPE_XSKMAP`
    pub const XSKMAP: u32 = 17;
    /// `BPF_MAP_TYPE_SOCKHASH`
    pub const SOCKHASH: u32 = 18;
    /// `BPF_MAP_TYPE_CGROUP_STORAGE`
    pub const CGROUP_STORAGE: u32 = 19;
    /// `BPF_MAP_TYPE_REUSEPORT_SOCKARRAY`
    pub const REUSEPORT_SOCKARRAY: u32 = 20;
    /// `BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE`
    pub const PERCPU_CGROUP_STORAGE: u32 = 21;
    /// `BPF_MAP_TYPE_QUEUE`
    pub const QUEUE: u32 = 22;
    /// `BPF_MAP_TYPE_STACK`
    pub const STACK: u32 = 23;
    /// `BPF_MAP_TYPE_SK_STORAGE`
    pub const SK_STORAGE: u32 = 24;
    /// `BPF_MAP_TYPE_DEVMAP_HASH`
    pub const DEVMAP_HASH: u32 = 25;
    /// `BPF_MAP_TYPE_STRUCT_OPS`
    pub const STRUCT_OPS: u32 = 26;
    /// `BPF_MAP_TYPE_RINGBUF`
    pub const RINGBUF: u32 = 27;
    /// `BPF_MAP_TYPE_INODE_STORAGE`
    pub const INODE_STORAGE: u32 = 28;
    /// `BPF_MAP_TYPE_TASK_STORAGE`
    pub const TASK_STORAGE: u32 = 29;
    /// `BPF_MAP_TYPE_BLOOM_FILTER`
    pub const BLOOM_FILTER: u32 = 30;
    /// `BPF_MAP_TYPE_USER_RINGBUF`
    pub const USER_RINGBUF: u32 = 31;
    /// `BPF_MAP_TYPE_CGRP_STORAGE`
    pub const CGRP_STORAGE: u32 = 32;
    /// `BPF_MAP_TYPE_ARENA`
    pub const ARENA: u32 = 33;
    /// `BPF_MAP_TYPE_INSN_ARRAY`
    pub const INSN_ARRAY: u32 = 34;

    /// The kernel's name of a value.
    pub const fn name(value: u32) -> Option<&'static str> {
        Some(match value {
            0 => "BPF_MAP_TYPE_UNSPEC",
            1 => "BPF_MAP_TYPE_HASH",
            2 => "BPF_MAP_TYPE_ARRAY",
            3 => "BPF_MAP_TYPE_PROG_ARRAY",
            4 => "BPF_MAP_TYPE_PERF_EVENT_ARRAY",
            5 => "BPF_MAP_TYPE_PERCPU_HASH",
            6 => "BPF_MAP_TYPE_PERCPU_ARRAY",
            7 => "BPF_MAP_TYPE_STACK_TRACE",
            8 => "BPF_MAP_TYPE_CGROUP_ARRAY",
            9 => "BPF_MAP_TYPE_LRU_HASH",
            10 => "BPF_MAP_TYPE_LRU_PERCPU_HASH",
            11 => "BPF_MAP_TYPE_LPM_TRIE",
            12 => "BPF_MAP_TYPE_ARRAY_OF_MAPS",
            13 => "BPF_MAP_TYPE_HASH_OF_MAPS",
            14 => "BPF_MAP_TYPE_DEVMAP",
            15 => "BPF_MAP_TYPE_SOCKMAP",
            16 => "BPF_MAP_TYPE_CPUMAP",
            17 => "BPF_MAP_TYPE_XSKMAP",
            18 => "BPF_MAP_TYPE_SOCKHASH",
            19 => "BPF_MAP_TYPE_CGROUP_STORAGE",
            20 => "BPF_MAP_TYPE_REUSEPORT_SOCKARRAY",
            21 => "BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE",
            22 => "BPF_MAP_TYPE_QUEUE",
            23 => "BPF_MAP_TYPE_STACK",
            24 => "BPF_MAP_TYPE_SK_STORAGE",
            25 => "BPF_MAP_TYPE_DEVMAP_HASH",
            26 => "BPF_MAP_TYPE_STRUCT_OPS",
            27 => "BPF_MAP_TYPE_RINGBUF",
            28 => "BPF_MAP_TYPE_INODE_STORAGE",
            29 => "BPF_MAP_TYPE_TASK_STORAGE",
            30 => "BPF_MAP_TYPE_BLOOM_FILTER",
            31 => "BPF_MAP_TYPE_USER_RINGBUF",
            32 => "BPF_MAP_TYPE_CGRP_STORAGE",
            33 => "BPF_MAP_TYPE_ARENA",
            34 => "BPF_MAP_TYPE_INSN_ARRAY",
            _ => return None,
        })
    }
}
/// Program types, `enum bpf_prog_type`.
pub mod prog_type {
    /// `BPF_PROG_TYPE_UNSPEC`
    pub const UNSPEC: u32 = 0;
    /// `BPF_PROG_TYPE_SOCKET_FILTER`
    pub const SOCKET_FILTER: u32 = 1;
    /// `BPF_PROG_TYPE_KPROBE`
    pub const KPROBE: u32 = 2;
    /// `BPF_PROG_TYPE_SCHED_CLS`
    pub const SCHED_CLS: u32 = 3;
    /// `BPF_PROG_TYPE_SCHED_ACT`
    pub const SCHED_ACT: u32 = 4;
    /// `BPF_PROG_TYPE_TRACEPOINT`
    pub const TRACEPOINT: u32 = 5;
    /// `BPF_PROG_TYPE_XDP`
    pub const XDP: u32 = 6;
    /// `BPF_PROG_TYPE_PERF_EVENT`
    pub const PERF_EVENT: u32 = 7;
    /// `BPF_PROG_TYPE_CGROUP_SKB`
    pub const CGROUP_SKB: u32 = 8;
    /// `BPF_PROG_TYPE_CGROUP_SOCK`
    pub const CGROUP_SOCK: u32 = 9;
    /// `BPF_PROG_TYPE_LWT_IN`
    pub const LWT_IN: u32 = 10;
    /// `BPF_PROG_TYPE_LWT_OUT`
    pub const LWT_OUT: u32 = 11;
    /// `BPF_PROG_TYPE_LWT_XMIT`
    pub const LWT_XMIT: u32 = 12;
    /// `BPF_PROG_TYPE_SOCK_OPS`
    pub const SOCK_OPS: u32 = 13;
    /// `BPF_PROG_TYPE_SK_SKB`
    pub const SK_SKB: u32 = 14;
    /// `BPF_PROG_TYPE_CGROUP_DEVICE`
    pub const CGROUP_DEVICE: u32 = 15;
    /// `BPF_PROG_TYPE_SK_MSG`
    pub const SK_MSG: u32 = 16;
    /// `BPF_PROG_TYPE_RAW_TRACEPOINT`
    pub const RAW_TRACEPOINT: u32 = 17;
    /// `BPF_PROG_TYPE_CGROUP_SOCK_ADDR`
    pub const CGROUP_SOCK_ADDR: u32 = 18;
    /// `BPF_PROG_TYPE_LWT_SEG6LOCAL`
    pub const LWT_SEG6LOCAL: u32 = 19;
    /// `BPF_PROG_TYPE_LIRC_MODE2`
    pub const LIRC_MODE2: u32 = 20;
    /// `BPF_PROG_TYPE_SK_REUSEPORT`
    pub const SK_REUSEPORT: u32 = 21;
    /// `BPF_PROG_TYPE_FLOW_DISSECTOR`
    pub const FLOW_DISSECTOR: u32 = 22;
    /// `BPF_PROG_TYPE_CGROUP_SYSCTL`
    pub const CGROUP_SYSCTL: u32 = 23;
    /// `BPF_PROG_TYPE_RAW_TRACEPOINT_WRITABLE`
    pub const RAW_TRACEPOINT_WRITABLE: u32 = 24;
    /// `BPF_PROG_TYPE_CGROUP_SOCKOPT`
    pub const CGROUP_SOCKOPT: u32 = 25;
    /// `BPF_PROG_TYPE_TRACING`
    pub const TRACING: u32 = 26;
    /// `BPF_PROG_TYPE_STRUCT_OPS`
    pub const STRUCT_OPS: u32 = 27;
    /// `BPF_PROG_TYPE_EXT`
    pub const EXT: u32 = 28;
    /// `BPF_PROG_TYPE_LSM`
    pub const LSM: u32 = 29;
    /// `BPF_PROG_TYPE_SK_LOOKUP`
    pub const SK_LOOKUP: u32 = 30;
    /// `BPF_PROG_TYPE_SYSCALL`
    pub const SYSCALL: u32 = 31;
    /// `BPF_PROG_TYPE_NETFILTER`
    pub const NETFILTER: u32 = 32;

    /// The kernel's name of a value.
    pub const fn name(value: u32) -> Option<&'static str> {
        Some(match value {
            0 => "BPF_PROG_TYPE_UNSPEC",
            1 => "BPF_PROG_TYPE_SOCKET_FILTER",
            2 => "BPF_PROG_TYPE_KPROBE",
            3 => "BPF_PROG_TYPE_SCHED_CLS",
            4 => "BPF_PROG_TYPE_SCHED_ACT",
            5 => "BPF_PROG_TYPE_TRACEPOINT",
            6 => "BPF_PROG_TYPE_XDP",
            7 => "BPF_PROG_TYPE_PERF_EVENT",
            8 => "BPF_PROG_TYPE_CGROUP_SKB",
            9 => "BPF_PROG_TYPE_CGROUP_SOCK",
            10 => "BPF_PROG_TYPE_LWT_IN",
            11 => "BPF_PROG_TYPE_LWT_OUT",
            12 => "BPF_PROG_TYPE_LWT_XMIT",
            13 => "BPF_PROG_TYPE_SOCK_OPS",
            14 => "BPF_PROG_TYPE_SK_SKB",
            15 => "BPF_PROG_TYPE_CGROUP_DEVICE",
            16 => "BPF_PROG_TYPE_SK_MSG",
            17 => "BPF_PROG_TYPE_RAW_TRACEPOINT",
            18 => "BPF_PROG_TYPE_CGROUP_SOCK_ADDR",
            19 => "BPF_PROG_TYPE_LWT_SEG6LOCAL",
            20 => "BPF_PROG_TYPE_LIRC_MODE2",
            21 => "BPF_PROG_TYPE_SK_REUSEPORT",
            22 => "BPF_PROG_TYPE_FLOW_DISSECTOR",
            23 => "BPF_PROG_TYPE_CGROUP_SYSCTL",
            24 => "BPF_PROG_TYPE_RAW_TRACEPOINT_WRITABLE",
            25 => "BPF_PROG_TYPE_CGROUP_SOCKOPT",
            26 => "BPF_PROG_TYPE_TRACING",
            27 => "BPF_PROG_TYPE_STRUCT_OPS",
            28 => "BPF_PROG_TYPE_EXT",
            29 => "BPF_PROG_TYPE_LSM",
            30 => "BPF_PROG_TYPE_SK_LOOKUP",
            31 => "BPF_PROG_TYPE_SYSCALL",
            32 => "BPF_PROG_TYPE_NETFILTER",
            _ => return None,
        })
    }
}
/// Attach types, `enum bpf_attach_type`.
pub mod attach_type {
    /// `BPF_CGROUP_INET_INGRESS`
    pub const CGROUP_INET_INGRESS: u32 = 0;
    /// `BPF_CGROUP_INET_EGRESS`
    pub const CGROUP_INET_EGRESS: u32 = 1;
    /// `BPF_CGROUP_INET_SOCK_CREATE`
    pub const CGROUP_INET_SOCK_CREATE: u32 = 2;
    /// `BPF_CGROUP_SOCK_OPS`
    pub const CGROUP_SOCK_OPS: u32 = 3;
    /// `BPF_SK_SKB_STREAM_PARSER`
    pub const SK_SKB_STREAM_PARSER: u32 = 4;
    /// `BPF_SK_SKB_STREAM_VERDICT`
    pub const SK_SKB_STREAM_VERDICT: u32 = 5;
    /// `BPF_CGROUP_DEVICE`
    pub const CGROUP_DEVICE: u32 = 6;
    /// `BPF_SK_MSG_VERDICT`
    pub const SK_MSG_VERDICT: u32 = 7;
    /// `BPF_CGROUP_INET4_BIND`
    pub const CGROUP_INET4_BIND: u32 = 8;
    /// `BPF_CGROUP_INET6_BIND`
    pub const CGROUP_INET6_BIND: u32 = 9;
    /// `BPF_CGROUP_INET4_CONNECT`
    pub const CGROUP_INET4_CONNECT: u32 = 10;
    /// `BPF_CGROUP_INET6_CONNECT`
    pub const CGROUP_INET6_CONNECT: u32 = 11;
    /// `BPF_CGROUP_INET4_POST_BIND`
    pub const CGROUP_INET4_POST_BIND: u32 = 12;
    /// `BPF_CGROUP_INET6_POST_BIND`
    pub const CGROUP_INET6_POST_BIND: u32 = 13;
    /// `BPF_CGROUP_UDP4_SENDMSG`
    pub const CGROUP_UDP4_SENDMSG: u32 = 14;
    /// `BPF_CGROUP_UDP6_SENDMSG`
    pub const CGROUP_UDP6_SENDMSG: u32 = 15;
    /// `BPF_LIRC_MODE2`
    pub const LIRC_MODE2: u32 = 16;
    /// `BPF_FLOW_DISSECTOR`
    pub const FLOW_DISSECTOR: u32 = 17;
    /// `BPF_CGROUP_SYSCTL`
    pub const CGROUP_SYSCTL: u32 = 18;
    /// `BPF_CGROUP_UDP4_RECVMSG`
    pub const CGROUP_UDP4_RECVMSG: u32 = 19;
    /// `BPF_CGROUP_UDP6_RECVMSG`
    pub const CGROUP_UDP6_RECVMSG: u32 = 20;
    /// `BPF_CGROUP_GETSOCKOPT`
    pub const CGROUP_GETSOCKOPT: u32 = 21;
    /// `BPF_CGROUP_SETSOCKOPT`
    pub const CGROUP_SETSOCKOPT: u32 = 22;
    /// `BPF_TRACE_RAW_TP`
    pub const TRACE_RAW_TP: u32 = 23;
    /// `BPF_TRACE_FENTRY`
    pub const TRACE_FENTRY: u32 = 24;
    /// `BPF_TRACE_FEXIT`
    pub const TRACE_FEXIT: u32 = 25;
    /// `BPF_MODIFY_RETURN`
    pub const MODIFY_RETURN: u32 = 26;
    /// `BPF_LSM_MAC`
    pub const LSM_MAC: u32 = 27;
    /// `BPF_TRACE_ITER`
    pub const TRACE_ITER: u32 = 28;
    /// `BPF_CGROUP_INET4_GETPEERNAME`
    pub const CGROUP_INET4_GETPEERNAME: u32 = 29;
    /// `BPF_CGROUP_INET6_GETPEERNAME`
    pub const CGROUP_INET6_GETPEERNAME: u32 = 30;
    /// `BPF_CGROUP_INET4_GETSOCKNAME`
    pub const CGROUP_INET4_GETSOCKNAME: u32 = 31;
    /// `BPF_CGROUP_INET6_GETSOCKNAME`
    pub const CGROUP_INET6_GETSOCKNAME: u32 = 32;
    /// `BPF_XDP_DEVMAP`
    pub const XDP_DEVMAP: u32 = 33;
    /// `BPF_CGROUP_INET_SOCK_RELEASE`
    pub const CGROUP_INET_SOCK_RELEASE: u32 = 34;
    /// `BPF_XDP_CPUMAP`
    pub const XDP_CPUMAP: u32 = 35;
    /// `BPF_SK_LOOKUP`
    pub const SK_LOOKUP: u32 = 36;
    /// `BPF_XDP`
    pub const XDP: u32 = 37;
    /// `BPF_SK_SKB_VERDICT`
    pub const SK_SKB_VERDICT: u32 = 38;
    /// `BPF_SK_REUSEPORT_SELECT`
    pub const SK_REUSEPORT_SELECT: u32 = 39;
    /// `BPF_SK_REUSEPORT_SELECT_OR_MIGRATE`
    pub const SK_REUSEPORT_SELECT_OR_MIGRATE: u32 = 40;
    /// `BPF_PERF_EVENT`
    pub const PERF_EVENT: u32 = 41;
    /// `BPF_TRACE_KPROBE_MULTI`
    pub const TRACE_KPROBE_MULTI: u32 = 42;
    /// `BPF_LSM_CGROUP`
    pub const LSM_CGROUP: u32 = 43;
    /// `BPF_STRUCT_OPS`
    pub const STRUCT_OPS: u32 = 44;
    /// `BPF_NETFILTER`
    pub const NETFILTER: u32 = 45;
    /// `BPF_TCX_INGRESS`
    pub const TCX_INGRESS: u32 = 46;
    /// `BPF_TCX_EGRESS`
    pub const TCX_EGRESS: u32 = 47;
    /// `BPF_TRACE_UPROBE_MULTI`
    pub const TRACE_UPROBE_MULTI: u32 = 48;
    /// `BPF_CGROUP_UNIX_CONNECT`
    pub const CGROUP_UNIX_CONNECT: u32 = 49;
    /// `BPF_CGROUP_UNIX_SENDMSG`
    pub const CGROUP_UNIX_SENDMSG: u32 = 50;
    /// `BPF_CGROUP_UNIX_RECVMSG`
    pub const CGROUP_UNIX_RECVMSG: u32 = 51;
    /// `BPF_CGROUP_UNIX_GETPEERNAME`
    pub const CGROUP_UNIX_GETPEERNAME: u32 = 52;
    /// `BPF_CGROUP_UNIX_GETSOCKNAME`
    pub const CGROUP_UNIX_GETSOCKNAME: u32 = 53;
    /// `BPF_NETKIT_PRIMARY`
    pub const NETKIT_PRIMARY: u32 = 54;
    /// `BPF_NETKIT_PEER`
    pub const NETKIT_PEER: u32 = 55;
    /// `BPF_TRACE_KPROBE_SESSION`
    pub const TRACE_KPROBE_SESSION: u32 = 56;
    /// `BPF_TRACE_UPROBE_SESSION`
    pub const TRACE_UPROBE_SESSION: u32 = 57;
    /// Not the kernel's, but ring3's own: a link of one program to many tracepoints, which `BPF_LINK_CREATE` of ring3 makes. The
    /// kernel refuses it with `EINVAL`, as each number that it does not know.
    pub const RING3_TRACEPOINT_MULTI: u32 = 1 << 31;

    /// The name of a value.
    pub const fn name(value: u32) -> Option<&'static str> {
        Some(match value {
            0 => "BPF_CGROUP_INET_INGRESS",
            1 => "BPF_CGROUP_INET_EGRESS",
            2 => "BPF_CGROUP_INET_SOCK_CREATE",
            3 => "BPF_CGROUP_SOCK_OPS",
            4 => "BPF_SK_SKB_STREAM_PARSER",
            5 => "BPF_SK_SKB_STREAM_VERDICT",
            6 => "BPF_CGROUP_DEVICE",
            7 => "BPF_SK_MSG_VERDICT",
            8 => "BPF_CGROUP_INET4_BIND",
            9 => "BPF_CGROUP_INET6_BIND",
            10 => "BPF_CGROUP_INET4_CONNECT",
            11 => "BPF_CGROUP_INET6_CONNECT",
            12 => "BPF_CGROUP_INET4_POST_BIND",
            13 => "BPF_CGROUP_INET6_POST_BIND",
            14 => "BPF_CGROUP_UDP4_SENDMSG",
            15 => "BPF_CGROUP_UDP6_SENDMSG",
            16 => "BPF_LIRC_MODE2",
            17 => "BPF_FLOW_DISSECTOR",
            18 => "BPF_CGROUP_SYSCTL",
            19 => "BPF_CGROUP_UDP4_RECVMSG",
            20 => "BPF_CGROUP_UDP6_RECVMSG",
            21 => "BPF_CGROUP_GETSOCKOPT",
            22 => "BPF_CGROUP_SETSOCKOPT",
            23 => "BPF_TRACE_RAW_TP",
            24 => "BPF_TRACE_FENTRY",
            25 => "BPF_TRACE_FEXIT",
            26 => "BPF_MODIFY_RETURN",
            27 => "BPF_LSM_MAC",
            28 => "BPF_TRACE_ITER",
            29 => "BPF_CGROUP_INET4_GETPEERNAME",
            30 => "BPF_CGROUP_INET6_GETPEERNAME",
            31 => "BPF_CGROUP_INET4_GETSOCKNAME",
            32 => "BPF_CGROUP_INET6_GETSOCKNAME",
            33 => "BPF_XDP_DEVMAP",
            34 => "BPF_CGROUP_INET_SOCK_RELEASE",
            35 => "BPF_XDP_CPUMAP",
            36 => "BPF_SK_LOOKUP",
            37 => "BPF_XDP",
            38 => "BPF_SK_SKB_VERDICT",
            39 => "BPF_SK_REUSEPORT_SELECT",
            40 => "BPF_SK_REUSEPORT_SELECT_OR_MIGRATE",
            41 => "BPF_PERF_EVENT",
            42 => "BPF_TRACE_KPROBE_MULTI",
            43 => "BPF_LSM_CGROUP",
            44 => "BPF_STRUCT_OPS",
            45 => "BPF_NETFILTER",
            46 => "BPF_TCX_INGRESS",
            47 => "BPF_TCX_EGRESS",
            48 => "BPF_TRACE_UPROBE_MULTI",
            49 => "BPF_CGROUP_UNIX_CONNECT",
            50 => "BPF_CGROUP_UNIX_SENDMSG",
            51 => "BPF_CGROUP_UNIX_RECVMSG",
            52 => "BPF_CGROUP_UNIX_GETPEERNAME",
            53 => "BPF_CGROUP_UNIX_GETSOCKNAME",
            54 => "BPF_NETKIT_PRIMARY",
            55 => "BPF_NETKIT_PEER",
            56 => "BPF_TRACE_KPROBE_SESSION",
            57 => "BPF_TRACE_UPROBE_SESSION",
            RING3_TRACEPOINT_MULTI => "RING3_TRACEPOINT_MULTI",
            _ => return None,
        })
    }
}

/// Licences under which GPL-only helpers may be called (include/linux/license.h).
const GPL_COMPATIBLE: [&str; 6] =
    ["GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"];

/// Whether programs under this licence may call GPL-only helpers.
pub fn is_gpl_compatible(license: &str) -> bool {
    GPL_COMPATIBLE.contains(&license)
}
