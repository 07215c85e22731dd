//! `cargo xtask bench maps`: what map operations and helpers cost inside programs, beside the kernel's, in one run.
//!
//! The same bytecode runs in the kernel by `BPF_PROG_TEST_RUN` and under ring3 at a probe, in as many threads. A program
//! is a loop of operations over keys that were prepared before, and times itself; an empty loop of the same shape is
//! subtracted. A figure is the median over runs of a program, so runs that were interrupted do not count. In the table is
//! that of the fastest round for one thread (interference only ever adds), and for more threads, which interfere with each
//! other, the median over rounds. Engines take turns within a round.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, Ring3, Spread, machine, machine_text};
use crate::bench_options::{Output, count};
use crate::root;

const ROUNDS: usize = 5;
const THREADS: [u32; 4] = [1, 2, 4, 8];
const THREADS_MAX: u32 = THREADS[THREADS.len() - 1];
const KEYS: [u32; 4] = [4, 8, 16, 64];
/// Operations in a run of a program (`maps_tool.h`).
const OPERATIONS: f64 = 1024.0;
/// Room in the maps; half of it is used.
const ENTRIES: u32 = 2048;
/// How long a measurement shall take, ns, and its runs per thread; those before, for warm caches, come first.
const MEASUREMENT_NS: f64 = 5e6;
const RUNS_WARM: u64 = 8;
const RUNS_MIN: f64 = 8.0;
const RUNS_MAX: f64 = 400.0;
/// Runs of a program that together fill half of the ring buffer: nobody reads meanwhile.
const RUNS_UNREAD: u64 = 100;
const ROUNDS_TOUCHING: usize = 3;
/// Records per producer for throughput, in runs of `OPERATIONS`.
const RUNS_PRODUCED: u64 = 2000;
/// Elements of the maps whose memory is measured.
const MANY: u32 = 1_000_000;
/// Times below this are less than loops differ by.
const RESOLUTION_NS: f64 = 1.0;
/// Share of operations that may fail where threads get in each other's way.
const FAILURES_MAX: f64 = 0.01;

/// A map type: name, number, and what is measured. To measure another one, add a line.
struct Kind {
    name: &'static str,
    number: u32,
    keys: &'static [u32],
    operations: &'static [Operation],
}

/// An operation: its name, program and keys (`maps_tool.c`), and the share of operations that succeed.
struct Operation {
    name: &'static str,
    program: &'static str,
    keys: &'static str,
    succeed: f64,
}

const fn operation(name: &'static str, program: &'static str, keys: &'static str, succeed: f64) -> Operation {
    Operation { name, program, keys, succeed }
}

const HASH: &[Operation] = &[
    operation("lookup hit", "lookup", "present", 1.0),
    operation("lookup miss", "lookup", "absent", 0.0),
    operation("update", "update", "present", 1.0),
    operation("insert+delete", "insert_delete", "absent", 1.0),
];
const ARRAY: &[Operation] = &[
    operation("lookup hit", "lookup", "present", 1.0),
    operation("lookup miss", "lookup", "absent", 0.0),
    operation("update", "update", "present", 1.0),
];
const QUEUE: &[Operation] =
    &[operation("push+pop", "push_pop", "present", 1.0), operation("peek", "peek", "present", 1.0)];
const BLOOM: &[Operation] = &[
    operation("push", "push", "present", 1.0),
    operation("peek hit", "peek", "present", 1.0),
    operation("peek miss", "peek", "absent", 0.0),
];

const OF_MAPS: &[Operation] =
    &[operation("lookup hit", "lookup", "present", 1.0), operation("lookup miss", "lookup", "absent", 0.0)];

/// Not of maps: helpers that most tools call.
const HELPERS: &[Operation] = &[
    operation("read_user 8", "read_8", "present", 1.0),
    operation("read_user 64", "read_64", "present", 1.0),
    operation("read_str 40", "read_str", "present", 1.0),
    operation("comm", "comm", "present", 1.0),
    operation("uid_gid", "uid_gid", "present", 1.0),
    operation("pid_tgid", "pid_tgid", "present", 1.0),
    operation("ktime_get_ns", "ktime", "present", 1.0),
    operation("prandom_u32", "random", "present", 1.0),
];

const fn kind(name: &'static str, number: u32, keys: &'static [u32], operations: &'static [Operation]) -> Kind {
    Kind { name, number, keys, operations }
}

/// (For queues, stacks and Bloom filters "keys" are values; of a trie's, 4 bytes are the length.)
const KINDS: [Kind; 13] = [
    kind("HASH", 1, &KEYS, HASH),
    kind("PERCPU_HASH", 5, &KEYS, HASH),
    kind("LRU_HASH", 9, &KEYS, HASH),
    kind("LRU_PERCPU_HASH", 10, &KEYS, HASH),
    kind("ARRAY", 2, &[4], ARRAY),
    kind("PERCPU_ARRAY", 6, &[4], ARRAY),
    kind("QUEUE", 22, &[8, 64], QUEUE),
    kind("STACK", 23, &[8, 64], QUEUE),
    kind("BLOOM_FILTER", 30, &KEYS, BLOOM),
    kind("LPM_TRIE", 11, &[8, 20], HASH),
    kind("ARRAY_OF_MAPS", 12, &[4], OF_MAPS),
    kind("HASH_OF_MAPS", 13, &[4, 16], OF_MAPS),
    kind("(helpers)", 1, &[4], HELPERS),
];

/// What the memory of is measured: number, bytes of key and value.
const MEMORY: [(&str, u32, u32, u32); 9] = [
    ("HASH", 1, 8, 8),
    ("PERCPU_HASH", 5, 8, 8),
    ("LRU_HASH", 9, 8, 8),
    ("LRU_PERCPU_HASH", 10, 8, 8),
    ("ARRAY", 2, 4, 8),
    ("PERCPU_ARRAY", 6, 4, 8),
    ("QUEUE", 22, 0, 8),
    ("BLOOM_FILTER", 30, 0, 8),
    ("LPM_TRIE", 11, 8, 8),
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Engine {
    Kernel,
    Ring3,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Kernel => "kernel",
            Engine::Ring3 => "ring3",
        }
    }
}

/// An engine's tool, and for ring3 the processes that its programs run in.
struct Side {
    engine: Engine,
    tool: Process,
    victims: Vec<Process>,
    victim: PathBuf,
}

impl Side {
    fn start(engine: Engine, build: &Path, ring3: &Ring3) -> Result<Side, String> {
        let (tool, victim) = (build.join("maps_tool"), build.join("maps_victim"));
        let mut victims = vec![];
        let mut command = match engine {
            Engine::Kernel => Command::new(tool),
            Engine::Ring3 => {
                let mut command = ring3.command(&["load", "--"]);
                command.arg(tool);
                command
            }
        };
        if engine == Engine::Ring3 {
            for _ in 0..THREADS_MAX {
                let mut process = Process::start(&mut Command::new(&victim))?;
                process.expect("ready")?;
                victims.push(process);
            }
        }
        let name = engine.name();
        let mut tool = Process::start(command.arg(name))?;
        tool.expect("ready")?;
        Ok(Side { engine, tool, victims, victim })
    }

    /// A map and its program, which is ready to run in the first `processes` processes.
    fn load(&mut self, kind: u32, key: u32, program: &str, keys: &str, processes: usize) -> Result<(), String> {
        self.tool.say(&format!("load {kind} {key} 8 {ENTRIES} {program} {keys}"))?;
        self.tool.expect("loaded")?;
        for victim in self.victims.iter().take(processes) {
            self.tool.say(&format!("attach {} {}", victim.child.id(), self.victim.display()))?;
            self.tool.expect("attached")?;
        }
        Ok(())
    }

    /// Threads of one process run the program `runs` times each.
    fn run(&mut self, threads: u32, runs: u64) -> Result<Times, String> {
        let who = self.victims.first_mut().unwrap_or(&mut self.tool);
        who.say(&format!("run {threads} {runs}"))?;
        who.expect("done")?;
        self.times()
    }

    /// As many processes run the program `runs` times each.
    fn produce(&mut self, processes: u32, runs: u64) -> Result<Times, String> {
        if self.engine == Engine::Kernel {
            self.tool.say(&format!("produce {processes} {runs}"))?;
            self.tool.expect("done")?;
        }
        for victim in self.victims.iter_mut().take(processes as usize) {
            victim.say(&format!("run 1 {runs}"))?;
        }
        for victim in self.victims.iter_mut().take(processes as usize) {
            victim.expect("done")?;
        }
        self.times()
    }

    fn times(&mut self) -> Result<Times, String> {
        match self.ask("times")?[..] {
            [picoseconds, succeeded, runs] => Ok(Times { ns: picoseconds as f64 / 1000.0, succeeded, runs }),
            _ => Err("times: another number of numbers".into()),
        }
    }

    /// The numbers of an answer.
    fn ask(&mut self, line: &str) -> Result<Vec<u64>, String> {
        self.tool.say(line)?;
        let answer = self.tool.line()?;
        let numbers: Result<_, _> = answer.split_whitespace().map(str::parse).collect();
        numbers.map_err(|_| format!("{line}: {answer:?}"))
    }
}

/// Nanoseconds of an operation (median over runs), and what ran.
struct Times {
    ns: f64,
    succeeded: u64,
    runs: u64,
}

/// A measured operation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    place: usize,
    name: String,
    threads: u32,
}

/// Of a ring buffer with some producers, in one round.
#[derive(Clone, Copy)]
struct Throughput {
    /// Millions of records a second that were read.
    read: f64,
    /// Share of records that found no room.
    lost: f64,
    /// Records that found none though half of the buffer was free.
    lost_with_room: u64,
    /// Records that came twice, out of order, damaged or not at all.
    wrong: u64,
}

/// Everything that was measured, a figure per round.
#[derive(Default)]
struct Figures {
    /// Nanoseconds.
    times: BTreeMap<(Row, Engine), Vec<f64>>,
    throughput: BTreeMap<(u32, Engine), Vec<Throughput>>,
    /// Bytes with no, ten and all elements, and nanoseconds of creation.
    memory: BTreeMap<(usize, Engine), [u64; 4]>,
}

/// What `cargo xtask bench maps` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure fewer key sizes and numbers of threads
    #[arg(long)]
    quick: bool,
    /// Measure only what has this text in its name
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

struct Bench {
    options: Options,
    sides: Vec<Side>,
    /// Nanoseconds of a round through an empty loop, by bytes of a key.
    empty: BTreeMap<(u32, Engine), f64>,
    figures: Figures,
    failed: Vec<String>,
}

pub(crate) fn maps(options: Options) -> Result<(), String> {
    let build = root().join("target/bench");
    crate::run("make", &["-s", "-C", "bench/maps", &format!("OUT={}", build.display())])?;
    let ring3 = Ring3::new()?;
    let mut sides = vec![];
    if rustix::process::geteuid().is_root() {
        sides.push(Side::start(Engine::Kernel, &build, &ring3)?);
    } else {
        eprintln!("SKIPPED: kernel: its maps need root");
    }
    sides.push(Side::start(Engine::Ring3, &build, &ring3)?);
    let mut bench = Bench { options, sides, empty: BTreeMap::new(), figures: Figures::default(), failed: vec![] };
    bench.run().map_err(|why| format!("{why}\nThe end of ring3's server.log:{}", ring3.log()))?;
    bench.print();
    bench.options.output.save(|| bench.json())?;
    if bench.failed.is_empty() { Ok(()) } else { Err(bench.failed.join("\n")) }
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        name.split_whitespace().collect::<Vec<_>>().join(" ").contains(&self.options.only)
    }

    fn threads(&self) -> &'static [u32] {
        if self.options.quick { &THREADS[..2] } else { &THREADS }
    }

    fn wants_key(&self, key: u32) -> bool {
        !self.options.quick || matches!(key, 4 | 64)
    }

    fn run(&mut self) -> Result<(), String> {
        let mut place = 0;
        for kind in &KINDS {
            for operation in kind.operations {
                for &key in kind.keys {
                    let name = format!("{:<16}{:<14}{key:>3}", kind.name, operation.name);
                    place += 1;
                    if self.wants(&name) && self.wants_key(key) {
                        self.measure_operation(place, kind, operation, key, &name)
                            .map_err(|why| format!("{name}: {why}"))?;
                    }
                }
            }
        }
        if self.wants("RINGBUF") {
            self.measure_output(place + 1, "output")?;
            self.measure_output(place + 2, "reserve")?;
            self.measure_throughput()?;
        }
        if self.wants("memory") {
            self.measure_memory()?;
        }
        Ok(())
    }

    fn measure_empty(&mut self, key: u32) -> Result<(), String> {
        for side in &mut self.sides {
            side.load(1, key, "empty", "present", 1)?;
            side.run(1, RUNS_WARM)?;
            let mut figures = vec![];
            for _ in 0..self.options.rounds {
                figures.push(side.run(1, RUNS_MAX as u64)?.ns);
            }
            let fastest = figures.into_iter().min_by(f64::total_cmp);
            self.empty.insert((key, side.engine), fastest.unwrap_or(0.0));
        }
        Ok(())
    }

    fn measure_operation(
        &mut self,
        place: usize,
        kind: &Kind,
        operation: &Operation,
        key: u32,
        name: &str,
    ) -> Result<(), String> {
        if !self.empty.keys().any(|(known, _)| *known == key) {
            self.measure_empty(key)?;
        }
        eprintln!("{name}");
        for side in &mut self.sides {
            side.load(kind.number, key, operation.program, operation.keys, 1)?;
        }
        for &threads in self.threads() {
            let mut runs = vec![];
            for side in &mut self.sides {
                let ns = side.run(threads, RUNS_WARM)?.ns.max(0.1);
                let fitting = MEASUREMENT_NS / (ns * OPERATIONS);
                runs.push(fitting.clamp(RUNS_MIN, RUNS_MAX) as u64);
            }
            let row = Row { place, name: name.to_owned(), threads };
            for _ in 0..self.options.rounds {
                for (side, runs) in self.sides.iter_mut().zip(&runs) {
                    let times = side.run(threads, *runs)?;
                    let share = times.succeeded as f64 / (times.runs as f64 * OPERATIONS);
                    if (share - operation.succeed).abs() > FAILURES_MAX && side.engine == Engine::Ring3 {
                        self.failed.push(format!("{name}, {threads} threads: {share:.3} succeeded"));
                    }
                    let empty = self.empty.get(&(key, side.engine)).copied().unwrap_or(0.0);
                    let figures = self.figures.times.entry((row.clone(), side.engine)).or_default();
                    figures.push((times.ns - empty).max(0.0));
                }
            }
        }
        Ok(())
    }

    /// Records into a buffer that has room, while nobody reads.
    fn measure_output(&mut self, place: usize, program: &str) -> Result<(), String> {
        let name = format!("{:<16}{:<14}{:>3}", "RINGBUF", program, 32);
        eprintln!("{name}");
        let row = Row { place, name: name.clone(), threads: 1 };
        for side in &mut self.sides {
            side.load(1, 4, program, "present", 1)?;
        }
        // The first rounds touch the memory.
        for round in 0..self.options.rounds + ROUNDS_TOUCHING {
            for side in &mut self.sides {
                let times = side.run(1, RUNS_UNREAD)?;
                if times.succeeded as f64 != times.runs as f64 * OPERATIONS {
                    self.failed.push(format!("{name}: {} in {} runs", times.succeeded, times.runs));
                }
                side.tool.say("consume")?;
                side.tool.expect("consuming")?;
                side.ask("end")?;
                if round >= ROUNDS_TOUCHING {
                    self.figures.times.entry((row.clone(), side.engine)).or_default().push(times.ns);
                }
            }
        }
        Ok(())
    }

    /// Processes that write as fast as they can, and one consumer.
    fn measure_throughput(&mut self) -> Result<(), String> {
        let rounds = self.options.rounds.min(3);
        for side in &mut self.sides {
            side.load(1, 4, "output", "present", THREADS_MAX as usize)?;
        }
        for &producers in self.threads() {
            eprintln!("RINGBUF, {producers} producers");
            for _ in 0..rounds {
                for side in &mut self.sides {
                    side.tool.say("consume")?;
                    side.tool.expect("consuming")?;
                    let begin = Instant::now();
                    side.produce(producers, RUNS_PRODUCED / u64::from(producers))?;
                    let took = begin.elapsed();
                    let [sent, read, disordered, lost, lost_with_room] = side.ask("end")?[..] else {
                        return Err("end: another number of numbers".into());
                    };
                    let wrong = disordered + sent.abs_diff(read);
                    let throughput = Throughput {
                        read: read as f64 / took.as_secs_f64() / 1e6,
                        lost: lost as f64 / (sent + lost) as f64,
                        lost_with_room,
                        wrong,
                    };
                    if side.engine == Engine::Ring3 && wrong + lost_with_room > 0 {
                        self.failed.push(format!(
                            "{producers} producers: {wrong} of {sent} wrong, {lost_with_room} lost with room"
                        ));
                    }
                    self.figures.throughput.entry((producers, side.engine)).or_default().push(throughput);
                }
            }
        }
        Ok(())
    }

    fn measure_memory(&mut self) -> Result<(), String> {
        for (place, (name, number, key, value)) in MEMORY.iter().enumerate() {
            eprintln!("{name}, memory");
            for side in &mut self.sides {
                let answer = side.ask(&format!("memory {number} {key} {value} {MANY}"))?;
                let figures = answer.try_into().map_err(|_| "memory: another number of numbers")?;
                self.figures.memory.insert((place, side.engine), figures);
            }
        }
        Ok(())
    }

    fn time(&self, row: &Row, engine: Engine) -> Option<f64> {
        let figures = self.figures.times.get(&(row.clone(), engine))?;
        if row.threads == 1 {
            return figures.iter().copied().min_by(f64::total_cmp);
        }
        Some(Spread::of(figures)?.median)
    }

    /// How many times ring3's time the kernel's is; nothing if both vanish in the loop around them.
    fn ratio(&self, row: &Row) -> Option<f64> {
        let (kernel, ring3) = (self.time(row, Engine::Kernel)?, self.time(row, Engine::Ring3)?);
        (kernel.max(ring3) >= RESOLUTION_NS).then(|| kernel / ring3.max(0.01))
    }

    fn rows(&self) -> Vec<Row> {
        let rows = self.figures.times.keys().filter(|(_, engine)| *engine == Engine::Ring3);
        rows.map(|(row, _)| row.clone()).collect()
    }

    fn goals(&self) -> Vec<Goal> {
        let rows = self.rows();
        let worst = |matching: &dyn Fn(&Row) -> bool| {
            let rows = rows.iter().filter(|row| matching(row));
            rows.filter_map(|row| self.time(row, Engine::Ring3)).max_by(f64::total_cmp)
        };
        let ratios = rows.iter().filter_map(|row| self.ratio(row));
        let lost = self.figures.throughput.iter().filter(|((_, engine), _)| *engine == Engine::Ring3);
        let lost = lost.flat_map(|(_, rounds)| rounds).map(|t| (t.wrong + t.lost_with_room) as f64);
        vec![
            Goal {
                text: "the kernel's time, times ring3's, in the worst row".into(),
                figure: ratios.min_by(f64::total_cmp),
                limit: Limit::AtLeast(1.0),
            },
            Goal {
                text: "hash lookup hit by one thread, ns".into(),
                figure: worst(&|row| row.threads == 1 && row.name.starts_with("HASH            lookup hit")),
                limit: Limit::AtMost(8.0),
            },
            Goal {
                text: "ring buffer output of 32 bytes by one producer, ns".into(),
                figure: worst(&|row| row.name.starts_with("RINGBUF         output")),
                limit: Limit::AtMost(25.0),
            },
            Goal {
                text: "records wrong, or lost with room".into(),
                figure: lost.max_by(f64::total_cmp),
                limit: Limit::AtMost(0.0),
            },
        ]
    }

    fn print(&self) {
        println!("\n{}", machine_text());
        self.print_times();
        self.print_throughput();
        self.print_memory();
        println!("\ngoals");
        for goal in self.goals() {
            println!("{goal}");
        }
    }

    fn print_times(&self) {
        println!("\nns per operation inside a program, by threads: kernel, ring3, kernel / ring3\n");
        let mut head = format!("{:<16}{:<14}{:>3}", "map", "operation", "key");
        for threads in self.threads() {
            head += &format!(" |{:>23}", format!("{threads} "));
        }
        println!("{head}");
        let (mut line, mut place) = (String::new(), usize::MAX);
        for row in self.rows() {
            if row.place != place {
                println!("{line}");
                line.clone_from(&row.name);
                place = row.place;
            }
            let time = |engine| self.time(&row, engine).map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}"));
            let ratio = self.ratio(&row).map(|ratio| format!("{ratio:.1}x")).unwrap_or_default();
            line += &format!(" |{:>8}{:>8}{ratio:>7}", time(Engine::Kernel), time(Engine::Ring3));
        }
        println!("{line}");
    }

    fn print_throughput(&self) {
        if self.figures.throughput.is_empty() {
            return;
        }
        println!("\nring buffer, 32 bytes, processes that write as fast as they can, one consumer");
        println!("{:<26}{:>16}{:>9}{:>16}{:>8}", "", "million read/s", "lost", "lost with room", "wrong");
        for ((producers, engine), rounds) in &self.figures.throughput {
            let name = engine.name();
            let middle = |of: &dyn Fn(&Throughput) -> f64| {
                Spread::of(&rounds.iter().map(of).collect::<Vec<_>>()).map_or(0.0, |spread| spread.median)
            };
            let sum = |of: &dyn Fn(&Throughput) -> u64| rounds.iter().map(of).sum::<u64>();
            println!(
                "{:<26}{:>16.2}{:>8.1}%{:>16}{:>8}",
                format!("{producers} producers, {name}"),
                middle(&|t| t.read),
                middle(&|t| t.lost * 100.0),
                sum(&|t| t.lost_with_room),
                sum(&|t| t.wrong),
            );
        }
    }

    fn print_memory(&self) {
        if self.figures.memory.is_empty() {
            return;
        }
        println!(
            "\nmemory of maps for 1 M elements of 8-byte keys and values: kernel (memlock), ring3 (pages in use)"
        );
        let columns = ["KiB with none", "KiB with 10", "bytes an element", "us to create"];
        println!("{:<18}{}", "map", columns.map(|column| format!("{column:>24}")).concat());
        for (place, (name, ..)) in MEMORY.iter().enumerate() {
            let figures = |engine| {
                let [none, ten, all, ns] = *self.figures.memory.get(&(place, engine))?;
                let kib = |bytes: u64| bytes as f64 / 1024.0;
                Some([kib(none), kib(ten), all as f64 / f64::from(MANY), ns as f64 / 1000.0])
            };
            let (kernel, ring3) = (figures(Engine::Kernel), figures(Engine::Ring3));
            let cell = |column: usize| {
                let figure =
                    |of: Option<[f64; 4]>| of.map_or_else(|| "-".to_owned(), |of| format!("{:.1}", of[column]));
                format!("{:>13}{:>11}", figure(kernel), figure(ring3))
            };
            println!("{name:<18}{}", (0..4).map(cell).collect::<String>());
        }
    }

    fn json(&self) -> Value {
        let times = self.rows().into_iter().map(|row| {
            json!({
                "row": row.name.split_whitespace().collect::<Vec<_>>().join(" "), "threads": row.threads,
                "kernel_ns": self.time(&row, Engine::Kernel), "ring3_ns": self.time(&row, Engine::Ring3),
                "times_ring3": self.ratio(&row),
            })
        });
        let memory = self.figures.memory.iter().map(|((place, engine), [none, ten, all, ns])| {
            json!({
                "map": MEMORY[*place].0, "engine": engine.name(),
                "bytes_none": none, "bytes_10": ten, "bytes_all": all, "creation_ns": ns,
            })
        });
        let throughput = self.figures.throughput.iter().flat_map(|((producers, engine), rounds)| {
            rounds.iter().map(move |t| {
                json!({
                    "producers": producers, "engine": engine.name(),
                    "million_read": t.read, "lost": t.lost, "lost_with_room": t.lost_with_room, "wrong": t.wrong,
                })
            })
        });
        json!({
            "machine": machine(),
            "rounds": self.options.rounds,
            "times": times.collect::<Vec<_>>(),
            "throughput": throughput.collect::<Vec<_>>(),
            "memory": memory.collect::<Vec<_>>(),
            "goals": self.goals().iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}
