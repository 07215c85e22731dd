//! Targets of different users of one server: none learns or changes what those of others have recorded.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ring3_tests::{Bench, Process, is_root, programs, ready, victim, wait_until};

const NOBODY: u32 = 65_534;
const SECRET: &str = "Xq7-of-root-Zk4Wv";
const OTHER: &str = "Jp3-of-nobody-Ty8B";

fn spy() -> PathBuf {
    victim("spy", "gcc", "spy.c", &[])
}

fn lacks_root() -> bool {
    if !is_root() {
        println!("SKIPPED: targets of several users need root");
    }
    !is_root()
}

/// A target of root's.
fn of_root(bench: &Bench) -> Process {
    ready(&mut bench.target(spy()))
}

/// A target of another user's.
fn of_nobody(bench: &Bench) -> Process {
    let mut command = bench.target("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]).arg(spy());
    ready(&mut command)
}

fn backwards(text: &str) -> String {
    text.chars().rev().collect()
}

/// The first word of an answer.
fn asked(process: &mut Process, line: &str) -> String {
    process.say(line);
    process.line().split(' ').next().expect("a word").to_owned()
}

fn tell(process: &mut Process, text: &str) {
    assert_eq!(asked(process, &format!("tell {text}")), "told");
}

/// What a tool has recorded, told by kinds of maps.
struct Tool {
    process: Process,
}

impl Tool {
    fn start(bench: &Bench, options: &[&str]) -> Tool {
        let mut command = bench.ring3_command(&[&["load", "--only-targets"], options, &["--"]].concat());
        let mut process = Process::start(command.arg(programs().join("secrets")).arg(spy()));
        assert_eq!(process.line(), "attached");
        Tool { process }
    }

    fn report(&mut self, line: &str) -> BTreeMap<String, Vec<String>> {
        self.process.say(line);
        let mut report: BTreeMap<String, Vec<String>> = BTreeMap::new();
        loop {
            let line = self.process.line();
            if line == "end" {
                return report;
            }
            let (kind, rest) = line.split_once(' ').expect("a kind");
            report.entry(kind.to_owned()).or_default().push(rest.to_owned());
        }
    }
}

/// The kinds of maps that keep records by process.
const RECORDS: [&str; 5] = ["hash", "lru", "cpu_hash", "ring", "perf"];

#[test]
fn a_target_neither_learns_nor_changes_what_another_users_target_recorded() {
    if lacks_root() {
        return;
    }
    let bench = Bench::ring3();
    let mut tool = Tool::start(&bench, &[]);
    let (mut mine, mut theirs) = (of_root(&bench), of_nobody(&bench));
    tell(&mut mine, SECRET);
    tell(&mut theirs, OTHER);
    let record =
        |process: &Process, uid: u32, text: &str, calls: u32| format!("{} {uid} {text} {calls}", process.pid());
    let mut read = BTreeMap::new();
    wait_until("both targets' calls are told", || {
        for (kind, lines) in tool.report("") {
            let of_kind: &mut Vec<String> = read.entry(kind.clone()).or_default();
            if !matches!(&kind[..], "ring" | "perf") {
                of_kind.clear();
            }
            of_kind.extend(lines);
        }
        RECORDS.iter().all(|kind| read.get(*kind).is_some_and(|lines| lines.len() == 2)) && read["total"] == ["2"]
    });
    for kind in RECORDS {
        let mut lines = read[kind].clone();
        lines.sort();
        let mut expected = [record(&mine, 0, SECRET, 1), record(&theirs, NOBODY, OTHER, 1)];
        expected.sort();
        assert_eq!(lines, expected, "{kind}");
    }
    for kind in ["count", "cpu_count", "total"] {
        assert_eq!(read[kind], ["2"], "{kind}");
    }
    assert_eq!(read["stack"].len(), 2);
    // Root's target shares with others what it has recorded, and with the server.
    assert_ne!(asked(&mut mine, &format!("find {}", backwards(SECRET))), "0");
    assert_eq!(
        asked(&mut theirs, &format!("find {}", backwards(SECRET))),
        "0",
        "it sees what root's target recorded"
    );
    assert_ne!(asked(&mut theirs, &format!("find {}", backwards(OTHER))), "0", "it finds its own");
    for seed in 1..=4u32 {
        assert_eq!(asked(&mut theirs, &format!("spoil {seed}")), "0", "what it may only read became writable");
        tell(&mut mine, SECRET);
        let report = tool.report("");
        let own = |kind: &str| -> Vec<String> {
            let own = format!("{} ", mine.pid());
            report.get(kind).into_iter().flatten().filter(|line| line.starts_with(&own)).cloned().collect()
        };
        for kind in ["hash", "lru"] {
            assert_eq!(own(kind), [record(&mine, 0, SECRET, seed + 1)], "{kind}");
        }
        // (It may have run on several CPUs.)
        let all: Vec<String> = (1..=seed + 1).map(|calls| record(&mine, 0, SECRET, calls)).collect();
        let by_cpu = own("cpu_hash");
        assert!(by_cpu.contains(&all[seed as usize]) && by_cpu.iter().all(|line| all.contains(line)), "{by_cpu:?}");
        assert_eq!(own("array"), [record(&mine, 0, SECRET, 1)]);
        for kind in ["ring", "perf"] {
            assert_eq!(own(kind), [record(&mine, 0, SECRET, seed + 1)], "{kind}");
        }
    }
    let mut traced = Process::start(&mut bench.ring3_command(&["status", "--trace"]));
    for _ in 0..5 {
        let line = std::iter::from_fn(|| Some(traced.line())).find(|line| line.contains(SECRET)).expect("a line");
        assert!(line.contains(&format!("-{}", mine.pid())), "{line}");
    }
}

#[test]
fn what_the_loader_stores_and_deletes_holds_for_targets_of_all_users() {
    if lacks_root() {
        return;
    }
    let bench = Bench::ring3();
    let mut tool = Tool::start(&bench, &[]);
    let (mut mine, mut theirs) = (of_root(&bench), of_nobody(&bench));
    let count = |report: &BTreeMap<String, Vec<String>>| report["count"][0].clone();
    for process in [&mut mine, &mut theirs] {
        tell(process, "before");
    }
    let report = tool.report("");
    assert_eq!((count(&report), report["hash"].len()), ("2".to_owned(), 2));
    let cleared = tool.report("clear");
    assert_eq!(count(&cleared), "0");
    assert_eq!(cleared.get("hash"), None);
    for process in [&mut mine, &mut theirs] {
        tell(process, "after");
    }
    tell(&mut mine, "after");
    let report = tool.report("");
    assert_eq!((count(&report), report["hash"].len()), ("3".to_owned(), 2));
    assert_eq!(count(&tool.report("off")), "3");
    for process in [&mut mine, &mut theirs] {
        tell(process, "off");
    }
    let report = tool.report("");
    assert_eq!((count(&report), report["hash"].len()), ("3".to_owned(), 2));
    assert!(report["hash"].iter().all(|line| line.contains(" after ")), "{report:?}");
    // One that comes later is told, too.
    let mut late = of_nobody(&bench);
    tell(&mut late, "late");
    assert_eq!(count(&tool.report("")), "3");
}

#[test]
fn who_becomes_another_user_without_execve_loses_sight_of_what_others_recorded() {
    if lacks_root() {
        return;
    }
    let bench = Bench::ring3();
    let mut tool = Tool::start(&bench, &[]);
    let (mut mine, mut dropping) = (of_root(&bench), of_root(&bench));
    tell(&mut mine, SECRET);
    assert_ne!(asked(&mut dropping, &format!("find {}", backwards(SECRET))), "0", "it may trace the other one");
    assert_eq!(asked(&mut dropping, "drop"), "dropped");
    let pid = dropping.pid();
    wait_until("the server sees whose it is", || {
        let targets = bench.status()["targets"].as_array().cloned().unwrap_or_default();
        targets.iter().any(|target| target["pid"] == pid && target["user"].as_str().is_some())
    });
    assert_eq!(asked(&mut dropping, &format!("find {}", backwards(SECRET))), "0");
    tell(&mut dropping, OTHER);
    assert_ne!(asked(&mut dropping, &format!("find {}", backwards(OTHER))), "0");
    let report = tool.report("");
    let expected = [format!("{} 0 {SECRET} 1", mine.pid()), format!("{pid} {NOBODY} {OTHER} 1")];
    assert!(expected.iter().all(|line| report["hash"].contains(line)), "{report:?}");
}

#[test]
fn maps_are_shared_by_targets_of_all_users_if_the_loader_is_told_to_trust_them() {
    if lacks_root() {
        return;
    }
    let bench = Bench::ring3();
    let mut tool = Tool::start(&bench, &["--trust"]);
    let (mut mine, mut theirs) = (of_root(&bench), of_nobody(&bench));
    tell(&mut mine, SECRET);
    tell(&mut theirs, OTHER);
    assert_ne!(asked(&mut theirs, &format!("find {}", backwards(SECRET))), "0");
    assert_eq!(tool.report("")["hash"].len(), 2);
    let targets = bench.status()["targets"].as_array().cloned().expect("targets");
    assert_eq!(targets.iter().filter(|target| target["user"] == "user 65534").count(), 1, "{targets:?}");
}

#[test]
fn a_program_that_needs_one_map_for_all_users_is_refused_in_targets_of_others_and_this_is_said() {
    if lacks_root() {
        return;
    }
    let bench = Bench::ring3();
    let helped = programs().join("helped");
    let mut tool = Process::start(bench.load(programs().join("helpers")).arg(&helped));
    assert_eq!(tool.line(), "attached");
    let mut command = bench.target("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]).arg(&helped);
    let theirs = Process::start(&mut command);
    let pid = theirs.pid();
    wait_until("the status says why", || {
        let targets = bench.status()["targets"].as_array().cloned().unwrap_or_default();
        let target = targets.into_iter().find(|target| target["pid"] == pid).unwrap_or_default();
        let reasons = target["refused"].as_array().cloned().unwrap_or_default();
        reasons.iter().any(|reason| reason.to_string().contains("`ring3 load --trust` lets them"))
    });
}
