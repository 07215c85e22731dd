//! What newcomers type wrong: each message says what happened, why, and what to do about it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use ring3_tests::{Bench, Process, is_root, lacks, ready};

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
    let pid = ["a process id is a whole number, at least 1", "pgrep"];
    for arguments in
        [&["detach", "-1"][..], &["attach", "-5"], &["attach", "0"], &["trace", "-p", "-5"], &["trace", "-p", "x"]]
    {
        says(&bench, arguments, 2, &pid);
    }
    says(&bench, &["status", "--trace", "--json"], 2, &["'--trace' cannot be used with '--json'"]);
    says(&bench, &["aot", "prog.o"], 2, &["--output <FILE>"]);
    says(&bench, &["load", "--engine", "gcc", "true"], 2, &["'gcc'", "auto, jit, llvm"]);
    says(&bench, &["exec", "--repeat", "0", "-"], 2, &["'0'", "--repeat"]);
    says(&bench, &["load", "--al", "--", "true"], 2, &["unknown option --al", "did you mean `--all`?"]);
    says(&bench, &["start", "-x", "true"], 2, &["unknown option -x", "`ring3 start --help`"]);
    says(&bench, &["trace", "-k", "true"], 2, &["unknown option -k", "`ring3 trace --help`"]);
    for option in ["-y", "-yy"] {
        says(&bench, &["trace", option, "true"], 2, &["-y", "no paths of descriptors", "`ring3 load -- strace -y`"]);
    }
    for event in ["uprobe:nosuch:main", "uprobe:libnosuch.so:main"] {
        says(
            &bench,
            &["trace", "-e", event, "true"],
            2,
            &["cannot open", "nor is there a program or library of that name"],
        );
    }
    says(&bench, &["trace", ""], 127, &["the program's name is empty"]);
    says(&bench, &["trace", "-s", "x", "true"], 2, &["'x'", "a whole number of bytes, from 0 to 4096"]);
    for (event, words) in [
        ("opneat", ["there is no such system call", "did you mean openat?"]),
        ("open_at", ["there is no such system call", "did you mean openat, open"]),
        ("%netwrok", ["there is no such group", "did you mean %network?"]),
        ("uprob:/bin/true:main", ["there is no such event", "did you mean uprobe:/bin/true:main?"]),
        ("tracepoint:sched:sched_wakeup", ["there is no such event", "tracepoint:sched:sched_process_exit"]),
    ] {
        says(&bench, &["trace", "-e", event, "true"], 2, &words);
    }
    for (filter, words) in [
        ("pid == 1 && rett < 0", ["did you mean `ret`?", "\n    pid == 1 && rett < 0\n                ^^^^\n"]),
        ("ret == ENOENTT", ["did you mean `ENOENT` or", "\n    ret == ENOENTT\n           ^^^^^^^\n"]),
        ("flags & O_RDONYL", ["did you mean `O_RDONLY`", "\n    flags & O_RDONYL\n            ^^^^^^^^\n"]),
    ] {
        says(&bench, &["trace", "--filter", filter, "true"], 2, &words);
    }
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
    let long = bench.directory().join("a".repeat(108));
    for arguments in [&["status"][..], &["start", "--", "true"]] {
        let (code, out, error) = run("RING3_RUNTIME_DIR", long.to_str().expect("a plain name"), arguments);
        check("long", code, &out, &error, 1, &["is too long for a socket", "RING3_RUNTIME_DIR", "at most 95 bytes"]);
    }
    let (code, out, error) = run("RING3_LOG", "ring3=loud", &["start", "--", "true"]);
    check("RING3_LOG", code, &out, &error, 1, &["RING3_LOG=ring3=loud", "warn, info or debug"]);
    let (code, out, error) = run("RING3_LOG", "loud", &["start", "--", "true"]);
    check("RING3_LOG", code, &out, &error, 1, &["RING3_LOG=loud", "\"loud\" is no level", "warn, info or debug"]);
    let (code, out, error) = run("RING3_IDLE_SECONDS", "abc", &["start", "--", "true"]);
    check("RING3_IDLE_SECONDS", code, &out, &error, 1, &["RING3_IDLE_SECONDS=abc", "whole number of seconds"]);
}

#[test]
fn which_tracepoint_of_the_kernels_a_tool_wants_is_said_on_its_terminal() {
    for (tool, told) in [
        ("runqlat", "ring3: raw tracepoint sched_wakeup is the kernel's own; in user space there are "),
        ("offcputime", "raw tracepoint sched_switch is the kernel's own; with types there are "),
    ] {
        let tool = std::path::Path::new("/usr/sbin").join(tool);
        if !tool.exists() {
            println!("SKIPPED IN PART: {} is not installed", tool.display());
            continue;
        }
        let (_, _, errors) = Process::start(&mut Bench::ring3().load(&tool)).finish();
        let said: Vec<&String> = errors.iter().filter(|line| line.starts_with("ring3: ")).collect();
        assert!(said.iter().any(|line| line.contains(told)), "{errors:?}");
    }
}

#[test]
fn of_a_tracepoint_that_a_tool_does_not_find_an_ordinary_user_is_told_whose_it_is() {
    if lacks("bpftrace") || !is_root() {
        println!("SKIPPED: needs bpftrace, and root to become another user");
        return;
    }
    let bench = Bench::ring3_as(65534);
    let program = "tracepoint:block:block_rq_issue { @ = count(); }";
    let (code, _, errors) = Process::start(bench.load("bpftrace").args(["-e", program])).finish();
    let said: Vec<&String> = errors.iter().filter(|line| line.starts_with("ring3: ")).collect();
    let is_it = said.len() == 1 && said[0].starts_with("ring3: tracepoint block:block_rq_issue is the kernel's");
    assert!(code != Some(0) && is_it && said[0].contains("root sees it without ring3"), "{errors:?}");
}

#[test]
fn a_tool_that_asks_the_same_several_times_is_told_once() {
    if lacks("bpftrace") {
        return;
    }
    let bench = Bench::ring3();
    let (code, _, errors) = Process::start(bench.load("bpftrace").arg("--info")).finish();
    let mut said: Vec<&String> = errors.iter().filter(|line| line.starts_with("ring3: ")).collect();
    let count = said.len();
    said.sort();
    said.dedup();
    assert!(code == Some(0) && said.len() == count, "{errors:?}");
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

#[test]
fn a_small_stack_is_an_error_that_says_how_to_raise_it() {
    let bench = Bench::ring3();
    for command in ["status", "start -- true"] {
        let script = format!("ulimit -s 64; exec \"$0\" {command}");
        let output = bench.command("sh").args(["-c", &script]).arg(ring3_tests::ring3()).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        check(command, output.status.code(), "", &error, 1, &["limited to 64 KiB", "`ulimit -s 8192`"]);
    }
}

#[test]
fn that_another_server_has_a_process_is_said_on_the_tools_terminal_with_the_command_that_helps() {
    let (other, bench) = (Bench::ring3(), Bench::ring3());
    let mut victim = ready(Bench::native().command(ring3_tests::shapes()).args(["plain", "3"]));
    let pid = victim.pid().to_string();
    assert_eq!(other.run(&["attach", &pid]).0, Some(0));
    let help = format!("run `RING3_RUNTIME_DIR={} ring3 detach {pid}` first", other.directory().display());
    says(&bench, &["attach", &pid], 1, &["is a target of another ring3 server", &help]);
    let probe = format!("{}:plain", ring3_tests::shapes().display());
    let tool = bench.load(ring3_tests::example("malloc")).args(["-p", &pid, &probe]).output().expect("it runs");
    let error = String::from_utf8_lossy(&tool.stderr);
    assert!(!tool.status.success());
    assert!(error.contains("ring3: not attached: ") && error.contains(&help), "{error}");
    // As in `opensnoop -p PID`, one program of two names the process.
    let script = format!(
        "tracepoint:syscalls:sys_enter_write /pid == {pid}/ {{ @ = count(); }} tracepoint:syscalls:sys_exit_write {{ @ends = count(); }}
         interval:s:1 {{ exit(); }}"
    );
    let bench = bench.seeing(None);
    let (_, _, errors) = Process::start(bench.load("bpftrace").args(["-q", "-e", &script])).finish();
    let told: Vec<&String> = errors.iter().filter(|line| line.starts_with("ring3: ")).collect();
    assert!(told.len() == 1 && told[0].contains("not traced: ") && told[0].contains(&help), "{errors:?}");
    victim.say("go");
    assert_eq!(victim.line(), "3");
}

#[test]
fn an_extension_that_is_verified_as_a_program_of_the_kernel_is_told_how_extensions_are() {
    let bench = Bench::ring3();
    let object = bench.made_directory().join("extension.o");
    let source = bench.made_directory().join("extension.bpf.c");
    let text = "extern int ring3_dynptr_from_slice(const void *, unsigned long long, void *) __attribute__((section(\".ksyms\")));
        __attribute__((section(\"uprobe\"))) int extension(void *ctx) { return ring3_dynptr_from_slice(ctx, 0, ctx); }";
    std::fs::write(&source, text).expect("written");
    let mut clang = Command::new("clang");
    let status = clang.args(["-O2", "-g", "-target", "bpf", "-c", "-o"]).args([&object, &source]).status();
    assert!(status.is_ok_and(|status| status.success()), "clang");
    let object = object.to_str().expect("a plain name");
    for (arguments, code) in [(&["verify", object][..], 2), (&["aot", object, "-o", "/dev/null"], 1)] {
        let words = ["ring3_dynptr_from_slice is a function that ring3 has for extensions", "`ring3 extend --class"];
        says(&bench, arguments, code, &words);
    }
}
