//! A target that scribbles over all that ring3 has mapped writable into it.

use std::path::PathBuf;

use ring3_tests::{Bench, ready, victim, wait_until};
use rustix::process::Signal;

fn hostile() -> PathBuf {
    victim("hostile", "gcc", "hostile.c", &[])
}

#[test]
fn a_target_that_scribbles_over_shared_memory_spoils_only_what_it_may_write() {
    let busy = victim("busy", "gcc", "busy.c", &[]);
    let bench = Bench::ring3();
    let probes = [format!("{}:work", hostile().display()), format!("{}:work", busy.display())];
    let mut healthy = ready(bench.target(&busy).arg("2"));
    let pid = healthy.pid();
    let mut own = bench.counting(&["-p", &pid.to_string(), &probes[1]]);
    let mut rounds = 0;
    for seed in 1..=8u64 {
        // Its map is in both targets, and programs use it in both; the other tool's is in the healthy one alone.
        let both = bench.counting(&[&probes[0], &probes[1]]);
        let mut bad = ready(&mut bench.target(hostile()));
        for round in 0..10 {
            bad.say(&format!("200000 {}", seed * 1000 + round));
            // It may fall over what it did to itself.
            let mappings: Option<u32> = bad.line_or_end().map(|line| line.parse().expect("a number"));
            assert_ne!(mappings, Some(0));
            let targets = bench.status()["targets"].as_array().map(Vec::len);
            assert!(targets == Some(2) || mappings.is_none(), "{targets:?}");
            let before = own.total(&probes[1]);
            wait_until("the healthy target's calls are counted", || own.total(&probes[1]) > before);
            if mappings.is_none() {
                break;
            }
            rounds += 1;
        }
        // Whether it can be left again or not: the answer comes.
        let _ = bench.run(&["detach", &bad.pid().to_string()]);
        bad.signal(Signal::KILL);
        bad.wait();
        // The loader of the spoiled map is ended, whatever it reads there.
        both.tool.signal(Signal::KILL);
        drop(both);
        wait_until("the hostile target is gone", || {
            bench.status()["targets"].as_array().is_some_and(|targets| targets.len() == 1)
        });
    }
    assert!(rounds > 0);
    let before = own.total(&probes[1]);
    wait_until("the healthy target's calls are counted", || own.total(&probes[1]) > before);
    healthy.say("");
    let line = healthy.line();
    assert_eq!(line.split(' ').nth(1), Some("0"), "{line}");
    let calls: u64 = line.split(' ').next().and_then(|calls| calls.parse().ok()).expect("calls");
    let counted = own.total(&probes[1]);
    assert!(counted <= calls && counted > 0, "{counted} of {calls}");
}
