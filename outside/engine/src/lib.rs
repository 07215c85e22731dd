//! The choice of who compiles a program, and the optimising tier: programs to machine code by LLVM, if it is installed.
//!
//! Runs: in the server and in `ring3 exec`, once per program.
//! May touch: the program; the process in which LLVM runs.
//! Never: compiles what is not [`Verified`]; says again what BPF means (that is `ring3_jit::Translation`).
//! Start reading at: `compile_with`, then `text.rs`.
#![forbid(unsafe_code)]

mod place;
mod process;
mod text;

use std::fmt;
use std::time::Duration;

use ring3_isa::{Op, op};
use ring3_jit::{Code, Error, Options};
use ring3_verifier::Verified;
use serde::{Deserialize, Serialize};

/// Why LLVM does nothing, and what to do about it.
pub const NO_LLVM: &str = "this ring3 is without LLVM: there is no program `ring3-llvm` beside it; where Debian's llvm-19-dev is \
     installed, `cargo build --release --package ring3-cli --features llvm` builds it";
/// Instructions of a program, at most, that [`Engine::Auto`] gives to LLVM: each takes it some 35 us, and the tool waits.
const AUTO_INSNS_MAX: usize = 4096;
/// LLVM takes so long at most, and for each instruction so much more: much longer than on a slow and busy machine.
const TIME_MAX: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(1));

/// Who compiles a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    /// LLVM if it is installed and the program has loops, else Cranelift.
    #[default]
    Auto,
    /// Cranelift.
    Jit,
    /// LLVM.
    Llvm,
}

impl Engine {
    /// Compiles a program. Who did it is the second part of the result, and not `Auto`.
    ///
    /// # Errors
    /// [`NO_LLVM`], and defects of ours. What LLVM cannot do without being asked for, Cranelift does.
    pub fn compile(self, program: &Verified, options: &Options) -> Result<(Code, Engine), Error> {
        let by_cranelift = || Ok((ring3_jit::compile(program, options)?, Engine::Jit));
        match self {
            Engine::Jit => by_cranelift(),
            Engine::Llvm => Ok((compile(program, options)?, Engine::Llvm)),
            Engine::Auto if program.insns().len() <= AUTO_INSNS_MAX && has_loops(program) && has_llvm() => {
                compile(program, options).map(|code| (code, Engine::Llvm)).or_else(|error| {
                    tracing::warn!("Cranelift compiles a program instead of LLVM: {error}");
                    by_cranelift()
                })
            }
            Engine::Auto => by_cranelift(),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Auto => "auto",
            Engine::Jit => "jit",
            Engine::Llvm => "llvm",
        })
    }
}

/// Whether the program jumps back somewhere: only then is there time to win.
fn has_loops(program: &Verified) -> bool {
    (0..program.insns().len()).filter(|at| program.is_live(*at)).any(|at| match op(program.insns(), at) {
        Ok(Op::Ja(target) | Op::Jump { target, .. }) => target <= at && program.is_live(target),
        _ => false,
    })
}

/// Whether LLVM is installed: the program `ring3-llvm`, beside the running one.
pub fn has_llvm() -> bool {
    process::program().is_some()
}

/// Compiles a program with LLVM.
///
/// # Errors
/// [`NO_LLVM`], or LLVM failed or made what it must not: a defect of ours.
pub fn compile(program: &Verified, options: &Options) -> Result<Code, Error> {
    let llvm = process::program().ok_or_else(|| Error::new(NO_LLVM.to_owned()))?;
    let limit = TIME_MAX.0 + TIME_MAX.1 * program.insns().len() as u32;
    compile_with(program, options, |text| process::object(&llvm, text, limit))
}

/// Compiles a program, with something that makes an object file of LLVM's text.
///
/// # Errors
/// Those of `object`, and what code must not have.
pub fn compile_with(
    program: &Verified,
    options: &Options,
    object: impl FnOnce(&str) -> Result<Vec<u8>, String>,
) -> Result<Code, Error> {
    let module = text::Module::of(&ring3_jit::Translation::new(program, options));
    let code = object(&module.text).and_then(|file| place::code(&file, &module.outside, program.insns().len()));
    code.map_err(|why| Error::new(format!("LLVM: {why}")))
}
