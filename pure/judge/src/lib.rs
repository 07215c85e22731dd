//! The programs of an object file, put to the verifier as if their maps had been made and their kernel were asked.
//!
//! Runs: anywhere.
//! May touch: the objects and types it is given.
//! Never: does I/O; makes a map; judges itself.
//! Start reading at: `Judge`.
#![forbid(unsafe_code)]

use std::rc::Rc;

use ring3_btf::{Btf, SpecialKind};
use ring3_isa::Insn;
use ring3_object::{Kernel, MapDef, Object, Program};
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_RDONLY_PROG, BPF_F_SLEEPABLE, STACK_FRAMES_MAX};
use ring3_verifier::{InnerShape, Input, KernelFunctions, KernelTypes, Line, MapShape, Policy};

/// Elements of maps whose number tools set at run time.
const ENTRIES_UNTOLD: u32 = 1024;

/// The policies for programs of one kernel: what is the same for all objects.
pub struct PolicySet {
    types: Rc<KernelTypes>,
    functions: KernelFunctions,
    processors: u32,
}

impl PolicySet {
    /// For programs of this kernel, on a machine of so many processors.
    pub fn new(kernel: &Kernel, processors: u32) -> PolicySet {
        let functions = KernelFunctions::new(kernel.btf());
        PolicySet { types: Rc::new(KernelTypes::new(kernel.btf().clone())), functions, processors }
    }

    /// CPUs that there can be.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// What the kernel lets a program do that is attached so, to what has this type.
    pub fn policy(&self, prog_type: u32, attach_type: u32, attach_btf_id: u32) -> Policy {
        let mut policy = Policy { objects: Some(self.types.clone()), ..Policy::kernel(prog_type) };
        if let Some(context) = self.types.context(prog_type, attach_type, attach_btf_id) {
            policy.context = context;
        }
        policy.attached(prog_type, attach_type)
    }

    /// A program's instructions with our numbers of kernel functions.
    pub fn renumbered(&self, insns: &[Insn]) -> Vec<Insn> {
        let mut insns = insns.to_vec();
        self.functions.renumber(&mut insns);
        insns
    }
}

/// What is the same for all programs of an object.
pub struct Judge<'a> {
    policies: &'a PolicySet,
    object: &'a Object,
    maps: Vec<MapShape>,
}

impl<'a> Judge<'a> {
    /// For the programs of an object that was fitted to the kernel of `policies`.
    pub fn new(policies: &'a PolicySet, object: &'a Object) -> Judge<'a> {
        let shape = |(slot, map)| shape(slot, map, object.btf.as_ref());
        let maps = (0..).zip(&object.maps).map(shape).collect();
        Judge { policies, object, maps }
    }

    /// The same for maps that exist: `place` tells where their values lie.
    pub fn with_places(mut self, place: impl Fn(MapShape) -> MapShape) -> Judge<'a> {
        self.maps.iter_mut().for_each(|map| *map = place(*map));
        self
    }

    /// A map, by its index in the object.
    pub fn map(&self, index: u32) -> Option<MapShape> {
        self.maps.get(index as usize).copied()
    }

    /// Asks about one of the object's programs under a policy; what is asked of the verifier is the caller's.
    pub fn ask<T>(&self, program: &Program, policy: Policy, question: impl FnOnce(&mut Input<'_>) -> T) -> T {
        let insns = self.policies.renumbered(&program.insns);
        question(&mut Input {
            insns: &insns,
            prog_type: program.prog_type,
            gpl_compatible: self.object.is_gpl_compatible(),
            sleepable: program.flags & BPF_F_SLEEPABLE != 0,
            cpus: self.policies.processors,
            policy,
            log_level: 0,
            lines: self.lines(program),
            map_by_fd: &|_| None,
            map_by_index: &|index| self.map(index),
            constant_value: &|slot| self.constant(slot),
        })
    }

    /// What the kernel lets a program do.
    pub fn policy(&self, program: &Program) -> Policy {
        self.policies.policy(program.prog_type, program.expected_attach_type, program.attach_btf_id)
    }

    fn lines(&self, program: &Program) -> Vec<Line> {
        let Some(types) = &self.object.btf else { return vec![] };
        let text = |at: u32| types.text(at).map(|text| String::from_utf8_lossy(text).into_owned());
        program.line_info.iter().filter_map(|line| Some(Line { insn: line[0], text: text(line[2])? })).collect()
    }

    /// What a map that never changes holds.
    fn constant(&self, slot: u32) -> Option<Vec<u8>> {
        let map = self.object.maps.get(slot as usize)?;
        map.initial.clone().filter(|_| map.frozen && map.map_flags & BPF_F_RDONLY_PROG != 0)
    }
}

fn shape(slot: u32, map: &MapDef, types: Option<&Btf>) -> MapShape {
    let lock = |map: &MapDef| {
        let specials = types.filter(|_| map.value_type != 0)?.specials(map.value_type).ok()?;
        specials.into_iter().find(|special| special.kind == SpecialKind::SpinLock).map(|lock| lock.at)
    };
    let alone = |map: &MapDef| InnerShape {
        map_type: map.map_type,
        key_size: map.key_size,
        value_size: match (map.map_type, map.value_size) {
            (map_type::STACK_TRACE, 0) => STACK_FRAMES_MAX as u32 * 8,
            (_, bytes) => bytes,
        },
        max_entries: if map.max_entries == 0 { ENTRIES_UNTOLD } else { map.max_entries },
        map_flags: map.map_flags,
        lock: lock(map),
    };
    MapShape { slot, inner: map.inner.as_deref().map(alone), ..alone(map).shape() }
}
