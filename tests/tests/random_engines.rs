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
use ring3_isa::listing;
use ring3_run::Runner;
use ring3_tests::is_root;

use raw_case::{Case, Kernel};

const PROGRAMS_USUAL: u64 = 3000;
const SEED_USUAL: u64 = 1;
/// Differences that are shown.
const SHOWN_MAX: usize = 3;

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Runs a program everywhere; what is different.
fn compare(case: &Case, runner: &mut Runner, kernel: Option<&mut Kernel>) -> Result<bool, String> {
    let program = match case.verified() {
        Ok(program) => program,
        // Rounds of branches may be too many.
        Err(log) if log.contains("too large") || log.contains("too complex") => return Ok(false),
        Err(log) => return Err(format!("the verifier refuses it: {log}")),
    };
    let interpreted = case.interpreted(&program);
    let compiled = case.compiled(&program, runner);
    if interpreted != compiled {
        return Err(format!("interpreted {interpreted:x?}\ncompiled {compiled:x?}"));
    }
    let Some(kernel) = kernel else { return Ok(true) };
    match kernel.run(case) {
        Err(why) if why.contains("too large") || why.contains("E2BIG") => Ok(false),
        Err(why) => Err(format!("the kernel refuses it: {why}")),
        Ok(native) if native.memory != compiled.memory || native.result != compiled.result & 0xffff_ffff => {
            Err(format!("kernel {native:x?}\ncompiled {compiled:x?}"))
        }
        Ok(_) => Ok(true),
    }
}

#[test]
fn random_programs_do_the_same_on_every_engine() {
    let seed = number_of("RING3_SEED").unwrap_or(SEED_USUAL);
    let count = number_of("RING3_PROGRAMS").unwrap_or(PROGRAMS_USUAL);
    let range = number_of("RING3_PROGRAM").map_or(0..count, |alone| alone..alone + 1);
    if !is_root() {
        println!("SKIPPED IN PART: comparing with the kernel needs root");
    }
    let (next, compared, differences) = (AtomicU64::new(range.start), AtomicU64::new(0), Mutex::new(vec![]));
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
                    match compare(&case, &mut runner, kernel.as_mut()) {
                        Ok(ran) => {
                            compared.fetch_add(u64::from(ran), Ordering::Relaxed);
                        }
                        Err(why) => {
                            differences.lock().expect("nobody panics with it").push((number, why, case.insns))
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
    for (number, why, insns) in differences.iter().take(SHOWN_MAX) {
        eprintln!("RING3_SEED={seed} RING3_PROGRAM={number}:\n{}{why}\n", listing(insns));
    }
    assert!(differences.is_empty(), "{} programs", differences.len());
    assert!(compared * 10 >= tried * 9, "too few programs were run");
}
