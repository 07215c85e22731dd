//! Any process, as it can be looked at from outside: memory, threads, and what of ring3 lies there.
//!
//! Runs: on every thread of the server.
//! May touch: memory of processes (`/proc/PID/mem`, `process_vm_readv`), memfds of the server.
//! Never: knows what a target or a link is.
//! Start reading at: `region.rs`.

pub(super) mod limits;
mod raw_memory;
mod region;
mod retry;
mod state;

pub(crate) use raw_memory::futex_wake;
pub(super) use raw_memory::{SharedFile, differs, futex_wait, read_process, read_value, value_from, write_process};
pub(super) use region::{
    Cleaning, Maker, Sharers, guards_clear, maker, nonce_at, other_server, put_back, region_in, table_until,
};
pub(super) use retry::{FIRST_PAUSE, PAUSE_MAX_AWAITED, RetryDelay, is_passing, patiently};
pub(crate) use state::leader;
pub(super) use state::{all_processes, code_of, is_held, is_traced_by, own_pid, thread_named, user_of};
