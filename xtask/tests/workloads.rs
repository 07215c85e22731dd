//! `cargo xtask bench workloads` in short: a row is measured untraced, on the kernel and under ring3, and both tools see
//! what the program did. (No time is judged.)

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROW: &str = "find-opensnoop";

#[test]
fn a_row_of_the_benchmark_sees_the_same_events_on_the_kernel_and_under_ring3() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: the kernel's half, and control groups, need root");
    }
    for (program, package) in [("/usr/sbin/opensnoop", "libbpf-tools"), ("/usr/bin/bpftrace", "bpftrace")] {
        if !Path::new(program).exists() {
            return println!("SKIPPED: no {program} (apt-get install {package})");
        }
    }
    let ring3 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/ring3");
    assert!(ring3.exists(), "built by `make build`");
    let figures = std::env::temp_dir().join(format!("ring3-workloads-{}.json", std::process::id()));
    let mut bench = Command::new(env!("CARGO_BIN_EXE_xtask"));
    bench.args(["bench", "workloads", "--rounds", "1", "--seconds", "1", "--only", ROW, "--json"]);
    let output = bench.arg(&figures).env("RING3_BIN", ring3).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout);
    let text = std::fs::read_to_string(&figures);
    let _ = std::fs::remove_file(&figures);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_str(&text.expect("figures were written")).expect("JSON");
    let row = &json["workloads"][0];
    assert_eq!(row["workload"], ROW);
    assert!(row["skipped"].is_null(), "{row}");
    let variants = row["variants"].as_array().expect("variants");
    assert_eq!(variants.len(), 4, "{row}");
    let events: Vec<f64> = variants
        .iter()
        .filter(|variant| variant["variant"] == "kernel" || variant["variant"] == "ring3")
        .map(|variant| variant["figures"]["events"][0].as_f64().unwrap_or_else(|| panic!("no events: {variant}")))
        .collect();
    assert!(events.len() == 2 && (events[0] - events[1]).abs() < 1.0, "events of a run: {events:?}");
    for variant in variants {
        let cpu = variant["figures"]["cpu_us"][0].as_f64();
        assert!(cpu.is_some_and(|cpu| cpu > 0.0), "{variant}");
    }
}
