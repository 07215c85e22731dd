//! The optimising tier: programs to machine code by LLVM, if ring3 was built with it, and the choice of who compiles one.
//!
//! Runs: in the server and in `ring3 exec`, once per program.
//! May touch: the program.
//! Never: compiles what is not [`Verified`]; says again what BPF means (that is `ring3_jit::Translation`).
//! Start reading at: `compile`, then `text.rs`.
#![forbid(unsafe_code)]

#[cfg(feature = "llvm")]
mod optimise;
#[cfg(feature = "llvm")]
mod place;
#[cfg(feature = "llvm")]
mod text;

use std::fmt;

use ring3_isa::{Op, op};
use ring3_jit::{Code, Error, Options};
use ring3_verifier::Verified;
use serde::{Deserialize, Serialize};

/// Whether LLVM was built in.
pub const IS_BUILT: bool = cfg!(feature = "llvm");
/// Why LLVM does nothing, and what to do about it.
pub const NOT_BUILT: &str = "this ring3 was built without LLVM; where Debian's llvm-19-dev is installed, \
     `cargo build --release --package ring3-cli --features llvm` builds it in";
/// Instructions of a program, at most, that [`Engine::Auto`] gives to LLVM: each takes it some 35 us, and the tool waits.
const AUTO_INSNS_MAX: usize = 4096;

/// Who compiles a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    /// LLVM if it is built in and the program has loops, else Cranelift.
    #[default]
    Auto,
    /// Cranelift.
    Jit,
    /// LLVM.
    Llvm,
}

impl Engine {
    /// Who it is for this program: not `Auto`.
    pub fn chosen(self, program: &Verified) -> Engine {
        let is_worth = || IS_BUILT && program.insns().len() <= AUTO_INSNS_MAX && has_loops(program);
        match self {
            Engine::Auto if is_worth() => Engine::Llvm,
            Engine::Auto => Engine::Jit,
            named => named,
        }
    }

    /// Compiles a program.
    ///
    /// # Errors
    /// Those of [`compile`], and defects of ours.
    pub fn compile(self, program: &Verified, options: &Options) -> Result<Code, Error> {
        match self.chosen(program) {
            Engine::Llvm => compile(program, options),
            _ => ring3_jit::compile(program, options),
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

/// Compiles a program with LLVM.
///
/// # Errors
/// ring3 was built without it, or LLVM made what it must not: a defect of ours.
#[cfg(feature = "llvm")]
pub fn compile(program: &Verified, options: &Options) -> Result<Code, Error> {
    let module = text::Module::of(&ring3_jit::Translation::new(program, options), optimise::processor_name());
    let code = optimise::object(&module.text).and_then(|file| place::code(&file, &module.outside));
    code.map_err(|why| Error::new(format!("LLVM: {why}")))
}

/// Says that there is no LLVM.
///
/// # Errors
/// Always.
#[cfg(not(feature = "llvm"))]
pub fn compile(_program: &Verified, _options: &Options) -> Result<Code, Error> {
    Err(Error::new(NOT_BUILT.to_owned()))
}
