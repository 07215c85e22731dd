//! ring3-jit
