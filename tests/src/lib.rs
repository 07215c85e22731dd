//! The harness of the whole-system tests: servers of their own, victims, tools, counts.
//!
//! Runs: in tests.
//! May touch: processes and directories that it made itself.
//! Never: leaves a process or a directory behind; waits without a deadline.
//! Start reading at: `Bench`.
#![forbid(unsafe_code)]

pub mod container;
mod disk;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

pub use disk::Disk;

/// A condition must come true within this time.
pub const WITHIN: Duration = Duration::from_secs(60);

/// The root of the work tree.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the work tree exists")
}

/// The `ring3` binary: `$RING3_BIN`, or the release build.
pub fn ring3() -> PathBuf {
    std::env::var_os("RING3_BIN").map_or_else(|| root().join("target/release/ring3"), PathBuf::from)
}

/// Whether this ring3 has LLVM: a program beside it. Said if not.
pub fn has_llvm() -> bool {
    let has = ring3().with_file_name("ring3-llvm").is_file();
    if !has {
        println!("SKIPPED IN PART: this ring3 is without LLVM (feature ring3-llvm/llvm of ring3-cli)");
    }
    has
}

/// Whether a tool that runs for root only, or beside the kernel, cannot run; says so.
pub fn lacks(tool: &str) -> bool {
    let lacks = !is_root() || Command::new(tool).arg("--version").output().is_err();
    if lacks {
        println!("SKIPPED: {tool} is not installed, or the tests do not run as root");
    }
    lacks
}

/// Whether the tests run as root (the native halves need it).
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A line of strace's without what it writes behind a time of some hundredths of a second (`si_stime=24 /* 0.24 s */`).
pub fn without_seconds(line: &str) -> String {
    let is_seconds = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match line.split_once(" /* ") {
        Some((before, rest)) => match rest.split_once(" s */") {
            Some((text, behind)) if is_seconds(text) => format!("{before}{}", without_seconds(behind)),
            _ => format!("{before} /* {}", without_seconds(rest)),
        },
        None => line.to_owned(),
    }
}

/// Names and bytes of the binaries of Debian's package libbpf-tools; none if it is not installed.
pub fn libbpf_tools() -> Vec<(String, Vec<u8>)> {
    let listed = Command::new("dpkg").args(["-L", "libbpf-tools"]).output();
    let listed = listed.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
    let paths = listed
        .lines()
        .map(Path::new)
        .filter(|path| path.parent().is_some_and(|directory| directory.ends_with("sbin")));
    // Tools that are links to others differ in their names only.
    let files = paths.filter(|path| path.is_file() && !path.is_symlink());
    let named = files.filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), std::fs::read(path).ok()?)));
    named.collect()
}

/// The running kernel's release, and its configuration if it tells that.
pub fn kernel_configuration() -> (String, String) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel has a release");
    let text = Command::new("zcat").arg("/proc/config.gz").output().map_or(vec![], |output| output.stdout);
    (release, String::from_utf8_lossy(&text).into_owned())
}

/// The bytes that are written as pairs of hexadecimal digits.
pub fn hexadecimal(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal")).collect()
}

/// Waits for a condition.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WITHIN;
    while !condition() {
        assert!(Instant::now() < deadline, "did not come true in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills a process, and waits until nothing of it runs. (Whoever adopted it may be slow to wait for it.)
pub fn kill(pid: u32) {
    let killed = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
    rustix::process::kill_process(killed, rustix::process::Signal::KILL).expect("ours");
    wait_until("the process is dead", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        stat.is_empty() || (stat.contains(") Z ") && threads == 1)
    });
}

/// A victim compiled by `compiler` with `flags` from a source in `tests/victims`, if it is newer: once, by one test
/// process at a time.
pub fn victim(name: &str, compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = root().join("target/victims");
    std::fs::create_dir_all(&directory).expect("target is writable");
    let (path, source) = (directory.join(name), root().join("tests/victims").join(source));
    let lock = std::fs::File::create(directory.join(format!("{name}.lock"))).expect("target is writable");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let modified = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    let made = modified(&path);
    if made.is_none() || made < modified(&source) {
        let fresh = directory.join(format!("{name}.new"));
        let mut command = Command::new(compiler);
        command.args(["-O2", "-g0"]).args(flags).arg("-o").arg(&fresh).arg(source).arg("-pthread");
        let output = command.output().expect("the compiler runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&fresh, &path).expect("renamed");
    }
    path
}

/// The C++ victim of many shapes.
pub fn shapes() -> PathBuf {
    victim("shapes", "g++", "shapes.cc", &[])
}

/// The example tool and its victim, built.
pub fn example(name: &str) -> PathBuf {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = root().join("examples/malloc");
    let path = directory.join("build").join(name);
    static MADE: AtomicBool = AtomicBool::new(false);
    if !MADE.swap(true, Ordering::Relaxed) {
        let status = Command::new("make").args(["-s", "-C"]).arg(directory).status().expect("make runs");
        assert!(status.success());
    }
    path
}

/// The directory of an example, built; `None`, said loudly, if one of the files is not there that it needs.
pub fn built_example(name: &str, needs: &[&str]) -> Option<PathBuf> {
    static TURN: Mutex<()> = Mutex::new(());
    if let Some(missing) = needs.iter().find(|file| !Path::new(file).exists()) {
        println!("SKIPPED: {missing} is not installed");
        return None;
    }
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = root().join("examples").join(name);
    let mut make = Command::new("make");
    make.args(["-s", "-C"]).arg(&directory).arg(format!("RING3={}", ring3().display()));
    let output = make.output().expect("make runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(directory)
}

/// Where the loaders of `tests/programs` and the victims that belong to them are, built.
pub fn programs() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = root().join("target/programs");
        let out = format!("OUT={}", directory.display());
        let output = Command::new("make").args(["-s", "-C"]).arg(root().join("tests/programs")).arg(out).output();
        let output = output.expect("make runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        directory
    })
}

/// Where the victims of `tests/victims/calls` are, built; `part` is a goal of their Makefile.
pub fn calling_victims(part: &'static str) -> PathBuf {
    static TURN: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut made = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = root().join("target/calls");
    if !made.contains(part) {
        let out = format!("OUT={}", directory.display());
        let mut make = Command::new("make");
        make.args(["-s", "-C"]).arg(root().join("tests/victims/calls")).args([part, &out]);
        let output = make.output().expect("make runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        made.insert(part);
    }
    directory
}

/// Where the victims in Go are, built; `None`, said loudly, if Go is not installed.
pub fn go_victims() -> Option<PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        println!("SKIPPED: Go is not installed");
        return None;
    }
    Some(calling_victims("go"))
}

/// A process with piped input and output, killed when dropped.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

fn reader(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

impl Process {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Process {
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        let lines = reader(child.stdout.take().expect("piped"));
        let errors = reader(child.stderr.take().expect("piped"));
        Process { child, lines, errors }
    }

    /// Starts a command whose standard error is its output, too.
    pub fn start_joined(command: &Command) -> Process {
        let mut joined = Command::new("sh");
        joined.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(command.get_program()).args(command.get_args());
        joined.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Process::start(&mut joined)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of output.
    pub fn line(&mut self) -> String {
        self.lines.recv_timeout(WITHIN).unwrap_or_else(|_| {
            let errors: Vec<String> = self.errors.try_iter().collect();
            panic!("no output from process {}; standard error: {errors:?}", self.child.id())
        })
    }

    /// The lines of output that have come.
    pub fn lines_so_far(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// The lines of standard error that have come.
    pub fn errors_so_far(&mut self) -> Vec<String> {
        self.errors.try_iter().collect()
    }

    /// The next line of output; `None` if it ends without one.
    pub fn line_or_end(&mut self) -> Option<String> {
        match self.lines.recv_timeout(WITHIN) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no output from process {}", self.child.id()),
        }
    }

    /// Sends a line of input.
    pub fn say(&mut self, line: &str) {
        // (In one piece: who has read a part may have ended before the rest comes.)
        let written = self.child.stdin.as_mut().expect("piped").write_all(format!("{line}\n").as_bytes());
        if let Err(error) = written {
            // (One that is ending has closed its input a moment before.)
            std::thread::sleep(Duration::from_millis(100));
            let ended = self.child.try_wait().expect("waited");
            let (lines, errors) = (self.lines_so_far(), self.errors_so_far());
            panic!(
                "process {} does not read: {error}; its end: {ended:?}; it said {lines:?} and {errors:?}",
                self.pid()
            );
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal);
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("waited").is_some()
    }

    /// Closes its input, waits for its end: exit code, rest of output, standard error.
    pub fn finish(mut self) -> (Option<i32>, Vec<String>, Vec<String>) {
        drop(self.child.stdin.take());
        let code = self.wait();
        let lines = self.lines.iter().collect();
        let errors = self.errors.iter().collect();
        (code, lines, errors)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + WITHIN;
        loop {
            if let Some(status) = self.child.try_wait().expect("waited") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "process {} does not end", self.child.id());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command on a terminal of its own (by `script`), as a user has it: lines come at once, Ctrl-C is a key.
pub struct Terminal {
    process: Process,
}

impl Terminal {
    /// Starts a command on a new terminal.
    pub fn start(command: &Command) -> Terminal {
        let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy().replace('\'', "'\\''"));
        let mut words = vec![quoted(command.get_program())];
        words.extend(command.get_args().map(quoted));
        let mut script = Command::new("script");
        script.args(["-qefc", &format!("exec {}", words.join(" ")), "/dev/null"]);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        Terminal { process: Process::start(&mut script) }
    }

    /// The next line on the screen.
    pub fn line(&mut self) -> String {
        self.process.line().trim_end_matches('\r').to_owned()
    }

    /// Waits for a line that contains `text`.
    pub fn wait_for(&mut self, text: &str) {
        while !self.line().contains(text) {}
    }

    /// Types; `\r` is Enter, `\x03` Ctrl-C, `\x04` the end of input.
    pub fn press(&mut self, keys: &str) {
        let input = self.process.child.stdin.as_mut().expect("piped");
        input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("the terminal reads");
    }

    /// Types Ctrl-C once the tool sleeps. (What comes before ends libbpf-tools' loops before the first round, and they
    /// print nothing.)
    pub fn interrupt_sleep(&mut self) {
        wait_until("the tool sleeps", || descendants(self.process.pid()).into_iter().any(is_asleep));
        self.press("\x03");
    }

    /// Waits until the tool waits for events.
    pub fn await_waiting(&mut self) {
        wait_until("the tool waits for events", || descendants(self.process.pid()).into_iter().any(is_waiting));
    }

    /// Types Ctrl-C while the tool waits for events, until it ends. (bpftrace ends when that interrupts its waiting, and forgets
    /// what has come before.)
    pub fn interrupt_waiting(&mut self) {
        wait_until("Ctrl-C ends the tool", || {
            let is_over = self.process.child.try_wait().expect("waited").is_some();
            if !is_over && descendants(self.process.pid()).into_iter().any(is_waiting) {
                let input = self.process.child.stdin.as_mut().expect("piped");
                // (It may have ended since.)
                let _ = input.write_all(b"\x03").and_then(|()| input.flush());
            }
            is_over
        });
    }

    /// Waits for the end: exit code, and the lines that are left.
    pub fn finish(mut self) -> (Option<i32>, Vec<String>) {
        let code = self.process.wait();
        (code, self.process.lines.iter().map(|line| line.trim_end_matches('\r').to_owned()).collect())
    }
}

/// The processes that a process has started, and those that they have.
fn descendants(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// Whether a process is in one of these calls.
fn is_calling(pid: u32, numbers: &[&str]) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.split_whitespace().next().is_some_and(|number| numbers.contains(&number))
}

/// Whether a process waits for a time to come (`nanosleep`, `clock_nanosleep`).
fn is_asleep(pid: u32) -> bool {
    is_calling(pid, &["35", "230"])
}

/// Whether a process waits for events (`epoll_wait`, `epoll_pwait`).
fn is_waiting(pid: u32) -> bool {
    is_calling(pid, &["232", "281"])
}

/// Where tools run: under ring3 with a server of its own, or on the kernel.
pub struct Bench {
    directory: PathBuf,
    native: bool,
    user: Option<u32>,
    engine: &'static str,
    compiled: Option<PathBuf>,
    scope: Option<&'static str>,
}

impl Bench {
    fn new(native: bool, user: Option<u32>) -> Bench {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("ring3-test-{}-{number}", std::process::id()));
        Bench { directory, native, user, engine: "auto", compiled: None, scope: Some("--only-targets") }
    }

    /// Under ring3.
    pub fn ring3() -> Bench {
        Bench::new(false, None)
    }

    /// Under ring3, as an ordinary user without any capability.
    pub fn ring3_as(user: u32) -> Bench {
        Bench::new(false, Some(user))
    }

    /// Under ring3, with all programs compiled by this engine.
    pub fn ring3_with(engine: &'static str) -> Bench {
        let mut bench = Bench::ring3();
        bench.engine = engine;
        bench
    }

    /// Tools see what this option of `ring3 load` says, or what they see without one. (Most tests' tools see targets only: tests
    /// run at the same time, and a process is a target of one server.)
    pub fn seeing(mut self, scope: Option<&'static str>) -> Bench {
        self.scope = scope;
        self
    }

    /// On the kernel.
    pub fn native() -> Bench {
        Bench::new(true, None)
    }

    /// Under ring3, with the programs of an object file compiled ahead of time.
    pub fn ahead_of_time(object: &Path) -> Bench {
        let mut bench = Bench::ring3();
        std::fs::DirBuilder::new().mode(0o700).create(&bench.directory).expect("made");
        let file = bench.directory.join("programs.aot");
        let paths = [object, &file].map(|path| path.to_str().expect("a plain name"));
        let (code, _, errors) = bench.run(&["aot", paths[0], "-o", paths[1]]);
        assert_eq!(code, Some(0), "{errors}");
        bench.compiled = Some(file);
        bench
    }

    /// A link to a program, by which its process has a name that no other has.
    pub fn alias(&self, program: &Path) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("r{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let link = self.made_directory().join(name);
        std::os::unix::fs::symlink(program, &link).expect("linked");
        link
    }

    /// The server's run-time directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The same, which is there from now on.
    pub fn made_directory(&self) -> &Path {
        // (A server's run-time directory is its user's alone.)
        let mode = if self.native { 0o755 } else { 0o700 };
        std::fs::DirBuilder::new().mode(mode).recursive(true).create(&self.directory).expect("made");
        if self.user.is_some() {
            std::os::unix::fs::chown(&self.directory, self.user, self.user).expect("given away");
        }
        &self.directory
    }

    /// A victim for this bench. The kernel's probes for all processes are in all that run the file: on the kernel it
    /// is a copy.
    pub fn victim(&self, path: PathBuf) -> PathBuf {
        if self.native { self.copy(&path) } else { path }
    }

    /// A copy of a file that no other bench has.
    pub fn copy(&self, path: &Path) -> PathBuf {
        let copy = self.made_directory().join(path.file_name().expect("a file"));
        // By another process: a child that is forked meanwhile would have the copy open for writing, and it could not be executed.
        let copied = Command::new("cp").arg(path).arg(&copy).status().expect("cp runs");
        assert!(copied.success(), "{}", copy.display());
        copy
    }

    /// A command of this bench's user and server.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match self.user {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &user.to_string(), "--regid", &user.to_string(), "--clear-groups"]);
                command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]).arg(program);
                command
            }
        };
        if !self.native {
            command.env("RING3_RUNTIME_DIR", &self.directory);
        }
        command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
        // Cargo's directory, which not every user may read: a loader that looks for a library there fails.
        command.env_remove("LD_LIBRARY_PATH");
        command
    }

    /// `ring3` with arguments.
    pub fn ring3_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(ring3());
        command.args(arguments);
        command
    }

    /// Runs `ring3` to its end: exit code, output, standard error.
    pub fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = self.ring3_command(arguments).output().expect("ring3 runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// A loader, under ring3 or on the kernel.
    pub fn load(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if !self.native {
            let mut command = self.ring3_command(&["load", "--engine", self.engine]);
            command.args(self.scope);
            command.args(self.compiled.iter().flat_map(|file| [OsStr::new("--aot"), file.as_os_str()]));
            command.arg("--").arg(program);
            command
        } else {
            Command::new(program)
        }
    }

    /// A loader that looks for tracepoints; on the kernel what it looks in is mounted for it, and goes with it.
    pub fn load_with_tracefs(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        const MOUNT: &str = "at=/sys/kernel; mountpoint -q $at/debug || mount -t debugfs debugfs $at/debug
            mountpoint -q $at/tracing || mount -t tracefs tracefs $at/tracing
            exec \"$@\"";
        if !self.native {
            return self.load(program);
        }
        let mut command = self.command("unshare");
        command.args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(program);
        command
    }

    /// A target from its first instruction, or just the program.
    pub fn target(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if !self.native {
            let mut command = self.ring3_command(&["start", "--"]);
            command.arg(program);
            command
        } else {
            let mut command = Command::new(program);
            command.env_remove("LD_LIBRARY_PATH");
            command
        }
    }

    /// Counts probes with the example tool: `run` gets the tool's process; the result is its report.
    pub fn counting(&self, options: &[&str]) -> Counter {
        let mut command = self.load(example("malloc"));
        command.args(options);
        let mut tool = Process::start(&mut command);
        let attached = tool.line();
        assert!(attached.starts_with("attached"), "{attached}");
        Counter { tool }
    }

    /// The server's status.
    pub fn status(&self) -> serde_json::Value {
        let (_, out, error) = self.run(&["status", "--json"]);
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("no status: {out} {error}"))
    }

    /// The ids of its targets.
    pub fn targets(&self) -> Vec<u64> {
        let status = self.status();
        let targets = status["targets"].as_array().cloned().unwrap_or_default();
        targets.iter().filter_map(|target| target["pid"].as_u64()).collect()
    }

    /// Whether a process is one of them.
    pub fn is_target(&self, pid: u32) -> bool {
        self.targets().contains(&pid.into())
    }

    /// Programs that were compiled at loading though the tool came with a file of compiled ones, and why.
    pub fn compiled_anew(&self) -> Vec<String> {
        let status = self.status();
        let rows = status["programs"].as_array().into_iter().flatten();
        rows.filter(|row| row["aot"] != "used").map(|row| format!("{}: {}", row["name"], row["aot"])).collect()
    }

    /// Whether tools run on the kernel.
    pub fn is_native(&self) -> bool {
        self.native
    }

    /// Whether tools come with a file of compiled programs.
    pub fn is_ahead_of_time(&self) -> bool {
        self.compiled.is_some()
    }

    /// The server's process id.
    pub fn server(&self) -> u32 {
        self.status()["server"]["pid"].as_u64().expect("a server runs") as u32
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.native {
            let _ = self.run(&["stop"]);
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.directory.join("server.log")).unwrap_or_default();
                eprintln!("server.log:\n{log}");
            }
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The example tool at work.
pub struct Counter {
    /// The tool.
    pub tool: Process,
}

impl Counter {
    /// Counts so far, by process id and probe.
    pub fn report(&mut self) -> BTreeMap<(u32, String), u64> {
        self.tool.say("");
        let mut counts = BTreeMap::new();
        loop {
            let line = self.tool.line();
            let mut words = line.split(' ');
            let (Some(pid), Some(probe), Some(count)) = (words.next(), words.next(), words.next()) else {
                return counts;
            };
            counts.insert((pid.parse().expect("a pid"), probe.to_owned()), count.parse().expect("a count"));
        }
    }

    /// Counts of one probe, all processes together.
    pub fn total(&mut self, probe: &str) -> u64 {
        self.report().iter().filter(|((_, name), _)| name == probe).map(|(_, count)| count).sum()
    }
}

/// Runs a test under ring3, and on the kernel where the machine lets it.
pub fn on_both(test: impl Fn(&Bench)) {
    test(&Bench::ring3());
    if is_root() {
        test(&Bench::native());
    } else {
        println!("SKIPPED IN PART: the native half needs root");
    }
}

/// A target that waits for its line.
pub fn ready(command: &mut Command) -> Process {
    let mut process = Process::start(command);
    let line = process.line();
    assert_eq!(line, "ready");
    process
}

/// What must be as before once a target is left: mappings, descriptors, threads.
#[derive(Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Lines of `/proc/PID/maps`.
    pub mappings: Vec<String>,
    /// What each descriptor is; which pipe or socket does not count.
    pub descriptors: Vec<String>,
    /// The threads' names.
    pub threads: Vec<String>,
}

impl Footprint {
    /// Of a process now.
    pub fn of(pid: u32) -> Footprint {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
        let mut descriptors: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("the process is ours")
            .flatten()
            .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string()))
            .map(|name| {
                name.split_once(":[")
                    .filter(|(kind, _)| *kind != "anon_inode")
                    .map_or(name.clone(), |(kind, _)| kind.to_owned())
            })
            .collect();
        descriptors.sort();
        let mut threads: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/task"))
            .expect("the process lives")
            .flatten()
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok())
            .collect();
        threads.sort();
        // The stack grows by itself.
        let mappings = maps.lines().filter(|line| !line.ends_with("[stack]")).map(str::to_owned).collect();
        Footprint { mappings, descriptors, threads }
    }
}

/// Asserts that the executable mappings of a process have the bytes of their files.
pub fn assert_text_is_as_in_its_files(pid: u32) {
    let differs = difference_from_files(pid);
    assert!(differs.is_none(), "{differs:?}");
}

/// Where an executable mapping of a process first has other bytes than its file, and these bytes.
pub fn difference_from_files(pid: u32) -> Option<String> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("the process is ours");
    let mut compared = 0;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_file = |path: &&&str| path.starts_with('/') && !path.starts_with("/memfd:");
        let (Some(path), true) = (words.get(5).filter(is_file), words[1].contains('x')) else {
            continue;
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let (start, end) = words[0].split_once('-').map(|(a, b)| (hex(a), hex(b))).expect("a range");
        let mut mapped = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut mapped, start).expect("readable");
        let mut stored = vec![0; mapped.len()];
        let file = std::fs::File::open(format!("/proc/{pid}/root{path}")).expect("the file is there");
        let bytes = file.read_at(&mut stored, hex(words[2])).expect("readable");
        let different = mapped[..bytes].iter().zip(&stored[..bytes]).position(|(mapped, stored)| mapped != stored);
        let around = different.map(|at| at.saturating_sub(8)..(at + 16).min(bytes));
        if let Some(around) = around {
            let is = (around.start, &mapped[around.clone()], &stored[around]);
            return Some(format!("{path}: first difference in {line}: offset, memory and file {is:x?}"));
        }
        compared += 1;
    }
    assert!(compared > 0, "nothing compared");
    None
}
