//! Requests of the agent to the server, and doorbells that wake the server.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use ring3_layout::control::ControlHeader;
use ring3_layout::owner::NAMESPACE_SERVER;
use ring3_layout::realm::{DOORBELL_REQUESTS, Doorbell, PAUSING, Realm, SLEEPING, request};
use ring3_layout::region::{CONTROL_OFFSET, REALM_OFFSET};
use ring3_uapi::nr;

use crate::raw_system::{EINTR, EPERM, ETIMEDOUT, is_dead, syscall};
use crate::raw_thread::state;

pub(crate) const FUTEX_WAIT: u64 = 0;
pub(crate) const FUTEX_WAKE: u64 = 1;
/// Waits that follow each other while the server lives.
pub(crate) const WAITS_MAX: u32 = 10;
/// Waits that signal handlers interrupt, beside these.
const INTERRUPTED_MAX: u32 = 1000;

pub(crate) fn realm(base: u64) -> &'static Realm {
    // SAFETY: the realm block is mapped with the region and made of atomics.
    unsafe { &*((base + REALM_OFFSET) as *const Realm) }
}

pub(crate) fn control(base: u64) -> &'static ControlHeader {
    // SAFETY: the control page is mapped with the region; what the server changes in it is atomic.
    unsafe { &*((base + CONTROL_OFFSET) as *const ControlHeader) }
}

/// Sets a doorbell, and wakes the server if it sleeps; for requests also if it pauses: somebody waits for the answer.
pub(crate) fn ring(base: u64, number: u32) {
    let doorbell = &realm(base).doorbell;
    let Some(word) = doorbell.bits.get(number as usize / 64) else { return };
    word.fetch_or(1 << (number % 64), SeqCst);
    wake(doorbell, number == DOORBELL_REQUESTS);
}

/// Wakes the server if it pauses: a buffer fills.
pub(crate) fn hurry(base: u64) {
    wake(&realm(base).doorbell, true);
}

/// Wakes the server if it sleeps, or pauses and must not.
fn wake(doorbell: &Doorbell, is_urgent: bool) {
    let waits = doorbell.sleeping.load(SeqCst);
    if waits == SLEEPING || is_urgent && waits == PAUSING {
        doorbell.sequence.fetch_add(1, SeqCst);
        let address = &raw const doorbell.sequence as u64;
        // SAFETY: FUTEX_WAKE only uses the address as a key.
        unsafe { syscall(nr::FUTEX, [address, FUTEX_WAKE, i32::MAX as u64, 0, 0, 0]) };
    }
}

/// Whether it is certain that there is no server any more. Its id means something in its own pid namespace only; in which one a fork
/// is that has not been adopted is not known.
fn is_server_gone(base: u64, pid: u32) -> bool {
    let control = control(base);
    control.pid == pid && control.namespace == NAMESPACE_SERVER && is_dead(control.server_pid)
}

/// Files a request of the thread with these ids (`pid << 32 | tid`); waits for the answer if `wait` says so, at most [`WAITS_MAX`] times as long as the server set,
/// once if there seems to be no server any more, and not at all if there certainly is none. True: it was answered.
pub(crate) fn file(base: u64, kind: u32, ids: u64, argument: u64, wait: bool) -> bool {
    answer(base, kind, ids, argument, if wait { WAITS_MAX } else { 0 }).is_some()
}

/// As [`file`], with how often is waited at most: what then is the request's argument.
#[inline(never)]
pub(crate) fn answer(base: u64, kind: u32, ids: u64, argument: u64, waits_max: u32) -> Option<u64> {
    let wait = waits_max > 0;
    if is_server_gone(base, (ids >> 32) as u32) {
        state(base).requests_lost.fetch_add(1, Relaxed);
        return None;
    }
    let free = realm(base).requests.iter().find(|entry| {
        entry.state.load(Relaxed) == request::FREE
            && entry.state.compare_exchange(request::FREE, request::FILLING, AcqRel, Relaxed).is_ok()
    });
    let Some(entry) = free else {
        state(base).requests_lost.fetch_add(1, Relaxed);
        return None;
    };
    entry.kind.store(kind, Relaxed);
    entry.pid.store((ids >> 32) as u32, Relaxed);
    entry.tid.store(ids as u32, Relaxed);
    entry.nonce.store(control(base).nonce, Relaxed);
    entry.region_base.store(base, Relaxed);
    entry.argument.store(argument, Relaxed);
    entry.state.store(if wait { request::PENDING } else { request::UNATTENDED }, Release);
    ring(base, DOORBELL_REQUESTS);
    if !wait {
        return None;
    }
    let wait_us = u64::from(control(base).request_wait_us);
    let timeout = [wait_us / 1_000_000, wait_us % 1_000_000 * 1000];
    let address = &raw const entry.state as u64;
    let (mut waits, mut interrupted) = (0, 0);
    while waits < waits_max && interrupted < INTERRUPTED_MAX {
        if entry.state.load(Acquire) != request::PENDING {
            break;
        }
        let arguments = [address, FUTEX_WAIT, u64::from(request::PENDING), &raw const timeout as u64, 0, 0];
        // SAFETY: the futex word and the timeout are valid for the call.
        let result = unsafe { syscall(nr::FUTEX, arguments) };
        if result == -EINTR {
            interrupted += 1;
            continue;
        }
        if result == -EPERM {
            break;
        }
        waits += 1;
        if result == -ETIMEDOUT && is_dead(control(base).server_pid) {
            break;
        }
    }
    if entry.state.compare_exchange(request::PENDING, request::ABANDONED, AcqRel, Acquire).is_ok() {
        state(base).requests_lost.fetch_add(1, Relaxed);
        return None;
    }
    let answer = entry.argument.load(Relaxed);
    entry.state.store(request::FREE, Release);
    Some(answer)
}
