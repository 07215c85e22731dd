//! What a program may read, write and call: a value that is given to `verify`.
//!
//! The contexts are those of the kernel's program types (their `is_valid_access`): kernel/trace/bpf_trace.c for tracing,
//! net/core/filter.c for the network, kernel/bpf/syscall.c for `SYSCALL`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use ring3_uapi::bpf::{attach_type, prog_type};
use ring3_uapi::helper;

use crate::host::{Grant, HostValue};
use crate::objects::KernelTypes;
use crate::prototypes;
use crate::signature::Signature;

/// Instructions that may be processed at most (`BPF_COMPLEXITY_LIMIT_INSNS`).
pub const PROCESSED_MAX: u64 = 1_000_000;

/// What lies in a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A number.
    Number,
    /// The packet's start.
    Packet,
    /// The packet's end.
    PacketEnd,
    /// The start of what lies before the packet.
    PacketMeta,
    /// A writable buffer of this many bytes (`raw_tp.w`).
    Buffer {
        /// Its size.
        bytes: u32,
    },
    /// The thread's `struct pt_regs`, which may be read.
    Registers,
    /// A pointer to an object of the host that is extended ([`crate::host::Grant::objects`]).
    HostObject {
        /// Its index.
        object: u32,
        /// It may be null.
        nullable: bool,
    },
    /// A kernel object, by its type in the kernel's BTF.
    Object {
        /// The type.
        id: u32,
        /// It may be null.
        nullable: bool,
        /// It is certainly alive.
        trusted: bool,
    },
}

/// Sizes of accesses, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// 1, 2, 4 or 8, each at its multiples.
    Any,
    /// This one.
    Only(u32),
    /// Fields of this size: reads of it or narrower ones, writes of it.
    Fields(u32),
}

/// A part of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Where it lies, bytes.
    pub at: Range<u32>,
    /// How it may be accessed.
    pub sizes: Sizes,
    /// Whether programs may write it.
    pub write: bool,
    /// What it is.
    pub content: Content,
}

/// What a program finds behind r1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    fields: Vec<Field>,
}

impl Context {
    /// A context of these fields.
    pub fn new(fields: Vec<Field>) -> Context {
        Context { fields }
    }

    /// What an access of `bytes` bytes at `at` meets, if it is allowed.
    pub(crate) fn content(&self, at: u32, bytes: u32, write: bool) -> Option<Content> {
        let field = self.fields.iter().find(|field| field.at.contains(&at))?;
        let inside = at + bytes <= field.at.end && at.is_multiple_of(bytes);
        let fits = match field.sizes {
            Sizes::Any => true,
            Sizes::Only(only) => bytes == only,
            Sizes::Fields(of) if write => bytes == of,
            Sizes::Fields(of) => bytes <= of,
        };
        (inside && fits && (!write || field.write)).then_some(field.content)
    }
}

/// What a program may do.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What lies behind r1.
    pub context: Context,
    /// Helpers that may be called.
    pub helpers: BTreeSet<u32>,
    /// Packets may be changed.
    pub packet_writes: bool,
    /// `ld_abs` and `ld_ind`.
    pub legacy_packet_loads: bool,
    /// What r0 may be at the end.
    pub result: Option<Range<i64>>,
    /// Kernel objects may be read.
    pub objects: Option<Rc<KernelTypes>>,
    /// The program is an extension, and is granted this.
    pub host: Option<Rc<Grant>>,
    /// The context has words of 8 bytes that are registers in truth: where these lie in `struct pt_regs`.
    pub registers: Option<&'static [u32]>,
    /// Instructions that may be processed.
    pub processed_max: u64,
    /// No path ends because what is known was known before: what the verifier itself is judged by. Of rounds that are merely
    /// counted the first few are walked.
    pub walks_all: bool,
    /// A path may also end where an address was spilled into what was seen to hold any bytes: read there it is a number, and
    /// whatever number it is, it was seen. The kernel does so for those who may learn addresses (`allow_uninit_stack`).
    pub addresses_as_numbers: bool,
    /// r1 leads to this many bytes of memory instead of a context, and r2 is their number.
    pub memory: Option<u32>,
    /// The memory of `memory` may be written.
    pub memory_writes: bool,
    /// Functions of the application that runs the program; calls name them by their place ([`crate::FUNCTION_FIRST`]).
    pub functions: Vec<Signature>,
    /// What RFC 9669 defines and the kernel refuses is allowed: division by a constant 0, shifts by constants that are too
    /// large, `callx`.
    pub rfc9669: bool,
}

impl Policy {
    /// For a program that is run by itself on some memory, as ubpf and rbpf do.
    pub fn memory(bytes: u32) -> Policy {
        Policy {
            memory: Some(bytes),
            rfc9669: true,
            context: Context::default(),
            ..Policy::targets(prog_type::SYSCALL)
        }
    }

    /// For programs that run in targets: helpers that the agent has, no kernel objects.
    pub fn targets(kind: u32) -> Policy {
        let helpers = prototypes::prototypes().iter().filter(|row| row.runs && row.allows(kind));
        Policy {
            context: context(kind),
            helpers: helpers.map(|row| row.id).collect(),
            packet_writes: matches!(kind, prog_type::XDP | prog_type::SCHED_CLS | prog_type::SCHED_ACT),
            legacy_packet_loads: false,
            result: None,
            objects: None,
            host: None,
            registers: None,
            processed_max: PROCESSED_MAX,
            walks_all: false,
            addresses_as_numbers: true,
            memory: None,
            memory_writes: true,
            functions: vec![],
            rfc9669: false,
        }
    }

    /// For an extension at the entry of a host's function, or at its end. It runs as a probe does; its context are the function's
    /// arguments, 8 bytes each, which code finds in the registers of the calling convention. At the function's end there is the
    /// result only.
    pub fn extension(grant: Rc<Grant>, at_end: bool) -> Policy {
        let registers: &[u32] = if at_end { &RESULT_REGISTER } else { &ARGUMENT_REGISTERS };
        let fields = (0..).step_by(8).zip(&grant.arguments).take(registers.len()).map(|(at, value)| {
            let content = match value {
                HostValue::Object { object, nullable } => {
                    Content::HostObject { object: *object as u32, nullable: *nullable }
                }
                HostValue::Number | HostValue::Slice { .. } => Content::Number,
            };
            let sizes = if content == Content::Number { Sizes::Any } else { Sizes::Only(8) };
            Field { at: at..at + 8, sizes, write: false, content }
        });
        let context = Context::new(fields.collect());
        Policy { context, host: Some(grant), registers: Some(registers), ..Policy::targets(prog_type::KPROBE) }
    }

    /// For programs that are attached so: what r0 may be, and whether there are a function's arguments. Mirrors
    /// kernel/bpf/verifier.c:check_return_code and include/linux/bpf.h:bpf_prog_has_trampoline.
    pub fn attached(self, kind: u32, attach: u32) -> Policy {
        let result = match (kind, attach) {
            (prog_type::TRACING, attach_type::TRACE_FENTRY | attach_type::TRACE_FEXIT) => Some(0..1),
            (prog_type::TRACING, attach_type::TRACE_ITER) => Some(0..2),
            (prog_type::KPROBE, attach_type::TRACE_KPROBE_SESSION | attach_type::TRACE_UPROBE_SESSION) => Some(0..2),
            _ => None,
        };
        let mut helpers = self.helpers;
        let has_trampoline =
            matches!(attach, attach_type::TRACE_FENTRY | attach_type::TRACE_FEXIT | attach_type::MODIFY_RETURN);
        if kind == prog_type::TRACING && !has_trampoline {
            for id in [helper::GET_FUNC_ARG, helper::GET_FUNC_RET, helper::GET_FUNC_ARG_CNT] {
                helpers.remove(&id);
            }
        }
        Policy { result, helpers, ..self }
    }

    /// For a program of type `TRACING` that is attached to a function of a system call, or to the raw tracepoint of system calls: the
    /// thread's registers and, if `has_number`, the call's number or result.
    /// Mirrors kernel/bpf/btf.c:btf_ctx_access, for `long __x64_sys_*(const struct pt_regs *)`.
    pub fn of_system_calls(attach: u32, has_number: bool) -> Policy {
        let registers = Field { at: 0..8, sizes: Sizes::Only(8), write: false, content: Content::Registers };
        let number = has_number.then(|| numbers(8..16, Sizes::Any));
        let mut policy = Policy::targets(prog_type::TRACING).attached(prog_type::TRACING, attach);
        // (It would read what the kernel's trampolines keep before the context. Here are no such trampolines.)
        policy.helpers.remove(&helper::GET_FUNC_IP);
        // (Elsewhere the kernel's says that there is no result.)
        if attach != attach_type::TRACE_FEXIT {
            policy.helpers.remove(&helper::GET_FUNC_RET);
        }
        Policy { context: Context::new([registers].into_iter().chain(number).collect()), ..policy }
    }

    /// As the kernel would: all that is known.
    pub fn kernel(kind: u32) -> Policy {
        let helpers = prototypes::prototypes().iter().filter(|row| row.allows(kind));
        Policy {
            helpers: helpers.map(|row| row.id).collect(),
            legacy_packet_loads: matches!(
                kind,
                prog_type::SOCKET_FILTER | prog_type::SCHED_CLS | prog_type::SCHED_ACT
            ),
            ..Policy::targets(kind)
        }
    }
}

/// Where arguments lie in `struct pt_regs`: `rdi`, `rsi`, `rdx`, `rcx`, `r8`, `r9` (System V ABI, AMD64).
const ARGUMENT_REGISTERS: [u32; 6] = [112, 104, 96, 88, 72, 64];
/// And a result: `rax`.
const RESULT_REGISTER: [u32; 1] = [80];
/// Bytes of `struct pt_regs` (x86-64).
pub(crate) const PT_REGS_BYTES: u32 = 168;
/// `PERF_MAX_TRACE_SIZE`
const TRACEPOINT_BYTES_MAX: u32 = 8192;
/// Arguments of a raw tracepoint at most (`MAX_BPF_FUNC_ARGS`).
const RAW_ARGUMENTS_MAX: u32 = 12;

/// A number that may be read.
fn numbers(at: Range<u32>, sizes: Sizes) -> Field {
    Field { at, sizes, write: false, content: Content::Number }
}

fn writable(field: Field) -> Field {
    Field { write: true, ..field }
}

fn pointer(at: u32, content: Content) -> Field {
    Field { at: at..at + 4, sizes: Sizes::Only(4), write: false, content }
}

/// The context of a program type.
pub fn context(kind: u32) -> Context {
    Context::new(match kind {
        prog_type::KPROBE => vec![numbers(0..PT_REGS_BYTES, Sizes::Any)],
        prog_type::TRACEPOINT => vec![numbers(8..TRACEPOINT_BYTES_MAX, Sizes::Any)],
        prog_type::RAW_TRACEPOINT => vec![numbers(0..RAW_ARGUMENTS_MAX * 8, Sizes::Any)],
        prog_type::RAW_TRACEPOINT_WRITABLE => vec![
            Field { at: 0..8, sizes: Sizes::Only(8), write: false, content: Content::Buffer { bytes: 1 << 15 } },
            numbers(8..RAW_ARGUMENTS_MAX * 8, Sizes::Any),
        ],
        prog_type::PERF_EVENT => vec![
            numbers(0..PT_REGS_BYTES, Sizes::Only(8)),
            numbers(PT_REGS_BYTES..PT_REGS_BYTES + 8, Sizes::Fields(8)),
            numbers(PT_REGS_BYTES + 8..PT_REGS_BYTES + 16, Sizes::Fields(8)),
        ],
        prog_type::SYSCALL => vec![writable(numbers(0..u32::from(u16::MAX), Sizes::Any))],
        prog_type::XDP => vec![
            pointer(0, Content::Packet),
            pointer(4, Content::PacketEnd),
            pointer(8, Content::PacketMeta),
            numbers(12..20, Sizes::Only(4)),
        ],
        prog_type::SOCKET_FILTER => sk_buff(false),
        prog_type::SCHED_CLS | prog_type::SCHED_ACT => sk_buff(true),
        _ => vec![],
    })
}

/// `struct __sk_buff`; classifiers see and change more of it than socket filters.
fn sk_buff(classifier: bool) -> Vec<Field> {
    let word = |at: u32| numbers(at..at + 4, Sizes::Fields(4));
    let mut fields: Vec<Field> = (0..12).map(|index| word(index * 4)).collect();
    fields.push(writable(numbers(48..68, Sizes::Any)));
    fields.push(word(68));
    fields.extend([84, 164, 176].map(word));
    if classifier {
        // mark, queue_mapping, priority, tc_index
        for at in [8, 12, 32, 44] {
            fields[at as usize / 4].write = true;
        }
        fields.push(writable(word(72)));
        fields.push(pointer(76, Content::Packet));
        fields.push(pointer(80, Content::PacketEnd));
        fields.push(pointer(140, Content::PacketMeta));
        fields.extend((88..140).step_by(4).map(word));
        fields.push(writable(numbers(152..160, Sizes::Only(8))));
        fields.push(word(160));
        fields.push(numbers(180..181, Sizes::Only(1)));
        fields.push(numbers(184..192, Sizes::Only(8)));
    }
    fields
}
