//! ring3 in a process, as it lies there: what the control page in the region says, and the server that made it.
//!
//! A process may have written anything there: what is read is a claim.

use std::ops::Range;

use ring3_inject as inject;
use ring3_layout::control::{CONTROL_MAGIC, ControlHeaderValue, STUB_AREAS_MAX, STUB_AREAS_OFFSET, StubArea};
use ring3_layout::region::{CONTROL_OFFSET, CONTROL_PATH, REGION_BYTES, STATE_OFFSET};
use ring3_layout::thread::{STATE_HEADER_BYTES, THREAD_BLOCK_BYTES, THREADS_MAX, ThreadBlock};
use zerocopy::FromBytes;

use super::raw_memory::{read_process, read_value, value_from};
use crate::raw_process::share_memory;

use super::state::{all_processes, levels, own_pid, thread_named};

/// What is to be cleaned: the region of a process.
#[derive(Clone, Copy, Debug)]
pub(in crate::realm) struct Cleaning {
    pub(in crate::realm) pid: u32,
    pub(in crate::realm) region: u64,
}

/// Processes that have the memory of another one, and are no threads of it (`CLONE_VM`): they are not stopped with it, so nobody knows
/// where in the code they are.
#[derive(Debug)]
pub(in crate::realm) struct Sharers {
    pid: u32,
    others: Vec<u32>,
}

impl Sharers {
    /// Among the process's parent, that one's children, and its own. A `vfork` child is one until its parent goes on.
    pub(in crate::realm) fn of(pid: u32) -> Sharers {
        let parent = inject::Stat::of(pid).and_then(|stat| u32::try_from(stat.number(4)?).ok());
        let siblings = parent.map(inject::children).unwrap_or_default();
        let near = inject::children(pid).into_iter().chain(siblings).chain(parent);
        Sharers {
            pid,
            others: near.filter(|other| *other != pid && share_memory(pid, *other) == Some(true)).collect(),
        }
    }

    /// While the process is stopped.
    ///
    /// # Errors
    /// There is still one.
    pub(in crate::realm) fn check(&self) -> Result<(), inject::Error> {
        let Sharers { pid, ref others } = *self;
        match others.iter().find(|other| share_memory(pid, **other) == Some(true)) {
            Some(other) => Err(inject::Error::SharesMemory { pid, other: *other }),
            None => Ok(()),
        }
    }
}

impl Cleaning {
    /// No thread runs our code, or goes back to it from a signal handler. (Processes that share the memory without being threads,
    /// `CLONE_VM`, are not stopped: nobody knows where they are.)
    pub(in crate::realm) fn is_nobody_inside(self, stopped: &inject::Stopped) -> Result<bool, inject::Error> {
        if inject::children(self.pid).into_iter().any(|child| share_memory(self.pid, child) == Some(true)) {
            return Ok(false);
        }
        let ours = self.code();
        let returns = stopped.saved_contexts()?;
        let returns_inside = returns.iter().any(|context| ours.iter().any(|range| range.contains(&context.rip)));
        Ok(!returns_inside && stopped.threads_inside(&ours)?.is_empty() && guards_clear(self.pid, self.region))
    }

    pub(in crate::realm) fn control(self, offset: u64) -> u64 {
        self.region + CONTROL_OFFSET + offset
    }

    pub(in crate::realm) fn header(self) -> Option<ControlHeaderValue> {
        read_value::<ControlHeaderValue>(self.pid, self.control(0)).ok()
    }

    /// Addresses of the threads' blocks.
    pub(in crate::realm) fn blocks(self) -> impl Iterator<Item = u64> {
        let used = read_value::<u32>(self.pid, self.region + STATE_OFFSET).unwrap_or(0).min(THREADS_MAX);
        let first = self.region + STATE_OFFSET + STATE_HEADER_BYTES;
        (0..u64::from(used)).map(move |index| first + index * THREAD_BLOCK_BYTES)
    }

    /// The stopped thread that has a block; `None` if it has ended, and perhaps another one has its id.
    pub(in crate::realm) fn thread_of(
        self,
        stopped: &inject::Stopped,
        block: u64,
    ) -> Result<Option<u32>, inject::Error> {
        let word = |offset: usize| read_value::<u64>(self.pid, block + offset as u64).unwrap_or(0);
        let named = thread_named(self.pid, word(std::mem::offset_of!(ThreadBlock, pid_tgid)) as u32);
        let Some(tid) = named.filter(|tid| stopped.threads().contains(tid)) else { return Ok(None) };
        let is_its = stopped.registers(tid)?.fs_base == word(std::mem::offset_of!(ThreadBlock, fs_base));
        Ok(Some(tid).filter(|_| is_its))
    }

    /// The block of a stopped thread, if it has one.
    pub(in crate::realm) fn block_of(
        self,
        stopped: &inject::Stopped,
        tid: u32,
    ) -> Result<Option<u64>, inject::Error> {
        for block in self.blocks() {
            if self.thread_of(stopped, block)? == Some(tid) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// The region, and the areas of stubs.
    pub(in crate::realm) fn code(self) -> Vec<Range<u64>> {
        let stubs = self.stub_areas().into_iter().map(|area| area.base..area.base + area.bytes);
        stubs.chain(std::iter::once(self.region..self.region + REGION_BYTES)).collect()
    }

    pub(in crate::realm) fn stub_areas(self) -> Vec<StubArea> {
        table_until(self.pid, self.control(STUB_AREAS_OFFSET), STUB_AREAS_MAX, |area: &StubArea| area.base == 0)
    }
}

/// The nonce in the control page of a region at `region`, if there is one.
pub(in crate::realm) fn nonce_at(pid: u32, region: u64) -> Option<u64> {
    let header = read_value::<ControlHeaderValue>(pid, region + CONTROL_OFFSET).ok()?;
    (header.magic == CONTROL_MAGIC).then_some(header.nonce)
}

/// A table of a process, up to its first unused entry. (Most are short: of the rest nothing is read.)
pub(in crate::realm) fn table_until<T: FromBytes>(
    pid: u32,
    address: u64,
    count: u32,
    is_unused: impl Fn(&T) -> bool,
) -> Vec<T> {
    const ENTRIES_AT_ONCE: usize = 128;
    let (count, mut entries) = (count as usize, vec![]);
    let mut is_whole = false;
    while entries.len() < count && !is_whole {
        let more = ENTRIES_AT_ONCE.min(count - entries.len());
        let mut piece = vec![0u8; more * size_of::<T>()];
        if read_process(pid, address + (entries.len() * size_of::<T>()) as u64, &mut piece).is_err() {
            break;
        }
        let found =
            piece.chunks_exact(size_of::<T>()).map_while(value_from::<T>).take_while(|entry| !is_unused(entry));
        let before = entries.len();
        entries.extend(found);
        is_whole = entries.len() < before + more;
    }
    entries
}

/// Restores the bytes of sites, 0 being none, unless their memory is gone or has other code.
pub(in crate::realm) fn put_back(
    stopped: &mut inject::Stopped,
    mut sites: Vec<inject::SiteRestoration<'_>>,
) -> Result<(), inject::Error> {
    sites.retain(|one| one.site != 0);
    sites.sort_by_key(|one| one.site);
    for (one, result) in sites.iter().zip(stopped.restore_sites(&sites)) {
        match result {
            Err(inject::Error::BytesDiffer { .. }) => {}
            Err(_) if stopped.read(one.site, &mut vec![0; one.written.len()]).is_err() => {}
            result => result?,
        }
    }
    Ok(())
}

/// True if no thread block says that its thread is inside.
pub(in crate::realm) fn guards_clear(pid: u32, region: u64) -> bool {
    let guard = std::mem::offset_of!(ThreadBlock, guard) as u64;
    (Cleaning { pid, region }).blocks().all(|block| read_value::<u64>(pid, block + guard) == Ok(0))
}

/// The region of a process and the server that made it, if there is one.
pub(in crate::realm) fn region_in(pid: u32) -> Option<(u64, ControlHeaderValue)> {
    let maps = inject::proc_file(pid, "maps").ok()?;
    let line = maps.lines().find(|line| line.contains(CONTROL_PATH))?;
    let start = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
    let region = start.checked_sub(CONTROL_OFFSET)?;
    let header = read_value::<ControlHeaderValue>(pid, start).ok()?;
    (header.magic == CONTROL_MAGIC).then_some((region, header))
}

/// What has become of the server that made a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::realm) enum Maker {
    /// It runs, as this process.
    Runs(u32),
    /// It is, or was, outside of the pid namespace that is seen here. (So it counts as running: two servers must not change a process.)
    Outside,
    Gone,
}

impl std::fmt::Display for Maker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Maker::Runs(server) => write!(f, "process {server}"),
            Maker::Outside => f.write_str("outside of this pid namespace"),
            Maker::Gone => f.write_str("which has ended"),
        }
    }
}

impl Maker {
    /// The command that detaches its target `pid`.
    pub(in crate::realm) fn how_to_detach(self, pid: u32) -> String {
        const DIRECTORY: &[u8] = b"RING3_RUNTIME_DIR=";
        let Maker::Runs(server) = self else { return format!("run `ring3 detach {pid}` where that server runs") };
        let user =
            std::fs::metadata(format!("/proc/{server}")).map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
        let user = user.ok().filter(|user| *user != rustix::process::geteuid().as_raw());
        let environment = std::fs::read(format!("/proc/{server}/environ")).unwrap_or_default();
        let directory = environment.split(|byte| *byte == 0).find(|variable| variable.starts_with(DIRECTORY));
        let directory =
            directory.map(|variable| format!("{} ", String::from_utf8_lossy(variable))).unwrap_or_default();
        let by = user.map(|user| format!(" as user {user}")).unwrap_or_default();
        format!("run `{directory}ring3 detach {pid}`{by} first")
    }
}

/// What has become of the server that made the region of a process. A process that is being killed, or is dead and not
/// yet waited for, is still listed, but has no memory and thus no executable (`do_exit`).
pub(in crate::realm) fn maker(pid: u32, header: &ControlHeaderValue) -> Maker {
    let is_it = |server: &u32| {
        let exe = std::fs::read_link(format!("/proc/{server}/exe"));
        let runs = !exe.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        runs && inject::started(*server) == Some(header.server_started) && own_pid(*server) == Some(header.server_pid)
    };
    if is_it(&header.server_pid) {
        return Maker::Runs(header.server_pid);
    }
    // The pid namespaces of a process lie in each other: who sees it in more of them is outside of the server's, and sees that, too.
    match levels(pid).cmp(&header.levels) {
        std::cmp::Ordering::Less => Maker::Outside,
        std::cmp::Ordering::Equal => Maker::Gone,
        std::cmp::Ordering::Greater => all_processes().into_iter().find(is_it).map_or(Maker::Gone, Maker::Runs),
    }
}

/// Another server that has this process as a target and is not known to have ended.
pub(in crate::realm) fn other_server(pid: u32) -> Option<Maker> {
    let (_, header) = region_in(pid)?;
    Some(maker(pid, &header)).filter(|maker| ![Maker::Gone, Maker::Runs(std::process::id())].contains(maker))
}
