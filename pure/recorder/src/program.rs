//! The instructions of programs that record events, as assembly text ([`ring3_isa::assemble`]).
//!
//! An event of a probe is written at once, by [`once`]. An event of a system call has a begin and an end: [`entry`] begins the
//! record in the thread's slot, [`exit`] completes and writes it. Both keep the record in map memory, not on the program's stack,
//! which has 512 bytes. The buffer is asked to wake nobody: its reader looks at it on a timer, which costs the target nothing.
//!
//! A filter is split where `&&` joins its parts. What needs arguments only runs before anything else; what is known at the start runs
//! there; the rest runs at the end, before buffers are copied.
//!
//! Registers: r6 is the slot, r7 the context, r8 the bytes of the variable part so far, r9 process and thread.

use ring3_event::{EventType, Form, HEADER_BYTES, Kind, Phase, State, header};
use ring3_filter::{Context, LabelCounter, Place, Places, StatePlace, Typed};

use crate::lines::Lines;
use crate::syscalls::RESULT_AT;
use crate::{Address, Operand, Recipe, Source};

pub mod count;

/// Maps of the programs, by their index.
pub mod map {
    /// Hash, from thread ids to slots of the calls that have begun. The call of a signal handler that interrupts another one has
    /// the key of the thread with [`super::NESTED`].
    pub const SLOTS: usize = 0;
    /// The ring buffer.
    pub const RECORDS: usize = 1;
    /// Array of one value, with the counters of [`super::lost`].
    pub const LOST: usize = 2;
    /// Per-CPU array of [`SCRATCHES`] slots: where records of one moment are built. The first is also what a thread's slot begins
    /// with.
    pub const SCRATCH: usize = 3;
    /// Scratch slots of a CPU: for a program, and those of signal handlers that have interrupted it, as many as run at a time.
    pub const SCRATCHES: u32 = 4;
    /// Per-CPU array of [`super::count`]'s values, by [`super::count::index`].
    pub const COUNTS: usize = 4;
}

/// What becomes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Its record is written into the ring buffer.
    Records,
    /// It is counted.
    Counts {
        /// Begin of the name of threads whose events do not count until they have executed a program.
        before_exec: Option<[u8; 8]>,
    },
}

/// What could not be written: counters of 64 bits, by their offset in bytes.
pub mod lost {
    /// The ring buffer was full.
    pub const BUFFER_FULL: u32 = 0;
    /// There was no slot for another thread.
    pub const NO_SLOT: u32 = 8;
    /// Bytes of them all.
    pub const BYTES: u32 = 16;
}

/// What is added to the key of a call that a signal handler makes while another is interrupted: the end of that one comes after
/// the handler. (Thread ids have 22 bits, include/linux/threads.h.)
pub const NESTED: u32 = 1 << 31;

/// Where a slot has the bytes of the variable part (u32).
const LENGTH_AT: usize = 0;
/// Where it has the event that has begun, plus 1 (u32); 0: none. It is there while a program works on the slot: the programs of a
/// signal handler that comes in between use another one. In a scratch slot it is the id of the thread whose program does.
const PENDING_AT: usize = 4;
/// Where it has the time of the start (u64).
const BEGIN_AT: usize = 8;
/// Where it has the arguments that are wanted at the end (six u64).
const ARGUMENTS_AT: usize = 16;
/// Where it has the offsets of texts in the variable part, for a filter at the end (u32 each, as many as arguments).
const TEXTS_AT: usize = 64;
/// Where it says that a nested call has begun (u8).
const HAS_NESTED_AT: usize = 88;
/// Where it keeps where an array begins in the variable part, while its texts are appended (u32).
const ARRAY_AT: usize = 92;
/// Where it has the record.
const RECORD_AT: usize = 96;

/// Bytes of an address.
const ADDRESS_BYTES: u32 = 8;

/// Where the programs' stack has the thread id.
const KEY_AT: i32 = -8;
/// Where it has a number from the target's memory.
const WORD_AT: i32 = -16;
/// Where it has the addresses of texts, for the filter.
const POINTERS_AT: i16 = -24;
/// `BPF_RB_NO_WAKEUP`
const NO_WAKEUP: u32 = 1;
/// Where the context of `sys_enter_*` has the first argument (`struct syscall_trace_enter`).
const CONTEXT_ARGUMENTS_AT: i16 = 16;
/// Where the context of `sys_enter_*` and `sys_exit_*` has the call's number (u32).
const NUMBER_AT: i16 = 8;

/// Bytes of a slot that holds records of this type.
pub fn slot_bytes(of: &EventType) -> u32 {
    (RECORD_AT as u32 + of.bytes_max()).next_multiple_of(8)
}

/// The program of an event that has no duration.
pub fn once(recipe: &Recipe, filter: Option<&Typed>, output: &Output) -> String {
    let mut text = Text::new(recipe, filter, output);
    text.begin();
    text.scratch();
    text.number(Id::Constant(recipe.of.id));
    text.record_begin();
    text.time();
    text.put();
    text.end()
}

/// The program at the start of a system call. One whose end is not seen is written at once, by the same program.
pub fn entry(recipe: &Recipe, filter: Option<&Typed>, output: &Output) -> String {
    let has_end = recipe.of.fields.iter().any(|field| field.phase == Phase::Exit);
    let mut text = Text::new(recipe, filter, output);
    text.begin();
    if has_end {
        text.slot(true);
    } else {
        text.scratch();
    }
    if has_end {
        text.line(&format!("r1 = *(u32 *)(r7 + {NUMBER_AT})"));
        text.line("r1 += 1");
        text.take_slot();
    }
    text.number(Id::SyscallNumber);
    text.record_begin();
    if has_end {
        text.save_arguments();
        text.line(&format!("*(u32 *)(r6 + {LENGTH_AT}) = r8"));
        text.line("call bpf_ktime_get_ns");
        text.line(&format!("*(u64 *)(r6 + {BEGIN_AT}) = r0"));
        text.line("goto out");
        text.keeps_slot = true;
    } else {
        text.time();
        text.put();
    }
    text.end()
}

/// The program at the end of a system call.
pub fn exit(recipe: &Recipe, filter: Option<&Typed>, output: &Output) -> String {
    let of_entry = |(field, _): &(&ring3_event::Field, &Source)| field.phase == Phase::Entry;
    let fields = || recipe.of.fields.iter().zip(&recipe.sources);
    let begun_bytes_max: u32 = fields().filter(of_entry).map(|(field, _)| field.kind.variable_bytes_max()).sum();
    let mut text = Text::new(recipe, filter, output);
    text.at_end = true;
    text.begin();
    text.slot(false);
    text.line(&format!("r1 = *(u32 *)(r6 + {PENDING_AT})"));
    text.line(&format!("r2 = *(u32 *)(r7 + {NUMBER_AT})"));
    text.line("r2 += 1");
    text.line("if r1 != r2 goto out");
    text.take_slot();
    text.line(&format!("r8 = *(u32 *)(r6 + {LENGTH_AT})"));
    text.line(&format!("if r8 > {begun_bytes_max} goto {}", text.out));
    text.time();
    text.numbers(Phase::Exit);
    text.cpu();
    text.load_texts();
    text.conditions(|part| part.phase() == Phase::Exit && !part.needs_bytes);
    text.variables(Phase::Exit);
    text.conditions(|part| part.phase() == Phase::Exit && part.needs_bytes);
    text.put();
    text.end()
}

/// A part of a filter.
struct Part {
    of: Typed,
    /// It needs nothing but words of the context.
    is_early: bool,
    /// It needs bytes that are copied at the end.
    needs_bytes: bool,
}

impl Part {
    fn phase(&self) -> Phase {
        self.of.phase()
    }
}

/// Where an event's number comes from.
enum Id {
    Constant(u32),
    /// It is the system call's number: one program serves many calls.
    SyscallNumber,
}

/// A program in the making.
struct Text<'a> {
    recipe: &'a Recipe,
    output: &'a Output,
    offsets: Vec<u32>,
    text: String,
    labels: usize,
    /// Whether something is counted as lost for want of a slot.
    may_lack_slot: bool,
    may_be_full: bool,
    /// Whether it is the program at the end of a call.
    at_end: bool,
    /// Where it goes on to end: where its slot is given back, if it has one.
    out: &'static str,
    /// It ends with its slot in use, for the program at the end of the call, unless it goes on to `out`.
    keeps_slot: bool,
    filter: Vec<Part>,
    filter_labels: LabelCounter,
}

/// Where values are when a filter runs.
struct Where<'a> {
    recipe: &'a Recipe,
    offsets: &'a [u32],
    /// Only the context is there.
    is_early: bool,
}

impl Places for Where<'_> {
    fn place(&self, field: usize) -> Place {
        let at = (RECORD_AT as u32 + self.offsets[field]) as i16;
        let number = |base, at, bytes: u32, signed| Place::Memory { base, at, bytes: bytes as u8, signed };
        match (&self.recipe.of.fields[field].kind, &self.recipe.sources[field]) {
            (Kind::Int { bytes, signed, .. }, Source::Number(Operand::Argument(index))) if self.is_early => {
                number(7, CONTEXT_ARGUMENTS_AT + 8 * i16::from(*index), *bytes, *signed)
            }
            (Kind::Int { bytes, signed, .. }, Source::Number(Operand::Context(at))) if self.is_early => {
                number(7, *at, *bytes, *signed)
            }
            (Kind::Int { bytes, signed, .. }, _) => number(6, at, *bytes, *signed),
            (Kind::Float { bytes }, _) => number(6, at, *bytes, false),
            (Kind::Text { bytes_max, .. } | Kind::Bytes { bytes_max, .. }, _) => {
                Place::TextPointer { slot: pointer_at(self.recipe, field), bytes_max: *bytes_max }
            }
        }
    }

    fn state(&self, field: usize) -> Option<StatePlace> {
        Some(StatePlace { base: 6, at: (RECORD_AT as u32 + self.offsets[field]) as i16 })
    }

    fn context(&self, context: Context) -> Place {
        let word = |at: usize, bytes| Place::Memory { base: 6, at: (RECORD_AT + at) as i16, bytes, signed: false };
        match context {
            Context::Pid => word(header::PID, 4),
            Context::Tid => word(header::TID, 4),
            Context::Cpu => word(header::CPU, 4),
            Context::Time => word(header::TIME, 8),
            Context::Comm => {
                Place::Text { base: 6, at: (RECORD_AT + header::COMM) as i16, bytes_max: header::COMM_BYTES as u32 }
            }
        }
    }
}

/// The texts of a recipe, by their fields.
fn texts(recipe: &Recipe) -> impl Iterator<Item = usize> + '_ {
    (0..recipe.sources.len()).filter(|index| matches!(recipe.sources[*index], Source::Text(_)))
}

/// Where the stack has the address of a text.
fn pointer_at(recipe: &Recipe, field: usize) -> i16 {
    POINTERS_AT - 8 * texts(recipe).take_while(|index| *index != field).count() as i16
}

impl Lines for Text<'_> {
    fn written(&mut self) -> (&mut String, &mut usize) {
        (&mut self.text, &mut self.labels)
    }
}

impl<'a> Text<'a> {
    fn new(recipe: &'a Recipe, filter: Option<&Typed>, output: &'a Output) -> Text<'a> {
        let is_word = |field: usize| {
            matches!(recipe.sources[field], Source::Number(Operand::Argument(_) | Operand::Context(_)))
                && recipe.of.fields[field].phase == Phase::Entry
        };
        let is_bytes = |field: usize| matches!(recipe.sources[field], Source::Bytes { .. } | Source::Texts { .. });
        let part = |of: Typed| Part {
            is_early: of.contexts().is_empty() && of.fields().into_iter().all(is_word),
            needs_bytes: of.fields().into_iter().any(is_bytes),
            of,
        };
        Text {
            recipe,
            output,
            offsets: recipe.of.offsets(),
            text: String::new(),
            labels: 0,
            may_lack_slot: false,
            may_be_full: false,
            at_end: false,
            out: "out",
            keeps_slot: false,
            filter: filter.map(Typed::conjuncts).unwrap_or_default().into_iter().map(part).collect(),
            filter_labels: LabelCounter::default(),
        }
    }

    /// Ends the program unless these parts of the filter are true.
    fn conditions(&mut self, wanted: impl Fn(&Part) -> bool) {
        for part in self.filter.iter().filter(|part| wanted(part)) {
            let is_early = part.is_early && !self.at_end;
            let places = Where { recipe: self.recipe, offsets: &self.offsets, is_early };
            self.text.push_str(&part.of.assemble(&places, &mut self.filter_labels, self.out));
        }
    }

    fn filter_needs(&self, context: Context) -> bool {
        self.filter.iter().any(|part| part.phase() == Phase::Entry && part.of.contexts().contains(&context))
    }

    fn begin(&mut self) {
        self.line("r7 = r1");
        if !self.at_end {
            self.conditions(|part| part.is_early);
        }
        self.line("call bpf_get_current_pid_tgid");
        self.line("r9 = r0");
        self.line(&format!("*(u32 *)(r10 {KEY_AT}) = r0"));
    }

    /// Takes one of the CPU's scratch slots: others have what programs have begun that signal handlers interrupted.
    fn scratch(&mut self) {
        for index in 0..map::SCRATCHES {
            self.line(&format!("r1 = {index}"));
            self.line(&format!("*(u32 *)(r10 {WORD_AT}) = r1"));
            self.look_up(map::SCRATCH, WORD_AT);
            self.line("if r0 == 0 goto out");
            self.line("r6 = r0");
            self.line(&format!("r2 = *(u32 *)(r6 + {PENDING_AT})"));
            self.line(&format!("r1 = *(u32 *)(r10 {KEY_AT})"));
            self.line("if r1 != r2 goto taken");
        }
        self.line("goto no_slot");
        self.may_lack_slot = true;
        self.label("taken");
        self.take_slot();
    }

    /// From here on programs of signal handlers use other slots. `r1` is what the slot says while it is in use.
    fn take_slot(&mut self) {
        self.line(&format!("*(u32 *)(r6 + {PENDING_AT}) = r1"));
        self.out = "give_back";
    }

    /// Takes the thread's slot, and makes it if there is none.
    fn slot(&mut self, make: bool) {
        self.look_up(map::SLOTS, KEY_AT);
        if make {
            self.line("if r0 == 0 goto make");
            self.line(&format!("r1 = *(u32 *)(r0 + {PENDING_AT})"));
            self.line("if r1 == 0 goto found");
            self.line("r1 = 1");
            self.line(&format!("*(u8 *)(r0 + {HAS_NESTED_AT}) = r1"));
            self.nested();
            self.line("if r0 != 0 goto found");
            self.label("make");
            self.line("r1 = 0");
            self.line(&format!("*(u32 *)(r10 {WORD_AT}) = r1"));
            self.look_up(map::SCRATCH, WORD_AT);
            self.line("if r0 == 0 goto out");
            self.line("r3 = r0");
            self.line(&format!("r1 = map[{}]", map::SLOTS));
            self.line("r2 = r10");
            self.line(&format!("r2 += {KEY_AT}"));
            self.line("r4 = 0");
            self.line("call bpf_map_update_elem");
            self.look_up(map::SLOTS, KEY_AT);
            self.line("if r0 == 0 goto no_slot");
            self.label("found");
            self.may_lack_slot = true;
        } else {
            self.line("if r0 == 0 goto out");
            self.line("r6 = r0");
            self.line(&format!("r1 = *(u8 *)(r6 + {HAS_NESTED_AT})"));
            self.line("if r1 == 0 goto found");
            // The inner one of two calls ends first.
            self.line("r1 = 0");
            self.line(&format!("*(u8 *)(r6 + {HAS_NESTED_AT}) = r1"));
            self.nested();
            self.line("if r0 == 0 goto outer");
            self.line(&format!("r1 = *(u32 *)(r0 + {PENDING_AT})"));
            self.line(&format!("r2 = *(u32 *)(r7 + {NUMBER_AT})"));
            self.line("r2 += 1");
            self.line("if r1 == r2 goto found");
            self.label("outer");
            self.line("r0 = r6");
            self.label("found");
        }
        self.line("r6 = r0");
    }

    /// Looks the slot of a nested call up.
    fn nested(&mut self) {
        self.line(&format!("r1 = *(u32 *)(r10 {KEY_AT})"));
        self.line(&format!("r1 |= {}", NESTED as i32));
        self.line(&format!("*(u32 *)(r10 {KEY_AT}) = r1"));
        self.look_up(map::SLOTS, KEY_AT);
    }

    /// Writes the event's number.
    fn number(&mut self, id: Id) {
        match id {
            Id::Constant(id) => self.line(&format!("r1 = {id}")),
            Id::SyscallNumber => self.line(&format!("r1 = *(u32 *)(r7 + {NUMBER_AT})")),
        }
        self.line(&format!("*(u32 *)(r6 + {}) = r1", RECORD_AT + header::EVENT));
    }

    /// Writes what is known at the start, unless the filter says no.
    fn record_begin(&mut self) {
        self.line(&format!("*(u32 *)(r6 + {}) = r9", RECORD_AT + header::TID));
        self.line("r9 >>= 32");
        self.line(&format!("*(u32 *)(r6 + {}) = r9", RECORD_AT + header::PID));
        let comm_first = self.filter_needs(Context::Comm);
        if comm_first {
            self.comm();
        }
        if self.filter_needs(Context::Time) {
            self.time();
        }
        let has_end = self.recipe.of.fields.iter().any(|field| field.phase == Phase::Exit);
        if !has_end || self.filter_needs(Context::Cpu) {
            self.cpu();
        }
        self.line("r8 = 0");
        self.numbers(Phase::Entry);
        self.variables(Phase::Entry);
        self.conditions(|part| !part.is_early && part.phase() == Phase::Entry);
        if !comm_first {
            self.comm();
        }
    }

    /// Writes the thread's name.
    fn comm(&mut self) {
        self.line("r1 = r6");
        self.line(&format!("r1 += {}", RECORD_AT + header::COMM));
        self.line(&format!("r2 = {}", header::COMM_BYTES));
        self.line("call bpf_get_current_comm");
    }

    /// Writes the header's time.
    fn time(&mut self) {
        self.line("call bpf_ktime_get_ns");
        self.line(&format!("*(u64 *)(r6 + {}) = r0", RECORD_AT + header::TIME));
    }

    /// Writes the header's CPU.
    fn cpu(&mut self) {
        self.line("call bpf_get_smp_processor_id");
        self.line(&format!("*(u32 *)(r6 + {}) = r0", RECORD_AT + header::CPU));
    }

    fn fields_of(&self, phase: Phase) -> Vec<usize> {
        (0..self.recipe.sources.len()).filter(|index| self.recipe.of.fields[*index].phase == phase).collect()
    }

    /// Writes the numbers of a phase.
    fn numbers(&mut self, phase: Phase) {
        let recipe = self.recipe;
        for index in self.fields_of(phase) {
            let at = RECORD_AT as u32 + self.offsets[index];
            match &recipe.sources[index] {
                Source::Number(operand) => {
                    self.load(*operand, "r1");
                    let bits = 8 * recipe.of.fields[index].kind.fixed_bytes();
                    self.line(&format!("*(u{bits} *)(r6 + {at}) = r1"));
                }
                Source::Duration => {
                    self.line(&format!("r1 = *(u64 *)(r6 + {})", RECORD_AT + header::TIME));
                    self.line(&format!("r2 = *(u64 *)(r6 + {BEGIN_AT})"));
                    self.line("r1 -= r2");
                    self.line(&format!("*(u64 *)(r6 + {at}) = r1"));
                }
                Source::Text(_) | Source::Bytes { .. } | Source::Texts { .. } => {}
            }
        }
    }

    /// Appends the texts and bytes of a phase.
    fn variables(&mut self, phase: Phase) {
        let recipe = self.recipe;
        for index in self.fields_of(phase) {
            let at = RECORD_AT as u32 + self.offsets[index];
            match (&recipe.sources[index], &recipe.of.fields[index].kind) {
                (Source::Text(address), Kind::Text { bytes_max, .. }) => {
                    if self.filter.iter().any(|part| part.of.fields().contains(&index)) {
                        self.room();
                        self.line(&format!("*(u64 *)(r10 {}) = r1", pointer_at(recipe, index)));
                    }
                    if let Some(kept) = self.texts_of_end().into_iter().position(|text| text == index) {
                        self.line(&format!("*(u32 *)(r6 + {}) = r8", TEXTS_AT + 4 * kept));
                    }
                    self.text(*address, *bytes_max, at);
                }
                (Source::Bytes { address, length, unit }, Kind::Bytes { bytes_max, form }) => {
                    self.bytes((*address, *length, *unit), *bytes_max, *form, at);
                }
                (Source::Texts { address, each }, Kind::Bytes { bytes_max, .. }) => {
                    self.texts((*address, *each), *bytes_max, index, at);
                }
                _ => {}
            }
        }
    }

    /// The texts that the filter needs at the end.
    fn texts_of_end(&self) -> Vec<usize> {
        let needed = |index: &usize| {
            self.filter.iter().any(|part| part.phase() == Phase::Exit && part.of.fields().contains(index))
        };
        texts(self.recipe).filter(needed).collect()
    }

    /// Finds the texts that a filter needs at the end.
    fn load_texts(&mut self) {
        let recipe = self.recipe;
        let begin = RECORD_AT as u32 + recipe.of.fixed_bytes();
        for (kept, index) in self.texts_of_end().into_iter().enumerate() {
            let before_max: u32 = recipe.of.fields[..index].iter().map(|field| field.kind.variable_bytes_max()).sum();
            self.line(&format!("r1 = *(u32 *)(r6 + {})", TEXTS_AT + 4 * kept));
            self.line(&format!("if r1 > {before_max} goto {}", self.out));
            self.line("r2 = r6");
            self.line("r2 += r1");
            self.line(&format!("r2 += {begin}"));
            self.line(&format!("*(u64 *)(r10 {}) = r2", pointer_at(recipe, index)));
        }
    }

    /// Keeps the arguments that fields of the end come from.
    fn save_arguments(&mut self) {
        let recipe = self.recipe;
        let of_end = recipe.of.fields.iter().zip(&recipe.sources).filter(|(field, _)| field.phase == Phase::Exit);
        let operands = of_end.flat_map(|(_, source)| match source {
            Source::Number(operand) | Source::Text(operand) => vec![*operand],
            Source::Bytes { address, length, .. } => vec![*address, *length],
            Source::Texts { address, .. } => vec![*address],
            Source::Duration => vec![],
        });
        let argument = |of| match of {
            Operand::Argument(index) | Operand::Pointed(index) => Some(index),
            _ => None,
        };
        for index in operands.filter_map(argument) {
            self.load(Operand::Argument(index), "r1");
            self.line(&format!("*(u64 *)(r6 + {}) = r1", ARGUMENTS_AT + 8 * usize::from(index)));
        }
    }

    /// Loads a number into a register; clobbers r0 to r5 if it is in the target's memory.
    fn load(&mut self, operand: Operand, into: &str) {
        match operand {
            Operand::Context(at) => self.line(&format!("{into} = *(u64 *)(r7 + {at})")),
            Operand::Part { at, bytes, signed } => {
                self.line(&format!("{into} = *(u{} *)(r7 + {at})", 8 * u32::from(bytes)));
                self.extend(into, bytes, signed);
            }
            Operand::Argument(index) if self.at_end => {
                self.line(&format!("{into} = *(u64 *)(r6 + {})", ARGUMENTS_AT + 8 * usize::from(index)));
            }
            Operand::Argument(index) => {
                self.line(&format!("{into} = *(u64 *)(r7 + {})", CONTEXT_ARGUMENTS_AT + 8 * i16::from(index)));
            }
            Operand::Constant(value) => self.line(&format!("{into} = {value} ll")),
            Operand::Pointed(index) => {
                self.load(Operand::Argument(index), "r3");
                self.read_word(4);
                self.line(&format!("{into} = *(u32 *)(r10 {WORD_AT})"));
            }
            Operand::Task { at, shift, bits } => {
                self.line("call bpf_get_current_task");
                self.line("r3 = r0");
                self.line(&format!("r3 += {at}"));
                self.read_word_by(4, "bpf_probe_read_kernel");
                self.line(&format!("{into} = *(u32 *)(r10 {WORD_AT})"));
                self.line(&format!("{into} >>= {shift}"));
                self.line(&format!("{into} &= {}", (1_u32 << bits) - 1));
            }
            Operand::Memory { address, bytes, signed } => {
                self.address(address);
                self.read_word(bytes);
                self.line(&format!("{into} = *(u{} *)(r10 {WORD_AT})", 8 * u32::from(bytes)));
                self.extend(into, bytes, signed);
            }
        }
    }

    /// Reads so many bytes at r3 into the stack's word, which is 0 if they cannot be read.
    fn read_word(&mut self, bytes: u8) {
        self.read_word_by(bytes, "bpf_probe_read_user");
    }

    fn read_word_by(&mut self, bytes: u8, helper: &str) {
        self.line("r1 = 0");
        self.line(&format!("*(u64 *)(r10 {WORD_AT}) = r1"));
        self.line("r1 = r10");
        self.line(&format!("r1 += {WORD_AT}"));
        self.line(&format!("r2 = {bytes}"));
        self.line(&format!("call {helper}"));
    }

    /// Extends the sign of a number of so many bytes.
    fn extend(&mut self, register: &str, bytes: u8, signed: bool) {
        let unused = 64 - 8 * u32::from(bytes);
        if signed && unused > 0 {
            self.line(&format!("{register} <<= {unused}"));
            self.line(&format!("{register} s>>= {unused}"));
        }
    }

    /// Computes an address into r3.
    fn address(&mut self, address: Address) {
        match address.base {
            Some(at) => self.line(&format!("r3 = *(u64 *)(r7 + {at})")),
            None => self.line("r3 = 0"),
        }
        if let Some((at, scale)) = address.index {
            self.line(&format!("r1 = *(u64 *)(r7 + {at})"));
            self.line(&format!("r1 *= {scale}"));
            self.line("r3 += r1");
        }
        if address.displacement != 0 {
            self.line(&format!("r1 = {} ll", address.displacement));
            self.line("r3 += r1");
        }
    }

    /// Sets r1 to where the variable part goes on.
    fn room(&mut self) {
        let at = RECORD_AT as u32 + self.recipe.of.fixed_bytes();
        self.line("r1 = r6");
        self.line("r1 += r8");
        self.line(&format!("r1 += {at}"));
    }

    fn set_state(&mut self, at: u32, state: State) {
        self.line(&format!("*(u8 *)(r6 + {at}) = {}", state as u8));
    }

    /// Appends text.
    fn text(&mut self, address: Operand, bytes_max: u32, state_at: u32) {
        let (failed, done) = (self.new_label("unreadable"), self.new_label("done"));
        self.load(address, "r9");
        self.room();
        self.line(&format!("r2 = {bytes_max}"));
        self.line("r3 = r9");
        self.line("call bpf_probe_read_user_str");
        self.line(&format!("if r0 s<= 0 goto {failed}"));
        self.line(&format!("if r0 > {bytes_max} goto {failed}"));
        self.set_state(state_at, State::Whole);
        self.line(&format!("if r0 != {bytes_max} goto {done}"));
        self.set_state(state_at, State::Truncated);
        self.line(&format!("goto {done}"));
        self.label(&failed);
        self.no_memory(state_at);
        self.room();
        self.line("*(u8 *)(r1 + 0) = 0");
        self.line("r0 = 1");
        self.label(&done);
        self.line("r8 += r0");
    }

    /// Says why there is nothing at the address in r9.
    fn no_memory(&mut self, state_at: u32) {
        let null = self.new_label("null");
        self.set_state(state_at, State::Null);
        self.line(&format!("if r9 == 0 goto {null}"));
        self.set_state(state_at, State::Unreadable);
        self.label(&null);
    }

    /// Appends bytes.
    fn bytes(&mut self, (address, length, unit): (Operand, Operand, u32), bytes_max: u32, form: Form, state_at: u32) {
        let (failed, done) = (self.new_label("unreadable"), self.new_label("done"));
        let (none, whole) = (self.new_label("none"), self.new_label("whole"));
        self.load(address, "r9");
        self.line(&format!("if r9 == 0 goto {failed}"));
        if self.at_end && bytes_max >= ADDRESS_BYTES {
            // (No child of `wait4` has ended if the result is 0.)
            let without = if form == Form::WaitStatus { "s<=" } else { "s<" };
            self.line(&format!("r1 = *(u64 *)(r7 + {RESULT_AT})"));
            self.line(&format!("if r1 {without} 0 goto {failed}"));
        }
        self.load(length, "r2");
        let units_max = bytes_max / unit;
        self.set_state(state_at, State::Whole);
        self.line(&format!("if r2 s> {units_max} goto {none}"));
        self.line(&format!("if r2 s>= 0 goto {whole}"));
        self.line("r2 = 0");
        self.line(&format!("goto {whole}"));
        self.label(&none);
        self.set_state(state_at, State::Truncated);
        self.line(&format!("r2 = {units_max}"));
        self.label(&whole);
        if unit > 1 {
            self.line(&format!("r2 *= {unit}"));
        }
        self.room();
        self.line("*(u16 *)(r1 + 0) = r2");
        self.line(&format!("*(u64 *)(r10 {WORD_AT}) = r2"));
        self.line("r1 += 2");
        self.line("r3 = r9");
        self.line("call bpf_probe_read_user");
        self.line(&format!("if r0 != 0 goto {failed}"));
        self.line(&format!("r2 = *(u64 *)(r10 {WORD_AT})"));
        self.line("r8 += r2");
        self.line(&format!("goto {done}"));
        self.label(&failed);
        self.no_bytes(bytes_max, state_at);
        self.label(&done);
        self.line("r8 += 2");
    }

    /// Appends, instead of bytes, the address in r9; the two bytes of their length are still to be counted.
    fn no_bytes(&mut self, bytes_max: u32, state_at: u32) {
        let null = self.new_label("no_bytes");
        self.no_memory(state_at);
        self.room();
        self.line("*(u16 *)(r1 + 0) = 0");
        if bytes_max >= ADDRESS_BYTES {
            self.line(&format!("if r9 == 0 goto {null}"));
            self.line(&format!("*(u16 *)(r1 + 0) = {ADDRESS_BYTES}"));
            self.line("*(u64 *)(r1 + 2) = r9");
            self.line(&format!("r8 += {ADDRESS_BYTES}"));
            self.label(&null);
        }
    }

    /// Appends the texts of an array.
    fn texts(&mut self, (address, each): (Operand, u32), bytes_max: u32, field: usize, state_at: u32) {
        let (failed, done, end) = (self.new_label("unreadable"), self.new_label("done"), self.new_label("end"));
        let begin = RECORD_AT as u32 + self.recipe.of.fixed_bytes();
        let before = &self.recipe.of.fields[..field];
        let before_max: u32 = before.iter().map(|field| field.kind.variable_bytes_max()).sum();
        self.load(address, "r9");
        self.set_state(state_at, State::Whole);
        self.line(&format!("*(u32 *)(r6 + {ARRAY_AT}) = r8"));
        self.line("r8 += 2");
        for index in 0..bytes_max / each {
            let address = 8 * index;
            self.line("r3 = r9");
            self.line(&format!("r3 += {address}"));
            self.read_word(8);
            self.line(&format!("if r0 != 0 goto {failed}"));
            self.line(&format!("r3 = *(u64 *)(r10 {WORD_AT})"));
            self.line(&format!("if r3 == 0 goto {end}"));
            self.room();
            self.line(&format!("r2 = {each}"));
            self.line("call bpf_probe_read_user_str");
            self.line(&format!("if r0 s<= 0 goto {failed}"));
            self.line(&format!("if r0 > {each} goto {failed}"));
            self.line("r8 += r0");
        }
        self.line(&format!("r3 = r9\nr3 += {}", bytes_max / each * 8));
        self.read_word(8);
        self.line(&format!("r1 = *(u64 *)(r10 {WORD_AT})"));
        self.line(&format!("if r1 == 0 goto {end}"));
        self.set_state(state_at, State::Truncated);
        self.label(&end);
        self.line(&format!("r1 = *(u32 *)(r6 + {ARRAY_AT})"));
        self.line(&format!("if r1 > {before_max} goto {}", self.out));
        self.line("r2 = r8\nr2 -= r1\nr2 += -2");
        self.line(&format!("r3 = r6\nr3 += r1\nr3 += {begin}"));
        self.line("*(u16 *)(r3 + 0) = r2");
        self.line(&format!("goto {done}"));
        self.label(&failed);
        self.line(&format!("r8 = *(u32 *)(r6 + {ARRAY_AT})"));
        self.line(&format!("if r8 > {before_max} goto {}", self.out));
        self.no_bytes(bytes_max, state_at);
        self.line("r8 += 2");
        self.label(&done);
    }

    /// Does with the record what is asked.
    fn put(&mut self) {
        match self.output {
            Output::Records => self.write(),
            Output::Counts { before_exec } => count::count(self, *before_exec),
        }
    }

    /// Writes the record.
    fn write(&mut self) {
        self.line(&format!("r1 = map[{}]", map::RECORDS));
        self.line("r2 = r6");
        self.line(&format!("r2 += {RECORD_AT}"));
        self.line("r3 = r8");
        self.line(&format!("r3 += {}", self.recipe.of.fixed_bytes()));
        self.line(&format!("r4 = {NO_WAKEUP}"));
        self.line("call bpf_ringbuf_output");
        self.line("if r0 != 0 goto full");
        self.may_be_full = true;
    }

    fn count(&mut self, at: u32) {
        self.line(&format!("r1 = map[{}][0]+{at}", map::LOST));
        self.line("r2 = 1");
        self.line("lock *(u64 *)(r1 + 0) += r2");
    }

    fn end(mut self) -> String {
        if self.out == "give_back" && (!self.keeps_slot || self.text.contains("goto give_back")) {
            self.label("give_back");
            self.line("r1 = 0");
            self.line(&format!("*(u32 *)(r6 + {PENDING_AT}) = r1"));
        }
        self.label("out");
        self.line("r0 = 0");
        self.line("exit");
        if self.may_be_full {
            self.label("full");
            self.count(lost::BUFFER_FULL);
            self.line(&format!("goto {}", self.out));
        }
        if self.may_lack_slot {
            self.label("no_slot");
            self.count(lost::NO_SLOT);
            self.line("goto out");
        }
        self.text
    }
}

const _: () = assert!(HEADER_BYTES == 40 && RECORD_AT.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use ring3_isa::assemble;
    use ring3_uapi::syscalls::TABLE;

    use super::*;
    use crate::syscalls;

    #[test]
    fn programs_of_all_system_calls_are_assembled() {
        for call in TABLE {
            let recipe = syscalls::recipe(call, syscalls::BYTES_MAX_DEFAULT);
            for text in
                [Output::Records, Output::Counts { before_exec: Some(*b"abcdefgh") }].iter().flat_map(|output| {
                    [entry(&recipe, None, output), exit(&recipe, None, output), once(&recipe, None, output)]
                })
            {
                assemble(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", call.name));
            }
        }
    }

    #[test]
    fn what_is_known_at_the_begin_is_recorded_before_the_rest() {
        for call in TABLE {
            let recipe = syscalls::recipe(call, 32);
            let variable = recipe.of.fields.iter().filter(|field| field.kind.variable_bytes_max() > 0);
            assert!(variable.is_sorted_by_key(|field| field.phase), "{}", call.name);
        }
    }
}
