//! Which file is which, also through overlay file systems.
//!
//! A file of an overlay (a container's root) has a device of its own there, though its code may be that of a file that other overlays
//! have as a layer, too; a uprobe of the kernel's is in all of them (`kernel/events/uprobes.c` takes the inode of `file_inode`). The
//! kernel names the file below: an overlay's file handle contains that of the layer's file (`fs/overlayfs/export.c:ovl_encode_fh`).
//! Since Linux 6.6 it gives such a handle (`AT_HANDLE_FID`) for every overlay but those that were mounted in a user namespace. For those,
//! the file below is looked for (`layers.rs`).

use std::ffi::CString;
use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::layers;

/// `AT_HANDLE_FID` (linux/fcntl.h).
const HANDLE_FID: i32 = 0x200;
/// `MAX_HANDLE_SZ`.
const HANDLE_BYTES_MAX: usize = 128;
/// `OVERLAYFS_SUPER_MAGIC` (linux/magic.h).
const OVERLAY_MAGIC: i64 = 0x794c_7630;
/// `OVL_FILEID_V1` (fs/overlayfs/overlayfs.h).
const OVERLAY_TYPE: i32 = 0xf8;
/// In an overlay's handle, `struct ovl_fh`: where the length stands of what is behind it (with 3 bytes of padding before), the type of the
/// layer's handle, and that handle.
const OVERLAY_LENGTH_AT: usize = 5;
const OVERLAY_PADDING: usize = 3;
const OVERLAY_INNER_TYPE_AT: usize = 7;
const OVERLAY_INNER_AT: usize = 24;

/// A file as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub dev: u64,
    /// Its number there.
    pub inode: u64,
    /// Of the handle of the file, or of the one in a layer that it is; `None`: unknown.
    real: Option<u64>,
}

/// `struct file_handle`, with room.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

fn handle_of(path: &CString, flags: i32) -> Option<Handle> {
    let mut handle = Handle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
    let mut mount = 0i32;
    let flags = flags | libc::AT_SYMLINK_FOLLOW;
    let call = libc::SYS_name_to_handle_at;
    // SAFETY: name_to_handle_at(2) wants a string that ends with 0, a `struct file_handle` with room for as many bytes as it says, and room for an int.
    let result =
        unsafe { libc::syscall(call, libc::AT_FDCWD, path.as_ptr(), &raw mut handle, &raw mut mount, flags) };
    (result == 0).then_some(handle)
}

/// A number for the file that a path leads to, of which this is known; the same through each overlay that has it as a layer's.
fn real(path: &Path, meta: &Metadata) -> Option<u64> {
    let handle_at = |path: &Path| {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        handle_of(&path, 0).or_else(|| handle_of(&path, HANDLE_FID))
    };
    let is_in_overlay = rustix::fs::statfs(path).is_ok_and(|system| system.f_type == OVERLAY_MAGIC);
    let found = match handle_at(path) {
        // (A number in the overlay.)
        found if is_in_overlay && found.as_ref().is_none_or(|found| found.kind != OVERLAY_TYPE) => {
            handle_at(&layers::file_in_layer(path, meta)?)?
        }
        found => found?,
    };
    let handle = found.handle.get(..found.bytes as usize)?;
    let (kind, handle) = match found.kind {
        OVERLAY_TYPE => {
            let end = OVERLAY_PADDING + usize::from(*handle.get(OVERLAY_LENGTH_AT)?);
            (i32::from(handle[OVERLAY_INNER_TYPE_AT]), handle.get(OVERLAY_INNER_AT..end)?)
        }
        kind => (kind, handle),
    };
    let mut hasher = DefaultHasher::new();
    (kind, handle).hash(&mut hasher);
    Some(hasher.finish())
}

impl FileId {
    /// Of the file that a path leads to, of which this is known.
    pub fn of(path: &Path, meta: &Metadata) -> FileId {
        FileId { dev: meta.dev(), inode: meta.ino(), real: real(path, meta) }
    }

    /// Whether the file that a path leads to has the same code, as it is the same one, or in another overlay the same layer's.
    pub(in crate::realm) fn is_at(&self, path: &Path) -> bool {
        path.metadata().is_ok_and(|meta| {
            (meta.dev(), meta.ino()) == (self.dev, self.inode)
                || self.real.is_some() && self.real == real(path, &meta)
        })
    }
}
