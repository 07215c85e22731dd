//! The Extension Interface Model: what an extension may touch of the program that it extends.
//!
//! Runs: in the command line and the server.
//! May touch: the texts and bytes it is given; programs are hostile.
//! Never: does I/O; panics on a corrupt file; grants what a specification does not declare.
//! Start reading at: `resolve.rs`.
//!
//! A program's author declares what exists (a specification: states, functions, entries), whoever runs the program
//! chooses what one extension gets (a class), and `resolve` makes of both, and of the program's types, the `Grant` that
//! the verifier takes. The model is that of "Extending Applications Safely and Efficiently" (OSDI 2025); the text format is
//! in `docs/EXTENSIONS.md`.
#![forbid(unsafe_code)]

mod binary;
mod describe;
mod dwarf;
mod header;
mod lexer;
pub mod limits;
mod load;
pub mod model;
mod notes;
mod parse;
mod places;
pub mod prototype;
mod resolve;
mod signature;
mod source;
mod types;

pub use binary::{Binary, build_id, types_of_functions};
pub use describe::{describe, difference};
pub use header::header;
pub use limits::Limits;
pub use load::load;
pub use notes::{SECTION, extract};
pub use parse::parse;
pub use places::Permission;
pub use resolve::{EntryPoint, Resolved, resolve, resolve_all};
pub use source::{Error, Source, Span, nearest};
