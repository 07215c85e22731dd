//! The addresses of a file at which indirect jumps may arrive.
//!
//! An indirect jump takes its target from a register or from memory. The file itself must have produced that address: as a
//! pointer in its data (also as the addend of a relocation), as an operand of an instruction, or as an entry of a jump table,
//! which is an offset from an address that an instruction computes. [`IndirectTargets::of`] collects all of these. It tries a
//! field at every position, and reads a table up to the first entry that is not an instruction of a function. So the set contains
//! addresses that no jump goes to, but lacks none that a compiler's code can go to. Where code computes with its own address, no
//! set is complete; [`computes_targets`] reports that.

use std::collections::HashMap;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use crate::flow::{Branch, decode, direct_target, overlapping};

/// Entries of a jump table that are read at most. (The largest `switch` that compilers make a table of has some thousand cases.)
const TABLE_ENTRIES_MAX: usize = 1 << 16;
/// Entries of all tables of a file that are read at most.
const FILE_ENTRIES_MAX: usize = 1 << 26;

/// A part of a file that is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Its address.
    pub address: u64,
    /// Its bytes, as far as the file has them.
    pub bytes: &'a [u8],
    /// It is mapped executable.
    pub executable: bool,
}

impl Part<'_> {
    fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes.len() as u64
    }
}

/// Addresses in the code of a file that an indirect jump may go to.
#[derive(Debug, Default)]
pub struct IndirectTargets {
    /// By target; `from` is the field that makes the address.
    targets: Vec<Branch>,
    /// Everything may be a target: there are tables that were not read.
    unbounded: bool,
}

impl IndirectTargets {
    /// Those of a file. `fixed`: it is mapped at the addresses that it names, so instructions may have them as immediate
    /// values. `code_of` gives the code of the function around an address, and where it begins, if that is known.
    pub fn of<'p>(
        parts: &'p [Part<'p>],
        fixed: bool,
        code_of: &'p dyn Fn(u64) -> Option<(&'p [u8], u64)>,
    ) -> IndirectTargets {
        let mut search = Search { parts, code_of, functions: HashMap::new(), found: vec![], entries: 0 };
        for part in parts {
            search.pointers(part);
            if part.executable {
                search.relative_operands(part);
                if fixed {
                    search.absolute_operands(part);
                }
            }
        }
        let unbounded = search.entries > FILE_ENTRIES_MAX;
        let mut targets = search.found;
        targets.sort_unstable();
        targets.dedup();
        IndirectTargets { targets, unbounded }
    }

    /// More targets of the same file, such as the landing pads of exceptions.
    pub fn add(&mut self, more: impl IntoIterator<Item = Branch>) {
        self.targets.extend(more);
        self.targets.sort_unstable();
    }

    /// What may go to these addresses.
    pub fn to(&self, range: Range<u64>) -> impl Iterator<Item = Branch> + '_ {
        let from = self.targets.partition_point(|target| target.to < range.start);
        self.targets[from..].iter().take_while(move |target| target.to < range.end).copied()
    }

    /// Everything may be a target: a table that says more cannot be read.
    pub fn set_unbounded(&mut self) {
        self.unbounded = true;
    }

    /// Whether everything may be a target.
    pub fn is_unbounded(&self) -> bool {
        self.unbounded
    }
}

struct Search<'p> {
    parts: &'p [Part<'p>],
    code_of: &'p dyn Fn(u64) -> Option<(&'p [u8], u64)>,
    /// Instructions of functions that tables lead to, by the function's first byte.
    functions: HashMap<u64, Instructions>,
    found: Vec<Branch>,
    entries: usize,
}

impl Search<'_> {
    fn is_code(&self, address: u64) -> bool {
        self.parts.iter().any(|part| part.executable && part.range().contains(&address))
    }

    /// Whether an instruction may begin here.
    fn is_instruction(&mut self, address: u64) -> bool {
        let Some((code, start)) = (self.code_of)(address) else { return self.is_code(address) };
        self.functions.entry(start).or_insert_with(|| Instructions::of(code, start)).may_begin_at(address)
    }

    fn note(&mut self, to: u64, from: u64) {
        if self.is_code(to) {
            self.found.push(Branch { to, from });
        }
    }

    /// Pointers: every 8 bytes that are an address in code. Data has them aligned to 4 at least; code at any byte.
    fn pointers(&mut self, part: &Part<'_>) {
        let step = if part.executable { 1 } else { 4 };
        for (at, window) in part.bytes.windows(8).enumerate().step_by(step) {
            self.note(u64::from_le_bytes(window.try_into().expect("8 bytes")), part.address + at as u64);
        }
    }

    /// `lea disp32(%rip), reg` of code, or of a table of offsets from itself.
    fn relative_operands(&mut self, part: &Part<'_>) {
        const LEA: u8 = 0x8d;
        for (at, window) in part.bytes.windows(6).enumerate() {
            if window[0] != LEA || window[1] & 0xc7 != 0x05 {
                continue;
            }
            let displacement = i32::from_le_bytes(window[2..].try_into().expect("4 bytes"));
            let (field, next) = (part.address + at as u64 + 2, part.address + at as u64 + 6);
            let address = next.wrapping_add_signed(i64::from(displacement));
            self.note(address, field);
            self.table(address, address, field);
        }
    }

    /// Immediate values and displacements of 4 bytes: of code, or of a table of 4-byte addresses.
    fn absolute_operands(&mut self, part: &Part<'_>) {
        for (at, window) in part.bytes.windows(4).enumerate() {
            let address = u64::from(u32::from_le_bytes(window.try_into().expect("4 bytes")));
            let field = part.address + at as u64;
            self.note(address, field);
            // `[table + 4 * index]`: the SIB byte has a scale of 4 and no base.
            let is_indexed_by_4 = at >= 1 && part.bytes[at - 1] & 0xc7 == 0x85;
            if is_indexed_by_4 {
                self.table(address, 0, field);
            }
        }
    }

    /// The entries of what may be a table at `address`: 4-byte offsets from `base`.
    fn table(&mut self, address: u64, base: u64, field: u64) {
        let Some(part) = self.parts.iter().find(|part| part.range().contains(&address)) else { return };
        let bytes = &part.bytes[(address - part.address) as usize..];
        for entry in bytes.chunks_exact(4).take(TABLE_ENTRIES_MAX) {
            let offset = i32::from_le_bytes(entry.try_into().expect("4 bytes"));
            let to = base.wrapping_add_signed(i64::from(offset));
            if self.entries > FILE_ENTRIES_MAX || !self.is_instruction(to) {
                return;
            }
            self.entries += 1;
            self.found.push(Branch { to, from: field });
        }
    }
}

/// Where the instructions of a function begin.
#[derive(Debug)]
pub struct Instructions {
    addresses: Vec<u64>,
    /// What lies from here on was not decoded.
    end: u64,
}

impl Instructions {
    /// Those of the function whose code begins at `address`.
    pub fn of(code: &[u8], address: u64) -> Instructions {
        let (mut addresses, mut targets, mut end) = (vec![], vec![], address + code.len() as u64);
        let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                end = instruction.ip();
                break;
            }
            addresses.push(instruction.ip());
            targets.extend(direct_target(&instruction).filter(|to| (address..end).contains(to)));
        }
        // Some may begin in the middle of these.
        if targets.iter().any(|to| addresses.binary_search(to).is_err()) {
            addresses.extend(overlapping(code, address).keys());
            addresses.sort_unstable();
        }
        Instructions { addresses, end }
    }

    /// Whether one begins here, as far as it is known.
    pub fn may_begin_at(&self, address: u64) -> bool {
        address >= self.end || self.addresses.binary_search(&address).is_ok()
    }
}

/// Whether a function, whose code begins at `address`, has an instruction with an operand of 4 bytes or more at `field`.
pub fn has_operand_at(code: &[u8], address: u64, field: u64) -> bool {
    let is_at = |decoder: &Decoder<'_>, instruction: &Instruction| {
        let offsets = decoder.get_constant_offsets(instruction);
        let fields = [
            (offsets.has_displacement(), offsets.displacement_offset()),
            (offsets.has_immediate(), offsets.immediate_offset()),
        ];
        fields.iter().any(|(there, at)| *there && instruction.ip() + *at as u64 == field)
    };
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    while decoder.can_decode() && decoder.ip() <= field {
        let instruction = decoder.decode();
        // What lies behind one that is invalid is not known to be no code.
        if instruction.is_invalid() || is_at(&decoder, &instruction) {
            return true;
        }
    }
    overlapping(code, address).range(..=field).next_back().is_some_and(|(ip, _)| {
        let mut decoder = Decoder::with_ip(64, &code[(ip - address) as usize..], *ip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        is_at(&decoder, &instruction)
    })
}

/// Whether a function may compute where it jumps to: it has an indirect jump, and an instruction that makes an address in
/// the function. (A jump through a fixed place, as in `.plt`, takes what is there.)
pub fn computes_targets(code: &[u8], address: u64) -> bool {
    let own = address..address + code.len() as u64;
    let instructions = decode(code, address);
    let jumps =
        instructions.iter().any(|i| i.flow_control() == FlowControl::IndirectBranch && !i.is_ip_rel_memory_operand());
    let takes_own = |i: &Instruction| {
        i.is_ip_rel_memory_operand() && own.contains(&i.ip_rel_memory_address())
            || i.op_kinds().any(|kind| kind == OpKind::Immediate32) && own.contains(&u64::from(i.immediate32()))
    };
    jumps && instructions.iter().any(takes_own)
}

/// The calls of a function: each one's first byte.
pub fn call_sites(code: &[u8], address: u64) -> impl Iterator<Item = u64> {
    decode(code, address).into_iter().filter(|i| i.is_call_near()).map(|i| i.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x1000;
    const DATA: u64 = 0x3000;

    /// The targets among the bytes behind `CODE` that follow from code and data.
    fn targets(code: &[u8], data: &[u8], fixed: bool) -> Vec<u64> {
        let parts = [
            Part { address: CODE, bytes: code, executable: true },
            Part { address: DATA, bytes: data, executable: false },
        ];
        let found =
            IndirectTargets::of(&parts, fixed, &|address| (CODE..DATA).contains(&address).then_some((code, CODE)));
        assert!(!found.is_unbounded());
        let mut targets: Vec<u64> = found.to(0..u64::MAX).map(|target| target.to - CODE).collect();
        targets.dedup();
        targets
    }

    #[test]
    fn pointers_among_data_are_targets() {
        let mut data = [0; 20];
        data[4..12].copy_from_slice(&(CODE + 2).to_le_bytes());
        data[12..].copy_from_slice(&(CODE + 4).to_le_bytes());
        assert_eq!(targets(&[0x90; 16], &data, false), [2, 4]);
    }

    #[test]
    fn tables_of_offsets_end_where_an_entry_is_no_instruction() {
        // lea table(%rip), %rax; mov %eax, %ecx; mov %eax, %edx; ret
        let mut code = vec![0x48, 0x8d, 0x05];
        code.extend_from_slice(&((DATA - CODE - 7) as i32).to_le_bytes());
        code.extend_from_slice(&[0x89, 0xc1, 0x89, 0xc2, 0xc3]);
        let table: Vec<u8> = [9, 11, 8, 7]
            .iter()
            .flat_map(|target| ((CODE + target).wrapping_sub(DATA) as i32).to_le_bytes())
            .collect();
        assert_eq!(targets(&code, &table, false), [9, 11]);
    }

    #[test]
    fn instructions_that_others_overlap_may_begin_where_they_do() {
        // jmp to its own last byte, which begins `inc eax`; xor rax, 0x90909090 (in sequence, its first byte is part of another one);
        // xor eax, eax; ret.
        let code = [0xeb, 0xff, 0xc0, 0x48, 0x35, 0x90, 0x90, 0x90, 0x90, 0x31, 0xc0, 0xc3];
        assert!([3, 9, 11].iter().all(|at| Instructions::of(&code, CODE).may_begin_at(CODE + at)));
        assert!(!Instructions::of(&code, CODE).may_begin_at(CODE + 10));
        assert!(has_operand_at(&code, CODE, CODE + 5) && !has_operand_at(&code, CODE, CODE + 3));
    }

    #[test]
    fn operands_are_targets_where_the_file_has_fixed_addresses() {
        // mov $0x1004, %eax; jmp *0x3000(, %rax, 4)
        let code = [0xb8, 0x04, 0x10, 0, 0, 0xff, 0x24, 0x85, 0, 0x30, 0, 0, 0xc3];
        let table = [(CODE + 12) as u32, (CODE + 5) as u32].map(u32::to_le_bytes).concat();
        assert_eq!(targets(&code, &table, true), [4, 5, 12]);
        assert_eq!(targets(&code, &table, false), []);
    }

    #[test]
    fn code_that_takes_its_own_address_may_jump_anywhere_in_it() {
        // lea 0(%rip), %rax; add %rdi, %rax; jmp *%rax
        let computes = [0x48, 0x8d, 0x05, 0, 0, 0, 0, 0x48, 0x01, 0xf8, 0xff, 0xe0];
        assert!(computes_targets(&computes, CODE));
        // The same with the address of data.
        let mut looks_up = computes;
        looks_up[5] = 0x20;
        assert!(!computes_targets(&looks_up, CODE));
    }
}
