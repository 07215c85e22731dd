//! Programs and libraries by their names, as bpftrace takes them: `bash`, `libc`, `libc.so.6`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where the dynamic linker's list is (ld.so(8)), and how the part of it begins that is read here.
const CACHE: &str = "/etc/ld.so.cache";
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Bytes of the header, and of an entry: flags, name, path (u32 each), and what is not read here.
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
/// What flags say of a library for x86-64 (`FLAG_ELF_LIBC6 | FLAG_X8664_LIB64`).
const FLAGS_MASK: u32 = 0xffff;
const FLAGS: u32 = 0x0303;

/// The file of a program in `PATH`, or of a library: `libc`, `c` and `libc.so.6` are the same.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let path = program(name).or_else(|| library(name, &std::fs::read(CACHE).ok()?))?;
    std::fs::canonicalize(path).ok()
}

/// A program in `PATH`, as `execvp` would find it.
pub fn program(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    std::env::split_paths(&search).map(|directory| directory.join(name)).find(|path| is_executable(path))
}

/// Whether a file can be executed, by its kind and its permissions.
pub fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The first library that the linker would take.
fn library(name: &str, cache: &[u8]) -> Option<PathBuf> {
    let is_it =
        |known: &str| known == name || [name, &format!("lib{name}")].iter().any(|stem| is_version(known, stem));
    libraries(cache).find(|(known, path)| is_it(known) && Path::new(path).exists()).map(|(_, path)| path.into())
}

/// Whether a library's name is this one with `.so` and a version behind it.
fn is_version(known: &str, stem: &str) -> bool {
    let rest = known.strip_prefix(stem).and_then(|rest| rest.strip_prefix(".so"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Names and paths of the list's libraries.
fn libraries(cache: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    // (Older lists have another part before this one.)
    let begin = cache.windows(MAGIC.len()).position(|bytes| bytes == MAGIC).unwrap_or(cache.len());
    let list = &cache[begin..];
    let word = move |at: usize| Some(u32::from_le_bytes(list.get(at..at + 4)?.try_into().ok()?));
    let text = move |at: u32| {
        let bytes = list.get(at as usize..)?.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(bytes).ok()
    };
    let count = word(MAGIC.len()).unwrap_or(0) as usize;
    (0..count)
        .map_while(move |index| {
            let at = HEADER_BYTES + index * ENTRY_BYTES;
            Some((word(at)?, word(at + 4)?, word(at + 8)?))
        })
        .filter(|(flags, ..)| flags & FLAGS_MASK == FLAGS)
        .filter_map(move |(_, name, path)| Some((text(name)?, text(path)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list with these libraries, behind something else.
    fn list(entries: &[(&str, &str, u32)]) -> Vec<u8> {
        let (mut head, mut texts) = (MAGIC.to_vec(), vec![]);
        head.extend((entries.len() as u32).to_le_bytes());
        head.resize(HEADER_BYTES, 0);
        let texts_at = HEADER_BYTES + entries.len() * ENTRY_BYTES;
        for (name, path, flags) in entries {
            head.extend(flags.to_le_bytes());
            for text in [name, path] {
                head.extend(((texts_at + texts.len()) as u32).to_le_bytes());
                texts.extend(text.bytes().chain([0]));
            }
            head.extend([0; 12]);
        }
        [b"ld.so-1.7.0\0".as_slice(), &head, &texts].concat()
    }

    #[test]
    fn a_library_is_found_by_its_name_with_or_without_lib_and_version() {
        let cache = list(&[
            ("libc.so.6", "/proc/32", 0x3),
            ("libcap.so.2", "/proc/1", FLAGS),
            ("libc.so.6", "/proc/self", FLAGS),
            ("libgone.so", "/nonexistent", FLAGS),
        ]);
        for name in ["libc", "c", "libc.so.6"] {
            assert_eq!(library(name, &cache), Some("/proc/self".into()), "{name}");
        }
        for name in ["lib", "libc.so.5", "libgone", "ap", "so"] {
            assert_eq!(library(name, &cache), None, "{name}");
        }
        for length in 0..cache.len() {
            let _ = libraries(&cache[..length]).count();
        }
    }
}
