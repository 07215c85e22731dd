//! Functions as LLVM's intermediate representation, in its text form, which is independent of any binding.
//!
//! BPF's numbers may be addresses, and are not typed: all values are integers, and become pointers where something is loaded or
//! stored. The text contains nothing that LLVM could take for a promise that BPF does not give (`nsw`, `inbounds`,
//! `mustprogress`, types of memory).

use std::collections::HashMap;
use std::fmt::{self, Write};

use ring3_isa::{AluOp, AtomicOp, Cond, Size};
use ring3_jit::{Emitter, External, Part, Target, Translation, VARIABLES};

/// Symbols of what the code is linked with begin so; the number is the index in [`Module::outside`].
pub(crate) const OUTSIDE: &str = "outside.";
/// Symbols of the functions that are entered from outside.
pub(crate) const MAIN: &str = "subprogram.0";
pub(crate) const ENTRY: &str = "entry";

/// What all functions have: general registers only, and no call that the program does not make, not of `memcpy` for a loop
/// that copies either.
const ATTRIBUTES: &str = r#"nounwind noimplicitfloat null_pointer_is_valid "no-builtins" "target-cpu"="x86-64""#;
const NO_VECTORS: &str = "-mmx,-sse,-sse2,-x87,+soft-float";

/// Instructions beyond the baseline that this processor has: code runs nowhere else. With `popcnt` a program that counts
/// bits takes a quarter of the time.
fn processor() -> String {
    let mut features = NO_VECTORS.to_owned();
    for (name, is_there) in [
        ("bmi", is_x86_feature_detected!("bmi1")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("lzcnt", is_x86_feature_detected!("lzcnt")),
        ("popcnt", is_x86_feature_detected!("popcnt")),
        ("movbe", is_x86_feature_detected!("movbe")),
    ] {
        if is_there {
            features += &format!(",+{name}");
        }
    }
    features
}

/// What LLVM is told of the source: a file, the lines of which are the program's instructions. Line 0 is none.
const SOURCE: [&str; 6] = [
    r#"distinct !DICompileUnit(language: DW_LANG_C99, file: !3, emissionKind: LineTablesOnly)"#,
    r#"!{i32 2, !"Debug Info Version", i32 3}"#,
    r#"!{i32 7, !"Dwarf Version", i32 4}"#,
    r#"!DIFile(filename: "program", directory: "")"#,
    "!DISubroutineType(types: !5)",
    "!{null}",
];
const SOURCE_NAMES: &str = "!llvm.dbg.cu = !{!0}\n!llvm.module.flags = !{!1, !2}";

/// The instruction that a line is.
pub(crate) fn instruction_of(line: u64) -> Option<u32> {
    u32::try_from(line).ok()?.checked_sub(1)
}

/// A program as text, and what its names mean.
#[derive(Default)]
pub(crate) struct Module {
    pub(crate) text: String,
    pub(crate) outside: Vec<Target>,
    known: HashMap<Target, usize>,
    /// Numbered descriptions of the source.
    notes: Vec<String>,
}

impl Module {
    /// A program, for this processor.
    pub(crate) fn of(translation: &Translation<'_>) -> Module {
        let mut module = Module { notes: SOURCE.map(str::to_owned).to_vec(), ..Module::default() };
        for part in translation.parts() {
            let parameters = translation.parameters(part);
            // (The entry is nothing of the program's.)
            let scope = matches!(part, Part::Subprogram(_)).then(|| module.scope());
            let mut function = Function {
                module: &mut module,
                text: String::new(),
                values: parameters,
                blocks: 0,
                in_frame: HashMap::new(),
                of_variables: [None; VARIABLES],
                scope,
                place: String::new(),
            };
            translation.emit(part, &mut function);
            let body = function.text;
            let list: Vec<String> = (0..parameters).map(|index| format!("i64 noundef %v{index}")).collect();
            let (linkage, name) = match part {
                Part::Subprogram(0) => ("hidden", MAIN.to_owned()),
                Part::Subprogram(index) => ("internal", format!("subprogram.{index}")),
                Part::Entry => ("hidden", ENTRY.to_owned()),
            };
            let list = list.join(", ");
            let described = scope.map_or_else(String::new, |scope| format!(" !dbg !{scope}"));
            module.line(format_args!("define {linkage} i64 @{name}({list}) #0{described} {{\nenter:\n{body}}}"));
        }
        module.line(format_args!("{SOURCE_NAMES}"));
        for (number, note) in std::mem::take(&mut module.notes).iter().enumerate() {
            module.line(format_args!("!{number} = {note}"));
        }
        let processor = format!(r#""target-features"="{}" "tune-cpu"="native""#, processor());
        module.line(format_args!("attributes #0 = {{ {ATTRIBUTES} {processor} }}"));
        module
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("text grows");
    }

    fn note(&mut self, note: String) -> usize {
        self.notes.push(note);
        self.notes.len() - 1
    }

    /// A description of a function.
    fn scope(&mut self) -> usize {
        let kind = "scope: !3, file: !3, line: 1, type: !4, scopeLine: 1, spFlags: DISPFlagDefinition, unit: !0";
        self.note(format!(r#"distinct !DISubprogram(name: "program", {kind})"#))
    }

    /// The name of something outside, which is declared with its first use.
    fn name(&mut self, target: Target, parameters: Option<usize>) -> String {
        let next = self.outside.len();
        let index = *self.known.entry(target).or_insert(next);
        let name = format!("{OUTSIDE}{index}");
        if index == next {
            self.outside.push(target);
            match parameters {
                Some(count) => {
                    let list = vec!["i64"; count].join(", ");
                    self.line(format_args!("declare hidden i64 @{name}({list}) #0"));
                }
                None => self.line(format_args!("@{name} = external hidden constant i64, align 8")),
            }
        }
        name
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Local(usize),
    Constant(i64),
}

/// A number, and its bits: 1 of a truth.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Value {
    name: Name,
    bits: u8,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Name::Local(number) => write!(f, "%v{number}"),
            Name::Constant(value) => value.fmt(f),
        }
    }
}

fn bits(size: Size) -> u8 {
    size.bytes() * 8
}

struct Function<'m> {
    module: &'m mut Module,
    text: String,
    /// How many there are, the parameters among them.
    values: usize,
    blocks: usize,
    /// Addresses in the stack: values, and what they are from its start. What is named so, and not by a number, is memory of
    /// which LLVM knows all uses.
    in_frame: HashMap<Name, i64>,
    /// Which variables have such a value, in the present block.
    of_variables: [Option<i64>; VARIABLES],
    /// The description of the function.
    scope: Option<usize>,
    /// What is said behind an operation of where it comes from.
    place: String,
}

impl Function<'_> {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.text, "  {line}{}", self.place).expect("text grows");
    }

    /// A new value, which the operation gives.
    fn value(&mut self, bits: u8, operation: fmt::Arguments<'_>) -> Value {
        let value = Value { name: Name::Local(self.values), bits };
        self.values += 1;
        self.line(format_args!("{value} = {operation}"));
        value
    }

    /// Names of memory are values without bits.
    fn pointer(&mut self, address: Value, offset: i32) -> Value {
        let (base, offset) = match self.in_frame.get(&address.name) {
            Some(start) => (None, start + i64::from(offset)),
            None => (Some(self.value(0, format_args!("inttoptr i64 {address} to ptr"))), i64::from(offset)),
        };
        match base {
            Some(base) if offset == 0 => base,
            Some(base) => self.value(0, format_args!("getelementptr i8, ptr {base}, i64 {offset}")),
            None => self.value(0, format_args!("getelementptr i8, ptr %frame, i64 {offset}")),
        }
    }

    /// Whoever reads memory that others write gets one of the numbers that were there. To LLVM it is no number at all, each
    /// use of which may be another one, until it is frozen: then what a comparison found out about it stays true.
    fn freeze(&mut self, value: Value) -> Value {
        self.value(value.bits, format_args!("freeze i{} {value}", value.bits))
    }

    fn truth(&mut self, value: Value) -> Value {
        let bits = value.bits;
        if bits == 1 { value } else { self.value(1, format_args!("icmp ne i{bits} {value}, 0")) }
    }
}

impl Emitter for Function<'_> {
    type Value = Value;
    type Block = usize;

    fn locate(&mut self, at: usize) {
        if let Some(scope) = self.scope {
            let location = self.module.note(format!("!DILocation(line: {}, scope: !{scope})", at + 1));
            self.place = format!(", !dbg !{location}");
        }
    }

    fn enter(&mut self) -> Vec<Value> {
        // Helpers of formats are given registers that nobody has set: no number at all would make LLVM drop the call.
        for variable in 0..VARIABLES {
            self.line(format_args!("%r{variable} = alloca i64"));
            self.line(format_args!("store i64 0, ptr %r{variable}"));
        }
        (0..self.values).map(|index| Value { name: Name::Local(index), bits: 64 }).collect()
    }

    fn block(&mut self) -> usize {
        self.blocks += 1;
        self.blocks
    }

    fn begin(&mut self, block: usize) {
        writeln!(self.text, "b{block}:").expect("text grows");
        self.of_variables = [None; VARIABLES];
    }

    /// (LLVM lays blocks out as they are said.)
    fn begin_rare(&mut self, block: usize) {
        self.begin(block);
    }

    fn stack(&mut self, bytes: u32) -> Value {
        let bytes = bytes.next_multiple_of(16);
        self.line(format_args!("%frame = alloca [{bytes} x i8], align 16"));
        let start = self.value(64, format_args!("ptrtoint ptr %frame to i64"));
        let end = self.value(64, format_args!("add i64 {start}, {bytes}"));
        self.in_frame.insert(end.name, bytes.into());
        end
    }

    fn get(&mut self, variable: usize) -> Value {
        let value = self.value(64, format_args!("load i64, ptr %r{variable}"));
        if let Some(start) = self.of_variables[variable] {
            self.in_frame.insert(value.name, start);
        }
        value
    }

    fn set(&mut self, variable: usize, value: Value) {
        self.line(format_args!("store i64 {value}, ptr %r{variable}"));
        self.of_variables[variable] = self.in_frame.get(&value.name).copied();
    }

    fn constant(&mut self, size: Size, value: i64) -> Value {
        let unused = 64 - bits(size);
        Value { name: Name::Constant(value << unused >> unused), bits: bits(size) }
    }

    fn cut(&mut self, value: Value, size: Size) -> Value {
        let to = bits(size);
        match value.name {
            _ if value.bits == to => value,
            Name::Constant(number) => self.constant(size, number),
            Name::Local(_) => self.value(to, format_args!("trunc i{} {value} to i{to}", value.bits)),
        }
    }

    fn extend(&mut self, value: Value, size: Size, signed: bool) -> Value {
        let (from, to) = (value.bits, bits(size));
        let how = if signed { "sext" } else { "zext" };
        if from == to { value } else { self.value(to, format_args!("{how} i{from} {value} to i{to}")) }
    }

    fn compute(&mut self, op: AluOp, a: Value, b: Value) -> Value {
        let bits = a.bits;
        let name = match op {
            AluOp::Mov => return b,
            AluOp::Add => "add",
            AluOp::Sub => "sub",
            AluOp::Mul => "mul",
            AluOp::Or => "or",
            AluOp::And => "and",
            AluOp::Xor => "xor",
            AluOp::Div => "udiv",
            AluOp::Mod => "urem",
            AluOp::Sdiv => "sdiv",
            AluOp::Smod => "srem",
            AluOp::Lsh => "shl",
            AluOp::Rsh => "lshr",
            AluOp::Arsh => "ashr",
        };
        let b = match op {
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => self.value(bits, format_args!("and i{bits} {b}, {}", bits - 1)),
            _ => b,
        };
        let result = self.value(bits, format_args!("{name} i{bits} {a}, {b}"));
        if let (AluOp::Add, Some(start), Name::Constant(distance)) = (op, self.in_frame.get(&a.name), b.name) {
            self.in_frame.insert(result.name, start + distance);
        }
        result
    }

    fn multiply_high(&mut self, a: Value, b: Value) -> Value {
        let [a, b] = [a, b].map(|side| self.value(128, format_args!("zext i64 {side} to i128")));
        let product = self.value(128, format_args!("mul i128 {a}, {b}"));
        let upper = self.value(128, format_args!("lshr i128 {product}, 64"));
        self.value(64, format_args!("trunc i128 {upper} to i64"))
    }

    fn opaque(&mut self, value: Value) -> Value {
        self.value(64, format_args!(r#"call i64 asm "", "=r,0"(i64 {value})"#))
    }

    fn negate(&mut self, value: Value) -> Value {
        self.value(value.bits, format_args!("sub i{} 0, {value}", value.bits))
    }

    fn swap(&mut self, value: Value) -> Value {
        let bits = value.bits;
        self.value(bits, format_args!("call i{bits} @llvm.bswap.i{bits}(i{bits} {value})"))
    }

    fn compare(&mut self, cond: Cond, a: Value, b: Value) -> Value {
        let name = match cond {
            Cond::Set => {
                let both = self.compute(AluOp::And, a, b);
                return self.truth(both);
            }
            Cond::Eq => "eq",
            Cond::Ne => "ne",
            Cond::Gt => "ugt",
            Cond::Ge => "uge",
            Cond::Lt => "ult",
            Cond::Le => "ule",
            Cond::Sgt => "sgt",
            Cond::Sge => "sge",
            Cond::Slt => "slt",
            Cond::Sle => "sle",
        };
        self.value(1, format_args!("icmp {name} i{} {a}, {b}", a.bits))
    }

    fn select(&mut self, which: Value, yes: Value, no: Value) -> Value {
        let (which, bits) = (self.truth(which), yes.bits);
        self.value(bits, format_args!("select i1 {which}, i{bits} {yes}, i{bits} {no}"))
    }

    fn load(&mut self, size: Size, signed: bool, address: Value, offset: i32) -> Value {
        let (at, bits) = (self.pointer(address, offset), bits(size));
        let value = self.value(bits, format_args!("load i{bits}, ptr {at}, align 1"));
        // Before it is extended: after that, it could be any 64 bits.
        let value = self.freeze(value);
        self.extend(value, Size::Dw, signed)
    }

    fn store(&mut self, size: Size, value: Value, address: Value, offset: i32) {
        let (value, at) = (self.cut(value, size), self.pointer(address, offset));
        self.line(format_args!("store i{} {value}, ptr {at}, align 1", value.bits));
    }

    fn load_acquire(&mut self, size: Size, address: Value) -> Value {
        let (at, bits, bytes) = (self.pointer(address, 0), bits(size), size.bytes());
        let value = self.value(bits, format_args!("load atomic i{bits}, ptr {at} acquire, align {bytes}"));
        self.freeze(value)
    }

    fn store_release(&mut self, value: Value, address: Value) {
        let (at, bits) = (self.pointer(address, 0), value.bits);
        self.line(format_args!("store atomic i{bits} {value}, ptr {at} release, align {}", bits / 8));
    }

    fn atomic(&mut self, op: AtomicOp, address: Value, value: Value) -> Value {
        let name = match op {
            AtomicOp::Add => "add",
            AtomicOp::Or => "or",
            AtomicOp::And => "and",
            AtomicOp::Xor => "xor",
            AtomicOp::Xchg | AtomicOp::Cmpxchg => "xchg",
        };
        let (at, bits) = (self.pointer(address, 0), value.bits);
        let operands = format!("ptr {at}, i{bits} {value} seq_cst, align {}", bits / 8);
        let old = self.value(bits, format_args!("atomicrmw {name} {operands}"));
        self.freeze(old)
    }

    fn compare_exchange(&mut self, address: Value, expected: Value, new: Value) -> Value {
        let (at, bits) = (self.pointer(address, 0), new.bits);
        let operands = format!("ptr {at}, i{bits} {expected}, i{bits} {new} seq_cst seq_cst, align {}", bits / 8);
        let both = self.value(bits, format_args!("cmpxchg {operands}"));
        let old = self.value(bits, format_args!("extractvalue {{ i{bits}, i1 }} {both}, 0"));
        self.freeze(old)
    }

    fn jump(&mut self, to: usize) {
        self.line(format_args!("br label %b{to}"));
    }

    fn branch(&mut self, which: Value, then: usize, otherwise: usize) {
        let which = self.truth(which);
        self.line(format_args!("br i1 {which}, label %b{then}, label %b{otherwise}"));
    }

    fn leave(&mut self, result: Value) {
        self.line(format_args!("ret i64 {result}"));
    }

    fn call(&mut self, callee: External, arguments: &[Value]) -> Value {
        let name = match callee {
            External::Outside(target) => self.module.name(target, Some(arguments.len())),
            External::Subprogram(index) => format!("subprogram.{index}"),
        };
        let list: Vec<String> = arguments.iter().map(|value| format!("i64 noundef {value}")).collect();
        self.value(64, format_args!("call noundef i64 @{name}({})", list.join(", ")))
    }

    fn address_of(&mut self, subprogram: usize, _parameters: usize) -> Value {
        self.value(64, format_args!("ptrtoint ptr @subprogram.{subprogram} to i64"))
    }

    fn got(&mut self, target: Target) -> Value {
        let name = self.module.name(target, None);
        self.value(64, format_args!("load i64, ptr @{name}, align 8"))
    }
}
