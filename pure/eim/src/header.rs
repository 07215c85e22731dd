//! A header for the author of an extension: the parts of the program's structures that a class grants, at their places.
//!
//! What is not granted is padding. Numbers have basic types, so that nothing meets the typedefs of other headers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::ops::Range;

use ring3_btf::{Btf, Member, kind};

use ring3_verifier::host::HostValue;

use crate::model::{At, Class, Specification};
use crate::resolve::{Resolved, resolve_all};
use crate::source::Error;
use crate::types::{DEPTH_MAX, Declared, Shape, Types};

/// Writes the header of a class.
///
/// # Errors
/// As [`crate::resolve()`].
pub fn header(specification: &Specification, class: &Class, types: &Btf) -> Result<String, Vec<Error>> {
    let entries: Vec<Resolved> =
        class.apart().map(|class| resolve_all(specification, &class, types)).collect::<Result<_, _>>()?;
    let types = Types::new(types);
    let mut writer = Writer::new(&types);
    for object in entries.iter().flat_map(|resolved| &resolved.grant.objects) {
        let of = writer.granted.entry(object.type_id).or_default();
        of.extend(object.fields.iter().map(|field| field.at.clone()));
        let of = writer.pointers.entry(object.type_id).or_default();
        let pointers = object.fields.iter().filter(|field| field.value != HostValue::Number);
        of.extend(pointers.map(|field| field.at.clone()));
    }
    writer.granted.retain(|of, _| matches!(types.shape(*of), Shape::Structure { .. }));
    writer.pointers.retain(|of, _| writer.granted.contains_key(of));
    spread(&types, &mut writer.granted);
    spread(&types, &mut writer.pointers);
    let structures: Vec<u32> = writer.granted.keys().copied().collect();
    structures.iter().for_each(|of| writer.define(*of));
    let mut tail = String::new();
    entries.iter().for_each(|resolved| writer.arguments(resolved, &mut tail));
    // (Functions and variables are those of the class, at each entry.)
    entries.iter().take(1).for_each(|resolved| writer.externs(resolved, &mut tail));
    let guard = format!("RING3_CLASS_{}_H", class.name.text.to_uppercase());
    let place = |Resolved { entry, .. }: &Resolved| {
        let when = if entry.at == At::Entry { "before" } else { "after" };
        format!("{when} {}", entry.function)
    };
    let places = entries.iter().map(place).collect::<Vec<_>>().join(", ");
    let mut out = format!(
        "/* What extensions of class {} may touch: they run {places}. Written by `ring3 eim header`. */\n\
         #ifndef {guard}\n#define {guard}\n\n\
         #ifndef __ksym\n#define __ksym __attribute__((section(\".ksyms\")))\n#endif\n\n",
        class.name.text
    );
    let declared = writer.declarations();
    for part in [declared, writer.defined, tail] {
        if !part.is_empty() {
            out += &part;
            out.push('\n');
        }
    }
    let _ = writeln!(out, "#endif");
    Ok(out)
}

/// Parts of structures to those in them.
fn spread(types: &Types<'_>, parts: &mut BTreeMap<u32, Vec<Range<u32>>>) {
    let mut open: Vec<u32> = parts.keys().copied().collect();
    while let Some(of) = open.pop() {
        let ranges = parts.get(&of).cloned().unwrap_or_default();
        for member in types.btf.members(of) {
            let array = types.btf.elements(member.of);
            let inner = types.plain(array.of);
            let Shape::Structure { bytes, .. } = types.shape(inner) else { continue };
            let start = member.at_bits / 8;
            let known = parts.get(&inner).cloned().unwrap_or_default();
            let mut all = known.clone();
            for element in 0..array.count.min(4096) {
                let at = start + element * bytes;
                let inside = ranges.iter().filter_map(|range| cut(range, &(at..at + bytes)));
                all.extend(inside.map(|range| range.start - at..range.end - at));
            }
            let all = merged(all);
            if all != merged(known) {
                parts.insert(inner, all);
                open.push(inner);
            }
        }
    }
}

struct Writer<'a, 't> {
    types: &'a Types<'t>,
    /// Granted bytes of structures.
    granted: BTreeMap<u32, Vec<Range<u32>>>,
    /// Those of pointers.
    pointers: BTreeMap<u32, Vec<Range<u32>>>,
    /// Names of structures without tags.
    typedefs: HashMap<u32, Vec<&'t str>>,
    /// Structures that are spoken of.
    mentioned: BTreeSet<u32>,
    done: BTreeSet<u32>,
    defined: String,
    /// Parts that are hidden.
    gaps: usize,
}

impl<'a, 't> Writer<'a, 't> {
    fn new(types: &'a Types<'t>) -> Writer<'a, 't> {
        let mut typedefs: HashMap<u32, Vec<&str>> = HashMap::new();
        for (id, name) in types.btf.of_kind(kind::TYPEDEF) {
            let of = types.plain(types.btf.size_or_type(id));
            if let (Shape::Structure { .. }, Ok(name)) = (types.shape(of), std::str::from_utf8(name)) {
                typedefs.entry(of).or_default().push(name);
            }
        }
        for names in typedefs.values_mut() {
            names.sort_unstable();
            names.dedup();
        }
        let (granted, pointers, mentioned, done) =
            (BTreeMap::new(), BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Writer { types, granted, pointers, typedefs, mentioned, done, defined: String::new(), gaps: 0 }
    }

    /// The name of a structure in C: its tag, else a typedef; `None`: it has no name.
    fn name(&self, of: u32) -> Option<String> {
        let tag = String::from_utf8_lossy(self.types.btf.name_of(of)).into_owned();
        let is_union = match self.types.btf.kind(of) {
            Some(kind::FWD) => self.types.btf.flag_of(of),
            found => found == Some(kind::UNION),
        };
        match (tag.is_empty(), is_union) {
            (false, true) => Some(format!("union {tag}")),
            (false, false) => Some(format!("struct {tag}")),
            (true, _) => self.typedefs.get(&of).and_then(|names| names.first()).map(|name| (*name).to_owned()),
        }
    }

    fn has_tag(&self, of: u32) -> bool {
        !self.types.btf.name_of(of).is_empty()
    }

    /// Writes a structure, behind those in it.
    fn define(&mut self, of: u32) {
        if !self.done.insert(of) {
            return;
        }
        self.mentioned.insert(of);
        let Some(name) = self.name(of) else { return };
        let body = self.body(of, 1);
        let size = self.types.bytes(of);
        let tagged = self.has_tag(of);
        let (begin, end) = match tagged {
            true => (name.clone(), String::new()),
            false => {
                let is_union = self.types.btf.kind(of) == Some(kind::UNION);
                (format!("typedef {}", if is_union { "union" } else { "struct" }), format!(" {name}"))
            }
        };
        let packed = if self.is_packed(of) { " __attribute__((packed))" } else { "" };
        let _ = writeln!(self.defined, "{begin} {{\n{body}}}{packed}{end};");
        let _ = writeln!(self.defined, "_Static_assert(sizeof({name}) == {size}, \"size of {name}\");");
        for (path, at) in self.places(of) {
            let assert = format!("__builtin_offsetof({name}, {path}) == {at}, \"place of {name}.{path}\"");
            let _ = writeln!(self.defined, "_Static_assert({assert});");
        }
        self.defined.push('\n');
    }

    /// Members that have grants.
    fn members(&self, of: u32) -> Vec<Member<'t>> {
        let ranges = self.granted.get(&of).cloned().unwrap_or_default();
        let pointers = self.pointers.get(&of).cloned().unwrap_or_default();
        let is_union = self.types.btf.kind(of) == Some(kind::UNION);
        let bytes = |member: &Member<'_>| match member.bits {
            0 => member.at_bits / 8..member.at_bits / 8 + self.types.bytes(member.of),
            bits => member.at_bits / 8..(member.at_bits + bits).div_ceil(8),
        };
        let mut members: Vec<Member<'t>> = self
            .types
            .btf
            .members(of)
            .filter(|member| {
                let at = bytes(member);
                let whole =
                    member.bits == 0 || ranges.iter().any(|range| range.start <= at.start && at.end <= range.end);
                // (A number of a union may be granted without the pointer that shares its bytes.)
                let is_pointer = matches!(self.types.shape(member.of), Shape::Pointer(_));
                let is_granted = pointers.iter().any(|range| range.start <= at.start && at.end <= range.end);
                let is_hidden = is_union && is_pointer && !is_granted;
                let has_name = !member.name.is_empty() || member.bits == 0;
                has_name && whole && !is_hidden && ranges.iter().any(|range| cut(range, &at).is_some())
            })
            .collect();
        members.sort_by_key(|member| member.at_bits);
        members
    }

    /// Places of members that can be asked for.
    fn places(&self, of: u32) -> Vec<(String, u32)> {
        let members = self.members(of).into_iter();
        let named = members.filter(|member| member.bits == 0 && !member.name.is_empty());
        named.map(|member| (String::from_utf8_lossy(member.name).into_owned(), member.at_bits / 8)).collect()
    }

    /// Members are not where their types would put them.
    fn is_packed(&self, of: u32) -> bool {
        self.is_packed_within(of, DEPTH_MAX)
    }

    /// The alignment that C gives to what is written of a type.
    fn align(&self, of: u32, depth: u32) -> u32 {
        let Some(depth) = depth.checked_sub(1) else { return 1 };
        match self.types.shape(of) {
            Shape::Number { bytes: bytes @ 1..=8, .. } => bytes,
            Shape::Number { float: false, .. } => 16,
            Shape::Pointer(_) => 8,
            Shape::Array { of, .. } => self.align(of, depth),
            Shape::Structure { .. } => {
                let of = self.types.plain(of);
                let inner = self.members(of).into_iter().map(|member| self.align(member.of, depth));
                if self.is_packed_within(of, depth) { 1 } else { inner.max().unwrap_or(1) }
            }
            _ => 1,
        }
    }

    fn is_packed_within(&self, of: u32, depth: u32) -> bool {
        let size = self.types.bytes(of);
        self.members(of).iter().any(|member| {
            let align = self.align(member.of, depth);
            member.bits == 0 && (!(member.at_bits / 8).is_multiple_of(align) || !size.is_multiple_of(align))
        })
    }

    fn body(&mut self, of: u32, depth: usize) -> String {
        let indent = "    ".repeat(depth);
        let is_union = self.types.btf.kind(of) == Some(kind::UNION);
        let size = u64::from(self.types.bytes(of)) * 8;
        let (mut out, mut at) = (String::new(), 0);
        for member in self.members(of) {
            let start = u64::from(member.at_bits);
            let own = if member.bits > 0 { member.bits.into() } else { u64::from(self.types.bytes(member.of)) * 8 };
            if !is_union && start < at {
                continue;
            }
            if !is_union {
                out += &self.hidden(at, start, &indent);
            }
            at = if is_union { at.max(own) } else { start + own };
            let name = String::from_utf8_lossy(member.name).into_owned();
            let declaration = self.member(&member, &name, depth);
            let _ = writeln!(out, "{indent}{declaration};");
        }
        if at < size {
            out += &self.hidden(if is_union { 0 } else { at }, size, &indent);
        }
        out
    }

    /// Padding between two places, bits: up to the end of a byte, then bytes, then bits.
    fn hidden(&mut self, from: u64, to: u64, indent: &str) -> String {
        let (mut from, mut out) = (from, String::new());
        if from < to && !from.is_multiple_of(8) {
            let end = from.next_multiple_of(8).min(to);
            let _ = writeln!(out, "{indent}unsigned char : {};", end - from);
            from = end;
        }
        if to / 8 > from / 8 {
            self.gaps += 1;
            let _ = writeln!(out, "{indent}unsigned char ring3_hidden_{}[{}];", self.gaps, to / 8 - from / 8);
            from = to / 8 * 8;
        }
        if to > from {
            let _ = writeln!(out, "{indent}unsigned char : {};", to - from);
        }
        out
    }

    fn member(&mut self, member: &Member<'t>, name: &str, depth: usize) -> String {
        if member.bits > 0 {
            let Shape::Number { bytes, signed, .. } = self.types.shape(member.of) else { return String::new() };
            return format!("{} {name} : {}", integer(bytes, signed), member.bits);
        }
        self.declaration(member.of, name, depth)
    }

    /// A variable of a type.
    fn declaration(&mut self, of: u32, name: &str, depth: usize) -> String {
        let (mut of, mut name) = (of, name.to_owned());
        while let Shape::Array { of: element, count } = self.types.shape(of) {
            name = format!("{name}[{count}]");
            of = element;
        }
        let plain = self.types.plain(of);
        match self.types.shape(of) {
            Shape::Structure { is_union, .. } => match self.name(plain) {
                Some(known) => {
                    self.define(plain);
                    format!("{known} {name}")
                }
                None => {
                    let body = self.body(plain, depth + 1);
                    let packed = if self.is_packed(plain) { " __attribute__((packed))" } else { "" };
                    let word = if is_union { "union" } else { "struct" };
                    let space = if name.is_empty() { "" } else { " " };
                    format!("{word} {{\n{body}{}}}{packed}{space}{name}", "    ".repeat(depth))
                }
            },
            Shape::Pointer(to) => self.pointer(to, &name),
            Shape::Number { bytes, signed, float: false, boolean } => {
                let comment = match self.types.btf.kind(plain) {
                    Some(kind::ENUM | kind::ENUM64) => format!(" /* {} */", self.types.name(plain)),
                    _ => String::new(),
                };
                let of = if boolean { "_Bool" } else { integer(bytes, signed) };
                format!("{of} {name}{comment}")
            }
            // Programs have no floating-point numbers; they can copy the bytes.
            Shape::Number { bytes: bytes @ (4 | 8), .. } => {
                format!("{} {name} /* {} */", integer(bytes, false), self.types.name(of))
            }
            _ => format!("unsigned char {name}[{}]", self.types.bytes(of).max(1)),
        }
    }

    fn pointer(&mut self, to: u32, name: &str) -> String {
        let plain = self.types.plain(to);
        let is_structure = matches!(self.types.shape(to), Shape::Structure { .. });
        let base = match self.types.shape(to) {
            Shape::Structure { .. } | Shape::Opaque if self.has_tag(plain) => {
                self.mentioned.insert(plain);
                self.name(plain)
            }
            Shape::Structure { .. } if self.granted.contains_key(&plain) => {
                self.define(plain);
                self.name(plain)
            }
            Shape::Number { bytes: 1, boolean: false, .. } if self.types.btf.name_of(plain) == b"char" => {
                Some("char".to_owned())
            }
            Shape::Number { bytes, signed, float: false, boolean: false } => Some(integer(bytes, signed).to_owned()),
            _ => None,
        };
        let base = base.filter(|_| is_structure || self.types.btf.kind(plain) != Some(kind::FUNC_PROTO));
        format!("{} *{name}", base.as_deref().unwrap_or("void"))
    }

    fn declared(&mut self, of: Declared, name: &str) -> String {
        match of {
            Declared::Type(of) => match self.types.shape(of) {
                Shape::Void => format!("void {name}"),
                // Parameters that are arrays are pointers.
                _ => self.declaration(of, name, 1),
            },
            Declared::Pointer(to) => self.pointer(to, name),
            Declared::Integer { bytes, signed } => format!("{} {name}", integer(bytes, signed)),
        }
    }

    /// Tags and typedefs of all structures that are spoken of.
    fn declarations(&self) -> String {
        let mut out = String::new();
        for of in self.mentioned.iter().filter(|of| self.has_tag(**of)) {
            let Some(name) = self.name(*of) else { continue };
            let _ = writeln!(out, "{name};");
            for typedef in self.typedefs.get(of).into_iter().flatten() {
                let _ = writeln!(out, "typedef {name} {typedef};");
            }
        }
        out
    }

    /// What lies behind the program's only argument.
    fn arguments(&mut self, resolved: &Resolved, out: &mut String) {
        let _ = writeln!(out, "/* The argument of a program. */\nstruct ring3_{} {{", resolved.entry.name);
        for (index, (name, _, of)) in resolved.slots.iter().enumerate() {
            let name = match name.as_str() {
                "" => format!("argument_{index}"),
                "return" => "result".to_owned(),
                name => name.to_owned(),
            };
            let bytes = match self.types.declared_shape(*of) {
                Shape::Void => {
                    let _ = writeln!(out, "    unsigned long {name}; /* nothing */");
                    continue;
                }
                Shape::Number { bytes, .. } => bytes,
                _ => 8,
            };
            let declaration = self.declared(*of, &name);
            let _ = writeln!(out, "    {declaration};");
            if bytes < 8 {
                let _ = writeln!(out, "    unsigned char ring3_hidden_{index}[{}];", 8 - bytes);
            }
        }
        let _ = writeln!(out, "}};\n");
    }

    fn externs(&mut self, resolved: &Resolved, out: &mut String) {
        let types = self.types;
        for global in &resolved.grant.globals {
            let Some(of) = types.variable(&global.symbol) else { continue };
            let declaration = self.declaration(of, &global.symbol, 1);
            let _ = writeln!(out, "extern {declaration} __ksym;");
        }
        for (symbol, signature) in &resolved.signatures {
            let mut parameters = vec![];
            for (index, (name, of)) in signature.parameters.iter().enumerate() {
                let name = if name.is_empty() { format!("argument_{index}") } else { name.clone() };
                parameters.push(self.declared(*of, &name));
            }
            if parameters.is_empty() {
                parameters.push("void".to_owned());
            }
            let declaration = self.declared(signature.result, &format!("{symbol}({})", parameters.join(", ")));
            let _ = writeln!(out, "extern {declaration} __ksym;");
        }
        let _ = writeln!(
            out,
            "\n/* Bytes behind a pointer whose number another field holds (`length`), as a dynptr; 0 on success. */\n\
             struct bpf_dynptr;\n\
             extern int ring3_dynptr_from_slice(const void *slice, unsigned long long flags, struct bpf_dynptr *ptr) __ksym;"
        );
    }
}

/// An integer of C on BPF and on x86-64.
fn integer(bytes: u32, signed: bool) -> &'static str {
    match (bytes, signed) {
        (1, true) => "signed char",
        (1, false) => "unsigned char",
        (2, true) => "short",
        (2, false) => "unsigned short",
        (4, true) => "int",
        (4, false) => "unsigned int",
        (16, true) => "__int128",
        (16, false) => "unsigned __int128",
        (_, true) => "long",
        (_, false) => "unsigned long",
    }
}

/// What two ranges share.
fn cut(one: &Range<u32>, other: &Range<u32>) -> Option<Range<u32>> {
    let range = one.start.max(other.start)..one.end.min(other.end);
    (!range.is_empty()).then_some(range)
}

/// The same bytes in as few ranges as possible.
fn merged(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<u32>> = vec![];
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}
