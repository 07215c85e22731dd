//! `cargo xtask bench embed`: what a call of a program costs that an application hosts (ring3-embed), compiled and interpreted, beside
//! rbpf's compiler and interpreter and a call of a C function by its address, in one run.
//!
//! `outside/embed/benches/raw_calls.rs` measures; its lines are `ROW COLUMN NS`. rbpf has no maps.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::bench::{Goal, Limit, bench_binary_of, machine, machine_text};
use crate::bench_options::{Output, count};

const ROUNDS: usize = 15;
const COLUMNS: [&str; 6] = ["ring3", "ring3 by C", "rbpf", "native", "ring3-interpreter", "rbpf-interpreter"];
/// The row that is not of calls but of instructions.
const LOOP: &str = "loop";

/// What `cargo xtask bench embed` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

/// Rows in the order in which they were measured, with the fastest times by column, ns.
#[derive(Default)]
struct Figures(Vec<(String, BTreeMap<String, f64>)>);

impl Figures {
    fn parse(text: &str) -> Result<Figures, String> {
        let mut figures = Figures::default();
        for line in text.lines() {
            let wrong = || format!("the benchmark says {line:?}");
            let [row, column, ns] = line.split('\t').collect::<Vec<_>>().try_into().map_err(|_| wrong())?;
            let ns: f64 = ns.parse().map_err(|_| wrong())?;
            if figures.0.last().is_none_or(|(last, _)| last != row) {
                figures.0.push((row.to_owned(), BTreeMap::new()));
            }
            if let Some((_, columns)) = figures.0.last_mut() {
                columns.insert(column.to_owned(), ns);
            }
        }
        Ok(figures)
    }

    fn ns(&self, row: &str, column: &str) -> Option<f64> {
        self.0.iter().find(|(name, _)| name == row)?.1.get(column).copied()
    }

    fn goals(&self) -> Vec<Goal> {
        let ratio = |row: &str| Some(self.ns(row, "ring3")? / self.ns(row, "rbpf")?);
        vec![
            Goal {
                text: "a call of an empty program, ns".into(),
                figure: self.ns("empty", "ring3"),
                limit: Limit::AtMost(5.0),
            },
            Goal {
                text: "the same by ring3_call, ns".into(),
                figure: self.ns("empty", "ring3 by C"),
                limit: Limit::AtMost(5.0),
            },
            Goal { text: "the loop's time by rbpf's".into(), figure: ratio(LOOP), limit: Limit::AtMost(1.1) },
        ]
    }

    fn print(&self, rounds: usize) {
        println!("\n{}\n\nns a call (fastest of {rounds} rounds)\n", machine_text());
        let row = |name: &str, figures: &dyn Fn(&str) -> String| {
            let figures: String = COLUMNS.iter().map(|column| format!("{:>19}", figures(column))).collect();
            println!("{name:<16}{figures}");
        };
        let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.1}"));
        row("", &|column| column.to_owned());
        for (name, _) in self.0.iter().filter(|(name, _)| name != LOOP) {
            row(name, &|column| shown(self.ns(name, column)));
        }
        println!("\nmillion instructions a second\n");
        row(LOOP, &|column| shown(self.ns(LOOP, column).map(|ns| 1000.0 / ns)));
        println!("\ngoals");
        for goal in self.goals() {
            println!("{goal}");
        }
    }

    fn json(&self, rounds: usize) -> Value {
        let rows: serde_json::Map<String, Value> =
            self.0.iter().map(|(name, columns)| (name.clone(), json!(columns))).collect();
        let goals: Vec<Value> = self.goals().iter().map(Goal::json).collect();
        json!({"machine": machine(), "rounds": rounds, "ns": rows, "goals": goals})
    }
}

pub(crate) fn embed(options: &Options) -> Result<(), String> {
    let binary = bench_binary_of("ring3-embed", "calls", &[])?;
    let output = Command::new(&binary).arg(options.rounds.to_string()).output();
    let output = output.map_err(|error| format!("{}: {error}", binary.display()))?;
    if !output.status.success() {
        return Err(format!("the benchmark failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let figures = Figures::parse(&String::from_utf8_lossy(&output.stdout))?;
    figures.print(options.rounds);
    options.output.save(|| figures.json(options.rounds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_figures() {
        let figures = Figures::parse("empty\tring3\t4.5\nempty\trbpf\t3.5\nloop\tring3\t0.1\n").expect("lines");
        assert_eq!(figures.ns("empty", "rbpf"), Some(3.5));
        assert_eq!(figures.ns("loop", "rbpf"), None);
        assert!(Figures::parse("empty\tring3").is_err());
        assert!(Figures::parse("empty\tring3\tx").is_err());
    }
}
