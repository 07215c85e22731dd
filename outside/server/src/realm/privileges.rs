//! Programs that gain privileges when they are executed, and would not if a tracer without these privileges traced them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring3_inject as inject;

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
    let pid = stopped.pid();
    let (directory, address) = match registers.orig_rax as i64 {
        libc::SYS_execveat => (Some(registers.rdi as i32).filter(|fd| *fd != libc::AT_FDCWD), registers.rsi),
        _ => (None, registers.rdi),
    };
    let given = read_string(stopped, address)?;
    if let Some(absolute) = given.strip_prefix('/') {
        return Some(Path::new(&format!("/proc/{pid}/root")).join(absolute));
    }
    let directory = directory.map_or(format!("/proc/{pid}/cwd"), |fd| format!("/proc/{pid}/fd/{fd}"));
    Some(if given.is_empty() { PathBuf::from(directory) } else { Path::new(&directory).join(given) })
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
