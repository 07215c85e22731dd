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
use ring3_recorder::program::{self, Output, count};
use ring3_recorder::syscalls::{self, DURATION, RESULT};
use ring3_recorder::{Recipe, ends};
use ring3_uapi::bpf::{attach_type, map_type, prog_type};
use ring3_uapi::syscalls::Syscall;

use crate::probe::Probe;
use crate::summary::Summary;

/// Threads whose calls are remembered: of more, the call that began first is forgotten.
const THREADS_MAX: u32 = 8192;

/// Lines of the verifier's log that are shown at most.
const LOG_LINES_MAX: usize = 4;

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
    /// Ends of threads, if they are wanted ([`crate::ends`]).
    pub ends: Option<Recipe>,
    /// Bytes of a buffer, such as that of `write`, which are recorded at most.
    pub bytes_max: u32,
    /// Bytes of the ring buffer: a power of two, and at least a page.
    pub buffer_bytes: u32,
    /// Which of the events are recorded; all if there is none.
    pub filter: Option<Expression>,
    /// Whether they are recorded or counted.
    pub output: Output,
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
    refused: Vec<String>,
    _links: Vec<OwnedFd>,
}

/// A place of a file where a program runs.
#[derive(Debug)]
struct Attachment {
    program: usize,
    path: PathBuf,
    place: ring3_bpf::Place,
    at_end: bool,
}

impl Attachment {
    fn attach(&self, program: &OwnedFd) -> Result<OwnedFd, String> {
        let Attachment { path, place, at_end, .. } = self;
        ring3_bpf::link_uprobes(program, path, &[*place], *at_end, 0).map_err(|error| {
            format!("cannot attach to {}+{:#x}: {error}; server.log says why", path.display(), place.offset)
        })
    }
}

/// The tracepoints of each program, by the program's index.
#[derive(Debug, Default)]
pub(crate) struct Tracepoints(BTreeMap<usize, Vec<String>>);

impl Tracepoints {
    /// A program runs at `category:name`.
    pub(crate) fn add(&mut self, program: usize, tracepoint: String) {
        self.0.entry(program).or_default().push(tracepoint);
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Attaches all programs.
    pub(crate) fn attach(&self, loaded: &Loaded) -> Result<Vec<OwnedFd>, String> {
        let link = |(program, names): (&usize, &Vec<String>)| {
            let program = &loaded.programs[*program].1;
            ring3_bpf::link_tracepoints(program, names.iter().map(String::as_str)).map_err(|error| {
                let more = if names.len() > 1 { " and others" } else { "" };
                format!("cannot attach to {}{more}: {error}; server.log says why", names[0])
            })
        };
        self.0.iter().map(link).collect()
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
        self.made.push(Program { expected_attach_type, ..Program::new(name, prog_type, insns) });
        self.known.insert(key, self.made.len() - 1);
        Ok(self.made.len() - 1)
    }

    /// The programs of a system call's start and end.
    fn of_call(
        &mut self,
        call: &Syscall,
        recipe: &Recipe,
        filter: Option<&Typed>,
        output: &Output,
        tracepoints: &mut Tracepoints,
    ) -> Result<(), String> {
        let name = &recipe.of.name;
        let mut attach = |program, when: &str| tracepoints.add(program, format!("syscalls:sys_{when}_{}", call.name));
        attach(self.add(&format!("enter_{name}"), TRACEPOINT, &program::entry(recipe, filter, output))?, "enter");
        if recipe.of.fields.iter().any(|field| field.phase == Phase::Exit) {
            attach(self.add(&format!("exit_{name}"), TRACEPOINT, &program::exit(recipe, filter, output))?, "exit");
        }
        Ok(())
    }
}

/// What a session will load and attach.
#[derive(Debug)]
pub struct Plan {
    types: BTreeMap<u32, EventType>,
    object: Object,
    tracepoints: Tracepoints,
    attachments: Vec<Attachment>,
    buffer_bytes: u32,
    notes: Vec<String>,
}

impl Plan {
    /// Makes the programs.
    ///
    /// # Errors
    /// The filter does not fit the events.
    pub fn new(options: &Options) -> Result<Plan, String> {
        let of_calls = options.calls.iter().map(|call| syscalls::recipe(call, options.bytes_max));
        let of_probes = options.probes.iter().map(|probe| probe.recipe.clone());
        let recipes: Vec<Recipe> = of_calls.chain(of_probes).chain(options.ends.clone()).collect();
        let mut filters = filters(&recipes, options.filter.as_ref())?;
        let notes = notes(&options.probes, &filters[options.calls.len()..]);
        let mut recipes = recipes;
        if options.output != Output::Records {
            (recipes, filters) = what_counts(&recipes, &filters, options.filter.as_ref())?;
        }
        let (mut programs, mut tracepoints, mut attachments) = (Programs::default(), Tracepoints::default(), vec![]);
        for (index, (recipe, filter)) in recipes.iter().zip(&filters).enumerate() {
            // (What is never recorded is not probed.)
            if filter.as_ref().and_then(Typed::constant) == Some(false) {
                continue;
            }
            let filter = filter.as_ref();
            if let Some(call) = options.calls.get(index) {
                programs.of_call(call, recipe, filter, &options.output, &mut tracepoints)?;
                continue;
            }
            let probe = options.probes.get(index - options.calls.len());
            let kind = if probe.is_some() { PROBE } else { TRACEPOINT };
            let program = programs.add(&recipe.of.name, kind, &program::once(recipe, filter, &options.output))?;
            let Some(probe) = probe else {
                tracepoints.add(program, format!("{}:{}", ends::CATEGORY, ends::NAME));
                continue;
            };
            let place = ring3_bpf::Place { offset: probe.offset, counter: probe.counter, cookie: 0 };
            attachments.push(Attachment { program, path: probe.path.clone(), place, at_end: probe.at_end });
        }
        let slot_bytes = recipes.iter().map(|recipe| program::slot_bytes(&recipe.of)).max().unwrap_or(8);
        let counts = recipes.iter().map(|recipe| count::index(recipe.of.id) + 1).max().unwrap_or(1);
        let counts = if options.output == Output::Records { 1 } else { counts };
        let maps = maps(slot_bytes, options.buffer_bytes, counts);
        let object = Object { license: "GPL".to_owned(), maps, programs: programs.made, btf: None };
        let types = recipes.into_iter().map(|recipe| (recipe.of.id, recipe.of)).collect();
        Ok(Plan { types, object, tracepoints, attachments, buffer_bytes: options.buffer_bytes, notes })
    }

    /// What the user should know of the filter.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Its maps and programs.
    pub fn object(&self) -> &Object {
        &self.object
    }
}

impl Session {
    /// Loads the programs and attaches them. Events are recorded from now on.
    ///
    /// # Errors
    /// What could not be loaded or attached, and why. Nothing is attached then. If only some places of files cannot be probed
    /// this is no error: [`Session::refused`] has them.
    pub fn open(plan: Plan) -> Result<Session, String> {
        let loaded = Loaded::load(&plan.object).map_err(|error| why_not_loaded(&error))?;
        let ring = RingBuffer::map(&loaded.maps[program::map::RECORDS], plan.buffer_bytes as usize)
            .map_err(|error| format!("cannot map the ring buffer: {error}"))?;
        let (mut links, mut refused) = (plan.tracepoints.attach(&loaded)?, vec![]);
        for of in &plan.attachments {
            match of.attach(&loaded.programs[of.program].1) {
                Ok(link) => links.push(link),
                Err(why) => refused.push(why),
            }
        }
        if links.is_empty() && !refused.is_empty() {
            return Err(refused.join("\n"));
        }
        Ok(Session { types: plan.types, ring, loaded, skipped: None, refused, _links: links })
    }

    /// Leaves out what a process does before it executes a program, which is while it has this name.
    pub fn skip_before_exec(&mut self, pid: u32, name: &CStr) {
        let mut comm = [0; header::COMM_BYTES];
        comm.iter_mut().zip(name.to_bytes()).for_each(|(to, from)| *to = *from);
        self.skipped = Some((pid, comm));
    }

    /// The places that could not be probed, and why.
    pub fn refused(&self) -> &[String] {
        &self.refused
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
                // (A name of the user's program may be the same.)
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

    /// What was counted until now.
    ///
    /// # Errors
    /// As `BPF_MAP_LOOKUP_ELEM`.
    pub fn counts(&self) -> std::io::Result<Summary> {
        let mut summary = Summary::default();
        let mut values = vec![0; count::VALUE_BYTES as usize * ring3_bpf::possible_cpus()?];
        for of in self.types.values() {
            let key = count::index(of.id).to_ne_bytes();
            ring3_bpf::look_up(&self.loaded.maps[program::map::COUNTS], &key, &mut values)?;
            let timed = of.field(DURATION).is_some();
            values.chunks(count::VALUE_BYTES as usize).for_each(|value| summary.add_counts(&of.name, timed, value));
        }
        Ok(summary)
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

/// Whether events are ends of threads.
pub fn is_end(of: &EventType) -> bool {
    of.provider == ends::CATEGORY && of.name == ends::NAME
}

/// Why the programs are not loaded: the verifier's last lines say it, and the whole log may have thousands.
pub(crate) fn why_not_loaded(error: &ring3_bpf::Error) -> String {
    let mut text = format!("{}: {}", error.what, error.error);
    if error.log.is_empty() {
        return text;
    }
    let lines: Vec<&str> = error.log.trim_end().lines().collect();
    for line in &lines[lines.len().saturating_sub(LOG_LINES_MAX)..] {
        text.push_str("\n  ");
        text.push_str(line);
    }
    text.push_str("\nthe verifier refuses the program; if there is a filter, try a simpler one, or fewer events");
    text
}

/// What programs that count need: results, durations, and the fields of the filter.
fn what_counts(
    recipes: &[Recipe],
    of_all: &[Option<Typed>],
    filter: Option<&Expression>,
) -> Result<(Vec<Recipe>, Vec<Option<Typed>>), String> {
    let needed = |(recipe, filter): (&Recipe, &Option<Typed>)| {
        let of_filter = filter.as_ref().map(Typed::fields).unwrap_or_default();
        recipe.with_fields(|index, name| of_filter.contains(&index) || matches!(name, RESULT | DURATION))
    };
    let recipes: Vec<Recipe> = recipes.iter().zip(of_all).map(needed).collect();
    let filters = filters(&recipes, filter)?;
    Ok((recipes, filters))
}

/// The filter for each of the types.
fn filters(recipes: &[Recipe], filter: Option<&Expression>) -> Result<Vec<Option<Typed>>, String> {
    let Some(filter) = filter else { return Ok(vec![None; recipes.len()]) };
    let scopes: Vec<EventScope<'_>> = recipes.iter().map(|recipe| EventScope::new(&recipe.of)).collect();
    let scopes: Vec<&dyn Scope> = scopes.iter().map(|scope| scope as &dyn Scope).collect();
    let typed = ring3_filter::check_all(filter, &scopes).map_err(|error| error.to_string())?;
    Ok(typed.into_iter().map(Some).collect())
}

/// Says of results whose type nobody knows that they may be negative and not look so.
fn notes(probes: &[Probe], filters: &[Option<Typed>]) -> Vec<String> {
    let asked = |(probe, filter): (&Probe, &Option<Typed>)| {
        let is_asked = probe.is_of_unknown_type && filter.as_ref().is_some_and(|filter| filter.wants_sign_of(0));
        is_asked.then(|| probe.recipe.of.full_name())
    };
    let asked: Vec<String> = probes.iter().zip(filters).filter_map(asked).collect();
    let Some(first) = asked.first() else { return vec![] };
    let others = if asked.len() > 1 { " and others" } else { "" };
    vec![format!(
        "nothing says the type of the result of {first}{others}: `retval` has 64 bits in the filter; if it is an int, write `(int)retval`"
    )]
}

/// The maps of a session, in the order of [`program::map`].
fn maps(slot_bytes: u32, buffer_bytes: u32, counts: u32) -> Vec<MapDef> {
    vec![
        MapDef::new("slots", map_type::LRU_HASH, (4, slot_bytes), THREADS_MAX),
        MapDef::new("records", map_type::RINGBUF, (0, 0), buffer_bytes),
        MapDef::new("lost", map_type::ARRAY, (4, program::lost::BYTES), 1),
        MapDef::new("scratch", map_type::PERCPU_ARRAY, (4, slot_bytes), program::map::SCRATCHES),
        MapDef::new("counts", map_type::PERCPU_ARRAY, (4, count::VALUE_BYTES), counts),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_log_only_the_end_is_shown() {
        let log: String = (0..10_000).map(|line| format!("line {line}\n")).collect();
        let error = std::io::Error::from_raw_os_error(libc::E2BIG);
        let text = why_not_loaded(&ring3_bpf::Error { what: "program enter_open".to_owned(), error, log });
        assert_eq!(text.lines().count(), 1 + LOG_LINES_MAX + 1, "{text}");
        assert!(text.starts_with("program enter_open: Argument list too long"), "{text}");
        assert!(text.contains("line 9999") && text.contains("simpler"), "{text}");
    }

    #[test]
    fn an_error_without_a_log_is_one_line() {
        let error = std::io::Error::from_raw_os_error(libc::EPERM);
        let text = why_not_loaded(&ring3_bpf::Error { what: "map slots".to_owned(), error, log: String::new() });
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
