//! Random filters of events say the same of random records by the evaluator, by the interpreter, by each compiler and by the kernel;
//! our verifier and the kernel's accept the code of each.
//!
//! `RING3_SEED=S RING3_PROGRAMS=N` tries N filters of another seed, `RING3_PROGRAM=I` one alone.

#[path = "../../pure/filter/tests/random/mod.rs"]
mod random;
#[path = "calls/raw_bpf.rs"]
mod raw_bpf;
#[path = "engine/raw_case.rs"]
mod raw_case;

use std::time::Instant;

use ring3_event::{EventType, Field, Kind, Phase, Record};
use ring3_filter::{EventScope, Typed, parse};
use ring3_generate::Random;
use ring3_isa::assemble;
use ring3_run::Runner;
use ring3_tests::is_root;

use raw_case::{BLINDING, Case, Kernel};

const FILTERS_USUAL: u64 = 1500;
const SEED_USUAL: u64 = 1;
const RECORDS: u64 = 3;

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Everything that runs programs.
struct Engines {
    runner: Runner,
    kernel: Option<Kernel>,
    compilers: Vec<raw_case::Compile>,
}

impl Engines {
    fn new(memory_bytes: usize) -> Engines {
        if !is_root() {
            println!("SKIPPED IN PART: comparing with the kernel needs root");
        }
        Engines {
            runner: Runner::new(1).expect("this machine runs programs"),
            kernel: is_root().then(|| Kernel::new(memory_bytes)),
            compilers: raw_case::compilers(),
        }
    }

    /// Runs a filter on a record everywhere: whether it accepts it.
    fn agree(&mut self, typed: &Typed, program: &str, memory: Vec<u8>, record: &Record<'_>) -> bool {
        let insns = assemble(program).unwrap_or_else(|error| panic!("{error}\n{program}"));
        let case = Case { insns, memory };
        let verified = case.verified().unwrap_or_else(|log| panic!("{log}"));
        let expected = u64::from(typed.evaluate(record));
        assert_eq!(case.interpreted(&verified).result, expected, "interpreted: {record:?}");
        for (compile, options) in self.compilers.iter().flat_map(|compile| BLINDING.map(|options| (compile, options)))
        {
            let left = case.compiled(&verified, &mut self.runner, *compile, &options);
            assert_eq!(left.result, expected, "compiled, {options:?}: {record:?}");
        }
        if let Some(kernel) = &mut self.kernel {
            let left = kernel.run(&case).unwrap_or_else(|why| panic!("the kernel refuses it: {why}"));
            assert_eq!(left.result, expected, "by the kernel: {record:?}");
        }
        expected != 0
    }
}

#[test]
fn random_filters_say_the_same_on_every_engine() {
    let seed = number_of("RING3_SEED").unwrap_or(SEED_USUAL);
    let count = number_of("RING3_PROGRAMS").unwrap_or(FILTERS_USUAL);
    let range = number_of("RING3_PROGRAM").map_or(0..count, |alone| alone..alone + 1);
    let bytes = random::Layout::new(&random::event()).bytes();
    let mut engines = Engines::new(bytes);
    let (mut accepted, mut asked, started) = (0, 0, Instant::now());
    for number in range {
        let mut random = Random::new(seed, number);
        let sample = random::sample(&mut random);
        let layout = random::Layout::new(&sample.of);
        let program = layout.program(&sample.typed);
        for _ in 0..RECORDS {
            let bytes = random::record(&mut random, &sample.of);
            let record = Record::parse(&sample.of, &bytes).expect("it is one");
            let memory = layout.memory(&mut random, &record, &bytes);
            let agree = || engines.agree(&sample.typed, &program, memory, &record);
            let agree = std::panic::AssertUnwindSafe(agree);
            let accepts = std::panic::catch_unwind(agree)
                .unwrap_or_else(|_| panic!("RING3_SEED={seed} RING3_PROGRAM={number}: {}\n{program}", sample.text));
            accepted += u64::from(accepts);
            asked += 1;
        }
    }
    println!("{accepted} of {asked} records were accepted, in {:?}", started.elapsed());
    assert!(count == 1 || accepted * 5 > asked && accepted * 5 < asked * 4, "{accepted} of {asked}");
}

/// How many instructions our verifier goes through.
fn steps(program: &str, bytes: usize) -> u64 {
    let insns = assemble(program).expect("it is a program");
    let case = Case { insns, memory: vec![0; bytes] };
    case.verified().unwrap_or_else(|log| panic!("{log}")).statistics().processed
}

/// Paths have 4096 bytes: a verifier must not go through all of them for each star of a pattern.
#[test]
fn patterns_of_long_texts_are_verified_fast() {
    let path = |name: &str| Field {
        name: name.into(),
        kind: Kind::Text { bytes_max: ring3_event::TEXT_BYTES_MAX, path: true },
        phase: Phase::Entry,
    };
    let of =
        EventType { id: 1, provider: "test".into(), name: "rename".into(), fields: vec![path("old"), path("new")] };
    let layout = random::Layout::new(&of);
    let mut engines = Engines::new(layout.bytes());
    let texts: [&[u8]; 6] = [b"", b"/usr/lib/libc.so.6", b"/etc/passwd", &[b'a'; 4095], b"aXbXc", &[b'/'; 300]];
    let filters = [
        r#"new ~ "*/lib*c?so*6""#,
        r#"old ~ "*a*b*c" || new ~ "*[a-f]*[!g-z]*s*s*w*" || new ~ "*.so.*""#,
        "old == new",
        r#"old ~ "*a" && old !~ "*/*/*/*/*""#,
    ];
    for filter in filters {
        let typed = parse(filter).expect(filter).check(&EventScope::new(&of)).expect(filter);
        let program = layout.program(&typed);
        // (In 4096 rounds of a loop there would be far more than 10000 steps.)
        let steps = steps(&program, layout.bytes());
        assert!(steps < 10_000, "{filter}: {steps} steps");
        for (old, new) in texts.iter().flat_map(|old| texts.iter().map(move |new| (old, new))) {
            let mut bytes = vec![0; of.fixed_bytes() as usize];
            for text in [old, new] {
                bytes.extend_from_slice(text);
                bytes.push(0);
            }
            let record = Record::parse(&of, &bytes).expect("it is one");
            let memory = layout.memory(&mut Random::new(1, 1), &record, &bytes);
            engines.agree(&typed, &program, memory, &record);
        }
    }
}
