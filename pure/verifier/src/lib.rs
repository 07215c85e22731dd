//! Programs to [`Verified`], or a [`Report`] that says what is wrong.
//!
//! Runs: in the server.
//! May touch: the instructions it is given, which are hostile.
//! Never: accepts what it has not checked; the compiler takes only what this crate made.
//! Start reading at: `verify`.
//!
//! All paths through the program are walked, each with what is known of every register and stack slot (`explore.rs`);
//! a path ends where what is known was known before (`compare.rs`, `path.rs`). A program passes if every access stays
//! inside what its pointer points to, every helper gets what it wants, whatever is taken is given back, and all paths
//! end. The walk, its limits and its words are those of kernel/bpf/verifier.c (v6.18), so that what the kernel accepts
//! passes here, and its log looks as loaders expect.
#![forbid(unsafe_code)]

mod added;
mod arithmetic;
mod branch;
mod call;
mod compare;
mod discriminator;
mod dynptr;
mod explore;
mod extension;
mod filter;
mod flow;
mod helper;
pub mod host;
mod iterator;
pub mod liveness;
mod log;
mod memory;
mod objects;
mod path;
mod policy;
mod prototype;
mod prototypes;
mod scalar;
mod signature;
mod stack;
mod state;
mod tnum;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use ring3_isa::code::BPF_CALL;
use ring3_isa::{Call, DecodeError, Immediate, Insn, Op, op};
use ring3_uapi::Errno;
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::helper::{GET_TASK_STACK, TAIL_CALL, TASK_PT_REGS};
use serde::{Deserialize, Serialize};

use explore::Explorer;
use flow::Flow;

pub use added::AddedWords;
use added::ValueAt;
pub use filter::ProcessFilter;
pub use objects::{KernelFunctions, KernelTypes};
pub use policy::{Content, Context, Field, PROCESSED_MAX, Policy, Sizes, context};
pub use prototype::{Arg, DynptrUse, IteratorUse, Prototype, Return};
pub use prototypes::{prototype, prototype_for, prototypes};
pub use signature::{FUNCTION_FIRST, PARAMETERS_MAX, Parameter, Returned, Signature, Use};

/// Instructions of a program at most (`BPF_COMPLEXITY_LIMIT_INSNS`).
pub const INSNS_MAX: usize = 1_000_000;
/// Maps that a program may name (`MAX_USED_MAPS`).
pub const MAPS_MAX: usize = 64;
/// Calls within calls at most (`MAX_CALL_FRAMES`).
pub const CALL_FRAMES_MAX: usize = 8;

/// What the verifier knows of a map. (All that compiled code depends on; `ring3 aot` keeps it with the code.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapShape {
    /// Slot in the GOT.
    pub slot: u32,
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Elements at most.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub map_flags: u32,
    /// Bytes from one element to the next.
    pub stride: u32,
    /// CPUs with copies of their own.
    pub cpus: u32,
    /// Bytes from one CPU's values to the next CPU's.
    pub cpu_stride: u64,
    /// For hash types: where the parts of it lie.
    pub hash: Option<HashShape>,
    /// Where in a value its `bpf_spin_lock` is, bytes.
    pub lock: Option<u32>,
    /// For maps of maps: what the inner maps are.
    pub inner: Option<InnerShape>,
}

/// Where the parts of a hash map lie, bytes from its first one (`ring3_layout::map`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashShape {
    /// Buckets minus one; their number is a power of two.
    pub bucket_mask: u32,
    /// Offset of element 0.
    pub elements: u64,
    /// Bytes from one element to the next.
    pub element_stride: u64,
    /// Offset of the value of element 0 for CPU 0.
    pub values: u64,
    /// Bytes from one element's value to the next's.
    pub value_stride: u64,
}

/// What is known of all inner maps of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InnerShape {
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Elements at most.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub map_flags: u32,
    /// Where in a value its `bpf_spin_lock` is, bytes.
    pub lock: Option<u32>,
}

impl InnerShape {
    /// As a map that no program names, or of which only that is known.
    pub fn shape(self) -> MapShape {
        let InnerShape { map_type, key_size, value_size, max_entries, map_flags, lock } = self;
        MapShape {
            slot: u32::MAX,
            map_type,
            key_size,
            value_size,
            max_entries,
            map_flags,
            stride: 0,
            cpus: 0,
            cpu_stride: 0,
            hash: None,
            lock,
            inner: None,
        }
    }
}

impl MapShape {
    fn is_per_cpu(&self) -> bool {
        let inner = self.inner.map_or(0, |inner| inner.map_type);
        [self.map_type, inner].into_iter().any(|kind| {
            matches!(
                kind,
                map_type::PERCPU_HASH
                    | map_type::PERCPU_ARRAY
                    | map_type::LRU_PERCPU_HASH
                    | map_type::PERCPU_CGROUP_STORAGE
            )
        })
    }
}

/// A program to be verified.
pub struct Input<'a> {
    /// Instructions.
    pub insns: &'a [Insn],
    /// `BPF_PROG_TYPE_*`.
    pub prog_type: u32,
    /// The licence allows GPL-only helpers.
    pub gpl_compatible: bool,
    /// It may sleep (`BPF_F_SLEEPABLE`).
    pub sleepable: bool,
    /// CPUs that there can be.
    pub cpus: u32,
    /// What it may do.
    pub policy: Policy,
    /// `BPF_LOG_LEVEL*`: 1 for the path to an error, 2 for all paths, 4 for the last line only.
    pub log_level: u32,
    /// Source lines, in order of instructions.
    pub lines: Vec<Line>,
    /// Map of a loader's file descriptor.
    pub map_by_fd: &'a dyn Fn(i32) -> Option<MapShape>,
    /// Map by index in `fd_array`.
    pub map_by_index: &'a dyn Fn(u32) -> Option<MapShape>,
    /// The bytes of a map's only value if nobody can change them any more (frozen, read-only for programs),
    /// by GOT slot. Branches that such constants decide are followed one way only, as the kernel does.
    pub constant_value: &'a dyn Fn(u32) -> Option<Vec<u8>>,
}

/// A line of source code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The first of its instructions.
    pub insn: u32,
    /// What it says.
    pub text: String,
}

/// What verifying a program took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Instructions looked at.
    pub processed: u64,
    /// States kept.
    pub states: u64,
    /// States kept at once at most.
    pub states_peak: u64,
    /// States kept of one instruction at most.
    pub states_per_insn_max: u64,
}

impl fmt::Display for Statistics {
    /// As the last line of the kernel's log (kernel/bpf/verifier.c:print_verification_stats). `mark_read`, the longest
    /// walk to mark a read, is not counted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Statistics { processed, states, states_peak, states_per_insn_max } = self;
        write!(
            f,
            "processed {processed} insns (limit {PROCESSED_MAX}) max_states_per_insn {states_per_insn_max} \
             total_states {states} peak_states {states_peak} mark_read 0"
        )
    }
}

/// A program that passed.
#[derive(Clone, Debug)]
pub struct Verified {
    insns: Vec<Insn>,
    prog_type: u32,
    memory_bytes: Option<u32>,
    subprograms: Vec<Subprogram>,
    maps: BTreeMap<usize, (MapShape, Option<u32>)>,
    helper_maps: BTreeMap<usize, MapShape>,
    helpers: Vec<u32>,
    live: Vec<bool>,
    zero_divisors: BTreeSet<usize>,
    context_at: BTreeMap<usize, bool>,
    values_at: BTreeMap<usize, Option<ValueAt>>,
    call_words: BTreeMap<usize, u64>,
    registers: Option<&'static [u32]>,
    context_bytes: u32,
    context_leaves: bool,
    needs_fuel: bool,
    statistics: Statistics,
    log: String,
}

/// A subprogram's instructions, `start..end`; the first one is the program's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subprogram {
    /// First instruction.
    pub start: usize,
    /// Behind the last.
    pub end: usize,
    /// Bytes of its stack that are touched.
    pub stack_bytes: u32,
}

/// Why a program was refused.
#[derive(Clone, Debug)]
pub struct Report {
    /// For the loader.
    pub errno: Errno,
    /// The instruction at fault.
    pub insn: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// For the loader's log buffer.
    pub log: String,
    /// What it took to find out.
    pub statistics: Statistics,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.insn {
            Some(insn) => write!(f, "insn {insn}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Report {
    fn new(errno: Errno, insn: Option<usize>, message: impl Into<String>) -> Report {
        let (message, log, statistics) = (message.into(), String::new(), Statistics::default());
        Report { errno, insn, message, log, statistics }
    }

    /// What would make the program acceptable, where that can be said.
    pub fn advice(&self) -> Option<&'static str> {
        advice(&self.message)
    }

    fn with_log(mut self, input: &Input<'_>) -> Report {
        if self.log.is_empty()
            && let Some(at) = self.insn.filter(|at| *at < input.insns.len())
        {
            self.log = format!("{at}: ({:02x}) {}\n", input.insns[at].opcode, log::text(input, at));
        }
        let advice = self.advice().map(|advice| match advice {
            OTHER_MEMORY if input.policy.host.is_some() => HOST_MEMORY,
            advice => advice,
        });
        let advice = advice.map(|advice| format!("; {advice}\n")).unwrap_or_default();
        self.log = format!("{}{}\n{advice}{}\n", self.log, self.message, self.statistics);
        self
    }
}

const OTHER_MEMORY: &str = "read other memory by bpf_probe_read_user or bpf_probe_read_kernel";
/// The same in an extension.
const HOST_MEMORY: &str = "an extension reads what its class allows, through the arguments of the class's entry";

/// What to do about a refusal.
fn advice(message: &str) -> Option<&'static str> {
    const ADVICE: &[(&str, &str)] = &[
        ("_or_null'", "compare the pointer with NULL before it is used"),
        ("null-check it first", "compare the pointer with NULL before it is used"),
        (
            "expected=fp, pkt",
            "pass a pointer to enough initialised memory, on the stack or in a map, checked against NULL",
        ),
        ("min value is negative", "compare the index as an unsigned number before it is used"),
        ("unbounded memory access", "compare the size or index with its limit, or mask it, before it is used"),
        ("invalid access to packet", "compare the pointer behind the access with data_end first"),
        ("invalid access to m", "compare the index with the size before it is used"),
        ("!read_ok", "give the register a value on every path that leads here"),
        ("infinite loop", "make the loop's counter reach its bound on every path"),
        ("too large. Processed", "split the program, or bound its loops more tightly (bpf_loop, may_goto)"),
        ("Unreleased reference", "submit or discard what was reserved on every path"),
        ("invalid mem access 'scalar'", OTHER_MEMORY),
    ];
    ADVICE.iter().find(|(part, _)| message.contains(part)).map(|(_, advice)| *advice)
}

/// Why the walk ended, at the instruction where it stands.
#[derive(Debug)]
pub(crate) struct Refusal {
    errno: Errno,
    message: String,
}

impl Refusal {
    pub(crate) fn new(errno: Errno, message: impl Into<String>) -> Refusal {
        Refusal { errno, message: message.into() }
    }
}

/// Ends the walk.
pub(crate) fn refuse<T>(errno: Errno, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(errno, message))
}

/// Ends the walk at something that may not be accessed.
pub(crate) fn deny<T>(message: impl Into<String>) -> Result<T, Refusal> {
    refuse(Errno::EACCES, message)
}

impl Verified {
    /// Instructions.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// `BPF_PROG_TYPE_*`.
    pub fn prog_type(&self) -> u32 {
        self.prog_type
    }

    /// Bytes of the memory that r1 leads to, which r2 tells; `None`: r1 leads to a context.
    pub fn memory_bytes(&self) -> Option<u32> {
        self.memory_bytes
    }

    /// Subprograms, the entry first.
    pub fn subprograms(&self) -> &[Subprogram] {
        &self.subprograms
    }

    /// The map that the `ld_imm64` at `insn` loads, and the offset if it is a value's address.
    pub fn map_at(&self, insn: usize) -> Option<(MapShape, Option<u32>)> {
        self.maps.get(&insn).copied()
    }

    /// The map that the helper call at `insn` certainly gets in r1 (r2 for `perf_event_output`).
    pub fn helper_map(&self, insn: usize) -> Option<MapShape> {
        self.helper_maps.get(&insn).copied()
    }

    /// Whether control can come to this instruction.
    pub fn is_live(&self, insn: usize) -> bool {
        self.live.get(insn).copied().unwrap_or(false)
    }

    /// How long it runs is not bounded by what was walked: it has rounds (of callbacks, iterators, `may_goto`) whose number
    /// has an end, but may be large. Any other program runs no more instructions than [`Statistics::processed`]: each
    /// path that was walked ended at the program's end, or at a point behind which all paths had ended before.
    pub fn needs_fuel(&self) -> bool {
        self.needs_fuel
    }

    /// Where what programs know at `off` in their context lies in truth, bytes: of an extension in `struct pt_regs`.
    pub fn context_offset(&self, off: i16) -> i32 {
        let place = self.registers.and_then(|places| places.get(usize::try_from(off / 8).ok()?));
        place.map_or(i32::from(off), |place| *place as i32 + i32::from(off % 8))
    }

    /// What has to be in [`ring3_layout::thread::ThreadBlock::call_word`] at an instruction, which needs something of the host.
    pub fn call_word(&self, insn: usize) -> Option<u64> {
        self.call_words.get(&insn).copied()
    }

    /// Whether the load or store at an instruction is of the context.
    pub fn is_of_context(&self, insn: usize) -> bool {
        self.context_at.get(&insn).copied().unwrap_or(false)
    }

    /// The words of map values to which the program adds, and does nothing else of which more is seen.
    pub fn added_words(&self) -> Vec<AddedWords> {
        added::words(&self.insns, &self.values_at)
    }

    /// Bytes of the context up to the last that is touched (`max_ctx_offset`).
    pub fn context_bytes(&self) -> u32 {
        self.context_bytes
    }

    /// The bytes of the context that its loads and stores touch; `None` if the context's address went where it may be read
    /// otherwise: it became a number, or was put into memory, or a helper got it that wants no context.
    pub fn context_parts(&self) -> Option<impl Iterator<Item = Range<u32>>> {
        let of_context = self.context_at.iter().filter(|(_, is_context)| **is_context);
        let parts = of_context.filter_map(|(at, _)| {
            let bytes = match op(&self.insns, *at) {
                Ok(Op::Load { size, .. } | Op::Store { size, .. }) => u32::from(size.bytes()),
                _ => return None,
            };
            let start = u32::try_from(self.context_offset(self.insns[*at].off)).ok()?;
            Some(start..start + bytes)
        });
        (!self.context_leaves).then_some(parts)
    }

    /// Whether the division at an instruction may be one by 0.
    pub fn may_divide_by_zero(&self, insn: usize) -> bool {
        self.zero_divisors.contains(&insn)
    }

    /// Helpers called, by number, without repetition.
    pub fn helpers(&self) -> &[u32] {
        &self.helpers
    }

    /// Maps referred to, without repetition.
    pub fn maps(&self) -> Vec<MapShape> {
        let mut maps: Vec<MapShape> = self.maps.values().map(|(map, _)| *map).collect();
        maps.sort_by_key(|map| map.slot);
        maps.dedup();
        maps
    }

    /// It uses memory of which each CPU has its own, or goes on with programs that may.
    pub fn uses_per_cpu(&self) -> bool {
        self.maps.values().any(|(map, _)| map.is_per_cpu() || map.map_type == map_type::PROG_ARRAY)
    }

    /// It asks for what its context leads to without giving it: code stores where that is
    /// ([`ring3_layout::thread::ThreadBlock::context`]).
    pub fn keeps_context(&self) -> bool {
        self.helpers.iter().any(|id| matches!(*id, TASK_PT_REGS | GET_TASK_STACK))
    }

    /// It has tail calls.
    pub fn tail_calls(&self) -> bool {
        self.helpers.contains(&TAIL_CALL)
    }

    /// What it took to verify it.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// For the loader's log buffer.
    pub fn log(&self) -> &str {
        &self.log
    }
}

/// Whether a program type is one of those that trace. Mirrors kernel/bpf/verifier.c:is_tracing_prog_type.
pub fn is_tracing(kind: u32) -> bool {
    use prog_type::{KPROBE, PERF_EVENT, RAW_TRACEPOINT, TRACEPOINT};
    [KPROBE, TRACEPOINT, PERF_EVENT, RAW_TRACEPOINT].contains(&kind)
}

/// Checks a program.
///
/// # Errors
/// The kernel's errno, the instruction at fault, and why.
pub fn verify(input: &Input<'_>) -> Result<Verified, Report> {
    check(input).map_err(|report| report.with_log(input))
}

fn check(input: &Input<'_>) -> Result<Verified, Report> {
    if input.insns.is_empty() || input.insns.len() > INSNS_MAX {
        return Err(Report::new(Errno::E2BIG, None, format!("a program has 1 to {INSNS_MAX} instructions")));
    }
    let ops = decode(input.insns, input.policy.rfc9669)?;
    let flow = Flow::new(&ops)?;
    let named = resolve_maps(input, &ops)?;
    if input.prog_type == prog_type::SYSCALL && !input.sleepable && input.policy.memory.is_none() {
        // kernel/bpf/verifier.c:check_attach_btf_id (v6.18)
        return Err(Report::new(Errno::EINVAL, None, "Syscall programs can only be sleepable"));
    }
    let mut explorer = Explorer::new(input, &ops, &flow, &named);
    let outcome = explorer.run();
    let (at, found, log) = (explorer.at, explorer.found, explorer.log);
    let statistics = found.statistics;
    if let Err(Refusal { errno, message }) = outcome {
        return Err(Report { statistics, log: log.finish(true), ..Report::new(errno, Some(at), message) });
    }
    flow.check_stack(&ops, &found.called, &found.stack_bytes).map_err(|report| Report { statistics, ..report })?;
    let mut helpers = found.helpers;
    helpers.sort_unstable();
    helpers.dedup();
    let needs_fuel =
        found.came_round || !found.call_words.is_empty() || flow::counts_rounds(&flow.stops, &found.live);
    let of = |index: u32| named.maps.get(index as usize).copied();
    let text = log.finish(false);
    let mut insns = input.insns.to_vec();
    for (at, id) in &found.called {
        insns[*at] = Insn::new(BPF_CALL, 0, 0, 0, *id as i32);
    }
    Ok(Verified {
        insns,
        memory_bytes: input.policy.memory,
        prog_type: input.prog_type,
        maps: named.loads.iter().filter_map(|(at, (index, offset))| Some((*at, (of(*index)?, *offset)))).collect(),
        helper_maps: found.helper_maps.iter().filter_map(|(at, index)| Some((*at, of((*index)?)?))).collect(),
        helpers,
        live: found.live,
        zero_divisors: found.zero_divisors,
        context_at: found.context_at,
        values_at: found.values_at,
        needs_fuel,
        call_words: found.call_words,
        registers: input.policy.registers,
        context_bytes: found.context_bytes,
        context_leaves: found.context_leaves,
        statistics,
        log: if input.log_level == 0 { String::new() } else { format!("{text}{statistics}\n") },
        subprograms: flow
            .subprograms
            .iter()
            .zip(&found.stack_bytes)
            .map(|(subprogram, bytes)| Subprogram { stack_bytes: *bytes, ..*subprogram })
            .collect(),
    })
}

/// The maps that a program names.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// Each once.
    pub(crate) maps: Vec<MapShape>,
    /// Instruction to index in `maps`, and offset in the value if it is a value's address.
    pub(crate) loads: BTreeMap<usize, (u32, Option<u32>)>,
}

fn resolve_maps(input: &Input<'_>, ops: &[Option<Op>]) -> Result<Named, Report> {
    let mut named = Named::default();
    for (at, op) in ops.iter().enumerate() {
        let Some(Op::LoadImm64 { value, .. }) = op else { continue };
        let Some((map, offset)) = resolve_map(input, at, *value)? else { continue };
        let known = named.maps.iter().position(|other| other.slot == map.slot);
        if known.is_none() && named.maps.len() >= MAPS_MAX {
            let message = format!("The total number of maps per program has reached the limit of {MAPS_MAX}");
            return Err(Report::new(Errno::E2BIG, Some(at), message));
        }
        let index = known.unwrap_or_else(|| {
            named.maps.push(map);
            named.maps.len() - 1
        });
        named.loads.insert(at, (index as u32, offset));
    }
    Ok(named)
}

/// All instructions as operations; `None` for second halves.
fn decode(insns: &[Insn], rfc9669: bool) -> Result<Vec<Option<Op>>, Report> {
    let mut ops = vec![];
    while ops.len() < insns.len() {
        let at = ops.len();
        let decoded = match op(insns, at) {
            Ok(Op::Call(Call::Register(_))) if !rfc9669 => Err(DecodeError::Reserved),
            decoded => decoded,
        };
        let decoded = decoded.map_err(|error| Report::new(Errno::EINVAL, Some(at), undecodable(insns, at, error)))?;
        ops.push(Some(decoded));
        if insns[at].is_wide() {
            ops.push(None);
        }
    }
    Ok(ops)
}

/// What the kernel says of an instruction that is none.
fn undecodable(insns: &[Insn], at: usize, error: DecodeError) -> String {
    use ring3_isa::code::*;
    let insn = insns[at];
    let name = match (insn.class(), insn.opcode & 0xf0) {
        (BPF_JMP, 0xe0) if error == DecodeError::Reserved => return format!("invalid may_goto imm {}", insn.imm),
        (BPF_ALU | BPF_ALU64, 0x80) => "BPF_NEG",
        (BPF_ALU | BPF_ALU64, 0xb0) => "BPF_MOV",
        (BPF_ALU | BPF_ALU64, 0xd0) => "BPF_END",
        (BPF_ALU | BPF_ALU64, _) => "BPF_ALU",
        (BPF_JMP | BPF_JMP32, 0x00) => "BPF_JA",
        (BPF_JMP, 0x80) => "BPF_CALL",
        (BPF_JMP, 0x90) => "BPF_EXIT",
        (BPF_JMP | BPF_JMP32, _) => "BPF_JMP/BPF_JMP32",
        (BPF_LDX, _) => "BPF_LDX",
        (BPF_ST, _) => "BPF_ST",
        (BPF_STX, _) if insn.opcode & 0xe0 == BPF_ATOMIC => "BPF_ATOMIC",
        (BPF_STX, _) => "BPF_STX",
        _ => "BPF_LD",
    };
    match error {
        DecodeError::TargetOutside => {
            let long = insn.opcode == BPF_CALL || insn.class() == BPF_JMP32 && insn.opcode & 0xf0 == 0;
            let by = if long { i64::from(insn.imm) } else { i64::from(insn.off) };
            format!("jump out of range from insn {at} to {}", at as i64 + 1 + by)
        }
        DecodeError::Reserved if insn.is_wide() && insn.src() > 6 => "unrecognized bpf_ld_imm64 insn".into(),
        DecodeError::BadImm64 if at + 1 == insns.len() => "last insn is not an exit or jmp".into(),
        DecodeError::Reserved if name == "BPF_ATOMIC" => match insn.opcode & 0x18 {
            0x00 | 0x18 => format!("BPF_ATOMIC uses invalid atomic opcode {:02x}", insn.imm),
            _ => "invalid atomic operand size".into(),
        },
        DecodeError::Reserved if name == "BPF_LD" && insn.opcode & 0x18 == 0x18 => {
            format!("unknown opcode {:02x}", insn.opcode)
        }
        DecodeError::Reserved => format!("{name} uses reserved fields"),
        other => other.to_string(),
    }
}

/// Mirrors kernel/bpf/verifier.c:check_alu_op and the frame pointer's protection.
pub(crate) fn check_operands(decoded: &Op, rfc9669: bool) -> Result<(), Refusal> {
    use ring3_isa::{AluOp, Operand, Width};
    if let Op::Alu { width, op, src: Operand::Imm(value), .. } = decoded
        && !rfc9669
    {
        let bits = if *width == Width::W64 { 64 } else { 32 };
        match op {
            AluOp::Div | AluOp::Sdiv | AluOp::Mod | AluOp::Smod if *value == 0 => {
                return refuse(Errno::EINVAL, "div by zero");
            }
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh if !(0..bits).contains(value) => {
                return refuse(Errno::EINVAL, format!("invalid shift {value}"));
            }
            _ => {}
        }
    }
    let written = match decoded {
        Op::Alu { dst, .. }
        | Op::MovSx { dst, .. }
        | Op::Neg { dst, .. }
        | Op::Swap { dst, .. }
        | Op::Load { dst, .. }
        | Op::LoadAcquire { dst, .. }
        | Op::LoadImm64 { dst, .. } => Some(*dst),
        Op::Atomic { fetch: true, src, .. } => Some(*src),
        _ => None,
    };
    if written == Some(10) {
        return deny("frame pointer is read only");
    }
    Ok(())
}

fn resolve_map(input: &Input<'_>, at: usize, value: Immediate) -> Result<Option<(MapShape, Option<u32>)>, Report> {
    let (map, offset) = match value {
        Immediate::Value(_) | Immediate::Func(_) => return Ok(None),
        Immediate::MapFd(fd) => ((input.map_by_fd)(fd).ok_or(fd), None),
        Immediate::MapValue(fd, offset) => ((input.map_by_fd)(fd).ok_or(fd), Some(offset)),
        Immediate::MapIdx(index) => ((input.map_by_index)(index).ok_or(index as i32), None),
        Immediate::MapIdxValue(index, offset) => ((input.map_by_index)(index).ok_or(index as i32), Some(offset)),
        // (Of the host: `load_immediate` looks for it.)
        Immediate::BtfId(_) if input.policy.host.is_some() => return Ok(None),
        Immediate::BtfId(id) => {
            let known = input.policy.objects.as_ref().and_then(|objects| objects.variable(id));
            return match known {
                Some(_) => Ok(None),
                None => Err(Report::new(Errno::EINVAL, Some(at), "kernel variables are not supported")),
            };
        }
    };
    let map =
        map.map_err(|fd| Report::new(Errno::EBADF, Some(at), format!("fd {fd} is not pointing to valid bpf_map")))?;
    if let Some(offset) = offset {
        let direct = map.map_type == map_type::ARRAY && map.max_entries == 1;
        if !direct {
            return Err(Report::new(Errno::EINVAL, Some(at), "no direct value access support for this map type"));
        }
        if offset >= map.value_size {
            let message = format!("invalid access to map value pointer, value_size={} off={offset}", map.value_size);
            return Err(Report::new(Errno::EINVAL, Some(at), message));
        }
    }
    Ok(Some((map, offset)))
}
