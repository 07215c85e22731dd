//! `cargo xtask`: what continuous integration and developers run.
//!
//! Runs: on a developer's machine and in CI.
//! May touch: the work tree's target folder, processes it starts itself.
//! Never: installs anything (that is the Makefile's).
//! Start reading at: `main`.
#![forbid(unsafe_code)]

mod bench;
mod bench_engine;
mod bench_maps;
mod bench_nginx;
mod bench_options;
mod bench_syscall;
mod bench_verify;
mod conformance;
mod demo;
mod mutate;
mod suites;
mod sweep;
mod syscalls;
mod tidy;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

const USAGE: &str =
    "usage: cargo xtask ci | tidy | test | agent | support | syscalls | demo | bench probe [--json FILE] [--rounds N]
     | conformance DIR [--engine interp|jit|llvm] | bench maps [--quick] [--only TEXT] [--rounds N] [--json FILE]
     | bench engine [--only TEXT] [--rounds N] [--json FILE] [--ubpf DIR] | bench verify [--only TEXT] [--rounds N] [--json FILE]
     | bench syscall [--rounds N] [--json FILE] | bench nginx [--rounds N] [--json FILE] | mutate [--only TEXT]... [--programs N]
     | suites [NAME]... | sweep FILE [--rounds N] [--seed N] -- COMMAND...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["ci"] => ci(),
        ["tidy"] => tidy::run(),
        ["test"] => tests(),
        ["conformance", rest @ ..] => conformance::run(rest),
        ["agent"] => run("cargo", &["test", "--package", "ring3-image", "--", "--nocapture"]),
        ["support"] => support(),
        ["syscalls"] => syscalls::run(),
        ["demo"] => demo::run(),
        ["bench", "probe", options @ ..] => bench::probe(options),
        ["bench", "maps", options @ ..] => bench_maps::maps(options),
        ["bench", "engine", options @ ..] => bench_engine::engine(options),
        ["bench", "syscall", options @ ..] => bench_syscall::syscall(options),
        ["bench", "nginx", options @ ..] => bench_nginx::nginx(options),
        ["bench", "verify", options @ ..] => bench_verify::verify(options),
        ["mutate", options @ ..] => mutate::mutate(options),
        ["suites", names @ ..] => suites::run(names),
        ["sweep", options @ ..] => sweep::sweep(options),
        _ => Err(USAGE.to_owned()),
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

/// What builds LLVM in, where that can be done.
pub(crate) fn llvm_features() -> &'static [&'static str] {
    if has_llvm() { &["--features", "ring3-llvm/llvm"] } else { &[] }
}

fn ci() -> Result<(), String> {
    run("cargo", &["fmt", "--all", "--", "--check"])?;
    run(
        "cargo",
        &["clippy", "--workspace", "--exclude", "ring3-agent", "--all-targets", "--quiet", "--", "-D", "warnings"],
    )?;
    if has_llvm() {
        let package = ["--package", "ring3-llvm", "--features", "llvm"];
        run("cargo", &[&["clippy", "--all-targets", "--quiet"], &package[..], &["--", "-D", "warnings"]].concat())?;
    } else {
        println!("SKIPPED: llvm-19-dev is not installed: no program is compiled by LLVM");
    }
    tidy::run()?;
    build_ring3()?;
    run("make", &["-s", "-C", "examples/malloc"])?;
    tests()
}

/// Builds the binary; where it is.
fn build_ring3() -> Result<PathBuf, String> {
    let build = ["build", "--release", "--package", "ring3-cli", "--quiet"];
    run("cargo", &[&build[..], llvm_features()].concat())?;
    Ok(root().join("target/release/ring3"))
}

/// All tests, with one closing line. A test that cannot run here prints `SKIPPED: why` and is counted so; one that can run
/// in part only prints `SKIPPED IN PART: why` and has passed.
fn tests() -> Result<(), String> {
    let mut cargo = Command::new("cargo")
        .args(["test", "--workspace", "--exclude", "ring3-agent", "--no-fail-fast"])
        .args(llvm_features())
        .args(["--", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo test: {error}"))?;
    let (mut passed, mut failed, mut skipped, mut in_part) = (0u32, 0, 0, BTreeMap::<String, u32>::new());
    let lines = std::io::BufReader::new(cargo.stdout.take().expect("it is piped")).split(b'\n');
    for line in lines.map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
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
