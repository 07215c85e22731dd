//! One subprogram to Cranelift's intermediate representation.
//!
//! BPF registers are variables; the BPF stack is a stack slot of the frame. The environment pointer is a
//! variable too and the last argument of every call. Semantics are RFC 9669's: division by zero gives
//! 0, remainder by zero the dividend, shifts use the low bits of their count, 32-bit results are zero-extended.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{
    AbiParam, AtomicRmwOp, Block, ExtFuncData, ExternalName, FuncRef, Function, GlobalValueData, InstBuilder,
    MemFlagsData, Signature, SourceLoc, StackSlotData, StackSlotKind, Type, UserExternalName, UserFuncName, Value,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use ring3_isa::{AluOp, AtomicOp, Call, Cond, Immediate, Op, Operand, Size, Width, op};
use ring3_layout::control::{Attachment, GotEntry};
use ring3_layout::packet::{SK_BUFF_POINTERS, XDP_POINTERS, has_packet_context, packet_context_offset};
use ring3_layout::region::got_offset;
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::bpf::{map_type, prog_type};
use ring3_uapi::helper;
use ring3_verifier::liveness::helper_arguments;
use ring3_verifier::{MapShape, Subprogram, Verified};

use crate::liveness::Takes;
use crate::{FUEL, Target};

/// What the end of a stack is a multiple of, bytes.
const STACK_ALIGN: u32 = 16;
/// Offset of the fuel word in the thread block.
const FUEL_OFFSET: i32 = offset_of!(ThreadBlock, fuel) as i32;
/// Offsets of the words of tail calls there.
const TAIL_TARGET_OFFSET: i32 = offset_of!(ThreadBlock, tail_target) as i32;
const TAIL_CALLS_OFFSET: i32 = offset_of!(ThreadBlock, tail_calls) as i32;

/// What a name in the code means; the name's index is the index in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum External {
    Outside(Target),
    Subprogram(usize),
}

struct Translator<'a, 'f> {
    program: &'a Verified,
    takes: &'a [Takes],
    builder: FunctionBuilder<'f>,
    registers: Vec<Variable>,
    env: Variable,
    /// It is the program's entry, not what that calls.
    is_main: bool,
    externals: Vec<External>,
    known: HashMap<External, usize>,
    blocks: BTreeMap<usize, Block>,
    /// The current block has its jump or return.
    ended: bool,
}

/// The function for subprogram `index`, and what its names mean.
pub(crate) fn function(
    program: &Verified,
    takes: &[Takes],
    index: usize,
    config: TargetFrontendConfig,
) -> (Function, Vec<External>) {
    let subprogram = program.subprograms()[index];
    let parameters = if index == 0 { 2 } else { parameters(takes[index]) };
    let mut function = Function::with_name_signature(UserFuncName::user(0, index as u32), signature(parameters));
    let mut context = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(&mut function, &mut context);
    let registers = (0..11).map(|_| builder.declare_var(I64)).collect();
    let env = builder.declare_var(I64);
    let mut translator = Translator {
        program,
        takes,
        builder,
        registers,
        env,
        is_main: index == 0,
        externals: vec![],
        known: HashMap::new(),
        blocks: BTreeMap::new(),
        ended: false,
    };
    translator.make_blocks(subprogram.start, subprogram.end);
    translator.enter(index, subprogram);
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
    let Translator { mut builder, externals, .. } = translator;
    builder.seal_all_blocks();
    builder.finalize(config);
    (function, externals)
}

/// The agent's routine that goes on with the program of a tail call, and with what that one goes on with.
const TAIL_RUN: &str = "ring3_tail_run";

/// What a program with tail calls is entered by: it runs subprogram 0, and then what that goes on with.
pub(crate) fn entry(config: TargetFrontendConfig) -> (Function, Vec<External>) {
    let externals = vec![External::Subprogram(0), External::Outside(Target::Symbol(TAIL_RUN))];
    let mut function = Function::with_name_signature(UserFuncName::user(0, u32::MAX), signature(2));
    let mut context = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(&mut function, &mut context);
    let callees: [FuncRef; 2] = std::array::from_fn(|index| {
        let name = builder.func.declare_imported_user_function(UserExternalName::new(1, index as u32));
        let signature = builder.func.import_signature(signature(2));
        let name = ExternalName::user(name);
        builder.func.import_function(ExtFuncData { name, signature, colocated: true, patchable: false })
    });
    let (start, tail, end) = (builder.create_block(), builder.create_block(), builder.create_block());
    builder.append_block_params_for_function_params(start);
    builder.switch_to_block(start);
    let arguments = builder.block_params(start).to_vec();
    let zero = builder.ins().iconst(I64, 0);
    builder.ins().store(access(), zero, arguments[1], TAIL_CALLS_OFFSET);
    builder.ins().store(access(), zero, arguments[1], TAIL_TARGET_OFFSET);
    let call = builder.ins().call(callees[0], &arguments);
    let result = builder.inst_results(call)[0];
    let target = builder.ins().load(I64, access(), arguments[1], TAIL_TARGET_OFFSET);
    builder.ins().brif(target, tail, &[], end, &[]);
    builder.switch_to_block(tail);
    let call = builder.ins().call(callees[1], &arguments);
    let tail_result = builder.inst_results(call)[0];
    builder.ins().return_(&[tail_result]);
    builder.switch_to_block(end);
    builder.ins().return_(&[result]);
    builder.seal_all_blocks();
    builder.finalize(config);
    (function, externals)
}

/// Parameters of a subprogram that is not the entry.
fn parameters(takes: Takes) -> usize {
    takes.arguments().count() + usize::from(takes.takes_env())
}

fn signature(parameters: usize) -> Signature {
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params = vec![AbiParam::new(I64); parameters];
    signature.returns = vec![AbiParam::new(I64)];
    signature
}

/// Programs' accesses do not trap here: what could fault was proved or is the verifier's to prove.
fn access() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

fn type_of(size: Size) -> Type {
    match size {
        Size::B => I8,
        Size::H => I16,
        Size::W => I32,
        Size::Dw => I64,
    }
}

/// The agent's lookup for hash maps of a type with keys of this size, if it has one. Per-CPU ones want a CPU as well.
fn hash_lookup(map_type: u32, key_size: u32) -> Option<&'static str> {
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
        _ => return None,
    };
    let place = [4, 8, 16, 64].iter().position(|size| *size == key_size)?;
    symbols.get(place).copied()
}

impl Translator<'_, '_> {
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
                let block = self.builder.create_block();
                self.blocks.insert(start, block);
            }
        }
    }

    fn enter(&mut self, index: usize, subprogram: Subprogram) {
        let entry = self.builder.create_block();
        self.builder.append_block_params_for_function_params(entry);
        self.builder.switch_to_block(entry);
        let arguments = self.builder.block_params(entry).to_vec();
        let zero = self.constant(0);
        for register in self.registers.clone() {
            self.builder.def_var(register, zero);
        }
        let (registers, takes_env): (Vec<u8>, bool) = match self.takes[index] {
            _ if index == 0 => (vec![1], true),
            takes => (takes.arguments().collect(), takes.takes_env()),
        };
        let env = if takes_env { arguments[arguments.len() - 1] } else { zero };
        self.builder.def_var(self.env, env);
        for (register, argument) in registers.into_iter().zip(&arguments) {
            self.set(register, *argument);
        }
        if subprogram.stack_bytes > 0 {
            let bytes = subprogram.stack_bytes.next_multiple_of(STACK_ALIGN);
            let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, STACK_ALIGN.ilog2() as u8);
            let slot = self.builder.create_sized_stack_slot(slot);
            let frame = self.builder.ins().stack_addr(I64, slot, bytes as i32);
            self.set(10, frame);
        }
        if let Some(bytes) = self.program.memory_bytes().filter(|_| index == 0) {
            let length = self.constant(i64::from(bytes));
            self.set(2, length);
        }
        if index == 0 && self.program.needs_fuel() {
            let fuel = self.constant(FUEL);
            self.builder.ins().store(access(), fuel, env, FUEL_OFFSET);
        }
        let first = self.blocks[&subprogram.start];
        self.builder.ins().jump(first, &[]);
        self.ended = true;
    }

    fn begin(&mut self, at: usize) {
        self.builder.set_srcloc(SourceLoc::new(at as u32));
        if let Some(block) = self.blocks.get(&at).copied() {
            if !self.ended {
                self.builder.ins().jump(block, &[]);
            }
            self.builder.switch_to_block(block);
            self.ended = false;
        }
    }

    /// The verifier proved that control never comes here.
    fn end_dead(&mut self) {
        if !self.ended {
            let zero = self.constant(0);
            self.builder.ins().return_(&[zero]);
            self.ended = true;
        }
    }

    fn get(&mut self, register: u8) -> Value {
        self.builder.use_var(self.registers[register as usize])
    }

    fn set(&mut self, register: u8, value: Value) {
        self.builder.def_var(self.registers[register as usize], value);
    }

    fn constant(&mut self, value: i64) -> Value {
        self.builder.ins().iconst(I64, value)
    }

    fn operand(&mut self, operand: Operand, width: Width) -> Value {
        let value = match operand {
            Operand::Reg(register) => self.get(register),
            Operand::Imm(value) => self.constant(i64::from(value)),
        };
        self.narrow(value, width)
    }

    fn narrow(&mut self, value: Value, width: Width) -> Value {
        match width {
            Width::W64 => value,
            Width::W32 => self.builder.ins().ireduce(I32, value),
        }
    }

    fn widen(&mut self, value: Value) -> Value {
        if self.builder.func.dfg.value_type(value) == I64 { value } else { self.builder.ins().uextend(I64, value) }
    }

    fn translate(&mut self, at: usize, decoded: Op) {
        match decoded {
            Op::Alu { width, op, dst, src } => self.alu(at, width, op, dst, src),
            Op::MovSx { width, bits, dst, src } => {
                let value = self.get(src);
                let narrow = match bits {
                    8 => I8,
                    16 => I16,
                    _ => I32,
                };
                let value = self.builder.ins().ireduce(narrow, value);
                let to = if width == Width::W64 { I64 } else { I32 };
                let value = self.builder.ins().sextend(to, value);
                let value = self.widen(value);
                self.set(dst, value);
            }
            Op::Neg { width, dst } => {
                let value = self.operand(Operand::Reg(dst), width);
                let value = self.builder.ins().ineg(value);
                let value = self.widen(value);
                self.set(dst, value);
            }
            Op::Swap { dst, bits, swap } => self.swap(dst, bits, swap),
            Op::Load { size: Size::W, signed: false, dst, src, off } if self.is_pointer_to_packet(at, off) => {
                let base = self.get(src);
                let value = self.builder.ins().load(I64, access(), base, packet_context_offset(off));
                self.set(dst, value);
            }
            Op::Load { size, signed, dst, src, off } => {
                let base = self.get(src);
                let (flags, off) = (access(), self.offset(at, off));
                let ins = self.builder.ins();
                let value = match (size, signed) {
                    (Size::B, false) => ins.uload8(I64, flags, base, off),
                    (Size::B, true) => ins.sload8(I64, flags, base, off),
                    (Size::H, false) => ins.uload16(I64, flags, base, off),
                    (Size::H, true) => ins.sload16(I64, flags, base, off),
                    (Size::W, false) => ins.uload32(flags, base, off),
                    (Size::W, true) => ins.sload32(flags, base, off),
                    (Size::Dw, _) => ins.load(I64, flags, base, off),
                };
                self.set(dst, value);
            }
            Op::Store { size, dst, src, off } => {
                let (base, value) = (self.get(dst), self.operand(src, Width::W64));
                let value = if size == Size::Dw { value } else { self.builder.ins().ireduce(type_of(size), value) };
                let off = self.offset(at, off);
                self.builder.ins().store(access(), value, base, off);
            }
            Op::Atomic { size, op, fetch, dst, src, off } => self.atomic(size, op, fetch, dst, src, off),
            Op::LoadAcquire { size, dst, src, off } => {
                let address = self.address(src, off);
                let value = self.builder.ins().atomic_load(type_of(size), access(), address);
                let value = self.widen(value);
                self.set(dst, value);
            }
            Op::StoreRelease { size, dst, src, off } => {
                let (address, value) = (self.address(dst, off), self.get(src));
                let value = if size == Size::Dw { value } else { self.builder.ins().ireduce(type_of(size), value) };
                self.builder.ins().atomic_store(access(), value, address);
            }
            Op::Jump { width, cond, dst, src, target } => self.branch(at, width, cond, dst, src, target),
            Op::Ja(target) => self.jump(at, target),
            Op::MayGoto(target) => self.may_goto(at, target),
            Op::Call(call) => self.call(at, call),
            // Targets have no packets; as one that is too short, none ends the program with 0.
            Op::LoadPacket { .. } => self.end_dead(),
            Op::Exit => {
                let result = self.get(0);
                self.builder.ins().return_(&[result]);
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
        if of_packet { packet_context_offset(off) } else { i32::from(off) }
    }

    fn address(&mut self, register: u8, off: i16) -> Value {
        let base = self.get(register);
        self.builder.ins().iadd_imm_s(base, i64::from(off))
    }

    fn alu(&mut self, at: usize, width: Width, op: AluOp, dst: u8, src: Operand) {
        let b = self.operand(src, width);
        // A move does not read what was there: it would be kept for that.
        let a = if op == AluOp::Mov { b } else { self.operand(Operand::Reg(dst), width) };
        let result = match op {
            AluOp::Add => self.builder.ins().iadd(a, b),
            AluOp::Sub => self.builder.ins().isub(a, b),
            AluOp::Mul => self.builder.ins().imul(a, b),
            AluOp::Or => self.builder.ins().bor(a, b),
            AluOp::And => self.builder.ins().band(a, b),
            AluOp::Xor => self.builder.ins().bxor(a, b),
            AluOp::Mov => b,
            AluOp::Lsh => self.builder.ins().ishl(a, b),
            AluOp::Rsh => self.builder.ins().ushr(a, b),
            AluOp::Arsh => self.builder.ins().sshr(a, b),
            AluOp::Div | AluOp::Mod | AluOp::Sdiv | AluOp::Smod => self.divide(at, op, a, b),
        };
        let result = self.widen(result);
        self.set(dst, result);
    }

    /// Machine division traps on a zero divisor, and on the smallest number by -1: those take another way.
    fn divide(&mut self, at: usize, op: AluOp, a: Value, b: Value) -> Value {
        if !self.program.may_divide_by_zero(at) {
            match op {
                AluOp::Div => return self.builder.ins().udiv(a, b),
                AluOp::Mod => return self.builder.ins().urem(a, b),
                _ => {}
            }
        }
        let kind = self.builder.func.dfg.value_type(a);
        let (zero, one) = (self.builder.ins().iconst(kind, 0), self.builder.ins().iconst(kind, 1));
        let by_zero = self.builder.ins().icmp_imm_s(IntCC::Equal, b, 0);
        let signed = matches!(op, AluOp::Sdiv | AluOp::Smod);
        let remainder = matches!(op, AluOp::Mod | AluOp::Smod);
        let for_zero = if remainder { a } else { zero };
        if !signed {
            let divisor = self.builder.ins().select(by_zero, one, b);
            let result =
                if remainder { self.builder.ins().urem(a, divisor) } else { self.builder.ins().udiv(a, divisor) };
            return self.builder.ins().select(by_zero, for_zero, result);
        }
        let by_minus_one = self.builder.ins().icmp_imm_s(IntCC::Equal, b, -1);
        let special = self.builder.ins().bor(by_zero, by_minus_one);
        let divisor = self.builder.ins().select(special, one, b);
        let result =
            if remainder { self.builder.ins().srem(a, divisor) } else { self.builder.ins().sdiv(a, divisor) };
        let for_minus_one = if remainder { zero } else { self.builder.ins().ineg(a) };
        let result = self.builder.ins().select(by_minus_one, for_minus_one, result);
        self.builder.ins().select(by_zero, for_zero, result)
    }

    fn swap(&mut self, dst: u8, bits: u8, swap: bool) {
        let value = self.get(dst);
        let narrow = match bits {
            16 => I16,
            32 => I32,
            _ => I64,
        };
        let mut value = if narrow == I64 { value } else { self.builder.ins().ireduce(narrow, value) };
        if swap {
            value = self.builder.ins().bswap(value);
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
            let old = self.builder.ins().atomic_cas(access(), address, expected, value);
            let old = self.widen(old);
            self.set(0, old);
            return;
        }
        let operation = match op {
            AtomicOp::Add => AtomicRmwOp::Add,
            AtomicOp::Or => AtomicRmwOp::Or,
            AtomicOp::And => AtomicRmwOp::And,
            AtomicOp::Xor => AtomicRmwOp::Xor,
            AtomicOp::Xchg | AtomicOp::Cmpxchg => AtomicRmwOp::Xchg,
        };
        let old = self.builder.ins().atomic_rmw(type_of(size), access(), operation, address, value);
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
        self.builder.ins().jump(block, &[]);
        self.ended = true;
    }

    fn branch(&mut self, at: usize, width: Width, cond: Cond, dst: u8, src: Operand, target: usize) {
        // Where one way is never gone, the verifier has compared.
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
        let code = match cond {
            Cond::Set => {
                let both = self.builder.ins().band(a, b);
                self.builder.ins().brif(both, then, &[], otherwise, &[]);
                return;
            }
            Cond::Eq => IntCC::Equal,
            Cond::Ne => IntCC::NotEqual,
            Cond::Gt => IntCC::UnsignedGreaterThan,
            Cond::Ge => IntCC::UnsignedGreaterThanOrEqual,
            Cond::Lt => IntCC::UnsignedLessThan,
            Cond::Le => IntCC::UnsignedLessThanOrEqual,
            Cond::Sgt => IntCC::SignedGreaterThan,
            Cond::Sge => IntCC::SignedGreaterThanOrEqual,
            Cond::Slt => IntCC::SignedLessThan,
            Cond::Sle => IntCC::SignedLessThanOrEqual,
        };
        let holds = self.builder.ins().icmp(code, a, b);
        self.builder.ins().brif(holds, then, &[], otherwise, &[]);
    }

    /// Leaves a loop once half of the fuel is burnt, so that the program comes to its own end.
    fn may_goto(&mut self, at: usize, target: usize) {
        let env = self.builder.use_var(self.env);
        let fuel = self.builder.ins().load(I64, access(), env, FUEL_OFFSET);
        let little = self.builder.ins().icmp_imm_s(IntCC::SignedLessThan, fuel, FUEL / 2);
        let (out, on) = (self.blocks[&target], self.blocks[&(at + 1)]);
        self.builder.ins().brif(little, out, &[], on, &[]);
        self.ended = true;
    }

    /// Before a jump back: one unit of fuel, or the end.
    fn burn(&mut self) {
        if !self.program.needs_fuel() {
            return;
        }
        let env = self.builder.use_var(self.env);
        let fuel = self.builder.ins().load(I64, access(), env, FUEL_OFFSET);
        let fuel = self.builder.ins().iadd_imm_s(fuel, -1);
        self.builder.ins().store(access(), fuel, env, FUEL_OFFSET);
        self.end_if_dry(fuel);
    }

    /// Ends this function with 0 if no fuel is left.
    fn end_if_dry(&mut self, fuel: Value) {
        let empty = self.builder.ins().icmp_imm_s(IntCC::SignedLessThan, fuel, 0);
        let (end, on) = (self.builder.create_block(), self.builder.create_block());
        self.builder.ins().brif(empty, end, &[], on, &[]);
        self.builder.switch_to_block(end);
        let zero = self.constant(0);
        self.builder.ins().return_(&[zero]);
        self.builder.switch_to_block(on);
    }

    fn name(&mut self, external: External) -> ExternalName {
        let index = *self.known.entry(external).or_insert_with(|| {
            self.externals.push(external);
            self.externals.len() - 1
        });
        let name = UserExternalName::new(1, index as u32);
        ExternalName::user(self.builder.func.declare_imported_user_function(name))
    }

    fn subprogram_at(&self, start: usize) -> usize {
        self.program.subprograms().iter().position(|s| s.start == start).expect("verified")
    }

    fn function(&mut self, external: External, parameters: usize) -> FuncRef {
        let name = self.name(external);
        let signature = self.builder.func.import_signature(signature(parameters));
        self.builder.func.import_function(ExtFuncData { name, signature, colocated: true, patchable: false })
    }

    fn call_external(&mut self, external: External, arguments: &[Value]) -> Value {
        let function = self.function(external, arguments.len());
        let call = self.builder.ins().call(function, arguments);
        self.builder.inst_results(call)[0]
    }

    /// A word of the GOT. In position-independent code the value of a symbol is loaded from its GOT entry, which here is
    /// the word itself: one rip-relative load.
    fn got(&mut self, target: Target) -> Value {
        let name = self.name(External::Outside(target));
        let symbol = GlobalValueData::Symbol { name, offset: 0.into(), colocated: true, tls: false };
        let symbol = self.builder.func.create_global_value(symbol);
        self.builder.ins().symbol_value(I64, symbol)
    }

    fn load_imm64(&mut self, at: usize, dst: u8, value: Immediate) {
        let loaded = match (self.program.map_at(at), value) {
            (Some((map, None)), _) => self.got(Target::GotHeader(map.slot)),
            (Some((map, Some(offset))), _) => {
                let data = self.got(Target::GotData(map.slot));
                self.builder.ins().iadd_imm_s(data, i64::from(offset))
            }
            (None, Immediate::Value(value)) => self.constant(value as i64),
            (None, Immediate::Func(target)) => {
                let index = self.subprogram_at(target);
                let function = self.function(External::Subprogram(index), parameters(self.takes[index]));
                self.builder.ins().func_addr(I64, function)
            }
            // The verifier let no other reference through.
            (None, _) => self.constant(0),
        };
        self.set(dst, loaded);
    }

    fn call(&mut self, at: usize, call: Call) {
        let result = match call {
            Call::Helper(id) | Call::Kfunc(id) => self.helper(at, id),
            Call::Register(_) => unreachable!("the verifier has put the helper's number there"),
            Call::Local(target) => {
                let index = self.subprogram_at(target);
                let takes = self.takes[index];
                let mut arguments: Vec<Value> = takes.arguments().map(|register| self.get(register)).collect();
                if takes.takes_env() {
                    arguments.push(self.builder.use_var(self.env));
                }
                let result = self.call_external(External::Subprogram(index), &arguments);
                if self.program.needs_fuel() {
                    // What ran dry did not return what the verifier knows it returns.
                    let env = self.builder.use_var(self.env);
                    let fuel = self.builder.ins().load(I64, access(), env, FUEL_OFFSET);
                    self.end_if_dry(fuel);
                }
                result
            }
        };
        self.set(0, result);
    }

    /// What a helper gets: those of r1 to r5 that it looks at, and the environment.
    fn arguments(&mut self, id: u32) -> Vec<Value> {
        let count = helper_arguments(id);
        let zero = self.constant(0);
        let mut arguments: Vec<Value> =
            (1..=5).map(|register| if register <= count { self.get(register) } else { zero }).collect();
        arguments.push(self.builder.use_var(self.env));
        arguments
    }

    fn helper(&mut self, at: usize, id: u32) -> Value {
        let env = self.builder.use_var(self.env);
        match (id, self.program.helper_map(at)) {
            (helper::TAIL_CALL, _) => self.tail_call(),
            (helper::GET_CURRENT_PID_TGID, _) => {
                self.builder.ins().load(I64, access(), env, offset_of!(ThreadBlock, pid_tgid) as i32)
            }
            (helper::GET_ATTACH_COOKIE, _) => {
                let attachment =
                    self.builder.ins().load(I64, access(), env, offset_of!(ThreadBlock, attachment) as i32);
                self.builder.ins().load(I64, access(), attachment, offset_of!(Attachment, cookie) as i32)
            }
            (helper::MAP_LOOKUP_ELEM, Some(map)) => self.lookup(map),
            _ => self.plain_helper(id),
        }
    }

    /// Where there is a program to go on with, the entry ends and [`entry`] goes on with it; a subprogram runs it and
    /// ends with its result, as the kernel's compiler has it (arch/x86/net/bpf_jit_comp.c:emit_bpf_tail_call_indirect).
    fn tail_call(&mut self) -> Value {
        let context = self.get(1);
        let target = self.plain_helper(helper::TAIL_CALL);
        let (leave, on) = (self.builder.create_block(), self.builder.create_block());
        self.builder.ins().brif(target, leave, &[], on, &[]);
        self.builder.switch_to_block(leave);
        let env = self.builder.use_var(self.env);
        self.builder.ins().store(access(), target, env, TAIL_TARGET_OFFSET);
        let result = if self.is_main {
            self.constant(0)
        } else {
            self.call_external(External::Outside(Target::Symbol(TAIL_RUN)), &[context, env])
        };
        self.builder.ins().return_(&[result]);
        self.builder.switch_to_block(on);
        self.constant(0)
    }

    fn lookup(&mut self, map: MapShape) -> Value {
        if map.map_type == map_type::ARRAY_OF_MAPS {
            return self.array_of_maps_lookup(map);
        }
        if matches!(map.map_type, map_type::ARRAY | map_type::PERCPU_ARRAY) {
            return self.array_lookup(map);
        }
        let per_cpu = matches!(map.map_type, map_type::PERCPU_HASH | map_type::LRU_PERCPU_HASH);
        let Some(symbol) = hash_lookup(map.map_type, map.key_size) else {
            return self.plain_helper(helper::MAP_LOOKUP_ELEM);
        };
        let mut arguments = vec![self.get(1), self.get(2)];
        if per_cpu {
            arguments.push(self.cpu());
        }
        let value = self.call_external(External::Outside(Target::Symbol(symbol)), &arguments);
        if map.map_type == map_type::HASH_OF_MAPS { self.inner_map(value) } else { value }
    }

    /// Mirrors kernel/bpf/arraymap.c:array_of_map_gen_lookup.
    fn array_of_maps_lookup(&mut self, map: MapShape) -> Value {
        let key = self.get(2);
        let index = self.builder.ins().load(I32, access(), key, 0);
        let inside = self.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, index, i64::from(map.max_entries));
        let (index, zero) = (self.widen(index), self.constant(0));
        let index = self.builder.ins().select(inside, index, zero);
        let offset = self.builder.ins().ishl_imm_u(index, 2);
        let data = self.got(Target::GotData(map.slot));
        let element = self.builder.ins().iadd(data, offset);
        let place = self.builder.ins().load(I32, access(), element, 0);
        let place = self.widen(place);
        let place = self.builder.ins().select(inside, place, zero);
        self.view(place)
    }

    /// The map that an element at `value` names; 0 if there is no element.
    fn inner_map(&mut self, value: Value) -> Value {
        let zero = self.constant(0);
        let (found, on) = (self.builder.create_block(), self.builder.create_block());
        self.builder.append_block_param(on, I64);
        self.builder.ins().brif(value, found, &[], on, &[zero.into()]);
        self.builder.switch_to_block(found);
        let place = self.builder.ins().load(I32, access(), value, 0);
        let place = self.widen(place);
        let view = self.view(place);
        self.builder.ins().jump(on, &[view.into()]);
        self.builder.switch_to_block(on);
        self.builder.block_params(on)[0]
    }

    /// The view of the map in GOT slot `place` minus 1. Of 0 it is the word before the GOT, which is 0.
    fn view(&mut self, place: Value) -> Value {
        const ENTRY_BYTES: u64 = size_of::<GotEntry>() as u64;
        let env = self.builder.use_var(self.env);
        let region = self.builder.ins().load(I64, access(), env, offset_of!(ThreadBlock, region_base) as i32);
        let offset = self.builder.ins().imul_imm_s(place, ENTRY_BYTES as i64);
        let entry = self.builder.ins().iadd(region, offset);
        self.builder.ins().load(I64, access(), entry, (got_offset(0) - ENTRY_BYTES) as i32)
    }

    /// The CPU whose part of per-CPU maps the program uses: dispatch has set it.
    fn cpu(&mut self) -> Value {
        let env = self.builder.use_var(self.env);
        let cpu = self.builder.ins().load(I16, access(), env, offset_of!(ThreadBlock, cpu_slot) as i32);
        self.builder.ins().uextend(I64, cpu)
    }

    fn plain_helper(&mut self, id: u32) -> Value {
        let arguments = self.arguments(id);
        self.call_external(External::Outside(Target::Helper(id)), &arguments)
    }

    /// Mirrors kernel/bpf/arraymap.c:array_map_gen_lookup.
    fn array_lookup(&mut self, map: MapShape) -> Value {
        let key = self.get(2);
        let index = self.builder.ins().load(I32, access(), key, 0);
        let inside = self.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, index, i64::from(map.max_entries));
        let index = self.builder.ins().uextend(I64, index);
        let offset = self.builder.ins().imul_imm_s(index, i64::from(map.stride));
        let data = self.got(Target::GotData(map.slot));
        let mut value = self.builder.ins().iadd(data, offset);
        if map.map_type == map_type::PERCPU_ARRAY {
            let cpu = self.cpu();
            let of_cpu = self.builder.ins().imul_imm_s(cpu, map.cpu_stride as i64);
            value = self.builder.ins().iadd(value, of_cpu);
        }
        let null = self.constant(0);
        self.builder.ins().select(inside, value, null)
    }
}
