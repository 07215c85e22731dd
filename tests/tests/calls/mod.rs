//! System calls that several tests make, and the function that they probe.

pub(crate) mod raw_bpf;
pub(crate) mod site;
