//! Ring buffers, read through their mappings (kernel/bpf/ringbuf.c; the protocol is that of src/ringbuf.c of libbpf).
//!
//! A target can write into the buffer: neither positions nor lengths are trusted, and a record is copied before anybody looks at it.
//!
//! Writers of a buffer with ring3's flag `RING3_F_BLOCK` wait for a reader that has announced itself ([`RingBuffer::receive`]). The
//! two meet in [`ring3_layout::ring::ReaderWords`]; `shared/maps/src/blocking.rs` has the writers' side.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ring3_layout::map::WORDS_OFFSET;
use ring3_layout::owner;
use ring3_layout::ring::{READER_OFFSET, ReaderWords};
use rustix::mm::ProtFlags;
use rustix::thread::futex;

use crate::raw_mapped::{Mapped, page_bytes};

/// The record is not complete yet (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// It was given up (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;
/// Length and flags, and a distance (`BPF_RINGBUF_HDR_SZ`).
const HEADER_BYTES: u64 = 8;
/// Looks before a reader sleeps.
const SPINS: u32 = 200;
/// A reader sleeps so long at most: a writer may have been killed just before it would have woken it, or may not wake anybody.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// The reading end of a `BPF_MAP_TYPE_RINGBUF`.
#[derive(Debug)]
pub struct RingBuffer {
    /// The page with the consumer's position.
    consumer: Arc<Mapped>,
    /// The page with the producer's position, then the data, twice.
    producer: Mapped,
    bytes: usize,
    record: Vec<u8>,
    /// The position of the next record to be read.
    cursor: u64,
    /// Writers may wait for this reader.
    announced: bool,
}

/// Wakes a reader that waits in [`RingBuffer::wait`], from another thread of its process.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Mapped>);

impl Waker {
    /// Wakes the reader if it sleeps. What it is to notice was stored before, and the reader looks at it in `wants`.
    pub fn wake(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        let sleeping = self.0.word(word_at(offset_of!(ReaderWords, sleeping)));
        if sleeping.load(Ordering::SeqCst) != 0 && sleeping.swap(0, Ordering::SeqCst) != 0 {
            let _ = futex::wake(sleeping, futex::Flags::empty(), 1);
        }
    }
}

/// The writers of a `RING3_F_BLOCK` buffer of ring3's, as a tracer of their threads looks at them.
#[derive(Debug)]
pub struct Writers {
    consumer: Mapped,
    producer: Mapped,
    /// The page with the writers' lock.
    own: Mapped,
    bytes: usize,
}

impl Writers {
    /// Records of at most so many bytes are written at once: their writers make no system call and touch no memory of their process's
    /// meanwhile.
    pub const AT_ONCE_BYTES_MAX: u32 = 512;

    /// By the map's descriptor.
    ///
    /// # Errors
    /// As [`RingBuffer::receive`].
    pub fn map(map: &impl AsFd) -> io::Result<Writers> {
        let (map, page, bytes) = (map.as_fd(), page_bytes(), data_bytes(map.as_fd())?);
        let consumer = Mapped::new(map, 0, page, ProtFlags::READ)?;
        let producer = Mapped::new(map, page, page + 2 * bytes, ProtFlags::READ)?;
        let own = Mapped::new(map, 2 * page + 2 * bytes, page, ProtFlags::READ)?;
        Ok(Writers { consumer, producer, own, bytes })
    }

    /// Whether a thread is writing: it holds the lock, or has reserved a record that is written at once. Until it goes on, no other
    /// thread can write, or the reader cannot pass. (A thread of another pid namespace has another id here: false.)
    pub fn is_writing(&self, tid: u32) -> bool {
        let name = owner::name(owner::NAMESPACE_SERVER, tid);
        self.own.word(WORDS_OFFSET as usize).load(Ordering::Acquire) == name || self.has_reserved(name)
    }

    fn has_reserved(&self, name: u32) -> bool {
        let end = aligned(self.producer.long(0).load(Ordering::Acquire));
        let mut at = aligned(self.consumer.long(0).load(Ordering::Acquire));
        // (Whatever the headers say, this ends: each step goes on.)
        while end.wrapping_sub(at) as i64 > 0 && end.wrapping_sub(at) <= self.bytes as u64 {
            let place = page_bytes() + (at as usize & (self.bytes - 1));
            let word = self.producer.word(place).load(Ordering::Acquire);
            let length = word & !(BUSY | DISCARDED);
            let is_at_once = word & BUSY != 0 && length <= Self::AT_ONCE_BYTES_MAX;
            if is_at_once && self.producer.word(place + 4).load(Ordering::Relaxed) == name {
                return true;
            }
            at = at.wrapping_add((HEADER_BYTES + u64::from(length)).next_multiple_of(HEADER_BYTES));
        }
        false
    }
}

/// Bytes of the data of a map of ring3's. The file is two pages, the data twice, and a page of ring3's own.
fn data_bytes(map: BorrowedFd<'_>) -> io::Result<usize> {
    let file_bytes = usize::try_from(rustix::fs::fstat(map)?.st_size).unwrap_or(0);
    let bytes = file_bytes.saturating_sub(3 * page_bytes()) / 2;
    if !bytes.is_power_of_two() || !bytes.is_multiple_of(page_bytes()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no ring buffer of ring3"));
    }
    Ok(bytes)
}

const fn word_at(offset: usize) -> usize {
    READER_OFFSET as usize + offset
}

/// Records are aligned.
fn aligned(position: u64) -> u64 {
    position & !(HEADER_BYTES - 1)
}

impl RingBuffer {
    /// Maps the buffer of a map with so many bytes (its `max_entries`).
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(map: &impl AsFd, bytes: usize) -> io::Result<RingBuffer> {
        let (map, page) = (map.as_fd(), page_bytes());
        let consumer = Arc::new(Mapped::new(map, 0, page, ProtFlags::READ | ProtFlags::WRITE)?);
        let producer = Mapped::new(map, page, page + 2 * bytes, ProtFlags::READ)?;
        let cursor = aligned(consumer.long(0).load(Ordering::Relaxed));
        Ok(RingBuffer { consumer, producer, bytes, record: vec![], cursor, announced: false })
    }

    /// Becomes the reader of a map of ring3's with `RING3_F_BLOCK`, by a descriptor that its loader has sent. From now on, and until
    /// the value is dropped, its writers wait for this process.
    ///
    /// # Errors
    /// As fstat(2) and mmap(2); `InvalidInput` if the descriptor is not such a map's.
    pub fn receive(map: OwnedFd) -> io::Result<RingBuffer> {
        let mut ring = RingBuffer::map(&map, data_bytes(map.as_fd())?)?;
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |of| of.ino() as u32);
        ring.words(offset_of!(ReaderWords, namespace)).store(namespace, Ordering::SeqCst);
        ring.words(offset_of!(ReaderWords, reader)).store(std::process::id(), Ordering::SeqCst);
        ring.announced = true;
        Ok(ring)
    }

    /// The position of the record that is read next.
    pub fn position(&self) -> u64 {
        self.cursor
    }

    /// The position behind all records, complete or not.
    pub fn end(&self) -> u64 {
        aligned(self.produced().load(Ordering::Acquire))
    }

    /// Records that writers have lost although there was a reader, since the map was made (modulo 2^32).
    pub fn lost(&self) -> u32 {
        self.words(offset_of!(ReaderWords, lost)).load(Ordering::Relaxed)
    }

    fn words(&self, offset: usize) -> &AtomicU32 {
        self.consumer.word(word_at(offset))
    }

    fn consumed(&self) -> &AtomicU64 {
        self.consumer.long(0)
    }

    fn produced(&self) -> &AtomicU64 {
        self.producer.long(0)
    }

    /// The header of the record at the cursor: its length and flags. `None`: there is none.
    fn header(&self) -> Option<u32> {
        let at = page_bytes() + (self.cursor as usize & (self.bytes - 1));
        let any = aligned(self.produced().load(Ordering::Acquire)) != self.cursor;
        any.then(|| self.producer.word(at).load(Ordering::Acquire))
    }

    /// Whether there is a complete record that was not read yet (or one that was given up).
    pub fn has_next(&self) -> bool {
        self.header().is_some_and(|header| header & BUSY == 0)
    }

    /// The next record that is complete, and the position behind it. It keeps its room until [`RingBuffer::consume_to`] frees it.
    ///
    /// A record that a writer has reserved and not submitted holds those behind it.
    pub fn read_next(&mut self) -> Option<(&[u8], u64)> {
        loop {
            let word = self.header()?;
            let end = aligned(self.produced().load(Ordering::Acquire));
            let left = end.wrapping_sub(self.cursor);
            if word & BUSY != 0 && left <= self.bytes as u64 {
                return None;
            }
            let length = (word & !(BUSY | DISCARDED)) as usize;
            let whole = (HEADER_BYTES + length as u64).next_multiple_of(HEADER_BYTES);
            if whole > left || left > self.bytes as u64 {
                // (No producer gets so far ahead, or writes such a length: something else wrote here.)
                self.cursor = end;
                return None;
            }
            let offset = page_bytes() + (self.cursor as usize & (self.bytes - 1)) + HEADER_BYTES as usize;
            self.cursor = self.cursor.wrapping_add(whole);
            if word & DISCARDED == 0 {
                self.record.resize(length, 0);
                self.producer.copy(offset, &mut self.record);
                return Some((&self.record, self.cursor));
            }
        }
    }

    /// Frees the room of all records before a position, and wakes the threads that wait for that.
    pub fn consume_to(&self, position: u64) {
        if !self.announced {
            self.consumed().store(position, Ordering::Release);
            return;
        }
        self.consumed().store(position, Ordering::SeqCst);
        let wake_at = self.consumer.long(word_at(offset_of!(ReaderWords, wake_at)));
        let wanted = wake_at.load(Ordering::SeqCst);
        if wanted != 0 && position.wrapping_sub(wanted) as i64 >= 0 {
            wake_at.store(0, Ordering::SeqCst);
            self.wake_writers();
        }
    }

    fn wake_writers(&self) {
        let progress = self.words(offset_of!(ReaderWords, progress));
        progress.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(progress, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Hands over each record that is complete, in order, and frees it. The result is how many there were.
    pub fn take(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        // (What is written meanwhile waits for the next call, so that this one ends.)
        let end = self.cursor.wrapping_add(self.bytes as u64);
        while self.cursor.wrapping_sub(end) as i64 <= 0
            && let Some((record, position)) = self.read_next()
        {
            each(record);
            count += 1;
            self.consume_to(position);
        }
        if self.consumed().load(Ordering::Relaxed) != self.cursor {
            self.consume_to(self.cursor);
        }
        count
    }

    /// What wakes this reader from another thread.
    pub fn waker(&self) -> Waker {
        Waker(self.consumer.clone())
    }

    /// Waits until there is a record that was not read yet, or `wants` says that there is something else to do: who brings that about
    /// calls [`Waker::wake`] afterwards. Returns after `timeout` in any case, and may return earlier, for nothing. The result is
    /// whether a signal handler of this thread has ended the wait.
    ///
    /// The reader says that it sleeps, and the first writer then wakes it. Otherwise no writer makes a system call. So a reader of
    /// a map that is no `RING3_F_BLOCK` one of ring3's sleeps until the end.
    pub fn wait(&self, timeout: Duration, mut wants: impl FnMut() -> bool) -> bool {
        let mut is_due = || self.has_next() || wants();
        for _ in 0..SPINS {
            if is_due() {
                return false;
            }
            std::hint::spin_loop();
        }
        let sleeping = self.words(offset_of!(ReaderWords, sleeping));
        let mut is_interrupted = false;
        sleeping.swap(1, Ordering::SeqCst);
        if !is_due() {
            let sleep = timeout.min(SLEEP_MAX);
            let sleep = futex::Timespec { tv_sec: 0, tv_nsec: sleep.subsec_nanos().into() };
            let ended = futex::wait(sleeping, futex::Flags::empty(), 1, Some(&sleep));
            is_interrupted = ended == Err(rustix::io::Errno::INTR);
        }
        sleeping.store(0, Ordering::SeqCst);
        is_interrupted
    }
}

impl Drop for RingBuffer {
    /// Nobody waits for this reader any more.
    fn drop(&mut self) {
        let reader = self.words(offset_of!(ReaderWords, reader));
        let own = std::process::id();
        if self.announced && reader.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.wake_writers();
        }
    }
}
