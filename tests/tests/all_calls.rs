//! A tool makes a link for each system call, hundreds of them, one after the other. How often targets are looked at, and what they
//! are left with, does not depend on how many come.

use ring3_tests::{Bench, Process, lacks, ready, victim, wait_until};

/// So often all links may be looked at in a target while hundreds are made or removed.
const LOOKS_MAX: u64 = 40;

/// A shell that writes its line back.
fn target(bench: &Bench) -> Process {
    ready(bench.target("bash").args(["-c", "echo ready; while read -r line; do echo $line; done"]))
}

/// bpftrace, once all probes of a program are attached.
fn attached(bench: &Bench, probes: &str) -> Process {
    let program = format!("{probes} interval:ms:100 {{ printf(\"attached\\n\"); }}");
    let mut tool = Process::start(bench.load("bpftrace").args(["-B", "line", "-e", &program]));
    while tool.line() != "attached" {}
    tool
}

/// A number of the status of a target.
fn number(bench: &Bench, pid: u32, name: &str) -> u64 {
    let status = bench.status();
    let targets = status["targets"].as_array().expect("targets");
    let target = targets.iter().find(|target| target["pid"] == pid).expect("a target");
    target[name].as_u64().unwrap_or_else(|| panic!("no {name}: {target}"))
}

#[test]
fn hundreds_of_links_of_calls_are_made_and_removed_with_few_looks_at_each_target() {
    if lacks("bpftrace") {
        return;
    }
    let bench = Bench::ring3();
    let mut targets = [(); 3].map(|()| target(&bench));
    let pids = targets.each_ref().map(Process::pid);
    let looks = || pids.map(|pid| number(&bench, pid, "looks"));
    let before = looks();
    let tool = attached(&bench, "tracepoint:syscalls:sys_enter_* /comm == \"bash\"/ { @[pid, probe] = count(); }");
    let made = looks();
    assert!(made.iter().zip(before).all(|(made, before)| made - before <= LOOKS_MAX), "{before:?} {made:?}");
    // Each of them sees what is called from now on.
    for target in &mut targets {
        target.say("again");
        assert_eq!(target.line(), "again");
    }
    tool.signal(rustix::process::Signal::INT);
    let (code, lines, errors) = tool.finish();
    assert_eq!((code, &errors[..]), (Some(0), &[][..]), "{lines:?}");
    for pid in pids {
        let count = |call: &str| {
            let key = format!("@[{pid}, tracepoint:syscalls:sys_enter_{call}]: ");
            lines.iter().find_map(|line| line.strip_prefix(&key)?.parse::<u64>().ok())
        };
        assert_eq!(count("write"), Some(1), "{lines:?}");
        // (A shell reads from a pipe byte by byte: the line, and it begins to read the next one.)
        assert!(count("read").is_some_and(|reads| reads >= 6), "{lines:?}");
    }
    wait_until("the links are gone", || bench.status()["links"].as_array().is_some_and(Vec::is_empty));
    let removed = looks();
    assert!(removed.iter().zip(made).all(|(removed, made)| removed - made <= LOOKS_MAX), "{made:?} {removed:?}");
    for target in targets {
        assert_eq!(target.finish().0, Some(0));
    }
}

#[test]
fn sites_of_calls_for_which_no_link_came_are_restored() {
    if lacks("bpftrace") {
        return;
    }
    let bench = Bench::ring3();
    let process = target(&bench);
    let sites = || number(&bench, process.pid(), "syscall_sites");
    let calls = ["read", "write", "openat", "close", "dup2", "pipe", "chdir", "getppid", "fsync", "access"];
    let probes: Vec<String> = calls.map(|call| format!("tracepoint:syscalls:sys_enter_{call}")).to_vec();
    let few = attached(&bench, &format!("{} {{ @ = count(); }}", probes.join(",")));
    let all = attached(&bench, "tracepoint:raw_syscalls:sys_enter { @ = count(); }");
    let of_all = sites();
    all.signal(rustix::process::Signal::INT);
    assert_eq!(all.finish().0, Some(0));
    wait_until("others are restored", || sites() < of_all / 2);
    few.signal(rustix::process::Signal::INT);
    assert_eq!(few.finish().0, Some(0));
    assert_eq!(process.finish().0, Some(0));
}

const UNMAPPED: &str =
    "tracepoint:syscalls:sys_enter_munmap /comm == \"unmaps\" && args->len == 4096/ { @calls = count(); }";

/// How often each of bpftrace's counts says that something happened, once it is interrupted.
fn counts(tool: Process) -> Vec<String> {
    tool.signal(rustix::process::Signal::INT);
    let (code, lines, errors) = tool.finish();
    assert_eq!(code, Some(0), "{errors:?}");
    lines.into_iter().filter(|line| line.starts_with('@')).collect()
}

/// The function begins with the bytes that ring3 displaces for the call.
#[test]
fn a_call_is_seen_whose_function_is_probed_whichever_was_first() {
    if lacks("bpftrace") {
        return;
    }
    let unmaps = victim("unmaps", "gcc", "unmaps.c", &["-O1"]);
    let path = unmaps.display();
    let probed =
        format!("uprobe:{path}:unmap {{ @entered = count(); }} uretprobe:{path}:unmap {{ @left = count(); }}");
    let bench = Bench::ring3();
    let unmap = |mut process: Process| {
        process.say("go");
        assert_eq!(process.line(), "100");
        assert_eq!(process.finish().0, Some(0));
    };
    let start = || ready(bench.target(&unmaps).arg("100"));

    let both = attached(&bench, &format!("{probed} {UNMAPPED}"));
    unmap(start());
    assert_eq!(counts(both), ["@calls: 100", "@entered: 100", "@left: 100"]);

    for (first, then) in [(&probed[..], UNMAPPED), (UNMAPPED, &probed)] {
        let process = start();
        let tools = [first, then].map(|probes| attached(&bench, probes));
        unmap(process);
        let mut counted: Vec<String> = tools.into_iter().flat_map(counts).collect();
        counted.sort_unstable();
        assert_eq!(counted, ["@calls: 100", "@entered: 100", "@left: 100"], "{first}");
    }
}

/// The jump of a call moves when a probe needs its place, while threads are in the call.
#[test]
fn threads_that_are_in_a_call_come_back_from_it_where_its_function_is_probed_meanwhile() {
    if lacks("bpftrace") {
        return;
    }
    let unmaps = victim("unmaps", "gcc", "unmaps.c", &["-O1"]);
    let path = unmaps.display();
    let bench = Bench::ring3();
    for calls in [
        "tracepoint:syscalls:sys_enter_munmap,tracepoint:syscalls:sys_enter_read",
        "tracepoint:raw_syscalls:sys_exit",
    ] {
        let mut process = ready(bench.target(&unmaps).arg("0"));
        let calls = attached(&bench, &format!("{calls} /comm == \"unmaps\"/ {{ @calls = count(); }}"));
        process.say("go");
        for probe in ["uprobe", "uretprobe"] {
            let probed =
                format!("{probe}:{path}:unmap {{ @unmap = count(); }} {probe}:{path}:take {{ @take = count(); }}");
            let counted = counts(attached(&bench, &probed));
            assert!(counted.iter().any(|line| line.starts_with("@unmap")), "{probe}: {counted:?}");
        }
        process.say("end");
        assert_eq!(process.finish().0, Some(0));
        assert_eq!(counts(calls).len(), 1);
    }
}
