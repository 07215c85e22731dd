//! Maps whose shared memory a hostile target scribbles over: no operation leaves the memory, or runs on.

use ring3_generate::Random;
use ring3_maps::{Attributes, Context, Geometry, Map};
use ring3_uapi::bpf::map_type;

use crate::bytes::Bytes;
use crate::raw_memory::Fenced;

const OPERATIONS_MAX: usize = 200;
/// Type, and bytes of keys, values, entries.
const KINDS: [(u32, u32, u32, u32); 13] = [
    (map_type::HASH, 4, 8, 64),
    (map_type::HASH, 40, 3, 5),
    (map_type::PERCPU_HASH, 8, 12, 64),
    (map_type::LRU_HASH, 4, 8, 64),
    (map_type::LRU_PERCPU_HASH, 16, 8, 33),
    (map_type::ARRAY, 4, 8, 64),
    (map_type::PERCPU_ARRAY, 4, 8, 64),
    (map_type::PERF_EVENT_ARRAY, 4, 4, 64),
    (map_type::LPM_TRIE, 8, 4, 32),
    (map_type::QUEUE, 0, 8, 7),
    (map_type::STACK, 0, 24, 64),
    (map_type::BLOOM_FILTER, 0, 8, 64),
    (map_type::RINGBUF, 0, 0, 4096),
];

fn operate(map: &Map, what: u8, number: u32) {
    let cx = Context {
        owner: 1,
        cpu: number % 4,
        owner_is_dead: if number & 64 != 0 { |_| true } else { |_| false },
        relax: |_| (),
        interrupts: number & 32 != 0,
    };
    let mut value = vec![number as u8; map.geometry().user_value_bytes().max(64)];
    let mut key = vec![0; map.header().key_size as usize];
    key.iter_mut().zip((number % 80).to_le_bytes()).for_each(|(to, from)| *to = from);
    let bytes = map.header().value_size as usize;
    match what {
        0 | 1 => drop(map.user_update(&cx, &key, &value, u64::from(number >> 8 & 3))),
        2 => drop(map.user_lookup(&key, &mut value)),
        3 => drop(map.user_lookup_and_delete(&cx, &key, &mut value)),
        4 => drop(map.user_delete(&cx, &key)),
        5 => {
            let (mut at, mut next) = (None, key.clone());
            for _ in 0..map.header().max_entries.min(12) {
                if map.user_next_key(at.as_deref(), &mut next).is_err() {
                    break;
                }
                at = Some(next.clone());
            }
        }
        6 => drop(map.user_push(&cx, &value[..bytes], u64::from(number >> 8 & 3))),
        7 => drop(map.user_peek(&cx, &mut value[..bytes])),
        8 => drop(map.user_pop(&cx, &mut value[..bytes])),
        9 => drop((map.object(number), map.set_object(number, number))),
        10 => drop((map.gave_up(), map.check())),
        11 => drop(map.reclaim_dead_owner(&cx, |owner| owner % 2 == 0, |at| at..u64::MAX)),
        _ => {
            let Some(ring) = map.ring() else { return };
            let _ = (0..5).map(|what| ring.query(what)).max();
            let _ = (ring.has_data(), ring.is_held_up(), ring.output(&cx, &value[..number as usize % 64], 0));
            if let Some(record) = ring.reserve(&cx, u64::from(number % 5000)) {
                let _ = ring.commit(record, u64::from(number & 3), number & 4 != 0);
            }
        }
    }
}

/// The kind of map, then operations and words to write where.
pub(crate) fn run(input: &[u8]) {
    let mut input = Bytes(input);
    let (map_type, key_size, value_size, max_entries) = KINDS[usize::from(input.u8()) % KINDS.len()];
    let map_flags = if map_type == map_type::LPM_TRIE { 1 } else { 0 };
    let attributes =
        Attributes { map_type, key_size, value_size, max_entries, map_flags, cpus: 4, ..Attributes::default() };
    let geometry = Geometry::new(&attributes).expect("valid");
    let memory = Fenced::new(geometry.file_bytes() as usize);
    // SAFETY: fresh zeroed memory of the right size, which outlives the map.
    let map = unsafe { Map::trusted(memory.base(), &geometry) };
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        match input.u8() % 20 {
            what @ 0..=12 => operate(&map, what, input.u32()),
            what => {
                let at = input.u32() as usize;
                // Half of the words are near the beginning, where those lie that lead to others.
                let at = if what < 16 { at % 1024 } else { at };
                memory.write(at, input.u64(), what & 1 == 0);
            }
        }
    }
}

pub(crate) fn make(random: &mut Random) -> Vec<u8> {
    let kind = random.below(KINDS.len() as u64) as usize;
    let mut input = vec![kind as u8];
    for _ in 0..random.below(60) {
        let what = random.below(20) as u8;
        input.push(what);
        input.extend((random.next() as u32).to_le_bytes());
        if what > 12 {
            let sizes = [u64::from(KINDS[kind].3), 4096, 1 << 31, 64];
            let value = match random.below(4) {
                0 => random.next(),
                1 => random.of(&sizes).wrapping_add(random.below(5)).wrapping_sub(2),
                2 => random.below(64),
                _ => random.edge(),
            };
            input.extend(value.to_le_bytes());
        }
    }
    input
}
