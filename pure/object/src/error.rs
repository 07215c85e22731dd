//! Why an object cannot be made ready.

use std::fmt;

/// Why an object cannot be made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not a little-endian ELF file of BPF code.
    NotBpf,
    /// The file contradicts itself.
    Corrupt(String),
    /// The file asks for what is not known.
    Unsupported(String),
    /// This kernel has not what the file demands.
    Missing(String),
    /// Nor this function or variable.
    NoSymbol(String),
}

impl Error {
    pub(crate) fn corrupt(what: impl Into<String>) -> Error {
        Error::Corrupt(what.into())
    }

    pub(crate) fn types(what: &str) -> Error {
        Error::Corrupt(format!("types: {what}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotBpf => write!(f, "not a BPF object file (ELF for BPF, as `clang -target bpf -c` writes it)"),
            Error::Corrupt(why) => write!(f, "corrupt BPF object file: {why}"),
            Error::Unsupported(what) => write!(f, "unsupported: {what}"),
            Error::Missing(what) => write!(f, "the kernel has no {what}"),
            Error::NoSymbol(name) => write!(f, "the kernel has no symbol {name}"),
        }
    }
}

impl std::error::Error for Error {}
