//! `ring3 exec`: a program run by itself, on some memory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use ring3_interp::{Fault, Host, Memory};
use ring3_isa::{Insn, decode};
use ring3_jit::Options;
use ring3_judge::{Judge, PolicySet};
use ring3_maps::Attributes;
use ring3_object::{Kernel, MapDef, Object, Program};
use ring3_run::{Outcome, Runner};
use ring3_server::realm::{fresh_nonce, possible_cpus};
use ring3_uapi::bpf::prog_type;
use ring3_uapi::helper;
use ring3_verifier::{Input as Question, MapShape, Policy, Report, Verified, verify};

use crate::input::{self, Input, Syntax};
use crate::show::write_out;

/// Instructions that the interpreter runs at most.
const FUEL: u64 = 1 << 36;
/// Where the interpreter has the memory that r1 leads to.
const MEMORY_AT: u64 = 0x1000_0000;

/// What runs programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// The reference interpreter, which has no maps and few helpers
    Interp,
    /// Cranelift's code
    #[default]
    Jit,
    /// LLVM's code (if it is installed): faster, and slower to compile
    Llvm,
}

/// `ring3 exec`
#[derive(Debug, Args)]
pub(crate) struct Execute {
    /// A BPF object file, assembler text, or instructions as bytes or hexadecimal digits; `-` is standard input
    #[arg(required_unless_present = "plugin")]
    file: Option<OsString>,
    /// Which program of an object file to run: the name of its function or section
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// The language of assembler text
    #[arg(long, value_enum, default_value_t)]
    syntax: Syntax,
    /// The engine that runs the program
    #[arg(long, value_enum, default_value_t)]
    engine: Engine,
    /// Hide the program's constants in its code, as the kernel does with net.core.bpf_jit_harden
    #[arg(long)]
    harden: bool,
    /// The memory that r1 points to, as hexadecimal digits; r2 is its length
    #[arg(long, value_name = "HEX")]
    memory: Option<String>,
    /// The same from a file, as bytes
    #[arg(long, value_name = "FILE", conflicts_with = "memory")]
    memory_file: Option<PathBuf>,
    /// How many times to run the program; the time printed is the mean
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Also print the memory after the run
    #[arg(short, long)]
    verbose: bool,
    /// As a plugin of bpf_conformance: the argument is the memory as hexadecimal digits, standard input the program, standard
    /// output r0
    #[arg(long, conflicts_with_all = ["program", "memory", "memory_file", "verbose"])]
    plugin: bool,
}

/// A program, and the maps that it may name.
struct Subject {
    insns: Vec<Insn>,
    object: Option<Object>,
    program: Option<Program>,
}

pub(crate) fn run(wanted: &Execute) -> Result<(), String> {
    if wanted.plugin {
        return plugin(wanted);
    }
    let subject = subject(wanted)?;
    let mut memory = match (&wanted.memory, &wanted.memory_file) {
        (Some(text), _) => {
            input::hexadecimal(text).ok_or("--memory takes pairs of hexadecimal digits, such as 0a0b")?
        }
        (None, Some(path)) => input::read(path)?,
        (None, None) => vec![],
    };
    let outcome = execute(&subject, wanted, &mut memory, wanted.repeat)?;
    let each = outcome.duration_ns as f64 / f64::from(wanted.repeat);
    let mut text = format!("r0 {:#x} ({})\n{each:.1} ns a run", outcome.result, outcome.result as i64);
    if wanted.repeat > 1 {
        text += &format!(" ({} runs)", wanted.repeat);
    }
    text.push('\n');
    if wanted.verbose {
        for (row, bytes) in memory.chunks(16).enumerate() {
            text += &format!(
                "{:04x} {}\n",
                row * 16,
                bytes.iter().map(|byte| format!(" {byte:02x}")).collect::<String>()
            );
        }
    }
    write_out(&text)
}

fn plugin(wanted: &Execute) -> Result<(), String> {
    let argument = wanted.file.as_ref().map(|argument| argument.to_string_lossy().into_owned()).unwrap_or_default();
    let mut memory =
        input::hexadecimal(&argument).ok_or("the argument is the memory, as pairs of hexadecimal digits")?;
    let program = input::read("-".as_ref())?;
    let program = std::str::from_utf8(&program).ok().and_then(input::hexadecimal);
    let insns =
        program.and_then(|bytes| decode(&bytes)).ok_or("standard input is the program, as hexadecimal digits")?;
    let subject = Subject { insns, object: None, program: None };
    let outcome = execute(&subject, wanted, &mut memory, 1)?;
    write_out(&format!("{:x}\n", outcome.result))
}

fn subject(wanted: &Execute) -> Result<Subject, String> {
    let file = wanted.file.as_deref().map(Path::new).ok_or("a program is missing")?;
    let object = match (input::program(file, wanted.syntax)?, &wanted.program) {
        (Input::Insns(_), Some(_)) => {
            return Err(format!("--program is for object files, which {} is not", file.display()));
        }
        (Input::Insns(insns), None) => return Ok(Subject { insns, object: None, program: None }),
        (Input::Object(object), _) => *object,
    };
    let program = match &wanted.program {
        Some(name) => {
            let mut programs = object.programs.iter();
            programs.find(|program| program.name == *name || program.section == *name)
        }
        None if object.programs.len() == 1 => object.programs.first(),
        None => return Err(input::no_program(file, &object, "without a name")),
    };
    let program =
        program.cloned().ok_or_else(|| input::no_program(file, &object, wanted.program.as_deref().unwrap_or("")))?;
    Ok(Subject { insns: program.insns.clone(), object: Some(object), program: Some(program) })
}

/// Verifies a program for this memory, and runs it.
fn execute(subject: &Subject, wanted: &Execute, memory: &mut [u8], repeat: u32) -> Result<Outcome, String> {
    let bytes = u32::try_from(memory.len()).map_err(|_| "so much memory is too much")?;
    match wanted.engine {
        Engine::Interp if wanted.harden => Err("the interpreter makes no code in which to hide constants".into()),
        Engine::Interp => interpret(&subject.verify(bytes, |shape| shape)?, memory, repeat),
        Engine::Jit | Engine::Llvm => {
            let mut runner = Runner::new(possible_cpus()).map_err(|error| error.to_string())?;
            let maps = subject.object.as_ref().map_or(&[][..], |object| &object.maps);
            maps.iter().try_for_each(|map| add_map(&mut runner, map))?;
            let program = subject.verify(bytes, |shape| runner.maps()[shape.slot as usize].shape(shape))?;
            let options = Options { blinding: wanted.harden.then(fresh_nonce), ..Options::default() };
            let code = match wanted.engine {
                Engine::Llvm => ring3_engine::compile(&program, &options),
                _ => ring3_jit::compile(&program, &options),
            };
            let loaded = runner.load(&program, &code.map_err(|error| error.to_string())?);
            let outcome = loaded.and_then(|loaded| runner.run(loaded, memory, repeat));
            outcome.map_err(|error| error.to_string())
        }
    }
}

impl Subject {
    /// Verifies the program for so many bytes of memory; `place` tells where a map's values lie.
    fn verify(&self, bytes: u32, place: impl Fn(MapShape) -> MapShape) -> Result<Verified, String> {
        let policy = Policy::memory(bytes);
        let verdict = match (&self.object, &self.program) {
            (Some(object), Some(program)) => {
                let policies = PolicySet::new(&Kernel::without_types(), possible_cpus());
                Judge::new(&policies, object).with_places(place).ask(program, policy, judge)
            }
            _ => judge(&mut Question {
                insns: &self.insns,
                prog_type: prog_type::SYSCALL,
                gpl_compatible: true,
                sleepable: false,
                cpus: possible_cpus(),
                policy,
                log_level: 0,
                lines: vec![],
                map_by_fd: &|_| None,
                map_by_index: &|_| None,
                constant_value: &|_| None,
            }),
        };
        verdict.map_err(|report| format!("the verifier refuses the program:\n{}", report.log.trim_end()))
    }
}

/// The verdict; the path to a refusal is told.
fn judge(question: &mut Question<'_>) -> Result<Verified, Report> {
    verify(question).or_else(|_| {
        question.log_level = 1;
        verify(question)
    })
}

fn add_map(runner: &mut Runner, map: &MapDef) -> Result<(), String> {
    let fail = |why: String| format!("the map {}: {why}", map.name);
    if map.inner.is_some() || !map.slots.is_empty() {
        return Err(fail("maps of objects need a server: `ring3 load`".into()));
    }
    let slot = runner.add_map(&Attributes {
        map_type: map.map_type,
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        map_flags: map.map_flags,
        cpus: possible_cpus(),
        map_extra: map.map_extra,
    });
    let slot = slot.map_err(|error| fail(error.to_string()))?;
    if let Some(value) = &map.initial {
        runner.set_value(slot, value);
    }
    Ok(())
}

/// What the interpreter's programs can call.
struct Helpers(Instant);

impl Host for Helpers {
    fn call(&mut self, id: u32, _: [u64; 5], _: &mut Memory) -> Result<u64, Fault> {
        match id {
            helper::KTIME_GET_NS => Ok(self.0.elapsed().as_nanos() as u64),
            _ => Err(Fault::UnknownHelper(id)),
        }
    }

    fn map(&self, _: u32, _: Option<u32>) -> u64 {
        0
    }
}

fn interpret(program: &Verified, bytes: &mut [u8], repeat: u32) -> Result<Outcome, String> {
    if !program.maps().is_empty() {
        return Err("the interpreter has no maps: leave --engine interp out".into());
    }
    let mut helpers = Helpers(Instant::now());
    let (mut result, started) = (0, Instant::now());
    for _ in 0..repeat {
        let mut memory = Memory::default();
        memory.add(MEMORY_AT, bytes.to_vec());
        let address = if bytes.is_empty() { 0 } else { MEMORY_AT };
        let run = ring3_interp::run(program, address, &mut memory, &mut helpers, FUEL);
        result = run.map_err(|fault| match fault {
            Fault::UnknownHelper(id) => {
                format!("the interpreter has no bpf_{}: leave --engine interp out", helper::name(id).unwrap_or("?"))
            }
            fault => fault.to_string(),
        })?;
        bytes.copy_from_slice(memory.region(MEMORY_AT).unwrap_or_default());
    }
    Ok(Outcome { result, duration_ns: started.elapsed().as_nanos() as u64 })
}
