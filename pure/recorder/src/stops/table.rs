//! What memory strace 6.1 reads at the start and at the end of each call, by default and with `-v`.
//!
//! A chunk whose memory cannot be read is left out, whole: strace does not show a part of a structure or text either.

use super::Wanted;
use ring3_uapi::syscalls::{Syscall, TABLE};

/// A call's records.
#[derive(Clone, Debug)]
pub struct Call {
    /// At its start.
    pub start: Phase,
    /// At its end.
    pub end: Phase,
}

/// One of its records.
#[derive(Clone, Debug)]
pub enum Phase {
    /// It WAITS.
    Waits,
    /// It has copies of all memory that is read, unless a test says that it WAITS.
    Chunks {
        /// What is copied.
        pieces: Vec<Piece>,
        /// Whether it WAITS all the same.
        waits: Option<Test>,
    },
}

/// A chunk, if all of the tests are true and its address is not 0.
#[derive(Clone, Debug)]
pub struct Piece {
    pub(super) chunk: Chunk,
    pub(super) only: Vec<Test>,
}

/// Memory, by the argument that has its address.
#[derive(Clone, Copy, Debug)]
pub enum Chunk {
    /// Text with its end.
    Text(u8),
    /// So many bytes.
    Bytes(u8, u32),
    /// As many units as a number says, and at most so many bytes.
    Counted {
        /// The argument.
        address: u8,
        /// The number.
        length: Length,
        /// Bytes of a unit.
        unit: u32,
        /// Bytes.
        bytes_max: u32,
    },
}

/// A number that says how long something is.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// An argument.
    Argument(u8),
    /// The low 32 bits of an argument.
    Word(u8),
    /// The result.
    Result,
    /// The smaller one of the u32 that an argument's address had at the start (where `SAVED` says) and has now.
    Smaller(u8),
}

/// Where the arguments of a call are kept, there is instead of the last one what [`Length::Smaller`] needs.
pub(super) const SAVED: u8 = 5;

/// A test of arguments (their low 32 bits) or the result.
#[derive(Clone, Copy, Debug)]
pub enum Test {
    /// The result is no error.
    Succeeds,
    /// It is one.
    Fails,
    /// The result is larger.
    ResultAbove(u32),
    /// An argument is larger.
    ArgumentAbove(u8, u32),
    /// Some bits of an argument are one of these numbers.
    Among {
        /// Which.
        index: u8,
        /// The bits.
        mask: u32,
        /// The numbers.
        values: &'static [u32],
    },
    /// An argument is none of these numbers.
    NotAmong {
        /// Which.
        index: u8,
        /// The numbers.
        values: &'static [u32],
    },
    /// An argument has any of these bits.
    Any {
        /// Which.
        index: u8,
        /// The bits.
        bits: u32,
    },
}

impl Chunk {
    /// The argument that has the address.
    pub(super) fn address(&self) -> u8 {
        match self {
            Chunk::Text(address) | Chunk::Bytes(address, _) | Chunk::Counted { address, .. } => *address,
        }
    }

    /// Its limit. A text has none of its own.
    pub(super) fn bytes_max(&self) -> Option<u32> {
        match self {
            Chunk::Text(_) => None,
            Chunk::Bytes(_, bytes) => Some(*bytes),
            Chunk::Counted { bytes_max, .. } => Some(*bytes_max),
        }
    }
}

impl Test {
    fn argument(&self) -> Option<u8> {
        match self {
            Test::Succeeds | Test::Fails | Test::ResultAbove(_) => None,
            Test::ArgumentAbove(index, _)
            | Test::Among { index, .. }
            | Test::NotAmong { index, .. }
            | Test::Any { index, .. } => Some(*index),
        }
    }
}

impl Phase {
    /// Whether it needs arguments.
    pub fn needs_arguments(&self) -> bool {
        !self.arguments().is_empty()
    }

    /// The arguments that it needs.
    pub fn arguments(&self) -> Vec<u8> {
        let Phase::Chunks { pieces, waits } = self else { return vec![] };
        let of_piece = |piece: &Piece| {
            let length = match piece.chunk {
                Chunk::Counted {
                    length: Length::Argument(index) | Length::Word(index) | Length::Smaller(index),
                    ..
                } => Some(index),
                _ => None,
            };
            let of_tests: Vec<u8> = piece.only.iter().filter_map(Test::argument).collect();
            [piece.chunk.address()].into_iter().chain(length).chain(of_tests).collect::<Vec<u8>>()
        };
        let mut all: Vec<u8> =
            pieces.iter().flat_map(of_piece).chain(waits.and_then(|test| test.argument())).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The argument with the address of a u32 that is needed as it was at the start.
    pub(super) fn saved(&self) -> Option<u8> {
        let Phase::Chunks { pieces, .. } = self else { return None };
        pieces.iter().find_map(|piece| match piece.chunk {
            Chunk::Counted { length: Length::Smaller(index), .. } => Some(index),
            _ => None,
        })
    }

    /// The same, but it WAITS if the test is true.
    fn waits_if(self, test: Test) -> Phase {
        match self {
            Phase::Waits => Phase::Waits,
            Phase::Chunks { pieces, .. } => Phase::Chunks { pieces, waits: Some(test) },
        }
    }
}

const NOTHING: [Piece; 0] = [];

/// Of larger buffers of data no part is copied: the thread WAITS.
const DATA_BYTES_MAX: u32 = 4096;

fn always(chunk: Chunk) -> Piece {
    Piece { chunk, only: vec![] }
}

fn text(address: u8) -> Piece {
    always(Chunk::Text(address))
}

fn bytes(address: u8, bytes: u32) -> Piece {
    always(Chunk::Bytes(address, bytes))
}

/// What a call has written, unless it failed.
fn output(address: u8, bytes: u32) -> Piece {
    bytes_if(address, bytes, Test::Succeeds)
}

fn bytes_if(address: u8, bytes: u32, test: Test) -> Piece {
    Piece { chunk: Chunk::Bytes(address, bytes), only: vec![test] }
}

fn counted(address: u8, length: Length, unit: u32, bytes_max: u32) -> Piece {
    let only = if matches!(length, Length::Result) { vec![Test::ResultAbove(0)] } else { vec![] };
    Piece { chunk: Chunk::Counted { address, length, unit, bytes_max }, only }
}

fn chunks<const N: usize>(pieces: [Piece; N]) -> Phase {
    Phase::Chunks { pieces: pieces.into(), waits: None }
}

/// Bytes of structures that strace reads (x86-64).
mod size {
    pub(super) const ITIMER: u32 = 32;
    pub(super) const RLIMIT: u32 = 16;
    pub(super) const RUSAGE: u32 = 144;
    pub(super) const SIGACTION: u32 = 32;
    pub(super) const SIGINFO: u32 = 128;
    pub(super) const SIGSET: u32 = 8;
    pub(super) const SOCKADDR: u32 = 128;
    pub(super) const STACK: u32 = 24;
    pub(super) const STAT: u32 = 144;
    pub(super) const STATFS: u32 = 120;
    pub(super) const STATX: u32 = 256;
    pub(super) const SYSINFO: u32 = 112;
    pub(super) const TIME: u32 = 16;
    pub(super) const TMS: u32 = 32;
    pub(super) const UTSNAME: u32 = 390;
}

/// Commands of `fcntl` whose argument is a number or none: F_DUPFD to F_SETFL, F_SETOWN to F_GETSIG, F_SETLEASE to F_NOTIFY,
/// F_DUPFD_CLOEXEC to F_GET_SEALS.
const FCNTL_NUMBERS: &[u32] = &[0, 1, 2, 3, 4, 8, 9, 10, 11, 1024, 1025, 1026, 1030, 1031, 1032, 1033, 1034];
/// Operations of `futex` with a timeout (without their flags): FUTEX_WAIT, _LOCK_PI, _WAIT_BITSET, _WAIT_REQUEUE_PI, _LOCK_PI2.
const FUTEX_TIMED: &[u32] = &[0, 6, 9, 11, 13];
/// All but FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME.
const FUTEX_OPERATION: u32 = !(128 | 256);
/// ARCH_GET_FS and ARCH_GET_GS.
const ARCH_GET: &[u32] = &[0x1003, 0x1004];
const EPOLL_CTL_DEL: u32 = 2;
/// CLONE_PARENT_SETTID and CLONE_PIDFD.
const CLONE_PARENT_NUMBER: u32 = 0x0010_0000 | 0x1000;
/// Elements of `poll`'s array, and events of `epoll_wait`, that a record has at most.
const POLL_COUNT_MAX: u32 = 16;
const EPOLL_COUNT_MAX: u32 = 16;
const POLLFD_BYTES: u32 = 8;
const EPOLL_EVENT_BYTES: u32 = 12;
/// Bytes of a CPU mask that a record has at most.
const CPU_MASK_BYTES_MAX: u32 = 128;

/// Calls with parameters that are declared as numbers and may be addresses for strace, or that it shows with more than arguments.
const NO_NUMBERS: &[&str] = &[
    "arch_prctl",
    "fcntl",
    "ioctl",
    "kcmp",
    "keyctl",
    "prctl",
    "ptrace",
    "rt_sigreturn",
    "semctl",
    "sysfs",
    "lsm_list_modules",
    "lsm_get_self_attr",
    "lsm_set_self_attr",
];

/// Whether a call has only numbers, for the kernel and for strace.
fn has_only_numbers(call: &Syscall) -> bool {
    let is_address = |parameter: &str| parameter.contains('*') || parameter.starts_with("cap_user_");
    !NO_NUMBERS.contains(&call.name) && !call.parameters().any(is_address)
}

/// What a call's records are, by the name of its tracepoint.
pub fn call(name: &str, wanted: Wanted) -> Call {
    let waits = Call { start: Phase::Waits, end: Phase::Waits };
    if wanted.exact {
        return waits;
    }
    if TABLE.iter().any(|call| call.name == name && has_only_numbers(call)) {
        return Call { start: chunks(NOTHING), end: chunks(NOTHING) };
    }
    let found = of_data(name, wanted).or_else(|| of_paths(name)).or_else(|| of_memory_and_signals(name));
    let found = found.or_else(|| of_time(name)).or_else(|| of_processes(name)).or_else(|| of_events(name));
    found.map_or(waits, |(start, end)| Call { start, end })
}

type Phases = Option<(Phase, Phase)>;

/// Calls with buffers of data.
fn of_data(name: &str, wanted: Wanted) -> Phases {
    // (strace reads one byte more than it shows.)
    let bytes_max = wanted.bytes_max.saturating_add(1);
    let data = |address, length| counted(address, length, 1, bytes_max);
    let phases = match name {
        "write" | "pwrite64" => (chunks([data(1, Length::Argument(2))]), chunks(NOTHING)),
        "read" | "pread64" => (chunks(NOTHING), chunks([data(1, Length::Result)])),
        "getrandom" => (chunks(NOTHING), chunks([data(0, Length::Result)])),
        "readlink" => (chunks([text(0)]), chunks([data(1, Length::Result)])),
        "readlinkat" => (chunks([text(1)]), chunks([data(2, Length::Result)])),
        _ => return None,
    };
    let (start, end) = phases;
    Some(if bytes_max > DATA_BYTES_MAX { (waiting(start), waiting(end)) } else { (start, end) })
}

/// The same, but it WAITS if it has data.
fn waiting(phase: Phase) -> Phase {
    let has_data = match &phase {
        Phase::Waits => true,
        Phase::Chunks { pieces, .. } => pieces.iter().any(|piece| matches!(piece.chunk, Chunk::Counted { .. })),
    };
    if has_data { Phase::Waits } else { phase }
}

/// Calls with names of files.
fn of_paths(name: &str) -> Phases {
    let start = match name {
        "open" | "creat" | "newstat" | "newlstat" | "access" | "unlink" | "mkdir" | "rmdir" | "chmod" | "chown"
        | "lchown" | "chdir" | "chroot" | "truncate" | "mknod" | "statfs" | "swapon" | "swapoff" | "acct"
        | "umount" => chunks([text(0)]),
        "openat" | "newfstatat" | "statx" | "faccessat" | "faccessat2" | "unlinkat" | "mkdirat" | "fchownat"
        | "fchmodat" | "mknodat" | "inotify_add_watch" => chunks([text(1)]),
        "utimes" => chunks([text(0), bytes(1, 2 * size::TIME)]),
        "utime" => chunks([text(0), bytes(1, 16)]),
        "futimesat" => chunks([text(1), bytes(2, 2 * size::TIME)]),
        "rename" | "link" | "symlink" | "pivot_root" => chunks([text(0), text(1)]),
        "renameat" | "renameat2" | "linkat" => chunks([text(1), text(3)]),
        "symlinkat" => chunks([text(0), text(2)]),
        "utimensat" => chunks([text(1), bytes(2, 2 * size::TIME)]),
        "newfstat" | "fstatfs" | "getcwd" => chunks(NOTHING),
        _ => return None,
    };
    let end = match name {
        "newstat" | "newlstat" | "newfstat" => chunks([output(1, size::STAT)]),
        "newfstatat" => chunks([output(2, size::STAT)]),
        "statx" => chunks([output(4, size::STATX)]),
        "statfs" | "fstatfs" => chunks([output(1, size::STATFS)]),
        "getcwd" => chunks([Piece { chunk: Chunk::Text(0), only: vec![Test::ResultAbove(0)] }]),
        _ => chunks(NOTHING),
    };
    Some((start, end))
}

fn of_memory_and_signals(name: &str) -> Phases {
    let sigset = |address, length| counted(address, Length::Argument(length), 1, size::SIGSET);
    let old_sigset = |address, length| Piece { only: vec![Test::Succeeds], ..sigset(address, length) };
    Some(match name {
        "set_robust_list" | "set_tid_address" | "munmap" | "shmdt" => (chunks(NOTHING), chunks(NOTHING)),
        "rt_sigprocmask" => (chunks([sigset(1, 3)]), chunks([old_sigset(2, 3)])),
        "rt_sigpending" => (chunks(NOTHING), chunks([old_sigset(0, 1)])),
        "signalfd" | "signalfd4" => (chunks([sigset(1, 2)]), chunks(NOTHING)),
        "rt_sigsuspend" => (chunks([sigset(0, 1)]), chunks(NOTHING)),
        "rt_sigaction" => (chunks([bytes(1, size::SIGACTION)]), chunks([output(2, size::SIGACTION)])),
        "sigaltstack" => (chunks([bytes(0, size::STACK)]), chunks([output(1, size::STACK)])),
        _ => return None,
    })
}

fn of_time(name: &str) -> Phases {
    let start = match name {
        "clock_settime" => chunks([bytes(1, size::TIME)]),
        "timer_settime" => chunks([bytes(2, size::ITIMER)]),
        "nanosleep" => chunks([bytes(0, size::TIME)]),
        "clock_nanosleep" => chunks([bytes(2, size::TIME)]),
        "setitimer" => chunks([bytes(1, size::ITIMER)]),
        "timerfd_settime" => chunks([bytes(2, size::ITIMER)]),
        "clock_gettime" | "clock_getres" | "gettimeofday" | "time" | "getitimer" | "timerfd_gettime"
        | "timer_gettime" | "times" => chunks(NOTHING),
        _ => return None,
    };
    let end = match name {
        "clock_gettime" | "clock_getres" => chunks([output(1, size::TIME)]),
        "gettimeofday" => chunks([output(0, size::TIME), output(1, 8)]),
        "time" => chunks([output(0, 8)]),
        "times" => chunks([output(0, size::TMS)]),
        "nanosleep" => chunks([bytes_if(1, size::TIME, Test::Fails)]),
        "clock_nanosleep" => chunks([bytes_if(3, size::TIME, Test::Fails)]),
        "getitimer" | "timerfd_gettime" | "timer_gettime" => chunks([output(1, size::ITIMER)]),
        "setitimer" => chunks([output(2, size::ITIMER)]),
        "timerfd_settime" | "timer_settime" => chunks([output(3, size::ITIMER)]),
        _ => chunks(NOTHING),
    };
    Some((start, end))
}

fn of_processes(name: &str) -> Phases {
    let start = match name {
        "setrlimit" => chunks([bytes(1, size::RLIMIT)]),
        "prlimit64" => chunks([bytes(2, size::RLIMIT)]),
        "sched_setaffinity" => chunks([counted(2, Length::Word(1), 1, CPU_MASK_BYTES_MAX)])
            .waits_if(Test::ArgumentAbove(1, CPU_MASK_BYTES_MAX)),
        "execve" | "execveat" => Phase::Waits,
        "fcntl" => chunks(NOTHING).waits_if(Test::NotAmong { index: 1, values: FCNTL_NUMBERS }),
        "getrlimit" | "getrusage" | "newuname" | "sysinfo" | "wait4" | "waitid" | "arch_prctl" | "clone"
        | "sched_getaffinity" | "pipe" | "pipe2" | "socketpair" | "getresuid" | "getresgid" | "getcpu" => {
            chunks(NOTHING)
        }
        _ => return None,
    };
    let end = match name {
        "prlimit64" => chunks([output(3, size::RLIMIT)]),
        "getrlimit" => chunks([output(1, size::RLIMIT)]),
        "getrusage" => chunks([output(1, size::RUSAGE)]),
        "newuname" => chunks([output(0, size::UTSNAME)]),
        "sysinfo" => chunks([output(0, size::SYSINFO)]),
        "wait4" => chunks([bytes_if(1, 4, Test::ResultAbove(0)), bytes_if(3, size::RUSAGE, Test::ResultAbove(0))]),
        "waitid" => chunks([output(2, size::SIGINFO), output(4, size::RUSAGE)]),
        "fcntl" => chunks(NOTHING).waits_if(Test::NotAmong { index: 1, values: FCNTL_NUMBERS }),
        // (One that has failed may write to the terminal next: strace has shown the call before.)
        "execve" | "execveat" => Phase::Waits,
        "arch_prctl" => {
            let gets = Test::Among { index: 0, mask: !0, values: ARCH_GET };
            chunks([Piece { chunk: Chunk::Bytes(1, 8), only: vec![Test::Succeeds, gets] }])
        }
        "clone" => {
            let has_number = Test::Any { index: 0, bits: CLONE_PARENT_NUMBER };
            chunks([Piece { chunk: Chunk::Bytes(2, 4), only: vec![Test::Succeeds, has_number] }])
        }
        "sched_getaffinity" => chunks([counted(2, Length::Result, 1, CPU_MASK_BYTES_MAX)])
            .waits_if(Test::ResultAbove(CPU_MASK_BYTES_MAX)),
        "pipe" | "pipe2" => chunks([output(0, 8)]),
        "socketpair" => chunks([output(3, 8)]),
        "getresuid" | "getresgid" => chunks([output(0, 4), output(1, 4), output(2, 4)]),
        "getcpu" => chunks([output(0, 4), output(1, 4)]),
        _ => chunks(NOTHING),
    };
    Some((start, end))
}

fn of_events(name: &str) -> Phases {
    let polled = || counted(0, Length::Word(1), POLLFD_BYTES, POLL_COUNT_MAX * POLLFD_BYTES);
    let many = Test::ArgumentAbove(1, POLL_COUNT_MAX);
    Some(match name {
        "futex" => {
            let timed = Test::Among { index: 1, mask: FUTEX_OPERATION, values: FUTEX_TIMED };
            (chunks([bytes_if(3, size::TIME, timed)]), chunks(NOTHING))
        }
        "poll" => (chunks([polled()]).waits_if(many), chunks([polled()]).waits_if(many)),
        "epoll_ctl" => {
            let has_event = Test::NotAmong { index: 1, values: &[EPOLL_CTL_DEL] };
            (chunks([bytes_if(3, EPOLL_EVENT_BYTES, has_event)]), chunks(NOTHING))
        }
        "epoll_wait" => {
            let events = counted(1, Length::Result, EPOLL_EVENT_BYTES, EPOLL_COUNT_MAX * EPOLL_EVENT_BYTES);
            (chunks(NOTHING), chunks([events]).waits_if(Test::ResultAbove(EPOLL_COUNT_MAX)))
        }
        "ppoll" => {
            let (time, mask) = (bytes(2, size::TIME), counted(3, Length::Argument(4), 1, size::SIGSET));
            let start = chunks([polled(), time.clone(), mask]).waits_if(many);
            (start, chunks([polled(), time]).waits_if(many))
        }
        "accept" | "accept4" | "getsockname" | "getpeername" => {
            let mut address = counted(1, Length::Smaller(2), 1, size::SOCKADDR);
            address.only.push(Test::Succeeds);
            (chunks([bytes(2, 4)]), chunks([output(2, 4), address]))
        }
        "sendfile64" => (chunks([bytes(2, 8)]), chunks([bytes(2, 8)])),
        // These show memory that is not copied at the start or at the end only.
        "getdents64" | "getdents" | "readv" | "preadv" | "preadv2" | "mincore" => (chunks(NOTHING), Phase::Waits),
        "recvfrom" => (chunks([bytes(5, 4)]), Phase::Waits),
        "writev" | "pwritev" | "pwritev2" | "sendto" | "sendmsg" | "setsockopt" => (Phase::Waits, chunks(NOTHING)),
        "bind" | "connect" => (chunks([counted(1, Length::Word(2), 1, size::SOCKADDR)]), chunks(NOTHING)),
        _ => return None,
    })
}
