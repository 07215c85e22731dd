//! Loads, stores and atomic operations.
//! Mirrors kernel/bpf/verifier.c:check_mem_access, check_mem_region_access, check_map_access, check_packet_access,
//! check_ctx_access and check_atomic.

use ring3_isa::{AtomicOp, Operand, Size};
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG};

use crate::added::ValueAt;
use crate::discriminator::Origin;
use crate::explore::Explorer;
use crate::objects::Member;
use crate::path::Place;
use crate::policy::Content;
use crate::scalar::Scalar;
use crate::state::{Kind, Register};
use crate::tnum::Tnum;
use crate::{Refusal, deny, refuse};

/// Distances above this are no bound (`BPF_MAX_VAR_OFF`).
const DISTANCE_MAX: u64 = 1 << 29;

/// An access as the program asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) register: u8,
    pub(crate) off: i64,
    pub(crate) bytes: u32,
    pub(crate) write: bool,
}

impl Explorer<'_> {
    pub(crate) fn load(&mut self, size: Size, signed: bool, dst: u8, src: u8, off: i16) -> Result<(), Refusal> {
        let pointer = self.read(src)?;
        let bytes = u32::from(size.bytes());
        let access = Access { register: src, off: i64::from(off), bytes, write: false };
        let (mut loaded, from) = self.load_from(access, &pointer)?;
        self.note_pointer(&pointer)?;
        self.note_value(&pointer, off);
        if signed && loaded.is_scalar() {
            let unchanged = loaded.number.umax < 1 << (bytes * 8 - 1);
            if !unchanged {
                loaded.unlink();
            }
            loaded.number = loaded.number.extended(bytes * 8, ring3_isa::Width::W64);
        } else if signed && pointer.kind == Kind::Context {
            return deny(format!("invalid bpf_context access off={off} size={bytes}"));
        } else if signed {
            return deny(format!("R{src} sign-extended load of a pointer"));
        }
        if loaded.is_scalar() && from.is_some() && loaded.id == 0 && loaded.number.value().is_none() && !signed {
            loaded.id = self.new_id();
            if let Some(slot) = from.and_then(|place| self.state.at_mut(place))
                && slot.is_scalar()
                && slot.number == loaded.number
                && slot.id == 0
            {
                slot.id = loaded.id;
            }
        }
        self.write_from(dst, loaded, from);
        Ok(())
    }

    /// An instruction that reaches into the context reaches nowhere else: contexts may be laid out differently where the
    /// program runs. Mirrors kernel/bpf/verifier.c:save_aux_ptr_type.
    fn note_pointer(&mut self, pointer: &Register) -> Result<(), Refusal> {
        let is_context = pointer.kind == Kind::Context;
        if *self.found.context_at.entry(self.at).or_insert(is_context) != is_context {
            return refuse(Errno::EINVAL, "same insn cannot be used with different pointers");
        }
        Ok(())
    }

    /// Where in values of which map an instruction reads or writes.
    fn note_value(&mut self, pointer: &Register, off: i16) {
        let Kind::MapValue(map) = pointer.kind else { return };
        let slot = self.maps[map as usize].slot;
        let at = |offset: u64| u32::try_from(offset.wrapping_add_signed(off.into())).ok();
        let place =
            at(pointer.number.umin).zip(at(pointer.number.umax)).map(|(first, last)| ValueAt { slot, first, last });
        let known = self.found.values_at.entry(self.at).or_insert(place);
        *known = known.zip(place).filter(|(one, other)| one.slot == other.slot).map(|(one, other)| ValueAt {
            slot,
            first: one.first.min(other.first),
            last: one.last.max(other.last),
        });
    }

    /// A value becomes a number, goes into memory, or to a helper that takes anything.
    pub(crate) fn note_leaving(&mut self, value: &Register) {
        self.found.context_leaves |= value.kind == Kind::Context;
    }

    fn load_from(&mut self, access: Access, pointer: &Register) -> Result<(Register, Option<Place>), Refusal> {
        if let Kind::Stack(frame) = pointer.kind
            && !pointer.nullable
        {
            self.check_alignment(access, pointer, "stack")?;
            let stretch = self.stretch(access.register, pointer, frame, access.off, access.bytes, "read from")?;
            return self.stack_load(stretch);
        }
        if let Kind::Context = pointer.kind {
            return Ok((self.context_access(access, pointer)?, None));
        }
        if let Kind::Object { id, .. } = pointer.kind {
            return Ok((self.object_load(access, id, pointer)?, None));
        }
        if let Kind::Host(object) = pointer.kind {
            return Ok((self.host_access(access, object, pointer)?, None));
        }
        if let Kind::Untrusted = pointer.kind {
            return Ok((Register::scalar(Scalar::loaded(access.bytes)), None));
        }
        self.check_region(access, pointer)?;
        let known = match pointer.kind {
            Kind::MapValue(map) => self.constant_of(map, pointer, access),
            _ => None,
        };
        Ok((Register::scalar(known.map_or(Scalar::loaded(access.bytes), Scalar::constant)), None))
    }

    /// What a map holds that nobody can change any more; asked for once.
    pub(crate) fn constant(&mut self, slot: u32) -> Option<&[u8]> {
        let known = self.constants.entry(slot).or_insert_with(|| (self.input.constant_value)(slot));
        known.as_deref()
    }

    /// What nobody can change any more is known.
    fn constant_of(&mut self, map: u32, pointer: &Register, access: Access) -> Option<u64> {
        let at = pointer.number.value()?.wrapping_add(access.off as u64);
        let shape = &self.maps[map as usize];
        if shape.map_type != map_type::ARRAY || shape.max_entries != 1 {
            return None;
        }
        let value = self.constant(shape.slot)?;
        let read = value.get(usize::try_from(at).ok()?..)?.get(..access.bytes as usize)?;
        let mut word = [0; 8];
        word[..read.len()].copy_from_slice(read);
        Some(u64::from_le_bytes(word))
    }

    pub(crate) fn store(&mut self, size: Size, dst: u8, src: Operand, off: i16) -> Result<(), Refusal> {
        let value = self.operand(src)?;
        let pointer = self.read(dst)?;
        self.note_leaving(&value);
        self.store_to(pointer, value, size, dst, src, off)?;
        self.note_value(&pointer, off);
        self.note_pointer(&pointer)
    }

    fn store_to(
        &mut self,
        pointer: Register,
        value: Register,
        size: Size,
        dst: u8,
        src: Operand,
        off: i16,
    ) -> Result<(), Refusal> {
        let access = Access { register: dst, off: i64::from(off), bytes: u32::from(size.bytes()), write: true };
        if let Kind::Stack(frame) = pointer.kind
            && !pointer.nullable
        {
            self.check_alignment(access, &pointer, "stack")?;
            let stretch = self.stretch(dst, &pointer, frame, access.off, access.bytes, "write to")?;
            let source = match src {
                Operand::Reg(register) => Some(register),
                Operand::Imm(_) => None,
            };
            return self.stack_store(stretch, &value, source);
        }
        if let Kind::Context = pointer.kind {
            return self.context_access(access, &pointer).map(drop);
        }
        if let Kind::Host(object) = pointer.kind {
            return self.host_access(access, object, &pointer).map(drop);
        }
        self.check_region(access, &pointer)
    }

    /// Mirrors kernel/bpf/verifier.c:check_generic_ptr_alignment.
    pub(crate) fn check_alignment(&self, access: Access, pointer: &Register, what: &str) -> Result<(), Refusal> {
        let bits = pointer.number.bits.add(Tnum::constant(access.off as u64));
        let low = u64::from(access.bytes) - 1;
        if bits.value & low == 0 && bits.mask & low == 0 {
            return Ok(());
        }
        let (variable, fixed) = match pointer.number.value() {
            Some(value) => (Tnum::constant(0), value as i64),
            None => (pointer.number.bits, 0),
        };
        let Access { off, bytes, .. } = access;
        deny(format!("misaligned {what} access off {variable}+{fixed}+{off} size {bytes}"))
    }

    /// Everything but stack, context and kernel objects.
    pub(crate) fn check_region(&mut self, access: Access, pointer: &Register) -> Result<(), Refusal> {
        let (register, name) = (access.register, pointer.kind_name());
        if pointer.nullable {
            return deny(format!("R{register} invalid mem access '{name}'"));
        }
        match pointer.kind {
            Kind::MapValue(map) => {
                let shape = self.maps[map as usize];
                let forbidden = if access.write { BPF_F_RDONLY_PROG } else { BPF_F_WRONLY_PROG };
                if shape.map_flags & forbidden != 0 {
                    let (verb, preposition) = if access.write { ("write", "into") } else { ("read", "from") };
                    return deny(format!(
                        "{verb} {preposition} map forbidden, value_size={} off={} size={}",
                        shape.value_size, access.off, access.bytes
                    ));
                }
                self.check_bounds(access, pointer, shape.value_size, "map value", "value_size")?;
                self.check_special_members(&shape, access, pointer)
            }
            Kind::MapKey(map) => {
                if access.write {
                    return deny(format!("write to change key R{register} not allowed"));
                }
                let bytes = self.maps[map as usize].key_size;
                self.check_bounds(access, pointer, bytes, "map key", "key_size")
            }
            Kind::Memory { bytes, write, .. } => {
                if access.write && !write {
                    return deny(format!("R{register} cannot write into {name}"));
                }
                self.check_bounds(access, pointer, bytes, "memory", "mem_size")
            }
            Kind::Packet | Kind::PacketMeta => self.check_packet(access, pointer),
            Kind::Object { .. } if access.write => {
                deny(format!("R{register} is a kernel object; only read is supported"))
            }
            Kind::Untrusted => deny(format!("R{register} cannot write into {name}")),
            Kind::Map(_) if access.write => {
                deny(format!("R{register} points to a map: only read from bpf_array is supported"))
            }
            _ => deny(format!("R{register} invalid mem access '{name}'")),
        }
    }

    fn check_bounds(
        &self,
        access: Access,
        pointer: &Register,
        limit: u32,
        what: &str,
        size_name: &str,
    ) -> Result<(), Refusal> {
        let Access { register, off, bytes, .. } = access;
        let number = &pointer.number;
        let outside = |at: i64| deny(format!("invalid access to {what}, {size_name}={limit} off={at} size={bytes}"));
        if let Some(value) = number.value() {
            let at = (value as i64).saturating_add(off);
            let inside = at >= 0 && at.saturating_add(i64::from(bytes)) <= i64::from(limit);
            return if inside { Ok(()) } else { outside(at) };
        }
        let lowest = number.smin.saturating_add(off);
        if lowest < 0 {
            return deny(format!(
                "R{register} min value is negative, either use unsigned index or do a if (index >=0) check."
            ));
        }
        if number.umax >= DISTANCE_MAX {
            return deny(format!("R{register} unbounded memory access, make sure to bounds check any such access"));
        }
        let highest = number.umax as i64 + off;
        if highest + i64::from(bytes) > i64::from(limit) { outside(highest) } else { Ok(()) }
    }

    /// Locks in values are for helpers only. Mirrors kernel/bpf/verifier.c:check_map_access.
    fn check_special_members(
        &self,
        shape: &crate::MapShape,
        access: Access,
        pointer: &Register,
    ) -> Result<(), Refusal> {
        const LOCK_BYTES: i64 = 4;
        let Some(lock) = shape.lock.map(i64::from) else { return Ok(()) };
        let lowest = pointer.number.smin.saturating_add(access.off);
        let highest = pointer.number.smax.saturating_add(access.off).saturating_add(i64::from(access.bytes));
        if lowest < lock + LOCK_BYTES && lock < highest {
            return deny("bpf_spin_lock cannot be accessed directly by load/store");
        }
        Ok(())
    }

    fn check_packet(&mut self, access: Access, pointer: &Register) -> Result<(), Refusal> {
        let Access { register, off, bytes, write } = access;
        if write && !self.input.policy.packet_writes {
            return deny("cannot write into packet");
        }
        if pointer.number.smin < 0 {
            return deny(format!(
                "R{register} min value is negative, either use unsigned index or do a if (index >=0) check."
            ));
        }
        let at = i64::from(pointer.fixed) + off;
        if at < 0 || at + i64::from(bytes) > i64::from(pointer.range) {
            return deny(format!(
                "invalid access to packet, off={at} size={bytes}, R{register}(id={},off={},r={})",
                pointer.id, pointer.fixed, pointer.range
            ));
        }
        Ok(())
    }

    fn context_access(&mut self, access: Access, pointer: &Register) -> Result<Register, Refusal> {
        let Access { register, off, bytes, write } = access;
        match pointer.number.value() {
            None => {
                let bits = pointer.number.bits;
                return deny(format!("variable ctx access var_off={bits} disallowed"));
            }
            Some(0) => {}
            Some(moved) => {
                let moved = moved as i64;
                return deny(format!("dereference of modified ctx ptr R{register} off={moved} disallowed"));
            }
        }
        let at = u32::try_from(off).ok();
        let content = at.and_then(|at| self.input.policy.context.content(at, bytes, write));
        if content.is_none() && self.input.policy.host.is_some() {
            let what = "only arguments that the entry's function has; at its return there is its result, at 0";
            return deny(format!("invalid bpf_context access off={off} size={bytes}: an extension reads {what}"));
        }
        let (Some(content), Some(at)) = (content, at) else {
            return deny(format!("invalid bpf_context access off={off} size={bytes}"));
        };
        self.found.context_bytes = self.found.context_bytes.max(at + bytes);
        Ok(match content {
            Content::Number => Register::scalar(Scalar::loaded(bytes)),
            Content::Packet => Register::pointer(Kind::Packet),
            Content::PacketEnd => Register::pointer(Kind::PacketEnd),
            Content::PacketMeta => Register::pointer(Kind::PacketMeta),
            Content::HostObject { object, nullable } => self.host_pointer(object, nullable, Origin::Argument(at)),
            Content::Buffer { bytes } => Register::pointer(Kind::Memory { bytes, write: true, record: false }),
            Content::Registers => {
                Register::pointer(Kind::Memory { bytes: crate::policy::PT_REGS_BYTES, write: false, record: false })
            }
            Content::Object { id, nullable, trusted } => {
                let object = Register::pointer(Kind::Object { id, trusted });
                if nullable { object.or_null(self.new_id()) } else { object }
            }
        })
    }

    /// A member of a kernel object.
    fn object_load(&self, access: Access, id: u32, pointer: &Register) -> Result<Register, Refusal> {
        if pointer.nullable {
            return deny(format!("R{} invalid mem access '{}'", access.register, pointer.kind_name()));
        }
        let Some(objects) = self.input.policy.objects.as_deref() else {
            return deny(format!(
                "R{} is a kernel object, which cannot be read: there is none in user space",
                access.register
            ));
        };
        let Some(value) = pointer.number.value() else {
            return deny(format!("R{} is a kernel object: variable offsets are not allowed", access.register));
        };
        let at = (value as i64).saturating_add(access.off);
        let member = u32::try_from(at).map_err(|_| format!("R{} offset {at} is negative", access.register));
        let member = member.and_then(|at| objects.member(id, at, access.bytes));
        match member {
            Ok(Member::Number) => Ok(Register::scalar(Scalar::loaded(access.bytes))),
            Ok(Member::Object(to)) => Ok(Register::pointer(Kind::Object { id: to, trusted: false })),
            Ok(Member::Memory) => Ok(Register::pointer(Kind::Untrusted)),
            Err(message) => deny(message),
        }
    }

    /// What atomic operations may not touch, and that what they touch is aligned.
    /// Mirrors kernel/bpf/verifier.c:atomic_ptr_type_ok.
    pub(crate) fn check_atomic(&mut self, access: Access) -> Result<(), Refusal> {
        let Access { register, write, .. } = access;
        let pointer = self.read(register)?;
        match pointer.kind {
            Kind::Context
            | Kind::Packet
            | Kind::PacketMeta
            | Kind::Object { .. }
            | Kind::Host(_)
            | Kind::Untrusted => {
                let verb = if write { "stores into" } else { "loads from" };
                deny(format!("BPF_ATOMIC {verb} R{register} {} is not allowed", pointer.kind_name()))
            }
            Kind::Stack(_) => Ok(()),
            _ => self.check_alignment(access, &pointer, "value"),
        }
    }

    pub(crate) fn atomic(
        &mut self,
        size: Size,
        op: AtomicOp,
        fetch: bool,
        dst: u8,
        src: u8,
        off: i16,
    ) -> Result<(), Refusal> {
        let value = self.read(src)?;
        self.note_leaving(&value);
        if op == AtomicOp::Cmpxchg {
            self.read(0)?;
        }
        let bytes = u32::from(size.bytes());
        let access = Access { register: dst, off: i64::from(off), bytes, write: true };
        self.check_atomic(access)?;
        let pointer = self.read(dst)?;
        let (old, from) = if let Kind::Stack(frame) = pointer.kind
            && !pointer.nullable
        {
            self.check_alignment(access, &pointer, "stack")?;
            let stretch = self.stretch(dst, &pointer, frame, access.off, bytes, "read from")?;
            let old = self.stack_load(stretch)?;
            self.stack_is_written(stretch, false)?;
            old
        } else {
            self.check_region(Access { write: false, ..access }, &pointer)?;
            self.check_region(access, &pointer)?;
            (Register::scalar(Scalar::loaded(bytes)), None)
        };
        self.note_value(&pointer, off);
        if op == AtomicOp::Cmpxchg {
            self.write_from(0, old, from);
        } else if fetch {
            self.write_from(src, old, from);
        }
        Ok(())
    }

    /// `ld_abs`, `ld_ind`: legacy packet loads. Mirrors kernel/bpf/verifier.c:check_ld_abs.
    pub(crate) fn load_packet(&mut self, size: Size, src: Option<u8>) -> Result<(), Refusal> {
        if !self.input.policy.legacy_packet_loads {
            return refuse(Errno::EINVAL, "BPF_LD_[ABS|IND] instructions not allowed for this program type");
        }
        let context = self.read(6)?;
        if context.kind != Kind::Context {
            return refuse(Errno::EINVAL, "at the time of BPF_LD_ABS|IND R6 != pointer to skb");
        }
        if context.number.value() != Some(0) {
            return deny("R6 is a ctx pointer with an offset");
        }
        if let Some(held) = self.state.references.first() {
            let message = format!("BPF_LD_[ABS|IND] would lead to reference leak: id={}", held.id);
            return refuse(Errno::EINVAL, message);
        }
        if self.state.lock.is_some() {
            return refuse(Errno::EINVAL, "BPF_LD_[ABS|IND] inside bpf_spin_lock-ed region");
        }
        if let Some(src) = src {
            self.read(src)?;
        }
        self.clobber();
        self.write(0, Register::scalar(Scalar::loaded(u32::from(size.bytes()))), [None, None]);
        self.may_return()
    }
}
