//! Specifications that macros of `include/ring3/eim.h` leave in ELF files: notes, each with a piece of text.

use std::collections::BTreeSet;

use crate::binary::Elf;
use crate::source::Error;

/// The section.
pub const SECTION: &str = ".note.ring3.eim";
/// The notes' name, with its end.
const NAME: &[u8] = b"ring3\0";
/// The notes' type: text.
const TEXT: u32 = 1;

/// The specification in an ELF file, as text.
///
/// # Errors
/// The file is no ELF file, has no notes, or they are damaged.
pub fn extract(name: &str, bytes: &[u8]) -> Result<String, Error> {
    let section = Elf::parse(name, bytes)?.section(SECTION)?.ok_or_else(|| {
        let message = format!(
            "{name}: no section {SECTION}, so it does not say what extensions may touch; compile it with the macros of \
             ring3/eim.h, or write a specification file"
        );
        Error::of_file(message)
    })?;
    let damaged = || Error::of_file(format!("{name}: section {SECTION} is damaged; compile the program again"));
    let (mut rest, mut out, mut seen) = (section.as_ref(), String::new(), BTreeSet::new());
    while !rest.is_empty() {
        let (name_bytes, text_bytes, kind) = (word(rest, 0), word(rest, 4), word(rest, 8));
        let (Some(name_bytes), Some(text_bytes), Some(kind)) = (name_bytes, text_bytes, kind) else {
            return Err(damaged());
        };
        let text_at = 12 + name_bytes.next_multiple_of(4);
        let end = text_at.checked_add(text_bytes).ok_or_else(damaged)?;
        let (Some(owner), Some(text)) = (rest.get(12..12 + name_bytes), rest.get(text_at..end)) else {
            return Err(damaged());
        };
        if owner == NAME && kind == TEXT as usize {
            let text = std::str::from_utf8(text).map_err(|_| damaged())?;
            // The first line says where it was written. (A header's notes are in each file that includes it.)
            let declaration = text.split_once('\n').map_or(text, |(_, rest)| rest);
            if seen.insert(declaration.to_owned()) {
                out.push_str(&laid_out(text));
            }
        }
        rest = rest.get(end.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(out)
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
    // (Sums of two do not overflow.)
    usize::try_from(word).ok().filter(|word| *word < 1 << 31)
}

/// A note's text, one statement a line.
fn laid_out(text: &str) -> String {
    let (comment, declaration) = text.split_once('\n').unwrap_or(("", text));
    let (mut out, mut line, mut in_text, mut depth) = (String::new(), String::new(), false, 0usize);
    if !comment.is_empty() {
        out = format!("{comment}\n");
    }
    let mut flush = |line: &mut String, depth: usize| {
        if !line.trim().is_empty() {
            out.push_str(&format!("{}{}\n", "    ".repeat(depth), line.trim()));
        }
        line.clear();
    };
    for letter in declaration.chars() {
        in_text ^= letter == '"';
        match letter {
            '{' if !in_text => {
                line.push('{');
                flush(&mut line, depth);
                depth += 1;
            }
            '}' if !in_text => {
                flush(&mut line, depth);
                depth = depth.saturating_sub(1);
                line.push('}');
                flush(&mut line, depth);
            }
            ';' if !in_text => flush(&mut line, depth),
            _ => line.push(letter),
        }
    }
    flush(&mut line, depth);
    out
}
