//! Probes where no jump has room: what is counted, and that the process's own signals are as they were.

use std::path::{Path, PathBuf};

use ring3_tests::{
    Bench, Counter, Footprint, Process, assert_text_is_as_in_its_files, is_root, ready, victim, wait_until,
};

/// Functions that the victim's counts are of, in that order, and how far behind their beginnings the probes are.
const SPOTS: [(&str, u64); KINDS] =
    [("one_byte", 0), ("entered", 0), ("looping", 0), ("calling", 0), ("prefixed", PREFIX_AT as u64), ("popping", 1)];
const KINDS: usize = 6;
/// Behind `test` and `jz`.
const PREFIX_AT: usize = 4;
/// Which of the counts is of the prefix.
const PREFIXED: usize = 4;

/// For any addresses, and for fixed ones, where the addresses that punned jumps would need are not to be had.
fn victims() -> [PathBuf; 2] {
    let fixed = victim("tight-fixed", "gcc", "tight.c", &["-no-pie", "-fno-pic"]);
    [victim("tight", "gcc", "tight.c", &["-fPIE", "-pie"]), fixed]
}

fn probes_at(binary: &Path, spots: &[(&str, u64)]) -> Vec<String> {
    let bytes = std::fs::read(binary).expect("the victim is readable");
    let elf = ring3_elf::File::parse(&bytes).expect("an ELF file");
    let offset = |name: &str| elf.find(name).and_then(|address| elf.vaddr_to_offset(address)).expect("it is there");
    let probe = |(name, inside): &(&str, u64)| format!("{}:{:#x}", binary.display(), offset(name) + inside);
    spots.iter().map(probe).collect()
}

fn probes(binary: &Path) -> Vec<String> {
    probes_at(binary, &SPOTS)
}

fn counting(bench: &Bench, binary: &Path) -> Counter {
    let probes = probes(binary);
    bench.counting(&probes.iter().map(String::as_str).collect::<Vec<_>>())
}

fn counts(counter: &mut Counter, binary: &Path) -> Vec<u64> {
    let report = counter.report();
    let total = |probe: &String| report.iter().filter(|((_, name), _)| name == probe).map(|(_, count)| count).sum();
    probes(binary).iter().map(total).collect()
}

/// What the victim says that it has called. (`lock` is jumped over every other time.)
fn told(line: &str) -> Vec<u64> {
    let mut told: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a count")).collect();
    told[PREFIXED] /= 2;
    told
}

/// How the spots are instrumented in a process.
fn tactics(bench: &Bench, pid: u32) -> Vec<String> {
    let status = bench.status();
    let target = status["targets"].as_array().into_iter().flatten().find(|target| target["pid"] == pid);
    let sites = target.expect("it is a target")["sites"].as_array().cloned().unwrap_or_default();
    sites.iter().map(|site| site["tactic"].as_str().unwrap_or_default().to_owned()).collect()
}

fn say(process: &mut Process, word: &str) -> String {
    process.say(word);
    process.line_or_end().unwrap_or_default()
}

/// Runs the victim under probes for some words: what it says, and the counts.
fn run(bench: &Bench, binary: &Path, words: &[&str]) -> (Vec<u64>, Vec<u64>) {
    let binary = bench.victim(binary.to_owned());
    let mut counter = counting(bench, &binary);
    let mut process = ready(&mut bench.target(&binary));
    let mut last = String::new();
    for word in words {
        last = say(&mut process, word);
        assert!(!last.is_empty(), "{}: {word} ended it: {:?}", binary.display(), process.wait());
    }
    let (code, _, errors) = process.finish();
    assert_eq!((code, errors.len()), (Some(0), 0), "{errors:?}");
    (told(&last), counts(&mut counter, &binary))
}

fn check(words: &[&str]) {
    for binary in victims() {
        let (told, counted) = run(&Bench::ring3(), &binary, words);
        // (Whether `prefixed` begins at an odd round is not told of each call.)
        let exact = |kind: &usize| *kind != PREFIXED;
        for kind in (0..KINDS).filter(exact) {
            assert_eq!(told[kind], counted[kind], "{}: {words:?}: {}", binary.display(), SPOTS[kind].0);
        }
        assert!(counted[PREFIXED] > 0, "{}: {words:?}", binary.display());
    }
}

#[test]
fn spots_without_room_for_a_jump_are_counted_as_the_program_counts_them() {
    check(&["go", "threads"]);
}

#[test]
fn a_probe_whose_jump_takes_over_another_one_leaves_its_members_in_force() {
    // The first one relies on the second one's bytes, and so makes that wait for an `int3`. Meanwhile the third one is placed, with
    // the fourth one as its member, which is not in the second one's jump.
    let spots = [("before_row", 0), ("row", 0), ("row", 4), ("row", 8)];
    let [binary, _] = victims();
    let bench = Bench::ring3();
    let probes = probes_at(&binary, &spots);
    let mut counter = bench.counting(&probes.iter().map(String::as_str).collect::<Vec<_>>());
    let mut process = ready(&mut bench.target(&binary));
    say(&mut process, "go");
    let counts: Vec<u64> = probes.iter().map(|probe| counter.total(probe)).collect();
    assert_eq!(counts, [101; 4]);
    process.finish();
}

#[test]
fn every_way_in_is_tried() {
    let [any, fixed] = victims();
    let used = |binary: &Path| {
        let bench = Bench::ring3();
        let _counter = counting(&bench, binary);
        let process = ready(&mut bench.target(binary));
        tactics(&bench, process.pid())
    };
    assert!(used(&any).iter().any(|tactic| tactic == "punned jump"), "{:?}", used(&any));
    assert!(used(&fixed).iter().any(|tactic| tactic == "int3"), "{:?}", used(&fixed));
}

#[test]
fn spots_are_counted_as_the_kernel_counts_them() {
    if !is_root() {
        println!("SKIPPED: needs root");
        return;
    }
    for binary in victims() {
        let [ring3, native] =
            [Bench::ring3(), Bench::native()].map(|bench| run(&bench, &binary, &["go", "blocked", "forks", "own"]));
        for (kind, (spot, _)) in SPOTS.iter().enumerate() {
            let (ring3, native) = (ring3.1[kind], native.1[kind]);
            // (The kernel refuses to run an instruction with a `lock` prefix under a probe.)
            assert!(ring3 == native || kind == PREFIXED, "{}: {spot}: {ring3}, {native}", binary.display());
        }
    }
}

#[test]
fn threads_that_block_every_signal_come_by() {
    check(&["blocked"]);
    check(&["frame", "go"]);
}

#[test]
fn forks_and_what_is_executed_come_by() {
    check(&["forks", "go"]);
}

#[test]
fn the_process_has_its_own_traps() {
    check(&["own", "go"]);
    for word in ["die", "trap", "ignored"] {
        for binary in victims() {
            let bench = Bench::ring3();
            let _counter = counting(&bench, &binary);
            let mut with = ready(&mut bench.target(&binary));
            assert_eq!(say(&mut with, word), "");
            let mut without = ready(&mut std::process::Command::new(&binary));
            assert_eq!(say(&mut without, word), "");
            assert_eq!(with.wait(), without.wait(), "{word}");
        }
    }
}

#[test]
fn a_process_that_waits_with_the_signal_blocked_is_not_harmed() {
    for binary in victims() {
        let bench = Bench::ring3();
        let mut counter = counting(&bench, &binary);
        let mut process = ready(&mut bench.target(&binary));
        say(&mut process, "go");
        assert!(!say(&mut process, "suspend").is_empty(), "{:?}", process.wait());
        assert!(!say(&mut process, "go").is_empty(), "{:?}", process.wait());
        let (code, _, errors) = process.finish();
        let is_told = |line: &String| line.contains("only an `int3` fits there");
        assert_eq!((code, errors.iter().all(is_told)), (Some(0), true), "{errors:?}");
        assert!(!errors.is_empty(), "nobody was told");
        assert!(counts(&mut counter, &binary)[0] >= 100);
    }
}

#[test]
fn probes_of_one_byte_come_and_go_while_threads_come_by() {
    for binary in victims() {
        let bench = Bench::ring3();
        let mut process = ready(&mut std::process::Command::new(&binary));
        let pid = process.pid();
        say(&mut process, "blocked");
        let before = Footprint::of(pid);
        for _ in 0..20 {
            let mut counter = counting(&bench, &binary);
            for _ in 0..20 {
                process.say("threads");
            }
            let (code, _, error) = bench.run(&["attach", &pid.to_string()]);
            assert_eq!(code, Some(0), "{error}");
            // (While a thread is made, all signals are blocked: then a probe of one byte is placed a little later.)
            let mut said = 20;
            wait_until("threads come by", || {
                process.say("threads");
                said += 1;
                counts(&mut counter, &binary)[0] > 0
            });
            let (code, _, error) = bench.run(&["detach", &pid.to_string()]);
            assert_eq!(code, Some(0), "{error}");
            for _ in 0..said {
                assert!(process.line_or_end().is_some(), "{:?}", process.wait());
            }
        }
        wait_until("all threads have ended", || Footprint::of(pid).threads == before.threads);
        assert_text_is_as_in_its_files(pid);
        assert!(!say(&mut process, "own").is_empty());
        let (code, _, errors) = process.finish();
        assert_eq!((code, errors.len()), (Some(0), 0), "{errors:?}");
    }
}

#[test]
fn a_probes_plan_is_explained_and_a_bad_place_is_named() {
    let bench = Bench::ring3();
    let [_, fixed] = victims();
    let explain = |place: &str| bench.run(&["explain", fixed.to_str().expect("a plain name"), place]);
    let (code, text, errors) = explain("one_byte");
    assert_eq!(code, Some(0), "{errors}");
    for part in ["one_byte (offset 0x", ": int3\n", "no plain jump: only 1 bytes", "before:\n", ": ret\n", "stub:\n"]
    {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let (_, text, _) = explain("main");
    assert!(text.contains(": jump\n") && !text.contains("no plain jump"), "{text}");
    for (place, why) in [
        ("loping", "no function `loping`; there are: looping"),
        ("looping+1", "is in the middle of the instruction at"),
        ("0xffffffff", "is in no loaded segment"),
    ] {
        let (code, _, errors) = explain(place);
        let names = format!("ring3: {}: ", fixed.display());
        assert!(code == Some(1) && errors.contains(why) && errors.starts_with(&names), "{place}: {errors}");
    }
}
