//! What `/proc` tells of the descriptors of ring3's objects: their names (`/proc/self/fd/N`, by which `bpftool` and libraries know
//! what a pinned object is) and their properties (`/proc/self/fdinfo/N`), as the kernel tells them of its own.
//!
//! This is for a loader that looks at itself. To others the descriptors are what they are: memfds and pipes.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering;

use ring3_uapi::flags::{BPF_F_RDONLY, BPF_F_WRONLY};

use super::names::path_of;
use super::objects::{Event, EventKind, Link, LinkTarget, MapObject, Object, Program, VMLINUX_BTF_ID};
use super::raw_seccomp::leader;
use super::{Caller, Outcome, Reply};
use crate::realm::number_of_process;

/// The descriptor of the caller's that a path in `/proc` is about: `directory` is `fd` or `fdinfo`.
fn descriptor(caller: &Caller<'_>, path: &Path, directory: &str) -> Option<i32> {
    let rest = path.strip_prefix("/proc").ok()?.to_str()?;
    let mut parts: Vec<&str> = rest.split('/').collect();
    let number = parts.pop()?.parse().ok()?;
    let tid = caller.call.tid;
    let is_own = |process: &str| process == "self" || process.parse() == Ok(number_of_process(leader(tid), tid));
    let is_it = match parts[..] {
        ["thread-self", last] => last == directory,
        [process, last] => last == directory && is_own(process),
        _ => false,
    };
    is_it.then_some(number)
}

/// The same, with the object behind it.
fn object(caller: &Caller<'_>, path: &Path, directory: &str) -> Option<(i32, Object)> {
    let fd = descriptor(caller, path, directory)?;
    Some((fd, caller.object(fd).ok()??))
}

/// readlink(2), readlinkat(2).
pub(super) fn readlink(caller: &Caller<'_>, from: i32, path: u64, out: u64, room: u64) -> Reply {
    let found = path_of(caller, from, path).ok().and_then(|path| object(caller, &path, "fd"));
    let Some((_, object)) = found else { return Ok(Outcome::Continue) };
    if room as i32 <= 0 {
        return Ok(Outcome::Continue);
    }
    let name = format!("anon_inode:{}", name(&object));
    let bytes = name.len().min(room as u32 as usize);
    caller.write(out, &name.as_bytes()[..bytes])?;
    Ok(Outcome::Value(bytes as i64))
}

/// The names of the kernel's anonymous files.
fn name(object: &Object) -> &'static str {
    match object {
        Object::Map(_) => "bpf-map",
        Object::Program(_) => "bpf-prog",
        Object::Btf(_) | Object::KernelTypes(_) => "btf",
        Object::Event(_) => "[perf_event]",
        Object::Link(_) => "bpf_link",
        Object::Stats(_) => "bpf-stats",
    }
}

/// What a file of `/proc/self/fdinfo` has, if its descriptor is ring3's.
pub(super) fn info(caller: &Caller<'_>, path: &Path) -> Option<String> {
    let (fd, object) = object(caller, path, "fdinfo")?;
    let mut text = common(caller, fd, &object)?;
    match &object {
        Object::Map(map) => tell_map(&mut text, map),
        Object::Program(program) => tell_program(&mut text, program),
        Object::Btf(btf) => tell(&mut text, "btf_id", btf.id),
        Object::KernelTypes(types) => tell(&mut text, "btf_id", types.id),
        Object::Event(_) | Object::Stats(_) => {}
        Object::Link(link) => tell_link(caller, &mut text, link),
    }
    Some(text)
}

fn tell(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name}:\t{value}");
}

/// What the kernel tells of any descriptor; the flags as its own objects have them.
/// Mirrors fs/proc/fd.c:seq_show and kernel/bpf/syscall.c:bpf_map_new_fd, bpf_prog_new_fd, bpf_link_settle.
fn common(caller: &Caller<'_>, fd: i32, object: &Object) -> Option<String> {
    let theirs = std::fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", caller.call.tid)).ok()?;
    let field = |name: &str| ring3_inject::status_field(&theirs, name);
    let flags = i32::from_str_radix(field("flags")?, 8).ok()?;
    let access = match object {
        Object::Map(_) => flags & libc::O_ACCMODE,
        Object::Link(_) | Object::Btf(_) | Object::KernelTypes(_) | Object::Stats(_) => libc::O_RDONLY,
        _ => libc::O_RDWR,
    };
    let mut text = String::new();
    tell(&mut text, "pos", 0);
    tell(&mut text, "flags", format_args!("0{:o}", access | flags & libc::O_CLOEXEC));
    for name in ["mnt_id", "ino"] {
        tell(&mut text, name, field(name)?);
    }
    Some(text)
}

/// Mirrors kernel/bpf/syscall.c:bpf_map_show_fdinfo.
fn tell_map(text: &mut String, map: &MapObject) {
    let header = &map.geometry().header;
    tell(text, "map_type", header.map_type);
    tell(text, "key_size", header.key_size);
    tell(text, "value_size", header.value_size);
    tell(text, "max_entries", map.told_entries());
    tell(text, "map_flags", format_args!("{:#x}", header.map_flags & !(BPF_F_RDONLY | BPF_F_WRONLY)));
    tell(text, "map_extra", format_args!("{:#x}", header.map_extra));
    tell(text, "memlock", map.geometry().file_bytes());
    tell(text, "map_id", map.id);
    tell(text, "frozen", u32::from(map.frozen.load(Ordering::Acquire)));
}

/// Mirrors kernel/bpf/syscall.c:bpf_prog_show_fdinfo.
fn tell_program(text: &mut String, program: &Program) {
    tell(text, "prog_type", program.prog_type);
    tell(text, "prog_jited", u32::from(program.text.code_bytes != 0));
    tell(text, "prog_tag", tag(program));
    tell(text, "memlock", (program.insns.len() as u64).next_multiple_of(ring3_layout::PAGE_BYTES));
    tell(text, "prog_id", program.id);
    let runs = program.realm.runs_of(&program.text);
    tell(text, "run_time_ns", runs.time_ns);
    tell(text, "run_cnt", runs.count);
    tell(text, "recursion_misses", 0);
    tell(text, "verified_insns", program.verified_insns);
}

fn tag(program: &Program) -> String {
    program.tag.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Mirrors kernel/bpf/syscall.c:bpf_link_show_fdinfo.
fn tell_link(caller: &Caller<'_>, text: &mut String, link: &Link) {
    let kind = match &link.target {
        LinkTarget::Event(_) => "perf",
        LinkTarget::RawTracepoint(_) => "raw_tracepoint",
        LinkTarget::Typed(_) => "tracing",
        LinkTarget::Uprobes(site) if site.ret => "uretprobe_multi",
        LinkTarget::Uprobes(_) => "uprobe_multi",
        LinkTarget::Tracepoints(_) => "tracepoint_multi",
    };
    tell(text, "link_type", kind);
    tell(text, "link_id", link.id);
    let attached = link.attached.lock().expect("no panic under this lock");
    let cookie = attached.as_ref().map_or(0, |attached| attached.cookie);
    if let Some(attached) = &*attached {
        tell(text, "prog_tag", tag(&attached.program));
        tell(text, "prog_id", attached.program.id);
    }
    drop(attached);
    match &link.target {
        LinkTarget::Event(event) => tell_event(text, event, cookie),
        LinkTarget::RawTracepoint(tracepoint) => {
            tell(text, "tp_name", tracepoint.name());
            tell(text, "cookie", cookie);
        }
        LinkTarget::Typed(typed) => {
            // Mirrors kernel/bpf/syscall.c:bpf_tracing_link_show_fdinfo.
            tell(text, "attach_type", typed.attach_type);
            tell(text, "target_obj_id", VMLINUX_BTF_ID);
            tell(text, "target_btf_id", typed.btf_id);
            tell(text, "cookie", cookie);
        }
        LinkTarget::Uprobes(site) => {
            // Mirrors kernel/trace/bpf_trace.c:bpf_uprobe_multi_show_fdinfo.
            tell(text, "uprobe_cnt", site.probes.len());
            tell(text, "pid", site.pid.map_or(0, |pid| number_of_process(pid, caller.call.tid)));
            tell(text, "path", &site.file.shown);
            let _ = writeln!(text, "cookie\t offset\t ref_ctr_offset");
            for probe in &site.probes {
                let _ = writeln!(text, "{}\t {:#x}\t {:#x}", probe.cookie, probe.offset, probe.counter);
            }
        }
        LinkTarget::Tracepoints(tracepoints) => {
            tell(text, "tp_cnt", tracepoints.len());
            tracepoints.iter().for_each(|tracepoint| tell(text, "tp_name", tracepoint));
        }
    }
}

/// Mirrors kernel/bpf/syscall.c:bpf_perf_link_show_fdinfo.
fn tell_event(text: &mut String, event: &Event, cookie: u64) {
    let kind = match &event.kind {
        EventKind::Uprobe(site, _) => {
            tell(text, "name", &site.file.shown);
            tell(text, "offset", format_args!("{:#x}", site.offset));
            tell(text, "ref_ctr_offset", format_args!("{:#x}", site.counter));
            if site.ret { "uretprobe" } else { "uprobe" }
        }
        EventKind::Kprobe(site, _) => {
            tell(text, "name", &site.function.name);
            for (name, value) in [("offset", "0x0"), ("missed", "0"), ("addr", "0x0")] {
                tell(text, name, value);
            }
            if site.ret { "kretprobe" } else { "kprobe" }
        }
        EventKind::Tracepoint(site, _) => {
            tell(text, "tp_name", site.tracepoint.name());
            "tracepoint"
        }
        EventKind::Sampled(sampled, _) => {
            let (kind, config, _) = sampled.name();
            tell(text, "type", kind);
            tell(text, "config", config);
            "event"
        }
        EventKind::Output { .. } => return,
    };
    tell(text, "event_type", kind);
    tell(text, "cookie", cookie);
}
