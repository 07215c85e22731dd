//! What a loader does with the elements of a map of which each domain of targets has its own memory (`docs/design/users.md`).

use std::collections::BTreeSet;
use std::sync::Arc;

use ring3_maps::Map;
use ring3_run::map_context;
use ring3_uapi::Errno;
use ring3_uapi::bpf::map_type;
use ring3_uapi::flags::{BPF_EXIST, BPF_NOEXIST};
use ring3_verifier::AddedWords;

use super::MapObject;
use super::merge::merged;
use super::raw_instances::Instance;
use super::raw_map::keys_in;
use crate::realm::Looked;

/// Bits of an update's flags that say what must be there.
const PRESENCE: u64 = BPF_NOEXIST | BPF_EXIST;

impl MapObject {
    /// The memory of other domains.
    pub(super) fn others(&self) -> Vec<Arc<Instance>> {
        self.others.as_ref().map_or(vec![], |others| others.list())
    }

    /// The memory of other domains whose elements are put together when the loader looks: not that of arrays that it may have
    /// mapped, of which it sees the server's own domain's.
    fn spread(&self) -> Vec<Arc<Instance>> {
        match &self.others {
            Some(others) if !others.is_mappable_array() => others.list(),
            _ => vec![],
        }
    }

    fn value_in(&self, map: &Map<'_>, key: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; self.geometry().user_value_bytes()];
        map.user_lookup(key, &mut value).map(|()| value)
    }

    fn is_in(&self, map: &Map<'_>, key: &[u8]) -> bool {
        self.value_in(map, key).is_ok()
    }

    /// Programs of the loader add to words of its values; nothing: it is not known.
    pub(in crate::loader) fn note_sums(&self, words: Option<&[AddedWords]>) {
        let Some(others) = &self.others else { return };
        let mut sums = others.sums();
        match words {
            Some(words) => words.iter().filter(|word| word.slot == self.slot.0).for_each(|word| sums.add(word)),
            None => sums.add_all(),
        }
    }

    fn merged(&self, key: &[u8], values: &[Vec<u8>]) -> Vec<u8> {
        let Some(others) = self.others.as_ref().filter(|_| values.len() > 1) else {
            return values.first().cloned().unwrap_or_default();
        };
        let header = &self.geometry().header;
        let stride = if self.geometry().is_per_cpu() { header.stride } else { header.value_size } as usize;
        let sums = others.sums().words(stride);
        let base = others.stored().value(key).cloned().unwrap_or_default();
        merged(&base, values, stride, &sums)
    }

    pub(super) fn look_up_everywhere(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        self.fetch(None);
        let own = self.value_in(&self.map(), key);
        let others = self.spread();
        if others.is_empty() || own.as_ref().is_err_and(|errno| *errno != Errno::ENOENT) {
            return own;
        }
        let missing = own.as_ref().err().copied();
        let more = others.iter().filter_map(|other| self.value_in(&other.map(), key).ok());
        let values: Vec<Vec<u8>> = own.into_iter().chain(more).collect();
        if values.is_empty() { Err(missing.unwrap_or(Errno::ENOENT)) } else { Ok(self.merged(key, &values)) }
    }

    /// Stores a value for all domains.
    pub(super) fn store(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let Some(others) = &self.others else { return self.map().user_update(&map_context(), key, value, flags) };
        let mut stored = others.stored();
        let list = others.list();
        let is_hash = self.geometry().is_hash();
        let is_elsewhere = || list.iter().any(|other| self.is_in(&other.map(), key));
        let mut own_flags = flags;
        if is_hash && !list.is_empty() && flags & PRESENCE != 0 && is_elsewhere() {
            if flags & BPF_NOEXIST != 0 {
                return Err(Errno::EEXIST);
            }
            own_flags &= !PRESENCE;
        }
        self.map().user_update(&map_context(), key, value, own_flags)?;
        for other in &list {
            // (One that is full is so by its own targets' doing.)
            let _ = other.map().user_update(&map_context(), key, value, flags & !PRESENCE);
        }
        if others.is_mappable_array()
            && let Ok(index) = key.try_into().map(u32::from_le_bytes)
        {
            others.note_stored(index, value);
        }
        stored.put(key, value);
        Ok(())
    }

    pub(super) fn delete_everywhere(&self, key: &[u8]) -> Result<(), Errno> {
        let Some(others) = &self.others else { return self.map().user_delete(&map_context(), key) };
        let mut stored = others.stored();
        let own = self.map().user_delete(&map_context(), key);
        let elsewhere =
            others.list().iter().filter(|other| other.map().user_delete(&map_context(), key).is_ok()).count();
        if own.is_ok() || elsewhere > 0 {
            stored.delete(key);
            return Ok(());
        }
        own
    }

    pub(super) fn take_everywhere(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        let take = |map: &Map<'_>| {
            let mut value = vec![0; self.geometry().user_value_bytes()];
            map.user_lookup_and_delete(&map_context(), key, &mut value).map(|()| value)
        };
        let own = take(&self.map());
        let others = self.spread();
        if others.is_empty() || own.as_ref().is_err_and(|errno| *errno != Errno::ENOENT) {
            if let (Ok(_), Some(others)) = (&own, &self.others) {
                others.stored().delete(key);
            }
            return own;
        }
        let missing = own.as_ref().err().copied();
        let more = others.iter().filter_map(|other| take(&other.map()).ok());
        let values: Vec<Vec<u8>> = own.into_iter().chain(more).collect();
        if values.is_empty() {
            return Err(missing.unwrap_or(Errno::ENOENT));
        }
        let all = self.merged(key, &values);
        self.others.iter().for_each(|others| others.stored().delete(key));
        Ok(all)
    }

    /// The server's own domain's keys come first, then those that only others have, in their order as bytes: as they were found when
    /// the first of them was asked for. So nothing that targets of other domains write makes a loader go round in circles.
    pub(super) fn next_key_everywhere(&self, key: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
        let own = self.next_key_in(&self.map(), key);
        let others = self.spread();
        let is_keyed = self.geometry().is_hash() || self.geometry().header.map_type == map_type::STACK_TRACE;
        let Some(memory) = self.others.as_ref().filter(|_| is_keyed && !others.is_empty()) else { return own };
        let mut walk = memory.walk();
        let is_known = |key: &[u8]| walk.binary_search_by(|known| known[..].cmp(key)).is_ok();
        let after = match key {
            Some(key) if !self.is_in(&self.map(), key) && is_known(key) => {
                walk.partition_point(|known| known[..] <= *key)
            }
            _ if own.is_ok() => return own,
            _ => {
                let is_there =
                    walk.first().is_some_and(|key| others.iter().any(|other| self.is_in(&other.map(), key)));
                if key.is_some() || !is_there {
                    *walk = self.keys_of_others(&others);
                }
                0
            }
        };
        let is_elsewhere = |key: &&Vec<u8>| others.iter().any(|other| self.is_in(&other.map(), key));
        walk[after..].iter().find(is_elsewhere).cloned().ok_or(Errno::ENOENT)
    }

    fn next_key_in(&self, map: &Map<'_>, key: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
        let mut next = vec![0; self.geometry().header.key_size as usize];
        map.user_next_key(key, &mut next).map(|()| next)
    }

    /// The keys that others have and the server's own domain has not.
    fn keys_of_others(&self, others: &[Arc<Instance>]) -> Vec<Vec<u8>> {
        let mut keys = BTreeSet::new();
        for other in others {
            let map = other.map();
            if self.geometry().is_hash() {
                keys.extend((0..=self.geometry().hash.bucket_mask).flat_map(|bucket| keys_in(&map, bucket)));
            } else {
                let next = |key: &Vec<u8>| self.next_key_in(&map, Some(key)).ok();
                keys.extend(std::iter::successors(self.next_key_in(&map, None).ok(), next));
            }
        }
        keys.into_iter().filter(|key| !self.is_in(&self.map(), key)).collect()
    }

    /// Whether what other domains write is looked at often, since nobody tells of it.
    pub(super) fn is_looked_at(&self) -> bool {
        let is_ring = self.geometry().header.map_type == map_type::RINGBUF;
        is_ring || self.others.as_ref().is_some_and(|others| others.is_mappable_array())
    }

    /// Moves what a domain (`None`: each) has written to where the loader looks.
    pub(super) fn fetch(&self, domain: Option<u32>) {
        let Some(others) = &self.others else { return };
        if others.is_mappable_array() {
            others.fetch_data(&self.map());
        } else if others.fetch_records(domain, &self.map())
            && let Some((number, _)) = &self.doorbell
        {
            self.realm.ring(*number);
        }
    }
}

impl Looked for MapObject {
    fn look(&self) {
        self.fetch(None);
    }
}
