//! Scenarios by subject.

pub(crate) mod raw_members;
pub(crate) mod raw_names;
pub(crate) mod raw_values;
