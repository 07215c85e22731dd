//! The control page: what the server tells one target. Read-only in the target.
//!
//! The server changes it through its own mapping of the same memfd. A hook's programs are
//! published by one store of a packed range ([`range_pack`]) into the attachment table; a range
//! is never changed in place, but for what its entries call ([`Attachment::code`]), so a thread that loaded the old one goes on
//! reading valid entries until the server has seen that no thread is inside (guard clear in every thread block).

use core::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::shared::shared;

/// `ControlHeader::magic`.
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"ring3ctl");

/// Offset of the header in the control page.
pub const HEADER_OFFSET: u64 = 0;
/// Offset of the GOT in the control page.
pub const GOT_OFFSET: u64 = 0x1000;
/// Maps that one server can hold at a time; the slot is an index into each target's GOT.
pub const MAPS_MAX: u32 = 0x1_0000;
/// In a perf event array, what is no GOT slot plus 1: an event whose buffer is not mapped yet.
pub const EVENT_WITHOUT_BUFFER: u32 = u32::MAX;
/// Offset of the table of what programs can read of tasks in the control page ([`crate::task::TaskTable`]).
pub const TASK_TABLE_OFFSET: u64 = GOT_OFFSET + MAPS_MAX as u64 * 16;
/// Bytes of its place.
pub const TASK_TABLE_BYTES: u64 = 0x1000;
/// Offset of the list of stub areas in the control page.
pub const STUB_AREAS_OFFSET: u64 = TASK_TABLE_OFFSET + TASK_TABLE_BYTES;
/// Stub areas of one target.
pub const STUB_AREAS_MAX: u32 = 4096;
/// Offset of the tables of system calls ([`crate::syscall`]).
pub const SYSCALLS_OFFSET: u64 = STUB_AREAS_OFFSET + STUB_AREAS_MAX as u64 * 16;
/// Bytes of their place.
pub const SYSCALLS_BYTES: u64 = 0x4_0000;

/// Offset of the table of views in the control page: where each mapped map lies, and its geometry (`ring3_maps::View`).
/// What programs do with a map is bounded by it, and by nothing that other targets can write.
pub const VIEWS_OFFSET: u64 = SYSCALLS_OFFSET + SYSCALLS_BYTES;
/// Bytes of a view's place.
pub const VIEW_BYTES: u64 = 256;

/// Offset of the hook table in the control page. This table and those behind it take memory only where they are used.
pub const HOOKS_OFFSET: u64 = VIEWS_OFFSET + MAPS_MAX as u64 * VIEW_BYTES;
/// Hooks (sites) of one target.
pub const HOOKS_MAX: u32 = 1 << 20;
/// Offset of the attachment table in the control page.
pub const ATTACHMENTS_OFFSET: u64 = HOOKS_OFFSET + HOOKS_MAX as u64 * 64;
/// Attachments of one target, old ranges that wait for quiescence included.
pub const ATTACHMENTS_MAX: u32 = 2 * HOOKS_MAX;
/// Offset of the recovery table in the control page: what it takes to undo everything, kept in
/// the target itself so that another server can clean up after the first was killed.
pub const RECOVERY_OFFSET: u64 = ATTACHMENTS_OFFSET + ATTACHMENTS_MAX as u64 * 48;
/// Offset of the table of traps in the control page, a hash table by address ([`trap_slots`]).
pub const TRAPS_OFFSET: u64 = RECOVERY_OFFSET + HOOKS_MAX as u64 * 64;
/// Places in it.
pub const TRAPS_MAX: usize = 1 << 16;
/// Places that are looked at for an address.
pub const TRAP_PROBES_MAX: usize = 64;
/// Offset of the two lists of code with unwind tables ([`UnwindCode`]), of which one is published ([`ControlHeader::unwind`]).
pub const UNWIND_LISTS_OFFSET: u64 = TRAPS_OFFSET + (TRAPS_MAX * size_of::<Trap>()) as u64;
/// Entries of one list.
pub const UNWIND_CODE_MAX: usize = 4096;
/// Bytes of all of it.
pub const BYTES: u64 = EXTENSIONS_OFFSET + (EXTENSIONS_MAX * size_of::<Extension>()) as u64;
/// Bytes of one list.
/// What extensions may call, and what their results mean: [`Extension`]s.
pub const EXTENSIONS_OFFSET: u64 = UNWIND_LISTS_OFFSET + 2 * UNWIND_LIST_BYTES;
/// Extensions of a process at most.
pub const EXTENSIONS_MAX: usize = 64;

const UNWIND_LIST_BYTES: u64 = (UNWIND_CODE_MAX * size_of::<UnwindCode>()) as u64;

/// Offset in the control page of the list that this version of [`ControlHeader::unwind`] publishes.
pub const fn unwind_list_offset(version: u32) -> u64 {
    UNWIND_LISTS_OFFSET + (version % 2) as u64 * UNWIND_LIST_BYTES
}

/// A site that is an `int3`: where its thread goes on. It stays while its stub does: a thread may be on its way to the handler.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Trap {
    /// Address behind the `int3`; 0: none.
    pub behind: AtomicU64,
    /// Address of the stub. It is written first.
    pub stub: AtomicU64,
}

/// The places that an `int3`'s entry may have, by the address behind it.
pub fn trap_slots(behind: u64) -> impl Iterator<Item = usize> {
    const SHIFT: u32 = 64 - TRAPS_MAX.ilog2();
    let first = (behind.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> SHIFT) as usize;
    (first..first + TRAP_PROBES_MAX).map(|at| at % TRAPS_MAX)
}

/// How to undo one site. 64 bytes; the entry of hook i is entry i.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
pub struct Recovery {
    /// Address of the site; 0: the site is not patched (any more).
    pub site: u64,
    /// Address of the stub.
    pub stub: u64,
    /// Bytes of the stub. Behind them, [`stub_tail_offset`] from its start, lies a [`StubTail`].
    pub stub_bytes: u32,
    /// Bytes of `original` and `written` in use.
    pub bytes: u32,
    /// What stood at the site.
    pub original: [u8; 20],
    /// What we wrote there.
    pub written: [u8; 20],
}

/// Behind a stub: where in its code the instructions went that it displaced, for threads that wait there when it is taken out.
/// `count` words follow, of [`moved_pack`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
pub struct StubTail {
    /// [`STUB_TAIL_MAGIC`] xor the address of this value: a thread in a stub that a newer one has replaced finds it by that.
    pub magic: u64,
    /// Address of the stub.
    pub stub: u64,
    /// Address of the site.
    pub site: u64,
    /// How many words follow, at most [`MOVED_MAX`].
    pub count: u64,
}

/// See [`StubTail::magic`].
pub const STUB_TAIL_MAGIC: u64 = 0x6c69_6174_6275_7473;

/// Bytes from the start of a stub, which may lie anywhere, to its [`StubTail`].
pub const fn stub_tail_offset(stub_bytes: u32) -> u64 {
    (stub_bytes as u64).next_multiple_of(8)
}

/// Instructions that one stub can have displaced, and the end of them.
pub const MOVED_MAX: u64 = 256;

/// Packs where an instruction is in a stub, and how many bytes behind the site it was.
pub const fn moved_pack(stub_offset: u32, distance: u32) -> u64 {
    (stub_offset as u64) << 32 | distance as u64
}

/// The `(stub_offset, distance)` of a packed pair.
pub const fn moved_unpack(pair: u64) -> (u32, u32) {
    ((pair >> 32) as u32, pair as u32)
}

/// Memory that holds stubs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
pub struct StubArea {
    /// First address; 0: unused entry.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
}

shared! {
    /// The head of the control page.
    pub struct ControlHeader, as numbers ControlHeaderValue {
        /// [`CONTROL_MAGIC`].
        pub magic: u64,
        /// [`crate::LAYOUT_VERSION`].
        pub version: u32,
        /// The process id of the target in its own pid namespace, as the server knew it at injection.
        pub pid: u32,
        /// Distinguishes this injection from any other of any server.
        pub nonce: u64,
        /// Address of the region in the target.
        pub region_base: u64,
        /// Address of `__vdso_clock_gettime` in the target; 0: use the system call.
        pub vdso_clock_gettime: u64,
        /// First address of what that function uses: the vDSO and its data before it.
        pub vdso_begin: u64,
        /// The end of that.
        pub vdso_end: u64,
        /// Address of a C library's `__rseq_offset` in the target, a word that says how far behind its FS base each thread's
        /// `struct rseq` lies; 0: there is none.
        pub rseq_offset: u64,
        /// `num_possible_cpus()` of the machine, at most [`crate::realm::CPUS_MAX`].
        pub cpus: u32,
        /// Requests wait this many microseconds at a time for the server.
        pub request_wait_us: u32,
        /// Set to 1 while the target is being cleaned up: hooks pass through without running anything.
        pub retired: AtomicU32,
        /// Process id of the server, in its own namespace.
        pub server_pid: u32,
        /// Start time of the server, clock ticks since boot (`/proc/PID/stat`, field 22): with the pid it tells
        /// whether the server still lives.
        pub server_started: u64,
        /// Number of the target's pid namespace ([`crate::owner`]). It holds for the process with the id above: a fork that
        /// has not been adopted yet may be in another one.
        pub namespace: u32,
        /// Names the run-time directory of the server: the next one of the same directory cleans up after it.
        pub directory: u32,
        /// 1: the CPU has the instruction RDPID, which gives its number.
        pub rdpid: u32,
        /// 1: a program that runs at a return needs all registers, and so the trampoline stores them ([`crate::frame`]).
        pub all_registers: AtomicU32,
        /// Entries of the hook table that were ever used.
        pub hooks: AtomicU32,
        /// Entries of the GOT that were ever used.
        pub maps: AtomicU32,
        /// 1: a probe's reference counter is not mapped yet, so the server hears of writable mappings of files, too.
        pub awaits_counters: AtomicU32,
        /// The bit of PKRU that keeps threads from the maps of extensions; 0: the maps have no protection key.
        pub maps_key: AtomicU32,
        /// Version and length of the list of code with unwind tables ([`range_pack`]); 0: no program here asks for stacks.
        pub unwind: AtomicU64,
        /// In how many pid namespaces the server saw the process with the id above: its own, and those inside.
        pub levels: u32,
        /// Nanoseconds from one of the kernel's ticks to the next (`TICK_NSEC`).
        pub tick_ns: u32,
    }
}

/// Where a map lies in this target. 16 bytes; compiled code loads either word.
#[repr(C)]
#[derive(Debug)]
pub struct GotEntry {
    /// Address of the map's view, which is what programs hold for a map; 0: not mapped here.
    pub view: AtomicU64,
    /// Address of the map's element data (array types) or of its first byte.
    pub data: AtomicU64,
}

shared! {
    /// Code that is mapped in the target, and where the unwind table of its file is. 48 bytes. Entries are ordered by `start`.
    ///
    /// The server writes one list while the other one is published. So what was read of a list holds if the same
    /// version of it is published afterwards. Tables stay where they are as long as the server lives.
    pub struct UnwindCode, as numbers UnwindCodeValue {
        /// First address.
        pub start: AtomicU64,
        /// The end.
        pub end: AtomicU64,
        /// Address of the first byte that the table tells of.
        pub origin: AtomicU64,
        /// Address of a word of the file.
        pub witness_at: AtomicU64,
        /// That word: another one shows that something else has been mapped since.
        pub witness: AtomicU64,
        /// Where the table is, from [`crate::region::UNWIND_OFFSET`] on, and its bytes ([`range_pack`]).
        pub table: AtomicU64,
    }
}

/// What a site does when a thread comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HookKind {
    /// Runs attached programs; entry programs on arrival, return programs when the function returns.
    Probe = 0,
    /// Entry of a function that unwinds the stack: puts the original return addresses back until the unwinder has ended.
    UnwindStart = 1,
    /// A catch, or the end of a foreign exception: replaces the return addresses of live frames again.
    UnwindEnd = 2,
    /// No place: counts hits and misses of all system calls ([`crate::syscall`]).
    Syscalls = 3,
    /// A `ret` of a function whose return address must not be replaced: runs return programs. `site` is the function.
    Return = 4,
    /// Entry of a function that walks the stack without unwinding it: puts the original return addresses back.
    StackWalk = 5,
}

impl HookKind {
    /// The kinds of the hooks that ring3 places in unwinders for itself.
    pub const OF_UNWINDERS: [HookKind; 3] = [HookKind::UnwindStart, HookKind::UnwindEnd, HookKind::StackWalk];

    /// Whether the hook is one that ring3 places in unwinders for itself.
    pub fn is_of_unwinder(self) -> bool {
        HookKind::OF_UNWINDERS.contains(&self)
    }
}

shared! {
    /// A site as the agent sees it. 64 bytes.
    pub struct Hook, as numbers HookValue {
        /// Address of the probed instruction; `regs->ip` of entry programs, `bpf_get_func_ip`.
        pub site: u64,
        /// A [`HookKind`].
        pub kind: u32,
        /// Index of this hook in the table; also of its counters in the thread blocks.
        pub index: u32,
        /// Packed range of entry attachments.
        pub entry: AtomicU64,
        /// Packed range of return attachments.
        pub ret: AtomicU64,
        /// `HOOK_*`.
        pub flags: u32,
        /// 1: what runs on arrival needs all registers, and so the stub stores them ([`crate::frame`]). It is written before
        /// the attachments that need it.
        pub all_registers: AtomicU32,
        /// Address of the only [`Attachment`] on entry, 0 if there is none; [`HOOK_MANY`] if on entry or return there are more, or
        /// the hook is ring3's own.
        pub only: AtomicU64,
        /// The same on return, 0 if there is none. It means nothing while `only` is [`HOOK_MANY`], and is written before `only`.
        pub only_return: AtomicU64,
        /// Address that stands in place of awaited return addresses.
        pub trampoline: u64,
    }
}

/// Of [`Hook::only`]: look at the ranges.
pub const HOOK_MANY: u64 = 1;
/// The instruction is what functions begin with: the return address is at the stack pointer.
pub const HOOK_AT_ENTRY: u32 = 1 << 0;

shared! {
    /// One program on one hook. 48 bytes.
    pub struct Attachment, as numbers AttachmentValue {
        /// Address of what is called: `program`, or a routine of the agent's that runs it: of programs with a budget, and of all
        /// while runs are counted. It alone changes after the attachment was published.
        pub code: AtomicU64,
        /// `bpf_get_attach_cookie`.
        pub cookie: u64,
        /// Runs only in the process with this id (in the target's pid namespace); 0: in all. A fork's
        /// child shares its parent's tables until the server has adopted it, hence the test at run time.
        pub pid: u32,
        /// `ATTACHMENT_*`.
        pub flags: u32,
        /// The link, for `ring3 status`.
        pub link_id: u32,
        /// The program, for `ring3 status`.
        pub prog_id: u32,
        /// Address of the compiled program's entry in this target.
        pub program: u64,
        /// What one run may take, ns; 0: anything.
        pub budget_ns: u64,
    }
}

/// A program that is run by itself, some times one after the other: for `BPF_PROG_TEST_RUN`, or for a perf event. Lies in the process that runs it.
#[repr(C)]
#[derive(Debug)]
pub struct TestRun {
    /// The program.
    pub attachment: Attachment,
    /// What r1 is.
    pub context: u64,
    /// Address of the [`crate::sampled::Sampled`] that stands for the running thread; 0: none.
    pub sampled: u64,
    /// How often it runs.
    pub repeat: u32,
    /// Zero.
    pub reserved: u32,
    /// r0 of the last run.
    pub result: u64,
    /// All runs together, ns.
    pub duration_ns: u64,
}

/// The program uses per-CPU map memory: it takes a CPU slot for its run ([`crate::realm::CpuSlot`]).
pub const ATTACHMENT_CPU_SLOT: u32 = 1 << 0;
/// The program needs registers that not every frame has ([`crate::frame`]).
pub const ATTACHMENT_ALL_REGISTERS: u32 = 1 << 1;
/// The program's context is what a system call's raw tracepoint has.
pub const ATTACHMENT_RAW: u32 = 1 << 2;
/// The program's context is what a system call's tracepoint has.
pub const ATTACHMENT_TRACEPOINT: u32 = 1 << 3;
/// The program's context is what a kprobe at the kernel's function of a system call has.
pub const ATTACHMENT_KPROBE: u32 = 1 << 4;
/// With [`ATTACHMENT_RAW`]: the context is the arguments of the raw tracepoint of a [`crate::task_event::TaskEvent`], which lie
/// behind the address of the registers.
pub const ATTACHMENT_TASK_EVENT: u32 = 1 << 6;
/// The program is run by itself: its context leads to no registers.
pub const ATTACHMENT_ALONE: u32 = 1 << 5;

/// Signals may be sent behind the program's run ([`crate::thread::ThreadBlock::wanted_signals`]): by the program, or by the tracer of
/// a thread that the program makes wait.
pub const ATTACHMENT_SIGNALS: u32 = 1 << 7;

/// The program is an extension: its result decides what is done, and it may call functions of its host. The bits from
/// [`ATTACHMENT_EXTENSION_SHIFT`] on are the index of its [`Extension`].
pub const ATTACHMENT_EXTENSION: u32 = 1 << 8;
/// See [`ATTACHMENT_EXTENSION`].
pub const ATTACHMENT_EXTENSION_SHIFT: u32 = 16;

/// Verdicts of an extension at most.
pub const VERDICTS_MAX: usize = 8;
/// Functions and variables of its host that an extension may name, at most.
pub const HOST_SYMBOLS_MAX: usize = 64;

/// What an extension's attachment needs besides its program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    /// What results mean; the first that matches counts.
    pub verdicts: [VerdictEntry; VERDICTS_MAX],
    /// The functions that it may call, then the variables that it may touch.
    pub symbols: [HostSymbol; HOST_SYMBOLS_MAX],
}

/// What some results of an extension mean.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VerdictEntry {
    /// The least result.
    pub least: i64,
    /// The greatest.
    pub greatest: i64,
    /// `VERDICT_*`.
    pub action: u64,
    /// With [`VERDICT_RETURN`]: what the function returns.
    pub value: i64,
}

/// The function runs, or its result stays. (Also what results mean that no verdict has.)
pub const VERDICT_CONTINUE: u64 = 0;
/// The function does not run, or its result is replaced: it returns the program's result.
pub const VERDICT_RETURN_RESULT: u64 = 1;
/// The same with the verdict's value.
pub const VERDICT_RETURN: u64 = 2;

/// A function or variable of the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HostSymbol {
    /// Its address in this process.
    pub address: u64,
    /// The least result of a function that is allowed.
    pub least: i64,
    /// The greatest.
    pub greatest: i64,
    /// Bits of the register that are not the result's, which the result is extended into.
    pub unused_bits: u32,
    /// 1: by its sign.
    pub signed: u32,
}

/// The program counts the rounds of its loops: whether it had enough is to be seen behind its run.
pub const ATTACHMENT_FUEL: u32 = 1 << 9;

/// The program runs at the beginning of a system call, before that is made.
pub const ATTACHMENT_BEGINS: u32 = 1 << 10;

/// How a call of a program by the process itself went. Returned in two registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Called {
    /// r0.
    pub result: u64,
    /// One of [`called`].
    pub status: u64,
}

/// What [`Called::status`] says.
pub mod called {
    /// The program has run.
    pub const RAN: u64 = 0;
    /// There is no block left for this thread.
    pub const NO_BLOCK: u64 = 1;
    /// This thread is in too many runs already, each within another one.
    pub const TOO_DEEP: u64 = 2;
    /// The program was taken away.
    pub const UNLOADED: u64 = 3;
    /// The program has run as many rounds of loops as it may, and was ended.
    pub const OUT_OF_FUEL: u64 = 4;
}

/// Packs `first..first + count` into the word that publishes it.
pub const fn range_pack(first: u32, count: u32) -> u64 {
    (first as u64) << 32 | count as u64
}

/// The `(first, count)` of a packed range.
pub const fn range_unpack(range: u64) -> (u32, u32) {
    ((range >> 32) as u32, range as u32)
}

const _: () = {
    // Compiled code reads the word before the GOT where an element names no map.
    assert!(size_of::<ControlHeader>() + size_of::<GotEntry>() <= GOT_OFFSET as usize);
    assert!(size_of::<GotEntry>() == 16);
    assert!(size_of::<Hook>() == 64);
    assert!(size_of::<Attachment>() == 48);
    assert!(size_of::<Recovery>() == 64);
    assert!(size_of::<UnwindCode>() == 48);
    assert!(SYSCALLS_OFFSET.is_multiple_of(crate::PAGE_BYTES));
    assert!(VIEWS_OFFSET.is_multiple_of(crate::PAGE_BYTES));
    assert!(BYTES.is_multiple_of(crate::PAGE_BYTES));
};
