//! `cargo xtask fuzz`: libFuzzer on the targets of `fuzz/`, built by stable Rust.

use std::path::PathBuf;
use std::process::Command;

use crate::{root, run};

/// Seconds for a target when nothing else is said.
const SECONDS_USUAL: u64 = 3600;
/// An input that takes longer is a finding, s.
const INPUT_SECONDS_MAX: u64 = 10;
/// Memory that a target may take, MiB.
const MEMORY_MB_MAX: u64 = 4096;
const INPUT_BYTES_MAX: u64 = 0x1_0000;
/// Generated inputs with which a target without a corpus begins.
const GENERATED: u64 = 400;
/// What libFuzzer wants of code: counters, their table, and comparisons. (The options are stable.)
const FLAGS: [&str; 7] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "--cfg=fuzzing",
];

/// What `cargo xtask fuzz` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Targets of `fuzz/`; all if none is named
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = SECONDS_USUAL)]
    seconds: u64,
}

/// The names of all targets: those of their files.
fn all_targets() -> Result<Vec<String>, String> {
    let directory = root().join("fuzz/libfuzzer/fuzz_targets");
    let files = std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names: Vec<String> =
        files.filter_map(|file| Some(file.ok()?.path().file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

fn build(names: &[String]) -> Result<PathBuf, String> {
    let target = root().join("target/fuzz");
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--manifest-path", "fuzz/libfuzzer/Cargo.toml", "--target-dir"])
        .arg(&target)
        .args(names.iter().flat_map(|name| ["--bin", name]))
        // Named, so that build scripts are built without the flags.
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"))
        .current_dir(root())
        .status();
    match status {
        Ok(status) if status.success() => Ok(target.join("x86_64-unknown-linux-gnu/release")),
        Ok(status) => Err(format!("the fuzz targets could not be built: {status}")),
        Err(error) => Err(format!("cargo: {error}")),
    }
}

/// Runs targets one after the other; the first finding of a target ends it, and is an error at the end.
pub(crate) fn fuzz(mut options: Options) -> Result<(), String> {
    let all = all_targets()?;
    if options.targets.is_empty() {
        options.targets.clone_from(&all);
    }
    if let Some(unknown) = options.targets.iter().find(|name| !all.contains(name)) {
        return Err(format!("fuzz: no target {unknown}; there are {}", all.join(", ")));
    }
    let programs = build(&options.targets)?;
    let found = root().join("target/fuzz/findings");
    let mut failed = vec![];
    for name in &options.targets {
        let corpus = root().join("target/fuzz/corpus").join(name);
        let findings = found.join(name);
        for directory in [&corpus, &findings] {
            std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        generate(name, &corpus)?;
        println!("fuzz {name}: {} s", options.seconds);
        let status = Command::new(programs.join(name))
            .arg(&corpus)
            .args([root().join("fuzz/corpus").join(name)].iter().filter(|directory| directory.exists()))
            .arg(format!("-max_total_time={}", options.seconds))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MB_MAX}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .arg(format!("-artifact_prefix={}/", findings.display()))
            .args(["-print_final_stats=1", "-verbosity=0"])
            .status()
            .map_err(|error| format!("{name}: {error}"))?;
        if !status.success() {
            failed.push(name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("found something in {}: the inputs are in {}", failed.join(", "), found.display()))
}

/// Writes generated inputs for a corpus that is empty.
fn generate(name: &str, corpus: &std::path::Path) -> Result<(), String> {
    if std::fs::read_dir(corpus).is_ok_and(|mut files| files.next().is_some()) {
        return Ok(());
    }
    let (directory, count) = (corpus.display().to_string(), GENERATED.to_string());
    run("cargo", &["run", "--quiet", "--package", "ring3-fuzz", "--bin", "inputs", "--", name, &directory, &count])
}
