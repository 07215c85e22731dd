//! Taking ring3 out of a process, from what lies in the process itself.
//!
//! The control page in the target says what was written where and by which server. So the same code
//! serves an orderly detach and the cleaning up after a server that was killed. It goes in rounds: bytes and
//! return addresses are restored in the first; memory is unmapped in the first round that finds no thread inside.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::ops::Range;
use std::time::{Duration, Instant};

use ring3_inject as inject;
use ring3_layout::control::{
    CONTROL_MAGIC, ControlHeaderValue, GOT_OFFSET, GotEntry, HOOKS_MAX, HOOKS_OFFSET, Hook, HookKind, MAPS_MAX,
    MOVED_MAX, RECOVERY_OFFSET, Recovery, STUB_AREAS_MAX, STUB_AREAS_OFFSET, StubArea, StubTail, moved_unpack,
    stub_tail_offset,
};
use ring3_layout::region::{CONTROL_OFFSET, CONTROL_PATH, REGION_BYTES, SHADOW_OFFSET, STATE_OFFSET};
use ring3_layout::syscall::SIGCANCEL;
use ring3_layout::thread::{
    SHADOW_CHUNK_BYTES, SHADOW_CHUNK_FRAMES, SHADOW_CHUNKS_MAX, SHADOW_FRAMES, SHADOW_POOL_CHUNKS,
    STATE_HEADER_BYTES, ShadowFrame, THREAD_BLOCK_BYTES, THREADS_MAX, ThreadBlock,
};
use ring3_uapi::nr;
use zerocopy::FromBytes;

use super::ahead::STOPPED_TWICE_THREADS_MAX;
use super::raw_mapping::{read_process, read_value, value_from};
use super::target::STOP_WITHIN;
use super::{actions, faults, limits, restore_calls, sud, traps};

/// How the memfds that ring3 maps into targets begin.
const MEMFD_PREFIX: &str = "/memfd:ring3-";

/// Pauses between rounds, from the first to the longest while somebody waits, and in the background. They grow: each round stops
/// the process, and a thread must run to leave, with as many others waiting for a turn of milliseconds on its CPU.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
/// Sites are restored for so long in one stop: with what a stop takes by itself, a process should not stand for 20 ms.
const RESTORING_AT_ONCE: Duration = Duration::from_millis(4);
/// A process that is left runs for so long between two such stops.
const BETWEEN_SLICES: Duration = Duration::from_millis(2);
const PAUSE_MAX_AWAITED: Duration = Duration::from_millis(128);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A process that is held is looked at again after so long.
const HELD_PAUSE: Duration = Duration::from_millis(16);

/// When the next round may begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryDelay {
    until: Instant,
    pause: Duration,
    /// Somebody may wait for the result until then.
    awaited_until: Instant,
}

impl RetryDelay {
    /// In the background.
    pub(super) fn new() -> RetryDelay {
        RetryDelay::awaited_for(Duration::ZERO)
    }

    /// While somebody waits, for so long at most, and then in the background.
    pub(super) fn awaited_for(within: Duration) -> RetryDelay {
        let now = Instant::now();
        RetryDelay { until: now, pause: FIRST_PAUSE, awaited_until: now + within }
    }

    /// Whether it is time for another attempt at a process; if so, the next pause begins. `is_held`: whether an attempt would be
    /// in vain at present ([`is_held`]); then none is counted.
    pub(super) fn is_over(&mut self, is_held: impl FnOnce() -> bool) -> bool {
        let now = Instant::now();
        if now < self.until {
            return false;
        }
        if is_held() {
            self.until = Instant::now() + HELD_PAUSE;
            return false;
        }
        let longest = if now < self.awaited_until { PAUSE_MAX_AWAITED } else { PAUSE_MAX };
        self.until = now + self.pause;
        self.pause = (self.pause * 2).min(longest);
        true
    }
}

/// What of a process's code is its own again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restored {
    /// So many sites of probes.
    sites: usize,
    /// All system calls.
    calls: bool,
}

/// What is to be cleaned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cleaning {
    pub(super) pid: u32,
    pub(super) region: u64,
}

impl Cleaning {
    /// Rounds until nothing is left or the time is over (then `Ok(false)`), but at least one. A process that
    /// is gone needs no cleaning.
    pub(super) fn finish(self, within: Duration) -> Result<bool, inject::Error> {
        let deadline = Instant::now() + within;
        let mut pause = FIRST_PAUSE;
        loop {
            let done = self.round(&mut Restored::default(), STOP_WITHIN, None);
            let again = match &done {
                Ok(done) => !done,
                Err(error) => matches!(error, inject::Error::ThreadDoesNotStop { .. }) || is_passing(error),
            };
            if !again || Instant::now() + pause > deadline {
                return match done {
                    Err(error) if error.is_gone() => Ok(true),
                    done => done,
                };
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX_AWAITED);
        }
    }

    /// One round, in as many stops as its sites need. `Ok(true)`: nothing of ours is left in the process. What is `restored` already
    /// is passed over; there is no further stop after `until`.
    pub(super) fn round(
        self,
        restored: &mut Restored,
        stop_within: Duration,
        until: Option<Instant>,
    ) -> Result<bool, inject::Error> {
        loop {
            let clean = |stopped: &mut inject::Stopped| self.clean(stopped, restored);
            match inject::while_stopped(inject::Pid(self.pid), stop_within, clean)?? {
                Some(done) => {
                    // (A thread that is inside may get into a trampoline yet.)
                    restored.calls = false;
                    return Ok(done);
                }
                None if until.is_some_and(|until| Instant::now() + BETWEEN_SLICES > until) => return Ok(false),
                None => std::thread::sleep(BETWEEN_SLICES),
            }
        }
    }

    /// One stop; `None`: there is to be another one.
    fn clean(self, stopped: &mut inject::Stopped, restored: &mut Restored) -> Result<Option<bool>, inject::Error> {
        if !sud::disable(stopped, self.region)? {
            return Ok(Some(false));
        }
        let (kept, due): (Vec<_>, Vec<_>) = self.recoveries().into_iter().partition(is_kept_for_unwinders);
        let until = Instant::now() + RESTORING_AT_ONCE;
        restored.sites += self.restore_sites(stopped, due.get(restored.sites..).unwrap_or_default(), until)?;
        if restored.sites < due.len() {
            return Ok(None);
        }
        let was_own = restored.calls;
        if !was_own {
            restore_calls::restore(stopped, self.region)?;
            self.restore_counters(stopped)?;
            restored.calls = true;
        }
        actions::leave_masks(stopped, self.region)?;
        self.restore_returns(stopped);
        if !traps::disable(stopped, self.region)? {
            return Ok(Some(false));
        }
        if !was_own && stopped.threads().len() <= STOPPED_TWICE_THREADS_MAX {
            return Ok(None);
        }
        self.unmap(stopped, &kept).map(Some)
    }

    /// What is to be done when the process's code is its own again.
    fn unmap(self, stopped: &mut inject::Stopped, kept: &[(u32, Recovery)]) -> Result<bool, inject::Error> {
        let areas = self.stub_areas();
        if !self.is_nobody_inside(stopped)? {
            return Ok(false);
        }
        if !faults::disable(stopped, self.region)? {
            return Ok(false);
        }
        // A thread inside may be about to replace a return address, which an unwinder must not see. Now no thread is, and
        // all return addresses are those of the process.
        self.restore_sites(stopped, kept, Instant::now() + STOP_WITHIN)?;
        self.leave_cancels(stopped)?;
        self.release_gs(stopped)?;
        for (start, bytes) in self.map_ranges()? {
            stopped.unmap(start, bytes)?;
        }
        let key = self.header().and_then(|header| inject::ProtectionKey::of_access_bit(header.maps_key));
        if let Some(key) = key {
            stopped.free_key(key)?;
        }
        for area in areas {
            stopped.unmap(area.base, area.bytes)?;
        }
        inject::unmap_region(stopped, self.region)?;
        limits::take_back(self.pid);
        Ok(true)
    }

    /// No thread runs our code, or goes back to it from a signal handler.
    pub(super) fn is_nobody_inside(self, stopped: &inject::Stopped) -> Result<bool, inject::Error> {
        let ours = self.code();
        let returns = stopped.saved_contexts()?;
        let returns_inside = returns.iter().any(|context| ours.iter().any(|range| range.contains(&context.rip)));
        Ok(!returns_inside && stopped.threads_inside(&ours)?.is_empty() && guards_clear(self.pid, self.region))
    }

    fn control(self, offset: u64) -> u64 {
        self.region + CONTROL_OFFSET + offset
    }

    fn header(self) -> Option<ControlHeaderValue> {
        read_value::<ControlHeaderValue>(self.pid, self.control(0)).ok()
    }

    /// All hooks' kinds and how to undo their sites.
    fn recoveries(self) -> Vec<(u32, Recovery)> {
        let Some(header) = self.header() else { return vec![] };
        let hooks = header.hooks.min(HOOKS_MAX) as usize;
        let table = |offset: u64, bytes: usize| {
            let mut table = vec![0u8; hooks * bytes];
            read_process(self.pid, self.control(offset), &mut table).is_ok().then_some(table)
        };
        let recovery = table(RECOVERY_OFFSET, size_of::<Recovery>());
        let (Some(recovery), Some(hooks)) = (recovery, table(HOOKS_OFFSET, size_of::<Hook>())) else {
            return vec![];
        };
        let kinds =
            hooks.chunks_exact(size_of::<Hook>()).filter_map(|hook| value_from(&hook[offset_of!(Hook, kind)..]));
        // (Hooks that are no places, or were never patched, have no entry.)
        kinds.zip(recovery.chunks_exact(size_of::<Recovery>()).filter_map(value_from)).collect()
    }

    /// Restores the bytes of sites, and leads threads out of their stubs. How many it were until that time, at least one.
    fn restore_sites<'e>(
        self,
        stopped: &mut inject::Stopped,
        sites: &'e [(u32, Recovery)],
        until: Instant,
    ) -> Result<usize, inject::Error> {
        /// So many are restored between two looks at the clock.
        const SITES_AT_ONCE: usize = 64;
        let restoration = |(_, entry): &'e (u32, Recovery)| {
            let length = (entry.bytes as usize).min(entry.written.len());
            let (written, original) = (&entry.written[..length], &entry.original[..length]);
            inject::SiteRestoration { site: entry.site, written, original }
        };
        let mut count = 0;
        for some in sites.chunks(SITES_AT_ONCE) {
            put_back(stopped, some.iter().map(restoration).collect())?;
            count += some.len();
            if Instant::now() >= until {
                break;
            }
        }
        let entries: Vec<Recovery> = sites[..count].iter().map(|(_, entry)| *entry).collect();
        self.move_threads_to_original_code(stopped, &entries)?;
        Ok(count)
    }

    /// Threads that are at displaced instructions, where they may wait in a system call for any time, go on at the original ones,
    /// also those that signal handlers interrupted there.
    fn move_threads_to_original_code(
        self,
        stopped: &mut inject::Stopped,
        entries: &[Recovery],
    ) -> Result<(), inject::Error> {
        let areas: Vec<Range<u64>> = self.stub_areas().iter().map(|area| area.base..area.base + area.bytes).collect();
        let home = |rip: u64| {
            let is_stub = areas.iter().any(|area| area.contains(&rip));
            let of = |entry: &&Recovery| (entry.stub..entry.stub + u64::from(entry.stub_bytes)).contains(&rip);
            let entry = is_stub.then(|| entries.iter().find(of)).flatten()?;
            self.original_of(entry, rip)
        };
        for tid in stopped.threads_inside(&areas)? {
            let registers = stopped.registers(tid)?;
            if let Some(rip) = home(registers.rip) {
                stopped.set_registers(tid, &inject::Registers { rip, ..registers })?;
            }
        }
        for context in stopped.saved_contexts()? {
            if let Some(rip) = home(context.rip) {
                stopped.set_context(&inject::SavedContext { rip, ..context })?;
            }
        }
        Ok(())
    }

    /// The address at which an instruction was that a stub displaced.
    fn original_of(self, entry: &Recovery, rip: u64) -> Option<u64> {
        let tail = entry.stub + stub_tail_offset(entry.stub_bytes);
        let StubTail { site, count, .. } = read_value(self.pid, tail).ok()?;
        let mut words = vec![0u8; count.min(MOVED_MAX) as usize * 8];
        read_process(self.pid, tail + size_of::<StubTail>() as u64, &mut words).ok()?;
        let pairs = words.chunks_exact(8).filter_map(value_from::<u64>).map(moved_unpack);
        let here = (rip - entry.stub) as u32;
        let (_, distance) = pairs.into_iter().find(|(offset, _)| *offset == here)?;
        Some(site + u64::from(distance))
    }

    /// Puts original return addresses back wherever the trampoline's still stands. The frames stay in the
    /// shadow stack: a thread may be about to look its frame up.
    fn restore_returns(self, stopped: &mut inject::Stopped) {
        let trampoline = self.region + ring3_image::symbol("ring3_return_trampoline").unwrap_or(0);
        for frames in self.blocks().map(|block| self.shadow_frames(block)) {
            for (slot, address) in original_returns(&frames, trampoline) {
                let mut content = [0u8; 8];
                if stopped.read(slot, &mut content).is_ok() && u64::from_le_bytes(content) == trampoline {
                    let _ = stopped.write(slot, &address.to_le_bytes());
                }
            }
        }
    }

    /// Addresses of the threads' blocks.
    pub(super) fn blocks(self) -> impl Iterator<Item = u64> {
        let used = read_value::<u32>(self.pid, self.region + STATE_OFFSET).unwrap_or(0).min(THREADS_MAX);
        let first = self.region + STATE_OFFSET + STATE_HEADER_BYTES;
        (0..u64::from(used)).map(move |index| first + index * THREAD_BLOCK_BYTES)
    }

    /// The region, and the areas of stubs.
    fn code(self) -> Vec<Range<u64>> {
        let stubs = self.stub_areas().into_iter().map(|area| area.base..area.base + area.bytes);
        stubs.chain(std::iter::once(self.region..self.region + REGION_BYTES)).collect()
    }

    /// The handler of SIGCANCEL is the process's own again, and what was put off comes now, as from the process itself. (As long
    /// as threads are in our code, they may be cancelled there.)
    fn leave_cancels(self, stopped: &mut inject::Stopped) -> Result<(), inject::Error> {
        let Some(handler) = sud::own_cancel_handler(stopped, self.region) else { return Ok(()) };
        sud::restore_cancel_handler(stopped, self.region, handler)?;
        let own_pid = own_pid(self.pid);
        let field = |block: u64, offset: usize| read_value::<u64>(self.pid, block + offset as u64).unwrap_or(0);
        let waits = |block: &u64| field(*block, std::mem::offset_of!(ThreadBlock, cancel_waits)) as u32 != 0;
        for block in self.blocks().filter(waits) {
            let ids = field(block, std::mem::offset_of!(ThreadBlock, pid_tgid));
            // (A fork has its creator's until its thread comes by.)
            if own_pid != Some((ids >> 32) as u32) {
                continue;
            }
            let arguments = [ids >> 32, u64::from(ids as u32), SIGCANCEL, 0, 0, 0];
            // (It may have ended since.)
            match stopped.syscall("tgkill", nr::TGKILL, arguments) {
                Ok(_) | Err(inject::Error::RemoteCall { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Those of the block, and those of its chunks.
    fn shadow_frames(self, block: u64) -> Vec<ShadowFrame> {
        let bytes = size_of::<ShadowFrame>();
        let frames_at = |address: u64, count: u32| -> Vec<ShadowFrame> {
            let mut table = vec![0u8; count as usize * bytes];
            match read_process(self.pid, address, &mut table) {
                Ok(()) => table.chunks_exact(bytes).filter_map(value_from::<ShadowFrame>).collect(),
                Err(_) => vec![],
            }
        };
        let mut frames = frames_at(block + std::mem::offset_of!(ThreadBlock, shadow) as u64, SHADOW_FRAMES);
        let chunks_at = block + std::mem::offset_of!(ThreadBlock, shadow_chunks) as u64;
        let chunks =
            (0..SHADOW_CHUNKS_MAX as u64).map_while(|index| read_value(self.pid, chunks_at + 4 * index).ok());
        for chunk in chunks.take_while(|chunk| (1..=SHADOW_POOL_CHUNKS).contains(chunk)) {
            let address = self.region + SHADOW_OFFSET + u64::from(chunk - 1) * SHADOW_CHUNK_BYTES;
            frames.extend(frames_at(address, SHADOW_CHUNK_FRAMES));
        }
        frames
    }

    fn stub_areas(self) -> Vec<StubArea> {
        table_until(self.pid, self.control(STUB_AREAS_OFFSET), STUB_AREAS_MAX, |area: &StubArea| area.base == 0)
    }

    /// Threads must not keep a GS that leads into memory that goes away.
    fn release_gs(self, stopped: &mut inject::Stopped) -> Result<(), inject::Error> {
        let region = self.region..self.region + REGION_BYTES;
        for tid in stopped.threads().to_vec() {
            let mut registers = stopped.registers(tid)?;
            if region.contains(&registers.gs_base) {
                registers.gs_base = 0;
                stopped.set_registers(tid, &registers)?;
            }
        }
        Ok(())
    }

    /// Start and bytes of every map that the GOT names and that is one of our memfds.
    fn map_ranges(self) -> Result<Vec<(u64, u64)>, inject::Error> {
        let maps = self.header().map_or(0, |header| header.maps.min(MAPS_MAX));
        let mut got = vec![0u8; maps as usize * size_of::<GotEntry>()];
        if read_process(self.pid, self.control(GOT_OFFSET), &mut got).is_err() {
            return Ok(vec![]);
        }
        let bases: BTreeSet<u64> = got
            .chunks_exact(size_of::<GotEntry>())
            .map(|entry| u64::from_le_bytes(entry[8..16].try_into().expect("8 bytes")))
            .filter(|base| *base != 0)
            .collect();
        let mappings = inject::mappings(inject::Pid(self.pid))?;
        let ours = mappings.iter().filter(|m| m.path.starts_with(MEMFD_PREFIX) && bases.contains(&m.range.start));
        Ok(ours.map(|m| (m.range.start, m.range.end - m.range.start)).collect())
    }
}

/// A table of a process, up to its first unused entry. (Most are short: of the rest nothing is read.)
pub(super) fn table_until<T: FromBytes>(
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

/// Whether a site, given as its kind of hook and its entry, is an unwinder's and stays until no thread is inside. (An `int3` cannot:
/// its handler goes first.)
fn is_kept_for_unwinders((kind, entry): &(u32, Recovery)) -> bool {
    let is_unwinder = HookKind::OF_UNWINDERS.iter().any(|unwinder| *unwinder as u32 == *kind);
    is_unwinder && entry.bytes > 1
}

/// Restores the bytes of sites, 0 being none, unless their memory is gone or has other code.
pub(super) fn put_back(
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

/// The address that the frames on each stack slot finally return to: of a chain the first one has it.
fn original_returns(frames: &[ShadowFrame], trampoline: u64) -> BTreeMap<u64, u64> {
    let mut addresses = BTreeMap::new();
    for frame in frames.iter().filter(|frame| frame.slot != 0 && ![0, trampoline].contains(&frame.return_address)) {
        addresses.entry(frame.slot).or_insert(frame.return_address);
    }
    addresses
}

/// Whether an error will go away by itself: the process is held for a moment by another ring3 server, which cleans
/// it up, or by one that is just dying.
fn is_passing(error: &inject::Error) -> bool {
    let inject::Error::AlreadyTraced { tracer, .. } = error else { return false };
    match std::fs::read_link(format!("/proc/{tracer}/exe")) {
        Ok(exe) => std::fs::read_link("/proc/self/exe").is_ok_and(|own| own == exe),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Tries again while the error is a passing one.
pub(super) fn patiently<T>(mut attempt: impl FnMut() -> Result<T, inject::Error>) -> Result<T, inject::Error> {
    let deadline = Instant::now() + STOP_WITHIN;
    loop {
        match attempt() {
            Err(error) if is_passing(&error) && Instant::now() < deadline => std::thread::sleep(FIRST_PAUSE),
            done => return done,
        }
    }
}

/// Nobody wants a process's calls any more: threads that are cancelled are its own again, unless some are in our code.
pub(super) fn leave_cancels(stopped: &mut inject::Stopped, region: u64) -> Result<(), inject::Error> {
    let cleaning = Cleaning { pid: stopped.pid(), region };
    let is_theirs = sud::own_cancel_handler(stopped, region).is_none();
    if is_theirs || !stopped.threads_inside(&cleaning.code())?.is_empty() {
        return Ok(());
    }
    cleaning.leave_cancels(stopped)
}

/// True if no thread block says that its thread is inside.
pub(super) fn guards_clear(pid: u32, region: u64) -> bool {
    let guard = std::mem::offset_of!(ThreadBlock, guard) as u64;
    (Cleaning { pid, region }).blocks().all(|block| read_value::<u64>(pid, block + guard) == Ok(0))
}

/// The pids of all processes that can be seen.
pub(super) fn all_processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The id of a process in its own pid namespace.
pub(super) fn own_pid(pid: u32) -> Option<u32> {
    own_id(pid, "status")
}

fn own_id(pid: u32, status: &str) -> Option<u32> {
    let status = inject::proc_file(pid, status).ok()?;
    inject::status_field(&status, "NSpid")?.split_whitespace().last()?.parse().ok()
}

/// Whether a thread of a process cannot be stopped at present: it waits for a `vfork` child, or for a disk that does not answer.
/// Whoever waits for a lock of the kernel's, as those do that map memory all the time, runs again at once and is not held.
pub(super) fn is_held(pid: u32) -> bool {
    const LOOKS: u32 = 5;
    const BETWEEN_LOOKS: Duration = Duration::from_micros(200);
    let tids = inject::threads(pid).unwrap_or_default();
    let waiting = tids.into_iter().filter(|tid| is_waiting(pid, *tid));
    let mut waiting: Vec<(u32, Option<u64>)> = waiting.map(|tid| (tid, switches(pid, tid))).collect();
    if waiting.iter().any(|(tid, _)| awaits_child(pid, *tid)) {
        return true;
    }
    for _ in 0..LOOKS {
        if waiting.is_empty() {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        waiting.retain(|(tid, before)| is_waiting(pid, *tid) && switches(pid, *tid) == *before);
    }
    !waiting.is_empty()
}

/// Whether a thread waits for what no signal ends.
fn is_waiting(pid: u32, tid: u32) -> bool {
    inject::Stat::of_thread(pid, tid).and_then(|stat| stat.state()) == Some('D')
}

/// How often a thread has begun to wait.
fn switches(pid: u32, tid: u32) -> Option<u64> {
    let status = inject::proc_file(pid, &format!("task/{tid}/status")).ok()?;
    inject::status_field(&status, "voluntary_ctxt_switches")?.parse().ok()
}

/// Whether a thread that waits does so in a call that makes a process (`CLONE_VFORK`).
fn awaits_child(pid: u32, tid: u32) -> bool {
    let call = inject::proc_file(pid, &format!("task/{tid}/syscall")).unwrap_or_default();
    let number = call.split_whitespace().next().and_then(|number| number.parse().ok());
    matches!(number, Some(nr::VFORK | nr::CLONE | nr::CLONE3))
}

/// The thread of a process that has this id in its own pid namespace.
pub(super) fn thread_named(pid: u32, own_tid: u32) -> Option<u32> {
    let own = |tid: u32| own_id(pid, &format!("task/{tid}/status"));
    if own(own_tid) == Some(own_tid) {
        return Some(own_tid);
    }
    inject::threads(pid).ok()?.into_iter().find(|tid| own(*tid) == Some(own_tid))
}

/// The process of a thread.
pub(crate) fn leader(tid: u32) -> Option<u32> {
    let status = inject::proc_file(tid, "status").ok()?;
    inject::status_field(&status, "Tgid")?.parse().ok()
}

/// The region of a process and the server that made it, if there is one.
pub(super) fn region_in(pid: u32) -> Option<(u64, ControlHeaderValue)> {
    let maps = inject::proc_file(pid, "maps").ok()?;
    let line = maps.lines().find(|line| line.contains(CONTROL_PATH))?;
    let start = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
    let region = start.checked_sub(CONTROL_OFFSET)?;
    let header = read_value::<ControlHeaderValue>(pid, start).ok()?;
    (header.magic == CONTROL_MAGIC).then_some((region, header))
}

/// What has become of the server that made a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
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

/// What has become of the server that made the region of a process. A process that is being killed, or is dead and not
/// yet waited for, is still listed, but has no memory and thus no executable (`do_exit`).
pub(super) fn maker(pid: u32, header: &ControlHeaderValue) -> Maker {
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

/// In how many pid namespaces a process can be seen from here.
pub(super) fn levels(pid: u32) -> u32 {
    let status = inject::proc_file(pid, "status").unwrap_or_default();
    inject::status_field(&status, "NSpid").map_or(0, |ids| ids.split_whitespace().count() as u32)
}

/// Another server that has this process as a target and is not known to have ended.
pub(super) fn other_server(pid: u32) -> Option<Maker> {
    let (_, header) = region_in(pid)?;
    Some(maker(pid, &header)).filter(|maker| ![Maker::Gone, Maker::Runs(std::process::id())].contains(maker))
}
