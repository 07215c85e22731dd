//! Death at every instruction: each operation of each type runs in a child that is stepped instruction by instruction.
//! All that outlives a death is the shared memory, so each of its states on the way is what some death leaves.
//! Of each it is asked: is the map whole, did the operation happen wholly or not at all, and can the living go on
//! as if nothing had been, with every element and every byte of room?

mod raw;

use raw::{DEAD, ENTRIES, Model, Shared, contents, context, key, keys, put, states};
use ring3_maps::{Attributes, Map};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_NO_PREALLOC, BPF_F_REUSE_STACKID};

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Where the private area has the lock of who collects a hash map's elements.
const COLLECTOR_AT: usize = 256 + 11 * 8;

/// Each word of each value is the one before or the one after; keys are those before or those after. (A full LRU map
/// makes room first: without the key that goes it is as before.)
fn is_one_of(now: &Model, before: &Model, after: &Model) -> bool {
    let same_keys = |model: &Model| model.keys().eq(now.keys());
    let word = |model: &Model, key, at: usize| model.get(key).map(|value| value[at..at + 8].to_vec());
    let room_made =
        before.len() == ENTRIES as usize && before.keys().filter(|key| after.contains_key(key)).eq(now.keys());
    (same_keys(before) || same_keys(after) || room_made)
        && now.iter().all(|(key, value)| {
            (0..value.len()).step_by(8).all(|at| {
                let own = Some(value[at..at + 8].to_vec());
                own == word(before, key, at) || own == word(after, key, at)
            })
        })
}

/// The living go on: all keys go, and the map can be filled to its last element.
fn go_on_with_hash(map: &Map) {
    let cx = context(1);
    let value = vec![7; map.geometry().user_value_bytes()];
    for number in contents(map).into_keys() {
        map.user_delete(&cx, &key(number)).expect("listed");
    }
    for number in 20..20 + ENTRIES {
        map.user_update(&cx, &key(number), &value, 0).expect("room for all");
    }
    let full = map.user_update(&cx, &key(39), &value, 0);
    assert_eq!(full, if map.geometry().is_lru() { Ok(()) } else { Err(Errno::E2BIG) });
    assert_eq!(contents(map).len(), ENTRIES as usize);
    let census = map.check().expect("whole");
    assert_eq!((census.elements, census.in_hand, census.miscounted), (ENTRIES.into(), 0, 0), "{census:?}");
}

/// Dies at every instruction of `operation`, and then at every instruction of the first thing that a survivor does.
fn die_in(map_type: u32, prepare: &dyn Fn(&Map), operation: &dyn Fn(&Map)) {
    let attributes =
        Attributes { map_type, key_size: 4, value_size: 8, max_entries: ENTRIES, cpus: 2, ..Attributes::default() };
    let shared = Shared::fresh(attributes);
    prepare(&shared.map());
    let before = contents(&shared.map());
    let states = states(&shared, operation);
    let after = contents(&shared.map());
    assert!(states.len() > 2);
    for state in &states {
        let died = Shared::of(state, shared.geometry);
        let census = died.map().check().expect("whole");
        assert!(census.in_hand <= 1 && census.locked <= 1 && census.miscounted <= 1, "{census:?}");
        assert!(is_one_of(&contents(&died.map()), &before, &after));
        go_on_with_hash(&died.map());
        let reclaimed = Shared::of(state, shared.geometry);
        reclaimed.map().reclaim_dead_owner(&context(1), |owner| owner >= DEAD, |at| at..u64::MAX);
        let census = reclaimed.map().check().expect("whole");
        assert_eq!((census.in_hand, census.locked), (0, 0), "{census:?}");
    }
}

const HASHES: [u32; 4] = [map_type::HASH, map_type::PERCPU_HASH, map_type::LRU_HASH, map_type::LRU_PERCPU_HASH];

#[test]
fn a_hash_map_outlives_a_death_at_any_instruction_of_any_operation() {
    let some = |map: &Map| (0..5).for_each(|number| put(map, 1, number, number as u8 + 1));
    let full = |map: &Map| (0..ENTRIES).for_each(|number| put(map, 1, number, number as u8 + 1));
    let some_freed = |map: &Map| {
        full(map);
        (2..5).for_each(|number| map.user_delete(&context(1), &key(number)).expect("there"));
    };
    let insert = |map: &Map| put(map, DEAD, 11, 99);
    let replace = |map: &Map| put(map, DEAD, 1, 99);
    let delete = |map: &Map| map.user_delete(&context(DEAD), &key(1)).unwrap_or(());
    let take = |map: &Map| {
        map.user_lookup_and_delete(&context(DEAD), &key(1), &mut [0; 16][..map.geometry().user_value_bytes()])
            .unwrap_or(())
    };
    let prepares: [&dyn Fn(&Map); 3] = [&some, &full, &some_freed];
    let operations: [&dyn Fn(&Map); 4] = [&insert, &replace, &delete, &take];
    for map_type in HASHES {
        for prepare in prepares {
            for operation in operations {
                // In a full map nothing is to be seen of an insertion that fails.
                let lru = matches!(map_type, map_type::LRU_HASH | map_type::LRU_PERCPU_HASH);
                if !(std::ptr::addr_eq(prepare, prepares[1]) && std::ptr::addr_eq(operation, operations[0]) && !lru) {
                    die_in(map_type, prepare, operation);
                }
            }
        }
    }
}

#[test]
fn the_living_outlive_a_death_at_any_instruction_of_cleaning_up_after_a_death() {
    let full = |map: &Map| (0..ENTRIES).for_each(|number| put(map, 1, number, number as u8 + 1));
    for map_type in HASHES {
        let attributes = Attributes {
            map_type,
            key_size: 4,
            value_size: 8,
            max_entries: ENTRIES,
            cpus: 2,
            ..Attributes::default()
        };
        let shared = Shared::fresh(attributes);
        full(&shared.map());
        // Two elements are in hands of the dead, and two locks.
        for number in [1, 2] {
            let dying = states(&shared, &|map| map.user_delete(&context(DEAD), &key(number)).unwrap_or(()));
            let harm = |state: &&Vec<u8>| {
                let census = Shared::of(state, shared.geometry).map().check().expect("whole");
                (census.in_hand, census.locked)
            };
            let worst = dying.iter().max_by_key(harm).expect("some");
            shared.restore(worst);
        }
        let census = shared.map().check().expect("whole");
        assert_eq!((census.in_hand, census.locked, census.elements), (2, 2, 6));
        let left = shared.bytes().to_vec();
        let by_update: &dyn Fn(&Map) = &|map| (11..13).for_each(|number| put(map, DEAD + 1, number, 9));
        let by_server: &dyn Fn(&Map) =
            &|map| assert!(!map.reclaim_dead_owner(&context(DEAD + 1), |owner| owner == DEAD, |at| at..u64::MAX));
        for collect in [by_update, by_server] {
            shared.restore(&left);
            let states = states(&shared, collect);
            let census = shared.map().check().expect("whole");
            assert_eq!((census.in_hand, census.locked), (0, 0));
            for state in states {
                let died = Shared::of(&state, shared.geometry);
                died.map().check().expect("whole");
                go_on_with_hash(&died.map());
            }
        }
        // Who has the right to collect may be dead, too, which only the server knows of other namespaces.
        shared.restore(&left);
        let far = ring3_layout::owner::name(3, 1);
        let collector = shared.base.wrapping_add(shared.geometry.header.data_bytes as usize + COLLECTOR_AT);
        // SAFETY: one of the map's own words.
        unsafe { collector.cast::<u32>().write(far) };
        shared.map().reclaim_dead_owner(&context(1), |owner| owner == DEAD || owner == far, |at| at..u64::MAX);
        assert_eq!(shared.map().check().map(|census| census.in_hand), Ok(0));
    }
}

/// What a trie or a stack map has.
fn listed(map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let value_of = |key: &Vec<u8>| {
        let mut value = vec![0; map.geometry().user_value_bytes()];
        map.user_lookup(key, &mut value).expect("listed");
        value
    };
    keys(map).into_iter().map(|key| (key.clone(), value_of(&key))).collect()
}

/// Dies at every instruction of `operation`; then the living delete what is not there, and `fill` the map.
fn die_in_pool(shared: &Shared, operation: &dyn Fn(&Map), absent: &[u8], fill: &dyn Fn(&Map)) {
    let before = listed(&shared.map());
    let states = states(shared, operation);
    let after = listed(&shared.map());
    assert_ne!(before, after);
    for state in &states {
        let died = Shared::of(state, shared.geometry);
        let map = died.map();
        let seen = listed(&map);
        // Who changes something finishes first what the dead owner wrote down.
        assert_eq!(map.user_delete(&context(1), absent), Err(Errno::ENOENT));
        let finished = listed(&map);
        assert!([&before, &after].contains(&&seen) && [&seen, &after].contains(&&finished), "{seen:?}, {finished:?}");
        assert_eq!(map.check().map(|census| census.locked), Ok(0));
        finished.iter().for_each(|(key, _)| map.user_delete(&context(1), key).expect("listed"));
        fill(&map);
        assert_eq!(map.check().map(|census| census.locked), Ok(0));
    }
}

#[test]
fn a_trie_outlives_a_death_at_any_instruction_of_any_operation() {
    const MAX: u32 = 5;
    let key = |bits: u8, last: u8| [bits, 0, 0, 0, 10, 0, 0, last];
    let put = |map: &Map, owner: u32, key: [u8; 8], byte: u8| {
        map.user_update(&context(owner), &key, &[byte; 8], 0).expect("room");
    };
    let fill = |map: &Map| {
        (0..MAX as u8).for_each(|number| put(map, 1, key(32, number.reverse_bits()), 9));
        assert_eq!(map.user_update(&context(1), &key(32, 1), &[9; 8], 0), Err(Errno::ENOSPC));
    };
    let operations: [&dyn Fn(&Map); 5] = [
        // Beside others, above others, in place of one, where two part and where a value has two below it.
        &|map| put(map, DEAD, key(32, 0x41), 5),
        &|map| put(map, DEAD, key(8, 0), 5),
        &|map| put(map, DEAD, key(32, 1), 5),
        &|map| map.user_delete(&context(DEAD), &key(32, 1)).unwrap_or(()),
        &|map| map.user_delete(&context(DEAD), &key(24, 0)).unwrap_or(()),
    ];
    for operation in operations {
        let shared = Shared::fresh(Attributes {
            map_type: map_type::LPM_TRIE,
            key_size: 8,
            value_size: 8,
            max_entries: MAX,
            map_flags: BPF_F_NO_PREALLOC,
            cpus: 1,
            ..Attributes::default()
        });
        [key(24, 0), key(32, 1), key(32, 2), key(32, 0x81)].into_iter().for_each(|key| put(&shared.map(), 1, key, 1));
        // Nodes are free, and the record has a change that was made.
        shared.map().user_delete(&context(1), &key(32, 0x81)).expect("there");
        put(&shared.map(), 1, key(32, 0x82), 1);
        shared.map().user_delete(&context(1), &key(32, 0x82)).expect("there");
        die_in_pool(&shared, operation, &key(32, 0xff), &fill);
    }
}

#[test]
fn a_stack_map_outlives_a_death_at_any_instruction_of_any_operation() {
    let fill = |map: &Map| {
        let ids: std::collections::BTreeSet<u32> =
            (0..1000).filter_map(|number| map.stack_id(&context(1), &[number], 0).ok()).collect();
        assert_eq!(ids.len(), 4);
    };
    let attributes = Attributes {
        map_type: map_type::STACK_TRACE,
        key_size: 4,
        value_size: 16,
        max_entries: 4,
        ..Attributes::default()
    };
    let shared = Shared::fresh(attributes);
    let first = shared.map().stack_id(&context(1), &[1, 2], 0).expect("room");
    let other_bucket = |number: &u64| {
        let free = Shared::fresh(attributes);
        free.map().stack_id(&context(1), &[*number], 0) != Ok(first)
    };
    let beside = (3..).find(other_bucket).expect("some");
    let instead = (3..).find(|number| !other_bucket(number)).expect("some");
    let second = shared.map().stack_id(&context(1), &[beside], 0).expect("room");
    shared.map().user_delete(&context(1), &second.to_le_bytes()).expect("there");
    let before = shared.bytes().to_vec();
    let operations: [&dyn Fn(&Map); 3] = [
        &|map| {
            let _ = map.stack_id(&context(DEAD), &[beside], 0);
        },
        &|map| {
            let _ = map.stack_id(&context(DEAD), &[instead], BPF_F_REUSE_STACKID);
        },
        &|map| map.user_delete(&context(DEAD), &first.to_le_bytes()).unwrap_or(()),
    ];
    let absent = (0..4u32).find(|id| ![first, second].contains(id)).expect("one of four");
    for operation in operations {
        shared.restore(&before);
        die_in_pool(&shared, operation, &absent.to_le_bytes(), &fill);
    }
}

#[test]
fn a_queue_outlives_a_death_at_any_instruction_of_any_operation() {
    let list = |map: &Map| {
        let mut found = vec![];
        let mut value = [0; 8];
        while map.user_pop(&context(1), &mut value).is_ok() {
            found.push(u64::from_le_bytes(value));
        }
        found
    };
    let push: &dyn Fn(&Map) = &|map| map.user_push(&context(DEAD), &99u64.to_le_bytes(), 0).unwrap_or(());
    let replace: &dyn Fn(&Map) = &|map| map.user_push(&context(DEAD), &99u64.to_le_bytes(), 2).unwrap_or(());
    let pop: &dyn Fn(&Map) = &|map| map.user_pop(&context(DEAD), &mut [0; 8]).unwrap_or(());
    for map_type in [map_type::QUEUE, map_type::STACK] {
        for elements in 1..5u64 {
            for operation in [push, replace, pop] {
                let attributes =
                    Attributes { map_type, value_size: 8, max_entries: 4, cpus: 1, ..Attributes::default() };
                let shared = Shared::fresh(attributes);
                (0..elements).for_each(|n| shared.map().user_push(&context(1), &n.to_le_bytes(), 0).expect("room"));
                let states = states(&shared, operation);
                let before = list(&Shared::of(&states[0], shared.geometry).map());
                let after = list(&shared.map());
                for state in &states {
                    let died = Shared::of(state, shared.geometry);
                    died.map().check().expect("whole");
                    let now = list(&died.map());
                    assert!(now == before || now == after, "{now:?}");
                    (0..4u64).for_each(|n| died.map().user_push(&context(1), &n.to_le_bytes(), 0).expect("room"));
                    assert_eq!(died.map().check().map(|census| (census.elements, census.locked)), Ok((4, 0)));
                }
            }
        }
    }
}

/// Records that a consumer finds: their data, and whether they count. Ends before a record that is not submitted.
fn consume(shared: &Shared) -> Vec<(u64, bool)> {
    let word = |at: u64| {
        let word = shared.base.wrapping_add(at as usize);
        // SAFETY: positions and headers lie in the data area and are words.
        unsafe { word.cast::<u64>().read_volatile() }
    };
    let (mut at, producer) = (word(0), word(4096));
    let mut found = vec![];
    while at != producer {
        let header = word(8192 + (at & 4095)) as u32;
        if header & BUSY != 0 {
            break;
        }
        found.push((word(8192 + ((at + 8) & 4095)), header & DISCARDED == 0));
        at += u64::from((header & !DISCARDED) + 8).next_multiple_of(8);
    }
    // SAFETY: the consumer's position is the first word.
    unsafe { shared.base.cast::<u64>().write_volatile(at) };
    found
}

#[test]
fn a_ring_buffer_outlives_a_death_at_any_instruction_and_its_consumer_goes_on() {
    let attributes = Attributes { map_type: map_type::RINGBUF, max_entries: 4096, ..Attributes::default() };
    let output = |map: &Map, owner: u32, data: u64| {
        map.ring().expect("a ring buffer").output(&context(owner), &data.to_le_bytes(), 0).is_ok()
    };
    // The last one's record goes around the end.
    for records_before in [0, 1, 255] {
        let shared = Shared::fresh(attributes);
        for number in 0..records_before {
            assert!(output(&shared.map(), 1, number));
        }
        if records_before == 255 {
            consume(&shared);
        }
        let states = states(&shared, &|map| {
            output(map, DEAD, 1000);
            output(map, DEAD, 1001);
        });
        for state in &states {
            let died = Shared::of(state, shared.geometry);
            let census = died.map().check().expect("whole");
            assert!(census.busy <= 1 && census.locked <= 1);
            assert!(output(&died.map(), 1, 2000));
            let mut found = consume(&died);
            assert_eq!(census.busy == 1, died.map().ring().expect("a ring buffer").is_held_up());
            let woken = died.map().reclaim_dead_owner(&context(1), |owner| owner >= DEAD, |at| at..u64::MAX);
            assert_eq!(woken, census.busy == 1);
            found.extend(consume(&died));
            let live: Vec<u64> = found.iter().filter(|(_, live)| *live).map(|(data, _)| *data).collect();
            let mut expected: Vec<u64> = if records_before == 255 { vec![] } else { (0..records_before).collect() };
            let done = live.iter().filter(|data| matches!(data, 1000 | 1001)).count() as u64;
            expected.extend(1000..1000 + done);
            expected.push(2000);
            assert_eq!(live, expected);
            // All the room is there.
            (0..256).for_each(|data| assert!(output(&died.map(), 1, data)));
            assert!(!output(&died.map(), 1, 0));
            assert_eq!(died.map().check().map(|census| (census.busy, census.locked)), Ok((0, 0)));
        }
    }
}
