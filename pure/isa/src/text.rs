//! Instructions as text, in the style of the kernel's verifier log.

use core::fmt;

use crate::op::{AluOp, AtomicOp, Call, Cond, Immediate, Op, Operand, Size, Width};

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Reg(register) => write!(f, "r{register}"),
            Operand::Imm(value) => write!(f, "{value}"),
        }
    }
}

fn sized(size: Size, signed: bool) -> &'static str {
    match (size, signed) {
        (Size::B, false) => "u8",
        (Size::H, false) => "u16",
        (Size::W, false) => "u32",
        (Size::Dw, _) => "u64",
        (Size::B, true) => "s8",
        (Size::H, true) => "s16",
        (Size::W, true) => "s32",
    }
}

fn letter(width: Width) -> char {
    match width {
        Width::W32 => 'w',
        Width::W64 => 'r',
    }
}

fn sign(op: AluOp) -> &'static str {
    match op {
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

fn relation(cond: Cond) -> &'static str {
    match cond {
        Cond::Eq => "==",
        Cond::Gt => ">",
        Cond::Ge => ">=",
        Cond::Set => "&",
        Cond::Ne => "!=",
        Cond::Sgt => "s>",
        Cond::Sge => "s>=",
        Cond::Lt => "<",
        Cond::Le => "<=",
        Cond::Slt => "s<",
        Cond::Sle => "s<=",
    }
}

fn atomic_name(op: AtomicOp) -> &'static str {
    match op {
        AtomicOp::Add => "add",
        AtomicOp::Or => "or",
        AtomicOp::And => "and",
        AtomicOp::Xor => "xor",
        AtomicOp::Xchg => "xchg",
        AtomicOp::Cmpxchg => "cmpxchg",
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Alu { width, op, dst, src } => {
                let left = letter(width);
                match src {
                    Operand::Reg(src) => write!(f, "{left}{dst} {} {left}{src}", sign(op)),
                    Operand::Imm(value) => write!(f, "{left}{dst} {} {value}", sign(op)),
                }
            }
            Op::MovSx { width, bits, dst, src } => {
                write!(f, "{0}{dst} = (s{bits}){0}{src}", letter(width))
            }
            Op::Neg { width, dst } => write!(f, "{0}{dst} = -{0}{dst}", letter(width)),
            Op::Swap { dst, bits, swap } => {
                write!(f, "r{dst} = {}{bits} r{dst}", if swap { "bswap" } else { "le" })
            }
            Op::Load { size, signed, dst, src, off } => {
                write!(f, "r{dst} = *({} *)(r{src} {off:+})", sized(size, signed))
            }
            Op::Store { size, dst, src, off } => write!(f, "*({} *)(r{dst} {off:+}) = {src}", sized(size, false)),
            Op::Atomic { size, op, fetch, dst, src, off } => write!(
                f,
                "lock {}{}(({} *)(r{dst} {off:+}), r{src})",
                if fetch { "fetch_" } else { "" },
                atomic_name(op),
                sized(size, false)
            ),
            Op::LoadAcquire { size, dst, src, off } => {
                write!(f, "r{dst} = load_acquire(({} *)(r{src} {off:+}))", sized(size, false))
            }
            Op::StoreRelease { size, dst, src, off } => {
                write!(f, "store_release(({} *)(r{dst} {off:+}), r{src})", sized(size, false))
            }
            Op::Jump { width, cond, dst, src, target } => {
                let left = letter(width);
                match src {
                    Operand::Reg(src) => write!(f, "if {left}{dst} {} {left}{src} goto {target}", relation(cond)),
                    Operand::Imm(value) => write!(f, "if {left}{dst} {} {value} goto {target}", relation(cond)),
                }
            }
            Op::Ja(target) => write!(f, "goto {target}"),
            Op::MayGoto(target) => write!(f, "may_goto {target}"),
            Op::LoadPacket { size, src: None, imm } => write!(f, "r0 = *({} *)skb[{imm}]", sized(size, false)),
            Op::LoadPacket { size, src: Some(src), imm } => {
                write!(f, "r0 = *({} *)skb[r{src} + {imm}]", sized(size, false))
            }
            Op::Call(Call::Helper(id)) => write!(f, "call {id}"),
            Op::Call(Call::Local(target)) => write!(f, "call pc {target}"),
            Op::Call(Call::Kfunc(id)) => write!(f, "call kfunc {id}"),
            Op::Exit => f.write_str("exit"),
            Op::LoadImm64 { dst, value } => match value {
                Immediate::Value(value) => write!(f, "r{dst} = {value:#x} ll"),
                Immediate::MapFd(fd) => write!(f, "r{dst} = map[fd:{fd}]"),
                Immediate::MapValue(fd, off) => write!(f, "r{dst} = map[fd:{fd}][0]+{off}"),
                Immediate::BtfId(id) => write!(f, "r{dst} = btf[{id}]"),
                Immediate::Func(target) => write!(f, "r{dst} = subprog[{target}]"),
                Immediate::MapIdx(index) => write!(f, "r{dst} = map[idx:{index}]"),
                Immediate::MapIdxValue(index, off) => write!(f, "r{dst} = map[idx:{index}][0]+{off}"),
            },
        }
    }
}
