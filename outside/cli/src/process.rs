//! Processes that a command names.

use std::os::fd::OwnedFd;

use ring3_server::children;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::class;

/// A process by its id.
pub(crate) fn open(pid: u32) -> Result<OwnedFd, String> {
    let named = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| class::no_process(pid))?;
    rustix::process::pidfd_open(named, PidfdFlags::empty()).map_err(|error| match error {
        rustix::io::Errno::SRCH => class::no_process(pid),
        error => format!("process {pid}: {error}"),
    })
}

/// The living descendants of a process, as far as the kernel tells them.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        let more = children(*parent);
        found.extend(more);
        next += 1;
    }
    found
}

/// Whether it has ended.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).is_ok_and(|count| count > 0)
}
