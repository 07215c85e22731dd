//! System calls by `int $0x80`, of 64-bit and of 32-bit programs: strace shows them as natively, and `ring3 trace` says that it does not.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use ring3_tests::{Bench, victim, without_seconds};

fn gate() -> PathBuf {
    victim("gate", "cc", "gate.c", &[])
}

/// Only the code that it writes has such calls.
fn gate_written() -> PathBuf {
    victim("gate-written", "cc", "gate.c", &["-DWITHOUT_GATE"])
}

fn gate32() -> PathBuf {
    victim("gate32", "gcc", "gate32.S", &["-m32", "-nostdlib", "-static", "-no-pie"])
}

/// What strace writes, without addresses and ids, and what is said on standard error.
fn strace(mut strace: Command, bench: &Bench, options: &[&str], command: &[&str]) -> (Vec<String>, String) {
    let out = bench.made_directory().join("trace");
    strace.arg("-o").arg(&out).args(options).args(command).stdin(Stdio::null());
    let output = strace.output().expect("it runs");
    let text = std::fs::read_to_string(&out).expect("a trace");
    let without_id = |line: &str| match line.split_once(' ') {
        Some((id, rest)) if id.bytes().all(|byte| byte.is_ascii_digit()) => rest.trim_start().to_owned(),
        _ => line.to_owned(),
    };
    let without_numbers = |line: String| {
        let (before, behind) = line.split_once(", 0x").unwrap_or((&line, ""));
        let behind = behind.split_once(')').map_or("", |(_, behind)| behind);
        let kept = format!("{before}{behind}").replace(|letter: char| letter.is_ascii_digit(), "");
        kept.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let lines = text.lines().map(without_seconds).map(|line| without_id(&line)).map(without_numbers);
    (lines.collect(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has {
        println!("SKIPPED: strace does not run");
    }
    has
}

const CALLS: &str = "trace=write,getpid,execve,exit,exit_group";

#[test]
fn strace_shows_calls_by_the_gate_as_natively_and_says_why_by_ptrace() {
    if !has_strace() {
        return;
    }
    let [gate, written, gate32] = [gate(), gate_written(), gate32()].map(|path| path.display().to_string());
    let in_shell = format!("{gate}; {gate32}; {written} written; exit 3");
    let users = if ring3_tests::is_root() { vec![None, Some(65534)] } else { vec![None] };
    for user in users {
        let bench = user.map_or_else(Bench::ring3, Bench::ring3_as);
        for (command, why) in [
            (&[&*gate][..], vec!["its code uses `int $0x80`"]),
            (&[&*written, "written"], vec!["it makes system calls by `int $0x80`"]),
            (&[&*gate32], vec!["running 32-bit code"]),
            (
                &["sh", "-c", &in_shell],
                vec!["its code uses `int $0x80`", "running 32-bit code", "it makes system calls by `int $0x80`"],
            ),
        ] {
            let options = ["-f", "-e", CALLS];
            let (theirs, _) = strace(bench.command("strace"), &bench, &options, command);
            let (ours, said) = strace(bench.load("strace"), &bench, &options, command);
            assert_eq!(ours, theirs, "{command:?} {said}");
            let said: Vec<&str> = said.lines().filter(|line| line.starts_with("ring3: ")).collect();
            assert_eq!(said.len(), why.len(), "{command:?}: {said:?}");
            let is_said = |(line, why): (&&str, &&str)| line.contains("by ptrace alone") && line.contains(why);
            assert!(said.iter().zip(&why).all(is_said), "{command:?}: {said:?}");
        }
    }
}

#[test]
fn ring3_trace_says_that_it_does_not_show_calls_by_the_gate() {
    let bench = Bench::ring3();
    let (gate, written) = (gate().display().to_string(), gate_written().display().to_string());
    let gate32 = gate32().display().to_string();
    for (command, why) in [
        (&[&*gate][..], "makes system calls that are not shown: its code uses `int $0x80`"),
        (&[&*written, "written"], "makes system calls that are not shown: it makes system calls by `int $0x80`"),
        (&[&*gate32], "is running 32-bit code"),
    ] {
        let mut trace = bench.ring3_command(&["trace", "-e", "write,exit_group", "--"]);
        let output = trace.args(command).stdin(Stdio::null()).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.lines().filter(|line| line.contains(why)).count(), 1, "{command:?}: {said}");
        assert_eq!(output.status.code(), Some(if command[0] == gate32 { 7 } else { 0 }), "{said}");
    }
}
