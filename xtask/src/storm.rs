//! `cargo xtask storm` and `cargo xtask faults`: the tests `storms` and `faults`, for as long as one likes.

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
    command.args(names).envs(variables.iter().copied()).current_dir(crate::root());
    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{test}: something was harmed, or failed")) }
}
