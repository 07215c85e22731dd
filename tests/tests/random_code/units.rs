//! What the random functions consist of: their shapes, and units of some instructions that leave the stack as it was.

use super::write::{
    ADJUST, BYTES, CARRY, FAULT, FLAGS, FUEL, LOOPS, MODE, OVERFLOW, PARITY, RESUME, SIGN, STATUS, Writer, ZERO,
};

/// What logical operations define.
const LOGIC: u8 = STATUS & !ADJUST;
/// How a signal handler goes on (`tests/victims/equivalence.c`).
const RESUMED: u64 = 0;
const LEFT: u64 = 1;
const SKIPPED: u64 = 2;

/// Status flags as the processor has them.
fn machine_flags(flags: u8) -> u32 {
    let pairs = [(CARRY, 1), (PARITY, 4), (ADJUST, 0x10), (ZERO, 0x40), (SIGN, 0x80), (OVERFLOW, 0x800)];
    pairs.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| bit).sum()
}

impl Writer {
    /// A function's instructions; whether it has a tail that others may jump to.
    pub(super) fn body(&mut self, number: u32) -> bool {
        match self.random.below(20) {
            0 => self.tiny(),
            1 => self.loop_with_live_flags(),
            _ => return self.usual(number),
        }
        false
    }

    /// One or two instructions, often right before the next function.
    fn tiny(&mut self) {
        match self.random.below(5) {
            0 => {}
            1 => self.put("nop"),
            2 => self.put("xor eax, eax"),
            3 => self.put("endbr64"),
            _ => {
                self.put("push 7");
                self.put("pop rdx");
            }
        }
        self.put("ret");
    }

    /// A loop back to the first instruction, at which flags mean something from the second time on.
    fn loop_with_live_flags(&mut self) {
        let (start, last) = (self.label(), self.label());
        self.place(&start, 0);
        if self.random.one_in(3) {
            self.put("endbr64");
        }
        self.put(&format!("mov ecx, dword ptr [r15 + {LOOPS}]"));
        self.put(&format!("jrcxz {last}"));
        self.put("lea ecx, [rcx - 1]");
        self.put(&format!("mov dword ptr [r15 + {LOOPS}], ecx"));
        let (left, right) = (self.register(3), self.source(3));
        self.put(&format!("add {left}, {right}"));
        self.put(&format!("jmp {start}"));
        self.line(&format!("{last}:"));
        self.defined = STATUS;
        self.tell_flags();
        self.put(&format!("mov dword ptr [r15 + {LOOPS}], 3"));
        self.put("ret");
    }

    fn usual(&mut self, number: u32) -> bool {
        if self.random.one_in(3) {
            self.put("endbr64");
        }
        let pushes: Vec<&str> = (0..self.random.below(4)).map(|_| self.register(3)).collect();
        let (frame, way) = (16 * (1 + self.random.below(4)), self.random.below(5));
        match way {
            0 => {
                self.put("push rbp");
                self.put("mov rbp, rsp");
                self.put(&format!("sub rsp, {frame}"));
            }
            1 => pushes.iter().for_each(|register| self.put(&format!("push {register}"))),
            2 => self.put(&format!("lea rsp, [rsp - {frame}]")),
            _ => {}
        }
        let back = self.label();
        let back_at = self.random.below(4);
        let units = 2 + self.random.below(10);
        for unit in 0..units {
            if unit == back_at {
                self.line(&format!("{back}:"));
            }
            self.unit();
        }
        if back_at < units && self.random.one_in(3) {
            self.put(&format!("sub dword ptr [r15 + {FUEL}], 1"));
            let near = if self.random.one_in(3) { "{disp32} " } else { "" };
            self.put(&format!("{near}jg {back}"));
            self.defined = STATUS;
        }
        match way {
            0 => self.put("leave"),
            1 => pushes.iter().rev().for_each(|register| self.put(&format!("pop {register}"))),
            2 => self.put(&format!("lea rsp, [rsp + {frame}]")),
            _ => {}
        }
        let has_tail = self.random.one_in(4);
        if has_tail {
            self.place(&format!(".LT{number}"), 0);
            for _ in 0..1 + self.random.below(3) {
                self.simple();
            }
        }
        if self.random.one_in(3) && self.defined != 0 {
            self.tell_flags();
        }
        self.end();
        has_tail
    }

    /// The function's last instruction.
    fn end(&mut self) {
        let (callee, tail) = (self.callee(), self.callee_tail());
        match (self.random.below(9), callee, tail) {
            (0, Some(callee), _) => {
                let name = self.name(callee);
                self.put(&format!("jmp {name}"));
            }
            (1, Some(callee), _) => {
                let (name, label) = (self.name(callee), self.label());
                self.constant(&format!("{label}: .quad {name}"));
                self.put(&format!("jmp qword ptr [rip + {label}]"));
            }
            (2, Some(callee), _) if self.defined & ZERO != 0 => {
                let name = self.name(callee);
                self.put(&format!("jne {name}"));
                self.put("ret");
            }
            (3 | 4, _, Some(tail)) => self.put(&format!("jmp .LT{tail}")),
            (5, ..) => self.put("rep ret"),
            _ => self.put("ret"),
        }
    }

    /// Some units.
    fn block(&mut self, units: u64) {
        self.depth += 1;
        for _ in 0..units {
            self.unit();
        }
        self.depth -= 1;
    }

    fn block_of_some(&mut self) {
        let units = 1 + self.random.below(3);
        self.block(units);
    }

    /// One unit.
    fn unit(&mut self) {
        let choice = self.random.below(100);
        let nests = self.depth < 2;
        match choice {
            0..40 => self.simple(),
            40..47 => self.flags_unit(),
            47..52 => self.stack_unit(),
            52..57 => self.vector_unit(),
            57..61 => self.locked_unit(),
            61..64 if !self.in_loop => self.string_unit(),
            64..68 => self.relative_unit(),
            68..78 if nests => self.branch_unit(),
            78..82 if nests && !self.in_loop => self.loop_unit(),
            82..88 if nests && !self.in_loop => self.call_unit(),
            88..91 if nests => self.local_call_unit(),
            91..95 if nests => self.table_unit(),
            95..98 => self.fault_unit(),
            98 if !self.in_loop => self.system_call(),
            _ => self.oddity(),
        }
    }

    /// An instruction that computes.
    pub(super) fn simple(&mut self) {
        let size = self.random.below(4) as usize;
        match self.random.below(16) {
            0..5 => self.arithmetic(size),
            5 | 6 => {
                let (to, memory) = (self.register(size), self.memory());
                if self.random.one_in(2) {
                    self.put(&format!("mov {to}, {memory}"));
                } else {
                    self.put(&format!("mov {memory}, {to}"));
                }
            }
            7 => {
                let (to, from) = (self.register(3), self.source(3));
                let (scale, at) = (1 << self.random.below(4), self.random.below(300) as i64 - 150);
                self.put(&format!("lea {to}, [{from} + {from} * {scale} + {at}]"));
            }
            8 => {
                let value = self.random.next() as i64 >> self.random.below(60);
                let to = self.register(3);
                if i32::try_from(value).is_ok() && self.random.one_in(2) {
                    self.put(&format!("mov {to}, {value}"));
                } else {
                    self.put(&format!("movabs {to}, {value}"));
                }
            }
            9 => {
                let small = self.random.below(2) as usize;
                let (to, from, kind) = (self.register(3), self.source(small), self.random.of(&['s', 'z']));
                self.put(&format!("mov{kind}x {to}, {from}"));
            }
            10 => {
                let (left, right) = (self.register(size), self.register(size));
                self.put(&format!("xchg {left}, {right}"));
            }
            11 => self.shift(size),
            12 => self.multiplication(),
            13 => {
                let operation = self.random.of(&["inc", "dec", "neg", "not"]);
                let to = self.register(size);
                self.put(&format!("{operation} {to}"));
                self.defined |= match operation {
                    "not" => 0,
                    "neg" => STATUS,
                    _ => STATUS & !CARRY,
                };
            }
            14 => {
                let size = 2 + self.random.below(2) as usize;
                let to = self.register(size);
                self.put(&format!("bswap {to}"));
            }
            _ => {
                let [to, small] = self.register_of([3, 2]);
                let index = self.random.below(32);
                self.put(&format!("and {small}, {index}"));
                self.defined = LOGIC;
                let by = self.register(3);
                self.put(&format!("mov {by}, qword ptr [r15 + {to} * 4 - 32]"));
            }
        }
    }

    fn arithmetic(&mut self, size: usize) {
        let operation = self.random.of(&["add", "sub", "cmp", "and", "or", "xor", "test", "adc", "sbb"]);
        let needs = matches!(operation, "adc" | "sbb");
        let operation = if needs && self.defined & CARRY == 0 { "add" } else { operation };
        let to = self.register(size);
        match self.random.below(4) {
            0 => {
                let memory = self.memory();
                self.put(&format!("{operation} {memory}, {to}"));
            }
            1 if operation != "test" => {
                let memory = self.memory();
                self.put(&format!("{operation} {to}, {memory}"));
            }
            2 => {
                let value = self.random.next() as i8 as i64 * if self.random.one_in(2) && size > 0 { 99 } else { 1 };
                self.put(&format!("{operation} {to}, {value}"));
            }
            _ => {
                let from = self.source(size);
                self.put(&format!("{operation} {to}, {from}"));
            }
        }
        self.defined = if matches!(operation, "and" | "or" | "xor" | "test") { LOGIC } else { STATUS };
    }

    fn shift(&mut self, size: usize) {
        let by_register = self.random.one_in(2);
        let to = self.register(size);
        if self.random.one_in(3) {
            let operation = self.random.of(&["rol", "ror"]);
            let count = if by_register { "cl".to_owned() } else { (1 + self.random.below(6)).to_string() };
            self.put(&format!("{operation} {to}, {count}"));
            self.defined = self.defined & !OVERFLOW | if by_register { 0 } else { CARRY };
            return;
        }
        let operation = self.random.of(&["shl", "shr", "sar"]);
        if by_register {
            // (By 0, flags stay as they were.)
            if self.random.one_in(3) && !self.in_loop {
                self.put("mov ecx, 0");
                self.put(&format!("{operation} {to}, cl"));
                return;
            }
            self.put(&format!("{operation} {to}, cl"));
            self.defined &= CARRY | PARITY | ZERO | SIGN;
        } else {
            let count = 1 + self.random.below(7);
            self.put(&format!("{operation} {to}, {count}"));
            self.defined = CARRY | PARITY | ZERO | SIGN | if count == 1 { OVERFLOW } else { 0 };
        }
    }

    fn multiplication(&mut self) {
        let (to, from) = (self.register(3), self.source(3));
        match self.random.below(4) {
            0 => {
                self.put(&format!("mul {from}"));
                self.defined = CARRY | OVERFLOW;
            }
            1 => {
                self.put("xor edx, edx");
                self.put("mov r11d, 77");
                self.put("div r11");
                self.defined = 0;
            }
            _ => {
                self.put(&format!("imul {to}, {from}"));
                self.defined = CARRY | OVERFLOW;
            }
        }
    }

    /// Makes the flags part of what can be seen.
    pub(super) fn tell_flags(&mut self) {
        let result = self.result();
        self.put("pushfq");
        self.put(&format!("pop qword ptr {result}"));
        let mask = machine_flags(self.defined);
        self.put(&format!("and qword ptr {result}, {mask}"));
        self.defined = LOGIC;
    }

    /// Something that uses flags.
    fn flags_unit(&mut self) {
        match self.random.below(8) {
            0 if self.defined != 0 => self.tell_flags(),
            1 if self.defined & !OVERFLOW == STATUS & !OVERFLOW => {
                let result = self.result();
                self.put("lahf");
                self.put(&format!("mov qword ptr {result}, rax"));
            }
            2 => {
                self.put("mov ah, 0x91");
                self.put("sahf");
                self.defined = self.defined & OVERFLOW | (STATUS & !OVERFLOW);
            }
            3 => {
                let flags = machine_flags(self.random.next() as u8 & STATUS);
                self.put("pushfq");
                self.put(&format!("and dword ptr [rsp], {}", !0x8d5u32));
                self.put(&format!("or dword ptr [rsp], {flags}"));
                self.put("popfq");
                self.defined = STATUS;
            }
            4 => {
                let set = self.random.of(&["stc", "clc"]);
                self.put(set);
                self.defined |= CARRY;
            }
            5 => {
                let condition = self.condition();
                let (to, from) = (self.register(3), self.source(3));
                self.put(&format!("cmov{condition} {to}, {from}"));
            }
            6 => {
                let condition = self.condition();
                let memory = self.memory();
                self.put(&format!("set{condition} byte ptr {memory}"));
            }
            _ => {
                let condition = self.condition();
                let to = self.register(0);
                self.put(&format!("set{condition} {to}"));
            }
        }
    }

    fn stack_unit(&mut self) {
        let (to, from) = (self.register(3), self.source(3));
        match self.random.below(6) {
            0 => {
                let memory = self.memory();
                self.put(&format!("push qword ptr {memory}"));
                self.put(&format!("pop {to}"));
            }
            1 => {
                let value = self.random.next() as i8;
                self.put(&format!("push {value}"));
                self.simple();
                self.put(&format!("xchg {to}, [rsp]"));
                self.put("lea rsp, [rsp + 8]");
            }
            2 => {
                self.put("push rbp");
                self.put("mov rbp, rsp");
                self.put("sub rsp, 40");
                self.defined = STATUS;
                self.put(&format!("mov [rbp - 24], {from}"));
                self.put("leave");
            }
            3 => {
                self.put(&format!("push {from}"));
                if self.depth < 2 {
                    self.block_of_some();
                }
                self.put(&format!("pop {to}"));
            }
            _ => {
                // What the ABI gives to functions below the stack pointer.
                // (Behind a fault, flags are pushed.)
                let faults = self.random.one_in(3);
                let at = 8 * (if faults { 2 + self.random.below(15) } else { 1 + self.random.below(16) });
                self.put(&format!("mov [rsp - {at}], {from}"));
                self.simple();
                if faults {
                    self.fault_unit();
                }
                let read = self.register(3);
                self.put(&format!("mov {read}, [rsp - {at}]"));
            }
        }
    }

    fn vector_unit(&mut self) {
        let [a, b] = [self.random.below(16), self.random.below(16)];
        let memory = self.memory();
        let (to, from) = (self.register(3), self.source(3));
        match self.random.below(10) {
            0 => self.put(&format!("movdqu xmm{a}, xmmword ptr {memory}")),
            1 => self.put(&format!("movups xmmword ptr {memory}, xmm{a}")),
            2 => self.put(&format!("paddd xmm{a}, xmm{b}")),
            3 => self.put(&format!("pshufd xmm{a}, xmm{b}, 27")),
            4 => self.put(&format!("movq xmm{a}, {from}")),
            5 => self.put(&format!("movq {to}, xmm{a}")),
            6 => self.put(&format!("cvtsi2sd xmm{a}, {from}")),
            7 => {
                self.put(&format!("ucomisd xmm{a}, xmm{b}"));
                self.defined = STATUS;
            }
            8 if self.kind.avx => {
                self.put(&format!("vmovdqu ymm{a}, ymmword ptr {memory}"));
                self.put(&format!("vpaddq ymm{b}, ymm{a}, ymm{b}"));
                self.put(&format!("vextracti128 xmm{a}, ymm{b}, 1"));
                self.put("vzeroupper");
            }
            _ => self.put(&format!("pxor xmm{a}, xmm{b}")),
        }
    }

    fn locked_unit(&mut self) {
        let size = 2 + self.random.below(2) as usize;
        let (memory, pointer) = (self.memory(), Writer::pointer(size));
        let register = self.register(size);
        match self.random.below(5) {
            0 => self.put(&format!("lock add {pointer} {memory}, {register}")),
            1 => self.put(&format!("lock xadd {pointer} {memory}, {register}")),
            2 => self.put(&format!("lock cmpxchg {pointer} {memory}, {register}")),
            3 => {
                self.put(&format!("xchg {pointer} {memory}, {register}"));
                return;
            }
            _ => {
                // As in glibc: the prefix is jumped over.
                let (condition, label) = (self.condition(), self.label());
                self.put(&format!("j{condition} {label} + 1"));
                self.line(&format!("{label}:"));
                self.put(&format!("lock sub {pointer} {memory}, {register}"));
            }
        }
        self.defined = STATUS;
    }

    fn string_unit(&mut self) {
        let down = self.random.one_in(3);
        let count = self.random.of(&[0, 0, 1, 5, 16]);
        self.put("lea rdi, [r15 + 128]");
        self.put("lea rsi, [r15 - 128]");
        self.put(&format!("mov ecx, {count}"));
        if down {
            self.put("std");
        }
        match self.random.below(6) {
            0 => self.put("rep movsb"),
            1 => self.put("rep stosd"),
            2 => self.put("movsq"),
            choice => {
                self.put(["repe cmpsb", "repne scasb", "repe scasd"][choice as usize - 3]);
                // (Of no bytes, they leave the flags as they were.)
                self.defined = if count > 0 { STATUS } else { self.defined };
            }
        }
        if down {
            self.put("cld");
        }
    }

    /// Data, or code, that an instruction finds by its own address.
    fn relative_unit(&mut self) {
        let label = self.label();
        let (to, from) = (self.register(3), self.source(3));
        let value = self.random.next() as i32;
        self.constant(&format!("{label}: .quad {value}"));
        match self.random.below(6) {
            0 => {
                self.put(&format!("mov qword ptr [rip + {label}], {from}"));
                self.simple();
                self.put(&format!("add {to}, qword ptr [rip + {label}]"));
                self.defined = STATUS;
                return;
            }
            1 => self.put(&format!("mov dword ptr [rip + {label}], {value}")),
            2 => self.put(&format!("lea {to}, [rip + {label}]")),
            3 => {
                self.put(&format!("push qword ptr [rip + .Lc{label}]"));
                self.put(&format!("pop {to}"));
                self.constant(&format!(".Lc{label}: .quad {value}"));
                return;
            }
            4 => {
                self.put(&format!("cmp dword ptr [rip + .Lc{label}], {}", value >> 8));
                self.constant(&format!(".Lc{label}: .quad {value}"));
                self.defined = STATUS;
                return;
            }
            _ => {
                let here = self.label();
                self.line(&format!("{here}:"));
                self.put(&format!("lea {to}, [rip + {here}]"));
                return;
            }
        }
        let again = self.register(3);
        self.put(&format!("mov {again}, qword ptr [rip + .Lc{label}]"));
        self.constant(&format!(".Lc{label}: .quad {}", i64::from(value) * 3));
    }

    /// A branch over some instructions.
    fn branch_unit(&mut self) {
        let label = self.label();
        let near = if self.random.one_in(3) { "{disp32} " } else { "" };
        if self.random.one_in(8) {
            self.put(&format!("jrcxz {label}"));
            let before = self.defined;
            self.simple();
            self.place(&label, before);
            return;
        }
        let condition = self.condition();
        let before = self.defined;
        self.put(&format!("{near}j{condition} {label}"));
        if self.random.one_in(6) {
            // A cold part elsewhere.
            let back = self.label();
            self.put(&format!("jmp {back}"));
            self.line(".pushsection .text.cold, \"ax\"");
            self.line(&format!("{label}:"));
            self.simple();
            self.put(&format!("jmp {back}"));
            self.line(".popsection");
            self.place(&back, before);
            return;
        }
        self.block_of_some();
        if self.random.one_in(3) {
            let (end, then) = (self.label(), self.defined);
            self.put(&format!("{near}jmp {end}"));
            self.line(&format!("{label}:"));
            self.defined = before;
            self.block_of_some();
            self.place(&end, then);
        } else {
            self.place(&label, before);
        }
    }

    fn loop_unit(&mut self) {
        let label = self.label();
        let times = 1 + self.random.below(4);
        let keeps_flags = self.random.one_in(2);
        if keeps_flags {
            self.put("add rax, rdx");
        }
        self.put(&format!("mov ecx, {times}"));
        self.line(&format!("{label}:"));
        self.defined = if keeps_flags { STATUS } else { 0 };
        self.in_loop = true;
        if keeps_flags {
            // (`loop` reaches 128 bytes.)
            (0..1 + self.random.below(3)).for_each(|_| self.simple());
        } else {
            self.block_of_some();
        }
        self.in_loop = false;
        if keeps_flags {
            self.put("sub rax, rdx");
            let out = self.label();
            match self.random.below(3) {
                0 => self.put(&format!("loop {label}")),
                1 => {
                    self.put("lea ecx, [rcx - 1]");
                    self.put(&format!("jrcxz {out}"));
                    self.put(&format!("jmp {label}"));
                }
                _ => self.put(&format!("loopne {label}")),
            }
            self.line(&format!("{out}:"));
        } else {
            self.put("dec ecx");
            self.put(&format!("jne {label}"));
        }
        self.defined = STATUS & !if keeps_flags { 0 } else { CARRY };
    }

    /// A call of another function.
    fn call_unit(&mut self) {
        let Some(callee) = self.callee() else { return self.simple() };
        let (name, label) = (self.name(callee), self.label());
        match self.random.below(7) {
            0 => {
                self.put(&format!("lea r11, [rip + {name}]"));
                self.put("call r11");
            }
            1 => {
                self.constant(&format!("{label}: .quad {name}"));
                self.put(&format!("call qword ptr [rip + {label}]"));
            }
            2 => {
                self.put(&format!("lea r11, [rip + {name}]"));
                self.put("push r11");
                self.put("call qword ptr [rsp]");
                self.put("lea rsp, [rsp + 8]");
            }
            3 => {
                let result = self.result();
                self.put(&format!("lea r11, [rip + {name}]"));
                self.put(&format!("mov qword ptr {result}, r11"));
                self.put(&format!("call qword ptr {result}"));
            }
            _ => self.put(&format!("call {name}")),
        }
        self.defined = 0;
    }

    /// Calls within the function, also ones that never return.
    fn local_call_unit(&mut self) {
        let (label, end) = (self.label(), self.label());
        let to = self.register(3);
        match self.random.below(6) {
            0 => {
                self.put(&format!("call {label}"));
                self.line(&format!("{label}:"));
                self.put(&format!("pop {to}"));
            }
            5 => {
                // The callee takes its arguments off the stack.
                self.put(&format!("push {to}"));
                self.put("push 3");
                self.put(&format!("call {label}"));
                self.put(&format!("jmp {end}"));
                self.line(&format!("{label}:"));
                self.put(&format!("mov {to}, [rsp + 8]"));
                self.put("ret 16");
                self.line(&format!("{end}:"));
            }
            1 => {
                self.put(&format!("call {label}"));
                self.line(&format!("{label}:"));
                self.put("add rsp, 8");
            }
            2 => {
                self.put(&format!("call {label}"));
                self.put(&format!("jmp {end}"));
                self.line(&format!("{label}:"));
                self.defined = 0;
                self.simple();
                self.put("ret");
                self.line(&format!("{end}:"));
            }
            3 => {
                // A call whose return address is moved.
                self.put(&format!("call {label}"));
                self.put("ud2");
                self.put(&format!("jmp {end}"));
                self.line(&format!("{label}:"));
                self.put("add qword ptr [rsp], 2");
                self.put("ret");
                self.line(&format!("{end}:"));
            }
            _ => {
                self.put(&format!("lea r11, [rip + {label}]"));
                self.put("push r11");
                self.put("ret");
                self.line(&format!("{label}:"));
            }
        }
        self.defined = 0;
    }

    /// A jump to one of several places.
    fn table_unit(&mut self) {
        let (table, end) = (self.label(), self.label());
        let count = 1 << (1 + self.random.below(3));
        let [index, small] = self.register_of([3, 2]);
        self.put(&format!("and {small}, {}", count - 1));
        self.defined = LOGIC;
        let way = self.random.below(3);
        if way == 0 {
            // Places of equal size, reached by arithmetic.
            self.put(&format!("lea r11, [rip + {table}]"));
            self.put(&format!("lea r11, [r11 + {index} * 8]"));
            self.put("jmp r11");
            self.line(&format!("{table}:"));
            for _ in 0..count {
                let (here, to) = (self.label(), self.register(3));
                self.line(&format!("{here}:"));
                self.put(&format!("lea {to}, [{to} + 8]"));
                if count < 8 {
                    self.put(&format!("jmp {end}"));
                }
                self.line(&format!(".skip 8 - (. - {here}), 0x90"));
            }
            self.line(&format!("{end}:"));
            return;
        }
        let cases: Vec<String> = (0..count).map(|_| self.label()).collect();
        if way == 1 {
            let entries: Vec<String> = cases.iter().map(|case| format!("{case} - {table}")).collect();
            self.constant(&format!(".p2align 2\n{table}: .long {}", entries.join(", ")));
            self.put(&format!("lea r11, [rip + {table}]"));
            self.put(&format!("movsxd {index}, dword ptr [r11 + {index} * 4]"));
            self.put(&format!("add {index}, r11"));
            self.put(&format!("jmp {index}"));
            self.defined = STATUS;
        } else {
            self.constant(&format!(".p2align 3\n{table}: .quad {}", cases.join(", ")));
            if self.kind.fixed {
                self.put(&format!("jmp qword ptr [{table} + {index} * 8]"));
            } else {
                self.put(&format!("lea r11, [rip + {table}]"));
                self.put(&format!("jmp qword ptr [r11 + {index} * 8]"));
            }
        }
        let at_case = self.defined;
        let mut at_end = at_case;
        for case in &cases {
            self.line(&format!("{case}:"));
            self.defined = at_case;
            self.simple();
            at_end &= self.defined;
            if self.random.one_in(2) {
                self.put(&format!("jmp {end}"));
            }
            // (One case may go on to the next, where less is defined.)
            self.defined = at_case;
        }
        self.defined = at_end;
        self.line(&format!("{end}:"));
    }

    /// An instruction that faults.
    pub(super) fn fault_unit(&mut self) {
        let (fault, resume) = (self.label(), self.label());
        let kind = self.random.below(12);
        // Handlers that skip the instruction cannot do so where it was a jump, or is no copy in a stub, as for calls.
        let mode = match self.random.below(10) {
            0 => LEFT,
            1..4 if !matches!(kind, 1 | 8..11) => SKIPPED,
            _ => RESUMED,
        };
        // What is compared must be used behind it, or nobody has to keep it; no call passes flags, nor one that faults.
        let compares = self.defined != 0 && !matches!(kind, 7 | 8 | 10) && mode != LEFT && self.random.one_in(2);
        let flags = if compares { machine_flags(self.defined) } else { 0 };
        self.put(&format!("mov dword ptr [r15 + {MODE}], {mode}"));
        self.put(&format!("mov dword ptr [r15 + {FLAGS}], {flags}"));
        // (In Intel's syntax, a difference of labels would be the address of an operand.)
        let store = |size: &str, value: &str, at: i64| {
            format!(".att_syntax prefix; mov{size} ${value}, {at}(%r15); .intel_syntax noprefix")
        };
        self.put(&store("q", &format!("{fault} - code_start"), FAULT));
        if mode == RESUMED {
            self.put(&format!("lea r11, [rip + {resume}]"));
            self.put(&format!("mov qword ptr [r15 + {RESUME}], r11"));
        } else {
            self.put(&store("l", &format!("{resume} - {fault}"), BYTES));
        }
        let (to, memory) = (self.register(2), self.random.below(64) * 8);
        match kind {
            4 | 5 => self.put(&format!("mov r11d, {memory}")),
            6 => self.put("movabs r11, 0x8000000000000000"),
            7 => self.put("mov r11d, 0"),
            8..11 => self.put(&format!("mov r11d, {}", memory + 16)),
            _ => {}
        }
        self.line(&format!("{fault}:"));
        match kind {
            0 => self.put("ud2"),
            1 => self.put("int3"),
            2 => self.put("hlt"),
            3 => self.put(&format!("mov {to}, dword ptr ds:[{memory}]")),
            4 | 6 => self.put(&format!("mov {to}, [r11]")),
            5 => self.put(&format!("mov [r11 + 8], {to}")),
            7 => self.put("div r11"),
            8 => self.put("call r11"),
            9 => self.put("jmp r11"),
            10 => self.put("call qword ptr [r11 + 16]"),
            _ => self.put("mov byte ptr [rip + code_start], al"),
        }
        self.line(&format!("{resume}:"));
        if kind == 8 {
            self.put("lea rsp, [rsp + 8]");
        }
        if compares {
            self.tell_flags();
        }
        self.defined = 0;
    }

    /// One that the kernel does not know.
    fn system_call(&mut self) {
        self.put("mov eax, 5000");
        self.put("syscall");
        // (It leaves these two as nobody relies on; and the trap behind it is lost.)
        self.put_stepped("mov ecx, 3", false);
        self.put("mov r11d, 4");
        self.defined = 0;
    }

    fn oddity(&mut self) {
        let to = self.register(3);
        match self.random.below(12) {
            0 => {
                // A jump into its own last byte, with which another instruction begins.
                let label = self.label();
                self.line(&format!("{label}:"));
                self.put(".byte 0xeb, 0xff, 0xc0");
                self.defined = self.defined & CARRY | (STATUS & !CARRY);
            }
            1 => {
                let which = self.random.of(&["nop", "pause", "lfence", "endbr64", "nop word ptr [rax + rax]"]);
                self.put(which);
            }
            2 => self.put("nop dword ptr [rax + rax * 1 + 0x200]"),
            3 => {
                let to = self.register(2);
                self.put(&format!("xchg {to}, {to}"));
            }
            4 => self.put("cqo"),
            5 => self.put("cdqe"),
            6 => {
                // Data among the code.
                let label = self.label();
                let bytes: Vec<String> =
                    (0..1 + self.random.below(12)).map(|_| (self.random.next() as u8).to_string()).collect();
                self.put(&format!("jmp {label}"));
                self.line(&format!(".byte {}", bytes.join(", ")));
                self.line(&format!("{label}:"));
            }
            7 => {
                // Code in the operand of another instruction: two `nop`, and a jump to what follows.
                let (condition, label) = (self.condition(), self.label());
                self.put(&format!("j{condition} {label} + 2"));
                self.line(&format!("{label}:"));
                self.put("mov r11d, 0x00eb9090");
            }
            8 => {
                self.put("push rsp");
                self.put(&format!("pop {to}"));
            }
            9 => self.put(&format!("lea {to}, [rsp - 16]")),
            10 => self.put(&format!("mov {to}, fs:[0]")),
            _ => self.put(&format!("mov {to}, rsp")),
        }
    }
}
