//! Programs that run in processes of the server's, not in targets: perf events, test runs, ends of processes.
//!
//! Runs: on threads that make such processes and read the kernel's events.
//! May touch: those processes, perf events.
//! Never: touches a target.
//! Start reading at: `events.rs`.

mod events;
mod process;
mod test_run;

pub use events::{EventSpec, HostedEvent, HostedProgram};
pub(super) use events::{Host, Hosts};
pub(crate) use events::{field_of, put};
pub use test_run::TestInput;
