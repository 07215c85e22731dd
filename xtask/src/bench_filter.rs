//! `cargo xtask bench filter`: what it costs to ask a filter about an event, side by side in one run: our interpreter, Cranelift and
//! LLVM (where it is installed), hard-coded C, the kernel's compiler (as root), and LTTng-UST's own filters.
//!
//! A row has 1 to 50 predicates over whole numbers or texts. All reject the event by the last predicate, so that nothing is written:
//! `&&` after predicates that are true (true-biased), or `||` after predicates that are false (false-biased). So each engine goes
//! through all predicates. That the filter is really asked is checked with an event that it accepts.
//!
//! The engines take turns, and a figure is the median of the rounds. Ours, C's and the kernel's are run by loops that call a
//! function; what the loop costs with a filter that accepts everything is subtracted where they are compared with each other.
//! LTTng's is the cost of a tracepoint whose event the filter rejects, less that of one that is not enabled: it contains what LTTng
//! does to get to the filter, as the filter is asked before anything else. It is compared with our time and the loop.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, Spread, bench_binary, machine, machine_text};
use crate::bench_options::{Output, count};
use crate::{has_llvm, root};

const ROUNDS: usize = 15;
/// How long a measurement shall take, ns, and its runs.
const MEASUREMENT_NS: f64 = 2e6;
const ASKED_FIRST: u32 = 200;
const ASKED_MAX: f64 = 1e6;
const PREDICATES: [usize; 6] = [1, 2, 5, 10, 20, 50];
/// The filter that accepts everything.
const EMPTY: &str = "empty";
/// Filters that take C less than this, without the call, are not compared with C's.
const SHOWN_NS: f64 = 1.0;
/// Those that take less than this are no part of the goal: machine code of the same instructions differs by a nanosecond, as it begins
/// with other saves of registers and lies elsewhere.
const COMPARED_NS: f64 = 5.0;

const CRANELIFT: usize = 1;
const LLVM: usize = 2;
const C: usize = 3;
const KERNEL: usize = 4;
const LTTNG: usize = 5;
const ENGINES: [&str; 6] = ["interpreter", "cranelift", "llvm", "c", "kernel", "lttng"];

/// What `bench/filter/event.h` puts into the texts.
const TEXTS: [&str; 4] = ["/etc/passwd", "/usr/lib/x86_64-linux-gnu/libc.so.6", "nginx", "GET /index.html"];

#[derive(Clone, Copy)]
struct Row {
    texts: bool,
    biased: bool,
    predicates: usize,
}

fn rows() -> impl Iterator<Item = Row> {
    let kinds = [(false, true), (false, false), (true, true), (true, false)];
    kinds.into_iter().flat_map(|(texts, biased)| PREDICATES.map(|predicates| Row { texts, biased, predicates }))
}

impl Row {
    /// Its name, and that of its C function.
    fn name(self) -> String {
        let kind = if self.texts { "texts" } else { "integers" };
        format!("{kind}_{}_{}", self.biased, self.predicates)
    }

    /// The filter, or with `c` the same in C.
    fn expression(self, c: bool) -> String {
        let first = (0..self.predicates - 1).map(|at| match self.texts {
            true => text_predicate(at, self.biased, c),
            false => integer_predicate(at, self.biased, c),
        });
        let last = match (self.texts, c) {
            (true, true) => "strcmp(e->s4, \"accept\") == 0",
            (true, false) => "s4 == \"accept\"",
            (false, true) => "e->last == 1",
            (false, false) => "last == 1",
        };
        let all: Vec<String> = first.chain([last.to_owned()]).collect();
        all.join(if self.biased { " && " } else { " || " })
    }
}

/// The fields are 10 to 19. Ten comparisons with constants, then fields with fields: none follows from another.
fn integer_predicate(at: usize, holds: bool, c: bool) -> String {
    const TRUE: [(&str, usize); 5] = [(">", 9), ("!=", 7), ("<=", 40), (">=", 5), ("<", 99)];
    const FALSE: [(&str, usize); 5] = [("<", 9), ("==", 7), (">", 40), ("<=", 5), (">=", 99)];
    let field = |number: usize| format!("{}i{number}", if c { "e->" } else { "" });
    if at < 10 {
        let (relation, constant) = (if holds { TRUE } else { FALSE })[at % 5];
        return format!("{} {relation} {}", field(at), constant + at / 5);
    }
    let (left, step) = (at % 10, at / 10);
    let right = (left + step) % 10;
    let relation = if (left < right) == holds { "<" } else { ">" };
    format!("{} {relation} {}", field(left), field(right))
}

/// Texts that differ from the field's at the end, or from the beginning on; four true ones are equal.
fn text_predicate(at: usize, holds: bool, c: bool) -> String {
    let (field, variant) = (at % TEXTS.len(), at / TEXTS.len());
    let text = TEXTS[field];
    let (literal, equal) = match variant {
        0 if holds => (text.to_owned(), true),
        variant if variant % 2 == 0 => (format!("{text}{variant}"), !holds),
        variant => (format!("other{variant}"), !holds),
    };
    let relation = if equal { "==" } else { "!=" };
    match c {
        true => format!("strcmp(e->s{field}, \"{literal}\") {relation} 0"),
        false => format!("s{field} {relation} \"{literal}\""),
    }
}

fn functions() -> String {
    let mut text = format!(
        "#include <string.h>\n#include \"event.h\"\nint {EMPTY}(const struct event *e) {{ (void)e; return 1; }}\n"
    );
    for row in rows() {
        let _ = writeln!(text, "int {}(const struct event *e) {{ return {}; }}", row.name(), row.expression(true));
    }
    text
}

/// LTTng's session daemon, and a process with tracepoints. Both are an ordinary user's, with files of their own: root's daemon, if
/// there is one, is left alone.
struct Lttng {
    daemon: Child,
    home: PathBuf,
    process: Option<Process>,
}

impl Lttng {
    const SESSION: &'static str = "ring3-filter";
    /// Events that a filter accepts, and what they leave in the trace at least, in bytes.
    const ACCEPTED: u32 = 20_000;
    const ACCEPTED_BYTES_MIN: u64 = 1 << 20;
    const READY_WITHIN: Duration = Duration::from_secs(10);

    /// Starts both.
    fn start(out: &Path) -> Result<Lttng, String> {
        crate::run("make", &["-s", "-C", "bench/filter", &format!("OUT={}", out.display()), "lttng"])?;
        let home = std::env::temp_dir().join(format!("ring3-filter-{}", std::process::id()));
        let fail = |error: std::io::Error| format!("{}: {error}", home.display());
        std::fs::create_dir(&home).map_err(fail)?;
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).map_err(fail)?;
        let program = home.join("lttng");
        std::fs::copy(out.join("lttng"), &program).map_err(fail)?;
        let mut command = as_user(&home, "lttng-sessiond");
        command.args(["--no-kernel", "--quiet"]).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = command.spawn().map_err(|error| format!("lttng-sessiond: {error}"))?;
        let mut started = Lttng { daemon, home, process: None };
        let since = Instant::now();
        while let Err(why) = lttng(&started.home, &["list"]) {
            if since.elapsed() > Lttng::READY_WITHIN {
                return Err(format!("the session daemon does not answer: {why}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut process = Process::start(&mut as_user(&started.home, &program.display().to_string()))?;
        process.expect("ready")?;
        started.process = Some(process);
        Ok(started)
    }

    fn process(&mut self) -> Result<&mut Process, String> {
        self.process.as_mut().ok_or_else(|| "the process with tracepoints has not been started".into())
    }

    fn traces(&self) -> PathBuf {
        self.home.join("trace")
    }

    /// Enables the tracepoint with a filter.
    fn enable(&mut self, filter: &str) -> Result<(), String> {
        let traces = self.traces();
        let _ = std::fs::remove_dir_all(&traces);
        let output = format!("--output={}", traces.display());
        lttng(&self.home, &["create", Lttng::SESSION, &output])?;
        let event = ["enable-event", "-u", "ring3_filter:asked", "-s", Lttng::SESSION, "--filter", filter];
        lttng(&self.home, &event)?;
        lttng(&self.home, &["start", Lttng::SESSION])?;
        let since = Instant::now();
        while self.process()?.ask_word("enabled")? != "1" {
            if since.elapsed() > Lttng::READY_WITHIN {
                return Err("LTTng does not enable the tracepoint".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What an event costs that the filter rejects, ns, less what one costs that is not enabled.
    fn ask(&mut self, count: u32) -> Result<f64, String> {
        let process = self.process()?;
        let (asked, _) = process.ask(&format!("asked {count}"))?;
        let (never, _) = process.ask(&format!("never {count}"))?;
        Ok((asked as f64 - never as f64) / f64::from(count))
    }

    /// Checks that only what the filter accepts was written, and ends the session.
    fn disable(&mut self) -> Result<(), String> {
        let rejected = written(&self.traces());
        self.process()?.ask(&format!("accepted {}", Lttng::ACCEPTED))?;
        lttng(&self.home, &["stop", Lttng::SESSION])?;
        let accepted = written(&self.traces());
        lttng(&self.home, &["destroy", Lttng::SESSION])?;
        if rejected >= Lttng::ACCEPTED_BYTES_MIN || accepted < Lttng::ACCEPTED_BYTES_MIN {
            return Err(format!(
                "LTTng wrote {rejected} bytes of events to be rejected, and {accepted} with accepted ones"
            ));
        }
        Ok(())
    }
}

impl Drop for Lttng {
    fn drop(&mut self) {
        self.process = None;
        if let Some(pid) = rustix::process::Pid::from_raw(self.daemon.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.daemon.wait();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// A program as an ordinary user, whose files of LTTng are in a directory.
fn as_user(home: &Path, program: &str) -> Command {
    const NOBODY: &str = "65534";
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", program]);
        command
    } else {
        Command::new(program)
    };
    command.env("LTTNG_HOME", home);
    command
}

/// Runs LTTng's command.
fn lttng(home: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = as_user(home, "lttng");
    command.args(["--no-sessiond", "--quiet"]).args(arguments);
    let output = command.output().map_err(|error| format!("lttng: {error}"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("lttng {}: {}", arguments.join(" "), why.trim())) }
}

/// Bytes of events in a directory of traces.
fn written(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => written(&entry.path()),
        Ok(_) if entry.file_name() != "metadata" && !entry.path().ends_with("index") => {
            entry.metadata().map_or(0, |metadata| metadata.len())
        }
        _ => 0,
    });
    bytes.sum()
}

/// A row's figures: ns by engine and round; those of the empty filter in the same rounds.
struct Figures {
    row: Row,
    asked: [Vec<f64>; ENGINES.len()],
    empty: [Vec<f64>; ENGINES.len()],
}

fn median(figures: &[f64]) -> Option<f64> {
    Spread::of(figures).map(|spread| spread.median)
}

impl Figures {
    fn ns(&self, engine: usize) -> Option<f64> {
        median(&self.asked[engine])
    }

    /// The median of what two engines' rounds say.
    fn ratio(&self, over: impl Fn(usize) -> Option<f64>, under: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        let rounds = self.asked.iter().map(Vec::len).max().unwrap_or(0);
        let ratios: Option<Vec<f64>> = (0..rounds).map(|round| Some(over(round)? / under(round)?)).collect();
        median(&ratios?)
    }

    /// LTTng's time by ours, with what the call costs.
    fn by_lttng(&self, engine: usize) -> Option<f64> {
        let of = |engine: usize| move |round: usize| self.asked[engine].get(round).copied();
        self.ratio(of(LTTNG), of(engine))
    }

    fn net(&self, engine: usize) -> Option<f64> {
        Some(self.ns(engine)? - median(&self.empty[engine])?)
    }

    /// Our time by C's, without what calls cost, if C's is at least so long.
    fn by_c(&self, engine: usize, ns_min: f64) -> Option<f64> {
        self.net(C).filter(|ns| *ns >= ns_min)?;
        let of =
            |engine: usize| move |round: usize| Some(self.asked[engine].get(round)? - self.empty[engine].get(round)?);
        self.ratio(of(engine), of(C))
    }
}

struct Bench {
    process: Process,
    lttng: Option<Lttng>,
    engines: Vec<usize>,
}

impl Bench {
    /// Asks a filter: ns each.
    fn ask(&mut self, engine: usize, name: &str, asked: u32) -> Result<f64, String> {
        if engine == LTTNG {
            return self.lttng.as_mut().ok_or("LTTng does not run")?.ask(asked);
        }
        let (ns, answer) = self.process.ask(&format!("ask {} {name} {asked}", ENGINES[engine]))?;
        let expected = u64::from(name == EMPTY);
        if answer != expected {
            return Err(format!("{name}: {} answers {answer}", ENGINES[engine]));
        }
        Ok(ns as f64 / f64::from(asked))
    }

    fn measure(&mut self, row: Row, rounds: usize) -> Result<Figures, String> {
        let name = row.name();
        self.process.ask(&format!("filter {name} {}", row.expression(false)))?;
        if let Some(lttng) = &mut self.lttng {
            lttng.enable(&row.expression(false))?;
        }
        let mut runs = [[0_u32; 2]; ENGINES.len()];
        for engine in self.engines.clone() {
            for (which, name) in
                [name.as_str(), EMPTY].into_iter().enumerate().filter(|at| engine != LTTNG || at.0 == 0)
            {
                let each = self.ask(engine, name, ASKED_FIRST)?;
                runs[engine][which] =
                    (MEASUREMENT_NS / each.max(1.0)).clamp(f64::from(ASKED_FIRST), ASKED_MAX) as u32;
            }
            if engine != LTTNG && self.process.ask(&format!("accept {} {name}", ENGINES[engine]))?.1 != 1 {
                return Err(format!("{name}: {} does not accept what it should", ENGINES[engine]));
            }
        }
        let mut figures = Figures { row, asked: Default::default(), empty: Default::default() };
        for round in 0..rounds {
            let mut order = self.engines.clone();
            let shift = round % order.len();
            order.rotate_left(shift);
            for engine in order {
                let asked = self.ask(engine, &name, runs[engine][0])?;
                figures.asked[engine].push(asked);
                if engine != LTTNG {
                    let empty = self.ask(engine, EMPTY, runs[engine][1])?;
                    figures.empty[engine].push(empty);
                }
            }
        }
        if let Some(lttng) = &mut self.lttng {
            lttng.disable()?;
        }
        Ok(figures)
    }
}

fn lowest(figures: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    figures.collect::<Option<Vec<f64>>>()?.into_iter().min_by(f64::total_cmp)
}

fn goals(rows: &[Figures]) -> Vec<Goal> {
    let most = PREDICATES[PREDICATES.len() - 1];
    let all = lowest(rows.iter().map(|row| row.by_lttng(CRANELIFT)));
    let long = lowest(rows.iter().filter(|row| row.row.predicates == most).map(|row| row.by_lttng(CRANELIFT)));
    let integers = rows.iter().filter(|row| !row.row.texts).filter_map(|row| row.by_c(CRANELIFT, COMPARED_NS));
    vec![
        Goal { text: "LTTng-UST's time by ours, worst row".into(), figure: all, limit: Limit::AtLeast(1.0) },
        Goal { text: format!("the same at {most} predicates"), figure: long, limit: Limit::AtLeast(5.0) },
        Goal {
            text: format!("ours by hard-coded C, integers, worst of {COMPARED_NS} ns"),
            figure: integers.max_by(f64::total_cmp),
            limit: Limit::AtMost(1.2),
        },
    ]
}

fn print(rows: &[Figures], rounds: usize) {
    println!("\n{}", machine_text());
    println!(
        "\nns to ask a filter (median of {rounds} rounds), with the call; ours by C, without it; LTTng's by ours\n"
    );
    let number = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.1}"));
    let ratio = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"));
    let names: String = ENGINES.iter().map(|name| format!("{name:>12}")).collect();
    println!(
        "{:<20}{names} |{:>12}{:>9} |{:>17}{:>12}",
        "filter", "cranelift/c", "llvm/c", "lttng/cranelift", "lttng/llvm"
    );
    for row in rows {
        let times: String = (0..ENGINES.len()).map(|engine| format!("{:>12}", number(row.ns(engine)))).collect();
        println!(
            "{:<20}{times} |{:>12}{:>9} |{:>17}{:>12}",
            row.row.name(),
            ratio(row.by_c(CRANELIFT, SHOWN_NS)),
            ratio(row.by_c(LLVM, SHOWN_NS)),
            ratio(row.by_lttng(CRANELIFT)),
            ratio(row.by_lttng(LLVM)),
        );
    }
    println!("\ngoals");
    for goal in goals(rows) {
        println!("{goal}");
    }
}

fn json(rows: &[Figures], rounds: usize) -> Value {
    let of = |figures: &dyn Fn(usize) -> Option<f64>| -> Value {
        ENGINES.iter().enumerate().map(|(engine, name)| ((*name).to_owned(), json!(figures(engine)))).collect()
    };
    let row = |row: &Figures| {
        json!({
            "filter": row.row.name(), "expression": row.row.expression(false), "ns": of(&|engine| row.ns(engine)),
            "ns_without_call": of(&|engine| row.net(engine)), "by_c": row.by_c(CRANELIFT, SHOWN_NS), "lttng_by": row.by_lttng(CRANELIFT),
        })
    };
    json!({
        "machine": machine(), "rounds": rounds, "filters": rows.iter().map(row).collect::<Vec<_>>(),
        "goals": goals(rows).iter().map(Goal::json).collect::<Vec<_>>(),
    })
}

/// What `cargo xtask bench filter` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure only what has this text in its name, e.g. `integers_true`
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn filter(options: &Options) -> Result<(), String> {
    let out = root().join("target/bench/filter");
    let source = out.join("filters.c");
    std::fs::create_dir_all(&out)
        .and_then(|()| std::fs::write(&source, functions()))
        .map_err(|error| format!("{}: {error}", source.display()))?;
    crate::run("make", &["-s", "-C", "bench/filter", &format!("OUT={}", out.display())])?;
    let mut process = Process::start(Command::new(bench_binary("filters")?).arg(out.join("filters.so")))?;
    process.expect("ready")?;
    process.ask(&format!("empty {EMPTY}"))?;
    let mut engines: Vec<usize> = (0..ENGINES.len()).collect();
    let mut skip = |engine: usize, why: &str| {
        eprintln!("SKIPPED: {}: {why}", ENGINES[engine]);
        engines.retain(|other| *other != engine);
    };
    if !has_llvm() {
        skip(LLVM, "llvm-19-dev is not installed");
    }
    if !rustix::process::geteuid().is_root() {
        skip(KERNEL, "BPF_PROG_TEST_RUN needs root");
    }
    let lttng = Lttng::start(&out);
    if let Err(why) = &lttng {
        skip(LTTNG, &format!("{why} (it needs lttng-tools and liblttng-ust-dev)"));
    }
    let mut bench = Bench { process, lttng: lttng.ok(), engines };
    let chosen = rows().filter(|row| row.name().contains(&options.only));
    let figures: Vec<Figures> = chosen.map(|row| bench.measure(row, options.rounds)).collect::<Result<_, _>>()?;
    print(&figures, options.rounds);
    options.output.save(|| json(&figures, options.rounds))
}
