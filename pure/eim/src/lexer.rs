//! Words and signs of a specification.

use std::sync::Arc;

use crate::source::{Error, Source, Span};

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or a word of the language.
    Word(String),
    /// A number, perhaps negative.
    Number(i128),
    /// What is between quotation marks.
    Text(String),
    /// One of [`SIGNS`].
    Sign(&'static str),
    /// The text's end.
    End,
}

/// A token and its place.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
    /// It is the first of its line.
    pub(crate) begins_line: bool,
}

/// Signs, longer ones before their beginnings.
const SIGNS: &[&str] =
    &["->", "...", "..", "<=", ">=", "==", "!=", "=", "<", ">", "{", "}", ";", ",", ".", "(", ")", "[", "]", "*"];

/// Bytes of a text at most.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;

/// The tokens of a text; the last is its end.
pub(crate) fn tokens(source: &Arc<Source>) -> Result<Vec<Token>, Error> {
    tokens_of(&Span { source: source.clone(), range: 0..source.text.len() })
}

/// The tokens of a part of a text; the last is its end.
pub(crate) fn tokens_of(part: &Span) -> Result<Vec<Token>, Error> {
    let source = &part.source;
    let text = source.text.get(..part.range.end).unwrap_or_default();
    let span = |range| Span { source: source.clone(), range };
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::at(
            &span(0..0),
            format!("the text has more than {TEXT_BYTES_MAX} bytes; split it (`use`)"),
        ));
    }
    let (mut tokens, mut at, mut begins_line) = (vec![], part.range.start, true);
    while let Some(letter) = text.get(at..).unwrap_or_default().chars().next() {
        let start = at;
        let kind = if letter == '\n' || letter.is_whitespace() {
            begins_line |= letter == '\n';
            at += letter.len_utf8();
            continue;
        } else if letter == '#' {
            at += text[at..].find('\n').unwrap_or(text.len() - at);
            continue;
        } else if letter == '"' {
            let rest = &text[at + 1..];
            let end = rest.find(['"', '\n']).filter(|end| rest[*end..].starts_with('"'));
            let end = end.ok_or_else(|| {
                Error::at(&span(at..at + 1), "the text has no end; close it with `\"` on the same line")
            })?;
            at += end + 2;
            Kind::Text(rest[..end].to_owned())
        } else if letter.is_ascii_alphabetic() || letter == '_' {
            at += length(&text[at..], |letter| letter.is_ascii_alphanumeric() || letter == '_');
            Kind::Word(text[start..at].to_owned())
        } else if letter.is_ascii_digit() || letter == '-' && text[at + 1..].starts_with(|c: char| c.is_ascii_digit())
        {
            // (A unit may stand at its number: `50us`.)
            let hexadecimal = text[at..].trim_start_matches('-').starts_with("0x");
            let digit = |letter: char| letter.is_ascii_digit() || hexadecimal && letter.is_ascii_alphanumeric();
            at += 1 + length(&text[at + 1..], |letter| digit(letter) || letter == '_');
            let number = number(&text[start..at]);
            number.map(Kind::Number).ok_or_else(|| {
                let message =
                    format!("`{}` is no number; write digits, or 0x and hexadecimal digits", &text[start..at]);
                Error::at(&span(start..at), message)
            })?
        } else if let Some(sign) = SIGNS.iter().find(|sign| text[at..].starts_with(**sign)) {
            at += sign.len();
            Kind::Sign(sign)
        } else {
            let range = at..at + letter.len_utf8();
            let message = format!("`{}` has no meaning here; remove it", letter.escape_debug());
            return Err(Error::at(&span(range), message));
        };
        tokens.push(Token { kind, span: span(start..at), begins_line });
        begins_line = false;
    }
    tokens.push(Token { kind: Kind::End, span: span(text.len()..text.len()), begins_line: true });
    Ok(tokens)
}

/// Bytes of the letters from the start on that belong together.
fn length(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|letter| !belongs(letter)).unwrap_or(text.len())
}

fn number(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let digits = digits.replace('_', "");
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) => i128::from_str_radix(hexadecimal, 16),
        None => digits.parse(),
    };
    // (Larger ones mean nothing anywhere.)
    value.ok().filter(|value| (0..1 << 64).contains(value)).map(|value| sign * value)
}
