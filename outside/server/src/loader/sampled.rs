//! perf_event_open(2) and ioctl(2) for events that the kernel counts and samples, as far as they are there to run programs.
//!
//! Others, which a tool counts or whose samples it reads, are the kernel's alone: their calls go on to it.

use std::sync::Arc;

use ring3_uapi::Errno;
use ring3_uapi::perf as p;

use super::perf::{open_event, opener, process_of};
use super::{Caller, Outcome, Reply, refuse, refuse_aloud};
use crate::loader::objects::{Event, EventKind, SampledEvent, check_period, event_name};
use crate::raw_perf::{self, AttrBytes};
use crate::realm::{EventSpec, field_of, process_named, put};

/// Flags of the call with which it can be made here. (`PERF_FLAG_FD_NO_GROUP` says nothing where there is no group.)
const FLAGS: u64 = p::FLAG_FD_CLOEXEC | p::FLAG_FD_NO_GROUP;

/// Whether an event, as it is asked for, can be there for a program only: it is sampled, and nobody wants to read the samples.
pub(super) fn is_for_program(caller: &Caller<'_>, attr: &AttrBytes) -> bool {
    let kinds = [p::TYPE_HARDWARE, p::TYPE_SOFTWARE, p::TYPE_HW_CACHE, p::TYPE_RAW];
    let field = |field| field_of(attr, field);
    let is_alone = caller.arg(3) as i32 == -1 && caller.arg(4) & !FLAGS == 0;
    is_alone
        && kinds.contains(&(field(p::TYPE) as u32))
        && field(p::SAMPLE_PERIOD) != 0
        && field(p::SAMPLE_TYPE) == 0
        && field(p::FLAGS) & p::FLAG_SIGTRAP == 0
}

/// The kernel checks the event, which is opened once more, with samples, when there is a program for it.
pub(super) fn open(caller: &Caller<'_>, attr: &AttrBytes, close_on_exec: bool) -> Reply {
    let rights = opener(caller)?;
    process_of(caller, &rights)?;
    let (pid, cpu) = (caller.arg(1) as i32, caller.arg(2) as i32);
    let tid = caller.call.tid;
    let thread = match pid {
        -1 => None,
        0 => Some(tid),
        pid => Some(process_named(pid as u32, tid).ok_or(Errno::ESRCH)?),
    };
    let mut attr = *attr;
    put(&mut attr, p::SIZE, p::ATTR_BYTES as u64);
    let spec = EventSpec { attr, thread, cpu: u32::try_from(cpu).ok(), cookie: 0 };
    let mut checked = attr;
    put(&mut checked, p::FLAGS, spec.field(p::FLAGS) | p::FLAG_DISABLED);
    if let Err(error) = raw_perf::open(&checked, spec.thread, spec.cpu) {
        let errno = Errno(error.raw_os_error().unwrap_or(Errno::EINVAL.0));
        let is_forbidden = [Errno::EACCES, Errno::EPERM].contains(&errno);
        // A clock needs the kernel's samples only for programs that ask for what they have.
        if !is_forbidden || !spec.is_clock() {
            return Err(refuse_event(caller, &spec, errno));
        }
        check_period(&spec)?;
    }
    open_event(caller, rights, EventKind::Sampled(SampledEvent::new(spec), Default::default()), close_on_exec)
}

/// Says what the kernel does not have, or not for the server.
fn refuse_event(caller: &Caller<'_>, spec: &EventSpec, errno: Errno) -> Errno {
    let name = event_name(spec.field(p::TYPE) as u32, spec.field(p::CONFIG));
    let why = match errno {
        Errno::ENOENT | Errno::EOPNOTSUPP => "this machine does not count it, with ring3 or without",
        Errno::EACCES | Errno::EPERM => {
            "the kernel counts it only with CAP_PERFMON, or with kernel.perf_event_paranoid at 0 or less"
        }
        // What is wrong with the call, its caller sees for himself. (Tools try CPUs that are off.)
        errno => return errno,
    };
    refuse_aloud(caller, errno, &format!("perf event {name}: {why}"))
}

/// A request on such an event.
pub(super) fn ioctl(caller: &Caller<'_>, event: &Arc<Event>, sampled: &SampledEvent, request: u64) -> Reply {
    const ENABLE: u64 = p::IOC_ENABLE as u64;
    const DISABLE: u64 = p::IOC_DISABLE as u64;
    const RESET: u64 = p::IOC_RESET as u64;
    const PERIOD: u64 = p::IOC_PERIOD as u64;
    const REFRESH: u64 = p::IOC_REFRESH as u64;
    const SET_OUTPUT: u64 = p::IOC_SET_OUTPUT as u64;
    const PAUSE_OUTPUT: u64 = p::IOC_PAUSE_OUTPUT as u64;
    const ID: u64 = p::IOC_ID as u64;
    match request {
        ENABLE | DISABLE => sampled.set_enabled(request == ENABLE),
        // Nobody reads what it has counted.
        RESET => {}
        PERIOD => {
            let period = caller.read(caller.arg(2), 8)?;
            sampled.set_period(u64::from_le_bytes(period.try_into().expect("8 bytes")))?;
        }
        REFRESH => sampled.refresh()?,
        // There is no ring for samples: to take it away, or to pause it.
        SET_OUTPUT if caller.arg(2) as i32 == -1 => {}
        PAUSE_OUTPUT => return Err(Errno::EINVAL),
        ID => caller.write(caller.arg(2), &u64::from(event.id).to_le_bytes())?,
        // Of tracepoints only (kernel/trace/bpf_trace.c:perf_event_query_prog_array).
        request if request == u64::from(p::IOC_QUERY_BPF) => return Err(Errno::EINVAL),
        other => {
            let name = sampled.name().2;
            return Err(refuse(Errno::ENOTTY, format_args!("ioctl {other:#x} on perf event {name}")));
        }
    }
    Ok(Outcome::Value(0))
}
