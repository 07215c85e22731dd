//! Maps whose keys and values have types, and values with a lock.

use ring3_uapi::attr;
use ring3_uapi::bpf::{cmd, map_type, prog_type};

use super::raw_calls::{EXIT, MARK, MOV_R0_0, btf_blob, close, create, element, load_attr, load_btf, show, show_fd};
use crate::calls::raw_bpf::{Attr, address, bpf, result};

/// What `types` makes, by id.
const INT: u64 = 1;
const LOCK: u64 = 2;
const LOCKED: u64 = 3;
const ONLY: u64 = 4;
const NESTED: u64 = 5;
const NAME: u64 = 6;
const POINTER: u64 = 7;
const PAIR: u64 = 8;
const FUNCTION: u64 = 9;
const SECTION: u64 = 12;
const LONG: u64 = 13;
const UNITED: u64 = 14;

/// Names begin behind "\0int\0".
fn types() -> i64 {
    let types = [
        [5, 0x0400_0001, 4, 19, 1, 0].to_vec(), // 2: struct bpf_spin_lock { int val }
        [0, 0x0400_0002, 8, 19, 1, 0, 19, 2, 32].to_vec(), // 3: struct { int; lock at 4 }
        [0, 0x0400_0001, 4, 19, 2, 0].to_vec(), // 4: struct { lock }
        [0, 0x0400_0002, 16, 19, 13, 0, 23, 3, 64].to_vec(), // 5: struct { long; 3 at 8 }
        [19, 0x0800_0000, 1].to_vec(),          // 6: typedef int val
        [0, 0x0200_0000, 1].to_vec(),           // 7: int *
        [0, 0x0300_0000, 0, 1, 1, 2].to_vec(),  // 8: int[2]
        [0, 0x0d00_0000, 0].to_vec(),           // 9: void (void)
        [19, 0x0c00_0001, 9].to_vec(),          // 10: its function
        [23, 0x0e00_0000, 1, 1].to_vec(),       // 11: int other
        [29, 0x0f00_0001, 4, 11, 0, 4].to_vec(), // 12: .bss { other }
        [34, 0x0100_0000, 8, 0x0000_0040].to_vec(), // 13: long
        [0, 0x0500_0002, 8, 19, 1, 0, 23, 2, 0].to_vec(), // 14: union { int; lock }
    ];
    let strings = b"bpf_spin_lock\0val\0other\0.bss\0long\0";
    show_fd("types", load_btf(&btf_blob(&types.concat(), strings)))
}

pub(crate) fn keys_and_values_have_types() {
    use attr::map_create as m;
    let lock = [5, 0x0400_0001, 4, 0, 1, 0];
    for (what, more) in [
        ("two locks", [0, 0x0400_0002, 8, 0, 2, 0, 0, 2, 32]),
        ("a misplaced lock", [0, 0x0400_0002, 8, 0, 1, 0, 0, 2, 16]),
        ("a lock beside a number", [0, 0x0400_0002, 8, 0, 1, 0, 0, 2, 32]),
    ] {
        let blob = btf_blob(&[&lock[..], &more].concat(), b"bpf_spin_lock\0");
        close(show_fd(what, load_btf(&blob)));
    }
    let btf = types();
    let make = |kind: u32, sizes: (u32, u32), key: u64, value: u64, flags: u32| {
        let entries = if kind == map_type::RINGBUF { 4096 } else { 1 };
        let attr = create(kind, sizes.0, sizes.1, entries, flags).with(m::BTF_FD, btf as u64);
        bpf(cmd::MAP_CREATE, &mut attr.with(m::BTF_KEY_TYPE_ID, key).with(m::BTF_VALUE_TYPE_ID, value))
    };
    let all = [INT, LOCK, LOCKED, ONLY, NESTED, NAME, POINTER, PAIR, FUNCTION, 10, 11, SECTION, LONG, UNITED, 99];
    for kind in [map_type::HASH, map_type::ARRAY, map_type::PERCPU_ARRAY, map_type::PERCPU_HASH, map_type::LRU_HASH] {
        for value in all {
            for bytes in [4, 8, 16] {
                close(show_fd(&format!("{kind} value {value} of {bytes}"), make(kind, (4, bytes), INT, value, 0)));
            }
        }
        for key in all {
            close(show_fd(&format!("{kind} key {key}"), make(kind, (4, 4), key, INT, 0)));
        }
        close(show_fd(&format!("{kind} no key"), make(kind, (4, 4), 0, INT, 0)));
        close(show_fd(&format!("{kind} no key, a section"), make(kind, (4, 4), 0, SECTION, 0)));
        close(show_fd(&format!("{kind} no value"), make(kind, (4, 4), INT, 0, 0)));
        for flags in [1 << 7, 1 << 8] {
            close(show_fd(&format!("{kind} a lock, flags {flags}"), make(kind, (4, 8), INT, LOCKED, flags)));
        }
    }
    for kind in [map_type::QUEUE, map_type::BLOOM_FILTER, map_type::RINGBUF] {
        let bytes = if kind == map_type::RINGBUF { 0 } else { 4 };
        for key in [0, INT] {
            close(show_fd(&format!("{kind} key {key}"), make(kind, (0, bytes), key, INT, 0)));
        }
    }
    for kind in [map_type::PROG_ARRAY, map_type::PERF_EVENT_ARRAY, map_type::CGROUP_ARRAY] {
        for key in [0, INT] {
            close(show_fd(&format!("{kind} key {key}"), make(kind, (4, 4), key, INT, 0)));
        }
    }
    close(btf);
}

pub(crate) fn values_with_a_lock_behave() {
    use attr::map_create as m;
    let btf = types();
    for kind in [map_type::HASH, map_type::ARRAY] {
        let flags = if kind == map_type::ARRAY { 1 << 10 } else { 0 };
        let attr = create(kind, 4, 8, 2, flags).with(m::BTF_FD, btf as u64).with(m::BTF_KEY_TYPE_ID, INT);
        let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut attr.with(m::BTF_VALUE_TYPE_ID, LOCKED)));
        let key = 1u32.to_ne_bytes();
        for flags in [4u64, 0, 4, 5, 6, 7, 8] {
            let mut value = [flags as u8 + 1; 8];
            show(
                &format!("{kind} update {flags}"),
                element(map, cmd::MAP_UPDATE_ELEM, Some(&key), &mut value, flags),
            );
            for flags in [0, 4] {
                let mut value = [0xee; 8];
                show("lookup", element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, flags));
                println!("{MARK}  {value:?}");
            }
        }
        let (keys, values) = ([0u32, 1, 7], [[9u32; 2]; 3]);
        for (command, flags) in
            [(cmd::MAP_UPDATE_BATCH, 4u64), (cmd::MAP_UPDATE_BATCH, 1), (cmd::MAP_LOOKUP_BATCH, 4)]
        {
            use attr::batch as b;
            let mut next = [0u8; 8];
            let count = if command == cmd::MAP_LOOKUP_BATCH { 3 } else { 2 };
            let attr = Attr::new().with(b::MAP_FD, map as u64).with(b::KEYS, address(&keys)).with(b::COUNT, count);
            let attr = attr.with(b::VALUES, address(&values)).with(b::ELEM_FLAGS, flags);
            let mut attr = attr.with(b::OUT_BATCH, next.as_mut_ptr() as u64);
            show(&format!("{kind} batch {command} {flags}"), bpf(command, &mut attr));
            println!("{MARK}  {values:?}");
        }
        show("freeze", bpf(cmd::MAP_FREEZE, &mut Attr::new().with(attr::map_elem::MAP_FD, map as u64)));
        // SAFETY: asks for a new mapping, which is not used.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map as i32,
                0,
            )
        };
        show("mmap", result(mapped as i64).map(|_| 0));
        for kind in [prog_type::KPROBE, prog_type::SOCKET_FILTER, prog_type::XDP, prog_type::TRACEPOINT] {
            let load = (map as u64) << 32 | 0x1118;
            let loaded = bpf(cmd::PROG_LOAD, &mut load_attr(kind, &[load, 0, MOV_R0_0, EXIT]));
            close(show_fd(&format!("program of type {kind}"), loaded));
        }
        close(map);
    }
    close(btf);
}
