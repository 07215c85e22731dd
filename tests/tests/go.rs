//! Probes on functions in Go, whose stacks move, and whose run-time reads return addresses.

use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_tests::{Bench, Counter, Process, Terminal, go_victims, lacks, ready, wait_until};

/// The functions that the victim tells of, in that order.
const FUNCTIONS: [&str; 6] =
    ["main.deep", "main.fragile", "main.throwing", "main.yielding", "main.many", "main.cramped"];

fn victim() -> Option<PathBuf> {
    go_victims().map(|directory| directory.join("returning"))
}

/// Lets a victim work: how often it says that its functions returned, and how often a panic went through the third.
fn work(mut victim: Process) -> (Vec<u64>, u64) {
    victim.say("go");
    let line = victim.line_or_end().unwrap_or_default();
    let mut told: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let (code, _, errors) = victim.finish();
    assert_eq!((code, told.len()), (Some(0), FUNCTIONS.len() + 1), "{line} {errors:?}");
    let panics = told.remove(3);
    (told, panics)
}

fn probes(binary: &Path, kind: &str) -> Vec<String> {
    FUNCTIONS.iter().map(|function| format!("{}:{function}{kind}", binary.display())).collect()
}

fn counting(bench: &Bench, binary: &Path, kinds: &[&str]) -> Counter {
    let probes: Vec<String> = kinds.iter().flat_map(|kind| probes(binary, kind)).collect();
    bench.counting(&probes.iter().map(String::as_str).collect::<Vec<_>>())
}

fn counts(counter: &mut Counter, binary: &Path, kind: &str) -> Vec<u64> {
    probes(binary, kind).iter().map(|probe| counter.total(probe)).collect()
}

#[test]
fn returns_of_functions_in_go_are_counted_as_the_program_counts_them() {
    let Some(directory) = go_victims() else { return };
    for binary in ["returning", "returning-pie"].map(|name| directory.join(name)) {
        let bench = Bench::ring3();
        let mut counter = counting(&bench, &binary, &[":ret"]);
        let mut all = vec![0; FUNCTIONS.len()];
        for _ in 0..3 {
            let (told, _) = work(ready(&mut bench.target(&binary)));
            all.iter_mut().zip(told).for_each(|(sum, told)| *sum += told);
            assert_eq!(counts(&mut counter, &binary, ":ret"), all, "{}", binary.display());
        }
    }
}

#[test]
fn entries_and_returns_of_a_running_program_in_go_are_counted() {
    let Some(binary) = victim() else { return };
    let bench = Bench::ring3();
    let mut counter = counting(&bench, &binary, &[":ret", ""]);
    let running = ready(&mut Command::new(&binary));
    assert_eq!(bench.run(&["attach", &running.pid().to_string()]).0, Some(0));
    let (told, panics) = work(running);
    assert_eq!(counts(&mut counter, &binary, ":ret"), told);
    // A function whose stack grows is entered again.
    let entries = counts(&mut counter, &binary, "");
    assert!(entries.iter().zip(&told).all(|(entries, returns)| entries >= returns), "{entries:?} {told:?}");
    assert!(entries[2] >= told[2] + panics && entries[5] == told[5], "{entries:?} {told:?}");
}

#[test]
fn programs_in_go_are_attached_and_left_while_they_work() {
    let Some(binary) = victim() else { return };
    let bench = Bench::ring3();
    let mut counter = counting(&bench, &binary, &[":ret", ""]);
    for _ in 0..5 {
        let mut running = ready(&mut Command::new(&binary));
        let pid = running.pid().to_string();
        running.say("go");
        for _ in 0..20 {
            let (attached, _, _) = bench.run(&["attach", &pid]);
            let (left, _, _) = bench.run(&["detach", &pid]);
            // (It may have done its work.)
            if attached != Some(0) || left != Some(0) {
                break;
            }
        }
        let line = running.line_or_end().unwrap_or_default();
        let (code, _, errors) = running.finish();
        assert_eq!((code, line.split(' ').count()), (Some(0), FUNCTIONS.len() + 1), "{line} {errors:?}");
    }
    assert!(counts(&mut counter, &binary, ":ret").iter().any(|count| *count > 0));
}

/// Lets a victim work under a program of bpftrace's with this many probes; what that says at its end.
fn traced(binary: &Path, program: &str, probes: usize) -> Option<Vec<String>> {
    if lacks("bpftrace") {
        return None;
    }
    let bench = Bench::ring3();
    let mut tool = Terminal::start(bench.load("bpftrace").args(["-e", program]));
    tool.wait_for("Attaching");
    wait_until("the tool has attached", || {
        bench.status()["links"].as_array().is_some_and(|links| links.len() == probes)
    });
    work(ready(&mut bench.target(binary)));
    tool.interrupt_waiting();
    Some(tool.finish().1)
}

#[test]
fn programs_that_take_much_stack_leave_the_stacks_of_goroutines_alone() {
    let Some(binary) = victim() else { return };
    let program = format!(
        r#"uprobe:{0}:main.cramped, uretprobe:{0}:main.cramped {{ @stacks[ustack(20)] = count(); @said = str(reg("sp")); }}"#,
        binary.display()
    );
    let Some(lines) = traced(&binary, &program, 2) else { return };
    assert!(lines.iter().any(|line| line.starts_with("@stacks[")), "{lines:?}");
}

#[test]
fn programs_see_the_registers_behind_a_return_in_go() {
    let Some(binary) = victim() else { return };
    // Results are in these registers, in this order, or all the same; its only caller goes on, whose frame has one size.
    let program = format!(
        r#"uretprobe:{}:main.many {{
            @results[reg("bx") - reg("ax"), reg("cx") - reg("bx"), reg("di") - reg("cx"), reg("r11") - reg("r10")] = count();
            @goes_on[reg("ip")] = count();
            @frame[reg("bp") - reg("sp")] = count();
        }}"#,
        binary.display()
    );
    let Some(lines) = traced(&binary, &program, 1) else { return };
    let of = |map: &str| lines.iter().filter(|line| line.starts_with(map)).cloned().collect::<Vec<_>>();
    assert_eq!(of("@results"), ["@results[0, 0, 0, 0]: 340", "@results[1, 1, 1, 1]: 660"], "{lines:?}");
    assert!(matches!(&of("@goes_on")[..], [line] if line.ends_with(": 1000")), "{lines:?}");
    assert!(matches!(&of("@frame")[..], [line] if line.ends_with(": 1000")), "{lines:?}");
}
