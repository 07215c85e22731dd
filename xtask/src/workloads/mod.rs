//! `cargo xtask bench workloads`: whole programs at their work, under tools that trace them.
//!
//! A row is a program (a server under load, or a program that is run again and again) with a tool. Each row is measured
//! untraced, untraced once more (how much it differs from itself), with the tool on the kernel, and with the same tool
//! and the same options under ring3. In each round all rows have their turn, and each variant of a row begins once.
//! What is missing or added is taken from the untraced figures of the same round.
//!
//! A tool must have said that it is attached before anything is measured, and the events that it read and lost must
//! agree with the work that was done: otherwise the row has failed.

mod compile;
mod files;
mod go;
pub(crate) mod group;
mod java;
pub(crate) mod load;
pub(crate) mod measures;
mod nginx;
mod postgres;
mod redis;
mod runner;
mod scripts;
mod tool;
pub(crate) mod victim;
mod workload;

use crate::bench_options::{Output, count};
use workload::Family;

const ROUNDS: usize = 5;
const SECONDS: usize = 2;

const FAMILIES: [Family; 8] = [
    nginx::FAMILY,
    go::FAMILY,
    postgres::FAMILY,
    redis::FAMILY,
    compile::FAMILY,
    files::FAMILY,
    scripts::FAMILY,
    java::FAMILY,
];

/// What `cargo xtask bench workloads` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only rows whose name contains this (can be repeated)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Measured rounds
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = count)]
    rounds: usize,
    /// How long each measurement takes, after half of it to warm up
    #[arg(long, value_name = "S", default_value_t = SECONDS, value_parser = count)]
    seconds: usize,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn workloads(options: &Options) -> Result<(), String> {
    let is_asked =
        |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()));
    let mut rows = vec![];
    for family in &FAMILIES {
        rows.extend((family.workloads)().into_iter().map(|workload| (family, workload)));
    }
    let names: Vec<String> = rows.iter().map(|(_, workload)| workload.name.clone()).collect();
    rows.retain(|(_, workload)| is_asked(&workload.name));
    if rows.is_empty() {
        return Err(format!("no workload is named so; there are {}", names.join(", ")));
    }
    let mut bench = runner::Bench::new(rows, options.seconds)?;
    bench.run(options.rounds)?;
    let goals = bench.goals();
    bench.print(options.rounds, &goals);
    options.output.save(|| bench.json(options.rounds, &goals))?;
    bench.verdict()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::FAMILIES;

    #[test]
    fn each_row_has_a_name_of_its_own_and_expects_events() {
        let mut names = BTreeSet::new();
        for workload in FAMILIES.iter().flat_map(|family| (family.workloads)()) {
            assert!(*workload.events.start() > 0.0, "{}: no event proves that the tool saw anything", workload.name);
            assert!(names.insert(workload.name.clone()), "{} is there twice", workload.name);
        }
    }
}
