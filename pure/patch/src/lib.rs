//! ring3-patch
