//! Random sequences of operations on maps: this kernel and ring3 must give the same.
//!
//! A sequence (`random_maps/sequence.rs`: the text; `random_maps/generate.rs`: from a seed) makes a map with random
//! attributes and works on it by bpf(2): elements, batches, freezing, information, pointers that lead nowhere. In
//! some a program works on it as well: a generic one on a uprobe that does what a record in an array says
//! (`random_maps/raw_program.rs`), in a victim of its own. Sequences are carried out (`random_maps/execute.rs`)
//! by a process of many, once on the kernel, which needs root, and once under ring3; their lines are compared.
//! `random_maps/kinds.rs` is the table of types. Without root ring3 runs them alone, and must come to each one's end.
//!
//! Of a difference the test makes the smallest sequence that shows it (`random_maps/shrink.rs`) and prints it with
//! its seed. Once the cause is gone, it belongs into a file of `tests/corpus/maps`: those run first, always.
//!
//! The usual seeds are always the same, so that a change is judged by what it changes. `RING3_SEED=N` begins elsewhere,
//! with `RING3_SEQUENCES=N` sequences in all; sequence n of seed s is sequence 0 of seed s + n.

mod calls;
mod random_maps;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use random_maps::execute::Machine;
use random_maps::raw_calls::stay_on_one_cpu;
use random_maps::raw_program::Victim;
use random_maps::sequence::{Step, parse, text};
use random_maps::{generate, shrink};
use ring3_tests::{Bench, Process, is_root, root, wait_until};

/// What starts a line of ours; the rest is the test harness's.
const MARK: &str = "| ";
/// Tells a process which file of sequences to carry out, and the victim's process where to connect.
const SEQUENCES: &str = "RING3_TEST_SEQUENCES";
const VICTIM: &str = "RING3_TEST_VICTIM";
/// Sequences when nothing else is said.
const SEQUENCES_USUAL: u64 = 2000;
/// Sequences that one process carries out.
const AT_A_TIME: usize = 100;
/// As [`AT_A_TIME`], of those that may be smaller than one that fails: the first that fails is enough.
const CANDIDATES_AT_A_TIME: usize = 20;
/// Differences that are shrunk and shown.
const DIFFERENCES_MAX: usize = 5;
/// Where the usual seeds begin.
const SEED_USUAL: u64 = 1;

// ---- in processes of their own ----

/// Not a test: carries out a file of sequences, with [`victim_process`] beside it if there are programs.
#[test]
fn executor_process() {
    let Some(file) = std::env::var_os(SEQUENCES) else { return };
    let text = std::fs::read_to_string(&file).expect("the sequences are there");
    let sequences: Vec<Vec<Step>> = text.split("--\n").map(|text| parse(text).expect("a sequence")).collect();
    let listener = has_programs(&sequences).then(|| UnixListener::bind(socket_of(Path::new(&file))).expect("bound"));
    println!("{MARK}ready");
    let mut victim = listener.and_then(|listener| Victim::new(listener.accept().expect("a victim").0).ok());
    let mut machine = Machine::new(victim.as_mut());
    for (number, steps) in sequences.iter().enumerate() {
        machine.run(steps, |step, text| println!("{MARK}{number} {step} {text}"));
    }
}

/// Not a test: the process in which programs run.
#[test]
fn victim_process() {
    let Some(path) = std::env::var_os(VICTIM) else { return };
    // What is in which CPU's copy of a value is compared.
    stay_on_one_cpu();
    // The executor ends when it has done, and with it the connection.
    let _ = Victim::serve(UnixStream::connect(path).expect("the executor listens"));
}

// ---- running them ----

fn has_programs(sequences: &[Vec<Step>]) -> bool {
    sequences.iter().flatten().any(Step::is_in_program)
}

fn socket_of(file: &Path) -> PathBuf {
    file.with_extension("socket")
}

/// A directory of this test, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ring3-random-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("made");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What each step of each sequence gave on a bench.
type Given = Vec<Vec<String>>;

fn given(bench: &Bench, sequences: &[Vec<Step>]) -> Given {
    let directory = Directory::new();
    let file = directory.0.join("sequences");
    let all: Vec<String> = sequences.iter().map(|steps| text(steps)).collect();
    std::fs::write(&file, all.join("--\n")).expect("written");
    let this = std::env::current_exe().expect("this file");
    let mut command = bench.load(&this);
    command.args(["--exact", "executor_process", "--nocapture", "--test-threads=1"]).env(SEQUENCES, &file);
    let mut executor = Process::start(&mut command);
    while !executor.line().ends_with("| ready") {}
    let victim = has_programs(sequences).then(|| {
        let mut command = bench.target(&this);
        command.args(["--exact", "victim_process", "--nocapture", "--test-threads=1"]);
        Process::start(command.env(VICTIM, socket_of(&file)))
    });
    let (code, lines, errors) = executor.finish();
    if code != Some(0) {
        println!("the process that carries sequences out ended with {code:?}: {errors:?}");
    }
    drop(victim.map(Process::finish));
    let mut given: Given = vec![vec![]; sequences.len()];
    for line in lines.iter().filter_map(|line| line.split_once(MARK)) {
        let mut words = line.1.splitn(3, ' ');
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
        if let (Some(sequence), Some(step)) = (number(), number())
            && given[sequence].len() == step
        {
            given[sequence].push(words.next().unwrap_or_default().to_owned());
        }
    }
    given
}

/// The kernel and ring3, side by side.
struct Sides {
    kernel: Option<Bench>,
    ring3: Bench,
}

impl Sides {
    fn new() -> Sides {
        Sides { kernel: is_root().then(Bench::native), ring3: Bench::ring3() }
    }

    /// What both gave.
    fn both(&self, sequences: &[Vec<Step>]) -> (Given, Given) {
        let ours = given(&self.ring3, sequences);
        let kernel = self.kernel.as_ref().map(|kernel| given(kernel, sequences));
        (kernel.unwrap_or_else(|| ours.clone()), ours)
    }

    /// Of which sequences the two differ, or did not come to the end.
    fn differing(&self, sequences: &[Vec<Step>]) -> Vec<usize> {
        let (kernel, ours) = self.both(sequences);
        let all = sequences.iter().zip(kernel.iter().zip(&ours)).enumerate();
        all.filter(|(_, (steps, (kernel, ours)))| kernel != ours || ours.len() != steps.len())
            .map(|(number, _)| number)
            .collect()
    }

    /// A difference at its smallest, with what the two gave.
    fn explained(&self, steps: &[Step]) -> String {
        if self.differing(&[steps.to_vec()]).is_empty() {
            return "only after those before it: what they did to their process is seen in it\n".to_owned();
        }
        let small = shrink::shrink(steps.to_vec(), |candidates| {
            let mut parts = candidates.chunks(CANDIDATES_AT_A_TIME).enumerate();
            parts.find_map(|(part, some)| Some(part * CANDIDATES_AT_A_TIME + self.differing(some).first()?))
        });
        let (kernel, ours) = self.both(std::slice::from_ref(&small));
        let mut report = text(&small) + "with\n";
        for (number, step) in small.iter().enumerate() {
            let of = |given: &Given| given[0].get(number).map_or("nothing", String::as_str).to_owned();
            let (kernel, ours) = (of(&kernel), of(&ours));
            let mark = if kernel == ours { ' ' } else { '!' };
            report += &format!("{mark} {step}\n    kernel {kernel}\n    ring3  {ours}\n");
        }
        report
    }

    /// Runs them all; the first few differences.
    fn check(&self, named: &[(String, Vec<Step>)]) -> Vec<String> {
        let mut found = vec![];
        for part in named.chunks(AT_A_TIME) {
            let sequences: Vec<Vec<Step>> = part.iter().map(|(_, steps)| steps.clone()).collect();
            for number in self.differing(&sequences) {
                if found.len() < DIFFERENCES_MAX {
                    let (name, steps) = &part[number];
                    found.push(format!("{name} shows a difference, at its smallest:\n{}", self.explained(steps)));
                }
            }
        }
        found
    }
}

fn report(found: &[String], advice: &str) {
    assert!(found.is_empty(), "{}\n{advice}", found.join("\n"));
}

/// One at a time: the kernel's probes are in all that run the file.
static TURN: Mutex<()> = Mutex::new(());

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

#[test]
fn maps_give_what_the_kernels_give() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let sides = Sides::new();
    if sides.kernel.is_none() {
        println!("SKIPPED IN PART: comparing with the kernel needs root");
    }
    report(&sides.check(&corpus()), "a file of tests/corpus/maps");
    let count = number_of("RING3_SEQUENCES").unwrap_or(SEQUENCES_USUAL);
    let first = number_of("RING3_SEED").unwrap_or(SEED_USUAL);
    println!("{count} sequences from RING3_SEED={first} on");
    let seeds: Vec<u64> = (0..count).map(|number| first.wrapping_add(number)).collect();
    let named: Vec<(String, Vec<Step>)> = seeds
        .iter()
        .map(|seed| (format!("RING3_SEED={seed} RING3_SEQUENCES=1"), generate::sequence(*seed)))
        .collect();
    report(&sides.check(&named), "once its cause is gone, put the sequence into tests/corpus/maps/NAME.txt");
    // A server that had nothing to do for long enough, while the kernel had, has ended.
    let status = || sides.ring3.status();
    wait_until("the server has let everything go", || status()["maps"].as_array().is_none_or(Vec::is_empty));
}

/// The sequences that once failed, by the names of their files.
fn corpus() -> Vec<(String, Vec<Step>)> {
    let directory = root().join("tests/corpus/maps");
    let mut all: Vec<(String, Vec<Step>)> = std::fs::read_dir(&directory)
        .expect("the corpus is there")
        .flatten()
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).expect("readable");
            let name = entry.file_name().to_string_lossy().into_owned();
            let steps = parse(&text).unwrap_or_else(|line| panic!("{name}: {line}"));
            (name, steps)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

// ---- the test's own parts ----

#[test]
fn a_sequence_is_read_as_it_was_written() {
    for seed in 0..1000 {
        let steps = generate::sequence(seed);
        assert_eq!(parse(&text(&steps)).as_ref(), Ok(&steps), "of seed {seed}");
    }
    for wrong in ["hop", "update key", "update keys=1", "HASH size=4", "lookup key=x", "next key=0xg"] {
        assert_eq!(parse(wrong), Err(wrong.to_owned()));
    }
}

#[test]
fn a_sequence_that_fails_shrinks_to_what_it_fails_for() {
    let steps = (0..).map(generate::sequence).find(|steps| fails(steps) && steps.len() > 20).expect("some seed");
    let small = shrink::shrink(steps, |candidates| candidates.iter().position(|steps| fails(steps)));
    let verbs: Vec<&str> = small.iter().map(|step| step.verb.as_str()).collect();
    assert_eq!(verbs, ["update", "take"]);
    assert!(small.iter().all(|step| step.words.is_empty()), "{}", text(&small));
}

/// As a mistake would be that needs a `take` some time after an `update`.
fn fails(steps: &[Step]) -> bool {
    let update = steps.iter().position(|step| step.verb == "update");
    update.is_some_and(|first| steps[first..].iter().any(|step| step.verb == "take"))
}
