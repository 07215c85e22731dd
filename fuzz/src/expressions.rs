//! Filters of events: any text is read or refused; an error points into the text; the code of what is read is a program that the
//! verifier accepts.

use std::sync::Arc;

use ring3_event::{EventType, Field, HEADER_BYTES, Kind, Names, Phase, Show, header};
use ring3_filter::{Context, EventScope, LabelCounter, Place, Places, Scope, StatePlace, check_all, parse};
use ring3_generate::Random;
use ring3_uapi::bpf::prog_type;
use ring3_verifier::{Input, Policy, verify};

/// Where the text is whose address is on the stack.
const POINTER_SLOT: i16 = -8;
const TEXT_BYTES: u32 = 70;
/// Steps of the verifier beyond which a program may be refused, whatever it does.
const REFUSED_FOR_LENGTH: &str = "too large";

fn event() -> EventType {
    let names = Names(vec![(1, "ONE".into()), (2, "TWO".into())]);
    let field = |name: &str, kind, phase| Field { name: name.into(), kind, phase };
    EventType {
        id: 1,
        provider: "fuzz".into(),
        name: "event".into(),
        fields: vec![
            field("a", Kind::int(1, true), Phase::Entry),
            field("b.c", Kind::Int { bytes: 4, signed: false, show: Show::Flags(Arc::new(names)) }, Phase::Entry),
            field("ret", Kind::Int { bytes: 8, signed: true, show: Show::Result }, Phase::Exit),
            field("dur", Kind::int(8, false), Phase::Exit),
            field("x", Kind::Float { bytes: 4 }, Phase::Entry),
            field("path", Kind::Text { bytes_max: TEXT_BYTES, path: true }, Phase::Entry),
            field("text", Kind::Text { bytes_max: TEXT_BYTES, path: false }, Phase::Entry),
            field("data", Kind::data(8), Phase::Entry),
        ],
    }
}

/// A record's header and fixed part at r6, then the texts.
struct Layout<'a>(&'a EventType);

impl Places for Layout<'_> {
    fn place(&self, field: usize) -> Place {
        let at = self.0.offsets()[field] as i16;
        match self.0.fields[field].kind {
            Kind::Int { bytes, signed, .. } => Place::Memory { base: 6, at, bytes: bytes as u8, signed },
            Kind::Float { bytes } => Place::Memory { base: 6, at, bytes: bytes as u8, signed: false },
            Kind::Text { path: true, bytes_max } => {
                Place::Text { base: 6, at: self.0.fixed_bytes() as i16, bytes_max }
            }
            Kind::Text { bytes_max, .. } => Place::TextPointer { slot: POINTER_SLOT, bytes_max },
            Kind::Bytes { .. } => unreachable!("no code reads bytes"),
        }
    }

    fn state(&self, field: usize) -> Option<StatePlace> {
        Some(StatePlace { base: 6, at: self.0.offsets()[field] as i16 })
    }

    fn context(&self, context: Context) -> Place {
        let number = |at: usize, bytes| Place::Memory { base: 6, at: at as i16, bytes, signed: false };
        match context {
            Context::Pid => number(header::PID, 4),
            Context::Tid => number(header::TID, 4),
            Context::Cpu => number(header::CPU, 4),
            Context::Time => number(header::TIME, 8),
            Context::Comm => {
                let at = HEADER_BYTES - header::COMM_BYTES;
                Place::Text { base: 6, at: at as i16, bytes_max: header::COMM_BYTES as u32 }
            }
        }
    }
}

pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let inside = |column: usize| (1..=text.chars().count() + 1).contains(&column);
    let expression = match parse(&text) {
        Ok(expression) => expression,
        Err(error) => {
            assert!(inside(error.column) && !error.to_string().is_empty(), "{error}");
            return;
        }
    };
    let of = event();
    let scope = EventScope::new(&of);
    if let Err(error) = check_all(&expression, &[&scope as &dyn Scope]) {
        assert!(inside(error.column), "{error}");
    }
    let Ok(typed) = expression.check(&scope) else { return };
    assert!(typed.fields().iter().all(|field| *field < of.fields.len()));
    let code = typed.assemble(&Layout(&of), &mut LabelCounter::default(), "refused");
    let pointer = of.fixed_bytes() + TEXT_BYTES;
    let program = format!(
        "r6 = r1\nif r6 == 0 goto refused\nr1 += {pointer}\n*(u64 *)(r10 {POINTER_SLOT:+}) = r1\n{code}r0 = 1\nexit\nrefused:\nr0 = 0\nexit\n"
    );
    let insns = ring3_isa::assemble(&program).unwrap_or_else(|error| panic!("{error}\n{program}"));
    let input = Input {
        insns: &insns,
        prog_type: prog_type::SYSCALL,
        gpl_compatible: true,
        sleepable: false,
        cpus: 1,
        policy: Policy::memory(pointer + TEXT_BYTES),
        log_level: 0,
        lines: vec![],
        map_by_fd: &|_| None,
        map_by_index: &|_| None,
        constant_value: &|_| None,
    };
    if let Err(report) = verify(&input) {
        let why = report.to_string();
        assert!(why.contains(REFUSED_FOR_LENGTH), "{text}\n{program}\n{why}");
    }
}

pub(crate) fn make(random: &mut Random) -> Vec<u8> {
    const WORDS: [&str; 56] = [
        "a",
        "b.c",
        "ret",
        "dur",
        "x",
        "path",
        "text",
        "data",
        "pid",
        "comm",
        "event",
        "time",
        "args.a",
        "$ctx.vtid",
        "ONE",
        "ENOENT",
        "SIGKILL",
        "null",
        "nothing",
        "0",
        "1",
        "-1",
        "63",
        "64",
        "0xffffffffffffffff",
        "0b1",
        "017",
        "1ms",
        "4k",
        "1.5",
        "'a'",
        "\"*\"",
        "\"/etc/*\"",
        "\"a?[b-d]*e\"",
        "\"\\x41\\n\"",
        "(",
        ")",
        "(",
        ")",
        "!",
        "-",
        "*",
        "/",
        "%",
        "+",
        "<<",
        ">>",
        "&",
        "|",
        "<",
        ">=",
        "==",
        "~",
        "!~",
        "&&",
        "||",
    ];
    let mut input = vec![];
    if random.one_in(3) {
        for _ in 0..random.below(30) {
            input.extend_from_slice(random.of(&WORDS).as_bytes());
            input.push(b' ');
        }
    } else {
        let comparisons = [
            "a + b.c * 3 < dur >> 7",
            "ret in (ENOENT, -13, 0)",
            "x >= 0.5",
            "path ~ \"*b*[a-c]?d\"",
            "text == path",
            "!(text in (\"a\", \"bb\"))",
            "data != null",
            "dur / (a - 1) % ret != 0",
            "comm !~ \"x*\"",
            "b.c & TWO",
        ];
        for _ in 0..1 + random.below(4) {
            input.extend_from_slice(random.of(&comparisons).as_bytes());
            input.extend_from_slice(random.of(&[" && ", " || "]).as_bytes());
        }
        input.extend_from_slice(b"1");
    }
    crate::damage(&mut input, random);
    input
}
