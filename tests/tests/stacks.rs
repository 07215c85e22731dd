//! The stacks that programs take are the true ones, also where there are no frame pointers.

use std::collections::BTreeMap;

use ring3_tests::{Bench, Process, assert_text_is_as_in_its_files, is_root, programs, ready, victim};

/// How many stacks the victim knows of each name.
const KNOWN: [(&str, u32); 16] = [
    ("plain", 2),
    ("framed", 1),
    ("aligned", 1),
    ("qsort", 17),
    ("unwinding", 3),
    ("caught", 1),
    ("signal", 1),
    ("sigaltstack", 1),
    ("vdso", 1),
    ("fault", 1),
    ("no table", 1),
    ("rust", 14),
    ("rust unwinding", 3),
    ("thread", 1),
    ("dlopen", 1),
    ("binding", 1),
];

/// What of the victim's can be probed where it returns.
const RETURNS: [&str; 10] = [
    "deep:ret",
    "framed:ret",
    "tell:ret",
    "compare:ret",
    "throws:ret",
    "catches:ret",
    "handler:ret",
    "all:ret",
    "library:ret",
    "without_table:ret",
];

fn tool(bench: &Bench, binary: &std::path::Path, probes: &[&str]) -> Process {
    let mut tool = Process::start(bench.load(programs().join("stacks")).arg(binary).args(probes));
    assert_eq!(tool.line(), "attached");
    tool
}

/// What the tool says: of each name, how many stacks were as the victim knows them and how many were not; lost records; other stacks.
fn told(tool: &mut Process) -> (BTreeMap<String, (u32, u32)>, Vec<String>, u64) {
    tool.say("go");
    let (mut names, mut lines) = (BTreeMap::new(), vec![]);
    loop {
        let line = tool.line();
        if let Some((lost, others)) = line.split_once(" lost, ") {
            assert_eq!(lost, "0");
            return (names, lines, others.split(' ').next().expect("a word").parse().expect("a number"));
        }
        let (name, counts) = line.split_once(": ").expect("a name");
        let numbers: Vec<u32> = counts.split([' ', ';']).filter_map(|word| word.parse().ok()).collect();
        names.insert(name.to_owned(), (numbers[0], numbers[1]));
        lines.push(line);
    }
}

fn work(mut victim: Process) {
    victim.say("go");
    let marked: u32 = victim.line().parse().expect("a number");
    assert_eq!(marked, KNOWN.iter().map(|(_, count)| count).sum::<u32>());
    let (code, _, errors) = victim.finish();
    assert_eq!((code, errors.len()), (Some(0), 0), "{errors:?}");
}

fn known() -> BTreeMap<String, (u32, u32)> {
    KNOWN.iter().map(|(name, count)| ((*name).to_owned(), (*count, 0))).collect()
}

/// Runs the victim under the tool; `first`: before the tool.
fn check(bench: &Bench, probes: &[&str], first: bool) {
    let binary = bench.victim(programs().join("stacked"));
    let library = bench.victim(programs().join("stacked_library.so"));
    let start = || ready(bench.target(&binary).arg(&library));
    let early = first.then(start);
    let mut tool = tool(bench, &binary, probes);
    work(early.unwrap_or_else(start));
    let (names, lines, others) = told(&mut tool);
    assert_eq!(names, known(), "{lines:#?}");
    assert!(others >= 1);
    let (code, _, errors) = tool.finish();
    assert_eq!((code, errors.len()), (Some(0), 0), "{errors:?}");
}

#[test]
fn stacks_without_frame_pointers_are_those_that_the_program_knows_of() {
    check(&Bench::ring3(), &[], false);
}

#[test]
fn stacks_of_a_program_that_runs_already_are_whole() {
    check(&Bench::ring3(), &[], true);
}

#[test]
fn stacks_show_the_real_return_addresses_where_returns_are_probed() {
    check(&Bench::ring3(), &RETURNS, false);
}

/// Frames of functions that have ended stay in the shadow stack, with slots that the agent's own stack may lie over later.
#[test]
fn unwinders_find_all_frames_however_often_the_stack_was_walked() {
    let bench = Bench::ring3();
    let program = bench.copy(&victim("walking", "gcc", "walking.c", &["-fomit-frame-pointer", "-rdynamic"]));
    let probes = ["walk", "deep", "all"].map(|function| format!("{}:{function}:ret", program.display()));
    let _tool = bench.counting(&probes.each_ref().map(String::as_str));
    let mut target = ready(&mut bench.target(&program));
    target.say("go");
    assert_eq!(target.line(), "128 0");
    assert_eq!(target.finish().0, Some(0));
}

#[test]
fn stacks_of_an_ordinary_users_programs_are_whole() {
    if !is_root() {
        println!("SKIPPED: the other tests do that");
        return;
    }
    check(&Bench::ring3_as(65_534), &RETURNS, true);
}

#[test]
fn the_kernel_does_not_find_these_stacks() {
    if !is_root() {
        println!("SKIPPED: the kernel's half needs root");
        return;
    }
    let bench = Bench::native();
    let binary = bench.victim(programs().join("stacked"));
    let mut tool = tool(&bench, &binary, &[]);
    work(ready(bench.target(&binary).arg(programs().join("stacked_library.so"))));
    let (names, lines, _) = told(&mut tool);
    assert_eq!(names.len(), KNOWN.len());
    assert!(names.values().all(|(same, _)| *same == 0), "{lines:#?}");
}

/// Frames that lead anywhere, and a library that comes and goes: every call is seen, and nothing else happens.
#[test]
fn no_stack_harms_the_process() {
    let bench = Bench::ring3();
    let binary = bench.victim(programs().join("wandering"));
    let probes = ["bare_at", "based_at", "near_at", "kept_at", "loaded_at"];
    let mut tool = tool(&bench, &binary, &probes);
    let mut victim = ready(bench.target(&binary).arg(programs().join("stacked_library.so")).arg("20000"));
    victim.say("go");
    let called: u64 = victim.line().parse().expect("a number");
    let (_, _, taken) = told(&mut tool);
    assert!(called > 100_000);
    // (The other thread has called before this one was told to begin.)
    assert_eq!(taken, called);
    let pid = victim.pid();
    let (code, out, errors) = bench.run(&["detach", &pid.to_string(), "--verify"]);
    assert_eq!(code, Some(0), "{out} {errors}");
    let (code, _, errors) = tool.finish();
    assert_eq!((code, errors.len()), (Some(0), 1), "{errors:?}");
    assert!(errors[0].contains("is let go, because `ring3 detach` asks for that"), "{errors:?}");
    assert_text_is_as_in_its_files(pid);
    assert_eq!(victim.finish().0, Some(0));
}
