//! `cargo xtask`: what continuous integration and developers run.
//!
//! Runs: on a developer's machine and in CI.
//! May touch: the work tree's target directory, processes it starts itself.
//! Never: installs anything (that is the Makefile's).
//! Start reading at: `main`.
#![forbid(unsafe_code)]

mod bench;
mod bench_attach;
mod bench_durability;
mod bench_embed;
mod bench_engine;
mod bench_events;
mod bench_filter;
mod bench_firewall;
mod bench_maps;
mod bench_options;
mod bench_record;
mod bench_stops;
mod bench_strace;
mod bench_syscall;
mod bench_tracepoint;
mod bench_verify;
mod compat;
mod conformance;
mod demo;
mod fuzz;
mod mutate;
mod package;
mod pku;
mod storm;
mod suites;
mod sweep;
mod syscalls;
mod tidy;
mod web_server;
mod workloads;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// What continuous integration and developers run. Nothing here installs anything: that is the Makefile's.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Everything that continuous integration checks
    Ci,
    /// What needs no build of ring3: formatting, clippy, the laws, documentation, licenses of dependencies
    Lint,
    /// The laws of ARCHITECTURE.md
    Tidy,
    /// Licenses, sources, duplicates and known vulnerabilities of dependencies (`deny.toml`), with cargo-deny
    Deny,
    /// Make target/deb/ring3_VERSION_amd64.deb of the release build, and check it
    Deb,
    /// All tests, with one closing line
    Test,
    /// Size of the agent image, and that it has no relocations, imports or vector instructions
    Agent,
    /// Write docs/SUPPORT.md again
    Support,
    /// Bring the table of system call tracepoints up to date from the running kernel (as root)
    Syscalls,
    /// Trace a real process with Debian's funclatency
    Demo,
    /// Measure ring3 beside its peers
    #[command(subcommand)]
    Bench(Benchmark),
    /// Run tools on the kernel and under ring3, and compare what they print
    Compat(compat::Options),
    /// Run the cases of a directory of bpf_conformance
    Conformance(conformance::Options),
    /// Break the verifier and the maps on purpose, one place at a time, and show which test notices
    Mutate(mutate::Options),
    /// Run other projects' own tests natively and as targets, and compare
    Suites(suites::Options),
    /// Run the tests of extensions on a CPU with protection keys, which QEMU emulates
    Pku(pku::Options),
    /// Fuzz what parses bytes of others, by libFuzzer
    Fuzz(fuzz::Options),
    /// Probe random instructions of a file while a command runs that uses it
    Sweep(sweep::Options),
    /// Probe random instructions of random functions, and compare what these do with what they do alone
    Equivalence(storm::Equivalence),
    /// Attach and detach as fast as possible while programs work, and tools, targets and servers are killed and stopped
    Storm(storm::Options),
    /// Let each system call of the server fail in turn while it attaches and detaches
    Faults(storm::Faults),
    /// Step processes that use the same map by random turns, instruction by instruction, and let some die
    Interleave(storm::Interleave),
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Probes, beside the kernel's uprobes and frida-gum
    Probe(bench::Options),
    /// Attaching probes one by one, beside the kernel
    Attach(bench_attach::Options),
    /// Map operations inside programs, beside the kernel's maps
    Maps(bench_maps::Options),
    /// Computing programs, beside the kernel's compiler, rbpf and native code
    Engine(bench_engine::Options),
    /// Filters of events, beside LTTng-UST's, hard-coded C and the kernel's compiler
    Filter(bench_filter::Options),
    /// Calls of programs that an application hosts, beside rbpf and calls of C functions
    Embed(bench_embed::Options),
    /// Traced system calls, beside the kernel's tracepoints, strace and syscall user dispatch
    Syscall(bench_syscall::Options),
    /// Events to a reader: how late, lost, and their CPU time, beside the kernel's
    Events(bench_events::Options),
    /// A static tracepoint, off and recorded, beside the kernel's USDT and LTTng-UST
    Tracepoint(bench_tracepoint::Options),
    /// Events into files: what a record costs in each format, and how many are lost
    Record(bench_record::Options),
    /// What it costs to have system calls printed, beside strace, perf trace and bpftrace
    Strace(bench_strace::Options),
    /// How long a process is stopped while it becomes a target and while it is left, beside gdb
    Stops(bench_stops::Options),
    /// Servers and other programs at their work, under tools that trace them: untraced, on the kernel, under ring3
    Workloads(workloads::Options),
    /// nginx under wrk with a firewall: an extension, beside Lua and a module in C
    Firewall(bench_firewall::Options),
    /// Redis: how fast it is and what a crash loses, by when its log is made durable: its own ways, and extensions
    Durability(bench_durability::Options),
    /// Verification of Debian's libbpf-tools, beside the kernel's verifier and prevail
    Verify(bench_verify::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Ci => ci(),
        Task::Lint => lint(),
        Task::Tidy => tidy::run(),
        Task::Deny => deny(&["check"]),
        Task::Deb => package::deb(),
        Task::Test => tests(),
        Task::Agent => run("cargo", &["test", "--package", "ring3-image", "--", "--nocapture"]),
        Task::Support => support(),
        Task::Syscalls => syscalls::run(),
        Task::Demo => demo::run(),
        Task::Bench(Benchmark::Attach(options)) => bench_attach::attach(&options),
        Task::Bench(Benchmark::Probe(options)) => bench::probe(&options),
        Task::Bench(Benchmark::Maps(options)) => bench_maps::maps(options),
        Task::Bench(Benchmark::Engine(options)) => bench_engine::engine(&options),
        Task::Bench(Benchmark::Filter(options)) => bench_filter::filter(&options),
        Task::Bench(Benchmark::Embed(options)) => bench_embed::embed(&options),
        Task::Bench(Benchmark::Syscall(options)) => bench_syscall::syscall(&options),
        Task::Bench(Benchmark::Events(options)) => bench_events::events(&options),
        Task::Bench(Benchmark::Tracepoint(options)) => bench_tracepoint::tracepoint(&options),
        Task::Bench(Benchmark::Record(options)) => bench_record::record(&options),
        Task::Bench(Benchmark::Strace(options)) => bench_strace::strace(&options),
        Task::Bench(Benchmark::Stops(options)) => bench_stops::stops(&options),
        Task::Bench(Benchmark::Firewall(options)) => bench_firewall::firewall(&options),
        Task::Bench(Benchmark::Durability(options)) => bench_durability::durability(&options),
        Task::Bench(Benchmark::Workloads(options)) => workloads::workloads(&options),
        Task::Bench(Benchmark::Verify(options)) => bench_verify::verify(options),
        Task::Compat(options) => compat::run(&options),
        Task::Conformance(options) => conformance::run(&options),
        Task::Mutate(options) => mutate::mutate(&options),
        Task::Suites(options) => suites::run(&options),
        Task::Pku(options) => pku::pku(&options),
        Task::Fuzz(options) => fuzz::fuzz(options),
        Task::Sweep(options) => sweep::sweep(&options),
        Task::Equivalence(options) => storm::equivalence(&options),
        Task::Storm(options) => storm::storm(&options),
        Task::Faults(options) => storm::faults(&options),
        Task::Interleave(options) => storm::interleave(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the work tree.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the work tree exists")
}

/// Runs a command in the root; its failure is an error.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    println!("$ {program} {}", arguments.join(" "));
    let status = Command::new(program).args(arguments).current_dir(root()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program} {}: {status}", arguments.join(" "))),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// Whether LLVM's development files are there, as Debian's `llvm-19-dev` has them.
pub(crate) fn has_llvm() -> bool {
    Command::new("llvm-config-19").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// What cargo says with `--message-format=json`.
pub(crate) fn cargo_messages(stdout: &[u8]) -> Vec<serde_json::Value> {
    String::from_utf8_lossy(stdout).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The executable of a test that was built, if the message tells of one.
pub(crate) fn built_test(message: &serde_json::Value) -> Option<PathBuf> {
    message["executable"].as_str().filter(|_| message["profile"]["test"] == true).map(PathBuf::from)
}

/// What builds `ring3-llvm`, and LLVM into tests, where that can be done.
pub(crate) fn llvm_features() -> &'static [&'static str] {
    if has_llvm() { &["--features", "ring3-llvm/llvm"] } else { &[] }
}

fn ci() -> Result<(), String> {
    lint()?;
    build_ring3()?;
    package::deb()?;
    run("make", &["-s", "-C", "examples/malloc"])?;
    tests()
}

/// The checks of sources.
fn lint() -> Result<(), String> {
    run("cargo", &["fmt", "--all", "--", "--check"])?;
    run("cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
    if has_llvm() {
        let package = ["--package", "ring3-llvm", "--features", "llvm"];
        run("cargo", &[&["clippy", "--all-targets", "--quiet"], &package[..], &["--", "-D", "warnings"]].concat())?;
    } else {
        println!("SKIPPED: llvm-19-dev is not installed: no program is compiled by LLVM");
    }
    tidy::run()?;
    document()?;
    if has_deny() {
        // Vulnerabilities are looked up in a database on the network: `cargo xtask deny`.
        return deny(&["--offline", "check", "licenses", "bans", "sources"]);
    }
    println!("SKIPPED: cargo-deny is not installed (`cargo install --locked cargo-deny`): no check of deny.toml");
    Ok(())
}

/// The documentation, in which every link must lead somewhere.
fn document() -> Result<(), String> {
    let arguments = ["doc", "--workspace", "--no-deps", "--quiet"];
    println!("$ cargo {}", arguments.join(" "));
    let mut cargo = Command::new("cargo");
    cargo.args(arguments).env("RUSTDOCFLAGS", "-D warnings").current_dir(root());
    let status = cargo.status().map_err(|error| format!("cargo doc: {error}"))?;
    if status.success() { Ok(()) } else { Err("the documentation has warnings".to_owned()) }
}

/// Whether cargo-deny is installed.
fn has_deny() -> bool {
    Command::new("cargo").args(["deny", "--version"]).output().is_ok_and(|output| output.status.success())
}

fn deny(arguments: &[&str]) -> Result<(), String> {
    if !has_deny() {
        return Err(
            "cargo-deny is not installed; `cargo install --locked cargo-deny` builds it in some minutes".to_owned()
        );
    }
    run("cargo", &[&["deny", "--workspace", "--all-features"], arguments].concat())
}

/// Builds the binary; where it is.
fn build_ring3() -> Result<PathBuf, String> {
    let build = ["build", "--release", "--package", "ring3-cli", "--quiet"];
    run("cargo", &[&build[..], llvm_features()].concat())?;
    Ok(root().join("target/release/ring3"))
}

/// How long a test binary may print nothing. (The longest test takes about a minute on the slowest machine known.)
const SILENCE: Duration = Duration::from_secs(5 * 60);

/// Says what the descendants of `cargo` wait for, and kills them: cargo goes on with the next test binary.
/// What was said is returned, too.
fn kill_hung_tests(cargo: u32) -> Vec<String> {
    let mut said =
        vec![format!("no test has said anything for {} s; these processes are killed:", SILENCE.as_secs())];
    let mut hung = Vec::new();
    children(cargo).into_iter().for_each(|binary| describe(binary, 1, &mut hung, &mut said));
    said.iter().for_each(|line| println!("{line}"));
    for pid in hung {
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("no process has the number 0");
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    said
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Says of a process and its descendants where their threads stand; all of them are added to `seen`.
fn describe(pid: u32, depth: usize, seen: &mut Vec<u32>, said: &mut Vec<String>) {
    seen.push(pid);
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    said.push(format!("{:depth$}{pid} {}", "", read(format!("/proc/{pid}/cmdline")).replace('\0', " ")));
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let of = |what: &str| read(format!("{}/{what}", thread.path().display()));
        let (name, stat) = (of("comm"), of("stat"));
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?');
        said.push(format!("{:depth$}  {} {state} {} {}", "", name.trim_end(), of("wchan"), of("syscall").trim_end()));
    }
    children(pid).into_iter().for_each(|child| describe(child, depth + 1, seen, said));
}

/// What one test binary has said since its line `running N tests`.
#[derive(Default)]
struct Binary {
    lines: Vec<String>,
    is_well: bool,
}

impl Binary {
    /// Its panics and the last lines, unless all its tests have passed (or there was no binary yet).
    fn failure(self) -> Option<String> {
        const LINES_OF_A_PANIC: usize = 8;
        const LAST_LINES: usize = 60;
        let lines = self.lines;
        let is_binary = lines.iter().any(|line| line.starts_with("running "));
        let is_panic = |line: &str| line.starts_with("thread '") && line.contains(" panicked at ");
        let panics: Vec<usize> = (0..lines.len()).filter(|at| is_panic(&lines[*at])).collect();
        let is_told = |at: &usize| {
            at + LAST_LINES >= lines.len()
                || panics.iter().any(|panic| (*panic..panic + LINES_OF_A_PANIC).contains(at))
        };
        let told = (0..lines.len()).filter(is_told).map(|at| lines[at].as_str());
        (is_binary && !self.is_well).then(|| told.collect::<Vec<_>>().join("\n"))
    }
}

/// All tests, with one closing line. A test that cannot run here prints `SKIPPED: why` and is counted so; one that can run
/// in part only prints `SKIPPED IN PART: why` and has passed.
/// A test binary that says nothing for [`SILENCE`] is killed and counted as failed. What failed binaries have said is printed
/// again at the end, where it is looked for.
fn tests() -> Result<(), String> {
    let all = ["test", "--workspace", "--exclude", "ring3-agent"];
    // (Building says nothing for long, and that is no hang.)
    run("cargo", &[&all[..], llvm_features(), &["--no-run"]].concat())?;
    // (Panics are told on the standard error output.)
    let (output, input) = std::io::pipe().map_err(|error| format!("pipe: {error}"))?;
    let errors = input.try_clone().map_err(|error| format!("pipe: {error}"))?;
    let mut cargo = Command::new("cargo")
        .args(all)
        .args(llvm_features())
        .args(["--no-fail-fast", "--", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .current_dir(root())
        .stdout(input)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("cargo test: {error}"))?;
    let (mut passed, mut failed, mut skipped, mut in_part) = (0u32, 0, 0, BTreeMap::<String, u32>::new());
    let mut binary = Binary::default();
    let mut failures = Vec::new();
    let (said, heard) = std::sync::mpsc::channel();
    let lines = std::io::BufReader::new(output).split(b'\n');
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| said.send(line)));
    loop {
        let line = match heard.recv_timeout(SILENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // (What a test left behind may hold the pipe.)
                if cargo.try_wait().is_ok_and(|ended| ended.is_some()) {
                    break;
                }
                binary.lines.extend(kill_hung_tests(cargo.id()));
                continue;
            }
        };
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if line.starts_with("running ") {
            failures.extend(std::mem::take(&mut binary).failure());
        }
        binary.lines.push(line.to_string());
        binary.is_well |= line.contains("test result: ok");
        let count = |what: &str| -> u32 {
            let before = line.split(what).next().unwrap_or_default();
            before.split_whitespace().next_back().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        if line.contains("test result:") {
            passed += count(" passed");
            failed += count(" failed");
        }
        skipped += u32::from(line.contains("SKIPPED: "));
        if let Some((_, why)) = line.split_once("SKIPPED IN PART: ") {
            *in_part.entry(why.to_owned()).or_default() += 1;
        }
    }
    let status = cargo.wait().map_err(|error| format!("cargo test: {error}"))?;
    failures.extend(binary.failure());
    for failure in failures {
        println!("\na test binary that failed said at its end:\n{failure}\n");
    }
    for (why, times) in in_part {
        println!("skipped in part: {why} ({times} times)");
    }
    println!("{} passed, {failed} failed, {skipped} skipped", passed.saturating_sub(skipped));
    if status.success() { Ok(()) } else { Err("tests failed".into()) }
}

fn support() -> Result<(), String> {
    let ring3 = build_ring3()?;
    let output = Command::new(&ring3)
        .args(["features", "--markdown"])
        .output()
        .map_err(|error| format!("{}: {error}; run `make build` first", ring3.display()))?;
    std::fs::write(root().join("docs/SUPPORT.md"), output.stdout).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::Arguments;

    #[test]
    fn the_commands_are_well_defined() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn commands_take_their_own_options_only() {
        let parse = |line: &str| Arguments::try_parse_from(["xtask"].into_iter().chain(line.split(' ')));
        for right in [
            "ci",
            "lint",
            "deb",
            "deny",
            "bench maps --quick --rounds 3 --only HASH",
            "bench probe --json FILE",
            "bench engine --ubpf DIR --only x",
            "bench embed --rounds 3 --json FILE",
            "bench durability --seconds 1 --crashes 0",
            "bench workloads --only nginx --only redis --rounds 3 --seconds 1",
            "conformance DIR --engine llvm",
            "mutate --only a --only b --programs 9",
            "suites git redis",
            "equivalence --functions 3000 --seed 7 --strict",
            "sweep FILE --rounds 2 --seed 7 -- COMMAND --option",
        ] {
            assert!(parse(right).is_ok(), "{right}: {}", parse(right).expect_err("it failed"));
        }
        for wrong in [
            "ci more",
            "bench",
            "bench probe --quick",
            "bench workloads --rounds 0",
            "bench workloads --seconds none",
            "bench firewall --rounds 0",
            "bench durability --seconds 0",
            "bench maps --rounds many",
            "bench verify --json",
            "conformance",
            "conformance DIR --engine other",
            "sweep FILE",
            "equivalence --functions 0",
            "sweep FILE --rounds 0 -- COMMAND",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
