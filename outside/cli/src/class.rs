//! The class of a policy that an extension is loaded by, and where in the host's file its parts are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ring3_eim::model::At;
use ring3_eim::{Limits, Resolved};
use ring3_object::Object;
use ring3_server::realm::{ExtensionClass, Isolation, has_protection_keys};

use crate::eim::{Failed, Loaded, Program, class_of};
use crate::input;

/// Which class, and of which program.
#[derive(Debug, Args)]
pub(crate) struct Choice {
    /// The policy's file and the class in it, which says what the extension may do
    #[arg(long = "class", value_name = "POLICY:CLASS")]
    class: String,
    /// How the maps of the extension are kept from its host
    #[arg(long, value_name = "HOW", default_value = "pku")]
    isolation: Wanted,
    #[command(flatten)]
    of: Program,
}

/// What is asked for by `--isolation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wanted {
    /// By a protection key, where the CPU and the host have one
    Pku,
    /// By a protection key, or not at all: the extension is not loaded without one
    Require,
    /// Not
    None,
}

impl Choice {
    /// Whether the program is named, so that it need not be found.
    pub(crate) fn names_program(&self) -> bool {
        self.of.binary.is_some()
    }
}

/// A class, resolved for a program's file.
pub(crate) struct Chosen {
    /// Its name, with the policy's.
    pub(crate) name: String,
    /// What is granted at each of its entries, at least one: fields of the host, and results, differ; functions and variables do not.
    pub(crate) entries: Vec<ChosenEntry>,
    limits: Limits,
}

/// One entry of a class.
pub(crate) struct ChosenEntry {
    /// Its name in the model.
    pub(crate) name: String,
    /// The function that is extended.
    pub(crate) function: String,
    pub(crate) class: ExtensionClass,
}

impl Chosen {
    /// What one run may take.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.limits.time_ns)
    }

    /// Whether the object's maps are within the class's limits.
    ///
    /// # Errors
    /// The limit, and what the object wants.
    pub(crate) fn check_maps(&self, object: &Object) -> Result<(), String> {
        let Limits { maps, memory_bytes, .. } = self.limits;
        let (name, count) = (&self.name, object.maps.len());
        if count > maps as usize {
            let names: Vec<&str> = object.maps.iter().map(|map| map.name.as_str()).collect();
            let names = names.join(", ");
            return Err(format!("class {name} allows {maps} maps, and the extension has {count}: {names}"));
        }
        let bytes: u64 = object.maps.iter().map(bytes_of).fold(0, u64::saturating_add);
        if bytes > memory_bytes {
            return Err(format!(
                "class {name} allows maps of {memory_bytes} bytes, and those of the extension have {bytes}; make them smaller, or \
                 give the class more `memory`"
            ));
        }
        Ok(())
    }
}

/// Bytes of a map's keys and values.
fn bytes_of(map: &ring3_object::MapDef) -> u64 {
    use ring3_uapi::bpf::map_type::{ARENA, LRU_PERCPU_HASH, PERCPU_ARRAY, PERCPU_HASH, RINGBUF, USER_RINGBUF};
    const PAGE: u64 = 4096;
    let cpus = match map.map_type {
        PERCPU_ARRAY | PERCPU_HASH | LRU_PERCPU_HASH => u64::from(ring3_server::realm::possible_cpus()),
        _ => 1,
    };
    let each = match map.map_type {
        RINGBUF | USER_RINGBUF => 1,
        ARENA => PAGE,
        _ => u64::from(map.key_size).saturating_add(u64::from(map.value_size).saturating_mul(cpus)),
    };
    each.saturating_mul(u64::from(map.max_entries.max(1)))
}

/// Reads the policy. The program is the one that `--binary` names, else the one that the process runs.
///
/// # Errors
/// What is wrong with the policy or the program, and what to do.
pub(crate) fn choose(wanted: &Choice, pid: Option<u32>) -> Result<Chosen, Failed> {
    let binary = match (&wanted.of.binary, pid) {
        (Some(path), _) => path.clone(),
        (None, Some(pid)) => program_of(pid)?,
        (None, None) => return Err("say what is extended: -- PROGRAM to run one, --pid PID for a process, or --binary PATH for all processes with this file".to_owned().into()),
    };
    let of = Program { binary: Some(binary.clone()), ..wanted.of.clone() };
    let (policy, name) = class_of(&wanted.class)?;
    let loaded = Loaded::new(&policy, &of).map_err(|failed| match failed {
        // (`-- sh -c ./server`)
        Failed::Refused(why) if wanted.of.binary.is_some() && why.contains("has no types") => {
            Failed::Refused(format!("{why}; if this program begins another one that is meant, name that by --binary"))
        }
        failed => failed,
    })?;
    let resolved =
        loaded.class(&policy, name)?.apart().map(|class| loaded.resolve(&class)).collect::<Result<Vec<_>, _>>()?;
    let bytes = input::read(&binary)?;
    let complain = |why: String| Failed::Refused(format!("{}: {why}", binary.display()));
    let elf = ring3_elf::File::parse(&bytes).map_err(|error| complain(error.to_string()))?;
    if elf.go_text().is_some() {
        return Err(complain("it is a Go program, whose functions cannot be extended".into()));
    }
    // (A class has an entry, or it would have been refused.)
    let limits = resolved[0].limits.clone();
    let name = format!("{}:{name}", policy.display());
    let file = absolute(&binary)?;
    let isolation = isolation(wanted.isolation)?;
    let entry = |resolved| place(&elf, resolved, (&name, isolation), &file).map_err(complain);
    let entries = resolved.into_iter().map(entry);
    Ok(Chosen { entries: entries.collect::<Result<_, _>>()?, name, limits })
}

/// Where in the host's file an entry of a class is, and what it grants.
fn place(
    elf: &ring3_elf::File<'_>,
    resolved: Resolved,
    (class, isolation): (&str, Isolation),
    file: &Path,
) -> Result<ChosenEntry, String> {
    let missing = |symbol: &str| {
        format!(
            "`{symbol}` is not in this file, in which an extension's symbols have to be, nor does it call a function of that name \
             by a stub (PLT)"
        )
    };
    // (Which of several has the types that the class was resolved by is not known.)
    let only = |symbol: &String, found: BTreeSet<u64>| match found.len() {
        0 => Err(missing(symbol)),
        1 => Ok(found.into_iter().next().unwrap_or_default()),
        count => Err(format!(
            "`{symbol}` is the name of {count} functions or variables in this file; give the one that is meant a name of its own"
        )),
    };
    let function_at = |symbol: &String| {
        let found = elf.symbols().iter().filter(|known| known.name == symbol);
        if found.clone().any(|known| known.indirect) {
            return Err(format!(
                "which function `{symbol}` is is decided when the program starts (an IFUNC); choose another one"
            ));
        }
        let found: BTreeSet<u64> = found.map(|known| known.address).collect();
        only(symbol, if found.is_empty() { elf.stub(symbol).into_iter().collect() } else { found })
    };
    let function = resolved.entry.function;
    let entry = function_at(&function)?;
    let functions = resolved.grant.functions.iter().map(|granted| function_at(&granted.symbol));
    let globals =
        resolved.grant.globals.iter().map(|granted| only(&granted.symbol, elf.find_variables(&granted.symbol)));
    let distance = |address: Result<u64, String>| Ok(address?.wrapping_sub(entry) as i64);
    let symbols = functions.chain(globals).map(distance).collect::<Result<Vec<i64>, String>>()?;
    let class = ExtensionClass {
        name: class.to_owned(),
        programs: BTreeSet::new(),
        grant: resolved.grant,
        file: file.to_owned(),
        offset: elf.vaddr_to_offset(entry).ok_or_else(|| missing(&function))?,
        at_end: resolved.entry.at == At::Return,
        symbols,
        helpers: resolved.limits.helpers.iter().copied().collect(),
        insns_max: resolved.limits.instructions,
        isolation,
    };
    Ok(ChosenEntry { name: resolved.entry.name, function, class })
}

fn isolation(wanted: Wanted) -> Result<Isolation, Failed> {
    match wanted {
        Wanted::None => Ok(Isolation::None),
        Wanted::Pku => Ok(Isolation::Keys),
        Wanted::Require if has_protection_keys() => Ok(Isolation::Required),
        Wanted::Require => Err(Failed::Refused(
            "--isolation=require: this CPU has no protection keys (`grep ospke /proc/cpuinfo` shows them); with \
             --isolation=pku the extension is loaded without"
                .to_owned(),
        )),
    }
}

fn program_of(pid: u32) -> Result<PathBuf, String> {
    let link = format!("/proc/{pid}/exe");
    std::fs::canonicalize(&link).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound if !Path::new(&format!("/proc/{pid}")).exists() => no_process(pid),
        // (Its parent has not waited for it yet.)
        std::io::ErrorKind::NotFound if is_zombie(pid) => no_process(pid),
        std::io::ErrorKind::NotFound => {
            format!("process {pid} is a thread of the kernel, which has no program to extend")
        }
        std::io::ErrorKind::PermissionDenied => not_yours(pid),
        _ => format!("cannot find the program of process {pid}: {error}; name it with --binary"),
    })
}

/// What is said of a process that is not there.
pub(crate) fn no_process(pid: u32) -> String {
    format!("there is no process {pid}: it has ended, or the number is wrong")
}

fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

/// What is said of a process that may not be looked at.
fn not_yours(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    match std::fs::metadata(format!("/proc/{pid}")).map(|process| process.uid()) {
        Ok(owner) if owner != own => format!(
            "not permitted to look at process {pid}: it belongs to user {owner}, and you are user {own}; run ring3 as that user \
             or as root"
        ),
        _ => format!("not permitted to look at process {pid}; run ring3 as root"),
    }
}

/// Whether a process has a file mapped, which is to be extended.
///
/// # Errors
/// It has not.
pub(crate) fn check_process(pid: u32, file: &Path) -> Result<(), String> {
    // (Of a process that may not be looked at nothing is known.)
    if maps_file(pid, file)?.unwrap_or(true) {
        return Ok(());
    }
    Err(format!(
        "process {pid} does not run {}, whose function the class extends; name a process that does, or its own program with \
         --binary",
        file.display()
    ))
}

/// Whether a process maps a file; `None`: it cannot be looked at.
///
/// # Errors
/// The file is not there.
pub(crate) fn maps_file(pid: u32, file: &Path) -> Result<Option<bool>, String> {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.ino().to_string();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok().filter(|maps| !maps.is_empty());
    Ok(maps.map(|maps| maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&inode))))
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|error| format!("cannot find {}: {error}", path.display()))
}
