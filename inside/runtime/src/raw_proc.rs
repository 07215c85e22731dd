//! Facts about a task, read from `/proc`.
//!
//! The calling thread reads the files itself, so it has one more descriptor for a moment. `/proc` may be missing, hide the task,
//! or show another pid namespace: then nothing is known.

use core::iter::from_fn;

use ring3_layout::task::{NAMESPACES, NUMBER_FILES, VALUE_BYTES_MAX};
use ring3_layout::task_event::Receiver;
use ring3_layout::thread::ThreadBlock;
use ring3_uapi::nr;

use crate::raw_system::{syscall, syscall0};

/// Bytes of a path at most, the NUL included: `/proc/4194304/ns/time_for_children`.
const PATH_BYTES: usize = 48;
/// Bytes of a file that are read at a time.
const CHUNK: usize = 128;
/// `f_type` of `/proc` (`PROC_SUPER_MAGIC`).
const PROC_MAGIC: u64 = 0x9fa0;
/// `f_type` of namespaces (`NSFS_MAGIC`).
const NAMESPACE_MAGIC: u64 = 0x6e73_6673;
/// Words of `struct statfs`, of which `f_type` is the first.
const STATFS_WORDS: usize = 15;
/// Words of `struct stat`, of which `st_ino` is the second.
const STAT_WORDS: usize = 18;
/// Fields of `stat` that are 0 for who may not trace the process (fs/proc/array.c:do_task_stat).
const GUARDED: [core::ops::RangeInclusive<u16>; 3] = [26..=30, 35..=35, 45..=52];

/// A thread, for the running one.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    tid: u32,
    own_tid: u32,
    own_tgid: u32,
}

impl Task {
    /// The thread with this id, in the pid namespace of the running thread.
    pub(crate) fn new(tb: &ThreadBlock, tid: u32) -> Task {
        Task { tid, own_tid: tb.pid_tgid as u32, own_tgid: (tb.pid_tgid >> 32) as u32 }
    }

    /// The running thread, for what is told of it whatever its ids are.
    pub(crate) fn running() -> Task {
        Task { tid: 0, own_tid: 0, own_tgid: 0 }
    }

    /// Whether it is the running thread.
    pub(crate) fn is_running(self) -> bool {
        self.tid == self.own_tid
    }

    /// Its process's id.
    pub(crate) fn tgid(self) -> Option<u32> {
        if self.is_running() {
            return Some(self.own_tgid);
        }
        // The parent may be one with the id 0, in another pid namespace, who is his own parent.
        if [self.own_tgid, syscall0(nr::GETPPID) as u32, 0].contains(&self.tid) {
            return Some(self.tid);
        }
        self.status(b"Tgid:").map(|id| id as u32)
    }

    /// Its name.
    pub(crate) fn comm(self, value: &mut [u8]) -> Option<()> {
        let file = self.file(b"comm")?;
        // The kernel writes a newline behind it.
        let name = file.bytes();
        let room = value.iter_mut().take(VALUE_BYTES_MAX);
        let mut last = None;
        for (to, byte) in room.zip(name) {
            *to = byte;
            last = Some(to);
        }
        *last? = 0;
        Some(())
    }

    /// A number of `/proc/PID/stat`, by its place there, counted from 1 (man 5 proc).
    pub(crate) fn stat(self, field: u16) -> Option<u64> {
        let is_guarded = GUARDED.iter().any(|range| range.contains(&field));
        if is_guarded && !self.is_running() && self.tid != self.own_tgid {
            return None;
        }
        let file = self.file(b"stat")?;
        let (mut at, mut number, mut found) = (1, Number::default(), None);
        for byte in file.bytes() {
            match byte {
                // The second one is the name, in parentheses; it may hold any bytes, also such as this one.
                b')' => (at, found) = (2, None),
                b' ' | b'\n' => {
                    if at == field {
                        found = number.value();
                    }
                    (at, number) = (at.saturating_add(1), Number::default());
                }
                byte => number.take(byte),
            }
        }
        found
    }

    /// The number in the line of `/proc/PID/status` that begins so.
    pub(crate) fn status(self, key: &[u8]) -> Option<u64> {
        self.file(b"status")?.number_behind(key)
    }

    /// The number in one of [`NUMBER_FILES`].
    pub(crate) fn number_in(self, which: u16) -> Option<u64> {
        let file = self.file(word(NUMBER_FILES, which)?)?;
        let mut number = Number::default();
        file.bytes().take_while(u8::is_ascii_digit).for_each(|byte| number.take(byte));
        number.value()
    }

    /// The number of one of [`NAMESPACES`].
    pub(crate) fn namespace(self, which: u16) -> Option<u64> {
        self.namespace_file(which).map(|[_, inode]| inode)
    }

    /// Device and inode of the file of one of [`NAMESPACES`].
    pub(crate) fn namespace_file(self, which: u16) -> Option<[u64; 2]> {
        let mut path = self.path(b"ns/")?;
        path.push(word(NAMESPACES, which)?)?;
        let (mut system, mut status) = ([0u64; STATFS_WORDS], [0u64; STAT_WORDS]);
        // SAFETY: the kernel reads a string, and writes a `struct statfs`.
        let result = unsafe { syscall(nr::STATFS, [path.address(), &raw mut system as u64, 0, 0, 0, 0]) };
        if result != 0 || system.first() != Some(&NAMESPACE_MAGIC) {
            return None;
        }
        // SAFETY: the kernel reads a string, and writes a `struct stat`.
        let result = unsafe { syscall(nr::STAT, [path.address(), &raw mut status as u64, 0, 0, 0, 0]) };
        let [device, inode, ..] = status;
        (result == 0).then_some([device, inode])
    }

    /// Device and inode of the file of its pid namespace.
    pub(crate) fn pid_namespace(self) -> Option<[u64; 2]> {
        self.namespace_file(NAMESPACES.split(' ').position(|name| name == "pid")? as u16)
    }

    /// One of its files in `/proc`.
    pub(crate) fn file(self, name: &[u8]) -> Option<File> {
        File::open(&self.path(name)?)
    }

    /// What `/proc/TID/status` tells of who gets a signal.
    pub(crate) fn receiver(self) -> Option<Receiver> {
        let mut receiver = Receiver { is_init: self.tid == 1, ..Receiver::default() };
        self.comm(&mut receiver.comm)?;
        let file = self.file(b"status")?;
        // A line's key, and its value: the first letter, and as a hexadecimal number.
        let (mut key, mut used, mut letter, mut value) = ([0u8; 10], 0, 0, 0u64);
        let mut is_key = true;
        for byte in file.bytes() {
            match byte {
                b':' if is_key => is_key = false,
                b'\n' => {
                    match &key {
                        b"State\0\0\0\0\0" => receiver.is_dead = matches!(letter, b'Z' | b'X'),
                        b"TracerPid\0" => receiver.is_traced = value != 0,
                        b"SigPnd\0\0\0\0" => receiver.pending = value,
                        b"ShdPnd\0\0\0\0" => receiver.shared_pending = value,
                        b"SigBlk\0\0\0\0" => receiver.blocked = value,
                        b"SigIgn\0\0\0\0" => receiver.ignored = value,
                        b"SigCgt\0\0\0\0" => receiver.caught = value,
                        _ => {}
                    }
                    (key, used, letter, value, is_key) = ([0; 10], 0, 0, 0, true);
                }
                byte if is_key => {
                    if let Some(place) = key.get_mut(used) {
                        *place = byte;
                    }
                    used += 1;
                }
                b'\t' | b' ' => {}
                byte => {
                    letter = if letter == 0 { byte } else { letter };
                    let digit = char::from(byte).to_digit(16).unwrap_or(0);
                    value = value << 4 | u64::from(digit);
                }
            }
        }
        Some(receiver)
    }

    /// `/proc/thread-self/NAME`, or `/proc/TID/NAME` if that means the same pid namespace.
    fn path(self, name: &[u8]) -> Option<Path> {
        let mut path = Path { bytes: [0; PATH_BYTES], used: 0 };
        path.push(b"/proc/")?;
        if self.is_running() {
            path.push(b"thread-self")?;
        } else {
            if !proc_is_near() {
                return None;
            }
            path.push_number(self.tid)?;
        }
        path.push(b"/")?;
        path.push(name)?;
        Some(path)
    }
}

/// The process of a pidfd of the running one.
pub(crate) fn process_of(pidfd: u32) -> Option<u32> {
    let mut path = Path { bytes: [0; PATH_BYTES], used: 0 };
    path.push(b"/proc/self/fdinfo/")?;
    path.push_number(pidfd)?;
    File::open(&path)?.number_behind(b"Pid:").map(|pid| pid as u32)
}

/// Calls `see` with each number that is a name in `/proc`, or in `/proc/self/task`: processes, or threads of this one, as long as
/// it says so. False: they cannot be listed.
pub(crate) fn each(threads: bool, mut see: impl FnMut(u32) -> bool) -> bool {
    /// Bytes of names that are read at a time, and where in an entry (`struct linux_dirent64`) its size and its name are.
    const LIST_BYTES: usize = 512;
    const BYTES_AT: usize = 16;
    const NAME_AT: usize = 19;
    let path = Path { bytes: [0; PATH_BYTES], used: 0 };
    let name = |mut path: Path| path.push(if threads { b"/proc/self/task" } else { b"/proc" }).map(|()| path);
    let Some(path) = name(path) else { return false };
    if !proc_is_near() {
        return false;
    }
    let Some(directory) = File::open(&path) else { return false };
    loop {
        let mut list = [0u8; LIST_BYTES];
        let to = list.as_mut_ptr() as u64;
        // SAFETY: the kernel writes at most LIST_BYTES bytes.
        let filled = unsafe { syscall(nr::GETDENTS64, [directory.0, to, LIST_BYTES as u64, 0, 0, 0]) };
        let Some(mut rest) = usize::try_from(filled).ok().and_then(|filled| list.get(..filled)) else { return false };
        if rest.is_empty() {
            return true;
        }
        while let Some(&[low, high]) = rest.get(BYTES_AT..BYTES_AT + 2) {
            let mut number = Number::default();
            let name = rest.iter().skip(NAME_AT).take_while(|byte| **byte != 0);
            name.for_each(|byte| number.take(*byte));
            let is_number = rest.get(NAME_AT).is_some_and(u8::is_ascii_digit);
            if let Some(number) = number.value().filter(|_| is_number)
                && !see(number as u32)
            {
                return true;
            }
            rest = rest.get(usize::from(u16::from_le_bytes([low, high])).max(NAME_AT)..).unwrap_or(&[]);
        }
    }
}

/// Whether the next line begins so; if not, it is taken. `None`: there is no line.
fn begins_with(bytes: &mut impl Iterator<Item = u8>, key: &[u8]) -> Option<bool> {
    for wanted in key {
        match bytes.next()? {
            byte if byte == *wanted => {}
            b'\n' => return Some(false),
            _ => return bytes.find(|byte| *byte == b'\n').map(|_| false),
        }
    }
    Some(true)
}

/// Whether `/proc` knows this process by the id that it has itself.
fn proc_is_near() -> bool {
    let mut text = [0u8; 16];
    let path = c"/proc/self".as_ptr() as u64;
    // SAFETY: the kernel reads a string, and writes at most the length of `text`.
    unsafe { syscall(nr::READLINK, [path, text.as_mut_ptr() as u64, text.len() as u64, 0, 0, 0]) };
    let mut number = Number::default();
    text.iter().copied().take_while(u8::is_ascii_digit).for_each(|byte| number.take(byte));
    number.value() == Some(syscall0(nr::GETPID) as u64)
}

/// The word of a text with this index.
fn word(text: &'static str, index: u16) -> Option<&'static [u8]> {
    text.as_bytes().split(|byte| *byte == b' ').nth(usize::from(index))
}

/// A decimal number that is being read.
#[derive(Default)]
struct Number {
    digits: u32,
    is_negative: bool,
    value: u64,
}

impl Number {
    fn take(&mut self, byte: u8) {
        match byte {
            b'0'..=b'9' => {
                self.digits = self.digits.saturating_add(1);
                self.value = self.value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            }
            b'-' => self.is_negative = true,
            _ => {}
        }
    }

    fn value(&self) -> Option<u64> {
        let value = if self.is_negative { self.value.wrapping_neg() } else { self.value };
        (self.digits > 0).then_some(value)
    }
}

/// A path that ends with a NUL.
struct Path {
    bytes: [u8; PATH_BYTES],
    used: usize,
}

impl Path {
    fn push(&mut self, text: &[u8]) -> Option<()> {
        let room = PATH_BYTES.saturating_sub(self.used).saturating_sub(1);
        if text.len() > room {
            return None;
        }
        for (to, byte) in self.bytes.iter_mut().skip(self.used).zip(text) {
            *to = *byte;
        }
        self.used += text.len();
        Some(())
    }

    fn push_number(&mut self, number: u32) -> Option<()> {
        let mut divisor = 1_000_000_000;
        while divisor > 1 && number / divisor == 0 {
            divisor /= 10;
        }
        while divisor > 0 {
            self.push(&[b'0' + (number / divisor % 10) as u8])?;
            divisor /= 10;
        }
        Some(())
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

/// An open file.
pub(crate) struct File(u64);

impl File {
    /// Opens a file that really is one of `/proc`.
    fn open(path: &Path) -> Option<File> {
        const O_CLOEXEC: u64 = 0o2_000_000;
        // SAFETY: the kernel reads a string.
        let fd = unsafe { syscall(nr::OPEN, [path.address(), O_CLOEXEC, 0, 0, 0, 0]) };
        File::of(fd).filter(|file| file.is_of(PROC_MAGIC))
    }

    /// What a call returned that opens a file.
    pub(crate) fn of(fd: i64) -> Option<File> {
        u64::try_from(fd).ok().map(File)
    }

    /// The decimal number in its line that begins with `key` and a tab.
    fn number_behind(&self, key: &[u8]) -> Option<u64> {
        let mut bytes = self.bytes();
        while !begins_with(&mut bytes, key)? {}
        let mut number = Number::default();
        bytes.skip_while(|byte| *byte == b'\t').take_while(u8::is_ascii_digit).for_each(|byte| number.take(byte));
        number.value()
    }

    /// Its descriptor.
    pub(crate) fn descriptor(&self) -> u64 {
        self.0
    }

    /// Whether its file system has this `f_type`.
    pub(crate) fn is_of(&self, magic: u64) -> bool {
        let mut system = [0u64; STATFS_WORDS];
        // SAFETY: the kernel writes a `struct statfs`.
        let result = unsafe { syscall(nr::FSTATFS, [self.0, &raw mut system as u64, 0, 0, 0, 0]) };
        result == 0 && system.first() == Some(&magic)
    }

    /// Its inode's number.
    pub(crate) fn inode(&self) -> Option<u64> {
        let mut status = [0u64; STAT_WORDS];
        // SAFETY: the kernel writes a `struct stat`.
        let result = unsafe { syscall(nr::FSTAT, [self.0, &raw mut status as u64, 0, 0, 0, 0]) };
        let [_, inode, ..] = status;
        (result == 0).then_some(inode)
    }

    /// All its bytes.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.bytes_from(0)
    }

    /// Its bytes from an offset on.
    pub(crate) fn bytes_from(&self, start: u64) -> impl Iterator<Item = u8> + '_ {
        let (mut chunk, mut filled, mut at, mut offset) = ([0u8; CHUNK], 0, 0, start);
        from_fn(move || {
            if at == filled {
                let to = chunk.as_mut_ptr() as u64;
                // SAFETY: the kernel writes at most CHUNK bytes. (Where the file is, it is told: what another thread has
                // opened under this number, after it closed all, is not to be moved on.)
                let read = unsafe { syscall(nr::PREAD64, [self.0, to, CHUNK as u64, offset, 0, 0]) };
                filled = usize::try_from(read).ok()?;
                (at, offset) = (0, offset + filled as u64);
            }
            let byte = chunk.get(..filled)?.get(at).copied()?;
            at += 1;
            Some(byte)
        })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: closes what `open` opened.
        unsafe { syscall(nr::CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}
