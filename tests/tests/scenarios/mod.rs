//! Scenarios by subject.

pub(crate) mod raw_members;
