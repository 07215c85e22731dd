//! What writing a record costs in each format; `cargo xtask bench record` runs this. Output: a JSON object.
//!
//! Arguments: a directory for the files, and how many seconds the run with a million records a second is to take.

use std::fs::{self, File};
use std::io::{BufWriter, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ring3_event::{EventType, Field, Header, Kind, Phase, Show, State, Value, encode, header};
use ring3_formats::ctf::{Ctf, Sizes};
use ring3_formats::{JsonLines, NoSymbols, Origin, Perfetto, Script, Sink};
use serde_json::json;

/// Records a second in the steady run, and in a step of it.
const RATE: u64 = 1_000_000;
const STEP: u64 = 1_000;
/// Records that each format writes as fast as it can.
const RECORDS: u64 = 1_000_000;

fn read_call() -> EventType {
    let int = |bytes, signed, show| Kind::Int { bytes, signed, show };
    let fields = [
        ("fd", int(4, true, Show::Descriptor), Phase::Entry),
        ("buf", Kind::data(32), Phase::Exit),
        ("count", int(8, false, Show::Decimal), Phase::Entry),
        ("ret", int(8, true, Show::Result), Phase::Exit),
        ("dur", int(8, false, Show::Nanoseconds), Phase::Exit),
    ];
    let field = |(name, kind, phase): (&str, Kind, Phase)| Field { name: name.into(), kind, phase };
    EventType { id: 0, provider: "syscalls".into(), name: "read".into(), fields: fields.map(field).into() }
}

/// A record of 103 bytes.
fn record() -> Vec<u8> {
    let head = Header { time_ns: 0, event: 0, cpu: 1, tid: 4711, pid: 4711, comm: *b"a-program\0\0\0\0\0\0\0" };
    let values =
        [Value::Int(3), Value::Bytes(State::Whole, &[b'x'; 32]), Value::Int(32), Value::Int(32), Value::Int(500)];
    encode(&read_call(), &head, &values).expect("they are its values")
}

fn stamp(record: &mut [u8], time_ns: u64) {
    record[header::TIME..header::TIME + 8].copy_from_slice(&time_ns.to_le_bytes());
}

/// Bytes of a file, or of the files in a directory.
fn bytes_of(path: &Path) -> u64 {
    let own = path.metadata().map_or(0, |meta| if meta.is_dir() { 0 } else { meta.len() });
    own + fs::read_dir(path).map_or(0, |entries| entries.flatten().map(|entry| bytes_of(&entry.path())).sum())
}

/// The most memory that this process has had, in KiB.
fn memory_max_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// As fast as it can.
fn fastest(name: &str, path: &Path, mut sink: Box<dyn Sink>) -> Result<serde_json::Value> {
    sink.event_type(&read_call())?;
    let mut record = record();
    let begin = Instant::now();
    for at in 0..RECORDS {
        stamp(&mut record, 1_000_000_000 + 1_000 * at);
        sink.record(0, &record)?;
    }
    sink.finish()?;
    let seconds = begin.elapsed().as_secs_f64();
    let bytes = bytes_of(path);
    Ok(json!({
        "format": name,
        "ns_per_record": seconds * 1e9 / RECORDS as f64,
        "bytes_per_record": bytes as f64 / RECORDS as f64,
        "mb_per_s": bytes as f64 / seconds / 1e6,
    }))
}

/// A million records a second, in steps of a millisecond.
fn steady(path: &Path, seconds: u64) -> Result<serde_json::Value> {
    let mut sink = Ctf::create(path, Origin::here("bench")?, Sizes::default())?;
    sink.event_type(&read_call())?;
    let mut record = record();
    let (begin, mut written, mut late_max, mut busy) = (Instant::now(), 0, Duration::ZERO, Duration::ZERO);
    while written < RATE * seconds {
        let due = begin + Duration::from_micros(written);
        match due.checked_duration_since(Instant::now()) {
            Some(early) => std::thread::sleep(early),
            None => late_max = late_max.max(due.elapsed()),
        }
        let step = Instant::now();
        for _ in 0..STEP {
            stamp(&mut record, 1_000_000_000 + 1_000 * written);
            sink.record(0, &record)?;
            written += 1;
        }
        busy += step.elapsed();
    }
    sink.finish()?;
    let took = begin.elapsed().as_secs_f64();
    Ok(json!({
        "records": written,
        "records_per_s": written as f64 / took,
        "mb_per_s": bytes_of(path) as f64 / took / 1e6,
        "busy_percent": 100.0 * busy.as_secs_f64() / took,
        "late_max_ms": late_max.as_secs_f64() * 1e3,
        "memory_max_kib": memory_max_kib(),
    }))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().filter(|argument| argument != "--bench").collect();
    let [_, directory, seconds] = &arguments[..] else { panic!("arguments: DIRECTORY SECONDS") };
    let directory = PathBuf::from(directory);
    let seconds = seconds.parse().expect("a number of seconds");
    let steady = steady(&directory.join("steady"), seconds)?;
    fs::remove_dir_all(directory.join("steady"))?;
    let origin = Origin::here("bench")?;
    let mut formats = vec![];
    for name in ["ctf", "perfetto", "json", "script"] {
        let path = directory.join(name);
        let file = || File::create(&path).map(|file| BufWriter::with_capacity(1 << 18, file));
        let sink: Box<dyn Sink> = match name {
            "ctf" => Box::new(Ctf::create(&path, origin.clone(), Sizes::default())?),
            "perfetto" => Box::new(Perfetto::new(file()?, &origin, Box::new(NoSymbols))?),
            "json" => Box::new(JsonLines::new(file()?, Box::new(NoSymbols))),
            _ => Box::new(Script::new(file()?, Box::new(NoSymbols))),
        };
        formats.push(fastest(name, &path, sink)?);
        fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path))?;
    }
    println!("{}", json!({ "steady": steady, "formats": formats }));
    Ok(())
}
