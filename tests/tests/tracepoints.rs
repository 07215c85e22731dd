//! Loaders find the tracepoints of system calls, whoever they are, and whether tracefs is there or not.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ring3_tests::{Bench, Process, calling_victims, is_root, programs, ring3, wait_until};

const NOBODY: u32 = 65534;
const EVENTS: &str = "/sys/kernel/tracing/events";

/// Benches of the users that there are: everybody's own, and root's of an ordinary user.
fn benches() -> Vec<Bench> {
    if is_root() {
        return vec![Bench::ring3(), Bench::ring3_as(NOBODY)];
    }
    println!("SKIPPED IN PART: to be another user needs root");
    vec![Bench::ring3()]
}

/// What a shell script prints as a loader.
fn script(bench: &Bench, text: &str) -> String {
    let output = bench.load("sh").args(["-c", text]).output().expect("sh runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn everybody_reads_the_same_files() {
    let read = format!(
        "cat {EVENTS}/syscalls/sys_enter_openat/format {EVENTS}/raw_syscalls/sys_exit/id; cd {EVENTS}/raw_syscalls 2>&-; \
         cat /sys/kernel/tracing/available_events | head -n 3; stat -c '%F %s' {EVENTS}/syscalls/sys_exit_openat; \
         test -r /sys/kernel/debug/tracing/{} && echo readable; test -w {EVENTS}/syscalls/sys_exit_read/id || echo not writable",
        "events/syscalls/sys_exit_openat/format",
    );
    let benches = benches();
    let read: Vec<String> = benches.iter().map(|bench| script(bench, &read)).collect();
    assert!(read.iter().all(|text| *text == read[0]), "{read:?}");
    let words = [
        "name: sys_enter_openat\n",
        "\tfield:const char * filename;\toffset:24;\tsize:8;\tsigned:0;\n",
        "raw_syscalls:sys_enter\nraw_syscalls:sys_exit\nsyscalls:sys_enter_read\n",
        "directory 0\nreadable\nnot writable\n",
    ];
    assert!(words.iter().all(|words| read[0].contains(words)), "{}", read[0]);
}

#[test]
fn calls_that_the_kernel_does_not_carry_out_are_not_listed() {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let symbols: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split_once(' ')).map(|(_, name)| name).collect();
    if !symbols.contains("T __x64_sys_getppid") {
        println!("SKIPPED: the kernel does not tell its functions");
        return;
    }
    for bench in benches() {
        let listed = script(&bench, "cat /sys/kernel/tracing/available_events");
        let calls: Vec<&str> = listed.lines().filter_map(|line| line.strip_prefix("syscalls:sys_enter_")).collect();
        assert!(calls.contains(&"getppid") && calls.len() > 300, "{listed}");
        let missing = |call: &&&str| !symbols.contains(format!("T __x64_sys_{call}").as_str());
        assert_eq!(calls.iter().filter(missing).count(), 0, "{listed}");
    }
}

#[test]
fn files_of_others_are_passed_on_unharmed() {
    let directory = std::env::temp_dir().join(format!("ring3-test-files-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("made");
    let bench = Bench::ring3();
    let work = format!(
        "cd {} && echo text > a && mkdir b && cp a b/../c && cat c ./b/../a && ln -s /sys/kernel/tracing d && \
         stat -c %s a && test ! -e none && cat none 2>&1; printf '\\377' > \"$(printf '\\377')\"; ls | wc -l",
        directory.display()
    );
    let told = script(&bench, &work);
    std::fs::remove_dir_all(&directory).expect("removed");
    assert_eq!(told, "text\ntext\n5\ncat: none: No such file or directory\n5\n");
}

#[test]
fn tools_find_their_tracepoints() {
    const TOOLS: [&str; 5] = ["opensnoop", "killsnoop", "mountsnoop", "execsnoop", "syscount"];
    if Command::new("dpkg").args(["-L", "libbpf-tools"]).output().map_or(true, |output| !output.status.success()) {
        println!("SKIPPED: libbpf-tools is not installed");
        return;
    }
    for bench in benches() {
        for tool in TOOLS {
            let attached = || bench.status()["links"].as_array().is_some_and(|links| !links.is_empty());
            let process = Process::start(&mut bench.load(tool));
            wait_until(&format!("{tool} has found its tracepoints"), attached);
            drop(process);
            wait_until("it is gone", || !attached());
        }
    }
}

/// A program that makes directories is told that one cannot be made, and made to make another; `refused` it says then.
fn refuse_and_change(maker: &Path, arguments: &[&str], refused: &str) {
    for bench in benches() {
        let directory = bench.directory().join("made");
        let make = |name: &str| {
            let mut command = bench.target(maker);
            let output = command.current_dir(&directory).args(arguments).arg(name).output().expect("it runs");
            (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
        };
        // The bench's directory is made by the first that runs there.
        let made = bench.target("mkdir").arg(&directory).status();
        assert!(made.expect("mkdir runs").success() && make("before").0);
        let mut tool = Process::start(&mut bench.load(programs().join("filter")));
        assert_eq!(tool.line(), "attached");
        let (made, words) = make("nothing");
        assert!(!made && words.contains(refused), "{words}");
        assert!(make("this").0);
        assert!(!make("before").0);
        tool.say("");
        assert_eq!(tool.line(), "1 1 1 2");
        assert_eq!(tool.finish().0, Some(0));
        let there = |name: &str| directory.join(name).is_dir();
        assert!(there("before") && there("that") && !there("this") && !there("nothing"));
        assert!(make("nothing").0, "the tool is gone");
    }
}

#[test]
fn programs_refuse_and_change_system_calls() {
    refuse_and_change(Path::new("mkdir"), &[], "Operation not permitted");
}

#[test]
fn programs_refuse_and_change_system_calls_where_threads_are_cancelled() {
    for kind in ["0", "1"] {
        refuse_and_change(&calling_victims("all").join("bridged"), &[kind], "-1\n");
    }
}

#[test]
fn children_are_followed_unless_they_are_not_to_be() {
    let bench = Bench::ring3();
    for (option, expected) in [("--follow", true), ("--no-follow", false)] {
        let mut tool = Process::start(bench.load(programs().join("calls")).arg("raw"));
        assert_eq!(tool.line(), "attached");
        let code = "(: ; exec /bin/sh -c 'kill -0 $$') ; true";
        let started = bench.ring3_command(&["start", option, "--", "sh", "-c", code]).status();
        assert!(started.expect("ring3 runs").success());
        tool.say("");
        let told: Vec<String> = std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "end")).collect();
        assert_eq!(told.iter().any(|line| line == "raw exit 62 1"), expected, "{option}: {told:?}");
        assert_eq!(tool.finish().0, Some(0));
    }
}

#[test]
fn programs_that_gain_privileges_keep_them() {
    if !is_root() {
        println!("SKIPPED: to make such a program needs root");
        return;
    }
    let bench = Bench::ring3_as(NOBODY);
    let mut tool = Process::start(bench.load(programs().join("calls")).arg("raw"));
    assert_eq!(tool.line(), "attached");
    let directory = std::env::temp_dir().join(format!("ring3-test-privileged-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("made");
    let program = directory.join("id");
    std::fs::copy("/usr/bin/id", &program).expect("copied");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("its mode is set");
    let user = NOBODY.to_string();
    let output_of = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(ring3()).args(["start", "--"]);
        let output = command.args(arguments).env("RING3_RUNTIME_DIR", bench.directory()).output().expect("it runs");
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let path = program.to_str().expect("a plain name");
    let (told, why) = output_of(&[path, "-u"]);
    let (told_by_shell, _) = output_of(&["sh", "-c", &format!("{path} -u; id -u")]);
    std::fs::remove_dir_all(&directory).expect("removed");
    assert_eq!(told, "0\n");
    assert!(why.contains("not traced: it has privileges"), "{why}");
    assert_eq!(told_by_shell, format!("0\n{NOBODY}\n"));
    drop(tool);
}
