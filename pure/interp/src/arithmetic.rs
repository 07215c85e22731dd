//! What instructions compute, for both ways of running them.

use ring3_isa::{AluOp, AtomicOp, Cond, Width};

/// What an operation of this width leaves of a number.
pub(crate) fn cut(width: Width, value: u64) -> u64 {
    if width == Width::W64 { value } else { u64::from(value as u32) }
}

/// RFC 9669 section 4.1.
pub(crate) fn alu(width: Width, op: AluOp, a: u64, b: u64) -> u64 {
    if width == Width::W32 {
        return u64::from(alu32(op, a as u32, b as u32));
    }
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Sdiv if b == 0 => 0,
        AluOp::Sdiv => (a as i64).wrapping_div(b as i64) as u64,
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::Smod if b == 0 => a,
        AluOp::Smod => (a as i64).wrapping_rem(b as i64) as u64,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a << (b & 63),
        AluOp::Rsh => a >> (b & 63),
        AluOp::Arsh => ((a as i64) >> (b & 63)) as u64,
        AluOp::Mov => b,
    }
}

fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Sdiv if b == 0 => 0,
        AluOp::Sdiv => (a as i32).wrapping_div(b as i32) as u32,
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::Smod if b == 0 => a,
        AluOp::Smod => (a as i32).wrapping_rem(b as i32) as u32,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a << (b & 31),
        AluOp::Rsh => a >> (b & 31),
        AluOp::Arsh => ((a as i32) >> (b & 31)) as u32,
        AluOp::Mov => b,
    }
}

/// Whether a condition holds.
pub(crate) fn holds(width: Width, cond: Cond, a: u64, b: u64) -> bool {
    let (a, b) = (cut(width, a), cut(width, b));
    let signed = |x: u64| if width == Width::W64 { x as i64 } else { i64::from(x as i32) };
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Set => a & b != 0,
        Cond::Sgt => signed(a) > signed(b),
        Cond::Sge => signed(a) >= signed(b),
        Cond::Slt => signed(a) < signed(b),
        Cond::Sle => signed(a) <= signed(b),
    }
}

/// Sign extension of the low `bits`.
pub(crate) fn extend(bits: u32, value: u64) -> u64 {
    let shift = 64 - bits;
    (((value << shift) as i64) >> shift) as u64
}

/// RFC 9669 section 4.2.
pub(crate) fn swap(bits: u8, swapped: bool, value: u64) -> u64 {
    match (bits, swapped) {
        (16, true) => u64::from((value as u16).swap_bytes()),
        (32, true) => u64::from((value as u32).swap_bytes()),
        (_, true) => value.swap_bytes(),
        (16, false) => u64::from(value as u16),
        (32, false) => u64::from(value as u32),
        (_, false) => value,
    }
}

/// What an atomic operation stores; `expected` is r0.
pub(crate) fn atomic(op: AtomicOp, old: u64, operand: u64, expected: u64) -> u64 {
    match op {
        AtomicOp::Add => old.wrapping_add(operand),
        AtomicOp::Or => old | operand,
        AtomicOp::And => old & operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Xchg => operand,
        AtomicOp::Cmpxchg if old == expected => operand,
        AtomicOp::Cmpxchg => old,
    }
}
