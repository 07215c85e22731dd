//! Programs, BTF, perf events, links.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ring3_aot::Facts;
use ring3_isa::Insn;
use ring3_uapi::Errno;
use ring3_uapi::bpf::prog_type;
use ring3_verifier::ProcessFilter;
use serde_json::{Value, json};

use super::IdKind;
use super::attached::{Attached, EventSlot};
use super::kernel_types::KernelTypes;
use super::raw_map::{MapObject, OutputBuffer, Owner, output_memfd};
use super::sampled::SampledEvent;
use super::tracepoints::{self, KprobeSite, TracepointSite, Tracepoints};
use super::uprobes::{MultiSite, UprobeSite};
use crate::loader::call_function::Typed;
use crate::loader::tracepoint::Tracepoint;
use crate::realm::{
    CountedRuns, Death, EventFd, ExtensionClass, Isolation, MapSlot, ProgramText, Realm, Refusal, Scope,
    SyscallContext, Terminal,
};
use crate::rights::Rights;

/// What a descriptor can stand for.
#[derive(Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Object {
    Map(Arc<MapObject>),
    Program(Arc<Program>),
    Btf(Arc<Btf>),
    KernelTypes(Arc<KernelTypes>),
    Event(Arc<Event>),
    Link(Arc<Link>),
    Stats(Arc<Stats>),
}

impl Object {
    /// Its memory, if that is what loaders hold it by.
    pub(super) fn memfd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Object::Map(map) => Some(map.memfd().as_fd()),
            Object::Event(event) => match &event.kind {
                EventKind::Output { memfd, .. } => Some(memfd.as_fd()),
                _ => None,
            },
            _ => None,
        }
    }

    /// What it keeps alive, and what can be found by its id therefore.
    pub(super) fn references(&self) -> Vec<Object> {
        match self {
            Object::Map(map) => map.references(),
            Object::Program(program) => {
                let maps = program.maps.lock().expect("no panic under this lock");
                let maps = maps.iter().cloned().map(Object::Map);
                maps.chain(program.source.btf.iter().cloned().map(Object::Btf)).collect()
            }
            Object::Event(event) => event.program().into_iter().map(Object::Program).collect(),
            Object::Link(link) => {
                let attached = link.attached.lock().expect("no panic under this lock");
                attached.iter().map(|attached| Object::Program(attached.program.clone())).collect()
            }
            Object::Btf(_) | Object::KernelTypes(_) | Object::Stats(_) => vec![],
        }
    }

    /// Its kind and its id.
    pub(super) fn name(&self) -> (IdKind, u32) {
        match self {
            Object::Map(map) => (IdKind::Map, map.id),
            Object::Program(program) => (IdKind::Program, program.id),
            Object::Btf(btf) => (IdKind::Btf, btf.id),
            Object::KernelTypes(types) => (IdKind::Btf, types.id),
            Object::Event(event) => (IdKind::Event, event.id),
            Object::Link(link) => (IdKind::Link, link.id),
            Object::Stats(stats) => (IdKind::Stats, stats.id),
        }
    }

    /// For what it is waited on, bits of poll(2).
    pub fn events(&self) -> i16 {
        match self {
            Object::Map(map) => map.events(),
            _ => libc::POLLIN,
        }
    }

    /// What can be waited on: the eventfd that agents ring, and whether there is something to read now.
    pub fn readiness(&self) -> Option<(Arc<EventFd>, bool)> {
        match self {
            Object::Map(map) => map.doorbell.as_ref().map(|(_, event)| (event.clone(), map.is_ready())),
            Object::Event(event) => event.readiness(),
            _ => None,
        }
    }
}

/// Type information that a loader has brought.
pub struct Btf {
    /// Id.
    pub id: u32,
    /// The types.
    pub types: ring3_btf::Btf,
}

/// What a loader told of where a program comes from.
#[derive(Clone, Default)]
pub struct Source {
    /// `struct bpf_func_info`: instruction and type.
    pub functions: Vec<[u32; 2]>,
    /// `struct bpf_line_info`: instruction, file, line, line and column.
    pub lines: Vec<[u32; 4]>,
    /// The types and strings that these name.
    pub btf: Option<Arc<Btf>>,
    /// First instructions of the subprograms.
    pub starts: Vec<u32>,
}

impl Source {
    /// For naming code.
    pub fn described<'a>(&'a self, name: &'a str, insns: &'a [Insn]) -> ring3_names::Source<'a> {
        ring3_names::Source {
            name,
            insns,
            starts: &self.starts,
            btf: self.btf.as_ref().map(|btf| &btf.types),
            functions: &self.functions,
            lines: &self.lines,
        }
    }

    /// Where the program begins, as `file:line`.
    fn begin(&self) -> Option<String> {
        let line = ring3_names::line(&self.btf.as_ref()?.types, *self.lines.first()?)?;
        Some(format!("{}:{}", line.file, line.line))
    }
}

/// A loaded program.
pub struct Program {
    /// Id.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Tag.
    pub tag: [u8; 8],
    /// `BPF_PROG_TYPE_*`.
    pub prog_type: u32,
    /// `expected_attach_type` of loading.
    pub expected_attach_type: u32,
    /// Licence.
    pub gpl_compatible: bool,
    /// Instructions as they were loaded.
    pub insns: Vec<u8>,
    /// Compiled code.
    pub text: Arc<ProgramText>,
    /// What is known of it besides.
    pub facts: Facts,
    /// Instructions that the verifier went through.
    pub verified_insns: u32,
    /// The processes in which it does anything.
    pub filter: ProcessFilter,
    /// Maps it refers to, or was bound to.
    pub maps: Mutex<Vec<Arc<MapObject>>>,
    /// Where it comes from.
    pub source: Source,
    /// If its loader came with a file of compiled programs: why its code was not used.
    pub aot: Option<Result<(), String>>,
    /// `CLOCK_BOOTTIME` of loading, ns.
    pub loaded_ns: u64,
    /// Where its loader says what goes wrong.
    pub terminal: Option<Terminal>,
    /// What one run may take.
    pub budget: Option<Duration>,
    /// Which processes become targets for its links.
    pub scope: Scope,
    /// The process that loaded it.
    pub loader: u32,
    /// It is an extension of this class.
    pub extension: Option<Arc<ExtensionClass>>,
    /// If it is of type `TRACING`, what it is attached to.
    pub typed: Option<Typed>,
    /// Of its loader.
    pub rights: Arc<Rights>,
    /// The target side.
    pub realm: Arc<Realm>,
}

impl Program {
    /// What arrays of programs it may be in.
    pub fn owner(&self) -> Owner {
        /// No type of attaching: an extension's context is another than that of programs that might call it.
        const EXTENSION: u32 = u32::MAX;
        let attach_type = if self.extension.is_some() { EXTENSION } else { self.expected_attach_type };
        (self.prog_type, attach_type)
    }

    /// Whether a program that is no extension may run in targets: maps of extensions are kept from it where the CPU has
    /// protection keys.
    ///
    /// # Errors
    /// `EPERM`: it refers to such a map.
    pub(super) fn check_isolation(&self) -> Result<(), Refusal> {
        let maps = self.maps.lock().expect("no panic under this lock");
        let kept = maps.iter().find(|map| map.isolation() != Isolation::None);
        match kept.filter(|_| ring3_inject::has_protection_keys()) {
            None => Ok(()),
            Some(map) => Err(Refusal::new(
                Errno::EPERM,
                format!(
                    "map {:?} is of an extension, and its protection key keeps all other programs from it; load the extension \
                     with --isolation=none",
                    map.name
                ),
            )),
        }
    }

    /// Whether its threads may wait for who reads what it writes.
    pub(super) fn makes_threads_wait(&self) -> bool {
        self.maps.lock().expect("no panic under this lock").iter().any(|map| map.makes_writers_wait())
    }

    pub(super) fn describe(&self) -> Value {
        let kind = prog_type::name(self.prog_type).unwrap_or("?").trim_start_matches("BPF_PROG_TYPE_").to_lowercase();
        let maps: Vec<u32> = self.maps.lock().expect("no panic under this lock").iter().map(|map| map.id).collect();
        let mut row = json!({
            "id": self.id, "type": kind, "name": self.name, "insns": self.insns.len() / 8,
            "jited_bytes": self.text.code_bytes, "engine": self.text.engine.to_string(), "map_ids": maps,
            "source": self.source.begin(),
        });
        if let Some(used) = &self.aot {
            row["aot"] = used.as_ref().err().map_or("used", String::as_str).into();
        }
        row
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.realm.drop_program(&self.text);
    }
}

/// What a perf event is for.
pub enum EventKind {
    /// A probe, with the program that `PERF_EVENT_IOC_SET_BPF` put on it.
    Uprobe(UprobeSite, Mutex<Option<Attached>>),
    /// A tracepoint, likewise.
    Tracepoint(TracepointSite, Mutex<Option<Attached>>),
    /// A kprobe at a system call's function, likewise.
    Kprobe(KprobeSite, Mutex<Option<Attached>>),
    /// What the kernel counts and samples, likewise.
    Sampled(SampledEvent, Mutex<Option<Attached>>),
    /// Output of programs.
    Output {
        /// The memory, empty until the loader maps it.
        memfd: OwnedFd,
        /// `sample_type`.
        sample_type: u64,
        /// Events between wake-ups.
        wakeup_events: u64,
        /// What wakes its reader.
        doorbell: (u32, Arc<EventFd>),
        /// Made by the first `mmap`.
        buffer: Mutex<Option<OutputBuffer>>,
        /// Arrays that it is in, and where.
        arrays: Mutex<Vec<(Weak<MapObject>, u32)>>,
    },
}

impl EventKind {
    /// For the output of programs.
    pub fn output(realm: &Realm, sample_type: u64, wakeup_events: u64) -> Result<EventKind, Errno> {
        let memfd = output_memfd()?;
        let doorbell = realm.add_doorbell()?;
        let (buffer, arrays) = (Mutex::new(None), Mutex::new(vec![]));
        Ok(EventKind::Output { memfd, sample_type, wakeup_events, doorbell, buffer, arrays })
    }
}

/// A perf event.
pub struct Event {
    /// Id.
    pub id: u32,
    /// What it is for.
    pub kind: EventKind,
    /// The id of its program, by `PERF_EVENT_IOC_SET_BPF` or by a link; there can be one. 0: none.
    pub program_id: Arc<AtomicU32>,
    /// Of whoever opened it: they say where its program runs.
    pub rights: Arc<Rights>,
    /// The target side.
    pub realm: Arc<Realm>,
}

impl Drop for Event {
    fn drop(&mut self) {
        if let EventKind::Output { doorbell, buffer, .. } = &mut self.kind {
            // The buffer first: it rings.
            drop(buffer.get_mut().expect("no panic under this lock").take());
            self.realm.drop_doorbell(doorbell.0);
        }
    }
}

impl Event {
    /// Attaches a program. Mirrors kernel/events/core.c:__perf_event_set_bpf_prog.
    pub fn attach(&self, program: Arc<Program>, link_id: u32, cookie: u64) -> Result<Attached, Refusal> {
        let (point, pid, shared) = match &self.kind {
            EventKind::Sampled(event, _) => {
                return event.attach(&self.realm, program, cookie, |id| EventSlot::take(&self.program_id, id, None));
            }
            EventKind::Uprobe(site, _) => (site.point(), site.pid, None),
            EventKind::Tracepoint(site, _) => (site.point(), site.pid, Some(site)),
            EventKind::Kprobe(site, _) => (site.point(), site.pid, None),
            EventKind::Output { .. } => {
                let message = "programs attach to probes and tracepoints only";
                return Err(Refusal::new(Errno::EINVAL, message));
            }
        };
        let (wanted, words) = match shared {
            None => (prog_type::KPROBE, "only programs of type kprobe attach to probes"),
            Some(_) => (prog_type::TRACEPOINT, "only programs of type tracepoint attach to tracepoints"),
        };
        if program.prog_type != wanted {
            return Err(Refusal::new(Errno::EINVAL, words));
        }
        shared.map_or(Ok(()), |site| may_run_at(&program, site.tracepoint))?;
        if program.facts.overrides && !matches!(&self.kind, EventKind::Kprobe(site, _) if !site.ret) {
            // Mirrors kernel/trace/bpf_trace.c:perf_event_attach_bpf_prog.
            let words = "bpf_override_return is for programs at the beginning of system calls";
            return Err(Refusal::new(Errno::EINVAL, words));
        }
        let seat = EventSlot::take(&self.program_id, program.id, shared)?;
        Attached::new(&self.realm, program, link_id, vec![(point, cookie)], (pid, &self.rights), Some(seat))
    }

    /// It has a buffer now: programs find it in the arrays that it was put into before.
    pub fn buffer_is_made(self: &Arc<Event>) -> Result<(), Errno> {
        let EventKind::Output { arrays, .. } = &self.kind else { return Ok(()) };
        let arrays = std::mem::take(&mut *arrays.lock().expect("no panic under this lock"));
        for (array, index) in arrays {
            if let Some(array) = array.upgrade().filter(|array| array.holds(index, self)) {
                array.set_event(&index.to_le_bytes(), self.clone())?;
            }
        }
        Ok(())
    }

    /// GOT slot of the buffer, once it is there.
    pub fn buffer_slot(&self) -> Option<MapSlot> {
        match &self.kind {
            EventKind::Output { buffer, .. } => {
                buffer.lock().expect("no panic under this lock").as_ref().map(|buffer| buffer.slot)
            }
            _ => None,
        }
    }

    /// Takes away what targets that have ended left in its buffer.
    pub(super) fn reclaim_dead_owner(&self, deaths: &[Death]) {
        if let EventKind::Output { buffer, .. } = &self.kind
            && let Some(buffer) = &*buffer.lock().expect("no panic under this lock")
        {
            buffer.reclaim_dead_owner(deaths);
        }
    }

    /// Moves what a domain's targets have written into its buffer.
    pub fn fetch(&self, domain: u32) {
        if let EventKind::Output { buffer, .. } = &self.kind
            && let Some(buffer) = &*buffer.lock().expect("no panic under this lock")
        {
            buffer.fetch(Some(domain));
        }
    }

    fn readiness(&self) -> Option<(Arc<EventFd>, bool)> {
        match &self.kind {
            EventKind::Output { doorbell, buffer, .. } => {
                let buffer = buffer.lock().expect("no panic under this lock");
                Some((doorbell.1.clone(), buffer.as_ref().is_some_and(OutputBuffer::has_data)))
            }
            _ => None,
        }
    }

    /// The program that `PERF_EVENT_IOC_SET_BPF` put on it.
    pub(super) fn program(&self) -> Option<Arc<Program>> {
        let attached = self.slot()?.lock().expect("no panic under this lock");
        attached.as_ref().map(|attached| attached.program.clone())
    }

    /// What `PERF_EVENT_IOC_SET_BPF` fills.
    pub fn slot(&self) -> Option<&Mutex<Option<Attached>>> {
        match &self.kind {
            EventKind::Uprobe(_, slot)
            | EventKind::Tracepoint(_, slot)
            | EventKind::Kprobe(_, slot)
            | EventKind::Sampled(_, slot) => Some(slot),
            EventKind::Output { .. } => None,
        }
    }

    pub(super) fn describe_attached(&self) -> Option<Value> {
        let attached = self.slot()?.lock().expect("no panic under this lock");
        attached.as_ref().map(|attached| self.describe(self.id, attached))
    }

    fn describe(&self, id: u32, attached: &Attached) -> Value {
        let mut row = attached.describe(id);
        match &self.kind {
            EventKind::Uprobe(site, _) => {
                row["file"] = site.file.shown.clone().into();
                row["offset"] = format!("{:#x}", site.offset).into();
                (row["ret"], row["pid"]) = (site.ret.into(), site.pid.into());
            }
            EventKind::Tracepoint(site, _) => {
                (row["tracepoint"], row["pid"]) = (site.tracepoint.to_string().into(), site.pid.into());
            }
            EventKind::Kprobe(site, _) => {
                row["function"] = site.function.name.as_str().into();
                (row["ret"], row["pid"]) = (site.ret.into(), site.pid.into());
            }
            EventKind::Sampled(event, _) => event.describe(&mut row),
            EventKind::Output { .. } => {}
        }
        row
    }
}

/// Whether a program of type `TRACEPOINT` reads nothing that a tracepoint does not have.
/// Mirrors kernel/events/core.c:__perf_event_set_bpf_prog.
fn may_run_at(program: &Program, tracepoint: Tracepoint) -> Result<(), Refusal> {
    if program.facts.context_bytes <= tracepoint.context_bytes() {
        return Ok(());
    }
    let words = format!("program {:?} reads behind the end of {tracepoint}", program.name);
    Err(Refusal::new(Errno::EACCES, words))
}

/// Has runs of programs counted (`BPF_ENABLE_STATS`).
pub struct Stats {
    id: u32,
    _counted: CountedRuns,
}

impl Stats {
    /// From now on, until it is dropped.
    ///
    /// # Errors
    /// `ETIMEDOUT`
    pub fn new(id: u32, realm: &Arc<Realm>) -> Result<Stats, Refusal> {
        Ok(Stats { id, _counted: CountedRuns::new(realm)? })
    }
}

/// What a link leads to.
pub enum LinkTarget {
    /// A perf event.
    Event(Arc<Event>),
    /// A raw tracepoint.
    RawTracepoint(Tracepoint),
    /// The kernel's function that the program names by its type.
    Typed(Typed),
    /// Many uprobes of a file.
    Uprobes(MultiSite),
    /// Many tracepoints.
    Tracepoints(Vec<Tracepoint>),
}

/// A link from a program to what makes it run.
pub struct Link {
    /// Id.
    pub id: u32,
    /// Where it leads to.
    pub target: LinkTarget,
    /// The program, until the link is detached.
    pub attached: Mutex<Option<Attached>>,
}

impl Link {
    /// Opens a raw tracepoint for a program. Who may do that and where it runs, the rights of the program's loader say: no more is
    /// asked for. Mirrors kernel/bpf/syscall.c:bpf_raw_tp_link_attach.
    pub fn raw_tracepoint(
        id: u32,
        program: Arc<Program>,
        tracepoint: Tracepoint,
        cookie: u64,
    ) -> Result<Link, Refusal> {
        let (bytes, behind) = tracepoint.raw_arguments();
        if program.facts.context_bytes > bytes {
            let words = format!("program {:?} reads {behind}", program.name);
            return Err(Refusal::new(Errno::EINVAL, words));
        }
        let (realm, rights) = (program.realm.clone(), program.rights.clone());
        let point = tracepoints::point(tracepoint, SyscallContext::Raw);
        let attached = Attached::new(&realm, program, id, vec![(point, cookie)], (None, &rights), None)?;
        Ok(Link { id, target: LinkTarget::RawTracepoint(tracepoint), attached: Mutex::new(Some(attached)) })
    }

    /// Attaches a program of type `TRACING` to what it names; as [`Link::raw_tracepoint`].
    /// Mirrors kernel/bpf/syscall.c:bpf_tracing_prog_attach.
    pub fn typed(id: u32, program: Arc<Program>, typed: &Typed, cookie: u64) -> Result<Link, Refusal> {
        let (realm, rights) = (program.realm.clone(), program.rights.clone());
        let attached = Attached::new(&realm, program, id, vec![(typed.point(), cookie)], (None, &rights), None)?;
        let of_function = || LinkTarget::Typed(typed.clone());
        let target = typed.tracepoint().map_or_else(of_function, LinkTarget::RawTracepoint);
        Ok(Link { id, target, attached: Mutex::new(Some(attached)) })
    }

    /// Puts a program on many uprobes: on all, or on none. Who may do that and where it runs, the rights of the program's loader say,
    /// as for raw tracepoints. Mirrors kernel/trace/bpf_trace.c:bpf_uprobe_multi_link_attach (v6.18).
    pub fn uprobes(id: u32, program: Arc<Program>, site: MultiSite) -> Result<Link, Refusal> {
        let (realm, rights) = (program.realm.clone(), program.rights.clone());
        let attached = Attached::new(&realm, program, id, site.points(), (site.pid, &rights), None)?;
        Ok(Link { id, target: LinkTarget::Uprobes(site), attached: Mutex::new(Some(attached)) })
    }

    /// Puts a program on many tracepoints: on all, or on none. Who may do that and where it runs, the rights of the program's loader
    /// say, as for raw tracepoints.
    pub fn tracepoints(
        id: u32,
        program: Arc<Program>,
        wanted: Vec<Tracepoint>,
        all: &Arc<Tracepoints>,
    ) -> Result<Link, Refusal> {
        wanted.iter().try_for_each(|tracepoint| may_run_at(&program, *tracepoint))?;
        let seat = EventSlot::of_tracepoints(all, &wanted, program.id)?;
        let (realm, rights) = (program.realm.clone(), program.rights.clone());
        let point = |tracepoint: &Tracepoint| (tracepoints::point(*tracepoint, SyscallContext::Tracepoint), 0);
        let points = wanted.iter().map(point).collect();
        let attached = Attached::new(&realm, program, id, points, (None, &rights), Some(seat))?;
        Ok(Link { id, target: LinkTarget::Tracepoints(wanted), attached: Mutex::new(Some(attached)) })
    }

    pub(super) fn describe(&self) -> Value {
        let attached = self.attached.lock().expect("no panic under this lock");
        match (&self.target, attached.as_ref()) {
            (LinkTarget::Event(event), Some(attached)) => event.describe(self.id, attached),
            (LinkTarget::RawTracepoint(tracepoint), Some(attached)) => {
                let mut row = attached.describe(self.id);
                row["raw_tracepoint"] = tracepoint.name().into();
                row
            }
            (LinkTarget::Typed(typed), Some(attached)) => {
                let mut row = attached.describe(self.id);
                (row["function"], row["ret"]) = (typed.name.as_str().into(), typed.has_number().into());
                row
            }
            (LinkTarget::Uprobes(site), Some(attached)) => {
                let mut row = attached.describe(self.id);
                (row["file"], row["uprobes"]) = (site.file.shown.clone().into(), site.probes.len().into());
                (row["ret"], row["pid"]) = (site.ret.into(), site.pid.into());
                row
            }
            (LinkTarget::Tracepoints(tracepoints), Some(attached)) => {
                let mut row = attached.describe(self.id);
                row["tracepoints"] = tracepoints.len().into();
                row
            }
            (_, None) => json!({ "id": self.id }),
        }
    }
}
