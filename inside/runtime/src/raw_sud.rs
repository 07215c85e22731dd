//! The SUD fallback: the kernel's syscall user dispatch (SUD) catches the calls that go through no syscall trampoline,
//! see [`ring3_layout::sud`].
//!
//! A thread that is dispatched and blocks SIGSYS is killed at such a call. So one law holds: *who blocks SIGSYS is not
//! dispatched*. Each call that changes the mask keeps it, and changes both with all signals blocked; so no handler sees one
//! without the other:
//!
//! - `rt_sigprocmask`, if it blocks SIGSYS or lets it come, is made here.
//! - `rt_sigreturn` is made as always, with all signals blocked before, if SIGSYS is blocked on one side only.
//! - What has a mask for its own time (`ppoll` ...) is made as always: SUD is off from before until after it, and no
//!   handler that runs meanwhile switches it on (`sud_off_until`).
//! - Handlers begin without us. So no action really has SIGSYS in its mask; that a process wants it there is remembered.
//!
//! Calls of a thread that is not dispatched are seen only if they go through a trampoline. The action of SIGSYS itself
//! is ours (`raw_actions.rs`); a SIGSYS that SUD did not raise is passed on.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::realm::request;
use ring3_layout::region::{STATE_OFFSET, SUD_OFFSET};
use ring3_layout::sud::{
    SIGSYS_BIT, SUD_ADDRESS_MASK, SUD_ALLOWED_BYTES, SUD_COPY_SHIFT, SUD_SLOTS, SUD_TRAMPOLINE_BYTES,
    SUD_TRAMPOLINES_OFFSET, SudState,
};
use ring3_layout::syscall::{
    AGENT_STACK_BYTES, CLONE_SYSCALLS, MASK_SETTERS, NO_TRAMPOLINE, Progress, SIGCANCEL, SYSCALL_BYTES,
};
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::nr;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_actions::{
    SIG_BLOCK, SIG_SETMASK, SIG_UNBLOCK, SIGNAL_SET_BYTES, change_mask, check_mask_of_call, forget_frame,
    mask_of_thread, never_blocked, on_rt_sigaction, pass_on, set_mask,
};
use crate::raw_memory::{read_own_word, write_own};
use crate::raw_request::{control, file};
use crate::raw_syscalls::{begin, block_of, end, own_ids};
use crate::raw_system::{syscall, syscall0};
use crate::raw_thread::{current, process};

const PROT_WRITE: u64 = 2;
const PROT_EXEC: u64 = 4;
const MAP_ANONYMOUS: u64 = 0x20;
const PR_SET_SECCOMP: u64 = 22;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const PR_SYS_DISPATCH_ON: u64 = 1;
/// `si_code` of a signal by which the kernel dispatches a call.
const SYS_USER_DISPATCH: u32 = 2;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const AUDIT_ARCH_I386: u32 = 0x4000_0003;
/// From here on are the numbers of another way to call.
const X32: i64 = 0x4000_0000;
const X32_NUMBERS: i64 = 1024;
const EFAULT: i64 = 14;
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const ERRNO_MAX: u64 = 4095;
/// A handler uses no more stack than this, mostly.
const HANDLER_STACK_BYTES: u64 = 0x1_0000;
/// `sigaction`, `rt_sigaction` of the 32-bit gate.
const SETS_ACTION_32: [i64; 2] = [67, 174];
/// Slots that are looked at for a place.
const PROBES_MAX: usize = 256;

pub(crate) fn sud(base: u64) -> &'static SudState {
    // SAFETY: it is mapped with the state block, and made of atomics.
    unsafe { &*((base + SUD_OFFSET) as *const SudState) }
}

pub(crate) fn is_armed(base: u64) -> bool {
    sud(base).armed.load(Acquire) != 0
}

/// Dispatches the running thread's calls from now on, or no longer.
pub(crate) fn switch(base: u64, on: bool) {
    let arguments = match on {
        true => [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, base, SUD_ALLOWED_BYTES, 0, 0],
        false => [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0],
    };
    // SAFETY: without a selector nothing is read or written.
    unsafe { syscall(nr::PRCTL, arguments) };
}

/// The running thread is dispatched if it may be. All is known of it: it has come from the kernel just now.
fn settle(base: u64, tb: &ThreadBlock) {
    let before = set_mask(u64::MAX);
    switch(base, is_armed(base) && before & SIGSYS_BIT == 0 && tb.sud_off_until == 0);
    set_mask(before);
}

/// The running thread is not dispatched until it comes to a trampoline whose call has subscribers, or returns from a
/// routine in which threads are cancelled.
pub(crate) fn suspend(base: u64, tb: &mut ThreadBlock) {
    switch(base, false);
    // (A handler that found it set before would clear it, and nobody would switch SUD on again.)
    compiler_fence(Release);
    tb.sud_suspended = 1;
}

/// It is again, if it may be.
pub(crate) fn resume(base: u64, tb: &mut ThreadBlock) {
    if tb.sud_suspended != 0 {
        tb.sud_suspended = 0;
        settle(base, tb);
    }
}

/// Whether the thread is of a process that shares its creator's memory until it executes something: the tables are not its own.
pub(crate) fn is_borrower(tb: &ThreadBlock) -> bool {
    tb.pid_tgid >> 32 != tb.generation
}

/// The same, asked of the kernel: nobody may have seen how the thread was made.
pub(crate) fn borrows_memory(base: u64, tb: Option<&ThreadBlock>) -> bool {
    let (own, generation) = (syscall0(nr::GETPID), process(base).generation.load(Relaxed));
    let differs = own > 0 && generation != 0 && own as u64 != generation;
    differs || tb.is_some_and(is_borrower)
}

/// A call begins that may concern the SUD fallback, or [`raw_unwound`]. If it must be made here, the result. `mask`: where
/// the thread's mask is kept that it goes on with, if the call was caught.
pub(crate) fn before(base: u64, regs: &PtRegs, number: i64, mask: Option<&mut u64>) -> Option<i64> {
    // (First: while the server answers, it may enable SUD.)
    if never_blocked(base) != 0 && sets_mask_for_its_time(number) {
        let borrows = block_of(base, regs).is_some_and(|tb| is_borrower(tb));
        check_mask_of_call(base, borrows, mask_of_call(regs, number));
    }
    if !is_armed(base) {
        return before_without(base, regs, number);
    }
    let Some(tb) = block_of(base, regs) else {
        // Nothing can be remembered: without SUD nothing can happen to it.
        switch(base, false);
        return None;
    };
    if mask.is_none() {
        resume(base, tb);
    }
    match number {
        // What it does without a stack could not be caught.
        nr::MUNMAP if unmaps_stack(regs) => {
            switch(base, false);
            None
        }
        nr::RT_SIGACTION => on_rt_sigaction(base, Some(tb), regs),
        nr::RT_SIGPROCMASK => on_rt_sigprocmask(base, Some(tb), regs, mask),
        nr::RT_SIGRETURN => {
            on_rt_sigreturn(base, tb, regs, mask.is_some());
            None
        }
        _ if sets_mask_for_its_time(number) => {
            let blocks = mask_of_call(regs, number).is_some_and(|of_call| of_call & SIGSYS_BIT != 0);
            if blocks && mask.map_or_else(mask_of_thread, |mask| *mask) & SIGSYS_BIT == 0 {
                tb.sud_off_until = regs.rsp;
                switch(base, false);
            }
            None
        }
        nr::CLONE3 if never_blocked(base) != 0 => {
            keep_handlers(regs);
            None
        }
        // The process confines itself, or wants this for itself; or it calls in a way that is not known here.
        317 if regs.rdi <= 1 => give_up(base, tb),
        157 if [PR_SET_SECCOMP, PR_SET_SYSCALL_USER_DISPATCH].contains(&regs.rdi) => give_up(base, tb),
        _ if (X32..X32 + X32_NUMBERS).contains(&number) => give_up(base, tb),
        _ => None,
    }
}

/// A process is about to be made by `clone3`: it has handlers of those signals, too, which are forced on it where ours are wanted.
fn keep_handlers(regs: &PtRegs) {
    // The flags are the first word of `struct clone_args`.
    if let Ok(flags) = read_own_word(regs.rdi)
        && flags & CLONE_CLEAR_SIGHAND != 0
    {
        let flags = flags & !CLONE_CLEAR_SIGHAND;
        // SAFETY: the word is there; the address may be any. (Where it cannot be written, the call is made as it is.)
        let _ = unsafe { write_own(regs.rdi, &raw const flags as u64, 8) };
    }
}

/// The same in a process without the SUD fallback.
fn before_without(base: u64, regs: &PtRegs, number: i64) -> Option<i64> {
    let never = never_blocked(base) != 0;
    match number {
        nr::RT_SIGACTION if never || regs.rdi == SIGCANCEL => {
            on_rt_sigaction(base, block_of(base, regs).as_deref(), regs)
        }
        nr::RT_SIGPROCMASK if never => on_rt_sigprocmask(base, block_of(base, regs), regs, None),
        nr::RT_SIGRETURN if never => {
            let _ = keep_out_of_frame(base, regs);
            None
        }
        nr::CLONE3 if never => {
            keep_handlers(regs);
            None
        }
        _ => None,
    }
}

/// Where the `struct sock_fprog` lies by which the calls are to be filtered from the end of this one on; 0:
/// `SECCOMP_MODE_STRICT`.
pub(crate) fn filter_given(regs: &PtRegs, number: i64) -> Option<u64> {
    const MODE_STRICT: u64 = 1;
    const MODE_FILTER: u64 = 2;
    const SET_STRICT: u64 = 0;
    const SET_FILTER: u64 = 1;
    // (Without a filter such a call fails: programs ask in this way whether there are any.)
    // (The kernel takes 32 bits of the first argument.)
    match (number, u64::from(regs.rdi as u32), regs.rsi) {
        (nr::PRCTL, PR_SET_SECCOMP, MODE_STRICT) | (nr::SECCOMP, SET_STRICT, _) => Some(0),
        (nr::PRCTL, PR_SET_SECCOMP, MODE_FILTER) | (nr::SECCOMP, SET_FILTER, _) => {
            Some(regs.rdx).filter(|at| *at != 0)
        }
        _ => None,
    }
}

/// Whether a thread is about to have its own calls dispatched, by where they are made. Those of the agent, and the program's own that are
/// made from trampolines, would be too.
pub(crate) fn dispatches(regs: &PtRegs, number: i64) -> bool {
    number == nr::PRCTL
        && u64::from(regs.rdi as u32) == PR_SET_SYSCALL_USER_DISPATCH
        && regs.rsi == PR_SYS_DISPATCH_ON
}

/// Whether a call unmaps the stack that it is made on, as threads do that end.
fn unmaps_stack(regs: &PtRegs) -> bool {
    regs.rsp.wrapping_sub(regs.rdi) <= regs.rsi
}

/// Asks the server to disable the SUD fallback for good.
fn give_up(base: u64, tb: &ThreadBlock) -> Option<i64> {
    // (Nobody but itself has to do with what a `vfork` child becomes, and who waits for it cannot be stopped.)
    if !is_borrower(tb) {
        file(base, request::KIND_SUD_OFF, own_ids(), 0, true);
    }
    // (If nobody answers, at least this thread is not stopped by what it is about to do.)
    switch(base, false);
    None
}

/// Whether a call may set a mask for its own time. (Not inlined: the image is to stay small.)
#[inline(never)]
fn sets_mask_for_its_time(number: i64) -> bool {
    MASK_SETTERS.contains(&number)
}

/// The mask that a call sets for its own time.
fn mask_of_call(regs: &PtRegs, number: i64) -> Option<u64> {
    const ENTER_EXTENDED: u64 = 8;
    let at = match number {
        nr::RT_SIGSUSPEND => regs.rdi,
        nr::PPOLL => regs.r10,
        nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => regs.r8,
        nr::PSELECT6 | nr::IO_PGETEVENTS => read_own_word(regs.r9).ok()?,
        nr::IO_URING_ENTER if regs.r10 & ENTER_EXTENDED != 0 => read_own_word(regs.r8).ok()?,
        nr::IO_URING_ENTER => regs.r8,
        _ => 0,
    };
    read_own_word(Some(at).filter(|at| *at != 0)?).ok()
}

/// `rt_sigprocmask`, if it is one that blocks SIGSYS, or lets it come, or has to do with a signal that is never blocked. That the
/// thread wants to block such a signal is remembered, and shown to it.
fn on_rt_sigprocmask(
    base: u64,
    tb: Option<&mut ThreadBlock>,
    regs: &PtRegs,
    caught: Option<&mut u64>,
) -> Option<i64> {
    if regs.r10 != SIGNAL_SET_BYTES {
        return None;
    }
    let (never, armed) = (never_blocked(base), is_armed(base));
    let wants = tb.as_ref().map_or(0, |tb| tb.wants_blocked) & never;
    if regs.rsi == 0 {
        if wants == 0 || regs.rdx == 0 {
            return None;
        }
        let mask = caught.map_or_else(mask_of_thread, |mask| *mask) | wants;
        return Some(tell_old(regs, mask));
    }
    let set = read_own_word(regs.rsi).ok()?;
    let change = |mask: u64, among: u64| match regs.rdi {
        SIG_BLOCK => (mask | set) & among,
        SIG_UNBLOCK => mask & !set & among,
        _ => set & among,
    };
    let how_known = matches!(regs.rdi, SIG_BLOCK | SIG_UNBLOCK | SIG_SETMASK);
    let would_block = regs.rdi != SIG_UNBLOCK && set & never != 0;
    let concerns_sud = armed && (regs.rdi == SIG_SETMASK || set & SIGSYS_BIT != 0);
    if !how_known || !would_block && !concerns_sud && wants == 0 {
        return None;
    }
    let real = |mask: u64| change(mask, !never);
    let is_off = tb.as_ref().is_none_or(|tb| tb.sud_off_until != 0);
    // (What a `vfork` child blocks its creator does not.)
    if let Some(tb) = tb
        && change(wants, never) != wants
        && !borrows_memory(base, Some(tb))
    {
        (tb.wanted_before, tb.wanted_at) = (wants, regs.rsp);
        tb.wants_blocked = change(wants, never);
    }
    let before = match caught {
        // The kernel takes it from there when the handler returns; until then the thread makes no other call.
        Some(mask) => {
            let before = *mask;
            *mask = real(before);
            if *mask & SIGSYS_BIT != 0 {
                switch(base, false);
            }
            before
        }
        None if armed => {
            let before = set_mask(u64::MAX);
            let mask = real(before);
            if (mask ^ before) & SIGSYS_BIT != 0 {
                switch(base, mask & SIGSYS_BIT == 0 && !is_off && is_armed(base));
            }
            set_mask(mask);
            before
        }
        // (One that was held back is really blocked until now.)
        None if regs.rdi == SIG_UNBLOCK => change_mask(SIG_UNBLOCK, set),
        None => change_mask(regs.rdi, set & !never),
    };
    Some(tell_old(regs, before | wants))
}

/// What a call that has been made instead of `rt_sigprocmask` returns: the old mask is stored where it is wanted.
fn tell_old(regs: &PtRegs, old: u64) -> i64 {
    // SAFETY: the word is there; the address may be any.
    if regs.rdx != 0 && unsafe { write_own(regs.rdx, &raw const old as u64, 8) }.is_err() {
        return -EFAULT;
    }
    0
}

/// Words of a signal frame, from `struct ucontext` on, up to its mask, which is the last one.
const CONTEXT_WORDS: usize = 38;
const MASK_WORD: u64 = CONTEXT_WORDS as u64 - 1;

/// The mask that `rt_sigreturn` is about to set, from which what is never blocked has been taken out.
fn keep_out_of_frame(base: u64, regs: &PtRegs) -> Option<u64> {
    let at = regs.rsp.wrapping_add(MASK_WORD * 8);
    let mask = read_own_word(at).ok()?;
    let kept = mask & !never_blocked(base);
    if kept != mask {
        // SAFETY: the word is there; the address may be any.
        unsafe { write_own(at, &raw const kept as u64, 8) }.ok()?;
    }
    // SAFETY: the running thread's own block, or null.
    if let Some(tb) = unsafe { current(base).as_mut() } {
        // Only in the frames of our own handlers it is said what the thread wanted to block. In others it is as it is, unless it may
        // have changed in the handler: then the thread blocks what it blocked before and after that.
        let in_handler = regs.rsp.wrapping_sub(tb.wanted_at) < HANDLER_STACK_BYTES;
        let wanted = match forget_frame(tb, regs.rsp) {
            true => 0,
            false if in_handler => tb.wants_blocked & tb.wanted_before,
            false => tb.wants_blocked,
        };
        tb.wants_blocked = wanted | mask & never_blocked(base);
    }
    Some(kept)
}

/// `rt_sigreturn` is about to be made.
fn on_rt_sigreturn(base: u64, tb: &ThreadBlock, regs: &PtRegs, caught: bool) {
    let Some(mask) = keep_out_of_frame(base, regs) else { return };
    let blocks = mask & SIGSYS_BIT != 0;
    if caught {
        if blocks {
            switch(base, false);
        }
        return;
    }
    if blocks != (mask_of_thread() & SIGSYS_BIT != 0) {
        set_mask(u64::MAX);
        switch(base, !blocks && tb.sud_off_until == 0 && is_armed(base));
    }
}

/// A call has ended, for whose time the thread may have had another mask.
pub(crate) fn after(base: u64, tb: &mut ThreadBlock, regs: &PtRegs) {
    if tb.sud_off_until != 0 && tb.sud_off_until == regs.rsp {
        tb.sud_off_until = 0;
        settle(base, tb);
    }
}

/// The running thread has been begun by a call with these flags, or goes on behind a `vfork` that lent its block.
pub(crate) fn begin_thread(base: u64, flags: u64) {
    let is_known = flags & CLONE_VM == 0 || flags & (CLONE_THREAD | CLONE_VFORK) != 0;
    // (It may have begun without the handler.)
    if !is_known || flags & CLONE_CLEAR_SIGHAND != 0 || !is_armed(base) {
        return;
    }
    // SAFETY: the running thread's own block, or null.
    if let Some(tb) = unsafe { current(base).as_mut() } {
        (tb.sud_off_until, tb.sud_suspended) = (0, 0);
        settle(base, tb);
    }
}

/// Whether a call that has ended made a mapping of which the server should hear: of code, or of what may hold a counter of a probe.
pub(crate) fn is_new_mapping(base: u64, number: i64, regs: &PtRegs) -> bool {
    let failed = regs.rax.wrapping_add(ERRNO_MAX) < ERRNO_MAX;
    if failed || regs.rdx & (PROT_EXEC | PROT_WRITE) == 0 {
        return false;
    }
    if regs.rdx & PROT_EXEC == 0 {
        let is_of_file = number == nr::MMAP && regs.r10 & MAP_ANONYMOUS == 0;
        return is_of_file && control(base).awaits_counters.load(Relaxed) != 0;
    }
    let sud = sud(base);
    let settled = sud.armed.load(Relaxed) | sud.given_up.load(Relaxed) != 0;
    match number {
        nr::MMAP => !settled || regs.r10 & MAP_ANONYMOUS == 0,
        nr::MPROTECT | nr::PKEY_MPROTECT => !settled,
        _ => false,
    }
}

// ---- SIGSYS ----

/// In the word after registers that lie on an agent stack: the SUD handler uses the stack, and GS says nothing.
const STACK_OF_SUD: u64 = 3;

/// `si_errno` of a signal that a program has sent as if it were the kernel's, and whose handler is the agent's: the kernel has not
/// forced it on the thread.
pub(crate) const SENT_BY_PROGRAM: u32 = 0x7269_6e67;

/// What the kernel tells of a SIGSYS (`siginfo_t`, include/uapi/asm-generic/siginfo.h).
#[repr(C)]
pub struct Info {
    signal: u32,
    errno: AtomicU32,
    code: u32,
    pad: u32,
    address: u64,
    number: i32,
    arch: u32,
}

/// What a handler returns to (`struct ucontext`, arch/x86/include/uapi/asm/sigcontext.h).
#[repr(C)]
pub struct Context {
    head: [u64; 5],
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    eflags: u64,
    rest: [u64; 14],
    mask: u64,
}

impl Info {
    pub(crate) fn signal(&self) -> u32 {
        self.signal
    }

    pub(crate) fn code(&self) -> u32 {
        self.code
    }

    /// What a fault could not access.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The kernel has forced it on the thread: nobody has sent it.
    pub(crate) fn is_forced(&self) -> bool {
        self.code as i32 > 0 && self.errno.load(Relaxed) != SENT_BY_PROGRAM
    }

    /// The process is about to see it, and not [`SENT_BY_PROGRAM`].
    pub(crate) fn hide_sender(&self) {
        if self.errno.load(Relaxed) == SENT_BY_PROGRAM {
            self.errno.store(0, Relaxed);
        }
    }
}

impl Context {
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// The mask that the thread goes on with.
    pub(crate) fn set_mask(&mut self, mask: u64) {
        self.mask = mask;
    }

    pub(crate) fn rip(&self) -> u64 {
        self.rip
    }

    pub(crate) fn set_rip(&mut self, rip: u64) {
        self.rip = rip;
    }

    pub(crate) fn rsp(&self) -> u64 {
        self.rsp
    }

    /// As [`ring3_layout::fault::Fault::registers`].
    pub(crate) fn kept_registers(&self) -> [u64; 8] {
        [self.rip, self.rsp, self.rbx, self.rbp, self.r12, self.r13, self.r14, self.r15]
    }

    /// The thread goes on there with these registers, behind a call whose result is 0, and without these flags.
    pub(crate) fn go_on_with(&mut self, registers: [u64; 8], cleared: u64) {
        [self.rip, self.rsp, self.rbx, self.rbp, self.r12, self.r13, self.r14, self.r15] = registers;
        self.rax = 0;
        self.eflags &= !cleared;
    }
}

const _: () = assert!(size_of::<Context>() == CONTEXT_WORDS * 8);

/// Takes an agent stack of the thread's block for a handler: the block, its `agent_stack_top` being where the stack
/// ends; null if there is none.
pub fn take_stack(base: u64) -> *mut ThreadBlock {
    let block = current(base);
    // SAFETY: the running thread's own block, or null.
    match unsafe { block.as_mut() } {
        Some(tb) if tb.agent_stack_top > tb.agent_stack_end => {
            tb.agent_stack_top -= AGENT_STACK_BYTES;
            block
        }
        _ => core::ptr::null_mut(),
    }
}

/// A SIGSYS has come. 0: the handler returns to `context`. Else it goes on as the process's own handler there.
///
/// # Safety
/// Called by the handler, with what the kernel gave it; `frame` is the word that it returns by.
pub unsafe fn caught(base: u64, info: *const Info, context: *mut Context, frame: *mut u64) -> u64 {
    // SAFETY: the caller's promise.
    let info = unsafe { &*info };
    // SAFETY: the caller's promise.
    let context = unsafe { &mut *context };
    if info.code != SYS_USER_DISPATCH {
        // SAFETY: the caller's promise.
        return unsafe { pass_on(base, info, context, frame) };
    }
    let sud = sud(base);
    sud.caught.fetch_add(1, Relaxed);
    let number = i64::from(info.number);
    if context.rax as i32 != info.number {
        // The kernel took the number for a result that asks for the call to be made again.
        context.rax = number as u64;
        context.rip = info.address;
    }
    // (Not what the kernel says it was: the server may have moved the thread since.)
    let after = context.rip;
    let copy = CLONE_SYSCALLS.iter().position(|call| *call == number).map_or(0, |copy| copy as u64 + 1);
    let is_left_in_place =
        || sud.left_in_place.iter().take_while(|at| at.load(Relaxed) != 0).any(|at| at.load(Relaxed) == after);
    let unmaps = number == nr::MUNMAP && unmaps_stack(&registers(context));
    let seen = info.arch == AUDIT_ARCH_X86_64 && is_armed(base) && !is_left_in_place() && !unmaps;
    if info.arch == AUDIT_ARCH_I386 {
        tell_of_gate(base, sud);
    }
    let Some(slot) = (if seen { claim(sud, after | copy << SUD_COPY_SHIFT) } else { None }) else {
        let_through(base, sud, context, info.arch != AUDIT_ARCH_X86_64 && SETS_ACTION_32.contains(&number));
        return 0;
    };
    let mut call = CaughtCall { regs: registers(context), how: STACK_OF_SUD };
    // SAFETY: the registers of the call, with what tells where they lie behind them.
    if unsafe { begin(base, &raw mut call.regs, number, NO_TRAMPOLINE, Some(&mut context.mask)) } {
        context.rax = call.regs.rax;
    } else {
        context.rip = base + SUD_TRAMPOLINES_OFFSET + slot as u64 * SUD_TRAMPOLINE_BYTES;
    }
    context.rcx = after;
    context.r11 = context.eflags;
    0
}

/// A call by `int $0x80` was caught, which no program sees. (Nobody but itself has to do with what a `vfork` child makes.)
fn tell_of_gate(base: u64, sud: &SudState) {
    if !borrows_memory(base, None) && sud.told_of_gate.swap(1, Relaxed) == 0 {
        file(base, request::KIND_GATE, own_ids(), 0, true);
    }
}

/// Registers, and behind them what else is said of where they lie.
#[repr(C)]
struct CaughtCall {
    regs: PtRegs,
    how: u64,
}

fn registers(context: &Context) -> PtRegs {
    const NOT_YET: u64 = (-38i64) as u64;
    PtRegs {
        r15: context.r15,
        r14: context.r14,
        r13: context.r13,
        r12: context.r12,
        rbp: context.rbp,
        rbx: context.rbx,
        r11: context.eflags,
        r10: context.r10,
        r9: context.r9,
        r8: context.r8,
        rax: NOT_YET,
        rcx: context.rip,
        rdx: context.rdx,
        rsi: context.rsi,
        rdi: context.rdi,
        orig_rax: context.rax,
        rip: context.rip,
        cs: 0x33,
        eflags: context.eflags,
        rsp: context.rsp,
        ss: 0x2b,
    }
}

/// The SUD trampoline that jumps back to a place.
fn claim(sud: &SudState, place: u64) -> Option<usize> {
    const SHIFT: u32 = 64 - SUD_SLOTS.ilog2();
    let first = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> SHIFT) as usize;
    (first..first + PROBES_MAX).map(|at| at % SUD_SLOTS).find(|at| {
        sud.slots.get(*at).is_some_and(|slot| {
            let found = slot.load(Acquire);
            found == place
                || found == 0
                    && slot.compare_exchange(0, place, AcqRel, Acquire).map_or_else(|other| other == place, |_| true)
        })
    })
}

/// The call is made where it is, unseen; the thread is not dispatched until it comes to a trampoline again.
fn let_through(base: u64, sud: &SudState, context: &mut Context, sets_action: bool) {
    sud.passed.fetch_add(1, Relaxed);
    // SAFETY: the running thread's own block, or null.
    match unsafe { current(base).as_mut() } {
        Some(tb) => {
            if sets_action {
                // What it has in its mask nobody would know.
                give_up(base, tb);
            }
            suspend(base, tb);
        }
        None => switch(base, false),
    }
    // (`int 0x80` has as many bytes.)
    context.rip -= SYSCALL_BYTES;
}

/// A SUD trampoline has made a call: `came` is where. The thread continues at `rip`.
///
/// # Safety
/// As for `raw_syscalls::enter_slow`.
pub unsafe fn exit(base: u64, regs: *mut PtRegs, came: u64) {
    let slot = came.wrapping_sub(base + SUD_TRAMPOLINES_OFFSET) / SUD_TRAMPOLINE_BYTES;
    let place = sud(base).slots.get(slot as usize).map_or(0, |slot| slot.load(Acquire));
    // SAFETY: the caller's promise.
    let regs = unsafe { &mut *regs };
    regs.rip = place & SUD_ADDRESS_MASK;
    regs.rcx = regs.rip;
    // SAFETY: the caller's promise.
    unsafe { end(base, regs, None, (place >> SUD_COPY_SHIFT) as usize) };
}

/// Of a thread at `rip` in a SUD trampoline: the address behind its call, and what of that has happened.
pub(crate) fn place_of(base: u64, rip: u64) -> Option<(u64, Progress)> {
    let offset = rip.wrapping_sub(base + SUD_TRAMPOLINES_OFFSET);
    let behind = sud(base).slots.get((offset / SUD_TRAMPOLINE_BYTES) as usize)?.load(Acquire) & SUD_ADDRESS_MASK;
    let progress = if offset.is_multiple_of(SUD_TRAMPOLINE_BYTES) { Progress::Before } else { Progress::After };
    (behind != 0).then_some((behind, progress))
}

const _: () = assert!(SUD_OFFSET > STATE_OFFSET);
