//! The tracepoints that there are here, of system calls and of a task's life: names, ids and `format` files as the kernel's
//! (kernel/trace/trace_syscalls.c, include/trace/events/syscalls.h, v6.18; `task_event.rs`), but for the ids, which are none of the
//! kernel's.

use std::fmt::Write as _;

use ring3_layout::task_event::TaskEvent;
use ring3_uapi::syscalls::{self, Syscall, TABLE};

use super::task_event;
use crate::kernel;
use crate::realm::Calls;

/// Ids of events are 16 bits wide in the kernel (`struct trace_entry::type`): ours begin where they end.
const ID_BASE: u64 = 0x1_0000;
/// Those of [`TaskEvent`]s.
const TASK_ID_BASE: u64 = 0x2_0000;
/// Those of the calls without names.
const UNNAMED_ID_BASE: u64 = 0x3_0000;

/// The fields that every event begins with.
const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
";
/// The number's field of `syscalls:*`.
const NUMBER: &str = "\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n";

/// A tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tracepoint {
    /// `syscalls:sys_enter_*` and `sys_exit_*`; with all system calls `raw_syscalls:sys_enter` and `sys_exit`; with those that have no
    /// event in `syscalls`, `raw_syscalls:sys_enter_unnamed` and `sys_exit_unnamed`, which the kernel does not have, and no list shows.
    Call {
        /// Which.
        calls: Calls,
        /// When it ends instead of begins.
        exit: bool,
    },
    /// Of a task's life.
    Task(TaskEvent),
}

use Tracepoint::{Call, Task};

impl Tracepoint {
    /// The parent directories of their directories.
    pub const CATEGORIES: [&str; 4] = ["raw_syscalls", "syscalls", "sched", "signal"];

    /// All that there are.
    pub fn all() -> impl Iterator<Item = Tracepoint> {
        let which = std::iter::once(Calls::All).chain(TABLE.iter().map(|call| Calls::Of(call.number)));
        let calls = which.flat_map(|calls| [false, true].map(|exit| Call { calls, exit }));
        calls.chain(TaskEvent::ALL.map(Task))
    }

    /// Those that lists show: not of calls that the kernel does not carry out. (A process may make them all the same, and `ring3 trace`
    /// shows that they fail: by name they are found.)
    pub fn listed() -> impl Iterator<Item = Tracepoint> {
        Tracepoint::all().filter(|tracepoint| tracepoint.call().is_none_or(|call| kernel::has_call(call.name)))
    }

    /// The event of a category with a name.
    pub fn named(category: &str, name: &str) -> Option<Tracepoint> {
        let mut of_tasks = TaskEvent::ALL.map(Task).into_iter();
        if let Some(event) = of_tasks.find(|event| event.category() == category && event.name() == name) {
            return Some(event);
        }
        let (exit, rest) = match (name.strip_prefix("sys_enter"), name.strip_prefix("sys_exit")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return None,
        };
        match (category, rest.strip_prefix('_')) {
            ("raw_syscalls", None) if rest.is_empty() => Some(Call { calls: Calls::All, exit }),
            ("raw_syscalls", Some("unnamed")) => Some(Call { calls: Calls::Unnamed, exit }),
            ("syscalls", Some(call)) => {
                syscalls::by_name(call).map(|call| Call { calls: Calls::Of(call.number), exit })
            }
            _ => None,
        }
    }

    /// The one whose raw tracepoint has this name.
    pub fn raw(name: &str) -> Option<Tracepoint> {
        ["raw_syscalls", "sched", "signal"].into_iter().find_map(|category| Tracepoint::named(category, name))
    }

    /// The one with this id.
    pub fn of_id(id: u64) -> Option<Tracepoint> {
        if let Some(index) = id.checked_sub(UNNAMED_ID_BASE) {
            return (index < 2).then_some(Call { calls: Calls::Unnamed, exit: index == 1 });
        }
        if let Some(index) = id.checked_sub(TASK_ID_BASE) {
            return TaskEvent::ALL.get(usize::try_from(index).ok()?).copied().map(Task);
        }
        let index = id.checked_sub(ID_BASE)?;
        let number = (index / 2).checked_sub(1).map(u32::try_from).transpose().ok()?;
        let known = number.is_none_or(|number| syscalls::by_number(number).is_some());
        known.then_some(Call { calls: number.map_or(Calls::All, Calls::Of), exit: index % 2 == 1 })
    }

    /// What stands in its file `id`.
    pub fn id(self) -> u64 {
        match self {
            Call { calls, exit } => {
                let first = match calls {
                    Calls::All => ID_BASE,
                    Calls::Of(number) => ID_BASE + 2 * (u64::from(number) + 1),
                    // (Functions that are never called have no tracepoint.)
                    Calls::Unnamed | Calls::Never => UNNAMED_ID_BASE,
                };
                first + u64::from(exit)
            }
            Task(event) => TASK_ID_BASE + event as u64,
        }
    }

    fn call(self) -> Option<&'static Syscall> {
        match self {
            Call { calls: Calls::Of(number), .. } => syscalls::by_number(number),
            Call { .. } | Task(_) => None,
        }
    }

    /// The parent directory of its directory.
    pub fn category(self) -> &'static str {
        match self {
            Call { calls: Calls::Of(_), .. } => "syscalls",
            Call { .. } => "raw_syscalls",
            Task(TaskEvent::SignalGenerate) => "signal",
            Task(_) => "sched",
        }
    }

    /// Its name without the category.
    pub fn name(self) -> String {
        let when = match self {
            Task(event) => return task_event::name(event).to_owned(),
            Call { exit: true, .. } => "sys_exit",
            Call { exit: false, .. } => "sys_enter",
        };
        if let Call { calls: Calls::Unnamed, .. } = self {
            return format!("{when}_unnamed");
        }
        self.call().map_or(when.to_owned(), |call| format!("{when}_{}", call.name))
    }

    /// Bytes of its context that programs may read. Mirrors kernel/trace/trace_event_perf.c:trace_event_get_offsets: to
    /// the end of the last field.
    pub fn context_bytes(self) -> u32 {
        let exit = match self {
            Task(event) => return task_event::context_bytes(event),
            Call { exit, .. } => exit,
        };
        match (self.call().map(|call| call.parameters().count()), exit) {
            (_, true) => 24,
            (None, false) => 64,
            (Some(0), false) => 12,
            (Some(parameters), false) => 16 + 8 * parameters as u32,
        }
    }

    /// Bytes of the arguments of its raw tracepoint that are here, and what a program reads that reads more.
    pub fn raw_arguments(self) -> (u32, &'static str) {
        match self {
            Call { .. } => (16, "more arguments than it has"),
            Task(event) => task_event::raw_arguments(event),
        }
    }

    /// Its file `format`.
    pub fn format(self) -> String {
        let exit = matches!(self, Call { exit: true, .. });
        let fields = match (self.call(), exit) {
            _ if let Task(event) = self => task_event::fields(event),
            (None, false) => format!(
                "{}{}\nprint fmt: \"NR %ld (%lx, %lx, %lx, %lx, %lx, %lx)\", REC->id{}",
                field("long id", 8, 8, true),
                field("unsigned long args[6]", 16, 48, false),
                (0..6).map(|index| format!(", REC->args[{index}]")).collect::<String>(),
            ),
            (None, true) => format!(
                "{}{}\nprint fmt: \"NR %ld = %ld\", REC->id, REC->ret",
                field("long id", 8, 8, true),
                field("long ret", 16, 8, true),
            ),
            (Some(_), true) => {
                format!("{NUMBER}{}\nprint fmt: \"0x%lx\", REC->ret", field("long ret", 16, 8, true))
            }
            (Some(call), false) => parameters(call),
        };
        format!("name: {}\nID: {}\nformat:\n{COMMON}\n{fields}\n", self.name(), self.id())
    }
}

impl std::fmt::Display for Tracepoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.category(), self.name())
    }
}

pub(super) fn field(what: &str, offset: usize, bytes: usize, signed: bool) -> String {
    format!("\tfield:{what};\toffset:{offset};\tsize:{bytes};\tsigned:{};\n", u32::from(signed))
}

/// The fields of an entry. Mirrors kernel/trace/trace_syscalls.c:syscall_enter_define_fields and __set_enter_print_fmt.
fn parameters(call: &Syscall) -> String {
    let (mut fields, mut formats, mut values) = (NUMBER.to_owned(), vec![], String::new());
    for (index, parameter) in call.parameters().enumerate() {
        let name = parameter.rsplit(' ').next().unwrap_or_default();
        fields += &field(parameter, 16 + 8 * index, 8, false);
        formats.push(format!("{name}: 0x%08lx"));
        let _ = write!(values, ", ((unsigned long)(REC->{name}))");
    }
    format!("{fields}\nprint fmt: \"{}\"{values}", formats.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_lead_back_and_are_none_of_the_kernels() {
        let unnamed = [false, true].map(|exit| Call { calls: Calls::Unnamed, exit });
        for tracepoint in Tracepoint::all().chain(unnamed) {
            assert!(tracepoint.id() > u64::from(u16::MAX) && tracepoint.id() < i32::MAX as u64);
            assert_eq!(Tracepoint::of_id(tracepoint.id()), Some(tracepoint));
            assert_eq!(Tracepoint::named(tracepoint.category(), &tracepoint.name()), Some(tracepoint));
        }
        let nothing = [0, 443, 0xffff, ID_BASE + 2 * (134 + 1), ID_BASE + 2000, TASK_ID_BASE + 4, u64::MAX];
        assert!(nothing.iter().all(|id| Tracepoint::of_id(*id).is_none()));
        for (category, name) in [
            ("syscalls", "sys_enter"),
            ("raw_syscalls", "sys_enter_open"),
            ("sched", "sys_exit"),
            ("sched", "signal_generate"),
            ("syscalls", ""),
        ] {
            assert_eq!(Tracepoint::named(category, name), None, "{category}:{name}");
        }
    }

    #[test]
    fn contexts_end_with_the_last_field() {
        let bytes = |category, name| Tracepoint::named(category, name).map(Tracepoint::context_bytes);
        assert_eq!(bytes("syscalls", "sys_enter_openat"), Some(48));
        assert_eq!(bytes("syscalls", "sys_enter_getpid"), Some(12));
        assert_eq!(bytes("syscalls", "sys_exit_getpid"), Some(24));
        assert_eq!(bytes("raw_syscalls", "sys_enter"), Some(64));
        assert_eq!(bytes("raw_syscalls", "sys_exit"), Some(24));
    }

    /// The kernel's file, if it may be read here: in a mount namespace of its own, so that nothing stays.
    fn kernels() -> Option<String> {
        let list = "mount -t tracefs none /mnt && cd /mnt/events && head -n 1000 syscalls/sys_*/format raw_syscalls/*/format \
                    sched/sched_process_{exec,exit,fork}/format signal/signal_generate/format";
        let output = std::process::Command::new("unshare").args(["-m", "bash", "-c", list]).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn formats_are_the_kernels_but_for_the_id() {
        let Some(kernels) = kernels() else {
            println!("SKIPPED: comparing all formats with the kernel's needs root and tracefs");
            return;
        };
        let without_id =
            |text: &str| text.lines().filter(|line| !line.starts_with("ID: ")).collect::<Vec<_>>().join("\n");
        let (mut compared, mut unknown) = (0, vec![]);
        for file in kernels.split("==> ").filter(|file| !file.is_empty()) {
            let (path, text) = file.split_once(" <==\n").expect("a header of head(1)");
            let mut parts = path.split('/');
            let (category, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            match Tracepoint::named(category, name) {
                Some(ours) => {
                    assert_eq!(without_id(&ours.format()), without_id(text.trim_end()), "{path}");
                    assert!(ours.format().ends_with('\n'), "{path}");
                    compared += 1;
                }
                None => unknown.push(path.to_owned()),
            }
        }
        assert!(unknown.is_empty(), "not in the table (`cargo xtask syscalls`): {unknown:?}");
        assert!(compared > 700, "{compared} formats compared");
    }
}
