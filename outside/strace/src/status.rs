//! What the status of a tracee's stop tells, as wait4(2) has it (ptrace(2), with `PTRACE_SEIZE`).

use libc::c_int;

/// The status of an interrupt's stop. (Without the last byte it is the `si_code` of the stop.)
pub(crate) const INTERRUPT: c_int = libc::PTRACE_EVENT_STOP << 16 | libc::SIGTRAP << 8 | 0x7f;

pub(crate) fn event_of(status: c_int) -> c_int {
    status >> 16
}

/// A group stop, as `PTRACE_SEIZE` shows it.
pub(crate) fn is_group_stop(status: c_int) -> bool {
    event_of(status) == libc::PTRACE_EVENT_STOP && libc::WSTOPSIG(status) != libc::SIGTRAP
}

/// A signal that is about to be delivered.
pub(crate) fn is_signal(status: c_int) -> bool {
    libc::WIFSTOPPED(status) && event_of(status) == 0 && libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80
}

pub(crate) fn is_interrupt(status: c_int) -> bool {
    event_of(status) == libc::PTRACE_EVENT_STOP && libc::WSTOPSIG(status) == libc::SIGTRAP
}
