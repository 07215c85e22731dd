//! Memory of memfds that the server shares with its targets.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use ring3_layout::PAGE_BYTES;
use ring3_layout::realm::Realm as RealmBlock;
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A writable mapping of a whole memfd, or file; it stays open for sending it to targets.
#[derive(Debug)]
pub(in crate::realm) struct SharedFile {
    file: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    path: Option<std::path::PathBuf>,
}

// SAFETY: the mapping belongs to this value alone; all access goes through methods that say how
// concurrent writers are excluded (atomics, or the realm's single writer).
unsafe impl Send for SharedFile {}
// SAFETY: as for Send.
unsafe impl Sync for SharedFile {}

impl SharedFile {
    /// Makes a memfd of `bytes` bytes named `name` (seen in `/proc/PID/maps`) and maps it. After this
    /// mapping nobody can make another writable one if `sealed` is set.
    pub(crate) fn new(name: &str, bytes: u64, sealed: bool) -> Result<SharedFile, Errno> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes)?;
        let length = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        // SAFETY: mmap wants no existing object at the address; a null hint lets the kernel choose.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let shared = SharedFile { file, base, bytes: length, path: None };
        // Targets get the descriptor: a seal of theirs would keep others from mapping the file.
        let mut seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        if sealed {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&shared.file, seals)?;
        Ok(shared)
    }

    /// The same as a file that others find by its path, of which targets get a descriptor that cannot write. A stale one
    /// of that name is replaced; no path is followed or shared. It stays until [`SharedFile::unlink`].
    pub(crate) fn with_path(path: &std::path::Path, bytes: u64) -> Result<SharedFile, Errno> {
        use rustix::fs::{Mode, OFlags, open};
        let _ = rustix::fs::unlink(path);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let writable = open(path, flags, Mode::RUSR | Mode::WUSR)?;
        let made = (|| {
            rustix::fs::ftruncate(&writable, bytes)?;
            let file = open(path, OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let length = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
            let map = |access, fd: &OwnedFd| {
                // SAFETY: mmap wants no existing object at the address; a null hint lets the kernel choose.
                unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, fd, 0) }
            };
            let code = map(ProtFlags::READ | ProtFlags::EXEC, &file)?;
            // SAFETY: the mapping was made just now, and nobody knows of it.
            unsafe { rustix::mm::munmap(code, length)? };
            let base = map(ProtFlags::READ | ProtFlags::WRITE, &writable)?;
            let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
            Ok(SharedFile { file, base, bytes: length, path: Some(path.to_owned()) })
        })();
        made.inspect_err(|_| {
            let _ = rustix::fs::unlink(path);
        })
    }

    /// Takes the path away, if there is one.
    pub(crate) fn unlink(&self) {
        if let Some(path) = &self.path {
            let _ = rustix::fs::unlink(path);
        }
    }

    /// Whether others find it by a path.
    pub(crate) fn has_path(&self) -> bool {
        self.path.is_some()
    }

    /// The file.
    pub(crate) fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies `bytes` to `offset`. Panics if they do not fit: offsets come from the layout.
    pub(crate) fn write_bytes(&self, offset: u64, bytes: &[u8]) {
        let offset = self.check(offset, bytes.len());
        // SAFETY: copy_nonoverlapping wants valid, disjoint ranges: `check` proved that the
        // destination lies in the mapping, which no Rust slice ever covers.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().wrapping_add(offset), bytes.len()) }
    }

    /// Copies `bytes` bytes from `offset`. Panics if they do not lie in the file.
    pub(crate) fn read_bytes(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let offset = self.check(offset, bytes);
        let mut out = vec![0; bytes];
        // SAFETY: `check` proved that the source lies in the mapping; the vector is as large and ours.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().wrapping_add(offset), out.as_mut_ptr(), bytes) };
        out
    }

    /// Writes a plain value at `offset`.
    pub(crate) fn write<T: Copy>(&self, offset: u64, value: T) {
        let offset = self.check(offset, size_of::<T>());
        // SAFETY: write_unaligned wants a valid destination of the size of T: `check` proved it.
        unsafe { self.base.as_ptr().wrapping_add(offset).cast::<T>().write_unaligned(value) }
    }

    /// A reference to a value that consists of atomics (or is written by this process alone) at `offset`.
    ///
    /// # Safety
    /// `T` is valid for any bytes, and whatever others write in it concurrently is atomic.
    unsafe fn at<T>(&self, offset: u64) -> &T {
        let offset = self.check(offset, size_of::<T>());
        // SAFETY: `check` proved that the address is inside the mapping; mappings are page-aligned.
        let pointer = unsafe { self.base.as_ptr().add(offset).cast::<T>() };
        assert!(pointer.is_aligned(), "unaligned layout offset {offset:#x}");
        // SAFETY: the pointer is aligned and inside a mapping that lives as long as self; the
        // caller vouches for the type.
        unsafe { &*pointer }
    }

    /// The whole as the realm block. The file was made with `REALM_BYTES`.
    pub(crate) fn realm(&self) -> &RealmBlock {
        // SAFETY: RealmBlock is made of atomics only.
        unsafe { self.at(0) }
    }

    /// A 32-bit atomic word at `offset`.
    pub(in crate::realm) fn word32(&self, offset: u64) -> &std::sync::atomic::AtomicU32 {
        // SAFETY: atomics are valid for any bytes and shared by design.
        unsafe { self.at(offset) }
    }

    /// An atomic word at `offset`.
    pub(crate) fn word(&self, offset: u64) -> &std::sync::atomic::AtomicU64 {
        // SAFETY: atomics are valid for any bytes and shared by design.
        unsafe { self.at(offset) }
    }

    /// Copies all of `other`, a file of the same size; torn where others write at the same time. Pages that were
    /// never written stay so, here and there: reading one would allocate it.
    pub(crate) fn copy_from(&self, other: &SharedFile) {
        let (mut buffer, mut at) = ([0u8; PAGE_BYTES as usize], 0);
        while let Ok(start) = rustix::fs::seek(&other.file, SeekFrom::Data(at)) {
            at = start + PAGE_BYTES;
            let offset = other.check(start, buffer.len());
            let from = other.base.as_ptr().wrapping_add(offset);
            // SAFETY: `check` proved a page at `offset`; the buffer is a page and ours.
            unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) };
            self.write_bytes(start, &buffer);
        }
    }

    fn check(&self, offset: u64, bytes: usize) -> usize {
        let start = usize::try_from(offset).expect("offset fits");
        assert!(start.checked_add(bytes).is_some_and(|end| end <= self.bytes), "offset {offset:#x} outside the file");
        start
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // SAFETY: munmap wants a mapping that nobody uses any more: it was made by `new`, and all
        // references into it borrow self.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Sleeps until the word differs from `expected`; also wakes spuriously. False: `timeout` has passed.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, expected: u32, timeout: Duration) -> bool {
    let timeout = rustix::thread::futex::Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let waited = rustix::thread::futex::wait(word, rustix::thread::futex::Flags::empty(), expected, Some(&timeout));
    waited != Err(Errno::TIMEDOUT)
}

/// Wakes everyone who sleeps on the word, in any process.
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
}

/// Makes a system call on the memory of a process: by another thread's id if the first one has ended.
fn by_a_thread(pid: u32, mut call: impl FnMut(libc::pid_t) -> isize) -> isize {
    let done = call(pid as libc::pid_t);
    if done >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH) {
        return done;
    }
    call(ring3_inject::with_memory(pid) as libc::pid_t)
}

/// Reads another process's memory without stopping it. Short reads are errors.
pub(crate) fn read_process(pid: u32, address: u64, out: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: process_vm_readv wants valid iovecs; `local` covers `out`, `remote` is checked by the kernel.
    let read = by_a_thread(pid, |tid| unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) });
    if read == out.len() as isize {
        Ok(())
    } else if read < 0 {
        Err(Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EFAULT)))
    } else {
        Err(Errno::FAULT)
    }
}

/// Writes a value into another process's memory, where that may write it itself.
pub(crate) fn write_process<T: IntoBytes + Immutable>(pid: u32, address: u64, value: &T) -> Result<(), Errno> {
    let bytes = value.as_bytes();
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: process_vm_writev wants valid iovecs and only reads `local`, the value; `remote` is checked by the kernel.
    let written = by_a_thread(pid, |tid| unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) });
    if written == bytes.len() as isize { Ok(()) } else { Err(Errno::FAULT) }
}

/// Whether memory of another process, in pieces of the same few bytes, is not as told. What cannot be read counts as it was told.
pub(crate) fn differs<'a>(pid: u32, mut told: impl Iterator<Item = (u64, &'a [u8])>) -> bool {
    /// `UIO_MAXIOV`
    const PIECES_MAX: usize = 1024;
    loop {
        let pieces: Vec<(u64, &[u8])> = told.by_ref().take(PIECES_MAX).collect();
        if pieces.is_empty() {
            return false;
        }
        let expected: Vec<u8> = pieces.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let mut found = expected.clone();
        let piece = |(at, bytes): &(u64, &[u8])| libc::iovec { iov_base: *at as *mut _, iov_len: bytes.len() };
        let remote: Vec<libc::iovec> = pieces.iter().map(piece).collect();
        let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() };
        let count = remote.len() as libc::c_ulong;
        // SAFETY: process_vm_readv wants valid iovecs; `local` covers `found`, `remote` is checked by the kernel.
        by_a_thread(pid, |tid| unsafe { libc::process_vm_readv(tid, &local, 1, remote.as_ptr(), count, 0) });
        if found != expected {
            return true;
        }
    }
}

/// Reads a value of another process.
pub(in crate::realm) fn read_value<T: FromBytes + IntoBytes>(pid: u32, address: u64) -> Result<T, Errno> {
    let mut value = T::new_zeroed();
    read_process(pid, address, value.as_mut_bytes())?;
    Ok(value)
}

/// A value from the first of these bytes.
pub(in crate::realm) fn value_from<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_changes_the_size_or_the_seals_of_what_targets_get() {
        for sealed in [false, true] {
            let shared = SharedFile::new("ring3-test", 2 * PAGE_BYTES, sealed).expect("a file");
            for bytes in [0, PAGE_BYTES, 3 * PAGE_BYTES] {
                assert_eq!(rustix::fs::ftruncate(shared.file(), bytes), Err(Errno::PERM));
            }
            for seal in [SealFlags::FUTURE_WRITE, SealFlags::WRITE, SealFlags::EXEC] {
                let added = rustix::fs::fcntl_add_seals(shared.file(), seal);
                assert!(matches!(added, Err(Errno::PERM | Errno::BUSY)), "{seal:?}: {added:?}");
            }
            let written = rustix::io::pwrite(shared.file(), b"x", 0);
            assert_eq!(written, if sealed { Err(Errno::PERM) } else { Ok(1) });
        }
    }
}
