//! `cargo xtask bench engine`: how fast compiled programs are, by Cranelift (`ring3`) and by LLVM (`llvm`, where it is
//! installed), beside the kernel's compiler, rbpf's, ubpf's (`--ubpf DIR`, its source tree) and what clang makes of the same C
//! for this machine, in one run. Programs that look elements of maps up run on ours and the kernel's only.
//!
//! The programs are those of `bench/engine/programs.c`; `engines` of `tests/benches` runs them. Engines take turns over a
//! program, and a time is that of the fastest round (interference only ever adds). The kernel runs programs by
//! `BPF_PROG_TEST_RUN`, whose own loop costs what the program `empty` takes there: that is subtracted from all engines.
//! Results must agree.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, Process, bench_binary, machine, machine_text};
use crate::bench_options::{Output, count};
use crate::{has_llvm, root};

const ROUNDS: usize = 9;
/// How long a measurement shall take, ns, and its runs.
const MEASUREMENT_NS: f64 = 1.5e6;
const RUNS_FIRST: u32 = 200;
const RUNS_MAX: f64 = 1e5;
/// The program that shows what calling one costs.
const EMPTY: &str = "empty";
/// Programs that look elements up end so: their time is that of maps, and no compiler's.
const LOOKUP: &str = "_lookup";
/// Times below this, less what a call costs, are not compared.
const COMPARED_NS: f64 = 50.0;

const RING3: usize = 0;
const LLVM: usize = 1;
const KERNEL: usize = 2;
const UBPF: usize = 4;
const ENGINES: [&str; 6] = ["ring3", "llvm", "kernel", "rbpf", "ubpf", "native"];
/// Those with which ours are compared.
const OTHERS: std::ops::Range<usize> = KERNEL..ENGINES.len();
/// Those that tell what compiling takes and how large code is.
const COMPILERS: [usize; 2] = [RING3, LLVM];

/// A program: the fastest time of a run on each engine, ns; none if it does not run there.
struct Row {
    name: String,
    ns: [Option<f64>; ENGINES.len()],
    compile_us: [Option<f64>; ENGINES.len()],
    bytes: [Option<f64>; ENGINES.len()],
}

impl Row {
    /// A time less what a call costs.
    fn net(&self, engine: usize, empty: &Row) -> Option<f64> {
        Some((self.ns[engine]? - empty.ns[engine]?).max(0.1))
    }

    /// The time of one of ours by another engine's, where that is long enough.
    fn ratio(&self, ours: usize, theirs: usize, empty: &Row) -> Option<f64> {
        let (ours, theirs) = (self.net(ours, empty)?, self.net(theirs, empty)?);
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
    let none = [None; ENGINES.len()];
    let mut row = Row { name: name.into(), ns: none, compile_us: none, bytes: none };
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
                row.bytes[engine] = Some(bytes as f64);
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
    fn mean(&self, ours: usize, theirs: usize) -> Option<f64> {
        geometric(self.computing().filter_map(|row| row.ratio(ours, theirs, &self.empty)))
    }

    /// The programs that only compute.
    fn computing(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.name.ends_with(LOOKUP))
    }

    fn mean_of(&self, figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
        geometric(self.rows.iter().filter_map(figure))
    }

    fn goals(&self) -> Vec<Goal> {
        let ratios = self.computing().filter_map(|row| row.ratio(RING3, KERNEL, &self.empty));
        let compile = self.rows.iter().filter_map(|row| row.compile_us[RING3]);
        vec![
            Goal {
                text: "ring3's time by the kernel's, geometric mean".into(),
                figure: self.mean(RING3, KERNEL),
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
            Goal {
                text: "LLVM's time by the kernel's, geometric mean".into(),
                figure: self.mean(LLVM, KERNEL),
                limit: Limit::AtMost(0.6),
            },
        ]
    }

    fn print(&self, rounds: usize) {
        println!("\n{}", machine_text());
        println!(
            "\nns a run (fastest of {rounds} rounds), less an empty program's; our time by the others'; compiling; code\n"
        );
        let number = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.1}"));
        let ratio = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"));
        let whole = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.0}"));
        let all =
            |of: &dyn Fn(usize) -> String| (0..ENGINES.len()).map(|engine| format!("{:>9}", of(engine))).collect();
        let pairs = COMPILERS.into_iter().flat_map(|ours| OTHERS.map(move |theirs| (ours, theirs)));
        let pairs = |of: &dyn Fn(usize, usize) -> String| -> String {
            pairs.clone().map(|(ours, theirs)| format!("{:>13}", of(ours, theirs))).collect()
        };
        let own = |of: &dyn Fn(usize) -> String| COMPILERS.map(|engine| format!("{:>8}", of(engine))).concat();
        let print = |name: &str, times: String, ratios: String, microseconds: String, bytes: String| {
            println!("{name:<18}{times} |{ratios} |{microseconds} |{bytes}");
        };
        let name = |engine: usize| ENGINES[engine].to_owned();
        let by = |ours: usize, theirs: usize| format!("{}/{}", ENGINES[ours], ENGINES[theirs]);
        print(
            "program",
            all(&name),
            pairs(&by),
            own(&|engine| name(engine) + " us"),
            own(&|engine| name(engine) + " B"),
        );
        for row in &self.rows {
            let times = all(&|engine| number(row.net(engine, &self.empty)));
            let ratios = pairs(&|ours, theirs| ratio(row.ratio(ours, theirs, &self.empty)));
            let (compile, bytes) =
                (own(&|engine| whole(row.compile_us[engine])), own(&|engine| whole(row.bytes[engine])));
            print(&row.name, times, ratios, compile, bytes);
        }
        let means = pairs(&|ours, theirs| ratio(self.mean(ours, theirs)));
        let (compile, bytes) = (
            own(&|engine| whole(self.mean_of(|row| row.compile_us[engine]))),
            own(&|engine| whole(self.mean_of(|row| row.bytes[engine]))),
        );
        print("geometric mean", all(&|_| String::new()), means, compile, bytes);
        print(
            "an empty program",
            all(&|engine| number(self.empty.ns[engine])),
            String::new(),
            String::new(),
            String::new(),
        );
        println!("\ngoals");
        for goal in self.goals() {
            println!("{goal}");
        }
    }

    fn json(&self, rounds: usize) -> Value {
        let of = |figures: &[Option<f64>]| -> Value {
            ENGINES.iter().zip(figures).map(|(name, figure)| ((*name).to_owned(), json!(figure))).collect()
        };
        let row = |row: &Row| json!({"program": row.name, "ns": of(&row.ns), "compile_us": of(&row.compile_us), "bytes": of(&row.bytes)});
        json!({
            "machine": machine(), "rounds": rounds, "empty": row(&self.empty),
            "programs": self.rows.iter().map(row).collect::<Vec<_>>(),
            "by_kernel_geometric": self.mean(RING3, KERNEL),
            "llvm_by_kernel_geometric": self.mean(LLVM, KERNEL),
            "goals": self.goals().iter().map(Goal::json).collect::<Vec<_>>(),
        })
    }
}

/// Compiles ubpf as it is configured for release on Linux: its library.
fn build_ubpf(source: &Path, out: &Path) -> Result<PathBuf, String> {
    let (directory, library) = (out.join("ubpf"), out.join("ubpf/libubpf.so"));
    let fail = |error: std::io::Error| format!("{}: {error}", directory.display());
    std::fs::create_dir_all(&directory).map_err(fail)?;
    std::fs::write(directory.join("ubpf_config.h"), "#define UBPF_HAS_ELF_H 1\n").map_err(fail)?;
    let vm = source.join("vm");
    let listed =
        std::fs::read_dir(&vm).map_err(|error| format!("--ubpf wants ubpf's sources: {}: {error}", vm.display()))?;
    let files = listed.flatten().map(|entry| entry.path());
    let is_part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("ubpf_") && name.ends_with(".c")
    };
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-DNDEBUG", "-shared", "-fPIC", "-w", "-I"])
        .arg(&directory)
        .arg("-I")
        .arg(&vm)
        .arg("-I")
        .arg(vm.join("inc"));
    let output = cc.args(files.filter(is_part)).args(["-lm", "-o"]).arg(&library).output();
    let output = output.map_err(|error| format!("cc: {error}"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(library) } else { Err(format!("ubpf does not compile:\n{why}")) }
}

/// What `cargo xtask bench engine` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure only what has this text in its name
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    /// Also measure ubpf, from this source tree
    #[arg(long, value_name = "DIR")]
    ubpf: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn engine(options: &Options) -> Result<(), String> {
    let out = root().join("target/bench");
    crate::run("make", &["-s", "-C", "bench/engine", &format!("OUT={}", out.display())])?;
    let binary = bench_binary("engines")?;
    let mut command = Command::new(binary);
    command.arg(out.join("engine.bpf.o")).arg(out.join("engine.so"));
    if let Some(source) = &options.ubpf {
        command.arg(build_ubpf(source, &out)?);
    }
    let mut process = Process::start(&mut command)?;
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
    if options.ubpf.is_none() {
        engines.retain(|engine| *engine != UBPF);
    }
    if !has_llvm() {
        eprintln!("SKIPPED: llvm: llvm-19-dev is not installed");
        engines.retain(|engine| *engine != LLVM);
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: kernel: BPF_PROG_TEST_RUN needs root");
        engines.retain(|engine| *engine != KERNEL);
    }
    let empty = measure(&mut process, EMPTY, options.rounds, &engines)?;
    names.retain(|name| name != EMPTY && name.contains(&options.only));
    let rows = names.iter().map(|name| measure(&mut process, name, options.rounds, &engines));
    let figures = Figures { rows: rows.collect::<Result<_, String>>()?, empty };
    figures.print(options.rounds);
    options.output.save(|| figures.json(options.rounds))
}
