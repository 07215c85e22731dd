//! Random filters and records, and where a program finds a record's values.

use ring3_event::{EventType, Field, HEADER_BYTES, Header, Kind, Phase, Record, State, Value, encode, header};
use ring3_filter::{Context, EventScope, LabelCounter, Place, Places, StatePlace, Typed, parse};
use ring3_generate::Random;

/// A filter with the type of its events.
pub(crate) struct Sample {
    pub(crate) of: EventType,
    pub(crate) text: String,
    pub(crate) typed: Typed,
}

const INTEGERS: [(&str, u32, bool); 8] = [
    ("a", 1, true),
    ("b", 1, false),
    ("c", 2, true),
    ("d", 2, false),
    ("e", 4, true),
    ("f", 4, false),
    ("g", 8, true),
    ("h", 8, false),
];
const FLOATS: [(&str, u32); 4] = [("x", 4), ("y", 8), ("z", 4), ("w", 8)];
/// The last is reached by a pointer on the stack.
const TEXTS: [(&str, u32); 3] = [("s", 16), ("t", 61), ("u", 300)];
/// Where the pointer to the last text is.
const POINTER_SLOT: i16 = -16;

pub(crate) fn event() -> EventType {
    let field = |name: &str, kind| Field { name: name.into(), kind, phase: Phase::Entry };
    let integers = INTEGERS.iter().map(|(name, bytes, signed)| field(name, Kind::int(*bytes, *signed)));
    let floats = FLOATS.iter().map(|(name, bytes)| field(name, Kind::Float { bytes: *bytes }));
    let texts = TEXTS.iter().map(|(name, bytes)| field(name, Kind::Text { bytes_max: *bytes, path: false }));
    EventType {
        id: 1,
        provider: "test".into(),
        name: "event".into(),
        fields: integers.chain(floats).chain(texts).collect(),
    }
}

fn constant(random: &mut Random) -> String {
    match random.below(4) {
        0 => format!("-{}", random.edge() >> 1),
        1 => format!("{:#x}", random.edge()),
        2 => format!("{}", random.below(6)),
        _ => format!("{}", random.edge()),
    }
}

fn number(random: &mut Random, depth: u32) -> String {
    match random.below(if depth == 0 { 4 } else { 10 }) {
        0 => constant(random),
        1 => random.of(&["pid", "tid", "cpu", "time"]).to_owned(),
        2 | 3 => random.of(&INTEGERS).0.to_owned(),
        4 => {
            let casts = ["-", "~", "(char)", "(u8)", "(short)", "(u16)", "(int)", "(unsigned)", "(long)", "(u64)"];
            format!("{}({})", random.of(&casts), number(random, depth - 1))
        }
        _ => {
            let operator = random.of(&["*", "/", "%", "+", "-", "<<", ">>", "&", "^", "|"]);
            let right = match operator {
                "<<" | ">>" if random.below(4) > 0 => random.below(64).to_string(),
                _ => number(random, depth - 1),
            };
            format!("({} {operator} {right})", number(random, depth - 1))
        }
    }
}

/// A number of which all operands are computed: it takes more registers than there are.
fn balanced(random: &mut Random, depth: u32) -> String {
    if depth == 0 {
        return random.of(&INTEGERS).0.to_owned();
    }
    let operator = random.of(&["*", "+", "-", "&", "^", "|", "/"]);
    format!("({} {operator} {})", balanced(random, depth - 1), balanced(random, depth - 1))
}

fn fraction(random: &mut Random) -> String {
    random.of(&["0", "1", "-1", "0.5", "-0.5", "0.1", "1e300", "-1e300", "3e38", "16777217", "1e-320"]).to_owned()
}

/// A text that others are likely to be like.
fn letters(random: &mut Random, count_max: u64) -> Vec<u8> {
    (0..random.below(count_max + 1)).map(|_| random.of(b"aab/")).collect()
}

fn literal(random: &mut Random) -> String {
    let count = random.of(&[2, 3, 9, 20]);
    String::from_utf8(letters(random, count)).expect("letters")
}

fn pattern(random: &mut Random) -> String {
    let parts = (0..1 + random.below(5)).map(|_| match random.below(5) {
        0 => "?".to_owned(),
        1 => random.of(&["[ab]", "[!a]", "[a-b/]", "[^a-b]"]).to_owned(),
        2 | 3 => "*".to_owned(),
        _ => literal(random),
    });
    parts.collect()
}

fn comparison(random: &mut Random) -> String {
    let relation = random.of(&["<", "<=", ">", ">=", "==", "!="]);
    let equality = random.of(&["==", "!="]);
    let text = random.of(&["s", "t", "u", "comm"]);
    let wild = random.of(&["~", "!~"]);
    match random.below(14) {
        0 | 1 => format!("{} {relation} {}", number(random, 3), number(random, 2)),
        2 | 3 => format!("{} {relation} {}", random.of(&INTEGERS).0, constant(random)),
        4 => balanced(random, 5),
        5 => {
            let members: Vec<String> = (0..1 + random.below(9))
                .map(|_| if random.one_in(9) { number(random, 1) } else { constant(random) })
                .collect();
            format!("{} in ({})", number(random, 1), members.join(", "))
        }
        6 => format!("{} {relation} {}", random.of(&FLOATS).0, fraction(random)),
        7 => {
            let (left, right) = random.of(&[("x", "z"), ("y", "w"), ("x", "x")]);
            format!("{left} {relation} {right}")
        }
        8 => format!("{text} {equality} \"{}\"", literal(random)),
        9 | 10 => format!("{text} {wild} \"{}\"", pattern(random)),
        11 => format!("{text} {equality} {}", random.of(&["s", "t", "u", "comm"])),
        12 => format!("{text} {equality} null"),
        _ => {
            let members: Vec<String> = (0..1 + random.below(4)).map(|_| format!("\"{}\"", literal(random))).collect();
            format!("{text} in ({})", members.join(", "))
        }
    }
}

fn condition(random: &mut Random, depth: u32) -> String {
    match random.below(if depth == 0 { 1 } else { 5 }) {
        0 => comparison(random),
        1 => format!("!({})", condition(random, depth - 1)),
        2 | 3 => format!("({} && {})", condition(random, depth - 1), condition(random, depth - 1)),
        _ => format!("({} || {})", condition(random, depth - 1), condition(random, depth - 1)),
    }
}

/// A random filter of which the constants fit, and may be true.
pub(crate) fn sample(random: &mut Random) -> Sample {
    let of = event();
    loop {
        let text = condition(random, 3);
        let expression = parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        match expression.check(&EventScope::new(&of)) {
            Ok(typed) => return Sample { of, text, typed },
            Err(error) => {
                let is_known = ["does not fit", "is unsigned"].iter().any(|known| error.message.contains(known));
                assert!(is_known, "{text}: {error}");
            }
        }
    }
}

fn float(random: &mut Random) -> f64 {
    random.of(&[
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        0.1,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1e38,
        1e-320,
        16_777_216.0,
    ])
}

/// A random record of the type.
pub(crate) fn record(random: &mut Random, of: &EventType) -> Vec<u8> {
    let mut comm = [0; header::COMM_BYTES];
    let name = letters(random, header::COMM_BYTES as u64 - 1);
    comm[..name.len()].copy_from_slice(&name);
    let mut word = || random.edge() as u32;
    let (event, cpu, tid, pid) = (word(), word(), word(), word());
    let header = Header { time_ns: random.edge(), event, cpu, tid, pid, comm };
    // (Texts are borrowed by the values.)
    let texts: Vec<Vec<u8>> = of.fields.iter().map(|field| text(random, &field.kind)).collect();
    let values = of.fields.iter().zip(&texts).map(|(field, text)| match field.kind {
        Kind::Int { .. } => Value::Int(random.edge().into()),
        Kind::Float { .. } => Value::Float(float(random)),
        Kind::Text { .. } => match random.below(4) {
            0 => match random.of(&State::ALL) {
                state @ (State::Whole | State::Truncated) => Value::Text(state, text),
                state => Value::Text(state, b""),
            },
            _ => Value::Text(State::Whole, text),
        },
        Kind::Bytes { .. } => unreachable!("the type has none"),
    });
    let values: Vec<Value> = values.collect();
    encode(of, &header, &values).expect("the values are of the type")
}

/// What a text may hold.
fn text(random: &mut Random, kind: &Kind) -> Vec<u8> {
    let Kind::Text { bytes_max, .. } = kind else { return vec![] };
    let count = if random.one_in(8) { bytes_max - 1 } else { (bytes_max - 1).min(10) };
    letters(random, count.into())
}

/// A program's memory: header and fixed part of a record, then a place for each text.
pub(crate) struct Layout<'a> {
    of: &'a EventType,
    offsets: Vec<u32>,
    /// By field.
    texts: Vec<u32>,
    bytes: u32,
}

impl<'a> Layout<'a> {
    pub(crate) fn new(of: &'a EventType) -> Layout<'a> {
        let mut bytes = of.fixed_bytes();
        let place = |field: &Field| {
            let at = bytes;
            bytes += field.kind.variable_bytes_max();
            at
        };
        Layout { of, offsets: of.offsets(), texts: of.fields.iter().map(place).collect(), bytes }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// A program whose memory is at r1: 1 if the filter accepts the record that is there, else 0.
    pub(crate) fn program(&self, typed: &Typed) -> String {
        let code = typed.assemble(self, &mut LabelCounter::default(), "refused");
        let pointer = self.texts[self.of.fields.len() - 1];
        format!(
            // (A filter that accepts all never jumps, and code that nothing reaches is refused.)
            "r6 = r1\nif r6 == 0 goto refused\nr1 += {pointer}\n*(u64 *)(r10 {POINTER_SLOT:+}) = r1\n{code}r0 = 1\nexit\nrefused:\nr0 = 0\nexit\n"
        )
    }

    /// The memory for a record. Behind the texts are bytes that mean nothing.
    pub(crate) fn memory(&self, random: &mut Random, record: &Record<'_>, bytes: &[u8]) -> Vec<u8> {
        let mut memory: Vec<u8> = (0..self.bytes).map(|_| random.of(b"ab/\0")).collect();
        memory[..self.of.fixed_bytes() as usize].copy_from_slice(&bytes[..self.of.fixed_bytes() as usize]);
        for (at, value) in self.texts.iter().zip(&record.values) {
            if let Value::Text(_, text) = value {
                memory[*at as usize..][..text.len()].copy_from_slice(text);
                memory[*at as usize + text.len()] = 0;
            }
        }
        memory
    }
}

impl Places for Layout<'_> {
    fn place(&self, field: usize) -> Place {
        let at = self.offsets[field] as i16;
        match self.of.fields[field].kind {
            Kind::Int { bytes, signed, .. } => Place::Memory { base: 6, at, bytes: bytes as u8, signed },
            Kind::Float { bytes } => Place::Memory { base: 6, at, bytes: bytes as u8, signed: false },
            Kind::Text { bytes_max, .. } if field + 1 == self.of.fields.len() => {
                Place::TextPointer { slot: POINTER_SLOT, bytes_max }
            }
            Kind::Text { bytes_max, .. } => Place::Text { base: 6, at: self.texts[field] as i16, bytes_max },
            Kind::Bytes { .. } => unreachable!("the type has none"),
        }
    }

    fn state(&self, field: usize) -> Option<StatePlace> {
        Some(StatePlace { base: 6, at: self.offsets[field] as i16 })
    }

    fn context(&self, context: Context) -> Place {
        let word = |at: usize| Place::Memory { base: 6, at: at as i16, bytes: 4, signed: false };
        match context {
            Context::Pid => word(header::PID),
            Context::Tid => word(header::TID),
            Context::Cpu => word(header::CPU),
            Context::Time => Place::Memory { base: 6, at: header::TIME as i16, bytes: 8, signed: false },
            Context::Comm => {
                const { assert!(header::COMM + header::COMM_BYTES == HEADER_BYTES) };
                Place::Text { base: 6, at: header::COMM as i16, bytes_max: header::COMM_BYTES as u32 }
            }
        }
    }
}
