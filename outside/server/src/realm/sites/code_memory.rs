//! Where code is written to: a process that is stopped, or one that runs.

use ring3_inject as inject;
use ring3_uapi::Errno;

use crate::realm::Refusal;

/// A process that has more threads is attached, and detached, in one stop if possible: to stop the threads takes longer than all else.
pub(in crate::realm) const STOPPED_TWICE_THREADS_MAX: usize = 64;

/// Where code is written to: a process that is stopped, or one that runs.
pub(in crate::realm) trait CodeMemory {
    /// Writes code.
    ///
    /// # Errors
    /// Those of [`inject::Memory::write`].
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), inject::Error>;

    /// The process, if it is stopped: then memory can be mapped, too.
    fn stopped(&mut self) -> Option<&mut inject::Stopped>;
}

impl CodeMemory for inject::Stopped {
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), inject::Error> {
        inject::Stopped::write(self, address, bytes)
    }

    fn stopped(&mut self) -> Option<&mut inject::Stopped> {
        Some(self)
    }
}

impl CodeMemory for inject::Memory {
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), inject::Error> {
        inject::Memory::write(self, address, bytes)
    }

    fn stopped(&mut self) -> Option<&mut inject::Stopped> {
        None
    }
}

/// The process, for mapping memory.
///
/// # Errors
/// `EAGAIN`: it runs.
pub(super) fn stopped_in(memory: &mut dyn CodeMemory) -> Result<&mut inject::Stopped, Refusal> {
    memory.stopped().ok_or_else(|| Refusal::new(Errno::EAGAIN, "the process has to be stopped for that"))
}
