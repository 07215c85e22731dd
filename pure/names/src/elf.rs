//! ELF files of compiled programs, all written by one writer:
//! - [`object()`]: to be linked, code and relocations;
//! - [`symbols`]: names of what lies at fixed addresses of a process, without the code, for gdb;
//! - [`Wrapping`]: what makes an ELF file of a file that is mapped as it is, for perf.

use std::sync::Arc;

use object::Endianness;
use object::elf;
use object::write::elf::{FileHeader, ProgramHeader, Rel, SectionHeader, SectionIndex, Sym, Writer};
use object::write::{StringId, WritableBuffer};
use ring3_jit::{Code, Target};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Names;
use crate::dwarf::{self, Base};

/// Alignment of a program's first byte.
const PROGRAM_ALIGN: u64 = 64;

/// A section to be written.
#[derive(Clone, Debug, Default)]
struct Section {
    name: String,
    kind: u32,
    flags: u32,
    address: u64,
    align: u64,
    /// Of those that are not in the file, or that somebody else writes.
    bytes: u64,
    /// Somebody else writes it, at its address.
    given: bool,
    data: Vec<u8>,
    relocations: Vec<Place>,
    /// Of tables of relocations, the section that they are for; index in the list.
    of: Option<usize>,
}

/// A relocation to be written.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    kind: u32,
    symbol: usize,
    addend: i64,
}

/// A symbol to be written; those that are local first.
#[derive(Clone, Debug, Default)]
struct Symbol {
    name: String,
    section: Option<usize>,
    kind: u8,
    global: bool,
    value: u64,
    bytes: u64,
}

/// A file to be written.
#[derive(Debug, Default)]
struct File {
    kind: u16,
    /// Of a file that is mapped at its own offsets: bytes that are mapped; all but the headers comes behind them.
    mapped: Option<u64>,
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
}

/// A program to be linked with others.
#[derive(Clone, Copy, Debug)]
pub struct Linkable<'a> {
    /// Its code.
    pub code: &'a Code,
    /// Its functions, of which the first one and its entry are seen from outside.
    pub names: &'a Names,
    /// Names of its maps, by GOT slot.
    pub maps: &'a [String],
}

/// What lies at an address of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlacedSymbol {
    /// Name of its section.
    pub section: String,
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its parts: address, and names.
    pub pieces: Vec<(u64, Names)>,
}

/// The symbol of what a relocation is the distance to. A helper is called with the calling convention of
/// `docs/design/engine.md`; the others are words that hold addresses: `ring3_map_<name>` that of a map's view,
/// `ring3_data_<name>` that of its values.
fn symbol_of(target: Target, maps: &[String]) -> String {
    let map = |slot: u32| maps.get(slot as usize).map_or_else(|| slot.to_string(), |name| name.replace('.', "_"));
    match target {
        Target::Helper(id) => match ring3_uapi::helper::name(id) {
            Some(name) => format!("ring3_helper_{name}"),
            None => format!("ring3_helper_{id}"),
        },
        Target::Symbol(name) => name.to_owned(),
        Target::GotHeader(slot) => format!("ring3_map_{}", map(slot)),
        Target::GotData(slot) => format!("ring3_data_{}", map(slot)),
    }
}

/// A relocatable file (`ET_REL`): all programs in `.text`, what they call and the words that they load undefined.
pub fn object(programs: &[Linkable<'_>]) -> Vec<u8> {
    let text = Section {
        name: ".text".into(),
        kind: elf::SHT_PROGBITS,
        flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
        align: PROGRAM_ALIGN,
        ..Section::default()
    };
    let mut file = File { kind: elf::ET_REL, sections: vec![text], ..File::default() };
    file.symbols.push(Symbol { section: Some(0), kind: elf::STT_SECTION, ..Symbol::default() });
    let mut starts = vec![];
    for program in programs {
        let room = (file.sections[0].data.len() as u64).next_multiple_of(PROGRAM_ALIGN);
        file.sections[0].data.resize(room as usize, 0xcc);
        file.sections[0].data.extend_from_slice(&program.code.bytes);
        starts.push(room);
        for function in &program.names.functions {
            file.symbols.push(Symbol {
                name: function.name.clone(),
                section: Some(0),
                kind: elf::STT_FUNC,
                global: function.offset == program.code.entry,
                value: room + u64::from(function.offset),
                bytes: u64::from(function.bytes),
            });
        }
    }
    file.symbols.sort_by_key(|symbol| symbol.global);
    for (program, start) in programs.iter().zip(&starts) {
        file.refer(program, *start);
    }
    let pieces: Vec<(Base, &Names)> =
        programs.iter().zip(&starts).map(|(program, start)| (Base::Behind(0, *start), program.names)).collect();
    file.add_debug_sections(&pieces);
    file.sections.push(note_of_no_executable_stack());
    file.write()
}

/// Linkers give a program an executable stack unless each file says that it wants none.
fn note_of_no_executable_stack() -> Section {
    Section { name: ".note.GNU-stack".into(), kind: elf::SHT_PROGBITS, align: 1, ..Section::default() }
}

/// A file of symbols and lines (`ET_EXEC` whose sections are not in it), as `add-symbol-file` of gdb reads it.
pub fn symbols(placed: &[PlacedSymbol]) -> Vec<u8> {
    let mut file = File { kind: elf::ET_EXEC, ..File::default() };
    for (index, place) in placed.iter().enumerate() {
        file.sections.push(Section {
            name: place.section.clone(),
            kind: elf::SHT_NOBITS,
            flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
            address: place.address,
            align: 1,
            bytes: place.bytes,
            ..Section::default()
        });
        for (base, names) in &place.pieces {
            file.add_functions(index, *base, names);
        }
    }
    let pieces = placed.iter().flat_map(|place| &place.pieces);
    let pieces: Vec<(Base, &Names)> = pieces.map(|(base, names)| (Base::At(*base), names)).collect();
    file.add_debug_sections(&pieces);
    file.write()
}

/// What makes an ELF file (`ET_DYN`) of a file that is mapped as it is, each byte at its own offset: headers that lie in
/// front of all code, and tables that lie behind what is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapping {
    /// For offset 0.
    pub head: Vec<u8>,
    /// For the offset where the mapped part ends.
    pub tail: Vec<u8>,
}

/// Bytes of [`Wrapping::head`]: the file's header and one of a segment.
pub const HEAD_BYTES: u64 = 64 + 56;
/// Bytes of a build id, and where it is in the tail: behind the note's header and name.
const BUILD_ID: std::ops::Range<usize> = 16..36;

impl Wrapping {
    /// For `mapped` bytes, of which `text` is code, with pieces by offset. The build id, by which perf keeps copies, is made of
    /// these names and of `salt`, which tells apart what has the same names.
    pub fn new(mapped: u64, text: std::ops::Range<u64>, pieces: &[(u64, Arc<Names>)], salt: u64) -> Wrapping {
        let mut note = vec![];
        for word in [4, BUILD_ID.len() as u32, elf::NT_GNU_BUILD_ID] {
            note.extend(word.to_le_bytes());
        }
        note.extend(b"GNU\0");
        note.extend([0; BUILD_ID.end - BUILD_ID.start]);
        let note = Section {
            name: ".note.gnu.build-id".into(),
            kind: elf::SHT_NOTE,
            align: 4,
            data: note,
            ..Section::default()
        };
        let text = Section {
            name: ".text".into(),
            kind: elf::SHT_PROGBITS,
            flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
            address: text.start,
            align: 1,
            bytes: text.end - text.start,
            given: true,
            ..Section::default()
        };
        let mut file = File { kind: elf::ET_DYN, mapped: Some(mapped), sections: vec![note, text], symbols: vec![] };
        for (base, names) in pieces {
            file.add_functions(1, *base, names);
        }
        let pieces: Vec<(Base, &Names)> = pieces.iter().map(|(base, names)| (Base::At(*base), &**names)).collect();
        file.add_debug_sections(&pieces);
        let mut parts = Parts { mapped: mapped as usize, at: 0, head: vec![], tail: vec![] };
        file.write_to(&mut parts);
        let Parts { head, mut tail, .. } = parts;
        let digest = Sha256::new().chain_update(salt.to_le_bytes()).chain_update(&tail).finalize();
        tail[BUILD_ID].copy_from_slice(&digest[..BUILD_ID.len()]);
        Wrapping { head, tail }
    }
}

/// A file of which only the ends are written.
struct Parts {
    mapped: usize,
    at: usize,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl WritableBuffer for Parts {
    fn len(&self) -> usize {
        self.at
    }

    fn reserve(&mut self, _: usize) -> Result<(), ()> {
        Ok(())
    }

    fn resize(&mut self, new_len: usize) {
        self.at = new_len;
        if new_len > self.mapped {
            self.tail.resize(new_len - self.mapped, 0);
        }
    }

    fn write_bytes(&mut self, bytes: &[u8]) {
        if self.at < self.mapped { &mut self.head } else { &mut self.tail }.extend_from_slice(bytes);
        self.at += bytes.len();
    }
}

impl File {
    /// The relocations of a program that begins at `start` of the text.
    fn refer(&mut self, program: &Linkable<'_>, start: u64) {
        for relocation in &program.code.relocations {
            let name = symbol_of(relocation.target, program.maps);
            let known = self.symbols.iter().position(|symbol| symbol.name == name);
            let symbol = known.unwrap_or_else(|| {
                self.symbols.push(Symbol { name, global: true, ..Symbol::default() });
                self.symbols.len() - 1
            });
            let kind = match relocation.target {
                Target::Helper(_) | Target::Symbol(_) => elf::R_X86_64_PLT32,
                Target::GotHeader(_) | Target::GotData(_) => elf::R_X86_64_PC32,
            };
            let offset = start + u64::from(relocation.offset);
            self.sections[0].relocations.push(Place { offset, kind, symbol, addend: relocation.addend });
        }
    }

    /// Functions of a section, seen from outside.
    fn add_functions(&mut self, section: usize, base: u64, names: &Names) {
        self.symbols.extend(names.functions.iter().map(|function| Symbol {
            name: function.name.clone(),
            section: Some(section),
            kind: elf::STT_FUNC,
            global: true,
            value: base + u64::from(function.offset),
            bytes: u64::from(function.bytes),
        }));
    }

    fn add_debug_sections(&mut self, pieces: &[(Base, &Names)]) {
        let first = self.sections.len();
        let found = dwarf::sections(pieces);
        let index_of = |id| found.iter().position(|(other, _)| *other == id);
        let relocatable = self.kind == elf::ET_REL;
        let before = self.symbols.len();
        if relocatable {
            // Local symbols stand first, and the relocations so far count from the beginning.
            let own = (0..found.len()).map(|index| Symbol {
                section: Some(first + index),
                kind: elf::STT_SECTION,
                ..Symbol::default()
            });
            self.symbols.splice(1..1, own);
            debug_assert_eq!(self.symbols.len(), before + found.len());
            for place in self.sections.iter_mut().flat_map(|section| &mut section.relocations) {
                place.symbol += if place.symbol == 0 { 0 } else { found.len() };
            }
        }
        for (id, recorded) in &found {
            let mut section = Section {
                name: id.name().into(),
                kind: elf::SHT_PROGBITS,
                align: 1,
                data: recorded.bytes().to_vec(),
                ..Section::default()
            };
            for relocation in &recorded.relocations {
                let symbol = match relocation.target {
                    gimli::write::RelocationTarget::Symbol(symbol) => symbol,
                    gimli::write::RelocationTarget::Section(id) => {
                        1 + index_of(id).expect("what is referred to was written")
                    }
                };
                let offset = relocation.offset;
                if relocatable {
                    let kind = if relocation.size == 8 { elf::R_X86_64_64 } else { elf::R_X86_64_32 };
                    section.relocations.push(Place {
                        offset: offset as u64,
                        kind,
                        symbol,
                        addend: relocation.addend,
                    });
                } else {
                    // Each section is there once and begins at 0.
                    let bytes = usize::from(relocation.size);
                    section.data[offset..offset + bytes].copy_from_slice(&relocation.addend.to_le_bytes()[..bytes]);
                }
            }
            self.sections.push(section);
        }
    }

    /// The bytes of the file.
    fn write(self) -> Vec<u8> {
        let mut bytes = vec![];
        self.write_to(&mut bytes);
        bytes
    }

    fn write_to(mut self, buffer: &mut dyn WritableBuffer) {
        for index in 0..self.sections.len() {
            let section = &self.sections[index];
            if !section.relocations.is_empty() {
                self.sections.push(Section {
                    name: format!(".rela{}", section.name),
                    kind: elf::SHT_RELA,
                    flags: elf::SHF_INFO_LINK,
                    align: 8,
                    of: Some(index),
                    ..Section::default()
                });
            }
        }
        Layout::of(&self, buffer).write(&self);
    }
}

/// Where things come to lie.
struct Layout<'a> {
    writer: Writer<'a>,
    names: Vec<StringId>,
    indexes: Vec<SectionIndex>,
    offsets: Vec<u64>,
    strings: Vec<Option<StringId>>,
}

impl<'a> Layout<'a> {
    fn of(file: &'a File, buffer: &'a mut dyn WritableBuffer) -> Layout<'a> {
        let mut writer = Writer::new(Endianness::Little, true, buffer);
        writer.reserve_null_section_index();
        let (mut names, mut indexes) = (vec![], vec![]);
        for section in &file.sections {
            names.push(writer.add_section_name(section.name.as_bytes()));
            indexes.push(writer.reserve_section_index());
        }
        writer.reserve_symtab_section_index();
        writer.reserve_strtab_section_index();
        writer.reserve_shstrtab_section_index();
        writer.reserve_null_symbol_index();
        let mut strings = vec![];
        for symbol in &file.symbols {
            let section = symbol.section.map(|section| indexes[section]);
            strings.push((!symbol.name.is_empty()).then(|| writer.add_string(symbol.name.as_bytes())));
            writer.reserve_symbol_index(section);
        }
        writer.reserve_file_header();
        if let Some(mapped) = file.mapped {
            writer.reserve_program_headers(1);
            writer.reserve_until(mapped as usize);
        }
        let offsets = file.sections.iter().map(|section| match (section.kind, section.of) {
            _ if section.given => section.address as usize,
            (elf::SHT_NOBITS, _) => writer.reserved_len(),
            (_, Some(of)) => writer.reserve_relocations(file.sections[of].relocations.len(), true),
            _ => writer.reserve(section.data.len(), section.align as usize),
        });
        let offsets = offsets.map(|offset| offset as u64).collect();
        writer.reserve_symtab();
        writer.reserve_strtab();
        writer.reserve_shstrtab();
        writer.reserve_section_headers();
        Layout { writer, names, indexes, offsets, strings }
    }

    fn write(mut self, file: &File) {
        let header = FileHeader {
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            e_type: file.kind,
            e_machine: elf::EM_X86_64,
            e_entry: 0,
            e_flags: 0,
        };
        self.writer.write_file_header(&header).expect("a buffer in memory");
        if let Some(mapped) = file.mapped {
            self.writer.write_program_header(&ProgramHeader {
                p_type: elf::PT_LOAD,
                p_flags: elf::PF_R | elf::PF_X,
                p_offset: 0,
                p_vaddr: 0,
                p_paddr: 0,
                p_filesz: mapped,
                p_memsz: mapped,
                p_align: 0x1000,
            });
            self.writer.pad_until(mapped as usize);
        }
        for section in &file.sections {
            self.write_data(file, section);
        }
        self.writer.write_null_symbol();
        for (symbol, name) in file.symbols.iter().zip(&self.strings) {
            let binding = if symbol.global { elf::STB_GLOBAL } else { elf::STB_LOCAL };
            self.writer.write_symbol(&Sym {
                name: *name,
                section: symbol.section.map(|section| self.indexes[section]),
                st_info: binding << 4 | symbol.kind,
                st_other: elf::STV_DEFAULT,
                st_shndx: elf::SHN_UNDEF,
                st_value: symbol.value,
                st_size: symbol.bytes,
            });
        }
        self.writer.write_strtab();
        self.writer.write_shstrtab();
        self.writer.write_null_section_header();
        for index in 0..file.sections.len() {
            self.write_header(file, index);
        }
        let local = 1 + file.symbols.iter().filter(|symbol| !symbol.global).count() as u32;
        self.writer.write_symtab_section_header(local);
        self.writer.write_strtab_section_header();
        self.writer.write_shstrtab_section_header();
    }

    fn write_data(&mut self, file: &File, section: &Section) {
        match (section.kind, section.of) {
            _ if section.given => {}
            (elf::SHT_NOBITS, _) => {}
            (_, Some(of)) => {
                self.writer.write_align_relocation();
                for place in &file.sections[of].relocations {
                    self.writer.write_relocation(
                        true,
                        &Rel {
                            r_offset: place.offset,
                            r_sym: place.symbol as u32 + 1,
                            r_type: place.kind,
                            r_addend: place.addend,
                        },
                    );
                }
            }
            _ => {
                self.writer.write_align(section.align as usize);
                self.writer.write(&section.data);
            }
        }
    }

    fn write_header(&mut self, file: &File, index: usize) {
        let section = &file.sections[index];
        if let Some(of) = section.of {
            let (symbols, count) = (self.writer.symtab_index(), file.sections[of].relocations.len());
            self.writer.write_relocation_section_header(
                self.names[index],
                self.indexes[of],
                symbols,
                self.offsets[index] as usize,
                count,
                true,
            );
            return;
        }
        self.writer.write_section_header(&SectionHeader {
            name: Some(self.names[index]),
            sh_type: section.kind,
            sh_flags: u64::from(section.flags),
            sh_addr: section.address,
            sh_offset: self.offsets[index],
            sh_size: section.bytes.max(section.data.len() as u64),
            sh_link: 0,
            sh_info: 0,
            sh_addralign: section.align,
            sh_entsize: 0,
        });
    }
}
