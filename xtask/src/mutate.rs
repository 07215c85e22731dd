//! `cargo xtask mutate`: breaks the verifier and the maps on purpose, in one place at a time, and shows which test sees it.
//!
//! A check that can be taken away without a test failing is a check that nobody would miss. A [`Subject`] has one row for
//! each. They are made in a copy of the work tree (`target/mutants/tree`), never in the tree itself. A mutant that no
//! test catches is an error: the tests lack a case.
//!
//! It takes some seconds a mutant, so it is run by hand: `cargo xtask mutate [--only TEXT]... [--programs N]`, as root, so
//! that random programs are also compared with the kernel's verdicts. (`RING3_SCHEDULES` says how many schedules of maps'
//! operations are tried.)

mod access;
mod calls;
mod maps;
mod walk;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{built_test, cargo_messages, root};

/// Random programs, and bad inputs of each kind, that are judged.
const PROGRAMS_USUAL: u32 = 1000;
/// A test that takes longer does not end.
const TEST_TIME_MAX: Duration = Duration::from_secs(180);
/// Memory of a test's own, KiB: a mutant that never ends may not take the machine with it.
const TEST_KIB_MAX: u32 = 8 << 20;

/// What is broken.
struct Subject {
    /// Where it is.
    sources: &'static str,
    mutations: &'static [&'static [Mutation]],
    /// The cheaper come first.
    tests: &'static [Test],
}

const SUBJECTS: [Subject; 2] = [
    Subject {
        sources: "pure/verifier/src",
        mutations: &[access::MUTATIONS, walk::MUTATIONS, calls::MUTATIONS],
        tests: &VERIFIER_TESTS,
    },
    Subject { sources: "shared/maps/src", mutations: &[maps::MUTATIONS], tests: &MAPS_TESTS },
];

/// One way to break a subject.
struct Mutation {
    /// In the subject's sources.
    file: &'static str,
    /// What is believed or forgotten then, as a sentence.
    breaks: &'static str,
    /// Occurs once in the file.
    original: &'static str,
    replacement: &'static str,
}

impl Subject {
    fn mutations(&self) -> impl Iterator<Item = &'static Mutation> {
        self.mutations.iter().copied().flatten()
    }

    /// A mutation's file, from the root of the tree.
    fn file(&self, mutation: &Mutation) -> PathBuf {
        Path::new(self.sources).join(mutation.file)
    }

    /// What is printed of a mutation, and searched for the text of `--only`.
    fn name(&self, mutation: &Mutation) -> String {
        format!("{}: {}", self.file(mutation).display(), mutation.breaks)
    }
}

/// A mutation, as the table's rows are written.
const fn mutation(
    file: &'static str,
    breaks: &'static str,
    original: &'static str,
    replacement: &'static str,
) -> Mutation {
    Mutation { file, breaks, original, replacement }
}

impl Mutation {
    /// A source with the mistake in it.
    ///
    /// # Errors
    /// The original text is not there, or more than once.
    fn apply(&self, source: &str) -> Result<String, String> {
        match source.matches(self.original).count() {
            1 => Ok(source.replacen(self.original, self.replacement, 1)),
            count => Err(format!("{}: `{}`: the text to be replaced occurs {count} times", self.file, self.breaks)),
        }
    }
}

/// A test that may catch mutants.
struct Test {
    name: &'static str,
    target: &'static [&'static str],
    /// What its output has if it fails because of a mutant.
    shows: &'static str,
    /// The files that it looks at; all if there are none.
    files: &'static [&'static str],
}

const VERIFIER_TESTS: [Test; 6] = [
    Test { name: "cases", target: &["--package", "ring3-verifier", "--test", "cases"], shows: "", files: &[] },
    Test { name: "policies", target: &["--package", "ring3-verifier", "--test", "policies"], shows: "", files: &[] },
    Test {
        name: "iterators",
        target: &["--package", "ring3-verifier", "--test", "iterators"],
        shows: "",
        files: &[],
    },
    Test {
        name: "domains",
        target: &["--package", "ring3-verifier", "--lib"],
        shows: "",
        files: &["scalar.rs", "tnum.rs"],
    },
    Test {
        name: "random programs",
        target: &["--package", "ring3-tests", "--test", "raw_random_programs"],
        shows: "Ring3AcceptsFault",
        files: &[],
    },
    Test { name: "hostile", target: &["--package", "ring3-verifier", "--test", "hostile"], shows: "", files: &[] },
];

const fn maps_test(name: &'static str, target: &'static [&'static str]) -> Test {
    Test { name, target, shows: "", files: &[] }
}

const MAPS_TESTS: [Test; 9] = [
    maps_test("lib", &["--package", "ring3-maps", "--lib"]),
    maps_test("geometry", &["--package", "ring3-maps", "--test", "geometry"]),
    maps_test("raw_model", &["--package", "ring3-maps", "--test", "raw_model"]),
    maps_test("raw_pool", &["--package", "ring3-maps", "--test", "raw_pool"]),
    maps_test("raw_hostile", &["--package", "ring3-maps", "--test", "raw_hostile"]),
    maps_test("raw_schedule", &["--package", "ring3-maps", "--test", "raw_schedule"]),
    maps_test("raw_interleave", &["--package", "ring3-maps", "--test", "raw_interleave"]),
    maps_test("raw_crash", &["--package", "ring3-maps", "--test", "raw_crash"]),
    maps_test("raw_storm", &["--package", "ring3-maps", "--test", "raw_storm"]),
];

/// What a test said.
enum Outcome {
    Passed,
    /// What it found.
    Failed(String),
}

/// What `cargo xtask mutate` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Make only mutations with this text in the file's path or the description; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// How many random programs, and bad inputs of each kind, are judged
    #[arg(long, value_name = "N", default_value_t = PROGRAMS_USUAL)]
    programs: u32,
}

pub(crate) fn mutate(Options { only, programs }: &Options) -> Result<(), String> {
    let mut mutations: Vec<(&Subject, &Mutation)> = vec![];
    for subject in &SUBJECTS {
        let wanted = |mutation: &&Mutation| {
            let name = subject.name(mutation);
            only.is_empty() || only.iter().any(|text| name.contains(text))
        };
        mutations.extend(subject.mutations().filter(wanted).map(|mutation| (subject, mutation)));
    }
    let bench = Bench { tree: root().join("target/mutants/tree"), programs: programs.to_string() };
    bench.copy()?;
    for (subject, mutation) in &mutations {
        mutation.apply(&bench.source(subject, mutation)?)?;
    }
    let is_mutated = |subject: &&Subject| mutations.iter().any(|(other, _)| other.sources == subject.sources);
    for subject in SUBJECTS.iter().filter(is_mutated) {
        for test in subject.tests {
            if let Outcome::Failed(why) = bench.ask(subject, test)? {
                return Err(format!("{} fails without a mutation: {why}", test.name));
            }
        }
    }
    let started = Instant::now();
    let mut survivors = vec![];
    for (subject, mutation) in &mutations {
        let (name, caught) = (subject.name(mutation), bench.judge(subject, mutation)?);
        println!("{name}\n  {}", caught.as_deref().unwrap_or("SURVIVES"));
        if caught.is_none() {
            survivors.push(name);
        }
    }
    let caught = mutations.len() - survivors.len();
    println!("{caught} of {} mutants caught, in {} s", mutations.len(), started.elapsed().as_secs());
    if survivors.is_empty() { Ok(()) } else { Err(format!("no test catches:\n  {}", survivors.join("\n  "))) }
}

/// Where mutants are made and tried.
struct Bench {
    tree: PathBuf,
    programs: String,
}

fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{}: {error}", path.display()))
}

impl Bench {
    /// Makes the tree a copy of the work tree. What is the same already is not touched, so that little is built anew.
    fn copy(&self) -> Result<(), String> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root())
            .output()
            .map_err(|error| format!("git: {error}"))?;
        let text = String::from_utf8_lossy(&listed.stdout);
        let files: BTreeSet<PathBuf> = text.split_terminator('\0').map(PathBuf::from).collect();
        for file in &files {
            let (from, to) = (root().join(file), self.tree.join(file));
            // Deleted, and not yet known to be.
            let Ok(content) = fs::read(&from) else { continue };
            if fs::read(&to).is_ok_and(|copied| copied == content) {
                continue;
            }
            let directory = to.parent().unwrap_or(&self.tree);
            at(directory, fs::create_dir_all(directory))?;
            at(&to, fs::write(&to, content))?;
        }
        let mut directories = vec![self.tree.clone()];
        while let Some(directory) = directories.pop() {
            for entry in at(&directory, fs::read_dir(&directory))? {
                let path = at(&directory, entry)?.path();
                let name = path.strip_prefix(&self.tree).unwrap_or(&path);
                if path.is_dir() {
                    directories.push(path);
                } else if !files.contains(name) || !root().join(name).exists() {
                    at(&path, fs::remove_file(&path))?;
                }
            }
        }
        Ok(())
    }

    fn source(&self, subject: &Subject, mutation: &Mutation) -> Result<String, String> {
        let file = self.tree.join(subject.file(mutation));
        at(&file, fs::read_to_string(&file))
    }

    /// Which test catches a mutant, if any does.
    fn judge(&self, subject: &Subject, mutation: &Mutation) -> Result<Option<String>, String> {
        let (file, original) = (self.tree.join(subject.file(mutation)), self.source(subject, mutation)?);
        at(&file, fs::write(&file, mutation.apply(&original)?))?;
        let caught = self.first_to_catch(subject, mutation.file);
        at(&file, fs::write(&file, original))?;
        caught.map_err(|why| format!("{}: {why}", subject.name(mutation)))
    }

    fn first_to_catch(&self, subject: &Subject, file: &str) -> Result<Option<String>, String> {
        for test in subject.tests.iter().filter(|test| test.files.is_empty() || test.files.contains(&file)) {
            if let Outcome::Failed(why) = self.ask(subject, test)? {
                return Ok(Some(format!("{}: {why}", test.name)));
            }
        }
        Ok(None)
    }

    /// Builds a test and runs it. What does not compile is no mutant.
    fn ask(&self, subject: &Subject, test: &Test) -> Result<Outcome, String> {
        let binary = self.build(test)?;
        let said = self.tree.with_file_name("said");
        let output = at(&said, File::create(&said))?;
        let errors = at(&said, output.try_clone())?;
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -d {TEST_KIB_MAX}; exec \"$0\""), &binary.display().to_string()])
            .env("RING3_VERIFIER", "1")
            .env("RING3_PROGRAMS", &self.programs)
            .env("RING3_INPUTS", &self.programs)
            .env("RUST_BACKTRACE", "0")
            .current_dir(&self.tree)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let started = Instant::now();
        let status = loop {
            match child.try_wait().map_err(|error| error.to_string())? {
                None if started.elapsed() < TEST_TIME_MAX => std::thread::sleep(Duration::from_millis(20)),
                ended => break ended,
            }
        };
        // Children of a test that failed may run on, as may the test. (No process left is no error.)
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let Some(status) = status else {
            child.wait().map_err(|error| error.to_string())?;
            return Ok(Outcome::Failed("it does not end".to_owned()));
        };
        let text = String::from_utf8_lossy(&at(&said, fs::read(&said))?).into_owned();
        let failed = !status.success() && text.contains(test.shows);
        Ok(if failed {
            Outcome::Failed(finding(&text, subject.sources, test.shows, status))
        } else {
            Outcome::Passed
        })
    }

    /// The test's executable.
    fn build(&self, test: &Test) -> Result<PathBuf, String> {
        let output = Command::new("cargo")
            .args(["test", "--no-run", "--quiet", "--message-format=json"])
            .args(test.target)
            .env("CARGO_TARGET_DIR", self.tree.with_file_name("build"))
            // Mutants leave code unused.
            .env("RUSTFLAGS", "--cap-lints=allow")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .current_dir(&self.tree)
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        let (mut executable, mut errors) = (None, String::new());
        for message in cargo_messages(&output.stdout) {
            executable = built_test(&message).or(executable);
            if message["message"]["level"] == "error" {
                errors += message["message"]["rendered"].as_str().unwrap_or_default();
            }
        }
        let rest = String::from_utf8_lossy(&output.stderr);
        executable.filter(|_| output.status.success()).ok_or_else(|| format!("it does not compile: {errors}{rest}"))
    }
}

/// What a failed test found, on one line.
fn finding(said: &str, sources: &str, shows: &str, status: ExitStatus) -> String {
    let lines: Vec<&str> = said.lines().collect();
    if let Some(line) = lines.iter().find(|line| !shows.is_empty() && line.contains(shows)) {
        return line.trim().chars().take(160).collect();
    }
    // The assertion's first lines, which say what should not be.
    let panic = lines.iter().position(|line| line.contains(" panicked at "));
    let Some(panic) = panic else { return format!("it ends by {status}") };
    let place = lines[panic].split(" panicked at ").nth(1).unwrap_or_default();
    let words: Vec<&str> = lines[panic + 1..].iter().take(2).map(|line| line.trim()).collect();
    let place = if place.contains(sources) { format!("panics at {place} ") } else { String::new() };
    let text = format!("{place}{}", words.join(" "));
    text.chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutation_has_one_place() {
        for subject in &SUBJECTS {
            let stale: Vec<String> = subject
                .mutations()
                .filter_map(|mutation| {
                    let file = root().join(subject.file(mutation));
                    let source = fs::read_to_string(&file).expect("a source");
                    mutation.apply(&source).err()
                })
                .collect();
            let count = subject.mutations().count();
            assert!(stale.is_empty(), "{} of {count} rows are stale:\n{}", stale.len(), stale.join("\n"));
            let sentences: BTreeSet<&str> = subject.mutations().map(|mutation| mutation.breaks).collect();
            assert_eq!(sentences.len(), count, "each row says what only it breaks");
        }
    }
}
