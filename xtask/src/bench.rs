//! `cargo xtask bench probe`: what a probe costs, side by side in one run.
//!
//! Engines: ring3, the kernel's uprobes (the same tool, run natively) and frida-gum. The figures of one round follow
//! each other at once, so whatever else the machine does hits all alike; only ratios within a run mean something.
//! Each measurement has a process of its own, whose unprobed calls are timed just before and subtracted. A time is
//! that of the fastest of a few loops: interference only ever adds.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench_options::{Output, count};
use crate::{cargo_messages, root};

const ROUNDS: usize = 9;
/// An answer must come within this time.
const WITHIN: Duration = Duration::from_secs(120);
/// Lines of the server's log that are shown after a failure.
const LOG_LINES: usize = 10;
/// Calls before those that are timed: caches are warm, the map has its entry, the kernel has optimised its probe.
const CALLS_WARM: u64 = 2_000;
/// Timed loops of a measurement, and how long each shall take; its number of calls comes from the warm ones.
const LOOPS: u32 = 5;
const LOOP_NS: f64 = 4e6;
const CALLS_MIN: f64 = 500.0;
const CALLS_MAX: f64 = 2e6;
/// Threads of the process whose stop is timed.
const THREADS: u32 = 8;

const SHAPES: [&str; 3] = ["nop5", "push", "sub"];
const KINDS: [&str; 2] = ["uprobe", "uretprobe"];
const PROGRAMS: [&str; 2] = ["empty", "counting"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Engine {
    Ring3,
    Kernel,
    Frida,
}

const ENGINES: [Engine; 3] = [Engine::Ring3, Engine::Kernel, Engine::Frida];

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Ring3 => "ring3",
            Engine::Kernel => "kernel",
            Engine::Frida => "frida",
        }
    }
}

/// What is probed and how; a row of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    kind: &'static str,
    program: &'static str,
    shape: &'static str,
}

/// Programs for one kind and shape only, that frida has nothing like.
const OTHERS: [Row; 6] = [
    Row { kind: "uprobe", program: "per_cpu", shape: "nop5" },
    Row { kind: "uprobe", program: "filtered", shape: "nop5" },
    // (What a stack of ten frames costs is the difference. The kernel finds only those with frame pointers.)
    Row { kind: "uprobe", program: "empty", shape: "nested" },
    Row { kind: "uprobe", program: "stack", shape: "nested" },
    Row { kind: "uprobe", program: "empty", shape: "framed" },
    Row { kind: "uprobe", program: "stack", shape: "framed" },
];

fn rows() -> impl Iterator<Item = Row> {
    let usual = KINDS.into_iter().flat_map(|kind| {
        PROGRAMS
            .into_iter()
            .flat_map(move |program| SHAPES.into_iter().map(move |shape| Row { kind, program, shape }))
    });
    usual.chain(OTHERS)
}

/// The middle of some figures, and where their middle half lies.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    q1: f64,
    pub(crate) median: f64,
    q3: f64,
}

impl Spread {
    pub(crate) fn of(figures: &[f64]) -> Option<Spread> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = part * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        (!sorted.is_empty()).then(|| Spread { q1: at(0.25), median: at(0.5), q3: at(0.75) })
    }

    /// That of the same figures below 0.
    pub(crate) fn negative(self) -> Spread {
        Spread { q1: 0.0 - self.q3, median: 0.0 - self.median, q3: 0.0 - self.q1 }
    }

    /// How far from 0 the middle half reaches.
    pub(crate) fn reach(&self) -> f64 {
        self.q1.abs().max(self.q3.abs())
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = if self.median < 1000.0 { 1 } else { 0 };
        let range = format!("({:.places$}..{:.places$})", self.q1, self.q3);
        write!(f, "{:>7.places$} {range:<15}", self.median)
    }
}

/// Everything that was measured, a figure per round.
#[derive(Default)]
struct Figures {
    plain: BTreeMap<&'static str, Vec<f64>>,
    added: BTreeMap<(Row, Engine), Vec<f64>>,
    /// By engine and field of `smaps_rollup`, in KiB.
    memory: BTreeMap<(Engine, &'static str), Vec<f64>>,
    /// By what the threads do and field of `ring3 status`, in microseconds.
    attach: BTreeMap<(&'static str, &'static str), Vec<f64>>,
    agent_bytes: Option<u64>,
}

/// A process with piped input and output, killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    lines: Receiver<String>,
    name: String,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Result<Process, String> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                BufReader::new(out).lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
            });
        }
        Ok(Process { child, lines, name })
    }

    pub(crate) fn line(&mut self) -> Result<String, String> {
        self.line_within(WITHIN)?.ok_or_else(|| format!("{} does not answer", self.name))
    }

    /// The next line, or nothing if there is none in time.
    pub(crate) fn line_within(&mut self, within: Duration) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(within) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// Why a process does not listen or answer any more.
    fn ended(&mut self) -> String {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("{} ended: {status}", self.name)
    }

    pub(crate) fn expect(&mut self, wanted: &str) -> Result<(), String> {
        let line = self.line()?;
        if line == wanted { Ok(()) } else { Err(format!("{}: {line:?} instead of {wanted:?}", self.name)) }
    }

    /// Says a line; the answer's two numbers.
    pub(crate) fn ask(&mut self, line: &str) -> Result<(u64, u64), String> {
        self.say(line)?;
        let answer = self.line()?;
        answer
            .split_once(' ')
            .and_then(|(one, two)| Some((one.parse().ok()?, two.parse().ok()?)))
            .ok_or_else(|| format!("{}: {line}: {answer:?}", self.name))
    }

    /// Says a line; the answer.
    pub(crate) fn ask_word(&mut self, line: &str) -> Result<String, String> {
        self.say(line)?;
        self.line()
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<(), String> {
        let input = self.child.stdin.as_mut().ok_or("no input")?;
        writeln!(input, "{line}").map_err(|_| self.ended())
    }

    /// Closes its input and waits for its end: the rest of its output. Its failure is an error.
    pub(crate) fn finish(mut self) -> Result<String, String> {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        loop {
            match self.lines.recv_timeout(WITHIN) {
                Ok(line) => rest += &(line + "\n"),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(format!("{} does not end", self.name)),
            }
        }
        let status = self.child.wait().map_err(|error| format!("{}: {error}", self.name))?;
        if status.success() { Ok(rest) } else { Err(format!("{}: {status}", self.name)) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that makes calls when it is told, and tells how long they took.
pub(crate) struct Victim {
    pub(crate) process: Process,
}

impl Victim {
    pub(crate) fn start(command: &mut Command) -> Result<Victim, String> {
        let mut process = Process::start(command)?;
        process.expect("ready")?;
        Ok(Victim { process })
    }

    /// Nanoseconds for each of `calls` calls; how many there were in all.
    pub(crate) fn run(&mut self, shape: &str, calls: u64) -> Result<(f64, u64), String> {
        let (took, total) = self.process.ask(&format!("{shape} {calls}"))?;
        Ok((took as f64 / calls as f64, total))
    }

    /// The same for the fastest of `LOOPS` loops, after warm calls.
    fn time(&mut self, shape: &str) -> Result<(f64, u64), String> {
        self.time_in(shape, LOOPS, LOOP_NS)
    }

    /// The same for this number of loops, each of which shall take so long.
    pub(crate) fn time_in(&mut self, shape: &str, loops: u32, loop_ns: f64) -> Result<(f64, u64), String> {
        let (warm, mut total) = self.run(shape, CALLS_WARM)?;
        let calls = (loop_ns / warm).clamp(CALLS_MIN, CALLS_MAX) as u64;
        let mut fastest = f64::INFINITY;
        for _ in 0..loops {
            let (took, so_far) = self.run(shape, calls)?;
            fastest = fastest.min(took);
            total = so_far;
        }
        Ok((fastest, total))
    }

    /// A field of `smaps_rollup`, in KiB.
    fn memory(&self, field: &str) -> Result<f64, String> {
        let path = format!("/proc/{}/smaps_rollup", self.process.child.id());
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        text.lines()
            .find_map(|line| {
                line.strip_prefix(field)?.trim_start_matches(':').split_whitespace().next()?.parse().ok()
            })
            .ok_or_else(|| format!("{path} has no {field}"))
    }
}

/// The fields of `smaps_rollup` that are compared: everything mapped, and a fair share of what others map as well.
const MEMORY: [&str; 2] = ["Rss", "Pss"];

/// A ring3 of our own: the binary, and the directory of a server that is stopped when this is dropped.
pub(crate) struct Ring3 {
    binary: PathBuf,
    directory: PathBuf,
}

impl Ring3 {
    /// What `RING3_BIN` names, else what is built of the code as it is.
    pub(crate) fn new() -> Result<Ring3, String> {
        use std::os::unix::fs::DirBuilderExt;
        let binary = match std::env::var_os("RING3_BIN") {
            Some(binary) => PathBuf::from(binary),
            None => crate::build_ring3()?,
        };
        let directory = std::env::temp_dir().join(format!("ring3-bench-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Ring3 { binary, directory })
    }

    /// Its own, which goes away.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).env("RING3_RUNTIME_DIR", &self.directory);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String, String> {
        output(&mut self.command(arguments))
    }

    /// The server's last words, for whoever looks into a failure.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(self.directory.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines.iter().skip(lines.len().saturating_sub(LOG_LINES)).map(|line| format!("\n  {line}")).collect()
    }

    fn status(&self) -> Result<Value, String> {
        serde_json::from_str(&self.run(&["status", "--json"])?).map_err(|error| format!("ring3 status: {error}"))
    }

    pub(crate) fn server_pid(&self) -> Result<u32, String> {
        let pid = self.status()?["server"]["pid"].as_u64();
        pid.and_then(|pid| pid.try_into().ok()).ok_or_else(|| "ring3 status has no pid of the server".to_owned())
    }

    pub(crate) fn target(&self, pid: u32) -> Result<Option<Value>, String> {
        let status = self.status()?;
        let mut targets = status["targets"].as_array().into_iter().flatten();
        Ok(targets.find(|target| target["pid"] == pid).cloned())
    }

    /// Waits until ring3 has left a process.
    pub(crate) fn await_left(&self, pid: u32) -> Result<(), String> {
        let deadline = Instant::now() + WITHIN;
        while self.target(pid)?.is_some() {
            if Instant::now() > deadline {
                return Err("ring3 does not leave the target".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Ends the processes that run a program in `directory`: frida's helper stays, and belongs to nobody.
fn end_programs_in(directory: &Path) {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in
        processes.filter(|p| std::fs::read_link(p.path().join("exe")).is_ok_and(|e| e.starts_with(directory)))
    {
        let pid = process.file_name().to_str().and_then(|name| rustix::process::Pid::from_raw(name.parse().ok()?));
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
    }
}

impl Drop for Ring3 {
    fn drop(&mut self) {
        let _ = self.run(&["stop"]);
        end_programs_in(&self.directory);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A command's output; its failure is an error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    Process::start(command)?.finish()
}

struct Bench {
    build: PathBuf,
    ring3: Ring3,
    figures: Figures,
    /// Engines that cannot be measured here, and why.
    skipped: BTreeMap<Engine, String>,
    frida: Option<String>,
}

/// What `cargo xtask bench probe` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn probe(options: &Options) -> Result<(), String> {
    let rounds = options.rounds;
    let build = root().join("target/bench");
    crate::run("make", &["-s", "-C", "bench/probe", &format!("OUT={}", build.display())])?;
    let mut bench =
        Bench { build, ring3: Ring3::new()?, figures: Figures::default(), skipped: BTreeMap::new(), frida: None };
    bench.run(rounds).map_err(|why| format!("{why}\nThe end of ring3's server.log:{}", bench.ring3.log()))?;
    let goals = bench.goals();
    bench.print(rounds, &goals);
    options.output.save(|| bench.json(rounds, &goals))
}

impl Bench {
    /// A round that does not count, then those that do.
    fn run(&mut self, rounds: usize) -> Result<(), String> {
        self.find_engines();
        self.round()?;
        self.figures = Figures::default();
        for round in 1..=rounds {
            eprintln!("round {round} of {rounds}");
            self.round()?;
        }
        Ok(())
    }

    /// Finds out who can be compared with; the others are skipped loudly. Without ring3 there is no benchmark.
    fn find_engines(&mut self) {
        match self.install_frida() {
            Ok(version) => self.frida = Some(version),
            Err(why) => self.skip(Engine::Frida, why),
        }
        if !rustix::process::geteuid().is_root() {
            self.skip(Engine::Kernel, "kernel uprobes need root".into());
        }
        let row = Row { kind: KINDS[0], program: PROGRAMS[1], shape: SHAPES[0] };
        for engine in [Engine::Kernel, Engine::Frida] {
            if self.skipped.contains_key(&engine) {
                continue;
            }
            let tried = self.victim(&[]).and_then(|victim| self.attach(engine, row, &victim)?.finish());
            if let Err(why) = tried {
                self.skip(engine, why);
            }
        }
    }

    fn skip(&mut self, engine: Engine, why: String) {
        eprintln!("SKIPPED: {}: {why}", engine.name());
        self.skipped.insert(engine, why);
    }

    fn victim(&self, arguments: &[&str]) -> Result<Victim, String> {
        Victim::start(Command::new(self.build.join("victim")).args(arguments))
    }

    fn python(&self) -> PathBuf {
        self.build.join("venv/bin/python")
    }

    /// The version of frida-gum in a Python environment of our own.
    fn install_frida(&self) -> Result<String, String> {
        let version = || {
            let mut python = Command::new(self.python());
            python.args(["-c", "import frida; print(frida.__version__)"]).stderr(Stdio::null());
            output(&mut python).map(|text| text.trim().to_owned())
        };
        version().or_else(|_| {
            let directory = self.build.join("venv");
            eprintln!("installing frida in {}", directory.display());
            output(Command::new("python3").args(["-m", "venv"]).arg(directory))?;
            let options = ["-m", "pip", "install", "--quiet", "--timeout", "20", "--retries", "1", "frida"];
            output(Command::new(self.python()).args(options))?;
            version()
        })
    }

    /// A tool with its probe in place.
    fn attach(&self, engine: Engine, row: Row, victim: &Victim) -> Result<Process, String> {
        let tool = self.build.join("probe_tool");
        let mut command = match engine {
            Engine::Ring3 => self.ring3.command(&["load", "--"]),
            Engine::Kernel => Command::new(&tool),
            Engine::Frida => Command::new(self.python()),
        };
        match engine {
            Engine::Ring3 => command.arg(&tool),
            Engine::Kernel => &mut command,
            // It leaves a directory behind: in ours, which goes away.
            Engine::Frida => {
                command.arg(root().join("bench/probe/frida_tool.py")).env("TMPDIR", &self.ring3.directory)
            }
        };
        command.arg(victim.process.child.id().to_string()).arg(self.build.join("victim"));
        command.args([&format!("victim_{}", row.shape), row.kind, row.program]);
        let mut process = Process::start(&mut command)?;
        process.expect("attached")?;
        Ok(process)
    }

    fn round(&mut self) -> Result<(), String> {
        for row in rows() {
            for engine in ENGINES {
                let has = engine != Engine::Frida || !OTHERS.contains(&row);
                if !has || self.skipped.contains_key(&engine) {
                    continue;
                }
                let why = match self.measure(engine, row) {
                    Ok(()) => continue,
                    Err(why) => format!("{}, {} {} on {}: {why}", engine.name(), row.program, row.kind, row.shape),
                };
                // Now and then its victim crashes.
                if engine != Engine::Frida {
                    return Err(why);
                }
                eprintln!("no figure of this round: {why}");
            }
        }
        for threads in ["wait", "spin"] {
            self.time_attach(threads)?;
        }
        self.figures.agent_bytes = self.ring3.status()?["server"]["agent_bytes"].as_u64();
        Ok(())
    }

    fn measure(&mut self, engine: Engine, row: Row) -> Result<(), String> {
        let mut victim = self.victim(&[])?;
        let (plain, before) = victim.time(row.shape)?;
        let memory = MEMORY.map(|field| victim.memory(field));
        let tool = self.attach(engine, row, &victim)?;
        let (probed, total) = victim.time(row.shape)?;
        if row.kind == "uprobe" && row.program == "counting" && row.shape == "push" {
            for (field, before) in MEMORY.into_iter().zip(memory) {
                let added = victim.memory(field)? - before?;
                self.figures.memory.entry((engine, field)).or_default().push(added);
            }
        }
        self.check(engine, row, &mut victim, tool, total - before)?;
        if engine == Engine::Ring3 {
            self.ring3.await_left(victim.process.child.id())?;
        }
        victim.run(row.shape, CALLS_WARM).map_err(|why| format!("after the probe was taken out: {why}"))?;
        self.figures.plain.entry(row.shape).or_default().push(plain);
        self.figures.added.entry((row, engine)).or_default().push(probed - plain);
        Ok(())
    }

    /// Every call must have been seen: else the time is that of something else.
    fn check(
        &self,
        engine: Engine,
        row: Row,
        victim: &mut Victim,
        mut tool: Process,
        calls: u64,
    ) -> Result<(), String> {
        let equal = |what: &str, seen: u64, calls: u64| {
            if seen == calls { Ok(()) } else { Err(format!("{what} {seen}, but there were {calls} calls")) }
        };
        if engine == Engine::Ring3 {
            let target = self.ring3.target(victim.process.child.id())?.ok_or("the victim is no target")?;
            let sites = target["sites"].as_array().into_iter().flatten().filter(|site| site["kind"] == "probe");
            // What does nothing in this process is not attached to it.
            let calls = if row.program == "filtered" { 0 } else { calls };
            equal("hits", sites.filter_map(|site| site["hits"].as_u64()).sum(), calls)?;
        }
        // The kernel does not count what runs an empty program, except on request, which costs time: so now.
        let counted = engine == Engine::Kernel && ["empty", "filtered"].contains(&row.program);
        if counted {
            tool.say("stats")?;
            tool.expect("stats")?;
            victim.run(row.shape, CALLS_WARM)?;
        }
        let (count, runs) = tool.ask("end")?;
        tool.finish()?;
        if counted {
            return equal("runs", runs, CALLS_WARM);
        }
        // (That frida's empty callback runs cannot be seen; its tool made sure that the function was changed.)
        let is_whole = row.program == "stack" && (engine == Engine::Ring3 || row.shape == "framed");
        let counts = is_whole || ["counting", "per_cpu"].contains(&row.program);
        if counts { equal("counted", count, calls) } else { Ok(()) }
    }

    /// What a process with threads feels of `ring3 attach`.
    fn time_attach(&mut self, threads: &'static str) -> Result<(), String> {
        let victim = self.victim(&[&THREADS.to_string(), threads])?;
        let pid = victim.process.child.id();
        self.ring3.run(&["attach", &pid.to_string()])?;
        let target = self.ring3.target(pid)?.ok_or("the victim is no target")?;
        for field in ["inject_us", "stopped_us"] {
            let figure = target[field].as_f64().ok_or_else(|| format!("ring3 status has no {field}"))?;
            self.figures.attach.entry((threads, field)).or_default().push(figure);
        }
        self.ring3.run(&["detach", &pid.to_string()]).map(drop)
    }

    fn added(&self, row: Row, engine: Engine) -> Option<Spread> {
        Spread::of(self.figures.added.get(&(row, engine))?)
    }

    /// How many times ring3's figure an engine's is.
    fn ratio(&self, row: Row, engine: Engine) -> Option<f64> {
        Some(self.added(row, engine)?.median / self.added(row, Engine::Ring3)?.median)
    }

    fn memory(&self, engine: Engine, field: &'static str) -> Option<Spread> {
        Spread::of(self.figures.memory.get(&(engine, field))?)
    }

    fn goals(&self) -> Vec<Goal> {
        let counting = |kind: &'static str| rows().filter(move |row| row.kind == kind && row.program == "counting");
        let mut goals = vec![];
        for (program, kind, limit) in [
            ("empty", "uprobe", 6.0),
            ("counting", "uprobe", 12.0),
            ("per_cpu", "uprobe", 9.0),
            ("filtered", "uprobe", 5.0),
            ("empty", "uretprobe", 15.0),
        ] {
            let alike = rows().filter(|row| row.kind == kind && row.program == program);
            goals.push(Goal {
                text: format!("{program} {kind} adds, ns"),
                figure: alike.filter_map(|row| Some(self.added(row, Engine::Ring3)?.median)).max_by(f64::total_cmp),
                limit: Limit::AtMost(limit),
            });
        }
        for (engine, kind, limit) in [
            (Engine::Kernel, "uprobe", 20.0),
            (Engine::Kernel, "uretprobe", 10.0),
            (Engine::Frida, "uprobe", 10.0),
            (Engine::Frida, "uretprobe", 10.0),
        ] {
            goals.push(Goal {
                text: format!("{}'s best counting {kind}, times ring3's", engine.name()),
                figure: counting(kind).filter_map(|row| self.ratio(row, engine)).min_by(f64::total_cmp),
                limit: Limit::AtLeast(limit),
            });
        }
        for (text, field, limit) in [("inject", "inject_us", 5.0), ("all threads stopped", "stopped_us", 1.0)] {
            for threads in ["wait", "spin"] {
                let figures = self.figures.attach.get(&(threads, field));
                goals.push(Goal {
                    text: format!("{text}, {THREADS} threads that {threads}, ms"),
                    figure: figures.and_then(|figures| Some(Spread::of(figures)?.median / 1000.0)),
                    limit: Limit::AtMost(limit),
                });
            }
        }
        for field in MEMORY {
            goals.push(Goal {
                text: format!("memory added to the target ({field}), MiB"),
                figure: self.memory(Engine::Ring3, field).map(|spread| spread.median / 1024.0),
                limit: Limit::AtMost(1.0),
            });
        }
        goals.push(Goal {
            text: "the agent, KiB".into(),
            figure: self.figures.agent_bytes.map(|bytes| bytes as f64 / 1024.0),
            limit: Limit::AtMost(128.0),
        });
        goals
    }

    fn print(&self, rounds: usize, goals: &[Goal]) {
        let frida = self.frida.as_deref().map(|version| format!(", frida {version}")).unwrap_or_default();
        println!("\n{}{frida}", machine_text());
        println!("ns added per call: median of {rounds} rounds (middle half), times ring3\n");
        let mut head = format!("{:<20}{:<7}", "probe", "entry");
        for engine in ENGINES {
            let skipped = if self.skipped.contains_key(&engine) { ": skipped" } else { "" };
            head += &format!("{:>7}{skipped:<16}{:<8}", engine.name(), "");
        }
        println!("{}", head.trim_end());
        for row in rows() {
            let mut line = format!("{:<20}{:<7}", format!("{} {}", row.program, row.kind), row.shape);
            for engine in ENGINES {
                line += &self.added(row, engine).map_or_else(|| format!("{:>7} {:<15}", "-", ""), |s| s.to_string());
                let ratio = self.ratio(row, engine).filter(|_| engine != Engine::Ring3);
                line += &format!("{:<8}", ratio.map(|ratio| format!("{ratio:.1}x")).unwrap_or_default());
            }
            println!("{}", line.trim_end());
        }
        for (shape, figures) in &self.figures.plain {
            let plain = Spread::of(figures).map(|spread| spread.to_string()).unwrap_or_default();
            println!("{:<20}{shape:<7}{}", "unprobed call", plain.trim_end());
        }
        println!("\nattach to a process of {THREADS} threads, us");
        for ((threads, field), figures) in &self.figures.attach {
            let spread = Spread::of(figures).map(|spread| spread.to_string()).unwrap_or_default();
            println!("{:<27}{}", format!("{field}, threads {threads}"), spread.trim_end());
        }
        println!("\nmemory added to a process by one counting uprobe that was hit, KiB");
        for ((engine, field), figures) in &self.figures.memory {
            let spread = Spread::of(figures).map(|spread| spread.to_string()).unwrap_or_default();
            println!("{:<27}{}", format!("{} {field}", engine.name()), spread.trim_end());
        }
        for (engine, why) in &self.skipped {
            println!("\nskipped: {}: {why}", engine.name());
        }
        println!("\ngoals");
        for goal in goals {
            println!("{goal}");
        }
    }

    fn json(&self, rounds: usize, goals: &[Goal]) -> Value {
        let series = |figures: &[f64]| {
            Spread::of(figures).map(|s| json!({"median": s.median, "q1": s.q1, "q3": s.q3, "rounds": figures}))
        };
        let added = self.figures.added.iter().map(|((row, engine), figures)| {
            json!({
                "engine": engine.name(), "kind": row.kind, "program": row.program, "entry": row.shape,
                "ns_added": series(figures), "times_ring3": self.ratio(*row, *engine),
            })
        });
        let plain = self.figures.plain.iter().map(|(shape, f)| json!({"entry": shape, "ns": series(f)}));
        let attach = self.figures.attach.iter().map(|((threads, field), figures)| {
            json!({"threads": THREADS, "they": threads, "field": field, "us": series(figures)})
        });
        let memory = self.figures.memory.iter().map(|((engine, field), figures)| {
            json!({"engine": engine.name(), "field": field, "kib_added": series(figures)})
        });
        json!({
            "machine": machine(),
            "frida": self.frida,
            "rounds": rounds,
            "skipped": self.skipped.iter().map(|(e, why)| (e.name(), why)).collect::<BTreeMap<_, _>>(),
            "calls": added.collect::<Vec<_>>(),
            "unprobed": plain.collect::<Vec<_>>(),
            "attach": attach.collect::<Vec<_>>(),
            "memory": memory.collect::<Vec<_>>(),
            "agent_bytes": self.figures.agent_bytes,
            "goals": goals.iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}

/// Builds what a benchmark of `tests/benches` asks; where it is.
pub(crate) fn bench_binary(name: &str) -> Result<PathBuf, String> {
    bench_binary_of("ring3-tests", name, crate::llvm_features())
}

/// The binary of a crate's benchmark, built with these arguments of cargo.
pub(crate) fn bench_binary_of(package: &str, name: &str, features: &[&str]) -> Result<PathBuf, String> {
    let output = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--package", package, "--bench", name])
        .args(features)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo build: {error}"))?;
    let messages = cargo_messages(&output.stdout);
    let built = messages.iter().filter(|message| message["target"]["name"] == name);
    let mut paths = built.filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    paths.next().ok_or_else(|| format!("cargo build: {name} is not built"))
}

pub(crate) fn machine() -> Value {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    json!({
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "cpu": model.map_or("unknown", |(_, model)| model),
        "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
    })
}

/// The machine in a line.
pub(crate) fn machine_text() -> String {
    let machine = machine();
    let fact = |name: &str| machine[name].as_str().unwrap_or_default().to_owned();
    format!("{}, {} CPUs, Linux {}", fact("cpu"), machine["cpus"], fact("kernel"))
}

pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

pub(crate) struct Goal {
    pub(crate) text: String,
    /// None: not measured.
    pub(crate) figure: Option<f64>,
    pub(crate) limit: Limit,
}

impl Goal {
    fn met(&self) -> Option<bool> {
        let figure = self.figure?;
        Some(match self.limit {
            Limit::AtMost(limit) => figure <= limit,
            Limit::AtLeast(limit) => figure >= limit,
        })
    }

    pub(crate) fn json(&self) -> Value {
        let (at_most, at_least) = match self.limit {
            Limit::AtMost(limit) => (Some(limit), None),
            Limit::AtLeast(limit) => (None, Some(limit)),
        };
        json!({"goal": self.text, "figure": self.figure, "at_most": at_most, "at_least": at_least, "met": self.met()})
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = match self.met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "not measured",
        };
        let limit = match self.limit {
            Limit::AtMost(limit) => format!("at most {limit}"),
            Limit::AtLeast(limit) => format!("at least {limit}"),
        };
        let figure = self.figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"));
        write!(f, "{verdict:<14}{:<50}{figure:>9}   {limit}", self.text)
    }
}
