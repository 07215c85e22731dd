//! Writes random functions as assembly: what compilers and hand-written code do at its most awkward for who replaces instructions.
//!
//! The functions keep to what the ABI promises, since ring3 relies on it: they read no status flag that no instruction has defined
//! since the function's entry or the last call, and nothing below the stack pointer that was written before a call. The writer
//! tracks which flags are defined. `r15` leads to the victim's scratch memory (`tests/victims/equivalence.c`), `r11` is used in
//! passing, the other registers are free.
//!
//! Each instruction's address is put into the section `.boundaries`, so nobody has to decode.

use std::fmt::Write as _;

use ring3_generate::Random;

/// Status flags, as bits of their own.
pub(crate) const CARRY: u8 = 1;
/// Parity.
pub(crate) const PARITY: u8 = 2;
/// Adjust.
pub(crate) const ADJUST: u8 = 4;
/// Zero.
pub(crate) const ZERO: u8 = 8;
/// Sign.
pub(crate) const SIGN: u8 = 16;
/// Overflow.
pub(crate) const OVERFLOW: u8 = 32;
/// All six.
pub(crate) const STATUS: u8 = 63;

/// Places behind `r15`, as in `struct scratch` of the victim.
pub(crate) const DATA_BYTES: i64 = 256;
/// Where a fault is expected.
pub(crate) const FAULT: i64 = 256;
/// Where to go on behind it.
pub(crate) const RESUME: i64 = 264;
/// How to go on.
pub(crate) const MODE: i64 = 272;
/// Flags that a signal handler may compare.
pub(crate) const FLAGS: i64 = 276;
/// Bytes of the instruction that faults.
pub(crate) const BYTES: i64 = 280;
/// How often functions jump back to their beginnings.
pub(crate) const FUEL: i64 = 284;
/// The same, of functions that do so with live flags.
pub(crate) const LOOPS: i64 = 288;
/// What functions tell.
pub(crate) const RESULTS: i64 = 312;
/// Words there.
pub(crate) const RESULTS_COUNT: u64 = 32;

/// `rsp` and `r15` are not among them.
const REGISTERS: [[&str; 4]; 14] = [
    ["al", "ax", "eax", "rax"],
    ["cl", "cx", "ecx", "rcx"],
    ["dl", "dx", "edx", "rdx"],
    ["bl", "bx", "ebx", "rbx"],
    ["sil", "si", "esi", "rsi"],
    ["dil", "di", "edi", "rdi"],
    ["bpl", "bp", "ebp", "rbp"],
    ["r8b", "r8w", "r8d", "r8"],
    ["r9b", "r9w", "r9d", "r9"],
    ["r10b", "r10w", "r10d", "r10"],
    ["r12b", "r12w", "r12d", "r12"],
    ["r13b", "r13w", "r13d", "r13"],
    ["r14b", "r14w", "r14d", "r14"],
    ["r11b", "r11w", "r11d", "r11"],
];

/// Places of `rcx` and `rbp` there.
const COUNTER: usize = 1;
const BASE_POINTER: usize = 6;

/// Conditions and the flags that they read.
const CONDITIONS: [(&str, u8); 16] = [
    ("o", OVERFLOW),
    ("no", OVERFLOW),
    ("b", CARRY),
    ("ae", CARRY),
    ("e", ZERO),
    ("ne", ZERO),
    ("be", CARRY | ZERO),
    ("a", CARRY | ZERO),
    ("s", SIGN),
    ("ns", SIGN),
    ("p", PARITY),
    ("np", PARITY),
    ("l", SIGN | OVERFLOW),
    ("ge", SIGN | OVERFLOW),
    ("le", ZERO | SIGN | OVERFLOW),
    ("g", ZERO | SIGN | OVERFLOW),
];

/// A sequence that has nothing in common with those of other seeds.
pub(crate) fn random_of_seed(seed: u64) -> Random {
    let mixed = Random::from_state(seed).next() ^ 0x5eed;
    Random::from_state(Random::from_state(mixed).next())
}

/// What the object file is linked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Its addresses are known to the linker.
    pub(crate) fixed: bool,
    /// The processor has AVX2.
    pub(crate) avx: bool,
}

/// A function that was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// Numbers of the functions that it calls or jumps to.
    pub(crate) callees: Vec<u32>,
    /// It has a symbol, of the right size, at which a return probe makes sense.
    pub(crate) returns: bool,
    /// The function's level: it calls functions of lower ones only.
    level: u64,
    /// It has a tail that others may jump to.
    tail: bool,
}

/// The text of many functions.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// For the assembler.
    pub(crate) text: String,
    /// By number.
    pub(crate) functions: Vec<Written>,
    /// Of each instruction whose address `.boundaries` has: its function, and whether single steps see it.
    pub(crate) instructions: Vec<(u32, bool)>,
}

/// Writes functions.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) random: Random,
    pub(super) kind: Kind,
    pub(super) text: String,
    data: String,
    boundaries: String,
    instructions: Vec<(u32, bool)>,
    functions: Vec<Written>,
    labels: u32,
    /// Flags that are defined here.
    pub(super) defined: u8,
    /// Blocks around this place.
    pub(super) depth: u32,
    /// Inside a loop: no calls, and `rcx` is not written.
    pub(super) in_loop: bool,
}

/// `number` functions' assembly.
pub(crate) fn assembly(seed: u64, number: u32, kind: Kind) -> Assembly {
    let mut writer = Writer {
        random: random_of_seed(seed),
        kind,
        text: String::new(),
        data: String::new(),
        boundaries: String::new(),
        instructions: vec![],
        functions: vec![],
        labels: 0,
        defined: 0,
        depth: 0,
        in_loop: false,
    };
    writer.line(".intel_syntax noprefix\n.text\n.globl code_start, code_end, function_offsets, function_count\n.p2align 4\ncode_start:");
    for function in 0..number {
        writer.function(function);
    }
    writer.line(".p2align 4, 0xcc\ncode_end:\n.section .note.GNU-stack,\"\",@progbits\n.section .rodata\n.p2align 2\nfunction_offsets:");
    for function in 0..number {
        let name = writer.name(function);
        writer.line(&format!(".long {name} - code_start"));
    }
    let (boundaries, data) = (std::mem::take(&mut writer.boundaries), std::mem::take(&mut writer.data));
    writer.line(&format!(
        "function_count: .long {number}\n.data\n.p2align 3\n{data}\n.section .boundaries,\"\",@progbits\n{boundaries}"
    ));
    Assembly { text: writer.text, functions: writer.functions, instructions: writer.instructions }
}

impl Writer {
    pub(super) fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// A line of constants elsewhere: what the loader may relocate.
    pub(super) fn constant(&mut self, text: &str) {
        self.data.push_str(text);
        self.data.push('\n');
    }

    /// An instruction.
    pub(super) fn put(&mut self, text: &str) {
        self.put_stepped(text, true);
    }

    /// An instruction behind one that hides the single step before it.
    pub(super) fn put_stepped(&mut self, text: &str, stepped: bool) {
        let number = self.instructions.len();
        let _ = writeln!(self.text, ".Li{number}: {text}");
        let _ = writeln!(self.boundaries, ".quad .Li{number}");
        let function = self.functions.len() as u32;
        self.instructions.push((function, stepped));
    }

    /// Bytes that are not counted among the instructions.
    pub(super) fn label(&mut self) -> String {
        self.labels += 1;
        format!(".Ll{}", self.labels)
    }

    /// A label here. What arrives has defined `defined`.
    pub(super) fn place(&mut self, label: &str, defined: u8) {
        let _ = writeln!(self.text, "{label}:");
        self.defined &= defined;
    }

    /// The assembler's name of a function: functions without a symbol have local ones.
    pub(super) fn name(&self, function: u32) -> String {
        if is_nameless(function) { format!(".LF{function}") } else { format!("F{function}") }
    }

    /// The number of the function that is written.
    pub(super) fn current(&self) -> u32 {
        self.functions.len() as u32
    }

    /// A register but `r11`, by its size: 0 to 3. In a loop, none that the loop needs; `rbp` only in functions' frames.
    pub(super) fn register(&mut self, size: usize) -> &'static str {
        loop {
            let number = self.random.below(REGISTERS.len() as u64 - 1) as usize;
            if number != BASE_POINTER && !(self.in_loop && number == COUNTER) {
                return REGISTERS[number][size];
            }
        }
    }

    /// One to read, which may be any.
    pub(super) fn source(&mut self, size: usize) -> &'static str {
        REGISTERS[self.random.below(REGISTERS.len() as u64) as usize][size]
    }

    /// A register for two sizes.
    pub(super) fn register_of(&mut self, sizes: [usize; 2]) -> [&'static str; 2] {
        let name = self.register(3);
        let row = REGISTERS.iter().find(|row| row[3] == name).unwrap_or(&REGISTERS[0]);
        [row[sizes[0]], row[sizes[1]]]
    }

    /// An operand in the scratch memory.
    pub(super) fn memory(&mut self) -> String {
        let at = self.random.below(DATA_BYTES as u64 * 2 - 32) as i64 - DATA_BYTES;
        // (Displacements of one byte and of four.)
        let at = if self.random.one_in(2) { at % 96 } else { at };
        format!("[r15 {} {}]", if at < 0 { '-' } else { '+' }, at.abs())
    }

    /// The size of an operand, for assembly: 0 to 3.
    pub(super) fn pointer(size: usize) -> &'static str {
        ["byte ptr", "word ptr", "dword ptr", "qword ptr"][size]
    }

    /// A word of the results.
    pub(super) fn result(&mut self) -> String {
        format!("[r15 + {}]", RESULTS + 8 * self.random.below(RESULTS_COUNT) as i64)
    }

    /// A condition whose flags are defined; makes them so if there is none.
    pub(super) fn condition(&mut self) -> &'static str {
        if self.defined & (CARRY | ZERO | SIGN | PARITY) == 0 || self.random.one_in(12) {
            self.compare();
        }
        loop {
            let (name, flags) = self.random.of(&CONDITIONS);
            if flags & !self.defined == 0 {
                return name;
            }
        }
    }

    fn compare(&mut self) {
        let size = self.random.below(4) as usize;
        let (left, right) = (self.source(size), self.source(size));
        self.put(&format!("cmp {left}, {right}"));
        self.defined = STATUS;
    }

    /// A function of a lower level, if there is one near.
    pub(super) fn callee(&mut self) -> Option<u32> {
        let current = self.current();
        let level = current_level(current);
        let near = current.saturating_sub(60)..current;
        if near.is_empty() || level == 0 {
            return None;
        }
        for _ in 0..8 {
            let candidate = near.start + self.random.below(u64::from(near.end - near.start)) as u32;
            if self.functions[candidate as usize].level < level {
                return Some(candidate);
            }
        }
        None
    }

    /// A function's tail that can be jumped to.
    pub(super) fn callee_tail(&mut self) -> Option<u32> {
        let callee = self.callee()?;
        self.functions[callee as usize].tail.then_some(callee)
    }

    fn function(&mut self, number: u32) {
        let (nameless, unsized_) = (is_nameless(number), is_unsized(number));
        let name = self.name(number);
        let has_room = self.random.below(4);
        if has_room < 2 {
            self.line(if has_room == 0 { ".p2align 4" } else { ".p2align 4, 0xcc" });
        }
        if nameless {
            // (A function that nothing names is known by who has its address.)
            self.constant(&format!(".quad {name}"));
        } else {
            self.line(&format!(".globl {name}\n.hidden {name}\n.type {name}, @function"));
        }
        self.line(&format!("{name}:"));
        (self.defined, self.depth, self.in_loop) = (0, 0, false);
        let start = self.text.len();
        let tail = self.body(number);
        self.line(&format!(".Le{number}:"));
        if !nameless && !unsized_ {
            self.line(&format!(".size {name}, .Le{number} - {name}"));
        }
        let callees = callees(&self.text[start..]);
        let returns = !nameless && !unsized_;
        self.functions.push(Written { callees, returns, level: current_level(number), tail });
    }
}

/// The functions that a function's assembly names: `F`, `.LF` or `.LT` and a number.
fn callees(text: &str) -> Vec<u32> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'));
    let numbers = words.filter_map(|word| {
        let digits = word.strip_prefix(".LF").or_else(|| word.strip_prefix(".LT")).or_else(|| word.strip_prefix('F'));
        digits?.parse().ok()
    });
    let mut found: Vec<u32> = numbers.collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// No symbol leads to it.
fn is_nameless(function: u32) -> bool {
    function % 23 == 7
}

/// Its symbol has no size.
fn is_unsized(function: u32) -> bool {
    function % 17 == 5
}

fn current_level(function: u32) -> u64 {
    let mut random = Random::from_state(u64::from(function));
    [0, 0, 0, 1, 1, 2][random.below(6) as usize]
}
