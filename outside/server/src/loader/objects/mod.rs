//! The objects of the BPF subsystem: maps, programs, BTF, perf events, links.
//!
//! A loader holds an object by a real descriptor: the write end of a pipe, or for maps and output events a
//! memfd opened anew. The object is found by the descriptor's inode, and the kernel tells of the last close: the
//! pipe's hang-up, or an inotify event. Such events melt into one when they are the same, so they are not counted:
//! each open file description holds a lock on a byte of its own, which is gone with it. References between objects
//! are `Arc`s, as in the kernel: a link keeps its program, a program its maps.

mod attached;
mod everywhere;
mod kernel_types;
mod kinds;
mod merge;
pub(super) mod pins;
mod raw_instances;
mod raw_lock;
mod raw_map;
mod sampled;
mod tracepoints;
mod uprobes;
mod watch;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_F_RDONLY, BPF_F_WRONLY};
use rustix::fs::OFlags;
use serde_json::{Value, json};

pub use attached::Attached;
pub use kernel_types::{KernelTypes, VMLINUX_BTF_ID};
pub use kinds::{Btf, Event, EventKind, Link, LinkTarget, Object, Program, Source, Stats};
use pins::{Files, Pins};
pub use raw_map::{Inner, MapObject, Members, OutputBuffer, Sharing};
pub use sampled::{SampledEvent, check_period, event_name};
pub use tracepoints::{KprobeSite, PROGRAMS_MAX, TracepointSite, Tracepoints};
pub use uprobes::{MultiProbe, MultiSite, ProbedFile, UprobePlaces, UprobeSite};
use watch::{Closes, Watch};

use crate::loader::recent::RecentPrograms;
use crate::quota::{Quota, Share};
use crate::realm::Realm;
use crate::rights::Rights;

/// At most as long after the last one all memfds are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// What identifies an open object: device and inode of its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64, pub u64);

/// A loader that is being served.
#[derive(Clone, Debug)]
struct Loader {
    pid: u32,
    command: String,
}

/// An object that is memory, as long as somebody else keeps it alive.
enum WeakMemory {
    Map(Weak<MapObject>),
    Event(Weak<Event>),
}

impl WeakMemory {
    fn of(object: &Object) -> Option<WeakMemory> {
        match object {
            Object::Map(map) => Some(WeakMemory::Map(Arc::downgrade(map))),
            Object::Event(event) => Some(WeakMemory::Event(Arc::downgrade(event))),
            _ => None,
        }
    }

    fn object(&self) -> Option<Object> {
        match self {
            WeakMemory::Map(map) => map.upgrade().map(Object::Map),
            WeakMemory::Event(event) => event.upgrade().map(Object::Event),
        }
    }
}

struct OpenObject {
    object: Object,
    /// For memfds: bytes that open file descriptions have locked.
    opens: Vec<u32>,
    _share: Share,
}

/// What a map's descriptor allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Access {
    pub read: bool,
    pub write: bool,
}

impl Access {
    /// To read.
    pub const READ: Access = Access { read: true, write: false };
    /// To write.
    pub const WRITE: Access = Access { read: false, write: true };
    /// To read and write.
    pub const BOTH: Access = Access { read: true, write: true };

    /// Mirrors kernel/bpf/syscall.c:bpf_get_file_flag.
    pub fn from_flags(flags: u32) -> Result<Access, Errno> {
        let access = Access { read: flags & BPF_F_WRONLY == 0, write: flags & BPF_F_RDONLY == 0 };
        if access.read || access.write { Ok(access) } else { Err(Errno::EINVAL) }
    }

    /// Of an open descriptor.
    pub fn of(fd: BorrowedFd<'_>) -> Access {
        let mode = rustix::fs::fcntl_getfl(fd).map_or(OFlags::RDONLY, |flags| flags & OFlags::ACCMODE);
        Access { read: mode != OFlags::WRONLY, write: mode != OFlags::RDONLY }
    }

    fn mode(self) -> OFlags {
        match (self.read, self.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        }
    }
}

/// All objects of a server.
pub struct Subsystem {
    /// The target side.
    pub realm: Arc<Realm>,
    /// The programs of tracepoints.
    pub tracepoints: Arc<Tracepoints>,
    /// Where uprobes are.
    pub uprobes: Arc<UprobePlaces>,
    /// Programs that need not be compiled again.
    pub recent: RecentPrograms,
    /// What loaders may hold.
    pub descriptors: Arc<Quota>,
    /// See `descriptors`.
    pub map_slots: Arc<Quota>,
    held: Mutex<HashMap<FileId, OpenObject>>,
    /// All objects that are memory: targets may hold something in there.
    memory: Mutex<BTreeMap<(IdKind, u32), WeakMemory>>,
    pins: Mutex<Pins>,
    loaders: Mutex<BTreeMap<u32, Loader>>,
    watch: Watch,
    kernel_types: Vec<Arc<KernelTypes>>,
    next_id: [AtomicU32; 6],
}

/// Kinds of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum IdKind {
    Map,
    Program,
    Btf,
    Link,
    Event,
    Stats,
}

impl Subsystem {
    /// An empty subsystem; starts the thread that hears of closed descriptors.
    pub fn new(realm: Arc<Realm>) -> Arc<Subsystem> {
        let watch = Watch::new(&realm.deaths_bell()).expect("inotify and epoll are available");
        let kernel_types = KernelTypes::all();
        let next_id = std::array::from_fn(|_| AtomicU32::new(1));
        next_id[IdKind::Btf as usize].fetch_add(kernel_types.len() as u32, Ordering::Relaxed);
        let subsystem = Arc::new(Subsystem {
            realm,
            tracepoints: Arc::default(),
            uprobes: Arc::default(),
            recent: RecentPrograms::default(),
            descriptors: Quota::of_descriptors(),
            map_slots: Quota::of_maps(),
            held: Mutex::default(),
            memory: Mutex::default(),
            pins: Mutex::default(),
            loaders: Mutex::new(BTreeMap::new()),
            watch,
            kernel_types,
            next_id,
        });
        let weak = Arc::downgrade(&subsystem);
        std::thread::Builder::new()
            .name("ring3-objects".into())
            .spawn(move || {
                let (mut closes, mut swept) = (Closes::default(), Instant::now());
                while let Some(subsystem) = weak.upgrade() {
                    let closed =
                        subsystem.watch.wait(closes.pause().map_or(SWEEP_EVERY, |pause| pause.min(SWEEP_EVERY)));
                    subsystem.tend();
                    closes.add(closed);
                    closes.look(|id| subsystem.look(id));
                    if swept.elapsed() >= SWEEP_EVERY {
                        subsystem.sweep();
                        subsystem.recent.forget_old();
                        swept = Instant::now();
                    }
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
        self.held().get(&id).map(|held| held.object.clone())
    }

    /// A new descriptor for an object that lives as long as the loader keeps it open.
    pub fn open_pipe(&self, object: Object, share: Share) -> Result<OwnedFd, Errno> {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(errno)?;
        let id = file_id(theirs.as_fd()).ok_or(Errno::EMFILE)?;
        self.held().insert(id, OpenObject { object, opens: vec![], _share: share });
        self.watch.add_pipe(id, ours).map_err(errno)?;
        Ok(theirs)
    }

    /// A new descriptor for an object that is memory.
    pub fn open_memfd(
        &self,
        object: Object,
        memfd: BorrowedFd<'_>,
        access: Access,
        share: Share,
    ) -> Result<OwnedFd, Errno> {
        use std::os::fd::AsRawFd;
        let id = file_id(memfd).ok_or(Errno::EMFILE)?;
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        // Under the lock: a watch that is added here is not forgotten by a close of before.
        let mut held = self.held();
        if let Some(weak) = WeakMemory::of(&object) {
            self.memory.lock().expect("no panic under this lock").insert(object.name(), weak);
        }
        self.watch.add_memfd(id, &path).map_err(errno)?;
        let opened =
            rustix::fs::open(path, access.mode() | OFlags::CLOEXEC, rustix::fs::Mode::empty()).map_err(errno)?;
        let entry = held.entry(id).or_insert(OpenObject { object, opens: vec![], _share: share });
        let byte = (0..).find(|byte| !entry.opens.contains(byte)).expect("fewer opens than numbers");
        raw_lock::lock(opened.as_fd(), byte, access.write).map_err(errno)?;
        entry.opens.push(byte);
        Ok(opened)
    }

    /// Looks which open file descriptions are left; the last one takes the table's reference with it. Whether any is left.
    fn look(&self, id: FileId) -> bool {
        let mut held = self.held();
        let Some(entry) = held.get_mut(&id) else { return false };
        if let Some(memfd) = entry.object.memfd() {
            entry.opens.retain(|byte| raw_lock::is_locked(memfd, *byte));
            if !entry.opens.is_empty() {
                return true;
            }
        }
        let gone = held.remove(&id);
        self.watch.forget(id);
        drop(held);
        if let Some(held) = &gone {
            self.released(&held.object);
        }
        // Dropping may detach probes, which takes the tracer: not under the lock.
        drop(gone);
        false
    }

    /// A descriptor or a name of it is gone; perhaps the last one.
    fn released(&self, object: &Object) {
        let Object::Map(map) = object else { return };
        let is_open = file_id(map.memfd().as_fd()).is_some_and(|id| self.held().contains_key(&id));
        let is_it = |other: &Object| matches!(other, Object::Map(other) if Arc::ptr_eq(other, map));
        if !is_open && !self.pins().objects().any(is_it) {
            map.is_closed();
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<FileId, OpenObject>> {
        self.held.lock().expect("no panic under this lock")
    }

    fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock().expect("no panic under this lock")
    }

    /// Names an object.
    pub fn pin(&self, files: &Files, path: PathBuf, object: Object) -> Result<(), Errno> {
        self.pins().pin(files, path, object)
    }

    /// The object of this name.
    pub fn pinned(&self, files: &Files, path: &Path) -> Result<Object, Errno> {
        self.pins().get(files, path)
    }

    /// Takes a name away.
    pub fn unpin(&self, rights: &Rights, path: &Path) -> Result<(), Errno> {
        let object = self.pins().unpin(rights, path)?;
        self.released(&object);
        Ok(())
    }

    /// Whether the table has this name, or a directory of it.
    pub fn has_name(&self, path: &Path) -> bool {
        self.pins().knows(path)
    }

    /// Makes a directory for names.
    pub fn add_directory(&self, files: &Files, path: PathBuf) -> Result<(), Errno> {
        self.pins().add_directory(files, path)
    }

    /// Takes an empty directory away.
    pub fn remove_directory(&self, rights: &Rights, path: &Path) -> Result<(), Errno> {
        self.pins().remove_directory(rights, path)
    }

    /// Whether some object has a name.
    pub fn has_pins(&self) -> bool {
        self.pins().objects().next().is_some()
    }

    /// Takes away what targets that have ended left in maps, and what anybody was seen to wait for in vain.
    fn tend(&self) {
        let deaths = self.realm.take_deaths();
        for object in self.memory() {
            match object {
                Object::Map(map) => {
                    let of_map: Vec<u32> = deaths
                        .iter()
                        .filter(|death| death.maps.contains(&map.slot))
                        .map(|death| death.owner)
                        .collect();
                    if !of_map.is_empty() || map.is_held_up() {
                        map.reclaim_dead_owner(&of_map);
                    }
                    map.release_waiting_writers(false);
                }
                Object::Event(event) if !deaths.is_empty() => event.reclaim_dead_owner(&deaths),
                _ => {}
            }
        }
    }

    /// All objects that are memory, and were ever opened.
    fn memory(&self) -> Vec<Object> {
        let mut alive = vec![];
        let mut memory = self.memory.lock().expect("no panic under this lock");
        memory.retain(|_, weak| {
            let object = weak.object();
            let is_alive = object.is_some();
            alive.extend(object);
            is_alive
        });
        alive
    }

    /// Looks at all memfds: of closes that melted together, one may have been looked at too early.
    fn sweep(&self) {
        let held = self.held();
        let memfds = held.iter().filter(|(_, held)| held.object.memfd().is_some());
        let ids: Vec<FileId> = memfds.map(|(id, _)| *id).collect();
        drop(held);
        for id in ids {
            self.look(id);
        }
    }

    /// All objects that are open or have names, or that such ones keep alive, and those that are always there.
    pub fn objects(&self) -> Vec<Object> {
        let mut open: Vec<Object> = self.kernel_types.iter().cloned().map(Object::KernelTypes).collect();
        open.extend(self.held().values().map(|held| held.object.clone()));
        open.extend(self.pins().objects().cloned());
        let mut all = BTreeMap::new();
        while let Some(object) = open.pop() {
            if let Entry::Vacant(entry) = all.entry(object.name()) {
                open.extend(object.references());
                entry.insert(object);
            }
        }
        all.into_values().collect()
    }

    pub(crate) fn loader_begins(&self, pid: u32, command: String) {
        ring3_inject::note_loader(pid);
        self.loaders.lock().expect("no panic under this lock").insert(pid, Loader { pid, command });
    }

    pub(crate) fn loader_ended(&self, pid: u32) {
        self.loaders.lock().expect("no panic under this lock").remove(&pid);
    }

    /// For `ring3 status`: loaders, maps, programs, links, names.
    pub fn snapshot(&self) -> Value {
        let loaders: Vec<Value> = self
            .loaders
            .lock()
            .expect("no panic under this lock")
            .values()
            .map(|loader| json!({ "pid": loader.pid, "command": loader.command }))
            .collect();
        let objects = self.objects();
        let of = |pick: &dyn Fn(&Object) -> Option<Value>| {
            let mut rows: Vec<Value> = objects.iter().filter_map(pick).collect();
            rows.sort_by_key(|row| row["id"].as_u64());
            rows
        };
        json!({
            "loaders": loaders,
            "maps": of(&|object| match object { Object::Map(map) => Some(map.describe()), _ => None }),
            "programs": of(&|object| match object { Object::Program(program) => Some(program.describe()), _ => None }),
            "pins": self.pins().describe(),
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
