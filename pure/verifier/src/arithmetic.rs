//! Arithmetic on registers.
//! Mirrors kernel/bpf/verifier.c:check_alu_op, adjust_ptr_min_max_vals and adjust_scalar_min_max_vals.

use ring3_isa::{AluOp, Cond, Operand, Width};
use ring3_uapi::Errno;

use crate::explore::Explorer;
use crate::scalar::{Scalar, Test};
use crate::state::{Kind, Register};
use crate::{Refusal, deny, refuse};

/// Distances that pointers may have at most (`BPF_MAX_VAR_OFF`).
const DISTANCE_MAX: i64 = 1 << 29;

/// A distance that no pointer has.
fn insane<T>(message: String) -> Result<T, Refusal> {
    refuse(Errno::EINVAL, message)
}

impl Explorer<'_> {
    pub(crate) fn compute(&mut self, width: Width, op: AluOp, dst: u8, src: Operand) -> Result<(), Refusal> {
        if op == AluOp::Mov {
            return self.copy(width, dst, src);
        }
        let right = self.operand(src)?;
        let left = self.read(dst)?;
        let source = match src {
            Operand::Reg(register) => Some(register),
            Operand::Imm(_) => None,
        };
        let result = match (left.is_pointer(), right.is_pointer()) {
            (false, false) => {
                self.note_divisor(width, op, source, &right);
                let mut result = Register::scalar(left.number.compute(width, op, &right.number));
                if width == Width::W64 {
                    (result.id, result.fixed) = linked_sum(op, &left, &right);
                }
                if result.id == 0 {
                    self.link_discriminator(width, op, &left, &right, &mut result);
                }
                result
            }
            (true, true) if op == AluOp::Sub => {
                self.note_leaving(&left);
                self.note_leaving(&right);
                Register::unknown()
            }
            (true, true) => return deny(format!("R{dst} pointer {} pointer prohibited", op.sign())),
            (true, false) => {
                self.decides(source.as_slice());
                self.offset(width, op, dst, left, &right)?
            }
            (false, true) => {
                self.decides(&[dst]);
                if op == AluOp::Sub {
                    return deny(format!("R{dst} tried to subtract pointer from scalar"));
                }
                self.offset(width, op, dst, right, &left)?
            }
        };
        self.write(dst, result, [Some(dst), source]);
        Ok(())
    }

    /// Where a divisor is never 0, compiled code need not look; then what it is matters.
    fn note_divisor(&mut self, width: Width, op: AluOp, source: Option<u8>, divisor: &Register) {
        if !matches!(op, AluOp::Div | AluOp::Mod | AluOp::Sdiv | AluOp::Smod) {
            return;
        }
        let zero = divisor.number.assume(width, Test::Holds(Cond::Eq), &Scalar::constant(0));
        if zero.is_some() {
            self.found.zero_divisors.insert(self.at);
        } else if !self.found.zero_divisors.contains(&self.at) {
            self.decides(source.as_slice());
        }
    }

    fn copy(&mut self, width: Width, dst: u8, src: Operand) -> Result<(), Refusal> {
        let Operand::Reg(src) = src else {
            let value = self.operand(src)?;
            self.write(dst, Register::scalar(value.number.compute(width, AluOp::Mov, &value.number)), [None, None]);
            return Ok(());
        };
        let mut value = self.read(src)?;
        if width == Width::W32 {
            if value.is_pointer() {
                self.note_leaving(&value);
                value = Register::unknown();
            }
            let number = value.number.zero_extended();
            if value.number.umax <= u64::from(u32::MAX) {
                self.name(src, &mut value);
            } else {
                value = Register::scalar(number);
            }
        } else {
            self.name(src, &mut value);
        }
        self.write(dst, value, [Some(src), None]);
        Ok(())
    }

    /// A number that is copied gets a name, so that what is learnt of one copy is known of all.
    fn name(&mut self, register: u8, value: &mut Register) {
        if value.is_scalar() && value.id == 0 && value.number.value().is_none() {
            value.id = self.new_id();
            self.state.set(register, *value);
        }
    }

    pub(crate) fn move_signed(&mut self, width: Width, bits: u8, dst: u8, src: u8) -> Result<(), Refusal> {
        let mut value = self.read(src)?;
        if value.is_pointer() {
            self.note_leaving(&value);
            value = Register::unknown();
        }
        let unchanged = value.number.umax < 1 << (bits - 1);
        if unchanged {
            self.name(src, &mut value);
        } else {
            value.unlink();
        }
        value.number = value.number.extended(u32::from(bits), width);
        self.write(dst, value, [Some(src), None]);
        Ok(())
    }

    /// A register as a number; of a pointer nothing is known.
    fn number_of(&mut self, register: u8) -> Result<Scalar, Refusal> {
        let value = self.read(register)?;
        self.note_leaving(&value);
        Ok(if value.is_pointer() { Scalar::UNKNOWN } else { value.number })
    }

    pub(crate) fn negate(&mut self, width: Width, dst: u8) -> Result<(), Refusal> {
        let number = self.number_of(dst)?;
        let result = Scalar::constant(0).compute(width, AluOp::Sub, &number);
        self.write(dst, Register::scalar(result), [Some(dst), None]);
        Ok(())
    }

    pub(crate) fn swap(&mut self, dst: u8, bits: u8, swap: bool) -> Result<(), Refusal> {
        let number = self.number_of(dst)?;
        let cut = number.truncated(u32::from(bits));
        let result = if swap { cut.swapped(u32::from(bits)) } else { cut };
        self.write(dst, Register::scalar(result), [Some(dst), None]);
        Ok(())
    }

    /// `pointer op offset`
    fn offset(
        &mut self,
        width: Width,
        op: AluOp,
        dst: u8,
        pointer: Register,
        offset: &Register,
    ) -> Result<Register, Refusal> {
        if width == Width::W32 {
            if op == AluOp::Sub {
                self.note_leaving(&pointer);
                return Ok(Register::unknown());
            }
            return deny(format!("R{dst} 32-bit pointer arithmetic prohibited"));
        }
        let name = pointer.kind_name();
        if pointer.nullable {
            return deny(format!("R{dst} pointer arithmetic on {name} prohibited, null-check it first"));
        }
        let null = offset.number.value() == Some(0);
        match pointer.kind {
            Kind::Map(_) if null && op == AluOp::Add => return Ok(pointer),
            Kind::Map(_) | Kind::PacketEnd | Kind::Dynptr => {
                return deny(format!("R{dst} pointer arithmetic on {name} prohibited"));
            }
            _ => {}
        }
        match op {
            AluOp::Add => {}
            AluOp::Sub if matches!(pointer.kind, Kind::Stack(_)) => {
                return deny(format!("R{dst} subtraction from stack pointer prohibited"));
            }
            AluOp::Sub => {}
            AluOp::And | AluOp::Or | AluOp::Xor => {
                return deny(format!("R{dst} bitwise operator {} on pointer prohibited", op.sign()));
            }
            _ => return deny(format!("R{dst} pointer arithmetic with {} operator prohibited", op.sign())),
        }
        check_sane(&pointer, &pointer.number, &name)?;
        check_sane(&pointer, &offset.number, &name)?;
        let moved = if pointer.is_packet() {
            self.offset_packet(op, pointer, offset)
        } else {
            Register { number: pointer.number.compute(Width::W64, op, &offset.number), ..pointer }
        };
        check_sane(&moved, &moved.number, &name)?;
        Ok(moved)
    }

    /// Constants change the fixed part; anything else makes a pointer of which nothing is known to exist.
    fn offset_packet(&mut self, op: AluOp, pointer: Register, offset: &Register) -> Register {
        let by = offset.number.value().map(|value| value as i64);
        let fixed = by.and_then(|by| {
            let by = if op == AluOp::Sub { by.checked_neg()? } else { by };
            i32::try_from(i64::from(pointer.fixed).checked_add(by)?).ok()
        });
        match fixed {
            Some(fixed) => Register { fixed, ..pointer },
            None => {
                let number = pointer.number.compute(Width::W64, op, &offset.number);
                let back = op == AluOp::Sub && offset.number.smin >= 0;
                let range = if back { pointer.range } else { 0 };
                Register { number, range, id: self.new_id(), ..pointer }
            }
        }
    }
}

/// A sum with a constant, or a difference, keeps its relation to the number it came from. A sum of that does not, as in the
/// kernel: else the rounds of a loop would each be another.
fn linked_sum(op: AluOp, left: &Register, right: &Register) -> (u32, i32) {
    let constant = right.number.value().and_then(|value| i32::try_from(value as i64).ok());
    let constant = match op {
        AluOp::Add => constant,
        AluOp::Sub => constant.and_then(i32::checked_neg),
        _ => None,
    };
    match constant {
        Some(constant) if left.id != 0 && (left.fixed, left.range) == (0, 0) => (left.id, constant),
        _ => (0, 0),
    }
}

/// Mirrors kernel/bpf/verifier.c:check_reg_sane_offset.
fn check_sane(pointer: &Register, distance: &Scalar, name: &str) -> Result<(), Refusal> {
    if let Some(value) = distance.value().map(|value| value as i64) {
        if !(-DISTANCE_MAX + 1..DISTANCE_MAX).contains(&value) {
            return insane(format!("math between {name} pointer and {value} is not allowed"));
        }
        return Ok(());
    }
    if i64::from(pointer.fixed).abs() >= DISTANCE_MAX {
        return insane(format!("{name} pointer offset {} is not allowed", pointer.fixed));
    }
    if distance.smin == i64::MIN {
        return insane(format!("math between {name} pointer and register with unbounded min value is not allowed"));
    }
    if distance.smin >= DISTANCE_MAX || distance.smin <= -DISTANCE_MAX {
        return insane(format!("value {} makes {name} pointer be out of bounds", distance.smin));
    }
    Ok(())
}
