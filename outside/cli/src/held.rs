//! A program whose process waits before it begins.
//!
//! Children of a loader are loaders, so the program's process begins before its parent becomes one. It stops itself; the parent
//! makes it a target and continues it, and it executes the program. If its parent ends before, it ends too.

use std::process::{Child, Command, ExitCode};

use ring3_server::without_posix_spawn;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use crate::{Failure, launch};

/// The argument that makes `ring3 start` stop before it becomes the program.
const HELD: &str = "--held";

/// The name of the process until it is about to execute the program: what it does with this name is not the program's. The call that
/// executes the program has the program's name.
pub(crate) const NAME: &std::ffi::CStr = c"ring3-held";

/// The parent's side.
pub(crate) struct Held {
    child: Child,
}

impl Held {
    /// Begins a program. If that was not possible the child has said why; this is its exit code.
    pub(crate) fn spawn(command: &[String]) -> Result<Result<Held, ExitCode>, Failure> {
        // (What is none is named with the options of the command that was typed, not with those of `ring3 start`.)
        launch::find_program(&command[0])?;
        // (Descendants whose parents have ended become this process's children, so that their end is seen, too.)
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| error.to_string())?;
        let mut held = Command::new(launch::own_path()?);
        held.args(["start", HELD, "--"]).args(command);
        let child = without_posix_spawn(&mut held).spawn();
        let mut child = child.map_err(|error| format!("cannot start {}: {error}", command[0]))?;
        let pid = pid_of(&child);
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = loop {
            match rustix::process::waitid(WaitId::Pid(pid), options) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other.map_err(|error| error.to_string())?,
            }
        };
        let Some(status) = status.filter(|status| !status.stopped()) else { return Ok(Ok(Held { child })) };
        child.wait().map_err(|error| error.to_string())?;
        Ok(Err(exit_code(&status)))
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets it begin.
    pub(crate) fn resume(&self) -> Result<(), String> {
        rustix::process::kill_process(pid_of(&self.child), Signal::CONT)
            .map_err(|error| format!("cannot continue process {}: {error}", self.id()))
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        let _ = rustix::process::kill_process(pid_of(&self.child), Signal::TERM);
    }

    /// Its exit code, if it has ended; of a signal's death 128 and the signal's number. It stays a zombie, which tells the server
    /// how it has ended, until [`has_orphans`] is asked.
    pub(crate) fn status(&self) -> Option<ExitCode> {
        zombie(WaitId::Pid(pid_of(&self.child))).as_ref().map(exit_code)
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) {
        let _ = self.child.wait();
    }
}

/// Whether descendants of the program are left when itself has ended. Before those that have ended are waited for, `settle` is called:
/// from a zombie the server learns how the process has ended.
pub(crate) fn has_orphans(settle: impl FnOnce()) -> bool {
    if zombie(WaitId::All).is_some() {
        settle();
    }
    loop {
        match rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// How a child has ended that nobody has waited for; it stays one.
fn zombie(which: WaitId<'_>) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::process::waitid(which, options).ok().flatten()
}

fn exit_code(status: &WaitIdStatus) -> ExitCode {
    const BY_SIGNAL: i32 = 128;
    let by_signal = status.terminating_signal().map(|signal| BY_SIGNAL + signal);
    ExitCode::from(status.exit_status().or(by_signal).unwrap_or(1) as u8)
}

/// The child's side: waits until the parent lets it go on.
pub(crate) fn wait() -> Result<(), String> {
    let set = |signal| rustix::process::set_parent_process_death_signal(signal).map_err(|error| error.to_string());
    rustix::thread::set_name(NAME).map_err(|error| error.to_string())?;
    set(Some(Signal::KILL))?;
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).map_err(|error| error.to_string())?;
    set(None)
}
