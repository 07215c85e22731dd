//! ring3-maps
