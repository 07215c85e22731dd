//! STACK_TRACE: stacks by the number of their bucket.
//!
//! A bucket is one word, the link of a node of the [`Pool`]; the node has the stack's hash, its length and its addresses.
//! Finding a stack that is there takes no lock.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use ring3_layout::map::TABLES_OFFSET;
use ring3_uapi::Errno;
use ring3_uapi::flags::{
    BPF_F_FAST_STACK_CMP, BPF_F_REUSE_STACKID, BPF_F_STACK_BUILD_ID, STACK_BUILD_ID_BYTES, STACK_BUILD_ID_IP,
    STACK_BUILD_ID_IP_AT,
};

use crate::Context;
use crate::geometry::{STACK_BUCKET_BYTES, STACK_DATA_OFFSET};
use crate::pool::{Change, NODE_HEADER_BYTES, Pool, Stale};
use crate::raw_memory::Memory;

/// Hash and number of addresses.
const NODE_SUMMARY: u64 = NODE_HEADER_BYTES;
/// Looks at a node again because it was used anew meanwhile.
const RESTARTS_MAX: u32 = 64;

/// A stack map's operations on its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stacks<'m>(pub(crate) &'m Memory<'m>);

/// Hash of addresses: `hashword` of Bob Jenkins's lookup3 (2006, public domain), which the kernel's ids come from too.
fn hash_of(addresses: &[u64]) -> u32 {
    let start = 0xdead_beefu32.wrapping_add((addresses.len() as u32).wrapping_mul(8));
    let mut state = [start; 3];
    let count = addresses.len() * 2;
    let word = |at: usize| {
        let address = addresses.get(at / 2).copied().unwrap_or_default();
        if at.is_multiple_of(2) { address as u32 } else { (address >> 32) as u32 }
    };
    let mut at = 0;
    loop {
        let left = count - at;
        for (number, part) in state.iter_mut().enumerate().take(left) {
            *part = part.wrapping_add(word(at + number));
        }
        if left > 3 {
            state = mixed(state);
            at += 3;
        } else {
            return finished(state);
        }
    }
}

/// Each step changes one word by another, and each word takes each part in turn.
fn mixed([mut x, mut y, mut z]: [u32; 3]) -> [u32; 3] {
    for bits in [4, 6, 8, 16, 19, 4] {
        let changed = x.wrapping_sub(z) ^ z.rotate_left(bits);
        (x, y, z) = (y, z.wrapping_add(y), changed);
    }
    [x, y, z]
}

fn finished([a, b, c]: [u32; 3]) -> u32 {
    let (mut x, mut y, mut z) = (c, b, a);
    for bits in [14, 11, 25, 16, 4, 14, 24] {
        let changed = (x ^ y).wrapping_sub(y.rotate_left(bits));
        (x, y, z) = (z, changed, y);
    }
    y
}

impl<'m> Stacks<'m> {
    pub(crate) fn pool(&self) -> Pool<'m> {
        Pool(self.0)
    }

    /// What is added to the number of a bucket to get its id.
    fn base(&self) -> u32 {
        self.0.geometry.header.id_base
    }

    fn builds(&self) -> bool {
        self.0.geometry.header.map_flags & BPF_F_STACK_BUILD_ID != 0
    }

    /// Bytes of an address as the loader gets it.
    fn entry_bytes(&self) -> usize {
        if self.builds() { STACK_BUILD_ID_BYTES } else { 8 }
    }

    /// Addresses of a stack at most.
    pub(crate) fn depth(&self) -> usize {
        self.0.geometry.header.value_size as usize / self.entry_bytes()
    }

    fn bucket_at(&self, id: u32) -> u64 {
        self.0.private(TABLES_OFFSET + u64::from(id) * STACK_BUCKET_BYTES)
    }

    pub(crate) fn bucket(&self, id: u32) -> u64 {
        self.0.word64(self.bucket_at(id)).load(Acquire)
    }

    fn id_of(&self, key: &[u8]) -> Option<u32> {
        let id = u32::from_le_bytes(key.get(..4)?.try_into().ok()?).checked_sub(self.base())?;
        (id <= self.0.geometry.pool.bucket_mask).then_some(id)
    }

    pub(crate) fn summary(&self, index: u32) -> u64 {
        self.pool().node_at(index) + NODE_SUMMARY
    }

    /// Offset of an address of a node.
    fn address_at(&self, index: u32, number: usize) -> u64 {
        let in_entry = if self.builds() { STACK_BUILD_ID_IP_AT } else { 0 };
        self.pool().node_at(index) + STACK_DATA_OFFSET + (number * self.entry_bytes() + in_entry) as u64
    }

    /// Whether the node of a bucket is this stack. `Err(EEXIST)` if it is another one; `Ok(false)` if there is none.
    fn holds(&self, id: u32, summary: u64, addresses: &[u64], flags: u64) -> Result<bool, Errno> {
        for _ in 0..RESTARTS_MAX {
            let since = self.pool().taken();
            let link = self.bucket(id);
            let Some(index) = self.pool().index(link) else { return Ok(false) };
            let there = self.0.word64(self.summary(index)).load(Relaxed);
            let alike =
                if flags & BPF_F_FAST_STACK_CMP != 0 { there as u32 == summary as u32 } else { there == summary };
            let same = |(number, address): (usize, &u64)| {
                self.0.word64(self.address_at(index, number)).load(Relaxed) == *address
            };
            let equal = alike && (flags & BPF_F_FAST_STACK_CMP != 0 || addresses.iter().enumerate().all(same));
            if self.pool().check(link, since) != Err(Stale) {
                return if equal { Ok(true) } else { Err(Errno::EEXIST) };
            }
        }
        Err(Errno::EEXIST)
    }

    /// `bpf_get_stackid` of a stack. `EFAULT` if it has no address, `EEXIST` if another one has its bucket, `ENOMEM`
    /// if the map is full. Mirrors kernel/bpf/stackmap.c:__bpf_get_stackid.
    pub(crate) fn id(&self, cx: &Context, addresses: &[u64], flags: u64) -> Result<u32, Errno> {
        let addresses = addresses.get(..addresses.len().min(self.depth())).unwrap_or_default();
        if addresses.is_empty() {
            return Err(Errno::EFAULT);
        }
        let hash = hash_of(addresses);
        // (The bucket's number.)
        let (id, summary) =
            (hash & self.0.geometry.pool.bucket_mask, u64::from(hash) | (addresses.len() as u64) << 32);
        let wanted = || match self.holds(id, summary, addresses, flags) {
            Err(Errno::EEXIST) if flags & BPF_F_REUSE_STACKID != 0 => Ok(false),
            other => other,
        };
        let told = id.wrapping_add(self.base());
        if wanted()? {
            return Ok(told);
        }
        self.pool().locked(cx, |held| {
            if wanted()? {
                return Ok(told);
            }
            let index = held.take(0).ok_or(Errno::ENOMEM)?;
            self.0.word64(self.summary(index)).store(summary, Relaxed);
            for (number, address) in addresses.iter().enumerate() {
                let at = self.address_at(index, number);
                self.0.word64(at).store(*address, Relaxed);
                if self.builds() {
                    self.0.word64(at - STACK_BUILD_ID_IP_AT as u64).store(STACK_BUILD_ID_IP.into(), Relaxed);
                }
            }
            let old = self.bucket(id);
            let added = if old == 0 { 1 } else { 0 };
            held.commit(&Change {
                place: self.bucket_at(id),
                value: self.pool().link(index),
                freed: [old, 0],
                added,
            });
            Ok(told)
        })
    }

    /// `BPF_MAP_LOOKUP_ELEM`: the addresses, and zeros. Mirrors kernel/bpf/stackmap.c:bpf_stackmap_copy.
    pub(crate) fn copy(&self, key: &[u8], out: &mut [u8]) -> Result<(), Errno> {
        let id = self.id_of(key).ok_or(Errno::ENOENT)?;
        for _ in 0..RESTARTS_MAX {
            let since = self.pool().taken();
            let link = self.bucket(id);
            let index = self.pool().index(link).ok_or(Errno::ENOENT)?;
            let count = (self.0.word64(self.summary(index)).load(Relaxed) >> 32) as usize;
            let bytes = count.min(self.depth()) * self.entry_bytes();
            out.fill(0);
            let out = out.get_mut(..bytes).ok_or(Errno::EINVAL)?;
            self.0.read(self.pool().node_at(index) + STACK_DATA_OFFSET, out);
            if self.pool().check(link, since) != Err(Stale) {
                return Ok(());
            }
        }
        Err(Errno::EBUSY)
    }

    /// `BPF_MAP_DELETE_ELEM`. Mirrors kernel/bpf/stackmap.c:stack_map_delete_elem.
    pub(crate) fn delete(&self, cx: &Context, key: &[u8]) -> Result<(), Errno> {
        let id = self.id_of(key).ok_or(Errno::E2BIG)?;
        self.remove(cx, id, || Ok(()))
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`. Mirrors kernel/bpf/stackmap.c:stack_map_lookup_and_delete_elem.
    pub(crate) fn take(&self, cx: &Context, key: &[u8], out: &mut [u8]) -> Result<(), Errno> {
        let id = self.id_of(key).ok_or(Errno::ENOENT)?;
        self.remove(cx, id, || self.copy(key, out))
    }

    fn remove(&self, cx: &Context, id: u32, last_look: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.pool().locked(cx, |held| {
            let old = self.bucket(id);
            if old == 0 {
                return Err(Errno::ENOENT);
            }
            last_look()?;
            held.commit(&Change { place: self.bucket_at(id), value: 0, freed: [old, 0], added: -1 });
            Ok(())
        })
    }

    /// The bucket in use behind `key`'s, from the first one if that is not in use.
    /// Mirrors kernel/bpf/stackmap.c:stack_map_get_next_key.
    pub(crate) fn next(&self, key: Option<&[u8]>) -> Option<u32> {
        let known = key.and_then(|key| self.id_of(key)).filter(|id| self.bucket(*id) != 0);
        let first = match known {
            Some(id) => id.checked_add(1)?,
            None => 0,
        };
        let used = (first..=self.0.geometry.pool.bucket_mask).find(|id| self.bucket(*id) != 0);
        used.map(|id| id.wrapping_add(self.base()))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn hashes_are_those_of_lookup3() {
        // hashword(k, 2 * n, 0) of lookup3.c over the words 1, 2, 3 ...
        let words = [0x2_0000_0001u64, 0x4_0000_0003, 0x6_0000_0005, 0x8_0000_0007];
        let hashes = [1, 2, 3, 4].map(|n| super::hash_of(&words[..n]));
        assert_eq!(hashes, [0x8b4c_7979, 0x6649_1246, 0xe3e3_6b25, 0x84ce_8c3e]);
    }
}
