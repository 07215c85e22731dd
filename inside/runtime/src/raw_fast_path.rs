//! The fast path of traced system calls: the agent has to run one program and nothing else. Nearly all calls take it.
//!
//! The server says which calls these are ([`Subscribers::enter_only`]). Everything else (programs that run already, a
//! call under way, a thread that is not known yet) is left to the slow path in `raw_syscalls`, which does all that is
//! done here, too.
//!
//! [`begin`], [`end`] and [`ran`] are leaf functions, so they use only registers that functions need not preserve; a test of the
//! image checks this. They are parts of one pass of a thread through the agent, and lead from one to the next by jumps
//! (`inside/agent/src/raw_syscall_entry.rs`).

use core::arch::asm;
use core::hint::cold_path;
use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::control::{
    ATTACHMENT_ALL_REGISTERS, ATTACHMENT_CPU_SLOT, ATTACHMENT_RAW, ATTACHMENT_SIGNALS, Attachment,
};
use ring3_layout::syscall::{CALLS_MAX, Subscribers};
use ring3_layout::thread::ThreadBlock;

use crate::raw_dispatch::{is_for, run_here};
use crate::raw_request::control;
use crate::raw_syscalls::{CallFrame, address_of_unawaited, enter_slow, exit_slow, push, tables};
use crate::raw_thread::known;
use crate::{raw_signals, raw_slot};

/// What is to be done next.
#[derive(Debug)]
pub enum Next {
    /// The slow path must handle this call; nothing has been done yet.
    SlowPath,
    /// The thread continues.
    Leave,
    /// The program at `code` is to be run; then [`ran`].
    Run {
        /// Its address.
        code: u64,
        /// Address of the running thread's block, whose guard is set.
        block: u64,
    },
    /// The program is to be run by [`run`].
    RunOtherwise {
        /// Address of the [`Attachment`].
        attachment: u64,
        /// Address of the running thread's block, whose guard is set.
        block: u64,
    },
}

/// A system call begins. `frame` lies on the thread's stack, and says where a call is made whose end is wanted.
///
/// # Safety
/// As for `enter_slow`.
#[inline(always)]
pub unsafe fn begin(base: u64, frame: &mut CallFrame, passed: u32) -> Next {
    // SAFETY: the running thread's own block, or null; a signal handler that uses it too finds the guard set.
    let Some(tb) = (unsafe { known(base).as_mut() }) else {
        cold_path();
        return Next::SlowPath;
    };
    let at = tb.next_call;
    if tb.guard.load(Relaxed) != 0 || tb.first_call != at {
        cold_path();
        return Next::SlowPath;
    }
    let number = u64::from(frame.rax as u32);
    guard(tb, frame);
    // Looked up behind the guard, which keeps what is found there.
    let Some((subscribers, only)) = only_subscriber(base, number, |subscribers| &subscribers.enter_only) else {
        release(tb);
        cold_path();
        return Next::SlowPath;
    };
    if subscribers.exit.load(Acquire) != 0 {
        push(tb, (at, at), frame.sp(), number as i64, passed);
    } else {
        cold_path();
        frame.leave = address_of_unawaited(base, passed);
    }
    // SAFETY: what the table has.
    let Some(attachment) = (unsafe { wanted(tb, only) }) else { return nobody(tb) };
    frame.begun[1] = number;
    next(base, tb, attachment, || {
        keep(frame);
        frame.complete(base, passed, None);
    })
}

/// A system call has ended. `frame` lies on the thread's stack, and says where the thread continues.
///
/// # Safety
/// As for `exit_slow`.
#[inline(always)]
pub unsafe fn end(base: u64, frame: &mut CallFrame, passed: u32) -> Next {
    const EINTR: u64 = (-4i64) as u64;
    // SAFETY: the running thread's own block, or null; a signal handler that uses it too finds the guard set.
    let Some(tb) = (unsafe { known(base).as_mut() }) else {
        cold_path();
        return Next::SlowPath;
    };
    let at = tb.next_call.wrapping_sub(1);
    let Some(call) = tb.calls.get(at as usize % CALLS_MAX) else {
        cold_path();
        return Next::SlowPath;
    };
    let number = i64::from(call.number) as u64;
    if call.sp != frame.sp() || call.trampoline != passed || frame.rax == EINTR {
        cold_path();
        return Next::SlowPath;
    }
    if tb.first_call != at || call.first_call != at || call.ended != 0 || tb.guard.load(Relaxed) != 0 {
        cold_path();
        return Next::SlowPath;
    }
    guard(tb, frame);
    let Some((_, only)) = only_subscriber(base, number, |subscribers| &subscribers.exit_only) else {
        release(tb);
        cold_path();
        return Next::SlowPath;
    };
    if let Some(call) = tb.calls.get_mut(at as usize % CALLS_MAX) {
        call.sp = 0;
    }
    compiler_fence(Release);
    tb.next_call = at;
    // SAFETY: what the table has.
    let Some(attachment) = (unsafe { wanted(tb, only) }) else { return nobody(tb) };
    let result = frame.rax;
    (frame.ended[1], frame.ended[2]) = (number, result);
    if attachment.flags & ATTACHMENT_RAW != 0 {
        frame.ended[1] = result;
    }
    next(base, tb, attachment, || {
        keep(frame);
        frame.complete(base, passed, Some(number));
    })
}

/// The only program has run: its CPU slot is given back, and the hit is counted.
///
/// # Safety
/// `tb` is the running thread's own.
#[inline(always)]
pub unsafe fn ran(base: u64, tb: &mut ThreadBlock) {
    if tb.cpu_slot != 0 {
        raw_slot::give(base, tb);
    }
    // (`raw_dispatch::hit`, whose place the server has looked up.)
    let hits = (&raw mut *tb as u64 + tables(base).hits_at.load(Relaxed)) as *mut u64;
    // SAFETY: the server wrote where in a block its counter of the hook is.
    let hits = unsafe { &mut *hits };
    *hits = hits.wrapping_add(1);
    release(tb);
}

/// Runs the program of an attachment, with its context.
///
/// # Safety
/// As [`Next::RunOtherwise`] says.
pub unsafe fn run(base: u64, tb: &mut ThreadBlock, attachment: &Attachment, context: u64) {
    // SAFETY: the caller's promise.
    unsafe { run_here(tb, attachment, context) };
    // SAFETY: the caller's promise.
    unsafe { ran(base, tb) };
    if tb.signals != 0 {
        // SAFETY: the caller's promise.
        unsafe { raw_signals::send_wanted(tb) };
    }
}

/// A system call begins for which the slow path may be needed.
///
/// # Safety
/// As for `begin`, which has done nothing.
pub unsafe fn begin_slow(base: u64, frame: &mut CallFrame, passed: u32) {
    frame.complete(base, passed, None);
    // SAFETY: the caller's promise.
    frame.leave = unsafe { enter_slow(base, &mut frame.regs, passed) };
    frame.rax = frame.regs.orig_rax;
}

/// A system call has ended for which the slow path may be needed.
///
/// # Safety
/// As for `end`, which has done nothing.
pub unsafe fn end_slow(base: u64, frame: &mut CallFrame, passed: u32) {
    frame.complete(base, passed, Some(0));
    // SAFETY: the caller's promise.
    frame.leave = unsafe { exit_slow(base, &mut frame.regs, passed) };
    frame.rax = frame.regs.rax;
}

#[inline(always)]
fn nobody(tb: &mut ThreadBlock) -> Next {
    cold_path();
    release(tb);
    Next::Leave
}

#[inline(always)]
fn guard(tb: &mut ThreadBlock, frame: &CallFrame) {
    tb.guard.store(frame.sp(), Relaxed);
    compiler_fence(Acquire);
}

#[inline(always)]
fn release(tb: &mut ThreadBlock) {
    compiler_fence(Release);
    tb.guard.store(0, Relaxed);
}

/// The entry of a call's number in the table, and its only subscriber; `None` if there is more to do.
#[inline(always)]
fn only_subscriber(
    base: u64,
    number: u64,
    end: fn(&'static Subscribers) -> &'static AtomicU64,
) -> Option<(&'static Subscribers, u64)> {
    let subscribers = tables(base).calls.get(number as usize)?;
    let only = end(subscribers).load(Acquire);
    if only == 0 || control(base).retired.load(Relaxed) != 0 {
        cold_path();
        return None;
    }
    Some((subscribers, only))
}

/// The attachment `only`, if it is for this process.
///
/// # Safety
/// `only` is from a table, looked up behind the guard.
#[inline(always)]
unsafe fn wanted(tb: &ThreadBlock, only: u64) -> Option<&'static Attachment> {
    // SAFETY: the caller's promise.
    let attachment = unsafe { &*(only as *const Attachment) };
    if !is_for(tb, attachment) {
        cold_path();
        return None;
    }
    Some(attachment)
}

/// Stores the registers that functions keep, as they are in the thread still: nothing here changes them.
#[inline(always)]
fn keep(frame: &mut CallFrame) {
    // SAFETY: the frame's registers have places for them.
    unsafe {
        asm!(
            "mov [rdi + {rbp}], rbp",
            "mov [rdi + {r12}], r12",
            "mov [rdi + {r13}], r13",
            "mov [rdi + {r14}], r14",
            "mov [rdi + {r15}], r15",
            rbp = const offset_of!(CallFrame, regs.rbp),
            r12 = const offset_of!(CallFrame, regs.r12),
            r13 = const offset_of!(CallFrame, regs.r13),
            r14 = const offset_of!(CallFrame, regs.r14),
            r15 = const offset_of!(CallFrame, regs.r15),
            in("rdi") &raw mut *frame,
            options(nostack, preserves_flags)
        );
    }
}

/// How the program of an attachment is run, for which all registers are to be `complete` if it looks at them.
#[inline(always)]
fn next(base: u64, tb: &mut ThreadBlock, attachment: &Attachment, complete: impl FnOnce()) -> Next {
    tb.attachment = &raw const *attachment as u64;
    let block = &raw const *tb as u64;
    // (Read once: for all that the compiler knows, what is stored could change them.)
    let flags = attachment.flags;
    if flags & ATTACHMENT_ALL_REGISTERS != 0 {
        complete();
    }
    if flags & (ATTACHMENT_CPU_SLOT | ATTACHMENT_SIGNALS) != 0
        && (flags & ATTACHMENT_SIGNALS != 0 || !raw_slot::take_at_once(base, tb))
    {
        cold_path();
        return Next::RunOtherwise { attachment: &raw const *attachment as u64, block };
    }
    Next::Run { code: attachment.code.load(Relaxed), block }
}
