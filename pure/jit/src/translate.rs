//! What a program's functions do, said to an [`Emitter`].
//!
//! BPF registers are variables, and so is the environment pointer, which is the last argument of every call; the BPF stack is
//! memory of the frame. Semantics are RFC 9669's: division by zero gives 0, remainder by zero the dividend, shifts use the
//! low bits of their count, 32-bit results are zero-extended.

mod host;
mod ids;

use std::collections::BTreeMap;
use std::mem::offset_of;

use ring3_isa::{AluOp, AtomicOp, Call, Cond, Immediate, Op, Operand, Size, Width, op};
use ring3_layout::control::{Attachment, GotEntry};
use ring3_layout::map::{BUCKET_BYTES, ELEMENT_HASH_OFFSET, ELEMENT_KEY_OFFSET, HASH_MULTIPLIER, TABLES_OFFSET};
use ring3_layout::packet::{SK_BUFF_POINTERS, XDP_POINTERS, has_packet_context, packet_context_offset};
use ring3_layout::region::got_offset;
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::helper;
use ring3_verifier::liveness::helper_arguments;
use ring3_verifier::{HashShape, MapShape, Subprogram, Verified};

use crate::emit::{Emitter, External, VARIABLES};
use crate::liveness::{Takes, takes};
use crate::{FUEL, Options, Target};

/// Offset of the fuel word in the thread block.
const FUEL_OFFSET: i32 = offset_of!(ThreadBlock, fuel) as i32;
/// Offsets of the words of tail calls there.
const TAIL_TARGET_OFFSET: i32 = offset_of!(ThreadBlock, tail_target) as i32;
const TAIL_CALLS_OFFSET: i32 = offset_of!(ThreadBlock, tail_calls) as i32;
/// Offset of the word of the context there.
const CONTEXT_OFFSET: i32 = offset_of!(ThreadBlock, context) as i32;
/// The variable of the environment, behind those of the registers.
const ENV: usize = VARIABLES - 1;

/// A function of a program's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A subprogram, by index. 0 is where a tail call goes to.
    Subprogram(usize),
    /// What a program with tail calls is entered by: it runs subprogram 0, and then what that goes on with.
    Entry,
}

/// Rounds that a run has; `None`: nobody counts them.
fn rounds(program: &Verified, options: &Options) -> Option<i64> {
    let rounds = options.rounds.map(|rounds| i64::from(rounds).min(FUEL));
    rounds.or(program.needs_fuel().then_some(FUEL))
}

/// A program on its way to code.
pub struct Translation<'a> {
    program: &'a Verified,
    takes: Vec<Takes>,
    options: Options,
}

impl<'a> Translation<'a> {
    /// Of this program.
    pub fn new(program: &'a Verified, options: &Options) -> Translation<'a> {
        Translation { program, takes: takes(program, rounds(program, options).is_some()), options: *options }
    }

    /// The functions that there are to be, in the order in which they are to lie.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let entry = self.program.tail_calls().then_some(Part::Entry);
        (0..self.program.subprograms().len()).map(Part::Subprogram).chain(entry)
    }

    /// Parameters of a function, all of 64 bits; as many as calls give it.
    pub fn parameters(&self, part: Part) -> usize {
        match part {
            Part::Entry | Part::Subprogram(0) => 2,
            Part::Subprogram(index) => parameters(self.takes[index]),
        }
    }

    /// Makes a function.
    pub fn emit<E: Emitter>(&self, part: Part, emitter: &mut E) {
        match part {
            Part::Entry => entry(emitter),
            Part::Subprogram(index) => self.subprogram(index, emitter),
        }
    }

    fn subprogram<E: Emitter>(&self, index: usize, emitter: &mut E) {
        let (program, takes) = (self.program, &self.takes[..]);
        let subprogram = program.subprograms()[index];
        let arguments = emitter.enter();
        let bytes = subprogram.stack_bytes;
        let (has_stack, known) = (bytes > 0, [None; VARIABLES]);
        let frame = if has_stack { emitter.stack(bytes) } else { emitter.constant(Size::Dw, 0) };
        let (is_main, blocks) = (index == 0, BTreeMap::new());
        let masks = self.options.blinding.map(|seed| Masks(seed.wrapping_add(index as u64)));
        let rounds = rounds(program, &self.options);
        let mut translator = Translator {
            program,
            takes,
            emitter,
            frame,
            has_stack,
            is_main,
            blocks,
            masks,
            rounds,
            known,
            ended: false,
        };
        translator.make_blocks(subprogram.start, subprogram.end);
        translator.enter(index, subprogram, &arguments);
        let mut at = subprogram.start;
        while at < subprogram.end {
            let decoded = op(program.insns(), at).expect("verified");
            translator.begin(at);
            if program.is_live(at) {
                translator.translate(at, decoded);
            } else {
                translator.end_dead();
            }
            at += if program.insns()[at].is_wide() { 2 } else { 1 };
        }
    }
}

struct Translator<'a, E: Emitter> {
    program: &'a Verified,
    takes: &'a [Takes],
    emitter: &'a mut E,
    /// r10.
    frame: E::Value,
    /// It has a stack: r10 is an address.
    has_stack: bool,
    /// It is the program's entry, not what that calls.
    is_main: bool,
    blocks: BTreeMap<usize, E::Block>,
    /// What constants of the program are hidden by.
    masks: Option<Masks>,
    /// What the run's fuel is, if it has any.
    rounds: Option<i64>,
    /// Which registers have been given which number, in the current block.
    known: [Option<i32>; VARIABLES],
    /// The current block has its jump or return.
    ended: bool,
}

/// Numbers that nobody knows before who does not know the first one (splitmix64: Steele, Lea, Flood, OOPSLA 2014).
struct Masks(u64);

impl Masks {
    /// For a value, no wider than that.
    fn next(&mut self, value: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mask = (mixed ^ mixed >> 31) as i64;
        if i32::try_from(value).is_ok() { i64::from(mask as i32) } else { mask }
    }
}

/// A word of the agent's that is 0.
const ZERO: &str = "ring3_zero";
/// The agent's routine that goes on with the program of a tail call, and with what that one goes on with.
const TAIL_RUN: &str = "ring3_tail_run";
/// The agent's routine for runs that end because they have no fuel left.
const RUN_DRY: &str = "ring3_run_dry";

fn entry<E: Emitter>(emitter: &mut E) {
    let arguments = emitter.enter();
    let (tail, end) = (emitter.block(), emitter.block());
    let (env, zero) = (arguments[1], emitter.constant(Size::Dw, 0));
    emitter.store(Size::Dw, zero, env, TAIL_CALLS_OFFSET);
    emitter.store(Size::Dw, zero, env, TAIL_TARGET_OFFSET);
    let result = emitter.call(External::Subprogram(0), &arguments);
    let target = emitter.load(Size::Dw, false, env, TAIL_TARGET_OFFSET);
    emitter.branch(target, tail, end);
    emitter.begin(tail);
    let tail_result = emitter.call(External::Outside(Target::Symbol(TAIL_RUN)), &arguments);
    emitter.leave(tail_result);
    emitter.begin(end);
    emitter.leave(result);
}

/// Parameters of a subprogram that is not the entry.
fn parameters(takes: Takes) -> usize {
    takes.arguments().count() + usize::from(takes.takes_env())
}

/// What operations of a width have.
fn size_of_width(width: Width) -> Size {
    match width {
        Width::W32 => Size::W,
        Width::W64 => Size::Dw,
    }
}

/// The agent's lookup for maps of a type with keys of this size, if it has one. Per-CPU ones want a CPU as well.
fn lookup_symbol(map_type: u32, key_size: u32) -> Option<&'static str> {
    let symbols = match map_type {
        map_type::HASH | map_type::HASH_OF_MAPS => {
            ["ring3_hash_lookup_4", "ring3_hash_lookup_8", "ring3_hash_lookup_16", "ring3_hash_lookup_64"]
        }
        map_type::PERCPU_HASH => [
            "ring3_percpu_hash_lookup_4",
            "ring3_percpu_hash_lookup_8",
            "ring3_percpu_hash_lookup_16",
            "ring3_percpu_hash_lookup_64",
        ],
        map_type::LRU_HASH => [
            "ring3_lru_hash_lookup_4",
            "ring3_lru_hash_lookup_8",
            "ring3_lru_hash_lookup_16",
            "ring3_lru_hash_lookup_64",
        ],
        map_type::LRU_PERCPU_HASH => [
            "ring3_lru_percpu_hash_lookup_4",
            "ring3_lru_percpu_hash_lookup_8",
            "ring3_lru_percpu_hash_lookup_16",
            "ring3_lru_percpu_hash_lookup_64",
        ],
        map_type::LPM_TRIE if key_size == 8 => return Some("ring3_trie_lookup_8"),
        map_type::LPM_TRIE if key_size == 20 => return Some("ring3_trie_lookup_20"),
        _ => return None,
    };
    let place = [4, 8, 16, 64].iter().position(|size| *size == key_size)?;
    symbols.get(place).copied()
}

impl<E: Emitter> Translator<'_, E> {
    /// Blocks begin at jump targets and behind jumps.
    fn make_blocks(&mut self, start: usize, end: usize) {
        let mut starts = vec![start];
        let mut at = start;
        while at < end {
            let next = at + if self.program.insns()[at].is_wide() { 2 } else { 1 };
            match op(self.program.insns(), at).expect("verified") {
                Op::Ja(target) => starts.extend([target, next]),
                Op::Jump { target, .. } | Op::MayGoto(target) => starts.extend([target, next]),
                Op::Exit => starts.push(next),
                _ => {}
            }
            at = next;
        }
        for start in starts.into_iter().filter(|at| *at < end) {
            if !self.blocks.contains_key(&start) {
                let block = self.emitter.block();
                self.blocks.insert(start, block);
            }
        }
    }

    fn enter(&mut self, index: usize, subprogram: Subprogram, arguments: &[E::Value]) {
        let zero = self.constant(0);
        for register in 0..10 {
            self.set(register, zero);
        }
        let (registers, takes_env): (Vec<u8>, bool) = match self.takes[index] {
            _ if index == 0 => (vec![1], true),
            takes => (takes.arguments().collect(), takes.takes_env()),
        };
        let env = if takes_env { arguments[arguments.len() - 1] } else { zero };
        self.emitter.set(ENV, env);
        for (register, argument) in registers.into_iter().zip(arguments) {
            self.set(register, *argument);
        }
        if let Some(bytes) = self.program.memory_bytes().filter(|_| index == 0) {
            let length = self.constant(i64::from(bytes));
            self.set(2, length);
        }
        if let Some(rounds) = self.rounds.filter(|_| index == 0) {
            let fuel = self.constant(rounds);
            self.emitter.store(Size::Dw, fuel, env, FUEL_OFFSET);
        }
        if self.program.keeps_context() && index == 0 {
            self.emitter.store(Size::Dw, arguments[0], env, CONTEXT_OFFSET);
        }
        let first = self.blocks[&subprogram.start];
        self.emitter.jump(first);
        self.ended = true;
    }

    fn begin(&mut self, at: usize) {
        self.emitter.locate(at);
        if let Some(block) = self.blocks.get(&at).copied() {
            if !self.ended {
                self.emitter.jump(block);
            }
            self.emitter.begin(block);
            self.known = [None; VARIABLES];
            self.ended = false;
        }
    }

    /// The verifier proved that control never comes here.
    fn end_dead(&mut self) {
        if !self.ended {
            let zero = self.constant(0);
            self.emitter.leave(zero);
            self.ended = true;
        }
    }

    fn get(&mut self, register: u8) -> E::Value {
        if register == 10 { self.frame } else { self.emitter.get(register.into()) }
    }

    fn set(&mut self, register: u8, value: E::Value) {
        self.emitter.set(register.into(), value);
        self.known[usize::from(register)] = None;
    }

    fn constant(&mut self, value: i64) -> E::Value {
        self.emitter.constant(Size::Dw, value)
    }

    /// A constant of the program. Hidden, it is a sum that the compiler cannot reckon out.
    fn immediate(&mut self, value: i64) -> E::Value {
        let Some(masks) = &mut self.masks else { return self.constant(value) };
        let mask = masks.next(value);
        let zero = self.emitter.got(Target::Symbol(ZERO));
        let key = self.compute_with(AluOp::Add, zero, mask);
        self.compute_with(AluOp::Xor, key, value ^ mask)
    }

    fn operand(&mut self, operand: Operand, width: Width) -> E::Value {
        let value = match operand {
            Operand::Reg(register) => self.get(register),
            Operand::Imm(value) => self.immediate(i64::from(value)),
        };
        self.emitter.cut(value, size_of_width(width))
    }

    fn widen(&mut self, value: E::Value) -> E::Value {
        self.emitter.extend(value, Size::Dw, false)
    }

    fn compute_with(&mut self, op: AluOp, value: E::Value, constant: i64) -> E::Value {
        let constant = self.constant(constant);
        self.emitter.compute(op, value, constant)
    }

    fn compare_with(&mut self, cond: Cond, value: E::Value, size: Size, constant: i64) -> E::Value {
        let constant = self.emitter.constant(size, constant);
        self.emitter.compare(cond, value, constant)
    }

    fn translate(&mut self, at: usize, decoded: Op) {
        match decoded {
            Op::Alu { width, op, dst, src } => self.alu(at, width, op, dst, src),
            Op::MovSx { width, bits, dst, src } => {
                let value = self.get(src);
                let narrow = match bits {
                    8 => Size::B,
                    16 => Size::H,
                    _ => Size::W,
                };
                let value = self.emitter.cut(value, narrow);
                let value = self.emitter.extend(value, size_of_width(width), true);
                let value = self.widen(value);
                self.set(dst, value);
            }
            Op::Neg { width, dst } => {
                let value = self.operand(Operand::Reg(dst), width);
                let value = self.emitter.negate(value);
                let value = self.widen(value);
                self.set(dst, value);
            }
            Op::Swap { dst, bits, swap } => self.swap(dst, bits, swap),
            Op::Load { size: Size::W, signed: false, dst, src, off } if self.is_pointer_to_packet(at, off) => {
                let base = self.get(src);
                let value = self.emitter.load(Size::Dw, false, base, packet_context_offset(off));
                self.set(dst, value);
            }
            Op::Load { size, signed, dst, src, off } => {
                let (base, off) = (self.get(src), self.offset(at, off));
                let value = self.emitter.load(size, signed, base, off);
                self.set(dst, value);
            }
            Op::Store { size, dst, src, off } => {
                let (base, value) = (self.get(dst), self.operand(src, Width::W64));
                let off = self.offset(at, off);
                self.emitter.store(size, value, base, off);
            }
            Op::Atomic { size, op, fetch, dst, src, off } => self.atomic(size, op, fetch, dst, src, off),
            Op::LoadAcquire { size, dst, src, off } => {
                let address = self.address(src, off);
                let value = self.emitter.load_acquire(size, address);
                let value = self.widen(value);
                self.set(dst, value);
            }
            Op::StoreRelease { size, dst, src, off } => {
                let (address, value) = (self.address(dst, off), self.get(src));
                let value = self.emitter.cut(value, size);
                self.emitter.store_release(value, address);
            }
            Op::Jump { width, cond, dst, src, target } => self.branch(at, width, cond, dst, src, target),
            Op::Ja(target) => self.jump(at, target),
            Op::MayGoto(target) => self.may_goto(at, target),
            Op::Call(call) => self.call(at, call),
            // Targets have no packets; as one that is too short, none ends the program with 0.
            Op::LoadPacket { .. } => self.end_dead(),
            Op::Exit => {
                let result = self.get(0);
                self.emitter.leave(result);
                self.ended = true;
            }
            Op::LoadImm64 { dst, value } => self.load_imm64(at, dst, value),
        }
    }

    /// Whether the program gets an address there that has 32 bits in the context as programs know it.
    fn is_pointer_to_packet(&self, at: usize, off: i16) -> bool {
        let offsets: &[i16] = match self.program.prog_type() {
            prog_type::XDP => &XDP_POINTERS,
            prog_type::SCHED_CLS | prog_type::SCHED_ACT => &SK_BUFF_POINTERS,
            _ => &[],
        };
        self.program.is_of_context(at) && offsets.contains(&off)
    }

    /// The offset of a load or store.
    fn offset(&self, at: usize, off: i16) -> i32 {
        let of_packet = self.program.is_of_context(at) && has_packet_context(self.program.prog_type());
        match self.program.is_of_context(at) {
            true if of_packet => packet_context_offset(off),
            true => self.program.context_offset(off),
            false => i32::from(off),
        }
    }

    fn address(&mut self, register: u8, off: i16) -> E::Value {
        let base = self.get(register);
        self.compute_with(AluOp::Add, base, i64::from(off))
    }

    fn alu(&mut self, at: usize, width: Width, op: AluOp, dst: u8, src: Operand) {
        let b = self.operand(src, width);
        // A move does not read what was there: it would be kept for that.
        let a = if op == AluOp::Mov { b } else { self.operand(Operand::Reg(dst), width) };
        let result = match op {
            AluOp::Div | AluOp::Mod | AluOp::Sdiv | AluOp::Smod => self.divide(at, width, op, a, b),
            _ => self.emitter.compute(op, a, b),
        };
        let result = self.widen(result);
        self.set(dst, result);
        if let (AluOp::Mov, Operand::Imm(value)) = (op, src) {
            self.known[usize::from(dst)] = Some(value);
        }
    }

    /// Machine division traps on a zero divisor, and on the smallest number by -1: those take another way.
    fn divide(&mut self, at: usize, width: Width, op: AluOp, a: E::Value, b: E::Value) -> E::Value {
        let signed = matches!(op, AluOp::Sdiv | AluOp::Smod);
        if !signed && !self.program.may_divide_by_zero(at) {
            return self.emitter.compute(op, a, b);
        }
        let size = size_of_width(width);
        let (zero, one) = (self.emitter.constant(size, 0), self.emitter.constant(size, 1));
        let by_zero = self.compare_with(Cond::Eq, b, size, 0);
        let remainder = matches!(op, AluOp::Mod | AluOp::Smod);
        let for_zero = if remainder { a } else { zero };
        if !signed {
            let divisor = self.emitter.select(by_zero, one, b);
            let result = self.emitter.compute(op, a, divisor);
            return self.emitter.select(by_zero, for_zero, result);
        }
        let by_minus_one = self.compare_with(Cond::Eq, b, size, -1);
        let special = self.emitter.compute(AluOp::Or, by_zero, by_minus_one);
        let divisor = self.emitter.select(special, one, b);
        let result = self.emitter.compute(op, a, divisor);
        let for_minus_one = if remainder { zero } else { self.emitter.negate(a) };
        let result = self.emitter.select(by_minus_one, for_minus_one, result);
        self.emitter.select(by_zero, for_zero, result)
    }

    fn swap(&mut self, dst: u8, bits: u8, swap: bool) {
        let value = self.get(dst);
        let narrow = match bits {
            16 => Size::H,
            32 => Size::W,
            _ => Size::Dw,
        };
        let mut value = self.emitter.cut(value, narrow);
        if swap {
            value = self.emitter.swap(value);
        }
        let value = self.widen(value);
        self.set(dst, value);
    }

    fn atomic(&mut self, size: Size, op: AtomicOp, fetch: bool, dst: u8, src: u8, off: i16) {
        let width = if size == Size::Dw { Width::W64 } else { Width::W32 };
        let address = self.address(dst, off);
        let value = self.operand(Operand::Reg(src), width);
        if op == AtomicOp::Cmpxchg {
            let expected = self.operand(Operand::Reg(0), width);
            let old = self.emitter.compare_exchange(address, expected, value);
            let old = self.widen(old);
            self.set(0, old);
            return;
        }
        let old = self.emitter.atomic(op, address, value);
        if fetch {
            let old = self.widen(old);
            self.set(src, old);
        }
    }

    fn jump(&mut self, at: usize, target: usize) {
        if target <= at {
            self.burn();
        }
        let block = self.blocks[&target];
        self.emitter.jump(block);
        self.ended = true;
    }

    fn branch(&mut self, at: usize, width: Width, cond: Cond, dst: u8, src: Operand, target: usize) {
        // Where one branch is never taken, the verifier has compared.
        if !self.program.is_live(at + 1) {
            return self.jump(at, target);
        }
        if !self.program.is_live(target) {
            return self.jump(at, at + 1);
        }
        if target <= at {
            self.burn();
        }
        let (a, b) = (self.operand(Operand::Reg(dst), width), self.operand(src, width));
        self.ended = true;
        let (then, otherwise) = (self.blocks[&target], self.blocks[&(at + 1)]);
        let holds = self.emitter.compare(cond, a, b);
        self.emitter.branch(holds, then, otherwise);
    }

    /// Leaves a loop once half of the fuel is burnt, so that the program comes to its own end.
    fn may_goto(&mut self, at: usize, target: usize) {
        let env = self.emitter.get(ENV);
        let fuel = self.emitter.load(Size::Dw, false, env, FUEL_OFFSET);
        let little = self.compare_with(Cond::Slt, fuel, Size::Dw, self.rounds.unwrap_or(FUEL) / 2);
        let (out, on) = (self.blocks[&target], self.blocks[&(at + 1)]);
        self.emitter.branch(little, out, on);
        self.ended = true;
    }

    /// Before a jump back: one unit of fuel, or the end.
    fn burn(&mut self) {
        if self.rounds.is_none() {
            return;
        }
        let env = self.emitter.get(ENV);
        let fuel = self.emitter.load(Size::Dw, false, env, FUEL_OFFSET);
        let fuel = self.compute_with(AluOp::Add, fuel, -1);
        self.emitter.store(Size::Dw, fuel, env, FUEL_OFFSET);
        self.end_if_dry(fuel);
    }

    /// Ends this function with 0 if no fuel is left. What the run has reserved is given back: the program itself will not do it.
    fn end_if_dry(&mut self, fuel: E::Value) {
        let empty = self.compare_with(Cond::Slt, fuel, Size::Dw, 0);
        let (end, on) = (self.emitter.block(), self.emitter.block());
        self.emitter.branch(empty, end, on);
        self.emitter.begin(end);
        let reserves = |id: &u32| [helper::RINGBUF_RESERVE, helper::RINGBUF_RESERVE_DYNPTR].contains(id);
        if self.program.helpers().iter().any(reserves) {
            let env = self.emitter.get(ENV);
            self.emitter.call(External::Outside(Target::Symbol(RUN_DRY)), &[env]);
        }
        let zero = self.constant(0);
        self.emitter.leave(zero);
        self.emitter.begin(on);
    }

    fn subprogram_at(&self, start: usize) -> usize {
        self.program.subprograms().iter().position(|s| s.start == start).expect("verified")
    }

    fn load_imm64(&mut self, at: usize, dst: u8, value: Immediate) {
        let loaded = match (self.program.map_at(at), value) {
            (Some((map, None)), _) => self.emitter.got(Target::GotHeader(map.slot)),
            (Some((map, Some(offset))), _) => {
                let data = self.emitter.got(Target::GotData(map.slot));
                let offset = self.immediate(i64::from(offset));
                self.emitter.compute(AluOp::Add, data, offset)
            }
            (None, Immediate::Value(value)) => self.immediate(value as i64),
            (None, Immediate::Func(target)) => {
                let index = self.subprogram_at(target);
                self.emitter.address_of(index, parameters(self.takes[index]))
            }
            (None, Immediate::BtfId(_)) if self.program.call_word(at).is_some() => self.host_variable(at),
            // The verifier let no other reference through.
            (None, _) => self.constant(0),
        };
        self.set(dst, loaded);
    }

    fn call(&mut self, at: usize, call: Call) {
        let result = match call {
            Call::Kfunc(id) if id >= helper::HOST_FUNCTION_FIRST => self.call_host(at, id),
            Call::Helper(id) | Call::Kfunc(id) => {
                self.store_call_word(at);
                let result = self.helper(at, id);
                if helper::CALLING_BACK.contains(&id) {
                    self.end_if_ran_dry();
                }
                result
            }
            Call::Register(_) => unreachable!("the verifier has put the helper's number there"),
            Call::Local(target) => {
                let index = self.subprogram_at(target);
                let takes = self.takes[index];
                let mut arguments: Vec<E::Value> = takes.arguments().map(|register| self.get(register)).collect();
                if takes.takes_env() {
                    arguments.push(self.emitter.get(ENV));
                }
                let result = self.emitter.call(External::Subprogram(index), &arguments);
                self.end_if_ran_dry();
                result
            }
        };
        self.set(0, result);
    }

    /// Behind a call of a subprogram, or of a helper that calls one back: what ran dry did not return what the verifier knows it
    /// returns, and has left in memory what it was about to change.
    fn end_if_ran_dry(&mut self) {
        if self.rounds.is_some() {
            let env = self.emitter.get(ENV);
            let fuel = self.emitter.load(Size::Dw, false, env, FUEL_OFFSET);
            self.end_if_dry(fuel);
        }
    }

    /// What a helper gets: those of r1 to r5 that it looks at, and the environment.
    fn arguments(&mut self, id: u32) -> Vec<E::Value> {
        let count = helper_arguments(id);
        let zero = self.constant(0);
        let mut arguments: Vec<E::Value> =
            (1..=5).map(|register| if register <= count { self.get(register) } else { zero }).collect();
        arguments.push(self.emitter.get(ENV));
        arguments
    }

    fn helper(&mut self, at: usize, id: u32) -> E::Value {
        let env = self.emitter.get(ENV);
        match (id, self.program.helper_map(at)) {
            (helper::TAIL_CALL, _) => self.tail_call(),
            (helper::GET_CURRENT_PID_TGID, _) => self.ids(),
            // What a program is told is the CPU whose part of maps it has.
            (helper::GET_SMP_PROCESSOR_ID, _) if self.program.uses_per_cpu() => self.cpu(),
            (helper::GET_ATTACH_COOKIE, _) => {
                let attachment = self.emitter.load(Size::Dw, false, env, offset_of!(ThreadBlock, attachment) as i32);
                self.emitter.load(Size::Dw, false, attachment, offset_of!(Attachment, cookie) as i32)
            }
            (helper::MAP_LOOKUP_ELEM, Some(map)) => self.lookup(map),
            (helper::PROBE_READ | helper::PROBE_READ_KERNEL, _) => self.probe_read(id),
            _ => self.plain_helper(id),
        }
    }

    /// Where there is a program to go on with, the entry ends and [`entry`] goes on with it; a subprogram runs it and
    /// ends with its result, as the kernel's compiler has it (arch/x86/net/bpf_jit_comp.c:emit_bpf_tail_call_indirect).
    fn tail_call(&mut self) -> E::Value {
        let context = self.get(1);
        let target = self.plain_helper(helper::TAIL_CALL);
        let (leave, on) = (self.emitter.block(), self.emitter.block());
        self.emitter.branch(target, leave, on);
        self.emitter.begin(leave);
        let env = self.emitter.get(ENV);
        self.emitter.store(Size::Dw, target, env, TAIL_TARGET_OFFSET);
        let result = if self.is_main {
            self.constant(0)
        } else {
            self.emitter.call(External::Outside(Target::Symbol(TAIL_RUN)), &[context, env])
        };
        self.emitter.leave(result);
        self.emitter.begin(on);
        self.constant(0)
    }

    fn lookup(&mut self, map: MapShape) -> E::Value {
        if map.map_type == map_type::ARRAY_OF_MAPS {
            return self.array_of_maps_lookup(map);
        }
        if matches!(map.map_type, map_type::ARRAY | map_type::PERCPU_ARRAY) {
            return self.array_lookup(map);
        }
        let Some(symbol) = lookup_symbol(map.map_type, map.key_size) else {
            return self.plain_helper(helper::MAP_LOOKUP_ELEM);
        };
        let value = match (map.map_type, map.key_size, map.hash) {
            // (Maps that evict note what is used.)
            (map_type::HASH | map_type::PERCPU_HASH | map_type::HASH_OF_MAPS, 4 | 8, Some(hash)) => {
                self.hash_lookup(map, hash, symbol)
            }
            _ => self.lookup_by(map, symbol),
        };
        if map.map_type == map_type::HASH_OF_MAPS { self.inner_map(value) } else { value }
    }

    /// By the agent's routine.
    fn lookup_by(&mut self, map: MapShape, symbol: &'static str) -> E::Value {
        let mut arguments = vec![self.get(1), self.get(2)];
        if matches!(map.map_type, map_type::PERCPU_HASH | map_type::LRU_PERCPU_HASH) {
            arguments.push(self.cpu());
        }
        self.emitter.call(External::Outside(Target::Symbol(symbol)), &arguments)
    }

    /// Of a key that is that of its bucket's first element, as of most, nobody is asked. Does what
    /// `shared/maps/src/raw_lookup.rs` does. (Its result is given in r0.)
    fn hash_lookup(&mut self, map: MapShape, shape: HashShape, symbol: &'static str) -> E::Value {
        let size = if map.key_size == 4 { Size::W } else { Size::Dw };
        let [linked, alike, found, further, on] = [(); 5].map(|()| self.emitter.block());
        let place = self.get(2);
        let key = self.emitter.load(size, false, place, 0);
        let hash = self.hash_of(key, size);
        let base = self.emitter.got(Target::GotData(map.slot));
        let bucket = self.compute_with(AluOp::And, hash, i64::from(shape.bucket_mask));
        let head = self.item_at(base, bucket, BUCKET_BYTES, TABLES_OFFSET);
        let link = self.emitter.load_acquire(Size::W, head);
        let one = self.emitter.constant(Size::W, 1);
        let index = self.emitter.compute(AluOp::Sub, link, one);
        // (Nor is it one if there is none, or at the end of a chain.)
        let is_index = self.is_below(index, map.max_entries);
        self.emitter.branch(is_index, linked, further);

        self.emitter.begin(linked);
        let index = self.widen(index);
        let element = self.item_at(base, index, shape.element_stride, shape.elements);
        let its_hash = self.compute_with(AluOp::Add, element, ELEMENT_HASH_OFFSET as i64);
        let its_hash = self.emitter.load_acquire(Size::W, its_hash);
        let hash = self.emitter.cut(hash, Size::W);
        let is_alike = self.emitter.compare(Cond::Eq, its_hash, hash);
        self.emitter.branch(is_alike, alike, further);

        self.emitter.begin(alike);
        let its_key = self.emitter.load(size, false, element, ELEMENT_KEY_OFFSET as i32);
        let is_key = self.emitter.compare(Cond::Eq, its_key, key);
        self.emitter.branch(is_key, found, further);

        self.emitter.begin(found);
        let first = self.item_at(base, index, shape.value_stride, shape.values);
        let value = self.own_copy(map, first);
        self.give(value, on);

        self.emitter.begin_rare(further);
        let value = self.lookup_by(map, symbol);
        self.give(value, on);

        self.emitter.begin(on);
        self.get(0)
    }

    /// Ends a block with a result, for which r0 is free: it is there in the block `on`.
    fn give(&mut self, result: E::Value, on: E::Block) {
        self.set(0, result);
        self.emitter.jump(on);
    }

    /// A value's copy for the CPU that the program uses, if there is one for each; the first one's address is given.
    fn own_copy(&mut self, map: MapShape, first: E::Value) -> E::Value {
        if !matches!(map.map_type, map_type::PERCPU_ARRAY | map_type::PERCPU_HASH) {
            return first;
        }
        let cpu = self.cpu();
        let distance = self.compute_with(AluOp::Mul, cpu, map.cpu_stride as i64);
        self.emitter.compute(AluOp::Add, first, distance)
    }

    /// As `shared/maps/src/hashing.rs` has it, of a key of 4 or 8 bytes.
    fn hash_of(&mut self, key: E::Value, size: Size) -> E::Value {
        let product = self.compute_with(AluOp::Mul, key, HASH_MULTIPLIER as i64);
        if size == Size::W {
            return self.compute_with(AluOp::Rsh, product, 32);
        }
        let multiplier = self.constant(HASH_MULTIPLIER as i64);
        let upper = self.emitter.multiply_high(key, multiplier);
        self.emitter.compute(AluOp::Xor, product, upper)
    }

    /// The address of one of the things that lie one behind the other from an offset on.
    fn item_at(&mut self, base: E::Value, index: E::Value, stride: u64, offset: u64) -> E::Value {
        let distance = self.compute_with(AluOp::Mul, index, stride as i64);
        let item = self.emitter.compute(AluOp::Add, base, distance);
        self.compute_with(AluOp::Add, item, offset as i64)
    }

    /// Mirrors kernel/bpf/arraymap.c:array_of_map_gen_lookup.
    fn array_of_maps_lookup(&mut self, map: MapShape) -> E::Value {
        let key = self.get(2);
        let index = self.emitter.load(Size::W, false, key, 0);
        let inside = self.is_below(index, map.max_entries);
        let zero = self.constant(0);
        let index = self.emitter.select(inside, index, zero);
        let offset = self.compute_with(AluOp::Lsh, index, 2);
        let data = self.emitter.got(Target::GotData(map.slot));
        let element = self.emitter.compute(AluOp::Add, data, offset);
        let place = self.emitter.load(Size::W, false, element, 0);
        let place = self.emitter.select(inside, place, zero);
        self.view(place)
    }

    /// The map that an element at `value` names; 0 if there is no element. (Its result is given in r0.)
    fn inner_map(&mut self, value: E::Value) -> E::Value {
        let zero = self.constant(0);
        self.set(0, zero);
        let (found, on) = (self.emitter.block(), self.emitter.block());
        self.emitter.branch(value, found, on);
        self.emitter.begin(found);
        let place = self.emitter.load(Size::W, false, value, 0);
        let view = self.view(place);
        self.give(view, on);
        self.emitter.begin(on);
        self.get(0)
    }

    /// The view of the map in GOT slot `place` minus 1. Of 0 it is the word before the GOT, which is 0.
    fn view(&mut self, place: E::Value) -> E::Value {
        const ENTRY_BYTES: u64 = size_of::<GotEntry>() as u64;
        let env = self.emitter.get(ENV);
        let region = self.emitter.load(Size::Dw, false, env, offset_of!(ThreadBlock, region_base) as i32);
        let offset = self.compute_with(AluOp::Mul, place, ENTRY_BYTES as i64);
        let entry = self.emitter.compute(AluOp::Add, region, offset);
        self.emitter.load(Size::Dw, false, entry, (got_offset(0) - ENTRY_BYTES) as i32)
    }

    /// The CPU whose part of per-CPU maps the program uses: dispatch has set it.
    fn cpu(&mut self) -> E::Value {
        let env = self.emitter.get(ENV);
        self.emitter.load(Size::H, false, env, offset_of!(ThreadBlock, cpu_slot) as i32)
    }

    fn plain_helper(&mut self, id: u32) -> E::Value {
        let arguments = self.arguments(id);
        self.emitter.call(External::Outside(Target::Helper(id)), &arguments)
    }

    /// Of a word that lies near above the program's own stack and below the guard nobody is asked: it is of a caller's stack, the
    /// context or the thread's registers, and so is mapped. (Its result is given in r0.)
    fn probe_read(&mut self, id: u32) -> E::Value {
        const NEAR_BYTES: i64 = 1024;
        let size = match self.known[2] {
            Some(1) => Size::B,
            Some(2) => Size::H,
            Some(4) => Size::W,
            Some(8) => Size::Dw,
            _ => return self.plain_helper(id),
        };
        if !self.has_stack {
            return self.plain_helper(id);
        }
        let [near, mapped, further, on] = [(); 4].map(|()| self.emitter.block());
        let (to, from, env) = (self.get(1), self.get(3), self.emitter.get(ENV));
        // (To LLVM, nothing can be read behind the end of a stack that it knows.)
        let from = self.emitter.opaque(from);
        let above = self.emitter.compute(AluOp::Sub, from, self.frame);
        let is_near = self.compare_with(Cond::Lt, above, Size::Dw, NEAR_BYTES);
        self.emitter.branch(is_near, near, further);

        self.emitter.begin(near);
        let end = self.compute_with(AluOp::Add, from, i64::from(size.bytes()));
        let guard = self.emitter.load(Size::Dw, false, env, offset_of!(ThreadBlock, guard) as i32);
        let is_mapped = self.emitter.compare(Cond::Le, end, guard);
        self.emitter.branch(is_mapped, mapped, further);

        self.emitter.begin(mapped);
        let value = self.emitter.load(size, false, from, 0);
        self.emitter.store(size, value, to, 0);
        let zero = self.constant(0);
        self.give(zero, on);

        self.emitter.begin_rare(further);
        let result = self.plain_helper(id);
        self.give(result, on);

        self.emitter.begin(on);
        self.get(0)
    }

    /// Whether a number of 32 bits is below another.
    fn is_below(&mut self, index: E::Value, end: u32) -> E::Value {
        let index = self.emitter.cut(index, Size::W);
        self.compare_with(Cond::Lt, index, Size::W, i64::from(end))
    }

    /// Mirrors kernel/bpf/arraymap.c:array_map_gen_lookup.
    fn array_lookup(&mut self, map: MapShape) -> E::Value {
        let key = self.get(2);
        let index = self.emitter.load(Size::W, false, key, 0);
        let inside = self.is_below(index, map.max_entries);
        let data = self.emitter.got(Target::GotData(map.slot));
        let first = self.item_at(data, index, map.stride.into(), 0);
        let value = self.own_copy(map, first);
        let null = self.constant(0);
        self.emitter.select(inside, value, null)
    }
}
