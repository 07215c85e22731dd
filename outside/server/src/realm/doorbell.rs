//! Doorbells: how an agent wakes a loader's reader, and the server, without holding a file descriptor.
//!
//! An agent sets its buffer's bit in the realm block and wakes the futex if the server sleeps there. One
//! thread sleeps there; it turns bits into writes to the eventfds that loaders poll. What it reads is
//! writable by every target: a bit set for nothing costs a spurious wake-up of one reader, no more.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ring3_layout::realm::{DOORBELL_REQUESTS, DOORBELLS_MAX};
use ring3_uapi::Errno;
use rustix::event::EventfdFlags;

use super::raw_mapping::{SharedFile, futex_wait, futex_wake};

/// The thread looks at the stop flag at least this often, ms.
const SLEEP_MS: u64 = 500;

/// An eventfd, written when a buffer has something to read.
#[derive(Debug)]
pub struct EventFd(pub OwnedFd);

impl EventFd {
    /// A fresh nonblocking eventfd.
    pub fn new() -> Result<EventFd, rustix::io::Errno> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(EventFd)
    }

    /// Makes it readable. A full counter is readable already.
    pub fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable; true if it was readable.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0u8; 8]).is_ok()
    }
}

/// The doorbells of one realm.
#[derive(Debug)]
pub(crate) struct Doorbells {
    bells: Mutex<Vec<Option<Arc<EventFd>>>>,
    stopping: AtomicBool,
}

impl Doorbells {
    pub(crate) fn new() -> Doorbells {
        let mut bells = vec![None; DOORBELLS_MAX as usize];
        bells.truncate(DOORBELLS_MAX as usize);
        Doorbells { bells: Mutex::new(bells), stopping: AtomicBool::new(false) }
    }

    /// A number for `MapHeader::doorbell` and the eventfd it rings. `ENOSPC` when all are taken.
    pub(crate) fn add(&self) -> Result<(u32, Arc<EventFd>), Errno> {
        let mut bells = self.bells.lock().expect("no panic under this lock");
        let first = DOORBELL_REQUESTS as usize + 1;
        let number = (first..bells.len()).find(|&n| bells[n].is_none()).ok_or(Errno::ENOSPC)?;
        let event = Arc::new(EventFd::new().map_err(|e| Errno(e.raw_os_error()))?);
        bells[number] = Some(event.clone());
        Ok((number as u32, event))
    }

    pub(crate) fn drop_bell(&self, number: u32) {
        if let Some(bell) = self.bells.lock().expect("no panic under this lock").get_mut(number as usize) {
            *bell = None;
        }
    }

    /// Ends [`Doorbells::run`].
    pub(crate) fn stop(&self, block: &SharedFile) {
        self.stopping.store(true, Ordering::Release);
        let doorbell = &block.realm().doorbell;
        doorbell.sequence.fetch_add(1, Ordering::SeqCst);
        futex_wake(&doorbell.sequence);
    }

    /// The doorbell thread: sleeps, rings, and calls `requests` when an agent asks for the server.
    pub(crate) fn run(&self, block: &SharedFile, requests: &dyn Fn()) {
        let doorbell = &block.realm().doorbell;
        while !self.stopping.load(Ordering::Acquire) {
            let sequence = doorbell.sequence.load(Ordering::SeqCst);
            doorbell.sleeping.store(1, Ordering::SeqCst);
            if !self.ring(block, requests) {
                futex_wait(&doorbell.sequence, sequence, SLEEP_MS);
            }
            doorbell.sleeping.store(0, Ordering::SeqCst);
            self.ring(block, requests);
        }
    }

    /// Takes all set bits and rings them; false if there was none.
    fn ring(&self, block: &SharedFile, requests: &dyn Fn()) -> bool {
        let mut any = false;
        for (index, word) in block.realm().doorbell.bits.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                any = true;
                let number = index as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if number == DOORBELL_REQUESTS {
                    requests();
                } else if let Some(Some(bell)) =
                    self.bells.lock().expect("no panic under this lock").get(number as usize)
                {
                    bell.signal();
                }
            }
        }
        any
    }
}
