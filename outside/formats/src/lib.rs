//! Files of recorded events, in formats that other programs read.
//!
//! Runs: in the commands `ring3 record` and `ring3 convert`.
//! May touch: the files and writers that it is given.
//! Never: trusts what it reads: a record or file that is damaged is an error or is counted, not a panic.
//! Start reading at: `Sink`.
#![forbid(unsafe_code)]

pub mod ctf;
mod flame;
mod heat;
mod json;
mod origin;
mod perfetto;
mod script;
mod show;
mod sink;
mod svg;
mod symbols;
mod types;

pub use flame::{FlameGraph, Weight};
pub use heat::HeatMap;
pub use json::JsonLines;
pub use origin::Origin;
pub use perfetto::Perfetto;
pub use script::Script;
pub use sink::Sink;
pub use symbols::{NoSymbols, Symbols};
