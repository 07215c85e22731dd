//! One step from a frame to its caller's.

use crate::Rule;

/// Bytes of a word of the stack.
const WORD: u64 = 8;
/// Below a `struct ucontext`'s address plus these lie the registers (arch/x86/include/uapi/asm/sigcontext.h).
const UCONTEXT_RBP: u64 = 120;
const UCONTEXT_RBX: u64 = 128;
const UCONTEXT_RSP: u64 = 160;
const UCONTEXT_RIP: u64 = 168;

/// What is known of a frame's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The instruction, or a return address.
    pub rip: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// `rbp`, if it is known.
    pub rbp: Option<u64>,
    /// `rbx`, if it is known.
    pub rbx: Option<u64>,
}

/// What is behind a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A caller. `rip` is its return address as the stack has it, just below `rsp`.
    Caller(Registers),
    /// A function that a signal has interrupted at `rip`.
    Interrupted(Registers),
    /// Nothing that can be found.
    End,
    /// There is no rule.
    Unknown,
}

/// The step from a frame with `registers` by `rule`. `read` reads a word of memory.
#[inline]
pub fn caller(rule: &Rule, registers: &Registers, mut read: impl FnMut(u64) -> Option<u64>) -> Step {
    match rule.kind {
        Rule::NONE => return Step::Unknown,
        Rule::SIGNAL => return interrupted(registers.rsp, read).map_or(Step::End, Step::Interrupted),
        _ => {}
    }
    let found = cfa(rule, registers, &mut read).and_then(|cfa| {
        let mut saved = |place: u8, at: i16, now: Option<u64>| match place {
            Rule::SAME => Some(now),
            Rule::FROM_CFA => read(word_at(cfa, at)).map(Some),
            // (The function's own, even if it is looked for.)
            Rule::FROM_RBP => read(word_at(registers.rbp?, at)).map(Some),
            _ => Some(None),
        };
        let rbp = saved(rule.rbp, rule.rbp_at, registers.rbp)?;
        let rbx = saved(rule.rbx, rule.rbx_at, registers.rbx)?;
        Some(Registers { rip: read(cfa.wrapping_sub(WORD))?, rsp: cfa, rbp, rbx })
    });
    found.map_or(Step::End, Step::Caller)
}

#[inline(always)]
fn cfa(rule: &Rule, registers: &Registers, mut read: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
    let base = match rule.base {
        Rule::RSP => registers.rsp,
        Rule::RBP => registers.rbp?,
        _ => registers.rbx?,
    };
    let sum = base.wrapping_add_signed(i64::from(rule.offset));
    match rule.kind {
        Rule::PLAIN => Some(sum),
        Rule::LOADED => Some(read(sum)?.wrapping_add_signed(i64::from(rule.more))),
        Rule::LINKAGE => {
            let is_pushed = (registers.rip % 16) as i32 >= rule.more;
            Some(sum.wrapping_add(u64::from(is_pushed) * WORD))
        }
        _ => None,
    }
}

#[inline(always)]
fn word_at(from: u64, words: i16) -> u64 {
    from.wrapping_add_signed(i64::from(words) * WORD as i64)
}

/// What a signal has interrupted whose `struct ucontext` is at `frame`.
#[cold]
fn interrupted(frame: u64, mut read: impl FnMut(u64) -> Option<u64>) -> Option<Registers> {
    let mut word = |at| read(frame.wrapping_add(at));
    Some(Registers {
        rip: word(UCONTEXT_RIP)?,
        rsp: word(UCONTEXT_RSP)?,
        rbp: Some(word(UCONTEXT_RBP)?),
        rbx: Some(word(UCONTEXT_RBX)?),
    })
}
