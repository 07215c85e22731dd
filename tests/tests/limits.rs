//! Programs that limit their address space have as much of it under ring3, which takes some itself, and are told what they have set.

use std::process::Command;

use ring3_tests::{Bench, Process, programs, ready, victim};

/// What the victim says.
fn told(mut command: Command) -> Vec<String> {
    let (code, lines, errors) = Process::start(&mut command).finish();
    assert_eq!(code, Some(0), "{lines:?} {errors:?}");
    lines
}

#[test]
fn a_program_that_limits_its_address_space_has_what_it_allows_itself() {
    let victim = victim("limited", "gcc", "limited.c", &[]);
    let natively = told(Command::new(&victim));
    assert!(natively.contains(&"take c800000: done".to_owned()), "{natively:?}");
    assert!(natively.contains(&"take 19000000: refused".to_owned()), "{natively:?}");
    let bench = Bench::ring3();
    assert_eq!(told(bench.target(&victim)), natively);
    // With a tool that sees each of these calls, too.
    let mut tool = Process::start(bench.load(programs().join("calls")).arg("raw"));
    assert_eq!(tool.line(), "attached");
    assert_eq!(told(bench.target(&victim)), natively);
}

/// The kernel's limits of a process's address space.
fn limits(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    text.lines().find(|line| line.starts_with("Max address space")).expect("there is a line").to_owned()
}

/// (To raise a hard limit the server needs CAP_SYS_RESOURCE; a soft one is enough for this.)
#[test]
fn a_process_with_a_limit_is_given_room_and_has_its_limit_again_afterwards() {
    let bench = Bench::ring3();
    let script =
        "ulimit -S -v 600000; echo ready; read line; x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo ${#x}";
    let mut process = ready(Command::new("bash").args(["-c", script]));
    let before = limits(process.pid());
    let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
    assert_eq!(code, Some(0), "{error}");
    assert_ne!(limits(process.pid()), before);
    process.say("");
    assert_eq!(process.line(), "100000000");
    let (code, _, errors) = process.finish();
    assert_eq!(code, Some(0), "{errors:?}");
    let mut process = ready(Command::new("bash").args(["-c", script]));
    bench.run(&["attach", &process.pid().to_string()]);
    let (code, lines, error) = bench.run(&["detach", "--verify", &process.pid().to_string()]);
    assert_eq!(code, Some(0), "{lines} {error}");
    assert_eq!(limits(process.pid()), before);
    process.say("");
    assert_eq!(process.finish().0, Some(0));
}
