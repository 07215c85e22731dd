//! Maps against models, from one thread and from many.

mod raw;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use ring3_maps::{
    Attributes, Context, Geometry, Map, PERF_SAMPLE_RAW, PerfBuffer, RecordContent, Sample, Taken, Unreserved, View,
    Wake,
};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_LOCK, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};

use raw::{DEAD, Shared, keys, waiting};

/// Where a hash map's buckets begin, behind the header.
const BUCKETS_AT: u64 = 896;

fn hash(key_size: u32, value_size: u32, max_entries: u32) -> Attributes {
    Attributes { map_type: map_type::HASH, key_size, value_size, max_entries, map_flags: 0, cpus: 4, map_extra: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_hash_map_does_what_a_model_with_the_kernels_rules_does(
        key_size in prop_oneof![Just(1u32), Just(4), Just(7), Just(8), Just(16), Just(40)],
        operations in prop::collection::vec((0u8..4, 0u8..24, any::<u8>(), 0u64..5), 1..300),
    ) {
        let shared = Shared::fresh(hash(key_size, 5, 16));
        let cx = waiting(1);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (operation, key, value, flags) in operations {
            let key = vec![key; key_size as usize];
            let value = vec![value; 5];
            match operation {
                0 | 1 => {
                    let there = model.contains_key(&key);
                    let expected = match flags {
                        3.. => Err(Errno::EINVAL),
                        1 if there => Err(Errno::EEXIST),
                        2 if !there => Err(Errno::ENOENT),
                        _ if !there && model.len() == 16 => Err(Errno::E2BIG),
                        _ => Ok(()),
                    };
                    prop_assert_eq!(shared.map().user_update(&cx, &key, &value, flags), expected);
                    if expected.is_ok() {
                        model.insert(key, value);
                    }
                }
                2 => {
                    let expected = model.remove(&key).map(drop).ok_or(Errno::ENOENT);
                    prop_assert_eq!(shared.map().user_delete(&cx, &key), expected);
                }
                _ => {
                    let mut out = [0; 5];
                    let result = shared.map().user_lookup(&key, &mut out);
                    prop_assert_eq!(result.is_ok(), model.contains_key(&key));
                    prop_assert!(result.is_err() || model[&key] == out);
                }
            }
            let mut all = keys(&shared.map());
            all.sort();
            prop_assert_eq!(all, model.keys().cloned().collect::<Vec<_>>());
        }
    }
}

/// What a compiled program calls for a map of this type with keys of this size.
type Lookup = unsafe fn(u64, u64, u64) -> u64;

macro_rules! without_cpu {
    ($function:path) => {{
        unsafe fn lookup(header: u64, key: u64, _: u64) -> u64 {
            // SAFETY: as for the function.
            unsafe { $function(header, key) }
        }
        lookup as Lookup
    }};
}

fn specialised() -> [(u32, [Lookup; 4]); 4] {
    use ring3_maps as maps;
    [
        (
            map_type::HASH,
            [
                without_cpu!(maps::hash_lookup_4),
                without_cpu!(maps::hash_lookup_8),
                without_cpu!(maps::hash_lookup_16),
                without_cpu!(maps::hash_lookup_64),
            ],
        ),
        (
            map_type::LRU_HASH,
            [
                without_cpu!(maps::lru_hash_lookup_4),
                without_cpu!(maps::lru_hash_lookup_8),
                without_cpu!(maps::lru_hash_lookup_16),
                without_cpu!(maps::lru_hash_lookup_64),
            ],
        ),
        (
            map_type::PERCPU_HASH,
            [
                maps::percpu_hash_lookup_4,
                maps::percpu_hash_lookup_8,
                maps::percpu_hash_lookup_16,
                maps::percpu_hash_lookup_64,
            ],
        ),
        (
            map_type::LRU_PERCPU_HASH,
            [
                maps::lru_percpu_hash_lookup_4,
                maps::lru_percpu_hash_lookup_8,
                maps::lru_percpu_hash_lookup_16,
                maps::lru_percpu_hash_lookup_64,
            ],
        ),
    ]
}

#[test]
fn specialised_lookups_find_what_general_updates_stored() {
    const CPU: u32 = 2;
    for (kind, lookups) in specialised() {
        for (key_size, lookup) in [4, 8, 16, 64].into_iter().zip(lookups) {
            let shared = Shared::fresh(Attributes { map_type: kind, ..hash(key_size, 8, 2000) });
            let cx = Context { cpu: CPU, ..waiting(1) };
            let key_of = |number: u32| -> Vec<u8> { number.to_le_bytes().repeat(key_size as usize / 4) };
            for number in 0..1000 {
                let (key, value) = (key_of(number), u64::from(number).to_le_bytes());
                // SAFETY: a key and a value of the map's sizes.
                unsafe { shared.map().update(&cx, key.as_ptr() as u64, value.as_ptr() as u64, 0) }.expect("room");
            }
            let view = View { base: shared.base as u64, geometry: *shared.map().geometry() };
            let view = &raw const view as u64;
            for number in 0..2000 {
                let key = key_of(number);
                // SAFETY: the view of a live map, a key of its size, and a CPU that it has.
                let value = unsafe { lookup(view, key.as_ptr() as u64, u64::from(CPU)) };
                // SAFETY: the view of a live map.
                let map = unsafe { Map::from_view(view) }.expect("a view");
                // SAFETY: a key of the map's size.
                assert_eq!(value, unsafe { map.lookup(key.as_ptr() as u64, CPU) }, "{kind}, {key_size}, {number}");
                assert_eq!(value != 0, number < 1000, "{kind}, {key_size}, {number}");
                // SAFETY: a value of this map has 8 bytes.
                assert!(value == 0 || unsafe { (value as *const u64).read() } == u64::from(number));
            }
        }
    }
}

#[test]
fn a_map_holds_exactly_its_number_of_elements_each_with_a_value_of_its_own() {
    for entries in [1u32, 7, 63, 64, 65, 200] {
        let shared = Shared::fresh(hash(4, 4, entries));
        // Several threads in turn, which keep free elements apart, and a round of deletion between.
        for round in 0..3u32 {
            for key in 0..entries {
                let (cx, value) = (waiting(1 + key % 11 + round), (key ^ round).to_le_bytes());
                shared.map().user_update(&cx, &key.to_le_bytes(), &value, 1).expect("room");
            }
            let full = shared.map().user_update(&waiting(1), &entries.to_le_bytes(), &[0; 4], 0);
            assert_eq!(full, Err(Errno::E2BIG));
            for key in 0..entries {
                let mut out = [0; 4];
                shared.map().user_lookup(&key.to_le_bytes(), &mut out).expect("stored");
                assert_eq!(u32::from_le_bytes(out), key ^ round);
                shared.map().user_delete(&waiting(5 + key % 3), &key.to_le_bytes()).expect("there");
            }
        }
    }
}

#[test]
fn keys_of_any_length_that_differ_in_one_bit_spread_over_the_buckets() {
    for key_size in [1usize, 3, 5, 8, 11, 16, 17, 31, 32, 40, 64, 100] {
        let shared = Shared::fresh(hash(key_size as u32, 1, 4096));
        let cx = waiting(1);
        let mut key = vec![0; key_size];
        shared.map().user_update(&cx, &key, &[0], 0).expect("room");
        for bit in 0..key_size * 8 {
            key[bit / 8] ^= 1 << (bit % 8);
            shared.map().user_update(&cx, &key, &[0], 1).expect("another key");
            key[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(keys(&shared.map()).len(), key_size * 8 + 1);
        let (base, table) = (shared.base as u64 + shared.map().header().data_bytes, 4096u64);
        // SAFETY: the bucket table is in the mapping; each bucket begins with a link.
        let head = |bucket: u64| unsafe { ((base + BUCKETS_AT + bucket * 8) as *const u32).read() };
        let used = (0..table).filter(|bucket| head(*bucket) != 0).count();
        assert!(
            used * 10 > (key_size * 8 + 1) * 7,
            "{used} buckets for {} keys of {key_size} bytes",
            key_size * 8 + 1
        );
    }
}

#[test]
fn each_key_is_in_one_bucket() {
    let shared = Shared::fresh(hash(9, 8, 100));
    let mut expected = vec![];
    for number in 0..100u8 {
        let key = [number; 9];
        shared.map().user_update(&waiting(1), &key, &[1; 8], 0).expect("there is room");
        expected.push(key.to_vec());
    }
    let mut found = vec![];
    for bucket in 0..=shared.map().geometry().hash.bucket_mask {
        assert!(shared.map().user_bucket(bucket, &mut [0; 9], |key| found.push(key.to_vec())));
    }
    found.sort_unstable();
    assert_eq!(found, expected);
    assert!(!shared.map().user_bucket(u32::MAX, &mut [0; 9], |_| panic!("there is no such bucket")));
}

#[test]
fn threads_lose_no_key_and_no_count() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 20_000;
    let shared = Shared::fresh(hash(8, 8, 4096));
    let map = shared.map();
    let common = 7u64.to_le_bytes();
    map.user_update(&waiting(100), &common, &[0; 8], 0).expect("room");
    std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            scope.spawn(move || {
                let cx = waiting(thread as u32);
                for round in 0..ROUNDS {
                    let own = ((thread << 32) | (round % 97)).to_le_bytes();
                    map.user_update(&cx, &own, &round.to_le_bytes(), 0).expect("room");
                    let mut out = [0; 8];
                    map.user_lookup(&own, &mut out).expect("just stored");
                    assert_eq!(u64::from_le_bytes(out), round);
                    map.user_delete(&cx, &own).expect("there");
                    assert_eq!(map.user_lookup(&own, &mut out), Err(Errno::ENOENT));
                    // SAFETY: 8 readable bytes.
                    let value = unsafe { map.lookup(common.as_ptr() as u64, 0) };
                    // SAFETY: the value of the common key is 8 bytes and stays.
                    unsafe { AtomicU64::from_ptr(value as *mut u64) }.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let mut out = [0; 8];
    map.user_lookup(&common, &mut out).expect("never deleted");
    assert_eq!(u64::from_le_bytes(out), THREADS * ROUNDS);
    assert_eq!(keys(&map), [common.to_vec()]);
}

#[test]
fn a_lock_that_a_dead_owner_left_is_taken_over_and_a_living_ones_wait_is_bounded() {
    let shared = Shared::fresh(hash(4, 4, 4));
    let header = shared.map().header().data_bytes as usize;
    for (owner, expected) in [(DEAD, Ok(())), (5, Err(Errno::EBUSY))] {
        for bucket in 0..4usize {
            let lock = shared.base.wrapping_add(header + BUCKETS_AT as usize + bucket * 8 + 4).cast::<u32>();
            // SAFETY: the lock words of the four buckets lie behind header and words.
            unsafe { lock.write(owner) };
        }
        assert_eq!(shared.map().user_update(&waiting(1), &[1, 0, 0, 0], &[0; 4], 0), expected);
    }
}

#[test]
fn a_signal_handler_does_not_wait_for_the_thread_that_it_has_interrupted() {
    let shared = Shared::fresh(hash(4, 4, 1));
    let lock = shared.base.wrapping_add(BUCKETS_AT as usize + 4).cast::<u32>();
    // SAFETY: the lock word of the only bucket lies behind header and words.
    unsafe { lock.write(1) };
    let cx = Context { relax: |_| panic!("it waits"), ..waiting(1) };
    assert_eq!(shared.map().user_delete(&cx, &[1, 0, 0, 0]), Err(Errno::EBUSY));
    assert_eq!(shared.map().gave_up(), 1);
    // It updates under the lock, which stays.
    assert_eq!(shared.map().user_update(&cx, &[1, 0, 0, 0], &[0; 4], 0), Ok(()));
    assert_eq!(shared.map().check().map(|census| census.locked), Ok(1));
}

#[test]
fn a_lock_of_another_pid_namespace_is_not_taken_over_until_the_server_has_buried_its_owner() {
    let shared = Shared::fresh(hash(4, 4, 1));
    let header = shared.map().header().data_bytes as usize;
    let lock = shared.base.wrapping_add(header + BUCKETS_AT as usize + 4).cast::<u32>();
    let far = ring3_layout::owner::name(3, DEAD);
    // SAFETY: the lock word of the only bucket lies behind header and words.
    unsafe { lock.write(far) };
    let put = || shared.map().user_update(&waiting(1), &[1, 0, 0, 0], &[0; 4], 0);
    // The same number is that of a dead thread here.
    assert_eq!(put(), Err(Errno::EBUSY));
    shared.map().reclaim_dead_owner(&waiting(1), |_| false, |at| at..u64::MAX);
    assert_eq!(put(), Err(Errno::EBUSY));
    assert_eq!(shared.map().gave_up(), 2);
    shared.map().reclaim_dead_owner(&waiting(1), |owner| owner == far, |at| at..u64::MAX);
    assert_eq!(put(), Ok(()));
}

#[test]
fn per_cpu_values_are_apart_and_fresh_elements_are_zero_elsewhere() {
    for kind in [map_type::PERCPU_HASH, map_type::PERCPU_ARRAY] {
        let shared = Shared::fresh(Attributes {
            map_type: kind,
            key_size: 4,
            value_size: 4,
            max_entries: 3,
            map_flags: 0,
            cpus: 4,
            map_extra: 0,
        });
        let key = 1u32.to_le_bytes();
        let value = 9u32.to_le_bytes();
        // SAFETY: key and value are readable with their sizes.
        unsafe {
            shared.map().update(&Context { cpu: 2, ..waiting(1) }, key.as_ptr() as u64, value.as_ptr() as u64, 0)
        }
        .expect("room");
        let mut out = [0xff; 32];
        shared.map().user_lookup(&key, &mut out).expect("there");
        let mut expected = [0u8; 32];
        expected[16] = 9;
        assert_eq!(out, expected);
        // SAFETY: the key is readable with its size.
        let values = [2, 3, 4].map(|cpu| unsafe { shared.map().lookup_percpu(key.as_ptr() as u64, cpu) });
        assert_eq!(values.map(|value| value != 0), [true, true, false]);
        if kind == map_type::PERCPU_ARRAY {
            continue;
        }
        // The element is used again.
        shared.map().user_update(&waiting(1), &key, &[7; 32], 0).expect("there");
        shared.map().user_delete(&waiting(1), &key).expect("there");
        // SAFETY: key and value are readable with their sizes.
        unsafe {
            shared.map().update(&Context { cpu: 2, ..waiting(1) }, key.as_ptr() as u64, value.as_ptr() as u64, 0)
        }
        .expect("room");
        shared.map().user_lookup(&key, &mut out).expect("there");
        // (Of this CPU's eight bytes the value has four.)
        out[20..24].fill(0);
        assert_eq!(out, expected);
    }
}

#[test]
fn keys_values_and_data_of_another_size_are_refused() {
    let cx = waiting(1);
    let shared = Shared::fresh(hash(4, 8, 4));
    let map = shared.map();
    for key in [&[1u8; 3][..], &[1; 5]] {
        assert_eq!(map.user_update(&cx, key, &[1; 8], 0), Err(Errno::EINVAL));
        assert_eq!(map.user_lookup(key, &mut [0; 8]), Err(Errno::EINVAL));
        assert_eq!(map.user_delete(&cx, key), Err(Errno::EINVAL));
    }
    assert_eq!(map.user_update(&cx, &[1; 4], &[1; 7], 0), Err(Errno::EINVAL));
    let shared = Shared::fresh(Attributes { map_type: map_type::ARRAY, ..hash(4, 8, 2) });
    let (map, end) = (shared.map(), shared.map().header().data_bytes);
    assert!(map.write_data(end - 8, &[1; 8]) && map.read_data(end - 8, &mut [0; 8]));
    // What lies behind the data is not the loader's.
    assert!([end - 7, end, u64::MAX].iter().all(|at| !map.write_data(*at, &[1; 8])));
    assert!([end - 7, end, u64::MAX].iter().all(|at| !map.read_data(*at, &mut [0; 8])));
}

#[test]
fn a_full_lru_map_keeps_what_is_used() {
    let shared = Shared::fresh(Attributes { map_type: map_type::LRU_HASH, ..hash(4, 8, 1000) });
    let cx = waiting(1);
    let put = |key: u32| shared.map().user_update(&cx, &key.to_le_bytes(), &u64::from(key).to_le_bytes(), 0);
    let view = View { base: shared.base as u64, geometry: shared.geometry };
    // Half of them are used by compiled code.
    let used = |key: u32| match key % 2 {
        // SAFETY: the key is readable with its size.
        0 => unsafe { shared.map().lookup(key.to_le_bytes().as_ptr() as u64, 0) != 0 },
        // SAFETY: as above, and the view is that of a live map.
        _ => unsafe { ring3_maps::lru_hash_lookup_4(&raw const view as u64, key.to_le_bytes().as_ptr() as u64) != 0 },
    };
    (0..1000).for_each(|key| put(key).expect("room"));
    // Some are used now and never again.
    assert!((0..200).all(used));
    for key in 1000..20_000 {
        put(key).expect("room is made");
        assert!((0..100).all(used), "after {key}");
        shared.map().user_lookup(&key.to_le_bytes(), &mut [0; 8]).expect("just put");
    }
    let left = keys(&shared.map());
    assert_eq!(left.len(), 1000);
    for key in left {
        assert!(!(100..1000).contains(&u32::from_le_bytes(key[..].try_into().expect("4 bytes"))), "{key:?} is left");
        let mut value = [0; 8];
        shared.map().user_lookup(&key, &mut value).expect("listed");
        assert_eq!(value[..4], key);
    }
}

#[test]
fn an_element_of_an_lru_map_that_is_used_again_does_not_count_as_looked_up() {
    let shared = Shared::fresh(Attributes { map_type: map_type::LRU_HASH, ..hash(4, 8, 2) });
    let cx = waiting(1);
    let put = |key: u8| shared.map().user_update(&cx, &[key, 0, 0, 0], &[key; 8], 1).expect("room is made");
    [1, 2].into_iter().for_each(put);
    // SAFETY: the key is readable with its size.
    assert_ne!(unsafe { shared.map().lookup([1u8, 0, 0, 0].as_ptr() as u64, 0) }, 0);
    shared.map().user_delete(&cx, &[1, 0, 0, 0]).expect("there");
    // The first element is 3's now; 4 needs one, and looks there first.
    [3, 4].into_iter().for_each(put);
    let mut left = keys(&shared.map());
    left.sort_unstable();
    assert_eq!(left, [[2, 0, 0, 0], [4, 0, 0, 0]]);
}

#[test]
fn an_lru_map_between_threads_stays_whole() {
    let shared = Shared::fresh(Attributes { map_type: map_type::LRU_HASH, ..hash(4, 8, 64) });
    let map = shared.map();
    std::thread::scope(|scope| {
        for thread in 1..5u32 {
            scope.spawn(move || {
                let cx = waiting(thread);
                for round in 0..50_000u32 {
                    let key = round.wrapping_mul(2_654_435_761).wrapping_add(thread) % 200;
                    let done = map.user_update(&cx, &key.to_le_bytes(), &u64::from(key).to_le_bytes(), 0);
                    assert!(matches!(done, Ok(()) | Err(Errno::ENOMEM)), "{done:?}");
                    if round % 7 == 0 {
                        let _ = map.user_delete(&cx, &key.to_le_bytes());
                    }
                }
            });
        }
    });
    let left = keys(&map);
    assert!(left.len() <= 64 && left.len() > 32, "{}", left.len());
    let distinct: std::collections::BTreeSet<_> = left.iter().collect();
    assert_eq!(distinct.len(), left.len());
    // All elements can still be had.
    let cx = waiting(1);
    left.iter().for_each(|key| map.user_delete(&cx, key).expect("listed"));
    for key in 0..64u32 {
        map.user_update(&cx, &key.to_le_bytes(), &[0; 8], 1).expect("room");
    }
    assert_eq!(keys(&map).len(), 64);
}

fn keyless(map_type: u32, max_entries: u32) -> Attributes {
    Attributes { map_type, value_size: 8, max_entries, cpus: 1, ..Attributes::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn queues_and_stacks_do_what_a_deque_does(
        lifo in any::<bool>(),
        room in 1u32..6,
        operations in prop::collection::vec((0u8..4, any::<u64>()), 1..200),
    ) {
        let shared = Shared::fresh(keyless(if lifo { map_type::STACK } else { map_type::QUEUE }, room));
        let cx = waiting(1);
        let mut model = std::collections::VecDeque::new();
        for (operation, value) in operations {
            let mut out = [0xffu8; 8];
            match operation {
                0 | 1 => {
                    let full = model.len() == room as usize;
                    let replace = operation == 1;
                    let expected = if full && !replace { Err(Errno::E2BIG) } else { Ok(()) };
                    if full && replace {
                        model.pop_front();
                    }
                    if expected.is_ok() {
                        model.push_back(value);
                    }
                    prop_assert_eq!(shared.map().user_push(&cx, &value.to_le_bytes(), if replace { 2 } else { 0 }), expected);
                }
                _ => {
                    let next = if lifo { model.back() } else { model.front() }.copied();
                    let got = if operation == 2 { shared.map().user_peek(&cx, &mut out) } else { shared.map().user_pop(&cx, &mut out) };
                    prop_assert_eq!(got, next.map(|_| ()).ok_or(Errno::ENOENT));
                    prop_assert_eq!(u64::from_le_bytes(out), next.unwrap_or(0));
                    if operation == 3 {
                        if lifo { model.pop_back() } else { model.pop_front() };
                    }
                }
            }
        }
    }
}

#[test]
fn a_queue_between_threads_loses_and_doubles_nothing() {
    const EACH: u64 = 20_000;
    let shared = Shared::fresh(keyless(map_type::QUEUE, 16));
    let map = shared.map();
    let sums: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for producer in 0..4u64 {
            let sums = &sums;
            let taken = &taken;
            scope.spawn(move || {
                for number in 0..EACH {
                    let value = (producer << 32 | number).to_le_bytes();
                    while map.user_push(&waiting(1 + producer as u32), &value, 0).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
            scope.spawn(move || {
                let mut out = [0; 8];
                while taken.load(Ordering::Relaxed) < 4 * EACH {
                    if map.user_pop(&waiting(10 + producer as u32), &mut out).is_ok() {
                        let value = u64::from_le_bytes(out);
                        sums[(value >> 32) as usize].fetch_add(value as u32 as u64, Ordering::Relaxed);
                        taken.fetch_add(1, Ordering::Relaxed);
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert!(sums.iter().all(|sum| sum.load(Ordering::Relaxed) == EACH * (EACH - 1) / 2));
}

#[test]
fn a_bloom_filter_never_denies_what_was_pushed_and_seldom_claims_what_was_not() {
    for map_extra in [0, 1, 7, 15] {
        let shared = Shared::fresh(Attributes { map_extra, ..keyless(map_type::BLOOM_FILTER, 1000) });
        let cx = waiting(1);
        for number in 0..1000u64 {
            shared.map().user_push(&cx, &number.to_le_bytes(), 0).expect("always room");
        }
        let claims = |number: u64| shared.map().user_peek(&cx, &mut number.to_le_bytes()).is_ok();
        assert!((0..1000).all(claims));
        let wrong = (1_000_000..1_010_000).filter(|number| claims(*number)).count();
        let worst = if map_extra == 1 { 7000 } else { 400 };
        assert!(wrong < worst, "{wrong} of 10000 with {map_extra} hashes");
        assert_eq!(shared.map().user_push(&cx, &[0; 8], 1), Err(Errno::EINVAL));
    }
}

#[test]
fn arrays_refuse_what_the_kernel_refuses() {
    let shared = Shared::fresh(Attributes {
        map_type: map_type::ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 2,
        map_flags: 0,
        cpus: 1,
        map_extra: 0,
    });
    let cx = waiting(1);
    let (inside, outside) = (1u32.to_le_bytes(), 2u32.to_le_bytes());
    assert_eq!(shared.map().user_update(&cx, &inside, &[1; 4], 1), Err(Errno::EEXIST));
    assert_eq!(shared.map().user_update(&cx, &outside, &[1; 4], 0), Err(Errno::E2BIG));
    assert_eq!(shared.map().user_update(&cx, &inside, &[1; 4], 3), Err(Errno::EINVAL));
    assert_eq!(shared.map().user_update(&cx, &inside, &[1; 4], BPF_F_LOCK), Err(Errno::EINVAL));
    assert_eq!(shared.map().user_delete(&cx, &inside), Err(Errno::EINVAL));
    assert_eq!(shared.map().user_lookup(&outside, &mut [0; 4]), Err(Errno::ENOENT));
    assert_eq!(shared.map().user_next_key(Some(&inside), &mut [0; 4]), Err(Errno::ENOENT));
    // SAFETY: the key is readable with its size.
    let values = [0, 3].map(|cpu| unsafe { shared.map().lookup(inside.as_ptr() as u64, cpu) });
    assert_eq!(values, [shared.base as u64 + 8; 2], "programs on all CPUs share a value");
    let objects = Shared::fresh(Attributes { map_type: map_type::PROG_ARRAY, ..hash(4, 4, 2) });
    assert_eq!((objects.map().set_object(1, 7), objects.map().object(1)), (Ok(0), Ok(7)));
    assert_eq!((objects.map().set_object(2, 7), objects.map().object(2)), (Err(Errno::E2BIG), Err(Errno::E2BIG)));
}

#[test]
fn many_producers_lose_no_record_that_fits() {
    const PRODUCERS: u32 = 4;
    const RECORDS: u32 = 20_000;
    let shared =
        Shared::fresh(Attributes { map_type: map_type::RINGBUF, max_entries: 1 << 16, ..Attributes::default() });
    let (map, base) = (shared.map(), shared.base as u64);
    let (mut next, mut lost) = ([0u32; PRODUCERS as usize], 0u32);
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let failed = &failed;
            scope.spawn(move || {
                let ring = map.ring().expect("a ring buffer");
                for number in 0..RECORDS {
                    let data = [producer.to_le_bytes(), number.to_le_bytes()].concat();
                    while ring.output(&waiting(producer + 1), &data, 0).is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                }
            });
        }
        let word = |offset: u64| {
            // SAFETY: positions and headers lie in the data area and are atomics by contract.
            unsafe { AtomicU64::from_ptr((base + offset) as *mut u64) }
        };
        let mut position = 0u64;
        while next.iter().sum::<u32>() + lost < PRODUCERS * RECORDS {
            if word(4096).load(Ordering::Acquire) == position {
                std::thread::yield_now();
                continue;
            }
            let at = 8192 + (position & 0xffff);
            let header = word(at).load(Ordering::Acquire) as u32;
            if header & 1 << 31 != 0 {
                continue;
            }
            let data = word(at + 8).load(Ordering::Relaxed);
            let (producer, number) = (data as u32 as usize, (data >> 32) as u32);
            assert_eq!(number, next[producer], "in order");
            next[producer] += 1;
            position += 16;
            word(0).store(position, Ordering::Release);
            lost = 0;
        }
    });
    assert_eq!(next, [RECORDS; PRODUCERS as usize]);
}

#[test]
fn a_dead_owners_record_is_discarded() {
    let shared =
        Shared::fresh(Attributes { map_type: map_type::RINGBUF, max_entries: 4096, ..Attributes::default() });
    let ring = shared.map().ring().expect("a ring buffer");
    let dead = ring.reserve(&waiting(DEAD), 16).expect("room");
    let alive = ring.reserve(&waiting(1), 16).expect("room");
    // As much as there is, more than a record may have, and more than can be reckoned with.
    assert_eq!([4096, 1 << 30, u64::MAX].map(|bytes| ring.reserve(&waiting(1), bytes)), [None; 3]);
    assert!(ring.discard_dead(&waiting(2), |owner| owner == DEAD));
    assert!(!ring.discard_dead(&waiting(2), |owner| owner == DEAD));
    // SAFETY: the record's header precedes its data.
    let header = |address: u64| unsafe { ((address - 8) as *const u32).read() };
    assert_eq!((header(dead.address), header(alive.address)), (16 | 1 << 30, 16 | 1 << 31));
}

#[test]
fn a_ring_buffer_says_what_it_refuses_and_keeps_its_records_from_others() {
    let fresh =
        || Shared::fresh(Attributes { map_type: map_type::RINGBUF, max_entries: 4096, ..Attributes::default() });
    let (shared, beside) = (fresh(), fresh());
    let (ring, other) = (shared.map().ring().expect("one"), beside.map().ring().expect("one"));
    let cx = waiting(1);
    assert_eq!(ring.output(&cx, &[1; 8], 4), Err(Errno::EINVAL));
    // What never fits is not to be waited for.
    assert_eq!(ring.try_reserve(&cx, 4089, 0), Err(Unreserved::Refused));
    assert_eq!(ring.try_reserve(&cx, 4000, 512), Err(Unreserved::Refused));
    let record = ring.try_reserve(&cx, 3000, 512).expect("room");
    assert_eq!(ring.try_reserve(&cx, 3000, 0), Err(Unreserved::Full));
    let of_other = other.try_reserve(&cx, 3000, 0).expect("room");
    assert_eq!(ring.commit(of_other, 0, false), Wake::default());
    assert!(ring.is_held_up() && other.is_held_up());
    assert!(ring.commit(record, 0, false).is_due);
    assert_eq!(
        [0, BPF_RB_FORCE_WAKEUP].map(|flags| ring.output(&cx, &[1; 8], flags).map(|wake| wake.is_due)),
        [Ok(false), Ok(true)]
    );
}

#[test]
fn a_ring_buffer_that_becomes_half_full_is_urgent() {
    let shared =
        Shared::fresh(Attributes { map_type: map_type::RINGBUF, max_entries: 4096, ..Attributes::default() });
    let ring = shared.map().ring().expect("a ring buffer");
    let mut output = |flags| ring.output(&waiting(1), &[7; 1000], flags).expect("room");
    let wake = |is_due, is_urgent| Wake { is_due, is_urgent };
    assert_eq!([0, 0].map(&mut output), [wake(true, false), wake(false, false)]);
    // (Nothing wakes where the program says so.)
    assert_eq!(output(0), wake(false, true));
    assert_eq!(output(BPF_RB_NO_WAKEUP), wake(false, false));
}

#[test]
fn a_full_perf_buffer_counts_what_it_loses_and_says_so_later() {
    let geometry = Geometry::perf_buffer(1).expect("valid");
    let shared = Shared::new(geometry);
    let base = shared.base;
    // SAFETY: fresh zeroed memory of the right size, which outlives the buffer.
    let buffer = unsafe { PerfBuffer::initialize(base, &shared.geometry, PERF_SAMPLE_RAW, 1, 77) };
    let cx = waiting(1);
    let sample = Sample { time_ns: 0, data: &[5; 1000] };
    let results: Vec<_> = (0..6).map(|_| buffer.output(&cx, &sample)).collect();
    let due = [false, false, true, false].map(|is_urgent| Ok(Wake { is_due: true, is_urgent }));
    assert_eq!(results[..4], due);
    assert_eq!(results[4..], [Err(Errno::ENOSPC); 2]);
    // SAFETY: the tail is the reader's word of the control page.
    let word = |offset: usize| unsafe { AtomicU64::from_ptr(base.wrapping_add(offset).cast()) };
    let head = word(1024).load(Ordering::Acquire);
    word(1032).store(head, Ordering::Release);
    let _ = buffer.output(&cx, &Sample { time_ns: 0, data: &[6; 12] }).expect("room now");
    let at = |position: u64| 4096 + (position as usize & 4095);
    let lost = word(at(head)).load(Ordering::Relaxed);
    assert_eq!((lost as u32, lost >> 48), (2, 24));
    assert_eq!(word(at(head + 8)).load(Ordering::Relaxed), 77);
    assert_eq!(word(at(head + 16)).load(Ordering::Relaxed), 2);
    let record = word(at(head + 24)).load(Ordering::Relaxed);
    assert_eq!((record as u32, record >> 48), (9, 24));
}

#[test]
fn a_perf_buffer_loses_what_does_not_fit_and_tells_it_once() {
    let geometry = Geometry::perf_buffer(32).expect("valid");
    let shared = Shared::new(geometry);
    // SAFETY: fresh zeroed memory of the right size, which outlives the buffer.
    let buffer = unsafe { PerfBuffer::initialize(shared.base, &shared.geometry, PERF_SAMPLE_RAW, 3, 77) };
    let cx = waiting(1);
    let output = |bytes: usize| buffer.output(&cx, &Sample { time_ns: 0, data: &vec![5; bytes] });
    assert_eq!(output(65_536), Err(Errno::E2BIG));
    let due = [4; 6].map(|bytes| output(bytes).expect("room").is_due);
    assert_eq!(due, [false, false, true, false, false, true]);
    // Another thread writes and does not end.
    let lock = shared.base.wrapping_add(geometry.header.data_bytes as usize + 256).cast::<u32>();
    // SAFETY: the first of the buffer's own words.
    unsafe { lock.write(5) };
    assert_eq!(output(4), Err(Errno::EBUSY));
    // SAFETY: as above.
    unsafe { lock.write(0) };
    for _ in 0..2 {
        let _ = output(4).expect("room");
    }
    let (mut samples, mut lost) = (0, vec![]);
    while buffer.take(&mut [0; 64], |told| match told {
        RecordContent::Sample(_) => samples += 1,
        RecordContent::Lost(records) => lost.push(records),
    }) == Taken::Passed
    {}
    assert_eq!((samples, lost), (8, vec![1]));
    // What tells of lost records needs room, too.
    let small = Geometry::perf_buffer(1).expect("valid");
    let shared = Shared::new(small);
    // SAFETY: as above.
    let buffer = unsafe { PerfBuffer::initialize(shared.base, &shared.geometry, PERF_SAMPLE_RAW, 1, 77) };
    let results = [1000, 1000, 1000, 1000, 1000, 12]
        .map(|bytes| buffer.output(&cx, &Sample { time_ns: 0, data: &vec![5; bytes] }).is_ok());
    assert_eq!(results, [true, true, true, true, false, false]);
}
