//! The target side of the server: everything that reaches into traced processes.
//!
//! The loader side calls [`Realm`]; it never sees a target. What must be done inside targets is done by
//! one thread, the tracer (`tracer.rs`), since ptrace belongs to a thread; calls are handed to it and
//! answered. Shared tables (map slots, text, doorbells) are kept here under short locks.
//!
//! Which directory is for what, and may use which: ARCHITECTURE.md, "Directories of the realm".

mod applying;
mod calls;
mod files;
mod hosted;
mod leaving;
mod life;
mod links;
mod meant;
mod memory;
mod process;
mod programs;
mod refusal;
mod reports;
mod requests;
mod signals;
mod sites;
mod target;
mod tracer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ring3_engine::Engine;
use ring3_jit::{Code, Target as Symbol};
use ring3_layout::control::MAPS_MAX;
use ring3_layout::region::{TEXT_OFFSET, got_offset};
use ring3_maps::Geometry;
use ring3_names::Names;
use ring3_names::elf::PlacedSymbol;
use ring3_uapi::Errno;
use ring3_uapi::seccomp::FilterInsn;
use serde::Serialize;

pub use files::{FileId, plan_file};
pub use hosted::{EventSpec, HostedEvent, HostedProgram, TestInput};
pub(crate) use hosted::{field_of, put};
pub use life::Watch;
pub use links::{
    AttachmentId, Calls, Following, LinkSpec, Point, ProbePoint, Scope, SyscallContext, SyscallPoint, TaskPoint,
};
pub use memory::{
    CountedRuns, Death, Domain, EventFd, Isolation, RunSums, TextRange, has_protection_keys, number_of_process,
    process_named,
};
pub(crate) use process::{futex_wake, leader};
pub use programs::ExtensionClass;
pub(crate) use programs::task_table;
pub use refusal::Refusal;
pub use reports::{Explained, PerfFiles, SiteStatus, TargetStatus, Terminal, explain, survey};
pub use ring3_run::possible_cpus;
pub use target::fresh_nonce;
pub use tracer::Ready;
use tracer::{Command, Tracer};

use crate::quota::Quota;
use crate::rights::Rights;
use crate::trace::TraceLog;

/// How often that is looked at of which nobody tells when it changes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Targets that were let go are remembered for `ring3 status`, the latest ones.
const LET_GO_SHOWN_MAX: usize = 16;
/// A file is analysed so often for one question.
const ANALYSES_MAX: u32 = 100;
/// How often who waits for a large file to be analysed looks whether it is.
const ANALYSED_EVERY: Duration = Duration::from_millis(2);

/// A map's memory as targets map it.
#[derive(Debug)]
pub struct MapFile {
    /// `[data area][private area]`, see `ring3_layout::map`.
    pub memfd: OwnedFd,
    /// Sizes and offsets.
    pub geometry: Geometry,
    /// False for maps that programs may only read (`BPF_F_RDONLY_PROG`).
    pub writable: bool,
    /// How it is kept from the processes that have it.
    pub isolation: Isolation,
    /// What targets of other domains than the server's own get.
    pub elsewhere: Elsewhere,
}

/// What targets of other domains than the server's own get for a map.
#[derive(Debug)]
pub enum Elsewhere {
    /// The same: targets cannot write it, or its loader says that they may share it.
    Same,
    /// Memory of their own.
    Own(Arc<dyn Instances>),
    /// Nothing, and no program that uses the map: why.
    Nothing(&'static str),
}

/// The memory of a map for other domains than the server's own.
pub trait Instances: std::fmt::Debug + Send + Sync {
    /// A target of the server's own domain gets the map.
    fn begin(&self);

    /// The memory of a domain, made if there is none.
    ///
    /// # Errors
    /// Those of making memory.
    fn of(&self, domain: &Arc<Domain>) -> Result<Arc<MapFile>, Errno>;
}

/// What has to be looked at often, since nobody tells when it changes.
pub trait Looked: Send + Sync {
    /// Looks at it.
    fn look(&self);
}

/// A map's index in every target's GOT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapSlot(pub u32);

/// A compiled program in the text. Released with [`Realm::drop_program`].
#[derive(Debug)]
pub struct ProgramText {
    /// Where it lies.
    pub range: TextRange,
    /// Offset of its entry in the text.
    pub entry: u32,
    /// Bytes of machine code.
    pub code_bytes: u32,
    /// Who made it: not `Auto`.
    pub engine: Engine,
    /// GOT slots of the maps that it reaches, those of perf buffers inside perf event arrays excluded.
    pub maps: Vec<MapSlot>,
}

/// A process that is no target, its name, and why.
pub type NotTraced = (u32, String, String);

/// Figures of the realm for `ring3 status`.
#[derive(Debug, Serialize)]
pub struct RealmStatus {
    /// Targets.
    pub targets: Vec<TargetStatus>,
    /// Processes that links want and that are no targets.
    pub not_traced: Vec<NotTraced>,
    /// Targets that were let go lately though nobody asked for that.
    pub let_go: Vec<NotTraced>,
    /// Bytes of compiled programs.
    pub text_bytes: u64,
    /// Bytes of the agent image.
    pub agent_bytes: u64,
}

/// Memory and tables that the loader side and the tracer share.
struct Shared {
    agent: process::SharedFile,
    domains: memory::Domains,
    /// Room for targets that nobody has named, by user.
    room: Arc<Quota>,
    text: memory::TextStore,
    unwind: files::UnwindStore,
    doorbells: memory::Doorbells,
    namespaces: memory::Namespaces,
    deaths: memory::Deaths,
    /// Index: GOT slot. A slot is free again once every target has unmapped it.
    maps: Mutex<Vec<Option<Arc<MapFile>>>>,
    /// Maps that are reached through others: perf buffers through their perf event array, inner maps through their outer
    /// ones, and the maps of programs through the arrays that these are in.
    companions: Mutex<BTreeMap<MapSlot, BTreeSet<MapSlot>>>,
    /// The acting thread has been told that agents ask for something, and has not looked yet.
    rung: AtomicBool,
    /// The tracer had targets when it last waited.
    has_targets: AtomicBool,
    let_go: Mutex<VecDeque<NotTraced>>,
    /// What is known of executable files: a file is read once, mostly before a target is stopped.
    modules: Mutex<files::Modules>,
    /// The system calls of the kernel's own code in processes, which is the same in all.
    vdso: Option<files::SyscallPlans>,
    trace: Mutex<TraceLog>,
    /// Processes that have loaded programs, and when they were started (clock ticks since boot).
    loaders: Mutex<BTreeMap<u32, Option<u64>>>,
    /// Processes that their tools trace, and that links name: they are targets when they are let go.
    held_by_tools: Mutex<BTreeSet<u32>>,
    /// What is looked at often.
    looked: Mutex<Vec<std::sync::Weak<dyn Looked>>>,
    /// Processes that run programs of perf events.
    hosts: hosted::Hosts,
    /// The filter of system calls that loaders have.
    loader_filter: Vec<FilterInsn>,
    cpus: u32,
    directory: u32,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("domains", &self.domains).finish_non_exhaustive()
    }
}

/// The realm of one server.
#[derive(Debug)]
pub struct Realm {
    shared: Arc<Shared>,
    tracer: Tracer,
    finder: Arc<life::Finder>,
}

impl Realm {
    /// Makes the realm and starts its two threads (doorbells, tracer). `directory` names the server's run-time directory;
    /// `perf` is where perf may find names, `loader_filter` the filter of system calls that loaders have.
    pub fn start(
        directory: u32,
        perf: Option<&PerfFiles>,
        loader_filter: Vec<FilterInsn>,
    ) -> std::io::Result<Arc<Realm>> {
        let image = ring3_image::bytes();
        let agent_bytes = (image.len() as u64).next_multiple_of(4096);
        let agent = match perf {
            Some(files) => files.create("agent", agent_bytes)?,
            None => process::SharedFile::new("ring3-agent", agent_bytes, true)?,
        };
        agent.write_bytes(0, image);
        if agent.has_path() {
            reports::wrap(&agent, agent_bytes, ring3_image::code(), &[(0, Arc::new(reports::of_agent()))]);
        }
        let shared = Arc::new(Shared {
            agent,
            domains: memory::Domains::new()?,
            room: Quota::of_targets(),
            text: memory::TextStore::new(perf)?,
            unwind: files::UnwindStore::new()?,
            doorbells: memory::Doorbells::new(),
            namespaces: memory::Namespaces::new(),
            deaths: memory::Deaths::new()?,
            maps: Mutex::new(vec![]),
            companions: Mutex::new(BTreeMap::new()),
            rung: AtomicBool::new(false),
            has_targets: AtomicBool::new(false),
            let_go: Mutex::default(),
            modules: Mutex::default(),
            vdso: files::vdso_calls(),
            trace: Mutex::default(),
            loaders: Mutex::default(),
            held_by_tools: Mutex::default(),
            looked: Mutex::default(),
            hosts: hosted::Hosts::default(),
            cpus: possible_cpus(),
            loader_filter,
            directory,
        });
        let tracer = Tracer::start(shared.clone())?;
        let finder = life::Finder::new(tracer.sender())?;
        let realm = Arc::new(Realm { shared: shared.clone(), tracer, finder });
        let (sender, weak) = (Mutex::new(realm.tracer.sender()), Arc::downgrade(&shared));
        shared.domains.begin(Box::new(move |block| {
            let Some(shared) = weak.upgrade() else { return };
            let sender = sender.lock().expect("no panic under this lock").clone();
            let listener = std::thread::Builder::new().name("ring3-doorbell".into());
            let listening = listener.spawn(move || {
                shared.doorbells.run(&block, &|| {
                    // (Rung for as often as a target likes, it is told once.)
                    if !shared.rung.swap(true, Ordering::AcqRel) {
                        sender.send(Command::Requests);
                    }
                });
            });
            if let Err(error) = listening {
                tracing::error!("no thread for requests of targets: {error}");
            }
        }));
        Ok(realm)
    }

    /// Gives a map a GOT slot. Targets map it when a program that uses it is attached there.
    pub fn add_map(&self, file: Arc<MapFile>) -> Result<MapSlot, Errno> {
        let mut maps = self.shared.maps.lock().expect("no panic under this lock");
        let free = maps.iter().position(Option::is_none);
        let slot = free.unwrap_or(maps.len());
        if slot >= MAPS_MAX as usize {
            return Err(Errno::ENOSPC);
        }
        if slot == maps.len() {
            maps.push(None);
        }
        maps[slot] = Some(file);
        Ok(MapSlot(slot as u32))
    }

    /// The map is gone: targets unmap it, then the slot is free.
    pub fn drop_map(&self, slot: MapSlot) {
        self.tracer.send(Command::DropMap(slot));
    }

    /// A number for `MapHeader::doorbell`, and the eventfd that is written when an agent rings it.
    pub fn add_doorbell(&self) -> Result<(u32, Arc<EventFd>), Errno> {
        self.shared.doorbells.add()
    }

    /// Has a ring buffer looked at while it is in use: where its consumer and its producer are.
    pub fn watch_doorbell(&self, number: u32, positions: impl Fn() -> Option<[u64; 2]> + Send + Sync + 'static) {
        self.shared.doorbells.watch(number, Arc::new(positions));
    }

    /// Has what other domains than the server's own have written fetched when they ring.
    pub fn fetch_by(&self, number: u32, fetch: impl Fn(u32) + Send + Sync + 'static) {
        self.shared.doorbells.fetch_by(number, Arc::new(fetch));
    }

    /// Rings a doorbell as a target of the server's own domain would.
    pub fn ring(&self, number: u32) {
        self.shared.domains.own().block().ring(number);
    }

    /// Has something looked at often, as long as it is there.
    pub fn look_often(&self, looked: std::sync::Weak<dyn Looked>) {
        let mut all = self.shared.looked.lock().expect("no panic under this lock");
        let is_first = all.is_empty();
        all.push(looked);
        drop(all);
        let shared = self.shared.clone();
        let look = move || {
            loop {
                std::thread::sleep(LOOK_EVERY);
                let mut all = shared.looked.lock().expect("no panic under this lock");
                all.retain(|looked| looked.strong_count() > 0);
                if all.is_empty() {
                    return;
                }
                let now = all.clone();
                drop(all);
                now.iter().filter_map(std::sync::Weak::upgrade).for_each(|looked| looked.look());
            }
        };
        if is_first && let Err(error) = std::thread::Builder::new().name("ring3-looks".into()).spawn(look) {
            tracing::error!("no thread for what targets of other users write: {error}");
        }
    }

    /// Gives a doorbell number back.
    pub fn drop_doorbell(&self, number: u32) {
        self.shared.doorbells.drop_bell(number);
    }

    /// Readable when targets have ended.
    pub fn deaths_bell(&self) -> Arc<EventFd> {
        self.shared.deaths.bell.clone()
    }

    /// The targets that have ended since the last time.
    pub fn take_deaths(&self) -> Vec<Death> {
        self.shared.deaths.take()
    }

    /// Which of these owners of locks and records, of whatever pid namespaces, run no more.
    pub fn dead_among(&self, owners: &BTreeSet<u32>) -> BTreeSet<u32> {
        self.shared.namespaces.dead_among(owners)
    }

    /// A process loads programs: no link makes it a target that does not name it.
    pub fn note_loader(&self, pid: u32) {
        self.shared
            .loaders
            .lock()
            .expect("no panic under this lock")
            .entry(pid)
            .or_insert_with(|| ring3_inject::started(pid));
    }

    /// Puts a proved program's code into the text. `engine`: who compiled it.
    pub fn publish_program(
        &self,
        code: &Code,
        maps: Vec<MapSlot>,
        engine: Engine,
        names: Names,
    ) -> Result<ProgramText, Refusal> {
        let range = self
            .shared
            .text
            .reserve(code.bytes.len())
            .ok_or_else(|| Refusal::new(Errno::ENOMEM, "no room for more compiled programs"))?;
        self.shared.domains.forget_runs(range);
        let resolve = |symbol: Symbol| match symbol {
            Symbol::Helper(id) => ring3_image::helper(id),
            Symbol::Symbol(name) => ring3_image::symbol(name),
            Symbol::GotHeader(slot) => Some(got_offset(slot)),
            Symbol::GotData(slot) => Some(got_offset(slot) + 8),
        };
        let linked = code.link(TEXT_OFFSET + u64::from(range.offset), &resolve).map_err(|error| {
            self.shared.text.release(range);
            Refusal::new(Errno::EINVAL, format!("linking failed: {error}"))
        })?;
        self.shared.text.write(range, &linked, names);
        Ok(ProgramText { range, entry: range.offset + code.entry, code_bytes: linked.len() as u32, engine, maps })
    }

    /// The program is gone; its text is reused when no thread can be in it any more.
    pub fn drop_program(&self, text: &ProgramText) {
        self.tracer.send(Command::DropText(text.range));
    }

    /// Attaches a program to one point or to many, which are in one file and of the same process, or all of any. For one process:
    /// succeeds wholly or fails with the reason. For all targets: a target where it cannot be done keeps the reason for
    /// `ring3 status`.
    pub fn attach(&self, mut specs: Vec<LinkSpec>) -> Result<Vec<AttachmentId>, Refusal> {
        let mut found = BTreeSet::new();
        let first = specs.first().and_then(|spec| Some((spec.wanted()?, &spec.point)));
        if let Some((wanted, point)) = first {
            let watched = self.finder.watch(wanted, point);
            let (watch, those) = watched.map_err(|errno| {
                let what = "its file cannot be watched, so that new processes would not be seen";
                Refusal::new(errno, format!("{what}; raise fs.inotify.max_user_watches"))
            })?;
            let watch = Some(Arc::new(watch));
            specs.iter_mut().for_each(|spec| spec.watch.clone_from(&watch));
            found = those;
            if matches!(wanted, life::Wanted::OfLoader(_)) {
                found.extend(specs.iter().flat_map(|spec| spec.filter.named()));
            }
        }
        self.tracer.ask(|reply| Command::Attach(specs, found, reply))?
    }

    /// Detaches, before anything is done that is asked for later: no program of this attachment starts any more, and unused sites
    /// are restored. What is asked for together is done together: a tool that ends may have thousands of links.
    pub fn detach(&self, id: AttachmentId) {
        self.tracer.send(Command::Detach(id));
    }

    /// Whether what is made with these rights may be for a process.
    pub fn check_reach(&self, rights: &Rights, pid: u32) -> Result<(), Refusal> {
        meant::check_reach(rights, pid)
    }

    /// Whether the instructions at `offsets` of `file` (or the returns from there, with `ret`) can be probed at all.
    pub fn check_sites(&self, file: &Path, offsets: &[u64], ret: bool) -> Result<(), Refusal> {
        let Ok(key) = files::Modules::key(file) else {
            return offsets.iter().try_for_each(|offset| self.check_site(file, *offset, ret));
        };
        self.shared.modules().awaits(key, file);
        let mut offsets = offsets.iter().peekable();
        for _ in 0..ANALYSES_MAX {
            // (Who asks waits; others do not.)
            if self.shared.modules().is_awaited(&key) {
                self.tracer.send(Command::AnalyseFiles);
            }
            while self.shared.modules().is_awaited(&key) {
                std::thread::sleep(ANALYSED_EVERY);
            }
            while let Some(offset) = offsets.peek() {
                match self.check_site(file, **offset, ret) {
                    // Other large files have taken its place in memory: it is analysed once more.
                    Err(_) if self.shared.modules().is_awaited(&key) => break,
                    checked => checked?,
                }
                offsets.next();
            }
            if offsets.peek().is_none() {
                return Ok(());
            }
        }
        Err(Refusal::new(
            Errno::EBUSY,
            format!("{}: so many large files are analysed that it finds no room", file.display()),
        ))
    }

    fn check_site(&self, file: &Path, offset: u64, ret: bool) -> Result<(), Refusal> {
        files::check_site(&mut self.shared.modules(), file, offset, ret)
    }

    /// Makes a running process a target. With no `following` it is one as long as a link is for it or its family, and so are its
    /// children. It belongs to the family of `of_family`, too. `before_program`: it runs ring3 until it executes its program.
    pub fn add_target(
        &self,
        pid: u32,
        following: Option<Following>,
        of_family: Option<u32>,
        before_program: bool,
    ) -> Result<TargetStatus, Refusal> {
        // (A static ring3 makes the call that executes the program itself.)
        let asked = match following {
            Some(following) => life::Asked::User(following),
            None if before_program && files::maps_c_library(pid) => life::Asked::BeforeProgram,
            None => life::Asked::Name,
        };
        self.tracer.ask(|reply| Command::AddTarget(pid, asked, of_family, reply))?
    }

    /// Whether a link names a process that this tool traces: it is to become a target when the tool lets it go. (That is asked once.)
    pub fn take_held(&self, pid: u32, tool: u32) -> bool {
        process::is_traced_by(pid, tool)
            && self.shared.held_by_tools.lock().expect("no panic under this lock").remove(&pid)
    }

    /// Makes a process a target at its next `execve`; `ready` is called once it may go ahead.
    /// Returns when the new program has been let go.
    pub fn add_target_at_exec(&self, pid: u32, following: Following, ready: Ready) -> Result<TargetStatus, Refusal> {
        self.tracer.ask_long(|reply| Command::AddTargetAtExec(pid, following, ready, reply))?
    }

    /// A thread, by process and id, is in its `execve` and goes on when `ready` is called or dropped: what it runs then becomes a
    /// target if a link wants it.
    pub fn follow_in_call(&self, pid: u32, tid: u32, ready: Ready) {
        if self.finder.is_idle() {
            return ready();
        }
        self.tracer.send(Command::FollowInCall(pid, tid, ready));
    }

    /// Takes everything of ours out of a target. `verify`: looks what is left, a line each.
    pub fn remove_target(&self, pid: u32, verify: bool) -> Result<Vec<String>, Refusal> {
        self.tracer.ask(|reply| Command::RemoveTarget(pid, verify, reply))?
    }

    /// Perf buffers, inner maps and what the programs of an array use can be reached through another map: wherever
    /// that one is mapped, now or later, they are mapped too. On return they are in all present targets. Undone by
    /// [`Realm::drop_map`].
    pub fn add_companions(&self, map: MapSlot, reached: &[MapSlot]) -> Result<(), Refusal> {
        let mut companions = self.shared.companions.lock().expect("no panic under this lock");
        companions.entry(map).or_default().extend(reached);
        drop(companions);
        self.shared.hosts.give_maps()?;
        self.tracer.ask(Command::MapCompanions)
    }

    /// The key of a thread's values in task storage: of the thread `tid` (in its own pid namespace) of process `pid`, if
    /// that is a target and a program has run in the thread.
    pub fn thread_serial(&self, pid: u32, tid: u32) -> Option<u32> {
        self.tracer.ask(|reply| Command::ThreadSerial(pid, tid, reply)).ok()?
    }

    /// Whether there were targets when the tracer last had nothing to do.
    pub fn had_targets(&self) -> bool {
        self.shared.has_targets.load(Ordering::Acquire)
    }

    /// How many targets there are.
    pub fn target_count(&self) -> usize {
        self.tracer.ask(Command::Count).unwrap_or(0)
    }

    /// Everything for `ring3 status`.
    pub fn status(&self) -> RealmStatus {
        let (targets, not_traced) = self.tracer.ask(Command::Snapshot).unwrap_or_default();
        RealmStatus {
            targets,
            not_traced,
            let_go: self.shared.let_go.lock().expect("no panic under this lock").iter().cloned().collect(),
            text_bytes: self.shared.text.used_bytes(),
            agent_bytes: ring3_image::bytes().len() as u64,
        }
    }

    /// Where what of ring3 lies in a target, with names.
    pub fn symbols(&self, pid: u32) -> Result<Vec<PlacedSymbol>, Refusal> {
        let found = self.tracer.ask(|reply| Command::Symbols(pid, reply))?;
        found.ok_or_else(|| {
            Refusal::new(Errno::ESRCH, format!("process {pid} is not a target; `ring3 status` shows targets"))
        })
    }

    /// The lines of `bpf_trace_printk` with numbers from `from` on, and the number to continue at.
    pub fn trace(&self, from: u64) -> (Vec<String>, u64) {
        let mut log = self.shared.trace.lock().expect("no panic under this lock");
        for domain in self.shared.domains.all() {
            let block = domain.block();
            let user = (!domain.is_own()).then(|| domain.to_string());
            let seen = block.trace_next.load(Ordering::Relaxed);
            block.trace_next.store(log.add(block.file.realm(), seen, user.as_deref()), Ordering::Relaxed);
        }
        log.lines(from)
    }

    /// Detaches from every target and ends the threads.
    pub fn shut_down(&self) {
        let _ = self.tracer.ask_long(Command::ShutDown);
        self.shared.agent.unlink();
        self.shared.text.unlink();
        self.shared.domains.all().iter().for_each(|domain| self.shared.doorbells.stop(domain.block()));
    }
}

impl Shared {
    fn modules(&self) -> MutexGuard<'_, files::Modules> {
        self.modules.lock().expect("no panic under this lock")
    }

    /// Whether a process has loaded programs. Those that have ended are forgotten.
    fn is_loader(&self, pid: u32) -> bool {
        let mut loaders = self.loaders.lock().expect("no panic under this lock");
        loaders.retain(|pid, started| ring3_inject::started(*pid) == *started);
        loaders.contains_key(&pid)
    }

    /// A target is let go for a reason.
    fn note_let_go(&self, pid: u32, comm: &str, why: &str) {
        let mut let_go = self.let_go.lock().expect("no panic under this lock");
        let_go.push_back((pid, comm.to_owned(), why.to_owned()));
        while let_go.len() > LET_GO_SHOWN_MAX {
            let_go.pop_front();
        }
    }

    fn map_file(&self, slot: MapSlot) -> Option<Arc<MapFile>> {
        self.maps.lock().expect("no panic under this lock").get(slot.0 as usize)?.clone()
    }

    /// What targets of a domain get for maps.
    fn map_files(&self, slots: &[MapSlot], domain: &Arc<Domain>) -> Result<Vec<(MapSlot, Arc<MapFile>)>, Refusal> {
        let mut files = vec![];
        for slot in slots {
            let Some(file) = self.map_file(*slot) else { continue };
            let file = match &file.elsewhere {
                Elsewhere::Own(instances) if domain.is_own() => {
                    instances.begin();
                    file
                }
                Elsewhere::Own(instances) => {
                    let told = |errno| Refusal::new(errno, "a user's memory of a map could not be made");
                    instances.of(domain).map_err(told)?
                }
                Elsewhere::Same => file,
                Elsewhere::Nothing(_) if domain.is_own() => file,
                Elsewhere::Nothing(why) => return Err(Refusal::new(Errno::EPERM, *why)),
            };
            files.push((*slot, file));
        }
        Ok(files)
    }

    /// Why no target of a domain can have what is reached through these maps, if so.
    fn kept_from(&self, slots: &[MapSlot], domain: &Domain) -> Option<&'static str> {
        let slots = if domain.is_own() { BTreeSet::new() } else { self.with_companions(slots.iter().copied()) };
        slots.into_iter().find_map(|slot| match self.map_file(slot)?.elsewhere {
            Elsewhere::Nothing(why) => Some(why),
            Elsewhere::Same | Elsewhere::Own(_) => None,
        })
    }

    /// The maps themselves and all that can be reached through them.
    fn with_companions(&self, slots: impl Iterator<Item = MapSlot>) -> BTreeSet<MapSlot> {
        let companions = self.companions.lock().expect("no panic under this lock");
        let (mut all, mut open) = (BTreeSet::new(), slots.collect::<Vec<_>>());
        while let Some(slot) = open.pop() {
            if all.insert(slot) {
                open.extend(companions.get(&slot).into_iter().flatten());
            }
        }
        all
    }

    fn free_map(&self, slot: MapSlot) {
        let mut companions = self.companions.lock().expect("no panic under this lock");
        companions.remove(&slot);
        for buffers in companions.values_mut() {
            buffers.remove(&slot);
        }
        drop(companions);
        if let Some(entry) = self.maps.lock().expect("no panic under this lock").get_mut(slot.0 as usize) {
            *entry = None;
        }
    }
}
