//! Unmodified strace, told of system calls by records instead of by stops; and a thread that traces for two: for strace, and for
//! ring3's server.
//!
//! Runs: in strace, preloaded (`ring3 load -- strace ...`); `ring3` has the types of its messages.
//! May touch: tracees of its own thread, by ptrace, and what the server asks for.
//! Never: tells strace of what no tracee did; waits for children of other threads; leaves a thread stopped that the server has let go.
//! Start reading at: `shim.rs`, then `raw_tracer.rs`; docs/design/strace.md.

pub mod companion;
mod process;
mod raw_agent_signals;
mod raw_calls;
pub mod raw_clock;
pub mod raw_execute;
mod raw_postponed;
pub mod raw_preload;
mod raw_steps;
pub mod raw_tracer;
mod record;
mod ring;
mod shim;
mod status;
