//! What strace shows under ring3 is not all: the programs do what they do under native strace, and no call is lost where ring3 leaves
//! them to ptrace.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use ring3_tests::{Bench, Process, victim, wait_until};

/// What came of a run of strace.
struct Traced {
    code: Option<i32>,
    /// What the program wrote.
    said: String,
    /// Standard error, of strace and the program.
    complaints: String,
    trace: String,
}

impl Traced {
    /// How often each call began.
    fn calls(&self) -> BTreeMap<&str, usize> {
        let mut calls = BTreeMap::new();
        let starts = self.trace.lines().filter(|line| !line.contains(" resumed>"));
        for call in starts.filter_map(|line| line.split_once('(')?.0.split_ascii_whitespace().last()) {
            *calls.entry(call).or_insert(0) += 1;
        }
        calls
    }
}

fn traced(bench: &Bench, mut strace: Command, options: &[&str], command: &[&str]) -> Traced {
    let out = bench.made_directory().join(format!("trace-{}", std::process::id()));
    strace.arg("-o").arg(&out).args(options).args(command).stdin(Stdio::null());
    let output = strace.output().expect("it runs");
    let trace = std::fs::read_to_string(&out).expect("a trace");
    std::fs::remove_file(&out).expect("it is ours");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Traced { code: output.status.code(), said: text(output.stdout), complaints: text(output.stderr), trace }
}

fn native(bench: &Bench, options: &[&str], command: &[&str]) -> Traced {
    traced(bench, bench.command("strace"), options, command)
}

fn ours(bench: &Bench, options: &[&str], command: &[&str]) -> Traced {
    traced(bench, bench.load("strace"), options, command)
}

fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has {
        println!("SKIPPED: strace does not run");
    }
    has
}

/// What ring3 leaves to ptrace, for this reason.
fn assert_left_to_ptrace(bench: &Bench, command: &[&str], why: &str) {
    let (theirs, ours) = (native(bench, &["-f"], command), ours(bench, &["-f"], command));
    assert_eq!((ours.code, &ours.said), (theirs.code, &theirs.said), "{}", ours.complaints);
    assert!(ours.complaints.contains("is traced by ptrace alone"), "{}", ours.complaints);
    assert!(ours.complaints.contains(why), "{}", ours.complaints);
    assert!(!ours.complaints.contains("strace: "), "{}", ours.complaints);
    assert_eq!(ours.calls(), theirs.calls(), "{}", ours.trace);
}

#[test]
fn a_limit_of_data_is_the_program_s_alone() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for limit in ["1000", "100000"] {
        let command = ["sh", "-c", &format!("ulimit -d {limit}; cat /etc/hostname")];
        let (theirs, ours) = (native(&bench, &["-f"], &command), ours(&bench, &["-f"], &command));
        assert_eq!((ours.code, &ours.said), (theirs.code, &theirs.said), "{}", ours.trace);
        assert!(!ours.complaints.contains("ring3: "), "{}", ours.complaints);
    }
}

#[test]
fn a_program_without_room_for_ring3_is_left_to_ptrace_when_it_is_executed() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    assert_left_to_ptrace(&bench, &["sh", "-c", "ulimit -n 8; cat /etc/hostname"], "RLIMIT_NOFILE");
}

#[test]
fn processes_of_other_namespaces_are_left_to_ptrace() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let unshares =
        |options: &str| Command::new("unshare").args([options, "true"]).status().is_ok_and(|status| status.success());
    if !unshares("-pf") || !unshares("-Ur") {
        println!("SKIPPED: no namespaces for this user");
        return;
    }
    assert_left_to_ptrace(&bench, &["unshare", "-pf", "sh", "-c", "id -u; id -g"], "it is in another PID namespace");
    for _ in 0..3 {
        assert_left_to_ptrace(&bench, &["unshare", "-Ur", "id", "-u"], "the program that it executes now");
    }
}

#[test]
fn a_stopped_process_goes_on() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let script = "import os, signal\n\
                  def give_up(*_):\n\
                  \x20os.kill(child, signal.SIGKILL)\n\
                  \x20os._exit(1)\n\
                  signal.signal(signal.SIGALRM, give_up)\n\
                  signal.alarm(60)\n\
                  for _ in range(40):\n\
                  \x20child = os.fork()\n\
                  \x20if not child:\n\
                  \x20 os.kill(os.getpid(), signal.SIGSTOP)\n\
                  \x20 os._exit(3)\n\
                  \x20assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])\n\
                  \x20os.kill(child, signal.SIGCONT)\n\
                  \x20assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n";
    let ours = ours(&bench, &["-f", "-e", "trace=kill"], &["/usr/bin/python3", "-c", script]);
    assert_eq!(ours.code, Some(0), "{}{}", ours.complaints, ours.trace);
}

#[test]
fn who_ends_is_not_killed_any_more() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let script = "import os, signal\n\
                  for count in range(300):\n\
                  \x20go, told = os.pipe()\n\
                  \x20child = os.fork()\n\
                  \x20if not child:\n\
                  \x20 os.write(told, b'x')\n\
                  \x20 os._exit(3)\n\
                  \x20os.read(go, 1)\n\
                  \x20for _ in range(count * 20): pass\n\
                  \x20os.kill(child, signal.SIGTERM)\n\
                  \x20os.waitpid(child, 0)\n\
                  \x20os.close(go), os.close(told)\n";
    let ours = ours(&bench, &["-f", "-e", "trace=exit_group"], &["/usr/bin/python3", "-c", script]);
    assert_eq!(ours.code, Some(0), "{}", ours.complaints);
    let process = |line: &str| line.split_ascii_whitespace().next().map(str::to_owned);
    let killed: Vec<_> = ours.trace.lines().filter(|line| line.contains("+++ killed")).filter_map(process).collect();
    let ended: Vec<_> = ours.trace.lines().filter(|line| line.contains(" exit_group(")).filter_map(process).collect();
    assert!(ended.len() > 1, "{}", ours.trace);
    assert!(!ended.iter().any(|process| killed.contains(process)), "{}", ours.trace);
}

#[test]
fn what_returns_for_a_mere_stop_is_hardly_interrupted() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    // (strace itself interrupts a thread when it comes and when it goes.)
    const INTERRUPTED_MAX: u32 = 6;
    let mut victim = Process::start(&mut Command::new(victim("receives", "cc", "receives.c", &[])));
    assert_eq!(victim.line(), "ready");
    let out = bench.made_directory().join("trace");
    let mut strace = bench.load("strace");
    strace.arg("-o").arg(&out).args(["-p", &victim.pid().to_string()]);
    let mut strace = Process::start(&mut strace);
    wait_until("strace shows a call", || std::fs::read_to_string(&out).is_ok_and(|text| text.contains("recvfrom(")));
    strace.signal(rustix::process::Signal::INT);
    strace.wait();
    wait_until("ring3 leaves the process", || bench.status()["targets"].as_array().is_none_or(Vec::is_empty));
    victim.say("how often?");
    let interrupted: u32 = victim.line().parse().expect("a number");
    assert!(interrupted <= INTERRUPTED_MAX, "{interrupted}");
}

#[test]
fn the_environment_keeps_its_order() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for preloaded in ["", "libc.so.6"] {
        let order = |mut strace: Command| {
            strace.env_clear().env("PATH", "/usr/bin:/bin");
            // (`Command` sorts what it sets: `env` does not.)
            let mut all = Command::new("env");
            let own = bench.directory().display().to_string();
            all.args(["-i", "Z=1", &format!("RING3_RUNTIME_DIR={own}"), "PATH=/usr/bin:/bin", "B=2"]);
            if !preloaded.is_empty() {
                all.arg(format!("LD_PRELOAD={preloaded}"));
            }
            all.arg("A=3").arg(strace.get_program()).args(strace.get_args());
            let traced = traced(&bench, all, &[], &["env"]);
            assert_eq!(traced.code, Some(0), "{}", traced.complaints);
            traced.said
        };
        assert_eq!(order(bench.load("strace")), order(bench.command("strace")));
    }
}
