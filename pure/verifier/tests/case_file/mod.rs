//! Files of programs with verdicts, `cases/*.bpf`: what `cases.rs` asks our verifier and `tests/tests/verifier_cases.rs`
//! the kernel's.
//!
//! ```text
//! ; case: what this shows, as a sentence
//! ; type: xdp                                    default socket_filter
//! ; map: array key=4 value=48 entries=1          any number; their order is map[0], map[1] ...
//! ; expect: refuse EACCES "part of the message"  or: accept
//! ; kernel: refuse EINVAL (why it differs)       or: accept (why); default: as expected
//!     r0 = 0
//!     exit
//! ```
//!
//! After a map's sizes may stand `flags=0x80`, `frozen`, `content=00112233` (the first bytes of element 0),
//! `lock=8` (where in a value its `bpf_spin_lock` is) and `inner=0` (maps of maps: the index of the map that its
//! elements are like).

use ring3_isa::{Insn, assemble};
use ring3_uapi::Errno;
use ring3_uapi::bpf::{map_type, prog_type};

/// What a verifier says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Refuse { errno: Errno, message: Option<String> },
}

/// A map that a program names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    pub(crate) map_type: u32,
    pub(crate) key: u32,
    pub(crate) value: u32,
    pub(crate) entries: u32,
    pub(crate) flags: u32,
    pub(crate) frozen: bool,
    pub(crate) content: Vec<u8>,
    pub(crate) lock: Option<u32>,
    pub(crate) inner: Option<usize>,
}

/// One program.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) title: String,
    pub(crate) prog_type: u32,
    pub(crate) maps: Vec<Map>,
    pub(crate) expect: Verdict,
    /// Line of `expect`, counted from 1.
    pub(crate) expect_line: usize,
    /// What the kernel says where that is not what is expected of us.
    pub(crate) kernel: Option<Verdict>,
    pub(crate) insns: Vec<Insn>,
}

/// All cases of a file.
pub(crate) fn parse(text: &str) -> Result<Vec<Case>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|at| header(lines[*at], "case").is_some()).collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    starts.iter().zip(ends).map(|(start, end)| case(&lines[*start..end], *start + 1)).collect()
}

fn header<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.strip_prefix("; ")?.strip_prefix(name)?.strip_prefix(':').map(str::trim)
}

fn case(lines: &[&str], first: usize) -> Result<Case, String> {
    let insns =
        assemble(&lines.join("\n")).map_err(|error| format!("line {}: {}", first + error.line - 1, error.message))?;
    let mut case = Case {
        title: String::new(),
        prog_type: prog_type::SOCKET_FILTER,
        maps: vec![],
        expect: Verdict::Accept,
        expect_line: 0,
        kernel: None,
        insns,
    };
    for (at, line) in lines.iter().enumerate() {
        let here = |message: String| format!("line {}: {message}", first + at);
        if let Some(title) = header(line, "case") {
            case.title = title.to_owned();
        } else if let Some(name) = header(line, "type") {
            case.prog_type = prog_type_named(name).ok_or_else(|| here(format!("no program type `{name}`")))?;
        } else if let Some(words) = header(line, "map") {
            case.maps.push(map(words).map_err(here)?);
        } else if let Some(words) = header(line, "expect") {
            (case.expect, case.expect_line) = (verdict(words).map_err(here)?, first + at);
        } else if let Some(words) = header(line, "kernel") {
            let (words, reason) = words.split_once('(').ok_or_else(|| here("a reason is missing".into()))?;
            if reason.trim_end_matches(')').is_empty() {
                return Err(here("a reason is missing".into()));
            }
            case.kernel = Some(verdict(words.trim()).map_err(here)?);
        }
    }
    if case.expect_line == 0 { Err(format!("line {first}: `; expect:` is missing")) } else { Ok(case) }
}

/// A value whose kernel name is `prefix` and `name`.
fn named(name: &str, prefix: &str, kernel_name: fn(u32) -> Option<&'static str>) -> Option<u32> {
    let wanted = format!("{prefix}{}", name.to_uppercase());
    (0..)
        .map_while(|value| Some((value, kernel_name(value)?)))
        .find(|(_, known)| *known == wanted)
        .map(|(value, _)| value)
}

fn prog_type_named(name: &str) -> Option<u32> {
    named(name, "BPF_PROG_TYPE_", prog_type::name)
}

fn map(words: &str) -> Result<Map, String> {
    let mut words = words.split_whitespace();
    let kind = words.next().unwrap_or_default();
    let map_type = named(kind, "BPF_MAP_TYPE_", map_type::name).ok_or_else(|| format!("no map type `{kind}`"))?;
    let mut map = Map { map_type, ..Map::default() };
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        if name == "content" {
            map.content = bytes(value).ok_or_else(|| format!("`{value}` are no bytes"))?;
            continue;
        }
        let digits = value.strip_prefix("0x");
        let number = digits.map_or_else(|| value.parse(), |digits| u32::from_str_radix(digits, 16));
        let number = number.map_err(|_| format!("`{value}` is no number"))?;
        match name {
            "key" => map.key = number,
            "value" => map.value = number,
            "entries" => map.entries = number,
            "flags" => map.flags = number,
            "lock" => map.lock = Some(number),
            "frozen" => map.frozen = true,
            "inner" => map.inner = Some(number as usize),
            _ => return Err(format!("maps have no `{name}`")),
        }
    }
    Ok(map)
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn verdict(words: &str) -> Result<Verdict, String> {
    if words == "accept" {
        return Ok(Verdict::Accept);
    }
    let rest = words.strip_prefix("refuse ").ok_or_else(|| format!("`{words}` is no verdict"))?;
    let (name, message) = rest.split_once(' ').unwrap_or((rest, ""));
    let errno = (1..=524).map(Errno).find(|errno| errno.name() == name);
    let errno = errno.ok_or_else(|| format!("no error `{name}`"))?;
    let message = message.trim().strip_prefix('"').and_then(|message| message.strip_suffix('"'));
    Ok(Verdict::Refuse { errno, message: message.map(str::to_owned) })
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Refuse { errno, message: None } => write!(f, "refuse {}", errno.name()),
            Verdict::Refuse { errno, message: Some(message) } => write!(f, "refuse {} \"{message}\"", errno.name()),
        }
    }
}

impl Verdict {
    /// The verdict without the words.
    pub(crate) fn wordless(&self) -> Verdict {
        match self {
            Verdict::Refuse { errno, .. } => Verdict::Refuse { errno: *errno, message: None },
            Verdict::Accept => Verdict::Accept,
        }
    }

    /// Whether what was expected (`self`) is what was `said`: the errno and, if one is expected, the message.
    pub(crate) fn covers(&self, said: &Verdict) -> bool {
        match (self, said) {
            (Verdict::Accept, Verdict::Accept) => true,
            (Verdict::Refuse { errno, message }, Verdict::Refuse { errno: theirs, message: whole }) => {
                let part = message.as_deref().unwrap_or_default();
                errno == theirs && whole.as_deref().unwrap_or_default().contains(part)
            }
            _ => false,
        }
    }
}

/// The files of a directory, by name.
pub(crate) fn files(directory: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).expect("the directory of cases");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "bpf"));
    files.sort();
    files
}
