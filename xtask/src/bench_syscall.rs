//! `cargo xtask bench syscall`: what it costs that system calls are traced, beside others in one run.
//!
//! A process makes a cheap call over and over, in two ways: by a function that has the number in its code, and by
//! syscall(2). Its calls are timed untraced, traced, and untraced again; the mean of the untraced times is subtracted (the
//! smaller would be that of twice as many loops). A time is that of the fastest of a few loops: interference only ever adds. In
//! each round everybody has a turn, and a process that nobody traces is timed in the same way: so much do such figures differ by
//! themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, Ring3, Spread, Victim, machine, machine_text, output};
use crate::bench_options::{Output, count};
use crate::root;

const ROUNDS: usize = 9;
const SHAPES: [&str; 2] = ["wrapper", "syscall"];
const GETPPID: &str = "110";
/// Calls by which the kernel shows that it runs programs that leave no trace.
const CALLS_SEEN: u64 = 2_000;
/// Timed loops of a measurement, and how long each shall take: less than a turn of whoever else wants the CPU.
const LOOPS: u32 = 20;
const LOOP_NS: f64 = 1e6;
/// Times below this are less than loops differ by.
const RESOLUTION_NS: f64 = 1.0;

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

/// What the tool attaches (`bench/syscall/syscall_tool.c`), and whether to the process whose calls are timed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    point: &'static str,
    side: &'static str,
    program: &'static str,
    to_another: bool,
}

const fn case(point: &'static str, side: &'static str, program: &'static str) -> Case {
    Case { point, side, program, to_another: false }
}

/// Nobody asked for the calls that are made.
const UNWANTED: Case = case("openat", "both", "hash");
const ANOTHER: Case = Case { to_another: true, ..case("raw", "both", "hash") };

fn cases() -> impl Iterator<Item = Case> {
    let all = ["raw", "trace"].into_iter().flat_map(|point| {
        ["enter", "exit", "both"].into_iter().flat_map(move |side| {
            ["empty", "hash", "percpu"].into_iter().map(move |program| case(point, side, program))
        })
    });
    all.chain([UNWANTED, ANOTHER])
}

impl Case {
    fn text(&self) -> String {
        let who = match (*self == UNWANTED, self.to_another) {
            (true, _) => ", calls getppid",
            (_, true) => ", of another process",
            _ => "",
        };
        let point = match self.point {
            "raw" => "raw_tp",
            "trace" => "raw_syscalls:*",
            _ => "syscalls:*_openat",
        };
        format!("{point} {} {}{who}", self.side, self.program)
    }

    /// Whether both sides of the calls are counted.
    fn counts_all(&self) -> bool {
        self.side == "both" && self.program != "empty" && !self.to_another && *self != UNWANTED
    }
}

/// What others than BPF programs do: a name, and what the process is started by, or how it makes its calls.
struct Peer {
    name: &'static str,
    by: By,
}

enum By {
    /// Started by this.
    Command(&'static [&'static str]),
    /// The process's own doing.
    Shape(&'static str),
    /// ring3's SUD fallback, in a process that has written code; its calls made like this.
    Sud(&'static str),
}

const NOTHING: &str = "nothing: timed in the same way";
const WRITTEN: &str = "written";
const PEERS: [Peer; 9] = [
    Peer { name: NOTHING, by: By::Shape(SHAPES[0]) },
    Peer { name: "strace", by: By::Command(&["strace", "-o", "/dev/null"]) },
    Peer {
        name: "strace --seccomp-bpf",
        by: By::Command(&["strace", "-f", "--seccomp-bpf", "-e", "trace=all", "-o", "/dev/null"]),
    },
    Peer { name: "strace, only openat", by: By::Command(&["strace", "-e", "trace=openat", "-o", "/dev/null"]) },
    Peer {
        name: "strace --seccomp-bpf, only openat",
        by: By::Command(&["strace", "-f", "--seccomp-bpf", "-e", "trace=openat", "-o", "/dev/null"]),
    },
    Peer { name: "user dispatch, calls may pass", by: By::Shape("user") },
    Peer { name: "user dispatch, a trap each", by: By::Shape("trap") },
    Peer { name: "ring3's SUD fallback, another call, counted", by: By::Sud(SHAPES[0]) },
    Peer { name: "ring3's SUD fallback, a call of written code, counted", by: By::Sud(WRITTEN) },
];

/// Figures of a measurement, one per round: what a call takes, and what of that is added.
#[derive(Default)]
struct Series {
    took: Vec<f64>,
    added: Vec<f64>,
}

impl Series {
    fn add(&mut self, took: f64, plain: f64) {
        self.took.push(took);
        self.added.push(took - plain);
    }

    fn json(&self) -> Value {
        let median = |figures: &[f64]| Spread::of(figures).map(|spread| spread.median);
        json!({"ns": median(&self.took), "ns_added": median(&self.added), "rounds": self.added})
    }
}

#[derive(Default)]
struct Figures {
    plain: BTreeMap<&'static str, Vec<f64>>,
    traced: BTreeMap<(Case, &'static str, Engine), Series>,
    peers: BTreeMap<&'static str, Series>,
}

struct Bench {
    build: PathBuf,
    ring3: Ring3,
    figures: Figures,
    /// Who cannot be measured here, and why.
    skipped: BTreeMap<&'static str, String>,
}

/// What `cargo xtask bench syscall` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn syscall(options: &Options) -> Result<(), String> {
    let build = root().join("target/bench");
    crate::run("make", &["-s", "-C", "bench/syscall", &format!("OUT={}", build.display())])?;
    let mut bench = Bench { build, ring3: Ring3::new()?, figures: Figures::default(), skipped: BTreeMap::new() };
    bench.run(options.rounds).map_err(|why| format!("{why}\nThe end of ring3's server.log:{}", bench.ring3.log()))?;
    let goals = bench.goals();
    bench.print(options.rounds, &goals);
    options.output.save(|| bench.json(options.rounds, &goals))
}

/// Nanoseconds for a call that is made like this; how many there were in all.
fn time(victim: &mut Victim, shape: &str) -> Result<(f64, u64), String> {
    victim.time_in(shape, LOOPS, LOOP_NS)
}

/// A tool run natively, which finds the kernel's tracepoints.
pub(crate) fn with_tracefs(tool: &Path) -> Command {
    const MOUNT: &str = "mount -t tracefs tracefs /sys/kernel/tracing && exec \"$@\"";
    if Path::new("/sys/kernel/tracing/events").exists() {
        return Command::new(tool);
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(tool);
    command
}

impl Bench {
    /// A round that does not count, then those that do.
    fn run(&mut self, rounds: usize) -> Result<(), String> {
        self.find_peers();
        self.round()?;
        self.figures = Figures::default();
        for round in 1..=rounds {
            eprintln!("round {round} of {rounds}");
            self.round()?;
        }
        Ok(())
    }

    /// Finds out who can be compared with; the others are skipped loudly. Without ring3 there is no benchmark.
    fn find_peers(&mut self) {
        let name = Engine::Kernel.name();
        if !rustix::process::geteuid().is_root() {
            self.skip(name, "the kernel's tracepoints need root".into());
        } else if let Err(why) = self.measure(Engine::Kernel, case("trace", "both", "hash")) {
            self.skip(name, why);
        }
        for peer in &PEERS {
            if let Err(why) = self.measure_peer(peer) {
                self.skip(peer.name, why);
            }
        }
    }

    fn skip(&mut self, name: &'static str, why: String) {
        eprintln!("SKIPPED: {name}: {why}");
        self.skipped.insert(name, why);
    }

    fn round(&mut self) -> Result<(), String> {
        let has = |skipped: &BTreeMap<_, _>, name| !skipped.contains_key(name);
        for case in cases() {
            for engine in ENGINES {
                if has(&self.skipped, engine.name()) {
                    let measured = self.measure(engine, case);
                    measured.map_err(|why| format!("{}, {}: {why}", engine.name(), case.text()))?;
                }
            }
        }
        for peer in &PEERS {
            if has(&self.skipped, peer.name) {
                self.measure_peer(peer).map_err(|why| format!("{}: {why}", peer.name))?;
            }
        }
        Ok(())
    }

    fn victim(&self) -> Result<Victim, String> {
        Victim::start(&mut Command::new(self.build.join("syscall_victim")))
    }

    fn measure(&mut self, engine: Engine, case: Case) -> Result<(), String> {
        let (mut victim, mut another) = (self.victim()?, self.victim()?);
        let before = [time(&mut victim, SHAPES[0])?, time(&mut victim, SHAPES[1])?];
        let traced = if case.to_another { another.process.child.id() } else { victim.process.child.id() };
        let mut tool = self.attach(engine, case, traced)?;
        let during = [time(&mut victim, SHAPES[0])?, time(&mut victim, SHAPES[1])?];
        let calls = if case.to_another { another.run(SHAPES[0], CALLS_SEEN)?.1 } else { during[1].1 - before[1].1 };
        self.check(engine, case, calls, &mut victim, &mut tool)?;
        tool.finish()?;
        if engine == Engine::Ring3 {
            self.ring3.run(&["detach", &traced.to_string()])?;
            self.ring3.await_left(traced)?;
        }
        let after = [time(&mut victim, SHAPES[0])?, time(&mut victim, SHAPES[1])?];
        for (at, shape) in SHAPES.into_iter().enumerate() {
            let plain = f64::midpoint(before[at].0, after[at].0);
            self.figures.plain.entry(shape).or_default().push(plain);
            self.figures.traced.entry((case, shape, engine)).or_default().add(during[at].0, plain);
        }
        Ok(())
    }

    /// The tool with its programs in place.
    fn attach(&self, engine: Engine, case: Case, traced: u32) -> Result<Process, String> {
        let tool = self.build.join("syscall_tool");
        let mut command = match engine {
            Engine::Ring3 => {
                self.ring3.run(&["attach", &traced.to_string()])?;
                let mut command = self.ring3.command(&["load", "--"]);
                command.arg(tool);
                command
            }
            Engine::Kernel => with_tracefs(&tool),
        };
        // For another process the programs look whose call it is, as those of tools do that have a process to trace.
        let filter = if case.to_another { traced } else { 0 };
        command.args([case.point, case.side, case.program, GETPPID, &filter.to_string()]);
        let mut process = Process::start(&mut command)?;
        process.expect("attached")?;
        Ok(process)
    }

    /// Every call must have been seen, none that nobody asked for: else the time is that of something else.
    fn check(
        &self,
        engine: Engine,
        case: Case,
        calls: u64,
        victim: &mut Victim,
        tool: &mut Process,
    ) -> Result<(), String> {
        let empty = case.program == "empty";
        if empty && engine == Engine::Kernel {
            tool.say("stats")?;
            tool.expect("stats")?;
            victim.run(SHAPES[0], CALLS_SEEN)?;
        }
        if empty && engine == Engine::Ring3 {
            let target = self.ring3.target(victim.process.child.id())?.ok_or("the victim is no target")?;
            let hits = target["syscall_hits"][0].as_u64().ok_or("ring3 status has no syscall_hits")?;
            if hits < calls {
                return Err(format!("{hits} hits, but there were {calls} calls"));
            }
        }
        tool.say("end")?;
        let line = tool.line()?;
        let told: Vec<u64> = line.split(' ').map_while(|word| word.parse().ok()).collect();
        let &[begun, ended, runs] = told.as_slice() else { return Err(format!("syscall_tool: {line:?}")) };
        if empty {
            let enough = engine == Engine::Ring3 || runs >= CALLS_SEEN;
            return if enough { Ok(()) } else { Err(format!("{runs} runs, but there were {CALLS_SEEN} calls")) };
        }
        for (side, counted) in [("enter", begun), ("exit", ended)] {
            let wanted = case != UNWANTED && (case.side == "both" || case.side == side);
            let calls = if wanted { calls } else { 0 };
            // The kernel's programs count everybody's.
            if counted < calls || counted > calls && (engine == Engine::Ring3 || !wanted) {
                return Err(format!("{side}: counted {counted}, but there were {calls} calls"));
            }
        }
        Ok(())
    }

    fn measure_peer(&mut self, peer: &Peer) -> Result<(), String> {
        let mut victim = self.victim()?;
        let before = time(&mut victim, SHAPES[0])?.0;
        let took = match peer.by {
            By::Shape(shape) => time(&mut victim, shape)?.0,
            By::Sud(shape) => self.time_with_sud(&mut victim, shape)?,
            By::Command(words) => {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]).arg(self.build.join("syscall_victim")).stderr(Stdio::null());
                let mut victim = Victim::start(&mut command)?;
                let took = time(&mut victim, SHAPES[0])?.0;
                victim.process.finish()?;
                took
            }
        };
        let plain = f64::midpoint(before, time(&mut victim, SHAPES[0])?.0);
        self.figures.peers.entry(peer.name).or_default().add(took, plain);
        Ok(())
    }

    fn time_with_sud(&self, victim: &mut Victim, shape: &str) -> Result<f64, String> {
        // The code has to be there.
        victim.run(WRITTEN, 1)?;
        let pid = victim.process.child.id();
        let mut tool = self.attach(Engine::Ring3, case("raw", "both", "hash"), pid)?;
        let target = self.ring3.target(pid)?.ok_or("the victim is no target")?;
        if target["sud"].is_null() {
            return Err(format!("the SUD fallback is not enabled: {}", target["sud_refused"]));
        }
        let took = time(victim, shape)?.0;
        tool.say("end")?;
        tool.line()?;
        tool.finish()?;
        self.ring3.run(&["detach", &pid.to_string()])?;
        self.ring3.await_left(pid)?;
        Ok(took)
    }

    fn added(&self, case: Case, shape: &'static str, engine: Engine) -> Option<f64> {
        Some(Spread::of(&self.figures.traced.get(&(case, shape, engine))?.added)?.median)
    }

    /// How many times ring3's figure the kernel's is.
    fn ratio(&self, case: Case, shape: &'static str) -> Option<f64> {
        let ring3 = self.added(case, shape, Engine::Ring3)?;
        Some(self.added(case, shape, Engine::Kernel)? / ring3).filter(|_| ring3 >= RESOLUTION_NS)
    }

    /// What cannot be told from nothing.
    fn noise(&self) -> f64 {
        let control = self.figures.peers.get(NOTHING).and_then(|series| Spread::of(&series.added));
        control.map_or(RESOLUTION_NS, |spread| spread.reach().max(RESOLUTION_NS))
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = vec![];
        for shape in SHAPES {
            let counting = || cases().filter(Case::counts_all);
            let added = counting().filter_map(|case| self.added(case, shape, Engine::Ring3));
            goals.push(Goal {
                text: format!("enter + exit counted adds, {shape}, ns"),
                figure: added.max_by(f64::total_cmp),
                limit: Limit::AtMost(25.0),
            });
            for (point, text) in [("raw", "raw tracepoints"), ("trace", "tracepoints")] {
                let ratios = counting().filter(|case| case.point == point).filter_map(|case| self.ratio(case, shape));
                goals.push(Goal {
                    text: format!("the kernel's {text}, times ring3's, {shape}"),
                    figure: ratios.min_by(f64::total_cmp),
                    limit: Limit::AtLeast(5.0),
                });
            }
            for (case, text) in [(UNWANTED, "a call nobody asked for adds"), (ANOTHER, "a process not traced: adds")]
            {
                goals.push(Goal {
                    text: format!("{text}, {shape}, ns"),
                    figure: self.added(case, shape, Engine::Ring3),
                    limit: Limit::AtMost((self.noise() * 10.0).round() / 10.0),
                });
            }
        }
        goals
    }

    fn print(&self, rounds: usize, goals: &[Goal]) {
        let spread = |series: Option<&Series>| {
            let figures = series.and_then(|s| Some((Spread::of(&s.took)?, Spread::of(&s.added)?)));
            figures.map_or_else(
                || format!("{:>8}  {:>7} {:<15}", "-", "-", ""),
                |(took, added)| format!("{:>8.1}  {added}", took.median),
            )
        };
        println!("\n{}", machine_text());
        println!("getppid, ns per call, and of that added: medians of {rounds} rounds (middle half)\n");
        let skipped = if self.skipped.contains_key(Engine::Kernel.name()) { ": skipped" } else { "" };
        let heads = format!("{:>8}  {:>7} {:<16}", "ring3", "added", "");
        println!("{:<46}{:<9}{heads}{:>8}  {:>7}{skipped:<16} times ring3's", "programs", "call", "kernel", "added");
        for case in cases() {
            for shape in SHAPES {
                let cells = ENGINES.map(|engine| spread(self.figures.traced.get(&(case, shape, engine))));
                let ratio = self.ratio(case, shape).map(|ratio| format!("{ratio:.1}x")).unwrap_or_default();
                let line = format!("{:<46}{shape:<9}{} {} {ratio}", case.text(), cells[0], cells[1]);
                println!("{}", line.trim_end());
            }
        }
        for (shape, figures) in &self.figures.plain {
            let plain = Spread::of(figures).map(|spread| spread.to_string()).unwrap_or_default();
            println!("{:<46}{shape:<10}{}", "untraced", plain.trim_end());
        }
        println!("\n{:<46}{:<9}{:>8}  {:>7}", "others", "call", "ns", "added");
        for peer in &PEERS {
            let line = format!("{:<46}{:<9}{}", peer.name, SHAPES[0], spread(self.figures.peers.get(peer.name)));
            println!("{}", line.trim_end());
        }
        for (name, why) in &self.skipped {
            println!("\nskipped: {name}: {why}");
        }
        println!("\ngoals");
        for goal in goals {
            println!("{goal}");
        }
    }

    fn json(&self, rounds: usize, goals: &[Goal]) -> Value {
        let strace = output(Command::new("strace").arg("--version").stderr(Stdio::null()));
        let traced = self.figures.traced.iter().map(|((case, shape, engine), series)| {
            json!({
                "engine": engine.name(), "programs": case.text(), "call": shape, "times_ring3": self.ratio(*case, shape),
                "ns": series.json(),
            })
        });
        let peers = self.figures.peers.iter().map(|(name, series)| json!({"peer": name, "ns": series.json()}));
        json!({
            "machine": machine(),
            "strace": strace.ok().and_then(|text| text.lines().next().map(str::to_owned)),
            "rounds": rounds,
            "skipped": self.skipped,
            "traced": traced.collect::<Vec<_>>(),
            "peers": peers.collect::<Vec<_>>(),
            "goals": goals.iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}
