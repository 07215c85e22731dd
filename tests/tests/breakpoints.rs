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
    await_breakpoint_in_status(&bench);
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
    assert_eq!(target["sud"], serde_json::Value::Null, "{target}");
    assert!(target["syscall_sites"].as_u64() > Some(50), "{target}");
    detach(&bench, &process);
    drop(kernels);
    assert_text_is_as_in_its_files(process.pid());
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).expect("it runs");
    assert!(!stat.contains(") Z "), "{stat}");
}

/// Waits until the server has seen the kernel's probe, and says so.
fn await_breakpoint_in_status(bench: &Bench) {
    wait_until("the status says who is in the way", || {
        bench.run(&["status", "-v"]).1.contains("a breakpoint is there")
    });
}

/// Victims whose function begins with `push rbp`, and with `endbr64`: the kernel's probe is on an instruction of fewer than 5 bytes.
fn short_victims(native: &Bench) -> [PathBuf; 2] {
    let framed = victim("busy-framed", "gcc", "busy.c", &["-O0"]);
    let branching = victim("busy-branching", "gcc", "busy.c", &["-fcf-protection=branch"]);
    [framed, branching].map(|file| native.victim(file))
}

/// A victim that is attached to, and whose probe is a one-byte jump. (The kernel may have put something else at the stub's address.)
fn start_with_one_byte(bench: &Bench, file: &Path, ours: &mut Counter, probe: &str) -> Process {
    const TRIES_MAX: usize = 20;
    for _ in 0..TRIES_MAX {
        let process = start(file);
        attach(bench, &process);
        counts_on(ours, probe);
        let targets = bench.status()["targets"].as_array().cloned().unwrap_or_default();
        let target = targets.iter().find(|target| target["pid"] == process.pid()).expect("it is a target");
        if target["sites"][0]["tactic"] == "one-byte jump" {
            return process;
        }
        detach(bench, &process);
        finish(process);
    }
    panic!("{}: never a one-byte jump", file.display());
}

#[test]
fn a_kernels_probe_over_ours_on_a_short_instruction_is_safe_for_long() {
    let Some((native, bench, _)) = benches() else { return };
    for file in short_victims(&native) {
        let probe = work_in(&file);
        let mut ours = bench.counting(&[&probe]);
        let process = start_with_one_byte(&bench, &file, &mut ours, &probe);
        let mut kernels = native.counting(&[&probe]);
        counts_on(&mut kernels, &probe);
        await_breakpoint_in_status(&bench);
        counts_on(&mut kernels, &probe);
        drop(kernels);
        counts_on(&mut ours, &probe);
        detach(&bench, &process);
        finish(process);
    }
}

#[test]
fn kernels_probes_that_come_and_go_before_the_server_sees_them_are_safe() {
    let Some((native, bench, file)) = benches() else { return };
    let [framed, branching] = short_victims(&native);
    for file in [file, framed, branching] {
        let probe = work_in(&file);
        let mut ours = bench.counting(&[&probe]);
        let process = start_with_one_byte(&bench, &file, &mut ours, &probe);
        for _ in 0..10 {
            let mut kernels = native.counting(&[&probe]);
            counts_on(&mut kernels, &probe);
        }
        counts_on(&mut ours, &probe);
        detach(&bench, &process);
        finish(process);
    }
}

#[test]
fn a_second_probe_within_the_bytes_of_a_one_byte_jump_is_counted_too() {
    let Some((native, bench, _)) = benches() else { return };
    // Behind `push rbp`, and before it.
    let [file, _] = short_victims(&native);
    let output = Command::new("nm").arg(&file).output().expect("nm runs");
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    let work = symbols.lines().find_map(|line| line.strip_suffix(" T work")).expect("it has the function");
    // (The file's code is at its own offsets.)
    let work = u64::from_str_radix(work, 16).expect("an address");
    let [probe, inside] = [work, work + 1].map(|offset| format!("{}:{offset:#x}", file.display()));
    for (first, second) in [(&probe, &inside), (&inside, &probe)] {
        let mut ours = bench.counting(&[first]);
        let process = start_with_one_byte(&bench, &file, &mut ours, first);
        let mut others = bench.counting(&[second]);
        counts_on(&mut others, second);
        counts_on(&mut ours, first);
        drop(ours);
        counts_on(&mut others, second);
        detach(&bench, &process);
        finish(process);
    }
}

#[test]
fn kernels_probes_over_ours_in_bash_and_its_c_library_are_safe() {
    let Some((native, bench, _)) = benches() else { return };
    // Of their own: the kernel's probes are in all processes of a file.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("ours");
    let library =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("libc.so"));
    let (shell, library) = (native.victim("/bin/bash".into()), native.victim(library.expect("it is mapped").into()));
    let functions = ["expand_word", "hash_search", "make_word", "xmalloc", "find_variable", "dispose_words"];
    let of_library = ["malloc", "free", "strlen", "sigprocmask", "write", "mbrtowc", "realloc"];
    let in_shell = functions.iter().map(|name| format!("{}:{name}", shell.display()));
    let probes: Vec<String> =
        in_shell.chain(of_library.iter().map(|name| format!("{}:{name}", library.display()))).collect();
    let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
    let mut command = Command::new("nice");
    command.args(["-n", "5"]).arg(&shell).args(["--norc", "-c"]);
    command.arg("echo ready; i=0; until read -t 0 line; do i=$((i+1)); a=\"b$i\"; c=($a d); done; echo $((i>0))");
    command.env("LD_LIBRARY_PATH", native.directory());
    let mut process = ready(&mut command);
    let mut ours = bench.counting(&probes);
    attach(&bench, &process);
    let sites = bench.status()["targets"][0]["sites"].as_array().cloned().unwrap_or_default();
    let is_one_byte = |probe: &&str| {
        let name = probe.rsplit(':').next().expect("it has a name");
        sites.iter().any(|site| {
            site["symbol"].as_str().is_some_and(|symbol| symbol.ends_with(name)) && site["tactic"] == "one-byte jump"
        })
    };
    // (Something else may be at the address of a stub.)
    let safe: Vec<&str> = probes.iter().copied().filter(is_one_byte).collect();
    assert!(safe.len() * 2 > sites.len() && safe.contains(&probes[7]), "{sites:#?}");
    counts_on(&mut ours, probes[7]);
    for round in 0..4 {
        let mut kernels = native.counting(&safe);
        counts_on(&mut kernels, probes[7]);
        if round == 3 {
            await_breakpoint_in_status(&bench);
            counts_on(&mut kernels, probes[7]);
        }
    }
    counts_on(&mut ours, probes[7]);
    detach(&bench, &process);
    assert_text_is_as_in_its_files(process.pid());
    process.say("");
    assert_eq!(process.line(), "1");
    assert_eq!(process.finish().0, Some(0));
}

/// File offset of the first system call of a program.
fn first_call(file: &Path) -> usize {
    let bytes = std::fs::read(file).expect("it is there");
    let mov_to_eax = |at: usize| bytes[at - 5] == 0xb8;
    let is_call = |at: &usize| bytes[*at..*at + 2] == [0x0f, 0x05] && mov_to_eax(*at);
    (0x1000..bytes.len() - 2).find(is_call).expect("it has calls")
}
