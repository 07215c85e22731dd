//! A process's memory, which the kernel lets a tracer read and write whatever its protection is.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::Error;
use crate::process::{Pid, not_permitted, with_memory};

/// The memory that a process had when this was opened, whether it runs or not. (If it executes another program, nothing of that is
/// read or written.)
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    file: File,
}

impl Memory {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], [`Error::NotPermitted`], [`Error::Exited`], [`Error::Io`]
    pub fn open(Pid(pid): Pid) -> Result<Memory, Error> {
        Ok(Memory { pid, file: open_memory(pid, with_memory(pid))? })
    }

    /// Reads memory.
    ///
    /// # Errors
    /// [`Error::Io`]: it is not mapped, or the process has gone.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(out, address).map_err(|error| self.error(error))
    }

    /// Writes memory, read-only code included; pages of files become private copies.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(bytes, address).map_err(|error| self.error(error))
    }

    fn error(&self, error: std::io::Error) -> Error {
        Error::io(format!("memory of process {}", self.pid), error)
    }
}

/// By a thread of the process ([`with_memory`]).
pub(crate) fn open_memory(pid: u32, thread: u32) -> Result<File, Error> {
    let path = format!("/proc/{thread}/mem");
    File::options().read(true).write(true).open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::NoSuchProcess { pid },
        std::io::ErrorKind::PermissionDenied => not_permitted(pid),
        _ if error.raw_os_error() == Some(libc::ESRCH) => Error::Exited { pid },
        _ => Error::io(format!("/proc/{pid}/mem"), error),
    })
}
