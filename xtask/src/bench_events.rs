//! `cargo xtask bench events`: how late events are with their reader, how many are lost, and what they cost.
//!
//! A process has events at a steady rate, each of which an ordinary libbpf tool reads by a perf buffer or a ring buffer that wakes
//! it for each event. The process alone is timed first; what its thread's CPU time is more with the tool is what an event costs it.
//! In each round everybody has a turn.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::bench::{Process, Ring3, Spread, machine, machine_text};
use crate::bench_options::{Output, count};
use crate::root;

const ROUNDS: usize = 5;
const BUFFERS: [&str; 2] = ["perf", "ring"];

/// Events a second, 0: one after the other; and how many.
const LOADS: [(u32, u32); 4] = [(10, 20), (1_000, 1_000), (100_000, 50_000), (0, 200_000)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Engine {
    Ring3,
    Kernel,
}

const ENGINES: [Engine; 2] = [Engine::Ring3, Engine::Kernel];

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Ring3 => "ring3",
            Engine::Kernel => "kernel",
        }
    }
}

/// What `cargo xtask bench events` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

/// A figure of a row, its name in the table.
type Key = (u32, &'static str, Engine, &'static str);

const RATE: &str = "a_second";
const LATE_50: &str = "late_p50_us";
const LATE_99: &str = "late_p99_us";
const LOST: &str = "lost_percent";
const THREAD: &str = "thread_us";
const READER: &str = "reader_us";
const SERVER: &str = "server_us";
/// The columns: name, and the head of it.
const COLUMNS: [(&str, &str); 7] = [
    (RATE, "had"),
    (LATE_50, "late p50"),
    (LATE_99, "p99"),
    (LOST, "lost %"),
    (THREAD, "thread"),
    (READER, "reader"),
    (SERVER, "server"),
];

struct Bench {
    build: PathBuf,
    ring3: Ring3,
    figures: BTreeMap<Key, Vec<f64>>,
    skipped: Option<String>,
}

pub(crate) fn events(options: &Options) -> Result<(), String> {
    let build = root().join("target/bench");
    crate::run("make", &["-s", "-C", "bench/events", &format!("OUT={}", build.display())])?;
    let mut bench = Bench { build, ring3: Ring3::new()?, figures: BTreeMap::new(), skipped: None };
    bench.run(options.rounds).map_err(|why| format!("{why}\nThe end of ring3's server.log:{}", bench.ring3.log()))?;
    bench.print(options.rounds);
    options.output.save(|| bench.json(options.rounds))
}

impl Bench {
    fn run(&mut self, rounds: usize) -> Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            self.skipped = Some("the kernel's uprobes need root".to_owned());
            eprintln!("SKIPPED: kernel: the kernel's uprobes need root");
        }
        for round in 1..=rounds {
            eprintln!("round {round} of {rounds}");
            for buffer in BUFFERS {
                for engine in ENGINES {
                    if engine == Engine::Kernel && self.skipped.is_some() {
                        continue;
                    }
                    self.measure(buffer, engine).map_err(|why| format!("{}, {buffer}: {why}", engine.name()))?;
                }
            }
        }
        Ok(())
    }

    fn measure(&mut self, buffer: &'static str, engine: Engine) -> Result<(), String> {
        let file = self.build.join("events_victim");
        let mut victim = Process::start(&mut Command::new(&file))?;
        victim.expect("ready")?;
        let untraced = LOADS.map(|(rate, calls)| {
            Ok::<_, String>(victim.ask(&format!("{rate} {calls}"))?.1 as f64 / f64::from(calls))
        });
        let pid = victim.child.id().to_string();
        let mut command = match engine {
            Engine::Ring3 => self.ring3.command(&["load", "--"]),
            Engine::Kernel => Command::new("env"),
        };
        command.arg(self.build.join("events_tool")).arg(&pid).arg(&file).arg(buffer);
        let mut tool = Process::start(&mut command)?;
        tool.expect("attached")?;
        let server = match engine {
            Engine::Ring3 => Some(self.ring3.server_pid()?),
            Engine::Kernel => None,
        };
        // What is done once is not part of an event's costs.
        victim.ask("1000 20")?;
        report(&mut tool)?;
        for ((rate, calls), untraced) in LOADS.into_iter().zip(untraced) {
            let before = server.map_or(Ok(0.0), cpu_us)?;
            let (wall, cpu) = victim.ask(&format!("{rate} {calls}"))?;
            let cpu = cpu as f64 / f64::from(calls);
            let [received, late_50, late_99, reader] = report(&mut tool)?;
            let after = server.map_or(Ok(0.0), cpu_us)?;
            let lost = f64::from(calls) - received;
            if lost < 0.0 || received == 0.0 {
                return Err(format!("{received} events came, but there were {calls}"));
            }
            let figures = [
                (RATE, f64::from(calls) * 1e9 / wall as f64),
                (LATE_50, late_50 / 1e3),
                (LATE_99, late_99 / 1e3),
                (LOST, lost * 100.0 / f64::from(calls)),
                (THREAD, (cpu - untraced?) / 1e3),
                (READER, reader / 1e3 / f64::from(calls)),
                (SERVER, (after - before) / f64::from(calls)),
            ];
            for (name, figure) in figures {
                self.figures.entry((rate, buffer, engine, name)).or_default().push(figure);
            }
        }
        tool.finish()?;
        victim.finish().map(|_| ())
    }

    fn figure(&self, key: Key) -> Option<f64> {
        Spread::of(self.figures.get(&key)?).map(|spread| spread.median)
    }

    fn print(&self, rounds: usize) {
        println!("\n{}", machine_text());
        println!(
            "events of 64 bytes: how late, us; lost, %; CPU time of each event, us: medians of {rounds} rounds\n"
        );
        let heads: String = COLUMNS.iter().map(|(_, head)| format!("{head:>12}")).collect();
        println!("{:<12}{:<8}{:<8}{heads}", "a second", "buffer", "");
        for (rate, _) in LOADS {
            for buffer in BUFFERS {
                for engine in ENGINES {
                    let cell = |name| self.figure((rate, buffer, engine, name));
                    let cells: String = COLUMNS
                        .iter()
                        .map(|(name, _)| cell(name).map_or_else(|| format!("{:>12}", "-"), |f| format!("{f:>12.2}")))
                        .collect();
                    let rate = if rate == 0 { "all it can".to_owned() } else { rate.to_string() };
                    println!("{rate:<12}{buffer:<8}{:<8}{cells}", engine.name());
                }
            }
        }
        if let Some(why) = &self.skipped {
            println!("\nskipped: kernel: {why}");
        }
    }

    fn json(&self, rounds: usize) -> Value {
        let figures = self.figures.iter().map(|((rate, buffer, engine, name), rounds)| {
            json!({"events_a_second": rate, "buffer": buffer, "engine": engine.name(), "figure": name, "rounds": rounds})
        });
        json!({
            "machine": machine(), "rounds": rounds, "skipped": self.skipped, "figures": figures.collect::<Vec<_>>(),
        })
    }
}

/// What the tool says of the events since it was last asked.
fn report(tool: &mut Process) -> Result<[f64; 4], String> {
    tool.say("report")?;
    let line = tool.line()?;
    let figures: Vec<f64> = line.split(' ').map_while(|word| word.parse().ok()).collect();
    figures.try_into().map_err(|_| format!("events_tool: {line:?}"))
}

/// CPU time of all threads of a process, us.
fn cpu_us(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/task");
    let threads = std::fs::read_dir(&path).map_err(|error| format!("{path}: {error}"))?;
    let of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    Ok(threads.flatten().filter_map(of).sum::<f64>() / 1e3)
}
