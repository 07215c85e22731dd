//! What helpers say of the running thread, and send to it: the same on the kernel and under ring3.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring3_tests::{Bench, Process, is_root, programs, ready, wait_until};

/// A user without any privilege.
const ORDINARY: u32 = 65534;

/// A victim, and what programs tell of its calls.
struct Told {
    victim: Process,
    tool: Process,
}

impl Told {
    /// Of a victim that a command starts.
    fn by(bench: &Bench, command: &[&str]) -> Told {
        Told::of("current", bench, command)
    }

    /// Of one whose calls these programs see.
    fn of(tool: &str, bench: &Bench, command: &[&str]) -> Told {
        // The kernel's probes are in all processes that run a file: nobody else runs this copy.
        let binary = bench.victim(programs().join("tasked"));
        let mut start = bench.target(command.first().map_or(binary.as_path(), Path::new));
        let victim = ready(start.args(command.iter().skip(1)).args((!command.is_empty()).then_some(&binary)));
        let mut tool = Process::start(bench.load(programs().join(tool)).arg(&binary));
        assert_eq!(tool.line(), "attached");
        Told { victim, tool }
    }

    /// Of a call where the word says; the ids of its process, thread and parent.
    fn call(&mut self, word: &str) -> (Vec<u32>, Vec<String>) {
        self.victim.say(word);
        let ids = self.victim.line().split(' ').map(|id| id.parse().expect("an id")).collect();
        self.tool.say("");
        let told = std::iter::from_fn(|| Some(self.tool.line()).filter(|line| line != "end")).collect();
        (ids, told)
    }
}

/// What a victim prints that gets signals from programs, and what the programs tell.
fn signals(bench: &Bench) -> [Vec<String>; 2] {
    let binary = bench.victim(programs().join("signalled"));
    let mut victim = ready(&mut bench.target(&binary));
    let mut tool = Process::start(bench.load_with_tracefs(programs().join("signals")).arg(&binary));
    assert_eq!(tool.line(), "attached");
    victim.say("go");
    let printed = std::iter::from_fn(|| Some(victim.line()).filter(|line| line != "end")).collect();
    tool.say("");
    let told = std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "end")).collect();
    assert_eq!(tool.finish().0, Some(0));
    victim.say("");
    assert_eq!(victim.wait(), Some(0));
    [printed, told]
}

#[test]
fn signals_of_programs_come_behind_their_run_as_the_kernels() {
    let [printed, told] = signals(&Bench::ring3());
    assert!(printed.len() > 80 && told.len() > 80, "{printed:#?} {told:#?}");
    if !is_root() {
        return println!("SKIPPED IN PART: comparing with the kernel needs root");
    }
    let kernel = signals(&Bench::native());
    assert_eq!(printed.join("\n"), kernel[0].join("\n"));
    assert_eq!(told, kernel[1]);
    assert_eq!(signals(&Bench::ring3_as(ORDINARY)), [printed, told]);
}

/// The value that was told under a name.
#[track_caller]
fn value(told: &[String], name: &str) -> u64 {
    let of_name = |line: &String| line.strip_prefix(name)?.strip_prefix(": ")?.parse::<i64>().ok();
    told.iter().find_map(of_name).unwrap_or_else(|| panic!("no {name}: {told:?}")) as u64
}

/// A cgroup, with its processes moved out and removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(path: PathBuf) -> Option<Cgroup> {
        fs::create_dir(&path).ok().map(|()| Cgroup(path))
    }

    fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("root may move processes");
    }

    fn id(&self) -> u64 {
        self.0.metadata().expect("it is there").ino()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        wait_until("nobody is in the cgroup", || {
            let processes = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            processes.lines().for_each(|pid| {
                let _ = fs::write(self.0.join("../cgroup.procs"), pid);
            });
            fs::remove_dir(&self.0).is_ok()
        });
    }
}

/// Where the whole file system of the cgroups of version 2 is mounted.
fn cgroupfs() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let fields = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let is_it = |fields: &Vec<String>| fields[3] == "/" && fields.iter().any(|field| field == "cgroup2");
    let mount = mounts.lines().map(fields).find(is_it)?[4].clone();
    fs::metadata(&mount).is_ok_and(|root| root.ino() == 1).then(|| mount.into())
}

const LEVELS: [&str; 6] = ["ancestor -1", "ancestor 0", "ancestor 1", "ancestor 2", "ancestor 3", "ancestor 1000"];

fn check_cgroups(bench: &Bench, [outer, inner]: [&Cgroup; 2]) {
    let ids = |told: &[String]| LEVELS.map(|name| value(told, name));
    let mut told = Told::by(bench, &[]);
    let pid = told.victim.pid();
    outer.take(pid);
    wait_until("programs see the cgroup that the process was moved to", || {
        value(&told.call("main").1, "cgroup") == outer.id()
    });
    wait_until("and its ancestors", || ids(&told.call("main").1) == [0, 1, outer.id(), 0, 0, 0]);
    inner.take(pid);
    wait_until("programs see the next one", || value(&told.call("main").1, "cgroup") == inner.id());
    let of_inner = [0, 1, outer.id(), inner.id(), 0, 0];
    wait_until("and its ancestors", || ids(&told.call("main").1) == of_inner);
    // Another thread, and a child, have nothing remembered.
    for word in ["thread", "fork"] {
        let (_, lines) = told.call(word);
        assert_eq!((value(&lines, "cgroup"), ids(&lines)), (inner.id(), of_inner), "{word}");
        assert_eq!(value(&lines, "ancestor 1 again"), outer.id());
    }
    // Where a pidfd does not tell, the path does.
    let (_, lines) = told.call("forbid");
    assert_eq!((value(&lines, "cgroup"), ids(&lines)), (inner.id(), of_inner));
    outer.take(pid);
    wait_until("the path is read again", || value(&told.call("main").1, "cgroup") == outer.id());
}

#[test]
fn programs_see_the_cgroup_of_the_thread_and_its_ancestors() {
    let found = cgroupfs().and_then(|root| Cgroup::new(root.join(format!("ring3-test-{}", std::process::id()))));
    let Some(outer) = found.filter(|_| is_root()) else {
        return println!("SKIPPED: this needs root and the cgroups of version 2");
    };
    let inner = Cgroup::new(outer.0.join("in side\\")).expect("cgroups are made");
    check_cgroups(&Bench::ring3(), [&outer, &inner]);
    check_cgroups(&Bench::native(), [&outer, &inner]);
    // Without the file system the id is known, the ancestors are not.
    let bench = Bench::ring3();
    let unmount = format!("umount -l {} && exec \"$0\"", cgroupfs().expect("as before").display());
    let mut told = Told::by(&bench, &["unshare", "--mount", "sh", "-c", &unmount]);
    inner.take(told.victim.pid());
    wait_until("the pidfd tells", || value(&told.call("main").1, "cgroup") == inner.id());
    assert_eq!(LEVELS.map(|name| value(&told.call("main").1, name)), [0; 6]);
}

/// What is told of the thread's ids; those of the thread itself stand for others'.
fn told_of_ids(bench: &Bench, command: &[&str]) -> Vec<String> {
    let mut told = Told::by(bench, command);
    let mut lines = vec![];
    for word in ["main", "thread", "fork"] {
        let (ids, all) = told.call(word);
        let bytes: String =
            [ids[1], ids[0]].iter().flat_map(|id| id.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect();
        let of_ids = all.iter().filter(|line| line.starts_with("ids"));
        lines.extend(of_ids.map(|line| line.replace(&bytes, "its own")));
    }
    lines
}

#[test]
fn programs_ask_for_the_ids_in_the_namespace_of_the_process() {
    let expected: Vec<String> = ["main", "thread", "fork"]
        .iter()
        .flat_map(|_| {
            let none = |name: &str, bytes: &str| format!("ids{name}: -22 {bytes}");
            let zeros = "0".repeat(16);
            let names = [" of another device", " of a long device", " of another inode", " of no inode"];
            let good = ["ids: 0 its own", "ids again: 0 its own"].map(str::to_owned);
            let short = none(", 7 bytes", &format!("{}aa", "0".repeat(14)));
            good.into_iter().chain(names.map(|name| none(name, &zeros))).chain([short]).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(told_of_ids(&Bench::ring3(), &[]), expected);
    if !is_root() {
        return println!("SKIPPED IN PART: comparing with the kernel, and namespaces, need root");
    }
    let inside = ["unshare", "--pid", "--fork", "--mount-proc"];
    assert_eq!(told_of_ids(&Bench::ring3(), &inside), expected);
    assert_eq!(told_of_ids(&Bench::native(), &[]), expected);
    assert_eq!(told_of_ids(&Bench::native(), &inside), expected);
    // Without /proc nobody knows which namespace it is.
    let hidden = ["unshare", "--mount", "sh", "-c", "umount -l /proc && exec \"$0\""];
    assert!(told_of_ids(&Bench::ring3(), &hidden).iter().all(|line| line.contains(": -22 ")));
}

#[test]
fn the_kernels_string_functions_find_what_they_find_there() {
    // (Of several programs at one place, the kernel runs the last one first.)
    let told = |bench: &Bench| {
        let mut lines = Told::of("strings", bench, &[]).call("main").1;
        lines.sort();
        lines
    };
    let has_functions = fs::read("/sys/kernel/btf/vmlinux")
        .is_ok_and(|types| types.windows(b"bpf_strcasecmp".len()).any(|name| name == b"bpf_strcasecmp"));
    if !has_functions {
        return println!("SKIPPED: this kernel has no such functions, so no loader finds them");
    }
    let ours = told(&Bench::ring3());
    let known =
        [("strcmp: high", 1), ("strspn", 4), ("strlen: endless", -7), ("strlen: user", -34), ("strstr: none", -2)];
    for (name, expected) in known {
        assert_eq!(value(&ours, name) as i64, expected, "{name}");
    }
    assert!(ours.len() > 95, "{}", ours.len());
    if !is_root() {
        return println!("SKIPPED IN PART: comparing with the kernel needs root");
    }
    assert_eq!(ours.join("\n"), told(&Bench::native()).join("\n"));
}
