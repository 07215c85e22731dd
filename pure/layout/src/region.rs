//! The region: what ring3 maps into a target, at fixed distances from one base address.
//!
//! One reservation holds everything but the stubs (near their modules) and the maps' memory.
//! Since the distances are fixed, compiled programs reach helpers by relative calls and the
//! address table by rip-relative loads, and the same text pages serve every process.
//!
//! ```text
//! base + AGENT        agent image                  r-x  shared file, same pages in all targets
//!      + CONTROL      header, GOT, hooks           r--  one memfd per target, written by the server
//!      + REALM        doorbells, CPU slots, trace  rw-  one memfd per domain, shared by its targets
//!      + TEXT         SUD trampolines, programs    r-x  one memfd per server, written by the server
//!      + UNWIND       unwind tables                r--  one memfd per server, written by the server
//!      + TRAMPOLINES  syscall trampolines          r-x  private
//!      + WITNESS      says whether forks exist     r-x  private, copied at fork
//!      + RESCUE       rescue frame, if it is large    r-x  private
//!      + WITNESS_FILE the same after the end       ---  one memfd per target, mapped by its forks, too
//!      + PROCESS      process word                 rw-  private, wiped at fork (MADV_WIPEONFORK)
//!      + STATE        state header, thread blocks  rw-  private, copied at fork
//! ```

/// Alignment of the region's base, bytes.
pub const REGION_ALIGN: u64 = 0x1_0000;

/// Offset of the agent image.
pub const AGENT_OFFSET: u64 = 0;
/// Bytes reserved for the agent image.
pub const AGENT_BYTES_MAX: u64 = 0x8_0000;

/// Offset of the control page ([`crate::control`]).
pub const CONTROL_OFFSET: u64 = AGENT_OFFSET + AGENT_BYTES_MAX;
/// The name of its memfd, and how `/proc/PID/maps` shows that.
pub const CONTROL_NAME: &str = "ring3-control";
/// See [`CONTROL_NAME`].
pub const CONTROL_PATH: &str = "/memfd:ring3-control";
/// Bytes of the control page.
pub const CONTROL_BYTES: u64 = crate::control::BYTES;

/// Offset of the realm block ([`crate::realm`]).
pub const REALM_OFFSET: u64 = CONTROL_OFFSET + CONTROL_BYTES;
/// Bytes of the realm block.
pub const REALM_BYTES: u64 = 0x50_0000;

/// Offset of the compiled programs.
pub const TEXT_OFFSET: u64 = REALM_OFFSET + REALM_BYTES;
/// Bytes of the text memfd (sparse).
pub const TEXT_BYTES: u64 = 0x100_0000;
/// Alignment of a program's first byte in the text.
pub const PROGRAM_ALIGN: u64 = 64;

/// Offset of the unwind tables of files (`ring3_unwind`), which [`crate::control::UnwindCode`] names.
pub const UNWIND_OFFSET: u64 = TEXT_OFFSET + TEXT_BYTES;
/// Bytes of the unwind memfd (sparse).
pub const UNWIND_BYTES: u64 = 0x400_0000;

/// Offset of the syscall trampolines, through which traced system calls are made ([`crate::syscall`]).
pub const TRAMPOLINES_OFFSET: u64 = UNWIND_OFFSET + UNWIND_BYTES;
/// Bytes of the trampolines; private anonymous memory, written by the server.
pub const TRAMPOLINES_BYTES: u64 =
    ((crate::syscall::SITES_MAX as u64 + 1) * crate::syscall::TRAMPOLINE_BYTES).next_multiple_of(crate::PAGE_BYTES);

/// Offset of the witness page: the server writes a word there once. As long as a fork has that page too, the kernel says that
/// more than one process maps it (`/proc/PID/pagemap`, bit 56).
pub const WITNESS_OFFSET: u64 = TRAMPOLINES_OFFSET + TRAMPOLINES_BYTES;
/// Bytes of the witness page.
pub const WITNESS_BYTES: u64 = crate::PAGE_BYTES;

/// Offset of the place of a rescue frame that does not fit at the end of the vDSO (`ring3_inject`, `rescue_frame`).
pub const RESCUE_OFFSET: u64 = WITNESS_OFFSET + WITNESS_BYTES;
/// Bytes of it.
pub const RESCUE_BYTES: u64 = 0x4000;

/// Offset of the mapping of the target's witness file, of which nothing is used but that it is mapped: as long as it is, by a fork,
/// say, the kernel refuses to seal the file (`F_SEAL_WRITE`).
pub const WITNESS_FILE_OFFSET: u64 = RESCUE_OFFSET + RESCUE_BYTES;
/// Bytes of the witness file.
pub const WITNESS_FILE_BYTES: u64 = crate::PAGE_BYTES;

/// Offset of the process page ([`crate::thread::ProcessPage`]).
pub const PROCESS_OFFSET: u64 = WITNESS_FILE_OFFSET + WITNESS_FILE_BYTES;
/// Bytes of the process page.
pub const PROCESS_BYTES: u64 = crate::PAGE_BYTES;

/// Offset of the state block: [`crate::thread::StateHeader`], then the thread blocks.
pub const STATE_OFFSET: u64 = PROCESS_OFFSET + PROCESS_BYTES;
/// Bytes of the state block; private anonymous memory, touched as threads appear.
pub const STATE_BYTES: u64 = COUNTERS_OFFSET + COUNTERS_BYTES - STATE_OFFSET;
/// Offset of the stack of a thread whose block is not known yet, for calls that must not use the caller's.
pub const LAST_STACK_OFFSET: u64 = STATE_OFFSET
    + crate::thread::STATE_HEADER_BYTES
    + crate::thread::THREADS_MAX as u64 * crate::thread::THREAD_BLOCK_BYTES;

/// Offset of the pool of chunks of shadow frames.
pub const SHADOW_OFFSET: u64 = LAST_STACK_OFFSET + crate::syscall::AGENT_STACK_BYTES;
/// Bytes of the pool; touched as threads need it.
pub const SHADOW_BYTES: u64 = crate::thread::SHADOW_POOL_CHUNKS as u64 * crate::thread::SHADOW_CHUNK_BYTES;

/// Offset of the state of the SUD fallback ([`crate::sud::SudState`]).
pub const SUD_OFFSET: u64 = SHADOW_OFFSET + SHADOW_BYTES;
/// Bytes of it.
pub const SUD_BYTES: u64 = 0x2_1000;

/// Offset of the table of counters that are up ([`crate::counter`]), the end of the state block.
pub const COUNTERS_OFFSET: u64 = SUD_OFFSET + SUD_BYTES;
/// Bytes of it; touched where probes have counters.
pub const COUNTERS_BYTES: u64 = crate::counter::TABLE_BYTES;

/// Bytes of the whole reservation.
pub const REGION_BYTES: u64 = STATE_OFFSET + STATE_BYTES;

/// Offset of the view of map slot `slot`, from the region's base.
pub const fn view_offset(slot: u32) -> u64 {
    CONTROL_OFFSET + crate::control::VIEWS_OFFSET + slot as u64 * crate::control::VIEW_BYTES
}

/// Offset of one GOT entry of [`crate::control::GotEntry`] for map slot `slot`, from the region's base.
pub const fn got_offset(slot: u32) -> u64 {
    CONTROL_OFFSET + crate::control::GOT_OFFSET + slot as u64 * size_of::<crate::control::GotEntry>() as u64
}
