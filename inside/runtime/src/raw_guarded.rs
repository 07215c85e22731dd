//! Copies between memory that is there and memory that may not be, at the speed of a copy.
//!
//! While the agent handles the signals of faults ([`ring3_layout::sud::SudState::catches_faults`]), such memory is just
//! touched. A fault in `copy` is ours: the handler lets it return that it failed. A fault in other code of ours ends a
//! program's run (`raw_fault.rs`). All other faults are the process's own (`raw_actions.rs`).

use core::arch::{global_asm, naked_asm};
use core::sync::atomic::Ordering::Relaxed;

use crate::raw_actions::pass_on;
use crate::raw_fault::end_run;
use crate::raw_sud::{Context, Info, sud};

/// Room for the code of [`ring3_guarded_copy`], which is aligned to it.
const COPY_CODE_BYTES: u64 = 256;
/// From so many bytes on, `rep movsb` is the faster copy.
const STRING_FROM_BYTES: u64 = 256;

unsafe extern "sysv64" {
    /// Copies so many bytes from `source` to `target`; 0, or 1 if one of them cannot be touched.
    fn ring3_guarded_copy(target: u64, source: u64, bytes: u64) -> u64;
    /// The word at an address.
    fn ring3_guarded_word(address: u64) -> GuardedWord;
}

/// A word, which means nothing if `failed` is not 0.
#[repr(C)]
struct GuardedWord {
    failed: u64,
    word: u64,
}

// It must not touch the stack: where it goes on after a fault it finds the return address. The ends of what is copied overlap where
// its length is no power of two.
global_asm!(
    ".pushsection .text, \"ax\"",
    ".balign {room}",
    ".globl ring3_guarded_copy",
    ".hidden ring3_guarded_copy",
    ".type ring3_guarded_copy, @function",
    "ring3_guarded_copy:",
    "cmp rdx, {string}",
    "jae 5f",
    "cmp rdx, 8",
    "jb 3f",
    "lea rcx, [rdx - 8]",
    "xor eax, eax",
    "cmp rax, rcx",
    "jae 2f",
    "1: mov r8, [rsi + rax]",
    "mov [rdi + rax], r8",
    "add rax, 8",
    "cmp rax, rcx",
    "jb 1b",
    "2: mov r8, [rsi + rcx]",
    "mov [rdi + rcx], r8",
    "xor eax, eax",
    "ret",
    "3: cmp edx, 4",
    "jb 4f",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    "4: xor eax, eax",
    "test edx, edx",
    "jz 6f",
    "7: mov cl, [rsi + rax]",
    "mov [rdi + rax], cl",
    "inc eax",
    "cmp eax, edx",
    "jb 7b",
    "xor eax, eax",
    "6: ret",
    "5: mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".globl ring3_guarded_word",
    ".hidden ring3_guarded_word",
    "ring3_guarded_word:",
    "mov rdx, [rdi]",
    "xor eax, eax",
    "ret",
    ".globl ring3_guarded_copy_failed",
    ".hidden ring3_guarded_copy_failed",
    "ring3_guarded_copy_failed:",
    "mov eax, 1",
    "ret",
    ".balign {room}, 0xcc",
    ".size ring3_guarded_copy, . - ring3_guarded_copy",
    ".popsection",
    room = const COPY_CODE_BYTES,
    string = const STRING_FROM_BYTES,
);

#[unsafe(naked)]
extern "sysv64" fn copy_begins() -> u64 {
    naked_asm!("lea rax, [rip + ring3_guarded_copy]", "ret")
}

#[unsafe(naked)]
extern "sysv64" fn copy_failed() -> u64 {
    naked_asm!("lea rax, [rip + ring3_guarded_copy_failed]", "ret")
}

/// Whether memory that may not be there may be touched by [`copy`].
#[inline(always)]
pub(crate) fn may_fault(base: u64) -> bool {
    sud(base).catches_faults.load(Relaxed) != 0
}

/// Copies `bytes` bytes; false: not all of them are there. Some may have been copied.
///
/// # Safety
/// The running thread [`may_fault`]. Of `target` and `source`, one is memory that is there, and writing `target` harms nobody.
#[inline(always)]
pub(crate) unsafe fn copy(target: u64, source: u64, bytes: u64) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ring3_guarded_copy(target, source, bytes) == 0 }
}

/// The word at `address`, if it can be read.
///
/// # Safety
/// The running thread [`may_fault`].
#[inline(always)]
pub(crate) unsafe fn word(address: u64) -> Option<u64> {
    // SAFETY: the caller's promise.
    let found = unsafe { ring3_guarded_word(address) };
    (found.failed == 0).then_some(found.word)
}

/// A thread that is in the middle of a copy will not go on with it: it fails. Whether it was.
pub(crate) fn interrupt_copy(context: &mut Context) -> bool {
    let is_copying = context.rip().wrapping_sub(copy_begins()) < COPY_CODE_BYTES;
    if is_copying {
        context.set_rip(copy_failed());
    }
    is_copying
}

/// A SIGSEGV or SIGBUS has come. 0: the handler returns to `context`. Else it goes on as the process's own handler there.
///
/// # Safety
/// Called by the handler, with what the kernel gave it; `frame` is the word that it returns by.
pub unsafe fn faulted(base: u64, info: *const Info, context: *mut Context, frame: *mut u64) -> u64 {
    // SAFETY: the caller's promise.
    let info = unsafe { &*info };
    // SAFETY: the caller's promise.
    let context = unsafe { &mut *context };
    if info.is_forced() && (interrupt_copy(context) || end_run(base, info, context)) {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { pass_on(base, info, context, frame) }
}
