//! From LLVM's object file to code that the caller can place. The file comes from another process: whatever it is, the result is
//! code or an error.

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

/// Bytes of code and constants at most: twice what the largest program may need.
const CODE_BYTES_MAX: usize = 1 << 26;
const TEXT: &str = ".text";
/// The strictest alignment of a section. (LLVM aligns code to 16 bytes, and tables to 64 at most.)
const ALIGN_MAX: u64 = 4096;

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
/// outside mean, `insns` is how many instructions the program has.
///
/// # Errors
/// There is something in it that code must not have.
pub(crate) fn code(file: &[u8], outside: &[Target], insns: usize) -> Result<Code, String> {
    let file = ElfFile64::<Endianness>::parse(file).map_err(|error| error.to_string())?;
    let text = file.section_by_name(TEXT).ok_or("no code")?;
    let text_bytes = text.data().map_err(|error| error.to_string())?;
    check_registers(text_bytes)?;
    let text_bytes = text_bytes.len();
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
        if section.align() > ALIGN_MAX {
            return Err(format!("a section that is aligned to {:#x}", section.align()));
        }
        let start = code.bytes.len().next_multiple_of(section.align().max(1) as usize);
        code.bytes.resize(start, 0xcc);
        code.bytes.extend_from_slice(section.data().map_err(|error| error.to_string())?);
        // Sections may overlap.
        if code.bytes.len() > CODE_BYTES_MAX {
            return Err("so much code is too much".into());
        }
        places.insert(section.index(), start);
    }
    let place_of = |symbol: &object::read::elf::ElfSymbol64<'_, '_>| match symbol.section() {
        SymbolSection::Section(section) => {
            let place = usize::try_from(symbol.address()).ok()?.checked_add(*places.get(&section)?)?;
            (place <= CODE_BYTES_MAX).then_some(place)
        }
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
            let addend = i32::try_from(relocation.addend()).map_err(|_| "a distant relocation")?.into();
            let offset = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(*start));
            let bytes = offset.and_then(|offset| code.bytes.get_mut(offset..)?.first_chunk_mut());
            let (Some(offset), Some(bytes)) = (offset, bytes) else { return Err("a relocation of nothing".into()) };
            if let Some(place) = place_of(&symbol) {
                let distance = place as i64 + addend - offset as i64;
                *bytes = (distance as i32).to_le_bytes();
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
    let entry = place_of_name(ENTRY).unwrap_or(0);
    if entry >= text_bytes {
        return Err("the entry is no code".into());
    }
    code.entry = entry as u32;
    // What is left of subprograms LLVM puts where it likes: all but the entry goes by the program's name.
    code.functions = if code.entry == 0 { vec![0] } else { vec![0, code.entry] };
    code.pc_map = instructions(&file)?;
    code.pc_map.retain(|(at, instruction)| (*at as usize) < text_bytes && (*instruction as usize) < insns);
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
        let address = u32::try_from(row.address()).ok().filter(|_| !row.end_sequence());
        found.extend(address.zip(instruction));
    }
    found.sort_by_key(|(at, _)| *at);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Relocation, StandardSection, Symbol, SymbolSection};
    use object::{Architecture, BinaryFormat, Endianness, RelocationFlags, SymbolFlags, SymbolKind, SymbolScope};
    use ring3_jit::Target;

    use super::{MAIN, OUTSIDE, R_X86_64_PLT32, check_registers, code};

    /// `call outside.0; ret`, with a constant behind it.
    fn file() -> Vec<u8> {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let (text, constants) =
            (file.section_id(StandardSection::Text), file.section_id(StandardSection::ReadOnlyData));
        file.append_section_data(text, &[0xe8, 0, 0, 0, 0, 0xc3], 16);
        file.append_section_data(constants, &[7; 64], 64);
        let mut symbol = |name: &str, section| {
            file.add_symbol(Symbol {
                name: name.into(),
                value: 0,
                size: 0,
                kind: SymbolKind::Text,
                scope: SymbolScope::Linkage,
                weak: false,
                section,
                flags: SymbolFlags::None,
            })
        };
        symbol(MAIN, SymbolSection::Section(text));
        let symbol = symbol(&format!("{OUTSIDE}0"), SymbolSection::Undefined);
        let flags = RelocationFlags::Elf { r_type: R_X86_64_PLT32 };
        file.add_relocation(text, Relocation { offset: 1, symbol, addend: -4, flags }).expect("valid");
        file.write().expect("valid")
    }

    #[test]
    fn whatever_an_object_file_says_is_code_or_an_error() {
        let (good, outside) = (file(), [Target::Helper(1)]);
        let placed = code(&good, &outside, 1).expect("valid");
        assert_eq!((placed.bytes.len(), placed.entry, placed.relocations.len()), (128, 0, 1));
        let mut refused = 0;
        for at in 0..good.len() {
            for byte in [0, 1, 4, 0x40, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                match code(&bad, &outside, 1) {
                    Ok(code) => {
                        let is_inside = |at: u32, bytes| at as usize + bytes <= code.bytes.len();
                        assert!(is_inside(code.entry, 1), "{at:#x} = {byte:#x}");
                        assert!(code.relocations.iter().all(|it| is_inside(it.offset, 4)), "{at:#x} = {byte:#x}");
                    }
                    Err(_) => refused += 1,
                }
            }
            assert!(at == 0 || code(&good[..at], &outside, 1).is_err(), "cut to {at} bytes");
        }
        assert!(refused > 100, "{refused}");
    }

    #[test]
    fn code_with_vector_registers_is_refused() {
        assert_eq!(check_registers(&[0x48, 0x8b, 0x07, 0xc3]), Ok(()), "mov rax, [rdi]; ret");
        for vectors in [&[0x0f, 0x10, 0x07][..], &[0xd9, 0xe8], &[0xc5, 0xf8, 0x90, 0xc9]] {
            assert!(check_registers(vectors).is_err(), "{vectors:x?}: movups, fld1 or kmovw");
        }
    }
}
