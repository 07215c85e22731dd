//! Answers how long a verifier takes over the programs of Debian's libbpf-tools; `cargo xtask bench verify` asks.
//!
//! `verifiers WHO` (kernel, ring3 or prevail) says `ready`, then answers each line:
//!
//! - `list`: a line `OBJECT PROGRAM TOOL NAME` per program, the first two being numbers, then `end`.
//! - `prepare OBJECT PROGRAM`: `ready`; what `verify` would do before it asks is done.
//! - `verify OBJECT PROGRAM`: `VERDICT NANOSECONDS PROCESSED STATES`, the verdict being `accepts`, `refuses` or `cannot`.
//! - `memory` (ring3): bytes added at most while all programs are verified, those added once all are, and those added at
//!   most by one program.
//!
//! Objects are read, fitted to the kernel and given their maps before the clock starts. (No verifier panics but `prevail`;
//! this ends then, and who asked knows.)

#[path = "../../tests/kernel/mod.rs"]
mod kernel;
#[path = "../../tests/calls/raw_bpf.rs"]
mod raw_bpf;
#[path = "../../tests/second_opinion/mod.rs"]
mod second_opinion;

use std::io::{BufRead, Write};
use std::time::Instant;

use kernel::LoadedMaps;
use ring3_generate::Map;
use ring3_judge::{Judge, PolicySet};
use ring3_object::{Kernel, MapDef, Object, Program, Settings, embedded};
use ring3_tests::{kernel_configuration, libbpf_tools};
use ring3_verifier::verify;
use second_opinion::{Opinion, ask};

const USAGE: &str = "usage: verifiers kernel|ring3|prevail; `cargo xtask bench verify` is what runs it";

type Failure = Box<dyn std::error::Error>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Kernel,
    Ring3,
    Prevail,
}

/// What was said of a program, and what that took.
#[derive(Default)]
struct Answer {
    verdict: &'static str,
    ns: u64,
    processed: u64,
    states: u64,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Answer { verdict, ns, processed, states } = self;
        write!(f, "{verdict} {ns} {processed} {states}")
    }
}

/// An object, and its maps if the kernel is asked.
struct Ready {
    number: usize,
    object: Object,
    loaded: Option<LoadedMaps>,
}

struct Verifier {
    who: Who,
    types: Kernel,
    settings: Settings,
    policies: PolicySet,
    /// Tools and bytes of the objects in them.
    files: Vec<(String, Vec<u8>)>,
    /// The object that was asked about last.
    ready: Option<Ready>,
}

impl Verifier {
    fn new(who: Who) -> Result<Verifier, Failure> {
        let types = Kernel::parse(std::fs::read("/sys/kernel/btf/vmlinux")?)?;
        let (release, configuration) = kernel_configuration();
        let processors = std::thread::available_parallelism()?.get() as u32;
        let inside = |(tool, bytes): &(String, Vec<u8>)| -> Vec<(String, Vec<u8>)> {
            embedded(bytes).map(|object| (tool.clone(), object.to_vec())).collect()
        };
        Ok(Verifier {
            who,
            settings: Settings::of_kernel(&release, &configuration),
            policies: PolicySet::new(&types, processors),
            types,
            files: libbpf_tools().iter().flat_map(inside).collect(),
            ready: None,
        })
    }

    fn object(&self, number: usize) -> Result<Object, Failure> {
        let (_, bytes) = self.files.get(number).ok_or("no such object")?;
        Ok(Object::load(bytes, &self.types, &self.settings)?)
    }

    /// Makes an object ready, unless it is.
    fn prepare(&mut self, number: usize) -> Result<(), Failure> {
        if self.ready.as_ref().is_none_or(|ready| ready.number != number) {
            let object = self.object(number)?;
            let loaded = (self.who == Who::Kernel).then(|| LoadedMaps::of(&object)).transpose()?;
            self.ready = Some(Ready { number, object, loaded });
        }
        Ok(())
    }

    fn list(&self) -> Result<String, Failure> {
        let mut out = String::new();
        for (number, (tool, _)) in self.files.iter().enumerate() {
            for (place, program) in self.object(number)?.programs.iter().enumerate() {
                out += &format!("{number} {place} {tool} {}\n", program.name);
            }
        }
        Ok(out + "end")
    }

    fn verify(&mut self, object: usize, program: usize) -> Result<Answer, Failure> {
        self.prepare(object)?;
        let ready = self.ready.as_mut().ok_or("nothing is ready")?;
        let program = ready.object.programs.get(program).ok_or("no such program")?;
        Ok(match self.who {
            Who::Kernel => by_kernel(ready.loaded.as_mut().ok_or("no maps")?, &ready.object, program),
            Who::Ring3 => by_ring3(&Judge::new(&self.policies, &ready.object), program),
            Who::Prevail => by_prevail(&ready.object, program),
        })
    }

    fn memory(&self) -> Result<String, Failure> {
        let objects: Vec<Object> =
            (0..self.files.len()).map(|number| self.object(number)).collect::<Result<_, _>>()?;
        let judges: Vec<Judge> = objects.iter().map(|object| Judge::new(&self.policies, object)).collect();
        let (begin, mut peak, mut most) = (resident("VmRSS")?, 0, 0);
        for (judge, object) in judges.iter().zip(&objects) {
            for program in &object.programs {
                let before = resident("VmRSS")?;
                // The peak becomes what is in use now.
                std::fs::write("/proc/self/clear_refs", "5")?;
                by_ring3(judge, program);
                let highest = resident("VmHWM")?;
                peak = peak.max(highest.saturating_sub(begin));
                most = most.max(highest.saturating_sub(before));
            }
        }
        Ok(format!("{peak} {} {most}", resident("VmRSS")?.saturating_sub(begin)))
    }

    fn answer(&mut self, line: &str) -> Result<String, Failure> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["list"] => self.list(),
            ["verify", object, program] => Ok(self.verify(object.parse()?, program.parse()?)?.to_string()),
            ["prepare", object, _] => {
                self.prepare(object.parse()?)?;
                Ok("ready".into())
            }
            ["memory"] if self.who == Who::Ring3 => self.memory(),
            _ => Err(format!("{line:?} is no question").into()),
        }
    }
}

/// A field of `/proc/self/status`, bytes.
fn resident(field: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
    let kib: u64 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse()?;
    Ok(kib * 1024)
}

fn by_kernel(loaded: &mut LoadedMaps, object: &Object, program: &Program) -> Answer {
    match loaded.load(object, program) {
        Ok(stats) => Answer {
            verdict: "accepts",
            ns: stats.usec * 1000,
            processed: stats.insns_processed,
            states: stats.total_states,
        },
        Err(_) => Answer { verdict: "refuses", ..Answer::default() },
    }
}

fn by_ring3(judge: &Judge<'_>, program: &Program) -> Answer {
    let policy = judge.policy(program);
    let (ns, verdict) = judge.ask(program, policy, |input| {
        let begun = Instant::now();
        let verdict = verify(input);
        (begun.elapsed().as_nanos() as u64, verdict)
    });
    let (verdict, statistics) = match verdict {
        Ok(verified) => ("accepts", verified.statistics()),
        Err(report) => ("refuses", report.statistics),
    };
    Answer { verdict, ns, processed: statistics.processed, states: statistics.states }
}

fn by_prevail(object: &Object, program: &Program) -> Answer {
    let map = |map: &MapDef| Map {
        map_type: map.map_type,
        key_bytes: map.key_size,
        value_bytes: map.value_size,
        entries: map.max_entries.max(1),
        constant: None,
    };
    let maps: Vec<Map> = object.maps.iter().map(map).collect();
    let begun = Instant::now();
    let opinion = ask(&program.insns, &program.section, &maps);
    let ns = begun.elapsed().as_nanos() as u64;
    let verdict = match opinion {
        Opinion::Accepts => "accepts",
        Opinion::Refuses => "refuses",
        Opinion::Cannot => "cannot",
    };
    Answer { verdict, ns, ..Answer::default() }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let who = match arguments.first().map(String::as_str) {
        Some("kernel") => Who::Kernel,
        Some("ring3") => Who::Ring3,
        Some("prevail") => Who::Prevail,
        _ => return Err(USAGE.into()),
    };
    let mut verifier = Verifier::new(who)?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        println!("{}", verifier.answer(&line?)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}
