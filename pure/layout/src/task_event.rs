//! Tracepoints of a task's life: `sched:sched_process_exec`, `sched_process_exit`, `sched_process_fork`, and
//! `signal:signal_generate` (docs/design/life.md).
//!
//! The kernel has them in functions that no target contains. Here programs run where the target makes the system call that has
//! the kernel come there, or where a new program begins.

use ring3_uapi::nr;

/// One of these tracepoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskEvent {
    /// A program has been executed.
    Exec = 0,
    /// A thread ends.
    Exit = 1,
    /// A thread or process has been created.
    Fork = 2,
    /// A signal is sent.
    SignalGenerate = 3,
}

impl TaskEvent {
    /// All, by their numbers.
    pub const ALL: [TaskEvent; 4] = [TaskEvent::Exec, TaskEvent::Exit, TaskEvent::Fork, TaskEvent::SignalGenerate];

    /// The system calls at which its programs run.
    pub const fn calls(self) -> &'static [i64] {
        match self {
            TaskEvent::Exec => &[nr::EXECVE, nr::EXECVEAT],
            TaskEvent::Exit => &[nr::EXIT, nr::EXIT_GROUP],
            TaskEvent::Fork => &crate::syscall::CLONE_SYSCALLS,
            TaskEvent::SignalGenerate => &[
                nr::KILL,
                nr::TKILL,
                nr::TGKILL,
                nr::RT_SIGQUEUEINFO,
                nr::RT_TGSIGQUEUEINFO,
                nr::PIDFD_SEND_SIGNAL,
                // SIGCHLD.
                nr::EXIT,
                nr::EXIT_GROUP,
            ],
        }
    }
}

/// Bytes of a thread's name, the NUL included (`TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;
/// Bytes of a path at most, the NUL included (`PATH_MAX`).
pub const PATH_BYTES: usize = 4096;

/// What `__data_loc` fields hold: where the text lies in the entry, and its bytes with the NUL.
pub const fn data_loc(offset: usize, bytes: usize) -> u32 {
    (bytes as u32) << 16 | offset as u32
}

/// `struct trace_event_raw_sched_process_exec`, and the text behind it.
#[repr(C)]
#[derive(Debug)]
pub struct ExecContext {
    /// Address of the registers; in the kernel, too.
    pub regs: u64,
    /// Where `text` lies.
    pub filename: u32,
    /// The thread's id.
    pub pid: u32,
    /// What its id was before.
    pub old_pid: u32,
    /// The path that was executed.
    pub text: [u8; PATH_BYTES],
}

/// `struct trace_event_raw_sched_process_exit`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExitContext {
    /// Address of the registers.
    pub regs: u64,
    /// The thread's name.
    pub comm: [u8; COMM_BYTES],
    /// Its id.
    pub pid: u32,
    /// Its priority.
    pub prio: i32,
    /// 1: it was the last thread of its process. (Since Linux 6.16.)
    pub group_dead: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct trace_event_raw_sched_process_fork` as it is since Linux 6.17, and the names behind it.
#[repr(C)]
#[derive(Debug)]
pub struct ForkContext {
    /// Address of the registers.
    pub regs: u64,
    /// Where in `text` the creator's name lies.
    pub parent_comm: u32,
    /// The creator's thread id.
    pub parent_pid: u32,
    /// Where in `text` the new thread's name lies.
    pub child_comm: u32,
    /// The new thread's id.
    pub child_pid: u32,
    /// The names.
    pub text: [u8; 2 * COMM_BYTES],
}

/// The same as it was before: the names have fixed places.
#[repr(C)]
#[derive(Debug)]
pub struct FixedForkContext {
    /// Address of the registers.
    pub regs: u64,
    /// The creator's name.
    pub parent_comm: [u8; COMM_BYTES],
    /// The creator's thread id.
    pub parent_pid: u32,
    /// The new thread's name.
    pub child_comm: [u8; COMM_BYTES],
    /// The new thread's id.
    pub child_pid: u32,
}

/// `struct trace_event_raw_signal_generate`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SignalContext {
    /// Address of the registers.
    pub regs: u64,
    /// The signal.
    pub sig: i32,
    /// `si_errno`
    pub errno: i32,
    /// `si_code`
    pub code: i32,
    /// The receiver's name.
    pub comm: [u8; COMM_BYTES],
    /// Its thread id.
    pub pid: u32,
    /// 1: the signal is for its process.
    pub group: u32,
    /// `TRACE_SIGNAL_*`.
    pub result: u32,
}

/// `TRACE_SIGNAL_DELIVERED`
pub const SIGNAL_DELIVERED: u32 = 0;
/// `TRACE_SIGNAL_IGNORED`
pub const SIGNAL_IGNORED: u32 = 1;
/// `TRACE_SIGNAL_ALREADY_PENDING`
pub const SIGNAL_ALREADY_PENDING: u32 = 2;

/// `SI_TKILL`
pub const SI_TKILL: i32 = -6;
/// `SIGCHLD`
pub const SIGCHLD: i32 = 17;
/// `SIGCONT`
pub const SIGCONT: i32 = 18;
const SIGKILL: i32 = 9;
const SIGURG: i32 = 23;
const SIGWINCH: i32 = 28;
/// `SIGRTMIN`
const SIGRTMIN: i32 = 32;

/// What `/proc/TID/status` tells of who gets a signal. Masks have bit n - 1 for signal n.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receiver {
    /// Its name.
    pub comm: [u8; COMM_BYTES],
    /// It is a zombie, or about to be one.
    pub is_dead: bool,
    /// It is traced by ptrace.
    pub is_traced: bool,
    /// It is the first process of its pid namespace, which default actions do not end.
    pub is_init: bool,
    /// Pending for the thread (`SigPnd`).
    pub pending: u64,
    /// Pending for the process (`ShdPnd`).
    pub shared_pending: u64,
    /// `SigBlk`
    pub blocked: u64,
    /// `SigIgn`
    pub ignored: u64,
    /// `SigCgt`
    pub caught: u64,
}

impl Receiver {
    /// What becomes of a signal (`TRACE_SIGNAL_*`). Mirrors kernel/signal.c:prepare_signal, sig_ignored and legacy_queue (v6.18).
    pub const fn result(&self, sig: i32, group: bool) -> u32 {
        let bit = 1u64 << (sig - 1);
        let is_default = (self.ignored | self.caught) & bit == 0;
        let drops = matches!(sig, SIGCHLD | SIGCONT | SIGURG | SIGWINCH);
        let discards = self.ignored & bit != 0 || is_default && (drops || self.is_init);
        if self.is_dead || self.blocked & bit == 0 && !(self.is_traced && sig != SIGKILL) && discards {
            return SIGNAL_IGNORED;
        }
        let pending = if group { self.shared_pending } else { self.pending };
        if sig < SIGRTMIN && pending & bit != 0 { SIGNAL_ALREADY_PENDING } else { SIGNAL_DELIVERED }
    }
}

/// Ends of processes that programs have seen in them, by process ids modulo this: the server shows the others.
pub const SEEN_EXITS: usize = 4096;

/// The entry for a process, by its own id, that runs with the tables of a nonce.
pub const fn seen_exit(nonce: u64, pid: u32) -> u64 {
    (nonce as u32 as u64) << 32 | pid as u64
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(ExecContext, text) == 20);
    assert!(offset_of!(ExitContext, group_dead) == 32);
    assert!(offset_of!(ForkContext, text) == 24);
    assert!(offset_of!(FixedForkContext, child_comm) == 28 && offset_of!(FixedForkContext, child_pid) == 44);
    assert!(offset_of!(SignalContext, comm) == 20 && offset_of!(SignalContext, result) == 44);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_signal_is_as_in_the_kernel() {
        let bit = |sig: i32| 1u64 << (sig - 1);
        let default = Receiver::default();
        assert_eq!((default.result(15, true), default.result(SIGCHLD, true)), (SIGNAL_DELIVERED, SIGNAL_IGNORED));
        let ignores = Receiver { ignored: bit(15), ..default };
        assert_eq!((ignores.result(15, true), ignores.result(9, true)), (SIGNAL_IGNORED, SIGNAL_DELIVERED));
        let blocks = Receiver { blocked: bit(15), shared_pending: bit(15), ..ignores };
        assert_eq!((blocks.result(15, true), blocks.result(15, false)), (SIGNAL_ALREADY_PENDING, SIGNAL_DELIVERED));
        let catches = Receiver { caught: bit(SIGCHLD), ..default };
        assert_eq!(catches.result(SIGCHLD, true), SIGNAL_DELIVERED);
        let queues = Receiver { blocked: bit(34), shared_pending: bit(34), ..default };
        assert_eq!(queues.result(34, true), SIGNAL_DELIVERED);
        assert_eq!(Receiver { is_dead: true, ..catches }.result(SIGCHLD, true), SIGNAL_IGNORED);
        assert_eq!(Receiver { is_traced: true, ..ignores }.result(15, true), SIGNAL_DELIVERED);
        assert_eq!(Receiver { is_init: true, ..default }.result(15, true), SIGNAL_IGNORED);
    }
}
