//! ring3-verifier
