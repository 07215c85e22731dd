//! Instructions as what they do.

use core::fmt;

use crate::Insn;
use crate::code::{
    BPF_ABS, BPF_ALU, BPF_ALU64, BPF_ATOMIC, BPF_IND, BPF_JMP, BPF_JMP32, BPF_LD_IMM64, BPF_LDX, BPF_MEM, BPF_MEMSX,
    BPF_ST, BPF_STX, BPF_X,
};

/// Width of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Width {
    W32,
    W64,
}

/// Size of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "bytes are in `bytes`")]
pub enum Size {
    B,
    H,
    W,
    Dw,
}

impl Size {
    /// Bytes.
    pub const fn bytes(self) -> u8 {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::Dw => 8,
        }
    }

    pub(crate) const fn decode(opcode: u8) -> Size {
        match opcode & 0x18 {
            0x00 => Size::W,
            0x08 => Size::H,
            0x10 => Size::B,
            _ => Size::Dw,
        }
    }
}

/// A register or a constant (sign-extended).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Register.
    Reg(u8),
    /// Constant.
    Imm(i32),
}

/// Arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of RFC 9669")]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    Div,
    Sdiv,
    Or,
    And,
    Lsh,
    Rsh,
    Mod,
    Smod,
    Xor,
    Mov,
    Arsh,
}

impl AluOp {
    /// As the kernel's log writes it.
    pub const fn sign(self) -> &'static str {
        match self {
            AluOp::Add => "+=",
            AluOp::Sub => "-=",
            AluOp::Mul => "*=",
            AluOp::Div => "/=",
            AluOp::Sdiv => "s/=",
            AluOp::Or => "|=",
            AluOp::And => "&=",
            AluOp::Lsh => "<<=",
            AluOp::Rsh => ">>=",
            AluOp::Mod => "%=",
            AluOp::Smod => "s%=",
            AluOp::Xor => "^=",
            AluOp::Mov => "=",
            AluOp::Arsh => "s>>=",
        }
    }
}

/// Conditions of jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of RFC 9669")]
pub enum Cond {
    Eq,
    Gt,
    Ge,
    Set,
    Ne,
    Sgt,
    Sge,
    Lt,
    Le,
    Slt,
    Sle,
}

impl Cond {
    /// Whether it holds between a number and itself, where that is the same for all numbers.
    pub const fn with_itself(self) -> Option<bool> {
        match self {
            Cond::Eq | Cond::Ge | Cond::Le | Cond::Sge | Cond::Sle => Some(true),
            Cond::Ne | Cond::Gt | Cond::Lt | Cond::Sgt | Cond::Slt => Some(false),
            Cond::Set => None,
        }
    }
}

/// Atomic operations (RFC 9669 section 5.3, and load-acquire/store-release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of RFC 9669")]
pub enum AtomicOp {
    Add,
    Or,
    And,
    Xor,
    Xchg,
    Cmpxchg,
}

/// What a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A helper, by number.
    Helper(u32),
    /// A subprogram, by instruction index.
    Local(usize),
    /// A kernel function, by BTF id.
    Kfunc(u32),
    /// A helper, by the number in a register (`callx`), which RFC 9669 knows and the kernel does not.
    Register(u8),
}

/// What a 64-bit immediate load loads (`BPF_PSEUDO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// A number.
    Value(u64),
    /// A map, by file descriptor.
    MapFd(i32),
    /// The value of a map's only element plus an offset, by file descriptor.
    MapValue(i32, u32),
    /// A kernel variable, by BTF id.
    BtfId(u32),
    /// A subprogram's address, by instruction index.
    Func(usize),
    /// A map, by index in `fd_array`.
    MapIdx(u32),
    /// As `MapValue`, by index in `fd_array`.
    MapIdxValue(u32, u32),
}

/// An instruction as what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `dst op= src`
    Alu {
        /// 32-bit results are zero-extended.
        width: Width,
        /// Operation.
        op: AluOp,
        /// Left side and result.
        dst: u8,
        /// Right side.
        src: Operand,
    },
    /// `dst = (sN)src`
    MovSx {
        /// Width of the result.
        width: Width,
        /// Bits that are extended: 8, 16 or 32.
        bits: u8,
        /// Result.
        dst: u8,
        /// Source.
        src: u8,
    },
    /// `dst = -dst`
    Neg {
        /// Width.
        width: Width,
        /// Register.
        dst: u8,
    },
    /// `dst = le/be/bswapN(dst)`
    Swap {
        /// Register.
        dst: u8,
        /// 16, 32 or 64.
        bits: u8,
        /// Bytes are swapped (`be` here, or `bswap`); otherwise only cut (`le`).
        swap: bool,
    },
    /// `dst = *(size *)(src + off)`
    Load {
        /// Size.
        size: Size,
        /// Sign-extended.
        signed: bool,
        /// Result.
        dst: u8,
        /// Base.
        src: u8,
        /// Offset.
        off: i16,
    },
    /// `*(size *)(dst + off) = src`
    Store {
        /// Size.
        size: Size,
        /// Base.
        dst: u8,
        /// Value.
        src: Operand,
        /// Offset.
        off: i16,
    },
    /// Atomic read-modify-write at `dst + off`.
    Atomic {
        /// `W` or `Dw`.
        size: Size,
        /// Operation.
        op: AtomicOp,
        /// The old value goes to `src` (to r0 for cmpxchg).
        fetch: bool,
        /// Base.
        dst: u8,
        /// Value.
        src: u8,
        /// Offset.
        off: i16,
    },
    /// `dst = load_acquire(src + off)`
    LoadAcquire {
        /// Size.
        size: Size,
        /// Result.
        dst: u8,
        /// Base.
        src: u8,
        /// Offset.
        off: i16,
    },
    /// `store_release(dst + off, src)`
    StoreRelease {
        /// Size.
        size: Size,
        /// Base.
        dst: u8,
        /// Value.
        src: u8,
        /// Offset.
        off: i16,
    },
    /// Conditional jump to an instruction index.
    Jump {
        /// Width of the comparison.
        width: Width,
        /// Condition.
        cond: Cond,
        /// Left side.
        dst: u8,
        /// Right side.
        src: Operand,
        /// Index.
        target: usize,
    },
    /// Jump to an instruction index.
    Ja(usize),
    /// Jump to an instruction index once the program has gone round too often (`may_goto`).
    MayGoto(usize),
    /// `r0 = *(size *)skb[src + imm]`, a legacy packet load (`ld_abs`, `ld_ind`).
    LoadPacket {
        /// Size.
        size: Size,
        /// Register with a part of the offset, for `ld_ind`.
        src: Option<u8>,
        /// Offset.
        imm: i32,
    },
    /// Call.
    Call(Call),
    /// Return.
    Exit,
    /// 64-bit immediate load; takes two instruction slots.
    LoadImm64 {
        /// Result.
        dst: u8,
        /// What.
        value: Immediate,
    },
}

/// Why an instruction is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// No such operation code.
    UnknownOpcode(u8),
    /// A register above r10.
    BadRegister(u8),
    /// A field that must be zero is not, or holds no valid value.
    Reserved,
    /// The second half of a `ld_imm64` is missing or wrong.
    BadImm64,
    /// A jump or call leaves the program.
    TargetOutside,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::UnknownOpcode(opcode) => write!(f, "unknown opcode {opcode:02x}"),
            DecodeError::BadRegister(register) => write!(f, "R{register} is invalid"),
            DecodeError::Reserved => f.write_str("uses reserved fields"),
            DecodeError::BadImm64 => f.write_str("invalid bpf_ld_imm64 insn"),
            DecodeError::TargetOutside => f.write_str("jump out of range"),
        }
    }
}

/// What the instruction at `index` does.
pub fn op(insns: &[Insn], index: usize) -> Result<Op, DecodeError> {
    let insn = insns.get(index).ok_or(DecodeError::TargetOutside)?;
    if insn.dst() > 10 {
        return Err(DecodeError::BadRegister(insn.dst()));
    }
    let pseudo = matches!(insn.opcode, BPF_LD_IMM64 | 0x85);
    if insn.src() > 10 && !pseudo {
        return Err(DecodeError::BadRegister(insn.src()));
    }
    match insn.class() {
        BPF_ALU | BPF_ALU64 => alu(insn),
        BPF_JMP | BPF_JMP32 => jump(insns, index, insn),
        BPF_LDX => load(insn),
        BPF_ST => store(insn, Operand::Imm(insn.imm)),
        BPF_STX if insn.opcode & 0xe0 == BPF_ATOMIC => atomic(insn),
        BPF_STX => store(insn, Operand::Reg(insn.src())),
        _ if insn.opcode == BPF_LD_IMM64 => immediate(insns, index, insn),
        _ if matches!(insn.opcode & 0xe0, BPF_ABS | BPF_IND) => load_packet(insn),
        _ => Err(DecodeError::UnknownOpcode(insn.opcode)),
    }
}

fn zero(fields_are_zero: bool) -> Result<(), DecodeError> {
    if fields_are_zero { Ok(()) } else { Err(DecodeError::Reserved) }
}

fn operand(insn: &Insn) -> Result<Operand, DecodeError> {
    if insn.opcode & BPF_X != 0 {
        zero(insn.imm == 0)?;
        Ok(Operand::Reg(insn.src()))
    } else {
        zero(insn.src() == 0)?;
        Ok(Operand::Imm(insn.imm))
    }
}

fn alu(insn: &Insn) -> Result<Op, DecodeError> {
    let width = if insn.class() == BPF_ALU64 { Width::W64 } else { Width::W32 };
    let dst = insn.dst();
    let kind = insn.opcode & 0xf0;
    if kind == 0x80 {
        zero(insn.opcode & BPF_X == 0 && insn.src() == 0 && insn.off == 0 && insn.imm == 0)?;
        return Ok(Op::Neg { width, dst });
    }
    if kind == 0xd0 {
        zero(insn.src() == 0 && insn.off == 0 && matches!(insn.imm, 16 | 32 | 64))?;
        zero(width == Width::W32 || insn.opcode & BPF_X == 0)?;
        let swap = width == Width::W64 || insn.opcode & BPF_X != 0;
        return Ok(Op::Swap { dst, bits: insn.imm as u8, swap });
    }
    if kind == 0xb0 && insn.off != 0 {
        let bits = insn.off;
        let known = matches!(bits, 8 | 16) || (bits == 32 && width == Width::W64);
        zero(insn.opcode & BPF_X != 0 && insn.imm == 0 && known)?;
        return Ok(Op::MovSx { width, bits: bits as u8, dst, src: insn.src() });
    }
    let signed = insn.off == 1 && matches!(kind, 0x30 | 0x90);
    zero(insn.off == 0 || signed)?;
    let op = match kind {
        0x00 => AluOp::Add,
        0x10 => AluOp::Sub,
        0x20 => AluOp::Mul,
        0x30 if signed => AluOp::Sdiv,
        0x30 => AluOp::Div,
        0x40 => AluOp::Or,
        0x50 => AluOp::And,
        0x60 => AluOp::Lsh,
        0x70 => AluOp::Rsh,
        0x90 if signed => AluOp::Smod,
        0x90 => AluOp::Mod,
        0xa0 => AluOp::Xor,
        0xb0 => AluOp::Mov,
        0xc0 => AluOp::Arsh,
        _ => return Err(DecodeError::UnknownOpcode(insn.opcode)),
    };
    Ok(Op::Alu { width, op, dst, src: operand(insn)? })
}

fn target(insns: &[Insn], index: usize, offset: i64) -> Result<usize, DecodeError> {
    let target = index as i64 + 1 + offset;
    usize::try_from(target).ok().filter(|target| *target < insns.len()).ok_or(DecodeError::TargetOutside)
}

fn jump(insns: &[Insn], index: usize, insn: &Insn) -> Result<Op, DecodeError> {
    let long = insn.class() == BPF_JMP32;
    match insn.opcode & 0xf0 {
        0x00 => {
            zero(insn.opcode & BPF_X == 0 && insn.dst() == 0 && insn.src() == 0)?;
            zero(if long { insn.off == 0 } else { insn.imm == 0 })?;
            let offset = if long { i64::from(insn.imm) } else { i64::from(insn.off) };
            return Ok(Op::Ja(target(insns, index, offset)?));
        }
        0xe0 if !long => {
            zero(insn.opcode & BPF_X == 0 && insn.regs == 0 && insn.imm == 0)?;
            return Ok(Op::MayGoto(target(insns, index, i64::from(insn.off))?));
        }
        0x80 if !long && insn.opcode & BPF_X != 0 => {
            zero(insn.src() == 0 && insn.off == 0 && insn.imm == 0)?;
            return Ok(Op::Call(Call::Register(insn.dst())));
        }
        0x80 if !long => {
            zero(insn.dst() == 0)?;
            let call = match insn.src() {
                0 => {
                    zero(insn.off == 0)?;
                    Call::Helper(insn.imm as u32)
                }
                1 => {
                    zero(insn.off == 0)?;
                    Call::Local(target(insns, index, i64::from(insn.imm))?)
                }
                2 => Call::Kfunc(insn.imm as u32),
                _ => return Err(DecodeError::Reserved),
            };
            return Ok(Op::Call(call));
        }
        0x90 if !long => {
            zero(insn.opcode & BPF_X == 0 && insn.regs == 0 && insn.off == 0 && insn.imm == 0)?;
            return Ok(Op::Exit);
        }
        _ => {}
    }
    let cond = match insn.opcode & 0xf0 {
        0x10 => Cond::Eq,
        0x20 => Cond::Gt,
        0x30 => Cond::Ge,
        0x40 => Cond::Set,
        0x50 => Cond::Ne,
        0x60 => Cond::Sgt,
        0x70 => Cond::Sge,
        0xa0 => Cond::Lt,
        0xb0 => Cond::Le,
        0xc0 => Cond::Slt,
        0xd0 => Cond::Sle,
        _ => return Err(DecodeError::UnknownOpcode(insn.opcode)),
    };
    let width = if long { Width::W32 } else { Width::W64 };
    let target = target(insns, index, i64::from(insn.off))?;
    Ok(Op::Jump { width, cond, dst: insn.dst(), src: operand(insn)?, target })
}

fn load(insn: &Insn) -> Result<Op, DecodeError> {
    let size = Size::decode(insn.opcode);
    zero(insn.imm == 0)?;
    let signed = match insn.opcode & 0xe0 {
        BPF_MEM => false,
        BPF_MEMSX if size != Size::Dw => true,
        _ => return Err(DecodeError::UnknownOpcode(insn.opcode)),
    };
    Ok(Op::Load { size, signed, dst: insn.dst(), src: insn.src(), off: insn.off })
}

fn load_packet(insn: &Insn) -> Result<Op, DecodeError> {
    let size = Size::decode(insn.opcode);
    let indirect = insn.opcode & 0xe0 == BPF_IND;
    zero(insn.dst() == 0 && insn.off == 0 && size != Size::Dw && (indirect || insn.src() == 0))?;
    Ok(Op::LoadPacket { size, src: indirect.then_some(insn.src()), imm: insn.imm })
}

fn store(insn: &Insn, src: Operand) -> Result<Op, DecodeError> {
    if insn.opcode & 0xe0 != BPF_MEM {
        return Err(DecodeError::UnknownOpcode(insn.opcode));
    }
    zero(match src {
        Operand::Reg(_) => insn.imm == 0,
        Operand::Imm(_) => insn.src() == 0,
    })?;
    Ok(Op::Store { size: Size::decode(insn.opcode), dst: insn.dst(), src, off: insn.off })
}

fn atomic(insn: &Insn) -> Result<Op, DecodeError> {
    const FETCH: i32 = 1;
    let size = Size::decode(insn.opcode);
    let (dst, src, off) = (insn.dst(), insn.src(), insn.off);
    match insn.imm {
        0x100 => return Ok(Op::LoadAcquire { size, dst, src, off }),
        0x110 => return Ok(Op::StoreRelease { size, dst, src, off }),
        _ => zero(matches!(size, Size::W | Size::Dw))?,
    }
    let op = match insn.imm & !FETCH {
        0x00 => AtomicOp::Add,
        0x40 => AtomicOp::Or,
        0x50 => AtomicOp::And,
        0xa0 => AtomicOp::Xor,
        0xe0 if insn.imm & FETCH != 0 => AtomicOp::Xchg,
        0xf0 if insn.imm & FETCH != 0 => AtomicOp::Cmpxchg,
        _ => return Err(DecodeError::Reserved),
    };
    Ok(Op::Atomic { size, op, fetch: insn.imm & FETCH != 0, dst, src, off })
}

fn immediate(insns: &[Insn], index: usize, insn: &Insn) -> Result<Op, DecodeError> {
    let second = insns.get(index + 1).ok_or(DecodeError::BadImm64)?;
    if second.opcode != 0 || second.regs != 0 || second.off != 0 || insn.off != 0 {
        return Err(DecodeError::BadImm64);
    }
    let (low, high) = (insn.imm as u32, second.imm as u32);
    let alone = if high == 0 { Ok(()) } else { Err(DecodeError::Reserved) };
    let value = match insn.src() {
        0 => Immediate::Value(u64::from(low) | u64::from(high) << 32),
        1 => alone.map(|()| Immediate::MapFd(insn.imm))?,
        2 => Immediate::MapValue(insn.imm, high),
        3 => Immediate::BtfId(low),
        4 => Immediate::Func(target(insns, index, i64::from(insn.imm))?),
        5 => alone.map(|()| Immediate::MapIdx(low))?,
        6 => Immediate::MapIdxValue(low, high),
        _ => return Err(DecodeError::Reserved),
    };
    Ok(Op::LoadImm64 { dst: insn.dst(), value })
}
