//! System calls: where a `syscall` instruction has room for a jump, and the code that makes the call instead.
//!
//! A `syscall` has 2 bytes, a jump 5: instructions behind or before it are displaced with it. The jump leads to a near stub,
//! which has their copies. Between them the stub jumps to the site's syscall trampoline, which lies far away, in one range
//! with all other trampolines, and makes the call. Registers and stack at the call are the caller's own. So the call may fork,
//! switch stacks, never return, or be made again after a signal. The trampoline uses only `rcx` and `r11`, which every system
//! call destroys. Behind the call `rcx` is what it would be; `r11`, where the kernel leaves the flags, is not.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, Register};
use ring3_layout::syscall::{
    CALL_AT, CALL_SHIFT, CLONE_SYSCALLS, COPY_BYTES, COPY_SHIFT, DONE_AT, NUMBER_KNOWN, NUMBERS, SLOW_AT,
    SYSCALL_BYTES, Subscribers, TRACED_AT, TRACED_DONE_AT, TRAMPOLINE_BYTES, UNTRACED_AT,
};

use crate::cancellation::Replaced;
use crate::flow::{
    changes_stack, decode, direct_target, ends_flow, flags_live, is_padding, loads_number, sets_direction,
    syscall_number, takes_result,
};
use crate::plan::{Arrival, Function, JUMP_BYTES, Refusal, displace, explore_own, within};
use crate::stub::{Assembler, Moved, Stub, emit_displaced};

/// Bytes of a near stub at most.
pub const NEAR_BYTES_MAX: usize = 192;
/// `rt_sigreturn`, `exit`, `exit_group`
const NEVER_RETURN: [u32; 3] = [15, 60, 231];
/// Instructions before a call that are displaced with it at most.
const BEFORE_MAX: usize = 3;
/// A `syscall` instruction that can be replaced, as it lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyscallPlan {
    /// Where the jump goes.
    pub site: u64,
    /// The `syscall` instruction.
    pub call: u64,
    /// The call's number, if it is known before.
    pub number: Option<u32>,
    /// `rax` is written shortly before, or read behind.
    pub uses_rax: bool,
    /// The flags must be kept: something may read them.
    pub keeps_flags: bool,
    /// The stack pointer may lead to no stack.
    pub stackless: bool,
    /// The displaced instructions.
    pub displaced: Vec<u8>,
    /// What is replaced.
    pub replaced: Replaced,
    /// Other places for the jump, best first, for where a probe is in the way.
    pub others: Vec<Window>,
}

/// Instructions that can be displaced for the jump, the call among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bytes before the call.
    before: u64,
    displaced: Vec<u8>,
}

/// Where a trampoline leads.
#[derive(Clone, Copy, Debug)]
pub struct TrampolineLinks {
    /// Index of the site.
    pub index: u32,
    /// Where the call was made from, and its end, in the original code.
    pub after: u64,
    /// Where the near stub goes on.
    pub tail: u64,
    /// Address of the tables.
    pub tables: u64,
    /// Routines of the agent that run what wants the beginning and the end of a call.
    pub enter: u64,
    /// See `enter`.
    pub exit: u64,
}

/// All `syscall` instructions of a function: how each can be replaced, or why not. `entered` tells of branches of other code
/// into bytes. `may_be_several`: what is given as a function may be some that lie one behind the other.
pub fn plan_syscalls(
    function: &Function<'_>,
    may_be_several: bool,
    entered: &dyn Fn(Range<u64>) -> Option<Arrival>,
) -> Vec<(u64, Result<SyscallPlan, Refusal>)> {
    let instructions = decode(function.bytes, function.address);
    // (Where an instruction begins in the middle of another one, behind data perhaps, something arrives.)
    let (branches, others) = explore_own(function, &instructions);
    let mut targets: Vec<u64> = branches.iter().map(|branch| branch.to).chain(others.keys().copied()).collect();
    targets.sort_unstable();
    let count = within(function, &instructions).count();
    let mut taken = 0..0;
    let mut plans: Vec<(u64, Result<SyscallPlan, Refusal>)> = vec![];
    for index in (0..count).filter(|index| instructions[*index].code() == Code::Syscall) {
        let search = Search {
            function,
            may_be_several,
            instructions: &instructions,
            targets: &targets,
            others: &others,
            entered,
        };
        let plan = search.plan(index, taken.end);
        if let Ok(plan) = &plan {
            taken = plan.bytes();
            // The windows of two calls must be apart, whichever are used.
            let begin = plan.windows().map(|plan| plan.site).min().unwrap_or(taken.start);
            let before = plans.iter_mut().rev().find_map(|(_, before)| before.as_mut().ok());
            if let Some(before) = before {
                let call = before.call;
                before.others.retain(|window| window.end(call) <= begin);
            }
        }
        plans.push((instructions[index].ip(), plan));
    }
    plans
}

/// Each `int $0x80` of some code that is decoded from its beginning, and whether a number is loaded for it shortly before.
pub fn gates(code: &[u8], address: u64) -> Vec<(u64, bool)> {
    const BEFORE: usize = 12;
    const GATE: u8 = 0x80;
    let instructions = decode(code, address);
    let is_gate = |at: &usize| instructions[*at].code() == Code::Int_imm8 && instructions[*at].immediate8() == GATE;
    let loads = |i: &Instruction| i.code() == Code::Mov_r32_imm32 && i.op0_register() == Register::EAX;
    let found = (0..instructions.len()).filter(is_gate);
    found.map(|at| (instructions[at].ip(), instructions[at.saturating_sub(BEFORE)..at].iter().any(loads))).collect()
}

struct Search<'s> {
    function: &'s Function<'s>,
    may_be_several: bool,
    instructions: &'s [Instruction],
    targets: &'s [u64],
    others: &'s BTreeMap<u64, u64>,
    entered: &'s dyn Fn(Range<u64>) -> Option<Arrival>,
}

impl Search<'_> {
    /// The best window: one whose jump ends before the call, so that who comes back to the call or behind it (a thread that is
    /// in there, or in a signal handler that interrupted it) finds it as it was; else from the call on, or from before it. What
    /// lies below `free` is taken.
    fn plan(&self, index: usize, free: u64) -> Result<SyscallPlan, Refusal> {
        let instruction = &self.instructions[index];
        let call = instruction.ip();
        if instruction.len() as u64 != SYSCALL_BYTES {
            // With a prefix it ends elsewhere than all that looks at system calls takes for granted.
            return Err(Refusal::Immovable { address: call, text: format!("{instruction} with a prefix") });
        }
        if self.is_cancelled_by_address(call) {
            return Err(Refusal::Cancelled { site: call });
        }
        let moves = |first: &usize| {
            let from = &self.instructions[*first];
            let plain = from.flow_control() == FlowControl::Next && from.code() != Code::Syscall;
            (*first == index || plain) && from.ip() >= free
        };
        let firsts: Vec<usize> = (index.saturating_sub(BEFORE_MAX)..=index).rev().take_while(moves).collect();
        let clear = |first: &&usize| call - self.instructions[**first].ip() >= JUMP_BYTES as u64;
        let mut why = Refusal::NotCode { site: call };
        let mut windows = vec![];
        for first in firsts.iter().filter(clear).chain(firsts.iter().filter(|first| !clear(first))) {
            match self.window(*first, index) {
                Ok(window) => windows.push(window),
                Err(refusal) if *first == index => why = refusal,
                Err(_) => {}
            }
        }
        let (best, others) = windows.split_first().ok_or(why)?;
        let others = others
            .iter()
            .map(|window| Window { before: call - window[0].ip(), displaced: self.bytes_of(window).to_vec() });
        Ok(SyscallPlan { others: others.collect(), ..self.planned(best, index) })
    }

    fn bytes_of(&self, window: &[Instruction]) -> &[u8] {
        let at = |address: u64| (address - self.function.address) as usize;
        &self.function.bytes[at(window[0].ip())..at(window[window.len() - 1].next_ip())]
    }

    /// Whether this is where musl's threads wait that can be cancelled: a signal handler compares the address
    /// (`__syscall_cp_asm`).
    fn is_cancelled_by_address(&self, call: u64) -> bool {
        // mov 16(%rsp), %r9; mov %r11, 8(%rsp); syscall; ret
        const CODE: [u8; 13] = [0x4c, 0x8b, 0x4c, 0x24, 0x10, 0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3];
        let at = (call - self.function.address) as usize;
        at.checked_sub(10).and_then(|start| self.function.bytes.get(start..start + CODE.len())) == Some(&CODE[..])
    }

    /// The instructions from `first` to where there is room, the call at `index` among them.
    fn window(&self, first: usize, index: usize) -> Result<&[Instruction], Refusal> {
        let from = &self.instructions[first..];
        let count = displace(self.function, from)?.len().max(index - first + 1);
        let window = &from[..count];
        let (site, call) = (window[0].ip(), self.instructions[index].ip());
        if let Some(next) = window.get(index - first + 1).filter(|next| !self.belongs(index, next)) {
            return Err(Refusal::TooShort { bytes: (next.ip() - site) as usize });
        }
        if let Some((&instruction, _)) = self.others.range(..site).next_back().filter(|(_, end)| **end > site) {
            return Err(Refusal::NotABoundary { site, instruction });
        }
        // Whoever comes to the call by another way than the jump would make it unseen.
        let closed = site + 1..(site + JUMP_BYTES as u64).max(call + 1);
        let at = self.targets.partition_point(|to| *to < closed.start);
        if let Some(to) = self.targets.get(at).filter(|to| closed.contains(to)) {
            let from = self.instructions.iter().find(|i| direct_target(i) == Some(*to)).map_or(site, |i| i.ip());
            return Err(Refusal::BranchInto { from, to: *to });
        }
        if let Some(arrival) = (self.entered)(closed) {
            return Err(arrival.into());
        }
        for other in window.iter().filter(|i| i.ip() != call) {
            let calls = matches!(other.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
            if other.code() == Code::Syscall || calls {
                return Err(Refusal::Immovable { address: other.ip(), text: format!("{other}") });
            }
        }
        Ok(window)
    }

    /// Whether the instruction behind a call belongs to the same function: it does not behind a call that does not return.
    fn belongs(&self, index: usize, next: &Instruction) -> bool {
        let number = syscall_number(self.instructions, index, self.targets);
        let returns = !number.is_some_and(|number| NEVER_RETURN.contains(&number));
        is_padding(next) || returns && (!self.may_be_several || takes_result(next))
    }

    fn planned(&self, window: &[Instruction], index: usize) -> SyscallPlan {
        SyscallPlan {
            site: window[0].ip(),
            call: self.instructions[index].ip(),
            number: syscall_number(self.instructions, index, self.targets),
            uses_rax: loads_number(self.instructions, index)
                || self.instructions.get(index + 1).is_some_and(takes_result),
            stackless: changes_stack(self.instructions, index),
            keeps_flags: flags_live(&self.instructions[index + 1..]) || self.instructions.iter().any(sets_direction),
            displaced: self.bytes_of(window).to_vec(),
            replaced: Replaced::Instruction,
            others: vec![],
        }
    }
}

impl Window {
    /// Where the displaced instructions end, around this call.
    fn end(&self, call: u64) -> u64 {
        call - self.before + self.displaced.len() as u64
    }
}

impl SyscallPlan {
    /// One that displaces nothing.
    pub fn at(site: u64, call: u64) -> SyscallPlan {
        SyscallPlan {
            site,
            call,
            number: None,
            uses_rax: true,
            keeps_flags: false,
            stackless: false,
            displaced: vec![],
            replaced: Replaced::Instruction,
            others: vec![],
        }
    }

    /// Where the displaced instructions are.
    pub fn bytes(&self) -> Range<u64> {
        self.site..self.site + self.displaced.len() as u64
    }

    /// The plan itself, and those that have its jump elsewhere.
    pub fn windows(&self) -> impl Iterator<Item = SyscallPlan> + '_ {
        let elsewhere = self.others.iter().map(|window| SyscallPlan {
            site: self.call - window.before,
            displaced: window.displaced.clone(),
            others: vec![],
            ..self.clone()
        });
        std::iter::once(SyscallPlan { others: vec![], ..self.clone() }).chain(elsewhere)
    }

    /// As it lies where the file is mapped with `bias` added to its addresses.
    pub fn mapped(&self, bias: u64) -> SyscallPlan {
        let at = |address: u64| address.wrapping_add(bias);
        let replaced = match &self.replaced {
            Replaced::Call(routine) => Replaced::Call(routine.mapped(bias)),
            other => *other,
        };
        SyscallPlan { site: at(self.site), call: at(self.call), replaced, ..self.clone() }
    }

    /// Where the call ends.
    pub fn after(&self) -> u64 {
        self.call + SYSCALL_BYTES
    }

    /// What to write at the site: a jump to a near stub at `near`, or a call of that.
    pub fn jump(&self, near: u64) -> Result<Vec<u8>, Refusal> {
        let mut assembler = Assembler { base: self.site, bytes: Vec::with_capacity(JUMP_BYTES) };
        assembler.put(&[if matches!(self.replaced, Replaced::Call(_)) { CALL } else { JUMP }]);
        assembler.relative(near)?;
        Ok(assembler.bytes)
    }

    /// Where the jump leads that a near stub ends with, if it ends with one.
    pub fn goes_on(&self) -> Option<u64> {
        let ends = decode(&self.displaced, self.site).last().is_some_and(ends_flow);
        (!ends).then(|| self.bytes().end)
    }

    /// The near stub for the address `near`, and where in it the code behind the call begins.
    pub fn near(&self, near: u64, trampoline: u64) -> Result<(Stub, u32), Refusal> {
        let mut assembler = Assembler { base: near, bytes: Vec::with_capacity(NEAR_BYTES_MAX) };
        let (mut moved, mut tail) = (vec![], 0);
        let instructions = decode(&self.displaced, self.site);
        for instruction in &instructions {
            let offset = assembler.bytes.len() as u32;
            moved.push(Moved { original: instruction.ip(), stub_offset: offset });
            if instruction.ip() == self.call {
                assembler.jump_far(trampoline);
                tail = assembler.bytes.len() as u32;
            } else {
                let at = (instruction.ip() - self.site) as usize;
                emit_displaced(&mut assembler, instruction, &self.displaced[at..at + instruction.len()])?;
            }
        }
        if let Some(next) = self.goes_on() {
            assembler.jump(next)?;
        }
        debug_assert!(assembler.bytes.len() <= NEAR_BYTES_MAX, "a near stub outgrew its limit");
        Ok((Stub { bytes: assembler.bytes, moved }, tail))
    }

    /// The trampoline for the address `trampoline`.
    pub fn trampoline(&self, trampoline: u64, links: &TrampolineLinks) -> Result<Vec<u8>, Refusal> {
        let mut assembler = Assembler { base: trampoline, bytes: Vec::with_capacity(TRAMPOLINE_BYTES as usize) };
        match self.number {
            Some(number) => emit_known(&mut assembler, links, number)?,
            None => emit_unknown(&mut assembler, links, self.keeps_flags)?,
        }
        debug_assert!(assembler.bytes.len() as u64 <= TRAMPOLINE_BYTES, "a trampoline outgrew its limit");
        Ok(assembler.bytes)
    }
}

impl Assembler {
    /// A jump to anywhere.
    pub(crate) fn jump_far(&mut self, target: u64) {
        self.put(&[0xff, 0x25, 0, 0, 0, 0]); // jmp [rip]
        self.put(&target.to_le_bytes());
    }

    /// `mov rcx, [address]; jrcxz over`, `over` being what [`Assembler::pass`] ends with.
    fn unless_zero(&mut self, address: u64) -> Result<(), Refusal> {
        self.put(&[0x48, 0x8b, 0x0d]);
        self.relative(address)?;
        self.put(&[0xe3, PASS_BYTES]);
        Ok(())
    }

    /// Goes to a routine of the agent, which goes on at this offset of the trampoline at `trampoline` if there is no
    /// more to do.
    fn pass(&mut self, number: u32, trampoline: u64, offset: u64, routine: u64) -> Result<(), Refusal> {
        self.put(&[0xb9]); // mov ecx, number
        self.put(&number.to_le_bytes());
        self.put(&[0x4c, 0x8d, 0x1d]); // lea r11, [rip + trampoline + offset]
        self.relative(trampoline + offset)?;
        self.jump(routine)
    }

    /// What comes next is at this offset.
    fn pad(&mut self, offset: u64) {
        debug_assert!(self.bytes.len() as u64 <= offset, "parts of trampolines are where the layout says");
        self.bytes.resize(offset as usize, 0x90);
    }

    /// `rcx` as the call leaves it, and back.
    fn finish(&mut self, links: &TrampolineLinks) {
        self.put(&[0x48, 0xb9]); // mov rcx, after
        self.put(&links.after.to_le_bytes());
        self.jump_far(links.tail);
    }
}

/// Bytes of [`Assembler::pass`].
const PASS_BYTES: u8 = 17;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const JUMP_SHORT: u8 = 0xeb;
const JUMP: u8 = 0xe9;
const CALL: u8 = 0xe8;

/// Address of a word of a number's entry.
fn word(tables: u64, number: u32, offset: usize) -> u64 {
    tables + (u64::from(number.min(NUMBERS as u32)) << CALL_SHIFT) + offset as u64
}

fn emit_known(a: &mut Assembler, links: &TrampolineLinks, number: u32) -> Result<(), Refusal> {
    let index = links.index | NUMBER_KNOWN;
    a.unless_zero(word(links.tables, number, offset_of!(Subscribers, enter)))?;
    a.pass(index, a.base, CALL_AT, links.enter)?;
    a.pad(CALL_AT);
    a.put(&SYSCALL);
    a.unless_zero(word(links.tables, number, offset_of!(Subscribers, exit)))?;
    a.pass(index, a.base, DONE_AT, links.exit)?;
    a.pad(DONE_AT);
    a.finish(links);
    Ok(())
}

fn emit_unknown(a: &mut Assembler, links: &TrampolineLinks, keeps_flags: bool) -> Result<(), Refusal> {
    let slow = |a: &Assembler| (a.base + SLOW_AT - a.here() - 2) as u8;
    if keeps_flags {
        a.put(&[JUMP_SHORT, slow(a)]);
    } else {
        a.put(&[0x89, 0xc1]); // mov ecx, eax
        a.put(&[0x81, 0xf9]); // cmp ecx, NUMBERS
        a.put(&(NUMBERS as u32).to_le_bytes());
        a.put(&[0x73, slow(a)]); // jae slow
        a.put(&[0xc1, 0xe1, CALL_SHIFT]); // shl ecx, CALL_SHIFT
        a.put(&[0x4c, 0x8d, 0x1d]); // lea r11, [rip + enter]
        a.relative(word(links.tables, 0, offset_of!(Subscribers, enter)))?;
        a.put(&[0x49, 0x83, 0x3c, 0x0b, 0]); // cmp qword [r11 + rcx], 0
        a.put(&[0x75, slow(a)]); // jne slow
    }
    a.pad(UNTRACED_AT);
    a.put(&SYSCALL);
    a.finish(links);
    a.pad(SLOW_AT);
    a.pass(links.index, a.base, TRACED_AT, links.enter)?;
    for copy in 0..=CLONE_SYSCALLS.len() as u32 {
        a.pad(TRACED_AT + u64::from(copy) * COPY_BYTES);
        a.put(&SYSCALL);
        a.pass(links.index | copy << COPY_SHIFT, a.base, TRACED_DONE_AT, links.exit)?;
    }
    a.pad(TRACED_DONE_AT);
    a.finish(links);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps_flags(code: &[u8]) -> bool {
        let function = Function { bytes: code, address: 0x1000, size: code.len(), entered: None, computed: false };
        let plans = plan_syscalls(&function, false, &|_| None);
        let [(_, Ok(plan))] = &plans[..] else { panic!("{plans:?}") };
        plan.keeps_flags
    }

    #[test]
    fn flags_are_kept_where_they_may_be_read_or_string_instructions_may_go_downwards() {
        // mov eax, 39; syscall; ret
        assert!(!keeps_flags(&[0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3]));
        // mov eax, 39; syscall; setc al; ret
        assert!(keeps_flags(&[0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x92, 0xc0, 0xc3]));
        // std; mov eax, 39; syscall; cld; ret
        assert!(keeps_flags(&[0xfd, 0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xfc, 0xc3]));
    }

    #[test]
    fn instructions_that_are_none_behind_data_are_not_displaced() {
        // jmp over a byte of data; movsx r12, dil; mov eax, 136; syscall; ret. In sequence, other instructions follow the `jmp`.
        let code = [0xeb, 1, 0, 0x4c, 0x0f, 0xbe, 0xe7, 0xb8, 136, 0, 0, 0, 0x0f, 0x05, 0xc3];
        let function = Function { bytes: &code, address: 0x1000, size: code.len(), entered: None, computed: false };
        let plans = plan_syscalls(&function, false, &|_| None);
        assert!(matches!(&plans[..], [(0x100c, Err(_))]), "{plans:?}");
    }
}
