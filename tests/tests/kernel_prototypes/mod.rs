//! What the running kernel says of its helpers.

pub(crate) mod calls;
pub(crate) mod raw_load;
