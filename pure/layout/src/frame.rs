//! The frame that stubs and the return trampoline make on the thread's stack: a `PtRegs`, the programs' context.
//!
//! Every frame holds the registers that are restored after the agent has run; the agent preserves the others itself. These
//! others, half of all, are stored only if a program needs them ([`crate::control::Hook::all_registers`]). A thread that made its
//! frame before that was set arrived before the program was attached, and does not run it.

use core::mem::offset_of;
use core::ops::Range;

use ring3_uapi::ptrace::PtRegs;

/// What the ABI lets leaf functions use below the stack pointer, bytes.
pub const RED_ZONE_BYTES: u64 = 128;
/// From the registers to the stack pointer as it was at the site, bytes.
pub const STUB_FRAME_BYTES: u64 = size_of::<PtRegs>() as u64 + RED_ZONE_BYTES;
/// From the registers to the slot that held the return address, bytes.
pub const TRAMPOLINE_FRAME_BYTES: u64 = size_of::<PtRegs>() as u64;

/// What the agent says to a stub: the thread goes on with the displaced instructions.
pub const ENTER_CONTINUE: u8 = 0;
/// The function is to be called, because its return is awaited.
pub const ENTER_CALL: u8 = 1;
/// The thread returns to the function's caller, with the registers of the frame.
pub const ENTER_RETURN: u8 = 2;

/// Registers, by their numbers in instructions, that every frame has, and where: those that functions need not keep, and
/// `rbx`, which holds the frame meanwhile.
pub const RESTORED: [(u8, usize); 10] = [
    (0, offset_of!(PtRegs, rax)),
    (1, offset_of!(PtRegs, rcx)),
    (2, offset_of!(PtRegs, rdx)),
    (3, offset_of!(PtRegs, rbx)),
    (6, offset_of!(PtRegs, rsi)),
    (7, offset_of!(PtRegs, rdi)),
    (8, offset_of!(PtRegs, r8)),
    (9, offset_of!(PtRegs, r9)),
    (10, offset_of!(PtRegs, r10)),
    (11, offset_of!(PtRegs, r11)),
];
/// The others.
pub const KEPT: [(u8, usize); 5] = [
    (5, offset_of!(PtRegs, rbp)),
    (12, offset_of!(PtRegs, r12)),
    (13, offset_of!(PtRegs, r13)),
    (14, offset_of!(PtRegs, r14)),
    (15, offset_of!(PtRegs, r15)),
];

/// What a stub that must not use the thread's stack has on another one when it calls the agent, below which that puts the
/// registers. 208 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AgentStackFrame {
    /// The registers.
    pub regs: PtRegs,
    /// Where in the stub the agent returns to.
    pub back: u64,
    /// What `rax` was.
    pub rax: u64,
    /// What `r11` was.
    pub r11: u64,
    /// The return address, at a function's entry and at its `ret`, in the low [`ADDRESS_BITS`]; above it the overflow flag in the
    /// lowest bit of a byte, and then the other status flags as `lahf` has them.
    pub state: u64,
    /// The stack pointer.
    pub rsp: u64,
}

/// Bits of an address in user space.
pub const ADDRESS_BITS: u32 = 48;

const _: () =
    assert!(size_of::<AgentStackFrame>() == 208 && offset_of!(AgentStackFrame, back) == size_of::<PtRegs>());

/// Whether every frame has these bytes of the registers.
pub fn has(bytes: &Range<u32>) -> bool {
    RESTORED.iter().any(|(_, at)| *at <= bytes.start as usize && bytes.end as usize <= at + 8)
}
