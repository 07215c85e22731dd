//! Tries and stack maps: against models, between threads, after deaths at any instant, in damaged memory.

mod raw;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use ring3_maps::{Attributes, Context, Map, View, trie_lookup_8, trie_lookup_20};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_FAST_STACK_CMP, BPF_F_NO_PREALLOC, BPF_F_REUSE_STACKID, BPF_F_STACK_BUILD_ID};

use raw::{DEAD, Random, Shared, keys, waiting, zeroed_and_shared};

/// Where a map's own words begin.
const WORDS_AT: usize = 256;

fn trie(data_bytes: u32, value_size: u32, max_entries: u32) -> Attributes {
    Attributes {
        map_type: map_type::LPM_TRIE,
        key_size: 4 + data_bytes,
        value_size,
        max_entries,
        map_flags: BPF_F_NO_PREALLOC,
        cpus: 1,
        map_extra: 0,
    }
}

fn stacks(frames: u32, max_entries: u32) -> Attributes {
    Attributes {
        map_type: map_type::STACK_TRACE,
        key_size: 4,
        value_size: frames * 8,
        max_entries,
        ..Attributes::default()
    }
}

fn key(bits: u32, data: &[u8]) -> Vec<u8> {
    [&bits.to_le_bytes(), data].concat()
}

// ---- tries ----

/// A list of prefixes with the kernel's rules.
#[derive(Default)]
struct Model {
    /// Bits, bytes as given, value.
    prefixes: Vec<(u32, Vec<u8>, Vec<u8>)>,
}

fn bit(data: &[u8], at: u32) -> u8 {
    data[at as usize / 8] >> (7 - at % 8) & 1
}

fn covers(bits: u32, data: &[u8], other: &[u8]) -> bool {
    (0..bits).all(|at| bit(data, at) == bit(other, at))
}

impl Model {
    fn position(&self, bits: u32, data: &[u8]) -> Option<usize> {
        self.prefixes.iter().position(|(have, prefix, _)| *have == bits && covers(bits, prefix, data))
    }

    fn update(&mut self, bits: u32, data: &[u8], value: &[u8], flags: u64, max: usize) -> Result<(), Errno> {
        if flags > 2 || bits as usize > data.len() * 8 {
            return Err(Errno::EINVAL);
        }
        match self.position(bits, data) {
            Some(_) if flags == 1 => Err(Errno::EEXIST),
            None if flags == 2 => Err(Errno::ENOENT),
            None if self.prefixes.len() == max => Err(Errno::ENOSPC),
            at => {
                at.into_iter().for_each(|at| drop(self.prefixes.remove(at)));
                self.prefixes.push((bits, data.to_vec(), value.to_vec()));
                Ok(())
            }
        }
    }

    fn delete(&mut self, bits: u32, data: &[u8]) -> Result<(), Errno> {
        if bits as usize > data.len() * 8 {
            return Err(Errno::EINVAL);
        }
        self.position(bits, data).map(|at| drop(self.prefixes.remove(at))).ok_or(Errno::ENOENT)
    }

    fn lookup(&self, bits: u32, data: &[u8]) -> Option<&[u8]> {
        let fits = self.prefixes.iter().filter(|(have, prefix, _)| *have <= bits && covers(*have, prefix, data));
        fits.max_by_key(|(have, _, _)| *have).map(|(_, _, value)| &value[..])
    }

    /// Keys in the kernel's order: what goes on from a prefix before it, else by the first bit that differs.
    fn keys(&self) -> Vec<Vec<u8>> {
        let mut all: Vec<&(u32, Vec<u8>, Vec<u8>)> = self.prefixes.iter().collect();
        all.sort_by(|(a, one, _), (b, other, _)| {
            let differ = (0..*a.min(b)).find(|at| bit(one, *at) != bit(other, *at));
            differ.map_or(b.cmp(a), |at| bit(one, at).cmp(&bit(other, at)))
        });
        all.into_iter().map(|(bits, data, _)| key(*bits, data)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_trie_does_what_a_list_of_prefixes_does(
        data_bytes in prop_oneof![Just(1u32), Just(2), Just(4), Just(7), Just(9), Just(16), Just(20)],
        value_size in 1u32..20,
        operations in prop::collection::vec((0u8..5, 0u32..170, any::<u32>(), any::<u8>(), 0u64..4), 1..200),
    ) {
        const MAX: u32 = 12;
        let shared = Shared::fresh(trie(data_bytes, value_size, MAX));
        let cx = waiting(1);
        let mut model = Model::default();
        for (operation, bits, seed, fill, flags) in operations {
            // Few bits vary, so that prefixes meet; they are at the beginning, in the middle and at the end.
            let mut data = vec![0u8; data_bytes as usize];
            data[0] = (seed & 3) as u8 * 0x55;
            data[data_bytes as usize / 2] ^= (seed >> 2 & 3) as u8 * 0x41;
            data[data_bytes as usize - 1] ^= (seed >> 4 & 7) as u8;
            let bits = bits % (data_bytes * 8 + 2);
            let (wanted, value) = (key(bits, &data), vec![fill; value_size as usize]);
            match operation {
                0 | 1 => {
                    let expected = model.update(bits, &data, &value, flags, MAX as usize);
                    prop_assert_eq!(shared.map().user_update(&cx, &wanted, &value, flags), expected);
                }
                2 => prop_assert_eq!(shared.map().user_delete(&cx, &wanted), model.delete(bits, &data)),
                3 => {
                    let mut out = vec![0; value_size as usize];
                    let found = shared.map().user_lookup(&wanted, &mut out).map(|()| &out[..]).ok();
                    let expected = if bits > data_bytes * 8 { None } else { model.lookup(bits, &data) };
                    prop_assert_eq!(found, expected);
                    let view = View { base: shared.base as u64, geometry: shared.geometry };
                    let (view, at) = (&raw const view as u64, wanted.as_ptr() as u64);
                    // SAFETY: a key of the map's size.
                    let value = unsafe { shared.map().lookup(at, 0) };
                    prop_assert_eq!(value != 0, expected.is_some());
                    let specialised = match data_bytes {
                        // SAFETY: the view of a live map, and a key of its size.
                        4 => unsafe { trie_lookup_8(view, at) },
                        // SAFETY: as above.
                        16 => unsafe { trie_lookup_20(view, at) },
                        _ => value,
                    };
                    prop_assert_eq!(specialised, value);
                }
                _ => {
                    let (mut out, all) = (vec![0; wanted.len()], model.keys());
                    let at = model.position(bits.min(data_bytes * 8), &data).filter(|_| bits <= data_bytes * 8);
                    let at = at.map(|at| key(bits, &model.prefixes[at].1));
                    let next = at.map_or(0, |at| all.iter().position(|key| *key == at).expect("there") + 1);
                    let got = shared.map().user_next_key(Some(&wanted), &mut out).map(|()| &out);
                    prop_assert_eq!(got, all.get(next).ok_or(Errno::ENOENT));
                }
            }
            prop_assert_eq!(keys(&shared.map()), model.keys());
            let census = shared.map().check();
            prop_assert_eq!(census.map(|census| census.elements), Ok(model.prefixes.len() as u64));
        }
    }
}

/// A trie of IPv4 prefixes whose values tell their prefix twice.
fn put(map: &Map, cx: &Context, bits: u32, data: [u8; 4], flags: u64) -> Result<(), Errno> {
    let word = u64::from(bits) << 32 | u64::from(u32::from_be_bytes(data));
    map.user_update(cx, &key(bits, &data), [word, word].map(u64::to_le_bytes).as_flattened(), flags)
}

fn get(map: &Map, data: [u8; 4]) -> Result<(u32, [u8; 4]), Errno> {
    let mut out = [0; 16];
    map.user_lookup(&key(32, &data), &mut out)?;
    assert_eq!(out[..8], out[8..], "a value of two updates");
    let word = u64::from_le_bytes(out[..8].try_into().expect("8 bytes"));
    Ok(((word >> 32) as u32, (word as u32).to_be_bytes()))
}

#[test]
fn readers_between_writers_find_a_prefix_that_fits_and_never_miss_one_that_stays() {
    let shared = Shared::fresh(trie(4, 16, 64));
    let map = shared.map();
    put(&map, &waiting(1), 0, [0; 4], 0).expect("room");
    put(&map, &waiting(1), 8, [10, 0, 0, 0], 0).expect("room");
    let done = AtomicBool::new(false);
    let looked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 1..4u32 {
            let (done, looked) = (&done, &looked);
            scope.spawn(move || {
                let mut seed = thread;
                while !done.load(Ordering::Relaxed) {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let data =
                        [if seed >> 31 == 0 { 10 } else { 11 }, (seed >> 20 & 3) as u8, (seed >> 16 & 3) as u8, 1];
                    let (bits, prefix) = get(&map, data).expect("the empty prefix stays");
                    assert!(covers(bits, &prefix, &data), "{bits} of {prefix:?} for {data:?}");
                    assert!(bits >= 8 || data[0] != 10, "{bits} for {data:?}");
                    looked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let writers: Vec<_> = (10..12u32)
            .map(|thread| {
                scope.spawn(move || {
                    let (cx, mut seed) = (waiting(thread), thread);
                    for _ in 0..100_000 {
                        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let data = [10, (seed >> 20 & 3) as u8, (seed >> 16 & 3) as u8, 1];
                        let bits = 9 + (seed >> 24) % 24;
                        let done = match seed >> 30 {
                            0 => map.user_delete(&cx, &key(bits, &data)),
                            _ => put(&map, &cx, bits, data, 0),
                        };
                        assert!(matches!(done, Ok(()) | Err(Errno::ENOSPC | Errno::ENOENT)), "{done:?}");
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        done.store(true, Ordering::Relaxed);
    });
    assert!(looked.load(Ordering::Relaxed) > 0);
    check_whole(&map, 64);
}

/// All prefixes can be taken out, and as many as there may be can be put in.
fn check_whole(map: &Map, max: u32) {
    let cx = waiting(1);
    let left = keys(map);
    let census = map.check().expect("whole");
    assert_eq!((census.elements, census.locked), (left.len() as u64, 0));
    let distinct: std::collections::BTreeSet<_> = left.iter().collect();
    assert_eq!(distinct.len(), left.len());
    left.iter().for_each(|key| map.user_delete(&cx, key).expect("listed"));
    assert_eq!(keys(map), Vec::<Vec<u8>>::new());
    // The worst for nodes: each prefix parts from another one.
    let data = |number: u32| number.reverse_bits().to_be_bytes();
    for number in 0..max {
        put(map, &cx, 32, data(number), 1).expect("no node and no count was lost");
    }
    assert_eq!(put(map, &cx, 32, data(max), 0), Err(Errno::ENOSPC));
    put(map, &cx, 32, data(0), 2).expect("a full map is updated");
    assert_eq!(keys(map).len(), max as usize);
    keys(map).iter().for_each(|key| map.user_delete(&cx, key).expect("listed"));
}

/// Runs `work` in a process that is killed after it has done `rounds` rounds and a bit more.
fn killed_after(rounds: u64, progress: &AtomicU64, work: impl Fn(u64)) {
    // SAFETY: the child only works on shared memory until it is killed.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        for round in 0.. {
            work(round);
            progress.fetch_add(1, Ordering::Relaxed);
        }
    }
    let end = progress.load(Ordering::Relaxed) + rounds;
    while progress.load(Ordering::Relaxed) < end {
        std::thread::yield_now();
    }
    let mut status = 0;
    // SAFETY: our child.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    // SAFETY: waits for our child and writes the status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
}

#[test]
fn a_writer_killed_at_any_instant_costs_no_prefix_and_no_room() {
    const MAX: u32 = 24;
    const VALID_AT: usize = WORDS_AT + 6 * 8;
    let shared = Shared::fresh(trie(4, 16, MAX));
    let progress: &AtomicU64 = zeroed_and_shared();
    let map = shared.map();
    let mut unfinished = 0;
    for kill in 0..300u32 {
        killed_after(u64::from(kill % 7), progress, |round| {
            let seed = (round as u32).wrapping_add(kill << 8).wrapping_mul(2_654_435_761);
            let data = [10, (seed >> 20 & 3) as u8, (seed >> 16 & 3) as u8, 1];
            let bits = 9 + (seed >> 24) % 24;
            let _ = match seed >> 30 {
                0 | 1 => map.user_delete(&waiting(1000 + kill), &key(bits, &data)),
                _ => put(&map, &waiting(1000 + kill), bits, data, 0),
            };
        });
        // SAFETY: the word that says whether the record of a change is valid.
        unfinished += u64::from(unsafe { shared.base.wrapping_add(VALID_AT).cast::<u64>().read_volatile() } != 0);
        put(&map, &waiting(1), 8, [10, 0, 0, 0], 0)
            .or_else(|errno| match errno {
                Errno::ENOSPC => Ok(()),
                errno => Err(errno),
            })
            .expect("the lock of the dead is taken");
        for key in keys(&map) {
            let data = [key[4], key[5], key[6], key[7]];
            get(&map, data).expect("a prefix fits its own data");
        }
        map.check().expect("whole");
        if kill % 10 == 9 {
            check_whole(&map, MAX);
        }
    }
    println!("{unfinished} changes were finished by others");
}

#[test]
fn a_trie_of_any_size_costs_what_is_in_it() {
    for max_entries in [1 << 20, u32::MAX] {
        let shared = Shared::fresh(trie(4, 8, max_entries));
        for number in 0..10u32 {
            let value = u64::from(number).to_le_bytes();
            shared.map().user_update(&waiting(1), &key(32, &number.to_be_bytes()), &value, 0).expect("room");
        }
        assert_eq!(keys(&shared.map()).len(), 10);
        let pages = shared.geometry.file_bytes() as usize / 4096;
        let mut there = vec![0u8; pages.min(1 << 20)];
        // SAFETY: the pages asked for are mapped, and the vector has a byte for each.
        unsafe { libc::mincore(shared.base.cast(), there.len() * 4096, there.as_mut_ptr()) };
        assert!(there.iter().filter(|page| **page & 1 != 0).count() < 16);
    }
    let widest = Shared::fresh(trie(256, 4 << 19, u32::MAX));
    let value = vec![7; 4 << 19];
    widest.map().user_update(&waiting(1), &key(2048, &[1; 256]), &value, 0).expect("room");
    let tiny = Shared::fresh(trie(1, 1, 1000));
    for bits in 0..=8 {
        for number in 0..1u32 << bits {
            let data = [((number << 8) >> bits) as u8];
            tiny.map().user_update(&waiting(1), &key(bits, &data), &[1], 1).expect("each prefix of a byte");
            tiny.map().user_update(&waiting(1), &key(bits, &data), &[2], 2).expect("again");
        }
    }
    assert_eq!(keys(&tiny.map()).len(), 511);
}

// ---- stacks ----

#[test]
fn stacks_have_ids_by_which_they_are_found() {
    let shared = Shared::fresh(stacks(4, 3));
    let cx = waiting(1);
    let (map, mut out) = (&shared.map(), [0xffu8; 32]);
    assert_eq!(map.stack_id(&cx, &[], 0), Err(Errno::EFAULT));
    let id = map.stack_id(&cx, &[1, 2], 0).expect("room");
    assert_eq!(map.stack_id(&cx, &[1, 2], 0), Ok(id));
    map.user_lookup(&id.to_le_bytes(), &mut out).expect("there");
    assert_eq!(out, *[1u64, 2, 0, 0].map(u64::to_le_bytes).as_flattened());
    // Four buckets: of enough stacks, two want the same one.
    let others: Vec<(u64, Result<u32, Errno>)> = (3..40).map(|n| (n, map.stack_id(&cx, &[n], 0))).collect();
    let held: Vec<u32> =
        keys(map).iter().map(|key| u32::from_le_bytes(key[..].try_into().expect("4 bytes"))).collect();
    assert_eq!(held.len(), 3);
    assert!(held.contains(&id) && held.is_sorted());
    assert!(others.iter().any(|(_, other)| *other == Err(Errno::EEXIST)));
    assert!(others.iter().any(|(_, other)| *other == Err(Errno::ENOMEM)));
    map.user_delete(&cx, &held[2].to_le_bytes()).expect("there");
    assert_eq!(map.user_delete(&cx, &held[2].to_le_bytes()), Err(Errno::ENOENT));
    assert_eq!(map.user_delete(&cx, &4u32.to_le_bytes()), Err(Errno::E2BIG));
    assert_eq!(map.user_lookup(&held[2].to_le_bytes(), &mut out), Err(Errno::ENOENT));
    let mut first = [0; 4];
    map.user_next_key(Some(&held[2].to_le_bytes()), &mut first).expect("behind what is gone there is the first");
    assert_eq!(u32::from_le_bytes(first), held[0]);
    let (other, _) = others.iter().find(|(_, other)| *other == Err(Errno::EEXIST)).expect("above");
    let taken = map.stack_id(&cx, &[*other], BPF_F_REUSE_STACKID).expect("a stack makes room");
    map.user_lookup(&taken.to_le_bytes(), &mut out).expect("there");
    assert_eq!(out[..8], other.to_le_bytes());
    assert_eq!(map.stack_id(&cx, &[*other], BPF_F_FAST_STACK_CMP), Ok(taken));
}

#[test]
fn stacks_with_one_hash_are_two_unless_only_hashes_are_compared() {
    let shared = Shared::fresh(stacks(2, 4));
    let (map, cx) = (shared.map(), waiting(1));
    let [one, other] = [[53626, 7], [68109, 7]];
    let id = map.stack_id(&cx, &one, 0).expect("room");
    assert_eq!(map.stack_id(&cx, &other, BPF_F_FAST_STACK_CMP), Ok(id), "their hash is 0x56c85f7e");
    assert_eq!(map.stack_id(&cx, &other, 0), Err(Errno::EEXIST));
    assert_eq!(map.stack_id(&cx, &one, 0), Ok(id));
}

#[test]
fn stacks_for_build_ids_say_that_they_have_addresses() {
    let attributes = Attributes { map_flags: BPF_F_STACK_BUILD_ID, ..stacks(12, 4) };
    let shared = Shared::fresh(attributes);
    let id = shared.map().stack_id(&waiting(1), &[0x1234, 0x5678, 3, 4], 0).expect("room");
    let mut out = [0xffu8; 96];
    shared.map().user_lookup(&id.to_le_bytes(), &mut out).expect("there");
    let word = |at: usize| u64::from_le_bytes(out[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!([0, 8, 16, 24, 32, 56, 64, 88].map(word), [2, 0, 0, 0x1234, 2, 0x5678, 2, 3]);
    assert_eq!(shared.map().stack_id(&waiting(1), &[0x1234, 0x5678, 3], 0), Ok(id), "the fourth address has no room");
}

#[test]
fn stacks_between_threads_are_whole_and_none_is_lost() {
    let shared = Shared::fresh(stacks(8, 16));
    let map = shared.map();
    std::thread::scope(|scope| {
        for thread in 1..5u32 {
            scope.spawn(move || {
                let (cx, mut seed) = (waiting(thread), thread);
                for _ in 0..50_000 {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let (first, count) = (u64::from(seed >> 24), 1 + (seed >> 16 & 7) as usize);
                    let addresses: Vec<u64> = (0..8).map(|number| first + number).take(count).collect();
                    let id = match map.stack_id(&cx, &addresses, BPF_F_REUSE_STACKID) {
                        Ok(id) => id,
                        Err(errno) => {
                            assert_eq!(errno, Errno::ENOMEM);
                            continue;
                        }
                    };
                    let mut out = [0u64; 8].map(u64::to_le_bytes);
                    if map.user_lookup(&id.to_le_bytes(), out.as_flattened_mut()).is_ok() {
                        let found = out.map(u64::from_le_bytes);
                        let whole = found.iter().enumerate().all(|(n, at)| *at == found[0] + n as u64 || *at == 0);
                        assert!(whole, "{found:?}");
                    }
                    if seed >> 13 & 3 == 0 {
                        let done = map.user_delete(&cx, &id.to_le_bytes());
                        assert!(matches!(done, Ok(()) | Err(Errno::ENOENT)), "{done:?}");
                    }
                }
            });
        }
    });
    check_all_nodes(&map, 16);
}

/// As many stacks as there are buckets can be put in.
fn check_all_nodes(map: &Map, buckets: usize) {
    let cx = waiting(1);
    assert_eq!(map.check().expect("whole").elements, keys(map).len() as u64);
    keys(map).iter().for_each(|key| map.user_delete(&cx, key).expect("listed"));
    let made: std::collections::BTreeSet<u32> = (0..10_000).filter_map(|n| map.stack_id(&cx, &[n], 0).ok()).collect();
    assert_eq!(made.len(), buckets, "all nodes can be had still");
    keys(map).iter().for_each(|key| map.user_delete(&cx, key).expect("listed"));
}

#[test]
fn a_process_killed_while_it_adds_and_removes_stacks_costs_no_room() {
    let shared = Shared::fresh(stacks(8, 16));
    let progress: &AtomicU64 = zeroed_and_shared();
    let map = shared.map();
    for kill in 0..200u32 {
        killed_after(u64::from(kill % 7), progress, |round| {
            let cx = waiting(1000 + kill);
            let word = (round as u32).wrapping_add(kill << 8).wrapping_mul(2_654_435_761) >> 20;
            if let Ok(id) = map.stack_id(&cx, &[u64::from(word), 2, 3], BPF_F_REUSE_STACKID) {
                let _ = if word.is_multiple_of(3) { map.user_delete(&cx, &id.to_le_bytes()) } else { Ok(()) };
            }
        });
        // Who takes the lock next finishes what the dead process had written down.
        let _ = map.user_delete(&waiting(1), &0u32.to_le_bytes());
        for id in keys(&map) {
            let mut out = [0u64; 8].map(u64::to_le_bytes);
            map.user_lookup(&id, out.as_flattened_mut()).expect("listed");
            assert_eq!(out[1..4].concat(), [2u64, 3, 0].map(u64::to_le_bytes).concat());
        }
        check_all_nodes(&map, 16);
    }
}

// ---- owners far away ----

/// The lock in the word `at` belongs to a thread of another pid namespace: `works` has to fail until the owner's locks
/// are reclaimed.
fn is_not_taken_over_until_buried(shared: &Shared, word: usize, works: impl Fn(&Map) -> bool) {
    // The same number is that of a dead thread here.
    let far = ring3_layout::owner::name(3, DEAD);
    let lock =
        shared.base.wrapping_add(shared.map().header().data_bytes as usize + WORDS_AT + word * 8).cast::<u32>();
    // SAFETY: one of the map's own words.
    unsafe { lock.write(far) };
    assert!(!works(&shared.map()));
    shared.map().reclaim_dead_owner(&waiting(1), |_| false, |at| at..u64::MAX);
    assert!(!works(&shared.map()));
    shared.map().reclaim_dead_owner(&waiting(1), |owner| owner == far, |at| at..u64::MAX);
    assert!(works(&shared.map()));
}

#[test]
fn locks_of_another_pid_namespace_are_not_taken_over_until_the_server_has_buried_their_owners() {
    let tries = Shared::fresh(trie(4, 16, 8));
    is_not_taken_over_until_buried(&tries, 1, |map| put(map, &waiting(1), 8, [10, 0, 0, 0], 0).is_ok());
    assert_eq!(tries.map().gave_up(), 2);
    let traces = Shared::fresh(stacks(4, 3));
    is_not_taken_over_until_buried(&traces, 1, |map| map.stack_id(&waiting(1), &[1, 2, 3], 0).is_ok());
    assert_eq!(traces.map().gave_up(), 2);
    let map_type = map_type::USER_RINGBUF;
    let ring = Shared::fresh(Attributes { map_type, max_entries: 4096, ..Attributes::default() });
    is_not_taken_over_until_buried(&ring, 0, |map| map.user_ring().is_some_and(|ring| ring.begin(&waiting(1))));
}

// ---- damage ----

#[test]
fn damaged_memory_makes_no_operation_read_outside_or_run_on() {
    for attributes in [trie(4, 16, 32), stacks(4, 32)] {
        let shared = Shared::fresh(attributes);
        let map = shared.map();
        let is_trie = attributes.map_type == map_type::LPM_TRIE;
        let mut random = Random(0x1234_5678_9abc_def1);
        for round in 0..20_000 {
            let at = random.below(shared.geometry.file_bytes() - 8) as usize;
            let near = WORDS_AT + random.below(640) as usize;
            let at = if round % 2 == 0 { at } else { near };
            // SAFETY: inside the mapping.
            unsafe {
                shared.base.wrapping_add(at).cast::<u64>().write_unaligned(random.below(u64::MAX) >> random.below(60))
            };
            let cx = Context { owner_is_dead: |_| true, relax: |_| (), ..waiting(1) };
            let word = random.below(u64::MAX);
            let data = (word as u32 & 0x0303_0303).to_le_bytes();
            let wanted =
                if is_trie { key((word >> 32) as u32 % 33, &data) } else { (word as u32 % 32).to_le_bytes().into() };
            let mut out = [0; 32];
            let _ = map.user_update(&cx, &wanted, &[1; 32], 0);
            let _ = map.stack_id(&cx, &[word, word >> 8, 3], word & BPF_F_REUSE_STACKID);
            let _ = map.user_lookup(&wanted, &mut out);
            let _ = map.user_next_key(Some(&wanted), &mut out);
            let _ = map.user_next_key(None, &mut out);
            let _ = map.user_delete(&cx, &wanted);
        }
    }
}
