//! Signals of a target that the agent handles: who blocks them, and whose handlers stand before the target's own.
//!
//! Runs: on the tracer, while the target is stopped.
//! May touch: actions and masks of the target's threads.
//! Never: takes or gives back a signal while a thread may be about to change whether it blocks it.
//! Start reading at: `actions.rs`.

pub(super) mod actions;
pub(super) mod faults;
mod masks;
pub(super) mod traps;

pub(super) use actions::{action_of, field, read_word, set_action, write_flag};
pub(super) use faults::FaultState;
pub(super) use masks::{blocks_meanwhile, masks_are_stable, sud_trampoline};
pub(super) use traps::TrapState;
