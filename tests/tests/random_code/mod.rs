//! Random functions, and what becomes of them under probes.

pub(crate) mod batch;
mod shrink;
mod units;
pub(crate) mod write;
