//! The ring buffer that the programs in tracees write into.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ring3_bpf::{RingBuffer, Waker};

use crate::record::Record;

/// Room is given back when so much has been read: a writer may wait for it.
const RELEASED_AT_ONCE: u64 = 64 << 10;
/// A wait ends after this time, for nothing.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(crate) struct Ring {
    buffer: RingBuffer,
    /// The record that is next, if it was read.
    pub(crate) record: Record,
    /// The position behind it.
    behind: Option<u64>,
    position: u64,
    released: u64,
    /// What [`RingBuffer::lost`] was.
    lost: u32,
}

impl Ring {
    /// By the map's descriptor.
    ///
    /// # Errors
    /// It is no such map's, or cannot be mapped.
    pub(crate) fn map(descriptor: OwnedFd) -> io::Result<Ring> {
        let buffer = RingBuffer::receive(descriptor)?;
        let position = buffer.position();
        let lost = buffer.lost();
        Ok(Ring { buffer, record: Record::default(), behind: None, position, released: position, lost })
    }

    /// What wakes [`Ring::wait`].
    pub(crate) fn waker(&self) -> Waker {
        self.buffer.waker()
    }

    /// Records that were lost since this was asked last.
    pub(crate) fn newly_lost(&mut self) -> u32 {
        let lost = self.buffer.lost();
        lost.wrapping_sub(std::mem::replace(&mut self.lost, lost))
    }

    /// The position of the record that is next.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The position behind all records that there are.
    pub(crate) fn produced(&self) -> u64 {
        self.buffer.end()
    }

    /// Reads the record that is next; false: there is none.
    pub(crate) fn read(&mut self) -> bool {
        while self.behind.is_none() {
            let Some((bytes, behind)) = self.buffer.read_next() else { return false };
            if self.record.copy_from(bytes) {
                self.behind = Some(behind);
            } else {
                self.position = behind;
            }
        }
        true
    }

    /// Goes behind the record that is next.
    pub(crate) fn advance(&mut self) {
        if let Some(behind) = self.behind.take() {
            self.position = behind;
        }
    }

    /// Whether much could be given back.
    pub(crate) fn is_worth_releasing(&self) -> bool {
        self.position.wrapping_sub(self.released) >= RELEASED_AT_ONCE
    }

    /// Gives the room before a position back.
    pub(crate) fn release_to(&mut self, position: u64) {
        if position != self.released {
            self.buffer.consume_to(position);
            self.released = position;
        }
    }

    /// Waits for a record, or until `wants` says that there is something else.
    ///
    /// # Errors
    /// `EINTR`: a signal has arrived.
    pub(crate) fn wait(&mut self, wants: impl FnMut() -> bool) -> Result<(), i32> {
        if self.behind.is_none() && self.buffer.wait(WAIT_MAX, wants) { Err(libc::EINTR) } else { Ok(()) }
    }
}
