//! The net: calls that come by no gate of a site are caught by the kernel (syscall user dispatch), see [`ring3_layout::net`].
//!
//! A thread that is dispatched and blocks SIGSYS is killed at such a call. So one law holds: *who blocks SIGSYS is not
//! dispatched*. Each call that changes the mask keeps it, and changes both with all signals blocked; so no handler sees one
//! without the other:
//!
//! - `rt_sigprocmask`, if it blocks SIGSYS or lets it come, is made here.
//! - `rt_sigreturn` is made as always, with all signals blocked before, if SIGSYS is blocked on one side only.
//! - What has a mask for its own time (`ppoll` ...) is made as always: from before until after it the net is off, and no
//!   handler that comes meanwhile switches it on (`net_until`).
//! - Handlers begin without us. So no action really has SIGSYS in its mask; that a process wants it there is remembered.
//!
//! Calls of a thread that is not dispatched are not seen, if they do not come by a gate. The action of SIGSYS itself is ours,
//! the process's own is kept in [`Net::action`]; a SIGSYS that is not the net's is passed on.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::compiler_fence;

use ring3_layout::net::{
    NET_ADDRESS_MASK, NET_ALLOWED_BYTES, NET_COPY_SHIFT, NET_GATE_BYTES, NET_GATES_OFFSET, NET_SLOTS, Net, SIGSYS_BIT,
};
use ring3_layout::realm::request;
use ring3_layout::region::{NET_OFFSET, STATE_OFFSET};
use ring3_layout::syscall::{APART_BYTES, BEGINNERS, NO_GATE, Progress, SIGCANCEL, SYSCALL_BYTES};
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_memory::{read_own, read_own_word, write_own};
use crate::raw_request::file;
use crate::raw_syscalls::{begin, block_of, end, own_ids};
use crate::raw_system::{SYS_GETTID, SYS_PRCTL, SYS_TKILL, syscall, syscall0};
use crate::raw_thread::current;
use crate::raw_unwound;

const SIGSYS: u64 = 31;
const SIGNALS: u64 = 64;
const SIGNAL_SET_BYTES: u64 = 8;
const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
const SIG_BLOCK: u64 = 0;
const SIG_UNBLOCK: u64 = 1;
const SIG_SETMASK: u64 = 2;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;

const SYS_MMAP: i64 = 9;
const SYS_MPROTECT: i64 = 10;
const SYS_MUNMAP: i64 = 11;
const SYS_RT_SIGACTION: u64 = 13;
const SYS_RT_SIGPROCMASK: u64 = 14;
const SYS_PKEY_MPROTECT: i64 = 329;
const PROT_EXEC: u64 = 4;
const MAP_ANONYMOUS: u64 = 0x20;
const PR_SET_SECCOMP: u64 = 22;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const PR_SYS_DISPATCH_ON: u64 = 1;
/// `si_code` of a signal by which the kernel dispatches a call.
const SYS_USER_DISPATCH: u32 = 2;
/// Of a call that a filter refuses.
const SYS_SECCOMP: u32 = 1;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// From here on are the numbers of another way to call.
const X32: i64 = 0x4000_0000;
const X32_NUMBERS: i64 = 1024;
const EFAULT: i64 = 14;
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const ERRNO_MAX: u64 = 4095;
/// `sigaction`, `rt_sigaction` of the 32-bit gate.
const SETS_ACTION_32: [i64; 2] = [67, 174];
/// Slots that are looked at for a place.
const PROBES_MAX: usize = 256;

pub(crate) fn net(base: u64) -> &'static Net {
    // SAFETY: it is mapped with the state block, and made of atomics.
    unsafe { &*((base + NET_OFFSET) as *const Net) }
}

pub(crate) fn is_armed(base: u64) -> bool {
    net(base).armed.load(Acquire) != 0
}

/// Dispatches the running thread's calls from now on, or no longer.
fn switch(base: u64, on: bool) {
    let arguments = match on {
        true => [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, base, NET_ALLOWED_BYTES, 0, 0],
        false => [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0],
    };
    // SAFETY: without a selector nothing is read or written.
    unsafe { syscall(SYS_PRCTL, arguments) };
}

fn mask_of_thread() -> u64 {
    let mut mask = 0u64;
    // SAFETY: asks only; room for the answer.
    unsafe { syscall(SYS_RT_SIGPROCMASK, [SIG_BLOCK, 0, &raw mut mask as u64, SIGNAL_SET_BYTES, 0, 0]) };
    mask
}

/// Sets the thread's mask; what it was.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let arguments = [SIG_SETMASK, &raw const mask as u64, &raw mut before as u64, SIGNAL_SET_BYTES, 0, 0];
    // SAFETY: both are there; handlers find the thread as they always may.
    unsafe { syscall(SYS_RT_SIGPROCMASK, arguments) };
    before
}

/// The running thread is dispatched if it may be. All is known of it: it has come from the kernel just now.
fn settle(base: u64, tb: &ThreadBlock) {
    let before = set_mask(u64::MAX);
    switch(base, is_armed(base) && before & SIGSYS_BIT == 0 && tb.net_until == 0);
    set_mask(before);
}

/// The running thread is not dispatched until it comes to a gate whose call somebody wants, or comes back from a routine in
/// which threads are cancelled.
pub(crate) fn suspend(base: u64, tb: &mut ThreadBlock) {
    switch(base, false);
    // (A handler that found it set before would take it away, and nobody would switch the net on again.)
    compiler_fence(Release);
    tb.net_passed = 1;
}

/// It is again, if it may be.
pub(crate) fn resume(base: u64, tb: &mut ThreadBlock) {
    if tb.net_passed != 0 {
        tb.net_passed = 0;
        settle(base, tb);
    }
}

/// Whether the thread is of a process that shares its creator's memory until it executes something: the tables are not its own.
fn is_borrower(tb: &ThreadBlock) -> bool {
    tb.pid_tgid >> 32 != tb.generation
}

/// A call begins that may have to do with the net, or with [`raw_unwound`]. If it must be made here, the result. `mask`: where
/// the thread's mask is kept that it goes on with, if the call was caught.
pub(crate) fn before(base: u64, regs: &PtRegs, number: i64, mask: Option<&mut u64>) -> Option<i64> {
    if !is_armed(base) {
        return if number == 13 && regs.rdi == SIGCANCEL { act(base, block_of(base, regs)?, regs) } else { None };
    }
    let Some(tb) = block_of(base, regs) else {
        // Nothing can be remembered: without the net nothing can happen to it.
        switch(base, false);
        return None;
    };
    if mask.is_none() {
        resume(base, tb);
    }
    match number {
        // What it does without a stack could not be caught.
        SYS_MUNMAP if unmaps_stack(regs) => {
            switch(base, false);
            None
        }
        13 => act(base, tb, regs),
        14 => block(base, tb, regs, mask),
        15 => {
            go_back(base, tb, regs, mask.is_some());
            None
        }
        130 | 270 | 271 | 281 | 333 | 426 | 441 => {
            let blocks = mask_of_call(regs, number).is_some_and(|of_call| of_call & SIGSYS_BIT != 0);
            if blocks && mask.map_or_else(mask_of_thread, |mask| *mask) & SIGSYS_BIT == 0 {
                tb.net_until = regs.rsp;
                switch(base, false);
            }
            None
        }
        // The process confines itself, or wants this for itself; or it calls in a way that is not known here.
        317 if regs.rdi <= 1 => give_up(base, tb),
        157 if [PR_SET_SECCOMP, PR_SET_SYSCALL_USER_DISPATCH].contains(&regs.rdi) => give_up(base, tb),
        _ if (X32..X32 + X32_NUMBERS).contains(&number) => give_up(base, tb),
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
    match (number, regs.rdi, regs.rsi) {
        (157, PR_SET_SECCOMP, MODE_STRICT) | (317, SET_STRICT, _) => Some(0),
        (157, PR_SET_SECCOMP, MODE_FILTER) | (317, SET_FILTER, _) => Some(regs.rdx).filter(|at| *at != 0),
        _ => None,
    }
}

/// Whether a call unmaps the stack that it is made on, as threads do that end.
fn unmaps_stack(regs: &PtRegs) -> bool {
    regs.rsp.wrapping_sub(regs.rdi) <= regs.rsi
}

/// The server takes the net away, for good.
fn give_up(base: u64, tb: &ThreadBlock) -> Option<i64> {
    // (Nobody but itself has to do with what a `vfork` child becomes, and who waits for it cannot be stopped.)
    if !is_borrower(tb) {
        file(base, request::KIND_NET_OFF, own_ids(), 0, true);
    }
    // (If nobody answers, at least this thread is not stopped by what it is about to do.)
    switch(base, false);
    None
}

/// The mask that a call sets for its own time.
fn mask_of_call(regs: &PtRegs, number: i64) -> Option<u64> {
    const ENTER_EXTENDED: u64 = 8;
    let at = match number {
        130 => regs.rdi,
        271 => regs.r10,
        281 | 441 => regs.r8,
        270 | 333 => read_own_word(regs.r9).ok()?,
        426 if regs.r10 & ENTER_EXTENDED != 0 => read_own_word(regs.r8).ok()?,
        426 => regs.r8,
        _ => 0,
    };
    read_own_word(Some(at).filter(|at| *at != 0)?).ok()
}

/// `rt_sigprocmask`, if it is one that blocks SIGSYS, or lets it come.
fn block(base: u64, tb: &ThreadBlock, regs: &PtRegs, caught: Option<&mut u64>) -> Option<i64> {
    if regs.rsi == 0 || regs.r10 != SIGNAL_SET_BYTES {
        return None;
    }
    let set = read_own_word(regs.rsi).ok()?;
    let change = |mask: u64| match regs.rdi {
        SIG_BLOCK => mask | set,
        SIG_UNBLOCK => mask & !set,
        _ => set,
    };
    let how_known = matches!(regs.rdi, SIG_BLOCK | SIG_UNBLOCK | SIG_SETMASK);
    if !how_known || regs.rdi != SIG_SETMASK && set & SIGSYS_BIT == 0 {
        return None;
    }
    let old = caught.as_ref().map_or_else(mask_of_thread, |mask| **mask);
    if caught.is_none() && (change(old) ^ old) & SIGSYS_BIT == 0 {
        return None;
    }
    // SAFETY: the word is there; the address may be any.
    if regs.rdx != 0 && unsafe { write_own(regs.rdx, &raw const old as u64, 8) }.is_err() {
        return Some(-EFAULT);
    }
    match caught {
        // The kernel takes it from there when the handler returns; until then the thread makes no other call.
        Some(mask) => {
            *mask = change(old);
            if *mask & SIGSYS_BIT != 0 {
                switch(base, false);
            }
        }
        None => {
            let before = set_mask(u64::MAX);
            let mask = change(before);
            if (mask ^ before) & SIGSYS_BIT != 0 {
                switch(base, mask & SIGSYS_BIT == 0 && tb.net_until == 0 && is_armed(base));
            }
            set_mask(mask);
        }
    }
    Some(0)
}

/// Words of a signal frame, from `struct ucontext` on, up to its mask, which is the last one.
const CONTEXT_WORDS: usize = 38;
const MASK_WORD: u64 = CONTEXT_WORDS as u64 - 1;

/// `rt_sigreturn` is about to be made.
fn go_back(base: u64, tb: &ThreadBlock, regs: &PtRegs, caught: bool) {
    let Ok(mask) = read_own_word(regs.rsp.wrapping_add(MASK_WORD * 8)) else { return };
    let blocks = mask & SIGSYS_BIT != 0;
    if caught {
        if blocks {
            switch(base, false);
        }
        return;
    }
    if blocks != (mask_of_thread() & SIGSYS_BIT != 0) {
        set_mask(u64::MAX);
        switch(base, !blocks && tb.net_until == 0 && is_armed(base));
    }
}

/// `rt_sigaction`, if it concerns SIGCANCEL, or, with the net, SIGSYS or a mask with it.
fn act(base: u64, tb: &ThreadBlock, regs: &PtRegs) -> Option<i64> {
    let (signal, net, armed) = (regs.rdi, net(base), is_armed(base));
    if regs.r10 != SIGNAL_SET_BYTES || !(1..=SIGNALS).contains(&signal) {
        return None;
    }
    let mut new = [0u64; 4];
    // SAFETY: room for the action; the address may be any.
    if regs.rsi != 0 && unsafe { read_own(new.as_mut_ptr() as u64, regs.rsi, 32) }.is_err() {
        return None;
    }
    let [.., mask] = &mut new;
    let bit = 1 << (signal - 1);
    let (wants, wanted) = (armed && *mask & SIGSYS_BIT != 0, armed && net.masks.load(Acquire) & bit != 0);
    if signal != SIGSYS && signal != SIGCANCEL && !wants && !wanted {
        return None;
    }
    if armed {
        *mask &= !SIGSYS_BIT;
    }
    let mut old = [0u64; 4];
    if signal == SIGSYS {
        if wants {
            new[3] |= SIGSYS_BIT;
        }
        old = action(net);
        // What a `vfork` child makes of it ends when it executes something.
        if regs.rsi != 0 && !is_borrower(tb) {
            set_action(net, new);
        }
    } else {
        let own = if signal == SIGCANCEL { net.cancel_handler.load(Acquire) } else { 0 };
        if signal == SIGCANCEL && !is_borrower(tb) {
            raw_unwound::stand_before(base, &mut new);
        }
        let given = if regs.rsi == 0 { 0 } else { new.as_ptr() as u64 };
        let arguments = [signal, given, old.as_mut_ptr() as u64, SIGNAL_SET_BYTES, 0, 0];
        // SAFETY: an action that the process asks for, and room for the old one.
        let result = unsafe { syscall(SYS_RT_SIGACTION, arguments) };
        if result < 0 {
            return Some(result);
        }
        if wanted {
            old[3] |= SIGSYS_BIT;
        }
        if signal == SIGCANCEL && raw_unwound::is_ours(base, old[0]) {
            old[0] = own;
        }
        if regs.rsi != 0 && !is_borrower(tb) {
            match wants {
                true => net.masks.fetch_or(bit, AcqRel),
                false => net.masks.fetch_and(!bit, AcqRel),
            };
        }
    }
    // SAFETY: the action is there; the address may be any.
    if regs.rdx != 0 && unsafe { write_own(regs.rdx, old.as_ptr() as u64, 32) }.is_err() {
        return Some(-EFAULT);
    }
    Some(0)
}

/// What the process has made the action of SIGSYS: handler, flags, restorer, mask.
fn action(net: &Net) -> [u64; 4] {
    const ROUNDS: u32 = 1000;
    let read = || net.action.each_ref().map(|word| word.load(Acquire));
    for _ in 0..ROUNDS {
        let sequence = net.sequence.load(Acquire);
        let found = read();
        if sequence.is_multiple_of(2) && net.sequence.load(Acquire) == sequence {
            return found;
        }
    }
    read()
}

/// What the process has made the handler of a signal, if that is ours.
pub(crate) fn handler_instead(base: u64, signal: u64) -> Option<u64> {
    let net = net(base);
    let [handler, ..] = action(net);
    (signal == SIGSYS && net.installed.load(Acquire) != 0).then_some(handler)
}

/// Remembers it, and has calls that a SIGSYS interrupts go on or end as the process would have it.
fn set_action(net: &Net, new: [u64; 4]) {
    net.sequence.fetch_add(1, AcqRel);
    for (word, new) in net.action.iter().zip(new) {
        word.store(new, Release);
    }
    net.sequence.fetch_add(1, AcqRel);
    let mut real = [0u64; 4];
    // SAFETY: room for the action.
    unsafe { syscall(SYS_RT_SIGACTION, [SIGSYS, 0, real.as_mut_ptr() as u64, SIGNAL_SET_BYTES, 0, 0]) };
    let restarts = new[0] <= SIG_IGN || new[1] & SA_RESTART != 0;
    real[1] = if restarts { real[1] | SA_RESTART } else { real[1] & !SA_RESTART };
    // SAFETY: the action that is ours, with another flag.
    unsafe { syscall(SYS_RT_SIGACTION, [SIGSYS, real.as_ptr() as u64, 0, SIGNAL_SET_BYTES, 0, 0]) };
}

/// A call has ended, for whose time the thread may have had another mask.
pub(crate) fn after(base: u64, tb: &mut ThreadBlock, regs: &PtRegs) {
    if tb.net_until != 0 && tb.net_until == regs.rsp {
        tb.net_until = 0;
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
        (tb.net_until, tb.net_passed) = (0, 0);
        settle(base, tb);
    }
}

/// Whether a call that has ended made memory executable of which the server should hear.
pub(crate) fn is_new_code(base: u64, number: i64, regs: &PtRegs) -> bool {
    let failed = regs.rax.wrapping_add(ERRNO_MAX) < ERRNO_MAX;
    let net = net(base);
    let settled = net.armed.load(Relaxed) | net.given_up.load(Relaxed) != 0;
    if failed || regs.rdx & PROT_EXEC == 0 {
        return false;
    }
    match number {
        SYS_MMAP => !settled || regs.r10 & MAP_ANONYMOUS == 0,
        SYS_MPROTECT | SYS_PKEY_MPROTECT => !settled,
        _ => false,
    }
}

// ---- SIGSYS ----

/// Of the word behind registers that lie on a stack in a block: it is the net's, and GS says nothing.
const STACK_OF_NET: u64 = 3;

/// What the kernel tells of a SIGSYS (`siginfo_t`, include/uapi/asm-generic/siginfo.h).
#[repr(C)]
pub struct Info {
    signal: u32,
    errno: u32,
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

impl Context {
    pub(crate) fn rip(&self) -> u64 {
        self.rip
    }

    pub(crate) fn set_rip(&mut self, rip: u64) {
        self.rip = rip;
    }
}

const _: () = assert!(size_of::<Context>() == CONTEXT_WORDS * 8);

/// A block's stack apart is taken for a handler: the block, its `apart_top` being where the stack ends; null if there is none.
pub fn take_stack(base: u64) -> *mut ThreadBlock {
    let block = current(base);
    // SAFETY: the running thread's own block, or null.
    match unsafe { block.as_mut() } {
        Some(tb) if tb.apart_top > tb.apart_end => {
            tb.apart_top -= APART_BYTES;
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
    let net = net(base);
    net.caught.fetch_add(1, Relaxed);
    let number = i64::from(info.number);
    if context.rax as i32 != info.number {
        // The kernel took the number for a result that asks for the call to be made again.
        context.rax = number as u64;
        context.rip = info.address;
    }
    // (Not what the kernel says it was: the server may have moved the thread since.)
    let after = context.rip;
    let copy = BEGINNERS.iter().position(|beginner| i64::from(*beginner) == number).map_or(0, |copy| copy as u64 + 1);
    let is_alone = || net.alone.iter().take_while(|at| at.load(Relaxed) != 0).any(|at| at.load(Relaxed) == after);
    let unmaps = number == SYS_MUNMAP && unmaps_stack(&registers(context));
    let seen = info.arch == AUDIT_ARCH_X86_64 && is_armed(base) && !is_alone() && !unmaps;
    let Some(slot) = (if seen { claim(net, after | copy << NET_COPY_SHIFT) } else { None }) else {
        let_through(base, net, context, info.arch != AUDIT_ARCH_X86_64 && SETS_ACTION_32.contains(&number));
        return 0;
    };
    let mut apart = Apart { regs: registers(context), how: STACK_OF_NET };
    // SAFETY: the registers of the call, with what tells where they lie behind them.
    if unsafe { begin(base, &raw mut apart.regs, number, NO_GATE, Some(&mut context.mask)) } {
        context.rax = apart.regs.rax;
    } else {
        context.rip = base + NET_GATES_OFFSET + slot as u64 * NET_GATE_BYTES;
    }
    context.rcx = after;
    context.r11 = context.eflags;
    0
}

/// Registers, and behind them what else is said of where they lie.
#[repr(C)]
struct Apart {
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

/// The gate that leads back to a place.
fn claim(net: &Net, place: u64) -> Option<usize> {
    const SHIFT: u32 = 64 - NET_SLOTS.ilog2();
    let first = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> SHIFT) as usize;
    (first..first + PROBES_MAX).map(|at| at % NET_SLOTS).find(|at| {
        net.slots.get(*at).is_some_and(|slot| {
            let found = slot.load(Acquire);
            found == place
                || found == 0
                    && slot.compare_exchange(0, place, AcqRel, Acquire).map_or_else(|other| other == place, |_| true)
        })
    })
}

/// The call is made where it is, unseen; the thread is not dispatched until it comes to a gate again.
fn let_through(base: u64, net: &Net, context: &mut Context, sets_action: bool) {
    net.passed.fetch_add(1, Relaxed);
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

/// A SIGSYS that is not the net's: what the process has made its action is done.
///
/// # Safety
/// As for `caught`.
unsafe fn pass_on(base: u64, info: &Info, context: &Context, frame: *mut u64) -> u64 {
    let net = net(base);
    let [handler, flags, restorer, mask] = action(net);
    match handler {
        SIG_IGN if info.code != SYS_SECCOMP => 0,
        SIG_DFL | SIG_IGN => {
            let default = [SIG_DFL; 4];
            // SAFETY: the signal is about to end the process, as it would without us.
            unsafe { syscall(SYS_RT_SIGACTION, [SIGSYS, default.as_ptr() as u64, 0, SIGNAL_SET_BYTES, 0, 0]) };
            switch(base, false);
            set_mask(context.mask & !SIGSYS_BIT);
            let own = syscall0(SYS_GETTID) as u64;
            // SAFETY: to itself.
            unsafe { syscall(SYS_TKILL, [own, SIGSYS, 0, 0, 0, 0]) };
            0
        }
        _ => {
            let own = if flags & SA_NODEFER == 0 { SIGSYS_BIT } else { 0 };
            if flags & SA_RESETHAND != 0 {
                set_action(net, [SIG_DFL; 4]);
            }
            let all = context.mask | mask | own;
            set_mask(u64::MAX);
            if all & SIGSYS_BIT != 0 {
                switch(base, false);
            }
            // SAFETY: the handler returns by this word: as it would without us.
            unsafe { frame.write(restorer) };
            set_mask(all);
            handler
        }
    }
}

/// A thread is behind a call that a gate of the net has made: `came` is where. It goes on at `rip`.
///
/// # Safety
/// As for `raw_syscalls::enter_closely`.
pub unsafe fn exit(base: u64, regs: *mut PtRegs, came: u64) {
    let slot = came.wrapping_sub(base + NET_GATES_OFFSET) / NET_GATE_BYTES;
    let place = net(base).slots.get(slot as usize).map_or(0, |slot| slot.load(Acquire));
    // SAFETY: the caller's promise.
    let regs = unsafe { &mut *regs };
    regs.rip = place & NET_ADDRESS_MASK;
    regs.rcx = regs.rip;
    // SAFETY: the caller's promise.
    unsafe { end(base, regs, None, (place >> NET_COPY_SHIFT) as usize) };
}

/// Of a thread at `rip` in a gate of the net: the address behind its call, and what of that has happened.
pub(crate) fn place_of(base: u64, rip: u64) -> Option<(u64, Progress)> {
    let offset = rip.wrapping_sub(base + NET_GATES_OFFSET);
    let behind = net(base).slots.get((offset / NET_GATE_BYTES) as usize)?.load(Acquire) & NET_ADDRESS_MASK;
    let progress = if offset.is_multiple_of(NET_GATE_BYTES) { Progress::Before } else { Progress::After };
    (behind != 0).then_some((behind, progress))
}

const _: () = assert!(NET_OFFSET > STATE_OFFSET);
