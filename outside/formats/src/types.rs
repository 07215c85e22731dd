//! The types of a trace's events, by their numbers.

use std::collections::BTreeMap;
use std::io;

use ring3_event::{EventType, Extent, Header, Record};

/// The types that a sink was told of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Types(BTreeMap<u32, (EventType, Extent)>);

impl Types {
    /// True if it was not known, or another type had this number.
    pub(crate) fn add(&mut self, of: &EventType) -> bool {
        let old = self.0.insert(of.id, (of.clone(), Extent::new(of)));
        old.is_none_or(|(old, _)| old != *of)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &EventType> {
        self.0.values().map(|(of, _)| of)
    }

    /// The record with which these bytes begin, with its header, and without what follows it: programs may reserve more bytes
    /// in a ring buffer than they need.
    pub(crate) fn cut<'b>(&self, bytes: &'b [u8]) -> io::Result<(Header, &'b [u8])> {
        let header =
            Header::parse(bytes).ok_or_else(|| bad(format!("a record of {} bytes is too short", bytes.len())))?;
        let (of, extent) = self.0.get(&header.event).ok_or_else(|| unknown(&header))?;
        let damaged = || bad(format!("a record of the event {} is damaged", of.full_name()));
        Ok((header, &bytes[..extent.measure(bytes).ok_or_else(damaged)?]))
    }

    /// The record with which these bytes begin.
    pub(crate) fn parse<'a>(&'a self, bytes: &'a [u8]) -> io::Result<Record<'a>> {
        let header =
            Header::parse(bytes).ok_or_else(|| bad(format!("a record of {} bytes is too short", bytes.len())))?;
        let (of, _) = self.0.get(&header.event).ok_or_else(|| unknown(&header))?;
        Record::parse(of, bytes).ok_or_else(|| bad(format!("a record of the event {} is damaged", of.full_name())))
    }
}

fn unknown(header: &Header) -> io::Error {
    bad(format!("a record has the event number {}, which no event of the trace has", header.event))
}

pub(crate) fn bad(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
