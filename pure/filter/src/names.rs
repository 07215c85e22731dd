//! Constants that have names: errors, signals, and values of fields.

use ring3_event::{EventType, Kind, Names, SIGNALS, Show};
use ring3_uapi::Errno;

/// The largest error number that has a name here.
const ERRNO_MAX: i32 = 524;
/// Second names of errors, and those that only the kernel and its tracers see.
const MORE_ERRORS: [(&str, i32); 7] = [
    ("EWOULDBLOCK", 11),
    ("EDEADLK", 35),
    ("EOPNOTSUPP", 95),
    ("ERESTARTSYS", 512),
    ("ERESTARTNOINTR", 513),
    ("ERESTARTNOHAND", 514),
    ("ERESTART_RESTARTBLOCK", 516),
];
/// Whole numbers of C by one word.
const C_TYPES: [(&str, u32, bool); 5] =
    [("char", 1, true), ("short", 2, true), ("int", 4, true), ("long", 8, true), ("unsigned", 4, false)];
/// What `width` knows, for people.
pub(crate) const TYPES: &str = "char, short, int, long, unsigned, s8 to s64 and u8 to u64";
/// What stands for the working directory where a descriptor is expected.
const AT_FDCWD: i128 = -100;

/// The type of a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    /// 1, 2, 4 or 8.
    pub(crate) bytes: u32,
    pub(crate) signed: bool,
}

/// The type that a name means: C's `int`, bpftrace's `int32` or perf's `s32`.
pub(crate) fn width(name: &str) -> Option<Width> {
    if let Some((_, bytes, signed)) = C_TYPES.iter().find(|(known, ..)| *known == name) {
        return Some(Width { bytes: *bytes, signed: *signed });
    }
    let (kind, bits) = name.split_at(name.find(|letter: char| letter.is_ascii_digit())?);
    let signed = match kind {
        "s" | "int" => true,
        "u" | "uint" => false,
        _ => return None,
    };
    let bytes = match bits {
        "8" => 1,
        "16" => 2,
        "32" => 4,
        "64" => 8,
        _ => return None,
    };
    Some(Width { bytes, signed })
}

/// An error's number.
pub(crate) fn errno(name: &str) -> Option<i128> {
    if !name.starts_with('E') {
        return None;
    }
    let more = MORE_ERRORS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    more.or_else(|| (1..=ERRNO_MAX).find(|number| Errno(*number).name() == name)).map(i128::from)
}

/// A constant that needs no field.
pub(crate) fn constant(name: &str) -> Option<i128> {
    let signal = || SIGNALS.iter().position(|known| *known == name).map(|at| at as i128 + 1);
    errno(name).or_else(signal).or_else(|| (name == "AT_FDCWD").then_some(AT_FDCWD))
}

/// The names of constants that need no field.
pub(crate) fn constants<'a>() -> impl Iterator<Item = &'a str> {
    let errors = (1..=ERRNO_MAX).map(|number| Errno(number).name()).filter(|name| *name != "E?");
    errors.chain(MORE_ERRORS.map(|(name, _)| name)).chain(SIGNALS.iter().copied()).chain(["AT_FDCWD"])
}

/// The names of a field's values.
fn names_of(kind: &Kind) -> Option<(&Names, u32, bool)> {
    match kind {
        Kind::Int { bytes, signed, show: Show::Flags(names) | Show::Enumeration(names) } => {
            Some((names, *bytes, *signed))
        }
        _ => None,
    }
}

/// The value that has a name in a field, as a number of the field's kind.
pub(crate) fn value_of(event: &EventType, field: usize, name: &str) -> Option<i128> {
    let (names, bytes, signed) = names_of(&event.fields.get(field)?.kind)?;
    let (value, _) = names.0.iter().find(|(_, known)| known == name)?;
    let unused = 64 - 8 * bytes.clamp(1, 8);
    Some(match signed {
        true => i128::from((*value << unused) as i64 >> unused),
        false => i128::from((*value << unused) >> unused),
    })
}

/// All names of values of an event's fields.
pub(crate) fn all_of(event: &EventType) -> impl Iterator<Item = &str> {
    let names = event.fields.iter().filter_map(|field| names_of(&field.kind));
    names.flat_map(|(names, _, _)| names.0.iter().map(|(_, name)| name.as_str()))
}

/// The names nearest to one that is unknown, at most three, nearest first.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    const SHOWN: usize = 3;
    let limit = name.chars().count().div_ceil(4).max(1);
    let lower = name.to_lowercase();
    let rank = |known: &str| {
        let distance = distance(&lower, &known.to_lowercase());
        let contains = name.len() >= 3 && known.contains(name);
        (distance <= limit || contains).then_some(distance)
    };
    let mut ranked: Vec<(usize, &str)> = known.filter_map(|known| Some((rank(known)?, known))).collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().map(|(_, known)| known).take(SHOWN).collect()
}

/// How many characters must be changed, added or removed (Levenshtein).
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_have_linux_numbers() {
        let expected = [("ENOENT", 2), ("EWOULDBLOCK", 11), ("SIGHUP", 1), ("SIGKILL", 9), ("SIGSYS", 31)];
        for (name, number) in expected {
            assert_eq!(constant(name), Some(number), "{name}");
        }
        assert_eq!((constant("AT_FDCWD"), constant("EFOO")), (Some(-100), None));
    }

    #[test]
    fn the_nearest_names_come_first() {
        let known = ["filename", "flags", "mode", "dfd", "file"];
        assert_eq!(nearest("filenam", known.into_iter()), ["filename"]);
        assert_eq!(nearest("flag", known.into_iter()), ["flags"]);
        assert_eq!(nearest("zzz", known.into_iter()), Vec::<&str>::new());
    }
}
