//! Mnemonics to instructions: the assembler language of ubpf, rbpf and the bpf_conformance suite.
//!
//! ```text
//! # comments begin with a number sign, a semicolon or two slashes
//!     mov32 %r0, 0x10             # operations on 64 bits, or on 32 with the suffix
//!     ldxw %r2, [%r1+4]           # b, h, w, dw; ldxsb, ldxsh, ldxsw extend the sign
//!     stdw [%r10-8], -1           # a constant; stxdw: a register
//!     lddw %r3, 0x1122334455667788
//!     lock fetch add [%r10-8], %r1
//!     jne %r0, 1, out             # a label, or +3; `exit` is the label of the first exit
//!     call 5                      # a helper; also `call local sub`, `call %r2`
//! out:
//!     exit
//! ```
//!
//! Registers may stand without `%`.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use crate::Insn;
use crate::assemble::{AssembleError, Assembler, Cursor, FETCHES, Field, Parsed};
use crate::code::{
    BPF_ALU, BPF_ALU64, BPF_ATOMIC, BPF_CALL, BPF_CALLX, BPF_EXIT, BPF_JMP, BPF_JMP32, BPF_LD_IMM64, BPF_LDX,
    BPF_MEM, BPF_MEMSX, BPF_PSEUDO_CALL, BPF_ST, BPF_STX, BPF_X,
};

/// Operations: name, code, offset field.
const OPERATIONS: [(&str, u8, i16); 14] = [
    ("add", 0x00, 0),
    ("sub", 0x10, 0),
    ("mul", 0x20, 0),
    ("div", 0x30, 0),
    ("sdiv", 0x30, 1),
    ("or", 0x40, 0),
    ("and", 0x50, 0),
    ("lsh", 0x60, 0),
    ("rsh", 0x70, 0),
    ("mod", 0x90, 0),
    ("smod", 0x90, 1),
    ("xor", 0xa0, 0),
    ("mov", 0xb0, 0),
    ("arsh", 0xc0, 0),
];
const NEG: u8 = 0x80;

/// Conditional jumps.
const CONDITIONS: [(&str, u8); 11] = [
    ("jeq", 0x10),
    ("jgt", 0x20),
    ("jge", 0x30),
    ("jset", 0x40),
    ("jne", 0x50),
    ("jsgt", 0x60),
    ("jsge", 0x70),
    ("jlt", 0xa0),
    ("jle", 0xb0),
    ("jslt", 0xc0),
    ("jsle", 0xd0),
];

/// Byte orders: name, operation code.
const SWAPS: [(&str, u8); 4] = [("le", 0xd4), ("be", 0xdc), ("bswap", 0xd7), ("swap", 0xd7)];
const SIZES: [(&str, u8); 4] = [("b", 0x10), ("h", 0x08), ("w", 0x00), ("dw", 0x18)];
/// Atomic operations: name, operation.
const ATOMICS: [(&str, i32); 4] = [("add", 0x00), ("or", 0x40), ("and", 0x50), ("xor", 0xa0)];
/// What of an atomic operation's number says that the old value is wanted (`BPF_FETCH`).
const FETCH: i32 = 1;
/// The label of the first exit.
const EXIT: &str = "exit";

/// The program that a text in mnemonics describes.
///
/// # Errors
/// The line, and what is wrong with it.
pub fn assemble_mnemonics(text: &str) -> Result<Vec<Insn>, AssembleError> {
    Assembler::run(text, &["#", ";", "//"], |assembler, cursor| assembler.mnemonic(cursor))
}

/// The meaning of a name in a table.
fn known<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, meaning)| *meaning)
}

impl<'a> Cursor<'a> {
    fn mnemonic_register(&mut self) -> Parsed<u8> {
        self.eat("%");
        self.register('r')
    }

    /// A register, or a constant of 32 bits.
    fn right_side(&mut self) -> Parsed<(u8, u8, i32)> {
        let before = self.0;
        match self.mnemonic_register() {
            Ok(register) => Ok((BPF_X, register, 0)),
            Err(_) => {
                self.0 = before;
                Ok((0, 0, self.bits32()?))
            }
        }
    }

    /// `[%r10-8]`
    fn bracketed(&mut self) -> Parsed<(u8, i16)> {
        self.want("[")?;
        let base = self.mnemonic_register()?;
        if self.eat("]") {
            return Ok((base, 0));
        }
        let off = self.signed()?;
        self.want("]")?;
        Ok((base, off))
    }
}

impl<'a> Assembler<'a> {
    fn mnemonic(&mut self, cursor: &mut Cursor<'a>) -> Parsed<()> {
        let before = cursor.0;
        let word = cursor.word().unwrap_or_default();
        let (stem, narrow) = word.strip_suffix("32").map_or((word, false), |stem| (stem, true));
        let class = if narrow { BPF_ALU } else { BPF_ALU64 };
        if let Some((_, operation, off)) = OPERATIONS.iter().find(|(name, ..)| *name == stem) {
            let dst = cursor.mnemonic_register()?;
            cursor.want(",")?;
            let (by, src, imm) = cursor.right_side()?;
            return self.push(cursor, Insn::new(class | operation | by, dst, src, *off, imm));
        }
        if let Some(condition) = known(&CONDITIONS, stem) {
            let class = if narrow { BPF_JMP32 } else { BPF_JMP };
            let dst = cursor.mnemonic_register()?;
            cursor.want(",")?;
            let (by, src, imm) = cursor.right_side()?;
            cursor.want(",")?;
            return self.jump(cursor, Insn::new(class | condition | by, dst, src, 0, imm), Field::Off);
        }
        match stem {
            "neg" => {
                let dst = cursor.mnemonic_register()?;
                return self.push(cursor, Insn::new(class | NEG, dst, 0, 0, 0));
            }
            "ja" if narrow => return self.jump(cursor, Insn::new(BPF_JMP32, 0, 0, 0, 0), Field::Imm),
            "ja" => return self.jump(cursor, Insn::new(BPF_JMP, 0, 0, 0, 0), Field::Off),
            EXIT => {
                self.labels.entry(EXIT).or_insert(self.insns.len());
                return self.push(cursor, Insn::new(BPF_EXIT, 0, 0, 0, 0));
            }
            "call" => return self.mnemonic_call(cursor),
            "lock" => return self.mnemonic_lock(cursor),
            "lddw" => {
                let dst = cursor.mnemonic_register()?;
                cursor.want(",")?;
                let value = cursor.number()?;
                let value = u64::try_from(value).or_else(|_| i64::try_from(value).map(|value| value as u64));
                let value = value.map_err(|_| "it does not fit into 64 bits".to_owned())?;
                self.insns.push(Insn::new(BPF_LD_IMM64, dst, 0, 0, value as i32));
                return self.push(cursor, Insn::new(0, 0, 0, 0, (value >> 32) as i32));
            }
            _ => {}
        }
        if let Some((opcode, bits)) = swap_of(word) {
            let dst = cursor.mnemonic_register()?;
            return self.push(cursor, Insn::new(opcode, dst, 0, 0, bits));
        }
        if let Some(rest) = word.strip_prefix("movsx") {
            return self.mnemonic_move(cursor, rest);
        }
        if let Some(size) = word.strip_prefix("ldx").and_then(size_of) {
            let dst = cursor.mnemonic_register()?;
            cursor.want(",")?;
            let (base, off) = cursor.bracketed()?;
            return self.push(cursor, Insn::new(BPF_LDX | size, dst, base, off, 0));
        }
        if let Some(size) = word.strip_prefix("stx").and_then(|size| known(&SIZES, size)) {
            let (base, off) = cursor.bracketed()?;
            cursor.want(",")?;
            let src = cursor.mnemonic_register()?;
            return self.push(cursor, Insn::new(BPF_STX | BPF_MEM | size, base, src, off, 0));
        }
        if let Some(size) = word.strip_prefix("st").and_then(|size| known(&SIZES, size)) {
            let (base, off) = cursor.bracketed()?;
            cursor.want(",")?;
            let imm = cursor.bits32()?;
            return self.push(cursor, Insn::new(BPF_ST | BPF_MEM | size, base, 0, off, imm));
        }
        Err(format!("`{before}` is no instruction"))
    }

    /// `movsx864`: from 8 bits to 64.
    fn mnemonic_move(&mut self, cursor: &mut Cursor<'a>, widths: &str) -> Parsed<()> {
        let (class, off) = match widths {
            "832" => (BPF_ALU, 8),
            "1632" => (BPF_ALU, 16),
            "864" => (BPF_ALU64, 8),
            "1664" => (BPF_ALU64, 16),
            "3264" => (BPF_ALU64, 32),
            _ => return Err(format!("`movsx{widths}` is no instruction")),
        };
        let dst = cursor.mnemonic_register()?;
        cursor.want(",")?;
        let src = cursor.mnemonic_register()?;
        self.push(cursor, Insn::new(class | 0xb0 | BPF_X, dst, src, off, 0))
    }

    fn mnemonic_call(&mut self, cursor: &mut Cursor<'a>) -> Parsed<()> {
        if cursor.keyword("local") {
            return self.jump(cursor, Insn::new(BPF_CALL, 0, BPF_PSEUDO_CALL, 0, 0), Field::Imm);
        }
        let (by, register, imm) = cursor.right_side()?;
        let opcode = if by == BPF_X { BPF_CALLX } else { BPF_CALL };
        self.push(cursor, Insn::new(opcode, register, 0, 0, imm))
    }

    /// `lock fetch add32 [%r10-8], %r1`
    fn mnemonic_lock(&mut self, cursor: &mut Cursor<'a>) -> Parsed<()> {
        let fetch = cursor.keyword("fetch");
        let word = cursor.word().unwrap_or_default();
        let (stem, size) = word.strip_suffix("32").map_or((word, 0x18), |stem| (stem, 0x00));
        let plain = known(&ATOMICS, stem).map(|operation| operation | if fetch { FETCH } else { 0 });
        let operation = plain.or_else(|| known(&FETCHES, stem).filter(|_| !fetch));
        let operation = operation.ok_or_else(|| format!("`{word}` is no atomic operation"))?;
        let (base, off) = cursor.bracketed()?;
        cursor.want(",")?;
        let src = cursor.mnemonic_register()?;
        self.push(cursor, Insn::new(BPF_STX | BPF_ATOMIC | size, base, src, off, operation))
    }
}

/// `be16` and the like: operation code, bits.
fn swap_of(word: &str) -> Option<(u8, i32)> {
    let (name, bits) = word.split_at(word.find(|c: char| c.is_ascii_digit())?);
    let bits = [16, 32, 64].into_iter().find(|known| known.to_string() == bits)?;
    Some((known(&SWAPS, name)?, bits))
}

/// Size and mode of a load.
fn size_of(word: &str) -> Option<u8> {
    match word.strip_prefix('s') {
        Some(size) => known(&SIZES[..3], size).map(|size| size | BPF_MEMSX),
        None => known(&SIZES, word).map(|size| size | BPF_MEM),
    }
}
