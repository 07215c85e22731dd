//! A program's types by their names, and what they are called in C.

use std::collections::HashMap;

use ring3_btf::{Btf, Member, encoding, kind};

use crate::model::Name;
use crate::prototype::{CBase, CType};
use crate::source::{Error, suggest};

/// Structures in structures that are followed at most.
pub(crate) const DEPTH_MAX: u32 = 32;

/// Bytes of an object at most: offsets in bits have 32 bits.
pub(crate) const BYTES_MAX: u32 = 1 << 28;

/// Types with an index of their names.
pub(crate) struct Types<'t> {
    pub(crate) btf: &'t Btf,
    /// By kind and name, the first of each.
    ids: HashMap<(u32, &'t str), Vec<u32>>,
}

/// What a type is for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Nothing.
    Void,
    /// A number of this many bytes.
    Number {
        bytes: u32,
        signed: bool,
        float: bool,
        boolean: bool,
    },
    /// A pointer to this type, with its qualifiers.
    Pointer(u32),
    /// A structure or union.
    Structure {
        bytes: u32,
        is_union: bool,
    },
    Array {
        of: u32,
        count: u32,
    },
    /// A function, or something that is only declared.
    Opaque,
}

impl<'t> Types<'t> {
    pub(crate) fn new(btf: &'t Btf) -> Types<'t> {
        let kinds = [
            kind::STRUCT,
            kind::UNION,
            kind::ENUM,
            kind::ENUM64,
            kind::TYPEDEF,
            kind::FUNC,
            kind::VAR,
            kind::INT,
            kind::FLOAT,
        ];
        let mut ids: HashMap<(u32, &str), Vec<u32>> = HashMap::new();
        for kind in kinds {
            for (id, name) in btf.of_kind(kind) {
                if let Ok(name) = std::str::from_utf8(name)
                    && !name.is_empty()
                {
                    ids.entry((kind, name)).or_default().push(id);
                }
            }
        }
        Types { btf, ids }
    }

    pub(crate) fn find(&self, kind: u32, name: &str) -> Option<u32> {
        self.ids.get(&(kind, name)).and_then(|ids| ids.first()).copied()
    }

    fn names(&self, kinds: &'t [u32]) -> impl Iterator<Item = &'t str> {
        self.ids.keys().filter(|(kind, _)| kinds.contains(kind)).map(|(_, name)| *name)
    }

    /// The type without modifiers and typedefs; a declaration's definition, if there is one.
    pub(crate) fn plain(&self, id: u32) -> u32 {
        let plain = self.btf.plain(id);
        if self.btf.kind(plain) != Some(kind::FWD) {
            return plain;
        }
        let of = if self.btf.flag_of(plain) { kind::UNION } else { kind::STRUCT };
        let name = std::str::from_utf8(self.btf.name_of(plain)).unwrap_or_default();
        self.find(of, name).unwrap_or(plain)
    }

    pub(crate) fn shape(&self, id: u32) -> Shape {
        let id = self.plain(id);
        let size = self.btf.size_or_type(id);
        let number = |signed, float, boolean| Shape::Number { bytes: size, signed, float, boolean };
        match self.btf.kind(id) {
            None if id == 0 => Shape::Void,
            Some(kind::INT) => {
                let encoding = self.btf.int_encoding(id);
                number(encoding & encoding::SIGNED != 0, false, encoding & encoding::BOOL != 0)
            }
            Some(kind::ENUM | kind::ENUM64) => number(self.btf.flag_of(id), false, false),
            Some(kind::FLOAT) => number(true, true, false),
            Some(kind::PTR) => Shape::Pointer(size),
            Some(kind::STRUCT | kind::UNION) if size > BYTES_MAX => Shape::Opaque,
            Some(kind::STRUCT) => Shape::Structure { bytes: size, is_union: false },
            Some(kind::UNION) => Shape::Structure { bytes: size, is_union: true },
            Some(kind::ARRAY) => {
                self.btf.array(id).map_or(Shape::Opaque, |array| Shape::Array { of: array.of, count: array.count })
            }
            _ => Shape::Opaque,
        }
    }

    /// Bytes; 0 of what has no size.
    pub(crate) fn bytes(&self, id: u32) -> u32 {
        self.btf.sized(self.plain(id)).map_or(0, |(_, bytes)| bytes)
    }

    /// Whether the type is `const` before any pointer.
    pub(crate) fn is_const(&self, mut id: u32) -> bool {
        use kind::{ARRAY, CONST, RESTRICT, TYPE_TAG, TYPEDEF, VOLATILE};
        for _ in 0..DEPTH_MAX {
            match self.btf.kind(id) {
                Some(CONST) => return true,
                Some(TYPEDEF | VOLATILE | RESTRICT | TYPE_TAG) => id = self.btf.size_or_type(id),
                Some(ARRAY) => id = self.btf.array(id).map_or(0, |array| array.of),
                _ => return false,
            }
        }
        false
    }

    /// A pointer anywhere in it.
    pub(crate) fn holds_pointer(&self, id: u32) -> bool {
        self.holds_pointer_within(id, DEPTH_MAX)
    }

    fn holds_pointer_within(&self, id: u32, depth: u32) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return true };
        match self.shape(id) {
            Shape::Pointer(_) => true,
            Shape::Array { of, .. } => self.holds_pointer_within(of, depth),
            Shape::Structure { .. } => {
                self.btf.members(self.plain(id)).any(|member| self.holds_pointer_within(member.of, depth))
            }
            _ => false,
        }
    }

    /// The structure or union of a name: a typedef, or a tag with or without `struct` or `union`.
    pub(crate) fn named(&self, name: &Name) -> Result<u32, Error> {
        let of = |kind, name| self.find(kind, name);
        let text = name.text.as_str();
        let found = match text.split_once(' ') {
            Some(("struct", tag)) => self.unambiguous(name, kind::STRUCT, tag)?,
            Some((_, tag)) => self.unambiguous(name, kind::UNION, tag)?,
            None if of(kind::TYPEDEF, text).is_some() => self.unambiguous(name, kind::TYPEDEF, text)?,
            None if of(kind::STRUCT, text).is_some() => self.unambiguous(name, kind::STRUCT, text)?,
            None => self.unambiguous(name, kind::UNION, text)?,
        };
        let found = found.ok_or_else(|| {
            let tag = text.split_once(' ').map_or(text, |(_, tag)| tag);
            let known = self.names(&[kind::STRUCT, kind::UNION, kind::TYPEDEF]);
            let advice =
                suggest(tag, known, "correct the name, or take the program (--binary) or types that have it");
            Error::at(&name.span, format!("no type `{text}` in the program's types; {advice}"))
        })?;
        match self.shape(found) {
            Shape::Structure { .. } => Ok(self.plain(found)),
            Shape::Opaque => {
                let message = format!(
                    "`{text}` is only declared in these types, not defined; compile a file that includes its definition \
                     with -g, and take the types from there"
                );
                Err(Error::at(&name.span, message))
            }
            _ => Err(Error::at(&name.span, format!("`{text}` is no structure or union; only those have fields"))),
        }
    }

    fn unambiguous(&self, name: &Name, kind: u32, text: &str) -> Result<Option<u32>, Error> {
        let Some(ids) = self.ids.get(&(kind, text)) else { return Ok(None) };
        let layout = |id: u32| -> Vec<(Vec<u8>, u32)> {
            self.btf.members(self.plain(id)).map(|member| (member.name.to_vec(), member.at_bits)).collect()
        };
        let first = layout(ids[0]);
        if ids[1..].iter().any(|id| layout(*id) != first) {
            let message = format!(
                "the program has {} different types `{text}`; take the types from a file that has one of them",
                ids.len()
            );
            return Err(Error::at(&name.span, message));
        }
        Ok(Some(ids[0]))
    }

    pub(crate) fn declared_shape(&self, declared: Declared) -> Shape {
        match declared {
            Declared::Integer { bytes, signed } => Shape::Number { bytes, signed, float: false, boolean: false },
            Declared::Type(id) => self.shape(id),
            Declared::Pointer(id) => Shape::Pointer(id),
        }
    }

    pub(crate) fn declared_name(&self, declared: Declared) -> String {
        match declared {
            Declared::Integer { bytes, signed } => format!("{}int{}_t", if signed { "" } else { "u" }, bytes * 8),
            Declared::Type(id) => self.name(id),
            Declared::Pointer(id) => format!("{} *", self.name(id)),
        }
    }

    /// The prototype (`FUNC_PROTO`) of a function.
    pub(crate) fn prototype(&self, symbol: &str) -> Option<u32> {
        let id = self.find(kind::FUNC, symbol)?;
        Some(self.btf.size_or_type(id)).filter(|of| self.btf.kind(*of) == Some(kind::FUNC_PROTO))
    }

    /// The type of a variable.
    pub(crate) fn variable(&self, name: &str) -> Option<u32> {
        self.find(kind::VAR, name).map(|id| self.btf.size_or_type(id))
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = &'t str> {
        self.names(&[kind::FUNC])
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = &'t str> {
        self.names(&[kind::VAR])
    }

    /// A member by its name, in structures without names, too.
    pub(crate) fn member(&self, of: u32, name: &str) -> Option<Found<'t>> {
        self.member_within(of, name, DEPTH_MAX)
    }

    fn member_within(&self, of: u32, name: &str, depth: u32) -> Option<Found<'t>> {
        let depth = depth.checked_sub(1)?;
        let of = self.plain(of);
        let in_union = matches!(self.shape(of), Shape::Structure { is_union: true, .. });
        let found = self.btf.members(of).find_map(|member| match member.name {
            [] => {
                let inner = self.member_within(member.of, name, depth)?;
                let at_bits = inner.member.at_bits.saturating_add(member.at_bits);
                Some(Found { member: Member { at_bits, ..inner.member }, ..inner })
            }
            known if known == name.as_bytes() => Some(Found { member, in_union: false, shares_pointer: false }),
            _ => None,
        })?;
        let shares_pointer = found.shares_pointer || in_union && self.holds_pointer(of);
        Some(Found { in_union: found.in_union || in_union, shares_pointer, ..found })
    }

    /// Names of all members, of structures without names, too.
    pub(crate) fn member_names(&self, of: u32) -> Vec<&'t str> {
        let mut names = vec![];
        self.member_names_within(of, DEPTH_MAX, &mut names);
        names
    }

    fn member_names_within(&self, of: u32, depth: u32, names: &mut Vec<&'t str>) {
        let Some(depth) = depth.checked_sub(1) else { return };
        for member in self.btf.members(self.plain(of)) {
            match member.name {
                [] => self.member_names_within(member.of, depth, names),
                name => names.extend(std::str::from_utf8(name)),
            }
        }
    }

    /// A type as C writes it, without a variable's name.
    pub(crate) fn name(&self, id: u32) -> String {
        self.name_within(id, DEPTH_MAX)
    }

    fn name_within(&self, id: u32, depth: u32) -> String {
        let Some(depth) = depth.checked_sub(1) else { return "...".to_owned() };
        let own = String::from_utf8_lossy(self.btf.name_of(id)).into_owned();
        let tagged = |tag: &str| if own.is_empty() { format!("{tag} {{...}}") } else { format!("{tag} {own}") };
        let inner = |depth| self.name_within(self.btf.size_or_type(id), depth);
        match self.btf.kind(id) {
            None => "void".to_owned(),
            Some(kind::STRUCT) => tagged("struct"),
            Some(kind::UNION) => tagged("union"),
            Some(kind::FWD) if self.btf.flag_of(id) => tagged("union"),
            Some(kind::FWD) => tagged("struct"),
            Some(kind::ENUM | kind::ENUM64) => tagged("enum"),
            Some(kind::CONST) => format!("const {}", inner(depth)),
            Some(kind::VOLATILE) => format!("volatile {}", inner(depth)),
            Some(kind::RESTRICT | kind::TYPE_TAG) => inner(depth),
            Some(kind::FUNC_PROTO) => "function".to_owned(),
            Some(kind::PTR) => {
                let inner = inner(depth);
                let space = if inner.ends_with('*') { "" } else { " " };
                format!("{inner}{space}*")
            }
            Some(kind::ARRAY) => {
                let array = self.btf.array(id);
                array.map_or(own, |array| format!("{}[{}]", self.name_within(array.of, depth), array.count))
            }
            _ => own,
        }
    }

    /// What an object of a type is called: by its tag, if it has one.
    pub(crate) fn object_name(&self, id: u32) -> String {
        let plain = self.plain(id);
        match self.btf.name_of(plain) {
            [] => self.name(id),
            _ => self.name(plain),
        }
    }

    /// Whether a type of the program is the one that a prototype names.
    pub(crate) fn is(&self, id: u32, wanted: &CType) -> Result<bool, Error> {
        let mut id = id;
        for _ in 0..wanted.pointers {
            match self.shape(id) {
                Shape::Pointer(of) => id = of,
                // Parameters that are arrays are pointers.
                Shape::Array { of, .. } => id = of,
                _ => return Ok(false),
            }
        }
        let shape = self.shape(id);
        let tag = |kinds: &[u32], text: &str| {
            let known = self.btf.kind(self.plain(id)).is_some_and(|kind| kinds.contains(&kind));
            known && self.btf.name_of(self.plain(id)) == text.as_bytes()
        };
        Ok(match &wanted.base {
            CBase::Void => shape == Shape::Void,
            CBase::Function => self.btf.kind(self.plain(id)) == Some(kind::FUNC_PROTO),
            CBase::Integer { bytes, signed } => match shape {
                // `char` may be of either sign.
                Shape::Number { bytes: own, signed: sign, float: false, .. } => {
                    own == *bytes && (sign == *signed || own == 1)
                }
                _ => false,
            },
            CBase::Float(bytes) => matches!(shape, Shape::Number { bytes: own, float: true, .. } if own == *bytes),
            CBase::Struct(text) => tag(&[kind::STRUCT, kind::FWD], text),
            CBase::Union(text) => tag(&[kind::UNION, kind::FWD], text),
            CBase::Enum(text) => tag(&[kind::ENUM, kind::ENUM64], text),
            CBase::Named(text) => {
                let other = self.typedef(text, wanted)?;
                self.plain(other) == self.plain(id) || self.alike(other, id)
            }
        })
    }

    /// The types may be written down twice.
    fn alike(&self, one: u32, other: u32) -> bool {
        match (self.shape(one), self.shape(other)) {
            (Shape::Pointer(one), Shape::Pointer(other)) => {
                self.plain(one) == self.plain(other) || self.name(one) == self.name(other)
            }
            (first @ Shape::Number { .. }, second) => first == second,
            _ => false,
        }
    }

    fn typedef(&self, text: &str, wanted: &CType) -> Result<u32, Error> {
        self.find(kind::TYPEDEF, text).ok_or_else(|| {
            let advice = match self.find(kind::STRUCT, text) {
                Some(_) => format!("write `struct {text}`"),
                None => suggest(text, self.names(&[kind::TYPEDEF]), "write a type that the program's functions name"),
            };
            Error::at(&wanted.span, format!("no type `{text}` in the program's types; {advice}"))
        })
    }

    /// The type of the program that a prototype names.
    pub(crate) fn resolve(&self, wanted: &CType) -> Result<Declared, Error> {
        let find = |kinds: &[u32], text: &str| {
            kinds.iter().find_map(|kind| self.find(*kind, text)).ok_or_else(|| {
                let known = self.ids.keys().filter(|(kind, _)| kinds.contains(kind)).map(|(_, name)| *name);
                let advice =
                    suggest(text, known, "correct the name, or take the program (--binary) or types that have it");
                Error::at(&wanted.span, format!("no type `{text}` in the program's types; {advice}"))
            })
        };
        let unknown = || {
            let message = "the program's types have no such type, so a prototype cannot name it; take types from a file that \
                           declares the function";
            Error::at(&wanted.span, message)
        };
        let id = match &wanted.base {
            CBase::Void => 0,
            CBase::Integer { bytes, signed } if wanted.pointers == 0 => {
                return Ok(Declared::Integer { bytes: *bytes, signed: *signed });
            }
            CBase::Integer { bytes, signed } => {
                let mut ints = self.btf.of_kind(kind::INT).map(|(id, _)| id);
                let is_it = |id: &u32| match self.shape(*id) {
                    Shape::Number { bytes: own, signed: sign, boolean, .. } => {
                        own == *bytes && sign == *signed && !boolean
                    }
                    _ => false,
                };
                ints.find(is_it).ok_or_else(unknown)?
            }
            CBase::Function => return Err(unknown()),
            CBase::Float(_) if wanted.pointers == 0 => {
                let message =
                    "floating-point numbers are in registers that programs have not; choose another function";
                return Err(Error::at(&wanted.span, message));
            }
            CBase::Float(_) => return Err(unknown()),
            CBase::Struct(text) => find(&[kind::STRUCT], text)?,
            CBase::Union(text) => find(&[kind::UNION], text)?,
            CBase::Enum(text) => find(&[kind::ENUM, kind::ENUM64], text)?,
            CBase::Named(text) => self.typedef(text, wanted)?,
        };
        match wanted.pointers {
            0 => Ok(Declared::Type(id)),
            1 => Ok(Declared::Pointer(id)),
            _ => Err(unknown()),
        }
    }
}

/// A member that was found by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'t> {
    /// The member, with its place in bits from the structure's start.
    pub(crate) member: Member<'t>,
    /// It shares its bytes with other members.
    pub(crate) in_union: bool,
    /// One of those holds a pointer.
    pub(crate) shares_pointer: bool,
}

/// A type of a parameter or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    /// A number.
    Integer { bytes: u32, signed: bool },
    /// A type.
    Type(u32),
    /// A pointer to one.
    Pointer(u32),
}
