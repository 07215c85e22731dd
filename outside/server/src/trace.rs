//! Reading the trace rings (`bpf_trace_printk`) in the format of the kernel's `trace_pipe`.
//!
//! Each domain of targets has a ring; what is read of them is put together in one log, by the lines' times. What a line says of its
//! thread is the target's claim; of whose target it is, the server knows.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use ring3_event::is_unseen;
use ring3_layout::realm::{Realm, TRACE_ENTRIES, TRACE_TEXT_BYTES, TraceEntry};

/// Lines that were read.
#[derive(Debug, Default)]
pub(crate) struct TraceLog {
    lines: VecDeque<(u64, String)>,
    /// Number of the first of them.
    first: u64,
    /// The numbers before this one were given to readers: nothing is put before it any more.
    told: u64,
}

impl TraceLog {
    /// Reads what is in a ring from its line `from` on, where to continue is the result. `user`: of whose targets, if not of
    /// the server's own domain.
    pub(crate) fn add(&mut self, realm: &Realm, from: u64, user: Option<&str>) -> u64 {
        let (lines, next) = read(realm, from, user);
        for line in lines {
            self.put(line);
        }
        while self.lines.len() > TRACE_ENTRIES as usize {
            self.lines.pop_front();
            self.first += 1;
        }
        next
    }

    fn put(&mut self, line: (u64, String)) {
        let told = (self.told.saturating_sub(self.first) as usize).min(self.lines.len());
        let place = self.lines.iter().rposition(|(time, _)| *time <= line.0).map_or(0, |last| last + 1);
        self.lines.insert(place.max(told), line);
    }

    /// The lines from number `from` on, and the number to continue at.
    pub(crate) fn lines(&mut self, from: u64) -> (Vec<String>, u64) {
        self.told = self.first + self.lines.len() as u64;
        let skipped = from.saturating_sub(self.first) as usize;
        (self.lines.iter().skip(skipped).map(|(_, line)| line.clone()).collect(), self.told)
    }
}

/// Lines from number `from` on that are still in the ring, with their times, and the number to continue at.
/// Targets write here: lengths are clipped, torn lines skipped.
fn read(realm: &Realm, from: u64, user: Option<&str>) -> (Vec<(u64, String)>, u64) {
    let head = realm.trace_head.load(Acquire);
    let oldest = head.saturating_sub(u64::from(TRACE_ENTRIES));
    let mut lines = vec![];
    for number in from.max(oldest)..head {
        let entry = &realm.trace[(number % u64::from(TRACE_ENTRIES)) as usize];
        let done = number.wrapping_mul(2).wrapping_add(2);
        if entry.sequence.load(Acquire) != done {
            continue;
        }
        let line = (entry.time_ns.load(Relaxed), format_entry(entry, user));
        if entry.sequence.load(Acquire) == done {
            lines.push(line);
        }
    }
    (lines, head)
}

fn format_entry(entry: &TraceEntry, user: Option<&str>) -> String {
    let comm: Vec<u8> = entry.comm.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let text: Vec<u8> = entry.text.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let used = (entry.text_bytes.load(Relaxed) as usize).min(TRACE_TEXT_BYTES);
    let time = entry.time_ns.load(Relaxed);
    let until_nul = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let text = String::from_utf8_lossy(&bytes[..end]);
        // (A line with a break in it would look like two.)
        if user.is_some() { text.replace(is_unseen, "?") } else { text.into_owned() }
    };
    format!(
        "{:>16}-{:<7} [{:03}] {:>5}.{:06}{}: bpf_trace_printk: {}",
        until_nul(&comm),
        entry.tid.load(Relaxed),
        entry.cpu.load(Relaxed),
        time / 1_000_000_000,
        time / 1000 % 1_000_000,
        user.map_or(String::new(), |user| format!(" ({user})")),
        until_nul(&text[..used]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_rings_are_told_once_each_and_by_time_as_far_as_they_were_not_told_before() {
        let mut log = TraceLog::default();
        let put = |log: &mut TraceLog, lines: &[(u64, &str)]| {
            lines.iter().for_each(|(time, text)| log.put((*time, (*text).to_owned())));
        };
        put(&mut log, &[(1, "a"), (5, "c")]);
        put(&mut log, &[(3, "b")]);
        assert_eq!(log.lines(0), (vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], 3));
        put(&mut log, &[(2, "late"), (7, "d")]);
        assert_eq!(log.lines(3), (vec!["late".to_owned(), "d".to_owned()], 5));
        assert_eq!(log.lines(5), (vec![], 5));
    }
}
