//! `ring3 trace`: events of a program as lines of text, or as a table.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgAction, Args};
use ring3_event::Record;
use ring3_strace::raw_clock::time_of_day;
use ring3_trace::{Summary, Text};

use crate::Failure;
use crate::traced::{Begun, For, What, wrong};

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
    /// Write to this file instead of standard error; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show how long each call took, in seconds
    #[arg(short = 'T', long = "syscall-times")]
    duration: bool,
    /// Show when each call ended, in seconds since 1970; twice (-tt): the time of day with microseconds, as strace does
    #[arg(short = 't', long = "timestamps", action = ArgAction::Count)]
    time: u8,
    /// It is here for those who type it for strace
    #[arg(short = 'y', long = "decode-fds", action = ArgAction::Count, hide = true)]
    paths_of_descriptors: u8,
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
    if wanted.paths_of_descriptors > 0 {
        return Err(wrong("-y: `ring3 trace` shows no paths of descriptors; `ring3 load -- strace -y` does"));
    }
    let out = open_output(wanted)?;
    let begun = match Begun::new(&wanted.what, if wanted.counts_only() { For::Counts } else { For::People })? {
        Ok(begun) => begun,
        Err(code) => return Ok(code),
    };
    let mut tracing = Tracing::new(wanted, begun, out);
    let result = tracing.run();
    let begun = tracing.begun;
    if let Err(error) = result {
        let is_over =
            if begun.program().is_some() { "tracing has ended, the program runs on" } else { "tracing has ended" };
        say!("ring3: cannot write {}: {error}; {is_over}", name_of_output(wanted));
        begun.give_up();
        return Ok(ExitCode::FAILURE);
    }
    Ok(begun.exit_code())
}

fn open_output(wanted: &Trace) -> Result<Box<dyn Write>, String> {
    Ok(match &wanted.output {
        Some(path) if path == Path::new("-") => Box::new(BufWriter::with_capacity(1 << 16, std::io::stdout())),
        Some(path) => {
            let file = File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            Box::new(BufWriter::with_capacity(1 << 20, file))
        }
        None => Box::new(BufWriter::with_capacity(1 << 16, std::io::stderr())),
    })
}

/// Where the lines go, for messages.
fn name_of_output(wanted: &Trace) -> String {
    match &wanted.output {
        Some(path) if path == Path::new("-") => "to standard output".to_owned(),
        Some(path) => path.display().to_string(),
        None => "to standard error".to_owned(),
    }
}

/// What is traced, and what became of it.
struct Tracing<'a> {
    wanted: &'a Trace,
    begun: Begun,
    out: Box<dyn Write>,
    summary: Summary,
    /// The program's threads that have been seen and have not ended: with more than one, lines say which. `None`: all lines do.
    threads: Option<BTreeSet<u32>>,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, ns.
    clock_offset_ns: u64,
    shown: Instant,
}

impl<'a> Tracing<'a> {
    fn new(wanted: &'a Trace, begun: Begun, out: Box<dyn Write>) -> Tracing<'a> {
        // (Lines of a file can be told apart by their threads, as those of `strace -f -o`.)
        let threads = begun.program().filter(|_| wanted.output.is_none()).map(|program| BTreeSet::from([program]));
        Tracing {
            wanted,
            begun,
            out,
            summary: Summary::default(),
            threads,
            clock_offset_ns: clock_offset_ns(),
            shown: Instant::now(),
        }
    }

    /// Shows what is recorded until the end, and the rest of it.
    fn run(&mut self) -> std::io::Result<()> {
        let mut sleep = SLEEP;
        loop {
            // (What was recorded before the end is in the buffer at the end.)
            let is_end = self.begun.has_ended();
            let count = self.read()?;
            if is_end && count == 0 {
                break;
            }
            if self.wanted.counts_only() && self.shown.elapsed() >= REFRESH {
                match self.wanted.top {
                    true => self.refresh(),
                    // (The counts end with the server.)
                    false => drop(self.look()),
                }
            }
            if count == 0 {
                self.out.flush()?;
                std::thread::sleep(sleep);
                sleep = (sleep * 2).min(SLEEP_MAX);
            } else {
                sleep = SLEEP;
            }
        }
        self.finish()
    }

    fn read(&mut self) -> std::io::Result<usize> {
        let Tracing { wanted, begun, out, summary, threads, clock_offset_ns, .. } = self;
        let counted = wanted.summary || wanted.histogram;
        // (Lines show the ends of threads also where nobody has named that event.)
        let counts_ends = begun.names_ends;
        let mut result = Ok(());
        let count = begun.session.read(|of, bytes| {
            let Some(mut record) = Record::parse(of, bytes) else { return };
            if counted && (counts_ends || record.of.name != ring3_recorder::ends::NAME) {
                summary.add(&record);
            }
            if result.is_err() {
                return;
            }
            let tid = record.header.tid;
            let tells_thread = threads.as_mut().is_none_or(|threads| {
                threads.insert(tid);
                threads.len() > 1
            });
            if let Some(threads) = threads.as_mut().filter(|_| ring3_trace::is_end(record.of)) {
                threads.remove(&tid);
            }
            record.header.time_ns = record.header.time_ns.wrapping_add(*clock_offset_ns);
            let text = Text {
                thread: tells_thread,
                comm: wanted.what.all,
                time: time_format(wanted.time),
                duration: wanted.duration,
            };
            result = writeln!(out, "{}", text.line(&record));
        });
        result.map(|()| count)
    }

    fn refresh(&mut self) {
        let _ = self.look();
        const CLEAR: &str = "\x1b[H\x1b[J";
        let clear = if std::io::stderr().is_terminal() { CLEAR } else { "" };
        let _ = write!(self.out, "{clear}{}", self.summary.table()).and_then(|()| self.out.flush());
        self.shown = Instant::now();
    }

    /// Takes the counts over, if it is the programs that count; those of the last look stay if nobody has them any more.
    fn look(&mut self) -> std::io::Result<()> {
        if self.wanted.counts_only() {
            self.summary = self.begun.session.counts()?;
            self.shown = Instant::now();
        }
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        if self.look().is_err() {
            let since = self.shown.elapsed().as_secs_f64();
            say!("ring3: the counts ended with the server: the table has those of {since:.1} s before");
        }
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

/// How `-t`, so often, shows a time of `CLOCK_REALTIME` (ns). As with strace, `-ttt` is in seconds since 1970.
fn time_format(count: u8) -> Option<fn(u64) -> String> {
    const NS: u64 = 1_000_000_000;
    let since_1970: fn(u64) -> String = |ns| format!("{}.{:09}", ns / NS, ns % NS);
    let of_day: fn(u64) -> String = |ns| {
        let [hour, minute, second] = time_of_day((ns / NS) as i64);
        format!("{hour:02}:{minute:02}:{second:02}.{:06}", ns % NS / 1000)
    };
    match count {
        0 => None,
        2 => Some(of_day),
        _ => Some(since_1970),
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
