//! Types of events, and the layout of their records.
//!
//! Runs: anywhere: it computes and does no I/O.
//! May touch: what it is given.
//! Never: trusts a record: damaged bytes give `None`, not a panic.
//! Start reading at: `EventType`, then `Record`.
//!
//! A record is what a program writes into a ring buffer, and byte for byte an event of a trace in the Common Trace Format (CTF
//! 1.8): nothing is rearranged on the way to a file. It has no padding, and is little-endian:
//!
//! 1. the header, [`HEADER_BYTES`] long: what every record begins with;
//! 2. the fixed part: the numbers, in the order of the fields; a text or byte string has one byte here, its [`State`];
//! 3. the variable part: the contents of texts and byte strings, in the order of the fields. A text ends with a zero byte, and
//!    contains no other; a byte string begins with its length (16 bits).
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

mod form;
mod layouts;
mod letters;
mod record;
mod shared;

pub use form::{Decoded, Form, SIGNALS};
pub use layouts::{CLONE_FLAGS, STATX_FLAGS};
pub use letters::is_unseen;
pub use record::{Extent, Header, Record, Value, encode};

/// Bytes of the header: time (u64), event (u32), CPU (u32), thread id (u32), process id (u32), name of the thread (16 bytes).
///
/// Time and event are first, and beside each other: they are the event header of the trace; the rest is the events' context
/// (CTF 1.8, section 6.1), which viewers show.
pub const HEADER_BYTES: usize = 40;
/// Where the header's parts are, in bytes.
pub mod header {
    /// When: nanoseconds of `CLOCK_MONOTONIC` (u64).
    pub const TIME: usize = 0;
    /// The event's number, [`EventType::id`](super::EventType::id) (u32).
    pub const EVENT: usize = 8;
    /// The CPU (u32).
    pub const CPU: usize = 12;
    /// The thread (u32). Thread and process are what `bpf_get_current_pid_tgid` gives, in one aligned store.
    pub const TID: usize = 16;
    /// Its process (u32).
    pub const PID: usize = 20;
    /// The thread's name, with zero bytes at its end (`TASK_COMM_LEN`).
    pub const COMM: usize = 24;
    /// Bytes of the name.
    pub const COMM_BYTES: usize = 16;
}

/// The bytes of a text at most, with the zero byte at its end (`PATH_MAX`).
pub const TEXT_BYTES_MAX: u32 = 4096;

/// A kind of event: a system call, a probe, a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventType {
    /// Its number, unique in a session.
    pub id: u32,
    /// Who provides it: `syscalls`, a file's name, a USDT provider.
    pub provider: String,
    /// Its name within the provider: `openat`.
    pub name: String,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// A field of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Its name: letters, digits, `_`; a member of a structure has a dot (`req.tv_sec`).
    pub name: String,
    /// What it holds.
    pub kind: Kind,
    /// When it is known.
    pub phase: Phase,
}

/// When a field of an event with a duration is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// At its start.
    Entry,
    /// At its end.
    Exit,
}

/// What a field holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A whole number.
    Int {
        /// 1, 2, 4 or 8.
        bytes: u32,
        /// Two's complement.
        signed: bool,
        /// How people read it.
        show: Show,
    },
    /// A floating point number (IEEE 754).
    Float {
        /// 4 or 8.
        bytes: u32,
    },
    /// Text.
    Text {
        /// At most this many bytes, with the zero byte at its end.
        bytes_max: u32,
        /// The text is the path of a file.
        path: bool,
    },
    /// Bytes of any kind.
    Bytes {
        /// At most so many.
        bytes_max: u32,
        /// What they are.
        #[serde(default)]
        form: Form,
    },
}

/// How people read a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Show {
    /// In base 10.
    Decimal,
    /// In base 16.
    Hex,
    /// In base 8: modes of files.
    Octal,
    /// As an address.
    Pointer,
    /// A register of which nothing says whether it is an address: as one from [`ADDRESS_MIN`] on, else in base 10.
    Word,
    /// A file descriptor; `AT_FDCWD` has its name.
    Descriptor,
    /// The result of a system call: from -4095 to -1 an error's number.
    Result,
    /// A duration in nanoseconds.
    Nanoseconds,
    /// One of some values that have names.
    Enumeration(#[serde(with = "shared")] Arc<Names>),
    /// A set of bits that have names.
    Flags(#[serde(with = "shared")] Arc<Names>),
}

/// Programs, libraries, heaps and stacks lie above this, unless a program is linked to a fixed address.
pub const ADDRESS_MIN: i128 = 1 << 32;

/// Values with names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names(pub Vec<(u64, String)>);

/// What became of a text or byte string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It is all there.
    Whole = 0,
    /// Its first bytes are there.
    Truncated = 1,
    /// The pointer was null.
    Null = 2,
    /// The memory could not be read, or the call that was to write a structure there failed. Bytes are the address, then (u64), if
    /// there is room for it.
    Unreadable = 3,
}

impl State {
    /// All, by their numbers.
    pub const ALL: [State; 4] = [State::Whole, State::Truncated, State::Null, State::Unreadable];

    /// Its name in traces.
    pub const fn name(self) -> &'static str {
        match self {
            State::Whole => "whole",
            State::Truncated => "truncated",
            State::Null => "null",
            State::Unreadable => "unreadable",
        }
    }
}

impl Names {
    /// The names of the bits that are set, with `|` between; bits without a name as a number. In the list a name of several bits
    /// stands before those of fewer; a name of 0 is said if none before it is.
    fn of_bits(&self, value: u64) -> String {
        names_of_bits(value, self.0.iter().map(|(bits, name)| (*bits, name.as_str())))
    }
}

/// As [`Names::of_bits`].
fn names_of_bits<'n>(value: u64, names: impl Iterator<Item = (u64, &'n str)>) -> String {
    let mut text = String::new();
    let mut rest = value;
    for (bits, name) in names {
        if rest & bits == bits && (bits != 0 || text.is_empty()) {
            text += if text.is_empty() { "" } else { "|" };
            text += name;
            rest &= !bits;
        }
    }
    match (rest, text.is_empty()) {
        (0, false) => text,
        (0, true) => "0".to_owned(),
        (_, true) => format!("{rest:#x}"),
        (_, false) => format!("{text}|{rest:#x}"),
    }
}

impl Kind {
    /// The name of a number, if it has one: of an enumeration's value, of a set of flags, of `AT_FDCWD`.
    pub fn name_of(&self, number: i128) -> Option<Cow<'_, str>> {
        const AT_FDCWD: i128 = -100;
        let Kind::Int { bytes, show, .. } = self else { return None };
        let cut = |value: u64| value & (u64::MAX >> (64 - 8 * (*bytes).clamp(1, 8)));
        let value = cut(number as u64);
        match show {
            Show::Enumeration(names) => {
                let (_, name) = names.0.iter().find(|(known, _)| cut(*known) == value)?;
                Some(name.into())
            }
            Show::Flags(names) => Some(names.of_bits(value).into()),
            Show::Descriptor if number == AT_FDCWD => Some("AT_FDCWD".into()),
            _ => None,
        }
    }

    /// A number in base 10.
    pub const fn int(bytes: u32, signed: bool) -> Kind {
        Kind::Int { bytes, signed, show: Show::Decimal }
    }

    /// Bytes that are nothing but data.
    pub const fn data(bytes_max: u32) -> Kind {
        Kind::Bytes { bytes_max, form: Form::Data }
    }

    /// Bytes in the fixed part.
    pub const fn fixed_bytes(&self) -> u32 {
        match self {
            Kind::Int { bytes, .. } | Kind::Float { bytes } => *bytes,
            Kind::Text { .. } | Kind::Bytes { .. } => 1,
        }
    }

    /// Bytes in the variable part at most.
    pub const fn variable_bytes_max(&self) -> u32 {
        match self {
            Kind::Int { .. } | Kind::Float { .. } => 0,
            Kind::Text { bytes_max, .. } => *bytes_max,
            Kind::Bytes { bytes_max, .. } => 2 + *bytes_max,
        }
    }
}

impl EventType {
    /// Provider and name: `syscalls:openat`.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }

    /// Where each field's fixed part begins, in bytes from the record's start.
    pub fn offsets(&self) -> Vec<u32> {
        let mut at = HEADER_BYTES as u32;
        let place = |field: &Field| {
            let offset = at;
            at += field.kind.fixed_bytes();
            offset
        };
        self.fields.iter().map(place).collect()
    }

    /// Bytes of header and fixed part.
    pub fn fixed_bytes(&self) -> u32 {
        HEADER_BYTES as u32 + self.fields.iter().map(|field| field.kind.fixed_bytes()).sum::<u32>()
    }

    /// Bytes of a record at most.
    pub fn bytes_max(&self) -> u32 {
        self.fixed_bytes() + self.variable_bytes_max()
    }

    /// Bytes of the variable part at most.
    pub fn variable_bytes_max(&self) -> u32 {
        self.fields.iter().map(|field| field.kind.variable_bytes_max()).sum()
    }

    /// The field with a name.
    pub fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }
}
