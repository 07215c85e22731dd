//! Links of a program to many uprobes of a file (`BPF_TRACE_UPROBE_MULTI`).

use std::sync::Arc;

use ring3_uapi::Errno;
use ring3_uapi::attr::link_create as c;
use ring3_uapi::attr::{Field, UPROBE_MULTI_RETURN, link_info as l};
use ring3_uapi::bpf::attach_type;

use super::attr::Attr;
use super::bpf::Info;
use super::perf::{BAD_COUNTER, PATH_BYTES_MAX, probed_file};
use super::raw_seccomp::leader;
use super::{Caller, Reply, links, refuse, refuse_aloud};
use crate::loader::objects::{IdKind, Link, MultiProbe, MultiSite, ProbedFile, Program};
use crate::realm::{number_of_process, process_named};

/// `MAX_UPROBE_MULTI_CNT`.
const PROBES_MAX: u32 = 1 << 20;

/// Whether a program was loaded for such links, or for sessions.
pub(super) fn is_for_many(program: &Program) -> bool {
    matches!(program.expected_attach_type, attach_type::TRACE_UPROBE_MULTI | attach_type::TRACE_UPROBE_SESSION)
}

/// Mirrors kernel/bpf/syscall.c:bpf_prog_attach_check_attach_type and kernel/trace/bpf_trace.c:bpf_uprobe_multi_link_attach
/// (v6.18).
pub(super) fn create(caller: &Caller<'_>, attr: &Attr, program: Arc<Program>, kind: u32) -> Reply {
    let flags = attr.u32(c::UPROBE_MULTI_FLAGS.at);
    if program.expected_attach_type != kind || attr.u32(c::FLAGS.at) != 0 || flags & !UPROBE_MULTI_RETURN != 0 {
        return Err(refuse(
            Errno::EINVAL,
            "a uprobe_multi link: the program was loaded for another one, or unknown flags",
        ));
    }
    if kind == attach_type::TRACE_UPROBE_SESSION {
        let what = "uprobe sessions are not supported yet; use two programs, one with BPF_F_UPROBE_MULTI_RETURN";
        return Err(refuse_aloud(caller, Errno::EOPNOTSUPP, what));
    }
    let (count, pid) = (attr.u32(c::UPROBE_MULTI_CNT.at), attr.i32(c::UPROBE_MULTI_PID.at));
    let offsets_at = attr.u64(c::UPROBE_MULTI_OFFSETS.at);
    if attr.u64(c::UPROBE_MULTI_PATH.at) == 0 || offsets_at == 0 || count == 0 || pid < 0 {
        return Err(Errno::EINVAL);
    }
    if count > PROBES_MAX {
        return Err(Errno::E2BIG);
    }
    let path = match caller.read_string(attr.u64(c::UPROBE_MULTI_PATH.at), PATH_BYTES_MAX) {
        Err(Errno::ENAMETOOLONG) => return Err(Errno::EINVAL),
        path => path?,
    };
    let (file, bytes) = probed_file(caller, path)?;
    let bytes = bytes.ok_or(Errno::EBADF)?;
    let pid = if pid == 0 { None } else { Some(process(caller, &program, pid as u32)?) };
    let list = |field: Field| match attr.u64(field.at) {
        0 => Ok(vec![0; count as usize]),
        at => words(caller, at, count),
    };
    let (offsets, cookies) = (words(caller, offsets_at, count)?, list(c::UPROBE_MULTI_COOKIES)?);
    let counters = list(c::UPROBE_MULTI_REF_CTR_OFFSETS)?;
    let is_valid = |offset: &u64| i64::try_from(*offset).is_ok();
    if !offsets.iter().chain(&counters).all(is_valid) || offsets.iter().any(|offset| *offset > bytes) {
        return Err(Errno::EINVAL);
    }
    let ret = flags & UPROBE_MULTI_RETURN != 0;
    let told = |what: &dyn std::fmt::Display, errno| {
        refuse_aloud(caller, errno, &format!("uprobe_multi {}: {what}", file.shown))
    };
    let subsystem = caller.subsystem();
    subsystem.realm.check_sites(&file.path, &offsets, ret).map_err(|refusal| told(&refusal, refusal.errno))?;
    let probe = |((offset, counter), cookie): ((u64, u64), u64)| {
        let place = subsystem.uprobes.take((file.id.dev, file.id.inode), offset, counter);
        let place = place.map_err(|errno| told(&format!("a counter at {counter:#x}: {BAD_COUNTER}"), errno))?;
        Ok(MultiProbe { offset, counter, cookie, place })
    };
    let probes: Result<Vec<MultiProbe>, Errno> = offsets.into_iter().zip(counters).zip(cookies).map(probe).collect();
    let probes = probes?;
    let file = ProbedFile { shown: shown(&file), ..file };
    let id = subsystem.new_id(IdKind::Link);
    let link = Link::uprobes(id, program, MultiSite { file, probes, ret, pid });
    links::open(
        caller,
        link.map_err(|refusal| refuse_aloud(caller, refusal.errno, &format!("uprobe_multi: {refusal}")))?,
    )
}

/// The process that a loader names, which is no other thread.
fn process(caller: &Caller<'_>, program: &Program, pid: u32) -> Result<u32, Errno> {
    let found = process_named(pid, caller.call.tid).filter(|found| leader(*found) == *found).ok_or(Errno::ESRCH)?;
    let reach = caller.subsystem().realm.check_reach(&program.rights, found);
    reach.map_err(|refusal| refuse(refusal.errno, format_args!("uprobe_multi: {refusal}")))?;
    Ok(found)
}

/// An array of 64-bit words.
fn words(caller: &Caller<'_>, at: u64, count: u32) -> Result<Vec<u64>, Errno> {
    const WORD_BYTES: usize = 8;
    let bytes = caller.read(at, count as usize * WORD_BYTES)?;
    Ok(bytes.chunks_exact(WORD_BYTES).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect())
}

/// The path of a file as the kernel shows it: absolute, without links.
fn shown(file: &ProbedFile) -> String {
    let is_elsewhere = file.path.starts_with("/proc");
    let path = if is_elsewhere { None } else { file.path.canonicalize().ok() };
    path.map_or_else(|| file.shown.clone(), |path| path.to_string_lossy().into_owned())
}

/// Mirrors kernel/trace/bpf_trace.c:bpf_uprobe_multi_link_fill_link_info (v6.18).
pub(super) fn tell(caller: &Caller<'_>, site: &MultiSite, given: &Info, mut info: Info) -> Result<Info, Errno> {
    let lists = [
        (l::MULTI_OFFSETS, (|probe| probe.offset) as fn(&MultiProbe) -> u64),
        (l::MULTI_REF_CTR_OFFSETS, |probe| probe.counter),
        (l::MULTI_COOKIES, |probe| probe.cookie),
    ];
    let (path_at, path_room) = (given.get64(l::MULTI_PATH.at), given.get32(l::MULTI_PATH_SIZE.at) as usize);
    let room = given.get32(l::MULTI_COUNT.at) as usize;
    let is_asked = |(field, _): &(Field, _)| given.get64(field.at) != 0;
    if (path_at == 0) != (path_room == 0) || lists.iter().any(is_asked) && room == 0 {
        return Err(Errno::EINVAL);
    }
    let mut path = site.file.shown.clone().into_bytes();
    path.push(0);
    if path.len() > if path_room == 0 { PATH_BYTES_MAX } else { path_room.min(PATH_BYTES_MAX) } {
        return Err(Errno::ENAMETOOLONG);
    }
    if path_at != 0 {
        caller.write(path_at, &path)?;
    }
    let count = site.probes.len();
    for (field, of) in lists.into_iter().filter(is_asked) {
        let words: Vec<u8> = site.probes.iter().take(room).flat_map(|probe| of(probe).to_le_bytes()).collect();
        caller.write(given.get64(field.at), &words)?;
        info.put64(field.at, given.get64(field.at));
    }
    let pid = site.pid.map_or(0, |pid| number_of_process(pid, caller.call.tid));
    info.put64(l::MULTI_PATH.at, path_at).put32(l::MULTI_PATH_SIZE.at, path.len() as u32);
    info.put32(l::MULTI_COUNT.at, count as u32).put32(l::MULTI_PID.at, pid);
    info.put32(l::MULTI_FLAGS.at, if site.ret { UPROBE_MULTI_RETURN } else { 0 });
    if lists.iter().any(is_asked) && room < count { Err(Errno::ENOSPC) } else { Ok(info) }
}
