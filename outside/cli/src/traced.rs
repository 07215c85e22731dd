//! What `ring3 trace` and `ring3 record` trace.
//!
//! This process becomes the loader of the programs that record. The traced program is its child (`held.rs`).

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use ring3_engine::Engine;
use ring3_recorder::program::Output;
use ring3_recorder::program::count::FIRST_PROBE_ID;
use ring3_recorder::syscalls;
use ring3_server::control::{Connection, Request};
use ring3_server::loader::{Compiling, LoadOptions};
use ring3_server::realm::Scope;
use ring3_trace::ends;
use ring3_trace::probe::{self, Probe};
use ring3_trace::{Options, Plan, Session};
use ring3_uapi::syscalls::{Syscall, TABLE};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::arguments::process_id;
use crate::held::Held;
use crate::{Failure, held, launch, process, show};

/// Which events, and whose.
#[derive(Debug, Args)]
pub(crate) struct What {
    /// Which events, separated by commas: system calls by name, groups of them as strace has them (%file, %desc, %process, %network or %net,
    /// %signal, %memory, %ipc, %clock, %creds, %pure, %stat, %lstat, %fstat, %statfs, %fstatfs), `all`, or `!LIST` for all others; uprobe:FILE:FUNCTION, uretprobe:FILE:FUNCTION, usdt:FILE:PROVIDER:NAME
    /// (FILE: a path, a program in PATH, or a library such as libc);
    /// tracepoint:sched:sched_process_exit, the ends of threads
    #[arg(short, long = "events", value_name = "EVENTS", default_value = "all")]
    pub(crate) events: Vec<String>,
    /// Show only events for which this is true, such as 'ret < 0 && path ~ "/etc/*"'. A type in parentheses says what a number is that has no type:
    /// '(int)retval < 0'. docs/TRACING.md explains the language
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// Trace this process, its children and the programs that they execute
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["command", "all"])]
    #[arg(value_parser = process_id, allow_negative_numbers = true)]
    pub(crate) pid: Option<u32>,
    /// Trace all processes that you may trace
    #[arg(long, conflicts_with = "command")]
    pub(crate) all: bool,
    /// Children are traced with or without it; it is here for those who type it for strace
    #[arg(short, long = "follow-forks", hide = true)]
    follow: bool,
    /// Show at most this many bytes of a buffer
    #[arg(short = 's', long = "string-limit", value_name = "BYTES", default_value_t = syscalls::BYTES_MAX_DEFAULT)]
    #[arg(value_parser = bytes_max)]
    pub(crate) bytes_max: u32,
    /// Size of the buffer between the program and ring3, in MiB: a power of two
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) buffer: u32,
    /// The program to run and trace, and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<String>,
}

impl What {
    /// Whether it is of processes that run already.
    pub(crate) fn is_of_running(&self) -> bool {
        self.all || self.pid.is_some()
    }
}

/// So many names are shown in place of one that is unknown.
const NAMES_MAX: usize = 5;

/// The command line is wrong.
pub(crate) fn wrong(why: impl Into<String>) -> Failure {
    Failure { why: why.into(), code: 2 }
}

/// A session that has begun.
pub(crate) struct Begun {
    pub(crate) session: Session,
    child: Option<Held>,
    /// The process that `-p` names.
    watched: Option<OwnedFd>,
    /// The server; none when its end has been told.
    server: Option<OwnedFd>,
    /// SIGTERM asks for the end.
    stop: Arc<AtomicBool>,
    /// Ctrl-C was pressed.
    interrupted: Arc<AtomicBool>,
    status: Option<ExitCode>,
    connection: Connection,
    /// Ends of threads are recorded.
    sees_ends: bool,
    /// They are events that `-e` names.
    pub(crate) names_ends: bool,
}

/// What events are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Lines that people read: they see how threads end.
    People,
    /// Files.
    Files,
    /// They are counted.
    Counts,
}

impl Begun {
    /// The process of the program, if this began it.
    pub(crate) fn program(&self) -> Option<u32> {
        self.child.as_ref().map(Held::id)
    }

    /// Begins to trace. If the program could not be run it has said why, and this is its exit code.
    pub(crate) fn new(what: &What, of: For) -> Result<Result<Begun, ExitCode>, Failure> {
        if what.command.is_empty() && !what.is_of_running() {
            return Err(wrong("what is to be traced? Name a program, or give -p PID or --all"));
        }
        if !what.buffer.is_power_of_two() {
            return Err(wrong(format!("--buffer {}: the size must be a power of two, such as 32", what.buffer)));
        }
        let Chosen { calls, probes, ends: names_ends } = chosen(&what.events, what.bytes_max).map_err(wrong)?;
        let ends = match of {
            _ if names_ends => {
                Some(ends::recipe(id_after(&probes)).map_err(|why| format!("-e {}: {why}", ends::EVENT))?)
            }
            For::People => ends::recipe(id_after(&probes))
                .inspect_err(|why| say!("ring3: ends of threads are not shown: {why}"))
                .ok(),
            For::Files | For::Counts => None,
        };
        let filter = what.filter.as_deref().map(ring3_filter::parse).transpose();
        let filter = filter.map_err(|error| wrong(error.to_string()))?;
        let is_held = !what.command.is_empty();
        let before_exec = held::NAME.to_bytes().first_chunk().copied().filter(|_| is_held);
        let output = if of == For::Counts { Output::Counts { before_exec } } else { Output::Records };
        let sees_ends = ends.is_some();
        let options = Options {
            calls,
            probes,
            ends,
            bytes_max: what.bytes_max,
            buffer_bytes: what.buffer << 20,
            filter,
            output,
        };
        let plan = Plan::new(&options).map_err(wrong)?;
        plan.notes().iter().for_each(|note| say!("ring3: {note}"));
        let (connection, server) = launch::tracing_server()?;
        let server = Some(process::open(server)?);
        let watched = what.pid.map(process::open).transpose()?;
        let child = match &what.command[..] {
            [] => None,
            command => match Held::spawn(command)? {
                Ok(child) => Some(child),
                Err(code) => return Ok(Err(code)),
            },
        };
        let family = child.as_ref().map(Held::id).or(what.pid);
        let scope = family.map_or(Scope::All, Scope::Family);
        let compiling = Compiling { engine: Engine::Jit, harden: false };
        let load = LoadOptions { compiling, scope, trust: false, budget: None };
        launch::become_loader(&connection, &std::env::args().collect::<Vec<_>>().join(" "), load)?;
        let mut session = Session::open(plan)?;
        session.refused().iter().for_each(|why| say!("ring3: {why}"));
        if let Some(pid) = family {
            let attached = connection.ask(
                &Request::Attach {
                    pid,
                    follow: true,
                    for_links: true,
                    of_family: None,
                    before_program: child.is_some(),
                },
                None,
            )?;
            show::children_not_attached(&attached);
        }
        let (stop, interrupted) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for (signal, flag) in [(SIGTERM, stop.clone()), (SIGINT, interrupted.clone())] {
            signal_hook::flag::register(signal, flag).map_err(|error| error.to_string())?;
        }
        if let Some(child) = &child {
            session.skip_before_exec(child.id(), held::NAME);
            child.resume()?;
        }
        Ok(Ok(Begun {
            session,
            child,
            watched,
            server,
            stop,
            interrupted,
            status: None,
            connection,
            sees_ends,
            names_ends,
        }))
    }

    /// Whether nothing more is to be traced. What was recorded before that is in the session's buffer.
    pub(crate) fn has_ended(&mut self) -> bool {
        if self.server.take_if(|server| process::has_ended(server)).is_some() {
            say!("ring3: the server has ended: processes that execute a program are not traced any more");
        }
        let is_watched_gone = self.watched.as_ref().is_some_and(process::has_ended);
        let is_stopped = self.stop.swap(false, Ordering::Relaxed);
        let Some(child) = &self.child else {
            if is_watched_gone {
                self.settle_ends();
            }
            return is_watched_gone || is_stopped || self.interrupted.load(Ordering::Relaxed);
        };
        if self.status.is_none() {
            self.status = child.status();
            if is_stopped {
                child.terminate();
            }
            // (Until here Ctrl-C was for the program, and what it did then was traced.)
            self.interrupted.store(false, Ordering::Relaxed);
            if self.status.is_none() {
                return false;
            }
        }
        let has_orphans = held::has_orphans(|| self.settle_ends());
        is_stopped || self.interrupted.load(Ordering::Relaxed) || !has_orphans
    }

    /// Returns when the server has recorded the ends of all processes that signals have ended until now.
    fn settle_ends(&self) {
        if self.sees_ends && self.server.is_some() {
            let _ = self.connection.ask(&Request::Status, None);
        }
    }

    /// The exit code of the traced program, if it has ended.
    pub(crate) fn exit_code(&self) -> ExitCode {
        self.status.unwrap_or(ExitCode::SUCCESS)
    }

    /// Records no more, and waits for the traced program's end.
    pub(crate) fn give_up(self) {
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        let Begun { session, child, stop, status, .. } = self;
        drop(session);
        // (One whose end is known has been waited for.)
        let Some(child) = child.filter(|_| status.is_none()) else { return };
        while child.status().is_none() {
            if stop.swap(false, Ordering::Relaxed) {
                child.terminate();
            }
            std::thread::sleep(LOOK_EVERY);
        }
        child.wait();
    }

    /// Says on the terminal what was lost.
    pub(crate) fn tell_lost(&self) {
        let lost = self.session.lost();
        if lost.buffer_full > 0 {
            say!("ring3: {} events were lost: the buffer was full; a larger --buffer helps", lost.buffer_full);
        }
        if lost.no_slot > 0 {
            say!("ring3: {} events were lost: too many threads were in system calls", lost.no_slot);
        }
    }
}

/// What `-e` names.
struct Chosen {
    calls: Vec<&'static Syscall>,
    probes: Vec<Probe>,
    /// The ends of threads.
    ends: bool,
}

/// The number of the type that follows those of probes.
fn id_after(probes: &[Probe]) -> u32 {
    probes.last().map_or(FIRST_PROBE_ID, |last| last.recipe.of.id + 1)
}

fn chosen(events: &[String], bytes_max: u32) -> Result<Chosen, String> {
    let is_probe = |name: &&str| name.split_once(':').is_some_and(|(kind, _)| probe::KINDS.contains(&kind));
    let mut probes: Vec<Probe> = vec![];
    let mut others = vec![];
    let mut ends = false;
    for list in events {
        let mut names: Vec<&str> = list.split(',').map(str::trim).collect();
        let count = names.len();
        names.retain(|name| *name != ends::EVENT);
        ends |= names.len() < count;
        let (of_files, calls): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_probe);
        for name in of_files {
            probes.extend(probe::find(name, id_after(&probes), bytes_max).map_err(|why| format!("-e {why}"))?);
        }
        if !calls.is_empty() {
            others.push(calls.join(","));
        }
    }
    let calls = if others.is_empty() { vec![] } else { chosen_calls(&others)? };
    Ok(Chosen { calls, probes, ends })
}

/// The system calls of lists.
pub(crate) fn chosen_calls(events: &[String]) -> Result<Vec<&'static Syscall>, String> {
    let mut chosen = vec![false; TABLE.len()];
    for list in events {
        // (`trace=` is how strace writes it.)
        let list = list.strip_prefix("trace=").unwrap_or(list);
        let (others, list) = list.strip_prefix('!').map_or((false, list), |list| (true, list));
        let mut named = vec![false; TABLE.len()];
        for name in list.split(',').map(str::trim) {
            if matches!(name, "all" | "syscalls") {
                named.fill(true);
                continue;
            }
            let calls =
                syscalls::named(name).or_else(|| by_its_former_name(name)).ok_or_else(|| no_such_call(name))?;
            for call in calls {
                named[TABLE.iter().position(|row| row.number == call.number).expect("it is a row")] = true;
            }
        }
        chosen.iter_mut().zip(named).for_each(|(chosen, named)| *chosen |= named != others);
    }
    let calls: Vec<&Syscall> = TABLE.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(call, _)| call).collect();
    if calls.is_empty() { Err("-e leaves no system call to trace".to_owned()) } else { Ok(calls) }
}

/// The calls of a group that strace still takes without its `%`.
fn by_its_former_name(group: &str) -> Option<Vec<&'static Syscall>> {
    const FORMER: [&str; 7] = ["file", "desc", "process", "network", "signal", "memory", "ipc"];
    FORMER.contains(&group).then(|| syscalls::named(&format!("%{group}")))?
}

/// How many bytes of a buffer are shown.
fn bytes_max(text: &str) -> Result<u32, String> {
    const MAX: u32 = 4096;
    let bytes = text.parse().ok().filter(|bytes| *bytes <= MAX);
    bytes.ok_or_else(|| format!("it is a whole number of bytes, from 0 to {MAX}"))
}

fn no_such_call(name: &str) -> String {
    let did_you_mean = |near: &[String]| match near {
        [] => String::new(),
        near => format!("; did you mean {}?", near.join(", ")),
    };
    if name.starts_with('%') {
        let groups = ring3_recorder::groups::GROUPS.map(|group| format!("%{group}"));
        let near = ring3_eim::nearest(name, groups.iter().map(String::as_str)).map(str::to_owned);
        let near = did_you_mean(&Vec::from_iter(near));
        return format!("-e {name}: there is no such group{near}; groups are {}", groups.join(", "));
    }
    if let Some((kind, rest)) = name.split_once(':') {
        let near = ring3_eim::nearest(kind, probe::KINDS.into_iter()).filter(|near| *near != kind);
        let near = did_you_mean(&Vec::from_iter(near.map(|near| format!("{near}:{rest}"))));
        let kinds = probe::KINDS.join(", ");
        return format!(
            "-e {name}: there is no such event{near}; events beside system calls begin with {kinds}, or are {}",
            ends::EVENT
        );
    }
    let shown = || TABLE.iter().map(syscalls::shown_name);
    let is_part = |known: &&str| name.len() > 2 && (known.contains(name) || name.contains(*known));
    let mut near: Vec<&str> = ring3_eim::nearest(name, shown()).into_iter().collect();
    for known in shown().filter(is_part).take(NAMES_MAX) {
        if !near.contains(&known) {
            near.push(known);
        }
    }
    near.truncate(NAMES_MAX);
    let near = did_you_mean(&near.into_iter().map(str::to_owned).collect::<Vec<_>>());
    format!("-e {name}: there is no such system call{near}")
}
