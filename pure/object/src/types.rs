//! An object's types as the kernel takes them: sections with sizes and places, externs that are variables.
//!
//! Mirrors src/libbpf.c:bpf_object_fixup_btf and what bpf_object__collect_externs does to types.

use object::elf::{STB_GLOBAL, STB_WEAK, STT_FUNC};
use ring3_btf::{Btf, Draft, kind, linkage};

use crate::Error;
use crate::externs::{CONFIGURATION, Externs, SYMBOLS};
use crate::file::File;

/// Words of a type before its own.
const COMMON: usize = 3;
/// Words of a section's variable: type, place, size.
const PLACED: usize = 3;
/// Bytes that an extern pretends to have.
const EXTERN_BYTES: u32 = 4;
const VAR_INFO: u32 = kind::VAR << 24;
const LINKAGE_MASK: u32 = 0xffff;

pub(crate) fn fixed(types: &Btf, file: &File<'_>, externs: &Externs<'_>) -> Result<Vec<u8>, Error> {
    let mut draft = Draft::new(types);
    for (section, name) in types.of_kind(kind::DATASEC) {
        let name = std::str::from_utf8(name).map_err(|_| Error::types("a section's name"))?;
        match name {
            CONFIGURATION => place_configuration(&mut draft, types, section, externs),
            SYMBOLS => place_symbols(&mut draft, types, section, externs)?,
            _ => place_variables(&mut draft, types, section, file, name)?,
        }
        sort_variables(&mut draft, types, section);
    }
    for (function, name) in types.of_kind(kind::FUNC) {
        let hidden = |symbol: &crate::file::Symbol<'_>| {
            symbol.hidden && symbol.kind == STT_FUNC && symbol.name.as_bytes() == name
        };
        if types.linkage(function) == Some(linkage::GLOBAL) && file.symbols.iter().any(hidden) {
            set_function_linkage(&mut draft, function, linkage::STATIC);
        }
    }
    Ok(draft.into_bytes())
}

fn set_function_linkage(draft: &mut Draft, function: u32, linkage: u32) {
    let info = draft.word(function, 1);
    draft.set(function, 1, info & !LINKAGE_MASK | linkage);
}

fn place_configuration(draft: &mut Draft, types: &Btf, section: u32, externs: &Externs<'_>) {
    let (places, bytes) = externs.places();
    draft.set(section, 2, bytes);
    for (index, variable) in types.variables(section).enumerate() {
        let name = types.name_of(variable.of);
        let place = places.iter().find(|(known, _)| known.as_bytes() == name);
        draft.set(variable.of, COMMON, linkage::GLOBAL);
        draft.set(section, COMMON + index * PLACED + 1, place.map_or(0, |(_, at)| *at));
    }
}

fn place_symbols(draft: &mut Draft, types: &Btf, section: u32, externs: &Externs<'_>) -> Result<(), Error> {
    let mut ints = types.of_kind(kind::INT).map(|(id, _)| id);
    let int = ints.find(|id| types.size_or_type(*id) == 4);
    let int = int.ok_or(Error::types("externs, but no integer of 4 bytes"))?;
    let is_function = |id| types.kind(id) == Some(kind::FUNC);
    // Functions cannot be in a section: one variable stands for all of them.
    let dummy = types.variables(section).any(|found| is_function(found.of)).then(|| {
        let name = draft.add_text("dummy_ksym");
        (name, draft.add(&[name, VAR_INFO, int, linkage::GLOBAL]))
    });
    let mut end = 0;
    for (index, variable) in types.variables(section).enumerate() {
        if !externs.has_symbol(types.name_of(variable.of)) {
            return Err(Error::types("an extern without a symbol"));
        }
        let word = COMMON + index * PLACED;
        match dummy {
            Some((name, dummy)) if is_function(variable.of) => {
                let prototype = types.size_or_type(variable.of);
                for (parameter, (known, of)) in types.parameters(prototype).enumerate() {
                    if of != 0 && known.is_empty() {
                        draft.set(prototype, COMMON + parameter * 2, name);
                    }
                }
                draft.set(section, word, dummy);
                set_function_linkage(draft, variable.of, linkage::GLOBAL);
            }
            _ => {
                draft.set(variable.of, COMMON, linkage::GLOBAL);
                draft.set(variable.of, 2, int);
            }
        }
        draft.set(section, word + 1, end);
        draft.set(section, word + 2, EXTERN_BYTES);
        end += EXTERN_BYTES;
    }
    draft.set(section, 2, end);
    Ok(())
}

fn place_variables(draft: &mut Draft, types: &Btf, section: u32, file: &File<'_>, name: &str) -> Result<(), Error> {
    let fresh = types.size_or_type(section) == 0;
    if fresh {
        let size = file.section(name).map(|(_, found)| found.size as u32).filter(|size| *size != 0);
        let size = size.ok_or_else(|| Error::corrupt(format!("variables, but no section {name}")))?;
        draft.set(section, 2, size);
    }
    for (index, variable) in types.variables(section).enumerate() {
        if types.linkage(variable.of) != Some(linkage::GLOBAL) {
            continue;
        }
        let name = types.name_of(variable.of);
        let mut symbols = file.symbols.iter();
        let symbol = symbols.find(|symbol| {
            symbol.name.as_bytes() == name
                && matches!(symbol.binding, STB_GLOBAL | STB_WEAK)
                && symbol.kind == object::elf::STT_OBJECT
        });
        let symbol = symbol.ok_or(Error::types("a variable without a symbol"))?;
        if fresh {
            draft.set(section, COMMON + index * PLACED + 1, symbol.value as u32);
        }
        if symbol.hidden {
            draft.set(variable.of, COMMON, linkage::STATIC);
        }
    }
    Ok(())
}

fn sort_variables(draft: &mut Draft, types: &Btf, section: u32) {
    let words = |index: usize| [0, 1, 2].map(|word| COMMON + index * PLACED + word);
    let mut all: Vec<[u32; PLACED]> =
        (0..types.len_of(section)).map(|index| words(index).map(|word| draft.word(section, word))).collect();
    all.sort_by_key(|[_, at, _]| *at);
    for (index, variable) in all.iter().enumerate() {
        for (word, value) in words(index).into_iter().zip(variable) {
            draft.set(section, word, *value);
        }
    }
}
