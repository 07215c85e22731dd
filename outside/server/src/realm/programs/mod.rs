//! Programs of targets beside their code: what they may take and touch, what becomes of those that fault or overrun.
//!
//! Runs: on the tracer.
//! May touch: tables of control pages; registers of a thread whose program has faulted, in its thread block.
//! Never: runs a program.
//! Start reading at: `faults.rs`.

mod budget;
mod extension;
mod faults;
mod task;

pub use extension::ExtensionClass;
pub(super) use extension::Extensions;
pub(super) use faults::{Ended, FaultCount};
pub(crate) use task::task_table;
