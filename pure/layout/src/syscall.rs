//! Tracing of system calls: who subscribes to which call, and where `syscall` instructions were (docs/design/syscalls.md).
//!
//! A site (a `syscall` instruction with its neighbours) jumps to a near stub, and that to the site's syscall trampoline (gate),
//! which makes the call. All trampolines lie in one range of the region ([`crate::region::GATES_OFFSET`]). So the kernel can be
//! told to let exactly their calls pass (syscall user dispatch).

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::control::Attachment;

/// Numbers of system calls that have an entry of their own in the table.
pub const NUMBERS: usize = 512;
/// The entry for all other numbers, which no system call has.
pub const OTHER_NUMBERS: usize = NUMBERS;
/// Offset of [`SyscallTables`] in the control block.
pub const TABLES_OFFSET: u64 = crate::control::SYSCALLS_OFFSET;
/// Offset of the table of [`SyscallSite`]s in the control block.
pub const SITES_OFFSET: u64 = TABLES_OFFSET + 0x6000;
/// Sites of one target. One more, which is no place in the code, is for the end of the `execve` that began the program.
pub const SITES_MAX: u32 = 4862;
/// Bytes of a gate.
pub const GATE_BYTES: u64 = 256;
/// Where in a gate whose site's number is known the call is made, and where what comes behind it.
pub const CALL_AT: u64 = 26;
/// See [`CALL_AT`].
pub const DONE_AT: u64 = 54;
/// Where in a gate whose site's number is not known calls are made that nobody wants.
pub const PLAIN_AT: u64 = 27;
/// Where in such a gate the agent is asked: behind that call and its end.
pub const SLOW_AT: u64 = PLAIN_AT + SYSCALL_BYTES + 24;
/// Where in such a gate calls are made that somebody wants: in copies, one for each of [`BEGINNERS`] behind one for all others.
pub const WANTED_AT: u64 = 72;
/// From one copy to the next.
pub const COPY_BYTES: u64 = 20;
/// Where in such a gate what comes behind the call is.
pub const WANTED_DONE_AT: u64 = WANTED_AT + COPY_BYTES * (BEGINNERS.len() as u64 + 1);
/// Calls that begin a thread or a process (`clone`, `fork`, `vfork`, `clone3`): where that begins the call's number cannot be
/// looked up.
pub const BEGINNERS: [u32; 4] = [56, 57, 58, 435];
/// Other calls at whose beginning or end the agent has more to do than to run programs: `mmap`, `mprotect`, `rt_sigaction`,
/// `rt_sigreturn`, `execve`, `exit`, `kill`, `rt_sigqueueinfo`, `arch_prctl`, `tkill`, `exit_group`, `tgkill`, `rt_tgsigqueueinfo`, `execveat`,
/// `pkey_mprotect`.
pub const CLOSE_CALLS: [u32; 15] = [9, 10, 13, 15, 59, 60, 62, 129, 158, 200, 231, 234, 297, 322, 329];
/// Of what a gate passes on in `ecx`: the copy, above the site's index.
pub const COPY_SHIFT: u32 = 16;
/// Of what a gate passes on: the site's number is known.
pub const NUMBER_KNOWN: u32 = 1 << 31;
/// In the place of what a gate passes on.
pub const NO_GATE: u32 = u32::MAX;
/// Bytes of the stack of a call that must not use the caller's.
pub const APART_BYTES: u64 = 0x4000;
/// Such stacks of a thread, for calls in signal handlers that interrupt the agent.
pub const APART_LEVELS: u64 = 3;

/// Calls that threads are in at a time, one interrupted by a signal handler that makes the next.
pub const CALLS_MAX: usize = 16;

/// Of [`Seers::enter`] and `exit`: the agent looks at this call in any case.
pub const ALWAYS: u64 = 1 << 63;

/// The id of no process, nor the error that asking for one gives.
pub const NO_PROCESS: u32 = 1 << 31;

/// Who wants the calls with a number. 32 bytes: what is looked at for a call lies together.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct Seers {
    /// Packed range ([`crate::control::range_pack`]) of the attachments that see its beginning, and [`ALWAYS`]; 0: nobody wants
    /// either end of it.
    pub enter: AtomicU64,
    /// The same of its end.
    pub exit: AtomicU64,
    /// Address of the only [`Attachment`] that sees its beginning, of [`SyscallTables::nobody`], or 0 if there are more, or
    /// the agent has more to do, as it has at each call while there is the net, or it is about to come.
    pub enter_only: AtomicU64,
    /// The same of its end.
    pub exit_only: AtomicU64,
}

/// Bytes of an entry of [`SyscallTables::calls`], by this power of 2.
pub const CALL_SHIFT: u8 = 5;

/// Who wants what, by number.
#[repr(C)]
#[derive(Debug)]
pub struct SyscallTables {
    /// The entries of all numbers, and behind them that of all others.
    pub calls: [Seers; NUMBERS + 1],
    /// Address of the [`crate::control::Hook`] that counts hits and misses.
    pub hook: AtomicU64,
    /// Address of the agent's handler of SIGCANCEL, which stands before the process's own.
    pub cancel_handler: AtomicU64,
    /// Where in a thread block its hits are counted.
    pub hits_at: AtomicU64,
    /// Address of the first thread block.
    pub blocks: AtomicU64,
    /// Is for the process with [`NO_PROCESS`]: no program runs, but the call is remembered.
    pub nobody: Attachment,
    /// 1: there is the net, or it is about to come. What a routine does in which threads are cancelled must not be caught.
    pub netted: AtomicU32,
    /// 1: an `execve` is announced to the server, which traces what is executed.
    pub follow: AtomicU32,
    /// How often places were restored where the ends of calls are seen of routines in which threads are cancelled.
    pub blind: AtomicU32,
}

/// A `syscall` instruction that was replaced, or a call of a routine with one ([`crate::cancellation`]), or what that returns
/// to. 48 bytes; what it takes to undo it is here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SyscallSite {
    /// Where the jump to the near stub was written; 0: nowhere (any more).
    pub site: u64,
    /// Address of the `syscall` instruction.
    pub call: u64,
    /// Address of the near stub.
    pub near: u64,
    /// The call's number; -1: not known before; or [`crate::cancellation::CALLS`] or `RETURNS`.
    pub number: i32,
    /// Bytes of the instructions that were displaced.
    pub displaced: u32,
    /// What stood where the jump is.
    pub original: [u8; 8],
    /// What was written there.
    pub written: [u8; 8],
}

/// What of a call has happened when a thread is at a place in a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing, or it is about to be made again.
    Before,
    /// It is over.
    After,
}

/// What of the call has happened for a thread at `offset` in a gate.
pub fn progress(number_known: bool, offset: u64) -> Progress {
    let before = match offset {
        _ if number_known => offset <= CALL_AT,
        ..=PLAIN_AT => true,
        WANTED_AT..WANTED_DONE_AT => (offset - WANTED_AT).is_multiple_of(COPY_BYTES),
        _ => (SLOW_AT..WANTED_AT).contains(&offset),
    };
    if before { Progress::Before } else { Progress::After }
}

/// The signal by which glibc cancels threads (nptl/pthreadP.h).
pub const SIGCANCEL: u64 = 32;

/// Bytes of a `syscall` instruction.
pub const SYSCALL_BYTES: u64 = 2;

/// A call that a thread is in. 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// Stack pointer at the site; 0: none.
    pub sp: u64,
    /// The number.
    pub number: i32,
    /// What the gate passed by which it began; [`NO_GATE`]: none did.
    pub gate: u32,
    /// `ThreadBlock::first_call` when it began.
    pub first_call: u32,
    /// 1: its end was shown.
    pub ended: u32,
    /// Of a call of a routine in which threads are cancelled: its site's index, and 1 more. Else 0.
    pub routine: u32,
    /// `SyscallTables::blind` when it began.
    pub blind: u32,
}

const _: () = {
    assert!(size_of::<SyscallSite>() == 48);
    assert!(size_of::<Seers>() == 1 << CALL_SHIFT);
    assert!(size_of::<Call>() == 32);
    assert!(TABLES_OFFSET + size_of::<SyscallTables>() as u64 <= SITES_OFFSET);
    assert!(SITES_OFFSET + (SITES_MAX as u64 + 1) * size_of::<SyscallSite>() as u64 <= crate::control::VIEWS_OFFSET);
};
