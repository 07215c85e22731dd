//! The objects of the BPF subsystem: maps, programs, BTF, perf events, links.
//!
//! A loader holds an object by a real descriptor: the write end of a pipe, or for maps and output events a
//! memfd opened anew. The object is found by the descriptor's inode, and the kernel tells of the last close: the
//! pipe's hang-up, or an inotify event. References between objects are `Arc`s, as in the kernel: a link
//! keeps its program, a program its maps.

mod kinds;
mod raw_map;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ring3_uapi::Errno;
use serde_json::{Value, json};

pub use kinds::{Btf, Event, EventKind, Link, Object, Program, UprobeSite};
pub use raw_map::{MapObject, OutputBuffer};
use watch::Watch;

use crate::realm::Realm;

/// What identifies an open object: device and inode of its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64, pub u64);

/// A loader that is being served.
#[derive(Clone, Debug)]
struct Loader {
    pid: u32,
    command: Vec<String>,
}

struct Held {
    object: Object,
    /// Open file descriptions given out.
    opens: u32,
}

/// All objects of a server.
pub struct Subsystem {
    /// The target side.
    pub realm: Arc<Realm>,
    held: Mutex<HashMap<FileId, Held>>,
    loaders: Mutex<BTreeMap<u32, Loader>>,
    watch: Watch,
    next_id: [AtomicU32; 5],
}

/// Kinds of ids.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum IdKind {
    Map,
    Program,
    Btf,
    Link,
    Event,
}

impl Subsystem {
    /// An empty subsystem; starts the thread that hears of closed descriptors.
    pub fn new(realm: Arc<Realm>) -> Arc<Subsystem> {
        let watch = Watch::new().expect("inotify and epoll are available");
        let subsystem = Arc::new(Subsystem {
            realm,
            held: Mutex::new(HashMap::new()),
            loaders: Mutex::new(BTreeMap::new()),
            watch,
            next_id: std::array::from_fn(|_| AtomicU32::new(1)),
        });
        let weak = Arc::downgrade(&subsystem);
        std::thread::Builder::new()
            .name("ring3-objects".into())
            .spawn(move || {
                while let Some(subsystem) = weak.upgrade() {
                    let closed = subsystem.watch.wait();
                    closed.into_iter().for_each(|id| subsystem.close(id));
                }
            })
            .expect("a thread for closed descriptors");
        subsystem
    }

    /// A fresh id.
    pub fn new_id(&self, kind: IdKind) -> u32 {
        self.next_id[kind as usize].fetch_add(1, Ordering::Relaxed)
    }

    /// The object behind a descriptor (a duplicate of the loader's).
    pub fn object(&self, fd: BorrowedFd<'_>) -> Option<Object> {
        let id = file_id(fd)?;
        self.held.lock().expect("no panic under this lock").get(&id).map(|held| held.object.clone())
    }

    /// A new descriptor for an object that lives as long as the loader keeps it open.
    pub fn open_pipe(&self, object: Object) -> Result<OwnedFd, Errno> {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(errno)?;
        let id = file_id(theirs.as_fd()).ok_or(Errno::EMFILE)?;
        self.held.lock().expect("no panic under this lock").insert(id, Held { object, opens: 1 });
        self.watch.add_pipe(id, ours).map_err(errno)?;
        Ok(theirs)
    }

    /// A new descriptor for an object that is memory.
    pub fn open_memfd(&self, object: Object, memfd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        use std::os::fd::AsRawFd;
        let id = file_id(memfd).ok_or(Errno::EMFILE)?;
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        self.watch.add_memfd(id, &path).map_err(errno)?;
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(errno)?;
        let mut held = self.held.lock().expect("no panic under this lock");
        held.entry(id).or_insert(Held { object, opens: 0 }).opens += 1;
        Ok(opened)
    }

    /// An open file description is gone; the last one takes the table's reference with it.
    fn close(&self, id: FileId) {
        let mut held = self.held.lock().expect("no panic under this lock");
        let Some(entry) = held.get_mut(&id) else { return };
        entry.opens -= 1;
        if entry.opens == 0 {
            let gone = held.remove(&id);
            drop(held);
            self.watch.forget(id);
            // Dropping may detach probes, which takes the tracer: not under the lock.
            drop(gone);
        }
    }

    /// All objects that are open.
    pub fn objects(&self) -> Vec<Object> {
        self.held.lock().expect("no panic under this lock").values().map(|held| held.object.clone()).collect()
    }

    pub(crate) fn loader_begins(&self, pid: u32, command: Vec<String>) {
        self.loaders.lock().expect("no panic under this lock").insert(pid, Loader { pid, command });
    }

    pub(crate) fn loader_ended(&self, pid: u32) {
        self.loaders.lock().expect("no panic under this lock").remove(&pid);
    }

    /// For `ring3 status`: loaders, maps, programs, links.
    pub fn snapshot(&self) -> Value {
        let loaders: Vec<Value> = self
            .loaders
            .lock()
            .expect("no panic under this lock")
            .values()
            .map(|loader| json!({ "pid": loader.pid, "comm": loader.command.join(" ") }))
            .collect();
        let objects = self.objects();
        let of = |pick: &dyn Fn(&Object) -> Option<Value>| {
            let mut rows: Vec<Value> = objects.iter().filter_map(pick).collect();
            rows.sort_by_key(|row| row["id"].as_u64());
            rows.dedup();
            rows
        };
        json!({
            "loaders": loaders,
            "maps": of(&|object| match object { Object::Map(map) => Some(map.describe()), _ => None }),
            "programs": of(&|object| match object { Object::Program(program) => Some(program.describe()), _ => None }),
            "links": of(&|object| match object {
                Object::Link(link) => Some(link.describe()),
                Object::Event(event) => event.describe_attached(),
                _ => None,
            }),
        })
    }
}

/// Device and inode of a descriptor.
fn file_id(fd: BorrowedFd<'_>) -> Option<FileId> {
    let stat = rustix::fs::fstat(fd).ok()?;
    Some(FileId(stat.st_dev, stat.st_ino))
}

/// Our error numbers from rustix's.
pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}
