//! Targets that misuse what ring3 has mapped into them: nobody else is harmed, or waits for them.

use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use ring3_layout::realm::Realm;
use ring3_layout::thread::ThreadBlock;
use ring3_tests::{Bench, Process, WITHIN, is_root, kill, programs, ready, victim, wait_until};
use rustix::process::Signal;

/// An ordinary user.
const USER: u32 = 65534;

fn hostile() -> PathBuf {
    victim("hostile", "gcc", "hostile.c", &[])
}

#[test]
fn a_target_that_scribbles_over_shared_memory_spoils_only_what_it_may_write() {
    let busy = victim("busy", "gcc", "busy.c", &[]);
    let bench = Bench::ring3();
    let probes = [format!("{}:work", hostile().display()), format!("{}:work", busy.display())];
    let mut healthy = ready(bench.target(&busy).arg("2"));
    let pid = healthy.pid();
    let mut own = bench.counting(&["-p", &pid.to_string(), &probes[1]]);
    let mut rounds = 0;
    for seed in 1..=8u64 {
        // Its map is in both targets, and programs use it in both; the other tool's is in the healthy one alone.
        let both = bench.counting(&[&probes[0], &probes[1]]);
        let mut bad = ready(&mut bench.target(hostile()));
        for round in 0..10 {
            bad.say(&format!("200000 {}", seed * 1000 + round));
            // It may fall over what it did to itself.
            let mappings: Option<u32> = bad.line_or_end().map(|line| line.parse().expect("a number"));
            assert_ne!(mappings, Some(0));
            let targets = bench.status()["targets"].as_array().map(Vec::len);
            assert!(targets == Some(2) || mappings.is_none(), "{targets:?}");
            let before = own.total(&probes[1]);
            wait_until("the healthy target's calls are counted", || own.total(&probes[1]) > before);
            if mappings.is_none() {
                break;
            }
            rounds += 1;
        }
        // Whether it can be left again or not: the answer comes.
        let _ = bench.run(&["detach", &bad.pid().to_string()]);
        bad.signal(Signal::KILL);
        bad.wait();
        // The loader of the spoiled map is ended, whatever it reads there.
        both.tool.signal(Signal::KILL);
        drop(both);
        wait_until("the hostile target is gone", || {
            bench.status()["targets"].as_array().is_some_and(|targets| targets.len() == 1)
        });
    }
    assert!(rounds > 0);
    let before = own.total(&probes[1]);
    wait_until("the healthy target's calls are counted", || own.total(&probes[1]) > before);
    healthy.say("");
    let line = healthy.line();
    assert_eq!(line.split(' ').nth(1), Some("0"), "{line}");
    let calls: u64 = line.split(' ').next().and_then(|calls| calls.parse().ok()).expect("calls");
    let counted = own.total(&probes[1]);
    assert!(counted <= calls && counted > 0, "{counted} of {calls}");
}

/// A target that does what it is told, and has begun.
fn liar(bench: &Bench, told: &[&str]) -> Process {
    let path = victim("liar", "gcc", "liar.c", &[]);
    let mut command = bench.target(path);
    let offsets = [offset_of!(Realm, requests), offset_of!(Realm, cpu_slots)].map(|offset| offset.to_string());
    command.arg(told[0]).args(offsets).args(&told[1..]);
    let mut liar = ready(&mut command);
    assert_eq!(liar.line(), "begun");
    liar
}

/// A library of so many bytes, with as many that look like branches as are analysed, and one function with a system call.
fn crafted(bytes: usize) -> Vec<u8> {
    const HEADERS: usize = 120;
    let mut file = vec![0; HEADERS];
    let call = |word: usize| match word % 10_000 {
        0 => [0x0f, 5, 0xe9, 1, 2, 3, 0, 0x90],
        number => [0x90, 0x90, 0xe9, number as u8 & 0x7f, 2, 3, 0, 0x90],
    };
    file.extend((0..bytes / 8).flat_map(call));
    let words = |file: &mut Vec<u8>, words: &[u64]| file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    // A symbol table, its names, and section headers of both.
    let symbols = file.len() as u64;
    words(&mut file, &[0, 0, 0, 1 << 48 | 0x12 << 32 | 1, HEADERS as u64, 4096]);
    let names = file.len() as u64;
    file.extend(b"\0work\0\0\0");
    let sections = file.len() as u64;
    words(&mut file, &[0; 8]);
    words(&mut file, &[2 << 32, 0, 0, symbols, 48, 1 << 32 | 2, 8, 24]);
    words(&mut file, &[3 << 32, 0, 0, names, 6, 0, 1, 0]);
    let halves = [(16, 3), (18, 62), (20, 1), (32, 64), (52, 64), (54, 56), (56, 1), (58, 64), (60, 3), (62, 2)];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    for (at, half) in halves.into_iter().chain([(64, 1), (68, 5u16)]) {
        file[at..at + 2].copy_from_slice(&half.to_le_bytes());
    }
    for (at, word) in [(40, sections), (96, symbols), (104, symbols)] {
        file[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    file
}

/// As root and as an ordinary user.
fn benches() -> Vec<Bench> {
    match is_root() {
        true => vec![Bench::ring3(), Bench::ring3_as(USER)],
        false => vec![Bench::ring3()],
    }
}

#[test]
fn nobody_waits_for_a_target_that_maps_large_crafted_files_and_changes_them() {
    let directory = std::env::temp_dir().join(format!("ring3-crafted-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("made");
    for number in 0..20 {
        let path = directory.join(number.to_string());
        std::fs::write(&path, crafted(if number == 0 { 120 << 20 } else { 16 << 20 })).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("set");
    }
    let done = std::panic::catch_unwind(|| others_go_on_beside(&["files", directory.to_str().expect("plain")]));
    std::fs::remove_dir_all(&directory).expect("removed");
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn nobody_waits_for_a_target_whose_files_become_fifos() {
    // (A directory for each server: the FIFO is made there.)
    for bench in benches() {
        let directory = std::env::temp_dir().join(format!("ring3-fifos-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("made");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).expect("set");
        std::fs::copy(hostile(), directory.join("code")).expect("copied");
        let told = ["fifos", directory.to_str().expect("plain")];
        // (For return probes, unwinders are looked for in all files.)
        let _returns = bench.counting(&[&format!("{}:work:ret", victim("liar", "gcc", "liar.c", &[]).display())]);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| others_go_on_in(&bench, &told)));
        std::fs::remove_dir_all(&directory).expect("removed");
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

fn others_go_on_while_a_target_does(what: &str) {
    others_go_on_beside(&[what]);
}

/// While a target does `what`, others get what they ask for: status, tools, `attach` and `detach`, and programs that are executed are
/// traced. All of it is done [`ROUNDS`] times before one deadline, which a server that waits for the target misses.
fn others_go_on_beside(told: &[&str]) {
    benches().iter().for_each(|bench| others_go_on_in(bench, told));
}

fn others_go_on_in(bench: &Bench, told: &[&str]) {
    const ROUNDS: usize = 8;
    let busy = victim("busy", "gcc", "busy.c", &[]);
    let probe = format!("{}:work", busy.display());
    let mut healthy = ready(bench.target(&busy).arg("1"));
    let pid = healthy.pid();
    let mut own = bench.counting(&[&probe]);
    let what = told[0];
    // System calls are of interest, so all code is analysed.
    let links = || bench.status()["links"].as_array().map_or(0, Vec::len);
    let before = links();
    let _calls = Process::start(bench.load("syscount").args(["-i", "1"]));
    wait_until("all system calls are counted", || links() > before);
    let mut bad = liar(bench, told);
    let deadline = Instant::now() + WITHIN;
    let mut leaving = vec![];
    for round in 0..ROUNDS {
        if what == "inside" {
            let pid = bad.pid().to_string();
            let ask = || Process::start(&mut bench.ring3_command(&["detach", &pid]));
            leaving.extend([ask(), ask()]);
        }
        assert!(Instant::now() < deadline, "{what}: only {round} rounds of {ROUNDS} were done in time");
        let targets = bench.status()["targets"].as_array().map_or(0, Vec::len);
        assert!(targets >= 1, "{what}: {targets}");
        let before = own.report().get(&(pid, probe.clone())).copied().unwrap_or(0);
        let mut other = bench.counting(&["-p", &pid.to_string(), &probe]);
        wait_until("a tool that was loaded meanwhile counts", || other.total(&probe) > 0);
        drop(other);
        let mut plain = ready(bench.command(&busy).arg("1"));
        let attached = bench.run(&["attach", &plain.pid().to_string()]);
        assert_eq!(attached.0, Some(0), "{what}: {attached:?}");
        let detached = bench.run(&["detach", &plain.pid().to_string()]);
        assert_eq!(detached.0, Some(0), "{what}: {detached:?}");
        plain.say("");
        assert!(plain.line().ends_with(" 0"));
        let counted = || own.report().get(&(pid, probe.clone())).copied().unwrap_or(0) > before;
        wait_until("the healthy target's calls are counted", counted);
    }
    assert!(Instant::now() < deadline, "{what}: the last round was not done in time");
    for asked in leaving {
        let (code, _, errors) = asked.finish();
        assert!(code == Some(1) && errors.concat().contains("a thread is still inside"), "{code:?}, {errors:?}");
    }
    if what == "faults" {
        let log = std::fs::read_to_string(bench.directory().join("server.log")).expect("it has a log");
        assert!(log.contains("has faulted, and its caller cannot be found"), "the server looked at none");
    }
    bad.signal(Signal::KILL);
    bad.wait();
    healthy.say("");
    assert_eq!(healthy.line().split(' ').nth(1), Some("0"));
}

#[test]
fn nobody_waits_for_a_target_that_announces_programs_and_executes_none() {
    others_go_on_while_a_target_does("announce");
}

#[test]
fn nobody_waits_for_a_target_that_floods_the_server_with_requests() {
    others_go_on_while_a_target_does("flood");
}

#[test]
fn faults_that_a_target_makes_up_concern_nobody_else() {
    others_go_on_while_a_target_does("faults");
}

#[test]
fn nobody_waits_for_a_target_that_rings_without_end() {
    others_go_on_while_a_target_does("ring");
}

#[test]
fn nobody_waits_for_a_target_that_maps_and_unmaps_code_without_end() {
    others_go_on_while_a_target_does("map");
}

#[test]
fn nobody_waits_for_a_target_that_cannot_be_stopped() {
    others_go_on_while_a_target_does("hang");
}

#[test]
fn nobody_waits_for_a_target_that_cannot_be_left() {
    others_go_on_while_a_target_does("inside");
}

#[test]
fn nobody_waits_for_a_target_that_is_stopped() {
    others_go_on_while_a_target_does("stop");
}

#[test]
fn nobody_waits_for_a_target_that_a_debugger_holds() {
    others_go_on_while_a_target_does("trace");
}

#[test]
fn nobody_waits_for_a_target_that_forks_without_end() {
    others_go_on_while_a_target_does("forks");
}

#[test]
fn nobody_waits_for_a_target_with_a_thousand_children() {
    others_go_on_while_a_target_does("fork");
}

/// A server is killed, whose targets cannot be left; its successor serves others meanwhile.
#[test]
fn nobody_waits_for_orphans_that_cannot_be_cleaned() {
    const LIARS: usize = 16;
    let busy = victim("busy", "gcc", "busy.c", &[]);
    let probe = format!("{}:work", busy.display());
    for bench in benches() {
        let tool = bench.counting(&[&probe]);
        let liars: Vec<Process> = (0..LIARS).map(|_| liar(&bench, &["inside"])).collect();
        kill(bench.server());
        drop(tool);
        let deadline = Instant::now() + WITHIN;
        let mut own = bench.counting(&[&probe]);
        let mut plain = ready(bench.command(&busy).arg("1"));
        let attached = bench.run(&["attach", &plain.pid().to_string()]);
        assert_eq!(attached.0, Some(0), "{attached:?}");
        wait_until("calls are counted", || own.total(&probe) > 0);
        let pid = liars[0].pid().to_string();
        let (code, _, error) = bench.run(&["detach", &pid]);
        assert!(code == Some(1) && error.contains("could not all be taken out"), "{code:?}, {error}");
        assert!(Instant::now() < deadline, "they were waited for, one after the other");
        plain.say("");
        assert!(plain.line().ends_with(" 0"));
    }
}

#[test]
fn a_target_that_seems_to_be_inside_a_program_for_ever_is_let_go_and_this_is_said() {
    const TOOLS: usize = 70;
    let probe = format!("{}:work", victim("liar", "gcc", "liar.c", &[]).display());
    let bench = Bench::ring3();
    let tool = bench.counting(&[&probe]);
    let bad = liar(&bench, &["guard", &offset_of!(ThreadBlock, guard).to_string()]);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", bench.server())).map_or(0, Iterator::count);
    let before = descriptors();
    (0..TOOLS).for_each(|_| drop(bench.counting(&[&probe])));
    wait_until("it is let go", || {
        let let_go = bench.status()["server"]["let_go"].as_array().cloned().unwrap_or_default();
        let_go
            .iter()
            .any(|row| row[0] == bad.pid() && row[2].as_str().is_some_and(|why| why.contains("maps wait for it")))
    });
    wait_until("what waited is gone", || descriptors() < before + TOOLS / 2);
    drop(tool);
}

#[test]
fn a_target_that_announces_programs_and_executes_none_is_let_go_and_this_is_said() {
    for bench in benches() {
        let bad = liar(&bench, &["announce"]);
        let pid = u64::from(bad.pid());
        let is_let_go = |status: &serde_json::Value| {
            let let_go = status["server"]["let_go"].as_array().cloned().unwrap_or_default();
            let_go.iter().any(|row| row[0] == pid && row[2].as_str().is_some_and(|why| why.contains("announced")))
        };
        wait_until("it is let go", || is_let_go(&bench.status()));
        bad.signal(Signal::KILL);
        let (_, _, errors) = bad.finish();
        assert!(errors.iter().any(|line| line.contains("is let go: it announced")), "{errors:?}");
    }
}

/// Its own thread's name is in all CPU slots, and no request is free, as long as it lives.
#[test]
fn a_target_that_holds_all_cpu_slots_and_requests_stops_nobody() {
    const CALLS: u64 = 2000;
    let stormy = victim("stormy", "gcc", "stormy.c", &[]);
    for bench in benches() {
        let mut tool = Process::start(bench.load(programs().join("storm")).arg(&stormy));
        assert_eq!(tool.line(), "attached");
        let mut healthy = ready(bench.target(&stormy).args(["count", "2", &CALLS.to_string()]));
        let bad = liar(&bench, &["hold"]);
        healthy.say("go");
        assert_eq!(healthy.line(), (2 * CALLS).to_string());
        drop(bad);
        // Nothing is left of what it held: a program that is executed now is followed.
        wait_until("the hostile target is gone", || {
            bench.status()["targets"].as_array().is_some_and(|targets| targets.len() <= 1)
        });
        let mut shell = bench.target("sh");
        let mut counting = ready(shell.args(["-c", "exec \"$0\" count 1 1"]).arg(&stormy));
        let pid = u64::from(counting.pid());
        let status = bench.status();
        assert!(status["targets"].as_array().is_some_and(|all| all.iter().any(|t| t["pid"] == pid)), "{status}");
        counting.say("go");
        assert_eq!(counting.line(), "1");
    }
}
