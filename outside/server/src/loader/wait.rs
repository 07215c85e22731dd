//! poll and select on our objects, beside others.
//!
//! The caller waits for the answer to its notification, which a thread gives: it waits on the eventfds of our
//! objects and on copies of the caller's other descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_uapi::Errno;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Caller, Outcome, Reply, raw_seccomp};
use crate::loader::objects::Object;
use crate::realm::EventFd;

/// Signals of the caller are looked for this often.
const SLICE: Duration = Duration::from_millis(20);
/// Entries of a `poll`, and descriptors of a `select`, at most; calls with more are the kernel's.
const FDS_MAX: u64 = 4096;
/// Bits of a word of an `fd_set`.
const WORD_BITS: usize = 64;

/// A descriptor that a caught call waits for.
struct Entry {
    number: i32,
    events: i16,
    /// Ours, with what it waits on.
    object: Option<(Object, Arc<EventFd>)>,
    /// The kernel's.
    copy: Option<OwnedFd>,
}

impl Entry {
    fn new(caller: &Caller<'_>, number: i32, events: i16) -> Entry {
        let copy = caller.fd(number).ok();
        let object = copy.as_ref().and_then(|fd| caller.subsystem().object(fd.as_fd()));
        let object = object.and_then(|object| object.readiness().map(|(event, _)| (object, event)));
        Entry { number, events, object, copy }
    }
}

pub(super) fn poll(caller: &Caller<'_>) -> Reply {
    let (address, count) = (caller.arg(0), caller.arg(1));
    if count == 0 || count > FDS_MAX {
        return Ok(Outcome::Continue);
    }
    let Ok(bytes) = caller.read(address, count as usize * 8) else { return Ok(Outcome::Continue) };
    let entries: Vec<Entry> = bytes
        .chunks_exact(8)
        .map(|entry| {
            let number = i32::from_le_bytes(entry[..4].try_into().expect("4 bytes"));
            Entry::new(caller, number, i16::from_le_bytes(entry[4..6].try_into().expect("2 bytes")))
        })
        .collect();
    if entries.iter().all(|entry| entry.object.is_none()) {
        return Ok(Outcome::Continue);
    }
    let deadline = match i64::from(caller.call.number) {
        libc::SYS_poll => {
            u64::try_from(caller.arg(2) as i32).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
        }
        _ => deadline(caller, caller.arg(2), Duration::from_nanos)?,
    };
    let tid = caller.call.tid;
    answer_later(caller, entries, deadline, move |_, ready| {
        for (index, revents) in ready.iter().enumerate() {
            let _ = raw_seccomp::write(tid, address + index as u64 * 8 + 6, &revents.to_le_bytes());
        }
        ready.iter().filter(|revents| **revents != 0).count() as i64
    })
}

/// Which bits of `poll` each of the three sets of `select` means. Mirrors fs/select.c:POLLIN_SET and its kin.
const SETS: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

pub(super) fn select(caller: &Caller<'_>) -> Reply {
    // What lies beyond the caller's table is not looked at. Mirrors fs/select.c:core_sys_select.
    let table = raw_seccomp::fd_table_size(caller.call.tid).map_or(FDS_MAX, u64::from);
    let count = match caller.arg(0) as i32 {
        ..=0 => return Ok(Outcome::Continue),
        count => (count as u64).min(table),
    };
    if count > FDS_MAX {
        return Ok(Outcome::Continue);
    }
    let bytes = (count as usize).div_ceil(WORD_BITS) * 8;
    let addresses = [caller.arg(1), caller.arg(2), caller.arg(3)];
    let read = |address: u64| if address == 0 { Ok(vec![0; bytes]) } else { caller.read(address, bytes) };
    let Ok(sets) = addresses.map(read).into_iter().collect::<Result<Vec<_>, _>>() else {
        return Ok(Outcome::Continue);
    };
    let asked = |fd: usize| {
        let events = |set: &Vec<u8>, bits: (i16, i16)| if set[fd / 8] & 1 << (fd % 8) != 0 { bits.0 } else { 0 };
        sets.iter().zip(SETS).fold(0, |all, (set, bits)| all | events(set, bits))
    };
    let fds = (0..count as usize).map(|fd| (fd as i32, asked(fd))).filter(|(_, events)| *events != 0);
    let entries: Vec<Entry> = fds.map(|(fd, events)| Entry::new(caller, fd, events)).collect();
    if entries.iter().all(|entry| entry.object.is_none()) {
        return Ok(Outcome::Continue);
    }
    let fraction = match i64::from(caller.call.number) {
        libc::SYS_select => Duration::from_micros,
        _ => Duration::from_nanos,
    };
    let deadline = deadline(caller, caller.arg(4), fraction)?;
    let (tid, timeout) = (caller.call.tid, caller.arg(4));
    let unit = fraction(1).as_nanos() as u64;
    // What is left of the time is told in any case. Mirrors fs/select.c:poll_select_finish.
    let tell_left = move || {
        let Some(deadline) = deadline else { return };
        let left = deadline.saturating_duration_since(Instant::now());
        let words = [left.as_secs(), u64::from(left.subsec_nanos()) / unit].map(u64::to_le_bytes);
        let _ = raw_seccomp::write(tid, timeout, words.as_flattened());
    };
    if entries.iter().any(|entry| entry.copy.is_none()) {
        tell_left();
        return Err(Errno::EBADF);
    }
    answer_later(caller, entries, deadline, move |entries, ready| {
        let mut found = 0;
        for (address, (asked, met)) in addresses.into_iter().zip(SETS).filter(|(address, _)| *address != 0) {
            let mut set = vec![0u8; bytes];
            for (entry, revents) in entries.iter().zip(ready) {
                if entry.events & asked != 0 && revents & met != 0 {
                    set[entry.number as usize / 8] |= 1 << (entry.number % 8);
                    found += 1;
                }
            }
            let _ = raw_seccomp::write(tid, address, &set);
        }
        tell_left();
        found
    })
}

/// The end of a timeout at `address`, seconds and a fraction; `None`: never.
fn deadline(caller: &Caller<'_>, address: u64, fraction: fn(u64) -> Duration) -> Result<Option<Instant>, Errno> {
    if address == 0 {
        return Ok(None);
    }
    let bytes = caller.read(address, 16)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let nanoseconds = fraction(1) == Duration::from_nanos(1);
    // Microseconds may be more than a second of them (fs/select.c:kern_select).
    let part_max = if nanoseconds { 1_000_000_000 } else { 1 << 63 };
    if i64::try_from(word(0)).is_err() || word(8) >= part_max {
        return Err(Errno::EINVAL);
    }
    // A time beyond what can be told is never.
    Ok(Instant::now().checked_add(Duration::from_secs(word(0)) + fraction(word(8))))
}

/// Waits on a thread of its own, lets `tell` write the results to the caller, and answers with what it returns.
fn answer_later(
    caller: &Caller<'_>,
    entries: Vec<Entry>,
    deadline: Option<Instant>,
    tell: impl FnOnce(&[Entry], &[i16]) -> i64 + Send + 'static,
) -> Reply {
    let listener = caller.session.listener.clone().ok_or(Errno::EINVAL)?;
    let (id, tid) = (caller.call.id, caller.call.tid);
    let awaited = caller.session.ledger.awaits(&caller.call);
    let spawned = std::thread::Builder::new().name("ring3-poll".into()).spawn(move || {
        let result = wait_for(&entries, deadline, tid, &|| raw_seccomp::is_valid(listener.as_fd(), id));
        let result = result.map(|ready| tell(&entries, &ready));
        raw_seccomp::answer(listener.as_fd(), id, result.map_err(|errno| errno.0));
        drop(awaited);
    });
    spawned.map(|_| Outcome::Later).map_err(|_| Errno::ENOMEM)
}

/// The result bits of all entries; waits in slices, in which the caller's signals are looked at.
fn wait_for(
    entries: &[Entry],
    deadline: Option<Instant>,
    tid: u32,
    is_valid: &dyn Fn() -> bool,
) -> Result<Vec<i16>, Errno> {
    let mut has_slept = false;
    loop {
        let mut fds: Vec<PollFd<'_>> = vec![];
        let mut owners = vec![];
        let mut ready: Vec<i16> = entries.iter().map(own_readiness).collect();
        for (index, entry) in entries.iter().enumerate() {
            match (&entry.object, &entry.copy) {
                (Some((_, event)), _) => {
                    event.clear();
                    fds.push(poll_fd(event.0.as_fd(), PollFlags::IN));
                    owners.push((index, true));
                }
                (None, Some(copy)) => {
                    fds.push(poll_fd(copy.as_fd(), PollFlags::from_bits_retain(entry.events as u16)));
                    owners.push((index, false));
                }
                (None, None) => {}
            }
        }
        let left = deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()).min(SLICE));
        let wait = if ready.iter().any(|bits| *bits != 0) { Duration::ZERO } else { left };
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        has_slept |= !wait.is_zero();
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        // (A signal would have woken the caller, be it that something was ready a moment later. A tool that waits for the next event
        // all the time notices Ctrl-C by that.)
        if has_slept && (Caller::has_signal(tid) || !is_valid()) {
            return Err(Errno::EINTR);
        }
        for (fd, (index, ours)) in fds.iter().zip(owners) {
            ready[index] |= if ours { own_readiness(&entries[index]) } else { fd.revents().bits() as i16 };
        }
        if ready.iter().any(|bits| *bits != 0) || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(ready);
        }
    }
}

fn poll_fd(fd: BorrowedFd<'_>, events: PollFlags) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, events)
}

/// What an entry is ready for without asking the kernel.
fn own_readiness(entry: &Entry) -> i16 {
    const INVALID: i16 = libc::POLLNVAL;
    match (&entry.object, &entry.copy) {
        (Some((object, _)), _) => {
            let ready = object.readiness().is_some_and(|(_, ready)| ready);
            if ready { entry.events & object.events() } else { 0 }
        }
        (None, None) if entry.number >= 0 => INVALID,
        _ => 0,
    }
}
