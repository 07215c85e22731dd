//! Values as people read them.

use std::fmt::Write as _;

use ring3_event::{ADDRESS_MIN, Field, Kind, Show, State, Value, is_unseen};
use ring3_uapi::errno::Errno;

/// The last error's number (kernel: `MAX_ERRNO`).
const ERRNO_MAX: i128 = 4095;

/// A structure's members, as text.
pub(crate) fn structure(kind: &Kind, value: Value<'_>) -> Option<String> {
    let (Kind::Bytes { form, .. }, Value::Bytes(state @ (State::Whole | State::Truncated), bytes)) = (kind, value)
    else {
        return None;
    };
    let mut text = String::new();
    let quote = |text: &mut String, part: &[u8], is_cut| {
        let escaped = escape(part, true).replace('"', "\\\"");
        _ = write!(text, "\"{escaped}\"{}", if is_cut { "..." } else { "" });
    };
    form.decode(bytes)?.show(&mut text, state == State::Truncated, &mut { quote });
    Some(text)
}

/// A field's value as a word of a line.
pub(crate) fn word(text: &mut String, field: &Field, value: Value<'_>) {
    if let Some(shown) = structure(&field.kind, value) {
        text.push_str(&shown);
        return;
    }
    _ = match value {
        Value::Int(number) => match (field.kind.name_of(number), &field.kind) {
            (Some(name), _) => write!(text, "{name}"),
            (None, Kind::Int { show: Show::Hex | Show::Pointer, .. }) => write!(text, "{:#x}", number as u64),
            (None, Kind::Int { show: Show::Word, .. }) if number >= ADDRESS_MIN => write!(text, "{number:#x}"),
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

/// Text with what is not UTF-8, and letters that are not seen, as `\xNN`. In bytes (`ascii`), that is everything else than ASCII, and
/// `\` becomes `\\`.
pub(crate) fn escape(bytes: &[u8], ascii: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' if ascii => text += "\\\\",
                letter if is_unseen(letter) || ascii && !letter.is_ascii() => {
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

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn letters_that_change_how_a_line_is_shown_are_escaped() {
        assert_eq!(escape("a\u{202e}gnp.\u{1b}[2Jé".as_bytes(), false), "a\\xe2\\x80\\xaegnp.\\x1b[2Jé");
    }
}
