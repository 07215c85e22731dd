//! ring3-server
