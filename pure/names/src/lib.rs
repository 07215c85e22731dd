//! Names of compiled programs: which function and which source line an address belongs to, for people and their tools.
//!
//! Runs: in the server and in `ring3 aot`, once per program.
//! May touch: the code and the BTF it is given.
//! Never: does I/O; trusts offsets in BTF records.
//! Start reading at: `Names::of`; `elf.rs` writes what gdb, perf and linkers read.
#![forbid(unsafe_code)]

mod dwarf;
pub mod elf;

use ring3_btf::Btf;
use ring3_isa::{Immediate, Insn, Op, op};
use ring3_jit::Code;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What is known of a program's source.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The program's name, for functions of which BTF knows none.
    pub name: &'a str,
    /// Its instructions.
    pub insns: &'a [Insn],
    /// First instructions of its subprograms, in the order of [`Code::functions`].
    pub starts: &'a [u32],
    /// Its types.
    pub btf: Option<&'a Btf>,
    /// `struct bpf_func_info`: instruction and type.
    pub functions: &'a [[u32; 2]],
    /// `struct bpf_line_info`: instruction, file, line, line and column.
    pub lines: &'a [[u32; 4]],
}

/// How functions are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As in the source.
    Plain,
    /// `bpf_prog_<tag>_<name>`, as kernel/bpf/core.c:bpf_get_prog_name has it.
    Kernel,
}

/// A line of source code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Path of the file, as the compiler was told it.
    pub file: String,
    /// From 1 on.
    pub line: u32,
    /// From 1 on; 0: unknown.
    pub column: u32,
}

/// A function in the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Where it begins.
    pub offset: u32,
    /// Bytes, with the padding behind it.
    pub bytes: u32,
}

/// Code from an offset on, to the next row or the function's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Where it begins.
    pub offset: u32,
    /// Index in [`Names::files`].
    pub file: u32,
    /// From 1 on.
    pub line: u32,
    /// From 1 on; 0: unknown.
    pub column: u32,
}

/// The names of a piece of code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// By offset.
    pub functions: Vec<Function>,
    /// Paths, each once.
    pub files: Vec<String>,
    /// By offset.
    pub rows: Vec<Row>,
    /// Code offset and instruction index, by offset. (Stays in the process.)
    #[serde(skip)]
    pub insns: Vec<(u32, u32)>,
}

/// A program's tag: kernel/bpf/core.c:bpf_prog_calc_tag (v6.18), the first 8 bytes of the SHA-256 of its instructions
/// without the numbers of its maps' descriptors.
pub fn tag(insns: &[Insn]) -> [u8; 8] {
    let mut digest = Sha256::new();
    let mut second = false;
    for (at, insn) in insns.iter().enumerate() {
        let of_map =
            matches!(op(insns, at), Ok(Op::LoadImm64 { value: Immediate::MapFd(_) | Immediate::MapValue(..), .. }));
        let insn = if of_map || second { Insn { imm: 0, ..*insn } } else { *insn };
        second = of_map;
        digest.update(insn.to_bytes());
    }
    digest.finalize()[..8].try_into().expect("8 of 32 bytes")
}

/// The line that a record tells of. Mirrors `BPF_LINE_INFO_LINE_NUM` and `BPF_LINE_INFO_LINE_COL`.
pub fn line(btf: &Btf, record: [u32; 4]) -> Option<Line> {
    const COLUMN_BITS: u32 = 10;
    let [_, file, _, place] = record;
    let file = btf.text(file).filter(|text| !text.is_empty())?;
    let file = String::from_utf8_lossy(file).into_owned();
    Some(Line { file, line: place >> COLUMN_BITS, column: place & ((1 << COLUMN_BITS) - 1) })
}

impl Source<'_> {
    /// The line that an instruction comes from.
    fn line(&self, insn: u32) -> Option<Line> {
        let after = self.lines.partition_point(|record| record[0] <= insn);
        line(self.btf?, *self.lines.get(after.checked_sub(1)?)?)
    }

    /// The name of a subprogram in the source.
    fn function(&self, index: usize) -> Option<String> {
        let start = self.starts.get(index)?;
        let [_, of] = self.functions.iter().find(|[insn, _]| insn == start)?;
        let name = self.btf?.name_of(*of);
        (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
    }

    fn name(&self, index: usize, style: Style) -> String {
        let start = self.starts.get(index).map_or(0, |start| *start as usize);
        let end = self.starts.get(index + 1).map_or(self.insns.len(), |end| *end as usize);
        let name = self.function(index);
        match (style, index) {
            (Style::Plain, 0) => name.unwrap_or_else(|| self.name.to_owned()),
            (Style::Plain, _) => name.unwrap_or_else(|| format!("{}.{start}", self.name)),
            (Style::Kernel, _) => {
                let of = if index == 0 { self.insns } else { self.insns.get(start..end).unwrap_or_default() };
                let tag: String = tag(of).iter().map(|byte| format!("{byte:02x}")).collect();
                // Functions without a name are `F` in the kernel (kernel/bpf/verifier.c:jit_subprogs).
                let unnamed = if index == 0 { self.name } else { "F" };
                match name.as_deref().unwrap_or(unnamed) {
                    "" => format!("bpf_prog_{tag}"),
                    name => format!("bpf_prog_{tag}_{name}"),
                }
            }
        }
    }
}

impl Names {
    /// The names of a program's code. The body of a program that begins elsewhere (it has tail calls) has `.body` behind
    /// its name in the plain style, since the name is what is called; in the kernel's, that beginning has `.entry`.
    pub fn of(code: &Code, source: &Source<'_>, style: Style) -> Names {
        let end = code.bytes.len() as u32;
        let mut names = Names { insns: code.pc_map.clone(), ..Names::default() };
        for (index, offset) in code.functions.iter().enumerate() {
            let next = code.functions.get(index + 1).copied().unwrap_or(end);
            let is_entry = *offset == code.entry && code.entry != 0;
            let mut name = source.name(if is_entry { 0 } else { index }, style);
            match style {
                Style::Kernel if is_entry => name.push_str(".entry"),
                Style::Plain if index == 0 && code.entry != 0 => name.push_str(".body"),
                _ => {}
            }
            names.functions.push(Function { name, offset: *offset, bytes: next - offset });
            if !is_entry {
                let first = source.starts.get(index).and_then(|start| source.line(*start));
                names.add(*offset, first);
                let from = code.pc_map.partition_point(|(at, _)| at < offset);
                for (at, insn) in code.pc_map[from..].iter().take_while(|(at, _)| *at < next) {
                    names.add(*at, source.line(*insn));
                }
            }
        }
        names
    }

    fn add(&mut self, offset: u32, line: Option<Line>) {
        let Some(Line { file, line, column }) = line else { return };
        let known = self.files.iter().position(|other| *other == file);
        let file = known.unwrap_or_else(|| {
            self.files.push(file);
            self.files.len() - 1
        }) as u32;
        let row = Row { offset, file, line, column };
        match self.rows.last_mut() {
            Some(last) if (last.file, last.line, last.column) == (file, line, column) => {}
            Some(last) if last.offset == offset => *last = row,
            _ => self.rows.push(row),
        }
    }

    /// The index of the instruction that the code at an offset was made of.
    pub fn insn_at(&self, offset: u32) -> Option<u32> {
        let after = self.insns.partition_point(|(at, _)| *at <= offset);
        Some(self.insns.get(after.checked_sub(1)?)?.1)
    }

    /// The line of the code at an offset.
    pub fn line_at(&self, offset: u32) -> Option<Line> {
        let after = self.rows.partition_point(|row| row.offset <= offset);
        let row = self.rows.get(after.checked_sub(1)?)?;
        Some(Line { file: self.files.get(row.file as usize)?.clone(), line: row.line, column: row.column })
    }
}
