//! Damaged object files and damaged kernel types: whatever the loader makes of them, the verifier answers, in bounded
//! time, and says why.
//!
//! `RING3_SEED=S RING3_INPUTS=N` tries N inputs of another seed, `RING3_INPUT=I` one alone.

use std::rc::Rc;
use std::time::Instant;

use ring3_btf::Btf;
use ring3_generate::Random;
use ring3_isa::Insn;
use ring3_judge::{Judge, PolicySet};
use ring3_object::{Kernel, Object, Settings, embedded};
use ring3_tests::{libbpf_tools, programs};
use ring3_uapi::bpf::{attach_type, prog_type};
use ring3_verifier::{Content, Context, Field, Input, KernelTypes, Policy, Sizes, verify};

const TYPES: &str = "/sys/kernel/btf/vmlinux";
const SEED_USUAL: u64 = 1;
const OBJECTS_USUAL: u64 = 200;
const TYPES_USUAL: u64 = 5000;
/// Instructions that a program may take.
const PROCESSED_MAX: u64 = 20_000;

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// The inputs that are wanted, each with its random numbers.
fn inputs(usual: u64) -> impl Iterator<Item = (u64, Random)> {
    let seed = number_of("RING3_SEED").unwrap_or(SEED_USUAL);
    let alone = number_of("RING3_INPUT");
    let numbers = alone.map_or(0..number_of("RING3_INPUTS").unwrap_or(usual), |input| input..input + 1);
    numbers.map(move |input| (input, Random::new(seed, input)))
}

/// Says which input it was if something panics.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("RING3_INPUT={}", self.0);
        }
    }
}

/// Changes some bits, most of them near each other.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let around = random.below(bytes.len() as u64);
    for _ in 0..1 + random.below(8) {
        let at = if random.one_in(3) { random.below(bytes.len() as u64) } else { around + random.below(64) };
        let Some(byte) = bytes.get_mut(at as usize) else { continue };
        *byte = if random.one_in(2) { *byte ^ 1 << random.below(8) } else { random.edge() as u8 };
    }
    if random.one_in(16) {
        bytes.truncate(random.below(bytes.len() as u64) as usize + 1);
    }
}

/// Verifies, and asks for what is promised of any answer. Whether the program was accepted.
fn judged(input: &mut Input<'_>) -> bool {
    let processed_max = PROCESSED_MAX.min(input.policy.processed_max);
    input.policy.processed_max = processed_max;
    input.log_level = 2;
    match verify(input) {
        Ok(verified) => {
            assert!(verified.statistics().processed <= processed_max);
            true
        }
        Err(report) => {
            assert!(report.statistics.processed <= processed_max + 1);
            assert!(report.errno.0 > 0 && !report.message.is_empty() && report.log.contains(&report.message));
            false
        }
    }
}

/// The object files that there are, small ones first.
fn objects() -> Vec<Vec<u8>> {
    let own = std::fs::read_dir(programs()).into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        if path.extension()? == "o" { std::fs::read(path).ok() } else { None }
    });
    let tools = libbpf_tools();
    let tools = tools.iter().flat_map(|(_, bytes)| embedded(bytes).map(<[u8]>::to_vec));
    let mut objects: Vec<Vec<u8>> = own.chain(tools).collect();
    objects.sort_by_key(Vec::len);
    objects
}

#[test]
fn programs_of_damaged_object_files_get_an_answer() {
    let Ok(types) = std::fs::read(TYPES) else { return println!("SKIPPED: no {TYPES}") };
    let kernel = Kernel::parse(types).expect("the kernel's types");
    let policies = PolicySet::new(&kernel, 2);
    let settings = Settings::of_kernel("6.18.0", "");
    let objects = objects();
    assert!(!objects.is_empty(), "no object files");
    let (mut loaded, mut judged_programs, mut accepted, mut slowest) = (0, 0, 0, (0, 0));
    for (input, mut random) in inputs(OBJECTS_USUAL) {
        let mut bytes = objects[random.below(objects.len() as u64) as usize].clone();
        damage(&mut bytes, &mut random);
        let told = Told(input);
        let started = Instant::now();
        if let Ok(object) = Object::load(&bytes, &kernel, &settings) {
            loaded += 1;
            let judge = Judge::new(&policies, &object);
            for program in &object.programs {
                judged_programs += 1;
                accepted += u64::from(judge.ask(program, judge.policy(program), judged));
            }
        }
        slowest = slowest.max((started.elapsed().as_millis(), input));
        drop(told);
    }
    println!(
        "{} files; {loaded} damaged ones were read, with {judged_programs} programs, {accepted} accepted; the slowest \
         took {} ms (input {})",
        objects.len(),
        slowest.0,
        slowest.1
    );
    assert!(
        accepted > 0 && accepted < judged_programs,
        "damage makes some programs bad, and leaves some as they were"
    );
}

#[test]
fn programs_that_walk_damaged_types_get_an_answer() {
    let Ok(types) = std::fs::read(TYPES) else { return println!("SKIPPED: no {TYPES}") };
    let kernel = Kernel::parse(types).expect("the kernel's types");
    let load = |bytes: &Vec<u8>| Object::load(bytes, &kernel, &Settings::default()).ok()?.btf;
    let blobs: Vec<Vec<u8>> = objects().iter().filter_map(load).map(|types| types.bytes().to_vec()).take(3).collect();
    let (mut strict, mut parsed, mut accepted, mut slowest) = (0, 0, 0, (0, 0));
    for (input, mut random) in inputs(TYPES_USUAL) {
        let mut bytes = blobs[random.below(blobs.len() as u64) as usize].clone();
        // The header is checked first; most damage is behind it.
        let header = bytes[..24].to_vec();
        damage(&mut bytes, &mut random);
        if !random.one_in(8) && bytes.len() > 24 {
            bytes[..24].copy_from_slice(&header);
        }
        let told = Told(input);
        let started = Instant::now();
        // What a program's own types must be is more than what is asked of the kernel's.
        strict += u64::from(Btf::parse(bytes.clone()).is_ok());
        if let Ok(btf) = Btf::parse_any(bytes) {
            parsed += 1;
            let types = Rc::new(KernelTypes::new(btf));
            for _ in 0..20 {
                let id = random.below(300) as u32;
                let mut field = |at: u32| {
                    let id = if random.one_in(8) { random.edge() as u32 } else { random.below(300) as u32 };
                    let content = Content::Object { id, nullable: false, trusted: true };
                    Field { at: at * 8..at * 8 + 8, sizes: Sizes::Only(8), write: false, content }
                };
                let own = Context::new((0..4).map(&mut field).collect());
                let attach =
                    random.of(&[attach_type::TRACE_RAW_TP, attach_type::TRACE_FEXIT, attach_type::TRACE_ITER]);
                let context = types.context(prog_type::TRACING, attach, id).filter(|_| random.one_in(2));
                let mut insns = vec![Insn::new(0x79, 1, 1, random.below(4) as i16 * 8, 0)];
                for _ in 0..random.below(6) {
                    let opcode = random.of(&[0x61, 0x69, 0x71, 0x79, 0x79, 0x79, 0x79]);
                    let to = if random.one_in(3) { 2 } else { 1 };
                    insns.push(Insn::new(opcode, to, 1, random.below(40) as i16 * 4, 0));
                }
                if random.one_in(4) {
                    insns.extend([Insn::new(0x18, 3, 3, 0, id as i32), Insn::new(0, 0, 0, 0, 0)]);
                    insns.push(Insn::new(0x79, 4, 3, random.below(8) as i16 * 8, 0));
                }
                insns.extend([Insn::new(0xb7, 0, 0, 0, 0), Insn::new(0x95, 0, 0, 0, 0)]);
                let policy = Policy {
                    objects: Some(types.clone()),
                    context: context.unwrap_or(own),
                    ..Policy::kernel(prog_type::TRACING)
                };
                accepted += u64::from(judged(&mut Input {
                    insns: &insns,
                    prog_type: prog_type::TRACING,
                    gpl_compatible: true,
                    sleepable: true,
                    cpus: 2,
                    policy,
                    log_level: 0,
                    lines: vec![],
                    map_by_fd: &|_| None,
                    map_by_index: &|_| None,
                    constant_value: &|_| None,
                }));
            }
        }
        slowest = slowest.max((started.elapsed().as_millis(), input));
        drop(told);
    }
    println!(
        "{parsed} damaged types were read ({strict} as a program's own); {accepted} programs accepted; the slowest took \
         {} ms (input {})",
        slowest.0, slowest.1
    );
    assert!(strict > 0 && parsed >= strict && accepted > 0);
}
