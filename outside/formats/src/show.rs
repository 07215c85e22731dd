//! Values as people read them.

use std::borrow::Cow;
use std::fmt::Write as _;

use ring3_event::{Field, Kind, Names, Show, State, Value};
use ring3_uapi::errno::Errno;

/// `openat`'s first argument if it means the working directory.
const AT_FDCWD: i128 = -100;
/// The last error's number (kernel: `MAX_ERRNO`).
const ERRNO_MAX: i128 = 4095;

/// The name of a number, if it has one: of an enumeration's value, of a set of flags, of `AT_FDCWD`.
pub(crate) fn name_of(kind: &Kind, number: i128) -> Option<Cow<'_, str>> {
    let Kind::Int { bytes, show, .. } = kind else { return None };
    let cut = |value: u64| value & (u64::MAX >> (64 - 8 * (*bytes).clamp(1, 8)));
    let value = cut(number as u64);
    match show {
        Show::Enumeration(names) => {
            let (_, name) = names.0.iter().find(|(known, _)| cut(*known) == value)?;
            Some(name.into())
        }
        Show::Flags(names) => Some(flags(names, value)),
        Show::Descriptor if number == AT_FDCWD => Some("AT_FDCWD".into()),
        _ => None,
    }
}

/// Names of bits, with `|` between; bits without a name as a number. (Names of several bits come before those of fewer.)
fn flags(names: &Names, value: u64) -> Cow<'_, str> {
    if let Some((_, name)) = names.0.iter().find(|(known, _)| *known == value) {
        return name.into();
    }
    let mut text = String::new();
    let mut rest = value;
    for (bits, name) in &names.0 {
        if *bits != 0 && rest & bits == *bits {
            text += if text.is_empty() { "" } else { "|" };
            text += name;
            rest &= !bits;
        }
    }
    if rest != 0 || text.is_empty() {
        text += if text.is_empty() { "" } else { "|" };
        _ = write!(text, "{rest:#x}");
    }
    text.into()
}

/// A field's value as a word of a line.
pub(crate) fn word(text: &mut String, field: &Field, value: Value<'_>) {
    _ = match value {
        Value::Int(number) => match (name_of(&field.kind, number), &field.kind) {
            (Some(name), _) => write!(text, "{name}"),
            (None, Kind::Int { show: Show::Hex | Show::Pointer, .. }) => write!(text, "{:#x}", number as u64),
            (None, Kind::Int { show: Show::Octal, .. }) => write!(text, "0{:o}", number as u64),
            (None, Kind::Int { show: Show::Result, .. }) if (-ERRNO_MAX..0).contains(&number) => {
                write!(text, "{number} {}", Errno(-number as i32).name())
            }
            (None, _) => write!(text, "{number}"),
        },
        Value::Float(number) => write!(text, "{number}"),
        Value::Text(State::Null, _) | Value::Bytes(State::Null, _) => write!(text, "NULL"),
        Value::Text(State::Unreadable, _) | Value::Bytes(State::Unreadable, _) => write!(text, "<unreadable>"),
        Value::Text(state, bytes) | Value::Bytes(state, bytes) => {
            let escaped = escape(bytes, matches!(value, Value::Bytes(..))).replace('"', "\\\"");
            write!(text, "\"{escaped}\"{}", if state == State::Truncated { "..." } else { "" })
        }
    };
}

/// Text with what is not UTF-8, and control characters, as `\xNN`. In bytes (`ascii`), that is everything else than ASCII, and
/// `\` becomes `\\`.
pub(crate) fn escape(bytes: &[u8], ascii: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' if ascii => text += "\\\\",
                letter if letter.is_control() || ascii && !letter.is_ascii() => {
                    for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                        _ = write!(text, "\\x{byte:02x}");
                    }
                }
                letter => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The duration of an event, in nanoseconds: its field `dur` or `duration`, if that is a time.
pub(crate) fn duration_field(fields: &[Field]) -> Option<usize> {
    let is_duration = |field: &Field| {
        matches!(field.name.as_str(), "dur" | "duration")
            && matches!(field.kind, Kind::Int { show: Show::Nanoseconds, .. })
    };
    fields.iter().position(is_duration)
}

/// The addresses of a stack, the innermost first: what a field `stack` has, 8 bytes each.
pub(crate) fn stack(fields: &[Field], values: &[Value<'_>]) -> Option<Vec<u64>> {
    let at = fields.iter().position(|field| field.name == "stack" && matches!(field.kind, Kind::Bytes { .. }))?;
    match values[at] {
        Value::Bytes(State::Whole | State::Truncated, bytes) => {
            Some(bytes.as_chunks::<8>().0.iter().map(|address| u64::from_le_bytes(*address)).collect())
        }
        _ => None,
    }
}
