//! Tracers that make our ptrace requests for us: a thread has one tracer, so what strace traces can be stopped by strace alone.
//!
//! A tracer's process registers with a socket (`SOCK_SEQPACKET`). If a thread cannot be seized because a thread of that process
//! traces it, its tracer is asked to hold it for us, and all further requests for it go through the socket. The tracer lets go of
//! it when we say so ([`Leaving`]), or when the socket is closed: then the thread runs on as the kernel lets a tracee run on whose
//! tracer has died.
//!
//! A proxy may lie. It is asked about threads only that it traces, with which it can do whatever it likes anyway, and
//! what it answers decides only what is done to their process. It may also be stopped: an answer that does not come within
//! [`ANSWER_WITHIN`] fails what it was for, and until it has come, everything else fails at once. A tracer that is not stopped has
//! [`RUNNING_ANSWER_WITHIN`]: on a busy machine it may execute another tracee's instructions one by one for more than a second.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::process::{Stat, proc_file, started, status_field, threads, tracer_of};
use crate::raw_ptrace::Tid;

/// An answer of a stopped tracer must come within this time, one of another within the longer one. (Registers that cannot be set back
/// in time are lost: their thread would go on where it must not be.)
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const RUNNING_ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The tracer is asked to wait for a thread for so long at most, microseconds.
pub(crate) const WAIT_MAX_US: u64 = 500;
/// Bytes of a request or an answer before what belongs to it.
const REQUEST_HEADER_BYTES: usize = 32;
const ANSWER_HEADER_BYTES: usize = 16;
/// Bytes of an answer at most: of a filter.
const ANSWER_BYTES_MAX: usize = 0x1_0000;

/// What a tracer is asked to do; the numbers are part of the protocol.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Op {
    /// Hold the thread for us.
    Seize = 1,
    Interrupt = 2,
    Resume = 3,
    ResumeToSyscall = 4,
    Registers = 5,
    SetRegisters = 6,
    RegisterSet = 7,
    SignalMask = 8,
    SetSignalMask = 9,
    Pending = 10,
    Dispatch = 11,
    SetDispatch = 12,
    Filter = 13,
    /// Wait for what it does, for so many microseconds.
    Wait = 14,
    /// Let it go; 1: for good, with what its system calls tell nobody any more.
    Leave = 15,
    /// We end, and tell of no system call any more.
    End = 16,
}

/// The value of an answer to [`Op::Wait`]: it has done nothing yet, or is gone.
pub(crate) const NOTHING_YET: u64 = u64::MAX;
pub(crate) const GONE: u64 = u64::MAX - 1;

/// A tracer's process.
#[derive(Debug)]
struct Proxy {
    process: u32,
    /// When it began.
    started: Option<u64>,
    socket: OwnedFd,
    exchange: Mutex<Exchange>,
}

#[derive(Debug, Default)]
struct Exchange {
    last_id: u32,
    /// The request whose answer did not come in time.
    awaited: Option<u32>,
    /// Where answers are received: [`ANSWER_BYTES_MAX`] bytes, from the first one on.
    answer: Vec<u8>,
}

static PROXIES: Mutex<BTreeMap<u32, Arc<Proxy>>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The threads that proxies hold for the running thread.
    static HELD: RefCell<Vec<(Tid, Arc<Proxy>)>> = const { RefCell::new(vec![]) };
    /// They are let go for good.
    static FOR_GOOD: Cell<bool> = const { Cell::new(false) };
}

/// Another thread of the server holds a tracee so long at most before a second one that wants it gives up.
const HELD_BY_OTHERS_MAX: Duration = Duration::from_millis(500);
const HELD_BY_OTHERS_PAUSE: Duration = Duration::from_micros(200);

fn proxies() -> std::sync::MutexGuard<'static, BTreeMap<u32, Arc<Proxy>>> {
    PROXIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ptrace requests for the tracees of a process are made through a socket from now on, until [`forget_proxy`].
pub fn trace_through(tracer: u32, socket: OwnedFd) {
    let proxy = Proxy { process: tracer, started: started(tracer), socket, exchange: Mutex::default() };
    proxies().insert(tracer, Arc::new(proxy));
}

/// Waits until the process, or the thread of it that traces, has closed its end; then its proxy is forgotten.
pub fn forget_proxy(tracer: u32) {
    let Some(proxy) = proxies().get(&tracer).cloned() else { return };
    while let Err(Errno::INTR) = rustix::event::poll(&mut [PollFd::new(&proxy.socket, PollFlags::empty())], None) {}
    let mut proxies = proxies();
    if proxies.get(&tracer).is_some_and(|known| Arc::ptr_eq(known, &proxy)) {
        proxies.remove(&tracer);
    }
}

/// The processes through which others are traced.
pub fn traced_through() -> Vec<u32> {
    proxies().keys().copied().collect()
}

/// Tells the processes through which others are traced that we end.
pub fn tell_end() {
    let all: Vec<Arc<Proxy>> = proxies().values().cloned().collect();
    for proxy in all {
        // (Who does not answer finds that out.)
        let _ = proxy.ask(Op::End, 0, 0, 0, &[]);
    }
}

/// Whether a thread of a process is traced through another process.
pub fn is_traced_through(pid: u32) -> bool {
    let is_proxied = |tid: &Tid| tracer_of(*tid).is_some_and(is_proxy);
    !proxies().is_empty() && threads(pid).is_ok_and(|threads| threads.iter().any(is_proxied))
}

/// The proxy of a process that a thread is of, by the thread's id.
fn proxy_of(tracer: u32) -> Option<Arc<Proxy>> {
    if proxies().is_empty() {
        return None;
    }
    let status = proc_file(tracer, "status").ok()?;
    let process = status_field(&status, "Tgid")?.parse().ok()?;
    let proxy = proxies().get(&process).cloned()?;
    (proxy.started == started(process)).then_some(proxy)
}

/// Whether the tracees of a thread, or of its process, are traced through it.
pub(crate) fn is_proxy(tracer: u32) -> bool {
    proxy_of(tracer).is_some()
}

/// Has the tracer of a thread hold it for us; `None`: it has no tracer that would.
pub(crate) fn seize(tid: Tid, options: u64) -> Option<io::Result<()>> {
    if proxies().is_empty() {
        return None;
    }
    let proxy = proxy_of(tracer_of(tid)?)?;
    // (Another thread of ours may hold it at present: the one that has followed an execution that failed, say.)
    let deadline = Instant::now() + HELD_BY_OTHERS_MAX;
    let held = loop {
        match proxy.ask(Op::Seize, tid, options, 0, &[]) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                if Instant::now() >= deadline {
                    return Some(Err(error));
                }
                std::thread::sleep(HELD_BY_OTHERS_PAUSE);
            }
            other => break other,
        }
    };
    // (If it has only come too late, it is let go, too.)
    HELD.with_borrow_mut(|all| all.push((tid, proxy)));
    Some(held.map(drop))
}

/// Whether a proxy holds a thread for the running thread.
pub(crate) fn holds(tid: Tid) -> bool {
    HELD.with_borrow(|held| held.iter().any(|(other, _)| *other == tid))
}

/// A thread that a proxy holds has executed a program, and has the id of its process now.
pub(crate) fn rename(tid: Tid, new: Tid) {
    HELD.with_borrow_mut(|held| held.iter_mut().filter(|(other, _)| *other == tid).for_each(|(tid, _)| *tid = new));
}

/// Makes a request of the proxy that holds a thread: a value and what belongs to it. `None`: none does.
pub(crate) fn ask(tid: Tid, op: Op, a: u64, payload: &[u8]) -> Option<io::Result<(u64, Vec<u8>)>> {
    let proxy =
        HELD.with_borrow(|held| held.iter().find(|(other, _)| *other == tid).map(|(_, proxy)| proxy.clone()))?;
    Some(proxy.ask(op, tid, a, 0, payload))
}

/// What proxies hold for the running thread is let go for good.
pub(crate) fn leave_for_good() {
    FOR_GOOD.set(true);
}

/// When it is dropped, proxies let go of all that they hold for the running thread.
#[derive(Debug)]
pub(crate) struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        let (mut held, for_good) = (HELD.with_borrow_mut(std::mem::take), FOR_GOOD.take());
        while let Some((_, proxy)) = held.first().cloned() {
            let (its, others): (Vec<_>, Vec<_>) = held.into_iter().partition(|(_, other)| Arc::ptr_eq(other, &proxy));
            held = others;
            proxy.let_go(its.into_iter().map(|(tid, _)| tid), for_good);
        }
    }
}

impl Proxy {
    fn exchange(&self) -> std::sync::MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, op: Op, tid: Tid, a: u64, b: u64, payload: &[u8]) -> io::Result<(u64, Vec<u8>)> {
        let mut exchange = self.exchange();
        if let Some(awaited) = exchange.awaited {
            // (Whether that was done does not matter any more.)
            let late = exchange.receive(&self.socket, awaited, || None);
            if exchange.awaited.is_some() {
                return late;
            }
        }
        let id = exchange.send(&self.socket, op, tid, (a, b), payload)?;
        exchange.receive(&self.socket, id, self.patience())
    }

    /// Until when an answer is waited for: asked again when that moment has come. `None`: no longer.
    fn patience(&self) -> impl FnMut() -> Option<Instant> {
        let (asked, process) = (Instant::now(), self.process);
        let is_stopped = move || matches!(Stat::of(process).and_then(|stat| stat.state()), Some('T' | 't'));
        move || match asked.elapsed() {
            waited if waited < ANSWER_WITHIN => Some(asked + ANSWER_WITHIN),
            waited if waited >= RUNNING_ANSWER_WITHIN || is_stopped() => None,
            waited => Some(asked + RUNNING_ANSWER_WITHIN.min(waited + ANSWER_WITHIN)),
        }
    }

    /// Has it let go of threads. All of them are told before any is waited for. If that cannot be told, all that the proxy holds is let
    /// go: for good, since the socket is of no use any more.
    ///
    /// (Nobody else asks in between: who waits for an answer drops those that come before it.)
    fn let_go(&self, tids: impl Iterator<Item = Tid>, for_good: bool) {
        let mut patience = self.patience();
        let mut exchange = self.exchange();
        let mut tell = |tid| exchange.tell_to_leave(&self.socket, tid, for_good, &mut patience);
        let told: Vec<Option<u32>> = tids.map(&mut tell).collect();
        for id in told.into_iter().flatten() {
            let _ = exchange.receive(&self.socket, id, &mut patience);
        }
    }
}

impl Exchange {
    /// The request's number. `None`: it could not be told, or an answer before it is not there yet.
    fn tell_to_leave(
        &mut self,
        socket: &OwnedFd,
        tid: Tid,
        for_good: bool,
        mut patience: impl FnMut() -> Option<Instant>,
    ) -> Option<u32> {
        loop {
            let error = match self.send(socket, Op::Leave, tid, (u64::from(for_good), 0), &[]) {
                Ok(id) => return self.awaited.is_none().then_some(id),
                Err(error) => error,
            };
            match patience().filter(|_| error.kind() == io::ErrorKind::WouldBlock) {
                Some(until) => poll_until(socket, PollFlags::OUT, until),
                None => {
                    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
                    return None;
                }
            }
        }
    }

    fn send(&mut self, socket: &OwnedFd, op: Op, tid: Tid, (a, b): (u64, u64), payload: &[u8]) -> io::Result<u32> {
        let id = self.last_id.wrapping_add(1);
        let mut request = Vec::with_capacity(REQUEST_HEADER_BYTES + payload.len());
        [id, op as u32, tid, 0].iter().for_each(|word| request.extend(word.to_le_bytes()));
        [a, b].iter().for_each(|word| request.extend(word.to_le_bytes()));
        request.extend(payload);
        rustix::net::send(socket, &request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        self.last_id = id;
        Ok(id)
    }

    /// The answer to a request. Answers to earlier ones, which came too late, are left out.
    fn receive(
        &mut self,
        socket: &OwnedFd,
        id: u32,
        mut patience: impl FnMut() -> Option<Instant>,
    ) -> io::Result<(u64, Vec<u8>)> {
        self.answer.resize(ANSWER_BYTES_MAX, 0);
        let answer = self.answer.as_mut_slice();
        loop {
            match rustix::net::recv(socket, &mut *answer, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) if bytes < ANSWER_HEADER_BYTES => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok((bytes, _)) => {
                    let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().expect("4 bytes"));
                    let (answered, errno) = (word(0), word(4) as i32);
                    if answered != id {
                        continue;
                    }
                    self.awaited = None;
                    if errno != 0 {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    let value = u64::from_le_bytes(answer[8..ANSWER_HEADER_BYTES].try_into().expect("8 bytes"));
                    return Ok((value, answer[ANSWER_HEADER_BYTES..bytes].to_vec()));
                }
                Err(Errno::AGAIN) => match patience() {
                    Some(until) => poll_until(socket, PollFlags::IN, until),
                    None => {
                        self.awaited = Some(id);
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                },
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn poll_until(socket: &OwnedFd, what: PollFlags, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let _ = rustix::event::poll(&mut [PollFd::new(socket, what)], Some(&left));
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_tracer_that_runs_may_answer_late() {
        let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair of sockets");
        let proxy = Proxy { process: std::process::id(), started: None, socket: ours, exchange: Mutex::default() };
        let tracer = std::thread::spawn(move || {
            let mut request = [0u8; REQUEST_HEADER_BYTES];
            rustix::net::recv(&its, &mut request[..], RecvFlags::empty()).expect("a request");
            std::thread::sleep(ANSWER_WITHIN + Duration::from_millis(200));
            let mut answer = request[..4].to_vec();
            answer.extend([0; 4]);
            answer.extend(7u64.to_le_bytes());
            rustix::net::send(&its, &answer, SendFlags::empty()).expect("it is sent");
        });
        let (value, _) = proxy.ask(Op::Registers, 1, 0, 0, &[]).expect("an answer");
        assert_eq!(value, 7);
        tracer.join().expect("it ends");
    }
}
