//! Members of unions that a union has when another field says so (`member MEMBER when FIELD CONDITION`).

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};

use ring3_verifier::host::Discriminator;

use super::{Key, Place, Places};
use crate::model::{self, Path};
use crate::signature::within;
use crate::source::{Error, Span};
use crate::types::{Found, Shape};

/// What is known of unions.
#[derive(Debug, Default)]
pub(crate) struct Unions {
    /// By the member's place.
    members: HashMap<Key, Case>,
    /// The same, by all ways to name the place.
    known: Vec<(Vec<Key>, Case)>,
    /// Fields that say whether a union has a pointer.
    pub(crate) decisive: Vec<(String, Range<u32>)>,
}

/// When a union has a member.
#[derive(Clone, Debug)]
struct Case {
    /// From the member to the discriminator, bytes.
    distance: i64,
    bytes: u32,
    values: RangeInclusive<u64>,
    name: String,
    /// Bytes of the member.
    size: u32,
    holds_pointer: bool,
    shown: String,
}

impl Case {
    fn at(&self, member: u32) -> Range<u32> {
        let at = (i64::from(member) + self.distance) as u32;
        at..at + self.bytes
    }

    /// Why a union could have both members at a time.
    fn conflict(&self, at: u32, other: &Case, other_at: u32) -> Option<String> {
        let apart = at + self.size <= other_at || other_at + other.size <= at;
        if apart || !(self.holds_pointer || other.holds_pointer) {
            return None;
        }
        let (own, others) = (&self.values, &other.values);
        let never_both = own.end() < others.start() || others.end() < own.start();
        (!never_both || self.at(at) != other.at(other_at)).then(|| {
            format!(
                "the union could have `{}` and `{}` at a time, and one holds a pointer; name other values of the same field",
                self.shown, other.shown
            )
        })
    }
}

/// What is around a place, whatever members the unions on the way have.
pub(super) fn memory(around: &str) -> String {
    around.split('|').step_by(2).collect()
}

/// What is around the union that a place is a member of.
fn union_of(member: &str) -> &str {
    let inside = member.trim_end_matches('|');
    inside.rfind('|').map_or(inside, |at| &inside[..at])
}

/// `, only while kind is 1`
pub(super) fn in_words(when: &[Discriminator]) -> String {
    let one = |when: &Discriminator| {
        let (first, last) = (when.values.start(), when.values.end());
        let values = if first == last { first.to_string() } else { format!("{first}..{last}") };
        format!(", only while {} is {values}", when.name)
    };
    when.iter().map(one).collect()
}

impl Places<'_, '_> {
    pub(super) fn learn_member(&mut self, path: &Path, field: &Path, values: &model::Range) -> Result<(), Error> {
        let members = self.walk(path, false)?;
        let fields = self.beside(path, members.len(), field)?;
        for (member, field_place) in members.iter().zip(&fields) {
            self.learn_case(member, &path.span, field_place, &field.span, values)?;
        }
        Ok(())
    }

    fn learn_case(
        &mut self,
        member: &Place,
        span: &Span,
        field: &Place,
        field_span: &Span,
        values: &model::Range,
    ) -> Result<(), Error> {
        if !member.is_member {
            let message =
                format!("`{}` is no member of a union; only of those such a thing can be said", member.shown);
            return Err(Error::at(span, message));
        }
        if member.bits.is_some() {
            let message = format!("`{}` is a bit field; name a structure that has it", member.shown);
            return Err(Error::at(span, message));
        }
        let (around, at) = &member.keys[0];
        let (field_around, field_at) = &field.keys[0];
        // (A field of a union would need a check of its own.)
        if memory(around) != *field_around {
            let message = format!(
                "`{}` is not in the same object as `{}`, or it is in a union itself; name a field beside the union",
                field.shown, member.shown
            );
            return Err(Error::at(field_span, message));
        }
        let shape = self.shape(field);
        let Shape::Number { bytes: bytes @ (1 | 2 | 4 | 8), float: false, .. } = shape else {
            let of = self.type_name(field);
            let message = format!("`{}` is `{of}`; what says which member a union has is an integer", field.shown);
            return Err(Error::at(field_span, message));
        };
        if field.bits.is_some() {
            let message =
                format!("`{}` is a bit field, which a check does not cover; name a whole field", field.shown);
            return Err(Error::at(field_span, message));
        }
        let case = Case {
            distance: i64::from(*field_at) - i64::from(*at),
            bytes,
            values: without_sign(&within(values, shape)?, bytes, values)?,
            name: field.name.clone(),
            size: self.types.bytes(member.of),
            holds_pointer: self.types.holds_pointer(member.of),
            shown: member.shown.clone(),
        };
        self.add_case(member, span, case)?;
        if member.beside_pointer {
            let fields = field.keys.iter().map(|(around, at)| (memory(around), *at..at + bytes));
            self.unions.decisive.extend(fields);
        }
        Ok(())
    }

    fn add_case(&mut self, member: &Place, span: &Span, case: Case) -> Result<(), Error> {
        let (around, at) = &member.keys[0];
        if self.unions.members.contains_key(&member.keys[0]) {
            let message = format!("when a union has `{}` was said already; write one range of values", member.shown);
            return Err(Error::at(span, message));
        }
        // (What names the member by its type alone is of other unions, too.)
        let keys: Vec<Key> = member.keys.iter().filter(|(around, _)| around.ends_with('|')).cloned().collect();
        let others = self.unions.known.iter().flat_map(|(keys, other)| keys.iter().map(move |key| (key, other)));
        for ((other_around, other_at), other) in others {
            // (If one is in a member of the union that the other is of, it needs that member, too.)
            let same = |around: &str| around != other_around && union_of(around) == union_of(other_around);
            let conflict = keys.iter().filter(|(around, _)| same(around));
            let conflict = conflict.filter_map(|(_, at)| case.conflict(*at, other, *other_at)).next();
            if let Some(why) = conflict {
                return Err(Error::at(span, why));
            }
        }
        self.unions.known.push((keys, case.clone()));
        self.unions.members.insert((around.clone(), *at), case);
        Ok(())
    }

    /// A place goes on into a member: if that is one of a union, it is known when the union has it, or it is not.
    pub(super) fn enter_union(&self, place: &mut Place, found: Found<'_>) {
        if !found.in_union {
            return;
        }
        place.beside_pointer = found.shares_pointer;
        let case = place.keys.iter().find_map(|key| Some((key, self.unions.members.get(key)?)));
        match case {
            Some((_, case)) if found.member.bits == 0 => place.when.push(Discriminator {
                name: case.name.clone(),
                at: case.at(place.at),
                values: case.values.clone(),
            }),
            _ => {
                place.in_union = true;
                place.shares_pointer |= found.shares_pointer;
            }
        }
    }
}

/// A range as the bytes are without a sign.
fn without_sign(
    values: &RangeInclusive<i64>,
    bytes: u32,
    written: &model::Range,
) -> Result<RangeInclusive<u64>, Error> {
    if *values.start() < 0 && *values.end() >= 0 {
        return Err(Error::at(&written.span, "the range has negative and other values; name one or the other"));
    }
    let mask = u64::MAX >> (64 - 8 * bytes);
    Ok(*values.start() as u64 & mask..=*values.end() as u64 & mask)
}
