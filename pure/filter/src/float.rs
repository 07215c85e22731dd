//! Floating point numbers, which eBPF has not: comparisons by their bits.
//!
//! The bits of IEEE 754, as a signed number whose lower bits are inverted if it is negative, are in the order of the values; the two
//! zeros become one. What is no number (NaN) has no order: all comparisons with it are false, except `!=`.

use crate::parse::Relation;

/// What a float is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Constant {
    Fraction(f64),
    Whole(i128),
}

/// All bits but the sign.
pub(crate) const BELOW_SIGN: i64 = i64::MAX;

/// A number's place in the order of those of a width; numbers of 4 bytes are in the upper half.
pub(crate) fn key(value: f64, bytes: u32) -> i64 {
    let bits = if bytes == 4 { u64::from((value as f32).to_bits()) << 32 } else { value.to_bits() };
    match bits as i64 {
        _ if value == 0.0 => 0,
        bits if bits < 0 => bits ^ BELOW_SIGN,
        bits => bits,
    }
}

/// The bits of infinity, shifted left by one: what is above is no number.
pub(crate) fn infinity_shifted(bytes: u32) -> u64 {
    let bits = if bytes == 4 { u64::from(f32::INFINITY.to_bits()) << 32 } else { f64::INFINITY.to_bits() };
    bits << 1
}

/// The same comparison with a number that this width has.
///
/// # Errors
/// The width has no such number: what the comparison always is.
pub(crate) fn bound(relation: Relation, constant: Constant, bytes: u32) -> Result<(Relation, f64), bool> {
    let near = match constant {
        Constant::Fraction(value) => value,
        Constant::Whole(value) => value as f64,
    };
    let near = if bytes == 4 { f64::from(near as f32) } else { near };
    let order = match constant {
        Constant::Fraction(value) => near.partial_cmp(&value),
        // (Finite: 64 bits are far below what both widths hold.)
        Constant::Whole(value) => Some((near as i128).cmp(&value)),
    };
    let step = |up: bool| match (bytes, up) {
        (4, true) => f64::from((near as f32).next_up()),
        (4, false) => f64::from((near as f32).next_down()),
        (_, true) => near.next_up(),
        (_, false) => near.next_down(),
    };
    let (below, above) = match order {
        Some(std::cmp::Ordering::Less) => (near, step(true)),
        Some(std::cmp::Ordering::Greater) => (step(false), near),
        _ => return Ok((relation, near)),
    };
    match relation {
        Relation::Less | Relation::LessEqual => Ok((Relation::LessEqual, below)),
        Relation::Greater | Relation::GreaterEqual => Ok((Relation::GreaterEqual, above)),
        Relation::Equal => Err(false),
        Relation::Unequal => Err(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_values() {
        let values =
            [f64::NEG_INFINITY, f64::MIN, -1.5, -1.0, -1e-320, 0.0, 1e-320, 1.0, 1.5, f64::MAX, f64::INFINITY];
        assert!(values.is_sorted_by_key(|value| key(*value, 8)) && values.is_sorted_by_key(|value| key(*value, 4)));
        assert_eq!((key(-0.0, 8), key(-0.0, 4)), (0, 0));
    }

    #[test]
    fn bounds_say_what_the_exact_comparison_says() {
        let whole = |value: i128| (Constant::Whole(value), value as f64);
        let fraction = |value: f64| (Constant::Fraction(value), value);
        let constants = [
            fraction(0.1),
            fraction(1e300),
            fraction(-1e300),
            fraction(0.5),
            whole((1 << 24) + 1),
            whole(7),
            whole(-3),
        ];
        let relations =
            [Relation::Less, Relation::LessEqual, Relation::Greater, Relation::GreaterEqual, Relation::Equal];
        for (constant, exact) in constants {
            let near = exact as f32;
            for value in [near, near.next_up(), near.next_down(), 0.0, f32::INFINITY, f32::NEG_INFINITY] {
                for relation in relations {
                    let holds = match bound(relation, constant, 4) {
                        Ok((relation, bound)) => relation.holds(key(value.into(), 4), key(bound, 4)),
                        Err(always) => always,
                    };
                    assert_eq!(holds, relation.holds(f64::from(value), exact), "{value} {relation:?} {constant:?}");
                }
            }
        }
        // 2^53 + 1 is between two numbers of 8 bytes.
        let between = Constant::Whole((1 << 53) + 1);
        assert_eq!(bound(Relation::Less, between, 8), Ok((Relation::LessEqual, 9_007_199_254_740_992.0)));
        assert_eq!(bound(Relation::Greater, between, 8), Ok((Relation::GreaterEqual, 9_007_199_254_740_994.0)));
        assert_eq!(bound(Relation::Equal, between, 8), Err(false));
    }
}
