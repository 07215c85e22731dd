//! The files of the tracepoints of a task's life (include/trace/events/sched.h, include/trace/events/signal.h), as the running
//! kernel has them: they have changed.

use ring3_layout::task_event::{COMM_BYTES, TaskEvent};

use super::tracepoint::field;
use crate::kernel::known;

/// The name without the category.
pub(super) fn name(event: TaskEvent) -> &'static str {
    match event {
        TaskEvent::Exec => "sched_process_exec",
        TaskEvent::Exit => "sched_process_exit",
        TaskEvent::Fork => "sched_process_fork",
        TaskEvent::SignalGenerate => "signal_generate",
    }
}

/// A field: its declaration, offset, bytes, and whether it is signed.
type Field = (&'static str, usize, usize, bool);

/// The fields, and how an entry is printed.
fn described(event: TaskEvent) -> (Vec<Field>, &'static str) {
    match event {
        TaskEvent::Exec => (
            vec![
                ("__data_loc char[] filename", 8, 4, false),
                ("pid_t pid", 12, 4, true),
                ("pid_t old_pid", 16, 4, true),
            ],
            "\"filename=%s pid=%d old_pid=%d\", __get_str(filename), REC->pid, REC->old_pid",
        ),
        TaskEvent::Exit => {
            let mut fields =
                vec![("char comm[16]", 8, COMM_BYTES, false), ("pid_t pid", 24, 4, true), ("int prio", 28, 4, true)];
            if !known().exits_tell_group {
                return (fields, "\"comm=%s pid=%d prio=%d\", REC->comm, REC->pid, REC->prio");
            }
            fields.push(("bool group_dead", 32, 1, false));
            let print = "\"comm=%s pid=%d prio=%d group_dead=%s\", REC->comm, REC->pid, REC->prio, REC->group_dead ? \"true\" : \"false\"";
            (fields, print)
        }
        TaskEvent::Fork if known().forks_are_fixed => (
            vec![
                ("char parent_comm[16]", 8, COMM_BYTES, false),
                ("pid_t parent_pid", 24, 4, true),
                ("char child_comm[16]", 28, COMM_BYTES, false),
                ("pid_t child_pid", 44, 4, true),
            ],
            "\"comm=%s pid=%d child_comm=%s child_pid=%d\", REC->parent_comm, REC->parent_pid, REC->child_comm, REC->child_pid",
        ),
        TaskEvent::Fork => (
            vec![
                ("__data_loc char[] parent_comm", 8, 4, false),
                ("pid_t parent_pid", 12, 4, true),
                ("__data_loc char[] child_comm", 16, 4, false),
                ("pid_t child_pid", 20, 4, true),
            ],
            "\"comm=%s pid=%d child_comm=%s child_pid=%d\", __get_str(parent_comm), REC->parent_pid, __get_str(child_comm), REC->child_pid",
        ),
        TaskEvent::SignalGenerate => (
            vec![
                ("int sig", 8, 4, true),
                ("int errno", 12, 4, true),
                ("int code", 16, 4, true),
                ("char comm[16]", 20, COMM_BYTES, false),
                ("pid_t pid", 36, 4, true),
                ("int group", 40, 4, true),
                ("int result", 44, 4, true),
            ],
            "\"sig=%d errno=%d code=%d comm=%s pid=%d grp=%d res=%d\", REC->sig, REC->errno, REC->code, REC->comm, REC->pid, REC->group, REC->result",
        ),
    }
}

/// Bytes of its context that programs may read: to the end of the last field.
pub(super) fn context_bytes(event: TaskEvent) -> u32 {
    described(event).0.last().map_or(0, |(_, offset, bytes, _)| (offset + bytes) as u32)
}

/// Of its file `format`, what comes behind the fields that all events have.
pub(super) fn fields(event: TaskEvent) -> String {
    let (fields, print) = described(event);
    let lines = fields.into_iter().map(|(what, offset, bytes, signed)| field(what, offset, bytes, signed));
    format!("{}\nprint fmt: {print}", lines.collect::<String>())
}

/// Bytes of the arguments of its raw tracepoint that are here, and what the kernel has behind them (include/trace/events).
pub(super) fn raw_arguments(event: TaskEvent) -> (u32, &'static str) {
    match event {
        TaskEvent::Exec => (16, "its third argument, struct linux_binprm"),
        TaskEvent::Exit | TaskEvent::Fork => (16, "more arguments than it has"),
        TaskEvent::SignalGenerate => (8, "its second argument, the kernel's struct kernel_siginfo"),
    }
}
