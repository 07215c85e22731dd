//! What `raw_random_programs.rs` is made of.

pub(crate) mod judge;
pub(crate) mod opinion;
pub(crate) mod raw_kernel;
pub(crate) mod reasons;
