//! Instructions as text, as the kernel's verifier log has them.
//!
//! The kernel writes relative targets (`goto pc+3`), so whole programs are written by [`text`], which knows
//! where an instruction stands. An [`Op`] alone is written the same way but with absolute targets.

use alloc::format;
use alloc::string::String;
use core::fmt;

use ring3_uapi::helper;

use crate::Insn;
use crate::code::{ADDR_SPACE_CAST, BPF_ALU64, BPF_JMP32, BPF_MAY_GOTO, BPF_MOV_X, BPF_X};
use crate::op::{AtomicOp, Call, Cond, Immediate, Op, Operand, Size, Width, op};

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Reg(register) => write!(f, "r{register}"),
            Operand::Imm(value) => write!(f, "{value}"),
        }
    }
}

pub(crate) fn sized(size: Size, signed: bool) -> &'static str {
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

pub(crate) fn relation(cond: Cond) -> &'static str {
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

pub(crate) fn atomic_name(op: AtomicOp) -> &'static str {
    match op {
        AtomicOp::Add => "add",
        AtomicOp::Or => "or",
        AtomicOp::And => "and",
        AtomicOp::Xor => "xor",
        AtomicOp::Xchg => "xchg",
        AtomicOp::Cmpxchg => "cmpxchg",
    }
}

/// The sign between memory and register, of operations that fetch nothing.
pub(crate) fn atomic_sign(op: AtomicOp) -> Option<&'static str> {
    match op {
        AtomicOp::Add => Some("+="),
        AtomicOp::Or => Some("|="),
        AtomicOp::And => Some("&="),
        AtomicOp::Xor => Some("^="),
        AtomicOp::Xchg | AtomicOp::Cmpxchg => None,
    }
}

/// A place in memory: `(u64 *)(r10 -8)`.
struct Place {
    size: Size,
    signed: bool,
    base: u8,
    off: i16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} *)(r{} {:+})", sized(self.size, self.signed), self.base, self.off)
    }
}

fn write_atomic(f: &mut fmt::Formatter<'_>, op: AtomicOp, fetch: bool, place: &Place, src: u8) -> fmt::Result {
    if let (false, Some(sign)) = (fetch, atomic_sign(op)) {
        return write!(f, "lock *{place} {sign} r{src}");
    }
    let (name, long) = (atomic_name(op), if place.size == Size::Dw { "64" } else { "" });
    match op {
        AtomicOp::Cmpxchg => write!(f, "r0 = atomic{long}_{name}({place}, r0, r{src})"),
        AtomicOp::Xchg => write!(f, "r{src} = atomic{long}_{name}({place}, r{src})"),
        _ => write!(f, "r{src} = atomic{long}_fetch_{name}({place}, r{src})"),
    }
}

fn write_condition(f: &mut fmt::Formatter<'_>, width: Width, cond: Cond, dst: u8, src: Operand) -> fmt::Result {
    let (left, relation) = (letter(width), relation(cond));
    match src {
        Operand::Reg(src) => write!(f, "if {left}{dst} {relation} {left}{src} goto "),
        Operand::Imm(value) => write!(f, "if {left}{dst} {relation} {value:#x} goto "),
    }
}

fn write_immediate(f: &mut fmt::Formatter<'_>, dst: u8, value: Immediate) -> fmt::Result {
    match value {
        Immediate::Value(value) => write!(f, "r{dst} = {value:#x}")?,
        Immediate::MapFd(fd) => write!(f, "r{dst} = map[fd:{fd}]")?,
        Immediate::MapValue(fd, off) => write!(f, "r{dst} = map[fd:{fd}][0]+{off}")?,
        Immediate::BtfId(id) => write!(f, "r{dst} = btf[{id}]")?,
        Immediate::Func(target) => write!(f, "r{dst} = subprog[{target}]")?,
        Immediate::MapIdx(index) => write!(f, "r{dst} = map[idx:{index}]")?,
        Immediate::MapIdxValue(index, off) => write!(f, "r{dst} = map[idx:{index}][0]+{off}")?,
    }
    // The kernel leaves this out, and so cannot tell `r1 = 5` of 8 bytes from that of 16 by its text.
    if f.alternate() { f.write_str(" ll") } else { Ok(()) }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Alu { width, op, dst, src } => {
                let left = letter(width);
                match src {
                    Operand::Reg(src) => write!(f, "{left}{dst} {} {left}{src}", op.sign()),
                    Operand::Imm(value) => write!(f, "{left}{dst} {} {value}", op.sign()),
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
                write!(f, "r{dst} = *{}", Place { size, signed, base: src, off })
            }
            Op::Store { size, dst, src, off } => {
                write!(f, "*{} = {src}", Place { size, signed: false, base: dst, off })
            }
            Op::Atomic { size, op, fetch, dst, src, off } => {
                write_atomic(f, op, fetch, &Place { size, signed: false, base: dst, off }, src)
            }
            Op::LoadAcquire { size, dst, src, off } => {
                write!(f, "r{dst} = load_acquire({})", Place { size, signed: false, base: src, off })
            }
            Op::StoreRelease { size, dst, src, off } => {
                write!(f, "store_release({}, r{src})", Place { size, signed: false, base: dst, off })
            }
            Op::Jump { width, cond, dst, src, target } => {
                write_condition(f, width, cond, dst, src)?;
                write!(f, "{target}")
            }
            Op::Ja(target) => write!(f, "goto {target}"),
            Op::MayGoto(target) => write!(f, "may_goto {target}"),
            Op::LoadPacket { size, src: None, imm } => write!(f, "r0 = *({} *)skb[{imm}]", sized(size, false)),
            Op::LoadPacket { size, src: Some(src), imm } => {
                write!(f, "r0 = *({} *)skb[r{src} + {imm}]", sized(size, false))
            }
            Op::Call(Call::Helper(id)) => match helper::name(id) {
                Some(name) => write!(f, "call bpf_{name}#{}", id as i32),
                None => write!(f, "call unknown#{}", id as i32),
            },
            Op::Call(Call::Local(target)) => write!(f, "call {target}"),
            Op::Call(Call::Kfunc(id)) => write!(f, "call kernel-function#{}", id as i32),
            Op::Call(Call::Register(register)) => write!(f, "callx r{register}"),
            Op::Exit => f.write_str("exit"),
            Op::LoadImm64 { dst, value } => write_immediate(f, dst, value),
        }
    }
}

/// An instruction of a program, to be written.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    insns: &'a [Insn],
    at: usize,
}

/// The instruction at `index` as the kernel writes it (`{}`), or so that [`crate::assemble`] gives it back
/// (`{:#}`: 16-byte loads end in `ll`). What is no valid instruction is an `.insn`.
pub fn text(insns: &[Insn], index: usize) -> Text<'_> {
    Text { insns, at: index }
}

/// A program, an instruction a line, so that [`crate::assemble`] gives it back.
pub fn listing(insns: &[Insn]) -> String {
    let mut lines = String::new();
    let mut at = 0;
    while at < insns.len() {
        let line = format!("{:#}\n", text(insns, at));
        let both = insns[at].is_wide() && !line.starts_with(RAW);
        lines += &line;
        at += if both { 2 } else { 1 };
    }
    lines
}

// Mirrors kernel/bpf/disasm.c:print_bpf_insn (v6.18).
impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(insn) = self.insns.get(self.at) else { return Ok(()) };
        let Insn { off, imm, .. } = *insn;
        match op(self.insns, self.at) {
            Ok(Op::Jump { width, cond, dst, src, .. }) => {
                write_condition(f, width, cond, dst, src)?;
                write!(f, "pc{off:+}")
            }
            Ok(Op::Ja(_)) if insn.class() == BPF_JMP32 => write!(f, "gotol pc{imm:+}"),
            Ok(Op::Ja(_)) => write!(f, "goto pc{off:+}"),
            Ok(Op::MayGoto(_)) => write!(f, "may_goto pc{off:+}"),
            Ok(Op::Call(Call::Local(_))) => write!(f, "call pc{imm:+}"),
            Ok(Op::Call(Call::Kfunc(_))) if off != 0 && f.alternate() => write_raw(f, insn),
            Ok(Op::LoadImm64 { value: Immediate::Func(_) | Immediate::BtfId(_), .. })
                if f.alternate() && self.insns[self.at + 1].imm != 0 =>
            {
                write_raw(f, insn)
            }
            Ok(Op::LoadImm64 { dst, value: Immediate::Func(_) }) => write!(f, "r{dst} = subprog[{imm:+}]"),
            Ok(Op::Swap { dst, bits, .. }) if insn.class() != BPF_ALU64 && insn.opcode & BPF_X != 0 => {
                write!(f, "r{dst} = be{bits} r{dst}")
            }
            Ok(Op::Swap { dst, bits, swap: true }) => write!(f, "r{dst} = bswap{bits} r{dst}"),
            Ok(op) if f.alternate() => write!(f, "{op:#}"),
            Ok(op) => write!(f, "{op}"),
            Err(_) => write_without_op(f, insn),
        }
    }
}

/// What the kernel knows and [`Op`] does not.
fn write_without_op(f: &mut fmt::Formatter<'_>, insn: &Insn) -> fmt::Result {
    let Insn { off, imm, .. } = *insn;
    let (dst, src) = (insn.dst(), insn.src());
    match insn.opcode {
        // It leaves the program.
        BPF_MAY_GOTO if dst == 0 && src == 0 && imm == 0 => write!(f, "may_goto pc{off:+}"),
        BPF_MOV_X if off == ADDR_SPACE_CAST && dst <= 10 && src <= 10 => {
            write!(f, "r{dst} = addr_space_cast(r{src}, {}, {})", imm as u32 >> 16, imm as u16)
        }
        _ => write_raw(f, insn),
    }
}

/// Begins an instruction that is given by its fields.
pub(crate) const RAW: &str = ".insn";

fn write_raw(f: &mut fmt::Formatter<'_>, insn: &Insn) -> fmt::Result {
    write!(f, "{RAW} {:#04x} {} {} {} {}", insn.opcode, insn.dst(), insn.src(), insn.off, insn.imm)
}
