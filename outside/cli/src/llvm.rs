//! The program `ring3-llvm`: LLVM, for the server and `ring3 exec` (`outside/engine/src/process.rs`).
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ring3_llvm::run()
}
