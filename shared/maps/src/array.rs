//! ARRAY, PERCPU_ARRAY and the arrays of objects (PROG_ARRAY, PERF_EVENT_ARRAY, CGROUP_ARRAY, ARRAY_OF_MAPS).

use core::sync::atomic::Ordering;

use ring3_uapi::Errno;
use ring3_uapi::flags::{BPF_EXIST, BPF_F_LOCK, BPF_NOEXIST};

use crate::raw_memory::Memory;

/// An array's operations on its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array<'m>(pub(crate) &'m Memory<'m>);

impl Array<'_> {
    /// The index that a key is, if there is such an element.
    pub(crate) fn index(&self, key: &[u8]) -> Option<u32> {
        let index = u32::from_le_bytes(key.get(..4)?.try_into().ok()?);
        (index < self.0.geometry.header.max_entries).then_some(index)
    }

    /// Offset of an element for a CPU.
    pub(crate) fn value_at(&self, index: u32, cpu: u32) -> u64 {
        let geometry = &self.0.geometry;
        let cpu = cpu.min(geometry.header.cpus - 1);
        u64::from(cpu) * geometry.cpu_stride + u64::from(index) * u64::from(geometry.header.stride)
    }

    /// Checks an update. Mirrors kernel/bpf/arraymap.c:array_map_update_elem.
    pub(crate) fn check_update(&self, key: &[u8], flags: u64) -> Result<u32, Errno> {
        if flags & !BPF_F_LOCK > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        let index = self.index(key).ok_or(Errno::E2BIG)?;
        if flags & BPF_NOEXIST != 0 {
            return Err(Errno::EEXIST);
        }
        if flags & BPF_F_LOCK != 0 {
            return Err(Errno::EINVAL); // no bpf_spin_lock in values yet
        }
        Ok(index)
    }

    /// Mirrors kernel/bpf/arraymap.c:array_map_get_next_key.
    pub(crate) fn next(&self, key: Option<&[u8]>) -> Option<u32> {
        let max = self.0.geometry.header.max_entries;
        match key.and_then(|key| self.index(key)) {
            None => Some(0),
            Some(index) => Some(index + 1).filter(|next| *next < max),
        }
    }

    /// For arrays of objects: offset of the word.
    pub(crate) fn object_at(&self, index: u32) -> u64 {
        u64::from(index) * 4
    }

    /// For arrays of objects: what the server stored at `index`, 0 for nothing.
    pub(crate) fn object(&self, index: u32) -> u32 {
        self.0.word32(self.object_at(index)).load(Ordering::Acquire)
    }

    /// Stores an object's number, or 0.
    pub(crate) fn set_object(&self, index: u32, object: u32) {
        self.0.word32(self.object_at(index)).store(object, Ordering::Release);
    }
}
