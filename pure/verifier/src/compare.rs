//! Decides whether a state that was explored stands for another one, so that the path can stop.
//!
//! It does if everything that was read after it is, in the other state, within what it was. Numbers that decided nothing do not
//! matter. Ids may differ if they differ everywhere in the same manner. Mirrors kernel/bpf/verifier.c:states_equal, regsafe,
//! stacksafe and check_ids.

use std::rc::Rc;

use crate::liveness::Registers;
use crate::path::{Place, Point, Work};
use crate::state::{Byte, Frame, Kind, Register, SLOT_BYTES, Slot, Special, State};

/// How much must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// What is marked; for points with no path left.
    Marked,
    /// All of the new is within the old; the marks may still grow.
    Contained,
    /// Nothing has changed.
    Exact,
}

/// Both are in the same functions, called from the same places.
pub(crate) fn same_calls(a: &State, b: &State) -> bool {
    a.frames.len() == b.frames.len()
        && a.frames
            .iter()
            .zip(&b.frames)
            .all(|(a, b)| a.call_site == b.call_site && a.subprogram == b.subprogram && a.callback == b.callback)
}

/// What is compared at an instruction.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// The instruction.
    pub(crate) at: usize,
    /// Registers that may be read from each instruction on: the others do not matter.
    pub(crate) live: &'a [Registers],
    /// [`Policy::addresses_as_numbers`](crate::Policy)
    pub(crate) addresses_as_numbers: bool,
    pub(crate) work: &'a Work,
}

/// Names of the old state and of the new one.
struct Ids<'a> {
    pairs: Vec<(u32, u32)>,
    made_up: u32,
    terms: Terms<'a>,
}

impl Ids<'_> {
    fn same(&mut self, old: u32, new: u32) -> bool {
        if (old == 0) != (new == 0) {
            return false;
        }
        if old == 0 {
            return true;
        }
        self.terms.work.add(self.pairs.len());
        for pair in &self.pairs {
            if pair.0 == old || pair.1 == new {
                return *pair == (old, new);
            }
        }
        self.pairs.push((old, new));
        true
    }

    /// Numbers without a name are of one of their own.
    fn same_number(&mut self, old: u32, new: u32) -> bool {
        if old == 0 {
            return true;
        }
        self.made_up += 1;
        let fresh = u32::MAX - self.made_up;
        self.same(old, if new == 0 { fresh } else { new })
    }
}

/// Whether what was found out from `point` on holds for `new`.
pub(crate) fn covers(point: &Point, new: &State, how: Match, terms: Terms<'_>) -> bool {
    let old = &point.state;
    let mut ids = Ids { pairs: vec![], made_up: 0, terms };
    if old.frames.len() != new.frames.len() || old.references.len() != new.references.len() {
        return false;
    }
    match (old.lock, new.lock) {
        (None, None) => {}
        (Some(a), Some(b)) if a.map == b.map && ids.same(a.id, b.id) => {}
        _ => return false,
    }
    if !old.references.iter().zip(&new.references).all(|(a, b)| ids.same(a.id, b.id)) {
        return false;
    }
    if how == Match::Exact && old.may_goto != new.may_goto {
        return false;
    }
    let frames = old.frames.iter().zip(&new.frames).enumerate();
    // Each function goes on at the call of the next.
    let sites = new.frames[1..].iter().map(|callee| callee.call_site).chain([terms.at]);
    let mut frames = frames.zip(sites);
    frames.all(|((index, (a, b)), site)| {
        Rc::ptr_eq(a, b) && how == Match::Exact || frame(point, index as u8, site, (a, b), how, &mut ids)
    })
}

fn frame(point: &Point, index: u8, site: usize, (old, new): (&Frame, &Frame), how: Match, ids: &mut Ids<'_>) -> bool {
    if old.rounds > new.rounds || how == Match::Exact && old.rounds != new.rounds {
        return false;
    }
    let marks = point.marks.borrow();
    ids.terms.work.add(old.registers.len() + old.slots.len());
    for number in 0..10 {
        let place = Place::register(index, number as u8);
        let live = ids.terms.live[site] & 1 << number != 0;
        if !live || how == Match::Marked && !marks.read.contains(place) {
            continue;
        }
        let precise = how != Match::Marked || marks.precise.contains(place);
        if !register(&old.registers[number], &new.registers[number], precise, how, ids) {
            return false;
        }
    }
    (0..old.slots.len().max(new.slots.len())).all(|number| {
        let place = Place::slot_at(index, number);
        if how == Match::Marked && !marks.read.contains(place) {
            return true;
        }
        let precise = how != Match::Marked || marks.precise.contains(place);
        slot(old.slot(number), new.slot(number), precise, how, ids)
    })
}

fn register(old: &Register, new: &Register, precise: bool, how: Match, ids: &mut Ids<'_>) -> bool {
    if how == Match::Exact {
        return old.kind == new.kind
            && old.number == new.number
            && (old.fixed, old.range, old.nullable) == (new.fixed, new.range, new.nullable)
            && ids.same(old.id, new.id)
            && ids.same(old.reference, new.reference);
    }
    match old.kind {
        Kind::NotInit => true,
        Kind::Scalar if new.kind != Kind::Scalar => false,
        Kind::Scalar if !precise => true,
        Kind::Scalar => {
            old.number.contains(&new.number)
                && (old.id == 0 || (old.fixed, old.range) == (new.fixed, new.range))
                && ids.same_number(old.id, new.id)
        }
        _ => {
            let range = match old.kind {
                _ if old.is_packet() => old.range <= new.range,
                Kind::MapKey(_) => old.range == new.range,
                Kind::Host(_) => old.range == 0 || old.range == new.range,
                _ => ids.same(old.range, new.range),
            };
            old.kind == new.kind
                && range
                && old.nullable == new.nullable
                && old.number.contains(&new.number)
                && old.fixed == new.fixed
                && ids.same(old.id, new.id)
                && ids.same(old.reference, new.reference)
        }
    }
}

/// What bytes are read as if there is no register to be had. That a register is 0 is nothing to rely on: it may be so on
/// this path alone, and nothing marks the register as precise.
fn plain(slot: &Slot, byte: usize) -> Byte {
    match (slot.bytes[byte], &slot.spilled) {
        (Byte::Spilled, Some(spilled)) if spilled.is_scalar() => Byte::Unknown,
        (byte, _) => byte,
    }
}

fn slot(old: &Slot, new: &Slot, precise: bool, how: Match, ids: &mut Ids<'_>) -> bool {
    if how == Match::Exact && old.bytes != new.bytes {
        return false;
    }
    match (old.special, new.special) {
        (None, None) => {}
        (None, Some(_)) | (Some(_), None) => return false,
        (Some(a), Some(b)) => return special(a, b, how, ids),
    }
    match (&old.spilled, &new.spilled) {
        (Some(a), Some(b)) if old.bytes == new.bytes => return register(a, b, precise, how, ids),
        // A number that nobody compares may be any bytes; a precise one is an unknown number's equal, with a name of its own.
        (Some(a), _) if !register(a, &Register::unknown(), precise, how, ids) => return false,
        _ => {}
    }
    (0..SLOT_BYTES).all(|byte| match (plain(old, byte), plain(new, byte)) {
        (Byte::Unwritten | Byte::Unknown, Byte::Spilled) if !ids.terms.addresses_as_numbers => false,
        // What was never written may hold anything, and may be read.
        (Byte::Unwritten, _) => how != Match::Exact || new.bytes[byte] == Byte::Unwritten,
        (Byte::Unknown, new) => new != Byte::Special,
        (Byte::Zero, new) => new == Byte::Zero,
        (old, new) => old == new,
    })
}

fn special(old: Special, new: Special, how: Match, ids: &mut Ids<'_>) -> bool {
    match (old, new) {
        (
            Special::Dynptr { first: f1, record: r1, id: i1, reference: h1 },
            Special::Dynptr { first: f2, record: r2, id: i2, reference: h2 },
        ) => f1 == f2 && r1 == r2 && ids.same(i1, i2) && ids.same(h1, h2),
        (
            Special::Iterator { reference: h1, active: a1, depth: d1 },
            Special::Iterator { reference: h2, active: a2, depth: d2 },
        ) => a1 == a2 && (how != Match::Exact || d1 == d2) && ids.same(h1, h2),
        _ => false,
    }
}
