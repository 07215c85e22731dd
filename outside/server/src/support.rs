//! What of bpf(2) is supported: the one table that dispatch consults and `docs/SUPPORT.md` shows.

use std::fmt::Write as _;

use ring3_uapi::Errno;
use ring3_uapi::bpf::{cmd, map_type, prog_type};
use ring3_uapi::helper;

/// How far something is supported.
#[derive(Clone, Copy, Debug)]
pub enum Support {
    /// As the kernel.
    Full,
    /// As the kernel, but for what the text says.
    Partial(&'static str),
    /// Not: this error, for this reason.
    Refused(Errno, &'static str),
}

use Support::{Full, Partial, Refused};

const NOT_YET: &str = "not supported yet";
const OF_LSM: &str = "for programs of security modules, which run in the kernel only";
const OF_THE_NETWORK: &str = "for programs of the network, which run in the kernel only";
const OF_CGROUPS: &str = "for programs of cgroups, which run in the kernel only";

/// A row: number and support.
type Row = (u32, Support);

const COMMANDS: &[Row] = &[
    (cmd::MAP_CREATE, Partial("the map types below")),
    (cmd::MAP_LOOKUP_ELEM, Full),
    (cmd::MAP_UPDATE_ELEM, Full),
    (cmd::MAP_DELETE_ELEM, Full),
    (cmd::MAP_GET_NEXT_KEY, Full),
    (cmd::PROG_LOAD, Partial("the program types below")),
    (cmd::MAP_LOOKUP_AND_DELETE_ELEM, Full),
    (cmd::MAP_FREEZE, Full),
    (cmd::MAP_LOOKUP_BATCH, Full),
    (cmd::MAP_LOOKUP_AND_DELETE_BATCH, Full),
    (cmd::PROG_BIND_MAP, Full),
    (cmd::BTF_LOAD, Partial("structure is checked, meaning is not")),
    (
        cmd::LINK_CREATE,
        Partial(
            "links to perf events of uprobes, of tracepoints and functions of system calls, and of software and hardware events; uprobe_multi links, no sessions; ring3's own links to many tracepoints",
        ),
    ),
    (cmd::LINK_DETACH, Full),
    (cmd::OBJ_GET_INFO_BY_FD, Partial("no machine code of programs, nor addresses of its functions and lines")),
    (cmd::MAP_GET_NEXT_ID, Full),
    (cmd::PROG_GET_NEXT_ID, Full),
    (cmd::BTF_GET_NEXT_ID, Full),
    (cmd::LINK_GET_NEXT_ID, Full),
    (cmd::MAP_GET_FD_BY_ID, Full),
    (cmd::PROG_GET_FD_BY_ID, Full),
    (cmd::BTF_GET_FD_BY_ID, Full),
    (cmd::LINK_GET_FD_BY_ID, Full),
    (cmd::OBJ_PIN, Partial("names last until the server ends; symbolic links in paths are not followed")),
    (cmd::OBJ_GET, Full),
    (cmd::PROG_ATTACH, Refused(Errno::EINVAL, "nothing here to attach to in this way")),
    (cmd::PROG_DETACH, Refused(Errno::EINVAL, "nothing here to attach to in this way")),
    (
        cmd::PROG_TEST_RUN,
        Partial(
            "SYSCALL, RAW_TRACEPOINT, XDP, SCHED_CLS and SOCKET_FILTER, in a process made for it; no context for packets",
        ),
    ),
    (cmd::PROG_QUERY, Refused(Errno::EINVAL, "nothing here to attach to in this way")),
    (cmd::RAW_TRACEPOINT_OPEN, Partial("sys_enter, sys_exit, sched_process_{exec,fork,exit}, signal_generate")),
    (cmd::TASK_FD_QUERY, Partial("of descriptors of ring3's")),
    (cmd::MAP_UPDATE_BATCH, Full),
    (cmd::MAP_DELETE_BATCH, Full),
    (cmd::LINK_UPDATE, Refused(Errno::EINVAL, "the kernel's perf event links cannot be updated either")),
    (cmd::ENABLE_STATS, Full),
    (cmd::ITER_CREATE, Refused(Errno::EINVAL, NOT_YET)),
    (cmd::TOKEN_CREATE, Refused(Errno::EINVAL, NOT_YET)),
    (cmd::PROG_STREAM_READ_BY_FD, Refused(Errno::EINVAL, NOT_YET)),
];

const MAP_TYPES: &[Row] = &[
    (map_type::HASH, Full),
    (map_type::ARRAY, Full),
    (map_type::PERCPU_HASH, Full),
    (map_type::PERCPU_ARRAY, Full),
    (map_type::LRU_HASH, Partial("one list for all CPUs")),
    (map_type::LRU_PERCPU_HASH, Partial("one list for all CPUs")),
    (map_type::PROG_ARRAY, Full),
    (map_type::PERF_EVENT_ARRAY, Partial("output events only")),
    (map_type::STACK_TRACE, Partial("BPF_F_STACK_BUILD_ID: addresses instead of build ids; 127 frames at most")),
    (map_type::LPM_TRIE, Full),
    (map_type::RINGBUF, Full),
    (map_type::USER_RINGBUF, Full),
    (map_type::QUEUE, Full),
    (map_type::STACK, Full),
    (map_type::BLOOM_FILTER, Full),
    (map_type::ARRAY_OF_MAPS, Full),
    (map_type::HASH_OF_MAPS, Full),
    (map_type::CGROUP_ARRAY, Partial("can be created and asked; no cgroup can be put in")),
    (
        map_type::TASK_STORAGE,
        Partial("of the running thread, for 65536 threads; from bpf(2) for threads that a program has seen"),
    ),
    (map_type::ARENA, Refused(Errno::EINVAL, "its pages are allocated by kfuncs that are not here yet")),
    (map_type::INODE_STORAGE, Refused(Errno::EINVAL, OF_LSM)),
    (map_type::SK_STORAGE, Refused(Errno::EINVAL, OF_THE_NETWORK)),
    (map_type::DEVMAP, Refused(Errno::EINVAL, OF_THE_NETWORK)),
    (map_type::DEVMAP_HASH, Refused(Errno::EINVAL, OF_THE_NETWORK)),
    (map_type::CPUMAP, Refused(Errno::EINVAL, OF_THE_NETWORK)),
    (map_type::XSKMAP, Refused(Errno::EINVAL, OF_THE_NETWORK)),
    (map_type::SOCKMAP, Refused(Errno::EINVAL, OF_THE_NETWORK)),
    (map_type::SOCKHASH, Refused(Errno::EINVAL, OF_THE_NETWORK)),
    (map_type::REUSEPORT_SOCKARRAY, Refused(Errno::EINVAL, OF_THE_NETWORK)),
    (map_type::CGROUP_STORAGE, Refused(Errno::EINVAL, OF_CGROUPS)),
    (map_type::PERCPU_CGROUP_STORAGE, Refused(Errno::EINVAL, OF_CGROUPS)),
    (map_type::CGRP_STORAGE, Refused(Errno::EINVAL, OF_CGROUPS)),
    (map_type::STRUCT_OPS, Refused(Errno::EINVAL, "implements operations of the kernel's")),
    (map_type::INSN_ARRAY, Refused(Errno::EINVAL, NOT_YET)),
];

const PROG_TYPES: &[Row] = &[
    (
        prog_type::KPROBE,
        Partial("on uprobes and uretprobes, and on the kernel's functions of system calls (`__x64_sys_*`)"),
    ),
    (prog_type::SOCKET_FILTER, Partial("BPF_PROG_TEST_RUN; not attached, no legacy loads from packets")),
    (
        prog_type::TRACEPOINT,
        Partial(
            "on syscalls:*, raw_syscalls:*, sched:sched_process_{exec,fork,exit} and signal:signal_generate; a perf event's pid limits its program to that process",
        ),
    ),
    (
        prog_type::RAW_TRACEPOINT,
        Partial(
            "on sys_enter, sys_exit, and, as far as their arguments are here, sched_process_{exec,fork,exit} and signal_generate; BPF_PROG_TEST_RUN",
        ),
    ),
    (
        prog_type::PERF_EVENT,
        Partial("on clocks, and where the kernel lets the server sample them, on all software and hardware events"),
    ),
    (
        prog_type::TRACING,
        Partial(
            "fentry and fexit on the kernel's functions of system calls (`__x64_sys_*`), tp_btf on sys_enter and sys_exit",
        ),
    ),
    (prog_type::SYSCALL, Partial("BPF_PROG_TEST_RUN")),
    (prog_type::XDP, Partial("BPF_PROG_TEST_RUN; not attached")),
    (prog_type::SCHED_CLS, Partial("BPF_PROG_TEST_RUN; not attached")),
];

const KERNEL_MEMORY: &str =
    "the program's stack and maps, and what processes may know of tasks; nothing else of the kernel";

const SIGNALS: &str =
    "sent behind the run; at the beginning of a system call, before that is made; -EPERM in BPF_PROG_TEST_RUN";
const STRINGS: &str = "a kernel function, of Linux 6.18; of strings in what bpf_probe_read_kernel can read";

const HELPER_NOTES: &[(u32, &str)] = &[
    (helper::PROBE_READ_KERNEL, KERNEL_MEMORY),
    (helper::PROBE_READ_KERNEL_STR, KERNEL_MEMORY),
    (
        helper::GET_CURRENT_TASK_BTF,
        "for task storage, and for bpf_probe_read_kernel as bpf_get_current_task; a task_struct cannot be loaded from",
    ),
    (helper::LOOP, "all loops of a run together have 64 Mi rounds"),
    (
        helper::GET_CURRENT_TASK,
        "for bpf_probe_read_kernel: ids, names, parents, start (to 10 ms), flags, credentials, namespaces, bounds of memory",
    ),
    (
        helper::GET_STACKID,
        "user stacks, by the files' unwind tables, else by frame pointers; the kernel's part is empty (-EFAULT), as at the kernel's uprobes, but not at perf events",
    ),
    (
        helper::GET_STACK,
        "user stacks, by the files' unwind tables, else by frame pointers; addresses instead of build ids; the kernel's part is empty, but not at perf events",
    ),
    (
        helper::GET_TASK_STACK,
        "of the running thread, the only task that programs hold; user stacks as bpf_get_stack; -EFAULT in BPF_PROG_TEST_RUN, and for the kernel's part, which only perf events have",
    ),
    (
        helper::TASK_PT_REGS,
        "of the running thread, the only task that programs hold: a copy, which stays until the next call; zeros in BPF_PROG_TEST_RUN; not at perf events",
    ),
    (helper::MAP_SUM_ELEM_COUNT, "a kernel function: libbpf finds it where the kernel has BTF"),
    (helper::CURRENT_TASK_UNDER_CGROUP, "every index is unset (-EAGAIN)"),
    (
        helper::GET_CURRENT_CGROUP_ID,
        "asked once in 10 ms; 0 if neither a pidfd (Linux 6.13) tells it nor the cgroups of version 2 are mounted in the process",
    ),
    (
        helper::GET_CURRENT_ANCESTOR_CGROUP_ID,
        "asked once in 10 ms; 0 if the root of the cgroups of version 2 is not mounted in the process",
    ),
    (helper::SEND_SIGNAL, SIGNALS),
    (helper::SEND_SIGNAL_THREAD, SIGNALS),
    (helper::COPY_FROM_USER_TASK, "of the running thread's process, the only task that programs hold"),
    (helper::READ_BRANCH_RECORDS, "there are none (-ENOENT), as in the kernel on CPUs that do not record branches"),
    (helper::GET_NS_CURRENT_PID_TGID, "without /proc in the process, no namespace is known to be its own (-EINVAL)"),
    (
        helper::GET_CURRENT_PID_TGID,
        "ids of the server's pid namespace; without an answer of the server, or for a while in a process that has just begun a namespace, of the process's own",
    ),
    (helper::JIFFIES64, "ticks of CLOCK_MONOTONIC_COARSE; the kernel's own may be some behind"),
    (helper::GET_FUNC_RET, "in fexit programs only; the kernel's says -EOPNOTSUPP in fentry programs"),
    (helper::GET_SMP_PROCESSOR_ID, "the CPU whose part of per-CPU maps the run uses"),
];

/// Helpers that the programs here may call in the kernel, and that are not here: the verifier refuses those programs.
const REFUSED_HELPERS: &[(u32, &str)] = &[
    (helper::PERF_EVENT_READ, COUNTERS),
    (helper::PERF_EVENT_READ_VALUE, COUNTERS),
    (helper::PERF_PROG_READ_VALUE, COUNTERS),
    (helper::SNPRINTF_BTF, "shows the kernel's objects by its types: neither is in a process"),
    (helper::PER_CPU_PTR, PER_CPU_VARIABLES),
    (helper::THIS_CPU_PTR, PER_CPU_VARIABLES),
    (helper::TIMER_INIT, TIMERS),
    (helper::TIMER_SET_CALLBACK, TIMERS),
    (helper::TIMER_START, TIMERS),
    (helper::TIMER_CANCEL, TIMERS),
    (
        helper::FIND_VMA,
        "its callback loads from a vm_area_struct (vm_flags, vm_file), an object of the kernel's; a process is told a part of it only",
    ),
    (helper::KPTR_XCHG, "keeps references to the kernel's objects in maps; no function here gives one"),
];
const COUNTERS: &str = "no perf event counts here";
const PER_CPU_VARIABLES: &str = "for variables of the kernel's, which no process can read";
const TIMERS: &str = "a callback would run on no thread of a target; maps with timers are refused, too";

fn refused(table: &[Row], number: u32, otherwise: Errno) -> Option<(Errno, &'static str)> {
    match table.iter().find(|(row, _)| *row == number) {
        Some((_, Refused(errno, why))) => Some((*errno, why)),
        Some(_) => None,
        None => Some((otherwise, NOT_YET)),
    }
}

/// The error and the reason for a command that is not supported.
pub fn refused_command(command: u32) -> Option<(Errno, &'static str)> {
    refused(COMMANDS, command, Errno::EINVAL)
}

/// The error and the reason for a map type that is not supported.
pub fn refused_map_type(map_type: u32) -> Option<(Errno, &'static str)> {
    refused(MAP_TYPES, map_type, Errno::EINVAL)
}

/// The error and the reason for a program type that is not supported.
pub fn refused_prog_type(prog_type: u32) -> Option<(Errno, &'static str)> {
    refused(PROG_TYPES, prog_type, Errno::EINVAL)
}

fn words(support: Support) -> (&'static str, String) {
    match support {
        Full => ("full", String::new()),
        Partial(why) => ("partial", why.to_owned()),
        Refused(errno, why) => ("refused", format!("{}: {why}", errno.name())),
    }
}

type Names = fn(u32) -> Option<&'static str>;
/// Name, level and remark.
type Line = (String, &'static str, String);

/// Sections of the table: title, rows of name, level and remark.
fn sections() -> Vec<(&'static str, Vec<Line>)> {
    let rows = |table: &[Row], name: Names| {
        table
            .iter()
            .map(|(number, support)| {
                let (level, why) = words(*support);
                (name(*number).unwrap_or("?").to_owned(), level, why)
            })
            .collect::<Vec<_>>()
    };
    let mut helpers: Vec<u32> = ring3_verifier::prototypes()
        .iter()
        .filter(|row| row.runs && row.id < helper::OWN_FIRST)
        .map(|row| row.id)
        .collect();
    helpers.dedup();
    let name = |id: u32| format!("bpf_{}", helper::name(id).unwrap_or("?"));
    let refused = |(id, why): &(u32, &'static str)| {
        let (level, why) = words(Refused(Errno::EINVAL, why));
        (name(*id), level, why)
    };
    let helpers = helpers
        .into_iter()
        .map(|id| {
            let note = HELPER_NOTES.iter().find(|(of, _)| *of == id).map(|(_, note)| *note);
            let note = note.or((helper::STRCMP..=helper::STRNSTR).contains(&id).then_some(STRINGS));
            (name(id), if note.is_some() { "partial" } else { "full" }, note.unwrap_or_default().to_owned())
        })
        .chain(REFUSED_HELPERS.iter().map(refused))
        .collect();
    vec![
        ("Commands", rows(COMMANDS, cmd::name)),
        ("Map types", rows(MAP_TYPES, map_type::name)),
        ("Program types", rows(PROG_TYPES, prog_type::name)),
        ("Helpers", helpers),
    ]
}

/// `docs/SUPPORT.md`.
pub fn render_markdown() -> String {
    let mut out = String::from(
        "# What of bpf(2) is supported\n\nMade by `cargo xtask support` from the table that the server dispatches by. \
         What is not listed is refused.\n",
    );
    for (title, rows) in sections() {
        let _ = write!(out, "\n## {title}\n\n| name | support | remark |\n|---|---|---|\n");
        for (name, level, remark) in rows {
            let _ = writeln!(out, "| `{name}` | {level} | {remark} |");
        }
    }
    out
}

/// `ring3 features`.
pub fn render_text() -> String {
    let mut out = String::new();
    for (title, rows) in sections() {
        let _ = writeln!(out, "{title}:");
        for (name, level, remark) in rows {
            let _ = writeln!(out, "  {name:44} {level:8} {remark}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use ring3_isa::{Insn, code};
    use ring3_uapi::bpf::prog_type;
    use ring3_uapi::helper;
    use ring3_verifier::{Input, Policy, verify};

    #[test]
    fn every_helper_that_programs_may_call_is_in_the_agent() {
        for prototype in ring3_verifier::prototypes().iter().filter(|prototype| prototype.runs) {
            assert!(ring3_image::helper(prototype.id).is_some(), "{:?}", ring3_uapi::helper::name(prototype.id));
        }
    }

    #[test]
    fn programs_that_call_a_refused_helper_hear_its_name() {
        for (id, _) in super::REFUSED_HELPERS {
            let name = helper::name(*id).expect("a known helper");
            let call = Insn::new(code::BPF_CALL, 0, 0, 0, *id as i32);
            let report = verify(&Input {
                insns: &[call, Insn::new(0x95, 0, 0, 0, 0)],
                prog_type: prog_type::PERF_EVENT,
                gpl_compatible: true,
                sleepable: false,
                cpus: 1,
                policy: Policy::targets(prog_type::PERF_EVENT),
                log_level: 0,
                lines: vec![],
                map_by_fd: &|_| None,
                map_by_index: &|_| None,
                constant_value: &|_| None,
            });
            let message = report.expect_err("it is refused").message;
            assert_eq!(message, format!("unknown func bpf_{name}#{id}: the agent does not have it"));
        }
    }
}
