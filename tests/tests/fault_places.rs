//! Faults of instructions that a probe has displaced: the process finds them where they are in its own code.

use std::path::Path;

use ring3_tests::{Bench, Process, example, ready, victim, wait_until};

/// Faults of each line.
const FAULTS: u64 = 4;

fn offset_of(binary: &Path, symbol: &str) -> u64 {
    let bytes = std::fs::read(binary).expect("the victim is readable");
    let elf = ring3_elf::File::parse(&bytes).expect("an ELF file");
    elf.vaddr_to_offset(elf.find(symbol).expect("it has the symbol")).expect("in the file")
}

/// Runs the victim with probes at these places: what it says of the second line.
fn run(bench: &Bench, places: &[(&str, u64)]) -> String {
    let binary = bench.victim(victim("places", "gcc", "places.c", &["-O1", "-no-pie"]));
    let place = |(symbol, distance): &(&str, u64)| offset_of(&binary, symbol) + distance;
    let names: Vec<String> = places.iter().map(|at| format!("{}:{:#x}", binary.display(), place(at))).collect();
    let mut tool = Process::start(bench.load(example("malloc")).args(&names));
    assert!(tool.line().starts_with("attached"));
    let mut process = ready(&mut bench.target(&binary));
    // (Other processes than those of Go may run for a moment until that is so.)
    wait_until("faults are handled", || is_ready(bench));
    let mut last = String::new();
    for _ in 0..2 {
        process.say("go");
        last = process.line_or_end().unwrap_or_else(|| panic!("it ended: {places:?}"));
    }
    assert_eq!(process.finish().0, Some(0));
    assert_eq!(tool.finish().0, Some(0));
    last
}

fn is_ready(bench: &Bench) -> bool {
    bench.status()["targets"][0]["reads"] == "directly"
}

#[test]
fn faults_are_found_where_they_are() {
    let expected = format!("{} 1", 2 * FAULTS);
    let entries = ["skipped", "opened", "late", "nested"].map(|name| (name, 0));
    let faulting = [("skipped", 5), ("opened", 1), ("late", 1), ("nested", 1)];
    for places in [&entries[..], &faulting[..], &[entries, faulting].concat()] {
        assert_eq!(run(&Bench::ring3(), places), expected, "{places:?}");
    }
}

/// A detach takes several stops, since threads are in handlers or in the agent all the time; some return from a handler in between.
#[test]
fn threads_that_fault_all_the_time_are_attached_and_left() {
    const ROUNDS: usize = 40;
    let bench = Bench::ring3();
    let binary = bench.victim(victim("barrier", "gcc", "barrier.c", &["-O1"]));
    let mut tool = Process::start(bench.load(example("malloc")).arg(format!("{}:store", binary.display())));
    assert!(tool.line().starts_with("attached"));
    let mut process = ready(&mut bench.command(&binary));
    let pid = process.pid().to_string();
    for round in 0..ROUNDS {
        for what in ["attach", "detach"] {
            let (code, _, error) = bench.run(&[what, &pid]);
            assert_eq!(code, Some(0), "{what} in round {round}: {error}");
        }
    }
    process.say("end");
    assert_eq!(process.line_or_end().as_deref(), Some("1"));
    assert_eq!(process.finish().0, Some(0));
}
