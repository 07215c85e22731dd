//! All small sets of numbers near the places where readings part, each compared with all its members.

use super::*;

/// Small sets lie in a window: some numbers in a row, scaled and moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
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
pub(super) const WINDOWS: [Window; 14] = [
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
pub(super) const COUNTS: [Window; 2] = [near(32), near(64)];

/// A set with some of its members, or with all.
pub(super) struct Sample {
    pub(super) set: Scalar,
    pub(super) members: Vec<u64>,
    pub(super) complete: bool,
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
    /// Each range of the 2^`bits` numbers, with each pattern of which bits are known.
    pub(super) fn samples(self, bits: u32) -> Vec<Sample> {
        let row = (0..1u64 << bits)
            .map(|at| (at.wrapping_sub(1 << bits >> 1) << self.scale).wrapping_add(self.middle))
            .collect::<Vec<_>>();
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

/// Assumes each condition; counts where a way that no pair of members takes was found to be none, and where what is
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

#[test]
fn each_operation_on_small_sets_contains_that_on_members() {
    for op in OPS {
        let found = WIDTHS.map(|width| compute_windows(width, op, 2, 2));
        println!("{op:?} {found:?}");
    }
}

#[test]
fn assuming_each_condition_on_small_sets_keeps_members_for_which_it_holds() {
    for cond in CONDS {
        for test in [Test::Holds(cond), Test::Fails(cond)] {
            let found = WIDTHS.map(|width| assume_windows(width, test, 2, 2));
            println!("{test:?} {found:?}");
        }
    }
}
