//! The programs that are traced: servers, and programs that are run again and again.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::group::Group;
use super::load::Told;
use super::measures::Measured;

/// Something must have come about within this time. (bpftrace takes half of it to print a million stacks.)
const WITHIN: Duration = Duration::from_secs(180);
/// Bytes of a log's end that are shown.
const LOG_BYTES: usize = 400;

/// Waits until there is something.
pub(crate) fn await_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> Result<T, String> {
    let deadline = Instant::now() + WITHIN;
    loop {
        match find() {
            Some(found) => return Ok(found),
            None if Instant::now() > deadline => return Err(format!("waited in vain for {what}")),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, signal));
}

/// The process with this program among one and those that it has begun.
pub(crate) fn running(pid: u32, program: &str) -> Option<u32> {
    if std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == program) {
        return Some(pid);
    }
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.find_map(|child| running(child, program))
}

/// A port that nobody listens at.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no port: {error}"))
}

/// The CPU of a server that has one for itself, and that of who loads it.
pub(crate) fn cpus() -> (usize, usize) {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cpus - 1, 0)
}

/// Has all that a command prints written to a file.
pub(crate) fn redirect(command: &mut Command, log: &Path) -> Result<(), String> {
    let file = File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, errors) = file.map_err(|error| format!("{}: {error}", log.display()))?;
    command.stdin(Stdio::null()).stdout(out).stderr(errors);
    Ok(())
}

/// The end of what was printed, in one line.
pub(crate) fn log_end(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES)..]).into_owned();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A server, in a control group of its own. It is ended when it is dropped.
pub(crate) struct Server {
    child: Child,
    group: Group,
    log: PathBuf,
    pub(crate) port: u16,
    is_pinned: bool,
}

impl Server {
    /// Begins a server, and waits until it answers at its port.
    pub(crate) fn start(command: &Command, port: u16, log: &Path, is_pinned: bool) -> Result<Server, String> {
        let group = Group::new()?;
        let mut entered = group.enter(command, is_pinned.then_some(cpus().0));
        redirect(&mut entered, log)?;
        let child = entered.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let mut server = Server { child, group, log: log.to_owned(), port, is_pinned };
        await_some("the server's answer", || match server.check() {
            Ok(()) => TcpStream::connect(("127.0.0.1", port)).ok().map(|_| Ok(())),
            Err(why) => Some(Err(why)),
        })??;
        Ok(server)
    }

    /// An error if it has ended.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("the server ended, {status}: {}", log_end(&self.log))),
            Err(error) => Err(error.to_string()),
        }
    }

    /// All of its processes.
    pub(crate) fn processes(&self) -> Result<Vec<u32>, String> {
        self.group.processes()
    }

    /// Loads the server with a command, and measures it. `tracer` is the group of who traces.
    pub(crate) fn load(
        &mut self,
        command: &Command,
        tracer: Option<&Group>,
        parse: impl Fn(&str) -> Result<Told, String>,
    ) -> Result<Measured, String> {
        // (A group of its own, so that it comes before others that want the CPUs, as the server does.)
        let group = Group::new()?;
        let (before, tracer_before) = (self.group.cpu_us()?, tracer.map(Group::cpu_us).transpose()?);
        let mut command = group.enter(command, self.is_pinned.then_some(cpus().1));
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
        let cpu_us = self.group.cpu_us()? - before;
        let tracer_after = tracer.map(Group::cpu_us).transpose()?;
        self.check()?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the load generator failed, {}: {text} {errors}", output.status));
        }
        let tool_us = tracer_after.zip(tracer_before).map(|(after, before)| after - before);
        Ok(Measured { told: parse(&text)?, cpu_us, tool_us })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // (SIGINT: PostgreSQL waits for its clients at SIGTERM. What does not end is killed with the group.)
        signal(self.child.id(), Signal::INT);
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command again and again for some seconds, at least once, and measures it.
pub(crate) fn runs(command: &Command, seconds: f64, log: &Path, tracer: Option<&Group>) -> Result<Measured, String> {
    let group = Group::new()?;
    let (began, tracer_before) = (Instant::now(), tracer.map(Group::cpu_us).transpose()?);
    let mut units = 0.0;
    while units < 1.0 || began.elapsed().as_secs_f64() < seconds {
        let mut entered = group.enter(command, None);
        redirect(&mut entered, log)?;
        let mut child = entered.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let status: ExitStatus = match wait_within(&mut child) {
            Some(status) => status,
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it does not end: {}", log_end(log)));
            }
        };
        if !status.success() {
            return Err(format!("it failed, {status}: {}", log_end(log)));
        }
        units += 1.0;
    }
    let per_second = units / began.elapsed().as_secs_f64();
    let tracer_after = tracer.map(Group::cpu_us).transpose()?;
    let tool_us = tracer_after.zip(tracer_before).map(|(after, before)| after - before);
    Ok(Measured { told: Told { units, per_second, p99_ms: None }, cpu_us: group.cpu_us()?, tool_us })
}

/// Looks often, so that the time of short programs is not that of looking.
fn wait_within(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + WITHIN;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(500)),
            _ => return None,
        }
    }
}
