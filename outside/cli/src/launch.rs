//! Finding programs, and starting the server on demand.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::CommandFactory;
use ring3_server::control::{Connection, Request, runtime_dir};
use ring3_server::loader::LoadOptions;
use ring3_trace::libraries;
use rustix::fs::FlockOperation;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::Failure;
use crate::arguments::Arguments;

/// The server must be reachable, or gone, within this time.
const SERVER_WITHIN: Duration = Duration::from_secs(20);
/// This much of a tool's command line is kept for `ring3 status`.
const COMMAND_CHARS_MAX: usize = 1000;
/// What the server prints when it can be reached.
const READY: &str = "ready";

/// Where a command is, as `execvp` would find it.
pub(crate) fn find_program(name: &str) -> Result<PathBuf, Failure> {
    if name.is_empty() {
        return Err(Failure {
            why: "the program's name is empty; name a program in PATH, or the path to its file".into(),
            code: 127,
        });
    }
    if name.contains('/') {
        let path = PathBuf::from(name);
        return match path.metadata() {
            Err(error) => Err(cannot_run(name, &error)),
            Ok(_) if libraries::is_executable(&path) => Ok(path),
            Ok(meta) if meta.is_dir() => Err(not_executable(name, "it is a directory, not an executable file")),
            Ok(_) => Err(not_executable(name, "not an executable file; `chmod +x` makes a program one")),
        };
    }
    if name.starts_with('-') {
        return Err(no_such_option(name));
    }
    libraries::program(name).ok_or_else(|| Failure {
        why: format!("cannot run {name}: no such program in PATH; install it, or give the path to its file"),
        code: 127,
    })
}

/// What stands where a program should is meant as an option.
fn no_such_option(name: &str) -> Failure {
    let mut command = Arguments::command();
    let action = std::env::args().nth(1).unwrap_or_default();
    let options = command.find_subcommand_mut(&action).into_iter().flat_map(|action| action.get_arguments());
    let options: Vec<String> = options.filter_map(|option| Some(format!("--{}", option.get_long()?))).collect();
    let hint = match ring3_eim::nearest(name, options.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("`ring3 {action} --help` lists the options"),
    };
    Failure { why: format!("unknown option {name}; {hint}"), code: 2 }
}

fn not_executable(name: &str, why: &str) -> Failure {
    Failure { why: format!("cannot run {name}: {why}"), code: 126 }
}

/// The failure of running a program.
pub(crate) fn cannot_run(name: &str, error: &std::io::Error) -> Failure {
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    let advice = if code == 127 { "; correct the path" } else { "" };
    Failure { why: format!("cannot run {name}: {error}{advice}"), code }
}

/// A connection to this user's server, which is started if there is none.
pub(crate) fn server() -> Result<Connection, String> {
    let deadline = Instant::now() + SERVER_WITHIN;
    loop {
        if let Some(connection) = Connection::open()? {
            return Ok(connection);
        }
        if Instant::now() > deadline {
            return Err(format!(
                "the server did not start within {} s; see {}",
                SERVER_WITHIN.as_secs(),
                log_path()?.display()
            ));
        }
        // The lock orders those who start a server at the same time.
        let lock_path = runtime_dir()?.join("start.lock");
        let complain = |error: std::io::Error| {
            let path = lock_path.display();
            format!("{path}: {error}; set RING3_RUNTIME_DIR to a directory that you may write to")
        };
        let lock = File::create(&lock_path).map_err(complain)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| complain(error.into()))?;
        if let Some(connection) = Connection::open()? {
            return Ok(connection);
        }
        // One that is ending is still there for a moment.
        wait_until_gone()?;
        let started = Command::new(own_path()?).arg("serve").stdin(Stdio::null()).stdout(Stdio::null()).output();
        let started = started.map_err(cannot_start)?;
        if !started.status.success() {
            let why = String::from_utf8_lossy(&started.stderr);
            return Err(format!("cannot start the server: {}", why.trim().trim_start_matches("ring3: ")));
        }
    }
}

fn cannot_start(error: std::io::Error) -> String {
    // (Where it is missing, in a root directory that somebody made, the error names no file.)
    let null = Path::new("/dev/null");
    let why = if null.exists() { error.to_string() } else { format!("there is no {}", null.display()) };
    format!("cannot start the server: {why}")
}

/// The same, and the server's process id; the server may trace this process.
pub(crate) fn tracing_server() -> Result<(Connection, u32), String> {
    let connection = server()?;
    let (server, _) = connection.peer()?;
    allow_tracer(server);
    Ok((connection, server))
}

/// From now on the server answers the bpf(2) calls of this process and of what it executes. `command` is for `ring3 status`.
pub(crate) fn become_loader(connection: &Connection, command: &str, options: LoadOptions) -> Result<(), String> {
    let listener = ring3_server::loader::install_filter()?;
    let command = command.chars().take(COMMAND_CHARS_MAX).collect();
    connection.ask(&Request::Load { command, options }, Some(listener.as_fd())).map(drop)
}

/// The server's log.
fn log_path() -> Result<PathBuf, String> {
    Ok(runtime_dir()?.join("server.log"))
}

pub(crate) fn own_path() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("cannot find the ring3 binary: {error}"))
}

/// `ring3 serve`: starts the server in a session of its own and returns when it can be reached. The process
/// in between ends, so that the server is nobody's child.
pub(crate) fn serve(foreground: bool) -> Result<(), String> {
    if foreground {
        return run_server();
    }
    log_filter()?;
    let log_path = log_path()?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(|error| format!("{}: {error}", log_path.display()))?;
    let mut child = Command::new(own_path()?)
        .args(["serve", "--foreground"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(cannot_start)?;
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).map_err(|error| error.to_string())?;
    match line.trim() {
        READY => Ok(()),
        "" => Err(format!("the server ended before it was ready; see {}", log_path.display())),
        why => Err(why.to_owned()),
    }
}

/// What the server logs, by `RING3_LOG`.
fn log_filter() -> Result<EnvFilter, String> {
    let Ok(text) = std::env::var("RING3_LOG") else { return Ok(EnvFilter::new("info")) };
    let wrong = |why: String| format!("RING3_LOG={text}: {why}; set it to warn, info or debug");
    // (What is no level would be taken for a module, and nothing else be logged.)
    let is_module = |word: &str| word.contains('=') || word.starts_with("ring3");
    if let Some(word) = text.split(',').find(|word| !is_module(word) && word.trim().parse::<LevelFilter>().is_err()) {
        return Err(wrong(format!("{word:?} is no level")));
    }
    EnvFilter::try_new(&text).map_err(|error| wrong(error.to_string()))
}

fn run_server() -> Result<(), String> {
    let filter = log_filter()?;
    // On a full disk the log has gaps; the server goes on.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).log_internal_errors(false);
    let path = log_path().ok();
    log.with_writer(move || Log(path.clone())).init();
    let _ = rustix::process::setsid();
    let result = ring3_server::daemon::serve(|| {
        say(READY);
        // The pipe to whoever waited for that line has done its work.
        let _ = File::open("/dev/null").map(rustix::stdio::dup2_stdout);
    });
    if let Err(why) = &result {
        say(why);
    }
    result
}

/// Standard error, which is the server's log, unless that was redirected. When it is large, it becomes `server.log.old`, and a new one begins:
/// what others do (programs that they execute, say) cannot fill the disk.
struct Log(Option<PathBuf>);

impl Log {
    const BYTES_MAX: u64 = 8 << 20;

    fn begin_anew_if_large(&self, bytes_max: u64) -> std::io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let Some(path) = &self.0 else { return Ok(()) };
        let now = rustix::fs::fstat(std::io::stderr())?;
        if now.st_size as u64 <= bytes_max {
            return Ok(());
        }
        let file = path.metadata()?;
        if (now.st_dev, now.st_ino) != (file.dev(), file.ino()) {
            return Ok(());
        }
        std::fs::rename(path, path.with_extension("log.old"))?;
        let new = OpenOptions::new().create_new(true).append(true).open(path)?;
        Ok(rustix::stdio::dup2_stderr(&new)?)
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.begin_anew_if_large(Log::BYTES_MAX);
        std::io::stderr().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One line on standard output, whose reader may be gone.
fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Waits until there is no server process any more.
pub(crate) fn wait_until_gone() -> Result<(), String> {
    let lock_path = runtime_dir()?.join("server.lock");
    let Ok(lock) = File::open(&lock_path) else { return Ok(()) };
    let deadline = Instant::now() + SERVER_WITHIN;
    while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > deadline {
            return Err(format!(
                "the server did not end within {} s; see {}",
                SERVER_WITHIN.as_secs(),
                log_path()?.display()
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Under Yama's `ptrace_scope=1` only a descendant may be traced, unless it allows its tracer.
fn allow_tracer(server: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(server as i32) {
        // Without Yama the call fails with EINVAL, and nothing needs allowing.
        let _ = rustix::process::set_ptracer(rustix::process::PTracer::ProcessID(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_no_file_of_its_own_is_left_alone() {
        let path = std::env::temp_dir().join(format!("ring3-log-{}", std::process::id()));
        std::fs::write(&path, "lines").expect("a file");
        // (Standard error of a test is another file.)
        Log(Some(path.clone())).begin_anew_if_large(0).expect("looked at");
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), "lines");
        std::fs::remove_file(path).expect("removed");
    }
}
