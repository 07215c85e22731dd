//! System calls of a target: trampolines, the SUD fallback, and calls that neither of them sees.
//!
//! Runs: on the tracer, mostly while the target is stopped.
//! May touch: the target's `syscall` instructions, its trampolines, its state of syscall user dispatch.
//! Never: makes the target's own calls for it.
//! Start reading at: `trampolines.rs`.

mod callers;
mod filters;
mod interest;
pub(super) mod restore;
mod subscribers;
pub(super) mod sud;
mod trampolines;
mod unseen;

pub(super) use filters::filter_at;
pub(super) use sud::SudFallback;
pub(super) use trampolines::{Syscalls, WantedCall, WantedCalls};
pub(super) use unseen::are_of_strace;
