//! The code that a site jumps to: save, call the agent, restore, run what was displaced, go back.
//!
//! Registers are stored into a `PtRegs` below the red zone, which is the programs' context. The agent keeps the
//! callee-saved registers, so only the others are loaded again; only those are always stored ([`frame`]), unless the flags
//! have to be kept too. `rbx` holds the frame across the call while the stack is aligned.
//!
//! Where a return is awaited, the agent goes on with the displaced code by a call of its own in place of the one that came
//! here: the CPU predicts returns by calls, and so predicts the function's return to the agent, and the agent's to the caller.
//! The place to go on at lies below the stack pointer, where nothing is at a function's entry.
//!
//! Displaced calls push the original return address, so that no stub address ever stands on a
//! stack: unwinders see the truth, and a stub can go as soon as no thread executes it.

use std::mem::offset_of;

use iced_x86::{Code, ConditionCode, Encoder, FlowControl, Instruction, OpKind, Register};
use ring3_layout::control::Hook;
use ring3_layout::frame;
use ring3_uapi::ptrace::PtRegs;

use crate::agent_stack::{AgentStackLinks, emit_all};
use crate::flow::{direct_target, ends_flow};
use crate::plan::{JUMP_BYTES, Plan, Refusal, Tactic};

/// Bytes of a stub at most.
pub const STUB_BYTES_MAX: usize = 640;
/// Bytes of a relay.
pub const RELAY_BYTES: usize = 14;
/// Flags of a program whose flags nobody reads: interrupts on, and the bit that is always one.
const FLAGS_DEFAULT: u32 = 0x202;
const FRAME: u32 = frame::STUB_FRAME_BYTES as u32;

/// Where a displaced instruction went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its original address.
    pub original: u64,
    /// Offset of its copy in the stub.
    pub stub_offset: u32,
}

/// A stub's code, for the address it was made for.
#[derive(Clone, Debug)]
pub struct Stub {
    /// The code.
    pub bytes: Vec<u8>,
    /// Displaced instructions, in order, and the jump to what follows them.
    pub moved: Vec<Moved>,
}

/// Where stubs lead.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// A function of the registers, the hook, and whether the registers are all there. Its result: whether to go on by
    /// `call`.
    pub enter: u64,
    /// Takes the return address off the stack, and calls what the word below it leads to.
    pub call: u64,
    /// The same for stubs that do not use the thread's stack.
    pub agent_stack: AgentStackLinks,
}

pub(crate) struct Assembler {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Assembler {
    pub(crate) fn here(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// ModRM, SIB and displacement of `[rsp+offset]`, for an instruction with these register bits.
    fn slot(&mut self, register: u8, offset: usize) {
        let register = (register & 7) << 3;
        match i8::try_from(offset) {
            Ok(near) => self.put(&[0x44 | register, 0x24, near as u8]),
            Err(_) => {
                self.put(&[0x84 | register, 0x24]);
                self.put(&(offset as u32).to_le_bytes());
            }
        }
    }

    /// `mov [rsp+offset], register` or the load.
    fn move_slot(&mut self, opcode: u8, register: u8, offset: usize) {
        self.put(&[0x48 | (register >> 3) << 2, opcode]);
        self.slot(register, offset);
    }

    fn store(&mut self, register: u8, offset: usize) {
        self.move_slot(0x89, register, offset);
    }

    fn load(&mut self, register: u8, offset: usize) {
        self.move_slot(0x8b, register, offset);
    }

    /// `mov qword [rsp+offset], value` (sign-extended).
    fn store_constant(&mut self, offset: usize, value: i32) {
        self.put(&[0x48, 0xc7]);
        self.slot(0, offset);
        self.put(&value.to_le_bytes());
    }

    /// Room for a number that is not known yet: where.
    pub(crate) fn hole(&mut self) -> usize {
        self.put(&[0; 4]);
        self.bytes.len() - 4
    }

    fn fill(&mut self, hole: usize, value: u32) {
        self.bytes[hole..hole + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// A 32-bit displacement from the end of an instruction that ends with it.
    pub(crate) fn relative(&mut self, target: u64) -> Result<(), Refusal> {
        let from = self.here().wrapping_add(4);
        let distance = target.wrapping_sub(from) as i64;
        let distance = i32::try_from(distance).map_err(|_| Refusal::OutOfReach { address: target })?;
        self.put(&distance.to_le_bytes());
        Ok(())
    }

    /// The distance of a jump ends here.
    pub(crate) fn land(&mut self, hole: usize) {
        self.fill(hole, (self.bytes.len() - hole - 4) as u32);
    }

    pub(crate) fn jump(&mut self, target: u64) -> Result<(), Refusal> {
        self.put(&[0xe9]);
        self.relative(target)
    }

    /// Pushes a 64-bit constant without touching registers or flags.
    fn push_constant(&mut self, value: u64) {
        self.put(&[0x68]);
        self.put(&(value as u32).to_le_bytes());
        self.put(&[0xc7, 0x44, 0x24, 0x04]);
        self.put(&((value >> 32) as u32).to_le_bytes());
    }
}

/// What leads from where punned jumps go to a stub: `jmp [rip]`, and its address.
pub fn relay(stub: u64) -> [u8; RELAY_BYTES] {
    let mut bytes = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[6..].copy_from_slice(&stub.to_le_bytes());
    bytes
}

impl Plan {
    /// What to write at the site: a jump to a stub at `stub`, or, if it is punned, to a relay or a stub there, without the bytes
    /// that stay as they are.
    pub fn jump(&self, stub: u64) -> Result<Vec<u8>, Refusal> {
        const INT3: u8 = 0xcc;
        if self.tactic == Tactic::Trap {
            return Ok(vec![INT3]);
        }
        let mut assembler = Assembler { base: self.site, bytes: Vec::with_capacity(JUMP_BYTES) };
        if self.stub_range().is_some_and(|range| !range.contains(&stub)) {
            return Err(Refusal::OutOfReach { address: stub });
        }
        assembler.jump(stub)?;
        if self.is_punned() {
            assembler.bytes.truncate(JUMP_BYTES - self.kept);
        }
        Ok(assembler.bytes)
    }

    /// The stub for the address `stub`: calls `enter(regs, hook, all)` of the agent, or where that must not be on the thread's
    /// stack what `agent_stack` says, and runs the displaced code.
    pub fn stub(&self, stub: u64, entries: Entries, hook: u64) -> Result<Stub, Refusal> {
        self.stub_of_many(stub, entries, hook, &[])
    }

    /// The same with further sites among the displaced instructions, each with its own hook: the agent is called before these, too.
    /// Threads that stand there are moved to before that.
    pub fn stub_of_many(
        &self,
        stub: u64,
        entries: Entries,
        hook: u64,
        members: &[(Plan, u64)],
    ) -> Result<Stub, Refusal> {
        let mut a = Assembler { base: stub, bytes: Vec::with_capacity(STUB_BYTES_MAX * (1 + members.len())) };
        let mut moved = vec![];
        let (before, behind) = self.displaced.split_at(self.before_agent());
        if let Some((member, _)) = members.iter().find(|(member, _)| !self.may_have(member)) {
            return Err(Refusal::Overlaps { site: member.site, other: self.site });
        }
        emit_all(&mut a, before, &mut moved)?;
        self.emit_agent(&mut a, entries, hook)?;
        for (instruction, bytes) in behind {
            moved.push(Moved { original: instruction.ip(), stub_offset: a.bytes.len() as u32 });
            if let Some((member, hook)) = members.iter().find(|(member, _)| member.site == instruction.ip()) {
                member.emit_agent(&mut a, entries, *hook)?;
            }
            emit_displaced(&mut a, instruction, bytes)?;
        }
        // (A handler may skip an instruction that traps, by its length.)
        let is_left = |last: &Instruction| ends_flow(last) && last.flow_control() != FlowControl::Exception;
        if !self.displaced.last().is_some_and(|(last, _)| is_left(last)) {
            // (A thread waits here in a system call that is the last of them.)
            moved.push(Moved { original: self.resume, stub_offset: a.bytes.len() as u32 });
            a.jump(self.resume)?;
        }
        debug_assert!(a.bytes.len() <= STUB_BYTES_MAX * (1 + members.len()), "a stub outgrew its limit");
        Ok(Stub { bytes: a.bytes, moved })
    }

    /// Whether the agent can be called for another site, too, before one of the displaced instructions.
    fn may_have(&self, member: &Plan) -> bool {
        let plain = |plan: &Plan| plan.before_agent() == 0 && (plan.kept == 0 || plan.is_punned());
        if self.tactic != Tactic::Jump {
            return false;
        }
        let begins = self.displaced.iter().skip(1).any(|(instruction, _)| instruction.ip() == member.site);
        begins && plain(self) && plain(member)
    }

    fn emit_agent(&self, a: &mut Assembler, entries: Entries, hook: u64) -> Result<(), Refusal> {
        match self.agent_stack {
            Some(agent_stack) => {
                self.emit_on_agent_stack(a, agent_stack, entries.agent_stack, hook);
                Ok(())
            }
            None => self.emit_call(a, entries, hook),
        }
    }

    fn emit_call(&self, a: &mut Assembler, entries: Entries, hook: u64) -> Result<(), Refusal> {
        a.put(&[0x48, 0x8d, 0xa4, 0x24]); // lea rsp, [rsp - FRAME]
        a.put(&(-(FRAME as i32)).to_le_bytes());
        for (register, offset) in frame::RESTORED {
            a.store(register, offset);
        }
        a.put(&[0x48, 0xbe]); // mov rsi, hook
        a.put(&hook.to_le_bytes());
        let mut rest = None;
        if self.saves_flags {
            self.emit_rest(a)?;
        } else {
            a.put(&[0x31, 0xd2]); // xor edx, edx
            a.put(&[0x83, 0x7e, offset_of!(Hook, all_registers) as u8, 0]); // cmp dword [rsi + all_registers], 0
            a.put(&[0x0f, 0x85]); // jne rest
            rest = Some((a.hole(), a.here()));
        }
        a.put(&[0x48, 0x89, 0xe7]); // mov rdi, rsp
        a.put(&[0x48, 0x89, 0xe3]); // mov rbx, rsp
        a.put(&[0x48, 0x83, 0xe4, 0xf0]); // and rsp, -16
        a.put(&[0x48, 0xb8]); // mov rax, enter
        a.put(&entries.enter.to_le_bytes());
        a.put(&[0xff, 0xd0]); // call rax
        a.put(&[0x48, 0x89, 0xdc]); // mov rsp, rbx
        a.put(&[0x84, 0xc0]); // test al, al
        a.put(&[0x0f, 0x84]); // jz goes_on
        let goes_on = a.hole();
        a.put(&[0x3c, frame::ENTER_CALL]); // cmp al, ENTER_CALL
        a.put(&[0x0f, 0x85]); // jne returns
        let returns = a.hole();
        self.emit_restore(a);
        a.put(&[0xc7, 0x44, 0x24, 0xf8]); // mov dword [rsp - 8], displaced
        let low = a.hole();
        a.put(&[0xc7, 0x44, 0x24, 0xfc]); // mov dword [rsp - 4], displaced >> 32
        let high = a.hole();
        a.put(&[0xff, 0x25, 0, 0, 0, 0]); // jmp [rip]
        a.put(&entries.call.to_le_bytes());
        a.land(returns);
        self.emit_restore(a);
        a.put(&[0xc3]); // ret
        if let Some((rest, all)) = rest {
            a.land(rest);
            self.emit_rest(a)?;
            a.jump(all)?;
        }
        a.land(goes_on);
        self.emit_restore(a);
        let displaced = a.here();
        a.fill(low, displaced as u32);
        a.fill(high, (displaced >> 32) as u32);
        Ok(())
    }

    /// The registers that not every frame has.
    fn emit_rest(&self, a: &mut Assembler) -> Result<(), Refusal> {
        const RAX: u8 = 0;
        for (register, offset) in frame::KEPT {
            a.store(register, offset);
        }
        if self.saves_flags {
            a.put(&[0x9c, 0x8f, 0x84, 0x24]); // pushfq; pop [rsp + eflags]
            a.put(&(offset_of!(PtRegs, eflags) as u32).to_le_bytes());
            a.put(&[0xfc]); // cld
        } else {
            a.store_constant(offset_of!(PtRegs, eflags), FLAGS_DEFAULT as i32);
        }
        a.store_constant(offset_of!(PtRegs, orig_rax), -1);
        a.store_constant(offset_of!(PtRegs, cs), 0x33);
        a.store_constant(offset_of!(PtRegs, ss), 0x2b);
        a.put(&[0x48, 0x8d, 0x84, 0x24]); // lea rax, [rsp + FRAME]
        a.put(&FRAME.to_le_bytes());
        a.store(RAX, offset_of!(PtRegs, rsp));
        a.put(&[0x48, 0x8d, 0x05]); // lea rax, [rip + site]
        a.relative(self.site)?;
        a.store(RAX, offset_of!(PtRegs, rip));
        a.put(&[0xba, 1, 0, 0, 0]); // mov edx, 1
        Ok(())
    }

    /// All registers are as they were.
    fn emit_restore(&self, a: &mut Assembler) {
        if self.saves_flags {
            emit_flags(a);
        }
        for (register, offset) in frame::RESTORED {
            a.load(register, offset);
        }
        a.put(&[0x48, 0x8d, 0xa4, 0x24]); // lea rsp, [rsp + FRAME]
        a.put(&FRAME.to_le_bytes());
    }
}

/// The status and direction flags as they were; `rax` and `rcx` are used for it. Not by `popfq`: a debugger that steps over
/// that leaves its trap flag behind (arch/x86/kernel/step.c:enable_single_step).
fn emit_flags(a: &mut Assembler) {
    const AT: [u8; 4] = (offset_of!(PtRegs, eflags) as u32).to_le_bytes();
    const DIRECTION: [u8; 4] = 0x400u32.to_le_bytes();
    a.put(&[0xf7, 0x84, 0x24]); // test dword [rsp + eflags], DF
    a.put(&AT);
    a.put(&DIRECTION);
    a.put(&[0x74, 1, 0xfd]); // jz over; std
    a.put(&[0x8b, 0x8c, 0x24]); // mov ecx, [rsp + eflags]
    a.put(&AT);
    a.put(&[0x89, 0xc8, 0xc1, 0xe0, 8]); // mov eax, ecx; shl eax, 8
    a.put(&[0xc1, 0xe9, 11, 0x83, 0xe1, 1, 0x88, 0xc8]); // shr ecx, 11; and ecx, 1; mov al, cl
    // The overflow flag, if it was set; the others come from `ah`.
    a.put(&[0x04, 0x7f, 0x9e]); // add al, 0x7f; sahf
}

fn immovable(instruction: &Instruction) -> Refusal {
    Refusal::Immovable { address: instruction.ip(), text: format!("{instruction}") }
}

/// One displaced instruction, with the effect that it had at its own address.
pub(crate) fn emit_displaced(a: &mut Assembler, instruction: &Instruction, bytes: &[u8]) -> Result<(), Refusal> {
    if instruction.flow_control() == FlowControl::XbeginXabortXend {
        return Err(immovable(instruction));
    }
    if instruction.is_call_near() || instruction.is_call_near_indirect() {
        return emit_call_displaced(a, instruction);
    }
    if let Some(target) = direct_target(instruction) {
        return emit_branch(a, instruction, bytes, target);
    }
    if instruction.is_call_far() || instruction.is_call_far_indirect() || instruction.is_jmp_far() {
        return Err(immovable(instruction));
    }
    if instruction.is_ip_rel_memory_operand() {
        return emit_encoded(a, instruction);
    }
    a.put(bytes);
    Ok(())
}

/// Encodes an instruction for where it lands; relative operands keep their targets.
fn emit_encoded(a: &mut Assembler, instruction: &Instruction) -> Result<(), Refusal> {
    let mut encoder = Encoder::new(64);
    encoder
        .encode(instruction, a.here())
        .map_err(|_| Refusal::OutOfReach { address: instruction.ip_rel_memory_address() })?;
    let bytes = encoder.take_buffer();
    a.put(&bytes);
    Ok(())
}

fn emit_branch(a: &mut Assembler, instruction: &Instruction, bytes: &[u8], target: u64) -> Result<(), Refusal> {
    if instruction.is_jmp_short_or_near() {
        return a.jump(target);
    }
    if instruction.is_jcc_short_or_near() && instruction.condition_code() != ConditionCode::None {
        a.put(&[0x0f, 0x80 + (instruction.condition_code() as u8 - 1)]);
        return a.relative(target);
    }
    // loop, loope, loopne, jrcxz exist only with 8-bit displacements: over a jump past the jump to the target.
    let (_, opcode) = bytes.split_last().ok_or_else(|| immovable(instruction))?;
    a.put(opcode);
    a.put(&[2, 0xeb, JUMP_BYTES as u8]);
    a.jump(target)
}

/// A call that pushes the return address which the original would have pushed.
fn emit_call_displaced(a: &mut Assembler, instruction: &Instruction) -> Result<(), Refusal> {
    if let Some(target) = direct_target(instruction) {
        a.push_constant(instruction.next_ip());
        return a.jump(target);
    }
    if instruction.code() != Code::Call_rm64 || instruction.op0_register() == Register::RSP {
        return Err(immovable(instruction));
    }
    let mut copy = *instruction;
    if instruction.op0_kind() == OpKind::Register {
        copy.set_code(Code::Jmp_rm64);
        a.push_constant(instruction.next_ip());
        return emit_encoded(a, &copy);
    }
    // The target is read first: that may fault, or be from where the return address goes.
    copy.set_code(Code::Push_rm64);
    emit_encoded(a, &copy)?;
    a.put(&[0xff, 0x34, 0x24]); // push [rsp]
    let next = instruction.next_ip();
    a.put(&[0xc7, 0x44, 0x24, 0x08]); // mov dword [rsp + 8], next
    a.put(&(next as u32).to_le_bytes());
    a.put(&[0xc7, 0x44, 0x24, 0x0c]); // mov dword [rsp + 12], next >> 32
    a.put(&((next >> 32) as u32).to_le_bytes());
    a.put(&[0x48, 0x8d, 0x64, 0x24, 0x08]); // lea rsp, [rsp + 8]
    a.put(&[0xff, 0x64, 0x24, 0xf8]); // jmp [rsp - 8]
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Function, plan_alone};

    #[test]
    fn behind_an_instruction_that_traps_the_stub_leads_back() {
        const SITE: u64 = 0x40_1000;
        const STUB: u64 = 0x50_0000;
        // ud2; ret: a handler of SIGILL adds 2 to the program counter.
        let function =
            Function { bytes: &[0x0f, 0x0b, 0xc3], address: SITE, size: 3, entered: None, computed: false };
        let plan = plan_alone(&function, SITE, None).expect("planned");
        let agent_stack = AgentStackLinks { enter: 0, find: 0, state: 0, generation: 0, missed: 0 };
        let stub = plan.stub(STUB, Entries { enter: 0, call: 0, agent_stack }, 0).expect("made");
        let behind = stub.moved.iter().find(|moved| moved.original == SITE + 2).expect("it is told where that is");
        let (copy, jump) = stub.bytes.split_at(behind.stub_offset as usize);
        assert!(copy.ends_with(&[0x0f, 0x0b]));
        let distance = (SITE + 2).wrapping_sub(STUB + stub.bytes.len() as u64) as i32;
        assert_eq!((jump[0], &jump[1..]), (0xe9, &distance.to_le_bytes()[..]));
    }
}
