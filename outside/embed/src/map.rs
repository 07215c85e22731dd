//! Maps as the application uses them.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring3_maps::Taken;
use ring3_object::MapDef;
use ring3_run::{Bell, OwnMap, map_context};
use ring3_uapi::Errno;

use crate::Error;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// How often a bucket is looked at that others change meanwhile.
const BUCKET_TRIES: u32 = 1000;

/// A map: of an object, or made by [`crate::Vm::create_map`]. Clones are the same map. Keys and values are bytes; values of per-CPU
/// types are those of all CPUs, 8 bytes each at least, as bpf(2) has them.
#[derive(Clone, Debug)]
pub struct Map {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    definition: MapDef,
    slot: u32,
    own: Arc<OwnMap>,
    bell: Bell,
    /// Room for a record, of the one consumer at a time.
    record: Mutex<Vec<u8>>,
}

impl Map {
    pub(crate) fn new(definition: &MapDef, slot: u32, own: Arc<OwnMap>, bell: Bell) -> Map {
        let inner = Inner { definition: definition.clone(), slot, own, bell, record: Mutex::default() };
        Map { inner: Arc::new(inner) }
    }

    pub(crate) fn own(&self) -> &Arc<OwnMap> {
        &self.inner.own
    }

    /// The number by which instructions that are loaded without an object name it: `ld_imm64` with `BPF_PSEUDO_MAP_FD`,
    /// or `r1 = map[0]` in text.
    pub fn id(&self) -> u32 {
        self.inner.slot
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.definition.name
    }

    /// `BPF_MAP_TYPE_*`.
    pub fn map_type(&self) -> u32 {
        self.inner.definition.map_type
    }

    /// Bytes of a key.
    pub fn key_size(&self) -> usize {
        self.inner.definition.key_size as usize
    }

    /// Bytes of a value as the methods here take and give it.
    pub fn value_size(&self) -> usize {
        self.inner.own.map().geometry().user_value_bytes()
    }

    /// Elements at most.
    pub fn max_entries(&self) -> u32 {
        self.inner.definition.max_entries
    }

    fn fail(&self, errno: Errno) -> Error {
        Error::operation(self.name(), errno)
    }

    /// Copies the value of a key; false if there is none.
    ///
    /// # Errors
    /// The key or the room for the value has another size, or the map has no such elements.
    pub fn lookup_into(&self, key: &[u8], value: &mut [u8]) -> Result<bool, Error> {
        if value.len() != self.value_size() {
            return Err(self.fail(Errno::EINVAL));
        }
        match self.inner.own.map().user_lookup(key, value) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.fail(errno)),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As for [`Map::lookup_into`].
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = vec![0; self.value_size()];
        Ok(self.lookup_into(key, &mut value)?.then_some(value))
    }

    /// Gives a key a value. `flags`: `BPF_ANY` (0), `BPF_NOEXIST` (1), `BPF_EXIST` (2).
    ///
    /// # Errors
    /// Those of `BPF_MAP_UPDATE_ELEM`: `E2BIG` for a full map, `EEXIST`, `ENOENT`, `EINVAL` for other sizes.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Error> {
        if self.inner.definition.frozen {
            return Err(self.fail(Errno::EPERM));
        }
        self.inner.own.map().user_update(&map_context(), key, value, flags).map_err(|errno| self.fail(errno))
    }

    /// Takes a key away; false if it is not there.
    ///
    /// # Errors
    /// Those of `BPF_MAP_DELETE_ELEM`: elements of arrays cannot be taken away.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        match self.inner.own.map().user_delete(&map_context(), key) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.fail(errno)),
        }
    }

    /// The key behind another one, or the first; `None` behind the last. Of a hash whose `key` is gone it is the first.
    ///
    /// # Errors
    /// The key has another size, or the map has none.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let mut next = vec![0; self.key_size()];
        match self.inner.own.map().user_next_key(key, &mut next) {
            Ok(()) => Ok(Some(next)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.fail(errno)),
        }
    }

    /// All keys and values. Elements that come or go meanwhile may be seen or not; none is seen twice.
    ///
    /// # Errors
    /// The map has no keys.
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        let map = self.inner.own.map();
        let mut keys = std::collections::BTreeSet::new();
        if map.geometry().is_hash() {
            let mut key = vec![0; self.key_size()];
            for bucket in 0..=map.geometry().hash.bucket_mask {
                // (Others may change the bucket meanwhile.)
                for _ in 0..BUCKET_TRIES {
                    let seen = map.user_bucket(bucket, &mut key, |key| {
                        keys.insert(key.to_vec());
                    });
                    if seen {
                        break;
                    }
                }
            }
        } else {
            let mut last: Option<Vec<u8>> = None;
            while let Some(key) = self.next_key(last.as_deref())? {
                if !keys.insert(key.clone()) {
                    break;
                }
                last = Some(key);
            }
        }
        let mut entries = vec![];
        for key in keys {
            if let Some(value) = self.lookup(&key)? {
                entries.push((key, value));
            }
        }
        Ok(entries)
    }

    /// Puts a value into a queue, stack or Bloom filter.
    ///
    /// # Errors
    /// `E2BIG` for a full map; other types and sizes.
    pub fn push(&self, value: &[u8], flags: u64) -> Result<(), Error> {
        if value.len() != self.value_size() {
            return Err(self.fail(Errno::EINVAL));
        }
        self.inner.own.map().user_push(&map_context(), value, flags).map_err(|errno| self.fail(errno))
    }

    /// Takes a value out of a queue or stack; `None` if it is empty.
    ///
    /// # Errors
    /// The map is of another type.
    pub fn pop(&self) -> Result<Option<Vec<u8>>, Error> {
        let mut value = vec![0; self.value_size()];
        match self.inner.own.map().user_pop(&map_context(), &mut value) {
            Ok(()) => Ok(Some(value)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.fail(errno)),
        }
    }

    /// Copies from the bytes that values of arrays lie in: variables of an object (`.bss`, `.data`), without a copy of all of them.
    ///
    /// # Errors
    /// They end before.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        if self.inner.own.map().read_data(offset, out) { Ok(()) } else { Err(self.fail(Errno::EINVAL)) }
    }

    /// Copies into these bytes.
    ///
    /// # Errors
    /// They end before, or programs rely on them never changing (`.rodata`).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.inner.definition.frozen {
            return Err(self.fail(Errno::EPERM));
        }
        if self.inner.own.map().write_data(offset, bytes) { Ok(()) } else { Err(self.fail(Errno::EINVAL)) }
    }

    /// Gives the records of a ring buffer to `record`, the oldest first, until there is none or it says false; how many there were. One
    /// consumer at a time, in all processes.
    ///
    /// # Errors
    /// It is no ring buffer.
    pub fn consume(&self, mut record: impl FnMut(&[u8]) -> bool) -> Result<u64, Error> {
        let ring = self.inner.own.map().ring().ok_or_else(|| self.fail(Errno::EINVAL))?;
        let mut room = self.inner.record.lock().unwrap_or_else(PoisonError::into_inner);
        room.resize(self.max_entries() as usize, 0);
        let (mut count, mut goes_on) = (0, true);
        while goes_on {
            let taken = ring.take(&mut room, |bytes| {
                count += 1;
                goes_on = record(bytes);
                true
            });
            if matches!(taken, Taken::Nothing) {
                break;
            }
        }
        Ok(count)
    }

    /// Waits until a ring buffer has a record, at most so long; whether it has.
    pub fn wait(&self, patience: Duration) -> bool {
        self.inner.bell.wait(&self.inner.own, patience)
    }

    /// The file with the map's memory, for other processes ([`crate::Maps::file`]).
    ///
    /// # Errors
    /// The map is of a per-CPU type, whose parts belong to the threads of one process, or programs rely on it never changing.
    pub fn file(&self) -> Result<BorrowedFd<'_>, Error> {
        let is_own = self.inner.own.map().geometry().is_per_cpu() || self.inner.definition.frozen;
        self.inner.own.file().filter(|_| !is_own).ok_or_else(|| self.fail(Errno::EOPNOTSUPP))
    }
}
