//! `cargo xtask bench record`: what it costs to write events into files, and whether any is lost.
//!
//! First the writers by themselves (`outside/formats/benches/writers.rs`): a million records a second into a trace in CTF, then
//! each format as fast as it can. Then `ring3 record` of a program that makes system calls as fast as it can; once as it is, and
//! once with a recorder that is stopped for half of the time, as one is that waits for a slow disk.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::bench::{Ring3, bench_binary_of, machine, machine_text, output};
use crate::bench_options::{Output, count};

/// What `cargo xtask bench record` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Seconds of the run with a million records a second
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count)]
    seconds: usize,
    /// System calls that the recorded program makes, half of them read and half write
    #[arg(long, value_name = "N", default_value_t = 4_000_000, value_parser = count)]
    calls: usize,
    #[command(flatten)]
    output: Output,
}

/// How long the slow recorder is stopped, and how long it runs.
const STOPPED: Duration = Duration::from_millis(400);

pub(crate) fn record(options: &Options) -> Result<(), String> {
    println!("{}", machine_text());
    let writers = bench_binary_of("ring3-formats", "writers", &[])?;
    let ring3 = Ring3::new()?;
    let mut command = Command::new(writers);
    command.arg(ring3.directory()).arg(options.seconds.to_string());
    let written: Value = serde_json::from_str(&output(&mut command)?).map_err(|error| format!("writers: {error}"))?;
    let steady = &written["steady"];
    println!(
        "ctf, a million records a second for {} s: {:.0} records/s, {:.0} MB/s, {:.0} % of a CPU, at most {:.0} ms late, {} KiB of memory",
        options.seconds,
        number(&steady["records_per_s"]),
        number(&steady["mb_per_s"]),
        number(&steady["busy_percent"]),
        number(&steady["late_max_ms"]),
        steady["memory_max_kib"],
    );
    for format in written["formats"].as_array().into_iter().flatten() {
        println!(
            "{:9} {:6.0} ns/record, {:5.0} bytes/record, {:5.0} MB/s",
            format["format"].as_str().unwrap_or_default(),
            number(&format["ns_per_record"]),
            number(&format["bytes_per_record"]),
            number(&format["mb_per_s"]),
        );
    }
    let mut sessions = vec![];
    for slow in [false, true] {
        let session = session(&ring3, options.calls, slow)?;
        println!(
            "ring3 record{}: {} events read, {} lost, {:.2} million a second, {} KiB of memory",
            if slow { ", stopped half of the time" } else { "" },
            session["events"],
            session["lost"],
            number(&session["per_s"]) / 1e6,
            session["memory_max_kib"],
        );
        sessions.push(session);
    }
    options.output.save(|| json!({ "machine": machine(), "writers": written, "sessions": sessions }))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// Records a program; the events that were read and those that were lost are all that it made.
fn session(ring3: &Ring3, calls: usize, slow: bool) -> Result<Value, String> {
    let trace = ring3.directory().join(format!("trace-{slow}"));
    let trace_text = trace.display().to_string();
    let count = format!("count={}", calls / 2);
    let mut command = ring3.command(&["record", "-e", "read,write", "-o", &trace_text, "--", "dd", "if=/dev/zero"]);
    command.args(["of=/dev/null", "bs=1", &count]).stderr(Stdio::piped());
    let begin = Instant::now();
    let mut recorder = command.spawn().map_err(|error| format!("ring3 record: {error}"))?;
    let memory = watch(&mut recorder, &trace, slow)?;
    let seconds = begin.elapsed().as_secs_f64();
    let ended = recorder.wait_with_output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    // `ring3: EVENTS events (KIB KiB) in PATH, LOST lost`
    let line = said.lines().find(|line| line.contains(" events (")).ok_or_else(|| format!("ring3 record: {said}"))?;
    let word = |back: bool| -> Option<u64> {
        let mut words = line.split_whitespace();
        if back { words.nth_back(1) } else { words.nth(1) }?.parse().ok()
    };
    let (events, lost) = word(false).zip(word(true)).ok_or_else(|| format!("ring3 record: {line}"))?;
    if events + lost < calls as u64 {
        return Err(format!("{events} events and {lost} lost are fewer than the {calls} that were made"));
    }
    std::fs::remove_dir_all(&trace).map_err(|error| error.to_string())?;
    let per_s = (events + lost) as f64 / seconds;
    Ok(
        json!({ "slow": slow, "events": events, "lost": lost, "seconds": seconds, "per_s": per_s, "memory_max_kib": memory }),
    )
}

/// Waits for a recorder's end, and stops a slow one from time to time. The result is its memory at most, in KiB.
fn watch(recorder: &mut Child, trace: &Path, slow: bool) -> Result<u64, String> {
    let pid = Pid::from_child(recorder);
    let mut memory = 0;
    let mut stopped = false;
    let mut since = Instant::now();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", recorder.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let now = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
        memory = memory.max(now);
        if recorder.try_wait().map_err(|error| error.to_string())?.is_some() {
            return Ok(memory);
        }
        let begun = trace.join("stream_0_0000").exists();
        if slow && begun && since.elapsed() >= STOPPED {
            (stopped, since) = (!stopped, Instant::now());
            let signal = if stopped { Signal::STOP } else { Signal::CONT };
            rustix::process::kill_process(pid, signal).map_err(|error| error.to_string())?;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
