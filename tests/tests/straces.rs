//! Unmodified strace under ring3 prints what it prints natively, line by line.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use ring3_tests::{Bench, Process, victim, wait_until, without_seconds};

/// A trace, without what differs in each run: addresses, process ids, times, random bytes.
fn normalized(text: &str) -> Vec<String> {
    let ids = ids(text);
    text.lines().map(without_seconds).map(|line| line_without_what_varies(&line, &ids)).collect()
}

/// Process and thread ids, by the order in which they appear.
fn ids(text: &str) -> BTreeMap<u64, usize> {
    let mut ids = BTreeMap::new();
    let mut note = |id: Option<u64>| {
        if let Some(id) = id.filter(|id| *id > 1) {
            let next = ids.len();
            ids.entry(id).or_insert(next);
        }
    };
    for line in text.lines() {
        let first = line.trim_start_matches("[pid").trim_start().split([' ', ']']).next().unwrap_or("");
        if line.starts_with("[pid") || first.len() > 1 && first.bytes().all(|byte| byte.is_ascii_digit()) {
            note(first.parse().ok());
        }
        for name in ["getpid", "gettid", "getppid", "set_tid_address", "fork", "clone", "clone3"] {
            if line.contains(&format!("{name}(")) || line.contains(&format!("{name} resumed>")) {
                note(line.rsplit(" = ").next().and_then(|result| result.trim().parse().ok()));
            }
        }
        for name in ["strace: Process ", "si_pid="] {
            if let Some((_, rest)) = line.split_once(name) {
                note(rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|id| id.parse().ok()));
            }
        }
    }
    ids
}

/// Whether a number in a line that comes after what is `shown` and stands right `before` it may be an id: sizes are the same numbers at times.
fn is_place_of_id(line: &str, shown: &str, before: &str) -> bool {
    const BEFORE: [&str; 9] = ["(", "(-", "[", "{", "pid=", "tid=", "pid ", "Process ", "/proc/"];
    const RETURNING: [&str; 12] = [
        "getpid",
        "gettid",
        "getppid",
        "fork",
        "clone",
        "wait",
        "set_tid_address",
        "setsid",
        "getsid",
        "getpg",
        "GETOWN",
        "rt_sigreturn",
    ];
    const TAKING: [&str; 7] = ["kill(", "sigqueueinfo(", "wait", "setpgid(", "ptrace(", "kcmp(", "SETOWN"];
    let before = before.trim_start_matches(' ');
    let is_in = |names: &[&str]| names.iter().any(|name| line.contains(name));
    shown.is_empty() && before.is_empty()
        || BEFORE.iter().any(|name| before.ends_with(name))
        || before.ends_with("= ") && is_in(&RETURNING)
        || before.ends_with(", ") && is_in(&TAKING)
}

fn line_without_what_varies(line: &str, ids: &BTreeMap<u64, usize>) -> String {
    let mut shown = String::new();
    let mut rest = line;
    if ["getrandom(", "clock_gettime(", "gettimeofday(", "times(", "sysinfo(", "getrusage("]
        .iter()
        .any(|name| line.contains(name))
    {
        // (Only that it is there.)
        rest = line.split_once('(').map_or(line, |(before, _)| before);
    }
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let is_hexadecimal = number.starts_with("0x");
        let end = match is_hexadecimal {
            true => 2 + number[2..].find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(number.len() - 2),
            false => number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len()),
        };
        let digits = &number[..end];
        let is_varying =
            ["tv_sec=", "tv_nsec=", "tv_usec=", "si_utime=", "si_stime=", "_time=", "_time_nsec=", "pipe:["];
        let is_time = is_varying.iter().any(|name| before.ends_with(name)) || before.ends_with("time=");
        let id = digits.parse::<u64>().ok().filter(|_| is_place_of_id(line, &shown, before));
        shown.push_str(before);
        match id.and_then(|id| ids.get(&id)) {
            _ if is_hexadecimal && digits.len() > 8 => shown.push_str("ADDRESS"),
            _ if is_time => shown.push('T'),
            Some(order) => shown.push_str(&format!("PID{order}")),
            None => shown.push_str(digits),
        }
        rest = &number[end..];
    }
    shown.push_str(rest);
    // (strace aligns by the widths of what was replaced.)
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What strace writes, and its exit code.
fn output(bench: &Bench, mut strace: Command, options: &[&str], command: &[&str]) -> (Option<i32>, String) {
    let trace = bench.made_directory().join(format!("trace-{}", std::process::id()));
    strace.arg("-o").arg(&trace).args(options).args(command);
    strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = strace.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // (The command may complain, but not strace.)
    assert!(!said.contains("strace: ") && !said.contains("ring3: "), "{said}");
    let text = std::fs::read_to_string(&trace).expect("a trace");
    std::fs::remove_file(&trace).expect("it is ours");
    (output.status.code(), text)
}

/// The lines in alphabetical order, without which process is which and without lines that are interrupted: processes that run at a
/// time, and signals, come in any order.
fn sorted(text: &str) -> Vec<String> {
    let without_number = |line: String| {
        let mut parts = line.split("PID");
        let first = parts.next().unwrap_or("").to_owned();
        parts.fold(first, |line, part| line + "PID" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
    };
    let mut lines: Vec<String> = normalized(text).into_iter().map(without_number).collect();
    lines.retain(|line| !line.contains("unfinished ...") && !line.contains("resumed"));
    lines.sort();
    lines
}

fn compare_sorted(bench: &Bench, options: &[&str], command: &[&str]) {
    const OTHERS_MAX: usize = 6;
    let (their_code, theirs) = output(bench, bench.command("strace"), options, command);
    let (our_code, ours) = output(bench, bench.load("strace"), options, command);
    assert_eq!(our_code, their_code, "{options:?}: {ours}");
    let (ours, theirs) = (sorted(&ours), sorted(&theirs));
    let missing: Vec<&String> = theirs.iter().filter(|line| !ours.contains(line)).collect();
    let added: Vec<&String> = ours.iter().filter(|line| !theirs.contains(line)).collect();
    assert!(missing.len() + added.len() <= OTHERS_MAX, "{options:?}: missing {missing:#?}\nadded {added:#?}");
    assert!(ours.len().abs_diff(theirs.len()) <= OTHERS_MAX, "{options:?}: {ours:#?}\n{theirs:#?}");
}

fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has {
        println!("SKIPPED: strace does not run");
    }
    has
}

fn compare(bench: &Bench, options: &[&str], command: &[&str]) {
    let (their_code, theirs) = output(bench, bench.command("strace"), options, command);
    let (our_code, ours) = output(bench, bench.load("strace"), options, command);
    let what = format!("strace {} {}", options.join(" "), command.join(" "));
    let (ours, theirs) = (normalized(&ours), normalized(&theirs));
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "line {at} of {what}");
    }
    assert_eq!(ours.len(), theirs.len(), "{what}: {:?} {:?}", ours.last(), theirs.last());
    assert_eq!(our_code, their_code, "{what}");
    assert!(theirs.len() > 3, "{what}: {theirs:?}");
}

#[test]
fn programs_are_shown_as_by_native_strace() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for command in [&["true"][..], &["cat", "/etc/hostname"], &["ls", "-l", "/etc"], &["sort", "/etc/services"]] {
        compare(&bench, &[], command);
    }
}

#[test]
fn options_change_the_output_as_natively() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let shell = ["sh", "-c", "cd /etc; cat hostname; ls nothing; exit 3"];
    let options: [&[&str]; 12] = [
        &["-f"],
        &["-f", "-e", "trace=file"],
        &["-f", "-e", "trace=!mmap,mprotect"],
        &["-f", "-z"],
        &["-f", "-Z"],
        &["-f", "-s", "5", "-x"],
        &["-f", "-v", "-e", "trace=%stat"],
        &["-f", "-e", "signal=none"],
        &["-f", "-y"],
        &["-f", "-yy"],
        &["-f", "-P", "/etc/hostname"],
        &["-f", "-X", "raw", "-e", "trace=%desc"],
    ];
    for options in options {
        compare_sorted(&bench, options, &shell);
    }
}

#[test]
fn signals_and_ends_are_shown_as_natively() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for script in [
        "trap 'echo hello' USR1; kill -USR1 $$; exit 5",
        "kill -TERM $$",
        "kill -CHLD $$; kill -WINCH $$; exit 0",
        "trap '' INT; kill -INT $$",
        "kill -SEGV $$",
        "trap 'echo once' SEGV; kill -SEGV $$; trap - SEGV; kill -SEGV $$",
    ] {
        compare(&bench, &[], &["sh", "-c", script]);
    }
    // (`-n`: the number of the last call, also if that is not shown.)
    for options in
        [&["-n"][..], &["-n", "-e", "trace=getuid,exit_group"], &["--syscall-number", "-e", "trace=getuid"]]
    {
        compare(
            &bench,
            options,
            &["sh", "-c", "trap 'echo hello' USR1; kill -USR1 $$; kill -WINCH $$; kill -CHLD $$; exit 5"],
        );
    }
    compare_sorted(&bench, &[], &["timeout", "0.2", "sleep", "5"]);
    compare(&bench, &[], &["sleep", "0.1"]);
}

fn straced() -> String {
    victim("straced", "cc", "straced.c", &[]).display().to_string()
}

#[test]
fn a_call_by_which_a_process_kills_itself_does_not_end() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for how in ["kill", "tgkill", "tkill", "sigqueue", "tgsigqueue", "group", "-group", "pidfd", "term"] {
        compare(&bench, &[], &[&straced(), "kills", how]);
        compare(&bench, &["-y"], &[&straced(), "kills", how]);
    }
    compare_sorted(&bench, &["-f"], &[&straced(), "kills", "child"]);
}

#[test]
fn calls_with_numbers_that_nobody_knows_are_shown() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for options in [&[][..], &["-n"], &["-y"], &["-e", "trace=!getppid"], &["-e", "trace=getppid,getpid"]] {
        compare(&bench, options, &[&straced(), "numbers"]);
    }
}

/// Lines of calls that end as if they were made again whatever comes. Only those that make processes do natively; and `rt_sigreturn`
/// is never made again.
fn made_again(text: &str) -> Vec<&str> {
    let is_odd = |line: &&str| {
        line.contains("ERESTARTNOINTR") && !line.contains("fork") && !line.contains("clone")
            || line.contains("rt_sigreturn") && line.contains("ERESTART")
    };
    text.lines().filter(is_odd).collect()
}

/// Results of `rt_sigreturn` behind handlers that have interrupted a call which is not made again, and the call's end before each.
fn results_behind_handlers(text: &str) -> Vec<(&str, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    fn result(line: &str) -> &str {
        line.rsplit_once(" = ").and_then(|(_, result)| result.split(' ').next()).unwrap_or("")
    }
    let begun =
        lines.iter().enumerate().filter(|(_, line)| line.contains("= ? ERESTART") && !line.contains("NOINTR"));
    let handled = begun.filter_map(|(at, line)| Some((line, lines.get(at + 1)?, lines.get(at + 2)?)));
    let of = |line: &str| line.split(' ').next().map(str::to_owned);
    let whole = handled.filter(|(line, signal, end)| {
        let is_whole = !line.contains("resumed") && end.contains("rt_sigreturn(") && !end.contains("unfinished");
        is_whole && signal.contains("SIGALRM {") && of(line) == of(signal) && of(line) == of(end)
    });
    whole.map(|(line, _, end)| (*line, result(end))).collect()
}

#[test]
fn signals_interrupt_calls_as_natively() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for call in ["getppid", "fstat", "open", "write", "read", "pause", "nanosleep", "poll", "futex", "wait", "fork"] {
        for restarts in ["0", "1"] {
            let command = [&straced(), "storm", restarts, call];
            let (their_code, theirs) = output(&bench, bench.command("strace"), &["-f"], &command);
            assert_eq!(their_code, Some(0), "{call} {restarts}");
            for backend in ["streaming", "exact"] {
                let mut strace = bench.load("strace");
                strace.env("RING3_STRACE_BACKEND", backend);
                let (our_code, ours) = output(&bench, strace, &["-f"], &command);
                let of = format!("{call} {restarts} {backend}");
                assert_eq!(our_code, Some(0), "{of}");
                assert!(theirs.contains("SIGALRM {") && ours.contains("SIGALRM {"), "{of}: {ours}");
                for (whose, text) in [("native", &theirs), (&*of, &ours)] {
                    assert_eq!(made_again(text), [""; 0], "{of}: {whose}");
                    let odd = results_behind_handlers(text);
                    let odd = odd.into_iter().filter(|(_, result)| restarts == "0" && *result != "-1");
                    assert_eq!(odd.collect::<Vec<_>>(), [], "{of}: {whose}");
                }
            }
        }
    }
}

#[test]
fn counts_are_the_native_ones() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    // `% time, seconds, usecs/call, calls, errors, syscall`
    let counts = |text: &str| -> Vec<String> {
        let rows = text.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let calls = words.get(3).filter(|calls| calls.parse::<u64>().is_ok())?;
            Some(format!("{} {calls} {}", words.last()?, if words.len() > 5 { words[4] } else { "" }))
        });
        let mut rows: Vec<String> = rows.collect();
        rows.sort();
        rows
    };
    let command = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=20000"];
    let (_, theirs) = output(&bench, bench.command("strace"), &["-c"], &command);
    let (_, ours) = output(&bench, bench.load("strace"), &["-c"], &command);
    assert!(theirs.contains("read"), "{theirs}");
    assert_eq!(counts(&ours), counts(&theirs), "{ours}\n{theirs}");
}

#[test]
fn a_process_is_traced_and_left() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let mut victim = Process::start(Command::new("sh").args(["-c", "while read line; do echo \"$line\"; done"]));
    let out = bench.made_directory().join("trace");
    let mut strace = bench.load("strace");
    strace.args(["-o", &out.display().to_string(), "-p", &victim.pid().to_string()]);
    let mut strace = Process::start(strace.stderr(Stdio::piped()));
    wait_until("strace attaches", || {
        std::fs::read_to_string(&out).is_ok_and(|text| !text.is_empty()) || {
            victim.say("one");
            victim.line() == "one" && std::fs::read_to_string(&out).is_ok_and(|text| text.contains("write(1, \"one"))
        }
    });
    strace.signal(rustix::process::Signal::INT);
    strace.wait();
    victim.say("two");
    assert_eq!(victim.line(), "two");
    wait_until("ring3 leaves the process", || bench.status()["targets"].as_array().is_none_or(Vec::is_empty));
}

#[test]
fn processes_of_ring3_itself_are_traced_by_ptrace() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let victim = Process::start(Command::new("sh").args(["-c", "read line"]));
    let mut other = bench.load("strace");
    let mut other = Process::start(other.args(["-o", "/dev/null", "-p", &victim.pid().to_string()]));
    wait_until("it traces", || bench.status()["targets"].as_array().is_some_and(|targets| !targets.is_empty()));
    let server = bench.server();
    let loader = loader_of(other.pid()).as_raw_nonzero().get() as u32;
    for (name, pid) in [("server", server), ("loader", loader)] {
        let out = bench.made_directory().join(name);
        let mut strace = bench.load("strace");
        strace.args(["-f", "-o", &out.display().to_string(), "-p", &pid.to_string()]);
        let strace = Process::start(&mut strace);
        wait_until("strace shows a call", || {
            bench.status();
            std::fs::read_to_string(&out).is_ok_and(|text| !text.is_empty())
        });
        strace.signal(rustix::process::Signal::INT);
        let said = strace.finish().2.join("\n");
        assert!(said.contains(&format!("-p {pid} names a process of ring3 itself")), "{said}");
    }
    other.signal(rustix::process::Signal::INT);
    other.wait();
}

/// A signal that stops a process, and SIGCONT right behind it: natively the process runs on, and so it does if the first of the two comes
/// where ring3 delays it.
#[test]
fn a_process_that_is_stopped_and_continued_at_once_runs_on() {
    const ROUNDS: u32 = 150;
    if !has_strace() {
        return;
    }
    let script =
        "i=0; while [ $i -lt $0 ]; do i=$((i+1)); sleep 0.01 & kill -STOP $!; kill -CONT $!; wait; done; echo $i";
    let command = ["sh", "-c", script, &ROUNDS.to_string()];
    let bench = Bench::ring3();
    let mut strace = bench.load("strace");
    let mut strace = Process::start(strace.args(["-f", "-o", "/dev/null"]).args(command));
    assert_eq!(strace.line(), ROUNDS.to_string());
    assert_eq!(strace.finish().0, Some(0));
}

#[test]
fn a_program_goes_on_when_strace_is_killed() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let mut victim = Process::start(Command::new("sh").args(["-c", "while read line; do echo \"$line\"; done"]));
    for backend in ["streaming", "exact"] {
        let mut strace = bench.load("strace");
        strace.args(["-o", "/dev/null", "-p", &victim.pid().to_string()]).env("RING3_STRACE_BACKEND", backend);
        let mut strace = Process::start(strace.stderr(Stdio::null()));
        // (Before that strace tries ptrace on children of its own. Killed meanwhile it leaves them, also natively.)
        wait_until("it is attached", || {
            victim.say("one");
            let pid = victim.pid();
            let is_it = |target: &serde_json::Value| target["pid"] == pid;
            victim.line() == "one" && bench.status()["targets"].as_array().is_some_and(|all| all.iter().any(is_it))
        });
        strace.signal(rustix::process::Signal::KILL);
        strace.wait();
        for _ in 0..100 {
            victim.say("two");
            assert_eq!(victim.line(), "two");
        }
        wait_until("ring3 leaves it", || bench.status()["targets"].as_array().is_none_or(Vec::is_empty));
    }
}

#[test]
fn strace_goes_on_when_its_loader_is_killed() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for backend in ["streaming", "exact"] {
        let mut victim = Process::start(Command::new("sh").args(["-c", "while read line; do echo \"$line\"; done"]));
        let out = bench.made_directory().join(backend);
        let mut strace = bench.load("strace");
        strace.args(["-o", &out.display().to_string(), "-p", &victim.pid().to_string()]);
        strace.env("RING3_STRACE_BACKEND", backend);
        let mut strace = Process::start(&mut strace);
        let trace = || std::fs::read_to_string(&out).unwrap_or_default();
        let mut shows = |text: &str| {
            victim.say(text);
            victim.line() == text && trace().contains(&format!("write(1, \"{text}"))
        };
        wait_until("strace attaches", || shows("one"));
        let loader = loader_of(strace.pid());
        rustix::process::kill_process(loader, rustix::process::Signal::KILL).expect("it lives");
        let mut said = vec![];
        wait_until("strace says it", || {
            said.extend(strace.errors_so_far());
            said.iter().any(|line| line.starts_with("ring3: the loader of strace's programs has ended"))
        });
        wait_until("strace goes on", || shows("two"));
        strace.signal(rustix::process::Signal::INT);
        said.extend(strace.finish().2);
        assert!(!said.iter().any(|line| line.contains("ptrace_syscall_info")), "{said:?}");
        victim.say("four");
        assert_eq!(victim.line(), "four");
    }
}

/// The process that has loaded the programs for a strace.
fn loader_of(strace: u32) -> rustix::process::Pid {
    let wanted = format!("--strace\0{strace}\0");
    let processes = std::fs::read_dir("/proc").expect("processes");
    let mut ids = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse().ok());
    let is_it = |id: &i32| {
        let command = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        command.contains("\0strace-loader\0") && command.contains(&wanted)
    };
    rustix::process::Pid::from_raw(ids.find(is_it).expect("a loader")).expect("not 0")
}

#[test]
fn a_wrong_backend_is_named() {
    let bench = Bench::ring3();
    let mut wrong = bench.load("strace");
    let output = wrong.arg("true").env("RING3_STRACE_BACKEND", "fast").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("it can be auto, ptrace, exact or streaming"), "{said}");
}

#[test]
fn what_ring3_does_not_serve_is_said() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let run = |options: &[&str]| {
        let output = bench.load("strace").args(options).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["-e", "inject=getppid:retval=7", "sh", "-c", "exit $((PPID % 2 + 2))"]);
    assert!(matches!(code, Some(2 | 3)), "{said}");
    assert!(said.starts_with("ring3: -e inject needs strace's own ptrace"), "{said}");
    let mut wrong = bench.load("strace");
    let output = wrong.args(["-k", "true"]).env("RING3_STRACE_BACKEND", "streaming").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("-k needs strace's own ptrace; set it to auto or ptrace"), "{said}");
}

#[test]
fn an_ordinary_user_s_strace_is_served() {
    if !ring3_tests::is_root() {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let bench = Bench::ring3_as(65534);
    if !has_strace() {
        return;
    }
    compare_sorted(&bench, &["-f"], &["sh", "-c", "cat /etc/hostname; exit 4"]);
}

#[test]
fn threads_and_a_full_buffer_lose_nothing() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    // Each thread makes calls as fast as it can; strace cannot keep up, so the ring buffer is full most of the time.
    const CALLS: usize = 30_000;
    let script = format!(
        "import os, threading\n\
         def work():\n for number in range({CALLS}): os.getpgid(0)\n\
         threads = [threading.Thread(target=work) for _ in range(4)]\n\
         [thread.start() for thread in threads]\n[thread.join() for thread in threads]\n"
    );
    let (code, ours) =
        output(&bench, bench.load("strace"), &["-f", "-e", "trace=getpgid"], &["/usr/bin/python3", "-c", &script]);
    assert_eq!(code, Some(0));
    let calls = ours.lines().filter(|line| line.contains(" getpgid(0")).count();
    assert_eq!(calls, 4 * CALLS);
}

#[test]
fn a_storm_of_signals_loses_nothing() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    const RUNS: &str = "600";
    let storm = victim("storm", "gcc", "storm.c", &[]).display().to_string();
    // (So long a text does not fit on the stack of the program that records it.)
    let path = "/long".repeat(200);
    for command in [&[storm.as_str(), RUNS][..], &[&storm, RUNS, &path]] {
        let trace = bench.made_directory().join("storm");
        let mut strace = bench.load("strace");
        strace.arg("-o").arg(&trace).args(["-e", "trace=getppid,access,write,rt_sigreturn"]).args(command);
        let output = strace.stdin(Stdio::null()).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.is_empty(), "{said}");
        let text = std::fs::read_to_string(&trace).expect("a trace");
        let runs: usize = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        let counts = [count("--- SIGALRM"), count("\"storm\", 5) "), count("rt_sigreturn(")];
        assert_eq!(counts, [runs; 3], "{command:?}");
    }
}

#[test]
fn programs_that_execute_many_others_at_a_time_all_become_targets() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    // (What is traced by ptrace alone is said on standard error, and fails in `output`.)
    let round = "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true & sh -c '/bin/true; exit 0' & /bin/true; done; wait";
    let script = [round; 3].join(";");
    for _ in 0..3 {
        let (code, ours) =
            output(&bench, bench.load("strace"), &["-f", "-e", "trace=execve"], &["sh", "-c", &script]);
        assert_eq!(code, Some(0));
        assert_eq!(ours.lines().filter(|line| line.contains(" execve(")).count(), 1 + 3 * 40);
    }
}

#[test]
fn straces_that_run_at_a_time_show_every_call() {
    const STRACES: usize = 6;
    const ROUNDS: usize = 6;
    const CALLS: usize = 3000;
    let bench = Bench::ring3();
    let program = victim("unterminated", "gcc", "unterminated.c", &["-O1"]);
    let trace = &|which: usize| {
        let path = bench.made_directory().join(format!("trace-{which}"));
        let mut strace = bench.load("strace");
        strace.args(["-e", "trace=chdir", "-s", "8", "-o"]).arg(&path).arg(&program);
        // (strace says of each text that it has no end.)
        let ended = strace.stdin(Stdio::null()).stderr(Stdio::null()).status().expect("it runs");
        let text = std::fs::read_to_string(&path).expect("a trace");
        let calls = text.lines().filter(|line| line.starts_with("chdir(")).count();
        assert_eq!((ended.code(), calls), (Some(0), CALLS), "{:?}", text.lines().last());
    };
    std::thread::scope(|scope| {
        for which in 0..STRACES {
            scope.spawn(move || (0..ROUNDS).for_each(|_| trace(which)));
        }
    });
}
