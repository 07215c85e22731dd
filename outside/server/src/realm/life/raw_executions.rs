//! Tells of executions of certain files before they happen: fanotify(7), which only root may use so.
//!
//! Whoever executes a marked file waits in the kernel until it is told that it may. So nothing here waits for anybody, and who is not
//! answered within [`ANSWER_WITHIN`] goes on; all go on when the server ends. A server that is stopped, by a debugger say, holds up
//! executions of the probed programs, and of no others.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::privileges;
use crate::realm::files::{FileId, regular_file};
use crate::realm::tracer::Ready;

/// Who executes a program waits so long for the server at most.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Who waits with a lock held that its tracer needs goes on after this time: then its tracer waits for that lock.
const LOCKED_FOR: Duration = Duration::from_millis(3);
/// Events that are read at a time.
const EVENTS_MAX: usize = 64;
/// From this version on the file is opened before the lock is taken that a tracer needs (fs/exec.c:alloc_bprm).
const OPENED_FIRST_SINCE: (u32, u32) = (6, 8);

/// An execution that waits. It goes on when this is dropped.
struct Waiting {
    group: Arc<OwnedFd>,
    file: OwnedFd,
}

impl Waiting {
    /// Whether the file is what the thread executes. (Who executes a script opens its interpreter with the lock held that a tracer
    /// needs, and so does who executes a program that has a dynamic loader.)
    fn is_of(&self, tid: u32) -> bool {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        path.metadata().is_ok_and(|meta| privileges::names(tid, FileId::of(&path, &meta)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let answer = libc::fanotify_response { fd: self.file.as_raw_fd(), response: libc::FAN_ALLOW };
        // SAFETY: write wants a buffer of the length that it is told: a structure without padding.
        let written =
            unsafe { libc::write(self.group.as_raw_fd(), (&raw const answer).cast(), size_of_val(&answer)) };
        if written < 0 {
            tracing::warn!("an execution is not let go: {}", std::io::Error::last_os_error());
        }
    }
}

/// One that the server has been told of, as long as it waits.
type Shared = Arc<Mutex<Option<Waiting>>>;

/// Lets an execution go on when this is dropped.
struct GoesOnWhenDropped(Shared);

impl Drop for GoesOnWhenDropped {
    fn drop(&mut self) {
        drop(self.0.lock().expect("no panic under this lock").take());
    }
}

/// What is to be done with an execution.
pub(super) enum Told {
    /// The thread waits until this is called or dropped.
    Waits(Ready),
    /// It has waited for too long.
    GoesOn,
}

/// Is told of the executions of threads.
type Tell = dyn Fn(u32, Told) + Send;

/// Executions of marked files.
#[derive(Debug)]
pub(super) struct Executions {
    group: Arc<OwnedFd>,
}

/// A file whose executions are told of, until this is dropped.
#[derive(Debug)]
pub(super) struct Mark {
    group: Arc<OwnedFd>,
    file: File,
}

fn mark(group: &OwnedFd, flags: u32, file: &File) -> std::io::Result<()> {
    // SAFETY: takes numbers; without a path the descriptor itself is marked.
    let result = unsafe {
        libc::fanotify_mark(group.as_raw_fd(), flags, libc::FAN_OPEN_EXEC_PERM, file.as_raw_fd(), std::ptr::null())
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Err(error) = mark(&self.group, libc::FAN_MARK_REMOVE, &self.file) {
            tracing::debug!("a mark is left: {error}");
        }
    }
}

impl Executions {
    /// `tell` is called for each execution, by a thread that ends with the server; it must not wait. `None`: the kernel does not tell
    /// this user.
    pub(in crate::realm) fn start(tell: Box<Tell>) -> Option<Executions> {
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_TID;
        // SAFETY: takes numbers.
        let group =
            unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE) as u32) };
        if group < 0 {
            return None;
        }
        // SAFETY: a new descriptor that nobody else owns.
        let group = Arc::new(unsafe { OwnedFd::from_raw_fd(group) });
        let listened = group.clone();
        let spawned =
            std::thread::Builder::new().name("ring3-executions".into()).spawn(move || listen(&listened, &*tell));
        spawned.ok().map(|_| Executions { group })
    }

    /// Has executions of a file told of.
    ///
    /// # Errors
    /// Of open(2) and fanotify_mark(2).
    pub(super) fn mark(&self, path: &Path) -> std::io::Result<Mark> {
        let file = regular_file::open(path)?;
        mark(&self.group, libc::FAN_MARK_ADD, &file)?;
        Ok(Mark { group: self.group.clone(), file })
    }
}

/// One that waits, and how long it may.
struct Listed {
    tid: u32,
    is_traced_first: bool,
    until: Instant,
    one: Shared,
}

impl Listed {
    /// Whether it waits still, and may. Otherwise it goes on.
    fn goes_on_waiting(&mut self, now: Instant, can_be_traced: bool, tell: &Tell) -> bool {
        let mut one = self.one.lock().expect("no panic under this lock");
        let Some(waiting) = one.as_ref() else { return false };
        if now < self.until {
            return true;
        }
        // (At first it may not have been found asleep: it queues the event before, and the CPU may be another's then.)
        if !self.is_traced_first && can_be_traced && waiting.is_of(self.tid) {
            self.is_traced_first = true;
            self.until = now + ANSWER_WITHIN;
            return true;
        }
        drop(one.take());
        if self.is_traced_first {
            tell(self.tid, Told::GoesOn);
        }
        false
    }
}

fn listen(group: &Arc<OwnedFd>, tell: &Tell) {
    let can_be_traced = kernel_version().is_none_or(|version| version >= OPENED_FIRST_SINCE);
    let mut waiting: Vec<Listed> = vec![];
    loop {
        let now = Instant::now();
        waiting.retain_mut(|one| one.goes_on_waiting(now, can_be_traced, tell));
        let next = waiting.iter().map(|one| one.until).min();
        let pause = next
            .map(|until| until.saturating_duration_since(now))
            .map(|pause| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) });
        let mut fds = [PollFd::from_borrowed_fd(group.as_fd(), PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, pause.as_ref());
        for (tid, one) in read(group) {
            let is_traced_first = can_be_traced && one.is_of(tid);
            let within = if is_traced_first { ANSWER_WITHIN } else { LOCKED_FOR };
            let shared = Arc::new(Mutex::new(Some(one)));
            let waits = GoesOnWhenDropped(shared.clone());
            tell(tid, Told::Waits(Box::new(move || drop(waits))));
            waiting.push(Listed { tid, is_traced_first, until: Instant::now() + within, one: shared });
        }
    }
}

/// The executions that wait: thread, and what lets it go on.
fn read(group: &Arc<OwnedFd>) -> Vec<(u32, Waiting)> {
    type Event = libc::fanotify_event_metadata;
    // SAFETY: an event is made of integers.
    let mut events: [Event; EVENTS_MAX] = unsafe { std::mem::zeroed() };
    // SAFETY: read wants room for the bytes that it is told.
    let bytes = unsafe { libc::read(group.as_raw_fd(), events.as_mut_ptr().cast(), size_of_val(&events)) };
    let count = usize::try_from(bytes).unwrap_or(0) / size_of::<Event>();
    let waits = |event: &&Event| event.fd >= 0;
    // SAFETY: the kernel made the descriptor of an event for its reader, who is nobody else.
    let own = |event: &Event| Waiting { group: group.clone(), file: unsafe { OwnedFd::from_raw_fd(event.fd) } };
    events[..count].iter().filter(waits).map(|event| (event.pid as u32, own(event))).collect()
}

/// Major and minor number.
fn kernel_version() -> Option<(u32, u32)> {
    let uname = rustix::system::uname();
    let mut numbers = uname.release().to_str().ok()?.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
