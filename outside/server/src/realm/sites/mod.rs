//! Sites of probes in one target: where they are, their stubs, and how they are written and taken out.
//!
//! Runs: on the tracer, mostly while the target is stopped.
//! May touch: the target's code, its stubs, and the tables of its control page.
//! Never: decides which sites there should be.
//! Start reading at: `writing.rs`; `site.rs` has the types.

mod batch;
mod breakpoints;
mod code_memory;
mod counters;
mod one_byte;
mod site;
mod stubs;
mod tables;
mod writing;

pub(super) use batch::Batch;
pub(super) use code_memory::{CodeMemory, STOPPED_TWICE_THREADS_MAX};
pub(super) use site::{
    CaughtCalls, Place, RangeAllocator, Site, Use, WantedSite, is_written, maps, place_in, places, taken,
};
pub(super) use stubs::{Area, FIRST_STUB_AREA_BYTES, RelayPage};
pub(super) use tables::{attachment_flags, entries, in_agent};
pub(super) use writing::{Unplaced, WITHIN_JUMP};
