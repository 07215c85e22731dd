//! What helpers say of the running thread: the same on the kernel and under ring3.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring3_tests::{Bench, Process, is_root, programs, ready, wait_until};

/// A victim, and what programs tell of its calls.
struct Told {
    victim: Process,
    tool: Process,
}

impl Told {
    /// Of a victim that a command starts.
    fn by(bench: &Bench, command: &[&str]) -> Told {
        // The kernel's probes are in all processes that run a file: nobody else runs this copy.
        let binary = bench.victim(programs().join("tasked"));
        let mut start = bench.target(command.first().map_or(binary.as_path(), Path::new));
        let victim = ready(start.args(command.iter().skip(1)).args((!command.is_empty()).then_some(&binary)));
        let mut tool = Process::start(bench.load(programs().join("current")).arg(&binary));
        assert_eq!(tool.line(), "attached");
        Told { victim, tool }
    }

    /// Of a call where the word says; the call's thread.
    fn call(&mut self, word: &str) -> (u32, Vec<String>) {
        self.victim.say(word);
        let ids = self.victim.line();
        self.tool.say("");
        let told = std::iter::from_fn(|| Some(self.tool.line()).filter(|line| line != "end")).collect();
        (ids.split(' ').nth(1).and_then(|id| id.parse().ok()).expect("a thread id"), told)
    }
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
