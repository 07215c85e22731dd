//! Maps: creation, elements, access, mappings.

use crate::calls::raw_bpf::{Attr, address, bpf, bpf_sized, result};
use ring3_uapi::Errno;
use ring3_uapi::attr;
use ring3_uapi::attr::ATTR_BYTES;
use ring3_uapi::bpf::{cmd, map_type};

use super::raw_calls::{MARK, close, create, element, id_of, named, show, show_fd};

pub(crate) const KINDS: [u32; 15] = [
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

pub(crate) const NO_PREALLOC: u32 = 1;

/// Attributes of a small map of a type, with values of `value` bytes where the type leaves a choice.
pub(crate) fn small(kind: u32, value: u32) -> Attr {
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

pub(crate) fn maps_are_created() {
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

pub(crate) fn maps_without_keys_push_pop_and_peek() {
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

pub(crate) fn map_names_and_fields_are_checked() {
    use attr::map_create as m;
    let base = || create(map_type::ARRAY, 4, 8, 1, 0);
    for name in [&b"good_name.1"[..], b"", b"bad name", b"bad-name", b"fifteen_letters", b"sixteen__letters", b"a\0b"]
    {
        let made = bpf(cmd::MAP_CREATE, &mut named(base(), m::MAP_NAME, name));
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

pub(crate) fn elements_behave() {
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

pub(crate) fn bad_pointers_and_descriptors_are_told() {
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
pub(crate) const COMMANDS: [u32; 21] = [
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

pub(crate) fn attributes_are_checked() {
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

pub(crate) fn access_modes_and_freezing_are_kept() {
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

/// Freezing with a mapping that can be written.
pub(crate) fn freeze_mapped(map: i64) {
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

pub(crate) fn mappings_are_checked() {
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
