//! A target that scribbles over a map: whatever the bytes say, and while they change, no operation of the server's side
//! reads or writes outside the map's memory (which lies between pages that may not be touched) or runs on.
//! `RING3_SEED` repeats a run.

mod raw;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use raw::Random;
use ring3_maps::{
    Attributes, Context, Geometry, Map, PERF_SAMPLE_RAW, PERF_SAMPLE_TIME, PerfBuffer, RecordContent, Sample,
    Sampled, Taken, View, hash_lookup_4,
};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;

const PAGE: usize = 4096;
/// Scribbles between which all operations run.
const ROUNDS: u32 = 150;
/// All rounds of a map together; what runs on does not end.
const HANG: Duration = Duration::from_secs(120);

/// Memory between two pages that may not be touched.
struct Fenced {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: threads share it as processes do a map: by ring3-maps and atomics.
unsafe impl Sync for Fenced {}

impl Fenced {
    fn new(bytes: usize) -> Fenced {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let all = bytes + 2 * PAGE;
        // SAFETY: asks for fresh memory that nobody may touch.
        let fence = unsafe { libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(fence, libc::MAP_FAILED);
        let base = fence.cast::<u8>().wrapping_add(PAGE);
        // SAFETY: opens what lies between the fences.
        assert_eq!(unsafe { libc::mprotect(base.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        Fenced { base, bytes }
    }

    /// Overwrites a word with something that is likely to hurt: noise, a number near the map's sizes, an end of a chain.
    fn scribble(&self, random: &mut Random, sizes: [u64; 4]) {
        let value = match random.below(6) {
            0 => random.below(u64::MAX),
            1 => sizes[random.below(4) as usize].wrapping_add(random.below(5)).wrapping_sub(2),
            2 => 1 << 31 | random.below(32),
            3 => random.below(64),
            4 => u64::MAX << random.below(64),
            _ => (sizes[random.below(4) as usize] << 32) + random.below(1 << 33),
        };
        // Half of the time among the words that lead, which lie in few pages.
        let from_end = self.bytes / 4 * random.below(4) as usize;
        let at = match random.below(3) {
            0 => random.below(self.bytes as u64) as usize,
            1 => (from_end + random.below(512) as usize).min(self.bytes - 1),
            _ => random.below(sizes[3].min(self.bytes as u64)) as usize,
        };
        if random.below(2) == 0 {
            let word = self.base.wrapping_add((at & !7).min(self.bytes - 8));
            // SAFETY: a whole word inside the memory.
            unsafe { AtomicU64::from_ptr(word.cast()) }.store(value, Relaxed);
        } else {
            let word = self.base.wrapping_add(at & !3);
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(word.cast()) }.store(value as u32, Relaxed);
        }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size.
        unsafe { libc::munmap(self.base.wrapping_sub(PAGE).cast(), self.bytes + 2 * PAGE) };
    }
}

fn context(dead: bool) -> Context {
    Context {
        owner: 1,
        cpu: 1,
        owner_is_dead: if dead { |_| true } else { |_| false },
        relax: |_| (),
        interrupts: false,
    }
}

/// Everything that the server does with a map.
fn operate(map: &Map, random: &mut Random) {
    let cx = context(random.below(2) == 0);
    let mut value = vec![0; map.geometry().user_value_bytes().max(64)];
    let key_bytes = map.header().key_size as usize;
    let mut key = vec![0; key_bytes];
    key.iter_mut().take(4).zip(random.below(80).to_le_bytes()).for_each(|(to, from)| *to = from);
    let _ = map.user_update(&cx, &key, &value, random.below(4));
    let _ = map.user_lookup(&key, &mut value);
    let _ = map.user_lookup_and_delete(&cx, &key, &mut value);
    let _ = map.user_delete(&cx, &key);
    let mut next = vec![0; key_bytes];
    let mut at = None;
    // As a batch walks: a number of keys.
    for _ in 0..map.header().max_entries.min(12) {
        if map.user_next_key(at.as_deref(), &mut next).is_err() {
            break;
        }
        at = Some(next.clone());
    }
    let bytes = map.header().value_size as usize;
    let _ = map.user_push(&cx, &value[..bytes], random.below(3));
    let _ = map.user_peek(&cx, &mut value[..bytes]);
    let _ = map.user_pop(&cx, &mut value[..bytes]);
    let _ = map.object(random.below(80) as u32);
    let _ = map.set_object(random.below(80) as u32, random.below(1 << 32) as u32);
    let _ = map.gave_up();
    let _ = map.check();
    let is_dead = random.below(2) == 0;
    map.reclaim_dead_owner(&cx, |owner| is_dead || owner % 2 == 0, |at| at..u64::MAX);
    let at = random.below(map.header().data_bytes + 9);
    map.read_data(at, &mut value);
    map.write_data(at, &value);
    map.add_to_data(at, 8, 1);
    map.add_to_data(at, 4, 1);
    if let Some(ring) = map.ring() {
        let mut room = vec![0; map.header().max_entries as usize];
        let accepts = random.below(4) != 0;
        // (While others write there may always be more.)
        for _ in 0..64 {
            if ring.take(&mut room, |_| accepts) == Taken::Nothing {
                break;
            }
        }
        (0..5).for_each(|what| assert!(ring.query(what) != 1 << 63 || what > 1));
        let _ = (ring.has_data(), ring.is_held_up());
        let _ = ring.output(&cx, &value[..random.below(64) as usize], 0);
        if let Some(record) = ring.reserve(&cx, random.below(5000)) {
            let _ = ring.commit(record, random.below(4), random.below(2) == 0);
        }
    }
}

/// Scribbles and operates in turns, and then at the same time.
fn torment(memory: &Fenced, seed: &mut Random, sizes: [u64; 4], operate: &(dyn Fn(&mut Random) + Sync)) {
    let began = Instant::now();
    for _ in 0..ROUNDS {
        (0..=seed.below(8)).for_each(|_| memory.scribble(seed, sizes));
        operate(seed);
        assert!(began.elapsed() < HANG);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut other = Random(seed.below(u64::MAX));
        let over = &over;
        scope.spawn(move || {
            while !over.load(Relaxed) {
                memory.scribble(&mut other, sizes);
            }
        });
        for _ in 0..ROUNDS {
            operate(seed);
            assert!(began.elapsed() < HANG);
        }
        over.store(true, Relaxed);
    });
}

#[test]
fn scribbled_maps_of_every_type_lead_no_operation_astray() {
    let mut random = Random::seeded();
    let kinds = [
        (map_type::HASH, 4, 8, 64),
        (map_type::HASH, 40, 3, 5),
        (map_type::PERCPU_HASH, 8, 12, 64),
        (map_type::LRU_HASH, 4, 8, 64),
        (map_type::LRU_PERCPU_HASH, 16, 8, 33),
        (map_type::ARRAY, 4, 8, 64),
        (map_type::PERCPU_ARRAY, 4, 8, 64),
        (map_type::PERF_EVENT_ARRAY, 4, 4, 64),
        (map_type::CGROUP_ARRAY, 4, 4, 64),
        (map_type::QUEUE, 0, 8, 7),
        (map_type::STACK, 0, 24, 64),
        (map_type::BLOOM_FILTER, 0, 8, 64),
        (map_type::RINGBUF, 0, 0, 4096),
        (map_type::RINGBUF, 0, 0, 1 << 15),
    ];
    for (map_type, key_size, value_size, max_entries) in kinds {
        let attributes = Attributes { map_type, key_size, value_size, max_entries, cpus: 4, ..Attributes::default() };
        let geometry = Geometry::new(&attributes).expect("valid");
        let memory = Fenced::new(geometry.file_bytes() as usize);
        // SAFETY: fresh zeroed memory of the right size.
        let map = unsafe { Map::trusted(memory.base, &geometry) };
        let sizes = [u64::from(max_entries), geometry.file_bytes(), geometry.header.data_bytes, 4096];
        for _ in 0..3 {
            torment(&memory, &mut random, sizes, &|random| operate(&map, random));
        }
    }
}

#[test]
fn scribbled_perf_buffers_lead_no_operation_astray() {
    /// With this one, the count of events between wake-ups overflows.
    const OVERFLOWS: u64 = 1_795_712_453_438_669_629;
    for (mut random, pages) in [(Random(OVERFLOWS), 1), (Random::seeded(), 1), (Random::seeded(), 8)] {
        let geometry = Geometry::perf_buffer(pages).expect("valid");
        let memory = Fenced::new(geometry.file_bytes() as usize);
        let kinds = PERF_SAMPLE_RAW | PERF_SAMPLE_TIME;
        // SAFETY: fresh zeroed memory of the right size.
        let buffer = unsafe { PerfBuffer::initialize(memory.base, &geometry, kinds, 1, 7) };
        let sizes = [u64::from(pages), geometry.file_bytes(), geometry.header.data_bytes, 4096];
        let data = [7; 3000];
        torment(&memory, &mut random, sizes, &|random| {
            let sample = Sample { time_ns: 1, data: &data[..random.below(3000) as usize] };
            let _ = buffer.output(&context(random.below(2) == 0), &sample);
            let _ = buffer.has_data();
            buffer.reclaim_dead_owner(|owner| owner % 2 == 0);
            let mut room = [0; 4000];
            for _ in 0..64 {
                if buffer.take(&mut room, |_| ()) == Taken::Nothing {
                    break;
                }
            }
        });
    }
}

#[test]
fn a_consumer_takes_what_producers_wrote_in_order_and_leaves_what_it_does_not_accept() {
    let attributes = Attributes { map_type: map_type::RINGBUF, max_entries: 4096, cpus: 1, ..Attributes::default() };
    let geometry = Geometry::new(&attributes).expect("valid");
    let memory = Fenced::new(geometry.file_bytes() as usize);
    // SAFETY: fresh zeroed memory of the right size.
    let map = unsafe { Map::trusted(memory.base, &geometry) };
    let (ring, cx) = (map.ring().expect("one"), context(false));
    let mut room = vec![0; 4096];
    let mut random = Random::seeded();
    for round in 0..200u8 {
        let texts: Vec<Vec<u8>> = (0..3).map(|n| vec![round ^ n; random.below(1000) as usize]).collect();
        assert!(texts.iter().all(|text| ring.output(&cx, text, 0).is_ok()));
        let _ = ring.commit(ring.reserve(&cx, 40).expect("room"), 0, true);
        let open = ring.reserve(&cx, 8).expect("room");
        assert_eq!(ring.take(&mut room, |_| false), Taken::Nothing);
        let mut taken: Vec<Vec<u8>> = vec![];
        let mut accept = |text: &[u8]| {
            taken.push(text.to_vec());
            true
        };
        while ring.take(&mut room, &mut accept) == Taken::Passed {}
        assert_eq!(taken, texts);
        assert!(ring.is_held_up(), "a record is not submitted");
        let _ = ring.commit(open, 0, true);
        assert_eq!(ring.take(&mut room, |_| true), Taken::Passed);
        assert_eq!(ring.take(&mut room, |_| true), Taken::Nothing);
    }
    let pages = Geometry::perf_buffer(1).expect("valid");
    for kinds in [PERF_SAMPLE_RAW, PERF_SAMPLE_RAW | PERF_SAMPLE_TIME] {
        let memory = Fenced::new(pages.file_bytes() as usize);
        // SAFETY: fresh zeroed memory of the right size.
        let buffer = unsafe { PerfBuffer::initialize(memory.base, &pages, kinds, 1, 7) };
        for round in 0..100u64 {
            // (Lengths that need no padding, which would be told as data.)
            let data = vec![round as u8; 8 * random.below(90) as usize + 4];
            let written: Vec<bool> =
                (0..8).map(|_| buffer.output(&cx, &Sample { time_ns: round, data: &data }).is_ok()).collect();
            let (mut samples, mut lost) = (0, 0);
            let time = if kinds & PERF_SAMPLE_TIME == 0 { 0 } else { round };
            let mut see = |told: RecordContent<'_>| match told {
                RecordContent::Sample(sample) => {
                    assert_eq!((sample.time_ns, sample.data), (time, &data[..]));
                    samples += 1;
                }
                RecordContent::Lost(records) => lost += records,
            };
            while buffer.take(&mut room, &mut see) == Taken::Passed {}
            assert_eq!(samples, written.iter().filter(|ok| **ok).count());
            assert!(lost <= 8);
            assert!(!buffer.has_data());
        }
    }
}

#[test]
fn a_user_ring_buffer_shows_what_was_submitted_and_believes_no_position() {
    const BUSY: u64 = 1 << 31;
    const DISCARDED: u64 = 1 << 30;
    let attributes =
        Attributes { map_type: map_type::USER_RINGBUF, max_entries: 4096, cpus: 1, ..Attributes::default() };
    let geometry = Geometry::new(&attributes).expect("valid");
    let memory = Fenced::new(geometry.file_bytes() as usize);
    // SAFETY: fresh zeroed memory of the right size.
    let map = unsafe { Map::trusted(memory.base, &geometry) };
    let ring = map.user_ring().expect("one");
    let set = |at: usize, value: u64| {
        // SAFETY: positions, headers and data are aligned words in the memory.
        unsafe { AtomicU64::from_ptr(memory.base.wrapping_add(at).cast()) }.store(value, Relaxed)
    };
    let (consumer, producer, data) = (0, 4096, 8192);
    assert_eq!(ring.next(64), Ok(Sampled::Nothing));
    set(data, 8 | BUSY);
    set(producer, 16);
    assert_eq!(ring.next(64), Ok(Sampled::Nothing));
    set(data, 8);
    let address = memory.base as u64 + 8200;
    assert_eq!(ring.next(8), Ok(Sampled::Sample { address, bytes: 8, next: 16 }));
    assert_eq!(ring.next(7), Err(Errno::E2BIG));
    set(data, 8 | DISCARDED);
    assert_eq!(ring.next(8), Ok(Sampled::Discarded));
    assert_eq!(ring.next(8), Ok(Sampled::Nothing));
    // Between words; beyond what was written; more than the buffer has.
    set(consumer, 0);
    set(data, 8);
    set(producer, 20);
    assert_eq!(ring.next(8), Err(Errno::EINVAL));
    set(producer, 8);
    assert_eq!(ring.next(8), Err(Errno::EINVAL));
    set(data, 5000);
    set(producer, 1 << 20);
    assert_eq!(ring.next(8000), Err(Errno::E2BIG));
    // One consumer at a time, unless it is dead.
    let other = Context { owner: 2, ..context(false) };
    assert!(ring.begin(&context(false)) && !ring.begin(&other));
    assert!(ring.begin(&Context { owner: 2, ..context(true) }));
    ring.end();
    assert!(ring.begin(&other));
}

#[test]
fn records_that_no_producer_writes_are_passed_all_at_once() {
    let attributes = Attributes { map_type: map_type::RINGBUF, max_entries: 4096, cpus: 1, ..Attributes::default() };
    let geometry = Geometry::new(&attributes).expect("valid");
    let memory = Fenced::new(geometry.file_bytes() as usize);
    // SAFETY: fresh zeroed memory of the right size.
    let map = unsafe { Map::trusted(memory.base, &geometry) };
    let (ring, mut room) = (map.ring().expect("one"), [0; 4096]);
    assert!(ring.output(&context(false), &[1; 8], 0).is_ok());
    let set = |memory: &Fenced, at: usize, value: u64| {
        // SAFETY: an aligned word in the memory.
        // SAFETY: an aligned word of the map's memory, which is mapped while this runs.
        unsafe { AtomicU64::from_ptr(memory.base.wrapping_add(at).cast()) }.store(value, Relaxed);
    };
    // Longer than what is there.
    set(&memory, 8192, 40);
    assert_eq!(ring.take(&mut room, |_| panic!("it is none")), Taken::Passed);
    assert_eq!(ring.positions(), [16, 16]);
    let pages = Geometry::perf_buffer(1).expect("valid");
    for bytes in [0, 4, 72, 8000] {
        let memory = Fenced::new(pages.file_bytes() as usize);
        // SAFETY: fresh zeroed memory of the right size.
        let buffer = unsafe { PerfBuffer::initialize(memory.base, &pages, PERF_SAMPLE_RAW, 1, 7) };
        set(&memory, 4096, 9 | bytes << 48);
        set(&memory, 1024, 64);
        assert_eq!(buffer.take(&mut room, |_| panic!("it is none")), Taken::Passed);
        assert!(!buffer.has_data(), "of {bytes} bytes");
    }
}

/// A hash map with room for 8 elements, with keys of 4 bytes.
fn hash_of_eight() -> Geometry {
    let attributes = Attributes {
        map_type: map_type::HASH,
        key_size: 4,
        value_size: 8,
        max_entries: 8,
        cpus: 1,
        ..Attributes::default()
    };
    Geometry::new(&attributes).expect("valid")
}

#[test]
fn a_link_that_names_no_element_ends_its_chain_and_no_other() {
    let geometry = hash_of_eight();
    for link in [9, 1 << 20, (1 << 31) - 2] {
        let memory = Fenced::new(geometry.file_bytes() as usize);
        // SAFETY: fresh zeroed memory of the right size.
        let map = unsafe { Map::trusted(memory.base, &geometry) };
        // SAFETY: the first bucket's link, behind header and words.
        unsafe { memory.base.wrapping_add(896).cast::<u32>().write(link) };
        // (The key 0 is in the first bucket.)
        for number in 0..8u32 {
            map.user_update(&context(false), &number.to_le_bytes(), &[1; 8], 1).expect("room");
        }
        let view = View { base: memory.base as u64, geometry };
        for number in 0..40u32 {
            // SAFETY: the view of a live map, and a key of its size.
            let value = unsafe { hash_lookup_4(&raw const view as u64, number.to_le_bytes().as_ptr() as u64) };
            assert_eq!(value != 0, number < 8);
        }
        let mut listed: Vec<[u8; 4]> = vec![];
        let mut next = [0; 4];
        while listed.len() < 20 && map.user_next_key(listed.last().map(<[u8; 4]>::as_slice), &mut next).is_ok() {
            listed.push(next);
        }
        listed.sort_unstable();
        assert_eq!(listed, [0, 1, 2, 3, 4, 5, 6, 7].map(u32::to_le_bytes));
    }
}

#[test]
fn a_walk_that_is_led_into_another_bucket_notices() {
    const BUCKETS: usize = 896;
    const BUCKET_BYTES: usize = ring3_layout::map::BUCKET_BYTES as usize;
    let geometry = hash_of_eight();
    let memory = Fenced::new(geometry.file_bytes() as usize);
    // SAFETY: fresh zeroed memory of the right size.
    let map = unsafe { Map::trusted(memory.base, &geometry) };
    for number in 0..8u32 {
        map.user_update(&context(false), &number.to_le_bytes(), &[1; 8], 1).expect("room");
    }
    let keys_of = |bucket: u32| {
        let mut keys = vec![];
        let is_whole = map.user_bucket(bucket, &mut [0; 4], |key: &[u8]| keys.push(key.to_vec()));
        is_whole.then_some(keys)
    };
    let buckets = 0..=geometry.hash.bucket_mask;
    let used: Vec<u32> = buckets.filter(|bucket| keys_of(*bucket).is_some_and(|keys| !keys.is_empty())).collect();
    assert!(used.len() > 1, "{used:?}");
    // The link of a bucket, behind header and words.
    let link_of = |bucket: u32| memory.base.wrapping_add(BUCKETS + BUCKET_BYTES * bucket as usize).cast::<u32>();
    let (left, entered) = (used[0], used[1]);
    let lost = keys_of(left).expect("whole").len();
    // (As if the first element had been used again there, while somebody goes through this bucket.)
    // SAFETY: a bucket's link in the map's memory.
    let link = unsafe { link_of(entered).read() };
    // SAFETY: as above.
    unsafe { link_of(left).write(link) };
    assert_eq!(keys_of(left), None);
    let mut shown = BTreeSet::new();
    let seen = map.for_each(0, |key, _| {
        // SAFETY: the key of an element of a live map.
        let key = unsafe { (key as *const [u8; 4]).read() };
        assert!(shown.insert(key), "{key:?} is shown twice");
        true
    });
    assert_eq!((seen, shown.len()), (Ok(8 - lost as u64), 8 - lost));
}
