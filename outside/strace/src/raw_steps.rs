//! A signal that stops a tracee inside ring3's code comes a little later.
//!
//! Natively no signal comes between the start of a call and the call itself, or between the call and its end: a signal that is sent then
//! interrupts the call, or comes behind its end. Where ring3's code records a call, it would come there: strace has been told of the start,
//! and the call is not made; or the call is made, and no record says with which result. So the signal is put off ([`Postponed`]).
//!
//! A stopping signal is neither put off nor sent again: a SIGCONT that has come meanwhile would not end that stop, and the thread would
//! stay stopped. For it the thread, with all signals blocked, executes one instruction after another, until it is out of ring3's code or
//! at the instruction that makes the call. (So it does while programs of other tools run.) If a SIGCONT has come then, the stop is over
//! before it begins, as in the kernel (kernel/signal.c:prepare_signal, JOBCTL_STOP_DEQUEUED). Where ring3's code is about to make a system
//! call in which it may wait, the signal comes after all, as it does if the instructions are too many.

use libc::{c_int, pid_t};
use ring3_layout::region::{REGION_BYTES, TRAMPOLINES_BYTES, TRAMPOLINES_OFFSET};
use ring3_layout::syscall::SYSCALL_BYTES;

use crate::process;
use crate::raw_calls::{mask, peek, plain, registers, set_mask, set_signal_info, signal_info, wait_for, with};
use crate::raw_postponed::{Block, Postponed};
use crate::raw_tracer::Event;
use crate::shim::{RAISED, RESTART_BLOCK, RESTARTS, STOPPING};

/// Instructions at most.
const STEPS_MAX: u32 = 3000;
/// Stops on the way into the kernel at most.
const STOPS_MAX: u32 = 16;
/// A stop at a system call.
const SYSCALL: c_int = libc::SIGTRAP | 0x80;
/// Offset of `rip` in `struct user`.
const RIP_AT: u64 = 16 * size_of::<u64>() as u64;

/// Where a process has ring3's code, and what that calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Where the region begins.
    pub(crate) region: u64,
    /// The vDSO: first address, and the one behind it.
    pub(crate) vdso: (u64, u64),
}

impl Places {
    fn have(&self, address: u64) -> bool {
        let (first, end) = self.vdso;
        self.have_in_region(address) || (first..end).contains(&address)
    }

    pub(crate) fn have_in_region(&self, address: u64) -> bool {
        (self.region..self.region + REGION_BYTES).contains(&address)
    }

    /// Whether ring3's own code is there, and not a call of the program's.
    pub(crate) fn have_of_ring3(&self, address: u64) -> bool {
        self.have_in_region(address) && !self.have_trampoline(address)
    }

    fn have_trampoline(&self, address: u64) -> bool {
        let first = self.region + TRAMPOLINES_OFFSET;
        (first..first + TRAMPOLINES_BYTES).contains(&address)
    }
}

/// What became of a signal's stop.
pub(crate) enum Settled {
    /// The stop in which the tracee is now, as if the signal had come so much later; or its end.
    At(Event),
    /// It runs, and gets the signal later.
    PutOff,
    /// It runs without the signal, which would have stopped it.
    TakenBack,
}

/// What is next.
enum Next {
    Step,
    PutOff(Block),
    Nothing,
}

/// See the module's documentation. `is_writing`: whether a thread is writing a record, which nobody can read until it goes on.
pub(crate) fn settle(
    event: Event,
    places: Option<Places>,
    postponed: &mut Postponed,
    is_writing: impl Fn(pid_t) -> bool,
) -> Settled {
    let Event { tid, status, .. } = event;
    let signal = libc::WSTOPSIG(status);
    let Some(mut info) = signal_info(tid) else { return Settled::At(event) };
    if RAISED.contains(&signal) && info.si_code > 0 {
        postponed.comes(tid);
        return Settled::At(event);
    }
    let next = |postponed: &Postponed| match places {
        Some(places) => next_of(tid, signal, places, postponed),
        None if is_writing(tid) => Next::Step,
        None => Next::Nothing,
    };
    let mut step = next(postponed);
    if let Next::PutOff(block) = step {
        postponed.put_off(block, info);
        return if plain(libc::PTRACE_SYSCALL, tid, 0).is_ok() { Settled::PutOff } else { Settled::At(event) };
    }
    let blocked = RAISED.iter().fold(!0u64, |mask, signal| mask & !(1 << (signal - 1)));
    let is_here = matches!(step, Next::Nothing) || places.is_some_and(|places| is_in_call(tid, places));
    let before = if is_here { Err(0) } else { mask(tid).and_then(|mask| set_mask(tid, blocked).map(|_| mask)) };
    let Ok(before) = before else {
        postponed.comes(tid);
        return Settled::At(event);
    };
    let mut others = Others::default();
    for _ in 0..STEPS_MAX {
        if !matches!(step, Next::Step) || plain(libc::PTRACE_SINGLESTEP, tid, 0).is_err() {
            break;
        }
        match wait_for(tid, 0) {
            Some(stop) if !libc::WIFSTOPPED(stop.status) => return Settled::At(stop),
            // (The trap of the step may still be pending.)
            Some(stop) if !others.note(stop.status) => continue,
            // (It is raised again when the tracee goes on.)
            Some(stop) if libc::WSTOPSIG(stop.status) != libc::SIGTRAP => break,
            _ => {}
        }
        step = next(postponed);
    }
    let _ = set_mask(tid, before);
    others.send(tid);
    if let Next::PutOff(block) = step {
        postponed.put_off(block, info);
        let _ = plain(libc::PTRACE_SYSCALL, tid, 0);
        return Settled::PutOff;
    }
    if is_taken_back(tid, signal) && plain(libc::PTRACE_CONT, tid, 0).is_ok() {
        return Settled::TakenBack;
    }
    let _ = set_signal_info(tid, &mut info);
    postponed.comes(tid);
    Settled::At(Event { tid, status, rusage: event.rusage })
}

/// What a thread that this signal has stopped is to do next.
fn next_of(tid: pid_t, signal: c_int, places: Places, postponed: &Postponed) -> Next {
    let at = peek(libc::PTRACE_PEEKUSER, tid, RIP_AT).filter(|at| places.have(*at));
    let Some((at, now)) = at.and_then(|at| Some((at, registers(tid).ok()?))) else { return Next::Nothing };
    if is_for_jobs(signal) {
        let code = peek(libc::PTRACE_PEEKTEXT, tid, at);
        let is_call = code.is_some_and(|code| code as u16 == u16::from_le_bytes([0x0f, 0x05]));
        let stays = is_call && (places.have_trampoline(at) || !ends_at_once(now.rax as i64, now.rsi));
        return if stays { Next::Nothing } else { Next::Step };
    }
    let is_in_call = places.have_trampoline(at) && now.orig_rax as i64 >= 0;
    match Block::of(tid, places, &now).filter(|_| !is_in_call) {
        Some(block) if postponed.is_early(block, &now) => Next::PutOff(block),
        // (Those of other tools.)
        Some(block) if block.runs_any() => Next::Step,
        _ => Next::Nothing,
    }
}

/// Whether a signal stops a process, or lets it go on.
fn is_for_jobs(signal: c_int) -> bool {
    signal == libc::SIGCONT || STOPPING.contains(&signal)
}

/// Whether a signal stops a process, and a SIGCONT has come since.
pub(crate) fn is_taken_back(tid: pid_t, signal: c_int) -> bool {
    STOPPING.contains(&signal) && process::has_pending(tid, libc::SIGCONT)
}

/// The same of a signal that comes to a thread whose call the server may have interrupted: what it waited for may have happened since,
/// and natively it would have been told of that first. So the call is made again, and the signal is sent to it there.
/// `None`: no call is made again.
pub(crate) fn settle_in_call(event: Event, postponed: &mut Postponed) -> Option<Settled> {
    let Event { tid, status, .. } = event;
    let signal = libc::WSTOPSIG(status);
    let (mut info, before, now) = (signal_info(tid)?, mask(tid).ok()?, registers(tid).ok()?);
    let (number, result) = (now.orig_rax as i64, now.rax as i64);
    let is_made_again = number >= 0 && RESTARTS.contains(&result) && result != RESTART_BLOCK;
    if !is_made_again || is_for_jobs(signal) || RAISED.contains(&signal) || set_mask(tid, !0).is_err() {
        return None;
    }
    let mut again =
        libc::user_regs_struct { rip: now.rip - SYSCALL_BYTES, rax: now.orig_rax, orig_rax: u64::MAX, ..now };
    let mut others = Others::default();
    let entered = with(libc::PTRACE_SETREGS, tid, 0, &mut again).ok().and_then(|_| enter(tid, &mut others));
    if let Some(stop) = entered
        && !libc::WIFSTOPPED(stop.status)
    {
        return Some(Settled::At(stop));
    }
    let _ = set_mask(tid, before);
    if entered.is_none() {
        let _ = set_signal_info(tid, &mut info);
    }
    others.send(tid);
    if entered.is_none() {
        postponed.comes(tid);
        return Some(Settled::At(event));
    }
    let _ = plain(postponed.enters_call(tid, info), tid, 0);
    Some(Settled::PutOff)
}

/// Whether a tracee is in a system call, or at its end, where a signal comes as it would natively. (Not in one of ring3's own.)
fn is_in_call(tid: pid_t, places: Places) -> bool {
    registers(tid).is_ok_and(|registers| {
        let call = registers.orig_rax as i64;
        let is_own = places.have(registers.rip) && !places.have_trampoline(registers.rip);
        let has_ended = ends_at_once(call, registers.rsi) && !RESTARTS.contains(&(registers.rax as i64));
        call >= 0 && !(is_own && has_ended)
    })
}

/// Whether a system call of ring3's own, with this second argument, neither waits nor depends on the signals that are blocked.
fn ends_at_once(call: i64, second: u64) -> bool {
    const OPERATION: u64 = 127;
    match call {
        libc::SYS_futex => second & OPERATION == libc::FUTEX_WAKE as u64,
        libc::SYS_clock_gettime | libc::SYS_process_vm_readv | libc::SYS_gettid | libc::SYS_getpid => true,
        _ => false,
    }
}

/// Lets a tracee that is about to make a system call enter the kernel. The result is its stop there, or its end.
fn enter(tid: pid_t, others: &mut Others) -> Option<Event> {
    for _ in 0..STOPS_MAX {
        plain(libc::PTRACE_SYSCALL, tid, 0).ok()?;
        let stop = wait_for(tid, 0)?;
        if !libc::WIFSTOPPED(stop.status) || stop.status >> 16 == 0 && libc::WSTOPSIG(stop.status) == SYSCALL {
            return Some(stop);
        }
        others.note(stop.status);
    }
    None
}

/// What comes meanwhile, and is to come again.
#[derive(Default)]
struct Others {
    was_interrupted: bool,
    signal: Option<c_int>,
}

impl Others {
    /// Whether a stop is one of a step, or of a signal that an instruction has raised.
    fn note(&mut self, status: c_int) -> bool {
        let signal = libc::WSTOPSIG(status);
        if status >> 16 != 0 {
            // (In such a stop no signal can be delivered.)
            self.was_interrupted = true;
        } else if RAISED.contains(&signal) {
            return true;
        } else {
            // (SIGSTOP: all others are blocked.)
            self.signal = Some(signal);
        }
        false
    }

    fn send(&self, tid: pid_t) {
        if let Some(signal) = self.signal.filter(|signal| !is_taken_back(tid, *signal)) {
            // SAFETY: takes numbers.
            unsafe { libc::syscall(libc::SYS_tkill, tid, signal) };
        }
        if self.was_interrupted {
            let _ = plain(libc::PTRACE_INTERRUPT, tid, 0);
        }
    }
}
