//! What is known of a number: its bits, and ranges of it read as unsigned, signed, and of its low half.
//!
//! The five views are kept apart because branches and operations speak of one of them; [`Scalar::settle`] lets each
//! learn from the others. Mirrors the role of kernel/bpf/verifier.c:reg_bounds_sync.

use ring3_isa::{AluOp, Cond, Width};

use crate::tnum::Tnum;

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
        const ROUNDS_MAX: u32 = 8;
        for _ in 0..ROUNDS_MAX {
            let before = self;
            self.learn_from_bits();
            self.learn_signs();
            self.learn_halves();
            if self.umin > self.umax
                || self.smin > self.smax
                || self.umin32 > self.umax32
                || self.smin32 > self.smax32
            {
                return None;
            }
            let half = Tnum::range(u64::from(self.umin32), u64::from(self.umax32));
            let half = Tnum { value: half.value, mask: half.mask | !0xffff_ffff };
            self.bits = self.bits.intersect(Tnum::range(self.umin, self.umax))?.intersect(half)?;
            if self == before {
                break;
            }
        }
        Some(self)
    }

    fn learn_from_bits(&mut self) {
        const SIGN: u64 = 1 << 63;
        const SIGN32: u64 = 1 << 31;
        let Tnum { value, mask } = self.bits;
        self.umin = self.umin.max(value);
        self.umax = self.umax.min(value | mask);
        self.smin = self.smin.max((value | (mask & SIGN)) as i64);
        self.smax = self.smax.min((value | (mask & !SIGN)) as i64);
        self.umin32 = self.umin32.max(value as u32);
        self.umax32 = self.umax32.min((value | mask) as u32);
        self.smin32 = self.smin32.max((value | (mask & SIGN32)) as i32);
        self.smax32 = self.smax32.min((value | (mask & !SIGN32)) as i32);
    }

    /// A range that does not cross the sign's boundary means the same in both readings.
    fn learn_signs(&mut self) {
        if self.umin as i64 <= self.umax as i64 && self.umin <= self.umax {
            self.smin = self.smin.max(self.umin as i64);
            self.smax = self.smax.min(self.umax as i64);
        }
        if (self.smin >= 0) == (self.smax >= 0) && self.smin <= self.smax {
            self.umin = self.umin.max(self.smin as u64);
            self.umax = self.umax.min(self.smax as u64);
        }
        if self.umin32 as i32 <= self.umax32 as i32 && self.umin32 <= self.umax32 {
            self.smin32 = self.smin32.max(self.umin32 as i32);
            self.smax32 = self.smax32.min(self.umax32 as i32);
        }
        if (self.smin32 >= 0) == (self.smax32 >= 0) && self.smin32 <= self.smax32 {
            self.umin32 = self.umin32.max(self.smin32 as u32);
            self.umax32 = self.umax32.min(self.smax32 as u32);
        }
    }

    fn learn_halves(&mut self) {
        const LOW: u64 = 0xffff_ffff;
        if self.umin >> 32 == self.umax >> 32 && self.umin <= self.umax {
            self.umin32 = self.umin32.max(self.umin as u32);
            self.umax32 = self.umax32.min(self.umax as u32);
        }
        if self.smin >> 32 == self.smax >> 32 && self.smin <= self.smax {
            self.umin32 = self.umin32.max(self.smin as u32);
            self.umax32 = self.umax32.min(self.smax as u32);
        }
        if let (Ok(min), Ok(max)) = (i32::try_from(self.smin), i32::try_from(self.smax)) {
            self.smin32 = self.smin32.max(min);
            self.smax32 = self.smax32.min(max);
            self.smin = self.smin.max(i64::from(self.smin32));
            self.smax = self.smax.min(i64::from(self.smax32));
        }
        // A number with the smallest upper half has a lower half of at least `umin32`; others are larger anyway.
        self.umin = self.umin.max(self.umin & !LOW | u64::from(self.umin32));
        self.umax = self.umax.min(self.umax & !LOW | u64::from(self.umax32));
        self.smin = self.smin.max((self.smin as u64 & !LOW | u64::from(self.umin32)) as i64);
        self.smax = self.smax.min((self.smax as u64 & !LOW | u64::from(self.umax32)) as i64);
    }

    /// The low half, zero-extended.
    pub(crate) fn zero_extended(&self) -> Scalar {
        let (umin, umax) = (u64::from(self.umin32), u64::from(self.umax32));
        Scalar { bits: self.bits.low(32), umin, umax, smin: umin as i64, smax: umax as i64, ..*self }.settled()
    }

    /// The low half, sign-extended.
    fn sign_extended(&self) -> Scalar {
        Scalar {
            bits: Tnum { value: self.bits.value << 32, mask: self.bits.mask << 32 }.sar(32),
            umin: 0,
            umax: u64::MAX,
            smin: i64::from(self.smin32),
            smax: i64::from(self.smax32),
            ..*self
        }
        .settled()
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
            _ => Scalar { bits: self.bits.low(bits), ..Scalar::unsigned(0, (1 << bits) - 1) }.settled(),
        }
    }

    /// The low `bits` bits, of which alone there are any, with their bytes in the other order.
    pub(crate) fn swapped(&self, bits: u32) -> Scalar {
        let Tnum { value, mask } = self.bits;
        let swap = |word: u64| word.swap_bytes() >> (64 - bits);
        Scalar { bits: Tnum { value: swap(value), mask: swap(mask) }, ..Scalar::UNKNOWN }.settled()
    }

    /// The low `bits` bits, sign-extended to `width`.
    pub(crate) fn extended(&self, bits: u32, width: Width) -> Scalar {
        let wide = match bits {
            32 => self.sign_extended(),
            _ => {
                let (min, max) = (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1);
                if min <= self.smin && self.smax <= max {
                    *self
                } else {
                    let bits = self.bits.shl(64 - bits).sar(64 - bits);
                    Scalar { bits, ..Scalar::signed(min, max) }.settled()
                }
            }
        };
        if width == Width::W32 { wide.zero_extended() } else { wide }
    }

    /// `self op other`.
    pub(crate) fn compute(&self, width: Width, op: AluOp, other: &Scalar) -> Scalar {
        if op == AluOp::Mov {
            return if width == Width::W32 { other.zero_extended() } else { *other };
        }
        let bits = if width == Width::W64 { 64 } else { 32 };
        if width == Width::W32 {
            return self.compute_low(op, other, bits).zero_extended();
        }
        let wide = wide(op, self, other, bits);
        if !depends_on_low_bits_only(op) {
            return wide;
        }
        let low = self.compute_low(op, other, bits);
        Scalar { umin32: low.umin32, umax32: low.umax32, smin32: low.smin32, smax32: low.smax32, ..wide }
            .settle()
            .unwrap_or(wide)
    }

    /// The low half of the result is right, the rest of no meaning.
    fn compute_low(&self, op: AluOp, other: &Scalar, bits: u32) -> Scalar {
        match op {
            AluOp::Arsh | AluOp::Sdiv | AluOp::Smod => {
                let right = if op == AluOp::Arsh { other.zero_extended() } else { other.sign_extended() };
                wide(op, &self.sign_extended(), &right, bits)
            }
            _ if depends_on_low_bits_only(op) => {
                let a = wide(op, &self.zero_extended(), &other.zero_extended(), bits);
                let count = op == AluOp::Lsh;
                let right = if count { other.zero_extended() } else { other.sign_extended() };
                let b = wide(op, &self.sign_extended(), &right, bits);
                let bits = a.bits.low(32).intersect(b.bits.low(32)).unwrap_or(a.bits);
                Scalar {
                    bits: Tnum { value: bits.value, mask: bits.mask | !0xffff_ffff },
                    umin32: a.umin32.max(b.umin32),
                    umax32: a.umax32.min(b.umax32),
                    smin32: a.smin32.max(b.smin32),
                    smax32: a.smax32.min(b.smax32),
                    ..Scalar::UNKNOWN
                }
                .settle()
                .unwrap_or(a)
            }
            _ => wide(op, &self.zero_extended(), &other.zero_extended(), bits),
        }
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

/// A condition as it is assumed on one way of a branch.
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
    const LOW: u64 = 0xffff_ffff;
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
        AluOp::And => {
            let umax = a.umax.min(b.umax);
            Scalar { bits: a.bits.and(b.bits), umax, ..Scalar::UNKNOWN }
        }
        AluOp::Or => {
            let umin = a.umin.max(b.umin);
            Scalar { bits: a.bits.or(b.bits), umin, ..Scalar::UNKNOWN }
        }
        AluOp::Xor => Scalar { bits: a.bits.xor(b.bits), ..Scalar::UNKNOWN },
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => shift(op, a, b, bits),
        AluOp::Div => match b.umin {
            0 => Scalar { umax: a.umax, ..Scalar::UNKNOWN },
            least => Scalar { umin: a.umin / b.umax, umax: a.umax / least, ..Scalar::UNKNOWN },
        },
        AluOp::Mod if b.umin == 0 => Scalar { umax: a.umax, ..Scalar::UNKNOWN },
        AluOp::Mod if a.umax < b.umin => *a,
        AluOp::Mod => Scalar { umax: a.umax.min(b.umax - 1), ..Scalar::UNKNOWN },
        AluOp::Sdiv | AluOp::Smod => signed_division(op, a, b),
        AluOp::Mov => *b,
    };
    result.settled()
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

fn shift(op: AluOp, a: &Scalar, b: &Scalar, bits: u32) -> Scalar {
    if b.umax >= u64::from(bits) {
        return Scalar::UNKNOWN;
    }
    let (least, most) = (b.umin as u32, b.umax as u32);
    let known = least == most;
    let mut result = Scalar::UNKNOWN;
    match op {
        AluOp::Lsh => {
            if known {
                result.bits = a.bits.shl(least);
                if (a.smin << least) >> least == a.smin && (a.smax << least) >> least == a.smax {
                    (result.smin, result.smax) = (a.smin << least, a.smax << least);
                }
            }
            if a.umax <= u64::MAX >> most {
                (result.umin, result.umax) = (a.umin << least, a.umax << most);
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
fn signed_division(op: AluOp, a: &Scalar, b: &Scalar) -> Scalar {
    if let (Some(x), Some(y)) = (a.value(), b.value()) {
        let (x, y) = (x as i64, y as i64);
        let value = match op {
            AluOp::Sdiv if y == 0 => 0,
            AluOp::Sdiv => x.wrapping_div(y),
            _ if y == 0 => x,
            _ => x.wrapping_rem(y),
        };
        return Scalar::constant(value as u64);
    }
    if op == AluOp::Smod && b.smin > 0 {
        let most = b.smax - 1;
        let (smin, smax) = (if a.smin >= 0 { 0 } else { -most }, if a.smax <= 0 { 0 } else { most });
        return Scalar { smin, smax, ..Scalar::UNKNOWN };
    }
    Scalar::UNKNOWN
}

#[cfg(test)]
mod tests;
