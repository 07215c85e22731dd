//! `struct perf_event_attr` and its ioctls (`linux/perf_event.h`, v6.18), as far as BPF tools use them.

use crate::attr::{Field, long, word};

/// `type`.
pub const TYPE: Field = word(0);
/// `size`: bytes that the caller gave; 0 means [`ATTR_BYTES_VER0`].
pub const SIZE: Field = word(4);
/// `config`.
pub const CONFIG: Field = long(8);
/// `sample_period`.
pub const SAMPLE_PERIOD: Field = long(16);
/// `sample_type`.
pub const SAMPLE_TYPE: Field = long(24);
/// The flag bits (`disabled` is bit 0).
pub const FLAGS: Field = long(40);
/// `wakeup_events`, or `wakeup_watermark` if [`FLAG_WATERMARK`] is set.
pub const WAKEUP_EVENTS: Field = word(48);
/// `config1`: for uprobes the address of the path.
pub const CONFIG1: Field = long(56);
/// `config2`: for uprobes the offset in the file.
pub const CONFIG2: Field = long(64);

/// `sizeof(struct perf_event_attr)`.
pub const ATTR_BYTES: usize = 136;
/// `PERF_ATTR_SIZE_VER0`.
pub const ATTR_BYTES_VER0: usize = 64;

/// Bit `disabled` of the flags.
pub const FLAG_DISABLED: u64 = 1 << 0;
/// Bit `watermark`.
pub const FLAG_WATERMARK: u64 = 1 << 14;
/// Bits that are reserved.
pub const FLAGS_RESERVED: u64 = !0 << 38;

/// `PERF_TYPE_SOFTWARE`.
pub const TYPE_SOFTWARE: u32 = 1;
/// `PERF_TYPE_TRACEPOINT`.
pub const TYPE_TRACEPOINT: u32 = 2;
/// `PERF_COUNT_SW_BPF_OUTPUT`.
pub const COUNT_SW_BPF_OUTPUT: u64 = 10;

/// `PERF_FLAG_FD_NO_GROUP`.
pub const FLAG_FD_NO_GROUP: u64 = 1 << 0;
/// `PERF_FLAG_FD_OUTPUT`.
pub const FLAG_FD_OUTPUT: u64 = 1 << 1;
/// `PERF_FLAG_PID_CGROUP`.
pub const FLAG_PID_CGROUP: u64 = 1 << 2;
/// `PERF_FLAG_FD_CLOEXEC`.
pub const FLAG_FD_CLOEXEC: u64 = 1 << 3;

/// `PERF_EVENT_IOC_ENABLE`.
pub const IOC_ENABLE: u32 = 0x2400;
/// `PERF_EVENT_IOC_DISABLE`.
pub const IOC_DISABLE: u32 = 0x2401;
/// `PERF_EVENT_IOC_REFRESH`.
pub const IOC_REFRESH: u32 = 0x2402;
/// `PERF_EVENT_IOC_RESET`.
pub const IOC_RESET: u32 = 0x2403;
/// `PERF_EVENT_IOC_SET_OUTPUT`.
pub const IOC_SET_OUTPUT: u32 = 0x2405;
/// `PERF_EVENT_IOC_ID`.
pub const IOC_ID: u32 = 0x8008_2407;
/// `PERF_EVENT_IOC_SET_BPF`.
pub const IOC_SET_BPF: u32 = 0x4004_2408;
/// `PERF_EVENT_IOC_PAUSE_OUTPUT`.
pub const IOC_PAUSE_OUTPUT: u32 = 0x4004_2409;
/// `PERF_EVENT_IOC_QUERY_BPF`.
pub const IOC_QUERY_BPF: u32 = 0xc008_240a;
/// `PERF_EVENT_IOC_PERIOD`.
pub const IOC_PERIOD: u32 = 0x4008_2404;

/// `PERF_TYPE_HARDWARE`.
pub const TYPE_HARDWARE: u32 = 0;
/// `PERF_TYPE_HW_CACHE`.
pub const TYPE_HW_CACHE: u32 = 3;
/// `PERF_TYPE_RAW`.
pub const TYPE_RAW: u32 = 4;
/// `PERF_COUNT_SW_CPU_CLOCK`.
pub const COUNT_SW_CPU_CLOCK: u64 = 0;
/// `PERF_COUNT_SW_TASK_CLOCK`.
pub const COUNT_SW_TASK_CLOCK: u64 = 1;
/// Bit `inherit`.
pub const FLAG_INHERIT: u64 = 1 << 1;
/// Bit `freq`: [`SAMPLE_PERIOD`] is a number of samples a second.
pub const FLAG_FREQ: u64 = 1 << 10;
/// Bit `sigtrap`.
pub const FLAG_SIGTRAP: u64 = 1 << 37;
/// `sample_regs_intr`: bits by the numbers of `enum perf_event_x86_regs`.
pub const SAMPLE_REGS_INTR: Field = long(96);

/// `PERF_SAMPLE_IP`.
pub const SAMPLE_IP: u64 = 1 << 0;
/// `PERF_SAMPLE_TID`.
pub const SAMPLE_TID: u64 = 1 << 1;
/// `PERF_SAMPLE_ADDR`.
pub const SAMPLE_ADDR: u64 = 1 << 3;
/// `PERF_SAMPLE_CALLCHAIN`.
pub const SAMPLE_CALLCHAIN: u64 = 1 << 5;
/// `PERF_SAMPLE_PERIOD`.
pub const SAMPLE_PERIOD_BIT: u64 = 1 << 8;
/// `PERF_SAMPLE_REGS_INTR`.
pub const SAMPLE_REGS: u64 = 1 << 18;
/// `PERF_RECORD_SAMPLE`.
pub const RECORD_SAMPLE: u32 = 9;
/// `PERF_CONTEXT_KERNEL`: in a call chain, addresses of the kernel follow.
pub const CONTEXT_KERNEL: u64 = (-128i64) as u64;
/// `PERF_CONTEXT_USER`: addresses of the process follow.
pub const CONTEXT_USER: u64 = (-512i64) as u64;
/// `PERF_CONTEXT_MAX`: from here on, an address of a call chain is one of these words.
pub const CONTEXT_MAX: u64 = (-4095i64) as u64;
/// `data_head` of `struct perf_event_mmap_page`.
pub const RING_DATA_HEAD: Field = long(1024);
/// `data_tail`.
pub const RING_DATA_TAIL: Field = long(1032);
