//! The freestanding image that is mapped into targets: entry points, assembly, helper symbols.
//!
//! Runs: on any thread of a process that is not ours, possibly in a signal handler.
//! May touch: what `ring3-runtime` may.
//! Never: allocates, panics, calls libc, has relocations, data of its own or vector registers in use.
//! Start reading at: `raw_entry.rs`.
#![no_std]

mod raw_cancellation_entry;
mod raw_entry;
mod raw_helpers;
mod raw_host_call;
mod raw_intrinsics;
mod raw_registers;
mod raw_sud_entry;
mod raw_syscall_entry;
