//! `ring3 trace`: system calls of a program as lines of text, or as a table.
//!
//! This process is the loader of the programs that record. The traced program is its child (`held.rs`).

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ring3_event::Record;
use ring3_llvm::Engine;
use ring3_recorder::syscalls;
use ring3_server::control::{Connection, Request};
use ring3_server::loader::{Compiling, LoadOptions};
use ring3_server::realm::Scope;
use ring3_trace::{Options, Session, Summary, Text};
use ring3_uapi::syscalls::{Syscall, TABLE};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::held::Held;
use crate::{Failure, launch, process};

/// How long the reader sleeps when the buffer is empty: at first, and at most.
const SLEEP: Duration = Duration::from_micros(500);
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// How often `--top` shows the table.
const REFRESH: Duration = Duration::from_secs(1);

/// `ring3 trace`
#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// Which events: system calls by name, groups (%file, %desc, %network, %process, %memory, %signal), `all`, separated by
    /// commas; behind a `!` all others
    #[arg(short, long = "events", value_name = "EVENTS", default_value = "all")]
    events: Vec<String>,
    /// Show only events for which this is true, such as 'ret < 0 && path ~ "/etc/*"'; docs/TRACING.md explains the language
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Trace this process, its children and the programs that they execute
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["command", "all"])]
    pid: Option<u32>,
    /// Trace all processes that you may trace
    #[arg(long, conflicts_with = "command")]
    all: bool,
    /// Write to this file instead of standard error
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show at most this many bytes of a buffer
    #[arg(short = 's', long = "string-limit", value_name = "BYTES", default_value_t = syscalls::BYTES_MAX_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=4096))]
    bytes_max: u32,
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
    /// Size of the buffer between the program and ring3, in MiB: a power of two
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    buffer: u32,
    /// The program to run and trace, and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// The command line is wrong.
fn wrong(why: impl Into<String>) -> Failure {
    Failure { why: why.into(), code: 2 }
}

pub(crate) fn run(wanted: &Trace) -> Result<ExitCode, Failure> {
    if wanted.command.is_empty() && wanted.pid.is_none() && !wanted.all {
        return Err(wrong("what is to be traced? Name a program, or give -p PID or --all"));
    }
    if !wanted.buffer.is_power_of_two() {
        return Err(wrong(format!("--buffer {}: the size must be a power of two, such as 32", wanted.buffer)));
    }
    let calls = chosen_calls(&wanted.events).map_err(wrong)?;
    let filter = wanted.filter.as_deref().map(ring3_filter::parse).transpose();
    let filter = filter.map_err(|error| wrong(format!("--filter: {error}")))?;
    let out = open_output(wanted)?;
    let connection = launch::server()?;
    launch::allow_tracer(connection.peer()?.0);
    let watched = wanted.pid.map(process::open).transpose()?;
    let mut child = match &wanted.command[..] {
        [] => None,
        command => match Held::spawn(command)? {
            Ok(child) => Some(child),
            Err(code) => return Ok(code),
        },
    };
    let family = child.as_ref().map(Held::id).or(wanted.pid);
    become_loader(family.map_or(Scope::All, Scope::Family), &connection)?;
    let options = Options { calls, bytes_max: wanted.bytes_max, buffer_bytes: wanted.buffer << 20, filter };
    let mut session = Session::open(&options)?;
    if let Some(pid) = family {
        connection.ask(&Request::Attach { pid, follow: true }, None)?;
    }
    let (stop, ignored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    // (Ctrl-C is for the program that runs in the foreground, and what it does then is traced.)
    let interrupted = if child.is_some() { ignored } else { stop.clone() };
    for (signal, flag) in [(SIGTERM, stop.clone()), (SIGINT, interrupted)] {
        signal_hook::flag::register(signal, flag).map_err(|error| error.to_string())?;
    }
    if let Some(child) = &child {
        session.skip_before_exec(child.id(), crate::held::NAME);
        child.resume()?;
    }
    let mut tracing = Tracing::new(wanted, session, out);
    let mut status = None;
    tracing.run(|| {
        status = child.as_mut().and_then(Held::status);
        status.is_some() || stop.load(Ordering::Relaxed) || watched.as_ref().is_some_and(process::has_ended)
    })?;
    Ok(status.unwrap_or(ExitCode::SUCCESS))
}

/// The system calls that `-e` names.
fn chosen_calls(events: &[String]) -> Result<Vec<&'static Syscall>, String> {
    let mut chosen = vec![false; TABLE.len()];
    for list in events {
        // (`trace=` is how strace writes it.)
        let list = list.strip_prefix("trace=").unwrap_or(list);
        let (others, list) = list.strip_prefix('!').map_or((false, list), |list| (true, list));
        let mut named = vec![false; TABLE.len()];
        for name in list.split(',') {
            if matches!(name, "all" | "syscalls") {
                named.fill(true);
                continue;
            }
            let calls = syscalls::named(name).ok_or_else(|| no_such_call(name))?;
            for call in calls {
                named[TABLE.iter().position(|row| row.number == call.number).expect("it is a row")] = true;
            }
        }
        chosen.iter_mut().zip(named).for_each(|(chosen, named)| *chosen |= named != others);
    }
    let calls: Vec<&Syscall> = TABLE.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(call, _)| call).collect();
    if calls.is_empty() { Err("-e leaves no system call to trace".to_owned()) } else { Ok(calls) }
}

fn no_such_call(name: &str) -> String {
    if name.starts_with('%') {
        let groups = syscalls::GROUPS.map(|group| format!("%{group}")).join(", ");
        return format!("-e {name}: there is no such group; groups are {groups}");
    }
    let is_near = |call: &&Syscall| {
        let shown = syscalls::shown_name(call);
        name.len() > 2 && (shown.contains(name) || name.contains(shown))
    };
    let near: Vec<&str> = TABLE.iter().filter(is_near).map(syscalls::shown_name).take(5).collect();
    let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) };
    format!("-e {name}: there is no such system call{hint}")
}

/// From now on this process's bpf(2) calls are answered by the server.
fn become_loader(scope: Scope, connection: &Connection) -> Result<(), String> {
    let listener = ring3_server::loader::install_filter()?;
    let compiling = Compiling { engine: Engine::Jit, harden: false };
    let options = LoadOptions { compiling, scope, trust: false, budget: None };
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    connection.ask(&Request::Load { command, options }, Some(listener.as_fd()))?;
    Ok(())
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
    session: Session,
    out: Box<dyn Write>,
    summary: Summary,
    /// The one thread that has been seen; `Some(None)`: there are several, and lines say which.
    thread: Option<Option<u32>>,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, ns.
    clock_offset_ns: u64,
    shown: Instant,
}

impl<'a> Tracing<'a> {
    fn new(wanted: &'a Trace, session: Session, out: Box<dyn Write>) -> Tracing<'a> {
        let several = wanted.all || wanted.pid.is_some();
        Tracing {
            wanted,
            session,
            out,
            summary: Summary::default(),
            thread: several.then_some(None),
            clock_offset_ns: clock_offset_ns(),
            shown: Instant::now(),
        }
    }

    /// Shows what is recorded until `ended` says so, and the rest of it.
    fn run(&mut self, mut ended: impl FnMut() -> bool) -> Result<(), String> {
        let mut sleep = SLEEP;
        loop {
            // (What was recorded before the end is in the buffer at the end.)
            let is_end = ended();
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
        let Tracing { wanted, session, out, summary, thread, clock_offset_ns, .. } = self;
        let lines = !(wanted.summary_only || wanted.top);
        let counted = !lines || wanted.summary;
        let mut result = Ok(());
        let count = session.read(|of, bytes| {
            let Some(mut record) = Record::parse(of, bytes) else { return };
            if counted {
                summary.add(&record);
            }
            if !lines || result.is_err() {
                return;
            }
            let tid = record.header.tid;
            if thread.get_or_insert(Some(tid)).is_some_and(|only| only != tid) {
                *thread = Some(None);
            }
            record.header.time_ns = record.header.time_ns.wrapping_add(*clock_offset_ns);
            let text = Text {
                thread: *thread == Some(None),
                comm: wanted.all,
                time: wanted.time,
                duration: wanted.duration,
            };
            result = writeln!(out, "{}", text.line(&record));
        });
        result.map(|()| count)
    }

    fn refresh(&mut self) {
        const CLEAR: &str = "\x1b[H\x1b[J";
        let clear = if std::io::stderr().is_terminal() { CLEAR } else { "" };
        let _ = write!(self.out, "{clear}{}", self.summary.table()).and_then(|()| self.out.flush());
        self.shown = Instant::now();
    }

    fn finish(&mut self) -> std::io::Result<()> {
        if self.wanted.summary_only || self.wanted.summary || self.wanted.top {
            write!(self.out, "{}", self.summary.table())?;
        }
        if self.wanted.histogram {
            write!(self.out, "{}", self.summary.histograms())?;
        }
        self.out.flush()?;
        let lost = self.session.lost();
        if lost.buffer_full > 0 {
            eprintln!("ring3: {} events were lost: the buffer was full; a larger --buffer helps", lost.buffer_full);
        }
        if lost.no_slot > 0 {
            eprintln!("ring3: {} events were lost: too many threads were in system calls", lost.no_slot);
        }
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
