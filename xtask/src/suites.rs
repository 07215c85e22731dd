//! `cargo xtask suites`: other people's programs and their own tests, natively and as targets with every system call traced.
//!
//! A suite is a script in `tests/suites`. What it writes to its standard output must be the same each time, so it filters
//! what its programs say. Where a run under ring3 says something else, both runs are made again: only what every native
//! run says and no run under ring3 (or the other way round) is ring3's doing.
//!
//! As root, with nothing else on the machine: some of these tests assert times.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::bench::{Process, Ring3};
use crate::root;

/// A suite must end within this time.
const WITHIN: Duration = Duration::from_secs(1800);
const ROUNDS_MAX: usize = 3;
/// What the loader counts of raw tracepoints (`tests/programs/calls.c`), and ends each listing with.
const COUNTED: &str = "raw enter ";
const END: &str = "end";
/// What a suite cannot do without, in a line of its script: commands in the path, files (`$SOURCES` is the directory of
/// unpacked sources), and in parentheses the Debian packages that have them.
const NEEDS: &str = "# needs: ";

struct Suite {
    name: String,
    script: PathBuf,
    missing: Vec<String>,
    packages: String,
}

/// What one run of a suite said: its lines, each with how often it came before.
struct Run {
    lines: BTreeSet<(String, usize)>,
    status: ExitStatus,
    took: Duration,
}

impl Run {
    fn summary(&self) -> String {
        let code = self.status.code().map_or_else(|| self.status.to_string(), |code| format!("exit code {code}"));
        format!("{code}, {} lines, {:.0} s", self.lines.len(), self.took.as_secs_f64())
    }
}

/// Where the suites run, and unpacked sources lie: `target/suites`.
struct Workshop {
    directory: PathBuf,
    ring3: Ring3,
    counter: Process,
}

impl Workshop {
    /// Starts a server and a loader that traces all system calls.
    fn open(directory: &Path) -> Result<Workshop, String> {
        let counter = directory.join("calls");
        let (programs, out) = (root().join("tests/programs"), format!("OUT={}", directory.display()));
        let goal = counter.display().to_string();
        crate::run("make", &["-s", "-C", &programs.display().to_string(), &out, &goal])?;
        let ring3 = Ring3::new()?;
        let mut counter = Process::start(&mut ring3.command(&["load", "--", &goal, "raw", "trace"]))?;
        counter.expect("attached").map_err(|why| why + &ring3.log())?;
        Ok(Workshop { directory: directory.to_owned(), ring3, counter })
    }

    /// System calls that were traced so far. Asking proves that server and loader still live.
    fn counted(&mut self) -> Result<u64, String> {
        self.counter.say("")?;
        let mut sum = 0;
        loop {
            let line = self.counter.line().map_err(|why| why + &self.ring3.log())?;
            if line == END {
                return Ok(sum);
            }
            let count = line.strip_prefix(COUNTED).and_then(|rest| rest.split_once(' '));
            sum += count.and_then(|(_, count)| count.parse::<u64>().ok()).unwrap_or(0);
        }
    }

    /// Runs a suite in a new directory, which stays for whoever wants to read what its programs said.
    fn run(&self, suite: &Suite, under_ring3: bool, round: usize) -> Result<Run, String> {
        let how = if under_ring3 { "ring3" } else { "native" };
        let name = format!("{}.{how}.{round}", suite.name);
        let directory = self.directory.join(&name);
        let text = |error: std::io::Error| format!("{name}: {error}");
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).map_err(text)?;
        let file = |kind: &str| self.directory.join(format!("{name}.{kind}"));
        let mut command =
            if under_ring3 { self.ring3.command(&["start", "--", "bash"]) } else { Command::new("bash") };
        command
            .arg(&suite.script)
            .current_dir(&directory)
            .env("SOURCES", sources(&self.directory))
            .env("LC_ALL", "C.UTF-8")
            .stdin(std::process::Stdio::null())
            .stdout(File::create(file("out")).map_err(text)?)
            .stderr(File::create(file("err")).map_err(text)?)
            .process_group(0);
        let start = Instant::now();
        let status = wait(command.spawn().map_err(text)?, &name)?;
        let said = std::fs::read(file("out")).map_err(text)?;
        let mut lines = BTreeSet::new();
        for line in String::from_utf8_lossy(&said).lines() {
            let before = (0..).find(|times| !lines.contains(&(line.to_owned(), *times)));
            lines.insert((line.to_owned(), before.unwrap_or_default()));
        }
        lines.insert((format!("the suite: {status}"), 0));
        Ok(Run { lines, status, took: start.elapsed() })
    }
}

fn sources(directory: &Path) -> PathBuf {
    directory.join("sources")
}

/// Waits for the end of a suite; one that hangs is killed, with what is left of its process group.
fn wait(mut child: Child, name: &str) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + WITHIN;
    let group = rustix::process::Pid::from_child(&child);
    loop {
        match child.try_wait().map_err(|error| format!("{name}: {error}"))? {
            Some(status) => return Ok(status),
            None if Instant::now() > deadline => {
                println!("{name}: killed, after {} s", WITHIN.as_secs());
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                return child.wait().map_err(|error| format!("{name}: {error}"));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// What all of `runs` say and none of `others` does.
fn only_in<'a>(runs: &'a [Run], others: &[Run]) -> Vec<&'a str> {
    let Some((first, rest)) = runs.split_first() else { return vec![] };
    let said = |runs: &[Run], line: &(String, usize)| runs.iter().any(|run| run.lines.contains(line));
    let always = first.lines.iter().filter(|line| rest.iter().all(|run| run.lines.contains(line)));
    always.filter(|line| !said(others, line)).map(|(line, _)| line.as_str()).collect()
}

/// A suite's runs, and what is different in them.
struct Outcome {
    native: String,
    ring3: String,
    calls: u64,
    rounds: usize,
    differences: Vec<String>,
}

fn compare(workshop: &mut Workshop, suite: &Suite) -> Result<Outcome, String> {
    let (mut native, mut ring3) = (vec![], vec![]);
    let before = workshop.counted()?;
    loop {
        native.push(workshop.run(suite, false, native.len())?);
        ring3.push(workshop.run(suite, true, ring3.len())?);
        let gone = only_in(&native, &ring3).into_iter().map(|line| format!("- {line}"));
        let differences: Vec<String> =
            gone.chain(only_in(&ring3, &native).into_iter().map(|line| format!("+ {line}"))).collect();
        let rounds = native.len();
        if differences.is_empty() || rounds == ROUNDS_MAX {
            let calls = workshop.counted()? - before;
            let summary = |runs: &[Run]| runs.last().map(Run::summary).unwrap_or_default();
            return Ok(Outcome { native: summary(&native), ring3: summary(&ring3), calls, rounds, differences });
        }
    }
}

impl Suite {
    fn read(script: PathBuf, sources: &Path) -> Result<Suite, String> {
        let text = std::fs::read_to_string(&script).map_err(|error| format!("{}: {error}", script.display()))?;
        let name = script.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let needs = text.lines().find_map(|line| line.strip_prefix(NEEDS)).ok_or(format!("{name}: no `{NEEDS}`"))?;
        let (needs, packages) = needs.split_once('(').unwrap_or((needs, ""));
        let place = |need: &str| need.replace("$SOURCES", &sources.display().to_string());
        let missing = needs.split_whitespace().map(place).filter(|need| !is_there(need)).collect();
        Ok(Suite { name, script, missing, packages: packages.trim_end_matches(')').to_owned() })
    }
}

/// Whether a file, or a command in the path, exists.
fn is_there(need: &str) -> bool {
    if need.contains('/') {
        return Path::new(need).exists();
    }
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(need).exists()))
}

/// What `cargo xtask suites` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The suites to run, by their scripts' names without `.sh`; all if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Runs the suites whose names are given, or all.
pub(crate) fn run(Options { names }: &Options) -> Result<(), String> {
    let directory = root().join("target/suites");
    std::fs::create_dir_all(sources(&directory)).map_err(|error| format!("{}: {error}", directory.display()))?;
    let scripts = std::fs::read_dir(root().join("tests/suites")).map_err(|error| format!("tests/suites: {error}"))?;
    let mut scripts: Vec<PathBuf> = scripts.flatten().map(|entry| entry.path()).collect();
    scripts.sort();
    let suites = scripts.into_iter().map(|script| Suite::read(script, &sources(&directory)));
    let mut suites = suites.collect::<Result<Vec<Suite>, String>>()?;
    if let Some(unknown) = names.iter().find(|name| suites.iter().all(|suite| suite.name != **name)) {
        let known: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        return Err(format!("no suite {unknown}; there are {}", known.join(", ")));
    }
    suites.retain(|suite| names.is_empty() || names.contains(&suite.name));
    let (ready, skipped): (Vec<Suite>, Vec<Suite>) = suites.into_iter().partition(|suite| suite.missing.is_empty());
    let mut workshop = Workshop::open(&directory)?;
    let (mut differ, mut rows) = (vec![], vec![]);
    for suite in &ready {
        print!("{} ... ", suite.name);
        let _ = std::io::stdout().flush();
        let outcome = compare(&mut workshop, suite)?;
        let same = if outcome.differences.is_empty() { "yes" } else { "NO" };
        println!("{same}, after {} rounds", outcome.rounds);
        outcome.differences.iter().for_each(|line| println!("  {line}"));
        if !outcome.differences.is_empty() {
            differ.push(suite.name.clone());
        }
        let Outcome { native, ring3, calls, .. } = outcome;
        rows.push(format!("{:<9} | {native:<30} | {ring3:<30} | {calls:>12} | {same}", suite.name));
    }
    println!("\n{:<9} | {:<30} | {:<30} | {:>12} | same?", "suite", "native", "under ring3", "calls traced");
    rows.iter().for_each(|row| println!("{row}"));
    for suite in &skipped {
        let packages = if suite.packages.is_empty() { String::new() } else { format!(" ({})", suite.packages) };
        println!("SKIPPED: {}: no {}{packages}", suite.name, suite.missing.join(", "));
    }
    println!("{} the same, {} differ, {} skipped", rows.len() - differ.len(), differ.len(), skipped.len());
    if differ.is_empty() { Ok(()) } else { Err(format!("not the same under ring3: {}", differ.join(", "))) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    use super::{Run, only_in};

    fn run(lines: &[&str]) -> Run {
        let lines = lines.iter().map(|line| ((*line).to_owned(), 0)).collect();
        Run { lines, status: ExitStatus::from_raw(0), took: Duration::ZERO }
    }

    #[test]
    fn only_what_never_agrees_is_a_difference() {
        let native = [run(&["a", "b", "flaky ok"]), run(&["a", "b", "flaky fails"])];
        let ring3 = [run(&["a", "c", "flaky fails"]), run(&["a", "c", "flaky fails"])];
        assert_eq!(only_in(&native, &ring3), ["b"]);
        assert_eq!(only_in(&ring3, &native), ["c"]);
        assert_eq!(only_in(&native, &native), [""; 0]);
    }
}
