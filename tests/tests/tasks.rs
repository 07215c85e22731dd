//! What programs read of the current task: the same on the kernel and under ring3, of the same process.

use std::path::PathBuf;

use ring3_tests::{Bench, Process, is_root, programs, ready};

/// A user without any privilege.
const ORDINARY: u32 = 65534;
/// What begins the lines of fields that only the kernel can know.
const HIDDEN: &str = "hidden: ";

/// A process that calls `tell`.
struct Victim {
    /// Its parent, whose input and output it has.
    process: Process,
    binary: PathBuf,
}

/// A call of `tell`: the ids there, and what programs told, in any order.
#[derive(Debug)]
struct Call {
    pid: u32,
    tid: u32,
    parent: u32,
    told: Vec<String>,
}

impl Victim {
    /// A shell starts it: a parent with one thread, which is the one that forked.
    fn start(bench: &Bench, binary: PathBuf) -> Victim {
        let process = ready(bench.command("sh").args(["-c", "\"$0\"; true"]).arg(&binary));
        Victim { process, binary }
    }

    /// The same without `/proc`.
    fn start_alone(bench: &Bench, binary: PathBuf) -> Victim {
        let script = "umount -l /proc && \"$0\"; true";
        let process = ready(bench.command("unshare").args(["--mount", "sh", "-c", script]).arg(&binary));
        Victim { process, binary }
    }

    /// The ids where the word says.
    fn ids(&mut self, word: &str) -> [u32; 3] {
        self.process.say(word);
        let line = self.process.line();
        let ids: Vec<u32> = line.split(' ').map(|id| id.parse().expect("a number")).collect();
        ids.try_into().expect("three ids")
    }

    /// What a loader's programs tell of calls where the words say.
    fn calls(&mut self, bench: &Bench, words: &[&str]) -> Vec<Call> {
        let [pid, ..] = self.ids("main");
        let mut tool = Process::start(bench.load(programs().join("tasks")).arg(&self.binary));
        assert_eq!(tool.line(), "attached");
        if !bench.is_native() {
            let (code, _, errors) = bench.run(&["attach", &pid.to_string()]);
            assert_eq!(code, Some(0), "{errors}");
        }
        let calls = words.iter().map(|word| self.call(&mut tool, word)).collect();
        let (code, _, errors) = tool.finish();
        assert_eq!(code, Some(0), "{errors:?}");
        calls
    }

    fn call(&mut self, tool: &mut Process, word: &str) -> Call {
        let [pid, tid, parent] = self.ids(word);
        tool.say("");
        let mut told: Vec<String> = std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "end")).collect();
        told.sort();
        Call { pid, tid, parent, told }
    }
}

impl Call {
    /// What was told under a name.
    fn value(&self, name: &str) -> &str {
        let line = |line: &'_ String| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(": "));
        let line = self.told.iter().find(|told| line(told));
        line.and_then(|line| line[name.len()..].strip_prefix(": ")).unwrap_or_else(|| panic!("{name} was not told"))
    }

    /// The lines of what a process can know.
    fn known(&self) -> Vec<&String> {
        self.told.iter().filter(|line| !line.starts_with(HIDDEN)).collect()
    }

    fn check(&self, comm: &str) {
        let number = |name: &str| self.value(name).parse::<u32>().expect("a number");
        let ids = ["pid", "tgid", "group_leader, pid", "thread_pid, numbers[0].nr", "real_parent, tgid"].map(number);
        assert_eq!(ids, [self.tid, self.pid, self.pid, self.tid, self.parent]);
        assert_eq!(self.value("leader is itself"), if self.pid == self.tid { "1" } else { "0" });
        let bytes: String = comm.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(self.value("comm"), format!("0 {bytes:0<32}{}", "aa".repeat(8)));
    }

    /// Every read of what is not there failed, and left zeros.
    fn check_hidden(&self) {
        let hidden: Vec<&String> = self.told.iter().filter(|line| line.starts_with(HIDDEN)).collect();
        assert!(hidden.len() > 8, "{hidden:?}");
        for line in hidden {
            let bytes = line.split_once(": -14 ").unwrap_or_else(|| panic!("{line}")).1;
            let rest = bytes.trim_start_matches('0');
            assert!(rest.len() < bytes.len() && rest.chars().all(|digit| digit == 'a'), "{line}");
        }
    }
}

/// Compares what the kernel and ring3 tell of a process that a user has.
fn compare(user: Option<u32>) {
    const WORDS: [&str; 3] = ["main", "thread", "fork"];
    const NAMES: [&str; 3] = ["tasked", "the second) 1 2", "a child"];
    let bench = user.map_or_else(Bench::ring3, Bench::ring3_as);
    let native = Bench::native();
    // The kernel's probes are in all processes that run a file: nobody else runs this copy.
    let binary = native.victim(programs().join("tasked"));
    let mut victim = Victim::start(&bench, binary);
    let ours = victim.calls(&bench, &WORDS);
    for (call, name) in ours.iter().zip(NAMES) {
        call.check(name);
        call.check_hidden();
    }
    if !is_root() {
        println!("SKIPPED IN PART: comparing with the kernel needs root");
        return;
    }
    let kernels = victim.calls(&native, &WORDS);
    for (ours, kernels) in ours[..2].iter().zip(&kernels) {
        assert_eq!(ours.known(), kernels.known());
    }
    // Children are processes of their own: what they have in common, they tell alike.
    kernels[2].check(NAMES[2]);
    let is_common =
        |line: &&String| ["nsproxy", "cred", "mm", "parent's", "comm"].iter().any(|of| line.starts_with(of));
    let common = |call: &Call| call.known().into_iter().filter(is_common).cloned().collect::<Vec<_>>();
    assert_eq!(common(&ours[2]), common(&kernels[2]));
}

/// What the system calls tell is known without `/proc`; the rest fails.
fn check_without_proc() {
    let bench = Bench::ring3();
    let mut victim = Victim::start_alone(&bench, programs().join("tasked"));
    for call in victim.calls(&bench, &["main"]) {
        call.check("tasked");
        call.check_hidden();
        assert_eq!(call.value("nsproxy, mnt_ns, ns.inum"), "0");
        assert_eq!(call.value("parent's comm"), format!("-14 {:0<32}{}", "", "aa".repeat(8)));
    }
}

// One test: processes that are started while another one's binary is copied would keep it busy.
#[test]
fn programs_read_of_tasks_what_they_read_in_the_kernel() {
    compare(None);
    if is_root() {
        compare(Some(ORDINARY));
        check_without_proc();
    }
}
