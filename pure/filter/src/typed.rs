//! A filter for one type of events: what is left of it when all names have meanings.

use std::collections::BTreeSet;
use std::sync::Arc;

use ring3_event::Phase;

use crate::arithmetic::Number;
use crate::parse::Relation;
use crate::scope::Context;
use crate::text::{Question, Subject};

/// A filter for events of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Typed {
    pub(crate) condition: Condition,
    /// Of all fields of the type.
    pub(crate) phases: Arc<[Phase]>,
}

/// What is true or false of an event. Constants stand at the top only.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Condition {
    Constant(bool),
    Not(Box<Condition>),
    And(Vec<Condition>),
    Or(Vec<Condition>),
    /// False if a side has no value. A constant is on the right.
    Compare(Relation, Number, Number),
    /// In order, without doubles, not empty.
    OneOf(Number, Vec<i128>),
    /// A floating point field of this width, and a number that the width has.
    Float {
        relation: Relation,
        index: usize,
        bytes: u32,
        bound: f64,
    },
    /// Two floating point fields of this width.
    Floats {
        relation: Relation,
        left: usize,
        right: usize,
        bytes: u32,
    },
    /// False if the text is not there.
    Text {
        subject: Subject,
        question: Question,
        negated: bool,
    },
    /// The pointer of a text or byte string is null.
    Null {
        index: usize,
        negated: bool,
    },
}

/// How much a condition costs: cheap ones are asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cost {
    Number,
    Text,
    Loop,
}

impl Condition {
    pub(crate) fn negate(self) -> Condition {
        match self {
            Condition::Constant(value) => Condition::Constant(!value),
            Condition::Not(inner) => *inner,
            Condition::Compare(relation, left, right) if left.is_total() && right.is_total() => {
                Condition::Compare(relation.negated(), left, right)
            }
            other => Condition::Not(Box::new(other)),
        }
    }

    /// All of these (`of` is true), or any.
    pub(crate) fn join(of: bool, list: Vec<Condition>) -> Condition {
        let mut kept = vec![];
        for condition in list {
            match condition {
                Condition::Constant(value) if value == of => {}
                Condition::Constant(value) => return Condition::Constant(value),
                Condition::And(inner) if of => kept.extend(inner),
                Condition::Or(inner) if !of => kept.extend(inner),
                other => kept.push(other),
            }
        }
        kept.sort_by_key(Condition::cost);
        match kept.len() {
            0 => Condition::Constant(of),
            1 => kept.remove(0),
            _ if of => Condition::And(kept),
            _ => Condition::Or(kept),
        }
    }

    fn cost(&self) -> Cost {
        match self {
            Condition::Not(inner) => inner.cost(),
            Condition::And(list) | Condition::Or(list) => {
                list.iter().map(Condition::cost).max().unwrap_or(Cost::Number)
            }
            Condition::Text { question, .. } if question.loops() => Cost::Loop,
            Condition::Text { .. } => Cost::Text,
            _ => Cost::Number,
        }
    }

    fn wants_sign_of(&self, field: usize) -> bool {
        match self {
            Condition::Not(inner) => inner.wants_sign_of(field),
            Condition::And(list) | Condition::Or(list) => list.iter().any(|inner| inner.wants_sign_of(field)),
            Condition::Compare(relation, Number::Field { index, .. }, Number::Constant(bound)) => {
                let is_of_zero = matches!(relation, Relation::Less | Relation::GreaterEqual) && *bound == 0;
                *index == field && (*bound < 0 || is_of_zero)
            }
            Condition::OneOf(Number::Field { index, .. }, values) => {
                *index == field && values.iter().any(|value| *value < 0)
            }
            _ => false,
        }
    }

    /// Calls `field` and `context` for what the condition needs.
    fn visit(&self, field: &mut dyn FnMut(usize), context: &mut dyn FnMut(Context)) {
        match self {
            Condition::Constant(_) => {}
            Condition::Not(inner) => inner.visit(field, context),
            Condition::And(list) | Condition::Or(list) => list.iter().for_each(|inner| inner.visit(field, context)),
            Condition::Compare(_, left, right) => {
                visit_number(left, field, context);
                visit_number(right, field, context);
            }
            Condition::OneOf(number, _) => visit_number(number, field, context),
            Condition::Float { index, .. } | Condition::Null { index, .. } => field(*index),
            Condition::Floats { left, right, .. } => {
                field(*left);
                field(*right);
            }
            Condition::Text { subject, question, .. } => {
                let other = if let Question::Is(other) = question { Some(other) } else { None };
                for subject in other.into_iter().chain([subject]) {
                    match subject {
                        Subject::Field(index) => field(*index),
                        Subject::Comm => context(Context::Comm),
                    }
                }
            }
        }
    }
}

fn visit_number(number: &Number, field: &mut dyn FnMut(usize), context: &mut dyn FnMut(Context)) {
    match number {
        Number::Constant(_) => {}
        Number::Field { index, .. } => field(*index),
        Number::Context(of) => context(*of),
        Number::Unary { inner, .. } | Number::Cast { inner, .. } => visit_number(inner, field, context),
        Number::Binary { left, right, .. } => {
            visit_number(left, field, context);
            visit_number(right, field, context);
        }
    }
}

impl Typed {
    /// What the filter is for all events of the type, if it is the same for all.
    pub fn constant(&self) -> Option<bool> {
        match self.condition {
            Condition::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Filters that must all be true: those that are known at a call's start first, and of these the cheap ones.
    pub fn conjuncts(&self) -> Vec<Typed> {
        let list = match &self.condition {
            Condition::And(list) => list.clone(),
            other => vec![other.clone()],
        };
        let mut parts: Vec<Typed> =
            list.into_iter().map(|condition| Typed { condition, phases: self.phases.clone() }).collect();
        parts.sort_by_key(|part| (part.phase(), part.condition.cost()));
        parts
    }

    /// The fields that it needs, by their indexes.
    pub fn fields(&self) -> BTreeSet<usize> {
        let mut fields = BTreeSet::new();
        self.condition.visit(&mut |field| _ = fields.insert(field), &mut |_| {});
        fields
    }

    /// What it needs that every event has.
    pub fn contexts(&self) -> BTreeSet<Context> {
        let mut contexts = BTreeSet::new();
        self.condition.visit(&mut |_| {}, &mut |context| _ = contexts.insert(context));
        contexts
    }

    /// Whether it compares a field, as it is, such that the answer depends on the field's sign.
    pub fn wants_sign_of(&self, field: usize) -> bool {
        self.condition.wants_sign_of(field)
    }

    /// When all fields that it needs are known.
    pub fn phase(&self) -> Phase {
        self.fields().iter().map(|field| self.phases[*field]).max().unwrap_or(Phase::Entry)
    }
}
