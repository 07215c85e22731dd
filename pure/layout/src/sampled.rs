//! What a program of a perf event sees instead of the thread that runs it.
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
}
