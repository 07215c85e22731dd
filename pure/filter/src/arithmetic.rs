//! Numbers: 64 bits, signed or unsigned, and between which bounds a value lies.
//!
//! A field narrower than 64 bits is extended by its sign. The result of an operation is signed, and wraps, unless an operand may be
//! above `i64::MAX`: then all is unsigned, as in C. Comparisons are by mathematical value.

use crate::names::Width;
use crate::parse::{Arithmetic, Relation, Unary};
use crate::scope::Context;

/// The bounds of a number's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) min: i128,
    pub(crate) max: i128,
}

pub(crate) const SIGNED: Range = Range { min: i64::MIN as i128, max: i64::MAX as i128 };
pub(crate) const UNSIGNED: Range = Range { min: 0, max: u64::MAX as i128 };

impl Range {
    pub(crate) fn of(bytes: u32, signed: bool) -> Range {
        let bits = 8 * bytes.min(8);
        match signed {
            true => Range { min: -(1 << (bits - 1)), max: (1 << (bits - 1)) - 1 },
            false => Range { min: 0, max: (1 << bits) - 1 },
        }
    }

    fn only(value: i128) -> Range {
        Range { min: value, max: value }
    }

    pub(crate) fn contains(self, other: Range) -> bool {
        self.min <= other.min && other.max <= self.max
    }

    /// Whether a register with such a value holds an unsigned number.
    pub(crate) fn is_unsigned(self) -> bool {
        self.max > SIGNED.max
    }

    /// What a relation says of all values of two ranges, if it says the same of all.
    pub(crate) fn decide(self, relation: Relation, other: Range) -> Option<bool> {
        match relation {
            Relation::Less if self.max < other.min => Some(true),
            Relation::Less if self.min >= other.max => Some(false),
            Relation::LessEqual if self.max <= other.min => Some(true),
            Relation::LessEqual if self.min > other.max => Some(false),
            Relation::Greater | Relation::GreaterEqual => other.decide(relation.swapped(), self),
            Relation::Equal if self.min == self.max && self == other => Some(true),
            Relation::Equal if self.max < other.min || self.min > other.max => Some(false),
            Relation::Unequal => self.decide(Relation::Equal, other).map(|equal| !equal),
            _ => None,
        }
    }
}

impl Relation {
    /// The relation with its sides exchanged.
    pub(crate) fn swapped(self) -> Relation {
        match self {
            Relation::Less => Relation::Greater,
            Relation::LessEqual => Relation::GreaterEqual,
            Relation::Greater => Relation::Less,
            Relation::GreaterEqual => Relation::LessEqual,
            same => same,
        }
    }

    /// The relation that holds where this does not.
    pub(crate) fn negated(self) -> Relation {
        match self {
            Relation::Less => Relation::GreaterEqual,
            Relation::LessEqual => Relation::Greater,
            Relation::Greater => Relation::LessEqual,
            Relation::GreaterEqual => Relation::Less,
            Relation::Equal => Relation::Unequal,
            Relation::Unequal => Relation::Equal,
        }
    }

    pub(crate) fn holds<T: PartialOrd>(self, left: T, right: T) -> bool {
        match self {
            Relation::Less => left < right,
            Relation::LessEqual => left <= right,
            Relation::Greater => left > right,
            Relation::GreaterEqual => left >= right,
            Relation::Equal => left == right,
            Relation::Unequal => left != right,
        }
    }
}

/// A number of an event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Number {
    Constant(i128),
    Field {
        index: usize,
        bytes: u32,
        signed: bool,
    },
    Context(Context),
    Unary {
        operator: Unary,
        unsigned: bool,
        inner: Box<Number>,
    },
    /// The low bytes of a number whose bounds are not within the width.
    Cast {
        width: Width,
        inner: Box<Number>,
    },
    Binary {
        operator: Arithmetic,
        unsigned: bool,
        left: Box<Number>,
        right: Box<Number>,
        range: Range,
    },
}

/// A value as a register of this kind holds it.
fn cut(value: i128, unsigned: bool) -> i128 {
    if unsigned { i128::from(value as u64) } else { i128::from(value as i64) }
}

pub(crate) fn apply_unary(operator: Unary, unsigned: bool, value: i128) -> i128 {
    match operator {
        Unary::Minus => cut(value.wrapping_neg(), unsigned),
        Unary::Invert => cut(!value, unsigned),
    }
}

pub(crate) fn apply_cast(width: Width, value: i128) -> i128 {
    let rest = 128 - 8 * width.bytes;
    if width.signed { value << rest >> rest } else { ((value as u128) << rest >> rest) as i128 }
}

/// The result, before it is cut to 64 bits; `None`: there is none (division by 0, shift by a count outside of 0..=63).
fn exact(operator: Arithmetic, unsigned: bool, left: i128, right: i128) -> Option<i128> {
    let shift = || u32::try_from(right).ok().filter(|count| *count < 64);
    let left = cut(left, unsigned);
    let other = || cut(right, unsigned);
    Some(match operator {
        Arithmetic::Times => left.checked_mul(other())?,
        Arithmetic::Divide => left.checked_div(other())?,
        Arithmetic::Modulo => left.checked_rem(other())?,
        Arithmetic::Plus => left + other(),
        Arithmetic::Minus => left - other(),
        Arithmetic::Left => left << shift()?,
        Arithmetic::Right => left >> shift()?,
        Arithmetic::And => left & other(),
        Arithmetic::Xor => left ^ other(),
        Arithmetic::Or => left | other(),
    })
}

pub(crate) fn apply(operator: Arithmetic, unsigned: bool, left: i128, right: i128) -> Option<i128> {
    // (A product of two unsigned numbers may not fit in `i128`: then its low half is what C's is.)
    if operator == Arithmetic::Times && unsigned {
        return Some(i128::from((left as u64).wrapping_mul(right as u64)));
    }
    exact(operator, unsigned, left, right).map(|value| cut(value, unsigned))
}

impl Number {
    pub(crate) fn range(&self) -> Range {
        match self {
            Number::Constant(value) => Range::only(*value),
            Number::Field { bytes, signed, .. } => Range::of(*bytes, *signed),
            Number::Context(Context::Time) => UNSIGNED,
            Number::Context(_) => Range::of(4, false),
            Number::Cast { width, .. } => Range::of(width.bytes, width.signed),
            Number::Unary { unsigned: true, .. } => UNSIGNED,
            Number::Unary { operator, inner, .. } => {
                let Range { min, max } = inner.range();
                let range = match operator {
                    Unary::Minus => Range { min: -max, max: -min },
                    Unary::Invert => Range { min: !max, max: !min },
                };
                if SIGNED.contains(range) { range } else { SIGNED }
            }
            Number::Binary { range, .. } => *range,
        }
    }

    /// Whether it always has a value.
    pub(crate) fn is_total(&self) -> bool {
        match self {
            Number::Unary { inner, .. } | Number::Cast { inner, .. } => inner.is_total(),
            Number::Binary { operator, left, right, .. } => {
                let Range { min, max } = right.range();
                let fits = match operator {
                    Arithmetic::Divide | Arithmetic::Modulo => min > 0 || max < 0,
                    Arithmetic::Left | Arithmetic::Right => min >= 0 && max < 64,
                    _ => true,
                };
                fits && left.is_total() && right.is_total()
            }
            _ => true,
        }
    }

    pub(crate) fn unary(operator: Unary, inner: Number) -> Number {
        let unsigned = inner.range().is_unsigned();
        match inner {
            // (`-9223372036854775808`)
            Number::Constant(value) if operator == Unary::Minus && -value >= SIGNED.min => Number::Constant(-value),
            Number::Constant(value) => Number::Constant(apply_unary(operator, unsigned, value)),
            inner => Number::Unary { operator, unsigned, inner: Box::new(inner) },
        }
    }

    pub(crate) fn cast(width: Width, inner: Number) -> Number {
        match inner {
            Number::Constant(value) => Number::Constant(apply_cast(width, value)),
            inner if Range::of(width.bytes, width.signed).contains(inner.range()) => inner,
            inner => Number::Cast { width, inner: Box::new(inner) },
        }
    }

    /// An operation on two numbers; constants are computed.
    ///
    /// # Errors
    /// There is no result, whatever the event is; or a result of constants does not fit in 64 bits.
    pub(crate) fn binary(operator: Arithmetic, left: Number, right: Number) -> Result<Number, NoResult> {
        let (a, b) = (left.range(), right.range());
        let shifts = matches!(operator, Arithmetic::Left | Arithmetic::Right);
        let unsigned = a.is_unsigned() || b.is_unsigned() && !shifts;
        let divides = matches!(operator, Arithmetic::Divide | Arithmetic::Modulo);
        if divides && b == Range::only(0) || shifts && (b.min > 63 || b.max < 0) {
            return Err(NoResult::Undefined);
        }
        if let (Number::Constant(a), Number::Constant(b)) = (&left, &right) {
            let value = exact(operator, unsigned, *a, *b).ok_or(NoResult::TooLarge)?;
            let fits = (SIGNED.min..=UNSIGNED.max).contains(&value);
            return if fits { Ok(Number::Constant(value)) } else { Err(NoResult::TooLarge) };
        }
        let all = if unsigned { UNSIGNED } else { SIGNED };
        let range = bounds(operator, unsigned, a, b).filter(|range| all.contains(*range)).unwrap_or(all);
        Ok(Number::Binary { operator, unsigned, left: Box::new(left), right: Box::new(right), range })
    }
}

/// Why an operation on constants has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoResult {
    /// Division by zero, or a shift by a count outside of 0..=63.
    Undefined,
    /// It does not fit in 64 bits.
    TooLarge,
}

/// The bounds of results, if they are known; they may be too large to fit.
fn bounds(operator: Arithmetic, unsigned: bool, a: Range, b: Range) -> Option<Range> {
    let kind = if unsigned { UNSIGNED } else { SIGNED };
    if !kind.contains(a) || !kind.contains(b) && !matches!(operator, Arithmetic::Left | Arithmetic::Right) {
        return None;
    }
    let corners = |a: Range, b: Range| -> Option<Range> {
        let pairs = [(a.min, b.min), (a.min, b.max), (a.max, b.min), (a.max, b.max)];
        let values: Option<Vec<i128>> = pairs.iter().map(|(a, b)| exact(operator, unsigned, *a, *b)).collect();
        let values = values?;
        Some(Range { min: *values.iter().min()?, max: *values.iter().max()? })
    };
    let ones = |value: i128| (1_i128 << (128 - value.leading_zeros())) - 1;
    match operator {
        Arithmetic::Times | Arithmetic::Plus | Arithmetic::Minus => corners(a, b),
        Arithmetic::Divide if b.min > 0 => corners(a, b),
        Arithmetic::Modulo if b.min > 0 => {
            Some(Range { min: if a.min < 0 { 1 - b.max } else { 0 }, max: (b.max - 1).min(a.max.max(0)) })
        }
        Arithmetic::Left | Arithmetic::Right if b.min >= 0 && b.max < 64 => corners(a, b),
        Arithmetic::And if a.min >= 0 && b.min >= 0 => Some(Range { min: 0, max: a.max.min(b.max) }),
        Arithmetic::And if a.min >= 0 || b.min >= 0 => {
            Some(Range { min: 0, max: if a.min >= 0 { a.max } else { b.max } })
        }
        Arithmetic::Or | Arithmetic::Xor if a.min >= 0 && b.min >= 0 => {
            Some(Range { min: 0, max: ones(a.max).max(ones(b.max)) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATORS: [Arithmetic; 10] = [
        Arithmetic::Times,
        Arithmetic::Divide,
        Arithmetic::Modulo,
        Arithmetic::Plus,
        Arithmetic::Minus,
        Arithmetic::Left,
        Arithmetic::Right,
        Arithmetic::And,
        Arithmetic::Xor,
        Arithmetic::Or,
    ];

    #[test]
    fn results_lie_within_their_bounds() {
        let edges: Vec<i128> = [0, 1, 2, 5, 63, 64, 127, 128, 255, 1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64]
            .into_iter()
            .flat_map(|edge: i128| [edge - 1, edge, edge + 1, -edge, 1 - edge])
            .filter(|edge| SIGNED.min <= *edge && *edge <= UNSIGNED.max)
            .collect();
        let kinds = [(1, false), (1, true), (2, true), (4, false), (4, true), (8, false), (8, true)];
        let mut tried = 0;
        for (left_bytes, left_signed) in kinds {
            let left = Number::Field { index: 0, bytes: left_bytes, signed: left_signed };
            let others =
                kinds.iter().map(|(bytes, signed)| Number::Field { index: 1, bytes: *bytes, signed: *signed });
            for right in others.chain(edges.iter().map(|edge| Number::Constant(*edge))) {
                for operator in OPERATORS {
                    let Ok(Number::Binary { unsigned, range, .. }) =
                        Number::binary(operator, left.clone(), right.clone())
                    else {
                        continue;
                    };
                    let of = |number: &Number| {
                        let range = number.range();
                        edges
                            .iter()
                            .copied()
                            .chain([range.min, range.max])
                            .filter(move |edge| range.min <= *edge && *edge <= range.max)
                    };
                    for (a, b) in of(&left).flat_map(|a| of(&right).map(move |b| (a, b))) {
                        let Some(value) = apply(operator, unsigned, a, b) else { continue };
                        tried += 1;
                        assert!(
                            range.min <= value && value <= range.max,
                            "{operator:?} {a} {b}: {value} in {range:?}"
                        );
                    }
                }
            }
        }
        assert!(tried > 100_000, "{tried}");
    }
}
