//! What a filter says of a record: the reference for the code that is generated.

use ring3_event::{Record, State, Value};

use crate::arithmetic::{Number, apply, apply_cast, apply_unary};
use crate::scope::Context;
use crate::text::{Question, Subject};
use crate::typed::{Condition, Typed};

impl Typed {
    /// Whether the filter accepts a record of the type with which it was checked.
    pub fn evaluate(&self, record: &Record<'_>) -> bool {
        holds(&self.condition, record)
    }
}

fn holds(condition: &Condition, record: &Record<'_>) -> bool {
    match condition {
        Condition::Constant(value) => *value,
        Condition::Not(inner) => !holds(inner, record),
        Condition::And(list) => list.iter().all(|inner| holds(inner, record)),
        Condition::Or(list) => list.iter().any(|inner| holds(inner, record)),
        Condition::Compare(relation, left, right) => {
            let values = number(left, record).zip(number(right, record));
            values.is_some_and(|(left, right)| relation.holds(left, right))
        }
        Condition::OneOf(value, constants) => number(value, record).is_some_and(|value| constants.contains(&value)),
        Condition::Float { relation, index, bound, .. } => {
            float(*index, record).is_some_and(|value| relation.holds(value, *bound))
        }
        Condition::Floats { relation, left, right, .. } => {
            let values = float(*left, record).zip(float(*right, record));
            values.is_some_and(|(left, right)| relation.holds(left, right))
        }
        Condition::Text { subject, question, negated } => {
            let Some(text) = text(*subject, record) else { return false };
            let answer = match question {
                Question::OneOf(literals) => literals.iter().any(|literal| literal == text),
                Question::Matches(glob) => glob.matches(text),
                Question::Is(other) => match self::text(*other, record) {
                    Some(other) => text == other,
                    None => return false,
                },
            };
            answer != *negated
        }
        Condition::Null { index, negated } => {
            let null = match record.values.get(*index) {
                Some(Value::Text(state, _) | Value::Bytes(state, _)) => *state == State::Null,
                _ => false,
            };
            null != *negated
        }
    }
}

fn number(number: &Number, record: &Record<'_>) -> Option<i128> {
    match number {
        Number::Constant(value) => Some(*value),
        Number::Field { index, .. } => match record.values.get(*index)? {
            Value::Int(value) => Some(*value),
            _ => None,
        },
        Number::Context(context) => match context {
            Context::Pid => Some(record.header.pid.into()),
            Context::Tid => Some(record.header.tid.into()),
            Context::Cpu => Some(record.header.cpu.into()),
            Context::Time => Some(record.header.time_ns.into()),
            Context::Comm => None,
        },
        Number::Unary { operator, unsigned, inner } => {
            Some(apply_unary(*operator, *unsigned, self::number(inner, record)?))
        }
        Number::Cast { width, inner } => Some(apply_cast(*width, self::number(inner, record)?)),
        Number::Binary { operator, unsigned, left, right, .. } => {
            apply(*operator, *unsigned, self::number(left, record)?, self::number(right, record)?)
        }
    }
}

fn float(index: usize, record: &Record<'_>) -> Option<f64> {
    match record.values.get(index)? {
        Value::Float(value) => Some(*value),
        _ => None,
    }
}

/// A text that is there.
fn text<'a>(subject: Subject, record: &'a Record<'_>) -> Option<&'a [u8]> {
    match subject {
        Subject::Comm => {
            let comm = &record.header.comm;
            let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
            Some(&comm[..end])
        }
        Subject::Field(index) => match record.values.get(index)? {
            Value::Text(State::Whole | State::Truncated, text) => Some(text),
            _ => None,
        },
    }
}
