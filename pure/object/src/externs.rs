//! What a program uses of the kernel by name: configuration values, variables, functions.
//!
//! Mirrors src/libbpf.c:bpf_object__collect_externs, process_kconfig_line and bpf_object__resolve_externs.

use object::elf::STB_WEAK;
use ring3_btf::{Btf, encoding, kind, linkage};
use ring3_uapi::helper;

use crate::error::Error;
use crate::file::File;
use crate::kernel::essential;
use crate::relocate::types_are_compatible;
use crate::{HostSymbols, Kernel, Settings};

pub(crate) const CONFIGURATION: &str = ".kconfig";
pub(crate) const SYMBOLS: &str = ".ksyms";

/// What a configuration value is like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Bool,
    Tristate,
    Char,
    Int,
    Text,
}

enum Kind {
    /// A value of `.kconfig`, and where it is there.
    Value { form: Form, signed: bool, align: u32, size: u32, at: u32 },
    /// A name of `.ksyms`.
    Symbol,
}

struct Extern<'d> {
    /// Index of the symbol.
    symbol: usize,
    name: &'d str,
    weak: bool,
    /// `VAR` or `FUNC`.
    of: u32,
    kind: Kind,
}

/// All of them, in libbpf's order.
pub(crate) struct Externs<'d> {
    all: Vec<Extern<'d>>,
}

/// What instructions that refer to an extern get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// Its place in the configuration.
    Value(u32),
    /// Its address; 0: there is none.
    Address(u64),
    /// A variable, by type.
    Variable(u32),
    /// A function, by type.
    Function(u32),
    /// A function of an extension's host, or of the agent, by number.
    HostFunction(u32),
    /// A function that calls name by this number.
    Number(u32),
    /// No such function. The number is libbpf's of the extern.
    NoFunction(u32),
}

/// By index of symbol.
pub(crate) type AllResolved = std::collections::BTreeMap<usize, Resolved>;

impl<'d> Externs<'d> {
    pub(crate) fn collect(file: &File<'d>, types: Option<&Btf>) -> Result<Externs<'d>, Error> {
        let mut all = vec![];
        for (index, symbol) in file.symbols.iter().enumerate().filter(|(_, symbol)| symbol.is_extern()) {
            let types = types.ok_or_else(|| {
                let name = symbol.name;
                Error::Unsupported(format!(
                    "it has no BTF, which says what the extern {name} is; compile it with `clang -g`"
                ))
            })?;
            let untold = || Error::corrupt(format!("no type of the extern {}", symbol.name));
            let of = extern_named(types, symbol.name).ok_or_else(untold)?;
            let mut sections = types.of_kind(kind::DATASEC);
            let section = sections.find(|(section, _)| types.variables(*section).any(|found| found.of == of));
            let kind = match section {
                Some((_, name)) if name == CONFIGURATION.as_bytes() => value(types, of).ok_or_else(|| {
                    Error::Unsupported(format!("the type of the configuration value {}", symbol.name))
                })?,
                Some((_, name)) if name == SYMBOLS.as_bytes() => Kind::Symbol,
                _ => return Err(Error::Unsupported(format!("the section of the extern {}", symbol.name))),
            };
            all.push(Extern { symbol: index, name: symbol.name, weak: symbol.binding == STB_WEAK, of, kind });
        }
        all.sort_by_key(|found| match found.kind {
            Kind::Value { align, size, .. } => (0, u32::MAX - align, size, found.name),
            Kind::Symbol => (1, 0, 0, found.name),
        });
        let mut end = 0u32;
        for found in &mut all {
            if let Kind::Value { align, size, at, .. } = &mut found.kind {
                *at = end.checked_next_multiple_of(*align).ok_or(Error::types("configuration values"))?;
                end = at.checked_add(*size).ok_or(Error::types("configuration values"))?;
            }
        }
        Ok(Externs { all })
    }

    /// Where the configuration values are, by name, and the bytes of all.
    pub(crate) fn places(&self) -> (Vec<(&'d str, u32)>, u32) {
        let mut end = 0;
        let places = self.all.iter().filter_map(|found| match found.kind {
            Kind::Value { at, size, .. } => {
                end = at + size;
                Some((found.name, at))
            }
            Kind::Symbol => None,
        });
        (places.collect(), end)
    }

    /// Whether there is an extern of that name in `.ksyms`.
    pub(crate) fn has_symbol(&self, name: &[u8]) -> bool {
        self.all.iter().any(|found| found.name.as_bytes() == name && matches!(found.kind, Kind::Symbol))
    }

    /// The bytes of the configuration, if any is asked for.
    pub(crate) fn configuration(&self, settings: &Settings) -> Result<Option<Vec<u8>>, Error> {
        let (_, bytes) = self.places();
        if bytes == 0 {
            return Ok(None);
        }
        if bytes > BYTES_MAX {
            return Err(Error::Unsupported(format!("{bytes} bytes of configuration")));
        }
        let mut image = vec![0; bytes as usize];
        for found in &self.all {
            let Kind::Value { form, signed, size, at, .. } = found.kind else { continue };
            let number = match found.name {
                "LINUX_KERNEL_VERSION" => Some(u64::from(settings.version)),
                "LINUX_HAS_BPF_COOKIE" => Some(u64::from(settings.cookies)),
                "LINUX_HAS_SYSCALL_WRAPPER" => Some(u64::from(settings.syscall_wrappers)),
                _ => None,
            };
            let text = settings.config.get(found.name).filter(|_| found.name.starts_with("CONFIG_"));
            let place = &mut image[at as usize..][..size as usize];
            let told = match (number, text) {
                (Some(number), _) => put_number(place, form, signed, number),
                (_, Some(text)) => put_text(place, form, signed, text),
                _ if found.weak => Some(()),
                _ => return Err(Error::Missing(format!("configuration value {}", found.name))),
            };
            told.ok_or_else(|| Error::Unsupported(format!("the value of {} as this type", found.name)))?;
        }
        Ok(Some(image))
    }

    pub(crate) fn resolve(
        &self,
        types: Option<&Btf>,
        kernel: &Kernel,
        settings: &Settings,
    ) -> Result<AllResolved, Error> {
        let mut all = AllResolved::new();
        for (number, found) in (0..).zip(&self.all) {
            let resolved = match (found.kind_place(), types) {
                (Some(at), _) => Some(Resolved::Value(at)),
                (None, Some(types)) => found.resolve_symbol(types, kernel, settings, number)?,
                (None, None) => None,
            };
            let resolved = resolved.ok_or_else(|| Error::NoSymbol(found.name.to_owned()))?;
            all.insert(found.symbol, resolved);
        }
        Ok(all)
    }
}

impl Extern<'_> {
    fn kind_place(&self) -> Option<u32> {
        match self.kind {
            Kind::Value { at, .. } => Some(at),
            Kind::Symbol => None,
        }
    }

    fn resolve_symbol(
        &self,
        types: &Btf,
        kernel: &Kernel,
        settings: &Settings,
        number: u32,
    ) -> Result<Option<Resolved>, Error> {
        let function = types.kind(self.of) == Some(kind::FUNC);
        if let Some(host) = &settings.host {
            return Ok(self.resolve_in_host(host, function));
        }
        let of = types.size_or_type(self.of);
        if !function && types.plain(of) == 0 {
            let address = settings.symbols.get(self.name).copied();
            return Ok(address.or(self.weak.then_some(0)).map(Resolved::Address));
        }
        if let Some(number) = settings.functions.get(self.name).filter(|_| function) {
            return Ok(Some(Resolved::Number(*number)));
        }
        let there = kernel.symbol(essential(self.name.as_bytes()), function);
        let Some(there) = there else {
            let absent = if function { Resolved::NoFunction(number) } else { Resolved::Address(0) };
            return Ok(self.weak.then_some(absent));
        };
        if !types_are_compatible(types, of, kernel.btf(), kernel.btf().size_or_type(there)) {
            // A function that is another than the program thinks is as good as none.
            let absent = function && self.weak;
            return absent
                .then_some(Some(Resolved::NoFunction(number)))
                .ok_or_else(|| Error::NoSymbol(format!("{} of that type", self.name)));
        }
        Ok(Some(if function { Resolved::Function(there) } else { Resolved::Variable(there) }))
    }
}

impl Extern<'_> {
    fn resolve_in_host(&self, host: &HostSymbols, function: bool) -> Option<Resolved> {
        let index = |names: &[String]| names.iter().position(|name| name == self.name).map(|index| index as u32);
        if !function {
            return index(&host.variables).map(Resolved::Variable);
        }
        let number = |prefix: &str, first: u32, names: &[&str]| {
            let name = self.name.strip_prefix(prefix)?;
            names.iter().position(|known| *known == name).map(|index| first + index as u32)
        };
        let of_agent = || {
            number("ring3_", helper::OWN_FIRST, helper::OWN_NAMES)
                .or_else(|| number("bpf_", helper::KFUNC_FIRST, helper::KFUNC_NAMES))
        };
        let of_host = index(&host.functions).map(|index| helper::HOST_FUNCTION_FIRST + index);
        of_host.or_else(of_agent).map(Resolved::HostFunction)
    }
}

/// Configuration that is taken at most.
const BYTES_MAX: u32 = 1 << 16;

fn extern_named(types: &Btf, name: &str) -> Option<u32> {
    let found = |kind| {
        let mut all = types.of_kind(kind);
        all.find(|(id, known)| *known == name.as_bytes() && types.linkage(*id) == Some(linkage::EXTERN))
    };
    found(kind::VAR).or_else(|| found(kind::FUNC)).map(|(id, _)| id)
}

/// Mirrors src/libbpf.c:find_kcfg_type.
fn value(types: &Btf, of: u32) -> Option<Kind> {
    let (_, size) = types.sized(of)?;
    let plain = types.plain(types.size_or_type(of));
    let scalar = |id: u32| match types.kind(id)? {
        kind::INT => {
            let (how, size) = (types.int_encoding(id), types.size_or_type(id));
            match size {
                1 if how & encoding::BOOL != 0 => Some(Form::Bool),
                1 => Some(Form::Char),
                2 | 4 | 8 if how & encoding::BOOL == 0 => Some(Form::Int),
                _ => None,
            }
        }
        kind::ENUM if types.name_of(id) == b"libbpf_tristate" && types.size_or_type(id) == 4 => Some(Form::Tristate),
        _ => None,
    };
    let (form, element) = match types.array(plain) {
        Some(array) => {
            let element = types.plain(array.of);
            ((array.count != 0 && scalar(element) == Some(Form::Char)).then_some(Form::Text)?, element)
        }
        None => (scalar(plain)?, plain),
    };
    let align = types.size_or_type(element).clamp(1, 8);
    (size <= BYTES_MAX).then_some(Kind::Value {
        form,
        signed: types.int_encoding(element) & encoding::SIGNED != 0,
        align,
        size,
        at: 0,
    })
}

fn put_text(place: &mut [u8], form: Form, signed: bool, text: &str) -> Option<()> {
    match (form, text) {
        (Form::Bool, "y" | "n") => put_number(place, form, signed, u64::from(text == "y")),
        (Form::Tristate, "y" | "m" | "n") => {
            // `enum libbpf_tristate`.
            let value: u32 = match text {
                "y" => 1,
                "m" => 2,
                _ => 0,
            };
            place.copy_from_slice(&value.to_le_bytes());
            Some(())
        }
        (Form::Char, "y" | "m" | "n") => {
            place[0] = text.as_bytes()[0];
            Some(())
        }
        (Form::Text, _) => {
            let text = text.strip_prefix('"')?.strip_suffix('"')?.as_bytes();
            let length = text.len().min(place.len() - 1);
            place[..length].copy_from_slice(&text[..length]);
            Some(())
        }
        _ => put_number(place, form, signed, number(text)?),
    }
}

/// A number as `strtoull(3)` reads it.
fn number(text: &str) -> Option<u64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    value.ok().map(|value| if negative { value.wrapping_neg() } else { value })
}

fn put_number(place: &mut [u8], form: Form, signed: bool, value: u64) -> Option<()> {
    let bits = place.len() as u32 * 8;
    let fits = match form {
        Form::Bool => value <= 1,
        Form::Int | Form::Char if bits >= 64 => bits == 64,
        Form::Int | Form::Char if signed => value.wrapping_add(1 << (bits - 1)) < 1 << bits,
        Form::Int | Form::Char => value >> bits == 0,
        Form::Tristate | Form::Text => false,
    };
    fits.then(|| place.copy_from_slice(&value.to_le_bytes()[..place.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_values_must_fit_their_types() {
        let mut place = [0; 2];
        assert_eq!(put_text(&mut place, Form::Int, false, "0x1234"), Some(()));
        assert_eq!(place, [0x34, 0x12]);
        assert_eq!(put_text(&mut place, Form::Int, false, "65536"), None);
        assert_eq!(put_text(&mut place, Form::Int, true, "-1"), Some(()));
        assert_eq!(place, [0xff, 0xff]);
        assert_eq!(put_text(&mut place, Form::Int, false, "y"), None);
        let mut text = [0xaa; 4];
        text.fill(0);
        assert_eq!(put_text(&mut text, Form::Text, false, "\"abcdef\""), Some(()));
        assert_eq!(&text, b"abc\0");
    }
}
