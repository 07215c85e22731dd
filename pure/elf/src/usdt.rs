//! SystemTap's notes for statically defined probes (`sys/sdt.h`, note type 3, owner `stapsdt`).

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtNote {
    /// Provider.
    pub provider: String,
    /// Name.
    pub name: String,
    /// Argument specification, as in the note.
    pub arguments: String,
    /// Address of the probed instruction in the file's address space.
    pub address: u64,
    /// Address of the semaphore; 0: none.
    pub semaphore: u64,
}

/// Parses the section; `base` is where `.stapsdt.base` is now (prelink moves it). Damage ends the list.
pub(crate) fn parse(mut bytes: &[u8], base: Option<u64>) -> Vec<UsdtNote> {
    let mut notes = vec![];
    while let Some((note, rest)) = take_note(bytes, base) {
        notes.extend(note);
        bytes = rest;
    }
    notes
}

fn take_note(bytes: &[u8], base: Option<u64>) -> Option<(Option<UsdtNote>, &[u8])> {
    const STAPSDT: u32 = 3;
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (owner_bytes, description_bytes, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
    let owner = bytes.get(12..12usize.checked_add(owner_bytes)?)?;
    let start = 12 + owner_bytes.checked_next_multiple_of(4)?;
    let description = bytes.get(start..start.checked_add(description_bytes)?)?;
    let rest = bytes.get(start + description_bytes.checked_next_multiple_of(4)?..).unwrap_or_default();
    if kind != STAPSDT || owner != b"stapsdt\0" {
        return Some((None, rest));
    }
    Some((parse_description(description, base), rest))
}

fn parse_description(bytes: &[u8], base: Option<u64>) -> Option<UsdtNote> {
    let address = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (location, noted_base, semaphore) = (address(0)?, address(8)?, address(16)?);
    let shift = base.map_or(0, |base| base.wrapping_sub(noted_base));
    let mut strings = bytes.get(24..)?.split(|byte| *byte == 0).map(|s| String::from_utf8_lossy(s).into_owned());
    Some(UsdtNote {
        provider: strings.next()?,
        name: strings.next()?,
        arguments: strings.next().unwrap_or_default(),
        address: location.wrapping_add(shift),
        semaphore: if semaphore == 0 { 0 } else { semaphore.wrapping_add(shift) },
    })
}
