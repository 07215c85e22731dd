//! Files of recorded events, in formats that other programs read.
//!
//! Runs: in the commands `ring3 record` and `ring3 convert`.
//! May touch: the files and writers that it is given.
//! Never: trusts what it reads: a record or file that is damaged is an error or is counted, not a panic.
//! Start reading at: `Sink`.
#![forbid(unsafe_code)]

pub mod ctf;
mod origin;
mod sink;
mod types;

pub use origin::Origin;
pub use sink::Sink;
