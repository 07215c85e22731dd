//! Debian's unmodified tools for system calls (package libbpf-tools) show the same events under ring3 as on the kernel.

use std::path::Path;

use ring3_tests::{Bench, Terminal, calling_victims, is_root, lacks, programs, ready};

/// A user without rights.
const NOBODY: u32 = 65_534;

/// The same under ring3, for root and for an ordinary user, and on the kernel.
fn same_as_native<T: PartialEq + std::fmt::Debug>(run: impl Fn(&Bench) -> T) -> T {
    let ours = run(&Bench::ring3());
    if is_root() {
        assert_eq!(ours, run(&Bench::native()), "left: under ring3, right: on the kernel");
        assert_eq!(run(&Bench::ring3_as(NOBODY)), ours, "left: an ordinary user, right: root");
    } else {
        println!("SKIPPED IN PART: the native half needs root");
    }
    ours
}

/// A victim's process and the lines that a tool shows while it makes its calls of a kind, to the one that has `last`.
struct Shown {
    pid: String,
    name: String,
    lines: Vec<String>,
}

impl Shown {
    fn by(bench: &Bench, tool: &[&str], header: &str, kind: &str, last: &str) -> Shown {
        Shown::of("events", bench, tool, header, kind, last)
    }

    fn of(victim: &str, bench: &Bench, tool: &[&str], header: &str, kind: &str, last: &str) -> Shown {
        let alias = bench.alias(&calling_victims("all").join(victim));
        let name = alias.file_name().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        let mut tool = {
            let mut load = bench.load_with_tracefs(tool[0]);
            load.args(&tool[1..]);
            Terminal::start(&load)
        };
        tool.wait_for(header);
        // Some say so before their buffer is there.
        tool.await_waiting();
        let pid = run(bench, &alias, kind);
        let mut lines = vec![];
        while !lines.last().is_some_and(|line: &String| line.contains(last) && line.contains(&name)) {
            lines.push(tool.line());
        }
        tool.interrupt_waiting();
        tool.finish();
        lines.retain(|line| line.contains(&name));
        Shown { pid, name, lines }
    }

    /// The words of each line by their numbers, and the rest from `rest` on; names that change from run to run are told alike.
    fn columns(&self, columns: &[usize], rest: usize) -> Vec<String> {
        let row = |line: &String| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let chosen = columns.iter().map(|column| words.get(*column).copied().unwrap_or_default());
            let known = chosen
                .chain(words.iter().skip(rest).copied())
                .map(|word| if word == self.pid { "PID".to_owned() } else { word.replace(&self.name, "NAME") });
            known.collect::<Vec<_>>().join(" ")
        };
        self.lines.iter().map(row).collect()
    }
}

/// Runs the victim to its end; its process, which it says first.
fn run(bench: &Bench, alias: &Path, kind: &str) -> String {
    let output = bench.target(alias).arg(kind).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Asserts that something is shown at all, so that nothing does not pass for the same.
fn assert_shows(lines: &[String], expected: &[&str]) {
    for line in expected {
        assert!(lines.iter().any(|shown| shown == line), "{line:?} is not in {lines:#?}");
    }
}

#[test]
fn opensnoop_shows_files_that_are_opened_and_those_that_are_missing() {
    // PID COMM FD ERR PATH. (The dynamic loader's are shown, too.)
    let lines = same_as_native(|bench| {
        Shown::by(bench, &["opensnoop"], "PATH", "opens", "/nowhere/last").columns(&[1, 2, 3], 4)
    });
    assert_shows(&lines, &["NAME 3 0 /dev/null", "NAME 4 0 /dev/zero", "NAME -1 2 /nowhere/missing", "NAME -1 14"]);
}

#[test]
fn opensnoop_shows_files_that_a_static_program_opens_whose_threads_can_be_cancelled() {
    let lines = same_as_native(|bench| {
        let shown = Shown::of("events-cancellable", bench, &["opensnoop"], "PATH", "opens", "/nowhere/last");
        shown.columns(&[1, 2, 3], 4)
    });
    assert_shows(&lines, &["NAME 3 0 /dev/null", "NAME 4 0 /dev/zero", "NAME -1 2 /nowhere/missing", "NAME -1 14"]);
}

#[test]
fn statsnoop_shows_calls_of_every_kind() {
    let preload = format!("LD_PRELOAD={}", programs().join("there.so").display());
    // PID COMM RET ERR PATH.
    let lines = same_as_native(|bench| {
        let tool = ["env", &preload, "statsnoop"];
        Shown::by(bench, &tool, "PATH", "stats", "/nowhere/last").columns(&[1, 2, 3], 4)
    });
    let of = |path: &str| lines.iter().filter(|line| line.ends_with(path)).count();
    assert_eq!((of("/dev/null"), of("/nowhere/missing")), (6, 6), "{lines:#?}");
}

fn kills(tool: &[&str]) {
    // TIME PID COMM SIG TPID RESULT; the child's process has no name.
    let lines = same_as_native(|bench| {
        let shown = Shown::by(bench, tool, "TPID", "kills", " 63 ");
        let mut lines = shown.columns(&[1, 2, 3, 4, 5], usize::MAX);
        lines.iter_mut().filter(|line| line.starts_with("PID NAME 9 ")).for_each(|line| *line = "the child".into());
        lines
    });
    assert_shows(&lines, &["PID NAME 10 PID 0", "PID NAME 15 2147483646 -3", "PID NAME 99 PID -22", "the child"]);
    assert_eq!(lines.len(), 10, "{lines:#?}");
}

#[test]
fn killsnoop_shows_signals_that_are_sent_and_those_that_fail() {
    kills(&["killsnoop"]);
}

#[test]
fn sigsnoop_shows_what_kill_sends() {
    kills(&["sigsnoop", "-k"]);
}

#[test]
fn mountsnoop_shows_mounts_of_another_namespace() {
    // COMM PID TID MNT_NS CALL.
    let lines = same_as_native(|bench| {
        Shown::by(bench, &["mountsnoop"], "CALL", "mounts", "/nowhere/last").columns(&[0, 1, 2], 4)
    });
    assert_shows(&lines, &["NAME PID PID umount(\"/mnt\", 0x0) = 0"]);
    assert_eq!(lines.len(), 6, "{lines:#?}");
}

#[test]
fn execsnoop_shows_programs_with_their_arguments_and_those_that_are_missing() {
    // PCOMM PID PPID RET ARGS.
    let (own, directory) = (std::process::id().to_string(), |bench: &Bench| bench.directory().display().to_string());
    let lines = same_as_native(|bench| {
        let shown = Shown::by(bench, &["execsnoop", "-x"], "ARGS", "execs", "/nowhere/last");
        let lines = shown.columns(&[0, 2, 3], 4).into_iter();
        // (An ordinary user's victim is begun by setpriv.)
        let lines =
            lines.filter(|line| line.split(' ').nth(1).is_some_and(|parent| parent == "PID" || parent == own));
        lines.map(|line| line.replace(&directory(bench), "DIRECTORY").replace(&own, "TEST")).collect::<Vec<_>>()
    });
    let expected = [
        "NAME TEST 0 DIRECTORY/NAME execs",
        "true PID 0 /bin/true NAME one two words",
        "sh PID 0 /bin/sh -c : $0; exit 3 NAME",
        "NAME PID -2 /nowhere/missing NAME of nowhere",
        "NAME PID -2 /nowhere/last NAME /nowhere/last",
    ];
    assert_eq!(lines, expected);
}

/// Of all processes, what the victim's are shown by.
fn bpftrace(program: &str) -> Vec<String> {
    if lacks("bpftrace") {
        return vec![];
    }
    let run = |bench: &Bench| {
        let tool = ["bpftrace", "-e", program];
        Shown::by(bench, &tool, "Attaching", "opens", "/nowhere/last").columns(&[], 0)
    };
    let ours = run(&Bench::ring3());
    assert_eq!(ours, run(&Bench::native()), "left: under ring3, right: on the kernel");
    ours
}

#[test]
fn bpftrace_knows_the_arguments_of_tracepoints() {
    let lines = bpftrace(
        r#"tracepoint:syscalls:sys_enter_openat {
            printf("%s %d %d %x %s\n", comm, args->__syscall_nr, args->dfd, args->flags, str(args->filename));
        }"#,
    );
    if !lines.is_empty() {
        assert_shows(&lines, &["NAME 257 -100 0 /dev/null", "NAME 257 -100 0 /nowhere/missing"]);
    }
}

#[test]
fn bpftrace_knows_the_kernels_structures() {
    let lines = bpftrace(
        r#"tracepoint:syscalls:sys_enter_openat {
            printf("%s %d %d %s %s\n", comm, curtask->pid == tid, curtask->tgid == pid, curtask->group_leader->comm,
                str(args->filename));
        }
        tracepoint:raw_syscalls:sys_exit /args->id == 257/ { printf("%s = %d\n", comm, args->ret); }"#,
    );
    if !lines.is_empty() {
        assert_shows(&lines, &["NAME 1 1 NAME /dev/null", "NAME = -2", "NAME = -14"]);
    }
}

#[test]
fn syscount_counts_a_processs_calls() {
    // What the victim's rounds make; the rest is what its threads need.
    const MADE: [&str; 7] = ["getppid", "getpid", "openat", "close", "newfstatat", "kill", "[unknown: 600]"];
    let counts = same_as_native(|bench| {
        let mut victim = ready(bench.target(calling_victims("all").join("loop")).args(["5000", "2"]));
        let mut load = bench.load_with_tracefs("syscount");
        load.args(["-T", "1000", "-p", &victim.pid().to_string()]);
        let mut tool = Terminal::start(&load);
        tool.wait_for("Tracing");
        victim.say("go");
        assert_eq!(victim.line(), "done");
        tool.interrupt_sleep();
        let (code, lines) = tool.finish();
        assert_eq!(code, Some(0), "{lines:?}");
        victim.say("end");
        assert_eq!(victim.finish().0, Some(0));
        let row = |line: &String| {
            let (name, count) = line.trim().rsplit_once(' ')?;
            MADE.contains(&name.trim()).then(|| (name.trim().to_owned(), count.to_owned()))
        };
        lines.iter().filter_map(row).collect::<std::collections::BTreeMap<_, _>>()
    });
    assert_eq!(counts["kill"], "10000", "{counts:?}");
}
