//! A target can be detached at any moment, whatever its threads wait in, and `ring3 detach --verify` looks what is left.

use std::process::Command;

use ring3_tests::{
    Bench, Counter, Footprint, Process, assert_text_is_as_in_its_files, programs, ready, victim, wait_until,
};

/// The functions in which threads block, or are called by those.
const FUNCTIONS: [&str; 14] = [
    "in_read",
    "in_displaced",
    "in_displaced_end",
    "in_recursion",
    "in_futex",
    "in_accept",
    "in_epoll",
    "in_poll",
    "in_select",
    "in_nanosleep",
    "in_sigwait",
    "in_handler",
    "below_handler",
    "in_fault",
];

fn blocked() -> std::path::PathBuf {
    victim("blocked", "gcc", "blocked.c", &["-fcf-protection=none"])
}

/// A tool with probes at the entries and returns of all these functions.
fn probe_all(bench: &Bench) -> Counter {
    let probes = FUNCTIONS.iter().map(|name| format!("{}:{name}", blocked().display()));
    let probes: Vec<String> = probes.flat_map(|probe| [format!("{probe}:ret"), probe]).collect();
    bench.counting(&probes.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A tool that wants all system calls.
fn trace_calls(bench: &Bench) -> Process {
    let mut tool = Process::start(bench.load_with_tracefs(programs().join("calls")).arg("raw"));
    assert_eq!(tool.line(), "attached");
    tool
}

fn attach(bench: &Bench, pid: u32) {
    let (code, _, error) = bench.run(&["attach", &pid.to_string()]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
}

fn detach_and_verify(bench: &Bench, pid: u32) {
    let (code, out, error) = bench.run(&["detach", "--verify", &pid.to_string()]);
    assert_eq!((code, out), (Some(0), format!("nothing of ring3 is left in process {pid}\n")), "{error}");
}

/// Detaches; nothing may be left.
fn detach(bench: &Bench, pid: u32, before: &Footprint) {
    detach_and_verify(bench, pid);
    assert_eq!(&Footprint::of(pid), before);
    assert_text_is_as_in_its_files(pid);
}

/// The threads go on, and each finds what it would have found.
fn let_go(mut process: Process) {
    process.say("");
    assert_eq!(process.line(), "wrong");
    assert_eq!(process.finish().0, Some(0));
}

#[test]
fn a_target_is_detached_while_threads_are_blocked_that_came_by_its_probes() {
    for calls in [false, true] {
        let bench = Bench::ring3();
        let _tool = calls.then(|| trace_calls(&bench));
        let _counter = probe_all(&bench);
        let mut process = ready(&mut Command::new(blocked()));
        attach(&bench, process.pid());
        process.say("");
        assert_eq!(process.line(), "blocked");
        detach_and_verify(&bench, process.pid());
        assert_text_is_as_in_its_files(process.pid());
        let_go(process);
    }
}

#[test]
fn a_target_is_detached_while_threads_are_blocked_that_were_so_before() {
    for calls in [false, true] {
        let bench = Bench::ring3();
        let _tool = calls.then(|| trace_calls(&bench));
        let _counter = probe_all(&bench);
        let process = ready(Command::new(blocked()).arg("late"));
        let before = Footprint::of(process.pid());
        attach(&bench, process.pid());
        detach(&bench, process.pid(), &before);
        attach(&bench, process.pid());
        detach(&bench, process.pid(), &before);
        let_go(process);
    }
}

#[test]
fn a_tool_is_told_that_a_process_was_taken_from_it() {
    let bench = Bench::ring3();
    let mut tool = trace_calls(&bench);
    let process = ready(Command::new(blocked()).arg("late"));
    attach(&bench, process.pid());
    detach_and_verify(&bench, process.pid());
    let_go(process);
    tool.say("");
    let (_, _, errors) = tool.finish();
    let told =
        errors.iter().filter(|line| line.contains("(blocked) is let go, because `ring3 detach` asks for that"));
    assert_eq!(told.count(), 1, "{errors:?}");
}

#[test]
fn verifying_shows_code_that_is_not_as_in_its_file() {
    use std::os::unix::fs::FileExt;
    let bench = Bench::ring3();
    let _counter = probe_all(&bench);
    let process = ready(Command::new(blocked()).arg("late"));
    attach(&bench, process.pid());
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid())).expect("it lives");
    let code = maps.lines().find(|line| line.contains("r-xp") && line.ends_with("/blocked")).expect("it has code");
    let end = code.split(['-', ' ']).nth(1).expect("a range");
    let end = u64::from_str_radix(end, 16).expect("hexadecimal");
    let memory = std::fs::File::options().write(true).open(format!("/proc/{}/mem", process.pid())).expect("ours");
    memory.write_all_at(&[0x90], end - 1).expect("written");
    let (code, _, error) = bench.run(&["detach", "--verify", &process.pid().to_string()]);
    let line = format!("1 bytes differ from its file, first at {:#x}", end - 1);
    assert!(code == Some(1) && error.contains(&line), "{error}");
    let_go(process);
}

#[test]
fn a_parent_that_waits_for_its_vfork_child_is_detached_once_it_can_be_stopped() {
    let bench = Bench::ring3();
    let _counter = probe_all(&bench);
    let mut process = ready(Command::new(blocked()).arg("vfork"));
    let before = Footprint::of(process.pid());
    attach(&bench, process.pid());
    process.say("");
    assert_eq!(process.line(), "blocked");
    let stat = format!("/proc/{}/stat", process.pid());
    wait_until("its child is there", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") D ")));
    let (code, _, error) = bench.run(&["detach", &process.pid().to_string()]);
    assert!(code == Some(1) && error.contains("it is detached once it can be stopped"), "{error}");
    process.say("");
    assert_eq!(process.line(), "wrong");
    wait_until("it is free of everything", || Footprint::of(process.pid()) == before);
    assert_text_is_as_in_its_files(process.pid());
    assert_eq!(process.finish().0, Some(0));
}

#[test]
fn a_process_that_a_debugger_holds_is_detached_once_that_lets_go() {
    let bench = Bench::ring3();
    let _counter = probe_all(&bench);
    let process = ready(Command::new(blocked()).arg("late"));
    let before = Footprint::of(process.pid());
    attach(&bench, process.pid());
    let mut debugger = ready(Command::new(blocked()).args(["hold", &process.pid().to_string()]));
    let (code, _, error) = bench.run(&["detach", &process.pid().to_string()]);
    assert!(code == Some(1) && error.contains("it is detached once it can be stopped"), "{error}");
    debugger.say("");
    assert_eq!(debugger.finish().0, Some(0));
    wait_until("it is free of everything", || Footprint::of(process.pid()) == before);
    assert_text_is_as_in_its_files(process.pid());
    let_go(process);
}

/// That of a thread with AVX-512 state is too large for the vDSO, too: it lies in the region, which goes while the thread is borrowed.
#[test]
fn a_thread_whose_rescue_frame_is_not_in_the_vdso_is_given_back_without_an_error() {
    use std::os::unix::fs::FileExt;
    let bench = Bench::ring3();
    let _counter = probe_all(&bench);
    let process = ready(Command::new(blocked()).arg("late"));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid())).expect("it lives");
    let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).expect("it has one");
    let end = vdso.split(['-', ' ']).nth(1).expect("a range");
    let end = u64::from_str_radix(end, 16).expect("hexadecimal");
    let memory = std::fs::File::options().write(true).open(format!("/proc/{}/mem", process.pid())).expect("ours");
    memory.write_all_at(&[1], end - 1).expect("written");
    for _ in 0..2 {
        attach(&bench, process.pid());
        detach_and_verify(&bench, process.pid());
    }
    let log = std::fs::read_to_string(bench.directory().join("server.log")).expect("it is there");
    assert!(!log.contains("ERROR"), "{log}");
    let_go(process);
}

/// Its jump would lead astray from there: the program crashed.
#[test]
fn a_process_that_moves_code_with_a_probe_is_let_go_before() {
    let bench = Bench::ring3();
    let binary = victim("moves", "gcc", "moves.c", &[]);
    let probe = format!("{}:moved", binary.display());
    let mut tool = bench.counting(&[&probe, &format!("{probe}:ret"), &format!("{}:behind", binary.display())]);
    let mut process = ready(&mut bench.target(&binary));
    process.say("go");
    let (code, lines, errors) = process.finish();
    assert_eq!((code, lines), (Some(7), ["6 3", "9", "0", "3", "6"].map(str::to_owned).to_vec()), "{errors:?}");
    assert!(errors.iter().any(|line| line.contains("about to move code that is probed")), "{errors:?}");
    assert_eq!(tool.total(&probe), 2);
}
