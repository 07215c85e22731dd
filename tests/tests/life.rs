//! Tracepoints of a task's life (`sched:sched_process_*`, `signal:signal_generate`): the same as on the kernel, for root and for an
//! ordinary user.

use std::process::Command;

use ring3_tests::{Bench, Process, Terminal, lacks, victim};

const NOBODY: u32 = 65_534;

/// The same under ring3, for root and for an ordinary user, and on the kernel.
fn same_as_native(run: impl Fn(&Bench) -> Vec<String>) -> Vec<String> {
    let ours = run(&Bench::ring3());
    assert_eq!(ours, run(&Bench::native()), "left: under ring3, right: on the kernel");
    assert_eq!(run(&Bench::ring3_as(NOBODY)), ours, "left: an ordinary user, right: root");
    ours
}

/// The victim by a name of its own. It is begun by a shell, so that its parent is the same everywhere.
fn living(bench: &Bench, kind: &str) -> (String, Command) {
    let alias = bench.alias(&victim("living", "gcc", "living.c", &["-pthread"]));
    let name = alias.file_name().and_then(|name| name.to_str()).expect("a plain name").to_owned();
    let mut command = bench.target("sh");
    command.args(["-c", &format!("{} {kind}; exit 0", alias.display())]);
    (name, command)
}

/// A tool of bpftrace's that has attached its programs.
fn begun(bench: &Bench, program: &str) -> Terminal {
    let program = format!("BEGIN {{ printf(\"begun\\n\"); }} {program}");
    let mut tool = Terminal::start(bench.load_with_tracefs("bpftrace").args(["-B", "line", "-e", &program]));
    tool.wait_for("begun");
    tool
}

/// What a program counts while the victim lives. `NAME` in it is the victim's name.
fn counted(bench: &Bench, program: &str, kind: &str) -> Vec<String> {
    let (name, mut command) = living(bench, kind);
    let mut tool = begun(bench, &program.replace("NAME", &name));
    assert!(command.output().expect("sh runs").status.success());
    tool.interrupt_waiting();
    let (code, lines) = tool.finish();
    assert_eq!(code, Some(0), "{lines:?}");
    let directory = bench.directory().display().to_string();
    let mut lines: Vec<String> =
        lines.iter().filter(|line| line.starts_with('@')).map(|line| line.replace(&name, "NAME")).collect();
    lines.iter_mut().for_each(|line| *line = line.replace(&directory, "DIRECTORY"));
    lines.sort();
    lines
}

/// So that nothing does not pass for the same.
fn assert_counts(lines: &[String], expected: &[&str]) {
    for line in expected {
        assert!(lines.iter().any(|counted| counted.contains(line)), "{line:?} is not in {lines:#?}");
    }
}

#[test]
fn programs_see_the_beginnings_of_programs_threads_and_processes() {
    if lacks("bpftrace") {
        return;
    }
    let program = r#"
        tracepoint:sched:sched_process_exec /comm == "NAME"/ {
            @exec[comm, strncmp(str(args->filename), "/", 1) == 0, args->pid == pid, args->old_pid == tid] = count();
        }
        tracepoint:sched:sched_process_fork /comm == "NAME"/ {
            @fork[str(args->parent_comm), args->parent_pid == tid, str(args->child_comm), args->child_pid != tid, pid == tid] = count();
        }"#;
    let lines = same_as_native(|bench| counted(bench, program, "everything"));
    assert_counts(&lines, &["@exec[NAME, 1, 1, 1]: 2", "@fork[NAME, 1, NAME, 1, 1]: 6"]);
}

#[test]
fn what_orphans_execute_is_seen() {
    if lacks("bpftrace") {
        return;
    }
    let program = r#"
        tracepoint:sched:sched_process_exec /comm == "NAME"/ { @exec = count(); }
        tracepoint:syscalls:sys_enter_exit_group /comm == "NAME"/ { @exit = count(); }"#;
    let lines = same_as_native(|bench| counted(bench, program, "orphans"));
    // (Of each of the forks two more end, and the victim.)
    assert_counts(&lines, &["@exec: 41", "@exit: 121"]);
}

#[test]
fn programs_see_the_ends_of_threads_and_processes() {
    if lacks("bpftrace") {
        return;
    }
    let program = r#"
        tracepoint:sched:sched_process_exit /comm == "NAME"/ {
            @exit[args->comm, args->pid == tid, pid == tid, args->prio, args->group_dead] = count();
            @lowest = min(args->prio);
        }"#;
    let lines = same_as_native(|bench| counted(bench, program, "everything"));
    assert_counts(&lines, &["@lowest: 1", "@exit[NAME, 1, 0, 1", "@exit[NAME, 1, 1, 1"]);
    // Which thread of a group is the last one changes from run to run.
    let program = r#"
        tracepoint:sched:sched_process_exit /comm == "NAME"/ {
            @exit[args->comm, args->pid == tid, pid == tid] = count();
            @dead = @dead + args->group_dead;
        }"#;
    let lines = same_as_native(|bench| counted(bench, program, "group"));
    assert_counts(&lines, &["@dead: 1", "@exit[NAME, 1, 0]: 3", "@exit[NAME, 1, 1]: 1"]);
}

#[test]
fn programs_see_signals_and_what_becomes_of_them() {
    if lacks("bpftrace") {
        return;
    }
    // (Interrupts of the kernel's send signals to others meanwhile: `SI_KERNEL`.)
    let program = r#"
        tracepoint:signal:signal_generate /comm == "NAME" && args->code != 128/ {
            @signal[args->sig, args->errno, args->code, args->comm, args->pid == pid, args->group, args->result] = count();
        }"#;
    let lines = same_as_native(|bench| counted(bench, program, "everything"));
    assert_counts(
        &lines,
        &[
            "@signal[10, 5, -1, NAME, 1, 1, 0]: 1",
            "@signal[10, 0, -6, NAME, 1, 0, 0]: 2",
            "@signal[10, 0, 0, NAME, 1, 1, 2]: 1",
            "@signal[12, 0, 0, NAME, 1, 1, 1]: 2",
            "@signal[17, 0, 1, NAME, 0, 1, 0]: 1",
            "@signal[17, 0, 1, NAME, 0, 1, 1]: 3",
            "@signal[28, 0, 0, NAME, 1, 1, 1]: 1",
        ],
    );
}

#[test]
fn everybody_lists_these_tracepoints() {
    if lacks("bpftrace") {
        return;
    }
    for bench in [Bench::ring3(), Bench::ring3_as(NOBODY)] {
        let listed = |what: &str| Process::start(bench.load("bpftrace").args(["-l", what])).finish().1;
        let sched = listed("tracepoint:sched:sched_process_*");
        for name in ["exec", "exit", "fork"] {
            assert!(sched.contains(&format!("tracepoint:sched:sched_process_{name}")), "{sched:?}");
        }
        assert!(listed("tracepoint:signal:*").contains(&"tracepoint:signal:signal_generate".to_owned()));
    }
}

/// Columns of the lines that a tool shows of the victim, up to `count` of them.
fn shown(bench: &Bench, tool: &str, header: &str, kind: &str, columns: &[usize], count: usize) -> Vec<String> {
    let (name, mut command) = living(bench, kind);
    let mut tool = Terminal::start(&bench.load_with_tracefs(tool));
    tool.wait_for(header);
    tool.await_waiting();
    assert!(command.output().expect("sh runs").status.success());
    let mut lines = vec![];
    while lines.len() < count {
        let line = tool.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        // (A timer of another process may have fired meanwhile: SIGALRM.)
        if line.contains(&name) && words.get(3) != Some(&"14") {
            let chosen = columns.iter().map(|column| words.get(*column).copied().unwrap_or_default());
            lines.push(chosen.collect::<Vec<_>>().join(" ").replace(&name, "NAME"));
        }
    }
    tool.interrupt_waiting();
    tool.finish();
    lines.sort();
    lines
}

#[test]
fn exitsnoop_shows_ends_and_exit_codes() {
    if lacks("exitsnoop") {
        return;
    }
    // PCOMM, AGE, EXIT_CODE.
    let lines = same_as_native(|bench| shown(bench, "exitsnoop", "EXIT_CODE", "everything", &[0, 5, 6], 6));
    assert_counts(&lines, &["NAME 0", "NAME code 3", "NAME code 4", "NAME code 6"]);
}

#[test]
fn sigsnoop_shows_signals() {
    if lacks("sigsnoop") {
        return;
    }
    // COMM, SIG, RESULT.
    let lines = same_as_native(|bench| shown(bench, "sigsnoop", "RESULT", "everything", &[2, 3, 5], 16));
    assert_counts(&lines, &["NAME 10 0", "NAME 10 5", "NAME 12 0", "NAME 17 0", "NAME 28 0"]);
}

#[test]
fn processes_that_signals_end_are_seen() {
    if lacks("exitsnoop") {
        return;
    }
    let lines = same_as_native(|bench| shown(bench, "exitsnoop", "EXIT_CODE", "killed", &[0, 5, 6], 3));
    assert_counts(&lines, &["NAME signal 15", "NAME signal 6", "NAME 0"]);
    // The parents' SIGCHLD, too.
    let lines = same_as_native(|bench| shown(bench, "sigsnoop", "RESULT", "killed", &[2, 3, 5], 5));
    assert_counts(&lines, &["NAME 15 0", "NAME 6 0", "NAME 17 0"]);
}
