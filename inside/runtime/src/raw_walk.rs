//! Walks the stack: by the unwind tables that the server has published (docs/design/stacks.md), and by frame pointers where there is
//! no table.
//!
//! All that is read of the process may be gone or wrong: each word is read with care, and the number of frames is limited.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::fence;

use ring3_layout::control::{UNWIND_CODE_MAX, UnwindCode, range_unpack, unwind_list_offset};
use ring3_layout::region::{CONTROL_OFFSET, REGION_BYTES, UNWIND_BYTES, UNWIND_OFFSET};
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::ptrace::PtRegs;
use ring3_unwind::{Registers, Rule, Step, Table, caller};

use crate::raw_guarded::{may_fault, word};
use crate::raw_memory::{USER_END, read};
use crate::raw_request::control;
use crate::raw_shadow::original;
use crate::raw_shown::{displaced_exactly, is_in_stubs, returns_by_trampoline};
use crate::raw_unwound::place_of_call;

const PAGE: u64 = 4096;
const WORD: u64 = 8;
/// Bytes of the stack that are fetched at a time by a system call.
const WINDOW_BYTES: u64 = 512;
/// What the C libraries' and Go's functions that signal handlers return to begin with: `mov rax, 15` (or `mov eax, 15`), `syscall`.
const RESTORERS: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];

/// Words of the process's memory. Where the kernel has to copy them, it copies some more.
struct Words<'t> {
    tb: &'t ThreadBlock,
    at: u64,
    bytes: u64,
    window: [u64; (WINDOW_BYTES / WORD) as usize],
}

impl Words<'_> {
    /// The word at `address`, if it can be read.
    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        if self.tb.memory_of == 0 && may_fault(self.tb.region_base) && address <= USER_END - WORD {
            // SAFETY: it was just asked.
            return unsafe { word(address) };
        }
        self.fetched(address)
    }

    #[inline(never)]
    fn fetched(&mut self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.at);
        if offset.is_multiple_of(WORD) && offset < self.bytes && self.bytes - offset >= WORD {
            return self.window.get((offset / WORD) as usize).copied();
        }
        // (Up to the end of the page, which is there if its beginning is; or just a word across it.)
        let bytes = ((PAGE - address % PAGE) & !(WORD - 1)).clamp(WORD, WINDOW_BYTES);
        self.bytes = 0;
        // SAFETY: the window has room for WINDOW_BYTES, which is not less.
        unsafe { read(self.tb, self.window.as_mut_ptr() as u64, address, bytes) }.ok()?;
        (self.at, self.bytes) = (address, bytes);
        self.window.first().copied()
    }
}

/// Code with an unwind table.
#[derive(Clone, Copy)]
struct Code {
    start: u64,
    end: u64,
    origin: u64,
    table: Table<'static>,
}

impl Code {
    const NONE: Code = Code { start: 0, end: 0, origin: 0, table: Table::EMPTY };
}

/// The published list.
struct Tables {
    base: u64,
    published: u64,
    /// Where the last rule was found.
    code: Code,
}

impl Tables {
    fn of(base: u64) -> Tables {
        Tables { base, published: control(base).unwind.load(Acquire), code: Code::NONE }
    }

    /// The rule for an instruction. If the list is replaced again and again, the stack ends.
    #[inline(always)]
    fn rule(&mut self, words: &mut Words<'_>, pc: u64) -> Rule {
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            if pc.wrapping_sub(self.code.start) >= self.code.end.wrapping_sub(self.code.start) {
                self.code = self.search(words, pc).unwrap_or(Code::NONE);
            }
            let rule = self.code.table.find(pc.wrapping_sub(self.code.origin));
            fence(Acquire);
            let now = control(self.base).unwind.load(Relaxed);
            if now == self.published {
                return rule;
            }
            (self.published, self.code) = (now, Code::NONE);
            fence(Acquire);
        }
        Rule::end()
    }

    #[inline(never)]
    fn search(&self, words: &mut Words<'_>, pc: u64) -> Option<Code> {
        let (version, count) = range_unpack(self.published);
        let list = (self.base + CONTROL_OFFSET + unwind_list_offset(version)) as *const UnwindCode;
        // SAFETY: both lists are mapped with the control page, and consist of atomics.
        let list = unsafe { core::slice::from_raw_parts(list, (count as usize).min(UNWIND_CODE_MAX)) };
        let behind = list.partition_point(|code| code.start.load(Relaxed) <= pc);
        let code = list.get(behind.checked_sub(1)?)?;
        let (offset, bytes) = range_unpack(code.table.load(Relaxed));
        let is_there = u64::from(offset) + u64::from(bytes) <= UNWIND_BYTES;
        let (start, end) = (code.start.load(Relaxed), code.end.load(Relaxed));
        if !is_there || pc >= end || words.word(code.witness_at.load(Relaxed))? != code.witness.load(Relaxed) {
            return None;
        }
        let table = (self.base + UNWIND_OFFSET + u64::from(offset)) as *const u8;
        // SAFETY: the memory of tables is mapped in each target, and what is in it is not written again.
        let table = unsafe { core::slice::from_raw_parts(table, bytes as usize) };
        Some(Code { start, end, origin: code.origin.load(Relaxed), table: Table::of(table)? })
    }
}

/// Gives the addresses of the stack, at most `limit`, with their numbers to `put`; how many there are. `is_at_entry`: the
/// return address is at the stack pointer still, as far as the first instruction tells.
pub(crate) fn walk(
    tb: &ThreadBlock,
    regs: &PtRegs,
    is_at_entry: bool,
    limit: usize,
    mut put: impl FnMut(usize, u64),
) -> usize {
    let mut words = Words { tb, at: 0, bytes: 0, window: [0; (WINDOW_BYTES / WORD) as usize] };
    let mut tables = Tables::of(tb.region_base);
    let mut frame = Registers { rip: regs.rip, rsp: regs.rsp, rbp: Some(regs.rbp), rbx: Some(regs.rbx) };
    // A return address may be the next function's: the call is before it.
    let mut called = 0;
    for count in 0..limit {
        put(count, frame.rip);
        let rule = tables.rule(&mut words, frame.rip.wrapping_sub(called));
        let step = match caller(&rule, &frame, |at| words.word(at)) {
            Step::Unknown => by_frame_pointer(&mut words, &frame, is_at_entry && count == 0),
            step => step,
        };
        let next = match step {
            Step::Caller(next) => returned_to(tb, next).inspect(|_| called = 1),
            Step::Interrupted(next) => interrupted_at(tb, next).inspect(|_| called = 0),
            Step::End | Step::Unknown => None,
        };
        match next {
            Some(next) => frame = next,
            None => return count + 1,
        }
    }
    limit
}

/// The caller, with its real return address.
#[inline(always)]
fn returned_to(tb: &ThreadBlock, mut caller: Registers) -> Option<Registers> {
    if caller.rip.wrapping_sub(tb.region_base) < REGION_BYTES {
        caller.rip = original(tb, caller.rsp.wrapping_sub(WORD), caller.rip);
    }
    // (The first function of a thread may have 0 above it.)
    (caller.rip != 0 && caller.rip.wrapping_sub(tb.region_base) >= REGION_BYTES).then_some(caller)
}

/// What a signal has interrupted, as the process's own code: it may have been in ring3's.
#[cold]
fn interrupted_at(tb: &ThreadBlock, mut frame: Registers) -> Option<Registers> {
    let base = tb.region_base;
    if frame.rip.wrapping_sub(base) < REGION_BYTES {
        frame.rip = place_of_call(base, frame.rip)?;
    } else if is_in_stubs(base, frame.rip) {
        // (Elsewhere in a stub the registers are not the function's.)
        frame.rip = displaced_exactly(base, frame.rip)?;
    }
    Some(frame)
}

/// The caller by the frame pointer. Mirrors arch/x86/events/core.c:perf_callchain_user. (That does not know what signal handlers
/// return to.)
#[inline(never)]
fn by_frame_pointer(words: &mut Words<'_>, frame: &Registers, is_at_entry: bool) -> Step {
    if is_at_entry {
        let Some(rip) = words.word(frame.rsp) else { return Step::End };
        return Step::Caller(Registers { rip, rsp: frame.rsp.wrapping_add(WORD), ..*frame });
    }
    if is_restorer(words, frame.rip) {
        return caller(&Rule::signal(), frame, |at| words.word(at));
    }
    let rule =
        Rule { kind: Rule::PLAIN, base: Rule::RBP, rbp: Rule::FROM_CFA, rbx: Rule::LOST, offset: 16, ..Rule::none() };
    caller(&Rule { rbp_at: -2, ..rule }, frame, |at| words.word(at))
}

/// Whether signal handlers return to this address.
fn is_restorer(words: &mut Words<'_>, address: u64) -> bool {
    const JUMP: u8 = 0xe9;
    let mut code = [0u8; 2 * WORD as usize];
    let (first, rest) = code.split_at_mut(WORD as usize);
    let Some(word) = words.word(address) else { return false };
    first.copy_from_slice(&word.to_le_bytes());
    // (With a jump of ring3's, it looks otherwise.)
    if first.first() == Some(&JUMP) {
        return returns_by_trampoline(words.tb.region_base, address);
    }
    if !RESTORERS.iter().any(|code| code.starts_with(first) || first.starts_with(code)) {
        return false;
    }
    let Some(word) = words.word(address.wrapping_add(WORD)) else { return false };
    rest.copy_from_slice(&word.to_le_bytes());
    RESTORERS.iter().any(|bytes| code.starts_with(bytes))
}
