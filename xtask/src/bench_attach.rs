//! `cargo xtask bench attach`: how long a tool takes that attaches probes one by one, beside the kernel in the same run.
//!
//! The example tool probes the first N functions of the C library, by offset: before any process is a target, and in one that
//! runs. A time is from the tool's start until it says that all are attached, the fastest of some rounds.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench_options::Output;
use crate::{build_ring3, root, run};

const LIBRARY: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const COUNTS: [usize; 4] = [250, 500, 1000, 2000];
/// Functions that are smaller have too often no room for a probe of the kernel's or ours to be compared.
const FUNCTION_BYTES_MIN: u64 = 16;
const WAYS: [&str; 3] = ["ring3, no target", "ring3, running target", "kernel"];

/// What `cargo xtask bench attach` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds, of which the fastest counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = crate::bench_options::count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

/// A process that ends with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench {
    ring3: PathBuf,
    tool: PathBuf,
    directory: PathBuf,
    probes: Vec<String>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.ring3(&["stop"]).output();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The probes: functions of the library, by their offsets.
fn probes() -> Result<Vec<String>, String> {
    let bytes = std::fs::read(LIBRARY).map_err(|error| format!("{LIBRARY}: {error}"))?;
    let file = ring3_elf::File::parse(&bytes).map_err(|error| format!("{LIBRARY}: {error}"))?;
    let functions = file.symbols().iter().filter(|symbol| symbol.size >= FUNCTION_BYTES_MIN && !symbol.indirect);
    let mut offsets: Vec<u64> = functions.filter_map(|symbol| file.vaddr_to_offset(symbol.address)).collect();
    offsets.dedup();
    Ok(offsets.iter().map(|offset| format!("{LIBRARY}:{offset:#x}")).collect())
}

impl Bench {
    fn ring3(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.ring3);
        command.args(arguments).env("RING3_RUNTIME_DIR", &self.directory);
        command
    }

    /// How long it takes to attach so many probes, and how many were attached.
    fn attach(&self, way: &str, count: usize) -> Result<(Duration, u64), String> {
        let sleeper = Command::new("sleep").arg("1000").spawn().map_err(|error| error.to_string())?;
        let sleeper = Ended(sleeper);
        let pid = sleeper.0.id().to_string();
        if way == WAYS[1] {
            let attached = self.ring3(&["attach", &pid]).output().map_err(|error| error.to_string())?;
            if !attached.status.success() {
                return Err(String::from_utf8_lossy(&attached.stderr).into_owned());
            }
        }
        let mut command = if way == WAYS[2] {
            Command::new(&self.tool)
        } else {
            let mut command = self.ring3(&["load", "--"]);
            command.arg(&self.tool);
            command
        };
        command.args(&self.probes[..count]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let began = Instant::now();
        let mut tool = Ended(command.spawn().map_err(|error| format!("{}: {error}", self.tool.display()))?);
        let mut line = String::new();
        let out = tool.0.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).map_err(|error| error.to_string())?;
        let took = began.elapsed();
        let attached = line.strip_prefix("attached ").and_then(|number| number.trim().parse().ok());
        drop(tool);
        let _ = self.ring3(&["detach", &pid]).output();
        Ok((took, attached.ok_or_else(|| format!("{way}: the tool said {line:?}"))?))
    }
}

/// Runs the benchmark.
pub(crate) fn attach(options: &Options) -> Result<(), String> {
    run("make", &["-s", "-C", "examples/malloc"])?;
    let directory = std::env::temp_dir().join(format!("ring3-bench-attach-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&directory).map_err(|error| error.to_string())?;
    let tool = root().join(Path::new("examples/malloc/build/malloc"));
    let bench = Bench { ring3: build_ring3()?, tool, directory, probes: probes()? };
    let mut best: BTreeMap<(usize, &str), (Duration, u64)> = BTreeMap::new();
    for _ in 0..options.rounds {
        for count in COUNTS.map(|count| count.min(bench.probes.len())) {
            for way in WAYS {
                let (took, attached) = bench.attach(way, count)?;
                let entry = best.entry((count, way)).or_insert((took, attached));
                entry.0 = entry.0.min(took);
            }
        }
    }
    println!("{:>8} {:>24} {:>10} {:>10} {:>12}", "probes", "", "attached", "s", "us a probe");
    for ((count, way), (took, attached)) in &best {
        let each = took.as_secs_f64() * 1e6 / *attached as f64;
        println!("{count:>8} {way:>24} {attached:>10} {:>10.3} {each:>12.0}", took.as_secs_f64());
    }
    let row = |((count, way), (took, attached)): (&(usize, &str), &(Duration, u64))| json!({ "probes": count, "way": way, "attached": attached, "seconds": took.as_secs_f64() });
    options.output.save(|| best.iter().map(row).collect())
}
