//! Where an application's programs, maps and functions are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ring3_isa::code::BPF_CALL;
use ring3_isa::{Insn, assemble, decode};
use ring3_jit::Options;
use ring3_judge::{Judge, PolicySet};
use ring3_maps::Attributes;
use ring3_object::{Kernel, MapDef, Settings as ObjectSettings};
use ring3_run::{Bell, Runner, Wanted, possible_cpus};
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_verifier::{FUNCTION_FIRST, Input, MapShape, Policy, Report, Signature, Verified, verify};

use crate::budget::plan;
use crate::program::{Inner, refused};
use crate::settings::{Body, Maps, Source};
use crate::{Bound, Engine, Error, Function, Map, Program, Settings};

/// Where an application's programs, maps and functions are. Programs and maps that it has made stay when it is dropped.
///
/// One takes some 230 MiB of address space, and memory only where it is used.
#[derive(Debug)]
pub struct Vm {
    runner: Mutex<Runner>,
    bell: Bell,
    cpus: u32,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    functions: Vec<Signature>,
    /// Maps of [`Vm::create_map`], by slot.
    maps: BTreeMap<u32, (MapShape, Map)>,
    log_level: u32,
}

/// What an object file became.
#[derive(Clone, Debug)]
pub struct Object {
    programs: Vec<Program>,
    maps: Vec<Map>,
}

impl Object {
    /// Its programs, in the order of the file.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// Its maps: those that it defines, and its variables (`.bss`, `.data`, `.rodata`).
    pub fn maps(&self) -> &[Map] {
        &self.maps
    }

    /// A program by its function's name.
    ///
    /// # Errors
    /// There is none, or it was not loaded.
    pub fn program(&self, name: &str) -> Result<&Program, Error> {
        let found = self.programs.iter().find(|program| program.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.programs.iter().map(Program::name).collect();
            Error::NotFound(format!("program {name} in the object, only: {}", names.join(", ")))
        })
    }

    /// A map by its name.
    ///
    /// # Errors
    /// There is none.
    pub fn map(&self, name: &str) -> Result<&Map, Error> {
        let found = self.maps.iter().find(|map| map.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.maps.iter().map(Map::name).collect();
            Error::NotFound(format!("map {name} in the object, only: {}", names.join(", ")))
        })
    }
}

/// (What is behind the locks is whole after each call, so a panic leaves it so.)
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vm {
    /// Maps what programs need.
    ///
    /// # Errors
    /// The address space or the memory cannot be had, or the processor does not let programs read the base of FS (Linux 5.9 and
    /// a processor of 2012 do).
    pub fn new() -> Result<Vm, Error> {
        let cpus = possible_cpus();
        let runner = Runner::new(cpus)?;
        Ok(Vm { bell: runner.bell(), runner: Mutex::new(runner), cpus, known: Mutex::default() })
    }

    /// How much the verifier logs for programs that are loaded later, as `log_level` of `BPF_PROG_LOAD`: 0 nothing, 1 what leads to a
    /// refusal, 2 all.
    pub fn set_log_level(&self, level: u32) {
        lock(&self.known).log_level = level;
    }

    /// Lets programs that are loaded later call a function.
    ///
    /// # Errors
    /// Its parameters contradict each other, or its name or number is taken.
    pub fn register(&self, function: Function) -> Result<(), Error> {
        let Function { signature, body } = function;
        signature.check().map_err(Error::Settings)?;
        let mut known = lock(&self.known);
        let same = known
            .functions
            .iter()
            .find(|other| other.name == signature.name || other.number.is_some() && other.number == signature.number);
        if let Some(other) = same {
            return Err(Error::Settings(format!("{} has the name or number of {}", signature.name, other.name)));
        }
        let number = match body {
            Body::Closure(body) => lock(&self.runner).add_function(&signature, body)?,
            Body::Plain(function) => lock(&self.runner).add_plain_function(&signature, function)?,
        };
        known.functions.push(signature);
        debug_assert_eq!(number, FUNCTION_FIRST + known.functions.len() as u32 - 1);
        Ok(())
    }

    /// Makes a map for programs that are loaded without an object, which name it by [`Map::id`].
    ///
    /// # Errors
    /// Those of `BPF_MAP_CREATE`.
    pub fn create_map(
        &self,
        name: &str,
        map_type: u32,
        [key_size, value_size, max_entries]: [u32; 3],
        map_flags: u32,
    ) -> Result<Map, Error> {
        let definition = MapDef { map_flags, ..MapDef::new(name, map_type, (key_size, value_size), max_entries) };
        let map = self.make(&definition, None)?;
        let told = ring3_verifier::InnerShape { map_type, key_size, value_size, max_entries, map_flags, lock: None };
        let shape = map.own().shape(MapShape { slot: map.id(), ..told.shape() });
        lock(&self.known).maps.insert(map.id(), (shape, map.clone()));
        Ok(map)
    }

    fn make(&self, definition: &MapDef, source: Option<Source>) -> Result<Map, Error> {
        let fail = |why: String| Error::Map { map: definition.name.clone(), why };
        if definition.inner.is_some() || !definition.slots.is_empty() || is_of_objects(definition.map_type) {
            return Err(fail("maps of maps, of programs and of events need a server: ring3 load".into()));
        }
        if source.is_some() && definition.frozen {
            return Err(fail("programs rely on what it holds, so it is not shared".into()));
        }
        let attributes = Attributes {
            map_type: definition.map_type,
            key_size: definition.key_size,
            value_size: definition.value_size,
            max_entries: definition.max_entries,
            map_flags: definition.map_flags,
            cpus: self.cpus,
            map_extra: definition.map_extra,
        };
        let (file, is_fresh) = match source {
            Some(Source::Map(map)) => return self.same(definition, map),
            Some(Source::File(file)) => (Some(file), false),
            None => (None, true),
        };
        let mut runner = lock(&self.runner);
        let slot = runner.add_shared_map(&attributes, file).map_err(|error| match error {
            ring3_run::Error::Map(errno) => fail(errno.name().to_owned()),
            error => fail(error.to_string()),
        })?;
        if let Some(value) = definition.initial.as_ref().filter(|_| is_fresh) {
            runner.set_value(slot, value);
        }
        let own = runner.maps()[slot as usize].clone();
        if !is_fresh && own.map().geometry().is_per_cpu() {
            return Err(fail("maps of per-CPU types are not shared".into()));
        }
        Ok(Map::new(definition, slot, own, self.bell.clone()))
    }

    /// A map that is there already.
    fn same(&self, definition: &MapDef, map: Map) -> Result<Map, Error> {
        let is_ours = lock(&self.runner).maps().iter().any(|own| std::sync::Arc::ptr_eq(own, map.own()));
        let header = *map.own().map().header();
        let is_alike = header.map_type == definition.map_type
            && header.key_size == definition.key_size
            && header.value_size == definition.value_size
            && header.max_entries == definition.max_entries;
        if !is_ours || !is_alike {
            let why = if is_ours { "the map that it is to be is another one" } else { "the map is of another Vm" };
            return Err(Error::Map { map: definition.name.clone(), why: why.into() });
        }
        Ok(map)
    }

    /// Loads an object file: makes its maps, verifies and compiles its programs.
    ///
    /// # Errors
    /// The first thing that is wrong. Maps that were made until then take room until the [`Vm`] is dropped.
    pub fn load_object(&self, bytes: &[u8], settings: &Settings) -> Result<Object, Error> {
        self.load_object_with(bytes, settings, Maps::new())
    }

    /// The same, with maps that are there already.
    ///
    /// # Errors
    /// As [`Vm::load_object`]; a map has another definition, or the object has none of this name.
    pub fn load_object_with(&self, bytes: &[u8], settings: &Settings, maps: Maps) -> Result<Object, Error> {
        settings.context.check().map_err(Error::Settings)?;
        let functions: BTreeMap<String, u32> = (FUNCTION_FIRST..)
            .zip(&lock(&self.known).functions)
            .map(|(id, known)| (known.name.clone(), id))
            .collect();
        let wanted = ObjectSettings { functions, text_programs: true, ..ObjectSettings::default() };
        let no_types = Kernel::without_types();
        let kernel = settings.types.as_deref().unwrap_or(&no_types);
        let object = ring3_object::Object::load(bytes, kernel, &wanted)?;
        let is_wanted = |name: &String| settings.only.is_empty() || settings.only.contains(name);
        let absent = settings.only.iter().find(|name| !object.programs.iter().any(|program| program.name == **name));
        if let Some(name) = absent {
            return Err(Error::NotFound(format!("program {name} in the object")));
        }
        let mut sources = maps.0;
        let mut made = vec![];
        for definition in &object.maps {
            made.push(self.make(definition, sources.remove(&definition.name))?);
        }
        if let Some(name) = sources.keys().next() {
            return Err(Error::NotFound(format!("map {name} in the object")));
        }
        let place = |told: MapShape| {
            let map = &made[told.slot as usize];
            map.own().shape(MapShape { slot: map.id(), ..told })
        };
        let policies = PolicySet::new(kernel, self.cpus);
        let judge = Judge::new(&policies, &object).with_places(place);
        let constant = |slot: u32| {
            let definition = object.maps.iter().zip(&made).find(|(_, map)| map.id() == slot)?.0;
            definition.initial.clone().filter(|_| definition.frozen)
        };
        let mut programs = vec![];
        for program in object.programs.iter().filter(|program| is_wanted(&program.name)) {
            let loaded = judge.ask(program, Policy::memory(0), |question| {
                let told: &Input<'_> = question;
                let (insns, lines, policy) = (self.renumbered(told.insns), told.lines.clone(), told.policy.clone());
                let question = Input { insns: &insns, lines, policy, constant_value: &constant, ..*told };
                self.verified(&program.name, question, settings)
            });
            programs.push(self.place(&program.name, &loaded?, settings)?);
        }
        Ok(Object { programs, maps: made })
    }

    /// Loads instructions as bytes, 8 each.
    ///
    /// # Errors
    /// The bytes are no instructions, or the program is refused.
    pub fn load_bytes(&self, name: &str, bytes: &[u8], settings: &Settings) -> Result<Program, Error> {
        let insns = decode(bytes).ok_or_else(|| {
            Error::Instructions(format!("{} bytes are no instructions, which have 8 each", bytes.len()))
        })?;
        self.load_insns(name, &insns, settings)
    }

    /// Assembles and loads a program, in the kernel's notation or in mnemonics (`mov64 r0, 1`).
    ///
    /// # Errors
    /// The line with what is no instruction, or the program is refused.
    pub fn load_text(&self, text: &str, settings: &Settings) -> Result<Program, Error> {
        self.load_named_text("text", text, settings)
    }

    /// The same with a name for the program.
    ///
    /// # Errors
    /// As [`Vm::load_text`].
    pub fn load_named_text(&self, name: &str, text: &str, settings: &Settings) -> Result<Program, Error> {
        let insns =
            assemble(text).map_err(|error| Error::Instructions(format!("line {}: {}", error.line, error.message)))?;
        self.load_insns(name, &insns, settings)
    }

    /// Loads instructions.
    ///
    /// # Errors
    /// The program is refused.
    pub fn load_insns(&self, name: &str, insns: &[Insn], settings: &Settings) -> Result<Program, Error> {
        settings.context.check().map_err(Error::Settings)?;
        let insns = self.renumbered(insns);
        let map_by_index = |id: u32| lock(&self.known).maps.get(&id).map(|(shape, _)| *shape);
        let map_by_fd = |id: i32| map_by_index(u32::try_from(id).ok()?);
        let question = Input {
            insns: &insns,
            prog_type: prog_type::SYSCALL,
            gpl_compatible: true,
            sleepable: true,
            cpus: self.cpus,
            policy: Policy::memory(0),
            log_level: 0,
            lines: vec![],
            map_by_fd: &map_by_fd,
            map_by_index: &map_by_index,
            constant_value: &|_| None,
        };
        let program = self.verified(name, question, settings)?;
        self.place(name, &program, settings)
    }

    /// Calls of functions by their numbers become calls by their places.
    fn renumbered(&self, insns: &[Insn]) -> Vec<Insn> {
        let known = lock(&self.known);
        let place = |number: u32| {
            let index = known.functions.iter().position(|function| function.number == Some(number))?;
            Some(FUNCTION_FIRST + index as u32)
        };
        let renumber =
            |insn: &Insn| match place(insn.imm as u32).filter(|_| insn.opcode == BPF_CALL && insn.src() == 0) {
                Some(id) => Insn { imm: id as i32, ..*insn },
                None => *insn,
            };
        insns.iter().map(renumber).collect()
    }

    fn verified(&self, name: &str, question: Input<'_>, settings: &Settings) -> Result<Verified, Error> {
        let (functions, log_level) = {
            let known = lock(&self.known);
            (known.functions.clone(), known.log_level)
        };
        let mut policy = Policy {
            helpers: settings.helpers.clone(),
            functions,
            result: settings.results.map(|(least, greatest)| least..greatest.saturating_add(1)),
            ..Policy::memory(0)
        };
        settings.context.apply(&mut policy);
        // (Nothing here is the kernel's: neither does a license matter, nor sleep.)
        let mut question = Input {
            prog_type: prog_type::SYSCALL,
            gpl_compatible: true,
            sleepable: true,
            policy,
            log_level,
            ..question
        };
        let verdict: Result<Verified, Report> = verify(&question).or_else(|_| {
            question.log_level = question.log_level.max(1);
            verify(&question)
        });
        verdict.map_err(|report| refused(name, &settings.context, &report))
    }

    fn place(&self, name: &str, program: &Verified, settings: &Settings) -> Result<Program, Error> {
        let context = &settings.context;
        let wanted = Wanted { context_bytes: context.bytes(), pointers: context.pointers(), cookie: settings.cookie };
        let (placed, code, bound) = match settings.engine {
            Engine::Interpreter => {
                let bound = match (plan(program, None).map_err(Error::Budget)?.bound, settings.budget) {
                    (Bound::Proved(insns), Some(budget)) if insns <= budget => Bound::Proved(insns),
                    (_, Some(budget)) => Bound::Enforced(budget),
                    (bound, None) => bound,
                };
                (lock(&self.runner).interpret(program, &wanted, settings.budget)?, vec![], bound)
            }
            Engine::Jit => {
                let plan = plan(program, settings.budget)
                    .map_err(|why| Error::Budget(format!("the program {name}: {why}")))?;
                let options = Options { blinding: settings.blinding, rounds: plan.rounds };
                let code = ring3_jit::compile(program, &options).map_err(Error::Compiler)?;
                let placed = lock(&self.runner).place(program, &code, &wanted, plan.rounds.is_some())?;
                (placed, code.bytes, plan.bound)
            }
        };
        Ok(Program::new(Inner {
            name: name.to_owned(),
            placed,
            context: context.clone(),
            insns: program.insns().to_vec(),
            code,
            bound,
            stack_bytes: program.subprograms().iter().map(|subprogram| subprogram.stack_bytes).sum(),
            log: program.log().to_owned(),
        }))
    }
}

/// Maps whose elements are a server's objects.
fn is_of_objects(kind: u32) -> bool {
    use map_type::{ARRAY_OF_MAPS, CGROUP_ARRAY, HASH_OF_MAPS, PERF_EVENT_ARRAY, PROG_ARRAY};
    [PROG_ARRAY, PERF_EVENT_ARRAY, CGROUP_ARRAY, ARRAY_OF_MAPS, HASH_OF_MAPS].contains(&kind)
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Proved(insns) => write!(f, "at most {insns} instructions, proved"),
            Bound::Enforced(insns) => write!(f, "at most {insns} instructions, then it is ended"),
        }
    }
}
