//! `cargo xtask bench stops`: how long a process is stopped while it becomes a target, and while it is left.
//!
//! A process with some threads, one of which looks at the clock all the time, is attached while a tool has probes in it, and
//! detached. What counts is the longest time in which that thread did not run: what the process notices. gdb attaches to and leaves
//! such a process in the same run. (Whatever else runs on the machine is part of the figures: see the row without a tracer.)

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, Ring3, Spread, machine, machine_text, output};
use crate::bench_options::{Output, count};
use crate::root;

const ROUNDS: usize = 9;
const SITES: [usize; 5] = [1, 10, 100, 1_000, 4_000];
const THREADS: [usize; 4] = [1, 10, 100, 500];
/// The process runs so long before and after each change.
const SETTLES: Duration = Duration::from_millis(50);

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Nothing,
    Gdb,
    Attach(usize),
    Detach(usize),
}

impl What {
    fn text(self) -> String {
        match self {
            What::Nothing => "no tracer".to_owned(),
            What::Gdb => "gdb attaches and detaches".to_owned(),
            What::Attach(sites) => format!("ring3 attach, {sites} probes"),
            What::Detach(sites) => format!("ring3 detach, {sites} probes"),
        }
    }
}

/// What `cargo xtask bench stops` can be told.
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
    /// Longest times without the CPU, us, by what was done and how many threads there were.
    stops: BTreeMap<(What, usize), Vec<f64>>,
    has_gdb: bool,
}

pub(crate) fn stops(options: &Options) -> Result<(), String> {
    let build = root().join("target/bench");
    crate::run("make", &["-s", "-C", "bench/stops", &format!("OUT={}", build.display())])?;
    crate::run("make", &["-s", "-C", "examples/malloc"])?;
    let has_gdb = output(Command::new("gdb").arg("--version")).is_ok();
    if !has_gdb {
        eprintln!("SKIPPED: gdb is not installed");
    }
    let mut bench = Bench { build, ring3: Ring3::new()?, stops: BTreeMap::new(), has_gdb };
    bench.run(options.rounds).map_err(|why| format!("{why}\nThe end of ring3's server.log:{}", bench.ring3.log()))?;
    bench.print(options.rounds);
    options.output.save(|| bench.json(options.rounds))
}

/// The process, and its functions as probes.
struct Victim {
    process: Process,
    probes: Vec<String>,
}

impl Victim {
    fn start(bench: &Bench, threads: usize) -> Result<Victim, String> {
        let file = bench.build.join("stops_victim");
        let mut process = Process::start(Command::new(&file).arg(threads.to_string()))?;
        let line = process.line()?;
        let numbers: Vec<u64> = line.split(' ').skip(1).map_while(|word| word.parse().ok()).collect();
        let &[offset, bytes] = numbers.as_slice() else { return Err(format!("stops_victim: {line:?}")) };
        let probe = |index: usize| format!("{}:{:#x}", file.display(), offset + index as u64 * bytes);
        let probes = (0..SITES[SITES.len() - 1]).map(probe).collect();
        let mut victim = Victim { process, probes };
        std::thread::sleep(SETTLES);
        victim.longest()?;
        Ok(victim)
    }

    fn pid(&self) -> String {
        self.process.child.id().to_string()
    }

    /// The longest time since it was last asked in which it did not run, us.
    fn longest(&mut self) -> Result<f64, String> {
        std::thread::sleep(SETTLES);
        self.process.say("longest")?;
        let line = self.process.line()?;
        line.parse().map(|ns: f64| ns / 1e3).map_err(|_| format!("stops_victim: {line:?}"))
    }
}

impl Bench {
    fn run(&mut self, rounds: usize) -> Result<(), String> {
        for sites in SITES {
            let probes = Victim::start(self, 1)?.probes;
            let mut command = self.ring3.command(&["load", "--only-targets", "--"]);
            command.arg(root().join("examples/malloc/build/malloc")).args(&probes[..sites]);
            let mut tool = Process::start(&mut command)?;
            tool.expect(&format!("attached {sites}"))?;
            for round in 1..=rounds {
                eprintln!("{sites} probes, round {round} of {rounds}");
                for threads in THREADS {
                    self.measure(sites, threads)?;
                    if sites == SITES[0] {
                        self.measure_others(threads)?;
                    }
                }
            }
            tool.finish()?;
        }
        Ok(())
    }

    fn measure(&mut self, sites: usize, threads: usize) -> Result<(), String> {
        let mut victim = Victim::start(self, threads)?;
        let pid = victim.pid();
        self.ring3.run(&["attach", &pid])?;
        let attach = victim.longest()?;
        let target = self.ring3.target(victim.process.child.id())?.ok_or("the victim is no target")?;
        let placed = target["sites"].as_array().map_or(0, Vec::len);
        if placed != sites {
            return Err(format!("{placed} of {sites} probes were placed"));
        }
        victim.longest()?;
        self.ring3.run(&["detach", &pid])?;
        let detach = victim.longest()?;
        self.stops.entry((What::Attach(sites), threads)).or_default().push(attach);
        self.stops.entry((What::Detach(sites), threads)).or_default().push(detach);
        Ok(())
    }

    fn measure_others(&mut self, threads: usize) -> Result<(), String> {
        let mut victim = Victim::start(self, threads)?;
        let nothing = victim.longest()?;
        self.stops.entry((What::Nothing, threads)).or_default().push(nothing);
        if self.has_gdb {
            let mut gdb = Command::new("gdb");
            output(gdb.args(["-nx", "-batch", "-p", &victim.pid()]).stderr(Stdio::null()))?;
            let longest = victim.longest()?;
            self.stops.entry((What::Gdb, threads)).or_default().push(longest);
        }
        Ok(())
    }

    fn of(&self, what: What, threads: usize) -> Option<(f64, f64)> {
        let figures = self.stops.get(&(what, threads))?;
        Some((Spread::of(figures)?.median, figures.iter().copied().fold(0.0, f64::max)))
    }

    fn goals(&self) -> Vec<Goal> {
        let ours = || self.stops.iter().filter(|((what, _), _)| matches!(what, What::Attach(_) | What::Detach(_)));
        let is_usual = |what: &What| matches!(what, What::Attach(sites) | What::Detach(sites) if *sites <= 100);
        let usual = ours().filter(|((what, threads), _)| *threads <= 10 && is_usual(what));
        let medians = usual.filter_map(|(_, figures)| Some(Spread::of(figures)?.median / 1e3));
        let longest = ours().flat_map(|(_, figures)| figures.iter().map(|us| us / 1e3));
        let goal = |text: &str, figure, limit| Goal { text: text.to_owned(), figure, limit: Limit::AtMost(limit) };
        vec![
            goal("median stop, 1 to 100 probes, 1 to 10 threads, ms", medians.max_by(f64::total_cmp), 1.0),
            goal("longest stop of all, ms", longest.max_by(f64::total_cmp), 20.0),
        ]
    }

    fn print(&self, rounds: usize) {
        println!("\n{}", machine_text());
        println!("longest time in which a process did not run, us: median and maximum of {rounds} rounds\n");
        let heads: String = THREADS.iter().map(|threads| format!("{:>20}", format!("{threads} threads"))).collect();
        println!("{:<30}{heads}", "");
        let kinds: std::collections::BTreeSet<What> = self.stops.keys().map(|(what, _)| *what).collect();
        for what in kinds {
            let cell = |threads: &usize| match self.of(what, *threads) {
                Some((median, longest)) => format!("{:>20}", format!("{median:.0} ({longest:.0})")),
                None => format!("{:>20}", "-"),
            };
            println!("{:<30}{}", what.text(), THREADS.iter().map(cell).collect::<String>());
        }
        println!("\ngoals");
        for goal in self.goals() {
            println!("{goal}");
        }
    }

    fn json(&self, rounds: usize) -> Value {
        let figures = self.stops.iter().map(
            |((what, threads), figures)| json!({"what": what.text(), "threads": threads, "longest_us": figures}),
        );
        json!({
            "machine": machine(), "rounds": rounds, "figures": figures.collect::<Vec<_>>(),
            "goals": self.goals().iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}
