//! Thousands of probes in one process: each is applied, whenever the process becomes a target, and counts every call.

use std::path::PathBuf;

use ring3_tests::{Bench, Counter, Process, ready, victim};

/// Functions of the library.
const MANY: u64 = 4096;

/// The library of many functions, and the program that calls them.
fn many() -> (PathBuf, PathBuf) {
    let library = victim("libmany.so", "gcc", "many.c", &["-DLIBRARY", "-shared", "-fPIC"]);
    let path = library.to_str().expect("a plain name").to_owned();
    (library, victim("many", "gcc", "many.c", &["-Wl,--no-as-needed", &path]))
}

/// A tool with a probe on each function.
fn count_all(bench: &Bench, options: &[&str]) -> Counter {
    let (library, _) = many();
    let probes = (0..MANY).map(|number| format!("{}:many_{number:04o}", library.display()));
    let arguments: Vec<String> = options.iter().map(|option| (*option).to_owned()).chain(probes).collect();
    bench.counting(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Has the victim call each function `times` times; each must be counted as often, and do what it does.
fn check(counter: &mut Counter, victim: &mut Process, times: u64) {
    victim.say(&times.to_string());
    let sum: u64 = (0..times).map(|round| (0..MANY).map(|number| round * 3 + number).sum::<u64>()).sum();
    assert_eq!(victim.line(), sum.to_string());
    let counts = counter.report();
    let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != times).take(8).collect();
    assert_eq!((counts.len() as u64, wrong), (MANY, vec![]));
}

#[test]
fn a_process_started_after_thousands_of_links_has_all_probes() {
    let bench = Bench::ring3();
    let (_, program) = many();
    let mut counter = count_all(&bench, &[]);
    let mut victim = ready(&mut bench.target(&program));
    check(&mut counter, &mut victim, 3);
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn a_running_process_attached_after_thousands_of_links_has_all_probes() {
    let bench = Bench::ring3();
    let (_, program) = many();
    let mut counter = count_all(&bench, &[]);
    let mut victim = ready(&mut bench.command(&program));
    let (code, _, error) = bench.run(&["attach", &victim.pid().to_string()]);
    assert_eq!(code, Some(0), "{error}");
    check(&mut counter, &mut victim, 3);
    assert_eq!(victim.finish().0, Some(0));
}
