//! Finds a function's caller, and the caller's preserved registers, by reading the function's code.
//!
//! Unwind tables contain the same, but not all code has them. This module interprets a function's instructions from the first
//! one on, over both ways of each conditional branch. `State` is what it knows before an instruction: which registers hold an
//! address in the frame (CFA + n) or what a preserved register held at entry, and which words of the frame hold the latter. Where
//! ways meet, it keeps what they agree on. So the result does not depend on the order, and a contradiction is an error.
//!
//! Three ways are guesses (`reading.rs`). A call may never return: then the code behind it is another part of the function. A
//! jump table leads to code that no direct branch leads to; so does the unwinder, to landing pads. A guess is refuted by the code
//! that it leads to: by `rsp` at a return, at a call (whose `rsp` is aligned), or where a better way arrives. Guesses never change
//! what better ways found.
//!
//! The code must keep a compiler's conventions: calls preserve `rsp` and the preserved registers, and a store through a pointer
//! or to an indexed element does not overwrite a saved register. Known limits: code that only a jump table leads to, right behind
//! a call that never returns and has arguments on the stack, may get that call's frame. In a loop that probes the stack (frames of
//! more than some pages) there is no answer.

mod reading;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;

use self::reading::Reading;
use self::state::{PRESERVED, WORD};

/// The registers that a function preserves by the System V ABI, and `rip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The instruction that faulted, or a return address.
    pub rip: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// `rbx`, `rbp`, `r12`, `r13`, `r14` and `r15`.
    pub preserved: [u64; 6],
}

/// The register from which a CFA is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The stack pointer.
    Rsp,
    /// A register of [`Registers::preserved`], by its index there.
    Preserved(usize),
}

/// A function's frame before an instruction. Its CFA ("canonical frame address", a term of DWARF) is the address behind the
/// return address, which is `rsp` in the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The register from which the CFA is computed.
    pub base: Base,
    /// CFA - `base`.
    pub distance: i64,
    /// For each register of [`Registers::preserved`]: address of the word that has its value at entry, minus the CFA. `None`:
    /// the register still has it.
    pub saved: [Option<i64>; 6],
}

/// Why the frame is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The address is not in an instruction that the function executes.
    NotReached,
    /// No register has a known distance to the CFA.
    NoBase,
    /// This register of [`Registers::preserved`] has another value than at entry, which is not saved.
    Lost(usize),
    /// The function has too many instructions.
    TooLong,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::NotReached => f.write_str("the address is not in an instruction that the function executes"),
            Unknown::NoBase => f.write_str("no register has a known distance to the CFA"),
            Unknown::Lost(index) => write!(f, "the caller's {:?} is neither saved nor unchanged", PRESERVED[*index]),
            Unknown::TooLong => f.write_str("the function has too many instructions"),
        }
    }
}

impl std::error::Error for Unknown {}

/// The frame before the instruction that contains the address `at`, of a function whose first instruction is at `function`. `code`
/// lies at `address`. It should end where the function ends: code behind that costs time, and perhaps the answer.
///
/// For a function that has called another one, `at` is its return address minus 1: the call may be the last instruction.
pub fn frame_at(code: &[u8], address: u64, function: u64, at: u64) -> Result<Frame, Unknown> {
    let mut reading = Reading::of(code, address, function)?;
    reading.state_at(at)?.frame()
}

/// The caller's registers, from those of a function that has `frame`. `read` reads a word of the stack.
pub fn caller(registers: &Registers, frame: &Frame, read: impl Fn(u64) -> Option<u64>) -> Option<Registers> {
    let base = match frame.base {
        Base::Rsp => registers.rsp,
        Base::Preserved(index) => *registers.preserved.get(index)?,
    };
    let cfa = base.wrapping_add_signed(frame.distance);
    let mut preserved = registers.preserved;
    for (value, saved) in preserved.iter_mut().zip(frame.saved) {
        if let Some(offset) = saved {
            *value = read(cfa.wrapping_add_signed(offset))?;
        }
    }
    Some(Registers { rip: read(cfa.wrapping_add_signed(-WORD))?, rsp: cfa, preserved })
}
