//! What programs find behind r1.

use ring3_run::{POINTERS_MAX, Pointer};
use ring3_verifier::{Content, Policy, Sizes};

/// Bytes of a context at most.
const BYTES_MAX: u32 = 1 << 29;
/// Bytes of a context of fields at most: offsets of instructions have 16 bits.
const FIELDS_BYTES_MAX: u32 = 1 << 15;
/// Bytes of an address.
const ADDRESS_BYTES: u32 = 8;

/// What programs find behind r1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    form: Form,
    packet_writes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Memory { bytes: u32, write: bool },
    Fields(Vec<Field>),
}

/// A named part of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, for messages.
    pub name: String,
    /// Where it lies, bytes.
    pub at: u32,
    /// How many bytes it has.
    pub bytes: u32,
    /// What it is.
    pub kind: FieldKind,
}

/// What a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A number, or several: read in 1, 2, 4 or 8 bytes at multiples of that.
    Number {
        /// Programs may write it.
        write: bool,
    },
    /// The address of so many bytes, which programs may read and write.
    Buffer {
        /// How many.
        bytes: u32,
    },
    /// The address of a packet: programs compare what they access with its end first.
    Packet,
    /// The address of the packet's end.
    PacketEnd,
}

impl Context {
    /// So many bytes of plain memory, which programs may write; r2 is their number. With 0 bytes, r1 is 0.
    pub fn memory(bytes: u32) -> Context {
        Context { form: Form::Memory { bytes, write: true }, packet_writes: false }
    }

    /// No memory at all.
    pub fn none() -> Context {
        Context::memory(0)
    }

    /// A structure; fields are added by the methods that follow. What no field covers cannot be touched.
    pub fn fields() -> Context {
        Context { form: Form::Fields(vec![]), packet_writes: false }
    }

    /// A packet of any length: r1 leads to its address and the address of its end, 8 bytes each.
    /// ([`crate::Program::call_packet`])
    pub fn packet() -> Context {
        Context::fields().packet_at("data", 0, "data_end", ADDRESS_BYTES)
    }

    /// Programs must not write the memory, or any field that was added so far.
    pub fn read_only(mut self) -> Context {
        match &mut self.form {
            Form::Memory { write, .. } => *write = false,
            Form::Fields(fields) => {
                for field in fields {
                    if let FieldKind::Number { write } = &mut field.kind {
                        *write = false;
                    }
                }
            }
        }
        self.packet_writes = false;
        self
    }

    /// Programs may write packets.
    pub fn packet_writes(self) -> Context {
        Context { packet_writes: true, ..self }
    }

    /// Adds a field. To memory, none is added: [`Context::check`] then says so.
    pub fn field(mut self, field: Field) -> Context {
        match &mut self.form {
            Form::Fields(fields) => fields.push(field),
            Form::Memory { .. } => self = Context { form: Form::Fields(vec![field]), packet_writes: false },
        }
        self
    }

    /// Adds a number that programs may read.
    pub fn number(self, name: &str, at: u32, bytes: u32) -> Context {
        self.field(Field { name: name.into(), at, bytes, kind: FieldKind::Number { write: false } })
    }

    /// Adds a number that programs may read and write.
    pub fn writable(self, name: &str, at: u32, bytes: u32) -> Context {
        self.field(Field { name: name.into(), at, bytes, kind: FieldKind::Number { write: true } })
    }

    /// Adds the address of so many bytes.
    pub fn buffer(self, name: &str, at: u32, bytes: u32) -> Context {
        self.field(Field { name: name.into(), at, bytes: ADDRESS_BYTES, kind: FieldKind::Buffer { bytes } })
    }

    /// Adds the address of a packet and that of its end, as rbpf's metadata buffers have them.
    pub fn packet_at(self, data: &str, data_at: u32, end: &str, end_at: u32) -> Context {
        let field = |name: &str, at, kind| Field { name: name.into(), at, bytes: ADDRESS_BYTES, kind };
        self.field(field(data, data_at, FieldKind::Packet)).field(field(end, end_at, FieldKind::PacketEnd))
    }

    /// Whether it is one that programs can have.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let fields = match &self.form {
            Form::Memory { bytes, .. } if *bytes > BYTES_MAX => {
                return Err("the context has more than 512 MiB".into());
            }
            Form::Memory { .. } => return Ok(()),
            Form::Fields(fields) => fields,
        };
        for (index, field) in fields.iter().enumerate() {
            let end = field.at.checked_add(field.bytes).filter(|end| *end <= FIELDS_BYTES_MAX);
            let Some(end) = end.filter(|_| field.bytes > 0) else {
                return Err(format!("the field {} has no bytes, or is behind the first 32 KiB", field.name));
            };
            if field.is_address() && (field.bytes != ADDRESS_BYTES || !field.at.is_multiple_of(ADDRESS_BYTES)) {
                return Err(format!("the field {} is an address: 8 bytes at a multiple of 8", field.name));
            }
            if let FieldKind::Buffer { bytes } = field.kind
                && (bytes == 0 || bytes > BYTES_MAX)
            {
                return Err(format!("the field {} leads to no bytes, or to more than 512 MiB", field.name));
            }
            let over = fields[..index].iter().find(|other| other.at < end && field.at < other.at + other.bytes);
            if let Some(other) = over {
                return Err(format!("the fields {} and {} overlap", other.name, field.name));
            }
        }
        let count = |kind| fields.iter().filter(|field| field.kind == kind).count();
        if count(FieldKind::Packet) != count(FieldKind::PacketEnd) || count(FieldKind::Packet) > 1 {
            return Err("a context has one packet at most, with its start and its end".into());
        }
        if self.pointers().len() > POINTERS_MAX {
            return Err(format!("a context has {POINTERS_MAX} addresses at most"));
        }
        Ok(())
    }

    /// Bytes that a context must have.
    pub(crate) fn bytes(&self) -> usize {
        match &self.form {
            Form::Memory { bytes, .. } => *bytes as usize,
            Form::Fields(fields) => fields.iter().map(|field| field.at + field.bytes).max().unwrap_or(0) as usize,
        }
    }

    /// Whether programs may write some of the context itself.
    pub(crate) fn writes(&self) -> bool {
        match &self.form {
            Form::Memory { write, .. } => *write,
            Form::Fields(fields) => fields.iter().any(|field| field.kind == FieldKind::Number { write: true }),
        }
    }

    /// Where the packet's two addresses are, if there is one.
    pub(crate) fn packet_place(&self) -> Option<(usize, usize)> {
        let Form::Fields(fields) = &self.form else { return None };
        let at = |kind| fields.iter().find(|field| field.kind == kind).map(|field| field.at as usize);
        at(FieldKind::Packet).zip(at(FieldKind::PacketEnd))
    }

    /// The addresses in it.
    pub(crate) fn pointers(&self) -> Vec<Pointer> {
        let Form::Fields(fields) = &self.form else { return vec![] };
        let buffers = fields.iter().filter_map(|field| match field.kind {
            FieldKind::Buffer { bytes } => Some(Pointer::Bytes { at: field.at, bytes }),
            _ => None,
        });
        let packet = self.packet_place();
        let packet = packet.map(|(data, end)| Pointer::Packet { data_at: data as u32, end_at: end as u32 });
        buffers.chain(packet).collect()
    }

    /// Lets programs find it.
    pub(crate) fn apply(&self, policy: &mut Policy) {
        policy.packet_writes = self.packet_writes;
        match &self.form {
            Form::Memory { bytes, write } => (policy.memory, policy.memory_writes) = (Some(*bytes), *write),
            Form::Fields(fields) => {
                policy.memory = None;
                policy.context = ring3_verifier::Context::new(fields.iter().map(Field::judged).collect());
            }
        }
    }

    /// The field at an offset, for messages.
    pub(crate) fn field_at(&self, at: u32) -> Option<&Field> {
        let Form::Fields(fields) = &self.form else { return None };
        fields.iter().find(|field| (field.at..field.at + field.bytes).contains(&at))
    }
}

impl Field {
    fn is_address(&self) -> bool {
        !matches!(self.kind, FieldKind::Number { .. })
    }

    /// As the verifier has it.
    fn judged(&self) -> ring3_verifier::Field {
        let (content, write) = match self.kind {
            FieldKind::Number { write } => (Content::Number, write),
            FieldKind::Buffer { bytes } => (Content::Buffer { bytes }, false),
            FieldKind::Packet => (Content::Packet, false),
            FieldKind::PacketEnd => (Content::PacketEnd, false),
        };
        let sizes = if self.is_address() { Sizes::Only(ADDRESS_BYTES) } else { Sizes::Any };
        ring3_verifier::Field { at: self.at..self.at + self.bytes, sizes, write, content }
    }

    /// What programs may do with it, for messages.
    pub(crate) fn told(&self) -> String {
        let what = match self.kind {
            FieldKind::Number { write: true } => "may be read and written",
            FieldKind::Number { write: false } => "may only be read",
            FieldKind::Buffer { .. } => "is the address of memory",
            FieldKind::Packet => "is the packet's address",
            FieldKind::PacketEnd => "is the address of the packet's end",
        };
        format!("the field {} (bytes {} to {}) {what}", self.name, self.at, self.at + self.bytes - 1)
    }
}
