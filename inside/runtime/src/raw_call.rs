//! Runs of programs that the process itself asks for: the application hosts them (docs/EXTENSIONS.md).
//!
//! A call names a word that holds the address of an attachment. The word is read after the guard is set. So whoever clears it,
//! makes all CPUs see that (membarrier(2)) and then finds no guard set with this attachment, knows that the program does not run.

use core::hint::cold_path;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, compiler_fence};

use ring3_layout::control::{ATTACHMENT_CPU_SLOT, ATTACHMENT_FUEL, Attachment, Called, called};
use ring3_layout::thread::ThreadBlock;

use crate::raw_dispatch::{abandoned_by_longjmp, run_guarded, run_here};
use crate::raw_signals::send_wanted;
use crate::raw_thread::{find, known};

/// Runs a program once on a context.
///
/// # Safety
/// `slot` holds 0 or the address of an attachment, which names a compiled, verified program of the region at `base`; `context` is
/// one that the program may have.
#[inline(always)]
pub unsafe fn call(base: u64, context: u64, slot: &AtomicU64) -> Called {
    let mut block = known(base);
    if block.is_null() {
        cold_path();
        block = find(base);
    }
    // SAFETY: the running thread's own block, or null.
    let Some(tb) = (unsafe { block.as_mut() }) else { return Called { result: 0, status: called::NO_BLOCK } };
    // (What programs lie on is below.)
    let here = 0u8;
    let here = &raw const here as u64;
    if tb.guard.load(Relaxed) != 0 {
        // SAFETY: as for this function.
        return unsafe { call_within(base, tb, here, context, slot) };
    }
    tb.guard.store(here, Relaxed);
    // SAFETY: as for this function.
    let called = unsafe { run(tb, context, slot) };
    tb.guard.store(0, Relaxed);
    // SAFETY: the running thread's own block, whose program has just run.
    unsafe { send_wanted(block) };
    called
}

/// A call while the guard is set: a function of the application that a program has called, or a signal handler in a run, calls
/// another program; or a run was left by a `longjmp`.
///
/// # Safety
/// As for `call`; `tb` is the running thread's block.
#[cold]
unsafe fn call_within(base: u64, tb: &mut ThreadBlock, here: u64, context: u64, slot: &AtomicU64) -> Called {
    let left = |tb: &mut ThreadBlock| abandoned_by_longjmp(base, tb, here);
    let ran = run_guarded(tb, left, |tb| {
        tb.guard.store(here, Relaxed);
        // SAFETY: as for this function.
        unsafe { run(tb, context, slot) }
    });
    ran.unwrap_or(Called { result: 0, status: called::TOO_DEEP })
}

/// # Safety
/// As for `call`; the guard is set.
#[inline(always)]
unsafe fn run(tb: &mut ThreadBlock, context: u64, slot: &AtomicU64) -> Called {
    compiler_fence(Acquire);
    let attachment = slot.load(Acquire) as *const Attachment;
    // SAFETY: null, or an attachment, which stays while this thread's guard is set.
    let Some(attachment) = (unsafe { attachment.as_ref() }) else {
        return Called { result: 0, status: called::UNLOADED };
    };
    let called = if attachment.flags & (ATTACHMENT_CPU_SLOT | ATTACHMENT_FUEL) == 0 {
        // SAFETY: the caller's promise.
        Called { result: unsafe { run_here(tb, attachment, context) }, status: called::RAN }
    } else {
        // SAFETY: the caller's promise.
        unsafe { run_more(tb, attachment, context) }
    };
    compiler_fence(Release);
    called
}

/// Runs a program that needs a CPU's slot, or counts rounds. (Apart: what others do needs fewer registers.)
///
/// # Safety
/// As for `run_here`.
#[inline(never)]
unsafe fn run_more(tb: &mut ThreadBlock, attachment: &Attachment, context: u64) -> Called {
    // SAFETY: the caller's promise.
    let result = unsafe { run_here(tb, attachment, context) };
    let is_dry = attachment.flags & ATTACHMENT_FUEL != 0 && tb.fuel < 0;
    Called { result, status: if is_dry { called::OUT_OF_FUEL } else { called::RAN } }
}
