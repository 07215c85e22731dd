//! Programs of perf events: they run in processes of the server's, when the kernel says that the event has occurred.
//!
//! What is interrupted by an event is nobody's choice, so such a program cannot run inside a target. The kernel's own samples say
//! what an event interrupted, of any process and without touching it; perf_event_open(2) has nothing to do with BPF. So the server
//! opens the event that the loader asked for once more, with samples, and a process of the server's runs the program on each
//! ([`ring3_run::events`]). A program that does not ask what the CPU was doing needs no sample: for the clocks, a timer says when it
//! runs, which the kernel lets everybody have. Start and stop are requests on the timer or the event: a run needs no server.
//!
//! Ends of targets that no program in them has seen are shown by such processes, too (`life/ends.rs`).
//!
//! All events of a program share a process: `profile` has one for each CPU.

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ring3_run::events::{Asked, EventSource, Order, order};
use ring3_run::samples::{Form, REGISTERS};
use ring3_uapi::Errno;
use ring3_uapi::attr::Field;
use ring3_uapi::perf as p;
use rustix::event::{PollFd, PollFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::process::ProgramProcess;
use crate::kernel::known;
use crate::raw_perf::{self, AttrBytes};
use crate::realm::{ProgramText, Realm, Refusal, Shared, Terminal, possible_cpus};

/// Its processes have to answer within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The shortest period of a clock, ns. Mirrors kernel/events/core.c:perf_swevent_hrtimer.
const CLOCK_PERIOD_MIN: u64 = 10_000;
/// Flags of the attributes that say when an event counts: all but those that shape the ring and ask for other records. (Bits 0 to 7;
/// `freq`, `inherit_stat`, `enable_on_exec`; `precise_ip`; 19 to 22, whom to leave out; `inherit_thread`, `remove_on_exec`.)
const SAMPLING_FLAGS: u64 = 0xff | 0b111 << 10 | 0b11 << 15 | 0b1111 << 19 | 0b11 << 35;
const SECOND_NS: u64 = 1_000_000_000;

/// A perf event as its loader asked for it.
#[derive(Clone, Copy, Debug)]
pub struct EventSpec {
    /// `struct perf_event_attr`.
    pub attr: AttrBytes,
    /// One thread, by its id where the server is.
    pub thread: Option<u32>,
    /// One CPU.
    pub cpu: Option<u32>,
    /// `bpf_get_attach_cookie`.
    pub cookie: u64,
}

impl EventSpec {
    /// A field of the attributes.
    pub fn field(&self, field: Field) -> u64 {
        field_of(&self.attr, field)
    }

    /// Whether it is a clock of a CPU: then a timer does for it if nothing is asked of what the CPU does.
    pub fn is_clock(&self) -> bool {
        let config = self.field(p::CONFIG);
        self.field(p::TYPE) == u64::from(p::TYPE_SOFTWARE)
            && [p::COUNT_SW_CPU_CLOCK, p::COUNT_SW_TASK_CLOCK].contains(&config)
            && self.thread.is_none()
    }

    /// Time between two ticks of a clock. Mirrors kernel/events/core.c:perf_swevent_init_hrtimer.
    fn clock_period_ns(&self) -> u64 {
        let period = self.field(p::SAMPLE_PERIOD);
        let is_frequency = self.field(p::FLAGS) & p::FLAG_FREQ != 0;
        let period = if is_frequency { SECOND_NS.checked_div(period).unwrap_or(SECOND_NS) } else { period };
        period.max(CLOCK_PERIOD_MIN)
    }

    /// What its samples have.
    fn form(&self, asked: Asked) -> Form {
        let is_software = self.field(p::TYPE) == u64::from(p::TYPE_SOFTWARE);
        let is_fixed = self.field(p::FLAGS) & p::FLAG_FREQ == 0;
        Form { stacks: asked.stacks, period: !(is_software && is_fixed) }
    }

    /// Opens the event with samples, disabled.
    fn open_sampling(&self, form: Form) -> Result<OwnedFd, Refusal> {
        if self.cpu.is_none() && self.field(p::FLAGS) & p::FLAG_INHERIT != 0 {
            // (kernel/events/core.c:perf_mmap: its samples would come from CPUs at the same time.)
            let why = "an event that children inherit is sampled on single CPUs only: open one for each";
            return Err(Refusal::new(Errno::EOPNOTSUPP, why));
        }
        let mut attr = self.attr;
        put(&mut attr, p::SAMPLE_TYPE, form.sample_type());
        put(&mut attr, p::SAMPLE_REGS_INTR, REGISTERS);
        put(&mut attr, p::FLAGS, self.field(p::FLAGS) & SAMPLING_FLAGS | p::FLAG_DISABLED);
        put(&mut attr, p::WAKEUP_EVENTS, 1);
        raw_perf::open(&attr, self.thread, self.cpu).map_err(|error| {
            let errno = Errno(error.raw_os_error().unwrap_or(Errno::EINVAL.0));
            let why = match errno {
                Errno::EACCES | Errno::EPERM => {
                    "the program asks what the CPU was doing; the kernel tells that only with CAP_PERFMON, or with \
                     kernel.perf_event_paranoid at 0 or less"
                        .to_owned()
                }
                errno => format!("the kernel does not sample it: {}", errno.name()),
            };
            Refusal::new(errno, why)
        })
    }
}

/// A field of `struct perf_event_attr`.
pub(crate) fn field_of(attr: &AttrBytes, field: Field) -> u64 {
    let mut bytes = [0; 8];
    bytes[..field.bytes].copy_from_slice(&attr[field.at..field.end()]);
    u64::from_le_bytes(bytes)
}

/// Changes a field of `struct perf_event_attr`.
pub(crate) fn put(attr: &mut AttrBytes, field: Field, value: u64) {
    attr[field.at..field.end()].copy_from_slice(&value.to_le_bytes()[..field.bytes]);
}

/// A program that runs on events.
pub struct HostedProgram {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its code.
    pub text: Arc<ProgramText>,
    /// It uses per-CPU maps.
    pub per_cpu: bool,
    /// Where its loader's user reads that it does not run any more.
    pub terminal: Option<Terminal>,
    /// What its code and its maps need to stay, until its process has ended.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// The process of a program.
pub(in crate::realm) struct Host {
    process: Mutex<ProgramProcess>,
    /// How many events it has had.
    events: AtomicUsize,
    program: HostedProgram,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("program", &self.program.name).finish_non_exhaustive()
    }
}

impl Host {
    pub(in crate::realm) fn order(&self, what: &Order, files: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
        give_order(&self.process.lock().expect("no panic under this lock"), what, files)
    }

    /// Gives it the maps that the program can come to now.
    fn give_maps(&self) -> Result<(), Refusal> {
        let process = self.process.lock().expect("no panic under this lock");
        let new = process.new_maps(&self.program.text)?;
        let files: Vec<BorrowedFd<'_>> = new.files().collect();
        if files.is_empty() { Ok(()) } else { give_order(&process, &Order::Maps(new.maps.clone()), &files) }
    }
}

fn give_order(process: &ProgramProcess, what: &Order, files: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
    let result = order(&process.stream, what, files);
    result.map_err(|error| failed(&error))
}

fn failed(error: &std::io::Error) -> Refusal {
    Refusal::new(Errno::EIO, format!("the process of the event's program: {error}"))
}

/// The processes of events' programs, by the program.
#[derive(Debug, Default)]
pub(in crate::realm) struct Hosts(Mutex<BTreeMap<u32, Weak<Host>>>);

impl Hosts {
    /// What is reached through maps has become more.
    pub(in crate::realm) fn give_maps(&self) -> Result<(), Refusal> {
        let hosts: Vec<Arc<Host>> = {
            let mut known = self.0.lock().expect("no panic under this lock");
            known.retain(|_, host| host.strong_count() > 0);
            known.values().filter_map(Weak::upgrade).collect()
        };
        hosts.iter().try_for_each(|host| host.give_maps())
    }
}

/// What says that an event has occurred.
#[derive(Debug)]
enum Source {
    Timer {
        fd: OwnedFd,
        period_ns: u64,
        /// Until the next tick, while it is stopped.
        left_ns: u64,
    },
    Kernel(OwnedFd),
}

/// An event whose program runs in a process of the server's, until this is dropped.
#[derive(Debug)]
pub struct HostedEvent {
    source: Mutex<(Source, bool)>,
    /// Its number in its process.
    number: usize,
    host: Arc<Host>,
}

impl HostedEvent {
    /// Lets the event occur, or not.
    pub fn set_enabled(&self, enabled: bool) {
        let mut source = self.source.lock().expect("no panic under this lock");
        let was = std::mem::replace(&mut source.1, enabled);
        if was == enabled {
            return;
        }
        let result = match &mut source.0 {
            Source::Timer { fd, period_ns, left_ns } if enabled => set_timer(fd, *left_ns, *period_ns).map(drop),
            Source::Timer { fd, left_ns, .. } => set_timer(fd, 0, 0).map(|left| *left_ns = left.max(1)),
            Source::Kernel(event) => {
                let request = if enabled { p::IOC_ENABLE } else { p::IOC_DISABLE };
                raw_perf::request(event.as_fd(), request, 0)
            }
        };
        if let Err(error) = result {
            tracing::error!("an event is not {}: {error}", if enabled { "enabled" } else { "disabled" });
        }
    }

    /// Changes the period, or the frequency if that is what the event has.
    ///
    /// # Errors
    /// The kernel does not want it.
    pub fn set_period(&self, spec: &EventSpec) -> Result<(), Errno> {
        let mut source = self.source.lock().expect("no panic under this lock");
        let enabled = source.1;
        let result = match &mut source.0 {
            Source::Kernel(event) => {
                let period = spec.field(p::SAMPLE_PERIOD);
                let told = self.host.order(&Order::Period { number: self.number, period }, &[]);
                told.map_err(|refusal| refusal.errno)?;
                raw_perf::set_period(event.as_fd(), period)
            }
            Source::Timer { fd, period_ns, left_ns } => {
                (*period_ns, *left_ns) = (spec.clock_period_ns(), spec.clock_period_ns());
                if enabled { set_timer(fd, *left_ns, *period_ns).map(drop) } else { Ok(()) }
            }
        };
        result.map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::EINVAL.0)))
    }
}

impl Drop for HostedEvent {
    fn drop(&mut self) {
        self.set_enabled(false);
    }
}

/// Sets a timer: the first tick after so many nanoseconds, 0 for none, and the time between the others. What was left until the
/// next one.
fn set_timer(timer: &OwnedFd, first_ns: u64, period_ns: u64) -> std::io::Result<u64> {
    let spec = |ns: u64| Timespec { tv_sec: (ns / SECOND_NS) as i64, tv_nsec: (ns % SECOND_NS) as i64 };
    let times = Itimerspec { it_interval: spec(period_ns), it_value: spec(first_ns) };
    let before = rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &times)?;
    Ok(before.it_value.tv_sec as u64 * SECOND_NS + before.it_value.tv_nsec as u64)
}

impl Host {
    /// The process of a program, started if there is none.
    pub(in crate::realm) fn of(
        shared: &Arc<Shared>,
        program: HostedProgram,
        asked: Asked,
    ) -> Result<Arc<Host>, Refusal> {
        let mut hosts = shared.hosts.0.lock().expect("no panic under this lock");
        if let Some(host) = hosts.get(&program.id).and_then(Weak::upgrade) {
            return Ok(host);
        }
        let process = ProgramProcess::start(shared, "run-events")?;
        let _ = process.stream.set_read_timeout(Some(ANSWER_WITHIN));
        let _ = process.stream.set_write_timeout(Some(ANSWER_WITHIN));
        let watched = process.stream.try_clone().map_err(|error| failed(&error))?;
        let host = Arc::new(Host { process: Mutex::new(process), events: AtomicUsize::new(0), program });
        let files = [shared.domains.own().block().file.file(), shared.text.file()];
        let (entry, per_cpu) = (host.program.text.entry, host.program.per_cpu);
        let tasks = known().tasks.rows().collect();
        host.order(&Order::Begin { cpus: possible_cpus(), entry, per_cpu, asked, tasks }, &files)?;
        hosts.insert(host.program.id, Arc::downgrade(&host));
        drop(hosts);
        // (It is known before: what is reached meanwhile is given by whoever notes that.)
        host.give_maps()?;
        let weak = Arc::downgrade(&host);
        let watcher = std::thread::Builder::new().name("ring3-host".into());
        watcher.spawn(move || report_end(&watched, &weak)).map_err(|error| failed(&error))?;
        Ok(host)
    }
}

impl Realm {
    /// Has a program run whenever an event occurs, from the first [`HostedEvent::set_enabled`] on. `asked`: what the program asks of
    /// what it interrupts, if anything.
    ///
    /// # Errors
    /// The kernel does not let the server sample the event, or there is no process for the program.
    pub fn host_event(
        &self,
        program: HostedProgram,
        spec: &EventSpec,
        asked: Option<Asked>,
    ) -> Result<HostedEvent, Refusal> {
        let form = spec.form(asked.unwrap_or_default());
        let source = match asked {
            None if spec.is_clock() => {
                let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
                let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
                let fd = fd.map_err(|error| Refusal::new(Errno(error.raw_os_error()), "no timer"))?;
                Source::Timer { fd, period_ns: spec.clock_period_ns(), left_ns: spec.clock_period_ns() }
            }
            _ => Source::Kernel(spec.open_sampling(form)?),
        };
        let host = Host::of(&self.shared, program, asked.unwrap_or_default())?;
        let (kind, file) = match &source {
            Source::Timer { fd, .. } => (EventSource::Timer, fd),
            Source::Kernel(fd) => (EventSource::Samples { form, period: spec.field(p::SAMPLE_PERIOD) }, fd),
        };
        let number = host.events.fetch_add(1, Ordering::Relaxed);
        let order = Order::Event { number, source: kind, cpu: spec.cpu, cookie: spec.cookie };
        host.order(&order, &[file.as_fd()])?;
        Ok(HostedEvent { source: Mutex::new((source, false)), number, host })
    }
}

/// Waits for the end of a process, and says so if it should not have ended.
fn report_end(stream: &UnixStream, host: &Weak<Host>) {
    let is_over = || {
        let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
        !matches!(rustix::event::poll(&mut fds, None), Err(rustix::io::Errno::INTR))
    };
    while !is_over() {}
    if let Some(host) = host.upgrade() {
        let HostedProgram { name, terminal, .. } = &host.program;
        let what = format!("the process that ran program {name:?} on its events was ended: it runs no more");
        tracing::error!("{what}");
        terminal.iter().for_each(|terminal| terminal.say(&what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(fields: &[(Field, u64)], thread: Option<u32>) -> EventSpec {
        let mut attr = [0; p::ATTR_BYTES];
        put(&mut attr, p::TYPE, p::TYPE_SOFTWARE.into());
        fields.iter().for_each(|(field, value)| put(&mut attr, *field, *value));
        EventSpec { attr, thread, cpu: Some(0), cookie: 0 }
    }

    #[test]
    fn a_clocks_period_is_that_of_its_frequency() {
        let period = |period, flags| event(&[(p::SAMPLE_PERIOD, period), (p::FLAGS, flags)], None).clock_period_ns();
        assert_eq!(period(99, p::FLAG_FREQ), 10_101_010);
        assert_eq!(period(1_000_000_000, 0), 1_000_000_000);
        // The kernel's shortest.
        assert_eq!((period(1, 0), period(1_000_000, p::FLAG_FREQ)), (10_000, 10_000));
    }

    #[test]
    fn only_clocks_of_cpus_can_do_without_samples() {
        assert!(event(&[(p::CONFIG, p::COUNT_SW_CPU_CLOCK)], None).is_clock());
        assert!(event(&[(p::CONFIG, p::COUNT_SW_TASK_CLOCK)], None).is_clock());
        assert!(!event(&[(p::CONFIG, p::COUNT_SW_CPU_CLOCK)], Some(1)).is_clock(), "when does the thread run?");
        assert!(!event(&[(p::CONFIG, 2)], None).is_clock(), "page faults");
        assert!(!event(&[(p::TYPE, p::TYPE_HARDWARE.into())], None).is_clock());
    }

    #[test]
    fn a_software_event_is_not_asked_for_its_period() {
        let asked = Asked::default();
        let form = |fields: &[(Field, u64)]| event(fields, None).form(asked);
        assert!(!form(&[]).period, "it would give a sample each time");
        assert!(form(&[(p::FLAGS, p::FLAG_FREQ)]).period);
        assert!(form(&[(p::TYPE, p::TYPE_HARDWARE.into())]).period);
    }
}
