//! Many elements in a call, and maps whose order is told by them.

use crate::calls::raw_bpf::{Attr, address, bpf};
use ring3_uapi::attr;
use ring3_uapi::bpf::{cmd, map_type};

use super::raw_calls::{MARK, close, create, element, show, show_fd};
use super::raw_maps::{KINDS, NO_PREALLOC, small};

pub(crate) fn tries_and_stack_maps_are_checked() {
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
pub(crate) fn tries_find_and_list_prefixes() {
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
pub(crate) fn listed(map: i64, key_bytes: usize) -> Vec<Vec<u8>> {
    let (mut all, mut next): (Vec<Vec<u8>>, _) = (vec![], vec![0; key_bytes]);
    while all.len() < 100 && element(map, cmd::MAP_GET_NEXT_KEY, all.last().map(Vec::as_slice), &mut next, 0).is_ok()
    {
        all.push(next.clone());
    }
    all
}

pub(crate) fn batches_of_prefixes(map: i64, key_bytes: usize, value_bytes: usize) {
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

pub(crate) fn batches_are_looked_up() {
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

pub(crate) fn batches_change_maps() {
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
