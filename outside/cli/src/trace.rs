//! `ring3 trace`: events of a program as lines of text, or as a table.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ring3_event::Record;
use ring3_trace::{Summary, Text};

use crate::Failure;
use crate::traced::{Begun, For, What};

/// How long the reader sleeps when the buffer is empty: at first, and at most.
pub(crate) const SLEEP: Duration = Duration::from_micros(500);
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(20);
/// How often `--top` shows the table.
const REFRESH: Duration = Duration::from_secs(1);

/// `ring3 trace`
#[derive(Debug, Args)]
pub(crate) struct Trace {
    #[command(flatten)]
    what: What,
    /// Write to this file instead of standard error
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show how long each call took, in seconds
    #[arg(short = 'T', long = "syscall-times")]
    duration: bool,
    /// Show when each call ended, in seconds since 1970
    #[arg(short = 't', long = "timestamps")]
    time: bool,
    /// Show only a table of calls, errors and latencies when tracing ends
    #[arg(short = 'c', long = "summary-only")]
    summary_only: bool,
    /// Show the calls, and the table when tracing ends
    #[arg(short = 'C', long = "summary", conflicts_with = "summary_only")]
    summary: bool,
    /// With the table, show the latencies of each call as a histogram
    #[arg(long)]
    histogram: bool,
    /// Show the table of calls every second while tracing
    #[arg(long, conflicts_with_all = ["output", "summary"])]
    top: bool,
}

impl Trace {
    /// Whether only the table is shown: then events are counted where they happen, and none is lost.
    fn counts_only(&self) -> bool {
        self.summary_only || self.top
    }
}

pub(crate) fn run(wanted: &Trace) -> Result<ExitCode, Failure> {
    let out = open_output(wanted)?;
    let begun = match Begun::new(&wanted.what, if wanted.counts_only() { For::Counts } else { For::People })? {
        Ok(begun) => begun,
        Err(code) => return Ok(code),
    };
    let mut tracing = Tracing::new(wanted, begun, out);
    tracing.run()?;
    Ok(tracing.begun.exit_code())
}

fn open_output(wanted: &Trace) -> Result<Box<dyn Write>, String> {
    Ok(match &wanted.output {
        Some(path) => {
            let file = File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            Box::new(BufWriter::with_capacity(1 << 20, file))
        }
        None => Box::new(BufWriter::with_capacity(1 << 16, std::io::stderr())),
    })
}

/// What is traced, and what became of it.
struct Tracing<'a> {
    wanted: &'a Trace,
    begun: Begun,
    out: Box<dyn Write>,
    summary: Summary,
    /// The one thread that has been seen; `Some(None)`: there are several, and lines say which.
    thread: Option<Option<u32>>,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, ns.
    clock_offset_ns: u64,
    shown: Instant,
}

impl<'a> Tracing<'a> {
    fn new(wanted: &'a Trace, begun: Begun, out: Box<dyn Write>) -> Tracing<'a> {
        // (Lines of a file can be told apart by their threads, as those of `strace -f -o`.)
        let several = wanted.what.is_of_running() || wanted.output.is_some();
        Tracing {
            wanted,
            begun,
            out,
            summary: Summary::default(),
            thread: several.then_some(None),
            clock_offset_ns: clock_offset_ns(),
            shown: Instant::now(),
        }
    }

    /// Shows what is recorded until the end, and the rest of it.
    fn run(&mut self) -> Result<(), String> {
        let mut sleep = SLEEP;
        loop {
            // (What was recorded before the end is in the buffer at the end.)
            let is_end = self.begun.has_ended();
            let count = self.read().map_err(|error| self.cannot_write(&error))?;
            if is_end && count == 0 {
                break;
            }
            if self.wanted.top && self.shown.elapsed() >= REFRESH {
                self.refresh();
            }
            if count == 0 {
                self.out.flush().map_err(|error| self.cannot_write(&error))?;
                std::thread::sleep(sleep);
                sleep = (sleep * 2).min(SLEEP_MAX);
            } else {
                sleep = SLEEP;
            }
        }
        self.finish().map_err(|error| self.cannot_write(&error))
    }

    fn cannot_write(&self, error: &std::io::Error) -> String {
        match &self.wanted.output {
            Some(path) => format!("cannot write {}: {error}", path.display()),
            None => format!("cannot write: {error}"),
        }
    }

    fn read(&mut self) -> std::io::Result<usize> {
        let Tracing { wanted, begun, out, summary, thread, clock_offset_ns, .. } = self;
        let counted = wanted.summary || wanted.histogram;
        let mut result = Ok(());
        let count = begun.session.read(|of, bytes| {
            let Some(mut record) = Record::parse(of, bytes) else { return };
            if counted {
                summary.add(&record);
            }
            if result.is_err() {
                return;
            }
            let tid = record.header.tid;
            if thread.get_or_insert(Some(tid)).is_some_and(|only| only != tid) {
                *thread = Some(None);
            }
            record.header.time_ns = record.header.time_ns.wrapping_add(*clock_offset_ns);
            let text = Text {
                thread: *thread == Some(None),
                comm: wanted.what.all,
                time: wanted.time,
                duration: wanted.duration,
            };
            result = writeln!(out, "{}", text.line(&record));
        });
        result.map(|()| count)
    }

    fn refresh(&mut self) {
        self.look();
        const CLEAR: &str = "\x1b[H\x1b[J";
        let clear = if std::io::stderr().is_terminal() { CLEAR } else { "" };
        let _ = write!(self.out, "{clear}{}", self.summary.table()).and_then(|()| self.out.flush());
        self.shown = Instant::now();
    }

    /// Takes the counts over, if it is the programs that count.
    fn look(&mut self) {
        if self.wanted.counts_only()
            && let Ok(counts) = self.begun.session.counts()
        {
            self.summary = counts;
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.look();
        if self.wanted.summary_only || self.wanted.summary || self.wanted.top {
            write!(self.out, "{}", self.summary.table())?;
        }
        if self.wanted.histogram {
            write!(self.out, "{}", self.summary.histograms())?;
        }
        self.out.flush()?;
        self.begun.tell_lost();
        Ok(())
    }
}

fn clock_offset_ns() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    ns(ClockId::Realtime).wrapping_sub(ns(ClockId::Monotonic))
}
