//! Traces for Perfetto: decoded by its Python package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_formats::{NoSymbols, Perfetto, Sink};
use serde_json::{Value, json};

use crate::support::{Place, open_record, openat, origin, probe, probe_record, stack_record, stacked};

/// A Python that has Perfetto's package: in an environment of our own, which this makes.
fn python() -> Option<PathBuf> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("perfetto");
    let python = environment.join("bin/python");
    let has = || {
        let status =
            Command::new(&python).args(["-c", "import perfetto.protos.perfetto.trace.perfetto_trace_pb2"]).output();
        status.is_ok_and(|output| output.status.success())
    };
    let succeeds = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !has() {
        let install = ["-m", "pip", "install", "--quiet", "--timeout", "20", "--retries", "1", "perfetto"];
        let made = succeeds(Command::new("python3").args(["-m", "venv"]).arg(&environment));
        if !(made && succeeds(Command::new(&python).args(install)) && has()) {
            println!(
                "SKIPPED: Perfetto's Python package cannot be installed (python3-venv, and an index of packages)"
            );
            return None;
        }
    }
    Some(python)
}

/// What the package says of a trace.
fn decode(trace: &[u8], test: &str) -> Option<Vec<Value>> {
    let (place, python) = (Place::new(test), python()?);
    fs::write(place.join("trace"), trace).expect("it can be written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/read_perfetto.py");
    let output = Command::new(python).arg(script).arg(place.join("trace")).output().expect("it is there");
    let (lines, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    Some(lines.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect())
}

#[test]
fn perfetto_reads_the_events_that_were_written() {
    let mut file = vec![];
    let names = |_: u32, address: u64| (address == 0x1000).then(|| "main".to_owned());
    let mut trace = Perfetto::new(&mut file, &origin(), Box::new(names)).expect("a vector grows");
    for of in [openat(), probe(), stacked()] {
        trace.event_type(&of).expect("known");
    }
    trace.record(0, &open_record(50_000, 7)).expect("written");
    trace.record(1, &probe_record(46_000)).expect("written");
    trace.lost(0, 5).expect("written");
    trace.record(0, &open_record(60_000, 8)).expect("written");
    trace.record(0, &stack_record(61_000, &[0x2000, 0x1000])).expect("written");
    trace.lost(1, 2).expect("written");
    trace.finish().expect("written");
    let Some(lines) = decode(&file, "perfetto") else { return };
    let opened = |number: u64, result: i64| {
        json!({
            "cpu": 1, "dfd": "AT_FDCWD", "filename": format!("/etc/{number}"), "flags": "O_WRONLY|O_CREAT|O_CLOEXEC",
            "mode": 0o644, "result": result, "duration": number * 1000,
        })
    };
    let event = |time: u64, name: &str, fields: Value| json!({ "time": time, "event": name, "pid": 11, "tid": 12, "comm": "cat", "process": "cat", "fields": fields });
    let slice = |time: u64, duration: u64, fields: Value| {
        let mut slice = event(time, "syscalls:openat", fields);
        slice["duration"] = duration.into();
        slice
    };
    let hit = json!({
        "cpu": 1, "string": "MINUS \"ONE\"", "req.tv_sec": -5, "req_tv_sec": 0xab, "ratio": 0.25, "small": -1.5,
        "data": "a\\x00\\xff\\\\", "data_state": "truncated", "data_length": 0xdead_beef_u64, "note": "grüß\\xff\"<&>",
    });
    let expected = [
        json!({ "real": 1_700_000_000_000_001_000_u64, "monotonic": 1_000 }),
        slice(43_000, 7_000, opened(7, -2)),
        event(46_000, "lib\"x\".so:int", hit),
        json!({ "time": 50_000, "counter": "lost events", "value": 5 }),
        slice(52_000, 8_000, opened(8, 8)),
        event(61_000, "a.out:hit", json!({ "cpu": 1, "stack": [0x2000, "main"] })),
        json!({ "time": 61_000, "counter": "lost events", "value": 7 }),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn perfetto_reads_more_texts_than_are_interned_and_events_that_contain_others() {
    let mut file = vec![];
    let mut trace = Perfetto::new(&mut file, &origin(), Box::new(NoSymbols)).expect("a vector grows");
    trace.event_type(&openat()).expect("known");
    // Each contains the one before, which ended before it.
    for number in 1..=20_000 {
        trace.record((number % 4) as u32, &open_record(1_000_000_000 + 100 * number, number)).expect("written");
    }
    trace.finish().expect("written");
    let Some(mut lines) = decode(&file, "perfetto-many") else { return };
    let lines = lines.split_off(1);
    assert_eq!(lines.len(), 20_000);
    // The last began first.
    for (number, line) in (1..=20_000_u64).rev().zip(&lines) {
        assert_eq!(line["fields"]["filename"], format!("/etc/{number}"));
        assert_eq!(line["duration"], 1_000 * number, "{number}");
    }
}
