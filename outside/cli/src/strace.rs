//! `ring3 load -- strace ...`: strace is told of system calls by programs in its tracees, not by stops.
//!
//! This process becomes strace, with a library of ours preloaded. Another one beside it is the loader of the programs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ring3_engine::Engine;
use ring3_recorder::groups::GROUPS;
use ring3_recorder::syscalls;
use ring3_server::control::{Connection, Request};
use ring3_server::loader::{Compiling, LoadOptions};
use ring3_server::realm::Scope;
use ring3_strace::companion::{self as messages, ATTACH, DETACH, TRACE_THROUGH, WHY};
use ring3_strace::raw_execute::execute;
use ring3_strace::raw_preload::{LIBRARY_DIRECTORY, PRELOAD_VARIABLE, SOCKET_VARIABLE};
use ring3_trace::{StopsOptions, StopsSession};
use ring3_uapi::syscalls::TABLE;
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::traced::chosen_calls;
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
    /// The last value of `-e trace=`, which counts.
    set: Option<String>,
    /// It prints something of its own, and traces nobody.
    nothing: bool,
    /// Names of threads are shown: strace looks at `prctl` whatever it shows.
    names: bool,
    /// Lines of signals and ends show the number of the thread's last call (`-n`), whether or not that call is shown.
    numbers: bool,
    /// Processes and threads that it attaches to (`-p`).
    attached: Vec<u32>,
}

/// strace's options without arguments that concern nobody but strace, by their short names (strace 6.1).
const HARMLESS: &str = "AcCfFqrtTvwxzZ";
/// The same with an argument.
const HARMLESS_WITH_ARGUMENT: &str = "aEIoOpSUX";
/// The other options with an argument.
const WITH_ARGUMENT: &str = "bePsu";
/// As [`HARMLESS`], by their long names. (What may have an argument has it behind a `=`.)
const HARMLESS_LONG: [&str; 17] = [
    "quiet",
    "silent",
    "silence",
    "summary",
    "summary-only",
    "summary-wall-clock",
    "successful-only",
    "failed-only",
    "no-abbrev",
    "strings-in-hex",
    "syscall-times",
    "relative-timestamps",
    "absolute-timestamps",
    "timestamps",
    "output-append-mode",
    "output-separately",
    "follow-forks",
];
/// As [`HARMLESS_WITH_ARGUMENT`].
const HARMLESS_LONG_WITH_ARGUMENT: [&str; 9] = [
    "output",
    "columns",
    "attach",
    "env",
    "interruptible",
    "summary-columns",
    "summary-sort-by",
    "summary-syscall-overhead",
    "const-print-style",
];
/// Options that are the same as `-e NAME=VALUE`.
const QUALIFIERS: [&str; 12] = [
    "trace",
    "signal",
    "status",
    "abbrev",
    "verbose",
    "raw",
    "read",
    "write",
    "fault",
    "inject",
    "kvm",
    "decode-fds",
];

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
            for (at, letter) in argument[1..].char_indices() {
                let takes_argument = HARMLESS_WITH_ARGUMENT.contains(letter) || WITH_ARGUMENT.contains(letter);
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
            'y' | 'Y' => {
                self.names |= letter == 'Y';
                self.needs_exact(&format!("-{letter}"));
            }
            'n' => self.numbers = true,
            'h' | 'V' => self.nothing = true,
            _ if HARMLESS.contains(letter) => {}
            _ => self.needs_ptrace(&format!("-{letter}")),
        }
    }

    fn short(&mut self, letter: char, value: &str) {
        match letter {
            's' => self.bytes_max = value.parse().unwrap_or(u32::MAX),
            'e' => self.qualify(value),
            'P' => self.needs_exact("-P"),
            'p' => self
                .attached
                .extend(value.split(|c: char| !c.is_ascii_digit()).filter_map(|id| id.parse::<u32>().ok())),
            _ if HARMLESS_WITH_ARGUMENT.contains(letter) => {}
            _ => self.needs_ptrace(&format!("-{letter}")),
        }
    }

    fn long<'a>(&mut self, option: &str, more: &mut impl Iterator<Item = &'a String>) {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let mut value_of = || value.or_else(|| more.next().map(String::as_str)).unwrap_or("").to_owned();
        match name {
            "string-limit" => self.short('s', &value_of()),
            "trace-path" => self.short('P', &value_of()),
            "attach" => self.short('p', &value_of()),
            "decode-pids" => {
                self.names = true;
                self.needs_exact("--decode-pids");
            }
            _ if QUALIFIERS.contains(&name) => {
                let value = value_of();
                self.qualify(&format!("{name}={value}"));
            }
            "syscall-number" => self.flag('n'),
            "help" | "version" => self.nothing = true,
            _ if HARMLESS_LONG.contains(&name) => {}
            _ if HARMLESS_LONG_WITH_ARGUMENT.contains(&name) => drop(value_of()),
            _ => self.needs_ptrace(&format!("--{name}")),
        }
    }

    /// `-e`.
    fn qualify(&mut self, expression: &str) {
        let (name, value) = expression.split_once('=').unwrap_or(("trace", expression));
        match name {
            "trace" | "t" => self.set = Some(value.to_owned()),
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

/// Whether a process, or a thread's, runs this program (a loader, say), or is the server.
fn is_of_ring3(id: u32) -> bool {
    let program = |of: &str| std::fs::metadata(format!("/proc/{of}/exe")).map(|file| (file.dev(), file.ino())).ok();
    let is_server = || {
        let server = Connection::open().ok().flatten().and_then(|connection| connection.peer().ok());
        server.is_some_and(|(server, _)| Path::new(&format!("/proc/{server}/task/{id}")).exists())
    };
    program("self").is_some_and(|own| program(&id.to_string()) == Some(own)) || is_server()
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
    let wanted = std::env::var(BACKEND_VARIABLE).ok().filter(|value| !value.is_empty());
    let wanted = wanted.unwrap_or_else(|| "auto".to_owned());
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
    if let Some(id) = needs.attached.iter().copied().find(|id| is_of_ring3(*id)) {
        // (It would have to answer strace's library while strace has stopped it.)
        needs.needs_ptrace(&format!("-p {id} names a process of ring3 itself, which"));
    }
    let backend = backend(&needs)?;
    if needs.nothing {
        return crate::exec(program, command);
    }
    if backend == Backend::Ptrace {
        if let Some(what) = &needs.ptrace {
            say!("ring3: {what} needs strace's own ptrace: the traced program stops at each call, as without ring3");
        }
        return crate::exec(program, command);
    }
    let (ours, its) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| format!("a socket: {error}"))?;
    let mut loader = Command::new(launch::own_path()?);
    loader.arg("strace-loader").args((backend == Backend::Exact).then_some("--exact"));
    loader.args(["--bytes-max", &needs.bytes_max.min(BYTES_MAX).to_string()]);
    loader.args(["--strace", &std::process::id().to_string()]);
    let set = needs.set.as_deref().filter(|_| !needs.numbers);
    loader.args(numbers(set, needs.names).iter().map(u32::to_string)).stdin(its);
    // (strace waits for its children, and must not have this one.)
    if companion::spawn_apart(loader, "loader of strace's programs")?.is_err() {
        say!("ring3: so strace runs by ptrace, as without ring3");
        return crate::exec(program, command);
    }
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
    let socket = ours.as_raw_fd().to_string();
    let variables =
        [("LD_PRELOAD", preloaded), (PRELOAD_VARIABLE, before), (SOCKET_VARIABLE, OsString::from(socket))];
    Err(launch::cannot_run(&command[0], &execute(program, command, &variables, false)))
}

/// The library, as a file without a name.
fn library() -> std::io::Result<OwnedFd> {
    let descriptor = rustix::fs::memfd_create("ring3-strace", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(descriptor);
    file.write_all(ring3_image::STRACE_LIBRARY)?;
    Ok(file.into())
}

/// The system calls that strace may show, by their numbers: at least those of its set.
fn numbers(set: Option<&str>, shows_names: bool) -> Vec<u32> {
    let Some(set) = set else { return TABLE.iter().map(|call| call.number).collect() };
    let (negation, names) = set.strip_prefix('!').map_or(("", set), |names| ("!", names));
    let known = |name: &str| {
        let name = name.trim_start_matches('?');
        // (strace's older names of groups have no %.)
        let is_group = GROUPS.contains(&name) && syscalls::named(name).is_none();
        if is_group { format!("%{name}") } else { name.to_owned() }
    };
    let named = match (negation, names) {
        ("", "none") | ("!", "all") => vec![],
        _ => {
            let names: Vec<String> = names.split(',').map(known).collect();
            // (A pattern, a group that only strace has, or a mistake, of which strace tells: all.)
            chosen_calls(&[format!("{negation}{}", names.join(","))]).unwrap_or_else(|_| TABLE.iter().collect())
        }
    };
    // (strace looks at these in any case: it shows nothing of a command before its first one.)
    let is_always = |name: &str| matches!(name, "execve" | "execveat") || name == "prctl" && shows_names;
    let always = TABLE.iter().filter(|call| is_always(call.name));
    named.into_iter().chain(always).map(|call| call.number).collect()
}

/// What the loader is told on its command line.
#[derive(Debug, clap::Args)]
pub(crate) struct LoaderOptions {
    /// All threads wait until strace has looked
    #[arg(long)]
    exact: bool,
    /// Bytes of data that strace shows at most
    #[arg(long)]
    bytes_max: u32,
    /// The process that becomes strace
    #[arg(long)]
    strace: u32,
    /// Numbers of the system calls that are recorded
    numbers: Vec<u32>,
}

/// The loader: serves strace's process by the socket at standard input, until that ends.
pub(crate) fn serve(options: LoaderOptions) -> Result<(), String> {
    let LoaderOptions { exact, bytes_max, strace, numbers } = options;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let (connection, _) = launch::tracing_server()?;
    let compiling = Compiling { engine: Engine::Jit, harden: false };
    let load = LoadOptions { compiling, scope: Scope::Family(strace), trust: false, budget: None };
    launch::become_loader(&connection, "strace", load)?;
    let session = StopsSession::open(&StopsOptions { numbers, bytes_max, exact, ring_bytes: RING_BYTES })?;
    companion::tell_ready();
    // (The pipe to whoever waited for that.)
    let _ = File::open("/dev/null").map(rustix::stdio::dup2_stdout);
    // (strace may have ended already.)
    let _ = messages::send(&socket, b"", Some(session.ring_fd()));
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
        let request =
            Request::Attach { pid, follow: true, for_links: true, of_family: Some(strace), before_program: false };
        return connection.ask(&request, None).map(drop);
    }
    if let Some(pid) = message.strip_prefix(DETACH) {
        let pid = pid.parse().map_err(|_| format!("{message}: no process id"))?;
        return connection.ask(&Request::Detach { pid, verify: false }, None).map(drop);
    }
    if let Some(pid) = message.strip_prefix(WHY) {
        let pid = pid.parse().map_err(|_| format!("{message}: no process id"))?;
        return why_not(connection, pid).map_or(Ok(()), Err);
    }
    match (message, along) {
        (TRACE_THROUGH, Some(socket)) => {
            connection.ask(&Request::TraceThrough { tracer: strace }, Some(socket.as_fd())).map(drop)
        }
        _ => Err(format!("{message}: no such request")),
    }
}

/// Why a process is no target any more. (The server may be about to note that.)
fn why_not(connection: &Connection, pid: u32) -> Option<String> {
    const ASKED_MAX: u32 = 20;
    const ASK_AGAIN_AFTER: Duration = Duration::from_millis(10);
    for _ in 0..ASKED_MAX {
        let status = connection.ask(&Request::Status, None).ok()?;
        let mut rows = status["server"]["let_go"].as_array()?.iter().rev();
        if let Some(row) = rows.find(|row| row[0] == pid) {
            return row[2].as_str().map(str::to_owned);
        }
        std::thread::sleep(ASK_AGAIN_AFTER);
    }
    None
}
