//! Measures rows of workloads in turn, and shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::group::Group;
use super::load::Load;
use super::measures::{self, Measured, Series};
use super::tool::{Attached, Seen};
use super::victim::{Server, await_some, free_port, running, runs};
use super::workload::{self, Family, Place, Workload};
use crate::bench::{Goal, Limit, Ring3, Spread, machine, machine_text};
use crate::bench_syscall::with_tracefs;
use crate::root;
use crate::web_server::Packages;

/// Most by which untraced work may differ from itself, in percent: else nothing can be said.
const NOISE_MAX: f64 = 5.0;
/// What a tool may have seen more than was asked for, as a part: requests that open connections.
const EVENTS_MORE: f64 = 0.02;
/// The part of the events that may be missing where others were lost.
const LOST_UNTOLD: f64 = 0.01;
/// A process that waits for a line has read it within this time.
const CALLS_WITHIN: Duration = Duration::from_millis(50);

/// Who traces a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Untraced,
    /// The same: so much do figures differ by themselves.
    Again,
    Kernel,
    Ring3,
}

const VARIANTS: [Variant; 4] = [Variant::Untraced, Variant::Again, Variant::Kernel, Variant::Ring3];

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Untraced => "untraced",
            Variant::Again => "untraced, again",
            Variant::Kernel => "kernel",
            Variant::Ring3 => "ring3",
        }
    }

    fn is_traced(self) -> bool {
        matches!(self, Variant::Kernel | Variant::Ring3)
    }
}

/// A row's number, and who traces it.
type Key = (usize, Variant);

/// Everything that is measured in one run.
pub(crate) struct Bench {
    rows: Vec<(&'static Family, Workload)>,
    seconds: usize,
    build: PathBuf,
    packages: Packages,
    ring3: Ring3,
    /// The directories of families.
    directory: PathBuf,
    /// The group of who traces.
    tracer: Group,
    figures: BTreeMap<Key, Series>,
    /// Rows that cannot be measured here.
    skipped: BTreeMap<usize, String>,
    /// What went wrong: it is not measured again.
    failed: BTreeMap<Key, String>,
    /// Load averages of a minute, one for each round.
    loads: Vec<f64>,
}

impl Bench {
    pub(crate) fn new(rows: Vec<(&'static Family, Workload)>, seconds: usize) -> Result<Bench, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("the kernel's half, and control groups, need root".to_owned());
        }
        let build = root().join("target/bench");
        let tracer = Group::new()?;
        let ring3 = Ring3::new()?;
        // (PostgreSQL's user must get in.)
        let directory = std::env::temp_dir().join(format!("ring3-workloads-{}", std::process::id()));
        std::fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let packages = Packages::in_directory(&build);
        let (figures, skipped, failed) = Default::default();
        Ok(Bench {
            rows,
            seconds,
            build,
            packages,
            ring3,
            directory,
            tracer,
            figures,
            skipped,
            failed,
            loads: vec![],
        })
    }

    fn place(&self, family: &Family, port: u16, bystander: u32) -> Place<'_> {
        let directory = self.directory.join(family.name);
        Place { packages: &self.packages, directory, build: &self.build, port, bystander }
    }

    /// Prepares each family once; the rows of one that lacks something are skipped.
    fn prepare(&mut self) -> Result<(), String> {
        let mut prepared = BTreeSet::new();
        for row in 0..self.rows.len() {
            let (family, workload) = &self.rows[row];
            if let Some(why) = (family.needs)().iter().find_map(|need| need.missing()) {
                eprintln!("SKIPPED: {}: {why}", workload.name);
                self.skipped.insert(row, why);
                continue;
            }
            if prepared.insert(family.name) {
                let place = self.place(family, 0, 0);
                let made = std::fs::create_dir(&place.directory).map_err(|error| error.to_string());
                made.and_then(|()| (family.prepare)(&place)).map_err(|why| format!("{}: {why}", family.name))?;
            }
        }
        Ok(())
    }

    /// Rounds in which each row has its turn, and each variant begins once.
    pub(crate) fn run(&mut self, rounds: usize) -> Result<(), String> {
        self.prepare()?;
        for round in 1..=rounds {
            self.loads.extend(measures::load_average());
            for row in 0..self.rows.len() {
                if self.skipped.contains_key(&row) {
                    continue;
                }
                eprintln!("round {round} of {rounds}: {}", self.rows[row].1.name);
                for turn in 0..VARIANTS.len() {
                    let variant = VARIANTS[(round + row + turn) % VARIANTS.len()];
                    self.measure(row, variant)?;
                }
            }
        }
        Ok(())
    }

    /// Measures a variant, or notes why that failed. Without the untraced figures there is nothing to compare with.
    fn measure(&mut self, row: usize, variant: Variant) -> Result<(), String> {
        if self.failed.contains_key(&(row, variant)) {
            return Ok(());
        }
        let name = &self.rows[row].1.name;
        match self.measured(row, variant) {
            Ok((measured, seen, units)) => {
                let series = self.figures.entry((row, variant)).or_default();
                series.push(&measured);
                if let Some(seen) = seen {
                    series.events.push(seen.events / units);
                    series.events_lost.push(100.0 * seen.lost / (seen.events + seen.lost));
                }
                Ok(())
            }
            Err(why) if variant.is_traced() => {
                eprintln!("FAILED: {name}, {}: {why}", variant.name());
                if variant == Variant::Ring3 {
                    eprintln!("The end of ring3's server.log:{}", self.ring3.log());
                }
                self.failed.insert((row, variant), why);
                Ok(())
            }
            Err(why) => Err(format!("{name}, {}: {why}", variant.name())),
        }
    }

    /// What was measured, what the tool has seen, and of how many units of work.
    fn measured(&self, row: usize, variant: Variant) -> Result<(Measured, Option<Seen>, f64), String> {
        let (family, workload) = &self.rows[row];
        let mut bystander = Bystander::start(self, variant)?;
        let place = self.place(family, free_port()?, bystander.pid());
        for (name, text) in &workload.files {
            place.write(name, place.fill(text))?;
        }
        let victim = self.victim(variant, workload, &place);
        let log = place.directory.join("victim.log");
        let attach = || variant.is_traced().then(|| self.attach(variant, workload, &place)).transpose();
        let tracer = variant.is_traced().then_some(&self.tracer);
        let (tool, warm, measured);
        match &workload.load {
            Load::Runs => {
                tool = attach()?;
                warm = runs(&victim, 0.0, &log, None)?;
                measured = runs(&victim, self.seconds as f64, &log, tracer)?;
            }
            load => {
                let mut server = Server::start(&victim, place.port, &log, workload.is_pinned)?;
                tool = attach()?;
                if variant == Variant::Ring3 && workload.seen == workload::Seen::ByFile {
                    self.await_targets(&server)?;
                }
                let mut work = |seconds: usize| {
                    let command = load.command(&place, seconds)?;
                    server.load(&command, tracer, |text| load.parse(&place, seconds, text))
                };
                warm = work(self.seconds.div_ceil(2))?;
                measured = work(self.seconds)?;
            }
        }
        bystander.call()?;
        let units = warm.told.units + measured.told.units;
        let seen = tool.map(|tool| Ok::<_, String>(workload.tool.seen(&tool.finish()?))).transpose()?;
        if let Some(seen) = &seen {
            agree(workload, seen, units)?;
        }
        Ok((measured, seen, units))
    }

    /// Waits until all processes of a server are targets. (A tool is told that it is attached before those are that have large
    /// files; see `docs/design/everybody.md`.)
    fn await_targets(&self, server: &Server) -> Result<(), String> {
        let mut left = server.processes()?;
        await_some("the server to become a target", || {
            left.retain(|pid| self.ring3.target(*pid).is_ok_and(|target| target.is_none()));
            left.is_empty().then_some(())
        })
        .map_err(|why| format!("{why}: {left:?}"))
    }

    fn victim(&self, variant: Variant, workload: &Workload, place: &Place) -> Command {
        let command = place.command(&workload.victim);
        if variant != Variant::Ring3 || workload.seen != workload::Seen::FromStart {
            return command;
        }
        under(self.ring3.command(&["start", "--"]), &command)
    }

    /// The tool of a row, attached.
    fn attach(&self, variant: Variant, workload: &Workload, place: &Place) -> Result<Attached, String> {
        let command = place.command(&workload.tool.words);
        let command = match variant {
            Variant::Ring3 => under(self.ring3.command(&["load", "--"]), &command),
            _ => {
                let mut native = with_tracefs(Path::new(command.get_program()));
                native.args(command.get_args());
                native
            }
        };
        let command = self.tracer.enter(&command, None);
        Attached::start(&workload.tool, command, &place.directory.join("tool.log"))
    }

    fn series(&self, row: usize, variant: Variant) -> Option<&Series> {
        self.figures.get(&(row, variant))
    }

    /// What untraced figures differ by.
    fn noise(&self, row: usize, of: fn(&Series, &Series) -> Option<Spread>) -> Option<f64> {
        let (plain, again) = (self.series(row, Variant::Untraced)?, self.series(row, Variant::Again)?);
        of(again, plain).map(|spread| spread.reach())
    }

    pub(crate) fn goals(&self) -> Vec<Goal> {
        let mut goals = vec![];
        for (row, (_, workload)) in self.rows.iter().enumerate() {
            let mut add = |what: &str, limit: Option<f64>, of: fn(&Series, &Series) -> Option<Spread>| {
                let Some(limit) = limit else { return };
                let is_quiet = self.noise(row, of).is_some_and(|noise| noise <= NOISE_MAX);
                let series = self.series(row, Variant::Ring3).zip(self.series(row, Variant::Untraced));
                let figure = series.and_then(|(ours, plain)| of(ours, plain)).map(|spread| spread.median);
                goals.push(Goal {
                    text: format!("{}: {what}, %", workload.name),
                    figure: figure.filter(|_| is_quiet),
                    limit: Limit::AtMost(limit),
                });
            };
            add("lost", workload.goals.lost, Series::lost);
            add("CPU added", workload.goals.cpu_added, Series::cpu_added);
        }
        goals
    }

    pub(crate) fn print(&self, rounds: usize, goals: &[Goal]) {
        println!("\n{}", machine_text());
        let loads = Spread::of(&self.loads).map(|spread| spread.to_string()).unwrap_or_default();
        println!(
            "load {}: medians of {rounds} rounds of {} s (middle half); CPU us: of the traced program for each request \
             or run,\ntracer us: of the tool and ring3's server; events: for each request or run; lost and added: to \
             untraced of the same round\n",
            loads.trim(),
            self.seconds
        );
        println!("{:<26}{:<16}{}", "", "", measures::head());
        for (row, (_, workload)) in self.rows.iter().enumerate() {
            if let Some(why) = self.skipped.get(&row) {
                println!("{:<26}skipped: {why}", workload.name);
                continue;
            }
            for variant in VARIANTS {
                let name = if variant == Variant::Untraced { workload.name.as_str() } else { "" };
                let plain = self.series(row, Variant::Untraced).filter(|_| variant != Variant::Untraced);
                let line = match (self.failed.get(&(row, variant)), self.series(row, variant)) {
                    (Some(why), _) => format!("failed: {}", why.chars().take(300).collect::<String>()),
                    (None, Some(series)) => series.line(plain),
                    (None, None) => continue,
                };
                println!("{name:<26}{:<16}{line}", variant.name());
            }
            if self.noise(row, Series::cpu_added).is_none_or(|noise| noise > NOISE_MAX) {
                println!("{:<26}(untraced, CPU time differs from itself by more than {NOISE_MAX} %)", "");
            }
        }
        println!("\ngoals");
        goals.iter().for_each(|goal| println!("{goal}"));
    }

    pub(crate) fn json(&self, rounds: usize, goals: &[Goal]) -> Value {
        let row = |(number, (_, workload)): (usize, &(&Family, Workload))| {
            let variant = |variant: Variant| {
                let key = (number, variant);
                let plain = self.series(number, Variant::Untraced);
                json!({
                    "variant": variant.name(), "failed": self.failed.get(&key),
                    "figures": self.figures.get(&key).map(|series| series.json(plain)),
                })
            };
            json!({
                "workload": workload.name, "unit": workload.unit, "tool": workload.tool.words,
                "skipped": self.skipped.get(&number), "variants": VARIANTS.map(variant),
            })
        };
        json!({
            "machine": machine(), "rounds": rounds, "seconds": self.seconds, "loads": self.loads,
            "workloads": self.rows.iter().enumerate().map(row).collect::<Vec<_>>(),
            "goals": goals.iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }

    /// An error if something went wrong under ring3. (What the kernel cannot do is shown, and nothing else.)
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let failed = self.failed.iter().filter(|((_, variant), _)| *variant == Variant::Ring3);
        let failed: Vec<String> =
            failed.map(|((row, _), why)| format!("{}: {why}", self.rows[*row].1.name)).collect();
        if failed.is_empty() { Ok(()) } else { Err(format!("failed under ring3:\n{}", failed.join("\n"))) }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A command of ring3 with the program that it runs.
fn under(mut ring3: Command, command: &Command) -> Command {
    ring3.arg(command.get_program()).args(command.get_args());
    command.get_current_dir().map(|directory| ring3.current_dir(directory));
    ring3
}

/// Whether the events that a tool has seen are those of the work that was done.
fn agree(workload: &Workload, seen: &Seen, units: f64) -> Result<(), String> {
    let all = seen.events + seen.lost;
    // (A perf buffer tells of losses with the next event that fits: of the last ones nobody is told.)
    let untold = if seen.lost > 0.0 { LOST_UNTOLD } else { 0.0 };
    let least = workload.events.start() * units * (1.0 - untold);
    // (Two loads, and what was under way when they ended.)
    let most = workload.events.end() * (units * (1.0 + EVENTS_MORE) + 2.0 * workload.load.under_way() + 8.0);
    let of_work = format!("{} events, {} lost, {} damaged", seen.events, seen.lost, seen.damaged);
    if seen.damaged > 0.0 || !(least..=most).contains(&all) {
        return Err(format!("{units} {}s: {of_work}; there should be {least:.0} to {most:.0}", workload.unit));
    }
    Ok(())
}

/// A process that waits. Under ring3 it is a target, so that ring3's server runs, and is none of the traced program's.
struct Bystander(Child);

impl Bystander {
    fn start(bench: &Bench, variant: Variant) -> Result<Bystander, String> {
        let command = match variant {
            Variant::Ring3 => bench.ring3.command(&["start", "--", "cat"]),
            _ => Command::new("cat"),
        };
        let mut command = bench.tracer.enter(&command, None);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let bystander = Bystander(child.map_err(|error| format!("cat: {error}"))?);
        await_some("a process that waits", || running(bystander.pid(), "cat"))?;
        Ok(bystander)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Has it make some system calls, for a tool that counts them.
    fn call(&mut self) -> Result<(), String> {
        let input = self.0.stdin.as_mut().ok_or("no input")?;
        let said = writeln!(input, "x").map_err(|error| format!("cat: {error}"));
        std::thread::sleep(CALLS_WITHIN);
        said
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FAMILIES, tool::Seen};
    use super::agree;

    #[test]
    fn events_that_are_missing_or_too_many_fail_a_row() {
        let workload = FAMILIES.iter().flat_map(|family| (family.workloads)()).find(|row| row.name == "redis");
        let workload = workload.expect("there is one");
        let seen = |events, lost, damaged| agree(&workload, &Seen { events, lost, damaged }, 10_000.0);
        assert_eq!(seen(10_000.0, 0.0, 0.0), Ok(()));
        assert_eq!(seen(9_000.0, 1_000.0, 0.0), Ok(()), "lost events are known");
        assert!(seen(9_990.0, 0.0, 0.0).is_err());
        assert_eq!(seen(9_000.0, 990.0, 0.0), Ok(()), "the last losses are not told");
        assert!(seen(9_000.0, 800.0, 0.0).is_err());
        assert!(seen(12_000.0, 0.0, 0.0).is_err());
        assert!(seen(10_000.0, 0.0, 1.0).is_err());
    }
}
