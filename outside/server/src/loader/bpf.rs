//! bpf(2).

use std::borrow::Cow;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring3_maps::{Attributes, Geometry};
use ring3_uapi::Errno;
use ring3_uapi::attr::{BTF_INFO_BYTES, Field, MAP_INFO_BYTES};
use ring3_uapi::bpf::{cmd, map_type};
use ring3_uapi::flags::{
    BPF_F_LOCK, BPF_F_NO_COMMON_LRU, BPF_F_NUMA_NODE, BPF_F_RDONLY, BPF_F_TOKEN_FD, BPF_F_WRONLY,
};

use super::attr::{self, Attr};
use super::{Caller, Outcome, Reply, batch, elsewhere, links, names, program, refuse, test_run, value_types};
use crate::loader::objects::{Access, Btf, IdKind, Inner, MapObject, Members, Object, Program, Stats};
use crate::support;

/// Bytes of BTF at most (`BTF_MAX_SIZE`).
const BTF_BYTES_MAX: u32 = 16 << 20;

pub(super) fn serve(caller: &Caller<'_>) -> Reply {
    let command = caller.arg(0) as u32;
    let attr = Attr::read(caller.arg(2) as u32 as usize, |size| caller.read(caller.arg(1), size))?;
    if let Some((errno, why)) = support::refused_command(command) {
        let name = cmd::name(command).unwrap_or("unknown command");
        let errno =
            attr.check_tail(command).and_then(|()| elsewhere::check(caller, &attr, command)).err().unwrap_or(errno);
        return Err(refuse(errno, format_args!("bpf({name}): {why}")));
    }
    attr.check_tail(command)?;
    let attr = &attr;
    match command {
        cmd::MAP_CREATE => map_create(caller, attr),
        cmd::MAP_LOOKUP_ELEM => map_lookup(caller, attr),
        cmd::MAP_UPDATE_ELEM => map_update(caller, attr),
        cmd::MAP_DELETE_ELEM => map_delete(caller, attr),
        cmd::MAP_GET_NEXT_KEY => map_next_key(caller, attr),
        cmd::MAP_LOOKUP_AND_DELETE_ELEM => map_lookup_and_delete(caller, attr),
        cmd::MAP_FREEZE => map_freeze(caller, attr),
        cmd::MAP_LOOKUP_BATCH | cmd::MAP_LOOKUP_AND_DELETE_BATCH => batch::look_up(caller, attr, command),
        cmd::MAP_UPDATE_BATCH | cmd::MAP_DELETE_BATCH => batch::change(caller, attr, command),
        cmd::OBJ_PIN => names::pin(caller, attr),
        cmd::OBJ_GET => names::get(caller, attr),
        cmd::PROG_LOAD => program::load(caller, attr),
        cmd::PROG_BIND_MAP => prog_bind_map(caller, attr),
        cmd::PROG_TEST_RUN => test_run::prog_test_run(caller, attr),
        cmd::BTF_LOAD => btf_load(caller, attr),
        cmd::LINK_CREATE => links::create(caller, attr),
        cmd::LINK_DETACH => links::detach(caller, attr),
        cmd::RAW_TRACEPOINT_OPEN => links::open_raw_tracepoint(caller, attr),
        cmd::TASK_FD_QUERY => links::query_task_fd(caller, attr),
        cmd::ENABLE_STATS => enable_stats(caller, attr),
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

pub(super) fn map_of(caller: &Caller<'_>, fd: i32) -> Result<Arc<MapObject>, Errno> {
    match caller.object(fd)? {
        Some(Object::Map(map)) => Ok(map),
        _ => Err(Errno::EINVAL),
    }
}

/// A map behind a descriptor that allows what is wanted. Mirrors kernel/bpf/syscall.c:map_get_sys_perms.
pub(super) fn map_for(caller: &Caller<'_>, fd: i32, wanted: Access) -> Result<Arc<MapObject>, Errno> {
    let copy = caller.fd(fd)?;
    let Some(Object::Map(map)) = caller.subsystem().object(copy.as_fd()) else { return Err(Errno::EINVAL) };
    let mut allowed = Access::of(copy.as_fd());
    allowed.write &= !map.frozen.load(Ordering::Acquire);
    let denied = wanted.read && !allowed.read || wanted.write && !allowed.write;
    if denied { Err(Errno::EPERM) } else { Ok(map) }
}

fn map_create(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let attributes = Attributes {
        map_type: attr.u32(0),
        key_size: attr.u32(4),
        value_size: attr.u32(8),
        max_entries: attr.u32(12),
        map_flags: attr.u32(16) & !BPF_F_TOKEN_FD,
        cpus: 0,
        map_extra: attr.u64(ring3_uapi::attr::map_create::MAP_EXTRA.at),
    };
    check_map_fields(attr)?;
    let access = Access::from_flags(attributes.map_flags)?;
    if let Some((errno, why)) = support::refused_map_type(attributes.map_type) {
        let name = map_type::name(attributes.map_type).unwrap_or("unknown map type");
        return Err(refuse(errno, format_args!("map type {name}: {why}")));
    }
    if attr.u32(ring3_uapi::attr::map_create::MAP_IFINDEX.at) != 0 {
        return Err(refuse(Errno::EOPNOTSUPP, "maps of network devices"));
    }
    if !caller.rights()?.may_bpf() {
        // Attributes that no map has come first.
        Geometry::new(&Attributes { cpus: 1, ..attributes })?;
        return Err(refuse(Errno::EPERM, "BPF_MAP_CREATE without CAP_BPF"));
    }
    if attr.u32(16) & BPF_F_TOKEN_FD != 0 {
        // There are no tokens here, so it is none; but the type is asked first.
        Geometry::new(&attributes)?;
        caller.fd(attr.i32(ring3_uapi::attr::map_create::MAP_TOKEN_FD.at))?;
        return Err(refuse(Errno::EINVAL, "bpf tokens"));
    }
    let name = attr.name(28)?;
    let btf = match (attr.i32(48), attr.u32(52), attr.u32(56)) {
        (_, 0, 0) => None,
        (fd, key, value) => match caller.object(fd)? {
            Some(Object::Btf(btf)) => Some((btf, key, value)),
            Some(Object::KernelTypes(_)) => return Err(Errno::EACCES),
            _ => return Err(Errno::EINVAL),
        },
    };
    let inner = match attributes.map_type {
        map_type::ARRAY_OF_MAPS | map_type::HASH_OF_MAPS => {
            Some(Inner::of(&*map_of(caller, attr.i32(ring3_uapi::attr::map_create::INNER_MAP_FD.at))?)?)
        }
        _ => None,
    };
    let lock = match &btf {
        None if attributes.map_type == map_type::TASK_STORAGE => {
            Geometry::new(&Attributes { cpus: 1, ..attributes })?;
            return Err(Errno::EINVAL);
        }
        Some((btf, key, value)) if *value != 0 => {
            // Attributes that no map has come first.
            Geometry::new(&Attributes { cpus: 1, ..attributes })?;
            value_types::check(&btf.types, &attributes, *key, *value)?
        }
        _ => None,
    };
    let map =
        MapObject::create(caller.subsystem(), attributes, name, btf, Members { inner, lock }, caller.sharing()?)?;
    let fd = caller.open_memfd(Object::Map(map.clone()), map.memfd().as_fd(), access)?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

/// Members of `BPF_MAP_CREATE` that no type here has a use for, and the NUMA node.
/// Mirrors kernel/bpf/syscall.c:map_create and arraymap.c:array_map_alloc_check.
fn check_map_fields(attr: &Attr) -> Result<(), Errno> {
    use ring3_uapi::attr::map_create as m;
    let word = |field: Field| attr.u32(field.at);
    if word(m::BTF_VMLINUX_VALUE_TYPE_ID) != 0
        || word(m::BTF_KEY_TYPE_ID) != 0 && word(m::BTF_VALUE_TYPE_ID) == 0
        || attr.u64(m::MAP_EXTRA.at) != 0 && word(m::MAP_TYPE) != map_type::BLOOM_FILTER
        || attr.u64(m::EXCL_PROG_HASH.at) != 0
        || word(m::EXCL_PROG_HASH_SIZE) != 0
    {
        return Err(Errno::EINVAL);
    }
    if word(m::MAP_FLAGS) & BPF_F_NUMA_NODE != 0 && word(m::NUMA_NODE) != u32::MAX {
        let per_cpu =
            matches!(word(m::MAP_TYPE), map_type::PERCPU_HASH | map_type::PERCPU_ARRAY | map_type::LRU_PERCPU_HASH)
                || word(m::MAP_FLAGS) & BPF_F_NO_COMMON_LRU != 0;
        let node = format!("/sys/devices/system/node/node{}", word(m::NUMA_NODE));
        let there = word(m::NUMA_NODE) == 0 || Path::new(&node).exists();
        if per_cpu || !there {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}

/// A key; where the loader gives a thread's pidfd, the thread's. Mirrors kernel/bpf/syscall.c:___bpf_copy_key and
/// bpf_task_storage.c:bpf_pid_task_storage_lookup_elem.
fn key_of(caller: &Caller<'_>, map: &MapObject, address: u64) -> Result<Vec<u8>, Errno> {
    if map.geometry().header.map_type == map_type::TASK_STORAGE {
        let key = caller.read(address, 4)?;
        let fd = i32::from_le_bytes(key.try_into().map_err(|_| Errno::EINVAL)?);
        return Ok(thread_of(caller, fd)?.to_le_bytes().into());
    }
    match map.geometry().header.key_size {
        0 if address != 0 => Err(Errno::EINVAL),
        bytes => caller.read(address, bytes as usize),
    }
}

/// `BPF_F_LOCK` is for values with a lock.
pub(super) fn check_lock_flag(map: &MapObject, flags: u64) -> Result<(), Errno> {
    if flags & BPF_F_LOCK != 0 && !map.has_lock() { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The key of the values of the thread that a pidfd stands for.
fn thread_of(caller: &Caller<'_>, fd: i32) -> Result<u32, Errno> {
    use std::os::fd::AsRawFd;
    let copy = caller.fd(fd)?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", copy.as_raw_fd())).unwrap_or_default();
    let of = |text: &str, name: &str| {
        ring3_inject::status_field(text, name)?.split_ascii_whitespace().last()?.parse::<i64>().ok()
    };
    let tid = of(&info, "Pid").ok_or(Errno::EBADF)?;
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).map_err(|_| Errno::ESRCH)?;
    let (pid, own_tid) = of(&status, "Tgid").zip(of(&status, "NSpid")).ok_or(Errno::ESRCH)?;
    caller.subsystem().realm.thread_serial(pid as u32, own_tid as u32).ok_or(Errno::ENOENT)
}

fn map_lookup(caller: &Caller<'_>, attr: &Attr) -> Reply {
    if attr.u64(24) & !BPF_F_LOCK != 0 {
        return Err(Errno::EINVAL);
    }
    let map = map_for(caller, attr.i32(0), Access::READ)?;
    check_lock_flag(&map, attr.u64(24))?;
    let key = key_of(caller, &map, attr.u64(8))?;
    if map.is_keyless() {
        let bytes = map.geometry().user_value_bytes();
        if map.geometry().header.map_type == map_type::BLOOM_FILTER {
            map.peek(&mut caller.read(attr.u64(16), bytes)?)?;
            return Ok(Outcome::Value(0));
        }
        let mut value = vec![0; bytes];
        map.peek(&mut value)?;
        caller.write(attr.u64(16), &value)?;
        return Ok(Outcome::Value(0));
    }
    caller.write(attr.u64(16), &map.lookup(&key)?)?;
    Ok(Outcome::Value(0))
}

fn map_update(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_for(caller, attr.i32(0), Access::WRITE)?;
    let flags = attr.u64(24);
    check_lock_flag(&map, flags)?;
    let key = key_of(caller, &map, attr.u64(8))?;
    let value = caller.read(attr.u64(16), map.geometry().user_value_bytes())?;
    if map.is_keyless() {
        map.push(&value, flags)?;
    } else {
        update(caller, &map, &key, &value, flags)?;
    }
    Ok(Outcome::Value(0))
}

/// Stores a value; where elements are objects, the one that it is the descriptor of.
/// Mirrors kernel/bpf/syscall.c:bpf_map_update_value and arraymap.c:bpf_fd_array_map_update_elem.
pub(super) fn update(
    caller: &Caller<'_>,
    map: &Arc<MapObject>,
    key: &[u8],
    value: &[u8],
    flags: u64,
) -> Result<(), Errno> {
    let kind = map.geometry().header.map_type;
    if !ring3_maps::is_of_objects(kind) {
        return map.update(key, value, flags);
    }
    let word = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).map_err(|_| Errno::EINVAL);
    let fd = word(value)? as i32;
    if kind == map_type::HASH_OF_MAPS {
        return map.set_inner(key, map_of(caller, fd)?, flags);
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    if word(key)? >= map.geometry().header.max_entries {
        return Err(Errno::E2BIG);
    }
    match kind {
        map_type::ARRAY_OF_MAPS => map.set_inner(key, map_of(caller, fd)?, 0),
        map_type::PROG_ARRAY => map.set_program(key, program_of(caller, fd)?),
        _ => put_file(caller, map, key, fd),
    }
}

/// Puts a perf event, or would put a cgroup, into its array.
fn put_file(caller: &Caller<'_>, map: &Arc<MapObject>, key: &[u8], fd: i32) -> Result<(), Errno> {
    let copy = caller.fd(fd)?;
    if map.geometry().header.map_type == map_type::PERF_EVENT_ARRAY {
        return match caller.subsystem().object(copy.as_fd()) {
            Some(Object::Event(event)) => map.set_event(key, event),
            None if links::is_kernel_event(copy.as_fd()) => {
                Err(refuse(Errno::EINVAL, "only bpf-output events go into a perf event array"))
            }
            _ => Err(Errno::EBADF),
        };
    }
    let directory =
        rustix::fs::fstat(&copy).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
    if directory {
        return Err(refuse(Errno::ENOTSUPP, "cgroups in a cgroup array: programs here do not know cgroups"));
    }
    Err(Errno::EBADF)
}

fn map_delete(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_for(caller, attr.i32(0), Access::WRITE)?;
    map.delete(&key_of(caller, &map, attr.u64(8))?)?;
    Ok(Outcome::Value(0))
}

fn map_next_key(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_for(caller, attr.i32(0), Access::READ)?;
    if map.geometry().header.map_type == map_type::TASK_STORAGE {
        return Err(Errno::ENOTSUPP);
    }
    let key = if attr.u64(8) == 0 { None } else { Some(key_of(caller, &map, attr.u64(8))?) };
    caller.write(attr.u64(16), &map.next_key(key.as_deref())?)?;
    Ok(Outcome::Value(0))
}

fn map_lookup_and_delete(caller: &Caller<'_>, attr: &Attr) -> Reply {
    if attr.u64(24) & !BPF_F_LOCK != 0 {
        return Err(Errno::EINVAL);
    }
    let map = map_for(caller, attr.i32(0), Access::BOTH)?;
    check_lock_flag(&map, attr.u64(24))?;
    if map.geometry().header.map_type == map_type::TASK_STORAGE {
        return Err(Errno::ENOTSUPP);
    }
    let key = key_of(caller, &map, attr.u64(8))?;
    if matches!(map.geometry().header.map_type, map_type::QUEUE | map_type::STACK) {
        let mut value = vec![0; map.geometry().user_value_bytes()];
        map.pop(&mut value)?;
        caller.write(attr.u64(16), &value)?;
        return Ok(Outcome::Value(0));
    }
    if ring3_maps::is_of_objects(map.geometry().header.map_type) {
        return Err(Errno::ENOTSUPP);
    }
    caller.write(attr.u64(16), &map.lookup_and_delete(&key)?)?;
    Ok(Outcome::Value(0))
}

fn map_freeze(caller: &Caller<'_>, attr: &Attr) -> Reply {
    let map = map_of(caller, attr.i32(0))?;
    if map.has_lock() {
        return Err(Errno::ENOTSUPP);
    }
    let map = map_for(caller, attr.i32(0), Access::WRITE)?;
    if caller.has_mapped_for_writing(map.memfd().as_fd()) {
        return Err(Errno::EBUSY);
    }
    if map.frozen.swap(true, Ordering::AcqRel) { Err(Errno::EBUSY) } else { Ok(Outcome::Value(0)) }
}

// ---- programs ----

/// A log buffer.
pub(super) struct Log<'c> {
    caller: &'c Caller<'c>,
    pub(super) level: u32,
    bytes: u32,
    address: u64,
    true_size_at: Option<u64>,
}

impl<'c> Log<'c> {
    /// From its members in the attribute. Mirrors kernel/bpf/log.c:bpf_verifier_log_attr_valid.
    pub(super) fn new(
        caller: &'c Caller<'c>,
        attr: &Attr,
        [level, bytes, address, true_size]: [Field; 4],
    ) -> Result<Log<'c>, Errno> {
        const LEVELS: u32 = 0xf;
        let true_size_at = (attr.passed >= true_size.end()).then_some(caller.arg(1) + true_size.at as u64);
        let (level, bytes, address) = (attr.u32(level.at), attr.u32(bytes.at), attr.u64(address.at));
        let half = (address == 0) != (bytes == 0);
        if half || address != 0 && level == 0 || level & !LEVELS != 0 || bytes > u32::MAX >> 2 {
            return Err(Errno::EINVAL);
        }
        Ok(Log { caller, level, bytes, address, true_size_at })
    }

    /// Writes the text; `ENOSPC` if it was cut: of a long one the end is there, or, if the loader wants that, the beginning. Mirrors
    /// kernel/bpf/log.c:bpf_verifier_vlog and bpf_vlog_finalize.
    pub(super) fn write(&self, text: &str) -> Result<(), Errno> {
        const BPF_LOG_FIXED: u32 = 8;
        if self.level == 0 {
            return Ok(());
        }
        if let Some(at) = self.true_size_at {
            let _ = self.caller.write(at, &(text.len() as u32 + 1).to_le_bytes());
        }
        if self.address == 0 {
            return Ok(());
        }
        let fits = (self.bytes as usize - 1).min(text.len());
        let (first, last) = (&text.as_bytes()[..fits], &text.as_bytes()[text.len() - fits..]);
        let mut bytes = if self.level & BPF_LOG_FIXED != 0 { first } else { last }.to_vec();
        bytes.push(0);
        self.caller.write(self.address, &bytes)?;
        if fits < text.len() { Err(Errno::ENOSPC) } else { Ok(()) }
    }
}

/// What is loaded is refused: the log says why. A log that has no room is the error then.
pub(super) fn refuse_logged(log: &Log<'_>, errno: Errno, text: &str, what: impl std::fmt::Display) -> Errno {
    refuse(log.write(text).err().unwrap_or(errno), what)
}

pub(super) fn program_of(caller: &Caller<'_>, fd: i32) -> Result<Arc<Program>, Errno> {
    match caller.object(fd)? {
        Some(Object::Program(program)) => Ok(program),
        _ => Err(Errno::EINVAL),
    }
}

fn prog_bind_map(caller: &Caller<'_>, attr: &Attr) -> Reply {
    if attr.u32(8) != 0 {
        return Err(Errno::EINVAL);
    }
    let program = program_of(caller, attr.i32(0))?;
    let map = map_of(caller, attr.i32(4))?;
    let mut maps = program.maps.lock().expect("no panic under this lock");
    if !maps.iter().any(|held| held.id == map.id) {
        maps.push(map);
    }
    Ok(Outcome::Value(0))
}

/// Mirrors kernel/bpf/syscall.c:bpf_enable_stats.
fn enable_stats(caller: &Caller<'_>, attr: &Attr) -> Reply {
    /// `enum bpf_stats_type`
    const BPF_STATS_RUN_TIME: u32 = 0;
    if !caller.rights()?.may_administer() {
        return Err(refuse(Errno::EPERM, "BPF_ENABLE_STATS without CAP_SYS_ADMIN"));
    }
    if attr.u32(0) != BPF_STATS_RUN_TIME {
        return Err(Errno::EINVAL);
    }
    let subsystem = caller.subsystem();
    let stats = Stats::new(subsystem.new_id(IdKind::Stats), &subsystem.realm)
        .map_err(|refusal| refuse(refusal.errno, format_args!("BPF_ENABLE_STATS: {refusal}")))?;
    let fd = caller.open_pipe(Object::Stats(Arc::new(stats)))?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

// ---- BTF ----

/// Mirrors kernel/bpf/syscall.c:bpf_btf_load.
fn btf_load(caller: &Caller<'_>, attr: &Attr) -> Reply {
    if !caller.rights()?.may_bpf() {
        return Err(refuse(Errno::EPERM, "BPF_BTF_LOAD without CAP_BPF"));
    }
    let size = attr.u32(16);
    if size > BTF_BYTES_MAX {
        return Err(Errno::E2BIG);
    }
    use ring3_uapi::attr::btf_load as b;
    let log = Log::new(caller, attr, [b::BTF_LOG_LEVEL, b::BTF_LOG_SIZE, b::BTF_LOG_BUF, b::BTF_LOG_TRUE_SIZE])?;
    let bytes = caller.read(attr.u64(0), size as usize)?;
    let types = ring3_btf::Btf::parse(bytes).map_err(|(errno, what)| {
        refuse_logged(&log, errno, &format!("{what}\n"), format_args!("BTF_LOAD: {what}"))
    })?;
    let btf = Arc::new(Btf { id: caller.subsystem().new_id(IdKind::Btf), types });
    let fd = caller.open_pipe(Object::Btf(btf))?;
    Ok(Outcome::Fd { fd, close_on_exec: true })
}

// ---- information ----

/// A structure of the kernel's, filled field by field.
pub(super) struct Info(pub(super) Vec<u8>);

impl Info {
    /// 0 where the structure ends before.
    pub(super) fn get32(&self, offset: usize) -> u32 {
        self.0.get(offset..offset + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    pub(super) fn get64(&self, offset: usize) -> u64 {
        u64::from(self.get32(offset)) | u64::from(self.get32(offset + 4)) << 32
    }

    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) -> &mut Info {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn put32(&mut self, offset: usize, value: u32) -> &mut Info {
        self.put(offset, &value.to_le_bytes())
    }

    pub(super) fn put64(&mut self, offset: usize, value: u64) -> &mut Info {
        self.put(offset, &value.to_le_bytes())
    }
}

fn object_info(caller: &Caller<'_>, attr: &Attr) -> Reply {
    const INFO_LEN_AT: u64 = 4;
    let (passed, address) = (attr.u32(4) as usize, attr.u64(8));
    let object = caller.object(attr.i32(0)).map_err(|_| Errno::EBADFD)?.ok_or(Errno::EINVAL)?;
    if matches!(object, Object::Event(_) | Object::Stats(_)) {
        return Err(Errno::EINVAL);
    }
    if passed > attr::BYTES_MAX {
        return Err(Errno::E2BIG);
    }
    let given = Info(caller.read(address, passed)?);
    let (info, fits) = match &object {
        Object::Map(map) => (map_info(map), true),
        Object::Program(found) => (program::info(caller, found, &given)?, true),
        Object::Btf(btf) => {
            let bytes = || Ok(btf.types.bytes().into());
            let about = About { id: btf.id, name: "", size: btf.types.bytes().len() as u32, of_kernel: false };
            btf_info(caller, &about, bytes, &given)?
        }
        Object::KernelTypes(types) => {
            let bytes = || Ok(types.bytes()?.into());
            let about = About { id: types.id, name: &types.name, size: types.size()?, of_kernel: true };
            btf_info(caller, &about, bytes, &given)?
        }
        Object::Link(link) => (links::info(caller, link, &given)?, true),
        Object::Event(_) | Object::Stats(_) => unreachable!("refused above"),
    };
    if given.0.iter().skip(info.0.len()).any(|byte| *byte != 0) {
        return Err(Errno::E2BIG);
    }
    let bytes = info.0.len().min(passed);
    caller.write(address, &info.0[..bytes])?;
    caller.write(caller.arg(1) + INFO_LEN_AT, &(bytes as u32).to_le_bytes())?;
    if fits { Ok(Outcome::Value(0)) } else { Err(Errno::ENOSPC) }
}

/// `struct bpf_map_info`.
fn map_info(map: &MapObject) -> Info {
    let header = &map.geometry().header;
    // Mirrors kernel/bpf/syscall.c:bpf_map_flags_retain_permanent: what the first descriptor allows is not the map's.
    let flags = map.geometry().header.map_flags & !(BPF_F_RDONLY | BPF_F_WRONLY);
    let mut info = Info(vec![0; MAP_INFO_BYTES]);
    info.put32(0, header.map_type).put32(4, map.id).put32(8, header.key_size).put32(12, header.value_size);
    info.put32(16, map.told_entries()).put32(20, flags).put(24, map.name.as_bytes()).put64(80, header.map_extra);
    if let Some((btf, key, value)) = &map.btf {
        info.put32(64, btf.id).put32(68, *key).put32(72, *value);
    }
    info
}

/// What is told of type information besides its bytes.
struct About<'a> {
    id: u32,
    name: &'a str,
    size: u32,
    of_kernel: bool,
}

/// `struct bpf_btf_info`, and whether the name had room. Mirrors kernel/bpf/btf.c:btf_get_info_by_fd (v6.18).
fn btf_info<'b>(
    caller: &Caller<'_>,
    about: &About<'_>,
    bytes: impl FnOnce() -> Result<Cow<'b, [u8]>, Errno>,
    given: &Info,
) -> Result<(Info, bool), Errno> {
    const NAME_AT: usize = 16;
    const NAME_LEN_AT: usize = 24;
    let room = given.get32(8) as usize;
    if given.get64(0) != 0 && room > 0 {
        let bytes = bytes()?;
        caller.write(given.get64(0), &bytes[..room.min(bytes.len())])?;
    }
    let (name_at, room) = (given.get64(NAME_AT), given.get32(NAME_LEN_AT) as usize);
    if (name_at == 0) != (room == 0) {
        return Err(Errno::EINVAL);
    }
    let end = room.saturating_sub(1).min(about.name.len());
    if room > 0 {
        let name: Vec<u8> = about.name.bytes().take(end).chain([0]).collect();
        caller.write(name_at, &name)?;
    }
    let mut info = Info(vec![0; BTF_INFO_BYTES]);
    info.put64(0, given.get64(0)).put32(8, about.size).put32(12, about.id);
    info.put64(NAME_AT, name_at).put32(NAME_LEN_AT, about.name.len() as u32).put32(28, about.of_kernel.into());
    Ok((info, room == 0 || end == about.name.len()))
}

fn id_of(object: &Object, command: u32) -> Option<u32> {
    match (object, command) {
        (Object::Map(map), cmd::MAP_GET_NEXT_ID | cmd::MAP_GET_FD_BY_ID) => Some(map.id),
        (Object::Program(program), cmd::PROG_GET_NEXT_ID | cmd::PROG_GET_FD_BY_ID) => Some(program.id),
        (Object::Btf(btf), cmd::BTF_GET_NEXT_ID | cmd::BTF_GET_FD_BY_ID) => Some(btf.id),
        (Object::KernelTypes(types), cmd::BTF_GET_NEXT_ID | cmd::BTF_GET_FD_BY_ID) => Some(types.id),
        (Object::Link(link), cmd::LINK_GET_NEXT_ID | cmd::LINK_GET_FD_BY_ID) => Some(link.id),
        _ => None,
    }
}

/// Whether the caller may look at objects that it was not given.
fn check_administers(caller: &Caller<'_>) -> Result<(), Errno> {
    if caller.rights()?.may_administer() {
        return Ok(());
    }
    Err(refuse(Errno::EPERM, "ids of objects without CAP_SYS_ADMIN"))
}

/// Mirrors kernel/bpf/syscall.c:bpf_obj_get_next_id.
fn next_id(caller: &Caller<'_>, attr: &Attr, command: u32) -> Reply {
    const NEXT_ID_AT: u64 = 4;
    let after = attr.u32(0);
    if after >= i32::MAX as u32 {
        return Err(Errno::EINVAL);
    }
    check_administers(caller)?;
    let objects = caller.subsystem().objects();
    let next = objects.iter().filter_map(|object| id_of(object, command)).filter(|id| *id > after).min();
    caller.write(caller.arg(1) + NEXT_ID_AT, &next.ok_or(Errno::ENOENT)?.to_le_bytes())?;
    Ok(Outcome::Value(0))
}

fn fd_by_id(caller: &Caller<'_>, attr: &Attr, command: u32) -> Reply {
    let open_flags = attr.u32(8);
    if open_flags & !(BPF_F_RDONLY | BPF_F_WRONLY) != 0 || command == cmd::BTF_GET_FD_BY_ID && open_flags != 0 {
        return Err(Errno::EINVAL);
    }
    check_administers(caller)?;
    let access = Access::from_flags(open_flags)?;
    let objects = caller.subsystem().objects();
    let found = objects.into_iter().find(|object| id_of(object, command) == Some(attr.u32(0)));
    let object = found.ok_or(Errno::ENOENT)?;
    let fd = match &object {
        Object::Map(map) => caller.open_memfd(object.clone(), map.memfd().as_fd(), access)?,
        _ => caller.open_pipe(object)?,
    };
    Ok(Outcome::Fd { fd, close_on_exec: true })
}
