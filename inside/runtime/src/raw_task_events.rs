//! Programs of a task's life ([`TaskEvent`], docs/design/life.md): they run at the system calls that have the kernel come to these
//! tracepoints, on the thread that makes the call.
//!
//! A beginning is seen where it is certain: behind the call. Ends and signals are seen before the call, from which the thread may
//! not return; what the kernel would refuse is found out first.

use core::ptr::copy_nonoverlapping;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ring3_layout::realm::request;
use ring3_layout::sampled::Sampled;
use ring3_layout::task::TaskAddress;
use ring3_layout::task_event::{
    COMM_BYTES, ExecContext, ExitContext, FixedForkContext, ForkContext, PATH_BYTES, Receiver, SEEN_EXITS, SI_TKILL,
    SIGCHLD, SIGCONT, SignalContext, TaskEvent, data_loc, seen_exit,
};
use ring3_layout::thread::{EXIT_CODE_SET, ThreadBlock};
use ring3_uapi::nr;
use ring3_uapi::ptrace::PtRegs;

use crate::raw_identity::{comm_of, uid_gid_of};
use crate::raw_kernel::own_task;
use crate::raw_memory::{read_own, read_own_word, read_user_string};
use crate::raw_proc::{self, Task};
use crate::raw_request::{control, file, realm};
use crate::raw_syscalls::{Programs, block_of, run_programs, tables};
use crate::raw_system::{syscall, syscall0};
use crate::raw_thread::set_ids;

/// `PF_EXITING` (include/linux/sched.h).
const PF_EXITING: u64 = 4;
/// `MAX_RT_PRIO`: what `/proc/PID/stat` subtracts.
const MAX_RT_PRIO: i32 = 100;
/// Signals that there are.
const SIGNALS: i32 = 64;
const CLD_EXITED: i32 = 1;
/// Fields of `/proc/PID/stat`.
const STAT_PGRP: u16 = 5;
const STAT_FLAGS: u16 = 9;
const STAT_PRIORITY: u16 = 18;
const STAT_THREADS: u16 = 20;
const STAT_EXIT_SIGNAL: u16 = 38;

/// The packed range of the attachments that see an event.
fn range_of(base: u64, event: TaskEvent) -> u64 {
    tables(base).task_events.get(event as usize).map_or(0, |range| range.load(Acquire))
}

fn is_wanted(base: u64, event: TaskEvent) -> bool {
    range_of(base, event) != 0
}

/// Whether programs see ends.
fn is_ending_shown(base: u64) -> bool {
    is_wanted(base, TaskEvent::Exit) || is_wanted(base, TaskEvent::SignalGenerate)
}

/// The arguments of a raw tracepoint, behind the address of the registers.
#[repr(C)]
struct Raw {
    regs: u64,
    arguments: [u64; 5],
}

impl Raw {
    fn new(regs: &PtRegs, arguments: [u64; 5]) -> Raw {
        Raw { regs: &raw const *regs as u64, arguments }
    }
}

fn bytes_of(comm: [u64; 2]) -> [u8; COMM_BYTES] {
    let mut bytes = [0; COMM_BYTES];
    for (to, byte) in bytes.iter_mut().zip(comm.iter().flat_map(|word| word.to_le_bytes())) {
        *to = byte;
    }
    bytes
}

fn words_of(comm: &[u8; COMM_BYTES]) -> [u64; 2] {
    let mut words = [0; 2];
    // SAFETY: both have 16 bytes.
    unsafe { copy_nonoverlapping(comm.as_ptr(), words.as_mut_ptr().cast(), COMM_BYTES) };
    words
}

/// A new program is about to begin. `regs` are those at its first instruction.
///
/// # Safety
/// `regs` are valid registers, on the stack on which the thread is.
#[inline(never)]
pub(crate) unsafe fn executed(base: u64, regs: &mut PtRegs) {
    if !is_wanted(base, TaskEvent::Exec) {
        return;
    }
    let Some(tb) = block_of(base, regs) else { return };
    let tid = tb.pid_tgid as u32;
    let old_pid = match tables(base).executed_by.load(Relaxed) {
        0 => tid,
        other => other,
    };
    let at = &raw const *regs as u64;
    let mut context = ExecContext { regs: at, filename: 0, pid: tid, old_pid, text: [0; PATH_BYTES] };
    let (to, room) = (context.text.as_mut_ptr() as u64, PATH_BYTES as u64);
    // SAFETY: there is room.
    let read = executed_path(regs.rsp).map(|from| unsafe { read_user_string(tb, to, from, room) });
    // (Without it, it is empty.)
    let bytes = read.and_then(Result::ok).unwrap_or(1).max(1);
    context.filename = data_loc(core::mem::offset_of!(ExecContext, text), bytes as usize);
    let raw = Raw::new(regs, [own_task(tb).address(), old_pid.into(), 0, 0, 0]);
    // SAFETY: contexts of this event.
    unsafe { show(base, tb, regs, TaskEvent::Exec, &raw, &raw const context as u64, 0, 0) };
}

/// Address of the path that was executed: the kernel gives it to the program (`AT_EXECFN`), which begins with this stack.
fn executed_path(sp: u64) -> Option<u64> {
    const AT_EXECFN: u64 = 31;
    /// Words of arguments and of the environment at most: a quarter of a stack of 8 MiB, the usual limit.
    const WORDS_MAX: u64 = 1 << 18;
    let word = |index: u64| read_own_word(sp + 8 * index).ok();
    let mut at = word(0)?.checked_add(2)?;
    while at < WORDS_MAX && word(at)? != 0 {
        at += 1;
    }
    at += 1;
    while at < WORDS_MAX {
        match word(at)? {
            0 => return None,
            AT_EXECFN => return word(at + 1),
            _ => at += 2,
        }
    }
    None
}

/// A thread has been created: by the thread with these registers, or by who has lent it the block. `child` is its id.
///
/// # Safety
/// `regs` are valid registers, on the stack on which the thread is or on an agent stack.
#[inline(never)]
pub(crate) unsafe fn created(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, child: Option<u32>) {
    let own = tb.pid_tgid;
    if let Some(child) = child
        && child != own as u32
        && is_ending_shown(base)
        && Task::new(tb, child).tgid() == Some(child)
    {
        // (It may end before it says so itself.)
        file(base, request::KIND_FORKED, u64::from(child) << 32 | u64::from(child), 0, false);
    }
    if !is_wanted(base, TaskEvent::Fork) {
        return;
    }
    let child = child.unwrap_or_else(|| {
        // The creator waits. It is the one that the kernel shows.
        set_ids(tb, tb.generation << 32 | u64::from(tb.tcb_tid));
        own as u32
    });
    let (at, parent) = (&raw const *regs as u64, tb.pid_tgid as u32);
    let comm = bytes_of(comm_of(tb));
    let task = own_task(tb);
    let of_child = TaskAddress { tid: child, ..task };
    let raw = Raw::new(regs, [task.address(), of_child.address(), 0, 0, 0]);
    if tables(base).fork_is_fixed.load(Relaxed) != 0 {
        let context =
            FixedForkContext { regs: at, parent_comm: comm, parent_pid: parent, child_comm: comm, child_pid: child };
        // SAFETY: contexts of this event.
        unsafe { show(base, tb, regs, TaskEvent::Fork, &raw, &raw const context as u64, 0, 0) };
    } else {
        let bytes = comm.iter().position(|byte| *byte == 0).unwrap_or(COMM_BYTES - 1) + 1;
        let mut context = ForkContext {
            regs: at,
            parent_comm: 0,
            parent_pid: parent,
            child_comm: 0,
            child_pid: child,
            text: [0; 32],
        };
        let first = core::mem::offset_of!(ForkContext, text);
        (context.parent_comm, context.child_comm) = (data_loc(first, bytes), data_loc(first + bytes, bytes));
        for (to, byte) in context.text.iter_mut().zip(comm.iter().take(bytes).chain(&comm)) {
            *to = *byte;
        }
        // SAFETY: contexts of this event.
        unsafe { show(base, tb, regs, TaskEvent::Fork, &raw, &raw const context as u64, 0, 0) };
    }
    set_ids(tb, own);
}

/// The thread is about to end, and with it all of its process if it is a `group`'s end, with this status.
///
/// # Safety
/// As for [`created`].
#[inline(never)]
pub(crate) unsafe fn ending(base: u64, regs: &mut PtRegs, status: u64, group: bool) {
    if !is_ending_shown(base) {
        return;
    }
    let (exits, signals) = (is_wanted(base, TaskEvent::Exit), is_wanted(base, TaskEvent::SignalGenerate));
    let Some(tb) = block_of(base, regs) else { return };
    let ids = tb.pid_tgid;
    let (tgid, tid) = ((ids >> 32) as u32, ids as u32);
    let code = EXIT_CODE_SET | (status & 0xff) << 8;
    let is_last = group || is_alone(tb);
    if exits && group && Task::new(tb, tid).stat(STAT_THREADS) != Some(1) {
        raw_proc::each(true, |other| {
            if other != tid && !is_ending(Task::new(tb, other)) {
                // SAFETY: as for this function.
                unsafe { end_of_other(base, tb, regs, other, code) };
            }
            true
        });
    }
    if exits {
        let comm = bytes_of(comm_of(tb));
        // SAFETY: as for this function.
        unsafe { end_of(base, tb, regs, comm, is_last, code, 0) };
    }
    if is_last && signals {
        let exit_signal = Task::new(tb, tgid).stat(STAT_EXIT_SIGNAL).unwrap_or(0) as i32;
        // SAFETY: as for this function.
        unsafe { tell_parent(base, tb, regs, exit_signal, code) };
    }
    if is_last {
        let entry = realm(base).seen_exits.get(tgid as usize % SEEN_EXITS);
        entry.iter().for_each(|entry| entry.store(seen_exit(control(base).nonce, tgid), Release));
    }
}

fn is_ending(task: Task) -> bool {
    task.stat(STAT_FLAGS).is_none_or(|flags| flags & PF_EXITING != 0)
}

/// Whether all other threads have ended, or are about to.
fn is_alone(tb: &ThreadBlock) -> bool {
    /// So many may be about to end at the same time.
    const ENDING_MAX: u64 = 16;
    let tid = tb.pid_tgid as u32;
    match Task::new(tb, tid).stat(STAT_THREADS) {
        Some(1) | None => true,
        Some(threads) if threads > ENDING_MAX => false,
        Some(_) => {
            let mut is_alone = true;
            raw_proc::each(true, |other| {
                is_alone = other == tid || is_ending(Task::new(tb, other));
                is_alone
            });
            is_alone
        }
    }
}

/// Another thread ends, since the running one ends the process.
///
/// # Safety
/// As for [`created`].
#[inline(never)]
unsafe fn end_of_other(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, tid: u32, code: u64) {
    let mut comm = [0; COMM_BYTES];
    let _ = Task::new(tb, tid).comm(&mut comm);
    let pid_tgid = tb.pid_tgid >> 32 << 32 | u64::from(tid);
    let other = Sampled { pid_tgid, uid_gid: uid_gid_of(tb), comm: words_of(&comm), ..Sampled::default() };
    // SAFETY: the caller's promise.
    unsafe { end_of(base, tb, regs, comm, false, code, &raw const other as u64) };
}

/// Shows the end of the running thread, or of that for which `sampled` stands.
///
/// # Safety
/// As for [`created`]; `sampled` is 0 or the address of a [`Sampled`].
unsafe fn end_of(
    base: u64,
    tb: &mut ThreadBlock,
    regs: &mut PtRegs,
    comm: [u8; COMM_BYTES],
    is_last: bool,
    code: u64,
    sampled: u64,
) {
    // SAFETY: the caller's promise.
    let tid = unsafe { (sampled as *const Sampled).as_ref() }.map_or(tb.pid_tgid, |sampled| sampled.pid_tgid) as u32;
    let priority = Task::new(tb, tid).stat(STAT_PRIORITY).map_or(0, |priority| priority as i32);
    let context = ExitContext {
        regs: &raw const *regs as u64,
        comm,
        pid: tid,
        prio: priority + MAX_RT_PRIO,
        group_dead: is_last.into(),
        reserved: 0,
    };
    let task = TaskAddress { tid, ..own_task(tb) };
    let raw = Raw::new(regs, [task.address(), is_last.into(), 0, 0, 0]);
    // SAFETY: contexts of this event.
    unsafe { show(base, tb, regs, TaskEvent::Exit, &raw, &raw const context as u64, sampled, code) };
}

/// The parent gets the signal that a process sends when it ends. Mirrors kernel/signal.c:do_notify_parent (v6.18).
///
/// # Safety
/// As for [`created`].
unsafe fn tell_parent(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, sig: i32, code: u64) {
    if !(1..=SIGNALS).contains(&sig) {
        return;
    }
    let parent = syscall0(nr::GETPPID) as u32;
    let receiver = Task::new(tb, parent).receiver().unwrap_or_default();
    if sig == SIGCHLD && receiver.ignored & 1 << (SIGCHLD - 1) != 0 {
        return;
    }
    let signal = Signal { sig, group: true, errno: 0, code: CLD_EXITED };
    // SAFETY: the caller's promise.
    unsafe { generate(base, tb, regs, signal, (parent, &receiver), code) };
}

/// A signal as it is sent.
#[derive(Clone, Copy)]
struct Signal {
    sig: i32,
    group: bool,
    errno: i32,
    code: i32,
}

/// The thread is about to make a call of this number, which may send a signal. Mirrors kernel/signal.c:kill_something_info,
/// do_tkill, do_rt_sigqueueinfo, do_rt_tgsigqueueinfo and do_pidfd_send_signal (v6.18).
///
/// # Safety
/// As for [`created`].
#[inline(never)]
pub(crate) unsafe fn sending(base: u64, regs: &mut PtRegs, number: i64) {
    const PIDFD_SIGNAL_THREAD: u64 = 1;
    const PIDFD_SIGNAL_PROCESS_GROUP: u64 = 4;
    if !is_wanted(base, TaskEvent::SignalGenerate) {
        return;
    }
    let (first, second, third, fourth) = (regs.rdi, regs.rsi, regs.rdx, regs.r10);
    let user = |sig: u64| Signal { sig: sig as i32, group: true, errno: 0, code: 0 };
    // Who gets it; 0 and less as for kill(2).
    let (to, signal, asked) = match number {
        nr::KILL => (first as i32, user(second), [first, 0, 0]),
        nr::TKILL => (first as i32, Signal { group: false, code: SI_TKILL, ..user(second) }, [first, 0, 0]),
        nr::TGKILL => (second as i32, Signal { group: false, code: SI_TKILL, ..user(third) }, [first, second, 0]),
        nr::RT_SIGQUEUEINFO => match with_info(user(second), third) {
            Some(signal) => (first as i32, signal, [first, 0, 0]),
            None => return,
        },
        nr::RT_TGSIGQUEUEINFO => match with_info(user(third), fourth) {
            Some(signal) => (second as i32, Signal { group: false, ..signal }, [first, second, 0]),
            None => return,
        },
        nr::PIDFD_SEND_SIGNAL => {
            let Some(pid) = raw_proc::process_of(first as u32) else { return };
            let thread = fourth & PIDFD_SIGNAL_THREAD != 0;
            let plain = Signal { group: !thread, code: if thread { SI_TKILL } else { 0 }, ..user(second) };
            let told = if third == 0 { Some(plain) } else { with_info(plain, third) };
            let Some(signal) = told else { return };
            let to = if fourth & PIDFD_SIGNAL_PROCESS_GROUP != 0 { -(pid as i32) } else { pid as i32 };
            (to, signal, [first, 0, 0])
        }
        _ => return,
    };
    if !(1..=SIGNALS).contains(&signal.sig) {
        return;
    }
    let Some(tb) = block_of(base, regs) else { return };
    let own = (tb.pid_tgid >> 32) as i32;
    // What others get must not look as if the kernel had sent it, or kill(2).
    let is_told = matches!(number, nr::RT_SIGQUEUEINFO | nr::RT_TGSIGQUEUEINFO)
        || third != 0 && number == nr::PIDFD_SEND_SIGNAL;
    if is_told && (signal.code >= 0 || signal.code == SI_TKILL) && to != tb.pid_tgid as i32 {
        return;
    }
    if to > 0 {
        let check = if matches!(number, nr::RT_SIGQUEUEINFO) { nr::KILL } else { number };
        let check = if matches!(check, nr::RT_TGSIGQUEUEINFO) { nr::TGKILL } else { check };
        let flags = if number == nr::PIDFD_SEND_SIGNAL { fourth } else { 0 };
        // SAFETY: with signal 0 they ask only.
        let answer = unsafe { syscall(check, [asked[0], asked[1], 0, flags, 0, 0]) };
        if may_send(answer, to as u32, signal.sig) {
            // SAFETY: the caller's promise.
            unsafe { generate_to(base, tb, regs, signal, to as u32) };
        }
        return;
    }
    let group = match to {
        0 => Task::new(tb, own as u32).stat(STAT_PGRP),
        -1 => None,
        group => Some(u64::from(group.unsigned_abs())),
    };
    raw_proc::each(false, |pid| {
        let is_meant = match group {
            Some(group) => Task::new(tb, pid).stat(STAT_PGRP) == Some(group),
            None => pid > 1 && pid != own as u32,
        };
        // SAFETY: with signal 0 it asks only.
        if is_meant && may_send(unsafe { syscall(nr::KILL, [pid.into(), 0, 0, 0, 0, 0]) }, pid, signal.sig) {
            // SAFETY: the caller's promise.
            unsafe { generate_to(base, tb, regs, signal, pid) };
        }
        true
    });
}

/// Whether a signal may be sent, where the kernel has answered this for signal 0. Mirrors
/// kernel/signal.c:check_kill_permission: SIGCONT may be sent to whoever is in the same session.
fn may_send(answer: i64, to: u32, sig: i32) -> bool {
    const EPERM: i64 = -1;
    // SAFETY: takes no address.
    let session = |of: u32| unsafe { syscall(nr::GETSID, [of.into(), 0, 0, 0, 0, 0]) };
    answer == 0 || answer == EPERM && sig == SIGCONT && session(to) == session(0)
}

/// With what a `siginfo_t` of the sender's says.
fn with_info(signal: Signal, address: u64) -> Option<Signal> {
    let mut words = [0u32; 4];
    // SAFETY: there is room for the words; the address may be any.
    unsafe { read_own(words.as_mut_ptr() as u64, address, size_of_val(&words) as u64) }.ok()?;
    let [_, errno, code, _] = words;
    Some(Signal { errno: errno as i32, code: code as i32, ..signal })
}

/// # Safety
/// As for [`created`].
unsafe fn generate_to(base: u64, tb: &mut ThreadBlock, regs: &mut PtRegs, signal: Signal, to: u32) {
    let receiver = Task::new(tb, to).receiver().unwrap_or_default();
    // SAFETY: the caller's promise.
    unsafe { generate(base, tb, regs, signal, (to, &receiver), 0) };
}

/// # Safety
/// As for [`created`].
unsafe fn generate(
    base: u64,
    tb: &mut ThreadBlock,
    regs: &mut PtRegs,
    signal: Signal,
    (to, receiver): (u32, &Receiver),
    code: u64,
) {
    let result = receiver.result(signal.sig, signal.group);
    let context = SignalContext {
        regs: &raw const *regs as u64,
        sig: signal.sig,
        errno: signal.errno,
        code: signal.code,
        comm: receiver.comm,
        pid: to,
        group: signal.group.into(),
        result,
    };
    let task = TaskAddress { tid: to, ..own_task(tb) };
    let raw = Raw::new(regs, [signal.sig as u64, 0, task.address(), signal.group.into(), result.into()]);
    // SAFETY: contexts of this event.
    unsafe { show(base, tb, regs, TaskEvent::SignalGenerate, &raw, &raw const context as u64, 0, code) };
}

/// Runs the programs that see an event.
///
/// # Safety
/// As for [`created`]; the contexts are this event's.
#[expect(clippy::too_many_arguments, reason = "what there is of an event")]
unsafe fn show(
    base: u64,
    tb: &mut ThreadBlock,
    regs: &mut PtRegs,
    event: TaskEvent,
    raw: &Raw,
    trace: u64,
    sampled: u64,
    exit_code: u64,
) {
    let raw = raw.arguments.as_ptr() as u64;
    let programs = Programs { range: || range_of(base, event), raw, trace, result: None, sampled, exit_code };
    // SAFETY: the caller's promise.
    unsafe { run_programs(base, tb, regs, programs) };
}
