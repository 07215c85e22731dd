//! mmap and epoll_ctl on our objects.
//!
//! A memfd cannot be polled, so an eventfd stands in for it. In a loader's epoll set it is registered edge-triggered,
//! with the loader's own event data: each doorbell of an agent is one event, as a perf buffer gives one per wake-up
//! and as libbpf's ring buffers are consumed (to the end, on each event). It is rung once at registration if
//! there is something to read already.

use std::os::fd::AsFd;
use std::sync::Arc;

use ring3_layout::PAGE_BYTES;
use ring3_uapi::Errno;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Caller, Outcome, Reply, refuse};
use crate::loader::objects::{Access, Event, EventKind, Object, OutputBuffer};

pub(super) fn mmap(caller: &Caller<'_>) -> Reply {
    let (bytes, protection, fd, offset) = (caller.arg(1), caller.arg(2), caller.arg(4) as i32, caller.arg(5));
    let write = protection & libc::PROT_WRITE as u64 != 0;
    let Ok(copy) = caller.fd(fd) else { return Ok(Outcome::Continue) };
    match caller.subsystem().object(copy.as_fd()) {
        Some(Object::Map(map)) => map.check_mmap(offset, bytes, write, Access::of(copy.as_fd()))?,
        Some(Object::Event(event)) => mmap_event(caller, &event, offset, bytes)?,
        Some(_) => return Err(Errno::ENODEV),
        None => {}
    }
    Ok(Outcome::Continue)
}

/// The first mapping of an output event makes its buffer. Mirrors kernel/events/core.c:perf_mmap.
fn mmap_event(caller: &Caller<'_>, event: &Arc<Event>, offset: u64, bytes: u64) -> Result<(), Errno> {
    let EventKind::Output { memfd, sample_type, wakeup_events, doorbell, buffer, .. } = &event.kind else {
        return Err(refuse(Errno::EINVAL, "mmap of a probe's or tracepoint's event: samples are not supported"));
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
    let made = OutputBuffer::create(
        &event.realm,
        memfd,
        pages,
        *sample_type,
        *wakeup_events,
        (id, doorbell.0),
        caller.sharing()?,
    )?;
    *buffer = Some(made);
    drop(buffer);
    event.buffer_is_made()
}

pub(super) fn epoll_ctl(caller: &Caller<'_>) -> Reply {
    let fd = caller.arg(2) as i32;
    let Ok(Some(object)) = caller.object(fd) else { return Ok(Outcome::Continue) };
    let Some((event, ready)) = object.readiness() else {
        // A probe's or tracepoint's event, a program, a link: the pipe behind it never becomes ready, as the kernel's objects.
        return Ok(Outcome::Continue);
    };
    let epoll = caller.fd(caller.arg(0) as i32)?;
    let errno = |error: rustix::io::Errno| Errno(error.raw_os_error());
    match caller.arg(1) as i32 {
        libc::EPOLL_CTL_DEL => epoll::delete(&epoll, &event.0).map_err(errno)?,
        operation => {
            let bytes = caller.read(caller.arg(3), 12)?;
            let asked = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
            // The eventfd tells of room to write as of data to read.
            let room = object.events() == libc::POLLOUT && asked & libc::EPOLLOUT as u32 != 0;
            let asked = if room { asked & !(libc::EPOLLOUT as u32) | libc::EPOLLIN as u32 } else { asked };
            let flags = asked | libc::EPOLLET as u32;
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
