//! Linux's contract, as numbers and structures: bpf(2), perf_event_open(2), helpers, errors.
//!
//! Runs: anywhere.
//! May touch: nothing.
//! Never: decides; what ring3 supports is the server's table.
//! Start reading at: `bpf.rs`.
#![no_std]
#![forbid(unsafe_code)]

pub mod attr;
pub mod bpf;
pub mod errno;
pub mod flags;
pub mod helper;
pub mod nr;
pub mod perf;
pub mod pidfd;
pub mod ptrace;
pub mod seccomp;
pub mod syscalls;

pub use errno::Errno;
