//! Notices the last close of a descriptor that a loader holds.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::inotify::{self, CreateFlags as InotifyFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::FileId;
use crate::realm::EventFd;

/// The tokens of the inotify descriptor and of the bell that tells of targets' ends; pipes have numbers behind them.
const INOTIFY: u64 = 0;
const DEATHS: u64 = 1;

/// How long after a close was told of the open file descriptions of its file are looked at, each time anew. The kernel tells of it
/// before it takes the description's locks away, and may have something else to do in between. Whoever maps a map closes a
/// description, too, so this must cost little.
const LOOKS_AFTER: [Duration; 4] =
    [Duration::ZERO, Duration::from_micros(100), Duration::from_millis(1), Duration::from_millis(10)];

/// Files of which a close was told, which are to be looked at (again).
#[derive(Default)]
pub(super) struct Closes {
    /// When it was told last, and how often it was looked at since.
    told: HashMap<FileId, (Instant, usize)>,
}

impl Closes {
    pub(super) fn add(&mut self, closed: Vec<FileId>) {
        let now = Instant::now();
        self.told.extend(closed.into_iter().map(|id| (id, (now, 0))));
    }

    /// How long until the next look.
    pub(super) fn pause(&self) -> Option<Duration> {
        let due = self.told.values().map(|(told, looks)| *told + LOOKS_AFTER[*looks]).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Looks at all that are due; `look` says whether any description of a file is left.
    pub(super) fn look(&mut self, look: impl Fn(FileId) -> bool) {
        let now = Instant::now();
        self.told.retain(|id, (told, looks)| {
            while *looks < LOOKS_AFTER.len() && *told + LOOKS_AFTER[*looks] <= now {
                *looks += 1;
                if !look(*id) {
                    return false;
                }
            }
            *looks < LOOKS_AFTER.len()
        });
    }
}

struct Tables {
    next: u64,
    pipes: HashMap<u64, (FileId, OwnedFd)>,
    watches: HashMap<i32, FileId>,
}

/// Pipes and memfds that are watched.
pub(super) struct Watch {
    epoll: OwnedFd,
    inotify: OwnedFd,
    tables: Mutex<Tables>,
}

impl Watch {
    /// Also wakes when `deaths` becomes readable.
    pub(super) fn new(deaths: &EventFd) -> Result<Watch, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let inotify = inotify::init(InotifyFlags::CLOEXEC | InotifyFlags::NONBLOCK)?;
        epoll::add(&epoll, &inotify, EventData::new_u64(INOTIFY), EventFlags::IN)?;
        epoll::add(&epoll, &deaths.0, EventData::new_u64(DEATHS), EventFlags::IN)?;
        let tables = Tables { next: DEATHS + 1, pipes: HashMap::new(), watches: HashMap::new() };
        Ok(Watch { epoll, inotify, tables: Mutex::new(tables) })
    }

    /// Watches the read end of a pipe for the hang-up.
    pub(super) fn add_pipe(&self, id: FileId, pipe: OwnedFd) -> Result<(), Errno> {
        let mut tables = self.tables.lock().expect("no panic under this lock");
        let token = tables.next;
        tables.next += 1;
        epoll::add(&self.epoll, pipe.as_fd(), EventData::new_u64(token), EventFlags::HUP)?;
        tables.pipes.insert(token, (id, pipe));
        Ok(())
    }

    /// Watches a memfd, by its path under `/proc/self/fd`, for closed open file descriptions.
    pub(super) fn add_memfd(&self, id: FileId, path: &str) -> Result<(), Errno> {
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        let mut tables = self.tables.lock().expect("no panic under this lock");
        let watch = inotify::add_watch(&self.inotify, path, flags)?;
        tables.watches.insert(watch, id);
        Ok(())
    }

    /// The object is gone; its inode may be reused.
    pub(super) fn forget(&self, id: FileId) {
        let mut tables = self.tables.lock().expect("no panic under this lock");
        let gone: Vec<i32> = tables.watches.iter().filter(|(_, of)| **of == id).map(|(watch, _)| *watch).collect();
        for watch in gone {
            tables.watches.remove(&watch);
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
    }

    /// Sleeps until something was closed, at most so long.
    pub(super) fn wait(&self, timeout: Duration) -> Vec<FileId> {
        let timeout = timeout.try_into().expect("it is short");
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).is_err() {
            return vec![];
        }
        let mut closed = vec![];
        for event in &events {
            let token = event.data.u64();
            if token == INOTIFY {
                closed.extend(self.closed_memfds());
            } else if let Some((id, _)) = self.tables.lock().expect("no panic under this lock").pipes.remove(&token) {
                // Dropping the read end takes it out of the epoll set.
                closed.push(id);
            }
        }
        closed
    }

    fn closed_memfds(&self) -> Vec<FileId> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.inotify.as_fd(), &mut buffer);
        let mut closed = vec![];
        while let Ok(event) = reader.next() {
            let closes = ReadFlags::CLOSE_WRITE | ReadFlags::CLOSE_NOWRITE;
            if event.events().intersects(closes) {
                let tables = self.tables.lock().expect("no panic under this lock");
                closed.extend(tables.watches.get(&event.wd()));
            }
        }
        closed
    }
}
