//! `ring3 load --budget`: programs that take longer are switched off where they do, others are left alone, and all of it is said.

use std::process::Command;

use ring3_tests::{Bench, Process, programs, ready, shapes};

/// More than it takes to be switched off, and less than would take long if nothing were.
const CALLS: u64 = 1000;
/// See `OVERRUNS_MAX` in `pure/layout/src/thread.rs`.
const OVERRUNS: u64 = 100;

/// A tool with these options, and what it counts: runs of the slow program, of the quick one, and of the slow one at system calls.
fn tool(bench: &Bench, options: &[&str], place: &[&str]) -> Process {
    let mut command = bench.ring3_command(&[&["load", "--only-targets"], options, &["--"]].concat());
    let mut tool = Process::start(command.arg(programs().join("slow")).arg(shapes()).args(place));
    assert_eq!(tool.line(), "attached");
    tool
}

fn runs(tool: &mut Process) -> [u64; 3] {
    tool.say("runs");
    let line = tool.line();
    let counts: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    counts.try_into().expect("three numbers")
}

/// A target that calls `getppid` and a probed function so often.
fn call(bench: &Bench) -> Process {
    let mut victim = ready(bench.target(shapes()).args(["parents", &CALLS.to_string()]));
    victim.say("go");
    assert_eq!(victim.line(), CALLS.to_string());
    victim
}

fn target_status(bench: &Bench, pid: u32) -> serde_json::Value {
    let status = bench.status();
    status["targets"].as_array().expect("targets").iter().find(|target| target["pid"] == pid).expect("it").clone()
}

#[test]
fn programs_that_overrun_are_switched_off_where_they_do_and_others_are_not() {
    for place in [&["plain"][..], &["plain", "return"]] {
        let bench = Bench::ring3();
        let mut tool = tool(&bench, &["--budget", "20us"], place);
        let victim = call(&bench);
        let [slow, quick, calls] = runs(&mut tool);
        assert!((OVERRUNS..CALLS).contains(&slow), "{slow}");
        assert!((OVERRUNS..CALLS).contains(&calls), "{calls}");
        assert_eq!(quick, CALLS);
        let status = target_status(&bench, victim.pid());
        let rows = status["overruns"].as_array().expect("rows").clone();
        let over: Vec<u64> = rows.iter().filter_map(|row| row["runs"].as_u64()).filter(|n| *n >= OVERRUNS).collect();
        assert_eq!(over.len(), 2, "{rows:?}");
        let off = |reason: &&serde_json::Value| reason[1].as_str().is_some_and(|why| why.contains("switched off"));
        assert_eq!(status["refused"].as_array().expect("reasons").iter().filter(off).count(), 2, "{status}");
        let (code, text, _) = bench.run(&["status"]);
        assert_eq!((code, text.matches("runs over its budget, at most").count()), (Some(0), rows.len()), "{text}");

        // In another process it runs, until it is too slow there.
        let _other = call(&bench);
        let [again, quick_again, _] = runs(&mut tool);
        assert!((slow + OVERRUNS..slow + CALLS).contains(&again), "{again}");
        assert_eq!(quick_again, 2 * CALLS);

        let (code, _, said) = tool.finish();
        assert_eq!(code, Some(0));
        let of_victim = format!("process {} (shapes): program ", victim.pid());
        let lines: Vec<&String> = said.iter().filter(|line| line.contains(&of_victim)).collect();
        assert_eq!(lines.len(), 2, "{said:?}");
        assert!(lines.iter().all(|line| line.contains("took longer than its budget of 20")), "{said:?}");
        assert!(!said.iter().any(|line| line.contains("quick")), "{said:?}");
        assert_eq!(victim.finish().0, Some(0));
    }
}

#[test]
fn a_tool_without_a_budget_runs_what_another_may_not() {
    let bench = Bench::ring3();
    let (mut bound, mut free) = (tool(&bench, &["--budget", "20us"], &["plain"]), tool(&bench, &[], &["plain"]));
    let _victim = call(&bench);
    let ([slow, ..], [all, ..]) = (runs(&mut bound), runs(&mut free));
    assert!((OVERRUNS..CALLS).contains(&slow), "{slow}");
    assert_eq!(all, CALLS);
}

#[test]
fn children_begin_without_what_was_switched_off() {
    let bench = Bench::ring3();
    let mut tool = tool(&bench, &["--budget", "20us"], &["plain"]);
    let mut victim = ready(bench.target(shapes()).args(["family", &CALLS.to_string()]));
    victim.say("go");
    assert_eq!(victim.line(), "parent");
    let [slow, quick, calls] = runs(&mut tool);
    assert!((OVERRUNS..CALLS).contains(&slow) && (OVERRUNS..CALLS).contains(&calls), "{slow} {calls}");
    victim.say("fork");
    assert_eq!(victim.line(), "7");
    assert_eq!((quick, runs(&mut tool)), (CALLS, [slow, 2 * CALLS, calls]));
}

#[test]
fn programs_within_their_budget_are_left_alone() {
    let bench = Bench::ring3();
    let mut tool = tool(&bench, &["--budget", "10s"], &["plain"]);
    let victim = call(&bench);
    assert_eq!(runs(&mut tool), [CALLS; 3]);
    let status = target_status(&bench, victim.pid());
    assert_eq!(status["overruns"].as_array().map(Vec::len), Some(0), "{status}");
    assert_eq!(tool.finish().2, [""; 0]);
}

#[test]
fn budgets_that_are_none_are_refused() {
    for wrong in
        ["10", "us", "0us", "-1us", "1.5ms", "10 us", "10min", "99999999999999999999ns", "99999999999999999s", ""]
    {
        let mut command = Command::new(ring3_tests::ring3());
        let output =
            command.arg("load").arg(format!("--budget={wrong}")).args(["--", "true"]).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("a unit (ns, us, ms, s): 10us"), "{wrong}: {said}");
    }
}
