//! What can go wrong with another process, and what to do about it.

use std::fmt;

use ring3_layout::region::REGION_BYTES;

use crate::sites::INT3;

/// Why a process could not be inspected, stopped or changed. It is as it was before.
#[derive(Debug)]
pub enum Error {
    /// There is no process with this id.
    NoSuchProcess {
        /// The id.
        pid: u32,
    },
    /// The kernel does not let this user trace the process.
    NotPermitted {
        /// The process.
        pid: u32,
        /// Who owns it, and what would help.
        why: String,
    },
    /// The id is of a kernel thread.
    KernelThread {
        /// The id.
        pid: u32,
    },
    /// The process runs 32-bit code, or is for another machine.
    NotX86_64 {
        /// The process.
        pid: u32,
        /// What it is.
        what: String,
    },
    /// A debugger or tracer holds the process.
    AlreadyTraced {
        /// The process.
        pid: u32,
        /// The tracer's process id.
        tracer: u32,
    },
    /// The process filters its system calls (seccomp), which could kill it for one that is made for us.
    Seccomp {
        /// The process.
        pid: u32,
        /// What is in the way.
        why: String,
    },
    /// A thread of the process catches its own system calls (syscall user dispatch); those that are made for us would be caught, too.
    OwnDispatch {
        /// The process.
        pid: u32,
    },
    /// The first thread of the process has ended, and others run.
    FirstThreadEnded {
        /// The process.
        pid: u32,
    },
    /// Another process has its memory, and is none of its threads: it would run where something is changed.
    SharesMemory {
        /// The process.
        pid: u32,
        /// The other one.
        other: u32,
    },
    /// A thread did not stop in time.
    ThreadDoesNotStop {
        /// The thread.
        tid: u32,
        /// Its state in `/proc/PID/stat`.
        state: char,
    },
    /// The process ended meanwhile.
    Exited {
        /// The process.
        pid: u32,
    },
    /// The process executed another program meanwhile, or ended.
    Executed {
        /// The process.
        pid: u32,
    },
    /// A system call made inside the process failed.
    RemoteCall {
        /// The system call.
        name: &'static str,
        /// Its error.
        errno: i32,
    },
    /// No free addresses where they are needed.
    NoRoom {
        /// For what.
        what: String,
    },
    /// The bytes at a site are not the expected ones: another tool changed them.
    BytesDiffer {
        /// The site.
        address: u64,
        /// What was expected.
        expected: Vec<u8>,
        /// What is there.
        found: Vec<u8>,
    },
    /// A thread stands inside bytes that are to be replaced.
    ThreadInside {
        /// The thread.
        tid: u32,
        /// Where.
        address: u64,
    },
    /// The machine lacks something.
    Unsupported {
        /// What.
        what: String,
    },
    /// A call of our own failed.
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether a breakpoint that is not ours is in the way: it may go again.
    pub fn is_breakpoint(&self) -> bool {
        let Error::BytesDiffer { expected, found, .. } = self else { return false };
        found.iter().zip(expected).any(|(found, expected)| found != expected && *found == INT3)
    }

    /// Whether the process, or the program that it was known to run, is there no more.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::NoSuchProcess { .. } | Error::Exited { .. } | Error::Executed { .. })
    }

    /// A failed call of our own.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Error {
        Error::Io { what: what.into(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchProcess { pid } => write!(f, "no process with id {pid}"),
            Error::NotPermitted { pid, why } => write!(f, "not permitted to trace process {pid}: {why}"),
            Error::KernelThread { pid } => write!(f, "{pid} is a kernel thread; it has no user code to trace"),
            Error::NotX86_64 { pid, what } => {
                write!(f, "process {pid} is {what}; only 64-bit x86-64 processes can be traced")
            }
            Error::AlreadyTraced { pid, tracer } => write!(
                f,
                "process {pid} is already traced by process {tracer} (a debugger or strace?); end that first"
            ),
            Error::Seccomp { pid, why } => {
                write!(f, "process {pid} has a seccomp filter that could kill it for ring3's system calls: {why}")
            }
            Error::OwnDispatch { pid } => write!(
                f,
                "process {pid} catches its own system calls (syscall user dispatch), and would catch ring3's"
            ),
            Error::FirstThreadEnded { pid } => write!(
                f,
                "the first thread of process {pid} has ended (pthread_exit in main), and the kernel shows the memory of such a process by no \
                 process id; it can be traced from its start: ring3 start"
            ),
            Error::SharesMemory { pid, other } => write!(
                f,
                "process {pid} shares its memory with process {other} (CLONE_VM), which is no thread of it and would run where code is \
                 changed; begin the program by `ring3 start`, before it makes the other one"
            ),
            Error::ThreadDoesNotStop { tid, state } => write!(
                f,
                "thread {tid} does not stop (state {state}: waiting in the kernel, for a vfork child or a device?); nothing was changed"
            ),
            Error::Exited { pid } => write!(f, "process {pid} exited meanwhile"),
            Error::Executed { pid } => write!(f, "process {pid} executed another program meanwhile"),
            Error::RemoteCall { name, errno } => {
                write!(f, "{name} inside the process failed: {}", std::io::Error::from_raw_os_error(*errno))?;
                let raised = "prlimit(1) raises that of a running process";
                match *errno {
                    libc::EMFILE => write!(f, "; its RLIMIT_NOFILE leaves no descriptor: {raised}"),
                    libc::ENOMEM => write!(
                        f,
                        "; if its RLIMIT_AS or RLIMIT_DATA is the reason (at least {} MiB of addresses are needed): {raised}",
                        (REGION_BYTES >> 20) + 1
                    ),
                    _ => Ok(()),
                }
            }
            Error::NoRoom { what } => write!(f, "no room for {what}"),
            Error::BytesDiffer { address, expected, found } => {
                let who = match self.is_breakpoint() {
                    true => "a breakpoint is there: a kernel uprobe's, or a debugger's",
                    false => "another tool changed it",
                };
                let bytes = format!("expected {expected:02x?}, found {found:02x?}");
                write!(f, "the code at {address:#x} is not what its file says ({bytes}); {who}")
            }
            Error::ThreadInside { tid, address } => {
                write!(f, "thread {tid} stands at {address:#x}, inside the instructions to be replaced")
            }
            Error::Unsupported { what } => write!(f, "not supported here: {what}"),
            Error::Io { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
