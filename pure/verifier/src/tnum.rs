//! Numbers of which each bit is 0, 1 or unknown.
//!
//! The algebra is that of "Sound, Precise, and Fast Abstract Interpretation with Tristate Numbers"
//! (Vishwanathan et al., CGO 2022), which the kernel uses too (kernel/bpf/tnum.c). Invariant: `value & mask == 0`.

use std::fmt;

/// A tristate number: bits in `mask` are unknown, the others are those of `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tnum {
    pub(crate) value: u64,
    pub(crate) mask: u64,
}

impl fmt::Display for Tnum {
    /// As kernel/bpf/tnum.c:tnum_strn.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tnum { value: 0, mask: 0 } => f.write_str("0"),
            Tnum { value, mask: 0 } => write!(f, "{value:#x}"),
            Tnum { value, mask } => write!(f, "({value:#x}; {mask:#x})"),
        }
    }
}

impl Tnum {
    pub(crate) const UNKNOWN: Tnum = Tnum { value: 0, mask: u64::MAX };

    pub(crate) const fn constant(value: u64) -> Tnum {
        Tnum { value, mask: 0 }
    }

    /// The best description of `min..=max`: the common leading bits are known.
    pub(crate) const fn range(min: u64, max: u64) -> Tnum {
        let differ = min ^ max;
        let unknown = 64 - differ.leading_zeros();
        if unknown == 64 {
            return Tnum::UNKNOWN;
        }
        let mask = (1 << unknown) - 1;
        Tnum { value: min & !mask, mask }
    }

    /// The largest member.
    pub(crate) const fn max(self) -> u64 {
        self.value | self.mask
    }

    /// With the known value of one bit, or of none, reversed.
    pub(crate) const fn flip(self, bit: u64) -> Tnum {
        Tnum { value: self.value ^ (bit & !self.mask), mask: self.mask }
    }

    /// The least member that is at least `min`.
    pub(crate) const fn first_from(self, min: u64) -> Option<u64> {
        let near = min & self.mask | self.value;
        let differ = near ^ min;
        if differ == 0 {
            return Some(min);
        }
        let below = u64::MAX >> differ.leading_zeros();
        if near > min {
            // The highest bit that differs is known to be 1: of those below, the free ones may be 0.
            return Some(near & !(self.mask & below));
        }
        // It is known to be 0: a free bit above it must become 1.
        let free = self.mask & !near & !below;
        if free == 0 {
            return None;
        }
        let carry = free & free.wrapping_neg();
        Some((near | carry) & !(self.mask & (carry - 1)))
    }

    /// The largest member that is at most `max`.
    pub(crate) const fn last_to(self, max: u64) -> Option<u64> {
        let reversed = Tnum { value: !self.value & !self.mask, mask: self.mask };
        match reversed.first_from(!max) {
            Some(number) => Some(!number),
            None => None,
        }
    }

    /// Members of both; `None` if a bit is known to differ.
    pub(crate) const fn intersect(self, other: Tnum) -> Option<Tnum> {
        if (self.value ^ other.value) & !self.mask & !other.mask != 0 {
            return None;
        }
        let mask = self.mask & other.mask;
        Some(Tnum { value: (self.value | other.value) & !mask, mask })
    }

    /// All members of `other` are members.
    pub(crate) const fn contains(self, other: Tnum) -> bool {
        other.mask & !self.mask == 0 && other.value & !self.mask == self.value
    }

    /// The low `bits` bits, the rest 0.
    pub(crate) const fn low(self, bits: u32) -> Tnum {
        let keep = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        Tnum { value: self.value & keep, mask: self.mask & keep }
    }

    pub(crate) const fn add(self, other: Tnum) -> Tnum {
        let values = self.value.wrapping_add(other.value);
        let all = self.mask.wrapping_add(other.mask).wrapping_add(values);
        let mask = (all ^ values) | self.mask | other.mask;
        Tnum { value: values & !mask, mask }
    }

    pub(crate) const fn sub(self, other: Tnum) -> Tnum {
        let difference = self.value.wrapping_sub(other.value);
        let most = difference.wrapping_add(self.mask);
        let least = difference.wrapping_sub(other.mask);
        let mask = (most ^ least) | self.mask | other.mask;
        Tnum { value: difference & !mask, mask }
    }

    pub(crate) const fn and(self, other: Tnum) -> Tnum {
        let value = self.value & other.value;
        let possible = self.max() & other.max();
        Tnum { value, mask: possible & !value }
    }

    pub(crate) const fn or(self, other: Tnum) -> Tnum {
        let value = self.value | other.value;
        Tnum { value, mask: (self.mask | other.mask) & !value }
    }

    pub(crate) const fn xor(self, other: Tnum) -> Tnum {
        let mask = self.mask | other.mask;
        Tnum { value: (self.value ^ other.value) & !mask, mask }
    }

    pub(crate) const fn shl(self, by: u32) -> Tnum {
        Tnum { value: self.value << by, mask: self.mask << by }
    }

    pub(crate) const fn shr(self, by: u32) -> Tnum {
        Tnum { value: self.value >> by, mask: self.mask >> by }
    }

    /// An unknown sign bit spreads through `mask`.
    pub(crate) const fn sar(self, by: u32) -> Tnum {
        Tnum { value: (self.value as i64 >> by) as u64, mask: (self.mask as i64 >> by) as u64 }
    }

    /// What [`Tnum::sum_of_products`] gives depends on which factor leads: what both say holds.
    pub(crate) const fn mul(self, other: Tnum) -> Tnum {
        if self.mask | other.mask == 0 || self.max() == 0 || other.max() == 0 {
            return Tnum::constant(self.value.wrapping_mul(other.value));
        }
        if self.mask == u64::MAX || other.mask == u64::MAX {
            return Tnum::UNKNOWN.shl(self.max().trailing_zeros() + other.max().trailing_zeros());
        }
        let product = self.sum_of_products(other);
        product.and_also(other.sum_of_products(self))
    }

    /// Two school multiplications, neither of which is always better. Both add a shifted `other` for each bit of
    /// `self`. The paper's adds the known parts apart from the unknown ones; the other one (that of
    /// kernel/bpf/tnum.c:tnum_mul since v6.18) joins, for an unknown bit, the sums with and without.
    const fn sum_of_products(self, other: Tnum) -> Tnum {
        let (mut left, mut right) = (self, other);
        let (mut unknown, mut sum) = (Tnum::constant(0), Tnum::constant(0));
        while left.value | left.mask != 0 {
            if left.value & 1 != 0 {
                unknown = unknown.add(Tnum { value: 0, mask: right.mask });
                sum = sum.add(right);
            } else if left.mask & 1 != 0 {
                unknown = unknown.add(Tnum { value: 0, mask: right.max() });
                sum = sum.join(sum.add(right));
            }
            left = left.shr(1);
            right = right.shl(1);
        }
        Tnum::constant(self.value.wrapping_mul(other.value)).add(unknown).and_also(sum)
    }

    /// Members of both, of which there are some.
    const fn and_also(self, other: Tnum) -> Tnum {
        match self.intersect(other) {
            Some(both) => both,
            None => self,
        }
    }

    /// All members of either.
    const fn join(self, other: Tnum) -> Tnum {
        let mask = self.mask | other.mask | (self.value ^ other.value);
        Tnum { value: self.value & !mask, mask }
    }
}

#[cfg(test)]
mod tests;
