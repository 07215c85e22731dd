//! The BPF subsystem in user space: objects, commands, links, targets.
//!
//! Runs: in our own server process, one per user; `session::install_filter` also in the process that becomes the loader.
//! May touch: loaders (their memory and fds, by seccomp notification), targets (through `ring3-inject`).
//! Never: blocks on a loader or a target without a deadline; trusts a word that a target can write.
//! Start reading at: `daemon.rs`, then `subsystem.rs` (loader side) and `realm/mod.rs` (target side).

pub mod control;
pub mod daemon;
pub mod realm;
mod raw_process;
pub mod session;
pub mod subsystem;
pub mod support;
mod trace;
