//! Events as lines of text, as strace writes them.

use std::fmt::Write as _;

use ring3_event::{ADDRESS_MIN, Decoded, Form, Kind, Record, Show, State, Value};
use ring3_recorder::ends;
use ring3_recorder::syscalls::{DURATION, PROVIDER};
use ring3_uapi::errno::Errno;

use crate::calls;
use crate::session::is_end;

/// How lines look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Text {
    /// Each line begins with the thread's id.
    pub thread: bool,
    /// And with its name.
    pub comm: bool,
    /// And with the time of the record's header, as this writes it.
    pub time: Option<fn(u64) -> String>,
    /// Each call ends with its duration in seconds.
    pub duration: bool,
}

/// The column of results, as strace has it.
const RESULT_COLUMN: usize = 39;

impl Text {
    /// The line of a record, without a line break.
    pub fn line(self, record: &Record<'_>) -> String {
        let mut line = String::new();
        let header = &record.header;
        if self.thread {
            let _ = write!(line, "[pid {:>5}] ", header.tid);
        }
        if self.comm {
            let _ = write!(line, "{} ", header.comm());
        }
        if let Some(time) = self.time {
            let _ = write!(line, "{} ", time(header.time_ns));
        }
        if is_end(record.of) {
            line.push_str(&end(record));
            return line;
        }
        let is_call = record.of.provider == PROVIDER;
        let begin = line.len();
        line.push_str(if is_call { &record.of.name } else { "" });
        if !is_call {
            line.push_str(&record.of.full_name());
        }
        line.push('(');
        if is_call {
            calls::arguments(&mut line, record);
        } else {
            for (index, (field, value)) in record.of.fields.iter().zip(&record.values).enumerate() {
                line.push_str(if index > 0 { ", " } else { "" });
                let _ = write!(line, "{}=", field.name);
                self::value(&mut line, &field.kind, *value);
            }
        }
        line.push(')');
        if is_call {
            let _ = write!(line, "{:width$} = ", "", width = RESULT_COLUMN.saturating_sub(line.len() - begin));
            calls::result(&mut line, record);
        }
        if let (true, Some(Value::Int(ns))) = (self.duration, record.value(DURATION)) {
            let _ = write!(line, " <{}.{:09}>", ns / 1_000_000_000, ns % 1_000_000_000);
        }
        line
    }
}

/// The end of a thread.
fn end(record: &Record<'_>) -> String {
    let number = |name| match record.value(name) {
        Some(Value::Int(number)) => number,
        _ => 0,
    };
    match number(ends::SIGNAL) {
        0 => format!("+++ exited with {} +++", number(ends::CODE)),
        signal => {
            let mut name = String::new();
            let field = record.of.field(ends::SIGNAL).map(|field| &record.of.fields[field]);
            field.into_iter().for_each(|field| int(&mut name, &field.kind, signal));
            let core = if number(ends::CORE) != 0 { " (core dumped)" } else { "" };
            format!("+++ killed by {name}{core} +++")
        }
    }
}

/// A system call's result.
pub(crate) fn result(line: &mut String, result: i64, is_address: bool) {
    const ERRNO_MAX: i64 = 4095;
    if !(-ERRNO_MAX..0).contains(&result) {
        let _ = if is_address { write!(line, "{result:#x}") } else { write!(line, "{result}") };
        return;
    }
    let number = -result as i32;
    let error = std::io::Error::from_raw_os_error(number).to_string();
    let meaning = error.split(" (os error").next().unwrap_or_default();
    if let Some((name, meaning)) = restarted(number) {
        let _ = write!(line, "? {name} ({meaning})");
        return;
    }
    match Errno(number).name() {
        "E?" => {
            let _ = write!(line, "-1 (error {number})");
        }
        name => {
            // (So strace calls it; it is the kernel's name.)
            let name = if name == "ENOTSUP" { "EOPNOTSUPP" } else { name };
            let _ = write!(line, "-1 {name} ({meaning})");
        }
    }
}

/// What a call returns to the kernel that a signal has interrupted (include/linux/errno.h), as strace explains it.
fn restarted(number: i32) -> Option<(&'static str, &'static str)> {
    Some(match number {
        512 => ("ERESTARTSYS", "To be restarted if SA_RESTART is set"),
        513 => ("ERESTARTNOINTR", "To be restarted"),
        514 => ("ERESTARTNOHAND", "To be restarted if no handler"),
        516 => ("ERESTART_RESTARTBLOCK", "Interrupted by signal"),
        _ => return None,
    })
}

/// A field's value.
pub(crate) fn value(line: &mut String, kind: &Kind, value: Value<'_>) {
    match (kind, value) {
        (Kind::Int { .. }, Value::Int(number)) => int(line, kind, number),
        (_, Value::Bytes(State::Unreadable, address)) if address.len() == size_of::<u64>() => {
            let address = address.try_into().map_or(0, u64::from_le_bytes);
            let _ = write!(line, "{address:#x}");
        }
        (Kind::Bytes { form, .. }, Value::Bytes(state @ (State::Whole | State::Truncated), bytes)) => {
            match form.decode(bytes) {
                Some(decoded) => show(line, &decoded, state == State::Truncated),
                None if *form == Form::Random => in_hex(line, state, bytes),
                None => quoted(line, state, bytes),
            }
        }
        (_, Value::Float(number)) => {
            let _ = write!(line, "{number}");
        }
        (_, Value::Text(state, text) | Value::Bytes(state, text)) => quoted(line, state, text),
        (_, Value::Int(number)) => {
            let _ = write!(line, "{number}");
        }
    }
}

pub(crate) fn int(line: &mut String, kind: &Kind, number: i128) {
    let Kind::Int { bytes, show, .. } = kind else { return };
    let unsigned = (number as u64) & (u64::MAX >> (64 - 8 * (*bytes).clamp(1, 8)));
    let _ = match (kind.name_of(number), show) {
        (Some(name), _) => write!(line, "{name}"),
        (None, Show::Octal) => write!(line, "0{unsigned:02o}"),
        (None, Show::Pointer) if unsigned == 0 => write!(line, "NULL"),
        (None, Show::Hex) if unsigned == 0 => write!(line, "0"),
        (None, Show::Hex | Show::Pointer) => write!(line, "{unsigned:#x}"),
        (None, Show::Word) if number >= ADDRESS_MIN => write!(line, "{unsigned:#x}"),
        (None, Show::Result) => {
            result(line, number as i64, false);
            Ok(())
        }
        (None, _) => write!(line, "{number}"),
    };
}

/// A decoded structure; `goes_on`: the list has more.
pub(crate) fn show(line: &mut String, decoded: &Decoded, goes_on: bool) {
    let quote = |line: &mut String, text: &[u8], is_cut| {
        quoted(line, if is_cut { State::Truncated } else { State::Whole }, text);
    };
    decoded.show(line, goes_on, &mut { quote });
}

/// Bytes in quotation marks, each in base 16.
fn in_hex(line: &mut String, state: State, bytes: &[u8]) {
    line.push('"');
    for byte in bytes {
        let _ = write!(line, "\\x{byte:02x}");
    }
    line.push_str(if state == State::Truncated { "\"..." } else { "\"" });
}

/// Text or bytes in quotation marks, with C's escapes.
fn quoted(line: &mut String, state: State, text: &[u8]) {
    match state {
        State::Null => return line.push_str("NULL"),
        State::Unreadable => return line.push_str("<unreadable>"),
        State::Whole | State::Truncated => {}
    }
    line.push('"');
    for (at, byte) in text.iter().enumerate() {
        let _ = match byte {
            b'"' => write!(line, "\\\""),
            b'\\' => write!(line, "\\\\"),
            b'\n' => write!(line, "\\n"),
            b'\t' => write!(line, "\\t"),
            b'\r' => write!(line, "\\r"),
            0x0b => write!(line, "\\v"),
            0x0c => write!(line, "\\f"),
            b' '..=b'~' => {
                line.push(char::from(*byte));
                Ok(())
            }
            // (An octal digit behind an escape would be read as part of it.)
            _ if text.get(at + 1).is_some_and(|next| (b'0'..=b'7').contains(next)) => write!(line, "\\{byte:03o}"),
            _ => write!(line, "\\{byte:o}"),
        };
    }
    line.push('"');
    if state == State::Truncated {
        line.push_str("...");
    }
}
