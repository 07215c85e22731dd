//! ring3-interp
