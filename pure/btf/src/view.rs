//! What a loader wants to know of types: names, members, values, variables.

use crate::{Btf, DEPTH_MAX, Type, kind};

/// `BTF_INT_*`: how an integer is written.
#[expect(missing_docs, reason = "the names are the kernel's")]
pub mod encoding {
    pub const SIGNED: u32 = 1;
    pub const BOOL: u32 = 4;
}

/// `BTF_VAR_*` and `BTF_FUNC_*`: where variables and functions are.
#[expect(missing_docs, reason = "the names are the kernel's")]
pub mod linkage {
    pub const STATIC: u32 = 0;
    pub const GLOBAL: u32 = 1;
    pub const EXTERN: u32 = 2;
}

/// A member of a structure or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name; empty: what it holds are members of the structure around.
    pub name: &'a [u8],
    /// Its type.
    pub of: u32,
    /// Where it begins, bits.
    pub at_bits: u32,
    /// Width of a bit field, else 0.
    pub bits: u32,
}

/// A variable's place in a section (`struct btf_var_secinfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VarSecinfo {
    /// `VAR`, or `FUNC` of an extern.
    pub of: u32,
    /// Where it begins, bytes.
    pub at: u32,
    /// Bytes.
    pub size: u32,
}

/// An array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Type of the elements.
    pub of: u32,
    /// How many.
    pub count: u32,
}

impl Btf {
    /// How many types there are; ids begin at 1.
    pub fn count(&self) -> u32 {
        self.types.len() as u32
    }

    /// A string of the string section. Mirrors kernel/bpf/btf.c:btf_name_by_offset.
    pub fn text(&self, at: u32) -> Option<&[u8]> {
        let rest = self.bytes[self.strings.clone()].get(at as usize..).filter(|rest| !rest.is_empty())?;
        rest.split(|byte| *byte == 0).next()
    }

    /// The name of a type; empty: none.
    pub fn name_of(&self, id: u32) -> &[u8] {
        self.get(id).map_or(&[], |found| self.name(found))
    }

    /// Members, values, parameters or variables of a type (`vlen`).
    pub fn len_of(&self, id: u32) -> usize {
        self.get(id).map_or(0, |found| found.count)
    }

    /// `kind_flag`: bit fields have widths, values signs, a forward declaration is of a union.
    pub fn flag_of(&self, id: u32) -> bool {
        self.get(id).is_some_and(|found| found.flag)
    }

    /// Size as it is written down, bytes, or the type referred to.
    pub fn size_or_type(&self, id: u32) -> u32 {
        self.get(id).map_or(0, |found| found.size_or_type)
    }

    /// The type behind modifiers and typedefs; 0: void.
    pub fn plain(&self, mut id: u32) -> u32 {
        use kind::{CONST, RESTRICT, TYPE_TAG, TYPEDEF, VOLATILE};
        for _ in 0..DEPTH_MAX {
            match self.get(id) {
                Some(found) if matches!(found.kind, TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG) => {
                    id = found.size_or_type;
                }
                _ => break,
            }
        }
        id
    }

    fn of_kinds(&self, id: u32, kinds: &[u32]) -> Option<&Type> {
        self.get(id).filter(|found| kinds.contains(&found.kind))
    }

    /// The members of a structure or union.
    pub fn members(&self, id: u32) -> impl Iterator<Item = Member<'_>> {
        let found = self.of_kinds(id, &[kind::STRUCT, kind::UNION]);
        (0..found.map_or(0, |found| found.count)).filter_map(move |index| self.member_of(found?, index))
    }

    /// A member of a structure or union.
    pub fn member(&self, id: u32, index: usize) -> Option<Member<'_>> {
        self.member_of(self.of_kinds(id, &[kind::STRUCT, kind::UNION])?, index)
    }

    fn member_of(&self, of: &Type, index: usize) -> Option<Member<'_>> {
        let word = |at| self.extra(of, index * 3 + at);
        let place = (index < of.count).then(|| word(2))??;
        let (at_bits, bits) = if of.flag { (place & 0x00ff_ffff, place >> 24) } else { (place, 0) };
        Some(Member { name: self.text(word(0)?)?, of: word(1)?, at_bits, bits })
    }

    /// Names and values of an enumeration, sign-extended if it is signed.
    pub fn values(&self, id: u32) -> impl Iterator<Item = (&[u8], u64)> {
        let found = self.of_kinds(id, &[kind::ENUM, kind::ENUM64]);
        (0..found.map_or(0, |found| found.count)).filter_map(move |index| {
            let found = found?;
            let words = if found.kind == kind::ENUM { 2 } else { 3 };
            let word = |at| self.extra(found, index * words + at);
            let low = word(1)?;
            let value = match (found.kind, found.flag) {
                (kind::ENUM64, _) => u64::from(low) | u64::from(word(2)?) << 32,
                (_, true) => i64::from(low as i32) as u64,
                (_, false) => u64::from(low),
            };
            Some((self.text(word(0)?)?, value))
        })
    }

    /// Names and types of a prototype's parameters.
    pub fn parameters(&self, id: u32) -> impl Iterator<Item = (&[u8], u32)> {
        let found = self.of_kinds(id, &[kind::FUNC_PROTO]);
        (0..found.map_or(0, |found| found.count)).filter_map(move |index| {
            let word = |at| self.extra(found?, index * 2 + at);
            Some((self.text(word(0)?)?, word(1)?))
        })
    }

    /// The variables of a section.
    pub fn variables(&self, id: u32) -> impl Iterator<Item = VarSecinfo> {
        let found = self.of_kinds(id, &[kind::DATASEC]);
        (0..found.map_or(0, |found| found.count)).filter_map(move |index| {
            let word = |at| self.extra(found?, index * 3 + at);
            Some(VarSecinfo { of: word(0)?, at: word(1)?, size: word(2)? })
        })
    }

    /// An array's elements.
    pub fn array(&self, id: u32) -> Option<Array> {
        let found = self.of_kinds(id, &[kind::ARRAY])?;
        Some(Array { of: self.extra(found, 0)?, count: self.extra(found, 2)? })
    }

    /// The innermost elements of an array of any dimensions, behind typedefs too; of another type, itself once.
    pub fn elements(&self, mut id: u32) -> Array {
        let mut count = 1u32;
        for _ in 0..DEPTH_MAX {
            let Some(array) = self.array(self.plain(id)) else { break };
            count = count.saturating_mul(array.count);
            id = array.of;
        }
        Array { of: id, count }
    }

    /// The first type of a name and kind.
    pub fn find(&self, name: &[u8], kind: u32) -> Option<u32> {
        self.of_kind(kind).find(|(_, known)| *known == name).map(|(id, _)| id)
    }

    /// `BTF_VAR_*` of a variable, `BTF_FUNC_*` of a function.
    pub fn linkage(&self, id: u32) -> Option<u32> {
        let found = self.get(id)?;
        match found.kind {
            kind::VAR => self.extra(found, 0),
            kind::FUNC => Some(found.count as u32),
            _ => None,
        }
    }

    /// How an integer is written (`BTF_INT_*`), else 0.
    pub fn int_encoding(&self, id: u32) -> u32 {
        self.int_info(id) >> 24 & 0xf
    }

    /// An integer's first bit (a form of bit fields that is no longer in use).
    pub fn int_offset(&self, id: u32) -> u32 {
        self.int_info(id) >> 16 & 0xff
    }

    fn int_info(&self, id: u32) -> u32 {
        self.of_kinds(id, &[kind::INT]).and_then(|int| self.extra(int, 0)).unwrap_or(0)
    }
}
