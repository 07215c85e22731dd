//! Programs that fault: that run ends and is told, the process goes on as if nothing had been, and what the run held is free.

use ring3_tests::{Bench, Process, programs, ready, victim};

/// See `pure/layout/src/fault.rs`.
const FAULTS_MAX: u64 = 10;
/// The programs, in the order in which the tool counts them.
const PROGRAMS: [&str; 4] = ["record", "lock", "helper", "callback"];

struct Counts {
    began: Vec<u64>,
    ended: Vec<u64>,
    records: u64,
    sum: u64,
}

fn counts(tool: &mut Process) -> Counts {
    tool.say("counts");
    let line = tool.line();
    let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    let (began, rest) = numbers.split_at(4);
    let (ended, rest) = rest.split_at(4);
    Counts { began: began.to_vec(), ended: ended.to_vec(), records: rest[0], sum: rest[1] }
}

fn say(victim: &mut Process, word: &str) -> u64 {
    victim.say(word);
    let line = victim.line_or_end().unwrap_or_else(|| panic!("{word} ended it"));
    line.parse().expect("a number")
}

#[test]
fn runs_that_fault_are_ended_and_told_and_harm_nobody() {
    let bench = Bench::ring3();
    let binary = bench.victim(victim("taking", "gcc", "taking.c", &["-O1", "-pthread"]));
    let mut tool = Process::start(bench.load(programs().join("faulting")).arg(&binary).arg("probed"));
    assert_eq!(tool.line(), "attached");
    let mut victim = ready(&mut bench.target(&binary));
    assert_eq!(say(&mut victim, "5"), 5);
    let before = counts(&mut tool);
    assert_eq!((before.began, before.ended), (vec![5; 4], vec![5; 4]));

    assert!(say(&mut victim, "take") >= 2);
    assert_eq!(say(&mut victim, "3"), 3, "registers, results or ids were changed");
    let faulted = counts(&mut tool);
    assert_eq!((faulted.began, faulted.ended), (vec![8; 4], vec![5; 4]));
    assert_eq!((faulted.sum, faulted.records), (24, 5));

    // What those runs held is free, and nothing else is different.
    assert!(say(&mut victim, "give") >= 2);
    assert_eq!(say(&mut victim, "4"), 4);
    let after = counts(&mut tool);
    assert_eq!((after.began, after.ended, after.records), (vec![12; 4], vec![9; 4], 9));
    assert_eq!(say(&mut victim, "fault"), 1, "the process's own faults are its own");

    let status = bench.status();
    let rows = status["targets"][0]["faulted_runs"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in &rows {
        assert_eq!(row["runs"], 3, "{row}");
        let last = row["last"].as_str().expect("text");
        assert!(last.starts_with("SIGSEGV at 0x") && last.contains(", instruction "), "{last}");
        let is_in_helper = ["_helper,", "_lock,"].iter().any(|name| last.contains(name));
        assert_eq!(last.contains("bpf_map_update_elem, called by"), is_in_helper, "{last}");
    }

    // It may do so a few times, no more.
    assert!(say(&mut victim, "take") >= 2);
    assert_eq!(say(&mut victim, "100"), 100);
    let off = counts(&mut tool);
    assert_eq!((off.began, off.ended), (vec![12 + FAULTS_MAX - 3; 4], vec![9; 4]));
    assert_eq!(say(&mut victim, "fault"), 2);
    let (code, _, said) = tool.finish();
    assert_eq!(code, Some(0));
    for program in PROGRAMS {
        for what in
            ["has faulted, and that run of it was ended: SIGSEGV at", "is switched off: it has faulted 10 times"]
        {
            let lines = said.iter().filter(|line| line.contains(&format!("{program:?}")) && line.contains(what));
            assert_eq!(lines.count(), 1, "{program}: {said:?}");
        }
    }
    assert_eq!(victim.finish().0, Some(0));
}

/// The last fault that is let pass switches programs off while other threads wait for answers.
#[test]
fn threads_whose_runs_fault_together_all_go_on() {
    const ROUNDS: usize = 12;
    for _ in 0..ROUNDS {
        let bench = Bench::ring3();
        let binary = bench.victim(victim("taking", "gcc", "taking.c", &["-O1", "-pthread"]));
        let mut tool = Process::start(bench.load(programs().join("faulting")).arg(&binary).arg("probed"));
        assert_eq!(tool.line(), "attached");
        let mut victim = ready(&mut bench.target(&binary));
        assert!(say(&mut victim, "take") >= 2);
        assert_eq!(say(&mut victim, "threads"), 300);
        assert_eq!(victim.finish().0, Some(0));
    }
}
