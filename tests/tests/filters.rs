//! Processes that filter their own system calls (seccomp): none is killed for a call of ours.

use std::sync::{Mutex, PoisonError};

use ring3_tests::{Bench, Counter, Process, is_root, programs, ready, victim, wait_until};

fn strict() -> std::path::PathBuf {
    victim("strict", "gcc", "strict.c", &[])
}

/// Says something, and hears what is said natively.
#[track_caller]
fn converse(process: &mut Process, lines: &[(&str, &str)]) {
    for (said, heard) in lines {
        process.say(said);
        assert_eq!(process.line_or_end().as_deref(), Some(*heard), "after {said:?}");
    }
}

#[track_caller]
fn end(mut process: Process) {
    process.say("end");
    assert_eq!(process.wait(), Some(7));
}

/// The tool at work in all targets.
fn counting(bench: &Bench) -> (Counter, String) {
    let probe = format!("{}:work", strict().display());
    (bench.counting(&[&probe]), probe)
}

fn started(how: &[&str]) -> Process {
    ready(std::process::Command::new(strict()).args(how))
}

const ALWAYS: [(&str, &str); 3] = [("work", "worked"), ("fork", "child worked"), ("work", "worked")];

#[test]
fn what_victims_say_natively_is_what_is_expected_of_them() {
    for how in ["list", "errno", "deny", "ids"] {
        let mut process = started(&[how]);
        converse(&mut process, &ALWAYS);
        end(process);
    }
    let mut process = started(&["mode1"]);
    converse(&mut process, &ALWAYS[..1]);
    end(process);
    let mut process = started(&[]);
    converse(
        &mut process,
        &[("thread", "has a thread"), ("there", "worked"), ("deny", "filtered"), ("exec", "ready")],
    );
    end(process);
}

#[test]
fn a_process_whose_filter_forbids_what_injecting_needs_is_refused_and_lives() {
    if !is_root() {
        println!("SKIPPED: to read filters needs root");
        return;
    }
    let bench = Bench::ring3();
    let (_tool, _) = counting(&bench);
    let refused = [
        ("list", "socketpair", &ALWAYS[..]),
        ("errno", "socketpair", &ALWAYS[..]),
        ("ids", "gettid", &ALWAYS[..]),
        ("mode1", "socketpair", &ALWAYS[..1]),
    ];
    for (how, call, lines) in refused {
        let mut process = started(&[how]);
        let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
        assert_ne!(code, Some(0), "{how}");
        assert!(error.contains("seccomp") && error.contains(call), "{how}: {error}");
        converse(&mut process, lines);
        end(process);
    }
}

#[test]
fn a_process_is_not_killed_for_what_the_agent_may_not_call() {
    if !is_root() {
        println!("SKIPPED: to read filters needs root");
        return;
    }
    let bench = Bench::ring3();
    let (mut tool, probe) = counting(&bench);
    let mut process = started(&["deny"]);
    let pid = process.pid().to_string();
    process.say("sleep");
    assert_eq!(process.line(), "sleeps");
    // It sleeps when it is stopped: the kernel would have it call restart_syscall.
    let (code, _, error) = bench.run(&["attach", &pid]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(process.line_or_end().as_deref(), Some("slept"));
    converse(&mut process, &ALWAYS);
    wait_until("its calls are counted", || tool.total(&probe) >= 3000);
    let (code, _, error) = bench.run(&["detach", &pid]);
    assert_eq!(code, Some(0), "{error}");
    converse(&mut process, &ALWAYS);
    end(process);
}

#[test]
fn a_filter_of_one_thread_is_respected() {
    if !is_root() {
        println!("SKIPPED: to read filters needs root");
        return;
    }
    let bench = Bench::ring3();
    let (mut tool, probe) = counting(&bench);
    let mut process = started(&[]);
    converse(&mut process, &[("thread", "has a thread"), ("there", "worked")]);
    let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
    assert_eq!(code, Some(0), "{error}");
    converse(&mut process, &[("there", "worked"), ("work", "worked")]);
    wait_until("its calls are counted", || tool.total(&probe) >= 2000);
    process.say("quit");
    assert_eq!(process.wait(), Some(7));
}

/// A filter that a target gives itself, in the process, in a child, or before it executes something.
fn filtered_later(bench: &Bench) {
    let (mut tool, probe) = counting(bench);
    for (how, lines) in [
        ("list", &ALWAYS[..]),
        ("errno", &ALWAYS[..]),
        ("deny", &ALWAYS[..]),
        ("ids", &ALWAYS[..]),
        ("mode1", &ALWAYS[..1]),
    ] {
        let before = tool.total(&probe);
        let mut process = ready(&mut bench.target(strict()));
        converse(&mut process, &[("work", "worked")]);
        wait_until("its calls are counted", || tool.total(&probe) >= before + 1000);
        converse(&mut process, &[(how, "filtered")]);
        converse(&mut process, lines);
        end(process);
    }
    // What is left of letting a target go comes at the same time as the filter.
    for _ in 0..30 {
        let mut process = ready(&mut bench.target(strict()));
        converse(&mut process, &[("list", "filtered"), ("work", "worked")]);
        end(process);
    }
    let mut process = ready(&mut bench.target(strict()));
    converse(
        &mut process,
        &[("work", "worked"), ("thread", "has a thread"), ("there", "worked"), ("work", "worked")],
    );
    converse(&mut process, &[("deny", "filtered"), ("exec", "ready"), ("work", "worked")]);
    end(process);
}

#[test]
fn a_target_that_filters_itself_later_is_not_killed() {
    filtered_later(&Bench::ring3());
}

/// Under a tool that sees all system calls, and under one that sees a few others.
#[test]
fn so_is_one_whose_system_calls_are_traced() {
    for kind in ["raw", "trace", "named"] {
        let bench = Bench::ring3();
        let mut tool = Process::start(bench.load(programs().join("calls")).arg(kind));
        assert_eq!(tool.line(), "attached");
        filtered_later(&bench);
    }
}

#[test]
fn so_is_one_of_an_ordinary_users_server() {
    if !is_root() {
        println!("SKIPPED: to be another user needs root");
        return;
    }
    filtered_later(&Bench::ring3_as(65534));
}

/// Its only filter was taken for that of ring3's loaders, which catches nothing: `ring3 trace` is a loader, and the program its child.
#[test]
fn so_is_one_that_an_ordinary_user_begins_with_a_loader() {
    if !is_root() {
        println!("SKIPPED: to be another user needs root");
        return;
    }
    let bench = Bench::ring3_as(65534);
    let file = bench.copy(&strict());
    for how in ["list", "deny", "ids"] {
        let mut process = ready(bench.ring3_command(&["trace", "-o", "/dev/null", "--"]).arg(&file));
        converse(&mut process, &[("work", "worked"), (how, "filtered"), ("work", "worked")]);
        // (What is left of letting it go comes meanwhile.)
        std::thread::sleep(std::time::Duration::from_millis(50));
        converse(&mut process, &ALWAYS);
        end(process);
    }
}

/// A victim that minds where its calls are made, and the ways in which it does.
fn minding(how: &str) -> (std::path::PathBuf, [String; 2]) {
    (victim("where", "gcc", "where.c", &[]), [how.to_owned(), "later".to_owned()])
}

/// Held by a test with such victims: another one's tool would take them.
static MINDING: Mutex<()> = Mutex::new(());

const WAYS: [&str; 3] = ["filter", "range", "selector"];

/// Ends a victim that said "good" each time; what it was told on its terminal.
#[track_caller]
fn goes_on(mut process: Process) -> Vec<String> {
    converse(&mut process, &[("", "good"), ("", "good")]);
    let (code, lines, errors) = process.finish();
    assert_eq!((code, lines.len()), (Some(7), 0), "{errors:?}");
    errors
}

/// ring3 makes a program's calls from other places; so it lets a process go that is about to mind.
#[test]
fn a_target_that_minds_where_its_calls_are_made_is_let_go() {
    let _turn = MINDING.lock().unwrap_or_else(PoisonError::into_inner);
    for tool in [None, Some("raw"), Some("named")] {
        for how in WAYS {
            let bench = Bench::ring3();
            let (victim, arguments) = minding(how);
            let mut counter = bench.counting(&[&format!("{}:work", victim.display())]);
            let tool = tool.map(|kind| {
                let mut tool = Process::start(bench.load(programs().join("calls")).arg(kind));
                assert_eq!(tool.line(), "attached");
                tool
            });
            // (Several times: the thread may not wait for the answer yet when the server acts.)
            for _ in 0..5 {
                let process = ready(bench.target(&victim).args(&arguments));
                let pid = process.pid();
                let told = goes_on(process);
                assert!(told.iter().any(|line| line.contains("is let go: it is about to")), "{how}: {told:?}");
                let let_go = bench.status()["server"]["let_go"].to_string();
                assert!(let_go.contains(&format!("[{pid},")), "{let_go}");
            }
            counter.total(&format!("{}:work", victim.display()));
            drop(tool);
        }
    }
}

/// One that does already is refused, and told of nothing.
#[test]
fn a_process_that_minds_where_its_calls_are_made_is_refused() {
    let _turn = MINDING.lock().unwrap_or_else(PoisonError::into_inner);
    for how in WAYS {
        if how == "filter" && !is_root() {
            println!("SKIPPED IN PART: to read filters needs root");
            continue;
        }
        let bench = Bench::ring3();
        let (victim, [how, _]) = minding(how);
        let mut counter = bench.counting(&[&format!("{}:work", victim.display())]);
        let process = ready(std::process::Command::new(&victim).arg(&how));
        let (code, _, error) = bench.run(&["attach", &process.pid().to_string()]);
        assert_eq!(code, Some(1), "{how}: {error}");
        assert!(error.contains("where calls are made") || error.contains("catches its own system calls"), "{error}");
        assert_eq!(goes_on(process), Vec::<String>::new());
        counter.total(&format!("{}:work", victim.display()));
    }
}
