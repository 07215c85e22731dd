//! What is known of a number: its bits, and ranges of it read as unsigned, signed, and of its low half.
//!
//! The five views are kept apart because branches and operations speak of one of them; [`Scalar::settle`] lets each
//! learn from the others. Mirrors the role of kernel/bpf/verifier.c:reg_bounds_sync.

use ring3_isa::{AluOp, Cond, Width};

use crate::tnum::Tnum;

/// The low half.
const LOW: u64 = 0xffff_ffff;

/// A set of 64-bit numbers. Never empty once settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub(crate) bits: Tnum,
    pub(crate) umin: u64,
    pub(crate) umax: u64,
    pub(crate) smin: i64,
    pub(crate) smax: i64,
    pub(crate) umin32: u32,
    pub(crate) umax32: u32,
    pub(crate) smin32: i32,
    pub(crate) smax32: i32,
}

/// Numbers that both readings allow: those without the sign's bit, then those with it. Either part may be empty.
macro_rules! learn_signs {
    ($set:ident, $umin:ident, $umax:ident, $smin:ident, $smax:ident, $unsigned:ty, $signed:ty) => {
        let plus = ($set.$umin.max($set.$smin.max(0) as $unsigned), $set.$umax.min($set.$smax as $unsigned));
        let minus = ($set.$umin.max($set.$smin as $unsigned), $set.$umax.min($set.$smax.min(-1) as $unsigned));
        let has_plus = $set.$smax >= 0 && plus.0 <= plus.1;
        let has_minus = $set.$smin < 0 && minus.0 <= minus.1;
        let (first, last) = match (has_plus, has_minus) {
            (true, true) => (plus, minus),
            (true, false) => (plus, plus),
            (false, true) => (minus, minus),
            (false, false) => return None,
        };
        ($set.$umin, $set.$umax) = (first.0, last.1);
        ($set.$smin, $set.$smax) = (last.0 as $signed, first.1 as $signed);
    };
}

impl Scalar {
    pub(crate) const UNKNOWN: Scalar = Scalar {
        bits: Tnum::UNKNOWN,
        umin: 0,
        umax: u64::MAX,
        smin: i64::MIN,
        smax: i64::MAX,
        umin32: 0,
        umax32: u32::MAX,
        smin32: i32::MIN,
        smax32: i32::MAX,
    };

    pub(crate) const fn constant(value: u64) -> Scalar {
        Scalar {
            bits: Tnum::constant(value),
            umin: value,
            umax: value,
            smin: value as i64,
            smax: value as i64,
            umin32: value as u32,
            umax32: value as u32,
            smin32: value as i32,
            smax32: value as i32,
        }
    }

    pub(crate) fn unsigned(min: u64, max: u64) -> Scalar {
        Scalar { umin: min, umax: max, ..Scalar::UNKNOWN }.settle().unwrap_or(Scalar::UNKNOWN)
    }

    pub(crate) fn signed(min: i64, max: i64) -> Scalar {
        Scalar { smin: min, smax: max, ..Scalar::UNKNOWN }.settle().unwrap_or(Scalar::UNKNOWN)
    }

    /// What a zero-extending load of `bytes` bytes can give.
    pub(crate) fn loaded(bytes: u32) -> Scalar {
        if bytes >= 8 { Scalar::UNKNOWN } else { Scalar::unsigned(0, (1 << (bytes * 8)) - 1) }
    }

    pub(crate) fn value(&self) -> Option<u64> {
        (self.umin == self.umax).then_some(self.umin)
    }

    /// The low half, if it is known.
    pub(crate) fn value32(&self) -> Option<u32> {
        (self.umin32 == self.umax32).then_some(self.umin32)
    }

    /// All members of `other` are members.
    pub(crate) fn contains(&self, other: &Scalar) -> bool {
        self.umin <= other.umin
            && other.umax <= self.umax
            && self.smin <= other.smin
            && other.smax <= self.smax
            && self.umin32 <= other.umin32
            && other.umax32 <= self.umax32
            && self.smin32 <= other.smin32
            && other.smax32 <= self.smax32
            && self.bits.contains(other.bits)
    }

    /// Lets the views learn from each other; `None` if they contradict each other: no number is left.
    pub(crate) fn settle(mut self) -> Option<Scalar> {
        // The second round sometimes learns; no third one was ever seen to.
        const ROUNDS_MAX: u32 = 3;
        for _ in 0..ROUNDS_MAX {
            if let Some(value) = self.only() {
                let constant = Scalar::constant(value);
                return self.contains(&constant).then_some(constant);
            }
            let before = self;
            self.learn_from_bits()?;
            learn_signs!(self, umin, umax, smin, smax, u64, i64);
            self.learn_low_half();
            learn_signs!(self, umin32, umax32, smin32, smax32, u32, i32);
            self.learn_from_low_half()?;
            if self.umin > self.umax || self.smin > self.smax {
                return None;
            }
            let half = Tnum::range(u64::from(self.umin32), u64::from(self.umax32));
            let half = Tnum { value: half.value, mask: half.mask | !LOW };
            self.bits = self.bits.intersect(Tnum::range(self.umin, self.umax))?.intersect(half)?;
            if self == before {
                break;
            }
        }
        Some(self)
    }

    /// The only number there can be, if one of the wide views leaves no other.
    fn only(&self) -> Option<u64> {
        if self.bits.mask == 0 {
            return Some(self.bits.value);
        }
        if self.smin == self.smax { Some(self.smin as u64) } else { self.value() }
    }

    /// The ends of ranges become numbers that the bits allow.
    fn learn_from_bits(&mut self) -> Option<()> {
        const SIGN: u64 = 1 << 63;
        const SIGN32: u64 = 1 << 31;
        let bits = self.bits;
        (self.umin, self.umax) = (bits.first_from(self.umin)?, bits.last_to(self.umax)?);
        // In this order of the numbers the negative ones come first.
        let signed = bits.flip(SIGN);
        self.smin = (signed.first_from(self.smin as u64 ^ SIGN)? ^ SIGN) as i64;
        self.smax = (signed.last_to(self.smax as u64 ^ SIGN)? ^ SIGN) as i64;
        let half = bits.low(32);
        self.umin32 = half.first_from(u64::from(self.umin32))? as u32;
        self.umax32 = half.last_to(u64::from(self.umax32))? as u32;
        let signed = half.flip(SIGN32);
        self.smin32 = (signed.first_from(u64::from(self.smin32 as u32) ^ SIGN32)? ^ SIGN32) as i32;
        self.smax32 = (signed.last_to(u64::from(self.smax32 as u32) ^ SIGN32)? ^ SIGN32) as i32;
        Some(())
    }

    /// The low halves of fewer than 2^32 numbers in a row are a range in one reading or the other.
    fn learn_low_half(&mut self) {
        for (min, max) in [(self.umin, self.umax), (self.smin as u64, self.smax as u64)] {
            if max.wrapping_sub(min) > LOW {
                continue;
            }
            let (min, max) = (min as u32, max as u32);
            if min <= max {
                (self.umin32, self.umax32) = (self.umin32.max(min), self.umax32.min(max));
            }
            let (min, max) = (min as i32, max as i32);
            if min <= max {
                (self.smin32, self.smax32) = (self.smin32.max(min), self.smax32.min(max));
            }
        }
    }

    /// The ends of ranges become numbers with a low half that there can be.
    fn learn_from_low_half(&mut self) -> Option<()> {
        const UPPER_ONE: u64 = 1 << 32;
        let ends = |min: u64, max: u64| {
            let first = self.low_half_from(min as u32).map_or((true, self.umin32), |low| (false, low));
            let last = self.low_half_to(max as u32).map_or((true, self.umax32), |low| (false, low));
            (first, last)
        };
        let place = |number: u64, low: u32| number & !LOW | u64::from(low);
        let ((next, first), (previous, last)) = ends(self.umin, self.umax);
        let (smin, smax) = (self.smin as u64, self.smax as u64);
        let ((signed_next, signed_first), (signed_previous, signed_last)) = ends(smin, smax);
        let step = |wanted: bool| if wanted { UPPER_ONE } else { 0 };
        self.umin = place(self.umin, first).checked_add(step(next))?;
        self.umax = place(self.umax, last).checked_sub(step(previous))?;
        self.smin = (place(smin, signed_first) as i64).checked_add(step(signed_next) as i64)?;
        self.smax = (place(smax, signed_last) as i64).checked_sub(step(signed_previous) as i64)?;
        Some(())
    }

    /// Where both readings of the low half cross the sign's boundary, nothing lies between.
    fn low_half_gap(&self) -> Option<(u32, u32)> {
        (self.smin32 < 0 && self.smax32 >= 0).then_some((self.smax32 as u32, self.smin32 as u32))
    }

    fn low_half_from(&self, low: u32) -> Option<u32> {
        match self.low_half_gap() {
            _ if low > self.umax32 => None,
            Some((before, after)) if before < low && low < after => Some(after),
            _ => Some(low.max(self.umin32)),
        }
    }

    fn low_half_to(&self, low: u32) -> Option<u32> {
        match self.low_half_gap() {
            _ if low < self.umin32 => None,
            Some((before, after)) if before < low && low < after => Some(before),
            _ => Some(low.min(self.umax32)),
        }
    }

    /// The low half, zero-extended.
    pub(crate) fn zero_extended(&self) -> Scalar {
        if self.umax <= LOW {
            return *self;
        }
        let (umin, umax) = (u64::from(self.umin32), u64::from(self.umax32));
        Scalar { bits: self.bits.low(32), umin, umax, smin: umin as i64, smax: umax as i64, ..*self }.settled()
    }

    /// The low half, sign-extended.
    fn sign_extended(&self) -> Scalar {
        let (smin, smax) = (i64::from(self.smin32), i64::from(self.smax32));
        if (smin, smax) == (self.smin, self.smax) {
            return *self;
        }
        Scalar { bits: self.bits.shl(32).sar(32), umin: 0, umax: u64::MAX, smin, smax, ..*self }.settled()
    }

    fn settled(self) -> Scalar {
        self.settle().unwrap_or(Scalar::UNKNOWN)
    }

    /// The low `bits` bits, zero-extended.
    pub(crate) fn truncated(&self, bits: u32) -> Scalar {
        match bits {
            64 => *self,
            32 => self.zero_extended(),
            _ if self.umax < 1 << bits => *self,
            _ => {
                let most = (1 << bits) - 1;
                let (umin, umax) = match self.row(most) {
                    Some((min, max)) if min & most <= max & most => (min & most, max & most),
                    _ => (0, most),
                };
                Scalar { bits: self.bits.low(bits), umin, umax, ..Scalar::UNKNOWN }.settled()
            }
        }
    }

    /// The ends of a range at most `distance_max` long, in which a number with the same low half lies.
    fn row(&self, distance_max: u64) -> Option<(u64, u64)> {
        let rows = [
            (self.umin, self.umax),
            (self.smin as u64, self.smax as u64),
            (self.umin32.into(), self.umax32.into()),
            (i64::from(self.smin32) as u64, i64::from(self.smax32) as u64),
        ];
        rows.into_iter().find(|(min, max)| max.wrapping_sub(*min) <= distance_max)
    }

    /// The low `bits` bits, of which alone there are any, with their bytes in the other order.
    pub(crate) fn swapped(&self, bits: u32) -> Scalar {
        let Tnum { value, mask } = self.bits;
        let swap = |word: u64| word.swap_bytes() >> (64 - bits);
        Scalar { bits: Tnum { value: swap(value), mask: swap(mask) }, ..Scalar::UNKNOWN }.settled()
    }

    /// The low `bits` bits, sign-extended to `width`.
    pub(crate) fn extended(&self, bits: u32, width: Width) -> Scalar {
        let above = 64 - bits;
        let extend = |number: u64| (number << above) as i64 >> above;
        let all = (extend(1 << (bits - 1)), (1 << (bits - 1)) - 1);
        let wide = if bits == 32 {
            self.sign_extended()
        } else if all.0 <= self.smin && self.smax <= all.1 {
            *self
        } else {
            let row = self.row((1 << bits) - 1).map(|(min, max)| (extend(min), extend(max)));
            let (smin, smax) = row.filter(|(min, max)| min <= max).unwrap_or(all);
            Scalar { bits: self.bits.shl(above).sar(above), smin, smax, ..Scalar::UNKNOWN }.settled()
        };
        if width == Width::W32 { wide.zero_extended() } else { wide }
    }

    /// `self op other`.
    pub(crate) fn compute(&self, width: Width, op: AluOp, other: &Scalar) -> Scalar {
        match (width, op) {
            (Width::W64, AluOp::Mov) => *other,
            (Width::W32, AluOp::Mov) => other.zero_extended(),
            _ if depends_on_low_bits_only(op) => self.compute_by_readings(width, op, other),
            (Width::W64, _) => wide(op, self, other, 64),
            (Width::W32, AluOp::Arsh) => wide(op, &self.sign_extended(), other, 32).zero_extended(),
            (Width::W32, AluOp::Sdiv | AluOp::Smod) => {
                wide(op, &self.sign_extended(), &other.sign_extended(), 32).zero_extended()
            }
            (Width::W32, _) => wide(op, &self.zero_extended(), &other.zero_extended(), 32).zero_extended(),
        }
    }

    /// What holds of the low half of the result for one reading of the operands' low halves holds for all: for those
    /// that have nothing above, and for those that have copies of the sign.
    fn compute_by_readings(&self, width: Width, op: AluOp, other: &Scalar) -> Scalar {
        let zero = || (self.zero_extended(), other.zero_extended());
        let (first, bits) = if width == Width::W64 { ((*self, *other), 64) } else { (zero(), 32) };
        let mut known = wide(op, &first.0, &first.1, bits);
        if width == Width::W32 {
            known = known.zero_extended();
        }
        if known.value().is_some() {
            return known;
        }
        let zero = zero();
        if zero != first {
            known = known.with_low_half(&wide(op, &zero.0, &zero.1, bits));
        }
        let sign = (self.sign_extended(), other.sign_extended());
        if sign != first && sign != zero {
            known = known.with_low_half(&wide(op, &sign.0, &sign.1, bits));
        }
        known
    }

    /// Those whose low half is that of a member of `low`.
    fn with_low_half(self, low: &Scalar) -> Scalar {
        let bits = Tnum { value: low.bits.value & LOW, mask: low.bits.mask | !LOW };
        let both = self.bits.intersect(bits).and_then(|bits| {
            let (umin32, umax32) = (self.umin32.max(low.umin32), self.umax32.min(low.umax32));
            let (smin32, smax32) = (self.smin32.max(low.smin32), self.smax32.min(low.smax32));
            Scalar { bits, umin32, umax32, smin32, smax32, ..self }.settle()
        });
        both.unwrap_or(self)
    }

    /// `(self, other)` where `self cond other` holds; `None` if it never does.
    pub(crate) fn assume(&self, width: Width, cond: Test, other: &Scalar) -> Option<(Scalar, Scalar)> {
        let (mut a, mut b) = (*self, *other);
        let possible = match width {
            Width::W64 => assume64(&mut a, cond, &mut b),
            Width::W32 => assume32(&mut a, cond, &mut b),
        };
        if possible { Some((a.settle()?, b.settle()?)) } else { None }
    }
}

/// A condition as it is assumed on one path of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Holds(Cond),
    Fails(Cond),
}

/// `a < b`, `a <= b`, ... : which of the sides is the smaller, and whether they may be equal.
enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Test {
    fn order(self) -> Option<(Order, bool)> {
        let (cond, holds) = match self {
            Test::Holds(cond) => (cond, true),
            Test::Fails(cond) => (cond, false),
        };
        let (order, signed) = match cond {
            Cond::Gt => (Order::Greater, false),
            Cond::Ge => (Order::GreaterOrEqual, false),
            Cond::Lt => (Order::Less, false),
            Cond::Le => (Order::LessOrEqual, false),
            Cond::Sgt => (Order::Greater, true),
            Cond::Sge => (Order::GreaterOrEqual, true),
            Cond::Slt => (Order::Less, true),
            Cond::Sle => (Order::LessOrEqual, true),
            Cond::Eq | Cond::Ne | Cond::Set => return None,
        };
        let order = match (order, holds) {
            (order, true) => order,
            (Order::Greater, false) => Order::LessOrEqual,
            (Order::GreaterOrEqual, false) => Order::Less,
            (Order::Less, false) => Order::GreaterOrEqual,
            (Order::LessOrEqual, false) => Order::Greater,
        };
        Some((order, signed))
    }
}

macro_rules! assume_order {
    ($a:expr, $order:expr, $b:expr, $min:ident, $max:ident) => {{
        let (small, large, strict) = match $order {
            Order::Less => ($a, $b, 1),
            Order::LessOrEqual => ($a, $b, 0),
            Order::Greater => ($b, $a, 1),
            Order::GreaterOrEqual => ($b, $a, 0),
        };
        match (large.$max.checked_sub(strict), small.$min.checked_add(strict)) {
            (Some(max), Some(min)) => {
                small.$max = small.$max.min(max);
                large.$min = large.$min.max(min);
                true
            }
            _ => false,
        }
    }};
}

macro_rules! exclude {
    ($a:expr, $value:expr, $min:ident, $max:ident) => {
        if $a.$min == $a.$max {
            if $a.$min == $value {
                return false;
            }
        } else if $a.$min == $value {
            $a.$min += 1;
        } else if $a.$max == $value {
            $a.$max -= 1;
        }
    };
}

fn assume64(a: &mut Scalar, test: Test, b: &mut Scalar) -> bool {
    if let Some((order, signed)) = test.order() {
        return if signed { assume_order!(a, order, b, smin, smax) } else { assume_order!(a, order, b, umin, umax) };
    }
    match test {
        Test::Holds(Cond::Eq) | Test::Fails(Cond::Ne) => {
            let Some(bits) = a.bits.intersect(b.bits) else { return false };
            let both = Scalar {
                bits,
                umin: a.umin.max(b.umin),
                umax: a.umax.min(b.umax),
                smin: a.smin.max(b.smin),
                smax: a.smax.min(b.smax),
                umin32: a.umin32.max(b.umin32),
                umax32: a.umax32.min(b.umax32),
                smin32: a.smin32.max(b.smin32),
                smax32: a.smax32.min(b.smax32),
            };
            (*a, *b) = (both, both);
            true
        }
        Test::Holds(Cond::Set) => assume_set(a, b, u64::MAX),
        Test::Fails(Cond::Set) => assume_clear(a, b, u64::MAX),
        _ => {
            let (left, right) = (*a, *b);
            for (x, y) in [(a, right), (b, left)] {
                if let Some(value) = y.value() {
                    exclude!(x, value, umin, umax);
                    exclude!(x, value as i64, smin, smax);
                }
            }
            true
        }
    }
}

fn assume32(a: &mut Scalar, test: Test, b: &mut Scalar) -> bool {
    if let Some((order, signed)) = test.order() {
        return if signed {
            assume_order!(a, order, b, smin32, smax32)
        } else {
            assume_order!(a, order, b, umin32, umax32)
        };
    }
    match test {
        Test::Holds(Cond::Eq) | Test::Fails(Cond::Ne) => {
            let Some(bits) = a.bits.low(32).intersect(b.bits.low(32)) else { return false };
            let (umin32, umax32) = (a.umin32.max(b.umin32), a.umax32.min(b.umax32));
            let (smin32, smax32) = (a.smin32.max(b.smin32), a.smax32.min(b.smax32));
            for x in [a, b] {
                let bits = Tnum { value: x.bits.value & !LOW | bits.value, mask: x.bits.mask & !LOW | bits.mask };
                *x = Scalar { bits, umin32, umax32, smin32, smax32, ..*x };
            }
            true
        }
        Test::Holds(Cond::Set) => assume_set(a, b, LOW),
        Test::Fails(Cond::Set) => assume_clear(a, b, LOW),
        _ => {
            let (left, right) = (*a, *b);
            for (x, y) in [(a, right), (b, left)] {
                if let Some(value) = y.value32() {
                    exclude!(x, value, umin32, umax32);
                    exclude!(x, value as i32, smin32, smax32);
                }
            }
            true
        }
    }
}

/// `a & b & within != 0`
fn assume_set(a: &mut Scalar, b: &mut Scalar, within: u64) -> bool {
    if a.bits.max() & b.bits.max() & within == 0 {
        return false;
    }
    let (left, right) = (a.bits, b.bits);
    for (x, y) in [(a, right), (b, left)] {
        let wanted = y.value & within;
        if y.mask & within == 0 && wanted.is_power_of_two() {
            x.bits = Tnum { value: x.bits.value | wanted, mask: x.bits.mask & !wanted };
        }
    }
    true
}

/// `a & b & within == 0`
fn assume_clear(a: &mut Scalar, b: &mut Scalar, within: u64) -> bool {
    if a.bits.value & b.bits.value & within != 0 {
        return false;
    }
    let (from_a, from_b) = (a.bits.value & within, b.bits.value & within);
    a.bits.mask &= !from_b;
    b.bits.mask &= !from_a;
    true
}

fn depends_on_low_bits_only(op: AluOp) -> bool {
    matches!(op, AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor | AluOp::Lsh)
}

/// `a op b` on 64 bits; shift counts are those of operations on `bits` bits.
fn wide(op: AluOp, a: &Scalar, b: &Scalar, bits: u32) -> Scalar {
    let result = match op {
        AluOp::Add => add(a, b),
        AluOp::Sub => sub(a, b),
        AluOp::Mul => mul(a, b),
        AluOp::And => Scalar { bits: a.bits.and(b.bits), umax: a.umax.min(b.umax), ..copies_of_sign(a, b) },
        AluOp::Or => Scalar { bits: a.bits.or(b.bits), umin: a.umin.max(b.umin), ..copies_of_sign(a, b) },
        AluOp::Xor => Scalar { bits: a.bits.xor(b.bits), ..copies_of_sign(a, b) },
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => shift(op, a, b, bits),
        AluOp::Div | AluOp::Mod | AluOp::Sdiv | AluOp::Smod => divide(op, a, b),
        AluOp::Mov => *b,
    };
    result.settled()
}

/// The numbers whose upper bits are copies of the sign, as many as in all members of both: bitwise operations on
/// those give such a number.
fn copies_of_sign(a: &Scalar, b: &Scalar) -> Scalar {
    let differ = [a, b].map(|x| (x.smin ^ x.smin >> 63) | (x.smax ^ x.smax >> 63));
    let copies = (differ[0] | differ[1]).leading_zeros() - 1;
    Scalar { smin: i64::MIN >> copies, smax: i64::MAX >> copies, ..Scalar::UNKNOWN }
}

/// A range whose ends wrap both or not at all is still a range.
macro_rules! ends {
    ($min:expr, $max:expr, $all:expr) => {
        match ($min, $max) {
            ((min, first), (max, second)) if first == second => (min, max),
            _ => $all,
        }
    };
}

fn add(a: &Scalar, b: &Scalar) -> Scalar {
    let (umin, umax) = ends!(a.umin.overflowing_add(b.umin), a.umax.overflowing_add(b.umax), (0, u64::MAX));
    let (smin, smax) = match (a.smin.checked_add(b.smin), a.smax.checked_add(b.smax)) {
        (Some(min), Some(max)) => (min, max),
        _ => (i64::MIN, i64::MAX),
    };
    Scalar { bits: a.bits.add(b.bits), umin, umax, smin, smax, ..Scalar::UNKNOWN }
}

fn sub(a: &Scalar, b: &Scalar) -> Scalar {
    let (umin, umax) = ends!(a.umin.overflowing_sub(b.umax), a.umax.overflowing_sub(b.umin), (0, u64::MAX));
    let (smin, smax) = match (a.smin.checked_sub(b.smax), a.smax.checked_sub(b.smin)) {
        (Some(min), Some(max)) => (min, max),
        _ => (i64::MIN, i64::MAX),
    };
    Scalar { bits: a.bits.sub(b.bits), umin, umax, smin, smax, ..Scalar::UNKNOWN }
}

fn mul(a: &Scalar, b: &Scalar) -> Scalar {
    let mut result = Scalar { bits: a.bits.mul(b.bits), ..Scalar::UNKNOWN };
    if let Some(umax) = a.umax.checked_mul(b.umax) {
        (result.umin, result.umax) = (a.umin * b.umin, umax);
    }
    let corners = [(a.smin, b.smin), (a.smin, b.smax), (a.smax, b.smin), (a.smax, b.smax)];
    let products = corners.map(|(x, y)| x.checked_mul(y));
    if let [Some(p), Some(q), Some(r), Some(s)] = products {
        (result.smin, result.smax) = (p.min(q).min(r).min(s), p.max(q).max(r).max(s));
    }
    result
}

/// Counts are taken modulo `bits`.
fn shift(op: AluOp, a: &Scalar, b: &Scalar, bits: u32) -> Scalar {
    let count = b.truncated(bits.ilog2());
    let (least, most) = (count.umin as u32, count.umax as u32);
    let known = least == most;
    let mut result = Scalar::UNKNOWN;
    match op {
        AluOp::Lsh => {
            if known {
                result.bits = a.bits.shl(least);
            }
            // Nothing of what lies above the low half is left.
            let (umin, umax) = if least >= 32 { (a.umin32.into(), a.umax32.into()) } else { (a.umin, a.umax) };
            let (smin, smax) = if least >= 32 { (a.smin32.into(), a.smax32.into()) } else { (a.smin, a.smax) };
            if umax <= u64::MAX >> most {
                (result.umin, result.umax) = (umin << least, umax << most);
            }
            let room = i64::MIN >> most..=i64::MAX >> most;
            if room.contains(&smin) && room.contains(&smax) {
                result.smin = smin << if smin < 0 { most } else { least };
                result.smax = smax << if smax < 0 { least } else { most };
            }
        }
        AluOp::Rsh => {
            if known {
                result.bits = a.bits.shr(least);
            }
            (result.umin, result.umax) = (a.umin >> most, a.umax >> least);
        }
        _ => {
            if known {
                result.bits = a.bits.sar(least);
            }
            result.smin = (a.smin >> least).min(a.smin >> most);
            result.smax = (a.smax >> least).max(a.smax >> most);
        }
    }
    result
}

/// Division by zero gives 0, remainder by zero the dividend, `MIN / -1` is `MIN`; so it is in the low half of
/// sign-extended operands.
fn divide(op: AluOp, a: &Scalar, b: &Scalar) -> Scalar {
    if let (Some(x), Some(y)) = (a.value(), b.value()) {
        let (signed_x, signed_y) = (x as i64, y as i64);
        return Scalar::constant(match op {
            AluOp::Div => x.checked_div(y).unwrap_or(0),
            AluOp::Mod => x.checked_rem(y).unwrap_or(x),
            _ if y == 0 => {
                if op == AluOp::Sdiv {
                    0
                } else {
                    x
                }
            }
            AluOp::Sdiv => signed_x.wrapping_div(signed_y) as u64,
            _ => signed_x.wrapping_rem(signed_y) as u64,
        });
    }
    match op {
        AluOp::Div => {
            let (umin, umax) = match b.umin {
                0 => (0, a.umax),
                least => (a.umin / b.umax, a.umax / least),
            };
            Scalar { umin, umax, ..Scalar::UNKNOWN }
        }
        AluOp::Mod if a.umax < b.umin => *a,
        AluOp::Mod => {
            let umax = if b.umin == 0 { a.umax } else { a.umax.min(b.umax - 1) };
            Scalar { umax, ..Scalar::UNKNOWN }
        }
        AluOp::Smod if b.smin > 0 => {
            let most = b.smax - 1;
            let (smin, smax) = (if a.smin >= 0 { 0 } else { -most }, if a.smax <= 0 { 0 } else { most });
            Scalar { smin, smax, ..Scalar::UNKNOWN }
        }
        _ => Scalar::UNKNOWN,
    }
}

#[cfg(test)]
mod tests;
