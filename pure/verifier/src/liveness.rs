//! Which registers are read later. Mirrors kernel/bpf/verifier.c:compute_live_registers.

use std::ops::Range;

use ring3_isa::{AluOp, AtomicOp, Call, Op, Operand};
use ring3_uapi::helper;

use crate::flow::successors;
use crate::prototypes::prototype;

/// A set of registers, a bit each.
pub type Registers = u16;

/// r1 to r5.
pub const ARGUMENTS: Registers = 0b11_1110;
/// r0 to r5 are not what they were behind a call.
const CLOBBERED: Registers = 0b11_1111;
/// `ld_abs` and `ld_ind` take the packet from r6.
const PACKET: Registers = 1 << 6;

fn bit(register: u8) -> Registers {
    1 << register
}

fn bits(operand: Operand) -> Registers {
    match operand {
        Operand::Reg(register) => bit(register),
        Operand::Imm(_) => 0,
    }
}

/// How many arguments a helper takes: those of a format are as many as there can be.
pub fn helper_arguments(id: u32) -> u8 {
    match prototype(id) {
        Some(row) if id != helper::TRACE_PRINTK => row.args().len() as u8,
        _ => 5,
    }
}

/// Registers that an instruction reads, and those that it gives a value.
fn reads_and_writes(decoded: &Op, callee: impl Fn(usize) -> Registers) -> (Registers, Registers) {
    match *decoded {
        Op::Alu { op: AluOp::Mov, dst, src, .. } => (bits(src), bit(dst)),
        Op::Alu { dst, src, .. } => (bit(dst) | bits(src), bit(dst)),
        Op::MovSx { dst, src, .. } => (bit(src), bit(dst)),
        Op::Neg { dst, .. } | Op::Swap { dst, .. } => (bit(dst), bit(dst)),
        Op::Load { dst, src, .. } | Op::LoadAcquire { dst, src, .. } => (bit(src), bit(dst)),
        Op::Store { dst, src, .. } => (bit(dst) | bits(src), 0),
        Op::StoreRelease { dst, src, .. } => (bit(dst) | bit(src), 0),
        Op::Atomic { op: AtomicOp::Cmpxchg, dst, src, .. } => (bit(dst) | bit(src) | 1, 1),
        Op::Atomic { fetch, dst, src, .. } => (bit(dst) | bit(src), if fetch { bit(src) } else { 0 }),
        Op::Jump { dst, src, .. } => (bit(dst) | bits(src), 0),
        Op::Ja(_) | Op::MayGoto(_) => (0, 0),
        Op::LoadPacket { src, .. } => (src.map_or(0, bit) | PACKET, CLOBBERED),
        Op::Call(Call::Helper(id) | Call::Kfunc(id)) => ((1 << (helper_arguments(id) + 1)) - 2, CLOBBERED),
        Op::Call(Call::Local(target)) => (callee(target), CLOBBERED),
        Op::Call(Call::Register(register)) => (ARGUMENTS | bit(register), CLOBBERED),
        Op::Exit => (1, 0),
        Op::LoadImm64 { dst, .. } => (0, bit(dst)),
    }
}

/// The registers that may be read from each instruction of a subprogram on, before they are given other values; `callee`
/// tells those that the subprogram at an instruction reads. Nothing is live at what is not there.
pub fn live_before(
    ops: &[Option<Op>],
    subprogram: Range<usize>,
    callee: impl Fn(usize) -> Registers,
) -> Vec<Registers> {
    let start = subprogram.start;
    let mut predecessors = vec![vec![]; subprogram.len()];
    for at in subprogram.clone().filter(|at| ops[*at].is_some()) {
        let (next, target) = successors(ops, at);
        for to in [next, target].into_iter().flatten().filter(|to| subprogram.contains(to)) {
            predecessors[to - start].push(at);
        }
    }
    let mut live = vec![0; subprogram.len()];
    let mut open: Vec<usize> = subprogram.clone().collect();
    while let Some(at) = open.pop() {
        let Some(decoded) = &ops[at] else { continue };
        let (next, target) = successors(ops, at);
        let behind = |to: usize| live.get(to.wrapping_sub(start)).copied().unwrap_or(0);
        let after = [next, target].into_iter().flatten().fold(0, |after, to| after | behind(to));
        let (reads, writes) = reads_and_writes(decoded, &callee);
        let before = reads | after & !writes;
        if std::mem::replace(&mut live[at - start], before) != before {
            open.extend(&predecessors[at - start]);
        }
    }
    live
}
