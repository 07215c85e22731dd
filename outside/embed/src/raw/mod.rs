//! The C API, and what else needs addresses.

mod arguments;
mod c_api;
mod c_maps;
mod c_programs;
mod calls;

pub use arguments::Arguments;
pub(crate) use calls::{call_packet, call_readonly};
