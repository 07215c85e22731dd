//! Two operations, one of them begun and held up at every of its instructions while the other happens as a whole.
//!
//! With the deaths of `raw_crash.rs` these are the schedules that the protocols have to stand: a look-up whose element is
//! deleted and used again elsewhere, a free list that changes between a look and an exchange, a lock that is held.

mod raw;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use raw::{ENTRIES, Model, Shared, contents, context, interrupted, key, put, states, zeroed_and_shared};
use ring3_maps::{Attributes, Context, Map, Taken};
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::BPF_NOEXIST;

type Step<'s> = &'s dyn Fn(&Map);

fn hash_of(map_type: u32) -> Shared {
    hash_with(map_type, 8)
}

fn hash_with(map_type: u32, value_size: u32) -> Shared {
    Shared::fresh(Attributes {
        map_type,
        key_size: 4,
        value_size,
        max_entries: ENTRIES,
        cpus: 1,
        ..Attributes::default()
    })
}

fn delete(map: &Map, owner: u32, number: u32) {
    map.user_delete(&context(owner), &key(number)).unwrap_or(());
}

/// What a map of one process would have after these.
fn result_of(shared: &Shared, steps: &[Step<'_>]) -> Model {
    let alone = Shared::of(shared.bytes(), shared.geometry);
    steps.iter().for_each(|step| step(&alone.map()));
    contents(&alone.map())
}

#[test]
fn two_changes_of_a_hash_map_have_the_effect_of_one_after_the_other() {
    let changes: [Step<'_>; 2] = [&|map| put(map, 1, 9, 91), &|map| delete(map, 1, 2)];
    let others: [Step<'_>; 4] = [
        // Elements go and come back in another order: what was read of the free list is no longer so.
        &|map| {
            put(map, 2, 10, 101);
            put(map, 2, 11, 102);
            delete(map, 2, 10);
        },
        &|map| put(map, 2, 9, 103),
        &|map| delete(map, 2, 2),
        &|map| {
            delete(map, 2, 3);
            delete(map, 2, 2);
            put(map, 2, 3, 104);
        },
    ];
    for change in changes {
        for other in others {
            let shared = hash_of(map_type::HASH);
            (0..6).for_each(|number| put(&shared.map(), 3, number, number as u8 + 1));
            (4..6).for_each(|number| delete(&shared.map(), 3, number));
            let before = Shared::of(shared.bytes(), shared.geometry);
            let possible = [[change, other], [other, change]].map(|order| result_of(&before, &order));
            let alone = result_of(&before, &[change]);
            let judge = || {
                let census = shared.map().check().expect("whole");
                assert_eq!((census.in_hand, census.locked, census.miscounted), (0, 0, 0));
                let now = contents(&shared.map());
                if !possible.contains(&now) {
                    // The other gave up (`EBUSY`) what needed a bucket that the first one is held up in.
                    assert!(shared.map().gave_up() > 0, "{now:?} is none of {possible:?}");
                    let untouched =
                        |model: &Model| model.clone().into_iter().filter(|(key, _)| *key < 2).collect::<Vec<_>>();
                    assert_eq!(untouched(&now), untouched(&alone));
                }
            };
            interrupted(&shared, change, other, &judge);
        }
    }
}

#[test]
fn programs_of_a_signal_handler_update_a_hash_map_at_any_instruction_of_the_interrupted_ones() {
    let (old, fresh) = (2, 9);
    let others = |of: u32| (10..40).filter(move |number| bucket_of(*number) == bucket_of(of));
    let beside_fresh = others(fresh).next().expect("one of many");
    let last = others(fresh).nth(1).expect("one of many");
    let beside_old = others(old).find(|number| ![beside_fresh, last].contains(number)).expect("one of many");
    let pairs: [[Step<'_>; 2]; 4] = [
        [&|map| put(map, 1, fresh, 92), &|map| put(map, 1, beside_fresh, 102)],
        [&|map| put(map, 1, old, 93), &|map| put(map, 1, old, 103)],
        [&|map| delete(map, 1, old), &|map| put(map, 1, beside_old, 105)],
        [&|map| _ = map.user_update(&context(1), &key(fresh), &[96; 64], BPF_NOEXIST), &|map| {
            put(map, 1, fresh, 106)
        }],
    ];
    for (number, [change, handler]) in pairs.into_iter().enumerate() {
        let shared = hash_with([map_type::HASH, map_type::LRU_HASH][number % 2], 64);
        (0..4).for_each(|number| put(&shared.map(), 3, number, number as u8 + 1));
        let before = Shared::of(shared.bytes(), shared.geometry);
        let possible = [[change, handler], [handler, change]].map(|order| result_of(&before, &order));
        let judge = || {
            let census = shared.map().check().expect("whole");
            assert_eq!((census.in_hand, census.locked, census.miscounted), (0, 0, 0));
            let now = contents(&shared.map());
            assert!(possible.contains(&now), "{now:?} is none of {possible:?}");
        };
        interrupted(&shared, change, handler, &judge);
        // The handler is interrupted by another one, wherever it was that the first one came; both are left then.
        shared.restore(before.bytes());
        for first in states(&shared, change) {
            shared.restore(&first);
            for second in states(&shared, handler) {
                shared.restore(&second);
                put(&shared.map(), 1, last, 107);
                assert_eq!(contents(&shared.map()).get(&last), Some(&vec![107; 64]));
                assert!(shared.map().check().is_ok());
            }
        }
    }
}

#[test]
fn a_lookup_finds_what_stays_wherever_the_elements_around_it_go() {
    let shared = hash_of(map_type::HASH);
    let answer = Shared::new(shared.geometry);
    (0..ENTRIES).for_each(|number| put(&shared.map(), 3, number, number as u8 + 1));
    for sought in [0, 3, 7] {
        let lookup = |map: &Map| {
            let mut value = [0; 8];
            let found = map.user_lookup(&key(sought), &mut value).is_ok();
            // SAFETY: the answer's memory has more than 8 bytes; the child writes them, the parent reads later.
            unsafe { answer.base.cast::<u64>().write_volatile(if found { u64::from_le_bytes(value) } else { 0 }) };
        };
        // Every other element is deleted and used again under another key.
        let churn = |map: &Map| {
            (0..ENTRIES).filter(|number| *number != sought).for_each(|number| delete(map, 2, number));
            (20..20 + ENTRIES - 1).rev().for_each(|number| put(map, 2, number, 99));
        };
        let judge = || {
            // SAFETY: as above; the child has ended.
            let found = unsafe { answer.base.cast::<u64>().read_volatile() };
            assert_eq!(found, u64::from_le_bytes([sought as u8 + 1; 8]));
        };
        let before = shared.bytes().to_vec();
        interrupted(&shared, &lookup, &churn, &judge);
        shared.restore(&before);
    }
}

#[test]
fn a_lookup_of_a_key_that_goes_and_comes_finds_one_of_its_values_or_nothing() {
    let shared = hash_of(map_type::HASH);
    let answer = Shared::new(shared.geometry);
    (0..6).for_each(|number| put(&shared.map(), 3, number, number as u8 + 1));
    let lookup = |map: &Map| {
        let mut value = [0; 8];
        let found = map.user_lookup(&key(2), &mut value).is_ok();
        // SAFETY: the answer's memory has more than 8 bytes; the child writes them, the parent reads later.
        unsafe { answer.base.cast::<u64>().write_volatile(if found { u64::from_le_bytes(value) } else { 0 }) };
    };
    let churn = |map: &Map| {
        delete(map, 2, 2);
        put(map, 2, 12, 98);
        put(map, 2, 2, 99);
    };
    let judge = || {
        // SAFETY: as above; the child has ended.
        let found = unsafe { answer.base.cast::<u64>().read_volatile() };
        // An element that was deleted and given to another key shows that one's value, as the kernel's do.
        assert!([0, 3, 98, 99].map(|byte| u64::from_le_bytes([byte; 8])).contains(&found), "{found:#x}");
    };
    interrupted(&shared, &lookup, &churn, &judge);
}

/// The bucket of a key.
fn bucket_of(number: u32) -> Option<u32> {
    let alone = hash_of(map_type::HASH);
    put(&alone.map(), 3, number, 1);
    let has_any = |bucket: &u32| {
        let mut any = false;
        alone.map().user_bucket(*bucket, &mut [0; 4], |_| any = true);
        any
    };
    (0..ENTRIES).find(has_any)
}

#[test]
fn a_lookup_of_a_key_that_is_being_added_finds_its_value_or_nothing() {
    let shared = hash_of(map_type::HASH);
    let answer = Shared::new(shared.geometry);
    let added = (3..).find(|number| bucket_of(*number) == bucket_of(2)).expect("some");
    put(&shared.map(), 3, 2, 1);
    let before = shared.bytes().to_vec();
    // The element on which the look-up stands is used again for the key that it looks for.
    let churn = |map: &Map| {
        delete(map, 2, 2);
        put(map, 2, added, 5);
    };
    let lookup = |map: &Map| {
        let mut value = [0; 8];
        let found = map.user_lookup(&key(added), &mut value).is_ok();
        // SAFETY: the answer's memory has more than 8 bytes; the child writes them, the parent reads later.
        unsafe { answer.base.cast::<u64>().write_volatile(if found { u64::from_le_bytes(value) } else { 0 }) };
    };
    let judge = || {
        // SAFETY: as above; the child has ended.
        let found = unsafe { answer.base.cast::<u64>().read_volatile() };
        assert!([0, u64::from_le_bytes([5; 8])].contains(&found), "{found:#x}");
    };
    for state in states(&shared, &churn) {
        shared.restore(&before);
        interrupted(&shared, &lookup, &|_| shared.restore(&state), &judge);
    }
}

#[test]
fn two_users_of_a_stack_map_disturb_each_other_only_where_they_meet() {
    let attributes = Attributes {
        map_type: map_type::STACK_TRACE,
        key_size: 4,
        value_size: 24,
        max_entries: 4,
        ..Attributes::default()
    };
    let shared = Shared::fresh(attributes);
    let empty = shared.bytes().to_vec();
    let id_of = |first: u64| Shared::fresh(attributes).map().stack_id(&context(1), &[first, 2, 3], 0).expect("room");
    let id = id_of(1);
    let beside = (2..).find(|first| id_of(*first) != id).expect("some");
    let instead = (2..).find(|first| id_of(*first) == id).expect("some");
    let add = |map: &Map, owner: u32, first: u64| map.stack_id(&context(owner), &[first, 2, 3], 0).is_ok();
    let answer: &[AtomicU64; 4] = zeroed_and_shared();
    let read = |map: &Map| {
        let mut value = [0; 24];
        let found = map.user_lookup(&id.to_le_bytes(), &mut value).is_ok();
        let (words, _) = value.as_chunks();
        answer.iter().zip(words).for_each(|(to, word)| to.store(u64::from_le_bytes(*word), Relaxed));
        answer[3].store(found.into(), Relaxed);
    };
    // The node that is looked at is used again for another stack.
    let reuse = |map: &Map| {
        map.user_delete(&context(2), &id.to_le_bytes()).expect("there");
        assert!(add(map, 2, beside) && add(map, 2, 1));
    };
    assert!(add(&shared.map(), 1, 1));
    let before = shared.bytes().to_vec();
    let judge = || {
        let [words @ .., found] = [0, 1, 2, 3].map(|at: usize| answer[at].load(Relaxed));
        assert!(found == 0 || words == [1, 2, 3], "{words:?}");
    };
    interrupted(&shared, &read, &reuse, &judge);
    shared.restore(&before);
    let judge = || assert_eq!(answer[3].load(Relaxed), 1, "a stack that is there is found");
    interrupted(&shared, &|map| answer[3].store(add(map, 1, 1).into(), Relaxed), &reuse, &judge);
    // Two stacks want one bucket: one gets it.
    shared.restore(&empty);
    let other = std::cell::Cell::new(false);
    let judge = || {
        let both = other.get() && answer[3].load(Relaxed) == 1;
        assert!(!both, "a stack took another one's place");
        shared.map().check().expect("whole");
    };
    let first = |map: &Map| answer[3].store(add(map, 1, 1).into(), Relaxed);
    interrupted(&shared, &first, &|map| other.set(add(map, 2, instead)), &judge);
}

#[test]
fn two_producers_and_a_discarder_of_a_ring_buffer_keep_it_whole() {
    let shared =
        Shared::fresh(Attributes { map_type: map_type::RINGBUF, max_entries: 4096, ..Attributes::default() });
    let output = |map: &Map, owner: u32| {
        let _ = map.ring().expect("a ring buffer").output(&context(owner), &u64::from(owner).to_le_bytes(), 0);
    };
    let twice = |map: &Map| {
        output(map, 2);
        map.reclaim_dead_owner(&context(2), |owner| owner >= raw::DEAD, |at| at..u64::MAX);
        output(map, 2);
    };
    let judge = || {
        let census = shared.map().check().expect("whole");
        // The second one finds the lock held, or not.
        assert!((1..=3).contains(&census.elements) && census.busy == 0 && census.locked == 0, "{census:?}");
    };
    interrupted(&shared, &|map| output(map, 1), &twice, &judge);
}

#[test]
fn a_discarder_looks_at_no_record_that_is_written_meanwhile() {
    const BUSY: u64 = 1 << 31;
    let shared =
        Shared::fresh(Attributes { map_type: map_type::RINGBUF, max_entries: 4096, ..Attributes::default() });
    // What a record holds looks like a header of a dead owner's record that is not submitted.
    let looks_dead = u64::from(raw::DEAD) << 32 | BUSY | 8;
    let output = |map: &Map, data: &[u8]| map.ring().expect("a ring buffer").output(&context(2), data, 0).is_ok();
    (0..3).for_each(|_| assert!(output(&shared.map(), &[0; 1000])));
    let discard = |map: &Map| {
        map.reclaim_dead_owner(&context(1), |owner| owner == raw::DEAD, |at| at..u64::MAX);
    };
    let refill = |map: &Map| {
        records(map);
        // From now on records begin in what was the middle of others.
        let _ = output(map, &[]);
        while output(map, &looks_dead.to_le_bytes()) {}
    };
    let judge = || {
        let mut room = [0; 64];
        let ring = shared.map().ring().expect("a ring buffer");
        while ring.take(&mut room, |data| {
            assert!(data.is_empty() || data == looks_dead.to_le_bytes(), "{data:?}");
            true
        }) == Taken::Passed
        {}
        assert_eq!(shared.map().check().map(|census| (census.busy, census.locked)), Ok((0, 0)));
    };
    interrupted(&shared, &discard, &refill, &judge);
}

#[test]
fn two_users_of_a_queue_keep_it_whole() {
    let attributes =
        Attributes { map_type: map_type::QUEUE, value_size: 8, max_entries: 4, cpus: 1, ..Attributes::default() };
    let shared = Shared::fresh(attributes);
    (0..3u64).for_each(|n| shared.map().user_push(&context(3), &n.to_le_bytes(), 0).expect("room"));
    let push = |map: &Map| map.user_push(&context(1), &9u64.to_le_bytes(), 0).unwrap_or(());
    let pop = |map: &Map| map.user_pop(&context(2), &mut [0; 8]).unwrap_or(());
    for (first, second) in [(&push as Step, &pop as Step), (&pop, &push), (&push, &push), (&pop, &pop)] {
        let before = shared.bytes().to_vec();
        let judge = || {
            let census = shared.map().check().expect("whole");
            assert!(census.locked == 0 && (1..=4).contains(&census.elements), "{census:?}");
        };
        interrupted(&shared, first, second, &judge);
        shared.restore(&before);
    }
}

#[test]
fn a_peek_shows_one_of_the_elements_that_were_next_and_no_mixture() {
    for map_type in [map_type::QUEUE, map_type::STACK] {
        let shared =
            Shared::fresh(Attributes { map_type, value_size: 24, max_entries: 2, cpus: 1, ..Attributes::default() });
        let push = |map: &Map, byte: u8| map.user_push(&context(2), &[byte; 24], 0).expect("room");
        push(&shared.map(), 1);
        let answer = Shared::new(shared.geometry);
        let peek = |map: &Map| {
            let mut value = [0; 24];
            map.user_peek(&context(1), &mut value).unwrap_or(());
            // SAFETY: the answer's memory has more than 24 bytes; the child writes them, the parent reads later.
            unsafe { answer.base.cast::<[u8; 24]>().write_volatile(value) };
        };
        // At the end the one element lies where the first one lay.
        let churn = |map: &Map| {
            for byte in 2..=4 {
                map.user_pop(&context(2), &mut [0; 24]).expect("there is one");
                push(map, byte);
            }
        };
        let judge = || {
            // SAFETY: as above; the child has ended.
            let value = unsafe { answer.base.cast::<[u8; 24]>().read_volatile() };
            assert!([1, 4].map(|byte| [byte; 24]).contains(&value), "{value:?}");
        };
        interrupted(&shared, &peek, &churn, &judge);
    }
}

#[test]
fn a_lookup_in_a_trie_finds_a_prefix_that_was_the_longest() {
    for data_bytes in [4u32, 16, 20] {
        let attributes = Attributes {
            map_type: map_type::LPM_TRIE,
            key_size: 4 + data_bytes,
            value_size: 16,
            max_entries: 5,
            map_flags: ring3_uapi::flags::BPF_F_NO_PREALLOC,
            cpus: 1,
            ..Attributes::default()
        };
        let shared = Shared::fresh(attributes);
        let data_bits = data_bytes * 8;
        // The last byte tells prefixes apart.
        let key = |bits: u32, last: u8| {
            let mut key = [0; 24];
            key[..4].copy_from_slice(&bits.to_le_bytes());
            key[3 + data_bytes as usize] = last;
            key
        };
        let size = 4 + data_bytes as usize;
        let put = |map: &Map, bits, last, value: u8| {
            map.user_update(&context(2), &key(bits, last)[..size], &[value; 16], 0).expect("room");
        };
        let delete = |map: &Map, bits, last| {
            map.user_delete(&context(2), &key(bits, last)[..size]).expect("there");
        };
        put(&shared.map(), data_bits - 8, 0, 1);
        put(&shared.map(), data_bits, 0x11, 2);
        put(&shared.map(), data_bits, 0x80, 3);
        let answer = Shared::new(shared.geometry);
        let lookup = |map: &Map| {
            let mut value = [0; 16];
            map.user_lookup(&key(data_bits, 0x11)[..size], &mut value).unwrap_or(());
            // SAFETY: the answer's memory has more than 16 bytes; the child writes them, the parent reads later.
            unsafe { answer.base.cast::<[u8; 16]>().write_volatile(value) };
        };
        // Nodes go and are used again for other prefixes, which do not fit, and the sought one comes back.
        let churn = |map: &Map| {
            delete(map, data_bits, 0x11);
            delete(map, data_bits, 0x80);
            put(map, data_bits, 0x91, 97);
            put(map, data_bits, 0x92, 98);
            put(map, data_bits - 4, 0x20, 99);
            put(map, data_bits, 0x11, 4);
            put(map, data_bits - 8, 0, 5);
        };
        let judge = || {
            // SAFETY: as above; the child has ended.
            let value = unsafe { answer.base.cast::<[u8; 16]>().read_volatile() };
            // (Once the longest one was read, what is above it does not matter.)
            assert!([2, 4].map(|byte| [byte; 16]).contains(&value), "{value:?}");
            shared.map().check().expect("whole");
        };
        interrupted(&shared, &lookup, &churn, &judge);
    }
}

/// A record of eight bytes, or none.
fn put_record(map: &Map, cx: &Context, data: u64) -> bool {
    map.ring().expect("a ring buffer").output(cx, &data.to_le_bytes(), 0).is_ok()
}

/// What a reader finds that reads to the end, or to a record that is not submitted.
fn records(map: &Map) -> Vec<u64> {
    let ring = map.ring().expect("a ring buffer");
    let mut found = vec![];
    let mut out = [0; 64];
    while ring.take(&mut out, |data| {
        found.push(u64::from_le_bytes(data.try_into().expect("eight bytes")));
        true
    }) == Taken::Passed
    {}
    found
}

#[test]
fn programs_of_a_signal_handler_write_into_a_ring_buffer_at_any_instruction_of_the_interrupted_ones() {
    let (own, of_handler) = (context(1), Context { interrupts: true, ..context(1) });
    let attributes = Attributes { map_type: map_type::RINGBUF, max_entries: 4096, ..Attributes::default() };
    // (256 fill the buffer: what lies in it then has the headers of such records already.)
    for before in [0, 255, 256 + 128] {
        let shared = Shared::fresh(attributes);
        for number in 0..before {
            assert!(put_record(&shared.map(), &own, number));
            records(&shared.map());
        }
        let handler = |map: &Map| (2..4).for_each(|data| assert!(put_record(map, &of_handler, data)));
        let judge = || {
            let mut found = records(&shared.map());
            assert_eq!(shared.map().check().map(|census| (census.busy, census.locked)), Ok((0, 0)));
            found.sort_unstable();
            assert_eq!(found, [1, 2, 3]);
        };
        interrupted(&shared, &|map| assert!(put_record(map, &own, 1)), &handler, &judge);
        if before != 255 {
            continue;
        }
        // The handler is interrupted by another one, wherever it was that the first one came.
        let handler = |map: &Map| assert!(put_record(map, &of_handler, 2));
        let held = states(&shared, &|map| assert!(put_record(map, &own, 1)));
        for state in &held {
            shared.restore(state);
            let judge = || {
                assert!(shared.map().check().is_ok());
                let map = shared.map();
                let mut found = records(&map);
                if map.ring().expect("a ring buffer").is_held_up() {
                    // The first record is there and not submitted: that would come now.
                    assert!(map.reclaim_dead_owner(&context(2), |owner| owner == 1, |at| at..u64::MAX));
                    found.extend(records(&map));
                }
                found.retain(|data| *data != 1);
                found.sort_unstable();
                assert_eq!(found, [2, 4]);
            };
            let second = |map: &Map| assert!(put_record(map, &of_handler, 4));
            interrupted(&shared, &handler, &second, &judge);
        }
    }
}
