//! The command `ring3`.
//!
//! Runs: as the user's process; `load` and `start` become the tool or the target by `execve`.
//! May touch: the server's socket, its own seccomp filter.
//! Never: stays between the terminal and the program it runs.
//! Start reading at: `main`.
#![forbid(unsafe_code)]

/// Writes a line to standard error, if there is one: that it is closed or full is no reason to end.
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}

mod aot;
mod arguments;
mod assembly;
mod class;
mod companion;
mod eim;
mod exec;
mod explain;
mod export;
mod extend;
mod held;
mod input;
mod launch;
mod process;
mod record;
mod share_files;
mod show;
mod strace;
mod trace;
mod traced;
mod verify;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use arguments::{Action, Arguments, Compiler};
use clap::Parser;
use ring3_engine::Engine;
use ring3_server::control::{Connection, Request};
use ring3_server::loader::{Compiling, LoadOptions};
use ring3_server::realm::Scope;
use ring3_strace::raw_execute::execute;

/// Less stack than this is not enough for the command line's parser, and the rest, with room for what is yet to come.
const STACK_KIB_MIN: u64 = 256;

fn main() -> ExitCode {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    match limit.map(|bytes| bytes / 1024).filter(|kib| *kib < STACK_KIB_MIN) {
        Some(kib) => {
            say!(
                "ring3: the stack is limited to {kib} KiB, and ring3 needs {STACK_KIB_MIN}; raise the limit with `ulimit -s 8192`"
            );
            ExitCode::FAILURE
        }
        None => run(),
    }
}

// (Its frame alone may be too large for a small stack.)
#[inline(never)]
fn run() -> ExitCode {
    if let Some(code) = companion::run_between() {
        return code;
    }
    let result = match Arguments::parse().action {
        Action::Load { engine, harden, scope, trust, budget, aot, command } => {
            load((engine, harden), (scope.scope(), trust, budget), &command, aot.as_deref())
        }
        Action::Eim(wanted) => return eim::run(&wanted),
        Action::Extend(wanted) => match extend::run(&wanted) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Action::Export(wanted) => match export::run(&wanted) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Action::Trace(wanted) => match trace::run(&wanted) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Action::Record(wanted) => match record::record(&wanted) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Action::Convert(wanted) => record::convert(&wanted),
        Action::Start { following, held, command } => start(!following.no_follow, held, &command),
        Action::Attach { following, pids } => attach(!following.no_follow, &pids).map_err(Failure::from),
        Action::Detach { verify, pids } => detach(&pids, verify).map_err(Failure::from),
        Action::Status { verbose, json, trace } => status(verbose, json, trace).map_err(Failure::from),
        Action::Unpin { path } => unpin(path).map_err(Failure::from),
        Action::Stop => stop().map_err(Failure::from),
        Action::Verify(wanted) => match verify::run(&wanted) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(why) => Err(Failure { why, code: 2 }),
        },
        Action::Explain(wanted) => explain::run(&wanted).map_err(Failure::from),
        Action::Symbols { pid, output } => symbols(pid, &output).map_err(Failure::from),
        Action::Aot(wanted) => aot::run(&wanted).map_err(Failure::from),
        Action::Exec(wanted) => exec::run(&wanted).map_err(Failure::from),
        Action::Asm(wanted) => assembly::assemble(&wanted).map_err(Failure::from),
        Action::Disasm(wanted) => assembly::disassemble(&wanted).map_err(Failure::from),
        Action::Features { markdown } => features(markdown).map_err(Failure::from),
        Action::RunProgram => run_program().map_err(Failure::from),
        Action::RunEvents => run_events().map_err(Failure::from),
        Action::Keep => ring3_server::loader::keeper::run(std::io::stdin().as_fd()).map_err(Failure::from),
        Action::ShareFiles { directory } => share_files::write(&directory).map_err(Failure::from),
        Action::StraceLoader(options) => strace::serve(options).map_err(Failure::from),
        Action::Serve { foreground } => launch::serve(foreground).map_err(Failure::from),
    };
    result.map_or_else(Failure::tell, |()| ExitCode::SUCCESS)
}

/// Why a command failed, and the exit code: 126 and 127 if the program could not be run, as with env(1).
struct Failure {
    why: String,
    code: u8,
}

impl Failure {
    /// Says it; the exit code.
    fn tell(self) -> ExitCode {
        say!("ring3: {}", self.why);
        ExitCode::from(self.code)
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure { why, code: 1 }
    }
}

/// The server, which must run already.
fn running() -> Result<Connection, String> {
    Connection::open()?.ok_or_else(|| {
        "no ring3 server is running for this user; `ring3 load`, `start` or `attach` starts one (a server of another user, or of \
         another RING3_RUNTIME_DIR, is not seen here)"
            .to_owned()
    })
}

fn load(
    (engine, harden): (Compiler, bool),
    (scope, trust, budget): (Scope, bool, Option<Duration>),
    command: &[String],
    compiled: Option<&Path>,
) -> Result<(), Failure> {
    let engine = match engine {
        Compiler::Llvm if !ring3_engine::has_llvm() => return Err(ring3_engine::NO_LLVM.to_owned().into()),
        Compiler::Auto => Engine::Auto,
        Compiler::Jit => Engine::Jit,
        Compiler::Llvm => Engine::Llvm,
    };
    let program = launch::find_program(&command[0])?;
    if strace::is_strace(&program) {
        return strace::run(&program, command);
    }
    strace::tell_of_ptrace(&program);
    let (connection, _) = launch::tracing_server()?;
    if let Some(path) = compiled {
        give_compiled(&connection, path).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    let options = LoadOptions { compiling: Compiling { engine, harden }, scope, trust, budget };
    launch::become_loader(&connection, &command.join(" "), options)?;
    drop(connection);
    exec(&program, command)
}

/// Hands a file of compiled programs over: what its owner and its content must be is the server's to say.
fn give_compiled(connection: &Connection, path: &Path) -> Result<(), String> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| error.to_string())?;
    connection.ask(&Request::Aot, Some(file.as_fd())).map(drop)
}

fn start(follow: bool, held: bool, command: &[String]) -> Result<(), Failure> {
    let program = launch::find_program(&command[0])?;
    let (connection, _) = launch::tracing_server()?;
    if held {
        drop(connection);
        held::wait()?;
        return Err(launch::cannot_run(&command[0], &execute(&program, command, &[], true)));
    }
    connection.ask(&Request::Start { follow }, Some(std::io::stderr().as_fd()))?;
    drop(connection);
    exec(&program, command)
}

fn exec(program: &Path, command: &[String]) -> Result<(), Failure> {
    Err(launch::cannot_run(&command[0], &execute(program, command, &[], false)))
}

/// Does something for each of several processes, whatever becomes of the others; the error is that of the last one that has one.
fn for_each(pids: &[u32], mut one: impl FnMut(u32) -> Result<(), String>) -> Result<(), String> {
    let mut failed = Ok(());
    for done in pids.iter().map(|pid| one(*pid)).filter(Result::is_err) {
        if let Err(why) = std::mem::replace(&mut failed, done) {
            say!("ring3: {why}");
        }
    }
    failed
}

fn attach(follow: bool, pids: &[u32]) -> Result<(), String> {
    let server = launch::server()?;
    for_each(pids, |pid| show::attached(&server.ask(&Request::attach(pid, follow), None)?))
}

fn detach(pids: &[u32], verify: bool) -> Result<(), String> {
    // A server that was killed may have left something in the process: a new one takes it out.
    let server = launch::server()?;
    for_each(pids, |pid| detach_one(&server, pid, verify))
}

fn detach_one(server: &Connection, pid: u32, verify: bool) -> Result<(), String> {
    let answer = server.ask(&Request::Detach { pid, verify }, None)?;
    if !verify {
        return Ok(());
    }
    let left: Vec<&str> = answer["left"].as_array().into_iter().flatten().filter_map(|line| line.as_str()).collect();
    match left[..] {
        [] => show::write_out(&format!("nothing of ring3 is left in process {pid}\n")),
        _ => Err(format!("left or changed in process {pid}:\n  {}", left.join("\n  "))),
    }
}

fn symbols(pid: u32, output: &Path) -> Result<(), String> {
    let answer = running()?.ask(&Request::Symbols { pid }, None)?;
    let placed: Vec<ring3_names::elf::PlacedSymbol> =
        serde_json::from_value(answer).map_err(|_| "the server is of another version; end it with `ring3 stop`")?;
    aot::write_file(output, &ring3_names::elf::symbols(&placed))
        .map_err(|error| format!("cannot write {}: {error}", output.display()))
}

fn unpin(path: PathBuf) -> Result<(), String> {
    running()?.ask(&Request::Unpin { path }, None).map(drop)
}

/// A process that the server has run a program.
fn run_program() -> Result<(), String> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| error.to_string())?;
    ring3_run::child::serve(&socket_of_server()?)
}

/// A process in which the server has a program run on events. It ends with the server's end of the socket.
fn run_events() -> Result<(), String> {
    ring3_run::events::serve(&socket_of_server()?)
}

fn socket_of_server() -> Result<std::os::unix::net::UnixStream, String> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    Ok(socket.into())
}

fn features(markdown: bool) -> Result<(), String> {
    use ring3_server::support::{render_markdown, render_text};
    show::write_out(&if markdown { render_markdown() } else { render_text() })
}

fn status(verbose: bool, json: bool, trace: bool) -> Result<(), String> {
    if trace {
        return show::follow_trace(&running()?);
    }
    match Connection::open()? {
        Some(connection) => {
            let status = connection.ask(&Request::Status, None)?;
            if json { show::json(&status) } else { show::status(&status, verbose) }
        }
        None if json => show::write_out("{}\n"),
        None => show::write_out("no server is running; `ring3 load`, `start` or `attach` starts one\n"),
    }
}

fn stop() -> Result<(), String> {
    let Some(connection) = Connection::open()? else {
        return show::write_out("no server is running\n");
    };
    let answer = connection.ask(&Request::Stop, None)?;
    if let Some(loaders @ 1..) = answer["loaders"].as_u64() {
        say!("ring3: {loaders} tool(s) were still loaded; their bpf(2) calls fail with ENOSYS from now on");
    }
    launch::wait_until_gone()
}
