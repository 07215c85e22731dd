//! Directories of the server's realm: which may use which. The table in ARCHITECTURE.md is what is checked.
//!
//! An arrow is a path from one directory to another (`crate::realm::NAME::..`), also to what `realm/mod.rs` has from there. Methods
//! of `Target` and `Actor` are not seen: their blocks are in many files, and each may call any of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::root;

const REALM: &str = "outside/server/src/realm";
/// The heading of the table.
const HEADING: &str = "## Directories of the realm";
/// Files in no directory: the wholes, and what everybody needs to speak of them.
const IN_NO_DIRECTORY: [&str; 7] =
    ["links.rs", "meant.rs", "mod.rs", "refusal.rs", "requests.rs", "target.rs", "tracer.rs"];

/// A directory, and those that it may use.
#[derive(Debug)]
struct Row {
    name: String,
    uses: BTreeSet<String>,
}

/// A file of a directory.
#[derive(Debug)]
struct Source {
    directory: String,
    file: String,
    text: String,
}

pub(super) fn check(broken: &mut Vec<String>) -> Result<(), String> {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"));
    let rows = table(&read("ARCHITECTURE.md")?);
    let mut sources = vec![];
    for path in super::sources()? {
        let Ok(inside) = path.strip_prefix(REALM) else { continue };
        let inside = inside.display().to_string();
        match inside.split_once('/') {
            Some((directory, file)) => sources.push(Source {
                directory: directory.to_owned(),
                file: file.to_owned(),
                text: read(&path.display().to_string())?,
            }),
            None if !IN_NO_DIRECTORY.contains(&&*inside) => {
                broken.push(format!("{REALM}/{inside}: it belongs in one of the realm's directories"));
            }
            None => {}
        }
    }
    broken.extend(check_directories(&rows, &read(&format!("{REALM}/mod.rs"))?, &sources));
    Ok(())
}

/// The rows of the table: the lines below its heading that begin with a name.
fn table(text: &str) -> Vec<Row> {
    let lines = text.lines().skip_while(|line| *line != HEADING).skip(1).take_while(|line| !line.starts_with("## "));
    lines
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            let name = cells.next()?.trim().trim_end_matches('`').to_owned();
            let uses = cells.nth(1)?.split(',').map(|used| used.trim().trim_matches('`').to_owned());
            Some(Row { name, uses: uses.filter(|used| !used.is_empty()).collect() })
        })
        .collect()
}

fn check_directories(rows: &[Row], realm: &str, sources: &[Source]) -> Vec<String> {
    let mut broken = vec![];
    let names: BTreeSet<&str> = rows.iter().map(|row| &*row.name).collect();
    let found: BTreeSet<&str> = sources.iter().map(|source| &*source.directory).collect();
    for name in names.symmetric_difference(&found) {
        broken.push(format!("{REALM}/{name} is a directory, or a row in ARCHITECTURE.md ({HEADING}), but not both"));
    }
    let exported = exported(realm, &names);
    let mut arrows = BTreeSet::new();
    for Source { directory, file, text } in sources {
        let shown = format!("{REALM}/{directory}/{file}");
        if file == "mod.rs" {
            for line in super::HEAD.iter().filter(|line| !text.contains(**line)) {
                broken.push(format!("{shown}: the comment at its head has no line `{line}`"));
            }
        }
        let allowed = rows.iter().find(|row| row.name == *directory).map(|row| &row.uses);
        for used in used_in(text, &exported).into_iter().filter(|used| used != directory) {
            if allowed.is_some_and(|allowed| !allowed.contains(&used)) {
                broken.push(format!("{shown}: `{directory}` may not use `{used}`"));
            }
            arrows.insert((directory.clone(), used));
        }
    }
    for (at, row) in rows.iter().enumerate() {
        for used in &row.uses {
            if !rows[..at].iter().any(|below| below.name == *used) {
                broken.push(format!("ARCHITECTURE.md: `{}` may use `{used}`, which is in no row above it", row.name));
            }
            if !arrows.contains(&(row.name.clone(), used.clone())) {
                broken.push(format!("ARCHITECTURE.md: `{}` may use `{used}`, and does not", row.name));
            }
        }
    }
    broken
}

/// What can be named in the realm without saying from which directory it is, and the directories' own names.
fn exported(realm: &str, names: &BTreeSet<&str>) -> BTreeMap<String, String> {
    let of_directories = names.iter().map(|name| ((*name).to_owned(), (*name).to_owned()));
    let mut exported: BTreeMap<String, String> = of_directories.collect();
    for path in imports(&code_of(realm)) {
        if let [directory, .., item] = &path[..]
            && names.contains(&**directory)
        {
            exported.insert(item.clone(), directory.clone());
        }
    }
    exported
}

/// The directories that a file uses.
fn used_in(text: &str, exported: &BTreeMap<String, String>) -> BTreeSet<String> {
    let code = code_of(text);
    // (Outside of imports, too. `super::super` is the realm, if that is what has such a name.)
    let inline = code.match_indices("crate::realm::").map(|(at, found)| &code[at + found.len()..]);
    let inline = inline.map(|rest| rest.split(|c: char| !is_of_name(c)).next().unwrap_or_default().to_owned());
    let imported = imports(&code).into_iter().filter_map(|path| match &path[..] {
        [first, second, name, ..] if [("crate", "realm"), ("super", "super")].contains(&(&**first, &**second)) => {
            Some(name.clone())
        }
        _ => None,
    });
    inline.chain(imported).filter_map(|name| exported.get(&name).cloned()).collect()
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A text without comments.
fn code_of(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths of all imports, each as its names.
fn imports(code: &str) -> Vec<Vec<String>> {
    let mut found = vec![];
    for statement in code.split(['\n', ';']).enumerate().filter_map(|(at, line)| {
        let line = line.trim_start();
        let import = line.strip_prefix("use ").or_else(|| line.split_once(" use ").map(|(_, import)| import));
        import.filter(|_| line.starts_with("use ") || line.starts_with("pub")).map(|import| (at, import))
    }) {
        // (It may go over several lines.)
        let rest: Vec<&str> = code.split(['\n', ';']).skip(statement.0 + 1).collect();
        let mut whole = statement.1.to_owned();
        for line in rest {
            if whole.matches('{').count() == whole.matches('}').count() {
                break;
            }
            whole.push_str(line);
        }
        expand(&mut vec![], &whole, &mut found);
    }
    found
}

/// All paths of an import: `a::{b, c::d}` has `a::b` and `a::c::d`.
fn expand(before: &mut Vec<String>, import: &str, found: &mut Vec<Vec<String>>) {
    let (path, group) = import.split_once('{').map_or((import, None), |(path, group)| (path, Some(group)));
    let length = before.len();
    let name = |name: &str| name.split_whitespace().next().unwrap_or_default().to_owned();
    before.extend(path.split("::").map(name).filter(|name| !name.is_empty()));
    match group {
        None => found.push(before.clone()),
        Some(group) => {
            let group = group.trim_end().strip_suffix('}').unwrap_or(group);
            let (mut depth, mut start) = (0, 0);
            for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        if !group[start..at].trim().is_empty() {
                            expand(before, &group[start..at], found);
                        }
                        start = at + 1;
                    }
                    _ => {}
                }
            }
        }
    }
    before.truncate(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "## Directories of the realm\n\n| directory | is for | may use |\n|---|---|---|\n\
        | `low` | this | |\n| `middle` | that | `low` |\n| `high` | more | `low`, `middle` |\n\n## More\n| `other` | | `low` |\n";
    const REALM_MOD: &str = "mod high;\nmod low;\npub use high::{Top, kinds::Kind};\nuse low::Deep;\n";
    const DOOR: &str = "//! Runs: .\n//! May touch: .\n//! Never: .\n//! Start reading at: .\n";

    fn source(directory: &str, file: &str, text: &str) -> Source {
        Source { directory: directory.into(), file: file.into(), text: text.into() }
    }

    /// What keeps the table, and these.
    fn check(more: &[(&str, &str)]) -> Vec<String> {
        let mut sources = vec![
            source("low", "mod.rs", DOOR),
            source("middle", "mod.rs", DOOR),
            source("high", "mod.rs", DOOR),
            source("middle", "own.rs", "use super::other;\nuse crate::realm::low::{A, B};"),
            source("high", "own.rs", "fn f() { crate::realm::middle::go(); }\nuse crate::realm::Deep;"),
        ];
        sources.extend(more.iter().map(|(directory, text)| source(directory, "new.rs", text)));
        check_directories(&table(TABLE), REALM_MOD, &sources)
    }

    #[test]
    fn what_the_table_allows_is_no_breach() {
        assert_eq!(check(&[]), Vec::<String>::new());
        assert_eq!(
            check(&[("low", "// use crate::realm::high::A;\nuse crate::realm::{Target, target::Link};")]),
            [""; 0]
        );
    }

    #[test]
    fn an_arrow_that_the_table_does_not_have_is_found_however_it_is_written() {
        for text in [
            "use crate::realm::high::A;",
            "use crate::realm::{Target, high};",
            "pub(super) use crate::realm::{\n    Target,\n    high::{A, b::C},\n};",
            "use super::super::high::A;",
            "    fn f() {\n        use crate::realm::high::A;\n    }",
            "fn f() -> u32 { 1 + crate::realm::high::a() }",
            "use crate::realm::Top;",
            "use crate::realm::Kind;",
        ] {
            let broken = check(&[("low", text)]);
            assert_eq!(broken, [format!("{REALM}/low/new.rs: `low` may not use `high`")], "{text}");
        }
    }

    #[test]
    fn the_table_can_have_no_circle_and_nothing_that_is_not_used() {
        let circle = TABLE.replace("| this | |", "| this | `high` |");
        let sources = [source("low", "new.rs", "use crate::realm::high::A;")];
        let broken = check_directories(&table(&circle), REALM_MOD, &sources);
        assert!(
            broken.iter().any(|one| one.contains("`low` may use `high`, which is in no row above it")),
            "{broken:?}"
        );
        assert!(broken.iter().any(|one| one.contains("`middle` may use `low`, and does not")), "{broken:?}");
    }

    #[test]
    fn a_directory_without_a_row_or_without_a_head_is_found() {
        let broken = check(&[("new", "")]);
        assert!(broken[0].contains("/new is a directory, or a row"), "{broken:?}");
        let broken = check_directories(&table(TABLE), REALM_MOD, &[source("low", "mod.rs", "//! Runs: .")]);
        assert!(
            broken.iter().any(|one| one.contains("low/mod.rs: the comment at its head has no line `//! Never:`"))
        );
    }
}
