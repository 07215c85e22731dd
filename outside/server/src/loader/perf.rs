//! perf_event_open(2) for uprobes, tracepoints and the output of programs, and their ioctls. Other events
//! are the kernel's own: their calls go on to it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ring3_uapi::Errno;
use ring3_uapi::perf::{ATTR_BYTES, ATTR_BYTES_VER0, FLAGS, FLAGS_RESERVED, SAMPLE_TYPE, TYPE_TRACEPOINT};

use super::call_function::{CallFunction, HERE};
use super::raw_seccomp::leader;
use super::tracepoint::Tracepoint;
use super::{Caller, Outcome, Reply, links, refuse, refuse_aloud, sampled, virtual_files};
use crate::loader::objects::{
    Access, Event, EventKind, IdKind, KprobeSite, Object, PROGRAMS_MAX, ProbedFile, TracepointSite, UprobeSite,
};
use crate::raw_perf::AttrBytes;
use crate::realm::{FileId, Refusal, possible_cpus, process_named};
use crate::rights::Rights;

const TYPE_SOFTWARE: u32 = 1;
const CONFIG_BPF_OUTPUT: u64 = 10;
const FLAG_CLOSE_ON_EXEC: u64 = 1 << 3;
/// `PERF_FLAG_*`.
const OPEN_FLAGS: u64 = 0xf;
/// `PERF_UPROBE_REF_CTR_OFFSET_SHIFT`.
const COUNTER_SHIFT: u32 = 32;
/// `PATH_MAX`.
pub(super) const PATH_BYTES_MAX: usize = 4096;
const IOC_ENABLE: u64 = 0x2400;
const IOC_DISABLE: u64 = 0x2401;
const IOC_REFRESH: u64 = 0x2402;
const IOC_RESET: u64 = 0x2403;
const IOC_ID: u64 = 0x8008_2407;
const IOC_SET_BPF: u64 = 0x4004_2408;
const IOC_QUERY_BPF: u64 = 0xc008_240a;

/// The fields of `struct perf_event_attr` that matter here.
struct PerfAttr {
    kind: u32,
    config: u64,
    sample_type: u64,
    watermark: bool,
    wakeup: u32,
    config1: u64,
    config2: u64,
    bytes: AttrBytes,
}

impl PerfAttr {
    /// Mirrors kernel/events/core.c:perf_copy_attr.
    fn read(caller: &Caller<'_>) -> Result<PerfAttr, Errno> {
        const SIZE_MAX: usize = 4096;
        const WATERMARK: u64 = 1 << 14;
        const SAMPLE_TYPES: u64 = (1 << 25) - 1;
        let head = caller.read(caller.arg(0), 8)?;
        let size = match u32::from_le_bytes(head[4..8].try_into().expect("4 bytes")) as usize {
            0 => ATTR_BYTES_VER0,
            size => size,
        };
        let known = (ATTR_BYTES_VER0..=SIZE_MAX).contains(&size);
        let mut bytes = if known { caller.read(caller.arg(0), size)? } else { vec![] };
        if !known || bytes.iter().skip(ATTR_BYTES).any(|byte| *byte != 0) {
            caller.write(caller.arg(0) + 4, &(ATTR_BYTES as u32).to_le_bytes())?;
            return Err(Errno::E2BIG);
        }
        bytes.resize(ATTR_BYTES, 0);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if word(FLAGS.at) & FLAGS_RESERVED != 0 || word(SAMPLE_TYPE.at) & !SAMPLE_TYPES != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(PerfAttr {
            kind: word(0) as u32,
            config: word(8),
            sample_type: word(24),
            watermark: word(40) & WATERMARK != 0,
            wakeup: word(48) as u32,
            config1: word(56),
            config2: word(64),
            bytes: bytes.try_into().expect("so many bytes"),
        })
    }
}

/// The number of the kprobe PMU where the kernel has none: its own are small.
pub(super) const KPROBE_TYPE: u32 = 0x1_0000;

/// The number of a PMU of the kernel's, and the bit of its config that says "on return"; `None`: the kernel has none.
///
/// # Errors
/// It could not be found out, for want of descriptors say: an event must not go on to the kernel for that.
pub(super) fn kernel_pmu(name: &'static str) -> Result<Option<(u32, u64)>, Errno> {
    type Known = BTreeMap<&'static str, Option<(u32, u64)>>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().expect("no panic under this lock");
    if let Some(pmu) = known.get(name) {
        return Ok(*pmu);
    }
    let directory = Path::new("/sys/bus/event_source/devices").join(name);
    let read = |file: &str| match std::fs::read_to_string(directory.join(file)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Errno(error.raw_os_error().unwrap_or(Errno::EINVAL.0))),
    };
    let (kind, format) = (read("type")?, read("format/retprobe")?);
    let pmu = kind.zip(format).and_then(|(kind, format)| {
        let bit: u32 = format.trim().strip_prefix("config:")?.parse().ok()?;
        Some((kind.trim().parse().ok()?, 1 << bit))
    });
    known.insert(name, pmu);
    Ok(pmu)
}

pub(super) fn open(caller: &Caller<'_>) -> Reply {
    if caller.arg(4) & !OPEN_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let attr = PerfAttr::read(caller)?;
    let close_on_exec = caller.arg(4) & FLAG_CLOSE_ON_EXEC != 0;
    if attr.kind == TYPE_SOFTWARE && attr.config == CONFIG_BPF_OUTPUT {
        return open_output(caller, &attr, close_on_exec);
    }
    if attr.kind == TYPE_TRACEPOINT
        && let Some(tracepoint) = Tracepoint::of_id(attr.config).or_else(|| virtual_files::of_kernel_id(attr.config))
    {
        return open_tracepoint(caller, tracepoint, close_on_exec);
    }
    let (kprobe, kprobe_return) = kernel_pmu("kprobe")?.unwrap_or((KPROBE_TYPE, 1));
    match kernel_pmu("uprobe")? {
        Some((kind, ret)) if kind == attr.kind => open_uprobe(caller, &attr, ret, close_on_exec),
        _ if attr.kind == kprobe => open_kprobe(caller, &attr, kprobe_return, close_on_exec),
        _ if sampled::is_for_program(caller, &attr.bytes) => sampled::open(caller, &attr.bytes, close_on_exec),
        _ => Ok(Outcome::Continue),
    }
}

/// The rights of the caller, who opens an event: with CAP_PERFMON, as kernel/events/core.c:perf_event_open wants it (v6.18) where
/// `kernel.perf_event_paranoid` is 2.
pub(super) fn opener(caller: &Caller<'_>) -> Result<Arc<Rights>, Errno> {
    let rights = caller.rights()?;
    if rights.may_monitor() { Ok(rights) } else { Err(refuse(Errno::EACCES, "perf_event_open without CAP_PERFMON")) }
}

/// Makes an event that is held by a pipe.
pub(super) fn open_event(caller: &Caller<'_>, rights: Arc<Rights>, kind: EventKind, close_on_exec: bool) -> Reply {
    let event = event(caller, rights, kind);
    let fd = caller.open_pipe(Object::Event(event))?;
    Ok(Outcome::Fd { fd, close_on_exec })
}

fn event(caller: &Caller<'_>, rights: Arc<Rights>, kind: EventKind) -> Arc<Event> {
    let subsystem = caller.subsystem();
    let (id, realm) = (subsystem.new_id(IdKind::Event), subsystem.realm.clone());
    Arc::new(Event { id, kind, program_id: Arc::default(), rights, realm })
}

fn open_output(caller: &Caller<'_>, attr: &PerfAttr, close_on_exec: bool) -> Reply {
    let every = if attr.watermark { 1 } else { u64::from(attr.wakeup) };
    let kind = EventKind::output(&caller.subsystem().realm, attr.sample_type, every)?;
    let event = event(caller, opener(caller)?, kind);
    let EventKind::Output { memfd, doorbell, .. } = &event.kind else { unreachable!("just made") };
    let weak = Arc::downgrade(&event);
    let fetch = move |domain| weak.upgrade().iter().for_each(|event| event.fetch(domain));
    event.realm.fetch_by(doorbell.0, fetch);
    let fd = caller.open_memfd(Object::Event(event.clone()), memfd.as_fd(), Access::BOTH)?;
    Ok(Outcome::Fd { fd, close_on_exec })
}

/// Of which process an event is; `None`: of all that the caller reaches. Mirrors the checks of
/// kernel/events/core.c:perf_event_open. The CPU is checked only: as in the kernel, programs run on all of them.
pub(super) fn process_of(caller: &Caller<'_>, rights: &Rights) -> Result<Option<u32>, Errno> {
    let (pid, cpu) = (caller.arg(1) as i32, caller.arg(2) as i32);
    let known = u32::try_from(cpu).is_ok_and(|cpu| cpu < possible_cpus());
    if !known && (pid == -1 || cpu != -1) {
        return Err(Errno::EINVAL);
    }
    let tid = caller.call.tid;
    let process = match pid {
        -1 => return Ok(None),
        0 => leader(tid),
        pid => leader(u32::try_from(pid).ok().and_then(|pid| process_named(pid, tid)).ok_or(Errno::ESRCH)?),
    };
    caller.subsystem().realm.check_reach(rights, process).map_err(|refusal| match refusal.errno {
        Errno::EPERM => refuse(Errno::EACCES, format_args!("perf_event_open: {refusal}")),
        errno => errno,
    })?;
    Ok(Some(process))
}

/// Mirrors kernel/trace/trace_event_perf.c:perf_trace_init.
fn open_tracepoint(caller: &Caller<'_>, tracepoint: Tracepoint, close_on_exec: bool) -> Reply {
    let rights = opener(caller)?;
    let pid = process_of(caller, &rights)?;
    let site = TracepointSite { tracepoint, pid, programs: caller.subsystem().tracepoints.clone() };
    open_event(caller, rights, EventKind::Tracepoint(site, Mutex::new(None)), close_on_exec)
}

/// At the kernel's function of a system call; others are the kernel's, if it has kprobes.
/// Mirrors kernel/trace/trace_event_perf.c:perf_kprobe_init.
fn open_kprobe(caller: &Caller<'_>, attr: &PerfAttr, ret: u64, close_on_exec: bool) -> Reply {
    /// `KSYM_NAME_LEN`
    const NAME_BYTES_MAX: usize = 512;
    let rights = opener(caller)?;
    let pid = process_of(caller, &rights)?;
    let name = match caller.read_string(attr.config1, NAME_BYTES_MAX) {
        Err(Errno::ENAMETOOLONG) => return Err(Errno::E2BIG),
        _ if attr.config1 == 0 => String::new(),
        name => name?,
    };
    let Some(function) = CallFunction::named(&name).filter(|_| attr.config2 == 0) else {
        if kernel_pmu("kprobe")?.is_some() {
            return Ok(Outcome::Continue);
        }
        let offset = if attr.config2 == 0 { String::new() } else { format!("+{:#x}", attr.config2) };
        return Err(refuse_aloud(
            caller,
            Errno::ENOENT,
            &format!("kprobe {name:?}{offset} is in the kernel; {HERE}"),
        ));
    };
    let ret = attr.config & ret != 0;
    open_event(caller, rights, EventKind::Kprobe(KprobeSite { function, ret, pid }, Mutex::new(None)), close_on_exec)
}

fn open_uprobe(caller: &Caller<'_>, attr: &PerfAttr, ret: u64, close_on_exec: bool) -> Reply {
    let rights = opener(caller)?;
    let pid = process_of(caller, &rights)?;
    if !rights.may_administer() {
        // kernel/events/core.c:perf_uprobe_event_init (v6.18): whoever places a uprobe changes code.
        return Err(refuse(Errno::EACCES, "a uprobe without CAP_SYS_ADMIN"));
    }
    if attr.config1 == 0 {
        return Err(Errno::EINVAL);
    }
    let shown = caller.read_string(attr.config1, PATH_BYTES_MAX)?;
    if shown.is_empty() {
        return Err(Errno::EINVAL);
    }
    let (file, bytes) = probed_file(caller, shown)?;
    let (offset, counter, ret) = (attr.config2, attr.config >> COUNTER_SHIFT, attr.config & ret != 0);
    let told = |what: &dyn std::fmt::Display, errno| {
        refuse(errno, format_args!("uprobe {}:{offset:#x}: {what}", file.shown))
    };
    let bytes = bytes.ok_or_else(|| told(&"not a regular file", Errno::EINVAL))?;
    if offset >= bytes {
        return Err(told(&"the file has no such offset", Errno::EINVAL));
    }
    let subsystem = caller.subsystem();
    let checked = subsystem.realm.check_sites(&file.path, &[offset], ret);
    checked.map_err(|refusal| told(&refusal, refusal.errno))?;
    let place = subsystem.uprobes.take((file.id.dev, file.id.inode), offset, counter);
    let place = place.map_err(|errno| told(&format!("a reference counter at {counter:#x}: {BAD_COUNTER}"), errno))?;
    let site = UprobeSite { file, offset, ret, counter, pid, place };
    open_event(caller, rights, EventKind::Uprobe(site, Mutex::new(None)), close_on_exec)
}

/// Why a reference counter is refused.
pub(super) const BAD_COUNTER: &str = "it is not aligned to 2 bytes, or a uprobe of this place has another one";

/// A loader's path of a file to probe, and the file's size if it is a regular one.
pub(super) fn probed_file(caller: &Caller<'_>, shown: String) -> Result<(ProbedFile, Option<u64>), Errno> {
    let path = resolve(caller.call.tid, &shown);
    let meta = std::fs::metadata(&path).map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::ENOENT.0)))?;
    let bytes = meta.is_file().then_some(meta.len());
    let id = FileId::of(&path, &meta);
    Ok((ProbedFile { path, shown, id }, bytes))
}

/// A loader's path as the server can open it, also in another mount namespace.
fn resolve(tid: u32, path: &str) -> PathBuf {
    let same_root = std::fs::metadata(format!("/proc/{tid}/root/"))
        .ok()
        .zip(std::fs::metadata("/").ok())
        .is_some_and(|(theirs, ours)| (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()));
    match (path.strip_prefix('/'), same_root) {
        (Some(_), true) => PathBuf::from(path),
        (Some(absolute), false) => PathBuf::from(format!("/proc/{tid}/root/{absolute}")),
        (None, _) => {
            let cwd = std::fs::read_link(format!("/proc/{tid}/cwd")).ok().filter(|_| same_root);
            cwd.unwrap_or_else(|| PathBuf::from(format!("/proc/{tid}/cwd"))).join(path)
        }
    }
}

pub(super) fn ioctl(caller: &Caller<'_>) -> Reply {
    let event = match caller.object(caller.arg(0) as i32) {
        Ok(Some(Object::Event(event))) => event,
        Ok(None) if caller.arg(1) == IOC_SET_BPF => return set_on_kernel_event(caller),
        _ => return Ok(Outcome::Continue),
    };
    if let EventKind::Sampled(sampled, _) = &event.kind
        && caller.arg(1) != IOC_SET_BPF
    {
        return sampled::ioctl(caller, &event, sampled, caller.arg(1));
    }
    match caller.arg(1) {
        // A program runs from the moment it is attached, enabled or not: kernel/trace/trace_uprobe.c:__uprobe_perf_func
        // and trace_syscalls.c:perf_syscall_enter.
        IOC_ENABLE | IOC_DISABLE | IOC_RESET => Ok(Outcome::Value(0)),
        // kernel/events/core.c:perf_event_refresh wants samples, kernel/trace/bpf_trace.c:perf_event_query_prog_array
        // a tracepoint.
        IOC_REFRESH if matches!(event.kind, EventKind::Output { .. }) => Ok(Outcome::Value(0)),
        IOC_QUERY_BPF => query_bpf(caller, &event),
        IOC_REFRESH => Err(Errno::EINVAL),
        IOC_ID => {
            caller.write(caller.arg(2), &u64::from(event.id).to_le_bytes())?;
            Ok(Outcome::Value(0))
        }
        IOC_SET_BPF => set_bpf(caller, &event),
        other => Err(refuse(Errno::ENOTTY, format_args!("ioctl {other:#x} on a perf event"))),
    }
}

/// Where nobody else can say why a program does not run, it is said on the caller's terminal.
pub(super) fn refuse_attach(caller: &Caller<'_>, kind: &EventKind, by: &str, refusal: &Refusal) -> Errno {
    match kind {
        EventKind::Sampled(..) if refusal.errno != Errno::EEXIST => {
            refuse_aloud(caller, refusal.errno, &format!("perf event {refusal}"))
        }
        // (The kernel has no such case: tools print `Device or resource busy`, which says neither by whom nor what to do.)
        _ if refusal.errno == Errno::EBUSY => {
            refuse_aloud(caller, refusal.errno, &format!("not attached: {refusal}"))
        }
        _ => refuse(refusal.errno, format_args!("{by}: {refusal}")),
    }
}

fn set_bpf(caller: &Caller<'_>, event: &Arc<Event>) -> Reply {
    let Some(Object::Program(program)) = caller.object(caller.arg(2) as i32)? else { return Err(Errno::EINVAL) };
    let slot = event.slot().ok_or(Errno::EINVAL)?;
    let attached = event
        .attach(program, event.id, 0)
        .map_err(|refusal| refuse_attach(caller, &event.kind, "PERF_EVENT_IOC_SET_BPF", &refusal))?;
    *slot.lock().expect("no panic under this lock") = Some(attached);
    Ok(Outcome::Value(0))
}

/// A program of ours on an event that is not.
fn set_on_kernel_event(caller: &Caller<'_>) -> Reply {
    match caller.object(caller.arg(2) as i32) {
        Ok(Some(_)) => Err(refuse_aloud(caller, Errno::EINVAL, links::NOT_OURS)),
        _ => Ok(Outcome::Continue),
    }
}

/// `struct perf_event_query_bpf`: room for ids, their number, ids.
/// Mirrors kernel/trace/bpf_trace.c:perf_event_query_prog_array.
fn query_bpf(caller: &Caller<'_>, event: &Event) -> Reply {
    let EventKind::Tracepoint(site, _) = &event.kind else { return Err(Errno::EINVAL) };
    let at = caller.arg(2);
    let room = u32::from_le_bytes(caller.read(at, 8)?[..4].try_into().expect("4 bytes")) as usize;
    if room > PROGRAMS_MAX {
        return Err(Errno::E2BIG);
    }
    let programs = site.programs.of(site.tracepoint);
    let mut ids = programs.clone();
    ids.resize(room, 0);
    caller.write(at + 4, &(programs.len() as u32).to_le_bytes())?;
    caller.write(at + 8, ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>().as_slice())?;
    if room != 0 && room < programs.len() { Err(Errno::ENOSPC) } else { Ok(Outcome::Value(0)) }
}
