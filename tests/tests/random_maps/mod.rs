//! The parts of the random test of maps; `raw_random_maps.rs` says how they fit together.

pub(crate) mod execute;
pub(crate) mod generate;
pub(crate) mod kinds;
pub(crate) mod raw_calls;

pub(crate) mod raw_program;
pub(crate) mod sequence;
pub(crate) mod shrink;
