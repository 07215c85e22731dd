//! Everything that touches another process: stopping it, calling into it, mapping memory, writing code.
//!
//! Runs: in the server; whatever stops a process on a thread of its own (ptrace belongs to a thread).
//! May touch: targets, by ptrace, `/proc/PID` and remote system calls.
//! Never: decides what to instrument; waits without a deadline; leaves a target half changed.
//! Start reading at: `stopped.rs`, then `calls.rs` and `region.rs`.

mod calls;
mod dispatch;
mod error;
mod filters;
mod keys;
mod memory;
mod process;
mod proxy;
mod raw_ptrace;
mod raw_rescue_frame;
mod raw_wait;
mod region;
mod rescue_frame;
mod sites;
mod stopped;

pub use calls::{RemoteFd, duplicate};
pub use error::Error;
pub use filters::{Filters, UNCAUGHT_MAPPING, note_loader};
pub use keys::{ProtectionKey, has_protection_keys};
pub use memory::Memory;
pub use process::{
    Mapping, Pid, ProcessInfo, Stat, ancestors, children, inspect, mappings, mappings_in, proc_file, started,
    status_field, threads, tracer_of, with_memory,
};
pub use proxy::{forget_proxy, is_traced_through, tell_end, trace_through, traced_through};
pub use raw_ptrace::{Dispatch, Registers, Tid, fsgsbase_available};
pub use region::{
    MapSource, OwnFiles, Region, RegionFiles, map_files, map_region, map_stub_area, map_stub_area_in,
    map_stub_areas_at, replace_files, replace_own, unmap_region,
};
pub use sites::{INT3, SiteChange, SiteRestoration};
pub use stopped::{
    Announced, Following, SavedContext, Stopped, await_release, let_go, made_again, while_stopped,
    while_stopped_at_exec,
};
