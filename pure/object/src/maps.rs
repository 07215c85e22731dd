//! An object's maps: those it defines by types, and its variables.
//!
//! Mirrors src/libbpf.c:parse_btf_map_def and bpf_object__init_global_data_maps.

use object::elf::STT_FUNC;
use ring3_btf::{Btf, VarSecinfo, kind, linkage};
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_MMAPABLE, BPF_F_RDONLY_PROG};

use crate::externs::CONFIGURATION;
use crate::file::File;
use crate::{Error, MapDef, Slot};

const DEFINITIONS: &str = ".maps";
/// `LIBBPF_PIN_BY_NAME`.
const PIN_BY_NAME: u32 = 1;
/// Bytes of an entry of a definition's `values`.
const POINTER_BYTES: u64 = 8;
/// Bytes of variables at most: a small file can ask for much.
const VARIABLES_BYTES_MAX: u64 = 1 << 28;

/// Where a map is in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A definition: its section and offset there.
    Defined(usize, u64),
    /// A whole section.
    Variables(usize),
    Configuration,
}

pub(crate) struct Maps {
    pub(crate) defs: Vec<MapDef>,
    places: Vec<Place>,
}

impl Maps {
    pub(crate) fn collect(
        file: &File<'_>,
        types: Option<&Btf>,
        configuration: Option<Vec<u8>>,
    ) -> Result<Maps, Error> {
        let mut maps = Maps { defs: vec![], places: vec![] };
        if file.section("maps").is_some() {
            return Err(Error::Unsupported("maps that are not defined by types (section maps)".into()));
        }
        if let Some((section, _)) = file.section(DEFINITIONS) {
            let types = types.ok_or(Error::corrupt("maps without types"))?;
            maps.define(types, section)?;
            maps.fill(types, file, section)?;
        }
        let section_type = |name: &str| types?.find(name.as_bytes(), kind::DATASEC);
        let mut bytes = 0;
        for (index, section) in file.sections.iter().enumerate() {
            let is = |name: &str| {
                let rest = section.name.strip_prefix(name);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let constant = is(".rodata");
            if section.size == 0 || !(constant || is(".data") || is(".bss")) {
                continue;
            }
            bytes = section.size.saturating_add(bytes);
            if bytes > VARIABLES_BYTES_MAX {
                return Err(Error::Unsupported(format!("{bytes} bytes of variables")));
            }
            let mut initial = section.data.to_vec();
            initial.resize(section.size as usize, 0);
            let place = Place::Variables(index);
            maps.add_variables(types, section.name, place, initial, section_type(section.name), constant);
        }
        if let Some(initial) = configuration {
            let of = section_type(CONFIGURATION);
            maps.add_variables(types, CONFIGURATION, Place::Configuration, initial, of, true);
        }
        Ok(maps)
    }

    fn add_variables(
        &mut self,
        types: Option<&Btf>,
        name: &str,
        place: Place,
        initial: Vec<u8>,
        of: Option<u32>,
        constant: bool,
    ) {
        // Who could map it has no business with what nobody outside of the object may name.
        let shared = types.zip(of).is_some_and(|(types, of)| {
            let mut variables = types.variables(of);
            variables.any(|found| types.linkage(found.of).is_some_and(|linkage| linkage != linkage::STATIC))
        });
        self.places.push(place);
        self.defs.push(MapDef {
            name: name.into(),
            map_type: map_type::ARRAY,
            key_size: 4,
            value_size: initial.len() as u32,
            max_entries: 1,
            map_flags: if shared { BPF_F_MMAPABLE } else { 0 } | if constant { BPF_F_RDONLY_PROG } else { 0 },
            initial: Some(initial),
            frozen: constant,
            value_type: of.unwrap_or(0),
            ..MapDef::default()
        });
    }

    fn define(&mut self, types: &Btf, section: usize) -> Result<(), Error> {
        let of = types.find(DEFINITIONS.as_bytes(), kind::DATASEC).ok_or(Error::corrupt("maps without types"))?;
        for variable in types.variables(of) {
            let name = String::from_utf8_lossy(types.name_of(variable.of)).into_owned();
            let definition = types.plain(types.size_or_type(variable.of));
            let map = definition_of(types, definition, &name, true);
            let map = map.ok_or_else(|| Error::Unsupported(format!("the definition of the map {name}")))?;
            self.places.push(Place::Defined(section, u64::from(variable.at)));
            self.defs.push(map);
        }
        Ok(())
    }

    /// Finds what maps are to hold from the beginning: relocations inside their definitions.
    /// Mirrors src/libbpf.c:bpf_object__collect_map_relos.
    fn fill(&mut self, types: &Btf, file: &File<'_>, section: usize) -> Result<(), Error> {
        let of = types.find(DEFINITIONS.as_bytes(), kind::DATASEC).unwrap_or(0);
        let relocations = file.sections.get(section).map_or(&[][..], |section| &section.relocations);
        for relocation in relocations {
            let damaged = || Error::Unsupported(format!("what is at {:#x} of maps' definitions", relocation.at));
            let inside = |placed: &VarSecinfo| {
                let place = u64::from(placed.at)..u64::from(placed.at) + u64::from(placed.size);
                place.contains(&relocation.at)
            };
            let (map, placed) =
                (0..).zip(types.variables(of)).find(|(_, placed)| inside(placed)).ok_or_else(damaged)?;
            let definition = types.plain(types.size_or_type(placed.of));
            let values = types.members(definition).find(|member| member.name == b"values").ok_or_else(damaged)?;
            let at = relocation.at - u64::from(placed.at);
            let at = at.checked_sub(u64::from(values.at_bits / 8)).filter(|at| at % POINTER_BYTES == 0);
            let index = at.and_then(|at| u32::try_from(at / POINTER_BYTES).ok()).ok_or_else(damaged)?;
            let symbol = file.symbols.get(relocation.symbol).ok_or_else(damaged)?;
            let slot = match self.defs.get(map).ok_or_else(damaged)?.map_type {
                map_type::PROG_ARRAY if symbol.kind == STT_FUNC => Slot::Program(symbol.name.into()),
                map_type::ARRAY_OF_MAPS | map_type::HASH_OF_MAPS => {
                    let (inner, variables) = self.find(symbol.section, symbol.value).ok_or_else(damaged)?;
                    (!variables).then_some(Slot::Map(inner)).ok_or_else(damaged)?
                }
                _ => return Err(damaged()),
            };
            self.defs[map].slots.push((index, slot));
        }
        Ok(())
    }

    /// The map that a symbol's section and value mean, and whether it is a section of variables.
    pub(crate) fn find(&self, section: usize, value: u64) -> Option<(usize, bool)> {
        let at = |wanted| self.places.iter().position(|place| *place == wanted);
        let defined = at(Place::Defined(section, value)).map(|found| (found, false));
        defined.or_else(|| at(Place::Variables(section)).map(|found| (found, true)))
    }

    pub(crate) fn configuration(&self) -> Option<usize> {
        self.places.iter().position(|place| *place == Place::Configuration)
    }
}

/// A number that is written as a type: `int (*name)[number]`, or the only value of an enumeration.
fn number(types: &Btf, of: u32) -> Option<u64> {
    let of = types.plain(of);
    match types.kind(of)? {
        kind::PTR => types.array(types.plain(types.size_or_type(of))).map(|array| u64::from(array.count)),
        kind::ENUM | kind::ENUM64 => types.values(of).next().map(|(_, value)| value),
        _ => None,
    }
}

fn definition_of(types: &Btf, of: u32, name: &str, outer: bool) -> Option<MapDef> {
    let mut map = MapDef { name: name.into(), ..MapDef::default() };
    if types.kind(of)? != kind::STRUCT {
        return None;
    }
    for member in types.members(of) {
        let word = || number(types, member.of).and_then(|value| u32::try_from(value).ok());
        // A key or value by type: a pointer to it.
        let pointed = || (types.kind(member.of) == Some(kind::PTR)).then(|| types.size_or_type(member.of));
        match member.name {
            b"type" => map.map_type = word()?,
            b"max_entries" => map.max_entries = word()?,
            b"map_flags" => map.map_flags = word()?,
            b"numa_node" => map.numa_node = word()?,
            b"key_size" => map.key_size = word()?,
            b"value_size" => map.value_size = word()?,
            b"map_extra" => map.map_extra = number(types, member.of)?,
            b"pinning" if outer => map.pinned = word()? == PIN_BY_NAME,
            b"key" => {
                map.key_type = pointed()?;
                map.key_size = types.sized(map.key_type)?.1;
            }
            b"value" => {
                map.value_type = pointed()?;
                map.value_size = types.sized(map.value_type)?.1;
            }
            b"values" if outer => {
                map.value_size = 4;
                let of = types.plain(types.array(types.plain(member.of))?.of);
                let pointed = types.plain((types.kind(of)? == kind::PTR).then(|| types.size_or_type(of))?);
                if matches!(map.map_type, map_type::ARRAY_OF_MAPS | map_type::HASH_OF_MAPS) {
                    map.inner = Some(Box::new(definition_of(types, pointed, &format!("{name}.inner"), false)?));
                }
            }
            _ => return None,
        }
    }
    if map.map_type == 0 {
        return None;
    }
    if has_no_types(map.map_type) {
        (map.key_type, map.value_type) = (0, 0);
    }
    Some(map)
}

/// Maps whose keys and values the kernel wants no types of. Mirrors src/libbpf.c:bpf_object__create_map.
fn has_no_types(of: u32) -> bool {
    use map_type::*;
    matches!(
        of,
        PERF_EVENT_ARRAY
            | CGROUP_ARRAY
            | STACK_TRACE
            | ARRAY_OF_MAPS
            | HASH_OF_MAPS
            | DEVMAP
            | DEVMAP_HASH
            | CPUMAP
            | XSKMAP
            | SOCKMAP
            | SOCKHASH
            | QUEUE
            | STACK
            | ARENA
    )
}
