//! Random programs do the same on every engine, and on the kernel.
//!
//! `RING3_SEED=S RING3_PROGRAMS=N` tries N programs of another seed, `RING3_PROGRAM=I` one alone.

#[path = "calls/raw_bpf.rs"]
mod raw_bpf;
#[path = "engine/raw_case.rs"]
mod raw_case;
#[path = "engine/write.rs"]
mod write;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ring3_generate::Random;
use ring3_isa::{Insn, listing};
use ring3_jit::Options;
use ring3_run::Runner;
use ring3_tests::is_root;

use raw_case::{BLINDING, Case, Compile, Kernel};

const PROGRAMS_USUAL: u64 = 3000;
const SEED_USUAL: u64 = 1;
/// `*(u64 *)(dst +off) = imm`
const FILL: u8 = 0x7a;
/// Programs of which one or more may meet a defect of the kernel.
const DEFECTS_RARE: u64 = 10_000;
/// Every so many programs have their constants hidden, too.
const HIDDEN_EVERY: u64 = 8;
/// Differences that are shown.
const SHOWN_MAX: usize = 3;

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// What is wrong with a program.
enum Difference {
    /// One of the verifiers refuses it.
    Refused(String),
    /// It leaves different things.
    Left(String),
    /// It leaves something else in the kernel.
    LeftByKernel(String),
}

/// Runs a program everywhere; whether it could be run, or what is different.
fn compare(
    case: &Case,
    runner: &mut Runner,
    compilers: &[(Compile, Options)],
    kernel: Option<&mut Kernel>,
) -> Result<bool, Difference> {
    let program = match case.verified() {
        Ok(program) => program,
        // Rounds of branches may be too many.
        Err(log) if log.contains("too large") || log.contains("too complex") => return Ok(false),
        Err(log) => return Err(Difference::Refused(format!("the verifier refuses it: {log}"))),
    };
    let interpreted = case.interpreted(&program);
    for (number, (compile, options)) in compilers.iter().enumerate() {
        let compiled = case.compiled(&program, runner, *compile, options);
        if interpreted != compiled {
            let by = format!("by compiler {number}, {options:?}");
            return Err(Difference::Left(format!("interpreted {interpreted:x?}\n{by}: {compiled:x?}")));
        }
    }
    let Some(kernel) = kernel else { return Ok(true) };
    match kernel.run(case) {
        Err(why) if why.contains("too large") || why.contains("E2BIG") => Ok(false),
        Err(why) => Err(Difference::Refused(format!("the kernel refuses it: {why}"))),
        Ok(native) if native.memory != interpreted.memory || native.result != interpreted.result & 0xffff_ffff => {
            Err(Difference::LeftByKernel(format!("kernel {native:x?}\ninterpreted {interpreted:x?}")))
        }
        Ok(_) => Ok(true),
    }
}

/// A defect of kernels, and a program that it does no harm to, for one that it does.
type Defect = (&'static str, fn(&[Insn]) -> Vec<Insn>);

/// What is known of kernel 6.18. Both come from paths that its verifier ends early (kernel/bpf/states.c): the rest of the
/// path does not tell what it wants of the state before.
const DEFECTS: [Defect; 2] = [
    // `mark_insn_zext` is not done for the end of the pruned path; compilers for x86 rely on it for `cmpxchg` alone.
    ("a 32-bit cmpxchg keeps the high half of r0", write::with_extensions),
    // `backtrack_insn` follows the register that an atomic operation fetches into, but not the stack slot it comes from.
    ("a number fetched from the stack is taken for the one of another path", write::without_fetches),
];

/// The defects of the kernel that a difference goes away without, if there are such.
fn known_defect(case: &Case, runner: &mut Runner, kernel: &mut Kernel) -> Option<&'static str> {
    let harmless = |(name, harmless): &Defect| {
        let changed = Case { insns: harmless(&case.insns), memory: case.memory.clone() };
        let agrees =
            changed.insns != case.insns && compare(&changed, runner, &[], Some(&mut *kernel)).is_ok_and(|ran| ran);
        agrees.then_some(*name)
    };
    DEFECTS.iter().find_map(harmless)
}

/// The program with all instructions left out, each in its turn, that do not matter for the difference, and what is
/// left then. What fills registers and the stack stays: addresses, and bytes that nobody wrote, differ by themselves.
fn shrink(mut case: Case, mut why: String, mut left: impl FnMut(&Case) -> Option<String>) -> (Case, String) {
    let mut at = write::FILL_INSNS;
    while let Some(insn) = case.insns.get(at) {
        let end = at + 1 + usize::from(insn.is_wide());
        let fills_stack = insn.opcode == FILL && insn.dst() == 10;
        let mut insns = case.insns.clone();
        insns[at..end].fill(write::NOTHING);
        let tried = Case { insns, memory: case.memory.clone() };
        if !fills_stack && let Some(still) = left(&tried) {
            (case, why) = (tried, still);
        }
        at = end;
    }
    (case, why)
}

#[test]
fn random_programs_do_the_same_on_every_engine() {
    let seed = number_of("RING3_SEED").unwrap_or(SEED_USUAL);
    let count = number_of("RING3_PROGRAMS").unwrap_or(PROGRAMS_USUAL);
    let range = number_of("RING3_PROGRAM").map_or(0..count, |alone| alone..alone + 1);
    if !is_root() {
        println!("SKIPPED IN PART: comparing with the kernel needs root");
    }
    let compilers = raw_case::compilers();
    let [plain, hidden] = BLINDING.map(|options| compilers.iter().map(move |compile| (*compile, options)));
    let plain: Vec<(Compile, Options)> = plain.collect();
    let both: Vec<(Compile, Options)> = plain.iter().copied().chain(hidden).collect();
    let (next, compared) = (AtomicU64::new(range.start), AtomicU64::new(0));
    let (differences, defects) = (Mutex::new(vec![]), Mutex::new(vec![]));
    let differ = |number: u64, case: Case, why: String| {
        differences.lock().expect("nobody panics with it").push((number, why, case.insns));
    };
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut runner = Runner::new(1).expect("this machine runs programs");
                let mut kernel = is_root().then(|| Kernel::new(write::MEMORY_BYTES));
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if !range.contains(&number) {
                        break;
                    }
                    let (insns, memory) = write::program(&mut Random::new(seed, number));
                    let case = Case { insns, memory };
                    if range.end - range.start == 1 {
                        // It may be one that ends the process.
                        eprintln!("{}", listing(&case.insns));
                    }
                    let ways = if number.is_multiple_of(HIDDEN_EVERY) { &both } else { &plain };
                    match compare(&case, &mut runner, ways, kernel.as_mut()) {
                        Ok(ran) => {
                            compared.fetch_add(u64::from(ran), Ordering::Relaxed);
                        }
                        Err(Difference::Refused(why)) => differ(number, case, why),
                        Err(Difference::Left(why)) => {
                            let (case, why) =
                                shrink(case, why, |tried| match compare(tried, &mut runner, ways, None) {
                                    Err(Difference::Left(why)) => Some(why),
                                    _ => None,
                                });
                            differ(number, case, why);
                        }
                        Err(Difference::LeftByKernel(why)) => {
                            let kernel = kernel.as_mut().expect("it has run");
                            if let Some(defect) = known_defect(&case, &mut runner, kernel) {
                                defects.lock().expect("nobody panics with it").push(defect);
                                continue;
                            }
                            let (case, why) =
                                shrink(case, why, |tried| match compare(tried, &mut runner, &[], Some(kernel)) {
                                    Err(Difference::LeftByKernel(why)) => Some(why),
                                    _ => None,
                                });
                            differ(number, case, why);
                        }
                    }
                }
            });
        }
    });
    let differences = differences.into_inner().expect("nobody panics with it");
    let (tried, compared) = (range.end - range.start, compared.into_inner());
    println!(
        "{tried} programs from RING3_SEED={seed} on, {compared} compared, {:.0} a second",
        tried as f64 / started.elapsed().as_secs_f64()
    );
    let defects = defects.into_inner().expect("nobody panics with it");
    for (name, _) in DEFECTS {
        println!("the kernel's defect, {name}: {}", defects.iter().filter(|defect| **defect == name).count());
    }
    for (number, why, insns) in differences.iter().take(SHOWN_MAX) {
        eprintln!("RING3_SEED={seed} RING3_PROGRAM={number}:\n{}{why}\n", listing(insns));
    }
    assert!(differences.is_empty(), "{} programs", differences.len());
    assert!(defects.len() as u64 <= 1 + tried / DEFECTS_RARE, "the kernel's defects are not so frequent");
    assert!(compared * 10 >= tried * 9, "too few programs were run");
}
