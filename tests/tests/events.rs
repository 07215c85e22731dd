//! bpftrace's events that no target causes: `interval`, `profile`, `software`, `hardware`.

use std::process::Command;

use ring3_tests::{Bench, Process, Terminal, kill, lacks, ready, shapes, victim, wait_until};

/// What a program of bpftrace's prints.
fn printed(bench: &Bench, program: &str) -> Vec<String> {
    let (code, lines, errors) = Process::start(bench.load("bpftrace").args(["-B", "line", "-e", program])).finish();
    assert_eq!(code, Some(0), "{lines:?} {errors:?}");
    lines
}

/// The same under ring3 and on the kernel.
fn same_as_native(run: impl Fn(&Bench) -> Vec<String>) -> Vec<String> {
    let ours = run(&Bench::ring3());
    assert_eq!(ours, run(&Bench::native()), "left: under ring3, right: on the kernel");
    ours
}

#[test]
fn intervals_print_clear_and_end_a_program_as_on_the_kernel() {
    if lacks("bpftrace") {
        return;
    }
    let program = r#"
        BEGIN { printf("begin %s %s, user %d\n", comm, curtask->comm, uid); @kept = 7; @cleared[1] = 2; @zeroed[3] = 4; @counted[5] = count(); }
        interval:ms:20 {
            @ticks = @ticks + 1;
            if (@ticks == 3) { printf("tick %d on %d\n", @ticks, cpu); print(@kept); print(@zeroed); }
            if (@ticks == 4) { clear(@cleared); zero(@zeroed); }
            if (@ticks == 5) { exit(); }
        }
        END { printf("end %s\n", comm); clear(@ticks); }"#;
    let lines = same_as_native(|bench| printed(bench, program));
    let begin = format!("begin bpftrace bpftrace, user {}", rustix::process::getuid().as_raw());
    for line in [
        begin.as_str(),
        "tick 3 on 0",
        "@kept: 7",
        "@zeroed[3]: 4",
        "@zeroed[3]: 0",
        "@counted[5]: 1",
        "end bpftrace",
    ] {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:?}");
    }
    assert!(!lines.iter().any(|line| line.contains("@cleared")), "{lines:?}");
}

#[test]
fn an_interval_ends_a_tool_that_counts_calls() {
    if lacks("bpftrace") {
        return;
    }
    let counted = same_as_native(|bench| {
        let binary = bench.victim(shapes());
        let mut victim = ready(bench.target(&binary).args(["plain", "4321"]));
        let program = format!(
            "BEGIN {{ printf(\"begun\\n\"); }} uprobe:{}:plain {{ @calls = @calls + 1; }}
             interval:ms:20 {{ if (@calls >= 4321) {{ exit(); }} }}",
            binary.display()
        );
        let mut tool = Process::start(bench.load("bpftrace").args(["-B", "line", "-e", &program]));
        // (BEGIN runs when all others are attached.)
        while tool.line() != "begun" {}
        victim.say("go");
        let (code, lines, errors) = tool.finish();
        assert_eq!(code, Some(0), "{lines:?} {errors:?}");
        lines
    });
    assert!(counted.iter().any(|line| line == "@calls: 4321"), "{counted:?}");
}

#[test]
fn profile_sees_what_a_process_does_and_reads_its_memory() {
    if lacks("bpftrace") {
        return;
    }
    let seen = same_as_native(|bench| {
        // (With frame pointers, by which the kernel finds callers, and without jumps to functions that are called last.)
        let flags = ["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
        let mut victim = ready(&mut Command::new(victim("spinning", "gcc", "spinning.c", &flags)));
        let (pid, text) = (victim.pid(), victim.line());
        // (In user mode, by the code segment: it may be in the kernel, too, when its CPU has an interrupt.)
        let program = format!(
            "profile:hz:199 /pid == {pid} && reg(\"cs\") == 0x33 && !@done/ {{
                @done = 1;
                printf(\"%s %s uid %d %d\\n%s\\n%s\\n\", comm, usym(reg(\"ip\")), uid, tid == pid, str(uptr({text})), ustack(3));
                exit();
            }}"
        );
        printed(bench, &program)
    });
    assert!(seen.iter().any(|line| line.starts_with("spinning spin") && line.ends_with("uid 0 1")), "{seen:?}");
    assert!(seen.iter().any(|line| line == "of the spinning process"), "{seen:?}");
    // (A function that calls no other one has no frame: of what called it, the caller is found.)
    let stack: Vec<&str> = seen.iter().map(|line| line.trim()).filter(|line| line.contains('+')).collect();
    assert!(matches!(stack[..], ["spin+0", main, ..] if main.starts_with("main+")), "{seen:?}");
}

#[test]
fn a_software_event_runs_its_program_each_time_that_it_has_occurred_so_often() {
    if lacks("bpftrace") {
        return;
    }
    let seen = same_as_native(|bench| {
        let name = bench.alias(std::path::Path::new("/usr/bin/perl"));
        let name = name.file_name().expect("it has one").to_string_lossy().into_owned();
        let program = format!(
            "BEGIN {{ printf(\"begun\\n\"); }}
             software:page-faults:100 /comm == \"{name}\"/ {{ @ = @ + 1; if (@ == 20) {{ printf(\"many\\n\"); exit(); }} }}"
        );
        let mut tool = Process::start(bench.load("bpftrace").args(["-B", "line", "-e", &program]));
        while tool.line() != "begun" {}
        // Some 16 000 pages.
        let code = "my $text = 'x' x (1 << 26); print length $text;";
        let status = Command::new(bench.directory().join(&name)).args(["-e", code]).output().expect("it runs");
        assert!(status.status.success());
        assert_eq!(tool.line(), "many");
        tool.finish();
        vec![]
    });
    assert!(seen.is_empty());
}

#[test]
fn a_machine_without_counters_is_told_from_ring3() {
    if lacks("bpftrace") {
        return;
    }
    if std::path::Path::new("/sys/bus/event_source/devices/cpu").exists() {
        println!("SKIPPED: this machine counts cycles");
        return;
    }
    let bench = Bench::ring3();
    let program = "hardware:cycles:1000000 { @ = count(); }";
    let (code, _, errors) = Process::start(bench.load("bpftrace").args(["-e", program])).finish();
    assert_ne!(code, Some(0));
    let told: Vec<&String> = errors.iter().filter(|line| line.starts_with("ring3: ")).collect();
    assert!(matches!(told[..], [line] if line.contains("hardware:cpu-cycles")), "{errors:?}");
}

/// The processes in which a server runs programs of events.
fn hosts(server: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap_or_default();
    let threads = std::fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let pids = lists.collect::<Vec<_>>().join(" ") + &children;
    let mut pids: Vec<u32> = pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    pids.retain(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"run-events\0"))
    });
    pids.sort_unstable();
    pids.dedup();
    pids
}

#[test]
fn a_programs_process_ends_with_its_tool_and_its_end_is_told() {
    if lacks("bpftrace") {
        return;
    }
    let bench = Bench::ring3();
    let program =
        "BEGIN { printf(\"begun\\n\"); } interval:ms:20 { @ = @ + 1; } profile:hz:50 { @p[cpu] = count(); }";
    let mut load = bench.load("bpftrace");
    load.args(["-B", "line", "-e", program]);
    let mut tool = Process::start(&mut load);
    while tool.line() != "begun" {}
    let running = hosts(bench.server());
    assert_eq!(running.len(), 2, "one for each program, however many CPUs there are");
    kill(tool.pid());
    wait_until("the processes have ended", || hosts(bench.server()).is_empty());
    wait_until("the server has let everything go", || bench.status()["links"].as_array().is_some_and(Vec::is_empty));

    let mut tool = Terminal::start(&load);
    tool.wait_for("begun");
    hosts(bench.server()).into_iter().for_each(kill);
    wait_until("the server tells", || {
        let log = std::fs::read_to_string(bench.directory().join("server.log")).unwrap_or_default();
        log.matches("it runs no more").count() == 2
    });
    tool.interrupt_waiting();
    let (code, lines) = tool.finish();
    assert_eq!(code, Some(0));
    let told = lines.iter().filter(|line| line.starts_with("ring3: ") && line.contains("it runs no more"));
    assert_eq!(told.count(), 2, "{lines:?}");
}
