//! ring3-agent
