//! `ring3 aot`: the programs of an object file verified and compiled here and now, for later.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ring3_aot::{Kind, Store, StoredProgram, Subject};
use ring3_btf::KERNEL_BTF;
use ring3_isa::{Immediate, Op};
use ring3_jit::Code;
use ring3_judge::{Judge, PolicySet};
use ring3_maps::{Attributes, Geometry};
use ring3_names::elf::{Linkable, object};
use ring3_names::{Names, Source, Style};
use ring3_object::{Kernel, Object, Program};
use ring3_server::realm::possible_cpus;
use ring3_server::support;
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::flags::BPF_F_SLEEPABLE;
use ring3_verifier::{Input, MapShape, Policy, Report, Verified, verify};

use crate::input;
use crate::show::write_out;

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Emit {
    /// A file for `ring3 load --aot`
    #[default]
    Aot,
    /// A relocatable ELF file (x86-64) with a function per program. Helpers are undefined symbols `ring3_helper_NAME`; maps are
    /// words `ring3_map_NAME` (address of the map) and `ring3_data_NAME` (address of its values)
    Obj,
}

/// `ring3 aot`
#[derive(Debug, Args)]
pub(crate) struct AotOptions {
    /// The object file (ELF)
    file: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Compile only this program
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// The kind of file to write
    #[arg(long, value_enum, default_value_t)]
    emit: Emit,
}

/// A program that was compiled.
struct Compiled<'a> {
    program: &'a Program,
    insns: Vec<ring3_isa::Insn>,
    verified: Verified,
    /// Values of maps that the verdict depends on.
    constants: BTreeMap<u32, Vec<u8>>,
    code: Code,
}

pub(crate) fn run(options: &AotOptions) -> Result<(), String> {
    let bytes = input::read(&options.file)?;
    let fail = |why: String| format!("{}: {why}", options.file.display());
    let kernel = input::kernel(Path::new(KERNEL_BTF)).unwrap_or_else(|_| Kernel::without_types());
    let object = input::object(&options.file, &bytes, &kernel)?;
    let named = |program: &&Program| options.program.as_ref().is_none_or(|name| program.name == *name);
    let programs: Vec<&Program> = object.programs.iter().filter(named).collect();
    if let (Some(name), true) = (&options.program, programs.is_empty()) {
        return Err(input::no_program(&options.file, &object, name));
    }
    let policies = PolicySet::new(&kernel, possible_cpus());
    let judge = Judge::new(&policies, &object).with_places(|shape| {
        let placed = as_made(shape, &object);
        // Whoever stands in for the agent has hash maps of his own.
        if options.emit == Emit::Obj { MapShape { hash: None, ..placed } } else { placed }
    });
    let (mut compiled, mut told) = (vec![], String::new());
    for program in programs {
        match compile(&judge, &policies, program) {
            Ok(done) => {
                told += &format!("compiled  {}\n", done.summary());
                compiled.push(done);
            }
            Err(why) => told += &format!("left out  {} ({}): {why}\n", program.name, program.section),
        }
    }
    if compiled.is_empty() {
        return Err(fail(format!("no program could be compiled\n{}", told.trim_end())));
    }
    let file = match options.emit {
        Emit::Aot => store(&object, &judge, &compiled)?.write(),
        Emit::Obj => linkable(&object, &compiled),
    };
    write_file(&options.output, &file)
        .map_err(|error| format!("cannot write {}: {error}", options.output.display()))?;
    write_out(&format!("{told}{}: {} programs, {} bytes\n", options.output.display(), compiled.len(), file.len()))
}

/// A map as the server will make it: `stride`, `cpus` and sizes from its geometry.
fn as_made(shape: MapShape, object: &Object) -> MapShape {
    let Some(map) = object.maps.get(shape.slot as usize) else { return shape };
    let max_entries = match (map.map_type, map.max_entries) {
        // libbpf gives such an array an element per CPU.
        (map_type::PERF_EVENT_ARRAY, 0) => possible_cpus(),
        (map_type::TASK_STORAGE, entries) => entries,
        _ => shape.max_entries,
    };
    let attributes = Attributes {
        map_type: shape.map_type,
        key_size: shape.key_size,
        value_size: shape.value_size,
        max_entries,
        map_flags: shape.map_flags,
        cpus: possible_cpus(),
        map_extra: map.map_extra,
    };
    // A map that cannot be made is told by the tool that makes it.
    let Ok(geometry) = Geometry::new(&attributes) else { return shape };
    let header = &geometry.header;
    let told = MapShape {
        key_size: header.key_size,
        value_size: header.value_size,
        max_entries: header.max_entries,
        map_flags: header.map_flags,
        ..shape
    };
    ring3_run::placed(&geometry, told)
}

fn compile<'a>(judge: &Judge<'_>, policies: &PolicySet, program: &'a Program) -> Result<Compiled<'a>, String> {
    let (kind, attach) = (program.prog_type, program.expected_attach_type);
    if let Some((_, why)) = support::refused_prog_type(kind) {
        return Err(format!("program type {}: {why}", prog_type::name(kind).unwrap_or("unknown")));
    }
    let policy = Policy::targets(kind).attached(kind, attach);
    let (verified, constants) = judge
        .ask(program, policy, |question| decide(question))
        .map_err(|report| format!("the verifier refuses it: {report}; see `ring3 verify --targets`"))?;
    let code = ring3_jit::compile(&verified, &ring3_jit::Options::default()).map_err(|error| error.to_string())?;
    Ok(Compiled { program, insns: policies.renumbered(&program.insns), verified, constants, code })
}

/// Verifies a program for all values that its constants can have, and only if that is refused for those in the file: then it can
/// only be used as long as a tool leaves them as they are.
fn decide(question: &Input<'_>) -> Result<(Verified, BTreeMap<u32, Vec<u8>>), Report> {
    let asked = RefCell::new(BTreeMap::new());
    let with = |constant_value: &dyn Fn(u32) -> Option<Vec<u8>>| {
        verify(&Input {
            insns: question.insns,
            prog_type: question.prog_type,
            gpl_compatible: question.gpl_compatible,
            sleepable: question.sleepable,
            cpus: question.cpus,
            policy: question.policy.clone(),
            log_level: 0,
            lines: vec![],
            map_by_fd: question.map_by_fd,
            map_by_index: question.map_by_index,
            constant_value,
        })
    };
    if let Ok(verified) = with(&|_| None) {
        return Ok((verified, BTreeMap::new()));
    }
    let verified = with(&|slot| {
        let value = (question.constant_value)(slot)?;
        asked.borrow_mut().insert(slot, value.clone());
        Some(value)
    })?;
    Ok((verified, asked.into_inner()))
}

impl Compiled<'_> {
    fn summary(&self) -> String {
        let Program { name, section, .. } = self.program;
        let held = if self.constants.is_empty() { "" } else { ", for its constants as they are" };
        let maps = self.verified.maps().len();
        format!("{name} ({section}): {} bytes of code, {maps} maps{held}", self.code.bytes.len())
    }

    fn names(&self, object: &Object) -> Names {
        let starts: Vec<u32> = self.verified.subprograms().iter().map(|subprogram| subprogram.start as u32).collect();
        let functions: Vec<[u32; 2]> = self.program.func_info.iter().map(|(insn, of)| [*insn, *of]).collect();
        let source = Source {
            name: &self.program.name,
            insns: &self.insns,
            starts: &starts,
            btf: object.btf.as_ref(),
            functions: &functions,
            lines: &self.program.line_info,
        };
        Names::of(&self.code, &source, Style::Plain)
    }
}

fn store(object: &Object, judge: &Judge<'_>, compiled: &[Compiled<'_>]) -> Result<Store, String> {
    let mut programs = vec![];
    for done in compiled {
        let kind = Kind {
            prog_type: done.program.prog_type,
            attach_type: done.program.expected_attach_type,
            gpl_compatible: object.is_gpl_compatible(),
            sleepable: done.program.flags & BPF_F_SLEEPABLE != 0,
        };
        let map_at = |at| match ring3_isa::op(&done.insns, at) {
            Ok(Op::LoadImm64 { value: Immediate::MapIdx(index) | Immediate::MapIdxValue(index, _), .. }) => {
                judge.map(index)
            }
            _ => None,
        };
        let constants: Vec<(u32, Vec<u8>)> = done.constants.clone().into_iter().collect();
        let stored = Subject::new(kind, &done.insns, &map_at).and_then(|subject| {
            StoredProgram::new(&done.program.name, &subject, &done.verified, &done.code, &constants)
        });
        programs.push(stored.ok_or_else(|| format!("{} names a map that the file has not", done.program.name))?);
    }
    Ok(Store { identity: ring3_server::aot::identity()?.clone(), programs })
}

fn linkable(of: &Object, compiled: &[Compiled<'_>]) -> Vec<u8> {
    let names: Vec<Names> = compiled.iter().map(|done| done.names(of)).collect();
    let maps: Vec<String> = of.maps.iter().map(|map| map.name.clone()).collect();
    let all: Vec<Linkable<'_>> =
        compiled.iter().zip(&names).map(|(done, names)| Linkable { code: &done.code, names, maps: &maps }).collect();
    object(&all)
}

/// Writes a file that nobody sees in part, and that others may not write: the server would not take it.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    let _ = std::fs::remove_file(&fresh);
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&fresh)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&fresh, path));
    written.inspect_err(|_| drop(std::fs::remove_file(&fresh)))
}
