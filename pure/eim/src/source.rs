//! Texts, places in them, and what is wrong there.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A text and the name of its file.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// As messages name it.
    pub name: String,
    /// What it says.
    pub text: String,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The text.
    pub source: Arc<Source>,
    /// Bytes of it.
    pub range: Range<usize>,
}

impl Span {
    /// From the start of this part to the end of another one of the same text.
    pub(crate) fn to(&self, end: &Span) -> Span {
        Span { source: self.source.clone(), range: self.range.start..end.range.end.max(self.range.end) }
    }

    /// What stands there.
    pub fn text(&self) -> &str {
        self.source.text.get(self.range.clone()).unwrap_or_default()
    }

    /// Line and column, from 1 on; columns count characters.
    pub fn position(&self) -> (usize, usize) {
        let before = self.source.text.get(..self.range.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        (line, before[start..].chars().count() + 1)
    }
}

/// What is wrong with a specification, a policy or the types, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Where; `None`: of no place in a text.
    pub span: Option<Span>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Error {
    /// An error at a place.
    pub fn at(span: &Span, message: impl Into<String>) -> Error {
        Error { span: Some(span.clone()), message: message.into() }
    }

    /// An error of a file as a whole: the message names it.
    pub fn of_file(message: impl Into<String>) -> Error {
        Error { span: None, message: message.into() }
    }
}

/// `FILE:LINE:COLUMN: what is wrong; what to do`, then the line, then a caret below the place.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(span) = &self.span else { return write!(f, "{}", self.message) };
        let (line, column) = span.position();
        writeln!(f, "{}:{line}:{column}: {}", span.source.name, self.message)?;
        let text = span.source.text.lines().nth(line - 1).unwrap_or_default();
        // Tabs stay tabs below, so that the caret is in its place.
        let blank = |letter: char| if letter == '\t' { '\t' } else { ' ' };
        let indent: String = text.chars().take(column - 1).map(blank).collect();
        let rest = text.chars().count().saturating_sub(column - 1).max(1);
        let width = span.text().lines().next().unwrap_or_default().chars().count().clamp(1, rest);
        write!(f, "    {text}\n    {indent}^{}", "~".repeat(width - 1))
    }
}

impl std::error::Error for Error {}

/// The candidate that is most like a name, if one is like it.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(2);
    let measured = candidates.filter(|known| known.len().abs_diff(name.len()) <= limit);
    let best = measured.map(|known| (distance(name, known), known)).min()?;
    (best.0 <= limit).then_some(best.1)
}

/// `; did you mean X?`, or else the advice.
pub(crate) fn suggest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>, advice: &str) -> String {
    match nearest(name, candidates) {
        Some(known) => format!("did you mean `{known}`?"),
        None => advice.to_owned(),
    }
}

/// Letters to add, remove or replace.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (at, known) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(*known != letter);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
