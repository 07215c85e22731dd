//! A loader beside the program that it is for: this process becomes the program, its child is the loader.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::{Failure, launch};

/// What the loader says when the program may begin.
const READY: &str = "ready";

/// Starts the loader: this command with the same arguments before `--`, with `--until` this process, and with more arguments.
/// Returns when the program may begin; if the loader fails, it says why, and this process ends with its exit code.
pub(crate) fn start(what: &str, more: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut child = Command::new(launch::own_path()?);
    let kept = std::env::args_os().skip(1).take_while(|argument| argument != "--");
    child.args(kept).arg("--until").arg(std::process::id().to_string()).args(more).stdin(Stdio::null());
    spawn(child, what).map(drop)
}

/// Starts a loader by this command, as [`start`] does. The result is the child.
pub(crate) fn spawn(child: Command, what: &str) -> Result<Child, Failure> {
    try_spawn(child, what)?.map_err(|code| std::process::exit(code))
}

/// The same, but if the loader fails, which it has said, the result is its exit code.
pub(crate) fn try_spawn(mut child: Command, what: &str) -> Result<Result<Child, i32>, Failure> {
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
