//! What newcomers type wrong: each message says what happened, why, and what to do about it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use ring3_tests::{Bench, is_root};

/// Runs `ring3`; it must fail with this code and say all of this. Lines that begin with `ring3: ` are ours, others are clap's.
fn says(bench: &Bench, arguments: &[&str], code: i32, words: &[&str]) {
    let (got, out, error) = bench.run(arguments);
    check(&format!("{arguments:?}"), got, &out, &error, code, words);
}

fn check(what: &str, got: Option<i32>, out: &str, error: &str, code: i32, words: &[&str]) {
    assert_eq!((got, out), (Some(code), ""), "{what}: {error}");
    assert!(error.starts_with("ring3: ") || error.starts_with("error: "), "{what}: {error}");
    for word in words {
        assert!(error.contains(word), "{what}: no {word:?} in: {error}");
    }
}

#[test]
fn wrong_command_lines_are_explained() {
    let bench = Bench::ring3();
    says(&bench, &["trase"], 2, &["unrecognized subcommand 'trase'", "--help"]);
    says(&bench, &["load"], 2, &["<TOOL>", "Usage: ring3 load", "--help"]);
    says(&bench, &["load", "--"], 2, &["<TOOL>", "Usage: ring3 load"]);
    says(&bench, &["start"], 2, &["<PROGRAM>", "Usage: ring3 start"]);
    says(&bench, &["attach"], 2, &["<PID>", "Usage: ring3 attach"]);
    says(&bench, &["attach", "nginx"], 2, &["a process id is a whole number", "pgrep"]);
    says(&bench, &["detach", "-1"], 2, &["-1"]);
    says(&bench, &["status", "--trace", "--json"], 2, &["'--trace' cannot be used with '--json'"]);
    says(&bench, &["aot", "prog.o"], 2, &["--output <FILE>"]);
    says(&bench, &["load", "--engine", "gcc", "true"], 2, &["'gcc'", "auto, jit, llvm"]);
    says(&bench, &["exec", "--repeat", "0", "-"], 2, &["'0'", "--repeat"]);
    says(&bench, &["load", "--al", "--", "true"], 2, &["unknown option --al", "did you mean `--all`?"]);
    says(&bench, &["start", "-x", "true"], 2, &["unknown option -x", "`ring3 start --help`"]);
    says(&bench, &["trace", "-f", "true"], 2, &["unknown option -f", "`ring3 trace --help`"]);
    says(&bench, &["trace", "-s", "x", "true"], 2, &["'x'", "a whole number of bytes, from 0 to 4096"]);
    says(&bench, &["trace", "-e", "opneat", "true"], 2, &["opneat", "did you mean openat?"]);
    says(
        &bench,
        &["convert", "/etc/passwd", "--to", "perfetto", "-o", "/dev/null"],
        2,
        &["/etc/passwd is a file", "`ring3 record`"],
    );
}

#[test]
fn what_has_no_server_says_how_to_get_one() {
    let bench = Bench::ring3();
    let words = ["no ring3 server is running", "`ring3 load`, `start` or `attach` starts one", "RING3_RUNTIME_DIR"];
    says(&bench, &["unpin", "/sys/fs/bpf/x"], 1, &words);
    says(&bench, &["symbols", "1", "-o", "/dev/null"], 1, &words);
    says(&bench, &["status", "--trace"], 1, &words);
}

#[test]
fn programs_that_cannot_be_run_are_named_with_what_to_do() {
    let bench = Bench::ring3();
    says(&bench, &["load", "--", "no-such-tool"], 127, &["no such program in PATH", "install it"]);
    says(&bench, &["start", "--", "/etc/passwd"], 126, &["/etc/passwd", "not an executable file", "chmod +x"]);
    says(&bench, &["start", "--", "/etc"], 126, &["/etc", "it is a directory"]);
    says(&bench, &["start", "--", "./nowhere"], 127, &["./nowhere", "No such file"]);
}

#[test]
fn files_that_are_something_else_are_named_with_what_is_wanted() {
    let bench = Bench::ring3();
    for command in ["verify", "disasm", "exec", "asm"] {
        let code = if command == "verify" { 2 } else { 1 };
        says(&bench, &[command, "/no/where"], code, &["cannot read /no/where", "No such file"]);
    }
    says(&bench, &["verify", "/bin/true"], 2, &["/bin/true", "not a BPF object file", "clang -target bpf"]);
    says(&bench, &["verify", "/etc/passwd"], 2, &["/etc/passwd", "not a BPF object file"]);
    says(&bench, &["aot", "/bin/true", "-o", "/dev/null"], 1, &["/bin/true", "not a BPF object file"]);
    says(&bench, &["exec", "/etc/passwd"], 1, &["/etc/passwd", "not an ELF file", "assembler text", "line 1"]);
    says(&bench, &["asm", "/bin/true"], 1, &["/bin/true is not text", "ring3 disasm"]);
    says(&bench, &["load", "--aot", "/etc/passwd", "true"], 1, &["/etc/passwd", "not a file that `ring3 aot` wrote"]);
    says(&bench, &["load", "--aot", "/no/where", "true"], 1, &["/no/where", "No such file"]);
}

#[test]
fn targets_that_are_none_are_named_and_a_command_shows_them() {
    let bench = Bench::ring3();
    assert_eq!(bench.run(&["start", "--", "true"]).0, Some(0));
    for words in [&["detach", "1"][..], &["symbols", "1", "-o", "/dev/null"]] {
        says(&bench, words, 1, &["process 1 is not a target", "`ring3 status` shows"]);
    }
    says(&bench, &["unpin", "/sys/fs/bpf/x"], 1, &["nothing is pinned as /sys/fs/bpf/x", "ring3 status"]);
}

#[test]
fn a_tool_inside_a_tool_is_told_that_its_calls_are_answered_already() {
    let bench = Bench::ring3();
    let ring3 = ring3_tests::ring3();
    let ring3 = ring3.to_str().expect("a plain name");
    let words = ["already answers system calls of this process", "another `ring3 load`", "outside of it"];
    says(&bench, &["load", "--", ring3, "load", "--", "true"], 1, &words);
}

#[test]
fn environment_variables_that_cannot_be_used_are_named() {
    let bench = Bench::ring3();
    let run = |variable: &str, value: &str, arguments: &[&str]| {
        let mut command = bench.ring3_command(arguments);
        let output = command.env(variable, value).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for (value, words) in [
        ("relative/place", &["RING3_RUNTIME_DIR", "relative/place", "absolute"][..]),
        ("", &["RING3_RUNTIME_DIR", "absolute"]),
        ("/proc/ring3", &["cannot create the runtime directory /proc/ring3", "RING3_RUNTIME_DIR"]),
        ("/etc/passwd", &["/etc/passwd", "RING3_RUNTIME_DIR"]),
    ] {
        for arguments in [&["status"][..], &["start", "--", "true"]] {
            let (code, out, error) = run("RING3_RUNTIME_DIR", value, arguments);
            check(value, code, &out, &error, 1, words);
        }
    }
    let (code, out, error) = run("RING3_LOG", "ring3=loud", &["start", "--", "true"]);
    check("RING3_LOG", code, &out, &error, 1, &["RING3_LOG=ring3=loud", "warn, info or debug"]);
}

#[test]
fn an_ordinary_user_is_told_whose_a_process_is_and_what_to_do() {
    /// Nobody else's.
    const USER: u32 = 61_235;
    if !is_root() {
        println!("SKIPPED: only root runs something as another user");
        return;
    }
    let place = std::env::temp_dir().join(format!("ring3-test-messages-{}", std::process::id()));
    std::fs::create_dir(&place).expect("made");
    std::os::unix::fs::chown(&place, Some(USER), Some(USER)).expect("given away");
    let run = |directory: &str, arguments: &[&str]| {
        let mut command = Command::new(ring3_tests::ring3());
        command.uid(USER).gid(USER).current_dir("/").env("RING3_RUNTIME_DIR", directory);
        let output = command.args(arguments).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let own = place.join("run");
    let own = own.to_str().expect("a plain name");
    let (code, out, error) = run(own, &["attach", "1"]);
    check("attach 1", code, &out, &error, 1, &["not permitted", "user 0", &USER.to_string(), "as root"]);
    assert_eq!(run(own, &["stop"]).0, Some(0));
    let (code, out, error) = run("/no/where", &["start", "--", "true"]);
    check("/no/where", code, &out, &error, 1, &["/no/where", "Permission denied", "RING3_RUNTIME_DIR"]);
    let (code, out, error) = run("/root", &["status"]);
    check("/root", code, &out, &error, 1, &["/root", "must be a directory of user", "mode 700", "RING3_RUNTIME_DIR"]);
    let (code, out, error) = run(own, &["asm", "/etc/hostname", "-o", "/no/where"]);
    assert!(code == Some(1) && out.is_empty() && error.starts_with("ring3: /etc/hostname: line 1"), "{error}");
    std::fs::remove_dir_all(&place).expect("removed");
}
