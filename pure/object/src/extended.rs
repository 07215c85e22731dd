//! What the compiler tells of instructions (`.BTF.ext`): their functions, lines, and the fields that they reach.

use ring3_btf::Btf;

use crate::Error;
use crate::file::File;

/// A record, with the instruction that it is of as an index into its section.
#[derive(Clone, Copy)]
pub(crate) struct Record<const N: usize> {
    /// The section.
    pub(crate) section: usize,
    pub(crate) insn: usize,
    /// The words behind the offset.
    pub(crate) words: [u32; N],
}

#[derive(Default)]
pub(crate) struct Extended {
    /// Type.
    pub(crate) functions: Vec<Record<1>>,
    /// File name, line, line and column.
    pub(crate) lines: Vec<Record<3>>,
    /// Type, access string, kind.
    pub(crate) relocations: Vec<Record<3>>,
}

const HEADER_BYTES: usize = 24;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Extended {
    pub(crate) fn parse(file: &File<'_>, types: Option<&Btf>) -> Result<Extended, Error> {
        let (Some((_, section)), Some(types)) = (file.section(".BTF.ext"), types) else {
            return Ok(Extended::default());
        };
        let bytes = section.data;
        let part = |index: usize| -> Option<&[u8]> {
            let header = word(bytes, 4)? as usize;
            if header < HEADER_BYTES + index / 2 * 8 && index == 2 {
                return Some(&[]);
            }
            let (at, length) = (word(bytes, 8 + index * 8)?, word(bytes, 12 + index * 8)?);
            bytes.get(header.checked_add(at as usize)?..)?.get(..length as usize)
        };
        let all = || {
            Some(Extended {
                functions: records(part(0)?, file, types)?,
                lines: records(part(1)?, file, types)?,
                relocations: records(part(2)?, file, types)?,
            })
        };
        all().ok_or(Error::corrupt("what is told of instructions"))
    }
}

fn records<const N: usize>(mut bytes: &[u8], file: &File<'_>, types: &Btf) -> Option<Vec<Record<N>>> {
    let mut found = vec![];
    if bytes.is_empty() {
        return Some(found);
    }
    let size = word(bytes, 0)? as usize;
    if size < 4 + N * 4 || !size.is_multiple_of(4) {
        return None;
    }
    bytes = &bytes[4..];
    while !bytes.is_empty() {
        let (name, count) = (word(bytes, 0)?, word(bytes, 4)? as usize);
        let name = std::str::from_utf8(types.text(name)?).ok()?;
        let (here, rest) = bytes[8..].split_at_checked(count.checked_mul(size)?)?;
        bytes = rest;
        // Sections that the linker dropped have no instructions left to tell of.
        let Some((section, _)) = file.section(name) else { continue };
        for record in here.chunks_exact(size) {
            let mut words = [0; N];
            for (at, to) in (4..).step_by(4).zip(&mut words) {
                *to = word(record, at)?;
            }
            let at = word(record, 0)?;
            if at % 8 != 0 {
                return None;
            }
            found.push(Record { section, insn: at as usize / 8, words });
        }
    }
    found.sort_by_key(|record| (record.section, record.insn));
    Some(found)
}

/// Those of a function, by its section and its first instruction and number of instructions there.
pub(crate) fn within<const N: usize>(all: &[Record<N>], section: usize, start: usize, count: usize) -> &[Record<N>] {
    let before = |insn: usize| all.partition_point(|record| (record.section, record.insn) < (section, insn));
    &all[before(start)..before(start + count)]
}
