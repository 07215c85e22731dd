//! Tracepoints of LTTng-UST 2.13 (`lttng/tracepoint.h`, `lttng/ust-events.h`): what a program or a library of probes has.
//!
//! A use of `lttng_ust_tracepoint()` tests the word `state` of a `struct lttng_ust_tracepoint`; the section
//! `lttng_ust_tracepoints_ptrs` has the addresses of these. If the word is not 0, it calls each function in the list `probes`, with a
//! datum and the arguments. Such functions and the fields that they record are described by `struct lttng_ust_probe_desc`, one for
//! each provider, which only symbols tell: `lttng_ust__probe_desc___<provider>`. A program and its probes may be in different files.
//!
//! Pointers in these structures are relocations of position-independent files.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use object::elf::{R_X86_64_64, R_X86_64_RELATIVE};
use object::{Object, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget, SymbolKind};

use crate::place::{ArgumentPlace, At, Register};
use crate::tracepoint::{Argument, Kind};
use crate::{FIELDS_MAX, File};

const POINTERS: &str = "lttng_ust_tracepoints_ptrs";
const PROVIDERS: &str = "lttng_ust__probe_desc___";
/// Registers of arguments behind the first, which is the datum (System V ABI).
const REGISTERS: [Register; 5] = [Register::Rsi, Register::Rdx, Register::Rcx, Register::R8, Register::R9];

/// A tracepoint of LTTng-UST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LttngTracepoint {
    /// Provider.
    pub provider: String,
    /// Name.
    pub name: String,
    /// Address of the word of 4 bytes that is not 0 while somebody traces; `None`: the file has the probes only.
    pub state: Option<u64>,
    /// Address of the pointer to the list of functions and data that are called; `None` as above.
    pub probes: Option<u64>,
    /// Address of the function that records it; `None`: another file has it, or symbols are missing.
    pub function: Option<u64>,
    /// What the tracepoint is given, and where it is at the first instruction of such a function.
    pub arguments: Vec<Argument>,
    /// What LTTng records of these; empty as for `function`.
    pub fields: Vec<LttngField>,
}

/// A field of a record of LTTng.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LttngField {
    /// Its name.
    pub name: String,
    /// Its type, as C has it: `int32_t`, `double`, `string`, `uint8_t[4]`, `uint16_t[length]`.
    pub type_name: String,
}

/// The file's memory as the dynamic linker leaves it.
struct Image<'a> {
    file: &'a File<'a>,
    relocated: HashMap<u64, u64>,
}

impl Image<'_> {
    fn of<'a>(file: &'a File<'a>) -> Image<'a> {
        let relocations = file.elf.dynamic_relocations().into_iter().flatten();
        let relocated = relocations.filter_map(|(at, relocation)| {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
            let base = match (r_type, relocation.target()) {
                (R_X86_64_RELATIVE, _) => 0,
                (R_X86_64_64, RelocationTarget::Symbol(index)) => {
                    let table = file.elf.dynamic_symbol_table()?;
                    let symbol = table.symbol_by_index(index).ok()?;
                    (!symbol.is_undefined()).then(|| symbol.address())?
                }
                _ => return None,
            };
            Some((at, base.wrapping_add_signed(relocation.addend())))
        });
        Image { file, relocated: relocated.collect() }
    }

    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        self.file.code(at..at.checked_add(N as u64)?)?.try_into().ok()
    }

    fn word(&self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn pointer(&self, at: u64) -> Option<u64> {
        let pointer = self.relocated.get(&at).copied().or_else(|| self.bytes(at).map(u64::from_le_bytes));
        pointer.filter(|pointer| *pointer != 0)
    }

    /// The address, if a structure at it does not run over the address space.
    fn structure(&self, at: u64) -> Option<u64> {
        Some(at).filter(|at| *at < u64::MAX - 64)
    }

    fn text(&self, at: u64) -> Option<String> {
        const TEXT_MAX: usize = 4096;
        let (address, bytes, _) = self
            .file
            .parts()
            .find(|(address, bytes, _)| at.checked_sub(*address).is_some_and(|from| from < bytes.len() as u64))?;
        let text = bytes.get(usize::try_from(at - address).ok()?..)?;
        let end = text.iter().take(TEXT_MAX).position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    fn pointed_text(&self, at: u64) -> Option<String> {
        self.text(self.pointer(at)?)
    }

    /// `struct lttng_ust_type_common` and what follows it; `before` is the name of the field before, a sequence's length if it names none.
    fn type_name(&self, at: u64, before: &str, depth: u32) -> Option<String> {
        let inner = |at| (depth > 0).then(|| self.type_name(at, before, depth - 1)).flatten();
        match self.word(at)? {
            0 => {
                let (bits, [_, _, flags, _]) = (self.word(at + 8)?, self.bytes(at + 12)?);
                Some(format!("{}int{bits}_t", if flags & 1 == 0 { "u" } else { "" }))
            }
            1 => Some("string".to_owned()),
            2 => match self.word(at + 8)?.checked_add(self.word(at + 12)?)? {
                32 => Some("float".to_owned()),
                64 => Some("double".to_owned()),
                bits => Some(format!("float{bits}_t")),
            },
            4 => inner(self.structure(self.pointer(at + 16)?)?),
            5 => Some(format!("{}[{}]", inner(self.structure(self.pointer(at + 8)?)?)?, self.word(at + 16)?)),
            6 => {
                let length = self.pointer(at + 8).and_then(|at| self.text(at));
                Some(format!(
                    "{}[{}]",
                    inner(self.structure(self.pointer(at + 16)?)?)?,
                    length.as_deref().unwrap_or(before)
                ))
            }
            _ => None,
        }
    }
}

/// By provider and name.
#[derive(Default)]
struct Found(BTreeMap<(String, String), LttngTracepoint>);

impl Found {
    fn entry(&mut self, provider: &str, name: String, signature: Option<String>) -> &mut LttngTracepoint {
        let key = (provider.to_owned(), name.clone());
        self.0.entry(key).or_insert_with(|| LttngTracepoint {
            provider: provider.to_owned(),
            name,
            arguments: signature.map(|text| arguments(&text)).unwrap_or_default(),
            ..LttngTracepoint::default()
        })
    }

    /// `struct lttng_ust_tracepoint`.
    fn take_used(&mut self, image: &Image<'_>, at: u64) -> Option<()> {
        let (provider, name) = (image.pointed_text(at + 8)?, image.pointed_text(at + 16)?);
        let tracepoint = self.entry(&provider, name, image.pointed_text(at + 48));
        (tracepoint.state, tracepoint.probes) = (Some(at + 24), Some(at + 32));
        Some(())
    }

    /// `struct lttng_ust_probe_desc`.
    fn take_recorded(&mut self, image: &Image<'_>, at: u64) -> Option<()> {
        let at = image.structure(at)?;
        let (provider, events, count) = (image.pointed_text(at + 8)?, image.pointer(at + 16)?, image.word(at + 24)?);
        for index in 0..u64::from(count.min(FIELDS_MAX)) {
            let event = image.structure(image.pointer(events.checked_add(index * 8)?)?)?;
            let class = image.structure(image.pointer(event + 24)?)?;
            let name = image.pointed_text(event + 8)?;
            let tracepoint = self.entry(&provider, name, image.pointed_text(class + 32));
            tracepoint.function = image.pointer(class + 24);
            let (fields, count) = (image.pointer(class + 8), image.word(class + 16)?);
            tracepoint.fields.clear();
            for index in 0..u64::from(count.min(FIELDS_MAX)) {
                let field = image.structure(image.pointer(fields?.checked_add(index * 8)?)?)?;
                let kind = image.structure(image.pointer(field + 16)?)?;
                let before = tracepoint.fields.last().map_or("", |field| field.name.as_str());
                let type_name = image.type_name(kind, before, 2)?;
                tracepoint.fields.push(LttngField { name: image.pointed_text(field + 8)?, type_name });
            }
        }
        Some(())
    }
}

/// All tracepoints that the file uses or records. Damage leaves some out.
pub(crate) fn tracepoints(file: &File<'_>) -> Vec<LttngTracepoint> {
    let symbols = file.elf.symbols().chain(file.elf.dynamic_symbols());
    let providers = symbols.filter(|symbol| {
        let is_data = symbol.kind() == SymbolKind::Data && !symbol.is_undefined();
        is_data && symbol.name().is_ok_and(|name| name.starts_with(PROVIDERS))
    });
    let providers: BTreeSet<u64> = providers.map(|symbol| symbol.address()).collect();
    let used = file.section(POINTERS);
    if used.is_none() && providers.is_empty() {
        return vec![];
    }
    let (image, mut found) = (Image::of(file), Found::default());
    if let Some((bytes, start)) = used {
        for index in 0..(bytes.len() as u64 / 8).min(u64::from(FIELDS_MAX)) {
            let at = start.checked_add(index * 8).and_then(|at| image.structure(image.pointer(at)?));
            at.and_then(|at| found.take_used(&image, at));
        }
    }
    for at in providers {
        found.take_recorded(&image, at);
    }
    found.0.into_values().collect()
}

/// Types and names in turn, as `LTTNG_UST_TP_ARGS` has them.
fn arguments(signature: &str) -> Vec<Argument> {
    let parts: Vec<&str> = signature.split(',').map(str::trim).collect();
    let (mut registers, mut on_stack) = (REGISTERS.iter(), 0);
    let (mut vectors, mut known) = (0, true);
    let pairs = parts.chunks_exact(2).filter(|pair| pair[0] != "void");
    let argument = pairs.map(|pair| {
        let (kind, bytes) = typed(pair[0]).unwrap_or((Kind::Unsigned, 0));
        known &= bytes != 0;
        // The return address is on top of the stack.
        let mut next_on_stack = || {
            on_stack += 8;
            At::Memory { base: Some(Register::Rsp), index: None, displacement: on_stack }
        };
        let at = match kind {
            _ if !known => At::Unreadable {
                why: format!("{}: it, or one before it, has a type whose definition is not known", pair[1]),
            },
            Kind::Float if vectors < 8 => {
                vectors += 1;
                At::Unreadable { why: format!("{}: programs do not see vector registers", pair[1]) }
            }
            Kind::Float => next_on_stack(),
            _ => {
                registers.next().map_or_else(next_on_stack, |register| At::Register { register: *register, shift: 0 })
            }
        };
        let place =
            ArgumentPlace { bytes: bytes.max(1), signed: kind == Kind::Signed, float: kind == Kind::Float, at };
        Argument { name: Some(pair[1].to_owned()), type_name: Some(pair[0].to_owned()), kind, place, length: None }
    });
    argument.collect()
}

/// Kind and bytes of a type of C, of those that do not depend on a definition of the program.
fn typed(text: &str) -> Option<(Kind, u8)> {
    let mut words: Vec<&str> =
        text.split_whitespace().filter(|word| !matches!(*word, "const" | "volatile")).collect();
    if text.contains('*') {
        let bare: String =
            text.split(['*', ' ']).filter(|word| !matches!(*word, "const" | "volatile" | "restrict")).collect();
        let is_text = bare == "char" && text.matches('*').count() == 1;
        return Some((if is_text { Kind::Text } else { Kind::Pointer }, 8));
    }
    let unsigned = words.contains(&"unsigned");
    words.retain(|word| !matches!(*word, "unsigned" | "signed"));
    let integer = |bytes| Some((if unsigned { Kind::Unsigned } else { Kind::Signed }, bytes));
    match words.as_slice() {
        ["char"] => integer(1),
        ["short"] | ["short", "int"] => integer(2),
        [] | ["int"] => integer(4),
        ["long"] | ["long", "int"] | ["long", "long"] | ["long", "long", "int"] => integer(8),
        ["int8_t"] => Some((Kind::Signed, 1)),
        ["int16_t"] => Some((Kind::Signed, 2)),
        ["int32_t" | "pid_t"] => Some((Kind::Signed, 4)),
        ["int64_t" | "ssize_t" | "intptr_t" | "ptrdiff_t" | "off_t"] => Some((Kind::Signed, 8)),
        ["uint8_t"] => Some((Kind::Unsigned, 1)),
        ["uint16_t"] => Some((Kind::Unsigned, 2)),
        ["uint32_t" | "uid_t" | "gid_t"] => Some((Kind::Unsigned, 4)),
        ["uint64_t" | "size_t" | "uintptr_t"] => Some((Kind::Unsigned, 8)),
        ["bool" | "_Bool"] => Some((Kind::Bool, 1)),
        ["float"] => Some((Kind::Float, 4)),
        ["double"] => Some((Kind::Float, 8)),
        ["enum", _] => Some((Kind::Signed, 4)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_where_the_abi_puts_them() {
        let found = arguments(
            "int, a, const char *, b, double, c, int, d, void *, e, long, f, long, g, unsigned char, h, size_t, i, my_t, j, int, k",
        );
        let at = |index: usize| found[index].place.at.clone();
        assert_eq!(at(0), At::Register { register: Register::Rsi, shift: 0 });
        assert_eq!((found[1].kind, found[4].kind, found[7].kind), (Kind::Text, Kind::Pointer, Kind::Unsigned));
        assert!([2, 9, 10].iter().all(|index| matches!(at(*index), At::Unreadable { .. })));
        assert_eq!(at(5), At::Register { register: Register::R9, shift: 0 });
        assert_eq!(at(6), At::Memory { base: Some(Register::Rsp), index: None, displacement: 8 });
        assert_eq!(at(8), At::Memory { base: Some(Register::Rsp), index: None, displacement: 24 });
        assert_eq!(found[7].name.as_deref(), Some("h"));
        assert!(arguments("void").is_empty() && arguments("").is_empty());
    }
}
