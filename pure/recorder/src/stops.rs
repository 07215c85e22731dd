//! Programs that write a record at the start and at the end of each system call, for a reader that shows the calls as a tracer
//! which stopped the thread there would: with copies of the memory that strace 6.1 reads at these stops.
//!
//! A record is a head of [`record::HEAD_BYTES`] bytes and chunks ([`record`]). What a call's chunks are says [`table`]. Where that
//! does not say what is needed, the record has no chunks and [`record::WAITS`], and the thread waits until it is consumed: the
//! reader reads the memory itself.
//!
//! Records are built on the program's stack, and those that do not fit there in the ring buffer, never in a map: a thread may wait
//! for room in the ring buffer, and the programs of a signal handler may run meanwhile.
//!
//! The context at the end of a call has no arguments. Where chunks need some, the program at the start leaves them in the thread's
//! slot, a ring of [`CALLS_MAX`] calls: a signal handler may make calls while one waits. What is not found there (the start was
//! not seen, or the handlers were too deep) makes the end WAIT.

use ring3_uapi::syscalls::Syscall;

use crate::stops::program::Writer;
use crate::stops::table::Phase;

mod program;
pub mod table;

/// Maps of the programs, by their index.
pub mod map {
    /// The ring buffer.
    pub const RECORDS: usize = 0;
    /// Hash, from thread ids to slots of [`super::SLOT_BYTES`].
    pub const SLOTS: usize = 1;
    /// Array of one value, which is a new slot: zeros.
    pub const NEW_SLOT: usize = 2;
}

/// Where a record has what (bytes; little endian).
pub mod record {
    /// u32: [`START`] or [`END`].
    pub const KIND: usize = 0;
    /// u32: [`WAITS`] or 0.
    pub const FLAGS: usize = 4;
    /// u32: process.
    pub const PID: usize = 8;
    /// u32: thread.
    pub const TID: usize = 12;
    /// i64: number of the call.
    pub const NUMBER: usize = 16;
    /// u64: ns, as `bpf_ktime_get_ns`.
    pub const TIME: usize = 24;
    /// At the start six u64 arguments, those that the call has and then zeros (`rt_sigreturn`, which has none: the stack pointer, and
    /// [`INTERRUPTED_WORDS`]); at the end the i64 result, then zeros.
    pub const VALUES: usize = 32;
    /// `rax`, `rcx`, `rsp` and `rip` of what goes on behind a `rt_sigreturn`, from its signal frame.
    pub const INTERRUPTED_WORDS: usize = 4;
    /// u32: bytes of the chunks, then a u32 of 0.
    pub const CHUNKS_BYTES: usize = 80;
    /// Bytes before the chunks.
    pub const HEAD_BYTES: usize = 88;
    /// Bytes of a chunk before its memory: u64 address, u32 bytes, u32 of 0. What follows is padded to 8 bytes (with anything).
    pub const CHUNK_HEAD_BYTES: usize = 16;

    /// The start of a call.
    pub const START: u32 = 1;
    /// The end.
    pub const END: u32 = 2;
    /// The thread waits until the record is consumed, and there are no chunks.
    pub const WAITS: u32 = 1;
}

/// Calls of a thread, each made by a handler that interrupted the one before, whose arguments are remembered.
pub const CALLS_MAX: u32 = 4;
/// Bytes of a call in a slot: its number plus 1 (0: none), and six arguments.
const CALL_BYTES: u32 = 56;
/// Where a slot has the calls. (Before them it has, as u64, which is the last.)
const CALLS_AT: u32 = 8;
/// Bytes of a thread's slot.
pub const SLOT_BYTES: u32 = CALLS_AT + CALLS_MAX * CALL_BYTES;

/// What records are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes of data that the reader shows at most (strace's `-s`): one more is copied.
    pub bytes_max: u32,
    /// All records WAIT.
    pub exact: bool,
}

/// The kernel's function at whose start a call's first program runs. `None`: it runs at the tracepoint of the call's start, whose
/// context does not have the thread's registers.
pub fn function(of: &Syscall) -> Option<String> {
    (of.name == "rt_sigreturn").then(|| format!("__x64_sys_{}", of.name))
}

/// The program at the start of a call. (The context has as many arguments as the call has parameters; at a [`function`] it is a
/// `struct pt_regs`.)
pub fn entry(of: &Syscall, wanted: Wanted) -> String {
    if function(of).is_some() {
        return Writer::new(false).sigreturn(of.number, wanted.exact);
    }
    let arguments = of.parameters().count() as u8;
    let of = table::call(of.name, wanted);
    Writer::new(false).entry(arguments, &of.start, &of.end)
}

/// The programs at the starts and at the ends of all calls that have no names (`raw_syscalls:sys_enter_unnamed` and `sys_exit_unnamed`
/// of ring3). Nothing is known of them, so the thread waits.
pub fn unnamed() -> [String; 2] {
    let waits = Phase::Waits;
    [Writer::unnamed(false).entry(6, &waits, &waits), Writer::unnamed(true).exit(&waits)]
}

/// The program at the end of a call. (Those of calls that do not return have none: [`returns`].)
pub fn exit(of: &Syscall, wanted: Wanted) -> String {
    Writer::new(true).exit(&table::call(of.name, wanted).end)
}

/// Whether a call may return.
pub fn returns(name: &str) -> bool {
    !matches!(name, "exit" | "exit_group")
}

/// Whether a call's records never WAIT, whatever its arguments are, if its start is seen.
pub fn is_streamed(name: &str) -> bool {
    let of = table::call(name, Wanted { bytes_max: 32, exact: false });
    [&of.start, &of.end].iter().all(|phase| matches!(phase, Phase::Chunks { waits: None, .. }))
}

#[cfg(test)]
mod tests {
    use ring3_isa::assemble;
    use ring3_uapi::syscalls::{TABLE, by_name};

    use super::*;

    #[test]
    fn programs_of_all_system_calls_are_assembled() {
        for call in TABLE {
            for (bytes_max, exact) in [(0, false), (32, false), (400, false), (1 << 20, false), (32, true)] {
                let wanted = Wanted { bytes_max, exact };
                for text in [entry(call, wanted), exit(call, wanted)] {
                    assemble(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", call.name));
                }
            }
        }
    }

    #[test]
    fn programs_of_calls_without_names_are_assembled() {
        for text in unnamed() {
            assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        }
    }

    #[test]
    fn calls_with_numbers_only_share_their_programs() {
        let wanted = Wanted { bytes_max: 32, exact: false };
        let of = |name| by_name(name).expect("a call");
        assert_eq!(entry(of("getuid"), wanted), entry(of("getpid"), wanted));
        assert_eq!(exit(of("getpid"), wanted), exit(of("openat"), wanted));
        assert_ne!(exit(of("getpid"), wanted), exit(of("read"), wanted));
    }
}
