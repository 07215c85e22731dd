//! `examples/redis-durability`: extensions decide when the log of an unmodified redis is made durable, and a crash loses no more than
//! they say.
//!
//! A crash is the loss of power: ext4 on a loop device is cut off from its disk (`tests/victims/cut_disk.c`), and mounted again.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ring3_tests::{Bench, Disk, Process, built_example, is_root, kill, ring3, root, wait_until};
use rustix::process::Signal;

const NOBODY: u32 = 65_534;
const REDIS: &str = "/usr/bin/redis-server";
const CLIENTS: usize = 8;
/// Long enough that no batch ends by its time.
const NEVER_MS: u32 = 60_000;

fn example() -> Option<PathBuf> {
    built_example("redis-durability", &[REDIS])
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {said}")) }
}

/// A file system that can be cut off from its disk; `None`, said loudly, if none can be mounted.
fn disk(bench: &Bench) -> Option<Disk> {
    const BYTES: u64 = 128 << 20;
    let made = Disk::new(bench.made_directory(), BYTES);
    made.inspect_err(|why| println!("SKIPPED: no file system that can be cut off: {why}")).ok()
}

/// A redis with its log.
struct Redis {
    process: Process,
    port: u16,
}

impl Redis {
    fn start(mut command: Command, directory: &Path, policy: &str) -> Redis {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(directory);
        command.args(["--appendonly", "yes", "--appendfsync", policy]);
        let redis = Redis { process: Process::start(&mut command), port };
        wait_until("redis answers", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok() && redis.connect().ask("PING") == "+PONG"
        });
        redis
    }

    /// Under an extension, that lets so many rounds be not durable.
    fn extended(bench: &Bench, directory: &Path, class: &str, rounds: u32) -> Option<Redis> {
        let example = example()?;
        let policy = format!("{}:{class}", example.join("redis.eim").display());
        let mut command = bench.ring3_command(&["extend", "--class", &policy]);
        command.arg(example.join(format!("{class}.bpf.o"))).args(["--", REDIS]);
        let redis = Redis::start(command, directory, "always");
        set(bench, &["rounds", &rounds.to_string()]);
        Some(redis)
    }

    fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("redis listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        Connection { stream: BufReader::new(stream) }
    }

    fn kill(mut self) {
        kill(self.process.pid());
        self.process.wait();
    }
}

/// `durability` of the example: whether it succeeds, and what it says.
fn durability(bench: &Bench, arguments: &[&str]) -> (bool, String) {
    let mut command = bench.command(root().join("examples/redis-durability/durability"));
    let output = command.env("RING3", ring3()).args(arguments).output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn set(bench: &Bench, arguments: &[&str]) {
    // (The extension of a redis before goes a moment after it.)
    wait_until("there is one extension", || durability(bench, arguments).0);
}

struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// The answer's line, or the text that follows it; nothing if redis is gone.
    fn ask(&mut self, command: &str) -> String {
        // (In one piece: the kernel holds back what follows a small one.)
        let _ = self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes());
        let mut line = String::new();
        let _ = self.stream.read_line(&mut line);
        if line.starts_with('$') && line != "$-1\r\n" {
            line.clear();
            let _ = self.stream.read_line(&mut line);
        }
        line.trim().to_owned()
    }

    fn number(&mut self, key: usize) -> u64 {
        let answer = self.ask(&format!("GET k{key}"));
        if answer == "$-1" { 0 } else { answer.parse().unwrap_or_else(|_| panic!("redis said {answer:?}")) }
    }
}

/// Clients update a key each until redis is gone, which `crash` sees to once each has made some updates. The result is the number of
/// each client's last acknowledged update.
fn updates_until(redis: &Redis, crash: impl FnOnce()) -> Vec<u64> {
    use std::sync::atomic::{AtomicU64, Ordering};
    const UPDATES: u64 = 100;
    let all: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (key, acknowledged) in all.iter().enumerate() {
            let mut connection = redis.connect();
            scope.spawn(move || {
                let numbers = 1u64..;
                for number in numbers.take_while(|number| connection.ask(&format!("SET k{key} {number}")) == "+OK") {
                    acknowledged.store(number, Ordering::Release);
                }
            });
        }
        wait_until("each client has made updates", || all.iter().all(|last| last.load(Ordering::Acquire) >= UPDATES));
        crash();
    });
    all.into_iter().map(AtomicU64::into_inner).collect()
}

/// What is missing of each client's updates where a redis starts that has this log.
fn lost(directory: &Path, acknowledged: &[u64]) -> Vec<u64> {
    // (A block that is made durable while more is appended to it may have zeros behind what is durable.)
    let mut repair = Command::new("sh");
    repair.args(["-c", "echo y | redis-check-aof --fix \"$0\""]);
    repair.arg(directory.join("appendonlydir/appendonly.aof.manifest"));
    succeeds(&mut repair).expect("the log can be repaired");
    let redis = Redis::start(Command::new(REDIS), directory, "everysec");
    let mut connection = redis.connect();
    let found: Vec<u64> = (0..acknowledged.len()).map(|key| connection.number(key)).collect();
    redis.kill();
    acknowledged.iter().zip(&found).map(|(known, found)| known.saturating_sub(*found)).collect()
}

#[test]
fn a_cut_disk_loses_no_more_updates_of_a_client_than_the_extension_says() {
    let bench = Bench::ring3();
    let (Some(_), Some(disk)) = (example(), disk(&bench)) else { return };
    let directory = disk.directory().join("log");
    let crash = |redis: Redis| {
        let acknowledged = updates_until(&redis, || {
            // (A loss of power stops redis, too: an fdatasync that is under way now may succeed on a file system that is shut down.)
            redis.process.signal(Signal::STOP);
            disk.cut().expect("it is ext4");
            kill(redis.process.pid());
        });
        redis.kill();
        disk.mount_again().expect("the journal is replayed");
        let lost = lost(&directory, &acknowledged);
        std::fs::remove_dir_all(&directory).expect("it was redis's");
        std::fs::create_dir(&directory).expect("made");
        *lost.iter().max().expect("clients")
    };
    std::fs::create_dir(&directory).expect("made");
    // What this can tell from what.
    assert_eq!(crash(Redis::start(Command::new(REDIS), &directory, "always")), 0);
    assert!(crash(Redis::start(Command::new(REDIS), &directory, "no")) > 50);
    for (class, rounds) in [("batch", 1), ("batch", 8), ("delayed", 1), ("notify", 1), ("notify", 2)] {
        let redis = Redis::extended(&bench, &directory, class, rounds).expect("it is installed");
        let lost = crash(redis);
        // (Of a batch, the last round is durable when it is answered.)
        let most = if class == "batch" { rounds - 1 } else { rounds };
        assert!(lost <= u64::from(most), "{class} {rounds}: a client has lost {lost}");
    }
    // It is the extension that decides.
    let redis = Redis::extended(&bench, &directory, "batch", 1_000_000).expect("it is installed");
    set(&bench, &["milliseconds", &NEVER_MS.to_string()]);
    assert!(crash(redis) > 50);
}

#[test]
fn a_redis_that_is_killed_or_shut_down_loses_nothing() {
    let bench = Bench::ring3();
    for (class, rounds) in [("batch", 48), ("delayed", 2), ("notify", 2)] {
        let directory = bench.made_directory().join(class);
        std::fs::create_dir(&directory).expect("made");
        let Some(redis) = Redis::extended(&bench, &directory, class, rounds) else { return };
        let acknowledged = updates_until(&redis, || kill(redis.process.pid()));
        redis.kill();
        assert_eq!(lost(&directory, &acknowledged), vec![0; CLIENTS], "{class}");
    }
    let Some(disk) = disk(&bench) else { return };
    let mut redis = Redis::extended(&bench, disk.directory(), "batch", 1_000_000).expect("it is installed");
    set(&bench, &["milliseconds", &NEVER_MS.to_string()]);
    assert_eq!(redis.connect().ask("SET k0 1"), "+OK");
    assert_eq!(redis.connect().ask("SET k0 2"), "+OK");
    redis.process.signal(Signal::TERM);
    assert_eq!(redis.process.wait(), Some(0));
    disk.cut().expect("it is ext4");
    disk.mount_again().expect("the journal is replayed");
    assert_eq!(lost(disk.directory(), &[2]), [0]);
}

#[test]
fn a_batch_that_does_not_become_full_is_made_durable_after_its_time() {
    let bench = Bench::ring3();
    let (Some(_), Some(disk)) = (example(), disk(&bench)) else { return };
    let redis = Redis::extended(&bench, disk.directory(), "batch", 1_000_000).expect("it is installed");
    set(&bench, &["milliseconds", "20"]);
    let mut connection = redis.connect();
    // (The first one in a file is durable anyway.)
    assert_eq!((connection.ask("SET k0 1"), connection.ask("SET k0 2")), ("+OK".into(), "+OK".into()));
    let unsynced = || {
        let mut dump = bench.load("/usr/sbin/bpftool");
        let output = dump.args(["map", "dump", "name", "progress"]).output().expect("bpftool runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    wait_until("the batch has ended", || unsynced().contains("\"unsynced\": 0"));
    let info = |redis: &Redis| {
        let mut connection = redis.connect();
        let _ = write!(connection.stream.get_mut(), "INFO persistence\r\nQUIT\r\n");
        let mut text = String::new();
        let _ = std::io::Read::read_to_string(&mut connection.stream, &mut text);
        text
    };
    wait_until("redis's thread has called fdatasync", || info(&redis).contains("aof_pending_bio_fsync:0"));
    disk.cut().expect("it is ext4");
    redis.kill();
    disk.mount_again().expect("the journal is replayed");
    assert_eq!(lost(disk.directory(), &[2]), [0]);
}

#[test]
fn a_counter_tells_how_far_the_log_is_durable_also_when_the_log_is_rewritten() {
    let bench = Bench::ring3();
    let directory = bench.made_directory().join("log");
    std::fs::create_dir(&directory).expect("made");
    let Some(redis) = Redis::extended(&bench, &directory, "notify", 2) else { return };
    let mut connection = redis.connect();
    const UPDATES: u64 = 300;
    for number in 1..=UPDATES {
        assert_eq!(connection.ask(&format!("SET k0 {number}")), "+OK");
        if number == UPDATES / 2 {
            let answer = connection.ask("BGREWRITEAOF");
            assert!(answer.starts_with("+Background"), "{answer}");
        }
    }
    // (A client that waits has one update in a round.)
    let wanted = format!("written: {UPDATES}\ndurable: {UPDATES}\n");
    let mut said = String::new();
    wait_until("all is durable", || {
        said = durability(&bench, &["show"]).1;
        said == wanted || !said.starts_with(&format!("written: {UPDATES}\n"))
    });
    assert_eq!(said, wanted);
    redis.kill();
    assert_eq!(lost(&directory, &[UPDATES]), [0]);
}

#[test]
fn a_redis_whose_loader_is_killed_makes_each_round_durable() {
    let bench = Bench::ring3();
    let (Some(_), Some(disk)) = (example(), disk(&bench)) else { return };
    let redis = Redis::extended(&bench, disk.directory(), "batch", 1_000_000).expect("it is installed");
    set(&bench, &["milliseconds", &NEVER_MS.to_string()]);
    let mut connection = redis.connect();
    assert_eq!((connection.ask("SET k0 1"), connection.ask("SET k0 2")), ("+OK".into(), "+OK".into()));
    let loaders = || bench.status()["loaders"].as_array().cloned().unwrap_or_default();
    let loader = loaders().iter().find_map(|loader| loader["pid"].as_u64()).expect("a loader");
    kill(loader as u32);
    wait_until("the extension is gone", || loaders().is_empty());
    assert_eq!(connection.ask("SET k0 3"), "+OK");
    disk.cut().expect("it is ext4");
    redis.kill();
    disk.mount_again().expect("the journal is replayed");
    assert_eq!(lost(disk.directory(), &[3]), [0]);
}

#[test]
fn an_ordinary_user_can_extend_redis() {
    if !is_root() {
        println!("SKIPPED: another user needs root (and the other tests are those of an ordinary user)");
        return;
    }
    let bench = Bench::ring3_as(NOBODY);
    let Some(redis) = Redis::extended(&bench, bench.directory(), "notify", 1) else { return };
    assert_eq!(redis.connect().ask("SET k0 1"), "+OK");
    assert!(durability(&bench, &["show"]).1.starts_with("written: 1\n"));
    redis.kill();
}
