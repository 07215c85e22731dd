//! `cargo xtask mutate`: breaks the verifier on purpose, in one place at a time, and shows which test sees it.
//!
//! A check that can be taken away without a test failing is a check that nobody would miss. [`mutations`] has one row for
//! each. They are made in a copy of the work tree (`target/mutants/tree`), never in the tree itself. A mutant that no
//! test catches is an error: the tests lack a case.
//!
//! It takes some seconds a mutant, so it is run by hand: `cargo xtask mutate [--only TEXT]... [--programs N]`, as root, so
//! that random programs are also compared with the kernel's verdicts.

mod access;
mod calls;
mod walk;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{built_test, cargo_messages, root};

/// Where the verifier is.
const SOURCES: &str = "pure/verifier/src";
/// Random programs, and bad inputs of each kind, that are judged.
const PROGRAMS_USUAL: u32 = 1000;
/// A test that takes longer does not end.
const TEST_TIME_MAX: Duration = Duration::from_secs(180);
/// Address space of a test, KiB: a mutant that never ends may not take the machine with it.
const TEST_KIB_MAX: u32 = 8 << 20;

/// One way to break the verifier.
struct Mutation {
    /// In [`SOURCES`].
    file: &'static str,
    /// What is believed then, as a sentence about programs.
    breaks: &'static str,
    /// Occurs once in the file.
    original: &'static str,
    replacement: &'static str,
}

/// All of them.
fn mutations() -> impl Iterator<Item = &'static Mutation> {
    [access::MUTATIONS, walk::MUTATIONS, calls::MUTATIONS].into_iter().flatten()
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

/// A test that may catch mutants; the cheaper come first.
struct Test {
    name: &'static str,
    target: &'static [&'static str],
    /// What its output has if it fails because of a mutant.
    shows: &'static str,
    /// The files that it looks at; all if there are none.
    files: &'static [&'static str],
}

const TESTS: [Test; 6] = [
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

/// What a test said.
enum Outcome {
    Passed,
    /// What it found.
    Failed(String),
}

/// What `cargo xtask mutate` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Make only mutations with this text in the file's name or the description; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// How many random programs, and bad inputs of each kind, are judged
    #[arg(long, value_name = "N", default_value_t = PROGRAMS_USUAL)]
    programs: u32,
}

pub(crate) fn mutate(Options { only, programs }: &Options) -> Result<(), String> {
    let wanted = |mutation: &&Mutation| {
        let name = format!("{} {}", mutation.file, mutation.breaks);
        only.is_empty() || only.iter().any(|text| name.contains(text))
    };
    let mutations: Vec<&Mutation> = mutations().filter(wanted).collect();
    let bench = Bench { tree: root().join("target/mutants/tree"), programs: programs.to_string() };
    bench.copy()?;
    for mutation in &mutations {
        mutation.apply(&bench.source(mutation)?)?;
    }
    for test in &TESTS {
        if let Outcome::Failed(why) = bench.ask(test)? {
            return Err(format!("{} fails without a mutation: {why}", test.name));
        }
    }
    let started = Instant::now();
    let mut survivors = vec![];
    for mutation in &mutations {
        let caught = bench.judge(mutation)?;
        let by = caught.as_deref().unwrap_or("SURVIVES");
        println!("{:14} {}\n{:14}   {by}", mutation.file, mutation.breaks, "");
        if caught.is_none() {
            survivors.push(format!("{}: {}", mutation.file, mutation.breaks));
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

    fn file(&self, mutation: &Mutation) -> PathBuf {
        self.tree.join(SOURCES).join(mutation.file)
    }

    fn source(&self, mutation: &Mutation) -> Result<String, String> {
        let file = self.file(mutation);
        at(&file, fs::read_to_string(&file))
    }

    /// Which test catches a mutant, if any does.
    fn judge(&self, mutation: &Mutation) -> Result<Option<String>, String> {
        let (file, original) = (self.file(mutation), self.source(mutation)?);
        at(&file, fs::write(&file, mutation.apply(&original)?))?;
        let caught = self.first_to_catch(mutation.file);
        at(&file, fs::write(&file, original))?;
        caught.map_err(|why| format!("{}: {}: {why}", mutation.file, mutation.breaks))
    }

    fn first_to_catch(&self, file: &str) -> Result<Option<String>, String> {
        for test in TESTS.iter().filter(|test| test.files.is_empty() || test.files.contains(&file)) {
            if let Outcome::Failed(why) = self.ask(test)? {
                return Ok(Some(format!("{}: {why}", test.name)));
            }
        }
        Ok(None)
    }

    /// Builds a test and runs it. What does not compile is no mutant.
    fn ask(&self, test: &Test) -> Result<Outcome, String> {
        let binary = self.build(test)?;
        let said = self.tree.with_file_name("said");
        let output = at(&said, File::create(&said))?;
        let errors = at(&said, output.try_clone())?;
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -v {TEST_KIB_MAX}; exec \"$0\""), &binary.display().to_string()])
            .env("RING3_VERIFIER", "1")
            .env("RING3_PROGRAMS", &self.programs)
            .env("RING3_INPUTS", &self.programs)
            .env("RUST_BACKTRACE", "0")
            .current_dir(&self.tree)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let started = Instant::now();
        let status = loop {
            match child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if started.elapsed() > TEST_TIME_MAX => {
                    child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
                    return Ok(Outcome::Failed("it does not end".to_owned()));
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let text = String::from_utf8_lossy(&at(&said, fs::read(&said))?).into_owned();
        let failed = !status.success() && text.contains(test.shows);
        Ok(if failed { Outcome::Failed(finding(&text, test.shows, status)) } else { Outcome::Passed })
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
fn finding(said: &str, shows: &str, status: ExitStatus) -> String {
    let lines: Vec<&str> = said.lines().collect();
    if let Some(line) = lines.iter().find(|line| !shows.is_empty() && line.contains(shows)) {
        return line.trim().chars().take(160).collect();
    }
    // The assertion's first lines, which say what should not be.
    let panic = lines.iter().position(|line| line.contains(" panicked at "));
    let Some(panic) = panic else { return format!("it ends by {status}") };
    let place = lines[panic].split(" panicked at ").nth(1).unwrap_or_default();
    let words: Vec<&str> = lines[panic + 1..].iter().take(2).map(|line| line.trim()).collect();
    let place = if place.contains(SOURCES) { format!("panics at {place} ") } else { String::new() };
    let text = format!("{place}{}", words.join(" "));
    text.chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutation_has_one_place() {
        let stale: Vec<String> = mutations()
            .filter_map(|mutation| {
                let file = root().join(SOURCES).join(mutation.file);
                let source = fs::read_to_string(&file).expect("the verifier's sources");
                mutation.apply(&source).err()
            })
            .collect();
        assert!(stale.is_empty(), "{} of {} rows are stale:\n{}", stale.len(), mutations().count(), stale.join("\n"));
        let sentences: BTreeSet<&str> = mutations().map(|mutation| mutation.breaks).collect();
        assert_eq!(sentences.len(), mutations().count(), "each row says what only it breaks");
    }
}
