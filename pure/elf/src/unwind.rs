//! Function bounds from `.eh_frame`, for files without symbols.

use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};

use crate::File;

/// Address ranges of all frame descriptions, by address. A corrupt table yields what precedes the damage.
pub(crate) fn frames(file: &File<'_>) -> Vec<Range<u64>> {
    let Some((bytes, address)) = file.section(".eh_frame") else { return vec![] };
    let text = file.section(".text").map_or(0, |(_, address)| address);
    let bases = BaseAddresses::default().set_eh_frame(address).set_text(text);
    let table = EhFrame::new(bytes, LittleEndian);
    let mut found = vec![];
    let mut entries = table.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else { continue };
        if let Some(end) = fde.initial_address().checked_add(fde.len()) {
            // Whoever looks a return address up subtracts 1: so the description of what signal handlers return to, which
            // nobody called, begins 1 too early.
            let start = fde.initial_address() + u64::from(fde.is_signal_trampoline() && fde.len() > 1);
            found.push(start..end);
        }
    }
    found.sort_by_key(|range| range.start);
    found
}
