//! Patterns of texts: `*`, `?`, `[a-z]`, `[!a-z]`.

use crate::lex::Letter;

/// What matches one byte. None matches a zero byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Byte(u8),
    Any,
    /// Bytes between these bounds, or with `true` all others.
    Set(bool, Vec<(u8, u8)>),
}

impl Element {
    pub(crate) fn matches(&self, byte: u8) -> bool {
        match self {
            _ if byte == 0 => false,
            Element::Byte(wanted) => byte == *wanted,
            Element::Any => true,
            Element::Set(negated, ranges) => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)) != *negated
            }
        }
    }
}

/// A pattern: parts between which any bytes may stand. One part alone is all of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    pub(crate) parts: Vec<Vec<Element>>,
}

impl Glob {
    /// # Errors
    /// A `[` without an end, or an empty set.
    pub(crate) fn new(letters: &[Letter]) -> Result<Glob, String> {
        let mut parts = vec![vec![]];
        let mut at = 0;
        while let Some(letter) = letters.get(at) {
            at += 1;
            let element = match letter.byte {
                byte if letter.quoted => Element::Byte(byte),
                b'*' => {
                    parts.push(vec![]);
                    continue;
                }
                b'?' => Element::Any,
                b'[' => set(letters, &mut at)?,
                byte => Element::Byte(byte),
            };
            parts.last_mut().expect("it begins with one").push(element);
        }
        // (`a**b` is `a*b`.)
        let last = parts.len() - 1;
        let mut index = 0;
        parts.retain(|part| {
            index += 1;
            !part.is_empty() || index == 1 || index == last + 1
        });
        Ok(Glob { parts })
    }

    /// The text that alone matches, if there is one.
    pub(crate) fn literal(&self) -> Option<Vec<u8>> {
        let [only] = self.parts.as_slice() else { return None };
        let byte = |element: &Element| match element {
            Element::Byte(byte) => Some(*byte),
            _ => None,
        };
        only.iter().map(byte).collect()
    }

    /// Bytes of the shortest text that matches.
    pub(crate) fn bytes_min(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    /// Whether all texts match.
    pub(crate) fn is_all(&self) -> bool {
        self.parts.len() == 2 && self.bytes_min() == 0
    }

    /// Whether the code for it goes through the text byte by byte.
    pub(crate) fn loops(&self) -> bool {
        self.parts.len() > 2 || self.parts.get(1).is_some_and(|last| !last.is_empty())
    }

    /// Whether a text matches. (It goes through all ways to match, and shares nothing with the code that is generated.)
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        // Where in the text what was matched so far may end.
        let mut ends = vec![false; text.len() + 1];
        ends[0] = true;
        for (index, part) in self.parts.iter().enumerate() {
            if index > 0 {
                let first = ends.iter().position(|end| *end).unwrap_or(ends.len());
                ends.iter_mut().skip(first).for_each(|end| *end = true);
            }
            for element in part {
                let next = |at: usize| at > 0 && ends[at - 1] && element.matches(text[at - 1]);
                ends = (0..=text.len()).map(next).collect();
            }
        }
        ends[text.len()]
    }
}

/// What stands behind `[`.
fn set(letters: &[Letter], at: &mut usize) -> Result<Element, String> {
    let missing = "the `]` of a set is missing; write `\\[` for the character itself";
    let plain = |at: usize, byte: u8| letters.get(at).is_some_and(|letter| !letter.quoted && letter.byte == byte);
    let negated = plain(*at, b'!') || plain(*at, b'^');
    *at += usize::from(negated);
    let begin = *at;
    let mut ranges = vec![];
    loop {
        let letter = letters.get(*at).ok_or(missing)?;
        if plain(*at, b']') && *at > begin {
            *at += 1;
            return Ok(Element::Set(negated, ranges));
        }
        let (low, mut high) = (letter.byte, letter.byte);
        *at += 1;
        if plain(*at, b'-') && !plain(*at + 1, b']') {
            high = letters.get(*at + 1).ok_or(missing)?.byte;
            *at += 2;
        }
        if low > high {
            return Err(format!("`{}-{}` is an empty range", char::from(low), char::from(high)));
        }
        ranges.push((low, high));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(text: &str) -> Glob {
        let letters: Vec<Letter> = text.bytes().map(|byte| Letter { byte, quoted: false }).collect();
        Glob::new(&letters).expect("a pattern")
    }

    #[test]
    fn patterns_match_what_a_shell_matches() {
        let cases: [(&str, &[&str], &[&str]); 9] = [
            ("/etc/*", &["/etc/", "/etc/passwd", "/etc/a/b"], &["/etc", "/et", "", "x/etc/"]),
            ("*.so", &[".so", "libc.so"], &["libc.so.6", "so", ""]),
            ("*a*b*", &["ab", "xxaxxbxx", "aab"], &["ba", "a", ""]),
            ("a?c", &["abc", "a?c"], &["ac", "abbc"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[!a-c]x", &["dx"], &["ax", "x"]),
            ("[]-]", &["]", "-"], &["a"]),
            ("", &[""], &["a"]),
            ("*", &["", "a"], &[]),
        ];
        for (pattern, matching, others) in cases {
            for text in matching {
                assert!(glob(pattern).matches(text.as_bytes()), "{pattern} {text}");
            }
            for text in others {
                assert!(!glob(pattern).matches(text.as_bytes()), "{pattern} {text}");
            }
        }
        assert!(glob("**").is_all() && glob("a**b") == glob("a*b"));
        assert!(Glob::new(&[Letter { byte: b'[', quoted: false }]).is_err());
    }
}
