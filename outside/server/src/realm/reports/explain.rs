//! How a place in a file would be instrumented, and why not better: for `ring3 explain`. No process is looked at.

use std::collections::BTreeMap;
use std::path::Path;

use ring3_patch::{Plan, text_of};
use serde::Serialize;

use crate::realm::files::{CodeFile, StaticSite, static_site};
use crate::realm::sites::entries;

/// Where the region is taken to lie.
const REGION: u64 = 0x10_0000_0000;
/// How far behind the site its stub is taken to lie, if nothing else decides that.
const STUB_AWAY: u64 = 0x1000_0000;
/// Names that are shown in place of an unknown one.
const NAMES_MAX: usize = 5;

/// One place that would be written.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// `symbol+offset`.
    pub name: String,
    /// Offset in the file.
    pub offset: u64,
    /// `jump`, `punned jump` or `int3`.
    pub tactic: String,
    /// Why it is no plain jump.
    pub why: Option<String>,
    /// Where the relay of a punned jump would lie in the file's address space; the site is an `int3` if that is not free.
    pub relay: Option<(u64, u64)>,
    /// Where the stub of a one-byte jump would lie: the site gets one if that is free.
    pub one_byte: Option<i64>,
    /// The instructions there, by address.
    pub before: Vec<(u64, String)>,
    /// The same with what is written.
    pub after: Vec<(u64, String)>,
    /// The stub, where it may lie.
    pub stub: Vec<(u64, String)>,
}

/// Explains a probe at `place`: `FUNCTION`, `FUNCTION+OFFSET`, or an offset in the file that begins with `0x`. With `ret`, of the
/// returns of the function there.
///
/// # Errors
/// What is wrong with the file or the place.
pub fn explain(path: &Path, place: &str, ret: bool) -> Result<Vec<Explained>, String> {
    let file = open(path)?;
    explain_in(&file, path, place, ret).map_err(|why| format!("{}: {why}", path.display()))
}

fn explain_in(file: &CodeFile, path: &Path, place: &str, ret: bool) -> Result<Vec<Explained>, String> {
    let site = static_site(file, path, offset_of(file, place)?).map_err(|refusal| refusal.message)?;
    if ret {
        site.check_return(false).map_err(|refusal| refusal.message)?;
        if site.never_returns() {
            return Err(format!(
                "{}: begins the process and never returns; a probe at its return sees nothing",
                site.name
            ));
        }
    }
    let at_returns = if ret { site.returns(false).count() } else { 0 };
    let rets: Vec<Option<usize>> = if at_returns == 0 { vec![None] } else { (0..at_returns).map(Some).collect() };
    rets.into_iter().map(|ret| explain_one(file, &site, ret)).collect()
}

/// How many instructions of a file's functions have which tactic: all of them, function entries, and `ret`s.
///
/// # Errors
/// What is wrong with the file.
pub fn survey(path: &Path) -> Result<BTreeMap<String, [u64; 3]>, String> {
    let file = open(path)?;
    let mut counts: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    for segment in file.elf().executable_segments() {
        let mut at = segment.start;
        while at < segment.end {
            let Some(bounds) = file.elf().function_bounds(at).filter(|bounds| bounds.end > at) else {
                at += 1;
                continue;
            };
            let code = file.elf().code(bounds.clone()).unwrap_or_default();
            for (address, text) in text_of(code, bounds.start) {
                if ["int3", "nop", "(bad)"].contains(&&text[..]) {
                    continue;
                }
                let site = file.elf().vaddr_to_offset(address).map(|offset| static_site(&file, path, offset));
                let planned = site.and_then(Result::ok).and_then(|site| site.plan(None, 0).ok());
                let tactic = planned.map_or("refused".to_owned(), |plan| plan.tactic.to_string());
                let count = counts.entry(tactic).or_default();
                count[0] += 1;
                count[1] += u64::from(address == bounds.start);
                count[2] += u64::from(text.starts_with("ret"));
            }
            at = bounds.end;
        }
    }
    Ok(counts)
}

fn open(path: &Path) -> Result<CodeFile, String> {
    let refuse = |why: String| format!("{}: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    CodeFile::parse(bytes).map_err(|error| refuse(error.to_string()))
}

fn explain_one(file: &CodeFile, site: &StaticSite, ret: Option<usize>) -> Result<Explained, String> {
    let refuse = |why: ring3_patch::Refusal| format!("{}: {why}", site.name);
    let plan = site.plan(ret, 0).map_err(refuse)?;
    let range = plan.stub_range();
    let is_punned = plan.tactic == ring3_patch::Tactic::Punned;
    let stub_at = range.as_ref().filter(|_| !is_punned).map_or(plan.site + STUB_AWAY, |range| range.start);
    let to = range.as_ref().map_or(stub_at, |range| range.start);
    let jump = plan.jump(to).map_err(refuse)?;
    let stub = plan.stub(stub_at, entries(REGION), REGION).map_err(refuse)?;
    let before = bytes_at(file, &plan);
    let mut after = before.clone();
    after.splice(..jump.len(), jump);
    let inside = plan.site - site.vaddr;
    Ok(Explained {
        name: if inside == 0 { site.name.clone() } else { format!("{}+{inside:#x}", site.name) },
        offset: file.elf().vaddr_to_offset(plan.site).unwrap_or_default(),
        tactic: plan.tactic.to_string(),
        why: site.why_no_jump().filter(|_| ret.is_none()),
        one_byte: site.one_byte_stub(0).filter(|_| ret.is_none() && plan.one_byte().is_some()).map(|at| at as i64),
        relay: range.filter(|_| is_punned).map(|range| (range.start, range.end)),
        before: text_of(&before, plan.site),
        after: text_of(&after, plan.site),
        stub: text_of(&stub.bytes, stub_at),
    })
}

/// What a site displaces, or relies on.
fn bytes_at(file: &CodeFile, plan: &Plan) -> Vec<u8> {
    let bytes = file.elf().code(plan.site..plan.end());
    bytes.map_or_else(|| plan.original.clone(), <[u8]>::to_vec)
}

fn offset_of(file: &CodeFile, place: &str) -> Result<u64, String> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    if place.starts_with("0x") {
        return number(place).map_err(|_| format!("`{place}` is no offset"));
    }
    let (name, inside) = place.rsplit_once('+').unwrap_or((place, "0"));
    let inside = number(inside).map_err(|_| format!("`{inside}` is no offset"))?;
    let address = file.elf().find(name).ok_or_else(|| unknown(file, name))?;
    let offset = file.elf().vaddr_to_offset(address + inside);
    offset.ok_or_else(|| format!("{place} is not in the file"))
}

/// Says that there is no function with a name, and which there are.
fn unknown(file: &CodeFile, name: &str) -> String {
    let wanted = name.to_lowercase();
    let mut near: Vec<&str> = file.elf().symbols().iter().map(|symbol| symbol.name).collect();
    near.retain(|other| !other.is_empty() && is_near(&other.to_lowercase(), &wanted));
    near.sort_by_key(|other| (other.len().abs_diff(name.len()), *other));
    near.dedup();
    near.truncate(NAMES_MAX);
    let there_are = if near.is_empty() { String::new() } else { format!("; there are: {}", near.join(", ")) };
    format!("no function `{name}`{there_are}")
}

/// Whether a name contains another one, or begins and ends with nearly the same.
fn is_near(name: &str, wanted: &str) -> bool {
    let same = name.bytes().zip(wanted.bytes()).take_while(|(a, b)| a == b).count();
    let rest = name.bytes().rev().zip(wanted.bytes().rev()).take_while(|(a, b)| a == b).count();
    name.contains(wanted) || same + rest + 1 >= wanted.len() && name.len().abs_diff(wanted.len()) <= 2
}
