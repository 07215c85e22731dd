//! Who may do what to whom: as on the kernel, each request is judged by its caller's credentials at that moment.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;

use ring3_tests::{Bench, Process, example, is_root, programs, ready, ring3, root, shapes, wait_until};

/// An ordinary user.
const USER: u32 = 54_321;

/// Names of `tests/programs/who.sh`.
const WHOS: [&str; 10] = [
    "root",
    "nobody",
    "with_bpf",
    "with_perfmon",
    "with_both",
    "with_net",
    "with_admin",
    "bare_root",
    "root_of_a_namespace",
    "user_in_a_namespace",
];

fn lacks_root(what: &str) -> bool {
    if !is_root() {
        println!("SKIPPED: {what} needs root");
    }
    !is_root()
}

/// `command`, and then what runs a command with the rights of one of `WHOS`.
fn with_rights_of(mut command: Command, who: &str) -> Command {
    command.args([root().join("tests/programs/who.sh").as_os_str(), who.as_ref()]);
    command
}

/// What a tool prints that succeeds. (One that has begun others is told that they are no targets.)
fn told(command: &mut Command) -> Vec<String> {
    let (code, lines, mut errors) = Process::start(command).finish();
    errors.retain(|line| !line.contains("which the tool has begun, is not traced"));
    assert_eq!((code, &errors[..]), (Some(0), &[][..]), "{command:?}: {lines:?}");
    lines
}

/// This kernel may be locked down: then no program of anybody writes to processes.
fn is_of_writes(line: &str) -> bool {
    line.starts_with("program that writes")
}

#[test]
fn callers_are_judged_by_their_own_rights_as_by_the_kernel() {
    if lacks_root("giving up rights") {
        return;
    }
    let (ours, native) = (Bench::ring3(), Bench::native());
    for who in WHOS {
        let [ours, native] = [&ours, &native].map(|bench| {
            let mut tool = with_rights_of(bench.load("bash"), who);
            told(tool.arg(programs().join("rights")).args(["asks", "1"]))
        });
        let compared =
            |lines: &[String]| lines.iter().filter(|line| !is_of_writes(line)).cloned().collect::<Vec<_>>();
        assert_eq!(compared(&ours), compared(&native), "{who}");
        let writes = ours.iter().find(|line| is_of_writes(line)).expect("asked for");
        let verdict = match who {
            "root" | "with_admin" => "ok",
            "with_both" => "EINVAL",
            _ => "EPERM",
        };
        assert!(writes.ends_with(verdict), "{who}: {writes}");
    }
}

#[test]
fn descriptors_of_nothing_and_of_something_else_get_the_kernels_errors() {
    if lacks_root("bpf(2) of the kernel's") {
        return;
    }
    let [ours, native] =
        [Bench::ring3(), Bench::native()].map(|bench| told(bench.load(programs().join("rights")).arg("fds")));
    assert_eq!(ours.len(), native.len());
    let different: Vec<_> = ours.iter().zip(&native).filter(|(ours, native)| ours != native).collect();
    assert_eq!(different, []);
    assert!(ours.len() > 2000 && ours.contains(&"closed QUERY, type 0: EBADF".to_owned()), "{}", ours.len());
}

#[test]
fn an_inherited_object_works_with_the_rights_that_it_was_made_with() {
    if lacks_root("giving up rights") {
        return;
    }
    let (ours, native, tool) = (Bench::ring3(), Bench::native(), programs().join("rights"));
    for who in WHOS {
        let [ours, native] = [&ours, &native].map(|bench| {
            let mut giver = bench.load(&tool);
            giver.args(["gives", "bash"]);
            told(with_rights_of(giver, who).arg(&tool).arg("gets"))
        });
        // Ids are not translated for other user namespaces.
        let compared = |lines: &[String]| {
            let is_id = |line: &&String| line.starts_with("made by") && who.contains("namespace");
            lines.iter().filter(|line| !is_id(line)).cloned().collect::<Vec<_>>()
        };
        assert_eq!(compared(&ours), compared(&native), "{who}");
        let works = ["update", "lookup", "info", "run", "SET_BPF", "link", "raw tracepoint", "freeze"];
        for what in works.map(|what| format!("{what}: ok")) {
            assert!(ours.contains(&what), "{who}: {what}: {ours:?}");
        }
    }
}

#[test]
fn a_name_is_its_users() {
    if lacks_root("giving up rights") {
        return;
    }
    let who = root().join("tests/programs/who.sh");
    // On the kernel there is a file system for names; it goes with its mount namespace.
    let script = "mount -t bpf bpf /sys/fs/bpf; \"$0\" pins bash -c \"\
        for who in nobody user_in_a_namespace bare_root; do bash $1 \\$who $0 reads; done\"";
    let [ours, native] = [Bench::ring3(), Bench::native()].map(|bench| {
        let mut tool = bench.load("unshare");
        told(tool.args(["-m", "bash", "-c", script]).arg(programs().join("rights")).arg(&who))
    });
    assert_eq!(ours, native);
    let last: Vec<&str> = ours.iter().rev().take(3).map(String::as_str).collect();
    assert_eq!(last, ["unlink: ok", "OBJ_GET to read: ok", "OBJ_GET: ok"]);
}

/// The probe of `shapes`' function.
fn probe() -> String {
    format!("{}:plain", shapes().display())
}

/// Lets a victim call so often.
fn call(victim: &mut Process, calls: &str) {
    victim.say("go");
    assert_eq!(victim.line(), calls);
}

#[test]
fn who_gave_up_his_rights_reaches_no_process_of_roots() {
    if lacks_root("giving up rights") {
        return;
    }
    let bench = Bench::ring3();
    let mut victim = ready(bench.target(shapes()).args(["plain", "100"]));
    let pid = victim.pid().to_string();
    for who in ["nobody", "bare_root", "root_of_a_namespace"] {
        for scope in [&[][..], &["-p", &pid]] {
            let mut tool = with_rights_of(bench.load("bash"), who);
            tool.arg(example("malloc")).args(scope).arg(probe());
            let (code, lines, _) = Process::start(&mut tool).finish();
            assert_eq!((code, &lines[..]), (Some(1), &[][..]), "{who} {scope:?}");
        }
    }
    let status = bench.status();
    assert_eq!(
        (status["links"].as_array().map(Vec::len), status["maps"].as_array().map(Vec::len)),
        (Some(0), Some(0))
    );
    call(&mut victim, "100");
}

#[test]
fn the_control_socket_reaches_what_its_caller_may_trace() {
    if lacks_root("giving up rights") {
        return;
    }
    let bench = Bench::ring3();
    let victim = ready(Command::new(shapes()).args(["plain", "100"]));
    let pid = victim.pid().to_string();
    assert_eq!(bench.run(&["status"]).0, Some(0));
    assert_eq!(bench.run(&["attach", &pid]).0, Some(0));
    let output = bench.directory().join("symbols");
    let output = output.to_str().expect("a plain name");
    for action in [&["attach", &pid][..], &["detach", &pid], &["symbols", &pid, "-o", output]] {
        let mut command = with_rights_of(bench.command("bash"), "bare_root");
        command.arg(ring3()).args(action);
        let (code, _, errors) = Process::start(&mut command).finish();
        assert_eq!(code, Some(1), "{action:?}");
        assert!(errors[0].contains(&pid) && errors[0].contains("not permitted"), "{action:?}: {errors:?}");
    }
    assert_eq!(bench.status()["targets"].as_array().map(Vec::len), Some(1));
    assert_eq!(bench.run(&["detach", &pid]).0, Some(0));
}

#[test]
fn a_users_loader_in_a_namespace_of_its_own_reaches_what_is_in_it_only() {
    if lacks_root("becoming another user") {
        return;
    }
    let bench = Bench::ring3_as(USER);
    let unshared = Command::new("setpriv")
        .args(["--reuid=54321", "--regid=54321", "--clear-groups", "--inh-caps=-all", "unshare", "-U", "-r", "true"])
        .status();
    if !unshared.is_ok_and(|status| status.success()) {
        println!("SKIPPED: ordinary users may not make user namespaces here");
        return;
    }
    let mut outside = ready(bench.target(shapes()).args(["plain", "100"]));
    let mut inside = ready(bench.target("unshare").args(["-U", "-r"]).arg(shapes()).args(["plain", "100"]));
    let space = inside.pid().to_string();
    let tool_inside = |options: &[&str]| {
        let mut tool = bench.load("nsenter");
        tool.args(["--user", "--preserve-credentials", "-t", &space]).arg(example("malloc")).args(options);
        Process::start(tool.arg(probe()))
    };
    let mut everywhere = bench.counting(&[&probe()]);
    let tools = [&[][..], &["-p", &space]].map(|options| {
        let mut tool = tool_inside(options);
        assert!(tool.line().starts_with("attached"));
        tool
    });
    call(&mut outside, "100");
    call(&mut inside, "100");
    assert_eq!(everywhere.total(&probe()), 200, "its owner reaches into it");
    for mut tool in tools {
        tool.say("");
        assert_eq!(tool.line(), format!("{space} {} 100", probe()));
        assert_eq!(tool.line(), "", "the other one is in another namespace");
    }
    let (code, lines, _) = tool_inside(&["-p", &outside.pid().to_string()]).finish();
    assert_eq!((code, &lines[..]), (Some(1), &[][..]));
}

#[test]
fn a_number_means_a_process_of_the_loaders_pid_namespace() {
    if lacks_root("a pid namespace") {
        return;
    }
    let bench = Bench::ring3();
    let words = "\"$1\" plain 100 <&4 >&2 & exec \"$0\" -p $! \"$2\"";
    let fifo = bench.directory().join("fifo");
    let mut tool = bench.load("unshare");
    tool.args(["--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c"]);
    tool.arg(format!("mkfifo \"$3\"; exec 4<>\"$3\"; {words}"));
    tool.args([example("malloc").as_os_str(), shapes().as_os_str(), probe().as_ref(), fifo.as_os_str()]);
    let mut tool = Process::start(&mut tool);
    assert!(tool.line().starts_with("attached"));
    std::fs::write(&fifo, "go\n").expect("the victim reads");
    wait_until("it has called", || {
        tool.say("");
        let mut lines = std::iter::from_fn(|| Some(tool.line()).filter(|line| line.split(' ').count() == 3));
        lines.by_ref().any(|line| line.ends_with(" 100")) && lines.count() < usize::MAX
    });
}

/// A copy of the victim that has its owner's rights, whoever starts it; `None` where such files have no effect.
fn setuid_copy(bench: &Bench) -> Option<PathBuf> {
    let path = bench.alias(&shapes()).with_extension("setuid");
    std::fs::copy(shapes(), &path).expect("copied");
    chown(&path, Some(0), Some(0)).expect("given away");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).expect("changed");
    let flags = rustix::fs::statvfs(&path).expect("there").f_flag;
    (!flags.contains(rustix::fs::StatVfsMountFlags::NOSUID)).then_some(path)
}

#[test]
fn a_setuid_program_is_no_target_of_the_user_who_runs_it() {
    if lacks_root("becoming another user") {
        return;
    }
    let bench = Bench::ring3_as(USER);
    let Some(path) = setuid_copy(&bench) else {
        println!("SKIPPED: set-uid programs have no effect in the directory for temporary files");
        return;
    };
    std::fs::set_permissions(bench.directory(), std::fs::Permissions::from_mode(0o711)).expect("changed");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=54321", "--regid=54321", "--clear-groups", "--inh-caps=-all"]);
    let mut victim = ready(command.arg(&path).args(["plain", "100"]));
    let status = std::fs::read_to_string(format!("/proc/{}/status", victim.pid())).expect("it runs");
    assert!(status.contains("Uid:\t54321\t0\t0\t0"), "{status}");
    std::fs::set_permissions(bench.directory(), std::fs::Permissions::from_mode(0o700)).expect("changed");
    let probe = format!("{}:plain", path.display());
    let mut everywhere = bench.counting(&[&probe]);
    let mut tool = bench.load(example("malloc"));
    tool.args(["-p", &victim.pid().to_string(), &probe]);
    let (code, lines, errors) = Process::start(&mut tool).finish();
    assert_eq!((code, &lines[..]), (Some(1), &[][..]), "{errors:?}");
    let (code, _, errors) = bench.run(&["attach", &victim.pid().to_string()]);
    assert!(code == Some(1) && errors.contains("not permitted"), "{errors}");
    call(&mut victim, "100");
    assert_eq!(everywhere.total(&probe), 0);
}

#[test]
fn a_loader_that_may_not_raise_its_limit_of_locked_memory_hears_that_it_did() {
    let bench = if is_root() { Bench::ring3_as(USER) } else { Bench::ring3() };
    let words =
        "ulimit -l 64 && ulimit -l && ulimit -l unlimited && ulimit -l && ulimit -n 1 && ulimit -n 2 || echo no";
    let (code, lines, errors) = Process::start(bench.load("bash").args(["-c", words])).finish();
    assert_eq!((code, &lines[..]), (Some(0), &["64".to_owned(), "64".to_owned(), "no".to_owned()][..]), "{errors:?}");
    // (It may lower a limit, and raise no other one.)
    let (_, lines, errors) = Process::start(bench.command("bash").args(["-c", words])).finish();
    assert!(lines.len() == 2 && errors[0].contains("cannot modify limit"), "{lines:?} {errors:?}");
}
