//! Probes on functions in Go, whose stacks move, and whose run-time reads return addresses.

use ring3_tests::{Bench, Process, go_victims, ready};

#[test]
fn returns_of_functions_in_go_are_refused_and_entries_are_counted() {
    let Some(folder) = go_victims() else { return };
    let bench = Bench::ring3();
    let binary = folder.join("returning");
    let probes = ["main.deep:ret", "main.fragile:ret", "main.throwing", "main.many"]
        .map(|probe| format!("{}:{probe}", binary.display()));
    let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
    let mut tool = Process::start(bench.load(ring3_tests::example("malloc")).args(&probes));
    assert_eq!(tool.line(), "attached 2");
    let mut counter = ring3_tests::Counter { tool };
    let mut victim = ready(&mut bench.target(&binary));
    victim.say("go");
    let line = victim.line();
    let told: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a count")).collect();
    let [_, _, throwing, panics, _, many] = told[..] else { panic!("{line}") };
    // (A function whose stack grows is entered again.)
    assert!(counter.total(probes[2]) >= throwing + panics);
    assert!(counter.total(probes[3]) >= many);
    assert_eq!(victim.finish(), (Some(0), vec![], vec![]));
    let (_, _, errors) = counter.tool.finish();
    let refused = |name: &str| errors.iter().any(|line| line.contains(name));
    assert!(refused("main.deep:ret") && refused("main.fragile:ret"), "{errors:?}");
}
