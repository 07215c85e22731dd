//! Perf events that the kernel counts and samples: clocks, other software events, those of the hardware.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};

use ring3_isa::Insn;
use ring3_run::events::Asked;
use ring3_uapi::Errno;
use ring3_uapi::bpf::prog_type;
use ring3_uapi::helper;
use ring3_uapi::perf as p;
use serde_json::Value;

use super::attached::{Attached, EventSlot};
use super::kinds::Program;
use crate::realm::{EventSpec, HostedEvent, HostedProgram, Realm, Refusal, put};

/// Helpers for which it does not matter what the event interrupts, beside [`helper::SELF_CONTAINED`].
const NEUTRAL: [u32; 7] = [
    helper::TRACE_PRINTK,
    helper::TRACE_VPRINTK,
    helper::SNPRINTF,
    helper::PERF_EVENT_OUTPUT,
    // Every place of an array of cgroups is empty.
    helper::CURRENT_TASK_UNDER_CGROUP,
    // No event has branches in its samples.
    helper::READ_BRANCH_RECORDS,
    // In an interrupt, nothing may be written.
    helper::PROBE_WRITE_USER,
];
/// Helpers that read what the program knows the address of: the program's own memory, if it asks for nothing else.
const READING: [u32; 2] = [helper::PROBE_READ_KERNEL, helper::PROBE_READ_KERNEL_STR];
/// Helpers that a sample answers. (What a tail call goes on with may ask for anything.)
const ANSWERED: [u32; 14] = [
    helper::GET_CURRENT_PID_TGID,
    helper::GET_CURRENT_UID_GID,
    helper::GET_CURRENT_COMM,
    helper::GET_CURRENT_TASK,
    helper::GET_CURRENT_TASK_BTF,
    helper::GET_STACK,
    helper::GET_STACKID,
    helper::GET_TASK_STACK,
    helper::PROBE_READ,
    helper::PROBE_READ_STR,
    helper::PROBE_READ_USER,
    helper::PROBE_READ_USER_STR,
    helper::COPY_FROM_USER,
    helper::TAIL_CALL,
];

/// Names of `PERF_COUNT_HW_*`, by number.
const HARDWARE: [&str; 10] = [
    "cpu-cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branch-instructions",
    "branch-misses",
    "bus-cycles",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "ref-cycles",
];
/// Names of `PERF_COUNT_SW_*`, by number.
const SOFTWARE: [&str; 12] = [
    "cpu-clock",
    "task-clock",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
    "alignment-faults",
    "emulation-faults",
    "dummy",
    "bpf-output",
    "cgroup-switches",
];

/// What an event is called, as perf(1) has it.
pub fn event_name(kind: u32, config: u64) -> String {
    let named =
        |names: &[&str]| usize::try_from(config).ok().and_then(|at| names.get(at)).map(|name| (*name).to_owned());
    let other = || format!("{config:#x}");
    match kind {
        p::TYPE_HARDWARE => format!("hardware:{}", named(&HARDWARE).unwrap_or_else(other)),
        p::TYPE_SOFTWARE => format!("software:{}", named(&SOFTWARE).unwrap_or_else(other)),
        p::TYPE_HW_CACHE => format!("hw-cache:{}", other()),
        p::TYPE_RAW => format!("raw:{}", other()),
        kind => format!("type {kind}:{}", other()),
    }
}

struct State {
    spec: EventSpec,
    is_enabled: bool,
    /// The one that runs the program.
    hosted: Weak<HostedEvent>,
}

/// Such an event.
pub struct SampledEvent(Mutex<State>);

impl SampledEvent {
    /// As its loader asked for it.
    pub fn new(spec: EventSpec) -> SampledEvent {
        let is_enabled = spec.field(p::FLAGS) & p::FLAG_DISABLED == 0;
        SampledEvent(Mutex::new(State { spec, is_enabled, hosted: Weak::new() }))
    }

    /// Its type and config, and what they are called.
    pub fn name(&self) -> (u32, u64, String) {
        let state = self.0.lock().expect("no panic under this lock");
        let (kind, config) = (state.spec.field(p::TYPE) as u32, state.spec.field(p::CONFIG));
        (kind, config, event_name(kind, config))
    }

    /// Attaches a program. Mirrors kernel/events/core.c:perf_event_set_bpf_handler (v6.18).
    pub(super) fn attach(
        &self,
        realm: &Realm,
        program: Arc<Program>,
        cookie: u64,
        take: impl FnOnce(u32) -> Result<EventSlot, Refusal>,
    ) -> Result<Attached, Refusal> {
        let seat = take(program.id)?;
        if program.prog_type != prog_type::PERF_EVENT {
            let words = format!("only programs of type perf_event attach to {}", self.name().2);
            return Err(Refusal::new(Errno::EINVAL, words));
        }
        let name = self.name().2;
        let asked = asks(&program)?;
        let mut state = self.0.lock().expect("no panic under this lock");
        let spec = EventSpec { cookie, ..state.spec };
        let hosted_program = HostedProgram {
            id: program.id,
            name: program.name.clone(),
            text: program.text.clone(),
            per_cpu: program.facts.uses_per_cpu,
            terminal: program.terminal,
            keep: program.clone(),
        };
        let hosted = realm
            .host_event(hosted_program, &spec, asked)
            .map_err(|refusal| Refusal::new(refusal.errno, format!("{name}: {refusal}")))?;
        let hosted = Arc::new(hosted);
        state.hosted = Arc::downgrade(&hosted);
        hosted.set_enabled(state.is_enabled);
        drop(state);
        Ok(Attached::hosted(program, cookie, hosted, seat))
    }

    /// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE`.
    pub fn set_enabled(&self, enabled: bool) {
        let mut state = self.0.lock().expect("no panic under this lock");
        state.is_enabled = enabled;
        if let Some(hosted) = state.hosted.upgrade() {
            hosted.set_enabled(enabled);
        }
    }

    /// `PERF_EVENT_IOC_REFRESH`, which counts what programs let through: nothing here. Mirrors
    /// kernel/events/core.c:perf_event_refresh (v6.18).
    ///
    /// # Errors
    /// `EINVAL` for an event that is inherited.
    pub fn refresh(&self) -> Result<(), Errno> {
        if self.0.lock().expect("no panic under this lock").spec.field(p::FLAGS) & p::FLAG_INHERIT != 0 {
            return Err(Errno::EINVAL);
        }
        self.set_enabled(true);
        Ok(())
    }

    /// `PERF_EVENT_IOC_PERIOD`. Mirrors kernel/events/core.c:_perf_event_period (v6.18).
    ///
    /// # Errors
    /// `EINVAL` for a period that the event cannot have.
    pub fn set_period(&self, period: u64) -> Result<(), Errno> {
        let mut state = self.0.lock().expect("no panic under this lock");
        let mut spec = state.spec;
        put(&mut spec.attr, p::SAMPLE_PERIOD, period);
        check_period(&spec)?;
        if period == 0 {
            return Err(Errno::EINVAL);
        }
        if let Some(hosted) = state.hosted.upgrade() {
            hosted.set_period(&spec)?;
        }
        state.spec = spec;
        Ok(())
    }

    pub(super) fn describe(&self, row: &mut Value) {
        row["event"] = self.name().2.into();
        let state = self.0.lock().expect("no panic under this lock");
        (row["cpu"], row["thread"]) = (state.spec.cpu.into(), state.spec.thread.into());
        row["enabled"] = state.is_enabled.into();
    }
}

/// Whether an event may have its period or frequency. Mirrors kernel/events/core.c:perf_event_open (v6.18).
pub fn check_period(spec: &EventSpec) -> Result<(), Errno> {
    let period = spec.field(p::SAMPLE_PERIOD);
    if spec.field(p::FLAGS) & p::FLAG_FREQ == 0 {
        return if period >> 63 == 0 { Ok(()) } else { Err(Errno::EINVAL) };
    }
    let rate = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").unwrap_or_default();
    // (Where it cannot be read: what kernels begin with.)
    if period > rate.trim().parse().unwrap_or(100_000) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// What a program asks of what it interrupts; `None`: nothing.
fn asks(program: &Program) -> Result<Option<Asked>, Refusal> {
    let insns = ring3_isa::decode(&program.insns).unwrap_or_default();
    let called: BTreeSet<u32> = insns.iter().filter_map(called).collect();
    let is_known = |id: &u32| {
        helper::SELF_CONTAINED.contains(id) || NEUTRAL.contains(id) || READING.contains(id) || ANSWERED.contains(id)
    };
    if let Some(other) = called.iter().copied().find(|id| !is_known(id)) {
        let helper = helper::name(other).unwrap_or("?");
        let words = format!("program {:?} calls bpf_{helper}, which ring3 does not have for events", program.name);
        return Err(Refusal::new(Errno::EOPNOTSUPP, words));
    }
    let calls = |ids: &[u32]| ids.iter().any(|id| called.contains(id));
    let goes_on = calls(&[helper::TAIL_CALL]);
    let asked = Asked {
        // (What a program prints begins with the name.)
        name: goes_on || calls(&[helper::GET_CURRENT_COMM, helper::TRACE_PRINTK, helper::TRACE_VPRINTK]),
        user: goes_on || calls(&[helper::GET_CURRENT_UID_GID]),
        stacks: goes_on || calls(&[helper::GET_STACK, helper::GET_STACKID, helper::GET_TASK_STACK]),
    };
    Ok((program.facts.context_bytes > 0 || calls(&ANSWERED)).then_some(asked))
}

/// The helper that an instruction calls.
fn called(insn: &Insn) -> Option<u32> {
    const CALL: u8 = 0x85;
    (insn.opcode == CALL && insn.src() == 0).then_some(insn.imm as u32)
}
