//! Programs to [`Verified`], or a [`Report`] that says what is wrong.
//!
//! Runs: in the server.
//! May touch: the instructions it is given, which are hostile.
//! Never: accepts what it has not checked; the compiler takes only what this crate made.
//! Start reading at: `verify`.
//!
//! What is proved so far: every instruction is valid and reachable, control flow stays inside subprograms, calls
//! do not recurse and need at most 8 frames, helpers exist, fit the program type and the licence, and get
//! the map types they want where the map is a constant; r10 is not written. Compiled code bounds loops at run time.
//! Not proved yet: that memory accesses stay inside what a pointer points to.
#![forbid(unsafe_code)]

mod constants;
mod flow;
mod prototype;
mod prototypes;

use std::collections::BTreeMap;
use std::fmt;

use ring3_isa::{Call, DecodeError, Immediate, Insn, Op, op};
use ring3_uapi::Errno;
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::flags::BPF_F_RDONLY_PROG;
use ring3_uapi::helper::{self, KFUNC_FIRST};

pub use prototype::{Arg, DynptrUse, Prototype, Return};
pub use prototypes::{prototype, prototype_for, prototypes};

/// Instructions of a program at most (`BPF_COMPLEXITY_LIMIT_INSNS`).
pub const INSNS_MAX: usize = 1_000_000;
/// Calls within calls at most (`MAX_CALL_FRAMES`).
pub const CALL_FRAMES_MAX: usize = 8;

/// What the verifier knows of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// For maps of maps: type of the inner maps.
    pub inner_type: u32,
    /// Bytes from one CPU's values to the next CPU's.
    pub cpu_stride: u64,
}

impl MapShape {
    fn is_per_cpu(&self) -> bool {
        [self.map_type, self.inner_type].into_iter().any(|kind| {
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
    /// Map of a loader's file descriptor.
    pub map_by_fd: &'a dyn Fn(i32) -> Option<MapShape>,
    /// Map by index in `fd_array`.
    pub map_by_index: &'a dyn Fn(u32) -> Option<MapShape>,
    /// The bytes of a map's only value if nobody can change them any more (frozen, read-only for programs),
    /// by GOT slot. Branches that such constants decide are followed one way only, as the kernel does.
    pub constant_value: &'a dyn Fn(u32) -> Option<Vec<u8>>,
}

/// A program that passed.
#[derive(Clone, Debug)]
pub struct Verified {
    insns: Vec<Insn>,
    prog_type: u32,
    subprograms: Vec<Subprogram>,
    maps: BTreeMap<usize, (MapShape, Option<u32>)>,
    helper_maps: BTreeMap<usize, MapShape>,
    helpers: Vec<u32>,
    live: Vec<bool>,
}

/// A subprogram's instructions, `start..end`; the first one is the program's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subprogram {
    /// First instruction.
    pub start: usize,
    /// Behind the last.
    pub end: usize,
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
        Report { errno, insn, message: message.into(), log: String::new() }
    }

    fn with_log(mut self, insns: &[Insn]) -> Report {
        let text =
            self.insn.and_then(|at| Some(format!("{at}: ({:02x}) {}\n", insns.get(at)?.opcode, op(insns, at).ok()?)));
        self.log = format!("{}{}\n{}", text.unwrap_or_default(), self.message, processed(insns.len()));
        self
    }
}

/// The last line of a log, as the kernel writes it.
fn processed(insns: usize) -> String {
    format!(
        "processed {insns} insns (limit {INSNS_MAX}) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n"
    )
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

    /// Its type is one of those that trace. Mirrors kernel/bpf/verifier.c:is_tracing_prog_type.
    pub fn is_tracing(&self) -> bool {
        use prog_type::{KPROBE, PERF_EVENT, RAW_TRACEPOINT, TRACEPOINT};
        [KPROBE, TRACEPOINT, PERF_EVENT, RAW_TRACEPOINT].contains(&self.prog_type)
    }

    /// It has tail calls.
    pub fn tail_calls(&self) -> bool {
        self.helpers.contains(&helper::TAIL_CALL)
    }

    /// What the kernel would write to the log at level 4.
    pub fn log(&self) -> String {
        processed(self.insns.len())
    }
}

/// Checks a program.
pub fn verify(input: &Input<'_>) -> Result<Verified, Report> {
    check(input).map_err(|report| report.with_log(input.insns))
}

fn check(input: &Input<'_>) -> Result<Verified, Report> {
    check_type(input.prog_type)?;
    if input.insns.is_empty() || input.insns.len() > INSNS_MAX {
        return Err(Report::new(Errno::E2BIG, None, format!("a program has 1 to {INSNS_MAX} instructions")));
    }
    let ops = decode(input.insns)?;
    let subprograms = flow::subprograms(&ops)?;
    flow::check(&ops, &subprograms)?;
    let mut verified = Verified {
        insns: input.insns.to_vec(),
        prog_type: input.prog_type,
        subprograms,
        maps: BTreeMap::new(),
        helper_maps: BTreeMap::new(),
        helpers: vec![],
        live: vec![],
    };
    for (at, op) in ops.iter().enumerate() {
        if let Some(Op::LoadImm64 { value, .. }) = op {
            resolve_map(input, &mut verified, at, *value)?;
        }
    }
    let found = constants::walk(&ops, &verified, input.constant_value);
    if let Some(at) = found.reads_task {
        return Err(Report::new(
            Errno::EACCES,
            Some(at),
            "a task_struct cannot be read: there is none in user space",
        ));
    }
    verified.live = found.live;
    for (at, op) in ops.iter().enumerate().filter(|(at, _)| verified.live[*at]).collect::<Vec<_>>() {
        match op {
            Some(Op::Call(Call::Helper(id))) if *id < KFUNC_FIRST => {
                check_helper(input, &mut verified, &ops, at, *id)?
            }
            Some(Op::Call(Call::Kfunc(id))) if *id >= KFUNC_FIRST && runs(*id) => {
                check_helper(input, &mut verified, &ops, at, *id)?;
            }
            Some(Op::Call(Call::Kfunc(id))) => {
                return Err(Report::new(
                    Errno::EINVAL,
                    Some(at),
                    format!("kernel function btf_id {id} is not supported"),
                ));
            }
            Some(Op::Call(Call::Helper(id))) => {
                return Err(Report::new(Errno::EINVAL, Some(at), format!("invalid func unknown#{id}")));
            }
            _ => {}
        }
    }
    verified.helpers.sort_unstable();
    verified.helpers.dedup();
    Ok(verified)
}

fn check_type(kind: u32) -> Result<(), Report> {
    let known = [
        prog_type::SOCKET_FILTER,
        prog_type::KPROBE,
        prog_type::TRACEPOINT,
        prog_type::RAW_TRACEPOINT,
        prog_type::PERF_EVENT,
        prog_type::SYSCALL,
        prog_type::XDP,
        prog_type::SCHED_CLS,
    ];
    if known.contains(&kind) {
        return Ok(());
    }
    let name = prog_type::name(kind).unwrap_or("unknown");
    Err(Report::new(Errno::EINVAL, None, format!("program type {kind} ({name}) is not supported")))
}

/// All instructions as operations; `None` for second halves.
fn decode(insns: &[Insn]) -> Result<Vec<Option<Op>>, Report> {
    let mut ops = vec![];
    while ops.len() < insns.len() {
        let at = ops.len();
        let decoded = op(insns, at).map_err(|error| {
            let message = match error {
                DecodeError::TargetOutside => format!("jump out of range from insn {at}"),
                other => other.to_string(),
            };
            Report::new(Errno::EINVAL, Some(at), message)
        })?;
        check_operands(&decoded, at)?;
        ops.push(Some(decoded));
        if insns[at].is_wide() {
            ops.push(None);
        }
    }
    Ok(ops)
}

/// Mirrors kernel/bpf/verifier.c:check_alu_op and the frame pointer's protection.
fn check_operands(decoded: &Op, at: usize) -> Result<(), Report> {
    use ring3_isa::{AluOp, Operand, Width};
    let refuse = |message: String| Err(Report::new(Errno::EINVAL, Some(at), message));
    if let Op::Alu { width, op, src: Operand::Imm(value), .. } = decoded {
        let bits = if *width == Width::W64 { 64 } else { 32 };
        match op {
            AluOp::Div | AluOp::Sdiv | AluOp::Mod | AluOp::Smod if *value == 0 => {
                return refuse("div by zero".into());
            }
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh if !(0..bits).contains(value) => {
                return refuse(format!("invalid shift {value}"));
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
    if written == Some(10) { refuse("frame pointer is read only".into()) } else { Ok(()) }
}

fn resolve_map(input: &Input<'_>, verified: &mut Verified, at: usize, value: Immediate) -> Result<(), Report> {
    let (map, offset) = match value {
        Immediate::Value(_) | Immediate::Func(_) => return Ok(()),
        Immediate::MapFd(fd) => ((input.map_by_fd)(fd).ok_or(fd), None),
        Immediate::MapValue(fd, offset) => ((input.map_by_fd)(fd).ok_or(fd), Some(offset)),
        Immediate::MapIdx(index) => ((input.map_by_index)(index).ok_or(index as i32), None),
        Immediate::MapIdxValue(index, offset) => ((input.map_by_index)(index).ok_or(index as i32), Some(offset)),
        Immediate::BtfId(_) => {
            return Err(Report::new(Errno::EINVAL, Some(at), "kernel variables are not supported"));
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
    verified.maps.insert(at, (map, offset));
    Ok(())
}

/// Whether the agent has a helper.
fn runs(id: u32) -> bool {
    prototype(id).is_some_and(|prototype| prototype.runs)
}

fn check_helper(
    input: &Input<'_>,
    verified: &mut Verified,
    ops: &[Option<Op>],
    at: usize,
    id: u32,
) -> Result<(), Report> {
    let refuse = |message: String| Err(Report::new(Errno::EINVAL, Some(at), message));
    let name = ring3_uapi::helper::name(id).unwrap_or("unknown");
    if !runs(id) {
        return refuse(format!("unknown func bpf_{name}#{id}"));
    }
    let Some(prototype) = prototype_for(id, input.prog_type) else {
        return refuse(format!("program of this type cannot use helper bpf_{name}#{id}"));
    };
    if prototype.gpl_only && !input.gpl_compatible {
        return refuse("cannot call GPL-restricted function from non-GPL compatible program".into());
    }
    verified.helpers.push(id);
    if let Some(argument) = prototype.callback_argument() {
        let constant = flow::constant_load(ops, at, argument).and_then(|load| ops[load]);
        if !matches!(constant, Some(Op::LoadImm64 { value: Immediate::Func(_), .. })) {
            return refuse(format!("R{argument} is not a subprogram where bpf_{name}#{id} is called"));
        }
    }
    let Some(argument) = prototype.map_argument() else { return Ok(()) };
    let constant = flow::constant_load(ops, at, argument).and_then(|load| verified.map_at(load));
    if let Some((map, None)) = constant {
        // Mirrors kernel/bpf/verifier.c:record_func_map, and then check_map_func_compatibility.
        if map.map_flags & BPF_F_RDONLY_PROG != 0 && prototype.writes_map() {
            return Err(Report::new(Errno::EACCES, Some(at), "write into map forbidden"));
        }
        if !prototype.takes(map.map_type) {
            let map_name = map_type::name(map.map_type).unwrap_or("unknown");
            return refuse(format!("cannot pass map_type {} ({map_name}) into func bpf_{name}#{id}", map.map_type));
        }
        verified.helper_maps.insert(at, map);
    }
    Ok(())
}
