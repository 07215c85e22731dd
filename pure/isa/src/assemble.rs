//! Text to instructions: what [`crate::text`] writes, and what is easier to write by hand.
//!
//! ```text
//! ; comments begin with a semicolon or two slashes
//!     r1 = map[0]                 ; a map by index in fd_array; also map[idx:0], map[fd:3], map[0][0]+8
//!     r2 = 0x123456789 ll         ; 16 bytes; without `ll` a number is moved, and must fit
//!     if r0 == 0 goto out         ; a label, or pc+3, or +3
//!     call bpf_map_lookup_elem    ; a helper by name, by number (12) or by both (bpf_tail_call#12)
//!     call sub                    ; a subprogram, by label
//!     r2 = func sub               ; its address
//! out:
//!     exit
//! sub: .insn 0x95 0 0 0 0         ; opcode, destination, source, offset, immediate: whatever they are
//! ```

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use ring3_uapi::helper;

use crate::Insn;
use crate::code::{
    ADDR_SPACE_CAST, BPF_ABS, BPF_ALU, BPF_ALU64, BPF_ATOMIC, BPF_CALL, BPF_CALLX, BPF_EXIT, BPF_IND, BPF_JMP,
    BPF_JMP32, BPF_LD, BPF_LD_IMM64, BPF_LDX, BPF_MAY_GOTO, BPF_MEM, BPF_MEMSX, BPF_MOV_X, BPF_ST, BPF_STX, BPF_X,
};
use crate::text::RAW;

/// Why a text is not a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssembleError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for AssembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

pub(crate) type Parsed<T> = Result<T, String>;

/// Which field of an instruction the distance to a label goes into.
#[derive(Clone, Copy)]
pub(crate) enum Field {
    Off,
    Imm,
}

/// A label that is used.
struct Use<'a> {
    line: usize,
    at: usize,
    field: Field,
    label: &'a str,
}

pub(crate) struct Assembler<'a> {
    pub(crate) insns: Vec<Insn>,
    pub(crate) labels: BTreeMap<&'a str, usize>,
    uses: Vec<Use<'a>>,
    line: usize,
}

/// The program that a text describes.
pub fn assemble(text: &str) -> Result<Vec<Insn>, AssembleError> {
    Assembler::run(text, &[";", "//"], |assembler, cursor| assembler.instruction(cursor))
}

/// What is left of a line.
pub(crate) struct Cursor<'a>(pub(crate) &'a str);

impl<'a> Cursor<'a> {
    pub(crate) fn eat(&mut self, symbol: &str) -> bool {
        self.0 = self.0.trim_start();
        let rest = self.0.strip_prefix(symbol);
        if let Some(rest) = rest {
            self.0 = rest;
        }
        rest.is_some()
    }

    pub(crate) fn want(&mut self, symbol: &str) -> Parsed<()> {
        if self.eat(symbol) { Ok(()) } else { Err(format!("`{symbol}` is missing before `{}`", self.0)) }
    }

    fn any<T: Copy>(&mut self, symbols: &[(&str, T)]) -> Option<T> {
        symbols.iter().find(|(symbol, _)| self.eat(symbol)).map(|(_, meaning)| *meaning)
    }

    /// Letters, digits and what else names have; not taken if there are none.
    pub(crate) fn word(&mut self) -> Option<&'a str> {
        self.0 = self.0.trim_start();
        let end = self.0.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')));
        let (word, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        (!word.is_empty()).then(|| {
            self.0 = rest;
            word
        })
    }

    pub(crate) fn keyword(&mut self, word: &str) -> bool {
        let before = self.0;
        let found = self.word() == Some(word);
        if !found {
            self.0 = before;
        }
        found
    }

    pub(crate) fn number(&mut self) -> Parsed<i128> {
        let negative = self.eat("-");
        if !negative {
            self.eat("+");
        }
        let before = self.0;
        let word = self.word().unwrap_or_default();
        let parsed = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        let value = parsed.map_err(|_| match before.trim() {
            "" => "a number is missing at the end of the line".to_owned(),
            other => format!("`{other}` is no number"),
        })?;
        Ok(if negative { -i128::from(value) } else { i128::from(value) })
    }

    pub(crate) fn signed<T: TryFrom<i128>>(&mut self) -> Parsed<T> {
        let value = self.number()?;
        T::try_from(value).map_err(|_| format!("{value} does not fit"))
    }

    /// 32 bits, which may be written without a sign.
    pub(crate) fn bits32(&mut self) -> Parsed<i32> {
        let value = self.number()?;
        let signed = i32::try_from(value).ok();
        signed.or(u32::try_from(value).ok().map(|bits| bits as i32)).ok_or(format!("{value} does not fit"))
    }

    fn register_if(&mut self, letter: char) -> Option<u8> {
        let before = self.0;
        let number = self.word().and_then(|word| word.strip_prefix(letter)?.parse().ok()).filter(|n| *n <= 10);
        if number.is_none() {
            self.0 = before;
        }
        number
    }

    pub(crate) fn register(&mut self, letter: char) -> Parsed<u8> {
        self.register_if(letter).ok_or_else(|| format!("a register is missing before `{}`", self.0))
    }

    fn end(&mut self) -> Parsed<()> {
        self.0 = self.0.trim_start();
        if self.0.is_empty() { Ok(()) } else { Err(format!("`{}` is too much", self.0)) }
    }

    /// `(u64 *)(r10 -8)`: size, sign extension, base, offset.
    fn place(&mut self) -> Parsed<(u8, bool, u8, i16)> {
        self.want("(")?;
        let (size, signed) = self.size()?;
        self.want("*")?;
        self.want(")")?;
        self.want("(")?;
        let base = self.register('r')?;
        let off = if self.eat(")") {
            return Ok((size, signed, base, 0));
        } else {
            self.signed()?
        };
        self.want(")")?;
        Ok((size, signed, base, off))
    }

    fn size(&mut self) -> Parsed<(u8, bool)> {
        let sizes = [("8", 0x10), ("16", 0x08), ("32", 0x00), ("64", 0x18)];
        let word = self.word().unwrap_or_default();
        let signed = word.starts_with('s');
        let bits = word.strip_prefix(['u', 's']).unwrap_or_default();
        let size = sizes.iter().find(|(name, _)| *name == bits).filter(|(name, _)| !signed || *name != "64");
        size.map(|(_, size)| (*size, signed)).ok_or_else(|| format!("`{word}` is no size"))
    }
}

/// Operations between registers: text, code, offset field. Longer texts first.
const OPERATIONS: [(&str, (u8, i16)); 14] = [
    ("s>>=", (0xc0, 0)),
    ("s/=", (0x30, 1)),
    ("s%=", (0x90, 1)),
    ("<<=", (0x60, 0)),
    (">>=", (0x70, 0)),
    ("+=", (0x00, 0)),
    ("-=", (0x10, 0)),
    ("*=", (0x20, 0)),
    ("/=", (0x30, 0)),
    ("|=", (0x40, 0)),
    ("&=", (0x50, 0)),
    ("%=", (0x90, 0)),
    ("^=", (0xa0, 0)),
    ("=", (0xb0, 0)),
];

/// Conditions. Longer texts first.
const CONDITIONS: [(&str, u8); 11] = [
    ("s>=", 0x70),
    ("s<=", 0xd0),
    ("s>", 0x60),
    ("s<", 0xc0),
    ("==", 0x10),
    ("!=", 0x50),
    (">=", 0x30),
    ("<=", 0xb0),
    (">", 0x20),
    ("<", 0xa0),
    ("&", 0x40),
];

/// Atomic operations that give the old value back, by the name behind `atomic_` or `atomic64_`.
pub(crate) const FETCHES: [(&str, i32); 6] = [
    ("fetch_add", 0x01),
    ("fetch_or", 0x41),
    ("fetch_and", 0x51),
    ("fetch_xor", 0xa1),
    ("xchg", 0xe1),
    ("cmpxchg", 0xf1),
];

impl<'a> Assembler<'a> {
    /// The program that a text describes, of which each line without its comment and its label is an instruction.
    pub(crate) fn run(
        text: &'a str,
        comments: &[&str],
        instruction: impl Fn(&mut Assembler<'a>, &mut Cursor<'a>) -> Parsed<()>,
    ) -> Result<Vec<Insn>, AssembleError> {
        let mut assembler = Assembler { insns: Vec::new(), labels: BTreeMap::new(), uses: Vec::new(), line: 0 };
        for (index, line) in text.lines().enumerate() {
            assembler.line = index + 1;
            let ends = comments.iter().filter_map(|comment| line.find(comment));
            let code = &line[..ends.min().unwrap_or(line.len())];
            let fail = |message| AssembleError { line: index + 1, message };
            let mut cursor = assembler.label(code).map_err(fail)?;
            if !cursor.0.trim().is_empty() {
                instruction(&mut assembler, &mut cursor).map_err(fail)?;
            }
        }
        assembler.link()?;
        Ok(assembler.insns)
    }

    /// Gives the instructions with labels their distances.
    fn link(&mut self) -> Result<(), AssembleError> {
        for used in &self.uses {
            let place = |message: String| AssembleError { line: used.line, message };
            let target = self.labels.get(used.label);
            let target = target.ok_or_else(|| place(format!("there is no label `{}`", used.label)))?;
            let distance = *target as i64 - used.at as i64 - 1;
            let far = |_| place(format!("`{}` is too far away", used.label));
            match used.field {
                Field::Off => self.insns[used.at].off = i16::try_from(distance).map_err(far)?,
                Field::Imm => self.insns[used.at].imm = i32::try_from(distance).map_err(far)?,
            }
        }
        Ok(())
    }

    /// Notes a line's label, if it has one; what is behind it.
    fn label(&mut self, code: &'a str) -> Parsed<Cursor<'a>> {
        let mut cursor = Cursor(code.trim());
        let label = cursor.word().filter(|_| cursor.eat(":"));
        match label {
            Some(label) if self.labels.insert(label, self.insns.len()).is_some() => {
                return Err(format!("the label `{label}` stands twice"));
            }
            Some(_) => {}
            None => cursor = Cursor(code.trim()),
        }
        Ok(cursor)
    }

    pub(crate) fn push(&mut self, cursor: &mut Cursor<'a>, insn: Insn) -> Parsed<()> {
        self.insns.push(insn);
        cursor.end()
    }

    fn instruction(&mut self, cursor: &mut Cursor<'a>) -> Parsed<()> {
        if let Some(dst) = cursor.register_if('r') {
            return self.with_register(cursor, BPF_ALU64, 'r', dst);
        }
        if let Some(dst) = cursor.register_if('w') {
            return self.with_register(cursor, BPF_ALU, 'w', dst);
        }
        if cursor.eat("*") {
            return self.store(cursor);
        }
        let before = cursor.0;
        match cursor.word().unwrap_or_default() {
            "exit" => self.push(cursor, Insn::new(BPF_EXIT, 0, 0, 0, 0)),
            "goto" => self.jump(cursor, Insn::new(BPF_JMP, 0, 0, 0, 0), Field::Off),
            "gotol" => self.jump(cursor, Insn::new(BPF_JMP32, 0, 0, 0, 0), Field::Imm),
            "may_goto" => self.jump(cursor, Insn::new(BPF_MAY_GOTO, 0, 0, 0, 0), Field::Off),
            "if" => self.condition(cursor),
            "call" => self.call(cursor),
            "callx" => {
                let register = cursor.register('r')?;
                self.push(cursor, Insn::new(BPF_CALLX, register, 0, 0, 0))
            }
            "lock" => self.lock(cursor),
            "store_release" => {
                cursor.want("(")?;
                let (size, _, dst, off) = cursor.place()?;
                cursor.want(",")?;
                let src = cursor.register('r')?;
                cursor.want(")")?;
                self.push(cursor, Insn::new(BPF_STX | BPF_ATOMIC | size, dst, src, off, 0x110))
            }
            RAW => {
                let opcode = cursor.signed()?;
                let (dst, src): (u8, u8) = (cursor.signed()?, cursor.signed()?);
                if dst > 15 || src > 15 {
                    return Err("a register's number has 4 bits".to_owned());
                }
                let insn = Insn::new(opcode, dst, src, cursor.signed()?, cursor.bits32()?);
                self.push(cursor, insn)
            }
            _ => Err(format!("`{before}` is no instruction")),
        }
    }

    /// What a jump or call goes to: `pc+3`, `+3` or a label.
    pub(crate) fn jump(&mut self, cursor: &mut Cursor<'a>, mut insn: Insn, field: Field) -> Parsed<()> {
        let before = cursor.0;
        let relative = cursor.keyword("pc");
        if relative || before.trim_start().starts_with(['+', '-']) {
            match field {
                Field::Off => insn.off = cursor.signed()?,
                Field::Imm => insn.imm = cursor.signed()?,
            }
        } else {
            let label = cursor.word().ok_or("a target is missing")?;
            self.uses.push(Use { line: self.line, at: self.insns.len(), field, label });
        }
        self.push(cursor, insn)
    }

    fn condition(&mut self, cursor: &mut Cursor<'a>) -> Parsed<()> {
        let long = cursor.register_if('r');
        let (class, letter) = if long.is_some() { (BPF_JMP, 'r') } else { (BPF_JMP32, 'w') };
        let dst = long.map_or_else(|| cursor.register('w'), Ok)?;
        let code = cursor.any(&CONDITIONS).ok_or_else(|| format!("`{}` is no condition", cursor.0))?;
        let insn = match cursor.register_if(letter) {
            Some(src) => Insn::new(class | code | BPF_X, dst, src, 0, 0),
            None => Insn::new(class | code, dst, 0, 0, cursor.bits32()?),
        };
        if !cursor.keyword("goto") {
            return Err(format!("`goto` is missing before `{}`", cursor.0));
        }
        self.jump(cursor, insn, Field::Off)
    }

    fn call(&mut self, cursor: &mut Cursor<'a>) -> Parsed<()> {
        let helper = |number| Insn::new(BPF_CALL, 0, 0, 0, number);
        let before = cursor.0.trim_start();
        if before.starts_with(|c: char| c.is_ascii_digit()) {
            let number = cursor.bits32()?;
            return self.push(cursor, helper(number));
        }
        if before.starts_with("kernel-function") {
            cursor.want("kernel-function")?;
            cursor.want("#")?;
            let id = cursor.bits32()?;
            return self.push(cursor, Insn::new(BPF_CALL, 0, 2, 0, id));
        }
        let name = cursor.word().unwrap_or_default();
        let known = name.strip_prefix("bpf_").and_then(helper_number);
        if cursor.eat("#") {
            let number = cursor.bits32()?;
            if known.is_some_and(|known| known != number) {
                return Err(format!("`{name}` has not the number {number}"));
            }
            return self.push(cursor, helper(number));
        }
        if let Some(number) = known {
            return self.push(cursor, helper(number));
        }
        cursor.0 = before;
        self.jump(cursor, Insn::new(BPF_CALL, 0, 1, 0, 0), Field::Imm)
    }

    fn store(&mut self, cursor: &mut Cursor<'a>) -> Parsed<()> {
        let (size, _, dst, off) = cursor.place()?;
        cursor.want("=")?;
        let insn = match cursor.register_if('r') {
            Some(src) => Insn::new(BPF_STX | BPF_MEM | size, dst, src, off, 0),
            None => Insn::new(BPF_ST | BPF_MEM | size, dst, 0, off, cursor.bits32()?),
        };
        self.push(cursor, insn)
    }

    fn lock(&mut self, cursor: &mut Cursor<'a>) -> Parsed<()> {
        cursor.want("*")?;
        let (size, _, dst, off) = cursor.place()?;
        let operations = [("+=", 0x00), ("|=", 0x40), ("&=", 0x50), ("^=", 0xa0)];
        let code = cursor.any(&operations).ok_or_else(|| format!("`{}` is no atomic operation", cursor.0))?;
        let src = cursor.register('r')?;
        self.push(cursor, Insn::new(BPF_STX | BPF_ATOMIC | size, dst, src, off, code))
    }

    /// What begins with a register that is changed.
    fn with_register(&mut self, cursor: &mut Cursor<'a>, class: u8, letter: char, dst: u8) -> Parsed<()> {
        let (code, off) = cursor.any(&OPERATIONS).ok_or_else(|| format!("`{}` is no operation", cursor.0))?;
        if let Some(src) = cursor.register_if(letter) {
            return self.push(cursor, Insn::new(class | code | BPF_X, dst, src, off, 0));
        }
        let move_to = code == 0xb0;
        if move_to && self.moved(cursor, class, letter, dst)? {
            return Ok(());
        }
        let before = cursor.0.trim();
        let wide = move_to && class == BPF_ALU64 && before.ends_with("ll");
        if wide {
            let number = cursor.number()?;
            let value = u64::try_from(number).ok().or(i64::try_from(number).ok().map(|value| value as u64));
            let value = value.ok_or_else(|| format!("{number} does not fit"))?;
            return self.wide(cursor, Insn::new(BPF_LD_IMM64, dst, 0, 0, value as i32), (value >> 32) as i32);
        }
        // In 64 bits 0xffffffff would become -1: who means that writes so.
        let imm = if class == BPF_ALU { cursor.bits32() } else { cursor.signed() };
        let imm =
            imm.map_err(
                |error| if move_to && error.ends_with("fit") { format!("{error} (`{before} ll`?)") } else { error },
            )?;
        self.push(cursor, Insn::new(class | code, dst, 0, off, imm))
    }

    /// A 16-byte instruction; `ll` may stand behind it.
    fn wide(&mut self, cursor: &mut Cursor<'a>, insn: Insn, high: i32) -> Parsed<()> {
        cursor.keyword("ll");
        self.insns.push(insn);
        self.push(cursor, Insn::new(0, 0, 0, 0, high))
    }

    /// Right sides of `=` that are neither a register nor a number. `false`: it is none of them.
    fn moved(&mut self, cursor: &mut Cursor<'a>, class: u8, letter: char, dst: u8) -> Parsed<bool> {
        let before = cursor.0.trim_start();
        if cursor.eat("-") {
            if let Some(src) = cursor.register_if(letter) {
                same(dst, src)?;
                return self.push(cursor, Insn::new(class | 0x80, dst, 0, 0, 0)).map(|()| true);
            }
            cursor.0 = before;
            return Ok(false);
        }
        if let Some(bits) = cursor.any(&[("(s8)", 8), ("(s16)", 16), ("(s32)", 32)]) {
            let src = cursor.register(letter)?;
            return self.push(cursor, Insn::new(class | 0xb0 | BPF_X, dst, src, bits, 0)).map(|()| true);
        }
        if class == BPF_ALU64 && cursor.eat("*") {
            return self.load(cursor, dst).map(|()| true);
        }
        if class == BPF_ALU64 { self.named(cursor, dst) } else { Ok(false) }
    }

    fn load(&mut self, cursor: &mut Cursor<'a>, dst: u8) -> Parsed<()> {
        let before = cursor.0;
        cursor.want("(")?;
        let (size, _) = cursor.size()?;
        cursor.want("*")?;
        cursor.want(")")?;
        if !cursor.eat("skb[") {
            cursor.0 = before;
            let (size, signed, src, off) = cursor.place()?;
            let mode = if signed { BPF_MEMSX } else { BPF_MEM };
            return self.push(cursor, Insn::new(BPF_LDX | mode | size, dst, src, off, 0));
        }
        same(dst, 0)?;
        let (mode, src) = match cursor.register_if('r') {
            Some(src) => {
                cursor.want("+")?;
                (BPF_IND, src)
            }
            None => (BPF_ABS, 0),
        };
        let imm = cursor.bits32()?;
        cursor.want("]")?;
        self.push(cursor, Insn::new(BPF_LD | mode | size, 0, src, 0, imm))
    }

    /// Right sides that begin with a word. `false`: this is none of them.
    fn named(&mut self, cursor: &mut Cursor<'a>, dst: u8) -> Parsed<bool> {
        let before = cursor.0;
        let word = cursor.word().unwrap_or_default();
        match word {
            "func" => {
                let label = cursor.word().ok_or("a label is missing")?;
                self.uses.push(Use { line: self.line, at: self.insns.len(), field: Field::Imm, label });
                self.wide(cursor, Insn::new(BPF_LD_IMM64, dst, 4, 0, 0), 0)?;
            }
            "subprog" | "btf" => {
                cursor.want("[")?;
                let (pseudo, imm) = if word == "btf" { (3, cursor.bits32()?) } else { (4, cursor.signed()?) };
                cursor.want("]")?;
                self.wide(cursor, Insn::new(BPF_LD_IMM64, dst, pseudo, 0, imm), 0)?;
            }
            "map" => self.map(cursor, dst)?,
            "load_acquire" => {
                cursor.want("(")?;
                let (size, _, src, off) = cursor.place()?;
                cursor.want(")")?;
                self.push(cursor, Insn::new(BPF_STX | BPF_ATOMIC | size, dst, src, off, 0x100))?;
            }
            "addr_space_cast" => {
                cursor.want("(")?;
                let src = cursor.register('r')?;
                cursor.want(",")?;
                let to: u16 = cursor.signed()?;
                cursor.want(",")?;
                let from: u16 = cursor.signed()?;
                cursor.want(")")?;
                let imm = u32::from(to) << 16 | u32::from(from);
                self.push(cursor, Insn::new(BPF_MOV_X, dst, src, ADDR_SPACE_CAST, imm as i32))?;
            }
            _ => {
                if !self.fetch(cursor, word, dst)? && !self.swap(cursor, word, dst)? {
                    cursor.0 = before;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// `map[idx:0]`, `map[0]`, `map[fd:3]`, and `[0]+8` behind them for the value's address.
    fn map(&mut self, cursor: &mut Cursor<'a>, dst: u8) -> Parsed<()> {
        cursor.want("[")?;
        let by_fd = cursor.eat("fd:");
        if !by_fd {
            cursor.eat("idx:");
        }
        let number = cursor.bits32()?;
        cursor.want("]")?;
        let value = cursor.eat("[0]+");
        let off = if value { cursor.bits32()? } else { 0 };
        let pseudo = match (by_fd, value) {
            (true, false) => 1,
            (true, true) => 2,
            (false, false) => 5,
            (false, true) => 6,
        };
        self.wide(cursor, Insn::new(BPF_LD_IMM64, dst, pseudo, 0, number), off)
    }

    /// `atomic64_fetch_add((u64 *)(r1 +0), r2)` and its like.
    fn fetch(&mut self, cursor: &mut Cursor<'a>, word: &str, dst: u8) -> Parsed<bool> {
        let name = word.strip_prefix("atomic64_").or(word.strip_prefix("atomic_"));
        let Some((name, code)) = name.and_then(|name| FETCHES.iter().find(|(known, _)| *known == name)) else {
            return Ok(false);
        };
        cursor.want("(")?;
        let (size, _, base, off) = cursor.place()?;
        cursor.want(",")?;
        if *name == "cmpxchg" {
            same(dst, 0)?;
            same(cursor.register('r')?, 0)?;
            cursor.want(",")?;
        }
        let src = cursor.register('r')?;
        if *name != "cmpxchg" {
            same(dst, src)?;
        }
        cursor.want(")")?;
        self.push(cursor, Insn::new(BPF_STX | BPF_ATOMIC | size, base, src, off, *code)).map(|()| true)
    }

    /// `be16 r1` and its like.
    fn swap(&mut self, cursor: &mut Cursor<'a>, word: &str, dst: u8) -> Parsed<bool> {
        let kinds = [("bswap", BPF_ALU64), ("be", BPF_ALU | BPF_X), ("le", BPF_ALU)];
        let found = kinds.iter().find_map(|(name, code)| Some((word.strip_prefix(name)?, code)));
        let Some((bits @ ("16" | "32" | "64"), code)) = found else { return Ok(false) };
        same(dst, cursor.register('r')?)?;
        let bits = bits.parse().map_err(|_| "no number of bits".to_owned())?;
        self.push(cursor, Insn::new(code | 0xd0, dst, 0, 0, bits)).map(|()| true)
    }
}

fn same(dst: u8, src: u8) -> Parsed<()> {
    if dst == src { Ok(()) } else { Err(format!("the register must be r{src} on both sides")) }
}

fn helper_number(name: &str) -> Option<i32> {
    helper::NAMES.iter().position(|known| *known == name).map(|number| number as i32)
}
