//! Maps and ring buffers of targets that are killed inside programs, and sums under more threads than CPUs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use ring3_tests::{Bench, Process, is_root, programs, ready, victim, wait_until};
use rustix::process::Signal;

fn stormy() -> PathBuf {
    victim("stormy", "gcc", "stormy.c", &[])
}

/// What the tool tells: records received and submitted by process, and the three sums.
struct Report {
    records: BTreeMap<u32, (u64, u64)>,
    sums: Vec<u64>,
}

impl Report {
    fn of(tool: &mut Process) -> Report {
        tool.say("");
        let mut report = Report { records: BTreeMap::new(), sums: vec![] };
        loop {
            let line = tool.line();
            let numbers = |text: &str| text.split(' ').map(|n| n.parse().expect("a number")).collect::<Vec<u64>>();
            if line == "end" {
                return report;
            } else if let Some(sums) = line.strip_prefix("sums ") {
                report.sums = numbers(sums);
            } else {
                let [pid, received, submitted] = numbers(&line)[..] else { panic!("{line}") };
                report.records.insert(pid as u32, (received, submitted));
            }
        }
    }

    fn received(&self, pid: u32) -> u64 {
        self.records.get(&pid).map_or(0, |(received, _)| *received)
    }
}

fn attached(bench: &Bench) -> Process {
    let mut tool = Process::start(bench.load(programs().join("storm")).arg(stormy()));
    assert_eq!(tool.line(), "attached");
    tool
}

/// Waits until more records of the survivor have arrived than the buffer holds: a consumer that never passed a dead
/// one's record would have read none of them.
fn goes_on(tool: &mut Process, survivor: &Process) {
    let before = Report::of(tool).received(survivor.pid());
    wait_until("the survivor's records arrive", || {
        Report::of(tool).received(survivor.pid()) > before + (1 << 18) / 24
    });
}

#[test]
fn a_consumer_goes_on_when_targets_are_killed_between_reserving_and_submitting() {
    let bench = Bench::ring3();
    let mut tool = attached(&bench);
    let mut survivor = ready(bench.target(stormy()).args(["hold", "1"]));
    for _ in 0..40 {
        let doomed = ready(bench.target(stormy()).args(["hold", "3"]));
        wait_until("the doomed one's records arrive", || Report::of(&mut tool).received(doomed.pid()) > 0);
        doomed.signal(Signal::KILL);
        // It is a zombie until it is dropped.
        goes_on(&mut tool, &survivor);
    }
    let pid = survivor.pid();
    survivor.say("");
    survivor.line();
    let report = Report::of(&mut tool);
    let (received, submitted) = report.records[&pid];
    assert_eq!(received, submitted, "records of the survivor");
    for (pid, (received, submitted)) in report.records {
        // A process that was killed may have submitted and not noted it, by thread.
        assert!(received >= submitted && received <= submitted + 3, "process {pid}: {received} of {submitted}");
    }
}

#[test]
fn a_hundred_million_additions_of_more_threads_than_cpus_are_all_there() {
    const CALLS: u64 = 12_500;
    const ADDITIONS: u64 = 1000;
    let bench = Bench::ring3();
    let mut tool = attached(&bench);
    let mut victim = ready(bench.target(stormy()).args(["count", "8", &CALLS.to_string()]));
    victim.say("go");
    assert_eq!(victim.line(), (8 * CALLS).to_string());
    assert_eq!(Report::of(&mut tool).sums, [8 * CALLS * ADDITIONS; 3]);
}

#[test]
fn additions_of_many_processes_with_many_threads_are_all_there() {
    const CALLS: u64 = 500;
    let bench = Bench::ring3();
    let mut tool = attached(&bench);
    let mut victims: Vec<Process> =
        (0..6).map(|_| ready(bench.target(stormy()).args(["count", "6", &CALLS.to_string()]))).collect();
    victims.iter_mut().for_each(|victim| victim.say("go"));
    victims.iter_mut().for_each(|victim| assert_eq!(victim.line(), (6 * CALLS).to_string()));
    assert_eq!(Report::of(&mut tool).sums, [36 * CALLS * 1000; 3]);
}

/// Half of the processes take their CPU's part of the map by restartable sequences, which the others' C library does not
/// register. Half of the threads take it very often, and the others lose their CPU while they have it.
#[test]
fn threads_with_and_without_restartable_sequences_lose_no_addition() {
    const CALLS: u64 = 2000;
    let bench = Bench::ring3();
    let mut tool = attached(&bench);
    let start = |tunables: &str| {
        let mut target = bench.target(stormy());
        ready(target.args(["mix", "4", &CALLS.to_string()]).env("GLIBC_TUNABLES", tunables))
    };
    let mut victims: Vec<Process> =
        (0..4).map(|number| start(if number % 2 == 0 { "" } else { "glibc.pthread.rseq=0" })).collect();
    victims.iter_mut().for_each(|victim| victim.say("go"));
    victims.iter_mut().for_each(|victim| assert_eq!(victim.line(), (4 * CALLS).to_string()));
    assert_eq!(Report::of(&mut tool).sums[1], 16 * CALLS * 1000);
}

#[test]
fn a_consumer_goes_on_when_a_target_of_another_pid_namespace_is_killed() {
    if !is_root() {
        println!("SKIPPED: making a pid namespace needs root");
        return;
    }
    let bench = Bench::ring3();
    let mut tool = attached(&bench);
    let mut survivor = ready(bench.target(stormy()).args(["hold", "1"]));
    for _ in 0..5 {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(stormy()).args(["hold", "2"]);
        let doomed = ready(&mut unshare);
        let children = format!("/proc/{0}/task/{0}/children", doomed.pid());
        let child = std::fs::read_to_string(children).expect("listed").trim().to_owned();
        assert_eq!(bench.run(&["attach", &child]).0, Some(0));
        // (In its own namespace it is process 1; programs see the server's.)
        let pid = child.parse().expect("a process id");
        wait_until("the doomed one's records arrive", || Report::of(&mut tool).received(pid) > 0);
        doomed.signal(Signal::KILL);
        goes_on(&mut tool, &survivor);
    }
    let pid = survivor.pid();
    survivor.say("");
    survivor.line();
    let (received, submitted) = Report::of(&mut tool).records[&pid];
    assert_eq!(received, submitted);
}
