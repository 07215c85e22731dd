//! Conditional jumps: which branches are possible, and what is known on each. Mirrors kernel/bpf/verifier.c:check_cond_jmp_op,
//! reg_set_min_max, mark_ptr_or_null_regs, sync_linked_regs and try_match_pkt_pointers.

use ring3_isa::{AluOp, Cond, Operand, Width};

use crate::explore::{Explorer, Next};
use crate::path::{Place, Point};
use crate::scalar::{Scalar, Test};
use crate::state::{Kind, Register, State};
use crate::{MapShape, Refusal};

impl Explorer<'_> {
    pub(crate) fn branch(
        &mut self,
        width: Width,
        cond: Cond,
        dst: u8,
        src: Operand,
        target: usize,
    ) -> Result<Next, Refusal> {
        let (mut right, mut left) = (self.operand(src)?, self.read(dst)?);
        let other = match src {
            Operand::Reg(register) => Some(register),
            Operand::Imm(_) => None,
        };
        if left.is_scalar() && right.is_scalar() {
            if let Some(holds) = cond.with_itself().filter(|_| other == Some(dst)) {
                return Ok(Next::To(if holds { target } else { self.at + 1 }));
            }
            let holds = left.number.assume(width, Test::Holds(cond), &right.number);
            let fails = left.number.assume(width, Test::Fails(cond), &right.number);
            let (Some(holds), Some(fails)) = (holds, fails) else {
                self.decides(&[dst]);
                self.decides(other.as_slice());
                return Ok(Next::To(if holds.is_some() { target } else { self.at + 1 }));
            };
            self.link(dst, other, [left.id, right.id]);
            left = *self.state.register(dst);
            if let Some(other) = other {
                right = *self.state.register(other);
            }
            let mut taken = self.state.clone();
            for (state, (a, b)) in [(&mut taken, holds), (&mut self.state, fails)] {
                learn(state, Some(dst), &left, a);
                learn(state, other, &right, b);
            }
            self.fork(target, taken)?;
            return Ok(Next::To(self.at + 1));
        }
        // Whether the number is 0 tells of the pointer.
        for (register, value) in [(Some(dst), &left), (other, &right)] {
            if value.is_scalar() {
                self.decides(register.as_slice());
            }
        }
        if width == Width::W64
            && let Some(taken) = certain(cond, &left, &right)
        {
            return Ok(Next::To(if taken { target } else { self.at + 1 }));
        }
        let mut taken = self.state.clone();
        if width == Width::W64 {
            compare_pointers(&self.maps, cond, [&left, &right], &mut taken, &mut self.state);
        }
        self.fork(target, taken)?;
        Ok(Next::To(self.at + 1))
    }

    /// What becomes known of a number by comparing it depends on what it is compared with, and becomes known of all numbers
    /// that are linked to either. Of very many some are forgotten to be linked.
    /// Mirrors kernel/bpf/verifier.c:collect_linked_regs and, for what depends on what, backtrack_insn.
    fn link(&mut self, dst: u8, other: Option<u8>, ids: [u32; 2]) {
        /// The kernel has 6 (`LINKED_REGS_MAX`) for both sides of a comparison.
        const LINKED_MAX: usize = 16;
        let sides = [Some(dst), other].into_iter().flatten();
        let mut together: Vec<Place> = sides.map(|register| self.state.place(register)).collect();
        for id in ids.into_iter().filter(|id| *id != 0) {
            let mut linked = self.state.places(|other| other.is_scalar() && other.id == id);
            for place in linked.drain(LINKED_MAX.min(linked.len())..) {
                self.state.at_mut(place).into_iter().for_each(Register::unlink);
            }
            together.append(&mut linked);
        }
        let first = together[0];
        if together.iter().any(|place| *place != first) {
            self.path.link(together);
        }
    }

    pub(crate) fn may_goto(&mut self, target: usize) -> Result<Next, Refusal> {
        if !self.walks_round(self.state.may_goto) {
            return Ok(Next::To(target));
        }
        let mut on = self.state.clone();
        let before = self.previous_round();
        on.may_goto += 1;
        let next = self.at + 1;
        let widened = before.map_or_else(Vec::new, |before| widen(&mut on, &before));
        let path = self.fork(next, on)?;
        path.forget(widened);
        Ok(Next::To(target))
    }
}

/// Numbers that change from round to round, and on which nothing depends so far, become unknown, so that the
/// rounds come to an end. Gives their places. Mirrors kernel/bpf/verifier.c:widen_imprecise_scalars.
pub(crate) fn widen(state: &mut State, before: &Point) -> Vec<Place> {
    let changed = |state: &State, place: &Place| {
        let (old, new) = (before.state.at(*place), state.at(*place));
        old.filter(|old| old.is_scalar()).zip(new).is_some_and(|(old, new)| old.number != new.number)
    };
    let mut places = state.places(Register::is_scalar);
    places.retain(|place| !before.is_precise(*place) && changed(state, place));
    for place in &places {
        state.at_mut(*place).into_iter().for_each(|value| *value = Register::unknown());
    }
    places
}

/// What comparing pointers certainly gives.
fn certain(cond: Cond, left: &Register, right: &Register) -> Option<bool> {
    let exists = |value: &Register| {
        let known = !matches!(
            value.kind,
            Kind::Packet | Kind::PacketMeta | Kind::PacketEnd | Kind::Untrusted | Kind::Object { trusted: false, .. }
        );
        value.is_pointer() && !value.nullable && known
    };
    let unequal = exists(left) && right.is_null() || left.is_null() && exists(right);
    match cond {
        Cond::Eq if unequal => Some(false),
        Cond::Ne if unequal => Some(true),
        _ => None,
    }
}

/// A register, and all that are linked to it, are within `number`.
fn learn(state: &mut State, register: Option<u8>, before: &Register, number: Scalar) {
    let Some(register) = register else { return };
    let known = Register { number, ..*before };
    state.set(register, known);
    if known.id == 0 {
        return;
    }
    for place in state.places(|other| other.is_scalar() && other.id == known.id) {
        let Some(other) = state.at_mut(place) else { continue };
        let number = if (known.range, other.range) == (0, 0) {
            plus(&known.number, i64::from(other.fixed) - i64::from(known.fixed), 0)
        } else {
            plus(&plus(&known.number, -i64::from(known.fixed), known.range), other.fixed.into(), other.range)
        };
        let both = other.number.assume(Width::W64, Test::Holds(Cond::Eq), &number);
        other.number = both.map_or(number, |(both, _)| both);
    }
}

/// A sum with a constant; `bits` are those of [`Register::range`].
fn plus(number: &Scalar, constant: i64, bits: u32) -> Scalar {
    let width = if bits == 0 { Width::W64 } else { Width::W32 };
    let sum = number.compute(width, AluOp::Add, &Scalar::constant(constant as u64));
    if matches!(bits, 1..32) { sum.truncated(bits) } else { sum }
}

/// What comparing tells of pointers, where the condition holds and where it fails.
fn compare_pointers(
    maps: &[MapShape],
    cond: Cond,
    [left, right]: [&Register; 2],
    holds: &mut State,
    fails: &mut State,
) {
    let (same, differ) = match cond {
        Cond::Eq => (holds, fails),
        Cond::Ne => (fails, holds),
        _ => return compare_packets(cond, [left, right], holds, fails),
    };
    let (nullable, other) = if left.nullable { (left, right) } else { (right, left) };
    if nullable.nullable && other.is_null() {
        settle(maps, same, nullable.id, false);
        settle(maps, differ, nullable.id, true);
    } else if nullable.nullable
        && other.is_pointer()
        && !other.nullable
        && !matches!(other.kind, Kind::Object { .. } | Kind::Untrusted)
    {
        settle(maps, same, nullable.id, true);
    }
}

/// Pointers with this id are not null, or they are.
fn settle(maps: &[MapShape], state: &mut State, id: u32, exists: bool) {
    let mut gone = vec![];
    for place in state.places(|register| register.id == id && register.nullable) {
        let Some(register) = state.at_mut(place) else { continue };
        if exists {
            register.nullable = false;
            let lockable = matches!(register.kind, Kind::MapValue(map) if maps[map as usize].lock.is_some());
            if !lockable {
                register.id = 0;
            }
        } else {
            gone.push(register.reference);
            *register = Register::constant(0);
        }
    }
    state.references.retain(|held| !gone.contains(&held.id));
}

/// `packet cond end`, in either order.
fn compare_packets(cond: Cond, [left, right]: [&Register; 2], holds: &mut State, fails: &mut State) {
    let starts_at_end = |a: &Register, b: &Register| match (a.kind, b.kind) {
        (Kind::Packet, Kind::PacketEnd) => true,
        (Kind::PacketMeta, Kind::Packet) => b.fixed == 0 && b.number.value() == Some(0),
        _ => false,
    };
    let (pointer, cond) = if starts_at_end(left, right) {
        (left, cond)
    } else if starts_at_end(right, left) {
        let mirrored = match cond {
            Cond::Gt => Cond::Lt,
            Cond::Ge => Cond::Le,
            Cond::Lt => Cond::Gt,
            Cond::Le => Cond::Ge,
            _ => return,
        };
        (right, mirrored)
    } else {
        return;
    };
    // On which path the bytes before the pointer exist, and whether one more does.
    match cond {
        Cond::Gt => extend(fails, pointer, false),
        Cond::Ge => extend(fails, pointer, true),
        Cond::Lt => extend(holds, pointer, true),
        Cond::Le => extend(holds, pointer, false),
        _ => {}
    }
}

/// What lies before `pointer` exists, for all pointers of the same id.
/// Mirrors kernel/bpf/verifier.c:find_good_pkt_pointers.
fn extend(state: &mut State, pointer: &Register, one_more: bool) {
    /// `MAX_PACKET_OFF`
    const PACKET_BYTES_MAX: u64 = 0xffff;
    let Ok(fixed) = u32::try_from(pointer.fixed) else { return };
    let range = fixed + u32::from(one_more);
    if pointer.number.umax.saturating_add(u64::from(fixed)) > PACKET_BYTES_MAX {
        return;
    }
    state.change(
        |other| other.kind == pointer.kind && other.id == pointer.id,
        |other| other.range = other.range.max(range),
    );
}
