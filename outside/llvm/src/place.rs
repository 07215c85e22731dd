//! From LLVM's object file to code that the caller can place.

use std::collections::HashMap;

use gimli::{DebugLine, DebugLineOffset, LittleEndian};
use iced_x86::{CpuidFeature, Decoder, DecoderOptions, InstructionInfoFactory, UsedRegister};
use object::elf::{R_X86_64_64, R_X86_64_PC32, R_X86_64_PLT32};
use object::read::elf::ElfFile64;
use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionIndex, SectionKind,
    SymbolSection,
};
use ring3_jit::{Code, Relocation, Target};

use crate::text::{ENTRY, MAIN, OUTSIDE, instruction_of};

const TEXT: &str = ".text";

/// Programs run in the midst of functions whose vector registers nobody has saved.
fn check_registers(text: &[u8]) -> Result<(), String> {
    let mut factory = InstructionInfoFactory::new();
    for instruction in &mut Decoder::new(64, text, DecoderOptions::NONE) {
        let mut used = factory.info(&instruction).used_registers().iter().map(UsedRegister::register);
        let general = used.all(|register| register.is_gpr() || register.is_segment_register());
        if !general || instruction.is_invalid() || instruction.cpuid_features().contains(&CpuidFeature::FPU) {
            return Err(format!("the instruction at {:#x}: {instruction}", instruction.ip()));
        }
    }
    Ok(())
}

/// Lays the sections one behind the other and fills in the distances between them; `outside` are the things that symbols
/// outside mean.
///
/// # Errors
/// There is something in it that code must not have.
pub(crate) fn code(file: &[u8], outside: &[Target]) -> Result<Code, String> {
    let file = ElfFile64::<Endianness>::parse(file).map_err(|error| error.to_string())?;
    let text = file.section_by_name(TEXT).ok_or("no code")?;
    check_registers(text.data().map_err(|error| error.to_string())?)?;
    let mut code = Code::default();
    let mut places = HashMap::<SectionIndex, usize>::new();
    // The text is where control arrives: constants are behind it.
    let constants = file.sections().filter(|section| section.index() != text.index());
    for section in [text.index()].into_iter().chain(constants.map(|section| section.index())) {
        let section = file.section_by_index(section).map_err(|error| error.to_string())?;
        match section.kind() {
            SectionKind::Text if places.is_empty() => {}
            SectionKind::ReadOnlyData | SectionKind::ReadOnlyString => {}
            SectionKind::Text | SectionKind::Data | SectionKind::UninitializedData if section.size() == 0 => continue,
            SectionKind::Metadata | SectionKind::Other | SectionKind::Elf(_) | SectionKind::Note => continue,
            // The table of lines, and what comes with it.
            SectionKind::Debug | SectionKind::DebugString | SectionKind::OtherString => continue,
            kind => return Err(format!("a section {} ({kind:?})", section.name().unwrap_or_default())),
        }
        let start = code.bytes.len().next_multiple_of(section.align().max(1) as usize);
        code.bytes.resize(start, 0xcc);
        code.bytes.extend_from_slice(section.data().map_err(|error| error.to_string())?);
        places.insert(section.index(), start);
    }
    let place_of = |symbol: &object::read::elf::ElfSymbol64<'_, '_>| match symbol.section() {
        SymbolSection::Section(section) => places.get(&section).map(|start| start + symbol.address() as usize),
        _ => None,
    };
    for (section, start) in &places {
        let section = file.section_by_index(*section).map_err(|error| error.to_string())?;
        for (offset, relocation) in section.relocations() {
            let RelocationFlags::Elf { r_type: R_X86_64_PC32 | R_X86_64_PLT32 } = relocation.flags() else {
                return Err(format!("a relocation {:?}", relocation.flags()));
            };
            let RelocationTarget::Symbol(symbol) = relocation.target() else {
                return Err(format!("a relocation of {:?}", relocation.target()));
            };
            let symbol = file.symbol_by_index(symbol).map_err(|error| error.to_string())?;
            let (offset, addend) = (start + offset as usize, relocation.addend());
            if let Some(place) = place_of(&symbol) {
                let distance = place as i64 + addend - offset as i64;
                let bytes = code.bytes.get_mut(offset..offset + 4).ok_or("a relocation of nothing")?;
                bytes.copy_from_slice(&(distance as i32).to_le_bytes());
                continue;
            }
            let name = symbol.name().unwrap_or_default();
            let number = name.strip_prefix(OUTSIDE).and_then(|number| number.parse::<usize>().ok());
            let target = number.and_then(|number| outside.get(number)).ok_or_else(|| format!("a use of `{name}`"))?;
            code.relocations.push(Relocation { offset: offset as u32, addend, target: *target });
        }
    }
    let place_of_name = |name| file.symbol_by_name(name).as_ref().and_then(place_of);
    if place_of_name(MAIN) != Some(0) {
        return Err("the first function is not where it belongs".into());
    }
    code.entry = place_of_name(ENTRY).unwrap_or(0) as u32;
    // What is left of subprograms LLVM puts where it likes: all but the entry goes by the program's name.
    code.functions = if code.entry == 0 { vec![0] } else { vec![0, code.entry] };
    code.pc_map = instructions(&file)?;
    Ok(code)
}

/// Which of the program's instructions the code comes from, by offset in the text: the table of lines, which begins there.
fn instructions(file: &ElfFile64<'_>) -> Result<Vec<(u32, u32)>, String> {
    const ADDRESS_BYTES: u8 = 8;
    let Some(section) = file.section_by_name(".debug_line") else { return Ok(vec![]) };
    let from_start = |(_, relocation): (u64, object::Relocation)| {
        relocation.flags() != RelocationFlags::Elf { r_type: R_X86_64_64 } || relocation.addend() == 0
    };
    if !section.relocations().all(from_start) {
        return Err("a table of lines that does not begin where the code does".into());
    }
    let table = DebugLine::new(section.data().map_err(|error| error.to_string())?, LittleEndian);
    let program = table.program(DebugLineOffset(0), ADDRESS_BYTES, None, None).map_err(|error| error.to_string())?;
    let (mut rows, mut found) = (program.rows(), vec![]);
    while let Some((_, row)) = rows.next_row().map_err(|error| error.to_string())? {
        let instruction = row.line().and_then(|line| instruction_of(line.get()));
        if let Some(instruction) = instruction.filter(|_| !row.end_sequence()) {
            found.push((row.address() as u32, instruction));
        }
    }
    found.sort_by_key(|(at, _)| *at);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::check_registers;

    #[test]
    fn code_with_vector_registers_is_refused() {
        assert_eq!(check_registers(&[0x48, 0x8b, 0x07, 0xc3]), Ok(()), "mov rax, [rdi]; ret");
        for vectors in [&[0x0f, 0x10, 0x07][..], &[0xd9, 0xe8], &[0xc5, 0xf8, 0x90, 0xc9]] {
            assert!(check_registers(vectors).is_err(), "{vectors:x?}: movups, fld1 or kmovw");
        }
    }
}
