//! Compiles the tests' program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use ring3_btf::Btf;
use ring3_eim::model::Specification;
use ring3_eim::{Binary, parse};

/// A directory that is removed at the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ring3-eim-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory for the tests");
        Scratch(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a tool, which has to succeed.
pub(crate) fn run(command: &[&str]) -> Vec<u8> {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", command[0]));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A file of this crate.
pub(crate) fn file(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).to_str().expect("a path that is text").to_owned()
}

/// Compiles C; the bytes of what comes out.
pub(crate) fn compile(source: &str, command: &[&str]) -> Vec<u8> {
    let scratch = Scratch::new();
    let output = scratch.path("out");
    let mut all = command.to_vec();
    all.extend([source, "-o", output.to_str().expect("a path that is text")]);
    run(&all);
    std::fs::read(output).expect("the compiler writes a file")
}

/// The tests' program.
pub(crate) fn host(command: &[&str]) -> Vec<u8> {
    compile(&file("tests/host.c"), command)
}

pub(crate) fn specification() -> Specification {
    let text = std::fs::read_to_string(file("tests/host.eim")).expect("the specification");
    parse("host.eim", &text).unwrap_or_else(|errors| panic!("{}", errors[0]))
}

/// The specification with something more.
pub(crate) fn with(more: &str) -> Specification {
    let mut all = specification();
    all.add(parse("more.eim", more).unwrap_or_else(|errors| panic!("{}", errors[0])));
    all
}

/// Types as clang writes them for BPF.
pub(crate) fn btf() -> Btf {
    let bytes = host(&["clang", "-target", "bpf", "-g", "-O1", "-c", "-D__thread=", "-Ddouble=long"]);
    let binary = Binary::read(("host.bpf.o", &bytes), None, &specification());
    binary.unwrap_or_else(|error| panic!("{error}")).types
}

/// The program with these flags.
pub(crate) fn binary(flags: &[&str], specification: &Specification) -> Binary {
    let bytes = host(flags);
    Binary::read(("host", &bytes), None, specification).unwrap_or_else(|error| panic!("{error}"))
}
