//! All small sets of numbers near the places where readings part, each compared with all its members.

use super::*;

/// Small sets lie in a window: some numbers in a row, scaled and moved.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// What the middle number of the row becomes.
    middle: u64,
    /// Distance of neighbours is two to this.
    scale: u32,
    /// Which bits besides are not known; members then have some of [`FREE`] there.
    free: u64,
}

/// What stands in bits that are not known.
const FREE: [u64; 4] = [0, 0x8000_0001_8000_0001, 0x1234_5678_7654_3210, u64::MAX];

const fn near(middle: u64) -> Window {
    Window { middle, scale: 0, free: 0 }
}

/// Known in all bits, and around each end of each reading; multiples of something large; known in the upper bits
/// only; known in the low half only.
const WINDOWS: [Window; 14] = [
    near(0),
    near(1 << 31),
    near(1 << 32),
    near(1 << 63),
    near(0x1_8000_0000),
    near(0xffff_ffff_8000_0000),
    near(0x7fff_ffff_0000_0000),
    Window { middle: 0, scale: 29, free: 0 },
    Window { middle: 0, scale: 60, free: 0 },
    Window { middle: 1 << 31, scale: 29, free: (1 << 29) - 1 },
    Window { middle: 0, scale: 30, free: (1 << 30) - 1 },
    Window { middle: 0, scale: 60, free: (1 << 60) - 1 },
    Window { middle: 0, scale: 0, free: !LOW },
    Window { middle: 1 << 31, scale: 0, free: !LOW },
];

/// Where shift counts end besides.
const COUNTS: [Window; 2] = [near(32), near(64)];

/// A set with some of its members, or with all.
struct Sample {
    set: Scalar,
    members: Vec<u64>,
    complete: bool,
}

/// The least set that has these members; what it says of `free` bits is nothing.
fn least(members: &[u64], free: u64) -> Scalar {
    let mut hull = Scalar { umin: u64::MAX, umax: 0, smin: i64::MAX, smax: i64::MIN, ..Scalar::UNKNOWN };
    (hull.umin32, hull.umax32, hull.smin32, hull.smax32) = (u32::MAX, 0, i32::MAX, i32::MIN);
    let (mut always, mut ever) = (u64::MAX, 0);
    for &x in members {
        for x in if free == 0 { [x, x] } else { [x & !free, x | free] } {
            (hull.umin, hull.umax) = (hull.umin.min(x), hull.umax.max(x));
            (hull.smin, hull.smax) = (hull.smin.min(x as i64), hull.smax.max(x as i64));
            (hull.umin32, hull.umax32) = (hull.umin32.min(x as u32), hull.umax32.max(x as u32));
            (hull.smin32, hull.smax32) = (hull.smin32.min(x as i32), hull.smax32.max(x as i32));
            (always, ever) = (always & x, ever | x);
        }
    }
    hull.bits = Tnum { value: always, mask: ever & !always };
    if free >> 63 != 0 {
        (hull.umin, hull.umax, hull.smin, hull.smax) = (0, u64::MAX, i64::MIN, i64::MAX);
    }
    if free & 1 != 0 {
        (hull.umin32, hull.umax32, hull.smin32, hull.smax32) = (0, u32::MAX, i32::MIN, i32::MAX);
    }
    hull
}

impl Window {
    fn row(self, bits: u32) -> Vec<u64> {
        let numbers = (0..1u64 << bits).map(|at| at.wrapping_sub(1 << bits >> 1) << self.scale);
        numbers.map(|x| x.wrapping_add(self.middle)).collect()
    }

    /// Each range of the 2^`bits` numbers, with each pattern of which bits are known.
    fn samples(self, bits: u32) -> Vec<Sample> {
        let row = self.row(bits);
        let mut samples: Vec<Sample> = vec![];
        let mut seen = std::collections::BTreeSet::new();
        for (from, to) in (0..row.len()).flat_map(|from| (from..row.len()).map(move |to| (from, to))) {
            for mask in 0..1u64 << bits {
                for value in (0..1u64 << bits).filter(|value| value & mask == 0) {
                    let fits = |x: u64| x >> self.scale & ((1 << bits) - 1) & !mask == value;
                    let known = row[from..=to].iter().copied().filter(|&x| fits(x)).collect::<Vec<_>>();
                    if known.is_empty() || !seen.insert(known.clone()) {
                        continue;
                    }
                    let set = least(&known, self.free).settle().expect("it has members");
                    let members = match self.free {
                        0 => known,
                        free => known.iter().flat_map(|x| FREE.map(|other| x & !free | other & free)).collect(),
                    };
                    assert!(members.iter().all(|&x| has(&set, x)), "{set:?} lacks one of {members:x?}");
                    samples.push(Sample { set, members, complete: self.free == 0 });
                }
            }
        }
        samples
    }
}

/// Results that are the best there are, of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Precision {
    best: u32,
    of: u32,
}

impl Precision {
    fn count(&mut self, best: bool) {
        (self.best, self.of) = (self.best + u32::from(best), self.of + 1);
    }
}

fn compute_all(width: Width, op: AluOp, left: &[Sample], right: &[Sample], precision: &mut Precision) {
    let mut results = vec![];
    for a in left {
        for b in right {
            let set = a.set.compute(width, op, &b.set);
            results.clear();
            for &x in &a.members {
                for &y in &b.members {
                    let value = concrete(width, op, x, y);
                    assert!(
                        has(&set, value),
                        "{width:?} {op:?} {x:#x} {y:#x} = {value:#x}\n{:?}\n{:?}\n{set:?}",
                        a.set,
                        b.set
                    );
                    results.push(value);
                }
            }
            if a.complete && b.complete {
                precision.count(set == least(&results, 0));
            }
        }
    }
}

fn compute_windows(width: Width, op: AluOp, left_bits: u32, right_bits: u32) -> Precision {
    let mut precision = Precision::default();
    let right = WINDOWS.iter().chain(&COUNTS).map(|window| window.samples(right_bits)).collect::<Vec<_>>();
    for window in WINDOWS {
        let left = window.samples(left_bits);
        right.iter().for_each(|right| compute_all(width, op, &left, right, &mut precision));
    }
    precision
}

/// Assumes each condition; counts where a path that no pair of members takes was found to be none, and where what is
/// left of both sets is the least.
fn assume_all(
    width: Width,
    test: Test,
    left: &[Sample],
    right: &[Sample],
    none: &mut Precision,
    kept: &mut Precision,
) {
    let (Test::Holds(cond) | Test::Fails(cond)) = test;
    let wanted = matches!(test, Test::Holds(_));
    for a in left {
        for b in right {
            let result = a.set.assume(width, test, &b.set);
            let (mut of_a, mut of_b) = (vec![], vec![]);
            for &x in &a.members {
                for &y in &b.members {
                    if holds(width, cond, x, y) != wanted {
                        continue;
                    }
                    let kept = result.as_ref().is_some_and(|(a, b)| has(a, x) && has(b, y));
                    assert!(kept, "{width:?} {test:?} {x:#x} {y:#x}\n{:?}\n{:?}\n{result:?}", a.set, b.set);
                    of_a.push(x);
                    of_b.push(y);
                }
            }
            if a.complete && b.complete && of_a.is_empty() {
                none.count(result.is_none());
            } else if a.complete && b.complete {
                kept.count(result == Some((least(&of_a, 0), least(&of_b, 0))));
            }
        }
    }
}

fn assume_windows(width: Width, test: Test, left_bits: u32, right_bits: u32) -> [Precision; 2] {
    let [mut none, mut kept] = [Precision::default(); 2];
    let right = WINDOWS.map(|window| window.samples(right_bits));
    for window in WINDOWS {
        let left = window.samples(left_bits);
        right.iter().for_each(|right| assume_all(width, test, &left, right, &mut none, &mut kept));
    }
    [none, kept]
}

const WIDTHS: [Width; 2] = [Width::W32, Width::W64];

/// A line of a table: how many of the results are the best there are, of how many; for 32 bits, then for 64.
fn line(name: &str, counts: [Precision; 2]) -> String {
    let [low, wide] = counts.map(|count| format!("{:>7} of {:>7}", count.best, count.of));
    format!("{name:<10} {low}   {wide}\n")
}

fn computed(left_bits: u32, right_bits: u32) -> String {
    let rows =
        OPS.map(|op| line(&format!("{op:?}"), WIDTHS.map(|width| compute_windows(width, op, left_bits, right_bits))));
    rows.concat()
}

/// Three tables: paths that no pair of members takes, known as such; the least sets where the condition holds, and
/// where it fails.
fn assumed(left_bits: u32, right_bits: u32) -> String {
    let rows = CONDS.map(|cond| {
        let rows = [Test::Holds(cond), Test::Fails(cond)].map(|test| {
            let [low, wide] = WIDTHS.map(|width| assume_windows(width, test, left_bits, right_bits));
            let name = if matches!(test, Test::Holds(_)) { format!("{cond:?}") } else { format!("not {cond:?}") };
            format!("none: {}kept: {}", line(&name, [low[0], wide[0]]), line(&name, [low[1], wide[1]]))
        });
        rows.concat()
    });
    rows.concat()
}

/// Each number proves that the results are sound: they were compared with all members. That they are so often the
/// best is what we have reached; less often would be a loss.
#[test]
fn operations_on_small_sets_contain_those_on_members_and_are_as_often_the_best_as_before() {
    let found = computed(2, 2);
    assert_eq!(found, COMPUTED, "{found}");
}

#[test]
fn assuming_conditions_of_small_sets_keeps_members_and_as_seldom_others_as_before() {
    let found = assumed(2, 2);
    assert_eq!(found, ASSUMED, "{found}");
}

#[test]
fn operations_on_sets_of_eight_numbers_contain_those_on_members() {
    print!("{}", computed(3, 2));
}

#[test]
fn assuming_conditions_of_sets_of_eight_numbers_keeps_members() {
    print!("{}", assumed(3, 2));
}

#[test]
#[ignore = "some minutes"]
fn operations_on_sets_of_sixteen_numbers_contain_those_on_members() {
    print!("{}", computed(4, 3));
}

#[test]
#[ignore = "some minutes"]
fn assuming_conditions_of_sets_of_sixteen_numbers_keeps_members() {
    print!("{}", assumed(4, 3));
}

/// Where 8 and 16 bits end besides, and numbers whose distances are just too large.
const NARROW: [Window; 8] = [
    near(0x80),
    near(0x100),
    near(0x1ff8),
    near(0x8000),
    near(0x1_0000),
    near(!0x80),
    Window { middle: 0x1010, scale: 7, free: 0 },
    Window { middle: 0x1_0000_1010, scale: 15, free: 0 },
];

#[test]
fn parts_of_sets_of_sixteen_numbers_contain_those_of_members() {
    let mut exact = [Precision::default(); 4];
    for window in WINDOWS.iter().chain(&NARROW) {
        for Sample { set, members, complete } in window.samples(4) {
            let mut check = |at: usize, result: Scalar, of: &dyn Fn(u64) -> u64, what: &str| {
                let values = members.iter().map(|&x| of(x)).collect::<Vec<_>>();
                assert!(values.iter().all(|&x| has(&result, x)), "{what} {set:?}\n{result:?}\n{values:x?}");
                if complete {
                    exact[at].count(result == least(&values, 0));
                }
            };
            for bits in [8, 16, 32] {
                let (low, above) = ((1u64 << bits) - 1, 64 - bits);
                let extend = |x: u64| ((x << above) as i64 >> above) as u64;
                let cut = set.truncated(bits);
                check(0, cut, &|x| x & low, "truncated");
                check(1, set.extended(bits, Width::W64), &extend, "extended");
                check(2, set.extended(bits, Width::W32), &|x| extend(x) & LOW, "extended to 32");
                check(3, cut.swapped(bits), &|x| (x & low).swap_bytes() >> above, "swapped");
            }
            check(3, set.swapped(64), &u64::swap_bytes, "swapped");
            check(0, set.truncated(64), &|x| x, "truncated");
        }
    }
    let found = exact.map(|count| (count.best, count.of));
    assert_eq!(found, PARTS, "truncated, extended, extended to 32 bits, swapped: the best there are, of how many");
}

#[test]
fn what_contains_a_set_contains_its_members() {
    let all = WINDOWS.map(|window| window.samples(3));
    for a in all.iter().flatten() {
        for b in all.iter().flatten() {
            let members = b.members.iter().all(|&y| has(&a.set, y));
            if a.set.contains(&b.set) {
                assert!(members, "{:?}\n{:?}", a.set, b.set);
            } else if b.complete {
                assert!(!members, "{:?}\n{:?}", a.set, b.set);
            }
        }
    }
    for row in WINDOWS.map(|window| window.row(3)) {
        let views = views(&row);
        for (a, b) in views.iter().flat_map(|a| views.iter().map(move |b| (a, b))) {
            let outside = row.iter().any(|&y| has(b, y) && !has(a, y));
            assert!(!(outside && a.contains(b)), "{a:?}\n{b:?}");
        }
    }
}

/// Each range of each reading, with each range of each other, and with patterns of bits: numbers of a window that
/// both allow are still allowed once they are settled, and nothing is left only if there are none.
#[test]
fn views_that_learn_from_each_other_keep_what_both_allow() {
    let mut found = [Precision::default(); 2];
    for window in WINDOWS.into_iter().filter(|window| window.free == 0) {
        let row = window.row(3);
        let views = views(&row);
        for a in &views {
            for b in &views {
                let (umin32, umax32) = (a.umin32.max(b.umin32), a.umax32.min(b.umax32));
                let (smin32, smax32) = (a.smin32.max(b.smin32), a.smax32.min(b.smax32));
                let (umin, umax) = (a.umin.max(b.umin), a.umax.min(b.umax));
                let (smin, smax) = (a.smin.max(b.smin), a.smax.min(b.smax));
                let Some(bits) = a.bits.intersect(b.bits) else { continue };
                let both = Scalar { bits, umin, umax, smin, smax, umin32, umax32, smin32, smax32 };
                let allowed = row.iter().copied().filter(|&x| has(a, x) && has(b, x)).collect::<Vec<_>>();
                let settled = both.settle();
                let kept = settled.is_some_and(|set| allowed.iter().all(|&x| has(&set, x)));
                assert!(kept || allowed.is_empty(), "{both:?}\n{settled:?}\n{allowed:x?}");
                if let (Some(a), Some(b)) = (a.settle(), b.settle()) {
                    let equal = a.assume(Width::W64, Test::Holds(Cond::Eq), &b);
                    assert!(equal.is_none_or(|(a, b)| a == b && both.contains(&a)), "{both:?}\n{equal:?}");
                    assert!(equal.is_some() || allowed.is_empty(), "{both:?}");
                }
                // Wide views in this row allow no numbers elsewhere.
                let wide = [a, b].iter().any(|set| set.umax.wrapping_sub(set.umin) < 8 << window.scale);
                if wide && window.scale == 0 {
                    let best = if allowed.is_empty() { None } else { Some(least(&allowed, 0)) };
                    found[usize::from(allowed.is_empty())].count(settled == best);
                }
            }
        }
    }
    let found = found.map(|count| (count.best, count.of));
    assert_eq!(found, SETTLED, "sets that are the least, and sets known to be empty, of how many");
}

/// All that one view can say of the numbers in a row.
fn views(row: &[u64]) -> Vec<Scalar> {
    let mut views = vec![];
    for &x in row {
        for &y in row {
            let all = Scalar::UNKNOWN;
            views.extend((x <= y).then_some(Scalar { umin: x, umax: y, ..all }));
            let (sx, sy) = (x as i64, y as i64);
            views.extend((sx <= sy).then_some(Scalar { smin: sx, smax: sy, ..all }));
            let (lx, ly) = (x as u32, y as u32);
            views.extend((lx <= ly).then_some(Scalar { umin32: lx, umax32: ly, ..all }));
            let (lx, ly) = (x as i32, y as i32);
            views.extend((lx <= ly).then_some(Scalar { smin32: lx, smax32: ly, ..all }));
            views.push(Scalar { bits: Tnum { value: x & !(x ^ y), mask: x ^ y }, ..all });
            views.push(Scalar { bits: Tnum { value: x & y & 7, mask: !7 | x ^ y }, ..all });
        }
    }
    views
}

/// In this order: truncated, extended, extended to 32 bits, swapped.
const PARTS: [(u32, u32); 4] = [(22_948, 22_948), (16_552, 17_211), (16_552, 17_211), (10_548, 22_948)];

const SETTLED: [(u32, u32); 2] = [(80_996, 81_428), (38_780, 38_780)];

const COMPUTED: &str = "\
Add          13128 of   14256     13668 of   14256
Sub          12928 of   14256     13035 of   14256
Mul           9280 of   14256      5023 of   14256
Div           9127 of   14256      9182 of   14256
Sdiv          2288 of   14256      1584 of   14256
Or           10618 of   14256      8322 of   14256
And          12714 of   14256     11374 of   14256
Lsh           8496 of   14256      6796 of   14256
Rsh           9360 of   14256      7710 of   14256
Mod           6698 of   14256      5521 of   14256
Smod          3018 of   14256      2179 of   14256
Xor           6760 of   14256      4748 of   14256
Mov          14256 of   14256     14256 of   14256
Arsh         12537 of   14256      9786 of   14256
";

const ASSUMED: &str = "\
none: Eq            7584 of    7584     10434 of   10434
kept: Eq            4080 of    4080      1230 of    1230
none: not Eq         376 of     376        42 of      42
kept: not Eq       11048 of   11288     11534 of   11622
none: Ne             376 of     376        42 of      42
kept: Ne           11048 of   11288     11534 of   11622
none: not Ne        7584 of    7584     10434 of   10434
kept: not Ne        4080 of    4080      1230 of    1230
none: Gt            3686 of    3686      4092 of    4092
kept: Gt            7633 of    7978      7397 of    7572
none: not Gt        2398 of    2398      3828 of    3828
kept: not Gt        9190 of    9266      7772 of    7836
none: Ge            2398 of    2398      3828 of    3828
kept: Ge            9190 of    9266      7772 of    7836
none: not Ge        3686 of    3686      4092 of    4092
kept: not Ge        7633 of    7978      7397 of    7572
none: Lt            3686 of    3686      4092 of    4092
kept: Lt            7633 of    7978      7397 of    7572
none: not Lt        2398 of    2398      3828 of    3828
kept: not Lt        9190 of    9266      7772 of    7836
none: Le            2398 of    2398      3828 of    3828
kept: Le            9190 of    9266      7772 of    7836
none: not Le        3686 of    3686      4092 of    4092
kept: not Le        7633 of    7978      7397 of    7572
none: Set           3965 of    3965      2049 of    2049
kept: Set           3251 of    7699      5451 of    9615
none: not Set       1930 of    1930      4200 of    4398
kept: not Set       8591 of    9734      6381 of    7266
none: Sgt           3382 of    3382      4561 of    4561
kept: Sgt           8165 of    8282      7079 of    7103
none: not Sgt       2174 of    2174      4283 of    4283
kept: not Sgt       9454 of    9490      7373 of    7381
none: Sge           2174 of    2174      4283 of    4283
kept: Sge           9454 of    9490      7373 of    7381
none: not Sge       3382 of    3382      4561 of    4561
kept: not Sge       8165 of    8282      7079 of    7103
none: Slt           3382 of    3382      4561 of    4561
kept: Slt           8165 of    8282      7079 of    7103
none: not Slt       2174 of    2174      4283 of    4283
kept: not Slt       9454 of    9490      7373 of    7381
none: Sle           2174 of    2174      4283 of    4283
kept: Sle           9454 of    9490      7373 of    7381
none: not Sle       3382 of    3382      4561 of    4561
kept: not Sle       8165 of    8282      7079 of    7103
";
