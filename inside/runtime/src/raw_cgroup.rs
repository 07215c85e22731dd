//! The running thread's cgroup of version 2, by the ids that the kernel's programs get (inodes of its file system, cgroupfs).
//!
//! A pidfd tells the cgroup's id (Linux 6.13 and later). Where it does not, and for a cgroup's ancestors, the thread walks down
//! cgroupfs, where its process has mounted that, along the path in `/proc/thread-self/cgroup`. It has up to three more descriptors
//! for a moment. What can be found out in neither way is 0, which is no cgroup's id.

use core::iter::once;

use ring3_uapi::nr;
use ring3_uapi::pidfd::{PIDFD_GET_INFO, PIDFD_INFO_CGROUPID, PIDFD_THREAD, PidfdInfo};

use crate::raw_helpers::block;
use crate::raw_identity::{ancestor_of, cgroup_of};
use crate::raw_proc::{File, Task};
use crate::raw_system::{syscall, syscall0};

/// `f_type` of cgroupfs (`CGROUP2_SUPER_MAGIC`).
const CGROUP_MAGIC: u64 = 0x6367_7270;
/// Bytes of a file's name at most, the NUL included.
const NAME_BYTES: usize = 256;
/// The inode of the root of all cgroups (fs/kernfs/dir.c:kernfs_create_root).
const ROOT_INODE: u64 = 1;
const AT_FDCWD: u64 = -100i64 as u64;
const O_PATH: u64 = 0o10_000_000;
const O_DIRECTORY: u64 = 0o200_000;
const O_CLOEXEC: u64 = 0o2_000_000;

/// `bpf_get_current_cgroup_id`
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn get_current_cgroup_id(_: u64, _: u64, _: u64, _: u64, _: u64, env: u64) -> u64 {
    // SAFETY: this function's contract.
    cgroup_of(unsafe { block(env) })
}

/// `bpf_get_current_ancestor_cgroup_id`: 0 if the cgroup has no ancestor at this level, the root being at level 0.
///
/// # Safety
/// Called by a verified program with the thread block that it was given.
pub unsafe extern "sysv64" fn get_current_ancestor_cgroup_id(
    level: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    env: u64,
) -> u64 {
    let Ok(level) = u32::try_from(level as i32) else { return 0 };
    // SAFETY: this function's contract.
    ancestor_of(unsafe { block(env) }, level)
}

/// The id of the running thread's cgroup; 0: it is not known.
pub(crate) fn cgroup_id() -> u64 {
    id_by_pidfd().or_else(|| walk(None)).unwrap_or(0)
}

/// The id of the ancestor of the running thread's cgroup at a level; 0: there is none, or it is not known.
pub(crate) fn ancestor_id(level: u32) -> u64 {
    walk(Some(level)).unwrap_or(0)
}

/// Mirrors fs/pidfs.c:pidfd_info.
fn id_by_pidfd() -> Option<u64> {
    let tid = syscall0(nr::GETTID) as u64;
    // SAFETY: takes numbers.
    let pidfd = File::of(unsafe { syscall(nr::PIDFD_OPEN, [tid, PIDFD_THREAD, 0, 0, 0, 0]) })?;
    let mut info = PidfdInfo { mask: PIDFD_INFO_CGROUPID, ..PidfdInfo::default() };
    let at = &raw mut info as u64;
    // SAFETY: of a pidfd, the kernel reads and writes a `struct pidfd_info`. (Of what another thread has opened under this number
    // meanwhile, this is no request.)
    let result = unsafe { syscall(nr::IOCTL, [pidfd.descriptor(), PIDFD_GET_INFO, at, 0, 0, 0]) };
    (result == 0 && info.mask & PIDFD_INFO_CGROUPID != 0).then_some(info.cgroupid)
}

/// Walks from the root of the mounted cgroupfs to the running thread's cgroup, or to its ancestor at a level: its inode.
fn walk(level: Option<u32>) -> Option<u64> {
    /// What the line of the hierarchy of version 2 begins with.
    const UNIFIED: &[u8] = b"0::";
    let task = Task::running();
    let mounts = task.file(b"mountinfo")?;
    let mut mount = mounts.bytes_from(line_with(&mounts, b" - cgroup2 ")?);
    let cgroups = task.file(b"cgroup")?;
    let mut path =
        cgroups.bytes_from(line_with(&cgroups, UNIFIED)?).skip(UNIFIED.len()).take_while(|byte| *byte != b'\n');
    // (Id, parent and device come before the mount's root in its file system.)
    for _ in 0..3 {
        mount.find(|byte| *byte == b' ')?;
    }
    let mut root_bytes = 0;
    for byte in unescaped(&mut mount) {
        root_bytes += 1;
        // (The whole file system's root is `/`, with which all paths begin.)
        if path.next()? != byte {
            return None;
        }
    }
    let mut directory = Directory::root()?;
    directory.descend(unescaped(&mut mount), None)?;
    if !directory.0.is_of(CGROUP_MAGIC) {
        return None;
    }
    if root_bytes > 1 && path.next().is_some_and(|byte| byte != b'/') {
        return None;
    }
    if level.is_some() && directory.0.inode()? != ROOT_INODE {
        return None;
    }
    directory.descend(path, level)?;
    directory.0.inode()
}

/// A directory that is being walked from.
struct Directory(File);

impl Directory {
    fn root() -> Option<Directory> {
        Directory::open(AT_FDCWD, c"/".as_ptr() as u64)
    }

    fn open(from: u64, name: u64) -> Option<Directory> {
        // SAFETY: the caller's `name` is the address of a string.
        File::of(unsafe { syscall(nr::OPENAT, [from, name, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0, 0]) })
            .map(Directory)
    }

    /// Goes down along a path, at most `steps` directories. `None` if one is not there, if the path goes up, or if it has fewer
    /// directories than that.
    fn descend(&mut self, path: impl Iterator<Item = u8>, steps: Option<u32>) -> Option<()> {
        let (mut name, mut used, mut taken) = ([0u8; NAME_BYTES], 0, 0);
        for byte in path.chain(once(b'/')) {
            if steps == Some(taken) {
                return Some(());
            }
            if byte != b'/' {
                *name.get_mut(..NAME_BYTES - 1)?.get_mut(used)? = byte;
                used += 1;
                continue;
            }
            if used == 0 {
                continue;
            }
            if name.starts_with(b"..\0") {
                return None;
            }
            *self = Directory::open(self.0.descriptor(), name.as_ptr() as u64)?;
            (name, used, taken) = ([0; NAME_BYTES], 0, taken + 1);
        }
        steps.is_none_or(|steps| steps == taken).then_some(())
    }
}

/// Where the first line begins that has a text.
fn line_with(file: &File, text: &[u8]) -> Option<u64> {
    let (mut line, mut at, mut matched) = (0, 0, 0);
    for byte in file.bytes() {
        at += 1;
        // (No beginning of the text is in it once more, but for its first byte.)
        matched = match text.get(matched) {
            Some(wanted) if *wanted == byte => matched + 1,
            _ => usize::from(text.first() == Some(&byte)),
        };
        if matched == text.len() {
            return Some(line);
        }
        if byte == b'\n' {
            (line, matched) = (at, 0);
        }
    }
    None
}

/// The bytes up to the next space, in which `\ooo` stands for a byte.
fn unescaped(bytes: &mut impl Iterator<Item = u8>) -> impl Iterator<Item = u8> {
    core::iter::from_fn(move || match bytes.next()? {
        b' ' => None,
        b'\\' => {
            let mut digit = || bytes.next().map(|digit| digit.wrapping_sub(b'0') & 7);
            Some(digit()? << 6 | digit()? << 3 | digit()?)
        }
        byte => Some(byte),
    })
}
