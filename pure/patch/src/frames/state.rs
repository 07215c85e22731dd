//! What a function has done with its registers and its frame, and what one instruction does to that.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::{Base, Frame, Unknown};
use crate::flow::direct_target;

/// Bytes of a word of the stack.
pub(super) const WORD: i64 = 8;
/// Signal handlers leave this many bytes below `rsp` as they are.
const RED_ZONE: i64 = 128;
/// Registers that functions preserve, besides `rsp`, in the order of [`Registers::preserved`].
pub(super) const PRESERVED: [Register; 6] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
/// Registers that a call may change.
const SCRATCH: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The CFA plus this.
    Cfa(i64),
    /// What this register of [`PRESERVED`] held at entry.
    Entry(usize),
    Unknown,
}

impl Value {
    fn plus(self, distance: i64) -> Value {
        match self {
            Value::Cfa(offset) => Value::Cfa(offset.wrapping_add(distance)),
            Value::Entry(_) | Value::Unknown => Value::Unknown,
        }
    }
}

/// What is known before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// By the register's number.
    registers: [Value; 16],
    /// For each register of [`PRESERVED`]: CFA plus this is the address of a word that has its value at entry.
    pub(super) saved: [Option<i64>; 6],
    /// The flags are those of a comparison of these two.
    compared: Option<(Register, Register)>,
}

impl State {
    pub(super) fn entry() -> State {
        let mut state = State { registers: [Value::Unknown; 16], saved: [None; 6], compared: None };
        state.set(Register::RSP, Value::Cfa(-WORD));
        for (index, register) in PRESERVED.into_iter().enumerate() {
            state.set(register, Value::Entry(index));
        }
        state
    }

    pub(super) fn value(&self, register: Register) -> Value {
        if register.is_gpr64() { self.registers[register.number()] } else { Value::Unknown }
    }

    fn set(&mut self, register: Register, value: Value) {
        self.registers[register.full_register().number()] = value;
    }

    /// What this and another way to the same instruction agree on.
    pub(super) fn meet(&self, other: &State) -> State {
        let mut both = *self;
        for (value, theirs) in both.registers.iter_mut().zip(other.registers) {
            if *value != theirs {
                *value = Value::Unknown;
            }
        }
        for (saved, theirs) in both.saved.iter_mut().zip(other.saved) {
            *saved = saved.filter(|_| *saved == theirs);
        }
        both.compared = both.compared.filter(|_| self.compared == other.compared);
        both
    }

    pub(super) fn frame(&self) -> Result<Frame, Unknown> {
        let preserved = (0..PRESERVED.len()).map(Base::Preserved);
        let based = std::iter::once(Base::Rsp).chain(preserved).find_map(|base| {
            let register = match base {
                Base::Rsp => Register::RSP,
                Base::Preserved(index) => PRESERVED[index],
            };
            let Value::Cfa(offset) = self.value(register) else { return None };
            Some((base, offset.wrapping_neg()))
        });
        let (base, distance) = based.ok_or(Unknown::NoBase)?;
        let mut saved = self.saved;
        for (index, register) in PRESERVED.into_iter().enumerate() {
            if self.value(register) == Value::Entry(index) {
                saved[index] = None;
            } else if saved[index].is_none() {
                return Err(Unknown::Lost(index));
            }
        }
        Ok(Frame { base, distance, saved })
    }

    /// Where in the frame an address is that has no index, as the distance to the CFA.
    fn place(&self, base: Register, index: Register, segment: Register, displacement: u64) -> Option<i64> {
        let flat = index == Register::None && !matches!(segment, Register::FS | Register::GS);
        match self.value(base).plus(displacement as i64) {
            Value::Cfa(offset) if flat => Some(offset),
            _ => None,
        }
    }

    fn operand_place(&self, i: &Instruction) -> Option<i64> {
        self.place(i.memory_base(), i.memory_index(), i.segment_prefix(), i.memory_displacement64())
    }

    fn load(&self, place: Option<i64>) -> Value {
        let found = self.saved.iter().position(|saved| saved.is_some() && *saved == place);
        found.map_or(Value::Unknown, Value::Entry)
    }

    fn store(&mut self, place: Option<i64>, value: Value) {
        if let Value::Entry(index) = value {
            self.saved[index] = self.saved[index].or(place);
        }
    }

    /// Only what lies at `live`, or above it, keeps its value.
    fn forget_below(&mut self, live: i64) {
        for saved in &mut self.saved {
            *saved = saved.filter(|offset| *offset >= live);
        }
    }

    fn overwrite(&mut self, place: i64, bytes: usize) {
        let end = place.saturating_add((bytes as i64).max(1));
        for saved in &mut self.saved {
            *saved = saved.filter(|offset| *offset >= end || offset.saturating_add(WORD) <= place);
        }
    }

    /// The state if the flags say "equal"; `None`: they cannot.
    pub(super) fn if_equal(&self) -> Option<State> {
        let mut state = *self;
        if let Some((one, other)) = self.compared {
            match (self.value(one), self.value(other)) {
                (Value::Cfa(one), Value::Cfa(other)) if one != other => return None,
                (Value::Unknown, known @ Value::Cfa(_)) => state.set(one, known),
                _ => {}
            }
        }
        Some(State { compared: None, ..state })
    }

    /// The state behind an instruction.
    pub(super) fn after(&self, i: &Instruction, info: &mut InstructionInfoFactory) -> State {
        let mut state = State { compared: None, ..*self };
        state.forget_written(self, i, info);
        if i.is_stack_instruction() {
            state.set(Register::RSP, self.value(Register::RSP).plus(i.stack_pointer_increment().into()));
        }
        let is_whole = |op: u32| i.op_kind(op) == OpKind::Register && i.op_register(op).is_gpr64();
        let operands = i.op_count();
        let (to, from) = (operands > 0 && is_whole(0), operands > 1 && is_whole(1));
        let from_memory = operands > 1 && i.op1_kind() == OpKind::Memory;
        let constant = (operands == 2).then(|| i.try_immediate(1).ok()).flatten();
        match (i.mnemonic(), constant) {
            (Mnemonic::Push, _) if to => {
                let top = state.place(Register::RSP, Register::None, Register::None, 0);
                state.store(top, self.value(i.op0_register()));
            }
            (Mnemonic::Pop, _) if to => {
                let top = self.place(Register::RSP, Register::None, Register::None, 0);
                state.set(i.op0_register(), self.load(top));
            }
            (Mnemonic::Leave, _) => {
                let base = self.value(Register::RBP);
                state.set(Register::RSP, base.plus(WORD));
                state.set(Register::RBP, self.load(self.place(Register::RBP, Register::None, Register::None, 0)));
            }
            (Mnemonic::Mov, None) if to && from => state.set(i.op0_register(), self.value(i.op1_register())),
            (Mnemonic::Mov, None) if to && from_memory => {
                state.set(i.op0_register(), self.load(self.operand_place(i)));
            }
            (Mnemonic::Mov, None) if from => state.store(self.operand_place(i), self.value(i.op1_register())),
            (Mnemonic::Lea, _) if to => {
                let place = self.place(i.memory_base(), i.memory_index(), Register::None, i.memory_displacement64());
                state.set(i.op0_register(), place.map_or(Value::Unknown, Value::Cfa));
            }
            (Mnemonic::Add, Some(by)) if to => {
                state.set(i.op0_register(), self.value(i.op0_register()).plus(by as i64));
            }
            (Mnemonic::Sub, Some(by)) if to => {
                state.set(i.op0_register(), self.value(i.op0_register()).plus((by as i64).wrapping_neg()));
            }
            (Mnemonic::Cmp, None) if to && from => state.compared = Some((i.op0_register(), i.op1_register())),
            (Mnemonic::Call, _) => state.set_returned(self, i),
            _ => {}
        }
        if let Value::Cfa(top) = state.value(Register::RSP) {
            state.forget_below(top.saturating_sub(RED_ZONE));
        }
        state
    }

    /// Of each register and each word of the frame that an instruction writes, nothing is known.
    fn forget_written(&mut self, before: &State, i: &Instruction, info: &mut InstructionInfoFactory) {
        let writes = |access| {
            use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
        };
        let used = info.info(i);
        for used in used.used_registers().iter().filter(|used| writes(used.access()) && used.register().is_gpr()) {
            self.set(used.register(), Value::Unknown);
        }
        for used in used.used_memory().iter().filter(|used| writes(used.access())) {
            if let Some(place) = before.place(used.base(), used.index(), used.segment(), used.displacement()) {
                self.overwrite(place, used.memory_size().size());
            }
        }
    }

    /// A call has returned. (One of the next instruction does not: it pushes `rip`.)
    fn set_returned(&mut self, before: &State, i: &Instruction) {
        if direct_target(i) == Some(i.next_ip()) {
            return;
        }
        self.set(Register::RSP, before.value(Register::RSP));
        for register in SCRATCH {
            self.set(register, Value::Unknown);
        }
        if let Value::Cfa(top) = before.value(Register::RSP) {
            self.forget_below(top);
        }
    }
}
