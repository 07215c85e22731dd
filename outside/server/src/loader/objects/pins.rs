//! Names of objects, as `BPF_OBJ_PIN` gives them.
//!
//! The kernel keeps them in the BPF file system. Here they are a table, so there need not be one, and who may not
//! write to it has names as well; they last as long as the server, which does not end while there are any.
//! Folders that loaders make for them are in the table, too; those of a file system that is there count as folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ring3_uapi::Errno;
use serde_json::{Value, json};

use super::{IdKind, Object};

/// Where the BPF file system is, or would be.
const ROOT: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC`.
pub(crate) const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// The table.
#[derive(Default)]
pub(super) struct Pins {
    objects: BTreeMap<PathBuf, Object>,
    folders: BTreeSet<PathBuf>,
}

/// Whether a file that exists is in a BPF file system of the kernel's.
pub(crate) fn is_in_kernel(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == BPF_FS_MAGIC)
}

/// Dots in names are reserved there. Mirrors kernel/bpf/inode.c:bpf_lookup.
fn has_dot(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().contains(&b'.'))
}

impl Pins {
    /// Whether names at this path are the table's.
    pub(super) fn covers(path: &Path) -> bool {
        path.starts_with(ROOT) || path.ancestors().find(|path| path.exists()).is_some_and(is_in_kernel)
    }

    fn is_folder(&self, path: &Path) -> bool {
        path == Path::new(ROOT) || self.folders.contains(path) || path.is_dir()
    }

    /// Whether the table has something of this name.
    pub(super) fn knows(&self, path: &Path) -> bool {
        path == Path::new(ROOT) || self.folders.contains(path) || self.objects.contains_key(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.knows(path) || path.exists()
    }

    /// Whether a new name may be there.
    fn check_new(&self, path: &Path) -> Result<(), Errno> {
        let parent = path.parent().ok_or(Errno::EEXIST)?;
        self.check_parent(parent)?;
        if Pins::covers(path) && has_dot(path) {
            return Err(Errno::EPERM);
        }
        if self.exists(path) { Err(Errno::EEXIST) } else { Ok(()) }
    }

    fn check_parent(&self, parent: &Path) -> Result<(), Errno> {
        if self.objects.contains_key(parent) {
            return Err(Errno::ENOTDIR);
        }
        if self.is_folder(parent) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// Names an object. Mirrors kernel/bpf/inode.c:bpf_obj_do_pin.
    pub(super) fn pin(&mut self, path: PathBuf, object: Object) -> Result<(), Errno> {
        self.check_new(&path)?;
        if !Pins::covers(&path) {
            return Err(Errno::EPERM);
        }
        self.objects.insert(path, object);
        Ok(())
    }

    /// The object of this name. Mirrors kernel/bpf/inode.c:bpf_obj_do_get.
    pub(super) fn get(&self, path: &Path) -> Result<Object, Errno> {
        match self.objects.get(path) {
            Some(object) => Ok(object.clone()),
            None if self.exists(path) => Err(Errno::EACCES),
            None => {
                path.parent().map_or(Ok(()), |parent| self.check_parent(parent))?;
                Err(if Pins::covers(path) && has_dot(path) { Errno::EPERM } else { Errno::ENOENT })
            }
        }
    }

    /// Takes a name away.
    pub(super) fn unpin(&mut self, path: &Path) -> Result<Object, Errno> {
        if self.folders.contains(path) {
            return Err(Errno::EISDIR);
        }
        self.objects.remove(path).ok_or(Errno::ENOENT)
    }

    /// Makes a folder.
    pub(super) fn add_folder(&mut self, path: PathBuf) -> Result<(), Errno> {
        self.check_new(&path)?;
        self.folders.insert(path);
        Ok(())
    }

    /// Takes an empty folder away.
    pub(super) fn remove_folder(&mut self, path: &Path) -> Result<(), Errno> {
        if self.objects.contains_key(path) {
            return Err(Errno::ENOTDIR);
        }
        if !self.folders.contains(path) {
            return Err(Errno::ENOENT);
        }
        let is_in = |other: &PathBuf| other != path && other.starts_with(path);
        if self.objects.keys().any(is_in) || self.folders.iter().any(is_in) {
            return Err(Errno::ENOTEMPTY);
        }
        self.folders.remove(path);
        Ok(())
    }

    /// All objects with names.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// For `ring3 status`.
    pub(super) fn describe(&self) -> Vec<Value> {
        let kind = |kind| match kind {
            IdKind::Map => "map",
            IdKind::Program => "program",
            IdKind::Link => "link",
            IdKind::Btf | IdKind::Event => "?",
        };
        let rows = self.objects.iter().map(|(path, object)| {
            let (of, id) = object.name();
            json!({ "path": path.display().to_string(), "object": kind(of), "id": id })
        });
        rows.collect()
    }
}
