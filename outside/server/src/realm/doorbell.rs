//! Doorbells: how an agent wakes a loader's reader, and the server, without holding a file descriptor.
//!
//! An agent sets its buffer's bit in the realm block and wakes the futex if the server sleeps there. One
//! thread sleeps there; it turns bits into writes to the eventfds that loaders poll. While agents ring often, it does not sleep
//! there but looks at the bits again and again, with pauses, so that no agent makes a system call. What it reads is
//! writable by every target of its domain: a bit set for nothing costs a spurious wake-up of one reader, no more. Each domain has
//! a thread of its own. Where other domains than the server's own ring, what they have written is fetched first.
//!
//! A producer wakes a ring buffer's reader only if that stands at its record. The reader's last store of its position
//! may still be under way when it finds nothing more to read and goes to sleep, and then a producer that looks at the
//! same moment takes it for awake. (The kernel looks for data when the reader goes to sleep; an eventfd cannot.)
//! So a ring buffer that was rung for is looked at until nothing has moved in it for a while, and rung for again if that
//! is so although it has data.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ring3_layout::realm::{DOORBELL_REQUESTS, DOORBELLS_MAX};
use ring3_uapi::Errno;
use rustix::event::EventfdFlags;

use super::domains::Block;
use super::raw_mapping::{futex_wait, futex_wake};

/// The thread looks at the stop flag at least this often, ms.
const SLEEP_MS: u64 = 500;
/// A ring buffer that was rung for is looked at after this long, ms, and after twice as long each time that its reader
/// does not move, at most every [`SLEEP_MS`].
const LOOK_MS: u64 = 1;

/// Under load the thread looks at the bits after each such pause instead of sleeping until it is woken, so that an agent need not
/// wake it. It also bounds what a target can make the server do by ringing. Bits that are set meanwhile are found behind it.
const PAUSE: Duration = Duration::from_micros(100);
/// There is load if somebody rings again so soon.
const LOAD_SPAN: Duration = Duration::from_micros(200);

/// How much is rung for.
struct Load {
    /// When somebody rang the last time.
    rung: Instant,
    is_high: bool,
}

impl Load {
    /// The bits were looked at; `any`: some were set.
    fn looked(&mut self, any: bool, now: Instant) {
        let is_soon = now.saturating_duration_since(self.rung) < LOAD_SPAN;
        self.is_high = is_soon && (any || self.is_high);
        if any {
            self.rung = now;
        }
    }
}

/// An eventfd, written when a buffer has something to read.
#[derive(Debug)]
pub struct EventFd(pub OwnedFd);

impl EventFd {
    /// A fresh nonblocking eventfd.
    pub fn new() -> Result<EventFd, rustix::io::Errno> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(EventFd)
    }

    /// Makes it readable. A full counter is readable already. A signal that is lost leaves its reader asleep for good, so a write
    /// that fails for another reason is repeated.
    pub fn signal(&self) {
        const TRIES_MAX: usize = 3;
        for _ in 0..TRIES_MAX {
            match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
                Ok(_) | Err(rustix::io::Errno::AGAIN) => return,
                Err(error) => tracing::warn!("an eventfd is not written: {error}"),
            }
        }
    }

    /// Makes it unreadable; true if it was readable.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0u8; 8]).is_ok()
    }
}

/// Tells a ring buffer's consumer and producer positions; `None` if there is no such buffer any more.
pub(crate) type Positions = dyn Fn() -> Option<[u64; 2]> + Send + Sync;

/// Fetches what the targets of a domain have written into their own memory of a buffer.
pub(crate) type Fetch = dyn Fn(u32) + Send + Sync;

#[derive(Clone)]
struct Bell {
    event: Arc<EventFd>,
    positions: Option<Arc<Positions>>,
    fetch: Option<Arc<Fetch>>,
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bell").field("event", &self.event).finish_non_exhaustive()
    }
}

/// A ring buffer that was rung for: where it stood, when it is looked at again, and how long that wait is.
struct Watched {
    positions: Option<[u64; 2]>,
    next: Instant,
    wait: Duration,
}

/// The doorbells of one realm.
#[derive(Debug)]
pub(crate) struct Doorbells {
    bells: Mutex<Vec<Option<Bell>>>,
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
        bells[number] = Some(Bell { event: event.clone(), positions: None, fetch: None });
        Ok((number as u32, event))
    }

    /// From now on the ring buffer of a doorbell is watched while it is in use.
    pub(crate) fn watch(&self, number: u32, positions: Arc<Positions>) {
        if let Some(bell) = &mut self.bells.lock().expect("no panic under this lock")[number as usize] {
            bell.positions = Some(positions);
        }
    }

    /// What is done when another domain than the server's own rings.
    pub(crate) fn fetch_by(&self, number: u32, fetch: Arc<Fetch>) {
        if let Some(bell) = &mut self.bells.lock().expect("no panic under this lock")[number as usize] {
            bell.fetch = Some(fetch);
        }
    }

    fn bell(&self, number: u32) -> Option<Bell> {
        self.bells.lock().expect("no panic under this lock").get(number as usize).cloned().flatten()
    }

    pub(crate) fn drop_bell(&self, number: u32) {
        if let Some(bell) = self.bells.lock().expect("no panic under this lock").get_mut(number as usize) {
            *bell = None;
        }
    }

    /// Ends [`Doorbells::run`].
    pub(super) fn stop(&self, block: &Block) {
        self.stopping.store(true, Ordering::Release);
        let doorbell = &block.file.realm().doorbell;
        doorbell.sequence.fetch_add(1, Ordering::SeqCst);
        futex_wake(&doorbell.sequence);
    }

    /// The doorbell thread: sleeps, rings, and calls `requests` when an agent asks for the server.
    pub(super) fn run(&self, block: &Block, requests: &dyn Fn()) {
        let mut watched = BTreeMap::new();
        // (The default slack, 50 us, would make each pause longer.)
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut load = Load { rung: Instant::now(), is_high: false };
        while !self.stopping.load(Ordering::Acquire) && !block.ended.load(Ordering::Acquire) {
            let any = if load.is_high {
                std::thread::sleep(PAUSE);
                self.ring(block, requests, &mut watched)
            } else {
                self.rest(block, requests, &mut watched)
            };
            load.looked(any, Instant::now());
            self.look(&mut watched);
        }
    }

    /// Sleeps until an agent rings, or a ring buffer is to be looked at; whether one has rung.
    fn rest(&self, block: &Block, requests: &dyn Fn(), watched: &mut BTreeMap<u32, Watched>) -> bool {
        let doorbell = &block.file.realm().doorbell;
        let sequence = doorbell.sequence.load(Ordering::SeqCst);
        doorbell.sleeping.store(1, Ordering::SeqCst);
        let mut any = self.ring(block, requests, watched);
        if !any {
            let now = Instant::now();
            let next = watched.values().map(|ring: &Watched| ring.next.saturating_duration_since(now)).min();
            let sleep_ms = next.map_or(SLEEP_MS, |next| next.as_millis() as u64 + 1);
            futex_wait(&doorbell.sequence, sequence, sleep_ms);
        }
        doorbell.sleeping.store(0, Ordering::SeqCst);
        any |= self.ring(block, requests, watched);
        any
    }

    /// Looks at ring buffers whose time has come.
    fn look(&self, watched: &mut BTreeMap<u32, Watched>) {
        let now = Instant::now();
        watched.retain(|number, ring| {
            if ring.next > now {
                return true;
            }
            let Some(bell) = self.bell(*number) else { return false };
            let Some(positions) = bell.positions.and_then(|positions| positions()) else { return false };
            let [consumer, producer] = positions;
            if ring.positions.is_some_and(|[before, _]| before == consumer) {
                if consumer == producer {
                    return false;
                }
                bell.event.signal();
                ring.wait = (ring.wait * 2).min(Duration::from_millis(SLEEP_MS));
            } else {
                ring.wait = Duration::from_millis(LOOK_MS);
            }
            ring.positions = Some(positions);
            ring.next = now + ring.wait;
            true
        });
    }

    /// Takes all set bits and rings them; false if there was none.
    fn ring(&self, block: &Block, requests: &dyn Fn(), watched: &mut BTreeMap<u32, Watched>) -> bool {
        let mut any = false;
        for (index, word) in block.file.realm().doorbell.bits.iter().enumerate() {
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
                } else if let Some(bell) = self.bell(number) {
                    if block.number != 0 {
                        bell.fetch.iter().for_each(|fetch| fetch(block.number));
                        continue;
                    }
                    bell.event.signal();
                    if bell.positions.is_some() {
                        let wait = Duration::from_millis(LOOK_MS);
                        let fresh = || Watched { positions: None, next: Instant::now() + wait, wait };
                        watched.entry(number).or_insert_with(fresh);
                    }
                }
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::super::domains::Domains;
    use super::*;

    /// Rings a ring buffer's bell once, then waits until `done`.
    fn rung_until(positions: impl Fn() -> Option<[u64; 2]> + Send + Sync + 'static, done: impl Fn(&EventFd) -> bool) {
        let domains = Domains::new().expect("a memfd");
        let block = domains.own().block();
        let doorbells = Doorbells::new();
        let (number, event) = doorbells.add().expect("a number");
        doorbells.watch(number, Arc::new(positions));
        block.file.realm().doorbell.bits[number as usize / 64].fetch_or(1 << (number % 64), Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| doorbells.run(block, &|| {}));
            let deadline = Instant::now() + Duration::from_secs(20);
            let mut is_done = done(&event);
            while !is_done && Instant::now() < deadline {
                std::thread::yield_now();
                is_done = done(&event);
            }
            doorbells.stop(block);
            assert!(is_done);
        });
    }

    #[test]
    fn there_is_load_while_somebody_rings_again_soon() {
        let begin = Instant::now();
        let mut load = Load { rung: begin, is_high: false };
        let mut look = |any, us| {
            load.looked(any, begin + Duration::from_micros(us));
            load.is_high
        };
        let seen = [(true, 1_000), (true, 2_000), (true, 2_100), (false, 2_150), (false, 2_250), (false, 2_300)];
        assert_eq!(seen.map(|(any, us)| look(any, us)), [false, false, true, true, true, false]);
        assert!(!look(true, 2_600));
    }

    #[test]
    fn a_reader_that_sleeps_beside_data_is_rung_for_again() {
        let rings = AtomicU64::new(0);
        rung_until(
            || Some([0, 16]),
            |event| {
                let rung = u64::from(event.clear());
                rings.fetch_add(rung, Ordering::Relaxed) + rung >= 3
            },
        );
    }

    #[test]
    fn a_ring_buffer_that_is_read_empty_is_left_alone_after_a_while() {
        let looks = Arc::new(AtomicU64::new(0));
        let counted = looks.clone();
        let positions = move || Some([counted.fetch_add(1, Ordering::Relaxed).min(1) * 16, 16]);
        let rings = AtomicU64::new(0);
        rung_until(positions, |event| {
            rings.fetch_add(u64::from(event.clear()), Ordering::Relaxed);
            looks.load(Ordering::Relaxed) == 3
        });
        assert_eq!((looks.load(Ordering::Relaxed), rings.load(Ordering::Relaxed)), (3, 1));
    }
}
