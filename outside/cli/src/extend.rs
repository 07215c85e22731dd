//! `ring3 extend`: programs that extend a host, as far as a class of a policy allows it.
//!
//! The process that loads them keeps them: it waits until its host or the server has ended, or until it is ended itself. With a program
//! to run there are two processes: this one becomes the program, another one is the loader (`companion.rs`).

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ring3_bpf::Loaded;
use ring3_btf::KERNEL_BTF;
use ring3_engine::Engine;
use ring3_object::{HostSymbols, Object, Settings};
use ring3_server::control::{Connection, Request};
use ring3_server::loader::{Compiling, LoadOptions};
use ring3_server::realm::Scope;
use ring3_uapi::bpf::attach_type;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::MemfdFlags;

use crate::arguments::process_id;
use crate::{Failure, class, companion, eim, input, launch, process};

/// `ring3 extend`
#[derive(Debug, Args)]
pub(crate) struct Extend {
    #[command(flatten)]
    pub(crate) class: class::Choice,
    /// The BPF object file with the extension
    #[arg(value_name = "FILE.bpf.o")]
    pub(crate) file: PathBuf,
    /// Which program of the file, by the name of its function; all that it loads by default
    #[arg(long, value_name = "NAME")]
    pub(crate) program: Option<String>,
    /// Extend this process, its children and the programs that they execute
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "until"])]
    #[arg(value_parser = process_id, allow_negative_numbers = true)]
    pub(crate) pid: Option<u32>,
    /// Keep the extension until this process ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) until: Option<u32>,
    /// The program to run and extend, and its arguments; without it and --pid all processes that map the file of the entry
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<String>,
}

pub(crate) fn run(wanted: &Extend) -> Result<ExitCode, Failure> {
    if wanted.command.is_empty() {
        return Ok(keep(wanted).map_or_else(eim::Failed::tell, |()| ExitCode::SUCCESS));
    }
    let mut more = vec![];
    if !wanted.class.names_program() {
        more.extend(["--binary".into(), launch::find_program(&wanted.command[0])?.into()]);
    }
    companion::start("loader", more)?;
    crate::start(true, false, &wanted.command).map(|()| ExitCode::SUCCESS)
}

/// Loads and attaches the extension, and keeps it until its host ends.
fn keep(wanted: &Extend) -> Result<(), eim::Failed> {
    let mut chosen = class::choose(&wanted.class, wanted.pid)?;
    let host = wanted.pid.or(wanted.until);
    let object = read_object(wanted, &chosen).map_err(eim::Failed::Refused)?;
    let entries = share_out(&object, &mut chosen)
        .map_err(|why| eim::Failed::Refused(format!("{}: {why}", wanted.file.display())))?;
    chosen.check_maps(&object).map_err(eim::Failed::Refused)?;
    let (connection, server) = launch::tracing_server()?;
    let watched = [Some(server), host].into_iter().flatten().map(process::open).collect::<Result<Vec<_>, _>>()?;
    let extended =
        wanted.pid.map(|pid| attach_family(pid, &chosen.entries[0].class.file, &connection)).transpose()?;
    become_loader(wanted, &chosen, host, connection)?;
    let loaded =
        Loaded::load(&object).map_err(|error| eim::Failed::Refused(format!("{}: {error}", wanted.file.display())))?;
    let mut links = vec![];
    for (index, program) in &loaded.programs {
        let class = &chosen.entries[entries[index]].class;
        let link = ring3_bpf::link_uprobe(program, &class.file, class.offset, class.at_end, 0);
        let link = link.map_err(|error| {
            let name = &object.programs[*index].name;
            eim::Failed::Refused(format!("cannot attach {name}: {error}; server.log says why"))
        })?;
        links.push(link);
    }
    announce(wanted, &chosen, extended.unwrap_or_default());
    let mut fds: Vec<PollFd<'_>> = watched.iter().map(|process| PollFd::new(process, PollFlags::IN)).collect();
    while rustix::event::poll(&mut fds, None).is_err() {}
    let is_host_gone = watched.get(1).is_some_and(process::has_ended);
    drop(links);
    if is_host_gone {
        return Ok(());
    }
    Err(eim::Failed::Refused(format!(
        "the server has ended: class {} extends nothing any more as soon as another server begins; run this command again",
        chosen.name
    )))
}

/// Makes a process a target, and those of its descendants that run the same program: a server's workers, which do its work.
/// Returns how many of these there are.
fn attach_family(pid: u32, file: &Path, connection: &Connection) -> Result<usize, String> {
    class::check_process(pid, file)?;
    connection.ask(&Request::attach(pid, true), None)?;
    let mut count = 0;
    // (Those that it makes from now on are followed.)
    for child in process::descendants(pid) {
        if class::maps_file(child, file)? != Some(true) {
            continue;
        }
        let request = Request::Attach {
            pid: child,
            follow: true,
            for_links: false,
            of_family: Some(pid),
            before_program: false,
        };
        match connection.ask(&request, None) {
            Ok(_) => count += 1,
            Err(_) if !Path::new(&format!("/proc/{child}")).exists() => {}
            Err(why) => return Err(format!("process {child}, a child of {pid}: {why}")),
        }
    }
    Ok(count)
}

fn announce(wanted: &Extend, chosen: &class::Chosen, children: usize) {
    if wanted.until.is_some() {
        return companion::tell_ready();
    }
    let whom = match wanted.pid {
        Some(pid) if children == 0 => format!("process {pid}"),
        Some(pid) => format!("process {pid} and {children} of its children"),
        None => format!("all processes with {} that this user may trace", chosen.entries[0].class.file.display()),
    };
    let mut functions: Vec<&str> = chosen.entries.iter().map(|entry| entry.function.as_str()).collect();
    functions.dedup();
    say!("ring3: class {} extends {} in {whom}; end it with Ctrl-C", chosen.name, functions.join(", "));
}

fn read_object(wanted: &Extend, chosen: &class::Chosen) -> Result<Object, String> {
    let bytes = input::read(&wanted.file)?;
    let complain = |why: String| format!("{}: {why}", wanted.file.display());
    let names = |symbols: Vec<&String>| symbols.into_iter().cloned().collect();
    // (The same for all entries.)
    let class = &chosen.entries[0].class;
    let host = HostSymbols {
        functions: names(class.grant.functions.iter().map(|function| &function.symbol).collect()),
        variables: names(class.grant.globals.iter().map(|variable| &variable.symbol).collect()),
    };
    let settings = Settings { host: Some(host), ..input::settings() };
    let kernel = input::kernel(Path::new(KERNEL_BTF)).unwrap_or_else(|_| ring3_object::Kernel::without_types());
    let mut object = Object::load(&bytes, &kernel, &settings).map_err(|error| match error {
        ring3_object::Error::NoSymbol(name) => complain(format!("class {} does not grant {name}", class.name)),
        other => complain(other.to_string()),
    })?;
    if let Some(name) = &wanted.program {
        if !object.programs.iter().any(|program| program.name == *name) {
            return Err(input::no_program(&wanted.file, &object, name));
        }
        object.programs.iter_mut().for_each(|program| program.autoload = program.name == *name);
    }
    for program in &mut object.programs {
        program.expected_attach_type = attach_type::TRACE_UPROBE_MULTI;
    }
    if !object.programs.iter().any(|program| program.autoload) {
        return Err(complain("it has no program to load".into()));
    }
    if let Some(map) = object.maps.iter().find(|map| map.pinned) {
        return Err(complain(format!(
            "map {} asks to be pinned by its name, which `ring3 extend` does not do; leave `pinning` out: `ring3 load -- bpftool map \
             dump name {}` finds it by its name",
            map.name, map.name
        )));
    }
    Ok(object)
}

/// Which entry of the class each program that is loaded extends, by the indices of both. The entries learn their programs' names,
/// by which the server tells them apart.
fn share_out(object: &Object, chosen: &mut class::Chosen) -> Result<BTreeMap<usize, usize>, String> {
    /// As much of a name as bpf(2) takes, bytes.
    const NAME_BYTES: usize = 15;
    let mut shared = BTreeMap::new();
    for (index, program) in object.programs.iter().enumerate().filter(|(_, program)| program.autoload) {
        let at = entry_of(&program.section, &chosen.entries)
            .map_err(|why| format!("program {} is in section `{}`; {why}", program.name, program.section))?;
        let name: String = program.name.chars().take(NAME_BYTES).collect();
        if chosen.entries.iter().enumerate().any(|(other, entry)| other != at && entry.class.programs.contains(&name))
        {
            return Err(format!("two programs of different entries begin with `{name}`; rename one"));
        }
        chosen.entries[at].class.programs.insert(name);
        shared.insert(index, at);
    }
    Ok(shared)
}

/// Which entry a program's section names: `uprobe/ENTRY`, or `uprobe` if there is one entry only.
fn entry_of(section: &str, entries: &[class::ChosenEntry]) -> Result<usize, String> {
    let (kind, named) = section.split_once('/').map_or((section, None), |(kind, name)| (kind, Some(name)));
    let kind = kind.split('.').next().unwrap_or_default();
    if !matches!(kind, "uprobe" | "uretprobe") {
        return Err("an extension is in SEC(\"uprobe\")".into());
    }
    let names =
        || entries.iter().map(|entry| format!("SEC(\"{kind}/{}\")", entry.name)).collect::<Vec<_>>().join(", ");
    let at = match (named, entries) {
        (None, [_]) => 0,
        (None, _) => return Err(format!("the class has several entries: write one of {}", names())),
        (Some(name), _) => entries.iter().position(|entry| entry.name == name).ok_or_else(|| {
            format!(
                "the class says where an extension runs: write SEC(\"{kind}\"), or with its entry's name, {}",
                names()
            )
        })?,
    };
    if kind == "uretprobe" && !entries[at].class.at_end {
        return Err("the class's entry is `at entry`: write SEC(\"uprobe\")".into());
    }
    Ok(at)
}

/// From now on this process's bpf(2) calls are answered by the server, and its programs are extensions of the class.
fn become_loader(
    wanted: &Extend,
    chosen: &class::Chosen,
    host: Option<u32>,
    connection: Connection,
) -> Result<(), String> {
    for entry in &chosen.entries {
        let text = serde_json::to_vec(&entry.class).expect("classes are serialisable");
        let file = rustix::fs::memfd_create("ring3-class", MemfdFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let mut file = std::fs::File::from(file);
        let written = file.write_all(&text).and_then(|()| std::io::Seek::rewind(&mut file));
        written.map_err(|error| format!("cannot hand the class over: {error}"))?;
        connection.ask(&Request::Extend, Some(file.as_fd()))?;
    }
    let command = format!("ring3 extend --class {} {}", chosen.name, wanted.file.display());
    // (Other processes than the one that is named, or run, are no concern of the extension.)
    let scope = host.map_or(Scope::Mapped, Scope::Family);
    let compiling = Compiling { engine: Engine::Jit, harden: false };
    let options = LoadOptions { compiling, scope, trust: false, budget: Some(chosen.time()) };
    launch::become_loader(&connection, &command, options)
}
