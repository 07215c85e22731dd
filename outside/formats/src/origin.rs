//! Where and when a trace was recorded.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Where and when a trace was recorded: what its files say about that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The machine.
    pub hostname: String,
    /// The kernel's release.
    pub kernel: String,
    /// What was recorded: the command line.
    pub command: String,
    /// `CLOCK_REALTIME` less `CLOCK_MONOTONIC`, in nanoseconds: added to a record's time it gives the time since 1970.
    pub offset_ns: i64,
    /// `CLOCK_MONOTONIC` at the start, in nanoseconds.
    pub begin_ns: u64,
    /// A number that no other trace has.
    pub uuid: [u8; 16],
}

impl Origin {
    /// This machine, now.
    pub fn here(command: &str) -> io::Result<Origin> {
        let name = rustix::system::uname();
        let mut uuid = [0; 16];
        getrandom(&mut uuid, GetRandomFlags::empty())?;
        // Version 4, variant 1 (RFC 9562, section 5.4).
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Ok(Origin {
            hostname: name.nodename().to_string_lossy().into_owned(),
            kernel: name.release().to_string_lossy().into_owned(),
            command: command.to_owned(),
            offset_ns: offset_ns(),
            begin_ns: clock_ns(ClockId::Monotonic),
            uuid,
        })
    }

    /// The number in its usual form.
    pub fn uuid_text(&self) -> String {
        let mut text = String::new();
        for (at, byte) in self.uuid.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text += &format!("{byte:02x}");
        }
        text
    }
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The clocks cannot be read at one moment: of some tries the one during which the least time passed is the most exact.
fn offset_ns() -> i64 {
    let measure = || {
        let before = clock_ns(ClockId::Monotonic);
        let real = clock_ns(ClockId::Realtime);
        let passed = clock_ns(ClockId::Monotonic) - before;
        (passed, real as i64 - (before + passed / 2) as i64)
    };
    (0..5).map(|_| measure()).min().expect("five are not none").1
}
