//! Source lines as DWARF: a compilation unit per program, with its functions and its table of lines.

use gimli::write::{
    Address, AttributeValue, Dwarf, EndianVec, FileId, LineProgram, LineString, RelocateWriter, Relocation, Sections,
    Unit,
};
use gimli::{DW_LANG_C99, Encoding, Format, LineEncoding, LittleEndian, SectionId};

use crate::Names;

/// Read by all gdb and perf that are in use, and without tables of strings.
const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };

/// Where a piece of code lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base {
    /// At this address.
    At(u64),
    /// So far behind a symbol.
    Behind(usize, u64),
}

impl Base {
    fn address(self, offset: u32) -> Address {
        match self {
            Base::At(address) => Address::Constant(address + u64::from(offset)),
            Base::Behind(symbol, by) => Address::Symbol { symbol, addend: by as i64 + i64::from(offset) },
        }
    }
}

/// A section's bytes, and what linkers still have to fill in.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    bytes: EndianVec<LittleEndian>,
    pub(crate) relocations: Vec<Relocation>,
}

impl RelocateWriter for Recorder {
    type Writer = EndianVec<LittleEndian>;

    fn writer(&self) -> &Self::Writer {
        &self.bytes
    }

    fn writer_mut(&mut self) -> &mut Self::Writer {
        &mut self.bytes
    }

    fn relocate(&mut self, relocation: Relocation) {
        self.relocations.push(relocation);
    }
}

impl Recorder {
    fn new() -> Recorder {
        Recorder { bytes: EndianVec::new(LittleEndian), relocations: vec![] }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.slice()
    }
}

/// The debug sections of pieces of code. Pieces without lines are left out.
pub(crate) fn sections(pieces: &[(Base, &Names)]) -> Vec<(SectionId, Recorder)> {
    let mut dwarf = Dwarf::new();
    for (base, names) in pieces.iter().filter(|(_, names)| !names.rows.is_empty()) {
        let (lines, files) = line_program(*base, names);
        let unit = dwarf.units.add(Unit::new(ENCODING, lines));
        describe(dwarf.units.get_mut(unit), *base, names, &files);
    }
    let mut sections = Sections::new(Recorder::new());
    dwarf.write(&mut sections).expect("all values fit their forms");
    let mut found = vec![];
    let _ = sections.for_each(|id, section| {
        if !section.bytes().is_empty() {
            found.push((id, section.clone()));
        }
        Ok::<(), std::convert::Infallible>(())
    });
    found
}

/// The table of lines, a sequence per function, and its numbers of the files.
fn line_program(base: Base, names: &Names) -> (LineProgram, Vec<FileId>) {
    let text = |text: &str| LineString::String(text.into());
    // Where the compiler ran is not told: paths are relative to where the debugger runs.
    let mut lines = LineProgram::new(ENCODING, LineEncoding::default(), text("."), None, text(&names.files[0]), None);
    let directory = lines.default_directory();
    let files: Vec<FileId> = names.files.iter().map(|file| lines.add_file(text(file), directory, None)).collect();
    for function in &names.functions {
        let end = function.offset + function.bytes;
        let from = names.rows.partition_point(|row| row.offset < function.offset);
        let rows = names.rows[from..].iter().take_while(|row| row.offset < end);
        let mut begun = false;
        for row in rows {
            if !begun {
                lines.begin_sequence(Some(base.address(row.offset)));
            }
            let start = names.rows[from].offset;
            begun = true;
            lines.row().address_offset = u64::from(row.offset - start);
            lines.row().file = files[row.file as usize];
            lines.row().line = u64::from(row.line);
            lines.row().column = u64::from(row.column);
            lines.generate_row();
        }
        if begun {
            lines.end_sequence(u64::from(end - names.rows[from].offset));
        }
    }
    (lines, files)
}

/// The unit's entries: itself and its functions.
fn describe(unit: &mut Unit, base: Base, names: &Names, files: &[FileId]) {
    let text = |text: &str| AttributeValue::String(text.into());
    let end = names.functions.last().map_or(0, |last| last.offset + last.bytes);
    let root = unit.root();
    let entry = unit.get_mut(root);
    entry.set(gimli::DW_AT_producer, text(concat!("ring3 ", env!("CARGO_PKG_VERSION"))));
    entry.set(gimli::DW_AT_language, AttributeValue::Language(DW_LANG_C99));
    entry.set(gimli::DW_AT_name, text(&names.files[0]));
    entry.set(gimli::DW_AT_low_pc, AttributeValue::Address(base.address(0)));
    entry.set(gimli::DW_AT_high_pc, AttributeValue::Udata(u64::from(end)));
    for function in &names.functions {
        let id = unit.add(root, gimli::DW_TAG_subprogram);
        let entry = unit.get_mut(id);
        entry.set(gimli::DW_AT_name, text(&function.name));
        entry.set(gimli::DW_AT_low_pc, AttributeValue::Address(base.address(function.offset)));
        entry.set(gimli::DW_AT_high_pc, AttributeValue::Udata(u64::from(function.bytes)));
        let first = names.rows.iter().find(|row| row.offset == function.offset);
        if let Some(row) = first {
            entry.set(gimli::DW_AT_decl_file, AttributeValue::FileIndex(Some(files[row.file as usize])));
            entry.set(gimli::DW_AT_decl_line, AttributeValue::Udata(u64::from(row.line)));
        }
    }
}
