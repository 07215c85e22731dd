//! Compact unwind tables: from an instruction to the rule that finds the caller's frame.
//!
//! Runs: in targets, possibly in a signal handler; in the server and in tests.
//! May touch: the bytes it is given. `caller` reads the stack through a function of whoever calls it.
//! Never: allocates, panics.
//! Start reading at: `Rule`.
#![no_std]
#![forbid(unsafe_code)]

mod step;
mod table;

pub use step::{Registers, Step, caller};
pub use table::{BLOCK_BYTES, RULES_MAX, Shape, Table};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How to find the caller's frame from a function's registers at an instruction: a row of DWARF's call frame information, as far as
/// it is needed to go on. The CFA ("canonical frame address") is the stack pointer in the caller, and the return address
/// lies just below it. 16 bytes. (A program may have any bytes here: nothing but the result depends on them.)
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Rule {
    /// `Rule::NONE` ... `Rule::SIGNAL`.
    pub kind: u8,
    /// The register from which the CFA is computed: [`Rule::RSP`], [`Rule::RBP`] or [`Rule::RBX`].
    pub base: u8,
    /// Where the caller's `rbp` is: [`Rule::SAME`] ... [`Rule::LOST`].
    pub rbp: u8,
    /// Where the caller's `rbx` is.
    pub rbx: u8,
    /// Is added to the base, bytes.
    pub offset: i32,
    /// A second number, by the kind.
    pub more: i32,
    /// Where the caller's `rbp` is, words from what `rbp` says.
    pub rbp_at: i16,
    /// Where the caller's `rbx` is, words from what `rbx` says.
    pub rbx_at: i16,
}

impl Rule {
    /// Of `kind`: nothing is known.
    pub const NONE: u8 = 0;
    /// Of `kind`: there is no caller, or none that can be found.
    pub const END: u8 = 1;
    /// Of `kind`: the CFA is base + offset.
    pub const PLAIN: u8 = 2;
    /// Of `kind`: the CFA is the word at base + offset, plus `more`.
    pub const LOADED: u8 = 3;
    /// Of `kind`: a procedure linkage table. The CFA is base + offset, and a word further from byte `more` of each 16 bytes on.
    pub const LINKAGE: u8 = 4;
    /// Of `kind`: what signal handlers return to. A `struct ucontext` lies at the stack pointer
    /// (arch/x86/include/uapi/asm/ucontext.h).
    pub const SIGNAL: u8 = 5;

    /// Of `base`.
    pub const RSP: u8 = 0;
    /// Of `base`.
    pub const RBP: u8 = 1;
    /// Of `base`.
    pub const RBX: u8 = 2;

    /// Of `rbp` and `rbx`: it still has the caller's value.
    pub const SAME: u8 = 0;
    /// Of `rbp` and `rbx`: in the stack, counted from the CFA.
    pub const FROM_CFA: u8 = 1;
    /// Of `rbp` and `rbx`: in the stack, counted from the function's own `rbp`.
    pub const FROM_RBP: u8 = 2;
    /// Of `rbp` and `rbx`: it cannot be found.
    pub const LOST: u8 = 3;

    /// There is no caller, or none that can be found.
    pub const fn end() -> Rule {
        Rule { kind: Rule::END, ..Rule::none() }
    }

    /// What signal handlers return to.
    pub const fn signal() -> Rule {
        Rule { kind: Rule::SIGNAL, ..Rule::none() }
    }

    /// Nothing is known.
    pub const fn none() -> Rule {
        Rule {
            kind: Rule::NONE,
            base: Rule::RSP,
            rbp: Rule::SAME,
            rbx: Rule::SAME,
            offset: 0,
            more: 0,
            rbp_at: 0,
            rbx_at: 0,
        }
    }
}
