//! System calls at which the agent has nothing to do but to run one program: nearly all.
//!
//! Which calls these are the server says ([`SyscallTables::enter_only`]). What else may come up (programs that run already, a
//! call under way, a thread that is not known yet) is left to `raw_syscalls`: whatever is done here, is done there too.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::control::{ATTACHMENT_ALL_REGISTERS, ATTACHMENT_RAW, Attachment, Hook};
use ring3_layout::syscall::{ALL_REGISTERS, CALLS_MAX, ONLY_NOBODY, OTHER_NUMBERS};
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_dispatch::{hit, is_for, run_one};
use crate::raw_net::net;
use crate::raw_request::control;
use crate::raw_syscalls::{FRAME_BYTES, call_address, has_end, place_at, push, site, tables};
use crate::raw_thread::known;

/// A call begins; `regs` lie on its caller's stack. Where it is made; `None`: nothing was done.
///
/// # Safety
/// As for `raw_syscalls::enter`.
#[inline(always)]
pub(crate) unsafe fn begin(base: u64, regs: &mut PtRegs, passed: u32) -> Option<u64> {
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
    let is_awaited = has_end(base, number as i64);
    if is_awaited {
        push(tb, regs.rsp, number as i64);
    }
    let address = call_address(base, passed, is_awaited);
    // SAFETY: the caller's promise; what the table has.
    if let Some(attachment) = unsafe { wanted(base, tb, regs, only, passed) } {
        let trace = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        // SAFETY: as above.
        unsafe { run(tb, regs, attachment, [number, number], trace) };
    }
    release(tb, before);
    Some(address)
}

/// A call has ended; `regs` lie on its caller's stack. False: nothing was done.
///
/// # Safety
/// As for `raw_syscalls::exit`.
#[inline(always)]
pub(crate) unsafe fn end(base: u64, regs: &mut PtRegs, passed: u32) -> bool {
    const EINTR: u64 = (-4i64) as u64;
    // SAFETY: the running thread's own block, or null; a signal handler that uses it too finds the guard set.
    let Some(tb) = (unsafe { known(base).as_mut() }) else { return false };
    let at = tb.next_call.wrapping_sub(1);
    let Some(call) = tb.calls.get_mut(at as usize % CALLS_MAX) else { return false };
    let number = call.number as u64;
    let known = site(base, passed).number;
    let is_it = call.sp == regs.rsp && (known < 0 || i64::from(known) == call.number);
    let is_plain = tb.first_call == at && call.first_call == at && call.ended == 0;
    if !is_it || !is_plain || tb.guard.load(Relaxed) != 0 || regs.rax == EINTR {
        return false;
    }
    let before = guard(tb, regs);
    let only = only(base, &tables(base).exit_only, number);
    if only == 0 {
        release(tb, before);
        return false;
    }
    if let Some(call) = tb.calls.get_mut(at as usize % CALLS_MAX) {
        call.sp = 0;
    }
    compiler_fence(Release);
    tb.next_call = at;
    regs.orig_rax = number;
    // SAFETY: the caller's promise; what the table has.
    if let Some(attachment) = unsafe { wanted(base, tb, regs, only, passed) } {
        // SAFETY: as above.
        unsafe { run(tb, regs, attachment, [regs.rax, number], [regs.rax, 0, 0, 0, 0, 0]) };
    }
    release(tb, before);
    true
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

/// The attachment `only`, if that is one, and for this process, and finds the registers that its program needs: those may have
/// been stored before it was there.
///
/// # Safety
/// `only` is from a table, looked up behind the guard.
#[inline(always)]
unsafe fn wanted(
    base: u64,
    tb: &mut ThreadBlock,
    regs: &mut PtRegs,
    only: u64,
    passed: u32,
) -> Option<&'static Attachment> {
    if only == ONLY_NOBODY {
        return None;
    }
    // SAFETY: the caller's promise.
    let attachment = unsafe { &*(only as *const Attachment) };
    if !is_for(tb, attachment) {
        return None;
    }
    if attachment.flags & ATTACHMENT_ALL_REGISTERS != 0 {
        if passed & ALL_REGISTERS == 0 {
            return None;
        }
        place_at(base, regs, passed);
    }
    tb.hook = tables(base).hook.load(Relaxed);
    Some(attachment)
}

/// Runs the program of an attachment. `raw` is what a raw tracepoint has, and the number; `trace` what a tracepoint has behind that.
///
/// # Safety
/// The attachment is that of a system call, and `regs` are valid registers.
#[inline(always)]
unsafe fn run(tb: &mut ThreadBlock, regs: &mut PtRegs, attachment: &Attachment, raw: [u64; 2], trace: [u64; 6]) {
    let regs = &raw mut *regs as u64;
    if attachment.flags & ATTACHMENT_RAW != 0 {
        let context = [regs, raw[0]];
        // SAFETY: the server wrote the address of a compiled, verified program for this context.
        unsafe { run_one(tb, attachment, &raw const context as u64) };
    } else {
        let context = [regs, raw[1], trace[0], trace[1], trace[2], trace[3], trace[4], trace[5]];
        // SAFETY: the server wrote the address of a compiled, verified program for this context.
        unsafe { run_one(tb, attachment, &raw const context as u64) };
    }
    // SAFETY: the server wrote the address of a hook before the first attachment. To read it again spares a register.
    hit(tb, unsafe { &*(tb.hook as *const Hook) });
}
