//! Reading and writing the stack.
//! Mirrors kernel/bpf/verifier.c:check_stack_write_fixed_off, check_stack_write_var_off, check_stack_read_fixed_off and
//! check_stack_range_initialized.

use ring3_uapi::Errno;

use crate::explore::Explorer;
use crate::path::Place;
use crate::scalar::Scalar;
use crate::state::{Byte, Kind, Register, SLOT_BYTES, STACK_BYTES, Special, slot_of};
use crate::{Refusal, refuse};

/// A stretch of a frame's stack of which the first byte lies between two offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) frame: u8,
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) bytes: i64,
}

impl Stretch {
    /// All bytes that may belong to it.
    fn offsets(&self) -> std::ops::Range<i64> {
        self.first..self.last + self.bytes
    }

    fn is_fixed(&self) -> bool {
        self.first == self.last
    }

    /// Slots that it may touch.
    pub(crate) fn slots(&self) -> std::ops::RangeInclusive<usize> {
        slot_of(self.offsets().end - 1).0..=slot_of(self.first).0
    }
}

impl Explorer<'_> {
    /// The stretch of stack that an access touches.
    pub(crate) fn stretch(
        &mut self,
        register: u8,
        pointer: &Register,
        frame: u8,
        off: i64,
        bytes: u32,
        what: &str,
    ) -> Result<Stretch, Refusal> {
        let number = &pointer.number;
        let fixed = number.value().is_some();
        let kind = if fixed { "" } else { "variable-offset " };
        let far = i64::from(i32::MAX) / 2;
        if number.smin < -far || number.smax > far {
            return refuse(Errno::EACCES, format!("invalid unbounded {kind}{what} stack R{register}"));
        }
        let (first, last) = (number.smin + off, number.smax + off);
        let stretch = Stretch { frame, first, last, bytes: i64::from(bytes) };
        if first < -STACK_BYTES || last + stretch.bytes > 0 || bytes == 0 && last > 0 {
            let at = if fixed { format!("off={first}") } else { format!("var_off={} off={off}", number.bits) };
            let errno = if (-STACK_BYTES..0).contains(&first) { Errno::EINVAL } else { Errno::EACCES };
            return refuse(errno, format!("invalid {kind}{what} stack R{register} {at} size={bytes}"));
        }
        self.touch_stack(frame, -first);
        Ok(stretch)
    }

    fn touch_stack(&mut self, frame: u8, depth: i64) {
        let subprogram = self.state.frames[usize::from(frame)].subprogram;
        let known = &mut self.found.stack_bytes[subprogram];
        *known = (*known).max(depth as u32);
    }

    /// Plain memory is about to be written there: dynptrs and iterators must not be harmed.
    /// Mirrors kernel/bpf/verifier.c:destroy_if_dynptr_stack_slot.
    fn spoil(&mut self, frame: u8, slot: usize) -> Result<(), Refusal> {
        match self.state.frames[usize::from(frame)].slot(slot).special {
            None => Ok(()),
            Some(Special::Dynptr { first, record, id, .. }) => {
                if record {
                    return refuse(Errno::EINVAL, "cannot overwrite referenced dynptr");
                }
                let low = if first { slot } else { slot + 1 };
                for slot in [low, low.wrapping_sub(1)] {
                    self.clear_special(frame, slot);
                }
                self.forget_slices(id);
                Ok(())
            }
            Some(Special::Iterator { .. }) => refuse(Errno::EINVAL, "cannot overwrite an iterator"),
        }
    }

    pub(crate) fn clear_special(&mut self, frame: u8, slot: usize) {
        let slot = self.state.frame_at_mut(frame).slot_mut(slot);
        slot.special = None;
        slot.bytes = [Byte::Unwritten; SLOT_BYTES];
    }

    /// Slices of a dynptr that is gone are nothing any more.
    pub(crate) fn forget_slices(&mut self, id: u32) {
        self.state.change(
            |register| matches!(register.kind, Kind::Memory { .. }) && register.range == id && id != 0,
            |register| *register = Register::unknown(),
        );
    }

    /// Stores the low `bytes` bytes of `value`, which is register `source`'s.
    pub(crate) fn stack_store(
        &mut self,
        stretch: Stretch,
        value: &Register,
        source: Option<u8>,
    ) -> Result<(), Refusal> {
        for slot in stretch.slots() {
            self.spoil(stretch.frame, slot)?;
        }
        let bytes = stretch.bytes as usize;
        let whole = bytes == SLOT_BYTES;
        if value.is_pointer() && !whole {
            return refuse(Errno::EACCES, "invalid size of register spill");
        }
        if !stretch.is_fixed() {
            return self.stack_store_somewhere(stretch, value, source);
        }
        let (slot, byte) = slot_of(stretch.first);
        if matches!(value.kind, Kind::Stack(_)) && stretch.frame != self.state.depth() {
            let message = "cannot spill pointers to stack into stack frame of the caller";
            return refuse(Errno::EINVAL, message);
        }
        // The dynptr that a callback is given is the helper's, and ends with the callback: where it was is not kept.
        // Mirrors kernel/bpf/verifier.c:is_spillable_regtype.
        let number = Register::unknown();
        let value = if value.kind == Kind::Dynptr { &number } else { value };
        let place = Place::slot_at(stretch.frame, slot);
        let zero = value.is_null();
        let spills = byte == 0 && !(zero && source.is_none());
        if spills && (value.is_pointer() || whole || value.is_scalar()) {
            let mut spilled = *value;
            let fits = whole || spilled.number.umax < 1 << (bytes * 8);
            if spilled.is_scalar() && !fits {
                spilled.unlink();
                spilled.number = spilled.number.truncated(bytes as u32 * 8);
            } else if let Some(source) = source.filter(|_| spilled.is_scalar() && spilled.id == 0) {
                self.name_for_spill(source, &mut spilled);
            }
            self.state.frame_at_mut(stretch.frame).slot_mut(slot).spill(spilled, bytes);
            let from = source.map(|register| self.state.place(register));
            if whole {
                self.path.set(place, [from, None]);
            } else {
                // The rest of the slot stays what it was.
                self.path.set_part(place, from);
            }
            return Ok(());
        }
        if zero && let Some(source) = source {
            self.decides(&[source]);
        }
        let content = if zero { Byte::Zero } else { Byte::Unknown };
        self.state.frame_at_mut(stretch.frame).slot_mut(slot).overwrite(byte, bytes, content);
        if whole {
            self.path.set(place, [None, None]);
        }
        Ok(())
    }

    fn name_for_spill(&mut self, source: u8, spilled: &mut Register) {
        if spilled.number.value().is_none() && self.state.register(source).is_scalar() {
            spilled.id = self.new_id();
            self.state.set(source, *spilled);
        }
    }

    fn stack_store_somewhere(
        &mut self,
        stretch: Stretch,
        value: &Register,
        source: Option<u8>,
    ) -> Result<(), Refusal> {
        let zero = value.is_null();
        if zero && let Some(source) = source {
            self.decides(&[source]);
        }
        for offset in stretch.offsets() {
            let (slot, byte) = slot_of(offset);
            let slot = self.state.frame_at_mut(stretch.frame).slot_mut(slot);
            let stays_zero = zero && slot.bytes[byte] == Byte::Zero;
            slot.overwrite(byte, 1, if stays_zero { Byte::Zero } else { Byte::Unknown });
        }
        Ok(())
    }

    /// Loads a register from the stack, zero-extended; and the slot it comes from.
    pub(crate) fn stack_load(&mut self, stretch: Stretch) -> Result<(Register, Option<Place>), Refusal> {
        for slot in stretch.slots() {
            self.path.read(Place::slot_at(stretch.frame, slot));
        }
        let bytes = stretch.bytes as usize;
        let frame = &self.state.frames[usize::from(stretch.frame)];
        let mut zeros = true;
        for offset in stretch.offsets() {
            let (slot, byte) = slot_of(offset);
            let slot = frame.slot(slot);
            match slot.bytes[byte] {
                Byte::Special => {
                    return refuse(Errno::EACCES, format!("invalid read from stack off {offset}+0 size {bytes}"));
                }
                Byte::Zero => {}
                _ => zeros = false,
            }
        }
        let loaded = if zeros { Register::constant(0) } else { Register::scalar(Scalar::loaded(bytes as u32)) };
        if !stretch.is_fixed() {
            return Ok((loaded, None));
        }
        let (slot_index, byte) = slot_of(stretch.first);
        let slot = frame.slot(slot_index);
        let Some(spilled) = slot.spilled.as_deref().filter(|_| slot.bytes[byte] == Byte::Spilled) else {
            return Ok((loaded, None));
        };
        let length = slot.spilled_bytes();
        let place = Some(Place::slot_at(stretch.frame, slot_index));
        if bytes == SLOT_BYTES && length == SLOT_BYTES {
            return Ok((*spilled, place));
        }
        if spilled.is_pointer() {
            // A part of a pointer is a number, as it is where another path left only bytes there.
            return Ok((loaded, None));
        }
        if byte == 0 && bytes <= length {
            let mut filled = *spilled;
            if bytes < SLOT_BYTES && filled.number.umax >= 1 << (bytes * 8) {
                filled.unlink();
            }
            filled.number = filled.number.truncated(bytes as u32 * 8);
            return Ok((filled, place));
        }
        if let Some(value) = spilled.number.value().filter(|_| byte + bytes <= length) {
            let mask = if bytes == SLOT_BYTES { u64::MAX } else { (1 << (bytes * 8)) - 1 };
            return Ok((Register::constant(value >> (byte * 8) & mask), place));
        }
        Ok((loaded, None))
    }

    /// A helper reads these bytes.
    pub(crate) fn stack_is_read(&mut self, stretch: Stretch) -> Result<(), Refusal> {
        for slot in stretch.slots() {
            self.path.read(Place::slot_at(stretch.frame, slot));
        }
        let frame = &self.state.frames[usize::from(stretch.frame)];
        for offset in stretch.offsets() {
            let (slot, byte) = slot_of(offset);
            if frame.slot(slot).bytes[byte] == Byte::Special {
                return refuse(
                    Errno::EACCES,
                    format!("invalid read from stack off {offset}: a dynptr or an iterator lies there"),
                );
            }
        }
        Ok(())
    }

    /// A helper or an atomic operation writes these bytes: all of them, or perhaps only some.
    pub(crate) fn stack_is_written(&mut self, stretch: Stretch, all: bool) -> Result<(), Refusal> {
        for slot in stretch.slots() {
            let special = self.state.frames[usize::from(stretch.frame)].slot(slot).special;
            if let Some(Special::Dynptr { .. }) = special {
                let at = stretch.first;
                return refuse(Errno::EACCES, format!("potential write to dynptr at off={at} disallowed"));
            }
            self.spoil(stretch.frame, slot)?;
        }
        for offset in stretch.offsets() {
            let (slot, byte) = slot_of(offset);
            self.state.frame_at_mut(stretch.frame).slot_mut(slot).overwrite(byte, 1, Byte::Unknown);
        }
        if stretch.is_fixed() && all {
            for slot in stretch.slots() {
                let low = -(slot as i64 + 1) * SLOT_BYTES as i64;
                if low >= stretch.first && low + SLOT_BYTES as i64 <= stretch.offsets().end {
                    self.path.set(Place::slot_at(stretch.frame, slot), [None, None]);
                }
            }
        }
        Ok(())
    }
}
