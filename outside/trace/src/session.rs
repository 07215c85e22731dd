//! A session: programs for each kind of event, and the buffer that they write into.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ring3_bpf::{Loaded, RingBuffer};
use ring3_event::{EventType, Header, Phase, Record, Value, header};
use ring3_filter::{EventScope, Expression, Scope, Typed};
use ring3_isa::Insn;
use ring3_object::{MapDef, Object, Program};
use ring3_recorder::{Recipe, program, syscalls, syscalls::RESULT};
use ring3_uapi::bpf::{attach_type, map_type, prog_type};
use ring3_uapi::flags::BPF_F_NO_PREALLOC;
use ring3_uapi::syscalls::Syscall;

use crate::probe::Probe;

/// Threads that can be in a system call at the same time.
const THREADS_MAX: u32 = 32_768;

/// Type and attach type of programs of tracepoints, and of probes.
const TRACEPOINT: (u32, u32) = (prog_type::TRACEPOINT, 0);
const PROBE: (u32, u32) = (prog_type::KPROBE, attach_type::TRACE_UPROBE_MULTI);

/// What a session records.
#[derive(Clone, Debug)]
pub struct Options {
    /// System calls.
    pub calls: Vec<&'static Syscall>,
    /// Functions and static tracepoints.
    pub probes: Vec<Probe>,
    /// Bytes of a buffer, such as that of `write`, which are recorded at most.
    pub bytes_max: u32,
    /// Bytes of the ring buffer: a power of two, and at least a page.
    pub buffer_bytes: u32,
    /// Which of the events are recorded; all if there is none.
    pub filter: Option<Expression>,
}

/// Events that were not recorded, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The buffer was full.
    pub buffer_full: u64,
    /// More threads made calls than there are slots for.
    pub no_slot: u64,
}

impl Lost {
    /// All of them.
    pub fn count(self) -> u64 {
        self.buffer_full + self.no_slot
    }
}

/// A session. The programs are detached when it is dropped.
#[derive(Debug)]
pub struct Session {
    types: BTreeMap<u32, EventType>,
    ring: RingBuffer,
    loaded: Loaded,
    /// A thread whose events are not wanted while it has this name.
    skipped: Option<(u32, [u8; header::COMM_BYTES])>,
    _links: Vec<OwnedFd>,
}

/// Where a program runs, by its index.
struct Attachment {
    program: usize,
    at: Point,
}

enum Point {
    /// `syscalls:sys_enter_*` or `sys_exit_*`.
    Tracepoint(String),
    /// A place of a file.
    Probe { path: PathBuf, place: ring3_bpf::Place, at_end: bool },
}

impl Attachment {
    fn attach(&self, program: &OwnedFd) -> Result<OwnedFd, String> {
        match &self.at {
            Point::Tracepoint(event) => ring3_bpf::link_tracepoint(program, "syscalls", event, None)
                .map_err(|error| format!("cannot attach to syscalls:{event}: {error}; server.log says why")),
            Point::Probe { path, place, at_end } => ring3_bpf::link_uprobes(program, path, &[*place], *at_end, 0)
                .map_err(|error| {
                    format!("cannot attach to {}+{:#x}: {error}; server.log says why", path.display(), place.offset)
                }),
        }
    }
}

/// The programs of a session. Equal ones are loaded once: a program takes the system call's number from its context.
#[derive(Default)]
struct Programs {
    made: Vec<Program>,
    known: BTreeMap<Vec<u8>, usize>,
}

impl Programs {
    fn add(&mut self, name: &str, kind: (u32, u32), text: &str) -> Result<usize, String> {
        let (prog_type, expected_attach_type) = kind;
        let insns = ring3_isa::assemble(text).map_err(|error| format!("the program of {name}: {error}\n{text}"))?;
        let key: Vec<u8> =
            [prog_type as u8].into_iter().chain(insns.iter().flat_map(|insn: &Insn| insn.to_bytes())).collect();
        if let Some(index) = self.known.get(&key) {
            return Ok(*index);
        }
        self.made.push(Program {
            name: name.to_owned(),
            section: String::new(),
            autoload: true,
            prog_type,
            expected_attach_type,
            attach_to: None,
            attach_btf_id: 0,
            flags: 0,
            insns,
            func_info: vec![],
            line_info: vec![],
        });
        self.known.insert(key, self.made.len() - 1);
        Ok(self.made.len() - 1)
    }
}

impl Session {
    /// Loads the programs and attaches them. Events are recorded from now on.
    ///
    /// # Errors
    /// What could not be loaded or attached, and why. Nothing is attached then.
    pub fn open(options: &Options) -> Result<Session, String> {
        let mut recipes: Vec<Recipe> =
            options.calls.iter().map(|call| syscalls::recipe(call, options.bytes_max)).collect();
        recipes.extend(options.probes.iter().map(|probe| probe.recipe.clone()));
        let filters = filters(&recipes, options.filter.as_ref())?;
        let mut programs = Programs::default();
        let mut attachments = vec![];
        for ((call, recipe), filter) in options.calls.iter().zip(&recipes).zip(&filters) {
            let name = &recipe.of.name;
            // (What is never recorded is not probed.)
            if filter.as_ref().and_then(Typed::constant) == Some(false) {
                continue;
            }
            let filter = filter.as_ref();
            let enter = programs.add(&format!("enter_{name}"), TRACEPOINT, &program::entry(recipe, filter))?;
            let at = Point::Tracepoint(format!("sys_enter_{}", call.name));
            attachments.push(Attachment { program: enter, at });
            if recipe.of.fields.iter().any(|field| field.phase == Phase::Exit) {
                let exit = programs.add(&format!("exit_{name}"), TRACEPOINT, &program::exit(recipe, filter))?;
                let at = Point::Tracepoint(format!("sys_exit_{}", call.name));
                attachments.push(Attachment { program: exit, at });
            }
        }
        for (probe, filter) in options.probes.iter().zip(&filters[options.calls.len()..]) {
            if filter.as_ref().and_then(Typed::constant) == Some(false) {
                continue;
            }
            let text = program::once(&probe.recipe, filter.as_ref());
            let program = programs.add(&probe.recipe.of.name, PROBE, &text)?;
            let place = ring3_bpf::Place { offset: probe.offset, counter: probe.counter, cookie: 0 };
            let at = Point::Probe { path: probe.path.clone(), place, at_end: probe.at_end };
            attachments.push(Attachment { program, at });
        }
        let slot_bytes = recipes.iter().map(|recipe| program::slot_bytes(&recipe.of)).max().unwrap_or(8);
        let object = Object {
            license: "GPL".to_owned(),
            maps: maps(slot_bytes, options.buffer_bytes),
            programs: programs.made,
            btf: None,
        };
        let loaded = Loaded::load(&object).map_err(|error| error.to_string())?;
        let ring = RingBuffer::map(&loaded.maps[program::map::RECORDS], options.buffer_bytes as usize)
            .map_err(|error| format!("cannot map the ring buffer: {error}"))?;
        let link = |of: &Attachment| of.attach(&loaded.programs[of.program].1);
        let links = attachments.iter().map(link).collect::<Result<_, _>>()?;
        let types = recipes.into_iter().map(|recipe| (recipe.of.id, recipe.of)).collect();
        Ok(Session { types, ring, loaded, skipped: None, _links: links })
    }

    /// Leaves out what a process does before it executes a program, which is while it has this name.
    pub fn skip_before_exec(&mut self, pid: u32, name: &CStr) {
        let mut comm = [0; header::COMM_BYTES];
        comm.iter_mut().zip(name.to_bytes()).for_each(|(to, from)| *to = *from);
        self.skipped = Some((pid, comm));
    }

    /// The types of its events, by their numbers.
    pub fn types(&self) -> &BTreeMap<u32, EventType> {
        &self.types
    }

    /// Hands over each record that has been written since, with its type. The result is how many there were.
    pub fn read(&mut self, mut each: impl FnMut(&EventType, &[u8])) -> usize {
        let Session { types, ring, skipped, .. } = self;
        ring.take(|bytes| {
            let Some(header) = Header::parse(bytes) else { return };
            let Some(of) = types.get(&header.event) else { return };
            if *skipped == Some((header.tid, header.comm)) {
                // (A call that executes a program begins with the old name.)
                let is_exec = matches!(&*of.name, "execve" | "execveat");
                if !is_exec
                    || Record::parse(of, bytes).is_none_or(|record| record.value(RESULT) != Some(Value::Int(0)))
                {
                    return;
                }
                *skipped = None;
            }
            each(of, bytes);
        })
    }

    /// What was lost until now.
    pub fn lost(&self) -> Lost {
        let mut bytes = [0; program::lost::BYTES as usize];
        if ring3_bpf::look_up(&self.loaded.maps[program::map::LOST], &0_u32.to_ne_bytes(), &mut bytes).is_err() {
            return Lost::default();
        }
        let number = |at: u32| {
            let at = at as usize;
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
        };
        Lost { buffer_full: number(program::lost::BUFFER_FULL), no_slot: number(program::lost::NO_SLOT) }
    }
}

/// The filter for each of the types.
fn filters(recipes: &[Recipe], filter: Option<&Expression>) -> Result<Vec<Option<Typed>>, String> {
    let Some(filter) = filter else { return Ok(vec![None; recipes.len()]) };
    let scopes: Vec<EventScope<'_>> = recipes.iter().map(|recipe| EventScope::new(&recipe.of)).collect();
    let scopes: Vec<&dyn Scope> = scopes.iter().map(|scope| scope as &dyn Scope).collect();
    let typed = ring3_filter::check_all(filter, &scopes).map_err(|error| error.to_string())?;
    Ok(typed.into_iter().map(Some).collect())
}

/// The maps of a session, in the order of [`program::map`].
fn maps(slot_bytes: u32, buffer_bytes: u32) -> Vec<MapDef> {
    let map = |name: &str, map_type: u32, (key_size, value_size): (u32, u32), max_entries: u32| MapDef {
        name: name.to_owned(),
        map_type,
        key_size,
        value_size,
        max_entries,
        ..MapDef::default()
    };
    let slots = map("slots", map_type::HASH, (4, slot_bytes), THREADS_MAX);
    vec![
        MapDef { map_flags: BPF_F_NO_PREALLOC, ..slots },
        map("records", map_type::RINGBUF, (0, 0), buffer_bytes),
        map("lost", map_type::ARRAY, (4, program::lost::BYTES), 1),
        map("scratch", map_type::PERCPU_ARRAY, (4, slot_bytes), 1),
    ]
}
