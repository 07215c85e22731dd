//! The files by which loaders find tracepoints, and functions of system calls: `id` and `format` of each tracepoint,
//! `available_events`, `available_filter_functions`, and the directories that contain these.
//!
//! (What `/proc` has on descriptors is opened here, too, and made in [`descriptors`].)
//!
//! The kernel lets only root read them, where tracefs is mounted; here the server always answers for them. If the kernel has no
//! kprobe PMU, the server also answers for the PMU's files, and for the lists of probes that were made by writing
//! (`kprobe_events`), which loaders read first; and for the list of symbols (`/proc/kallsyms`), if all addresses in it are hidden. All
//! other files are the kernel's: calls on them go on to it. So does the question whether debugfs has tracefs in it.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use ring3_uapi::Errno;
use ring3_uapi::syscalls::TABLE;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use super::call_function::function_of;
use super::names::path_of;
use super::tracepoint::Tracepoint;
use super::{Caller, Outcome, Reply, descriptors, perf};
use crate::control::runtime_dir;
use crate::kernel::KERNEL_SYMBOLS;
use crate::loader::objects::errno;

/// Where tracefs is mounted, and where it is too if debugfs is.
const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Where the kprobe PMU is described.
const KPROBE_PMU: &str = "/sys/bus/event_source/devices/kprobe";
/// `TRACEFS_MAGIC`.
pub(super) const TRACEFS_MAGIC: u64 = 0x7472_6163;

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    /// A directory whose names loaders list (glob(3) of `bpftrace`): `events` or a category in it, where nobody can read the kernel's.
    Listed(Option<&'static str>),
    /// `available_events`
    Events,
    /// `available_filter_functions`
    Functions,
    /// The kprobe PMU's number.
    KprobeType,
    /// Its bit for returns.
    KprobeReturn,
    /// `kprobe_events`, `uprobe_events`, where nobody can read them: there are none.
    Probes,
    /// The kernel's symbols, where it tells nobody their addresses.
    Symbols,
    /// A tracepoint's `id`.
    Id(Tracepoint),
    /// A tracepoint's `format`.
    Format(Tracepoint),
}

impl Entry {
    /// `None` for what is the kernel's, or nobody's.
    fn at(path: &Path) -> Option<Entry> {
        if let Ok(rest) = path.strip_prefix(KPROBE_PMU) {
            let entry = match rest.to_str()? {
                "" | "format" => Entry::Directory,
                "type" => Entry::KprobeType,
                "format/retprobe" => Entry::KprobeReturn,
                _ => return None,
            };
            return perf::kernel_pmu("kprobe").is_ok_and(|pmu| pmu.is_none()).then_some(entry);
        }
        if path == Path::new(KERNEL_SYMBOLS) {
            return symbols().is_some().then_some(Entry::Symbols);
        }
        let (root, rest) = ROOTS.iter().find_map(|root| Some((*root, path.strip_prefix(root).ok()?.to_str()?)))?;
        let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
        match parts[..] {
            [] => (root == ROOTS[0]).then_some(Entry::Directory),
            ["available_events"] => Some(Entry::Events),
            ["available_filter_functions"] => Some(Entry::Functions),
            ["kprobe_events" | "uprobe_events"] => (!path.exists()).then_some(Entry::Probes),
            ["events"] => Some(listed(path, None)),
            ["events", category] => {
                let known = Tracepoint::CATEGORIES.into_iter().find(|known| *known == category)?;
                Some(listed(path, Some(known)))
            }
            ["events", category, name] => Tracepoint::named(category, name).map(|_| Entry::Directory),
            ["events", category, name, "id"] => Tracepoint::named(category, name).map(Entry::Id),
            ["events", category, name, "format"] => Tracepoint::named(category, name).map(Entry::Format),
            _ => None,
        }
    }

    /// What the loader means by a path, if that is ours. All else, mistakes too, is the kernel's to answer.
    /// Nor is it ours for callers who may not see the kernel's (fs/tracefs/inode.c: it is root's, mode 0700).
    fn of(caller: &Caller<'_>, directory: i32, address: u64) -> Option<Entry> {
        Entry::of_path(caller, &path_of(caller, directory, address).ok()?)
    }

    fn of_path(caller: &Caller<'_>, path: &Path) -> Option<Entry> {
        let entry = Entry::at(path)?;
        caller.rights().ok()?.may_open_of_server().then_some(entry)
    }

    fn text(self) -> String {
        match self {
            Entry::Directory | Entry::Listed(_) | Entry::Probes => String::new(),
            Entry::Events => Tracepoint::listed().map(|tracepoint| format!("{tracepoint}\n")).collect(),
            Entry::Functions => TABLE.iter().map(|call| format!("{}\n", function_of(call))).collect(),
            Entry::KprobeType => format!("{}\n", perf::KPROBE_TYPE),
            Entry::KprobeReturn => "config:0\n".into(),
            Entry::Symbols => symbols().unwrap_or_default().to_owned(),
            Entry::Id(tracepoint) => format!("{}\n", tracepoint.id()),
            Entry::Format(tracepoint) => tracepoint.format(),
        }
    }

    fn mode(self) -> u32 {
        if self.is_directory() { libc::S_IFDIR | 0o555 } else { libc::S_IFREG | 0o444 }
    }

    fn is_directory(self) -> bool {
        matches!(self, Entry::Directory | Entry::Listed(_))
    }

    /// A number of its own.
    fn inode(self) -> u64 {
        match self {
            Entry::Directory | Entry::Listed(_) => 1,
            Entry::Events => 2,
            Entry::Functions => 3,
            Entry::KprobeType => 4,
            Entry::KprobeReturn => 5,
            Entry::Probes => 6,
            Entry::Symbols => 7,
            Entry::Id(tracepoint) => 2 * tracepoint.id(),
            Entry::Format(tracepoint) => 2 * tracepoint.id() + 1,
        }
    }
}

/// The kernel's symbols with addresses for functions of system calls, if the kernel shows none, as to an ordinary user: tools look there
/// which of these functions exist, and take those without address to be missing. They get addresses that mean nothing.
fn symbols() -> Option<&'static str> {
    static SYMBOLS: OnceLock<Option<String>> = OnceLock::new();
    let read = || with_addresses(BufReader::new(std::fs::File::open(KERNEL_SYMBOLS).ok()?));
    SYMBOLS.get_or_init(read).as_deref()
}

/// `None` as soon as there is an address: root, to whom the kernel shows them, does not wait until all are read.
fn with_addresses(hidden: impl BufRead) -> Option<String> {
    /// Above all that the kernel has (Documentation/arch/x86/x86_64/mm.rst: "unused hole", 2 MiB): no real address is taken for one behind
    /// these.
    const FIRST: u64 = 0xffff_ffff_ffe0_0000;
    const BYTES: u64 = 16;
    const NO_ADDRESS: &str = "0000000000000000 ";
    let functions: HashSet<String> = TABLE.iter().map(function_of).collect();
    let mut addresses = (FIRST..).step_by(BYTES as usize);
    let mut shown = String::new();
    for line in hidden.lines() {
        let line = line.ok()?;
        let symbol = line.strip_prefix(NO_ADDRESS)?;
        let is_ours = symbol.split_whitespace().nth(1).is_some_and(|name| functions.contains(name));
        let address = if is_ours { addresses.next()? } else { 0 };
        shown += &format!("{address:016x} {symbol}\n");
    }
    (!shown.is_empty()).then_some(shown)
}

fn listed(path: &Path, category: Option<&'static str>) -> Entry {
    if std::fs::read_dir(path).is_ok() { Entry::Directory } else { Entry::Listed(category) }
}

/// Where the names of tracepoints are, below the server's run-time directory, once a loader has asked for them.
pub(crate) const LISTED_DIRECTORY: &str = "tracefs";

/// A real directory with the names of one of tracefs: empty directories, made once.
fn open_listed(category: Option<&str>) -> std::io::Result<OwnedFd> {
    static MADE: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut made = MADE.lock().expect("no panic under this lock");
    let events = match &*made {
        Some(events) => events.clone(),
        None => {
            let events = runtime_dir().map_err(std::io::Error::other)?.join(LISTED_DIRECTORY).join("events");
            for tracepoint in Tracepoint::listed() {
                std::fs::create_dir_all(events.join(tracepoint.category()).join(tracepoint.name()))?;
            }
            made.insert(events).clone()
        }
    };
    let path = category.map_or(events.clone(), |category| events.join(category));
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether a path is in what statfs(2) shall call tracefs.
pub(super) fn is_in_tracefs(caller: &Caller<'_>, path: &Path) -> bool {
    ROOTS.iter().any(|root| path.starts_with(root))
        && Entry::at(path).is_some()
        && caller.rights().is_ok_and(|rights| rights.may_open_of_server())
}

/// open(2) and openat(2).
pub(super) fn open(caller: &Caller<'_>, directory: i32, address: u64, flags: u64) -> Reply {
    let flags = OFlags::from_bits_retain(flags as u32);
    let Ok(path) = path_of(caller, directory, address) else { return Ok(Outcome::Continue) };
    let close_on_exec = flags.contains(OFlags::CLOEXEC);
    if flags & OFlags::ACCMODE == OFlags::RDONLY
        && !flags.intersects(OFlags::PATH | OFlags::DIRECTORY)
        && let Some(info) = descriptors::info(caller, &path)
    {
        return Ok(Outcome::Fd { fd: memory_file(&info)?, close_on_exec });
    }
    let Some(entry) = Entry::of_path(caller, &path) else {
        if let Some(name) = only_of_kernel(&path) {
            caller.say_once(&no_such_tracepoint(&name));
        }
        return Ok(Outcome::Continue);
    };
    if entry == Entry::Directory || flags.contains(OFlags::PATH) {
        return Ok(Outcome::Continue);
    }
    if let Entry::Listed(category) = entry {
        let fd = open_listed(category).map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::ENOENT.0)))?;
        return Ok(Outcome::Fd { fd, close_on_exec });
    }
    if flags & OFlags::ACCMODE != OFlags::RDONLY {
        return Err(Errno::EACCES);
    }
    if flags.contains(OFlags::DIRECTORY) {
        return Err(Errno::ENOTDIR);
    }
    Ok(Outcome::Fd { fd: memory_file(&entry.text())?, close_on_exec })
}

/// The name of a tracepoint that is not ours, if a path is that of its `id` or `format`, which nobody here can read. Tools say of it only
/// that they do not find it.
fn only_of_kernel(path: &Path) -> Option<String> {
    let rest = ROOTS.iter().find_map(|root| path.strip_prefix(root).ok()?.to_str())?;
    let ["events", category, name, "id" | "format"] = rest.split('/').collect::<Vec<_>>()[..] else { return None };
    let is_of_calls = matches!(category, "syscalls" | "raw_syscalls");
    let is_missing = Tracepoint::named(category, name).is_none() && std::fs::File::open(path).is_err();
    (is_missing && !is_of_calls).then(|| format!("{category}:{name}"))
}

fn no_such_tracepoint(name: &str) -> String {
    let tasks = Tracepoint::all().filter(|tracepoint| matches!(tracepoint, Tracepoint::Task(_)));
    let tasks: Vec<String> = tasks.map(|tracepoint| tracepoint.to_string()).collect();
    format!(
        "tracepoint {name} is the kernel's, if there is one: root sees it without ring3; in user space there are syscalls:*, \
         raw_syscalls:sys_enter, raw_syscalls:sys_exit, {}",
        tasks.join(", ")
    )
}

/// openat2(2): the flags are in a `struct open_how`.
pub(super) fn openat2(caller: &Caller<'_>) -> Reply {
    let Ok(flags) = caller.read(caller.arg(2), 8) else { return Ok(Outcome::Continue) };
    let flags = u64::from_le_bytes(flags.try_into().expect("8 bytes"));
    open(caller, caller.arg(0) as i32, caller.arg(1), flags)
}

/// A file that can be read, and written by nobody.
fn memory_file(text: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("ring3-file", flags).map_err(errno)?);
    file.write_all(text.as_bytes()).map_err(|_| Errno::ENOMEM)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(errno)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(errno)
}

/// access(2) and its kin.
pub(super) fn access(caller: &Caller<'_>, directory: i32, address: u64, wanted: u64) -> Reply {
    const ALL: u64 = (libc::R_OK | libc::W_OK | libc::X_OK) as u64;
    let Some(entry) = Entry::of(caller, directory, address) else { return Ok(Outcome::Continue) };
    match wanted {
        wanted if wanted & !ALL != 0 => Err(Errno::EINVAL),
        wanted if wanted & !u64::from(entry.mode()) != 0 => Err(Errno::EACCES),
        _ => Ok(Outcome::Value(0)),
    }
}

/// stat(2), lstat(2), newfstatat(2): `struct stat`.
pub(super) fn stat(caller: &Caller<'_>, directory: i32, address: u64, out: u64) -> Reply {
    let Some(entry) = Entry::of(caller, directory, address) else { return Ok(Outcome::Continue) };
    let mut words = [0u64; 18];
    (words[1], words[2], words[3]) = (entry.inode(), 1, entry.mode().into());
    words[7] = ring3_layout::PAGE_BYTES;
    caller.write(out, words.map(u64::to_le_bytes).as_flattened())?;
    Ok(Outcome::Value(0))
}

/// statx(2): `struct statx`.
pub(super) fn statx(caller: &Caller<'_>) -> Reply {
    let Some(entry) = Entry::of(caller, caller.arg(0) as i32, caller.arg(1)) else { return Ok(Outcome::Continue) };
    let mut words = [0u64; 32];
    words[0] = u64::from(libc::STATX_BASIC_STATS) | ring3_layout::PAGE_BYTES << 32;
    (words[2], words[3], words[4]) = (1, u64::from(entry.mode()) << 32, entry.inode());
    caller.write(caller.arg(4), words.map(u64::to_le_bytes).as_flattened())?;
    Ok(Outcome::Value(0))
}

/// The tracepoint that the kernel has this id for, if that can be read: a loader may know it from elsewhere.
pub(super) fn of_kernel_id(id: u64) -> Option<Tracepoint> {
    static KNOWN: OnceLock<HashMap<u64, Tracepoint>> = OnceLock::new();
    let id_of = |tracepoint: Tracepoint| {
        let file = |root| format!("{root}/events/{}/{}/id", tracepoint.category(), tracepoint.name());
        let text = ROOTS.iter().find_map(|root| std::fs::read_to_string(file(root)).ok())?;
        Some((text.trim().parse().ok()?, tracepoint))
    };
    let is_mounted = || ROOTS.iter().any(|root| Path::new(root).join("events").is_dir());
    let read = || if is_mounted() { Tracepoint::all().filter_map(id_of).collect() } else { HashMap::new() };
    KNOWN.get_or_init(read).get(&id).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_what_is_ours_and_no_further() {
        let at = |path: &str| Entry::at(Path::new(path));
        let enter = Tracepoint::named("syscalls", "sys_enter_openat").expect("known");
        for root in ROOTS {
            let event = format!("{root}/events/syscalls/sys_enter_openat");
            assert_eq!(at(&format!("{event}/id")), Some(Entry::Id(enter)));
            assert_eq!(at(&format!("{event}/format")), Some(Entry::Format(enter)));
            assert_eq!(at(&event), Some(Entry::Directory));
            assert_eq!(at(&format!("{root}/available_events")), Some(Entry::Events));
            for other in
                ["sched/sched_switch/id", "sched/enable", "timer", "syscalls/enable", "syscalls/sys_enter_stat/id"]
            {
                assert_eq!(at(&format!("{root}/events/{other}")), None, "{other}");
            }
            assert_eq!(at(&format!("{event}/id/x")), None);
        }
        assert_eq!(at("/sys/bus/event_source/devices/uprobe/type"), None);
        assert_eq!((at(ROOTS[0]), at(ROOTS[1]), at("/sys/kernel")), (Some(Entry::Directory), None, None));
        assert_eq!(at("/sys/kernel/tracing2/available_events"), None);
    }

    #[test]
    fn hidden_addresses_of_system_calls_are_made_up_and_no_others() {
        let hidden =
            "0000000000000000 T _text\n0000000000000000 T __x64_sys_read\n0000000000000000 t __x64_sys_write [m]\n";
        let shown =
            "0000000000000000 T _text\nffffffffffe00000 T __x64_sys_read\nffffffffffe00010 t __x64_sys_write [m]\n";
        assert_eq!(with_addresses(hidden.as_bytes()).as_deref(), Some(shown));
        assert_eq!((with_addresses(&b""[..]), with_addresses(&b"ffffffff81000040 T _text\n"[..])), (None, None));
    }

    #[test]
    fn of_a_tracepoint_that_only_the_kernel_has_its_name_is_said() {
        let name = |path: &str| only_of_kernel(Path::new(path));
        for root in ROOTS {
            let none = format!("{root}/events/ring3_none/nothing");
            assert_eq!(name(&format!("{none}/format")), Some("ring3_none:nothing".to_owned()));
            assert_eq!(name(&format!("{none}/id")), Some("ring3_none:nothing".to_owned()));
            assert_eq!((name(&none), name(&format!("{none}/filter"))), (None, None));
            assert_eq!(name(&format!("{root}/events/syscalls/sys_enter_openat/format")), None);
            assert_eq!(name(&format!("{root}/events/syscalls/sys_enter_opne/format")), None);
        }
        assert_eq!(name("/tmp/events/block/block_rq_issue/format"), None);
        let line = no_such_tracepoint("block:block_rq_issue");
        assert!(
            line.starts_with("tracepoint block:block_rq_issue is the kernel's")
                && line.contains("sched:sched_process_exit"),
            "{line}"
        );
    }
}
