//! Arrays of programs, and maps of maps.

use ring3_uapi::Errno;
use ring3_uapi::attr;
use ring3_uapi::bpf::{cmd, map_type, prog_type};

use super::raw_calls::{EXIT, MARK, MOV_R0_0, close, create, element, id_of, load_attr, show, show_fd};
use crate::calls::raw_bpf::{Attr, address, bpf};

const KINDS: [u32; 3] = [map_type::PROG_ARRAY, map_type::ARRAY_OF_MAPS, map_type::HASH_OF_MAPS];

fn name(kind: u32) -> &'static str {
    map_type::name(kind).unwrap_or("?").trim_start_matches("BPF_MAP_TYPE_")
}

fn made(kind: u32, entries: u32) -> i64 {
    let inner = bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 2, 0)).expect("an array");
    let attr = create(kind, 4, 4, entries, 0).with(attr::map_create::INNER_MAP_FD, inner as u64);
    let outer = show_fd(&format!("{} of {entries}", name(kind)), bpf(cmd::MAP_CREATE, &mut attr.clone()));
    close(inner);
    outer
}

fn update(map: i64, key: u32, fd: i64, flags: u64) -> Result<i64, Errno> {
    element(map, cmd::MAP_UPDATE_ELEM, Some(&key.to_ne_bytes()), &mut (fd as u32).to_ne_bytes(), flags)
}

fn program(kind: u32) -> i64 {
    bpf(cmd::PROG_LOAD, &mut load_attr(kind, &[MOV_R0_0, EXIT])).expect("a program")
}

/// What is at a key: an id, which must be this object's.
fn tell(map: i64, key: u32, expected: i64) {
    let mut value = [0u8; 4];
    let done = element(map, cmd::MAP_LOOKUP_ELEM, Some(&key.to_ne_bytes()), &mut value, 0);
    let right = done.is_ok().then(|| u64::from(u32::from_ne_bytes(value)) == id_of(expected));
    show(&format!("lookup {key}"), done);
    println!("{MARK}  the id: {right:?}");
}

/// Attributes, the kinds of inner maps, and what may be put in.
pub(crate) fn maps_of_objects_are_checked() {
    use attr::map_create::{INNER_MAP_FD, MAP_FLAGS};
    let inner = bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 2, 0)).expect("an array");
    for kind in KINDS {
        for (key, value, entries) in [(4, 4, 2), (8, 4, 2), (4, 8, 2), (4, 4, 0), (0, 4, 1), (4, 0, 1), (4, 3, 1)] {
            let attr = create(kind, key, value, entries, 0).with(INNER_MAP_FD, inner as u64);
            let what = format!("{} key {key} value {value} entries {entries}", name(kind));
            close(show_fd(&what, bpf(cmd::MAP_CREATE, &mut attr.clone())));
        }
        for flag in 0..16u32 {
            let attr = create(kind, 4, 4, 2, 0).with(INNER_MAP_FD, inner as u64).with(MAP_FLAGS, 1 << flag);
            close(show_fd(&format!("{} flag {flag}", name(kind)), bpf(cmd::MAP_CREATE, &mut attr.clone())));
        }
        let other = program(prog_type::KPROBE);
        for fd in [0u64, 999, u64::from(u32::MAX), other as u64] {
            let attr = create(kind, 4, 4, 2, 0).with(INNER_MAP_FD, fd);
            close(show_fd(&format!("{} of what is no map", name(kind)), bpf(cmd::MAP_CREATE, &mut attr.clone())));
        }
        close(other);
    }
    let outer = made(map_type::ARRAY_OF_MAPS, 2);
    let kinds = [
        (map_type::HASH, 4, 8, 2),
        (map_type::PERCPU_ARRAY, 4, 8, 2),
        (map_type::QUEUE, 0, 8, 2),
        (map_type::BLOOM_FILTER, 0, 8, 2),
        (map_type::RINGBUF, 0, 0, 4096),
        (map_type::PERF_EVENT_ARRAY, 4, 4, 2),
        (map_type::CGROUP_ARRAY, 4, 4, 2),
        (map_type::LRU_HASH, 4, 8, 100),
        (map_type::PROG_ARRAY, 4, 4, 2),
    ];
    for (kind, key, value, entries) in kinds {
        let inner = bpf(cmd::MAP_CREATE, &mut create(kind, key, value, entries, 0)).expect("a map");
        let attr = create(map_type::HASH_OF_MAPS, 4, 4, 2, 0).with(INNER_MAP_FD, inner as u64);
        close(show_fd(&format!("of type {kind}"), bpf(cmd::MAP_CREATE, &mut attr.clone())));
        show(&format!("into one of another, type {kind}"), update(outer, 0, inner, 0));
        close(inner);
    }
    let attr = create(map_type::HASH_OF_MAPS, 4, 4, 2, 0).with(INNER_MAP_FD, outer as u64);
    close(show_fd("of maps of maps", bpf(cmd::MAP_CREATE, &mut attr.clone())));
    let inners: [(u32, u32, u32, u32, u32); 6] = [
        (map_type::ARRAY, 4, 8, 2, 0),
        (map_type::ARRAY, 4, 8, 3, 0),
        (map_type::ARRAY, 4, 16, 2, 0),
        (map_type::ARRAY, 4, 8, 2, 1 << 10),
        (map_type::ARRAY, 4, 8, 2, 1 << 12),
        (map_type::PERCPU_ARRAY, 4, 8, 2, 0),
    ];
    for (kind, key, value, entries, flags) in inners {
        let inner = show_fd("inner", bpf(cmd::MAP_CREATE, &mut create(kind, key, value, entries, flags)));
        show(
            &format!("put type {kind} value {value} entries {entries} flags {flags:#x}"),
            update(outer, 1, inner, 0),
        );
        close(inner);
    }
    let sized = bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 2, 1 << 12)).expect("an array");
    let attr = create(map_type::ARRAY_OF_MAPS, 4, 4, 2, 0).with(INNER_MAP_FD, sized as u64);
    let of_any_size = show_fd("of any size", bpf(cmd::MAP_CREATE, &mut attr.clone()));
    for entries in [1, 2, 50] {
        let inner = bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, entries, 1 << 12)).expect("an array");
        show("any size", update(of_any_size, 0, inner, 0));
    }
}

/// Every operation on them.
pub(crate) fn maps_of_objects_behave() {
    let inner = bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 2, 0)).expect("an array");
    let other = bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 2, 0)).expect("an array");
    for kind in KINDS {
        let map = made(kind, 3);
        let (one, two) = match kind {
            map_type::PROG_ARRAY => (program(prog_type::KPROBE), program(prog_type::KPROBE)),
            _ => (inner, other),
        };
        let wrong = if kind == map_type::PROG_ARRAY { inner } else { program(prog_type::KPROBE) };
        for (key, fd, flags) in [
            (0, one, 0),
            (0, two, 1),
            (0, two, 2),
            (1, one, 2),
            (1, one, 1),
            (2, one, 4),
            (2, one, 3),
            (2, wrong, 0),
            (2, -1, 0),
            (2, 999, 0),
            (3, one, 0),
            (3, -1, 7),
            (4, two, 0),
        ] {
            show(&format!("{} update {key} flags {flags}", name(kind)), update(map, key, fd, flags));
        }
        tell(map, 0, two);
        tell(map, 1, one);
        tell(map, 2, one);
        tell(map, 9, one);
        let mut keys = vec![];
        let mut next = [0u8; 4];
        let mut last: Option<[u8; 4]> = None;
        while element(map, cmd::MAP_GET_NEXT_KEY, last.as_ref().map(|key| &key[..]), &mut next, 0).is_ok() {
            keys.push(next);
            last = Some(next);
        }
        keys.sort_unstable();
        println!("{MARK}keys {keys:?}");
        for key in [0u32, 0, 1, 9] {
            let mut value = [0u8; 4];
            let done = element(map, cmd::MAP_LOOKUP_AND_DELETE_ELEM, Some(&key.to_ne_bytes()), &mut value, 0);
            show(&format!("{} take {key}", name(kind)), done);
        }
        in_batches(map, kind, &[one, two]);
        for key in [0u32, 0, 1, 9] {
            let key_bytes = key.to_ne_bytes();
            let attr = Attr::new().with(attr::map_elem::MAP_FD, map as u64);
            let done = bpf(cmd::MAP_DELETE_ELEM, &mut attr.with(attr::map_elem::KEY, address(&key_bytes)));
            show(&format!("{} delete {key}", name(kind)), done);
        }
        show("freeze", bpf(cmd::MAP_FREEZE, &mut Attr::new().with(attr::map_elem::MAP_FD, map as u64)));
        show("update a frozen one", update(map, 0, one, 0));
        close(map);
    }
}

fn in_batches(map: i64, kind: u32, members: &[i64; 2]) {
    use attr::batch as b;
    let batch = |keys: &[u32], values: &[u32], count: u64, next: &mut [u8; 4]| {
        let attr = Attr::new().with(b::MAP_FD, map as u64).with(b::KEYS, address(keys)).with(b::COUNT, count);
        attr.with(b::VALUES, address(values)).with(b::OUT_BATCH, address(next))
    };
    const ROOM: usize = 10;
    let given = |words: [u32; 3]| std::array::from_fn::<u32, ROOM, _>(|at| words.get(at).copied().unwrap_or(0));
    let (mut keys, mut values, mut next) = ([0; ROOM], [0; ROOM], [0u8; 4]);
    for command in [
        cmd::MAP_UPDATE_BATCH,
        cmd::MAP_LOOKUP_BATCH,
        cmd::MAP_DELETE_BATCH,
        cmd::MAP_UPDATE_BATCH,
        cmd::MAP_LOOKUP_AND_DELETE_BATCH,
    ] {
        if command == cmd::MAP_UPDATE_BATCH {
            (keys, values) = (given([1, 0, 7]), given([members[0] as u32, members[1] as u32, 999]));
        }
        let wanted = if matches!(command, cmd::MAP_UPDATE_BATCH | cmd::MAP_DELETE_BATCH) { 3 } else { ROOM as u64 };
        let mut attr = batch(&keys, &values, wanted, &mut next);
        let done = bpf(command, &mut attr);
        show(&format!("{} batch {command}", name(kind)), done);
        let count = attr.get(b::COUNT) as usize;
        let mut got: Vec<(u32, bool)> = keys[..count.min(ROOM)].iter().map(|key| (*key, *key < 3)).collect();
        got.sort_unstable();
        println!("{MARK}  count {count} {got:?}");
    }
}

/// A program that goes on with the first of the array.
fn calling(kind: u32, array: i64) -> Result<i64, Errno> {
    let (load, call) = ((array as u64) << 32 | 0x1218, 12 << 32 | 0x85);
    let insns = [load, 0, 0x03b7, call, MOV_R0_0, EXIT];
    bpf(cmd::PROG_LOAD, &mut load_attr(kind, &insns))
}

/// Programs of one kind only, and what becomes of them when nobody holds the array any more.
pub(crate) fn arrays_of_programs_hold_one_kind() {
    let array = made(map_type::PROG_ARRAY, 3);
    let (probe, filter) = (program(prog_type::KPROBE), program(prog_type::SOCKET_FILTER));
    show("the first one's kind", update(array, 0, probe, 0));
    show("another kind", update(array, 1, filter, 0));
    show("the same", update(array, 1, probe, 0));
    let caller = show_fd("a caller", calling(prog_type::KPROBE, array));
    close(show_fd("a caller of another kind", calling(prog_type::SOCKET_FILTER, array)));
    let fresh = made(map_type::PROG_ARRAY, 3);
    let filters = show_fd("a caller decides", calling(prog_type::SOCKET_FILTER, fresh));
    show("against it", update(fresh, 0, probe, 0));
    show("with it", update(fresh, 0, filter, 0));
    show("itself", update(array, 2, caller, 0));
    // The array is held by the caller that is in it, and by no descriptor.
    let (array_id, caller_id) = (id_of(array), id_of(caller));
    close(array);
    close(caller);
    // Not by opening it: when that is closed again while the kernel (6.18) empties the array, it never lets go of it.
    let gone = |id: u64, command: u32| {
        let mut attr = Attr::new().with(attr::id::START_ID, id - 1);
        bpf(command, &mut attr).is_err() || attr.get(attr::id::NEXT_ID) != id
    };
    ring3_tests::wait_until("the cycle is broken", || gone(array_id, cmd::MAP_GET_NEXT_ID));
    ring3_tests::wait_until("the caller is gone", || gone(caller_id, cmd::PROG_GET_NEXT_ID));
    println!("{MARK}both are gone");
    for fd in [probe, filter, filters, fresh] {
        close(fd);
    }
}
