//! The system calls of loaders that are caught, and who answers each: the filter and the dispatch come from one table.

use ring3_uapi::seccomp::FilterInsn;

use super::raw_seccomp::AUDIT_X86_64;
use super::{Caller, Reply, bpf, descriptors, files, limits, names, perf, release, virtual_files, wait};

const HERE: i32 = libc::AT_FDCWD;

/// When a call is caught.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// By a path, not of a descriptor itself (fstat(3) of some C libraries): `AT_EMPTY_PATH` is not in the flags, which are this
    /// argument.
    ByPath(u32),
    /// ioctl(2) with `PERF_EVENT_IOC_*`: their type is `$`.
    OfPerf,
    /// mmap(2), shared and of a file; not if it is for us ([`ring3_inject::UNCAUGHT_MAPPING`]).
    SharedFile,
    /// poll(2) and ppoll(2) of at least one descriptor.
    OfDescriptors,
    /// ptrace(2) with `PTRACE_DETACH`.
    Detach,
    /// It sets the limit of locked memory: the resource is this argument, and the new limits are the next one.
    LockedMemory(u32),
}

/// A call that is caught.
pub(super) struct Call {
    number: i64,
    when: When,
    pub(super) serve: fn(&Caller<'_>) -> Reply,
}

const fn call(number: i64, when: When, serve: fn(&Caller<'_>) -> Reply) -> Call {
    Call { number, when, serve }
}

const CALLS: [Call; 33] = [
    call(libc::SYS_bpf, When::Always, bpf::serve),
    call(libc::SYS_perf_event_open, When::Always, perf::open),
    call(libc::SYS_ioctl, When::OfPerf, perf::ioctl),
    call(libc::SYS_mmap, When::SharedFile, files::mmap),
    call(libc::SYS_epoll_ctl, When::Always, files::epoll_ctl),
    call(libc::SYS_poll, When::OfDescriptors, wait::poll),
    call(libc::SYS_ppoll, When::OfDescriptors, wait::poll),
    call(libc::SYS_select, When::Always, wait::select),
    call(libc::SYS_pselect6, When::Always, wait::select),
    call(libc::SYS_prlimit64, When::LockedMemory(1), limits::set),
    call(libc::SYS_setrlimit, When::LockedMemory(0), limits::set),
    call(libc::SYS_statfs, When::Always, names::statfs),
    call(libc::SYS_mkdir, When::Always, |caller| names::mkdir(caller, HERE, caller.arg(0))),
    call(libc::SYS_mkdirat, When::Always, |caller| names::mkdir(caller, caller.arg(0) as i32, caller.arg(1))),
    call(libc::SYS_rmdir, When::Always, |caller| names::remove(caller, HERE, caller.arg(0), true)),
    call(libc::SYS_unlink, When::Always, |caller| names::remove(caller, HERE, caller.arg(0), false)),
    call(libc::SYS_unlinkat, When::Always, |caller| {
        let is_directory = caller.arg(2) & libc::AT_REMOVEDIR as u64 != 0;
        names::remove(caller, caller.arg(0) as i32, caller.arg(1), is_directory)
    }),
    call(libc::SYS_open, When::Always, |caller| virtual_files::open(caller, HERE, caller.arg(0), caller.arg(1))),
    call(libc::SYS_openat, When::Always, |caller| {
        virtual_files::open(caller, caller.arg(0) as i32, caller.arg(1), caller.arg(2))
    }),
    call(libc::SYS_openat2, When::Always, virtual_files::openat2),
    call(libc::SYS_access, When::Always, |caller| virtual_files::access(caller, HERE, caller.arg(0), caller.arg(1))),
    call(libc::SYS_faccessat, When::Always, faccessat),
    call(libc::SYS_faccessat2, When::Always, faccessat),
    call(libc::SYS_stat, When::Always, stat),
    call(libc::SYS_lstat, When::Always, stat),
    call(libc::SYS_newfstatat, When::ByPath(3), |caller| {
        virtual_files::stat(caller, caller.arg(0) as i32, caller.arg(1), caller.arg(2))
    }),
    call(libc::SYS_statx, When::ByPath(2), virtual_files::statx),
    call(libc::SYS_readlink, When::Always, |caller| {
        descriptors::readlink(caller, HERE, caller.arg(0), caller.arg(1), caller.arg(2))
    }),
    call(libc::SYS_readlinkat, When::Always, |caller| {
        descriptors::readlink(caller, caller.arg(0) as i32, caller.arg(1), caller.arg(2), caller.arg(3))
    }),
    call(libc::SYS_execve, When::Always, |caller| caller.execute()),
    call(libc::SYS_execveat, When::Always, |caller| caller.execute()),
    call(libc::SYS_geteuid, When::Always, |caller| caller.effective_user()),
    call(libc::SYS_ptrace, When::Detach, release::detach),
];

fn faccessat(caller: &Caller<'_>) -> Reply {
    virtual_files::access(caller, caller.arg(0) as i32, caller.arg(1), caller.arg(2))
}

fn stat(caller: &Caller<'_>) -> Reply {
    virtual_files::stat(caller, HERE, caller.arg(0), caller.arg(1))
}

/// The call with a number, if it is caught.
pub(super) fn of(number: i32) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.number == i64::from(number))
}

const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_SET: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const AT_NUMBER: u32 = 0;
const AT_ARCH: u32 = 4;
/// Offset of the low half of argument `n` in `struct seccomp_data`.
const fn at_argument(n: u32) -> u32 {
    16 + 8 * n
}

fn statement(code: u16, k: u32) -> FilterInsn {
    FilterInsn { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> FilterInsn {
    FilterInsn { code, jt, jf, k }
}

/// Catches the calls of the table; everything else goes on untouched. The jumps count instructions to skip.
pub fn filter() -> Vec<FilterInsn> {
    let mut program = vec![
        statement(LOAD_WORD, AT_ARCH),
        branch(JUMP_EQUAL, AUDIT_X86_64, 1, 0),
        statement(RETURN, ALLOW),
        statement(LOAD_WORD, AT_NUMBER),
    ];
    for call in &CALLS {
        let judged = match call.when {
            When::Always => vec![statement(RETURN, NOTIFY)],
            When::ByPath(flags) => vec![
                statement(LOAD_WORD, at_argument(flags)),
                branch(JUMP_SET, libc::AT_EMPTY_PATH as u32, 1, 0),
                statement(RETURN, NOTIFY),
                statement(RETURN, ALLOW),
            ],
            When::OfPerf => vec![
                statement(LOAD_WORD, at_argument(1)),
                statement(AND, 0xff00),
                branch(JUMP_EQUAL, (b'$' as u32) << 8, 0, 1),
                statement(RETURN, NOTIFY),
                statement(RETURN, ALLOW),
            ],
            When::SharedFile => vec![
                statement(LOAD_WORD, at_argument(4)),
                branch(JUMP_EQUAL, u32::MAX, 4, 0),
                statement(LOAD_WORD, at_argument(3)),
                branch(JUMP_SET, ring3_inject::UNCAUGHT_MAPPING as u32, 2, 0),
                branch(JUMP_SET, libc::MAP_SHARED as u32, 0, 1),
                statement(RETURN, NOTIFY),
                statement(RETURN, ALLOW),
            ],
            When::OfDescriptors => vec![
                statement(LOAD_WORD, at_argument(1)),
                branch(JUMP_EQUAL, 0, 1, 0),
                statement(RETURN, NOTIFY),
                statement(RETURN, ALLOW),
            ],
            When::Detach => vec![
                statement(LOAD_WORD, at_argument(0)),
                branch(JUMP_EQUAL, libc::PTRACE_DETACH, 0, 1),
                statement(RETURN, NOTIFY),
                statement(RETURN, ALLOW),
            ],
            When::LockedMemory(resource) => vec![
                statement(LOAD_WORD, at_argument(resource)),
                branch(JUMP_EQUAL, libc::RLIMIT_MEMLOCK, 0, 5),
                statement(LOAD_WORD, at_argument(resource + 1)),
                branch(JUMP_EQUAL, 0, 0, 2),
                statement(LOAD_WORD, at_argument(resource + 1) + 4),
                branch(JUMP_EQUAL, 0, 1, 0),
                statement(RETURN, NOTIFY),
                statement(RETURN, ALLOW),
            ],
        };
        program.push(branch(JUMP_EQUAL, call.number as u32, 0, judged.len() as u8));
        program.extend(judged);
    }
    program.push(statement(RETURN, ALLOW));
    program
}
