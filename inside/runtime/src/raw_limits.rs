//! A program sets and asks its limit of address space as if ring3 were not there ([`ring3_layout::limit`]).

use ring3_layout::limit::{INFINITE, RLIMIT_AS, before as before_raised, raised};
use ring3_uapi::nr;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_memory::{read_own, write_own};
use crate::raw_system::{may_call, syscall, syscall0};

const EFAULT: i64 = 14;
/// `struct rlimit64`: the soft and the hard limit.
type Limits = [u64; 2];

/// A call that sets or asks a limit is made here, if it is about the process's own address space; its result.
pub(crate) fn before(base: u64, regs: &PtRegs, number: i64) -> Option<i64> {
    let (resource, pid, new, old) = match number {
        nr::GETRLIMIT => (regs.rdi, 0, 0, regs.rsi),
        nr::SETRLIMIT => (regs.rdi, 0, regs.rsi, 0),
        nr::PRLIMIT64 => (regs.rsi, regs.rdi, regs.rdx, regs.r10),
        _ => return None,
    };
    if resource as u32 == RLIMIT_AS { of_address_space(base, pid as u32, new, old) } else { None }
}

#[cold]
#[inline(never)]
fn of_address_space(base: u64, pid: u32, new: u64, old: u64) -> Option<i64> {
    let is_own = pid == 0 || i64::from(pid) == syscall0(nr::GETPID);
    // (What the kernel refuses for its arguments it refuses itself.)
    if !is_own || !may_call(base, nr::PRLIMIT64) || new == 0 && old == 0 {
        return None;
    }
    let mut now: Limits = [0; 2];
    // SAFETY: the kernel writes the two words.
    if unsafe { syscall(nr::PRLIMIT64, [0, u64::from(RLIMIT_AS), 0, &raw mut now as u64, 0, 0]) } != 0 {
        return None;
    }
    let own = now.map(|limit| before_raised(limit).unwrap_or(limit));
    if new != 0 {
        let mut wanted: Limits = [0; 2];
        // SAFETY: there is room for two words; the address may be any.
        if unsafe { read_own(&raw mut wanted as u64, new, 16) }.is_err() {
            return Some(-EFAULT);
        }
        let mut set = wanted.map(raised);
        // What would be a lower limit natively must not ask for a higher one, which the kernel may refuse.
        if wanted[1] <= own[1] && now[1] != INFINITE {
            set[1] = set[1].min(now[1]);
            set[0] = set[0].min(if wanted[0] <= wanted[1] { set[1] } else { INFINITE });
        }
        // SAFETY: the kernel reads the two words.
        let result = unsafe { syscall(nr::PRLIMIT64, [0, u64::from(RLIMIT_AS), &raw const set as u64, 0, 0, 0]) };
        if result != 0 {
            return Some(result);
        }
    }
    // SAFETY: the two words are there; the address may be any.
    if old != 0 && unsafe { write_own(old, &raw const own as u64, 16) }.is_err() {
        return Some(-EFAULT);
    }
    Some(0)
}
