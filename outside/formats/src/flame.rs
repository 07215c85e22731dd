//! Flame graphs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ring3_event::{EventType, Record, Value};

use crate::svg::Svg;
use crate::types::Types;
use crate::{Sink, Symbols, show};

/// What the width of a frame means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// How many events.
    #[default]
    Count,
    /// How long the events took together. Events without a duration count for nothing.
    Time,
}

/// Draws where events come from: below, the threads' names; above, the functions of their stacks, the outermost first; at the
/// top, the events. Events without a stack are on their provider instead.
pub struct FlameGraph<W: Write> {
    to: W,
    types: Types,
    symbols: Box<dyn Symbols>,
    weight: Weight,
    root: Frame,
    frames: usize,
    lost: u64,
}

#[derive(Default)]
struct Frame {
    weight: u64,
    above: BTreeMap<String, Frame>,
}

/// Frames at most: those that come later are in the frame below them.
const FRAMES_MAX: usize = 1 << 18;
const WIDTH: u32 = 1200;
const MARGIN: f64 = 10.0;
const HEADING: f64 = 30.0;
const ROW: f64 = 16.0;
/// A frame that is narrower, in pixels, is not drawn.
const NARROWEST: f64 = 0.2;
/// Width of a letter, in pixels.
const LETTER: f64 = 6.7;

impl<W: Write> FlameGraph<W> {
    /// A picture, which is written at the end.
    pub fn new(to: W, weight: Weight, symbols: Box<dyn Symbols>) -> FlameGraph<W> {
        FlameGraph { to, types: Types::default(), symbols, weight, root: Frame::default(), frames: 0, lost: 0 }
    }

    fn draw(&self) -> String {
        let unit = match self.weight {
            Weight::Count => "events",
            Weight::Time => "ns",
        };
        let depth = depth(&self.root);
        let height = HEADING + ROW * f64::from(depth) + MARGIN;
        let mut svg = Svg::new(WIDTH);
        let lost = if self.lost == 0 { String::new() } else { format!("; {} events were lost", self.lost) };
        let heading = format!("{} {unit}{lost}", self.root.weight);
        svg.text((MARGIN, 18.0), "start", &heading);
        let scale = (f64::from(WIDTH) - 2.0 * MARGIN) / self.root.weight.max(1) as f64;
        let picture = Picture { scale, unit, bottom: height - MARGIN - ROW, total: self.root.weight };
        picture.frame(&mut svg, ("all", &self.root), (MARGIN, 0));
        svg.finish(height as u32)
    }
}

fn depth(frame: &Frame) -> u32 {
    1 + frame.above.values().map(depth).max().unwrap_or(0)
}

struct Picture {
    scale: f64,
    unit: &'static str,
    bottom: f64,
    total: u64,
}

impl Picture {
    fn frame(&self, svg: &mut Svg, (name, frame): (&str, &Frame), (x, row): (f64, u32)) {
        let width = frame.weight as f64 * self.scale;
        if width < NARROWEST {
            return;
        }
        let y = self.bottom - ROW * f64::from(row);
        let percent = 100.0 * frame.weight as f64 / self.total.max(1) as f64;
        let title = format!("{name}: {} {} ({percent:.2} %)", frame.weight, self.unit);
        svg.rectangle((x, y), ((width - 0.5).max(NARROWEST), ROW - 1.0), &colour(name), &title);
        let letters = ((width - 6.0) / LETTER) as usize;
        if letters >= 3 {
            let short = |name: &str| name.chars().take(letters - 2).chain("..".chars()).collect();
            let text = if name.chars().count() <= letters { name.to_owned() } else { short(name) };
            svg.text((x + 3.0, y + 11.5), "start", &text);
        }
        let mut x = x;
        for (name, above) in &frame.above {
            self.frame(svg, (name, above), (x, row + 1));
            x += above.weight as f64 * self.scale;
        }
    }
}

/// A warm colour; the same name has the same.
fn colour(name: &str) -> String {
    // FNV-1a.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("rgb({},{},{})", 205 + hash % 50, 90 + (hash >> 8) % 120, 30 + (hash >> 16) % 50)
}

impl<W: Write> Sink for FlameGraph<W> {
    fn event_type(&mut self, of: &EventType) -> io::Result<()> {
        self.types.add(of);
        Ok(())
    }

    fn record(&mut self, _: u32, bytes: &[u8]) -> io::Result<()> {
        let record = self.types.parse(bytes)?;
        let weight = match self.weight {
            Weight::Count => 1,
            Weight::Time => duration(&record).unwrap_or(0),
        };
        let path = path(&record, &mut *self.symbols);
        let mut frame = &mut self.root;
        frame.weight += weight;
        for name in path {
            if !frame.above.contains_key(&name) {
                if self.frames == FRAMES_MAX {
                    break;
                }
                self.frames += 1;
            }
            frame = frame.above.entry(name).or_default();
            frame.weight += weight;
        }
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
        let picture = self.draw();
        self.to.write_all(picture.as_bytes())?;
        self.to.flush()
    }
}

/// An event's duration, in nanoseconds.
pub(crate) fn duration(record: &Record<'_>) -> Option<u64> {
    match record.values[show::duration_field(&record.of.fields)?] {
        Value::Int(duration) => u64::try_from(duration).ok(),
        _ => None,
    }
}

fn path(record: &Record<'_>, symbols: &mut dyn Symbols) -> Vec<String> {
    let mut path = vec![show::escape(record.header.comm().as_bytes(), false)];
    match show::stack(&record.of.fields, &record.values) {
        Some(stack) => {
            let name =
                |address: &u64| symbols.name(record.header.pid, *address).unwrap_or_else(|| format!("{address:#x}"));
            path.extend(stack.iter().rev().map(name));
            path.push(record.of.full_name());
        }
        None => path.extend([record.of.provider.clone(), record.of.name.clone()]),
    }
    path
}
