//! Random programs that are right, whatever their numbers: for engines, which must do the same with them.

use ring3_generate::Random;
use ring3_isa::Insn;
use ring3_isa::code::{BPF_ALU, BPF_ALU64, BPF_CALL, BPF_EXIT, BPF_JMP, BPF_JMP32, BPF_LDX, BPF_PSEUDO_CALL, BPF_X};

/// Bytes of memory: what is read first, and room for what is left.
pub(crate) const MEMORY_BYTES: usize = 160;
/// Bytes that steps read and write.
const USED_BYTES: u64 = 96;
/// Where registers are left.
const LEFT_AT: i16 = 96;
/// Eight-byte slots of the stack that are in use.
const SLOTS: u64 = 4;
/// Instructions at the start that fill the stack and the registers.
pub(crate) const FILL_INSNS: usize = 1 + SLOTS as usize + MAIN.len();
/// Registers that steps compute with; r6 counts rounds, r9 is the memory.
const MAIN: [u8; 8] = [0, 1, 2, 3, 4, 5, 7, 8];
const CALLEE: [u8; 6] = [0, 1, 2, 3, 4, 5];

const OPERATIONS: [u8; 12] = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xa0, 0xb0, 0xc0];
const CONDITIONS: [u8; 11] = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0];
/// Size codes and bytes.
const SIZES: [(u8, u64); 4] = [(0x10, 1), (0x08, 2), (0x00, 4), (0x18, 8)];
const ATOMICS: [i32; 10] = [0x00, 0x01, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1];

const CMPXCHG: i32 = 0xf1;
const FETCH: i32 = 0x01;
/// `goto pc+0`
pub(crate) const NOTHING: Insn = Insn::new(0x05, 0, 0, 0, 0);

struct Writer<'r> {
    random: &'r mut Random,
    insns: Vec<Insn>,
    registers: &'static [u8],
    /// Whether r9 leads to the memory.
    has_memory: bool,
    /// Calls of subprograms, by place and number of the subprogram.
    calls: Vec<(usize, usize)>,
    subprograms: u64,
}

impl Writer<'_> {
    fn push(&mut self, opcode: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn::new(opcode, dst, src, off, imm));
    }

    fn register(&mut self) -> u8 {
        self.random.of(self.registers)
    }

    fn constant(&mut self) -> i32 {
        if self.random.one_in(3) { self.random.below(16) as i32 - 8 } else { self.random.edge() as i32 }
    }

    fn class(&mut self, wide: u8, narrow: u8) -> u8 {
        if self.random.one_in(2) { wide } else { narrow }
    }

    fn compute(&mut self) {
        let (class, dst, src) = (self.class(BPF_ALU64, BPF_ALU), self.register(), self.register());
        let bits = if class == BPF_ALU64 { 64 } else { 32 };
        match self.random.below(10) {
            0 => self.push(class | 0x80, dst, 0, 0, 0),
            1 => {
                let (opcode, bits) = (self.random.of(&[0xd4, 0xdc, 0xd7]), self.random.of(&[16, 32, 64]));
                self.push(opcode, dst, 0, 0, bits);
            }
            2 => {
                let off = if bits == 64 { self.random.of(&[8, 16, 32]) } else { self.random.of(&[8, 16]) };
                self.push(class | 0xb0 | BPF_X, dst, src, off, 0);
            }
            3 => {
                let value = self.random.edge();
                self.push(0x18, dst, 0, 0, value as i32);
                self.push(0, 0, 0, 0, (value >> 32) as i32);
            }
            _ => {
                let operation = self.random.of(&OPERATIONS);
                let signed = i16::from(matches!(operation, 0x30 | 0x90) && self.random.one_in(2));
                if self.random.one_in(2) {
                    return self.push(class | operation | BPF_X, dst, src, signed, 0);
                }
                let constant = match (operation, self.constant()) {
                    (0x60 | 0x70 | 0xc0, value) => value & (bits - 1),
                    (0x30 | 0x90, 0) => -1,
                    (_, value) => value,
                };
                self.push(class | operation, dst, 0, signed, constant);
            }
        }
    }

    /// A base register and an offset of something of so many bytes; on the stack it is aligned.
    fn place(&mut self, bytes: u64, aligned: bool) -> (u8, i16) {
        if self.has_memory && !self.random.one_in(3) {
            let step = if aligned { bytes } else { 1 };
            return (9, (self.random.below((USED_BYTES - bytes) / step + 1) * step) as i16);
        }
        (10, -((1 + self.random.below(SLOTS * 8 / bytes)) as i16 * bytes as i16))
    }

    fn access(&mut self) {
        let (size, bytes) = self.random.of(&SIZES);
        let register = self.register();
        match self.random.below(8) {
            0..=2 => {
                let (base, off) = self.place(bytes, false);
                let mode = if bytes < 8 && self.random.one_in(3) { 0x80 } else { 0x60 };
                self.push(BPF_LDX | mode | size, register, base, off, 0);
            }
            3 | 4 => {
                let (base, off) = self.place(bytes, false);
                self.push(0x63 | size, base, register, off, 0);
            }
            5 => {
                let ((base, off), constant) = (self.place(bytes, false), self.constant());
                self.push(0x62 | size, base, 0, off, constant);
            }
            6 => {
                let (base, off) = self.place(bytes, true);
                let (acquires, dst, src) =
                    if self.random.one_in(2) { (0x100, register, base) } else { (0x110, base, register) };
                self.push(0xc3 | size, dst, src, off, acquires);
            }
            _ => {
                let (size, bytes) = self.random.of(&SIZES[2..]);
                let ((base, off), operation) = (self.place(bytes, true), self.random.of(&ATOMICS));
                self.push(0xc3 | size, base, register, off, operation);
                if operation == CMPXCHG && bytes == 4 {
                    self.insns.push(NOTHING);
                }
            }
        }
    }

    /// A jump over what `body` writes.
    fn skip(&mut self, body: impl FnOnce(&mut Self)) {
        let (class, condition) = (self.class(BPF_JMP, BPF_JMP32), self.random.of(&CONDITIONS));
        let (dst, src, at) = (self.register(), self.register(), self.insns.len());
        if self.random.one_in(2) {
            self.push(class | condition | BPF_X, dst, src, 0, 0);
        } else {
            let constant = self.constant();
            self.push(class | condition, dst, 0, 0, constant);
        }
        body(self);
        self.insns[at].off = (self.insns.len() - at - 1) as i16;
    }

    /// Rounds of what `body` writes.
    fn rounds(&mut self, body: impl FnOnce(&mut Self)) {
        self.push(0xb7, 6, 0, 0, 0);
        let top = self.insns.len();
        body(self);
        self.push(0x07, 6, 0, 0, 1);
        let (rounds, back) = (1 + self.random.below(5) as i32, top as i16 - self.insns.len() as i16 - 1);
        self.push(0xa5, 6, 0, back, rounds);
    }

    fn call(&mut self) {
        let callee = self.random.below(self.subprograms) as usize;
        self.calls.push((self.insns.len(), callee));
        self.push(BPF_CALL, 0, BPF_PSEUDO_CALL, 0, 0);
        // What a call leaves nothing in is read anew.
        for register in 1..6 {
            let at = self.random.below(USED_BYTES / 8) as i16 * 8;
            self.push(0x79, register, 9, at, 0);
        }
    }

    fn steps(&mut self, count: u64, depth: u32) {
        for _ in 0..count {
            let inner = 1 + self.random.below(4);
            match self.random.below(16) {
                0 | 1 if depth > 0 => self.skip(|writer| writer.steps(inner, depth - 1)),
                2 if depth == 2 && self.has_memory => self.rounds(|writer| writer.steps(inner, depth - 1)),
                3 if self.subprograms > 0 => self.call(),
                4..8 => self.access(),
                _ => self.compute(),
            }
        }
    }

    fn fill_slots(&mut self) {
        for slot in 1..=SLOTS as i16 {
            let constant = self.constant();
            self.push(0x7a, 10, 0, -8 * slot, constant);
        }
    }
}

/// The program with `w0 = w0` after each 32-bit compare-and-exchange, where [`NOTHING`] was.
pub(crate) fn with_extensions(insns: &[Insn]) -> Vec<Insn> {
    let mut extended = insns.to_vec();
    for (at, pair) in insns.windows(2).enumerate() {
        if pair[0].opcode == 0xc3 && pair[0].imm == CMPXCHG && pair[1] == NOTHING {
            extended[at + 1] = Insn::new(0xbc, 0, 0, 0, 0);
        }
    }
    extended
}

/// The program with loads instead of atomic operations that fetch from the stack.
pub(crate) fn without_fetches(insns: &[Insn]) -> Vec<Insn> {
    let load = |insn: &Insn| {
        let fetches = matches!(insn.opcode, 0xc3 | 0xdb) && insn.imm & FETCH != 0 && insn.dst() == 10;
        let register = if insn.imm == CMPXCHG { 0 } else { insn.src() };
        let load = Insn::new(BPF_LDX | 0x60 | insn.opcode & 0x18, register, 10, insn.off, 0);
        if fetches { load } else { *insn }
    };
    insns.iter().map(load).collect()
}

/// A program, and the memory that it is for.
pub(crate) fn program(random: &mut Random) -> (Vec<Insn>, Vec<u8>) {
    let memory: Vec<u8> = (0..MEMORY_BYTES / 8).flat_map(|_| random.edge().to_le_bytes()).collect();
    let subprograms = random.below(3);
    let mut main = Writer { random, insns: vec![], registers: &MAIN, has_memory: true, calls: vec![], subprograms };
    main.push(0xbf, 9, 1, 0, 0);
    main.fill_slots();
    for (at, register) in (0..).step_by(8).zip(MAIN) {
        main.push(0x79, register, 9, at, 0);
    }
    let count = 4 + main.random.below(40);
    main.steps(count, 2);
    for (at, register) in (LEFT_AT..).step_by(8).zip(MAIN) {
        main.push(0x7b, 9, register, at, 0);
    }
    main.push(BPF_EXIT, 0, 0, 0, 0);
    let (mut insns, calls) = (main.insns, main.calls);
    let mut starts = vec![];
    for _ in 0..subprograms {
        starts.push(insns.len());
        let mut writer =
            Writer { random, insns: vec![], registers: &CALLEE, has_memory: false, calls: vec![], subprograms: 0 };
        writer.push(0xbf, 0, 1, 0, 0);
        writer.fill_slots();
        let count = 1 + writer.random.below(12);
        writer.steps(count, 1);
        writer.push(BPF_EXIT, 0, 0, 0, 0);
        insns.extend(writer.insns);
    }
    for (at, callee) in calls {
        insns[at].imm = starts[callee] as i32 - at as i32 - 1;
    }
    // Who is not called may not be there.
    if let Some(unused) = (0..starts.len()).find(|callee| !is_called(&insns, starts[*callee])) {
        insns.truncate(starts[unused]);
        let cut = insns.len();
        for (at, insn) in insns.iter_mut().enumerate() {
            if insn.opcode == BPF_CALL && at as i64 + 1 + i64::from(insn.imm) >= cut as i64 {
                *insn = Insn::new(0xb7, 0, 0, 0, 7);
            }
        }
    }
    (insns, memory)
}

fn is_called(insns: &[Insn], start: usize) -> bool {
    insns
        .iter()
        .enumerate()
        .any(|(at, insn)| insn.opcode == BPF_CALL && at as i64 + 1 + i64::from(insn.imm) == start as i64)
}
