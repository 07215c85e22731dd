//! Ring buffers, read through their mappings (kernel/bpf/ringbuf.c; the protocol is that of src/ringbuf.c of libbpf).

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// The record is not complete yet (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// It was given up (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;
/// Length and flags, and a distance (`BPF_RINGBUF_HDR_SZ`).
const HEADER_BYTES: u64 = 8;

/// The reading end of a `BPF_MAP_TYPE_RINGBUF`.
#[derive(Debug)]
pub struct RingBuffer {
    /// The page with the consumer's position.
    consumer: NonNull<u8>,
    /// The page with the producer's position, then the data, twice.
    producer: NonNull<u8>,
    page: usize,
    bytes: usize,
}

// SAFETY: the mappings belong to no thread; positions are atomic, and `&mut self` makes this end the only reader.
unsafe impl Send for RingBuffer {}

impl RingBuffer {
    /// Maps the buffer of a map with so many bytes (its `max_entries`).
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(map: &impl AsFd, bytes: usize) -> io::Result<RingBuffer> {
        let page = rustix::param::page_size();
        // SAFETY: no address is asked for, so nothing of ours is replaced.
        let consumer = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                page,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )
        }?;
        let consumer: NonNull<u8> = NonNull::new(consumer.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let length = page + 2 * bytes;
        // SAFETY: as above.
        let producer = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                map.as_fd(),
                page as u64,
            )
        };
        let producer = producer
            .map_err(io::Error::from)
            .and_then(|at| NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into()));
        let producer = match producer {
            Ok(producer) => producer,
            Err(error) => {
                // SAFETY: the page was mapped above, and nothing refers to it.
                let _ = unsafe { rustix::mm::munmap(consumer.as_ptr().cast(), page) };
                return Err(error);
            }
        };
        Ok(RingBuffer { consumer, producer, page, bytes })
    }

    fn consumed(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped and begins with the position, which is read and written atomically by everybody.
        unsafe { self.consumer.cast().as_ref() }
    }

    fn produced(&self) -> &AtomicU64 {
        // SAFETY: as `consumed`; the kernel's and ring3's producers write it atomically.
        unsafe { self.producer.cast().as_ref() }
    }

    /// Bytes of records that wait to be read.
    pub fn waiting(&self) -> u64 {
        self.produced().load(Ordering::Acquire).wrapping_sub(self.consumed().load(Ordering::Relaxed))
    }

    /// Hands over each record that is complete, in order, and frees it. The result is how many there were.
    ///
    /// A record that a writer has reserved and not submitted holds those behind it.
    pub fn take(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        let mut at = self.consumed().load(Ordering::Relaxed);
        let end = self.produced().load(Ordering::Acquire);
        if end.wrapping_sub(at) > self.bytes as u64 {
            // (No producer gets so far ahead: something else wrote the position.)
            self.consumed().store(end, Ordering::Release);
            return 0;
        }
        while at != end {
            let offset = (at as usize) & (self.bytes - 1);
            // SAFETY: the data is mapped twice behind the producer's page, so offset + 8 is inside.
            let header = unsafe { self.producer.add(self.page + offset) };
            // SAFETY: records are aligned to 8 bytes, and producers write this word atomically.
            let header: &AtomicU32 = unsafe { header.cast().as_ref() };
            let word = header.load(Ordering::Acquire);
            if word & BUSY != 0 {
                break;
            }
            let length = (word & !(BUSY | DISCARDED)) as usize;
            let whole = (HEADER_BYTES + length as u64).next_multiple_of(8);
            // (A target can write into the buffer: its lengths are not trusted.)
            if whole > end.wrapping_sub(at) {
                at = end;
                self.consumed().store(at, Ordering::Release);
                break;
            }
            if word & DISCARDED == 0 {
                // SAFETY: offset is less than `bytes`, and `whole` is at most what was produced, which is at most `bytes`: offset + 8 +
                // length is less than twice `bytes`.
                let data = unsafe { self.producer.add(self.page + offset + HEADER_BYTES as usize) };
                // SAFETY: as above, `length` bytes are mapped; only a target that breaks its own records writes them now, and bytes have
                // no invalid values.
                each(unsafe { std::slice::from_raw_parts(data.as_ptr(), length) });
                count += 1;
            }
            at = at.wrapping_add(whole);
            self.consumed().store(at, Ordering::Release);
        }
        count
    }
}

impl Drop for RingBuffer {
    fn drop(&mut self) {
        // SAFETY: both were mapped by `map` with these lengths, and no reference to them outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.consumer.as_ptr().cast(), self.page) };
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(self.producer.as_ptr().cast(), self.page + 2 * self.bytes) };
    }
}
