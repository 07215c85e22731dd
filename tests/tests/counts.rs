//! Exactness at full speed, and the same for a user without any right.

use std::process::Command;

use ring3_tests::{Bench, Process, example, is_root, ready, shapes, victim};

const LIBC: &str = "libc.so.6";

#[test]
fn ten_million_calls_from_eight_threads_are_all_counted() {
    let bench = Bench::ring3();
    let probe = format!("{LIBC}:malloc");
    let mut victim = ready(Command::new(example("alloc")).args(["8", "1250000"]));
    let pid = victim.pid();
    let mut counter = bench.counting(&["-p", &pid.to_string(), &probe]);
    victim.say("go");
    assert_eq!(victim.line(), "10000000");
    assert_eq!(counter.report()[&(pid, probe)], 10_000_000);
}

#[test]
fn entries_and_returns_of_many_processes_are_counted_apart() {
    let bench = Bench::ring3();
    let probe = format!("{}:plain", shapes().display());
    let returns = format!("{probe}:ret");
    let mut counter = bench.counting(&[&probe, &returns]);
    let mut victims: Vec<(u32, Process)> = (1..=12)
        .map(|n| (n * 1000, ready(bench.target(shapes()).args(["plain", &(n * 1000).to_string()]))))
        .collect();
    for (_, victim) in &mut victims {
        victim.say("go");
    }
    for (calls, victim) in &mut victims {
        assert_eq!(victim.line(), calls.to_string());
    }
    let report = counter.report();
    assert_eq!(report.len(), 24, "{report:?}");
    for (calls, victim) in &victims {
        assert_eq!(report[&(victim.pid(), probe.clone())], u64::from(*calls));
        assert_eq!(report[&(victim.pid(), returns.clone())], u64::from(*calls));
    }
}

#[test]
fn threads_with_one_fs_base_and_their_own_gs_are_told_apart() {
    let options = ["-O1", "-static", "-nostdlib", "-fno-stack-protector", "-fcf-protection=none"];
    let threads = victim("own_gs", "gcc", "own_gs.c", &options);
    let probe = |place: &str| format!("{}:{place}", threads.display());
    let probes = ["inner", "inner:ret", "outer:ret"].map(probe);
    let bench = Bench::ring3();
    let mut counter = bench.counting(&[&probes[0], &probes[1], &probes[2]]);
    let (code, _, errors) = Process::start(&mut bench.target(&threads)).finish();
    assert_eq!(code, Some(0), "{errors:?}");
    let counted = [0, 1, 2].map(|probe: usize| counter.total(&probes[probe]));
    assert!(counted[0] > 20_000 && counted == [counted[0]; 3], "{counted:?}");
}

/// ring3 sees calls of munmap(2) for its own ends from the first program on.
#[test]
fn functions_of_calls_that_ring3_sees_for_its_own_ends_are_probed_after_others() {
    let unmaps = victim("unmaps", "gcc", "unmaps.c", &["-O1"]);
    let probes = ["mark", "unmap", "unmap:ret"].map(|place| format!("{}:{place}", unmaps.display()));
    let bench = Bench::ring3();
    let mut victim = ready(bench.target(&unmaps).arg("100"));
    let mut counter = bench.counting(&[&probes[0], &probes[1], &probes[2]]);
    victim.say("go");
    assert_eq!(victim.line(), "100");
    assert_eq!([0, 1, 2].map(|probe: usize| counter.total(&probes[probe])), [100; 3]);
    assert_eq!(victim.finish().0, Some(0));
}

/// A user without rights; for root one that nobody is, else the present one.
fn ordinary() -> Bench {
    if is_root() { Bench::ring3_as(54_321) } else { Bench::ring3() }
}

#[test]
fn an_ordinary_user_traces_what_he_starts() {
    let bench = ordinary();
    let probe = format!("{}:plain", shapes().display());
    let mut counter = bench.counting(&[&probe, &format!("{probe}:ret")]);
    let mut victim = ready(bench.target(shapes()).args(["plain", "5000"]));
    victim.say("go");
    assert_eq!(victim.line(), "5000");
    assert_eq!((counter.total(&probe), counter.total(&format!("{probe}:ret"))), (5000, 5000));
}

#[test]
fn an_ordinary_user_traces_his_running_process_by_pid() {
    let bench = ordinary();
    let mut victim = ready(bench.command(example("alloc")).args(["8", "100000"]));
    let probe = format!("{LIBC}:malloc");
    let pid = victim.pid();
    let mut counter = bench.counting(&["-p", &pid.to_string(), &probe]);
    victim.say("go");
    assert_eq!(victim.line(), "800000");
    assert_eq!(counter.report()[&(pid, probe)], 800_000);
    assert_eq!(bench.run(&["detach", &pid.to_string()]).0, Some(0));
}

#[test]
fn an_ordinary_user_runs_debians_tools() {
    let bench = ordinary();
    let mut tool = ring3_tests::Terminal::start(&bench.load("gethostlatency"));
    tool.wait_for("LATms");
    let output = bench.target("getent").args(["hosts", "localhost"]).output().expect("getent runs");
    assert!(output.status.success(), "{output:?}");
    tool.wait_for("localhost");
    tool.press("\x03");
    tool.finish();
}

#[test]
fn another_users_process_and_server_are_out_of_reach() {
    if !is_root() {
        println!("SKIPPED: making a process of another user needs root");
        return;
    }
    let (mine, other) = (Bench::ring3_as(54_321), Bench::ring3_as(54_322));
    let victim = ready(mine.command(example("alloc")).args(["1", "1"]));
    let pid = victim.pid().to_string();
    let (code, _, error) = other.run(&["attach", &pid]);
    assert_eq!(code, Some(1));
    assert!(error.contains("not permitted") || error.contains("may not"), "{error}");
    assert_eq!(mine.run(&["attach", &pid]).0, Some(0));
    // The other user's commands do not reach the server of the first one.
    let status =
        other.command(ring3_tests::ring3()).arg("status").env("RING3_RUNTIME_DIR", mine.directory()).output();
    let status = status.expect("ring3 runs");
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    assert_eq!(mine.run(&["detach", &pid]).0, Some(0));
}
