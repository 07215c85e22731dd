//! ring3-inject
