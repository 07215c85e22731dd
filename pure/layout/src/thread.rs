//! Per-process and per-thread memory of the agent (docs/design/threads.md).
//!
//! Thread blocks are private memory that the child of a `fork` inherits. It must: functions that are active in the child still
//! return through the trampoline and need the shadow stack. It must not keep the ids: these are checked against the process word,
//! which the kernel wipes at `fork`.

use core::sync::atomic::{AtomicU32, AtomicU64};

use ring3_uapi::ptrace::PtRegs;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::syscall::{AGENT_STACK_BYTES, AGENT_STACKS};

/// Threads of one target that can run programs at a time.
pub const THREADS_MAX: u32 = 1024;
/// Bytes of a thread block; mostly untouched.
pub const THREAD_BLOCK_BYTES: u64 = 0x2_0000;
/// Bytes of the state header.
pub const STATE_HEADER_BYTES: u64 = 0x4000;
/// Ring buffer records that one run can have reserved at a time.
pub const OPEN_RECORDS_MAX: usize = 8;
/// [`ThreadBlock::fuel`] of a run that was ended: by a fault, or because a function of the host broke its contract.
pub const ENDED: i64 = i64::MIN / 2;
/// Tail calls of one run at most (`MAX_TAIL_CALL_CNT`).
pub const TAIL_CALLS_MAX: u64 = 33;
/// In `ThreadBlock::cpu_slot`: the low bits are a CPU.
pub const CPU_SLOT_SET: u32 = 1 << 30;
/// In `ThreadBlock::cpu_slot`: the realm's slot of that CPU is held.
pub const CPU_SLOT_HELD: u32 = 1 << 31;
/// Shadow frames in a thread's block.
pub const SHADOW_FRAMES: u32 = 256;
/// Shadow frames of a chunk. A thread that needs more than its block has takes chunks from the process's pool; they stay with the
/// block.
pub const SHADOW_CHUNK_FRAMES: u32 = 2048;
/// The most chunks of a block.
pub const SHADOW_CHUNKS_MAX: usize = 64;
/// The most returns that a thread can await (the kernel: `MAX_URETPROBE_DEPTH`, 64).
pub const SHADOW_FRAMES_MAX: u32 = SHADOW_FRAMES + SHADOW_CHUNK_FRAMES * SHADOW_CHUNKS_MAX as u32;
/// Chunks in the pool of a process.
pub const SHADOW_POOL_CHUNKS: u32 = 1024;
/// Bytes of a chunk: its frames, and behind them a tag of each.
pub const SHADOW_CHUNK_BYTES: u64 = SHADOW_CHUNK_TAGS_OFFSET + SHADOW_CHUNK_FRAMES as u64;
/// Where the tags of a chunk's frames lie in it.
pub const SHADOW_CHUNK_TAGS_OFFSET: u64 = SHADOW_CHUNK_FRAMES as u64 * size_of::<ShadowFrame>() as u64;
/// Unwinders of one thread, each begun while the one before was interrupted, that are told apart.
pub const UNWINDERS_MAX: usize = 8;
/// Index in [`ThreadBlock::wanted_signals`]: to the process.
pub const TO_PROCESS: usize = 0;
/// To the thread.
pub const TO_THREAD: usize = 1;
/// In [`ThreadBlock::shadow_change`]: a frame is being appended, or all frames are being read. Frames that a signal handler
/// appends meanwhile must be gone when it returns, and it must not move any.
pub const CHANGE_PUSH: u32 = 1;
/// In [`ThreadBlock::shadow_change`]: frames are being moved; a signal handler must not change any.
pub const CHANGE_MOVE: u32 = 2;

/// One page, wiped at fork.
#[repr(C)]
#[derive(Debug)]
pub struct ProcessPage {
    /// Process id (own namespace) of the process that initialised it; 0 right after a fork.
    pub generation: AtomicU64,
    /// Nonzero while a thread sets the process up after injection or fork.
    pub initializing: AtomicU32,
    /// Offset in the TCB of the thread's id, which the C library and the kernel maintain; 0: not known.
    pub tid_at: AtomicU32,
    /// 1: some thread has no TCB of a C library, or shares one, so `tid_at` stays 0 and threads are found by GS.
    pub tcbs_invalid: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Addresses of thread blocks, by [`block_hint`]: a hint, which the block must confirm.
    pub blocks: [AtomicU64; BLOCK_HINTS],
}

/// Hints where blocks are.
pub const BLOCK_HINTS: usize = 256;

/// Index of the hint for the thread with this FS base.
#[inline(always)]
pub const fn block_hint(fs_base: u64) -> usize {
    // Fibonacci hashing: TCBs lie far from each other, at the same place of their pages.
    ((fs_base as u32).wrapping_mul(0x9e37_79b1) >> 24) as usize
}

/// The head of the state block.
#[repr(C)]
#[derive(Debug)]
pub struct StateHeader {
    /// Blocks `0..used` have belonged to a thread at some time.
    pub used: AtomicU32,
    /// Of the time stamp counter in threads that must not ask: [`TSC_DISABLED`] if it is or was disabled in some thread,
    /// [`TSC_ENABLED`] if it was enabled in all that were asked; 0: none was asked.
    pub tsc: AtomicU32,
    /// Hits of threads for which there was no block. Counted as misses of the process.
    pub missed_no_block: AtomicU64,
    /// 1: a thread whose block is not known yet uses the last stack, behind all blocks.
    pub last_stack: AtomicU32,
    /// 1: the agent makes no system calls any more, because the process has installed a seccomp filter and the server did not say
    /// what it forbids.
    pub no_syscalls: AtomicU32,
    /// Requests to the server that timed out or found no slot.
    pub requests_lost: AtomicU64,
    /// Chunks of shadow frames that blocks have taken.
    pub shadow_chunks: AtomicU32,
    /// 1: a function has returned on another thread than it was called on: fibers move between threads.
    pub fibers_move: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// 1: the process has moved or unmapped its vDSO, or is about to.
    pub vdso_is_gone: AtomicU32,
    /// By how much `CLOCK_BOOTTIME` was ahead of `CLOCK_MONOTONIC` when a thread's time stamp counter was last found disabled, ns.
    pub boottime_ahead_ns: AtomicU64,
    /// The same of `CLOCK_TAI`.
    pub tai_ahead_ns: AtomicU64,
    /// How often the server did not answer which ids a thread has.
    pub ids_untold: AtomicU32,
    /// Not 0: the last search found that all blocks belong to living threads. This minus 1 is the index of the block that the next
    /// search begins at.
    pub crowded: AtomicU32,
    /// FS base of the thread that owns block i; 0: free. Searched when GS does not point to a block.
    pub fs_bases: [AtomicU64; THREADS_MAX as usize],
    /// Upper bounds, by [`crate::cancellation::slot`], of the calls under way of routines in which threads are cancelled, and
    /// whose end is wanted.
    pub awaited: [AtomicU32; crate::cancellation::SLOTS],
}

/// A call of a probed function, whose return address was replaced. 40 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
pub struct ShadowFrame {
    /// Address of the stack slot that holds the return address; 0: free.
    pub slot: u64,
    /// The return address that the slot held before.
    pub return_address: u64,
    /// Address of the [`crate::control::Hook`].
    pub hook: u64,
    /// 1 while the slot holds the original return address again, for an unwinder.
    pub restored: u64,
    /// No frame up to this one has a slot below this address.
    pub low: u64,
}

/// `struct rseq_cs` (include/uapi/linux/rseq.h): instructions that the kernel restarts if it interrupts them.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct RestartableSequence {
    /// 0.
    pub version: u32,
    /// 0.
    pub flags: u32,
    /// Address of the first instruction.
    pub start: u64,
    /// Bytes of the instructions; the last one makes the change.
    pub bytes: u64,
    /// Where an interrupted thread continues.
    pub abort: u64,
}

/// Runs of one link's program, in one thread, that took longer than their budget.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
pub struct Overruns {
    /// The link; 0: the entry is not used.
    pub link_id: u32,
    /// The program.
    pub prog_id: u32,
    /// How many there were since `since_ns`.
    pub recent: u32,
    /// What these took in all, us; `u32::MAX`: or more.
    pub recent_us: u32,
    /// Beginning of a span of [`OVERRUN_SPAN_NS`] (`CLOCK_MONOTONIC`).
    pub since_ns: u64,
    /// When the last one ended.
    pub last_ns: u64,
    /// How many there were in all.
    pub total: u64,
    /// What the longest one took, ns.
    pub worst_ns: u64,
}

impl Overruns {
    /// An entry that is not used.
    pub const NONE: Overruns =
        Overruns { link_id: 0, prog_id: 0, recent: 0, recent_us: 0, since_ns: 0, last_ns: 0, total: 0, worst_ns: 0 };
}

/// Links whose overruns a thread counts; the one whose last overrun is the longest ago makes room for another.
pub const OVERRUN_LINKS_MAX: usize = 16;
/// After so many overruns of a link in a thread within [`OVERRUN_SPAN_NS`], the link is switched off in the process.
pub const OVERRUNS_MAX: u32 = 100;
/// The same holds if those overruns took so long in all, us, and at least [`OVERRUN_BUDGETS`] times the budget: a few runs that are
/// very long do as much harm.
pub const OVERRUN_US_MAX: u32 = 500_000;
/// See [`OVERRUN_US_MAX`].
pub const OVERRUN_BUDGETS: u64 = 2;
/// See [`OVERRUNS_MAX`].
pub const OVERRUN_SPAN_NS: u64 = 1_000_000_000;

/// Signal frames of one thread that show it where it is not ([`ShownFrame`]).
pub const SHOWN_MAX: usize = 4;

/// A signal frame that shows the thread at an instruction of the process, although it is at a copy in ring3's code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ShownFrame {
    /// Address of the frame's `struct ucontext`; 0: none.
    pub frame: u64,
    /// The address that the frame has.
    pub place: u64,
    /// Where the thread is.
    pub instead: u64,
}

/// The agent's state of one thread. Stubs and compiled code read and write the head.
#[repr(C)]
#[derive(Debug)]
pub struct ThreadBlock {
    /// Address of this block: a check that GS points here.
    pub this: u64,
    /// FS base of the owner. A new thread inherits its creator's GS but has its own FS.
    pub fs_base: u64,
    /// Equals `ProcessPage::generation`, or the ids below are stale.
    pub generation: u64,
    /// `pid << 32 | tid` of the thread (tgid in the high half).
    pub pid_tgid: u64,
    /// The same as programs see it: in the server's pid namespace, and of the thread for which [`ThreadBlock::sampled`] stands, if it
    /// does; 0: the server has not been asked yet ([`crate::realm::request::KIND_IDS`]).
    pub shown_ids: u64,
    /// The guard. While the thread runs programs: the stack pointer below which they run; a hit at a higher stack pointer shows
    /// that a `longjmp` has abandoned them. Otherwise 0.
    pub guard: AtomicU64,
    /// While a program runs that uses per-CPU maps: the CPU whose part of them it uses, in the low 16 bits, and `CPU_SLOT_*`.
    /// Otherwise 0.
    pub cpu_slot: u32,
    /// How many runs of programs are interrupted, each by a signal handler that hit the next one.
    pub interrupted: u32,
    /// Address of the attachment that runs.
    pub attachment: u64,
    /// Address of the hook that runs. (Not valid for tracepoints of system calls.)
    pub hook: u64,
    /// How many signals of `wanted_signals` are to be sent.
    pub signals: u32,
    /// Of the thread's time stamp counter: [`TSC_ENABLED`], [`TSC_DISABLED`] (or it may be), 0: not asked yet
    /// (`inside/runtime/src/raw_clock.rs`).
    pub tsc: AtomicU32,
    /// Region base.
    pub region_base: u64,
    /// Serial number of the thread in the realm; the key of its values in task storage.
    pub serial: u32,
    /// What is being done to the shadow frames: 0 (nothing), [`CHANGE_PUSH`] or [`CHANGE_MOVE`].
    pub shadow_change: u32,
    /// State of `bpf_get_prandom_u32`; 0: it has no seed yet.
    pub random: u64,
    /// How many of `unwinder_starts` are valid: unwinders of this thread that have not ended. While one has not, the real return
    /// addresses of the frames that it may pass are in place. More than one: signal handlers or clean-up routines, each of which
    /// has interrupted the unwinder before.
    pub unwinders: u32,
    /// Shadow frames `0..shadow_used` may be in use.
    pub shadow_used: u32,
    /// Returns that could not be awaited: no free frame.
    pub shadow_full: u64,
    /// Ring buffer records that the running program has reserved: address and map of each; address 0: none.
    pub open_records: [[u64; 2]; OPEN_RECORDS_MAX],
    /// Rounds of loops that the running program may still make.
    pub fuel: i64,
    /// Address of the program that a tail call continues with; 0: none.
    pub tail_target: u64,
    /// Tail calls of this run so far.
    pub tail_calls: u64,
    /// Address of the thread's `struct rseq` ([`RestartableSequence`]); 0: it is not known.
    pub rseq: u64,
    /// Ticks of the time stamp counter (ns if it is disabled) at which what this thread has slept for CPU slots is paid for.
    pub slot_waits: u64,
    /// The sequence that takes a CPU's slot.
    pub sequence: RestartableSequence,
    /// The thread id that is in the owner's TCB. While a `vfork` child runs with its parent's block it is the parent's;
    /// `pid_tgid` is then the child's.
    pub tcb_tid: u32,
    /// Top of the next free agent stack, and the address below which there is none.
    pub agent_stack_top: u64,
    /// See `agent_stack_top`.
    pub agent_stack_end: u64,
    /// 1: a program refuses the call that begins (`bpf_override_return`).
    pub overrides: u64,
    /// The result of a refused call.
    pub override_result: u64,
    /// Index of the next call, counted from the first ever; modulo the size it is the next entry of `calls`.
    pub next_call: u32,
    /// Index of the thread's own first call; before it are those of the creator of a `vfork` child.
    pub first_call: u32,
    /// 1: SUD is off for this thread, because one of its calls was let through, or because a routine in which threads are
    /// cancelled is making one.
    pub sud_suspended: u32,
    /// Stack pointer at the call during which the thread blocks SIGSYS; 0: none. SUD is off until that call ends.
    pub sud_off_until: u64,
    /// Signal frames that show the thread where it is not, the oldest first.
    pub shown: [ShownFrame; SHOWN_MAX],
    /// 1: SIGCANCEL was postponed, and will be delivered again.
    pub cancel_waits: u32,
    /// The signals among [`crate::sud::SudState::never_blocked`] that the thread has blocked, as far as it knows.
    pub wants_blocked: u64,
    /// What `wants_blocked` was before it last changed, and the stack pointer at which that was.
    pub wanted_before: u64,
    /// See `wanted_before`.
    pub wanted_at: u64,
    /// Addresses of `struct ucontext` of the latest signals that the agent passed on to the process, the first ones unless 0: their
    /// masks have what `wants_blocked` was before.
    pub passed_frames: [u64; PASSED_FRAMES_MAX],
    /// The thread's name (`inside/runtime/src/raw_identity.rs`).
    pub comm: Remembered<[u64; 2]>,
    /// Its group and user, as `bpf_get_current_uid_gid` returns them.
    pub uid_gid: Remembered<u64>,
    /// Until then nothing is remembered: a call is under way that changes it.
    pub changes_until: u64,
    /// Its cgroup's id, as `bpf_get_current_cgroup_id` returns it.
    pub cgroup: Remembered<u64>,
    /// Device and inode of its pid namespace; zeros: not asked for yet.
    pub pid_namespace: [u64; 2],
    /// `pid_tgid`, and what the server has told that it is in its own pid namespace; zeros: not asked.
    pub told_ids: [u64; 2],
    /// A level, and the id of the cgroup's ancestor there, as `bpf_get_current_ancestor_cgroup_id` returns it.
    pub ancestor: Remembered<[u64; 2]>,
    /// Address of the [`crate::sampled::Sampled`] that stands for the running thread; 0, as in all targets: none.
    pub sampled: u64,
    /// While memory of a sampled process is read: its id, and bit 32. Otherwise 0.
    pub memory_of: u64,
    /// While programs see a thread end: its `task_struct::exit_code`, and [`EXIT_CODE_SET`]. Otherwise 0.
    pub exit_code: u64,
    /// What the called routine has to know and is no argument: of a host's function or variable its index in
    /// [`crate::control::Extension::symbols`], of a slice its [`crate::slice::pack`].
    pub call_word: u64,
    /// What calls of the host's functions by extensions that have a budget have taken, ns.
    pub host_ns: u64,
    /// What r1 of the program that runs is, if it asks for the registers or the stack of a task. (Code stores it when it begins.)
    pub context: u64,
    /// What `bpf_task_pt_regs` has found, which programs load from.
    pub task_regs: PtRegs,
    /// How often programs that have run want each signal, from 1 on, to be sent: to the process, and to the thread.
    pub wanted_signals: [[u16; crate::sud::SIGNALS]; 2],
    /// System calls under way, the youngest just before `next_call`.
    pub calls: [crate::syscall::Call; crate::syscall::CALLS_MAX],
    /// The number of shadow frames at which dead ones are looked for.
    pub shadow_look: u32,
    /// How many places became free before others that are in use, since frames were moved.
    pub shadow_holes: u32,
    /// How many tags were searched since dead frames were looked for.
    pub shadow_searched: u64,
    /// 1: real return addresses may be in place.
    pub restored: u32,
    /// The stack pointers at which unwinders began, the outermost first.
    pub unwinder_starts: [u64; UNWINDERS_MAX],
    /// The chunks with the shadow frames that follow those in `shadow`, in order: number plus 1; 0: none yet.
    pub shadow_chunks: [AtomicU32; SHADOW_CHUNKS_MAX],
    /// The lowest and the highest slot that a frame of each chunk has, or had.
    pub shadow_bounds: [[u64; 2]; SHADOW_CHUNKS_MAX],
    /// Runs that took longer than their budget.
    pub overruns: [Overruns; OVERRUN_LINKS_MAX],
    /// The first shadow frames.
    pub shadow: [ShadowFrame; SHADOW_FRAMES as usize],
    /// A byte of each of them that its slot decides: a frame is searched by it. (Of a free one it may be any.)
    pub shadow_tags: [u8; SHADOW_FRAMES as usize],
    /// Hits that ran programs, per hook.
    pub hits: [AtomicU64; COUNTED_HOOKS_MAX as usize],
    /// Hits that could not run programs, per hook.
    pub misses: [AtomicU32; COUNTED_HOOKS_MAX as usize],
}

/// What the kernel has said of a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Remembered<T> {
    /// What it has said.
    pub value: T,
    /// Until when that holds, ns of `CLOCK_MONOTONIC_COARSE`; 0: nothing is remembered.
    pub until: u64,
}

/// `PR_TSC_ENABLE` (include/uapi/linux/prctl.h): a thread may read the time stamp counter.
pub const TSC_ENABLED: u32 = 1;
/// `PR_TSC_SIGSEGV`: reading it raises SIGSEGV.
pub const TSC_DISABLED: u32 = 2;

/// See [`ThreadBlock::exit_code`].
pub const EXIT_CODE_SET: u64 = 1 << 32;

/// Handlers in handlers whose frames are known.
pub const PASSED_FRAMES_MAX: usize = 8;

/// Hooks with counters of their own; later ones share by index modulo this.
pub const COUNTED_HOOKS_MAX: u32 = 2048;

const _: () = {
    assert!(size_of::<ProcessPage>() <= 4096);
    assert!(size_of::<StateHeader>() as u64 <= STATE_HEADER_BYTES);
    assert!(size_of::<ShadowFrame>() == 40);
    // Tags are read eight at a time.
    assert!(core::mem::offset_of!(ThreadBlock, shadow_tags).is_multiple_of(8) && SHADOW_FRAMES.is_multiple_of(8));
    assert!(SHADOW_CHUNK_BYTES.is_multiple_of(8) && SHADOW_CHUNK_FRAMES.is_multiple_of(8));
    // Behind a block is what programs hold for a task_struct, of which sizes up to 16 KiB are known, and at its end stacks.
    assert!(size_of::<ThreadBlock>() as u64 + 0x4000 + AGENT_STACKS * AGENT_STACK_BYTES <= THREAD_BLOCK_BYTES);
};
