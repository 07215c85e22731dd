//! LLVM in a process of its own, one for each BPF program that it compiles.
//!
//! To load LLVM takes 14 ms and 11 MB, which whoever uses it pays alone; and if LLVM crashes, only that process ends. The process is
//! killed when it takes too long, and when the thread that waits for it dies (`outside/llvm`, `run`).

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The name of the program.
const NAME: &str = "ring3-llvm";
/// Where it lies, from the directory of the program that runs: beside it (`cargo build`, `cargo install`), or where `make install`
/// puts it.
const PLACES: [&str; 2] = ["", "../libexec"];
/// An object file has so many bytes at most.
const OBJECT_BYTES_MAX: u64 = 1 << 27;

/// The program, if it is installed.
pub(crate) fn program() -> Option<PathBuf> {
    let this = std::fs::read_link("/proc/self/exe").ok()?;
    let paths = PLACES.map(|place| this.with_file_name(place).join(NAME));
    paths.into_iter().find(|path| path.is_file())
}

/// The object file of a text.
///
/// # Errors
/// The program cannot be started, fails, crashes, takes longer than `limit` or writes too much.
pub(crate) fn object(program: &Path, text: &str, limit: Duration) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + limit;
    let command = Command::new(program);
    ask(command, text, deadline).map_err(|why| format!("{}: {why}", program.display()))
}

fn ask(mut command: Command, text: &str, deadline: Instant) -> Result<Vec<u8>, String> {
    // (Not a pipe: it would have to be written while the output is read.)
    let input = input(text).map_err(|error| error.to_string())?;
    let child = command.stdin(input).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let mut child = Running(child);
    let output = child.output(deadline)?;
    let status = child.status(deadline)?;
    if status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output);
    Err(if status.code().is_some() && !said.is_empty() { said.into_owned() } else { status.to_string() })
}

/// A file with this text, in memory.
fn input(text: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("ring3-llvm-text", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // (It may have ended.)
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// All that it writes.
    fn output(&mut self, deadline: Instant) -> Result<Vec<u8>, String> {
        let mut stdout = self.0.stdout.take().expect("it is a pipe");
        let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            wait(&stdout, deadline)?;
            match stdout.read(&mut part).map_err(|error| error.to_string())? {
                0 => return Ok(bytes),
                count => bytes.extend_from_slice(&part[..count]),
            }
            if bytes.len() as u64 > OBJECT_BYTES_MAX {
                return Err(format!("it writes more than {OBJECT_BYTES_MAX} bytes"));
            }
        }
    }

    /// How it ends.
    fn status(&mut self, deadline: Instant) -> Result<ExitStatus, String> {
        let pid = Pid::from_raw(self.0.id() as i32).expect("no process has the number 0");
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| error.to_string())?;
        wait(&process, deadline)?;
        self.0.wait().map_err(|error| error.to_string())
    }
}

/// Waits until something can be read.
fn wait(fd: &impl AsFd, deadline: Instant) -> Result<(), String> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err("it takes too long".into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::ask;

    fn said(script: &str, limit: Duration) -> Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ask(command, "text", Instant::now() + limit).map(|bytes| String::from_utf8(bytes).expect("text"))
    }

    #[test]
    fn the_process_gets_the_text_and_its_output_comes_back() {
        assert_eq!(said("cat; echo more", Duration::from_secs(60)), Ok("textmore\n".to_owned()));
    }

    #[test]
    fn failures_and_crashes_are_errors() {
        let said = |script| said(script, Duration::from_secs(60)).expect_err("it fails");
        assert_eq!(said("echo why; exit 1"), "why\n");
        assert_eq!(said("exit 3"), "exit status: 3");
        assert!(said("echo half; kill -SEGV $$").starts_with("signal: 11"));
        assert!(said("exec cat /dev/zero").contains("more than"));
    }

    #[test]
    fn a_process_that_takes_too_long_is_killed() {
        for script in ["exec sleep 1000", "exec >&-; exec sleep 1000"] {
            assert_eq!(said(script, Duration::from_millis(100)), Err("it takes too long".to_owned()));
        }
    }
}
