//! Random programs for verifiers to judge, most of them nearly right.
//!
//! Runs: in tests and fuzz targets.
//! May touch: nothing.
//! Never: gives another program for the same seed and number.
//! Start reading at: `write.rs`, `joins.rs`.
//!
//! A program of random instructions is refused at its second one and shows nothing. So the writer keeps a rough
//! model of what each register holds and writes what compilers write: bounds checks, lookups, loops, calls. Then it
//! slips, seldom: a bound off by one, a check left out, a wrong register or width. A verifier's mistakes
//! are where a program is wrong by that little.
#![forbid(unsafe_code)]

mod bounds;
mod code;
mod joins;
mod model;
mod random;
mod shrink;
mod steps;
mod write;

use ring3_isa::{Insn, op};

pub use joins::joins;
pub use random::Random;
pub use shrink::shrink;
pub use write::program;

/// What a map is to a program; programs name maps by their index in [`MAPS`] (`BPF_PSEUDO_MAP_IDX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Elements at most.
    pub entries: u32,
    /// Its only value; programs may not write it, and it is frozen.
    pub constant: Option<&'static [u8]>,
}

const fn map(map_type: u32, key_bytes: u32, value_bytes: u32, entries: u32) -> Map {
    Map { map_type, key_bytes, value_bytes, entries, constant: None }
}

/// Numbers at edges, as constants that verifiers read through.
const CONSTANT: [u8; 40] = [
    7, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0xff, 0xff, 0xff, 16, 0, 0, 0,
    8, 0, 0, 0, 0x80, 0xff, 0x7f, 0, 1, 0, 0, 0,
];

/// The maps of all programs.
pub const MAPS: [Map; 7] = [
    map(ring3_uapi::bpf::map_type::ARRAY, 4, 48, 4),
    map(ring3_uapi::bpf::map_type::HASH, 8, 32, 8),
    map(ring3_uapi::bpf::map_type::ARRAY, 4, 16, 1),
    Map { constant: Some(&CONSTANT), ..map(ring3_uapi::bpf::map_type::ARRAY, 4, 40, 1) },
    map(ring3_uapi::bpf::map_type::RINGBUF, 0, 0, 4096),
    map(ring3_uapi::bpf::map_type::PROG_ARRAY, 4, 4, 4),
    map(ring3_uapi::bpf::map_type::HASH, 4, 7, 8),
];

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// `BPF_PROG_TYPE_*`: `SOCKET_FILTER`, `XDP` or `KPROBE`.
    pub prog_type: u32,
    /// Instructions.
    pub insns: Vec<Insn>,
}

/// A program's text, a line per instruction.
pub fn text(insns: &[Insn]) -> String {
    let mut lines = String::new();
    let mut at = 0;
    while at < insns.len() {
        let shown = op(insns, at).map_or_else(|error| format!("{:?}: {error}", insns[at]), |op| op.to_string());
        lines += &format!("{at:4}: {shown}\n");
        at += if insns[at].is_wide() { 2 } else { 1 };
    }
    lines
}
