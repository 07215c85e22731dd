//! ring3-runtime
