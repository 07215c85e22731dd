//! Instructions in the making: jumps to places that are not written yet.

use ring3_isa::Insn;

pub(crate) const W32: u8 = 0x04;
pub(crate) const W64: u8 = 0x07;
pub(crate) const ADD: u8 = 0x00;
pub(crate) const SUB: u8 = 0x10;
pub(crate) const MUL: u8 = 0x20;
pub(crate) const DIV: u8 = 0x30;
pub(crate) const OR: u8 = 0x40;
pub(crate) const AND: u8 = 0x50;
pub(crate) const LSH: u8 = 0x60;
pub(crate) const RSH: u8 = 0x70;
pub(crate) const MOD: u8 = 0x90;
pub(crate) const XOR: u8 = 0xa0;
pub(crate) const MOV: u8 = 0xb0;
pub(crate) const ARSH: u8 = 0xc0;

pub(crate) const JMP: u8 = 0x05;
pub(crate) const JMP32: u8 = 0x06;
pub(crate) const JEQ: u8 = 0x10;
pub(crate) const JGT: u8 = 0x20;
pub(crate) const JGE: u8 = 0x30;
pub(crate) const JSET: u8 = 0x40;
pub(crate) const JNE: u8 = 0x50;
pub(crate) const JSGT: u8 = 0x60;
pub(crate) const JSGE: u8 = 0x70;
pub(crate) const JLT: u8 = 0xa0;
pub(crate) const JLE: u8 = 0xb0;
pub(crate) const JSLT: u8 = 0xc0;
pub(crate) const JSLE: u8 = 0xd0;
/// Right side is a register.
const X: u8 = 0x08;

/// Size bits of loads and stores.
pub(crate) fn size_bits(bytes: u32) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    }
}

/// The right side of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Right {
    Reg(u8),
    Imm(i32),
}

/// A jump or call whose target comes later.
#[derive(Clone, Copy)]
pub(crate) struct Open(usize);

#[derive(Default)]
pub(crate) struct Code {
    pub(crate) insns: Vec<Insn>,
}

impl Code {
    pub(crate) fn here(&self) -> usize {
        self.insns.len()
    }

    pub(crate) fn push(&mut self, opcode: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn::new(opcode, dst, src, off, imm));
    }

    pub(crate) fn alu(&mut self, width: u8, operation: u8, dst: u8, right: Right) {
        match right {
            Right::Reg(src) => self.push(width | operation | X, dst, src, 0, 0),
            Right::Imm(imm) => self.push(width | operation, dst, 0, 0, imm),
        }
    }

    pub(crate) fn copy(&mut self, dst: u8, src: u8) {
        self.alu(W64, MOV, dst, Right::Reg(src));
    }

    pub(crate) fn set(&mut self, dst: u8, imm: i32) {
        self.alu(W64, MOV, dst, Right::Imm(imm));
    }

    pub(crate) fn add(&mut self, dst: u8, imm: i32) {
        self.alu(W64, ADD, dst, Right::Imm(imm));
    }

    pub(crate) fn wide(&mut self, dst: u8, kind: u8, low: u32, high: u32) {
        self.push(0x18, dst, kind, 0, low as i32);
        self.push(0, 0, 0, 0, high as i32);
    }

    pub(crate) fn load(&mut self, bytes: u32, signed: bool, dst: u8, src: u8, off: i32) {
        let mode = if signed && bytes < 8 { 0x80 } else { 0x60 };
        self.push(0x01 | mode | size_bits(bytes), dst, src, off as i16, 0);
    }

    pub(crate) fn store(&mut self, bytes: u32, dst: u8, off: i32, right: Right) {
        match right {
            Right::Reg(src) => self.push(0x63 | size_bits(bytes), dst, src, off as i16, 0),
            Right::Imm(imm) => self.push(0x62 | size_bits(bytes), dst, 0, off as i16, imm),
        }
    }

    pub(crate) fn call(&mut self, helper: u32) {
        self.push(0x85, 0, 0, 0, helper as i32);
    }

    pub(crate) fn exit(&mut self) {
        self.push(0x95, 0, 0, 0, 0);
    }

    pub(crate) fn jump(&mut self, width: u8, condition: u8, dst: u8, right: Right) -> Open {
        let open = Open(self.here());
        match right {
            Right::Reg(src) => self.push(width | condition | X, dst, src, 0, 0),
            Right::Imm(imm) => self.push(width | condition, dst, 0, 0, imm),
        }
        open
    }

    pub(crate) fn always(&mut self) -> Open {
        let open = Open(self.here());
        self.push(0x05, 0, 0, 0, 0);
        open
    }

    /// A jump leads here.
    pub(crate) fn land(&mut self, open: Open) {
        let here = self.here();
        self.lead(open, here);
    }

    /// A jump leads there.
    pub(crate) fn lead(&mut self, open: Open, target: usize) {
        self.insns[open.0].off = (target as i64 - open.0 as i64 - 1) as i16;
    }

    /// A call or an address of a subprogram that is not written yet.
    pub(crate) fn reference(&mut self, register: Option<u8>) -> Open {
        let open = Open(self.here());
        match register {
            Some(register) => self.wide(register, 4, 0, 0),
            None => self.push(0x85, 0, 1, 0, 0),
        }
        open
    }

    /// The subprogram begins here.
    pub(crate) fn begin(&mut self, open: Open) {
        self.insns[open.0].imm = (self.here() as i64 - open.0 as i64 - 1) as i32;
    }
}
