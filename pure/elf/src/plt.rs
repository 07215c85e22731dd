//! The procedure linkage table: stubs by which a file's code calls functions of other files.
//!
//! A stub jumps to what a slot of the global offset table holds (`jmp *slot(%rip)`); a relocation says which function the dynamic
//! loader puts into the slot. Which sections there are and what else is in a stub differs by linker and by its options (`.plt`,
//! `.plt.sec` with CET, `.plt.got` for functions whose address is taken, too), so stubs are found by their jumps.

use std::collections::BTreeSet;

use object::elf::{R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};
use object::{Object, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget};

use crate::File;

/// Sections with stubs, and bytes of one stub in them.
const SECTIONS: [(&str, usize); 3] = [(".plt.sec", 16), (".plt", 16), (".plt.got", 8)];
/// `jmp *disp32(%rip)`
const JUMP: [u8; 2] = [0xff, 0x25];
const JUMP_BYTES: usize = 6;

/// Address of the stub of a function.
pub(crate) fn stub(file: &File<'_>, name: &str) -> Option<u64> {
    let slots = slots(file, name);
    if slots.is_empty() {
        return None;
    }
    SECTIONS.iter().find_map(|(section, bytes)| {
        let (code, start) = file.section(section)?;
        let leads = |(at, window): (usize, &[u8])| {
            let after = start.wrapping_add((at + JUMP_BYTES) as u64);
            let distance = i32::from_le_bytes(window.get(2..JUMP_BYTES)?.try_into().ok()?);
            let found = window.starts_with(&JUMP) && slots.contains(&after.wrapping_add_signed(distance.into()));
            found.then(|| start.wrapping_add((at - at % bytes) as u64))
        };
        code.windows(JUMP_BYTES).enumerate().find_map(leads)
    })
}

/// Addresses of the slots that hold a function of another file.
fn slots(file: &File<'_>, name: &str) -> BTreeSet<u64> {
    let (Some(symbols), Some(relocations)) = (file.elf.dynamic_symbol_table(), file.elf.dynamic_relocations()) else {
        return BTreeSet::new();
    };
    let is_wanted = |relocation: &object::Relocation| {
        let RelocationFlags::Elf { r_type: R_X86_64_JUMP_SLOT | R_X86_64_GLOB_DAT } = relocation.flags() else {
            return false;
        };
        let RelocationTarget::Symbol(index) = relocation.target() else { return false };
        symbols.symbol_by_index(index).is_ok_and(|symbol| symbol.is_undefined() && symbol.name() == Ok(name))
    };
    relocations.filter(|(_, relocation)| is_wanted(relocation)).map(|(slot, _)| slot).collect()
}
