//! `cargo xtask storm`, `faults`, `equivalence` and `interleave`: the tests `storms`, `faults`, `equivalence` and `raw_interleave`, for
//! as long as one likes.

use std::process::Command;

use clap::Args;

/// Options of `cargo xtask storm`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Storms: redis, nginx, java, goroutines, exceptions, threads, forks; without a name all of them
    names: Vec<String>,
    /// How long each lasts
    #[arg(long, default_value_t = 600)]
    seconds: u64,
}

/// Runs storms one after the other.
///
/// # Errors
/// Something was harmed, or a program failed.
pub(crate) fn storm(Options { names, seconds }: &Options) -> Result<(), String> {
    run("storms", names, &[("RING3_STORM_SECONDS", &seconds.to_string())])
}

/// Options of `cargo xtask faults`.
#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// Only faults in this system call
    #[arg(long)]
    only: Option<String>,
}

/// Has each system call of the server fail in turn.
///
/// # Errors
/// Something was harmed, or a program failed.
pub(crate) fn faults(Faults { only }: &Faults) -> Result<(), String> {
    let mut variables = vec![("RING3_FAULTS", "all")];
    variables.extend(only.as_deref().map(|name| ("RING3_FAULTS_OF", name)));
    run("faults", &[], &variables)
}

/// Options of `cargo xtask equivalence`.
#[derive(Debug, Args)]
pub(crate) struct Equivalence {
    /// How many functions; batches have 1000 each
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    functions: u64,
    /// The first batch's seed; the next one's is one more
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Compare where faults are, too: where a displaced instruction faults, that is in a stub (known to differ)
    #[arg(long)]
    strict: bool,
}

/// Probes random instructions of random functions, and compares what these do.
///
/// # Errors
/// A function did something else, or a probe counted wrongly.
pub(crate) fn equivalence(Equivalence { functions, seed, strict }: &Equivalence) -> Result<(), String> {
    let (functions, seed) = (functions.to_string(), seed.to_string());
    let mut variables = vec![("RING3_EQUIVALENCE_FUNCTIONS", &functions[..]), ("RING3_EQUIVALENCE_SEED", &seed)];
    variables.extend(strict.then_some(("RING3_EQUIVALENCE_STRICT", "1")));
    run("equivalence", &[], &variables)
}

/// Options of `cargo xtask interleave`.
#[derive(Debug, Args)]
pub(crate) struct Interleave {
    /// How many schedules of each kind of map
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// Where each kind's random numbers begin; without it somewhere else each time
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Steps processes that use the same map by random turns.
///
/// # Errors
/// What they did is explained by no order of their operations, or a map is damaged.
pub(crate) fn interleave(Interleave { schedules, seed }: &Interleave) -> Result<(), String> {
    let mut command = Command::new("cargo");
    command.args(["test", "--release", "--package", "ring3-maps", "--test", "raw_interleave", "--", "--nocapture"]);
    command.env("RING3_SCHEDULES", schedules.to_string());
    command.envs(seed.map(|seed| ("RING3_SEED", seed.to_string())));
    ran(command.current_dir(crate::root()), "interleave")
}

/// Runs tests of `ring3-tests` that have these names, one at a time.
fn run(test: &str, names: &[String], variables: &[(&str, &str)]) -> Result<(), String> {
    crate::build_ring3()?;
    crate::run("make", &["-s", "-C", "examples/malloc"])?;
    let mut command = Command::new("cargo");
    command.args([
        "test",
        "--package",
        "ring3-tests",
        "--test",
        test,
        "--",
        "--nocapture",
        "--include-ignored",
        "--test-threads",
        "1",
    ]);
    ran(command.args(names).envs(variables.iter().copied()).current_dir(crate::root()), test)
}

fn ran(command: &mut Command, test: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{test}: something was harmed, or failed")) }
}
