//! `cargo xtask bench verify`: what the verification of programs takes, beside the kernel and `prevail`, in one run.
//!
//! The programs are those of Debian's libbpf-tools that the kernel accepts, each judged by itself; `verifiers` of
//! `tests/benches` asks the verifiers. The kernel's time is what it tells of itself (`verification time`), ring3's and
//! prevail's are those of a call. Engines take turns over a program. A time is that of the fastest round (interference only
//! ever adds); the median stands beside it. `prevail`, which may sit for minutes or die, is asked no second time then.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, Spread, bench_binary, machine, machine_text};
use crate::bench_options::{Output, count};

const ROUNDS: usize = 9;
/// How long `prevail` is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Programs that are shown alone.
const SLOWEST: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    Kernel,
    Ring3,
    Prevail,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Kernel => "kernel",
            Engine::Ring3 => "ring3",
            Engine::Prevail => "prevail",
        }
    }
}

/// An engine, asked by a process of its own.
struct Side {
    engine: Engine,
    binary: PathBuf,
    process: Process,
}

/// What an engine said of a program.
struct Answer {
    verdict: String,
    us: f64,
    processed: u64,
    states: u64,
}

impl Side {
    fn start(engine: Engine, binary: PathBuf) -> Result<Side, String> {
        let mut command = Command::new(&binary);
        command.arg(engine.name());
        if engine == Engine::Prevail {
            // It panics, and says so.
            command.stderr(Stdio::null());
        }
        let mut process = Process::start(&mut command)?;
        process.expect("ready")?;
        Ok(Side { engine, binary, process })
    }

    fn verify(&mut self, program: &Program) -> Result<Answer, String> {
        self.process.say(&program.question())?;
        Answer::parse(&self.process.line()?)
    }

    /// The same if it may never answer, or die of it.
    fn verify_patiently(&mut self, program: &Program) -> Result<Answer, String> {
        // What comes before the verifier is asked, which is much in a new process, does not try the patience.
        self.process.say(&program.preparation())?;
        self.process.line()?;
        self.process.say(&program.question())?;
        let verdict = match self.process.line_within(PATIENCE) {
            Ok(Some(line)) => return Answer::parse(&line),
            Ok(None) => "gave up",
            Err(_) => "broke",
        };
        *self = Side::start(self.engine, self.binary.clone())?;
        Ok(Answer { verdict: verdict.into(), us: PATIENCE.as_secs_f64() * 1e6, processed: 0, states: 0 })
    }

    fn list(&mut self) -> Result<Vec<Program>, String> {
        self.process.say("list")?;
        let mut programs = vec![];
        loop {
            let line = self.process.line()?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["end"] => return Ok(programs),
                [object, place, tool, name] => programs.push(Program {
                    number: format!("{object} {place}"),
                    tool: tool.into(),
                    name: name.into(),
                }),
                _ => return Err(format!("list: {line:?}")),
            }
        }
    }
}

impl Answer {
    fn parse(line: &str) -> Result<Answer, String> {
        let parsed = || {
            let [verdict, ns, processed, states] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
            let us = ns.parse::<f64>().ok()? / 1000.0;
            Some(Answer {
                verdict: verdict.into(),
                us,
                processed: processed.parse().ok()?,
                states: states.parse().ok()?,
            })
        };
        parsed().ok_or_else(|| format!("no answer: {line:?}"))
    }

    fn is_accepted(&self) -> bool {
        self.verdict == "accepts"
    }

    /// Whether the engine came to an end, and so has a time.
    fn is_verdict(&self) -> bool {
        matches!(self.verdict.as_str(), "accepts" | "refuses")
    }
}

struct Program {
    /// Of its object, and its own in that.
    number: String,
    tool: String,
    name: String,
}

impl Program {
    fn question(&self) -> String {
        format!("verify {}", self.number)
    }

    fn preparation(&self) -> String {
        format!("prepare {}", self.number)
    }

    fn full_name(&self) -> String {
        format!("{} {}", self.tool, self.name)
    }
}

/// A program, and what engines took for it, in microseconds.
struct Row {
    program: Program,
    kernel: Option<Series>,
    ring3: Series,
    /// No rounds: it has no verdict.
    prevail: Series,
}

/// The rounds of an engine on a program, and what it said in the first.
struct Series {
    first: Answer,
    us: Vec<f64>,
}

impl Series {
    fn new(first: Answer) -> Series {
        Series { first, us: vec![] }
    }

    fn fastest(&self) -> f64 {
        self.us.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn slowest(&self) -> f64 {
        self.us.iter().copied().fold(self.first.us, f64::max)
    }

    fn median(&self) -> f64 {
        Spread::of(&self.us).map_or(0.0, |spread| spread.median)
    }

    fn json(&self) -> Value {
        json!({
            "us": self.fastest(), "median_us": self.median(), "rounds_us": self.us,
            "processed": self.first.processed, "states": self.first.states,
        })
    }
}

/// Memory that ring3's verifier takes, bytes.
#[derive(Clone, Copy)]
struct Memory {
    peak: u64,
    kept: u64,
    by_one: u64,
}

/// What `cargo xtask bench verify` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure only what has this text in its name
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

struct Bench {
    options: Options,
    rows: Vec<Row>,
    /// Programs that the kernel refuses.
    refused: usize,
    /// Programs that only the kernel accepts.
    not_ours: Vec<String>,
    memory: Option<Memory>,
}

pub(crate) fn verify(options: Options) -> Result<(), String> {
    let binary = bench_binary("verifiers")?;
    let mut bench = Bench { options, rows: vec![], refused: 0, not_ours: vec![], memory: None };
    bench.run(&binary)?;
    bench.print();
    bench.options.output.save(|| bench.json())?;
    if bench.not_ours.is_empty() {
        return Ok(());
    }
    Err(format!("the kernel accepts what ring3 refuses:\n{}", bench.not_ours.join("\n")))
}

impl Bench {
    fn run(&mut self, binary: &std::path::Path) -> Result<(), String> {
        let start = |engine| Side::start(engine, binary.to_owned());
        let mut kernel = None;
        if rustix::process::geteuid().is_root() {
            kernel = Some(start(Engine::Kernel)?);
        } else {
            eprintln!("SKIPPED: kernel: it verifies for root only; all programs that ring3 accepts are measured");
        }
        let (mut ring3, mut prevail) = (start(Engine::Ring3)?, start(Engine::Prevail)?);
        let mut programs = ring3.list()?;
        programs.retain(|program| program.full_name().contains(&self.options.only));
        if programs.is_empty() {
            return Err("no such program; is libbpf-tools installed?".into());
        }
        eprintln!("{} programs, {} rounds", programs.len(), self.options.rounds);
        for program in programs {
            let name = program.full_name();
            self.measure(kernel.as_mut(), &mut ring3, &mut prevail, program)
                .map_err(|why| format!("{name}: {why}"))?;
        }
        // In a process where nothing was verified yet.
        let mut fresh = start(Engine::Ring3)?;
        fresh.process.say("memory")?;
        let answer = fresh.process.line()?;
        let numbers: Vec<u64> = answer.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [peak, kept, by_one] = numbers[..] else { return Err(format!("memory: {answer:?}")) };
        self.memory = Some(Memory { peak, kept, by_one });
        Ok(())
    }

    /// Rounds in which engines take turns, after one that does not count.
    fn measure(
        &mut self,
        mut kernel: Option<&mut Side>,
        ring3: &mut Side,
        prevail: &mut Side,
        program: Program,
    ) -> Result<(), String> {
        let natively = kernel.as_mut().map(|side| side.verify(&program)).transpose()?;
        if natively.as_ref().is_some_and(|answer| !answer.is_accepted()) {
            self.refused += 1;
            return Ok(());
        }
        let ours = ring3.verify(&program)?;
        if !ours.is_accepted() {
            if natively.is_some() {
                self.not_ours.push(program.full_name());
            }
            return Ok(());
        }
        let mut row = Row {
            kernel: natively.map(Series::new),
            ring3: Series::new(ours),
            prevail: Series::new(prevail.verify_patiently(&program)?),
            program,
        };
        for _ in 0..self.options.rounds {
            if let (Some(side), Some(series)) = (kernel.as_mut(), row.kernel.as_mut()) {
                series.us.push(side.verify(&row.program)?.us);
            }
            row.ring3.us.push(ring3.verify(&row.program)?.us);
            if row.prevail.first.is_verdict() {
                row.prevail.us.push(prevail.verify_patiently(&row.program)?.us);
            }
        }
        self.rows.push(row);
        Ok(())
    }

    fn goals(&self) -> Vec<Goal> {
        let seconds = self.rows.iter().map(|row| row.ring3.slowest() / 1e6).max_by(f64::total_cmp);
        vec![
            Goal {
                text: "the kernel's time, times ring3's, in total".into(),
                figure: Sums::of(&self.rows).ratio(),
                limit: Limit::AtLeast(1.0),
            },
            Goal {
                text: "ring3's slowest program in its slowest round, s".into(),
                figure: seconds,
                limit: Limit::AtMost(1.0),
            },
            Goal {
                text: "programs that only the kernel accepts".into(),
                figure: Some(self.not_ours.len() as f64),
                limit: Limit::AtMost(0.0),
            },
        ]
    }

    fn print(&self) {
        println!("\n{}", machine_text());
        self.print_tools();
        self.print_slowest();
        if let Some(ratio) = self.ratio_geometric() {
            println!("\nkernel / ring3, geometric mean over programs: {ratio:.2}");
        }
        if let Some(memory) = self.memory {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!(
                "memory of ring3's verifier, MiB: {:.1} at most over all programs, {:.1} for one, {:.1} kept",
                mib(memory.peak),
                mib(memory.by_one),
                mib(memory.kept)
            );
        }
        println!("\ngoals");
        for goal in self.goals() {
            println!("{goal}");
        }
    }

    fn print_tools(&self) {
        println!(
            "\nus for a tool's programs (fastest and median of {} rounds; {} that the kernel refuses are left out)",
            self.options.rounds, self.refused
        );
        println!("prevail: of the programs that it judges within {} s\n", PATIENCE.as_secs());
        println!(
            "{:<18}{:>8} |{:>10}{:>10} |{:>10}{:>10} |{:>14} |{:>12}  says",
            "tool", "programs", "kernel", "median", "ring3", "median", "kernel/ring3", "prevail"
        );
        for of_tool in self.rows.chunk_by(|one, other| one.program.tool == other.program.tool) {
            println!("{}", line(&of_tool[0].program.tool, of_tool));
        }
        println!("{}", line("all", &self.rows));
        if let Some((prevail, ours)) = self.judged_by_prevail() {
            println!("\nof what prevail judges: prevail {prevail:.0}, ring3 {ours:.0}: {:.1}x", prevail / ours);
        }
    }

    fn print_slowest(&self) {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by(|one, other| other.ring3.fastest().total_cmp(&one.ring3.fastest()));
        println!("\nring3's slowest programs: us, instructions processed, states");
        println!(
            "{:<44} |{:>10}{:>9}{:>8} |{:>10}{:>9}{:>8} |{:>7}",
            "", "kernel", "insns", "states", "ring3", "insns", "states", ""
        );
        let cell = |series: &Series| {
            let Answer { processed, states, .. } = series.first;
            format!("{:>10.0}{processed:>9}{states:>8}", series.fastest())
        };
        for row in rows.into_iter().take(SLOWEST) {
            let kernel = row.kernel.as_ref().map_or_else(|| format!("{:>27}", "-"), cell);
            let ratio = row.kernel.as_ref().map(|kernel| format!("{:.2}x", kernel.fastest() / row.ring3.fastest()));
            let (name, ratio) = (row.program.full_name(), ratio.unwrap_or_default());
            println!("{name:<44} |{kernel} |{} |{ratio:>7}", cell(&row.ring3));
        }
    }

    /// The times of prevail and ring3 for what prevail judges.
    fn judged_by_prevail(&self) -> Option<(f64, f64)> {
        let judged = self.rows.iter().filter(|row| row.prevail.first.is_verdict());
        let times = judged.map(|row| (row.prevail.fastest(), row.ring3.fastest()));
        times.reduce(|sums, times| (sums.0 + times.0, sums.1 + times.1))
    }

    /// The kernel's time by ring3's, of a typical program.
    fn ratio_geometric(&self) -> Option<f64> {
        let ratio = |row: &Row| Some((row.kernel.as_ref()?.fastest().max(0.5) / row.ring3.fastest()).ln());
        let logarithms: Vec<f64> = self.rows.iter().filter_map(ratio).collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
        (!logarithms.is_empty()).then(|| mean.exp())
    }

    fn json(&self) -> Value {
        let programs = self.rows.iter().map(|row| {
            json!({
                "tool": row.program.tool, "program": row.program.name,
                "kernel": row.kernel.as_ref().map(Series::json), "ring3": row.ring3.json(),
                "prevail": {
                    "says": row.prevail.first.verdict,
                    "us": row.prevail.first.is_verdict().then(|| row.prevail.fastest()),
                    "rounds_us": row.prevail.us,
                },
            })
        });
        let sums = Sums::of(&self.rows);
        json!({
            "machine": machine(),
            "rounds": self.options.rounds,
            "programs": programs.collect::<Vec<_>>(),
            "refused_by_kernel": self.refused,
            "accepted_by_kernel_only": self.not_ours,
            "kernel_us": sums.kernel, "kernel_median_us": sums.kernel_median,
            "ring3_us": sums.ring3, "ring3_median_us": sums.ring3_median,
            "times_ring3": sums.ratio(), "times_ring3_geometric": self.ratio_geometric(),
            "prevail_times_ring3": self.judged_by_prevail().map(|(prevail, ours)| prevail / ours),
            "memory": self.memory.map(|memory| {
                json!({"bytes_peak": memory.peak, "bytes_kept": memory.kept, "bytes_by_one": memory.by_one})
            }),
            "goals": self.goals().iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}

/// Microseconds over some programs.
struct Sums {
    /// None: the kernel was not asked.
    kernel: Option<f64>,
    kernel_median: Option<f64>,
    ring3: f64,
    ring3_median: f64,
}

impl Sums {
    fn of(rows: &[Row]) -> Sums {
        let kernel = |of: fn(&Series) -> f64| rows.iter().map(|row| row.kernel.as_ref().map(of)).sum();
        let ring3 = |of: fn(&Series) -> f64| rows.iter().map(|row| of(&row.ring3)).sum();
        Sums {
            kernel: kernel(Series::fastest),
            kernel_median: kernel(Series::median),
            ring3: ring3(Series::fastest),
            ring3_median: ring3(Series::median),
        }
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.kernel? / self.ring3)
    }
}

/// A line of the table of tools.
fn line(name: &str, rows: &[Row]) -> String {
    let sums = Sums::of(rows);
    let optional = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.0}"));
    let judged = rows.iter().map(|row| &row.prevail).filter(|series| series.first.is_verdict());
    let prevail = judged.map(Series::fastest).reduce(|sum, us| sum + us);
    let mut says = vec![];
    for verdict in ["accepts", "refuses", "cannot", "gave up", "broke"] {
        let count = rows.iter().filter(|row| row.prevail.first.verdict == verdict).count();
        if count > 0 {
            says.push(format!("{verdict} {count}"));
        }
    }
    format!(
        "{name:<18}{:>8} |{:>10}{:>10} |{:>10.0}{:>10.0} |{:>14} |{:>12}  {}",
        rows.len(),
        optional(sums.kernel),
        optional(sums.kernel_median),
        sums.ring3,
        sums.ring3_median,
        sums.ratio().map(|ratio| format!("{ratio:.2}x")).unwrap_or_default(),
        optional(prevail),
        says.join(", ")
    )
}
