//! The server's own system calls fail or are held up, one at a time (`strace -e inject`), while it attaches to a busy process and
//! detaches from it. The process runs on and has its own code in the end, the tool or the user gets an error, and the server does
//! not panic. `cargo xtask faults` tries each call of the run; without `RING3_FAULTS=all` the first and the middle one of each name.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use ring3_tests::{Bench, Process, assert_text_is_as_in_its_files, example, ready, ring3, victim};
use rustix::process::{Pid, Signal, kill_process};

/// Calls of a name beyond this many are not tried.
const OF_A_NAME_MAX: usize = 60;

/// What calls may fail with. Left out are those whose failure ends any Rust program (memory for the allocator, futexes, signal
/// actions), and those that cannot fail (`getpid`, `close` of an open descriptor).
const FAULTS: &[(&str, &[&str])] = &[
    ("accept4", &["EMFILE", "ECONNABORTED"]),
    ("clone3", &["EAGAIN"]),
    ("connect", &["ECONNREFUSED"]),
    ("dup", &["EMFILE"]),
    ("eventfd2", &["EMFILE"]),
    ("fcntl", &["EMFILE"]),
    ("fstat", &["EIO"]),
    ("ftruncate", &["ENOSPC"]),
    ("getdents64", &["EIO"]),
    ("getsockopt", &["ENOBUFS"]),
    ("ioctl", &["EINTR"]),
    ("lseek", &["EIO"]),
    ("memfd_create", &["EMFILE"]),
    ("openat", &["EMFILE", "EACCES"]),
    ("pidfd_getfd", &["EMFILE"]),
    ("pidfd_open", &["EMFILE"]),
    ("poll", &["EINTR", "ENOMEM"]),
    ("ppoll", &["EINTR", "ENOMEM"]),
    ("pread64", &["EIO"]),
    ("process_vm_readv", &["EFAULT", "EPERM"]),
    ("process_vm_writev", &["EFAULT"]),
    ("ptrace", &["EPERM", "ESRCH", "EIO"]),
    ("pwrite64", &["EIO"]),
    ("read", &["EIO", "EINTR"]),
    ("readlink", &["EACCES"]),
    ("recvfrom", &["ENOMEM"]),
    ("recvmsg", &["ENOMEM"]),
    ("sched_setattr", &["EPERM"]),
    ("sendmsg", &["ENOBUFS"]),
    ("sendto", &["EPIPE"]),
    ("socketpair", &["EMFILE"]),
    ("statx", &["EACCES"]),
    ("wait4", &["EINTR", "ECHILD"]),
    ("write", &["EIO"]),
];

/// A command of the bench that must end by itself.
fn run(bench: &Bench, arguments: &[&str]) -> Output {
    let mut command = bench.command("timeout");
    command.args(["--signal=KILL", "50"]).arg(ring3()).args(arguments);
    let output = command.output().expect("timeout runs");
    assert!(output.status.code().is_some_and(|code| code != 124 && code != 137), "{arguments:?} does not end");
    output
}

/// Attaches, counts and detaches under a server that strace runs with these options; a description names the case in messages.
fn attach_and_detach(options: &[&str], case: &str) {
    println!("{case}");
    let bench = Bench::ring3();
    let file = victim("busy", "gcc", "busy.c", &[]);
    let mut victim = ready(Command::new("nice").args(["-n", "5"]).arg(&file).arg("3"));
    let pid = victim.pid().to_string();
    let mut strace = bench.command("strace");
    strace.args(["-f", "-qq"]).args(options).arg(ring3()).args(["serve", "--foreground"]);
    let mut server = Process::start(&mut strace);
    // It may fail at its start; then the next command has a server of its own.
    let _ = server.line_or_end();
    let probe = format!("{}:work", file.display());
    let mut command = bench.load(example("malloc"));
    let mut tool = Process::start(command.args([&probe, &format!("{probe}:ret")]));
    let attached = tool.line_or_end();
    for what in ["attach", "detach"] {
        let output = run(&bench, &[what, &pid]);
        let is_told = output.status.code() == Some(0) || !output.stderr.is_empty();
        assert!(is_told, "{case}: {what} fails and says nothing");
    }
    let (code, _, errors) = tool.finish();
    assert!(
        attached.is_some() || (code != Some(0) && !errors.is_empty()),
        "{case}: the tool is told nothing: {code:?}"
    );
    run(&bench, &["stop"]);
    // (strace counts the calls of each thread: requests of new threads may fail again and again.)
    for pid in children(server.pid()) {
        // (It may have ended.)
        let _ = kill_process(pid, Signal::TERM);
    }
    let (_, _, errors) = server.finish();
    let panic = errors.iter().find(|line| line.contains("panicked"));
    assert!(panic.is_none(), "{case}: {errors:#?}");
    let output = run(&bench, &["detach", &pid]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || errors.contains("not a target"), "{case}: {errors}");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let left: Vec<&str> = maps.lines().filter(|line| line.contains("ring3-") || line.contains("[uprobes]")).collect();
    assert_eq!(left, [""; 0], "{case}");
    assert_text_is_as_in_its_files(victim.pid());
    victim.say("");
    let line = victim.line();
    assert!(line.ends_with(" 0") && victim.finish().0 == Some(0), "{case}: {line}");
}

/// The children of a process of one thread.
fn children(pid: u32) -> Vec<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// How many calls of each name a server makes in such a run.
fn calls_of_a_run() -> BTreeMap<String, usize> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("ring3-faults-{}-{number}", std::process::id()));
    attach_and_detach(&["-o", file.to_str().expect("a plain name")], "without a fault");
    let text = std::fs::read_to_string(&file).expect("strace has written it");
    std::fs::remove_file(&file).expect("ours");
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let name = line.split_whitespace().nth(1).and_then(|call| call.split_once('(')).map(|(name, _)| name);
        *counts.entry(name.unwrap_or_default().to_owned()).or_default() += 1;
    }
    counts
}

/// The calls of a name that are tried.
fn chosen(count: usize) -> Vec<usize> {
    if std::env::var("RING3_FAULTS").is_ok_and(|which| which == "all") {
        let step = count.div_ceil(OF_A_NAME_MAX).max(1);
        return (1..=count).step_by(step).collect();
    }
    let mut few = vec![1, count.div_ceil(2)];
    few.dedup();
    few
}

fn only() -> Option<String> {
    std::env::var("RING3_FAULTS_OF").ok()
}

#[test]
fn a_system_call_of_the_server_that_fails_harms_no_target() {
    let counts = calls_of_a_run();
    assert!(counts.contains_key("ptrace") && counts.contains_key("pwrite64"), "{counts:?}");
    let mut cases = 0;
    for (name, errors) in FAULTS.iter().filter(|(name, _)| only().is_none_or(|only| only == *name)) {
        for number in counts.get(*name).map_or(vec![], |count| chosen(*count)) {
            for error in *errors {
                let (trace, inject) = (format!("trace={name}"), format!("inject={name}:error={error}:when={number}"));
                let case = format!("{name} {number} of {}: {error}", counts[*name]);
                attach_and_detach(&["-o", "/dev/null", "-e", &trace, "-e", &inject], &case);
                cases += 1;
            }
        }
    }
    println!("{cases} faults");
    assert!(cases > 0, "no call of the run is in the list");
}

#[test]
fn a_system_call_of_the_server_that_takes_long_harms_no_target() {
    let counts = calls_of_a_run();
    let mut cases = 0;
    for name in ["ptrace", "pwrite64", "process_vm_readv", "sendmsg", "sendto", "ioctl", "openat", "wait4"] {
        for number in counts.get(name).map_or(vec![], |count| chosen(*count)) {
            let (trace, inject) =
                (format!("trace={name}"), format!("inject={name}:delay_enter=300000:when={number}"));
            let case = format!("{name} {number}: held up");
            attach_and_detach(&["-o", "/dev/null", "-e", &trace, "-e", &inject], &case);
            cases += 1;
        }
    }
    println!("{cases} delays");
}
