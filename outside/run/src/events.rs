//! A process that runs a program of a server's whenever a perf event occurs: like [`crate::child`], for as long as the event is
//! there. Or whenever the server says that a thread has ended ([`Order::Ended`]).
//!
//! The server sends [`Order`]s, each with the files that it names; the answer to each is a `Result`. Each event is a descriptor,
//! a timer or a perf event of the kernel's, that the server has too: it says by that when the event occurs, and nothing else goes
//! to and fro. Each event has a thread, on its CPU, as the kernel runs the program there. The process ends with the socket.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ring3_bpf::PerfRing;
use ring3_layout::sampled::Sampled;
use ring3_layout::task_event::COMM_BYTES;
use ring3_layout::thread::EXIT_CODE_SET;
use rustix::event::{PollFd, PollFlags};
use rustix::process::Pid;
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::child::{SharedMap, receive, send};
use crate::raw_region::geometry_of_bytes;
use crate::samples::{CONTEXT_BYTES, Form, Sample};
use crate::{Error, Loaded, Runner};

/// Runs may take this part of a CPU's time: as the kernel's handlers of samples (`kernel.perf_cpu_time_max_percent`, 25).
const REST: u32 = 3;
/// Pages of samples. A sample with two whole stacks takes two kilobytes.
const SAMPLE_PAGES: usize = 32;
/// Of setpriority(2).
const HIGHEST_PRIORITY: i32 = -20;
/// What is so short is not weighed.
const SHORT: Duration = Duration::from_micros(50);
/// `PERF_RECORD_SAMPLE` of who is not a process any more.
const NOBODY: u32 = u32::MAX;

/// What the program asks of the thread that an event interrupts, besides its ids.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Asked {
    /// The name.
    pub name: bool,
    /// The user and the group.
    pub user: bool,
    /// The stacks.
    pub stacks: bool,
}

/// What makes the program run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum EventSource {
    /// A timerfd. The program does not ask what the CPU was doing.
    Timer,
    /// A perf event.
    Samples {
        /// What its samples have.
        form: Form,
        /// Its period, where they do not have that.
        period: u64,
    },
}

/// A thread that has ended: the first one of its process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EndedThread {
    /// Its id, and its process's.
    pub pid: u32,
    /// Its name, zero-padded.
    pub comm: [u8; COMM_BYTES],
    /// As wait(2) tells it; `None`: nobody knows.
    pub exit_code: Option<u32>,
    /// When it began, ns since boot; 0: not known.
    pub started_ns: u64,
    /// The process id of its parent.
    pub parent: u32,
}

impl EndedThread {
    /// What stands for the running thread, for a program with this context.
    fn sampled(&self, context: &[u8]) -> Sampled {
        Sampled {
            context: context.as_ptr() as u64,
            context_bytes: context.len() as u64,
            pid_tgid: u64::from(self.pid) << 32 | u64::from(self.pid),
            uid_gid: user_of(self.pid),
            comm: padded(&self.comm),
            has_ended: 1,
            exit_code: self.exit_code.map_or(0, |code| EXIT_CODE_SET | u64::from(code)),
            started_ns: self.started_ns,
            parent: self.parent.into(),
            ..Sampled::default()
        }
    }
}

/// What the server wants.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// The first one, with the files of the realm block and of the text.
    Begin {
        /// CPUs that there can be.
        cpus: u32,
        /// Offset of the program's entry in the text.
        entry: u32,
        /// It uses memory of which each CPU has its own.
        per_cpu: bool,
        /// What it asks.
        asked: Asked,
        /// Fields of tasks that it can read, as [`ring3_layout::task::TaskField`] has them.
        tasks: Vec<[u16; 4]>,
    },
    /// Maps that it may come to from now on, with their files.
    Maps(Vec<SharedMap>),
    /// An event, with its descriptor.
    Event {
        /// Its number among those of the process: 0, then 1 and so on.
        number: usize,
        /// What it is.
        source: EventSource,
        /// The CPU; `None`: any.
        cpu: Option<u32>,
        /// `bpf_get_attach_cookie`.
        cookie: u64,
    },
    /// A thread has ended that nobody can ask any more: the program runs once.
    Ended {
        /// What r1 leads to.
        context: Vec<u8>,
        /// `bpf_get_attach_cookie`.
        cookie: u64,
        /// The thread.
        thread: EndedThread,
    },
    /// An event has another period.
    Period {
        /// Which one.
        number: usize,
        /// The period.
        period: u64,
    },
}

/// Sends an order and waits for the answer.
///
/// # Errors
/// The process has ended, does not answer in time, or could not do it.
pub fn order(stream: &UnixStream, order: &Order, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    send(stream, &serde_json::to_vec(order)?, files)?;
    let answer: Result<(), String> = serde_json::from_slice(&receive(stream)?.0)?;
    answer.map_err(io::Error::other)
}

/// The process's life.
///
/// # Errors
/// The first order was wrong.
pub fn serve(stream: &UnixStream) -> Result<(), String> {
    let mut host = None;
    while let Ok((message, files)) = receive(stream) {
        let order: Order = serde_json::from_slice(&message).map_err(|error| error.to_string())?;
        let result = obey(&mut host, order, files).map_err(|error| error.to_string());
        let answer = serde_json::to_vec(&result).map_err(|error| error.to_string())?;
        if send(stream, &answer, &[]).is_err() {
            break;
        }
    }
    Ok(())
}

/// The program, and where it runs.
struct Host {
    runner: Runner,
    entry: u32,
    per_cpu: bool,
    asked: Asked,
    /// Of all events.
    periods: Mutex<Vec<Arc<AtomicU64>>>,
}

fn damaged() -> Error {
    Error::Mapping(io::ErrorKind::InvalidData.into())
}

fn obey(host: &mut Option<Arc<Host>>, order: Order, files: Vec<OwnedFd>) -> Result<(), Error> {
    match order {
        Order::Begin { cpus, entry, per_cpu, asked, tasks } => {
            let [realm, text] = files.as_slice() else { return Err(damaged()) };
            let mut runner = Runner::new(cpus)?;
            runner.share(realm.as_fd(), text.as_fd())?;
            runner.know_tasks(&tasks);
            *host = Some(Arc::new(Host { runner, entry, per_cpu, asked, periods: Mutex::default() }));
        }
        Order::Maps(maps) => {
            let host = host.as_ref().ok_or_else(damaged)?;
            for (map, file) in maps.iter().zip(&files) {
                let geometry = geometry_of_bytes(&map.geometry).ok_or_else(damaged)?;
                host.runner.show_file(map.slot, &geometry, file.as_fd(), map.write)?;
            }
        }
        Order::Event { number, source, cpu, cookie } => {
            let host = host.as_ref().ok_or_else(damaged)?.clone();
            let file = files.into_iter().next().ok_or_else(damaged)?;
            let period = Arc::<AtomicU64>::default();
            {
                let mut periods = host.periods.lock().expect("no panic under this lock");
                let count = periods.len().max(number + 1);
                periods.resize_with(count, Arc::default);
                periods[number] = period.clone();
            }
            host.begin(source, (file, period), cpu, cookie)?;
        }
        Order::Ended { mut context, cookie, thread } => {
            let host = host.as_ref().ok_or_else(damaged)?;
            let program = Loaded { cookie, ..host.runner.at(host.entry, host.per_cpu) };
            let sampled = thread.sampled(&context);
            host.runner.run_on(program, &mut context, 1, Some(&sampled))?;
        }
        Order::Period { number, period } => {
            let host = host.as_ref().ok_or_else(damaged)?;
            let periods = host.periods.lock().expect("no panic under this lock");
            periods.get(number).ok_or_else(damaged)?.store(period, Ordering::Relaxed);
        }
    }
    Ok(())
}

impl Host {
    /// Starts the thread of an event.
    fn begin(
        self: Arc<Host>,
        source: EventSource,
        (file, period): (OwnedFd, Arc<AtomicU64>),
        cpu: Option<u32>,
        cookie: u64,
    ) -> Result<(), Error> {
        let ring = match source {
            EventSource::Timer => None,
            EventSource::Samples { form, period: first } => {
                period.store(first, Ordering::Relaxed);
                let mut ring = PerfRing::new(&file, SAMPLE_PAGES).map_err(Error::Mapping)?;
                ring.skip();
                Some((ring, form))
            }
        };
        let program = Loaded { cookie, ..self.runner.at(self.entry, self.per_cpu) };
        let (told, begun) = std::sync::mpsc::channel();
        let run = move || {
            // The kernel's timers and samples wait for no other thread. (An ordinary user may not have that.)
            let _ = rustix::process::setpriority_process(None, HIGHEST_PRIORITY);
            let is_there = cpu.map_or(Ok(()), stay_on);
            let has_place = is_there.is_ok();
            let _ = told.send(is_there);
            let _ = match ring {
                // (Where a program that does not ask runs is not so important.)
                None => self.on_timer(program, &file, cpu.unwrap_or(0)),
                Some((ring, form)) if has_place => self.on_samples(program, &file, ring, (form, &period)),
                Some(_) => Ok(()),
            };
        };
        let spawned = std::thread::Builder::new().name("ring3-event".into()).spawn(run);
        spawned.map_err(Error::Mapping)?;
        match (source, begun.recv()) {
            (EventSource::Timer, Ok(_)) | (EventSource::Samples { .. }, Ok(Ok(()))) => Ok(()),
            (_, Ok(Err(error))) => Err(Error::Mapping(error.into())),
            (_, Err(_)) => Err(damaged()),
        }
    }

    /// However late it is, the program runs once.
    fn on_timer(&self, program: Loaded, timer: &OwnedFd, cpu: u32) -> io::Result<()> {
        loop {
            wait(timer)?;
            let mut expired = [0; 8];
            match rustix::io::read(timer, &mut expired) {
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                other => other?,
            };
            let began = Instant::now();
            let idle = Sampled { comm: idle_name(cpu), ..Sampled::default() };
            let mut context = [0; CONTEXT_BYTES];
            let _ = self.runner.run_on(program, &mut context, 1, Some(&idle));
            rest(began.elapsed());
        }
    }

    fn on_samples(
        &self,
        program: Loaded,
        event: &OwnedFd,
        mut ring: PerfRing,
        (form, period): (Form, &AtomicU64),
    ) -> io::Result<()> {
        const SAMPLE: u32 = ring3_uapi::perf::RECORD_SAMPLE;
        let mut buffer = vec![];
        loop {
            let is_over = wait(event)?;
            let began = Instant::now();
            while let Some((kind, record)) = ring.next(&mut buffer) {
                let period = period.load(Ordering::Relaxed);
                let sample = (kind == SAMPLE).then(|| Sample::parse(record, form, period)).flatten();
                // (This process is none that could be interrupted where the kernel runs the program.)
                if let Some(sample) = sample.filter(|sample| ![NOBODY, std::process::id()].contains(&sample.pid)) {
                    self.run(program, &sample);
                }
            }
            if is_over {
                return Ok(());
            }
            rest(began.elapsed());
        }
    }

    fn run(&self, program: Loaded, sample: &Sample) {
        let cpu = || rustix::thread::sched_getcpu() as u32;
        let sampled = Sampled {
            pid_tgid: u64::from(sample.pid) << 32 | u64::from(sample.tid),
            uid_gid: if self.asked.user { user_of(sample.tid) } else { 0 },
            comm: match sample.tid {
                _ if !self.asked.name => [0; 2],
                0 => idle_name(cpu()),
                tid => name_of(tid),
            },
            kernel_frames: sample.kernel.as_ptr() as u64,
            kernel_count: sample.kernel.len() as u64,
            user_frames: sample.user.as_ptr() as u64,
            user_count: sample.user.len() as u64,
            ..Sampled::default()
        };
        let mut context = [0; CONTEXT_BYTES];
        debug_assert_eq!(size_of_val(&sample.context), CONTEXT_BYTES);
        for (to, word) in context.chunks_exact_mut(8).zip(sample.context) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let _ = self.runner.run_on(program, &mut context, 1, Some(&sampled));
    }
}

/// Waits until an event has occurred; true if it will not any more.
fn wait(event: &OwnedFd) -> io::Result<bool> {
    loop {
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => return Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Has runs that took long followed by a pause, in which events are lost.
fn rest(spent: Duration) {
    if spent > SHORT {
        std::thread::sleep(spent * REST);
    }
}

/// Keeps this thread on a CPU.
fn stay_on(cpu: u32) -> rustix::io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu as usize);
    rustix::thread::sched_setaffinity(None::<Pid>, &only)
}

fn padded(name: &[u8]) -> [u64; 2] {
    let mut bytes = [0; 16];
    let length = name.len().min(15);
    bytes[..length].copy_from_slice(&name[..length]);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("8 bytes"));
    [word(&bytes[..8]), word(&bytes[8..])]
}

/// The name of what a CPU runs when it is idle.
fn idle_name(cpu: u32) -> [u64; 2] {
    padded(format!("swapper/{cpu}").as_bytes())
}

/// A thread's name; where it has ended since, what ftrace writes for names that it does not know.
pub(crate) fn name_of(tid: u32) -> [u64; 2] {
    let name = std::fs::read(format!("/proc/{tid}/comm")).ok();
    padded(name.as_deref().and_then(|name| name.strip_suffix(b"\n")).unwrap_or(b"<...>"))
}

/// `gid << 32 | uid` of a thread; the overflow ids if it has ended.
pub(crate) fn user_of(tid: u32) -> u64 {
    const NOBODY: u64 = 65534 << 32 | 65534;
    let id = |status: &str, key: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    let ids = || {
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
        Some(id(&status, "Gid:")? << 32 | id(&status, "Uid:")?)
    };
    if tid == 0 { 0 } else { ids().unwrap_or(NOBODY) }
}
