//! A process that runs a program of a server's (`BPF_PROG_TEST_RUN`): what the program may do with its process, it does
//! with one that has nothing. It learns of the thread that wants the run, as far as that thread is `current` in the kernel's run.
//!
//! The server starts it with one end of a socket as standard input, and sends a [`Request`] with the files that it names, in
//! this order: the realm block, the text, the maps. The answer is an [`Answer`]. Both are a length of 4 bytes, little-endian,
//! and JSON.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use ring3_layout::sampled::Sampled;
use ring3_maps::Geometry;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use crate::events::{name_of, user_of};
use crate::raw_region::{geometry_of_bytes, geometry_to_bytes};
use crate::{Error, Runner, packet};

/// Files that one message carries at most (`SCM_MAX_FD`).
pub const FILES_MAX: usize = 253;
/// Bytes of a message at most.
const MESSAGE_BYTES_MAX: u32 = 1 << 26;
/// What sending files with a message takes.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FILES_MAX));

/// A map of the server's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedMap {
    pub(crate) slot: u32,
    pub(crate) write: bool,
    pub(crate) geometry: Vec<u8>,
}

impl SharedMap {
    /// The map in a GOT slot; programs may write it or not.
    pub fn new(slot: u32, geometry: &Geometry, write: bool) -> SharedMap {
        SharedMap { slot, write, geometry: geometry_to_bytes(geometry) }
    }
}

/// The thread that wants a program run, which waits meanwhile.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Caller {
    /// Its process.
    pub pid: u32,
    /// Its own id.
    pub tid: u32,
}

impl Caller {
    /// What stands for the running thread, for a program with this context: the kernel runs the program on the caller.
    fn sampled(self, context: &[u8]) -> Sampled {
        Sampled {
            pid_tgid: u64::from(self.pid) << 32 | u64::from(self.tid),
            uid_gid: user_of(self.tid),
            comm: name_of(self.tid),
            context: context.as_ptr() as u64,
            context_bytes: context.len() as u64,
            ..Sampled::default()
        }
    }
}

/// What is to be run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// For whom.
    pub caller: Caller,
    /// Fields of tasks that it can read, as [`ring3_layout::task::TaskField`] has them.
    pub tasks: Vec<[u16; 4]>,
    /// CPUs that there can be.
    pub cpus: u32,
    /// `BPF_PROG_TYPE_*`.
    pub prog_type: u32,
    /// Offset of the program's entry in the text.
    pub entry: u32,
    /// It uses memory of which each CPU has its own.
    pub per_cpu: bool,
    /// Maps that it may come to.
    pub maps: Vec<SharedMap>,
    /// What r1 leads to, if that is not a packet's context.
    pub context: Vec<u8>,
    /// The packet.
    pub packet: Option<Vec<u8>>,
    /// How often.
    pub repeat: u32,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// r0 of the last run.
    pub result: u64,
    /// All runs together, ns.
    pub duration_ns: u64,
    /// What r1 led to, afterwards.
    pub context: Vec<u8>,
    /// The packet afterwards.
    pub packet: Option<Vec<u8>>,
}

pub(crate) fn send(stream: &UnixStream, message: &[u8], files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let length = (message.len() as u32).to_le_bytes();
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(stream, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
    (&*stream).write_all(message)
}

pub(crate) fn receive(stream: &UnixStream) -> std::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let read = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut length)], &mut control, flags)?.bytes;
    let length = u32::from_le_bytes(length);
    if read != 4 || length > MESSAGE_BYTES_MAX {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut files = vec![];
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    let mut message = vec![0; length as usize];
    (&*stream).read_exact(&mut message)?;
    Ok((message, files))
}

impl Request {
    /// Sends it with its files.
    ///
    /// # Errors
    /// The child has ended, or there are more than [`FILES_MAX`] files.
    pub fn send(&self, stream: &UnixStream, files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        send(stream, &serde_json::to_vec(self)?, files)
    }
}

impl Answer {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The child has ended.
    pub fn receive(stream: &UnixStream) -> std::io::Result<Answer> {
        Ok(serde_json::from_slice(&receive(stream)?.0)?)
    }
}

/// The child's life: one request and its answer.
///
/// # Errors
/// What was wrong.
pub fn serve(stream: &UnixStream) -> Result<(), String> {
    let (message, files) = receive(stream).map_err(|error| error.to_string())?;
    let request: Request = serde_json::from_slice(&message).map_err(|error| error.to_string())?;
    let answer = run(request, &files).map_err(|error| error.to_string())?;
    let message = serde_json::to_vec(&answer).map_err(|error| error.to_string())?;
    send(stream, &message, &[]).map_err(|error| error.to_string())
}

fn run(request: Request, files: &[OwnedFd]) -> Result<Answer, Error> {
    let damaged = || Error::Mapping(std::io::ErrorKind::InvalidData.into());
    let [realm, text, maps @ ..] = files else { return Err(damaged()) };
    let mut runner = Runner::new(request.cpus)?;
    runner.share(realm.as_fd(), text.as_fd())?;
    for (map, file) in request.maps.iter().zip(maps) {
        let geometry = geometry_of_bytes(&map.geometry).ok_or_else(damaged)?;
        runner.show_file(map.slot, &geometry, file.as_fd(), map.write)?;
    }
    runner.know_tasks(&request.tasks);
    let program = runner.at(request.entry, request.per_cpu);
    let (mut context, mut packet) = (request.context, request.packet);
    if let Some(packet) = &mut packet {
        context = packet::context(request.prog_type, packet);
    }
    let caller = request.caller.sampled(&context);
    let outcome = runner.run_on(program, &mut context, request.repeat, Some(&caller))?;
    Ok(Answer { result: outcome.result, duration_ns: outcome.duration_ns, context, packet })
}
