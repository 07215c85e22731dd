//! Structures that arguments of system calls lead to: `ring3 trace` shows them as strace does, and `ring3 record` as JSON.

use std::process::{Command, Stdio};

use ring3_tests::{Bench, victim};
use serde_json::{Value, json};

/// Calls of which the whole line is that of strace.
const EQUAL: &str = "stat,lstat,fstat,newfstatat,connect,bind,pipe2,nanosleep,rt_sigprocmask,rt_sigaction,\
                     prlimit64,wait4,execve,socketpair,epoll_ctl,epoll_wait";
/// The same of the calls of `arguments.c`.
const ARGUMENTS: &str = "openat,statx,fcntl,ioctl,fadvise64,getxattr,readlink,read,write,umask,mkdir,unlinkat,memfd_create,\
                         close_range,rt_sigaction,sigaltstack,setitimer,uname,sched_getparam,sched_getaffinity,prctl,\
                         waitid,futex,pipe2,poll,epoll_create1,eventfd2,inotify_init1,timerfd_create,timerfd_settime,socket,\
                         setsockopt,getsockopt,sendto,recvfrom,mmap,mremap,msync";
/// Calls that are shown in other words.
const OTHERS: &str = "writev,poll,utimensat,getpeername";

fn arguments() -> String {
    victim("arguments", "cc", "arguments.c", &[]).display().to_string()
}

fn structures() -> String {
    victim("structures", "cc", "structures.c", &[]).display().to_string()
}

/// The calls, without addresses and ids of processes.
fn lines(text: &str) -> Vec<String> {
    let without_id = |line: &str| {
        line.split_once("] ").map_or(line, |(id, rest)| if id.starts_with("[pid") { rest } else { line }).to_owned()
    };
    let without_addresses = |line: String| {
        let mut parts = line.split("0x");
        let first = parts.next().unwrap_or("").to_owned();
        let rest = |part: &str| part.trim_start_matches(|letter: char| letter.is_ascii_hexdigit()).to_owned();
        let line = parts.fold(first, |line, part| format!("{line}0x{}", rest(part)));
        // (strace counts the variables of the environment.)
        let line = match (line.find(" /* "), line.find(" */")) {
            (Some(begin), Some(end)) => line[..begin].to_owned() + &line[end + 3..],
            _ => line,
        };
        let line = if line.starts_with("wait4(") {
            line.rsplit_once(" = ").map_or("", |(call, _)| call).to_owned()
        } else {
            line
        };
        let line = match line.split_once("si_pid=") {
            Some((begin, rest)) => {
                format!("{begin}si_pid={}", rest.trim_start_matches(|letter: char| letter.is_ascii_digit()))
            }
            None => line,
        };
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let is_call = |line: &String| line.contains('(') && !line.contains("unfinished") && !line.starts_with("---");
    text.lines().map(without_id).filter(is_call).map(without_addresses).collect()
}

/// What `ring3 trace` shows from where the victim begins.
fn traced(bench: &Bench, calls: &str, command: &str) -> Vec<String> {
    let mut trace = bench.ring3_command(&["trace", "-e", calls, "--", command, "x"]);
    let output = trace.stdin(Stdio::null()).stdout(Stdio::null()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    lines(&String::from_utf8_lossy(&output.stderr))
}

/// That strace and `ring3 trace` show the same of these calls; what they show.
fn same_lines(calls: &str, command: &str) -> Option<Vec<String>> {
    let mut strace = Command::new("strace");
    strace.env_remove("LD_LIBRARY_PATH").args(["-e", &format!("trace={calls}"), command, "x"]);
    let Ok(output) = strace.stdin(Stdio::null()).stdout(Stdio::null()).output() else {
        println!("SKIPPED: strace does not run");
        return None;
    };
    let theirs = lines(&String::from_utf8_lossy(&output.stderr));
    let ours = traced(&Bench::ring3(), calls, command);
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "line {at}");
    }
    assert_eq!(ours.len(), theirs.len(), "{ours:#?} {theirs:#?}");
    Some(ours)
}

#[test]
fn arguments_that_others_decide_are_shown_as_strace_shows_them() {
    let Some(ours) = same_lines(ARGUMENTS, &arguments()) else { return };
    for line in [
        "fcntl(3, F_GETFD) = 0x1 (flags FD_CLOEXEC)",
        "poll([{fd=6, events=POLLIN}], 1, 1) = 0 (Timeout)",
        "setsockopt(12, SOL_TCP, TCP_NODELAY, [1], 4) = 0",
    ] {
        let numbers_vary = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
        assert!(ours.iter().any(|ours| numbers_vary(ours) == numbers_vary(line)), "{line} {ours:#?}");
    }
}

#[test]
fn structures_are_shown_as_strace_shows_them() {
    let Some(ours) = same_lines(EQUAL, &structures()) else { return };
    assert!(ours.len() > 25, "{ours:#?}");
    assert!(
        ours.iter().any(|line| line.contains("[\"one\", \"a text that is longer than strac\"..., \"\"]")),
        "{ours:#?}"
    );
}

#[test]
fn lists_are_decoded() {
    let ours = traced(&Bench::ring3(), OTHERS, &structures());
    for line in [
        "writev(5, [{iov_base=0x, iov_len=2}, {iov_base=0x, iov_len=1}], 2) = 3",
        "poll([{fd=6, events=POLLIN}], 1, 1000) = 1 ([{fd=6, revents=POLLIN}])",
        "utimensat(99, NULL, [{tv_sec=1, tv_nsec=2}, {tv_sec=3, tv_nsec=4}], 0) = -1 EBADF (Bad file descriptor)",
        "utimensat(99, NULL, NULL, 0) = -1 EBADF (Bad file descriptor)",
        "getpeername(3, {sa_family=AF_INET, sin_port=htons(9), sin_addr=inet_addr(\"127.0.0.1\")}, [16]) = 0",
    ] {
        let numbers_vary = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
        assert!(ours.iter().any(|ours| numbers_vary(ours) == numbers_vary(line)), "{line} {ours:#?}");
    }
}

#[test]
fn recorded_structures_are_objects_in_json() {
    let bench = Bench::ring3();
    let out = bench.made_directory().join("trace.json").display().to_string();
    let (code, _, errors) = bench.run(&["record", "-o", &out, "-e", EQUAL, "--", &structures(), "x"]);
    assert_eq!(code, Some(0), "{errors}");
    let text = std::fs::read_to_string(&out).expect("a file");
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let has = |field: &str, value: Value| objects.iter().any(|object| object["fields"][field] == value);
    assert!(has("rqtp", json!({"tv_sec": 0, "tv_nsec": 1000})), "{text}");
    assert!(has("nset", json!(["USR1", "CHLD"])), "{text}");
    assert!(has("argv", json!(["one", "a text that is longer than strac...", ""])), "{text}");
    let device = json!({"st_mode": "S_IFCHR|0666", "st_rdev": "makedev(0x1, 0x3)"});
    assert!(has("statbuf", device), "{text}");
    let address = json!({"sa_family": "AF_INET", "sin_port": "htons(9)", "sin_addr": "inet_addr(\"127.0.0.1\")"});
    assert!(has("uservaddr", address), "{text}");
    let failed = objects.iter().find(|object| object["event"] == "syscalls:wait4" && object["fields"]["ret"] == -10);
    let fields = &failed.expect("the last wait fails")["fields"];
    assert_eq!((&fields["stat_addr"], &fields["stat_addr_state"]), (&Value::Null, &json!("unreadable")), "{text}");
}
