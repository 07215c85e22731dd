//! Memory that knows of each byte what it is.

use std::ops::Range;

/// What a number in a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing was written to the register.
    Unset,
    /// A number, also one that once was an address.
    Number,
    /// Derived from the address of a region; `life` tells it from what lay there before.
    Pointer {
        /// Index.
        region: u32,
        /// How often the region had ended when the address was taken.
        life: u32,
    },
    /// A map, by index.
    Map(u32),
    /// A subprogram, by instruction index.
    Subprogram(u32),
}

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// The 64 bits.
    pub(crate) bits: u64,
    /// What they are.
    pub(crate) kind: Kind,
}

impl Value {
    /// Nothing.
    pub(crate) const UNSET: Value = Value { bits: 0, kind: Kind::Unset };

    /// A number.
    pub(crate) const fn number(bits: u64) -> Value {
        Value { bits, kind: Kind::Number }
    }

    /// The same thing some bytes on.
    pub(crate) fn moved(self, by: i64) -> Value {
        Value { bits: self.bits.wrapping_add_signed(by), ..self }
    }
}

/// What is wrong with an access or an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A register that nothing was written to.
    UnsetRegister(u8),
    /// The address is a number.
    ThroughNumber(u64),
    /// The address is a map's or a subprogram's.
    ThroughHandle,
    /// Outside of the region that the address was taken of.
    Outside {
        /// The region.
        region: &'static str,
        /// Where in it.
        offset: i64,
        /// Bytes of the access.
        bytes: u64,
        /// Bytes of the region.
        length: u64,
    },
    /// The region must not be written there.
    ReadOnly(&'static str, u64),
    /// The region has ended: a frame that returned, a record that was submitted, a packet that moved.
    Ended(&'static str),
    /// Stack that nothing was written to.
    UnwrittenStack(u64),
    /// A helper's argument is not what the helper takes.
    Argument(u8, &'static str),
    /// Not an instruction, or one that control must not come to.
    NoInstruction,
    /// Calls within calls.
    TooDeep,
    /// A callback's result is neither 0 nor 1.
    CallbackResult(u64),
    /// References are held where the program ends.
    Leak(&'static str),
    /// More instructions than a verified program can run.
    Runaway,
    /// No such helper here.
    UnknownHelper(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shadow {
    Unwritten,
    Number,
    Part(Kind, u8),
}

struct Region {
    name: &'static str,
    address: u64,
    bytes: Vec<u8>,
    /// Empty where values lose what they are.
    shadow: Vec<Shadow>,
    writable: Range<usize>,
    live: bool,
    life: u32,
}

/// Regions far apart.
pub(crate) struct Memory {
    regions: Vec<Region>,
    pub(crate) unwritten_stack_is_read: bool,
}

/// Distance of regions.
const APART: u64 = 1 << 34;
/// So many have places of their own; more than that are records of loops, long submitted.
const PLACES: usize = 4096;
/// Where the first one lies: as the kernel's, in the upper half.
const FIRST: u64 = 0xffff_8880_0000_0000;

impl Memory {
    pub(crate) fn new(unwritten_stack_is_read: bool) -> Memory {
        Memory { regions: vec![], unwritten_stack_is_read }
    }

    /// Adds a region; `hint` chooses the low half of its address, with a taste for places where 32-bit
    /// arithmetic goes wrong.
    pub(crate) fn add(&mut self, name: &'static str, bytes: Vec<u8>, writable: Range<usize>, hint: u64) -> u32 {
        let low = match hint % 8 {
            0 => 0x8000_0000 - (bytes.len() as u64 / 2).next_multiple_of(8),
            1 => 0xffff_fff8,
            2 => 0x1_0000_0000 - (bytes.len() as u64 / 2).next_multiple_of(8),
            3 => 8,
            4 => 0x7fff_fff8,
            _ => (hint >> 8) & 0xffff_fff8,
        };
        let address = FIRST + (self.regions.len() % PLACES) as u64 * APART + low;
        self.regions.push(Region { name, address, bytes, shadow: vec![], writable, live: true, life: 0 });
        self.regions.len() as u32 - 1
    }

    /// Adds a stack frame.
    pub(crate) fn add_frame(&mut self, bytes: usize, hint: u64) -> u32 {
        let region = self.add("stack", vec![0; bytes], 0..bytes, hint);
        self.regions[region as usize].live = false;
        region
    }

    /// Starts the life of a region again, with nothing written.
    pub(crate) fn begin_frame(&mut self, region: u32, garbage: u64) {
        let region = &mut self.regions[region as usize];
        region.live = true;
        for word in region.bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&garbage.to_le_bytes());
        }
        region.shadow.clear();
        region.shadow.resize(region.bytes.len(), Shadow::Unwritten);
    }

    /// Ends a region: addresses taken of it are of no use any more.
    pub(crate) fn end(&mut self, region: u32) {
        let region = &mut self.regions[region as usize];
        region.live = false;
        region.life += 1;
    }

    /// The address of a region's byte.
    pub(crate) fn pointer(&self, region: u32, offset: u64) -> Value {
        let found = &self.regions[region as usize];
        Value { bits: found.address + offset, kind: Kind::Pointer { region, life: found.life } }
    }

    pub(crate) fn bytes(&self, region: u32) -> &[u8] {
        &self.regions[region as usize].bytes
    }

    pub(crate) fn bytes_mut(&mut self, region: u32) -> &mut Vec<u8> {
        &mut self.regions[region as usize].bytes
    }

    /// The one place that judges an access: region, and the bytes in it.
    fn place(&self, at: Value, bytes: u64) -> Result<(usize, Range<usize>), Wrong> {
        let (index, life) = match at.kind {
            Kind::Unset => return Err(Wrong::UnsetRegister(0)),
            Kind::Number => return Err(Wrong::ThroughNumber(at.bits)),
            Kind::Map(_) | Kind::Subprogram(_) => return Err(Wrong::ThroughHandle),
            Kind::Pointer { region, life } => (region as usize, life),
        };
        let region = &self.regions[index];
        if !region.live || region.life != life {
            return Err(Wrong::Ended(region.name));
        }
        let (offset, length) = (at.bits.wrapping_sub(region.address), region.bytes.len() as u64);
        match offset.checked_add(bytes) {
            Some(end) if end <= length => Ok((index, offset as usize..end as usize)),
            _ => Err(Wrong::Outside { region: region.name, offset: offset as i64, bytes, length }),
        }
    }

    fn place_to_write(&mut self, at: Value, bytes: u64) -> Result<(&mut Region, Range<usize>), Wrong> {
        let (index, place) = self.place(at, bytes)?;
        let region = &mut self.regions[index];
        let inside = region.writable.start <= place.start && place.end <= region.writable.end;
        if inside { Ok((region, place)) } else { Err(Wrong::ReadOnly(region.name, place.start as u64)) }
    }

    /// Where in which region an address leads, if it leads into a live one.
    pub(crate) fn locate(&self, at: Value) -> Option<(u32, u64)> {
        self.place(at, 0).ok().map(|(region, place)| (region as u32, place.start as u64))
    }

    fn check_written(&self, region: usize, place: &Range<usize>) -> Result<(), Wrong> {
        let shadow = self.regions[region].shadow.get(place.clone()).unwrap_or_default();
        if !self.unwritten_stack_is_read && shadow.contains(&Shadow::Unwritten) {
            return Err(Wrong::UnwrittenStack(place.start as u64));
        }
        Ok(())
    }

    /// Reads a number, or what was stored whole.
    pub(crate) fn load(&self, at: Value, bytes: u8) -> Result<Value, Wrong> {
        let (index, place) = self.place(at, bytes.into())?;
        self.check_written(index, &place)?;
        let region = &self.regions[index];
        let mut word = [0; 8];
        word[..usize::from(bytes)].copy_from_slice(&region.bytes[place.clone()]);
        let shadow = region.shadow.get(place).unwrap_or_default();
        let kind = match shadow.first() {
            Some(Shadow::Part(kind, 0)) if shadow.len() == 8 => {
                let whole = (0..8).all(|byte| shadow[usize::from(byte)] == Shadow::Part(*kind, byte));
                if whole { *kind } else { Kind::Number }
            }
            _ => Kind::Number,
        };
        Ok(Value { bits: u64::from_le_bytes(word), kind })
    }

    /// Writes; only a whole register that goes to the stack stays what it is.
    pub(crate) fn store(&mut self, at: Value, bytes: u8, value: Value) -> Result<(), Wrong> {
        let (region, place) = self.place_to_write(at, bytes.into())?;
        region.bytes[place.clone()].copy_from_slice(&value.bits.to_le_bytes()[..usize::from(bytes)]);
        if !region.shadow.is_empty() {
            let whole = bytes == 8 && value.kind != Kind::Number;
            for (byte, shadow) in region.shadow[place].iter_mut().enumerate() {
                *shadow = if whole { Shadow::Part(value.kind, byte as u8) } else { Shadow::Number };
            }
        }
        Ok(())
    }

    /// Reads bytes, as helpers do. None can be read anywhere.
    pub(crate) fn read(&self, at: Value, bytes: u64) -> Result<&[u8], Wrong> {
        if bytes == 0 {
            return Ok(&[]);
        }
        let (index, place) = self.place(at, bytes)?;
        self.check_written(index, &place)?;
        Ok(&self.regions[index].bytes[place])
    }

    /// Writes bytes, as helpers do.
    pub(crate) fn fill(&mut self, at: Value, bytes: u64, mut next: impl FnMut() -> u8) -> Result<(), Wrong> {
        if bytes == 0 {
            return Ok(());
        }
        let (region, place) = self.place_to_write(at, bytes)?;
        region.bytes[place.clone()].iter_mut().for_each(|byte| *byte = next());
        if !region.shadow.is_empty() {
            region.shadow[place].fill(Shadow::Number);
        }
        Ok(())
    }
}
