//! Programs that were compiled ahead of time: what a file holds, and which program it may stand for.
//!
//! Runs: in `ring3 aot`, which writes, and in the server, which reads.
//! May touch: the bytes it is given, which are hostile until `Store::read` has checked them.
//! Never: does I/O; panics on a corrupt file; gives out code for other instructions, maps or constants than were verified.
//! Start reading at: `Store::read`, then `Store::find`.
//!
//! Code depends on more than instructions: on the maps' geometry (strides and bounds are immediates), on the type of
//! program (what its context is), and on values of maps that never change, where those decided which paths exist. All of
//! that is compared before code is given out. Map slots are the server's choice, so instructions and relocations name
//! maps by the order in which the instructions name them first ([`Subject::new`]).
#![forbid(unsafe_code)]

mod file;

use std::ops::Range;

use ring3_isa::{Immediate, Insn, Op, op};
use ring3_jit::{Code, Target};
use ring3_layout::frame;
use ring3_uapi::helper;
use ring3_verifier::{MapShape, Verified};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use file::{Error, FILE_BYTES_MAX};

/// A SHA-256.
pub type Hash = [u8; 32];

/// The SHA-256 of some bytes.
pub fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// Who verified and compiled, and for which machine. Code of another identity is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The program `ring3`, by the hash of its file: verifier, compiler, agent and layouts are in it.
    pub build: Hash,
    /// Its version, for people.
    pub version: String,
    /// CPUs that there can be: geometry of per-CPU maps.
    pub cpus: u32,
    /// The kernel's types, which CO-RE and the numbers of kernel functions come from.
    pub kernel: Hash,
    /// The kernel's release, for people.
    pub release: String,
}

/// What is different of two maps, in words of `BPF_MAP_CREATE`.
fn difference(stored: &MapShape, given: &MapShape) -> Option<String> {
    let members = [
        ("map_type", stored.map_type, given.map_type),
        ("key_size", stored.key_size, given.key_size),
        ("value_size", stored.value_size, given.value_size),
        ("max_entries", stored.max_entries, given.max_entries),
        ("map_flags", stored.map_flags, given.map_flags),
    ];
    let member = members.into_iter().find(|(_, stored, given)| stored != given);
    let member = member.map(|(name, stored, given)| format!("{name} is {given}, and was {stored}"));
    member.or_else(|| (stored != given).then(|| "its geometry, lock or inner maps are others".into()))
}

/// What a program is besides its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    /// `BPF_PROG_TYPE_*`.
    pub prog_type: u32,
    /// `BPF_*` of `enum bpf_attach_type`.
    pub attach_type: u32,
    /// The licence allows GPL-only helpers.
    pub gpl_compatible: bool,
    /// It may sleep.
    pub sleepable: bool,
}

/// A program to be compiled or looked for.
#[derive(Clone, Debug)]
pub struct Subject {
    kind: Kind,
    insns: Hash,
    /// Slots of its maps, in the order in which it names them.
    slots: Vec<u32>,
    /// The maps, in this order, which is their slots here.
    shapes: Vec<MapShape>,
}

impl Subject {
    /// `map_at` gives the map that the instruction at an index names; `None` if there is none behind the reference.
    pub fn new(kind: Kind, insns: &[Insn], map_at: &dyn Fn(usize) -> Option<MapShape>) -> Option<Subject> {
        let (mut digest, mut slots, mut shapes) = (Sha256::new(), vec![], vec![]);
        for (at, insn) in insns.iter().enumerate() {
            let mut bytes = insn.to_bytes();
            let value = match op(insns, at) {
                Ok(Op::LoadImm64 { value: Immediate::MapFd(_) | Immediate::MapIdx(_), .. }) => Some(1),
                Ok(Op::LoadImm64 { value: Immediate::MapValue(..) | Immediate::MapIdxValue(..), .. }) => Some(2),
                _ => None,
            };
            if let Some(pseudo) = value {
                let map = map_at(at)?;
                let known = slots.iter().position(|slot| *slot == map.slot);
                let index = known.unwrap_or_else(|| {
                    slots.push(map.slot);
                    shapes.push(MapShape { slot: shapes.len() as u32, ..map });
                    slots.len() - 1
                });
                bytes[1] = insn.dst() | pseudo << 4;
                bytes[4..].copy_from_slice(&(index as u32).to_le_bytes());
            }
            digest.update(bytes);
        }
        Some(Subject { kind, insns: digest.finalize().into(), slots, shapes })
    }

    /// GOT slots of its maps, in the order in which it names them.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }
}

/// What the server wants to know of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// [`Verified::uses_per_cpu`].
    pub uses_per_cpu: bool,
    /// [`Verified::context_bytes`].
    pub context_bytes: u32,
    /// As a program of a probe it needs registers that not every frame has ([`ring3_layout::frame`]): it looks at them, walks
    /// the stack, or goes on with a program that may.
    pub all_registers: bool,
    /// As a program of a tracepoint of system calls it needs the thread's registers, whose address is the context's first word:
    /// it looks at that, asks for them, walks the stack, or goes on with a program that may.
    pub call_registers: bool,
    /// It calls `bpf_override_return`.
    pub overrides: bool,
    /// It reads or writes memory of the process, or goes on with a program that may.
    pub reads: bool,
    /// It asks for the name or the user of the thread, or goes on with a program that may.
    pub identity: bool,
    /// It asks for the thread's stack, or goes on with a program that may.
    pub stacks: bool,
    /// It sends signals, or goes on with a program that may.
    pub signals: bool,
}

/// Helpers that read or write memory of the process, or might if the program gave such an address.
const READERS: [u32; 25] = [
    helper::PROBE_READ,
    helper::PROBE_READ_STR,
    helper::PROBE_READ_USER,
    helper::PROBE_READ_USER_STR,
    helper::PROBE_READ_KERNEL,
    helper::PROBE_READ_KERNEL_STR,
    helper::PROBE_WRITE_USER,
    helper::COPY_FROM_USER,
    helper::COPY_FROM_USER_TASK,
    helper::GET_STACK,
    helper::GET_STACKID,
    helper::GET_TASK_STACK,
    helper::TASK_PT_REGS,
    helper::STRCMP,
    helper::STRCASECMP,
    helper::STRCHR,
    helper::STRCHRNUL,
    helper::STRNCHR,
    helper::STRRCHR,
    helper::STRLEN,
    helper::STRNLEN,
    helper::STRSPN,
    helper::STRCSPN,
    helper::STRSTR,
    helper::STRNSTR,
];

impl Facts {
    /// Of a verified program.
    pub fn of(verified: &Verified) -> Facts {
        let calls =
            |helpers: &[u32]| verified.tail_calls() || verified.helpers().iter().any(|id| helpers.contains(id));
        let stacks = calls(&[helper::GET_STACK, helper::GET_STACKID, helper::GET_TASK_STACK]);
        let asks_for_registers = stacks || calls(&[helper::TASK_PT_REGS]);
        let looks_at = |part: &dyn Fn(&Range<u32>) -> bool| {
            verified.context_parts().is_none_or(|mut parts| parts.any(|bytes| part(&bytes)))
        };
        let all_registers = asks_for_registers || looks_at(&|bytes| !frame::has(bytes));
        let call_registers = asks_for_registers || looks_at(&|bytes| bytes.start < 8);
        let reads = calls(&READERS);
        let identity = calls(&[helper::GET_CURRENT_COMM, helper::GET_CURRENT_UID_GID]);
        let signals = calls(&[helper::SEND_SIGNAL, helper::SEND_SIGNAL_THREAD]);
        let overrides = verified.helpers().contains(&helper::OVERRIDE_RETURN);
        let (uses_per_cpu, context_bytes) = (verified.uses_per_cpu(), verified.context_bytes());
        Facts {
            uses_per_cpu,
            context_bytes,
            all_registers,
            call_registers,
            overrides,
            reads,
            identity,
            stacks,
            signals,
        }
    }
}

/// What code of a file refers to; maps by their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reference {
    Helper(u32),
    Symbol(String),
    Header(u32),
    Data(u32),
}

/// Code as it is in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredCode {
    bytes: Vec<u8>,
    entry: u32,
    functions: Vec<u32>,
    relocations: Vec<(u32, i64, Reference)>,
    pc_map: Vec<(u32, u32)>,
}

/// A program in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredProgram {
    /// Its function's name, whole.
    pub name: String,
    kind: Kind,
    insns: Hash,
    insn_count: u32,
    shapes: Vec<MapShape>,
    /// Maps whose values the verdict depends on, and those.
    constants: Vec<(u32, Hash)>,
    /// What else the server wants to know.
    pub facts: Facts,
    code: StoredCode,
}

/// Programs of an object file, compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Who made it, and where it may be used.
    pub identity: Identity,
    /// The programs.
    pub programs: Vec<StoredProgram>,
}

impl StoredProgram {
    /// A program that was verified and compiled with GOT slots of its own. `constants`: slots of the maps whose values
    /// the verifier asked for, and those values. `None`: the code refers to a map that the instructions do not name.
    pub fn new(
        name: &str,
        subject: &Subject,
        verified: &Verified,
        code: &Code,
        constants: &[(u32, Vec<u8>)],
    ) -> Option<StoredProgram> {
        let order = |slot: u32| Some(subject.slots.iter().position(|known| *known == slot)? as u32);
        let reference = |target: Target| {
            Some(match target {
                Target::Helper(id) => Reference::Helper(id),
                Target::Symbol(name) => Reference::Symbol(name.to_owned()),
                Target::GotHeader(slot) => Reference::Header(order(slot)?),
                Target::GotData(slot) => Reference::Data(order(slot)?),
            })
        };
        let relocations = code.relocations.iter();
        Some(StoredProgram {
            name: name.to_owned(),
            kind: subject.kind,
            insns: subject.insns,
            insn_count: verified.insns().len() as u32,
            shapes: subject.shapes.clone(),
            constants: constants
                .iter()
                .map(|(slot, value)| Some((order(*slot)?, hash(value))))
                .collect::<Option<_>>()?,
            facts: Facts::of(verified),
            code: StoredCode {
                bytes: code.bytes.clone(),
                entry: code.entry,
                functions: code.functions.clone(),
                relocations: relocations
                    .map(|found| Some((found.offset, found.addend, reference(found.target)?)))
                    .collect::<Option<_>>()?,
                pc_map: code.pc_map.clone(),
            },
        })
    }

    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code.bytes.len()
    }

    /// The code for a program's own maps. `symbol` knows the agent's routines by name; `None`: it has not that one.
    pub fn code(&self, subject: &Subject, symbol: &dyn Fn(&str) -> Option<&'static str>) -> Option<Code> {
        let slot = |index: &u32| subject.slots.get(*index as usize).copied();
        let target = |reference: &Reference| {
            Some(match reference {
                Reference::Helper(id) => Target::Helper(*id),
                Reference::Symbol(name) => Target::Symbol(symbol(name)?),
                Reference::Header(index) => Target::GotHeader(slot(index)?),
                Reference::Data(index) => Target::GotData(slot(index)?),
            })
        };
        let relocations = self.code.relocations.iter().map(|(offset, addend, reference)| {
            Some(ring3_jit::Relocation { offset: *offset, addend: *addend, target: target(reference)? })
        });
        Some(Code {
            bytes: self.code.bytes.clone(),
            entry: self.code.entry,
            functions: self.code.functions.clone(),
            relocations: relocations.collect::<Option<_>>()?,
            pc_map: self.code.pc_map.clone(),
        })
    }

    /// Whether it may stand for a program. `constant` gives the value of a map that never changes, by slot.
    pub fn is_for(&self, subject: &Subject, constant: &dyn Fn(u32) -> Option<Vec<u8>>) -> bool {
        self.insns == subject.insns && self.mismatch(subject, constant).is_none()
    }

    /// Why this is not the program looked for, though it has its instructions.
    fn mismatch(&self, subject: &Subject, constant: &dyn Fn(u32) -> Option<Vec<u8>>) -> Option<String> {
        if self.kind != subject.kind {
            return Some("its type, attach type, licence or flags are others".into());
        }
        let maps = self.shapes.iter().zip(&subject.shapes).enumerate();
        let other = maps.filter_map(|(index, (stored, given))| Some((index, difference(stored, given)?))).next();
        if let Some((index, what)) = other {
            return Some(format!("map {index} of it differs: {what}"));
        }
        let changed = self.constants.iter().find(|(index, value)| {
            let slot = subject.slots.get(*index as usize);
            slot.and_then(|slot| constant(*slot)).is_none_or(|given| hash(&given) != *value)
        });
        changed.map(|(index, _)| format!("the tool has set constants in map {index} of it, and it depends on them"))
    }
}

impl Store {
    /// The program that may stand for this one. `constant` gives the value of a map that never changes, by slot.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(
        &self,
        subject: &Subject,
        constant: &dyn Fn(u32) -> Option<Vec<u8>>,
    ) -> Result<&StoredProgram, String> {
        let alike = self.programs.iter().filter(|stored| stored.insns == subject.insns);
        let mut why = "the file has no program of these instructions".to_owned();
        for stored in alike {
            match stored.mismatch(subject, constant) {
                None => return Ok(stored),
                Some(what) => why = what,
            }
        }
        Err(why)
    }
}
