//! BPF type format: the bytes of `BPF_BTF_LOAD`, checked, and what maps want to know of types.
//!
//! Runs: in the server.
//! May touch: the bytes it is given, which are hostile.
//! Never: follows a reference without a bound.
//! Start reading at: `Btf::parse`.
//!
//! Follows Documentation/bpf/btf.rst and kernel/bpf/btf.c (v6.18). Structure is checked; meaning (whether an int has a
//! sane size, say) is not yet.
#![forbid(unsafe_code)]

mod draft;
mod record;
mod view;

use std::ops::Range;

use ring3_uapi::Errno;

pub use draft::Draft;
pub use record::{Special, SpecialKind};
pub use view::{Array, Member, VarSecinfo, encoding, linkage};

/// Where the running kernel has its own types.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// `BTF_INFO_MASK`.
const INFO_BITS: u32 = 0x9f00_ffff;
/// References followed for the size of a type at most (`MAX_RESOLVE_DEPTH`).
pub(crate) const DEPTH_MAX: u32 = 32;

/// `BTF_KIND_*`.
#[expect(missing_docs, reason = "the names are the kernel's")]
pub mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// A type (`struct btf_type`).
#[derive(Clone, Debug)]
pub(crate) struct Type {
    name: u32,
    pub(crate) kind: u32,
    pub(crate) count: usize,
    /// `kind_flag`.
    pub(crate) flag: bool,
    /// A size in bytes, or a type's id.
    pub(crate) size_or_type: u32,
    /// What follows it.
    extra: Range<usize>,
}

/// Types that were checked.
#[derive(Clone, Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    types: Vec<Type>,
    strings: Range<usize>,
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Btf {
    /// Checks header, section bounds and the chain of types.
    ///
    /// # Errors
    /// The kernel's number, and what is wrong.
    pub fn parse(bytes: Vec<u8>) -> Result<Btf, (Errno, &'static str)> {
        let btf = Btf::parse_any(bytes)?;
        btf.check_structures().map_err(|errno| (errno, "a structure's members cannot be together"))?;
        Ok(btf)
    }

    /// The same for types that are not loaded: the kernel's own may hold structures that programs' may not.
    ///
    /// # Errors
    /// As [`Btf::parse`].
    pub fn parse_any(bytes: Vec<u8>) -> Result<Btf, (Errno, &'static str)> {
        let invalid = |what| (Errno::EINVAL, what);
        let header = word_at(&bytes, 4).ok_or(invalid("no header"))? as usize;
        if header < HEADER_BYTES || header > bytes.len() {
            return Err(invalid("wrong header size"));
        }
        if bytes[HEADER_BYTES..header].iter().any(|byte| *byte != 0) {
            return Err((Errno::E2BIG, "unsupported header"));
        }
        if bytes[..2] != MAGIC.to_le_bytes() {
            return Err(invalid("invalid magic"));
        }
        if bytes[2] != 1 || bytes[3] != 0 {
            return Err((Errno::ENOTSUPP, "unsupported version or flags"));
        }
        let field = |at: usize| word_at(&bytes, at).ok_or(invalid("no header"));
        let section = |at: u32, length: u32| {
            let start = header.checked_add(at as usize)?;
            let range = start..start.checked_add(length as usize)?;
            bytes.get(range.clone()).map(|_| range)
        };
        if field(8)? % 4 != 0 {
            return Err(invalid("unaligned types"));
        }
        let types =
            section(field(8)?, field(12)?).filter(|types| !types.is_empty()).ok_or(invalid("no type found"))?;
        let strings = section(field(16)?, field(20)?).ok_or(invalid("wrong string section"))?;
        let text = &bytes[strings.clone()];
        if text.first() != Some(&0) || text.last() != Some(&0) {
            return Err(invalid("invalid string section"));
        }
        let types = parse_types(&bytes, types, strings.len()).ok_or(invalid("the types are damaged"))?;
        Ok(Btf { bytes, types, strings })
    }

    /// As they were loaded.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Type> {
        self.types.get(id.checked_sub(1)? as usize)
    }

    pub(crate) fn name(&self, of: &Type) -> &[u8] {
        let text = &self.bytes[self.strings.clone()];
        let rest = text.get(of.name as usize..).unwrap_or_default();
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// A word behind a type.
    pub(crate) fn extra(&self, of: &Type, index: usize) -> Option<u32> {
        word_at(&self.bytes[of.extra.clone()], index * 4)
    }

    /// `BTF_KIND_*` of a type.
    pub fn kind(&self, id: u32) -> Option<u32> {
        self.get(id).map(|found| found.kind)
    }

    /// The type that has a size, behind modifiers, typedefs and variables, and that size, bytes.
    /// Mirrors kernel/bpf/btf.c:btf_type_id_size.
    pub fn sized(&self, id: u32) -> Option<(u32, u32)> {
        self.sized_within(id, DEPTH_MAX)
    }

    fn sized_within(&self, id: u32, depth: u32) -> Option<(u32, u32)> {
        use kind::*;
        let depth = depth.checked_sub(1)?;
        let found = self.get(id)?;
        match found.kind {
            INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT | DATASEC => Some((id, found.size_or_type)),
            PTR => Some((id, 8)),
            ARRAY => {
                let (_, size) = self.sized_within(self.extra(found, 0)?, depth)?;
                Some((id, size.checked_mul(self.extra(found, 2)?)?))
            }
            TYPEDEF | VOLATILE | CONST | RESTRICT | VAR | TYPE_TAG => self.sized_within(found.size_or_type, depth),
            _ => None,
        }
    }

    /// Ids and names of all types of a kind.
    pub fn of_kind(&self, kind: u32) -> impl Iterator<Item = (u32, &[u8])> {
        let types = (1..).zip(&self.types).filter(move |(_, found)| found.kind == kind);
        types.map(|(id, found)| (id, self.name(found)))
    }

    /// Whether a type is a 32-bit integer. Mirrors kernel/bpf/btf.c:btf_type_is_i32.
    pub fn is_i32(&self, id: u32) -> bool {
        const OFFSET_AND_BITS: u32 = 0x00ff_00ff;
        let found = self.get(id).filter(|found| found.kind == kind::INT && found.size_or_type == 4);
        found.and_then(|found| self.extra(found, 0)).is_some_and(|info| info & OFFSET_AND_BITS == 32)
    }
}

fn parse_types(bytes: &[u8], section: Range<usize>, text_bytes: usize) -> Option<Vec<Type>> {
    use kind::*;
    let (mut at, mut types, mut referred) = (section.start, vec![], 0u32);
    while at < section.end {
        let (name, info, of) = (word_at(bytes, at)?, word_at(bytes, at + 4)?, word_at(bytes, at + 8)?);
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let extra = match kind {
            INT | VAR | DECL_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION | DATASEC | ENUM64 => count * 12,
            ENUM | FUNC_PROTO => count * 8,
            0 => return None,
            kind if kind <= ENUM64 => 0,
            _ => return None,
        };
        if info & !INFO_BITS != 0 || name as usize >= text_bytes {
            return None;
        }
        // Pointers, typedefs, modifiers, functions, variables, tags.
        if matches!(kind, PTR | TYPEDEF..=VAR | DECL_TAG | TYPE_TAG) {
            referred = referred.max(of);
        }
        let end = at + 12 + extra;
        if end > section.end {
            return None;
        }
        types.push(Type { name, kind, count, flag: info >> 31 == 1, size_or_type: of, extra: at + 12..end });
        at = end;
    }
    (referred as usize <= types.len()).then_some(types)
}
