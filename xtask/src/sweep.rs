//! `cargo xtask sweep`: probes on random instructions of a program or library, while a command runs that uses it.
//!
//! In each round some hundred instructions are drawn, at least [`APART_BYTES`] apart, and probed by the example tool; the
//! command then runs as a target. Its output and exit status must be those that it has without probes. How many probes are
//! accepted, and how often they hit, is printed. The command has to print the same each time.
//!
//! `cargo xtask sweep FILE [--rounds N] [--seed N] -- COMMAND...`, with the release build. A round that fails prints its
//! seed: `--rounds 1 --seed N` repeats it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use iced_x86::{Code, Decoder, DecoderOptions};

use crate::root;

const ROUNDS_USUAL: u64 = 10;
/// Instructions that are drawn in a round.
const DRAWN: u64 = 900;
/// Probes of one round are this far apart, so that each is judged by itself.
const APART_BYTES: u64 = 24;

/// What `cargo xtask sweep` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The program or library to probe
    file: PathBuf,
    /// Rounds; each draws other instructions
    #[arg(long, value_name = "N", default_value_t = ROUNDS_USUAL, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// The first round's seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The command that uses the file
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// The next of a sequence of random numbers (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// File offsets of all instructions of known functions, padding excluded.
fn instructions(file: &Path) -> Result<Vec<u64>, String> {
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let elf = ring3_elf::File::parse(&bytes).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut found = vec![];
    for segment in elf.executable_segments() {
        let mut at = segment.start;
        while at < segment.end {
            let Some(bounds) = elf.function_bounds(at).filter(|bounds| bounds.end > at) else {
                at += 1;
                continue;
            };
            let code = elf.code(bounds.clone()).unwrap_or_default();
            let decoded = Decoder::with_ip(64, code, bounds.start, DecoderOptions::NONE).into_iter();
            let real =
                decoded.take_while(|i| !i.is_invalid()).filter(|i| !matches!(i.code(), Code::Int3 | Code::Nopd));
            found.extend(real.filter_map(|i| elf.vaddr_to_offset(i.ip())));
            at = bounds.end;
        }
    }
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { Err(format!("{}: no functions are known", file.display())) } else { Ok(found) }
}

/// Some of them, far enough apart.
fn draw(instructions: &[u64], seed: u64) -> Vec<u64> {
    let mut state = seed;
    let mut drawn: Vec<u64> =
        (0..DRAWN).map(|_| instructions[(next(&mut state) % instructions.len() as u64) as usize]).collect();
    drawn.sort_unstable();
    let mut free = 0;
    drawn.retain(|offset| {
        let is_free = *offset >= free;
        free = if is_free { offset + APART_BYTES } else { free };
        is_free
    });
    drawn
}

/// A server of this command's own; it ends with this value.
struct Server {
    directory: PathBuf,
}

impl Server {
    fn new() -> Result<Server, String> {
        let directory = std::env::temp_dir().join(format!("ring3-sweep-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(|error| format!("{directory:?}: {error}"))?;
        Ok(Server { directory })
    }

    fn ring3(&self, words: &[&str]) -> Command {
        let mut command = Command::new(root().join("target/release/ring3"));
        command.args(words).env("RING3_RUNTIME_DIR", &self.directory);
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.ring3(&["stop"]).output();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The example tool with its probes.
struct Tool {
    process: Child,
    accepted: usize,
}

impl Tool {
    fn start(server: &Server, file: &Path, offsets: &[u64]) -> Result<Tool, String> {
        let tool = root().join("examples/malloc/build/malloc");
        let mut command = server.ring3(&["load", "--"]);
        command.arg(tool).args(offsets.iter().map(|offset| format!("{}:{offset:#x}", file.display())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| format!("ring3 (cargo build --release): {error}"))?;
        let mut line = String::new();
        let output = process.stdout.as_mut().ok_or("a pipe was asked for")?;
        BufReader::with_capacity(1, output).read_line(&mut line).map_err(|error| error.to_string())?;
        let accepted = line.trim().strip_prefix("attached ").and_then(|count| count.parse().ok());
        let accepted = accepted.ok_or("the tool (examples/malloc) attached nothing")?;
        Ok(Tool { process, accepted })
    }

    /// How often its probes have hit.
    fn finish(mut self) -> Result<u64, String> {
        drop(self.process.stdin.take());
        let mut text = String::new();
        let output = self.process.stdout.as_mut().ok_or("a pipe was asked for")?;
        output.read_to_string(&mut text).map_err(|error| error.to_string())?;
        self.process.wait().map_err(|error| error.to_string())?;
        Ok(text.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }
}

/// The command's output, at the same addresses each time.
fn output(command: &mut Command) -> Result<Output, String> {
    command.stdin(Stdio::null()).stderr(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))
}

/// Sweeps one file.
///
/// # Errors
/// How many rounds changed what the command does.
pub(crate) fn sweep(options: &Options) -> Result<(), String> {
    let file =
        std::fs::canonicalize(&options.file).map_err(|error| format!("{}: {error}", options.file.display()))?;
    let plain = || output(Command::new("setarch").arg("-R").args(&options.command));
    let expected = plain()?;
    if plain()? != expected {
        return Err(format!("{:?} does not print the same each time", options.command));
    }
    crate::run("make", &["-s", "-C", "examples/malloc"])?;
    let all = instructions(&file)?;
    let server = Server::new()?;
    let (mut drawn, mut accepted, mut hits, mut changed) = (0, 0, 0, 0);
    for seed in options.seed..options.seed + options.rounds {
        let offsets = draw(&all, seed);
        let tool = Tool::start(&server, &file, &offsets)?;
        drawn += offsets.len();
        accepted += tool.accepted;
        let mut command = Command::new("setarch");
        command.arg("-R").arg(root().join("target/release/ring3")).args(["start", "--"]).args(&options.command);
        let got = output(command.env("RING3_RUNTIME_DIR", &server.directory))?;
        hits += tool.finish()?;
        if got != expected {
            changed += 1;
            println!(
                "--seed {seed}: {} and {} bytes of output instead of {} and {}",
                got.status,
                got.stdout.len(),
                expected.status,
                expected.stdout.len()
            );
        }
    }
    println!(
        "{}: {} rounds, {accepted} of {drawn} probes accepted ({:.1} %), {hits} hits, {changed} runs changed",
        file.display(),
        options.rounds,
        100.0 * accepted as f64 / drawn as f64
    );
    if changed == 0 { Ok(()) } else { Err(format!("{changed} runs were changed by their probes")) }
}
