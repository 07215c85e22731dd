//! Each target on the inputs of its corpus, and on generated ones. `RING3_SEED=S RING3_INPUTS=N` generates N of another seed,
//! `RING3_INPUT=I` one alone, which `RING3_SAVE=FILE` writes to a file.

use std::path::Path;
use std::time::Instant;

use ring3_fuzz::{Random, TARGETS, Target, target_of};

const SEED_USUAL: u64 = 1;
const INPUTS_USUAL: u64 = 3000;
/// A tenth of the inputs are bytes of no generator.
const NOISE_ONE_IN: u64 = 10;

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

fn noise(random: &mut Random) -> Vec<u8> {
    let count = random.below(200);
    (0..count).map(|_| if random.one_in(2) { random.next() as u8 } else { random.edge() as u8 }).collect()
}

/// Says which input it was if something panics.
struct Told(String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let files = std::fs::read_dir(directory).into_iter().flatten();
    let mut inputs: Vec<(String, Vec<u8>)> = files
        .map(|file| {
            let path = file.expect("the directory can be read").path();
            (path.display().to_string(), std::fs::read(&path).expect("the file can be read"))
        })
        .collect();
    inputs.sort();
    inputs
}

fn smoke(name: &str) {
    let target = target_of(name).expect("there is such a target");
    let regressions = corpus(target);
    for (path, input) in &regressions {
        let _told = Told(format!("{name}: {path}"));
        (target.run)(input);
    }
    let seed = number_of("RING3_SEED").unwrap_or(SEED_USUAL);
    let alone = number_of("RING3_INPUT");
    let numbers = alone.map_or(0..number_of("RING3_INPUTS").unwrap_or(INPUTS_USUAL), |input| input..input + 1);
    let (began, count) = (Instant::now(), numbers.end - numbers.start);
    let mut slowest = (0, 0);
    for number in numbers {
        let mut random = Random::new(seed, number);
        let is_noise = random.one_in(NOISE_ONE_IN);
        let input = if is_noise { noise(&mut random) } else { (target.make)(&mut random) };
        if let (Some(file), Some(_)) = (std::env::var_os("RING3_SAVE"), alone) {
            std::fs::write(file, &input).expect("the file can be written");
        }
        let _told = Told(format!("{name}: RING3_SEED={seed} RING3_INPUT={number}"));
        let began = Instant::now();
        (target.run)(&input);
        slowest = slowest.max((began.elapsed().as_millis(), number));
    }
    let (took, (slowest, input)) = (began.elapsed().as_secs_f64(), slowest);
    println!(
        "{name}: {} files of the corpus, {count} inputs in {took:.1} s; input {input} took {slowest} ms",
        regressions.len()
    );
}

macro_rules! tests { ($($test:ident $name:literal,)*) => {
    $(#[test] fn $test() { smoke($name); })*

    #[test]
    fn every_target_has_a_test_and_a_fuzz_target() {
        let tested = [$($name),*];
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names, tested);
        for name in names {
            let glue = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("libfuzzer/fuzz_targets/{name}.rs"));
            assert!(glue.exists(), "{}", glue.display());
        }
    }
} }

tests! {
    elf_files_of_any_bytes_are_read_or_refused "elf",
    unwind_tables_of_any_bytes_are_read_or_refused "unwind",
    targets_of_indirect_jumps_are_found_in_any_code "jumps",
    sites_in_any_file_are_planned_or_refused "sites",
    types_of_any_bytes_are_read_or_refused "btf",
    object_files_of_any_bytes_are_read_or_refused "object",
    plans_of_any_code_keep_its_meaning "plan",
    text_of_proc_is_read_whatever_processes_call_themselves "proc",
    requests_of_any_bytes_are_read_or_refused "control",
    what_is_said_of_filters_holds_for_each_call "filters",
    filters_of_events_of_any_text_are_read_or_refused "expressions",
    accepted_programs_do_no_wrong "program",
    compiled_files_of_any_bytes_are_read_or_refused "aot",
    scribbled_maps_lead_no_operation_astray "maps",
    calls_of_a_hostile_loader_are_answered "calls",
}
