//! The same system calls, made to this kernel and made to ring3: results must not differ.
//!
//! A scenario is a list of calls that print a line each. It runs in a process of its own, once as it is (which
//! needs root) and once under `ring3 load`.

mod scenarios;

use ring3_tests::{Bench, Process, is_root, wait_until};
use ring3_uapi::Errno;
use ring3_uapi::attr::{self, ATTR_BYTES, Field};
use ring3_uapi::bpf::{attach_type, cmd, map_type, prog_type};

use crate::scenarios::raw_members::{
    arrays_of_programs_hold_one_kind, maps_of_objects_are_checked, maps_of_objects_behave,
};

use crate::scenarios::raw_names::names_are_given_and_taken;
use crate::scenarios::raw_values::{keys_and_values_have_types, values_with_a_lock_behave};

/// What starts a line of a scenario's output; the rest is the test harness's.
const MARK: &str = "| ";
const SCENARIO: &str = "RING3_TEST_SCENARIO";

// ---- calls ----

#[derive(Clone)]
struct Attr([u8; ATTR_BYTES]);

impl Attr {
    fn new() -> Attr {
        Attr([0; ATTR_BYTES])
    }

    fn with(mut self, field: Field, value: u64) -> Attr {
        self.0[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
        self
    }

    fn named(mut self, field: Field, name: &[u8]) -> Attr {
        self.0[field.at..field.at + name.len()].copy_from_slice(name);
        self
    }

    fn get(&self, field: Field) -> u64 {
        let mut bytes = [0; 8];
        bytes[..field.bytes].copy_from_slice(&self.0[field.at..field.end()]);
        u64::from_ne_bytes(bytes)
    }
}

fn result(value: i64) -> Result<i64, Errno> {
    if value < 0 { Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))) } else { Ok(value) }
}

fn bpf_sized(command: u32, attr: *mut u8, bytes: usize) -> Result<i64, Errno> {
    // SAFETY: bpf(2) reads and writes `bytes` bytes at `attr`; a wrong address is an error that it returns.
    result(unsafe { libc::syscall(libc::SYS_bpf, command, attr, bytes) })
}

fn bpf(command: u32, attr: &mut Attr) -> Result<i64, Errno> {
    bpf_sized(command, attr.0.as_mut_ptr(), ATTR_BYTES)
}

fn address<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>() as u64
}

fn close(fd: i64) {
    // SAFETY: the scenario owns the descriptor.
    unsafe { libc::close(fd as i32) };
}

/// Prints a result: descriptors differ from run to run, so only their being there counts.
fn show(what: &str, outcome: Result<i64, Errno>) {
    match outcome {
        Ok(value) => println!("{MARK}{what}: {value}"),
        Err(errno) => println!("{MARK}{what}: {}", errno.name()),
    }
}

fn show_fd(what: &str, outcome: Result<i64, Errno>) -> i64 {
    show(what, outcome.map(|_| 0));
    outcome.unwrap_or(-1)
}

// ---- scenarios ----

fn create(kind: u32, key: u32, value: u32, entries: u32, flags: u32) -> Attr {
    use attr::map_create as m;
    let attr = Attr::new().with(m::MAP_TYPE, kind.into()).with(m::KEY_SIZE, key.into());
    attr.with(m::VALUE_SIZE, value.into()).with(m::MAX_ENTRIES, entries.into()).with(m::MAP_FLAGS, flags.into())
}

const KINDS: [u32; 15] = [
    map_type::HASH,
    map_type::ARRAY,
    map_type::PERCPU_HASH,
    map_type::PERCPU_ARRAY,
    map_type::PERF_EVENT_ARRAY,
    map_type::RINGBUF,
    map_type::CGROUP_ARRAY,
    map_type::QUEUE,
    map_type::STACK,
    map_type::BLOOM_FILTER,
    map_type::LRU_HASH,
    map_type::LRU_PERCPU_HASH,
    map_type::LPM_TRIE,
    map_type::STACK_TRACE,
    map_type::USER_RINGBUF,
];

const NO_PREALLOC: u32 = 1;

/// Attributes of a small map of a type, with values of `value` bytes where the type leaves a choice.
fn small(kind: u32, value: u32) -> Attr {
    match kind {
        map_type::RINGBUF | map_type::USER_RINGBUF => create(kind, 0, 0, 4096, 0),
        map_type::PERF_EVENT_ARRAY | map_type::CGROUP_ARRAY => create(kind, 4, 4, 3, 0),
        map_type::QUEUE | map_type::STACK | map_type::BLOOM_FILTER => create(kind, 0, value, 3, 0),
        // What a full one evicts is its own affair.
        map_type::LRU_HASH | map_type::LRU_PERCPU_HASH => create(kind, 4, value, 1000, 0),
        map_type::LPM_TRIE => create(kind, 8, value, 3, NO_PREALLOC),
        map_type::STACK_TRACE => create(kind, 4, 16, 3, 0),
        _ => create(kind, 4, value, 3, 0),
    }
}

fn maps_are_created() {
    let sizes: [(u32, u32, u32); 15] = [
        (4, 8, 10),
        (4, 4, 10),
        (8, 8, 10),
        (0, 8, 10),
        (4, 0, 10),
        (4, 8, 0),
        (0, 0, 4096),
        (0, 0, 8192),
        (0, 0, 4095),
        (0, 0, 12288),
        (4, 40000, 2),
        (4, u32::MAX, 2),
        (0, 4 << 20, 2),
        (0, (4 << 20) + 1, 2),
        (0, 8, 0),
    ];
    for kind in KINDS {
        let always = if kind == map_type::LPM_TRIE { NO_PREALLOC } else { 0 };
        for (key, value, entries) in sizes {
            let made = bpf(cmd::MAP_CREATE, &mut create(kind, key, value, entries, always));
            close(show_fd(&format!("create {kind} {key} {value} {entries}"), made));
        }
        for bit in 0..19 {
            let (key, value, entries) = match kind {
                map_type::RINGBUF | map_type::USER_RINGBUF => (0, 0, 4096),
                map_type::QUEUE | map_type::STACK | map_type::BLOOM_FILTER => (0, 4, 2),
                map_type::LPM_TRIE => (8, 4, 2),
                map_type::STACK_TRACE => (4, 64, 2),
                _ => (4, 4, 2),
            };
            let made = bpf(cmd::MAP_CREATE, &mut create(kind, key, value, entries, always | 1 << bit));
            close(show_fd(&format!("create {kind} with flag {bit}"), made));
        }
        for flags in [0x18, 0x180] {
            let made = bpf(cmd::MAP_CREATE, &mut create(kind, 4, 4, 2, always | flags));
            close(show_fd(&format!("create {kind} with flags {flags:#x}"), made));
        }
    }
    for kind in [0, 35, 36, 1000, u32::MAX] {
        show_fd(&format!("create unknown {kind}"), bpf(cmd::MAP_CREATE, &mut create(kind, 4, 4, 2, 0)));
    }
}

fn maps_without_keys_push_pop_and_peek() {
    for kind in [map_type::QUEUE, map_type::STACK, map_type::BLOOM_FILTER] {
        let map = show_fd(&format!("{kind}"), bpf(cmd::MAP_CREATE, &mut create(kind, 0, 12, 3, 0)));
        let step = |what: &str, command: u32, fill: u8, flags: u64| {
            let mut bytes = vec![fill; 64];
            let done = element(map, command, None, &mut bytes, flags);
            show(&format!("{kind} {what} {fill} flags {flags}"), done);
            println!("{MARK}  value {:?}", &bytes[..16]);
        };
        step("peek when empty", cmd::MAP_LOOKUP_ELEM, 9, 0);
        step("pop when empty", cmd::MAP_LOOKUP_AND_DELETE_ELEM, 9, 0);
        for (value, flags) in [(1, 0), (2, 1), (3, 2), (4, 0), (5, 0), (6, 2), (7, 2), (8, 3), (9, 4), (10, 8)] {
            step("push", cmd::MAP_UPDATE_ELEM, value, flags);
            step("peek", cmd::MAP_LOOKUP_ELEM, value, 0);
        }
        for flags in [0, 1, 4] {
            step("peek", cmd::MAP_LOOKUP_ELEM, 1, flags);
            step("pop", cmd::MAP_LOOKUP_AND_DELETE_ELEM, 1, flags);
        }
        for round in 0..5 {
            step("push", cmd::MAP_UPDATE_ELEM, 20 + round, 0);
            step("pop", cmd::MAP_LOOKUP_AND_DELETE_ELEM, 77, 0);
            step("pop", cmd::MAP_LOOKUP_AND_DELETE_ELEM, 77, 0);
        }
        step("delete", cmd::MAP_DELETE_ELEM, 1, 0);
        step("next", cmd::MAP_GET_NEXT_KEY, 1, 0);
    }
    for extra in [0u64, 1, 15, 16, 1 << 40] {
        for kind in [map_type::BLOOM_FILTER, map_type::QUEUE] {
            let mut attr = create(kind, 0, 8, 1000, 0).with(attr::map_create::MAP_EXTRA, extra);
            close(show_fd(&format!("{kind} with extra {extra:#x}"), bpf(cmd::MAP_CREATE, &mut attr)));
        }
    }
}

fn tries_and_stack_maps_are_checked() {
    const BUILD_ID: u32 = 1 << 5;
    let largest = (4 << 20) - 256 - 24;
    for (key, value, entries, flags) in [
        (5, 1, 1, 1),
        (4, 1, 1, 1),
        (3, 1, 1, 1),
        (0, 1, 1, 1),
        (260, 1, 1, 1),
        (261, 1, 1, 1),
        (u32::MAX, 1, 1, 1),
        (8, 0, 1, 1),
        (8, 1, 0, 1),
        (8, 8, 1, 0),
        (8, 8, u32::MAX, 1),
        (8, largest, 1, 1),
        (8, largest + 1, 1, 1),
        (8, 8, 4, 1 | 0x18),
        (8, 8, 4, 1 | 0x180),
        (8, 8, 4, 1 | 0x88),
    ] {
        let made = bpf(cmd::MAP_CREATE, &mut create(map_type::LPM_TRIE, key, value, entries, flags));
        close(show_fd(&format!("trie {key} {value} {entries} {flags:#x}"), made));
    }
    for (key, value, entries, flags) in [
        (4, 8, 1, 0),
        (4, 4, 1, 0),
        (4, 12, 1, 0),
        (4, 127 * 8, 3, 0),
        (4, 128 * 8, 3, 0),
        (8, 8, 1, 0),
        (4, 8, 0, 0),
        (4, 8, (1 << 31) + 1, 0),
        (4, 32, 1, BUILD_ID),
        (4, 16, 1, BUILD_ID),
        (4, 127 * 32, 1, BUILD_ID),
        (4, 128 * 32, 1, BUILD_ID),
        (4, 16, 1, 0x18),
        (4, 16, 1, 0x80),
    ] {
        let made = bpf(cmd::MAP_CREATE, &mut create(map_type::STACK_TRACE, key, value, entries, flags));
        close(show_fd(&format!("stacks {key} {value} {entries} {flags:#x}"), made));
    }
}

/// Random operations on prefixes that meet often; after each of some, all prefixes in their order.
fn tries_find_and_list_prefixes() {
    for (data_bytes, value_bytes, entries) in [(1usize, 1u32, 6u32), (4, 8, 12), (16, 5, 40), (13, 3, 9)] {
        let attr = &mut create(map_type::LPM_TRIE, 4 + data_bytes as u32, value_bytes, entries, NO_PREALLOC);
        let map = show_fd(&format!("trie of {data_bytes}"), bpf(cmd::MAP_CREATE, attr));
        let mut seed = 7u32 + data_bytes as u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % below
        };
        for round in 0..400u32 {
            let mut key = vec![0u8; 4 + data_bytes];
            key[4] = random(3) as u8 * 0x55;
            key[4 + data_bytes / 2] ^= random(4) as u8 * 0x41;
            key[3 + data_bytes] ^= random(8) as u8;
            let bits = random(data_bytes as u32 * 8 + 2);
            key[..4].copy_from_slice(&bits.to_ne_bytes());
            let (command, flags) = match random(8) {
                0..4 => (cmd::MAP_UPDATE_ELEM, [0, 0, 1, 2, 3, 8][random(6) as usize]),
                4 => (cmd::MAP_DELETE_ELEM, 0),
                5 => (cmd::MAP_LOOKUP_ELEM, [0, 0, 1, 4][random(4) as usize]),
                6 => (cmd::MAP_GET_NEXT_KEY, 0),
                _ => (cmd::MAP_LOOKUP_AND_DELETE_ELEM, 0),
            };
            let mut value = vec![round as u8; 64];
            let done = if command == cmd::MAP_DELETE_ELEM {
                let attr = Attr::new().with(attr::map_elem::MAP_FD, map as u64);
                bpf(command, &mut attr.with(attr::map_elem::KEY, address(&key[..])))
            } else {
                element(map, command, Some(&key), &mut value, flags)
            };
            show(&format!("{command} {key:?} flags {flags}"), done);
            println!("{MARK}  value {:?}", &value[..24]);
            if round % 8 == 7 {
                println!("{MARK}{:?}", listed(map, 4 + data_bytes));
            }
        }
        batches_of_prefixes(map, 4 + data_bytes, value_bytes as usize);
        close(map);
    }
}

/// All keys of a map, from the first one on.
fn listed(map: i64, key_bytes: usize) -> Vec<Vec<u8>> {
    let (mut all, mut next): (Vec<Vec<u8>>, _) = (vec![], vec![0; key_bytes]);
    while all.len() < 100 && element(map, cmd::MAP_GET_NEXT_KEY, all.last().map(Vec::as_slice), &mut next, 0).is_ok()
    {
        all.push(next.clone());
    }
    all
}

fn batches_of_prefixes(map: i64, key_bytes: usize, value_bytes: usize) {
    use attr::batch as b;
    let keys = listed(map, key_bytes).concat();
    let wrong = [vec![0xff; key_bytes], keys.clone()].concat();
    let (mut found, mut got, mut position) = (vec![0u8; 8192], vec![9u8; 8192], vec![0u8; key_bytes]);
    for (command, count, from) in [
        (cmd::MAP_LOOKUP_BATCH, 3, None),
        (cmd::MAP_LOOKUP_BATCH, 2, Some(())),
        (cmd::MAP_LOOKUP_BATCH, 100, Some(())),
        (cmd::MAP_LOOKUP_BATCH, 100, Some(())),
        (cmd::MAP_LOOKUP_AND_DELETE_BATCH, 3, None),
        (cmd::MAP_LOOKUP_BATCH, 0, None),
    ] {
        let attr = Attr::new().with(b::MAP_FD, map as u64).with(b::COUNT, count);
        let attr = attr.with(b::IN_BATCH, from.map_or(0, |()| address(&position[..])));
        let attr = attr.with(b::OUT_BATCH, position.as_mut_ptr() as u64).with(b::KEYS, found.as_mut_ptr() as u64);
        let mut attr = attr.with(b::VALUES, got.as_mut_ptr() as u64);
        show(&format!("batch {command} of {count}"), bpf(command, &mut attr));
        let came = attr.get(b::COUNT) as usize;
        println!("{MARK}  {came} {:?}", &found[..came.min(50) * key_bytes]);
        println!("{MARK}  {:?} {position:?}", &got[..came.min(50) * value_bytes]);
    }
    for (command, keys) in [
        (cmd::MAP_UPDATE_BATCH, &keys),
        (cmd::MAP_UPDATE_BATCH, &wrong),
        (cmd::MAP_DELETE_BATCH, &wrong),
        (cmd::MAP_DELETE_BATCH, &keys),
        (cmd::MAP_DELETE_BATCH, &keys),
    ] {
        let count = (keys.len() / key_bytes) as u64;
        let attr = Attr::new().with(b::MAP_FD, map as u64).with(b::COUNT, count);
        let mut attr = attr.with(b::KEYS, address(&keys[..])).with(b::VALUES, address(&got[..]));
        show(&format!("batch {command} of {count}"), bpf(command, &mut attr));
        println!("{MARK}  came to {} left {:?}", attr.get(b::COUNT), listed(map, key_bytes));
    }
}

fn map_names_and_fields_are_checked() {
    use attr::map_create as m;
    let base = || create(map_type::ARRAY, 4, 8, 1, 0);
    for name in [&b"good_name.1"[..], b"", b"bad name", b"bad-name", b"fifteen_letters", b"sixteen__letters", b"a\0b"]
    {
        let made = bpf(cmd::MAP_CREATE, &mut base().named(m::MAP_NAME, name));
        close(show_fd(&format!("name {:?}", String::from_utf8_lossy(name)), made));
    }
    let cases = [
        ("ifindex", m::MAP_IFINDEX, 1),
        ("btf without types", m::BTF_FD, 77),
        ("key type without value type", m::BTF_KEY_TYPE_ID, 1),
        ("value type with no btf", m::BTF_VALUE_TYPE_ID, 1),
        ("vmlinux value type", m::BTF_VMLINUX_VALUE_TYPE_ID, 1),
        ("map_extra", m::MAP_EXTRA, 1),
        ("excl hash size", m::EXCL_PROG_HASH_SIZE, 1),
        ("numa node without flag", m::NUMA_NODE, 99),
        ("inner map", m::INNER_MAP_FD, 99),
    ];
    for (what, field, value) in cases {
        close(show_fd(what, bpf(cmd::MAP_CREATE, &mut base().with(field, value))));
    }
    let numa = |node| create(map_type::ARRAY, 4, 8, 1, 4).with(m::NUMA_NODE, node);
    for node in [0, 99, u64::from(u32::MAX)] {
        close(show_fd(&format!("numa node {node}"), bpf(cmd::MAP_CREATE, &mut numa(node))));
    }
    let mut tail = base();
    tail.0[ATTR_BYTES - 1] = 1;
    show_fd("last byte set", bpf(cmd::MAP_CREATE, &mut tail));
}

/// An operation on one element; the value behind it is printed.
fn element(map: i64, command: u32, key: Option<&[u8]>, value: &mut [u8], flags: u64) -> Result<i64, Errno> {
    use attr::map_elem as e;
    let attr = Attr::new().with(e::MAP_FD, map as u64).with(e::KEY, key.map_or(0, address));
    bpf(command, &mut attr.with(e::VALUE, value.as_mut_ptr() as u64).with(e::FLAGS, flags))
}

fn elements_behave() {
    // As long as the longest key.
    let key_of = |index: u32| u64::from(index).to_ne_bytes();
    for kind in KINDS {
        let map = show_fd(&format!("map of type {kind}"), bpf(cmd::MAP_CREATE, &mut small(kind, 12)));
        for (index, flags) in [
            (0u32, 0u64),
            (0, 1),
            (0, 2),
            (1, 2),
            (1, 1),
            (2, 0),
            (3, 0),
            (4, 0),
            (5, 1),
            (0, 3),
            (0, 4),
            (0, 8),
            (0, 5),
        ] {
            let mut bytes = vec![index as u8 + 7; 4096];
            let done = element(map, cmd::MAP_UPDATE_ELEM, Some(&key_of(index)), &mut bytes, flags);
            show(&format!("{kind} update {index} flags {flags}"), done);
        }
        for (index, flags) in [(0u32, 0u64), (1, 0), (2, 0), (3, 0), (9, 0), (0, 4), (0, 1), (0, 8)] {
            let mut bytes = vec![0; 4096];
            let done = element(map, cmd::MAP_LOOKUP_ELEM, Some(&key_of(index)), &mut bytes, flags);
            show(&format!("{kind} lookup {index} flags {flags}"), done);
            println!("{MARK}  value {:?}", &bytes[..64]);
        }
        let mut next = [0u8; 4096];
        if matches!(kind, map_type::HASH | map_type::PERCPU_HASH | map_type::LRU_HASH | map_type::LRU_PERCPU_HASH) {
            // The order of a hash is its own affair.
            let mut keys = vec![];
            while keys.len() < 9 {
                let last: Option<[u8; 4]> = keys.last().copied();
                let key = last.as_ref().map(|key| &key[..]);
                if element(map, cmd::MAP_GET_NEXT_KEY, key, &mut next, 0).is_err() {
                    break;
                }
                keys.push(next[..4].try_into().expect("4 bytes"));
            }
            keys.sort_unstable();
            println!("{MARK}{kind} keys {keys:?}");
            show("next after an unknown one", element(map, cmd::MAP_GET_NEXT_KEY, Some(&[77; 4]), &mut next, 0));
        } else {
            for from in [None, Some(0u32), Some(2), Some(77)] {
                let key = from.map(key_of);
                let done = element(map, cmd::MAP_GET_NEXT_KEY, key.as_ref().map(|key| &key[..]), &mut next, 0);
                show(&format!("{kind} next after {from:?}"), done);
                println!("{MARK}  next {:?}", &next[..4]);
            }
        }
        show("next with flags", element(map, cmd::MAP_GET_NEXT_KEY, None, &mut next, 1));
        for (index, flags) in [(0u32, 0u64), (0, 0), (1, 4), (9, 0), (1, 1)] {
            let mut bytes = vec![0; 4096];
            let key = key_of(index);
            let done = element(map, cmd::MAP_LOOKUP_AND_DELETE_ELEM, Some(&key), &mut bytes, flags);
            show(&format!("{kind} take {index} flags {flags}"), done);
            println!("{MARK}  value {:?}", &bytes[..64]);
        }
        for index in [1u32, 1, 9] {
            let attr = Attr::new().with(attr::map_elem::MAP_FD, map as u64);
            let key = key_of(index);
            let done = bpf(cmd::MAP_DELETE_ELEM, &mut attr.with(attr::map_elem::KEY, address(&key)));
            show(&format!("{kind} delete {index}"), done);
            show("delete with a value", element(map, cmd::MAP_DELETE_ELEM, Some(&key), &mut [1], 0));
        }
        close(map);
    }
}

fn bad_pointers_and_descriptors_are_told() {
    use attr::map_elem as e;
    let map = show_fd("hash", bpf(cmd::MAP_CREATE, &mut create(map_type::HASH, 4, 8, 3, 0)));
    let key = 1u32.to_ne_bytes();
    let mut value = [0u8; 8];
    show("update", element(map, cmd::MAP_UPDATE_ELEM, Some(&key), &mut value, 0));
    for command in [cmd::MAP_LOOKUP_ELEM, cmd::MAP_UPDATE_ELEM, cmd::MAP_LOOKUP_AND_DELETE_ELEM] {
        for (key, value) in [(address(&key), 0), (address(&key), 8), (0, address(&value)), (!0 - 8, address(&value))]
        {
            let attr = Attr::new().with(e::MAP_FD, map as u64).with(e::KEY, key).with(e::VALUE, value);
            show(&format!("{command} null key {} value {}", key == 0, value == 0), bpf(command, &mut attr.clone()));
        }
    }
    // SAFETY: takes no memory.
    let pipe_like = unsafe { libc::eventfd(0, 0) };
    for fd in [-1i64, 12345, 0, i64::from(pipe_like)] {
        for command in [
            cmd::MAP_LOOKUP_ELEM,
            cmd::MAP_UPDATE_ELEM,
            cmd::MAP_DELETE_ELEM,
            cmd::MAP_GET_NEXT_KEY,
            cmd::MAP_LOOKUP_AND_DELETE_ELEM,
            cmd::MAP_FREEZE,
            cmd::OBJ_GET_INFO_BY_FD,
            cmd::LINK_DETACH,
            cmd::PROG_BIND_MAP,
        ] {
            show(
                &format!("command {command} on fd {}", if fd > 2 { 3 } else { fd }),
                bpf(command, &mut Attr::new().with(e::MAP_FD, fd as u64)),
            );
        }
        let batch = Attr::new().with(attr::batch::MAP_FD, fd as u64).with(attr::batch::COUNT, 1);
        for command in [cmd::MAP_LOOKUP_BATCH, cmd::MAP_LOOKUP_AND_DELETE_BATCH] {
            show("batch", bpf(command, &mut batch.clone()));
        }
    }
}

/// The commands that both know how to carry out.
const COMMANDS: [u32; 21] = [
    cmd::MAP_CREATE,
    cmd::MAP_LOOKUP_ELEM,
    cmd::MAP_UPDATE_ELEM,
    cmd::MAP_DELETE_ELEM,
    cmd::MAP_GET_NEXT_KEY,
    cmd::PROG_LOAD,
    cmd::PROG_GET_NEXT_ID,
    cmd::PROG_GET_FD_BY_ID,
    cmd::MAP_GET_FD_BY_ID,
    cmd::OBJ_GET_INFO_BY_FD,
    cmd::BTF_LOAD,
    cmd::BTF_GET_FD_BY_ID,
    cmd::MAP_LOOKUP_AND_DELETE_ELEM,
    cmd::MAP_FREEZE,
    cmd::MAP_GET_NEXT_ID,
    cmd::MAP_LOOKUP_BATCH,
    cmd::MAP_LOOKUP_AND_DELETE_BATCH,
    cmd::LINK_CREATE,
    cmd::LINK_GET_FD_BY_ID,
    cmd::LINK_DETACH,
    cmd::PROG_BIND_MAP,
];

fn attributes_are_checked() {
    for command in COMMANDS {
        let mut long = [0u8; 8192];
        for bytes in [0, 1, 3, 4, 8, 40, ATTR_BYTES, ATTR_BYTES + 1, 4096] {
            if matches!(command, cmd::PROG_GET_NEXT_ID | cmd::MAP_GET_NEXT_ID) {
                continue; // what other objects there are differs
            }
            long.fill(0);
            show(&format!("{command}: {bytes} zero bytes"), bpf_sized(command, long.as_mut_ptr(), bytes));
        }
        show(&format!("{command}: too long"), bpf_sized(command, long.as_mut_ptr(), 4097));
        long[ATTR_BYTES + 4] = 1;
        show(&format!("{command}: unknown tail"), bpf_sized(command, long.as_mut_ptr(), ATTR_BYTES + 8));
        show(&format!("{command}: bad address"), bpf_sized(command, 8 as *mut u8, ATTR_BYTES));
        show(&format!("{command}: no address"), bpf_sized(command, std::ptr::null_mut(), ATTR_BYTES));
        // Each byte by itself: which are checked to be zero.
        let by_id = cmd::name(command).is_some_and(|name| name.ends_with("_ID"));
        let mut verdicts: Vec<(usize, &str)> = vec![];
        for at in 0..ATTR_BYTES {
            let mut attr = Attr::new();
            attr.0[at] = 0x40;
            let verdict = bpf(command, &mut attr);
            let name = match verdict {
                // Other objects on the machine have ids.
                Ok(_) | Err(Errno::ENOENT) if by_id => "an id",
                Ok(_) => "ok",
                Err(errno) => errno.name(),
            };
            // 0 is a result, not a descriptor.
            verdict.into_iter().filter(|fd| *fd > 2).for_each(close);
            if verdicts.last().is_none_or(|(_, last)| *last != name) {
                verdicts.push((at, name));
            }
        }
        println!("{MARK}{command}: bytes from: {verdicts:?}");
    }
    for command in [38, 39, 1000, u32::MAX] {
        show(&format!("unknown command {command}"), bpf(command, &mut Attr::new()));
    }
}

fn access_modes_and_freezing_are_kept() {
    const RDONLY: u32 = 8;
    const WRONLY: u32 = 16;
    let key = 0u32.to_ne_bytes();
    for flags in [0, RDONLY, WRONLY] {
        let map = show_fd(
            &format!("array with {flags}"),
            bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 2, flags)),
        );
        let try_all = |fd: i64, what: &str| {
            let mut value = [1u8; 8];
            show(&format!("{what} update"), element(fd, cmd::MAP_UPDATE_ELEM, Some(&key), &mut value, 0));
            show(&format!("{what} lookup"), element(fd, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
            show(&format!("{what} next"), element(fd, cmd::MAP_GET_NEXT_KEY, None, &mut value, 0));
            let delete = Attr::new().with(attr::map_elem::MAP_FD, fd as u64).with(attr::map_elem::KEY, address(&key));
            show(&format!("{what} delete"), bpf(cmd::MAP_DELETE_ELEM, &mut delete.clone()));
            show(&format!("{what} take"), element(fd, cmd::MAP_LOOKUP_AND_DELETE_ELEM, Some(&key), &mut value, 0));
            // SAFETY: takes no memory.
            let mode = unsafe { libc::fcntl(fd as i32, libc::F_GETFL) } & libc::O_ACCMODE;
            println!("{MARK}{what} mode {mode}");
        };
        try_all(map, "own");
        let id = id_of(map);
        for open_flags in [0u64, 8, 16, 24, 1] {
            let attr = Attr::new().with(attr::id::START_ID, id).with(attr::id::OPEN_FLAGS, open_flags);
            let other = show_fd(&format!("by id {open_flags}"), bpf(cmd::MAP_GET_FD_BY_ID, &mut attr.clone()));
            if other >= 0 {
                try_all(other, "by id");
            }
            close(other);
        }
        let freeze = || bpf(cmd::MAP_FREEZE, &mut Attr::new().with(attr::map_elem::MAP_FD, map as u64));
        show("freeze", freeze());
        show("freeze again", freeze());
        try_all(map, "frozen");
        close(map);
    }
}

/// Of a map or a program.
fn id_of(fd: i64) -> u64 {
    let mut told = [0u32; 26];
    let attr = Attr::new().with(attr::info::BPF_FD, fd as u64).with(attr::info::INFO_LEN, 104);
    let _ = bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(attr::info::INFO, told.as_mut_ptr() as u64));
    told[1].into()
}

/// Freezing with a mapping that can be written.
fn freeze_mapped(map: i64) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, map as i32, 0) };
    if at != libc::MAP_FAILED {
        let freeze = bpf(cmd::MAP_FREEZE, &mut Attr::new().with(attr::map_elem::MAP_FD, map as u64));
        show("freeze while mapped", freeze);
        // SAFETY: unmaps what was just mapped.
        unsafe { libc::munmap(at, 4096) };
    }
}

fn mappings_are_checked() {
    let maps = [
        ("array", create(map_type::ARRAY, 4, 8, 1000, 0)),
        ("mmapable", create(map_type::ARRAY, 4, 8, 1000, 1 << 10)),
        ("mmapable rdonly prog", create(map_type::ARRAY, 4, 8, 1000, 1 << 10 | 1 << 7)),
        ("ring", create(map_type::RINGBUF, 0, 0, 8192, 0)),
        ("user ring", create(map_type::USER_RINGBUF, 0, 0, 8192, 0)),
        ("trie", create(map_type::LPM_TRIE, 8, 8, 10, NO_PREALLOC)),
        ("stacks", create(map_type::STACK_TRACE, 4, 16, 10, 0)),
        ("hash", create(map_type::HASH, 4, 8, 10, 0)),
        ("rdonly fd", create(map_type::ARRAY, 4, 8, 1000, 1 << 10 | 8)),
    ];
    for (name, mut attr) in maps {
        let map = show_fd(name, bpf(cmd::MAP_CREATE, &mut attr));
        for frozen in [false, true] {
            if frozen {
                freeze_mapped(map);
                let freeze = bpf(cmd::MAP_FREEZE, &mut Attr::new().with(attr::map_elem::MAP_FD, map as u64));
                show("freeze", freeze);
            }
            for bytes in [1, 4096, 8000, 8192, 12288, 16384, 24576, 28672] {
                for offset in [0, 4096, 8192] {
                    for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
                        // SAFETY: a new mapping at an address that the kernel chooses.
                        let at = unsafe {
                            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, map as i32, offset)
                        };
                        let made = if at == libc::MAP_FAILED { result(-1) } else { Ok(0) };
                        show(&format!("{name} mmap {bytes} at {offset} as {protection}"), made);
                        if at != libc::MAP_FAILED {
                            // SAFETY: unmaps what was just mapped.
                            unsafe { libc::munmap(at, bytes) };
                        }
                    }
                }
            }
        }
        close(map);
    }
}

/// BTF: header, one int (id 1), then `types`; `strings` behind "\0int\0".
fn btf_blob(types: &[u32], strings: &[u8]) -> Vec<u8> {
    let mut all = vec![1, 0x0100_0000, 4, 0x0100_0020];
    all.extend_from_slice(types);
    let mut text = b"\0int\0".to_vec();
    text.extend_from_slice(strings);
    let bytes = all.len() as u32 * 4;
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, bytes, bytes, text.len() as u32] {
        blob.extend_from_slice(&word.to_le_bytes());
    }
    all.iter().for_each(|word| blob.extend_from_slice(&word.to_le_bytes()));
    blob.extend_from_slice(&text);
    blob
}

fn load_btf(blob: &[u8]) -> Result<i64, Errno> {
    use attr::btf_load as b;
    bpf(cmd::BTF_LOAD, &mut Attr::new().with(b::BTF, address(blob)).with(b::BTF_SIZE, blob.len() as u64))
}

fn btf_is_loaded_and_checked() {
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("int", btf_blob(&[], b"")),
        ("func", btf_blob(&[0, 0x0d00_0000, 0, 5, 0x0c00_0000, 2], b"f\0")),
        ("global func", btf_blob(&[0, 0x0d00_0000, 0, 5, 0x0c00_0001, 2], b"f\0")),
        ("datasec", btf_blob(&[5, 0x0e00_0000, 1, 0, 7, 0x0f00_0001, 4, 2, 0, 4], b"x\0.d\0")),
        ("float", btf_blob(&[5, 0x1000_0000, 4], b"f\0")),
        ("decl tag", btf_blob(&[5, 0x0e00_0000, 1, 1, 5, 0x1100_0000, 2, 0xffff_ffff], b"x\0")),
        ("type tag", btf_blob(&[5, 0x1200_0000, 1, 0, 0x0200_0000, 2], b"x\0")),
        ("enum64", btf_blob(&[0, 0x1300_0001, 8, 5, 0, 0], b"e\0")),
        ("pointer to nothing there", btf_blob(&[0, 0x0200_0000, 9], b"")),
        ("unknown kind", btf_blob(&[0, 0x1f00_0000, 9], b"")),
        ("name outside", btf_blob(&[99, 0x1000_0000, 4], b"")),
        ("cut type", btf_blob(&[0, 0x0200_0000], b"")),
        ("no last NUL", btf_blob(&[], b"x")),
        ("reserved bits", btf_blob(&[0, 0x02ff_0000, 1], b"")),
    ];
    for (name, blob) in &cases {
        close(show_fd(name, load_btf(blob)));
    }
    let good = btf_blob(&[], b"");
    for (at, byte) in
        [(0, 0), (2, 2), (3, 1), (4, 23), (4, 28), (8, 4), (8, 2), (12, 0), (16, 200), (20, 0), (20, 200)]
    {
        let mut bad = good.clone();
        bad[at] = byte;
        close(show_fd(&format!("header byte {at} = {byte}"), load_btf(&bad)));
    }
    for bytes in [0, 1, 8, 23, 24, 30] {
        close(show_fd(&format!("first {bytes} bytes"), load_btf(&good[..bytes])));
    }
    let btf = show_fd("int again", load_btf(&good));
    for kind in [map_type::ARRAY, map_type::HASH, map_type::PERCPU_ARRAY] {
        use attr::map_create as m;
        let attr = create(kind, 4, 4, 3, 0).with(m::BTF_FD, btf as u64);
        let made = bpf(cmd::MAP_CREATE, &mut attr.with(m::BTF_KEY_TYPE_ID, 1).with(m::BTF_VALUE_TYPE_ID, 1));
        close(show_fd(&format!("map {kind} with types"), made));
    }
    let mut bad = create(map_type::ARRAY, 4, 4, 3, 0);
    for fd in [0u64, 999] {
        use attr::map_create as m;
        bad = bad.with(m::BTF_FD, fd).with(m::BTF_KEY_TYPE_ID, 1).with(m::BTF_VALUE_TYPE_ID, 1);
        show_fd(&format!("map with btf {fd}"), bpf(cmd::MAP_CREATE, &mut bad));
    }
}

const MOV_R0_0: u64 = 0xb7;
const EXIT: u64 = 0x95;
/// A jump to nowhere.
const BAD: u64 = 0x50_0005;

fn load_attr(kind: u32, insns: &[u64]) -> Attr {
    use attr::prog_load as p;
    let attr = Attr::new().with(p::PROG_TYPE, kind.into()).with(p::INSN_CNT, insns.len() as u64);
    attr.with(p::INSNS, address(insns)).with(p::LICENSE, address(c"GPL".to_bytes_with_nul()))
}

fn programs_are_loaded_and_checked() {
    use attr::prog_load as p;
    let good = [MOV_R0_0, EXIT];
    for kind in [
        prog_type::SOCKET_FILTER,
        prog_type::KPROBE,
        prog_type::TRACEPOINT,
        prog_type::PERF_EVENT,
        prog_type::XDP,
        0,
        33,
        1000,
    ] {
        close(show_fd(&format!("type {kind}"), bpf(cmd::PROG_LOAD, &mut load_attr(kind, &good))));
    }
    let kprobe = || load_attr(prog_type::KPROBE, &good);
    let cases = [
        ("no insns", p::INSN_CNT, 0),
        ("too many insns", p::INSN_CNT, 1_000_001),
        ("bad insns", p::INSNS, 8),
        ("bad license", p::LICENSE, 8),
        ("no license", p::LICENSE, 0),
        ("unknown flags", p::PROG_FLAGS, 1 << 31),
        ("strict alignment", p::PROG_FLAGS, 1),
        ("btf fd", p::PROG_BTF_FD, 999),
        ("ifindex", p::PROG_IFINDEX, 9999),
        ("attach prog fd", p::ATTACH_PROG_FD, 999),
        ("kern version", p::KERN_VERSION, 5),
        ("func info", p::FUNC_INFO_CNT, 1),
    ];
    for (what, field, value) in cases {
        close(show_fd(what, bpf(cmd::PROG_LOAD, &mut kprobe().with(field, value))));
    }
    for name in [&b"good_name"[..], b"bad name", b"sixteen__letters", b"fifteen_letters"] {
        let made = bpf(cmd::PROG_LOAD, &mut kprobe().named(p::PROG_NAME, name));
        close(show_fd(&format!("name {:?}", String::from_utf8_lossy(name)), made));
    }
    let (jump, unknown_helper) = (0x05_0005, 0x7fff_0000_0085);
    for insns in [&[MOV_R0_0][..], &[0xff, EXIT], &[jump, EXIT], &[MOV_R0_0, 0x10_b7, EXIT], &[unknown_helper, EXIT]]
    {
        close(show_fd(&format!("insns {insns:x?}"), bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, insns))));
    }
    for fd in [-1i32, 0, 999] {
        let load = [0x1118 | u64::from(fd as u32) << 32, 0, MOV_R0_0, EXIT];
        close(show_fd(&format!("map fd {fd}"), bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &load))));
    }
}

fn logs_follow_the_rules() {
    use attr::prog_load as p;
    let mut buffer = [0x55u8; 4096];
    for insns in [&[MOV_R0_0, EXIT][..], &[BAD, EXIT]] {
        for (level, bytes, there) in [
            (0u64, 0u64, false),
            (1, 0, false),
            (1, 4096, true),
            (1, 0, true),
            (0, 4096, true),
            (1, 4096, false),
            (16, 4096, true),
            (3, 4096, true),
            (4, 4096, true),
            (1, 1 << 30, true),
            (1, 1, true),
            (9, 1, true),
        ] {
            buffer.fill(0x55);
            let attr = load_attr(prog_type::KPROBE, insns).with(p::LOG_LEVEL, level).with(p::LOG_SIZE, bytes);
            let mut attr = attr.with(p::LOG_BUF, if there { buffer.as_mut_ptr() as u64 } else { 0 });
            let loaded = bpf(cmd::PROG_LOAD, &mut attr);
            close(show_fd(&format!("level {level} size {bytes} buffer {there}"), loaded));
            // The texts are the verifiers' own; that there is one, and that it ends, is the kernel's rule.
            let any = buffer[0] != 0x55;
            let ends = buffer.iter().take(bytes.min(4096) as usize).any(|byte| *byte == 0);
            println!("{MARK}  log {any} ends {ends} true size {}", attr.get(p::LOG_TRUE_SIZE) > 0);
        }
    }
    use attr::btf_load as b;
    let bad = btf_blob(&[0, 0x0200_0000, 9], b"");
    for (level, bytes, there) in [(1u64, 4096u64, true), (1, 0, true), (0, 4096, true), (1, 5, true), (1, 0, false)] {
        buffer.fill(0x55);
        let attr = Attr::new().with(b::BTF, address(&bad[..])).with(b::BTF_SIZE, bad.len() as u64);
        let attr = attr.with(b::BTF_LOG_LEVEL, level).with(b::BTF_LOG_SIZE, bytes);
        let mut attr = attr.with(b::BTF_LOG_BUF, if there { buffer.as_mut_ptr() as u64 } else { 0 });
        show_fd(&format!("btf level {level} size {bytes} buffer {there}"), bpf(cmd::BTF_LOAD, &mut attr));
        println!("{MARK}  log {} true size {}", buffer[0] != 0x55, attr.get(b::BTF_LOG_TRUE_SIZE) > 0);
    }
}

fn information_is_told() {
    use attr::{info as i, map_create as m};
    let map =
        show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::HASH, 4, 12, 7, 1).named(m::MAP_NAME, b"a_map")));
    let use_map = [0x1118 | (map as u64) << 32, 0, MOV_R0_0, EXIT];
    let mut load = load_attr(prog_type::KPROBE, &use_map).named(attr::prog_load::PROG_NAME, b"a_prog");
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load));
    let btf = show_fd("btf", load_btf(&btf_blob(&[], b"")));
    for (name, fd) in [("map", map), ("program", program), ("btf", btf)] {
        for bytes in [0u64, 4, 8, 40, 64, 88, 104, 232, 300, 4096, 4097] {
            let mut told = [0u8; 8192];
            let mut attr = Attr::new()
                .with(i::BPF_FD, fd as u64)
                .with(i::INFO_LEN, bytes)
                .with(i::INFO, told.as_mut_ptr() as u64);
            show(&format!("{name} info of {bytes}"), bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr));
            println!("{MARK}  length {}", attr.get(i::INFO_LEN));
            let untold: &[(usize, usize)] = match name {
                "map" => &[(4, 8)],                                                    // id
                "program" => &[(4, 24), (40, 48), (104, 112), (180, 184), (216, 220)], // id, tag, code, time, tags
                _ => &[(12, 16)],                                                      // id
            };
            untold.iter().for_each(|(start, end)| told[*start..*end].fill(0));
            println!("{MARK}  {:?}", &told[..240]);
            told.fill(0);
            if bytes == 300 {
                told[290] = 1;
                let mut attr = Attr::new()
                    .with(i::BPF_FD, fd as u64)
                    .with(i::INFO_LEN, bytes)
                    .with(i::INFO, told.as_mut_ptr() as u64);
                show(&format!("{name} info with an unknown tail"), bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr));
            }
        }
        let mut attr = Attr::new().with(i::BPF_FD, fd as u64).with(i::INFO_LEN, 64).with(i::INFO, 8);
        show(&format!("{name} info nowhere"), bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr));
    }
    // Lists: the program's maps, and BTF's bytes.
    let (mut ids, mut told) = ([0u32; 4], [0u8; 232]);
    for room in [0u32, 1, 4] {
        told.fill(0);
        told[52..56].copy_from_slice(&room.to_ne_bytes());
        told[56..64].copy_from_slice(&(ids.as_mut_ptr() as u64).to_ne_bytes());
        let attr = Attr::new().with(i::BPF_FD, program as u64).with(i::INFO_LEN, 232);
        show("map ids", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(i::INFO, told.as_mut_ptr() as u64)));
        println!("{MARK}  {} maps, id told {}", told[52], u64::from(ids[0]) == id_of(map));
    }
    let mut insns = [0u64; 8];
    told.fill(0);
    told[20..24].copy_from_slice(&64u32.to_ne_bytes());
    told[32..40].copy_from_slice(&(insns.as_mut_ptr() as u64).to_ne_bytes());
    let attr = Attr::new().with(i::BPF_FD, program as u64).with(i::INFO_LEN, 232);
    show("xlated", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(i::INFO, told.as_mut_ptr() as u64)));
    insns[0] = insns[0] & 0xffff_ffff | u64::from(insns[0] >> 32 == id_of(map)) << 32;
    println!("{MARK}  {insns:x?}");
    let mut bytes = [0u8; 80];
    let mut told = [0u8; 32];
    told[..8].copy_from_slice(&(bytes.as_mut_ptr() as u64).to_ne_bytes());
    told[8..12].copy_from_slice(&80u32.to_ne_bytes());
    let attr = Attr::new().with(i::BPF_FD, btf as u64).with(i::INFO_LEN, 32);
    show("btf bytes", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(i::INFO, told.as_mut_ptr() as u64)));
    println!("{MARK}  {bytes:?} {:?}", &told[8..12]);
}

fn objects_live_as_long_as_somebody_holds_them() {
    let by_id = |command: u32, id: u64| {
        let fd = bpf(command, &mut Attr::new().with(attr::id::START_ID, id));
        if let Ok(fd) = fd {
            close(fd);
        }
        fd.map(|_| 0)
    };
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::HASH, 4, 12, 7, 0)));
    let map_id = id_of(map);
    // SAFETY: takes no memory.
    let twin = i64::from(unsafe { libc::dup(map as i32) });
    close(map);
    show("a duplicate keeps it", by_id(cmd::MAP_GET_FD_BY_ID, map_id));
    let use_map = [0x1118 | (twin as u64) << 32, 0, MOV_R0_0, EXIT];
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &use_map)));
    let program_id = id_of(program);
    close(twin);
    show("a program keeps it", by_id(cmd::MAP_GET_FD_BY_ID, map_id));
    show("the program is there", by_id(cmd::PROG_GET_FD_BY_ID, program_id));
    let again = bpf(cmd::MAP_GET_FD_BY_ID, &mut Attr::new().with(attr::id::START_ID, map_id)).unwrap_or(-1);
    let key = [1u8, 2, 3, 4];
    show("used by its id", element(again, cmd::MAP_UPDATE_ELEM, Some(&key), &mut [9; 12], 0));
    close(program);
    wait_until("program gone", || by_id(cmd::PROG_GET_FD_BY_ID, program_id) == Err(Errno::ENOENT));
    show("a descriptor keeps the map", by_id(cmd::MAP_GET_FD_BY_ID, map_id));
    close(again);
    wait_until("map gone", || by_id(cmd::MAP_GET_FD_BY_ID, map_id) == Err(Errno::ENOENT));
    let mapped = show_fd("mapped", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 512, 1 << 10)));
    let mapped_id = id_of(mapped);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, mapped as i32, 0) };
    close(mapped);
    show("a mapping keeps it", by_id(cmd::MAP_GET_FD_BY_ID, mapped_id));
    // SAFETY: unmaps what was just mapped.
    unsafe { libc::munmap(at, 4096) };
    wait_until("mapped gone", || by_id(cmd::MAP_GET_FD_BY_ID, mapped_id) == Err(Errno::ENOENT));
    // Many descriptions closed at the same moment: no close may be missed.
    let many = show_fd("many", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 5, 0)));
    let many_id = id_of(many);
    let open = |_: i32| bpf(cmd::MAP_GET_FD_BY_ID, &mut Attr::new().with(attr::id::START_ID, many_id)).unwrap_or(-1);
    let all: Vec<i64> = (0..100).map(open).collect();
    close(many);
    // SAFETY: closes the scenario's own descriptors.
    all.iter().for_each(|fd| close(*fd));
    wait_until("many gone", || by_id(cmd::MAP_GET_FD_BY_ID, many_id) == Err(Errno::ENOENT));
    let cut = show_fd("cut", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 512, 1 << 10)));
    for bytes in [0, 1 << 20] {
        // SAFETY: takes numbers.
        println!("{MARK}resized: {}", unsafe { libc::ftruncate(cut as i32, bytes) });
    }
    show("not cut", element(cut, cmd::MAP_LOOKUP_ELEM, Some(&[0; 4]), &mut [0; 8], 0));
    let flags = show_fd("flags", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 5, 0)));
    // SAFETY: takes no memory.
    println!("{MARK}close on exec: {}", unsafe { libc::fcntl(flags as i32, libc::F_GETFD) });
}

/// `struct perf_event_attr` of a uprobe.
fn perf_event(kind: u32, config: u64, path: u64, offset: u64) -> [u8; 136] {
    use ring3_uapi::perf as p;
    let mut attr = [0u8; 136];
    let mut put = |field: Field, value: u64| {
        attr[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
    };
    put(p::TYPE, kind.into());
    put(p::SIZE, 136);
    put(p::CONFIG, config);
    put(p::CONFIG1, path);
    put(p::CONFIG2, offset);
    attr
}

fn open_event(attr: &[u8; 136], pid: i32, cpu: i32, group: i32, flags: u64) -> Result<i64, Errno> {
    // SAFETY: perf_event_open reads 136 bytes at the address.
    result(unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), pid, cpu, group, flags) })
}

fn uprobe_type() -> u32 {
    let text = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn ioctl(fd: i64, request: u32, argument: u64) -> Result<i64, Errno> {
    // SAFETY: perf events' requests take numbers, or addresses that the kernel checks.
    result(i64::from(unsafe { libc::ioctl(fd as i32, libc::c_ulong::from(request), argument) }))
}

fn uprobe_events_are_checked() {
    let kind = uprobe_type();
    let (path, offset) = site();
    let text = address(path.to_bytes_with_nul());
    let paths: [(&str, &std::ffi::CStr); 6] = [
        ("none", c""),
        ("absent", c"/no/such/file"),
        ("folder", c"/usr"),
        ("device", c"/dev/null"),
        ("relative", c"bin/no"),
        ("not a folder", c"/bin/true/x"),
    ];
    for (what, path) in paths {
        let attr = perf_event(kind, 0, address(path.to_bytes_with_nul()), 0);
        close(show_fd(what, open_event(&attr, -1, 0, -1, 0)));
    }
    let attr = perf_event(kind, 0, text, 1 << 40);
    show_fd("offset behind the file", open_event(&attr, -1, 0, -1, 0));
    show_fd("no path", open_event(&perf_event(kind, 0, 0, 0), -1, 0, -1, 0));
    show_fd("bad path", open_event(&perf_event(kind, 0, 8, 0), -1, 0, -1, 0));
    let good = perf_event(kind, 0, text, offset);
    for (pid, cpu, group, flags) in [
        (-1, -1, -1, 0),
        (-1, 0, -1, 0),
        (-1, 0, -1, 8),
        (-1, 0, -1, 1 << 10),
        (-1, 99999, -1, 0),
        (-1, -2, -1, 0),
        (0, -1, -1, 0),
        (0, 0, -1, 0),
        (2_000_000_000, -1, -1, 0),
    ] {
        let fd = show_fd(
            &format!("pid {pid} cpu {cpu} group {group} flags {flags}"),
            open_event(&good, pid, cpu, group, flags),
        );
        if fd >= 0 {
            // SAFETY: takes no memory.
            println!("{MARK}  close on exec {}", unsafe { libc::fcntl(fd as i32, libc::F_GETFD) });
        }
        close(fd);
    }
    use ring3_uapi::perf as p;
    for (bytes, last) in [(8, 0), (63, 0), (72, 0), (136, 0), (300, 0), (300, 1), (4096, 0), (4097, 0)] {
        let (bytes, last): (u32, u8) = (bytes, last);
        let mut attr = [0u8; 5000];
        attr[..136].copy_from_slice(&good);
        attr[p::SIZE.at..p::SIZE.end()].copy_from_slice(&bytes.to_ne_bytes());
        attr[299] = last;
        // SAFETY: perf_event_open reads and writes at most 4097 bytes at the address.
        let opened = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_mut_ptr(), -1, 0, -1, 0) };
        close(show_fd(&format!("attr of {bytes} bytes, tail {last}"), result(opened)));
        println!("{MARK}  size {}", u32::from_ne_bytes(attr[4..8].try_into().expect("4 bytes")));
    }
    for (what, field, value) in [
        ("reserved flags", p::FLAGS, 1u64 << 63),
        ("disabled", p::FLAGS, 1),
        ("unknown sample type", p::SAMPLE_TYPE, 1 << 40),
        ("reserved word", ring3_uapi::attr::word(108), 1),
        ("config bits", p::CONFIG, 1 << 8),
    ] {
        let mut attr = good;
        attr[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
        close(show_fd(what, open_event(&attr, -1, 0, -1, 0)));
    }
    let ret = show_fd("on return", open_event(&perf_event(kind, 1, text, offset), -1, 0, -1, 0));
    let event = show_fd("good", open_event(&good, -1, 0, -1, 0));
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT])));
    let filter = show_fd("filter", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::SOCKET_FILTER, &[MOV_R0_0, EXIT])));
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 4, 1, 0)));
    let (mut id, mut query) = (0u64, [0u32; 4]);
    for (what, request, argument) in [
        ("id", p::IOC_ID, &raw mut id as u64),
        ("id nowhere", p::IOC_ID, 8),
        ("set filter", p::IOC_SET_BPF, filter as u64),
        ("set map", p::IOC_SET_BPF, map as u64),
        ("set nothing", p::IOC_SET_BPF, u64::MAX),
        ("set program", p::IOC_SET_BPF, program as u64),
        ("set program again", p::IOC_SET_BPF, program as u64),
        ("enable", p::IOC_ENABLE, 0),
        ("enable again", p::IOC_ENABLE, 0),
        ("disable", p::IOC_DISABLE, 0),
        ("reset", p::IOC_RESET, 0),
        ("refresh", p::IOC_REFRESH, 1),
        ("query", p::IOC_QUERY_BPF, &raw mut query as u64),
        ("unknown", 0x24ff, 0),
    ] {
        show(what, ioctl(event, request, argument));
    }
    links_are_checked(ret, event, program, filter, map);
    close(event);
    close(ret);
}

fn links_are_checked(ret: i64, event: i64, program: i64, filter: i64, map: i64) {
    use attr::link_create as l;
    let link = |program: i64, target: i64, kind: u32, flags: u64| {
        let attr = Attr::new().with(l::PROG_FD, program as u64).with(l::TARGET_FD, target as u64);
        bpf(
            cmd::LINK_CREATE,
            &mut attr.with(l::ATTACH_TYPE, kind.into()).with(l::FLAGS, flags).with(l::PERF_EVENT_COOKIE, 77),
        )
    };
    let kind = attach_type::PERF_EVENT;
    show_fd("link to nothing", link(program, -1, kind, 0));
    show_fd("link to a map", link(program, map, kind, 0));
    show_fd("link of no program", link(-1, event, kind, 0));
    show_fd("link of a map", link(map, event, kind, 0));
    show_fd("link of a filter", link(filter, ret, kind, 0));
    show_fd("link with flags", link(program, ret, kind, 1));
    show_fd("link of another type", link(program, ret, attach_type::XDP, 0));
    show_fd("link to a taken event", link(program, event, kind, 0));
    let made = show_fd("link", link(program, ret, kind, 0));
    show_fd("second link", link(program, ret, kind, 0));
    show("detach", bpf(cmd::LINK_DETACH, &mut Attr::new().with(l::PROG_FD, made as u64)));
    show("detach a map", bpf(cmd::LINK_DETACH, &mut Attr::new().with(l::PROG_FD, map as u64)));
    let mut told = [0u8; 64];
    let mut name = [0u8; 64];
    for room in [0u32, 5, 64] {
        told.fill(0);
        name.fill(0);
        if room > 0 {
            told[24..32].copy_from_slice(&(name.as_mut_ptr() as u64).to_ne_bytes());
            told[32..36].copy_from_slice(&room.to_ne_bytes());
        }
        let attr = Attr::new().with(attr::info::BPF_FD, made as u64).with(attr::info::INFO_LEN, 64);
        show("link info", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(attr::info::INFO, told.as_mut_ptr() as u64)));
        told[4..12].fill(0); // ids
        told[24..32].fill(0);
        println!("{MARK}  {told:?} {:?}", String::from_utf8_lossy(&name));
    }
    close(made);
    wait_until("free again", || match link(program, ret, kind, 0) {
        Ok(fd) => {
            close(fd);
            true
        }
        Err(_) => false,
    });
}

/// What is probed; nobody calls it.
#[inline(never)]
extern "C" fn probed(a: u64, b: u64) -> u64 {
    std::hint::black_box(a).rotate_left(7) ^ std::hint::black_box(b).wrapping_mul(3)
}

/// This file, and the offset of [`probed`] in it.
fn site() -> (std::ffi::CString, u64) {
    let path = std::env::current_exe().expect("this file").into_os_string().into_encoded_bytes();
    let at = std::hint::black_box(probed as extern "C" fn(u64, u64) -> u64) as usize as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process has mappings");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
    let offset = maps.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let (start, end) = words[0].split_once('-')?;
        (hex(start)..hex(end)).contains(&at).then(|| at - hex(start) + hex(words[2]))
    });
    (std::ffi::CString::new(path).expect("a path"), offset.expect("a function is mapped"))
}

fn buffers_can_be_waited_for() {
    let ring = show_fd("ring", bpf(cmd::MAP_CREATE, &mut create(map_type::RINGBUF, 0, 0, 4096, 0)));
    // SAFETY: takes no memory.
    let ready = unsafe { libc::eventfd(1, 0) };
    let entry = |fd: i64| libc::pollfd { fd: fd as i32, events: libc::POLLIN, revents: 77 };
    for fds in [vec![ring], vec![ring, i64::from(ready)], vec![ring, 999], vec![-1, ring]] {
        let mut entries: Vec<libc::pollfd> = fds.iter().map(|fd| entry(*fd)).collect();
        for timeout in [0, 5] {
            // SAFETY: poll reads and writes the entries, whose number it is told.
            let polled = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout) };
            show("poll", result(polled.into()));
            println!("{MARK}  {:?}", entries.iter().map(|entry| entry.revents).collect::<Vec<_>>());
            let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(timeout) * 1_000_000 };
            // SAFETY: as for poll; the time is read.
            let polled =
                unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, &time, std::ptr::null()) };
            show("ppoll", result(polled.into()));
        }
    }
    select_waits(ring, ready);
    // SAFETY: takes no memory.
    let epoll = unsafe { libc::epoll_create1(0) };
    let control = |operation: i32, fd: i64, event: Option<&mut libc::epoll_event>| {
        let event = event.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: epoll_ctl reads the event where there is one.
        result(unsafe { libc::epoll_ctl(epoll, operation, fd as i32, event) }.into())
    };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 42 };
    show("modify before", control(libc::EPOLL_CTL_MOD, ring, Some(&mut event)));
    show("delete before", control(libc::EPOLL_CTL_DEL, ring, None));
    show("add without event", control(libc::EPOLL_CTL_ADD, ring, None));
    show("add", control(libc::EPOLL_CTL_ADD, ring, Some(&mut event)));
    show("add again", control(libc::EPOLL_CTL_ADD, ring, Some(&mut event)));
    show("unknown operation", control(9, ring, Some(&mut event)));
    // SAFETY: epoll_wait writes at most one event.
    show("wait", result(unsafe { libc::epoll_wait(epoll, &mut event, 1, 3) }.into()));
    show("modify", control(libc::EPOLL_CTL_MOD, ring, Some(&mut event)));
    show("delete", control(libc::EPOLL_CTL_DEL, ring, None));
    show("delete again", control(libc::EPOLL_CTL_DEL, ring, None));
    perf_buffers_can_be_waited_for(epoll);
}

fn select_waits(ring: i64, ready: i32) {
    // What a table has no room for is not waited for: give both sides' tables the same room, for 256 descriptors.
    // SAFETY: takes no memory.
    let high = unsafe { libc::dup2(ready, 200) };
    // SAFETY: takes no memory.
    unsafe { libc::close(high) };
    let set_of = |fds: &[i64]| {
        fds.iter().fold([0u64; 16], |mut set, fd| {
            set[*fd as usize / 64] |= 1 << (fd % 64);
            set
        })
    };
    let both = [ring, i64::from(ready)];
    for (read, write, fraction) in [
        (&both[..1], &both[..0], 3000u64),
        (&both[..], &both[..0], 3000),
        (&both[..], &both[..], 0),
        (&[ring, 100], &both[..0], 3000),
        (&[ring, 600], &both[..0], 3000),
        (&both[..1], &both[..0], u64::MAX),
        (&both[..1], &both[..0], 0),
    ] {
        for call in [libc::SYS_select, libc::SYS_pselect6] {
            let (mut reads, mut writes, mut time) = (set_of(read), set_of(write), [0u64, fraction]);
            let null = std::ptr::null_mut::<u64>();
            let (reads_at, writes_at, time_at) = (reads.as_mut_ptr(), writes.as_mut_ptr(), time.as_mut_ptr());
            // SAFETY: select reads and writes the sets, of 1024 bits, and the time.
            let done = unsafe { libc::syscall(call, 1024, reads_at, writes_at, null, time_at, null) };
            show("select", result(done));
            println!(
                "{MARK}  {:?} {:?} time left {}",
                reads == set_of(read),
                writes == set_of(write),
                time[1] == fraction
            );
        }
    }
}

fn perf_buffers_can_be_waited_for(epoll: i32) {
    use ring3_uapi::perf as p;
    let array = show_fd("perf array", bpf(cmd::MAP_CREATE, &mut create(map_type::PERF_EVENT_ARRAY, 4, 4, 2, 0)));
    let mut attr = perf_event(p::TYPE_SOFTWARE, p::COUNT_SW_BPF_OUTPUT, 0, 0);
    attr[p::SAMPLE_TYPE.at..p::SAMPLE_TYPE.end()].copy_from_slice(&(1u64 << 10).to_ne_bytes());
    let event = show_fd("output event", open_event(&attr, -1, 0, -1, p::FLAG_FD_CLOEXEC));
    let mut ready = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 42 };
    // SAFETY: epoll_ctl reads the event.
    let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event as i32, &mut ready) };
    show("add before mmap", result(added.into()));
    for (index, fd, flags) in
        [(0u32, event, 0u64), (5, event, 0), (0, event, 1), (0, array, 0), (0, -1, 0), (1, 0, 0), (1, event, 0)]
    {
        let mut value = (fd as i32).to_ne_bytes();
        let done = element(array, cmd::MAP_UPDATE_ELEM, Some(&index.to_ne_bytes()), &mut value, flags);
        show(&format!("event at {index} with {flags}"), done);
    }
    for (pages, offset) in [(3usize, 0), (4, 0), (5, 4096), (5, 0), (5, 0), (9, 0)] {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), pages * 4096, protection, libc::MAP_SHARED, event as i32, offset)
        };
        let made = if at == libc::MAP_FAILED { result(-1) } else { Ok(0) };
        show(&format!("mmap {pages} pages at {offset}"), made);
        if made.is_ok() {
            let page: *const [u64; 132] = at.cast_const().cast();
            // SAFETY: the first mapped page is a perf_event_mmap_page of more than 132 words.
            let page = unsafe { &*page };
            let (data_at, bytes) = (page[130], page[131]);
            println!("{MARK}  data at {data_at}, {bytes} bytes");
        }
    }
    for request in [p::IOC_ENABLE, p::IOC_DISABLE, p::IOC_RESET] {
        show("ioctl", ioctl(event, request, 0));
    }
    for index in [0u32, 0, 7] {
        let attr = Attr::new().with(attr::map_elem::MAP_FD, array as u64);
        let key = index.to_ne_bytes();
        show(
            &format!("delete {index}"),
            bpf(cmd::MAP_DELETE_ELEM, &mut attr.with(attr::map_elem::KEY, address(&key))),
        );
    }
    let mut entry = libc::pollfd { fd: event as i32, events: libc::POLLIN, revents: 0 };
    // SAFETY: poll reads and writes one entry.
    show("poll a perf buffer", result(unsafe { libc::poll(&mut entry, 1, 3) }.into()));
}

fn batches_are_looked_up() {
    use attr::batch as b;
    for kind in [map_type::HASH, map_type::ARRAY, map_type::PERCPU_HASH, map_type::PERCPU_ARRAY, map_type::RINGBUF] {
        let (key, value, entries) = if kind == map_type::RINGBUF { (0, 0, 4096) } else { (4, 8, 10) };
        let map = show_fd(&format!("map {kind}"), bpf(cmd::MAP_CREATE, &mut create(kind, key, value, entries, 0)));
        for key in 0..8u32 {
            let _ = element(map, cmd::MAP_UPDATE_ELEM, Some(&key.to_ne_bytes()), &mut [3; 4096], 0);
        }
        for command in [cmd::MAP_LOOKUP_BATCH, cmd::MAP_LOOKUP_AND_DELETE_BATCH, cmd::MAP_LOOKUP_BATCH] {
            let (mut found, mut got) = (vec![0u32; 64], vec![0u64; 64 * 64]);
            let (mut position, mut all, mut first) = ([0u8; 8], vec![], true);
            loop {
                let attr = Attr::new().with(b::MAP_FD, map as u64).with(b::COUNT, 16);
                let attr = attr
                    .with(b::IN_BATCH, if first { 0 } else { address(&position) })
                    .with(b::OUT_BATCH, position.as_mut_ptr() as u64);
                let mut attr = attr.with(b::KEYS, found.as_mut_ptr() as u64).with(b::VALUES, got.as_mut_ptr() as u64);
                let done = bpf(command, &mut attr);
                all.extend_from_slice(&found[..attr.get(b::COUNT).min(16) as usize]);
                first = false;
                if done.is_err() {
                    show(&format!("{kind} batch {command} ends"), done);
                    break;
                }
            }
            all.sort_unstable();
            println!("{MARK}  {all:?}");
        }
        close(map);
    }
}

fn batches_change_maps() {
    use attr::batch as b;
    for kind in KINDS {
        use attr::map_create as m;
        let mut attr = small(kind, 8);
        if attr.get(m::MAX_ENTRIES) == 3 {
            attr = attr.with(m::MAX_ENTRIES, 5);
        }
        let map = show_fd(&format!("map {kind}"), bpf(cmd::MAP_CREATE, &mut attr));
        // The zeros are the ends of longer keys.
        let keys = [3u32, 1, 4, 1, 77, 2, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let values = vec![5u64; 64 * 8];
        for (command, count, flags, keys_at) in [
            (cmd::MAP_UPDATE_BATCH, 0, 0, address(&[0; 4])),
            (cmd::MAP_UPDATE_BATCH, 3, 0, keys.as_ptr() as u64),
            (cmd::MAP_UPDATE_BATCH, 8, 0, keys.as_ptr() as u64),
            (cmd::MAP_UPDATE_BATCH, 2, 1, keys.as_ptr() as u64),
            (cmd::MAP_UPDATE_BATCH, 2, 4, keys.as_ptr() as u64),
            (cmd::MAP_UPDATE_BATCH, 2, 0, 8),
            (cmd::MAP_DELETE_BATCH, 0, 0, 8),
            (cmd::MAP_DELETE_BATCH, 2, 0, keys.as_ptr() as u64),
            (cmd::MAP_DELETE_BATCH, 8, 0, keys.as_ptr() as u64),
            (cmd::MAP_DELETE_BATCH, 2, 1, keys.as_ptr() as u64),
            (cmd::MAP_DELETE_BATCH, 2, 0, 8),
        ] {
            let attr = Attr::new().with(b::MAP_FD, map as u64).with(b::COUNT, count).with(b::ELEM_FLAGS, flags);
            let mut attr = attr.with(b::KEYS, keys_at).with(b::VALUES, values.as_ptr() as u64);
            show(&format!("{kind} command {command} of {count} flags {flags}"), bpf(command, &mut attr));
            println!("{MARK}  came to {}", attr.get(b::COUNT));
        }
        close(map);
    }
}

/// Runs `child` in a forked process; its exit code.
fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes system calls only, and ends by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for the child and writes the status.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            libc::WEXITSTATUS(status)
        }
    }
}

fn children_and_duplicates_share_descriptors() {
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::HASH, 4, 8, 4, 0)));
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT])));
    let (key, mut value) = (7u32.to_ne_bytes(), [0u8; 8]);
    let code = forked(|| element(map, cmd::MAP_UPDATE_ELEM, Some(&key), &mut [5; 8], 1).map_or_else(|e| e.0, |_| 0));
    println!("{MARK}a child updates: {code}");
    show("the parent sees it", element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
    println!("{MARK}  {value:?}");
    let code = forked(|| {
        close(map);
        element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut [0; 8], 0).map_or_else(|e| e.0, |_| 0)
    });
    println!("{MARK}a child that closed it: {code}");
    show("the parent has it still", element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
    let code = forked(|| {
        let id = Attr::new().with(attr::info::BPF_FD, program as u64).with(attr::info::INFO_LEN, 0);
        bpf(cmd::OBJ_GET_INFO_BY_FD, &mut id.clone()).map_or_else(|e| e.0, |_| 0)
    });
    println!("{MARK}a child asks for the program: {code}");
    for fd in [map, program] {
        // SAFETY: takes numbers.
        let twin = i64::from(unsafe { libc::dup2(fd as i32, 200) });
        show(
            "info by a duplicate",
            bpf(cmd::OBJ_GET_INFO_BY_FD, &mut Attr::new().with(attr::info::BPF_FD, twin as u64)),
        );
        close(twin);
        show("of a closed one", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut Attr::new().with(attr::info::BPF_FD, twin as u64)));
    }
    close(map);
    show("map closed", element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
    close(program);
}

/// Helpers that programs of a type may call: no verifier names the function in its refusal then.
fn helpers_may_be_called() {
    use attr::prog_load as p;
    let (gpl, free) = (c"GPL", c"BSD");
    for (kind, license) in [
        (prog_type::KPROBE, gpl),
        (prog_type::KPROBE, free),
        (prog_type::SOCKET_FILTER, gpl),
        (prog_type::SOCKET_FILTER, free),
        (prog_type::TRACEPOINT, gpl),
        (prog_type::PERF_EVENT, gpl),
    ] {
        let helpers = (1..250u32).filter(|number| {
            let mut log = [0u8; 4096];
            let insns = [0x85 | u64::from(*number) << 32, MOV_R0_0, EXIT];
            let attr = load_attr(kind, &insns).with(p::LICENSE, address(license.to_bytes_with_nul()));
            let attr = attr.with(p::LOG_LEVEL, 1).with(p::LOG_SIZE, log.len() as u64);
            let loaded = bpf(cmd::PROG_LOAD, &mut attr.with(p::LOG_BUF, log.as_mut_ptr() as u64));
            loaded.into_iter().for_each(close);
            let text = String::from_utf8_lossy(&log);
            let unknown =
                ["cannot use helper", "unknown func", "invalid func", "GPL"].iter().any(|what| text.contains(what));
            loaded.is_ok() || !unknown
        });
        let names = helpers.map(|number| ring3_uapi::helper::name(number).unwrap_or("?"));
        println!("{MARK}{}", names.collect::<Vec<_>>().join(" "));
    }
}

/// What ring3 knowingly does not do: only that it says so. Not compared.
fn the_unsupported_is_refused() {
    let commands = [
        cmd::PROG_ATTACH,
        cmd::PROG_TEST_RUN,
        cmd::TASK_FD_QUERY,
        cmd::RAW_TRACEPOINT_OPEN,
        cmd::LINK_UPDATE,
        cmd::ENABLE_STATS,
        cmd::ITER_CREATE,
        1000,
    ];
    for command in commands {
        let name = cmd::name(command).unwrap_or("unknown");
        show(name.trim_start_matches("BPF_"), bpf(command, &mut Attr::new()));
    }
    for kind in [map_type::STACK_TRACE, map_type::CGROUP_STORAGE, map_type::REUSEPORT_SOCKARRAY] {
        let name = map_type::name(kind).unwrap_or("unknown");
        let made = bpf(cmd::MAP_CREATE, &mut create(kind, 4, 4, 4, 0));
        show_fd(name.trim_start_matches("BPF_MAP_TYPE_"), made);
    }
    for kind in [prog_type::TRACING, prog_type::LSM, prog_type::CGROUP_SKB] {
        let name = prog_type::name(kind).unwrap_or("unknown");
        let loaded = bpf(cmd::PROG_LOAD, &mut load_attr(kind, &[MOV_R0_0, EXIT]));
        show_fd(name.trim_start_matches("BPF_PROG_TYPE_"), loaded);
    }
    let (path, offset) = site();
    let counted = perf_event(uprobe_type(), 1 << 32, address(path.to_bytes_with_nul()), offset);
    show_fd("reference counter", open_event(&counted, -1, 0, -1, 0));
}

const REFUSED: [&str; 15] = [
    "PROG_ATTACH: EINVAL",
    "PROG_TEST_RUN: ENOTSUPP",
    "TASK_FD_QUERY: ENOTSUP",
    "RAW_TRACEPOINT_OPEN: EINVAL",
    "LINK_UPDATE: EINVAL",
    "ENABLE_STATS: EINVAL",
    "ITER_CREATE: EINVAL",
    "unknown: EINVAL",
    "STACK_TRACE: EINVAL",
    "CGROUP_STORAGE: EINVAL",
    "REUSEPORT_SOCKARRAY: EINVAL",
    "TRACING: EINVAL",
    "LSM: EINVAL",
    "CGROUP_SKB: EINVAL",
    "reference counter: ENOTSUP",
];

// ---- running them ----

/// Not a test: what the tests below run in a process of its own.
#[test]
fn scenario_process() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let (_, run) = SCENARIOS.iter().find(|(known, _)| *known == name).expect("a known scenario");
    run();
}

/// What a scenario prints on a bench.
fn lines(bench: &Bench, name: &str) -> Vec<String> {
    let mut command = bench.load(std::env::current_exe().expect("this file"));
    command.args(["--exact", "scenario_process", "--nocapture"]).env(SCENARIO, name);
    let (code, lines, errors) = Process::start(&mut command).finish();
    assert_eq!(code, Some(0), "{lines:?}\n{errors:?}");
    // The test harness prints its own words before the first line, without a newline.
    lines.iter().filter_map(|line| line.split_once(MARK).map(|(_, line)| line.to_owned())).collect()
}

fn compare(name: &str) {
    let bench = Bench::ring3();
    let ours = lines(&bench, name);
    assert!(!ours.is_empty(), "the scenario printed nothing");
    let is_empty = |status: &serde_json::Value, kind: &str| status[kind].as_array().is_some_and(Vec::is_empty);
    wait_until("the server has let everything go", || {
        let status = bench.status();
        ["loaders", "maps", "programs", "links"].iter().all(|kind| is_empty(&status, kind))
    });
    if !is_root() {
        println!("SKIPPED: {name}: comparing with the kernel needs root");
        return;
    }
    let kernel = lines(&Bench::native(), name);
    let pairs = kernel.iter().zip(&ours).enumerate().filter(|(_, (kernel, ours))| kernel != ours);
    let differ: Vec<String> =
        pairs.map(|(number, (kernel, ours))| format!("{number}: kernel {kernel}\n  ours {ours}")).collect();
    assert!(differ.is_empty(), "{} of {} lines differ:\n{}", differ.len(), kernel.len(), differ.join("\n"));
    assert_eq!(kernel.len(), ours.len());
}

macro_rules! scenarios { ($($name:ident)*) => {
    const SCENARIOS: &[(&str, fn())] =
        &[$((stringify!($name), $name),)* ("the_unsupported", the_unsupported_is_refused), ("helpers", helpers_may_be_called)];

    mod as_the_kernel {
        $(#[test] fn $name() { super::compare(stringify!($name)); })*
    }
} }

scenarios! {
    maps_are_created
    map_names_and_fields_are_checked
    elements_behave
    maps_without_keys_push_pop_and_peek
    tries_and_stack_maps_are_checked
    tries_find_and_list_prefixes
    bad_pointers_and_descriptors_are_told
    attributes_are_checked
    access_modes_and_freezing_are_kept
    mappings_are_checked
    btf_is_loaded_and_checked
    programs_are_loaded_and_checked
    logs_follow_the_rules
    information_is_told
    objects_live_as_long_as_somebody_holds_them
    uprobe_events_are_checked
    buffers_can_be_waited_for
    batches_are_looked_up
    batches_change_maps
    children_and_duplicates_share_descriptors
    maps_of_objects_are_checked
    maps_of_objects_behave
    arrays_of_programs_hold_one_kind
    names_are_given_and_taken
    keys_and_values_have_types
    values_with_a_lock_behave
}

#[test]
fn the_unsupported_is_refused_with_an_error_of_the_kernels() {
    assert_eq!(lines(&Bench::ring3(), "the_unsupported"), REFUSED);
}

#[test]
fn programs_may_call_no_helper_that_the_kernel_would_refuse_them() {
    /// Refused by kernels that are locked down; a clock that does no harm.
    const MORE: [&str; 2] = ["probe_write_user", "ktime_get_coarse_ns"];
    let ours = lines(&Bench::ring3(), "helpers");
    assert!(ours.iter().all(|line| line.contains("map_lookup_elem")), "{ours:?}");
    if !is_root() {
        println!("SKIPPED: comparing with the kernel needs root");
        return;
    }
    for (ours, kernel) in ours.iter().zip(&lines(&Bench::native(), "helpers")) {
        let kernel: Vec<&str> = kernel.split(' ').collect();
        let more = ours.split(' ').filter(|name| !MORE.contains(name) && !kernel.contains(name));
        assert_eq!(more.collect::<Vec<_>>(), [""; 0], "of {ours}");
    }
}
