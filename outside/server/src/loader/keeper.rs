//! A process that outlives the server, so that loaders do.
//!
//! A loader's `open`, `stat` and `poll` wait for its listener as bpf(2) does; without a listener the kernel says `ENOSYS` to all of
//! them. So a second process holds each listener. It does nothing until the server's end of a socket closes. From then on
//! it lets the kernel carry out what the loader asks, and says `ENOSYS` to bpf(2) and perf_event_open(2). A tool that only waits for
//! events asks nothing: so each is told on its terminal.
//!
//! A call that the server had received and not answered is received by nobody again, and its thread would wait for ever. So the kernel
//! hands calls over in a file that the keeper reads then (`Ledger`): there is no moment at which a received call is unknown.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use super::raw_seccomp::{self, Notification, NotificationPage};
use crate::realm::Terminal;

/// Bytes of an entry: a call's id and its number.
const ENTRY_BYTES: usize = 16;

/// Where the entries of awaited calls begin: behind the call that was received last.
const ENTRIES_OFFSET: usize = size_of::<Notification>();

/// Where that call's number stands; its id stands first.
const NUMBER: std::ops::Range<usize> = {
    let start = std::mem::offset_of!(Notification, number);
    start..start + size_of::<i32>()
};

/// What a loader waits for: the call that its session received last, and those that threads answer later.
pub(super) struct Ledger {
    file: OwnedFd,
    last: Mutex<NotificationPage>,
    /// Which entries are taken.
    taken: Mutex<Vec<bool>>,
}

/// A call that is answered later; written down until this value is dropped.
pub(super) struct Awaited {
    ledger: Arc<Ledger>,
    index: usize,
}

impl Ledger {
    pub(super) fn new() -> std::io::Result<Ledger> {
        let file = rustix::fs::memfd_create("ring3-ledger", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, ENTRIES_OFFSET as u64)?;
        let last = Mutex::new(NotificationPage::new(file.as_fd())?);
        Ok(Ledger { file, last, taken: Mutex::default() })
    }

    fn write(&self, index: usize, id: u64, number: i32) {
        let entry = [id.to_le_bytes(), i64::from(number).to_le_bytes()];
        let offset = ENTRIES_OFFSET + index * ENTRY_BYTES;
        // Without it a call may be lost if the server dies, and nothing else.
        if let Err(error) = rustix::io::pwrite(&self.file, entry.as_flattened(), offset as u64) {
            tracing::warn!("a call could not be written down: {error}");
        }
    }

    /// Receives the next call; the one before is answered, or awaited.
    pub(super) fn receive(&self, listener: BorrowedFd<'_>) -> std::io::Result<Option<Notification>> {
        self.last.lock().expect("no panic under this lock").receive(listener)
    }

    /// A call is going to be answered by another thread.
    pub(super) fn awaits(self: &Arc<Ledger>, call: &Notification) -> Awaited {
        let mut taken = self.taken.lock().expect("no panic under this lock");
        let free = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        if free == taken.len() {
            taken.push(false);
        }
        taken[free] = true;
        self.write(free, call.id, call.number);
        Awaited { ledger: self.clone(), index: free }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.ledger.write(self.index, 0, 0);
        self.ledger.taken.lock().expect("no panic under this lock")[self.index] = false;
    }
}

/// What a message to the keeper says of the listener that comes along.
#[derive(Serialize, Deserialize)]
enum Message {
    /// It is to be held. This is its loader's standard error.
    Keep(Option<Terminal>),
    /// Nobody else serves it from now on.
    Serve,
}

/// Bytes of a message at most.
const MESSAGE_BYTES_MAX: usize = 512;

/// What a tool is told when the server has gone.
const SERVER_GONE: &str = "the server has ended, and with it this tool's programs and maps: it sees no more events; end it, and begin it \
                           again with `ring3 load`";

/// The keeper as the server sees it: started for the first loader.
#[derive(Default)]
pub struct Keeper(Mutex<Option<Started>>);

/// Its process, and the server's end of the socket.
struct Started {
    child: Child,
    socket: OwnedFd,
}

/// A listener that the keeper holds, too.
pub struct KeptListener {
    pub(super) listener: Arc<OwnedFd>,
    pub(super) ledger: Arc<Ledger>,
}

impl Keeper {
    /// Has the listener of a loader held, which is given with its standard error. Without a keeper the loader is served all the same.
    ///
    /// # Errors
    /// There is no memory for what is written down.
    pub fn keep(&self, listener: OwnedFd, terminal: Option<Terminal>) -> std::io::Result<KeptListener> {
        let kept = KeptListener { listener: Arc::new(listener), ledger: Arc::new(Ledger::new()?) };
        self.tell(&Message::Keep(terminal), &kept);
        Ok(kept)
    }

    /// Leaves a loader to the keeper: the server cannot serve it.
    pub fn leave(&self, kept: &KeptListener) {
        self.tell(&Message::Serve, kept);
    }

    fn tell(&self, message: &Message, kept: &KeptListener) {
        let message = serde_json::to_vec(message).expect("it has no keys but names");
        let mut keeper = self.0.lock().expect("no panic under this lock");
        // One that was killed is replaced.
        let told = (0..2).any(|_| {
            let started = keeper.take().map_or_else(Started::new, Ok);
            let sent = started.and_then(|started| started.send(&message, kept));
            *keeper = sent.inspect_err(|error| tracing::warn!("no keeper of loaders: {error}")).ok();
            keeper.is_some()
        });
        if !told {
            tracing::error!("a loader's calls will fail if the server is killed");
        }
    }
}

impl Started {
    /// Starts the process, with the other end of a socket as standard input.
    fn new() -> std::io::Result<Started> {
        let flags = SocketFlags::CLOEXEC;
        let (socket, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("keep").env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Started { child: command.spawn()?, socket })
    }

    fn send(mut self, message: &[u8], kept: &KeptListener) -> std::io::Result<Started> {
        let files = [kept.listener.as_fd(), kept.ledger.file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        match rustix::net::sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(self),
            Err(error) => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                Err(error.into())
            }
        }
    }
}

/// A listener in the keeper.
struct HeldListener {
    listener: OwnedFd,
    ledger: OwnedFd,
    /// Nobody else does.
    serves: bool,
    terminal: Option<Terminal>,
}

/// The keeper's life: until the server and all its loaders are gone.
///
/// # Errors
/// The socket is none.
pub fn run(socket: BorrowedFd<'_>) -> Result<(), String> {
    crate::raw_process::close_inherited();
    // Whoever kills the server's process group means the server.
    let _ = rustix::process::setsid();
    let mut held: Vec<HeldListener> = vec![];
    let mut server_lives = true;
    while server_lives || !held.is_empty() {
        let mut fds: Vec<PollFd<'_>> = held.iter().map(|held| PollFd::new(&held.listener, held.events())).collect();
        if server_lives {
            fds.push(PollFd::from_borrowed_fd(socket, PollFlags::IN));
        }
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let mut all = ready.iter();
        held.retain(|held| all.next().is_none_or(|ready| held.stays(*ready)));
        if server_lives && ready.last().is_some_and(|ready| !ready.is_empty()) {
            server_lives = hear(socket, &mut held);
            if !server_lives {
                held.retain_mut(HeldListener::take_over);
                held.iter().for_each(HeldListener::tell);
            }
        }
    }
    Ok(())
}

/// Takes a message; false at the socket's end.
fn hear(socket: BorrowedFd<'_>, held: &mut Vec<HeldListener>) -> bool {
    let mut message = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut control, flags);
    let bytes = match received {
        // The message is still there.
        Err(rustix::io::Errno::INTR | rustix::io::Errno::NOMEM | rustix::io::Errno::NOBUFS) => return true,
        Ok(received) if received.bytes != 0 => received.bytes,
        _ => return false,
    };
    let Ok(message) = serde_json::from_slice(&message[..bytes]) else { return false };
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let mut files = files.next().into_iter().flatten();
    let (Some(listener), Some(ledger)) = (files.next(), files.next()) else { return true };
    let mut new = HeldListener { listener, ledger, serves: false, terminal: None };
    match message {
        Message::Keep(terminal) => new.terminal = terminal,
        Message::Serve => {
            held.retain(|held| !held.is_same_as(&new));
            if !new.take_over() {
                return true;
            }
        }
    }
    held.push(new);
    true
}

impl HeldListener {
    /// Listeners have nothing of their own by which to know them; ledgers are files.
    fn is_same_as(&self, other: &HeldListener) -> bool {
        let inode = |held: &HeldListener| rustix::fs::fstat(&held.ledger).map(|stat| stat.st_ino).ok();
        inode(self).is_some() && inode(self) == inode(other)
    }

    fn events(&self) -> PollFlags {
        if self.serves { PollFlags::IN } else { PollFlags::empty() }
    }

    /// Serves what is there to serve; false if nobody is left who could ask.
    fn stays(&self, ready: PollFlags) -> bool {
        if ready.contains(PollFlags::IN) {
            return match raw_seccomp::receive(self.listener.as_fd()) {
                Ok(Some(call)) => {
                    self.answer(call.id, call.number);
                    true
                }
                Ok(None) => true,
                Err(_) => false,
            };
        }
        ready.is_empty()
    }

    /// Answers instead of the server from now on, first what that has not. False if that cannot be known: then the kernel answers.
    fn take_over(&mut self) -> bool {
        self.serves = true;
        let Ok(ledger) = read_all(&self.ledger) else { return false };
        let Some((last, awaited)) = ledger.split_at_checked(ENTRIES_OFFSET) else { return false };
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let number = i32::from_le_bytes(last[NUMBER].try_into().expect("4 bytes"));
        let last = (word(&last[..8]), number);
        let awaited = awaited.chunks_exact(ENTRY_BYTES).map(|entry| (word(&entry[..8]), word(&entry[8..]) as i32));
        for (id, number) in std::iter::once(last).chain(awaited).filter(|(id, _)| *id != 0) {
            self.answer(id, number);
        }
        true
    }

    /// Tells the tool that the server has gone. (ring3's own commands notice that, and say what it means for them.)
    fn tell(&self) {
        let own = std::fs::read_link("/proc/self/exe").ok();
        if let Some(terminal) = self.terminal.filter(|terminal| terminal.program() != own) {
            terminal.say(SERVER_GONE);
        }
    }

    fn answer(&self, id: u64, number: i32) {
        let listener = self.listener.as_fd();
        match i64::from(number) {
            libc::SYS_bpf | libc::SYS_perf_event_open => raw_seccomp::answer(listener, id, Err(libc::ENOSYS)),
            _ => raw_seccomp::pass_on(listener, id),
        }
    }
}

fn read_all(file: &OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; rustix::fs::fstat(file)?.st_size as usize];
    let read = rustix::io::pread(file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
