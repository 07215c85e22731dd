//! bcc's Python tools and its interface, unchanged, beside the kernel. bcc compiles programs with the kernel's headers: Debian's do, also
//! those of another kernel, for programs that read nothing of the kernel's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_tests::{Bench, Process, is_root, root, victim};

/// Debian's, which has the module.
const PYTHON: &str = "/usr/bin/python3";

/// One test at a time: on the kernel a program sees what another test's victim does.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The victim, and where bcc finds headers if not where it looks itself; `None` where bcc or headers are missing.
fn begun() -> Option<(PathBuf, Option<String>)> {
    let has_module =
        Command::new(PYTHON).args(["-c", "import bcc"]).output().is_ok_and(|ended| ended.status.success());
    if !has_module {
        println!("SKIPPED: python3-bpfcc is not installed");
        return None;
    }
    let victim = victim("compat", "gcc", "compat.c", &["-g"]);
    let output = Command::new("sh").arg(root().join("tests/headers.sh")).arg(root().join("target/victims")).output();
    let output = output.expect("sh runs");
    assert!(output.status.success(), "{output:?}");
    let tree = String::from_utf8(output.stdout).expect("a path").trim_end().to_owned();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if tree.is_empty() && !Path::new("/lib/modules").join(release).join("build").exists() {
        println!("SKIPPED: linux-headers-amd64 is not installed");
        return None;
    }
    Some((victim, Some(tree).filter(|tree| !tree.is_empty())))
}

/// Starts a tool, as bcc wants it.
fn tool(bench: &Bench, program: &str, headers: Option<&str>) -> Command {
    let mut command = bench.load_with_tracefs(program);
    command.env("PYTHONUNBUFFERED", "1").envs(headers.map(|tree| ("BCC_KERNEL_SOURCE", tree)));
    command
}

fn works(ended: (Option<i32>, Vec<String>, Vec<String>)) -> Vec<String> {
    assert_eq!(ended.0, Some(0), "{:?}", ended.2);
    ended.1
}

/// Ends a tool as users do; what else it says.
fn interrupted(tool: Process) -> Vec<String> {
    let pid = rustix::process::Pid::from_raw(tool.pid() as i32).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    tool.finish().1
}

/// A signal that comes while a tool waits for the next event is told before that event. (One that comes while Python shows an event
/// is lost, on the kernel, too: so there are three.)
#[test]
fn ctrl_c_ends_a_tool_while_events_arrive() {
    let _turn = turn();
    let Some((_, headers)) = begun() else { return };
    let bench = Bench::ring3();
    let script = "import time\nwhile True: time.sleep(0.003)";
    let _victim = Process::start(bench.target(PYTHON).args(["-c", script]));
    let probe = "t:syscalls:sys_enter_clock_nanosleep \"slept\"";
    let mut trace = Process::start(tool(&bench, "trace-bpfcc", headers.as_deref()).arg(probe));
    while !trace.line().contains("slept") {}
    let mut signals = 0;
    while !trace.has_ended() {
        assert!(signals < 3, "three signals did not end it");
        trace.signal(rustix::process::Signal::INT);
        signals += 1;
        let until = Instant::now() + Duration::from_secs(3);
        while !trace.has_ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What `each_once.py` says of one run of the victim.
fn told(bench: &Bench) -> Option<Vec<String>> {
    let (victim, headers) = begun()?;
    let mut command = tool(bench, PYTHON, headers.as_deref());
    let mut script = Process::start(command.arg(root().join("tests/programs/each_once.py")).arg(&victim));
    assert_eq!(script.line(), "ready");
    works(Process::start(&mut bench.target(&victim)).finish());
    script.say("");
    Some(works(script.finish()))
}

#[test]
fn the_interface_gives_what_it_gives_on_the_kernel() {
    let _turn = turn();
    let Some(ours) = told(&Bench::ring3()) else { return };
    let has = |line: &str| assert!(ours.iter().any(|told| told == line), "{line} is not among {ours:#?}");
    [
        "clock True",
        "count 0 34",
        "cpus 100",
        "perf 4 anna",
        "ring 1 carl compat",
        "slot 2 5",
        "slot 5 1",
        "stacked 40",
    ]
    .into_iter()
    .for_each(has);
    if !ring3_tests::is_root() {
        println!("SKIPPED IN PART: the kernel's half needs root");
        return;
    }
    assert_eq!(Some(ours), told(&Bench::native()));
}

/// Lines of a tool of Debian's, until it has told as much as `wanted`.
fn shown(arguments: &[&str], wanted: &[&str]) {
    let bench = Bench::ring3();
    let Some((victim, headers)) = begun() else { return };
    let mut command = tool(&bench, arguments[0], headers.as_deref());
    let mut tool = Process::start(command.args(&arguments[1..]));
    // (The header.)
    let header = tool.line();
    works(Process::start(&mut bench.target(&victim)).finish());
    for part in wanted {
        while !tool.line().contains(part) {}
    }
    assert!(!header.is_empty());
    interrupted(tool);
}

/// It asks for the kernel's functions with types (`fentry`) where the kernel has those.
#[test]
fn opensnoop_shows_files() {
    let _turn = turn();
    shown(&["opensnoop-bpfcc", "-n", "compat"], &["/etc/hostname", "2 /no/such/file"]);
}

/// They place probes at the kernel's functions of system calls.
#[test]
fn execsnoop_and_killsnoop_show_calls() {
    let _turn = turn();
    shown(&["execsnoop-bpfcc"], &["/bin/true first second"]);
    shown(&["killsnoop-bpfcc"], &["compat"]);
}

/// One of them, `sys_stat`, is never called by 64-bit programs.
#[test]
fn statsnoop_attaches_to_all_functions() {
    let _turn = turn();
    let bench = Bench::ring3();
    let Some((_, headers)) = begun() else { return };
    let mut tool = Process::start(&mut tool(&bench, "statsnoop-bpfcc", headers.as_deref()));
    assert!(tool.line().contains("PATH"));
    interrupted(tool);
}

/// An ordinary user, to whom the kernel shows no addresses, sees the same functions.
#[test]
fn functions_of_system_calls_are_found_by_name() {
    let script =
        "from bcc import BPF\nfor name in ['__x64_sys_read', '__x64_sys_ring3']: print(BPF.ksymname(name) != -1)";
    if begun().is_none() {
        return;
    }
    let users = if is_root() { vec![Bench::ring3(), Bench::ring3_as(54_321)] } else { vec![Bench::ring3()] };
    for bench in users {
        let lines = works(Process::start(bench.load(PYTHON).args(["-c", script])).finish());
        assert_eq!(lines, ["True", "False"]);
    }
}

/// `_start` is among them, from which nothing returns.
#[test]
fn funclatency_takes_all_functions_of_a_file() {
    let _turn = turn();
    let bench = Bench::ring3();
    let Some((victim, headers)) = begun() else { return };
    let mut command = tool(&bench, "funclatency-bpfcc", headers.as_deref());
    let mut tool = Process::start(command.arg("-F").arg(format!("{}:*", victim.display())));
    let first = tool.line();
    assert!(first.starts_with("Tracing ") && first.contains("functions"), "{first}");
    works(Process::start(&mut bench.target(&victim)).finish());
    let lines = interrupted(tool);
    let count = lines.iter().find_map(|line| line.split_once("count: ")?.1.parse::<u64>().ok());
    // (Of `add` and `inner` alone there are 160.)
    assert!(count > Some(160), "{lines:?}");
}
