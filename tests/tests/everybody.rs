//! Tools that name no process see every process that maps a file with their probes, as on the kernel, without another command.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ring3_tests::{
    Bench, Footprint, Process, assert_text_is_as_in_its_files, example, is_root, programs, ready, ring3, shapes,
    victim, wait_until,
};

/// A user that no other test has.
const USER: u32 = 54_329;

/// Under ring3, with nothing asked for.
fn bench() -> Bench {
    Bench::ring3().seeing(None)
}

/// The same as root and as an ordinary user.
fn benches() -> Vec<Bench> {
    if is_root() {
        return vec![bench(), Bench::ring3_as(USER).seeing(None)];
    }
    println!("SKIPPED IN PART: root's half needs root");
    vec![bench()]
}

fn of(program: &Path, function: &str) -> String {
    format!("{}:{function}", program.display())
}

#[test]
fn processes_that_run_already_are_seen_and_left_as_they_were() {
    for bench in benches() {
        let program = bench.copy(&shapes());
        let other = bench.copy(&example("alloc"));
        let mut victims: Vec<Process> =
            (0..5).map(|_| ready(bench.command(&program).args(["plain", "100"]))).collect();
        let bystander = Process::start(bench.command(&other).args(["1", "1"]).stdin(Stdio::piped()));
        let before: Vec<Footprint> = victims.iter().map(|victim| Footprint::of(victim.pid())).collect();
        let probe = of(&program, "plain");
        let mut tool = bench.counting(&[&probe]);
        // Whoever makes a probe waits until it is in these processes.
        for victim in &mut victims {
            victim.say("go");
            assert_eq!(victim.line(), "100");
        }
        assert_eq!(tool.total(&probe), 500);
        assert_eq!(bench.targets().len(), 5);
        assert!(!bench.is_target(bystander.pid()));
        drop(tool);
        wait_until("the processes are no targets", || bench.targets().is_empty());
        for (victim, before) in victims.iter().zip(before) {
            assert_eq!(Footprint::of(victim.pid()), before);
            assert_text_is_as_in_its_files(victim.pid());
        }
    }
}

#[test]
fn new_processes_are_seen() {
    for bench in benches() {
        let program = bench.copy(&shapes());
        let probe = of(&program, "plain");
        let mut tool = bench.counting(&[&probe]);
        let mut victim = ready(bench.command(&program).args(["plain", "100"]));
        wait_until("it is a target", || bench.is_target(victim.pid()));
        victim.say("go");
        assert_eq!(victim.line(), "100");
        assert_eq!(tool.total(&probe), 100);
    }
}

/// A program that calls `wanted` 1000 times and ends.
fn brief() -> PathBuf {
    victim("brief", "gcc", "brief.c", &["-static"])
}

#[test]
fn root_sees_programs_from_their_first_instruction() {
    if !is_root() {
        println!("SKIPPED: the kernel tells only root of executions");
        return;
    }
    let bench = bench();
    let program = bench.copy(&brief());
    let probe = of(&program, "wanted");
    let mut tool = bench.counting(&[&probe]);
    for _ in 0..5 {
        assert!(Command::new(&program).stdout(Stdio::null()).status().expect("it runs").success());
    }
    let report = tool.report();
    assert_eq!(report.values().collect::<Vec<_>>(), [&1000; 5], "{report:?}");
}

#[test]
fn interpreters_of_scripts_are_seen_and_not_held_up() {
    if !is_root() {
        println!("SKIPPED: the kernel tells only root of executions");
        return;
    }
    let bench = bench();
    let program = bench.copy(&brief());
    let script = bench.directory().join("script");
    std::fs::write(&script, format!("#!{}\n", program.display())).expect("written");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("made executable");
    let probe = of(&program, "wanted");
    let mut tool = bench.counting(&[&probe]);
    let mut told = Process::start(bench.command(&script).stdin(Stdio::piped()));
    assert_eq!(told.line(), "ready");
    wait_until("it is a target", || bench.is_target(told.pid()));
    told.say("");
    let child: u32 = told.line().parse().expect("a process id");
    // The script is executed by its interpreter's child: the same way again.
    wait_until("the fork was seen", || tool.report().contains_key(&(child, probe.clone())));
    ring3_tests::kill(child);
}

#[test]
fn a_program_that_cannot_be_executed_fails_as_it_would() {
    let bench = bench();
    let program = bench.copy(&brief());
    let _tool = bench.counting(&[&of(&program, "wanted")]);
    // The same file, which is a program no more: it is opened, and refused.
    std::fs::write(&program, "no program").expect("written");
    let error = Command::new(&program).spawn().expect_err("it is none");
    assert_eq!(error.raw_os_error(), Some(8), "ENOEXEC: {error}");
}

/// Its execution waits for nobody: that the server does not become its tracer is known at once.
#[test]
fn what_a_debugger_executes_is_named_as_the_debuggers() {
    let bench = bench();
    if !is_root() {
        println!("SKIPPED: only root is told of executions");
        return;
    }
    let program = bench.copy(&brief());
    let mut load = bench.load(example("malloc"));
    let mut tool = Process::start(load.arg(of(&program, "wanted")).stdin(Stdio::piped()));
    assert!(tool.line().starts_with("attached"));
    let mut strace = bench.command("strace");
    assert!(
        strace
            .args(["-f", "-o", "/dev/null"])
            .arg(&program)
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    );
    tool.say("");
    let (_, _, errors) = tool.finish();
    let told = errors.join("\n");
    assert!(told.contains("already traced") && !told.contains("too many programs"), "{told}");
}

#[test]
fn what_a_loader_executes_is_seen_from_its_first_instruction() {
    for bench in benches() {
        let program = bench.copy(&brief());
        let probe = format!("uprobe:{}:wanted {{ @ = count(); }}", program.display());
        let call = "tracepoint:syscalls:sys_enter_exit_group /pid == cpid/ { @[comm] = count(); }";
        let count = format!("@[{}]: 1", program.file_name().expect("a name").display());
        for (script, told) in [(probe.as_str(), "@: 1000"), (call, &count)] {
            let mut load = bench.load("bpftrace");
            load.args(["-c", program.to_str().expect("a plain name"), "-e", script]);
            let (code, out, errors) = Process::start(load.stdin(Stdio::null())).finish();
            assert_eq!(code, Some(0), "{errors:?}");
            assert!(out.contains(&told.to_owned()), "{out:?} {errors:?}");
            assert!(!errors.iter().any(|line| line.starts_with("ring3:")), "{errors:?}");
        }
    }
}

/// It has the filter of the loader's calls still.
#[test]
fn what_a_loader_executed_is_left_after_the_loader_ends() {
    for bench in benches() {
        let program = bench.copy(&shapes());
        let mut load = bench.load("sh");
        // (What runs in the background has no standard input otherwise.)
        load.args(["-c", "exec 3<&0; \"$0\" plain 7 <&3 & echo $!; exec \"$1\" \"$2\""]);
        load.args([&program, &example("malloc")]).arg(of(&program, "plain"));
        let mut tool = Process::start(load.stdin(Stdio::piped()));
        let victim: u32 = tool.line().parse().expect("a number");
        wait_until("it is a target", || bench.is_target(victim));
        tool.signal(rustix::process::Signal::KILL);
        wait_until("it is no target any more", || !bench.is_target(victim));
        assert_text_is_as_in_its_files(victim);
    }
}

#[test]
fn libraries_that_are_opened_later_are_seen() {
    for bench in benches() {
        let library = bench.copy(&victim("liblibrary.so", "gcc", "library.c", &["-shared", "-fPIC"]));
        let opener = bench.copy(&victim("opener", "gcc", "opener.c", &[]));
        let probe = of(&library, "in_library");
        let _tool = bench.counting(&[&probe]);
        let mut process = ready(bench.command(&opener).arg(&library));
        assert!(!bench.is_target(process.pid()));
        process.say("");
        assert_eq!(process.line(), "opened");
        wait_until("it is a target", || bench.is_target(process.pid()));
    }
}

/// Has a target fork, and waits until the fork executes `sleep` and is no target any more: its id.
fn fork_that_sleeps(bench: &Bench, parent: &mut Process) -> u32 {
    parent.say("");
    let child: u32 = parent.line().parse().expect("a process id");
    let runs = || std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
    wait_until("it executes a program", || runs() == "sleep\n");
    wait_until("the program is no target", || bench.targets() == [u64::from(parent.pid())]);
    child
}

#[test]
fn forks_of_a_seen_process_are_targets_and_what_they_execute_is_not() {
    for bench in benches() {
        let program = bench.copy(&brief());
        let probe = of(&program, "wanted");
        let mut parent = ready(bench.command(&program).args(["/bin/sleep", "1000"]));
        let mut tool = bench.counting(&[&probe]);
        assert_eq!(bench.targets(), [u64::from(parent.pid())]);
        let child = fork_that_sleeps(&bench, &mut parent);
        assert_eq!(tool.report().get(&(child, probe.clone())), Some(&1), "the fork was one");
        ring3_tests::kill(child);
    }
}

#[test]
fn programs_that_map_no_probed_library_are_let_go() {
    for bench in benches() {
        let library = bench.copy(&victim("liblibrary.so", "gcc", "library.c", &["-shared", "-fPIC"]));
        let program = bench.copy(&victim("brief-dynamic", "gcc", "brief.c", &[]));
        let mut command = bench.command(&program);
        // (`env` maps it, and so is one; `sleep` is a dynamic program, too, and might.)
        command.args(["/usr/bin/env", "-u", "LD_PRELOAD", "/bin/sleep", "1000"]).env("LD_PRELOAD", &library);
        let mut parent = ready(&mut command);
        let _tool = bench.counting(&[&of(&library, "in_library")]);
        assert_eq!(bench.targets(), [u64::from(parent.pid())]);
        let child = fork_that_sleeps(&bench, &mut parent);
        ring3_tests::kill(child);
    }
}

#[test]
fn what_is_not_traced_is_said() {
    let (bench, other) = (bench(), Bench::ring3());
    let program = bench.copy(&shapes());
    let mut victim = ready(other.target(&program).args(["plain", "10"]));
    let probe = of(&program, "plain");
    let mut tools = vec![];
    for _ in 0..2 {
        let mut tool = Process::start(bench.load(example("malloc")).arg(&probe));
        assert_eq!(tool.line(), "attached 1");
        tools.push(tool);
    }
    let status = bench.status();
    let not_traced = &status["server"]["not_traced"];
    assert_eq!(not_traced[0][0], victim.pid(), "{not_traced}");
    victim.say("go");
    assert_eq!(victim.line(), "10");
    for tool in tools {
        tool.signal(rustix::process::Signal::TERM);
        let (_, _, errors) = tool.finish();
        let told = errors.join("\n");
        assert!(told.contains(&format!("not traced: {}", victim.pid())), "{told}");
        assert!(told.contains("another ring3 server"), "{told}");
    }
}

#[test]
fn only_targets_are_seen_where_that_is_asked_for() {
    let bench = Bench::ring3();
    let program = bench.copy(&shapes());
    let probe = of(&program, "plain");
    let mut victim = ready(bench.command(&program).args(["plain", "10"]));
    let mut tool = bench.counting(&[&probe]);
    victim.say("go");
    assert_eq!(victim.line(), "10");
    assert_eq!((tool.total(&probe), bench.targets()), (0, vec![]));
}

#[test]
fn that_no_process_is_traced_is_said_once_and_not_where_the_next_probe_finds_one() {
    let bench = bench().seeing(None);
    let program = bench.copy(&shapes());
    let mut victim = ready(bench.command(&program).args(["plain", "10"]));
    let system_calls = "tracepoint:syscalls:sys_enter_write, tracepoint:syscalls:sys_exit_write { @ = count(); }";
    let run = |probe: &str| {
        let script = format!("{system_calls} {probe} interval:s:1 {{ exit(); }}");
        let (_, _, errors) = Process::start(bench.load("bpftrace").args(["-q", "-e", &script])).finish();
        errors.iter().filter(|line| line.contains("no process is traced yet")).count()
    };
    let probe = format!("uprobe:{}:plain {{ @calls = count(); }}", program.display());
    assert_eq!((run(&probe), run("")), (0, 1));
    victim.say("go");
    assert_eq!(victim.line(), "10");
}

/// A tool that sees targets only is told that there are none, be it that it probes functions.
#[test]
fn that_there_are_no_targets_is_said_to_who_sees_those_only() {
    let bench = Bench::ring3();
    let program = bench.copy(&shapes());
    let script = format!("uprobe:{}:plain {{ @ = count(); }} interval:s:1 {{ exit(); }}", program.display());
    let (_, _, errors) = Process::start(bench.load("bpftrace").args(["-q", "-e", &script])).finish();
    assert!(errors.iter().any(|line| line.contains("with `--only-targets` a tool sees targets only")), "{errors:?}");
}

/// As `opensnoop -p PID` does, which attaches to a tracepoint and compares the process id.
#[test]
fn a_process_that_a_program_names_is_traced() {
    for bench in benches() {
        let program = bench.copy(&shapes());
        let mut victim = ready(bench.command(&program).args(["plain", "10"]));
        let bystander = ready(bench.command(&program).args(["plain", "10"]));
        let script = |pid: u32| {
            format!(
                "BEGIN {{ printf(\"attached\\n\"); }} tracepoint:syscalls:sys_exit_write /pid == {pid}/ {{ @ = count(); }}"
            )
        };
        let mut tool = Process::start(bench.load("bpftrace").args(["-q", "-e", &script(victim.pid())]));
        assert_eq!(tool.line(), "attached");
        wait_until("it is a target", || bench.is_target(victim.pid()));
        assert!(!bench.is_target(bystander.pid()));
        victim.say("go");
        assert_eq!(victim.line(), "10");
        tool.signal(rustix::process::Signal::INT);
        let (_, lines, errors) = tool.finish();
        assert!(lines.contains(&"@: 1".to_owned()), "{lines:?} {errors:?}");
    }
}

#[test]
fn that_a_process_that_a_program_names_may_not_be_traced_is_said() {
    if !is_root() {
        println!("SKIPPED: needs a process of another user");
        return;
    }
    let bench = Bench::ring3_as(USER).seeing(None);
    let root = ready(Bench::native().command(shapes()).args(["plain", "10"]));
    let script = format!(
        "tracepoint:syscalls:sys_exit_write /pid == {}/ {{ @ = count(); }} interval:s:1 {{ exit(); }}",
        root.pid()
    );
    // (The second tool's user is told, too.)
    for _ in 0..2 {
        let (_, _, errors) = Process::start(bench.load("bpftrace").args(["-e", &script])).finish();
        let told = errors.join("\n");
        assert!(told.contains(&format!("not traced: {} (", root.pid())) && told.contains("not permitted"), "{told}");
    }
}

/// The kernel shows the memory of such a process by no process id.
#[test]
fn that_a_process_whose_first_thread_has_ended_is_not_traced_is_said() {
    let bench = bench().seeing(None);
    let program = bench.copy(&ring3_tests::victim("leaderless", "gcc", "leaderless.c", &[]));
    let victim = ready(bench.command(&program).stdin(Stdio::piped()));
    let why = "the first thread of process";
    let (code, _, error) = bench.run(&["attach", &victim.pid().to_string()]);
    assert!(code == Some(1) && error.contains(why), "{code:?} {error}");
    let script = format!("uprobe:{}:called {{ @ = count(); }} interval:s:1 {{ exit(); }}", program.display());
    let (_, _, errors) = Process::start(bench.load("bpftrace").args(["-e", &script])).finish();
    let told = errors.join("\n");
    assert!(told.contains(&format!("not traced: {} (", victim.pid())) && told.contains(why), "{told}");
    // From its start it can be.
    let mut tool = bench.counting(&[&of(&program, "called")]);
    let mut victim = ready(bench.target(&program).stdin(Stdio::piped()));
    victim.say("four");
    wait_until("the calls are counted", || tool.total(&of(&program, "called")) == 5);
    let (code, told, error) = bench.run(&["detach", "--verify", &victim.pid().to_string()]);
    assert!(code == Some(0) && told.contains("nothing of ring3 is left"), "{code:?} {told} {error}");
    victim.say("five");
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn one_users_many_processes_leave_room_for_those_of_others() {
    if !is_root() {
        println!("SKIPPED: it needs processes of another user");
        return;
    }
    let bench = bench();
    // The server may have 256 descriptors, half of them for targets that nobody has named.
    let mut first = bench.command("prlimit");
    let code = first.arg("--nofile=256").arg(ring3()).args(["start", "--", "/bin/true"]).status();
    assert!(code.expect("prlimit runs").success());
    let theirs = Bench::ring3_as(USER + 11);
    let program = theirs.copy(&shapes());
    let many: Vec<Process> = (0..30).map(|_| ready(theirs.command(&program).args(["plain", "10"]))).collect();
    let mut tool = bench.counting(&[&of(&program, "plain")]);
    let own = ready(bench.command(&program).args(["plain", "10"]));
    wait_until("root's is a target", || bench.is_target(own.pid()));
    let taken = many.iter().filter(|process| bench.is_target(process.pid())).count();
    assert!((10..=21).contains(&taken), "{taken}");
    wait_until("that is said", || {
        tool.tool.errors_so_far().iter().any(|line| line.contains(&format!("user {} holds", USER + 11)))
    });
}

/// Nobody stops the other process while code is changed.
#[test]
fn a_process_that_shares_its_memory_with_another_one_is_refused() {
    let bench = bench().seeing(None);
    let program = bench.copy(&victim("sharing", "gcc", "sharing.c", &[]));
    let mut sharing = ready(&mut bench.command(&program));
    let why = "shares its memory with process";
    let (code, _, error) = bench.run(&["attach", &sharing.pid().to_string()]);
    assert!(code == Some(1) && error.contains(why), "{code:?} {error}");
    let script = format!("uretprobe:{}:called {{ @ = count(); }} interval:s:1 {{ exit(); }}", program.display());
    let (_, _, errors) = Process::start(bench.load("bpftrace").args(["-e", &script])).finish();
    assert!(errors.join("\n").contains(why), "{errors:?}");
    sharing.signal(rustix::process::Signal::TERM);
    assert_eq!(sharing.wait(), Some(0));
}

#[test]
fn system_calls_of_all_processes_are_seen_where_that_is_asked_for() {
    if !is_root() {
        println!("SKIPPED: it needs a user who runs nothing else, and so root");
        return;
    }
    let bench = Bench::ring3_as(USER + 1).seeing(Some("--all"));
    let program = bench.copy(&shapes());
    let victim = ready(bench.command(&program).args(["plain", "10"]));
    let mut tool = Process::start(bench.load_with_tracefs(programs().join("calls")).arg("raw"));
    assert_eq!(tool.line(), "attached");
    assert!(bench.is_target(victim.pid()));
    let later = ready(bench.command(&program).args(["plain", "10"]));
    wait_until("it is a target", || bench.is_target(later.pid()));
    assert!(!bench.is_target(tool.pid()), "the tool itself is left as it is");
}

#[test]
fn processes_of_ring3_are_left_alone_whichever_server_they_are_of() {
    if !is_root() {
        println!("SKIPPED: it needs a user who runs nothing else, and so root");
        return;
    }
    let bench = Bench::ring3_as(USER + 2).seeing(Some("--all"));
    let other = Bench::ring3_as(USER + 2);
    // (Another file than the one that `bench` runs.)
    let another_ring3 = other.copy(&ring3());
    let named = another_ring3.with_file_name("ring3");
    std::fs::rename(&another_ring3, &named).expect("a name for it");
    assert!(other.command(&named).arg("serve").status().expect("it runs").success());
    let mut victim = ready(bench.command(shapes()).args(["plain", "10"]));
    let mut tool = Process::start(bench.load_with_tracefs(programs().join("calls")).arg("raw"));
    assert_eq!(tool.line(), "attached");
    assert_eq!(bench.targets(), [u64::from(victim.pid())]);
    let status = bench.status();
    assert_eq!(status["server"]["not_traced"], serde_json::json!([]));
    victim.say("go");
    assert_eq!(victim.line(), "10");
    tool.signal(rustix::process::Signal::TERM);
    // (Neither the servers' files nor the tool's are analysed, which would take seconds.)
    let (_, _, errors) = tool.finish();
    assert!(!errors.join("\n").contains("not traced"), "{errors:?}");
}

#[test]
fn a_tool_of_system_calls_waits_for_processes_whose_large_files_have_to_be_analysed() {
    if !is_root() {
        println!("SKIPPED: it needs a user who runs nothing else, and so root");
        return;
    }
    let bench = Bench::ring3_as(USER + 9).seeing(Some("--all"));
    let program = bench.copy(&victim("large", "gcc", "large.c", &[]));
    let mut victims: Vec<Process> = (0..3).map(|_| ready(&mut bench.command(&program))).collect();
    let mut tool = Process::start(bench.load_with_tracefs(programs().join("calls")).arg("raw"));
    assert_eq!(tool.line(), "attached");
    let targets = bench.targets();
    assert!(victims.iter().all(|victim| targets.contains(&victim.pid().into())), "{targets:?}");
    for process in &mut victims {
        process.say("go");
        assert_eq!(process.line(), "2000");
    }
}

#[test]
fn an_ordinary_users_tool_may_be_started_by_another_program() {
    for bench in benches() {
        for words in [&["timeout", "20", "bpftrace"][..], &["sh", "-c", "bpftrace \"$@\"", "sh"]] {
            let mut load = bench.load(words[0]);
            load.args(&words[1..]).args(["-e", "BEGIN { printf(\"begun\\n\"); exit(); }"]);
            let (code, lines, errors) = Process::start(load.stdin(Stdio::null())).finish();
            assert!(code == Some(0) && lines.contains(&"begun".to_owned()), "{words:?} {lines:?} {errors:?}");
        }
    }
}

#[test]
fn that_a_tools_own_program_is_no_target_is_said() {
    let bench = Bench::ring3();
    let program = bench.copy(&brief());
    let script = format!("uprobe:{}:wanted {{ @ = count(); }}", program.display());
    let mut load = bench.load("bpftrace");
    load.args(["-c", program.to_str().expect("a plain name"), "-e", &script]);
    let (_, _, errors) = Process::start(load.stdin(Stdio::null())).finish();
    let told: Vec<&String> = errors.iter().filter(|line| line.starts_with("ring3: ")).collect();
    assert!(told.len() == 1 && told[0].contains("is not traced: with `--only-targets`"), "{errors:?}");
}
