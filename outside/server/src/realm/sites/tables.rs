//! Entries of a target's control page, as the server writes them.

use std::mem::offset_of;

use ring3_layout::control::{
    ATTACHMENT_ALL_REGISTERS, ATTACHMENT_BEGINS, ATTACHMENT_CPU_SLOT, ATTACHMENT_KPROBE, ATTACHMENT_RAW,
    ATTACHMENT_SIGNALS, ATTACHMENT_TASK_EVENT, ATTACHMENT_TRACEPOINT, HOOK_AT_ENTRY,
};
use ring3_layout::region::{AGENT_OFFSET, PROCESS_OFFSET, STATE_OFFSET};
use ring3_layout::thread::{ProcessPage, StateHeader};
use ring3_patch::{AgentStackLinks, Entries};

use crate::realm::{LinkSpec, Point, SyscallContext};

/// `HOOK_*` of a site with these bytes: a frame pointer is about to be saved (`push rbp`), or an indirect branch's
/// landing (`endbr64`, `endbr32`) comes before. Mirrors arch/x86/events/core.c:is_uprobe_at_func_entry.
pub(super) fn hook_flags(original: &[u8]) -> u32 {
    let landing = matches!(original, [0xf3, 0x0f, 0x1e, 0xfa | 0xfb, ..]);
    if landing || original.first() == Some(&0x55) { HOOK_AT_ENTRY } else { 0 }
}

/// Address of one of the agent's routines in the process with this region.
pub(in crate::realm) fn in_agent(region: u64, symbol: &str) -> u64 {
    region + AGENT_OFFSET + ring3_image::symbol(symbol).expect("the agent has it")
}

/// Where stubs of probes lead in the process with this region.
pub(in crate::realm) fn entries(region: u64) -> Entries {
    let state = |offset: usize| region + STATE_OFFSET + offset as u64;
    Entries {
        enter: in_agent(region, "ring3_enter"),
        call: in_agent(region, "ring3_call_probed"),
        agent_stack: AgentStackLinks {
            enter: in_agent(region, "ring3_enter_on_agent_stack"),
            find: in_agent(region, "ring3_find_agent_stack"),
            state: state(0),
            generation: region + PROCESS_OFFSET + offset_of!(ProcessPage, generation) as u64,
            missed: state(offset_of!(StateHeader, missed_no_block)),
        },
    }
}

/// `ATTACHMENT_*` of a program.
pub(in crate::realm) fn attachment_flags(spec: &LinkSpec) -> u32 {
    let when = |holds: bool, flag: u32| if holds { flag } else { 0 };
    let of_call = |context: SyscallContext| matches!(&spec.point, Point::Syscall(point) if point.context == context);
    let of_task = |raw: bool| matches!(&spec.point, Point::Task(point) if point.raw == raw);
    when(spec.per_cpu, ATTACHMENT_CPU_SLOT)
        | when(spec.all_registers, ATTACHMENT_ALL_REGISTERS)
        | when(spec.signals, ATTACHMENT_SIGNALS)
        | when(of_call(SyscallContext::Raw), ATTACHMENT_RAW)
        | when(of_call(SyscallContext::Tracepoint) || of_task(false), ATTACHMENT_TRACEPOINT)
        | when(of_task(true), ATTACHMENT_RAW | ATTACHMENT_TASK_EVENT)
        | when(of_call(SyscallContext::Kprobe), ATTACHMENT_KPROBE)
        | when(matches!(&spec.point, Point::Syscall(point) if !point.exit), ATTACHMENT_BEGINS)
}
