//! Which words of map values a program adds to: counters and sums, whose parts can be put together by adding them.

use std::collections::BTreeMap;

use ring3_isa::{AluOp, AtomicOp, Insn, Op, Operand, Size};

/// Where an instruction reads or writes in a map's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueAt {
    pub(crate) slot: u32,
    /// Offsets of the first byte, at least and at most.
    pub(crate) first: u32,
    pub(crate) last: u32,
}

/// Words of a map's values to which a program adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddedWords {
    /// GOT slot of the map.
    pub slot: u32,
    /// Offset of the first.
    pub first: u32,
    /// Offset of the last.
    pub last: u32,
    /// Bytes of each: 4 or 8.
    pub bytes: u32,
}

/// The words that are changed by atomic additions, or by loading, adding and storing. What is stored elsewhere than in the value
/// (on the stack, mostly) may be on its way to it by `bpf_map_update_elem`: such a sum is one, too.
pub(crate) fn words(insns: &[Insn], values_at: &BTreeMap<usize, Option<ValueAt>>) -> Vec<AddedWords> {
    let mut found = vec![];
    for at in 0..insns.len() {
        let known = values_at.get(&at).copied();
        let (size, place) = match ring3_isa::op(insns, at) {
            Ok(Op::Atomic { size, op: AtomicOp::Add, .. }) => (size, known.flatten()),
            Ok(Op::Store { size, dst, src: Operand::Reg(src), off }) => {
                let is_same = |_, from: (Size, u8, i16)| from == (size, dst, off);
                let is_value = |load: usize, from: (Size, u8, i16)| from.0 == size && values_at.contains_key(&load);
                let place = match known {
                    Some(place) => place.filter(|_| summand(insns, at, src, Some(dst), is_same).is_some()),
                    None => summand(insns, at, src, None, is_value).and_then(|load| values_at[&load]),
                };
                (size, place)
            }
            _ => continue,
        };
        let Some(ValueAt { slot, first, last }) = place else { continue };
        if matches!(size, Size::W | Size::Dw) {
            found.push(AddedWords { slot, first, last, bytes: size.bytes().into() });
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The load of what is stored from the register `stored` at `at`, if something was added to it since: seen in the instructions right
/// before. `base` must not change meanwhile; without one, jumps and calls may come between.
fn summand(
    insns: &[Insn],
    at: usize,
    stored: u8,
    base: Option<u8>,
    is_wanted: impl Fn(usize, (Size, u8, i16)) -> bool,
) -> Option<usize> {
    /// Instructions that are looked at.
    const BACK_MAX: usize = 16;
    /// Registers up to this one are lost in a call.
    const CLOBBERED_MAX: u8 = 5;
    // Registers of which one has the loaded value, if the sum is one; the additions are yet to be seen.
    let (mut wanted, mut added) = (vec![stored], false);
    for before in (at.saturating_sub(BACK_MAX)..at).rev() {
        match ring3_isa::op(insns, before).ok()? {
            Op::Load { size, dst, src, off, signed: false } if wanted.contains(&dst) => {
                if is_wanted(before, (size, src, off)) {
                    return Some(before).filter(|_| added);
                }
                wanted.retain(|register| *register != dst);
            }
            Op::Alu { op: AluOp::Add, dst, src, .. } if wanted.contains(&dst) => {
                added = true;
                match src {
                    Operand::Reg(src) if src == dst => return None,
                    Operand::Reg(src) => wanted.push(src),
                    Operand::Imm(_) => {}
                }
            }
            Op::Alu { op: AluOp::Mov, dst, src: Operand::Reg(src), .. } if wanted.contains(&dst) => {
                wanted.retain(|register| *register != dst);
                wanted.push(src);
            }
            // (What it is where there is no value yet.)
            Op::Alu { op: AluOp::Mov, src: Operand::Imm(_), .. } if base.is_none() => {}
            Op::Alu { dst, .. } | Op::Load { dst, .. } | Op::LoadImm64 { dst, .. } if Some(dst) != base => {
                wanted.retain(|register| *register != dst);
            }
            Op::Store { .. } => {}
            Op::Jump { .. } | Op::Ja(_) if base.is_none() => {}
            Op::Call(_) if base.is_none() => wanted.retain(|register| *register > CLOBBERED_MAX),
            _ => return None,
        }
        if wanted.is_empty() {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled(text: &str) -> Vec<Insn> {
        ring3_isa::assemble(text).expect("it is right")
    }

    /// Whether the last instruction stores a sum of what the one at `load` has read in a value, where that is not.
    fn updates(text: &str, load: usize) -> bool {
        let values = BTreeMap::from([(load, Some(ValueAt { slot: 7, first: 0, last: 0 }))]);
        let found = words(&assembled(text), &values);
        assert!(found.iter().all(|word| (word.slot, word.first, word.bytes) == (7, 0, 8)));
        !found.is_empty()
    }

    #[test]
    fn a_sum_that_is_put_on_the_stack_is_one_of_the_value_that_was_read() {
        // As bpftrace has it: count(), and sum() of something that a helper gives.
        let count = "r1 = 1\nif r0 == 0 goto +2\nr1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r10 - 24) = r1";
        assert!(updates(count, 2));
        let sum = "r6 = *(u64 *)(r0 + 0)\ncall 15\nr0 <<= 32\nr0 >>= 32\nr0 += r6\n*(u64 *)(r10 - 24) = r0";
        assert!(updates(sum, 0));
        assert!(!updates("r1 = *(u64 *)(r0 + 0)\ncall 15\nr1 += 1\n*(u64 *)(r10 - 24) = r1", 0), "lost in the call");
        assert!(!updates("r1 = *(u64 *)(r0 + 0)\n*(u64 *)(r10 - 24) = r1", 0), "a copy");
        assert!(!updates("r1 = *(u64 *)(r0 + 0)\nr2 = 5\nr2 -= r1\n*(u64 *)(r10 - 24) = r2", 0), "a difference");
    }

    /// Whether the last instruction stores a sum of what was there.
    fn adds(text: &str) -> bool {
        let insns = assembled(text);
        let at = insns.len() - 1;
        let values = BTreeMap::from([(at, Some(ValueAt { slot: 7, first: 8, last: 8 }))]);
        let words = words(&insns, &values);
        assert!(words.iter().all(|word| (word.slot, word.first, word.last) == (7, 8, 8)));
        !words.is_empty()
    }

    #[test]
    fn a_word_that_is_loaded_added_to_and_stored_is_a_sum_and_others_are_not() {
        assert!(adds("r1 = *(u64 *)(r0 + 8)\nr1 += 1\n*(u64 *)(r0 + 8) = r1"));
        assert!(adds("r1 = *(u32 *)(r0 + 8)\nr1 += r2\n*(u32 *)(r0 + 8) = r1"));
        assert!(adds("r1 = *(u64 *)(r0 + 8)\nr2 += r1\n*(u64 *)(r0 + 8) = r2"));
        assert!(adds("r1 = *(u64 *)(r0 + 8)\nr3 = r1\nr3 += 5\n*(u64 *)(r0 + 8) = r3"));
        assert!(adds("lock *(u64 *)(r0 + 8) += r1"));
        assert!(!adds("r1 = *(u64 *)(r0 + 8)\n*(u64 *)(r0 + 8) = r1"), "nothing is added");
        assert!(!adds("r1 += 1\n*(u64 *)(r0 + 8) = r1"), "nothing is loaded");
        assert!(!adds("r1 = *(u64 *)(r0 + 16)\nr1 += 1\n*(u64 *)(r0 + 8) = r1"), "another word");
        assert!(!adds("r1 = *(u64 *)(r3 + 8)\nr1 += 1\n*(u64 *)(r0 + 8) = r1"), "another value");
        assert!(!adds("r1 = *(u64 *)(r0 + 8)\nr1 += 1\nr1 <<= 1\n*(u64 *)(r0 + 8) = r1"), "a product");
        assert!(!adds("r1 = *(u64 *)(r0 + 8)\nr1 += 1\nr0 = r6\n*(u64 *)(r0 + 8) = r1"), "elsewhere by then");
        assert!(!adds("r1 = *(u64 *)(r0 + 8)\nr1 += r1\n*(u64 *)(r0 + 8) = r1"), "twice as much");
        assert!(!adds("lock *(u64 *)(r0 + 8) |= r1"));
    }
}
