//! What subprograms take: which of r1 to r5 they read, and whether they need the environment. Calls pass no more.

use ring3_isa::{AluOp, AtomicOp, Call, Immediate, Op, Operand, op};
use ring3_uapi::helper;
use ring3_verifier::{Subprogram, Verified, prototype};

/// A set of registers, a bit each.
type Registers = u16;

const ARGUMENTS: Registers = 0b11_1110;
/// r0 to r5 are not what they were behind a call.
const CLOBBERED: Registers = 0b11_1111;

/// What a subprogram takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Takes {
    arguments: Registers,
    /// The environment: it calls helpers, or what needs it.
    pub(crate) env: bool,
    /// Helpers call it, with all arguments that there can be.
    by_address: bool,
}

impl Takes {
    /// Registers of the arguments, in order.
    pub(crate) fn arguments(self) -> impl Iterator<Item = u8> {
        (1..=5).filter(move |register| self.by_address || self.arguments & 1 << register != 0)
    }

    /// Whether the environment is the last parameter.
    pub(crate) fn takes_env(self) -> bool {
        self.env || self.by_address
    }
}

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
pub(crate) fn helper_arguments(id: u32) -> u8 {
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
        Op::LoadPacket { src, .. } => (src.map_or(0, bit), CLOBBERED),
        Op::Call(Call::Helper(id) | Call::Kfunc(id)) => ((1 << (helper_arguments(id) + 1)) - 2, CLOBBERED),
        Op::Call(Call::Local(target)) => (callee(target), CLOBBERED),
        Op::Call(Call::Register(_)) => (ARGUMENTS, CLOBBERED),
        Op::Exit => (1, 0),
        Op::LoadImm64 { dst, .. } => (0, bit(dst)),
    }
}

/// What each subprogram takes.
pub(crate) fn takes(program: &Verified) -> Vec<Takes> {
    let ops: Vec<Option<Op>> = (0..program.insns().len())
        .map(|at| if program.is_live(at) { op(program.insns(), at).ok() } else { None })
        .collect();
    let subprograms = program.subprograms();
    let index_of = |start: usize| subprograms.iter().position(|subprogram| subprogram.start == start);
    let mut all = vec![Takes::default(); subprograms.len()];
    for decoded in ops.iter().flatten() {
        if let Op::LoadImm64 { value: Immediate::Func(target), .. } = decoded
            && let Some(index) = index_of(*target)
        {
            all[index].by_address = true;
        }
    }
    // Calls form no cycles: each round settles those whose callees are settled.
    loop {
        let before = all.clone();
        for (index, subprogram) in subprograms.iter().enumerate() {
            let callee = |target: usize| index_of(target).map_or(ARGUMENTS, |index| before[index].mask());
            all[index].arguments = live_in(&ops, *subprogram, callee) & ARGUMENTS;
            all[index].env |= program.needs_fuel()
                || (subprogram.start..subprogram.end).any(|at| match ops[at] {
                    Some(Op::Call(Call::Local(target))) => {
                        index_of(target).is_none_or(|callee| before[callee].takes_env())
                    }
                    Some(Op::Call(_) | Op::MayGoto(_)) => true,
                    _ => false,
                });
        }
        if all == before {
            return all;
        }
    }
}

impl Takes {
    fn mask(self) -> Registers {
        if self.by_address { ARGUMENTS } else { self.arguments }
    }
}

/// Registers that a subprogram reads before it gives them values.
fn live_in(ops: &[Option<Op>], subprogram: Subprogram, callee: impl Fn(usize) -> Registers) -> Registers {
    let (start, end) = (subprogram.start, subprogram.end);
    let mut live = vec![0; end - start + 1];
    loop {
        let mut news = false;
        for at in (start..end).rev() {
            let Some(decoded) = ops[at] else { continue };
            let (reads, writes) = reads_and_writes(&decoded, &callee);
            let next = at + if matches!(decoded, Op::LoadImm64 { .. }) { 2 } else { 1 };
            let behind = |target: usize| live.get(target.wrapping_sub(start)).copied().unwrap_or(0);
            let after = match decoded {
                Op::Exit => 0,
                Op::Ja(target) => behind(target),
                Op::Jump { target, .. } | Op::MayGoto(target) => behind(target) | behind(next),
                _ => behind(next),
            };
            let before = reads | after & !writes;
            news |= std::mem::replace(&mut live[at - start], before) != before;
        }
        if !news {
            return live[0];
        }
    }
}
