//! The log that loaders print: what was looked at, and what was known.
//! Mirrors kernel/bpf/log.c:print_verifier_state and kernel/bpf/verifier.c:do_check.

use std::fmt::{self, Write as _};

use ring3_isa::{Call, Op};
use ring3_uapi::helper;

use crate::Input;
use crate::scalar::Scalar;
use crate::state::{Byte, Frame, Kind, Register, STACK_BYTES, State};

/// `BPF_LOG_LEVEL1`: the path that leads to an error.
const LEVEL1: u32 = 1;
/// `BPF_LOG_LEVEL2`: all paths.
const LEVEL2: u32 = 2;
/// Text that is kept at most, bytes; of more, the end is.
const BYTES_MAX: usize = 16 << 20;
/// Where what is known begins on a line.
const COLUMN: usize = 40;

pub(crate) struct Log<'a> {
    input: &'a Input<'a>,
    text: String,
    /// Source line that was shown last.
    line: Option<usize>,
    before: Option<State>,
    began: bool,
    /// Where the text ended when paths were left for later.
    marks: Vec<usize>,
}

impl<'a> Log<'a> {
    pub(crate) fn new(input: &'a Input<'a>) -> Log<'a> {
        Log { input, text: String::new(), line: None, before: None, began: false, marks: vec![] }
    }

    fn is_on(&self) -> bool {
        self.input.log_level & (LEVEL1 | LEVEL2) != 0
    }

    /// An instruction that is about to be looked at.
    pub(crate) fn instruction(&mut self, at: usize, state: &State) {
        if !self.is_on() {
            return;
        }
        if !self.began {
            self.began = true;
            let _ = writeln!(self.text, "{at}:{}", describe(state));
        }
        self.source(at);
        let opcode = self.input.insns[at].opcode;
        let start = self.text.len();
        let _ = write!(self.text, "{at}: ({opcode:02x}) {}", text(self.input, at));
        let written = self.text.len() - start;
        self.text.extend(std::iter::repeat_n(' ', COLUMN.saturating_sub(written)));
        self.before = Some(state.clone());
    }

    fn source(&mut self, at: usize) {
        let lines = &self.input.lines;
        let index = lines.partition_point(|line| line.insn as usize <= at);
        let Some(index) = index.checked_sub(1) else { return };
        if self.line != Some(index) {
            self.line = Some(index);
            let text = lines[index].text.trim();
            if !text.is_empty() {
                let _ = writeln!(self.text, "; {text}");
            }
        }
    }

    /// What is known behind it.
    pub(crate) fn result(&mut self, state: &State) {
        let Some(before) = self.before.take() else { return };
        let changes = changes(&before, state);
        let kept = self.text.trim_end_matches(' ').len();
        if changes.is_empty() {
            self.text.truncate(kept);
            self.text.push('\n');
        } else {
            let _ = writeln!(self.text, " ;{changes}");
        }
        self.limit();
    }

    /// A path is left for later.
    pub(crate) fn forks(&mut self) {
        self.marks.push(self.text.len());
    }

    /// The path that was left last is walked now.
    pub(crate) fn goes_on(&mut self, from: usize, to: usize, state: &State) {
        self.before = None;
        let mark = self.marks.pop().unwrap_or(0);
        if !self.is_on() {
            return;
        }
        if self.input.log_level & LEVEL2 == 0 && mark <= self.text.len() && self.text.is_char_boundary(mark) {
            self.text.truncate(mark);
        } else if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line = None;
        let _ = writeln!(self.text, "from {from} to {to}:{}", describe(state));
        self.limit();
    }

    /// A path stopped at what was known.
    pub(crate) fn known(&mut self, at: usize) {
        if self.is_on() {
            let _ = writeln!(self.text, "{at}: safe");
        }
    }

    fn limit(&mut self) {
        if self.text.len() > BYTES_MAX {
            let mut cut = self.text.len() - BYTES_MAX / 2;
            while !self.text.is_char_boundary(cut) {
                cut += 1;
            }
            self.text.drain(..cut);
            self.marks.iter_mut().for_each(|mark| *mark = mark.saturating_sub(cut));
        }
    }

    /// The text, after an error or without one.
    pub(crate) fn finish(mut self, failed: bool) -> String {
        if failed {
            let kept = self.text.trim_end_matches([' ', '\n']).len();
            self.text.truncate(kept);
            if !self.text.is_empty() {
                self.text.push('\n');
            }
        } else if self.input.log_level & LEVEL2 == 0 {
            self.text.clear();
        }
        self.text
    }
}

/// An instruction's text.
pub(crate) fn text(input: &Input<'_>, at: usize) -> String {
    match named_call(input, at) {
        Some(name) => format!("call {name}"),
        None => ring3_isa::text(input.insns, at).to_string(),
    }
}

/// The name of a function that only extensions can call.
fn named_call(input: &Input<'_>, at: usize) -> Option<String> {
    let Ok(Op::Call(Call::Kfunc(id))) = ring3_isa::op(input.insns, at) else { return None };
    let grant = input.policy.host.as_ref()?;
    match id.checked_sub(helper::HOST_FUNCTION_FIRST) {
        Some(index) => Some(grant.functions.get(index as usize)?.symbol.clone()),
        None if id >= helper::OWN_FIRST => Some(format!("ring3_{}", helper::name(id)?)),
        None => Some(format!("bpf_{}", helper::name(id)?)),
    }
}

/// The registers and the stack of the innermost frame.
pub(crate) fn describe(state: &State) -> String {
    let mut out = String::new();
    let depth = state.depth();
    if depth > 0 {
        let _ = write!(out, " frame{depth}:");
    }
    let frame = state.frame();
    for (number, register) in frame.registers.iter().enumerate().filter(|(_, r)| r.kind != Kind::NotInit) {
        let _ = write!(out, " R{number}={}", Shown(register));
    }
    for slot in 0..frame.slots.len() {
        describe_slot(&mut out, frame, slot);
    }
    for held in &state.references {
        let _ = write!(out, " refs={}", held.id);
    }
    out
}

fn describe_slot(out: &mut String, frame: &Frame, index: usize) {
    let slot = frame.slot(index);
    let at = -8 * (index as i64 + 1);
    if at < -STACK_BYTES {
        // A discriminator of the host's that was loaded (`discriminator.rs`).
        if let Some(known) = slot.spilled.as_deref() {
            let _ = write!(out, " discriminator={}", Shown(known));
        }
        return;
    }
    if slot.bytes == [Byte::Unwritten; 8] {
        return;
    }
    if let Some(spilled) = slot.spilled.as_deref() {
        let _ = write!(out, " fp{at}={}", Shown(spilled));
        return;
    }
    let letters = slot.bytes.map(|byte| match byte {
        Byte::Unwritten => '?',
        Byte::Unknown => 'm',
        Byte::Zero => '0',
        Byte::Spilled => 'r',
        Byte::Special => 'd',
    });
    let _ = write!(out, " fp{at}={}", letters.iter().collect::<String>());
}

/// What is different in the innermost frame.
fn changes(before: &State, after: &State) -> String {
    if before.frames.len() != after.frames.len() {
        return describe(after);
    }
    let (old, new) = (before.frame(), after.frame());
    let mut out = String::new();
    for number in 0..11 {
        let register = &new.registers[number];
        if *register != old.registers[number] && register.kind != Kind::NotInit {
            let _ = write!(out, " R{number}={}", Shown(register));
        }
    }
    for slot in 0..new.slots.len() {
        if new.slot(slot) != old.slot(slot) {
            describe_slot(&mut out, new, slot);
        }
    }
    out
}

/// A register as the kernel shows it.
pub(crate) struct Shown<'a>(pub(crate) &'a Register);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let register = self.0;
        let number = &register.number;
        match (register.kind, number.value()) {
            (Kind::Scalar, Some(value)) => return write!(f, "{}", value as i64),
            (Kind::Stack(0), Some(offset)) => return write!(f, "fp{}", offset as i64),
            (Kind::Stack(frame), Some(offset)) => return write!(f, "fp[{frame}]{}", offset as i64),
            _ => {}
        }
        let mut fields: Vec<String> = vec![];
        if register.id != 0 {
            fields.push(format!("id={}", register.id));
        }
        if register.reference != 0 {
            fields.push(format!("ref_obj_id={}", register.reference));
        }
        if let Kind::Memory { bytes, .. } = register.kind {
            fields.push(format!("sz={bytes}"));
        }
        match number.value() {
            Some(0) => {}
            Some(offset) => fields.push(format!("off={}", offset as i64)),
            None => range(number, &mut fields),
        }
        if register.is_packet() {
            fields.push(format!("off={},r={}", register.fixed, register.range));
        }
        write!(f, "{}({})", register.kind_name(), fields.join(","))
    }
}

fn range(number: &Scalar, fields: &mut Vec<String>) {
    let mut field = |shown: bool, text: String| {
        if shown {
            fields.push(text);
        }
    };
    field(number.smin != i64::MIN && number.smin as u64 != number.umin, format!("smin={}", number.smin));
    field(number.smax != i64::MAX && number.smax as u64 != number.umax, format!("smax={}", number.smax));
    field(number.umin != 0, format!("umin={}", number.umin));
    field(number.umax != u64::MAX, format!("umax={}", number.umax));
    let low = |value: i32, full: i64| i64::from(value) != full;
    field(number.smin32 != i32::MIN && low(number.smin32, number.smin), format!("smin32={}", number.smin32));
    field(number.smax32 != i32::MAX && low(number.smax32, number.smax), format!("smax32={}", number.smax32));
    field(number.umin32 != 0 && u64::from(number.umin32) != number.umin, format!("umin32={}", number.umin32));
    field(number.umax32 != u32::MAX && u64::from(number.umax32) != number.umax, format!("umax32={}", number.umax32));
    let bits = number.bits;
    field(bits.mask != u64::MAX, format!("var_off=({:#x}; {:#x})", bits.value, bits.mask));
}
