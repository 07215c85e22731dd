//! Taking ring3 out of processes: orderly, after a server that was killed, and the look whether anything is left.
//!
//! Runs: on the tracer.
//! May touch: all that ring3 has written or mapped into a process.
//! Never: needs to know the target: what lies in the process says all that has to be undone.
//! Start reading at: `recovery.rs`.

mod leftovers;
mod letting_go;
mod orphans;
mod recovery;

pub(super) use leftovers::leftovers;
pub(super) use orphans::Orphans;
