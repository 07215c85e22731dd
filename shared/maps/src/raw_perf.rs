//! The perf buffer behind `PERF_COUNT_SW_BPF_OUTPUT`: a control page and a ring that the loader maps.
//!
//! Layout and records as `perf_event_open(2)` describes them. Producers exclude each other by a lock; a record
//! becomes visible by the store of `data_head`. What does not fit is counted and told by a
//! `PERF_RECORD_LOST` before the next record that fits.
//!
//! Own words: 0: lock; 1: records lost and not yet told; 2: `sample_type`; 3: events between
//! wake-ups; 4: events since the last; 5: event id.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ring3_layout::PAGE_BYTES;
use ring3_uapi::Errno;

use crate::Context;
use crate::geometry::{Geometry, TYPE_PERF_BUFFER};
use crate::lock::{lock, release_dead, unlock};
use crate::raw_memory::Memory;
use crate::ring::Taken;
use crate::wake::Wake;

/// `sample_type`: the time, ns.
pub const PERF_SAMPLE_TIME: u64 = 1 << 2;
/// `sample_type`: the raw data.
pub const PERF_SAMPLE_RAW: u64 = 1 << 10;

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const HEAD_AT: u64 = 1024;
const TAIL_AT: u64 = 1032;
const OFFSET_AT: u64 = 1040;
const SIZE_AT: u64 = 1048;
const LOST_BYTES: u64 = 24;
/// A record's size is a 16-bit number.
const RECORD_BYTES_MAX: u64 = u16::MAX as u64;

/// A sample to be written.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'d> {
    /// Time, ns; written if the event asked for it.
    pub time_ns: u64,
    /// Raw data.
    pub data: &'d [u8],
}

/// What a record tells.
#[derive(Clone, Copy, Debug)]
pub enum RecordContent<'d> {
    /// A sample.
    Sample(Sample<'d>),
    /// So many records had no room.
    Lost(u64),
}

/// What the record with these bytes behind its header tells; `None` if it is none that producers write.
fn told(kind: u32, with_time: bool, record: &[u8]) -> Option<RecordContent<'_>> {
    let word = |at: usize| Some(u64::from_le_bytes(record.get(at..)?.get(..8)?.try_into().ok()?));
    if kind == RECORD_LOST {
        return word(8).map(RecordContent::Lost);
    }
    let time_ns = if with_time { word(0)? } else { 0 };
    let rest = record.get(if with_time { 8 } else { 0 }..)?;
    let bytes = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    // (The kernel's raw data is what was given and padding; of padding nobody knows how much there was.)
    let data = rest.get(4..)?.get(..bytes)?;
    (kind == RECORD_SAMPLE).then_some(RecordContent::Sample(Sample { time_ns, data }))
}

/// A perf buffer.
#[derive(Clone, Copy, Debug)]
pub struct PerfBuffer<'g> {
    memory: Memory<'g>,
}

impl<'g> PerfBuffer<'g> {
    /// Makes a buffer in fresh, zeroed memory.
    ///
    /// # Safety
    /// `base` is the start of a mapping of `geometry.file_bytes()` bytes that outlives the value.
    pub unsafe fn initialize(
        base: *mut u8,
        geometry: &'g Geometry,
        sample_type: u64,
        wakeup_events: u64,
        id: u64,
    ) -> PerfBuffer<'g> {
        // SAFETY: the caller's promise.
        let buffer = PerfBuffer { memory: unsafe { Memory::new(base, geometry) } };
        buffer.memory.word64(OFFSET_AT).store(PAGE_BYTES, Relaxed);
        buffer.memory.word64(SIZE_AT).store(buffer.data_bytes(), Relaxed);
        buffer.word(2).store(sample_type, Relaxed);
        buffer.word(3).store(wakeup_events, Relaxed);
        buffer.word(5).store(id, Relaxed);
        buffer
    }

    /// A buffer whose geometry is known from elsewhere than its memory.
    ///
    /// # Safety
    /// As for [`PerfBuffer::initialize`].
    pub unsafe fn trusted(base: *mut u8, geometry: &'g Geometry) -> PerfBuffer<'g> {
        // SAFETY: the caller's promise.
        PerfBuffer { memory: unsafe { Memory::new(base, geometry) } }
    }

    /// A buffer by the address of its view.
    ///
    /// # Safety
    /// `view` is the address of a mapped map's view.
    pub unsafe fn from_view(view: u64) -> Option<PerfBuffer<'g>> {
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::from_view(view) }?;
        (memory.geometry.header.map_type == TYPE_PERF_BUFFER).then_some(PerfBuffer { memory })
    }

    /// Number of its doorbell.
    pub fn doorbell(&self) -> u32 {
        self.memory.geometry.header.doorbell
    }

    fn word(&self, index: u64) -> &core::sync::atomic::AtomicU64 {
        self.memory.word64(self.memory.own_word(index))
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.memory.geometry.header.max_entries) * PAGE_BYTES
    }

    /// Whether the reader has something to read.
    pub fn has_data(&self) -> bool {
        self.memory.word64(HEAD_AT).load(Acquire) != self.memory.word64(TAIL_AT).load(Acquire)
    }

    /// Takes away what dead owners left: the lock.
    pub fn reclaim_dead_owner(&self, is_dead: impl Fn(u32) -> bool) {
        release_dead(self.memory.word32(self.memory.own_word(0)), is_dead);
    }

    /// Writes a sample.
    ///
    /// # Errors
    /// `E2BIG` for more than a record holds, `ENOSPC` without room, `EBUSY` if the lock cannot be had (both counted).
    pub fn output(&self, cx: &Context, sample: &Sample<'_>) -> Result<Wake, Errno> {
        let sample_type = self.word(2).load(Relaxed);
        let with_time = sample_type & PERF_SAMPLE_TIME != 0;
        let raw = (sample.data.len() as u64 + 4).next_multiple_of(8);
        let total = 8 + if with_time { 8 } else { 0 } + raw;
        if total > RECORD_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let word = self.memory.word32(self.memory.own_word(0));
        if !lock(word, cx) {
            self.lose(1);
            return Err(Errno::EBUSY);
        }
        let written = self.write_record(sample, with_time, raw, total);
        unlock(word);
        written
    }

    fn write_record(&self, sample: &Sample<'_>, with_time: bool, raw: u64, total: u64) -> Result<Wake, Errno> {
        let mut head = self.memory.word64(HEAD_AT).load(Relaxed);
        let tail = self.memory.word64(TAIL_AT).load(Acquire);
        let lost = self.word(1).load(Relaxed);
        let needed = total + if lost > 0 { LOST_BYTES } else { 0 };
        let before = head.wrapping_sub(tail);
        if before.saturating_add(needed) > self.data_bytes() {
            self.word(1).fetch_add(1, Relaxed);
            return Err(Errno::ENOSPC);
        }
        if lost > 0 {
            let id = self.word(5).load(Relaxed);
            self.put(&mut head, &header(RECORD_LOST, LOST_BYTES));
            self.put(&mut head, &id.to_le_bytes());
            self.put(&mut head, &lost.to_le_bytes());
            self.word(1).fetch_sub(lost, Relaxed);
        }
        self.put(&mut head, &header(RECORD_SAMPLE, total));
        if with_time {
            self.put(&mut head, &sample.time_ns.to_le_bytes());
        }
        self.put(&mut head, &((raw - 4) as u32).to_le_bytes());
        self.put(&mut head, sample.data);
        let padding = raw - 4 - sample.data.len() as u64;
        self.put(&mut head, &[0u8; 8][..padding as usize & 7]);
        self.memory.word64(HEAD_AT).store(head, Release);
        let due = self.word(4).fetch_add(1, Relaxed).wrapping_add(1) >= self.word(3).load(Relaxed).max(1);
        if due {
            self.word(4).store(0, Relaxed);
        }
        Ok(Wake::new(due, [before, before.wrapping_add(needed)], self.data_bytes()))
    }

    /// As the reader: copies the next record to `out` and tells of it; it is passed then. Whatever the producers have written,
    /// nothing outside of the buffer is read, and each call but the last passes something.
    pub fn take(&self, out: &mut [u8], see: impl FnOnce(RecordContent<'_>)) -> Taken {
        let head = self.memory.word64(HEAD_AT).load(Acquire);
        let tail = self.memory.word64(TAIL_AT).load(Relaxed);
        let waiting = head.wrapping_sub(tail);
        if waiting == 0 {
            return Taken::Nothing;
        }
        let mut start = [0u8; 8];
        self.get(tail, &mut start);
        let word = u64::from_le_bytes(start);
        let (kind, bytes) = (word as u32, word >> 48);
        let is_record = bytes >= 8 && bytes.is_multiple_of(8) && bytes <= waiting && waiting <= self.data_bytes();
        let room = out.get_mut(..(bytes as usize).saturating_sub(8)).filter(|_| is_record);
        let Some(record) = room else {
            self.memory.word64(TAIL_AT).store(head, Release);
            return Taken::Passed;
        };
        self.get(tail.wrapping_add(8), record);
        if let Some(told) = told(kind, self.word(2).load(Relaxed) & PERF_SAMPLE_TIME != 0, record) {
            see(told);
        }
        self.memory.word64(TAIL_AT).store(tail.wrapping_add(bytes), Release);
        Taken::Passed
    }

    /// Counts records that were lost elsewhere.
    pub fn lose(&self, records: u64) {
        self.word(1).fetch_add(records, Relaxed);
    }

    /// Copies from the ring at `from`, around its end.
    fn get(&self, from: u64, out: &mut [u8]) {
        let size = self.data_bytes();
        let at = from & (size - 1);
        let first = ((size - at) as usize).min(out.len());
        let (before, after) = out.split_at_mut(first);
        self.memory.read(PAGE_BYTES + at, before);
        self.memory.read(PAGE_BYTES, after);
    }

    /// Copies to the ring at `head`, around its end.
    fn put(&self, head: &mut u64, bytes: &[u8]) {
        let size = self.data_bytes();
        let at = *head & (size - 1);
        let first = ((size - at) as usize).min(bytes.len());
        let (before, after) = bytes.split_at(first);
        self.memory.write(PAGE_BYTES + at, before);
        self.memory.write(PAGE_BYTES, after);
        *head = head.wrapping_add(bytes.len() as u64);
    }
}

/// `struct perf_event_header` of a record that user code caused (`PERF_RECORD_MISC_USER`).
fn header(kind: u32, bytes: u64) -> [u8; 8] {
    const MISC_USER: u64 = 2;
    (u64::from(kind) | MISC_USER << 32 | bytes << 48).to_le_bytes()
}
