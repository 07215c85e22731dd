//! Three processes at once, of which a random one runs a few instructions at a time, and one may die between any two: what they did
//! must be explained by some order of their operations.
//!
//! `raw_schedule.rs` holds up one operation for as long as another one takes as a whole; here each of several is held up many times.
//! What is stepped is the machine code that runs in targets, on memory that is shared, so nothing need be written for a model
//! checker. (Loom would also try orders of memory that this CPU's family does not show.)
//!
//! `cargo xtask interleave` runs more schedules; `RING3_SEED` repeats some.

mod raw;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use raw::{Child, Random, Shared, contents, zeroed_and_shared};
use ring3_maps::{Attributes, Context, Map};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_EXIST, BPF_NOEXIST};

const PROCESSES: usize = 3;
/// Operations of each process.
const OPERATIONS: usize = 2;
/// Keys that they fight for.
const KEYS: u64 = 4;
/// Schedules of each kind of map, unless `RING3_SCHEDULES` says how many.
const SCHEDULES: u64 = 25;
/// No operation has more instructions, as a power of two.
const INSTRUCTIONS_LOG2: u64 = 14;
/// Instructions that a process runs before another one's turn may come, at most.
const SLICES: [u64; 4] = [1, 4, 40, 400];

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Key, byte of the value, flags.
    Put(u32, u8, u64),
    Delete(u32),
    Take(u32),
    Look(u32),
    Push(u8),
    Pop,
}

/// What it led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Its process died before it had ended.
    Unknown,
    Done,
    Found(u8),
    /// A value of which not all bytes are the same.
    Torn,
    Failed(Errno),
}

/// What all processes see.
struct Board {
    /// 0, or what the operation led to, by process and operation.
    outcomes: [[AtomicU64; OPERATIONS]; PROCESSES],
    /// Not 0: the process has died.
    dead: [AtomicU64; PROCESSES],
}

/// The test's own, and its children's.
fn board() -> &'static Board {
    thread_local!(static BOARD: &'static Board = zeroed_and_shared());
    BOARD.with(|board| *board)
}

impl Outcome {
    fn written(self) -> u64 {
        match self {
            Outcome::Unknown => 0,
            Outcome::Done => 1,
            Outcome::Torn => 2,
            Outcome::Found(byte) => 1 << 8 | u64::from(byte),
            Outcome::Failed(errno) => 1 << 16 | errno.0 as u64,
        }
    }

    fn read(word: u64) -> Outcome {
        match word {
            0 => Outcome::Unknown,
            1 => Outcome::Done,
            2 => Outcome::Torn,
            found if found < 1 << 16 => Outcome::Found(found as u8),
            failed => Outcome::Failed(Errno(failed as u16 as i32)),
        }
    }
}

fn context(process: usize) -> Context {
    let owner_is_dead = |owner: u32| board().dead[owner as usize - 1].load(Relaxed) != 0;
    Context { owner: process as u32 + 1, cpu: 0, owner_is_dead, relax: |_| (), interrupts: false }
}

fn key_of(map: &Map, number: u32) -> ([u8; 8], usize) {
    let mut key = [0; 8];
    match map.header().map_type {
        // Prefixes of 8, 16, 24 and 32 bits: each but the first one lies in another one.
        map_type::LPM_TRIE => {
            key[0] = (number as u8 + 1) * 8;
            key[4..5 + number as usize].fill(7);
            (key, 8)
        }
        _ => {
            key[0] = number as u8;
            (key, 4)
        }
    }
}

fn make(map: &Map, cx: &Context, step: Step) -> Outcome {
    let mut out = [0u8; 8];
    let result = match step {
        Step::Put(number, byte, flags) => {
            let (key, bytes) = key_of(map, number);
            map.user_update(cx, &key[..bytes], &[byte; 8], flags)
        }
        Step::Delete(number) => {
            let (key, bytes) = key_of(map, number);
            map.user_delete(cx, &key[..bytes])
        }
        Step::Take(number) => {
            let (key, bytes) = key_of(map, number);
            map.user_lookup_and_delete(cx, &key[..bytes], &mut out)
        }
        Step::Look(number) => {
            let (key, bytes) = key_of(map, number);
            map.user_lookup(&key[..bytes], &mut out)
        }
        Step::Push(byte) => map.user_push(cx, &[byte; 8], 0),
        Step::Pop => map.user_pop(cx, &mut out),
    };
    match (result, step) {
        (Err(errno), _) => Outcome::Failed(errno),
        (Ok(()), Step::Take(_) | Step::Look(_) | Step::Pop) if out == [out[0]; 8] => Outcome::Found(out[0]),
        (Ok(()), Step::Take(_) | Step::Look(_) | Step::Pop) => Outcome::Torn,
        (Ok(()), _) => Outcome::Done,
    }
}

/// What a map holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    map_type: u32,
    max_entries: usize,
    values: BTreeMap<u32, u8>,
    queue: VecDeque<u8>,
}

impl Held {
    fn of(map: &Map) -> Held {
        let header = map.header();
        let mut held =
            Held { map_type: header.map_type, max_entries: header.max_entries as usize, ..Held::default() };
        match header.map_type {
            map_type::QUEUE | map_type::STACK => {
                let mut value = [0; 8];
                while map.user_pop(&context(PROCESSES), &mut value).is_ok() {
                    assert_eq!(value, [value[0]; 8]);
                    held.queue.push_back(value[0]);
                }
            }
            map_type::LPM_TRIE => {
                for number in raw::keys(map).into_iter().map(|key| u32::from(key[0] / 8 - 1)) {
                    let (key, bytes) = key_of(map, number);
                    let mut value = [0; 8];
                    map.user_lookup(&key[..bytes], &mut value).expect("listed");
                    held.values.insert(number, value[0]);
                }
            }
            _ => held.values = contents(map).into_iter().map(|(key, value)| (key, value[0])).collect(),
        }
        held
    }

    /// What an operation leads to that nobody disturbs. (The longest prefix is what a look-up in a trie finds: of the key's own
    /// length or shorter.)
    fn make(&mut self, step: Step) -> Outcome {
        match step {
            Step::Put(key, _, BPF_NOEXIST) if self.values.contains_key(&key) => Outcome::Failed(Errno::EEXIST),
            Step::Put(key, _, BPF_EXIST) if !self.values.contains_key(&key) => Outcome::Failed(Errno::ENOENT),
            Step::Put(key, byte, _) => {
                self.values.insert(key, byte);
                Outcome::Done
            }
            Step::Delete(key) => self.values.remove(&key).map_or(Outcome::Failed(Errno::ENOENT), |_| Outcome::Done),
            Step::Take(key) => self.values.remove(&key).map_or(Outcome::Failed(Errno::ENOENT), Outcome::Found),
            Step::Look(key) if self.map_type == map_type::LPM_TRIE => self
                .values
                .range(..=key)
                .next_back()
                .map_or(Outcome::Failed(Errno::ENOENT), |(_, byte)| Outcome::Found(*byte)),
            Step::Look(key) => self.values.get(&key).copied().map_or(Outcome::Failed(Errno::ENOENT), Outcome::Found),
            Step::Push(_) if self.queue.len() == self.max_entries => Outcome::Failed(Errno::E2BIG),
            Step::Push(byte) if self.map_type == map_type::STACK => {
                self.queue.push_front(byte);
                Outcome::Done
            }
            Step::Push(byte) => {
                self.queue.push_back(byte);
                Outcome::Done
            }
            Step::Pop => self.queue.pop_front().map_or(Outcome::Failed(Errno::ENOENT), Outcome::Found),
        }
    }

    /// Whether some order of what is left of each process's operations leads to these outcomes, and to what is held in the end.
    fn leads_to(&self, left: [&[(Step, Outcome)]; PROCESSES], end: &Held) -> bool {
        if left.iter().all(|steps| steps.is_empty()) {
            return self == end;
        }
        (0..PROCESSES).any(|process| {
            let Some(((step, outcome), rest)) = left[process].split_first() else { return false };
            let mut left = left;
            left[process] = rest;
            let mut next = self.clone();
            let expected = next.make(*step);
            match outcome {
                // It was not made.
                Outcome::Failed(Errno::EBUSY) => self.leads_to(left, end),
                Outcome::Unknown => self.leads_to(left, end) || next.leads_to(left, end),
                // Readers take no lock: their value is judged by itself.
                _ if matches!(step, Step::Look(_)) => self.leads_to(left, end),
                outcome => *outcome == expected && next.leads_to(left, end),
            }
        })
    }
}

fn some_step(map_type: u32, byte: u8, random: &mut Random) -> Step {
    let key = random.below(KEYS) as u32;
    match (map_type, random.below(6)) {
        (map_type::QUEUE | map_type::STACK, 0..=2) => Step::Push(byte),
        (map_type::QUEUE | map_type::STACK, _) => Step::Pop,
        (_, 0 | 1) => Step::Put(key, byte, 0),
        (_, 2) => Step::Put(key, byte, if random.below(2) == 0 { BPF_NOEXIST } else { BPF_EXIST }),
        (_, 3) => Step::Delete(key),
        (map_type::HASH, 4) => Step::Take(key),
        (_, 4) => Step::Delete(key),
        _ => Step::Look(key),
    }
}

/// Runs one schedule. Returns how often the process that ran changed.
fn one_schedule(shared: &Shared, empty: &[u8], random: &mut Random) -> u64 {
    let map_type = shared.geometry.header.map_type;
    let mut byte = 0;
    let mut fresh_byte = || {
        byte += 1;
        byte
    };
    shared.restore(empty);
    if matches!(map_type, map_type::HASH | map_type::LPM_TRIE) {
        // Elements, or nodes, that were in use are on a list, which fresh ones are not.
        let used = random.below(4) as u32;
        (0..used)
            .for_each(|number| assert_eq!(make(&shared.map(), &context(0), Step::Put(number, 1, 0)), Outcome::Done));
        (0..used)
            .for_each(|number| assert_eq!(make(&shared.map(), &context(0), Step::Delete(number)), Outcome::Done));
    }
    for _ in 0..random.below(5) {
        let byte = fresh_byte();
        let step = match map_type {
            map_type::QUEUE | map_type::STACK => Step::Push(byte),
            _ => Step::Put(random.below(KEYS) as u32, byte, 0),
        };
        make(&shared.map(), &context(0), step);
    }
    let begin = Held::of(&Shared::of(shared.bytes(), shared.geometry).map());
    let steps = [(); PROCESSES].map(|()| [(); OPERATIONS].map(|()| some_step(map_type, fresh_byte(), random)));
    board().dead.iter().chain(board().outcomes.as_flattened()).for_each(|word| word.store(0, Relaxed));

    let operate = |process: usize| {
        for (step, outcome) in steps[process].iter().zip(&board().outcomes[process]) {
            outcome.store(make(&shared.map(), &context(process), *step).written(), Release);
        }
    };
    let mut children: Vec<(usize, Child)> =
        (0..PROCESSES).map(|process| (process, Child::start(&|| operate(process)))).collect();
    let mut dies = (random.below(2) == 0).then(|| {
        let within = 1 << random.below(INSTRUCTIONS_LOG2);
        (random.below(PROCESSES as u64) as usize, random.below(within))
    });
    let mut turns = 0;
    while !children.is_empty() {
        turns += 1;
        let at = random.below(children.len() as u64) as usize;
        let length = SLICES[random.below(SLICES.len() as u64) as usize];
        let slice = 1 + random.below(length);
        let (process, child) = &children[at];
        for _ in 0..slice {
            match &mut dies {
                Some((victim, 0)) if victim == process => {
                    child.kill();
                    board().dead[*process].store(1, Relaxed);
                    dies = None;
                    children.remove(at);
                    break;
                }
                Some((victim, left)) if victim == process => *left -= 1,
                _ => {}
            }
            if !child.step() {
                children.remove(at);
                break;
            }
        }
    }

    let map = shared.map();
    map.reclaim_dead_owner(
        &context(0),
        |owner| board().dead[owner as usize - 1].load(Relaxed) != 0,
        |at| at..u64::MAX,
    );
    let story = [0, 1, 2].map(|process: usize| {
        let outcomes = board().outcomes[process].iter().map(|word| Outcome::read(word.load(Acquire)));
        let mut story: Vec<(Step, Outcome)> = steps[process].into_iter().zip(outcomes).collect();
        // Of what a dead process had not ended, it can have begun the first only.
        let ended = story.iter().take_while(|(_, outcome)| *outcome != Outcome::Unknown).count();
        story.truncate(ended + 1);
        story
    });
    let census = map.check().unwrap_or_else(|damage| panic!("{damage:?} after {story:?}"));
    let has_died = board().dead.iter().any(|dead| dead.load(Relaxed) != 0);
    assert!((census.in_hand, census.locked) == (0, 0) || has_died, "{census:?} after {story:?}");
    for (step, outcome) in story.iter().flatten() {
        // What is busy was waited for.
        assert!(*outcome != Outcome::Failed(Errno::EBUSY) || map.gave_up() > 0, "{story:?}");
        assert_ne!(*outcome, Outcome::Torn, "{step:?} of {story:?}");
    }
    let end = Held::of(&map);
    let left = [0, 1, 2].map(|process: usize| &story[process][..]);
    assert!(begin.leads_to(left, &end), "no order of {story:?} leads from {begin:?} to {end:?}");
    turns
}

fn schedules(map_type: u32) {
    let number = std::env::var("RING3_SCHEDULES").map_or(SCHEDULES, |text| text.parse().expect("a number"));
    let key_size = match map_type {
        map_type::QUEUE | map_type::STACK => 0,
        map_type::LPM_TRIE => 8,
        _ => 4,
    };
    let max_entries = if key_size == 0 { 4 } else { 16 };
    let shared = Shared::fresh(Attributes {
        map_type,
        key_size,
        value_size: 8,
        max_entries,
        map_flags: if map_type == map_type::LPM_TRIE { ring3_uapi::flags::BPF_F_NO_PREALLOC } else { 0 },
        cpus: 1,
        ..Attributes::default()
    });
    let empty = shared.bytes().to_vec();
    let mut random = Random::seeded();
    let mut turns = 0;
    for _ in 0..number {
        println!("RING3_SEED={}", random.0);
        turns += one_schedule(&shared, &empty, &mut random);
    }
    println!("{number} schedules, {turns} turns");
}

#[test]
fn what_three_processes_do_to_a_hash_map_at_once_they_could_have_done_in_turns() {
    schedules(map_type::HASH);
}

#[test]
fn what_three_processes_do_to_a_trie_at_once_they_could_have_done_in_turns() {
    schedules(map_type::LPM_TRIE);
}

#[test]
fn what_three_processes_do_to_a_queue_at_once_they_could_have_done_in_turns() {
    schedules(map_type::QUEUE);
}

#[test]
fn what_three_processes_do_to_a_stack_at_once_they_could_have_done_in_turns() {
    schedules(map_type::STACK);
}
