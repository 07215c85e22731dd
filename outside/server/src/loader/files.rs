//! mmap, epoll_ctl and poll on our objects.
//!
//! A memfd cannot be polled, so an eventfd stands in for it. In a loader's epoll set it is registered edge-triggered,
//! with the loader's own event data: each doorbell of an agent is one event, as a perf buffer gives one per wake-up
//! and as libbpf's ring buffers are consumed (to the end, on each event). It is rung once at registration if
//! there is something to read already.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_layout::PAGE_BYTES;
use ring3_uapi::Errno;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Caller, Outcome, Reply, raw_seccomp, refuse};
use crate::loader::objects::{Access, Event, EventKind, Object, OutputBuffer};
use crate::realm::EventFd;

/// `poll` looks for signals of its caller this often.
const SLICE: Duration = Duration::from_millis(20);
/// Entries of a `poll` at most.
const POLL_FDS_MAX: u64 = 4096;

pub(super) fn mmap(caller: &Caller<'_>) -> Reply {
    let (bytes, protection, fd, offset) = (caller.arg(1), caller.arg(2), caller.arg(4) as i32, caller.arg(5));
    let write = protection & libc::PROT_WRITE as u64 != 0;
    let Ok(copy) = caller.fd(fd) else { return Ok(Outcome::Continue) };
    match caller.subsystem().object(copy.as_fd()) {
        Some(Object::Map(map)) => map.check_mmap(offset, bytes, write, Access::of(copy.as_fd()))?,
        Some(Object::Event(event)) => mmap_event(&event, offset, bytes)?,
        Some(_) => return Err(Errno::ENODEV),
        None => {}
    }
    Ok(Outcome::Continue)
}

/// The first mapping of an output event makes its buffer. Mirrors kernel/events/core.c:perf_mmap.
fn mmap_event(event: &Arc<Event>, offset: u64, bytes: u64) -> Result<(), Errno> {
    let EventKind::Output { memfd, sample_type, wakeup_events, doorbell, buffer, .. } = &event.kind else {
        return Err(refuse(Errno::EINVAL, "mmap of a uprobe event: samples are not supported"));
    };
    let mut buffer = buffer.lock().expect("no panic under this lock");
    if let Some(buffer) = buffer.as_ref() {
        return if offset == 0 && bytes == buffer.data_bytes() { Ok(()) } else { Err(Errno::EINVAL) };
    }
    let pages = (bytes / PAGE_BYTES).checked_sub(1).filter(|pages| pages.is_power_of_two()).ok_or(Errno::EINVAL)?;
    if offset != 0 || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(Errno::EINVAL);
    }
    let pages = u32::try_from(pages).map_err(|_| Errno::ENOMEM)?;
    let id = u64::from(event.id);
    let made = OutputBuffer::create(&event.realm, memfd, pages, *sample_type, *wakeup_events, id, doorbell.0)?;
    *buffer = Some(made);
    drop(buffer);
    event.buffer_is_made()
}

pub(super) fn epoll_ctl(caller: &Caller<'_>) -> Reply {
    let fd = caller.arg(2) as i32;
    let Ok(Some(object)) = caller.object(fd) else { return Ok(Outcome::Continue) };
    let Some((event, ready)) = object.readiness() else {
        // A uprobe event, a program, a link: the pipe behind it never becomes ready, as the kernel's objects.
        return Ok(Outcome::Continue);
    };
    let epoll = caller.fd(caller.arg(0) as i32)?;
    let errno = |error: rustix::io::Errno| Errno(error.raw_os_error());
    match caller.arg(1) as i32 {
        libc::EPOLL_CTL_DEL => epoll::delete(&epoll, &event.0).map_err(errno)?,
        operation => {
            let bytes = caller.read(caller.arg(3), 12)?;
            let flags = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes")) | libc::EPOLLET as u32;
            let data = EventData::new_u64(u64::from_le_bytes(bytes[4..].try_into().expect("8 bytes")));
            let flags = EventFlags::from_bits_retain(flags);
            if operation == libc::EPOLL_CTL_ADD {
                epoll::add(&epoll, &event.0, data, flags).map_err(errno)?;
            } else if operation != libc::EPOLL_CTL_MOD {
                return Err(Errno::EINVAL);
            } else {
                epoll::modify(&epoll, &event.0, data, flags).map_err(errno)?;
            }
            if ready {
                event.signal();
            }
        }
    }
    Ok(Outcome::Value(0))
}

/// An entry of a caught `poll`.
struct Entry {
    number: i32,
    events: i16,
    /// Ours, with what it waits on.
    object: Option<(Object, Arc<EventFd>)>,
    /// The kernel's.
    copy: Option<OwnedFd>,
}

pub(super) fn poll(caller: &Caller<'_>) -> Reply {
    let (address, count) = (caller.arg(0), caller.arg(1));
    if count == 0 || count > POLL_FDS_MAX {
        return Ok(Outcome::Continue);
    }
    let Ok(bytes) = caller.read(address, count as usize * 8) else { return Ok(Outcome::Continue) };
    let entries: Vec<Entry> = bytes
        .chunks_exact(8)
        .map(|entry| {
            let number = i32::from_le_bytes(entry[..4].try_into().expect("4 bytes"));
            let events = i16::from_le_bytes(entry[4..6].try_into().expect("2 bytes"));
            let copy = caller.fd(number).ok();
            let object = copy.as_ref().and_then(|fd| caller.subsystem().object(fd.as_fd()));
            let object = object.and_then(|object| object.readiness().map(|(event, _)| (object, event)));
            Entry { number, events, object, copy }
        })
        .collect();
    if entries.iter().all(|entry| entry.object.is_none()) {
        return Ok(Outcome::Continue);
    }
    let deadline = poll_deadline(caller)?;
    let listener = caller.session.listener.clone();
    let (id, tid) = (caller.call.id, caller.call.tid);
    let spawned = std::thread::Builder::new().name("ring3-poll".into()).spawn(move || {
        let result = wait_for(&entries, deadline, tid, &|| raw_seccomp::is_valid(listener.as_fd(), id));
        let result = result.map(|ready| {
            for (index, revents) in ready.iter().enumerate() {
                let _ = raw_seccomp::write(tid, address + index as u64 * 8 + 6, &revents.to_le_bytes());
            }
            ready.iter().filter(|revents| **revents != 0).count() as i64
        });
        raw_seccomp::answer(listener.as_fd(), id, result.map_err(|errno| errno.0));
    });
    spawned.map(|_| Outcome::Later).map_err(|_| Errno::ENOMEM)
}

/// `None`: for ever.
fn poll_deadline(caller: &Caller<'_>) -> Result<Option<Instant>, Errno> {
    if i64::from(caller.call.number) == libc::SYS_poll {
        let timeout = caller.arg(2) as i32;
        return Ok(u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms)));
    }
    if caller.arg(2) == 0 {
        return Ok(None);
    }
    let bytes = caller.read(caller.arg(2), 16)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    Ok(Some(Instant::now() + Duration::from_secs(word(0)) + Duration::from_nanos(word(8))))
}

/// The result bits of all entries; waits in slices, in which the caller's signals are looked at.
fn wait_for(
    entries: &[Entry],
    deadline: Option<Instant>,
    tid: u32,
    is_valid: &dyn Fn() -> bool,
) -> Result<Vec<i16>, Errno> {
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
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        for (fd, (index, ours)) in fds.iter().zip(owners) {
            ready[index] |= if ours { own_readiness(&entries[index]) } else { fd.revents().bits() as i16 };
        }
        if ready.iter().any(|bits| *bits != 0) || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(ready);
        }
        if Caller::has_signal(tid) || !is_valid() {
            return Err(Errno::EINTR);
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
            if ready { entry.events & libc::POLLIN } else { 0 }
        }
        (None, None) if entry.number >= 0 => INVALID,
        _ => 0,
    }
}
