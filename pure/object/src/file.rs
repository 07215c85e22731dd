//! Sections, symbols and relocations of an object file.

use object::LittleEndian;
use object::elf::{EM_BPF, FileHeader64, SHN_UNDEF, SHT_NOBITS, SHT_REL, SHT_SYMTAB, STV_HIDDEN, STV_INTERNAL};
use object::read::elf::{FileHeader, SectionHeader, Sym};

use crate::Error;

type Header = FileHeader64<LittleEndian>;

pub(crate) struct File<'d> {
    pub(crate) sections: Vec<Section<'d>>,
    pub(crate) symbols: Vec<Symbol<'d>>,
}

pub(crate) struct Section<'d> {
    pub(crate) name: &'d str,
    /// `SHT_*`.
    pub(crate) kind: u32,
    /// `SHF_*`.
    pub(crate) flags: u64,
    pub(crate) size: u64,
    /// None if the file holds none.
    pub(crate) data: &'d [u8],
    pub(crate) relocations: Vec<Relocation>,
}

#[derive(Clone, Copy)]
pub(crate) struct Relocation {
    pub(crate) at: u64,
    pub(crate) symbol: usize,
}

pub(crate) struct Symbol<'d> {
    pub(crate) name: &'d str,
    /// `SHN_UNDEF` for what is elsewhere.
    pub(crate) section: usize,
    pub(crate) value: u64,
    pub(crate) size: u64,
    /// `STT_*`.
    pub(crate) kind: u8,
    /// `STB_*`.
    pub(crate) binding: u8,
    /// Nobody outside the object may use it.
    pub(crate) hidden: bool,
}

/// Relocations of all sections at most.
const RELOCATIONS_MAX: usize = 1 << 24;

impl<'d> File<'d> {
    pub(crate) fn parse(bytes: &'d [u8]) -> Result<File<'d>, Error> {
        let header = Header::parse(bytes).map_err(|_| Error::NotBpf)?;
        if !header.is_little_endian() || header.e_machine.get(LittleEndian) != EM_BPF {
            return Err(Error::NotBpf);
        }
        let damaged = |error: object::read::Error| Error::corrupt(error.to_string());
        let table = header.sections(LittleEndian, bytes).map_err(damaged)?;
        let mut sections = vec![];
        for (_, section) in table.enumerate() {
            let name = table.section_name(LittleEndian, section).map_err(damaged)?;
            let name = std::str::from_utf8(name).map_err(|_| Error::corrupt("a section's name is no text"))?;
            let kind = section.sh_type(LittleEndian);
            let data = match kind {
                SHT_NOBITS => &[],
                _ => section.data(LittleEndian, bytes).map_err(damaged)?,
            };
            let (flags, size) = (section.sh_flags(LittleEndian), section.sh_size(LittleEndian));
            sections.push(Section { name, kind, flags, size, data, relocations: vec![] });
        }
        let mut all_relocations = 0;
        for (_, section) in table.enumerate().filter(|(_, section)| section.sh_type(LittleEndian) == SHT_REL) {
            let Some((entries, _)) = section.rel(LittleEndian, bytes).map_err(damaged)? else { continue };
            let of = sections.get_mut(section.sh_info(LittleEndian) as usize);
            let of = of.ok_or(Error::corrupt("relocations of no section"))?;
            let entry = |rel: &object::elf::Rel64<LittleEndian>| Relocation {
                at: rel.r_offset.get(LittleEndian),
                symbol: rel.r_sym(LittleEndian) as usize,
            };
            // Sections of relocations may share their bytes in the file.
            all_relocations += entries.len();
            if all_relocations > RELOCATIONS_MAX {
                return Err(Error::Unsupported(format!("{all_relocations} relocations and more")));
            }
            of.relocations.extend(entries.iter().map(entry));
        }
        let table = table.symbols(LittleEndian, bytes, SHT_SYMTAB).map_err(damaged)?;
        let mut symbols = vec![];
        for symbol in table.iter() {
            let name = symbol.name(LittleEndian, table.strings()).map_err(damaged)?;
            symbols.push(Symbol {
                name: std::str::from_utf8(name).map_err(|_| Error::corrupt("a symbol's name is no text"))?,
                section: usize::from(symbol.st_shndx(LittleEndian)),
                value: symbol.st_value(LittleEndian),
                size: symbol.st_size(LittleEndian),
                kind: symbol.st_type(),
                binding: symbol.st_bind(),
                hidden: matches!(symbol.st_visibility(), STV_HIDDEN | STV_INTERNAL),
            });
        }
        Ok(File { sections, symbols })
    }

    /// The first section of a name, and its index.
    pub(crate) fn section(&self, name: &str) -> Option<(usize, &Section<'d>)> {
        self.sections.iter().enumerate().find(|(_, section)| section.name == name)
    }
}

impl Symbol<'_> {
    /// Whether it is somewhere else.
    pub(crate) fn is_extern(&self) -> bool {
        use object::elf::{STB_GLOBAL, STB_WEAK, STT_NOTYPE};
        self.section == usize::from(SHN_UNDEF)
            && matches!(self.binding, STB_GLOBAL | STB_WEAK)
            && self.kind == STT_NOTYPE
            && !self.name.is_empty()
    }
}

/// Files larger than this are not looked for in others.
const EMBEDDED_BYTES_MAX: usize = 1 << 26;

/// The BPF object files inside another file: where tools keep their own (`bpftool gen skeleton`).
pub fn embedded(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    const MAGIC: &[u8] = b"\x7fELF";
    let starts = bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
    starts.filter_map(|(at, _)| {
        let file = &bytes[at..];
        let header = Header::parse(file).ok()?;
        if !header.is_little_endian() || header.e_machine.get(LittleEndian) != EM_BPF {
            return None;
        }
        // The table of sections is what compilers write last.
        let table = usize::from(header.e_shnum.get(LittleEndian)) * usize::from(header.e_shentsize.get(LittleEndian));
        let end = usize::try_from(header.e_shoff.get(LittleEndian)).ok()?.checked_add(table)?;
        file.get(..end).filter(|file| file.len() <= EMBEDDED_BYTES_MAX)
    })
}
