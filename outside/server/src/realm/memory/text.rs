//! The memory of compiled programs, and before them of the SUD trampolines: one memfd that only the server can
//! write, mapped `r-x` in every target.
//!
//! A range is reused only after the tracer has seen that no thread of any target can still be inside it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ring3_layout::PAGE_BYTES;
use ring3_layout::region::{PROGRAM_ALIGN, TEXT_BYTES, TEXT_OFFSET};
use ring3_layout::sud::{SUD_TRAMPOLINES_BYTES, SUD_TRAMPOLINES_OFFSET};
use ring3_names::Names;

use crate::realm::calls::sud;
use crate::realm::process::SharedFile;
use crate::realm::reports::{PerfFiles, named};

/// Where the SUD trampolines lie. (Nothing may lie where a file's headers are.)
const TRAMPOLINES: u64 = SUD_TRAMPOLINES_OFFSET - TEXT_OFFSET;
/// Where the first program may lie.
const PROGRAMS: u64 = TRAMPOLINES + SUD_TRAMPOLINES_BYTES;

/// A range in the text file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRange {
    /// Offset from the text's start.
    pub offset: u32,
    /// Bytes, rounded up to the alignment.
    pub bytes: u32,
}

/// Allocator and memory of the text.
#[derive(Debug)]
pub(crate) struct TextStore {
    file: SharedFile,
    free: Mutex<Vec<TextRange>>,
    /// By offset, what is called how.
    names: Mutex<BTreeMap<u32, Named>>,
}

/// A range's names. Those of what is gone are kept for perf until something else is there.
#[derive(Debug)]
struct Named {
    range: TextRange,
    names: Arc<Names>,
    gone: bool,
}

impl TextStore {
    /// `perf`: where perf may find names.
    pub(crate) fn new(perf: Option<&PerfFiles>) -> std::io::Result<TextStore> {
        let file = match perf {
            Some(files) => files.create("programs", TEXT_BYTES)?,
            None => SharedFile::new("ring3-text", TEXT_BYTES, true)?,
        };
        let all = TextRange { offset: PROGRAMS as u32, bytes: (TEXT_BYTES - PROGRAMS) as u32 };
        let store = TextStore { file, free: Mutex::new(vec![all]), names: Mutex::default() };
        let trampolines = TextRange { offset: TRAMPOLINES as u32, bytes: SUD_TRAMPOLINES_BYTES as u32 };
        store.write(
            trampolines,
            &sud::trampolines(),
            named::alone("ring3_sud_trampolines".into(), SUD_TRAMPOLINES_BYTES),
        );
        Ok(store)
    }

    /// Writes the names for perf.
    fn show(&self, names: &BTreeMap<u32, Named>) {
        if self.file.has_path() {
            let pieces: Vec<(u64, Arc<Names>)> =
                names.values().map(|named| (u64::from(named.range.offset), named.names.clone())).collect();
            named::wrap(&self.file, TEXT_BYTES, PAGE_BYTES..TEXT_BYTES, &pieces);
        }
    }

    /// The server ends.
    pub(crate) fn unlink(&self) {
        self.file.unlink();
    }

    pub(crate) fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.file()
    }

    /// Reserves room for `bytes` bytes (first fit); `None` when the text is full.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<TextRange> {
        let wanted = u32::try_from(bytes).ok()?.checked_next_multiple_of(PROGRAM_ALIGN as u32)?;
        let mut free = self.free.lock().expect("no panic under this lock");
        let index = free.iter().position(|range| range.bytes >= wanted)?;
        let range = TextRange { offset: free[index].offset, bytes: wanted };
        free[index].offset += wanted;
        free[index].bytes -= wanted;
        if free[index].bytes == 0 {
            free.remove(index);
        }
        Some(range)
    }

    /// Fills a reserved range.
    pub(crate) fn write(&self, range: TextRange, code: &[u8], names: Names) {
        assert!(code.len() <= range.bytes as usize, "code outgrew its reservation");
        self.file.write_bytes(u64::from(range.offset), code);
        let mut all = self.names.lock().expect("no panic under this lock");
        let end = |range: TextRange| range.offset + range.bytes;
        all.retain(|_, other| other.range.offset >= end(range) || end(other.range) <= range.offset);
        all.insert(range.offset, Named { range, names: Arc::new(names), gone: false });
        self.show(&all);
    }

    /// Code that was written.
    pub(crate) fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        self.file.read_bytes(offset, bytes)
    }

    /// The names of all programs, with their offsets.
    pub(crate) fn names(&self) -> Vec<(u32, Arc<Names>)> {
        let names = self.names.lock().expect("no panic under this lock");
        let there = names.values().filter(|named| !named.gone);
        there.map(|named| (named.range.offset, named.names.clone())).collect()
    }

    /// Gives a range back; it is filled with `int3` so that a stray jump stops at once.
    pub(crate) fn release(&self, range: TextRange) {
        if let Some(named) = self.names.lock().expect("no panic under this lock").get_mut(&range.offset) {
            named.gone = true;
        }
        self.file.write_bytes(u64::from(range.offset), &vec![0xcc; range.bytes as usize]);
        let mut free = self.free.lock().expect("no panic under this lock");
        let at = free.partition_point(|other| other.offset < range.offset);
        free.insert(at, range);
        if at + 1 < free.len() && free[at].offset + free[at].bytes == free[at + 1].offset {
            free[at].bytes += free.remove(at + 1).bytes;
        }
        if at > 0 && free[at - 1].offset + free[at - 1].bytes == free[at].offset {
            free[at - 1].bytes += free.remove(at).bytes;
        }
    }

    /// Bytes in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        let free: u64 = self.free.lock().expect("no panic under this lock").iter().map(|r| u64::from(r.bytes)).sum();
        TEXT_BYTES - PROGRAMS - free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_ranges_merge_and_are_used_again() {
        let store = TextStore::new(None).expect("memfd");
        let a = store.reserve(100).expect("room");
        let b = store.reserve(1).expect("room");
        let c = store.reserve(64).expect("room");
        let first = PROGRAMS as u32;
        assert_eq!((a.offset, a.bytes, b.offset, c.offset), (first, 128, first + 128, first + 192));
        store.release(a);
        store.release(c);
        store.release(b);
        assert_eq!(store.used_bytes(), 0);
        let all = (TEXT_BYTES - PROGRAMS) as usize;
        assert_eq!(store.reserve(all).expect("one free range").offset, first);
        assert!(store.reserve(1).is_none());
    }
}
