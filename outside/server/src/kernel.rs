//! What the running kernel's types tell: read once, when the first program is loaded or the first target prepared.

use std::collections::HashMap;
use std::sync::OnceLock;

use ring3_btf::{Btf, kind};
use ring3_layout::task::TaskTable;
use ring3_verifier::KernelFunctions;

use crate::loader::call_function;
use crate::realm::task_table;

pub(crate) const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

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

/// Whether the kernel has a raw tracepoint of this name: its BTF has a `typedef` for each.
pub(crate) fn has_tracepoint(name: &str) -> bool {
    let wanted = format!("\0btf_trace_{name}\0").into_bytes();
    let types = std::fs::read(KERNEL_BTF).unwrap_or_default();
    types.windows(wanted.len()).any(|bytes| bytes == wanted)
}
