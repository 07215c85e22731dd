//! The process that holds the session, and asks the server for us.
//!
//! Each message is answered by one: empty if it is done, else why not.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Bytes of a message at most.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// What asks to attach a process begins so.
pub const ATTACH: &str = "attach ";
/// What asks to take everything out of one begins so.
pub const DETACH: &str = "detach ";
/// What asks why a process is no target begins so.
pub const WHY: &str = "why ";
/// What hands over the socket by which the server makes its ptrace requests; the other end comes along.
pub const TRACE_THROUGH: &str = "trace-through";

/// A socket to it.
#[derive(Debug)]
pub struct Companion {
    socket: OwnedFd,
}

impl Companion {
    /// By this socket, of type `SOCK_SEQPACKET`.
    pub fn new(socket: OwnedFd) -> Companion {
        Companion { socket }
    }

    /// The descriptor of the ring buffer's map, which it sends first.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn take_ring(&self) -> io::Result<OwnedFd> {
        let (_, ring) = self.receive()?;
        ring.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Asks to make a process a target.
    ///
    /// # Errors
    /// Why it is none.
    pub fn attach(&self, pid: i32) -> Result<(), String> {
        self.ask(&format!("{ATTACH}{pid}"), None)
    }

    /// Asks that a process is no target.
    ///
    /// # Errors
    /// Why it is one still: a thread is inside, say, and it will be none in a moment.
    pub fn detach(&self, pid: i32) -> Result<(), String> {
        self.ask(&format!("{DETACH}{pid}"), None)
    }

    /// Why a process is no target any more, or what it has executed is none.
    pub fn why(&self, pid: i32) -> Option<String> {
        self.ask(&format!("{WHY}{pid}"), None).err()
    }

    /// Hands over the socket by which the server makes its ptrace requests.
    ///
    /// # Errors
    /// Why the server does not take it.
    pub fn trace_through(&self, socket: BorrowedFd<'_>) -> Result<(), String> {
        self.ask(TRACE_THROUGH, Some(socket))
    }

    /// Whether it has ended, and with it the programs that write records.
    pub fn has_ended(&self) -> bool {
        let mut socket = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let seen = rustix::event::poll(&mut socket, Some(&now));
        seen.is_ok() && socket[0].revents().contains(PollFlags::HUP)
    }

    fn ask(&self, message: &str, along: Option<BorrowedFd<'_>>) -> Result<(), String> {
        send(&self.socket, message.as_bytes(), along).map_err(|error| format!("ring3 has ended: {error}"))?;
        match self.receive() {
            Ok((answer, _)) if answer.is_empty() => Ok(()),
            Ok((answer, _)) => Err(String::from_utf8_lossy(&answer).into_owned()),
            Err(error) => Err(format!("ring3 has ended: {error}")),
        }
    }

    fn receive(&self) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        receive(&self.socket)?
            .map(|(message, along)| (message[1..].to_vec(), along))
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Sends a message, and a descriptor. (One byte comes first: an empty message would be the end of the connection.)
///
/// # Errors
/// As sendmsg(2).
pub fn send(socket: &OwnedFd, message: &[u8], along: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = along.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [io::IoSlice::new(b"\0"), io::IoSlice::new(&message[..message.len().min(MESSAGE_BYTES_MAX - 1)])];
    rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one; `None`: the other side has ended.
///
/// # Errors
/// As recvmsg(2).
pub fn receive(socket: &OwnedFd) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [io::IoSliceMut::new(&mut message)];
        match rustix::net::recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let along = ancillary.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    message.truncate(received.bytes);
    Ok((!message.is_empty()).then_some((message, along)))
}
