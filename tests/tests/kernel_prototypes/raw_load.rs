//! Loading programs that the kernel judges.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ring3_btf::{Btf, kind};
use ring3_uapi::attr::{map_create, map_elem, prog_load};
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_uapi::flags::BPF_F_RDONLY_PROG;

use crate::raw_bpf::{Attr, address, bpf};

/// `BPF_F_SLEEPABLE`.
const SLEEPABLE: u64 = 1 << 4;
const LOG_BYTES: usize = 1 << 16;

/// Programs that are alike in the helpers they may call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) prog_type: u32,
    /// `BPF_TRACE_*` and others of `enum bpf_attach_type`.
    pub(crate) attach_type: u32,
    /// Kind and name of the type that says to what it is attached.
    pub(crate) attached_to: Option<(u32, &'static str)>,
    pub(crate) sleepable: bool,
}

const fn of(name: &'static str, prog_type: u32) -> Kind {
    Kind { name, prog_type, attach_type: 0, attached_to: None, sleepable: false }
}

const fn tracing(name: &'static str, attach_type: u32, kind: u32, attached_to: &'static str) -> Kind {
    Kind { attach_type, attached_to: Some((kind, attached_to)), ..of(name, prog_type::TRACING) }
}

/// All that the table speaks of.
pub(crate) const KINDS: &[Kind] = &[
    of("socket filter", prog_type::SOCKET_FILTER),
    of("kprobe", prog_type::KPROBE),
    Kind { attach_type: 42, ..of("kprobe of many", prog_type::KPROBE) },
    Kind { attach_type: 56, ..of("kprobe session", prog_type::KPROBE) },
    Kind { attach_type: 48, sleepable: true, ..of("uprobe of many", prog_type::KPROBE) },
    of("tracepoint", prog_type::TRACEPOINT),
    of("raw tracepoint", prog_type::RAW_TRACEPOINT),
    of("writable raw tracepoint", prog_type::RAW_TRACEPOINT_WRITABLE),
    of("perf event", prog_type::PERF_EVENT),
    tracing("tp_btf", 23, kind::TYPEDEF, "btf_trace_sys_enter"),
    tracing("fentry", 24, kind::FUNC, "bpf_lsm_file_open"),
    tracing("fexit", 25, kind::FUNC, "bpf_lsm_file_open"),
    tracing("fmod_ret", 26, kind::FUNC, "security_file_open"),
    tracing("traced packet", 23, kind::TYPEDEF, "btf_trace_kfree_skb"),
    tracing("iter of files", 28, kind::FUNC, "bpf_iter_task_file"),
    tracing("iter of sockets", 28, kind::FUNC, "bpf_iter_tcp"),
    Kind {
        attach_type: 27,
        attached_to: Some((kind::FUNC, "bpf_lsm_file_open")),
        sleepable: true,
        ..of("lsm", prog_type::LSM)
    },
    Kind { sleepable: true, ..of("syscall", prog_type::SYSCALL) },
    of("xdp", prog_type::XDP),
    of("sched_cls", prog_type::SCHED_CLS),
    of("sched_act", prog_type::SCHED_ACT),
];

/// The kernel's types, by kind and name.
pub(crate) struct Types(HashMap<(u32, Vec<u8>), u32>);

impl Types {
    /// `None` if this kernel has none.
    pub(crate) fn read() -> Option<Types> {
        let btf = Btf::parse(std::fs::read("/sys/kernel/btf/vmlinux").ok()?).ok()?;
        let kinds = [kind::FUNC, kind::TYPEDEF].into_iter();
        Some(Types(
            kinds.flat_map(|kind| btf.of_kind(kind).map(move |(id, name)| ((kind, name.into()), id))).collect(),
        ))
    }

    fn id(&self, kind: u32, name: &str) -> Option<u32> {
        self.0.get(&(kind, name.into())).copied()
    }
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: the call that gave the number made the descriptor, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// What is loaded: code, behind which a callback may begin, and the types of its functions.
pub(crate) struct Code<'a> {
    pub(crate) insns: &'a [u64],
    pub(crate) callback_at: Option<usize>,
    pub(crate) types: &'a OwnedFd,
}

/// What the verifier says of a program, each instruction in a line.
pub(crate) struct Verdict {
    pub(crate) accepted: bool,
    pub(crate) log: String,
}

impl Verdict {
    /// The last thing it says: why it refuses, or nothing.
    pub(crate) fn reason(&self) -> &str {
        let mut lines = self.log.lines().rev();
        let last =
            lines.find(|line| !line.is_empty() && !line.starts_with("processed ") && !line.contains("live stack"));
        if self.accepted { "" } else { last.unwrap_or("nothing") }
    }
}

/// Has the kernel judge a program; it is not kept.
pub(crate) fn judge(types: &Types, kind: &Kind, code: &Code<'_>, licence: &str) -> Verdict {
    use prog_load as p;
    let (mut log, licence) = (vec![0u8; LOG_BYTES], format!("{licence}\0"));
    let target = kind.attached_to.map_or(Some(0), |(of, name)| types.id(of, name));
    let functions: [u32; 4] = [0, MAIN_TYPE, code.callback_at.unwrap_or_default() as u32, CALLBACK_TYPE];
    let mut attr = Attr::new()
        .with(p::PROG_TYPE, kind.prog_type.into())
        .with(p::INSN_CNT, code.insns.len() as u64)
        .with(p::INSNS, address(code.insns))
        .with(p::LICENSE, address(licence.as_bytes()))
        .with(p::LOG_LEVEL, 2)
        .with(p::LOG_SIZE, LOG_BYTES as u64)
        .with(p::LOG_BUF, log.as_mut_ptr() as u64)
        .with(p::PROG_FLAGS, if kind.sleepable { SLEEPABLE } else { 0 })
        .with(p::EXPECTED_ATTACH_TYPE, kind.attach_type.into())
        .with(p::ATTACH_BTF_ID, target.unwrap_or(u32::MAX).into());
    if code.callback_at.is_some() {
        attr = attr
            .with(p::PROG_BTF_FD, code.types.as_raw_fd() as u64)
            .with(p::FUNC_INFO, address(&functions))
            .with(p::FUNC_INFO_REC_SIZE, 8)
            .with(p::FUNC_INFO_CNT, 2);
    }
    let made = bpf(cmd::PROG_LOAD, &mut attr).map(owned);
    log.truncate((attr.get(p::LOG_TRUE_SIZE) as usize).saturating_sub(1).min(LOG_BYTES));
    Verdict { accepted: made.is_ok(), log: String::from_utf8_lossy(&log).into_owned() }
}

const INT_TYPE: u64 = 1;
const MAIN_TYPE: u32 = 3;
const CALLBACK_TYPE: u32 = 4;
const TIMER_VALUE_TYPE: u64 = 6;

/// `int`, a function type, two functions, `struct bpf_timer` and a structure of one.
pub(crate) fn own_types() -> OwnedFd {
    let names = b"\0int\0m\0c\0bpf_timer\0v\0t\0";
    let types: [u32; 24] = [
        1,
        0x0100_0000,
        4,
        0x0100_0020, // int
        0,
        0x0d00_0000,
        0, // void (void)
        5,
        0x0c00_0000,
        2, // m
        7,
        0x0c00_0000,
        2, // c
        9,
        0x0400_0000,
        16, // struct bpf_timer
        19,
        0x0400_0001,
        24,
        21,
        5,
        0, // struct v { struct bpf_timer t; }
        0,
        0,
    ];
    let types = &types[..22];
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, types.len() as u32 * 4, types.len() as u32 * 4, names.len() as u32] {
        blob.extend_from_slice(&word.to_ne_bytes());
    }
    types.iter().for_each(|word| blob.extend_from_slice(&word.to_ne_bytes()));
    blob.extend_from_slice(names);
    let mut attr = Attr::new();
    attr.0[..8].copy_from_slice(&address(&blob[..]).to_ne_bytes());
    attr.0[16..20].copy_from_slice(&(blob.len() as u32).to_ne_bytes());
    owned(bpf(cmd::BTF_LOAD, &mut attr).expect("types"))
}

/// A map to call helpers with.
pub(crate) struct Map {
    pub(crate) map_type: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) fd: OwnedFd,
}

fn make(
    types: &OwnedFd,
    map_type: u32,
    key: u32,
    value: u32,
    entries: u32,
    fill: impl FnOnce(Attr) -> Attr,
) -> Option<Map> {
    use map_create as m;
    let storage = matches!(
        map_type,
        map_type::SK_STORAGE | map_type::INODE_STORAGE | map_type::TASK_STORAGE | map_type::CGRP_STORAGE
    );
    let mut attr = Attr::new()
        .with(m::MAP_TYPE, map_type.into())
        .with(m::KEY_SIZE, key.into())
        .with(m::VALUE_SIZE, value.into())
        .with(m::MAX_ENTRIES, entries.into());
    if storage {
        attr = attr.with(m::BTF_FD, types.as_raw_fd() as u64).with(m::BTF_KEY_TYPE_ID, INT_TYPE);
        attr = attr.with(m::BTF_VALUE_TYPE_ID, INT_TYPE).with(m::MAP_FLAGS, 1);
    }
    let fd = bpf(cmd::MAP_CREATE, &mut fill(attr)).ok().map(owned)?;
    Some(Map { map_type, key_bytes: key, value_bytes: value, fd })
}

/// Types of maps, and bytes of keys and of values, elements and flags that a map of each may have.
const SHAPES: &[(u32, u32, u32, u32, u32)] = {
    use map_type::*;
    &[
        (HASH, 12, 24, 4, 0),
        (ARRAY, 4, 24, 1, 0),
        (PROG_ARRAY, 4, 4, 4, 0),
        (PERF_EVENT_ARRAY, 4, 4, 4, 0),
        (PERCPU_HASH, 12, 24, 4, 0),
        (PERCPU_ARRAY, 4, 24, 4, 0),
        (STACK_TRACE, 4, 64, 4, 0),
        (CGROUP_ARRAY, 4, 4, 4, 0),
        (LRU_HASH, 12, 24, 4, 0),
        (LRU_PERCPU_HASH, 12, 24, 4, 0),
        (LPM_TRIE, 12, 24, 4, 1),
        (ARRAY_OF_MAPS, 4, 4, 4, 0),
        (HASH_OF_MAPS, 12, 4, 4, 0),
        (DEVMAP, 4, 4, 4, 0),
        (SOCKMAP, 4, 4, 4, 0),
        (CPUMAP, 4, 4, 4, 0),
        (XSKMAP, 4, 4, 4, 0),
        (SOCKHASH, 12, 4, 4, 0),
        (CGROUP_STORAGE, 8, 24, 0, 0),
        (REUSEPORT_SOCKARRAY, 4, 4, 4, 0),
        (PERCPU_CGROUP_STORAGE, 8, 24, 0, 0),
        (QUEUE, 0, 24, 4, 0),
        (STACK, 0, 24, 4, 0),
        (SK_STORAGE, 4, 4, 0, 1),
        (DEVMAP_HASH, 4, 4, 4, 0),
        (RINGBUF, 0, 0, 4096, 0),
        (INODE_STORAGE, 4, 4, 0, 1),
        (TASK_STORAGE, 4, 4, 0, 1),
        (BLOOM_FILTER, 0, 24, 4, 0),
        (USER_RINGBUF, 0, 0, 4096, 0),
        (CGRP_STORAGE, 4, 4, 0, 1),
    ]
};

/// A new map, if one of this type can be made here.
pub(crate) fn map_of(types: &OwnedFd, map_type: u32) -> Option<Map> {
    use map_create as m;
    let (_, key, value, entries, flags) = SHAPES.iter().find(|(of, ..)| *of == map_type)?;
    let of_maps = matches!(map_type, map_type::ARRAY_OF_MAPS | map_type::HASH_OF_MAPS);
    let inner = of_maps.then(|| make(types, map_type::ARRAY, 4, 4, 1, |attr| attr)).flatten();
    make(types, map_type, *key, *value, *entries, |attr| {
        let attr = attr.with(m::MAP_FLAGS, u64::from(*flags));
        inner.iter().fold(attr, |attr, inner| attr.with(m::INNER_MAP_FD, inner.fd.as_raw_fd() as u64))
    })
}

/// One of each type that can be made here.
pub(crate) fn maps(types: &OwnedFd) -> Vec<Map> {
    SHAPES.iter().filter_map(|(map_type, ..)| map_of(types, *map_type)).collect()
}

/// A map of one value with a timer at its start.
pub(crate) fn timed_map(types: &OwnedFd) -> Map {
    use map_create as m;
    let with_types = |attr: Attr| {
        attr.with(m::BTF_FD, types.as_raw_fd() as u64)
            .with(m::BTF_KEY_TYPE_ID, INT_TYPE)
            .with(m::BTF_VALUE_TYPE_ID, TIMER_VALUE_TYPE)
    };
    make(types, map_type::ARRAY, 4, 24, 1, with_types).expect("a map with a timer")
}

/// A map of one value that stays as it is: an empty string.
pub(crate) fn constant_map(types: &OwnedFd) -> Map {
    let read_only = |attr: Attr| attr.with(map_create::MAP_FLAGS, BPF_F_RDONLY_PROG.into());
    let map = make(types, map_type::ARRAY, 4, 64, 1, read_only).expect("a read-only map");
    let mut attr = Attr::new().with(map_elem::MAP_FD, map.fd.as_raw_fd() as u64);
    bpf(cmd::MAP_FREEZE, &mut attr).expect("frozen");
    map
}
