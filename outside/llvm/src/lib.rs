//! LLVM: text to an object file.
//!
//! Runs: in the program `ring3-llvm`, once per process; in tests.
//! May touch: its standard input and output.
//! Never: becomes part of the program `ring3`, which would load LLVM at each start.
//! Start reading at: `run`.
#![forbid(unsafe_code)]

#[cfg(feature = "llvm")]
mod optimise;

#[cfg(feature = "llvm")]
pub use optimise::{object, run};

/// Whether LLVM was built in.
pub const IS_BUILT: bool = cfg!(feature = "llvm");

/// Says that there is no LLVM.
///
/// # Errors
/// Always.
#[cfg(not(feature = "llvm"))]
pub fn object(_text: &str) -> Result<Vec<u8>, String> {
    Err("built without LLVM".to_owned())
}
