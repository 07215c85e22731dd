//! Where verdicts may differ, and why: what is not here is a failure.

use ring3_generate::Program;
use ring3_interp::shadow::{Fault, Wrong};
use ring3_isa::{AluOp, Cond, Op, Operand, Size, Width};

/// A difference that is understood.
struct Reason {
    /// Part of the message of the side that refuses: one of these.
    messages: &'static [&'static str],
    /// What the program has, besides.
    has: fn(&Program) -> bool,
    /// Its name in the test's table.
    name: &'static str,
}

const fn told(messages: &'static [&'static str], name: &'static str) -> Reason {
    Reason { messages, has: |_| true, name }
}

/// What is said of numbers of which too little is known.
const NUMBERS: &[&str] = &[
    "unbounded",
    "value is negative",
    "invalid access",
    "outside of",
    "misaligned",
    "variable-offset",
    "is not allowed",
    "out of bounds",
    "zero-sized",
    "stack R",
    "write into map forbidden",
    "is not a known constant",
];

/// The kernel refuses, we may accept.
const KERNEL_ALONE_REFUSES: &[Reason] = &[
    // Its own limits of patience: what is behind them is not unsafe. Ours are others.
    told(&["BPF program is too large. Processed"], "the kernel gave up: instructions"),
    told(&["jumps is too complex"], "the kernel gave up: branches"),
    // Its own assertions (6.18: `No program to jit`, `stack slot`), seen with callbacks behind dead code.
    told(&["verifier bug"], "the kernel contradicts itself"),
    // It knows nothing of what it gets by dividing (6.18), so that it neither bounds it nor sees what is dead behind.
    Reason { messages: NUMBERS, has: divides, name: "the kernel bounds no quotients and remainders" },
    // Nor of negation.
    Reason { messages: NUMBERS, has: negates, name: "the kernel knows nothing of negated numbers" },
    // It keeps a pointer's constant part apart from what varies, which a subtraction makes negative.
    Reason { messages: NUMBERS, has: subtracts, name: "the kernel does not put constants and variables together" },
    // Nor of shifts by numbers that are not constant.
    Reason { messages: NUMBERS, has: shifts, name: "the kernel knows nothing of shifts by what is not constant" },
    // It knows of a spilled number only what is read from its first byte on, ours any part.
    Reason { messages: NUMBERS, has: reads_parts, name: "a part of a spilled number is known to us" },
    // Bits that are known to be 0 make the largest number of a range smaller.
    Reason { messages: NUMBERS, has: tests_bits, name: "the kernel does not tighten bounds by known bits" },
    // One byte lies between the packet's start and its end if they differ.
    told(&["outside of the packet"], "the first byte of a packet is known to us by the test of its start"),
    // Where a spilled pointer was overwritten in part on another path, it is a number for us on both.
    told(&["invalid size of register fill"], "a part of a spilled pointer is a number"),
    // It wants a register's spill of just the key's size.
    told(&["'map_value_or_null'"], "a constant key of an array is known to us in more forms"),
    // A pointer where a number was seen safe is one: numbers may have any value. The kernel looks at that path again.
    Reason {
        messages: &["pointer", "register spill"],
        has: reads_stack,
        name: "we take a pointer that was fetched for a number",
    },
    // What we know more of decides branches: of the paths that the kernel takes besides, it finds fault with one that comes
    // back to what is reached.
    Reason { messages: ENDS, has: knows_more, name: "the kernel takes a path that we know is never taken" },
];

/// What is said at the end of a path that lacks something.
const ENDS: &[&str] = &["!read_ok", "reference leak", "infinite loop detected", "type=", "errno 22"];

/// We refuse, the kernel may accept.
const RING3_ALONE_REFUSES: &[Reason] = &[
    told(&["unknown func bpf_"], "a helper that ring3 does not have"),
    told(&["invalid size of register spill"], "the kernel lets a part of a pointer be stored where it does not know"),
    told(&["a callback may not end"], "the kernel lets callbacks make tail calls"),
    told(&["invalid mem access 'map_ptr'"], "the kernel lets programs read what a map is"),
    // Numbers of which more is known decide more branches, and then differ where the kernel's are all unknown: rounds
    // of nested loops that it takes for the same may be too many for us. One program in some 40 000.
    told(&["BPF program is too large. Processed"], "we gave up: instructions"),
    // And open paths of rounds within rounds, the number of which decides something. One in some 20 000 short ones.
    told(&["jumps is too complex"], "we gave up: branches"),
    // As in `explain_fault`.
    Reason {
        messages: &["infinite loop detected"],
        has: calls_back,
        name: "we refuse an endless loop around a call of a callback",
    },
    // The same the other way round: the kernel has seen a number on a path that we know is never taken, and takes the
    // pointer for that.
    Reason {
        messages: &["pointer", "register spill"],
        has: |program| reads_stack(program) && knows_more(program),
        name: "the kernel takes a pointer that was fetched for a number",
    },
    // `if w0 == 0` of a pointer that is not null does not tell that the low half of it is not 0.
    Reason { messages: &["invalid access", "!read_ok", "reference leak"], has: compares_half, name: LOW_HALF },
    // What an atomic operation fetches from the stack is not traced to what was stored (6.18): another path is taken for one
    // that was seen, with another number there.
    Reason { messages: NUMBERS, has: fetches, name: FETCHED },
];

const LOW_HALF: &str = "the kernel takes the low half of a pointer for all of it";
const FETCHED: &str = "the kernel does not trace what an atomic operation fetches";

fn find(reasons: &'static [Reason], program: &Program, message: &str) -> Option<&'static str> {
    let fits = |reason: &&Reason| reason.messages.iter().any(|part| message.contains(part)) && (reason.has)(program);
    reasons.iter().find(fits).map(|reason| reason.name)
}

/// Why the kernel alone refuses, if that is understood.
pub(crate) fn kernel_alone_refuses(program: &Program, message: &str) -> Option<&'static str> {
    find(KERNEL_ALONE_REFUSES, program, message)
}

/// Why we alone refuse.
pub(crate) fn ring3_alone_refuses(program: &Program, message: &str) -> Option<&'static str> {
    find(RING3_ALONE_REFUSES, program, message)
}

fn any(program: &Program, wanted: impl Fn(Op) -> bool) -> bool {
    (0..program.insns.len()).filter_map(|at| ring3_isa::op(&program.insns, at).ok()).any(wanted)
}

fn divides(program: &Program) -> bool {
    use AluOp::{Div, Mod, Sdiv, Smod};
    any(program, |op| matches!(op, Op::Alu { op: Div | Mod | Sdiv | Smod, .. }))
}

fn negates(program: &Program) -> bool {
    any(program, |op| matches!(op, Op::Neg { .. }))
}

fn subtracts(program: &Program) -> bool {
    any(program, |op| matches!(op, Op::Alu { op: AluOp::Sub, src: Operand::Reg(_), .. }))
}

fn shifts(program: &Program) -> bool {
    use AluOp::{Arsh, Lsh, Rsh};
    any(program, |op| matches!(op, Op::Alu { op: Lsh | Rsh | Arsh, src: Operand::Reg(_), .. }))
}

fn tests_bits(program: &Program) -> bool {
    any(program, |op| matches!(op, Op::Jump { cond: Cond::Set, .. }))
}

fn reads_parts(program: &Program) -> bool {
    any(program, |op| match op {
        Op::Atomic { fetch: true, size, .. } | Op::Load { size, .. } => size != Size::Dw,
        _ => false,
    })
}

fn reads_stack(program: &Program) -> bool {
    any(program, |op| matches!(op, Op::Atomic { fetch: true, .. } | Op::LoadAcquire { .. } | Op::Load { .. }))
}

fn fetches(program: &Program) -> bool {
    any(program, |op| matches!(op, Op::Atomic { fetch: true, .. }))
}

fn compares_with_itself(program: &Program) -> bool {
    any(program, |op| matches!(op, Op::Jump { dst, src: Operand::Reg(src), .. } if dst == src))
}

/// The low half of what a lookup gave is compared with 0.
fn compares_half(program: &Program) -> bool {
    any(program, |op| {
        matches!(op, Op::Jump { width: Width::W32, cond: Cond::Eq | Cond::Ne, src: Operand::Imm(0), .. })
    })
}

/// It does what we know more of than the kernel.
fn knows_more(program: &Program) -> bool {
    [divides, negates, shifts, tests_bits, reads_parts, compares_with_itself].iter().any(|has| has(program))
}

pub(crate) fn calls_back(program: &Program) -> bool {
    program.insns.iter().any(|insn| insn.is_wide() && insn.src() == 4)
}

/// Why what the kernel accepts may fault.
///
/// The kernel (6.18) takes a state that it meets again at a call of `bpf_loop` for the callback's return, which is
/// known to end, also if a loop around the call led there: `for (;;) bpf_loop(0, f, NULL, 0);` is accepted and hangs.
pub(crate) fn explain_fault(program: &Program, fault: &Fault) -> Option<&'static str> {
    match fault.wrong {
        Wrong::Runaway if calls_back(program) => {
            Some("the kernel accepts an endless loop around a call of a callback")
        }
        // What a map is to the kernel (`struct bpf_map`) programs may read there; here there is nothing to be read.
        Wrong::ThroughHandle => Some("the kernel lets programs read what a map is"),
        Wrong::Outside { .. } if compares_half(program) => Some(LOW_HALF),
        Wrong::Outside { .. } if fetches(program) => Some(FETCHED),
        _ => None,
    }
}
