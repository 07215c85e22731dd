//! The kernel's uprobes and ring3's probes on the same instruction: the program runs on as it should, in whatever order they
//! come and go.

use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_tests::{Bench, Counter, Process, assert_text_is_as_in_its_files, is_root, ready, victim, wait_until};

/// A kernel bench, a ring3 bench, and a copy of the busy victim that no other test runs: the kernel's probes are in all
/// processes of a file. `None`, said loudly, without root.
fn benches() -> Option<(Bench, Bench, PathBuf)> {
    if !is_root() {
        println!("SKIPPED: the kernel's uprobes need root");
        return None;
    }
    let native = Bench::native();
    let file = native.victim(victim("busy", "gcc", "busy.c", &[]));
    Some((native, Bench::ring3(), file))
}

fn work_in(file: &Path) -> String {
    format!("{}:work", file.display())
}

fn start(file: &Path) -> Process {
    ready(Command::new("nice").args(["-n", "5"]).arg(file).arg("3"))
}

/// Stops the victim, whose code must be that of its file, and whose results were right.
fn finish(mut process: Process) {
    assert_text_is_as_in_its_files(process.pid());
    process.say("");
    let line = process.line();
    assert!(line.ends_with(" 0"), "wrong results: {line}");
    assert_eq!(process.finish().0, Some(0));
}

fn counts_on(counter: &mut Counter, probe: &str) {
    let before = counter.total(probe);
    wait_until("more calls are counted", || counter.total(probe) > before);
}

fn attach(bench: &Bench, process: &Process) {
    let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
    assert_eq!(code, Some(0), "{error}");
}

fn detach(bench: &Bench, process: &Process) {
    let (code, _, error) = bench.run(&["detach", &process.pid().to_string()]);
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn a_probe_where_the_kernel_has_one_is_refused_and_placed_when_that_is_gone() {
    let Some((native, bench, file)) = benches() else { return };
    let probe = work_in(&file);
    let process = start(&file);
    let mut kernels = native.counting(&[&probe]);
    counts_on(&mut kernels, &probe);
    // A tool for this process gets an error, one for all processes goes on, and the status says why.
    let pid = process.pid().to_string();
    let alone = bench.load(ring3_tests::example("malloc")).args(["-p", &pid, &probe]).output().expect("it runs");
    let errors = String::from_utf8_lossy(&alone.stderr);
    assert!(errors.contains("Device or resource busy"), "{errors}");
    let mut ours = bench.counting(&[&probe]);
    attach(&bench, &process);
    let status = bench.run(&["status", "-v"]).1;
    assert!(status.contains("a breakpoint is there"), "{status}");
    counts_on(&mut kernels, &probe);
    drop(kernels);
    counts_on(&mut ours, &probe);
    detach(&bench, &process);
    finish(process);
}

#[test]
fn a_kernels_probe_over_ours_is_kept_when_ours_is_taken_out_first() {
    let Some((native, bench, file)) = benches() else { return };
    let probe = work_in(&file);
    let process = start(&file);
    let mut ours = bench.counting(&[&probe]);
    attach(&bench, &process);
    counts_on(&mut ours, &probe);
    let mut kernels = native.counting(&[&probe]);
    counts_on(&mut kernels, &probe);
    detach(&bench, &process);
    counts_on(&mut kernels, &probe);
    drop(kernels);
    finish(process);
}

#[test]
fn our_jump_under_a_kernels_probe_is_taken_back_and_written_again_after_it() {
    let Some((native, bench, file)) = benches() else { return };
    let probe = work_in(&file);
    let process = start(&file);
    let mut ours = bench.counting(&[&probe]);
    attach(&bench, &process);
    counts_on(&mut ours, &probe);
    let mut kernels = native.counting(&[&probe]);
    counts_on(&mut kernels, &probe);
    wait_until("the status says who is in the way", || {
        bench.run(&["status", "-v"]).1.contains("a breakpoint is there")
    });
    drop(kernels);
    counts_on(&mut ours, &probe);
    detach(&bench, &process);
    finish(process);
}

#[test]
fn a_server_that_dies_under_a_kernels_probe_leaves_code_that_is_restored() {
    let Some((native, bench, file)) = benches() else { return };
    let probe = work_in(&file);
    let process = start(&file);
    let mut ours = bench.counting(&[&probe]);
    attach(&bench, &process);
    counts_on(&mut ours, &probe);
    let server = bench.server();
    let mut kernels = native.counting(&[&probe]);
    counts_on(&mut kernels, &probe);
    let pid = rustix::process::Pid::from_raw(server as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("ours");
    wait_until("the server is dead", || {
        let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
        let threads = std::fs::read_dir(format!("/proc/{server}/task")).map_or(0, Iterator::count);
        stat.is_empty() || (stat.contains(") Z ") && threads == 1)
    });
    drop(ours);
    detach(&bench, &process);
    counts_on(&mut kernels, &probe);
    drop(kernels);
    finish(process);
}

#[test]
fn a_kernels_probe_on_a_system_call_does_not_leave_other_calls_replaced() {
    let Some((native, bench, _)) = benches() else { return };
    let file = native.victim(ring3_tests::calling_victims("all").join("bridged-static"));
    let process = Process::start(Command::new(&file).arg("1000000000"));
    let kernels = native.counting(&[&format!("{}:{:#x}", file.display(), first_call(&file))]);
    let mut tool = Process::start(bench.load_with_tracefs(ring3_tests::programs().join("calls")).arg("raw"));
    assert_eq!(tool.line(), "attached");
    attach(&bench, &process);
    let target = bench.status()["targets"][0].clone();
    assert!(target["syscalls_left"].to_string().contains("a breakpoint is there"), "{target}");
    assert_eq!(target["net"], serde_json::Value::Null, "{target}");
    assert!(target["syscall_sites"].as_u64() > Some(50), "{target}");
    detach(&bench, &process);
    drop(kernels);
    assert_text_is_as_in_its_files(process.pid());
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).expect("it runs");
    assert!(!stat.contains(") Z "), "{stat}");
}

/// File offset of the first system call of a program.
fn first_call(file: &Path) -> usize {
    let bytes = std::fs::read(file).expect("it is there");
    let mov_to_eax = |at: usize| bytes[at - 5] == 0xb8;
    let is_call = |at: &usize| bytes[*at..*at + 2] == [0x0f, 0x05] && mov_to_eax(*at);
    (0x1000..bytes.len() - 2).find(is_call).expect("it has calls")
}
