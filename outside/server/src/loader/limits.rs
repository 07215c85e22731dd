//! The limit of locked memory, which loaders raise before they make maps.
//!
//! Kernels before 5.11 charged the memory of maps against it, so most tools raise it, and some say that they failed if they may not.
//! Here maps are the server's memory. So a loader that may not raise its limit hears that it did; the limit stays what it is.

use ring3_uapi::Errno;

use super::{Caller, Outcome, Reply};

/// `setrlimit(2)` or `prlimit(2)` of `RLIMIT_MEMLOCK`. Mirrors the checks of kernel/sys.c:do_prlimit (v6.18).
pub(super) fn set(caller: &Caller<'_>) -> Reply {
    const LIMITS_BYTES: usize = 16;
    let is_prlimit = i64::from(caller.call.number) == libc::SYS_prlimit64;
    let (pid, new, old) =
        if is_prlimit { (caller.arg(0) as i32, caller.arg(2), caller.arg(3)) } else { (0, caller.arg(1), 0) };
    let own = super::raw_seccomp::leader(caller.call.tid);
    if pid != 0 && u32::try_from(pid) != Ok(own) {
        return Ok(Outcome::Continue);
    }
    let wanted = caller.read(new, LIMITS_BYTES)?;
    let word = |at: usize| u64::from_le_bytes(wanted[at..at + 8].try_into().expect("8 bytes"));
    let present = present(own).ok_or(Errno::ESRCH)?;
    // What the kernel allows, or finds wrong, is its own matter.
    let may_raise = || Ok::<bool, Errno>(caller.rights()?.has_resources() && is_initial_namespace(own));
    if word(8) <= present[1] || word(0) > word(8) || may_raise()? {
        return Ok(Outcome::Continue);
    }
    if old != 0 {
        caller.write(old, &present.iter().flat_map(|limit| limit.to_le_bytes()).collect::<Vec<u8>>())?;
    }
    Ok(Outcome::Value(0))
}

/// The limits of a process, the soft and the hard one.
fn present(pid: u32) -> Option<[u64; 2]> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let mut words = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?.split_ascii_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    Some([limit()?, limit()?])
}

/// Whether capabilities of a process count for limits: only those in the first user namespace do.
fn is_initial_namespace(pid: u32) -> bool {
    let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}
