//! Makes an unwinder find a cancelled thread at its system call, not in ring3's code (docs/design/syscalls.md).
//!
//! glibc before 2.41 cancels a thread in a call by SIGCANCEL, whose handler unwinds the stack from the interrupted instruction;
//! so does every thread with asynchronous cancellation. An unwinder knows nothing of ring3's code and would stop there:
//! destructors and clean-up code would not run. So the agent's handler of SIGCANCEL runs before the process's own. If the thread
//! is in a syscall trampoline, the signal frame says that it is at the call itself until the handler returns. If the
//! thread is elsewhere in ring3's code, the signal is delivered again a moment later.

use core::sync::atomic::Ordering::{Acquire, Release};

use ring3_layout::region::{REGION_BYTES, TRAMPOLINES_BYTES, TRAMPOLINES_OFFSET};
use ring3_layout::syscall::{Progress, SIGCANCEL, SYSCALL_BYTES, TRAMPOLINE_BYTES, progress};
use ring3_uapi::nr;

use crate::raw_shown::{is_in_stubs, returns_by_trampoline, show};
use crate::raw_sud::{self, Context, sud};
use crate::raw_syscalls::{site, tables};
use crate::raw_system::{syscall, syscall0};
use crate::raw_thread::{current, known};

const CLOCK_MONOTONIC: u64 = 1;
const SIGEV_THREAD_ID: u32 = 4;
const SIG_IGN: u64 = 1;
const SI_TIMER: i32 = -2;
const SI_TKILL: i32 = -6;
/// When the signal comes again, ns: what runs in our code has mostly ended by then.
const AGAIN_NS: u64 = 50_000;

/// What the kernel tells of a signal that a thread or a timer has sent (`siginfo_t`, include/uapi/asm-generic/siginfo.h).
#[repr(C)]
pub struct Sent {
    signal: i32,
    errno: i32,
    code: i32,
    pad: i32,
    /// Process id of the sender, or the timer.
    sender: i32,
    /// User id of the sender, or how often the timer ran over.
    user: i32,
    /// What the timer was given.
    value: u64,
}

/// `struct sigevent`.
#[repr(C)]
struct Event {
    value: u64,
    signal: u32,
    notify: u32,
    thread: u32,
    rest: [u32; 11],
}

/// Makes an action that the process wants for SIGCANCEL one with the agent's handler, if the server has told of it.
pub(crate) fn interpose_cancel_handler(base: u64, action: &mut [u64; 4]) {
    let [handler, ..] = action;
    let ours = tables(base).cancel_handler.load(Acquire);
    if ours != 0 && *handler > SIG_IGN && *handler != ours {
        sud(base).cancel_handler.store(*handler, Release);
        *handler = ours;
    }
}

/// Whether a handler of SIGCANCEL is the agent's.
pub(crate) fn is_ours(base: u64, handler: u64) -> bool {
    let ours = tables(base).cancel_handler.load(Acquire);
    ours != 0 && handler == ours
}

/// SIGCANCEL has come: the handler that the thread goes on with; 0: none.
///
/// # Safety
/// Called by the agent's handler, with what the kernel gave it; `frame` is the word that it returns by.
pub unsafe fn arrived(base: u64, sent: *mut Sent, context: *mut Context, frame: *const u64) -> u64 {
    let handler = sud(base).cancel_handler.load(Acquire);
    // SAFETY: the caller's promise.
    let sent = unsafe { &mut *sent };
    // SAFETY: the caller's promise.
    let context = unsafe { &mut *context };
    let own_pid = syscall0(nr::GETPID) as i32;
    let comes_late = sent.code == SI_TIMER && sent.value == base;
    if comes_late {
        // SAFETY: a timer of ours.
        unsafe { syscall(nr::TIMER_DELETE, [sent.sender as u64, 0, 0, 0, 0, 0]) };
        (sent.code, sent.sender, sent.user) = (SI_TKILL, own_pid, syscall0(nr::GETUID) as i32);
        note_postponed(base, 0);
    }
    let rip = context.rip();
    if let Some(place) = place_of(base, rip) {
        // SAFETY: the caller's promise.
        let restorer = unsafe { *frame };
        // (Who goes back to a place where a jump stands must be led to the trampoline. No thread is in the middle of a
        // search while it is in a trampoline.)
        if (place.is_free || returns_by_trampoline(base, restorer))
            // SAFETY: the running thread's own block, or null.
            && let Some(tb) = unsafe { current(base).as_mut() }
        {
            show(tb, context, place.address);
        }
        return handler;
    }
    // (What another process has sent the handler does not obey.)
    let cancels = sent.code == SI_TKILL && sent.sender == own_pid;
    let is_our_code = rip.wrapping_sub(base) < REGION_BYTES || is_in_stubs(base, rip);
    if cancels && is_our_code && postpone(base) {
        note_postponed(base, 1);
        return 0;
    }
    handler
}

/// Notes whether the signal comes again, where the thread is known.
fn note_postponed(base: u64, waits: u32) {
    // SAFETY: the running thread's own block, or null. (To search for it is what may have been interrupted.)
    if let Some(tb) = unsafe { known(base).as_mut() } {
        tb.cancel_waits = waits;
    }
}

/// The process's own place for a thread in a trampoline.
struct Place {
    /// Of the call, or behind it.
    address: u64,
    /// There is no jump of ours.
    is_free: bool,
}

/// The process's own address for a thread that is in ring3's code to make a system call.
pub(crate) fn place_of_call(base: u64, rip: u64) -> Option<u64> {
    place_of(base, rip).map(|place| place.address)
}

fn place_of(base: u64, rip: u64) -> Option<Place> {
    let offset = rip.wrapping_sub(base + TRAMPOLINES_OFFSET);
    let (behind, progress, is_free) = if offset < TRAMPOLINES_BYTES {
        let site = site(base, (offset / TRAMPOLINE_BYTES) as u32);
        let behind = if site.call == 0 { return None } else { site.call + SYSCALL_BYTES };
        (behind, progress(site.number >= 0, offset % TRAMPOLINE_BYTES), site.site == 0)
    } else {
        let (behind, progress) = raw_sud::place_of(base, rip)?;
        (behind, progress, true)
    };
    let address = if progress == Progress::Before { behind - SYSCALL_BYTES } else { behind };
    Some(Place { address, is_free })
}

/// Has the signal come again soon; whether it will.
fn postpone(base: u64) -> bool {
    let event = Event {
        value: base,
        signal: SIGCANCEL as u32,
        notify: SIGEV_THREAD_ID,
        thread: syscall0(nr::GETTID) as u32,
        rest: [0; 11],
    };
    let (mut timer, when) = (0i32, [0, 0, 0, AGAIN_NS]);
    let arguments = [CLOCK_MONOTONIC, &raw const event as u64, &raw mut timer as u64, 0, 0, 0];
    // SAFETY: the event is there, and room for the timer.
    if unsafe { syscall(nr::TIMER_CREATE, arguments) } < 0 {
        return false;
    }
    // SAFETY: a timer of ours, and when it is to end.
    unsafe { syscall(nr::TIMER_SETTIME, [timer as u64, 0, &raw const when as u64, 0, 0, 0]) };
    true
}

const _: () = assert!(size_of::<Event>() == 64);
