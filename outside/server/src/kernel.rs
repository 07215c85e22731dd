//! What the running kernel's types tell: read once, when the first program is loaded or the first target prepared.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::sync::OnceLock;

use ring3_btf::{Btf, KERNEL_BTF, kind};
use ring3_layout::task::TaskTable;
use ring3_verifier::KernelFunctions;

use crate::loader::call_function;
use crate::realm::task_table;

/// All symbols of the kernel; their addresses are 0 for who may not know them.
pub(crate) const KERNEL_SYMBOLS: &str = "/proc/kallsyms";

/// What is known of the kernel.
pub(crate) struct Kernel {
    /// Its functions that programs may call and that are here too.
    pub(crate) functions: KernelFunctions,
    /// Its functions of system calls, by their types.
    pub(crate) call_functions: HashMap<u32, String>,
    /// Its raw tracepoints of system calls with types, by these.
    pub(crate) call_tracepoints: Vec<(u32, &'static str)>,
    /// What programs can read of tasks.
    pub(crate) tasks: TaskTable,
    /// `sched_process_fork` has names in fixed places, as before Linux 6.17.
    pub(crate) forks_are_fixed: bool,
    /// `sched_process_exit` tells whether the process has ended, as since Linux 6.16.
    pub(crate) exits_tell_group: bool,
}

/// Of the running kernel; nothing without its types.
pub(crate) fn known() -> &'static Kernel {
    static KNOWN: OnceLock<Kernel> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let types = std::fs::read(KERNEL_BTF).ok().and_then(|bytes| Btf::parse_any(bytes).ok());
        let functions = types.as_ref().map(KernelFunctions::new).unwrap_or_default();
        let has = |structure: &[u8], member: &[u8]| {
            let types = types.as_ref()?;
            let structure = types.find(structure, kind::STRUCT);
            Some(structure.is_some_and(|structure| types.members(structure).any(|known| known.name == member)))
        };
        let of_calls = types.iter().flat_map(|types| types.of_kind(kind::FUNC)).filter_map(|(id, name)| {
            let name = std::str::from_utf8(name).ok().filter(|name| name.starts_with(call_function::PREFIX))?;
            Some((id, name.to_owned()))
        });
        let tracepoint = |name: &'static str| {
            let id = types.as_ref()?.find(format!("btf_trace_{name}").as_bytes(), kind::TYPEDEF)?;
            Some((id, name))
        };
        Kernel {
            functions,
            call_functions: of_calls.collect(),
            call_tracepoints: ["sys_enter", "sys_exit"].into_iter().filter_map(tracepoint).collect(),
            tasks: task_table(types.as_ref()),
            forks_are_fixed: has(b"trace_event_raw_sched_process_fork", b"parent_comm").unwrap_or(false),
            exits_tell_group: has(b"trace_event_raw_sched_process_exit", b"group_dead").unwrap_or(true),
        }
    })
}

/// Whether the kernel carries out a system call of this name, if that can be known: else it is taken to. (BTF lacks the functions of calls
/// without arguments.)
pub(crate) fn has_call(name: &str) -> bool {
    static CALLS: OnceLock<HashSet<String>> = OnceLock::new();
    let read = || std::fs::File::open(KERNEL_SYMBOLS).map(|file| calls_in(BufReader::new(file))).unwrap_or_default();
    let calls = CALLS.get_or_init(read);
    calls.is_empty() || calls.contains(name)
}

/// The system calls of a list of the kernel's symbols. What is configured away has a weak symbol that fails (`COND_SYSCALL`).
fn calls_in(symbols: impl BufRead) -> HashSet<String> {
    let call = |line: std::io::Result<String>| {
        let line = line.ok()?;
        let (_, symbol) = line.split_once(' ')?;
        Some(symbol.strip_prefix("T ")?.strip_prefix(call_function::PREFIX)?.to_owned())
    };
    symbols.lines().filter_map(call).collect()
}

/// Whether the kernel has a raw tracepoint of this name: its BTF has a `typedef` for each.
pub(crate) fn has_tracepoint(name: &str) -> bool {
    let wanted = format!("\0btf_trace_{name}\0").into_bytes();
    let types = std::fs::read(KERNEL_BTF).unwrap_or_default();
    types.windows(wanted.len()).any(|bytes| bytes == wanted)
}

/// The name of one of the kernel's functions or raw tracepoints by its type; for messages, since its types are read anew.
pub(crate) fn name_of_type(id: u32) -> String {
    let types = std::fs::read(KERNEL_BTF).ok().and_then(|bytes| Btf::parse_any(bytes).ok());
    let name = types.as_ref().and_then(|types| std::str::from_utf8(types.name_of(id)).ok()).unwrap_or_default();
    match name.strip_prefix("btf_trace_").unwrap_or(name) {
        "" => format!("of type {id}"),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{calls_in, known, name_of_type};

    #[test]
    fn raw_tracepoints_and_functions_are_named_by_their_types() {
        let (tracepoints, functions) = (&known().call_tracepoints, &known().call_functions);
        for (id, name) in tracepoints {
            assert_eq!(name_of_type(*id), *name);
        }
        for (id, name) in functions.iter().take(3) {
            assert_eq!(name_of_type(*id), *name);
        }
        if functions.is_empty() {
            println!("SKIPPED IN PART: the kernel has no types");
        }
        assert_eq!(name_of_type(u32::MAX), format!("of type {}", u32::MAX));
    }

    #[test]
    fn calls_that_are_configured_away_are_none() {
        let symbols =
            "0 T __x64_sys_getppid\n0 W __x64_sys_init_module\n0 t __do_sys_read\n0 T __pfx___x64_sys_read\n";
        assert_eq!(calls_in(symbols.as_bytes()), ["getppid".to_owned()].into());
        assert!(calls_in(&b"0 T SyS_read\n"[..]).is_empty());
    }
}
