//! The file `metadata`: text in CTF's Trace Stream Description Language (TSDL), for every reader; and, in its comments, the
//! types as JSON, for [`read`](super::read): TSDL cannot say what a descriptor, a path or the end of a call is.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ring3_event::{EventType, Kind, Names, Show, State, is_unseen};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::packet;
use crate::Origin;

/// What a comment for [`read`] begins and ends with.
const COMMENT: [&str; 2] = ["/*ring3 ", " */"];

/// The whole file.
pub(super) fn write<'a>(origin: &Origin, types: impl Iterator<Item = &'a EventType>) -> String {
    let mut text = String::from("/* CTF 1.8 */\n");
    comment(&mut text, origin);
    text += &trace(origin);
    for of in types {
        comment(&mut text, of);
        event(&mut text, of);
    }
    text
}

/// The origin and the types of a metadata file; `None` if it is none that [`write`] has written.
pub(super) fn read(text: &str) -> Option<(Origin, Vec<EventType>)> {
    let mut comments = text.lines().filter_map(|line| line.strip_prefix(COMMENT[0])?.strip_suffix(COMMENT[1]));
    let origin = parse(comments.next()?)?;
    Some((origin, comments.map(parse).collect::<Option<_>>()?))
}

fn parse<T: DeserializeOwned>(json: &str) -> Option<T> {
    serde_json::from_str(json).ok()
}

fn comment(text: &mut String, content: &impl Serialize) {
    let json = serde_json::to_string(content).expect("it has no map with keys that are not text");
    // (JSON has a slash in strings only, where it may be escaped.)
    _ = writeln!(text, "{}{}{}", COMMENT[0], json.replace('/', "\\/"), COMMENT[1]);
}

fn trace(origin: &Origin) -> String {
    let (uuid, [header, context]) = (origin.uuid_text(), packet::DECLARATION);
    let seconds = origin.offset_ns.div_euclid(1_000_000_000);
    let rest = origin.offset_ns.rem_euclid(1_000_000_000);
    let [hostname, kernel, command] = [&origin.hostname, &origin.kernel, &origin.command].map(|text| quote(text));
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "typealias integer {{ size = 8; align = 8; signed = false; }} := uint8_t;\n\
         typealias integer {{ size = 16; align = 8; signed = false; }} := uint16_t;\n\
         typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;\n\
         typealias integer {{ size = 64; align = 8; signed = false; }} := uint64_t;\n\
         typealias integer {{ size = 8; align = 8; signed = false; encoding = UTF8; base = 10; }} := text_t;\n\n\
         trace {{\n\tmajor = 1;\n\tminor = 8;\n\tuuid = \"{uuid}\";\n\tbyte_order = le;\n\tpacket.header := {header};\n}};\n\n\
         env {{\n\thostname = {hostname};\n\tsysname = \"Linux\";\n\tkernel_release = {kernel};\n\
         \ttracer_name = \"ring3\";\n\ttracer_version = \"{version}\";\n\tcommand = {command};\n}};\n\n\
         clock {{\n\tname = \"monotonic\";\n\tdescription = \"CLOCK_MONOTONIC\";\n\tfreq = 1000000000;\n\
         \toffset_s = {seconds};\n\toffset = {rest};\n}};\n\n\
         typealias integer {{ size = 64; align = 8; signed = false; map = clock.monotonic.value; }} := nanoseconds_t;\n\n\
         stream {{\n\tid = 0;\n\
         \tevent.header := struct {{ nanoseconds_t timestamp; uint32_t id; }};\n\
         \tevent.context := struct {{ uint32_t _cpu; uint32_t _tid; uint32_t _pid; text_t _comm[16]; }};\n\
         \tpacket.context := {context};\n}};\n\n"
    )
}

fn event(text: &mut String, of: &EventType) {
    let names = field_names(of);
    let mut fixed = String::new();
    let mut variable = String::new();
    for (field, name) in of.fields.iter().zip(names) {
        match &field.kind {
            Kind::Int { bytes, signed, show } => {
                _ = writeln!(fixed, "\t\t{} {name};", integer(*bytes, *signed, show))
            }
            Kind::Float { bytes } => {
                let (exponent, mantissa) = if *bytes == 4 { (8, 24) } else { (11, 53) };
                let class = format!("floating_point {{ exp_dig = {exponent}; mant_dig = {mantissa}; align = 8; }}");
                _ = writeln!(fixed, "\t\t{class} {name};");
            }
            Kind::Text { .. } => {
                _ = writeln!(fixed, "\t\t{} {name}_state;", states());
                _ = writeln!(variable, "\t\tstring {{ encoding = UTF8; }} {name};");
            }
            Kind::Bytes { .. } => {
                _ = writeln!(fixed, "\t\t{} {name}_state;", states());
                _ = writeln!(variable, "\t\tuint16_t {name}_length;\n\t\tuint8_t {name}[{name}_length];");
            }
        }
    }
    let (name, id) = (quote(&of.full_name()), of.id);
    let fields = format!("struct {{\n{fixed}{variable}\t}} align(8)");
    _ = writeln!(text, "event {{\n\tname = {name};\n\tid = {id};\n\tstream_id = 0;\n\tfields := {fields};\n}};\n");
}

/// The fields' names in TSDL, whose names are letters, digits and `_`. Readers take the first `_` away, which keeps names from
/// being TSDL's words.
fn field_names(of: &EventType) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let mut name = |name: &str| {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        let mut name = format!("_{}", name.chars().map(plain).collect::<String>());
        // (`_state` and `_length` are what texts and bytes have beside themselves.)
        while ["", "_state", "_length"].iter().any(|end| taken.contains(&format!("{name}{end}"))) {
            name.push('_');
        }
        taken.extend(["", "_state", "_length"].map(|end| format!("{name}{end}")));
        name
    };
    of.fields.iter().map(|field| name(&field.name)).collect()
}

fn states() -> String {
    let names = State::ALL.iter().map(|state| (*state as u64, state.name().to_owned())).collect();
    enumeration(1, false, 10, &Names(names))
}

fn integer(bytes: u32, signed: bool, show: &Show) -> String {
    match show {
        Show::Enumeration(names) if !names.0.is_empty() => enumeration(bytes, signed, 10, names),
        Show::Flags(names) if !names.0.is_empty() => enumeration(bytes, signed, 16, names),
        Show::Hex | Show::Pointer | Show::Flags(_) => plain(bytes, signed, 16),
        Show::Octal => plain(bytes, signed, 8),
        Show::Decimal | Show::Word | Show::Descriptor | Show::Result | Show::Nanoseconds | Show::Enumeration(_) => {
            plain(bytes, signed, 10)
        }
    }
}

fn plain(bytes: u32, signed: bool, base: u32) -> String {
    format!("integer {{ size = {}; align = 8; signed = {signed}; base = {base}; }}", 8 * bytes)
}

/// (Of flags each bit is a value: readers know no sets in CTF 1.8, but show a set of bits by the names of its bits.)
fn enumeration(bytes: u32, signed: bool, base: u32, names: &Names) -> String {
    let unused = 64_u32.saturating_sub(8 * bytes);
    let value = |value: u64| match signed {
        true => (((value << unused) as i64) >> unused).to_string(),
        false => ((value << unused) >> unused).to_string(),
    };
    let names: Vec<_> =
        names.0.iter().map(|(number, name)| format!("{} = {}", quote(name), value(*number))).collect();
    format!("enum : {} {{ {} }}", plain(bytes, signed, base), names.join(", "))
}

/// As a string of TSDL, which has C's escapes.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted += "\\n",
            letter if is_unseen(letter) => quoted.push('?'),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}
