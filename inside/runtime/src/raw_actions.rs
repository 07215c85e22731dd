//! Signals whose handler is the agent's ([`ring3_layout::sud::TAKEN_SIGNALS`]), and what the process sees of that.
//!
//! The process's own action is kept, returned by `rt_sigaction`, and done if a signal is not ours ([`pass_on`]). A
//! signal that the kernel forces on a thread ends the process if it is blocked there. So there are signals that no
//! thread really blocks ([`never_blocked`]): calls that change a mask are made without them, and no handler has them in
//! its mask. (SIGSYS has another law, see `raw_sud.rs`.) What a thread wants to block of them is remembered
//! ([`ThreadBlock::wants_blocked`]) and shown to it.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use ring3_layout::realm::request;
use ring3_layout::sud::{
    DEPENDENT_FLAGS, FAULT_BITS, OwnAction, SIGNALS, SIGSYS_BIT, TAKEN_SIGNALS, dependent_flags,
};
use ring3_layout::syscall::SIGCANCEL;
use ring3_layout::thread::{PASSED_FRAMES_MAX, ThreadBlock};
use ring3_uapi::nr;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_guarded::interrupt_copy;
use crate::raw_memory::{read_own, write_own};
use crate::raw_request::file;
use crate::raw_shown::{displaced_at, returns_by_trampoline, show};
use crate::raw_sud::{Context, Info, borrows_memory, is_armed, sud, switch};
use crate::raw_syscalls::own_ids;
use crate::raw_system::{syscall, syscall0};
use crate::raw_thread::{current, known};
use crate::raw_unwound;

pub(crate) const SIGNAL_SET_BYTES: u64 = 8;
const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
pub(crate) const SIG_BLOCK: u64 = 0;
pub(crate) const SIG_UNBLOCK: u64 = 1;
pub(crate) const SIG_SETMASK: u64 = 2;
/// Flags that the kernel keeps (include/linux/signal.h:UAPI_SA_FLAGS).
const SA_KNOWN: u64 = 0xdc00_0807;
/// SIGKILL and SIGSTOP in a mask.
const KILL_AND_STOP: u64 = 1 << 8 | 1 << 18;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
/// `si_code` of a signal for one thread.
const SI_TKILL: u32 = -6i32 as u32;
const EFAULT: i64 = 14;

/// The signals that no thread really blocks.
pub(crate) fn never_blocked(base: u64) -> u64 {
    sud(base).never_blocked.load(Acquire)
}

/// The signals that no handler really has in its mask.
fn kept_out(base: u64) -> u64 {
    never_blocked(base) | if is_armed(base) { SIGSYS_BIT } else { 0 }
}

/// The process's own action of a signal, if the handler that the kernel knows is the agent's.
fn own_action(base: u64, signal: u64) -> Option<&'static OwnAction> {
    let at = TAKEN_SIGNALS.iter().position(|taken| *taken == signal)?;
    sud(base).own.get(at).filter(|own| own.installed.load(Acquire) != 0)
}

/// Whether the handler that the kernel knows for a signal is the agent's.
pub(crate) fn is_taken(base: u64, signal: u64) -> bool {
    own_action(base, signal).is_some()
}

pub(crate) fn mask_of_thread() -> u64 {
    let mut mask = 0u64;
    // SAFETY: asks only; room for the answer.
    unsafe { syscall(nr::RT_SIGPROCMASK, [SIG_BLOCK, 0, &raw mut mask as u64, SIGNAL_SET_BYTES, 0, 0]) };
    mask
}

/// Sets the thread's mask; what it was.
pub(crate) fn set_mask(mask: u64) -> u64 {
    change_mask(SIG_SETMASK, mask)
}

/// Changes the thread's mask by `rt_sigprocmask`; what it was.
#[inline(never)]
pub(crate) fn change_mask(how: u64, mask: u64) -> u64 {
    let mut before = 0u64;
    let arguments = [how, &raw const mask as u64, &raw mut before as u64, SIGNAL_SET_BYTES, 0, 0];
    // SAFETY: both are there; handlers find the thread as they always may.
    unsafe { syscall(nr::RT_SIGPROCMASK, arguments) };
    before
}

/// A call with a mask for its own time is about to be made in a process in which some signals are never blocked: a handler that
/// comes then would have the mask. If that has one of them, the server is asked to do without.
pub(crate) fn check_mask_of_call(base: u64, borrows: bool, mask: Option<u64>) {
    if mask.is_some_and(|mask| mask & never_blocked(base) != 0) && !borrows {
        file(base, request::KIND_TRAPS_OFF, own_ids(), 0, true);
    }
}

/// `rt_sigaction`, if it concerns a signal whose handler is ours, or a mask with one that is kept out of masks.
pub(crate) fn on_rt_sigaction(base: u64, tb: Option<&ThreadBlock>, regs: &PtRegs) -> Option<i64> {
    let (signal, sud) = (regs.rdi, sud(base));
    if regs.r10 != SIGNAL_SET_BYTES || !(1..=SIGNALS as u64).contains(&signal) {
        return None;
    }
    let mut new = [0u64; 4];
    // SAFETY: room for the action; the address may be any.
    if regs.rsi != 0 && unsafe { read_own(new.as_mut_ptr() as u64, regs.rsi, 32) }.is_err() {
        return None;
    }
    let [.., mask] = &mut new;
    let kept = sud.kept_out.get(signal as usize - 1)?;
    let (wants, wanted) = (*mask & kept_out(base), kept.load(Acquire) & kept_out(base));
    let own = own_action(base, signal);
    if own.is_none() && signal != SIGCANCEL && wants == 0 && wanted == 0 {
        return None;
    }
    let borrows = borrows_memory(base, tb);
    let mut old = [0u64; 4];
    if let Some(own) = own {
        old = action(own);
        // What a `vfork` child makes of it ends when it executes something.
        if regs.rsi != 0 && !borrows {
            // (As kernel/signal.c:do_sigaction keeps it.)
            let [handler, flags, restorer, mask] = new;
            set_action(own, signal, [handler, flags & SA_KNOWN, restorer, mask & !KILL_AND_STOP]);
        }
    } else {
        *mask &= !wants;
        let own = if signal == SIGCANCEL { sud.cancel_handler.load(Acquire) } else { 0 };
        if signal == SIGCANCEL && !borrows {
            raw_unwound::interpose_cancel_handler(base, &mut new);
        }
        let given = if regs.rsi == 0 { 0 } else { new.as_ptr() as u64 };
        let arguments = [signal, given, old.as_mut_ptr() as u64, SIGNAL_SET_BYTES, 0, 0];
        // SAFETY: an action that the process asks for, and room for the old one.
        let result = unsafe { syscall(nr::RT_SIGACTION, arguments) };
        if result < 0 {
            return Some(result);
        }
        old[3] |= wanted;
        if signal == SIGCANCEL && raw_unwound::is_ours(base, old[0]) {
            old[0] = own;
        }
        if regs.rsi != 0 && !borrows {
            kept.store(wants, Release);
        }
    }
    // SAFETY: the action is there; the address may be any.
    if regs.rdx != 0 && unsafe { write_own(regs.rdx, old.as_ptr() as u64, 32) }.is_err() {
        return Some(-EFAULT);
    }
    Some(0)
}

/// What the process has made an action: handler, flags, restorer, mask.
fn action(own: &OwnAction) -> [u64; 4] {
    const ROUNDS: u32 = 1000;
    let read = || own.action.each_ref().map(|word| word.load(Acquire));
    for _ in 0..ROUNDS {
        let sequence = own.sequence.load(Acquire);
        let found = read();
        if sequence.is_multiple_of(2) && own.sequence.load(Acquire) == sequence {
            return found;
        }
    }
    read()
}

/// What the process has made the handler of a signal, if that is ours.
pub(crate) fn handler_instead(base: u64, signal: u64) -> Option<u64> {
    own_action(base, signal).map(|own| action(own)[0])
}

/// Remembers it, and has calls that the signal interrupts go on or end as the process would have it.
fn set_action(own: &OwnAction, signal: u64, new: [u64; 4]) {
    own.sequence.fetch_add(1, AcqRel);
    for (word, new) in own.action.iter().zip(new) {
        word.store(new, Release);
    }
    own.sequence.fetch_add(1, AcqRel);
    let mut real = [0u64; 4];
    // SAFETY: room for the action.
    unsafe { syscall(nr::RT_SIGACTION, [signal, 0, real.as_mut_ptr() as u64, SIGNAL_SET_BYTES, 0, 0]) };
    let [handler, flags, ..] = new;
    real[1] = real[1] & !DEPENDENT_FLAGS | dependent_flags(signal, handler, flags);
    // SAFETY: the action that is ours, with another flag.
    unsafe { syscall(nr::RT_SIGACTION, [signal, real.as_ptr() as u64, 0, SIGNAL_SET_BYTES, 0, 0]) };
}

/// A signal that is not ours has come to the agent's handler: what the process has made its action is done. The result is the
/// handler that the thread goes on with; 0: it goes on with `context`.
///
/// # Safety
/// As for `raw_sud::caught`.
pub(crate) unsafe fn pass_on(base: u64, info: &Info, context: &mut Context, frame: *mut u64) -> u64 {
    let signal = u64::from(info.signal());
    let Some(own) = own_action(base, signal) else { return 0 };
    let bit = 1 << (signal - 1);
    let [handler, flags, restorer, mask] = action(own);
    let displaced = if info.is_forced() { displaced_at(base, context.rip()) } else { None };
    // (Elsewhere the search for the block may be what was interrupted.)
    let block = if displaced.is_some() { current(base) } else { known(base) };
    // SAFETY: the running thread's own block, or null.
    let tb = unsafe { block.as_mut() };
    // (What is remembered counts only while it is seen.)
    let wants = tb.as_ref().map_or(0, |tb| tb.wants_blocked) & never_blocked(base);
    if !info.is_forced() && wants & bit & FAULT_BITS != 0 {
        hold_back(base, info, context);
        return 0;
    }
    // (Forced on a thread that blocks it, it ends the process: kernel/signal.c:force_sig_info_to_task.)
    let handler = if info.is_forced() && wants & bit != 0 { SIG_DFL } else { handler };
    match handler {
        // (What the kernel forces on a thread it does not ignore.)
        SIG_IGN if !info.is_forced() => 0,
        SIG_DFL | SIG_IGN => {
            if let Some((site, distance)) = displaced {
                // (For the core file.)
                context.set_rip(site + distance);
            }
            end_by(base, info, context);
            0
        }
        _ => {
            let itself = if flags & SA_NODEFER == 0 { bit } else { 0 };
            if flags & SA_RESETHAND != 0 {
                set_action(own, signal, [SIG_DFL, flags, restorer, mask]);
            }
            let never = never_blocked(base);
            let all = context.mask() | mask | itself;
            set_mask(u64::MAX);
            if let Some(tb) = tb {
                // (Who goes back into the middle of a jump must be led to the copy.)
                if let Some((site, distance)) = displaced
                    && (distance == 0 || returns_by_trampoline(base, restorer))
                {
                    show(tb, context, site + distance);
                }
                // The process finds its mask in the frame. From there it is taken again when the handler returns.
                context.set_mask(context.mask() | wants & never);
                remember_frame(tb, &raw const *context as u64);
                tb.wants_blocked = (wants | all) & never;
            }
            let all = all & !never;
            if all & SIGSYS_BIT != 0 && is_armed(base) {
                switch(base, false);
            }
            info.hide_sender();
            // SAFETY: the handler returns by this word: as it would without us.
            unsafe { frame.write(restorer) };
            set_mask(all);
            handler
        }
    }
}

/// A signal frame whose mask has what the thread wanted to block. (Handlers that a `longjmp` has abandoned had frames,
/// too; who is at the same address is the successor of one.)
fn remember_frame(tb: &mut ThreadBlock, frame: u64) {
    forget_frame(tb, frame);
    if tb.passed_frames.iter().all(|known| *known != 0) {
        tb.passed_frames.copy_within(1.., 0);
        tb.passed_frames[PASSED_FRAMES_MAX - 1] = 0;
    }
    if let Some(free) = tb.passed_frames.iter_mut().find(|known| **known == 0) {
        *free = frame;
    }
}

/// Whether a signal frame is such a one. It, and those of handlers that interrupted its, are no more.
pub(crate) fn forget_frame(tb: &mut ThreadBlock, frame: u64) -> bool {
    let at = tb.passed_frames.iter().position(|known| *known == frame);
    for later in tb.passed_frames.iter_mut().skip(at.unwrap_or(PASSED_FRAMES_MAX)) {
        *later = 0;
    }
    at.is_some()
}

/// A signal that somebody has sent has come to a thread that blocks it, as far as it knows. From now on it really does, and programs
/// read by system calls. The signal waits.
fn hold_back(base: u64, info: &Info, context: &mut Context) {
    let signal = u64::from(info.signal());
    sud(base).catches_faults.store(0, Release);
    interrupt_copy(context);
    let bit = 1 << (signal - 1);
    context.set_mask(context.mask() | bit);
    set_mask(context.mask());
    let to_process = [syscall0(nr::GETPID) as u64, signal, &raw const *info as u64, 0, 0, 0];
    // SAFETY: what the kernel gave to the handler, to whom it was sent.
    let is_sent = info.code() != SI_TKILL && unsafe { syscall(nr::RT_SIGQUEUEINFO, to_process) } == 0;
    if !is_sent {
        // (A thread may send itself what it may not send to its process.)
        send_again(info);
    }
}

/// Sends a signal that has come to the running thread once more, as it was; false: that is not possible.
#[inline(never)]
fn send_again(info: &Info) -> bool {
    let (process, thread) = (syscall0(nr::GETPID) as u64, syscall0(nr::GETTID) as u64);
    let arguments = [process, thread, u64::from(info.signal()), &raw const *info as u64, 0, 0];
    // SAFETY: what the kernel gave to the handler, to itself.
    unsafe { syscall(nr::RT_TGSIGQUEUEINFO, arguments) == 0 }
}

/// A signal ends the process, with the registers that it came at: it is sent once more, as it was, and comes when the handler returns.
fn end_by(base: u64, info: &Info, context: &mut Context) {
    let signal = u64::from(info.signal());
    let bit = 1 << (signal - 1);
    if is_armed(base) {
        switch(base, false);
    }
    context.set_mask(context.mask() & !bit);
    set_mask(context.mask() | bit);
    let default = [SIG_DFL; 4];
    // SAFETY: the signal is about to end the process, as it would without us.
    let is_default =
        unsafe { syscall(nr::RT_SIGACTION, [signal, default.as_ptr() as u64, 0, SIGNAL_SET_BYTES, 0, 0]) } == 0;
    if !is_default {
        // The process may not make such calls any more. Its instruction faults again, with the signal blocked.
        context.set_mask(context.mask() | bit);
    } else if !send_again(info) {
        // SAFETY: to itself.
        unsafe { syscall(nr::TKILL, [syscall0(nr::GETTID) as u64, signal, 0, 0, 0, 0]) };
    }
}
