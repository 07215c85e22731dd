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

/// A note of an ELF file (elf(5)).
pub(crate) struct Note<'a> {
    /// With its end, a 0.
    pub(crate) owner: &'a [u8],
    pub(crate) kind: u32,
    pub(crate) description: &'a [u8],
}

/// The notes of a section. Damage ends the list.
pub(crate) fn notes(mut bytes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    std::iter::from_fn(move || {
        let (note, rest) = take_note(bytes)?;
        bytes = rest;
        Some(note)
    })
}

fn take_note(bytes: &[u8]) -> Option<(Note<'_>, &[u8])> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (owner_bytes, description_bytes, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
    let owner = bytes.get(12..12usize.checked_add(owner_bytes)?)?;
    let start = 12 + owner_bytes.checked_next_multiple_of(4)?;
    let description = bytes.get(start..start.checked_add(description_bytes)?)?;
    let rest = bytes.get(start + description_bytes.checked_next_multiple_of(4)?..).unwrap_or_default();
    Some((Note { owner, kind, description }, rest))
}

/// Parses the section; `base` is where `.stapsdt.base` is now (prelink moves it).
pub(crate) fn parse(bytes: &[u8], base: Option<u64>) -> Vec<UsdtNote> {
    const STAPSDT: u32 = 3;
    let ours = notes(bytes).filter(|note| note.kind == STAPSDT && note.owner == b"stapsdt\0");
    ours.filter_map(|note| parse_description(note.description, base)).collect()
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
