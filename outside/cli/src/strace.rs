//! `ring3 load -- strace ...`: strace is told of system calls by programs in its tracees, not by stops.
//!
//! This process becomes strace, with a library of ours preloaded. Its child is the loader of the programs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use ring3_llvm::Engine;
use ring3_recorder::syscalls;
use ring3_server::control::{Connection, Request};
use ring3_server::loader::{Compiling, LoadOptions};
use ring3_server::realm::Scope;
use ring3_strace::companion::{self as messages, ATTACH, TRACE_THROUGH};
use ring3_strace::raw_preload::{LIBRARY_DIRECTORY, PRELOAD_VARIABLE, SOCKET_VARIABLE};
use ring3_trace::{StopsOptions, StopsSession};
use ring3_uapi::syscalls::TABLE;
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{Failure, companion, launch};

/// Bytes of the ring buffer.
const RING_BYTES: u32 = 4 << 20;
/// Bytes of a buffer that a record has at most.
const BYTES_MAX: u32 = 4096;

/// The variable that chooses how strace is told.
const BACKEND_VARIABLE: &str = "RING3_STRACE_BACKEND";

/// How strace is told of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    /// By the kernel: strace as it is.
    Ptrace,
    /// By programs; the traced thread waits until strace has looked.
    Exact,
    /// By programs, which copy what strace looks at.
    Streaming,
}

/// What an option of strace needs.
#[derive(Debug, Default)]
struct Needs {
    /// An option that only ptrace serves.
    ptrace: Option<String>,
    /// An option for which strace looks at more than a call's memory.
    exact: Option<String>,
    /// Bytes of a buffer that are shown at most.
    bytes_max: u32,
    /// Values of `-e trace=`.
    sets: Vec<String>,
    /// Child processes are traced, too.
    follows: bool,
}

/// strace's options without arguments that concern nobody but strace, by their short names (strace 6.1).
const HARMLESS: &str = "AcCfFhnqrtTvVwxzZ";
/// The same with an argument.
const HARMLESS_WITH_ARGUMENT: &str = "aEIoOpSUX";

impl Needs {
    /// Of strace's arguments. An option that is not known needs ptrace.
    fn of(arguments: &[String]) -> Needs {
        let mut needs = Needs { bytes_max: 32, ..Needs::default() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            if argument == "--" || argument == "-" || !argument.starts_with('-') {
                break;
            }
            if let Some(long) = argument.strip_prefix("--") {
                needs.long(long, &mut arguments);
                continue;
            }
            let letters = argument[1..].char_indices();
            for (at, letter) in letters {
                let takes_argument = HARMLESS_WITH_ARGUMENT.contains(letter) || "bePsu".contains(letter);
                if !takes_argument {
                    needs.flag(letter);
                    continue;
                }
                let rest = &argument[1 + at + letter.len_utf8()..];
                let value = if rest.is_empty() { arguments.next().map_or("", String::as_str) } else { rest };
                needs.short(letter, value);
                break;
            }
        }
        needs
    }

    fn needs_ptrace(&mut self, what: &str) {
        self.ptrace.get_or_insert_with(|| what.to_owned());
    }

    fn needs_exact(&mut self, what: &str) {
        self.exact.get_or_insert_with(|| what.to_owned());
    }

    fn flag(&mut self, letter: char) {
        match letter {
            'f' | 'F' => self.follows = true,
            'y' | 'Y' => self.needs_exact(&format!("-{letter}")),
            _ if HARMLESS.contains(letter) => {}
            _ => self.needs_ptrace(&format!("-{letter}")),
        }
    }

    fn short(&mut self, letter: char, value: &str) {
        match letter {
            's' => self.bytes_max = value.parse().unwrap_or(u32::MAX),
            'e' => self.qualify(value),
            'P' => self.needs_exact("-P"),
            _ if HARMLESS_WITH_ARGUMENT.contains(letter) => {}
            _ => self.needs_ptrace(&format!("-{letter}")),
        }
    }

    fn long<'a>(&mut self, option: &str, more: &mut impl Iterator<Item = &'a String>) {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let mut value_of = || value.or_else(|| more.next().map(String::as_str)).unwrap_or("").to_owned();
        match name {
            "trace" | "signal" | "status" | "abbrev" | "verbose" | "raw" | "read" | "write" | "quiet" | "silent"
            | "silence" | "fault" | "inject" | "kvm" | "decode-fds"
                if name != "quiet" && name != "silent" && name != "silence" || value.is_some() =>
            {
                let value = value_of();
                self.qualify(&format!("{name}={value}"));
            }
            "quiet"
            | "silent"
            | "silence"
            | "summary"
            | "summary-only"
            | "summary-wall-clock"
            | "successful-only"
            | "failed-only"
            | "no-abbrev"
            | "strings-in-hex"
            | "syscall-times"
            | "relative-timestamps"
            | "absolute-timestamps"
            | "timestamps"
            | "output-append-mode"
            | "syscall-number"
            | "help"
            | "version" => {}
            "follow-forks" | "output-separately" => self.follows |= name == "follow-forks",
            "output"
            | "columns"
            | "attach"
            | "env"
            | "interruptible"
            | "summary-columns"
            | "summary-sort-by"
            | "summary-syscall-overhead"
            | "const-print-style" => drop(value_of()),
            "string-limit" => self.short('s', &value_of()),
            "trace-path" => {
                value_of();
                self.needs_exact("--trace-path");
            }
            "decode-pids" => self.needs_exact("--decode-pids"),
            _ => self.needs_ptrace(&format!("--{name}")),
        }
    }

    /// `-e`.
    fn qualify(&mut self, expression: &str) {
        let (name, value) = expression.split_once('=').unwrap_or(("trace", expression));
        match name {
            "trace" | "t" => self.sets.push(value.to_owned()),
            "abbrev" | "a" | "verbose" | "v" | "raw" | "x" | "signal" | "signals" | "s" | "quiet" | "silent"
            | "silence" | "q" | "status" => {}
            "read" | "reads" | "r" | "write" | "writes" | "w" | "decode-fds" | "decode-fd" => {
                self.needs_exact(&format!("-e {name}"))
            }
            _ => self.needs_ptrace(&format!("-e {name}")),
        }
    }
}

/// Whether it is strace.
pub(crate) fn is_strace(program: &Path) -> bool {
    program.file_name() == Some(OsStr::new("strace"))
}

/// Whether it preloads libraries.
fn is_dynamic(program: &Path) -> bool {
    let Ok(bytes) = std::fs::read(program) else { return true };
    ring3_elf::File::parse(&bytes).is_ok_and(|file| file.interpreter().is_some())
}

/// Says that ring3 does nothing for a program that traces others by ptrace.
pub(crate) fn tell_of_ptrace(program: &Path) {
    const TRACERS: [&str; 5] = ["gdb", "lldb", "ltrace", "rr", "gdbserver"];
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if TRACERS.contains(&name) {
        say!("ring3: {name} traces by ptrace, which ring3 does not answer: it runs as without ring3");
    }
}

fn backend(needs: &Needs) -> Result<Backend, Failure> {
    let wanted = std::env::var(BACKEND_VARIABLE).unwrap_or_else(|_| "auto".to_owned());
    let unserved = |option: &str| {
        let why =
            format!("{BACKEND_VARIABLE}={wanted}: {option} needs strace's own ptrace; set it to auto or ptrace");
        Failure { why, code: 2 }
    };
    match (wanted.as_str(), &needs.ptrace) {
        ("ptrace", _) | ("auto", Some(_)) => Ok(Backend::Ptrace),
        ("exact" | "streaming", Some(option)) => Err(unserved(option)),
        ("auto", None) if needs.exact.is_some() || needs.bytes_max > BYTES_MAX => Ok(Backend::Exact),
        ("exact", None) => Ok(Backend::Exact),
        ("streaming", None) if needs.bytes_max > BYTES_MAX => Err(unserved("-s of more than 4096")),
        ("auto" | "streaming", None) => Ok(Backend::Streaming),
        _ => Err(Failure {
            why: format!("{BACKEND_VARIABLE}={wanted}: it can be auto, ptrace, exact or streaming"),
            code: 2,
        }),
    }
}

/// Becomes strace.
pub(crate) fn run(program: &Path, command: &[String]) -> Result<(), Failure> {
    let mut needs = Needs::of(&command[1..]);
    if !is_dynamic(program) {
        needs.needs_ptrace("a statically linked strace");
    }
    let backend = backend(&needs)?;
    if backend == Backend::Ptrace {
        if let Some(what) = &needs.ptrace {
            say!("ring3: {what} needs strace's own ptrace: the traced program stops at each call, as without ring3");
        }
        return crate::exec(program, command);
    }
    let wanted = Wanted {
        numbers: numbers(&needs.sets),
        bytes_max: needs.bytes_max.min(BYTES_MAX),
        is_exact: backend == Backend::Exact,
    };
    let (ours, its) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| format!("a socket: {error}"))?;
    let mut loader = Command::new(launch::own_path()?);
    loader.args(["strace-loader", "--apart"]).arg(std::process::id().to_string()).arg(wanted.to_text()).stdin(its);
    let _ = companion::spawn(loader, "loader of strace's programs")?.wait();
    let library = library().map_err(|error| format!("the library for strace: {error}"))?;
    for descriptor in [&ours, &library] {
        rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty()).map_err(|error| error.to_string())?;
    }
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let mut preloaded = OsString::from(format!("{LIBRARY_DIRECTORY}{}", library.as_raw_fd()));
    if !before.is_empty() {
        preloaded.push(" ");
        preloaded.push(&before);
    }
    let mut strace = Command::new(program);
    strace.arg0(&command[0]).args(&command[1..]).env("LD_PRELOAD", preloaded);
    strace.env(PRELOAD_VARIABLE, before).env(SOCKET_VARIABLE, ours.as_raw_fd().to_string());
    Err(launch::cannot_run(&command[0], &strace.exec()))
}

/// The library, as a file without a name.
fn library() -> std::io::Result<OwnedFd> {
    let descriptor = rustix::fs::memfd_create("ring3-strace", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(descriptor);
    file.write_all(ring3_image::STRACE_LIBRARY)?;
    Ok(file.into())
}

/// The system calls that strace may show, by their numbers: at least those of its sets.
fn numbers(sets: &[String]) -> Vec<u32> {
    let all = || TABLE.iter().map(|call| call.number).collect::<Vec<u32>>();
    // (The last one counts.)
    let Some(set) = sets.last() else { return all() };
    let (is_negated, names) = set.strip_prefix('!').map_or((false, set.as_str()), |names| (true, names));
    let mut named: Vec<u32> = vec![];
    for name in names.split(',') {
        let name = name.strip_prefix('?').unwrap_or(name);
        match name {
            "none" => {}
            "all" => return if is_negated { execs() } else { all() },
            // (strace's older names of groups have no %.)
            _ => match syscalls::named(name).or_else(|| syscalls::named(&format!("%{name}"))) {
                Some(calls) => named.extend(calls.iter().map(|call| call.number)),
                // (A pattern, a group that only strace has, or a mistake, of which strace tells.)
                None => return all(),
            },
        }
    }
    if is_negated {
        // (Groups have more calls here than strace's may have.)
        return if names.contains('%') {
            all()
        } else {
            all().into_iter().filter(|number| !named.contains(number)).collect()
        };
    }
    named.extend(execs());
    named.sort_unstable();
    named.dedup();
    named
}

/// strace looks at these in any case: it shows nothing of a command before its first one.
fn execs() -> Vec<u32> {
    TABLE.iter().filter(|call| matches!(call.name, "execve" | "execveat")).map(|call| call.number).collect()
}

/// What the programs record.
#[derive(Debug)]
pub(crate) struct Wanted {
    numbers: Vec<u32>,
    bytes_max: u32,
    is_exact: bool,
}

impl Wanted {
    fn to_text(&self) -> String {
        let numbers = self.numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        format!("{}:{}:{numbers}", u32::from(self.is_exact), self.bytes_max)
    }

    fn parse(text: &str) -> Option<Wanted> {
        let mut parts = text.splitn(3, ':');
        let is_exact = parts.next()? == "1";
        let bytes_max = parts.next()?.parse().ok()?;
        let numbers = parts.next()?.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
        Some(Wanted { numbers, bytes_max, is_exact })
    }
}

/// Begins the loader as a process that is nobody's child.
pub(crate) fn serve_apart(strace: u32, wanted: &str) -> Result<(), String> {
    let mut loader = Command::new(launch::own_path()?);
    let begun = loader.args(["strace-loader", &strace.to_string(), wanted]).spawn();
    begun.map(drop).map_err(|error| format!("cannot start the loader of strace's programs: {error}"))
}

/// The loader: the process `strace` is served by the socket at standard input, until it ends.
pub(crate) fn serve(strace: u32, wanted: &str) -> Result<(), String> {
    let wanted = Wanted::parse(wanted).ok_or("this command is for `ring3 load -- strace`")?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let (connection, _) = launch::tracing_server()?;
    let compiling = Compiling { engine: Engine::Jit, harden: false };
    let load = LoadOptions { compiling, scope: Scope::Family(strace), trust: false, budget: None };
    launch::become_loader(&connection, "strace", load)?;
    let session = StopsSession::open(&StopsOptions {
        numbers: wanted.numbers,
        bytes_max: wanted.bytes_max,
        exact: wanted.is_exact,
        ring_bytes: RING_BYTES,
    })?;
    companion::tell_ready();
    // (The pipe to whoever waited for that.)
    let _ = File::open("/dev/null").map(rustix::stdio::dup2_stdout);
    messages::send(&socket, b"", Some(session.ring_fd())).map_err(|error| error.to_string())?;
    while let Ok(Some((message, along))) = messages::receive(&socket) {
        let answer = answer(&connection, strace, &message[1..], along).err().unwrap_or_default();
        if messages::send(&socket, answer.as_bytes(), None).is_err() {
            break;
        }
    }
    Ok(())
}

fn answer(connection: &Connection, strace: u32, message: &[u8], along: Option<OwnedFd>) -> Result<(), String> {
    let message = std::str::from_utf8(message).map_err(|error| error.to_string())?;
    if let Some(pid) = message.strip_prefix(ATTACH) {
        let pid = pid.parse().map_err(|_| format!("{message}: no process id"))?;
        let request = Request::Attach { pid, follow: true, for_links: true, of_family: Some(strace) };
        return connection.ask(&request, None).map(drop);
    }
    match (message, along) {
        (TRACE_THROUGH, Some(socket)) => {
            connection.ask(&Request::TraceThrough { tracer: strace }, Some(socket.as_fd())).map(drop)
        }
        _ => Err(format!("{message}: no such request")),
    }
}
