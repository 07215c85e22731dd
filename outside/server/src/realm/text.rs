//! Where compiled programs live: one memfd that the server alone can write, mapped `r-x` in every target.
//!
//! Ranges are reused only after the tracer has seen that no thread of any target can still be inside.

use std::sync::Mutex;

use ring3_layout::region::TEXT_BYTES;
use rustix::io::Errno;

use super::raw_mapping::SharedFile;

/// Alignment of a program's first byte.
const PROGRAM_ALIGN: u32 = 64;

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
}

impl TextStore {
    pub(crate) fn new() -> Result<TextStore, Errno> {
        let file = SharedFile::new("ring3-text", TEXT_BYTES, true)?;
        let all = TextRange { offset: 0, bytes: TEXT_BYTES as u32 };
        Ok(TextStore { file, free: Mutex::new(vec![all]) })
    }

    pub(crate) fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.file()
    }

    /// Reserves room for `bytes` bytes (first fit); `None` when the text is full.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<TextRange> {
        let wanted = u32::try_from(bytes).ok()?.checked_next_multiple_of(PROGRAM_ALIGN)?;
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
    pub(crate) fn write(&self, range: TextRange, code: &[u8]) {
        assert!(code.len() <= range.bytes as usize, "code outgrew its reservation");
        self.file.write_bytes(u64::from(range.offset), code);
    }

    /// Gives a range back; it is filled with `int3` so that a stray jump stops at once.
    pub(crate) fn release(&self, range: TextRange) {
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
        TEXT_BYTES - free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_ranges_merge_and_are_used_again() {
        let store = TextStore::new().expect("memfd");
        let a = store.reserve(100).expect("room");
        let b = store.reserve(1).expect("room");
        let c = store.reserve(64).expect("room");
        assert_eq!((a.offset, a.bytes, b.offset, c.offset), (0, 128, 128, 192));
        store.release(a);
        store.release(c);
        store.release(b);
        assert_eq!(store.used_bytes(), 0);
        assert_eq!(store.reserve(TEXT_BYTES as usize).expect("one free range").offset, 0);
        assert!(store.reserve(1).is_none());
    }
}
