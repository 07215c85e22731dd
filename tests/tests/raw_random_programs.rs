//! Random programs: what is accepted does no wrong, and the kernel and ring3 accept the same.
//!
//! `ring3_generate` writes programs that are right or wrong by little. Each gets the kernel's verdict, which needs root
//! (`random_programs/raw_kernel.rs`), and ring3's; what either accepts is run in the judging interpreter, in
//! random worlds (`random_programs/judge.rs`), and must not fault. A fault in what the kernel accepts is a mistake of the
//! interpreter, or one of the kernel's (`random_programs/reasons.rs` has those that are understood). Some are also
//! shown to `prevail` (`second_opinion/mod.rs`), whose opinion is printed and binds nobody.
//!
//! What ring3 accepts must be accepted too if no path ends before its end. There are two kinds of programs: long ones that do
//! all that there is, and short ones in which paths meet.
//!
//! Of what should not be the test makes a small program that shows it and prints it with seed and number.
//!
//! The usual programs are always the same. `RING3_SEED=S RING3_PROGRAMS=N` judges programs 0 to N of another
//! seed, `RING3_PROGRAM=P` one alone.

mod random_programs;
#[path = "calls/raw_bpf.rs"]
#[expect(dead_code, reason = "programs are only loaded here")]
mod raw_bpf;
mod second_opinion;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use random_programs::judge::{self, AllPaths};
use random_programs::opinion::{is_simple, opinion};
use random_programs::raw_kernel::{Kernel, message, refused_at};
use random_programs::reasons::{explain_fault, kernel_alone_refuses, ring3_alone_refuses};
use ring3_generate::{Program, joins, program, shrink, text};
use ring3_interp::shadow::{Fault, MapSpec};
use ring3_tests::is_root;
use ring3_verifier::Verified;

/// Programs when nothing else is said.
const PROGRAMS_USUAL: u64 = 5000;
/// The same, of short ones in which paths meet.
const JOINS_USUAL: u64 = 2000;
const SEED_USUAL: u64 = 1;
/// Random worlds that a program runs in.
const INPUTS: u64 = 16;
/// What is found that should not be: so many are shrunk and shown.
const FINDINGS_MAX: usize = 5;
/// Programs that a thread takes at a time.
const AT_A_TIME: u64 = 64;
/// One program in so many is shown to `prevail`.
const OPINION_EVERY: u64 = 64;

/// What the sides say to a program; the kernel may not be asked.
struct Verdicts {
    kernel: Option<bool>,
    ring3: Result<Verified, String>,
}

/// What should not be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// The kernel accepts it and it faults: the interpreter's mistake, or the kernel's.
    KernelAcceptsFault(Fault),
    /// Ring3 accepts it and it faults.
    Ring3AcceptsFault(Fault),
    /// Ring3 accepts what the kernel refuses with this message.
    KernelAloneRefuses(String),
    /// Ring3 refuses with this message what the kernel accepts.
    Ring3AloneRefuses(String),
    /// Ring3 accepts what it refuses with this message if no path ends before its end.
    EndsTooEarly(String),
}

impl Finding {
    /// Whether another shows the same: instructions and numbers may differ.
    fn is_as(&self, other: &Finding) -> bool {
        let words = |text: &str| -> String { text.chars().filter(|c| !c.is_ascii_hexdigit()).collect() };
        match (self, other) {
            (Finding::KernelAcceptsFault(a), Finding::KernelAcceptsFault(b))
            | (Finding::Ring3AcceptsFault(a), Finding::Ring3AcceptsFault(b)) => {
                std::mem::discriminant(&a.wrong) == std::mem::discriminant(&b.wrong)
            }
            (Finding::KernelAloneRefuses(a), Finding::KernelAloneRefuses(b))
            | (Finding::Ring3AloneRefuses(a), Finding::Ring3AloneRefuses(b))
            | (Finding::EndsTooEarly(a), Finding::EndsTooEarly(b)) => words(a) == words(b),
            _ => false,
        }
    }
}

/// What came out, counted.
#[derive(Default)]
struct Counts {
    by_name: BTreeMap<String, u64>,
}

impl Counts {
    fn add(&mut self, name: impl Into<String>) {
        *self.by_name.entry(name.into()).or_default() += 1;
    }

    fn get(&self, name: &str) -> u64 {
        self.by_name.get(name).copied().unwrap_or(0)
    }

    fn join(&mut self, other: Counts) {
        for (name, count) in other.by_name {
            *self.by_name.entry(name).or_default() += count;
        }
    }
}

/// The verifiers that are compared.
struct Comparison {
    /// Writes a program by its seed and number.
    writes: fn(u64, u64) -> Program,
    kernel: Option<Kernel>,
    specs: Vec<MapSpec>,
}

impl Comparison {
    fn new(writes: fn(u64, u64) -> Program) -> Comparison {
        let kernel = is_root().then(|| Kernel::new().unwrap_or_else(|errno| panic!("maps: {errno:?}")));
        if kernel.is_none() {
            println!("SKIPPED IN PART: comparing with the kernel needs root");
        }
        Comparison { writes, kernel, specs: judge::specs() }
    }

    fn verdicts(&self, program: &Program) -> Verdicts {
        Verdicts {
            kernel: self.kernel.as_ref().map(|kernel| kernel.accepts(program)),
            ring3: judge::verdict(program),
        }
    }

    /// The one place that says what verdicts mean.
    fn weigh(&self, program: &Program, verdicts: &Verdicts, counts: &mut Counts) -> Option<Finding> {
        let kernel = verdicts.kernel;
        let ran = judge::run(program, &self.specs, INPUTS);
        if let Some(verdict) = kernel {
            counts.add(if verdict { "accepted by the kernel" } else { "refused by the kernel" });
        }
        match (&ran, kernel) {
            (Err(_), Some(false)) => counts.add("refused by the kernel, and faults"),
            (Ok(0), _) => counts.add("given up by the interpreter"),
            _ => {}
        }
        if let (Err(fault), true) = (&ran, kernel == Some(true)) {
            match explain_fault(program, fault) {
                Some(reason) => counts.add(reason),
                None => return Some(Finding::KernelAcceptsFault(fault.clone())),
            }
        }
        if let (Err(fault), true) = (&ran, verdicts.ring3.is_ok()) {
            return Some(Finding::Ring3AcceptsFault(fault.clone()));
        }
        if verdicts.ring3.is_ok() {
            match judge::all_paths(program) {
                AllPaths::Agree => {}
                AllPaths::AddressIsNumber => {
                    counts.add("an address that was fetched is a number where all numbers were seen")
                }
                AllPaths::Refused(refusal) => return Some(Finding::EndsTooEarly(refusal)),
            }
        }
        match (kernel, &verdicts.ring3) {
            (Some(false), Ok(verified)) => {
                let log = self.kernel.as_ref().and_then(|kernel| kernel.judge(program).err()).unwrap_or_default();
                let message = message(&log);
                if refused_at(&log).is_some_and(|at| !verified.is_live(at)) {
                    counts.add("the kernel refuses what we know is never reached");
                    return None;
                }
                match kernel_alone_refuses(program, &message) {
                    Some(reason) => counts.add(reason),
                    None => return Some(Finding::KernelAloneRefuses(message)),
                }
            }
            (Some(true), Err(message)) => match ring3_alone_refuses(program, message) {
                Some(reason) => counts.add(reason),
                None => return Some(Finding::Ring3AloneRefuses(message.clone())),
            },
            _ => {}
        }
        None
    }

    fn judge(&self, program: &Program, counts: &mut Counts) -> Option<Finding> {
        self.weigh(program, &self.verdicts(program), counts)
    }

    /// What `prevail` says, beside the others.
    fn ask_for_opinion(&self, program: &Program, verdicts: &Verdicts, counts: &mut Counts) {
        let verdict = match verdicts.kernel {
            Some(true) => "the kernel accepts",
            Some(false) => "the kernel refuses",
            None => "the kernel is not asked",
        };
        let faults = if judge::run(program, &self.specs, INPUTS).is_err() { ", it faults" } else { "" };
        counts.add(format!("prevail {} what {verdict}{faults}", opinion(program)));
    }

    /// A finding at its smallest.
    fn explained(&self, seed: u64, number: u64, found: &Finding) -> String {
        let mut shows = |candidate: &Program| {
            self.judge(candidate, &mut Counts::default()).is_some_and(|other| other.is_as(found))
        };
        let small = shrink((self.writes)(seed, number), &mut shows);
        let found = self.judge(&small, &mut Counts::default());
        let opinion = if is_simple(&small) { format!("; prevail {} it", opinion(&small)) } else { String::new() };
        format!(
            "RING3_SEED={seed} RING3_PROGRAM={number}, at its smallest, of program type {}:\n{}{found:?}{opinion}\n",
            small.prog_type,
            text(&small.insns)
        )
    }
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

#[test]
fn what_is_accepted_does_no_wrong_and_the_kernel_accepts_the_same() {
    judge_all(&Comparison::new(program), PROGRAMS_USUAL);
}

#[test]
fn where_ways_meet_what_is_accepted_does_no_wrong_and_the_kernel_accepts_the_same() {
    judge_all(&Comparison::new(joins), JOINS_USUAL);
}

fn judge_all(comparison: &Comparison, usual: u64) {
    let program = comparison.writes;
    let seed = number_of("RING3_SEED").unwrap_or(SEED_USUAL);
    let alone = number_of("RING3_PROGRAM");
    let first = alone.unwrap_or(0);
    let end = alone.map_or_else(|| number_of("RING3_PROGRAMS").unwrap_or(usual), |number| number + 1);
    if alone.is_some() {
        println!("{}", text(&program(seed, first).insns));
    }
    let (next, found) = (AtomicU64::new(first), Mutex::new(vec![]));
    let all = Mutex::new(Counts::default());
    let started = Instant::now();
    let work = || {
        let mut counts = Counts::default();
        loop {
            let start = next.fetch_add(AT_A_TIME, Ordering::Relaxed);
            for number in start..(start + AT_A_TIME).min(end) {
                let subject = program(seed, number);
                let verdicts = comparison.verdicts(&subject);
                if number % OPINION_EVERY == 0 && is_simple(&subject) {
                    comparison.ask_for_opinion(&subject, &verdicts, &mut counts);
                }
                if let Some(finding) = comparison.weigh(&subject, &verdicts, &mut counts) {
                    found.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((number, finding));
                }
            }
            if start + AT_A_TIME >= end {
                break;
            }
        }
        all.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).join(counts);
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let counts = all.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let rate = (end - first) as f64 / started.elapsed().as_secs_f64();
    println!("{} programs from RING3_SEED={seed} on, {rate:.0} a second", end - first);
    counts.by_name.iter().for_each(|(name, count)| println!("{count:9} {name}"));
    let mut found = found.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    found.sort_by_key(|(number, _)| *number);
    // One of each kind.
    let mut kinds: Vec<(u64, Finding)> = vec![];
    for (number, finding) in &found {
        if !kinds.iter().any(|(_, known)| known.is_as(finding)) {
            kinds.push((*number, finding.clone()));
        }
    }
    // What is unsafe first.
    kinds.sort_by_key(|(_, finding)| match finding {
        Finding::Ring3AcceptsFault(_) | Finding::EndsTooEarly(_) => 0,
        Finding::KernelAcceptsFault(_) => 1,
        Finding::Ring3AloneRefuses(_) => 2,
        Finding::KernelAloneRefuses(_) => 3,
    });
    for (number, kind) in &kinds {
        let count = found.iter().filter(|(_, finding)| finding.is_as(kind)).count();
        println!("{count:9} as program {number}: {kind:?}");
    }
    let shown: Vec<String> = kinds
        .iter()
        .take(FINDINGS_MAX)
        .map(|(number, finding)| comparison.explained(seed, *number, finding))
        .collect();
    assert!(found.is_empty(), "{} programs, of {} kinds:\n{}", found.len(), kinds.len(), shown.join("\n"));
    let many = alone.is_none() && end >= PROGRAMS_USUAL && comparison.kernel.is_some();
    let share = counts.get("accepted by the kernel") as f64 / (end - first) as f64;
    assert!(!many || (0.3..0.8).contains(&share), "the kernel accepts {share:.2}: too many or too few");
    assert!(!many || counts.get("refused by the kernel, and faults") > 0, "the interpreter sees no fault");
}
