//! What a program of a perf event, or of a thread's end, sees instead of the thread that runs it.
//!
//! Such a program runs in a process of the server's, a little after its event. What the event interrupted is a sample, which
//! stands for the running thread in that run.

/// A sample. Lies in the process that runs the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled {
    /// As `bpf_get_current_pid_tgid` returns it; 0: the CPU was idle.
    pub pid_tgid: u64,
    /// As `bpf_get_current_uid_gid` returns it.
    pub uid_gid: u64,
    /// The thread's name, zero-padded.
    pub comm: [u64; 2],
    /// Address of the return addresses in the kernel, the innermost first.
    pub kernel_frames: u64,
    /// How many there are.
    pub kernel_count: u64,
    /// Address of the return addresses in the process.
    pub user_frames: u64,
    /// How many there are.
    pub user_count: u64,
    /// Address of the program's context, which it may read as the kernel's memory.
    pub context: u64,
    /// Its bytes.
    pub context_bytes: u64,
    /// 1: the thread has ended, and nothing else tells of it than what follows.
    pub has_ended: u64,
    /// Its `task_struct::exit_code` and [`crate::thread::EXIT_CODE_SET`]; 0: it is not known.
    pub exit_code: u64,
    /// When it began, ns since boot; 0: not known.
    pub started_ns: u64,
    /// The process id of its parent.
    pub parent: u64,
}
