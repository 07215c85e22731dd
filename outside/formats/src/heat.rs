//! Heat maps of latencies.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ring3_event::EventType;

use crate::Sink;
use crate::flame::duration;
use crate::svg::Svg;
use crate::types::{Types, bad};

/// Draws how long events took: a map for each event with a duration, those with the most events first. To the right is the time
/// at which events ended; upwards is the logarithm of the duration; the darker, the more events.
pub struct HeatMap<W: Write> {
    to: W,
    types: Types,
    /// By the event's number.
    maps: BTreeMap<u32, Counts>,
    /// The first event's column begins here; in nanoseconds.
    begin_ns: Option<u64>,
    /// Nanoseconds of a column.
    column_ns: u64,
    lost: u64,
}

/// By column and row. Row `n` is for durations from 2^n to 2^(n+1) - 1 ns, and row 0 also for 0.
type Counts = BTreeMap<(u32, u32), u64>;

/// Columns at most: when time needs more, each gets twice as long.
const COLUMNS_MAX: u64 = 120;
const MAPS_MAX: usize = 20;
const COLUMN: f64 = 8.0;
const ROW: f64 = 9.0;
const LEFT: f64 = 80.0;
const HEADING: f64 = 24.0;
const FOOT: f64 = 30.0;

impl<W: Write> HeatMap<W> {
    /// A picture, which is written at the end.
    pub fn new(to: W) -> HeatMap<W> {
        HeatMap { to, types: Types::default(), maps: BTreeMap::new(), begin_ns: None, column_ns: 1 << 10, lost: 0 }
    }

    /// Makes columns longer until there is one for a time.
    fn column(&mut self, time_ns: u64) -> u32 {
        let begin = *self.begin_ns.get_or_insert(time_ns);
        // (Before the first: from another ring buffer.)
        let passed = time_ns.saturating_sub(begin);
        while passed / self.column_ns >= COLUMNS_MAX {
            self.column_ns *= 2;
            for map in self.maps.values_mut() {
                let old = std::mem::take(map);
                for ((column, row), count) in old {
                    *map.entry((column / 2, row)).or_default() += count;
                }
            }
        }
        (passed / self.column_ns) as u32
    }

    fn draw(&self) -> String {
        let total = |counts: &Counts| counts.values().sum::<u64>();
        let mut maps: Vec<_> = self.types.iter().filter_map(|of| Some((of, self.maps.get(&of.id)?))).collect();
        maps.sort_by_key(|(_, counts)| std::cmp::Reverse(total(counts)));
        let left_out = maps.len().saturating_sub(MAPS_MAX);
        let mut svg = Svg::new((LEFT + COLUMN * COLUMNS_MAX as f64 + 20.0) as u32);
        let mut top = 10.0;
        for (of, counts) in maps.into_iter().take(MAPS_MAX) {
            let heading = format!("{}: {} events", of.full_name(), total(counts));
            svg.text((LEFT, top + 12.0), "start", &heading);
            top = self.draw_map(&mut svg, counts, top + HEADING) + FOOT;
        }
        let mut notes = vec![];
        if left_out > 0 {
            notes.push(format!("{left_out} more kinds of events are not drawn"));
        }
        if self.lost > 0 {
            notes.push(format!("{} events were lost", self.lost));
        }
        svg.text((LEFT, top), "start", &notes.join("; "));
        svg.finish(top as u32 + 10)
    }

    /// The result is where it ends.
    fn draw_map(&self, svg: &mut Svg, counts: &Counts, top: f64) -> f64 {
        let rows = counts.keys().map(|(_, row)| *row);
        let (lowest, highest) = (rows.clone().min().unwrap_or(0), rows.max().unwrap_or(0));
        let most = counts.values().copied().max().unwrap_or(1);
        for ((column, row), count) in counts {
            let (x, y) = (LEFT + COLUMN * f64::from(*column), top + ROW * f64::from(highest - row));
            let from = seconds(u64::from(*column) * self.column_ns);
            let title = format!("{from}, {}: {count} events", range(*row));
            svg.rectangle((x, y), (COLUMN, ROW), &shade(*count, most), &title);
        }
        for row in (lowest..=highest).filter(|row| (highest - row).is_multiple_of(2)) {
            let y = top + ROW * f64::from(highest - row) + 8.0;
            svg.text((LEFT - 6.0, y), "end", &seconds(1 << row));
        }
        let bottom = top + ROW * f64::from(highest - lowest + 1);
        let width = COLUMN * COLUMNS_MAX as f64;
        svg.rectangle((LEFT, bottom), (width, 0.5), "black", "time since the first event");
        for quarter in 0..=4_u32 {
            let text = seconds(COLUMNS_MAX * self.column_ns / 4 * u64::from(quarter));
            let anchor = if quarter == 4 { "end" } else { "start" };
            svg.text((LEFT + width * f64::from(quarter) / 4.0, bottom + 12.0), anchor, &text);
        }
        bottom
    }
}

/// From yellow to dark red, by the logarithm.
fn shade(count: u64, most: u64) -> String {
    let part = ((count + 1) as f64).ln() / ((most + 1) as f64).ln();
    let (red, green, blue) = (255.0 - 140.0 * part, 235.0 * (1.0 - part), 150.0 * (1.0 - part));
    format!("#{:02x}{:02x}{:02x}", red as u8, green as u8, blue as u8)
}

fn range(row: u32) -> String {
    let from = if row == 0 { "0 ns".to_owned() } else { seconds(1 << row) };
    format!("{from} to {}", seconds((1_u64 << row) - 1 + (1 << row)))
}

/// In the unit that fits.
fn seconds(ns: u64) -> String {
    let unit = |divisor: f64, unit: &str| {
        let number = ns as f64 / divisor;
        if number < 10.0 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
    };
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => unit(1e3, "us"),
        1_000_000..1_000_000_000 => unit(1e6, "ms"),
        _ => unit(1e9, "s"),
    }
}

impl<W: Write> Sink for HeatMap<W> {
    fn event_type(&mut self, of: &EventType) -> io::Result<()> {
        self.types.add(of);
        Ok(())
    }

    fn record(&mut self, _: u32, bytes: &[u8]) -> io::Result<()> {
        let record = self.types.parse(bytes)?;
        let Some(duration) = duration(&record) else { return Ok(()) };
        let (event, time_ns) = (record.header.event, record.header.time_ns);
        let column = self.column(time_ns);
        *self.maps.entry(event).or_default().entry((column, duration.max(1).ilog2())).or_default() += 1;
        Ok(())
    }

    fn lost(&mut self, _: u32, count: u64) -> io::Result<()> {
        self.lost += count;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.maps.is_empty() {
            return Err(bad("no event has a duration: record some that have an end, such as system calls".into()));
        }
        let picture = self.draw();
        self.to.write_all(picture.as_bytes())?;
        self.to.flush()
    }
}
