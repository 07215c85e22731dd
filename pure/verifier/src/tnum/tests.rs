//! Every operation on tristate numbers of a few bits, compared with the operation on all their members.

use super::*;

/// All tristate numbers of `bits` bits.
fn all(bits: u32) -> Vec<Tnum> {
    let numbers = 0..1u64 << bits;
    let pairs = numbers.clone().flat_map(|mask| numbers.clone().map(move |value| Tnum { value, mask }));
    pairs.filter(|tnum| tnum.value & tnum.mask == 0).collect()
}

/// All members of a number with few unknown bits.
fn members(tnum: Tnum) -> Vec<u64> {
    let mut members = vec![];
    let mut free = tnum.mask;
    loop {
        members.push(tnum.value | free);
        if free == 0 {
            return members;
        }
        free = (free - 1) & tnum.mask;
    }
}

/// The best description of some numbers.
fn best(numbers: impl IntoIterator<Item = u64>) -> Tnum {
    let (always, ever) = numbers.into_iter().fold((u64::MAX, 0), |(always, ever), n| (always & n, ever | n));
    Tnum { value: always, mask: ever & !always }
}

fn has(tnum: Tnum, number: u64) -> bool {
    number & !tnum.mask == tnum.value
}

/// Where the bits lie, and what is above them.
const PLACES: [(u32, u64); 9] = [
    (0, 0),
    (0, u64::MAX),
    (0, 0x5555_5555_5555_5555),
    (13, 0),
    (28, 0),
    (29, u64::MAX),
    (30, 0x5555_5555_5555_5555),
    (57, u64::MAX),
    (60, 0),
];

fn placed(tnum: Tnum, bits: u32, (shift, above): (u32, u64)) -> Tnum {
    let above = u128::from(above) << (shift + bits);
    Tnum { value: tnum.value << shift | above as u64, mask: tnum.mask << shift }
}

type Operation = (&'static str, fn(Tnum, Tnum) -> Tnum, fn(u64, u64) -> u64);

/// Operations whose result is the best there is (Vishwanathan et al., theorems 6 and 22; the others work on each
/// bit for itself).
const EXACT: [Operation; 5] = [
    ("add", Tnum::add, u64::wrapping_add),
    ("sub", Tnum::sub, u64::wrapping_sub),
    ("and", Tnum::and, |a, b| a & b),
    ("or", Tnum::or, |a, b| a | b),
    ("xor", Tnum::xor, |a, b| a ^ b),
];

/// All pairs of numbers of `bits` bits in all places. Gives how many products could be described better.
fn compare_operations(bits: u32) -> (usize, usize) {
    let (mut products, mut inexact) = (0, 0);
    let all = all(bits);
    for place in PLACES {
        for &a in &all {
            let a = placed(a, bits, place);
            let left = members(a);
            for &b in &all {
                for above in [place, (place.0, 0)] {
                    let b = placed(b, bits, above);
                    let right = members(b);
                    let results = |of: fn(u64, u64) -> u64| {
                        best(left.iter().flat_map(|&x| right.iter().map(move |&y| of(x, y))))
                    };
                    for (name, operation, concrete) in EXACT {
                        assert_eq!(operation(a, b), results(concrete), "{name} {a} {b}");
                    }
                    let (product, least) = (a.mul(b), results(u64::wrapping_mul));
                    assert!(product.contains(least), "mul {a} {b}: {product} lacks {least}");
                    products += 1;
                    inexact += usize::from(product != least);
                }
            }
        }
    }
    (products, inexact)
}

#[test]
fn operations_on_four_bits_give_the_best_description_of_what_members_give() {
    let (products, inexact) = compare_operations(4);
    assert_eq!((products, inexact), (118_098, 14_673), "products, and those that could be described better");
}

#[test]
#[ignore = "some minutes"]
fn operations_on_six_bits_give_the_best_description_of_what_members_give() {
    println!("products, inexact: {:?}", compare_operations(6));
}

#[test]
fn operations_on_numbers_with_unknown_upper_bits_contain_what_members_give() {
    const ABOVE: [u64; 5] = [0, 1, 0x5555_5555_5555_5555, 1 << 63, u64::MAX];
    for shift in [0, 28, 29, 58] {
        let wide = |tnum: Tnum| {
            let above = u64::MAX << shift << 4;
            Tnum { value: tnum.value << shift, mask: tnum.mask << shift | above }
        };
        let numbers = |tnum: Tnum| {
            let known = placed(tnum, 4, (shift, 0));
            let numbers = members(known).into_iter();
            numbers.flat_map(move |x| ABOVE.map(|above| x | above << shift << 4)).collect::<Vec<_>>()
        };
        for (a, left) in all(4).into_iter().map(|tnum| (wide(tnum), numbers(tnum))) {
            for (b, right) in all(4).into_iter().map(|tnum| (placed(tnum, 4, (shift, 0)), numbers(tnum))) {
                for (b, right) in
                    [(b, members(b)), (Tnum { mask: b.mask | a.mask >> shift >> 4 << shift << 4, ..b }, right)]
                {
                    let results = |of: fn(u64, u64) -> u64| {
                        best(left.iter().flat_map(|&x| right.iter().map(move |&y| of(x, y))))
                    };
                    for (name, operation, concrete) in
                        EXACT.into_iter().chain([("mul", Tnum::mul as _, u64::wrapping_mul as _)])
                    {
                        let (result, least) = (operation(a, b), results(concrete));
                        assert!(result.contains(least), "{name} {a} {b}: {result} lacks {least}");
                    }
                }
            }
        }
    }
}

#[test]
fn shifts_and_parts_are_those_of_the_members() {
    for place in PLACES {
        for tnum in all(5) {
            let tnum = placed(tnum, 5, place);
            let members = members(tnum);
            let results = |of: &dyn Fn(u64) -> u64| best(members.iter().map(|&x| of(x)));
            for by in 0..64 {
                assert_eq!(tnum.shl(by), results(&|x| x << by), "{tnum} << {by}");
                assert_eq!(tnum.shr(by), results(&|x| x >> by), "{tnum} >> {by}");
                assert_eq!(tnum.sar(by), results(&|x| (x as i64 >> by) as u64), "{tnum} s>> {by}");
                assert_eq!(tnum.low(by), results(&|x| x & !(u64::MAX << by)), "low {by} of {tnum}");
                if tnum.mask & 1 << by == 0 {
                    assert_eq!(tnum.flip(1 << by), results(&|x| x ^ 1 << by), "{tnum} flip {by}");
                }
            }
            assert_eq!(tnum.low(64), tnum);
            assert_eq!(Some(&tnum.max()), members.iter().max());
        }
    }
}

#[test]
fn common_members_and_containment_are_those_of_the_members() {
    for place in PLACES {
        for a in all(5).into_iter().map(|tnum| placed(tnum, 5, place)) {
            for b in all(5).into_iter().map(|tnum| placed(tnum, 5, place)) {
                let common = members(a).into_iter().filter(|&x| has(b, x)).collect::<Vec<_>>();
                let expected = (!common.is_empty()).then(|| best(common.iter().copied()));
                assert_eq!(a.intersect(b), expected, "{a} {b}");
                assert_eq!(a.contains(b), common.len() == members(b).len(), "{a} contains {b}");
            }
        }
    }
}

#[test]
fn a_range_is_described_by_its_common_leading_bits() {
    for base in [0, (1u64 << 31) - 32, (1 << 32) - 32, (1 << 63) - 32, 0x5555_5555_5555_5540, u64::MAX - 63] {
        for min in 0..64 {
            for max in min..64 {
                let (min, max) = (base.wrapping_add(min), base.wrapping_add(max));
                let tnum = Tnum::range(min, max);
                // Members of the best description in which the unknown bits are the low ones.
                let unknown = 64 - best(min..=max).mask.leading_zeros();
                assert_eq!(tnum.mask, ((1u128 << unknown) - 1) as u64, "{min:#x} {max:#x}");
                assert!((min..=max).all(|x| has(tnum, x)), "{min:#x} {max:#x}");
            }
        }
    }
    assert_eq!(Tnum::range(0, u64::MAX), Tnum::UNKNOWN);
    assert_eq!(Tnum::range(1, 1 << 63), Tnum::UNKNOWN);
}

#[test]
fn the_nearest_members_are_found() {
    for place in PLACES {
        for tnum in all(5).into_iter().map(|tnum| placed(tnum, 5, place)) {
            let members = members(tnum);
            let near = members.iter().flat_map(|&x| [x.wrapping_sub(1), x, x.wrapping_add(1)]);
            let steps = (0..40).map(|step| tnum.value.wrapping_sub(4 << place.0).wrapping_add(step << place.0));
            for end in near.chain(steps).chain([0, u64::MAX]) {
                let first = members.iter().copied().filter(|&x| x >= end).min();
                let last = members.iter().copied().filter(|&x| x <= end).max();
                assert_eq!(tnum.first_from(end), first, "{tnum} from {end:#x}");
                assert_eq!(tnum.last_to(end), last, "{tnum} to {end:#x}");
            }
        }
    }
    assert_eq!(Tnum::UNKNOWN.first_from(u64::MAX), Some(u64::MAX));
    assert_eq!(Tnum::UNKNOWN.last_to(0), Some(0));
}
