//! A sequence of operations on maps, as text: an operation per line, a word per argument.
//!
//! ```text
//! # What follows is a comment.
//! HASH key=4 value=8 entries=10 flags=0x1
//! update key=7 value=1 flags=1
//! batch-lookup count=5 values=short
//! walk
//! ```
//!
//! A line that begins with a type makes a map, the first is number 0. The others work on map 0, or on the one that
//! `map=` names. What is left out is 0, and for `from` null. Data is a number, of which bytes are made (key 7 is the
//! number in as many bytes as a key has; value 7 is a pattern), or where the pointer leads that is passed: `null`,
//! `bad`, `short` (the second half is not mapped), `readonly`. `fd0` is the descriptor of map 0, as a value.

use std::fmt;

use super::kinds;

/// An argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Number(u64),
    /// A map's descriptor.
    Fd(u64),
    /// Where the last batch ended.
    Last,
    Null,
    Bad,
    Short,
    ReadOnly,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What is done; for a map that is made, its type.
    pub(crate) verb: String,
    /// Names and arguments.
    pub(crate) words: Vec<(String, Data)>,
}

/// What can be done, and with which arguments.
pub(crate) const VERBS: &[(&str, &[&str])] = &[
    ("lookup", &["key", "value", "flags"]),
    ("update", &["key", "value", "flags"]),
    ("delete", &["key"]),
    ("next", &["key", "value"]),
    ("take", &["key", "value", "flags"]),
    ("batch-lookup", BATCH),
    ("batch-take", BATCH),
    ("batch-update", BATCH),
    ("batch-delete", BATCH),
    ("batch-walk", &["count"]),
    ("freeze", &[]),
    ("info", &[]),
    ("reopen", &["flags"]),
    ("walk", &[]),
    ("prog-lookup", &["key"]),
    ("prog-update", &["key", "value", "flags"]),
    ("prog-delete", &["key"]),
    ("prog-add", &["key", "value"]),
    ("prog-push", &["value", "flags"]),
    ("prog-pop", &[]),
    ("prog-peek", &["value"]),
];
const BATCH: &[&str] = &["count", "keys", "values", "from", "out", "flags", "elem"];
const ATTRIBUTES: &[&str] = &["key", "value", "entries", "flags", "numa", "extra", "inner"];

impl Step {
    pub(crate) fn new(verb: &str) -> Step {
        Step { verb: verb.to_owned(), words: vec![] }
    }

    /// With an argument; the default is left out.
    pub(crate) fn with(mut self, name: &str, data: Data) -> Step {
        if data != default_of(name) {
            self.words.push((name.to_owned(), data));
        }
        self
    }

    pub(crate) fn data(&self, name: &str) -> Data {
        self.words.iter().find(|(word, _)| word == name).map_or(default_of(name), |(_, data)| *data)
    }

    /// 0 for what is no number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        if let Data::Number(number) = self.data(name) { number } else { 0 }
    }

    /// The map that it works on.
    pub(crate) fn map(&self) -> usize {
        self.number("map") as usize
    }

    /// Runs in a program.
    pub(crate) fn is_in_program(&self) -> bool {
        self.verb.starts_with("prog-")
    }
}

fn default_of(name: &str) -> Data {
    if name == "from" { Data::Null } else { Data::Number(0) }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Number(number) if *number > 9999 => write!(f, "{number:#x}"),
            Data::Number(number) => write!(f, "{number}"),
            Data::Fd(map) => write!(f, "fd{map}"),
            Data::Last => write!(f, "last"),
            Data::Null => write!(f, "null"),
            Data::Bad => write!(f, "bad"),
            Data::Short => write!(f, "short"),
            Data::ReadOnly => write!(f, "readonly"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verb)?;
        self.words.iter().try_for_each(|(name, data)| write!(f, " {name}={data}"))
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => text.parse().ok(),
    }
}

fn data(text: &str) -> Option<Data> {
    Some(match text {
        "last" => Data::Last,
        "null" => Data::Null,
        "bad" => Data::Bad,
        "short" => Data::Short,
        "readonly" => Data::ReadOnly,
        _ => match text.strip_prefix("fd") {
            Some(map) => Data::Fd(number(map)?),
            None => Data::Number(number(text)?),
        },
    })
}

fn step(line: &str) -> Option<Step> {
    let mut words = line.split_whitespace();
    let verb = words.next()?;
    let known = match kinds::named(verb) {
        Some(_) => ATTRIBUTES,
        None => VERBS.iter().find(|(name, _)| *name == verb)?.1,
    };
    let mut step = Step::new(verb);
    for word in words {
        let (name, value) = word.split_once('=')?;
        if name != "map" && !known.contains(&name) {
            return None;
        }
        step = step.with(name, data(value)?);
    }
    Some(step)
}

/// Reads a sequence; the error is the line that is none.
pub(crate) fn parse(text: &str) -> Result<Vec<Step>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| step(line).ok_or_else(|| line.to_owned())).collect()
}

/// As it is read.
pub(crate) fn text(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}
