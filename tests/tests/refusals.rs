//! Bad input: a clear message, an exit code that scripts know, the kernel's errno for tools, nothing harmed.

use std::path::Path;
use std::process::Command;

use ring3_tests::{Bench, Footprint, Process, example, is_root, ready, shapes, victim, wait_until};

/// Runs `ring3`; it must fail with this code and a message with all of these words.
fn refused(bench: &Bench, arguments: &[&str], code: i32, words: &[&str]) {
    let (got, out, error) = bench.run(arguments);
    assert_eq!((got, out.as_str()), (Some(code), ""), "{arguments:?}: {error}");
    let ours = error.strip_prefix("ring3: ").unwrap_or_else(|| panic!("{arguments:?}: {error}"));
    assert_eq!(ours.trim_end().lines().count(), 1, "{arguments:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{arguments:?}: no {word:?} in: {error}");
    }
}

/// A process that sleeps; killed when dropped.
fn sleeper() -> Process {
    let process = Process::start(Command::new("sleep").arg("1000"));
    let call = format!("/proc/{}/syscall", process.pid());
    let clock_nanosleep = "230 ";
    wait_until("it sleeps", || std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with(clock_nanosleep)));
    process
}

#[test]
fn processes_that_cannot_be_targets_are_refused_with_the_reason() {
    let bench = Bench::ring3();
    let gone = Process::start(&mut Command::new("true"));
    let gone_pid = gone.pid().to_string();
    gone.finish();
    refused(&bench, &["attach", &gone_pid], 1, &["no process with id", &gone_pid]);
    refused(&bench, &["detach", &gone_pid], 1, &[&gone_pid, "is not a target", "ring3 status"]);
    refused(&bench, &["attach", &bench.server().to_string()], 1, &["not permitted"]);
    let narrow = ready(&mut Command::new(victim("narrow", "gcc", "narrow.S", &["-m32", "-nostdlib", "-static"])));
    refused(&bench, &["attach", &narrow.pid().to_string()], 1, &["32-bit", "only 64-bit x86-64"]);
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused(&bench, &["attach", "2"], 1, &["kernel thread"]);
    } else {
        println!("SKIPPED IN PART: no kernel thread to be seen here");
    }
}

#[test]
fn programs_under_valgrind_are_left_alone_with_the_reason() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIPPED: valgrind is not installed");
        return;
    }
    let bench = Bench::ring3();
    let mut tool = bench.load_with_tracefs(ring3_tests::programs().join("calls"));
    let mut tool = Process::start(tool.arg("raw"));
    assert_eq!(tool.line(), "attached");
    let words = ["valgrind", "-q", "--error-exitcode=3"];
    let (code, lines, errors) =
        Process::start(bench.target(words[0]).args(&words[1..]).args(["echo", "well"])).finish();
    assert_eq!((code, &lines[..]), (Some(0), &["well".to_owned()][..]), "{errors:?}");
    let sleeper = Process::start(Command::new(words[0]).args(&words[1..]).args(["sleep", "1000"]));
    let program = format!("/proc/{}/exe", sleeper.pid());
    let is_translated =
        || std::fs::read_link(&program).is_ok_and(|program| program.ends_with("memcheck-amd64-linux"));
    wait_until("valgrind runs it", is_translated);
    refused(&bench, &["attach", &sleeper.pid().to_string()], 1, &["runs under valgrind"]);
}

#[test]
fn a_process_under_a_debugger_is_refused_and_attachable_when_that_is_over() {
    let bench = Bench::ring3();
    let sleeper = sleeper();
    let pid = sleeper.pid().to_string();
    let strace = Process::start(Command::new("strace").args(["-o", "/dev/null", "-p", &pid]));
    let status = format!("/proc/{pid}/status");
    let tracer = format!("TracerPid:\t{}\n", strace.pid());
    wait_until("strace has attached", || std::fs::read_to_string(&status).is_ok_and(|text| text.contains(&tracer)));
    refused(&bench, &["attach", &pid], 1, &["already traced by process", &strace.pid().to_string()]);
    strace.signal(rustix::process::Signal::INT);
    strace.finish();
    assert_eq!(bench.run(&["attach", &pid]).0, Some(0));
}

#[test]
fn programs_that_cannot_run_give_the_codes_of_env() {
    let bench = Bench::ring3();
    let script = std::env::temp_dir().join(format!("ring3-test-script-{}", std::process::id()));
    std::fs::write(&script, "#!/no/such/interpreter\n").expect("written");
    Command::new("chmod").arg("755").arg(&script).status().expect("chmod runs");
    let script_name = script.to_str().expect("a name");
    for action in ["load", "start"] {
        refused(&bench, &[action, "--", "no-such-tool"], 127, &["no-such-tool", "PATH"]);
        refused(&bench, &[action, "--", "./no-such-tool"], 127, &["./no-such-tool", "No such file"]);
        refused(&bench, &[action, "--", "/etc/passwd"], 126, &["/etc/passwd", "not an executable"]);
        refused(&bench, &[action, "--", "/etc"], 126, &["/etc", "not an executable"]);
        refused(&bench, &[action, "--", script_name], 127, &[script_name, "No such file"]);
    }
    std::fs::remove_file(script).expect("removed");
}

#[test]
fn exit_codes_and_signals_of_tools_and_targets_are_passed_on() {
    use std::os::unix::process::ExitStatusExt;
    let bench = Bench::ring3();
    for action in ["load", "start"] {
        let ends_with = |script: &str| {
            bench.ring3_command(&[action, "--", "sh", "-c", script]).status().expect("ring3 runs").into_raw()
        };
        assert_eq!(ends_with("exit 7"), 7 << 8);
        assert_eq!(ends_with("kill -9 $$"), 9);
    }
}

/// What the example tool says of a probe that cannot be made.
fn complaint(bench: &Bench, probe: &str) -> (Option<i32>, Vec<String>, Vec<String>) {
    let mut command = bench.load(example("malloc"));
    Process::start(command.arg(probe)).finish()
}

#[test]
fn probes_that_cannot_be_made_give_tools_the_kernels_errors() {
    let bench = Bench::ring3();
    let directory = std::env::temp_dir().join(format!("ring3-test-elf-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("made");
    let damaged = directory.join("damaged");
    let mut bytes = std::fs::read(shapes()).expect("readable");
    bytes[40..48].fill(0xff);
    std::fs::write(&damaged, bytes).expect("written");
    let binary = shapes();
    let probe = |path: &Path, place: &str| format!("{}:{place}", path.display());
    for probe in [
        probe(&binary, "no_such_function"),
        probe(&binary, "0x9000000"),
        probe(&damaged, "plain"),
        probe(&directory.join("missing"), "0x10"),
        probe(&directory, "0x10"),
        probe(Path::new("/dev/null"), "0x10"),
    ] {
        let under_ring3 = complaint(&bench, &probe);
        assert!(under_ring3.0 != Some(0) && !under_ring3.2.is_empty(), "{probe}: {under_ring3:?}");
        if is_root() {
            assert_eq!(under_ring3, complaint(&Bench::native(), &probe), "{probe}");
        } else {
            println!("SKIPPED IN PART: the native half needs root");
        }
    }
    // The kernel waits for somebody to map such a file; ring3 says at once that nothing can come of it.
    for (path, why) in [(&damaged, "corrupt ELF"), (&directory.join("text"), "not an ELF file")] {
        if !path.exists() {
            std::fs::write(path, "text ".repeat(1000)).expect("written");
        }
        let (code, _, errors) = complaint(&bench, &probe(path, "0x10"));
        assert!(code != Some(0) && errors.iter().any(|line| line.contains("Invalid argument")), "{errors:?}");
        let log = std::fs::read_to_string(bench.directory().join("server.log")).expect("a log");
        assert!(log.lines().any(|line| line.contains(why) && line.contains("EINVAL")), "{log}");
    }
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_target_at_its_limits_is_refused_and_left_as_it_was() {
    let bench = Bench::ring3();
    let limits = [
        ("--nofile=3:3", ["Too many open files", "RLIMIT_NOFILE"]),
        ("--as=1000000:1000000", ["Cannot allocate memory", "RLIMIT_AS"]),
    ];
    for (limit, [why, which]) in limits {
        let sleeper = sleeper();
        let pid = sleeper.pid().to_string();
        let before = Footprint::of(sleeper.pid());
        let limited = Command::new("prlimit").args([limit, "--pid", &pid]).status().expect("prlimit runs");
        assert!(limited.success());
        refused(&bench, &["attach", &pid], 1, &["inside the process failed", why, which]);
        assert_eq!(Footprint::of(sleeper.pid()), before);
        refused(&bench, &["detach", &pid], 1, &["is not a target"]);
    }
}

#[test]
fn a_server_without_means_says_so_and_one_with_soft_limits_lifts_them() {
    let sleeper = sleeper();
    let pid = sleeper.pid().to_string();
    for (limit, why) in [("--nofile=16:16", "ulimit -n"), ("--fsize=4096:4096", "ulimit -f")] {
        let bench = Bench::ring3();
        let output = bench
            .command("prlimit")
            .arg(limit)
            .arg(ring3_tests::ring3())
            .args(["attach", &pid])
            .output()
            .expect("prlimit runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("cannot start the server") && error.contains(why), "{error}");
    }
    let bench = Bench::ring3();
    let mut command = bench.command("prlimit");
    command.args(["--nofile=16:", "--fsize=4096:"]).arg(ring3_tests::ring3()).args(["attach", &pid]);
    let output = command.output().expect("prlimit runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_full_disk_stops_nothing() {
    if !is_root() {
        println!("SKIPPED: mounting a small file system needs root");
        return;
    }
    let place = std::env::temp_dir().join(format!("ring3-test-full-{}", std::process::id()));
    let directory = place.join("run");
    // In a mount namespace of its own, which is gone with the shell.
    let script = r#"
        set -e
        mount -t tmpfs -o size=16k none "$1"
        mkdir -m 700 "$2"
        head -c 100000 /dev/zero > "$1/filler" 2>/dev/null || true
        "$3" attach "$4" && "$3" status && "$3" detach "$4" && "$3" stop
    "#;
    std::fs::create_dir_all(&place).expect("made");
    let sleeper = sleeper();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([&place, &directory, &ring3_tests::ring3()])
        .arg(sleeper.pid().to_string())
        .env("RING3_RUNTIME_DIR", &directory)
        .output()
        .expect("unshare runs");
    std::fs::remove_dir(&place).expect("removed");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_second_server_and_a_folder_for_everybody_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::ring3();
    assert_eq!(bench.run(&["attach", &sleeper().pid().to_string()]).0, Some(0));
    let directory = bench.directory().display().to_string();
    refused(&bench, &["serve"], 1, &["another ring3 server is running", &directory]);
    let open = Bench::ring3();
    std::fs::create_dir(open.directory()).expect("made");
    std::fs::set_permissions(open.directory(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    refused(&open, &["status"], 1, &["mode 700", "755", "RING3_RUNTIME_DIR"]);
    std::fs::set_permissions(open.directory(), std::fs::Permissions::from_mode(0o700)).expect("ours");
    assert_eq!(open.run(&["status"]).0, Some(0));
}

#[test]
fn a_session_folder_that_is_no_absolute_path_is_ignored() {
    use std::os::unix::process::CommandExt;
    /// Nobody else's.
    const USER: u32 = 61_234;
    if !is_root() {
        println!("SKIPPED: only root runs something as another user");
        return;
    }
    let place = std::env::temp_dir().join(format!("ring3-test-session-{}", std::process::id()));
    std::fs::create_dir(&place).expect("made");
    std::os::unix::fs::chown(&place, Some(USER), Some(USER)).expect("given away");
    let directory = format!("/tmp/ring3-{USER}");
    for session in ["", "relative"] {
        let mut command = Command::new(ring3_tests::ring3());
        command
            .uid(USER)
            .gid(USER)
            .current_dir(&place)
            .env_remove("RING3_RUNTIME_DIR")
            .env("XDG_RUNTIME_DIR", session);
        let output = command.arg("status").output().expect("it runs");
        assert!(output.status.success(), "{session:?}: {output:?}");
        std::fs::remove_dir(&directory).expect("this is the directory, and nothing is in it");
    }
    std::fs::remove_dir(&place).expect("nothing was put there");
}

#[test]
fn without_a_server_there_is_nothing_to_stop_and_nothing_to_show() {
    let bench = Bench::ring3();
    assert_eq!(bench.run(&["stop"]), (Some(0), "no server is running\n".to_owned(), String::new()));
    assert_eq!(bench.run(&["status", "--json"]), (Some(0), "{}\n".to_owned(), String::new()));
    let (code, out, _) = bench.run(&["status"]);
    assert!(code == Some(0) && out.contains("no server is running"), "{out}");
    refused(&bench, &["status", "--trace"], 1, &["no ring3 server is running"]);
}
