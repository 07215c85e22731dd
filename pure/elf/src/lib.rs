//! What ring3 needs to know of an ELF file: segments, symbols, function bounds, USDT notes.
//!
//! Runs: anywhere.
//! May touch: the bytes it is given, which are hostile.
//! Never: panics on a corrupt file; does I/O.
//! Start reading at: `File`.
#![forbid(unsafe_code)]

mod lttng;
mod place;
mod plt;
mod rules;
mod tracepoint;
mod unwind;
mod usdt;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use object::elf::{EM_X86_64, ET_DYN, ET_EXEC, PF_X, PT_INTERP, PT_LOAD, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolFlags, SymbolKind};

pub use lttng::{LttngField, LttngTracepoint};
pub use place::{ArgumentPlace, At, Register, argument_place};
pub use rules::{CODE_BYTES_MAX, NoTable, ROWS_MAX, UnwindTable};
pub use tracepoint::{Argument, Kind, Tracepoint};
pub use unwind::LANDING_PADS_MAX;
pub use usdt::UsdtNote;

/// Entries of each table of LTTng-UST that are read at most.
const FIELDS_MAX: u32 = 4096;

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not ELF at all.
    NotElf,
    /// A 32-bit file, or one for another machine.
    WrongMachine(String),
    /// Neither an executable nor a shared library.
    NotLoadable,
    /// Headers contradict the file's size or themselves.
    Corrupt(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotElf => write!(f, "not an ELF file"),
            Error::WrongMachine(what) => write!(f, "{what}; only 64-bit x86-64 files can be probed"),
            Error::NotLoadable => write!(f, "neither an executable nor a shared library"),
            Error::Corrupt(why) => write!(f, "corrupt ELF file: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// A defined symbol that code can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name.
    pub name: &'a str,
    /// Address in the file's address space.
    pub address: u64,
    /// Bytes; 0: not told.
    pub size: u64,
    /// `STT_GNU_IFUNC`: the address is of the resolver.
    pub indirect: bool,
    /// Other files may name it.
    pub global: bool,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    file_bytes: u64,
    executable: bool,
}

/// A parsed file. Symbols and unwind tables are read when first asked for.
pub struct File<'a> {
    data: &'a [u8],
    elf: ElfFile64<'a, Endianness>,
    segments: Vec<Segment>,
    symbols: Vec<Symbol<'a>>,
    frames: OnceCell<Vec<Range<u64>>>,
}

impl fmt::Debug for File<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("bytes", &self.data.len()).field("segments", &self.segments).finish()
    }
}

impl<'a> File<'a> {
    /// Reads the headers and the symbols.
    pub fn parse(data: &'a [u8]) -> Result<File<'a>, Error> {
        if data.len() < 20 || data[..4] != *b"\x7fELF" {
            return Err(Error::NotElf);
        }
        if data[4] != 2 {
            return Err(Error::WrongMachine("a 32-bit ELF file".into()));
        }
        let corrupt = |error: object::Error| Error::Corrupt(error.to_string());
        let elf = ElfFile64::<Endianness>::parse(data).map_err(corrupt)?;
        let endian = elf.endian();
        let header = elf.elf_header();
        if header.e_machine(endian) != EM_X86_64 {
            return Err(Error::WrongMachine(format!("an ELF file for machine {}", header.e_machine(endian))));
        }
        if !matches!(header.e_type(endian), ET_EXEC | ET_DYN) {
            return Err(Error::NotLoadable);
        }
        let loads = elf.elf_program_headers().iter().filter(|ph| ph.p_type(endian) == PT_LOAD);
        let segments = loads
            .map(|ph| Segment {
                address: ph.p_vaddr(endian),
                offset: ph.p_offset(endian),
                file_bytes: ph.p_filesz(endian),
                executable: ph.p_flags(endian) & PF_X != 0,
            })
            .filter(|s| s.address.checked_add(s.file_bytes).is_some() && s.offset.checked_add(s.file_bytes).is_some())
            .collect();
        let mut file = File { data, elf, segments, symbols: vec![], frames: OnceCell::new() };
        file.symbols = file.code_symbols();
        Ok(file)
    }

    /// Addresses of the executable segments, as far as the file holds their bytes.
    pub fn executable_segments(&self) -> Vec<Range<u64>> {
        let executable = self.segments.iter().filter(|segment| segment.executable);
        executable.map(|segment| segment.address..segment.address + segment.file_bytes).collect()
    }

    /// The loaded parts: address, bytes as far as the file has them, and whether they are executable.
    pub fn parts(&self) -> impl Iterator<Item = (u64, &'a [u8], bool)> {
        self.segments.iter().filter_map(|s| {
            let start = usize::try_from(s.offset).ok()?;
            let bytes = self.data.get(start..start.checked_add(usize::try_from(s.file_bytes).ok()?)?)?;
            Some((s.address, bytes, s.executable))
        })
    }

    /// The file is mapped at the addresses that it names (`ET_EXEC`).
    pub fn is_fixed(&self) -> bool {
        self.elf.elf_header().e_type(self.elf.endian()) == ET_EXEC
    }

    /// Where unwinding may let functions go on (their landing pads), with the address of the table that says so; `None` if
    /// a table cannot be read.
    pub fn landing_pads(&self) -> Option<Vec<(u64, u64)>> {
        unwind::landing_pads(self)
    }

    /// Addresses of the file's functions in Go, if it has some: of all its code, if no symbol tells them from others.
    pub fn go_text(&self) -> Option<Range<u64>> {
        let is_go = [".gopclntab", ".data.rel.ro.gopclntab", ".go.buildinfo"];
        is_go.iter().find_map(|name| self.section(name))?;
        Some(self.find("runtime.text").unwrap_or(0)..self.find("runtime.etext").unwrap_or(u64::MAX))
    }

    /// Address of the first instruction (`e_entry`).
    pub fn entry(&self) -> u64 {
        self.elf.elf_header().e_entry(self.elf.endian())
    }

    /// File offset of an address.
    pub fn vaddr_to_offset(&self, address: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|s| (s.address..s.address + s.file_bytes).contains(&address))?;
        Some(segment.offset + (address - segment.address))
    }

    /// Address of a file offset; an executable segment is preferred where several share the bytes.
    pub fn offset_to_vaddr(&self, offset: u64) -> Option<u64> {
        let mut covering: Vec<&Segment> =
            self.segments.iter().filter(|s| (s.offset..s.offset + s.file_bytes).contains(&offset)).collect();
        covering.sort_by_key(|segment| !segment.executable);
        covering.first().map(|segment| segment.address + (offset - segment.offset))
    }

    /// The bytes at an address range, if the file has all of them in one segment.
    pub fn code(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let bytes = range.end.checked_sub(range.start)?;
        let segment =
            self.segments.iter().find(|s| range.start >= s.address && range.end <= s.address + s.file_bytes)?;
        let start = usize::try_from(segment.offset + (range.start - segment.address)).ok()?;
        self.data.get(start..start.checked_add(usize::try_from(bytes).ok()?)?)
    }

    /// Defined symbols in executable memory (and untyped ones of assembly code), by address.
    pub fn symbols(&self) -> &[Symbol<'a>] {
        &self.symbols
    }

    fn code_symbols(&self) -> Vec<Symbol<'a>> {
        let executable = self.executable_segments();
        let all = self.elf.symbols().chain(self.elf.dynamic_symbols());
        let mut found: Vec<Symbol<'a>> = all.filter_map(|symbol| code_symbol(&symbol, &executable)).collect();
        found.sort_by_key(|symbol| (symbol.address, std::cmp::Reverse(symbol.size), symbol.name));
        found.dedup();
        found
    }

    /// Address of a symbol by its exact name.
    pub fn find(&self, name: &str) -> Option<u64> {
        self.symbols().iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }

    /// Address of a variable by its exact name.
    pub fn find_variable(&self, name: &str) -> Option<u64> {
        self.variables(name).next()
    }

    /// Addresses of the variables with this name. (Those of one source file only may have the same one.)
    pub fn find_variables(&self, name: &str) -> BTreeSet<u64> {
        self.variables(name).collect()
    }

    fn variables(&self, name: &str) -> impl Iterator<Item = u64> {
        let is_wanted = move |symbol: &object::read::elf::ElfSymbol64<'_, '_, Endianness>| {
            symbol.kind() == SymbolKind::Data && !symbol.is_undefined() && symbol.name() == Ok(name)
        };
        self.elf.dynamic_symbols().chain(self.elf.symbols()).filter(is_wanted).map(|symbol| symbol.address())
    }

    /// Where the file's own code calls a function of another file: the address of its stub in the procedure linkage table. `None`: it
    /// calls no such function, or not by a stub (`-fno-plt`).
    pub fn stub(&self, name: &str) -> Option<u64> {
        plt::stub(self, name)
    }

    /// The symbols whose first byte is at an address.
    pub fn symbols_at(&self, address: u64) -> &[Symbol<'a>] {
        let symbols = self.symbols();
        let start = symbols.partition_point(|symbol| symbol.address < address);
        let end = symbols.partition_point(|symbol| symbol.address <= address);
        &symbols[start..end]
    }

    /// Name, address and size of the symbol that covers an address.
    pub fn symbol_at(&self, address: u64) -> Option<(&'a str, u64, u64)> {
        let symbols = self.symbols();
        let end = symbols.partition_point(|symbol| symbol.address <= address);
        let nearest = symbols[..end].last()?.address;
        let mut candidates = self.symbols_at(nearest).iter().rev();
        candidates
            .find(|symbol| address < symbol.address + symbol.size || symbol.address == address)
            .map(|symbol| (symbol.name, symbol.address, symbol.size))
    }

    /// The function around an address: the smallest that symbols with a size or unwind tables tell.
    pub fn function_bounds(&self, address: u64) -> Option<Range<u64>> {
        let by_symbol = self.symbol_at(address).filter(|(_, start, size)| *size > 0 && address < start + size);
        let by_symbol = by_symbol.map(|(_, start, size)| start..start + size);
        by_symbol.or_else(|| self.frame_at(address))
    }

    /// The code around an address that belongs to no known function: from the end of the one before to the start of the next,
    /// or the end of the segment.
    pub fn gap(&self, address: u64) -> Option<Range<u64>> {
        let segment = self.executable_segments().into_iter().find(|segment| segment.contains(&address))?;
        let (symbols, frames) = (self.symbols(), self.frames());
        let symbol = symbols.partition_point(|symbol| symbol.address <= address);
        let frame = frames.partition_point(|frame| frame.start <= address);
        // One that has no size, or none that reaches, says at least that code begins there.
        let before = symbols[..symbol].last().map(|symbol| symbol.address + symbol.size);
        let start = before.max(frames[..frame].last().map(|frame| frame.end)).unwrap_or(0).max(segment.start);
        let after = symbols.get(symbol).map(|symbol| symbol.address);
        let next = [after, frames.get(frame).map(|frame| frame.start)].into_iter().flatten().min();
        let end = next.unwrap_or(segment.end).min(segment.end);
        (start..end).contains(&address).then_some(start..end)
    }

    fn frames(&self) -> &[Range<u64>] {
        self.frames.get_or_init(|| unwind::frames(self))
    }

    fn frame_at(&self, address: u64) -> Option<Range<u64>> {
        let frames = self.frames();
        let end = frames.partition_point(|frame| frame.start <= address);
        frames[..end].last().filter(|frame| frame.contains(&address)).cloned()
    }

    /// From each instruction to its caller's frame, as `.eh_frame` says.
    pub fn unwind_table(&self) -> Result<UnwindTable, NoTable> {
        rules::table(self)
    }

    /// Bytes and address of a section.
    pub fn section(&self, name: &str) -> Option<(&'a [u8], u64)> {
        let section = self.elf.section_by_name(name)?;
        Some((section.data().ok()?, section.address()))
    }

    /// The GNU build id.
    pub fn build_id(&self) -> Option<&'a [u8]> {
        self.elf.build_id().ok().flatten()
    }

    /// The dynamic loader that the file asks for.
    pub fn interpreter(&self) -> Option<&'a str> {
        let endian = self.elf.endian();
        let header = self.elf.elf_program_headers().iter().find(|ph| ph.p_type(endian) == PT_INTERP)?;
        let bytes = header.data(endian, self.data).ok()?;
        std::str::from_utf8(bytes.strip_suffix(b"\0").unwrap_or(bytes)).ok()
    }

    /// Statically defined probes (`.note.stapsdt`).
    pub fn usdt_notes(&self) -> Vec<UsdtNote> {
        let base = self.section(".stapsdt.base").map(|(_, address)| address);
        self.section(".note.stapsdt").map(|(bytes, _)| usdt::parse(bytes, base)).unwrap_or_default()
    }

    /// Static tracepoints with their arguments: all of `.note.stapsdt` that are in the file's code, with names and types where
    /// ring3's macros have made them. Those of one provider and name need not be neighbours.
    pub fn tracepoints(&self) -> Vec<Tracepoint> {
        let base = self.section(".stapsdt.base").map(|(_, address)| address);
        let own = self.section(tracepoint::SECTION);
        let own = own.map(|(bytes, _)| tracepoint::OwnNotes::parse(bytes, base)).unwrap_or_default();
        let executable = self.executable_segments();
        let notes = self.usdt_notes().into_iter();
        // (A linker that removes an unused function keeps its notes.)
        let present = notes.filter(|note| executable.iter().any(|range| range.contains(&note.address)));
        let described = present.map(|note| {
            let places = place::parse(&note.arguments, &|name| self.only_variable(name));
            own.describe(note, places)
        });
        described.collect()
    }

    /// Tracepoints of LTTng-UST that the file uses or records.
    pub fn lttng_tracepoints(&self) -> Vec<LttngTracepoint> {
        lttng::tracepoints(self)
    }

    fn only_variable(&self, name: &str) -> Result<u64, String> {
        let mut found = self.find_variables(name).into_iter();
        match (found.next(), found.next()) {
            (Some(address), None) => Ok(address),
            (None, _) => Err(format!("the file has no symbol for variable {name}")),
            (Some(_), Some(_)) => Err(format!("the file has several variables {name}")),
        }
    }
}

fn code_symbol<'a>(
    symbol: &object::read::elf::ElfSymbol64<'a, '_, Endianness>,
    executable: &[Range<u64>],
) -> Option<Symbol<'a>> {
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { return None };
    let kind = st_info & 0xf;
    let address = symbol.address();
    let wanted = matches!(kind, STT_FUNC | STT_GNU_IFUNC | STT_NOTYPE);
    if !wanted || symbol.is_undefined() || !executable.iter().any(|range| range.contains(&address)) {
        return None;
    }
    let name = symbol.name().ok().filter(|name| !name.is_empty())?;
    // A size that runs over the address space is a lie; the symbol is still a name.
    let size = address.checked_add(symbol.size()).map_or(0, |_| symbol.size());
    Some(Symbol { name, address, size, indirect: kind == STT_GNU_IFUNC, global: symbol.is_global() })
}
