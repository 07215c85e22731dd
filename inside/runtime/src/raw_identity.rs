//! The name and the user of the running thread, which programs ask for often and which seldom change.
//!
//! The kernel is asked once in [`KEPT_NS`], since another process may write a thread's name (`/proc/PID/comm`). What the thread
//! itself does counts at once: the calls that change its name or its user are seen ([`changes`]).

use ring3_layout::syscall::IDENTITY_CHANGERS;
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_helpers::{coarse_ns, comm};
use crate::raw_net::is_borrower;
use crate::raw_system::{SYS_GETGID, SYS_GETUID, syscall0};
use crate::raw_thread::current;

/// How long an answer of the kernel holds. The clock that is looked at goes on in steps of up to 10 ms.
const KEPT_NS: u64 = 10_000_000;
const SYS_PRCTL: i64 = 157;
const PR_SET_NAME: u64 = 15;

/// Now, and until when what the kernel says now may be remembered; `None`: not at all.
fn times(tb: &ThreadBlock) -> Option<(u64, u64)> {
    // (What a `vfork` child becomes is not remembered of the thread whose block it uses.)
    if is_borrower(tb) {
        return None;
    }
    let now = coarse_ns(tb)?;
    Some((now, if now < tb.changes_until { 0 } else { now + KEPT_NS }))
}

/// The thread's name, zero-padded.
pub(crate) fn comm_of(tb: &mut ThreadBlock) -> [u64; 2] {
    let Some((now, until)) = times(tb) else { return comm() };
    if now >= tb.comm_until {
        // (A handler that comes in between and finds it finds both words.)
        tb.comm_until = 0;
        tb.comm = comm();
        tb.comm_until = until;
    }
    tb.comm
}

fn uid_gid() -> u64 {
    let (uid, gid) = (syscall0(SYS_GETUID), syscall0(SYS_GETGID));
    (gid as u64) << 32 | u64::from(uid as u32)
}

/// Its group and user, as `bpf_get_current_uid_gid` returns them.
pub(crate) fn uid_gid_of(tb: &mut ThreadBlock) -> u64 {
    let Some((now, until)) = times(tb) else { return uid_gid() };
    if now >= tb.uid_gid_until {
        tb.uid_gid_until = 0;
        tb.uid_gid = uid_gid();
        tb.uid_gid_until = until;
    }
    tb.uid_gid
}

/// A call begins. If it is one that changes the thread's name or user, nothing of that is remembered until it has been made.
#[inline(never)]
pub(crate) fn changes(base: u64, regs: &PtRegs, number: i64) {
    let names = number == SYS_PRCTL && regs.rdi == PR_SET_NAME;
    if !names && !IDENTITY_CHANGERS.iter().any(|changer| i64::from(*changer) == number) {
        return;
    }
    // SAFETY: the running thread's own block, or null.
    if let Some(tb) = unsafe { current(base).as_mut() } {
        let now = coarse_ns(tb).unwrap_or(0);
        tb.changes_until = now + KEPT_NS;
        (tb.comm_until, tb.uid_gid_until) = (0, 0);
    }
}
