//! What `.eh_frame` says: function bounds, for files without symbols, and where exceptions arrive.

use std::ops::Range;

use gimli::{
    BaseAddresses, CieOrFde, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian, Pointer, Reader,
    UnwindSection,
};

use crate::File;

pub(crate) type Description<'a> = FrameDescriptionEntry<EndianSlice<'a, LittleEndian>>;

/// Call sites of all functions' tables that are read at most: a file's descriptions may all name one long table.
pub const LANDING_PADS_MAX: usize = 1 << 22;
/// Bytes of descriptions that are read, each with what it has in common with others ([`descriptions`]).
const DESCRIPTION_BYTES_MAX: u64 = 1 << 26;

/// A file's descriptions, and what their encoded addresses are relative to.
pub(crate) struct Entries<'a> {
    pub(crate) table: EhFrame<EndianSlice<'a, LittleEndian>>,
    pub(crate) bases: BaseAddresses,
}

/// Address ranges of all frame descriptions, by address. A corrupt table yields what precedes the damage.
pub(crate) fn frames(file: &File<'_>) -> Vec<Range<u64>> {
    let mut found = vec![];
    descriptions(file, |_, fde| {
        if let Some(end) = fde.initial_address().checked_add(fde.len()) {
            // Whoever looks a return address up subtracts 1: so the description of what signal handlers return to, which
            // nobody called, begins 1 too early.
            let start = fde.initial_address() + u64::from(fde.is_signal_trampoline() && fde.len() > 1);
            found.push(start..end);
        }
    });
    found.sort_by_key(|range| range.start);
    found
}

/// The landing pads of all functions, each with the address of its table (`.gcc_except_table`); `None` if a table cannot be
/// read, or the file has more than [`LANDING_PADS_MAX`] call sites or [`DESCRIPTION_BYTES_MAX`] bytes of descriptions.
pub(crate) fn landing_pads(file: &File<'_>) -> Option<Vec<(u64, u64)>> {
    let mut found = vec![];
    let mut all_read = true;
    let mut sites_left = LANDING_PADS_MAX;
    let is_whole = descriptions(file, |_, fde| {
        if let Some(table) = fde.lsda().filter(|_| all_read) {
            let read = match table {
                Pointer::Direct(address) => pads_of(file, address, fde.initial_address(), &mut sites_left),
                Pointer::Indirect(_) => None,
            };
            all_read &= read.is_some();
            found.extend(read.into_iter().flatten());
        }
    });
    (all_read && is_whole).then_some(found)
}

/// Gives all descriptions to `with`. Many may have one common entry, whose instructions are read anew for each: so it ends after
/// [`DESCRIPTION_BYTES_MAX`], and the answer is false then.
pub(crate) fn descriptions<'a>(file: &File<'a>, mut with: impl FnMut(&Entries<'a>, &Description<'a>)) -> bool {
    let Some((bytes, address)) = file.section(".eh_frame") else { return true };
    let text = file.section(".text").map_or(0, |(_, address)| address);
    let bases = BaseAddresses::default().set_eh_frame(address).set_text(text);
    let all = Entries { table: EhFrame::new(bytes, LittleEndian), bases };
    let mut entries = all.table.entries(&all.bases);
    let mut left = DESCRIPTION_BYTES_MAX;
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else { continue };
        let Some(rest) = left.checked_sub(fde.entry_len() as u64 + fde.cie().entry_len() as u64) else {
            return false;
        };
        left = rest;
        with(&all, &fde);
    }
    true
}

/// The landing pads of the function at `function`, from its table (the "language-specific data area" of the Itanium C++ ABI's
/// exception handling, as gcc and LLVM write it). `sites_left`: call sites that may still be read.
fn pads_of(file: &File<'_>, table: u64, function: u64, sites_left: &mut usize) -> Option<Vec<(u64, u64)>> {
    const OMITTED: u8 = 0xff;
    let (start, bytes, _) =
        file.parts().find(|(start, bytes, _)| (*start..start + bytes.len() as u64).contains(&table))?;
    let mut reader = EndianSlice::new(&bytes[(table - start) as usize..], LittleEndian);
    let whole = reader;
    let base = match reader.read_u8().ok()? {
        OMITTED => function,
        encoding => {
            let place = table + reader.offset_from(whole) as u64;
            encoded(&mut reader, encoding, place)?
        }
    };
    if reader.read_u8().ok()? != OMITTED {
        reader.read_uleb128().ok()?;
    }
    let encoding = reader.read_u8().ok()?;
    let bytes = usize::try_from(reader.read_uleb128().ok()?).ok()?;
    let mut calls = reader.split(bytes).ok()?;
    let mut pads = vec![];
    while !calls.is_empty() {
        *sites_left = sites_left.checked_sub(1)?;
        let _start = encoded(&mut calls, encoding, 0)?;
        let _bytes = encoded(&mut calls, encoding, 0)?;
        let pad = encoded(&mut calls, encoding, 0)?;
        let _action = calls.read_uleb128().ok()?;
        if pad != 0 {
            pads.push((base.wrapping_add(pad), table));
        }
    }
    Some(pads)
}

/// A value in one of the formats of the Linux Standard Base (`DW_EH_PE_*`), absolute or relative to its `place`.
fn encoded(reader: &mut EndianSlice<'_, LittleEndian>, encoding: u8, place: u64) -> Option<u64> {
    let value = match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => reader.read_u64().ok()?,
        0x01 => reader.read_uleb128().ok()?,
        0x02 => u64::from(reader.read_u16().ok()?),
        0x03 => u64::from(reader.read_u32().ok()?),
        0x09 => reader.read_sleb128().ok()? as u64,
        0x0a => i64::from(reader.read_i16().ok()?) as u64,
        0x0b => i64::from(reader.read_i32().ok()?) as u64,
        _ => return None,
    };
    match encoding & 0xf0 {
        0x00 => Some(value),
        0x10 => Some(place.wrapping_add(value)),
        _ => None,
    }
}
