//! Programs that are given to commands as files: bytes of instructions, text, or object files.

use std::io::Read;
use std::path::Path;

use ring3_btf::KERNEL_BTF;
use ring3_isa::{Insn, assemble, assemble_mnemonics, decode};
use ring3_object::{Error, Kernel, Object, Settings};
use ring3_uapi::helper::OWN_NAMES;

/// Assembler languages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Syntax {
    /// That of the kernel and LLVM: `r0 = 1`
    #[default]
    Kernel,
    /// That of ubpf, rbpf and bpf_conformance: `mov %r0, 1`
    Ubpf,
}

impl Syntax {
    pub(crate) fn assemble(self, text: &str) -> Result<Vec<Insn>, String> {
        match self {
            Syntax::Kernel => assemble(text),
            Syntax::Ubpf => assemble_mnemonics(text),
        }
        .map_err(|error| error.to_string())
    }
}

/// What is in a file.
pub(crate) enum Input {
    Object(Box<Object>),
    Insns(Vec<Insn>),
}

/// A file's bytes; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    if path == Path::new("-") {
        let mut bytes = vec![];
        return match std::io::stdin().read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(format!("cannot read standard input: {error}")),
        };
    }
    std::fs::read(path).map_err(|error| {
        let advice = match error.kind() {
            std::io::ErrorKind::NotFound => "; correct the name",
            std::io::ErrorKind::IsADirectory => "; name a file in it",
            std::io::ErrorKind::PermissionDenied => "; run ring3 as a user who may read it",
            _ => "",
        };
        format!("cannot read {}: {error}{advice}", path.display())
    })
}

/// Pairs of hexadecimal digits, perhaps with space between them; `None` if it is anything else.
pub(crate) fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

/// Reads a program: an object file, instructions as bytes or as hexadecimal digits, or assembler text.
pub(crate) fn program(path: &Path, syntax: Syntax) -> Result<Input, String> {
    let bytes = read(path)?;
    let fail = |why: String| format!("{}: {why}", path.display());
    if bytes.starts_with(b"\x7fELF") {
        let kernel = kernel(Path::new(KERNEL_BTF)).unwrap_or_else(|_| Kernel::without_types());
        return object(path, &bytes, &kernel).map(|object| Input::Object(Box::new(object)));
    }
    let insns = match std::str::from_utf8(&bytes).ok().filter(|text| !text.contains('\0')) {
        None => decode(&bytes).ok_or("the length is not a multiple of 8 bytes, an instruction's size".to_owned()),
        Some(text) => match hexadecimal(text) {
            Some(bytes) => decode(&bytes)
                .ok_or("the number of hexadecimal digits is not a multiple of 16, an instruction's size".into()),
            None => syntax.assemble(text).map_err(|why| format!("not an ELF file, so read as assembler text; {why}")),
        },
    };
    insns.map_err(fail).map(Input::Insns)
}

/// Reads an object file, for a kernel.
pub(crate) fn object(path: &Path, bytes: &[u8], kernel: &Kernel) -> Result<Object, String> {
    Object::load(bytes, kernel, &settings()).map_err(|error| {
        let path = path.display();
        match &error {
            Error::NoSymbol(name) if is_of_extensions(name) => format!(
                "{path}: {name} is a function that ring3 has for extensions, and a class says what an extension may do: \
                 `ring3 extend --class POLICY:CLASS {path} -- PROGRAM` verifies and runs it"
            ),
            Error::NoSymbol(_) => format!(
                "{path}: {error}; if the program extends another one that has it, \
                 `ring3 extend --class POLICY:CLASS {path} -- PROGRAM` verifies and runs it"
            ),
            _ => format!("{path}: {error}"),
        }
    })
}

/// Whether a function is one that ring3 has, and the kernel does not.
fn is_of_extensions(name: &str) -> bool {
    name.strip_prefix("ring3_").is_some_and(|name| OWN_NAMES.contains(&name))
}

/// A kernel's types, from a file.
pub(crate) fn kernel(path: &Path) -> Result<Kernel, String> {
    let types = read(path).map_err(|why| format!("{why}; name a kernel's types with --btf FILE"))?;
    Kernel::parse(types).map_err(|error| format!("{}: {error}", path.display()))
}

/// What programs can ask of this machine's kernel.
pub(crate) fn settings() -> Settings {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open("/proc/config.gz") {
        let _ = flate2::read::GzDecoder::new(file).read_to_string(&mut text);
    }
    Settings::of_kernel(&release, &text)
}

/// That an object file has no such program.
pub(crate) fn no_program(file: &Path, object: &Object, name: &str) -> String {
    let names: Vec<&str> = object.programs.iter().map(|program| program.name.as_str()).collect();
    format!("{} has no program {name}; choose one of these with --program: {}", file.display(), names.join(", "))
}
