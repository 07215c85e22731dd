//! One loader: every process behind one seccomp listener.
//!
//! A caught system call is decoded, carried out on the subsystem's objects and answered; calls on descriptors
//! that are not ours go on to the kernel as they were made. The loader's memory is read first and then
//! the notification's validity checked, so that what was read was the caller's (`seccomp_unotify(2)`).

mod attr;
mod batch;
mod bpf;
pub mod call_function;
mod calls;
mod descriptors;
mod elsewhere;
mod files;
pub mod keeper;
mod limits;
mod links;
mod names;
pub mod objects;
mod perf;
mod program;
mod raw_seccomp;
mod recent;
mod release;
mod sampled;
mod source;
mod task_event;
mod test_run;
mod tracepoint;
mod tracepoint_multi;
mod uprobe_multi;
mod value_types;
mod virtual_files;
mod wait;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_aot::Store;
use ring3_engine::Engine;
use ring3_uapi::Errno;
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

pub use calls::filter;
use keeper::{Awaited, KeptListener, Ledger};
use raw_seccomp::Notification;
pub use raw_seccomp::install_filter;
pub(crate) use virtual_files::LISTED_DIRECTORY;

use crate::loader::objects::{Access, Object, Sharing, Subsystem};
use crate::quota::{Quota, Share};
use crate::realm::{ExtensionClass, Isolation, Scope, Terminal};
use crate::rights::Rights;

/// How long it takes until waiting for a call is tried again that failed.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// How a caught call ends.
enum Outcome {
    /// With this result.
    Value(i64),
    /// With a new descriptor.
    Fd { fd: OwnedFd, close_on_exec: bool },
    /// As the kernel will.
    Continue,
    /// Later: somebody else answers.
    Later,
}

type Reply = Result<Outcome, Errno>;

/// A caught call with what is needed to serve it.
struct Caller<'s> {
    session: &'s Session,
    call: Notification,
}

/// What the user of a loader asked for (`ring3 load`).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LoadOptions {
    /// How its programs are compiled.
    #[serde(default)]
    pub compiling: Compiling,
    /// Targets of all users may share its maps.
    #[serde(default)]
    pub trust: bool,
    /// What one run of each of its programs may take.
    #[serde(default)]
    pub budget: Option<Duration>,
    /// Which processes become targets for links that name none.
    #[serde(default)]
    pub scope: Scope,
}

/// How a loader's programs are compiled.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Compiling {
    /// By whom.
    pub engine: Engine,
    /// Their constants are not to stand in their code.
    pub harden: bool,
}

impl Compiling {
    /// Whether constants are hidden: also if the kernel hides those of all users' programs (`net.core.bpf_jit_harden`,
    /// Documentation/admin-guide/sysctl/net.rst), which root alone can see.
    fn hardens(&self) -> bool {
        const ALL_USERS: &str = "2";
        let of_kernel = || std::fs::read_to_string("/proc/sys/net/core/bpf_jit_harden").unwrap_or_default();
        self.harden || of_kernel().trim() == ALL_USERS
    }
}

/// A loader's session.
pub struct Session {
    /// `None`: the calls are this process's own (see [`own_call`]).
    listener: Option<Arc<OwnedFd>>,
    ledger: Arc<Ledger>,
    subsystem: Arc<Subsystem>,
    /// The process with which it began.
    pid: u32,
    /// Its standard error when it began.
    terminal: Option<Terminal>,
    /// It was said that the loader holds as much as it may.
    told: AtomicBool,
    /// What was said to which process: tools try the same several times.
    said: Mutex<BTreeSet<(u32, String)>>,
    options: LoadOptions,
    /// Programs that were compiled ahead of time.
    store: Option<Arc<Store>>,
    /// If there are some, its programs are extensions of these classes.
    extensions: Vec<Arc<ExtensionClass>>,
}

/// What comes along with a loader.
#[derive(Default)]
pub struct Brought {
    /// Programs that were compiled ahead of time.
    pub store: Option<Arc<Store>>,
    /// If there are some, its programs are extensions of these classes: each of the one that names it.
    pub extensions: Vec<Arc<ExtensionClass>>,
}

impl Session {
    /// Serves a loader, given by its process and that one's standard error as it begins, until no process of it is left; false if it
    /// cannot be served any more.
    pub fn run(
        kept: &KeptListener,
        subsystem: Arc<Subsystem>,
        (pid, terminal): (u32, Option<Terminal>),
        command: String,
        options: LoadOptions,
        Brought { store, extensions }: Brought,
    ) -> bool {
        subsystem.loader_begins(pid, command);
        let (listener, ledger, told) = (kept.listener.clone(), kept.ledger.clone(), AtomicBool::new(false));
        raw_seccomp::wake_synchronously(listener.as_fd());
        let listening = Some(listener.clone());
        let said = Mutex::default();
        let session =
            Session { listener: listening, ledger, subsystem, pid, terminal, told, said, options, store, extensions };
        let mut result = Ok(());
        while result.is_ok() && wait(&listener) {
            result = session.ledger.receive(listener.as_fd()).map(|call| {
                if let Some(call) = call {
                    session.serve(call, listener.as_fd());
                }
            });
        }
        session.subsystem.loader_ended(pid);
        result.inspect_err(|error| tracing::warn!(pid, "the loader's listener failed: {error}")).is_ok()
    }

    /// Whether the caller still waits for the answer.
    fn is_waited_for(&self, call: &Notification) -> bool {
        self.listener.as_ref().is_none_or(|listener| raw_seccomp::is_valid(listener.as_fd(), call.id))
    }

    fn serve(&self, call: Notification, listener: BorrowedFd<'_>) {
        let caller = Caller { session: self, call };
        let reply = caller.serve();
        tracing::debug!(tid = call.tid, number = call.number, ok = reply.is_ok(), error = ?reply.as_ref().err(), "call");
        match reply {
            Ok(Outcome::Value(value)) => raw_seccomp::answer(listener, call.id, Ok(value)),
            Ok(Outcome::Fd { fd, close_on_exec }) => {
                // The loader may be gone, or out of descriptors: then the object goes with our copy.
                let _ = raw_seccomp::answer_fd(listener, call.id, fd.as_fd(), close_on_exec);
            }
            Ok(Outcome::Continue) => raw_seccomp::pass_on(listener, call.id),
            Ok(Outcome::Later) => {}
            Err(errno) => raw_seccomp::answer(listener, call.id, Err(errno.0)),
        }
    }
}

/// Whether a process runs a user's shell (`/etc/shells`, shells(5)).
fn is_shell(pid: u32) -> bool {
    let program = std::fs::canonicalize(format!("/proc/{pid}/exe"));
    let shells = std::fs::read_to_string("/etc/shells").unwrap_or_default();
    let mut shells = shells.lines().filter(|line| line.starts_with('/'));
    program.is_ok_and(|program| shells.any(|shell| std::fs::canonicalize(shell).is_ok_and(|shell| shell == program)))
}

/// Whether a process runs a tool of which it is known that it asks whether it runs as root: bpftrace, or a script of bcc's.
fn is_known_tool(pid: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let script = words.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    let script = String::from_utf8_lossy(script);
    program.ends_with("bpftrace") || script.ends_with("-bpfcc") || script.contains("/bcc/tools/")
}

/// Waits for a call; false when all processes are gone.
fn wait(listener: &OwnedFd) -> bool {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) if fds[0].revents().contains(PollFlags::IN) => return true,
            Ok(_) => return false,
            Err(rustix::io::Errno::INTR) => {}
            // (For want of memory.) The loader waits for an answer: it is not taken for one that is gone.
            Err(_) => std::thread::sleep(AGAIN_AFTER),
        }
    }
}

/// Answers a call as if this process, whose memory and descriptors it refers to, were a loader that made it: for fuzzing. The
/// result is the new descriptor, if it has one.
///
/// # Errors
/// That of the call; `EBUSY` for calls that are answered later.
pub fn own_call(subsystem: &Arc<Subsystem>, number: i64, args: [u64; 6]) -> Result<Option<OwnedFd>, Errno> {
    let pid = std::process::id();
    let session = Session {
        listener: None,
        ledger: Arc::new(Ledger::new().map_err(|_| Errno::ENOMEM)?),
        subsystem: subsystem.clone(),
        pid,
        terminal: None,
        told: AtomicBool::new(true),
        said: Mutex::default(),
        options: LoadOptions::default(),
        store: None,
        extensions: vec![],
    };
    let caller = Caller { session: &session, call: Notification::of_own(pid, number as i32, args) };
    match caller.serve()? {
        Outcome::Fd { fd, .. } => Ok(Some(fd)),
        Outcome::Value(_) | Outcome::Continue => Ok(None),
        Outcome::Later => Err(Errno::EBUSY),
    }
}

impl Caller<'_> {
    fn serve(&self) -> Reply {
        match calls::of(self.call.number) {
            Some(call) => (call.serve)(self),
            None => Ok(Outcome::Continue),
        }
    }

    /// A loader, or a process that it has made, executes a program, which may be what its tool traces (`bpftrace -c`).
    fn execute(&self) -> Reply {
        struct PassOn(Arc<OwnedFd>, u64, #[expect(dead_code, reason = "kept until the answer")] Awaited);
        impl Drop for PassOn {
            fn drop(&mut self) {
                raw_seccomp::pass_on(self.0.as_fd(), self.1);
            }
        }
        let Some(listener) = self.session.listener.clone() else { return Ok(Outcome::Continue) };
        let waits = PassOn(listener, self.call.id, self.session.ledger.awaits(&self.call));
        let (tid, realm) = (self.call.tid, &self.subsystem().realm);
        realm.follow_in_call(raw_seccomp::leader(tid), tid, Box::new(move || drop(waits)));
        Ok(Outcome::Later)
    }

    /// Tools ask whether they run as root before they try what only root may do on the kernel, and here any user may. So an ordinary
    /// user's tool is told that it does: the process with which the session began, or a tool that this one has started, as `timeout` does,
    /// and no other. Shells are not: they take it for a set-uid program's and drop rights.
    fn effective_user(&self) -> Reply {
        if rustix::process::geteuid().is_root() {
            return Ok(Outcome::Continue);
        }
        let pid = raw_seccomp::leader(self.call.tid);
        let is_tool = pid == self.session.pid && !is_shell(pid) || is_known_tool(pid);
        if is_tool { Ok(Outcome::Value(0)) } else { Ok(Outcome::Continue) }
    }

    fn subsystem(&self) -> &Arc<Subsystem> {
        &self.session.subsystem
    }

    /// A new descriptor for an object.
    fn open_pipe(&self, object: Object) -> Result<OwnedFd, Errno> {
        self.subsystem().open_pipe(object, self.share(&self.subsystem().descriptors)?)
    }

    /// The same for an object that is memory.
    fn open_memfd(&self, object: Object, memfd: BorrowedFd<'_>, access: Access) -> Result<OwnedFd, Errno> {
        self.subsystem().open_memfd(object, memfd, access, self.share(&self.subsystem().descriptors)?)
    }

    /// Room for one more map, and among whom it is shared.
    fn sharing(&self) -> Result<Sharing, Errno> {
        let isolation = self.session.extensions.first().map_or(Isolation::None, |class| class.isolation);
        let share = self.share(&self.subsystem().map_slots)?;
        Ok(Sharing { share, trust: self.session.options.trust, isolation })
    }

    /// One more of what loaders share. Whoever holds too much hears why on the standard error, once.
    fn share(&self, quota: &Arc<Quota>) -> Result<Share, Errno> {
        quota.take(self.session.pid).map_err(|why| {
            if !self.session.told.swap(true, Ordering::Relaxed)
                && let Some(terminal) = Terminal::of(raw_seccomp::leader(self.call.tid))
            {
                terminal.say(&why);
            }
            refuse(Errno::EDQUOT, why)
        })
    }

    /// Says a line on the caller's terminal, unless that process has been told already. (Of very many lines the later ones are
    /// said each time.)
    fn say_once(&self, line: &str) {
        const LINES_MAX: usize = 256;
        let pid = raw_seccomp::leader(self.call.tid);
        let mut said = self.session.said.lock().expect("no panic under this lock");
        let key = (pid, line.to_owned());
        if said.contains(&key) {
            return;
        }
        if said.len() < LINES_MAX {
            said.insert(key);
        }
        drop(said);
        if let Some(terminal) = Terminal::of_loader(pid, self.session.terminal) {
            terminal.say(line);
        }
    }

    fn arg(&self, index: usize) -> u64 {
        self.call.args[index]
    }

    /// Reads the loader's memory.
    fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; bytes];
        raw_seccomp::read(self.call.tid, address, &mut buffer).map_err(Errno)?;
        if !self.session.is_waited_for(&self.call) {
            return Err(Errno::EINTR);
        }
        Ok(buffer)
    }

    /// Writes the loader's memory.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        raw_seccomp::write(self.call.tid, address, bytes).map_err(Errno)
    }

    /// What the calling thread may do now. It waits for the answer, and only itself can change its credentials.
    fn rights(&self) -> Result<Arc<Rights>, Errno> {
        let rights = Rights::of(self.call.tid);
        if self.session.is_waited_for(&self.call) { rights } else { Err(Errno::EINTR) }
    }

    /// A string of at most `max` bytes.
    fn read_string(&self, address: u64, max: usize) -> Result<String, Errno> {
        const PAGE: u64 = 4096;
        let mut text = vec![];
        while text.len() < max {
            let at = address + text.len() as u64;
            let chunk = self.read(at, ((PAGE - at % PAGE) as usize).min(max - text.len()))?;
            if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
                text.extend_from_slice(&chunk[..end]);
                return String::from_utf8(text).map_err(|_| Errno::EINVAL);
            }
            text.extend(chunk);
        }
        Err(Errno::ENAMETOOLONG)
    }

    /// A duplicate of one of the loader's descriptors.
    fn fd(&self, fd: i32) -> Result<OwnedFd, Errno> {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        raw_seccomp::get_fd(self.call.tid, fd).map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::EBADF.0)))
    }

    /// The object behind one of the loader's descriptors; `None` for descriptors of the kernel's own.
    fn object(&self, fd: i32) -> Result<Option<Object>, Errno> {
        let copy = self.fd(fd)?;
        Ok(self.subsystem().object(copy.as_fd()))
    }

    /// Whether the calling process has a file mapped so that it can write. (What others have is not looked at.)
    fn has_mapped_for_writing(&self, file: BorrowedFd<'_>) -> bool {
        let Ok(stat) = rustix::fs::fstat(file) else { return false };
        let mappings = std::fs::read_to_string(format!("/proc/{}/maps", self.call.tid)).unwrap_or_default();
        mappings.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let writable = fields.next().is_some_and(|access| access.contains("w") && access.ends_with('s'));
            writable && fields.nth(2).and_then(|inode| inode.parse().ok()) == Some(stat.st_ino)
        })
    }

    /// Whether a signal waits for the calling thread that it does not block.
    fn has_signal(tid: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let fields: HashMap<&str, u64> = status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter_map(|(name, text)| Some((name, u64::from_str_radix(text.trim(), 16).ok()?)))
            .collect();
        let mask = |name: &str| fields.get(name).copied().unwrap_or(0);
        (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk") != 0
    }
}

/// Logs what is not supported, for people who wonder why a tool fails.
fn refuse(errno: Errno, what: impl std::fmt::Display) -> Errno {
    tracing::warn!("refused with {errno:?}: {what}");
    errno
}

/// As [`refuse`], and says it on the caller's terminal.
fn refuse_aloud(caller: &Caller<'_>, errno: Errno, what: &str) -> Errno {
    caller.say_once(what);
    refuse(errno, what)
}
