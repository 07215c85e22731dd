//! Bad input: whatever bytes, maps, policies and log levels the verifier gets, it answers, in bounded time and memory, and
//! says why.
//!
//! The usual inputs are always the same. `RING3_SEED=S RING3_INPUTS=N` tries N inputs of each kind of another seed;
//! `RING3_INPUT=I` one alone. `RING3_HUGE=1` tries the huge programs at their full size and prints what they took.

#[expect(dead_code, reason = "only the programs are taken from the cases")]
mod case_file;
#[path = "hostile/damage.rs"]
mod damage;
#[path = "hostile/huge.rs"]
mod huge;
#[path = "hostile/raw_memory.rs"]
mod raw_memory;

use std::collections::BTreeSet;
use std::time::Instant;

use ring3_generate::Random;
use ring3_isa::Insn;
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_verifier::{
    Content, Context, Field, INSNS_MAX, InnerShape, Input, Line, MapShape, PROCESSED_MAX, Policy, Report, Sizes,
    Verified, verify,
};

use raw_memory::with_peak;

const SEED_USUAL: u64 = 1;
const INPUTS_USUAL: u64 = 3000;
/// Instructions that random programs may take.
const PROCESSED_RANDOM: u64 = 20_000;
/// Bytes that an instruction of a program takes at most.
const BYTES_PER_INSN: i64 = 400;
/// Bytes that an instruction that is processed leaves behind at most, in points that are kept.
const BYTES_PER_PROCESSED: i64 = 16_000;
/// Bytes of what is known at a point of a path at most: eight frames with all slots full.
const BYTES_PER_STATE: i64 = 100_000;
/// Bytes of all points and open paths at most, whatever the program.
const BYTES_OF_STATES: i64 = 1 << 29;
/// Bytes of the path that was walked, an instruction.
const BYTES_PER_MOVE: i64 = 256;
/// Paths that are left open at most.
const OPEN_MAX: i64 = 8192;
/// The log and its copies.
const BYTES_OF_LOG: i64 = 64 << 20;

/// All that is said of a program.
struct Subject {
    insns: Vec<Insn>,
    prog_type: u32,
    maps: Vec<MapShape>,
    policy: Policy,
    log_level: u32,
    lines: Vec<Line>,
    constant: Option<Vec<u8>>,
    sleepable: bool,
    cpus: u32,
}

impl Subject {
    fn new(insns: Vec<Insn>) -> Subject {
        Subject {
            insns,
            prog_type: prog_type::SOCKET_FILTER,
            maps: vec![shape(map_type::ARRAY)],
            policy: Policy::kernel(prog_type::SOCKET_FILTER),
            log_level: 0,
            lines: vec![],
            constant: None,
            sleepable: false,
            cpus: 2,
        }
    }

    fn verify(&self) -> Result<Verified, Report> {
        verify(&Input {
            insns: &self.insns,
            prog_type: self.prog_type,
            gpl_compatible: true,
            sleepable: self.sleepable,
            cpus: self.cpus,
            policy: self.policy.clone(),
            log_level: self.log_level,
            lines: self.lines.clone(),
            map_by_fd: &|fd| self.maps.get(usize::try_from(fd).ok()? % (self.maps.len() + 1)).copied(),
            map_by_index: &|index| self.maps.get(index as usize).copied(),
            constant_value: &|_| self.constant.clone(),
        })
    }
}

/// Says which input it was if the verifier panics.
struct Told(String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// What verifying took.
#[derive(Debug)]
struct Cost {
    processed: u64,
    states: u64,
    bytes: i64,
    msec: u128,
    /// Why it was refused.
    refusal: Option<String>,
}

/// Verifies, and asks for what is promised of any answer.
fn judged(subject: &Subject) -> Cost {
    let started = Instant::now();
    let (verdict, bytes) = with_peak(|| subject.verify());
    let msec = started.elapsed().as_millis();
    let statistics = match &verdict {
        Ok(verified) => verified.statistics(),
        Err(report) => report.statistics,
    };
    let processed = statistics.processed;
    assert!(processed <= subject.policy.processed_max + 1, "{processed} instructions processed");
    let (insns, open) = (subject.insns.len() as i64, OPEN_MAX.min(processed as i64));
    let states = BYTES_PER_STATE * open + BYTES_PER_PROCESSED * processed as i64;
    let bound =
        BYTES_OF_LOG + BYTES_PER_INSN * insns + BYTES_PER_MOVE * processed as i64 + states.min(BYTES_OF_STATES);
    assert!(bytes <= bound, "{bytes} bytes for {processed} instructions processed of {insns}");
    if let Err(report) = &verdict {
        assert!(report.errno.0 > 0, "{report:?}");
        assert!(!report.message.trim().is_empty(), "{report:?}");
        assert!(report.log.contains(&report.message), "{report:?}");
        assert!(report.insn.is_none_or(|at| at < subject.insns.len()), "{report:?}");
    }
    Cost {
        processed,
        states: statistics.states,
        bytes,
        msec,
        refusal: verdict.err().map(|report| report.to_string()),
    }
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Judges inputs that `make` makes of random numbers.
fn for_inputs(make: impl Fn(&mut Random) -> Subject) {
    let seed = number_of("RING3_SEED").unwrap_or(SEED_USUAL);
    let alone = number_of("RING3_INPUT");
    let inputs = number_of("RING3_INPUTS").unwrap_or(INPUTS_USUAL);
    let (mut accepted, mut slowest, mut largest) = (0, (0, 0), (0, 0));
    let mut judge = |input: u64| {
        let subject = make(&mut Random::new(seed, input));
        let told = Told(format!("RING3_SEED={seed} RING3_INPUT={input}:\n{}", ring3_generate::text(&subject.insns)));
        let cost = judged(&subject);
        drop(told);
        accepted += u64::from(cost.refusal.is_none());
        slowest = slowest.max((cost.msec, input));
        largest = largest.max((cost.bytes, input));
    };
    alone.map_or(0..inputs, |input| input..input + 1).for_each(&mut judge);
    println!(
        "{inputs} inputs, {accepted} accepted; the slowest took {} ms (input {}), the largest {} KiB (input {})",
        slowest.0,
        slowest.1,
        largest.0 >> 10,
        largest.1
    );
}

fn shape(map_type: u32) -> MapShape {
    MapShape {
        slot: 0,
        map_type,
        key_size: 4,
        value_size: 48,
        max_entries: 1,
        map_flags: 0,
        stride: 48,
        cpus: 1,
        cpu_stride: 0,
        hash: None,
        lock: None,
        inner: None,
    }
}

fn ring() -> MapShape {
    MapShape { key_size: 0, value_size: 0, max_entries: 4096, ..shape(map_type::RINGBUF) }
}

/// The maps of `ring3_generate`'s programs.
fn usual_maps() -> Vec<MapShape> {
    let maps = (0..).zip(ring3_generate::MAPS);
    maps.map(|(slot, map)| MapShape {
        slot,
        key_size: map.key_bytes,
        value_size: map.value_bytes,
        max_entries: map.entries,
        ..shape(map.map_type)
    })
    .collect()
}

/// Maps that no kernel would make.
fn odd_maps(random: &mut Random) -> Vec<MapShape> {
    let size = |random: &mut Random| match random.below(6) {
        0 => 0,
        1 => u32::MAX,
        2 => random.edge() as u32,
        _ => 1 + random.below(64) as u32,
    };
    let mut one = |slot: u32| {
        let inner = InnerShape {
            map_type: random.below(40) as u32,
            key_size: size(random),
            value_size: size(random),
            max_entries: size(random),
            map_flags: random.edge() as u32,
            lock: random.one_in(3).then(|| size(random)),
        };
        MapShape {
            // The same map may look different each time.
            slot: if random.one_in(8) { random.edge() as u32 } else { slot },
            map_type: random.below(40) as u32,
            key_size: size(random),
            value_size: size(random),
            max_entries: size(random),
            map_flags: random.edge() as u32,
            stride: size(random),
            cpus: size(random),
            cpu_stride: random.edge(),
            hash: None,
            lock: random.one_in(3).then(|| size(random)),
            inner: random.one_in(3).then_some(inner),
        }
    };
    (0..8).map(&mut one).collect()
}

/// A policy that nobody would write.
fn odd_policy(random: &mut Random) -> Policy {
    let content = |random: &mut Random| match random.below(6) {
        0 => Content::Packet,
        1 => Content::PacketEnd,
        2 => Content::PacketMeta,
        3 => Content::Buffer { bytes: random.edge() as u32 },
        4 => Content::Object { id: random.edge() as u32, nullable: random.one_in(2), trusted: random.one_in(2) },
        _ => Content::Number,
    };
    let field = |random: &mut Random| {
        let start = if random.one_in(8) { random.edge() as u32 } else { random.below(64) as u32 };
        let length = if random.one_in(8) { random.edge() as u32 } else { random.below(64) as u32 };
        let sizes = match random.below(3) {
            0 => Sizes::Any,
            1 => Sizes::Only(random.below(9) as u32),
            _ => Sizes::Fields(random.below(9) as u32),
        };
        let at = start..start.saturating_add(length);
        Field { at, sizes, write: random.one_in(2), content: content(random) }
    };
    let kind = random.below(40) as u32;
    let low = random.edge() as i64;
    Policy {
        context: Context::new((0..random.below(12)).map(|_| field(random)).collect()),
        helpers: if random.one_in(2) { (0..300).collect() } else { BTreeSet::from([random.below(220) as u32]) },
        packet_writes: random.one_in(2),
        legacy_packet_loads: random.one_in(2),
        result: random.one_in(2).then(|| low..low.saturating_add(1 + random.below(1 << 32) as i64)),
        processed_max: random.below(PROCESSED_RANDOM),
        ..Policy::kernel(kind)
    }
}

/// A program's surroundings, as they are or odd.
fn surrounded(insns: Vec<Insn>, kind: u32, maps: Vec<MapShape>, random: &mut Random) -> Subject {
    let prog_type = if random.one_in(4) { random.below(40) as u32 } else { kind };
    let policy = if random.one_in(4) { odd_policy(random) } else { Policy::kernel(prog_type) };
    let processed_max = policy.processed_max.min(PROCESSED_RANDOM);
    let words = ["", "int x;", "\u{fc}\u{1f600}\n", "  ; \0"];
    Subject {
        insns,
        prog_type,
        maps: if random.one_in(3) { odd_maps(random) } else { maps },
        policy: Policy { processed_max, ..policy },
        log_level: random.below(16) as u32,
        lines: (0..random.below(6))
            .map(|_| Line { insn: random.below(40) as u32, text: random.of(&words).to_owned() })
            .collect(),
        constant: random.one_in(2).then(|| vec![random.next() as u8; random.below(64) as usize]),
        sleepable: random.one_in(2),
        cpus: if random.one_in(4) { random.edge() as u32 } else { 2 },
    }
}

#[test]
fn random_bytes_get_an_answer() {
    for_inputs(|random| {
        let insns = damage::noise(random);
        surrounded(insns, prog_type::XDP, usual_maps(), random)
    });
}

#[test]
fn damaged_random_programs_get_an_answer() {
    for_inputs(|random| {
        let mut program = ring3_generate::program(SEED_USUAL, random.below(1 << 20));
        (0..random.below(4)).for_each(|_| damage::damage(&mut program.insns, random));
        surrounded(program.insns, program.prog_type, usual_maps(), random)
    });
}

#[test]
fn damaged_case_files_get_an_answer() {
    let mut cases = vec![];
    for file in case_file::files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")) {
        let text = std::fs::read_to_string(&file).expect("read");
        cases.extend(case_file::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    }
    for_inputs(|random| {
        let case = &cases[random.below(cases.len() as u64) as usize];
        let mut insns = case.insns.clone();
        (0..random.below(4)).for_each(|_| damage::damage(&mut insns, random));
        let maps = (0..).zip(&case.maps).map(|(slot, map)| MapShape {
            slot,
            key_size: map.key,
            value_size: map.value,
            max_entries: map.entries,
            map_flags: map.flags,
            lock: map.lock,
            ..shape(map.map_type)
        });
        surrounded(insns, case.prog_type, maps.collect(), random)
    });
}

#[test]
fn no_program_and_too_large_a_program_are_refused() {
    assert!(judged(&Subject::new(vec![])).refusal.is_some());
    let insns = vec![Insn::new(0xb7, 0, 0, 0, 0); INSNS_MAX + 1];
    assert_eq!(judged(&Subject::new(insns)).processed, 0);
}

#[test]
fn huge_programs_get_an_answer() {
    let whole = number_of("RING3_HUGE").is_some();
    let size = if whole { INSNS_MAX - 100 } else { 10_000 };
    let only = std::env::var("RING3_ONLY").unwrap_or_default();
    for (what, mut subject) in huge::all(size) {
        if !what.contains(&only) {
            continue;
        }
        // Comparing what is known of so many names takes long.
        let usual = if what.contains("names") { 500 } else { 10_000 };
        subject.policy.processed_max =
            number_of("RING3_PROCESSED").unwrap_or(if whole { PROCESSED_MAX } else { usual });
        let told = Told(what.to_owned());
        let Cost { processed, states, bytes, msec, refusal } = judged(&subject);
        drop(told);
        println!(
            "{what:56} {:>8} insns {processed:>8} processed {states:>7} states {msec:>7} ms {:>9} KiB: {}",
            subject.insns.len(),
            bytes >> 10,
            refusal.as_deref().unwrap_or("accepted")
        );
    }
}

#[test]
fn more_ways_than_may_be_open_are_refused() {
    let branch = [Insn::new(0x85, 0, 0, 0, 7), Insn::new(0x15, 0, 0, 0, 1)];
    let end = [Insn::new(0xb7, 0, 0, 0, 0), Insn::new(0x95, 0, 0, 0, 0)];
    let program = |count: usize| branch.iter().cycle().take(count * 2).chain(&end).copied().collect();
    assert_eq!(judged(&Subject::new(program(8192))).refusal, None);
    let refusal = judged(&Subject::new(program(8193))).refusal.unwrap_or_default();
    assert!(refusal.contains("The sequence of 8192 jumps is too complex."), "{refusal}");
}
