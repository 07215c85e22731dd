//! `cargo xtask bench durability`: how fast redis is, and how many updates a crash loses, by when it makes its log durable.
//!
//! The case of "Extending Applications Safely and Efficiently" (OSDI 2025): redis's own ways (no log, `everysec`, `always`), and
//! those of the extensions of `examples/redis-durability`, which run under `always`. Throughput is that of `redis-benchmark -t set`
//! with the log on the machine's disk. Losses come from crashes: clients count the updates that redis has acknowledged, redis is
//! killed, or stopped and its file system cut off from its disk, and what a redis finds that starts there
//! afterwards is compared. The file system is ext4 on a loop device. The cut is ext4's own test of power losses
//! (`EXT4_IOC_SHUTDOWN`): what was not written to the device is gone, and the journal is replayed at the next mount. A cache in the
//! disk is not cut: blocks that were written and not flushed stay, so losses without fsync may be larger in fact.
//!
//! An update that is appended to a block while that block is made durable may leave zeros behind the durable part. Redis then does
//! not start until `redis-check-aof --fix` has cut them off; the table tells how often.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ring3_tests::Disk;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, Ring3, Spread, machine, machine_text, output};
use crate::bench_options::{Output, count};
use crate::root;
use crate::workloads::load::parse_redis;
use crate::workloads::measures::{self, Series};
use crate::workloads::victim::{Server, await_some, free_port, signal};

const ROUNDS: usize = 5;
const SECONDS: usize = 2;
const CRASHES: usize = 10;
/// Connections of redis-benchmark unless another number is asked for (its own default), and of crashes, by some threads.
const CONNECTIONS: usize = 50;
const THREADS: usize = 5;
/// Requests by which the rate is guessed.
const REQUESTS_FIRST: usize = 2_000;
/// A crash comes so long after the first update at least, in milliseconds; so much later each time, modulo the most.
const CRASH_MS: u64 = 300;
const CRASH_STEP_MS: u64 = 37;
const CRASH_MORE_MS: u64 = 1_000;
const DISK_BYTES: u64 = 512 << 20;
const REDIS: &str = "/usr/bin/redis-server";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    NoLog,
    EverySecond,
    Always,
    Batch(u32),
    Delayed(u32),
    Notify(u32),
}
use Variant::{Always, Batch, Delayed, EverySecond, NoLog, Notify};

const VARIANTS: [Variant; 11] = [
    NoLog,
    EverySecond,
    Always,
    Batch(1),
    Batch(2),
    Batch(8),
    Batch(48),
    Delayed(1),
    Delayed(2),
    Notify(1),
    Notify(2),
];

impl Variant {
    fn name(self) -> String {
        match self {
            NoLog => "no log".to_owned(),
            EverySecond => "everysec".to_owned(),
            Always => "always".to_owned(),
            Batch(rounds) => format!("batch {rounds}"),
            Delayed(rounds) => format!("delayed {rounds}"),
            Notify(rounds) => format!("delayed {rounds} + notify"),
        }
    }

    /// The extension's class, and how many rounds it lets be not durable.
    fn extension(self) -> Option<(&'static str, u32)> {
        match self {
            NoLog | EverySecond | Always => None,
            Batch(rounds) => Some(("batch", rounds)),
            Delayed(rounds) => Some(("delayed", rounds)),
            Notify(rounds) => Some(("notify", rounds)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Crash {
    Kill,
    CutDisk,
}

/// Updates that were acknowledged and are gone, one figure per crash.
#[derive(Default)]
struct Losses {
    all: Vec<f64>,
    /// Of the connection that lost most.
    of_connection: Vec<f64>,
    acknowledged: f64,
    /// Crashes that left zeros at the end of the log, so that it had to be repaired.
    repaired: u32,
}

struct Bench {
    ring3: Ring3,
    example: PathBuf,
    /// On the machine's disk.
    directory: PathBuf,
    disk: Option<Disk>,
    figures: BTreeMap<Variant, Series>,
    losses: BTreeMap<(Variant, Crash), Losses>,
    loads: Vec<f64>,
}

/// What `cargo xtask bench durability` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = SECONDS, value_parser = count)]
    seconds: usize,
    /// Connections of redis-benchmark; crashes have 50
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS, value_parser = count)]
    connections: usize,
    /// Crashes of each kind for each row
    #[arg(long, value_name = "N", default_value_t = CRASHES)]
    crashes: usize,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn durability(options: &Options) -> Result<(), String> {
    if !Path::new(REDIS).exists() {
        return Err(format!("there is no {REDIS}: install redis-server"));
    }
    let ring3 = Ring3::new()?;
    let binary = ring3.command(&[]).get_program().to_owned();
    let make = format!("RING3={}", Path::new(&binary).display());
    crate::run("make", &["-s", "-C", "examples/redis-durability", &make])?;
    let directory = root().join("target/bench/durability");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let disk = (options.crashes > 0).then(|| Disk::new(&directory, DISK_BYTES)).transpose()?;
    let mut bench = Bench {
        ring3,
        example: root().join("examples/redis-durability"),
        directory,
        disk,
        figures: BTreeMap::new(),
        losses: BTreeMap::new(),
        loads: vec![],
    };
    bench.run(options).map_err(|why| format!("{why}\nThe end of ring3's server.log:{}", bench.ring3.log()))?;
    let goals = bench.goals();
    bench.print(options, &goals);
    options.output.save(|| bench.json(options, &goals))
}

impl Bench {
    /// Rounds in which each variant begins once. Crashes are spread over them.
    fn run(&mut self, options: &Options) -> Result<(), String> {
        // (It waits for its input to end, and keeps ring3's server.)
        let waiting = Process::start(&mut self.ring3.command(&["start", "--", "cat"]))?;
        await_some("ring3's server", || self.ring3.target(waiting.child.id()).ok().flatten())?;
        for round in 0..options.rounds {
            eprintln!("round {} of {}", round + 1, options.rounds);
            self.loads.extend(measures::load_average());
            let crashes = (round + 1) * options.crashes / options.rounds - round * options.crashes / options.rounds;
            for turn in 0..VARIANTS.len() {
                let variant = VARIANTS[(round + turn) % VARIANTS.len()];
                let failed = |why| format!("{}: {why}", variant.name());
                self.measure(variant, options).map_err(failed)?;
                for _ in 0..crashes {
                    self.crash(variant, Crash::Kill).map_err(failed)?;
                    self.crash(variant, Crash::CutDisk).map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// A server whose log is in a new directory.
    fn start(&self, variant: Variant, directory: &Path) -> Result<Server, String> {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let policy = match variant {
            EverySecond => "everysec",
            _ => "always",
        };
        let mut command = match variant.extension() {
            None => Command::new(REDIS),
            Some((name, _)) => {
                let class = format!("{}:{name}", self.example.join("redis.eim").display());
                let object = self.example.join(format!("{name}.bpf.o")).display().to_string();
                let mut command = self.ring3.command(&["extend", "--class", &class, &object, "--"]);
                command.arg(REDIS);
                command
            }
        };
        let server = self.server(&mut command, directory, if variant == NoLog { None } else { Some(policy) })?;
        if let Some((_, rounds)) = variant.extension() {
            let mut set = Command::new(self.example.join("durability"));
            for (name, value) in self.ring3.command(&[]).get_envs() {
                value.map(|value| set.env(name, value));
            }
            set.env("RING3", self.ring3.command(&[]).get_program()).args(["rounds", &rounds.to_string()]);
            // (The extension of the server before may take a moment to go; as long as there are two, there is no telling them apart.)
            let mut why = String::new();
            await_some("the extension's settings", || output(&mut set).inspect_err(|said| why.clone_from(said)).ok())
                .map_err(|failed| format!("{failed}: {why}"))?;
        }
        Ok(server)
    }

    fn server(&self, command: &mut Command, directory: &Path, policy: Option<&str>) -> Result<Server, String> {
        let port = free_port()?;
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(directory);
        command.args(["--appendonly", if policy.is_some() { "yes" } else { "no" }]);
        command.args(["--appendfsync", policy.unwrap_or("no"), "--auto-aof-rewrite-percentage", "0"]);
        Server::start(command, port, &self.directory.join("redis.log"), false)
    }

    fn measure(&mut self, variant: Variant, options: &Options) -> Result<(), String> {
        let mut server = self.start(variant, &self.directory.join("log"))?;
        let mut load = |requests: usize| {
            let mut command = Command::new("redis-benchmark");
            command.args(["-p", &server.port.to_string(), "-t", "set", "--csv", "-r", "100000"]);
            command.args(["-c", &options.connections.to_string(), "-n", &requests.to_string()]);
            let parse = |text: &str| {
                parse_redis(text, requests as f64).ok_or_else(|| format!("redis-benchmark said {text:?}"))
            };
            server.load(&command, None, parse)
        };
        let first = load(REQUESTS_FIRST)?;
        let measured = load((first.told.per_second * options.seconds as f64) as usize + REQUESTS_FIRST)?;
        self.figures.entry(variant).or_default().push(&measured);
        Ok(())
    }

    /// Has redis crash under load, and counts what is gone.
    fn crash(&mut self, variant: Variant, crash: Crash) -> Result<(), String> {
        let disk = self.disk.as_ref().ok_or("no disk")?;
        let directory = disk.directory().join("log");
        let server = self.start(variant, &directory)?;
        let number = self.losses.get(&(variant, crash)).map_or(0, |known| known.all.len() as u64);
        let after = Duration::from_millis(CRASH_MS + number * CRASH_STEP_MS % CRASH_MORE_MS);
        let clients = Clients::start(server.port)?;
        std::thread::sleep(after);
        if crash == Crash::CutDisk {
            // (A loss of power stops redis, too: an fdatasync that is under way now may succeed on a file system that is shut down.)
            server.processes()?.into_iter().for_each(|pid| signal(pid, Signal::STOP));
            disk.cut()?;
        }
        server.processes()?.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        let acknowledged = clients.finish()?;
        drop(server);
        if crash == Crash::CutDisk {
            disk.mount_again()?;
        }
        let repaired = repair(&directory)?;
        let mut server = self.server(&mut Command::new(REDIS), &directory, Some("everysec"))?;
        server.check()?;
        let found = found(server.port)?;
        server.processes()?.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        let lost = acknowledged.iter().zip(&found).map(|(known, found)| known.saturating_sub(*found) as f64);
        let lost: Vec<f64> = lost.collect();
        let losses = self.losses.entry((variant, crash)).or_default();
        losses.all.push(lost.iter().sum());
        losses.of_connection.push(lost.iter().copied().fold(0.0, f64::max));
        losses.repaired += u32::from(repaired);
        losses.acknowledged += acknowledged.iter().sum::<u64>() as f64;
        Ok(())
    }

    /// Requests per second, in percent of those of `everysec` in the same round.
    fn of_everysec(&self, variant: Variant) -> Option<Spread> {
        let (ours, theirs) = (self.figures.get(&variant)?, self.figures.get(&EverySecond)?);
        let pairs = ours.per_second.iter().zip(&theirs.per_second);
        Spread::of(&pairs.map(|(ours, theirs)| 100.0 * ours / theirs).collect::<Vec<_>>())
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = vec![];
        for variant in [Notify(1), Notify(2)] {
            let losses = self.losses.get(&(variant, Crash::CutDisk));
            goals.push(Goal {
                text: format!("{}: of everysec, %", variant.name()),
                figure: self.of_everysec(variant).map(|spread| spread.median),
                limit: Limit::AtLeast(100.0),
            });
            goals.push(Goal {
                text: format!("{}: most lost by a client", variant.name()),
                figure: losses.map(|known| most(&known.of_connection)),
                limit: Limit::AtMost(2.0),
            });
        }
        goals
    }

    fn print(&self, options: &Options, goals: &[Goal]) {
        let load = Spread::of(&self.loads).map(|spread| spread.to_string()).unwrap_or_default();
        println!("\n{}", machine_text());
        println!(
            "redis-benchmark -t set, {} connections, load {}: medians of {} rounds of {} s (middle half)",
            options.connections,
            load.trim(),
            options.rounds,
            options.seconds
        );
        println!(
            "updates lost by {} crashes of each kind, of all clients: mean, most; most of one client; \
             how often the log had to be repaired\n",
            options.crashes
        );
        println!(
            "{:<22}{:>23} {:>23}{:>8}  {:>24}  {:>24}",
            "", "a second", "of everysec, %", "p99 ms", "kill -9", "disk cut"
        );
        for (variant, series) in &self.figures {
            let show = |spread: Option<Spread>| spread.map(|spread| spread.to_string()).unwrap_or_default();
            let lost = |crash| match self.losses.get(&(*variant, crash)) {
                None => "-".to_owned(),
                Some(known) => {
                    let mean = known.all.iter().sum::<f64>() / known.all.len() as f64;
                    let (all, of_connection) = (most(&known.all), most(&known.of_connection));
                    format!("{mean:.1}, {all:.0}; {of_connection:.0}; {}", known.repaired)
                }
            };
            println!(
                "{:<22}{} {}{:>8.2}  {:>24}  {:>24}",
                variant.name(),
                show(Spread::of(&series.per_second)),
                show(self.of_everysec(*variant)),
                Spread::of(&series.p99_ms).map_or(0.0, |spread| spread.median),
                lost(Crash::Kill),
                lost(Crash::CutDisk)
            );
        }
        println!("\ngoals");
        for goal in goals {
            println!("{goal}");
        }
    }

    fn json(&self, options: &Options, goals: &[Goal]) -> Value {
        let losses = |variant, crash| match self.losses.get(&(variant, crash)) {
            None => Value::Null,
            Some(known) => {
                json!({"lost": known.all, "lost_by_a_client": known.of_connection, "acknowledged": known.acknowledged,
                       "repaired": known.repaired})
            }
        };
        let variants = self.figures.iter().map(|(variant, series)| {
            json!({
                "what": variant.name(), "figures": series.json(self.figures.get(&EverySecond)),
                "kill": losses(*variant, Crash::Kill), "cut": losses(*variant, Crash::CutDisk),
            })
        });
        json!({
            "machine": machine(), "rounds": options.rounds, "seconds": options.seconds,
            "connections": options.connections, "crashes": options.crashes,
            "loads": self.loads, "variants": variants.collect::<Vec<_>>(),
            "goals": goals.iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}

fn most(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(0.0, f64::max)
}

/// Cuts the end of a log off that is none of redis's; whether there was one.
fn repair(directory: &Path) -> Result<bool, String> {
    let manifest = directory.join("appendonlydir/appendonly.aof.manifest");
    if !manifest.exists() {
        return Ok(false);
    }
    // (It asks whether it shall.)
    let said = output(Command::new("sh").args(["-c", "echo y | redis-check-aof --fix \"$0\""]).arg(manifest))?;
    Ok(said.contains("Successfully truncated"))
}

/// Clients that update a key each, with a number that grows, until the server is gone.
struct Clients {
    threads: Vec<std::thread::JoinHandle<Vec<u64>>>,
}

impl Clients {
    fn start(port: u16) -> Result<Clients, String> {
        let mut threads = vec![];
        for thread in 0..THREADS {
            let each = CONNECTIONS / THREADS;
            let connections: Vec<(usize, TcpStream)> = (thread * each..(thread + 1) * each)
                .map(|key| TcpStream::connect(("127.0.0.1", port)).map(|stream| (key, stream)))
                .collect::<Result<_, _>>()
                .map_err(|error| format!("redis: {error}"))?;
            threads.push(std::thread::spawn(move || update(connections)));
        }
        Ok(Clients { threads })
    }

    /// Which number each client's last acknowledged update had.
    fn finish(self) -> Result<Vec<u64>, String> {
        let mut all = vec![];
        for thread in self.threads {
            all.extend(thread.join().map_err(|_| "a client has panicked")?);
        }
        Ok(all)
    }
}

/// Each connection sends an update when all have their answers.
fn update(connections: Vec<(usize, TcpStream)>) -> Vec<u64> {
    let mut connections: Vec<_> =
        connections.into_iter().map(|(key, stream)| (key, BufReader::new(stream))).collect();
    let (mut acknowledged, mut line) = (vec![0; connections.len()], String::new());
    for number in 1u64.. {
        let mut left = 0;
        for (key, stream) in &mut connections {
            // (In one piece: the kernel holds back what follows a small one.)
            let _ = stream.get_mut().write_all(format!("SET k{key} {number}\r\n").as_bytes());
        }
        for ((_, stream), last) in connections.iter_mut().zip(&mut acknowledged) {
            line.clear();
            // (Once one was refused, later numbers would say nothing of it.)
            if stream.read_line(&mut line).is_ok_and(|read| read > 0) && line == "+OK\r\n" && *last == number - 1 {
                *last = number;
                left += 1;
            }
        }
        if left == 0 {
            break;
        }
    }
    acknowledged
}

/// Which number each client's key has.
fn found(port: u16) -> Result<Vec<u64>, String> {
    let text = |error: std::io::Error| format!("redis: {error}");
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).map_err(text)?);
    let mut ask = |command: &str| -> Result<String, String> {
        stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).map_err(text)?;
        let mut line = String::new();
        stream.read_line(&mut line).map_err(text)?;
        if line.starts_with('$') && line != "$-1\r\n" {
            line.clear();
            stream.read_line(&mut line).map_err(text)?;
        }
        Ok(line.trim().to_owned())
    };
    await_some("the log to be read", || ask("PING").ok().filter(|answer| answer == "+PONG"))?;
    (0..CONNECTIONS)
        .map(|key| match ask(&format!("GET k{key}"))?.as_str() {
            "$-1" => Ok(0),
            number => number.parse().map_err(|_| format!("redis answered {number:?}")),
        })
        .collect()
}
