//! Programs that gain privileges when they are executed, and would not if a tracer without these privileges traced them.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use ring3_inject as inject;

use crate::realm::files::FileId;

/// `PATH_MAX`.
const PATH_BYTES_MAX: usize = 4096;

/// Whether the program of the `execve` or `execveat` that a thread begins has more privileges than its caller, and tracing
/// would take them away: then it must not be traced (security/commoncap.c:cap_bprm_creds_from_file).
pub(super) fn gained(stopped: &inject::Stopped, registers: &inject::Registers) -> bool {
    const SET_ID: u32 = 0o6000;
    if rustix::process::geteuid().is_root() {
        return false;
    }
    let status = inject::proc_file(stopped.pid(), "status").unwrap_or_default();
    if inject::status_field(&status, "NoNewPrivs") == Some("1") {
        return false;
    }
    let Some(path) = program(stopped, registers) else { return true };
    let Ok(file) = std::fs::metadata(&path) else { return false };
    /// More than `struct vfs_ns_cap_data` has. (An empty buffer is asked nothing.)
    const BYTES_MAX: usize = 64;
    let has_capabilities =
        rustix::fs::getxattr(&path, "security.capability", &mut [0u8; BYTES_MAX]).is_ok_and(|bytes| bytes > 0);
    file.mode() & SET_ID != 0 || has_capabilities
}

/// The program's path as the server can open it.
fn program(stopped: &inject::Stopped, registers: &inject::Registers) -> Option<PathBuf> {
    let arguments = [registers.rdi, registers.rsi];
    path_of(stopped.pid(), registers.orig_rax as i64, arguments, |address| read_string(stopped, address))
}

/// The path that an `execve` or `execveat` of a thread names, by the call's number and its first arguments, as the server can open it.
pub(super) fn path_of(
    tid: u32,
    number: i64,
    [first, second]: [u64; 2],
    read_string: impl FnOnce(u64) -> Option<String>,
) -> Option<PathBuf> {
    let (directory, address) = match number {
        libc::SYS_execveat => (Some(first as i32).filter(|fd| *fd != libc::AT_FDCWD), second),
        libc::SYS_execve => (None, first),
        _ => return None,
    };
    let given = read_string(address)?;
    if let Some(absolute) = given.strip_prefix('/') {
        return Some(Path::new(&format!("/proc/{tid}/root")).join(absolute));
    }
    let directory = directory.map_or(format!("/proc/{tid}/cwd"), |fd| format!("/proc/{tid}/fd/{fd}"));
    Some(if given.is_empty() { PathBuf::from(directory) } else { Path::new(&directory).join(given) })
}

/// Whether the thread, which is in its `execve`, has named this file, and not a script that the file interprets, or
/// a program that it loads.
pub(in crate::realm) fn names(tid: u32, file: FileId) -> bool {
    let named = || {
        // proc_pid_syscall(5): number and arguments.
        let call = inject::proc_file(tid, "syscall").ok()?;
        let mut words = call.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let arguments = [argument()?, argument()?];
        path_of(tid, number, arguments, |address| {
            let mut text = vec![0; PATH_BYTES_MAX];
            let memory = std::fs::File::open(format!("/proc/{tid}/mem")).ok()?;
            // (The string may end near unmapped memory.)
            let bytes = memory.read_at(&mut text, address).ok()?;
            text.truncate(text[..bytes].iter().position(|byte| *byte == 0)?);
            String::from_utf8(text).ok()
        })
    };
    named().is_some_and(|path| file.is_at(&path))
}

fn read_string(stopped: &inject::Stopped, address: u64) -> Option<String> {
    let mut text = vec![];
    while text.len() < PATH_BYTES_MAX {
        let mut byte = [0u8];
        stopped.read(address + text.len() as u64, &mut byte).ok()?;
        if byte[0] == 0 {
            return String::from_utf8(text).ok();
        }
        text.push(byte[0]);
    }
    None
}
