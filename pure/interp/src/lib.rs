//! The reference interpreter: small, obviously right, the oracle for the compiler.
//!
//! Runs: in tests, and in applications that want no code to be made.
//! May touch: the memory that it is given, through checks ([`Space`]).
//! Never: shares code with the compiler.
//! Start reading at: `run`; `shadow` runs what no verifier has seen and says what is wrong with it.
#![forbid(unsafe_code)]

mod arithmetic;
pub mod shadow;

use std::fmt;

use ring3_isa::{AtomicOp, Call, Immediate, Op, Operand, Size, Width, op};
use ring3_uapi::{Errno, helper};
use ring3_verifier::Verified;

use arithmetic::{alu, atomic, cut, extend, holds, swap};

/// Address of the deepest frame's stack end; frames go down from here.
pub const STACK_TOP: u64 = 0x7000_0000_0000;
/// Bytes of a frame.
pub const FRAME_BYTES: u64 = 512;
/// Frames of a run at most (`MAX_CALL_FRAMES`).
pub const FRAMES_MAX: u64 = 8;

/// Rounds of one run that `may_goto` allows (`BPF_MAX_LOOPS`).
const ROUNDS_MAX: u64 = 8 << 20;

/// Why a program stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An access outside all memory.
    Memory {
        /// Instruction.
        insn: usize,
        /// Address.
        address: u64,
    },
    /// More instructions than allowed.
    OutOfFuel,
    /// A call that the host does not know.
    UnknownHelper(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What programs live in: helpers and maps, and memory of this kind.
pub trait Host<M = Memory> {
    /// Calls a helper.
    fn call(&mut self, helper: u32, arguments: [u64; 5], memory: &mut M) -> Result<u64, Fault>;
    /// Address of a map (`None`) or of its value at an offset.
    fn map(&self, slot: u32, offset: Option<u32>) -> u64;
}

/// What programs read and write. Addresses that it does not know are `None`.
pub trait Space {
    /// Room for a run's stack, of so many bytes: the address behind it.
    fn stack(&mut self, bytes: u64) -> u64;
    /// Reads a little-endian number of 1, 2, 4 or 8 bytes.
    fn load(&mut self, address: u64, bytes: u8) -> Option<u64>;
    /// Writes a little-endian number.
    fn store(&mut self, address: u64, bytes: u8, value: u64) -> Option<()>;
    /// Replaces a number by what `change` makes of it, in one step for other threads; what was there.
    fn change(&mut self, address: u64, bytes: u8, change: &dyn Fn(u64) -> u64) -> Option<u64> {
        let old = self.load(address, bytes)?;
        self.store(address, bytes, change(old))?;
        Some(old)
    }
}

/// Named regions; anything else faults.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    regions: Vec<(u64, Vec<u8>)>,
}

impl Memory {
    /// Adds a region at `address`.
    pub fn add(&mut self, address: u64, bytes: Vec<u8>) {
        self.regions.push((address, bytes));
    }

    /// A region's bytes.
    pub fn region(&self, address: u64) -> Option<&[u8]> {
        self.regions.iter().find(|(start, _)| *start == address).map(|(_, bytes)| bytes.as_slice())
    }

    fn at(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        self.regions.iter_mut().find_map(|(start, region)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            region.get_mut(offset..offset.checked_add(bytes)?)
        })
    }
}

impl Space for Memory {
    fn stack(&mut self, bytes: u64) -> u64 {
        self.add(STACK_TOP - bytes, vec![0; bytes as usize]);
        STACK_TOP
    }

    fn load(&mut self, address: u64, bytes: u8) -> Option<u64> {
        let mut word = [0; 8];
        word[..usize::from(bytes)].copy_from_slice(self.at(address, usize::from(bytes))?);
        Some(u64::from_le_bytes(word))
    }

    fn store(&mut self, address: u64, bytes: u8, value: u64) -> Option<()> {
        self.at(address, usize::from(bytes))?.copy_from_slice(&value.to_le_bytes()[..usize::from(bytes)]);
        Some(())
    }
}

struct Machine<'a, M, H> {
    program: &'a Verified,
    ops: &'a [Option<Op>],
    memory: &'a mut M,
    host: &'a mut H,
    fuel: u64,
    /// How often `may_goto` went on.
    rounds: u64,
}

/// The operations of a program by instruction, `None` for second halves: what [`run_decoded`] wants.
pub fn decoded(program: &Verified) -> Vec<Option<Op>> {
    let insns = program.insns();
    let mut ops = vec![None; insns.len()];
    let mut at = 0;
    while at < insns.len() {
        ops[at] = op(insns, at).ok();
        at += if insns[at].is_wide() { 2 } else { 1 };
    }
    ops
}

/// Runs a program with `r1 = context`; the result is r0. The stack is added to `memory`.
pub fn run<M: Space, H: Host<M>>(
    program: &Verified,
    context: u64,
    memory: &mut M,
    host: &mut H,
    fuel: u64,
) -> Result<u64, Fault> {
    run_decoded(program, &decoded(program), context, memory, host, fuel)
}

/// The same with the program's [`decoded`] operations: for programs that run often.
pub fn run_decoded<M: Space, H: Host<M>>(
    program: &Verified,
    ops: &[Option<Op>],
    context: u64,
    memory: &mut M,
    host: &mut H,
    fuel: u64,
) -> Result<u64, Fault> {
    let stack = memory.stack(FRAMES_MAX * FRAME_BYTES);
    let mut machine = Machine { program, ops, memory, host, fuel, rounds: 0 };
    let length = program.memory_bytes().unwrap_or(0);
    machine.call(0, [context, u64::from(length), 0, 0, 0], stack)
}

impl<M: Space, H: Host<M>> Machine<'_, M, H> {
    fn call(&mut self, start: usize, arguments: [u64; 5], stack: u64) -> Result<u64, Fault> {
        let mut r = [0u64; 11];
        r[1..6].copy_from_slice(&arguments);
        r[10] = stack;
        let mut at = start;
        loop {
            self.fuel = self.fuel.checked_sub(1).ok_or(Fault::OutOfFuel)?;
            let decoded = self.ops[at].expect("verified");
            match decoded {
                Op::Exit => return Ok(r[0]),
                Op::Ja(target) => {
                    at = target;
                    continue;
                }
                Op::Jump { width, cond, dst, src, target } if holds(width, cond, r[dst as usize], value(&r, src)) => {
                    at = target;
                    continue;
                }
                Op::Jump { .. } => {}
                Op::MayGoto(target) => {
                    self.rounds += 1;
                    if self.rounds > ROUNDS_MAX {
                        at = target;
                        continue;
                    }
                }
                Op::Call(call) => {
                    let arguments = [r[1], r[2], r[3], r[4], r[5]];
                    r[0] = match call {
                        Call::Helper(helper::LOOP) => self.rounds_of(arguments, stack - FRAME_BYTES)?,
                        Call::Helper(id) | Call::Kfunc(id) => self.host.call(id, arguments, self.memory)?,
                        Call::Local(target) => self.call(target, arguments, stack - FRAME_BYTES)?,
                        Call::Register(_) => unreachable!("the verifier has put the helper's number there"),
                    };
                }
                Op::LoadImm64 { dst, value } => {
                    r[dst as usize] = self.immediate(at, value);
                    at += 1;
                }
                other => self.simple(at, other, &mut r)?,
            }
            at += 1;
        }
    }

    /// `bpf_loop`: the callback is the index of its first instruction.
    /// Mirrors kernel/bpf/bpf_iter.c:bpf_loop.
    fn rounds_of(&mut self, [rounds, callback, data, flags, _]: [u64; 5], stack: u64) -> Result<u64, Fault> {
        let rounds = u64::from(rounds as u32);
        if flags != 0 {
            return Ok(Errno::EINVAL.negated() as u64);
        }
        if rounds > ROUNDS_MAX {
            return Ok(u64::from(Errno::E2BIG.negated() as u32));
        }
        for round in 0..rounds {
            if self.call(callback as usize, [round, data, 0, 0, 0], stack)? != 0 {
                return Ok(round + 1);
            }
        }
        Ok(rounds)
    }

    fn immediate(&self, at: usize, value: Immediate) -> u64 {
        match (self.program.map_at(at), value) {
            (Some((map, offset)), _) => self.host.map(map.slot, offset),
            (None, Immediate::Value(value)) => value,
            (None, Immediate::Func(target)) => target as u64,
            (None, _) => 0,
        }
    }

    fn simple(&mut self, insn: usize, op: Op, r: &mut [u64; 11]) -> Result<(), Fault> {
        match op {
            Op::Alu { width, op, dst, src } => r[dst as usize] = alu(width, op, r[dst as usize], value(r, src)),
            Op::Neg { width, dst } => r[dst as usize] = cut(width, r[dst as usize].wrapping_neg()),
            Op::MovSx { width, bits, dst, src } => {
                r[dst as usize] = cut(width, extend(u32::from(bits), r[src as usize]));
            }
            Op::Swap { dst, bits, swap: swapped } => r[dst as usize] = swap(bits, swapped, r[dst as usize]),
            Op::Load { size, signed, dst, src, off } => {
                let read = self.load(insn, r[src as usize].wrapping_add_signed(i64::from(off)), size)?;
                r[dst as usize] = if signed { extend(8 * u32::from(size.bytes()), read) } else { read };
            }
            Op::LoadAcquire { size, dst, src, off } => {
                r[dst as usize] = self.load(insn, r[src as usize].wrapping_add_signed(i64::from(off)), size)?;
            }
            Op::Store { size, dst, src, off } => {
                let address = r[dst as usize].wrapping_add_signed(i64::from(off));
                self.store(insn, address, size, value(r, src))?;
            }
            Op::StoreRelease { size, dst, src, off } => {
                let address = r[dst as usize].wrapping_add_signed(i64::from(off));
                self.store(insn, address, size, r[src as usize])?;
            }
            Op::Atomic { size, op, fetch, dst, src, off } => {
                let address = r[dst as usize].wrapping_add_signed(i64::from(off));
                self.atomic(insn, size, op, fetch, address, src, r)?;
            }
            _ => unreachable!("handled by `call`"),
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the instruction")]
    fn atomic(
        &mut self,
        insn: usize,
        size: Size,
        op: AtomicOp,
        fetch: bool,
        address: u64,
        src: u8,
        r: &mut [u64; 11],
    ) -> Result<(), Fault> {
        let width = if size == Size::Dw { Width::W64 } else { Width::W32 };
        let (operand, expected) = (cut(width, r[src as usize]), cut(width, r[0]));
        let change = |old| atomic(op, old, operand, expected);
        let old = self.memory.change(address, size.bytes(), &change).ok_or(Fault::Memory { insn, address })?;
        if op == AtomicOp::Cmpxchg {
            r[0] = old;
        } else if fetch {
            r[src as usize] = old;
        }
        Ok(())
    }

    fn load(&mut self, insn: usize, address: u64, size: Size) -> Result<u64, Fault> {
        self.memory.load(address, size.bytes()).ok_or(Fault::Memory { insn, address })
    }

    fn store(&mut self, insn: usize, address: u64, size: Size, value: u64) -> Result<(), Fault> {
        self.memory.store(address, size.bytes(), value).ok_or(Fault::Memory { insn, address })
    }
}

fn value(r: &[u64; 11], operand: Operand) -> u64 {
    match operand {
        Operand::Reg(register) => r[register as usize],
        Operand::Imm(value) => i64::from(value) as u64,
    }
}
