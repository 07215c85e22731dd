//! A web server in Go with TLS: entries and returns of its handler, and of reads and writes of `crypto/tls`, are counted.
//!
//! The kernel's return probes break programs in Go: a stack that grows is copied, and its return addresses are checked.
//! So there is a row with entries alone, too.

use std::process::Command;

use super::load::Load;
use super::nginx::make_certificate;
use super::tool::{Events, Tool};
use super::workload::{Family, Goals, Need, Place, Seen, Workload, words};
use crate::bench::output;

pub(super) const FAMILY: Family = Family { name: "go", needs, prepare, workloads };

const FUNCTIONS: [&str; 3] = ["main.handle", "crypto/tls.(*Conn).Read", "crypto/tls.(*Conn).Write"];

fn needs() -> Vec<Need> {
    vec![Need::new("go", "golang"), Need::new("bpftrace", "bpftrace"), Need::new("openssl", "openssl")]
}

fn prepare(place: &Place) -> Result<(), String> {
    place.packages.unpack()?;
    make_certificate(place)?;
    let mut go = Command::new("go");
    let source = crate::root().join("bench/workloads/server.go");
    go.args(["build", "-o", "server"]).arg(source).current_dir(&place.directory);
    output(&mut go).map(|_| ())
}

fn workloads() -> Vec<Workload> {
    let entries = |count: &str| {
        FUNCTIONS.map(|name| format!("uprobe:{{DIR}}/server:\"{name}\" {{ {count} = count(); }} ")).concat()
    };
    let returns = FUNCTIONS
        .map(|name| format!("uretprobe:{{DIR}}/server:\"{name}\" {{ @n[\"return\"] = count(); }} "))
        .concat();
    // (A handler's call, a read, a write; now and then a read that gets nothing yet, or waits for the next request.)
    vec![
        row("go-tls-entries", entries("@n"), 3.0..=4.5),
        row("go-tls", entries("@n[\"entry\"]") + &returns, 5.9..=9.0),
    ]
}

fn row(name: &str, script: String, events: std::ops::RangeInclusive<f64>) -> Workload {
    Workload {
        name: name.to_owned(),
        unit: "request",
        files: vec![],
        victim: words("{DIR}/server {PORT}"),
        seen: Seen::ByFile,
        is_pinned: false,
        load: Load::Wrk { address: "https://127.0.0.1:{PORT}/".to_owned(), connections: 20 },
        tool: Tool::bpftrace(&script, Events::Map("@n")),
        events,
        goals: Goals::default(),
    }
}
