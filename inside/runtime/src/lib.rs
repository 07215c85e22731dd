//! Runs programs and helpers inside the target.
//!
//! Runs: on any thread of a process that is not ours, possibly in a signal handler.
//! May touch: its thread block, the mapped tables (read), map data, the stack slots of awaited returns.
//! Never: allocates, panics, calls libc, waits without a bound (`raw_blocking.rs` says what bounds its waits).
//! Start reading at: `raw_dispatch.rs`.
#![no_std]

mod format;
mod numbers;
mod raw_actions;
mod raw_blocking;
pub mod raw_budget;
pub mod raw_buffers;
pub mod raw_call;
pub mod raw_callbacks;
pub mod raw_cancellation;
pub mod raw_cgroup;
mod raw_clock;
pub mod raw_counted;
pub mod raw_dispatch;
pub mod raw_dynptr;
pub mod raw_extension;
pub mod raw_fast_path;
pub mod raw_fault;
pub mod raw_guarded;
pub mod raw_helpers;
mod raw_identity;
mod raw_kernel;
mod raw_limits;
pub mod raw_memory;
mod raw_proc;
mod raw_protection;
mod raw_request;
mod raw_sampled;
mod raw_shadow;
mod raw_shown;
pub mod raw_signals;
mod raw_slot;
pub mod raw_stack;
pub mod raw_strings;
pub mod raw_sud;
pub mod raw_syscalls;
pub mod raw_system;
pub mod raw_task;
mod raw_task_events;
pub mod raw_thread;
pub mod raw_trace;
pub mod raw_trap;
pub mod raw_unwound;
mod raw_walk;
