//! The control socket: what the command line asks of the server.
//!
//! A stream socket in the user's private run-time directory. Each request is one line of JSON (with a file
//! descriptor for `load`, `start` and some others), each answer one line. Peers are checked by `SO_PEERCRED`.

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use crate::loader::LoadOptions;
use crate::raw_process;
use crate::rights::Rights;

/// Bytes of a request at most.
const REQUEST_BYTES_MAX: usize = 0x1_0000;

/// What can be asked.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Serve the loader behind the seccomp listener that comes along.
    Load {
        /// The beginning of its command line, for `ring3 status`.
        command: String,
        /// What its user asked for.
        #[serde(default)]
        options: LoadOptions,
    },
    /// Programs of the loader that asks next by this connection may be taken from a file, which comes along.
    Aot,
    /// The programs of the loader that asks next by this connection are extensions; a class, as JSON text, comes along as a file. Once for
    /// each entry.
    Extend,
    /// The asking process is about to `execve` a new target. Its standard error comes along, for what
    /// can only be found out when the new image is there.
    Start {
        /// Its children and what they execute are targets, too.
        follow: bool,
    },
    /// Make a running process a target.
    Attach {
        /// Its process id.
        pid: u32,
        /// Its children and what they execute are targets, too.
        follow: bool,
        /// It is one as long as a link is for it or its family.
        #[serde(default)]
        for_links: bool,
        /// It belongs to the family of this process, too, though it need not descend from it.
        #[serde(default)]
        of_family: Option<u32>,
        /// It runs ring3 until it executes its program: what ring3 itself does is not traced, and its files are not analysed.
        #[serde(default)]
        before_program: bool,
    },
    /// Make ptrace requests for the tracees of a process through the socket that comes along, until its other end is closed.
    TraceThrough {
        /// The process.
        tracer: u32,
    },
    /// Take everything out of a target.
    Detach {
        /// Its process id.
        pid: u32,
        /// Say what is left in it.
        #[serde(default)]
        verify: bool,
    },
    /// Only whether it serves: from then on it does not end as idle while the connection is open.
    Hello,
    /// Everything about the server.
    Status,
    /// Names and lines of what of ring3 lies in a target.
    Symbols {
        /// Its process id.
        pid: u32,
    },
    /// Lines of `bpf_trace_printk` from this number on.
    Trace {
        /// Number of the first line wanted.
        from: u64,
    },
    /// Take the name of a pinned object away.
    Unpin {
        /// The path.
        path: PathBuf,
    },
    /// Detach from everything and end.
    Stop,
}

impl Request {
    /// Makes a running process a target until it is detached; with `follow`, its children and what they execute are targets, too.
    pub fn attach(pid: u32, follow: bool) -> Request {
        Request::Attach { pid, follow, for_links: false, of_family: None, before_program: false }
    }
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done; what there is to tell.
    Ok(serde_json::Value),
    /// Not done, and why.
    Err(String),
}

/// The directory for the socket, the lock and the log: `$RING3_RUNTIME_DIR`, else `/run/ring3` for root,
/// `$XDG_RUNTIME_DIR/ring3` if that is absolute (XDG Base Directory Specification: else to be ignored), or `/tmp/ring3-UID`. Made
/// with mode 0700; refused if it is not ours alone.
pub fn runtime_dir() -> Result<PathBuf, String> {
    let uid = rustix::process::geteuid().as_raw();
    let of_session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let path = match (std::env::var_os("RING3_RUNTIME_DIR").map(PathBuf::from), of_session) {
        // The server works in `/`: there, a relative path would be another directory.
        (Some(dir), _) if !dir.is_absolute() => {
            return Err(format!("RING3_RUNTIME_DIR is `{}`; set it to an absolute path", dir.display()));
        }
        (Some(dir), _) => dir,
        (None, _) if uid == 0 => PathBuf::from("/run/ring3"),
        (None, Some(dir)) => dir.join("ring3"),
        (None, None) => PathBuf::from(format!("/tmp/ring3-{uid}")),
    };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.map_err(|error| {
        let path = path.display();
        format!("cannot create the runtime directory {path}: {error}; set RING3_RUNTIME_DIR to a directory that you may create")
    })?;
    let meta = std::fs::symlink_metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
        return Err(format!(
            "the runtime directory {} must be a directory of user {uid} with mode 700 (it has owner {}, mode {:o}); change that, \
             or set RING3_RUNTIME_DIR to another directory",
            path.display(),
            meta.uid(),
            meta.mode() & 0o7777,
        ));
    }
    Ok(path)
}

/// The socket in the run-time directory.
pub fn socket_path() -> Result<PathBuf, String> {
    const NAME: &str = "server.sock";
    /// `sizeof(sockaddr_un.sun_path)` without the zero byte and `/NAME`.
    const DIRECTORY_BYTES_MAX: usize = 108 - 1 - "/".len() - NAME.len();
    let directory = runtime_dir()?;
    if directory.as_os_str().len() > DIRECTORY_BYTES_MAX {
        return Err(format!(
            "the name of the runtime directory {} is too long for a socket in it; set RING3_RUNTIME_DIR to a directory whose name has \
             at most {DIRECTORY_BYTES_MAX} bytes",
            directory.display()
        ));
    }
    Ok(directory.join(NAME))
}

fn went_away(error: rustix::io::Errno) -> String {
    format!("the server went away: {error}")
}

/// A connection to the server.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Connects to a running server, which does not end as idle while the connection is open; `Ok(None)` if there is none, or it
    /// is just ending.
    pub fn open() -> Result<Option<Connection>, String> {
        let Some(connection) = Connection::connect()? else { return Ok(None) };
        match connection.try_ask(&Request::Hello, None) {
            Ok(Ok(_)) => Ok(Some(connection)),
            // (It will never read the request.)
            Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => Ok(None),
            Err(error) => Err(went_away(error)),
            Ok(Err(why)) => Err(why),
        }
    }

    fn connect() -> Result<Option<Connection>, String> {
        let path = socket_path()?;
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Some(Connection { stream })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ECONNREFUSED)) => Ok(None),
            Err(error) => Err(format!("cannot connect to the server at {}: {error}", path.display())),
        }
    }

    /// The server's side of an accepted stream.
    pub(crate) fn accepted(stream: UnixStream) -> Connection {
        Connection { stream }
    }

    /// Process id and user id of the other side. (The id is 0 if it is in no PID namespace of this process.)
    pub fn peer(&self) -> Result<(u32, u32), String> {
        raw_process::peer_credentials(self.stream.as_fd()).map_err(|error| error.to_string())
    }

    /// What the other side may do now: the process that has connected, if it is still there.
    pub(crate) fn rights(&self) -> Result<Arc<Rights>, String> {
        const GONE: &str = "the asking process is gone";
        let process = raw_process::peer_process(self.stream.as_fd());
        let rights = Rights::of(self.peer()?.0).map_err(|_| GONE)?;
        // A pidfd is readable once its process has ended: then those may be another's of the same number.
        if let Some(process) = process {
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            let ended = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            if ended.map_err(|error| error.to_string())? != 0 {
                return Err(GONE.into());
            }
        }
        Ok(rights)
    }

    /// Sends a request with at most one fd and waits for the answer.
    pub fn ask(&self, request: &Request, fd: Option<BorrowedFd<'_>>) -> Result<serde_json::Value, String> {
        self.try_ask(request, fd).map_err(went_away)?
    }

    /// The outer error: the server is not there any more.
    fn try_ask(
        &self,
        request: &Request,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Result<serde_json::Value, String>, rustix::io::Errno> {
        let mut line = serde_json::to_vec(request).expect("requests are serialisable");
        line.push(b'\n');
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let sent = rustix::net::sendmsg(&self.stream, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL);
        match sent {
            Ok(bytes) if bytes == line.len() => {}
            Ok(_) => return Ok(Err("the request to the server is too long".into())),
            Err(error) => return Err(error),
        }
        let mut answer = String::new();
        if let Err(error) = BufReader::new(&self.stream).read_line(&mut answer) {
            return Err(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO));
        }
        Ok(match serde_json::from_str(&answer) {
            Ok(Answer::Ok(value)) => Ok(value),
            Ok(Answer::Err(why)) => Err(why),
            Err(_) => {
                Err("the server ended while it worked on the request; see server.log in its runtime directory".into())
            }
        })
    }

    /// Receives a request and the fd that may come along; `None` when the other side is gone.
    ///
    /// # Errors
    /// It cannot be received, or makes no sense: what to tell the other side.
    pub(crate) fn receive(&self) -> Result<Option<(Request, Option<OwnedFd>)>, String> {
        let mut line = vec![0u8; REQUEST_BYTES_MAX];
        let mut filled = 0;
        let mut fd = None;
        while !line[..filled].ends_with(b"\n") {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let mut room = [IoSliceMut::new(&mut line[filled..])];
            let got = match rustix::net::recvmsg(&self.stream, &mut room, &mut control, flags) {
                Ok(got) if got.bytes == 0 => return Ok(None),
                Ok(got) => got,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(format!("the server could not receive the request: {error}")),
            };
            filled += got.bytes;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    fd = fds.into_iter().next().or(fd);
                }
            }
        }
        let request = serde_json::from_slice(&line[..filled]);
        let request = request.map_err(|error| format!("the server does not know the request: {error}"))?;
        Ok(Some((request, fd)))
    }

    /// Sends an answer; false if that fails: the other side may be gone, or waits for it until the connection ends.
    pub(crate) fn answer(&self, result: Result<serde_json::Value, String>) -> bool {
        let answer = match result {
            Ok(value) => Answer::Ok(value),
            Err(why) => Answer::Err(why),
        };
        let mut line = serde_json::to_vec(&answer).expect("answers are serialisable");
        line.push(b'\n');
        (&self.stream).write_all(&line).is_ok()
    }

    pub(crate) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
