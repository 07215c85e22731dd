//! Text to tokens.

use crate::parse::SyntaxError;

/// Where something stands in the text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn to(self, other: Span) -> Span {
        Span { begin: self.begin, end: other.end }
    }
}

/// A byte of a string; `quoted` if a backslash stood before it: a glob takes it literally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) byte: u8,
    pub(crate) quoted: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Number(i128),
    Float(f64),
    Text(Vec<Letter>),
    Name(String),
    Symbol(&'static str),
    End,
}

/// Longer ones first.
const SYMBOLS: [&str; 27] = [
    "&&", "||", "<<", ">>", "<=", ">=", "==", "!=", "=~", "!~", "(", ")", ",", "!", "~", "-", "+", "*", "/", "%",
    "<", ">", "&", "^", "|", "=", ".",
];

/// Units of time (to nanoseconds) and sizes (to bytes).
const UNITS: [(&str, u64); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("k", 1 << 10),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

#[derive(Clone)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error(&self, begin: usize, message: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.text, Span { begin, end: self.at.max(begin) }, message.into())
    }

    /// The next token and where it stands.
    pub(crate) fn next(&mut self) -> Result<(Token, Span), SyntaxError> {
        self.at = self.text.len() - self.rest().trim_start().len();
        let begin = self.at;
        let token = self.token(begin)?;
        Ok((token, Span { begin, end: self.at }))
    }

    fn token(&mut self, begin: usize) -> Result<Token, SyntaxError> {
        let Some(first) = self.rest().chars().next() else { return Ok(Token::End) };
        match first {
            '0'..='9' => return self.number(begin),
            '"' => return self.text_literal(begin).map(Token::Text),
            '\'' => return self.character(begin),
            'a'..='z' | 'A'..='Z' | '_' | '$' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | ':');
                let name = self.take_while(is_part);
                let trimmed = name.trim_end_matches(['.', ':']);
                self.at -= name.len() - trimmed.len();
                return Ok(Token::Name(trimmed.to_owned()));
            }
            _ => {}
        }
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| self.rest().starts_with(**symbol)) {
            self.at += symbol.len();
            return match *symbol {
                "=" => Err(self.error(begin, "`=` compares nothing; write `==`")),
                "." => Err(self.error(begin, "a `.` stands within a field's name only: `req.tv_sec`")),
                symbol => Ok(Token::Symbol(symbol)),
            };
        }
        self.at += first.len_utf8();
        let advice = match first {
            '\u{201c}' | '\u{201d}' | '`' => "; text goes into straight quotes: \"...\"",
            '[' => "; elements of arrays cannot be read",
            '?' | ':' => "; write `a && b || c && d` for a choice",
            _ => "",
        };
        Err(self.error(begin, format!("`{first}` has no meaning here{advice}")))
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let taken = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    fn number(&mut self, begin: usize) -> Result<Token, SyntaxError> {
        let word = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        let mut clean = word.replace('_', "");
        // `1e-3`
        if !word.starts_with("0x") && word.ends_with(['e', 'E']) && self.rest().starts_with(['-', '+']) {
            self.at += 1;
            let digits = self.take_while(|c| c.is_ascii_digit());
            clean = format!("{clean}{}{digits}", &self.text[self.at - digits.len() - 1..self.at - digits.len()]);
        }
        let based = [("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2), ("0o", 8)];
        let radix = based.iter().find_map(|(prefix, radix)| Some((clean.strip_prefix(prefix)?, *radix)));
        if let Some((digits, radix)) = radix {
            return self.digits(begin, digits, radix).map(Token::Number);
        }
        let end = clean.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(clean.len());
        let (digits, unit) = clean.split_at(end);
        if unit.is_empty() {
            return match digits.strip_prefix('0') {
                Some(octal) if !octal.is_empty() && !octal.contains('.') => {
                    self.digits(begin, octal, 8).map(Token::Number)
                }
                _ if digits.contains('.') => self.float(begin, &clean),
                _ => self.digits(begin, digits, 10).map(Token::Number),
            };
        }
        if unit.starts_with(['e', 'E']) {
            return self.float(begin, &clean);
        }
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let message = format!("`{unit}` is no unit; write ns, us, ms or s for times, k, M, G or T for sizes");
            return Err(self.error(begin, message));
        };
        self.scaled(begin, digits, *scale)
    }

    /// Digits, perhaps with a fraction, times a unit: a whole number.
    fn scaled(&self, begin: usize, digits: &str, scale: u64) -> Result<Token, SyntaxError> {
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let tenth = 10_i128.checked_pow(fraction.len() as u32).filter(|_| fraction.len() <= 12);
        let (Some(tenth), Ok(number)) = (tenth, format!("{whole}{fraction}").parse::<i128>()) else {
            return Err(self.error(begin, format!("`{digits}` is no number")));
        };
        let value = number.checked_mul(scale.into()).filter(|value| value / tenth <= u64::MAX.into());
        let value = value.ok_or_else(|| self.error(begin, "the number does not fit in 64 bits"))?;
        if value % tenth != 0 {
            return Err(self.error(begin, "the number is no whole count of nanoseconds or bytes"));
        }
        Ok(Token::Number(value / tenth))
    }

    fn float(&self, begin: usize, text: &str) -> Result<Token, SyntaxError> {
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        value.map(Token::Float).ok_or_else(|| self.error(begin, format!("`{text}` is no number")))
    }

    fn digits(&self, begin: usize, digits: &str, radix: u32) -> Result<i128, SyntaxError> {
        match u64::from_str_radix(digits, radix) {
            Ok(value) if !digits.starts_with('+') => Ok(value.into()),
            Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => {
                Err(self.error(begin, "the number does not fit in 64 bits"))
            }
            _ => Err(self.error(begin, format!("`{}` is no number of base {radix}", &self.text[begin..self.at]))),
        }
    }

    fn text_literal(&mut self, begin: usize) -> Result<Vec<Letter>, SyntaxError> {
        self.at += 1;
        let mut letters = vec![];
        loop {
            match self.letter(begin)? {
                (Letter { byte: b'"', quoted: false }, _) => return Ok(letters),
                (Letter { byte: 0, .. }, at) => {
                    return Err(self.error(at, "a text contains no zero byte"));
                }
                (letter, _) => letters.push(letter),
            }
        }
    }

    fn character(&mut self, begin: usize) -> Result<Token, SyntaxError> {
        self.at += 1;
        let (letter, _) = self.letter(begin)?;
        if letter == (Letter { byte: b'\'', quoted: false }) {
            return Err(self.error(begin, "a character is missing between the quotes"));
        }
        if !letter.byte.is_ascii() && !letter.quoted {
            self.at = self.text.ceil_char_boundary(self.at);
            return Err(self.error(begin, "single quotes hold one byte, and this character has several"));
        }
        if !self.rest().starts_with('\'') {
            return Err(self.error(begin, "single quotes hold one character; text goes into double quotes: \"...\""));
        }
        self.at += 1;
        Ok(Token::Number(letter.byte.into()))
    }

    /// The next byte of a quoted text, and where it stands.
    fn letter(&mut self, begin: usize) -> Result<(Letter, usize), SyntaxError> {
        let at = self.at;
        let byte = |index: usize| self.text.as_bytes().get(index).copied();
        let first = byte(at).ok_or_else(|| self.error(begin, "the closing quote is missing"))?;
        self.at += 1;
        if first != b'\\' {
            return Ok((Letter { byte: first, quoted: false }, at));
        }
        let escape = byte(at + 1).ok_or_else(|| self.error(begin, "the closing quote is missing"))?;
        self.at += 1;
        let plain = match escape {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'e' => 27,
            b'0'..=b'7' => return self.coded(at, at + 1, 3, 8),
            b'x' => return self.coded(at, at + 2, 2, 16),
            other if other.is_ascii() => other,
            _ => return Err(self.error(at, "a backslash stands before a character that needs none")),
        };
        Ok((Letter { byte: plain, quoted: true }, at))
    }

    /// A byte by its number.
    fn coded(&mut self, at: usize, begin: usize, count: usize, radix: u32) -> Result<(Letter, usize), SyntaxError> {
        let bytes = self.text.as_bytes().get(begin..).unwrap_or_default();
        let digits = bytes.iter().take(count).take_while(|byte| char::from(**byte).is_digit(radix)).count();
        self.at = begin + digits;
        let value = u32::from_str_radix(&self.text[begin..begin + digits], radix).ok();
        let byte = value.and_then(|value| u8::try_from(value).ok());
        let byte = byte.ok_or_else(|| self.error(at, "the escape is no byte: write `\\x41` or `\\101`"))?;
        Ok((Letter { byte, quoted: true }, at))
    }
}
