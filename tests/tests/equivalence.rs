//! Probes on random instructions of random functions: what a function does is the same with and without them.
//!
//! `random_code/write.rs` writes functions with awkward branches, calls, faults and live flags. The victim calls each with
//! random registers and prints a hash of what it can see: registers, flags, memory, and signals with their registers. Alone it
//! must print the same as under ring3 with probes at random instructions and returns. The probes must count what single steps
//! count.
//!
//! If something differs, the test looks for the fewest probes that still show it, and prints the function, the probes with their
//! tactics, and what differs first. `cargo xtask equivalence` runs more functions; `--seed S` with the number of functions repeats
//! a batch.

mod random_code;

use std::collections::BTreeMap;
use std::time::Instant;

use random_code::batch::{Batch, FUNCTIONS_OF_A_BATCH, Tally};
use ring3_tests::Bench;

/// Functions of the usual test.
const FUNCTIONS_USUAL: u64 = 800;

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Why probes were refused, without names and numbers.
fn refusals(bench: &Bench) -> BTreeMap<String, u64> {
    let log = std::fs::read_to_string(bench.directory().join("server.log")).unwrap_or_default();
    let mut found = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains(" refused with ")) {
        let why = line.rsplit(": ").next().unwrap_or(line);
        let words = why.split(' ').map(|word| if word.contains("0x") { "ADDRESS" } else { word });
        *found.entry(words.collect::<Vec<_>>().join(" ")).or_default() += 1;
    }
    found
}

#[test]
fn random_functions_do_the_same_under_probes() {
    let functions = variable("RING3_EQUIVALENCE_FUNCTIONS", FUNCTIONS_USUAL);
    let first = variable("RING3_EQUIVALENCE_SEED", 1);
    let bench = Bench::ring3();
    let begin = Instant::now();
    let mut tally = Tally::default();
    let batches = functions.div_ceil(FUNCTIONS_OF_A_BATCH).max(2);
    for seed in first..first + batches {
        let batch = Batch::build(seed, functions.div_ceil(batches) as u32);
        let before = tally.findings.len();
        batch.run(&bench, &mut tally);
        for finding in &tally.findings[before..] {
            println!("--seed {seed}: {finding}");
        }
        // (What shows something may be looked at.)
        if tally.findings.len() == before {
            batch.remove();
        }
        if (seed - first + 1).is_multiple_of(20) {
            println!("{:.0} s: {tally}", begin.elapsed().as_secs_f64());
        }
    }
    println!("{:.0} s: {tally}", begin.elapsed().as_secs_f64());
    for (why, count) in refusals(&bench) {
        println!("  refused: {why}: {count}");
    }
    drop(bench);
    assert!(tally.findings.is_empty(), "{} findings", tally.findings.len());
    assert!(tally.hits > 0, "no probe was hit");
}
