//! System calls at which the agent has nothing to do but to run one program: nearly all.
//!
//! Which calls these are the server says ([`Seers::enter_only`]). What else may come up (programs that run already, a
//! call under way, a thread that is not known yet) is left to `raw_syscalls`: whatever is done here, is done there too.
//!
//! [`begin`] and [`end`] call nobody, and so keep no registers. The program that they find the gates' entry runs itself, and
//! then lets the guard go (`inside/agent/src/raw_syscall_entry.rs`).

use core::hint::cold_path;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::control::{ATTACHMENT_ALL_REGISTERS, ATTACHMENT_RAW, Attachment};
use ring3_layout::syscall::{ALL_REGISTERS, CALLS_MAX, ONLY_NOBODY, Seers};
use ring3_layout::thread::ThreadBlock;

use crate::raw_dispatch::is_for;
use crate::raw_net::net;
use crate::raw_request::control;
use crate::raw_syscalls::{CallFrame, FRAME_BYTES, address_of_unawaited, place_at, push, tables};
use crate::raw_thread::known;

/// What a call is about to be shown to. All 0: nothing has been done, and there is more to do than this.
#[repr(C)]
#[derive(Debug)]
pub struct Shown {
    /// Address of the [`Attachment`] whose program is to be run; 0: nobody's.
    pub attachment: u64,
    /// Address of the running thread's block, whose guard is set if there is an attachment.
    pub block: u64,
}

/// (All that leads here is put out of the way.)
#[inline(always)]
fn more_to_do() -> Shown {
    cold_path();
    Shown { attachment: 0, block: 0 }
}

/// A call begins; `frame` lies on its caller's stack, and says where calls are made whose end is wanted.
///
/// # Safety
/// As for `raw_syscalls::enter_closely`.
#[inline(always)]
pub unsafe fn begin(base: u64, frame: &mut CallFrame, passed: u32) -> Shown {
    // SAFETY: the running thread's own block, or null; a signal handler that uses it too finds the guard set.
    let Some(tb) = (unsafe { known(base).as_mut() }) else { return more_to_do() };
    let at = tb.next_call;
    if tb.guard.load(Relaxed) != 0 || tb.first_call != at {
        return more_to_do();
    }
    let number = u64::from(frame.regs.orig_rax as u32);
    guard(tb, frame);
    // Looked up behind the guard, which keeps what is found there.
    let Some((seers, only)) = plain(base, number, |seers| &seers.enter_only) else {
        release(tb, frame);
        return more_to_do();
    };
    if seers.exit.load(Acquire) != 0 {
        push(tb, (at, at), frame.regs.rsp, number as i64, passed);
    } else {
        cold_path();
        frame.leave = address_of_unawaited(base, passed);
    }
    // SAFETY: what the table has.
    let Some(attachment) = (unsafe { wanted(base, tb, frame, only, passed) }) else { return nobody(tb, frame) };
    frame.context[1] = number;
    if attachment.flags & ATTACHMENT_RAW == 0 {
        let regs = &frame.regs;
        frame.context[2..].copy_from_slice(&[regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9]);
    }
    shown(tb, attachment)
}

/// A call has ended; `frame` lies on its caller's stack, and says where it goes on.
///
/// # Safety
/// As for `raw_syscalls::exit_closely`.
#[inline(always)]
pub unsafe fn end(base: u64, frame: &mut CallFrame, passed: u32) -> Shown {
    const EINTR: u64 = (-4i64) as u64;
    // SAFETY: the running thread's own block, or null; a signal handler that uses it too finds the guard set.
    let Some(tb) = (unsafe { known(base).as_mut() }) else { return more_to_do() };
    let at = tb.next_call.wrapping_sub(1);
    let Some(call) = tb.calls.get(at as usize % CALLS_MAX) else { return more_to_do() };
    let number = i64::from(call.number) as u64;
    let is_it = call.sp == frame.regs.rsp && call.gate == passed;
    let is_first = tb.first_call == at && call.first_call == at;
    if !is_it || !is_first || call.ended != 0 || tb.guard.load(Relaxed) != 0 || frame.regs.rax == EINTR {
        return more_to_do();
    }
    guard(tb, frame);
    let Some((_, only)) = plain(base, number, |seers| &seers.exit_only) else {
        release(tb, frame);
        return more_to_do();
    };
    if let Some(call) = tb.calls.get_mut(at as usize % CALLS_MAX) {
        call.sp = 0;
    }
    compiler_fence(Release);
    tb.next_call = at;
    // SAFETY: what the table has.
    let Some(attachment) = (unsafe { wanted(base, tb, frame, only, passed) }) else { return nobody(tb, frame) };
    let result = frame.regs.rax;
    frame.regs.orig_rax = number;
    let is_raw = attachment.flags & ATTACHMENT_RAW != 0;
    frame.context[1] = if is_raw { result } else { number };
    frame.context[2] = result;
    shown(tb, attachment)
}

/// Sets the guard.
#[inline(always)]
fn guard(tb: &mut ThreadBlock, frame: &mut CallFrame) {
    frame.guard_sp = tb.guard_sp;
    tb.guard_sp = &raw const *frame as u64 + FRAME_BYTES;
    tb.guard.store(1, Relaxed);
    compiler_fence(Acquire);
}

/// Lets it go. What a handler interrupted that had not set its guard yet goes on with what was there.
#[inline(always)]
fn release(tb: &mut ThreadBlock, frame: &CallFrame) {
    tb.guard_sp = frame.guard_sp;
    compiler_fence(Release);
    tb.guard.store(0, Relaxed);
}

#[inline(always)]
fn nobody(tb: &mut ThreadBlock, frame: &CallFrame) -> Shown {
    cold_path();
    release(tb, frame);
    Shown { attachment: 0, block: &raw const *tb as u64 }
}

#[inline(always)]
fn shown(tb: &mut ThreadBlock, attachment: &Attachment) -> Shown {
    tb.attachment = &raw const *attachment as u64;
    Shown { attachment: tb.attachment, block: &raw const *tb as u64 }
}

/// The entry of a call, and who alone sees one end of it; nothing if there is more to be done.
#[inline(always)]
fn plain(base: u64, number: u64, end: fn(&'static Seers) -> &'static AtomicU64) -> Option<(&'static Seers, u64)> {
    let seers = tables(base).calls.get(number as usize)?;
    let only = end(seers).load(Acquire);
    // (With the net, there is more to be done.)
    let plain = control(base).retired.load(Relaxed) | net(base).armed.load(Relaxed) == 0;
    (plain && only != 0).then_some((seers, only))
}

/// The attachment `only`, if that is one, and for this process, and finds the registers that its program needs: those may have
/// been stored before it was there. What its context has in any case is there then.
///
/// # Safety
/// `only` is from a table, looked up behind the guard.
#[inline(always)]
unsafe fn wanted(
    base: u64,
    tb: &mut ThreadBlock,
    frame: &mut CallFrame,
    only: u64,
    passed: u32,
) -> Option<&'static Attachment> {
    if only == ONLY_NOBODY {
        cold_path();
        return None;
    }
    // SAFETY: the caller's promise.
    let attachment = unsafe { &*(only as *const Attachment) };
    if !is_for(tb, attachment) {
        cold_path();
        return None;
    }
    if attachment.flags & ATTACHMENT_ALL_REGISTERS != 0 {
        if passed & ALL_REGISTERS == 0 {
            return None;
        }
        place_at(base, &mut frame.regs, passed);
    }
    tb.hook = tables(base).hook.load(Relaxed);
    frame.context[0] = &raw const frame.regs as u64;
    Some(attachment)
}
