//! ring3-isa
