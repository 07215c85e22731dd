//! Doorbells: how an agent wakes a loader's reader, and the server, without holding a file descriptor.
//!
//! An agent sets its buffer's bit in the realm block and wakes the futex if the server sleeps there. One
//! thread sleeps there; it turns bits into writes to the eventfds that loaders poll. While agents ring often, it looks at the bits
//! after pauses, which only a request or a buffer that fills ends: so no agent makes a system call, and the traced programs keep
//! their CPUs. What it reads is writable by every target of its domain: a bit set for nothing costs a spurious wake-up of one
//! reader, no more. Each domain has a thread of its own. Where other domains than the server's own ring, what they have written is
//! fetched first.
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

use ring3_layout::realm::{AWAKE, DOORBELL_REQUESTS, DOORBELLS_MAX, PAUSING, SLEEPING};
use ring3_uapi::Errno;
use rustix::event::EventfdFlags;

use super::domains::Block;
use crate::realm::process::{futex_wait, futex_wake};

/// The thread looks at the stop flag at least this often.
const SLEEP: Duration = Duration::from_millis(500);
/// A ring buffer that was rung for is looked at after this long, and after twice as long each time that its reader
/// does not move, at most every [`SLEEP`].
const LOOK: Duration = Duration::from_millis(1);

/// Under load the thread looks at the bits after a pause instead of sleeping until it is woken. The first pause is so long, and each
/// twice as long as the one before, up to [`PAUSE_MAX`], while there are events and no requests.
const PAUSE: Duration = Duration::from_micros(100);
/// See [`PAUSE`]. What a buffer may hold until then is bounded by [`ring3_maps::Wake::is_urgent`].
const PAUSE_MAX: Duration = Duration::from_micros(400);
/// No pause is shorter, whoever ends it: this bounds what a target can make the server do.
const PAUSE_MIN: Duration = Duration::from_micros(50);
/// There is load if somebody rings again so soon.
const LOAD_SPAN: Duration = Duration::from_micros(200);

/// What was found at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Nothing,
    /// Buffers have something to read.
    Events,
    /// The server is asked for something, or was woken for nothing.
    Requests,
}

/// How much is rung for.
struct Load {
    /// When somebody rang the last time.
    rung: Instant,
    /// How long the next pause is; `None`: there is no load.
    pause: Option<Duration>,
}

impl Load {
    fn looked(&mut self, found: Found, now: Instant) {
        let is_soon = now.saturating_duration_since(self.rung) < LOAD_SPAN;
        self.pause = match (found, self.pause) {
            (Found::Nothing, pause) => pause.filter(|_| is_soon),
            (Found::Events, Some(pause)) => Some((pause * 2).min(PAUSE_MAX)),
            (_, pause) => (is_soon || pause.is_some()).then_some(PAUSE),
        };
        if found != Found::Nothing {
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
    pub(in crate::realm) fn stop(&self, block: &Block) {
        self.stopping.store(true, Ordering::Release);
        let doorbell = &block.file.realm().doorbell;
        doorbell.sequence.fetch_add(1, Ordering::SeqCst);
        futex_wake(&doorbell.sequence);
    }

    /// The doorbell thread: sleeps, rings, and calls `requests` when an agent asks for the server.
    pub(in crate::realm) fn run(&self, block: &Block, requests: &dyn Fn()) {
        let mut watched = BTreeMap::new();
        // (The default slack, 50 us, would make each pause longer.)
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut load = Load { rung: Instant::now(), pause: None };
        while !self.stopping.load(Ordering::Acquire) && !block.ended.load(Ordering::Acquire) {
            let found = match load.pause {
                Some(pause) => {
                    wait_a_little(block, pause);
                    self.ring(block, requests, &mut watched)
                }
                None => self.rest(block, requests, &mut watched),
            };
            load.looked(found, Instant::now());
            self.look(&mut watched);
        }
    }

    /// Sleeps until an agent rings, or a ring buffer is to be looked at.
    fn rest(&self, block: &Block, requests: &dyn Fn(), watched: &mut BTreeMap<u32, Watched>) -> Found {
        let doorbell = &block.file.realm().doorbell;
        let sequence = doorbell.sequence.load(Ordering::SeqCst);
        doorbell.sleeping.store(SLEEPING, Ordering::SeqCst);
        let mut found = self.ring(block, requests, watched);
        if found == Found::Nothing {
            let now = Instant::now();
            let next = watched.values().map(|ring: &Watched| ring.next.saturating_duration_since(now)).min();
            // (Who is woken for nothing is not to be woken again at once.)
            if futex_wait(&doorbell.sequence, sequence, next.map_or(SLEEP, |next| next.max(LOOK))) {
                found = Found::Events;
            }
        }
        doorbell.sleeping.store(AWAKE, Ordering::SeqCst);
        found.max(self.ring(block, requests, watched))
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
                ring.wait = (ring.wait * 2).min(SLEEP);
            } else {
                ring.wait = LOOK;
            }
            ring.positions = Some(positions);
            ring.next = now + ring.wait;
            true
        });
    }

    /// Takes all set bits and rings them.
    fn ring(&self, block: &Block, requests: &dyn Fn(), watched: &mut BTreeMap<u32, Watched>) -> Found {
        let mut found = Found::Nothing;
        for (index, word) in block.file.realm().doorbell.bits.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let number = index as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let is_request = number == DOORBELL_REQUESTS;
                found = found.max(if is_request { Found::Requests } else { Found::Events });
                if is_request {
                    requests();
                } else if let Some(bell) = self.bell(number) {
                    if block.number != 0 {
                        bell.fetch.iter().for_each(|fetch| fetch(block.number));
                        continue;
                    }
                    bell.event.signal();
                    if bell.positions.is_some() {
                        let fresh = || Watched { positions: None, next: Instant::now() + LOOK, wait: LOOK };
                        watched.entry(number).or_insert_with(fresh);
                    }
                }
            }
        }
        found
    }
}

/// Waits for so long, or until a request is made or a buffer fills, but at least [`PAUSE_MIN`].
fn wait_a_little(block: &Block, pause: Duration) {
    let begin = Instant::now();
    let doorbell = &block.file.realm().doorbell;
    let sequence = doorbell.sequence.load(Ordering::SeqCst);
    doorbell.sleeping.store(PAUSING, Ordering::SeqCst);
    let [first, ..] = &doorbell.bits;
    if first.load(Ordering::SeqCst) & 1 << DOORBELL_REQUESTS == 0 {
        futex_wait(&doorbell.sequence, sequence, pause);
    }
    doorbell.sleeping.store(AWAKE, Ordering::SeqCst);
    let waited = begin.elapsed();
    if waited < PAUSE_MIN {
        std::thread::sleep(PAUSE_MIN - waited);
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
        use Found::{Events, Nothing, Requests};
        let begin = Instant::now();
        let mut load = Load { rung: begin, pause: None };
        let mut look = |found, us| {
            load.looked(found, begin + Duration::from_micros(us));
            load.pause.map_or(0, |pause| pause.as_micros())
        };
        let seen = [(Events, 1_000), (Events, 2_000), (Events, 2_100), (Nothing, 2_150), (Nothing, 2_300)];
        assert_eq!(seen.map(|(found, us)| look(found, us)), [0, 0, 100, 100, 0]);
        let seen = [(Events, 2_350), (Events, 2_450), (Events, 2_650), (Events, 3_050), (Requests, 3_150)];
        assert_eq!(seen.map(|(found, us)| look(found, us)), [0, 100, 200, 400, 100]);
        assert_eq!(look(Nothing, 3_400), 0);
    }

    #[test]
    fn requests_and_those_who_hurry_end_a_pause() {
        let long = Duration::from_secs(3600);
        let domains = Domains::new().expect("a memfd");
        let block = domains.own().block();
        let doorbell = &block.file.realm().doorbell;
        std::thread::scope(|scope| {
            scope.spawn(|| wait_a_little(block, long));
            while doorbell.sleeping.load(Ordering::SeqCst) != PAUSING {
                std::thread::yield_now();
            }
            doorbell.sequence.fetch_add(1, Ordering::SeqCst);
            futex_wake(&doorbell.sequence);
        });
        doorbell.bits[0].store(1 << DOORBELL_REQUESTS, Ordering::SeqCst);
        wait_a_little(block, long);
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
