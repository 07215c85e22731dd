//! The BPF subsystem in user space: objects, commands, links, targets.
//!
//! Runs: in our own server process, one per user; `loader::install_filter` also in the process that becomes the loader.
//! May touch: loaders (their memory and fds, by seccomp notification), targets (through `ring3-inject`).
//! Never: blocks on a loader or a target without a deadline; trusts a word that a target can write.
//! Start reading at: `daemon.rs`, then `loader/mod.rs` (loader side) and `realm/mod.rs` (target side).

pub mod aot;
pub mod control;
pub mod daemon;
mod kernel;
pub mod loader;
mod quota;
mod raw_perf;
mod raw_process;
pub mod realm;
pub mod rights;
pub mod support;
mod trace;

pub use raw_process::without_posix_spawn;
pub use ring3_inject::children;
