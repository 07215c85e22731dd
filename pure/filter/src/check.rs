//! Checks a filter against types of events.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use ring3_event::EventType;

use crate::arithmetic::Number;
use crate::float;
use crate::glob::Glob;
use crate::lex::{Letter, Span};
use crate::names;
use crate::parse::{Ast, Expression, Node, Relation, SyntaxError};
use crate::resolve::{Problem, Resolver, Value};
use crate::scope::{Scope, context_names};
use crate::text::{Question, Subject};
use crate::typed::{Condition, Typed};

/// Why a filter does not fit the types of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeError {
    /// Where, in characters, counted from 1.
    pub column: usize,
    /// How many characters the name or the comparison has that does not fit.
    pub width: usize,
    /// What is wrong, and what to do.
    pub message: String,
    /// The line of the text, and below it a line that points at the column.
    pub excerpt: String,
}

impl TypeError {
    fn new(text: &str, span: Span, message: String) -> TypeError {
        let SyntaxError { column, width, message, excerpt } = SyntaxError::new(text, span, message);
        TypeError { column, width, message, excerpt }
    }
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filter, column {}: {}\n{}", self.column, self.message, self.excerpt)
    }
}

impl std::error::Error for TypeError {}

impl Expression {
    /// The filter for events of one type. A comparison with something that the type lacks is false.
    ///
    /// # Errors
    /// The operands of a comparison do not fit.
    pub fn check(&self, scope: &dyn Scope) -> Result<Typed, TypeError> {
        let (typed, problems) = self.typed(scope);
        let wrong = problems.into_iter().find_map(|(span, problem)| match problem {
            Some(Problem::Wrong(message)) => Some(TypeError::new(&self.text, span, message)),
            _ => None,
        });
        wrong.map_or(Ok(typed), Err)
    }

    /// The filter, with what is wrong with each comparison; comparisons with which something is wrong are false.
    fn typed(&self, scope: &dyn Scope) -> (Typed, Vec<(Span, Option<Problem>)>) {
        let mut checker = Checker { scope, comparisons: vec![] };
        let condition = checker.condition(&self.ast);
        let phases = scope.event().fields.iter().map(|field| field.phase).collect();
        (Typed { condition, phases }, checker.comparisons)
    }
}

/// The filter for each of several types of events. In a type with which a comparison does not fit, the comparison is false.
///
/// # Errors
/// A comparison fits with none of the types: its operands are of different kinds, or no type has a field of that name.
pub fn check_all(expression: &Expression, scopes: &[&dyn Scope]) -> Result<Vec<Typed>, TypeError> {
    let mut all = vec![];
    let mut by_comparison: BTreeMap<Span, Vec<Option<Problem>>> = BTreeMap::new();
    for scope in scopes {
        let (typed, comparisons) = expression.typed(*scope);
        for (span, problem) in comparisons {
            by_comparison.entry(span).or_default().push(problem);
        }
        all.push(typed);
    }
    for (span, problems) in by_comparison {
        let Some(problems) = problems.into_iter().collect::<Option<Vec<Problem>>>() else { continue };
        // (What nobody knows is more likely to be wrong than what some types lack.)
        let rank = |problem: &Problem| match problem {
            Problem::Wrong(_) => 0,
            Problem::Missing(name) if !scopes.iter().any(|scope| knows(*scope, name)) => 1,
            Problem::Missing(_) => 2,
            Problem::Undefined => 3,
        };
        let (span, message) = match problems.into_iter().min_by_key(rank) {
            Some(Problem::Wrong(message)) => (span, message),
            Some(Problem::Missing(name)) => {
                (place_of(&expression.ast, span, &name).unwrap_or(span), missing(&name, scopes))
            }
            // Constant divisions by zero are false, as others are.
            Some(Problem::Undefined) | None => continue,
        };
        return Err(TypeError::new(&expression.text, span, message));
    }
    Ok(all)
}

/// Whether a name is a field of a type, or of the context, or the name of a field's value.
fn knows(scope: &dyn Scope, name: &str) -> bool {
    scope.lookup(name).is_some() || names::all_of(scope.event()).any(|known| known == name)
}

/// Where a name stands in the part of an expression that has this span.
fn place_of(ast: &Ast, within: Span, name: &str) -> Option<Span> {
    let inside = |inner: &Ast| place_of(inner, within, name);
    match &ast.node {
        Node::Name(found) => {
            let is_within = within.begin <= ast.span.begin && ast.span.end <= within.end;
            (found == name && is_within).then_some(ast.span)
        }
        Node::Not(inner) | Node::Unary(_, inner) | Node::Cast(_, inner) => inside(inner),
        Node::Arithmetic(_, left, right) | Node::Compare(_, left, right) | Node::Match(_, left, right) => {
            inside(left).or_else(|| inside(right))
        }
        Node::In(subject, list) => inside(subject).or_else(|| list.iter().find_map(inside)),
        Node::And(list) | Node::Or(list) => list.iter().find_map(inside),
        Node::Number(_) | Node::Float(_) | Node::Text(_) | Node::Null => None,
    }
}

/// What to say of a name that no type has.
fn missing(name: &str, scopes: &[&dyn Scope]) -> String {
    if scopes.iter().any(|scope| scope.lookup(name).is_some()) {
        return format!("none of these events has `{name}` together with the rest of the comparison");
    }
    // (perf's way to say a type.)
    if let Some((field, of)) = name.rsplit_once(':')
        && names::width(of).is_some()
    {
        return format!("a field's type stands before it: write `({of}){field}`");
    }
    let events: Vec<&EventType> = scopes.iter().map(|scope| scope.event()).collect();
    let fields = events.iter().flat_map(|event| event.fields.iter().map(|field| field.name.as_str()));
    let values = events.iter().flat_map(|event| names::all_of(event));
    let near = names::nearest(name, fields.chain(values).chain(context_names()).chain(names::constants()));
    let advice = match near.as_slice() {
        [] => match events.as_slice() {
            [only] => {
                let fields: Vec<&str> = only.fields.iter().map(|field| field.name.as_str()).collect();
                format!("its fields: {}", fields.join(", "))
            }
            _ => fields_of(&events),
        },
        near => {
            format!("did you mean {}?", near.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or "))
        }
    };
    let what = if events.len() == 1 { "the event has no field" } else { "none of these events has a field" };
    format!("{what} `{name}`, and it is no known constant; {advice}")
}

/// The fields of several types, those that most have first.
fn fields_of(events: &[&EventType]) -> String {
    const NAMED_MAX: usize = 12;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for field in events.iter().flat_map(|event| &event.fields) {
        *counts.entry(&field.name).or_default() += 1;
    }
    let mut names: Vec<(&str, usize)> = counts.into_iter().collect();
    names.sort_by_key(|(_, count)| Reverse(*count));
    let named: Vec<&str> = names.iter().take(NAMED_MAX).map(|(name, _)| *name).collect();
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more; choose one event to see all of its fields"),
    };
    format!("their fields: {}{more}", named.join(", "))
}

struct Checker<'a> {
    scope: &'a dyn Scope,
    /// All comparisons, and what is wrong with them.
    comparisons: Vec<(Span, Option<Problem>)>,
}

impl Checker<'_> {
    fn condition(&mut self, ast: &Ast) -> Condition {
        match &ast.node {
            Node::Not(inner) => self.condition(inner).negate(),
            Node::And(list) => Condition::join(true, list.iter().map(|inner| self.condition(inner)).collect()),
            Node::Or(list) => Condition::join(false, list.iter().map(|inner| self.condition(inner)).collect()),
            _ => {
                let resolver = Resolver::new(self.scope, ast);
                let (condition, problem) = match comparison(&resolver, ast) {
                    Ok(condition) => (condition, None),
                    Err(problem) => (Condition::Constant(false), Some(problem)),
                };
                self.comparisons.push((ast.span, problem));
                condition
            }
        }
    }
}

fn comparison(resolver: &Resolver, ast: &Ast) -> Result<Condition, Problem> {
    match &ast.node {
        Node::Compare(relation, left, right) => {
            let values = (resolver.operand(left, right)?, resolver.operand(right, left)?);
            never_negative(*relation, [left, right], [&values.0, &values.1])?;
            compare(resolver, *relation, values.0, values.1)
        }
        Node::Match(negated, subject, pattern) => {
            let Value::Literal(letters) = resolver.value(pattern)? else {
                return Err(Problem::Wrong(
                    "a pattern in quotes must stand on the right of `~`: `path ~ \"/etc/*\"`".into(),
                ));
            };
            let glob = Glob::new(letters).map_err(Problem::Wrong)?;
            match resolver.value(subject)? {
                Value::Text(subject) => Ok(text(subject, Question::glob(glob), *negated)),
                Value::Event => Ok(Condition::Constant(is_named(resolver, |name| glob.matches(name)) != *negated)),
                other => Err(Problem::Wrong(format!("`~` is for text, and the left side is {}", other.kind()))),
            }
        }
        Node::In(subject, list) => set(resolver, subject, list),
        _ => match resolver.value(ast)? {
            Value::Number(number) => Ok(numbers(Relation::Unequal, number, Number::Constant(0))),
            Value::Text(_) | Value::Bytes(_) => {
                Err(Problem::Wrong("text alone is no condition; write `... != null` or `... != \"\"`".into()))
            }
            other => Err(Problem::Wrong(format!("{} is no condition; compare it with something", other.kind()))),
        },
    }
}

fn compare(resolver: &Resolver, relation: Relation, left: Value, right: Value) -> Result<Condition, Problem> {
    // Constants go to the right.
    let is_constant = |value: &Value| {
        matches!(value, Value::Number(Number::Constant(_)) | Value::Fraction(_) | Value::Literal(_) | Value::Null)
    };
    let (relation, left, right) =
        if is_constant(&left) { (relation.swapped(), right, left) } else { (relation, left, right) };
    let negated = relation == Relation::Unequal;
    let equality = negated || relation == Relation::Equal;
    let no_order = || Problem::Wrong("texts have no order; write `==`, `!=`, `~` or `!~`".into());
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => Ok(numbers(relation, left, right)),
        (Value::FloatField { index, bytes }, Value::Fraction(value)) => {
            Ok(floats(relation, index, bytes, float::Constant::Fraction(value)))
        }
        (Value::FloatField { index, bytes }, Value::Number(Number::Constant(value))) => {
            Ok(floats(relation, index, bytes, float::Constant::Whole(value)))
        }
        (Value::FloatField { index: left, bytes }, Value::FloatField { index: right, bytes: other }) => {
            let same = (bytes == other).then_some(Condition::Floats { relation, left, right, bytes });
            same.ok_or_else(|| Problem::Wrong("floating point numbers of different widths cannot be compared".into()))
        }
        (Value::Text(_), Value::Literal(_) | Value::Text(_)) | (Value::Event, Value::Literal(_)) if !equality => {
            Err(no_order())
        }
        (Value::Text(subject), Value::Literal(letters)) => {
            Ok(text(subject, Question::literal(plain(letters)), negated))
        }
        (Value::Text(left), Value::Text(right)) => Ok(text(left, Question::Is(right), negated)),
        (Value::Event, Value::Literal(letters)) => {
            Ok(Condition::Constant(is_named(resolver, |name| name == plain(letters)) != negated))
        }
        (_, Value::Null) if !equality => {
            Err(Problem::Wrong("null has no order; write `== null` or `!= null`".into()))
        }
        (Value::Number(number), Value::Null) => Ok(numbers(relation, number, Number::Constant(0))),
        (Value::Text(Subject::Field(index)) | Value::Bytes(index), Value::Null) => {
            Ok(Condition::Null { index, negated })
        }
        (Value::Text(Subject::Comm), Value::Null) => Ok(Condition::Constant(negated)),
        (Value::Bytes(_), _) | (_, Value::Bytes(_)) => {
            Err(Problem::Wrong("a string of bytes can be compared with null only".into()))
        }
        (left, right) => Err(Problem::Wrong(format!("{} cannot be compared with {}", left.kind(), right.kind()))),
    }
}

/// Refuses an unsigned field that is to be negative: mostly it holds a signed number whose type nobody has said.
fn never_negative(relation: Relation, [left, right]: [&Ast; 2], values: [&Value; 2]) -> Result<(), Problem> {
    let (relation, field, value, constant) = match values {
        [value @ Value::Number(Number::Field { signed: false, .. }), Value::Number(Number::Constant(constant))] => {
            (relation, left, value, *constant)
        }
        [Value::Number(Number::Constant(constant)), value @ Value::Number(Number::Field { signed: false, .. })] => {
            (relation.swapped(), right, value, *constant)
        }
        _ => return Ok(()),
    };
    let (Node::Name(name), Value::Number(number)) = (&field.node, value) else { return Ok(()) };
    let is_meant_negative = constant < 0 || constant == 0 && relation == Relation::Less;
    let is_never = number.range().decide(relation, Number::Constant(constant).range()) == Some(false);
    if is_meant_negative && is_never { Err(Problem::Wrong(unsigned(name))) } else { Ok(()) }
}

/// What to say of a comparison that wants an unsigned field to be negative.
fn unsigned(name: &str) -> String {
    format!(
        "`{name}` is unsigned, and never negative; if it holds a signed number, write `(int){name}`, or `(long){name}` for 64 bits"
    )
}

fn set(resolver: &Resolver, subject: &Ast, list: &[Ast]) -> Result<Condition, Problem> {
    let members = list.iter().map(|member| resolver.operand(member, subject));
    let members: Vec<Value> = members.collect::<Result<_, _>>()?;
    let literals = || -> Option<Vec<Vec<u8>>> {
        let literal = |member: &Value| if let Value::Literal(letters) = member { Some(plain(letters)) } else { None };
        members.iter().map(literal).collect()
    };
    match resolver.value(subject)? {
        Value::Number(number) => {
            let (mut constants, mut others) = (vec![], vec![]);
            for member in members.iter().cloned() {
                match member {
                    Value::Number(Number::Constant(value)) => constants.push(value),
                    member => others.push(compare(resolver, Relation::Equal, Value::Number(number.clone()), member)?),
                }
            }
            if let (Node::Name(name), Number::Field { signed: false, .. }) = (&subject.node, &number)
                && others.is_empty()
                && constants.iter().all(|constant| *constant < 0)
            {
                return Err(Problem::Wrong(unsigned(name)));
            }
            others.push(one_of(number, constants));
            Ok(Condition::join(false, others))
        }
        Value::Text(subject) => match literals() {
            Some(literals) => Ok(text(subject, Question::OneOf(literals), false)),
            None => {
                Err(Problem::Wrong("the members of the set must be text in quotes, as the left side is text".into()))
            }
        },
        Value::Event => match literals() {
            Some(literals) => Ok(Condition::Constant(is_named(resolver, |name| literals.iter().any(|l| l == name)))),
            None => {
                Err(Problem::Wrong("the members of the set must be text in quotes, as the left side is text".into()))
            }
        },
        other => {
            Err(Problem::Wrong(format!("`in` is for whole numbers and text, and the left side is {}", other.kind())))
        }
    }
}

/// Whether the type of events has this name, in full or without its provider.
fn is_named(resolver: &Resolver, is: impl Fn(&[u8]) -> bool) -> bool {
    let event = resolver.scope.event();
    is(event.name.as_bytes()) || is(event.full_name().as_bytes())
}

fn plain(letters: &[Letter]) -> Vec<u8> {
    letters.iter().map(|letter| letter.byte).collect()
}

fn text(subject: Subject, question: Question, negated: bool) -> Condition {
    Condition::Text { subject, question, negated }
}

fn numbers(relation: Relation, left: Number, right: Number) -> Condition {
    match left.range().decide(relation, right.range()) {
        Some(false) => Condition::Constant(false),
        Some(true) if left.is_total() && right.is_total() => Condition::Constant(true),
        _ => Condition::Compare(relation, left, right),
    }
}

fn one_of(number: Number, mut constants: Vec<i128>) -> Condition {
    let range = number.range();
    constants.retain(|value| range.min <= *value && *value <= range.max);
    constants.sort_unstable();
    constants.dedup();
    match constants.as_slice() {
        [] => Condition::Constant(false),
        [only] => numbers(Relation::Equal, number, Number::Constant(*only)),
        _ if matches!(number, Number::Constant(_)) => Condition::Constant(true),
        _ => Condition::OneOf(number, constants),
    }
}

fn floats(relation: Relation, index: usize, bytes: u32, constant: float::Constant) -> Condition {
    match float::bound(relation, constant, bytes) {
        Ok((relation, bound)) => Condition::Float { relation, index, bytes, bound },
        Err(always) => Condition::Constant(always),
    }
}
