//! Calls, errors and latencies of each kind of event.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ring3_event::{Record, Value};
use ring3_recorder::program::count::{BUCKETS, at, bucket, bucket_end};
use ring3_recorder::syscalls::{DURATION, RESULT};

/// Counts of the events of a session.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    rows: BTreeMap<String, Row>,
}

/// One kind of event.
#[derive(Clone, Debug)]
struct Row {
    calls: u64,
    errors: u64,
    total_ns: u64,
    max_ns: u64,
    /// Whether these events have a duration.
    timed: bool,
    latencies: Vec<u64>,
}

impl Default for Row {
    fn default() -> Row {
        Row { calls: 0, errors: 0, total_ns: 0, max_ns: 0, timed: false, latencies: vec![0; BUCKETS] }
    }
}

impl Row {
    /// The latency that this share of the calls does not exceed.
    fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.calls as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.latencies.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return bucket_end(index).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

impl Summary {
    /// Counts an event.
    pub fn add(&mut self, record: &Record<'_>) {
        let row = self.rows.entry(record.of.name.clone()).or_default();
        row.calls += 1;
        row.errors += u64::from(matches!(record.value(RESULT), Some(Value::Int(-4095..=-1))));
        if let Some(Value::Int(ns)) = record.value(DURATION) {
            let ns = ns.clamp(0, u64::MAX.into()) as u64;
            row.timed = true;
            row.total_ns += ns;
            row.max_ns = row.max_ns.max(ns);
            row.latencies[bucket(ns)] += 1;
        }
    }

    /// Adds what a CPU has counted of a kind of event: a value of [`ring3_recorder::program::count`].
    pub(crate) fn add_counts(&mut self, name: &str, timed: bool, value: &[u8]) {
        let number = |at: usize| {
            value.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")))
        };
        if number(at::CALLS) == 0 {
            return;
        }
        let row = self.rows.entry(name.to_owned()).or_default();
        row.timed |= timed;
        row.calls += number(at::CALLS);
        row.errors += number(at::ERRORS);
        row.total_ns += number(at::TOTAL);
        row.max_ns = row.max_ns.max(number(at::MAX));
        row.latencies.iter_mut().enumerate().for_each(|(index, count)| *count += number(at::BUCKETS + 8 * index));
    }

    /// A table of `strace -c`'s columns and three of the latency, the most expensive call first.
    pub fn table(&self) -> String {
        let mut rows: Vec<(&String, &Row)> = self.rows.iter().collect();
        rows.sort_by_key(|(name, row)| (std::cmp::Reverse(row.total_ns), std::cmp::Reverse(row.calls), *name));
        let all_ns: u64 = rows.iter().map(|(_, row)| row.total_ns).sum();
        let mut text =
            String::from("% time     seconds  usecs/call    p50 us    p99 us    max us     calls    errors event\n");
        text.push_str(RULE);
        for (name, row) in &rows {
            let share = if all_ns == 0 { 0.0 } else { 100.0 * row.total_ns as f64 / all_ns as f64 };
            let seconds = row.total_ns as f64 / 1e9;
            let each = row.total_ns as f64 / 1e3 / row.calls.max(1) as f64;
            let us = |ns: u64| if row.timed { format!("{:.1}", ns as f64 / 1e3) } else { "-".to_owned() };
            let (middle, high, most) = (us(row.quantile(0.5)), us(row.quantile(0.99)), us(row.max_ns));
            let errors = if row.errors == 0 { String::new() } else { row.errors.to_string() };
            let _ = writeln!(
                text,
                "{share:6.2} {seconds:11.6} {each:11.1} {middle:>9} {high:>9} {most:>9} {:9} {errors:>9} {name}",
                row.calls
            );
        }
        text.push_str(RULE);
        let (calls, errors) =
            rows.iter().fold((0, 0), |(calls, errors), (_, row)| (calls + row.calls, errors + row.errors));
        let _ = writeln!(
            text,
            "100.00 {:11.6} {:11.1} {:>9} {:>9} {:>9} {calls:9} {:>9} total",
            all_ns as f64 / 1e9,
            all_ns as f64 / 1e3 / f64::max(calls as f64, 1.0),
            "",
            "",
            "",
            if errors == 0 { String::new() } else { errors.to_string() }
        );
        text
    }

    /// A histogram of each event's latencies: a line for each power of two that occurred.
    pub fn histograms(&self) -> String {
        const BAR_CHARS: u64 = 40;
        let mut text = String::new();
        for (name, row) in self.rows.iter().filter(|(_, row)| row.timed) {
            let _ = writeln!(text, "\n{name}: {} calls", row.calls);
            let mut powers: BTreeMap<u32, u64> = BTreeMap::new();
            for (index, count) in row.latencies.iter().enumerate().filter(|(_, count)| **count > 0) {
                *powers.entry(bucket_end(index).max(1).ilog2()).or_default() += count;
            }
            let most = powers.values().max().copied().unwrap_or(1);
            let (first, last) = (powers.keys().min().copied(), powers.keys().max().copied());
            for power in first.unwrap_or(1)..=last.unwrap_or(0) {
                let count = powers.get(&power).copied().unwrap_or(0);
                let bar = "@".repeat((count * BAR_CHARS).div_ceil(most) as usize);
                let range = format!("[{}, {})", human(1 << power), human(2_u64.saturating_pow(power + 1)));
                let _ = writeln!(text, "{range:<20} {count:>10} |{bar:<40}|");
            }
        }
        text
    }
}

/// A line of dashes, as wide as the columns.
const RULE: &str =
    "------ ----------- ----------- --------- --------- --------- --------- --------- ----------------\n";

/// A time in the unit that makes it shortest.
fn human(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{:.1}us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.1}s", ns as f64 / 1e9),
    }
}
