//! `cargo xtask bench engine`: how fast compiled programs are, beside the kernel's compiler, rbpf's and what clang makes of
//! the same C for this machine, in one run.
//!
//! The programs are those of `bench/engine/programs.c`; `engines` of `tests/benches` runs them. Engines take turns over a
//! program, and a time is that of the fastest round (interference only ever adds). The kernel runs programs by
//! `BPF_PROG_TEST_RUN`, whose own loop costs what the program `empty` takes there: that is subtracted from all engines.
//! Results must agree.

use std::process::Command;

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, bench_binary, machine, machine_text};
use crate::bench_options::Options;
use crate::root;

const ROUNDS: usize = 9;
/// How long a measurement shall take, ns, and its runs.
const MEASUREMENT_NS: f64 = 1.5e6;
const RUNS_FIRST: u32 = 200;
const RUNS_MAX: f64 = 1e5;
/// The program that shows what calling one costs.
const EMPTY: &str = "empty";
/// Times below this, less what a call costs, are not compared.
const COMPARED_NS: f64 = 50.0;

const RING3: usize = 0;
const KERNEL: usize = 1;
const ENGINES: [&str; 4] = ["ring3", "kernel", "rbpf", "native"];

/// A program: the fastest time of a run on each engine, ns; none if it does not run there.
struct Row {
    name: String,
    ns: [Option<f64>; ENGINES.len()],
    compile_us: [Option<f64>; ENGINES.len()],
    bytes: u64,
}

impl Row {
    /// A time less what a call costs.
    fn net(&self, engine: usize, empty: &Row) -> Option<f64> {
        Some((self.ns[engine]? - empty.ns[engine]?).max(0.1))
    }

    /// ring3's time by another engine's, where both are long enough.
    fn ratio(&self, engine: usize, empty: &Row) -> Option<f64> {
        let (ours, theirs) = (self.net(RING3, empty)?, self.net(engine, empty)?);
        (theirs > COMPARED_NS).then(|| ours / theirs)
    }
}

/// An answer's two numbers, or why there are none.
fn ask(process: &mut Process, order: &str) -> Result<Result<(u64, u64), String>, String> {
    process.say(order)?;
    let answer = process.line()?;
    if let Some(why) = answer.strip_prefix("error ") {
        return Ok(Err(why.to_owned()));
    }
    let numbers = answer.split_once(' ').and_then(|(one, two)| Some((one.parse().ok()?, two.parse().ok()?)));
    numbers.map(Ok).ok_or_else(|| format!("{order}: {answer:?}"))
}

fn measure(process: &mut Process, name: &str, rounds: usize, engines: &[usize]) -> Result<Row, String> {
    let mut row = Row { name: name.into(), ns: [None; 4], compile_us: [None; 4], bytes: 0 };
    let mut runs = [0u32; ENGINES.len()];
    let mut result = None;
    for engine in engines {
        match ask(process, &format!("run {} {name} {RUNS_FIRST}", ENGINES[*engine]))? {
            Ok((ns, given)) => {
                if *result.get_or_insert(given) != given {
                    return Err(format!("{name}: {} says {given}, not {result:?}", ENGINES[*engine]));
                }
                let each = ns as f64 / f64::from(RUNS_FIRST);
                runs[*engine] = (MEASUREMENT_NS / each.max(1.0)).clamp(f64::from(RUNS_FIRST), RUNS_MAX) as u32;
            }
            Err(why) => eprintln!("{name}: {}: {why}", ENGINES[*engine]),
        }
    }
    let faster = |best: &mut Option<f64>, figure: f64| *best = Some(best.map_or(figure, |best| best.min(figure)));
    for _ in 0..rounds {
        for engine in engines.iter().copied().filter(|engine| runs[*engine] > 0) {
            if let Ok((ns, _)) = ask(process, &format!("run {} {name} {}", ENGINES[engine], runs[engine]))? {
                faster(&mut row.ns[engine], ns as f64 / f64::from(runs[engine]));
            }
            if let Ok((ns, bytes)) = ask(process, &format!("compile {} {name}", ENGINES[engine]))? {
                faster(&mut row.compile_us[engine], ns as f64 / 1000.0);
                row.bytes = row.bytes.max(bytes);
            }
        }
    }
    Ok(row)
}

fn geometric(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    let logarithms: Vec<f64> = ratios.map(f64::ln).collect();
    (!logarithms.is_empty()).then(|| (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
}

struct Figures {
    rows: Vec<Row>,
    empty: Row,
}

impl Figures {
    fn mean(&self, engine: usize) -> Option<f64> {
        geometric(self.rows.iter().filter_map(|row| row.ratio(engine, &self.empty)))
    }

    fn goals(&self) -> Vec<Goal> {
        let ratios = self.rows.iter().filter_map(|row| row.ratio(KERNEL, &self.empty));
        let compile = self.rows.iter().filter_map(|row| row.compile_us[RING3]);
        vec![
            Goal {
                text: "ring3's time by the kernel's, geometric mean".into(),
                figure: self.mean(KERNEL),
                limit: Limit::AtMost(1.0),
            },
            Goal {
                text: "ring3's time by the kernel's, slowest row".into(),
                figure: ratios.max_by(f64::total_cmp),
                limit: Limit::AtMost(1.1),
            },
            Goal {
                text: "compiling the program that takes longest, us".into(),
                figure: compile.max_by(f64::total_cmp),
                limit: Limit::AtMost(1000.0),
            },
        ]
    }

    fn print(&self, rounds: usize) {
        println!("\n{}", machine_text());
        println!("\nns a run (fastest of {rounds} rounds), less an empty program's; ring3's time by the others'\n");
        println!(
            "{:<18}{:>9}{:>9}{:>9}{:>9} |{:>8}{:>8}{:>8} |{:>12}{:>8}",
            "program", "ring3", "kernel", "rbpf", "native", "kernel", "rbpf", "native", "compile us", "bytes"
        );
        let number = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.1}"));
        let ratio = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"));
        for row in &self.rows {
            let times: String =
                (0..ENGINES.len()).map(|engine| format!("{:>9}", number(row.net(engine, &self.empty)))).collect();
            let ratios: String =
                (1..ENGINES.len()).map(|engine| format!("{:>8}", ratio(row.ratio(engine, &self.empty)))).collect();
            println!("{:<18}{times} |{ratios} |{:>12}{:>8}", row.name, number(row.compile_us[RING3]), row.bytes);
        }
        let means: String = (1..ENGINES.len()).map(|engine| format!("{:>8}", ratio(self.mean(engine)))).collect();
        println!("{:<54} |{means}", "geometric mean");
        let empty: String = self.empty.ns.iter().map(|ns| format!("{:>9}", number(*ns))).collect();
        println!("{:<18}{empty}", "an empty program");
        println!("\ngoals");
        for goal in self.goals() {
            println!("{goal}");
        }
    }

    fn json(&self, rounds: usize) -> Value {
        let of = |figures: &[Option<f64>]| -> Value {
            ENGINES.iter().zip(figures).map(|(name, figure)| ((*name).to_owned(), json!(figure))).collect()
        };
        let row = |row: &Row| json!({"program": row.name, "ns": of(&row.ns), "compile_us": of(&row.compile_us), "bytes": row.bytes});
        json!({
            "machine": machine(), "rounds": rounds, "empty": row(&self.empty),
            "programs": self.rows.iter().map(row).collect::<Vec<_>>(),
            "by_kernel_geometric": self.mean(KERNEL),
            "goals": self.goals().iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}

pub(crate) fn engine(words: &[&str]) -> Result<(), String> {
    let options = Options::parse("engine", &["--only TEXT", "--rounds N", "--json FILE"], ROUNDS, words)?;
    let out = root().join("target/bench");
    crate::run("make", &["-s", "-C", "bench/engine", &format!("OUT={}", out.display())])?;
    let binary = bench_binary("engines")?;
    let mut process = Process::start(Command::new(binary).arg(out.join("engine.bpf.o")).arg(out.join("engine.so")))?;
    process.expect("ready")?;
    process.say("list")?;
    let mut names = vec![];
    loop {
        match process.line()? {
            end if end == "end" => break,
            name => names.push(name),
        }
    }
    let mut engines: Vec<usize> = (0..ENGINES.len()).collect();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: kernel: BPF_PROG_TEST_RUN needs root");
        engines.retain(|engine| *engine != KERNEL);
    }
    let empty = measure(&mut process, EMPTY, options.rounds, &engines)?;
    names.retain(|name| name != EMPTY && name.contains(&options.only));
    let rows = names.iter().map(|name| measure(&mut process, name, options.rounds, &engines));
    let figures = Figures { rows: rows.collect::<Result<_, String>>()?, empty };
    figures.print(options.rounds);
    options.save(|| figures.json(options.rounds))
}
