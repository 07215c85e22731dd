//! JSON, an object a line.

use std::io::{self, Write};

use ring3_event::{Decoded, EventType, Header, Kind, Record, State, Value};
use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use crate::types::Types;
use crate::{Sink, Symbols, show};

/// Writes an object for each event: `time` (nanoseconds of `CLOCK_MONOTONIC`), `event`, `pid`, `tid`, `comm`, `cpu`, and `fields`.
///
/// Enumerations and flags have their names; a value without name is a number. Text is a string, in which what is not UTF-8 is
/// `\xNN`; so is everything but ASCII in bytes. What is not whole has a second member, `NAME_state`; a null pointer, and what
/// could not be read, is `null`. A stack is an array of addresses, or of names where they are known. Lost events are objects
/// with the member `lost`.
pub struct JsonLines<W: Write> {
    to: W,
    types: Types,
    symbols: Box<dyn Symbols>,
}

impl<W: Write> JsonLines<W> {
    /// To a writer, which should have a buffer.
    pub fn new(to: W, symbols: Box<dyn Symbols>) -> JsonLines<W> {
        JsonLines { to, types: Types::default(), symbols }
    }
}

impl<W: Write> Sink for JsonLines<W> {
    fn event_type(&mut self, of: &EventType) -> io::Result<()> {
        self.types.add(of);
        Ok(())
    }

    fn record(&mut self, _: u32, bytes: &[u8]) -> io::Result<()> {
        let object = object(&self.types.parse(bytes)?, &mut *self.symbols);
        serde_json::to_writer(&mut self.to, &object)?;
        self.to.write_all(b"\n")
    }

    fn lost(&mut self, stream: u32, count: u64) -> io::Result<()> {
        writeln!(self.to, "{}", json!({ "lost": count, "stream": stream }))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// An event's object, with its members in this order.
#[derive(Serialize)]
struct Line {
    time: u64,
    event: String,
    pid: u32,
    tid: u32,
    comm: String,
    cpu: u32,
    fields: Fields,
}

/// An object with its members in the order of the event's fields.
struct Fields(Vec<(String, Json)>);

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

fn object(record: &Record<'_>, symbols: &mut dyn Symbols) -> Line {
    let header = &record.header;
    let stack = show::stack(&record.of.fields, &record.values);
    let mut fields = vec![];
    for (field, value) in record.of.fields.iter().zip(&record.values) {
        let (name, is_bytes) = (field.name.clone(), matches!(value, Value::Bytes(..)));
        let json = match value {
            Value::Int(number) => match field.kind.name_of(*number) {
                Some(text) => text.into(),
                None => number_of(*number),
            },
            Value::Float(number) => Json::from(*number),
            Value::Text(state, bytes) | Value::Bytes(state, bytes) => {
                match (state, &stack, decoded(&field.kind, bytes)) {
                    (State::Null | State::Unreadable, ..) => Json::Null,
                    (.., Some(decoded)) => json_of(&decoded),
                    (_, Some(stack), _) if name == "stack" => frames(stack, header.pid, symbols),
                    _ => show::escape(bytes, is_bytes).into(),
                }
            }
        };
        let state = match value {
            Value::Text(state, _) | Value::Bytes(state, _) if *state != State::Whole => Some(state.name()),
            _ => None,
        };
        let state = state.map(|state| (format!("{name}_state"), state.into()));
        fields.push((name, json));
        fields.extend(state);
    }
    let (event, comm) = (record.of.full_name(), show::escape(header.comm().as_bytes(), false));
    let Header { time_ns: time, pid, tid, cpu, .. } = *header;
    Line { time, event, pid, tid, comm, cpu, fields: Fields(fields) }
}

fn decoded(kind: &Kind, bytes: &[u8]) -> Option<Decoded> {
    if let Kind::Bytes { form, .. } = kind { form.decode(bytes) } else { None }
}

/// A structure is an object, an array an array. Of a text that goes on, the end is `...`; `~` before signals means all others.
fn json_of(value: &Decoded) -> Json {
    match value {
        Decoded::Number(number) => number_of(*number),
        Decoded::Hex(number) | Decoded::Kibi(number) => Json::from(*number),
        Decoded::Word(word) | Decoded::Address6(word) => word.as_str().into(),
        Decoded::Text(text, is_cut) => {
            let escaped = show::escape(text, true);
            if *is_cut { format!("{escaped}...").into() } else { escaped.into() }
        }
        Decoded::List(of) => of.iter().map(json_of).collect(),
        Decoded::Signals(others, of) => {
            let first = others.then(|| Json::from("~"));
            first.into_iter().chain(of.iter().map(json_of)).collect()
        }
        Decoded::Members(of, _) => of.iter().map(|(name, value)| ((*name).to_owned(), json_of(value))).collect(),
    }
}

/// (A number of at most 64 bits.)
fn number_of(number: i128) -> Json {
    if number < 0 { Json::from(number as i64) } else { Json::from(number as u64) }
}

fn frames(stack: &[u64], pid: u32, symbols: &mut dyn Symbols) -> Json {
    let frame = |address: &u64| symbols.name(pid, *address).map_or_else(|| Json::from(*address), Json::from);
    stack.iter().map(frame).collect()
}
