//! System calls that several tests make.

pub(crate) mod raw_bpf;
