//! What programs read of a process whatever state its memory, threads and signals are in, and that the process's own faults are as
//! they were.

use ring3_tests::{Bench, Process, assert_text_is_as_in_its_files, is_root, programs, ready, victim};

/// What a tool or a victim says: numbers.
fn numbers(line: &str) -> Vec<u64> {
    line.split(' ').map(|word| word.parse().expect("a number")).collect()
}

fn reader() -> std::path::PathBuf {
    victim("reading", "gcc", "reading.c", &["-O1"])
}

/// The tool, attached to the victim's functions.
fn reading(bench: &Bench, binary: &std::path::Path, only: bool) -> Process {
    let mut tool = Process::start(bench.load(programs().join("reads")).arg(binary).args(only.then_some("only")));
    assert_eq!(tool.line(), "attached");
    tool
}

fn say(process: &mut Process, word: &str) -> String {
    process.say(word);
    process.line_or_end().unwrap_or_default()
}

/// How programs read in a process, as `ring3 status` says it.
fn how(bench: &Bench, pid: u32) -> Option<String> {
    let status = bench.status();
    let target = status["targets"].as_array().into_iter().flatten().find(|target| target["pid"] == pid);
    target.expect("it is a target")["reads"].as_str().map(str::to_owned)
}

/// Runs the victim for some words under the tool: what it says, what the tool says, and how programs read in the end.
fn run(bench: &Bench, words: &[&str], only: bool) -> (Vec<u64>, Vec<u64>, Option<String>) {
    let binary = bench.victim(reader());
    let mut tool = reading(bench, &binary, only);
    let mut process = ready(&mut bench.target(&binary));
    let mut last = String::new();
    for word in words {
        last = say(&mut process, word);
        assert!(!last.is_empty(), "{word} ended it: {:?}", process.wait());
    }
    let how = if bench.is_native() { None } else { how(bench, process.pid()) };
    let (code, _, errors) = process.finish();
    assert_eq!((code, errors.len()), (Some(0), 0), "{errors:?}");
    (numbers(&last), numbers(&say(&mut tool, "go")), how)
}

/// What the tool is to say if the victim says this.
fn expected(told: &[u64]) -> [u64; 11] {
    let [good, bad, written, refused, sum, named] = *told else { panic!("{told:?}") };
    [good, bad, good, bad, good, bad, written, refused, sum, named, 0]
}

/// Every address is read as the victim knows that it can be.
fn check(words: &[&str]) {
    let (told, read, how) = run(&Bench::ring3(), words, false);
    assert_eq!(read, expected(&told), "{words:?}");
    assert_eq!(how.as_deref(), Some("directly"), "{words:?}");
}

#[test]
fn what_is_there_is_read_and_what_is_not_is_an_error() {
    check(&["go", "write", "go"]);
}

#[test]
fn so_it_is_in_threads_that_block_every_signal() {
    check(&["threads", "blocked", "unmapped stack"]);
}

#[test]
fn so_it_is_in_forks_and_before_they_execute() {
    check(&["forks", "go"]);
}

#[test]
fn a_process_has_its_own_faults() {
    check(&["own", "go", "jumping", "own"]);
}

#[test]
fn names_and_users_are_those_of_the_moment() {
    check(&["names", "go", "names"]);
}

#[test]
fn the_kernel_reads_the_same() {
    if !is_root() {
        println!("SKIPPED: needs root");
        return;
    }
    let words = ["go", "blocked", "forks", "own", "jumping", "names"];
    let (told, read, _) = run(&Bench::native(), &words, true);
    assert_eq!(read, expected(&told));
}

#[test]
fn memory_may_go_while_it_is_read() {
    let bench = Bench::ring3();
    let binary = bench.victim(reader());
    let _tool = reading(&bench, &binary, false);
    let mut process = ready(&mut bench.target(&binary));
    assert!(!say(&mut process, "racing").is_empty(), "{:?}", process.wait());
    assert_eq!(process.finish().0, Some(0));
}

/// A handler that comes while the thread waits has every signal blocked, and is read by system calls.
#[test]
fn a_process_that_waits_with_the_signal_blocked_is_read_by_system_calls() {
    let (told, read, how) = run(&Bench::ring3(), &["go", "suspended", "go"], false);
    assert_eq!(read, expected(&told));
    assert!(how.as_deref().is_some_and(|how| how.starts_with("by system calls: ")), "{how:?}");
}

/// Who is sent a signal while he blocks it has blocked it in truth from then on.
#[test]
fn signals_that_are_sent_wait_until_they_are_let_come() {
    let (told, read, how) = run(&Bench::ring3(), &["go", "waits", "go"], false);
    assert_eq!(read, expected(&told));
    assert!(how.as_deref().is_some_and(|how| how.starts_with("by system calls: ")), "{how:?}");
}

#[test]
fn processes_end_by_their_own_faults_as_they_would() {
    for word in [
        "fault",
        "bus",
        "raise",
        "ignored",
        "overflow",
        "handled",
        "unhandled",
        "once",
        "while blocked",
        "again",
        "sent again",
        "strict",
    ] {
        let mut without = ready(&mut std::process::Command::new(reader()));
        assert_eq!(say(&mut without, word), "", "{word}");
        let bench = Bench::ring3();
        let binary = bench.victim(reader());
        let _tool = reading(&bench, &binary, false);
        let mut with = ready(&mut bench.target(&binary));
        assert_eq!(say(&mut with, word), "", "{word}");
        assert_eq!(with.wait(), without.wait(), "{word}");
    }
}

#[test]
fn signals_are_given_back() {
    let bench = Bench::ring3();
    let binary = bench.victim(reader());
    let mut process = ready(&mut std::process::Command::new(&binary));
    let pid = process.pid();
    let signals = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        // (`SigQ` counts those of all processes of the user.)
        let is_own = |line: &&str| line.starts_with("Sig") && !line.starts_with("SigQ");
        status.lines().filter(is_own).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = signals();
    for _ in 0..5 {
        let _tool = reading(&bench, &binary, false);
        let (code, _, error) = bench.run(&["attach", &pid.to_string()]);
        assert_eq!(code, Some(0), "{error}");
        assert!(!say(&mut process, "own").is_empty(), "{:?}", process.wait());
        assert_eq!(how(&bench, pid).as_deref(), Some("directly"));
        assert_ne!(signals(), before);
        let (code, _, error) = bench.run(&["detach", "--verify", &pid.to_string()]);
        assert_eq!(code, Some(0), "{error}");
        assert_eq!(signals(), before);
        assert_text_is_as_in_its_files(pid);
        assert!(!say(&mut process, "own").is_empty(), "{:?}", process.wait());
    }
    assert_eq!(process.finish().0, Some(0));
}
