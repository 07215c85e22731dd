//! A thread that traces for two: for the program that it is part of, and for ring3's server.
//!
//! Runs: in a tracer's process, such as strace's.
//! May touch: tracees of its own thread, by ptrace, and what the server asks for.
//! Never: waits for children of other threads; leaves a thread stopped that the server has let go.
//! Start reading at: `raw_tracer.rs`.

mod raw_agent_signals;
mod raw_calls;
pub mod raw_tracer;
