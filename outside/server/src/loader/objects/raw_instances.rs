//! The memory of a map for targets of other domains than the server's own, and how what they write gets to the loader
//! (`docs/design/users.md`).
//!
//! What the loader stores goes to all domains. What a domain's programs write stays in its memory: the server reads it, and writes what
//! is for the loader's eyes into the server's own domain's memory (records, and words of arrays that loaders have mapped), which
//! no other domain sees.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};

use ring3_maps::{Geometry, Map, PerfBuffer, RecordContent, Taken};
use ring3_run::map_context;
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::BPF_F_MMAPABLE;
use rustix::fs::SeekFrom;

use super::merge::Sums;
use super::raw_map::{Mapped, memfd, seal};
use crate::realm::{Domain, Elsewhere, Instances, Isolation, MapFile};

/// Records that are fetched at a time.
const RECORDS_MAX: u32 = 1 << 14;
/// Bytes of a perf buffer's record at most.
const PERF_RECORD_BYTES_MAX: usize = 1 << 16;
/// Records that a buffer says at once to have lost, at most.
const LOST_MAX: u64 = 1 << 20;
const PAGE: usize = ring3_layout::PAGE_BYTES as usize;
/// Shift of a domain's number in ids of stacks.
const STACK_ID_SHIFT: u32 = 24;

/// What is in the memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Contents {
    /// A map's elements or records.
    Map,
    /// A perf buffer: `sample_type` and the event's id.
    PerfBuffer(u64, u64),
}

/// Why targets of other domains cannot have memory of their own for a map of this kind.
pub(super) fn refused(geometry: &Geometry) -> Option<&'static str> {
    match geometry.header.map_type {
        map_type::QUEUE | map_type::STACK => Some("a queue or stack is one for all its users"),
        map_type::LPM_TRIE => Some("a trie is one for all its users"),
        map_type::USER_RINGBUF => Some("a user ring buffer has one reader"),
        map_type::STACK_TRACE if geometry.pool.bucket_mask >> STACK_ID_SHIFT != 0 => Some("a map of so many stacks"),
        _ => None,
    }
}

fn is_mappable_array(geometry: &Geometry) -> bool {
    geometry.header.map_type == map_type::ARRAY && geometry.header.map_flags & BPF_F_MMAPABLE != 0
}

/// Memory of one domain.
pub(super) struct Instance {
    domain: Arc<Domain>,
    file: Arc<MapFile>,
    mapped: Mapped,
    /// What was read the last time; for buffers, room for a record.
    seen: Mutex<Vec<u8>>,
}

impl Instance {
    /// The map's operations; nothing of the shared bytes is trusted.
    pub(super) fn map(&self) -> Map<'_> {
        // SAFETY: the mapping has the geometry's size and lives as long as self.
        unsafe { Map::trusted(self.mapped.base(), &self.file.geometry) }
    }

    fn perf_buffer(&self) -> PerfBuffer<'_> {
        // SAFETY: the mapping has the geometry's size and lives as long as self.
        unsafe { PerfBuffer::trusted(self.mapped.base(), &self.file.geometry) }
    }

    /// The memory.
    pub(super) fn memfd(&self) -> &OwnedFd {
        &self.file.memfd
    }

    fn seen(&self) -> MutexGuard<'_, Vec<u8>> {
        self.seen.lock().expect("no panic under this lock")
    }

    pub(super) fn reclaim_dead_owner_in_buffer(&self, is_dead: &dyn Fn(u32) -> bool) {
        self.perf_buffer().reclaim_dead_owner(is_dead);
    }
}

/// What the loader has stored.
#[derive(Default)]
pub(super) struct StoredValues {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of maps without keys.
    pushed: Vec<Vec<u8>>,
}

impl StoredValues {
    pub(super) fn value(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.values.get(key)
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.values.insert(key.to_vec(), value.to_vec());
    }

    pub(super) fn push(&mut self, value: &[u8]) {
        self.pushed.push(value.to_vec());
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        self.values.remove(key);
    }
}

/// The memory of all other domains.
pub(super) struct Others {
    name: String,
    geometry: Geometry,
    contents: Contents,
    isolation: Isolation,
    /// The server's own domain's, of an array that the loader may have mapped.
    own: Option<OwnedFd>,
    list: RwLock<Vec<Arc<Instance>>>,
    /// Held while the loader stores, so that it comes before a domain's memory is made or after.
    stored: Mutex<StoredValues>,
    sums: Mutex<Sums>,
    /// Keys that only others have, in order: those that the loader is told next.
    walk: Mutex<Vec<Vec<u8>>>,
    /// The data of an array that the loader may have mapped, from before the first target came.
    beginning: OnceLock<Vec<u8>>,
    /// Is told when the first one is made.
    begun: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Others {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Others").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Others {
    /// For a map with this memory in the server's own domain; `begun` is called when another one has memory for it first.
    pub(super) fn new(
        name: &str,
        geometry: &Geometry,
        contents: Contents,
        own: &OwnedFd,
        isolation: Isolation,
        begun: impl Fn() + Send + Sync + 'static,
    ) -> Result<Arc<Others>, Errno> {
        Ok(Arc::new(Others {
            name: name.to_owned(),
            geometry: *geometry,
            contents,
            isolation,
            own: is_mappable_array(geometry).then(|| own.try_clone()).transpose().map_err(|_| Errno::EMFILE)?,
            list: RwLock::default(),
            stored: Mutex::default(),
            sums: Mutex::default(),
            walk: Mutex::default(),
            beginning: OnceLock::new(),
            begun: Box::new(begun),
        }))
    }

    pub(super) fn list(&self) -> Vec<Arc<Instance>> {
        self.list.read().expect("no panic under this lock").clone()
    }

    pub(super) fn stored(&self) -> MutexGuard<'_, StoredValues> {
        self.stored.lock().expect("no panic under this lock")
    }

    pub(super) fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().expect("no panic under this lock")
    }

    pub(super) fn walk(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.walk.lock().expect("no panic under this lock")
    }

    /// An array that the loader may have mapped: it looks without asking.
    pub(super) fn is_mappable_array(&self) -> bool {
        self.own.is_some()
    }

    fn data_of(&self, mapped: &Mapped) -> Vec<u8> {
        let mut data = vec![0; self.geometry.header.data_bytes as usize];
        // SAFETY: the mapping has the geometry's size and outlives the value.
        unsafe { Map::trusted(mapped.base(), &self.geometry) }.read_data(0, &mut data);
        data
    }

    /// What the loader had put into an array before any target came.
    fn beginning(&self) -> Result<&[u8], Errno> {
        if let Some(beginning) = self.beginning.get() {
            return Ok(beginning);
        }
        let own = self.own.as_ref().ok_or(Errno::EINVAL)?;
        let mapped = Mapped::new(own, self.geometry.file_bytes())?;
        Ok(self.beginning.get_or_init(|| self.data_of(&mapped)))
    }

    fn make(&self, domain: &Arc<Domain>, stored: &StoredValues) -> Result<Instance, Errno> {
        let mut geometry = self.geometry;
        if geometry.header.map_type == map_type::STACK_TRACE {
            geometry.header.id_base = domain.number() << STACK_ID_SHIFT;
        }
        let memfd = memfd(&self.name, geometry.file_bytes())?;
        seal(&memfd)?;
        let mapped = Mapped::new(&memfd, geometry.file_bytes())?;
        if let Contents::PerfBuffer(sample_type, id) = self.contents {
            // SAFETY: a fresh mapping of the right size, which lives as long as the object.
            unsafe { PerfBuffer::initialize(mapped.base(), &geometry, sample_type, 1, id) };
        }
        let seen = match geometry.header.map_type {
            map_type::RINGBUF => vec![0; geometry.header.max_entries as usize],
            _ if self.is_mappable_array() => self.beginning()?.to_vec(),
            _ => vec![],
        };
        let file = Arc::new(MapFile {
            memfd,
            geometry,
            writable: true,
            isolation: self.isolation,
            elsewhere: Elsewhere::Same,
        });
        let made = Instance { domain: domain.clone(), file, mapped, seen: Mutex::new(seen) };
        if self.is_mappable_array() {
            made.map().write_data(0, &made.seen());
        }
        for (key, value) in &stored.values {
            let _ = made.map().user_update(&map_context(), key, value, 0);
        }
        stored.pushed.iter().for_each(|value| {
            let _ = made.map().user_push(&map_context(), value, 0);
        });
        Ok(made)
    }

    /// Writes what other domains have changed in an array into the memory that the loader sees.
    pub(super) fn fetch_data(&self, own: &Map<'_>) {
        let stride = self.geometry.header.stride as usize;
        let sums = self.sums().words(stride);
        self.list().iter().for_each(|instance| fetch_changes(instance, own, stride, &sums));
    }

    /// The loader has stored an element of an array: no domain has changed it since.
    pub(super) fn note_stored(&self, index: u32, value: &[u8]) {
        let start = index as usize * self.geometry.header.stride as usize;
        for instance in self.list() {
            if let Some(seen) = instance.seen().get_mut(start..start + value.len()) {
                seen.copy_from_slice(value);
            }
        }
    }

    /// Moves what a domain (`None`: each) has written into its ring buffer; true if the consumer should be woken.
    pub(super) fn fetch_records(&self, domain: Option<u32>, own: &Map<'_>) -> bool {
        let Some(to) = own.ring() else { return false };
        let mut wakes = false;
        for instance in self.list().iter().filter(|one| domain.is_none_or(|number| one.domain.number() == number)) {
            let mut room = instance.seen();
            let Some(from) = instance.map().ring() else { continue };
            let mut accept = |data: &[u8]| {
                let written = to.output(&map_context(), data, 0);
                wakes |= written.is_ok_and(|wake| wake.is_due);
                written.is_ok()
            };
            for _ in 0..RECORDS_MAX {
                if from.take(&mut room, &mut accept) == Taken::Nothing {
                    break;
                }
            }
        }
        wakes
    }

    /// The same for a perf buffer.
    pub(super) fn fetch_samples(&self, domain: Option<u32>, own: &PerfBuffer<'_>) -> bool {
        let mut wakes = false;
        for instance in self.list().iter().filter(|one| domain.is_none_or(|number| one.domain.number() == number)) {
            let mut room = instance.seen();
            room.resize(PERF_RECORD_BYTES_MAX, 0);
            let mut see = |told: RecordContent<'_>| match told {
                RecordContent::Sample(sample) => {
                    wakes |= own.output(&map_context(), &sample).is_ok_and(|wake| wake.is_due)
                }
                RecordContent::Lost(records) => own.lose(records.min(LOST_MAX)),
            };
            for _ in 0..RECORDS_MAX {
                if instance.perf_buffer().take(&mut room, &mut see) == Taken::Nothing {
                    break;
                }
            }
        }
        wakes
    }
}

/// One domain's changes of an array's words since the last time: sums are added to, all else is as it was written last.
fn fetch_changes(instance: &Instance, own: &Map<'_>, stride: usize, sums: &[(usize, usize)]) {
    let mut seen = instance.seen();
    let mut now = vec![0; PAGE];
    let mut changed: Vec<usize> = vec![];
    let mut at = 0;
    // (What nobody has touched is not there.)
    while let Ok(page) = rustix::fs::seek(instance.memfd(), SeekFrom::Data(at)) {
        at = page + PAGE as u64;
        let page = page as usize;
        let Some(before) = seen.get(page..page + PAGE) else { break };
        instance.map().read_data(page as u64, &mut now);
        if before != now {
            changed.extend((0..PAGE).filter(|byte| before[*byte] != now[*byte]).map(|byte| page + byte));
        }
    }
    let mut done = 0;
    for byte in changed {
        if byte < done {
            continue;
        }
        let element = byte / stride * stride;
        let word =
            sums.partition_point(|(offset, _)| *offset <= byte - element).checked_sub(1).map(|index| sums[index]);
        let sum = word.filter(|(offset, bytes)| byte - element < offset + bytes);
        let (start, bytes) = sum.map_or((byte, 1), |(offset, bytes)| (element + offset, bytes));
        let Some(before) = seen.get_mut(start..start + bytes) else { break };
        let mut there = [0; 8];
        instance.map().read_data(start as u64, &mut there[..bytes]);
        if sum.is_some() {
            let mut old = [0; 8];
            old[..bytes].copy_from_slice(before);
            own.add_to_data(start as u64, bytes, u64::from_le_bytes(there).wrapping_sub(u64::from_le_bytes(old)));
        } else {
            own.write_data(start as u64, &there[..bytes]);
        }
        before.copy_from_slice(&there[..bytes]);
        done = start + bytes;
    }
}

impl Instances for Others {
    fn begin(&self) {
        if self.is_mappable_array()
            && let Err(errno) = self.beginning()
        {
            tracing::warn!("map {:?}: {errno:?}", self.name);
        }
    }

    fn of(&self, domain: &Arc<Domain>) -> Result<Arc<MapFile>, Errno> {
        let stored = self.stored();
        let mut list = self.list.write().expect("no panic under this lock");
        if let Some(known) = list.iter().find(|instance| Arc::ptr_eq(&instance.domain, domain)) {
            return Ok(known.file.clone());
        }
        let made = self.make(domain, &stored)?;
        let file = made.file.clone();
        list.push(Arc::new(made));
        drop(list);
        drop(stored);
        (self.begun)();
        Ok(file)
    }
}
