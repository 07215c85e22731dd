//! Clocks, also in threads that may not read the time stamp counter (TSC).
//!
//! `prctl(PR_SET_TSC, PR_TSC_SIGSEGV)` and `SECCOMP_MODE_STRICT` disable `rdtsc` in a thread and in what it creates, also across
//! `execve`; the instruction then raises SIGSEGV (arch/x86/kernel/process.c:disable_TSC, v6.18). The vDSO's `clock_gettime` executes
//! it for all but coarse clocks. So each block says whether its thread's TSC is disabled ([`ThreadBlock::tsc`]):
//!
//! - Before a thread first reads the counter it asks the kernel (`PR_GET_TSC`); also before it installs a filter, which may forbid
//!   to ask. That covers attached processes, new threads and children.
//! - A call that disables the TSC is noted before it is made, one that enables it after it was made.
//!
//! Such a thread asks the kernel for the time. If a filter forbids that, it uses `CLOCK_MONOTONIC_COARSE` of the vDSO, which reads
//! no counter. The clocks that have no coarse form are then at the distance from it that they had before.

use core::sync::atomic::Ordering::Relaxed;

use ring3_layout::thread::{TSC_DISABLED, TSC_ENABLED, ThreadBlock};
use ring3_uapi::nr;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_request::control;
use crate::raw_sud::{borrows_memory, filter_given, is_borrower};
use crate::raw_syscalls::block_of;
use crate::raw_system::{may_call, syscall, time_stamp};
use crate::raw_thread::state;

pub(crate) const CLOCK_MONOTONIC: u64 = 1;
pub(crate) const CLOCK_MONOTONIC_COARSE: u64 = 6;
pub(crate) const CLOCK_BOOTTIME: u64 = 7;
pub(crate) const CLOCK_TAI: u64 = 11;
const PR_GET_TSC: u64 = 25;
const PR_SET_TSC: u32 = 26;
/// include/uapi/linux/mman.h
const MREMAP_FIXED: u64 = 2;
const SECOND_NS: u64 = 1_000_000_000;

fn in_ns([seconds, nanoseconds]: [u64; 2]) -> u64 {
    seconds.wrapping_mul(SECOND_NS).wrapping_add(nanoseconds)
}

/// Time of a clock, ns, by the vDSO where there is one.
pub(crate) fn clock_ns(tb: &ThreadBlock, clock: u64) -> u64 {
    if tb.tsc.load(Relaxed) != TSC_ENABLED && !ask_if_unknown(tb) {
        return clock_without_tsc(tb, clock);
    }
    match vdso_clock_gettime(tb.region_base) {
        0 => kernel_clock_ns(clock).unwrap_or(0),
        function => vdso_clock_ns(function, clock),
    }
}

/// The kernel's ticks, which are counted from five minutes before an overflow of 32 bits on (`INITIAL_JIFFIES`,
/// include/linux/jiffies.h).
pub(crate) fn jiffies(tb: &ThreadBlock) -> u64 {
    const SECONDS_BEFORE: u64 = 300;
    let tick_ns = u64::from(control(tb.region_base).tick_ns).max(1);
    let ticks_per_second = (1_000_000_000 + tick_ns / 2) / tick_ns;
    (1 << 32) - SECONDS_BEFORE * ticks_per_second + clock_ns(tb, CLOCK_MONOTONIC_COARSE) / tick_ns
}

/// The address of the vDSO's function; 0: there is none.
#[inline(always)]
fn vdso_clock_gettime(base: u64) -> u64 {
    if state(base).vdso_is_gone.load(Relaxed) == 0 { control(base).vdso_clock_gettime } else { 0 }
}

/// A process may move or unmap its vDSO. Calls that do are noted before they are made, and those that map something else there, or
/// change its protection, before programs see their end.
fn note_vdso(base: u64, [from, bytes]: [u64; 2]) {
    let control = control(base);
    if from < control.vdso_end && from.saturating_add(bytes) > control.vdso_begin {
        state(base).vdso_is_gone.store(1, Relaxed);
    }
}

/// A call has ended.
#[inline(always)]
pub(crate) fn after(base: u64, regs: &PtRegs, number: i64) {
    match number {
        nr::MMAP => note_vdso(base, [regs.rax, regs.rsi]),
        nr::MPROTECT | nr::PKEY_MPROTECT => note_vdso(base, [regs.rdi, regs.rsi]),
        _ => {}
    }
}

/// Whether the running thread may read its TSC, whose state is not known to be enabled.
#[cold]
#[inline(never)]
fn ask_if_unknown(tb: &ThreadBlock) -> bool {
    tb.tsc.load(Relaxed) == 0 && ask(tb)
}

fn vdso_clock_ns(function: u64, clock: u64) -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: the server found the address of the vDSO's clock_gettime in this process.
    let call: extern "sysv64" fn(u64, u64) -> i32 = unsafe { core::mem::transmute(function) };
    call(clock, &raw mut time as u64);
    in_ns(time)
}

/// The same by the system call; `None`: it must not be made.
fn kernel_clock_ns(clock: u64) -> Option<u64> {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes a timespec, which `time` has room for.
    let result = unsafe { syscall(nr::CLOCK_GETTIME, [clock, &raw mut time as u64, 0, 0, 0, 0]) };
    (result == 0).then(|| in_ns(time))
}

#[cold]
#[inline(never)]
fn clock_without_tsc(tb: &ThreadBlock, clock: u64) -> u64 {
    let function = vdso_clock_gettime(tb.region_base);
    if clock != CLOCK_MONOTONIC_COARSE || function == 0 {
        if let Some(time) = kernel_clock_ns(clock) {
            return time;
        }
        if function == 0 {
            return 0;
        }
    }
    let state = state(tb.region_base);
    let ahead = match clock {
        CLOCK_BOOTTIME => state.boottime_ahead_ns.load(Relaxed),
        CLOCK_TAI => state.tai_ahead_ns.load(Relaxed),
        _ => 0,
    };
    vdso_clock_ns(function, CLOCK_MONOTONIC_COARSE).wrapping_add(ahead)
}

/// `CLOCK_MONOTONIC_COARSE`, ns; `None`: the kernel would have to be asked.
#[inline(always)]
pub(crate) fn coarse_ns(tb: &ThreadBlock) -> Option<u64> {
    match vdso_clock_gettime(tb.region_base) {
        0 => None,
        function => Some(vdso_clock_ns(function, CLOCK_MONOTONIC_COARSE)),
    }
}

/// `CLOCK_MONOTONIC`, ns.
pub(crate) fn monotonic_ns(tb: &ThreadBlock) -> u64 {
    clock_ns(tb, CLOCK_MONOTONIC)
}

/// The time stamp counter, or ns where it is disabled: goes on, and differs each time, mostly.
pub(crate) fn ticks(tb: &ThreadBlock) -> u64 {
    let is_readable = tb.tsc.load(Relaxed) == TSC_ENABLED || ask_if_unknown(tb);
    if is_readable { time_stamp() } else { monotonic_ns(tb) }
}

/// Finds out whether the running thread's TSC is enabled. If a filter forbids to ask, it is taken to be disabled, unless it is
/// known to be enabled in the process.
fn ask(tb: &ThreadBlock) -> bool {
    let base = tb.region_base;
    let mut mode = 0u32;
    // SAFETY: the kernel writes four bytes.
    let result = unsafe { syscall(nr::PRCTL, [PR_GET_TSC, &raw mut mode as u64, 0, 0, 0, 0]) };
    let of_process = &state(base).tsc;
    if result != 0 {
        mode = of_process.load(Relaxed);
    } else if mode == TSC_ENABLED {
        // (One in which it is disabled may create others.)
        let _ = of_process.compare_exchange(0, TSC_ENABLED, Relaxed, Relaxed);
    }
    if mode != TSC_ENABLED {
        note_disabled(tb);
    } else if !is_borrower(tb) {
        // (The creator of a `vfork` child does not take the child's word for its own counter.)
        tb.tsc.store(TSC_ENABLED, Relaxed);
    }
    mode == TSC_ENABLED
}

fn note_disabled(tb: &ThreadBlock) {
    let state = state(tb.region_base);
    let times = (kernel_clock_ns(CLOCK_MONOTONIC), kernel_clock_ns(CLOCK_BOOTTIME), kernel_clock_ns(CLOCK_TAI));
    if let (Some(monotonic), Some(boottime), Some(tai)) = times {
        state.boottime_ahead_ns.store(boottime.wrapping_sub(monotonic), Relaxed);
        state.tai_ahead_ns.store(tai.wrapping_sub(monotonic), Relaxed);
    }
    state.tsc.store(TSC_DISABLED, Relaxed);
    tb.tsc.store(TSC_DISABLED, Relaxed);
}

/// A call begins. If it disables the TSC, that is noted; if it enables it, it is made here, and this is the result.
/// (The kernel takes 32 bits of both arguments.)
#[inline(always)]
pub(crate) fn before(base: u64, regs: &PtRegs, number: i64) -> Option<i64> {
    match number {
        nr::PRCTL | nr::SECCOMP => before_change(base, regs, number),
        nr::MUNMAP | nr::MREMAP => {
            note_vdso(base, [regs.rdi, regs.rsi]);
            // (Where it is moved to, if that is given.)
            if number == nr::MREMAP && regs.r10 & MREMAP_FIXED != 0 {
                note_vdso(base, [regs.r8, regs.rdx]);
            }
            None
        }
        _ => None,
    }
}

#[cold]
#[inline(never)]
fn before_change(base: u64, regs: &PtRegs, number: i64) -> Option<i64> {
    let sets = number == nr::PRCTL && regs.rdi as u32 == PR_SET_TSC;
    let disables = match regs.rsi as u32 {
        TSC_DISABLED if sets => true,
        TSC_ENABLED if sets => return enable(base, regs),
        _ => filter_given(regs, number)? == 0,
    };
    let tb = block_of(base, regs)?;
    if !disables {
        ask_if_unknown(tb);
    } else if tb.tsc.load(Relaxed) != TSC_DISABLED {
        note_disabled(tb);
        // (It was in the other unit.)
        tb.slot_waits = 0;
    }
    None
}

fn enable(base: u64, regs: &PtRegs) -> Option<i64> {
    let tb = block_of(base, regs)?;
    // (A `vfork` child does not enable its creator's.)
    if tb.tsc.load(Relaxed) == TSC_ENABLED || borrows_memory(base, Some(tb)) || !may_call(base, nr::PRCTL) {
        return None;
    }
    // SAFETY: the call that the thread is about to make; it takes no address.
    let result = unsafe { syscall(nr::PRCTL, [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9]) };
    if result == 0 {
        tb.tsc.store(TSC_ENABLED, Relaxed);
        tb.slot_waits = 0;
    }
    Some(result)
}
