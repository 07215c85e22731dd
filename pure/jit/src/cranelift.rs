//! Functions as Cranelift's intermediate representation.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{
    AbiParam, AtomicRmwOp, Block, ExtFuncData, ExternalName, FuncRef, Function, GlobalValueData, InstBuilder,
    MemFlagsData, Signature, SourceLoc, StackSlotData, StackSlotKind, Type, UserExternalName, UserFuncName, Value,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use ring3_isa::{AluOp, AtomicOp, Cond, Size};

use crate::Target;
use crate::emit::{Emitter, External, VARIABLES};
use crate::translate::{Part, Translation};

/// What the end of a stack is a multiple of, bytes.
const STACK_ALIGN: u32 = 16;

/// A function, and what its names mean, by index.
pub(crate) fn function(
    translation: &Translation<'_>,
    part: Part,
    config: TargetFrontendConfig,
) -> (Function, Vec<External>) {
    let mut function =
        Function::with_name_signature(UserFuncName::user(0, 0), signature(translation.parameters(part)));
    let mut context = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(&mut function, &mut context);
    let variables = std::array::from_fn(|_| builder.declare_var(I64));
    let mut emitter = Cranelift { builder, variables, externals: vec![], known: HashMap::new() };
    translation.emit(part, &mut emitter);
    let Cranelift { mut builder, externals, .. } = emitter;
    builder.seal_all_blocks();
    builder.finalize(config);
    (function, externals)
}

struct Cranelift<'f> {
    builder: FunctionBuilder<'f>,
    variables: [Variable; VARIABLES],
    externals: Vec<External>,
    known: HashMap<External, usize>,
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

impl Cranelift<'_> {
    fn type_of(&self, value: Value) -> Type {
        self.builder.func.dfg.value_type(value)
    }

    fn name(&mut self, external: External) -> ExternalName {
        let index = *self.known.entry(external).or_insert_with(|| {
            self.externals.push(external);
            self.externals.len() - 1
        });
        let name = UserExternalName::new(1, index as u32);
        ExternalName::user(self.builder.func.declare_imported_user_function(name))
    }

    fn function(&mut self, external: External, parameters: usize) -> FuncRef {
        let name = self.name(external);
        let signature = self.builder.func.import_signature(signature(parameters));
        self.builder.func.import_function(ExtFuncData { name, signature, colocated: true, patchable: false })
    }
}

impl Emitter for Cranelift<'_> {
    type Value = Value;
    type Block = Block;

    fn locate(&mut self, at: usize) {
        self.builder.set_srcloc(SourceLoc::new(at as u32));
    }

    fn enter(&mut self) -> Vec<Value> {
        let entry = self.builder.create_block();
        self.builder.append_block_params_for_function_params(entry);
        self.builder.switch_to_block(entry);
        self.builder.block_params(entry).to_vec()
    }

    fn block(&mut self) -> Block {
        self.builder.create_block()
    }

    fn begin(&mut self, block: Block) {
        self.builder.switch_to_block(block);
    }

    fn begin_rare(&mut self, block: Block) {
        self.builder.set_cold_block(block);
        self.begin(block);
    }

    fn stack(&mut self, bytes: u32) -> Value {
        let bytes = bytes.next_multiple_of(STACK_ALIGN);
        let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, STACK_ALIGN.ilog2() as u8);
        let slot = self.builder.create_sized_stack_slot(slot);
        self.builder.ins().stack_addr(I64, slot, bytes as i32)
    }

    fn get(&mut self, variable: usize) -> Value {
        self.builder.use_var(self.variables[variable])
    }

    fn set(&mut self, variable: usize, value: Value) {
        self.builder.def_var(self.variables[variable], value);
    }

    fn constant(&mut self, size: Size, value: i64) -> Value {
        let unused = 64 - 8 * u32::from(size.bytes());
        self.builder.ins().iconst(type_of(size), ((value as u64) << unused >> unused) as i64)
    }

    fn cut(&mut self, value: Value, size: Size) -> Value {
        let to = type_of(size);
        if self.type_of(value) == to { value } else { self.builder.ins().ireduce(to, value) }
    }

    fn extend(&mut self, value: Value, size: Size, signed: bool) -> Value {
        let to = type_of(size);
        match signed {
            _ if self.type_of(value) == to => value,
            false => self.builder.ins().uextend(to, value),
            true => self.builder.ins().sextend(to, value),
        }
    }

    fn compute(&mut self, op: AluOp, a: Value, b: Value) -> Value {
        let ins = self.builder.ins();
        match op {
            AluOp::Add => ins.iadd(a, b),
            AluOp::Sub => ins.isub(a, b),
            AluOp::Mul => ins.imul(a, b),
            AluOp::Or => ins.bor(a, b),
            AluOp::And => ins.band(a, b),
            AluOp::Xor => ins.bxor(a, b),
            AluOp::Mov => b,
            AluOp::Lsh => ins.ishl(a, b),
            AluOp::Rsh => ins.ushr(a, b),
            AluOp::Arsh => ins.sshr(a, b),
            AluOp::Div => ins.udiv(a, b),
            AluOp::Mod => ins.urem(a, b),
            AluOp::Sdiv => ins.sdiv(a, b),
            AluOp::Smod => ins.srem(a, b),
        }
    }

    fn multiply_high(&mut self, a: Value, b: Value) -> Value {
        self.builder.ins().umulhi(a, b)
    }

    /// (Cranelift draws no conclusions from what lies where.)
    fn opaque(&mut self, value: Value) -> Value {
        value
    }

    fn negate(&mut self, value: Value) -> Value {
        self.builder.ins().ineg(value)
    }

    fn swap(&mut self, value: Value) -> Value {
        self.builder.ins().bswap(value)
    }

    fn compare(&mut self, cond: Cond, a: Value, b: Value) -> Value {
        let code = match cond {
            Cond::Set => return self.builder.ins().band(a, b),
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
        self.builder.ins().icmp(code, a, b)
    }

    fn select(&mut self, which: Value, yes: Value, no: Value) -> Value {
        self.builder.ins().select(which, yes, no)
    }

    fn load(&mut self, size: Size, signed: bool, address: Value, offset: i32) -> Value {
        let (ins, flags) = (self.builder.ins(), access());
        match (size, signed) {
            (Size::B, false) => ins.uload8(I64, flags, address, offset),
            (Size::B, true) => ins.sload8(I64, flags, address, offset),
            (Size::H, false) => ins.uload16(I64, flags, address, offset),
            (Size::H, true) => ins.sload16(I64, flags, address, offset),
            (Size::W, false) => ins.uload32(flags, address, offset),
            (Size::W, true) => ins.sload32(flags, address, offset),
            (Size::Dw, _) => ins.load(I64, flags, address, offset),
        }
    }

    fn store(&mut self, size: Size, value: Value, address: Value, offset: i32) {
        let value = self.cut(value, size);
        self.builder.ins().store(access(), value, address, offset);
    }

    fn load_acquire(&mut self, size: Size, address: Value) -> Value {
        self.builder.ins().atomic_load(type_of(size), access(), address)
    }

    fn store_release(&mut self, value: Value, address: Value) {
        self.builder.ins().atomic_store(access(), value, address);
    }

    fn atomic(&mut self, op: AtomicOp, address: Value, value: Value) -> Value {
        let operation = match op {
            AtomicOp::Add => AtomicRmwOp::Add,
            AtomicOp::Or => AtomicRmwOp::Or,
            AtomicOp::And => AtomicRmwOp::And,
            AtomicOp::Xor => AtomicRmwOp::Xor,
            AtomicOp::Xchg | AtomicOp::Cmpxchg => AtomicRmwOp::Xchg,
        };
        let kind = self.type_of(value);
        self.builder.ins().atomic_rmw(kind, access(), operation, address, value)
    }

    fn compare_exchange(&mut self, address: Value, expected: Value, new: Value) -> Value {
        self.builder.ins().atomic_cas(access(), address, expected, new)
    }

    fn jump(&mut self, to: Block) {
        self.builder.ins().jump(to, &[]);
    }

    fn branch(&mut self, which: Value, then: Block, otherwise: Block) {
        self.builder.ins().brif(which, then, &[], otherwise, &[]);
    }

    fn leave(&mut self, result: Value) {
        self.builder.ins().return_(&[result]);
    }

    fn call(&mut self, callee: External, arguments: &[Value]) -> Value {
        let function = self.function(callee, arguments.len());
        let call = self.builder.ins().call(function, arguments);
        self.builder.inst_results(call)[0]
    }

    fn address_of(&mut self, subprogram: usize, parameters: usize) -> Value {
        let function = self.function(External::Subprogram(subprogram), parameters);
        self.builder.ins().func_addr(I64, function)
    }

    /// In position-independent code the value of a symbol is loaded from its GOT entry, which here is the word itself: one
    /// rip-relative load.
    fn got(&mut self, target: Target) -> Value {
        let name = self.name(External::Outside(target));
        let symbol = GlobalValueData::Symbol { name, offset: 0.into(), colocated: true, tls: false };
        let symbol = self.builder.func.create_global_value(symbol);
        self.builder.ins().symbol_value(I64, symbol)
    }
}
