//! Signals that programs send to the thread or process that they run in (`bpf_send_signal`, `bpf_send_signal_thread`).
//!
//! The kernel makes the signal pending, and the thread gets it when it returns from the probe, behind all programs. Here the helper
//! only notes it, and the thread sends it to itself once the guard is clear (`send_wanted`): a handler never runs in the middle of
//! a program, and may do what it likes. To itself a thread may send what looks like the kernel's (`SI_KERNEL`).

use ring3_layout::control::{ATTACHMENT_ALONE, Attachment};
use ring3_layout::sud::FIRST_QUEUED;
use ring3_layout::thread::{TO_PROCESS, TO_THREAD, ThreadBlock};
use ring3_uapi::Errno;
use ring3_uapi::nr;

use crate::raw_actions::is_taken;
use crate::raw_helpers::{answer, block};
use crate::raw_identity::pid_namespace_of;
use crate::raw_sud::SENT_BY_PROGRAM;
use crate::raw_system::{may_call, syscall};

/// `si_code`
const SI_KERNEL: u32 = 0x80;
/// Words of `siginfo_t`.
const INFO_WORDS: usize = 32;
/// The inode of the first pid namespace (`PROC_PID_INIT_INO`).
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// `bpf_send_signal`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn send_signal(signal: u64, _: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    answer(want(unsafe { block(env) }, signal as u32, TO_PROCESS).map(|()| 0))
}

/// `bpf_send_signal_thread`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn send_signal_thread(signal: u64, _: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    answer(want(unsafe { block(env) }, signal as u32, TO_THREAD).map(|()| 0))
}

/// Notes a signal. Mirrors kernel/trace/bpf_trace.c:bpf_send_signal_common (v6.18).
fn want(tb: &mut ThreadBlock, signal: u32, whom: usize) -> Result<(), Errno> {
    let call = if whom == TO_PROCESS { nr::RT_SIGQUEUEINFO } else { nr::RT_TGSIGQUEUEINFO };
    // SAFETY: dispatch set the attachment that runs.
    let is_alone = unsafe { (*(tb.attachment as *const Attachment)).flags } & ATTACHMENT_ALONE != 0;
    if is_alone || is_first_process(tb) || !may_call(tb.region_base, call) {
        return Err(Errno::EPERM);
    }
    let Some(place) = (signal as usize).checked_sub(1) else { return Ok(()) };
    let count = tb.wanted_signals.get_mut(whom).and_then(|all| all.get_mut(place)).ok_or(Errno::EINVAL)?;
    if signal < FIRST_QUEUED && *count != 0 {
        return Ok(());
    }
    *count = count.checked_add(1).ok_or(Errno::EBUSY)?;
    tb.signals += 1;
    Ok(())
}

/// Whether the process may be the machine's init, which must not be ended (include/linux/sched.h:is_global_init).
fn is_first_process(tb: &mut ThreadBlock) -> bool {
    let is_first = |tb| [0, FIRST_PID_NAMESPACE].contains(&pid_namespace_of(tb)[1]);
    tb.pid_tgid >> 32 == 1 && is_first(tb)
}

/// Sends what programs of this thread want to be sent. The guard is as it was before they ran.
///
/// # Safety
/// `tb` is the running thread's own block. (A handler that runs here may use it, too.)
#[inline(always)]
pub(crate) unsafe fn send_wanted(tb: *mut ThreadBlock) {
    // SAFETY: the caller's promise.
    if unsafe { (*tb).signals } != 0 {
        // SAFETY: the caller's promise.
        unsafe { send_all(tb) }
    }
}

/// # Safety
/// As for [`send_wanted`].
#[cold]
#[inline(never)]
unsafe fn send_all(tb: *mut ThreadBlock) {
    // (No more than there are now: a tracer may have one that has come put off until programs have run again.)
    // SAFETY: the caller's promise.
    for _ in 0..unsafe { (*tb).signals } {
        // SAFETY: the caller's promise.
        let Some((signal, whom)) = next(unsafe { &mut *tb }) else { return };
        // SAFETY: the caller's promise.
        let tb = unsafe { &*tb };
        let errno = if is_taken(tb.region_base, signal) { SENT_BY_PROGRAM } else { 0 };
        if send(tb.pid_tgid, signal, whom, errno, SI_KERNEL) == Errno::EAGAIN.negated() {
            // (As the kernel does where too many are queued: without what it says of itself.)
            send(tb.pid_tgid, signal, whom, errno, 0);
        }
    }
}

/// Takes the next signal that is wanted.
fn next(tb: &mut ThreadBlock) -> Option<(u64, usize)> {
    if tb.signals == 0 {
        return None;
    }
    let all = tb.wanted_signals.iter_mut().enumerate();
    let mut counts =
        all.flat_map(|(whom, counts)| (1..).zip(counts).map(move |(signal, count)| (whom, signal, count)));
    let Some((whom, signal, count)) = counts.find(|(.., count)| **count != 0) else {
        tb.signals = 0;
        return None;
    };
    *count -= 1;
    tb.signals -= 1;
    Some((signal, whom))
}

fn send(ids: u64, signal: u64, whom: usize, errno: u32, code: u32) -> i64 {
    let (pid, tid) = (ids >> 32, u64::from(ids as u32));
    let mut info = [0u32; INFO_WORDS];
    let [first, second, third, ..] = &mut info;
    (*first, *second, *third) = (signal as u32, errno, code);
    let at = &raw const info as u64;
    if whom == TO_PROCESS {
        // (The process of this thread: kernel/signal.c:do_rt_sigqueueinfo lets a thread say this only by its own id.)
        // SAFETY: the kernel reads a siginfo_t.
        unsafe { syscall(nr::RT_SIGQUEUEINFO, [tid, signal, at, 0, 0, 0]) }
    } else {
        // SAFETY: the kernel reads a siginfo_t.
        unsafe { syscall(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal, at, 0, 0]) }
    }
}
