//! `int $0x80` in the code of a file.

use super::code::{CodeFile, between, is_reached};

/// Bytes that look like `int $0x80` in an executable segment that are looked at.
const CANDIDATES_MAX: usize = 1024;

impl CodeFile {
    /// The first `int $0x80` that is certainly one: the bytes are in tables of constants, too.
    pub(super) fn first_gate(&self) -> Option<u64> {
        let elf = self.elf();
        for segment in elf.executable_segments() {
            let code = elf.code(segment.clone()).unwrap_or_default();
            let places = code.windows(2).enumerate().filter(|(_, pair)| *pair == [0xcd, 0x80]);
            let mut done = segment.start;
            for (at, _) in places.take(CANDIDATES_MAX) {
                let vaddr = segment.start + at as u64;
                let known = elf.function_bounds(vaddr).filter(|_| vaddr >= done);
                let is_known = known.is_some();
                let Some(bounds) = known.or_else(|| between(elf, vaddr).filter(|_| vaddr >= done)) else { continue };
                done = bounds.end;
                let is_real =
                    |has_number: &bool| is_known || *has_number || is_reached(elf, self.calls(), bounds.start);
                let found = ring3_patch::gates(elf.code(bounds.clone()).unwrap_or_default(), bounds.start);
                if let Some((gate, _)) = found.into_iter().find(|(_, has_number)| is_real(has_number)) {
                    return Some(gate);
                }
            }
        }
        None
    }
}
