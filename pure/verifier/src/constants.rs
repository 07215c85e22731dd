//! Which instructions control can reach, when constants decide branches.
//!
//! Tools keep switches in `.rodata` that the loader sets and freezes; code behind a switch that is off may call
//! what does not exist here (libbpf poisons such calls). The kernel never looks at it, since it follows branches with
//! known outcome one way only. This pass does the same with the registers that certainly hold constants.

use std::collections::HashMap;

use ring3_isa::{AluOp, Call, Cond, Immediate, Op, Operand, Width};

use ring3_uapi::helper;

use crate::Verified;
use crate::flow::successors;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Number(u64),
    /// Address in a map's only value: slot and offset.
    Value(u32, u64),
    /// Address in the running thread's `task_struct`, of which there is none.
    Task,
}

type State = [Known; 11];

const UNKNOWN: State = [Known::Nothing; 11];

struct Walk<'a> {
    ops: &'a [Option<Op>],
    verified: &'a Verified,
    constant_value: &'a dyn Fn(u32) -> Option<Vec<u8>>,
    /// What was read of constant maps.
    values: HashMap<u32, Option<Vec<u8>>>,
}

/// What the walk found.
pub(crate) struct Found {
    /// For each instruction whether it can be reached.
    pub(crate) live: Vec<bool>,
    /// An instruction that reads a `task_struct`.
    pub(crate) reads_task: Option<usize>,
}

/// Walks all ways through the program.
pub(crate) fn walk(
    ops: &[Option<Op>],
    verified: &Verified,
    constant_value: &dyn Fn(u32) -> Option<Vec<u8>>,
) -> Found {
    let mut walk = Walk { ops, verified, constant_value, values: HashMap::new() };
    let mut states: Vec<Option<State>> = vec![None; ops.len()];
    let mut open = vec![(0, UNKNOWN)];
    while let Some((at, state)) = open.pop() {
        let joined = match &states[at] {
            None => state,
            Some(known) => join(known, &state),
        };
        if states[at] == Some(joined) {
            continue;
        }
        states[at] = Some(joined);
        let mut after = joined;
        if let Some(op) = ops[at] {
            walk.step(at, &op, &mut after);
        }
        for to in walk.next(at, &joined).into_iter().flatten() {
            open.push((to, after));
        }
        if let Some(Op::Call(Call::Local(target)) | Op::LoadImm64 { value: Immediate::Func(target), .. }) = ops[at] {
            open.push((target, UNKNOWN));
        }
    }
    let reads_task = states.iter().zip(ops).position(|(state, op)| match (state, op) {
        (Some(state), Some(Op::Load { src, .. })) => state[*src as usize] == Known::Task,
        _ => false,
    });
    Found { live: states.iter().map(Option::is_some).collect(), reads_task }
}

fn join(a: &State, b: &State) -> State {
    std::array::from_fn(|register| if a[register] == b[register] { a[register] } else { Known::Nothing })
}

impl Walk<'_> {
    /// Where control goes from `at`, given what is known before it.
    fn next(&self, at: usize, state: &State) -> [Option<usize>; 2] {
        let (next, target) = successors(self.ops, at);
        let Some(Op::Jump { width, cond, dst, src, .. }) = self.ops[at] else { return [next, target] };
        match (number(state, Operand::Reg(dst)), number(state, src)) {
            (Some(a), Some(b)) if holds(width, cond, a, b) => [None, target],
            (Some(_), Some(_)) => [next, None],
            _ => [next, target],
        }
    }

    fn step(&mut self, at: usize, op: &Op, state: &mut State) {
        match *op {
            Op::Alu { width, op, dst, src } => {
                let left = number(state, Operand::Reg(dst));
                let result = match (op, left, number(state, src), src) {
                    (AluOp::Mov, _, Some(b), _) => Known::Number(cut(width, b)),
                    (AluOp::Mov, _, None, Operand::Reg(src)) if width == Width::W64 => state[src as usize],
                    (_, Some(a), Some(b), _) => compute(width, op, a, b),
                    (AluOp::Add, None, Some(b), _) if width == Width::W64 => match state[dst as usize] {
                        Known::Value(slot, offset) => Known::Value(slot, offset.wrapping_add(b)),
                        Known::Task => Known::Task,
                        _ => Known::Nothing,
                    },
                    _ => Known::Nothing,
                };
                state[dst as usize] = result;
            }
            Op::Load { size, signed, dst, src, off } => {
                let address = state[src as usize];
                state[dst as usize] = match address {
                    Known::Value(slot, offset) if !signed => {
                        self.load(slot, offset.wrapping_add_signed(i64::from(off)), size.bytes())
                    }
                    _ => Known::Nothing,
                };
            }
            Op::LoadImm64 { dst, value } => {
                state[dst as usize] = match (self.verified.map_at(at), value) {
                    (Some((map, Some(offset))), _) => Known::Value(map.slot, u64::from(offset)),
                    (None, Immediate::Value(value)) => Known::Number(value),
                    _ => Known::Nothing,
                };
            }
            Op::MovSx { dst, .. } | Op::Neg { dst, .. } | Op::Swap { dst, .. } | Op::LoadAcquire { dst, .. } => {
                state[dst as usize] = Known::Nothing;
            }
            Op::Atomic { src, .. } => {
                state[src as usize] = Known::Nothing;
                state[0] = Known::Nothing;
            }
            Op::Call(call) => {
                state[..6].fill(Known::Nothing);
                if call == Call::Helper(helper::GET_CURRENT_TASK_BTF) {
                    state[0] = Known::Task;
                }
            }
            Op::Store { .. } | Op::StoreRelease { .. } | Op::Jump { .. } | Op::Ja(_) | Op::Exit => {}
        }
    }

    fn load(&mut self, slot: u32, offset: u64, bytes: u8) -> Known {
        let value = self.values.entry(slot).or_insert_with(|| (self.constant_value)(slot));
        let range = offset as usize..(offset as usize).saturating_add(usize::from(bytes));
        match value.as_ref().and_then(|value| value.get(range)) {
            Some(read) => {
                let mut word = [0; 8];
                word[..read.len()].copy_from_slice(read);
                Known::Number(u64::from_le_bytes(word))
            }
            None => Known::Nothing,
        }
    }
}

fn number(state: &State, operand: Operand) -> Option<u64> {
    match operand {
        Operand::Imm(value) => Some(i64::from(value) as u64),
        Operand::Reg(register) => match state[register as usize] {
            Known::Number(value) => Some(value),
            _ => None,
        },
    }
}

fn cut(width: Width, value: u64) -> u64 {
    if width == Width::W64 { value } else { u64::from(value as u32) }
}

fn compute(width: Width, op: AluOp, a: u64, b: u64) -> Known {
    let (a, b) = (cut(width, a), cut(width, b));
    let bits = if width == Width::W64 { 63 } else { 31 };
    let result = match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::And => a & b,
        AluOp::Or => a | b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a << (b & bits),
        AluOp::Rsh => a >> (b & bits),
        _ => return Known::Nothing,
    };
    Known::Number(cut(width, result))
}

fn holds(width: Width, cond: Cond, a: u64, b: u64) -> bool {
    let (a, b) = (cut(width, a), cut(width, b));
    let (signed_a, signed_b) =
        if width == Width::W64 { (a as i64, b as i64) } else { (i64::from(a as i32), i64::from(b as i32)) };
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Set => a & b != 0,
        Cond::Sgt => signed_a > signed_b,
        Cond::Sge => signed_a >= signed_b,
        Cond::Slt => signed_a < signed_b,
        Cond::Sle => signed_a <= signed_b,
    }
}
