//! Stubs of sites whose threads have no usable stack: goroutines, whose stacks have only the room that the linker planned.
//!
//! The linker promises one word below the stack pointer (for the call that grows the stack), and signal handlers run on another
//! stack. The stub saves `rax` there. At a function's entry and at its `ret` the return address is at the stack pointer: the stub
//! moves its 48 bits into `rax`, with the status flags above them, and saves `r11` in its place. (At other instructions `r11`
//! takes a second word.) With these two registers the stub checks that GS points to the thread's own block, as
//! `raw_thread::at_gs` does, and switches to a stack in that block. If the thread is not known yet, the agent looks it up, and
//! the stub starts again.

use std::mem::offset_of;

use iced_x86::Instruction;
use ring3_layout::region::STATE_BYTES;
use ring3_layout::syscall::AGENT_STACK_BYTES;
use ring3_layout::thread::ThreadBlock;

use crate::plan::{AgentStackAt, JUMP_BYTES, Plan, Refusal};
use crate::stub::{Assembler, Moved, emit_displaced};

/// Bytes of a jump through the word that follows it.
const FAR_JUMP_BYTES: u32 = 14;

/// Where stubs that run the agent on an agent stack lead, and what they look at.
#[derive(Clone, Copy, Debug)]
pub struct AgentStackLinks {
    /// Runs the programs: what is at the stack pointer is the end of a [`ring3_layout::frame::AgentStackFrame`].
    pub enter: u64,
    /// Finds the thread's block, and goes on at `r11`, or, if there is none, 5 bytes before.
    pub find: u64,
    /// Address of the state block.
    pub state: u64,
    /// Address of `ProcessPage::generation`.
    pub generation: u64,
    /// Address of `StateHeader::missed_no_block`.
    pub missed: u64,
}

/// A short jump forward, of which the distance is not known yet.
struct Short(usize);

impl Assembler {
    fn short(&mut self, opcode: u8) -> Short {
        self.put(&[opcode, 0]);
        Short(self.bytes.len())
    }

    fn land_short(&mut self, jump: Short) {
        let distance = self.bytes.len() - jump.0;
        self.bytes[jump.0 - 1] = i8::try_from(distance).expect("stubs are short") as u8;
    }

    /// A short jump back.
    fn short_back(&mut self, opcode: u8, to: usize) {
        let distance = to as i64 - (self.bytes.len() as i64 + 2);
        self.put(&[opcode, i8::try_from(distance).expect("stubs are short") as u8]);
    }

    /// An instruction on `gs:[offset]`: what comes before the displacement, and that.
    fn gs(&mut self, instruction: &[u8], offset: usize) {
        self.put(&[0x65]);
        self.put(instruction);
        self.put(&(offset as u32).to_le_bytes());
    }

    /// `mov r11, value`.
    fn load_r11(&mut self, value: u64) {
        self.put(&[0x49, 0xbb]);
        self.put(&value.to_le_bytes());
    }

    /// `call` through a word that follows, which is jumped over on the way back.
    fn call_far(&mut self, target: u64) {
        self.put(&[0xff, 0x15, 2, 0, 0, 0, 0xeb, 8]); // call [rip + 2]; jmp over
        self.put(&target.to_le_bytes());
    }
}

impl Plan {
    /// The displaced instructions before a `ret` at which the agent is called.
    pub(crate) fn before_agent(&self) -> usize {
        if self.agent_stack == Some(AgentStackAt::AtReturn) { self.displaced.len() - 1 } else { 0 }
    }

    /// Calls the agent on a stack of the thread's block. All registers and flags are as they were.
    pub(crate) fn emit_on_agent_stack(
        &self,
        a: &mut Assembler,
        agent_stack: AgentStackAt,
        links: AgentStackLinks,
        hook: u64,
    ) {
        a.put(&[0x48, 0x89, 0x44, 0x24, 0xf8]); // mov [rsp - 8], rax
        a.put(&[0x9f, 0x0f, 0x90, 0xc0]); // lahf; seto al
        a.put(&[0x0f, 0xb7, 0xc0, 0x48, 0xc1, 0xe0, 48]); // movzx eax, ax; shl rax, 48
        let has_return_address = agent_stack != AgentStackAt::Within;
        if has_return_address {
            a.put(&[0x48, 0x0b, 0x04, 0x24]); // or rax, [rsp]
            a.put(&[0x4c, 0x89, 0x1c, 0x24]); // mov [rsp], r11
        } else {
            a.put(&[0x4c, 0x89, 0x5c, 0x24, 0xf0]); // mov [rsp - 16], r11
        }
        let begin = a.short(0xeb);
        let unknown = a.bytes.len();
        a.put(&[0x4c, 0x8d, 0x1d]); // lea r11, [rip + retry]
        a.put(&(FAR_JUMP_BYTES + JUMP_BYTES as u32).to_le_bytes());
        a.jump_far(links.find);
        a.put(&[0xe9]); // jmp missed (5 bytes before what follows)
        let missed = a.hole();
        a.land_short(begin);
        emit_check(a, links, unknown);
        a.gs(&[0x4c, 0x8b, 0x1c, 0x25], offset_of!(ThreadBlock, agent_stack_top)); // mov r11, gs:[agent_stack_top]
        a.gs(&[0x4c, 0x3b, 0x1c, 0x25], offset_of!(ThreadBlock, agent_stack_end)); // cmp r11, gs:[agent_stack_end]
        let none_free = a.short(0x76); // jbe
        a.gs(&[0x48, 0x81, 0x2c, 0x25], offset_of!(ThreadBlock, agent_stack_top)); // sub qword gs:[agent_stack_top], bytes
        a.put(&(AGENT_STACK_BYTES as u32).to_le_bytes());
        a.put(&[0x4c, 0x87, 0xdc]); // xchg rsp, r11
        a.put(&[0x41, 0x53, 0x50]); // push r11; push rax
        if has_return_address {
            a.put(&[0x41, 0xff, 0x33]); // push qword [r11]
        } else {
            a.put(&[0x41, 0xff, 0x73, 0xf0]); // push qword [r11 - 16]
        }
        a.put(&[0x41, 0xff, 0x73, 0xf8]); // push qword [r11 - 8]
        a.load_r11(hook);
        a.call_far(links.enter);
        a.put(&[0x48, 0x8d, 0x64, 0x24, 16]); // lea rsp, [rsp + 16]
        a.put(&[0x58, 0x5c]); // pop rax; pop rsp
        a.gs(&[0x48, 0x81, 0x04, 0x25], offset_of!(ThreadBlock, agent_stack_top)); // add qword gs:[agent_stack_top], bytes
        a.put(&(AGENT_STACK_BYTES as u32).to_le_bytes());
        let done = a.short(0xeb);
        a.land_short(none_free);
        a.load_r11(links.missed);
        a.put(&[0xf0, 0x49, 0xff, 0x03]); // lock inc qword [r11]
        a.land(missed);
        a.land_short(done);
        emit_back(a, has_return_address);
    }
}

/// Looks, in `r11`, whether GS leads to the thread's own block; if not, the thread goes on at `unknown`.
fn emit_check(a: &mut Assembler, links: AgentStackLinks, unknown: usize) {
    const BLOCKS: u32 = STATE_BYTES as u32;
    const _: () = assert!(STATE_BYTES < i32::MAX as u64);
    a.put(&[0xf3, 0x49, 0x0f, 0xae, 0xcb]); // rdgsbase r11
    a.put(&[0x4c, 0x2b, 0x1d, 2, 0, 0, 0, 0xeb, 8]); // sub r11, [rip + 2]; jmp over
    a.put(&links.state.to_le_bytes());
    a.put(&[0x49, 0x81, 0xfb]); // cmp r11, bytes
    a.put(&BLOCKS.to_le_bytes());
    a.short_back(0x73, unknown); // jae
    a.put(&[0xf3, 0x49, 0x0f, 0xae, 0xc3]); // rdfsbase r11
    a.gs(&[0x4c, 0x3b, 0x1c, 0x25], offset_of!(ThreadBlock, fs_base)); // cmp r11, gs:[fs_base]
    a.short_back(0x75, unknown); // jne
    a.load_r11(links.generation);
    a.put(&[0x4d, 0x8b, 0x1b, 0x4d, 0x85, 0xdb]); // mov r11, [r11]; test r11, r11
    a.short_back(0x74, unknown); // jz
    a.gs(&[0x4c, 0x3b, 0x1c, 0x25], offset_of!(ThreadBlock, generation)); // cmp r11, gs:[generation]
    a.short_back(0x75, unknown); // jne
}

/// The return address, the flags, `r11` and `rax` as they were.
fn emit_back(a: &mut Assembler, has_return_address: bool) {
    if has_return_address {
        a.put(&[0x4c, 0x8b, 0x1c, 0x24]); // mov r11, [rsp]
        a.put(&[0x89, 0x04, 0x24]); // mov [rsp], eax
        a.put(&[0x48, 0xc1, 0xe8, 32]); // shr rax, 32
        a.put(&[0x66, 0x89, 0x44, 0x24, 4]); // mov [rsp + 4], ax
        a.put(&[0x66, 0xc7, 0x44, 0x24, 6, 0, 0]); // mov word [rsp + 6], 0
        a.put(&[0xc1, 0xe8, 16]); // shr eax, 16
    } else {
        a.put(&[0x4c, 0x8b, 0x5c, 0x24, 0xf0]); // mov r11, [rsp - 16]
        a.put(&[0x48, 0xc1, 0xe8, 48]); // shr rax, 48
    }
    // The overflow flag, if it was set; the others come from `ah`.
    a.put(&[0x04, 0x7f, 0x9e]); // add al, 0x7f; sahf
    a.put(&[0x48, 0x8b, 0x44, 0x24, 0xf8]); // mov rax, [rsp - 8]
}

/// The displaced instructions, with the effect that they had at their own addresses; where each went.
pub(crate) fn emit_all(
    a: &mut Assembler,
    displaced: &[(Instruction, Vec<u8>)],
    moved: &mut Vec<Moved>,
) -> Result<(), Refusal> {
    for (instruction, bytes) in displaced {
        moved.push(Moved { original: instruction.ip(), stub_offset: a.bytes.len() as u32 });
        emit_displaced(a, instruction, bytes)?;
    }
    Ok(())
}
