//! Why something cannot be loaded.

use std::fmt;

use ring3_uapi::Errno;

/// Why something cannot be loaded, or done with a map.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This machine or process cannot run programs: no memory, or a processor that lacks what is needed.
    Machine(ring3_run::Error),
    /// The object file is damaged, or wants what is not known or not there.
    Object(ring3_object::Error),
    /// The text or the bytes are no instructions.
    Instructions(String),
    /// The settings contradict themselves.
    Settings(String),
    /// The verifier refuses a program.
    Refused {
        /// The program's name.
        program: String,
        /// The instruction at fault.
        insn: Option<usize>,
        /// Why, in a sentence.
        message: String,
        /// The path to it, in the kernel's format.
        log: String,
    },
    /// The program cannot keep to the budget.
    Budget(String),
    /// The compiler failed: a defect of ring3.
    Compiler(ring3_jit::Error),
    /// A map cannot be made, or an operation on it failed.
    Map {
        /// The map's name.
        map: String,
        /// What was wrong.
        why: String,
    },
    /// There is no such program or map.
    NotFound(String),
}

impl Error {
    /// An operation on a map failed.
    pub(crate) fn operation(map: &str, errno: Errno) -> Error {
        Error::Map { map: map.to_owned(), why: errno.name().to_owned() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Machine(error) => error.fmt(f),
            Error::Object(ring3_object::Error::Missing(what)) => write!(f, "the application has no {what}"),
            Error::Object(ring3_object::Error::NoSymbol(name)) => write!(f, "the application has no symbol {name}"),
            Error::Object(error) => error.fmt(f),
            Error::Instructions(why) | Error::Settings(why) | Error::Budget(why) => f.write_str(why),
            Error::Refused { program, message, insn, .. } => {
                write!(f, "the verifier refuses the program {program}")?;
                match insn {
                    Some(insn) => write!(f, " at instruction {insn}: {message}"),
                    None => write!(f, ": {message}"),
                }
            }
            Error::Compiler(error) => write!(f, "the compiler failed: {error}"),
            Error::Map { map, why } => write!(f, "the map {map}: {why}"),
            Error::NotFound(what) => write!(f, "there is no {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<ring3_run::Error> for Error {
    fn from(error: ring3_run::Error) -> Error {
        Error::Machine(error)
    }
}

impl From<ring3_object::Error> for Error {
    fn from(error: ring3_object::Error) -> Error {
        Error::Object(error)
    }
}
