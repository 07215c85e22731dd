//! Which file a mapping of a process is of.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use ring3_inject as inject;

use super::modules::FileKey;

/// A path by which the server can open a mapping's file; `None` if that is gone. `/proc/PID/maps` names files as who reads it
/// would, if its root leads there (as to those of a process that has called `chroot`), else from the root of their mount
/// namespace, which is the process's own but for one that has called `chroot` there. (The device is not looked at: stacked
/// file systems show another one in `maps`.)
pub(in crate::realm) fn file_of(pid: u32, mapping: &inject::Mapping) -> Option<PathBuf> {
    located(pid, mapping).map(|(path, _)| path)
}

fn located(pid: u32, mapping: &inject::Mapping) -> Option<(PathBuf, Metadata)> {
    let at = |path: PathBuf| path.metadata().ok().filter(|meta| meta.ino() == mapping.inode).map(|meta| (path, meta));
    [inside(pid, mapping), PathBuf::from(&mapping.path)].into_iter().find_map(at)
}

/// As `file_of`, or what has the name now: stacked file systems may show another inode in `maps`, too. What is written to a
/// process is compared with what is there.
pub(in crate::realm) fn likely_file_of(pid: u32, mapping: &inject::Mapping) -> Option<PathBuf> {
    likely_located(pid, mapping).map(|(path, _)| path)
}

fn likely_located(pid: u32, mapping: &inject::Mapping) -> Option<(PathBuf, Metadata)> {
    located(pid, mapping).or_else(|| {
        let path = inside(pid, mapping);
        path.metadata().ok().map(|meta| (path, meta))
    })
}

/// The path of [`likely_file_of`], and what it leads to; `None` also if that is no regular file.
pub(in crate::realm) fn likely_key_of(pid: u32, mapping: &inject::Mapping) -> Option<(PathBuf, FileKey)> {
    let (path, meta) = likely_located(pid, mapping)?;
    let key = FileKey::of(&meta, &path).ok()?;
    Some((path, key))
}

/// The mapping's name, below the process's root.
fn inside(pid: u32, mapping: &inject::Mapping) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root{}", mapping.path))
}
