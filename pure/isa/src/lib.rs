//! eBPF instructions (RFC 9669, v1 to v4): decoding, encoding, text.
//!
//! Runs: anywhere.
//! May touch: nothing.
//! Never: judges a program; that is the verifier's.
//! Start reading at: `op.rs`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod assemble;
mod mnemonic;
mod op;
mod text;

use alloc::vec::Vec;

pub use assemble::{AssembleError, assemble};
pub use mnemonic::assemble_mnemonics;
pub use op::{AluOp, AtomicOp, Call, Cond, DecodeError, Immediate, Op, Operand, Size, Width, op};
pub use text::{Text, listing, text};

/// Instruction classes and modes, by the kernel's names (RFC 9669 section 3).
#[expect(missing_docs, reason = "the names are those of RFC 9669")]
pub mod code {
    pub const BPF_LD: u8 = 0x00;
    pub const BPF_LDX: u8 = 0x01;
    pub const BPF_ST: u8 = 0x02;
    pub const BPF_STX: u8 = 0x03;
    pub const BPF_ALU: u8 = 0x04;
    pub const BPF_JMP: u8 = 0x05;
    pub const BPF_JMP32: u8 = 0x06;
    pub const BPF_ALU64: u8 = 0x07;
    pub const BPF_X: u8 = 0x08;
    pub const BPF_IMM: u8 = 0x00;
    pub const BPF_ABS: u8 = 0x20;
    pub const BPF_IND: u8 = 0x40;
    pub const BPF_MEM: u8 = 0x60;
    pub const BPF_MEMSX: u8 = 0x80;
    pub const BPF_ATOMIC: u8 = 0xc0;
    pub const BPF_LD_IMM64: u8 = 0x18;
    pub const BPF_CALL: u8 = 0x85;
    /// A call of the helper whose number is in a register.
    pub const BPF_CALLX: u8 = 0x8d;
    pub const BPF_EXIT: u8 = 0x95;
    pub const BPF_MOV_X: u8 = 0xbf;
    pub const BPF_MAY_GOTO: u8 = 0xe5;
    /// The source "register" of a `BPF_CALL` of a subprogram; of one of a kernel function; of none, a helper's.
    pub const BPF_PSEUDO_CALL: u8 = 1;
    pub const BPF_PSEUDO_KFUNC_CALL: u8 = 2;
    /// The source "register" of a `BPF_LD_IMM64` that is not a number.
    pub const BPF_PSEUDO_BTF_ID: u8 = 3;
    pub const BPF_PSEUDO_FUNC: u8 = 4;
    pub const BPF_PSEUDO_MAP_IDX: u8 = 5;
    pub const BPF_PSEUDO_MAP_IDX_VALUE: u8 = 6;
    /// `BPF_ADDR_SPACE_CAST`, the offset of a `BPF_MOV_X`.
    pub const ADDR_SPACE_CAST: i16 = 1;
}

/// An instruction as it lies in memory, 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Operation code.
    pub opcode: u8,
    /// Destination register in the low half, source in the high half.
    pub regs: u8,
    /// Offset.
    pub off: i16,
    /// Immediate value.
    pub imm: i32,
}

impl Insn {
    /// An instruction from its parts.
    pub const fn new(opcode: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
        Insn { opcode, regs: dst & 0xf | src << 4, off, imm }
    }

    /// Destination register.
    pub const fn dst(&self) -> u8 {
        self.regs & 0xf
    }

    /// Source register.
    pub const fn src(&self) -> u8 {
        self.regs >> 4
    }

    /// Class, the low three bits.
    pub const fn class(&self) -> u8 {
        self.opcode & 7
    }

    /// The first half of a 16-byte `ld_imm64`.
    pub const fn is_wide(&self) -> bool {
        self.opcode == code::BPF_LD_IMM64
    }

    /// From little-endian bytes.
    pub const fn from_bytes(b: [u8; 8]) -> Insn {
        Insn {
            opcode: b[0],
            regs: b[1],
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// To little-endian bytes.
    pub const fn to_bytes(self) -> [u8; 8] {
        let (off, imm) = (self.off.to_le_bytes(), self.imm.to_le_bytes());
        [self.opcode, self.regs, off[0], off[1], imm[0], imm[1], imm[2], imm[3]]
    }
}

/// Decodes a program; `None` if the bytes are not whole instructions.
pub fn decode(bytes: &[u8]) -> Option<Vec<Insn>> {
    let whole = bytes.len().is_multiple_of(8);
    whole.then(|| bytes.chunks_exact(8).map(|b| Insn::from_bytes(b.try_into().unwrap_or_default())).collect())
}

/// Encodes a program.
pub fn encode(insns: &[Insn]) -> Vec<u8> {
    insns.iter().flat_map(|insn| insn.to_bytes()).collect()
}
