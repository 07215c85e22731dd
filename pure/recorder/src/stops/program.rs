//! The instructions of the programs, as assembly text.
//!
//! Registers: r6 is where the record is built, r7 the context, r8 the bytes of the record so far, r9 at the end of a call its
//! arguments in the thread's slot.

use ring3_layout::ring::RING3_RB_WAIT_CONSUMED;

use super::record::{self, CHUNK_HEAD_BYTES, HEAD_BYTES};
use super::table::{Chunk, Length, Phase, Piece, SAVED, Test};
use super::{CALL_BYTES, CALLS_AT, CALLS_MAX, map};
use crate::lines::Lines;

/// Where the stack has the thread's id.
const KEY_AT: i32 = -8;
/// Where it has the address of the thread's slot.
const SLOT_AT: i32 = -16;
/// Where it has a word.
const WORD_AT: i32 = -24;
/// Where it has the address of a chunk while its length is found.
const ADDRESS_AT: i32 = -32;
/// Where it has the record.
const RECORD_AT: i32 = -512;
/// Bytes of chunks that fit there.
const STACK_CHUNKS_BYTES: u32 = (ADDRESS_AT - RECORD_AT) as u32 - HEAD_BYTES as u32;
/// strace looks at so many bytes of a text (PATH_MAX), and the helper puts a NUL behind them.
const TEXT_BYTES_MAX: u32 = 4096 + 1;
/// A text gets at least so many bytes of the stack, or none is read there.
const TEXT_BYTES_MIN: u32 = 48;
/// Where the context of a call's start has the arguments, and that of its end the result.
const CONTEXT_VALUES_AT: i32 = 16;
/// Where both have the number (i32; of calls without names i64).
const NUMBER_AT: i32 = 8;

/// `struct pt_regs`: the first argument, and the stack pointer.
const REGISTERS_RDI_AT: i32 = 112;
const REGISTERS_RSP_AT: i32 = 152;
/// Where a signal frame has the mask, from where the stack pointer is when its handler has returned (`struct ucontext`).
const SIGNAL_MASK_AT: i32 = 296;
/// And `rax` there, followed by `rcx`, `rsp` and `rip` (`struct sigcontext`).
const SIGNAL_RAX_AT: i32 = 144;

/// Makes one program.
pub(super) struct Writer {
    text: String,
    labels: usize,
    at_end: bool,
    number: Number,
}

/// Where a program finds the call's number.
#[derive(Clone, Copy)]
enum Number {
    /// It is for calls with this one.
    Known(u32),
    /// The context has it.
    Short,
    /// The same, with 64 bits.
    Long,
}

/// A chunk's room, with what precedes it.
fn room(bytes: u32) -> u32 {
    CHUNK_HEAD_BYTES as u32 + bytes.next_multiple_of(8)
}

/// The room of all chunks, if texts have so many bytes.
fn rooms(pieces: &[Piece], text_bytes: u32) -> u32 {
    pieces.iter().map(|piece| room(piece.chunk.bytes_max().unwrap_or(text_bytes))).sum()
}

/// How many bytes a text may have on the stack, if all are to fit.
fn text_bytes_on_stack(pieces: &[Piece]) -> Option<u32> {
    if rooms(pieces, TEXT_BYTES_MAX) <= STACK_CHUNKS_BYTES {
        return Some(TEXT_BYTES_MAX);
    }
    let texts = pieces.iter().filter(|piece| piece.chunk.bytes_max().is_none()).count() as u32;
    let free = STACK_CHUNKS_BYTES.checked_sub(rooms(pieces, 0))?;
    let each = free.checked_div(texts)? & !7;
    (each >= TEXT_BYTES_MIN).then_some(each)
}

impl Lines for Writer {
    fn written(&mut self) -> (&mut String, &mut usize) {
        (&mut self.text, &mut self.labels)
    }
}

impl Writer {
    pub(super) fn new(at_end: bool) -> Writer {
        Writer { text: String::new(), labels: 0, at_end, number: Number::Short }
    }

    /// For calls without names.
    pub(super) fn unnamed(at_end: bool) -> Writer {
        Writer { number: Number::Long, ..Writer::new(at_end) }
    }

    /// The program at the start of a call with so many arguments. What its end needs is kept.
    pub(super) fn entry(mut self, arguments: u8, phase: &Phase, end: &Phase) -> String {
        self.head();
        for index in 0..6 {
            if index < arguments {
                self.argument(index, "r1");
            } else if index == arguments {
                self.line("r1 = 0");
            }
            self.line(&format!("*(u64 *)(r6 + {}) = r1", record::VALUES as i32 + 8 * i32::from(index)));
        }
        let kept = &end.arguments();
        if !kept.is_empty() {
            self.push(kept, end.saved());
        }
        self.body(phase, false);
        self.text
    }

    /// The program at the start of the function of `rt_sigreturn`: its argument is the address of the thread's registers.
    pub(super) fn sigreturn(mut self, number: u32, waits: bool) -> String {
        self.number = Number::Known(number);
        self.head();
        self.line("r1 = 0");
        for index in 1..6 {
            self.line(&format!("*(u64 *)(r6 + {}) = r1", record::VALUES + 8 * index));
        }
        self.line("r1 = r6");
        self.line(&format!("r1 += {}", record::VALUES));
        self.line("r2 = 8");
        self.line(&format!("r3 = *(u64 *)(r7 + {REGISTERS_RDI_AT})"));
        self.line(&format!("r3 += {REGISTERS_RSP_AT}"));
        self.line("call bpf_probe_read_kernel");
        self.line("r1 = r6");
        self.line(&format!("r1 += {}", record::VALUES + 8));
        self.line(&format!("r2 = {}", 8 * record::INTERRUPTED_WORDS));
        self.line(&format!("r3 = *(u64 *)(r6 + {})", record::VALUES));
        self.line(&format!("r3 += {SIGNAL_RAX_AT}"));
        self.line("call bpf_probe_read_user");
        if waits {
            self.put(RING3_RB_WAIT_CONSUMED);
            return self.text;
        }
        self.line(&format!("r3 = *(u64 *)(r6 + {})", record::VALUES));
        self.line(&format!("r3 += {SIGNAL_MASK_AT}"));
        self.chunk_begins();
        self.line("r2 = 8");
        self.line("call bpf_probe_read_user");
        self.line("if r0 != 0 goto unreadable");
        self.line("r2 = 8");
        self.chunk_ends();
        self.label("unreadable");
        self.end_of_chunks(true);
        self.put(0);
        self.text
    }

    /// The program at the end.
    pub(super) fn exit(mut self, phase: &Phase) -> String {
        self.head();
        self.line(&format!("r1 = *(u64 *)(r7 + {CONTEXT_VALUES_AT})"));
        self.line(&format!("*(u64 *)(r6 + {}) = r1", record::VALUES));
        self.line("r1 = 0");
        for index in 1..6 {
            self.line(&format!("*(u64 *)(r6 + {}) = r1", record::VALUES + 8 * index));
        }
        let has_slot = phase.needs_arguments();
        if has_slot {
            self.find_call();
        }
        self.body(phase, has_slot);
        self.text
    }

    /// Writes what all records have.
    fn head(&mut self) {
        let kind = if self.at_end { record::END } else { record::START };
        self.line("r7 = r1");
        self.line("r6 = r10");
        self.line(&format!("r6 += {RECORD_AT}"));
        self.line(&format!("r8 = {HEAD_BYTES}"));
        self.line("call bpf_get_current_pid_tgid");
        self.line(&format!("*(u32 *)(r10 {KEY_AT}) = r0"));
        self.line(&format!("*(u32 *)(r6 + {}) = r0", record::TID));
        self.line("r0 >>= 32");
        self.line(&format!("*(u32 *)(r6 + {}) = r0", record::PID));
        self.line("call bpf_ktime_get_ns");
        self.line(&format!("*(u64 *)(r6 + {}) = r0", record::TIME));
        self.line(&format!("r1 = {kind}"));
        self.line(&format!("*(u64 *)(r6 + {}) = r1", record::KIND));
        match self.number {
            Number::Known(number) => self.line(&format!("r1 = {number}")),
            Number::Short => self.line(&format!("r1 = *(u32 *)(r7 + {NUMBER_AT})")),
            Number::Long => self.line(&format!("r1 = *(u64 *)(r7 + {NUMBER_AT})")),
        }
        self.line(&format!("*(u64 *)(r6 + {}) = r1", record::NUMBER));
        self.line("r1 = 0");
        self.line(&format!("*(u64 *)(r6 + {}) = r1", record::CHUNKS_BYTES));
    }

    /// Loads an argument.
    fn argument(&mut self, index: u8, into: &str) {
        let index = 8 * i32::from(index);
        match self.at_end {
            false => self.line(&format!("{into} = *(u64 *)(r7 + {})", CONTEXT_VALUES_AT + index)),
            true => self.line(&format!("{into} = *(u64 *)(r9 + {})", 8 + index)),
        }
    }

    /// Sets r9 to the call of the slot in r0 that r1 says.
    fn call_of_slot(&mut self) {
        self.line(&format!("r1 &= {}", CALLS_MAX - 1));
        self.line("r9 = r1");
        self.line(&format!("r9 *= {CALL_BYTES}"));
        self.line("r9 += r0");
        self.line(&format!("r9 += {CALLS_AT}"));
    }

    /// Keeps arguments in the slot, as the last call. (A handler that interrupts this does the same with the one behind it.)
    fn push(&mut self, kept: &[u8], saved: Option<u8>) {
        self.look_up(map::SLOTS, KEY_AT);
        self.line("if r0 != 0 goto has_slot");
        self.line(&format!("r1 = map[{}]", map::SLOTS));
        self.line("r2 = r10");
        self.line(&format!("r2 += {KEY_AT}"));
        self.line(&format!("r3 = map[{}][0]+0", map::NEW_SLOT));
        self.line("r4 = 0");
        self.line("call bpf_map_update_elem");
        self.look_up(map::SLOTS, KEY_AT);
        self.line("if r0 == 0 goto pushed");
        self.label("has_slot");
        self.line("r1 = *(u64 *)(r0 + 0)");
        self.line("r1 += 1");
        self.line("*(u64 *)(r0 + 0) = r1");
        self.call_of_slot();
        for index in kept {
            self.argument(*index, "r1");
            self.line(&format!("*(u64 *)(r9 + {}) = r1", 8 + 8 * i32::from(*index)));
        }
        if let Some(index) = saved {
            self.argument(index, "r3");
            self.read_number();
            self.line(&format!("r1 = *(u32 *)(r10 {WORD_AT})"));
            self.line(&format!("*(u64 *)(r9 + {}) = r1", 8 + 8 * i32::from(SAVED)));
        }
        self.line(&format!("r1 = *(u32 *)(r7 + {NUMBER_AT})"));
        self.line("r1 += 1");
        self.line("*(u64 *)(r9 + 0) = r1");
        self.label("pushed");
    }

    /// Reads the u32 at r3 into the word; one that cannot be read is 0.
    fn read_number(&mut self) {
        self.line("r1 = 0");
        self.line(&format!("*(u64 *)(r10 {WORD_AT}) = r1"));
        self.line("r1 = r10");
        self.line(&format!("r1 += {WORD_AT}"));
        self.line("r2 = 4");
        self.line("call bpf_probe_read_user");
    }

    /// Finds the call's arguments, or makes the record one that WAITS.
    fn find_call(&mut self) {
        self.look_up(map::SLOTS, KEY_AT);
        self.line("if r0 == 0 goto waits");
        self.line("r1 = *(u64 *)(r0 + 0)");
        self.call_of_slot();
        self.line("r1 = *(u64 *)(r9 + 0)");
        self.line(&format!("r2 = *(u32 *)(r7 + {NUMBER_AT})"));
        self.line("r2 += 1");
        self.line("if r1 != r2 goto waits");
        self.line(&format!("*(u64 *)(r10 {SLOT_AT}) = r0"));
        self.line("r1 = 0");
        self.line("*(u64 *)(r9 + 0) = r1");
    }

    /// Forgets the call, behind which a handler may have put others until now.
    fn pop(&mut self) {
        self.line(&format!("r2 = *(u64 *)(r10 {SLOT_AT})"));
        self.line("r1 = *(u64 *)(r2 + 0)");
        self.line("r1 -= 1");
        self.line("*(u64 *)(r2 + 0) = r1");
    }

    /// The chunks, and what becomes of the record.
    fn body(&mut self, phase: &Phase, has_slot: bool) {
        let Phase::Chunks { pieces, waits } = phase else {
            self.put(RING3_RB_WAIT_CONSUMED);
            return;
        };
        let has_array = pieces.iter().any(|piece| matches!(piece.chunk, Chunk::Counted { unit: 2.., .. }));
        let may_wait = waits.is_some() || has_array;
        let waiting = if has_slot { "pop_waits" } else { "waits" };
        if let Some(test) = waits {
            let goes_on = self.new_label("streams");
            self.unless(*test, &goes_on);
            self.line(&format!("goto {waiting}"));
            self.label(&goes_on);
        }
        match text_bytes_on_stack(pieces) {
            Some(text_bytes) => {
                self.pieces(pieces, text_bytes, (text_bytes < TEXT_BYTES_MAX).then_some("large"), waiting);
                if has_slot {
                    self.pop();
                }
                self.end_of_chunks(!pieces.is_empty());
                self.put(0);
                if text_bytes < TEXT_BYTES_MAX {
                    self.label("large");
                    self.large(pieces, has_slot);
                }
            }
            None => self.large(pieces, has_slot),
        }
        if may_wait || has_slot {
            if has_slot && may_wait {
                self.label("pop_waits");
                self.pop();
            }
            self.label("waits");
            self.put(RING3_RB_WAIT_CONSUMED);
        }
    }

    /// Writes how long the chunks are.
    fn end_of_chunks(&mut self, any: bool) {
        if any {
            self.line("r1 = r8");
            self.line(&format!("r1 -= {HEAD_BYTES}"));
            self.line(&format!("*(u64 *)(r6 + {}) = r1", record::CHUNKS_BYTES));
        }
    }

    /// Writes the record on the stack, and ends the program.
    fn put(&mut self, flags: u64) {
        if flags != 0 {
            self.line(&format!("r1 = {}", record::WAITS));
            self.line(&format!("*(u32 *)(r6 + {}) = r1", record::FLAGS));
        }
        self.line(&format!("r1 = map[{}]", map::RECORDS));
        self.line("r2 = r6");
        self.line(&if flags == 0 { "r3 = r8".to_owned() } else { format!("r3 = {HEAD_BYTES}") });
        self.line(&format!("r4 = {flags} ll"));
        self.line("call bpf_ringbuf_output");
        self.leave();
    }

    fn leave(&mut self) {
        self.line("r0 = 0");
        self.line("exit");
    }

    /// Builds the record in the ring buffer.
    fn large(&mut self, pieces: &[Piece], has_slot: bool) {
        let reserved = self.new_label("reserved");
        self.line(&format!("r1 = map[{}]", map::RECORDS));
        self.line(&format!("r2 = {}", HEAD_BYTES as u32 + rooms(pieces, TEXT_BYTES_MAX)));
        self.line("r3 = 0");
        self.line("call bpf_ringbuf_reserve");
        self.line(&format!("if r0 != 0 goto {reserved}"));
        if has_slot {
            self.pop();
        }
        self.leave();
        self.label(&reserved);
        for at in (0..HEAD_BYTES).step_by(8) {
            self.line(&format!("r1 = *(u64 *)(r6 + {at})"));
            self.line(&format!("*(u64 *)(r0 + {at}) = r1"));
        }
        self.line("r6 = r0");
        self.line(&format!("r8 = {HEAD_BYTES}"));
        // (Arrays are small, and never here: a record that is reserved could not be given up.)
        assert!(!pieces.iter().any(|piece| matches!(piece.chunk, Chunk::Counted { unit: 2.., .. })));
        self.pieces(pieces, TEXT_BYTES_MAX, None, "");
        if has_slot {
            self.pop();
        }
        self.end_of_chunks(true);
        self.line("r1 = r6");
        self.line("r2 = 0");
        self.line("call bpf_ringbuf_submit");
        self.leave();
    }

    /// Appends the chunks. A text of as many bytes as it may have leads to `cut`, an array that cannot be read to `unreadable`.
    fn pieces(&mut self, pieces: &[Piece], text_bytes: u32, cut: Option<&str>, unreadable: &str) {
        for piece in pieces {
            let next = self.new_label("next");
            for test in &piece.only {
                self.unless(*test, &next);
            }
            self.argument(piece.chunk.address(), "r3");
            self.line(&format!("if r3 == 0 goto {next}"));
            match piece.chunk {
                Chunk::Text(_) => {
                    self.chunk_begins();
                    self.line(&format!("r2 = {text_bytes}"));
                    self.line("call bpf_probe_read_user_str");
                    if cut.is_none() {
                        self.text_without_end(piece.chunk.address(), &next);
                    }
                    self.line(&format!("if r0 s<= 0 goto {next}"));
                    match cut {
                        Some(cut) => self.line(&format!("if r0 s>= {text_bytes} goto {cut}")),
                        None => self.line(&format!("if r0 s> {text_bytes} goto {next}")),
                    }
                    self.line("r2 = r0");
                    if cut.is_none() && text_bytes == TEXT_BYTES_MAX {
                        // (This NUL is not the text's.)
                        let whole = self.new_label("whole");
                        self.line(&format!("if r2 != {TEXT_BYTES_MAX} goto {whole}"));
                        self.line("r2 -= 1");
                        self.label(&whole);
                    }
                }
                Chunk::Bytes(_, bytes) => {
                    self.chunk_begins();
                    self.line(&format!("r2 = {bytes}"));
                    self.line("call bpf_probe_read_user");
                    self.line(&format!("if r0 != 0 goto {next}"));
                    self.line(&format!("r2 = {bytes}"));
                }
                Chunk::Counted { length, unit, bytes_max, .. } => {
                    let fits = self.new_label("fits");
                    match length {
                        Length::Argument(index) => self.argument(index, "r2"),
                        Length::Word(index) => {
                            self.argument(index, "r2");
                            self.line("w2 = w2");
                        }
                        Length::Smaller(index) => {
                            self.line(&format!("*(u64 *)(r10 {ADDRESS_AT}) = r3"));
                            self.argument(index, "r3");
                            self.read_number();
                            self.line(&format!("r3 = *(u64 *)(r10 {ADDRESS_AT})"));
                            self.line(&format!("r2 = *(u32 *)(r10 {WORD_AT})"));
                            let smaller = self.new_label("smaller");
                            self.argument(SAVED, "r1");
                            self.line(&format!("if r2 <= r1 goto {smaller}"));
                            self.line("r2 = r1");
                            self.label(&smaller);
                        }
                        Length::Result => self.line(&format!("r2 = *(u64 *)(r7 + {CONTEXT_VALUES_AT})")),
                    }
                    self.line(&format!("if r2 <= {} goto {fits}", bytes_max / unit));
                    self.line(&format!("r2 = {}", bytes_max / unit));
                    self.label(&fits);
                    if unit > 1 {
                        self.line(&format!("r2 *= {unit}"));
                    }
                    self.line(&format!("if r2 == 0 goto {next}"));
                    self.line(&format!("*(u64 *)(r10 {WORD_AT}) = r2"));
                    self.chunk_begins();
                    self.line("call bpf_probe_read_user");
                    // (Of an array strace shows the elements before those that cannot be read.)
                    let failed = if unit == 1 { next.as_str() } else { unreadable };
                    self.line(&format!("if r0 != 0 goto {failed}"));
                    self.line(&format!("r2 = *(u64 *)(r10 {WORD_AT})"));
                }
            }
            self.chunk_ends();
            self.label(&next);
        }
    }

    /// Where memory ends behind the bytes of a text at which strace looks, without a NUL, those are copied.
    fn text_without_end(&mut self, address: u8, unreadable: &str) {
        let readable = self.new_label("readable");
        self.line(&format!("if r0 s> 0 goto {readable}"));
        self.argument(address, "r3");
        self.chunk_begins();
        self.line(&format!("r2 = {}", TEXT_BYTES_MAX - 1));
        self.line("call bpf_probe_read_user");
        self.line(&format!("if r0 != 0 goto {unreadable}"));
        self.line(&format!("r0 = {}", TEXT_BYTES_MAX - 1));
        self.label(&readable);
    }

    /// Writes how long a chunk is, which is in r2, and goes behind it.
    fn chunk_ends(&mut self) {
        self.line("r1 = r6");
        self.line("r1 += r8");
        self.line("*(u64 *)(r1 + 8) = r2");
        self.line("r2 += 23");
        self.line("r2 &= -8");
        self.line("r8 += r2");
    }

    /// Writes a chunk's address, which is in r3, and sets r1 to where its memory goes.
    fn chunk_begins(&mut self) {
        self.line("r1 = r6");
        self.line("r1 += r8");
        self.line("*(u64 *)(r1 + 0) = r3");
        self.line(&format!("r1 += {CHUNK_HEAD_BYTES}"));
    }

    /// Leads to the label unless the test is true.
    fn unless(&mut self, test: Test, otherwise: &str) {
        let result = format!("r1 = *(u64 *)(r7 + {CONTEXT_VALUES_AT})");
        match test {
            Test::Succeeds => {
                self.line(&result);
                self.line(&format!("if r1 s< 0 goto {otherwise}"));
            }
            Test::Fails => {
                self.line(&result);
                self.line(&format!("if r1 s>= 0 goto {otherwise}"));
            }
            Test::ResultAbove(limit) => {
                self.line(&result);
                self.line(&format!("if r1 s<= {limit} goto {otherwise}"));
            }
            Test::ArgumentAbove(index, limit) => {
                self.argument(index, "r1");
                self.line("w1 = w1");
                self.line(&format!("if r1 <= {limit} goto {otherwise}"));
            }
            Test::Among { index, mask, values } => {
                let found = self.new_label("among");
                self.argument(index, "r1");
                self.line("w1 = w1");
                self.line(&format!("r1 &= {}", mask as i32));
                self.line("w1 = w1");
                for value in values {
                    self.line(&format!("if r1 == {value} goto {found}"));
                }
                self.line(&format!("goto {otherwise}"));
                self.label(&found);
            }
            Test::NotAmong { index, values } => {
                self.argument(index, "r1");
                self.line("w1 = w1");
                for value in values {
                    self.line(&format!("if r1 == {value} goto {otherwise}"));
                }
            }
            Test::Any { index, bits } => {
                self.argument(index, "r1");
                self.line(&format!("r1 &= {bits}"));
                self.line(&format!("if r1 == 0 goto {otherwise}"));
            }
        }
    }
}
