//! What the names and operands of a comparison are, in events of one type.

use ring3_event::{Kind, Show};

use crate::arithmetic::{NoResult, Number};
use crate::lex::Letter;
use crate::names;
use crate::parse::{Ast, Node, Unary};
use crate::scope::{Context, Meaning, Scope};
use crate::text::Subject;

/// Why a comparison says nothing about events of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The type has no such field.
    Missing(String),
    /// The operands do not fit.
    Wrong(String),
    /// A side has no value in any event.
    Undefined,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Number(Number),
    Fraction(f64),
    FloatField { index: usize, bytes: u32 },
    Text(Subject),
    Literal(&'a [Letter]),
    Bytes(usize),
    Null,
    Event,
}

impl Value<'_> {
    /// What it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Number(_) => "a whole number",
            Value::Fraction(_) => "a fraction",
            Value::FloatField { .. } => "a floating point number",
            Value::Text(_) | Value::Literal(_) | Value::Event => "text",
            Value::Bytes(_) => "a string of bytes",
            Value::Null => "null",
        }
    }
}

/// Finds the operands of one comparison.
pub(crate) struct Resolver<'a> {
    pub(crate) scope: &'a dyn Scope,
    /// The fields that the comparison names: names of their values mean these.
    fields: Vec<usize>,
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(scope: &'a dyn Scope, comparison: &Ast) -> Resolver<'a> {
        let mut fields = vec![];
        collect(scope, comparison, &mut fields);
        Resolver { scope, fields }
    }

    fn named(&self, name: &str) -> Result<Value<'static>, Problem> {
        let event = self.scope.event();
        match self.scope.lookup(name) {
            Some(Meaning::Event) => return Ok(Value::Event),
            Some(Meaning::Context(Context::Comm)) => return Ok(Value::Text(Subject::Comm)),
            Some(Meaning::Context(context)) => return Ok(Value::Number(Number::Context(context))),
            Some(Meaning::Field(index)) => {
                let field = event.fields.get(index).ok_or_else(|| Problem::Missing(name.to_owned()))?;
                return Ok(match field.kind {
                    Kind::Int { bytes, signed, .. } => Value::Number(Number::Field { index, bytes, signed }),
                    Kind::Float { bytes } => Value::FloatField { index, bytes },
                    Kind::Text { .. } => Value::Text(Subject::Field(index)),
                    Kind::Bytes { .. } => Value::Bytes(index),
                });
            }
            None => {}
        }
        // (Names of the comparison's fields come first.)
        let fields = self.fields.iter().copied().chain(0..event.fields.len());
        let value = { fields }.find_map(|field| names::value_of(event, field, name));
        value
            .or_else(|| names::constant(name))
            .map(|value| Value::Number(Number::Constant(value)))
            .ok_or_else(|| Problem::Missing(name.to_owned()))
    }

    /// Whether it is a field that holds the result of a system call.
    fn is_result(&self, ast: &Ast) -> bool {
        let Node::Name(name) = &ast.node else { return false };
        let Some(Meaning::Field(index)) = self.scope.lookup(name) else { return false };
        let kind = self.scope.event().fields.get(index).map(|field| &field.kind);
        matches!(kind, Some(Kind::Int { show: Show::Result, .. }))
    }

    /// An operand that is compared with `other`. An error's name beside the result of a system call is what the call returns:
    /// `ret == ENOENT` is `ret == -ENOENT`.
    pub(crate) fn operand<'b>(&self, ast: &'b Ast, other: &Ast) -> Result<Value<'b>, Problem> {
        if let Node::Name(name) = &ast.node
            && self.scope.lookup(name).is_none()
            && let Some(number) = names::errno(name)
            && self.is_result(other)
        {
            return Ok(Value::Number(Number::Constant(-number)));
        }
        self.value(ast)
    }

    pub(crate) fn value<'b>(&self, ast: &'b Ast) -> Result<Value<'b>, Problem> {
        match &ast.node {
            Node::Number(value) => Ok(Value::Number(Number::Constant(*value))),
            Node::Float(value) => Ok(Value::Fraction(*value)),
            Node::Text(letters) => Ok(Value::Literal(letters)),
            Node::Null => Ok(Value::Null),
            Node::Name(name) => self.named(name),
            Node::Unary(operator, inner) => match self.value(inner)? {
                Value::Number(number) => Ok(Value::Number(Number::unary(*operator, number))),
                Value::Fraction(value) if *operator == Unary::Minus => Ok(Value::Fraction(-value)),
                other => Err(no_arithmetic(&other)),
            },
            Node::Cast(width, inner) => Ok(Value::Number(Number::cast(*width, self.number(inner)?))),
            Node::Arithmetic(operator, left, right) => {
                let (left, right) = (self.number(left)?, self.number(right)?);
                Number::binary(*operator, left, right).map(Value::Number).map_err(|why| match why {
                    NoResult::Undefined => Problem::Undefined,
                    NoResult::TooLarge => Problem::Wrong("the constant does not fit in 64 bits".into()),
                })
            }
            Node::Not(_) => Err(Problem::Wrong(
                "`!` makes a condition, and it binds stronger than comparisons: write `!(a == b)`, or `~` for bits"
                    .into(),
            )),
            _ => Err(Problem::Wrong("a number or text must stand here, and this is a condition".into())),
        }
    }

    fn number(&self, ast: &Ast) -> Result<Number, Problem> {
        match self.value(ast)? {
            Value::Number(number) => Ok(number),
            other => Err(no_arithmetic(&other)),
        }
    }
}

fn no_arithmetic(value: &Value) -> Problem {
    Problem::Wrong(format!("arithmetic is for whole numbers, and an operand is {}", value.kind()))
}

/// The fields that an expression names.
fn collect(scope: &dyn Scope, ast: &Ast, fields: &mut Vec<usize>) {
    match &ast.node {
        Node::Name(name) => {
            if let Some(Meaning::Field(index)) = scope.lookup(name) {
                fields.push(index);
            }
        }
        Node::Not(inner) | Node::Unary(_, inner) | Node::Cast(_, inner) => collect(scope, inner, fields),
        Node::Arithmetic(_, left, right) | Node::Compare(_, left, right) | Node::Match(_, left, right) => {
            collect(scope, left, fields);
            collect(scope, right, fields);
        }
        Node::In(subject, list) => {
            collect(scope, subject, fields);
            list.iter().for_each(|member| collect(scope, member, fields));
        }
        Node::And(list) | Node::Or(list) => list.iter().for_each(|inner| collect(scope, inner, fields)),
        Node::Number(_) | Node::Float(_) | Node::Text(_) | Node::Null => {}
    }
}
