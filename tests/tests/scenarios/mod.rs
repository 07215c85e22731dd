//! Scenarios by subject.

pub(crate) mod raw_members;
pub(crate) mod raw_names;
