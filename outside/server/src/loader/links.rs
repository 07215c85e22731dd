//! Links, and information about links and about perf events with programs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use ring3_uapi::Errno;
use ring3_uapi::attr::{self as a, LINK_INFO_BYTES, link_create, link_info as l, raw_tracepoint, task_fd_query as q};
use ring3_uapi::bpf::{attach_type, prog_type};

use super::attr::Attr;
use super::bpf::{Info, program_of};
use super::perf::refuse_attach;
use super::tracepoint::Tracepoint;
use super::{Caller, Outcome, Reply, raw_seccomp, refuse, refuse_aloud, tracepoint_multi, uprobe_multi};
use crate::kernel;
use crate::loader::objects::{Event, EventKind, IdKind, Link, LinkTarget, Object, Program, VMLINUX_BTF_ID};
use crate::realm::process_named;

/// What is said of events that ring3 does not make itself.
pub(super) const NOT_OURS: &str = "a program cannot run at this perf event, which is the kernel's own; here are uprobes, tracepoints and functions of system \
     calls, and software and hardware events";

fn event_of(caller: &Caller<'_>, fd: i32) -> Result<Arc<Event>, Errno> {
    match caller.object(fd)? {
        Some(Object::Event(event)) => Ok(event),
        None if is_kernel_event(caller.fd(fd)?.as_fd()) => Err(refuse_aloud(caller, Errno::EINVAL, NOT_OURS)),
        _ => Err(Errno::EBADF),
    }
}

/// Whether a descriptor is a perf event of the kernel's.
pub(super) fn is_kernel_event(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|name| name.as_os_str() == "anon_inode:[perf_event]")
}

/// Mirrors kernel/bpf/syscall.c:link_create and bpf_perf_link_attach.
pub(super) fn create(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let program = program_of(caller, attr.i32(link_create::PROG_FD.at))?;
    let kind = attr.u32(link_create::ATTACH_TYPE.at);
    if program.prog_type == prog_type::KPROBE
        && matches!(kind, attach_type::TRACE_UPROBE_MULTI | attach_type::TRACE_UPROBE_SESSION)
    {
        return uprobe_multi::create(caller, attr, program, kind);
    }
    if program.prog_type == prog_type::TRACEPOINT && kind == attach_type::RING3_TRACEPOINT_MULTI {
        return tracepoint_multi::create(caller, attr, program);
    }
    if program.typed.as_ref().is_some_and(|typed| typed.attach_type == kind) {
        // (The kernel would take other places for programs that replace functions of other programs.)
        let others = [link_create::TARGET_FD, link_create::TRACING_BTF_ID];
        let is_function = kind != attach_type::TRACE_RAW_TP;
        return match is_function && others.iter().any(|field| attr.u32(field.at) != 0) {
            true => Err(Errno::EINVAL),
            false => open_typed(caller, program, attr.u64(link_create::TRACING_COOKIE.at)),
        };
    }
    let attaches = [prog_type::KPROBE, prog_type::TRACEPOINT, prog_type::PERF_EVENT].contains(&program.prog_type);
    if kind != attach_type::PERF_EVENT || !attaches || uprobe_multi::is_for_many(&program) {
        let name = attach_type::name(kind).unwrap_or("unknown");
        let of = prog_type::name(program.prog_type).unwrap_or("?");
        return Err(refuse(Errno::EINVAL, format_args!("link of attach type {name} for a program of type {of}")));
    }
    if attr.u32(link_create::FLAGS.at) != 0 {
        return Err(Errno::EINVAL);
    }
    let event = event_of(caller, attr.i32(link_create::TARGET_FD.at))?;
    let id = caller.subsystem().new_id(IdKind::Link);
    let attached = event
        .attach(program, id, attr.u64(link_create::PERF_EVENT_COOKIE.at))
        .map_err(|refusal| refuse_attach(caller, &event.kind, "link", &refusal))?;
    open(caller, Link { id, target: LinkTarget::Event(event), attached: Mutex::new(Some(attached)) })
}

/// A new descriptor for a link.
pub(super) fn open(caller: &Caller<'_>, link: Link) -> Reply {
    let fd = caller.open_pipe(Object::Link(Arc::new(link)))?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

/// Mirrors kernel/bpf/syscall.c:bpf_raw_tracepoint_open and bpf_raw_tp_link_attach.
pub(super) fn open_raw_tracepoint(caller: &Caller<'_>, attr: &Attr) -> Reply {
    /// What the kernel copies of a name.
    const NAME_BYTES_MAX: usize = 127;
    let program = program_of(caller, attr.i32(raw_tracepoint::PROG_FD.at))?;
    if program.typed.is_some() && attr.u64(raw_tracepoint::NAME.at) == 0 {
        return open_typed(caller, program, attr.u64(raw_tracepoint::COOKIE.at));
    }
    if program.prog_type != prog_type::RAW_TRACEPOINT {
        return Err(Errno::EINVAL);
    }
    let name = match caller.read_string(attr.u64(raw_tracepoint::NAME.at), NAME_BYTES_MAX) {
        Err(Errno::EINVAL | Errno::ENAMETOOLONG) => return Err(Errno::ENOENT),
        name => name?,
    };
    let Some(tracepoint) = Tracepoint::raw(&name) else {
        return Err(if kernel::has_tracepoint(&name) {
            let what = "in user space there are sys_enter, sys_exit, sched_process_exec, _exit and _fork, and signal_generate";
            refuse_aloud(caller, Errno::EOPNOTSUPP, &format!("raw tracepoint {name} is the kernel's own; {what}"))
        } else {
            Errno::ENOENT
        });
    };
    let id = caller.subsystem().new_id(IdKind::Link);
    let link = Link::raw_tracepoint(id, program, tracepoint, attr.u64(raw_tracepoint::COOKIE.at))
        .map_err(|refusal| refuse_aloud(caller, refusal.errno, &format!("raw tracepoint {name}: {refusal}")))?;
    open(caller, link)
}

/// Where its own type of attaching puts a program of type `TRACING`.
fn open_typed(caller: &Caller<'_>, program: Arc<Program>, cookie: u64) -> Reply {
    let typed = program.typed.clone().ok_or(Errno::EINVAL)?;
    let id = caller.subsystem().new_id(IdKind::Link);
    let link = Link::typed(id, program, &typed, cookie)
        .map_err(|refusal| refuse_aloud(caller, refusal.errno, &format!("{}: {refusal}", typed.name)))?;
    open(caller, link)
}

pub(super) fn detach(caller: &Caller<'_>, attr: &Attr) -> Reply {
    match caller.object(attr.i32(0))? {
        // The kernel's links of these kinds cannot be detached otherwise than by closing (kernel/bpf/syscall.c).
        Some(Object::Link(_)) => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

/// `struct bpf_link_info`.
pub(super) fn info(caller: &Caller<'_>, link: &Link, given: &Info) -> Result<Info, Errno> {
    let mut info = Info(vec![0; LINK_INFO_BYTES]);
    let attached = link.attached.lock().expect("no panic under this lock");
    let (program, cookie) = attached.as_ref().map_or((0, 0), |attached| (attached.program.id, attached.cookie));
    drop(attached);
    let kind = match &link.target {
        // (The kernel has no type for links to many tracepoints: they are told as one of an event that is not named.)
        LinkTarget::Event(_) | LinkTarget::Tracepoints(_) => a::LINK_TYPE_PERF_EVENT,
        LinkTarget::RawTracepoint(_) => a::LINK_TYPE_RAW_TRACEPOINT,
        LinkTarget::Typed(_) => a::LINK_TYPE_TRACING,
        LinkTarget::Uprobes(_) => a::LINK_TYPE_UPROBE_MULTI,
    };
    info.put32(l::TYPE.at, kind).put32(l::ID.at, link.id).put32(l::PROG_ID.at, program);
    match &link.target {
        LinkTarget::Event(event) => tell_event(caller, event, cookie, given, &mut info)?,
        LinkTarget::RawTracepoint(tracepoint) => {
            // Mirrors kernel/bpf/syscall.c:bpf_raw_tp_link_fill_link_info.
            let (at, room) = (given.get64(l::RAW_NAME.at), given.get32(l::RAW_NAME_LEN.at));
            let bytes = tell_name(caller, &tracepoint.name(), at, room)?;
            info.put64(l::RAW_NAME.at, at).put32(l::RAW_NAME_LEN.at, bytes).put64(l::RAW_COOKIE.at, cookie);
        }
        LinkTarget::Typed(typed) => {
            // Mirrors kernel/bpf/syscall.c:bpf_tracing_link_fill_link_info.
            info.put32(l::TRACING_ATTACH_TYPE.at, typed.attach_type).put32(l::TRACING_OBJ_ID.at, VMLINUX_BTF_ID);
            info.put32(l::TRACING_BTF_ID.at, typed.btf_id).put64(l::TRACING_COOKIE.at, cookie);
        }
        LinkTarget::Uprobes(site) => return uprobe_multi::tell(caller, site, given, info),
        LinkTarget::Tracepoints(_) => {}
    }
    Ok(info)
}

/// Mirrors kernel/bpf/syscall.c:bpf_perf_link_fill_uprobe, _kprobe and _tracepoint, most of whose members lie alike.
fn tell_event(caller: &Caller<'_>, event: &Event, cookie: u64, given: &Info, info: &mut Info) -> Result<(), Errno> {
    let (kind, name) = match &event.kind {
        EventKind::Uprobe(site, _) if site.ret => (a::PERF_EVENT_URETPROBE, site.file.shown.clone()),
        EventKind::Uprobe(site, _) => (a::PERF_EVENT_UPROBE, site.file.shown.clone()),
        EventKind::Tracepoint(site, _) => (a::PERF_EVENT_TRACEPOINT, site.tracepoint.name()),
        EventKind::Kprobe(site, _) if site.ret => (a::PERF_EVENT_KRETPROBE, site.function.name.clone()),
        EventKind::Kprobe(site, _) => (a::PERF_EVENT_KPROBE, site.function.name.clone()),
        EventKind::Sampled(sampled, _) => {
            // Mirrors kernel/bpf/syscall.c:bpf_perf_link_fill_perf_event.
            let (kind, config, _) = sampled.name();
            info.put32(l::PERF_EVENT_TYPE.at, a::PERF_EVENT_EVENT);
            info.put64(l::EVENT_CONFIG.at, config).put32(l::EVENT_TYPE.at, kind).put64(l::EVENT_COOKIE.at, cookie);
            return Ok(());
        }
        EventKind::Output { .. } => return Ok(()),
    };
    let (at, room) = (given.get64(l::TRACEPOINT_NAME.at), given.get32(l::TRACEPOINT_NAME_LEN.at));
    let bytes = tell_name(caller, &name, at, room)?;
    info.put32(l::PERF_EVENT_TYPE.at, kind).put64(l::TRACEPOINT_NAME.at, at);
    info.put32(l::TRACEPOINT_NAME_LEN.at, bytes);
    let is_kprobe = matches!(event.kind, EventKind::Kprobe(..));
    info.put64(if is_kprobe { l::KPROBE_COOKIE.at } else { l::TRACEPOINT_COOKIE.at }, cookie);
    if let EventKind::Uprobe(site, _) = &event.kind {
        info.put32(l::UPROBE_OFFSET.at, site.offset as u32).put64(l::UPROBE_REF_CTR_OFFSET.at, site.counter);
    }
    Ok(())
}

/// Writes a name to a buffer with `room`, if there is one, and tells how many bytes it has.
/// Mirrors kernel/bpf/syscall.c:bpf_perf_link_fill_common and bpf_copy_to_user.
fn tell_name(caller: &Caller<'_>, name: &str, at: u64, room: u32) -> Result<u32, Errno> {
    if (at == 0) != (room == 0) {
        return Err(Errno::EINVAL);
    }
    let mut text = name.as_bytes().to_vec();
    text.push(0);
    let bytes = text.len() as u32;
    if at != 0 {
        text.truncate(room as usize);
        *text.last_mut().expect("room for a byte") = 0;
        caller.write(at, &text)?;
        if room < bytes {
            return Err(Errno::ENOSPC);
        }
    }
    Ok(bytes)
}

/// What `BPF_TASK_FD_QUERY` tells.
struct FdProgram {
    program: u32,
    kind: u32,
    name: String,
    offset: u64,
}

/// Mirrors kernel/bpf/syscall.c:bpf_task_fd_query, for what is ring3's.
pub(super) fn query_task_fd(caller: &Caller<'_>, attr: &Attr) -> Reply {
    if attr.u32(q::FLAGS.at) != 0 {
        return Err(Errno::EINVAL);
    }
    let rights = caller.rights()?;
    if !rights.may_administer() {
        return Err(refuse(Errno::EPERM, "BPF_TASK_FD_QUERY without CAP_SYS_ADMIN"));
    }
    let pid = process_named(attr.u32(q::PID.at), caller.call.tid).ok_or(Errno::ENOENT)?;
    caller.subsystem().realm.check_reach(&rights, pid).map_err(|refusal| refuse(refusal.errno, refusal))?;
    let fd = i32::try_from(attr.u32(q::FD.at)).map_err(|_| Errno::EBADF)?;
    let copy = raw_seccomp::get_fd(pid, fd).map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::EBADF.0)))?;
    let found = match caller.subsystem().object(copy.as_fd()) {
        Some(Object::Event(event)) => program_of_event(&event)?,
        Some(Object::Link(link)) => program_of_link(&link).ok_or(Errno::ENOTSUPP)?,
        _ => return Err(Errno::ENOTSUPP),
    };
    tell_program(caller, attr, &found)
}

/// Mirrors kernel/trace/bpf_trace.c:bpf_get_perf_event_info.
fn program_of_event(event: &Event) -> Result<FdProgram, Errno> {
    let program = event.program_id.load(Ordering::Acquire);
    match &event.kind {
        _ if program == 0 => Err(Errno::ENOENT),
        EventKind::Uprobe(site, _) => {
            let kind = if site.ret { a::FD_TYPE_URETPROBE } else { a::FD_TYPE_UPROBE };
            Ok(FdProgram { program, kind, name: site.file.shown.clone(), offset: site.offset })
        }
        EventKind::Tracepoint(site, _) => {
            Ok(FdProgram { program, kind: a::FD_TYPE_TRACEPOINT, name: site.tracepoint.name(), offset: 0 })
        }
        EventKind::Kprobe(site, _) => {
            let kind = if site.ret { a::FD_TYPE_KRETPROBE } else { a::FD_TYPE_KPROBE };
            Ok(FdProgram { program, kind, name: site.function.name.clone(), offset: 0 })
        }
        EventKind::Sampled(..) => Err(Errno::EOPNOTSUPP),
        EventKind::Output { .. } => Err(Errno::ENOENT),
    }
}

/// Only links of raw tracepoints tell something.
fn program_of_link(link: &Link) -> Option<FdProgram> {
    let LinkTarget::RawTracepoint(tracepoint) = &link.target else { return None };
    let program = link.attached.lock().expect("no panic under this lock").as_ref()?.program.id;
    Some(FdProgram { program, kind: a::FD_TYPE_RAW_TRACEPOINT, name: tracepoint.name(), offset: 0 })
}

/// Mirrors kernel/bpf/syscall.c:bpf_task_fd_query_copy.
fn tell_program(caller: &Caller<'_>, attr: &Attr, found: &FdProgram) -> Reply {
    let tell = |field: a::Field, value: u64| {
        caller.write(caller.arg(1) + field.at as u64, &value.to_le_bytes()[..field.bytes])
    };
    let (room, at) = (attr.u32(q::BUF_LEN.at) as usize, attr.u64(q::BUF.at));
    tell(q::BUF_LEN, found.name.len() as u64)?;
    let fits = found.name.len() < room;
    if room != 0 && at != 0 {
        let shown = if fits { found.name.len() } else { room - 1 };
        let mut text = found.name.as_bytes()[..shown].to_vec();
        text.push(0);
        caller.write(at, &text)?;
    }
    tell(q::PROG_ID, found.program.into())?;
    tell(q::FD_TYPE, found.kind.into())?;
    tell(q::PROBE_OFFSET, found.offset)?;
    tell(q::PROBE_ADDR, 0)?;
    if room != 0 && at != 0 && !fits { Err(Errno::ENOSPC) } else { Ok(Outcome::Value(0)) }
}
