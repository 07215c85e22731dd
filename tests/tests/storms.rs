//! Storms: tools come and go as fast as they can while programs are at work, and somebody kills and stops tools, targets and the
//! server at random. `cargo xtask storm` runs them for minutes; without `RING3_STORM_SECONDS` each takes a few seconds.
//!
//! The oracle: each program's own results are right and it ends as it should; no target dies by a signal that the storm did not
//! send; after a detach no mapping or descriptor of ring3's is left; in the end the code is that of the files.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ring3_generate::Random;
use ring3_tests::{
    Bench, Process, WITHIN, calling_victims, difference_from_files, example, programs, ready, root, victim,
    wait_until,
};
use rustix::process::{Pid, Signal};

/// Seconds of a storm in the test suite.
const SECONDS_USUAL: u64 = 3;
/// Tools that attach and detach at a time.
const TOOLS: usize = 3;
/// How often a tool may have the same probe: so many attachments take less time than as many tools.
const LINKS_PER_PROBE: usize = 3;
/// By then something has been attached, and a process attached and detached.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// The server is killed about so often.
const SERVER_LIVES: Duration = Duration::from_secs(8);

fn duration() -> Duration {
    let seconds = std::env::var("RING3_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(SECONDS_USUAL))
}

/// Whether a program is installed; else its absence is said, with the package that has it.
fn has(program: &str, package: &str) -> bool {
    let paths = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = paths.split(':').any(|directory| PathBuf::from(directory).join(program).is_file());
    if !found {
        println!("SKIPPED: {program} is not installed (package {package})");
    }
    found
}

/// One sequence of random numbers per thread of a storm.
fn random_of_seed(seed: u64) -> Random {
    Random::from_state(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn milliseconds(random: &mut Random, below: u64) -> Duration {
    Duration::from_millis(random.below(below))
}

/// What happened.
#[derive(Default)]
struct Tally {
    attachments: AtomicU64,
    cycles: AtomicU64,
    refused: AtomicU64,
    tools_killed: AtomicU64,
    targets_killed: AtomicU64,
    stops: AtomicU64,
    servers_killed: AtomicU64,
}

struct Storm<'s> {
    bench: Bench,
    /// What is probed, as the example tool names it.
    probes: Vec<String>,
    /// The processes that must survive.
    targets: &'s (dyn Fn() -> Vec<u32> + Sync),
    tally: Tally,
    over: AtomicBool,
}

fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The wait status of a child that has ended and was not waited for yet (proc_pid_stat(5), `exit_code`).
fn ended_with(pid: u32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(") ").next()?.split_whitespace().collect();
    if fields.first() == Some(&"Z") { fields.last()?.parse().ok() } else { None }
}

/// Mappings and descriptors of ring3's in a process.
fn leftovers(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut found: Vec<String> = maps.lines().filter(|line| line.contains("ring3-")).map(str::to_owned).collect();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let names = files.filter_map(|file| Some(std::fs::read_link(file.path()).ok()?.display().to_string()));
    found.extend(names.filter(|name| name.contains("memfd:ring3-")));
    found
}

impl Storm<'_> {
    fn goes_on(&self) -> bool {
        !self.over.load(Relaxed)
    }

    fn server(&self) -> Option<u32> {
        let (_, out, _) = self.bench.run(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&out).ok()?;
        Some(status["server"]["pid"].as_u64()? as u32)
    }

    /// Tools with some of the probes: each attaches, looks, and ends or is killed.
    fn attach_and_detach(&self, mut random: Random) {
        while self.goes_on() {
            let mut command = self.bench.load(example("malloc"));
            for probe in self.probes.iter().cycle().take(self.probes.len() * LINKS_PER_PROBE) {
                match random.below(4) {
                    0 => drop(command.arg(probe)),
                    1 => drop(command.arg(format!("{probe}:ret"))),
                    2 => drop(command.arg(probe).arg(format!("{probe}:ret"))),
                    _ => {}
                }
            }
            // (By itself the tool would take malloc.)
            command.arg(&self.probes[0]);
            let mut tool = Process::start(&mut command);
            let attached = tool.line_or_end();
            let count = attached.as_deref().and_then(|line| line.strip_prefix("attached ")?.parse().ok());
            match count {
                Some(count) => self.tally.attachments.fetch_add(count, Relaxed),
                None => self.tally.refused.fetch_add(1, Relaxed),
            };
            std::thread::sleep(milliseconds(&mut random, 30));
            if random.below(3) == 0 {
                self.tally.tools_killed.fetch_add(1, Relaxed);
                tool.signal(Signal::KILL);
            } else {
                tool.finish();
            }
        }
    }

    /// Tools that see all system calls.
    fn trace_calls(&self, mut random: Random) {
        while self.goes_on() {
            let mut tool = Process::start(self.bench.load_with_tracefs(programs().join("calls")).arg("raw"));
            if tool.line_or_end().as_deref() == Some("attached") {
                self.tally.attachments.fetch_add(2, Relaxed);
            }
            std::thread::sleep(milliseconds(&mut random, 300));
            if random.below(2) == 0 {
                tool.finish();
            }
        }
    }

    /// Makes the processes targets, and no targets again.
    fn enter_and_leave(&self, mut random: Random) {
        while self.goes_on() {
            for pid in (self.targets)() {
                let shown = pid.to_string();
                let entered = self.bench.run(&["attach", &shown]);
                std::thread::sleep(milliseconds(&mut random, 40));
                let left = self.bench.run(&["detach", &shown]);
                let done = entered.0 == Some(0) && left.0 == Some(0);
                let counter = if done { &self.tally.cycles } else { &self.tally.refused };
                counter.fetch_add(1, Relaxed);
                if done {
                    assert_eq!(leftovers(pid), [""; 0], "in process {pid} after a detach");
                }
            }
        }
    }

    /// A target that is killed, again and again.
    fn sacrifice(&self, mut random: Random) {
        let file = victim("busy", "gcc", "busy.c", &[]);
        while self.goes_on() {
            let mut doomed = Process::start(self.bench.target(&file).arg("2"));
            let _ = doomed.line_or_end();
            std::thread::sleep(milliseconds(&mut random, 200));
            doomed.signal(Signal::KILL);
            self.tally.targets_killed.fetch_add(1, Relaxed);
        }
    }

    /// Stops targets and the server for a while, and kills the server.
    fn disturb(&self, mut random: Random) {
        let mut born = Instant::now();
        while self.goes_on() {
            std::thread::sleep(milliseconds(&mut random, 150));
            let server = self.server();
            if born.elapsed() > SERVER_LIVES
                && let Some(server) = server
            {
                kill(server, Signal::KILL);
                self.tally.servers_killed.fetch_add(1, Relaxed);
                born = Instant::now();
                continue;
            }
            let targets = (self.targets)();
            let stopped = match (random.below(3), server) {
                (0, Some(server)) => server,
                _ if targets.is_empty() => continue,
                _ => targets[random.below(targets.len() as u64) as usize],
            };
            kill(stopped, Signal::STOP);
            std::thread::sleep(milliseconds(&mut random, 80));
            kill(stopped, Signal::CONT);
            self.tally.stops.fetch_add(1, Relaxed);
        }
    }

    /// All of it, while `work` is done until it is told to end; then the calm.
    fn rage(&self, name: &str, work: impl Fn(&AtomicBool) + Sync) {
        let began = Instant::now();
        /// Ends the storm, also if one of its threads fails.
        struct End<'s>(&'s AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let guarded = |job: &dyn Fn()| {
            let end = End(&self.over);
            job();
            std::mem::forget(end);
        };
        let guarded = &guarded;
        let work = &work;
        std::thread::scope(|scope| {
            for seed in 0..TOOLS as u64 {
                scope.spawn(move || guarded(&|| self.attach_and_detach(random_of_seed(seed + 1))));
            }
            scope.spawn(move || guarded(&|| self.trace_calls(random_of_seed(11))));
            scope.spawn(move || guarded(&|| self.enter_and_leave(random_of_seed(12))));
            scope.spawn(move || guarded(&|| self.sacrifice(random_of_seed(13))));
            scope.spawn(move || guarded(&|| self.disturb(random_of_seed(14))));
            scope.spawn(move || guarded(&|| work(&self.over)));
            // (On a machine with much else to do nothing may have come about by then.)
            let has_begun = || self.tally.attachments.load(Relaxed) > 0 && self.tally.cycles.load(Relaxed) > 0;
            let is_enough = || began.elapsed() >= duration() && (has_begun() || began.elapsed() >= BEGINS_WITHIN);
            while self.goes_on() && !is_enough() {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.over.store(true, Relaxed);
        });
        self.calm();
        let seconds = began.elapsed().as_secs_f64();
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let t = &self.tally;
        println!(
            "storm {name}: {seconds:.0} s, {} attachments ({:.0} a second), {} attach/detach cycles, {} refusals or errors, \
             killed: {} tools, {} targets, {} servers; stopped: {}",
            of(&t.attachments),
            of(&t.attachments) as f64 / seconds,
            of(&t.cycles),
            of(&t.refused),
            of(&t.tools_killed),
            of(&t.targets_killed),
            of(&t.servers_killed),
            of(&t.stops)
        );
        assert!(of(&t.attachments) > 0 && of(&t.cycles) > 0, "nothing was attached");
    }

    /// Nothing of ring3's is left in the targets.
    fn calm(&self) {
        for pid in (self.targets)() {
            if let Some(status) = ended_with(pid) {
                panic!("process {pid} has died, wait status {status:#x}");
            }
            kill(pid, Signal::CONT);
            wait_until("nothing is left of a dead server, or of a target", || {
                let _ = self.bench.run(&["detach", &pid.to_string()]);
                leftovers(pid).is_empty()
            });
            // (Other tests probe the C library by the kernel, which is in all processes: such a breakpoint goes again.)
            let deadline = Instant::now() + WITHIN;
            while let Some(differs) = difference_from_files(pid) {
                assert!(Instant::now() < deadline, "{differs}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// A storm over a victim that checks itself: it says "ready", works until a line comes, and says how much it did and how much of
/// that was wrong.
fn over_a_victim(name: &str, mut command: Command, probes: Vec<String>) {
    let mut process = ready(&mut command);
    let pid = process.pid();
    let targets = || vec![pid];
    let storm = Storm {
        bench: Bench::ring3(),
        probes,
        targets: &targets,
        tally: Tally::default(),
        over: AtomicBool::new(false),
    };
    storm.rage(name, |_| {});
    process.say("");
    let line = process.line();
    let (code, _, errors) = process.finish();
    assert!(code == Some(0) && line.ends_with(" 0"), "{line}, exit code {code:?}, {errors:?}");
    println!("storm {name}: {line} (units of work, wrong ones)");
}

fn libc(functions: &[&str]) -> Vec<String> {
    functions.iter().map(|function| format!("libc.so.6:{function}")).collect()
}

/// Functions of a program, and of the C library.
fn probes_in(file: &std::path::Path, own: &[&str], functions: &[&str]) -> Vec<String> {
    let own = own.iter().map(|function| format!("{}:{function}", file.display()));
    own.chain(libc(functions)).collect()
}

fn stormy(name: &str, compiler: &str, source: &str) -> PathBuf {
    victim(name, compiler, &format!("storm/{source}"), &[])
}

#[test]
fn exceptions() {
    let file = stormy("throws", "g++", "throws.cc");
    let mut command = Command::new(&file);
    command.arg("2");
    let mut probes = probes_in(&file, &["raise_at", "attempt"], &["malloc", "free", "strtol", "memcpy"]);
    probes.pop();
    over_a_victim("exceptions", command, probes);
}

#[test]
fn threads() {
    let file = stormy("spawns", "gcc", "spawns.c");
    let probes = probes_in(&file, &["step", "body"], &["malloc", "free", "mmap", "munmap", "pthread_create"]);
    over_a_victim("threads", Command::new(&file), probes);
}

#[test]
fn forks() {
    let file = stormy("forks", "gcc", "forks.c");
    let probes = probes_in(&file, &["step", "grow"], &["fork", "_exit", "waitpid", "malloc"]);
    over_a_victim("forks", Command::new(&file), probes);
}

#[test]
fn goroutines() {
    if !has("go", "golang") {
        return;
    }
    // (Made with the other victims in Go, so that the compiler's cache is used.)
    let _ = calling_victims("go");
    let directory = root().join("target/victims");
    std::fs::create_dir_all(&directory).expect("target is writable");
    let file = directory.join("churn-go");
    let source = root().join("tests/victims/storm/churn.go");
    let output = Command::new("go").args(["build", "-o"]).arg(&file).arg(source).output().expect("go runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let own = ["main.work", "main.tree", "main.sum", "main.deep", "runtime.mallocgc", "runtime.newproc"];
    over_a_victim("goroutines", Command::new(&file), probes_in(&file, &own, &[]));
}

#[test]
fn java() {
    if !has("java", "default-jdk-headless") {
        return;
    }
    let mut command = Command::new("java");
    command.args(["-Xmx64m", "-XX:+UseParallelGC", "-XX:ParallelGCThreads=2"]);
    command.arg(root().join("tests/victims/storm/Churn.java"));
    over_a_victim(
        "java",
        command,
        libc(&["malloc", "free", "pthread_cond_signal", "pthread_mutex_unlock", "mprotect"]),
    );
}

/// A port that nobody listens on now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn await_port(port: u16) {
    wait_until("the program listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
}

/// Sends a request of redis's protocol in one line; its answer's first line.
fn ask_redis(stream: &mut BufReader<TcpStream>, words: &str) -> String {
    stream.get_mut().write_all(format!("{words}\r\n").as_bytes()).expect("redis reads");
    let mut line = String::new();
    stream.read_line(&mut line).expect("redis answers");
    line.trim_end().to_owned()
}

#[test]
fn redis() {
    if !has("redis-server", "redis-server") || !has("redis-benchmark", "redis-tools") {
        return;
    }
    let port = free_port();
    let shown = port.to_string();
    let mut command = Command::new("redis-server");
    command.args(["--port", &shown, "--save", "", "--appendonly", "no", "--dir", "/tmp"]);
    let mut server = Process::start(&mut command);
    await_port(port);
    let pid = server.pid();
    let targets = || vec![pid];
    let probes = libc(&["read", "write", "epoll_wait", "memchr", "gettimeofday", "snprintf", "malloc", "free"]);
    let storm = Storm {
        bench: Bench::ring3(),
        probes,
        targets: &targets,
        tally: Tally::default(),
        over: AtomicBool::new(false),
    };
    let asked = AtomicU64::new(0);
    let stream = || BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("redis listens"));
    storm.rage("redis", |over| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let arguments = ["-p", &shown, "-q", "-n", "20000", "-c", "20", "-t", "set,get,incr,lpush,lpop"];
                    let output = Command::new("redis-benchmark").args(arguments).output().expect("it runs");
                    let text = String::from_utf8_lossy(&output.stdout).into_owned();
                    assert!(output.status.success() && !text.contains("rror"), "{text}");
                }
            });
            let mut stream = stream();
            while !over.load(Relaxed) {
                let count = asked.fetch_add(1, Relaxed) + 1;
                assert_eq!(ask_redis(&mut stream, "INCR storm"), format!(":{count}"));
            }
        });
    });
    let count = asked.load(Relaxed);
    assert_eq!(ask_redis(&mut stream(), "INCR storm"), format!(":{}", count + 1));
    println!("storm redis: {count} increments besides redis-benchmark, all there");
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}

/// A directory that goes with this value.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn nginx() {
    if !has("nginx", "nginx-light") || !has("wrk", "wrk") {
        return;
    }
    let directory = Directory(std::env::temp_dir().join(format!("ring3-storm-{}", std::process::id())));
    std::fs::create_dir_all(&directory.0).expect("made");
    let (at, port) = (directory.0.display().to_string(), free_port());
    let content: String = (0..200).map(|line| format!("line {line}\n")).collect();
    std::fs::write(directory.0.join("file.txt"), &content).expect("written");
    let temporary =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path {at}/{name};"));
    let configuration = format!(
        "daemon off; user root; worker_processes 2; pid {at}/pid; error_log {at}/error;\nevents {{ worker_connections 256; }}\n\
         http {{ access_log off; {} server {{ listen 127.0.0.1:{port}; root {at}; }} }}\n",
        temporary.concat()
    );
    std::fs::write(directory.0.join("nginx.conf"), configuration).expect("written");
    let mut command = Command::new("/usr/sbin/nginx");
    command.args(["-p", &at, "-e", "stderr", "-c"]).arg(directory.0.join("nginx.conf"));
    let mut master = Process::start(&mut command);
    await_port(port);
    let pid = master.pid();
    let targets = || [vec![pid], children(pid)].concat();
    // (It listens before they are there.)
    wait_until("nginx has its two workers", || children(pid).len() == 2);
    let workers = children(pid);
    let probes = libc(&["recv", "writev", "epoll_wait", "sendfile64", "open64", "close", "malloc", "free"]);
    let storm = Storm {
        bench: Bench::ring3(),
        probes,
        targets: &targets,
        tally: Tally::default(),
        over: AtomicBool::new(false),
    };
    let fetched = AtomicU64::new(0);
    let url = format!("http://127.0.0.1:{port}/file.txt");
    storm.rage("nginx", |over| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let arguments = ["-t", "1", "-c", "30", "-d", "2", "--timeout", "10", &url];
                    let output = Command::new("wrk").args(arguments).output().expect("wrk runs");
                    let text = String::from_utf8_lossy(&output.stdout).into_owned();
                    let is_right = !text.contains("Non-2xx") && !text.contains("Socket errors");
                    assert!(output.status.success() && is_right, "{text}");
                }
            });
            while !over.load(Relaxed) {
                assert_eq!(fetch(port), content);
                fetched.fetch_add(1, Relaxed);
            }
        });
    });
    assert_eq!(children(pid), workers, "a worker has died");
    println!("storm nginx: {} files besides wrk, all right", fetched.load(Relaxed));
    master.signal(Signal::TERM);
    assert_eq!(master.wait(), Some(0));
}

/// The file, as one connection gives it.
fn fetch(port: u16) -> String {
    use std::io::Read;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("nginx listens");
    stream.write_all(b"GET /file.txt HTTP/1.0\r\n\r\n").expect("nginx reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("nginx answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}
