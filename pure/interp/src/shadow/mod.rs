//! Runs programs that nobody has verified, and says what is wrong with them: the judge of verifiers.
//!
//! Each value in a register is a number or an address taken of one region, and each byte of the stack knows whether it
//! was written and which address it is part of. An access is right if its address was taken of the region that it
//! goes to, the region lives, all bytes lie inside, and, to write, may be written. Nothing else is: that
//! a wrong address happens to lie in another region is no excuse, and regions are far apart besides. What a verifier
//! accepts must never end in a [`Fault`] here, whatever the memory, the context and the helpers' results are.
//!
//! Helpers get values with what they are, may end regions and call back: `Host` of the plain mode knows none of this,
//! so the helpers here are a closed set in `world.rs`.

mod memory;
mod world;

use std::fmt;

use ring3_isa::{AluOp, AtomicOp, Call, Immediate, Insn, Op, Operand, Size, Width, op};
use ring3_uapi::helper;

use crate::FRAME_BYTES;
use crate::arithmetic::{alu, atomic, cut, extend, holds, swap};
use memory::{Kind, Value};
use world::{Done, EINVAL, LOOPS_MAX, World, handle};

pub use memory::Wrong;
pub use world::{MapKind, MapSpec};

/// Calls within calls at most (`MAX_CALL_FRAMES`).
const FRAMES_MAX: usize = 8;
/// Instructions that a verified program runs at most between its start and its end, and each callback between
/// its own, callbacks aside: no path is longer than what the kernel looks at.
const FUEL: u64 = 1_000_000;
/// Callbacks in one run, and instructions in all of them. What needs more is given up: only `bpf_loop`'s own limit
/// bounds it.
const CALLBACKS_MAX: u64 = 4096;
const CALLBACK_INSNS_MAX: u64 = 4_000_000;
/// Once in so many times, `may_goto` ends its rounds.
const MAY_GOTO_ENDS: u64 = 8;

/// What a program did wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Instruction.
    pub insn: usize,
    /// What.
    pub wrong: Wrong,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "insn {}: {:?}", self.insn, self.wrong)
    }
}

/// How a run ended that is not at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program's result.
    Returned(u64),
    /// Another program took over.
    TailCalled,
    /// Callbacks took too long to see the end.
    GivenUp,
}

/// A program to run.
pub struct Program<'a> {
    ops: Vec<Option<Op>>,
    prog_type: u32,
    maps: &'a [MapSpec],
    /// Stack that was never written may be read, as the kernel allows who has `CAP_PERFMON`.
    pub unwritten_stack_is_read: bool,
    /// Processors of the machine: the kernel knows that their numbers are less.
    pub cpus: u64,
}

impl<'a> Program<'a> {
    /// A program that refers to `maps` by their index.
    pub fn new(insns: &[Insn], prog_type: u32, maps: &'a [MapSpec]) -> Program<'a> {
        let mut ops = vec![];
        while ops.len() < insns.len() {
            let at = ops.len();
            ops.push(op(insns, at).ok());
            if insns[at].is_wide() {
                ops.push(None);
            }
        }
        Program { ops, prog_type, maps, unwritten_stack_is_read: true, cpus: 1 }
    }

    /// Runs it once; `random` gives what memory, context and helpers hold.
    ///
    /// # Errors
    /// What the program does wrong.
    pub fn run(&self, random: &mut dyn FnMut() -> u64) -> Result<End, Fault> {
        let mut world = World::new(self.prog_type, self.maps, self.unwritten_stack_is_read, random);
        world.cpus = self.cpus;
        let mut machine = Machine {
            program: self,
            world,
            frames: vec![],
            depth: 0,
            fuel: FUEL,
            callbacks: 0,
            callback_insns: 0,
            at: 0,
        };
        let context = machine.world.memory.pointer(machine.world.context, 0);
        let mut arguments = [Value::UNSET; 5];
        arguments[0] = context;
        let end = match machine.call(0, arguments) {
            Ok(result) if result.kind == Kind::Unset => Err(Wrong::UnsetRegister(0)),
            Ok(result) => machine.world.check_end().map(|()| End::Returned(result.bits)),
            Err(Stop::TailCalled) => machine.world.check_end().map(|()| End::TailCalled),
            Err(Stop::GivenUp) => Ok(End::GivenUp),
            Err(Stop::Wrong(wrong)) => Err(wrong),
        };
        end.map_err(|wrong| Fault { insn: machine.at, wrong })
    }
}

/// Why instructions stop to follow each other.
enum Stop {
    Wrong(Wrong),
    TailCalled,
    GivenUp,
}

impl From<Wrong> for Stop {
    fn from(wrong: Wrong) -> Stop {
        Stop::Wrong(wrong)
    }
}

type Registers = [Value; 11];

struct Machine<'a> {
    program: &'a Program<'a>,
    world: World<'a>,
    /// Regions of frames, outermost first.
    frames: Vec<u32>,
    depth: usize,
    fuel: u64,
    callbacks: u64,
    callback_insns: u64,
    /// The instruction at work.
    at: usize,
}

fn get(r: &Registers, register: u8) -> Result<Value, Wrong> {
    let value = r[usize::from(register)];
    if value.kind == Kind::Unset { Err(Wrong::UnsetRegister(register)) } else { Ok(value) }
}

fn operand(r: &Registers, operand: Operand) -> Result<Value, Wrong> {
    match operand {
        Operand::Reg(register) => get(r, register),
        Operand::Imm(value) => Ok(Value::number(i64::from(value) as u64)),
    }
}

/// What arithmetic makes of what its operands are: an address and a number make an address, all else a number.
fn kind_of(width: Width, op: AluOp, a: Kind, b: Kind) -> Kind {
    match (width, op) {
        (Width::W64, AluOp::Mov) => b,
        (Width::W64, AluOp::Add) if b == Kind::Number => a,
        (Width::W64, AluOp::Add) if a == Kind::Number => b,
        (Width::W64, AluOp::Sub) if b == Kind::Number => a,
        _ => Kind::Number,
    }
}

impl Machine<'_> {
    fn call(&mut self, start: usize, arguments: [Value; 5]) -> Result<Value, Stop> {
        if self.depth == FRAMES_MAX {
            return Err(Wrong::TooDeep.into());
        }
        if self.frames.len() == self.depth {
            let hint = self.world.next();
            self.frames.push(self.world.memory.add_frame(FRAME_BYTES as usize, hint));
        }
        let frame = self.frames[self.depth];
        let garbage = self.world.next();
        self.world.memory.begin_frame(frame, garbage);
        let mut r = [Value::UNSET; 11];
        r[1..6].copy_from_slice(&arguments);
        r[10] = self.world.memory.pointer(frame, FRAME_BYTES);
        self.depth += 1;
        let result = self.run_from(start, &mut r)?;
        self.depth -= 1;
        self.world.memory.end(frame);
        Ok(result)
    }

    fn run_from(&mut self, start: usize, r: &mut Registers) -> Result<Value, Stop> {
        let mut at = start;
        loop {
            self.at = at;
            self.fuel = self.fuel.checked_sub(1).ok_or(Wrong::Runaway)?;
            let op = self.program.ops.get(at).copied().flatten().ok_or(Wrong::NoInstruction)?;
            at += if matches!(op, Op::LoadImm64 { .. }) { 2 } else { 1 };
            match op {
                Op::Exit => return Ok(r[0]),
                Op::Ja(target) => at = target,
                Op::Jump { width, cond, dst, src, target } => {
                    if holds(width, cond, get(r, dst)?.bits, operand(r, src)?.bits) {
                        at = target;
                    }
                }
                Op::Call(call) => {
                    let arguments = [r[1], r[2], r[3], r[4], r[5]];
                    let result = match call {
                        Call::Helper(id) | Call::Kfunc(id) => self.helper(id, arguments)?,
                        Call::Register(_) => return Err(Wrong::NoInstruction.into()),
                        Call::Local(target) => self.call(target, arguments)?,
                    };
                    r[..6].fill(Value::UNSET);
                    r[0] = result;
                }
                Op::LoadImm64 { dst, value } => r[usize::from(dst)] = self.immediate(value)?,
                // It may have gone on for long enough at any time.
                Op::MayGoto(target) if self.world.one_in(MAY_GOTO_ENDS) => at = target,
                Op::MayGoto(_) => {}
                other => self.simple(other, r)?,
            }
        }
    }

    fn immediate(&self, value: Immediate) -> Result<Value, Wrong> {
        match value {
            Immediate::Value(value) => Ok(Value::number(value)),
            Immediate::MapIdx(map) => Ok(Value { bits: handle(map), kind: Kind::Map(map) }),
            Immediate::MapIdxValue(map, offset) => {
                self.world.direct_value(map, offset).ok_or(Wrong::Argument(0, "no direct value"))
            }
            Immediate::Func(target) => Ok(Value { bits: target as u64, kind: Kind::Subprogram(target as u32) }),
            Immediate::MapFd(_) | Immediate::MapValue(..) | Immediate::BtfId(_) => Err(Wrong::NoInstruction),
        }
    }

    fn helper(&mut self, id: u32, arguments: [Value; 5]) -> Result<Value, Stop> {
        let count = world::arguments_of(id).ok_or(Wrong::UnknownHelper(id))?;
        if let Some(unset) = arguments[..count].iter().position(|value| value.kind == Kind::Unset) {
            return Err(Wrong::UnsetRegister(unset as u8 + 1).into());
        }
        match id {
            helper::LOOP => self.call_loop(arguments),
            helper::FOR_EACH_MAP_ELEM => self.for_each(arguments),
            _ => match self.world.call(id, arguments)? {
                Done::Result(result) => Ok(Value::number(result)),
                Done::Pointer(value) => Ok(value),
                Done::TailCalled => Err(Stop::TailCalled),
            },
        }
    }

    /// One call of a callback; whether to stop.
    fn call_back(&mut self, callback: Value, arguments: [Value; 5]) -> Result<bool, Stop> {
        let Kind::Subprogram(target) = callback.kind else {
            return Err(Wrong::Argument(2, "not a subprogram").into());
        };
        self.callbacks += 1;
        if self.callbacks > CALLBACKS_MAX || self.callback_insns > CALLBACK_INSNS_MAX {
            return Err(Stop::GivenUp);
        }
        let outer = std::mem::replace(&mut self.fuel, FUEL);
        let result = self.call(target as usize, arguments)?;
        self.callback_insns += FUEL - std::mem::replace(&mut self.fuel, outer);
        match result {
            Value { bits: 0, kind: Kind::Number } => Ok(false),
            Value { bits: 1, kind: Kind::Number } => Ok(true),
            other => Err(Wrong::CallbackResult(other.bits).into()),
        }
    }

    fn call_loop(&mut self, [count, callback, context, flags, _]: [Value; 5]) -> Result<Value, Stop> {
        // The kernel's function takes a `u32`.
        let count = count.bits & 0xffff_ffff;
        if flags.bits != 0 || count > LOOPS_MAX {
            return Ok(Value::number(EINVAL));
        }
        for number in 0..count {
            let arguments = [Value::number(number), context, Value::UNSET, Value::UNSET, Value::UNSET];
            if self.call_back(callback, arguments)? {
                return Ok(Value::number(number + 1));
            }
        }
        Ok(Value::number(count))
    }

    fn for_each(&mut self, [map, callback, context, flags, _]: [Value; 5]) -> Result<Value, Stop> {
        let elements = self.world.elements(map)?;
        if flags.bits != 0 {
            return Ok(Value::number(EINVAL));
        }
        for (number, (key, region)) in elements.into_iter().enumerate() {
            // A callback around this one has its key there.
            let outer = std::mem::replace(self.world.memory.bytes_mut(self.world.key), key);
            let key = self.world.memory.pointer(self.world.key, 0);
            let value = self.world.memory.pointer(region, 0);
            let stops = self.call_back(callback, [map, key, value, context, Value::UNSET])?;
            *self.world.memory.bytes_mut(self.world.key) = outer;
            if stops {
                return Ok(Value::number(number as u64 + 1));
            }
        }
        Ok(Value::number(0))
    }

    fn simple(&mut self, op: Op, r: &mut Registers) -> Result<(), Wrong> {
        match op {
            Op::Alu { width, op, dst, src } => {
                let b = operand(r, src)?;
                let a = if op == AluOp::Mov { Value::number(0) } else { get(r, dst)? };
                let kind = kind_of(width, op, a.kind, b.kind);
                r[usize::from(dst)] = Value { bits: alu(width, op, a.bits, b.bits), kind };
            }
            Op::Neg { width, dst } => {
                r[usize::from(dst)] = Value::number(cut(width, get(r, dst)?.bits.wrapping_neg()));
            }
            Op::MovSx { width, bits, dst, src } => {
                r[usize::from(dst)] = Value::number(cut(width, extend(bits.into(), get(r, src)?.bits)));
            }
            Op::Swap { dst, bits, swap: swapped } => {
                r[usize::from(dst)] = Value::number(swap(bits, swapped, get(r, dst)?.bits));
            }
            Op::Load { size, signed, dst, src, off } => {
                let read = self.world.load(get(r, src)?.moved(off.into()), size.bytes())?;
                let extended = || Value::number(extend(8 * u32::from(size.bytes()), read.bits));
                r[usize::from(dst)] = if signed { extended() } else { read };
            }
            Op::LoadAcquire { size, dst, src, off } => {
                r[usize::from(dst)] = self.world.load(get(r, src)?.moved(off.into()), size.bytes())?;
            }
            Op::Store { size, dst, src, off } => {
                let (at, value) = (get(r, dst)?.moved(off.into()), operand(r, src)?);
                self.world.memory.store(at, size.bytes(), value)?;
            }
            Op::StoreRelease { size, dst, src, off } => {
                let (at, value) = (get(r, dst)?.moved(off.into()), get(r, src)?);
                self.world.memory.store(at, size.bytes(), value)?;
            }
            Op::Atomic { size, op, fetch, dst, src, off } => {
                let at = get(r, dst)?.moved(off.into());
                self.atomic(size, op, fetch, at, src, r)?;
            }
            _ => unreachable!("handled by `run_from`"),
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        size: Size,
        op: AtomicOp,
        fetch: bool,
        at: Value,
        src: u8,
        r: &mut Registers,
    ) -> Result<(), Wrong> {
        let width = if size == Size::Dw { Width::W64 } else { Width::W32 };
        let source = cut(width, get(r, src)?.bits);
        let expected = if op == AtomicOp::Cmpxchg { cut(width, get(r, 0)?.bits) } else { 0 };
        let old = self.world.load(at, size.bytes())?;
        self.world.memory.store(at, size.bytes(), Value::number(atomic(op, old.bits, source, expected)))?;
        if op == AtomicOp::Cmpxchg {
            r[0] = old;
        } else if fetch {
            r[usize::from(src)] = old;
        }
        Ok(())
    }
}
