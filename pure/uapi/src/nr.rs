//! Numbers of system calls on x86-64 (`__NR_*`), by name, from the one table that has them ([`crate::syscalls`]).

use crate::syscalls::TABLE;

/// The number of the call whose events have this name.
const fn number_of(name: &str) -> i64 {
    let mut at = 0;
    while at < TABLE.len() {
        if is_same(TABLE[at].name.as_bytes(), name.as_bytes()) {
            return TABLE[at].number as i64;
        }
        at += 1;
    }
    panic!("no such call")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

macro_rules! numbers { ($($constant:ident $name:ident,)*) => {
    $(#[doc = concat!("`", stringify!($name), "`")] pub const $constant: i64 = number_of(stringify!($name));)*
} }

numbers! {
    ARCH_PRCTL arch_prctl,
    CLOCK_GETTIME clock_gettime,
    CLOCK_NANOSLEEP clock_nanosleep,
    CLONE clone,
    CLONE3 clone3,
    CLOSE close,
    EPOLL_PWAIT epoll_pwait,
    EPOLL_PWAIT2 epoll_pwait2,
    EPOLL_WAIT epoll_wait,
    EXECVE execve,
    EXECVEAT execveat,
    EXIT exit,
    EXIT_GROUP exit_group,
    FORK fork,
    FSTAT newfstat,
    FSTATFS fstatfs,
    FUTEX futex,
    GETCPU getcpu,
    GETDENTS64 getdents64,
    GETGID getgid,
    GETPID getpid,
    GETPPID getppid,
    GETRESGID getresgid,
    GETRESUID getresuid,
    GETRLIMIT getrlimit,
    GETSID getsid,
    GETTID gettid,
    GETUID getuid,
    IOCTL ioctl,
    IO_GETEVENTS io_getevents,
    IO_PGETEVENTS io_pgetevents,
    IO_URING_ENTER io_uring_enter,
    KILL kill,
    MMAP mmap,
    MPROTECT mprotect,
    MREMAP mremap,
    MUNMAP munmap,
    NANOSLEEP nanosleep,
    OPEN open,
    OPENAT openat,
    PAUSE pause,
    PIDFD_OPEN pidfd_open,
    PIDFD_SEND_SIGNAL pidfd_send_signal,
    PKEY_MPROTECT pkey_mprotect,
    POLL poll,
    PPOLL ppoll,
    PRCTL prctl,
    PREAD64 pread64,
    PRLIMIT64 prlimit64,
    PROCESS_VM_READV process_vm_readv,
    PROCESS_VM_WRITEV process_vm_writev,
    PSELECT6 pselect6,
    READ read,
    READLINK readlink,
    RESTART_SYSCALL restart_syscall,
    RT_SIGACTION rt_sigaction,
    RT_SIGPROCMASK rt_sigprocmask,
    RT_SIGQUEUEINFO rt_sigqueueinfo,
    RT_SIGRETURN rt_sigreturn,
    RT_SIGSUSPEND rt_sigsuspend,
    RT_SIGTIMEDWAIT rt_sigtimedwait,
    RT_TGSIGQUEUEINFO rt_tgsigqueueinfo,
    SCHED_YIELD sched_yield,
    SECCOMP seccomp,
    SELECT select,
    SEMOP semop,
    SEMTIMEDOP semtimedop,
    SETFSGID setfsgid,
    SETFSUID setfsuid,
    SETGID setgid,
    SETNS setns,
    SETREGID setregid,
    SETRESGID setresgid,
    SETRESUID setresuid,
    SETREUID setreuid,
    SETRLIMIT setrlimit,
    SETUID setuid,
    SIGALTSTACK sigaltstack,
    STAT newstat,
    STATFS statfs,
    TGKILL tgkill,
    TIMER_CREATE timer_create,
    TIMER_DELETE timer_delete,
    TIMER_SETTIME timer_settime,
    TKILL tkill,
    UNAME newuname,
    UNSHARE unshare,
    VFORK vfork,
    WRITE write,
}
