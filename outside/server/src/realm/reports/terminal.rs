//! Reports what could not be done in a target, once: on the standard error of the command that began the target, or else of the
//! loader that made the probe.
//!
//! The server keeps no descriptor for that: a process that waits for the end of a pipe would then wait for the server. It
//! duplicates the process's own descriptor when there is something to report, if that is still the same file.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use ring3_event::is_unseen;
use ring3_inject as inject;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

use crate::realm::AttachmentId;
use crate::realm::target::{Link, Target};
use crate::realm::tracer::Actor;

/// Reasons, or processes, that are written out.
const REASONS_MAX: usize = 3;

/// How often a standard error that is another file is looked for before a line is given up, and the pauses in between: tools that silence it
/// have a copy, but for a moment before and behind.
const LOOKS_MAX: u32 = 8;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The standard error of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Terminal {
    pid: u32,
    file: (u64, u64),
    /// What it was when the process began, if that is known.
    first: Option<(u64, u64)>,
}

impl Terminal {
    /// Of a process, as it is now.
    pub fn of(pid: u32) -> Option<Terminal> {
        Some(Terminal { pid, file: standard_error(pid)?, first: None })
    }

    /// Of a process of a loader that began with `begun`, as it is now. Tools silence their standard error for a while, as bpftrace does
    /// while it loads programs: what it was at the beginning will do, too.
    pub fn of_loader(pid: u32, begun: Option<Terminal>) -> Option<Terminal> {
        let first = begun.filter(|begun| begun.pid == pid).map(|begun| begun.file);
        let now = Terminal::of(pid)?;
        // (Else the line would go to where nobody reads, while it is silenced.)
        let file = first.filter(|_| is_null(now.file)).unwrap_or(now.file);
        Some(Terminal { first, file, ..now })
    }

    /// What the process runs.
    pub(crate) fn program(self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }

    /// Opens the process's standard error, or the copy of it that a tool keeps which has silenced that for a while.
    fn open(self) -> Option<OwnedFd> {
        let is_it = |file: Option<(u64, u64)>| file.is_some() && [Some(self.file), self.first].contains(&file);
        // (The process may change its descriptors between the look and the copy.)
        let open = |number: i32| {
            let file = inject::duplicate(inject::Pid(self.pid), number).ok()?;
            let meta = rustix::fs::fstat(&file).ok()?;
            is_it(Some((meta.st_dev, meta.st_ino))).then_some(file)
        };
        let copy = || {
            let all = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).ok()?.flatten();
            let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let mut copies =
                numbers.filter(|number| *number > libc::STDERR_FILENO && is_it(file_of(self.pid, *number)));
            copies.find_map(open)
        };
        // (It may be what it was again before the copy is found.)
        let look = || open(libc::STDERR_FILENO).or_else(copy);
        look().or_else(|| {
            let lives = |_: &u32| inject::started(self.pid).is_some();
            (1..LOOKS_MAX).take_while(lives).find_map(|_| {
                std::thread::sleep(LOOK_EVERY);
                look()
            })
        })
    }

    /// Writes a line. Where nobody reads it is lost: nobody may hold the server up.
    pub fn say(self, line: &str) {
        let Some(file) = self.open() else { return };
        let mut fds = [PollFd::new(&file, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::event::poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().contains(PollFlags::OUT) {
            // (Names in it may be a target's choice.)
            let line = line.replace(is_unseen, "?");
            let _ = rustix::io::write(&file, format!("ring3: {line}\n").as_bytes());
        }
    }
}

fn is_null(file: (u64, u64)) -> bool {
    std::fs::metadata("/dev/null").is_ok_and(|null| (null.dev(), null.ino()) == file)
}

/// Device and inode of a process's standard error.
fn standard_error(pid: u32) -> Option<(u64, u64)> {
    file_of(pid, libc::STDERR_FILENO)
}

/// Device and inode of a file that a process has open.
fn file_of(pid: u32, number: i32) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(format!("/proc/{pid}/fd/{number}")).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Who is told first what could not be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::realm) enum ReportTo {
    /// Whoever began the target, if that is known, else the loaders.
    Starter,
    /// The loaders whose probes they are.
    Loader,
    /// Whoever gets the answer to the request that is being served.
    Requester,
    /// The loader that is just attaching these links gets an error; else as `Starter`.
    RequesterOf { first: AttachmentId, last: AttachmentId },
}

impl Actor {
    /// Detaches from a target that cannot be one any more, in the background, and says so.
    pub(in crate::realm) fn detach_with_reason(&mut self, pid: u32, why: &str) {
        let Some(target) = self.targets.get(&pid) else { return };
        // (strace asks why, and says it.)
        if target.is_of_strace() {
            tracing::warn!(pid, comm = target.comm, "is let go: {why}");
        } else {
            self.say_of(pid, &format!("is let go: {why}"));
        }
        self.shared.note_let_go(pid, &target.comm, why);
        self.begin_detach(pid);
    }

    /// Says something of a target to the tools whose links it has, and to nobody else.
    pub(in crate::realm) fn say_to_tools(&self, target: &Target, what: &str) {
        let terminals: BTreeSet<Terminal> =
            target.links_for(&self.links).filter_map(|(_, spec)| spec.terminal).collect();
        terminals.into_iter().for_each(|terminal| target.say_on(terminal, what));
    }

    /// Says something of a target to whoever began it, else to the tools whose links it has.
    pub(in crate::realm) fn say_of(&self, pid: u32, what: &str) {
        let Some(target) = self.targets.get(&pid) else { return };
        tracing::warn!(pid, comm = target.comm, "{what}");
        match target.terminal {
            Some(terminal) => target.say_on(terminal, what),
            None => self.say_to_tools(target, what),
        }
    }
}

impl Target {
    /// Says which links could not be applied here, once each.
    pub(in crate::realm) fn report_refused(&mut self, links: &BTreeMap<AttachmentId, Link>, report_to: ReportTo) {
        let refused: BTreeMap<AttachmentId, &Link> = links
            .iter()
            .filter(|(_, link)| link.refused.contains_key(&self.pid))
            .map(|(id, link)| (*id, link))
            .collect();
        let told = std::mem::replace(&mut self.told, refused.keys().copied().collect());
        let mut lost: BTreeMap<Terminal, Vec<&str>> = BTreeMap::new();
        for (id, link) in refused.into_iter().filter(|(id, _)| !told.contains(id)) {
            let why = &link.refused[&self.pid].message;
            tracing::warn!(pid = self.pid, link = link.spec.link_id, "not applied: {why}");
            let terminal = match report_to {
                ReportTo::Starter => self.terminal.or(link.spec.terminal),
                ReportTo::Loader => link.spec.terminal,
                ReportTo::RequesterOf { first, last } if !(first..=last).contains(&id) => {
                    self.terminal.or(link.spec.terminal)
                }
                ReportTo::Requester | ReportTo::RequesterOf { .. } => None,
            };
            if let Some(terminal) = terminal {
                lost.entry(terminal).or_default().push(why);
            }
        }
        for (terminal, reasons) in lost {
            self.say(terminal, &reasons);
        }
    }

    /// Says on a terminal, and in the log, what has happened in this process.
    pub(in crate::realm) fn report(&self, terminal: Option<Terminal>, what: &str) {
        tracing::warn!(pid = self.pid, "{what}");
        if let Some(terminal) = terminal {
            terminal.say(&format!("process {} ({}): {what}", self.pid, self.comm));
        }
    }

    fn say_on(&self, terminal: Terminal, what: &str) {
        terminal.say(&format!("process {} ({}) {what}", self.pid, self.comm));
    }

    fn say(&self, terminal: Terminal, reasons: &[&str]) {
        let shown = reasons[..reasons.len().min(REASONS_MAX)].join("; ");
        let more = if reasons.len() > REASONS_MAX { "; ..." } else { "" };
        let (pid, comm, count) = (self.pid, &self.comm, reasons.len());
        terminal.say(&format!(
            "process {pid} ({comm}): {count} probe(s) not applied: {shown}{more} (`ring3 status -v` has them all)"
        ));
    }
}

/// Says that a process which should have become a target is none, unless it has ended.
pub(in crate::realm) fn report_untraced(terminal: Option<Terminal>, pid: u32, why: &str) {
    // (A process that has ended, a zombie perhaps, has no executable, and is not missed.)
    if std::fs::read_link(format!("/proc/{pid}/exe")).is_ok() {
        report_untraced_now(terminal, pid, why);
    }
}

/// The same, whether it has ended meanwhile or not.
pub(in crate::realm) fn report_untraced_now(terminal: Option<Terminal>, pid: u32, why: &str) {
    tracing::warn!(pid, "not traced: {why}");
    let Some(terminal) = terminal else { return };
    match count_untraced(terminal) {
        ..=REASONS_MAX => terminal.say(&format!("process {pid} is not traced by ring3: {why}")),
        FIRST_UNSAID => terminal.say(&format!(
            "process {pid}, and maybe more, are not traced by ring3, either; `server.log` in the runtime directory names them"
        )),
        _ => {}
    }
}

const FIRST_UNSAID: usize = REASONS_MAX + 1;

/// The number of processes so far that are not traced, as far as a terminal is concerned. (It may be the standard error that a traced
/// program writes to, and a build has thousands of children: so not each of them is named there.)
fn count_untraced(terminal: Terminal) -> usize {
    const TERMINALS_MAX: usize = 1024;
    static COUNTS: Mutex<BTreeMap<Terminal, usize>> = Mutex::new(BTreeMap::new());
    let mut counts = COUNTS.lock().expect("no panic under this lock");
    if counts.len() >= TERMINALS_MAX {
        counts.clear();
    }
    let count = counts.entry(terminal).or_default();
    *count += 1;
    *count
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command, Stdio};

    use super::Terminal;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill().and_then(|()| self.0.wait());
        }
    }

    #[test]
    fn a_tool_that_silences_its_standard_error_time_and_again_gets_each_line() {
        const LINES: usize = 500;
        let script = "echo ready >&2; while :; do exec 3>&2 2>/dev/null; exec 2>&3 3>&-; done";
        let tool = Command::new("sh").args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut tool = Ended(tool.expect("sh runs"));
        let mut lines = BufReader::new(tool.0.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
        assert_eq!(lines.next().as_deref(), Some("ready"));
        let null = std::fs::metadata("/dev/null").map(|null| (null.dev(), null.ino())).expect("it is there");
        let mut looks = std::iter::repeat_with(|| Terminal::of(tool.0.id())).flatten();
        let terminal = looks.find(|terminal| terminal.file != null).expect("it has one");
        (0..LINES).for_each(|number| terminal.say(&number.to_string()));
        drop(tool);
        let expected: Vec<String> = (0..LINES).map(|number| format!("ring3: {number}")).collect();
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }
}
