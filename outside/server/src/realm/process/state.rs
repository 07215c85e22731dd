//! Processes and their threads as `/proc` shows them.

use std::time::Duration;

use ring3_inject as inject;
use ring3_uapi::nr;

/// Mappings with code.
pub(in crate::realm) fn code_of(mappings: &[inject::Mapping]) -> impl Iterator<Item = &inject::Mapping> {
    mappings.iter().filter(|mapping| mapping.is_executable())
}

/// The pids of all processes that can be seen.
pub(in crate::realm) fn all_processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The user that a process belongs to, as `/proc` shows it; 0 if it has ended.
pub(in crate::realm) fn user_of(pid: u32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).map_or(0, |process| process.uid())
}

/// The id of a process in its own pid namespace.
pub(in crate::realm) fn own_pid(pid: u32) -> Option<u32> {
    own_id(pid, "status")
}

fn own_id(pid: u32, status: &str) -> Option<u32> {
    let status = inject::proc_file(pid, status).ok()?;
    inject::status_field(&status, "NSpid")?.split_whitespace().last()?.parse().ok()
}

/// Whether a thread of a process cannot be stopped at present: it waits for a `vfork` child, or for a disk that does not answer.
/// Whoever waits for a lock of the kernel's, as those do that map memory all the time, runs again at once and is not held.
pub(in crate::realm) fn is_held(pid: u32) -> bool {
    const LOOKS: u32 = 5;
    const BETWEEN_LOOKS: Duration = Duration::from_micros(200);
    let tids = inject::threads(pid).unwrap_or_default();
    let waiting = tids.into_iter().filter(|tid| is_waiting(pid, *tid));
    let mut waiting: Vec<(u32, Option<u64>)> = waiting.map(|tid| (tid, switches(pid, tid))).collect();
    if waiting.iter().any(|(tid, _)| awaits_child(pid, *tid)) {
        return true;
    }
    for _ in 0..LOOKS {
        if waiting.is_empty() {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        waiting.retain(|(tid, before)| is_waiting(pid, *tid) && switches(pid, *tid) == *before);
    }
    !waiting.is_empty()
}

/// Whether a thread waits for what no signal ends.
fn is_waiting(pid: u32, tid: u32) -> bool {
    inject::Stat::of_thread(pid, tid).and_then(|stat| stat.state()) == Some('D')
}

/// How often a thread has begun to wait.
fn switches(pid: u32, tid: u32) -> Option<u64> {
    let status = inject::proc_file(pid, &format!("task/{tid}/status")).ok()?;
    inject::status_field(&status, "voluntary_ctxt_switches")?.parse().ok()
}

/// Whether a thread that waits does so in a call that makes a process (`CLONE_VFORK`).
fn awaits_child(pid: u32, tid: u32) -> bool {
    let call = inject::proc_file(pid, &format!("task/{tid}/syscall")).unwrap_or_default();
    let number = call.split_whitespace().next().and_then(|number| number.parse().ok());
    matches!(number, Some(nr::VFORK | nr::CLONE | nr::CLONE3))
}

/// The thread of a process that has this id in its own pid namespace.
pub(in crate::realm) fn thread_named(pid: u32, own_tid: u32) -> Option<u32> {
    let own = |tid: u32| own_id(pid, &format!("task/{tid}/status"));
    if own(own_tid) == Some(own_tid) {
        return Some(own_tid);
    }
    inject::threads(pid).ok()?.into_iter().find(|tid| own(*tid) == Some(own_tid))
}

/// The process of a thread.
pub(crate) fn leader(tid: u32) -> Option<u32> {
    let status = inject::proc_file(tid, "status").ok()?;
    inject::status_field(&status, "Tgid")?.parse().ok()
}

/// Whether a process's first thread is traced by a thread of a process.
pub(in crate::realm) fn is_traced_by(pid: u32, tracer: u32) -> bool {
    inject::tracer_of(pid).and_then(leader) == Some(tracer)
}

/// In how many pid namespaces a process can be seen from here.
pub(in crate::realm) fn levels(pid: u32) -> u32 {
    let status = inject::proc_file(pid, "status").unwrap_or_default();
    inject::status_field(&status, "NSpid").map_or(0, |ids| ids.split_whitespace().count() as u32)
}
