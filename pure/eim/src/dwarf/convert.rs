//! Types of DWARF to those of BTF.

use std::collections::{HashMap, VecDeque};

use gimli::{AttributeValue, DebugInfoOffset, Unit, constants::*};
use ring3_btf::{Btf, Draft, encoding, kind, linkage};

use super::{Die, Index, Slice, Units, reference};

/// A type's words: name, information, size or type, and what follows.
#[derive(Clone, Debug, Default)]
struct Type {
    words: Vec<u32>,
}

/// By tag, name, bytes, file and line: types of several units that are one.
type Key<'d> = (DwTag, &'d [u8], u64, Vec<u8>, u64);

struct Converter<'u, 'd> {
    units: &'u Units<'d>,
    index: &'u Index<'d>,
    types: Vec<Type>,
    known: HashMap<DebugInfoOffset, u32>,
    same: HashMap<Key<'d>, u32>,
    /// To be filled: number and entry.
    open: VecDeque<(u32, DebugInfoOffset)>,
    strings: HashMap<Vec<u8>, u32>,
    texts: Vec<Vec<u8>>,
    text_bytes: u32,
    index_type: Option<u32>,
    /// Why the types cannot be used.
    refused: Option<String>,
}

type Outcome<T> = Result<T, gimli::Error>;

/// Members, values or parameters of a type at most (`BTF_MAX_VLEN`).
const COUNT_MAX: usize = 0xffff;
/// Types at most.
const TYPES_MAX: usize = 1 << 20;

/// Converts what is wanted, and all that it reaches.
pub(super) fn types<'d>(units: &Units<'d>, index: &Index<'d>) -> Outcome<Result<Btf, String>> {
    let mut converter = Converter {
        units,
        index,
        types: vec![],
        known: HashMap::new(),
        same: HashMap::new(),
        open: VecDeque::new(),
        strings: HashMap::from([(vec![], 0)]),
        texts: vec![],
        text_bytes: 1,
        index_type: None,
        refused: None,
    };
    for at in &index.wanted_types {
        converter.of(*at)?;
    }
    for (name, entries) in &index.functions {
        // A definition has its parameters' names.
        let is_definition = |at: &&DebugInfoOffset| {
            let found = units.find(**at).map(|(unit, offset)| unit.entry(offset));
            matches!(found, Some(Ok(die)) if matches!(die.attr(DW_AT_declaration), Ok(None)))
        };
        let Some(at) = entries.iter().find(is_definition).or(entries.first()) else { continue };
        converter.function(name, *at)?;
    }
    for (name, at) in &index.variables {
        converter.variable(name, *at)?;
    }
    converter.fill()?;
    Ok(converter.finish())
}

impl<'d> Converter<'_, 'd> {
    fn text(&mut self, text: &[u8]) -> u32 {
        if let Some(at) = self.strings.get(text) {
            return *at;
        }
        let at = self.text_bytes;
        self.strings.insert(text.to_vec(), at);
        self.texts.push(text.to_vec());
        self.text_bytes += text.len() as u32 + 1;
        at
    }

    fn push(&mut self, words: Vec<u32>) -> u32 {
        self.types.push(Type { words });
        self.types.len() as u32
    }

    /// The number of an entry's type; it is filled later.
    fn of(&mut self, at: DebugInfoOffset) -> Outcome<u32> {
        if let Some(known) = self.known.get(&at) {
            return Ok(*known);
        }
        let Some((unit, offset)) = self.units.find(at) else { return Ok(0) };
        let die = unit.entry(offset)?;
        let tag = die.tag();
        let name = self.units.text(unit, &die, DW_AT_name).unwrap_or_default();
        let is_named = !name.is_empty();
        if die.attr(DW_AT_declaration)?.is_some() {
            match self.index.types.get(&(tag, name)) {
                Some(definition) if *definition != at => {
                    let id = self.of(*definition)?;
                    self.known.insert(at, id);
                    return Ok(id);
                }
                _ => {}
            }
        }
        let number = |of| die.attr_value(of).map(|value| value.and_then(|value| value.udata_value()).unwrap_or(0));
        let file = self.units.file(unit, &die)?;
        let key = (tag, name, number(DW_AT_byte_size)?, file, number(DW_AT_decl_line)?);
        if let Some(known) = self.same.get(&key).filter(|_| is_named) {
            self.known.insert(at, *known);
            return Ok(*known);
        }
        if self.types.len() >= TYPES_MAX {
            self.refused.get_or_insert_with(|| format!("the specification reaches more than {TYPES_MAX} types"));
            return Ok(0);
        }
        let id = self.push(vec![0, kind::FWD << 24, 0]);
        self.known.insert(at, id);
        if is_named {
            self.same.insert(key, id);
        }
        self.open.push_back((id, at));
        Ok(id)
    }

    /// The type that an entry has; 0: void.
    fn type_of(&mut self, unit: &Unit<Slice<'d>>, die: &Die<'_, 'd>) -> Outcome<u32> {
        match die.attr_value(DW_AT_type)? {
            None => Ok(0),
            Some(AttributeValue::DebugTypesRef(_)) => {
                self.refused.get_or_insert_with(|| {
                    "its types are in type units (-fdebug-types-section), which is not supported; compile it with -g alone".into()
                });
                Ok(0)
            }
            Some(value) => match reference(unit, &value) {
                Some(at) => self.of(at),
                None => Ok(0),
            },
        }
    }

    fn fill(&mut self) -> Outcome<()> {
        while let Some((id, at)) = self.open.pop_front() {
            let Some((unit, offset)) = self.units.find(at) else { continue };
            let die = unit.entry(offset)?;
            let words = self.words(unit, &die)?;
            self.types[id as usize - 1].words = words;
        }
        Ok(())
    }

    fn words(&mut self, unit: &Unit<Slice<'d>>, die: &Die<'_, 'd>) -> Outcome<Vec<u32>> {
        let name = self.units.text(unit, die, DW_AT_name).unwrap_or_default();
        let derived = |kind: u32, of: u32| vec![0, kind << 24, of];
        Ok(match die.tag() {
            DW_TAG_base_type => self.base(die, name)?,
            DW_TAG_pointer_type | DW_TAG_reference_type | DW_TAG_rvalue_reference_type => {
                derived(kind::PTR, self.type_of(unit, die)?)
            }
            DW_TAG_const_type => derived(kind::CONST, self.type_of(unit, die)?),
            // (An atomic object is one that others change.)
            DW_TAG_volatile_type | DW_TAG_atomic_type => derived(kind::VOLATILE, self.type_of(unit, die)?),
            DW_TAG_restrict_type => derived(kind::RESTRICT, self.type_of(unit, die)?),
            DW_TAG_typedef => vec![self.text(name), kind::TYPEDEF << 24, self.type_of(unit, die)?],
            DW_TAG_structure_type | DW_TAG_class_type | DW_TAG_union_type => self.structure(unit, die, name)?,
            DW_TAG_enumeration_type => self.enumeration(unit, die, name)?,
            DW_TAG_array_type => self.array(unit, die)?,
            DW_TAG_subroutine_type => self.prototype(unit, die)?,
            // What C has not: no field of it can be granted.
            _ => vec![self.text(name), kind::FWD << 24, 0],
        })
    }

    fn base(&mut self, die: &Die<'_, 'd>, name: &[u8]) -> Outcome<Vec<u32>> {
        let bytes = unsigned(die, DW_AT_byte_size)?.unwrap_or(0).min(16) as u32;
        let code = match die.attr_value(DW_AT_encoding)? {
            Some(AttributeValue::Encoding(code)) => code,
            _ => DW_ATE_unsigned,
        };
        let name = self.text(name);
        let int = |encoding: u32| vec![name, kind::INT << 24, bytes, (encoding << 24) | (bytes * 8)];
        Ok(match code {
            DW_ATE_float => vec![name, kind::FLOAT << 24, bytes],
            DW_ATE_boolean => int(encoding::BOOL),
            DW_ATE_signed | DW_ATE_signed_char => int(encoding::SIGNED),
            DW_ATE_complex_float | DW_ATE_imaginary_float | DW_ATE_decimal_float => vec![name, kind::FWD << 24, 0],
            _ => int(0),
        })
    }

    fn structure(&mut self, unit: &Unit<Slice<'d>>, die: &Die<'_, 'd>, name: &[u8]) -> Outcome<Vec<u32>> {
        let is_union = die.tag() == DW_TAG_union_type;
        let text = self.text(name);
        if die.attr(DW_AT_declaration)?.is_some() {
            return Ok(vec![text, kind::FWD << 24 | u32::from(is_union) << 31, 0]);
        }
        let bytes = unsigned(die, DW_AT_byte_size)?.unwrap_or(0);
        let mut members = vec![];
        let mut tree = unit.entries_tree(Some(die.offset()))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let member = child.entry();
            let is_base = member.tag() == DW_TAG_inheritance;
            let is_static = member.attr(DW_AT_external)?.is_some() || member.attr(DW_AT_declaration)?.is_some();
            if member.tag() != DW_TAG_member && !is_base || is_static {
                continue;
            }
            let name = self.units.text(unit, member, DW_AT_name).unwrap_or_default();
            let (name, of) = (self.text(name), self.type_of(unit, member)?);
            let Some((at_bits, bits)) = self.place(unit, member)? else { continue };
            members.push((name, of, at_bits, bits));
        }
        let flag = members.iter().any(|(_, _, _, bits)| *bits > 0);
        let reach = if flag { 1 << 24 } else { 1 << 32 };
        if members.len() > COUNT_MAX || members.iter().any(|member| member.2 >= reach) || bytes >= 1 << 32 {
            let name = String::from_utf8_lossy(name).into_owned();
            self.refused.get_or_insert_with(|| format!("the structure `{name}` is too large for BTF"));
            return Ok(vec![text, kind::FWD << 24, 0]);
        }
        let kind = if is_union { kind::UNION } else { kind::STRUCT };
        let mut words = vec![text, kind << 24 | u32::from(flag) << 31 | members.len() as u32, bytes as u32];
        for (name, of, at_bits, bits) in members {
            words.extend([name, of, at_bits as u32 | bits << 24]);
        }
        Ok(words)
    }

    /// Where a member is, bits, and its width if it is a bit field.
    fn place(&mut self, unit: &Unit<Slice<'d>>, member: &Die<'_, 'd>) -> Outcome<Option<(u64, u32)>> {
        let bits = unsigned(member, DW_AT_bit_size)?.unwrap_or(0);
        if bits > 64 {
            return Ok(None);
        }
        let bytes = match member.attr_value(DW_AT_data_member_location)? {
            None => 0,
            Some(AttributeValue::Exprloc(expression)) => {
                let mut operations = expression.operations(unit.encoding());
                match operations.next()? {
                    Some(gimli::Operation::PlusConstant { value }) => value,
                    Some(gimli::Operation::UnsignedConstant { value }) => value,
                    _ => return Ok(None),
                }
            }
            Some(value) => match value.udata_value() {
                Some(value) => value,
                None => return Ok(None),
            },
        };
        let Some(start) = bytes.checked_mul(8).filter(|start| *start < 1 << 40) else { return Ok(None) };
        if let Some(at) = unsigned(member, DW_AT_data_bit_offset)? {
            return Ok(Some((start.saturating_add(at), bits as u32)));
        }
        // DWARF before version 4 counts from the most significant bit of a storage unit.
        if let Some(from_top) = unsigned(member, DW_AT_bit_offset)? {
            let storage = match unsigned(member, DW_AT_byte_size)? {
                Some(bytes) => bytes,
                None => self.bytes_of_member(unit, member)?,
            };
            let at = (start + storage.min(16) * 8).checked_sub(from_top.saturating_add(bits));
            return Ok(at.map(|at| (at, bits as u32)));
        }
        Ok(Some((start, bits as u32)))
    }

    /// Bytes of the number that a member is.
    fn bytes_of_member(&mut self, unit: &Unit<Slice<'d>>, member: &Die<'_, 'd>) -> Outcome<u64> {
        let mut next = member.attr_value(DW_AT_type)?.and_then(|value| reference(unit, &value));
        for _ in 0..32 {
            let Some((unit, offset)) = next.and_then(|at| self.units.find(at)) else { break };
            let die = unit.entry(offset)?;
            if let Some(bytes) = unsigned(&die, DW_AT_byte_size)? {
                return Ok(bytes);
            }
            next = die.attr_value(DW_AT_type)?.and_then(|value| reference(unit, &value));
        }
        Ok(4)
    }

    fn enumeration(&mut self, unit: &Unit<Slice<'d>>, die: &Die<'_, 'd>, name: &[u8]) -> Outcome<Vec<u32>> {
        let text = self.text(name);
        let bytes = unsigned(die, DW_AT_byte_size)?.unwrap_or(4).min(8) as u32;
        let mut values: Vec<(u32, i128)> = vec![];
        let mut tree = unit.entries_tree(Some(die.offset()))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            if entry.tag() != DW_TAG_enumerator || values.len() == COUNT_MAX {
                continue;
            }
            let value = match entry.attr_value(DW_AT_const_value)? {
                Some(AttributeValue::Sdata(value)) => i128::from(value),
                Some(value) => value.udata_value().map_or(0, i128::from),
                None => 0,
            };
            let name = self.units.text(unit, entry, DW_AT_name).unwrap_or_default();
            values.push((self.text(name), value));
        }
        let signed = values.iter().any(|(_, value)| *value < 0);
        let wide = bytes > 4;
        let kind = if wide { kind::ENUM64 } else { kind::ENUM };
        let mut words = vec![text, kind << 24 | u32::from(signed) << 31 | values.len() as u32, bytes];
        for (name, value) in values {
            words.extend([name, value as u32]);
            words.extend(wide.then_some((value >> 32) as u32));
        }
        Ok(words)
    }

    /// Arrays of several dimensions are arrays of arrays.
    fn array(&mut self, unit: &Unit<Slice<'d>>, die: &Die<'_, 'd>) -> Outcome<Vec<u32>> {
        let mut of = self.type_of(unit, die)?;
        let mut counts = vec![];
        let mut tree = unit.entries_tree(Some(die.offset()))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let range = child.entry();
            if range.tag() != DW_TAG_subrange_type || counts.len() == 16 {
                continue;
            }
            // (-1 is the last element of an array of unknown length.)
            let last = unsigned(range, DW_AT_upper_bound)?.filter(|last| *last < u64::from(u32::MAX));
            let count = unsigned(range, DW_AT_count)?.or(last.map(|last| last + 1)).unwrap_or(0);
            counts.push(u32::try_from(count).unwrap_or(0));
        }
        let by = self.index_type();
        let first = counts.first().copied().unwrap_or(0);
        for count in counts.iter().skip(1).rev() {
            of = self.push(vec![0, kind::ARRAY << 24, 0, of, by, *count]);
        }
        Ok(vec![0, kind::ARRAY << 24, 0, of, by, first])
    }

    /// The type of indices, which nobody asks for.
    fn index_type(&mut self) -> u32 {
        if let Some(known) = self.index_type {
            return known;
        }
        let name = self.text(b"__ARRAY_SIZE_TYPE__");
        let id = self.push(vec![name, kind::INT << 24, 4, 32]);
        self.index_type = Some(id);
        id
    }

    fn prototype(&mut self, unit: &Unit<Slice<'d>>, die: &Die<'_, 'd>) -> Outcome<Vec<u32>> {
        let result = self.type_of(unit, die)?;
        let mut parameters = vec![];
        let mut tree = unit.entries_tree(Some(die.offset()))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let parameter = child.entry();
            match parameter.tag() {
                DW_TAG_formal_parameter if parameters.len() < COUNT_MAX => {
                    let name = self.units.text(unit, parameter, DW_AT_name).unwrap_or_default();
                    let name = self.text(name);
                    parameters.extend([name, self.type_of(unit, parameter)?]);
                }
                DW_TAG_unspecified_parameters => parameters.extend([0, 0]),
                _ => {}
            }
        }
        let mut words = vec![0, kind::FUNC_PROTO << 24 | (parameters.len() / 2) as u32, result];
        words.extend(parameters);
        Ok(words)
    }

    fn function(&mut self, name: &str, at: DebugInfoOffset) -> Outcome<()> {
        let Some((unit, offset)) = self.units.find(at) else { return Ok(()) };
        let die = unit.entry(offset)?;
        let words = self.prototype(unit, &die)?;
        let prototype = self.push(words);
        let linkage = if die.attr(DW_AT_external)?.is_some() { linkage::GLOBAL } else { linkage::STATIC };
        let name = self.text(name.as_bytes());
        self.push(vec![name, kind::FUNC << 24 | linkage, prototype]);
        Ok(())
    }

    fn variable(&mut self, name: &str, at: DebugInfoOffset) -> Outcome<()> {
        let Some((mut unit, offset)) = self.units.find(at) else { return Ok(()) };
        let mut die = unit.entry(offset)?;
        // A definition may leave its type to the declaration.
        if die.attr(DW_AT_type)?.is_none()
            && let Some(value) = die.attr_value(DW_AT_specification)?
            && let Some((other, offset)) = reference(unit, &value).and_then(|at| self.units.find(at))
        {
            (unit, die) = (other, other.entry(offset)?);
        }
        let of = self.type_of(unit, &die)?;
        let name = self.text(name.as_bytes());
        self.push(vec![name, kind::VAR << 24, of, linkage::GLOBAL]);
        Ok(())
    }

    fn finish(mut self) -> Result<Btf, String> {
        if let Some(why) = self.refused {
            return Err(why);
        }
        if self.types.is_empty() {
            // (BTF has at least one type.)
            self.index_type();
        }
        let mut draft = Draft::empty();
        for text in &self.texts {
            draft.add_text(&String::from_utf8_lossy(text));
        }
        for found in &self.types {
            draft.add(&found.words);
        }
        Btf::parse_any(draft.into_bytes()).map_err(|(_, why)| format!("its DWARF gives no valid types: {why}"))
    }
}

/// An attribute that is a number.
fn unsigned(die: &Die<'_, '_>, of: DwAt) -> Outcome<Option<u64>> {
    Ok(die.attr_value(of)?.and_then(|value| value.udata_value()))
}
