//! Sixteen processes hammer maps of every type that they share, and die by SIGKILL, or are stopped for a while, at any
//! instant, two thousand times.
//!
//! No survivor may hang, or wait longer for a lock than the protocol says; no map may be broken afterwards; and
//! nothing that an operation reported as done may be lost.

mod raw;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use raw::{Random, Shared};
use ring3_maps::{Attributes, Context, Map};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;

const WORKERS: usize = 16;
/// The first ones are never killed; they are stopped.
const SURVIVORS: usize = 4;
const KILLS: u32 = 2000;
/// Keys of each worker in the hash maps, and keys that all of them fight for.
const OWN_KEYS: u32 = 8;
const COMMON_KEYS: u32 = 16;
const ENTRIES: u32 = WORKERS as u32 * OWN_KEYS + COMMON_KEYS;
/// Bytes of the ring buffer.
const RING_BYTES: u32 = 1 << 16;
/// Calls of `Context::relax` in a wait for one lock at most (rounds of yields and of naps).
const WAITS_PER_LOCK: u64 = 464;
/// Locks that an operation other than an insertion into a full LRU map may wait for: its bucket twice, and those of a
/// collection with the patience of yields alone, of which only the last is not had.
const WAITS_MAX: u64 = 4 * WAITS_PER_LOCK;
/// Somebody that makes no progress for so long hangs.
const HANG: Duration = Duration::from_secs(30);

/// What the test knows of one worker; in memory that all share. A worker that was killed leaves its numbers to the next.
#[repr(C, align(64))]
struct Progress {
    /// Operations of all kinds.
    operations: AtomicU64,
    /// Additions to the counters done, of the array and of the hash map.
    added: AtomicU64,
    /// Records submitted, values pushed.
    submitted: AtomicU64,
    queued: AtomicU64,
    stacked: AtomicU64,
    /// Values whose pop this worker has noted.
    popped: AtomicU64,
    /// Operations that ended with `EBUSY`.
    busy: AtomicU64,
    /// Insertions that found no room where there was room but for elements in hand.
    full: AtomicU64,
    /// Most calls of `relax` in one operation.
    waited: AtomicU64,
    /// A worker that finds something wrong says what and stops.
    wrong: AtomicU32,
}

/// Calls of `relax` in this process.
static RELAXED: AtomicU64 = AtomicU64::new(0);

fn relax(sleeps: bool) {
    RELAXED.fetch_add(1, Relaxed);
    if sleeps {
        std::thread::sleep(Duration::from_nanos(ring3_maps::NAP_NS));
    } else {
        std::thread::yield_now();
    }
}

/// As the agent judges: no thread, or one without memory (a zombie).
fn is_dead(tid: u32) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(1), iov_len: 1 };
    // SAFETY: reads at most a byte into `byte`.
    let read = unsafe { libc::process_vm_readv(tid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0) };
    read < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

struct Storm {
    hashes: Vec<Shared>,
    /// A counter of each worker, a common one behind them; and of an array per CPU.
    counters: Shared,
    keyed_counters: Shared,
    per_cpu: Shared,
    queue: Shared,
    stack: Shared,
    ring: Shared,
    bloom: Shared,
    progress: &'static [Progress; WORKERS],
}

fn map(map_type: u32, key_size: u32, max_entries: u32) -> Shared {
    let value_size = if map_type == map_type::RINGBUF { 0 } else { 8 };
    Shared::fresh(Attributes { map_type, key_size, value_size, max_entries, cpus: 4, ..Attributes::default() })
}

impl Storm {
    fn new() -> Storm {
        let kinds = [map_type::HASH, map_type::PERCPU_HASH, map_type::LRU_HASH, map_type::LRU_PERCPU_HASH];
        let storm = Storm {
            hashes: kinds.into_iter().map(|kind| map(kind, 4, ENTRIES)).collect(),
            counters: map(map_type::ARRAY, 4, WORKERS as u32 + 1),
            keyed_counters: map(map_type::HASH, 4, WORKERS as u32 + 1),
            per_cpu: map(map_type::PERCPU_ARRAY, 4, WORKERS as u32),
            queue: map(map_type::QUEUE, 0, 64),
            stack: map(map_type::STACK, 0, 64),
            ring: map(map_type::RINGBUF, 0, RING_BYTES),
            bloom: map(map_type::BLOOM_FILTER, 0, 1 << 16),
            progress: raw::zeroed_and_shared(),
        };
        for number in 0..=WORKERS as u32 {
            let cx = context();
            storm.keyed_counters.map().user_update(&cx, &raw::key(number), &[0; 8], 0).expect("room");
        }
        storm
    }

    fn maps(&self) -> impl Iterator<Item = &Shared> {
        self.hashes.iter().chain([&self.keyed_counters, &self.queue, &self.stack, &self.ring])
    }

    fn total(&self, of: impl Fn(&Progress) -> &AtomicU64) -> u64 {
        self.progress.iter().map(|progress| of(progress).load(Relaxed)).sum()
    }
}

fn context() -> Context {
    // SAFETY: only asks.
    let tid = unsafe { libc::gettid() } as u32;
    Context { owner: tid, cpu: tid % 4, owner_is_dead: is_dead, relax, interrupts: false }
}

/// One worker's life. Allocates nothing: it was forked from a process with threads.
struct Worker<'s> {
    storm: &'s Storm,
    number: usize,
    cx: Context,
    random: Random,
    /// Value of each own key of each hash map, 0: not there.
    own: [[u64; OWN_KEYS as usize]; 4],
}

impl Worker<'_> {
    fn progress(&self) -> &Progress {
        &self.storm.progress[self.number]
    }

    fn fail(&self, what: u32) -> ! {
        self.progress().wrong.store(what, Release);
        // SAFETY: ends this process without cleaning up.
        unsafe { libc::_exit(1) }
    }

    fn expect(&self, right: bool, what: u32) {
        if !right {
            self.fail(what);
        }
    }

    /// Whether an operation was done; else it must have been `EBUSY`, or what is `allowed`.
    fn done(&self, result: Result<(), Errno>, allowed: &[Errno], what: u32) -> bool {
        match result {
            Ok(()) => return true,
            Err(Errno::EBUSY) => drop(self.progress().busy.fetch_add(1, Relaxed)),
            Err(errno) => self.expect(allowed.contains(&errno), what),
        }
        false
    }

    fn live(&mut self) -> ! {
        for hash in 0..4 {
            for key in 0..OWN_KEYS {
                let key = raw::key(self.number as u32 * OWN_KEYS + key);
                // A holder of its lock may be stopped for long.
                while self.storm.hashes[hash].map().user_delete(&self.cx, &key) == Err(Errno::EBUSY) {
                    self.progress().operations.fetch_add(1, Release);
                }
            }
        }
        loop {
            let before = RELAXED.load(Relaxed);
            let evicts = self.operate();
            let waited = RELAXED.load(Relaxed) - before;
            if !evicts {
                self.progress().waited.fetch_max(waited, Relaxed);
            }
            self.progress().operations.fetch_add(1, Release);
        }
    }

    /// True if it was an operation that may make room in an LRU map.
    fn operate(&mut self) -> bool {
        match self.random.below(12) {
            0..4 => return self.change_own_key(),
            4..6 => return self.change_common_key(),
            6 => self.count(),
            7 | 8 => self.submit(),
            9 => self.push(),
            10 => self.pop(),
            _ => self.remember(),
        }
        false
    }

    /// Nobody else touches these keys: what was stored is there, but for an LRU map.
    fn change_own_key(&mut self) -> bool {
        let hash = self.random.below(4) as usize;
        let number = self.random.below(OWN_KEYS.into()) as u32;
        let map = self.storm.hashes[hash].map();
        let lru = map.geometry().is_lru();
        let key = raw::key(self.number as u32 * OWN_KEYS + number);
        let known = self.own[hash][number as usize];
        let mut value = [0u8; 32];
        let value = &mut value[..map.geometry().user_value_bytes()];
        match map.user_lookup(&key, value) {
            Ok(()) => self.expect(known != 0 && value.chunks(8).all(|word| word == known.to_le_bytes()), 1),
            Err(_) => self.expect(known == 0 || lru, 2),
        }
        if self.random.below(2) == 0 {
            let next = self.random.below(u64::MAX) | 1;
            value.chunks_mut(8).for_each(|word| word.copy_from_slice(&next.to_le_bytes()));
            let result = map.user_update(&self.cx, &key, value, 0);
            if matches!(result, Err(Errno::E2BIG | Errno::ENOMEM)) {
                self.progress().full.fetch_add(1, Relaxed);
            }
            if self.done(result, &[Errno::E2BIG, Errno::ENOMEM], 3) {
                self.own[hash][number as usize] = next;
            }
        } else if self.done(map.user_delete(&self.cx, &key), &[Errno::ENOENT], 4) || lru {
            let gone = map.user_lookup(&key, value).is_err();
            self.own[hash][number as usize] = if gone { 0 } else { known };
        }
        lru
    }

    fn change_common_key(&mut self) -> bool {
        let map = self.storm.hashes[self.random.below(4) as usize].map();
        let key = raw::key(WORKERS as u32 * OWN_KEYS + self.random.below(COMMON_KEYS.into()) as u32);
        let mut value = [0u8; 32];
        let value = &mut value[..map.geometry().user_value_bytes()];
        let allowed = [Errno::ENOENT, Errno::EEXIST, Errno::E2BIG, Errno::ENOMEM];
        let result = match self.random.below(4) {
            0 => map.user_update(&self.cx, &key, value, self.random.below(3)),
            1 => map.user_delete(&self.cx, &key),
            2 => map.user_lookup_and_delete(&self.cx, &key, value),
            _ => map.user_next_key(Some(&key), &mut [0; 4]),
        };
        self.done(result, &allowed, 5);
        map.geometry().is_lru()
    }

    /// An own and a common counter, in an array and in a hash map, and one per CPU that nobody else has.
    fn count(&self) {
        let (own, common) = (raw::key(self.number as u32), raw::key(WORKERS as u32));
        for map in [self.storm.counters.map(), self.storm.keyed_counters.map()] {
            for key in [own, common] {
                // SAFETY: 4 readable bytes.
                let value = unsafe { map.lookup(key.as_ptr() as u64, 0) };
                self.expect(value != 0, 6);
                // SAFETY: a value of 8 bytes, which is never deleted.
                unsafe { AtomicU64::from_ptr(value as *mut u64) }.fetch_add(1, Relaxed);
            }
        }
        // SAFETY: 4 readable bytes.
        let value = unsafe { self.storm.per_cpu.map().lookup(own.as_ptr() as u64, self.cx.cpu) };
        // SAFETY: a value of 8 bytes of this worker alone.
        unsafe { *(value as *mut u64) += 1 };
        self.progress().added.fetch_add(1, Release);
    }

    /// What a producer writes: who it is, and a number that grows by one with each that was submitted for sure.
    fn stamp(&self, done: &AtomicU64) -> u64 {
        (self.number as u64) << 56 | done.load(Acquire)
    }

    fn submit(&mut self) {
        let stamp = self.stamp(&self.progress().submitted);
        let bytes = 16 + self.random.below(8) * 8;
        let ring = self.storm.ring.map().ring().expect("a ring buffer");
        let Some(record) = ring.reserve(&self.cx, bytes) else { return };
        // SAFETY: the record has at least 16 bytes.
        unsafe { (record.address as *mut [u64; 2]).write([stamp, !stamp]) };
        // A program that is interrupted here, or takes its time.
        if self.random.below(64) == 0 {
            std::thread::yield_now();
        }
        let discard = self.random.below(8) == 0;
        let _ = ring.commit(record, 0, discard);
        if !discard {
            self.progress().submitted.fetch_add(1, Release);
        }
    }

    fn push(&mut self) {
        let progress = self.progress();
        for (map, done) in [(&self.storm.queue, &progress.queued), (&self.storm.stack, &progress.stacked)] {
            let stamp = self.stamp(done).to_le_bytes();
            if self.done(map.map().user_push(&self.cx, &stamp, 0), &[Errno::E2BIG], 7) {
                done.fetch_add(1, Release);
            }
        }
    }

    /// Pops of the stack; of the queue only the test itself pops.
    fn pop(&self) {
        let mut value = [0; 8];
        let map = self.storm.stack.map();
        self.done(map.user_peek(&self.cx, &mut value), &[Errno::ENOENT], 8);
        if self.done(map.user_pop(&self.cx, &mut value), &[Errno::ENOENT], 9) {
            let stamp = u64::from_le_bytes(value);
            self.expect((stamp >> 56) < WORKERS as u64, 10);
            self.progress().popped.fetch_add(1, Release);
        }
    }

    fn remember(&mut self) {
        let value = (self.random.below(1 << 12) << 8 | self.number as u64).to_le_bytes();
        let map = self.storm.bloom.map();
        self.done(map.user_push(&self.cx, &value, 0), &[], 11);
        self.expect(map.user_peek(&self.cx, &mut { value }).is_ok(), 12);
    }
}

fn start(storm: &Storm, number: usize, seed: u64) -> libc::pid_t {
    // SAFETY: the child works on shared memory and allocates nothing.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // A worker does not outlive the test.
        // SAFETY: takes no memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        RELAXED.store(0, Relaxed);
        Worker { storm, number, cx: context(), random: Random(seed), own: [[0; OWN_KEYS as usize]; 4] }.live();
    }
    child
}

fn signal(pid: libc::pid_t, signal: i32) {
    // SAFETY: our own child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

fn reap(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: waits for our child.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFSIGNALED(status), "a worker ended by itself: {status:#x}");
}

/// Next numbers of producers: each one again at most as often as it was killed in between, none left out.
#[derive(Default)]
struct Sequence {
    next: BTreeMap<u64, u64>,
    again: u64,
}

impl Sequence {
    fn see(&mut self, stamp: u64) {
        let (producer, number) = (stamp >> 56, stamp & ((1 << 56) - 1));
        let next = self.next.entry(producer).or_default();
        if number + 1 == *next && producer >= SURVIVORS as u64 {
            self.again += 1;
            return;
        }
        assert_eq!(number, *next, "of producer {producer}");
        *next += 1;
    }
}

/// Reads the ring buffer and pops the queue as long as there is something or the storm goes on.
fn consume(storm: &Storm, over: &AtomicBool) -> (Sequence, Sequence) {
    let (mut records, mut values) = (Sequence::default(), Sequence::default());
    let mut moved = Instant::now();
    let mut consumed = 0u64;
    loop {
        let ending = over.load(Acquire);
        let mut any = false;
        while let Some((stamp, check)) = raw::next_record(&storm.ring, RING_BYTES.into(), &mut consumed) {
            any = true;
            if let Some(stamp) = stamp {
                assert_eq!(check, !stamp, "a record is torn");
                records.see(stamp);
            }
        }
        let mut value = [0; 8];
        if storm.queue.map().user_pop(&context(), &mut value).is_ok() {
            any = true;
            values.see(u64::from_le_bytes(value));
        }
        if any {
            moved = Instant::now();
        } else if ending {
            return (records, values);
        } else {
            assert!(moved.elapsed() < HANG, "the consumer is held up");
            std::thread::yield_now();
        }
    }
}

/// Lets a worker go on until it has done some more; a hang is an error.
fn let_work(storm: &Storm, number: usize, operations: u64) {
    let done = || storm.progress[number].operations.load(Acquire);
    let (from, began) = (done(), Instant::now());
    while done() < from + operations {
        assert_eq!(storm.progress[number].wrong.load(Acquire), 0, "worker {number}");
        assert!(began.elapsed() < HANG, "worker {number} hangs");
        std::thread::yield_now();
    }
}

/// Ends what is left when the test fails.
struct Ending<'t> {
    workers: Vec<libc::pid_t>,
    over: &'t AtomicBool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        for pid in self.workers.drain(..) {
            signal(pid, libc::SIGKILL);
            reap(pid);
        }
        self.over.store(true, Release);
    }
}

fn storm_of(storm: &Storm, random: &mut Random, over: &AtomicBool) {
    let seed = random.0;
    let mut ending = Ending { workers: (0..WORKERS).map(|n| start(storm, n, seed ^ (n as u64 + 1))).collect(), over };
    let workers = &mut ending.workers;
    let mut stopped: Option<usize> = None;
    let (mut stops, mut locks, mut discards) = (0, 0, 0);
    for kill in 0..KILLS {
        // Some are stopped, wherever they are, while others go on and die.
        if let Some(number) = stopped.take_if(|_| kill % 3 == 0) {
            signal(workers[number], libc::SIGCONT);
        }
        if stopped.is_none() && random.below(2) == 0 {
            let number = random.below(WORKERS as u64) as usize;
            signal(workers[number], libc::SIGSTOP);
            (stopped, stops) = (Some(number), stops + 1);
        }
        let watched = random.below(WORKERS as u64) as usize;
        if kill % 3 == 0 && Some(watched) != stopped {
            let_work(storm, watched, random.below(40));
        }
        let victim = SURVIVORS + random.below((WORKERS - SURVIVORS) as u64) as usize;
        stopped = stopped.filter(|number| *number != victim);
        signal(workers[victim], libc::SIGKILL);
        // The dead are zombies for a while; what they held can be taken all the same.
        if random.below(16) == 0 {
            let_work(storm, (0..SURVIVORS).find(|n| Some(*n) != stopped).expect("one"), 20);
        }
        reap(workers[victim]);
        let held = |map: &&Shared| map.is_locked_by(workers[victim] as u32);
        locks += storm.hashes.iter().filter(held).count();
        discards += u32::from(
            storm
                .maps()
                .fold(false, |any, map| map.map().reclaim_dead_owner(&context(), is_dead, |at| at..u64::MAX) | any),
        );
        workers[victim] = start(storm, victim, seed ^ (u64::from(kill) << 8) ^ victim as u64);
    }
    if let Some(number) = stopped {
        signal(workers[number], libc::SIGCONT);
    }
    // Everybody is still there and goes on.
    (0..WORKERS).for_each(|number| let_work(storm, number, 10));
    workers.iter().for_each(|pid| signal(*pid, libc::SIGSTOP));
    // The survivors end between two operations, or what they have just done would not be noted.
    for (number, pid) in workers.iter().enumerate().take(SURVIVORS) {
        raw::step_out(*pid, &storm.progress[number].operations);
    }
    for pid in workers.drain(..) {
        signal(pid, libc::SIGKILL);
        reap(pid);
    }
    for map in storm.maps() {
        map.map().reclaim_dead_owner(&context(), is_dead, |at| at..u64::MAX);
    }
    println!("{KILLS} kills, {stops} stops, {locks} locks and {discards} records of the dead");
}

#[test]
fn maps_stand_two_thousand_kills() {
    let mut random = Random::seeded();
    let storm = Storm::new();
    let over = AtomicBool::new(false);
    let (records, values) = std::thread::scope(|scope| {
        let consumer = scope.spawn(|| consume(&storm, &over));
        storm_of(&storm, &mut random, &over);
        consumer.join().expect("the consumer is content")
    });
    let total = |of: fn(&Progress) -> &AtomicU64| storm.total(of);
    println!(
        "{} operations, {} records, {} values; {} EBUSY, {} without room; at most {} waits in an operation",
        total(|p| &p.operations),
        total(|p| &p.submitted),
        total(|p| &p.queued),
        total(|p| &p.busy),
        total(|p| &p.full),
        storm.progress.iter().map(|p| p.waited.load(Relaxed)).max().expect("some"),
    );
    judge_sequences(&storm, &records, &values);
    judge_counters(&storm);
    judge_maps(&storm);
    assert!(storm.progress.iter().all(|p| p.waited.load(Relaxed) <= WAITS_MAX));
}

fn judge_sequences(storm: &Storm, records: &Sequence, values: &Sequence) {
    for (sequence, of) in [(records, (|p| &p.submitted) as fn(&Progress) -> &AtomicU64), (values, |p| &p.queued)] {
        assert!(sequence.again <= u64::from(KILLS));
        for (number, progress) in storm.progress.iter().enumerate() {
            let seen = sequence.next.get(&(number as u64)).copied().unwrap_or(0);
            let done = of(progress).load(Relaxed);
            let unnoted = if number < SURVIVORS { 0 } else { 1 };
            assert!(seen >= done && seen <= done + unnoted, "worker {number}: {done} done, {seen} seen");
        }
    }
    // What is left on the stack and what was popped is what was pushed, but for what died with a pusher or a popper.
    let left = storm.stack.map().check().expect("whole").elements;
    let (pushed, popped) = (storm.total(|p| &p.stacked), storm.total(|p| &p.popped));
    assert!((left + popped).abs_diff(pushed) <= u64::from(KILLS) + WORKERS as u64, "{left} + {popped}, {pushed}");
}

fn judge_counters(storm: &Storm) {
    let value = |map: &Map, number: u32| {
        let mut value = [0; 8];
        map.user_lookup(&raw::key(number), &mut value).expect("there");
        u64::from_le_bytes(value)
    };
    let all = storm.total(|p| &p.added);
    for map in [storm.counters.map(), storm.keyed_counters.map()] {
        let common = value(&map, WORKERS as u32);
        assert!(common >= all && common <= all + u64::from(KILLS) + WORKERS as u64, "{common} of {all}");
        let own: u64 = (0..WORKERS as u32).map(|number| value(&map, number)).sum();
        assert!(own >= common && own <= common + u64::from(KILLS) + WORKERS as u64, "{own}, {common}");
        for (number, progress) in storm.progress.iter().enumerate().take(SURVIVORS) {
            assert_eq!(value(&map, number as u32), progress.added.load(Relaxed), "of survivor {number}");
        }
    }
}

fn judge_maps(storm: &Storm) {
    let cx = context();
    for shared in storm.maps() {
        let census = shared.map().check().expect("whole");
        assert_eq!((census.locked, census.busy, census.in_hand), (0, 0, 0), "{census:?}");
    }
    for shared in &storm.hashes {
        let map = shared.map();
        for number in 0..ENTRIES {
            let _ = map.user_delete(&cx, &raw::key(number));
        }
        assert_eq!(map.check().expect("whole").elements, 0);
        for number in 0..ENTRIES {
            map.user_update(&cx, &raw::key(number), &[0; 32][..map.geometry().user_value_bytes()], 1).expect("room");
        }
        assert_eq!(map.check().expect("whole").elements, ENTRIES.into());
    }
}
