//! `union bpf_attr` (`linux/bpf.h`, v6.18): offsets of its members, and where each command's last one ends.

/// A member: offset and size, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Offset in the union or structure.
    pub at: usize,
    /// Size.
    pub bytes: usize,
}

impl Field {
    /// Offset of what follows.
    pub const fn end(self) -> usize {
        self.at + self.bytes
    }
}

/// A 4-byte member.
pub const fn word(at: usize) -> Field {
    Field { at, bytes: 4 }
}

/// An 8-byte member.
pub const fn long(at: usize) -> Field {
    Field { at, bytes: 8 }
}

/// `sizeof(union bpf_attr)`.
pub const ATTR_BYTES: usize = 168;
/// `BPF_OBJ_NAME_LEN`, bytes with the NUL.
pub const NAME_BYTES: usize = 16;

macro_rules! members { ($($(#[$doc:meta])* $module:ident { $($name:ident $value:expr,)* })*) => { $(
    $(#[$doc])*
    #[expect(missing_docs, reason = "the names are those of the members")]
    pub mod $module {
        use super::*;
        $(pub const $name: Field = $value;)*
    }
)* } }

members! {
    /// `BPF_MAP_CREATE`.
    map_create {
        MAP_TYPE word(0), KEY_SIZE word(4), VALUE_SIZE word(8), MAX_ENTRIES word(12), MAP_FLAGS word(16),
        INNER_MAP_FD word(20), NUMA_NODE word(24), MAP_NAME Field { at: 28, bytes: 16 }, MAP_IFINDEX word(44),
        BTF_FD word(48), BTF_KEY_TYPE_ID word(52), BTF_VALUE_TYPE_ID word(56), BTF_VMLINUX_VALUE_TYPE_ID word(60),
        MAP_EXTRA long(64), VALUE_TYPE_BTF_OBJ_FD word(72), MAP_TOKEN_FD word(76), EXCL_PROG_HASH long(80),
        EXCL_PROG_HASH_SIZE word(88),
    }
    /// `BPF_MAP_*_ELEM`, `BPF_MAP_GET_NEXT_KEY` and `BPF_MAP_FREEZE`.
    map_elem {
        MAP_FD word(0), KEY long(8), VALUE long(16), NEXT_KEY long(16), FLAGS long(24),
    }
    /// `BPF_MAP_*_BATCH`.
    batch {
        IN_BATCH long(0), OUT_BATCH long(8), KEYS long(16), VALUES long(24), COUNT word(32), MAP_FD word(36),
        ELEM_FLAGS long(40), FLAGS long(48),
    }
    /// `BPF_PROG_LOAD`.
    prog_load {
        PROG_TYPE word(0), INSN_CNT word(4), INSNS long(8), LICENSE long(16), LOG_LEVEL word(24), LOG_SIZE word(28),
        LOG_BUF long(32), KERN_VERSION word(40), PROG_FLAGS word(44), PROG_NAME Field { at: 48, bytes: 16 },
        PROG_IFINDEX word(64), EXPECTED_ATTACH_TYPE word(68), PROG_BTF_FD word(72), FUNC_INFO_REC_SIZE word(76),
        FUNC_INFO long(80), FUNC_INFO_CNT word(88), LINE_INFO_REC_SIZE word(92), LINE_INFO long(96),
        LINE_INFO_CNT word(104), ATTACH_BTF_ID word(108), ATTACH_PROG_FD word(112), CORE_RELO_CNT word(116),
        FD_ARRAY long(120), CORE_RELOS long(128), CORE_RELO_REC_SIZE word(136), LOG_TRUE_SIZE word(140),
        PROG_TOKEN_FD word(144), FD_ARRAY_CNT word(148), SIGNATURE long(152), SIGNATURE_SIZE word(160),
        KEYRING_ID word(164),
    }
    /// `BPF_OBJ_PIN` and `BPF_OBJ_GET`.
    obj {
        PATHNAME long(0), BPF_FD word(8), FILE_FLAGS word(12), PATH_FD word(16),
    }
    /// `BPF_*_GET_NEXT_ID` and `BPF_*_GET_FD_BY_ID`.
    id {
        START_ID word(0), NEXT_ID word(4), OPEN_FLAGS word(8), FD_BY_ID_TOKEN_FD word(12),
    }
    /// `BPF_OBJ_GET_INFO_BY_FD`.
    info {
        BPF_FD word(0), INFO_LEN word(4), INFO long(8),
    }
    /// `BPF_BTF_LOAD`.
    btf_load {
        BTF long(0), BTF_LOG_BUF long(8), BTF_SIZE word(16), BTF_LOG_SIZE word(20), BTF_LOG_LEVEL word(24),
        BTF_LOG_TRUE_SIZE word(28), BTF_FLAGS word(32), BTF_TOKEN_FD word(36),
    }
    /// `BPF_TASK_FD_QUERY`.
    task_fd_query {
        PID word(0), FD word(4), FLAGS word(8), BUF_LEN word(12), BUF long(16), PROG_ID word(24), FD_TYPE word(28),
        PROBE_OFFSET long(32), PROBE_ADDR long(40),
    }
    /// `BPF_RAW_TRACEPOINT_OPEN`.
    raw_tracepoint {
        NAME long(0), PROG_FD word(8), COOKIE long(16),
    }
    /// `BPF_LINK_CREATE`, with the members for perf events, for programs of type `TRACING` and for `uprobe_multi`; last those of ring3's
    /// `RING3_TRACEPOINT_MULTI`: the tracepoints' names (`syscalls:sys_enter_read`), each ended by NUL, and how many bytes that is.
    link_create {
        PROG_FD word(0), TARGET_FD word(4), ATTACH_TYPE word(8), FLAGS word(12), PERF_EVENT_COOKIE long(16), TRACING_BTF_ID word(16),
        TRACING_COOKIE long(24),
        UPROBE_MULTI_PATH long(16), UPROBE_MULTI_OFFSETS long(24), UPROBE_MULTI_REF_CTR_OFFSETS long(32),
        UPROBE_MULTI_COOKIES long(40), UPROBE_MULTI_CNT word(48), UPROBE_MULTI_FLAGS word(52), UPROBE_MULTI_PID word(56),
        TRACEPOINT_MULTI_NAMES long(16), TRACEPOINT_MULTI_BYTES word(24), TRACEPOINT_MULTI_FLAGS word(28),
    }
    /// `BPF_LINK_UPDATE`, `BPF_LINK_DETACH`.
    link_update {
        LINK_FD word(0), NEW_PROG_FD word(4), FLAGS word(8), OLD_PROG_FD word(12),
    }
    /// `BPF_PROG_BIND_MAP`.
    prog_bind_map {
        PROG_FD word(0), MAP_FD word(4), FLAGS word(8),
    }
    /// `BPF_PROG_TEST_RUN`.
    test_run {
        PROG_FD word(0), RETVAL word(4), DATA_SIZE_IN word(8), DATA_SIZE_OUT word(12), DATA_IN long(16),
        DATA_OUT long(24), REPEAT word(32), DURATION word(36), CTX_SIZE_IN word(40), CTX_SIZE_OUT word(44),
        CTX_IN long(48), CTX_OUT long(56), FLAGS word(64), CPU word(68), BATCH_SIZE word(72),
    }
    /// `struct bpf_map_info`.
    map_info {
        TYPE word(0), ID word(4), KEY_SIZE word(8), VALUE_SIZE word(12), MAX_ENTRIES word(16), MAP_FLAGS word(20),
        NAME Field { at: 24, bytes: 16 }, BTF_ID word(64), BTF_KEY_TYPE_ID word(68), BTF_VALUE_TYPE_ID word(72),
        MAP_EXTRA long(80), HASH long(88), HASH_SIZE word(96),
    }
    /// `struct bpf_prog_info`.
    prog_info {
        TYPE word(0), ID word(4), TAG long(8), JITED_PROG_LEN word(16), XLATED_PROG_LEN word(20),
        JITED_PROG_INSNS long(24), XLATED_PROG_INSNS long(32), LOAD_TIME long(40), CREATED_BY_UID word(48),
        NR_MAP_IDS word(52), MAP_IDS long(56), NAME Field { at: 64, bytes: 16 }, GPL_COMPATIBLE word(84),
        NR_JITED_KSYMS word(104), NR_JITED_FUNC_LENS word(108), BTF_ID word(128), FUNC_INFO_REC_SIZE word(132),
        FUNC_INFO long(136), NR_FUNC_INFO word(144), NR_LINE_INFO word(148), LINE_INFO long(152),
        NR_JITED_LINE_INFO word(168), LINE_INFO_REC_SIZE word(172), JITED_LINE_INFO_REC_SIZE word(176), NR_PROG_TAGS word(180), PROG_TAGS long(184),
        RUN_TIME_NS long(192), RUN_CNT long(200), RECURSION_MISSES long(208), VERIFIED_INSNS word(216),
        ATTACH_BTF_OBJ_ID word(220), ATTACH_BTF_ID word(224),
    }
    /// `struct bpf_link_info`, with the members for probes, many uprobes, tracepoints and raw tracepoints.
    link_info {
        TYPE word(0), ID word(4), PROG_ID word(8), PERF_EVENT_TYPE word(16), UPROBE_FILE_NAME long(24),
        UPROBE_NAME_LEN word(32), UPROBE_OFFSET word(36), UPROBE_COOKIE long(40), UPROBE_REF_CTR_OFFSET long(48),
        TRACEPOINT_NAME long(24), TRACEPOINT_NAME_LEN word(32), TRACEPOINT_COOKIE long(40), KPROBE_COOKIE long(56), EVENT_CONFIG long(24),
        EVENT_TYPE word(32), EVENT_COOKIE long(40), RAW_NAME long(16),
        RAW_NAME_LEN word(24), RAW_COOKIE long(32), TRACING_ATTACH_TYPE word(16), TRACING_OBJ_ID word(20),
        TRACING_BTF_ID word(24), TRACING_COOKIE long(32),
        MULTI_PATH long(16), MULTI_OFFSETS long(24), MULTI_REF_CTR_OFFSETS long(32), MULTI_COOKIES long(40),
        MULTI_PATH_SIZE word(48), MULTI_COUNT word(52), MULTI_FLAGS word(56), MULTI_PID word(60),
    }
    /// `struct bpf_btf_info`.
    btf_info {
        BTF long(0), BTF_SIZE word(8), ID word(12), NAME long(16), NAME_LEN word(24), KERNEL_BTF word(28),
    }
}

/// `sizeof(struct bpf_map_info)`.
pub const MAP_INFO_BYTES: usize = 104;
/// `sizeof(struct bpf_prog_info)`.
pub const PROG_INFO_BYTES: usize = 232;
/// `sizeof(struct bpf_link_info)`.
pub const LINK_INFO_BYTES: usize = 64;
/// `sizeof(struct bpf_btf_info)`.
pub const BTF_INFO_BYTES: usize = 32;

/// `BPF_LINK_TYPE_RAW_TRACEPOINT`.
pub const LINK_TYPE_RAW_TRACEPOINT: u32 = 1;
/// `BPF_LINK_TYPE_TRACING`.
pub const LINK_TYPE_TRACING: u32 = 2;
/// `BPF_LINK_TYPE_PERF_EVENT`.
pub const LINK_TYPE_PERF_EVENT: u32 = 7;
/// `BPF_LINK_TYPE_UPROBE_MULTI`.
pub const LINK_TYPE_UPROBE_MULTI: u32 = 12;
/// `BPF_F_UPROBE_MULTI_RETURN`.
pub const UPROBE_MULTI_RETURN: u32 = 1;
/// `BPF_PERF_EVENT_UPROBE` of `enum bpf_perf_event_type`.
pub const PERF_EVENT_UPROBE: u32 = 1;
/// `BPF_PERF_EVENT_URETPROBE`.
pub const PERF_EVENT_URETPROBE: u32 = 2;
/// `BPF_PERF_EVENT_KPROBE`.
pub const PERF_EVENT_KPROBE: u32 = 3;
/// `BPF_PERF_EVENT_KRETPROBE`.
pub const PERF_EVENT_KRETPROBE: u32 = 4;
/// `BPF_PERF_EVENT_EVENT`.
pub const PERF_EVENT_EVENT: u32 = 6;
/// `BPF_PERF_EVENT_TRACEPOINT`.
pub const PERF_EVENT_TRACEPOINT: u32 = 5;
/// `BPF_FD_TYPE_RAW_TRACEPOINT` of `enum bpf_task_fd_type`.
pub const FD_TYPE_RAW_TRACEPOINT: u32 = 0;
/// `BPF_FD_TYPE_TRACEPOINT`.
pub const FD_TYPE_TRACEPOINT: u32 = 1;
/// `BPF_FD_TYPE_KPROBE`.
pub const FD_TYPE_KPROBE: u32 = 2;
/// `BPF_FD_TYPE_KRETPROBE`.
pub const FD_TYPE_KRETPROBE: u32 = 3;
/// `BPF_FD_TYPE_UPROBE` of `enum bpf_task_fd_type`.
pub const FD_TYPE_UPROBE: u32 = 4;
/// `BPF_FD_TYPE_URETPROBE`.
pub const FD_TYPE_URETPROBE: u32 = 5;

/// Where the last member of a command's attributes ends (`BPF_*_LAST_FIELD` of kernel/bpf/syscall.c); what
/// follows must be zero. `None`: unknown command.
pub const fn last_field_end(command: u32) -> Option<usize> {
    use crate::bpf::cmd;
    Some(match command {
        cmd::MAP_CREATE => map_create::EXCL_PROG_HASH_SIZE.end(),
        cmd::MAP_LOOKUP_ELEM | cmd::MAP_UPDATE_ELEM | cmd::MAP_LOOKUP_AND_DELETE_ELEM => map_elem::FLAGS.end(),
        cmd::MAP_DELETE_ELEM => map_elem::KEY.end(),
        cmd::MAP_GET_NEXT_KEY => map_elem::NEXT_KEY.end(),
        cmd::MAP_FREEZE => map_elem::MAP_FD.end(),
        cmd::MAP_LOOKUP_BATCH | cmd::MAP_LOOKUP_AND_DELETE_BATCH | cmd::MAP_UPDATE_BATCH | cmd::MAP_DELETE_BATCH => {
            batch::FLAGS.end()
        }
        cmd::PROG_LOAD => prog_load::KEYRING_ID.end(),
        cmd::OBJ_PIN | cmd::OBJ_GET => obj::PATH_FD.end(),
        cmd::PROG_ATTACH | cmd::PROG_DETACH => 32,
        cmd::PROG_TEST_RUN => test_run::BATCH_SIZE.end(),
        cmd::PROG_GET_NEXT_ID | cmd::MAP_GET_NEXT_ID | cmd::BTF_GET_NEXT_ID | cmd::LINK_GET_NEXT_ID => {
            id::NEXT_ID.end()
        }
        cmd::PROG_GET_FD_BY_ID | cmd::LINK_GET_FD_BY_ID => id::START_ID.end(),
        cmd::MAP_GET_FD_BY_ID => id::OPEN_FLAGS.end(),
        cmd::BTF_GET_FD_BY_ID => id::FD_BY_ID_TOKEN_FD.end(),
        cmd::OBJ_GET_INFO_BY_FD => info::INFO.end(),
        cmd::PROG_QUERY => 64,
        cmd::RAW_TRACEPOINT_OPEN => raw_tracepoint::COOKIE.end(),
        cmd::BTF_LOAD => btf_load::BTF_TOKEN_FD.end(),
        cmd::TASK_FD_QUERY => task_fd_query::PROBE_ADDR.end(),
        cmd::LINK_CREATE => link_create::UPROBE_MULTI_PID.end(),
        cmd::LINK_UPDATE => link_update::OLD_PROG_FD.end(),
        cmd::LINK_DETACH | cmd::ENABLE_STATS => 4,
        cmd::ITER_CREATE | cmd::TOKEN_CREATE => 8,
        cmd::PROG_BIND_MAP => prog_bind_map::FLAGS.end(),
        cmd::PROG_STREAM_READ_BY_FD => 20,
        _ => return None,
    })
}
