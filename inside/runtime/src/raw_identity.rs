//! The name, the user and the cgroup of the running thread, which programs ask for often and which seldom change.
//!
//! The kernel is asked once in [`KEPT_NS`], since another process may write a thread's name (`/proc/PID/comm`) or move it into
//! another cgroup. What the thread itself does counts at once: the calls that change its name or its user are seen ([`changes`]).
//! Its cgroup it changes by writing a file, as others do.

use ring3_layout::syscall::IDENTITY_CHANGERS;
use ring3_layout::thread::{Remembered, ThreadBlock};
use ring3_uapi::nr;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_cgroup::{ancestor_id, cgroup_id};
use crate::raw_clock::coarse_ns;
use crate::raw_helpers::comm;
use crate::raw_proc::Task;
use crate::raw_sampled::sampled;
use crate::raw_sud::is_borrower;
use crate::raw_system::syscall0;
use crate::raw_thread::current;

/// How long an answer of the kernel holds. The clock that is looked at goes on in steps of up to 10 ms.
const KEPT_NS: u64 = 10_000_000;
const PR_SET_NAME: u64 = 15;

/// What the kernel says of the running thread: remembered at `place`, or asked.
fn remembered<T: Copy>(
    tb: &mut ThreadBlock,
    place: fn(&mut ThreadBlock) -> &mut Remembered<T>,
    ask: impl FnOnce() -> T,
) -> T {
    // (What a `vfork` child becomes is not remembered of the thread whose block it uses.)
    let Some(now) = coarse_ns(tb).filter(|_| !is_borrower(tb)) else { return ask() };
    let until = if now < tb.changes_until { 0 } else { now + KEPT_NS };
    let known = place(tb);
    if now >= known.until {
        // (A handler that comes in between asks for itself.)
        known.until = 0;
        known.value = ask();
        known.until = until;
    }
    known.value
}

/// The thread's name, zero-padded.
pub(crate) fn comm_of(tb: &mut ThreadBlock) -> [u64; 2] {
    if let Some(sampled) = sampled(tb) {
        return sampled.comm;
    }
    remembered(tb, |tb| &mut tb.comm, comm)
}

/// Its group and user, as `bpf_get_current_uid_gid` returns them.
pub(crate) fn uid_gid_of(tb: &mut ThreadBlock) -> u64 {
    if let Some(sampled) = sampled(tb) {
        return sampled.uid_gid;
    }
    remembered(
        tb,
        |tb| &mut tb.uid_gid,
        || {
            let (uid, gid) = (syscall0(nr::GETUID), syscall0(nr::GETGID));
            (gid as u64) << 32 | u64::from(uid as u32)
        },
    )
}

/// The id of its cgroup, as `bpf_get_current_cgroup_id` returns it.
pub(crate) fn cgroup_of(tb: &mut ThreadBlock) -> u64 {
    remembered(tb, |tb| &mut tb.cgroup, cgroup_id)
}

/// The id of its cgroup's ancestor at a level, as `bpf_get_current_ancestor_cgroup_id` returns it.
pub(crate) fn ancestor_of(tb: &mut ThreadBlock, level: u32) -> u64 {
    let level = u64::from(level);
    if tb.ancestor.value[0] != level {
        tb.ancestor.until = 0;
    }
    remembered(tb, |tb| &mut tb.ancestor, || [level, ancestor_id(level as u32)])[1]
}

/// Device and inode of its pid namespace; zeros if they are not known. A thread has the same one all its life.
pub(crate) fn pid_namespace_of(tb: &mut ThreadBlock) -> [u64; 2] {
    if tb.pid_namespace == [0; 2] || is_borrower(tb) {
        let found = Task::running().pid_namespace().unwrap_or_default();
        if is_borrower(tb) {
            return found;
        }
        tb.pid_namespace = found;
    }
    tb.pid_namespace
}

/// A call begins. If it is one that changes the thread's name or user, nothing of that is remembered until it has been made.
#[inline(never)]
pub(crate) fn changes(base: u64, regs: &PtRegs, number: i64) {
    let names = number == nr::PRCTL && regs.rdi == PR_SET_NAME;
    if !names && !IDENTITY_CHANGERS.contains(&number) {
        return;
    }
    // SAFETY: the running thread's own block, or null.
    if let Some(tb) = unsafe { current(base).as_mut() } {
        let now = coarse_ns(tb).unwrap_or(0);
        tb.changes_until = now + KEPT_NS;
        (tb.comm.until, tb.uid_gid.until) = (0, 0);
    }
}
