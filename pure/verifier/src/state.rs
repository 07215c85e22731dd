//! What is known at a point of one path: registers and stack of each frame, and what must still be released.

use std::cell::Cell;
use std::rc::Rc;

use crate::path::Place;
use crate::scalar::Scalar;

/// Bytes of a frame's stack (`MAX_BPF_STACK`).
pub(crate) const STACK_BYTES: i64 = 512;
/// Bytes of a stack slot (`BPF_REG_SIZE`).
pub(crate) const SLOT_BYTES: usize = 8;

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing that may be read.
    NotInit,
    /// A number.
    Scalar,
    /// The program's context.
    Context,
    /// The end of a frame's stack.
    Stack(u8),
    /// A map, by index in the explorer's list.
    Map(u32),
    /// A map's value.
    MapValue(u32),
    /// A map's key; read only.
    MapKey(u32),
    /// Memory of this many bytes.
    Memory { bytes: u32, write: bool, record: bool },
    /// Packet data; what lies between the pointer and the end is known by comparing.
    Packet,
    /// Data before the packet.
    PacketMeta,
    /// Behind the packet's last byte.
    PacketEnd,
    /// A kernel object, by its type's id in the kernel's BTF; trusted ones are alive.
    Object { id: u32, trusted: bool },
    /// An object of the host that is extended, by its index in the grant.
    Host(u32),
    /// Kernel memory of which nothing is known; loads from it are guarded.
    Untrusted,
    /// A subprogram, by index.
    Function(u32),
    /// A dynptr that a helper gave to a callback.
    Dynptr,
}

/// A register, or what was spilled of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register {
    pub(crate) kind: Kind,
    /// The number, or the distance from what `kind` names; of packets, the part of it that is not `fixed`.
    pub(crate) number: Scalar,
    /// Scalars with the same id differ by `fixed` at most; pointers that may be null and have the same id are null
    /// together; packet pointers with the same id differ by `fixed` only. 0: none.
    pub(crate) id: u32,
    /// Scalar: what was added to the number with this id, see `range`. Packet: the constant part of the distance.
    pub(crate) fixed: i32,
    /// Packet: bytes behind the variable part that certainly exist. Memory: the dynptr that it is a slice of. Map key: the
    /// callback's frame, with which it goes. Scalar: of how many bits the sum with `fixed` is; 0: of all 64. Object of the host: where the pointer comes from (`discriminator.rs`).
    pub(crate) range: u32,
    /// The [`Reference`] it stands for; 0: none.
    pub(crate) reference: u32,
    /// The pointer may be null.
    pub(crate) nullable: bool,
}

impl Register {
    pub(crate) const NOT_INIT: Register = Register {
        kind: Kind::NotInit,
        number: Scalar::UNKNOWN,
        id: 0,
        fixed: 0,
        range: 0,
        reference: 0,
        nullable: false,
    };

    pub(crate) const fn scalar(number: Scalar) -> Register {
        Register { kind: Kind::Scalar, number, ..Register::NOT_INIT }
    }

    pub(crate) const fn unknown() -> Register {
        Register::scalar(Scalar::UNKNOWN)
    }

    pub(crate) const fn constant(value: u64) -> Register {
        Register::scalar(Scalar::constant(value))
    }

    /// A pointer to the start of something.
    pub(crate) const fn pointer(kind: Kind) -> Register {
        Register { kind, number: Scalar::constant(0), ..Register::NOT_INIT }
    }

    pub(crate) const fn or_null(mut self, id: u32) -> Register {
        (self.nullable, self.id) = (true, id);
        self
    }

    pub(crate) fn is_scalar(&self) -> bool {
        self.kind == Kind::Scalar
    }

    pub(crate) fn is_pointer(&self) -> bool {
        !matches!(self.kind, Kind::Scalar | Kind::NotInit)
    }

    pub(crate) fn is_packet(&self) -> bool {
        matches!(self.kind, Kind::Packet | Kind::PacketMeta)
    }

    /// A number that is certainly 0.
    pub(crate) fn is_null(&self) -> bool {
        self.is_scalar() && self.number.value() == Some(0)
    }

    /// Number without relation to others.
    pub(crate) fn unlink(&mut self) {
        (self.id, self.fixed) = (0, 0);
        if self.is_scalar() {
            self.range = 0;
        }
    }

    /// As the kernel calls it in messages (kernel/bpf/log.c:reg_type_str).
    pub(crate) fn kind_name(&self) -> String {
        let name = match self.kind {
            Kind::NotInit => "?",
            Kind::Scalar => "scalar",
            Kind::Context => "ctx",
            Kind::Stack(_) => "fp",
            // What a lookup in a map of maps gives is a value until it was compared with null.
            Kind::Map(_) if self.nullable => "map_value",
            Kind::Map(_) => "map_ptr",
            Kind::MapValue(_) => "map_value",
            Kind::MapKey(_) => "map_key",
            Kind::Memory { record: true, .. } => "ringbuf_mem",
            Kind::Memory { write: false, .. } => "rdonly_mem",
            Kind::Memory { .. } => "mem",
            Kind::Packet => "pkt",
            Kind::PacketMeta => "pkt_meta",
            Kind::PacketEnd => "pkt_end",
            Kind::Object { trusted: true, .. } => "trusted_ptr_",
            Kind::Object { .. } => "ptr_",
            Kind::Host(_) => "host_ptr",
            Kind::Untrusted => "rdonly_untrusted_mem",
            Kind::Function(_) => "func",
            Kind::Dynptr => "dynptr_ptr",
        };
        if self.nullable { format!("{name}_or_null") } else { name.to_owned() }
    }
}

/// What is known of a byte of stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Byte {
    Unwritten,
    Unknown,
    Zero,
    /// Part of the slot's spilled register.
    Spilled,
    /// Part of the slot's [`Special`].
    Special,
}

/// What programs must not touch themselves, in stack slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    /// Half of a dynptr (16 bytes).
    Dynptr {
        /// The lower half, which programs point to.
        first: bool,
        /// Over a ring buffer's record, which `reference` stands for.
        record: bool,
        /// Names it, for slices of it.
        id: u32,
        reference: u32,
    },
    /// An iterator over numbers (`struct bpf_iter_num`, 8 bytes).
    Iterator { reference: u32, active: bool, depth: u32 },
}

/// Eight bytes of stack, lowest address first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) bytes: [Byte; SLOT_BYTES],
    /// What lies in the leading bytes that are [`Byte::Spilled`].
    pub(crate) spilled: Option<Rc<Register>>,
    /// What all bytes are if they are [`Byte::Special`].
    pub(crate) special: Option<Special>,
}

impl Slot {
    pub(crate) const UNWRITTEN: Slot = Slot { bytes: [Byte::Unwritten; SLOT_BYTES], spilled: None, special: None };

    /// How many bytes hold the spilled register.
    pub(crate) fn spilled_bytes(&self) -> usize {
        if self.spilled.is_some() { self.bytes.iter().filter(|byte| **byte == Byte::Spilled).count() } else { 0 }
    }

    /// Bytes `first..first + count` become `byte`; a spilled register that they belonged to is lost.
    pub(crate) fn overwrite(&mut self, first: usize, count: usize, byte: Byte) {
        if self.bytes[first..first + count].contains(&Byte::Spilled) {
            self.forget();
        }
        self.bytes[first..first + count].fill(byte);
    }

    /// A spilled register becomes unknown bytes: if it was 0, that may have mattered to nobody so far.
    pub(crate) fn forget(&mut self) {
        self.spilled = None;
        for byte in self.bytes.iter_mut().filter(|byte| **byte == Byte::Spilled) {
            *byte = Byte::Unknown;
        }
    }

    /// A register's low `count` bytes are stored at the slot's start.
    pub(crate) fn spill(&mut self, register: Register, count: usize) {
        self.overwrite(0, count, Byte::Spilled);
        self.spilled = Some(Rc::new(register));
    }
}

/// Bytes of all frames that share it, and of its own.
#[derive(Debug)]
struct Weight {
    all: Rc<Cell<u64>>,
    own: u64,
}

impl Weight {
    fn new(all: &Rc<Cell<u64>>) -> Weight {
        let mut weight = Weight { all: all.clone(), own: 0 };
        weight.grow(size_of::<Frame>());
        weight
    }

    fn grow(&mut self, bytes: usize) {
        self.own += bytes as u64;
        self.all.set(self.all.get() + bytes as u64);
    }
}

impl Clone for Weight {
    fn clone(&self) -> Weight {
        let mut copy = Weight { all: self.all.clone(), own: 0 };
        copy.grow(self.own as usize);
        copy
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.own);
    }
}

/// A function that runs.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) registers: [Register; 11],
    /// Slot i covers the bytes from `-8 * (i + 1)`; slots behind the last were never written.
    pub(crate) slots: Vec<Slot>,
    /// The call to this function; for the program's entry, 0.
    pub(crate) call_site: usize,
    /// Index of the subprogram.
    pub(crate) subprogram: usize,
    /// A helper called it.
    pub(crate) callback: bool,
    /// How often callbacks came back to the call that runs them.
    pub(crate) rounds: u32,
    weight: Weight,
}

impl Frame {
    fn new(index: u8, subprogram: usize, call_site: usize, all: &Rc<Cell<u64>>) -> Frame {
        let mut registers = [Register::NOT_INIT; 11];
        registers[10] = Register::pointer(Kind::Stack(index));
        let weight = Weight::new(all);
        Frame { registers, slots: vec![], call_site, subprogram, callback: false, rounds: 0, weight }
    }

    pub(crate) fn slot(&self, index: usize) -> &Slot {
        const UNWRITTEN: Slot = Slot::UNWRITTEN;
        self.slots.get(index).unwrap_or(&UNWRITTEN)
    }

    pub(crate) fn slot_mut(&mut self, index: usize) -> &mut Slot {
        /// Bytes of a slot with a register in it (behind an `Rc`, which counts twice).
        const SPILLED: usize = size_of::<Slot>() + size_of::<Register>() + 2 * size_of::<usize>();
        if self.slots.len() <= index {
            self.weight.grow((index + 1 - self.slots.len()) * SPILLED);
            self.slots.resize(index + 1, Slot::UNWRITTEN);
        }
        &mut self.slots[index]
    }
}

/// Slot, and byte in the slot, of a stack offset in `-512..0`.
pub(crate) fn slot_of(offset: i64) -> (usize, usize) {
    let depth = (-offset - 1) as usize;
    (depth / SLOT_BYTES, SLOT_BYTES - 1 - depth % SLOT_BYTES)
}

/// Something that a helper gave and that must be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) id: u32,
    /// The call that gave it.
    pub(crate) insn: usize,
}

/// A spin lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    /// The map whose value has it.
    pub(crate) map: u32,
    /// Of the pointer by which it was taken.
    pub(crate) id: u32,
}

/// What is known at a point of a path.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The innermost is the last. Shared with states it was copied from, until either changes.
    pub(crate) frames: Vec<Rc<Frame>>,
    pub(crate) references: Vec<Reference>,
    pub(crate) lock: Option<Lock>,
    /// How often `may_goto` went on.
    pub(crate) may_goto: u32,
}

impl State {
    pub(crate) fn at_entry(memory: Option<u32>, write: bool) -> State {
        let mut frame = Frame::new(0, 0, 0, &Rc::default());
        frame.registers[1] = match memory {
            None => Register::pointer(Kind::Context),
            Some(0) => Register::constant(0),
            Some(bytes) => Register::pointer(Kind::Memory { bytes, write, record: false }),
        };
        if let Some(bytes) = memory {
            frame.registers[2] = Register::constant(u64::from(bytes));
        }
        State { frames: vec![Rc::new(frame)], references: vec![], lock: None, may_goto: 0 }
    }

    /// The frame of a function that is called here.
    pub(crate) fn called(&self, subprogram: usize, call_site: usize) -> Frame {
        Frame::new(self.depth() + 1, subprogram, call_site, &self.frame().weight.all)
    }

    /// Bytes of the frames of all states of this walk.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.frame().weight.all.get()
    }

    /// Index of the innermost frame.
    pub(crate) fn depth(&self) -> u8 {
        self.frames.len() as u8 - 1
    }

    pub(crate) fn frame(&self) -> &Frame {
        self.frames.last().expect("a state has a frame")
    }

    pub(crate) fn frame_mut(&mut self) -> &mut Frame {
        Rc::make_mut(self.frames.last_mut().expect("a state has a frame"))
    }

    /// A frame by its index.
    pub(crate) fn frame_at_mut(&mut self, frame: u8) -> &mut Frame {
        Rc::make_mut(&mut self.frames[usize::from(frame)])
    }

    pub(crate) fn register(&self, register: u8) -> &Register {
        &self.frame().registers[usize::from(register)]
    }

    pub(crate) fn set(&mut self, register: u8, value: Register) {
        self.frame_mut().registers[usize::from(register)] = value;
    }

    /// Where a register of the innermost frame is.
    pub(crate) fn place(&self, register: u8) -> Place {
        Place::register(self.depth(), register)
    }

    /// The register or spilled register at a place, if there is one.
    pub(crate) fn at(&self, place: Place) -> Option<&Register> {
        let frame = self.frames.get(place.frame())?;
        match place.slot() {
            None => Some(&frame.registers[place.number()]),
            Some(slot) => frame.slots.get(slot)?.spilled.as_deref(),
        }
    }

    pub(crate) fn at_mut(&mut self, place: Place) -> Option<&mut Register> {
        let frame = Rc::make_mut(self.frames.get_mut(place.frame())?);
        match place.slot() {
            None => Some(&mut frame.registers[place.number()]),
            Some(slot) => frame.slots.get_mut(slot)?.spilled.as_mut().map(Rc::make_mut),
        }
    }

    /// All registers and spilled registers for which `wanted` holds.
    pub(crate) fn places(&self, wanted: impl Fn(&Register) -> bool) -> Vec<Place> {
        let mut found = vec![];
        for (index, frame) in self.frames.iter().enumerate() {
            let registers = frame.registers.iter().enumerate().filter(|(_, register)| wanted(register));
            found.extend(registers.map(|(number, _)| Place::register(index as u8, number as u8)));
            for (number, slot) in frame.slots.iter().enumerate() {
                if slot.spilled.as_deref().is_some_and(&wanted) {
                    found.push(Place::slot_at(index as u8, number));
                }
            }
        }
        found
    }

    /// Changes all registers and spilled registers for which `wanted` holds.
    pub(crate) fn change(&mut self, wanted: impl Fn(&Register) -> bool, change: impl Fn(&mut Register)) {
        for place in self.places(wanted) {
            self.at_mut(place).into_iter().for_each(&change);
        }
    }

    pub(crate) fn holds(&self, reference: u32) -> bool {
        self.references.iter().any(|held| held.id == reference)
    }
}
