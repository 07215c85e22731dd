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
