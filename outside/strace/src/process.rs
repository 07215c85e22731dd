//! What `/proc` says of tracees.

use std::fs::read_to_string;

fn field(id: i32, name: &str) -> Option<String> {
    let status = read_to_string(format!("/proc/{id}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(|value| value.trim().to_owned()))
}

/// The process of a thread.
pub(crate) fn process_of(tid: i32) -> Option<i32> {
    field(tid, "Tgid")?.parse().ok()
}

pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    field(pid, "PPid")?.parse().ok()
}

/// Whether the process is in another PID namespace than this one, inside it: its threads know other ids of theirs.
pub(crate) fn has_other_ids(pid: i32) -> bool {
    field(pid, "NSpid").is_some_and(|ids| ids.split_ascii_whitespace().count() > 1)
}

/// Whether the process has a handler of the signal.
pub(crate) fn catches(pid: i32, signal: i32) -> bool {
    let caught = field(pid, "SigCgt").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0);
    caught >> (signal - 1) & 1 != 0
}

/// Whether a signal that is delivered now, and that the process does not catch, ends it.
pub(crate) fn is_ended_by(pid: i32, signal: i32) -> bool {
    /// Signals that are ignored or stop a process by default.
    const HARMLESS: [i32; 8] = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    let ignored = field(pid, "SigIgn").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0);
    !HARMLESS.contains(&signal) && ignored >> (signal - 1) & 1 == 0
}

/// Whether a signal waits for the thread, or for its process.
pub(crate) fn has_pending(tid: i32, signal: i32) -> bool {
    let has = |name: &str| field(tid, name).and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0);
    (has("SigPnd") | has("ShdPnd")) >> (signal - 1) & 1 != 0
}

/// Whether the kernel has not stopped the thread.
pub(crate) fn runs(tid: i32) -> bool {
    field(tid, "State").is_some_and(|state| !state.starts_with(['t', 'T', 'Z', 'X']))
}
