//! Members of a union that a program may touch only where it has checked which member the union has
//! ([`HostField::when`](crate::host::HostField)).
//!
//! What is known of a discriminator is kept as if its number had been spilled, in a slot of the outermost frame behind the last
//! that a program can reach. The slot has the same id as the number that the program loads. So comparing that number refines the
//! slot (`branch.rs`), and a path stops at a known state only if the slot's number is within the one there (`compare.rs`).
//!
//! The slot belongs to one object. Objects are told apart by the origin of the pointer ([`Register::range`]): an argument, a
//! variable, or an instruction that loads pointers. If such an instruction runs again, pointers that it loaded before have no
//! origin any more, and what is known of their objects is forgotten. It is forgotten, too, when the host may have changed the
//! discriminator: in a function that the program calls, and when the program stores into an object that may be the same.

use std::ops::Range;

use ring3_isa::{AluOp, Width};

use crate::explore::Explorer;
use crate::host::{Discriminator, HostField, HostObject};
use crate::path::Place;
use crate::scalar::Scalar;
use crate::state::{Kind, Register, SLOT_BYTES, STACK_BYTES, Slot};

/// Slots of a frame's stack.
const STACK_SLOTS: usize = STACK_BYTES as usize / SLOT_BYTES;
/// Discriminators of different objects that can be known in one program. What there are more is never known.
const KNOWN_MAX: usize = 32;

/// Where a pointer to an object of the host comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The context, at this offset.
    Argument(u32),
    /// A variable, by its index.
    Variable(u32),
    /// The instruction that is looked at.
    Here,
}

impl Origin {
    /// As a number that is not 0.
    fn number(self, at: usize) -> u32 {
        match self {
            Origin::Argument(offset) => 1 << 30 | offset,
            Origin::Variable(index) => 2 << 30 | index,
            Origin::Here => 3 << 30 | at as u32,
        }
    }
}

/// A discriminator of an object, whose number is in the slot with the same index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    origin: u32,
    /// [`HostObject::type_id`]
    type_id: u32,
    at: Range<u32>,
}

fn place(index: usize) -> Place {
    Place::slot_at(0, STACK_SLOTS + index)
}

impl Explorer<'_> {
    /// The origin of a pointer to an object, if it matters which object of its type that is; else 0.
    pub(crate) fn origin(&mut self, object: &HostObject, origin: Origin) -> u32 {
        if object.fields.iter().all(|field| field.when.is_empty()) {
            return 0;
        }
        let number = origin.number(self.at);
        if origin == Origin::Here {
            let loaded_before =
                |register: &Register| matches!(register.kind, Kind::Host(_)) && register.range == number;
            self.state.change(loaded_before, |register| register.range = 0);
            self.forget_discriminators(|known| known.origin == number);
        }
        number
    }

    /// A number was loaded from an object: if it is a discriminator, it gets an id, by which it becomes known.
    pub(crate) fn note_discriminator(
        &mut self,
        object: &HostObject,
        pointer: &Register,
        touched: &Range<u32>,
        loaded: &mut Register,
    ) {
        let is_one = |field: &HostField| field.when.iter().any(|when| when.at == *touched);
        if pointer.range == 0 || pointer.number.value().is_none() || !object.fields.iter().any(is_one) {
            return;
        }
        let known = Known { origin: pointer.range, type_id: object.type_id, at: touched.clone() };
        let index = self.discriminators.iter().position(|other| *other == known).unwrap_or(self.discriminators.len());
        if index == KNOWN_MAX {
            return;
        }
        if index == self.discriminators.len() {
            self.discriminators.push(known);
        }
        loaded.id = self.new_id();
        self.state.frame_at_mut(0).slot_mut(STACK_SLOTS + index).spill(*loaded, SLOT_BYTES);
        self.path.set(place(index), [None, None]);
    }

    /// Compilers compare `kind - 3` with 1 where a program asks whether a discriminator is 3 or 4, with as many bits as it has.
    pub(crate) fn link_discriminator(
        &self,
        width: Width,
        op: AluOp,
        left: &Register,
        right: &Register,
        result: &mut Register,
    ) {
        let is_it = |index: &usize| self.state.at(place(*index)).is_some_and(|known| known.id == left.id);
        let index = (0..self.discriminators.len()).filter(|_| left.id != 0).find(is_it);
        let Some(bytes) = index.map(|index| self.discriminators[index].at.len() as u32) else { return };
        let constant = right.number.value().and_then(|value| i32::try_from(value as i64).ok());
        let is_first = (left.fixed, left.range) == (0, 0) && bytes <= 4 && width == Width::W32;
        let (fixed, bits) = match (op, constant) {
            (AluOp::Add, Some(constant)) if is_first => (constant, 32),
            (AluOp::Sub, Some(constant)) if is_first => (constant.wrapping_neg(), 32),
            (AluOp::And, Some(mask)) if bytes < 4 && i64::from(mask) == (1 << (8 * bytes)) - 1 => {
                (left.fixed, 8 * bytes)
            }
            _ => return,
        };
        (result.id, result.fixed, result.range) = (left.id, fixed, bits);
    }

    /// Whether the object is known to have the member that a field is of.
    pub(crate) fn has_member(&mut self, object: &HostObject, pointer: &Register, field: &HostField) -> bool {
        field.when.iter().all(|when| self.is_checked(object, pointer, when))
    }

    fn is_checked(&mut self, object: &HostObject, pointer: &Register, when: &Discriminator) -> bool {
        let wanted = Known { origin: pointer.range, type_id: object.type_id, at: when.at.clone() };
        let index = self.discriminators.iter().position(|known| *known == wanted);
        let Some(place) = index.filter(|_| pointer.range != 0).map(place) else { return false };
        let Some(Register { number: Scalar { umin, umax, .. }, .. }) = self.state.at(place).copied() else {
            return false;
        };
        if umin < *when.values.start() || umax > *when.values.end() {
            return false;
        }
        self.path.read(place);
        self.path.mark_precise([place].into_iter().collect());
        true
    }

    /// Bytes of an object were written.
    pub(crate) fn forget_written(&mut self, object: &HostObject, touched: &Range<u32>) {
        // (Two objects of a type are the same, or apart. One of another type may contain it.)
        let type_id = object.type_id;
        self.forget_discriminators(|known| {
            known.type_id != type_id || known.at.start < touched.end && touched.start < known.at.end
        });
    }

    /// The host has run, or its memory was written.
    pub(crate) fn forget_discriminators(&mut self, which: impl Fn(&Known) -> bool) {
        for index in (0..self.discriminators.len()).filter(|index| which(&self.discriminators[*index])) {
            if self.state.at(place(index)).is_some() {
                *self.state.frame_at_mut(0).slot_mut(STACK_SLOTS + index) = Slot::UNWRITTEN;
                self.path.set(place(index), [None, None]);
            }
        }
    }
}

/// What has to be checked before a field may be touched.
pub(crate) fn condition(field: &HostField) -> String {
    let one = |when: &Discriminator| {
        let (first, last) = (when.values.start(), when.values.end());
        let values = if first == last { first.to_string() } else { format!("{first}..={last}") };
        format!("{} (off={} size={}) is {values}", when.name, when.at.start, when.at.len())
    };
    field.when.iter().map(one).collect::<Vec<_>>().join(" and ")
}
