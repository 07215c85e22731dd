//! Life of processes: which become targets, by whom they are found, and what their forks, executions and ends do.
//!
//! Runs: on the tracer; on a thread for each execution that is followed; on the finder's threads.
//! May touch: processes that are to become targets.
//! Never: makes the tracer wait for a process that does not do what it said.
//! Start reading at: `takes.rs`, then `executions.rs` and `forks.rs`.

mod ends;
mod executions;
mod finder;
mod forks;
mod privileges;
mod raw_executions;
mod takes;
mod turns;

pub(super) use ends::{Life, RecentEnds};
pub(super) use executions::{
    Announcer, EXEC_WITHIN, Execution, ExecutionOutcome, InCall, InheritedState, Work, is_held,
};
pub use finder::Watch;
pub(super) use finder::{Finder, Wanted};
pub(super) use forks::{WitnessFile, YoungForks};
pub(super) use takes::{Asked, Candidate, Takes};
pub(super) use turns::Turns;
