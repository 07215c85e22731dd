//! A filter to eBPF, as text for `ring3_isa::assemble`.
//!
//! The code falls through if the filter is true, and jumps if it is false. Each condition is compiled to "jump to `target` if the
//! condition is `sense`, else fall through", so that no truth value is ever in a register.
//!
//! Registers: r1 to r4 hold operands, r5 constants and what was spilled, r0 what is loaded from texts.

use crate::arithmetic::{Number, Range};
use crate::float;
use crate::parse::{Arithmetic, Relation, Unary};
use crate::scope::Context;
use crate::text::{Question, Subject};
use crate::typed::{Condition, Typed};

/// Where the part of the stack begins that the code may use, from the frame pointer.
pub const STACK_BEGIN: i16 = -256;
/// Where it ends.
pub const STACK_END: i16 = -128;

/// Where something is when the code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A number in memory. It need not be aligned.
    Memory {
        /// A register, 6 to 10.
        base: u8,
        /// From the register's address, in bytes.
        at: i16,
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// Two's complement.
        signed: bool,
    },
    /// Text that ends with a zero byte.
    Text {
        /// A register, 6 to 10.
        base: u8,
        /// From the register's address, in bytes.
        at: i16,
        /// So many bytes can be read, with the zero byte.
        bytes_max: u32,
    },
    /// Text that ends with a zero byte, whose address is on the stack.
    TextPointer {
        /// Where the address is, from the frame pointer, in bytes.
        slot: i16,
        /// So many bytes can be read, with the zero byte.
        bytes_max: u32,
    },
}

/// Where the [`State`](ring3_event::State) of a text or byte string is: one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePlace {
    /// A register, 6 to 10.
    pub base: u8,
    /// From the register's address, in bytes.
    pub at: i16,
}

/// Where an event's values are when the code runs. Numbers are at a [`Place::Memory`] of the field's width and sign, texts at one of
/// the others.
pub trait Places {
    /// A field.
    fn place(&self, field: usize) -> Place;
    /// The state of a text or byte string; `None` if it is always there.
    fn state(&self, field: usize) -> Option<StatePlace>;
    /// What every event has.
    fn context(&self, context: Context) -> Place;
}

/// Gives labels that are unique in a program: `filter_0`, `filter_1`.
#[derive(Debug, Default)]
pub struct LabelCounter {
    next: u32,
}

impl LabelCounter {
    /// A new label.
    pub fn label(&mut self) -> String {
        self.next += 1;
        format!("filter_{}", self.next - 1)
    }
}

impl Typed {
    /// eBPF that falls through if the filter is true, and jumps to `if_false` otherwise.
    ///
    /// It changes r0 to r5 and the stack between [`STACK_BEGIN`] and [`STACK_END`], and nothing else. It reads what `places` names,
    /// and calls nothing. It uses instructions of version 4 (sign-extending loads, signed division), and `may_goto` where it
    /// searches in texts.
    ///
    /// # Panics
    /// A place is of the wrong kind.
    pub fn assemble(&self, places: &dyn Places, labels: &mut LabelCounter, if_false: &str) -> String {
        let mut writer = Writer { text: String::new(), labels, places };
        writer.condition(&self.condition, if_false, false);
        writer.text
    }
}

/// Whether code for a question jumps, or the answer is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Branches,
    Always,
    Never,
}

pub(crate) struct Writer<'a> {
    pub(crate) text: String,
    pub(crate) labels: &'a mut LabelCounter,
    pub(crate) places: &'a dyn Places,
}

/// Writes a line of assembly.
macro_rules! line {
    ($writer:expr, $($format:tt)*) => {{
        let _ = std::fmt::Write::write_fmt(&mut $writer.text, format_args!($($format)*));
        $writer.text.push('\n');
    }};
}
pub(crate) use line;

/// Registers that operands are computed in.
const OPERANDS: [u8; 4] = [1, 2, 3, 4];
/// Values of a set that are so close together become a mask.
const MASK_BITS: i128 = 64;
/// From so many values on a mask is shorter than comparisons.
const MASK_VALUES_MIN: usize = 4;

const fn symbol(relation: Relation, signed: bool) -> &'static str {
    match (relation, signed) {
        (Relation::Less, true) => "s<",
        (Relation::LessEqual, true) => "s<=",
        (Relation::Greater, true) => "s>",
        (Relation::GreaterEqual, true) => "s>=",
        (Relation::Less, false) => "<",
        (Relation::LessEqual, false) => "<=",
        (Relation::Greater, false) => ">",
        (Relation::GreaterEqual, false) => ">=",
        (Relation::Equal, _) => "==",
        (Relation::Unequal, _) => "!=",
    }
}

/// The text of an operation, and of its signed kind.
const fn operation(operator: Arithmetic, unsigned: bool) -> &'static str {
    match operator {
        Arithmetic::Times => "*=",
        Arithmetic::Divide if unsigned => "/=",
        Arithmetic::Divide => "s/=",
        Arithmetic::Modulo if unsigned => "%=",
        Arithmetic::Modulo => "s%=",
        Arithmetic::Plus => "+=",
        Arithmetic::Minus => "-=",
        Arithmetic::Left => "<<=",
        Arithmetic::Right if unsigned => ">>=",
        Arithmetic::Right => "s>>=",
        Arithmetic::And => "&=",
        Arithmetic::Xor => "^=",
        Arithmetic::Or => "|=",
    }
}

/// A constant as 64 bits, if an instruction can hold it.
fn immediate(value: i128) -> Option<i32> {
    i32::try_from(value as i64).ok()
}

/// How many registers computing a number takes.
fn registers(number: &Number) -> usize {
    match number {
        Number::Unary { inner, .. } | Number::Cast { inner, .. } => registers(inner),
        Number::Binary { left, right, .. } => match (registers(left), &**right) {
            (left, Number::Constant(_)) => left,
            (left, right) => match registers(right) {
                right if right == left => left + 1,
                right => left.max(right),
            },
        },
        _ => 1,
    }
}

impl Writer<'_> {
    /// Jumps to `target` if the condition is `sense`.
    fn condition(&mut self, condition: &Condition, target: &str, sense: bool) {
        match condition {
            Condition::Constant(value) => self.jump_if(*value == sense, target),
            Condition::Not(inner) => self.condition(inner, target, !sense),
            Condition::And(list) => self.list(list, target, sense, true),
            Condition::Or(list) => self.list(list, target, sense, false),
            Condition::Compare(relation, left, right) => self.compare(*relation, left, right, target, sense),
            Condition::OneOf(number, constants) => self.one_of(number, constants, target, sense),
            Condition::Float { relation, index, bytes, bound } => {
                self.float(*relation, (*index, None), *bytes, float::key(*bound, *bytes), target, sense);
            }
            Condition::Floats { relation, left, right, bytes } => {
                self.float(*relation, (*left, Some(*right)), *bytes, 0, target, sense);
            }
            Condition::Text { subject, question, negated } => self.text(*subject, question, *negated, target, sense),
            Condition::Null { index, negated } => match self.places.state(*index) {
                None => self.jump_if(*negated == sense, target),
                Some(StatePlace { base, at }) => {
                    let relation = if *negated == sense { "!=" } else { "==" };
                    line!(self, "r1 = *(u8 *)(r{base} {at:+})");
                    line!(self, "if r1 {relation} {} goto {target}", ring3_event::State::Null as u8);
                }
            },
        }
    }

    /// All of the conditions (`all`), or any.
    fn list(&mut self, list: &[Condition], target: &str, sense: bool, all: bool) {
        if sense != all {
            return list.iter().for_each(|condition| self.condition(condition, target, sense));
        }
        let skip = self.labels.label();
        let Some((last, first)) = list.split_last() else { return };
        first.iter().for_each(|condition| self.condition(condition, &skip, !sense));
        self.condition(last, target, sense);
        line!(self, "{skip}:");
    }

    /// A jump that is always taken or never. (Code that no jump reaches is refused, whether or not a condition leads to it.)
    fn jump_if(&mut self, taken: bool, target: &str) {
        if taken {
            line!(self, "r0 = 0");
            line!(self, "if r0 == 0 goto {target}");
        }
    }

    fn load(&mut self, register: u8, place: Place) {
        let Place::Memory { base, at, bytes, signed } = place else { panic!("a number is at {place:?}") };
        let kind = if signed && bytes < 8 { 's' } else { 'u' };
        line!(self, "r{register} = *({kind}{} *)(r{base} {at:+})", u32::from(bytes) * 8);
    }

    fn constant(&mut self, register: u8, value: i128) {
        match immediate(value) {
            Some(value) => line!(self, "r{register} = {value}"),
            None => line!(self, "r{register} = {} ll", value as i64),
        }
    }

    /// Computes a number in a register of [`OPERANDS`]; stack slots from `slot` on are free. Jumps if there is no result.
    fn number(&mut self, number: &Number, at: usize, slot: i16, undefined: &str) {
        let register = OPERANDS[at];
        match number {
            Number::Constant(value) => self.constant(register, *value),
            Number::Field { index, .. } => self.load(register, self.places.place(*index)),
            Number::Context(context) => self.load(register, self.places.context(*context)),
            Number::Unary { operator, inner, .. } => {
                self.number(inner, at, slot, undefined);
                match operator {
                    Unary::Minus => line!(self, "r{register} = -r{register}"),
                    Unary::Invert => line!(self, "r{register} ^= -1"),
                }
            }
            Number::Cast { width, inner } => {
                self.number(inner, at, slot, undefined);
                let (rest, sign) = (64 - 8 * width.bytes, if width.signed { "s" } else { "" });
                if rest > 0 {
                    line!(self, "r{register} <<= {rest}");
                    line!(self, "r{register} {sign}>>= {rest}");
                }
            }
            Number::Binary { operator, unsigned, left, right, .. } => {
                let text = operation(*operator, *unsigned);
                if let Number::Constant(value) = **right {
                    self.number(left, at, slot, undefined);
                    match immediate(value) {
                        Some(value) => line!(self, "r{register} {text} {value}"),
                        None => {
                            self.constant(5, value);
                            line!(self, "r{register} {text} r5");
                        }
                    }
                    return;
                }
                let (left, right) = self.pair(left, right, at, slot, undefined);
                self.guard(*operator, number, right, undefined);
                line!(self, "r{left} {text} r{right}");
                if left != register {
                    line!(self, "r{register} = r{left}");
                }
            }
        }
    }

    /// Computes two numbers, the one first that takes more registers: the registers that they are in, of which one is
    /// `OPERANDS[at]`.
    fn pair(&mut self, left: &Number, right: &Number, at: usize, slot: i16, undefined: &str) -> (u8, u8) {
        let swapped = registers(right) > registers(left);
        let (first, second) = if swapped { (right, left) } else { (left, right) };
        self.number(first, at, slot, undefined);
        let registers = if at + 1 < OPERANDS.len() {
            self.number(second, at + 1, slot, undefined);
            (OPERANDS[at], OPERANDS[at + 1])
        } else {
            // (The depth of an expression and the order of computing bound the number of slots: 8 KiB of text have fewer than 2^13
            // operands, of which 2^3 are in registers.)
            assert!(slot < STACK_END, "the expression takes too much of the stack");
            line!(self, "*(u64 *)(r10 {slot:+}) = r{}", OPERANDS[at]);
            self.number(second, at, slot + 8, undefined);
            line!(self, "r5 = *(u64 *)(r10 {slot:+})");
            (5, OPERANDS[at])
        };
        if swapped { (registers.1, registers.0) } else { registers }
    }

    /// Jumps if an operation has no result.
    fn guard(&mut self, operator: Arithmetic, number: &Number, right: u8, undefined: &str) {
        let Number::Binary { right: operand, .. } = number else { return };
        let Range { min, max } = operand.range();
        match operator {
            Arithmetic::Divide | Arithmetic::Modulo if min <= 0 && max >= 0 => {
                line!(self, "if r{right} == 0 goto {undefined}");
            }
            Arithmetic::Left | Arithmetic::Right if min < 0 || max > 63 => {
                line!(self, "if r{right} > 63 goto {undefined}");
            }
            _ => {}
        }
    }

    /// Runs `write` with the label for "there is no result, so that the comparison is false".
    fn with_undefined(&mut self, is_total: bool, target: &str, sense: bool, write: impl FnOnce(&mut Self, &str)) {
        if is_total || !sense {
            return write(self, target);
        }
        let skip = self.labels.label();
        write(self, &skip);
        line!(self, "{skip}:");
    }

    fn compare(&mut self, relation: Relation, left: &Number, right: &Number, target: &str, sense: bool) {
        let jumps = if sense { relation } else { relation.negated() };
        let is_total = left.is_total() && right.is_total();
        self.with_undefined(is_total, target, sense, |writer, undefined| match right {
            Number::Constant(value) => writer.compare_constant(jumps, left, *value, target, undefined),
            _ => writer.compare_two(jumps, left, right, target, undefined),
        });
    }

    fn compare_constant(&mut self, jumps: Relation, left: &Number, value: i128, target: &str, undefined: &str) {
        if let (0, Number::Binary { operator: Arithmetic::And, left: inner, right, .. }, Relation::Unequal) =
            (value, left, jumps)
            && let Number::Constant(mask) = **right
            && let Some(mask) = immediate(mask)
        {
            self.number(inner, 0, STACK_BEGIN, undefined);
            return line!(self, "if r1 & {mask} goto {target}");
        }
        self.number(left, 0, STACK_BEGIN, undefined);
        let range = left.range();
        // The number is compared only to see whether it has a value.
        if let Some(known) = range.decide(jumps, Range { min: value, max: value }) {
            return self.jump_if(known, target);
        }
        let symbol = symbol(jumps, !range.is_unsigned());
        let is_word = Range::of(4, false).contains(range) && value > i128::from(i32::MAX);
        match immediate(value) {
            Some(imm) if !range.is_unsigned() || imm >= 0 => line!(self, "if r1 {symbol} {imm} goto {target}"),
            // (All 32 bits of a word are compared; in 64 bits the constant would be negative.)
            _ if is_word && value <= i128::from(u32::MAX) => {
                let symbol = self::symbol(jumps, false);
                line!(self, "if w1 {symbol} {value} goto {target}");
            }
            _ => {
                self.constant(5, value);
                line!(self, "if r1 {symbol} r5 goto {target}");
            }
        }
    }

    fn compare_two(&mut self, jumps: Relation, left: &Number, right: &Number, target: &str, undefined: &str) {
        let (a, b) = self.pair(left, right, 0, STACK_BEGIN, undefined);
        let (left, right) = (left.range(), right.range());
        if !left.is_unsigned() && !right.is_unsigned() {
            return line!(self, "if r{a} {} r{b} goto {target}", symbol(jumps, true));
        }
        // A side that may be negative and one that may be above 2^63: a negative one is the lesser, whatever the other is.
        let negative = [(left.min < 0, a, jumps.holds(0, 1)), (right.min < 0, b, jumps.holds(1, 0))];
        let skip = self.labels.label();
        for (_, register, holds) in negative.into_iter().filter(|(may_be, ..)| *may_be) {
            line!(self, "if r{register} s< 0 goto {}", if holds { target } else { &skip });
        }
        line!(self, "if r{a} {} r{b} goto {target}", symbol(jumps, false));
        line!(self, "{skip}:");
    }

    fn one_of(&mut self, number: &Number, constants: &[i128], target: &str, sense: bool) {
        let (Some(min), Some((last, first))) = (constants.first(), constants.split_last()) else {
            return self.jump_if(!sense, target);
        };
        let is_dense = constants.len() >= MASK_VALUES_MIN && last - min < MASK_BITS;
        self.with_undefined(number.is_total(), target, sense, |writer, undefined| {
            writer.number(number, 0, STACK_BEGIN, undefined);
            let out = writer.labels.label();
            let (if_in, if_not) = if sense { (target, out.as_str()) } else { (out.as_str(), target) };
            if is_dense {
                let mask = constants.iter().fold(0_u64, |mask, value| mask | 1 << (value - min));
                writer.constant(5, *min);
                line!(writer, "r1 -= r5");
                line!(writer, "if r1 > {} goto {if_not}", MASK_BITS - 1);
                writer.constant(2, mask.into());
                line!(writer, "r2 >>= r1");
                line!(writer, "r2 &= 1");
                line!(writer, "if r2 {} 0 goto {target}", if sense { "!=" } else { "==" });
            } else {
                for value in first {
                    writer.equal(*value, "==", if_in);
                }
                writer.equal(*last, if sense { "==" } else { "!=" }, target);
            }
            line!(writer, "{out}:");
        });
    }

    /// Compares r1 with a constant.
    fn equal(&mut self, value: i128, symbol: &str, target: &str) {
        match immediate(value) {
            Some(value) => line!(self, "if r1 {symbol} {value} goto {target}"),
            None => {
                self.constant(5, value);
                line!(self, "if r1 {symbol} r5 goto {target}");
            }
        }
    }

    /// Compares a floating point field with another or with a key.
    fn float(
        &mut self,
        relation: Relation,
        (left, right): (usize, Option<usize>),
        bytes: u32,
        key: i64,
        target: &str,
        sense: bool,
    ) {
        // What is no number is unequal to everything, and nothing else.
        let skip = self.labels.label();
        let no_number = if (relation == Relation::Unequal) == sense { target } else { &skip };
        self.float_key(1, left, bytes, no_number);
        match right {
            Some(right) => self.float_key(3, right, bytes, no_number),
            None => self.constant(3, key.into()),
        }
        let jumps = if sense { relation } else { relation.negated() };
        line!(self, "if r1 {} r3 goto {target}", symbol(jumps, true));
        line!(self, "{skip}:");
    }

    /// A field's place in the order of floating point numbers ([`float::key`]).
    fn float_key(&mut self, register: u8, field: usize, bytes: u32, no_number: &str) {
        let Place::Memory { base, at, .. } = self.places.place(field) else { panic!("a number is elsewhere") };
        let (other_than_zero, positive) = (self.labels.label(), self.labels.label());
        self.load(register, Place::Memory { base, at, bytes: bytes as u8, signed: false });
        if bytes == 4 {
            line!(self, "r{register} <<= 32");
        }
        line!(self, "r4 = r{register}");
        line!(self, "r4 <<= 1");
        line!(self, "if r4 != 0 goto {other_than_zero}");
        line!(self, "r{register} = 0");
        line!(self, "{other_than_zero}:");
        line!(self, "r5 = {} ll", float::infinity_shifted(bytes));
        line!(self, "if r4 > r5 goto {no_number}");
        line!(self, "if r{register} s>= 0 goto {positive}");
        line!(self, "r5 = {} ll", float::BELOW_SIGN);
        line!(self, "r{register} ^= r5");
        line!(self, "{positive}:");
    }

    /// Jumps if a text is not there; whether it may not be.
    fn there(&mut self, subject: Subject, target: &str) -> bool {
        let Subject::Field(index) = subject else { return false };
        let Some(StatePlace { base, at }) = self.places.state(index) else { return false };
        line!(self, "r1 = *(u8 *)(r{base} {at:+})");
        line!(self, "if r1 > {} goto {target}", ring3_event::State::Truncated as u8);
        true
    }

    fn text(&mut self, subject: Subject, question: &Question, negated: bool, target: &str, sense: bool) {
        let skip = self.labels.label();
        let if_not_there = if sense { &skip } else { target };
        self.there(subject, if_not_there);
        if let Question::Is(other) = question {
            self.there(*other, if_not_there);
        }
        // Where a text goes that does not answer.
        let other = if sense == negated { target } else { &skip };
        match self.question(subject, question, other) {
            // What answers falls through: to the jump, unless all others have jumped there.
            Outcome::Branches if sense != negated => line!(self, "goto {target}"),
            Outcome::Branches => {}
            known => self.jump_if(((known == Outcome::Always) != negated) == sense, target),
        }
        line!(self, "{skip}:");
    }
}
