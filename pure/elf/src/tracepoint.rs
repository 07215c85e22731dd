//! Static tracepoints with names and types of their arguments.
//!
//! SystemTap's notes say where arguments lie, but neither their names nor their types. The macros of `include/ring3/trace.h` and of
//! the crate `ring3-tracepoint` leave two more notes for each place, in the section `.note.ring3.trace`, owner `ring3`:
//!
//! | type | description |
//! |---|---|
//! | 2, kinds | address of the place, address of `.stapsdt.base`, 16 bytes: the kind of each argument (`KIND_*`), 0 behind the last |
//! | 3, names | address of the place, address of `.stapsdt.base`, text: provider, name and arguments as the source has them, and a 0 |
//!
//! Both addresses are of 8 bytes. The text is separated by commas. An argument may be `RING3_FIELD(NAME, EXPRESSION)`,
//! `RING3_TYPED(NAME, TYPE, EXPRESSION)`, or `RING3_LENGTH(EXPRESSION)`: the length of the text before it.

use std::collections::HashMap;

use crate::place::{ArgumentPlace, At};
use crate::usdt::{UsdtNote, notes};

/// The section of ring3's own notes.
pub(crate) const SECTION: &str = ".note.ring3.trace";
const OWNER: &[u8] = b"ring3\0";
const KINDS: u32 = 2;
const NAMES: u32 = 3;
/// Bytes of kinds in a note.
const KIND_BYTES: usize = 16;

const KIND_SIGNED: u8 = 1;
const KIND_UNSIGNED: u8 = 2;
const KIND_BOOL: u8 = 3;
const KIND_POINTER: u8 = 4;
const KIND_TEXT: u8 = 5;
const KIND_FLOAT: u8 = 6;
/// The bytes of the text before it.
const KIND_LENGTH: u8 = 7;

/// What an argument is; its size is that of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A signed integer, or an enumeration of such.
    Signed,
    /// An unsigned integer, or an enumeration of such. Also what only SystemTap's note describes and calls unsigned.
    Unsigned,
    /// 0 or 1.
    Bool,
    /// The address of something.
    Pointer,
    /// The address of text. It ends before a 0, or after as many bytes as [`Argument::length`] says.
    Text,
    /// The bits of an IEEE 754 number of 4 or 8 bytes.
    Float,
}

impl Kind {
    /// The type in C of a value of this kind; as a rule `unsigned long` for sizes that the kind cannot have.
    #[must_use]
    pub fn c_type(self, bytes: u8) -> &'static str {
        match (self, bytes) {
            (Kind::Signed, 1) => "signed char",
            (Kind::Signed, 2) => "short",
            (Kind::Signed, 4) => "int",
            (Kind::Signed, _) => "long",
            (Kind::Unsigned, 1) => "unsigned char",
            (Kind::Unsigned, 2) => "unsigned short",
            (Kind::Unsigned, 4) => "unsigned int",
            (Kind::Unsigned, _) => "unsigned long",
            (Kind::Bool, _) => "_Bool",
            (Kind::Pointer, _) => "void *",
            (Kind::Text, _) => "char *",
            (Kind::Float, 4) => "float",
            (Kind::Float, 8) => "double",
            (Kind::Float, _) => "unsigned long",
        }
    }
}

/// One argument of a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name, or its source text if it was not given one; `None`: only SystemTap's note describes it.
    pub name: Option<String>,
    /// The name of its type in C, if the program tells it (`RING3_TYPED`): look it up in BTF or DWARF.
    pub type_name: Option<String>,
    /// What it is.
    pub kind: Kind,
    /// Where it is.
    pub place: ArgumentPlace,
    /// Where the number of bytes of a [`Kind::Text`] is; `None`: the text ends before a 0.
    pub length: Option<ArgumentPlace>,
}

/// A place in the code that reports an event. Several may have the same provider and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Provider.
    pub provider: String,
    /// Name.
    pub name: String,
    /// Address of the probed instruction in the file's address space.
    pub address: u64,
    /// Address of the semaphore, 2 bytes; 0: none.
    pub semaphore: u64,
    /// Arguments, in order.
    pub arguments: Vec<Argument>,
}

/// ring3's notes, by the place's address.
#[derive(Debug, Default)]
pub(crate) struct OwnNotes<'a> {
    kinds: HashMap<u64, &'a [u8]>,
    names: HashMap<u64, &'a [u8]>,
}

impl<'a> OwnNotes<'a> {
    /// Damage ends the list.
    pub(crate) fn parse(bytes: &'a [u8], base: Option<u64>) -> OwnNotes<'a> {
        let mut own = OwnNotes::default();
        for note in notes(bytes).filter(|note| note.owner == OWNER) {
            let Some((location, rest)) = note.description.split_first_chunk::<8>() else { continue };
            let Some((noted_base, rest)) = rest.split_first_chunk::<8>() else { continue };
            let shift = base.map_or(0, |base| base.wrapping_sub(u64::from_le_bytes(*noted_base)));
            let location = u64::from_le_bytes(*location).wrapping_add(shift);
            _ = match note.kind {
                KINDS => own.kinds.insert(location, &rest[..rest.len().min(KIND_BYTES)]),
                NAMES => own.names.insert(location, rest.split(|byte| *byte == 0).next().unwrap_or_default()),
                _ => continue,
            };
        }
        own
    }

    /// The tracepoint of SystemTap's note, described by ours if there are some.
    pub(crate) fn describe(&self, note: UsdtNote, places: Vec<ArgumentPlace>) -> Tracepoint {
        let kinds = self.kinds.get(&note.address).copied().unwrap_or_default();
        let text = self.names.get(&note.address).map(|text| String::from_utf8_lossy(text)).unwrap_or_default();
        // Provider and name come first.
        let sources: Vec<Source> = parts(&text).into_iter().skip(2).map(Source::of).collect();
        // What does not fit does not describe this place.
        let sources = if sources.len() == places.len() { sources } else { vec![] };
        let mut arguments: Vec<Argument> = vec![];
        for (index, place) in places.into_iter().enumerate() {
            let code = kinds.get(index).copied().unwrap_or(0);
            let source = sources.get(index);
            let is_length = code == KIND_LENGTH || source.is_some_and(|source| source.is_length);
            if let Some(text) = arguments.last_mut().filter(|before| is_length && before.can_have_length()) {
                (text.kind, text.length) = (Kind::Text, Some(place));
                continue;
            }
            let kind = kind_of(code, &place);
            let (name, type_name) =
                source.map_or((None, None), |source| (source.name.clone(), source.type_name.clone()));
            arguments.push(Argument { name, type_name, kind, place, length: None });
        }
        let UsdtNote { provider, name, address, semaphore, .. } = note;
        Tracepoint { provider, name, address, semaphore, arguments }
    }
}

impl Argument {
    fn can_have_length(&self) -> bool {
        let is_address = matches!(self.kind, Kind::Pointer | Kind::Text) && !matches!(self.place.at, At::Constant(_));
        is_address && self.length.is_none()
    }
}

/// By our note's code, or else by SystemTap's note.
fn kind_of(code: u8, place: &ArgumentPlace) -> Kind {
    match code {
        KIND_SIGNED => Kind::Signed,
        KIND_UNSIGNED => Kind::Unsigned,
        KIND_BOOL => Kind::Bool,
        KIND_POINTER => Kind::Pointer,
        KIND_TEXT => Kind::Text,
        KIND_FLOAT => Kind::Float,
        _ if place.float => Kind::Float,
        _ if place.signed => Kind::Signed,
        _ => Kind::Unsigned,
    }
}

/// What the source says of an argument.
struct Source {
    name: Option<String>,
    type_name: Option<String>,
    is_length: bool,
}

impl Source {
    fn of(text: &str) -> Source {
        let call = |name: &str| {
            let inner = text.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')')?;
            Some(parts(inner).into_iter().map(str::to_owned).collect::<Vec<String>>())
        };
        let named = |name: Option<String>, type_name| Source { name, type_name, is_length: false };
        if let Some(parts) = call("RING3_FIELD") {
            return named(parts.into_iter().next(), None);
        }
        if let Some(parts) = call("RING3_TYPED") {
            let mut parts = parts.into_iter();
            return named(parts.next(), parts.next());
        }
        if call("RING3_LENGTH").is_some() {
            return Source { name: None, type_name: None, is_length: true };
        }
        named(Some(text.to_owned()).filter(|text| !text.is_empty()), None)
    }
}

/// The parts between commas that are inside no bracket and no quotation marks, without spaces around.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quote, mut escaped) = (vec![], 0, 0usize, None, false);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_inside_brackets_and_quotation_marks_separate_nothing() {
        let text = r#"shop, order, f(a, b[1, 2]), "x, \" y", ',', RING3_FIELD(id, o->id), a ? b : c"#;
        let found = parts(text);
        assert_eq!(found[2..], ["f(a, b[1, 2])", r#""x, \" y""#, "','", "RING3_FIELD(id, o->id)", "a ? b : c"]);
        assert!(parts("  ").is_empty());
        assert_eq!(parts("a,"), ["a", ""]);
        // (Digits of C++14 may be separated by an apostrophe; what does not fit is dropped.)
        assert_eq!(parts("a, 1'000, b").len(), 2);
    }

    #[test]
    fn names_and_types_are_taken_from_the_source() {
        let of = |text| {
            let source = Source::of(text);
            (source.name, source.type_name, source.is_length)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("o->id"), (some("o->id"), None, false));
        assert_eq!(of("RING3_FIELD(id, f(o, 1))"), (some("id"), None, false));
        assert_eq!(of("RING3_TYPED(order, struct order *, o)"), (some("order"), some("struct order *"), false));
        assert_eq!(of("RING3_LENGTH(o->bytes)"), (None, None, true));
        assert_eq!(of("RING3_FIELD_COUNT"), (some("RING3_FIELD_COUNT"), None, false));
    }
}
