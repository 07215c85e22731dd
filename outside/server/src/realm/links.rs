//! What a link asks the realm for: a program, where it runs, and in which processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ring3_layout::task_event::TaskEvent;
use ring3_uapi::syscalls::by_number;
use ring3_verifier::ProcessFilter;
use serde::{Deserialize, Serialize};

use super::ProgramText;
use super::files::FileId;
use super::life::Watch;
use super::programs::ExtensionClass;
use super::reports::Terminal;
use crate::rights::Rights;

/// A link, in this realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(pub u64);

/// Where programs run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// At an instruction of a file, or when the function that begins there returns.
    Probe(ProbePoint),
    /// When system calls begin or end.
    Syscall(SyscallPoint),
    /// At an event of a task's life.
    Task(TaskPoint),
}

impl Point {
    /// Whether eBPF programs run here when a program is executed.
    pub(super) fn sees_executions(&self) -> bool {
        match self {
            Point::Probe(_) => false,
            Point::Syscall(point) => TaskEvent::Exec.calls().iter().any(|number| point.calls.has(*number as u32)),
            Point::Task(point) => point.event == TaskEvent::Exec,
        }
    }
}

/// A uprobe or uretprobe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePoint {
    /// The file, openable by the server.
    pub file: PathBuf,
    /// Which file that is.
    pub id: FileId,
    /// Offset of the probed instruction in the file.
    pub offset: u64,
    /// On return instead of entry.
    pub ret: bool,
    /// Offset in the file of a word of 16 bits that is counted up where the probe is placed (`ref_ctr_offset`, the semaphore of
    /// USDT); 0: none.
    pub counter: u64,
}

/// A tracepoint of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallPoint {
    /// Which.
    pub calls: Calls,
    /// When it ends instead of begins.
    pub exit: bool,
    /// What the program's context is.
    pub context: SyscallContext,
}

/// System calls that a tracepoint is for, by their numbers (`__NR_*` of x86-64).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Calls {
    /// Those with this one.
    Of(u32),
    /// All.
    All,
    /// Those for whose numbers there is no tracepoint in the category `syscalls`.
    Unnamed,
    /// None: those of a function that the kernel has for other kinds of programs only.
    Never,
}

impl Calls {
    /// Whether those with a number are among them.
    pub fn has(self, number: u32) -> bool {
        match self {
            Calls::Of(one) => one == number,
            Calls::All => true,
            Calls::Unnamed => by_number(number).is_none(),
            Calls::Never => false,
        }
    }
}

/// A tracepoint of a task's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPoint {
    /// Which one.
    pub event: TaskEvent,
    /// The program's context is the raw tracepoint's arguments, as far as they are here.
    pub raw: bool,
}

/// What a program of a system call's tracepoint finds behind r1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallContext {
    /// `struct syscall_trace_enter` or `struct syscall_trace_exit` (kernel/trace/trace.h), whose first word is the kernel's own.
    Tracepoint,
    /// The arguments of the raw tracepoint: `struct pt_regs *`, and the number or the result.
    Raw,
    /// `struct pt_regs` as at the entry of the kernel's function: `di` is the address of the thread's own `struct pt_regs`. At
    /// its return: `ax` is the result.
    Kprobe,
}

/// What becomes of a target's children and of what it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// They are targets, too.
    All,
    /// Forks are targets, too; programs that they or it execute are if a link wants them ([`Scope`]).
    Wanted,
    /// They are not.
    Nothing,
}

impl Following {
    /// Whether forks are targets, and executions are announced.
    pub(super) fn follows(self) -> bool {
        self != Following::Nothing
    }
}

/// Which processes become targets for links that name none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// For a uprobe each process that maps its file, for system calls none.
    #[default]
    Mapped,
    /// For system calls each process, too.
    All,
    /// None: a link sees the targets that there are.
    Targets,
    /// None, and a link sees of the targets only this process and those that descend from it.
    Family(u32),
}

/// What a link asks for.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// The link's (or perf event's) id, for `ring3 status`.
    pub link_id: u32,
    /// The program's id.
    pub prog_id: u32,
    /// The program's name.
    pub prog_name: String,
    /// The program.
    pub text: Arc<ProgramText>,
    /// Where the program runs.
    pub point: Point,
    /// `bpf_get_attach_cookie`.
    pub cookie: u64,
    /// One process (thread group id as the server sees it), which becomes a target; `None`: every target, and those
    /// processes that become targets by `scope`.
    pub pid: Option<u32>,
    /// Which processes become targets.
    pub scope: Scope,
    /// The process that loaded the program.
    pub loader: u32,
    /// The program uses per-CPU maps.
    pub per_cpu: bool,
    /// The program needs registers that not every frame has ([`ring3_layout::frame`]).
    pub all_registers: bool,
    /// The program reads or writes memory of the process.
    pub reads: bool,
    /// The program asks for the name or the user of the thread.
    pub identity: bool,
    /// The program asks for stacks.
    pub stacks: bool,
    /// Signals may be sent behind the program's run.
    pub signals: bool,
    /// The processes in which the program does anything. It is not attached in others.
    pub filter: ProcessFilter,
    /// Where its loader's user reads what could not be applied.
    pub terminal: Option<Terminal>,
    /// What one run of the program may take.
    pub budget: Option<Duration>,
    /// Of whoever made what the link leads to. It is not attached in processes that these do not reach.
    pub rights: Arc<Rights>,
    /// The program is an extension of this class.
    pub extension: Option<Arc<ExtensionClass>>,
    /// Kept while processes become targets for it.
    pub watch: Option<Arc<Watch>>,
}
