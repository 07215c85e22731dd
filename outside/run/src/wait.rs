//! What this machine and other processes have to do with maps: CPUs, files that processes share, waiting for records.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use ring3_maps::Context;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::futex;

use crate::{Bell, OwnMap};

/// `num_possible_cpus()`: the highest number in `/sys/devices/system/cpu/possible`, plus one.
pub fn possible_cpus() -> u32 {
    // (They are fixed at boot, and loaders ask for each of their events.)
    static KNOWN: LazyLock<u32> = LazyLock::new(read_possible_cpus);
    *KNOWN
}

fn read_possible_cpus() -> u32 {
    std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|text| text.trim().rsplit(['-', ',']).next()?.parse::<u32>().ok())
        .map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32), |last| last + 1)
        .min(ring3_layout::realm::CPUS_MAX)
}

/// A fresh file of so many bytes, zeros, that never shrinks or grows.
pub(crate) fn map_file(bytes: u64) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("ring3-map", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Whether a file has at least so many bytes and always will: who maps it never gets a SIGBUS.
pub(crate) fn holds(file: BorrowedFd<'_>, bytes: u64) -> bool {
    let never_shrinks = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    never_shrinks && rustix::fs::fstat(file).is_ok_and(|stat| stat.st_size as u64 >= bytes)
}

/// Whether a thread of this pid namespace has ended, or is a zombie, which has no executable any more.
fn is_dead(tid: u32) -> bool {
    std::fs::read_link(format!("/proc/{tid}/exe")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Who operates on maps in this thread, outside of programs.
pub fn map_context() -> Context {
    Context {
        owner: rustix::thread::gettid().as_raw_nonzero().get() as u32,
        cpu: 0,
        owner_is_dead: is_dead,
        relax: |sleeps| match sleeps {
            true => std::thread::sleep(Duration::from_nanos(ring3_maps::NAP_NS)),
            false => std::thread::yield_now(),
        },
        interrupts: false,
    }
}

impl Bell {
    /// Waits until a ring buffer of this runner has a record to take, at most so long; whether it has. A ring buffer that another
    /// process fills is looked at each millisecond.
    pub fn wait(&self, map: &OwnMap, patience: Duration) -> bool {
        const LOOK: Duration = Duration::from_millis(1);
        let has_data = || map.map().ring().is_some_and(|ring| ring.has_data());
        let end = Instant::now() + patience;
        let doorbell = self.0.region.doorbell();
        while !has_data() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            doorbell.sleeping.fetch_add(1, SeqCst);
            let sequence = doorbell.sequence.load(SeqCst);
            if !has_data() {
                let nap = left.min(LOOK);
                let nap = rustix::fs::Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) };
                // (Woken, timed out or interrupted: it looks again.)
                let _ = futex::wait(&doorbell.sequence, futex::Flags::empty(), sequence, Some(&nap));
            }
            doorbell.sleeping.fetch_sub(1, SeqCst);
        }
        true
    }
}
