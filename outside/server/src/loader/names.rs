//! `BPF_OBJ_PIN` and `BPF_OBJ_GET`, and the calls by which loaders inspect and tidy the BPF file system: statfs, mkdir, rmdir,
//! unlink.

use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use ring3_uapi::Errno;
use ring3_uapi::attr::obj;
use ring3_uapi::flags::{BPF_F_PATH_FD, BPF_F_RDONLY, BPF_F_WRONLY};

use super::attr::Attr;
use super::objects::pins::{BPF_FS_MAGIC, Files};
use super::objects::{Access, Object};
use super::{Caller, Outcome, Reply, refuse, virtual_files};

/// `PATH_MAX`, `NAME_MAX`.
const PATH_BYTES_MAX: usize = 4096;
const NAME_BYTES_MAX: u64 = 255;

/// The files that the loader sees.
fn files_of(caller: &Caller<'_>) -> Result<Files, Errno> {
    Ok(Files::of(caller.call.tid, caller.rights()?))
}

/// A path as the loader means it, from the root, without `.` and `..`. Symbolic links are not followed.
pub(super) fn path_of(caller: &Caller<'_>, directory: i32, address: u64) -> Result<PathBuf, Errno> {
    let given = caller.read_string(address, PATH_BYTES_MAX)?;
    if given.is_empty() {
        return Err(Errno::ENOENT);
    }
    let from = match directory {
        _ if given.starts_with('/') => None,
        libc::AT_FDCWD => Some(format!("/proc/{}/cwd", caller.call.tid)),
        fd => Some(format!("/proc/{}/fd/{fd}", caller.call.tid)),
    };
    let mut path = from.and_then(|from| std::fs::read_link(from).ok()).unwrap_or_else(|| PathBuf::from("/"));
    for part in Path::new(&given).components() {
        match part {
            Component::RootDir | Component::Prefix(_) | Component::CurDir => {}
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
        }
    }
    Ok(path)
}

/// The path that `BPF_OBJ_*` names, from `path_fd` on if that is given.
fn path_in(caller: &Caller<'_>, attr: &Attr) -> Result<PathBuf, Errno> {
    let flags = attr.u32(obj::FILE_FLAGS.at);
    let directory = if flags & BPF_F_PATH_FD != 0 { attr.i32(obj::PATH_FD.at) } else { libc::AT_FDCWD };
    path_of(caller, directory, attr.u64(obj::PATHNAME.at))
}

/// Flags beyond `known` are refused, and a directory without the flag for it. Mirrors kernel/bpf/syscall.c:bpf_obj_pin.
fn check_flags(attr: &Attr, known: u32) -> Result<u32, Errno> {
    let flags = attr.u32(obj::FILE_FLAGS.at);
    if flags & !(known | BPF_F_PATH_FD) != 0 || flags & BPF_F_PATH_FD == 0 && attr.u32(obj::PATH_FD.at) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(flags)
}

/// Mirrors kernel/bpf/inode.c:bpf_obj_pin_user.
pub(super) fn pin(caller: &Caller<'_>, attr: &Attr) -> Reply {
    check_flags(attr, 0)?;
    let object = match caller.object(attr.i32(obj::BPF_FD.at)) {
        Ok(Some(object @ (Object::Map(_) | Object::Program(_) | Object::Link(_)))) => object,
        _ => return Err(Errno::EINVAL),
    };
    caller.subsystem().pin(&files_of(caller)?, path_in(caller, attr)?, object)?;
    Ok(Outcome::Value(0))
}

/// Mirrors kernel/bpf/inode.c:bpf_obj_get_user.
pub(super) fn get(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let flags = check_flags(attr, BPF_F_RDONLY | BPF_F_WRONLY)?;
    if attr.u32(obj::BPF_FD.at) != 0 {
        return Err(Errno::EINVAL);
    }
    let access = Access::from_flags(flags)?;
    let path = path_in(caller, attr)?;
    let files = files_of(caller)?;
    let object = caller.subsystem().pinned(&files, &path).map_err(|errno| match errno {
        Errno::EACCES if files.is_in_kernel(&path) && !files.has_directory(&path) => {
            refuse(errno, format_args!("{} is an object of the kernel's", path.display()))
        }
        errno => errno,
    })?;
    let fd = match &object {
        Object::Map(map) => caller.open_memfd(object.clone(), map.memfd().as_fd(), access)?,
        Object::Link(_) if access != Access::BOTH => return Err(Errno::EINVAL),
        _ => caller.open_pipe(object)?,
    };
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

/// statfs(2) of what only ring3 has: as the kernel answers in such a file system (fs/libfs.c:simple_statfs).
pub(super) fn statfs(caller: &Caller<'_>) -> Reply {
    let path = path_of(caller, libc::AT_FDCWD, caller.arg(0))?;
    let magic = match caller.subsystem().has_name(&path) {
        _ if virtual_files::is_in_tracefs(caller, &path) => virtual_files::TRACEFS_MAGIC,
        true if !files_of(caller)?.is_in_kernel(&path) => BPF_FS_MAGIC as u64,
        _ => return Ok(Outcome::Continue),
    };
    let mut words = [0u64; 15];
    (words[0], words[1]) = (magic, ring3_layout::PAGE_BYTES);
    (words[8], words[9]) = (NAME_BYTES_MAX, ring3_layout::PAGE_BYTES);
    caller.write(caller.arg(1), words.map(u64::to_le_bytes).as_flattened())?;
    Ok(Outcome::Value(0))
}

/// mkdir(2) where the kernel has no BPF file system, or none that the loader may write.
pub(super) fn mkdir(caller: &Caller<'_>, directory: i32, address: u64) -> Reply {
    let path = path_of(caller, directory, address)?;
    let files = files_of(caller)?;
    let writable = |path: &Path| files.is_in_kernel(path) && files.is_writable(path);
    if !files.covers(&path) || files.has(&path) || path.parent().is_some_and(writable) {
        return Ok(Outcome::Continue);
    }
    caller.subsystem().add_directory(&files, path)?;
    Ok(Outcome::Value(0))
}

/// unlink(2) of a name, rmdir(2) of a directory.
pub(super) fn remove(caller: &Caller<'_>, directory: i32, address: u64, is_directory: bool) -> Reply {
    let path = path_of(caller, directory, address)?;
    if !caller.subsystem().has_name(&path) || files_of(caller)?.has(&path) {
        return Ok(Outcome::Continue);
    }
    if is_directory {
        caller.subsystem().remove_directory(&*caller.rights()?, &path)?;
    } else {
        caller.subsystem().unpin(&*caller.rights()?, &path)?;
    }
    Ok(Outcome::Value(0))
}
