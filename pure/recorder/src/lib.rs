//! Programs that write events into ring buffers: what they read, and their instructions.
//!
//! Runs: in `ring3 trace` and `ring3 record`, before they load anything. It computes and does no I/O.
//! May touch: what it is given.
//! Never: runs a program.
//! Start reading at: `Recipe`, then `program::once`.
#![forbid(unsafe_code)]

use ring3_event::EventType;

pub mod ends;
pub mod groups;
mod lines;
mod names;
pub mod probes;
pub mod program;
pub mod stops;
mod structures;
pub mod syscalls;
pub mod variants;

/// How events of a type are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The type.
    pub of: EventType,
    /// Where its fields come from, in their order.
    pub sources: Vec<Source>,
}

impl Recipe {
    /// The same without the fields that are not wanted, by their indexes and names.
    pub fn with_fields(&self, wanted: impl Fn(usize, &str) -> bool) -> Recipe {
        let kept = |index: &usize| wanted(*index, &self.of.fields[*index].name);
        let kept: Vec<usize> = (0..self.sources.len()).filter(kept).collect();
        let fields = kept.iter().map(|index| self.of.fields[*index].clone()).collect();
        let sources = kept.iter().map(|index| self.sources[*index].clone()).collect();
        Recipe { of: EventType { fields, ..self.of.clone() }, sources }
    }
}

/// Where a field comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A number.
    Number(Operand),
    /// Text in the target's memory, with a zero byte at its end.
    Text(Operand),
    /// Bytes in the target's memory.
    Bytes {
        /// Their address.
        address: Operand,
        /// How many units. A negative number counts as 0.
        length: Operand,
        /// Bytes of a unit.
        unit: u32,
    },
    /// The texts to which an array of addresses leads, whose last one is null. Of each, so many bytes with a zero byte at the end.
    Texts {
        /// The array's address.
        address: Operand,
        /// Bytes.
        each: u32,
    },
    /// The nanoseconds between start and end of the call.
    Duration,
}

/// A number of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A word of the program's context, by its offset in bytes.
    Context(i16),
    /// A part of one, 1, 2, 4 or 8 bytes at an offset that is a multiple of its size.
    Part {
        /// Its offset in bytes.
        at: i16,
        /// Its size.
        bytes: u8,
        /// Whether its sign is extended.
        signed: bool,
    },
    /// An argument of a system call that has begun, from 0 to 5: the context at its end has no arguments.
    Argument(u8),
    /// The `int` to which an argument leads.
    Pointed(u8),
    /// Bits of a word of 32 bits of the running thread's `task_struct`.
    Task {
        /// The word's offset in bytes.
        at: u32,
        /// The first of the bits.
        shift: u8,
        /// How many, less than 32.
        bits: u8,
    },
    /// Always the same.
    Constant(i64),
    /// In the target's memory.
    Memory {
        /// Where.
        address: Address,
        /// 1, 2, 4 or 8 bytes.
        bytes: u8,
        /// Whether its sign is extended.
        signed: bool,
    },
}

/// An address in the target: base + index * scale + displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// A word of the context.
    pub base: Option<i16>,
    /// Another one, and what it is multiplied with (1, 2, 4 or 8).
    pub index: Option<(i16, u8)>,
    /// Bytes.
    pub displacement: i64,
}
