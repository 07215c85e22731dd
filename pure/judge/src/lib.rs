//! The programs of an object file, put to the verifier as if their maps had been made and their kernel were asked.
//!
//! Runs: anywhere.
//! May touch: the objects and types it is given.
//! Never: does I/O; makes a map; judges itself.
//! Start reading at: `Judge`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::rc::Rc;

use ring3_btf::{Btf, SpecialKind, kind};
use ring3_isa::Insn;
use ring3_isa::code::BPF_CALL;
use ring3_object::{Kernel, MapDef, Object, Program};
use ring3_uapi::bpf::{attach_type, map_type, prog_type};
use ring3_uapi::flags::{BPF_F_RDONLY_PROG, BPF_F_SLEEPABLE, STACK_FRAMES_MAX};
use ring3_uapi::helper::{KFUNC_FIRST, KFUNC_NAMES};
use ring3_verifier::{InnerShape, Input, KernelTypes, Line, MapShape, Policy};

/// Elements of maps whose number tools set at run time.
const ENTRIES_UNTOLD: u32 = 1024;

/// What of a kernel is the same for all objects.
pub struct Court {
    types: Rc<KernelTypes>,
    /// Our numbers of kernel functions by their ids.
    functions: BTreeMap<u32, u32>,
    processors: u32,
}

impl Court {
    /// For programs of this kernel, on a machine of so many processors.
    pub fn new(kernel: &Kernel, processors: u32) -> Court {
        let functions = (KFUNC_FIRST..)
            .zip(KFUNC_NAMES)
            .filter_map(|(number, name)| Some((kernel.find(format!("bpf_{name}").as_bytes(), kind::FUNC)?, number)));
        let functions = functions.collect();
        Court { types: Rc::new(KernelTypes::new(kernel.btf().clone())), functions, processors }
    }
}

/// What is the same for all programs of an object.
pub struct Judge<'a> {
    court: &'a Court,
    object: &'a Object,
    maps: Vec<MapShape>,
    types: Option<Btf>,
}

impl<'a> Judge<'a> {
    /// For the programs of an object that was fitted to the court's kernel.
    pub fn new(court: &'a Court, object: &'a Object) -> Judge<'a> {
        let types = object.btf.clone().and_then(|bytes| Btf::parse_any(bytes).ok());
        let shape = |(slot, map)| shape(slot, map, types.as_ref(), court.processors);
        let maps = (0..).zip(&object.maps).map(shape).collect();
        Judge { court, object, maps, types }
    }

    /// Asks about one of the object's programs under a policy; what is asked of the verifier is the caller's.
    pub fn ask<T>(&self, program: &Program, policy: Policy, question: impl FnOnce(&mut Input<'_>) -> T) -> T {
        let insns = self.insns(program);
        question(&mut Input {
            insns: &insns,
            prog_type: program.prog_type,
            gpl_compatible: self.object.is_gpl_compatible(),
            sleepable: program.flags & BPF_F_SLEEPABLE != 0,
            cpus: self.court.processors,
            policy,
            log_level: 0,
            lines: self.lines(program),
            map_by_fd: &|_| None,
            map_by_index: &|index| self.maps.get(index as usize).copied(),
            constant_value: &|slot| self.constant(slot),
        })
    }

    /// What the kernel lets a program do.
    pub fn policy(&self, program: &Program) -> Policy {
        let (attach, types) = (program.expected_attach_type, &self.court.types);
        let mut policy = Policy { objects: Some(types.clone()), ..Policy::kernel(program.prog_type) };
        if let Some(context) = types.context(program.prog_type, attach, program.attach_btf_id) {
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

    fn insns(&self, program: &Program) -> Vec<Insn> {
        let mut insns = program.insns.clone();
        for insn in insns.iter_mut().filter(|insn| insn.opcode == BPF_CALL && insn.src() == 2) {
            let ours = u32::try_from(insn.imm).ok().and_then(|id| self.court.functions.get(&id));
            insn.imm = ours.map_or(insn.imm, |number| *number as i32);
        }
        insns
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

fn shape(slot: u32, map: &MapDef, types: Option<&Btf>, processors: u32) -> MapShape {
    let lock = |map: &MapDef| {
        let specials = types.filter(|_| map.value_type != 0)?.specials(map.value_type).ok()?;
        specials.into_iter().find(|special| special.kind == SpecialKind::SpinLock).map(|lock| lock.at)
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
        cpus: processors,
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
