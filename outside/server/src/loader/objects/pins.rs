//! Names of objects, as `BPF_OBJ_PIN` gives them.
//!
//! The kernel keeps names in the BPF file system. Here they are a table. So no such file system is needed, and users who may not
//! write to one have names, too. Names last as long as the server, which does not end while there are any. Directories that
//! loaders make for names are in the table, too; directories of an existing file system count as directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring3_uapi::Errno;
use serde_json::{Value, json};

use super::{IdKind, Object};
use crate::rights::Rights;

/// Where the BPF file system is, or would be.
const ROOT: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC`.
pub(crate) const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// The table.
#[derive(Default)]
pub(super) struct Pins {
    objects: BTreeMap<PathBuf, Pin>,
    /// With whose they are.
    directories: BTreeMap<PathBuf, u32>,
}

/// A name of an object: as a file of its user's that nobody else may read or write (kernel/bpf/inode.c:bpf_mkprog).
struct Pin {
    object: Object,
    owner: u32,
}

/// The files that a loader sees, which may have a root and a mount namespace of its own, and what it may do with them.
pub struct Files {
    root: PathBuf,
    rights: Arc<Rights>,
}

impl Files {
    /// Those of a thread with these rights.
    pub fn of(tid: u32, rights: Arc<Rights>) -> Files {
        Files { root: format!("/proc/{tid}/root").into(), rights }
    }

    /// Where the server finds what the loader calls `path`.
    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether there is a file.
    pub fn has(&self, path: &Path) -> bool {
        self.at(path).exists()
    }

    /// Whether there is a directory.
    pub fn has_directory(&self, path: &Path) -> bool {
        self.at(path).is_dir()
    }

    /// Whether a file that exists is in a BPF file system of the kernel's.
    pub fn is_in_kernel(&self, path: &Path) -> bool {
        rustix::fs::statfs(self.at(path)).is_ok_and(|stat| stat.f_type == BPF_FS_MAGIC)
    }

    /// Whether it may be written.
    pub fn is_writable(&self, path: &Path) -> bool {
        rustix::fs::access(self.at(path), rustix::fs::Access::WRITE_OK).is_ok()
    }

    /// Whether names at this path are the table's.
    pub fn covers(&self, path: &Path) -> bool {
        path.starts_with(ROOT) || path.ancestors().find(|path| self.has(path)).is_some_and(|at| self.is_in_kernel(at))
    }
}

/// Dots in names are reserved there. Mirrors kernel/bpf/inode.c:bpf_lookup.
fn has_dot(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().contains(&b'.'))
}

impl Pins {
    fn is_directory(&self, files: &Files, path: &Path) -> bool {
        path == Path::new(ROOT) || self.directories.contains_key(path) || files.has_directory(path)
    }

    /// Whether the table has something of this name.
    pub(super) fn knows(&self, path: &Path) -> bool {
        path == Path::new(ROOT) || self.directories.contains_key(path) || self.objects.contains_key(path)
    }

    fn exists(&self, files: &Files, path: &Path) -> bool {
        self.knows(path) || files.has(path)
    }

    /// Whether a new name may be there.
    fn check_new(&self, files: &Files, path: &Path) -> Result<(), Errno> {
        let parent = path.parent().ok_or(Errno::EEXIST)?;
        self.check_parent(files, parent)?;
        if files.covers(path) && has_dot(path) {
            return Err(Errno::EPERM);
        }
        if self.exists(files, path) { Err(Errno::EEXIST) } else { self.check_writable(files, parent) }
    }

    /// Whether names may be added to a directory of the table: its mode is 0755. A kernel's directory that is nobody's
    /// here is sticky.
    fn check_writable(&self, files: &Files, parent: &Path) -> Result<(), Errno> {
        let owner = self.directories.get(parent);
        if owner.is_none_or(|owner| files.rights.may_open_of(*owner)) { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn check_parent(&self, files: &Files, parent: &Path) -> Result<(), Errno> {
        if self.objects.contains_key(parent) {
            return Err(Errno::ENOTDIR);
        }
        if self.is_directory(files, parent) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// Names an object. Mirrors kernel/bpf/inode.c:bpf_obj_do_pin.
    pub(super) fn pin(&mut self, files: &Files, path: PathBuf, object: Object) -> Result<(), Errno> {
        self.check_new(files, &path)?;
        if !files.covers(&path) {
            return Err(Errno::EPERM);
        }
        let owner = files.rights.file_uid();
        self.objects.insert(path, Pin { object, owner });
        Ok(())
    }

    /// The object of this name. Mirrors kernel/bpf/inode.c:bpf_obj_do_get.
    pub(super) fn get(&self, files: &Files, path: &Path) -> Result<Object, Errno> {
        match self.objects.get(path) {
            Some(pin) if files.rights.may_open_of(pin.owner) => Ok(pin.object.clone()),
            Some(_) => Err(Errno::EACCES),
            None if self.exists(files, path) => Err(Errno::EACCES),
            None => {
                path.parent().map_or(Ok(()), |parent| self.check_parent(files, parent))?;
                Err(if files.covers(path) && has_dot(path) { Errno::EPERM } else { Errno::ENOENT })
            }
        }
    }

    /// Takes a name away, with these rights.
    pub(super) fn unpin(&mut self, rights: &Rights, path: &Path) -> Result<Object, Errno> {
        if self.directories.contains_key(path) {
            return Err(Errno::EISDIR);
        }
        if !rights.may_remove_of(self.objects.get(path).ok_or(Errno::ENOENT)?.owner) {
            return Err(Errno::EPERM);
        }
        self.objects.remove(path).map(|pin| pin.object).ok_or(Errno::ENOENT)
    }

    /// Makes a directory.
    pub(super) fn add_directory(&mut self, files: &Files, path: PathBuf) -> Result<(), Errno> {
        self.check_new(files, &path)?;
        self.directories.insert(path, files.rights.file_uid());
        Ok(())
    }

    /// Takes an empty directory away.
    pub(super) fn remove_directory(&mut self, rights: &Rights, path: &Path) -> Result<(), Errno> {
        if self.objects.contains_key(path) {
            return Err(Errno::ENOTDIR);
        }
        if !rights.may_remove_of(*self.directories.get(path).ok_or(Errno::ENOENT)?) {
            return Err(Errno::EPERM);
        }
        let is_in = |other: &PathBuf| other != path && other.starts_with(path);
        if self.objects.keys().any(is_in) || self.directories.keys().any(is_in) {
            return Err(Errno::ENOTEMPTY);
        }
        self.directories.remove(path);
        Ok(())
    }

    /// All objects with names.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values().map(|pin| &pin.object)
    }

    /// For `ring3 status`.
    pub(super) fn describe(&self) -> Vec<Value> {
        let kind = |kind| match kind {
            IdKind::Map => "map",
            IdKind::Program => "program",
            IdKind::Link => "link",
            IdKind::Btf | IdKind::Event | IdKind::Stats => "?",
        };
        let rows = self.objects.iter().map(|(path, pin)| {
            let (of, id) = pin.object.name();
            json!({ "path": path.display().to_string(), "object": kind(of), "id": id })
        });
        rows.collect()
    }
}
