//! Maps and perf buffers as the server holds them: the memfd, mapped, with the trusted geometry.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use ring3_inject::Stat;
use ring3_layout::ring::RING3_F_BLOCK;
use ring3_maps::{Attributes, Geometry, Map, PerfBuffer, Ring, is_changed_by_reads, is_of_objects};
use ring3_run::map_context;
use ring3_run::placed;
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_F_INNER_MAP, BPF_F_LOCK, BPF_F_MMAPABLE, BPF_F_RDONLY_PROG};
use ring3_verifier::{InnerShape, MapShape};
use rustix::fs::{MemfdFlags, Mode, SealFlags, SeekFrom};
use rustix::mm::{MapFlags, ProtFlags};
use serde_json::{Value, json};

use super::raw_instances::{self as instances, Contents, Others};
use super::{Access, Btf, Event, EventKind, IdKind, Object, Program, Subsystem, errno};
use crate::quota::Share;
use crate::realm::{Death, Elsewhere, EventFd, Isolation, MapFile, MapSlot, Realm, futex_wake, possible_cpus};

/// Walks through a bucket at most, if others change it all the time.
const BUCKET_LOOKS_MAX: u32 = 4;

/// A memfd mapped into the server.
pub(super) struct Mapped {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is shared between processes by design; access goes through ring3-maps.
unsafe impl Send for Mapped {}
// SAFETY: as for Send.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub(super) fn new(file: &OwnedFd, bytes: u64) -> Result<Mapped, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::ENOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: asks for a new mapping; nothing is replaced.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) };
        Ok(Mapped { base: base.map_err(errno)?.cast(), bytes })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; whoever used it borrowed the owner of this value.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

/// A memfd of `bytes` bytes. Its name begins with what the cleaning of targets looks for, and has in it what the link
/// of a map's descriptor in `/proc` has, by which bpftool knows one.
pub(super) fn memfd(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let name: String = name.chars().filter(|c| c.is_ascii_graphic() && *c != '/').collect();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(format!("ring3-map:bpf-map:{name}"), flags).map_err(errno)?;
    rustix::fs::ftruncate(&file, bytes).map_err(errno)?;
    // Who has a descriptor that only reads cannot get another by way of /proc/self/fd, unless it is the same user.
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(errno)?;
    Ok(file)
}

/// Fixes a memfd's size: a loader that cut it would take the server's mapping away under it.
pub(super) fn seal(file: &OwnedFd) -> Result<(), Errno> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(file, seals).map_err(errno)
}

fn index_of(key: &[u8]) -> Result<u32, Errno> {
    key.try_into().map(u32::from_le_bytes).map_err(|_| Errno::EINVAL)
}

/// An element that is an object.
#[derive(Clone)]
pub(super) enum Member {
    Event(Arc<Event>),
    Program(Arc<Program>),
    Map(Arc<MapObject>),
}

/// What programs an array of programs is for (`struct bpf_map_owner`): program type and expected attach type.
pub(super) type Owner = (u32, u32);

/// What all elements of a map of maps are like (`bpf_map::inner_map_meta`).
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    attributes: Attributes,
    /// Offset of a `bpf_spin_lock` in values.
    lock: Option<u32>,
}

impl Inner {
    /// As this map is. Mirrors kernel/bpf/map_in_map.c:bpf_map_meta_alloc.
    ///
    /// # Errors
    /// `EINVAL` for maps of maps, `ENOTSUPP` for types that cannot be elements.
    pub fn of(map: &MapObject) -> Result<Inner, Errno> {
        match map.geometry().header.map_type {
            map_type::ARRAY_OF_MAPS | map_type::HASH_OF_MAPS => Err(Errno::EINVAL),
            map_type::PROG_ARRAY => Err(Errno::ENOTSUPP),
            _ => Ok(Inner { attributes: map.attributes(), lock: map.lock }),
        }
    }

    fn shape(&self) -> InnerShape {
        let Attributes { map_type, key_size, value_size, max_entries, map_flags, .. } = self.attributes;
        InnerShape { map_type, key_size, value_size, max_entries, map_flags, lock: self.lock }
    }

    /// Mirrors kernel/bpf/map_in_map.c:bpf_map_meta_equal and arraymap.c:array_map_meta_equal.
    fn admits(&self, map: &MapObject) -> bool {
        let (wanted, given) = (self.attributes, map.attributes());
        let sized = matches!(wanted.map_type, map_type::ARRAY | map_type::PERCPU_ARRAY)
            && wanted.map_flags & BPF_F_INNER_MAP == 0;
        wanted.map_type == given.map_type
            && wanted.key_size == given.key_size
            && wanted.value_size == given.value_size
            && wanted.map_flags == given.map_flags
            && (!sized || wanted.max_entries == given.max_entries)
    }
}

/// Inode number of this process's pid namespace.
fn own_namespace() -> Option<u32> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|of| std::os::unix::fs::MetadataExt::ino(&of) as u32)
}

/// Whether a process has ended, even if its parent has not asked for it.
fn is_ended(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else { return true };
    match Stat::of(pid.as_raw_nonzero().get() as u32) {
        Some(stat) => matches!(stat.state(), Some('Z' | 'X')),
        None => rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH),
    }
}

/// What elements are that are more than bytes.
#[derive(Clone, Copy, Debug)]
pub struct Members {
    /// For maps of maps: what its elements are like.
    pub inner: Option<Inner>,
    /// Offset of a `bpf_spin_lock` in values.
    pub lock: Option<u32>,
}

/// Lets `reclaim` release what dead owners hold. `leaders` are known to be dead. The first call of `reclaim` collects
/// all owners; these are judged together; the second call, if some are dead, releases what those hold. The shared bytes
/// may name any number of owners.
fn reclaim_dead_owners(realm: &Realm, leaders: &[u32], reclaim: impl Fn(&dyn Fn(u32) -> bool) -> bool) -> bool {
    const OWNERS_MAX: usize = 1024;
    let owners = RefCell::new(BTreeSet::new());
    reclaim(&|owner| {
        let mut owners = owners.borrow_mut();
        if owners.len() < OWNERS_MAX {
            owners.insert(owner);
        }
        false
    });
    let owners = owners.into_inner();
    let mut dead = realm.dead_among(&owners);
    dead.extend(leaders.iter().filter(|leader| owners.len() >= OWNERS_MAX || owners.contains(leader)));
    !dead.is_empty() && reclaim(&|owner| dead.contains(&owner))
}

/// The keys of a hash map's bucket.
pub(super) fn keys_in(map: &Map<'_>, bucket: u32) -> Vec<Vec<u8>> {
    let (mut keys, mut key) = (vec![], vec![0; map.header().key_size as usize]);
    for _ in 0..BUCKET_LOOKS_MAX {
        keys.clear();
        if map.user_bucket(bucket, &mut key, |key: &[u8]| keys.push(key.to_vec())) {
            break;
        }
    }
    keys
}

/// A map.
pub struct MapObject {
    /// Id.
    pub id: u32,
    /// Name.
    pub name: String,
    /// BTF and the type ids of key and value.
    pub btf: Option<(Arc<Btf>, u32, u32)>,
    /// GOT slot.
    pub slot: MapSlot,
    /// The loader may write no more.
    pub frozen: AtomicBool,
    /// What wakes readers of a ring buffer, and who waits for room in a user ring buffer.
    pub doorbell: Option<(u32, Arc<EventFd>)>,
    /// For types whose elements are objects: those, by key.
    members: Mutex<BTreeMap<Vec<u8>, Member>>,
    /// For arrays of programs: what programs they are for, once the first was put in or loaded with it.
    owner: Mutex<Option<Owner>>,
    /// For maps of maps: what its elements are like.
    inner: Option<Inner>,
    /// Offset of a `bpf_spin_lock` in values.
    lock: Option<u32>,
    /// Waits given up when that was looked at last.
    gave_up_seen: AtomicU64,
    file: Arc<MapFile>,
    mapped: Mapped,
    /// The memory of other domains, if these have their own.
    pub(super) others: Option<Arc<Others>>,
    pub(super) realm: Arc<Realm>,
    _share: Share,
}

/// Among whom a map's memory is shared, and at whose cost.
pub struct Sharing {
    /// Of what its loader may hold.
    pub share: Share,
    /// Targets of all users share the memory.
    pub trust: bool,
    /// How it is kept from targets.
    pub isolation: Isolation,
}

impl MapObject {
    /// How it is kept from the processes that have it.
    pub fn isolation(&self) -> Isolation {
        self.file.isolation
    }

    /// Creates a map.
    pub fn create(
        subsystem: &Subsystem,
        attributes: Attributes,
        name: String,
        btf: Option<(Arc<Btf>, u32, u32)>,
        Members { inner, lock }: Members,
        Sharing { share, trust, isolation }: Sharing,
    ) -> Result<Arc<MapObject>, Errno> {
        let mut geometry = Geometry::new(&Attributes { cpus: possible_cpus(), ..attributes })?;
        let id = subsystem.new_id(IdKind::Map);
        let is_ring = matches!(attributes.map_type, map_type::RINGBUF | map_type::USER_RINGBUF);
        let doorbell = is_ring.then(|| subsystem.realm.add_doorbell()).transpose()?;
        geometry.header.id = id;
        geometry.header.doorbell = doorbell.as_ref().map_or(0, |(number, _)| *number);
        let made = memfd(&name, geometry.file_bytes())
            .and_then(|file| seal(&file).map(|()| file))
            .and_then(|file| Ok((Mapped::new(&file, geometry.file_bytes())?, file)));
        let (mapped, memfd) = match made {
            Ok(made) => made,
            Err(error) => {
                doorbell.iter().for_each(|(number, _)| subsystem.realm.drop_doorbell(*number));
                return Err(error);
            }
        };
        // What objects there are, targets are told and do not tell: they go where elements lead.
        let writable = !is_of_objects(attributes.map_type)
            && (attributes.map_flags & BPF_F_RDONLY_PROG == 0 || is_changed_by_reads(attributes.map_type));
        let object = Arc::<OnceLock<Weak<MapObject>>>::default();
        let (others, elsewhere) = match instances::refused(&geometry) {
            _ if !writable || trust => (None, Elsewhere::Same),
            Some(why) => (None, Elsewhere::Nothing(why)),
            None => {
                let (realm, object) = (subsystem.realm.clone(), object.clone());
                let begun = move || {
                    if let Some(object) =
                        object.get().filter(|object| object.upgrade().is_some_and(|o| o.is_looked_at()))
                    {
                        realm.look_often(object.clone());
                    }
                };
                let others = Others::new(&name, &geometry, Contents::Map, &memfd, isolation, begun)?;
                (Some(others.clone()), Elsewhere::Own(others))
            }
        };
        let file = Arc::new(MapFile { memfd, geometry, writable, isolation, elsewhere });
        let slot = subsystem.realm.add_map(file.clone())?;
        let itself = object;
        let object = Arc::new(MapObject {
            id,
            name,
            btf,
            slot,
            frozen: AtomicBool::new(false),
            doorbell,
            members: Mutex::default(),
            owner: Mutex::default(),
            inner,
            lock,
            gave_up_seen: AtomicU64::new(0),
            file,
            mapped,
            others,
            realm: subsystem.realm.clone(),
            _share: share,
        });
        let _ = itself.set(Arc::downgrade(&object));
        if let Some((number, _)) = &object.doorbell {
            let weak = Arc::downgrade(&object);
            let positions = move || weak.upgrade()?.map().ring().map(|ring| ring.positions());
            object.realm.watch_doorbell(*number, positions);
            let weak = Arc::downgrade(&object);
            let fetch = move |domain| weak.upgrade().iter().for_each(|object| object.fetch(Some(domain)));
            object.realm.fetch_by(*number, fetch);
        }
        Ok(object)
    }

    /// The map's operations; nothing of the shared bytes is trusted.
    pub fn map(&self) -> Map<'_> {
        // SAFETY: the mapping has the geometry's size and lives as long as self.
        unsafe { Map::trusted(self.mapped.base, &self.file.geometry) }
    }

    /// `max_entries` as loaders are told: what the kernel does not bound has no bound there.
    pub fn told_entries(&self) -> u32 {
        let header = &self.geometry().header;
        if header.map_type == map_type::TASK_STORAGE { 0 } else { header.max_entries }
    }

    /// Sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.file.geometry
    }

    /// The memory.
    pub fn memfd(&self) -> &OwnedFd {
        &self.file.memfd
    }

    fn attributes(&self) -> Attributes {
        let header = &self.file.geometry.header;
        Attributes {
            map_type: header.map_type,
            key_size: header.key_size,
            value_size: header.value_size,
            max_entries: header.max_entries,
            map_flags: header.map_flags,
            cpus: header.cpus,
            map_extra: header.map_extra,
        }
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Member>> {
        self.members.lock().expect("no panic under this lock")
    }

    /// Looks a key up; an element that is a program or a map is its id.
    /// Mirrors kernel/bpf/arraymap.c:bpf_fd_array_map_lookup_elem.
    pub fn lookup(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        if is_of_objects(self.file.geometry.header.map_type) {
            let id = match (self.file.geometry.header.map_type, self.members().get(key)) {
                (map_type::PERF_EVENT_ARRAY | map_type::CGROUP_ARRAY, _) => return Err(Errno::ENOTSUPP),
                (_, Some(Member::Program(program))) => program.id,
                (_, Some(Member::Map(map))) => map.id,
                (_, Some(Member::Event(_)) | None) => return Err(Errno::ENOENT),
            };
            return Ok(id.to_le_bytes().into());
        }
        self.look_up_everywhere(key)
    }

    /// Whether values have a lock. No program that runs here may take one (the kernel forbids it to tracing programs), so
    /// it is always free, and all there is to `BPF_F_LOCK` is that the loader does not get to write it.
    pub fn has_lock(&self) -> bool {
        self.lock.is_some()
    }

    /// Stores a value.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let Some(lock) = self.lock else { return self.store(key, value, flags) };
        let mut value = value.to_vec();
        if let Some(word) = value.get_mut(lock as usize..lock as usize + 4) {
            word.fill(0);
        }
        self.store(key, &value, flags & !BPF_F_LOCK)
    }

    /// Removes a key.
    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        if !is_of_objects(self.file.geometry.header.map_type) {
            return self.delete_everywhere(key);
        }
        let mut members = self.members();
        if self.file.geometry.header.map_type == map_type::HASH_OF_MAPS {
            self.map().user_delete(&map_context(), key)?;
        } else {
            self.map().set_object(index_of(key)?, 0)?;
        }
        let old = members.remove(key);
        drop(members);
        if old.is_none() { Err(Errno::ENOENT) } else { Ok(()) }
    }

    /// The last descriptor is gone: an array of programs is emptied, since its programs may hold it.
    /// Mirrors kernel/bpf/arraymap.c:prog_array_map_clear.
    pub(super) fn is_closed(&self) {
        if self.file.geometry.header.map_type != map_type::PROG_ARRAY {
            return;
        }
        let mut members = self.members();
        for key in members.keys() {
            let _ = index_of(key).and_then(|index| self.map().set_object(index, 0));
        }
        let old = std::mem::take(&mut *members);
        drop(members);
        drop(old);
    }

    /// Whether its elements have no keys.
    pub fn is_keyless(&self) -> bool {
        self.map().is_keyless()
    }

    /// Pushes a value.
    pub fn push(&self, value: &[u8], flags: u64) -> Result<(), Errno> {
        self.map().user_push(&map_context(), value, flags)?;
        if let Some(others) = &self.others {
            others.stored().push(value);
            others.list().iter().for_each(|other| {
                let _ = other.map().user_push(&map_context(), value, flags);
            });
        }
        Ok(())
    }

    /// Pops a value; an empty map gives zeros with its error.
    pub fn pop(&self, value: &mut [u8]) -> Result<(), Errno> {
        self.map().user_pop(&map_context(), value)
    }

    /// Peeks at a value, or asks for it.
    pub fn peek(&self, value: &mut [u8]) -> Result<(), Errno> {
        let own = self.map().user_peek(&map_context(), value);
        let mut others = self.others().into_iter();
        if own.is_err() && others.any(|other| other.map().user_peek(&map_context(), value).is_ok()) {
            Ok(())
        } else {
            own
        }
    }

    /// Takes a value out.
    pub fn lookup_and_delete(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        if is_of_objects(self.file.geometry.header.map_type) {
            let id = self.lookup(key)?;
            return self.delete(key).map(|()| id);
        }
        self.take_everywhere(key)
    }

    /// The key behind `key`.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
        self.next_key_everywhere(key)
    }

    /// The keys of a hash map's bucket.
    pub fn bucket_keys(&self, bucket: u32) -> Vec<Vec<u8>> {
        let mut all = keys_in(&self.map(), bucket);
        for other in self.others() {
            let more = keys_in(&other.map(), bucket);
            let new: Vec<Vec<u8>> = more.into_iter().filter(|key| !all.contains(key)).collect();
            all.extend(new);
        }
        all
    }

    /// Puts an output event into a perf event array.
    pub fn set_event(self: &Arc<Self>, key: &[u8], event: Arc<Event>) -> Result<(), Errno> {
        let EventKind::Output { arrays, .. } = &event.kind else { return Err(Errno::EINVAL) };
        let index = index_of(key)?;
        match event.buffer_slot() {
            Some(slot) => {
                self.reach(&[slot])?;
                self.map().set_object(index, slot.0 + 1)?;
            }
            None => {
                self.map().set_object(index, ring3_layout::control::EVENT_WITHOUT_BUFFER)?;
                arrays.lock().expect("no panic under this lock").push((Arc::downgrade(self), index));
            }
        }
        let old = self.members().insert(key.to_vec(), Member::Event(event));
        drop(old);
        Ok(())
    }

    /// Whether this event is at `index` of the array.
    pub(super) fn holds(&self, index: u32, event: &Arc<Event>) -> bool {
        let members = self.members();
        matches!(members.get(&index.to_le_bytes()[..]), Some(Member::Event(held)) if Arc::ptr_eq(held, event))
    }

    /// Wherever this map is mapped, those will be.
    fn reach(&self, slots: &[MapSlot]) -> Result<(), Errno> {
        self.realm.add_companions(self.slot, slots).map_err(|refusal| refusal.errno)
    }

    /// Whether programs of this kind may be in this array or go on with what is in it; the first one decides.
    /// Mirrors kernel/bpf/core.c:__bpf_prog_map_compatible.
    pub fn admits(&self, owner: Owner) -> bool {
        *self.owner.lock().expect("no panic under this lock").get_or_insert(owner) == owner
    }

    /// Puts a program into an array of programs.
    pub fn set_program(&self, key: &[u8], program: Arc<Program>) -> Result<(), Errno> {
        let index = index_of(key)?;
        if !self.admits(program.owner()) {
            return Err(Errno::EINVAL);
        }
        self.reach(&program.text.maps)?;
        let mut members = self.members();
        self.map().set_object(index, program.text.range.offset + 1)?;
        let old = members.insert(key.to_vec(), Member::Program(program));
        drop(members);
        drop(old);
        Ok(())
    }

    /// Puts a map into a map of maps. Mirrors kernel/bpf/map_in_map.c:bpf_map_fd_get_ptr and
    /// hashtab.c:bpf_fd_htab_map_update_elem.
    pub fn set_inner(&self, key: &[u8], map: Arc<MapObject>, flags: u64) -> Result<(), Errno> {
        if !self.inner.is_some_and(|inner| inner.admits(&map)) {
            return Err(Errno::EINVAL);
        }
        self.reach(&[map.slot])?;
        let mut members = self.members();
        if self.file.geometry.header.map_type == map_type::HASH_OF_MAPS {
            self.map().user_update(&map_context(), key, &(map.slot.0 + 1).to_le_bytes(), flags)?;
        } else {
            self.map().set_object(index_of(key)?, map.slot.0 + 1)?;
        }
        let old = members.insert(key.to_vec(), Member::Map(map));
        drop(members);
        drop(old);
        Ok(())
    }

    /// The objects in it.
    pub(super) fn references(&self) -> Vec<Object> {
        let members = self.members();
        let members = members.values().filter_map(|member| match member {
            Member::Event(_) => None,
            Member::Program(program) => Some(Object::Program(program.clone())),
            Member::Map(map) => Some(Object::Map(map.clone())),
        });
        members.chain(self.btf.iter().map(|(btf, ..)| Object::Btf(btf.clone()))).collect()
    }

    /// Whether a ring buffer's consumer has something to read, or a user ring buffer's producer room to write.
    /// Mirrors kernel/bpf/ringbuf.c:ringbuf_map_poll_kern and ringbuf_map_poll_user.
    pub fn is_ready(&self) -> bool {
        self.fetch(None);
        let map = self.map();
        map.ring().is_some_and(|ring| ring.has_data()) || map.user_ring().is_some_and(|ring| ring.has_room())
    }

    /// For what its descriptor is waited on.
    pub fn events(&self) -> i16 {
        if self.file.geometry.header.map_type == map_type::USER_RINGBUF { libc::POLLOUT } else { libc::POLLIN }
    }

    /// Whether somebody waited in vain since this was asked last: for a lock, or as the consumer of a ring buffer before
    /// a record that is not submitted.
    pub(super) fn is_held_up(&self) -> bool {
        let others = self.others();
        let maps = || [self.map()].into_iter().chain(others.iter().map(|other| other.map()));
        let gave_up = maps().fold(0u64, |all, map| all.wrapping_add(map.gave_up()));
        let new = self.gave_up_seen.swap(gave_up, Ordering::Relaxed) != gave_up;
        new || maps().any(|map| map.ring().is_some_and(|ring| ring.is_held_up()))
    }

    /// Takes away what dead owners left: those named, and whoever else is found to be dead.
    pub(super) fn reclaim_dead_owner(&self, leaders: &[u32]) {
        let others = self.others();
        let memory = others.iter().map(|other| (other.map(), other.memfd()));
        for (map, memfd) in [(self.map(), &self.file.memfd)].into_iter().chain(memory) {
            let seek = |to| rustix::fs::seek(memfd, to).unwrap_or(u64::MAX);
            let touched = |at| {
                let start = seek(SeekFrom::Data(at));
                start..if start == u64::MAX { start } else { seek(SeekFrom::Hole(start)) }
            };
            let reclaim = |is_dead: &dyn Fn(u32) -> bool| map.reclaim_dead_owner(&map_context(), is_dead, touched);
            if reclaim_dead_owners(&self.realm, leaders, reclaim)
                && let Some((_, bell)) = &self.doorbell
            {
                bell.signal();
                if let Some(ring) = self.blocking_ring().filter(|ring| ring.finds_sleeping_reader(0)) {
                    futex_wake(&ring.reader().sleeping);
                }
            }
        }
        self.fetch(None);
    }

    /// Whether threads that write into it wait for its reader.
    pub(super) fn makes_writers_wait(&self) -> bool {
        self.geometry().header.map_flags & RING3_F_BLOCK != 0
    }

    /// The ring buffer, if its writers wait for the reader.
    fn blocking_ring(&self) -> Option<Ring<'_>> {
        self.map().ring().filter(|_| self.makes_writers_wait())
    }

    /// Nobody waits for a reader that has ended, or, if the map `ends`, for any. (Writers notice the former, too, if the reader's
    /// id means something in their pid namespace, and no other process has it since.)
    pub(super) fn release_waiting_writers(&self, ends: bool) {
        let Some(ring) = self.blocking_ring() else { return };
        let words = ring.reader();
        let (reader, namespace) = (words.reader.load(Ordering::SeqCst), words.namespace.load(Ordering::SeqCst));
        if reader != 0 && (ends || own_namespace().is_some_and(|own| own == namespace) && is_ended(reader)) {
            ring.reader_is_gone();
            futex_wake(&ring.reader().progress);
        }
    }

    /// The only value, if neither the loader nor a program can change it any more.
    /// Mirrors kernel/bpf/verifier.c:bpf_map_is_rdonly.
    pub fn constant_value(&self) -> Option<Vec<u8>> {
        let constant =
            self.file.geometry.header.map_flags & BPF_F_RDONLY_PROG != 0 && self.frozen.load(Ordering::Acquire);
        constant.then(|| self.lookup(&0u32.to_le_bytes()).ok()).flatten()
    }

    /// What the verifier knows of it.
    pub fn shape(&self) -> MapShape {
        let alone = Inner { attributes: self.attributes(), lock: self.lock }.shape();
        let told = MapShape { slot: self.slot.0, inner: self.inner.map(|inner| inner.shape()), ..alone.shape() };
        placed(&self.file.geometry, told)
    }

    /// Whether a loader may map `bytes` bytes at `offset` of it by a descriptor that allows `access`. Mirrors
    /// kernel/bpf/syscall.c:bpf_map_mmap, arraymap.c:array_map_mmap, ringbuf.c:ringbuf_map_mmap_kern and, for
    /// descriptors that cannot be written, mm/mmap.c:do_mmap.
    pub fn check_mmap(&self, offset: u64, bytes: u64, write: bool, access: Access) -> Result<(), Errno> {
        let bytes = bytes.checked_next_multiple_of(ring3_layout::PAGE_BYTES).ok_or(Errno::ENOMEM)?;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.file.geometry.header.data_bytes);
        let kind = self.file.geometry.header.map_type;
        if !access.read || write && !access.write {
            return Err(Errno::EACCES);
        }
        if self.has_lock() {
            return Err(Errno::ENOTSUPP);
        }
        if !matches!(kind, map_type::ARRAY | map_type::RINGBUF | map_type::USER_RINGBUF) {
            return Err(Errno::ENOTSUPP);
        }
        if !access.write {
            return Err(Errno::EINVAL);
        }
        if write && self.frozen.load(Ordering::Acquire) {
            return Err(Errno::EPERM);
        }
        if write && self.file.geometry.header.map_flags & BPF_F_RDONLY_PROG != 0 {
            return Err(Errno::EACCES);
        }
        if kind == map_type::RINGBUF && write && (offset != 0 || bytes != ring3_layout::PAGE_BYTES) {
            return Err(Errno::EPERM);
        }
        // The loader fills a user ring buffer: all but the consumer's page is its own.
        if kind == map_type::USER_RINGBUF && write && offset == 0 {
            return Err(Errno::EPERM);
        }
        let shared = matches!(kind, map_type::RINGBUF | map_type::USER_RINGBUF)
            || self.file.geometry.header.map_flags & BPF_F_MMAPABLE != 0;
        if shared && inside { Ok(()) } else { Err(Errno::EINVAL) }
    }

    pub(super) fn describe(&self) -> Value {
        let header = &self.file.geometry.header;
        let kind = map_type::name(header.map_type).unwrap_or("?").trim_start_matches("BPF_MAP_TYPE_").to_lowercase();
        json!({
            "id": self.id, "type": kind, "name": self.name, "key_size": header.key_size,
            "value_size": header.value_size, "max_entries": header.max_entries, "flags": self.file.geometry.header.map_flags,
            "bytes_memlock": self.file.geometry.file_bytes(),
        })
    }
}

impl Drop for MapObject {
    fn drop(&mut self) {
        self.release_waiting_writers(true);
        self.realm.drop_map(self.slot);
        if let Some((number, _)) = &self.doorbell {
            self.realm.drop_doorbell(*number);
        }
    }
}

/// The buffer of an output event, which exists from the loader's `mmap` on.
pub struct OutputBuffer {
    /// GOT slot.
    pub slot: MapSlot,
    file: Arc<MapFile>,
    mapped: Mapped,
    others: Option<Arc<Others>>,
    doorbell: u32,
    realm: Arc<Realm>,
    _share: Share,
}

impl OutputBuffer {
    /// Makes the memfd of an output event a buffer of `data_pages` pages and the control page.
    pub fn create(
        realm: &Arc<Realm>,
        memfd: &OwnedFd,
        data_pages: u32,
        sample_type: u64,
        wakeup_events: u64,
        (id, doorbell): (u64, u32),
        Sharing { share, trust, isolation }: Sharing,
    ) -> Result<OutputBuffer, Errno> {
        let mut geometry = Geometry::perf_buffer(data_pages)?;
        rustix::fs::ftruncate(memfd, geometry.file_bytes()).map_err(errno)?;
        seal(memfd)?;
        let mapped = Mapped::new(memfd, geometry.file_bytes())?;
        geometry.header.doorbell = doorbell;
        let others = (!trust)
            .then(|| Others::new("perf", &geometry, Contents::PerfBuffer(sample_type, id), memfd, isolation, || {}));
        let others = others.transpose()?;
        let elsewhere = others.clone().map_or(Elsewhere::Same, |others| Elsewhere::Own(others));
        // SAFETY: a fresh mapping of the right size, which lives as long as the object.
        unsafe { PerfBuffer::initialize(mapped.base, &geometry, sample_type, wakeup_events, id) };
        let file = Arc::new(MapFile {
            memfd: memfd.try_clone().map_err(|_| Errno::EMFILE)?,
            geometry,
            writable: true,
            isolation,
            elsewhere,
        });
        let slot = realm.add_map(file.clone())?;
        Ok(OutputBuffer { slot, file, mapped, others, doorbell, realm: realm.clone(), _share: share })
    }

    fn buffer(&self) -> PerfBuffer<'_> {
        // SAFETY: the mapping has the geometry's size and lives as long as self.
        unsafe { PerfBuffer::trusted(self.mapped.base, &self.file.geometry) }
    }

    /// Whether the reader has something to read.
    pub fn has_data(&self) -> bool {
        self.fetch(None);
        self.buffer().has_data()
    }

    /// Moves what a domain (`None`: each) has written.
    pub(super) fn fetch(&self, domain: Option<u32>) {
        if self.others.as_ref().is_some_and(|others| others.fetch_samples(domain, &self.buffer())) {
            self.realm.ring(self.doorbell);
        }
    }

    /// Takes away what targets that have ended left in it.
    pub(super) fn reclaim_dead_owner(&self, deaths: &[Death]) {
        let mut leaders =
            deaths.iter().filter(|death| death.maps.contains(&self.slot)).map(|death| death.owner).peekable();
        if leaders.peek().is_some() {
            let leaders: Vec<u32> = leaders.collect();
            reclaim_dead_owners(&self.realm, &leaders, |is_dead| {
                self.buffer().reclaim_dead_owner(is_dead);
                let others = self.others.iter().flat_map(|others| others.list());
                others.for_each(|other| other.reclaim_dead_owner_in_buffer(is_dead));
                true
            });
            self.fetch(None);
        }
    }

    /// Bytes that the loader may map.
    pub fn data_bytes(&self) -> u64 {
        self.file.geometry.header.data_bytes
    }
}

impl Drop for OutputBuffer {
    fn drop(&mut self) {
        self.realm.drop_map(self.slot);
    }
}

/// An empty memfd for an output event.
pub(super) fn output_memfd() -> Result<OwnedFd, Errno> {
    memfd("perf", 0)
}
