//! How functions were compiled: whether they have code of their own, and whether their parameters are where the calling
//! convention puts them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gimli::{AttributeValue, DebugInfoOffset, Operation, Register, Unit, constants::*};

use super::{Die, Index, Slice, Units, reference};

/// What is known of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// It has code of its own.
    pub(crate) has_code: bool,
    /// Calls that have a copy of its code instead.
    pub(crate) calls_inlined: usize,
    /// What is not where it should be: "parameter `NAME`".
    pub(crate) changed: Option<String>,
}

/// DWARF's numbers of rdi, rsi, rdx, rcx, r8, r9.
const ARGUMENTS: [u16; 6] = [5, 4, 1, 2, 8, 9];

type Outcome<T> = Result<T, gimli::Error>;

/// Facts of all wanted functions.
pub(super) fn facts(units: &Units<'_>, index: &Index<'_>) -> Outcome<BTreeMap<String, Facts>> {
    let mut found: BTreeMap<String, Facts> = BTreeMap::new();
    let mut inlined: HashMap<DebugInfoOffset, String> = HashMap::new();
    for (name, entries) in &index.functions {
        let facts = found.entry(name.clone()).or_default();
        for at in entries {
            let Some((unit, offset)) = units.find(*at) else { continue };
            let die = unit.entry(offset)?;
            if let Some(AttributeValue::Inline(DW_INL_inlined | DW_INL_declared_inlined)) =
                die.attr_value(DW_AT_inline)?
            {
                inlined.insert(*at, name.clone());
            }
            look(units, *at, *at, facts)?;
            for other in index.continued.get(at).into_iter().flatten() {
                look(units, *other, *at, facts)?;
                // (With link-time optimisation one continuation leads to the next.)
                for last in index.continued.get(other).into_iter().flatten() {
                    look(units, *last, *at, facts)?;
                }
            }
        }
    }
    if !inlined.is_empty() {
        count_inlined(units, &inlined, &mut found)?;
    }
    Ok(found)
}

/// Looks at an entry that may be a function's code; `origin` names its parameters.
fn look(units: &Units<'_>, at: DebugInfoOffset, origin: DebugInfoOffset, facts: &mut Facts) -> Outcome<()> {
    let Some((unit, offset)) = units.find(at) else { return Ok(()) };
    let die = unit.entry(offset)?;
    if die.attr(DW_AT_low_pc)?.is_none() && die.attr(DW_AT_ranges)?.is_none() {
        return Ok(());
    }
    facts.has_code = true;
    let start = match die.attr_value(DW_AT_low_pc)? {
        Some(value) => units.dwarf().attr_address(unit, value)?,
        None => None,
    };
    let Some((origin_unit, origin_offset)) = units.find(origin) else { return Ok(()) };
    let is_global = origin_unit.entry(origin_offset)?.attr(DW_AT_external)?.is_some();
    let names = parameters(units, origin_unit, &origin_unit.entry(origin_offset)?)?;
    let places = parameters(units, unit, &die)?;
    let mut changed = None;
    if let Some(AttributeValue::CallingConvention(DW_CC_nocall)) = die.attr_value(DW_AT_calling_convention)? {
        changed = Some("a parameter".to_owned());
    }
    for (index, (name, own)) in names.iter().enumerate().take(ARGUMENTS.len()) {
        let place = places.iter().find(|(_, place)| place.origin == Some(own.at) || place.at == own.at);
        let is_there = match place.map(|(_, place)| place.at) {
            Some(place) => register(units, place, start)?,
            None => Known::Nowhere,
        };
        let is_wrong = match is_there {
            Known::Register(register) => register.0 != ARGUMENTS[index],
            // (Of a function that others may call, parameters that it does not use have values, too.)
            Known::Nowhere => !is_global,
            Known::Elsewhere => false,
        };
        if is_wrong && changed.is_none() {
            changed = Some(format!("parameter `{name}`"));
        }
    }
    if facts.changed.is_none() {
        facts.changed = changed;
    }
    Ok(())
}

struct Parameter {
    at: DebugInfoOffset,
    origin: Option<DebugInfoOffset>,
}

fn parameters<'d>(
    units: &Units<'d>,
    unit: &Unit<Slice<'d>>,
    function: &Die<'_, 'd>,
) -> Outcome<Vec<(String, Parameter)>> {
    let mut found = vec![];
    let mut tree = unit.entries_tree(Some(function.offset()))?;
    let mut children = tree.root()?.children();
    while let Some(child) = children.next()? {
        let die = child.entry();
        let at = die.offset().to_debug_info_offset(&unit.header);
        let (DW_TAG_formal_parameter, Some(at)) = (die.tag(), at) else { continue };
        let origin = die.attr_value(DW_AT_abstract_origin)?.and_then(|value| reference(unit, &value));
        let name = units.text(unit, die, DW_AT_name).unwrap_or_default();
        found.push((String::from_utf8_lossy(name).into_owned(), Parameter { at, origin }));
    }
    Ok(found)
}

/// Where a parameter is when its function begins.
enum Known {
    Register(Register),
    /// On the stack, or in parts.
    Elsewhere,
    /// It was optimised out.
    Nowhere,
}

fn register(units: &Units<'_>, parameter: DebugInfoOffset, start: Option<u64>) -> Outcome<Known> {
    let Some((unit, offset)) = units.find(parameter) else { return Ok(Known::Nowhere) };
    let die = unit.entry(offset)?;
    let Some(value) = die.attr_value(DW_AT_location)? else { return Ok(Known::Nowhere) };
    if let AttributeValue::Exprloc(expression) = value {
        return Ok(first(expression, unit));
    }
    let Some(mut list) = units.dwarf().attr_locations(unit, value)? else { return Ok(Known::Elsewhere) };
    let mut is_empty = true;
    while let Some(entry) = list.next()? {
        is_empty = false;
        if Some(entry.range.begin) == start && entry.range.begin < entry.range.end {
            return Ok(first(entry.data, unit));
        }
    }
    Ok(if is_empty { Known::Nowhere } else { Known::Elsewhere })
}

fn first(expression: gimli::Expression<Slice<'_>>, unit: &Unit<Slice<'_>>) -> Known {
    let mut operations = expression.operations(unit.encoding());
    match (operations.next(), operations.next()) {
        (Ok(Some(Operation::Register { register })), Ok(None)) => Known::Register(register),
        (Ok(None), _) => Known::Nowhere,
        _ => Known::Elsewhere,
    }
}

/// Counts copies of code, in all units.
fn count_inlined(
    units: &Units<'_>,
    inlined: &HashMap<DebugInfoOffset, String>,
    found: &mut BTreeMap<String, Facts>,
) -> Outcome<()> {
    let mut seen = BTreeSet::new();
    for unit in units.all() {
        let mut entries = unit.entries();
        while let Some((_, die)) = entries.next_dfs()? {
            if die.tag() != DW_TAG_inlined_subroutine {
                continue;
            }
            let origin = die.attr_value(DW_AT_abstract_origin)?.and_then(|value| reference(unit, &value));
            let at = die.offset().to_debug_info_offset(&unit.header).map(|at| at.0);
            if let Some(name) = origin.and_then(|origin| inlined.get(&origin))
                && seen.insert(at)
            {
                found.entry(name.clone()).or_default().calls_inlined += 1;
            }
        }
    }
    Ok(())
}
