//! A loader beside the program that it is for: this process becomes the program, and the loader is nobody's child: the program would
//! wait for it, or wonder about it. So a process between them begins the loader, and ends.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use crate::{Failure, launch};

/// What the loader says when the program may begin.
const READY: &str = "ready";

/// In the environment of the process between the program and its loader.
const BETWEEN: &str = "RING3_BEGINS_LOADER";

/// If this is the process between a program and its loader, begins the loader: the exit code. To be called first of all, while there is
/// one thread.
pub(crate) fn run_between() -> Option<ExitCode> {
    std::env::var_os(BETWEEN)?;
    let began = launch::own_path().map_err(Failure::from).and_then(|path| {
        let mut loader = Command::new(path);
        loader.args(std::env::args_os().skip(1)).env_remove(BETWEEN);
        try_spawn(loader, "loader")
    });
    Some(match began {
        Ok(Ok(_)) => {
            tell_ready();
            ExitCode::SUCCESS
        }
        Ok(Err(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(failure) => failure.tell(),
    })
}

/// Starts the loader: this command with the same arguments before `--`, with `--until` this process, and with more arguments.
/// Returns when the program may begin; if the loader fails, it says why, and this process ends with its exit code.
pub(crate) fn start(what: &str, more: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut child = Command::new(launch::own_path()?);
    let kept = std::env::args_os().skip(1).take_while(|argument| argument != "--");
    child.args(kept).arg("--until").arg(std::process::id().to_string()).args(more).stdin(Stdio::null());
    spawn_apart(child, what)?.map_err(|code| std::process::exit(code))
}

/// Starts a loader by this command of ring3's, with its standard input. If the loader fails, which it has said, the result is its exit
/// code.
pub(crate) fn spawn_apart(mut loader: Command, what: &str) -> Result<Result<(), i32>, Failure> {
    loader.env(BETWEEN, "1");
    let between = try_spawn(loader, what)?;
    // (It ends at once.)
    Ok(between.map(|mut between| drop(between.wait())))
}

/// The same, but the result is the process that the command has started.
fn try_spawn(mut child: Command, what: &str) -> Result<Result<Child, i32>, Failure> {
    // (What interrupts the program is not for the loader.)
    let child = child.stdout(Stdio::piped()).process_group(0).spawn();
    let mut child = child.map_err(|error| format!("cannot start the {what}: {error}"))?;
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).map_err(|error| error.to_string())?;
    if line.trim() == READY {
        return Ok(Ok(child));
    }
    let code = child.wait().ok().and_then(|status| status.code()).unwrap_or(1);
    Ok(Err(code.max(1)))
}

/// The loader's side: the program may begin.
pub(crate) fn tell_ready() {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
}
