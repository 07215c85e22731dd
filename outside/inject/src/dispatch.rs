//! Calls that the kernel gives back to their thread as signals (syscall user dispatch): who is, who may be.

use crate::Error;
use crate::process::{proc_file, status_field};
use crate::raw_ptrace::{self as ptrace, Dispatch, Tid};
use crate::stopped::Stopped;

/// The field of `/proc/PID/status` with the signals that have a handler.
const HANDLED: &str = "SigCgt";

impl Stopped {
    /// What is dispatched of a thread's calls.
    ///
    /// # Errors
    /// Also if the kernel does not tell (before Linux 6.4).
    pub fn dispatch(&self, tid: Tid) -> Result<Dispatch, Error> {
        match &self.borrowed {
            Some(borrowed) if borrowed.tid == tid => Ok(borrowed.dispatch),
            _ => ptrace::dispatch(tid).map_err(|error| self.gone("dispatch", error)),
        }
    }

    /// Has a thread's calls dispatched from when it goes on.
    pub fn set_dispatch(&mut self, tid: Tid, dispatch: Dispatch) -> Result<(), Error> {
        match &mut self.borrowed {
            Some(borrowed) if borrowed.tid == tid => {
                borrowed.dispatch = dispatch;
                Ok(())
            }
            _ => ptrace::set_dispatch(tid, &dispatch).map_err(|error| self.gone("dispatch", error)),
        }
    }

    /// The signals that a thread blocks: while it makes a call that blocks others for its own time, both.
    pub fn signals_blocked(&self, tid: Tid) -> Result<u64, Error> {
        if let Some(borrowed) = self.borrowed.as_ref().filter(|borrowed| borrowed.tid == tid) {
            return Ok(borrowed.blocked);
        }
        let mask = self.signal_mask(tid)?;
        Ok(mask | self.signal_set(tid, "SigBlk")?)
    }

    /// Has these signals come to a thread that blocks them, from when it goes on.
    pub fn unblock(&mut self, tid: Tid, signals: u64) -> Result<(), Error> {
        self.change_mask(tid, |mask| mask & !signals)
    }

    /// Has a thread block these signals, too, from when it goes on.
    pub fn block(&mut self, tid: Tid, signals: u64) -> Result<(), Error> {
        self.change_mask(tid, |mask| mask | signals)
    }

    fn change_mask(&mut self, tid: Tid, change: impl Fn(u64) -> u64) -> Result<(), Error> {
        if let Some(borrowed) = self.borrowed.as_mut().filter(|borrowed| borrowed.tid == tid) {
            (borrowed.mask, borrowed.blocked) = (change(borrowed.mask), change(borrowed.blocked));
            return Ok(());
        }
        let mask = self.signal_mask(tid)?;
        ptrace::set_signal_mask(tid, change(mask)).map_err(|error| self.gone("signal mask", error))
    }

    /// Whether one of these signals waits for a thread to let it come, or to go on.
    pub fn is_pending(&self, tid: Tid, signals: u64) -> Result<bool, Error> {
        let (mut count, mut found) = (0, false);
        for (signal, _) in ptrace::pending(tid) {
            count += 1;
            found |= signals & 1 << (signal - 1) != 0;
        }
        // (Where there are more, `/proc` has them all. It takes much longer.)
        if found || count < ptrace::PENDING_MAX {
            return Ok(found);
        }
        Ok(self.signal_set(tid, "SigPnd")? & signals != 0)
    }

    /// The signals that a thread blocks when it has ended the call that it may be in.
    pub fn signal_mask(&self, tid: Tid) -> Result<u64, Error> {
        match self.borrowed.as_ref().filter(|borrowed| borrowed.tid == tid) {
            Some(borrowed) => Ok(borrowed.mask),
            None => ptrace::signal_mask(tid).map_err(|error| self.gone("signal mask", error)),
        }
    }

    /// The signals that the process handles. (They change by remote calls only.)
    pub fn signals_handled(&self) -> Result<u64, Error> {
        match self.handled.get() {
            Some(handled) => Ok(handled),
            None => self.signal_set(self.pid(), HANDLED),
        }
    }

    /// Whether a thread's calls are filtered.
    pub fn is_filtered(&self, tid: Tid) -> Result<bool, Error> {
        Ok(status_field(&self.status(tid)?, "Seccomp").is_some_and(|mode| mode.trim() != "0"))
    }

    fn signal_set(&self, tid: Tid, field: &str) -> Result<u64, Error> {
        let status = self.status(tid)?;
        let set = |field| status_field(&status, field).and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        // (All threads have the same.)
        self.handled.set(set(HANDLED));
        set(field).ok_or(Error::Exited { pid: self.pid() })
    }

    fn status(&self, tid: Tid) -> Result<String, Error> {
        proc_file(self.pid(), &format!("task/{tid}/status")).map_err(|_| Error::Exited { pid: self.pid() })
    }
}
