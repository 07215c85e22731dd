//! Statically defined probes (USDT): arguments of every form, semaphores, libraries, forks, and what is left of them, under ring3
//! and on the kernel.

use std::path::PathBuf;

use ring3_tests::{Bench, Process, kill, lacks, on_both, programs, ready, victim, wait_until};

fn marked() -> PathBuf {
    victim("marked", "gcc", "marked.c", &[])
}

fn marked_library() -> PathBuf {
    victim("marked.so", "gcc", "marked.c", &["-DLIBRARY", "-shared", "-fPIC"])
}

/// What a victim answers to some lines.
fn answers(victim: &mut Process, lines: &[&str]) -> Vec<String> {
    let answer = |line: &&str| {
        victim.say(line);
        victim.line()
    };
    lines.iter().map(answer).collect()
}

/// The tool that attaches to probes of a file by name, and how many of these there are; `pid` is `-1` for all processes.
fn tool(bench: &Bench, pid: &str, file: &std::path::Path, names: &[&str]) -> (Process, Vec<String>) {
    let mut tool = Process::start(bench.load(programs().join("marks")).arg(pid).arg(file).args(names));
    let refused = std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "attached")).collect();
    (tool, refused)
}

/// What the tool has seen, a line for each probe.
fn seen(tool: &mut Process, probes: usize) -> Vec<String> {
    tool.say("show");
    // (The second argument of `guarded` is an address.)
    let line = |line: String| {
        let words = line.split(' ').map(|word| if word.len() > 13 { "address" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    (0..probes).map(|_| line(tool.line())).collect()
}

const ALL: [&str; 4] = ["guarded", "shared", "open", "brief"];

/// What [`ALL`] make of these.
const CALLS: [&str; 5] = ["semaphores", "guarded 5", "shared 4", "open 3", "brief 2"];
const SEEN: [&str; 4] = ["guarded 5: 4 address -3 200 -5 1099511627776", "shared 4: 3", "open 3: 1", "brief 2:"];

#[test]
fn probes_are_seen_with_their_arguments_and_semaphores_are_down_before_and_after() {
    on_both(|bench| {
        let file = bench.victim(marked());
        let mut victim = ready(&mut bench.target(&file));
        assert_eq!(answers(&mut victim, &CALLS), ["0 0", "0", "0", "3", "2"]);
        let (mut tool, refused) = tool(bench, &victim.pid().to_string(), &file, &ALL);
        assert_eq!(refused, [""; 0]);
        // Two places count the same semaphore up.
        assert_eq!(answers(&mut victim, &CALLS), ["1 2", "5", "8", "3", "2"]);
        assert_eq!(seen(&mut tool, 4), SEEN);
        tool.say("detach 0");
        assert_eq!(tool.line(), "detached");
        wait_until("the semaphore is down", || answers(&mut victim, &CALLS[..2]) == ["0 2", "0"]);
        assert_eq!(tool.finish().0, Some(0));
        wait_until("all semaphores are down", || answers(&mut victim, &CALLS[..1]) == ["0 0"]);
        assert_eq!(answers(&mut victim, &CALLS[1..]), ["0", "0", "3", "2"]);
    });
}

#[test]
fn a_tool_that_comes_first_sees_what_begins_later() {
    on_both(|bench| {
        let file = bench.victim(marked());
        let (mut tool, refused) = tool(bench, "-1", &file, &ALL);
        assert_eq!(refused, [""; 0]);
        let mut victim = ready(&mut bench.target(&file));
        assert_eq!(answers(&mut victim, &CALLS), ["1 2", "5", "8", "3", "2"]);
        assert_eq!(seen(&mut tool, 4), SEEN);
        drop(tool);
        wait_until("all semaphores are down", || answers(&mut victim, &CALLS[..1]) == ["0 0"]);
    });
}

#[test]
fn semaphores_of_a_library_are_up_before_dlopen_returns() {
    on_both(|bench| {
        let (file, library) = (bench.victim(marked()), bench.victim(marked_library()));
        let (mut tool, refused) = tool(bench, "-1", &library, &["inner"]);
        assert_eq!(refused, [""; 0]);
        let mut victim = ready(bench.target(&file).arg(&library));
        for round in 1..4 {
            assert_eq!(answers(&mut victim, &["load", "inner 3", "unload"]), ["loaded", "3", "unloaded"], "{round}");
            assert_eq!(seen(&mut tool, 1), [format!("inner {}: 2 7", 3 * round)]);
        }
        assert_eq!(answers(&mut victim, &["load", "inner 1"]), ["loaded", "1"]);
        drop(tool);
        wait_until("its semaphore is down", || answers(&mut victim, &["inner 1"]) == ["0"]);
    });
}

#[test]
fn a_fork_inherits_semaphores_and_loses_them_with_its_probes() {
    on_both(|bench| {
        let file = bench.victim(marked());
        let (mut tool, _) = tool(bench, "-1", &file, &ALL);
        let mut victim = ready(&mut bench.target(&file));
        assert_eq!(answers(&mut victim, &["guarded 1", "fork 2", "semaphores"]), ["1", "2", "1 2"]);
        assert_eq!(seen(&mut tool, 1)[0].split(':').next(), Some("guarded 3"));
        drop(tool);
        // (The child answers.)
        wait_until("the child's semaphores are down", || answers(&mut victim, &["semaphores"]) == ["0 0"]);
        assert_eq!(answers(&mut victim, &["end", "semaphores", "guarded 2"]), ["back", "0 0", "0"]);
    });
}

#[test]
fn a_probe_that_is_refused_takes_no_other_along() {
    on_both(|bench| {
        let file = bench.victim(marked());
        let mut victim = ready(&mut bench.target(&file));
        let names = ["barred", "guarded", "absent", "open"];
        let (mut tool, refused) = tool(bench, &victim.pid().to_string(), &file, &names);
        assert_eq!(refused, ["barred: Unknown error 524", "absent: No such file or directory"]);
        assert_eq!(answers(&mut victim, &CALLS[..4]), ["1 0", "5", "0", "3"]);
        let lines = seen(&mut tool, 4);
        assert_eq!([lines[1].as_str(), lines[3].as_str()], [SEEN[0], SEEN[2]]);
    });
}

#[test]
fn semaphores_are_down_in_a_process_that_is_let_go() {
    let bench = Bench::ring3();
    let (_tool, _) = tool(&bench, "-1", &marked(), &ALL);
    let mut victim = ready(&mut bench.target(marked()));
    assert_eq!(answers(&mut victim, &["semaphores"]), ["1 2"]);
    let (code, out, errors) = bench.run(&["detach", "--verify", &victim.pid().to_string()]);
    assert_eq!(code, Some(0), "{out}{errors}");
    assert_eq!(answers(&mut victim, &CALLS), ["0 0", "0", "0", "3", "2"]);
    // A tool that still waits for it counts it up again.
    let (code, out, errors) = bench.run(&["attach", &victim.pid().to_string()]);
    assert_eq!(code, Some(0), "{out}{errors}");
    assert_eq!(answers(&mut victim, &CALLS), ["1 2", "5", "8", "3", "2"]);
}

#[test]
fn the_next_server_counts_down_what_a_killed_one_has_left() {
    let bench = Bench::ring3();
    let (tool, _) = tool(&bench, "-1", &marked(), &ALL);
    let mut victim = ready(&mut bench.target(marked()));
    assert_eq!(answers(&mut victim, &["semaphores", "fork 1"]), ["1 2", "1"]);
    kill(bench.server());
    assert_eq!(answers(&mut victim, &["semaphores"]), ["1 2"]);
    drop(tool);
    let mut counter = bench.counting(&[&format!("{}:main", marked().display())]);
    wait_until("the child's are down", || answers(&mut victim, &["semaphores"]) == ["0 0"]);
    assert_eq!(answers(&mut victim, &["end"]), ["back"]);
    wait_until("the victim's are down", || answers(&mut victim, &["semaphores"]) == ["0 0"]);
    counter.report();
}

#[test]
fn bpftrace_sees_probes_with_semaphores() {
    if lacks("bpftrace") {
        return;
    }
    on_both(|bench| {
        let file = bench.victim(marked());
        let mut victim = ready(&mut bench.target(&file));
        let program = format!(
            "usdt:{0}:ring3:guarded {{ @guarded[arg0, arg2, arg3] = count(); }}
             usdt:{0}:ring3:shared {{ @shared = count(); }} usdt:{0}:ring3:open {{ @open = sum(arg0); }}
             usdt:{0}:ring3:brief {{ exit(); }} BEGIN {{ printf(\"begun\\n\"); }}",
            file.display()
        );
        let mut command = bench.load_with_tracefs("bpftrace");
        let mut tool = Process::start(command.args(["-p", &victim.pid().to_string(), "-e", &program]));
        while tool.line() != "begun" {}
        wait_until("the semaphores are up", || answers(&mut victim, &["semaphores"]) == ["1 2"]);
        assert_eq!(answers(&mut victim, &["guarded 2", "shared 4", "open 3"]), ["2", "8", "3"]);
        assert_eq!(answers(&mut victim, &["brief 1"]), ["1"]);
        let (_, lines, errors) = tool.finish();
        let mut lines: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        lines.sort_unstable();
        let found = ["@guarded[0, -3, 200]: 1", "@guarded[1, -3, 200]: 1", "@open: 3", "@shared: 4"];
        assert_eq!(lines, found, "{errors:?}");
        wait_until("the semaphores are down", || answers(&mut victim, &["semaphores"]) == ["0 0"]);
    });
}

/// bpftrace traces what it begins by ptrace until its probes are there.
#[test]
fn bpftrace_sees_probes_of_what_it_begins() {
    if lacks("bpftrace") {
        return;
    }
    on_both(|bench| {
        let file = bench.victim(marked());
        let program = format!(
            "usdt:{0}:ring3:guarded {{ @guarded = count(); }} usdt:{0}:ring3:open {{ @open = sum(arg0); }}",
            file.display()
        );
        let mut command = bench.load_with_tracefs("bpftrace");
        let mut tool = Process::start(command.arg("-c").arg(&file).args(["-e", &program]));
        ["guarded 2", "open 3"].iter().for_each(|line| tool.say(line));
        let (code, mut lines, errors) = tool.finish();
        lines.retain(|line| line.starts_with('@'));
        lines.sort_unstable();
        assert_eq!((code, lines), (Some(0), vec!["@guarded: 2".to_owned(), "@open: 3".to_owned()]), "{errors:?}");
        assert!(!errors.iter().any(|line| line.starts_with("ring3:")), "{errors:?}");
    });
}
