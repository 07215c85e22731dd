//! `ring3 record` and `ring3 convert`: what the files have is what the program did.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_tests::{Bench, Process, is_root, victim, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

fn recorded() -> String {
    victim("recorded", "gcc", "recorded.c", &[]).to_str().expect("it is UTF-8").to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("it is UTF-8")
}

/// The lines of babeltrace2 for the victim's calls; it may not complain. Without it, ring3's own lines, and that is said.
fn lines(bench: &Bench, trace: &Path) -> Vec<String> {
    let output = Command::new("babeltrace2").arg(trace).output();
    let output = output.unwrap_or_else(|error| {
        println!("SKIPPED IN PART: babeltrace2 cannot be run ({error}): ring3 convert reads instead");
        bench.ring3_command(&["convert", text(trace), "--to", "script", "-o", "-"]).output().expect("ring3 runs")
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let lines = String::from_utf8_lossy(&output.stdout);
    lines.lines().filter(|line| line.contains("/nonexistent/")).map(str::to_owned).collect()
}

/// The lines are of calls with the numbers from 0, without a gap.
fn assert_numbered(lines: &[String]) {
    for (at, line) in lines.iter().enumerate() {
        assert!(line.contains(&format!("\"/nonexistent/{at}\"")), "line {at} is {line}");
    }
}

/// The objects of a trace, for the victim's calls.
fn objects(bench: &Bench, trace: &Path) -> Vec<Value> {
    let (code, out, errors) = bench.run(&["convert", text(trace), "--to", "json", "-o", "-"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let objects = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("it is JSON"));
    objects.filter(|object| object["fields"]["filename"].to_string().contains("/nonexistent/")).collect()
}

#[test]
fn babeltrace2_reads_the_calls_that_the_program_made() {
    let bench = Bench::ring3();
    let trace = bench.made_directory().join("trace");
    let (code, _, errors) = bench.run(&["record", "-e", "openat", "-o", text(&trace), "--", &recorded(), "5000"]);
    assert_eq!(code, Some(7), "the program's exit code: {errors}");
    assert!(errors.contains(" events (") && errors.contains(", 0 lost"), "{errors}");
    let lines = lines(&bench, &trace);
    assert_eq!(lines.len(), 5000);
    assert_numbered(&lines);
    for line in &lines {
        let fields = [
            "syscalls:openat",
            "dfd = -100",
            "container = 0x80041",
            "mode = 0640",
            "ret = -2",
            "comm = \"recorded\"",
        ];
        assert!(fields.iter().all(|field| line.contains(field)), "{line}");
    }
    let objects = objects(&bench, &trace);
    assert_eq!(objects.len(), 5000);
    for (at, object) in objects.iter().enumerate() {
        let mut fields = object["fields"].clone();
        assert!(fields["dur"].as_u64().is_some_and(|duration| duration > 0), "{object}");
        fields["dur"] = json!(1);
        let expected = json!({
            "dfd": "AT_FDCWD", "filename": format!("/nonexistent/{at}"), "flags": "O_WRONLY|O_CREAT|O_CLOEXEC", "mode": 0o640,
            "ret": -2, "dur": 1,
        });
        assert_eq!((&object["event"], &fields), (&json!("syscalls:openat"), &expected));
    }
}

#[test]
fn what_a_slow_recorder_loses_is_counted() {
    let bench = Bench::ring3();
    let trace = bench.made_directory().join("trace");
    let program = recorded();
    let options = ["record", "-e", "openat", "--buffer", "1", "-o", text(&trace), "--", &program, "100000"];
    let recorder = Process::start(&mut bench.ring3_command(&options));
    wait_until("records are in the file", || fs::exists(trace.join("stream_0_0000")).expect("it can be asked"));
    let child = child_of(recorder.pid());
    // As if it waited for the disk, until the program has ended.
    recorder.signal(Signal::STOP);
    let stat = || fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    wait_until("the program has ended", || stat().contains(") Z "));
    recorder.signal(Signal::CONT);
    let (code, _, errors) = recorder.finish();
    assert_eq!(code, Some(7), "{errors:?}");
    let said = errors.iter().find(|line| line.contains(" events (")).expect("it says how many");
    let lost: usize = said.split_whitespace().nth_back(1).and_then(|word| word.parse().ok()).expect("a number");
    assert!(lost > 1_000, "{errors:?}");
    assert!(errors.iter().any(|line| line.contains("a larger --buffer helps")), "{errors:?}");
    assert_eq!(objects(&bench, &trace).len() + lost, 100_000);
    let (_, out, _) = bench.run(&["convert", text(&trace), "--to", "script", "-o", "-"]);
    let noted = |line: &str| line.strip_prefix("LOST ")?.split(' ').next()?.parse::<usize>().ok();
    assert_eq!(out.lines().filter_map(noted).sum::<usize>(), lost);
}

#[test]
fn each_format_has_a_file() {
    let bench = Bench::ring3();
    let path = |name: &str| bench.made_directory().join(name);
    let record = |name: &str, format: &[&str]| {
        let path = path(name);
        let program = recorded();
        let options = [&["record", "-e", "openat", "-o", text(&path)], format, &["--", &program, "10"]].concat();
        let (code, _, errors) = bench.run(&options);
        assert_eq!(code, Some(7), "{errors}");
        fs::read(path).expect("it was written")
    };
    let count = |bytes: &[u8]| String::from_utf8_lossy(bytes).matches("/nonexistent/").count();
    assert_eq!(count(&record("a.json", &[])), 10);
    assert_eq!(count(&record("a.txt", &[])), 10);
    assert_eq!(count(&record("a.pftrace", &[])), 10);
    let flames = record("flames.svg", &["--format", "flamegraph"]);
    assert!(String::from_utf8_lossy(&flames).contains("<title>openat: "));
    let heat = record("heat.svg", &["--format", "heatmap"]);
    assert!(String::from_utf8_lossy(&heat).contains("syscalls:openat: "));
    for output in ["none/below/trace", "none/below/a.json"] {
        let (code, _, errors) = bench.run(&["record", "-o", text(&path(output)), "--", "true"]);
        assert!(code == Some(1) && errors.contains("none/below does not exist"), "{errors}");
        assert!(!path("none").exists());
    }
    let (code, _, errors) = bench.run(&["record", "-o", text(&path("a.txt")), "--", "/no/such/program"]);
    assert_eq!(code, Some(127), "{errors}");
    let (code, _, errors) = bench.run(&["convert", text(bench.made_directory()), "-o", text(&path("b.json"))]);
    assert!(code == Some(1) && errors.contains("metadata"), "{errors}");
}

#[test]
fn a_trace_is_whole_after_the_recorder_was_killed() {
    let bench = Bench::ring3();
    for round in 0..3 {
        let trace = bench.made_directory().join(format!("trace-{round}"));
        let mut command = bench.ring3_command(&["record", "-e", "openat", "-o", text(&trace), "--", &recorded()]);
        let mut recorder = Process::start(&mut command);
        assert_eq!(recorder.line(), "ready");
        let written =
            || fs::exists(trace.join("stream_0_0000")).expect("it can be asked") && lines(&bench, &trace).len() > 500;
        wait_until("records are in the file", written);
        let child = child_of(recorder.pid());
        recorder.signal(Signal::KILL);
        recorder.wait();
        let lines = lines(&bench, &trace);
        assert!(lines.len() > 500, "{}", lines.len());
        assert_numbered(&lines);
        ring3_tests::kill(child);
    }
}

#[test]
fn all_is_recorded_until_the_program_is_killed() {
    let bench = Bench::ring3();
    let trace = bench.made_directory().join("trace");
    let mut command = bench.ring3_command(&["record", "-e", "openat", "-o", text(&trace), "--", &recorded()]);
    let mut recorder = Process::start(&mut command);
    assert_eq!(recorder.line(), "ready");
    ring3_tests::kill(child_of(recorder.pid()));
    let (code, _, errors) = recorder.finish();
    assert_eq!(code, Some(137), "{errors:?}");
    let lines = lines(&bench, &trace);
    assert!(lines.len() > 1000, "{}", lines.len());
    assert_numbered(&lines);
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    if !is_root() {
        println!("SKIPPED: mounting a small file system needs root");
        return;
    }
    let bench = Bench::ring3();
    let small = Small::mount(bench.made_directory().join("small"));
    let trace = small.0.join("trace");
    let (code, _, errors) = bench.run(&["record", "-e", "openat", "-o", text(&trace), "--", &recorded(), "30000"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("No space left on device") && errors.contains("recording has ended"), "{errors}");
    let lines = lines(&bench, &trace);
    assert!(lines.len() > 1000 && lines.len() < 30_000, "{}", lines.len());
    assert_numbered(&lines);
}

/// The program has ended before that is noticed.
#[test]
fn a_disk_that_is_full_at_once_ends_the_recording_too() {
    let bench = Bench::ring3();
    for format in ["json", "script"] {
        let (code, _, errors) = bench.run(&["record", "--format", format, "-o", "/dev/full", "--", "true"]);
        assert_eq!(code, Some(1), "{format}: {errors}");
        assert!(errors.contains("No space left on device"), "{format}: {errors}");
    }
}

/// A file system of 1 MiB.
struct Small(PathBuf);

impl Small {
    fn mount(path: PathBuf) -> Small {
        fs::create_dir_all(&path).expect("the directory can be written");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "small"]).arg(&path).status();
        assert!(status.expect("mount runs").success());
        Small(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// The victim that a recorder has started.
fn child_of(recorder: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{recorder}/task/{recorder}/children")).expect("it runs");
    let is_victim =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "recorded");
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_victim).expect("it has a child")
}
