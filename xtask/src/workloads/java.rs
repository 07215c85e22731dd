//! A program in Java that allocates, with a probe on each allocation (USDT `hotspot:object__alloc`).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::load::Load;
use super::tool::{Events, Tool};
use super::workload::{Family, Goals, Need, Place, Seen, Workload, words};
use crate::bench::output;

pub(super) const FAMILY: Family = Family { name: "java", needs, prepare, workloads };

const ALLOCATIONS: usize = 2_000_000;
const SOURCE: &str = "public class Allocate {\n  static Object sink;\n  public static void main(String[] arguments) {\n    \
                      for (int i = Integer.parseInt(arguments[0]); i > 0; i--) sink = new byte[16 + (i & 63)];\n  }\n}\n";

/// The library that is the virtual machine.
fn machine() -> PathBuf {
    let java = std::fs::canonicalize("/usr/bin/java").unwrap_or_default();
    java.parent().and_then(Path::parent).unwrap_or(Path::new("/usr/lib/jvm")).join("lib/server/libjvm.so")
}

fn needs() -> Vec<Need> {
    vec![
        Need::new(&machine().display().to_string(), "default-jdk-headless"),
        Need::new("javac", "default-jdk-headless"),
        Need::new("bpftrace", "bpftrace"),
    ]
}

fn prepare(place: &Place) -> Result<(), String> {
    place.write("Allocate.java", SOURCE)?;
    output(Command::new("javac").arg("Allocate.java").current_dir(&place.directory)).map(|_| ())
}

fn workloads() -> Vec<Workload> {
    let library = machine().display().to_string();
    let row = |name: &str, action: &str| Workload {
        name: name.to_owned(),
        unit: "run",
        files: vec![],
        victim: words(&format!(
            "/usr/bin/java -XX:+DTraceAllocProbes -XX:+UseSerialGC -cp {{DIR}} Allocate {ALLOCATIONS}"
        )),
        seen: Seen::FromStart,
        is_pinned: false,
        load: Load::Runs,
        tool: Tool::bpftrace(&format!("usdt:{library}:hotspot:object__alloc {{ {action} }}"), Events::Map("@n")),
        // (The virtual machine allocates some for itself.)
        events: ALLOCATIONS as f64..=ALLOCATIONS as f64 * 1.05,
        goals: Goals::default(),
    };
    vec![row("java-alloc-count", "@n = count();"), row("java-alloc-classes", "@n[str(arg1, arg2)] = count();")]
}
