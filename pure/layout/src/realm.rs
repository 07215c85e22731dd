//! The realm block: what the targets of one domain of a server share. Writable by each of them, so hostile to the
//! server: it checks each index and never waits on a value here without a deadline.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::region::{PROGRAM_ALIGN, TEXT_BYTES};

/// CPUs that per-CPU maps can tell apart.
pub const CPUS_MAX: u32 = 512;
/// Ring and perf buffers that one server can wake readers of.
pub const DOORBELLS_MAX: u32 = 1024;
/// Doorbell bit that says "look at the requests".
pub const DOORBELL_REQUESTS: u32 = 0;
/// Requests to the server under way at once.
pub const REQUESTS_MAX: u32 = 256;
/// Entries of the trace ring (`bpf_trace_printk`).
pub const TRACE_ENTRIES: u32 = 1024;
/// Bytes of text in a trace entry; longer lines are cut, as the kernel cuts at 1024.
pub const TRACE_TEXT_BYTES: usize = 448;

/// Threads that the realm block of one domain numbers ([`Realm::threads`]): the first number of domain n is n times this.
pub const SERIALS_PER_DOMAIN: u32 = 1 << 25;

/// [`Doorbell::sleeping`]: the server is awake.
pub const AWAKE: u32 = 0;
/// [`Doorbell::sleeping`]: the server sleeps until somebody rings.
pub const SLEEPING: u32 = 1;
/// [`Doorbell::sleeping`]: the server looks at the bits again soon, without being woken. A request wakes it, and a buffer that fills.
pub const PAUSING: u32 = 2;

/// How an agent wakes the server: set a bit, and if `sleeping` says so add to `sequence` and wake the futex.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Doorbell {
    /// Futex word; grows when the server is woken.
    pub sequence: AtomicU32,
    /// [`AWAKE`], or how the server waits on `sequence`.
    pub sleeping: AtomicU32,
    /// One bit per doorbell.
    pub bits: [AtomicU64; DOORBELLS_MAX as usize / 64],
}

/// Ownership of one CPU's part of every per-CPU map. A program that uses such a map takes the slot
/// of its CPU for the length of its run. Only a thread that runs on the CPU takes a free slot: so threads that cannot be
/// interrupted meanwhile need no locked instruction for it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CpuSlot {
    /// Name of the holder ([`crate::owner`]); 0: free.
    pub owner: AtomicU32,
    /// Name of a holder for whom somebody waited in vain; the next one waits less for it.
    pub outlasted: AtomicU32,
    /// Name of a thread that has waited for long, and gets the slot from its holder; 0: nobody.
    pub waiting: AtomicU32,
}

/// Request states, in order of a request's life.
pub mod request {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// An agent fills it in.
    pub const FILLING: u32 = 1;
    /// The server should act.
    pub const PENDING: u32 = 2;
    /// The server has acted; the agent frees it. Also the futex value that wakes the agent.
    pub const DONE: u32 = 3;
    /// The agent stopped waiting; the server frees it.
    pub const ABANDONED: u32 = 4;

    /// As PENDING, but nobody waits: the server frees it.
    pub const UNATTENDED: u32 = 5;

    /// New mappings exist, of code or of counters: find and instrument what links want, then let go.
    pub const KIND_MAPPING_ADDED: u32 = 1;
    /// This process is a fork of a target and shares its tables: adopt it.
    pub const KIND_FORKED: u32 = 2;
    /// This thread is about to execute another program: go on tracing that.
    pub const KIND_EXEC: u32 = 3;
    /// This process is about to do something that is incompatible with the SUD fallback ([`crate::sud`]): disable it
    /// for good.
    pub const KIND_SUD_OFF: u32 = 4;
    /// This process is about to filter its calls by the `struct sock_fprog` at `argument`, 0: by `SECCOMP_MODE_STRICT`.
    pub const KIND_FILTER: u32 = 5;
    /// The answer to [`KIND_FILTER`] if the tables with which the process runs say what is forbidden, or it is detached. With any other the
    /// agent makes no calls any more.
    pub const FILTER_MET: u64 = 1;
    /// This process is about to block SIGTRAP where that cannot be seen: no site may be an `int3` any more.
    pub const KIND_TRAPS_OFF: u32 = 6;
    /// A program overruns its budget too often: switch it off here. `argument` is its link's id `<< 32`, and its own.
    pub const KIND_OVER_BUDGET: u32 = 7;
    /// A program has faulted: say how its caller goes on. `argument` is the address of a [`crate::fault::Fault`].
    pub const KIND_FAULT: u32 = 8;
    /// This thread is about to catch its own calls by where they are made (`PR_SET_SYSCALL_USER_DISPATCH`): let the process go.
    pub const KIND_OWN_DISPATCH: u32 = 9;
    /// There was no block for this thread, the first one: more threads than there are blocks. Say that they are not seen.
    pub const KIND_NO_BLOCK: u32 = 10;
    /// This thread is about to make a call by `int $0x80`, which programs do not see: let the process go if it is strace's, else say it.
    pub const KIND_GATE: u32 = 11;
    /// In another pid namespace than the server's: which ids has this thread there? The answer, `pid << 32 | tid`, is in `argument`; 0: it
    /// is not known.
    pub const KIND_IDS: u32 = 12;
    /// This process is about to move memory (`mremap`) in which there is a site, whose jump would lead astray from there, or was one: let
    /// the process go if it is code. `argument` has the first page's number and, in the low [`PAGES_BITS`] bits, how many.
    pub const KIND_CODE_MOVES: u32 = 13;
    /// See [`KIND_CODE_MOVES`].
    pub const PAGES_BITS: u32 = 24;
}

/// What an agent asks of the server.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Request {
    /// One of [`request`]'s states; a futex word.
    pub state: AtomicU32,
    /// One of [`request`]'s kinds.
    pub kind: AtomicU32,
    /// Process id of the asker in its own pid namespace. A claim.
    pub pid: AtomicU32,
    /// Its thread id there. A claim.
    pub tid: AtomicU32,
    /// `ControlHeader::nonce` of the table that the asker uses.
    pub nonce: AtomicU64,
    /// Region base of the asker.
    pub region_base: AtomicU64,
    /// What the kind says.
    pub argument: AtomicU64,
}

/// One line of `bpf_trace_printk`. Written under a sequence lock: `sequence` is odd while the text changes.
#[repr(C)]
#[derive(Debug)]
pub struct TraceEntry {
    /// 0: never used; odd: being written; even: number of the line times two plus two.
    pub sequence: AtomicU64,
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: AtomicU64,
    /// Process id.
    pub pid: AtomicU32,
    /// Thread id.
    pub tid: AtomicU32,
    /// CPU.
    pub cpu: AtomicU32,
    /// Bytes of `text` in use.
    pub text_bytes: AtomicU32,
    /// `comm` of the thread.
    pub comm: [AtomicU64; 2],
    /// The line without a newline.
    pub text: [AtomicU64; TRACE_TEXT_BYTES / 8],
}

/// What the runs of a program in one domain have taken, while runs were counted.
#[repr(C)]
#[derive(Debug)]
pub struct ProgramRuns {
    /// How many there were.
    pub count: AtomicU64,
    /// All together, ns.
    pub time_ns: AtomicU64,
}

/// Entries of [`Realm::runs`].
pub const RUNS: usize = (TEXT_BYTES / PROGRAM_ALIGN) as usize;

/// Index in [`Realm::runs`] of the program whose entry is at this offset of the text.
pub const fn runs_index(entry: u64) -> usize {
    (entry / PROGRAM_ALIGN) as usize
}

/// The realm block.
#[repr(C)]
#[derive(Debug)]
pub struct Realm {
    /// Wakes the server.
    pub doorbell: Doorbell,
    /// One per CPU.
    pub cpu_slots: [CpuSlot; CPUS_MAX as usize],
    /// Claimed by compare-and-exchange of `state`.
    pub requests: [Request; REQUESTS_MAX as usize],
    /// The last number given to a thread.
    pub threads: AtomicU32,
    /// 1: processes of the server's count the runs of programs. (Targets do if their attachments say so.)
    pub counts_runs: AtomicU32,
    /// Lines ever begun; the entry of line n is `n % TRACE_ENTRIES`.
    pub trace_head: AtomicU64,
    /// Ring of lines; old ones are overwritten.
    pub trace: [TraceEntry; TRACE_ENTRIES as usize],
    /// Processes whose ends programs have seen ([`crate::task_event::seen_exit`]), by process id.
    pub seen_exits: [AtomicU64; crate::task_event::SEEN_EXITS],
    /// By [`runs_index`]; touched only where runs were counted.
    pub runs: [ProgramRuns; RUNS],
}

const _: () = assert!(size_of::<Realm>() as u64 <= crate::region::REALM_BYTES);
