//! Tokens to an expression.

use std::fmt;

use crate::lex::{Letter, Lexer, Span, Token};
use crate::names::{self, Width};
use crate::{DEPTH_MAX, FILTER_BYTES_MAX};

/// Why a text is no filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Where, in characters, counted from 1.
    pub column: usize,
    /// How many characters are wrong; at least 1.
    pub width: usize,
    /// What is wrong, and what to do.
    pub message: String,
    /// The line of the text, and below it a line that points at the column.
    pub excerpt: String,
}

impl SyntaxError {
    pub(crate) fn new(text: &str, span: Span, message: String) -> SyntaxError {
        // (A backslash may stand before a character of several bytes.)
        let span = Span { begin: text.floor_char_boundary(span.begin), end: text.ceil_char_boundary(span.end) };
        let line_begin = text[..span.begin].rfind('\n').map_or(0, |at| at + 1);
        let line = text[line_begin..].lines().next().unwrap_or_default();
        let indent = text[line_begin..span.begin].chars().count();
        let width = text[span.begin..span.end].lines().next().unwrap_or_default().chars().count().max(1);
        let excerpt = format!("    {line}\n    {}{}", " ".repeat(indent), "^".repeat(width));
        SyntaxError { column: text[..span.begin].chars().count() + 1, width, message, excerpt }
    }
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filter, column {}: {}\n{}", self.column, self.message, self.excerpt)
    }
}

impl std::error::Error for SyntaxError {}

/// Operators of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Minus,
    Invert,
}

/// Operators on numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Times,
    Divide,
    Modulo,
    Plus,
    Minus,
    Left,
    Right,
    And,
    Xor,
    Or,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    Unequal,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Number(i128),
    Float(f64),
    Text(Vec<Letter>),
    Null,
    Name(String),
    Not(Box<Ast>),
    Unary(Unary, Box<Ast>),
    Cast(Width, Box<Ast>),
    Arithmetic(Arithmetic, Box<Ast>, Box<Ast>),
    Compare(Relation, Box<Ast>, Box<Ast>),
    /// `~`; with `true`, `!~`.
    Match(bool, Box<Ast>, Box<Ast>),
    In(Box<Ast>, Vec<Ast>),
    And(Vec<Ast>),
    Or(Vec<Ast>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ast {
    pub(crate) node: Node,
    pub(crate) span: Span,
    depth: usize,
}

/// A filter that has been read, and not yet been checked against types of events.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    pub(crate) text: String,
    pub(crate) ast: Ast,
}

impl Expression {
    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Reads a filter.
///
/// # Errors
/// The text is longer than [`FILTER_BYTES_MAX`], nested deeper than [`DEPTH_MAX`], or no expression.
pub fn parse(text: &str) -> Result<Expression, SyntaxError> {
    let start = Span::default();
    if text.len() > FILTER_BYTES_MAX {
        let message = format!("the filter has {} bytes; {FILTER_BYTES_MAX} are allowed", text.len());
        return Err(SyntaxError::new("", start, message));
    }
    let mut lexer = Lexer::new(text);
    let (token, span) = lexer.next()?;
    let mut parser = Parser { text, lexer, token, span, open: 0 };
    if parser.token == Token::End {
        return Err(parser.error("the filter is empty".into()));
    }
    let ast = parser.binary(0)?;
    match parser.token {
        Token::End => Ok(Expression { text: text.to_owned(), ast }),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    token: Token,
    span: Span,
    /// Calls of [`Parser::unary`] that have begun.
    open: usize,
}

#[derive(Clone, Copy)]
enum Infix {
    Or,
    And,
    Compare(Relation),
    Match(bool),
    Arithmetic(Arithmetic),
}

/// Operators between two operands, weakest first: LTTng's order, in which bit operations bind stronger than comparisons
/// (in C, `flags & 1 == 1` means `flags & (1 == 1)`), with C's arithmetic above it.
const LEVELS: [&[(&str, Infix)]; 10] = [
    &[("||", Infix::Or)],
    &[("&&", Infix::And)],
    &[
        ("==", Infix::Compare(Relation::Equal)),
        ("!=", Infix::Compare(Relation::Unequal)),
        ("=~", Infix::Match(false)),
        ("~", Infix::Match(false)),
        ("!~", Infix::Match(true)),
    ],
    &[
        ("<", Infix::Compare(Relation::Less)),
        ("<=", Infix::Compare(Relation::LessEqual)),
        (">", Infix::Compare(Relation::Greater)),
        (">=", Infix::Compare(Relation::GreaterEqual)),
    ],
    &[("|", Infix::Arithmetic(Arithmetic::Or))],
    &[("^", Infix::Arithmetic(Arithmetic::Xor))],
    &[("&", Infix::Arithmetic(Arithmetic::And))],
    &[("<<", Infix::Arithmetic(Arithmetic::Left)), (">>", Infix::Arithmetic(Arithmetic::Right))],
    &[("+", Infix::Arithmetic(Arithmetic::Plus)), ("-", Infix::Arithmetic(Arithmetic::Minus))],
    &[
        ("*", Infix::Arithmetic(Arithmetic::Times)),
        ("/", Infix::Arithmetic(Arithmetic::Divide)),
        ("%", Infix::Arithmetic(Arithmetic::Modulo)),
    ],
];
/// The level of `==`, at which `in` stands, too.
const EQUALITY: usize = 2;

impl Parser<'_> {
    fn error(&self, message: String) -> SyntaxError {
        SyntaxError::new(self.text, self.span, message)
    }

    fn unexpected(&self, wanted: &str) -> SyntaxError {
        let advice = match &self.token {
            Token::End => return self.error(format!("the filter ends where {wanted} is missing")),
            Token::Name(name) if name == "and" => "; write `&&`",
            Token::Name(name) if name == "or" => "; write `||`",
            Token::Name(name) if name == "not" => "; write `!`",
            Token::Symbol(")") => "; there is no `(` for it",
            _ if wanted == "`(`" => "; write `in (1, 2)`",
            _ => "",
        };
        let found = &self.text[self.span.begin..self.span.end];
        self.error(format!("`{found}` stands where {wanted} is missing{advice}"))
    }

    fn advance(&mut self) -> Result<Span, SyntaxError> {
        let before = self.span;
        (self.token, self.span) = self.lexer.next()?;
        Ok(before)
    }

    fn eat(&mut self, symbol: &str) -> Result<bool, SyntaxError> {
        let found = matches!(self.token, Token::Symbol(found) if found == symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// A node above others.
    fn node(&self, node: Node, span: Span) -> Result<Ast, SyntaxError> {
        let deepest = |nodes: &[Ast]| nodes.iter().map(|node| node.depth).max().unwrap_or(0);
        let below = match &node {
            Node::Not(inner) | Node::Unary(_, inner) | Node::Cast(_, inner) => inner.depth,
            Node::Arithmetic(_, left, right) | Node::Compare(_, left, right) | Node::Match(_, left, right) => {
                left.depth.max(right.depth)
            }
            Node::In(subject, list) => subject.depth.max(deepest(list)),
            Node::And(list) | Node::Or(list) => deepest(list),
            _ => 0,
        };
        if below >= DEPTH_MAX {
            return Err(SyntaxError::new(
                self.text,
                span,
                format!("the expression is deeper than {DEPTH_MAX} levels"),
            ));
        }
        Ok(Ast { node, span, depth: below + 1 })
    }

    fn binary(&mut self, level: usize) -> Result<Ast, SyntaxError> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        loop {
            if level == EQUALITY && self.token == Token::Name("in".into()) {
                left = self.set(left)?;
                continue;
            }
            let Token::Symbol(symbol) = self.token else { return Ok(left) };
            let Some((_, infix)) = operators.iter().find(|(name, _)| *name == symbol) else { return Ok(left) };
            self.chained(&left, *infix)?;
            self.advance()?;
            let right = self.binary(level + 1)?;
            let span = left.span.to(right.span);
            let node = match (*infix, left) {
                (Infix::Or, Ast { node: Node::Or(mut list), .. }) if level == 0 => {
                    list.push(right);
                    Node::Or(list)
                }
                (Infix::And, Ast { node: Node::And(mut list), .. }) if level == 1 => {
                    list.push(right);
                    Node::And(list)
                }
                (Infix::Or, left) => Node::Or(vec![left, right]),
                (Infix::And, left) => Node::And(vec![left, right]),
                (Infix::Compare(relation), left) => Node::Compare(relation, Box::new(left), Box::new(right)),
                (Infix::Match(negated), left) => Node::Match(negated, Box::new(left), Box::new(right)),
                (Infix::Arithmetic(operator), left) => Node::Arithmetic(operator, Box::new(left), Box::new(right)),
            };
            left = self.node(node, span)?;
        }
    }

    /// Refuses `1 < x < 5`.
    fn chained(&self, left: &Ast, infix: Infix) -> Result<(), SyntaxError> {
        let compares = matches!(infix, Infix::Compare(_) | Infix::Match(_));
        let is_comparison = matches!(left.node, Node::Compare(..) | Node::Match(..) | Node::In(..));
        if !compares || !is_comparison {
            return Ok(());
        }
        Err(self.error("a comparison cannot be compared; write `1 < x && x < 5` for `1 < x < 5`".into()))
    }

    fn set(&mut self, subject: Ast) -> Result<Ast, SyntaxError> {
        self.advance()?;
        if !self.eat("(")? {
            return Err(self.unexpected("`(`"));
        }
        if matches!(self.token, Token::Symbol(")")) {
            return Err(self.error("the set is empty; write `in (1, 2)`".into()));
        }
        let mut list = vec![];
        loop {
            // (A member is no condition.)
            list.push(self.binary(EQUALITY + 2)?);
            let end = self.span;
            if self.eat(")")? {
                let span = subject.span.to(end);
                return self.node(Node::In(Box::new(subject), list), span);
            }
            if !self.eat(",")? {
                return Err(self.unexpected("`,` or `)`"));
            }
        }
    }

    fn unary(&mut self) -> Result<Ast, SyntaxError> {
        if self.open >= DEPTH_MAX {
            return Err(self.error(format!("the expression is deeper than {DEPTH_MAX} levels")));
        }
        self.open += 1;
        let ast = self.operand();
        self.open -= 1;
        ast
    }

    /// What stands behind a `(`, if it is a type and its `)`.
    fn cast(&mut self) -> Result<Option<Width>, SyntaxError> {
        let Token::Name(name) = &self.token else { return Ok(None) };
        let Some(width) = names::width(name) else { return Ok(None) };
        // (A field may be called `u8`, too.)
        if !matches!(self.lexer.clone().next(), Ok((Token::Symbol(")"), _))) {
            return Ok(None);
        }
        self.advance()?;
        self.advance()?;
        Ok(Some(width))
    }

    /// Whether the next token can only begin an operand: no operator can stand before it.
    fn begins_operand(&self) -> bool {
        match &self.token {
            Token::Name(name) => !["in", "and", "or", "not"].contains(&name.as_str()),
            Token::Number(_) | Token::Float(_) | Token::Text(_) => true,
            _ => false,
        }
    }

    fn operand(&mut self) -> Result<Ast, SyntaxError> {
        let node = match &self.token {
            Token::Symbol("(") => {
                let begin = self.advance()?;
                if let Some(width) = self.cast()? {
                    let inner = self.unary()?;
                    let span = begin.to(inner.span);
                    return self.node(Node::Cast(width, Box::new(inner)), span);
                }
                let mut inner = self.binary(0)?;
                let end = self.span;
                if !self.eat(")")? {
                    return Err(self.unexpected("`)`"));
                }
                if let Node::Name(name) = &inner.node
                    && self.begins_operand()
                {
                    let what = format!("`{name}` is no type; there are {}", names::TYPES);
                    return Err(SyntaxError::new(self.text, inner.span, what));
                }
                inner.span = begin.to(end);
                // (What stands in parentheses is one operand.)
                return Ok(inner);
            }
            Token::Symbol(symbol @ ("!" | "-" | "~" | "+")) => {
                let symbol = *symbol;
                let begin = self.advance()?;
                let inner = self.unary()?;
                let span = begin.to(inner.span);
                let node = match symbol {
                    "!" => Node::Not(Box::new(inner)),
                    "-" => Node::Unary(Unary::Minus, Box::new(inner)),
                    "~" => Node::Unary(Unary::Invert, Box::new(inner)),
                    _ => return Ok(inner),
                };
                return self.node(node, span);
            }
            Token::Number(value) => Node::Number(*value),
            Token::Float(value) => Node::Float(*value),
            Token::Text(letters) => Node::Text(letters.clone()),
            Token::Name(name) => match name.as_str() {
                "null" | "NULL" => Node::Null,
                "in" | "and" | "or" | "not" => return Err(self.unexpected("a value")),
                name => Node::Name(name.to_owned()),
            },
            _ => return Err(self.unexpected("a value")),
        };
        let span = self.advance()?;
        self.node(node, span)
    }
}
