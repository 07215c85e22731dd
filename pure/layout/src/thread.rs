//! Per-process and per-thread memory of the agent (docs/design/threads.md).
//!
//! Thread blocks are private memory that the child of a `fork` inherits. It must: functions that are active in the child still
//! return through the trampoline and need the shadow stack. It must not keep the ids: these are checked against the process word,
//! which the kernel wipes at `fork`.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::syscall::{APART_BYTES, APART_LEVELS};

/// Threads of one target that can run programs at a time.
pub const THREADS_MAX: u32 = 1024;
/// Bytes of a thread block; mostly untouched.
pub const THREAD_BLOCK_BYTES: u64 = 0x2_0000;
/// Bytes of the state header.
pub const STATE_HEADER_BYTES: u64 = 0x4000;
/// Ring buffer records that one run can have reserved at a time.
pub const OPEN_RECORDS_MAX: usize = 8;
/// Tail calls of one run at most (`MAX_TAIL_CALL_CNT`).
pub const TAIL_CALLS_MAX: u64 = 33;
/// Of `ThreadBlock::cpu_slot`: it names a CPU.
pub const CPU_SLOT_SET: u32 = 1 << 30;
/// Of `ThreadBlock::cpu_slot`: the realm's slot of that CPU is held.
pub const CPU_SLOT_HELD: u32 = 1 << 31;
/// Frames whose return is awaited that lie in a thread's block.
pub const SHADOW_FRAMES: u32 = 256;
/// Frames of a chunk. A thread that needs more than its block has takes chunks from the process's pool, and they stay the block's.
pub const SHADOW_CHUNK_FRAMES: u32 = 2048;
/// Chunks of a block at most.
pub const SHADOW_CHUNKS_MAX: usize = 64;
/// Frames whose return is awaited, per thread at most (the kernel: `MAX_URETPROBE_DEPTH`, 64).
pub const SHADOW_FRAMES_MAX: u32 = SHADOW_FRAMES + SHADOW_CHUNK_FRAMES * SHADOW_CHUNKS_MAX as u32;
/// Chunks of a process.
pub const SHADOW_POOL_CHUNKS: u32 = 1024;
/// Bytes of a chunk.
pub const SHADOW_CHUNK_BYTES: u64 = SHADOW_CHUNK_FRAMES as u64 * size_of::<ShadowFrame>() as u64;
/// Of [`ThreadBlock::shadow_change`]: a frame is being appended, or all are gone through: what a signal handler appends meanwhile
/// must be gone when it returns, and none may be moved.
pub const CHANGE_PUSH: u32 = 1;
/// Frames are being moved: nobody else changes any.
pub const CHANGE_MOVE: u32 = 2;

/// One page, wiped at fork.
#[repr(C)]
#[derive(Debug)]
pub struct ProcessPage {
    /// Process id (own namespace) of the process that initialised it; 0 right after a fork.
    pub generation: AtomicU64,
    /// Nonzero while a thread sets the process up after injection or fork.
    pub initializing: AtomicU32,
    /// Where, from the FS base on, a thread's id lies, kept by the C library and the kernel; 0: it is not known.
    pub tid_at: AtomicU32,
    /// 1: there are threads that have no control block of a C library's, or another one's, so that `tid_at` stays 0.
    pub shared_names: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Addresses of thread blocks, by [`block_hint`]: a hint, which the block must confirm.
    pub blocks: [AtomicU64; BLOCK_HINTS],
}

/// Hints where blocks are.
pub const BLOCK_HINTS: usize = 256;

/// Where to look for the block of the thread with this FS base.
#[inline(always)]
pub const fn block_hint(fs_base: u64) -> usize {
    // Fibonacci hashing: thread control blocks lie far apart, at the same place of their pages.
    ((fs_base as u32).wrapping_mul(0x9e37_79b1) >> 24) as usize
}

/// The head of the state block.
#[repr(C)]
#[derive(Debug)]
pub struct StateHeader {
    /// Blocks `0..used` have been handed out at some time.
    pub used: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Hits that found no free block. Counted as misses of the process.
    pub missed_no_block: AtomicU64,
    /// 1: a thread whose block is not known uses the stack behind all blocks.
    pub last_stack: AtomicU32,
    /// 1: the agent makes no system calls any more: the process has filtered its own, and the server did not say how.
    pub hushed: AtomicU32,
    /// Requests to the server that timed out or found no slot.
    pub requests_lost: AtomicU64,
    /// Chunks of shadow frames that have been handed out.
    pub shadow_chunks: AtomicU32,
    /// Zero.
    pub reserved4: AtomicU32,
    /// Zero.
    pub reserved2: [u64; 3],
    /// FS base of the thread that owns block i; 0: free. Searched when GS does not lead to a block.
    pub fs_bases: [AtomicU64; THREADS_MAX as usize],
    /// How many calls are under way of routines in which threads are cancelled whose end somebody wants, and maybe more, by
    /// [`crate::cancellation::slot`].
    pub awaited: [AtomicU32; crate::cancellation::SLOTS],
}

/// A call whose return address was replaced. 40 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ShadowFrame {
    /// Address of the stack slot that holds the return address; 0: free.
    pub slot: u64,
    /// The return address that was there.
    pub return_address: u64,
    /// Address of the [`crate::control::Hook`].
    pub hook: u64,
    /// 1 while the original return address stands in the slot (an unwinder is at work).
    pub restored: u64,
    /// No frame up to this one has a slot below this address.
    pub low: u64,
}

/// `struct rseq_cs` (include/uapi/linux/rseq.h): instructions that the kernel does not resume in their middle.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct RestartableSequence {
    /// 0.
    pub version: u32,
    /// 0.
    pub flags: u32,
    /// Address of the first instruction.
    pub start: u64,
    /// Bytes of the instructions; the last one is what makes the change.
    pub bytes: u64,
    /// Where a thread goes on that was interrupted.
    pub abort: u64,
}

/// What the agent knows of one thread. The head is read and written by stubs and compiled code.
#[repr(C)]
#[derive(Debug)]
pub struct ThreadBlock {
    /// Address of this block: proves that GS leads here.
    pub this: u64,
    /// FS base of the owner; a new thread inherits GS of its creator but has its own FS.
    pub fs_base: u64,
    /// Equals `ProcessPage::generation`, or the ids below are stale.
    pub generation: u64,
    /// `pid << 32 | tid` as `bpf_get_current_pid_tgid` returns it (tgid in the high half).
    pub pid_tgid: u64,
    /// While the thread runs programs: the stack pointer below which it does; a higher one on arrival means that a longjmp left
    /// them. Else 0.
    pub guard: AtomicU64,
    /// While a program runs that uses per-CPU maps: the CPU whose part of them is its own, in the low 16 bits, and
    /// `CPU_SLOT_*`. Else 0.
    pub cpu_slot: u32,
    /// How many runs the present one has interrupted, each in a signal handler that makes a call.
    pub interrupted: u32,
    /// Address of the attachment that runs.
    pub attachment: u64,
    /// Address of the hook that runs. (Of a system call's tracepoints it says nothing.)
    pub hook: u64,
    /// Region base.
    pub region_base: u64,
    /// Number of the thread among all that the realm has seen; the key of its values in task storage.
    pub serial: u32,
    /// What is being done to the shadow frames: nothing, [`CHANGE_PUSH`] or [`CHANGE_MOVE`].
    pub shadow_change: u32,
    /// State of `bpf_get_prandom_u32`.
    pub random: u64,
    /// Nonzero while an unwinder walks this thread's stack and return addresses are restored.
    pub unwinding: u32,
    /// Shadow frames `0..shadow_used` may be in use.
    pub shadow_used: u32,
    /// Returns that could not be awaited: no free frame.
    pub shadow_full: u64,
    /// Ring buffer records that the running program has reserved: address and map of each; address 0: none.
    pub open_records: [[u64; 2]; OPEN_RECORDS_MAX],
    /// Rounds through loops that the running program has left.
    pub fuel: i64,
    /// Address of the program that a tail call goes on with; 0: none.
    pub tail_target: u64,
    /// Tail calls of this run so far.
    pub tail_calls: u64,
    /// Address of the thread's `struct rseq` ([`RestartableSequence`]); 0: it is not known.
    pub rseq: u64,
    /// The sequence that takes a CPU's slot.
    pub sequence: RestartableSequence,
    /// The thread id that the C library's control block names the owner by: not that of a `vfork` child that runs with its
    /// parent's block meanwhile, as `pid_tgid` is.
    pub named_tid: u32,
    /// Where the next stack apart from the thread's own begins, below which it lies, and where there is none any more.
    pub apart_top: u64,
    /// See `apart_top`.
    pub apart_end: u64,
    /// 1: a program wants the call that begins not to be made (`bpf_override_return`).
    pub overrides: u64,
    /// What its result is to be.
    pub override_result: u64,
    /// The next of `calls` to be used, counted from the first ever.
    pub next_call: u32,
    /// The first of `calls` that is the thread's own: before it are those of the creator of a `vfork` child.
    pub first_call: u32,
    /// 1: the net is off for this thread, since a call of its was let through, or is made by a routine in which threads are
    /// cancelled.
    pub net_passed: u32,
    /// Stack pointer at the call for whose time the thread blocks SIGSYS; 0: none. Till it ends the net is off.
    pub net_until: u64,
    /// Address of the signal frame (`struct ucontext`) that says that the thread is at `shown_place`, where it is at
    /// `shown_instead`, in a gate; 0: none.
    pub shown_frame: u64,
    /// See `shown_frame`.
    pub shown_place: u64,
    /// See `shown_frame`.
    pub shown_instead: u64,
    /// 1: SIGCANCEL was put off, and comes again.
    pub cancel_waits: u32,
    /// Calls under way, the youngest before `next_call`.
    pub calls: [crate::syscall::Call; crate::syscall::CALLS_MAX],
    /// As soon as that many shadow frames are in use, dead ones are looked for.
    pub shadow_look: u32,
    /// Numbers plus 1 of the chunks that the shadow frames behind `shadow` lie in, in order; 0: none yet.
    pub shadow_chunks: [AtomicU32; SHADOW_CHUNKS_MAX],
    /// Calls whose return is awaited.
    pub shadow: [ShadowFrame; SHADOW_FRAMES as usize],
    /// Arrivals that ran programs, per hook.
    pub hits: [AtomicU64; COUNTED_HOOKS_MAX as usize],
    /// Arrivals that could not (recursion), per hook.
    pub misses: [AtomicU32; COUNTED_HOOKS_MAX as usize],
}

/// Hooks with counters of their own; later ones share by index modulo this.
pub const COUNTED_HOOKS_MAX: u32 = 2048;

const _: () = {
    assert!(size_of::<ProcessPage>() <= 4096);
    assert!(size_of::<StateHeader>() as u64 <= STATE_HEADER_BYTES);
    assert!(size_of::<ShadowFrame>() == 40);
    // Behind a block is what programs hold for a task_struct, of which sizes up to 16 KiB are known, and at its end stacks.
    assert!(size_of::<ThreadBlock>() as u64 + 0x4000 + APART_LEVELS * APART_BYTES <= THREAD_BLOCK_BYTES);
};
