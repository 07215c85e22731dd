//! What cannot be done in a process for a moment, and when it is tried again.

use std::time::{Duration, Instant};

use ring3_inject as inject;

use crate::realm::target::STOP_WITHIN;

/// Pauses between rounds, from the first to the longest while somebody waits, and in the background. They grow: each round stops
/// the process, and a thread must run to leave, with as many others waiting for a turn of milliseconds on its CPU.
pub(in crate::realm) const FIRST_PAUSE: Duration = Duration::from_micros(500);
pub(in crate::realm) const PAUSE_MAX_AWAITED: Duration = Duration::from_millis(128);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A process that is held is looked at again after so long.
const HELD_PAUSE: Duration = Duration::from_millis(16);

/// When the next round may begin.
#[derive(Clone, Copy, Debug)]
pub(in crate::realm) struct RetryDelay {
    until: Instant,
    pause: Duration,
    /// Somebody may wait for the result until then.
    awaited_until: Instant,
}

impl RetryDelay {
    /// In the background.
    pub(in crate::realm) fn new() -> RetryDelay {
        RetryDelay::awaited_for(Duration::ZERO)
    }

    /// While somebody waits, for so long at most, and then in the background.
    pub(in crate::realm) fn awaited_for(within: Duration) -> RetryDelay {
        let now = Instant::now();
        RetryDelay { until: now, pause: FIRST_PAUSE, awaited_until: now + within }
    }

    /// Whether it is time for another attempt at a process; if so, the next pause begins. `is_held`: whether an attempt would be
    /// in vain at present ([`is_held`]); then none is counted.
    pub(in crate::realm) fn is_over(&mut self, is_held: impl FnOnce() -> bool) -> bool {
        let now = Instant::now();
        if now < self.until {
            return false;
        }
        if is_held() {
            self.until = Instant::now() + HELD_PAUSE;
            return false;
        }
        let longest = if now < self.awaited_until { PAUSE_MAX_AWAITED } else { PAUSE_MAX };
        self.until = now + self.pause;
        self.pause = (self.pause * 2).min(longest);
        true
    }
}

/// Whether an error will go away by itself: the process is held for a moment by another ring3 server, which cleans
/// it up, or by one that is just dying.
pub(in crate::realm) fn is_passing(error: &inject::Error) -> bool {
    let inject::Error::AlreadyTraced { tracer, .. } = error else { return false };
    match std::fs::read_link(format!("/proc/{tracer}/exe")) {
        Ok(exe) => std::fs::read_link("/proc/self/exe").is_ok_and(|own| own == exe),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Tries again while the error is a passing one.
pub(in crate::realm) fn patiently<T>(
    mut attempt: impl FnMut() -> Result<T, inject::Error>,
) -> Result<T, inject::Error> {
    let deadline = Instant::now() + STOP_WITHIN;
    loop {
        match attempt() {
            Err(error) if is_passing(&error) && Instant::now() < deadline => std::thread::sleep(FIRST_PAUSE),
            done => return done,
        }
    }
}
