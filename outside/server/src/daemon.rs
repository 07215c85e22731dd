//! The server process: accepts requests, runs sessions, ends when idle.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use serde_json::{Value, json};

use ring3_uapi::Errno;

use crate::control::{Connection, Request, runtime_dir};
use crate::loader::keeper::Keeper;
use crate::loader::objects::Subsystem;
use crate::loader::{Brought, LoadOptions, Session};
use crate::realm::{EventFd, ExtensionClass, Following, PerfFiles, Realm, TargetStatus, Terminal};

/// Without loaders, targets, names of objects and requests for this long, the server ends; `RING3_IDLE_SECONDS` overrides it. (A tool with 99
/// programs that is started again starts in 0.5 s, not in 3.7 s: the server has their code still.)
const IDLE_SECONDS: u64 = 60;
/// How often idleness is looked at.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The lock that shows that there is a server must be free within this time.
const LOCK_WITHIN: Duration = Duration::from_millis(250);
/// Pause after a request could not be accepted (out of file descriptors or memory).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What a client is told whose process the server cannot name.
const OTHER_NAMESPACE: &str = "the server of this runtime directory runs in another PID namespace, where this process has no id; set \
     RING3_RUNTIME_DIR to a directory of this namespace's own (mode 700), and a server starts there";

struct Server {
    realm: Arc<Realm>,
    subsystem: Arc<Subsystem>,
    keeper: Keeper,
    started: Instant,
    sessions: AtomicUsize,
    connections: AtomicUsize,
    stopping: AtomicBool,
    /// Wakes the accepting thread when `stopping` is set.
    wake: EventFd,
}

/// Runs the server until it is idle or told to stop, as the only thing that this process does (inherited
/// descriptors are closed). `ready` is called when it can be reached. Errors are for people.
pub fn serve(ready: impl FnOnce()) -> Result<(), String> {
    let idle = idle_seconds()?;
    crate::raw_process::close_inherited();
    crate::raw_process::lift_limits()?;
    let dir = runtime_dir()?;
    let lock = File::create(dir.join("server.lock")).map_err(|error| format!("{}: {error}", dir.display()))?;
    // Whoever looks whether there is a server holds the lock for a moment, too.
    let deadline = Instant::now() + LOCK_WITHIN;
    while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() < deadline {
            std::thread::sleep(LOCK_WITHIN / 50);
            continue;
        }
        return Err(format!("another ring3 server is running for this user (its directory is {})", dir.display()));
    }
    let signals = crate::raw_process::signals().map_err(|error| format!("signalfd: {error}"))?;
    let path = dir.join("server.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let perf = std::env::var_os("RING3_PERF").is_some_and(|value| value != "0" && !value.is_empty());
    let perf = perf.then(|| PerfFiles::new(&dir, name_of(&dir)));
    let realm = Realm::start(name_of(&dir), perf.as_ref(), crate::loader::filter());
    let realm = realm.map_err(|error| format!("cannot set up shared memory: {error}"))?;
    let server = Arc::new(Server {
        subsystem: Subsystem::new(realm.clone()),
        realm,
        keeper: Keeper::default(),
        started: Instant::now(),
        sessions: AtomicUsize::new(0),
        connections: AtomicUsize::new(0),
        stopping: AtomicBool::new(false),
        wake: EventFd::new().map_err(|error| format!("eventfd: {error}"))?,
    });
    ready();
    server.accept(&listener, &signals, idle);
    // No new request can come in between: clients that find no socket start a new server, which waits for the lock.
    let _ = std::fs::remove_file(&path);
    server.realm.shut_down();
    let _ = std::fs::remove_dir_all(dir.join(crate::loader::LISTED_DIRECTORY));
    tracing::info!("the server ends");
    Ok(())
}

/// Attaches the children that a process has, theirs, and those that are made meanwhile: what became of each, or why it was not attached.
fn attach_descendants(pid: u32, attach: impl Fn(u32) -> Result<TargetStatus, String>) -> Vec<Value> {
    let mut answers = vec![];
    let mut seen = BTreeSet::from([pid]);
    let mut looked_at = vec![pid];
    while let Some(parent) = looked_at.pop() {
        for child in ring3_inject::children(parent).into_iter().filter(|child| seen.insert(*child)) {
            looked_at.push(child);
            answers
                .push(attach(child).map_or_else(|why| json!({ "pid": child, "why": why }), |target| json!(target)));
        }
    }
    answers
}

fn following(follow: bool) -> Following {
    if follow { Following::All } else { Following::Nothing }
}

/// A number for a directory: of its device and inode.
fn name_of(directory: &Path) -> u32 {
    let stat = std::fs::metadata(directory).map_or((0, 0), |stat| (stat.dev(), stat.ino()));
    stat.0.rotate_left(40) as u32 ^ (stat.1 ^ stat.1 >> 32) as u32
}

/// How long the server waits for work before it ends, seconds.
///
/// # Errors
/// `RING3_IDLE_SECONDS` is no number.
fn idle_seconds() -> Result<u64, String> {
    let Ok(text) = std::env::var("RING3_IDLE_SECONDS") else { return Ok(IDLE_SECONDS) };
    text.parse().map_err(|_| format!("RING3_IDLE_SECONDS={text}: set it to a whole number of seconds"))
}

impl Server {
    fn accept(self: &Arc<Server>, listener: &UnixListener, signals: &OwnedFd, idle: u64) {
        let mut busy_until = Instant::now();
        while !self.stopping.load(Ordering::Acquire) {
            let mut fds = [
                PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.wake.0.as_fd(), PollFlags::IN),
            ];
            let _ = rustix::event::poll(&mut fds, Some(&LOOK_EVERY));
            if !fds[1].revents().is_empty() {
                tracing::info!("told to end by a signal");
                return;
            }
            if !fds[0].revents().is_empty() {
                match listener.accept() {
                    Ok((stream, _)) => self.clone().begin(Connection::accepted(stream)),
                    Err(error) => {
                        tracing::error!("a request is not accepted: {error}");
                        std::thread::sleep(ACCEPT_AGAIN);
                    }
                }
            }
            if self.is_busy() {
                busy_until = Instant::now();
            } else if busy_until.elapsed() >= Duration::from_secs(idle) && self.is_unused(listener) {
                tracing::info!("idle for {idle} s");
                return;
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.connections.load(Ordering::Acquire) > 0
            || self.sessions.load(Ordering::Acquire) > 0
            || self.realm.had_targets()
            || self.subsystem.has_pins()
    }

    /// Whether nobody has come while it was looked whether the server is idle: the tracer may take its time to answer.
    fn is_unused(&self, listener: &UnixListener) -> bool {
        let has_targets = self.realm.target_count() > 0;
        let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        let waiting = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !has_targets && waiting == Ok(0) && !self.is_busy()
    }

    fn begin(self: Arc<Server>, connection: Connection) {
        self.connections.fetch_add(1, Ordering::AcqRel);
        let server = self.clone();
        let spawned = std::thread::Builder::new().name("ring3-request".into()).spawn(move || {
            server.converse(&connection);
            server.connections.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = spawned {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            tracing::error!("no thread for a request: {error}");
        }
    }

    fn converse(self: &Arc<Server>, connection: &Connection) {
        let Ok((pid, uid)) = connection.peer() else { return };
        if pid == 0 {
            // (Who closes a connection with something unread resets it.)
            let _ = connection.receive();
            connection.answer(Err(OTHER_NAMESPACE.into()));
            return;
        }
        if uid != rustix::process::geteuid().as_raw() && uid != 0 {
            connection.answer(Err(format!("this server serves user {} only", rustix::process::geteuid().as_raw())));
            return;
        }
        let mut brought = Brought::default();
        loop {
            let (request, fd) = match connection.receive() {
                Ok(Some(received)) => received,
                Ok(None) => return,
                Err(why) => {
                    tracing::warn!(pid, "{why}");
                    connection.answer(Err(why));
                    return;
                }
            };
            if let Request::Start { follow } = request {
                self.start(connection, pid, following(follow), fd);
                return;
            }
            let stop = matches!(request, Request::Stop);
            let result = self.serve(connection, request, fd, &mut brought);
            let is_told = connection.answer(result);
            if stop {
                self.stopping.store(true, Ordering::Release);
                self.wake.signal();
            }
            if stop || !is_told {
                return;
            }
        }
    }

    /// `brought`: what came for the connection's loader before.
    fn serve(
        self: &Arc<Server>,
        connection: &Connection,
        request: Request,
        fd: Option<OwnedFd>,
        brought: &mut Brought,
    ) -> Result<Value, String> {
        let reaches = |pid: u32| {
            let checked = self.realm.check_reach(&*connection.rights()?, pid);
            checked.map_err(|refusal| refusal.message)
        };
        match request {
            Request::Load { command, options } => {
                self.load(fd, connection.peer()?.0, command, options, std::mem::take(brought))
            }
            Request::Aot => {
                let read = crate::aot::read(fd.ok_or("the request has no file")?)?;
                let programs = read.programs.len();
                brought.store = Some(Arc::new(read));
                Ok(json!({ "programs": programs }))
            }
            Request::Extend => {
                let class = read_class(fd.ok_or("the request has no class")?)?;
                brought.extensions.push(Arc::new(class));
                Ok(Value::Null)
            }
            Request::Start { .. } => unreachable!("handled by converse"),
            Request::TraceThrough { tracer } => {
                // Whoever may trace a tracer may do to its tracees whatever it likes, by it.
                reaches(tracer)?;
                trace_through(tracer, fd.ok_or("the request has no socket")?)?;
                Ok(Value::Null)
            }
            Request::Attach { pid, follow, for_links, of_family, before_program } => {
                reaches(pid)?;
                let following = (!for_links).then_some(following(follow));
                let target = self
                    .realm
                    .add_target(pid, following, of_family, before_program)
                    .map_err(|refusal| refusal.message)?;
                let mut answer = json!(target);
                // (strace takes no children that there are already.)
                if follow && of_family.is_none() && !before_program {
                    let attach = |child: u32| {
                        reaches(child)?;
                        let family = for_links.then_some(pid);
                        let added = self.realm.add_target(child, following, family, false);
                        added.map_err(|refusal| refusal.message)
                    };
                    answer["children"] = attach_descendants(pid, attach).into();
                }
                Ok(answer)
            }
            Request::Detach { pid, verify } => {
                reaches(pid)?;
                self.realm
                    .remove_target(pid, verify)
                    .map(|left| json!({ "left": left }))
                    .map_err(|refusal| refusal.message)
            }
            Request::Unpin { path } => match self.subsystem.unpin(&*connection.rights()?, &path) {
                Ok(()) => Ok(Value::Null),
                Err(Errno::EPERM) => Err(format!("{} is another user's", path.display())),
                Err(_) => Err(format!("nothing is pinned as {}; `ring3 status` shows what is", path.display())),
            },
            Request::Hello => Ok(Value::Null),
            Request::Status => Ok(self.status()),
            Request::Trace { from } => {
                let (lines, next) = self.realm.trace(from);
                Ok(json!({ "lines": lines, "next": next }))
            }
            Request::Symbols { pid } => {
                reaches(pid)?;
                self.realm.symbols(pid).map(|placed| json!(placed)).map_err(|refusal| refusal.message)
            }
            Request::Stop => Ok(json!({ "loaders": self.sessions.load(Ordering::Acquire) })),
        }
    }

    fn load(
        self: &Arc<Server>,
        fd: Option<OwnedFd>,
        pid: u32,
        command: String,
        options: LoadOptions,
        brought: Brought,
    ) -> Result<Value, String> {
        let listener = fd.ok_or("the request has no seccomp listener")?;
        // (Before the loader goes on.)
        let whose = (pid, Terminal::of(pid));
        let kept = self.keeper.keep(listener, whose.1).map_err(|error| error.to_string())?;
        let server = self.clone();
        self.sessions.fetch_add(1, Ordering::AcqRel);
        let spawned = std::thread::Builder::new().name(format!("ring3-load-{pid}")).spawn(move || {
            tracing::info!(pid, command, "loader begins");
            if !Session::run(&kept, server.subsystem.clone(), whose, command, options, brought) {
                server.keeper.leave(&kept);
            }
            tracing::info!(pid, "loader ended");
            server.sessions.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = spawned {
            self.sessions.fetch_sub(1, Ordering::AcqRel);
            return Err(format!("no thread for the loader: {error}"));
        }
        Ok(Value::Null)
    }

    /// The peer execs the target once it has the answer. What goes wrong after that is told on its standard
    /// error, and the program runs on untraced.
    fn start(&self, connection: &Connection, pid: u32, following: Following, stderr: Option<OwnedFd>) {
        let answered = Arc::new(AtomicBool::new(false));
        let ready_answered = answered.clone();
        let Ok(stream) = connection.stream().try_clone_to_owned() else { return };
        let ready = Box::new(move || {
            ready_answered.store(true, Ordering::Release);
            Connection::accepted(stream.into()).answer(Ok(Value::Null));
        });
        if let Err(refusal) = self.realm.add_target_at_exec(pid, following, ready) {
            tracing::warn!(pid, "start: {refusal}");
            if !answered.load(Ordering::Acquire) {
                connection.answer(Err(refusal.message));
            } else if let Some(stderr) = stderr.filter(|_| refusal.errno != Errno::ESRCH) {
                // (A process that is gone has told why for itself.)
                let text = format!("ring3: not traced: {}\n", refusal.message);
                let _ = rustix::io::write(&stderr, text.as_bytes());
            }
        }
    }

    fn status(&self) -> Value {
        let realm = self.realm.status();
        let mut status = json!({
            "server": {
                "pid": std::process::id(),
                "version": env!("CARGO_PKG_VERSION"),
                "uptime_s": self.started.elapsed().as_secs(),
                "runtime_dir": runtime_dir().map(|dir| dir.display().to_string()).unwrap_or_default(),
                "agent_bytes": realm.agent_bytes,
                "text_bytes": realm.text_bytes,
                "let_go": realm.let_go,
                "not_traced": realm.not_traced,
                "traced_through": ring3_inject::traced_through(),
            },
            "targets": realm.targets,
        });
        let objects = json!(self.subsystem.snapshot());
        if let (Some(status), Value::Object(objects)) = (status.as_object_mut(), objects) {
            status.extend(objects);
        }
        status
    }
}

/// Registers a proxy until its end of the socket is closed.
fn trace_through(tracer: u32, socket: OwnedFd) -> Result<(), String> {
    let kind = rustix::net::sockopt::socket_type(&socket).map_err(|error| format!("it is no socket: {error}"))?;
    if kind != rustix::net::SocketType::SEQPACKET {
        return Err("the socket is not of type SOCK_SEQPACKET".into());
    }
    ring3_inject::trace_through(tracer, socket);
    let watch = std::thread::Builder::new().name("ring3-proxy".into());
    let watch = watch.spawn(move || ring3_inject::forget_proxy(tracer));
    watch.map(drop).map_err(|error| format!("no thread that waits for the socket's end: {error}"))
}

/// The class of extensions that comes as a file of JSON text.
fn read_class(file: OwnedFd) -> Result<ExtensionClass, String> {
    /// Bytes at most.
    const CLASS_BYTES_MAX: u64 = 16 << 20;
    let mut text = vec![];
    let read = std::fs::File::from(file).take(CLASS_BYTES_MAX).read_to_end(&mut text);
    read.map_err(|error| format!("cannot read the class: {error}"))?;
    let class: ExtensionClass =
        serde_json::from_slice(&text).map_err(|error| format!("the server does not know the class: {error}"))?;
    class.check()?;
    Ok(class)
}
