//! `ring3 asm` and `ring3 disasm`: text to instructions and back.

use std::path::PathBuf;

use clap::Args;
use ring3_isa::{Insn, encode, listing, text};

use crate::input::{self, Input, Syntax};
use crate::show::write_out;

/// `ring3 asm`
#[derive(Debug, Args)]
pub(crate) struct Assemble {
    /// The assembler text; `-` is standard input
    file: PathBuf,
    /// The language of the text
    #[arg(long, value_enum, default_value_t)]
    syntax: Syntax,
    /// Write the instructions as bytes to this file, instead of hexadecimal digits to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// `ring3 disasm`
#[derive(Debug, Args)]
pub(crate) struct Disassemble {
    /// Instructions as bytes or hexadecimal digits, or a BPF object file; `-` is standard input
    file: PathBuf,
    /// Print only this program of an object file
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Print what `ring3 asm` assembles to the same instructions, without numbers and opcodes
    #[arg(long)]
    plain: bool,
}

pub(crate) fn assemble(wanted: &Assemble) -> Result<(), String> {
    let text = input::read(&wanted.file)?;
    let text = String::from_utf8(text)
        .map_err(|_| format!("{} is not text (UTF-8); `ring3 disasm` reads instructions", wanted.file.display()))?;
    let insns = wanted.syntax.assemble(&text).map_err(|why| format!("{}: {why}", wanted.file.display()))?;
    match &wanted.output {
        Some(path) => {
            std::fs::write(path, encode(&insns)).map_err(|error| format!("cannot write {}: {error}", path.display()))
        }
        None => write_out(&insns.iter().map(|insn| hexadecimal(*insn) + "\n").collect::<String>()),
    }
}

fn hexadecimal(insn: Insn) -> String {
    insn.to_bytes().map(|byte| format!("{byte:02x}")).join(" ")
}

pub(crate) fn disassemble(wanted: &Disassemble) -> Result<(), String> {
    let listed = |insns: &[Insn]| if wanted.plain { listing(insns) } else { numbered(insns) };
    match input::program(&wanted.file, Syntax::Kernel)? {
        Input::Insns(insns) => write_out(&listed(&insns)),
        Input::Object(object) => {
            let comment = if wanted.plain { "; " } else { "" };
            let is_wanted = |name: &str| wanted.program.as_deref().is_none_or(|wanted| wanted == name);
            let programs = object.programs.iter().filter(|program| is_wanted(&program.name));
            let text: String = programs
                .map(|program| format!("{comment}{}: {}\n{}", program.section, program.name, listed(&program.insns)))
                .collect();
            match &wanted.program {
                Some(name) if text.is_empty() => Err(input::no_program(&wanted.file, &object, name)),
                _ => write_out(&text),
            }
        }
    }
}

/// As `bpftool prog dump xlated` writes it.
fn numbered(insns: &[Insn]) -> String {
    let mut lines = String::new();
    let mut at = 0;
    while let Some(insn) = insns.get(at) {
        lines += &format!("{at:4}: ({:02x}) {}\n", insn.opcode, text(insns, at));
        at += if insn.is_wide() { 2 } else { 1 };
    }
    lines
}
