//! Functions and static tracepoints as events: where their arguments are when a thread hits the probe.
//!
//! The context of these programs is `struct pt_regs` (arch/x86/include/uapi/asm/ptrace.h).

use std::sync::Arc;

use ring3_btf::{Btf, encoding, kind};
use ring3_elf::{Argument, ArgumentPlace, At, Kind as ArgumentKind, Register, Tracepoint};
use ring3_event::{EventType, Field, Kind, Names, Phase, Show, TEXT_BYTES_MAX};

use crate::{Address, Operand, Recipe, Source};

/// Where the context has the instruction pointer.
const IP_AT: i16 = 128;
/// Where it has the result of a function (rax).
const RESULT_AT: i16 = 80;
/// The registers of a function's first arguments (System V ABI, 3.2.3).
const ARGUMENTS: [Register; 6] =
    [Register::Rdi, Register::Rsi, Register::Rdx, Register::Rcx, Register::R8, Register::R9];

/// Events at the start of a function: the registers of six arguments, `arg0` to `arg5`, whether it has them or not.
pub fn function(id: u32, provider: &str, name: &str) -> Recipe {
    let fields = (0..ARGUMENTS.len()).map(|index| Field {
        name: format!("arg{index}"),
        kind: Kind::Int { bytes: 8, signed: false, show: Show::Hex },
        phase: Phase::Entry,
    });
    let of = EventType { id, provider: provider.to_owned(), name: name.to_owned(), fields: fields.collect() };
    Recipe { of, sources: ARGUMENTS.map(|register| Source::Number(Operand::Context(offset(register)))).into() }
}

/// Events at the end of a function: its result, `retval`, which is all of its register if its type is not known.
pub fn function_end(id: u32, provider: &str, name: &str, of_result: Option<Kind>) -> Recipe {
    let kind = of_result.unwrap_or(Kind::Int { bytes: 8, signed: true, show: Show::Word });
    let source = match kind {
        Kind::Int { bytes, signed, .. } => Operand::Part { at: RESULT_AT, bytes: bytes as u8, signed },
        _ => Operand::Context(RESULT_AT),
    };
    let fields = vec![Field { name: "retval".to_owned(), kind, phase: Phase::Entry }];
    let of = EventType { id, provider: provider.to_owned(), name: format!("{name}%return"), fields };
    Recipe { of, sources: vec![Source::Number(source)] }
}

/// How a whole number of a C type is recorded and shown, if it fits into a register: that of an argument or a result.
pub fn kind_of(types: &Btf, of: u32) -> Option<Kind> {
    let of = types.plain(of);
    let bytes = || Some(types.size_or_type(of)).filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8));
    Some(match types.kind(of)? {
        kind::PTR => Kind::Int { bytes: 8, signed: false, show: Show::Pointer },
        kind::INT if types.int_encoding(of) & encoding::BOOL != 0 => {
            Kind::Int { bytes: bytes()?, signed: false, show: booleans() }
        }
        kind::INT => Kind::int(bytes()?, types.int_encoding(of) & encoding::SIGNED != 0),
        kind::ENUM | kind::ENUM64 => {
            let names = types.values(of).map(|(name, value)| (value, String::from_utf8_lossy(name).into_owned()));
            let show = Show::Enumeration(Arc::new(Names(names.collect())));
            Kind::Int { bytes: bytes()?, signed: types.flag_of(of), show }
        }
        _ => return None,
    })
}

fn booleans() -> Show {
    Show::Enumeration(Arc::new(Names(vec![(0, "false".to_owned()), (1, "true".to_owned())])))
}

/// Events of a static tracepoint: a recipe for each of its places in the code, all of one type.
///
/// The compiler may have put an argument elsewhere, or have made it narrower, at each place. A field is as wide as the widest.
pub fn tracepoint(id: u32, places: &[&Tracepoint], bytes_max: u32) -> Vec<Recipe> {
    let Some(first) = places.first() else { return vec![] };
    let count = places.iter().map(|place| place.arguments.len()).min().unwrap_or(0);
    let mut names: Vec<String> = vec![];
    let mut fields = vec![];
    for index in 0..count {
        let all: Vec<&Argument> = places.iter().map(|place| &place.arguments[index]).collect();
        let mut name = field_name(all[0].name.as_deref(), index);
        if names.contains(&name) {
            name = format!("{name}_{index}");
        }
        names.push(name.clone());
        fields.push(Field { name, kind: kind(&all, bytes_max), phase: Phase::Entry });
    }
    let of = EventType { id, provider: first.provider.clone(), name: first.name.clone(), fields };
    let recipe = |place: &&Tracepoint| {
        let fields = of.fields.iter().zip(&place.arguments);
        let sources = fields.map(|(field, argument)| source(&field.kind, argument, place.address)).collect();
        Recipe { of: of.clone(), sources }
    };
    places.iter().map(recipe).collect()
}

/// A name that filters can say: `o->id` is `o.id`.
fn field_name(name: Option<&str>, index: usize) -> String {
    let Some(name) = name else { return format!("arg{index}") };
    let name = name.trim().trim_start_matches(['&', '*']).replace("->", ".");
    let keep = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '_' };
    let name: String = name.chars().map(keep).collect();
    let name = name.trim_matches(['.', '_']).to_owned();
    match name.chars().next() {
        Some(letter) if letter.is_ascii_alphabetic() => name,
        _ => format!("arg{index}"),
    }
}

/// What an argument is, given what it is at each place.
fn kind(all: &[&Argument], bytes_max: u32) -> Kind {
    let unreadable = Kind::Text { bytes_max: 1, path: false };
    let readable = |argument: &&&Argument| !matches!(argument.place.at, At::Unreadable { .. });
    let Some(first) = all.iter().find(readable) else { return unreadable };
    let bytes = all.iter().map(|argument| u32::from(argument.place.bytes)).max().unwrap_or(8);
    match first.kind {
        ArgumentKind::Text if all.iter().any(|argument| argument.length.is_some()) => Kind::data(bytes_max),
        ArgumentKind::Text => Kind::Text { bytes_max: TEXT_BYTES_MAX, path: false },
        ArgumentKind::Float if matches!(bytes, 4 | 8) => Kind::Float { bytes },
        ArgumentKind::Pointer => Kind::Int { bytes, signed: false, show: Show::Pointer },
        ArgumentKind::Bool => Kind::Int { bytes, signed: false, show: booleans() },
        ArgumentKind::Signed => Kind::Int { bytes, signed: true, show: Show::Decimal },
        // (SystemTap's note has no types: `8@` is said of pointers, too.)
        ArgumentKind::Unsigned if bytes == 8 && first.name.is_none() => {
            Kind::Int { bytes, signed: false, show: Show::Word }
        }
        ArgumentKind::Unsigned | ArgumentKind::Float => Kind::Int { bytes, signed: false, show: Show::Decimal },
    }
}

fn source(kind: &Kind, argument: &Argument, probe: u64) -> Source {
    let of = |place: &ArgumentPlace| operand(place, probe);
    // (Nothing can be read at address 1: the field says that it is unreadable.)
    let unreadable = Operand::Constant(1);
    match kind {
        Kind::Int { .. } | Kind::Float { .. } => Source::Number(of(&argument.place).unwrap_or(Operand::Constant(0))),
        Kind::Text { .. } => Source::Text(of(&argument.place).unwrap_or(unreadable)),
        Kind::Bytes { .. } => Source::Bytes {
            address: of(&argument.place).unwrap_or(unreadable),
            length: argument.length.as_ref().and_then(of).unwrap_or(Operand::Constant(0)),
            unit: 1,
        },
    }
}

fn offset(register: Register) -> i16 {
    register.context_offset() as i16
}

/// Where an argument is; `None` if no program can read it.
fn operand(place: &ArgumentPlace, probe: u64) -> Option<Operand> {
    let memory = |address| Operand::Memory { address, bytes: place.bytes, signed: place.signed };
    Some(match &place.at {
        At::Constant(value) => Operand::Constant(*value),
        At::Register { register, shift } => {
            Operand::Part { at: offset(*register) + i16::from(*shift / 8), bytes: place.bytes, signed: place.signed }
        }
        At::Memory { base, index, displacement } => memory(Address {
            base: base.map(offset),
            index: index.map(|(register, scale)| (offset(register), scale)),
            displacement: *displacement,
        }),
        // (The file is loaded where the probe says.)
        At::Data { address } => {
            memory(Address { base: Some(IP_AT), index: None, displacement: address.wrapping_sub(probe) as i64 })
        }
        At::Unreadable { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program;

    fn argument(name: &str, kind: ArgumentKind, bytes: u8, at: At) -> Argument {
        let place = ArgumentPlace { bytes, signed: kind == ArgumentKind::Signed, float: false, at };
        Argument { name: Some(name.to_owned()), type_name: None, kind, place, length: None }
    }

    fn place(arguments: Vec<Argument>) -> Tracepoint {
        let (provider, name) = ("shop".to_owned(), "order".to_owned());
        Tracepoint { provider, name, address: 0x1000, semaphore: 0, arguments }
    }

    #[test]
    fn places_that_differ_are_of_one_type() {
        let register = At::Register { register: Register::Rdi, shift: 0 };
        let memory = At::Memory { base: Some(Register::Rbp), index: Some((Register::Rcx, 4)), displacement: -8 };
        let first = place(vec![
            argument("o->id", ArgumentKind::Signed, 4, register.clone()),
            argument("name", ArgumentKind::Text, 8, At::Data { address: 0x4000 }),
        ]);
        let second = place(vec![
            argument("o->id", ArgumentKind::Signed, 8, memory),
            argument("name", ArgumentKind::Text, 8, At::Unreadable { why: "vector register".to_owned() }),
        ]);
        let recipes = tracepoint(2000, &[&first, &second], 32);
        assert_eq!(recipes[0].of, recipes[1].of);
        assert_eq!(recipes[0].of.fields[0].name, "o.id");
        assert_eq!(recipes[0].of.fields[0].kind, Kind::int(8, true));
        let at = Address { base: Some(IP_AT), index: None, displacement: 0x3000 };
        assert_eq!(recipes[0].sources[1], Source::Text(Operand::Memory { address: at, bytes: 8, signed: false }));
        for recipe in &recipes {
            ring3_isa::assemble(&program::once(recipe, None, &program::Output::Records)).expect("it is a program");
        }
    }

    #[test]
    fn what_systemtaps_note_describes_may_be_an_address() {
        let show = |name: Option<&str>, bytes| {
            let at = At::Register { register: Register::Rdi, shift: 0 };
            let argument =
                Argument { name: name.map(str::to_owned), ..argument("", ArgumentKind::Unsigned, bytes, at) };
            match &tracepoint(2000, &[&place(vec![argument])], 32)[0].of.fields[0].kind {
                Kind::Int { show, .. } => show.clone(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(show(None, 8), Show::Word);
        assert_eq!([show(None, 4), show(Some("cents"), 8)], [Show::Decimal, Show::Decimal]);
    }

    #[test]
    fn names_are_such_that_filters_can_say_them() {
        let names = [Some("o->items[2].price"), Some("&order"), Some("(int)x"), Some("1+2"), None]
            .map(|name| field_name(name, 3));
        assert_eq!(names, ["o.items_2_.price", "order", "int_x", "arg3", "arg3"]);
    }
}
