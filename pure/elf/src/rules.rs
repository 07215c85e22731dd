//! From `.eh_frame` to the compact tables of `ring3_unwind`.

use std::collections::HashMap;
use std::fmt;

use gimli::{
    CfaRule, EhFrame, EndianSlice, LittleEndian, Reader, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindTableRow, X86_64,
};
use ring3_unwind::{BLOCK_BYTES, RULES_MAX, Rule, Shape};
use zerocopy::IntoBytes;

use crate::File;
use crate::unwind::{Description, Entries, descriptions};

/// Rows of one file that are made at most.
pub const ROWS_MAX: usize = 1 << 22;
/// Bytes of code from the first described function's start to the last one's end, at most.
pub const CODE_BYTES_MAX: u64 = 1 << 30;

/// The table of a file, and what shows that a process has this file's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindTable {
    /// Address in the file's address space of the first byte that the table tells of.
    pub start: u64,
    /// The table (`ring3_unwind`).
    pub bytes: Vec<u8>,
    /// Address of a word of the file's unwind information, which is mapped with the code.
    pub witness_at: u64,
    /// That word. The unwind information of two files is hardly ever the same there.
    pub witness: u64,
}

/// Why a file has no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTable {
    /// It has no `.eh_frame`, or none that describes its code.
    NoInformation,
    /// `.eh_frame` is not in memory.
    NotMapped,
    /// It is larger than [`ROWS_MAX`], [`CODE_BYTES_MAX`] or the limit on the bytes of descriptions allow.
    TooLarge,
}

impl fmt::Display for NoTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoTable::NoInformation => "it has no unwind information",
            NoTable::NotMapped => "its unwind information is not in memory",
            NoTable::TooLarge => "its unwind information is too large",
        })
    }
}

/// A piece of code with one rule.
struct Span {
    start: u64,
    end: u64,
    rule: Rule,
}

/// The table of a file.
pub(crate) fn table(file: &File<'_>) -> Result<UnwindTable, NoTable> {
    let (witness_at, witness) = witness(file)?;
    let mut spans = spans(file)?;
    // (The order of what begins at the same place is the file's.)
    spans.sort_by_key(|span| span.start);
    let (Some(first), Some(last)) = (spans.first(), spans.iter().map(|span| span.end).max()) else {
        return Err(NoTable::NoInformation);
    };
    let start = first.start / BLOCK_BYTES * BLOCK_BYTES;
    if last - start > CODE_BYTES_MAX {
        return Err(NoTable::TooLarge);
    }
    Ok(UnwindTable {
        start,
        bytes: write(&rows(&spans, start), (last - start).div_ceil(BLOCK_BYTES)),
        witness_at,
        witness,
    })
}

/// A word in the middle of `.eh_frame`, and its address.
fn witness(file: &File<'_>) -> Result<(u64, u64), NoTable> {
    let (bytes, address) = file.section(".eh_frame").ok_or(NoTable::NoInformation)?;
    let at = bytes.len() / 2 / 8 * 8;
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(NoTable::NoInformation)?;
    let witness_at = address.checked_add(at as u64).ok_or(NoTable::NotMapped)?;
    let is_there = |(start, bytes, _): (u64, &[u8], bool)| {
        witness_at.checked_sub(start).and_then(|at| bytes.get(at as usize..)?.first_chunk()) == Some(word)
    };
    file.parts().any(is_there).then_some((witness_at, u64::from_le_bytes(*word))).ok_or(NoTable::NotMapped)
}

/// All that is described, in the file's order.
fn spans(file: &File<'_>) -> Result<Vec<Span>, NoTable> {
    let executable = file.executable_segments();
    let mut context = UnwindContext::new();
    let mut spans: Vec<Span> = vec![];
    let is_whole = descriptions(file, |entries, fde| {
        let (start, end) = (fde.initial_address(), fde.initial_address().checked_add(fde.len()));
        let Some(end) = end.filter(|end| *end > start) else { return };
        if spans.len() <= ROWS_MAX && executable.iter().any(|code| code.start <= start && end <= code.end) {
            describe(entries, fde, start..end, &mut context, &mut spans);
        }
    });
    if spans.len() > ROWS_MAX || !is_whole { Err(NoTable::TooLarge) } else { Ok(spans) }
}

fn describe<'a>(
    entries: &Entries<'a>,
    fde: &Description<'a>,
    code: std::ops::Range<u64>,
    context: &mut UnwindContext<usize>,
    spans: &mut Vec<Span>,
) {
    let is_signal = fde.is_signal_trampoline();
    let mut done = code.start;
    if let Ok(mut rows) = fde.rows(&entries.table, &entries.bases, context) {
        while let Ok(Some(row)) = rows.next_row() {
            let (start, end) = (row.start_address().max(done), row.end_address().min(code.end));
            if start < end && spans.len() <= ROWS_MAX {
                spans.push(Span { start, end, rule: rule(&entries.table, row, is_signal) });
                done = end;
            }
        }
    }
    if done < code.end {
        // (What is not understood.)
        spans.push(Span { start: done, end: code.end, rule: Rule::end() });
    }
}

/// What a row says.
fn rule(table: &EhFrame<EndianSlice<'_, LittleEndian>>, row: &UnwindTableRow<usize>, is_signal: bool) -> Rule {
    let bytes_of = |expression: &UnwindExpression<usize>| {
        let bytes = expression.get(table).ok()?;
        Some(bytes.0.slice())
    };
    let address_of = |register| match row.register(register) {
        RegisterRule::Expression(expression) => bytes_of(&expression).and_then(address),
        _ => None,
    };
    let loaded = match row.cfa() {
        CfaRule::Expression(expression) => bytes_of(expression).and_then(cfa_expression),
        CfaRule::RegisterAndOffset { register, offset } => plain(*register, *offset),
    };
    if is_signal {
        // glibc/sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c says so by expressions of the stack pointer.
        let is_ucontext = address_of(X86_64::RA) == Some((X86_64::RSP, 168))
            && address_of(X86_64::RBP) == Some((X86_64::RSP, 120))
            && address_of(X86_64::RBX) == Some((X86_64::RSP, 128))
            && loaded.is_some_and(|rule| {
                (rule.kind, rule.base, rule.offset, rule.more) == (Rule::LOADED, Rule::RSP, 160, 0)
            });
        return if is_ucontext { Rule::signal() } else { Rule::end() };
    }
    let Some(mut rule) = loaded.filter(|_| row.register(X86_64::RA) == RegisterRule::Offset(-8)) else {
        return Rule::end();
    };
    let saved = |register| match row.register(register) {
        RegisterRule::Undefined | RegisterRule::SameValue => (Rule::SAME, 0),
        RegisterRule::Offset(offset) => words(offset).map_or((Rule::LOST, 0), |at| (Rule::FROM_CFA, at)),
        RegisterRule::Expression(_) => match address_of(register) {
            Some((X86_64::RBP, offset)) => words(offset).map_or((Rule::LOST, 0), |at| (Rule::FROM_RBP, at)),
            _ => (Rule::LOST, 0),
        },
        _ => (Rule::LOST, 0),
    };
    (rule.rbp, rule.rbp_at) = saved(X86_64::RBP);
    (rule.rbx, rule.rbx_at) = saved(X86_64::RBX);
    rule
}

fn words(offset: i64) -> Option<i16> {
    (offset % 8 == 0).then(|| i16::try_from(offset / 8).ok()).flatten()
}

fn base(register: Register) -> Option<u8> {
    match register {
        X86_64::RSP => Some(Rule::RSP),
        X86_64::RBP => Some(Rule::RBP),
        X86_64::RBX => Some(Rule::RBX),
        _ => None,
    }
}

/// The CFA is register + offset.
fn plain(register: Register, offset: i64) -> Option<Rule> {
    let base = base(register)?;
    // (The return address lies below the CFA, and not below the stack pointer.)
    let is_above = base != Rule::RSP || offset >= 8;
    let offset = i32::try_from(offset).ok().filter(|_| is_above)?;
    Some(Rule { kind: Rule::PLAIN, base, offset, ..Rule::none() })
}

/// The CFA by the expressions that compilers, linkers and written code have: a word of the stack plus a number; a procedure linkage
/// table.
fn cfa_expression(bytes: &[u8]) -> Option<Rule> {
    const DEREF: u8 = 0x06;
    const PLUS_UCONST: u8 = 0x23;
    // Bytes 8 of `rsp` are added to 8 times (rip & 15 >= n): lit15, and, lit<n>, ge, lit3, shl, plus.
    if let [0x77, 8, 0x80, 0, 0x3f, 0x1a, from @ 0x30..=0x4f, 0x2a, 0x33, 0x24, 0x22] = bytes {
        let more = i32::from(from - 0x30);
        return Some(Rule { kind: Rule::LINKAGE, base: Rule::RSP, offset: 8, more, ..Rule::none() });
    }
    let mut reader = EndianSlice::new(bytes, LittleEndian);
    let (register, offset) = based(&mut reader)?;
    if reader.read_u8().ok()? != DEREF {
        return None;
    }
    let more = match reader.read_u8().ok() {
        None => 0,
        Some(PLUS_UCONST) => i32::try_from(reader.read_uleb128().ok()?).ok()?,
        Some(_) => return None,
    };
    let offset = i32::try_from(offset).ok().filter(|_| reader.is_empty())?;
    Some(Rule { kind: Rule::LOADED, base: base(register)?, offset, more, ..Rule::none() })
}

/// An address by an expression that is nothing but register + offset.
fn address(bytes: &[u8]) -> Option<(Register, i64)> {
    let mut reader = EndianSlice::new(bytes, LittleEndian);
    based(&mut reader).filter(|_| reader.is_empty())
}

/// `DW_OP_breg<n>`, which is register + offset.
fn based(reader: &mut EndianSlice<'_, LittleEndian>) -> Option<(Register, i64)> {
    const BREG0: u8 = 0x70;
    let register = reader.read_u8().ok()?.checked_sub(BREG0).filter(|register| *register < 32)?;
    Some((Register(u16::from(register)), reader.read_sleb128().ok()?))
}

/// Where the rule changes, from the table's start on.
fn rows(spans: &[Span], start: u64) -> Vec<(u64, Rule)> {
    let mut rows: Vec<(u64, Rule)> = vec![];
    let mut put = |at: u64, rule: Rule| {
        if rows.last().is_none_or(|(_, last)| *last != rule) {
            rows.push((at - start, rule));
        }
    };
    let mut done = start;
    for span in spans.iter().filter(|span| span.start < span.end) {
        // (Of functions that overlap the first one wins.)
        let from = span.start.max(done);
        if from >= span.end {
            continue;
        }
        if from > done || done == start {
            put(done, Rule::none());
        }
        put(from, span.rule);
        done = span.end;
    }
    put(done, Rule::none());
    rows
}

/// The table's bytes, of so many blocks.
fn write(rows: &[(u64, Rule)], blocks: u64) -> Vec<u8> {
    let mut rules: Vec<Rule> = vec![Rule::none(), Rule::end()];
    let mut known: HashMap<Rule, u16> = HashMap::from([(Rule::none(), 0), (Rule::end(), 1)]);
    let (mut index, mut names, mut starts) = (Vec::<u32>::new(), Vec::<u16>::new(), Vec::<u8>::new());
    let mut rest = rows.iter().peekable();
    let mut name = 0;
    for block in 0..blocks {
        index.push(names.len() as u32);
        let mut is_begun = false;
        while let Some((at, rule)) = rest.next_if(|(at, _)| at / BLOCK_BYTES == block) {
            let start = (at % BLOCK_BYTES) as u8;
            if !is_begun && start != 0 {
                names.push(name);
                starts.push(0);
            }
            is_begun = true;
            name = known.get(rule).copied().unwrap_or_else(|| {
                // (Where there are too many, stacks end.)
                let number = if rules.len() < RULES_MAX { rules.len() as u16 } else { return 1 };
                rules.push(*rule);
                known.insert(*rule, number);
                number
            });
            names.push(name);
            starts.push(start);
        }
        if !is_begun {
            names.push(name);
            starts.push(0);
        }
    }
    index.push(names.len() as u32);
    let shape =
        Shape { blocks: blocks as u32, rows: names.len() as u32, rules: rules.len() as u32, ..Shape::default() };
    let parts = [shape.as_bytes(), rules.as_bytes(), index.as_bytes(), names.as_bytes(), &starts];
    parts.concat()
}
