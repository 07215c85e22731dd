//! `ring3 verify`: what the verifier says of the programs in an object file.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use ring3_btf::{Btf, kind};
use ring3_isa::code::BPF_CALL;
use ring3_object::{Kernel, MapDef, Object, Program, Settings};
use ring3_uapi::bpf::{attach_type, map_type, prog_type};
use ring3_uapi::flags::{BPF_F_RDONLY_PROG, BPF_F_SLEEPABLE, STACK_FRAMES_MAX};
use ring3_uapi::helper::{KFUNC_FIRST, KFUNC_NAMES};
use ring3_verifier::{InnerShape, Input, KernelTypes, Line, MapShape, Policy, Report, Statistics, Verified, verify};
use serde_json::{Value, json};

use crate::show::write_out;

/// The running kernel's types.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
/// Elements of maps whose number tools set at run time.
const ENTRIES_UNTOLD: u32 = 1024;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) file: PathBuf,
    pub(crate) program: Option<String>,
    pub(crate) btf: Option<PathBuf>,
    pub(crate) targets: bool,
    pub(crate) verbose: bool,
    pub(crate) json: bool,
}

/// A program and its verdict.
struct Judged {
    name: String,
    section: String,
    kind: u32,
    insns: usize,
    usec: u128,
    verdict: Result<Verified, Report>,
}

/// Prints the verdicts; false if a program was refused.
pub(crate) fn run(wanted: &Wanted) -> Result<bool, String> {
    let bytes = read(&wanted.file)?;
    let btf_file = wanted.btf.as_deref().unwrap_or(Path::new(KERNEL_BTF));
    let types = read(btf_file).map_err(|why| format!("{why}; name a kernel's types with --btf FILE"))?;
    let kernel = Kernel::parse(types).map_err(|error| format!("{}: {error}", btf_file.display()))?;
    let object =
        Object::load(&bytes, &kernel, &settings()).map_err(|error| format!("{}: {error}", wanted.file.display()))?;
    if let Some(name) = &wanted.program
        && !object.programs.iter().any(|program| program.name == *name)
    {
        let names: Vec<&str> = object.programs.iter().map(|program| program.name.as_str()).collect();
        return Err(format!("{} has no program {name}; it has {}", wanted.file.display(), names.join(", ")));
    }
    let judge = Judge::new(&object, &kernel, wanted);
    let programs = object.programs.iter();
    let judged: Vec<Judged> = programs
        .filter(|program| wanted.program.as_ref().is_none_or(|name| program.name == *name))
        .map(|program| judge.judge(program))
        .collect();
    let text = if wanted.json { format!("{:#}\n", as_json(&judged, wanted)) } else { as_text(&judged, wanted) };
    write_out(&text)?;
    Ok(judged.iter().all(|program| program.verdict.is_ok()))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// What programs can ask of this machine's kernel.
fn settings() -> Settings {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open("/proc/config.gz") {
        let _ = flate2::read::GzDecoder::new(file).read_to_string(&mut text);
    }
    Settings::of_kernel(&release, &text)
}

/// What is the same for all programs of an object.
struct Judge<'a> {
    object: &'a Object,
    maps: Vec<MapShape>,
    types: Option<Btf>,
    kernel: Rc<KernelTypes>,
    /// Our numbers of kernel functions by their ids.
    functions: BTreeMap<u32, u32>,
    wanted: &'a Wanted,
}

impl<'a> Judge<'a> {
    fn new(object: &'a Object, kernel: &Kernel, wanted: &'a Wanted) -> Judge<'a> {
        let types = object.btf.clone().and_then(|bytes| Btf::parse_any(bytes).ok());
        let maps = (0..).zip(&object.maps).map(|(slot, map)| shape(slot, map, types.as_ref())).collect();
        let functions = (KFUNC_FIRST..)
            .zip(KFUNC_NAMES)
            .filter_map(|(number, name)| Some((kernel.find(format!("bpf_{name}").as_bytes(), kind::FUNC)?, number)));
        let functions = functions.collect();
        Judge { object, maps, types, kernel: Rc::new(KernelTypes::new(kernel.btf().clone())), functions, wanted }
    }

    fn judge(&self, program: &Program) -> Judged {
        let mut insns = program.insns.clone();
        for insn in insns.iter_mut().filter(|insn| insn.opcode == BPF_CALL && insn.src() == 2) {
            let ours = u32::try_from(insn.imm).ok().and_then(|id| self.functions.get(&id));
            insn.imm = ours.map_or(insn.imm, |number| *number as i32);
        }
        let mut input = Input {
            insns: &insns,
            prog_type: program.prog_type,
            gpl_compatible: self.object.is_gpl_compatible(),
            sleepable: program.flags & BPF_F_SLEEPABLE != 0,
            cpus: processors(),
            policy: self.policy(program),
            log_level: 0,
            lines: self.lines(program),
            map_by_fd: &|_| None,
            map_by_index: &|index| self.maps.get(index as usize).copied(),
            constant_value: &|slot| self.constant(slot),
        };
        let begun = Instant::now();
        let mut verdict = verify(&input);
        let usec = begun.elapsed().as_micros();
        if verdict.is_err() || self.wanted.verbose {
            input.log_level = if self.wanted.verbose { 2 } else { 1 };
            verdict = verify(&input);
        }
        let (name, section) = (program.name.clone(), program.section.clone());
        Judged { name, section, kind: program.prog_type, insns: insns.len(), usec, verdict }
    }

    fn policy(&self, program: &Program) -> Policy {
        if self.wanted.targets {
            return Policy::targets(program.prog_type);
        }
        let attach = program.expected_attach_type;
        let context = self.kernel.context(program.prog_type, attach, program.attach_btf_id);
        let mut policy = Policy { objects: Some(self.kernel.clone()), ..Policy::kernel(program.prog_type) };
        if let Some(context) = context {
            policy.context = context;
        }
        if program.prog_type == prog_type::TRACING {
            policy.result = match attach {
                attach_type::TRACE_FENTRY | attach_type::TRACE_FEXIT => Some(0..1),
                attach_type::TRACE_ITER => Some(0..2),
                _ => None,
            };
        }
        policy
    }

    fn lines(&self, program: &Program) -> Vec<Line> {
        let Some(types) = &self.types else { return vec![] };
        let text = |at: u32| types.text(at).map(|text| String::from_utf8_lossy(text).into_owned());
        program.line_info.iter().filter_map(|line| Some(Line { insn: line[0], text: text(line[2])? })).collect()
    }

    /// What a map that never changes holds.
    fn constant(&self, slot: u32) -> Option<Vec<u8>> {
        let map = self.object.maps.get(slot as usize)?;
        map.initial.clone().filter(|_| map.frozen && map.map_flags & BPF_F_RDONLY_PROG != 0)
    }
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

fn shape(slot: u32, map: &MapDef, types: Option<&Btf>) -> MapShape {
    let lock = |map: &MapDef| {
        let specials = types.filter(|_| map.value_type != 0)?.specials(map.value_type).ok()?;
        specials.into_iter().find(|special| special.kind == ring3_btf::SpecialKind::SpinLock).map(|lock| lock.at)
    };
    let value_size = |map: &MapDef| match (map.map_type, map.value_size) {
        (map_type::STACK_TRACE, 0) => STACK_FRAMES_MAX as u32 * 8,
        (_, bytes) => bytes,
    };
    let entries = |map: &MapDef| if map.max_entries == 0 { ENTRIES_UNTOLD } else { map.max_entries };
    MapShape {
        slot,
        map_type: map.map_type,
        key_size: map.key_size,
        value_size: value_size(map),
        max_entries: entries(map),
        map_flags: map.map_flags,
        stride: value_size(map).next_multiple_of(8),
        cpus: processors(),
        cpu_stride: u64::from(value_size(map).next_multiple_of(8)) * u64::from(entries(map)),
        lock: lock(map),
        inner: map.inner.as_deref().map(|inner| InnerShape {
            map_type: inner.map_type,
            key_size: inner.key_size,
            value_size: value_size(inner),
            max_entries: entries(inner),
            map_flags: inner.map_flags,
            lock: lock(inner),
        }),
    }
}

impl Judged {
    fn statistics(&self) -> Statistics {
        match &self.verdict {
            Ok(verified) => verified.statistics(),
            Err(report) => report.statistics,
        }
    }

    fn log(&self) -> &str {
        match &self.verdict {
            Ok(verified) => verified.log(),
            Err(report) => &report.log,
        }
    }

    fn kind(&self) -> String {
        let name = prog_type::name(self.kind).map(|name| name.trim_start_matches("BPF_PROG_TYPE_").to_lowercase());
        name.unwrap_or_else(|| self.kind.to_string())
    }
}

fn as_json(judged: &[Judged], wanted: &Wanted) -> Value {
    let programs = judged.iter().map(|program| {
        let refused = program.verdict.as_ref().err();
        let mut row = json!({
            "name": program.name,
            "section": program.section,
            "type": program.kind(),
            "accepted": refused.is_none(),
            "reason": refused.map(|report| report.message.clone()),
            "advice": refused.and_then(Report::advice),
            "errno": refused.map(|report| report.errno.name()),
            "insn": refused.and_then(|report| report.insn),
            "insns": program.insns,
            "processed": program.statistics().processed,
            "states": program.statistics().states,
            "usec": program.usec as u64,
        });
        if wanted.verbose {
            row["log"] = program.log().into();
        }
        row
    });
    json!({ "programs": programs.collect::<Vec<_>>() })
}

fn as_text(judged: &[Judged], wanted: &Wanted) -> String {
    let mut out = String::new();
    for program in judged {
        let Statistics { processed, states, .. } = program.statistics();
        let verdict = if program.verdict.is_ok() { "accepted" } else { "REFUSED" };
        out += &format!(
            "{verdict}  {}  ({}, {})  {} insns, {processed} processed, {states} states, {} us\n",
            program.name,
            program.section,
            program.kind(),
            program.insns,
            program.usec
        );
        if program.verdict.is_err() && !wanted.verbose {
            // The end of the way that led there.
            const LINES: usize = 16;
            let lines: Vec<&str> = program.log().lines().collect();
            lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| out += &format!("    {line}\n"));
        }
        if wanted.verbose {
            program.log().lines().for_each(|line| out += &format!("    {line}\n"));
        }
    }
    let refused = judged.iter().filter(|program| program.verdict.is_err()).count();
    out += &format!("{} programs, {} accepted, {refused} refused\n", judged.len(), judged.len() - refused);
    out
}
