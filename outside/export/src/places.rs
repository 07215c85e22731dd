//! Where programs are attached: what the names of their sections say, found in files.

use std::path::{Path, PathBuf};

use ring3_bpf::Place;
use ring3_elf::{File, UsdtNote};
use ring3_object::Program;

/// Where a program is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attach {
    /// A function of a file.
    Uprobe {
        /// The file, perhaps only its name.
        file: String,
        /// The function, and what is behind `+`.
        function: String,
        /// Bytes from there.
        offset: u64,
        /// Where it returns.
        ret: bool,
    },
    /// A static probe of a file.
    Usdt {
        /// The file, perhaps only its name.
        file: String,
        /// Its provider.
        provider: String,
        /// Its name.
        name: String,
    },
    /// A tracepoint.
    Tracepoint {
        /// `syscalls`
        category: String,
        /// `sys_enter_openat`
        name: String,
    },
    /// A raw tracepoint.
    RawTracepoint(String),
    /// Samples of each CPU.
    Samples {
        /// `PERF_TYPE_*`
        kind: u32,
        /// `PERF_COUNT_*`
        config: u64,
        /// How many a second.
        frequency: u64,
    },
}

/// Tracepoints besides those of system calls.
const EVENTS: [(&str, &str); 4] = [
    ("sched", "sched_process_exec"),
    ("sched", "sched_process_fork"),
    ("sched", "sched_process_exit"),
    ("signal", "signal_generate"),
];
const RAW_CALLS: [&str; 2] = ["sys_enter", "sys_exit"];

impl Attach {
    /// What a program's section says.
    ///
    /// # Errors
    /// Why a program in such a section cannot run in processes.
    pub fn of(program: &Program) -> Result<Attach, String> {
        let section = program.section.as_str();
        let (kind, to) = section.split_once('/').unwrap_or((section, ""));
        let missing = || format!("SEC(\"{section}\") does not say where the program is attached");
        match kind {
            "uprobe" | "uretprobe" | "uprobe.s" | "uretprobe.s" => {
                let (file, function) = to.split_once(':').ok_or_else(missing)?;
                let (function, offset) = match function.split_once('+') {
                    Some((function, offset)) => (function, number(offset).ok_or_else(missing)?),
                    None => (function, 0),
                };
                let function = function.split('@').next().unwrap_or_default().to_owned();
                Ok(Attach::Uprobe { file: file.to_owned(), function, offset, ret: kind.starts_with("uret") })
            }
            "usdt" | "usdt.s" => {
                let mut parts = to.rsplitn(3, ':').map(str::to_owned);
                let (name, provider, file) = (parts.next(), parts.next(), parts.next());
                let (Some(name), Some(provider), Some(file)) = (name, provider, file) else { return Err(missing()) };
                Ok(Attach::Usdt { file, provider, name })
            }
            "tracepoint" | "tp" => {
                let (category, name) = to.split_once('/').ok_or_else(missing)?;
                let is_call = matches!(category, "syscalls" | "raw_syscalls");
                if !is_call && !EVENTS.contains(&(category, name)) {
                    return Err(of_kernel(section));
                }
                Ok(Attach::Tracepoint { category: category.to_owned(), name: name.to_owned() })
            }
            "raw_tracepoint" | "raw_tp" => {
                if !RAW_CALLS.contains(&to) && !EVENTS.iter().any(|(_, name)| *name == to) {
                    return Err(of_kernel(section));
                }
                Ok(Attach::RawTracepoint(to.to_owned()))
            }
            "perf_event" => samples(to),
            "uprobe.multi" | "uretprobe.multi" => Err(format!(
                "SEC(\"{section}\") names functions by a pattern; write a program for each, in SEC(\"uprobe/...\")"
            )),
            "ksyscall" | "kretsyscall" => {
                let name = to.strip_prefix('/').unwrap_or(to);
                let edge = if kind == "ksyscall" { "enter" } else { "exit" };
                Err(format!(
                    "SEC(\"{section}\") is not supported; SEC(\"tracepoint/syscalls/sys_{edge}_{name}\") sees the same"
                ))
            }
            _ => Err(of_kernel(section)),
        }
    }
}

fn of_kernel(section: &str) -> String {
    format!(
        "SEC(\"{section}\") is an event of the kernel's own, which no process sees; ring3 has functions of programs (uprobe, usdt), \
         system calls, processes (sched_process_*), signals and perf_event"
    )
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `type=1,config=0,frequency=99`, as ebpf_exporter has it.
fn samples(to: &str) -> Result<Attach, String> {
    let (mut kind, mut config, mut frequency) = (None, 0, 0);
    for item in to.split(',') {
        let wrong = || format!("SEC(\"perf_event/{to}\"): `{item}` is none of type=N, config=N, frequency=N");
        let (name, value) = item.split_once('=').ok_or_else(wrong)?;
        let value = number(value).ok_or_else(wrong)?;
        match name {
            "type" => kind = Some(u32::try_from(value).map_err(|_| wrong())?),
            "config" => config = value,
            "frequency" => frequency = value,
            _ => return Err(wrong()),
        }
    }
    let kind = kind.ok_or_else(|| format!("SEC(\"perf_event/{to}\") has no type=N"))?;
    if frequency == 0 {
        return Err(format!("SEC(\"perf_event/{to}\") has no frequency=N"));
    }
    Ok(Attach::Samples { kind, config, frequency })
}

/// A file as a section names it: a path, a library or a program. Mirrors src/libbpf.c:resolve_full_path.
///
/// # Errors
/// There is none.
pub(crate) fn find_file(name: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let is_library = name.ends_with(".so") || name.contains(".so.");
    let (variable, usual) = if is_library {
        ("LD_LIBRARY_PATH", "/usr/lib64:/usr/lib:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu")
    } else {
        ("PATH", "/usr/bin:/usr/sbin")
    };
    let set = std::env::var(variable).unwrap_or_default();
    let directories = set.split(':').chain(usual.split(':')).filter(|directory| !directory.is_empty());
    let found = directories.map(|directory| Path::new(directory).join(name)).find(|path| path.is_file());
    found.ok_or_else(|| format!("there is no {name} in {variable} and the usual directories; write its path"))
}

/// The place of a function in a file.
///
/// # Errors
/// The file cannot be read, or has no such function.
pub(crate) fn function_place(path: &Path, function: &str, offset: u64) -> Result<Place, String> {
    let bytes = read(path)?;
    let file = File::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    let place = file.find(function).and_then(|address| file.vaddr_to_offset(address.wrapping_add(offset)));
    let offset = place.ok_or_else(|| format!("{} has no function {function}", path.display()))?;
    Ok(Place { offset, ..Place::default() })
}

/// The places of a static probe in a file, each with the specification of its arguments.
///
/// # Errors
/// The file cannot be read, or has no such probe.
pub(crate) fn usdt_places(path: &Path, provider: &str, name: &str) -> Result<Vec<(Place, String)>, String> {
    let bytes = read(path)?;
    let file = File::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    let place = |note: &UsdtNote| {
        let offset = file.vaddr_to_offset(note.address)?;
        let counter = if note.semaphore == 0 { 0 } else { file.vaddr_to_offset(note.semaphore)? };
        Some((Place { offset, counter, cookie: 0 }, note.arguments.clone()))
    };
    let notes = file.usdt_notes();
    let wanted = notes.iter().filter(|note| note.provider == provider && note.name == name);
    let places: Vec<(Place, String)> = wanted.filter_map(place).collect();
    if places.is_empty() {
        return Err(format!("{} has no static probe {provider}:{name}", path.display()));
    }
    Ok(places)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(section: &str) -> Result<Attach, String> {
        let program = Program { section: section.into(), ..Program::new("it", 0, vec![]) };
        Attach::of(&program)
    }

    #[test]
    fn sections_say_where() {
        let uprobe = |file: &str, function: &str, offset, ret| {
            Ok(Attach::Uprobe { file: file.into(), function: function.into(), offset, ret })
        };
        assert_eq!(of("uprobe/libc.so.6:malloc"), uprobe("libc.so.6", "malloc", 0, false));
        assert_eq!(of("uretprobe//bin/bash:readline+0x10"), uprobe("/bin/bash", "readline", 16, true));
        let usdt = Attach::Usdt { file: "./a/b".into(), provider: "p".into(), name: "n".into() };
        assert_eq!(of("usdt/./a/b:p:n"), Ok(usdt));
        let event =
            |category: &str, name: &str| Ok(Attach::Tracepoint { category: category.into(), name: name.into() });
        assert_eq!(of("tracepoint/syscalls/sys_enter_openat"), event("syscalls", "sys_enter_openat"));
        assert_eq!(of("tp/sched/sched_process_exec"), event("sched", "sched_process_exec"));
        assert_eq!(of("raw_tp/sys_exit"), Ok(Attach::RawTracepoint("sys_exit".into())));
        let samples = Attach::Samples { kind: 1, config: 0, frequency: 99 };
        assert_eq!(of("perf_event/type=1,config=0,frequency=99"), Ok(samples));
    }

    #[test]
    fn what_only_the_kernel_sees_is_refused() {
        for section in [
            "kprobe/vfs_read",
            "tp_btf/sys_enter",
            "fentry/x",
            "raw_tp/timer_start",
            "tp/block/block_rq_issue",
            "xdp/lo",
        ] {
            assert!(of(section).expect_err(section).contains("an event of the kernel's own"), "{section}");
        }
        for (section, why) in [
            ("uprobe", "does not say where"),
            ("ksyscall/openat", "tracepoint/syscalls/sys_enter_openat"),
            ("perf_event/type=1", "has no frequency"),
            ("perf_event/kind=1", "`kind=1` is none of"),
            ("uprobe.multi/a:b*", "by a pattern"),
        ] {
            assert!(of(section).expect_err(section).contains(why), "{section}");
        }
    }
}
