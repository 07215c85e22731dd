//! Reading records, and writing them (which programs do, else: tests).

use crate::{EventType, Field, HEADER_BYTES, Kind, State, header};

/// What every record begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The event's number.
    pub event: u32,
    /// The CPU.
    pub cpu: u32,
    /// The thread.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// The thread's name, with zero bytes at its end.
    pub comm: [u8; header::COMM_BYTES],
}

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number of at most 64 bits, sign-extended if it is signed.
    Int(i128),
    /// A floating point number.
    Float(f64),
    /// Text without the zero byte at its end; it need not be UTF-8.
    Text(State, &'a [u8]),
    /// Bytes.
    Bytes(State, &'a [u8]),
}

/// A record with its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Record<'a> {
    /// Its header.
    pub header: Header,
    /// Its type.
    pub of: &'a EventType,
    /// The values of its fields, in their order.
    pub values: Vec<Value<'a>>,
}

/// Takes little-endian numbers and strings off the front of bytes.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, count: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes.get_mut(..count)?.copy_from_slice(self.take(count)?);
        Some(u64::from_le_bytes(bytes))
    }

    fn word(&mut self) -> Option<u32> {
        self.number(4).map(|word| word as u32)
    }
}

impl Header {
    /// The header of a record; `None` if the bytes are too few.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let mut bytes = Bytes(bytes);
        let time_ns = bytes.number(8)?;
        let (event, cpu, tid, pid) = (bytes.word()?, bytes.word()?, bytes.word()?, bytes.word()?);
        let comm = bytes.take(header::COMM_BYTES)?.try_into().ok()?;
        Some(Header { time_ns, event, cpu, tid, pid, comm })
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.time_ns.to_le_bytes());
        for word in [self.event, self.cpu, self.tid, self.pid] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.comm);
    }

    /// The thread's name.
    pub fn comm(&self) -> String {
        let end = self.comm.iter().position(|byte| *byte == 0).unwrap_or(self.comm.len());
        String::from_utf8_lossy(&self.comm[..end]).into_owned()
    }
}

impl<'a> Record<'a> {
    /// The record of this type; `None` if the bytes are none.
    pub fn parse(of: &'a EventType, bytes: &'a [u8]) -> Option<Record<'a>> {
        let header = Header::parse(bytes)?;
        let mut fixed = Bytes(bytes.get(HEADER_BYTES..of.fixed_bytes() as usize)?);
        let mut variable = Bytes(bytes.get(of.fixed_bytes() as usize..)?);
        let values = of.fields.iter().map(|field| value(&field.kind, &mut fixed, &mut variable));
        Some(Record { header, of, values: values.collect::<Option<_>>()? })
    }

    /// The value of a field by its name.
    pub fn value(&self, name: &str) -> Option<Value<'a>> {
        self.of.field(name).map(|at| self.values[at])
    }
}

/// A record's bytes; `None` if the values are not of the type's fields, one each. A number is cut to the bytes of its field, a
/// text ends at its first zero byte.
pub fn encode(of: &EventType, header: &Header, values: &[Value<'_>]) -> Option<Vec<u8>> {
    let mut bytes = vec![];
    header.append_to(&mut bytes);
    let mut variable = vec![];
    if values.len() != of.fields.len() {
        return None;
    }
    for (field, value) in of.fields.iter().zip(values) {
        match (&field.kind, value) {
            (Kind::Int { bytes: size, .. }, Value::Int(number)) => {
                bytes.extend(number.to_le_bytes().get(..*size as usize)?);
            }
            (Kind::Float { bytes: 4 }, Value::Float(number)) => bytes.extend((*number as f32).to_le_bytes()),
            (Kind::Float { .. }, Value::Float(number)) => bytes.extend(number.to_le_bytes()),
            (Kind::Text { .. }, Value::Text(state, text)) => {
                bytes.push(*state as u8);
                variable.extend(text.iter().take_while(|byte| **byte != 0));
                variable.push(0);
            }
            (Kind::Bytes { .. }, Value::Bytes(state, content)) => {
                bytes.push(*state as u8);
                variable.extend(u16::try_from(content.len()).ok()?.to_le_bytes());
                variable.extend(*content);
            }
            _ => return None,
        }
    }
    bytes.extend(variable);
    Some(bytes)
}

/// How many bytes the records of a type have: computed once from the type, then asked for each record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    fixed: usize,
    /// Where the states of texts and byte strings are, in order; and whether it is a text.
    strings: Vec<(usize, bool)>,
}

impl Extent {
    /// Of the records of a type.
    pub fn new(of: &EventType) -> Extent {
        let string = |(field, offset): (&Field, u32)| match field.kind {
            Kind::Text { .. } => Some((offset as usize, true)),
            Kind::Bytes { .. } => Some((offset as usize, false)),
            Kind::Int { .. } | Kind::Float { .. } => None,
        };
        let strings = of.fields.iter().zip(of.offsets()).filter_map(string).collect();
        Extent { fixed: of.fixed_bytes() as usize, strings }
    }

    /// The bytes of the record with which these bytes begin; `None` if they do not begin with a whole record.
    pub fn measure(&self, bytes: &[u8]) -> Option<usize> {
        let mut variable = Bytes(bytes.get(self.fixed..)?);
        for (state, text) in &self.strings {
            State::ALL.get(usize::from(bytes[*state]))?;
            if *text {
                let end = variable.0.iter().position(|byte| *byte == 0)?;
                variable.take(end + 1)?;
            } else {
                let length = variable.number(2)? as usize;
                variable.take(length)?;
            }
        }
        Some(bytes.len() - variable.0.len())
    }
}

fn value<'a>(kind: &Kind, fixed: &mut Bytes<'a>, variable: &mut Bytes<'a>) -> Option<Value<'a>> {
    let state = |fixed: &mut Bytes<'a>| State::ALL.get(fixed.number(1)? as usize).copied();
    Some(match kind {
        Kind::Int { bytes, signed, .. } => {
            let raw = fixed.number(*bytes as usize)?;
            let unused = 64_u32.checked_sub(8 * bytes)?;
            if *signed {
                Value::Int(i128::from((raw << unused) as i64 >> unused))
            } else {
                Value::Int(i128::from(raw))
            }
        }
        Kind::Float { bytes: 4 } => Value::Float(f64::from(f32::from_bits(fixed.word()?))),
        Kind::Float { .. } => Value::Float(f64::from_bits(fixed.number(8)?)),
        Kind::Text { .. } => {
            let state = state(fixed)?;
            let end = variable.0.iter().position(|byte| *byte == 0)?;
            let text = variable.take(end + 1)?;
            Value::Text(state, &text[..end])
        }
        Kind::Bytes { .. } => {
            let state = state(fixed)?;
            let length = variable.number(2)? as usize;
            Value::Bytes(state, variable.take(length)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Phase;

    fn opened() -> EventType {
        let field = |name: &str, kind| Field { name: name.into(), kind, phase: Phase::Entry };
        EventType {
            id: 257,
            provider: "syscalls".into(),
            name: "openat".into(),
            fields: vec![
                field("dfd", Kind::int(4, true)),
                field("filename", Kind::Text { bytes_max: 16, path: true }),
                field("data", Kind::data(8)),
                field("ratio", Kind::Float { bytes: 4 }),
                field("flags", Kind::int(8, false)),
            ],
        }
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = vec![];
        bytes.extend(99_u64.to_le_bytes());
        for word in [257_u32, 1, 12, 11] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(*b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0");
        bytes.extend((-100_i32).to_le_bytes());
        bytes.extend([State::Truncated as u8, State::Whole as u8]);
        bytes.extend(0.5_f32.to_le_bytes());
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.extend(b"/etc\0\x03\x00abc");
        bytes
    }

    #[test]
    fn a_record_has_the_values_that_were_written() {
        let (of, bytes) = (opened(), bytes());
        let record = Record::parse(&of, &bytes).expect("it is whole");
        assert_eq!((record.header.tid, record.header.pid, record.header.time_ns), (12, 11, 99));
        assert_eq!(record.header.comm(), "cat");
        assert_eq!(record.value("dfd"), Some(Value::Int(-100)));
        assert_eq!(record.value("filename"), Some(Value::Text(State::Truncated, b"/etc")));
        assert_eq!(record.value("data"), Some(Value::Bytes(State::Whole, b"abc")));
        assert_eq!(record.value("ratio"), Some(Value::Float(0.5)));
        assert_eq!(record.value("flags"), Some(Value::Int(u64::MAX.into())));
    }

    #[test]
    fn a_record_is_written_as_it_is_read() {
        let (of, bytes) = (opened(), bytes());
        let record = Record::parse(&of, &bytes).expect("it is whole");
        assert_eq!(encode(&of, &record.header, &record.values), Some(bytes.clone()));
        assert_eq!(encode(&of, &record.header, &record.values[1..]), None, "a value is missing");
        let mut wrong = record.values.clone();
        wrong.swap(0, 1);
        assert_eq!(encode(&of, &record.header, &wrong), None, "values of other fields");
    }

    #[test]
    fn a_record_that_ends_early_is_none() {
        let (of, bytes) = (opened(), bytes());
        for end in 0..bytes.len() {
            assert_eq!(Record::parse(&of, &bytes[..end]), None, "{end} bytes");
            assert_eq!(Extent::new(&of).measure(&bytes[..end]), None, "{end} bytes");
        }
        let longer = [&bytes[..], b"more"].concat();
        assert_eq!(Extent::new(&of).measure(&longer), Some(bytes.len()));
        let mut wrong_state = bytes.clone();
        wrong_state[HEADER_BYTES + 4] = 9;
        assert_eq!(Record::parse(&of, &wrong_state), None);
        assert_eq!(Extent::new(&of).measure(&wrong_state), None);
    }
}
