//! `cargo xtask bench strace`: what it costs to have a program's system calls printed into a file.
//!
//! The peers are strace itself, natively, without and with its own seccomp filter (`--seccomp-bpf`), `perf trace`, and bpftrace. The runs of a row
//! alternate; the fastest of each counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;

use crate::bench::{Ring3, machine, machine_text};
use crate::bench_options::{Output, count};

/// What `cargo xtask bench strace` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Runs of each cell
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count)]
    rounds: usize,
    /// System calls of the rows that make many
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = count)]
    calls: usize,
    #[command(flatten)]
    output: Output,
}

/// Files of the C project that is built.
const FILES: usize = 40;

/// What is traced.
struct Row {
    name: &'static str,
    command: Vec<String>,
    directory: PathBuf,
    /// strace's options.
    options: Vec<&'static str>,
    /// System calls that it makes, of those that it makes often; 0: time as a multiple of the untraced one is shown.
    calls: usize,
    /// The same in other tools' words, if they have any.
    perf: Option<Vec<&'static str>>,
    bpftrace: Option<&'static str>,
}

fn rows(options: &Options, directory: &Path) -> Vec<Row> {
    let dd = |count: usize| {
        let text = format!("/usr/bin/dd if=/dev/zero of=/dev/null bs=1 count={}", count / 2);
        text.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let row = |name, options, perf, bpftrace| Row {
        name,
        command: dd(0),
        directory: "/".into(),
        options,
        calls: 0,
        perf,
        bpftrace,
    };
    let printing = "tracepoint:raw_syscalls:sys_enter /pid == cpid/ { printf(\"%d\\n\", args->id); }";
    let calls = options.calls;
    vec![
        Row { command: dd(calls), calls, ..row("each call printed", vec![], Some(vec![]), Some(printing)) },
        Row {
            command: dd(calls),
            calls,
            ..row(
                "counted (-c)",
                vec!["-c"],
                Some(vec!["-s"]),
                Some("tracepoint:raw_syscalls:sys_enter /pid == cpid/ { @[args->id] = count(); }"),
            )
        },
        Row { command: dd(calls), calls, ..row("filtered out by path", vec!["-P", "/nowhere"], None, None) },
        Row {
            command: dd(calls),
            calls,
            ..row("excluded by number", vec!["-e", "trace=openat"], Some(vec!["-e", "openat"]), None)
        },
        Row {
            command: ["make", "-j2", "-B", "-s"].map(str::to_owned).to_vec(),
            directory: directory.join("project"),
            ..row("make -j2, -e trace=file", vec!["-e", "trace=file"], None, None)
        },
    ]
}

/// A C project of a size that takes a few seconds.
fn write_project(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let objects = (0..FILES).map(|file| format!("part{file}.o")).collect::<Vec<_>>().join(" ");
    fs::write(
        directory.join("Makefile"),
        format!("program: {objects} main.o\n\tgcc -o $@ $^\n.c.o:\n\tgcc -O1 -c $<\n"),
    )?;
    for file in 0..FILES {
        let text = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint part{file}(int n) {{ return printf(\"%d\", n * {file}); }}\n"
        );
        fs::write(directory.join(format!("part{file}.c")), text)?;
    }
    fs::write(directory.join("main.c"), "int main(void) { return 0; }\n")
}

/// Ways of tracing, by their columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Untraced,
    Strace,
    StraceSeccomp,
    Ring3Strace,
    Ring3Exact,
    Ring3Trace,
    PerfTrace,
    Bpftrace,
}

const COLUMNS: [(Column, &str); 8] = [
    (Column::Untraced, "untraced"),
    (Column::Strace, "strace"),
    (Column::StraceSeccomp, "strace --seccomp-bpf"),
    (Column::Ring3Strace, "ring3 load -- strace"),
    (Column::Ring3Exact, "the same, exact"),
    (Column::Ring3Trace, "ring3 trace"),
    (Column::PerfTrace, "perf trace"),
    (Column::Bpftrace, "bpftrace"),
];

/// The command of a cell; `None`: the tool has no such thing.
fn command(ring3: &Ring3, row: &Row, column: Column) -> Option<Command> {
    let out = ring3.directory().join("trace").display().to_string();
    let mut command = match column {
        Column::Untraced => {
            let mut command = Command::new(&row.command[0]);
            command.args(&row.command[1..]);
            return Some(command);
        }
        Column::Strace | Column::StraceSeccomp => {
            let mut command = Command::new("strace");
            command.args((column == Column::StraceSeccomp).then_some("--seccomp-bpf"));
            command.args(["-f", "-o", &out]).args(&row.options);
            command
        }
        Column::Ring3Strace | Column::Ring3Exact => {
            let mut command = ring3.command(&["load", "--", "strace", "-f", "-o", &out]);
            command.env("RING3_STRACE_BACKEND", if column == Column::Ring3Exact { "exact" } else { "auto" });
            command.args(&row.options);
            command
        }
        Column::Ring3Trace => {
            let mut command = ring3.command(&["trace"]);
            match row.options[..] {
                [] => command.args(["-o", &out]),
                ["-c"] => command.args(["-c", "-o", &out]),
                ["-P", path] => command.args(["-o", &out, "-e", "%file", "--filter", &format!("path == \"{path}\"")]),
                ["-e", "trace=openat"] => command.args(["-o", &out, "-e", "openat"]),
                _ => command.args(["-o", &out, "-e", "%file"]),
            };
            command
        }
        Column::PerfTrace => {
            let mut command = Command::new("perf");
            command.args(["trace", "-o", &out]).args(row.perf.as_ref()?);
            command
        }
        Column::Bpftrace => {
            let mut command = Command::new("bpftrace");
            command.args(["-o", &out, "-e", row.bpftrace?, "-c", &row.command.join(" ")]);
            return Some(command);
        }
    };
    command.arg("--").args(&row.command);
    Some(command)
}

fn seconds(mut command: Command, directory: &Path) -> Result<f64, String> {
    let shown = format!("{command:?}");
    command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let begin = Instant::now();
    let output = command.output().map_err(|error| format!("{shown}: {error}"))?;
    let seconds = begin.elapsed().as_secs_f64();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{shown}: {}: {}", output.status, said.lines().next_back().unwrap_or("")));
    }
    Ok(seconds)
}

pub(crate) fn strace(options: &Options) -> Result<(), String> {
    println!("{}", machine_text());
    let ring3 = Ring3::new()?;
    let directory = ring3.directory().to_owned();
    write_project(&directory.join("project")).map_err(|error| error.to_string())?;
    let mut figures = vec![];
    for row in rows(options, &directory) {
        let mut fastest = [f64::INFINITY; COLUMNS.len()];
        let mut failed: [Option<String>; COLUMNS.len()] = [const { None }; COLUMNS.len()];
        for _ in 0..options.rounds {
            for (index, (column, _)) in COLUMNS.iter().enumerate() {
                let Some(command) = command(&ring3, &row, *column) else { continue };
                if failed[index].is_some() {
                    continue;
                }
                match seconds(command, &row.directory) {
                    Ok(seconds) => fastest[index] = fastest[index].min(seconds),
                    Err(why) => failed[index] = Some(why),
                }
            }
        }
        println!("\n{}: strace {} {}", row.name, row.options.join(" "), row.command.join(" "));
        for (index, (_, name)) in COLUMNS.iter().enumerate() {
            let (seconds, untraced) = (fastest[index], fastest[0]);
            if let Some(why) = &failed[index] {
                println!("  {name:22} not measured: {why}");
                continue;
            }
            if seconds.is_infinite() {
                continue;
            }
            let per_call = (seconds - untraced) * 1e9 / row.calls.max(1) as f64;
            let per_call = if row.calls > 0 { format!("{per_call:9.0} ns a call") } else { String::new() };
            println!("  {name:22} {seconds:8.3} s, {:6.2} times untraced {per_call}", seconds / untraced);
            figures.push(json!({ "row": row.name, "column": name, "seconds": seconds, "times": seconds / untraced }));
        }
    }
    options.output.save(|| json!({ "machine": machine(), "rows": figures }))
}
