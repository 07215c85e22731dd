//! `cargo xtask conformance`: a directory of bpf_conformance's cases, each assembled by `ring3 asm` and run by
//! `ring3 exec --plugin`, in processes of their own.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::root;

/// A case.
struct Case {
    /// As hexadecimal digits.
    program: String,
    /// As hexadecimal digits.
    memory: String,
    expected: Expected,
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Result(u64),
    Error,
}

/// The parts of a case file, by name.
fn parts(text: &str) -> Vec<(&str, String)> {
    let mut parts: Vec<(&str, String)> = vec![];
    for line in text.lines() {
        match (line.strip_prefix("-- "), parts.last_mut()) {
            (Some(name), _) => parts.push((name.trim(), String::new())),
            (None, Some((_, part))) => *part += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    parts
}

fn number(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is no number"))
}

/// What a command of ring3's writes.
fn ask(arguments: &[&str], input: &str) -> Result<String, String> {
    let binary = root().join("target/release/ring3");
    let mut child = Command::new(&binary)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}; run `make build` first", binary.display()))?;
    // Who ends without reading says why.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

impl Case {
    fn parse(text: &str) -> Result<Case, String> {
        let parts = parts(text);
        let part = |name: &str| parts.iter().find(|(known, _)| *known == name).map(|(_, part)| part.as_str());
        let program = match (part("raw"), part("asm")) {
            (Some(raw), _) => {
                let words = raw.lines().map(without_comment).filter(|line| !line.is_empty());
                let words = words.map(number).collect::<Result<Vec<u64>, String>>()?;
                words.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect()
            }
            (None, Some(text)) => ask(&["asm", "--syntax", "ubpf", "-"], text)?,
            (None, None) => return Err("neither `-- asm` nor `-- raw`".into()),
        };
        let memory: String = part("mem").unwrap_or_default().lines().map(without_comment).collect();
        let expected = match (part("result"), part("error")) {
            (Some(result), _) => {
                let mut lines = result.lines().map(without_comment).filter(|line| !line.is_empty());
                Expected::Result(number(lines.next().ok_or("no result")?)?)
            }
            (None, Some(_)) => Expected::Error,
            (None, None) => return Err("neither `-- result` nor `-- error`".into()),
        };
        Ok(Case { program, memory: memory.replace(' ', ""), expected })
    }

    /// Runs the case; what is wrong with what came out.
    fn run(&self, engine: &str) -> Result<(), String> {
        let said = ask(&["exec", "--plugin", "--engine", engine, &self.memory], &self.program);
        let given = match &said {
            Ok(said) => Expected::Result(u64::from_str_radix(said, 16).map_err(|_| format!("it said `{said}`"))?),
            Err(_) => Expected::Error,
        };
        if self.expected == given {
            return Ok(());
        }
        Err(format!("expected {:x?}, got {given:x?} {}", self.expected, said.err().unwrap_or_default()))
    }
}

/// What `cargo xtask conformance` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The directory of the cases (`*.data`)
    directory: PathBuf,
    /// The engine that runs them
    #[arg(long, default_value = "jit", value_parser = ["interp", "jit", "llvm"])]
    engine: String,
}

/// Runs all cases of a directory.
pub(crate) fn run(Options { directory, engine }: &Options) -> Result<(), String> {
    let shown = directory.display();
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .map_err(|error| format!("{shown}: {error}"))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "data"))
        .collect();
    paths.sort();
    if paths.is_empty() {
        return Err(format!("{shown} has no files *.data"));
    }
    let (rest, failures) = (Mutex::new(paths.iter()), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(path) = rest.lock().expect("nobody panics with it").next() else { break };
                    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
                    let case = text.and_then(|text| Case::parse(&text));
                    if let Err(why) = case.and_then(|case| case.run(engine)) {
                        failures.lock().expect("nobody panics with it").push(format!("{name}: {why}"));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("nobody panics with it");
    failures.sort();
    failures.iter().for_each(|failure| println!("FAILED {failure}"));
    println!("{} passed, {} failed", paths.len() - failures.len(), failures.len());
    if failures.is_empty() { Ok(()) } else { Err(format!("{} cases failed on {engine}", failures.len())) }
}
