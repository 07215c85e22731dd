//! The beginning and the end of a call of a routine in which threads are cancelled (musl, glibc since 2.41).
//!
//! The routine makes the system call itself, so a signal handler finds a thread there as without ring3. If the handler resumes
//! the thread elsewhere, the call is shown as ended. If the call is going to be made again, its new beginning is shown before the
//! handler returns to it, because the thread does not pass the routine's caller again.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use ring3_layout::cancellation::slot;
use ring3_layout::region::{REGION_BYTES, STATE_OFFSET};
use ring3_layout::syscall::{CALLS_MAX, Call, NO_TRAMPOLINE, SYSCALL_BYTES};
use ring3_layout::thread::{StateHeader, ThreadBlock};
use ring3_uapi::ptrace::PtRegs;

use crate::raw_request::control;
use crate::raw_sud;
use crate::raw_syscalls::{
    ERESTARTSYS, block_of, end_abandoned, interrupted, is_wanted, place_at, pop, push, show_beginning, show_end,
    sigframe, site, tables,
};

/// What `rax` is while a call runs (`-ENOSYS`).
const UNDER_WAY: u64 = (-38i64) as u64;
/// Bytes of a routine up to its `syscall` instruction, at most.
const ROUTINE_BYTES_MAX: u64 = 64;

/// The counter of the calls made with this stack pointer.
fn awaited(base: u64, sp: u64) -> &'static AtomicU32 {
    // SAFETY: the state block is mapped with the region; its header's counters are atomics.
    let counters = unsafe { &(*((base + STATE_OFFSET) as *const StateHeader)).awaited };
    &counters[slot(sp) % counters.len()]
}

/// A routine is about to be called. `regs` are the thread's registers as they will be at the call that it makes. Whether that
/// is to be made.
///
/// # Safety
/// Called by the near stub of the site with this index: `regs` are valid registers, and the stack is aligned.
pub unsafe fn enter(base: u64, regs: *mut PtRegs, index: u32) -> bool {
    // SAFETY: the caller's promise.
    let regs = unsafe { &mut *regs };
    let number = i64::from(regs.orig_rax as i32);
    place_at(base, regs, index);
    // (SUD would catch what the routine does.)
    let uses_sud = raw_sud::is_armed(base);
    if control(base).retired.load(Relaxed) != 0 || !uses_sud && !is_wanted(base, number) {
        return true;
    }
    let Some(tb) = block_of(base, regs) else { return true };
    // SAFETY: the caller's promise.
    unsafe { end_abandoned(base, tb, regs) };
    push(tb, (tb.next_call, tb.first_call), regs.rsp, number, NO_TRAMPOLINE);
    if let Some(call) = tb.calls.get_mut(tb.next_call.wrapping_sub(1) as usize % CALLS_MAX) {
        (call.routine, call.returns_restored) = (index + 1, tables(base).returns_restored.load(Acquire));
    }
    awaited(base, regs.rsp).fetch_add(1, Relaxed);
    // SAFETY: the caller's promise.
    let Some(result) = (unsafe { show_beginning(base, tb, regs, number) }) else {
        if uses_sud {
            raw_sud::suspend(base, tb);
        }
        return true;
    };
    is_over(base, regs.rsp);
    pop(tb, regs.rsp, Some(number), false);
    regs.rax = result;
    // SAFETY: the caller's promise.
    unsafe { show_end(base, tb, regs, number) };
    false
}

/// A routine has returned. `regs` are the thread's registers, as they were behind the call.
///
/// # Safety
/// As for `enter`.
pub unsafe fn exit(base: u64, regs: *mut PtRegs, index: u32) {
    // SAFETY: the caller's promise.
    let regs = unsafe { &mut *regs };
    place_at(base, regs, index);
    if control(base).retired.load(Relaxed) != 0 {
        return;
    }
    let Some(tb) = block_of(base, regs) else { return };
    raw_sud::resume(base, tb);
    let Some(call) = under_way(tb, regs.rsp) else { return };
    is_over(base, call.sp);
    let number = i64::from(call.number);
    pop(tb, call.sp, Some(number), false);
    if call.ended == 0 {
        // SAFETY: the caller's promise.
        unsafe { show_end(base, tb, regs, number) };
    }
}

/// The youngest call at this stack pointer, if a routine makes it.
fn under_way(tb: &ThreadBlock, sp: u64) -> Option<Call> {
    let at = |back: u32| tb.calls.get(tb.next_call.wrapping_sub(back) as usize % CALLS_MAX);
    (1..=CALLS_MAX as u32).filter_map(at).find(|call| call.sp == sp).filter(|call| call.routine != 0).copied()
}

/// The end of a call of a routine is awaited no more.
fn is_over(base: u64, sp: u64) {
    let _ = awaited(base, sp).fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
}

/// A call has been abandoned. Whether its end is of the past: the place was restored where it could have been seen.
pub(crate) fn is_past(base: u64, call: &Call) -> bool {
    if call.routine == 0 {
        return false;
    }
    is_over(base, call.sp);
    call.returns_restored != tables(base).returns_restored.load(Acquire)
}

/// A signal handler returns to an address outside of all trampolines. What it interrupted may be a call of a routine:
/// one that is made again ends and begins, one from which the handler takes the thread away ends.
///
/// # Safety
/// `regs` are those of the thread's signal frame at `frame`, where its `rcx` was this.
pub(crate) unsafe fn before_return(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, rcx: u64, frame: u64) {
    // (At the agent's end a call has begun that is not made yet.)
    if regs.rip.wrapping_sub(base) < REGION_BYTES {
        return;
    }
    let Some(call) = under_way(tb, regs.rsp) else { return };
    let (sp, number) = (call.sp, i64::from(call.number));
    let made_at = site(base, call.routine.wrapping_sub(1)).call;
    let after = made_at + SYSCALL_BYTES;
    let is_again = regs.rip == made_at && rcx == after;
    let is_before = made_at.wrapping_sub(regs.rip) <= ROUTINE_BYTES_MAX;
    if is_before && raw_sud::is_armed(base) {
        // (Since its calls went through trampolines, the handler is dispatched again.)
        raw_sud::suspend(base, tb);
    }
    if regs.rip == after || !is_again && is_before {
        return;
    }
    regs.rip = after;
    let begins = PtRegs { orig_rax: number as u64, rax: UNDER_WAY, rcx: after, ..*regs };
    if !is_again {
        is_over(base, sp);
        pop(tb, sp, Some(number), false);
    }
    if call.ended == 0 {
        regs.rax = if is_again { ERESTARTSYS } else { interrupted(number) } as u64;
        // SAFETY: valid registers.
        unsafe { show_end(base, tb, regs, number) };
    }
    if !is_again {
        return;
    }
    *regs = begins;
    // SAFETY: valid registers.
    let overridden = unsafe { show_beginning(base, tb, regs, number) };
    let set = |word: usize, value: u64| {
        // SAFETY: a word of the frame, which has been read, of this thread.
        unsafe { ((frame + word as u64 * 8) as *mut u64).write(value) };
    };
    // What comes before it is made does not find that it was.
    set(sigframe::RCX, 0);
    if let Some(result) = overridden {
        set(sigframe::RAX, result);
        set(sigframe::RIP, after);
    }
}
