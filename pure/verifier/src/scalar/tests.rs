//! Every operation on sets contains what the operation on members gives.

use super::*;

mod exhaustive;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Numbers near the places where things change.
    fn number(&mut self) -> u64 {
        let base = match self.next() % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 63,
            3 => 1 << 31,
            4 => 1 << 32,
            5 => 1 << (self.next() % 64),
            6 => self.next() >> (self.next() % 64),
            _ => self.next(),
        };
        base.wrapping_add(self.next() % 7).wrapping_sub(3)
    }

    /// A set with at least this member.
    fn set_with(&mut self, member: u64) -> Scalar {
        self.raw(member).settle().expect("it has a member")
    }

    /// Something that is known of this member, in one or two of the views.
    fn raw(&mut self, member: u64) -> Scalar {
        let mut set = Scalar::UNKNOWN;
        let other = self.number();
        match self.next() % 7 {
            0 => return Scalar::constant(member),
            1 => (set.umin, set.umax) = (member.min(other), member.max(other)),
            2 => (set.smin, set.smax) = ((member as i64).min(other as i64), (member as i64).max(other as i64)),
            3 => {
                (set.umin32, set.umax32) = ((member as u32).min(other as u32), (member as u32).max(other as u32));
            }
            4 => {
                (set.smin32, set.smax32) = ((member as i32).min(other as i32), (member as i32).max(other as i32));
            }
            5 => {
                let mask = self.next() & self.next();
                set.bits = Tnum { value: member & !mask, mask };
            }
            _ => {}
        }
        if self.next().is_multiple_of(3) {
            (set.umin, set.umax) = (set.umin.max(member - member % 16), set.umax.min(member.saturating_add(100)));
        }
        set
    }
}

fn has(set: &Scalar, value: u64) -> bool {
    set.contains(&Scalar::constant(value))
}

fn concrete(width: Width, op: AluOp, a: u64, b: u64) -> u64 {
    if width == Width::W32 {
        let (a, b) = (a as u32, b as u32);
        let (sa, sb) = (a as i32, b as i32);
        return u64::from(match op {
            AluOp::Add => a.wrapping_add(b),
            AluOp::Sub => a.wrapping_sub(b),
            AluOp::Mul => a.wrapping_mul(b),
            AluOp::Div => a.checked_div(b).unwrap_or(0),
            AluOp::Sdiv => {
                if sb == 0 {
                    0
                } else {
                    sa.wrapping_div(sb) as u32
                }
            }
            AluOp::Or => a | b,
            AluOp::And => a & b,
            AluOp::Lsh => a.wrapping_shl(b),
            AluOp::Rsh => a.wrapping_shr(b),
            AluOp::Mod => a.checked_rem(b).unwrap_or(a),
            AluOp::Smod => {
                if sb == 0 {
                    a
                } else {
                    sa.wrapping_rem(sb) as u32
                }
            }
            AluOp::Xor => a ^ b,
            AluOp::Mov => b,
            AluOp::Arsh => sa.wrapping_shr(b) as u32,
        });
    }
    let (sa, sb) = (a as i64, b as i64);
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Sdiv => {
            if sb == 0 {
                0
            } else {
                sa.wrapping_div(sb) as u64
            }
        }
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Lsh => a.wrapping_shl(b as u32),
        AluOp::Rsh => a.wrapping_shr(b as u32),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::Smod => {
            if sb == 0 {
                a
            } else {
                sa.wrapping_rem(sb) as u64
            }
        }
        AluOp::Xor => a ^ b,
        AluOp::Mov => b,
        AluOp::Arsh => sa.wrapping_shr(b as u32) as u64,
    }
}

fn holds(width: Width, cond: Cond, a: u64, b: u64) -> bool {
    let (a, b, sa, sb) = match width {
        Width::W64 => (a, b, a as i64, b as i64),
        Width::W32 => (a & 0xffff_ffff, b & 0xffff_ffff, i64::from(a as i32), i64::from(b as i32)),
    };
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Set => a & b != 0,
        Cond::Sgt => sa > sb,
        Cond::Sge => sa >= sb,
        Cond::Slt => sa < sb,
        Cond::Sle => sa <= sb,
    }
}

const OPS: [AluOp; 14] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::Sdiv,
    AluOp::Or,
    AluOp::And,
    AluOp::Lsh,
    AluOp::Rsh,
    AluOp::Mod,
    AluOp::Smod,
    AluOp::Xor,
    AluOp::Mov,
    AluOp::Arsh,
];

const CONDS: [Cond; 11] = [
    Cond::Eq,
    Cond::Ne,
    Cond::Gt,
    Cond::Ge,
    Cond::Lt,
    Cond::Le,
    Cond::Set,
    Cond::Sgt,
    Cond::Sge,
    Cond::Slt,
    Cond::Sle,
];

#[test]
fn arithmetic_on_sets_contains_arithmetic_on_members() {
    let mut random = Random(1);
    for round in 0..400_000 {
        let (a, b) = (random.number(), if round % 2 == 0 { random.number() } else { random.next() % 70 });
        let (left, right) = (random.set_with(a), random.set_with(b));
        let op = OPS[round % OPS.len()];
        for width in [Width::W32, Width::W64] {
            let (set, value) = (left.compute(width, op, &right), concrete(width, op, a, b));
            assert!(has(&set, value), "{width:?} {op:?} {a:#x} {b:#x} = {value:#x}\n{left:?}\n{right:?}\n{set:?}");
        }
    }
}

#[test]
fn assuming_a_condition_keeps_members_for_which_it_holds() {
    let mut random = Random(2);
    for round in 0..400_000 {
        let a = random.number();
        let b = if random.next().is_multiple_of(4) { a } else { random.number() };
        let (left, right) = (random.set_with(a), random.set_with(b));
        let cond = CONDS[round % CONDS.len()];
        for width in [Width::W32, Width::W64] {
            let test = if holds(width, cond, a, b) { Test::Holds(cond) } else { Test::Fails(cond) };
            let kept = left.assume(width, test, &right);
            let kept = kept.unwrap_or_else(|| panic!("{width:?} {test:?} {a:#x} {b:#x}\n{left:?}\n{right:?}"));
            assert!(
                has(&kept.0, a) && has(&kept.1, b),
                "{width:?} {test:?} {a:#x} {b:#x}\n{left:?}\n{right:?}\n{kept:?}"
            );
        }
    }
}

#[test]
fn extensions_and_truncations_contain_those_of_members() {
    let mut random = Random(3);
    for _ in 0..100_000 {
        let a = random.number();
        let set = random.set_with(a);
        for bits in [8, 16, 32] {
            let cut = a & ((1 << bits) - 1);
            let extended = ((a << (64 - bits)) as i64 >> (64 - bits)) as u64;
            assert!(has(&set.truncated(bits), cut), "{a:#x} {bits} {set:?}");
            assert!(has(&set.extended(bits, Width::W64), extended), "{a:#x} {bits} {set:?}");
            assert!(has(&set.extended(bits, Width::W32), extended & 0xffff_ffff), "{a:#x} {bits} {set:?}");
        }
    }
}

#[test]
fn conditions_that_constants_decide_leave_one_way() {
    let (three, four) = (Scalar::constant(3), Scalar::constant(4));
    for width in [Width::W32, Width::W64] {
        for cond in CONDS {
            for (a, b) in [(three, four), (four, three), (three, three)] {
                let (x, y) = (a.umin, b.umin);
                assert_eq!(a.assume(width, Test::Holds(cond), &b).is_some(), holds(width, cond, x, y));
                assert_eq!(a.assume(width, Test::Fails(cond), &b).is_some(), !holds(width, cond, x, y));
            }
        }
    }
}

#[test]
fn a_bound_on_the_low_half_bounds_the_zero_extended_number() {
    let (within, _) =
        Scalar::UNKNOWN.assume(Width::W32, Test::Fails(Cond::Gt), &Scalar::constant(25)).expect("possible");
    let index = within.compute(Width::W32, AluOp::Mov, &within);
    assert_eq!((index.umin, index.umax), (0, 25));
    let offset = index.compute(Width::W64, AluOp::Lsh, &Scalar::constant(3));
    assert_eq!((offset.umin, offset.umax), (0, 200));
}

#[test]
fn numbers_that_several_things_are_known_of_stay_members() {
    let mut random = Random(4);
    for _ in 0..1_000_000 {
        let member = random.number();
        let (a, b, c) = (random.raw(member), random.raw(member), random.raw(member));
        let mut both = a;
        for other in [b, c] {
            both.bits = both.bits.intersect(other.bits).expect("they have a member in common");
            (both.umin, both.umax) = (both.umin.max(other.umin), both.umax.min(other.umax));
            (both.smin, both.smax) = (both.smin.max(other.smin), both.smax.min(other.smax));
            (both.umin32, both.umax32) = (both.umin32.max(other.umin32), both.umax32.min(other.umax32));
            (both.smin32, both.smax32) = (both.smin32.max(other.smin32), both.smax32.min(other.smax32));
        }
        let settled = both.settle().unwrap_or_else(|| panic!("{member:#x} of {both:?}"));
        assert!(has(&settled, member), "{member:#x}\n{both:?}\n{settled:?}");
        assert!(both.contains(&settled), "{both:?}\n{settled:?}");
        assert_eq!(settled.settle(), Some(settled), "nothing is left to learn of {both:?}");
    }
}

/// What the kernel (v6.18) knows here, and once we did not.
mod kernel_knows {
    use super::*;

    fn op(width: Width, op: AluOp, a: Scalar, b: u64) -> Scalar {
        a.compute(width, op, &Scalar::constant(b))
    }

    /// __scalar64_min_max_lsh, for compilers that extend signs by shifting to and fro.
    #[test]
    fn shifting_by_32_to_and_fro_extends_the_sign_of_a_range() {
        let low = Scalar { smin32: -5, smax32: 10, ..Scalar::UNKNOWN }.settle().expect("there are such numbers");
        let up = op(Width::W64, AluOp::Lsh, low, 32);
        assert_eq!((up.smin, up.smax), (-5 << 32, 10 << 32));
        let down = op(Width::W64, AluOp::Arsh, up, 32);
        assert_eq!((down.smin, down.smax), (-5, 10));
    }

    /// coerce_reg_to_size
    #[test]
    fn a_range_within_256_numbers_is_one_after_truncation_to_a_byte() {
        let byte = Scalar::unsigned(0x4105, 0x4164).truncated(8);
        assert_eq!((byte.umin, byte.umax), (5, 0x64));
    }

    /// coerce_reg_to_size_sx
    #[test]
    fn a_range_within_256_numbers_is_one_after_extension_of_a_byte() {
        let byte = Scalar::unsigned(0x4181, 0x41f0).extended(8, Width::W64);
        assert_eq!((byte.smin, byte.smax), (-127, -16));
    }

    /// __reg64_deduce_bounds
    #[test]
    fn ranges_that_both_cross_the_signs_boundary_cut_each_other_where_they_meet_once() {
        let set = Scalar { umin: 7, umax: 1 << 63, smin: i64::MIN + 5, smax: 100, ..Scalar::UNKNOWN };
        let set = set.settle().expect("there are such numbers");
        assert_eq!((set.umin, set.umax, set.smin, set.smax), (7, 100, 7, 100));
    }

    /// __reg32_deduce_bounds
    #[test]
    fn a_range_across_a_multiple_of_2_to_the_32_is_a_signed_range_of_the_low_half() {
        let set = Scalar::unsigned(0x1_ffff_fff0, 0x2_0000_000f);
        assert_eq!((set.smin32, set.smax32), (-16, 15));
    }

    /// __reg_deduce_mixed_bounds
    #[test]
    fn a_low_half_that_is_not_negative_is_all_of_a_number_within_32_bits() {
        let set = Scalar { smin: i32::MIN.into(), smax: u32::MAX.into(), smin32: 0, smax32: 31, ..Scalar::UNKNOWN };
        let set = set.settle().expect("there are such numbers");
        assert_eq!((set.umin, set.umax), (0, 31));
    }

    /// tnum_mul
    #[test]
    fn a_product_joins_the_sums_with_and_without_an_unknown_bit() {
        let factor = Tnum { value: 0, mask: 1 };
        assert_eq!(factor.mul(Tnum::constant(5)), Tnum { value: 0, mask: 5 });
        assert_eq!(Tnum { value: 1, mask: 2 }.mul(Tnum::constant(7)), Tnum { value: 5, mask: 18 });
    }
}

#[test]
fn bitwise_operations_on_small_numbers_of_either_sign_give_small_numbers() {
    let (a, b) = (Scalar::signed(-5, 3), Scalar::signed(-8, 7));
    for op in [AluOp::And, AluOp::Or, AluOp::Xor] {
        for width in [Width::W32, Width::W64] {
            let result = a.compute(width, op, &b);
            assert_eq!((result.smin32, result.smax32), (-8, 7), "{op:?} {width:?}");
        }
    }
}

#[test]
fn shift_counts_are_taken_modulo_the_width() {
    let byte = Scalar::unsigned(0, 200);
    assert_eq!(byte.compute(Width::W64, AluOp::Rsh, &Scalar::UNKNOWN).umax, 200);
    assert_eq!(byte.compute(Width::W64, AluOp::Rsh, &Scalar::constant(65)).umax, 100);
    assert_eq!(byte.compute(Width::W32, AluOp::Arsh, &Scalar::constant(33)).umax, 100);
}
