//! System calls at which the agent has nothing to do but to run one program: nearly all.
//!
//! Which calls these are the server says ([`SyscallTables::enter_only`]). What else may come up (programs that run already, a
//! call under way, a thread that is not known yet) is left to `raw_syscalls`: whatever is done here, is done there too.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::control::{ATTACHMENT_RAW, Attachment, Hook};
use ring3_layout::syscall::{CALLS_MAX, ONLY_NOBODY, OTHER_NUMBERS, SyscallSite};
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_dispatch::{hit, is_for, run_one};
use crate::raw_net::net;
use crate::raw_request::control;
use crate::raw_syscalls::{FRAME_BYTES, has_end, push, tables};
use crate::raw_thread::known;

/// A call begins; `regs` lie on its caller's stack. Whether its end is awaited; `None`: nothing was done.
///
/// # Safety
/// `regs` are valid registers.
#[inline(always)]
pub(crate) unsafe fn begin(base: u64, regs: &mut PtRegs) -> Option<bool> {
    // SAFETY: the running thread's own block, or null; a signal handler that uses it too finds the guard set.
    let tb = unsafe { known(base).as_mut() }?;
    if tb.guard.load(Relaxed) != 0 || tb.next_call != tb.first_call {
        return None;
    }
    let number = u64::from(regs.orig_rax as u32);
    let before = guard(tb, regs);
    // Looked up behind the guard, which keeps what is found there.
    let only = only(base, &tables(base).enter_only, number);
    if only == 0 {
        release(tb, before);
        return None;
    }
    let has_end = has_end(base, number as i64);
    if has_end {
        push(tb, regs.rsp, number as i64);
    }
    let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    // SAFETY: the caller's promise; what the table has.
    unsafe { run(base, tb, regs, only, [number, number], arguments) };
    release(tb, before);
    Some(has_end)
}

/// A call of this site, whatever its number, has ended; `regs` lie on its caller's stack. False: nothing was done.
///
/// # Safety
/// As for `begin`.
#[inline(always)]
pub(crate) unsafe fn end(base: u64, regs: &mut PtRegs, site: &SyscallSite) -> bool {
    const EINTR: u64 = (-4i64) as u64;
    // SAFETY: the running thread's own block, or null; a signal handler that uses it too finds the guard set.
    let Some(tb) = (unsafe { known(base).as_mut() }) else { return false };
    let at = tb.next_call.wrapping_sub(1);
    let Some(call) = tb.calls.get(at as usize % CALLS_MAX) else { return false };
    let number = call.number as u64;
    let is_it = call.sp == regs.rsp && (site.number < 0 || i64::from(site.number) == call.number);
    let is_plain = tb.first_call == at && call.first_call == at && call.ended == 0;
    if tb.guard.load(Relaxed) != 0 || !is_it || !is_plain || regs.rax == EINTR {
        return false;
    }
    let before = guard(tb, regs);
    let only = only(base, &tables(base).exit_only, number);
    if only != 0 {
        if let Some(call) = tb.calls.get_mut(at as usize % CALLS_MAX) {
            call.sp = 0;
        }
        compiler_fence(Release);
        tb.next_call = at;
        regs.orig_rax = number;
        let result = regs.rax;
        // SAFETY: the caller's promise; what the table has.
        unsafe { run(base, tb, regs, only, [result, number], [result, 0, 0, 0, 0, 0]) };
    }
    release(tb, before);
    only != 0
}

/// Sets the guard; the result is for [`release`].
#[inline(always)]
fn guard(tb: &mut ThreadBlock, regs: &PtRegs) -> u64 {
    let before = tb.guard_sp;
    tb.guard_sp = &raw const *regs as u64 + FRAME_BYTES;
    tb.guard.store(1, Relaxed);
    compiler_fence(Acquire);
    before
}

/// What a handler interrupted that had not set its guard yet goes on with what was there.
#[inline(always)]
fn release(tb: &mut ThreadBlock, before: u64) {
    tb.guard_sp = before;
    compiler_fence(Release);
    tb.guard.store(0, Relaxed);
}

/// The entry of a table for a call; 0 if there is more to be done.
#[inline(always)]
fn only(base: u64, table: &[AtomicU64; OTHER_NUMBERS + 1], number: u64) -> u64 {
    let only = table.get(number as usize).map_or(0, |only| only.load(Acquire));
    // (With the net, there is more to be done.)
    let plain = control(base).retired.load(Relaxed) | net(base).armed.load(Relaxed) == 0;
    if plain { only } else { 0 }
}

/// Runs the program of the attachment `only`, if that is one and for this process. `raw` is what a raw tracepoint has, and the
/// number; `values` what a tracepoint has behind that.
///
/// # Safety
/// `only` is from a table, looked up behind the guard, and `regs` are valid registers.
#[inline(always)]
unsafe fn run(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, only: u64, raw: [u64; 2], values: [u64; 6]) {
    if only == ONLY_NOBODY {
        return;
    }
    // SAFETY: the caller's promise.
    let attachment = unsafe { &*(only as *const Attachment) };
    if !is_for(tb, attachment) {
        return;
    }
    // SAFETY: the server wrote the address of a hook before the first attachment.
    let hook = unsafe { &*(tables(base).hook.load(Relaxed) as *const Hook) };
    tb.hook = &raw const *hook as u64;
    let regs = &raw mut *regs as u64;
    if attachment.flags & ATTACHMENT_RAW != 0 {
        let context = [regs, raw[0]];
        // SAFETY: the server wrote the address of a compiled, verified program for this context.
        unsafe { run_one(tb, attachment, &raw const context as u64) };
    } else {
        let context = [regs, raw[1], values[0], values[1], values[2], values[3], values[4], values[5]];
        // SAFETY: the server wrote the address of a compiled, verified program for this context.
        unsafe { run_one(tb, attachment, &raw const context as u64) };
    }
    hit(tb, hook);
}
