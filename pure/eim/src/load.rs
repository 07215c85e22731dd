//! A policy, with the specifications that it uses.

use crate::model::Specification;
use crate::parse::{parse, repeated};
use crate::source::Error;

/// Files that use one another, at most.
const FILES_MAX: usize = 64;

/// Reads a text and what it uses (`use "FILE"`; relative to the file that says so).
///
/// `read` gives the text of a file, or says why it cannot be read. `ring3` gives for an ELF file the text that
/// [`crate::extract`] finds in it.
///
/// # Errors
/// All that is wrong with the texts.
pub fn load(
    name: &str,
    text: &str,
    read: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Specification, Vec<Error>> {
    let mut all = parse(name, text)?;
    let (mut seen, mut next) = (vec![name.to_owned()], 0);
    while let Some(used) = all.uses.get(next).cloned() {
        next += 1;
        let directory = used.span.source.name.rsplit_once('/').map(|(directory, _)| directory);
        let path = match directory {
            Some(directory) if !used.text.starts_with('/') => format!("{directory}/{}", used.text),
            _ => used.text.clone(),
        };
        if seen.contains(&path) {
            continue;
        }
        if seen.len() == FILES_MAX {
            return Err(vec![Error::at(&used.span, format!("more than {FILES_MAX} files are used; name fewer"))]);
        }
        let text = read(&path).map_err(|why| vec![Error::at(&used.span, why)])?;
        all.add(parse(&path, &text)?);
        seen.push(path);
    }
    let errors = repeated(&all);
    if errors.is_empty() { Ok(all) } else { Err(errors) }
}
