//! DWARF (versions 2 to 5) to BTF: what a specification reaches, and how its functions were compiled.
//!
//! One pass looks at the top level of each unit and notes where names are; what is reached from the wanted names is then
//! converted (`convert.rs`), so that most of a large program is never read. Types of one name, size and line are one type,
//! whatever unit they are in; a declaration becomes its definition, if a unit has one.

#![expect(non_upper_case_globals, reason = "the names are DWARF's")]

mod convert;
mod functions;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use gimli::{AttributeValue, DebugInfoOffset, DebuggingInformationEntry, Dwarf, EndianSlice, LittleEndian, Unit};
use gimli::{SectionId, UnitOffset, constants::*};
use ring3_btf::Btf;

use crate::binary::Elf;
use crate::model::{Root, Specification};
use crate::prototype::{CBase, CType};
use crate::source::{Error, nearest};

pub(crate) use functions::Facts;

pub(crate) type Slice<'d> = EndianSlice<'d, LittleEndian>;
pub(crate) type Die<'u, 'd> = DebuggingInformationEntry<'u, 'u, Slice<'d>>;

/// Names that a specification speaks of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) types: BTreeSet<String>,
    pub(crate) functions: BTreeSet<String>,
    pub(crate) variables: BTreeSet<String>,
    /// Neither how functions were compiled is wanted, nor what is near to a name that does not exist.
    pub(crate) types_only: bool,
}

impl Wanted {
    pub(crate) fn of(specification: &Specification) -> Wanted {
        let mut wanted = Wanted::default();
        let mut of_type = |of: &CType| match &of.base {
            CBase::Struct(name) | CBase::Union(name) | CBase::Enum(name) | CBase::Named(name) => {
                wanted.types.insert(name.clone());
            }
            _ => {}
        };
        let of_functions = specification.functions.iter().filter_map(|function| function.prototype.as_ref());
        let of_entries = specification.entries.iter().filter_map(|entry| entry.prototype.as_ref());
        for prototype in of_functions.chain(of_entries) {
            of_type(&prototype.result);
            prototype.parameters.iter().for_each(|(_, of)| of_type(of));
        }
        let accesses = specification.states.iter().flat_map(|state| state.accesses.iter().map(|access| &access.path));
        let facts = specification.states.iter().flat_map(|state| state.facts.iter().map(|fact| &fact.path));
        for path in accesses.chain(facts) {
            match &path.root {
                Root::Type(name) => {
                    let tag = name.text.split_once(' ').map_or(name.text.as_str(), |(_, tag)| tag);
                    wanted.types.insert(tag.to_owned());
                }
                Root::Global(name) => {
                    wanted.variables.insert(name.text.clone());
                }
                Root::Parameter { .. } => {}
            }
        }
        let entries = specification.entries.iter().map(|entry| entry.function.text.clone());
        let functions = specification.functions.iter().map(|function| function.symbol().text.clone());
        wanted.functions = entries.chain(functions).collect();
        wanted
    }
}

/// What was found.
pub(crate) struct Found {
    pub(crate) types: Btf,
    pub(crate) functions: BTreeMap<String, Facts>,
}

/// What a unit's top level says of names.
#[derive(Default)]
pub(crate) struct Index<'d> {
    /// Definitions by tag and name; a typedef and a structure may have the same.
    pub(crate) types: HashMap<(DwTag, &'d [u8]), DebugInfoOffset>,
    /// All definitions of wanted types: names may be of several.
    pub(crate) wanted_types: Vec<DebugInfoOffset>,
    /// Wanted functions: all that is said of each.
    pub(crate) functions: BTreeMap<String, Vec<DebugInfoOffset>>,
    /// Functions that continue another entry (`DW_AT_abstract_origin`, `DW_AT_specification`).
    pub(crate) continued: HashMap<DebugInfoOffset, Vec<DebugInfoOffset>>,
    /// Wanted variables, definitions before declarations.
    pub(crate) variables: BTreeMap<String, DebugInfoOffset>,
    /// All functions and variables: the nearest names of wanted ones that do not exist, for messages.
    all_functions: HashMap<&'d str, DebugInfoOffset>,
    all_variables: HashMap<&'d str, DebugInfoOffset>,
}

impl Index<'_> {
    /// Adds what wanted names that do not exist may mean.
    fn add_nearest(&mut self, wanted: &Wanted) {
        let of = |all: &HashMap<&str, DebugInfoOffset>, name: &str| {
            let known = nearest(name, all.keys().copied())?;
            Some((known.to_owned(), *all.get(known)?))
        };
        for name in wanted.functions.iter().filter(|name| !self.all_functions.contains_key(name.as_str())) {
            if let Some((known, at)) = of(&self.all_functions, name) {
                self.functions.entry(known).or_insert(vec![at]);
            }
        }
        for name in wanted.variables.iter().filter(|name| !self.all_variables.contains_key(name.as_str())) {
            if let Some((known, at)) = of(&self.all_variables, name) {
                self.variables.entry(known).or_insert(at);
            }
        }
        for name in &wanted.types {
            let names = || self.types.keys().filter_map(|(_, name)| std::str::from_utf8(name).ok());
            if names().any(|known| known == name) {
                continue;
            }
            let Some(known) = nearest(name, names()) else { continue };
            let is_it = |((_, name), _): &(&(DwTag, &[u8]), &DebugInfoOffset)| *name == known.as_bytes();
            let found: Vec<DebugInfoOffset> = self.types.iter().filter(is_it).map(|(_, at)| *at).collect();
            self.wanted_types.extend(found);
        }
    }
}

/// Units by where they begin.
pub(crate) struct Units<'d> {
    dwarf: Dwarf<Slice<'d>>,
    units: Vec<(DebugInfoOffset, Unit<Slice<'d>>)>,
}

/// Converts what is wanted.
pub(crate) fn convert(file: &Elf<'_>, wanted: &Wanted) -> Result<Found, Error> {
    let refuse = |why: String| Error::of_file(format!("{}: {why}", file.name));
    if file.section(".gnu_debugaltlink")?.is_some() {
        return Err(refuse(
            "parts of its DWARF are in another file (dwz -m), which is not supported; compile it with -g, without dwz".into(),
        ));
    }
    let mut sections: HashMap<&'static str, Cow<'_, [u8]>> = HashMap::new();
    for id in [
        SectionId::DebugAbbrev,
        SectionId::DebugAddr,
        SectionId::DebugInfo,
        SectionId::DebugLine,
        SectionId::DebugLineStr,
        SectionId::DebugLoc,
        SectionId::DebugLocLists,
        SectionId::DebugRanges,
        SectionId::DebugRngLists,
        SectionId::DebugStr,
        SectionId::DebugStrOffsets,
        SectionId::DebugTypes,
    ] {
        sections.insert(id.name(), file.section(id.name())?.unwrap_or_default());
    }
    let load = |id: SectionId| -> Result<Slice<'_>, gimli::Error> {
        let bytes = sections.get(id.name()).map(|bytes| bytes.as_ref()).unwrap_or_default();
        Ok(EndianSlice::new(bytes, LittleEndian))
    };
    let damaged = |error: gimli::Error| refuse(format!("its DWARF cannot be read: {error}"));
    let dwarf = Dwarf::load(load).map_err(damaged)?;
    let units = Units::new(dwarf).map_err(damaged)?;
    let index = units.index(wanted).map_err(damaged)?.map_err(refuse)?;
    let types = convert::types(&units, &index).map_err(damaged)?.map_err(refuse)?;
    let facts = || functions::facts(&units, &index).map_err(damaged);
    let functions = if wanted.types_only { BTreeMap::new() } else { facts()? };
    Ok(Found { types, functions })
}

impl<'d> Units<'d> {
    fn new(mut dwarf: Dwarf<Slice<'d>>) -> Result<Units<'d>, gimli::Error> {
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let (mut headers, mut units) = (dwarf.units(), vec![]);
        while let Some(header) = headers.next()? {
            if let Some(start) = header.offset().as_debug_info_offset() {
                units.push((start, dwarf.unit(header)?));
            }
        }
        Ok(Units { dwarf, units })
    }

    /// The unit that holds an entry, and the entry's place in it.
    pub(crate) fn find(&self, at: DebugInfoOffset) -> Option<(&Unit<Slice<'d>>, UnitOffset)> {
        let index = self.units.partition_point(|(start, _)| start.0 <= at.0).checked_sub(1)?;
        let (_, unit) = self.units.get(index)?;
        Some((unit, at.to_unit_offset(&unit.header)?))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Unit<Slice<'d>>> {
        self.units.iter().map(|(_, unit)| unit)
    }

    /// An attribute that is a string.
    pub(crate) fn text(&self, unit: &Unit<Slice<'d>>, die: &Die<'_, 'd>, of: DwAt) -> Option<&'d [u8]> {
        let value = die.attr_value(of).ok()??;
        self.dwarf.attr_string(unit, value).ok().map(|text| text.slice())
    }

    /// The name of the file that declares something, without directories: units write those in several ways.
    pub(crate) fn file(&self, unit: &Unit<Slice<'d>>, die: &Die<'_, 'd>) -> Result<Vec<u8>, gimli::Error> {
        let number = match die.attr_value(DW_AT_decl_file)? {
            Some(AttributeValue::FileIndex(number)) => Some(number),
            other => other.and_then(|value| value.udata_value()),
        };
        let header = unit.line_program.as_ref().map(|program| program.header());
        let entry = number.and_then(|number| header.and_then(|header| header.file(number)));
        let Some(entry) = entry else { return Ok(vec![]) };
        let path = self.dwarf.attr_string(unit, entry.path_name())?;
        Ok(path.slice().rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec())
    }

    pub(crate) fn dwarf(&self) -> &Dwarf<Slice<'d>> {
        &self.dwarf
    }

    fn index(&self, wanted: &Wanted) -> Result<Result<Index<'d>, String>, gimli::Error> {
        let mut index = Index::default();
        let mut declared = HashMap::new();
        for unit in self.all() {
            let mut tree = unit.entries_tree(None)?;
            let root = tree.root()?;
            let split = root.entry().attr(DW_AT_GNU_dwo_name)?.or(root.entry().attr(DW_AT_dwo_name)?);
            if split.is_some() {
                let message =
                    "its DWARF is in .dwo files (-gsplit-dwarf), which is not supported; compile it with -g alone";
                return Ok(Err(message.to_owned()));
            }
            let mut children = root.children();
            while let Some(child) = children.next()? {
                self.note(&mut index, &mut declared, unit, child.entry(), wanted)?;
            }
        }
        for (name, at) in declared {
            index.variables.entry(name).or_insert(at);
        }
        if !wanted.types_only {
            index.add_nearest(wanted);
        }
        Ok(Ok(index))
    }

    fn note(
        &self,
        index: &mut Index<'d>,
        declared: &mut HashMap<String, DebugInfoOffset>,
        unit: &Unit<Slice<'d>>,
        die: &Die<'_, 'd>,
        wanted: &Wanted,
    ) -> Result<(), gimli::Error> {
        let Some(at) = die.offset().to_debug_info_offset(&unit.header) else { return Ok(()) };
        let is_declaration = die.attr(DW_AT_declaration)?.is_some();
        let name = self.text(unit, die, DW_AT_name);
        let is_wanted = |names: &BTreeSet<String>| {
            name.and_then(|name| std::str::from_utf8(name).ok())
                .filter(|name| names.contains(*name))
                .map(str::to_owned)
        };
        match die.tag() {
            DW_TAG_structure_type | DW_TAG_union_type | DW_TAG_enumeration_type | DW_TAG_typedef => {
                if let (Some(name), false) = (name, is_declaration) {
                    index.types.entry((die.tag(), name)).or_insert(at);
                    if is_wanted(&wanted.types).is_some() {
                        index.wanted_types.push(at);
                    }
                }
            }
            DW_TAG_subprogram => {
                let origin = die.attr_value(DW_AT_abstract_origin)?.or(die.attr_value(DW_AT_specification)?);
                if let Some(origin) = origin.and_then(|value| reference(unit, &value)) {
                    index.continued.entry(origin).or_default().push(at);
                } else if let Some(text) = name.and_then(|name| std::str::from_utf8(name).ok()) {
                    index.all_functions.entry(text).or_insert(at);
                }
                if let Some(name) = is_wanted(&wanted.functions) {
                    index.functions.entry(name).or_default().push(at);
                }
            }
            DW_TAG_variable => {
                if let Some(text) = name.and_then(|name| std::str::from_utf8(name).ok()) {
                    index.all_variables.entry(text).or_insert(at);
                }
                if let Some(name) = is_wanted(&wanted.variables) {
                    match is_declaration {
                        true => declared.entry(name).or_insert(at),
                        false => index.variables.entry(name).or_insert(at),
                    };
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The entry that an attribute refers to.
pub(crate) fn reference(unit: &Unit<Slice<'_>>, value: &AttributeValue<Slice<'_>>) -> Option<DebugInfoOffset> {
    match value {
        AttributeValue::UnitRef(at) => at.to_debug_info_offset(&unit.header),
        AttributeValue::DebugInfoRef(at) => Some(*at),
        _ => None,
    }
}
