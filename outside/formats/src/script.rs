//! Text in the form of `perf script`.

use std::fmt::Write as _;
use std::io::{self, Write};

use ring3_event::{EventType, Record};

use crate::types::Types;
use crate::{Sink, Symbols, show};

/// Writes a line for each event, as `perf script --ns` does: thread's name, process and thread, CPU, seconds, event, and fields.
/// An event with a stack has a line for each frame, and an empty line at the end.
pub struct Script<W: Write> {
    to: W,
    types: Types,
    symbols: Box<dyn Symbols>,
    line: String,
}

impl<W: Write> Script<W> {
    /// To a writer, which should have a buffer.
    pub fn new(to: W, symbols: Box<dyn Symbols>) -> Script<W> {
        Script { to, types: Types::default(), symbols, line: String::new() }
    }
}

impl<W: Write> Sink for Script<W> {
    fn event_type(&mut self, of: &EventType) -> io::Result<()> {
        self.types.add(of);
        Ok(())
    }

    fn record(&mut self, _: u32, bytes: &[u8]) -> io::Result<()> {
        let record = self.types.parse(bytes)?;
        self.line.clear();
        write_line(&mut self.line, &record, &mut *self.symbols);
        self.to.write_all(self.line.as_bytes())
    }

    fn lost(&mut self, stream: u32, count: u64) -> io::Result<()> {
        writeln!(self.to, "LOST {count} events of stream {stream}")
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn write_line(line: &mut String, record: &Record<'_>, symbols: &mut dyn Symbols) {
    let header = &record.header;
    let (seconds, rest) = (header.time_ns / 1_000_000_000, header.time_ns % 1_000_000_000);
    let comm = show::escape(header.comm().as_bytes(), false);
    _ = write!(line, "{comm:>16} {:>7}/{:<7} [{:03}] {seconds:>6}.{rest:09}: ", header.pid, header.tid, header.cpu);
    _ = write!(line, "{}:", record.of.full_name());
    let stack = show::stack(&record.of.fields, &record.values);
    for (field, value) in record.of.fields.iter().zip(&record.values) {
        if stack.is_none() || field.name != "stack" {
            _ = write!(line, " {}=", field.name);
            show::word(line, field, *value);
        }
    }
    line.push('\n');
    if let Some(stack) = stack {
        for address in stack {
            let name = symbols.name(header.pid, address).unwrap_or_else(|| "[unknown]".into());
            _ = writeln!(line, "\t{address:16x} {name}");
        }
        line.push('\n');
    }
}
