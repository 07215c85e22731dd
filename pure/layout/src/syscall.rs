//! Tracing of system calls: who subscribes to which call, and where `syscall` instructions were (docs/design/syscalls.md).
//!
//! A site (a `syscall` instruction with its neighbours) jumps to a near stub, and that to the site's syscall
//! trampoline, which makes the call. All trampolines lie in one range of the region
//! ([`crate::region::TRAMPOLINES_OFFSET`]). So the kernel can be told to let exactly their calls pass (syscall user
//! dispatch).

use core::sync::atomic::{AtomicU32, AtomicU64};

use ring3_uapi::nr;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::control::Attachment;
use crate::task_event::TaskEvent;

/// System calls after which a thread may be of another user or group. The agent remembers whose it is until then.
pub const IDENTITY_CHANGERS: [i64; 8] =
    [nr::SETUID, nr::SETGID, nr::SETREUID, nr::SETREGID, nr::SETRESUID, nr::SETRESGID, nr::UNSHARE, nr::SETNS];

/// Numbers of system calls that have an entry of their own in the table.
pub const NUMBERS: usize = 512;
/// The entry for all other numbers; no system call has one of these.
pub const OTHER_NUMBERS: usize = NUMBERS;
/// Offset of [`SyscallTables`] in the control page.
pub const TABLES_OFFSET: u64 = crate::control::SYSCALLS_OFFSET;
/// Offset of the table of [`SyscallSite`]s in the control page.
pub const SITES_OFFSET: u64 = TABLES_OFFSET + 0x6000;
/// Sites of one target. One more, which is no place in the code, is for the end of the `execve` that began the program.
pub const SITES_MAX: u32 = 4862;
/// Bytes of a trampoline.
pub const TRAMPOLINE_BYTES: u64 = 256;
/// Offset in a syscall trampoline of the call, and of the code behind it, if the site's number is known.
pub const CALL_AT: u64 = 26;
/// See [`CALL_AT`].
pub const DONE_AT: u64 = 54;
/// If the number is not known: offset of the copy of the call for numbers without subscribers.
pub const UNTRACED_AT: u64 = 27;
/// Offset of the code that asks the agent, behind that copy and its end.
pub const SLOW_AT: u64 = UNTRACED_AT + SYSCALL_BYTES + 24;
/// Offset of the copies of the call for numbers with subscribers: one for each of [`CLONE_SYSCALLS`], behind one for
/// all others.
pub const TRACED_AT: u64 = 72;
/// From one copy to the next.
pub const COPY_BYTES: u64 = 20;
/// Offset of the code behind these copies.
pub const TRACED_DONE_AT: u64 = TRACED_AT + COPY_BYTES * (CLONE_SYSCALLS.len() as u64 + 1);
/// Calls that create a thread or a process (`clone`, `fork`, `vfork`, `clone3`). The new one begins in the trampoline, where the
/// call's number cannot be looked up any more; so each has a copy of its own.
pub const CLONE_SYSCALLS: [i64; 4] = [nr::CLONE, nr::FORK, nr::VFORK, nr::CLONE3];
/// Other calls at whose beginning or end the agent has more to do than to run programs.
pub const SLOW_PATH_SYSCALLS: [i64; 23] = [
    nr::MMAP,
    nr::MPROTECT,
    nr::MUNMAP,
    nr::RT_SIGACTION,
    nr::RT_SIGRETURN,
    nr::MREMAP,
    nr::EXECVE,
    nr::EXIT,
    nr::KILL,
    nr::RT_SIGQUEUEINFO,
    nr::PRCTL,
    nr::ARCH_PRCTL,
    nr::TKILL,
    nr::EXIT_GROUP,
    nr::TGKILL,
    nr::RT_TGSIGQUEUEINFO,
    nr::SECCOMP,
    nr::EXECVEAT,
    nr::PKEY_MPROTECT,
    nr::PIDFD_SEND_SIGNAL,
    nr::GETRLIMIT,
    nr::SETRLIMIT,
    nr::PRLIMIT64,
];
/// Calls that may set a signal mask for as long as they take.
pub const MASK_SETTERS: [i64; 7] = [
    nr::RT_SIGSUSPEND,
    nr::PSELECT6,
    nr::PPOLL,
    nr::EPOLL_PWAIT,
    nr::IO_PGETEVENTS,
    nr::IO_URING_ENTER,
    nr::EPOLL_PWAIT2,
];
/// In what a trampoline passes in `ecx`: the copy, above the site's index.
pub const COPY_SHIFT: u32 = 16;
/// In what a trampoline passes: the site's number is known.
pub const NUMBER_KNOWN: u32 = 1 << 31;
/// Stands for a call that no trampoline made.
pub const NO_TRAMPOLINE: u32 = u32::MAX;
/// Bytes of an agent stack, for a call that must not use the caller's stack.
pub const AGENT_STACK_BYTES: u64 = 0x4000;
/// Agent stacks of a thread, for calls in signal handlers that interrupt the agent.
pub const AGENT_STACKS: u64 = 3;

/// Calls under way of a thread at a time, each made by a signal handler that interrupted the previous one.
pub const CALLS_MAX: usize = 16;

/// Of [`Subscribers::enter`] and `exit`: the agent looks at this call in any case.
pub const ALWAYS: u64 = 1 << 63;

/// A number that is neither a process id nor an error of asking for one.
pub const NO_PROCESS: u32 = 1 << 31;

/// The subscribers of the calls with one number. 32 bytes: everything that a call looks up lies together.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct Subscribers {
    /// Packed range ([`crate::control::range_pack`]) of the attachments that see the beginning, and [`ALWAYS`]; 0: nobody
    /// subscribes to either end.
    pub enter: AtomicU64,
    /// The same for the end.
    pub exit: AtomicU64,
    /// Address of the only [`Attachment`] that sees the beginning, of [`SyscallTables::nobody`], or 0: then the slow path is
    /// needed, since there are several, or the agent has more to do. While the SUD fallback is enabled, or about to be, it is 0
    /// for every call.
    pub enter_only: AtomicU64,
    /// The same for the end.
    pub exit_only: AtomicU64,
}

/// Bytes of an entry of [`SyscallTables::calls`], by this power of 2.
pub const CALL_SHIFT: u8 = 5;

/// Subscribers by number, and what else the agent needs for system calls.
#[repr(C)]
#[derive(Debug)]
pub struct SyscallTables {
    /// The entries of all numbers, and behind them that of all others.
    pub calls: [Subscribers; NUMBERS + 1],
    /// Address of the [`crate::control::Hook`] that counts hits and misses.
    pub hook: AtomicU64,
    /// Address of the agent's handler of SIGCANCEL, which runs before the process's own.
    pub cancel_handler: AtomicU64,
    /// Where in a thread block its hits are counted.
    pub hits_at: AtomicU64,
    /// Address of the first thread block.
    pub blocks: AtomicU64,
    /// An attachment for [`NO_PROCESS`]: no program runs, but the call is remembered.
    pub nobody: Attachment,
    /// 1: the SUD fallback is enabled or about to be. Calls that routines make in which threads are cancelled must not be caught.
    pub uses_sud: AtomicU32,
    /// 1: the agent announces an `execve` to the server, which makes the executed program a target.
    pub follow: AtomicU32,
    /// How often the sites were restored that show the ends of calls of routines in which threads are cancelled.
    pub returns_restored: AtomicU32,
    /// 1: `sched_process_fork` has names in fixed places ([`crate::task_event::FixedForkContext`]).
    pub fork_is_fixed: AtomicU32,
    /// The id that the thread had which has executed the program; 0: the one that it has.
    pub executed_by: AtomicU32,
    /// By [`TaskEvent`]: packed range of the attachments that see it; 0: nobody.
    pub task_events: [AtomicU64; TaskEvent::ALL.len()],
}

/// A `syscall` instruction that was replaced; or a call of a routine with one ([`crate::cancellation`]), or its return address.
/// 48 bytes, with all that is needed to undo it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
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

/// How far a call is when a thread is at an address in a trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The call is still to be made, or to be made again.
    Before,
    /// It is over.
    After,
}

/// How far the call is for a thread at `offset` in a trampoline.
pub fn progress(number_known: bool, offset: u64) -> Progress {
    let before = match offset {
        _ if number_known => offset <= CALL_AT,
        ..=UNTRACED_AT => true,
        TRACED_AT..TRACED_DONE_AT => (offset - TRACED_AT).is_multiple_of(COPY_BYTES),
        _ => (SLOW_AT..TRACED_AT).contains(&offset),
    };
    if before { Progress::Before } else { Progress::After }
}

/// The signal by which glibc cancels threads (nptl/pthreadP.h).
pub const SIGCANCEL: u64 = 32;

/// Bytes of a `syscall` instruction.
pub const SYSCALL_BYTES: u64 = 2;

/// A call under way of a thread. 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// Stack pointer at the site; 0: none.
    pub sp: u64,
    /// The number.
    pub number: i32,
    /// What its trampoline passed; [`NO_TRAMPOLINE`]: no trampoline made it.
    pub trampoline: u32,
    /// `ThreadBlock::first_call` when it began.
    pub first_call: u32,
    /// 1: its end was shown.
    pub ended: u32,
    /// For a call of a routine in which threads are cancelled: its site's index plus 1. Else 0.
    pub routine: u32,
    /// `SyscallTables::returns_restored` when it began.
    pub returns_restored: u32,
}

const _: () = {
    assert!(size_of::<SyscallSite>() == 48);
    assert!(size_of::<Subscribers>() == 1 << CALL_SHIFT);
    assert!(size_of::<Call>() == 32);
    assert!(TABLES_OFFSET + size_of::<SyscallTables>() as u64 <= SITES_OFFSET);
    assert!(SITES_OFFSET + (SITES_MAX as u64 + 1) * size_of::<SyscallSite>() as u64 <= crate::control::VIEWS_OFFSET);
};
