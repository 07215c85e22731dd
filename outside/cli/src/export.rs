//! `ring3 export`: metrics and spans from the maps of BPF programs, as ebpf_exporter has them.
//!
//! The process is the loader of the programs and keeps them. With a program to run there are two processes: this one becomes the
//! program, its child is the exporter.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use ring3_btf::KERNEL_BTF;
use ring3_engine::Engine;
use ring3_export::{Collector, Config, Exporter, Paths, Prepared, endpoint};
use ring3_server::control::Request;
use ring3_server::loader::{Compiling, LoadOptions};
use ring3_server::realm::Scope;
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::arguments::process_id;
use crate::{Failure, companion, input, launch, process};

/// Between two looks at signals and at the program.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// `ring3 export`
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The directory with NAME.yaml and NAME.bpf.o
    #[arg(long = "config.dir", value_name = "DIR")]
    config_dir: PathBuf,
    /// The configurations' names, separated by commas
    #[arg(long = "config.names", value_name = "NAME[,NAME]", value_delimiter = ',', required = true)]
    config_names: Vec<String>,
    /// Check whether all programs can be attached, and end
    #[arg(long = "config.check")]
    check: bool,
    /// A program that cannot be attached is an error
    #[arg(long = "config.strict")]
    strict: bool,
    /// Where scrapers ask: HOST:PORT, or :PORT for all addresses; port 0 is any free one
    #[arg(long = "web.listen-address", value_name = "ADDRESS", default_value = ":9435")]
    listen: String,
    /// The metrics' path
    #[arg(long = "web.telemetry-path", value_name = "PATH", default_value = "/metrics")]
    telemetry_path: String,
    /// Also send metrics and spans to a collector (OTLP over HTTP), e.g. http://localhost:4318
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_parser = endpoint)]
    otlp: Option<String>,
    /// Send metrics every so many seconds
    #[arg(long = "otlp.interval", value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    otlp_interval: u64,
    /// The kernel's types, for programs that use them
    #[arg(long = "btf.path", value_name = "FILE", default_value = KERNEL_BTF, hide_default_value = true)]
    btf: PathBuf,
    /// Make this process a target, with its children, and see targets only
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "until", "all"])]
    #[arg(value_parser = process_id, allow_negative_numbers = true)]
    pid: Option<u32>,
    /// See the system calls of all processes, not only of targets
    #[arg(long, conflicts_with = "command")]
    all: bool,
    /// Export until this process ends, and see targets only
    #[arg(long, value_name = "PID", hide = true)]
    until: Option<u32>,
    /// The program to run as a target, and its arguments; the exporter ends with it, and sees targets only
    #[arg(last = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

pub(crate) fn run(wanted: &Export) -> Result<ExitCode, Failure> {
    if wanted.command.is_empty() {
        return Ok(export(wanted).map(|()| ExitCode::SUCCESS)?);
    }
    launch::find_program(&wanted.command[0])?;
    companion::start("exporter", [])?;
    crate::start(true, false, &wanted.command).map(|()| ExitCode::SUCCESS)
}

/// Loads, attaches, and exports until a signal comes, or the program ends.
fn export(wanted: &Export) -> Result<(), String> {
    let prepared = prepare(wanted)?;
    let listener = if wanted.check { None } else { Some(listen(&wanted.listen)?) };
    let host = wanted.pid.or(wanted.until);
    let watched = host.map(process::open).transpose()?;
    let signalled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&signalled));
        registered.map_err(|error| format!("cannot wait for signals: {error}"))?;
    }
    become_loader(wanted)?;
    let exporter = Arc::new(Exporter::load(prepared, wanted.strict)?);
    for line in exporter.unattached() {
        say!("ring3: {line}");
    }
    if wanted.check {
        say!("ring3: {} program(s) attached", exporter.attached());
        return Ok(());
    }
    let goes_on = Arc::new(AtomicBool::new(true));
    let mut workers = vec![];
    if let Some(listener) = listener {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let paths = Paths { metrics: wanted.telemetry_path.clone() };
        say!("ring3: {} program(s) attached; metrics at http://{address}{}", exporter.attached(), paths.metrics);
        let exporter = Arc::clone(&exporter);
        // (It ends with the process.)
        std::thread::spawn(move || ring3_export::serve(&listener, &exporter, &paths));
    }
    {
        let (exporter, goes_on) = (Arc::clone(&exporter), Arc::clone(&goes_on));
        workers.push(std::thread::spawn(move || {
            exporter.drain(|| goes_on.load(Ordering::Relaxed));
            Ok(())
        }));
    }
    if let Some(endpoint) = wanted.otlp.clone() {
        let collector = Collector::new(endpoint, Duration::from_secs(wanted.otlp_interval));
        let (exporter, goes_on) = (Arc::clone(&exporter), Arc::clone(&goes_on));
        workers.push(std::thread::spawn(move || collector.run(&exporter, || goes_on.load(Ordering::Relaxed))));
    } else if exporter.has_spans() {
        say!("ring3: spans are configured, and --otlp names no collector to send them to");
    }
    if wanted.until.is_some() {
        companion::tell_ready();
    }
    wait(&signalled, watched.as_ref());
    goes_on.store(false, Ordering::Relaxed);
    workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a thread has failed".to_owned())))
}

fn wait(signalled: &AtomicBool, watched: Option<&OwnedFd>) {
    while !signalled.load(Ordering::Relaxed) {
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|process| PollFd::new(*process, PollFlags::IN)).collect();
        if rustix::event::poll(&mut fds, Some(&LOOK)).is_ok_and(|ended| ended > 0) {
            break;
        }
    }
}

fn prepare(wanted: &Export) -> Result<Vec<Prepared>, String> {
    let kernel = match input::kernel(&wanted.btf) {
        Err(why) if wanted.btf != Path::new(KERNEL_BTF) => return Err(why),
        kernel => kernel.unwrap_or_else(|_| ring3_object::Kernel::without_types()),
    };
    let settings = input::settings();
    let mut prepared: Vec<Prepared> = vec![];
    for name in &wanted.config_names {
        if prepared.iter().any(|other| other.config.name == *name) {
            return Err(format!("--config.names has {name} twice"));
        }
        let config = Config::read(&wanted.config_dir, name)?;
        prepared.push(Prepared::new(config, &kernel, &settings)?);
    }
    Ok(prepared)
}

/// `:9435` is all addresses of this machine, as in Go.
fn listen(address: &str) -> Result<TcpListener, String> {
    let fail =
        |error: std::io::Error| format!("cannot listen on {address}: {error}; choose with --web.listen-address");
    let addresses: Vec<SocketAddr> = match address.strip_prefix(':') {
        Some(port) => {
            let all = [format!("[::]:{port}"), format!("0.0.0.0:{port}")];
            let parsed: Result<_, _> = all.iter().map(|one| one.parse::<SocketAddr>()).collect();
            parsed.map_err(|_| format!("cannot listen on {address}: `{port}` is no port"))?
        }
        None => address.to_socket_addrs().map_err(fail)?.collect(),
    };
    TcpListener::bind(&addresses[..]).map_err(fail)
}

/// From now on this process's bpf(2) calls are answered by the server.
fn become_loader(wanted: &Export) -> Result<(), String> {
    let (connection, _) = launch::tracing_server()?;
    if let Some(pid) = wanted.pid {
        connection.ask(&Request::attach(pid, true), None)?;
    }
    let command = format!("ring3 export --config.names {}", wanted.config_names.join(","));
    let scope = match (wanted.pid.or(wanted.until), wanted.all) {
        (Some(_), _) => Scope::Targets,
        (None, true) => Scope::All,
        (None, false) => Scope::Mapped,
    };
    let compiling = Compiling { engine: Engine::Auto, harden: false };
    let options = LoadOptions { compiling, scope, trust: false, budget: None };
    launch::become_loader(&connection, &command, options)
}
