//! The SUD fallback: the kernel's syscall user dispatch (SUD) catches the system calls of a process that go through no
//! syscall trampoline of a site.
//!
//! A call from outside of the region raises SIGSYS, whose handler is the agent's. The call is then made from a SUD
//! trampoline, which jumps back to the instruction after it. The trampolines ([`SUD_TRAMPOLINE_BYTES`] each, from
//! [`SUD_TRAMPOLINES_OFFSET`] on) are the same in all processes. A process uses one for each place that such calls come
//! from. So the address of a thread in a SUD trampoline (a new thread, a call that is made again) tells its place.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Places of one process that SUD trampolines jump back to.
pub const SUD_SLOTS: usize = 16384;
/// Bytes of a SUD trampoline: `syscall`, and a jump.
pub const SUD_TRAMPOLINE_BYTES: u64 = 8;
/// Offset of the SUD trampolines from the region's base: before the compiled programs, after a page for a file's headers.
pub const SUD_TRAMPOLINES_OFFSET: u64 = crate::region::TEXT_OFFSET + crate::PAGE_BYTES;
/// Bytes of all SUD trampolines.
pub const SUD_TRAMPOLINES_BYTES: u64 = SUD_SLOTS as u64 * SUD_TRAMPOLINE_BYTES;
/// Calls that stay in the process's code, at most.
pub const SUD_LEFT_IN_PLACE_MAX: usize = 64;
/// Of a slot: the address behind the call. Above it is one more than the index among
/// [`crate::syscall::CLONE_SYSCALLS`], or 0.
pub const SUD_ADDRESS_MASK: u64 = (1 << SUD_COPY_SHIFT) - 1;
/// See [`SUD_ADDRESS_MASK`].
pub const SUD_COPY_SHIFT: u32 = 60;
/// Bytes of the part of the region that a thread's calls must come from, or be caught: agent and trampolines are in there.
pub const SUD_ALLOWED_BYTES: u64 = crate::region::PROCESS_OFFSET;
/// SIGSYS in a mask.
pub const SIGSYS_BIT: u64 = 1 << 30;
/// SIGTRAP in a mask.
pub const SIGTRAP_BIT: u64 = 1 << 4;
/// Signals.
pub const SIGNALS: usize = 64;
/// The first signal that is queued as often as it is sent (the kernel's `SIGRTMIN`).
pub const FIRST_QUEUED: u32 = 32;
/// SIGSEGV and SIGBUS in a mask.
pub const FAULT_BITS: u64 = 1 << 10 | 1 << 6;
/// Signals whose handler is the agent's while it needs them: SIGSYS for the SUD fallback, SIGTRAP for sites of one byte
/// ([`crate::control::Trap`]), SIGSEGV and SIGBUS for reads that may fault ([`SudState::catches_faults`]). The
/// process's own actions are kept ([`OwnAction`]).
pub const TAKEN_SIGNALS: [u64; 4] = [31, 5, 11, 7];

const SIG_IGN: u64 = 1;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;

/// The flags of the agent's action of a taken signal that depend on the process's own action.
pub const DEPENDENT_FLAGS: u64 = SA_RESTART | SA_ONSTACK;

/// Those of [`DEPENDENT_FLAGS`] that the agent's action has if the process's own one has this handler and these flags. (Without a
/// handler, calls go on as if nothing had come.)
pub fn dependent_flags(signal: u64, handler: u64, flags: u64) -> u64 {
    let is_handled = handler > SIG_IGN;
    let restarts = if is_handled { flags & SA_RESTART } else { SA_RESTART };
    // A fault may be that the stack is used up. And who handles none may have something else on the alternate stack.
    let is_fault = FAULT_BITS & 1 << (signal - 1) != 0;
    let on_stack = match is_fault {
        true if is_handled => flags & SA_ONSTACK,
        true => 0,
        false => SA_ONSTACK,
    };
    restarts | on_stack
}

/// The action that the process has for one of [`TAKEN_SIGNALS`].
#[repr(C)]
#[derive(Debug)]
pub struct OwnAction {
    /// 1: the handler that the kernel knows is the agent's.
    pub installed: AtomicU32,
    /// Odd while `action` changes.
    pub sequence: AtomicU32,
    /// What the process has made it: handler, flags, restorer, mask.
    pub action: [AtomicU64; 4],
}

/// In each process, copied at fork. Written by the server while all threads are stopped, and by agents.
#[repr(C)]
#[derive(Debug)]
pub struct SudState {
    /// 1: threads that do not block SIGSYS are dispatched.
    pub armed: AtomicU32,
    /// 1: the fallback is disabled in this process for good; the server need not hear of new code.
    pub given_up: AtomicU32,
    /// Signals that no thread really blocks, since the kernel ends a process for which one of them is blocked when it is forced on
    /// it. (SIGSYS may be blocked: see `inside/runtime/src/raw_sud.rs`.)
    pub never_blocked: AtomicU64,
    /// 1: SIGSEGV and SIGBUS are the agent's and blocked nowhere, so that it may touch memory that may not be there.
    pub catches_faults: AtomicU32,
    /// 1: the server knows that the process makes calls by `int $0x80`.
    pub told_of_gate: AtomicU32,
    /// Calls that were caught.
    pub caught: AtomicU64,
    /// Those of them that were let through unseen.
    pub passed: AtomicU64,
    /// The process's own actions of [`TAKEN_SIGNALS`].
    pub own: [OwnAction; TAKEN_SIGNALS.len()],
    /// The signals that handlers of a signal are to block, and do not: SIGSYS while the SUD fallback is enabled, and
    /// `never_blocked`.
    pub kept_out: [AtomicU64; SIGNALS],
    /// What the process has made the handler of SIGCANCEL, if the agent's stands before it
    /// ([`crate::syscall::SyscallTables::cancel_handler`]).
    pub cancel_handler: AtomicU64,
    /// The server's, for remote calls.
    pub scratch: [AtomicU64; 8],
    /// Addresses behind calls whose place matters: handlers compare them.
    pub left_in_place: [AtomicU64; SUD_LEFT_IN_PLACE_MAX],
    /// Which place each SUD trampoline jumps back to.
    pub slots: [AtomicU64; SUD_SLOTS],
}

const _: () = assert!(size_of::<SudState>() as u64 <= crate::region::SUD_BYTES);
