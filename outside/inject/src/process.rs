//! Looking at a process without touching it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::Error;

/// A process id as this process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pid(pub u32);

/// What is known of a process before it is stopped.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// Its name, `comm`.
    pub comm: String,
    /// Its process id in its own pid namespace.
    pub own_pid: u32,
    /// In how many pid namespaces it can be seen from here.
    pub levels: u32,
    /// Effective user id.
    pub uid: u32,
    /// Calls of some of its threads are filtered (seccomp).
    pub seccomp: bool,
    /// See [`with_memory`].
    pub(crate) thread: u32,
}

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses.
    pub range: Range<u64>,
    /// `rwxp` letters.
    pub permissions: String,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Device as `st_dev` has it.
    pub dev: u64,
    /// Inode; 0: no file.
    pub inode: u64,
    /// Path, or a name in brackets; without the suffix ` (deleted)`.
    pub path: String,
}

impl Mapping {
    /// Code can run here.
    pub fn is_executable(&self) -> bool {
        self.permissions.as_bytes().get(2) == Some(&b'x')
    }

    /// The process may write here.
    pub fn is_writable(&self) -> bool {
        self.permissions.as_bytes().get(1) == Some(&b'w')
    }

    /// What is written to it is written to its file, and seen by all that map that.
    pub fn is_shared(&self) -> bool {
        self.permissions.as_bytes().get(3) == Some(&b's')
    }
}

/// A file of `/proc/PID`, such as `status` or `task/TID/stat`. (`std::fs::read` and `File::read_to_end` ask for the size, which such
/// files do not have, and then take eight small reads for a page.)
pub fn proc_file(pid: u32, name: &str) -> std::io::Result<String> {
    const BYTES_USUAL: usize = 0x4000;
    let mut bytes = Vec::with_capacity(BYTES_USUAL);
    File::open(format!("/proc/{pid}/{name}"))?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// A field of `/proc/*/status` or `fdinfo`, trimmed.
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Checks that a process can be a target: it exists, is no kernel thread, is 64-bit, nobody else traces it,
/// and it has no seccomp filter that our system calls could offend. Its first thread must not have ended.
pub fn inspect(pid: Pid) -> Result<ProcessInfo, Error> {
    look(pid, false)
}

/// A thread of a process by which its memory can be reached: the first one, unless that has ended and others run.
pub fn with_memory(pid: u32) -> u32 {
    let has_ended = |tid: u32| is_over(Stat::of_thread(pid, tid).and_then(|stat| stat.state()));
    if !Stat::of(pid).is_some_and(|stat| is_over(stat.state())) {
        return pid;
    }
    threads(pid).unwrap_or_default().into_iter().find(|tid| !has_ended(*tid)).unwrap_or(pid)
}

/// Whether a thread in this state has ended.
fn is_over(state: Option<char>) -> bool {
    matches!(state, None | Some('Z' | 'X'))
}

/// As [`inspect`]; `by_any`: the first thread may have ended if others run.
pub(crate) fn look(pid: Pid, by_any: bool) -> Result<ProcessInfo, Error> {
    let Pid(pid) = pid;
    let status_of = |tid: u32| {
        proc_file(pid, &format!("task/{tid}/status")).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::NoSuchProcess { pid },
            _ => Error::io(format!("/proc/{pid}/status"), error),
        })
    };
    let (mut thread, mut status) = (pid, status_of(pid)?);
    if status_field(&status, "State").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        thread = with_memory(pid);
        match (thread == pid, by_any) {
            (true, _) => return Err(Error::Exited { pid }),
            (false, false) => return Err(Error::FirstThreadEnded { pid }),
            (false, true) => status = status_of(thread)?,
        }
    }
    let field = |name: &str| status_field(&status, name).unwrap_or_default();
    let number = |text: &str| text.split_whitespace().next().and_then(|n| n.parse::<u32>().ok());
    if number(field("Tgid")) != Some(pid) {
        return Err(Error::NoSuchProcess { pid });
    }
    if status_field(&status, "VmSize").is_none() {
        // No memory: never had any, or is just ending.
        return Err(if is_kernel_thread(pid) { Error::KernelThread { pid } } else { Error::Exited { pid } });
    }
    let tracer = number(field("TracerPid")).unwrap_or(0);
    // Our own tracing is no obstacle: a process that is begun as a target is held when it is looked at.
    let is_us = || std::path::Path::new(&format!("/proc/self/task/{tracer}")).exists();
    if tracer != 0 && !is_us() && !crate::proxy::is_proxy(tracer) {
        return Err(Error::AlreadyTraced { pid, tracer });
    }
    check_class(pid, thread)?;
    check_translator(pid, thread)?;
    if field("x86_Thread_features").contains("shstk") {
        return Err(Error::Unsupported {
            what: format!("process {pid} uses shadow stacks (CET), where return addresses cannot be replaced"),
        });
    }
    // (The only thread is the leader, whose status this is.)
    let is_alone = field("Threads") == "1" && field("Seccomp") == "0";
    let seccomp = !is_alone && crate::filters::is_filtered(pid)?;
    if seccomp && !may_suspend_filters() {
        return Err(Error::Seccomp { pid, why: "only root can read it".to_owned() });
    }
    Ok(ProcessInfo {
        comm: field("Name").to_owned(),
        own_pid: field("NStgid").split_whitespace().last().and_then(|n| n.parse().ok()).unwrap_or(pid),
        levels: field("NStgid").split_whitespace().count() as u32,
        uid: field("Uid").split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0),
        seccomp,
        thread,
    })
}

/// Whether filters can be suspended while a process is stopped (`PTRACE_O_SUSPEND_SECCOMP`).
fn may_suspend_filters() -> bool {
    rustix::process::geteuid().is_root()
}

/// What `/proc/PID/stat` tells of a process, or `/proc/PID/task/TID/stat` of a thread.
#[derive(Debug)]
pub struct Stat(String);

impl Stat {
    /// Of a process that there is, be it as a zombie.
    pub fn of(pid: u32) -> Option<Stat> {
        proc_file(pid, "stat").ok().map(Stat)
    }

    /// Of a thread.
    pub fn of_thread(pid: u32, tid: u32) -> Option<Stat> {
        proc_file(pid, &format!("task/{tid}/stat")).ok().map(Stat)
    }

    /// The letter of its state.
    pub fn state(&self) -> Option<char> {
        self.field(3)?.chars().next()
    }

    /// A number, by its place (proc_pid_stat(5)); from 4 on.
    pub fn number(&self, place: usize) -> Option<i64> {
        self.field(place)?.parse().ok()
    }

    /// When it began, clock ticks since boot: with its number, it is this one and no other.
    pub fn started(&self) -> Option<u64> {
        self.field(22)?.parse().ok()
    }

    /// (The second field is the name, in parentheses; it may hold any bytes.)
    fn field(&self, place: usize) -> Option<&str> {
        self.0.rsplit_once(')')?.1.split_whitespace().nth(place.checked_sub(3)?)
    }
}

/// The thread that traces a thread by ptrace, if one does.
pub fn tracer_of(tid: u32) -> Option<u32> {
    let status = proc_file(tid, "status").ok()?;
    status_field(&status, "TracerPid")?.parse().ok().filter(|tracer| *tracer != 0)
}

/// [`Stat::started`] of a process.
pub fn started(pid: u32) -> Option<u64> {
    Stat::of(pid)?.started()
}

/// The children of all threads of a process, as far as the kernel tells them (proc(5), `/proc/PID/task/TID/children`).
pub fn children(pid: u32) -> Vec<u32> {
    let lists = threads(pid).unwrap_or_default().into_iter();
    let lists: Vec<String> = lists.filter_map(|tid| proc_file(pid, &format!("task/{tid}/children")).ok()).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|child| child.parse().ok()).collect()
}

/// A process, its parent and so on, 64 of them at most: their ids, and when they began.
pub fn ancestors(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    const GENERATIONS_MAX: usize = 64;
    let of = |pid: u32| Some((pid, Stat::of(pid)?));
    let parent =
        move |(_, stat): &(u32, Stat)| of(u32::try_from(stat.number(4)?).ok().filter(|parent| *parent != 0)?);
    let generations = std::iter::successors(of(pid), parent).take(GENERATIONS_MAX);
    generations.map_while(|(pid, stat)| Some((pid, stat.started()?)))
}

/// `PF_KTHREAD` among the flags.
fn is_kernel_thread(pid: u32) -> bool {
    const PF_KTHREAD: i64 = 0x0020_0000;
    Stat::of(pid).and_then(|stat| stat.number(9)).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// Valgrind's tools run a program's code in translation, after having looked whether it is mapped: as far as they know.
/// Whatever else is mapped and jumped to ends the program.
fn check_translator(pid: u32, tid: u32) -> Result<(), Error> {
    let Ok(program) = std::fs::read_link(format!("/proc/{tid}/exe")) else { return Ok(()) };
    let in_directory = program.parent().is_some_and(|directory| directory.ends_with("valgrind"));
    if in_directory && program.to_string_lossy().ends_with("-amd64-linux") {
        let what = format!("process {pid} runs under valgrind, which refuses code that it has not seen being mapped");
        return Err(Error::Unsupported { what });
    }
    Ok(())
}

/// The program's ELF class and machine. A program that cannot be read is checked by its code segment later.
fn check_class(pid: u32, tid: u32) -> Result<(), Error> {
    let path = format!("/proc/{tid}/exe");
    let mut head = [0u8; 20];
    match File::open(path).and_then(|mut file| file.read_exact(&mut head)) {
        Ok(()) if head[..4] == *b"\x7fELF" && head[4] == 1 => {
            Err(Error::NotX86_64 { pid, what: "a 32-bit program".into() })
        }
        Ok(()) if head[..4] == *b"\x7fELF" && u16::from_le_bytes([head[18], head[19]]) != 62 => {
            Err(Error::NotX86_64 { pid, what: "a program for another machine".into() })
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(not_permitted(pid)),
        _ => Ok(()),
    }
}

/// Explains an EPERM.
pub(crate) fn not_permitted(pid: u32) -> Error {
    let owner = proc_file(pid, "status").ok();
    let owner = owner.as_deref().and_then(|s| status_field(s, "Uid")).and_then(|ids| ids.split_whitespace().nth(1));
    let own = rustix::process::geteuid().as_raw();
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let why = match owner {
        Some(uid) if uid.parse() != Ok(own) => format!("it belongs to user {uid}, and you are user {own}; run ring3 as that user or as root"),
        _ if !matches!(scope.trim(), "" | "0") => format!(
            "Yama's ptrace_scope is {}; start the process with `ring3 start`, or run ring3 as root",
            scope.trim()
        ),
        _ => "it has more privileges than you (capabilities, user namespace), or forbids being traced (prctl PR_SET_DUMPABLE)".to_owned(),
    };
    Error::NotPermitted { pid, why }
}

/// The mappings of a process, in order of address.
pub fn mappings(pid: Pid) -> Result<Vec<Mapping>, Error> {
    let Pid(pid) = pid;
    let text = proc_file(pid, "maps").map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::NoSuchProcess { pid },
        std::io::ErrorKind::PermissionDenied => not_permitted(pid),
        _ if error.raw_os_error() == Some(libc::ESRCH) => Error::Exited { pid },
        _ => Error::io(format!("/proc/{pid}/maps"), error),
    })?;
    if !text.is_empty() {
        return Ok(mappings_in(&text));
    }
    // (Of a process whose first thread has ended, and of a kernel thread.)
    let others = threads(pid).unwrap_or_default().into_iter().filter(|tid| *tid != pid);
    let text =
        others.filter_map(|tid| proc_file(pid, &format!("task/{tid}/maps")).ok()).find(|text| !text.is_empty());
    Ok(mappings_in(&text.unwrap_or_default()))
}

/// The mappings that the text of `/proc/PID/maps` tells of.
pub fn mappings_in(text: &str) -> Vec<Mapping> {
    // (A path may have any other blank at its ends.)
    text.split('\n').filter_map(parse_mapping).collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.to_owned();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let dev = rustix::fs::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or_default().trim_start_matches(' ');
    let path = path.strip_suffix(" (deleted)").unwrap_or(path).to_owned();
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    (range.start <= range.end).then_some(())?;
    Some(Mapping { range, permissions, offset, dev, inode, path })
}

/// The threads of a process, dead ones that nobody has waited for among them.
///
/// # Errors
/// [`Error::Exited`]
pub fn threads(pid: u32) -> Result<Vec<u32>, Error> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Error::Exited { pid })?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// `/proc/PID/task/TID/status` of some threads, kept open: to read it again takes a third of the time.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    pid: u32,
    open: BTreeMap<u32, File>,
    open_max: usize,
}

impl Statuses {
    pub(crate) fn of(pid: u32) -> Statuses {
        // (Other threads of ours open files, too.)
        let files_max = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        Statuses { pid, open: BTreeMap::new(), open_max: usize::try_from(files_max / 4).unwrap_or(usize::MAX) }
    }

    /// As [`is_live`].
    pub(crate) fn is_live(&mut self, tid: u32) -> bool {
        if self.open.len() < self.open_max
            && let Ok(file) = File::open(format!("/proc/{}/task/{tid}/status", self.pid))
        {
            self.open.insert(tid, file);
        }
        self.field(tid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
    }

    /// Whether a thread's calls are filtered in a way that may be in ours.
    pub(crate) fn is_filtered(&self, tid: u32) -> bool {
        let is_of_loader = || !may_suspend_filters() && self.has_loaders_filter_only(tid);
        self.field(tid, "Seccomp").is_some_and(|mode| mode != "0") && !is_of_loader()
    }

    /// Whether a thread's only filter is that of ring3's loaders.
    pub(crate) fn has_loaders_filter_only(&self, tid: u32) -> bool {
        self.field(tid, "Seccomp_filters").is_some_and(|count| count == "1") && crate::filters::is_of_loader(self.pid)
    }

    /// A field of a thread's status; `None` if the thread is gone.
    fn field(&self, tid: u32, name: &str) -> Option<String> {
        const BYTES_USUAL: usize = 0x2000;
        let mut bytes = [0; BYTES_USUAL];
        let filled = self.open.get(&tid).and_then(|file| file.read_at(&mut bytes, 0).ok());
        // (Many groups make it longer. If the thread is gone, another one may have its number.)
        if let Some(filled) = filled.filter(|filled| (1..BYTES_USUAL).contains(filled)) {
            return status_field(&String::from_utf8_lossy(&bytes[..filled]), name).map(str::to_owned);
        }
        let status = proc_file(self.pid, &format!("task/{tid}/status")).ok()?;
        status_field(&status, name).map(str::to_owned)
    }
}

/// Whether a thread is there, and not dead.
pub(crate) fn is_live(pid: u32, tid: u32) -> bool {
    !matches!(thread_state(pid, tid), None | Some('Z' | 'X'))
}

/// State letter of a thread.
pub(crate) fn thread_state(pid: u32, tid: u32) -> Option<char> {
    Stat::of_thread(pid, tid)?.state()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_taken_apart_even_with_blanks_in_the_path() {
        let line = "7f00-8f00 r-xp 00001000 fe:01 1234                       /tmp/a b (deleted)";
        let mapping = parse_mapping(line).expect("valid");
        assert_eq!(mapping.range, 0x7f00..0x8f00);
        assert_eq!((mapping.offset, mapping.inode, mapping.path.as_str()), (0x1000, 1234, "/tmp/a b"));
        assert!(mapping.is_executable());
        assert_eq!(mapping.dev, rustix::fs::makedev(0xfe, 1));
    }

    #[test]
    fn a_kernel_thread_and_a_missing_process_are_told_apart() {
        assert!(matches!(inspect(Pid(u32::MAX / 2)), Err(Error::NoSuchProcess { .. })));
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd") {
            assert!(matches!(inspect(Pid(2)), Err(Error::KernelThread { .. })));
        }
    }
}
