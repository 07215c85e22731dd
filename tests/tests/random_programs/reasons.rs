//! Where verdicts may differ, and why: what is not here is a failure.

use ring3_generate::Program;
use ring3_interp::shadow::{Fault, Wrong};

/// A difference that is understood.
pub(crate) struct Reason {
    /// Part of the message of the side that refuses.
    message: &'static str,
    /// Its name in the test's table.
    pub(crate) name: &'static str,
}

/// The kernel refuses, we may accept.
const KERNEL_ALONE_REFUSES: &[Reason] = &[
    // Its own limits of patience: what is behind them is not unsafe. Ours are others.
    Reason { message: "BPF program is too large. Processed", name: "the kernel gave up: instructions" },
    Reason { message: "jumps is too complex", name: "the kernel gave up: branches" },
    // Its own assertions (6.18: `No program to jit`, `stack slot`), seen with callbacks behind dead code.
    Reason { message: "verifier bug", name: "the kernel contradicts itself" },
];

/// We refuse, the kernel may accept.
const RING3_ALONE_REFUSES: &[Reason] =
    &[Reason { message: "unknown func bpf_", name: "a helper that ring3 does not have" }];
/// As in `explain_fault`.
const ENDLESS: &[Reason] =
    &[Reason { message: "infinite loop detected", name: "we refuse an endless loop around a call of a callback" }];

fn find(reasons: &'static [Reason], message: &str) -> Option<&'static str> {
    reasons.iter().find(|reason| message.contains(reason.message)).map(|reason| reason.name)
}

/// Why the kernel alone refuses, if that is understood.
pub(crate) fn kernel_alone_refuses(message: &str) -> Option<&'static str> {
    find(KERNEL_ALONE_REFUSES, message)
}

/// Why we alone refuse.
pub(crate) fn ring3_alone_refuses(program: &Program, message: &str) -> Option<&'static str> {
    let endless = || find(ENDLESS, message).filter(|_| calls_back(program));
    find(RING3_ALONE_REFUSES, message).or_else(endless)
}

pub(crate) fn calls_back(program: &Program) -> bool {
    program.insns.iter().any(|insn| insn.is_wide() && insn.src() == 4)
}

/// Why what the kernel accepts may fault.
///
/// The kernel (6.18) takes a state that it meets again at a call of `bpf_loop` for the callback's return, which is
/// known to end, also if a loop around the call led there: `for (;;) bpf_loop(0, f, NULL, 0);` is accepted and hangs.
pub(crate) fn explain_fault(program: &Program, fault: &Fault) -> Option<&'static str> {
    let endless = fault.wrong == Wrong::Runaway && calls_back(program);
    endless.then_some("the kernel accepts an endless loop around a call of a callback")
}
