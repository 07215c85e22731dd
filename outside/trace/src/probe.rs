//! Probes of a session: functions and static tracepoints of files, as the user names them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ring3_btf::kind;
use ring3_elf::{File, Tracepoint};
use ring3_event::Kind;
use ring3_recorder::{Recipe, probes};

use crate::libraries;

/// Where a program is attached, and what it records.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The file.
    pub path: PathBuf,
    /// Where in it the instruction is, in bytes from its start.
    pub offset: u64,
    /// Where a counter of those who watch is, likewise; 0: none.
    pub counter: u64,
    /// At the end of the function that begins there.
    pub at_end: bool,
    /// What is recorded.
    pub recipe: Recipe,
    /// It is the result of a function of which nothing says the type.
    pub is_of_unknown_type: bool,
}

/// The kinds of probes that a name can begin with.
pub const KINDS: [&str; 3] = ["uprobe", "uretprobe", "usdt"];

/// The probes that a name means: `uprobe:FILE:FUNCTION`, `uretprobe:FILE:FUNCTION`, `usdt:FILE:PROVIDER:NAME` or `usdt:FILE:NAME`.
/// A file may be a program in `PATH` or a library by its name, too.
/// Names of functions and tracepoints may have `*` in them. Types are numbered from `first_id` on.
///
/// # Errors
/// The name is wrong, the file cannot be read, or it has nothing of that name.
pub fn find(name: &str, first_id: u32, bytes_max: u32) -> Result<Vec<Probe>, String> {
    let parts: Vec<&str> = name.split(':').collect();
    let (kind, file, wanted) = match parts[..] {
        [kind @ ("uprobe" | "uretprobe"), file, function] => (kind, file, ["*", function]),
        ["usdt", file, name] => ("usdt", file, ["*", name]),
        ["usdt", file, provider, name] => ("usdt", file, [provider, name]),
        _ => {
            return Err(format!(
                "{name}: write uprobe:FILE:FUNCTION, uretprobe:FILE:FUNCTION or usdt:FILE:PROVIDER:NAME"
            ));
        }
    };
    let path = match std::fs::canonicalize(file) {
        Ok(path) => path,
        Err(error) => libraries::find(file).ok_or_else(|| {
            let or_known = if file.contains('/') { "" } else { ", nor is there a program or library of that name" };
            format!("{name}: cannot open {file}: {error}{or_known}")
        })?,
    };
    let bytes = std::fs::read(&path).map_err(|error| format!("{name}: cannot read {file}: {error}"))?;
    let elf = File::parse(&bytes).map_err(|error| format!("{name}: {file}: {error}"))?;
    let found = match kind {
        "usdt" => tracepoints(&elf, &path, wanted, first_id, bytes_max),
        _ => functions(&elf, (&path, &bytes), wanted[1], kind == "uretprobe", first_id),
    };
    if found.is_empty() {
        let hint = match kind {
            "usdt" if elf.tracepoints().is_empty() => "the file has no static tracepoints".to_owned(),
            "usdt" => format!(
                "it has {}",
                listed(elf.tracepoints().iter().map(|of| format!("{}:{}", of.provider, of.name)))
            ),
            _ if elf.symbols().is_empty() => "the file has no symbols".to_owned(),
            _ => "it has no function of that name".to_owned(),
        };
        return Err(format!("{name}: nothing to trace in {file}: {hint}"));
    }
    Ok(found)
}

/// Some of the names.
fn listed(names: impl Iterator<Item = String>) -> String {
    const SHOWN_MAX: usize = 8;
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    let more = if names.len() > SHOWN_MAX { ", ..." } else { "" };
    names.truncate(SHOWN_MAX);
    format!("{}{more}", names.join(", "))
}

fn tracepoints(
    elf: &File<'_>,
    path: &Path,
    [provider, name]: [&str; 2],
    first_id: u32,
    bytes_max: u32,
) -> Vec<Probe> {
    let all = elf.tracepoints();
    let mut by_name: BTreeMap<(&str, &str), Vec<&Tracepoint>> = BTreeMap::new();
    for of in all.iter().filter(|of| matches(provider, &of.provider) && matches(name, &of.name)) {
        by_name.entry((&of.provider, &of.name)).or_default().push(of);
    }
    let mut found = vec![];
    for (id, places) in (first_id..).zip(by_name.values()) {
        for (place, recipe) in places.iter().zip(probes::tracepoint(id, places, bytes_max)) {
            let Some(offset) = elf.vaddr_to_offset(place.address) else { continue };
            let counter = if place.semaphore == 0 { None } else { elf.vaddr_to_offset(place.semaphore) };
            found.push(Probe {
                path: path.to_owned(),
                offset,
                counter: counter.unwrap_or(0),
                at_end: false,
                recipe,
                is_of_unknown_type: false,
            });
        }
    }
    found
}

fn functions(elf: &File<'_>, (path, bytes): (&Path, &[u8]), name: &str, at_end: bool, first_id: u32) -> Vec<Probe> {
    let provider = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut by_offset: BTreeMap<u64, &str> = BTreeMap::new();
    for symbol in elf.symbols().iter().filter(|symbol| matches(name, symbol.name)) {
        let Some(offset) = elf.vaddr_to_offset(symbol.address) else { continue };
        if elf.executable_segments().iter().any(|segment| segment.contains(&symbol.address)) {
            by_offset.entry(offset).or_insert(symbol.name);
        }
    }
    let results = if at_end { results(path, bytes, by_offset.values().copied()) } else { BTreeMap::new() };
    let probe = |(id, (offset, name)): (u32, (u64, &str))| {
        let result = results.get(name);
        Probe {
            path: path.to_owned(),
            offset,
            counter: 0,
            at_end,
            recipe: if at_end {
                probes::function_end(id, &provider, name, result.cloned().flatten())
            } else {
                probes::function(id, &provider, name)
            },
            is_of_unknown_type: at_end && result.is_none(),
        }
    };
    (first_id..).zip(by_offset).map(probe).collect()
}

/// What functions return, as BTF or DWARF of the file, or of its debug file, say it; `None`: no whole number.
fn results<'n>(
    path: &Path,
    bytes: &[u8],
    names: impl Iterator<Item = &'n str> + Clone,
) -> BTreeMap<String, Option<Kind>> {
    // (Of functions with the same name each may return something else.)
    let mut seen = BTreeSet::new();
    let doubles: BTreeSet<&str> = names.clone().filter(|name| !seen.insert(*name)).collect();
    let wanted: BTreeSet<String> = names.filter(|name| !doubles.contains(name)).map(str::to_owned).collect();
    let of = |path: &Path, bytes: &[u8]| {
        ring3_eim::types_of_functions((&path.to_string_lossy(), bytes), wanted.clone()).ok().flatten()
    };
    let of_debug_file = || {
        let path = debug_file(bytes)?;
        of(&path, &std::fs::read(&path).ok()?)
    };
    let Some(types) = of(path, bytes).or_else(of_debug_file) else { return BTreeMap::new() };
    let result = |(id, name): (u32, &[u8])| {
        let name = std::str::from_utf8(name).ok().filter(|name| wanted.contains(*name))?;
        let result = types.size_or_type(types.size_or_type(id));
        Some((name.to_owned(), probes::kind_of(&types, result)))
    };
    types.of_kind(kind::FUNC).filter_map(result).collect()
}

/// Where distributions put the types of a program: by its build id.
pub fn debug_file(bytes: &[u8]) -> Option<PathBuf> {
    let id = ring3_eim::build_id(bytes)?;
    let (directory, file) = id.split_at_checked(2)?;
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{directory}/{file}.debug"));
    path.exists().then_some(path)
}

/// Whether a name is one that a pattern with `*` means.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    let mut rest = rest;
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("*", "") && matches("a*", "abc") && matches("*c", "abc") && matches("a*c*e", "abcde"));
        assert!(matches("abc", "abc") && !matches("abc", "abcd") && !matches("a*d", "abc") && !matches("", "a"));
        assert!(!matches("ab*ba", "aba"));
    }
}
