//! strace under ring3 where ring3 is not all there: the server ends or lets processes go, standard descriptors are closed, a job is
//! stopped. What strace prints is what it prints natively.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use ring3_tests::{Bench, Process, victim, wait_until};
use rustix::process::{Pid, Signal, kill_process_group};

fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has {
        println!("SKIPPED: strace does not run");
    }
    has
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("it runs")
}

fn count(text: &str, part: &str) -> usize {
    text.lines().filter(|line| line.contains(part)).count()
}

#[test]
fn no_call_is_lost_when_the_server_ends_or_lets_a_process_go() {
    const LINES_BEFORE: usize = 20;
    const LINES_MIN: usize = 400;
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for (how, backend) in [("stop", "streaming"), ("stop", "exact"), ("detach", "streaming"), ("detach", "exact")] {
        let mut victim = Process::start(Command::new("sh").args(["-c", "while read line; do echo \"$line\"; done"]));
        let out = bench.made_directory().join(format!("{how}-{backend}"));
        let pid = victim.pid().to_string();
        let mut strace = bench.load("strace");
        strace.args(["-e", "trace=write", "-o", &out.display().to_string(), "-p", &pid]);
        let mut strace = Process::start(strace.env("RING3_STRACE_BACKEND", backend));
        let trace = || std::fs::read_to_string(&out).unwrap_or_default();
        let mut say = |text: &str| {
            victim.say(text);
            assert_eq!(victim.line(), text);
        };
        wait_until("strace attaches", || {
            say("first");
            trace().contains("first")
        });
        (0..LINES_BEFORE).for_each(|_| say("said"));
        let arguments = if how == "stop" { vec!["stop"] } else { vec!["detach", &pid] };
        let mut asked = bench.ring3_command(&arguments).stdout(Stdio::null()).spawn().expect("it runs");
        let mut said = LINES_BEFORE;
        while asked.try_wait().expect("a child").is_none() || said < LINES_MIN {
            say("said");
            said += 1;
        }
        say("last");
        wait_until("strace shows the last call", || trace().contains("last"));
        strace.signal(Signal::INT);
        strace.wait();
        let errors = strace.finish().2.join("\n");
        let told = if how == "stop" { "ring3: the server ends" } else { "ring3 has let it go" };
        assert!(errors.contains(told) && errors.contains("ptrace"), "{how} {backend}: {errors}");
        assert_eq!(count(&trace(), "write(1, \"said\\n\", 5) "), said, "{how} {backend}");
        assert_eq!(count(&trace(), "ERESTART"), 0, "{how} {backend}");
    }
}

#[test]
fn no_execution_is_lost_when_the_server_ends() {
    const RUNS: usize = 150;
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let script = format!("i=0; while [ $i -lt {RUNS} ]; do /bin/true; i=$((i+1)); done; exit 3");
    for begun in [10, 50] {
        let out = bench.made_directory().join(format!("shell-{begun}"));
        let mut strace = bench.load("strace");
        strace.args(["-f", "-o", &out.display().to_string(), "sh", "-c", &script]);
        let strace = Process::start(&mut strace);
        let trace = || std::fs::read_to_string(&out).unwrap_or_default();
        wait_until("the shell runs", || count(&trace(), " execve(") >= begun);
        bench.run(&["stop"]);
        let (code, _, errors) = strace.finish();
        let errors = errors.join("\n");
        assert!(code == Some(3) && !errors.contains("strace: "), "{code:?} {errors}");
        let text = trace();
        let counts = [" execve(", "+++ exited with 0 +++", " exit_group("].map(|part| count(&text, part));
        assert_eq!(counts, [RUNS + 1, RUNS, RUNS + 1], "{errors}");
    }
}

#[test]
fn standard_descriptors_may_be_closed() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    for closed in ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"] {
        let run = |mut strace: Command, name: &str| {
            let out = bench.made_directory().join(name);
            strace.arg("-o").arg(&out).arg("true");
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec \"$0\" \"$@\" {closed}")]).arg(strace.get_program());
            shell.args(strace.get_args());
            for (name, value) in strace.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            let ended = output(&mut shell);
            let lines = std::fs::read_to_string(out).expect("a trace").lines().count();
            (ended.status.code(), lines, String::from_utf8_lossy(&ended.stderr).into_owned())
        };
        let theirs = run(bench.command("strace"), "theirs");
        assert_eq!(run(bench.load("strace"), "ours"), theirs, "{closed}");
    }
}

#[test]
fn a_job_that_is_stopped_and_continued_is_shown_as_natively() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let signals = |mut strace: Command, name: &str| {
        let out = bench.made_directory().join(name);
        strace.arg("-o").arg(&out).args(["sleep", "2"]).process_group(0);
        let strace = Process::start(&mut strace);
        let trace = || std::fs::read_to_string(&out).unwrap_or_default();
        wait_until("it sleeps", || trace().contains("nanosleep("));
        let group = Pid::from_raw(strace.pid() as i32).expect("not 0");
        kill_process_group(group, Signal::TSTP).expect("it lives");
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", strace.pid())).unwrap_or_default();
        wait_until("it is stopped", || state().contains(") T "));
        kill_process_group(group, Signal::CONT).expect("it lives");
        assert_eq!(strace.finish().0, Some(0));
        let text = trace();
        let lines = text.lines().filter(|line| line.contains("--- ") || line.contains("nanosleep"));
        lines.map(|line| line.split(['{', '=']).next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let theirs = signals(bench.command("strace"), "theirs");
    assert_eq!(signals(bench.load("strace"), "ours"), theirs);
    assert!(theirs.iter().any(|line| line.starts_with("--- SIGCONT")), "{theirs:?}");
}

#[test]
fn a_wait_that_ring3_interrupts_is_shown_once() {
    let bench = Bench::ring3();
    if !has_strace() {
        return;
    }
    let waits = victim("straced", "cc", "straced.c", &[]).display().to_string();
    let out = bench.made_directory().join("waits");
    let mut strace = bench.load("strace");
    strace.arg("-o").arg(&out).args(["-f", "-e", "trace=wait4", &waits, "waits"]);
    assert_eq!(output(&mut strace).status.code(), Some(0));
    let text = std::fs::read_to_string(&out).expect("a trace");
    assert_eq!((count(&text, " wait4("), count(&text, "ERESTARTSYS")), (60, 0), "{text}");
}
