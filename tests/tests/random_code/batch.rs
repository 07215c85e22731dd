//! One batch: an executable with random functions, run alone and with probes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ring3_generate::Random;
use ring3_tests::{Bench, Process, example, root};

use super::shrink;
use super::write::{Kind, Written, assembly, random_of_seed};

/// Functions of one executable.
pub(crate) const FUNCTIONS_OF_A_BATCH: u64 = 1000;
/// Instructions of the victim that are never executed, and how far they are apart; there are more than one-byte jumps of a process
/// (`ONE_BYTE_MAX` of the server).
const BALLAST: u64 = 80;
const BALLAST_BYTES: u64 = 32;
/// Probes so near to one that counts wrongly are shown with it.
const NEAR_BYTES: u64 = 32;
/// A run that takes longer does not end.
const SECONDS_MAX: &str = "20";
/// Counts are compared in one of so many batches: single steps take longer than all else.
const COUNTS_EACH: u64 = 8;
/// Differences of one batch that are looked into.
const FINDINGS_MAX: usize = 4;

/// A probe on an instruction, or on the returns of the function that begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Probe {
    /// The instruction's number.
    pub(crate) instruction: usize,
    /// The function's return.
    pub(crate) ret: bool,
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    functions: u64,
    instructions: u64,
    probes: u64,
    returns: u64,
    accepted: u64,
    compared: u64,
    /// Hits of all probes.
    pub(crate) hits: u64,
    signals: u64,
    /// Differences, as text.
    pub(crate) findings: Vec<String>,
    /// Faults that were found in stubs, in processes in which the agent cannot handle faults (a known gap).
    in_stubs: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} functions of {} instructions; probes: {} on instructions, {} on returns, {} accepted, {} hits, {} counts \
             compared with single steps; {} signals; {} findings, and {} faults found in stubs where that is known",
            self.functions,
            self.instructions,
            self.probes,
            self.returns,
            self.accepted,
            self.hits,
            self.compared,
            self.signals,
            self.findings.len(),
            self.in_stubs
        )
    }
}

/// An executable with random functions.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The executable.
    pub(crate) binary: PathBuf,
    seed: u64,
    /// The functions that were written.
    pub(crate) functions: Vec<Written>,
    /// Of each instruction: function, whether single steps see it, and where it is in the file.
    pub(crate) instructions: Vec<Instruction>,
    code_offset: u64,
    /// Where instructions that are never executed begin.
    ballast_offset: u64,
}

/// An instruction of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    /// The number of its function.
    pub(crate) function: u32,
    stepped: bool,
    /// Where it is in the file.
    pub(crate) offset: u64,
}

/// What a run under probes gave.
pub(crate) struct Run {
    /// The victim's output.
    pub(crate) output: String,
    /// Hits of the probes that were accepted.
    counts: BTreeMap<Probe, u64>,
}

fn has_avx2() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" avx2 "))
}

/// Whether it is compared where faults are.
fn strict() -> Option<&'static str> {
    std::env::var_os("RING3_EQUIVALENCE_STRICT").map(|_| "strict")
}

fn compile(arguments: &[&str]) {
    let output = Command::new("gcc").args(arguments).output().expect("gcc runs");
    assert!(output.status.success(), "gcc {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

impl Batch {
    /// Writes and links `functions` functions.
    pub(crate) fn build(seed: u64, functions: u32) -> Batch {
        let kind = Kind { fixed: seed.is_multiple_of(2), avx: has_avx2() };
        let written = assembly(seed, functions, kind);
        let directory = root().join("target/equivalence").join(format!("{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("target is writable");
        let (source, binary) = (directory.join("functions.s"), directory.join(format!("functions-{seed}")));
        std::fs::write(&source, &written.text).expect("written");
        let (object, pie) =
            if kind.fixed { ("fixed.o", ["-fno-pic", "-no-pie"]) } else { ("pie.o", ["-fPIE", "-pie"]) };
        let victim = directory.join(object);
        if !victim.exists() {
            let code = root().join("tests/victims/equivalence.c");
            compile(&["-O2", "-g0", pie[0], "-c", shown(&code), "-o", shown(&victim)]);
        }
        compile(&[pie[1], "-pthread", shown(&victim), shown(&source), "-o", shown(&binary)]);
        let bytes = std::fs::read(&binary).expect("linked");
        let elf = ring3_elf::File::parse(&bytes).expect("an ELF file");
        let (boundaries, _) = elf.section(".boundaries").expect("it was written");
        let addresses = boundaries.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let offsets = addresses.map(|address| elf.vaddr_to_offset(address).expect("in the file"));
        let numbered = written.instructions.iter().zip(offsets);
        let instructions: Vec<Instruction> =
            numbered.map(|(&(function, stepped), offset)| Instruction { function, stepped, offset }).collect();
        assert_eq!(instructions.len(), written.instructions.len());
        let offset_of = |name| {
            elf.find(name).and_then(|address| elf.vaddr_to_offset(address)).expect("the victim has the symbol")
        };
        let (code_offset, ballast_offset) = (offset_of("code_start"), offset_of("ballast"));
        Batch { binary, seed, functions: written.functions, instructions, code_offset, ballast_offset }
    }

    /// Some probes: alone, in groups, and on returns.
    fn draw(&self, random: &mut Random) -> Vec<Probe> {
        let mut drawn = BTreeSet::new();
        let mut begin = 0;
        for (number, function) in self.functions.iter().enumerate() {
            let end = begin + self.instructions[begin..].iter().take_while(|i| i.function == number as u32).count();
            let bytes = (end - begin) as u64;
            // Beginnings and ends are where most goes wrong.
            let first = match random.below(6) {
                0 => begin,
                1 => end - 1,
                2 => begin + random.below(bytes.min(3)) as usize,
                _ => begin + random.below(bytes) as usize,
            };
            let group = if random.one_in(4) { 1 + random.below(3) as usize } else { 1 };
            drawn.extend((first..end.min(first + group)).map(|instruction| Probe { instruction, ret: false }));
            if random.one_in(4) {
                drawn.insert(Probe { instruction: begin + random.below(bytes) as usize, ret: false });
            }
            if function.returns && random.one_in(8) {
                drawn.insert(Probe { instruction: begin, ret: true });
            }
            begin = end;
        }
        drawn.into_iter().collect()
    }

    /// As the example tool names a probe.
    pub(crate) fn name(&self, probe: Probe) -> String {
        let offset = self.instructions[probe.instruction].offset;
        format!("{}:{offset:#x}{}", shown(&self.binary), if probe.ret { ":ret" } else { "" })
    }

    /// What the victim prints, with some arguments, as `command` of a bench or alone.
    fn output(command: &mut Command) -> String {
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            text += &format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        text
    }

    /// What the victim prints alone. It has the same addresses each time.
    pub(crate) fn alone(&self, words: &[String]) -> String {
        let mut command = Command::new("timeout");
        command.args(["-sKILL", SECONDS_MAX, "setarch", "-R"]).arg(&self.binary).args(words).args(strict());
        Batch::output(&mut command)
    }

    /// Names of probes that take the one-byte jumps of a process, so that all others get plain ones.
    fn ballast(&self) -> impl Iterator<Item = String> {
        (0..BALLAST).map(|at| format!("{}:{:#x}", shown(&self.binary), self.ballast_offset + at * BALLAST_BYTES))
    }

    /// The same under probes. `plain`: without one-byte jumps.
    pub(crate) fn probed(&self, bench: &Bench, probes: &[Probe], plain: bool, words: &[String]) -> Run {
        let names: BTreeMap<String, Probe> = probes.iter().map(|probe| (self.name(*probe), *probe)).collect();
        // (So that it has a probe if all others are refused.)
        let first = format!("{}:main", shown(&self.binary));
        let ballast = self.ballast().take(if plain { BALLAST as usize } else { 0 });
        let mut tool = Process::start(bench.load(example("malloc")).arg(&first).args(ballast).args(names.keys()));
        assert!(tool.line().starts_with("attached"), "the tool has no probe");
        let target = bench.target(&self.binary);
        let mut command = bench.command("timeout");
        command.args(["-sKILL", SECONDS_MAX, "setarch", "-R"]).arg(target.get_program());
        command.args(target.get_args()).args(words).args(strict());
        let output = Batch::output(&mut command);
        let (_, lines, errors) = tool.finish();
        let refused = errors.iter().filter_map(|line| {
            let (name, _) = line.strip_prefix("malloc: ")?.rsplit_once(": ")?;
            names.get(name)
        });
        let refused: BTreeSet<Probe> = refused.copied().collect();
        let accepted = probes.iter().filter(|probe| !refused.contains(probe));
        let mut counts: BTreeMap<Probe, u64> = accepted.map(|probe| (*probe, 0)).collect();
        for line in &lines {
            if let [_, name, count] = line.split(' ').collect::<Vec<_>>()[..]
                && let Some(probe) = names.get(name)
            {
                *counts.entry(*probe).or_default() += count.parse::<u64>().expect("a count");
            }
        }
        Run { output, counts }
    }

    /// How often single steps come to each byte of the code, and what the victim prints meanwhile.
    fn stepped(&self) -> (Vec<u32>, String) {
        let path = self.binary.with_extension("counts");
        let output = self.alone(&["count".to_owned(), shown(&path).to_owned()]);
        let bytes = std::fs::read(&path).unwrap_or_default();
        let counts =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes"))).collect();
        (counts, output)
    }

    /// Runs it alone and with probes, and compares.
    pub(crate) fn run(&self, bench: &Bench, tally: &mut Tally) {
        let probes = self.draw(&mut random_of_seed(!self.seed));
        let expected = self.alone(&[]);
        let signals = expected.lines().last().and_then(|line| line.strip_prefix("end ")?.parse::<u64>().ok());
        let Some(signals) = signals else {
            panic!("seed {}: alone the victim fails: {}", self.seed, last(&expected))
        };
        tally.signals += signals;
        let run = self.probed(bench, &probes, self.seed % 4 < 2, &[]);
        tally.functions += self.functions.len() as u64;
        tally.instructions += self.instructions.len() as u64;
        tally.returns += probes.iter().filter(|probe| probe.ret).count() as u64;
        tally.probes += probes.iter().filter(|probe| !probe.ret).count() as u64;
        tally.accepted += run.counts.len() as u64;
        tally.hits += run.counts.values().sum::<u64>();
        if run.output == expected {
            if self.seed % COUNTS_EACH == 1 {
                self.compare_counts(bench, &run, &expected, tally);
            }
        } else {
            let findings = shrink::findings(self, bench, &probes, &expected, &run.output, FINDINGS_MAX);
            let is_known = agent_cannot_handle_faults(bench);
            let in_stub = |finding: &String| is_known && finding.contains("`  rip - fault 0 0` became");
            let (known, new): (Vec<_>, Vec<_>) = findings.into_iter().partition(in_stub);
            tally.in_stubs += known.len() as u64;
            tally.findings.extend(new);
        }
    }

    /// Removes what was built.
    pub(crate) fn remove(self) {
        let _ = std::fs::remove_file(&self.binary);
        let _ = std::fs::remove_file(self.binary.with_extension("counts"));
    }

    fn compare_counts(&self, bench: &Bench, run: &Run, expected: &str, tally: &mut Tally) {
        let (steps, output) = self.stepped();
        if output != expected {
            let differs = output.lines().zip(expected.lines()).find(|(a, b)| a != b);
            tally.findings.push(format!("single steps change the victim (a mistake of the test): {differs:?}"));
            return;
        }
        for (probe, count) in run.counts.iter().filter(|(probe, _)| !probe.ret) {
            let instruction = self.instructions[probe.instruction];
            let at = instruction.offset.checked_sub(self.code_offset).map(|at| at as usize);
            let Some(steps) = at.and_then(|at| steps.get(at)).filter(|_| instruction.stepped) else { continue };
            tally.compared += 1;
            if u64::from(*steps) != *count {
                let near = |other: &&Probe| {
                    let offset = self.instructions[other.instruction].offset;
                    offset.abs_diff(instruction.offset) < NEAR_BYTES
                };
                let near: Vec<Probe> = run.counts.keys().filter(near).copied().collect();
                let text = shrink::function_text(self, instruction.function, &near);
                tally.findings.push(format!(
                    "the probe at {:#x} in function {} counts {count}, single steps {steps}\n{text}{}",
                    instruction.offset,
                    instruction.function,
                    shrink::tactics(self, bench, &near)
                ));
            }
        }
    }
}

/// Whether that was so in a process that has just run: the server says why.
fn agent_cannot_handle_faults(bench: &Bench) -> bool {
    const LINES: usize = 1000;
    let log = std::fs::read_to_string(bench.directory().join("server.log")).unwrap_or_default();
    log.lines().rev().take(LINES).any(|line| line.contains("handlers of faults may find stubs"))
}

/// The end of a text.
pub(crate) fn last(text: &str) -> &str {
    let from = text.len().saturating_sub(400);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[from..]
}
