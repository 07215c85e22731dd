//! Seccomp filters: what their classic BPF says of a system call of which not everything is known.
//!
//! A filter is run as in kernel/seccomp.c:seccomp_run_filters, but on values that may be unknown: the instruction pointer, and
//! arguments that the asker does not know. Where a branch depends on one, both paths are followed, and the strictest action
//! counts. Branches lead forward only, so each path ends.

/// An instruction (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterInsn {
    /// Class, size, mode, operation.
    pub code: u16,
    /// Instructions that are skipped if the condition holds.
    pub jt: u8,
    /// Instructions that are skipped if it does not.
    pub jf: u8,
    /// The constant.
    pub k: u32,
}

/// Instructions of a filter (`BPF_MAXINSNS`).
pub const FILTER_INSNS_MAX: usize = 4096;
/// `SECCOMP_RET_ALLOW`.
pub const RET_ALLOW: u32 = 0x7fff_0000;
/// `SECCOMP_RET_LOG`.
pub const RET_LOG: u32 = 0x7ffc_0000;
/// `SECCOMP_RET_KILL_PROCESS`.
pub const RET_KILL_PROCESS: u32 = 0x8000_0000;

const ACTION: u32 = 0xffff_0000;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Bytes of `struct seccomp_data`.
const DATA_BYTES: u32 = 64;
const SCRATCH_WORDS: usize = 16;
/// Instructions that are looked at for one call, and paths that are open at a time.
const STEPS_MAX: u32 = 1 << 16;
const OPEN_MAX: usize = 32;

/// A system call as it is put to a filter.
#[derive(Clone, Copy, Debug)]
pub struct FilteredCall {
    /// Its number.
    pub number: u32,
    /// Its arguments; `None`: any.
    pub arguments: [Option<u64>; 6],
}

impl FilteredCall {
    /// A call whose arguments may be any.
    pub const fn any(number: u32) -> FilteredCall {
        FilteredCall { number, arguments: [None; 6] }
    }

    /// The same with this argument.
    pub const fn with(mut self, index: usize, value: u64) -> FilteredCall {
        self.arguments[index] = Some(value);
        self
    }

    /// A word of `struct seccomp_data`.
    fn word(&self, offset: u32) -> Option<u32> {
        match offset {
            0 => Some(self.number),
            4 => Some(AUDIT_ARCH_X86_64),
            8 | 12 => None,
            _ => {
                let argument = self.arguments.get((offset as usize - 16) / 8).copied().flatten()?;
                Some(if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 })
            }
        }
    }
}

/// Whether a filter looks at where calls are made (`instruction_pointer` of `struct seccomp_data`): a program's own would be judged
/// differently from another place.
pub fn judges_places(filter: &[FilterInsn]) -> bool {
    const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    filter.iter().any(|insn| insn.code == LOAD_WORD && matches!(insn.k, 8 | 12))
}

/// Whether a filter certainly lets a call be made. What cannot be found out is not allowed.
pub fn allows(filter: &[FilterInsn], call: &FilteredCall) -> bool {
    strictest(filter, call).is_some_and(|action| matches!(action, RET_ALLOW | RET_LOG))
}

/// The strictest action of a filter for a call; `None`: it could not be found out.
pub fn strictest(filter: &[FilterInsn], call: &FilteredCall) -> Option<u32> {
    let mut open = [Path::default(); OPEN_MAX];
    let mut count = 1;
    let mut found: Option<u32> = None;
    let mut steps = 0;
    while count > 0 {
        count -= 1;
        let mut path = open[count];
        loop {
            steps += 1;
            if steps > STEPS_MAX {
                return None;
            }
            match path.step(filter, call)? {
                Step::On => {}
                Step::Fork(other) => {
                    *open.get_mut(count)? = other;
                    count += 1;
                }
                Step::Return(value) => {
                    // An unknown value may be the strictest one.
                    let action = value.map_or(RET_KILL_PROCESS, |value| value & ACTION);
                    let stricter = found.is_none_or(|before| (action as i32) < before as i32);
                    found = if stricter { Some(action) } else { found };
                    break;
                }
            }
        }
    }
    found
}

enum Step {
    On,
    Fork(Path),
    Return(Option<u32>),
}

/// A filter being run.
#[derive(Clone, Copy, Default)]
struct Path {
    at: usize,
    a: Value,
    x: Value,
    scratch: [Value; SCRATCH_WORDS],
}

/// A word; `None`: any. All are zero at first.
#[derive(Clone, Copy)]
struct Value(Option<u32>);

impl Default for Value {
    fn default() -> Value {
        Value(Some(0))
    }
}

impl Path {
    /// Runs an instruction; `None`: the kernel would not have taken it.
    fn step(&mut self, filter: &[FilterInsn], call: &FilteredCall) -> Option<Step> {
        let FilterInsn { code, jt, jf, k } = *filter.get(self.at)?;
        self.at += 1;
        let operand = if code & 0x08 != 0 { self.x.0 } else { Some(k) };
        match (code & 0x07, code) {
            // ld, ldx: a word of the call, its length, a constant, a scratch word.
            (0, 0x20) if k < DATA_BYTES && k.is_multiple_of(4) => self.a = Value(call.word(k)),
            (0, 0x80) => self.a = Value(Some(DATA_BYTES)),
            (0, 0x00) => self.a = Value(Some(k)),
            (0, 0x60) => self.a = *self.scratch.get(k as usize)?,
            (1, 0x81) => self.x = Value(Some(DATA_BYTES)),
            (1, 0x01) => self.x = Value(Some(k)),
            (1, 0x61) => self.x = *self.scratch.get(k as usize)?,
            // st, stx
            (2, 0x02) => *self.scratch.get_mut(k as usize)? = self.a,
            (3, 0x03) => *self.scratch.get_mut(k as usize)? = self.x,
            (4, _) => self.a = Value(calculate(code & 0xf0, self.a.0, operand)?),
            (5, 0x05) => self.at = self.at.checked_add(k as usize)?,
            (5, _) => return self.branch(code & 0xf0, operand, jt, jf),
            (6, 0x06) => return Some(Step::Return(Some(k))),
            (6, 0x0e) => return Some(Step::Return(self.x.0)),
            (6, 0x16) => return Some(Step::Return(self.a.0)),
            // tax, txa
            (7, 0x07) => self.x = self.a,
            (7, 0x87) => self.a = self.x,
            _ => return None,
        }
        Some(Step::On)
    }

    fn branch(&mut self, operation: u16, operand: Option<u32>, jt: u8, jf: u8) -> Option<Step> {
        let (taken, other) = (self.at + usize::from(jt), self.at + usize::from(jf));
        let holds = match (self.a.0, operand) {
            (Some(a), Some(b)) => Some(match operation {
                0x10 => a == b,
                0x20 => a > b,
                0x30 => a >= b,
                0x40 => a & b != 0,
                _ => return None,
            }),
            _ => None,
        };
        self.at = if holds == Some(false) { other } else { taken };
        if holds.is_some() || taken == other {
            return Some(Step::On);
        }
        Some(Step::Fork(Path { at: other, ..*self }))
    }
}

/// `Some(None)`: any; `None`: unknown operation, or a division that may be by 0, at which the filter ends.
fn calculate(operation: u16, a: Option<u32>, b: Option<u32>) -> Option<Option<u32>> {
    if operation == 0x80 {
        return Some(a.map(u32::wrapping_neg));
    }
    if operation == 0x30 {
        // (The kernel ends the filter with 0, which kills.)
        b.filter(|divisor| *divisor != 0)?;
    }
    let (Some(a), Some(b)) = (a, b) else { return Some(None) };
    Some(Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        // By the number's low 5 bits (kernel/bpf/core.c:___bpf_prog_run; larger constants are refused).
        0x60 => a.wrapping_shl(b),
        0x70 => a.wrapping_shr(b),
        0xa0 => a ^ b,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> FilterInsn {
        FilterInsn { code, jt, jf, k }
    }

    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ERRNO: u32 = 0x0005_0000;

    /// Allows `read`, and `prctl` with the option 16; the rest fails with 38.
    const LIST: [FilterInsn; 8] = [
        insn(LOAD, 0, 0, 4),
        insn(EQUAL, 0, 5, AUDIT_ARCH_X86_64),
        insn(LOAD, 0, 0, 0),
        insn(EQUAL, 2, 0, 0),
        insn(EQUAL, 0, 2, 157),
        insn(LOAD, 0, 0, 16),
        insn(EQUAL, 0, 0, 16),
        insn(RETURN, 0, 0, RET_ALLOW),
    ];

    fn list() -> [FilterInsn; 9] {
        let mut list = [insn(RETURN, 0, 0, ERRNO | 38); 9];
        list[..8].copy_from_slice(&LIST);
        // `read` is allowed, the option is compared.
        (list[3].jt, list[6].jf) = (3, 1);
        (list[1].jf, list[4].jf) = (6, 3);
        list
    }

    #[test]
    fn what_is_listed_is_allowed_and_what_is_not_fails() {
        let list = list();
        assert_eq!(strictest(&list, &FilteredCall::any(0)), Some(RET_ALLOW));
        assert_eq!(strictest(&list, &FilteredCall::any(1)), Some(ERRNO));
        assert!(!allows(&list, &FilteredCall::any(1)));
    }

    #[test]
    fn an_argument_that_is_not_known_may_be_the_worst_one() {
        let list = list();
        let prctl = FilteredCall::any(157);
        assert!(!allows(&list, &prctl));
        assert!(allows(&list, &prctl.with(0, 16)));
        assert!(!allows(&list, &prctl.with(0, 22)));
    }

    #[test]
    fn what_is_calculated_with_unknown_words_is_unknown() {
        // The instruction pointer's low half, doubled, in the scratch memory and back.
        let own = [
            insn(LOAD, 0, 0, 8),
            insn(0x64, 0, 0, 1),
            insn(0x02, 0, 0, 15),
            insn(0x60, 0, 0, 15),
            insn(0x25, 0, 1, 100),
            insn(RETURN, 0, 0, RET_KILL_PROCESS),
            insn(RETURN, 0, 0, RET_ALLOW),
        ];
        assert_eq!(strictest(&own, &FilteredCall::any(0)), Some(RET_KILL_PROCESS));
        // A known one is calculated with: 3 << 1 > 100 does not hold.
        let mut known = own;
        known[0] = insn(0x00, 0, 0, 3);
        assert_eq!(strictest(&known, &FilteredCall::any(0)), Some(RET_ALLOW));
    }

    #[test]
    fn an_action_counts_as_the_kernel_orders_them() {
        // kill process < kill thread < trap < errno < notify < trace < log < allow
        let order = [RET_KILL_PROCESS, 0, 0x0003_0000, ERRNO, 0x7fc0_0000, 0x7ff0_0000, RET_LOG, RET_ALLOW];
        for pair in order.windows(2) {
            let either = [
                insn(LOAD, 0, 0, 16),
                insn(EQUAL, 0, 1, 7),
                insn(RETURN, 0, 0, pair[0] | 5),
                insn(RETURN, 0, 0, pair[1] | 5),
            ];
            assert_eq!(strictest(&either, &FilteredCall::any(0)), Some(pair[0]));
        }
    }

    #[test]
    fn a_filter_that_takes_too_many_ways_or_is_none_allows_nothing() {
        let mut long = [insn(0x45, 0, 0, 1); 200];
        for pair in long.chunks_exact_mut(2) {
            (pair[0].jf, pair[1]) = (1, insn(0x04, 0, 0, 1));
        }
        long[0] = insn(LOAD, 0, 0, 8);
        long[199] = insn(RETURN, 0, 0, RET_ALLOW);
        assert_eq!(strictest(&long, &FilteredCall::any(0)), None);
        assert_eq!(strictest(&[], &FilteredCall::any(0)), None);
        assert_eq!(strictest(&[insn(0xffff, 0, 0, 0)], &FilteredCall::any(0)), None);
    }
}
