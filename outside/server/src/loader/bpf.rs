//! bpf(2).

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use ring3_isa::{Immediate, Op};
use ring3_maps::Attributes;
use ring3_uapi::Errno;
use ring3_uapi::bpf::{attach_type, cmd, map_type, prog_type};
use ring3_verifier::{Input, MapShape, verify};

use super::attr::Attr;
use super::{Caller, Outcome, Reply, refuse};
use crate::loader::objects::{Btf, Event, EventKind, IdKind, Link, MapObject, Object, Program};
use crate::realm::MapSlot;
use crate::support;

/// Instructions of a program at most.
const INSNS_MAX: u32 = 1_000_000;
/// Bytes of BTF at most (`BTF_MAX_SIZE`).
const BTF_BYTES_MAX: u32 = 16 << 20;
/// Licences under which GPL-only helpers may be called (include/linux/license.h).
const GPL_COMPATIBLE: [&str; 6] =
    ["GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"];

pub(super) fn serve(caller: &Caller<'_>) -> Reply {
    let command = caller.arg(0) as u32;
    if let Some((errno, why)) = support::refused_command(command) {
        let name = cmd::name(command).unwrap_or("unknown command");
        return Err(refuse(errno, format_args!("bpf({name}): {why}")));
    }
    let attr = Attr::read(caller.arg(2) as usize, |size| caller.read(caller.arg(1), size))?;
    let attr = &attr;
    match command {
        cmd::MAP_CREATE => map_create(caller, attr),
        cmd::MAP_LOOKUP_ELEM => map_lookup(caller, attr),
        cmd::MAP_UPDATE_ELEM => map_update(caller, attr),
        cmd::MAP_DELETE_ELEM => map_delete(caller, attr),
        cmd::MAP_GET_NEXT_KEY => map_next_key(caller, attr),
        cmd::MAP_LOOKUP_AND_DELETE_ELEM => map_lookup_and_delete(caller, attr),
        cmd::MAP_FREEZE => map_freeze(caller, attr),
        cmd::MAP_LOOKUP_BATCH | cmd::MAP_LOOKUP_AND_DELETE_BATCH => map_lookup_batch(caller, attr, command),
        cmd::PROG_LOAD => prog_load(caller, attr),
        cmd::PROG_BIND_MAP => prog_bind_map(caller, attr),
        cmd::BTF_LOAD => btf_load(caller, attr),
        cmd::LINK_CREATE => link_create(caller, attr),
        cmd::LINK_DETACH => link_detach(caller, attr),
        cmd::OBJ_GET_INFO_BY_FD => object_info(caller, attr),
        cmd::MAP_GET_NEXT_ID | cmd::PROG_GET_NEXT_ID | cmd::BTF_GET_NEXT_ID | cmd::LINK_GET_NEXT_ID => {
            next_id(caller, attr, command)
        }
        cmd::MAP_GET_FD_BY_ID | cmd::PROG_GET_FD_BY_ID | cmd::BTF_GET_FD_BY_ID | cmd::LINK_GET_FD_BY_ID => {
            fd_by_id(caller, attr, command)
        }
        _ => Err(refuse(Errno::EINVAL, format_args!("bpf command {command} is unknown"))),
    }
}

// ---- maps ----

fn map_of(caller: &Caller<'_>, fd: i32) -> Result<Arc<MapObject>, Errno> {
    match caller.object(fd)? {
        Some(Object::Map(map)) => Ok(map),
        Some(_) => Err(Errno::EINVAL),
        None => Err(Errno::EINVAL),
    }
}

fn map_create(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let attributes = Attributes {
        map_type: attr.u32(0),
        key_size: attr.u32(4),
        value_size: attr.u32(8),
        max_entries: attr.u32(12),
        map_flags: attr.u32(16),
        cpus: 0,
    };
    if let Some((errno, why)) = support::refused_map_type(attributes.map_type) {
        let name = map_type::name(attributes.map_type).unwrap_or("unknown map type");
        return Err(refuse(errno, format_args!("map type {name}: {why}")));
    }
    let name = attr.name(28)?;
    let btf = match (attr.i32(48), attr.u32(52), attr.u32(56)) {
        (_, 0, 0) => None,
        (fd, key, value) => match caller.object(fd)? {
            Some(Object::Btf(btf)) => Some((btf, key, value)),
            _ => return Err(Errno::EINVAL),
        },
    };
    let map = MapObject::create(caller.subsystem(), attributes, name, attr.u64(64), btf)?;
    let fd = caller.subsystem().open_memfd(Object::Map(map.clone()), map.memfd().as_fd())?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

fn key_of(caller: &Caller<'_>, map: &MapObject, address: u64) -> Result<Vec<u8>, Errno> {
    caller.read(address, map.geometry().header.key_size as usize)
}

fn map_lookup(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_of(caller, attr.i32(0))?;
    if attr.u64(24) != 0 {
        return Err(Errno::EINVAL);
    }
    let key = key_of(caller, &map, attr.u64(8))?;
    caller.write(attr.u64(16), &map.lookup(&key)?)?;
    Ok(Outcome::Value(0))
}

fn map_update(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_of(caller, attr.i32(0))?;
    if map.frozen.load(Ordering::Acquire) {
        return Err(Errno::EPERM);
    }
    let key = key_of(caller, &map, attr.u64(8))?;
    let flags = attr.u64(24);
    match map.geometry().header.map_type {
        map_type::PERF_EVENT_ARRAY => {
            let fd = caller.read(attr.u64(16), 4)?;
            let fd = i32::from_le_bytes(fd.try_into().expect("4 bytes"));
            match caller.object(fd)? {
                Some(Object::Event(event)) if flags == 0 => map.set_event(&key, event)?,
                Some(_) => return Err(Errno::EINVAL),
                None => {
                    return Err(refuse(Errno::EINVAL, "only bpf-output events go into a perf event array"));
                }
            }
        }
        map_type::CGROUP_ARRAY => {
            return Err(refuse(Errno::ENOTSUPP, "cgroups in a cgroup array: programs here do not know cgroups"));
        }
        _ => {
            let value = caller.read(attr.u64(16), map.geometry().user_value_bytes())?;
            map.update(&key, &value, flags)?;
        }
    }
    Ok(Outcome::Value(0))
}

fn map_delete(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_of(caller, attr.i32(0))?;
    if map.frozen.load(Ordering::Acquire) {
        return Err(Errno::EPERM);
    }
    map.delete(&key_of(caller, &map, attr.u64(8))?)?;
    Ok(Outcome::Value(0))
}

fn map_next_key(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_of(caller, attr.i32(0))?;
    let key = if attr.u64(8) == 0 { None } else { Some(key_of(caller, &map, attr.u64(8))?) };
    caller.write(attr.u64(16), &map.next_key(key.as_deref())?)?;
    Ok(Outcome::Value(0))
}

fn map_lookup_and_delete(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_of(caller, attr.i32(0))?;
    let key = key_of(caller, &map, attr.u64(8))?;
    caller.write(attr.u64(16), &map.lookup_and_delete(&key)?)?;
    Ok(Outcome::Value(0))
}

fn map_freeze(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_of(caller, attr.i32(0))?;
    if map.frozen.swap(true, Ordering::AcqRel) { Err(Errno::EBUSY) } else { Ok(Outcome::Value(0)) }
}

/// `BPF_MAP_LOOKUP_BATCH` and `.._AND_DELETE_BATCH`: the position between batches is the last key.
fn map_lookup_batch(caller: &Caller<'_>, attr: &Attr, command: u32) -> Reply {
    const COUNT_AT: u64 = 32;
    let map = map_of(caller, attr.i32(36))?;
    let (wanted, key_bytes) = (attr.u32(32), map.geometry().header.key_size as usize);
    let mut last = match attr.u64(0) {
        0 => None,
        address => Some(caller.read(address, key_bytes)?),
    };
    let (mut keys, mut values, mut count) = (vec![], vec![], 0u32);
    let mut ended = false;
    while count < wanted {
        let Ok(key) = map.next_key(last.as_deref()) else {
            ended = true;
            break;
        };
        if let Ok(value) = map.lookup(&key) {
            keys.extend_from_slice(&key);
            values.extend(value);
            count += 1;
        }
        last = Some(key);
    }
    caller.write(attr.u64(16), &keys)?;
    caller.write(attr.u64(24), &values)?;
    if let Some(last) = &last {
        caller.write(attr.u64(8), last)?;
    }
    caller.write(caller.arg(1) + COUNT_AT, &count.to_le_bytes())?;
    if command == cmd::MAP_LOOKUP_AND_DELETE_BATCH {
        for key in keys.chunks_exact(key_bytes) {
            let _ = map.delete(key);
        }
    }
    if ended { Err(Errno::ENOENT) } else { Ok(Outcome::Value(0)) }
}

// ---- programs ----

/// The program's log buffer.
struct Log<'c> {
    caller: &'c Caller<'c>,
    level: u32,
    bytes: u32,
    address: u64,
    true_size_at: Option<u64>,
}

impl Log<'_> {
    /// Writes the text; `ENOSPC` if it was cut, as kernel/bpf/log.c:bpf_vlog_finalize.
    fn write(&self, text: &str) -> Result<(), Errno> {
        if self.level == 0 {
            return Ok(());
        }
        if let Some(at) = self.true_size_at {
            let _ = self.caller.write(at, &(text.len() as u32 + 1).to_le_bytes());
        }
        if self.address == 0 || self.bytes == 0 {
            return Ok(());
        }
        let fits = (self.bytes as usize - 1).min(text.len());
        let mut bytes = text.as_bytes()[..fits].to_vec();
        bytes.push(0);
        self.caller.write(self.address, &bytes)?;
        if fits < text.len() { Err(Errno::ENOSPC) } else { Ok(()) }
    }
}

fn prog_load(caller: &Caller<'_>, attr: &Attr) -> Reply {
    const LOG_TRUE_SIZE_AT: usize = 140;
    let (kind, count) = (attr.u32(0), attr.u32(4));
    if let Some((errno, why)) = support::refused_prog_type(kind) {
        let name = prog_type::name(kind).unwrap_or("unknown program type");
        return Err(refuse(errno, format_args!("program type {name}: {why}")));
    }
    if count == 0 || count > INSNS_MAX {
        return Err(Errno::E2BIG);
    }
    let name = attr.name(48)?;
    let license = caller.read_string(attr.u64(16), 128)?;
    let bytes = caller.read(attr.u64(8), count as usize * 8)?;
    let insns = ring3_isa::decode(&bytes).ok_or(Errno::EINVAL)?;
    let btf = match attr.i32(72) {
        0 if attr.u32(88) == 0 && attr.u32(104) == 0 => None,
        fd => match caller.object(fd)? {
            Some(Object::Btf(btf)) => Some(btf),
            _ => return Err(Errno::EBADF),
        },
    };
    let maps = maps_of(caller, attr, &insns);
    let gpl_compatible = GPL_COMPATIBLE.contains(&license.as_str());
    let log = Log {
        caller,
        level: attr.u32(24),
        bytes: attr.u32(28),
        address: attr.u64(32),
        true_size_at: (attr.passed >= LOG_TRUE_SIZE_AT + 4).then_some(caller.arg(1) + LOG_TRUE_SIZE_AT as u64),
    };
    let shape = |key: &Reference| maps.get(key).map(|map| map.shape());
    let verified = verify(&Input {
        insns: &insns,
        prog_type: kind,
        gpl_compatible,
        map_by_fd: &|fd| shape(&Reference::Fd(fd)),
        map_by_index: &|index| shape(&Reference::Index(index)),
        constant_value: &|slot| maps.values().find(|map| map.slot.0 == slot)?.constant_value(),
    })
    .map_err(|report| {
        let _ = log.write(&report.log);
        refuse(report.errno, format_args!("program {name:?}: {report}"))
    })?;
    log.write(&verified.log())?;
    let slots: Vec<MapSlot> = verified.maps().iter().map(|map: &MapShape| MapSlot(map.slot)).collect();
    let realm = caller.subsystem().realm.clone();
    let text = realm.publish_program(&verified, slots).map_err(|refusal| {
        let _ = log.write(&format!("{refusal}\n"));
        refuse(refusal.errno, format_args!("program {name:?}: {refusal}"))
    })?;
    let mut held: Vec<Arc<MapObject>> = maps.into_values().collect();
    held.sort_by_key(|map| map.id);
    held.dedup_by_key(|map| map.id);
    let program = Arc::new(Program {
        id: caller.subsystem().new_id(IdKind::Program),
        name,
        prog_type: kind,
        gpl_compatible,
        insns: bytes,
        text: Arc::new(text),
        per_cpu: verified.uses_per_cpu(),
        maps: Mutex::new(held),
        btf,
        loaded_ns: boot_time_ns(),
        realm,
    });
    let fd = caller.subsystem().open_pipe(Object::Program(program))?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

/// How an instruction names a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reference {
    Fd(i32),
    Index(u32),
}

/// All maps that the instructions name and that exist.
fn maps_of(caller: &Caller<'_>, attr: &Attr, insns: &[ring3_isa::Insn]) -> HashMap<Reference, Arc<MapObject>> {
    let fd_array = attr.u64(120);
    let mut found = HashMap::new();
    for at in 0..insns.len() {
        let Ok(Op::LoadImm64 { value, .. }) = ring3_isa::op(insns, at) else { continue };
        let reference = match value {
            Immediate::MapFd(fd) | Immediate::MapValue(fd, _) => Reference::Fd(fd),
            Immediate::MapIdx(index) | Immediate::MapIdxValue(index, _) => Reference::Index(index),
            _ => continue,
        };
        let fd = match reference {
            Reference::Fd(fd) => Some(fd),
            Reference::Index(index) => caller
                .read(fd_array + u64::from(index) * 4, 4)
                .ok()
                .map(|bytes| i32::from_le_bytes(bytes.try_into().expect("4 bytes"))),
        };
        if let Some(map) = fd.and_then(|fd| map_of(caller, fd).ok()) {
            found.insert(reference, map);
        }
    }
    found
}

fn boot_time_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn program_of(caller: &Caller<'_>, fd: i32) -> Result<Arc<Program>, Errno> {
    match caller.object(fd)? {
        Some(Object::Program(program)) => Ok(program),
        _ => Err(Errno::EINVAL),
    }
}

fn prog_bind_map(caller: &Caller<'_>, attr: &Attr) -> Reply {
    attr.zero_from(8)?;
    let program = program_of(caller, attr.i32(0))?;
    let map = map_of(caller, attr.i32(4))?;
    let mut maps = program.maps.lock().expect("no panic under this lock");
    if !maps.iter().any(|held| held.id == map.id) {
        maps.push(map);
    }
    Ok(Outcome::Value(0))
}

// ---- BTF ----

fn btf_load(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let size = attr.u32(16);
    if size > BTF_BYTES_MAX {
        return Err(Errno::E2BIG);
    }
    let bytes = caller.read(attr.u64(0), size as usize)?;
    check_btf(&bytes).ok_or_else(|| refuse(Errno::EINVAL, "BTF_LOAD: the type information is damaged"))?;
    let btf = Arc::new(Btf { id: caller.subsystem().new_id(IdKind::Btf), bytes });
    let fd = caller.subsystem().open_pipe(Object::Btf(btf))?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

/// Header, section bounds and the chain of types (Documentation/bpf/btf.rst).
fn check_btf(bytes: &[u8]) -> Option<()> {
    const MAGIC: u16 = 0xeb9f;
    const KIND_MAX: u32 = 19;
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let magic = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
    let (header, types_at, types, strings_at, strings) = (word(4)?, word(8)?, word(12)?, word(16)?, word(20)?);
    if magic != MAGIC || bytes.get(2) != Some(&1) || header < 24 || types_at % 4 != 0 {
        return None;
    }
    let section = |at: u32, length: u32| {
        let start = header.checked_add(at)? as usize;
        bytes.get(start..start.checked_add(length as usize)?)
    };
    let text = section(strings_at, strings)?;
    if text.first() != Some(&0) || text.last() != Some(&0) {
        return None;
    }
    let mut rest = section(types_at, types)?;
    while !rest.is_empty() {
        let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        let (name, info) = (word(0)?, word(4)?);
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let extra = match kind {
            1 | 14 | 17 => 4,              // int, var, decl_tag
            3 => 12,                       // array
            4 | 5 | 15 | 19 => count * 12, // struct, union, datasec, enum64
            6 | 13 => count * 8,           // enum, func_proto
            0 => return None,
            kind if kind <= KIND_MAX => 0,
            _ => return None,
        };
        if name as usize >= text.len() {
            return None;
        }
        rest = rest.get(12 + extra..)?;
    }
    Some(())
}

// ---- links ----

fn event_of(caller: &Caller<'_>, fd: i32) -> Result<Arc<Event>, Errno> {
    match caller.object(fd)? {
        Some(Object::Event(event)) => Ok(event),
        Some(_) => Err(Errno::EINVAL),
        None => Err(refuse(Errno::EINVAL, "programs attach to uprobe events only; this event is the kernel's own")),
    }
}

fn link_create(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let (prog_fd, target_fd, kind, flags) = (attr.i32(0), attr.i32(4), attr.u32(8), attr.u32(12));
    let program = program_of(caller, prog_fd)?;
    if kind != attach_type::PERF_EVENT {
        let name = attach_type::name(kind).unwrap_or("unknown");
        return Err(refuse(Errno::EINVAL, format_args!("link of attach type {name} is not supported")));
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let event = event_of(caller, target_fd)?;
    let id = caller.subsystem().new_id(IdKind::Link);
    let attached = event
        .attach(program, id, attr.u64(16))
        .map_err(|refusal| refuse(refusal.errno, format_args!("link: {refusal}")))?;
    let link = Arc::new(Link { id, event, attached: Mutex::new(Some(attached)) });
    let fd = caller.subsystem().open_pipe(Object::Link(link))?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

fn link_detach(caller: &Caller<'_>, attr: &Attr) -> Reply {
    match caller.object(attr.i32(0))? {
        // The kernel's perf event links cannot be detached otherwise than by closing (kernel/bpf/syscall.c).
        Some(Object::Link(_)) => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

// ---- information ----

/// A structure of the kernel's, filled field by field.
struct Info(Vec<u8>);

impl Info {
    fn put(&mut self, offset: usize, bytes: &[u8]) -> &mut Info {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn put32(&mut self, offset: usize, value: u32) -> &mut Info {
        self.put(offset, &value.to_le_bytes())
    }

    fn put64(&mut self, offset: usize, value: u64) -> &mut Info {
        self.put(offset, &value.to_le_bytes())
    }
}

fn object_info(caller: &Caller<'_>, attr: &Attr) -> Reply {
    const INFO_LEN_AT: u64 = 4;
    let (passed, address) = (attr.u32(4) as usize, attr.u64(8));
    let object = caller.object(attr.i32(0))?.ok_or(Errno::EINVAL)?;
    let given = Info(caller.read(address, passed.min(4096))?);
    let info = match &object {
        Object::Map(map) => map_info(map),
        Object::Program(program) => program_info(caller, program, &given)?,
        Object::Btf(btf) => btf_info(caller, btf, &given)?,
        Object::Link(link) => link_info(link),
        Object::Event(_) => return Err(Errno::EINVAL),
    };
    if given.0.iter().skip(info.0.len()).any(|byte| *byte != 0) {
        return Err(Errno::E2BIG);
    }
    let bytes = info.0.len().min(passed);
    caller.write(address, &info.0[..bytes])?;
    caller.write(caller.arg(1) + INFO_LEN_AT, &(bytes as u32).to_le_bytes())?;
    Ok(Outcome::Value(0))
}

/// `struct bpf_map_info`.
fn map_info(map: &MapObject) -> Info {
    let header = &map.geometry().header;
    let mut info = Info(vec![0; 88]);
    info.put32(0, header.map_type).put32(4, map.id).put32(8, header.key_size).put32(12, header.value_size);
    info.put32(16, header.max_entries).put32(20, map.flags).put(24, map.name.as_bytes()).put64(80, map.extra);
    if let Some((btf, key, value)) = &map.btf {
        info.put32(64, btf.id).put32(68, *key).put32(72, *value);
    }
    info
}

/// `struct bpf_prog_info`: counts, names and ids; the caller's buffers for map ids and instructions are filled.
fn program_info(caller: &Caller<'_>, program: &Program, given: &Info) -> Result<Info, Errno> {
    let field32 =
        |at: usize| given.0.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().expect("4 bytes")));
    let field64 =
        |at: usize| given.0.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
    let mut info = Info(vec![0; 232]);
    let ids: Vec<u32> = program.maps.lock().expect("no panic under this lock").iter().map(|map| map.id).collect();
    info.put32(0, program.prog_type).put32(4, program.id).put32(16, program.text.code_bytes);
    info.put32(20, program.insns.len() as u32).put64(40, program.loaded_ns);
    info.put32(48, rustix::process::geteuid().as_raw()).put32(52, ids.len() as u32);
    info.put(64, program.name.as_bytes()).put32(84, u32::from(program.gpl_compatible));
    info.put32(128, program.btf.as_ref().map_or(0, |btf| btf.id)).put32(216, (program.insns.len() / 8) as u32);
    if field64(56) != 0 && field32(52) > 0 {
        let room = (field32(52) as usize).min(ids.len());
        let bytes: Vec<u8> = ids[..room].iter().flat_map(|id| id.to_le_bytes()).collect();
        caller.write(field64(56), &bytes)?;
        info.put64(56, field64(56));
    }
    if field64(32) != 0 && field32(20) > 0 {
        let room = (field32(20) as usize).min(program.insns.len());
        caller.write(field64(32), &program.insns[..room])?;
        info.put64(32, field64(32));
    }
    Ok(info)
}

/// `struct bpf_btf_info`.
fn btf_info(caller: &Caller<'_>, btf: &Btf, given: &Info) -> Result<Info, Errno> {
    let mut info = Info(vec![0; 32]);
    let field64 =
        |at: usize| given.0.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
    let room = given.0.get(8..12).map_or(0, |b| u32::from_le_bytes(b.try_into().expect("4 bytes"))) as usize;
    if field64(0) != 0 && room > 0 {
        caller.write(field64(0), &btf.bytes[..room.min(btf.bytes.len())])?;
    }
    info.put64(0, field64(0)).put32(8, btf.bytes.len() as u32).put32(12, btf.id);
    Ok(info)
}

/// `struct bpf_link_info` of a perf event link.
fn link_info(link: &Link) -> Info {
    const LINK_TYPE_PERF_EVENT: u32 = 7;
    const PERF_EVENT_UPROBE: u32 = 1;
    const PERF_EVENT_URETPROBE: u32 = 2;
    let mut info = Info(vec![0; 64]);
    let program = link.attached.lock().expect("no panic under this lock").as_ref().map_or(0, |a| a.program.id);
    info.put32(0, LINK_TYPE_PERF_EVENT).put32(4, link.id).put32(8, program);
    if let EventKind::Uprobe(site, _) = &link.event.kind {
        info.put32(16, if site.ret { PERF_EVENT_URETPROBE } else { PERF_EVENT_UPROBE }).put32(36, site.offset as u32);
    }
    info
}

fn id_of(object: &Object, command: u32) -> Option<u32> {
    match (object, command) {
        (Object::Map(map), cmd::MAP_GET_NEXT_ID | cmd::MAP_GET_FD_BY_ID) => Some(map.id),
        (Object::Program(program), cmd::PROG_GET_NEXT_ID | cmd::PROG_GET_FD_BY_ID) => Some(program.id),
        (Object::Btf(btf), cmd::BTF_GET_NEXT_ID | cmd::BTF_GET_FD_BY_ID) => Some(btf.id),
        (Object::Link(link), cmd::LINK_GET_NEXT_ID | cmd::LINK_GET_FD_BY_ID) => Some(link.id),
        _ => None,
    }
}

fn next_id(caller: &Caller<'_>, attr: &Attr, command: u32) -> Reply {
    const NEXT_ID_AT: u64 = 4;
    let after = attr.u32(0);
    let objects = caller.subsystem().objects();
    let next = objects.iter().filter_map(|object| id_of(object, command)).filter(|id| *id > after).min();
    caller.write(caller.arg(1) + NEXT_ID_AT, &next.ok_or(Errno::ENOENT)?.to_le_bytes())?;
    Ok(Outcome::Value(0))
}

fn fd_by_id(caller: &Caller<'_>, attr: &Attr, command: u32) -> Reply {
    let objects = caller.subsystem().objects();
    let found = objects.into_iter().find(|object| id_of(object, command) == Some(attr.u32(0)));
    let object = found.ok_or(Errno::ENOENT)?;
    let fd = match &object {
        Object::Map(map) => caller.subsystem().open_memfd(object.clone(), map.memfd().as_fd())?,
        _ => caller.subsystem().open_pipe(object)?,
    };
    Ok(Outcome::Fd { fd, close_on_exec: true })
}
