//! `cargo xtask bench tracepoint`: what a static tracepoint costs, off and on, side by side in one run.
//!
//! The same event of three fields (an int, a word, a short text) is reported by `RING3_TRACE`, under ring3 and with the kernel's uprobes,
//! and by LTTng-UST's `tracepoint()` into LTTng's ring buffer. Records have a time and a thread's id, and a reader writes them to a file
//! meanwhile. The same function without the event is timed just before, and subtracted. A time is that of the fastest of a few loops.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Process, Ring3, Spread, Victim, machine, machine_text, output};
use crate::bench_options::{Output, count};
use crate::root;

const ROUNDS: usize = 9;
const LOOPS: u32 = 7;
const LOOP_NS: f64 = 2e6;
/// Events of a loop with a program or with LTTng: they have room in the buffers, of 8 MiB, which are emptied before the next one.
const EVENTS: u64 = 30_000;
/// Loops before those that are timed: every page of the buffers has been written once.
const LOOPS_WARM: u32 = 12;
/// Time for a reader between two loops.
const PAUSE: Duration = Duration::from_millis(10);
/// How long LTTng's session daemon may take to answer.
const DAEMON_WITHIN: Duration = Duration::from_secs(20);
/// What bpftime publishes for a place that is instrumented by hand (github.com/eunomia-bpf/bpftime, README, "Performance Benchmarks"), ns.
const BPFTIME_NS: f64 = 110.0;
/// Goals: an empty program, and a recorded event, ns.
const EMPTY_NS: f64 = 10.0;
const RECORD_NS: f64 = 60.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Engine {
    Ring3,
    Kernel,
    Lttng,
}

use Engine::{Kernel, Lttng, Ring3 as OfRing3};

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Ring3 => "ring3",
            Engine::Kernel => "kernel",
            Engine::Lttng => "LTTng-UST",
        }
    }
}

/// What a row measures: name in the table, program (none: off), and by whom.
const ROWS: [(&str, &str, &[Engine]); 7] = [
    ("off", "", &[OfRing3, Lttng]),
    ("empty program", "empty", &[OfRing3, Kernel]),
    ("recorded to a file", "record", &[OfRing3, Kernel, Lttng]),
    ("only reserve and submit", "reserved", &[OfRing3, Kernel]),
    ("only the time", "timed", &[OfRing3, Kernel]),
    ("only the thread's id", "named", &[OfRing3, Kernel]),
    ("only the text", "read", &[OfRing3, Kernel]),
];

/// What `cargo xtask bench tracepoint` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

struct Bench {
    build: PathBuf,
    ring3: Ring3,
    lttng: Option<SessionDaemon>,
    figures: BTreeMap<(&'static str, Engine), Vec<f64>>,
    skipped: BTreeMap<Engine, String>,
    /// Events that are neither in the file nor lost in the buffer: the kernel's uprobe did not run the program.
    missed: Cell<u64>,
}

pub(crate) fn tracepoint(options: &Options) -> Result<(), String> {
    let build = root().join("target/bench");
    let make =
        |goal: &str| crate::run("make", &["-s", "-C", "bench/tracepoint", &format!("OUT={}", build.display()), goal]);
    make("all")?;
    let mut bench = Bench {
        build: build.clone(),
        ring3: Ring3::new()?,
        lttng: None,
        figures: BTreeMap::new(),
        skipped: BTreeMap::new(),
        missed: Cell::new(0),
    };
    let is_root = rustix::process::geteuid().is_root();
    let lttng = if is_root {
        make("lttng").and_then(|()| SessionDaemon::start())
    } else {
        Err("its daemon runs as root here".to_owned())
    };
    match lttng {
        Ok(daemon) => bench.lttng = Some(daemon),
        Err(why) => bench.skip(Lttng, why),
    }
    if !is_root {
        bench.skip(Kernel, "the kernel's uprobes need root".to_owned());
    }
    bench.run(options.rounds).map_err(|why| format!("{why}\nThe end of ring3's server.log:{}", bench.ring3.log()))?;
    bench.print(options.rounds);
    options.output.save(|| bench.json(options.rounds))
}

impl Bench {
    fn skip(&mut self, engine: Engine, why: String) {
        eprintln!("SKIPPED: {}: {why}", engine.name());
        self.skipped.insert(engine, why);
    }

    /// A round that does not count, then those that do.
    fn run(&mut self, rounds: usize) -> Result<(), String> {
        for round in 0..=rounds {
            eprintln!("round {round} of {rounds}");
            for (row, program, engines) in ROWS {
                for engine in engines.iter().filter(|engine| !self.skipped.contains_key(engine)) {
                    let figure =
                        self.measure(*engine, program).map_err(|why| format!("{}, {row}: {why}", engine.name()))?;
                    self.figures.entry((row, *engine)).or_default().push(figure);
                }
            }
            if round == 0 {
                self.figures.clear();
            }
        }
        Ok(())
    }

    /// What a call with the event takes more than one without, ns.
    fn measure(&self, engine: Engine, program: &str) -> Result<f64, String> {
        let name = if engine == Engine::Lttng { "tracepoint_lttng" } else { "tracepoint_victim" };
        let file = self.build.join(name);
        let mut victim = Victim::start(&mut Command::new(&file))?;
        let (bare, _) = victim.time_in("bare", LOOPS, LOOP_NS)?;
        let traced = match (engine, &self.lttng) {
            _ if program.is_empty() => victim.time_in("traced", LOOPS, LOOP_NS)?.0,
            (Engine::Lttng, Some(daemon)) => daemon.record(&mut victim, self.ring3.directory())?,
            (Engine::Lttng, None) => return Err("no session daemon".to_owned()),
            _ => self.traced(engine, program, &file, &mut victim)?,
        };
        victim.process.finish()?;
        Ok(traced - bare)
    }

    fn traced(&self, engine: Engine, program: &str, file: &Path, victim: &mut Victim) -> Result<f64, String> {
        let pid = victim.process.child.id();
        let out = self.ring3.directory().join("events");
        let mut command =
            if engine == Engine::Ring3 { self.ring3.command(&["load", "--"]) } else { Command::new("env") };
        command.arg(self.build.join("tracepoint_tool")).arg(pid.to_string()).arg(file).arg(program).arg(&out);
        let mut tool = Process::start(&mut command)?;
        tool.expect("attached")?;
        // What comes while the probe is new is not counted.
        let (_, before) = victim.run("traced", EVENTS)?;
        std::thread::sleep(PAUSE);
        let (written_before, lost_before) = tool.ask("report")?;
        let (mut written, mut lost) = (0, 0);
        let (took, calls) = timed(victim, || {
            (written, lost) = tool.ask("report")?;
            Ok(())
        })?;
        let recorded = calls - before;
        (written, lost) = (written - written_before, lost - lost_before);
        let missed = recorded.saturating_sub(written + lost);
        if program == "record" && engine == Engine::Kernel && missed > 0 {
            self.missed.set(self.missed.get() + missed);
        } else if program == "record" && written + lost != recorded {
            return Err(format!("{written} events in the file and {lost} lost, but there were {recorded}"));
        }
        if lost * 100 > recorded {
            return Err(format!("{lost} of {recorded} events were lost: the reader cannot keep up"));
        }
        tool.finish()?;
        if engine == Engine::Ring3 {
            self.ring3.await_left(pid)?;
        }
        std::fs::remove_file(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        Ok(took)
    }

    fn median(&self, row: &'static str, engine: Engine) -> Option<Spread> {
        Spread::of(self.figures.get(&(row, engine))?)
    }

    fn goals(&self) -> [(String, Option<f64>, f64); 2] {
        let of = |row| self.median(row, OfRing3).map(|spread| spread.median);
        [
            ("ring3, empty program".to_owned(), of(ROWS[1].0), EMPTY_NS),
            ("ring3, event of three fields recorded to a file".to_owned(), of(ROWS[2].0), RECORD_NS),
        ]
    }

    fn print(&self, rounds: usize) {
        println!("\n{}", machine_text());
        println!("what an event costs its thread, ns: median of {rounds} rounds (middle half)\n");
        let engines = [OfRing3, Kernel, Lttng];
        let heads: String = engines.iter().map(|engine| format!("{:>26}", engine.name())).collect();
        println!("{:<28}{heads}{:>16}{:>16}", "", "kernel/ring3", "LTTng/ring3");
        for (row, ..) in ROWS {
            let cells: String = engines
                .iter()
                .map(|engine| {
                    self.median(row, *engine).map_or_else(|| format!("{:>26}", "-"), |spread| format!("{spread:>26}"))
                })
                .collect();
            let own = self.median(row, OfRing3).map(|spread| spread.median).filter(|own| *own > 0.5);
            let ratio = |engine| {
                let ratio = own.and_then(|own| Some(self.median(row, engine)?.median / own));
                ratio.map_or_else(|| format!("{:>16}", "-"), |ratio| format!("{ratio:>16.2}"))
            };
            println!("{row:<28}{cells}{}{}", ratio(Kernel), ratio(Lttng));
        }
        println!(
            "\nbpftime publishes {BPFTIME_NS} ns for a place that is instrumented by hand (its README, \"Performance Benchmarks\"); not measured here"
        );
        for (what, figure, most) in self.goals() {
            let verdict = figure.map_or("not measured", |figure| if figure <= most { "met" } else { "MISSED" });
            println!("goal: {what}: at most {most} ns: {verdict}");
        }
        if self.missed.get() > 0 {
            println!("kernel: its uprobe missed {} events", self.missed.get());
        }
        for (engine, why) in &self.skipped {
            println!("skipped: {}: {why}", engine.name());
        }
    }

    fn json(&self, rounds: usize) -> Value {
        let figures = self
            .figures
            .iter()
            .map(|((row, engine), figures)| json!({"row": row, "engine": engine.name(), "ns": figures}));
        let goals = self.goals().map(|(what, figure, most)| json!({"goal": what, "ns": figure, "at_most": most}));
        let skipped: BTreeMap<&str, &String> =
            self.skipped.iter().map(|(engine, why)| (engine.name(), why)).collect();
        json!({
            "machine": machine(), "rounds": rounds, "figures": figures.collect::<Vec<_>>(), "goals": goals, "skipped": skipped,
            "missed_by_kernel": self.missed.get(),
        })
    }
}

/// What a call takes in the fastest of a few loops, ns, and how many there were in all; `between` follows each loop.
fn timed(victim: &mut Victim, mut between: impl FnMut() -> Result<(), String>) -> Result<(f64, u64), String> {
    let (mut fastest, mut total) = (f64::INFINITY, 0);
    for number in 0..LOOPS_WARM + LOOPS {
        let (took, so_far) = victim.run("traced", EVENTS)?;
        total = so_far;
        if number >= LOOPS_WARM {
            fastest = fastest.min(took);
        }
        std::thread::sleep(PAUSE);
        between()?;
    }
    Ok((fastest, total))
}

/// LTTng's session daemon, ended when this is dropped.
struct SessionDaemon {
    child: Child,
}

impl SessionDaemon {
    fn start() -> Result<SessionDaemon, String> {
        if lttng(&["list"]).is_ok() {
            return Err("a session daemon of LTTng runs here already; end it first".to_owned());
        }
        let mut command = Command::new("lttng-sessiond");
        command.args(["--no-kernel", "--quiet"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("lttng-sessiond: {error}"))?;
        let daemon = SessionDaemon { child };
        let deadline = Instant::now() + DAEMON_WITHIN;
        while lttng(&["list"]).is_err() {
            if Instant::now() > deadline {
                return Err("lttng-sessiond does not answer".to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(daemon)
    }

    /// A call with the event, recorded into LTTng's ring buffer and by its consumer to a file, ns.
    fn record(&self, victim: &mut Victim, directory: &Path) -> Result<f64, String> {
        let session = "ring3-bench";
        let traces = directory.join("lttng");
        lttng(&["create", session, "--output", &traces.display().to_string()])?;
        let measured = (|| {
            lttng(&[
                "enable-channel",
                "--userspace",
                "--session",
                session,
                "--subbuf-size=4M",
                "--num-subbuf=16",
                "events",
            ])?;
            lttng(&["enable-event", "--userspace", "--session", session, "--channel=events", "bench:event"])?;
            lttng(&["add-context", "--userspace", "--session", session, "--channel=events", "--type=vtid"])?;
            lttng(&["start", session])?;
            timed(victim, || Ok(()))
        })();
        let stopped = lttng(&["stop", session]);
        let destroyed = lttng(&["destroy", session]);
        let (took, calls) = measured?;
        let report = stopped.and(destroyed)?;
        if report.contains("discarded") {
            return Err(format!("events were lost: {report}"));
        }
        // At least the fields' bytes of each call that was traced.
        let bytes = bytes_in(&traces);
        std::fs::remove_dir_all(&traces).map_err(|error| format!("{}: {error}", traces.display()))?;
        if bytes < calls / 2 * 16 {
            return Err(format!("{bytes} bytes in the trace, for {calls} calls"));
        }
        Ok(took)
    }
}

fn lttng(arguments: &[&str]) -> Result<String, String> {
    output(Command::new("lttng").args(arguments).stderr(Stdio::null()))
}

fn bytes_in(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            entry.metadata().map_or(0, |meta| if meta.is_dir() { bytes_in(&entry.path()) } else { meta.len() })
        })
        .sum()
}

impl Drop for SessionDaemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}
