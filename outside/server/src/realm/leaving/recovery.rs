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
    GOT_OFFSET, GotEntry, HOOKS_MAX, HOOKS_OFFSET, Hook, HookKind, MAPS_MAX, MOVED_MAX, RECOVERY_OFFSET, Recovery,
    StubTail, moved_unpack, stub_tail_offset,
};
use ring3_layout::region::{REGION_BYTES, SHADOW_OFFSET};
use ring3_layout::thread::{
    SHADOW_CHUNK_BYTES, SHADOW_CHUNK_FRAMES, SHADOW_CHUNKS_MAX, SHADOW_FRAMES, SHADOW_POOL_CHUNKS, ShadowFrame,
    ThreadBlock,
};

use crate::realm::calls::{restore, sud};
use crate::realm::process::{
    Cleaning, FIRST_PAUSE, PAUSE_MAX_AWAITED, is_passing, limits, put_back, read_process, read_value, value_from,
};
use crate::realm::signals::{actions, faults, traps};
use crate::realm::sites::STOPPED_TWICE_THREADS_MAX;
use crate::realm::target::STOP_WITHIN;

/// How the memfds that ring3 maps into targets begin.
const MEMFD_PREFIX: &str = "/memfd:ring3-";

/// Sites are restored for so long in one stop: with what a stop takes by itself, a process should not stand for 20 ms.
const RESTORING_AT_ONCE: Duration = Duration::from_millis(4);
/// A process that is left runs for so long between two such stops.
const BETWEEN_SLICES: Duration = Duration::from_millis(2);

/// What of a process's code is its own again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restored {
    /// So many sites of probes.
    sites: usize,
    /// All system calls.
    calls: bool,
}

impl Cleaning {
    /// Rounds until nothing is left or the time is over (then `Ok(false)`), but at least one. A process that
    /// is gone needs no cleaning.
    pub(in crate::realm) fn finish(self, within: Duration) -> Result<bool, inject::Error> {
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
            restore::restore(stopped, self.region)?;
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
        let mut known: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for block in self.blocks() {
            let owner = self.thread_of(stopped, block).ok().flatten();
            let sp = owner.and_then(|tid| stopped.registers(tid).ok()).map(|registers| registers.rsp);
            for (slot, address) in original_returns(&self.shadow_frames(block), trampoline) {
                // (A thread that has ended may have left frames of functions that have, too, with slots on a stack that another one has
                // now; a fiber's frame may be in any block.)
                let distance = sp.map_or(u64::MAX, |sp| slot.wrapping_sub(sp));
                let nearest = known.entry(slot).or_insert((distance, address));
                *nearest = (distance, address).min(*nearest);
            }
        }
        for (slot, (_, address)) in known {
            let mut content = [0u8; 8];
            if stopped.read(slot, &mut content).is_ok() && u64::from_le_bytes(content) == trampoline {
                let _ = stopped.write(slot, &address.to_le_bytes());
            }
        }
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

/// Whether a site, given as its kind of hook and its entry, is an unwinder's and stays until no thread is inside. (An `int3` cannot:
/// its handler goes first.)
fn is_kept_for_unwinders((kind, entry): &(u32, Recovery)) -> bool {
    let is_unwinder = HookKind::OF_UNWINDERS.iter().any(|unwinder| *unwinder as u32 == *kind);
    is_unwinder && entry.bytes > 1
}

/// The address that the frames on each stack slot finally return to: of a chain the first one has it.
fn original_returns(frames: &[ShadowFrame], trampoline: u64) -> BTreeMap<u64, u64> {
    let mut addresses = BTreeMap::new();
    for frame in frames.iter().filter(|frame| frame.slot != 0 && ![0, trampoline].contains(&frame.return_address)) {
        addresses.entry(frame.slot).or_insert(frame.return_address);
    }
    addresses
}
