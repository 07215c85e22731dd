//! Sleeping until a tracee does something, or until a deadline has passed: `waitid` knows no deadline, so a timer interrupts it.
//!
//! (Polls with pauses between them would take the CPU from the tracee where there are few, and answer late where there are many.)

use std::cell::OnceCell;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{null, null_mut};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::raw_ptrace::Tid;

/// Interrupts `waitid`. Its default action is none.
const SIGNAL: libc::c_int = libc::SIGURG;
/// The timer goes off again and again, in case that it does just before the wait begins.
const AGAIN: Duration = Duration::from_millis(20);

/// A timer that interrupts the thread which has made it.
struct Timer(libc::timer_t);

impl Timer {
    fn new() -> Option<Timer> {
        static HANDLED: Once = Once::new();
        HANDLED.call_once(handle_signal);
        unblock_signal();
        // SAFETY: made of integers and pointers that may be null.
        let mut event: libc::sigevent = unsafe { zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer = MaybeUninit::uninit();
        // SAFETY: wants a sigevent and room for an id.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) };
        // SAFETY: the kernel has written the id if it has made the timer.
        (made == 0).then(|| Timer(unsafe { timer.assume_init() }))
    }

    /// Goes off after `first`, and then every [`AGAIN`]; zero: not any more.
    fn set(&self, first: Duration) {
        let time = |duration: Duration| libc::timespec {
            tv_sec: duration.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(duration.subsec_nanos()),
        };
        let again = if first.is_zero() { Duration::ZERO } else { AGAIN };
        let times = libc::itimerspec { it_interval: time(again), it_value: time(first) };
        // SAFETY: wants a timer of this process and two times.
        unsafe { libc::timer_settime(self.0, 0, &raw const times, null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: wants a timer of this process, which nobody uses any more.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn unblock_signal() {
    // SAFETY: made of integers.
    let mut signals: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: wants a set of signals.
    unsafe { libc::sigaddset(&raw mut signals, SIGNAL) };
    // SAFETY: wants a set of signals; what was blocked before need not be told.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, null_mut()) };
}

fn handle_signal() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: made of integers and pointers that may be null; no flags: calls are not made again.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing.
    unsafe { libc::sigaction(SIGNAL, &raw const action, null_mut()) };
}

/// Sleeps until `tid`, a tracee of this thread, has done something that `waitpid` tells, or until about the deadline. False: this
/// thread cannot sleep so.
pub(crate) fn sleep_until_something(tid: Tid, deadline: Instant) -> bool {
    thread_local!(static TIMER: OnceCell<Option<Timer>> = const { OnceCell::new() });
    TIMER.with(|timer| {
        let Some(timer) = timer.get_or_init(Timer::new) else { return false };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        timer.set(left);
        let options = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
        // SAFETY: without a place for what it tells (since Linux 2.6.9) it only waits.
        let waited =
            unsafe { libc::syscall(libc::SYS_waitid, libc::P_PID, tid, null::<u8>(), options, null::<u8>()) };
        timer.set(Duration::ZERO);
        // (Whatever else is wrong, `waitpid` tells.)
        waited == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    })
}
