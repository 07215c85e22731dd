//! ring3-tests
