//! Bringing targets in line with the links: at once or later, in as few and short stops as possible.
//!
//! Runs: on the tracer.
//! May touch: targets and links.
//! Never: holds up others for a target that cannot be changed at present: that is tried again.
//! Start reading at: `attaching.rs`, then `targets.rs` and `Target::apply_links` (`../target.rs`).

mod ahead;
mod attaching;
mod placing;
mod single;
mod targets;

pub(super) use ahead::Ahead;
pub(super) use attaching::Removed;
pub(super) use placing::{Calls, Series};
pub(super) use single::Settled;
