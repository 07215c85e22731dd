//! Finds the processes that map files with probes: those that do when a probe is made, and those that begin to later.
//!
//! Nobody tells who maps a file. So the files are watched (inotify(7)): who is about to map one opens it first. Each opening has the
//! processes looked at several times within [`LOOK_AFTER`], since the mapping follows a little later. A probe that has just been
//! made has them looked at in the same way, for forks that were missed. While nobody opens a watched file nothing is done.
//!
//! Root is told of executions before they happen (`raw_executions.rs`), and so sees a program from its first instruction.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_uapi::Errno;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::raw_executions::{Executions, Mark, Told};
use crate::realm::files::FileId;
use crate::realm::memory::EventFd;
use crate::realm::process::{all_processes, code_of};
use crate::realm::tracer::{Command, CommandSender};
use crate::realm::{Point, process};

/// When processes are looked at after something has happened, milliseconds each.
const LOOK_AFTER: [u64; 8] = [0, 1, 3, 7, 15, 40, 150, 1000];
/// Processes are not looked at more often than that this share of a CPU's time goes into it: one part of so many.
const SHARE: u32 = 10;
/// What was seen of the processes is good enough for so long: a tool makes its probes one after the other.
const SEEN_FOR: Duration = Duration::from_millis(20);
/// How often processes are looked at while a tool sees system calls of all of them.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What a link waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::realm) enum Wanted {
    /// Processes that map this file.
    File(FileId),
    /// All processes.
    Everybody,
    /// What this loader's tool executes. Nobody looks for it: its `execve` is caught.
    OfLoader(u32),
}

/// Keeps what a link waits for watched. Dropped with the link.
#[derive(Debug)]
pub struct Watch {
    finder: Weak<Finder>,
    wanted: Wanted,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(finder) = self.finder.upgrade() {
            finder.forget(self.wanted);
        }
    }
}

/// Which processes map which files.
#[derive(Debug, Default)]
struct Census {
    taken: Option<Instant>,
    cost: Duration,
    /// By inode; the rest is for who has the process's mappings to decide.
    by_inode: BTreeMap<u64, BTreeSet<u32>>,
    everybody: BTreeSet<u32>,
}

/// Something that links wait for.
#[derive(Debug)]
struct Watched {
    /// How many.
    links: usize,
    /// The file's number in inotify(7).
    file: Option<i32>,
    /// Its executions are told of.
    _mark: Option<Mark>,
}

#[derive(Debug, Default)]
struct State {
    census: Census,
    wanted: BTreeMap<Wanted, Watched>,
    /// When processes are to be looked at.
    due: BTreeSet<Instant>,
    /// Not before that: it would cost too much.
    rests_until: Option<Instant>,
    is_running: bool,
}

/// Finds processes. Its thread runs while there is something to be found.
#[derive(Debug)]
pub(in crate::realm) struct Finder {
    state: Mutex<State>,
    inotify: OwnedFd,
    /// `None` inside: the kernel does not tell this user.
    executions: OnceLock<Option<Executions>>,
    wake: EventFd,
    sender: Mutex<CommandSender>,
}

impl Census {
    fn is_good(&self) -> bool {
        self.taken.is_some_and(|taken| taken.elapsed() < SEEN_FOR.max(self.cost * SHARE))
    }

    /// Looks at all processes that can be seen.
    fn take(&mut self) {
        let began = Instant::now();
        (self.by_inode, self.everybody) = (BTreeMap::new(), BTreeSet::new());
        for pid in all_processes() {
            let mappings = inject::mappings(inject::Pid(pid)).unwrap_or_default();
            if mappings.is_empty() {
                continue;
            }
            self.everybody.insert(pid);
            for mapping in code_of(&mappings).filter(|mapping| mapping.inode != 0) {
                self.by_inode.entry(mapping.inode).or_default().insert(pid);
            }
        }
        (self.taken, self.cost) = (Some(Instant::now()), began.elapsed());
    }

    fn found(&self, wanted: Wanted) -> BTreeSet<u32> {
        match wanted {
            Wanted::File(file) => self.by_inode.get(&file.inode).cloned().unwrap_or_default(),
            Wanted::Everybody => self.everybody.clone(),
            Wanted::OfLoader(_) => BTreeSet::new(),
        }
    }
}

impl Finder {
    /// # Errors
    /// Of inotify_init1(2) and eventfd(2).
    pub(in crate::realm) fn new(sender: CommandSender) -> std::io::Result<Arc<Finder>> {
        Ok(Arc::new(Finder {
            state: Mutex::default(),
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            executions: OnceLock::new(),
            wake: EventFd::new()?,
            sender: Mutex::new(sender),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Watches what a link waits for, and tells who is there already, so far as they can be seen.
    ///
    /// # Errors
    /// The file cannot be watched (`ENOSPC`: the user has as many watches as `fs.inotify.max_user_watches` lets it have).
    pub(in crate::realm) fn watch(
        self: &Arc<Finder>,
        wanted: Wanted,
        point: &Point,
    ) -> Result<(Watch, BTreeSet<u32>), Errno> {
        let mut state = self.state();
        match state.wanted.entry(wanted) {
            Entry::Occupied(mut known) => known.get_mut().links += 1,
            Entry::Vacant(new) => {
                let watched = match point {
                    Point::Syscall(_) | Point::Task(_) => Watched { links: 1, file: None, _mark: None },
                    Point::Probe(probe) => {
                        let file = inotify::add_watch(&self.inotify, &probe.file, WatchFlags::OPEN);
                        let file = Some(file.map_err(|error| Errno(error.raw_os_error()))?);
                        Watched { links: 1, file, _mark: self.mark(&probe.file) }
                    }
                };
                new.insert(watched);
            }
        }
        if matches!(wanted, Wanted::OfLoader(_)) {
            return Ok((Watch { finder: Arc::downgrade(self), wanted }, BTreeSet::new()));
        }
        if !state.census.is_good() {
            state.census.take();
        }
        let found = state.census.found(wanted);
        Finder::look_soon(&mut state);
        if !std::mem::replace(&mut state.is_running, true) {
            let finder = self.clone();
            let spawned = std::thread::Builder::new().name("ring3-finder".into()).spawn(move || finder.run());
            if let Err(error) = spawned {
                tracing::error!("no thread to find processes: {error}");
                state.is_running = false;
            }
        }
        drop(state);
        self.wake.signal();
        Ok((Watch { finder: Arc::downgrade(self), wanted }, found))
    }

    /// Has executions of a file told of, if the kernel does that.
    fn mark(&self, path: &Path) -> Option<Mark> {
        let executions = self.executions.get_or_init(|| {
            let sender = self.sender.lock().expect("no panic under this lock").clone();
            Executions::start(Box::new(move |tid, told| {
                let pid = process::leader(tid).filter(|pid| *pid != std::process::id());
                match (pid, told) {
                    (Some(pid), Told::Waits(ready)) => sender.send(Command::FollowInCall(pid, tid, ready)),
                    (Some(pid), Told::GoesOn) => sender.send(Command::RanOn(pid)),
                    (None, Told::Waits(ready)) => ready(),
                    (None, Told::GoesOn) => {}
                }
            }))
        });
        let marked = executions.as_ref()?.mark(path);
        marked.inspect_err(|error| tracing::warn!("executions of {} are not told of: {error}", path.display())).ok()
    }

    /// Whether nothing is wanted.
    pub(in crate::realm) fn is_idle(&self) -> bool {
        self.state().wanted.is_empty()
    }

    fn forget(&self, wanted: Wanted) {
        let mut state = self.state();
        let Some(watched) = state.wanted.get_mut(&wanted) else { return };
        watched.links -= 1;
        if watched.links == 0 {
            if let Some(file) = watched.file {
                let _ = inotify::remove_watch(&self.inotify, file);
            }
            state.wanted.remove(&wanted);
        }
        if state.wanted.is_empty() {
            self.wake.signal();
        }
    }

    fn look_soon(state: &mut State) {
        let now = Instant::now();
        state.due.extend(LOOK_AFTER.iter().map(|after| now + Duration::from_millis(*after)));
    }

    /// Until nothing is wanted any more.
    fn run(&self) {
        loop {
            let mut state = self.state();
            if state.wanted.is_empty() {
                (state.is_running, state.due) = Default::default();
                return;
            }
            let now = Instant::now();
            let rests = state.rests_until.is_some_and(|until| now < until);
            if !rests && state.due.first().is_some_and(|due| *due <= now) {
                // (What was due meanwhile is done together.)
                state.due = state.due.split_off(&now);
                self.look(&mut state);
                if state.wanted.contains_key(&Wanted::Everybody) {
                    state.due.insert(now + LOOK_EVERY);
                }
            }
            let next = state.due.first().map(|due| state.rests_until.map_or(*due, |until| until.max(*due)));
            drop(state);
            self.wait(next.map(|next| next.saturating_duration_since(Instant::now())));
        }
    }

    /// Looks at all processes, and has those made targets that are wanted.
    fn look(&self, state: &mut State) {
        state.census.take();
        state.rests_until = Some(Instant::now() + state.census.cost * SHARE);
        let found: BTreeSet<u32> = state.wanted.keys().flat_map(|wanted| state.census.found(*wanted)).collect();
        if !found.is_empty() {
            self.sender.lock().expect("no panic under this lock").send(Command::Take(found));
        }
    }

    fn wait(&self, pause: Option<Duration>) {
        let mut fds = [PollFd::new(&self.wake.0, PollFlags::IN), PollFd::new(&self.inotify, PollFlags::IN)];
        let pause =
            pause.map(|pause| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) });
        let _ = rustix::event::poll(&mut fds, pause.as_ref());
        self.wake.clear();
        if self.has_opened() {
            Finder::look_soon(&mut self.state());
        }
    }

    /// Whether somebody has opened a watched file.
    fn has_opened(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.inotify.as_fd(), &mut buffer);
        let mut has_opened = false;
        while let Ok(event) = events.next() {
            has_opened |= event.events().contains(inotify::ReadFlags::OPEN)
                || event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
        }
        has_opened
    }
}
