//! The processes in which a program does anything at all.
//!
//! Tools that observe one process begin their programs with a comparison of the process id, and end them at once in all others.
//! So such a program need not be attached in the others. The answer is conservative: a program is said to do nothing only if all
//! paths from its beginning, with this process id, end after arithmetic, loads, stores to its own stack, and helpers without side
//! effects.

use std::collections::BTreeSet;

use ring3_isa::{AluOp, Call, Cond, Immediate, Insn, Op, Operand, Size, Width, op};
use ring3_uapi::helper;

use crate::scalar::{Scalar, Test};

/// Steps at most, all paths together.
const STEPS_MAX: u32 = 1024;
/// Helpers that only tell something.
const TELLING: [u32; 6] = [
    helper::KTIME_GET_NS,
    helper::KTIME_GET_BOOT_NS,
    helper::GET_SMP_PROCESSOR_ID,
    helper::GET_CURRENT_UID_GID,
    helper::GET_ATTACH_COOKIE,
    helper::GET_FUNC_IP,
];

/// The processes in which a program does something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFilter {
    /// If it is only in some that it does: their ids.
    only: Option<BTreeSet<u32>>,
}

impl ProcessFilter {
    /// Whether the program may do something in the process with this id, as `bpf_get_current_pid_tgid` tells it.
    pub fn lets(&self, tgid: u32) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&tgid))
    }

    /// The ids of the processes that it lets, if it does not let all.
    pub fn named(&self) -> impl Iterator<Item = u32> {
        self.only.iter().flatten().copied()
    }

    /// Whether there are processes that it does not let.
    pub fn chooses(&self) -> bool {
        self.only.is_some()
    }
}

/// A value on one path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Unknown,
    Known(u64),
    /// What `bpf_get_current_pid_tgid` returns.
    Both,
    /// The process's id.
    Tgid,
    /// The process's id in the upper half, and zeros.
    High,
    /// An address in this program's stack.
    Stack,
    /// An address in what the instruction at this index names, and how far in it.
    Constant(usize, u64),
}

/// A program as the walk sees it.
struct Walk<'a> {
    insns: &'a [Insn],
    constant: &'a dyn Fn(usize) -> Option<Vec<u8>>,
}

/// One walk with one assumption.
struct Steps<'a> {
    walk: &'a Walk<'a>,
    /// The process's id; none: it is none that the program compares it with.
    tgid: Option<u32>,
    compared: BTreeSet<u32>,
    left: u32,
}

impl ProcessFilter {
    /// The filter that a verified program begins with. `constant`: of the map whose only value's address the instruction at an
    /// index loads, that value, if nobody can change it any more.
    pub fn of(insns: &[Insn], constant: &dyn Fn(usize) -> Option<Vec<u8>>) -> ProcessFilter {
        let walk = Walk { insns, constant };
        let (others_idle, compared) = walk.idles(None);
        // (One that does nothing in some processes only is for all: children of those inherit what they are.)
        let only: BTreeSet<u32> =
            compared.into_iter().filter(|tgid| others_idle && !walk.idles(Some(*tgid)).0).collect();
        // A program that does nothing at all was not meant to choose.
        ProcessFilter { only: (!only.is_empty()).then_some(only) }
    }
}

impl Walk<'_> {
    /// Whether the program does nothing under an assumption, and what it compares the process's id with.
    fn idles(&self, tgid: Option<u32>) -> (bool, BTreeSet<u32>) {
        let mut steps = Steps { walk: self, tgid, compared: BTreeSet::new(), left: STEPS_MAX };
        let mut registers = [Value::Unknown; 11];
        registers[10] = Value::Stack;
        let idle = steps.ends(0, registers);
        (idle, steps.compared)
    }
}

impl Steps<'_> {
    /// Whether all paths from here come to an end with nothing done.
    fn ends(&mut self, mut at: usize, mut registers: [Value; 11]) -> bool {
        let value = |registers: &[Value; 11], operand: Operand| match operand {
            Operand::Reg(register) => registers[usize::from(register)],
            Operand::Imm(number) => Value::Known(i64::from(number) as u64),
        };
        loop {
            let Some(left) = self.left.checked_sub(1) else { return false };
            self.left = left;
            let Ok(decoded) = op(self.walk.insns, at) else { return false };
            let mut next = at + 1;
            match decoded {
                Op::Exit => return true,
                Op::Ja(target) => next = target,
                Op::Alu { width, op, dst, src } => {
                    let (left, right) = (registers[usize::from(dst)], value(&registers, src));
                    registers[usize::from(dst)] = compute(width, op, left, right);
                }
                Op::MovSx { dst, .. } | Op::Neg { dst, .. } | Op::Swap { dst, .. } => {
                    registers[usize::from(dst)] = Value::Unknown;
                }
                Op::Load { size, signed, dst, src, off } => {
                    let from = registers[usize::from(src)];
                    registers[usize::from(dst)] = self.loaded(size, signed, from, off);
                }
                Op::Store { dst, .. } if registers[usize::from(dst)] == Value::Stack => {}
                Op::LoadImm64 { dst, value } => {
                    next = at + 2;
                    registers[usize::from(dst)] = match value {
                        Immediate::Value(number) => Value::Known(number),
                        Immediate::MapValue(_, offset) | Immediate::MapIdxValue(_, offset) => {
                            Value::Constant(at, u64::from(offset))
                        }
                        _ => Value::Unknown,
                    };
                }
                Op::Call(Call::Helper(id)) if id == helper::GET_CURRENT_PID_TGID || TELLING.contains(&id) => {
                    registers[..6].fill(Value::Unknown);
                    if id == helper::GET_CURRENT_PID_TGID {
                        registers[0] = Value::Both;
                    }
                }
                Op::Jump { width, cond, dst, src, target } => {
                    match self.decide(width, cond, registers[usize::from(dst)], value(&registers, src)) {
                        Some(true) => next = target,
                        Some(false) => {}
                        None if !self.ends(target, registers) => return false,
                        None => {}
                    }
                }
                _ => return false,
            }
            at = next;
        }
    }

    fn loaded(&self, size: Size, signed: bool, from: Value, off: i16) -> Value {
        let Value::Constant(named_at, distance) = from else { return Value::Unknown };
        let bytes = (self.walk.constant)(named_at).filter(|_| !signed);
        let start = usize::try_from(distance.wrapping_add(off as u64)).unwrap_or(usize::MAX);
        let read = bytes.as_deref().and_then(|bytes| bytes.get(start..)?.get(..usize::from(size.bytes())));
        read.map_or(Value::Unknown, |read| {
            let mut word = [0; 8];
            word[..read.len()].copy_from_slice(read);
            Value::Known(u64::from_le_bytes(word))
        })
    }

    /// Which way a comparison goes, if it is known.
    fn decide(&mut self, width: Width, cond: Cond, left: Value, right: Value) -> Option<bool> {
        let (left, right) = match (left, right) {
            (Value::Known(left), Value::Known(right)) => (left, right),
            (Value::Tgid, Value::Known(id)) | (Value::Known(id), Value::Tgid) => {
                let id = if width == Width::W32 { id as u32 as u64 } else { id };
                return self.compare(cond, id);
            }
            (Value::High, Value::Known(id)) | (Value::Known(id), Value::High) if width == Width::W64 => {
                return self.compare(cond, id.rotate_left(32));
            }
            _ => return None,
        };
        let (left, right) = (Scalar::constant(left), Scalar::constant(right));
        let may = |test| left.assume(width, test, &right).is_some();
        match (may(Test::Holds(cond)), may(Test::Fails(cond))) {
            (true, true) => None,
            (holds, _) => Some(holds),
        }
    }

    /// How the process's id compares with a number.
    fn compare(&mut self, cond: Cond, id: u64) -> Option<bool> {
        let equal = u32::try_from(id).is_ok_and(|id| {
            self.compared.insert(id);
            self.tgid == Some(id)
        });
        match cond {
            Cond::Eq => Some(equal),
            Cond::Ne => Some(!equal),
            _ => None,
        }
    }
}

/// What arithmetic makes of values, as far as filters use it.
fn compute(width: Width, op: AluOp, left: Value, right: Value) -> Value {
    const LOW: u64 = u32::MAX as u64;
    match (op, left, right) {
        (AluOp::Mov, _, Value::Known(value)) if width == Width::W32 => Value::Known(value & LOW),
        (AluOp::Mov, _, Value::Tgid) => Value::Tgid,
        (AluOp::Mov, _, value) if width == Width::W64 => value,
        (AluOp::Rsh, Value::Both, Value::Known(32)) if width == Width::W64 => Value::Tgid,
        (AluOp::Add | AluOp::Sub, Value::Stack, Value::Known(_)) if width == Width::W64 => Value::Stack,
        (AluOp::And, Value::Both, Value::Known(mask)) if width == Width::W64 && mask == !LOW => Value::High,
        (AluOp::And, Value::Tgid, Value::Known(mask)) if mask & LOW == LOW => Value::Tgid,
        _ => Value::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_isa::assemble;

    /// The filter of a program that ends with an update of a map; its first instruction is the address of a value of eight
    /// bytes that is `constant`, in r9.
    fn filter_of(constant: u64, text: &str) -> ProcessFilter {
        let text = format!("r9 = map[fd:3][0]+0 ll\nr6 = r1\n{text}\ncall 2\nout:\nr0 = 0\nexit\n");
        let insns = assemble(&text).expect("it assembles");
        ProcessFilter::of(&insns, &|at| (at == 0).then(|| constant.to_le_bytes().to_vec()))
    }

    fn only(listed: &[u32]) -> ProcessFilter {
        ProcessFilter { only: Some(listed.iter().copied().collect()) }
    }

    fn all() -> ProcessFilter {
        ProcessFilter::default()
    }

    #[test]
    fn a_program_for_one_process_is_known() {
        assert_eq!(filter_of(0, "call 14\nr0 >>= 32\nif r0 != 77 goto out"), only(&[77]));
        assert_eq!(filter_of(0, "call 14\nr0 >>= 32\nw0 = w0\nif w0 != 77 goto out"), only(&[77]));
        assert_eq!(filter_of(0, "call 14\nr0 >>= 32\nif r0 == 1 goto on\nif r0 != 77 goto out\non:"), only(&[1, 77]));
        assert!(only(&[77]).lets(77) && !only(&[77]).lets(78));
    }

    #[test]
    fn compilers_that_shift_no_bits_are_understood() {
        let text =
            |id: &str| format!("call 14\nr1 = 0xffffffff00000000 ll\nr0 &= r1\nr1 = {id} ll\nif r0 != r1 goto out");
        assert_eq!(filter_of(0, &text("0x4d00000000")), only(&[77]));
        // No id is like that: it never goes on.
        assert_eq!(filter_of(0, &text("0x4d00000001")), all());
    }

    #[test]
    fn a_program_for_all_but_one_is_for_all() {
        assert_eq!(filter_of(0, "call 14\nr0 >>= 32\nif r0 == 77 goto out"), all());
    }

    #[test]
    fn constants_of_the_loader_are_read() {
        let text = "r7 = *(u32 *)(r9 + 0)\ncall 14\nr0 >>= 32\nif w7 == 0 goto on\nif w0 != w7 goto out\non:";
        assert_eq!(filter_of(77, text), only(&[77]));
        assert_eq!(filter_of(0, text), all());
    }

    #[test]
    fn what_does_something_before_is_for_all() {
        let look = "call 14\nr0 >>= 32\nif r0 != 77 goto out";
        for before in [
            "*(u64 *)(r9 + 0) = r1",
            "lock *(u64 *)(r9 + 0) += r1",
            "call 6",
            "r1 = *(u64 *)(r6 + 0)\nif r1 == 0 goto on",
        ] {
            let text = format!("{before}\n{look}\non:");
            assert!(filter_of(0, &text).lets(78), "{before}");
        }
        assert_eq!(filter_of(0, &format!("*(u64 *)(r10 - 8) = r1\ncall 5\n{look}")), only(&[77]));
    }

    #[test]
    fn threads_and_orders_are_no_filters() {
        for text in [
            "call 14\nif w0 != 77 goto out",
            "call 14\nr0 >>= 32\nif r0 > 77 goto out",
            "call 14\nr0 >>= 31\nif r0 != 77 goto out",
        ] {
            assert_eq!(filter_of(0, text), all(), "{text}");
        }
    }

    #[test]
    fn a_program_that_does_nothing_is_for_all() {
        assert_eq!(filter_of(0, "call 14\nr0 >>= 32\nif r0 != 77 goto out\ngoto out"), all());
        assert_eq!(filter_of(0, "goto out"), all());
    }

    #[test]
    fn constants_are_compared_in_all_ways() {
        use Cond::{Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt};
        let walk = Walk { insns: &[], constant: &|_| None };
        let mut steps = Steps { walk: &walk, tgid: None, compared: BTreeSet::new(), left: 0 };
        let numbers = [0, 1, 2, 0x7fff_ffff, 0x8000_0000, u64::from(u32::MAX), 1 << 32, 1 << 63, u64::MAX];
        for (a, b) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
            let wide = [
                (Eq, a == b),
                (Ne, a != b),
                (Gt, a > b),
                (Ge, a >= b),
                (Lt, a < b),
                (Le, a <= b),
                (Set, a & b != 0),
                (Sgt, a as i64 > b as i64),
                (Sge, a as i64 >= b as i64),
                (Slt, (a as i64) < b as i64),
                (Sle, a as i64 <= b as i64),
            ];
            for (cond, holds) in wide {
                let given = steps.decide(Width::W64, cond, Value::Known(a), Value::Known(b));
                assert_eq!(given, Some(holds), "{a:#x} {cond:?} {b:#x}");
            }
            let narrow = [(Ne, a as u32 != b as u32), (Gt, a as u32 > b as u32), (Slt, (a as i32) < b as i32)];
            for (cond, holds) in narrow {
                let given = steps.decide(Width::W32, cond, Value::Known(a), Value::Known(b));
                assert_eq!(given, Some(holds), "{a:#x} {cond:?} {b:#x} (32 bits)");
            }
        }
    }

    #[test]
    fn rounds_have_an_end() {
        assert_eq!(filter_of(0, "again:\nr1 = *(u64 *)(r6 + 0)\nif r1 == 0 goto again\ngoto again"), all());
    }
}
