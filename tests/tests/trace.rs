//! `ring3 trace`: what it shows is what strace shows, what filters leave, and what it says of mistakes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ring3_tests::{Bench, Process, ready, victim, wait_until};
use serde_json::json;

fn asks() -> PathBuf {
    victim("asks", "gcc", "asks.c", &[])
}

/// What a line of a call tells that is the same in two runs: its name, what is quoted in it, and its result, if that is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    name: String,
    quoted: Vec<String>,
    result: String,
}

/// The calls of a trace; lines of signals and ends of processes are none.
fn calls(lines: &str) -> Vec<Call> {
    lines.lines().filter_map(call).collect()
}

fn call(line: &str) -> Option<Call> {
    let line = match line.strip_prefix("[pid") {
        Some(rest) => rest.split_once("] ")?.1,
        None => line,
    };
    let (name, rest) = line.split_once('(')?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return None;
    }
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let result = result.split(" (").next().unwrap_or_default().trim();
    let result = if result.starts_with("0x") || is_id(name) { "varies" } else { result };
    // (What a failed call has not read is an address in strace, and empty in ring3.)
    let quoted = if name == "read" && result.starts_with("-1 ") { vec![] } else { quoted(arguments) };
    Some(Call { name: name.to_owned(), quoted, result: result.to_owned() })
}

/// Whether a call's result differs in each run.
fn is_id(name: &str) -> bool {
    matches!(
        name,
        "getpid" | "getppid" | "gettid" | "set_tid_address" | "clone" | "clone3" | "vfork" | "wait4" | "getrandom"
    )
}

/// The texts in quotation marks, with what follows directly (`...` where it is cut).
fn quoted(text: &str) -> Vec<String> {
    let mut found = vec![];
    let mut rest = text;
    while let Some(begin) = rest.find('"') {
        let mut end = begin + 1;
        let bytes = rest.as_bytes();
        while end < bytes.len() && bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        let end = (end + 1).min(rest.len());
        let cut = rest[end..].starts_with("...");
        found.push(format!("{}{}", &rest[begin..end], if cut { "..." } else { "" }));
        rest = &rest[end..];
    }
    found
}

/// What strace shows of a program, natively; `None` without strace.
fn strace(options: &[&str], command: &[&str]) -> Option<Vec<Call>> {
    let mut strace = Command::new("strace");
    // (Cargo's directories of libraries are not for programs that are traced.)
    strace.env_remove("LD_LIBRARY_PATH").args(options).args(command).stdin(Stdio::null()).stdout(Stdio::null());
    match strace.output() {
        Ok(output) => Some(calls(&String::from_utf8_lossy(&output.stderr))),
        Err(error) => {
            println!("SKIPPED: strace does not run: {error}");
            None
        }
    }
}

/// What `ring3 trace` shows of it.
fn trace(bench: &Bench, options: &[&str], command: &[&str]) -> (Option<i32>, String) {
    let mut trace = bench.ring3_command(&["trace"]);
    trace.args(options).arg("--").args(command).stdin(Stdio::null()).stdout(Stdio::null());
    let output = trace.output().expect("ring3 runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn assert_equal(ours: &[Call], theirs: &[Call], what: &str) {
    for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours, theirs, "call {at} of {what}");
    }
    assert_eq!(ours.len(), theirs.len(), "{what}: {:?} {:?}", ours.last(), theirs.last());
}

/// Calls without structures (tests/structures.rs has those).
const COMPARED: &str = "open,openat,read,write,close,access,rename,pipe,pipe2,mkdir,kill,lseek,getppid,readlink,getcwd,chdir,unlink,\
                        dup,dup2,exit_group,pread64,munmap,mprotect,brk,mmap";

#[test]
fn calls_of_programs_are_those_that_strace_shows() {
    let bench = Bench::ring3();
    let long = ["sort", "/etc/services"];
    for command in
        [&["cat", "/etc/hostname"][..], &["ls", "/etc"], &long, &["pwd"], &["sh", "-c", "cd /tmp; echo hello"]]
    {
        let trace_option = format!("trace={COMPARED}");
        let Some(theirs) = strace(&["-e", &trace_option], command) else { return };
        let (_, ours) = trace(&bench, &["-e", COMPARED], command);
        assert!(theirs.len() > 5, "{theirs:?}");
        assert_equal(&calls(&ours), &theirs, &command.join(" "));
    }
}

#[test]
fn arguments_of_every_kind_are_shown_as_strace_shows_them() {
    let bench = Bench::ring3();
    let asks = asks();
    let command = [asks.to_str().expect("UTF-8"), "arguments"];
    let Some(theirs) = strace(&["-e", &format!("trace={COMPARED}")], &command) else { return };
    let (_, ours) = trace(&bench, &["-e", COMPARED], &command);
    assert_equal(&calls(&ours), &theirs, "asks");
    let lines: Vec<&str> = ours.lines().collect();
    let opened = |arguments: &str| lines.iter().any(|line| line.starts_with("open") && line.contains(arguments));
    assert!(
        opened("NULL, O_RDONLY) ") && opened("<unreadable>, O_RDONLY) ") && opened("O_WRONLY|O_CREAT|O_EXCL, 0640) "),
        "{ours}"
    );
    for line in ["access(\"/\", F_OK)                       = 0", "exit_group(0)                           = ?"] {
        assert!(lines.contains(&line), "{line}\n{ours}");
    }
}

#[test]
fn lines_of_a_child_that_is_seen_first_begin_with_its_id() {
    let bench = Bench::ring3();
    let (code, lines) = trace(&bench, &["-e", "exit_group"], &["sh", "-c", "sh -c 'exit 3'; true"]);
    let child = lines.lines().find(|line| line.contains("exit_group(3)")).unwrap_or_else(|| panic!("{lines}"));
    assert!(child.starts_with("[pid "), "{lines}");
    let (_, lines) = trace(&bench, &["-e", "exit_group"], &["sh", "-c", "exit 3"]);
    assert!(lines.starts_with("exit_group(3)"), "{lines}");
    assert_eq!(code, Some(0));
}

#[test]
fn every_call_is_counted_of_threads_children_and_after_exec() {
    let bench = Bench::ring3();
    let asks = asks();
    let asks = asks.to_str().expect("UTF-8");
    let shell = format!("{asks} calls 100; {asks} threads 50; exec {asks} children 7");
    for (command, count) in [
        (&[asks, "calls", "1234"][..], 1234),
        (&[asks, "threads", "500"], 4000),
        (&[asks, "children", "30"], 30),
        (&["sh", "-c", &shell], 100 + 400 + 7),
    ] {
        let (code, lines) = trace(&bench, &["-e", "getppid"], command);
        let of_shell = if command[0] == "sh" { 1 } else { 0 };
        let seen = calls(&lines).iter().filter(|call| call.name == "getppid").count();
        assert!((count..=count + of_shell).contains(&seen), "{command:?}: {seen} of {count}");
        assert_eq!(code, Some(0));
        let (_, table) = trace(&bench, &["-c", "-e", "getppid"], command);
        let row = table.lines().find(|line| line.ends_with(" getppid")).unwrap_or_else(|| panic!("{table}"));
        let counted: usize = row.split_whitespace().nth(6).expect("a column").parse().expect("a number");
        assert_eq!(counted, seen, "{table}");
    }
}

#[test]
fn calls_of_a_signal_handler_are_shown_wherever_it_comes_and_spoil_no_others() {
    let bench = Bench::ring3();
    let ticking = victim("ticking", "gcc", "ticking.c", &[]);
    let file = std::env::temp_dir().join(format!("ring3-ticks-{}.txt", std::process::id()));
    let file_name = file.display().to_string();
    let options = ["-e", "getuid,getppid", "--buffer", "256", "-o", &file_name];
    let mut command = bench.ring3_command(&["trace"]);
    command.args(options).arg("--").arg(&ticking);
    let output = command.output().expect("ring3 runs");
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let made: Vec<usize> = printed.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    let shown = calls(&std::fs::read_to_string(&file).expect("the trace"));
    std::fs::remove_file(&file).expect("it is there");
    let of = |name: &str| shown.iter().filter(|call| call.name == name).count();
    assert_eq!([of("getuid"), of("getppid")], made[..], "{said}");
    assert!(!said.contains("lost"), "{said}");
}

#[test]
fn what_ring3_does_before_the_program_begins_is_not_analysed() {
    // (ring3 and the libraries that it is linked to may be large: their analysis would take seconds.)
    const TICKS_MAX: u64 = 150;
    let bench = Bench::ring3();
    let (code, shown) = trace(&bench, &["-e", "execve,exit_group"], &["true"]);
    assert_eq!(code, Some(0));
    let names: Vec<String> = calls(&shown).into_iter().map(|call| call.name).collect();
    assert_eq!(names, ["execve", "exit_group"], "{shown}");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", bench.server())).expect("the server runs");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks = |field: usize| fields[field - 3].parse::<u64>().expect("a number");
    assert!(ticks(14) + ticks(15) < TICKS_MAX, "the server has worked for that: {stat}");
}

#[test]
fn a_filter_leaves_what_it_says() {
    let bench = Bench::ring3();
    let asks = asks();
    let command = [asks.to_str().expect("UTF-8"), "arguments"];
    let left = |filter: &str| {
        let (code, lines) = trace(&bench, &["--filter", filter], &command);
        assert_eq!(code, Some(0), "{filter}: {lines}");
        calls(&lines)
    };
    let all = calls(&trace(&bench, &[], &command).1);
    let check = |filter: &str, wanted: &dyn Fn(&Call) -> bool| {
        let wanted: Vec<Call> = all.iter().filter(|call| wanted(call)).cloned().collect();
        assert!(!wanted.is_empty(), "{filter}");
        assert_equal(&left(filter), &wanted, filter);
    };
    let failed = |call: &Call| call.result.starts_with("-1 ");
    let below = |call: &Call, prefix: &str| call.quoted.first().is_some_and(|text| text.starts_with(prefix));
    check("ret < 0", &failed);
    check("ret == -ENOENT", &|call| call.result == "-1 ENOENT");
    check(r#"ret < 0 && path ~ "/nonexistent/*""#, &|call| failed(call) && below(call, "\"/nonexistent/"));
    check(r#"path ~ "*.so*" || event ~ "pipe*""#, &|call| {
        call.name.starts_with("pipe")
            || call.quoted.first().is_some_and(|text| text.contains(".so")) && call.name != "read"
    });
    check("count == 40", &|call| call.name == "write" && call.result == "40");
    check("fd == -1 && ret < 0", &|call| call.name != "mmap" && call.result == "-1 EBADF");
    assert_eq!(left(r#"comm == "another""#), []);
    // What is never true is not even probed.
    assert_eq!(left(r#"event == "nothing""#), []);
}

#[test]
fn the_exit_code_is_the_programs_and_mistakes_are_explained() {
    let bench = Bench::ring3();
    let asks = asks();
    let asks = asks.to_str().expect("UTF-8");
    for (command, code) in [(&[asks, "exit", "3"][..], 3), (&[asks, "die", "9"], 137), (&[asks, "die", "15"], 143)] {
        assert_eq!(trace(&bench, &["-e", "exit_group,kill"], command).0, Some(code), "{command:?}");
    }
    let said = |options: &[&str], command: &[&str]| {
        let mut arguments = vec!["trace"];
        arguments.extend(options.iter().chain(command));
        let (code, out, error) = bench.run(&arguments);
        assert_eq!(out, "");
        (code.expect("it exits"), error)
    };
    for (options, command, code, wanted) in [
        (&["-e", "opne"][..], &["true"][..], 2, "there is no such system call"),
        (&["-e", "%fil"], &["true"], 2, "groups are %file, %desc"),
        (&["-e", "uprobe:/nonexistent:f"], &["true"], 2, "cannot open /nonexistent"),
        (&["-e", "usdt:/bin/true:a:b"], &["true"], 2, "no static tracepoints"),
        (&["--filter", "ret = 3"], &["true"], 2, "ring3: filter, column 5: `=` compares nothing; write `==`"),
        (
            &["--filter", "pth == \"x\""],
            &["true"],
            2,
            "ring3: filter, column 1: none of these events has a field `pth`",
        ),
        (&["--buffer", "3"], &["true"], 2, "power of two"),
        (&["-o", "/nonexistent/file"], &["true"], 1, "cannot write /nonexistent/file"),
        (&[], &["/nonexistent/program"], 127, "/nonexistent/program"),
        (&[], &[], 2, "what is to be traced?"),
        (&["-p", "4194305"], &[], 1, "there is no process 4194305"),
    ] {
        let (exit, error) = said(options, command);
        assert!(exit == code && error.contains(wanted), "{options:?} {command:?}: {exit} {error}");
    }
}

#[test]
fn a_program_whose_trace_cannot_be_written_runs_to_its_end() {
    let bench = Bench::ring3();
    let done = bench.made_directory().join("done");
    let script = "for i in 1 2 3 4 5 6; do sleep 0.1; done; touch \"$0\"";
    let command = ["trace", "-o", "/dev/full", "sh", "-c", script, done.to_str().expect("a plain name")];
    let (code, _, error) = bench.run(&command);
    assert_eq!(code, Some(1), "{error}");
    let told = "ring3: cannot write /dev/full: No space left on device (os error 28); tracing has ended, the program runs on\n";
    assert_eq!(error, told);
    assert!(done.exists(), "it is waited for");
}

#[test]
fn a_dash_is_standard_output() {
    let bench = Bench::ring3();
    let mut command = bench.ring3_command(&["trace", "-o", "-", "-e", "exit_group", "true"]);
    let output = command.current_dir(bench.made_directory()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("exit_group(0)"), "{text} {}", String::from_utf8_lossy(&output.stderr));
    assert!(!bench.made_directory().join("-").exists());
}

#[test]
fn a_running_process_is_traced_until_ctrl_c_and_goes_on() {
    let bench = Bench::ring3();
    let mut victim = ready(Command::new(asks()).arg("loop").stdin(Stdio::piped()));
    let pid = victim.pid().to_string();
    let mut trace = bench.ring3_command(&["trace", "-e", "getppid", "-o", "/dev/stdout", "-p", &pid]);
    let mut trace = Process::start(&mut trace);
    // (The first calls may be made before it is attached.)
    let line = std::iter::repeat_with(|| {
        victim.say("abc");
        std::thread::sleep(std::time::Duration::from_millis(50));
        trace.lines_so_far()
    })
    .take(200)
    .find(|lines| !lines.is_empty())
    .expect("calls are seen");
    assert!(line[0].contains("getppid()"), "{line:?}");
    trace.signal(rustix::process::Signal::INT);
    assert_eq!(trace.wait(), Some(0));
    victim.say("more");
    drop(victim);
}

/// Two children that read what their parent is told.
fn family() -> Process {
    let script = "exec 3<&0; cat <&3 & cat <&3 & echo ready; wait";
    let mut parent = Process::start(Command::new("sh").args(["-c", script]).stdin(Stdio::piped()));
    assert_eq!(parent.line(), "ready");
    parent
}

#[test]
fn children_that_a_process_has_are_attached_with_it() {
    let (bench, parent, other) = (Bench::ring3(), family(), family());
    let pids = [parent.pid().to_string(), other.pid().to_string()];
    let (code, out, errors) = bench.run(&["attach", &pids[0], &pids[1]]);
    let whose = |name: &str| out.lines().filter(|line| line.contains(name)).count();
    assert_eq!((code, errors.as_str(), whose("(sh)"), whose("(cat)")), (Some(0), "", 2, 4), "{out}");
    let (code, _, errors) = bench.run(&["detach", "1", &pids[0], &pids[1]]);
    let targets = bench.status()["targets"].as_array().map_or(0, Vec::len);
    assert_eq!((code, targets), (Some(1), 4), "{errors}");
}

#[test]
fn children_that_a_process_has_are_traced_with_it() {
    let (bench, mut parent) = (Bench::ring3(), family());
    let pid = parent.pid().to_string();
    let mut trace = bench.ring3_command(&["trace", "-e", "read", "-o", "/dev/stdout", "-p", &pid]);
    let mut trace = Process::start(&mut trace);
    let line = std::iter::repeat_with(|| {
        parent.say("to whom it may concern");
        parent.line();
        std::thread::sleep(std::time::Duration::from_millis(50));
        trace.lines_so_far()
    });
    let line = line.take(200).find(|lines| !lines.is_empty()).expect("calls are seen");
    assert!(line[0].contains("to whom it may concern"), "{line:?}");
    trace.signal(rustix::process::Signal::INT);
    assert_eq!(trace.wait(), Some(0));
}

/// The table was empty: the programs' counts end with the server.
#[test]
fn counts_are_shown_when_the_server_has_ended() {
    let bench = Bench::ring3();
    let victim =
        Process::start(std::process::Command::new("sh").args(["-c", "while read line < /dev/zero; do :; done"]));
    let pid = victim.pid().to_string();
    let trace = Process::start(&mut bench.ring3_command(&["trace", "-c", "-e", "read", "-p", &pid]));
    wait_until("it is a target", || bench.status()["targets"].as_array().is_some_and(|targets| !targets.is_empty()));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(bench.run(&["stop"]).0, Some(0));
    trace.signal(rustix::process::Signal::INT);
    let (code, lines, errors) = trace.finish();
    assert_eq!(code, Some(0), "{errors:?}");
    assert!(errors.iter().any(|line| line.contains("the counts ended with the server")), "{errors:?}");
    assert!(lines.iter().chain(&errors).any(|line| line.ends_with(" read")), "{lines:?} {errors:?}");
    drop(victim);
}

#[test]
fn an_ordinary_user_traces_his_own_programs() {
    if !ring3_tests::is_root() {
        println!("SKIPPED: needs root, to become another user");
        return;
    }
    let bench = Bench::ring3_as(65534);
    let file = bench.copy(&asks());
    let (code, lines) = trace(&bench, &["-e", "getppid"], &[file.to_str().expect("UTF-8"), "calls", "25"]);
    assert_eq!((code, calls(&lines).len()), (Some(0), 25), "{lines}");
}

#[test]
fn probes_of_functions_and_tracepoints_are_events() {
    let bench = Bench::ring3();
    let file = bench.victim(victim("marked", "gcc", "marked.c", &[]));
    let path = file.to_str().expect("UTF-8");
    let mut trace = bench.ring3_command(&["trace", "-o", "/dev/stderr", "-e"]);
    trace.arg(format!("usdt:{path}:*,exit_group")).arg("--").arg(&file);
    let mut process = ready(&mut trace);
    for line in ["guarded 5", "shared 4", "open 3"] {
        process.say(line);
        process.line();
    }
    let (code, _, lines) = process.finish();
    assert_eq!(code, Some(0));
    let wanted = [":guarded(arg0=4, ", ":shared(arg0=3", ":open(arg0=1"];
    for wanted in wanted {
        assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted}: {lines:?}");
    }
}

#[test]
fn results_of_functions_have_their_types_and_filters_can_give_them_one() {
    let bench = Bench::ring3();
    let traced = |file: &Path, function: &str, filter: Option<&str>| {
        let path = file.to_str().expect("UTF-8");
        let event = format!("uretprobe:{path}:{function}");
        let mut options = vec!["-e", &event];
        options.extend(filter.iter().flat_map(|filter| ["--filter", filter]));
        let (_, lines) = trace(&bench, &options, &[path]);
        let values = lines.lines().filter_map(|line| Some(line.split_once("(retval=")?.1.trim_end_matches(')')));
        (values.map(str::to_owned).collect::<Vec<_>>(), lines)
    };
    let typed = bench.victim(victim("results", "gcc", "results.c", &["-g"]));
    for (function, values) in [
        ("number", ["-1", "0", "1"]),
        ("wide", ["-1", "0", "1"]),
        ("is_positive", ["false", "false", "true"]),
        ("color", ["RED", "GREEN", "BLUE"]),
    ] {
        assert_eq!(traced(&typed, function, None).0, values, "{function}");
    }
    let (texts, lines) = traced(&typed, "text", None);
    assert!(texts[..2] == ["NULL", "NULL"] && texts[2].starts_with("0x"), "{lines}");
    assert_eq!(
        traced(&typed, "number", Some("retval < 0")),
        (vec!["-1".to_owned()], "results:number%return(retval=-1)\n".to_owned())
    );
    let untyped = bench.victim(victim("results_untyped", "gcc", "results.c", &["-g0"]));
    let minus_one = vec![u32::MAX.to_string()];
    assert_eq!(traced(&untyped, "number", Some("(int)retval < 0")).0, minus_one);
    assert_eq!(traced(&untyped, "number", Some("(s32)retval == -1")).0, minus_one);
    assert!(traced(&untyped, "text", None).0[2].starts_with("0x"));
    let (values, lines) = traced(&untyped, "number", Some("retval < 0"));
    assert!(values.is_empty() && lines.matches("write `(int)retval`").count() == 1, "{lines}");
    let path = untyped.to_str().expect("UTF-8");
    let (code, lines) = trace(&bench, &["-e", &format!("uprobe:{path}:number"), "--filter", "arg0 < 0"], &[path]);
    assert!(code == Some(2) && lines.contains("write `(int)arg0`"), "{lines}");
}

#[test]
fn the_call_that_executes_the_program_has_the_programs_name() {
    let bench = Bench::ring3();
    let names = |options: &[&str]| -> Vec<String> {
        let (code, lines) = trace(&bench, options, &["true"]);
        assert_eq!(code, Some(0), "{lines}");
        calls(&lines).into_iter().map(|call| call.name).collect()
    };
    let events = "execve,prctl,rt_sigaction,close,exit_group";
    let filtered = names(&["-e", events, "--filter", r#"comm == "true""#]);
    assert_eq!(filtered.first().map(String::as_str), Some("execve"));
    // (Nothing that ring3 does before is shown.)
    assert_eq!(names(&["-e", events]), filtered);
}

#[test]
fn the_time_of_day_is_shown_as_strace_shows_it() {
    let bench = Bench::ring3();
    let time = |option: &str| {
        let (_, lines) = trace(&bench, &["-e", "exit_group", option], &["true"]);
        lines.split(' ').next().unwrap_or_default().to_owned()
    };
    let shape = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "0");
    assert_eq!(shape(&time("-tt")), "00:00:00.000000");
    for option in ["-t", "-ttt"] {
        assert_eq!(shape(&time(option)), "0000000000.000000000", "{option}");
    }
}

#[test]
fn a_library_is_found_by_its_name_and_a_program_in_path() {
    let bench = Bench::ring3();
    for (event, begin) in
        [("uprobe:libc:malloc", "libc.so.6:malloc(arg0="), ("uprobe:libc.so.6:malloc", "libc.so.6:malloc(arg0=")]
    {
        let (_, lines) = trace(&bench, &["-e", event], &["sort", "/etc/hostname"]);
        assert!(lines.lines().any(|line| line.starts_with(begin)), "{event}: {lines}");
    }
}

#[test]
fn lines_say_which_thread_while_there_are_several() {
    let bench = Bench::ring3();
    let (_, lines) =
        trace(&bench, &["-e", "exit_group,wait4"], &["sh", "-c", "sh -c 'exit 3'; sh -c 'exit 4'; exit 5"]);
    let with_ids: Vec<bool> = lines.lines().map(|line| line.starts_with("[pid ")).collect();
    let shown: Vec<&str> = lines.lines().map(|line| line.split_once("] ").map_or(line, |(_, line)| line)).collect();
    for (line, has_id) in shown.iter().zip(with_ids) {
        let is_of_child = ["exit_group(3)", "exit_group(4)", "+++ exited with 3", "+++ exited with 4"];
        let is_of_child = is_of_child.iter().any(|begin| line.starts_with(begin));
        assert_eq!(has_id, is_of_child, "{line}\n{lines}");
    }
    assert_eq!(shown.last(), Some(&"+++ exited with 5 +++"), "{lines}");
}

/// The lines that say how threads ended, sorted, without their ids.
fn ends(lines: &str) -> Vec<String> {
    let mut ends: Vec<String> =
        lines.lines().filter_map(|line| line.find("+++").map(|at| line[at..].to_owned())).collect();
    // (That a signal has ended a process is shown some milliseconds later.)
    ends.sort();
    ends
}

#[test]
fn ends_of_threads_are_shown_as_strace_shows_them() {
    let bench = Bench::ring3();
    let asks = asks();
    let threads = asks.to_str().expect("UTF-8");
    let script = format!("sh -c 'exit 3'; sh -c 'kill -KILL $$'; sh -c 'kill -SEGV $$'; {threads} threads 3; exit 7");
    let command = ["sh", "-c", &script];
    let mut strace = Command::new("strace");
    strace.env_remove("LD_LIBRARY_PATH").args(["-f", "-e", "trace=none"]);
    let Ok(theirs) = strace.args(command).stdout(Stdio::null()).output() else {
        println!("SKIPPED: strace does not run");
        return;
    };
    let theirs = ends(&String::from_utf8_lossy(&theirs.stderr));
    assert_eq!(theirs.len(), 3 + 9 + 1, "{theirs:?}");
    let (code, lines) = trace(&bench, &["-e", "exit_group"], &command);
    assert_eq!((code, ends(&lines)), (Some(7), theirs), "{lines}");
    // A process that runs already, and whose end nobody has asked for.
    let victim = ready(Command::new(&asks).arg("loop").stdin(Stdio::piped()));
    let pid = victim.pid();
    let mut trace = bench.ring3_command(&["trace", "-e", "getppid", "-p", &pid.to_string()]);
    let trace = Process::start(trace.stdin(Stdio::null()));
    wait_until("it is a target", || bench.is_target(pid));
    victim.signal(rustix::process::Signal::TERM);
    let (code, _, lines) = trace.finish();
    assert_eq!((code, ends(&lines.join("\n"))), (Some(0), vec!["+++ killed by SIGTERM +++".to_owned()]), "{lines:?}");
}

#[test]
fn ends_of_threads_are_events_of_files_and_filters() {
    let bench = Bench::ring3();
    let file = bench.made_directory().join("ends.json");
    let mut record = bench.ring3_command(&["record", "-e", "tracepoint:sched:sched_process_exit", "-o"]);
    let command = ["sh", "-c", "sh -c 'exit 3'; sh -c 'kill -KILL $$'; exit 7"];
    let status = record.arg(&file).arg("--").args(command).stdin(Stdio::null()).status().expect("ring3 runs");
    assert_eq!(status.code(), Some(7));
    let text = std::fs::read_to_string(&file).expect("written");
    let ended = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(event["event"], "sched:sched_process_exit");
        ["code", "signal"].map(|name| event["fields"][name].clone())
    };
    let mut ended: Vec<_> = text.lines().map(ended).collect();
    ended.sort_by_key(|ended| ended[0].as_u64());
    assert_eq!(ended, [[json!(0), json!("SIGKILL")], [json!(3), json!(0)], [json!(7), json!(0)]]);
    let (_, lines) = trace(&bench, &["-e", "exit_group", "--filter", "code == 3 || signal == SIGKILL"], &command);
    assert_eq!(ends(&lines), ["+++ exited with 3 +++", "+++ killed by SIGKILL +++"], "{lines}");
}
