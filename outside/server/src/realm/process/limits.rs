//! The limit of a target's address space: it gets room for what ring3 maps ([`ring3_layout::limit`]). Limits that the program sets
//! later the agent raises (`inside/runtime/src/raw_limits.rs`).

use ring3_layout::limit::{INFINITE, before, raised};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::raw_process::address_space_limits;

/// Sets each of the limits that is to be another one. Whoever must not raise the hard limit raises none.
fn change(pid: u32, change: impl Fn(u64) -> u64) {
    let Some(now) = address_space_limits(pid) else { return };
    let wanted = now.map(change);
    let finite = |limit: u64| Some(limit).filter(|limit| *limit != INFINITE);
    let new = Rlimit { current: finite(wanted[0]), maximum: finite(wanted[1]) };
    if let (true, Some(process)) = (wanted != now, Pid::from_raw(pid as i32)) {
        let _ = prlimit(Some(process), Resource::As, new);
    }
}

/// A process is about to become a target.
pub(in crate::realm) fn make_room(pid: u32) {
    change(pid, |limit| if before(limit).is_some() { limit } else { raised(limit) });
}

/// It is none any more.
pub(in crate::realm) fn take_back(pid: u32) {
    change(pid, |limit| before(limit).unwrap_or(limit));
}
