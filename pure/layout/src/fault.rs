//! A run of a program that has faulted: what the agent tells the server, and what the server answers
//! (docs/design/engine.md, "Faults in programs").

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// In a [`Fault`] that a thread has written for the server.
pub const FAULT_MAGIC: u64 = 0x7469_756c_6661_3372;

/// Indexes of [`Fault::registers`].
pub mod register {
    /// Instruction pointer.
    pub const RIP: usize = 0;
    /// Stack pointer.
    pub const RSP: usize = 1;
}

/// How often a program may fault for one link in a process; then the link is switched off there.
pub const FAULTS_MAX: u64 = 10;

/// On the stack of a thread while it waits for the answer to a request of [`crate::realm::request::KIND_FAULT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
pub struct Fault {
    /// [`FAULT_MAGIC`] xor the address of this value.
    pub magic: u64,
    /// `rip`, `rsp`, `rbx`, `rbp`, `r12` to `r15` at the fault. The answer: those with which the caller of the program goes on.
    pub registers: [u64; 8],
    /// The stack pointer below which the programs run ([`crate::thread::ThreadBlock::guard`]).
    pub guard: u64,
    /// The address that could not be accessed.
    pub address: u64,
    /// The link of the program.
    pub link_id: u32,
    /// The program.
    pub prog_id: u32,
    /// The signal.
    pub signal: u32,
    /// Other runs of programs of this thread that are interrupted, and hold what they hold.
    pub interrupted: u32,
    /// 1: answered.
    pub is_answered: u64,
}
