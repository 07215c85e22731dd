//! Probes nearer to each other than a jump is long: each counts, whatever else is there, comes or goes.

use std::collections::BTreeMap;

use ring3_tests::{Bench, Counter, Process, is_root, ready, victim, wait_until};

/// Where the victim's function has instructions, up to its last 5 bytes.
const OFFSETS: [u64; 6] = [0, 3, 6, 10, 11, 12];
/// Calls between two changes.
const CALLS: u64 = 10;

/// The victim, and where the function is in its file.
fn close() -> (std::path::PathBuf, u64) {
    const CODE: [u8; 10] = [0x48, 0x89, 0xf8, 0x48, 0x01, 0xf8, 0x48, 0x83, 0xc0, 7];
    let path = victim("close", "gcc", "close.c", &[]);
    let bytes = std::fs::read(&path).expect("readable");
    let at = bytes.windows(CODE.len()).position(|window| window == CODE).expect("the function");
    (path, at as u64)
}

/// Tools with a probe each, that come and go.
struct Tools<'b> {
    bench: &'b Bench,
    binary: std::path::PathBuf,
    function: u64,
    tools: BTreeMap<u64, (String, Counter, u64)>,
}

impl Tools<'_> {
    fn new(bench: &Bench) -> Tools<'_> {
        let (path, function) = close();
        Tools { bench, binary: bench.victim(path), function, tools: BTreeMap::new() }
    }

    /// The tool for an instruction comes, or goes if it is there.
    fn change(&mut self, offset: u64) {
        if let Some((_, counter, _)) = self.tools.remove(&offset) {
            let (code, _, errors) = counter.tool.finish();
            assert_eq!((code, errors), (Some(0), vec![]));
            return;
        }
        let probe = format!("{}:{:#x}", self.binary.display(), self.function + offset);
        let counter = self.bench.counting(&[&probe]);
        self.tools.insert(offset, (probe, counter, 0));
    }

    /// Each tool has counted so many calls more.
    fn check(&mut self, victim: &mut Process, history: &[u64]) {
        victim.say(&CALLS.to_string());
        assert_eq!(victim.line(), "0", "wrong results after {history:?}");
        for (offset, (probe, counter, before)) in &mut self.tools {
            let now = counter.total(probe);
            assert_eq!(now - *before, CALLS, "at {offset} after {history:?}");
            *before = now;
        }
    }
}

/// Has tools come and go in an order, with the same counts under ring3 and on the kernel.
fn change_all(bench: &Bench, order: &[u64]) {
    let mut tools = Tools::new(bench);
    let mut victim = ready(&mut bench.target(&tools.binary));
    for (round, offset) in order.iter().enumerate() {
        tools.change(*offset);
        tools.check(&mut victim, &order[..=round]);
    }
    assert_eq!(victim.finish().0, Some(0));
}

fn check(order: &[u64]) {
    change_all(&Bench::ring3(), order);
    if is_root() {
        change_all(&Bench::native(), order);
    } else {
        println!("SKIPPED IN PART: the native half needs root");
    }
}

#[test]
fn a_second_probe_within_a_jump_counts_and_goes_in_any_order() {
    check(&[0, 3, 0, 3]);
    check(&[0, 3, 3, 0]);
    check(&[3, 0, 0, 3]);
    check(&[3, 0, 3, 0]);
}

#[test]
fn probes_on_all_instructions_count_in_whatever_order_they_come() {
    let up: Vec<u64> = OFFSETS.into_iter().chain(OFFSETS).collect();
    let down: Vec<u64> = OFFSETS.into_iter().rev().chain(OFFSETS.into_iter().rev()).collect();
    check(&up);
    check(&down);
    check(&[6, 11, 3, 12, 0, 10, 3, 11, 6, 3, 0, 6, 11, 12, 10, 0, 3]);
}

#[test]
fn probes_within_jumps_come_and_go_while_threads_run_through_them() {
    let bench = Bench::ring3();
    let mut tools = Tools::new(&bench);
    let mut victim = ready(bench.target(&tools.binary).arg("3"));
    // (A fixed sequence of numbers without a pattern.)
    let mut number = 1u64;
    for _ in 0..60 {
        number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        tools.change(OFFSETS[(number >> 33) as usize % OFFSETS.len()]);
        victim.say("1");
        assert_eq!(victim.line(), "0", "wrong results");
    }
    for (offset, (probe, counter, _)) in &mut tools.tools {
        // (Where a thread was still in the code of another probe it is tried again.)
        wait_until(&format!("the probe at {offset} counts"), || counter.total(probe) > 0);
    }
    assert_eq!(victim.finish().0, Some(0));
}
