//! Arguments and results of system calls, as strace writes them: what other arguments say of them (`ring3_recorder::variants`), and
//! what calls have that no table says.

use std::fmt::Write as _;

use ring3_event::{Decoded, Field, Form, Kind, Record, Show, State, Value};
use ring3_recorder::syscalls::{DURATION, RESULT};
use ring3_recorder::variants::{self, How};

use crate::text::{self, show};

/// What begins behind the arguments of calls that wait for events, if there was none.
const NO_EVENT: &str = "Timeout";

fn number(record: &Record<'_>, name: &str) -> Option<u64> {
    match record.value(name)? {
        Value::Int(number) => {
            let Kind::Int { bytes, .. } = record.of.fields[record.of.field(name)?].kind else { return None };
            Some(number as u64 & u64::MAX >> (64 - 8 * bytes.clamp(1, 8)))
        }
        _ => None,
    }
}

fn result_of(record: &Record<'_>) -> Option<i64> {
    match record.value(RESULT)? {
        Value::Int(result) => Some(result as i64),
        _ => None,
    }
}

/// The arguments.
pub(crate) fn arguments(line: &mut String, record: &Record<'_>) {
    let fields = || record.of.fields.iter().zip(&record.values);
    let is_argument = |(field, _): &(&Field, &Value<'_>)| ![RESULT, DURATION].contains(&&*field.name);
    let mut separator = "";
    let mut put = |line: &mut String, (field, value): (&Field, &Value<'_>), name: &str| {
        let how = variants::of(&record.of.name, &field.name, |name| number(record, name));
        if how == Some(How::Hidden) {
            return;
        }
        line.push_str(separator);
        separator = ", ";
        line.push_str(name);
        line.push_str(if name.is_empty() { "" } else { "=" });
        argument(line, record, field, *value, how);
    };
    match variants::order(&record.of.name) {
        Some(order) => {
            for (name, shown) in order {
                fields().filter(|(field, _)| field.name == *name).for_each(|of| put(line, of, shown));
            }
        }
        None => fields().filter(is_argument).for_each(|of| put(line, of, "")),
    }
}

fn argument(line: &mut String, record: &Record<'_>, field: &Field, value: Value<'_>, how: Option<How>) {
    let kind = match (&field.kind, how) {
        (Kind::Int { bytes, signed, .. }, Some(How::As(show))) => &Kind::Int { bytes: *bytes, signed: *signed, show },
        (kind, _) => kind,
    };
    match (&*record.of.name, &*field.name, value) {
        // (The zero byte at the end of the path is part of what it returns.)
        ("getcwd", _, Value::Bytes(state, [path @ .., 0])) => text::value(line, kind, Value::Bytes(state, path)),
        ("ioctl", "cmd", Value::Int(number)) if kind.name_of(number).is_none() => request(line, number as u32),
        ("poll", _, Value::Bytes(state, bytes)) if polled(state, bytes).is_some() => {
            let list = polled(state, bytes).unwrap_or_default();
            let asked = list.into_iter().map(|of| without(of, "revents")).collect();
            show(line, &Decoded::List(asked), state == State::Truncated);
        }
        ("clone3", "uargs", _) => {
            text::value(line, kind, value);
            thread(line, record, value);
        }
        _ => text::value(line, kind, value),
    }
}

/// What `clone3` has written: the id of the thread.
fn thread(line: &mut String, record: &Record<'_>, value: Value<'_>) {
    const PARENT_SETTID: u64 = 0x10_0000;
    let Value::Bytes(State::Whole, bytes) = value else { return };
    let flags = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    if let Some(id @ 1..) = result_of(record).filter(|_| flags & PARENT_SETTID != 0) {
        let _ = write!(line, " => {{parent_tid=[{id}]}}");
    }
}

/// A command of `ioctl` without a name: include/uapi/asm-generic/ioctl.h says what its bits are.
fn request(line: &mut String, number: u32) {
    const WAYS: [&str; 4] = ["_IOC_NONE", "_IOC_WRITE", "_IOC_READ", "_IOC_READ|_IOC_WRITE"];
    let way = WAYS[(number >> 30) as usize];
    let part = |part: u32| if part == 0 { "0".to_owned() } else { format!("{part:#x}") };
    let (kind, command, bytes) = (part(number >> 8 & 0xff), part(number & 0xff), part(number >> 16 & 0x3fff));
    let _ = write!(line, "_IOC({way}, {kind}, {command}, {bytes})");
}

/// The elements of an array of `struct pollfd`.
fn polled(state: State, bytes: &[u8]) -> Option<Vec<Decoded>> {
    match Form::PollFds.decode(bytes).filter(|_| matches!(state, State::Whole | State::Truncated))? {
        Decoded::List(list) => Some(list),
        _ => None,
    }
}

fn without(of: Decoded, left_out: &str) -> Decoded {
    match of {
        Decoded::Members(members, has_more) => {
            Decoded::Members(members.into_iter().filter(|(name, _)| *name != left_out).collect(), has_more)
        }
        other => other,
    }
}

/// The result.
pub(crate) fn result(line: &mut String, record: &Record<'_>) {
    let Some(result) = result_of(record) else { return line.push('?') };
    let is_address = matches!(&*record.of.name, "brk" | "mmap" | "mremap" | "shmat");
    match (&*record.of.name, variants::result(&record.of.name, |name| number(record, name))) {
        ("umask", _) => {
            let _ = write!(line, "0{result:02o}");
        }
        (_, Some((what, names))) if result >= 0 => {
            text::int(line, &Kind::Int { bytes: 8, signed: false, show: Show::Hex }, result.into());
            let kind = Kind::Int { bytes: 4, signed: false, show: names };
            let name = kind.name_of(result.into()).filter(|name| *name != "0");
            if let Some(name) = name {
                let _ = write!(line, " ({what} {name})");
            }
        }
        ("poll" | "ppoll" | "pselect6" | "select", _) if result == 0 => {
            let _ = write!(line, "0 ({NO_EVENT})");
        }
        ("poll", _) if result > 0 => {
            let _ = write!(line, "{result}");
            let Some(Value::Bytes(state, bytes)) = record.value("ufds") else { return };
            let has_events = |of: &Decoded| matches!(of, Decoded::Members(members, _) if members.iter().any(|(name, _)| *name == "revents"));
            let list: Vec<Decoded> = polled(state, bytes).unwrap_or_default();
            let list: Vec<Decoded> = list.into_iter().filter(has_events).map(|of| without(of, "events")).collect();
            if !list.is_empty() {
                line.push_str(" (");
                show(line, &Decoded::List(list), state == State::Truncated);
                line.push(')');
            }
        }
        _ => text::result(line, result, is_address),
    }
}
