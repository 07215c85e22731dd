//! ring3-image
