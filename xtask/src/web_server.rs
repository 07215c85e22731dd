//! nginx as a server that is measured, and wrk, which measures it.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::bench::{Spread, output};

/// Something must have come about within this time.
const WITHIN: Duration = Duration::from_secs(30);

/// What wrk found out, and what it took.
pub(crate) struct Measured {
    pub(crate) requests_per_second: f64,
    pub(crate) requests: f64,
    /// CPU time of the worker for each request.
    pub(crate) worker_us: f64,
}

/// The server, its worker and their port.
pub(crate) struct Nginx {
    master: Child,
    pub(crate) worker: u32,
    pub(crate) port: u16,
}

/// Programs of Debian's packages.
pub(crate) struct Packages {
    /// Where packages are unpacked that are not installed: to install nginx would start one.
    unpacked: PathBuf,
}

impl Packages {
    pub(crate) fn in_directory(build: &Path) -> Packages {
        Packages { unpacked: build.join("debian") }
    }

    /// The installed program, or the unpacked one.
    pub(crate) fn program(&self, path: &str) -> Option<PathBuf> {
        [PathBuf::from("/").join(path), self.unpacked.join(path)].into_iter().find(|path| path.exists())
    }

    pub(crate) fn unpack(&self) -> Result<(), String> {
        let directory = &self.unpacked;
        for (path, packages) in [("usr/sbin/nginx", &["nginx"][..]), ("usr/bin/wrk", &["wrk", "libluajit-5.1-2"][..])]
        {
            if self.program(path).is_some() {
                continue;
            }
            eprintln!("unpacking {} in {}", packages.join(" and "), directory.display());
            std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
            let mut download = Command::new("apt-get");
            download.args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(packages).current_dir(directory);
            output(&mut download).map_err(|why| format!("{why}: install {}", packages.join(" ")))?;
            let each = "for package in *.deb; do dpkg -x $package . && rm $package || exit; done";
            output(Command::new("sh").args(["-c", each]).current_dir(directory))?;
        }
        Ok(())
    }
}

/// Waits until there is something.
fn await_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> Result<T, String> {
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

fn children_of(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// The first worker of a server. (`ring3 extend` has begun a child of the same process, which keeps the extension.)
fn worker_of(master: u32) -> Option<u32> {
    children_of(master).into_iter().find(|child| is_running(*child, "nginx"))
}

fn is_running(pid: u32, program: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == program)
}

/// The process with this program among one and those that it has begun.
pub(crate) fn running(pid: u32, program: &str) -> Option<u32> {
    if is_running(pid, program) {
        return Some(pid);
    }
    children_of(pid).into_iter().find_map(|child| running(child, program))
}

/// How long a process has run, in microseconds.
fn run_us(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/schedstat");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let ns: Option<f64> = text.split(' ').next().and_then(|word| word.parse().ok());
    ns.map(|ns| ns / 1000.0).ok_or_else(|| format!("{path}: {text:?}"))
}

/// A command for one CPU, if there are two (the worker has the last one for itself), before others that want it, if that
/// can be.
fn favoured(command: &Command, last: bool) -> Command {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpu = if last { cpus - 1 } else { 0 };
    let mut pinned = Command::new("taskset");
    pinned.args(["-c", &cpu.to_string()]);
    if geteuid().is_root() {
        pinned.args(["nice", "-n", "-10"]);
    }
    pinned.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        value.map(|value| pinned.env(name, value));
    }
    pinned
}

/// A port that nobody listens at.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no port: {error}"))
}

/// A configuration with one worker, for these statements before all others, and these in `http`.
pub(crate) fn configuration(directory: &Path, before: &str, http: &str) -> String {
    let user = if geteuid().is_root() { "user root;\n" } else { "" };
    let directory = directory.display();
    let mut text = format!(
        "{before}{user}daemon off;\nworker_processes 1;\npid {directory}/pid;\nerror_log stderr crit;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  keepalive_requests 1000000000;\n"
    );
    for what in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text += &format!("  {what}_temp_path {directory}/{what};\n");
    }
    text + http + "}\n"
}

/// What of the plain figures of the same rounds is missing or added, in percent.
pub(crate) fn changed(plain: &[f64], ours: &[f64]) -> Option<Spread> {
    Spread::of(&plain.iter().zip(ours).map(|(plain, ours)| 100.0 * (ours - plain) / plain).collect::<Vec<_>>())
}

impl Nginx {
    /// One that answers. `before` is a command that runs it.
    pub(crate) fn start(
        packages: &Packages,
        before: Option<Command>,
        directory: &Path,
        configuration: &str,
        port: u16,
    ) -> Result<Nginx, String> {
        let file = directory.join("nginx.conf");
        std::fs::write(&file, configuration).map_err(|error| error.to_string())?;
        let binary = packages.program("usr/sbin/nginx").ok_or("there is no nginx")?;
        let mut command = match before {
            Some(mut command) => {
                command.arg(&binary);
                command
            }
            None => Command::new(&binary),
        };
        command.arg("-p").arg(directory).args(["-e", "stderr", "-c"]).arg(&file);
        let mut command = favoured(&command, true);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let master = spawned.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let mut nginx = Nginx { master, worker: 0, port };
        let id = nginx.master.id();
        nginx.worker = await_some("nginx's worker", || worker_of(running(id, "nginx")?))?;
        await_some("nginx's answer", || TcpStream::connect(("127.0.0.1", port)).ok())?;
        Ok(nginx)
    }

    /// Asks as often as can be: wrk's arguments, among them an address.
    pub(crate) fn load(
        &self,
        packages: &Packages,
        connections: u32,
        seconds: u32,
        arguments: &[&str],
    ) -> Result<Measured, String> {
        let mut wrk = Command::new(packages.program("usr/bin/wrk").ok_or("there is no wrk")?);
        let libraries = packages.unpacked.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        wrk.env("LD_LIBRARY_PATH", libraries);
        wrk.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s")]).args(arguments);
        let before = run_us(self.worker)?;
        let told = output(&mut favoured(&wrk, false))?;
        let worker_us = run_us(self.worker)? - before;
        let after = |what: &str| {
            let (_, rest) = told.split_once(what)?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        };
        let requests = told.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok());
        let (Some(requests), Some(requests_per_second)) = (requests, after("Requests/sec:")) else {
            return Err(format!("wrk: {told}"));
        };
        if told.contains("Socket errors") || told.contains("Non-2xx") {
            return Err(format!("nginx does not answer as it should: {told}"));
        }
        Ok(Measured { requests_per_second, requests, worker_us: worker_us / requests })
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        signal(self.master.id(), Signal::TERM);
        let ended = await_some("nginx's end", || self.master.try_wait().ok().flatten());
        if ended.is_err() {
            signal(self.worker, Signal::KILL);
            let _ = self.master.kill();
            let _ = self.master.wait();
        }
    }
}
