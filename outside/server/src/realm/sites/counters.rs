//! Reference counters of probes: the semaphores of USDT.
//!
//! A program looks at such a word of its data before it makes a probe's arguments, and skips the probe while the word is 0. As the
//! kernel does, a probe counts the word up in each process in which it is placed, and down again when it is taken out; what no
//! mapping holds is counted when that comes. Which words are up is kept in the process itself ([`ring3_layout::counter`]): a fork
//! inherits both, and a server that cleans up after another one finds both.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use ring3_inject as inject;
use ring3_layout::control::{ControlHeader, HookKind};
use ring3_layout::counter::{COUNTERS_MAX, CountedCounter, CountersHeader, entry_offset};
use ring3_layout::region::COUNTERS_OFFSET;
use ring3_uapi::Errno;
use zerocopy::IntoBytes;

use super::site::{is_of_file, places};
use crate::realm::process::{Cleaning, read_process, read_value, value_from};
use crate::realm::target::{Link, Target, refuse};
use crate::realm::{AttachmentId, Point, ProbePoint, Refusal};

/// The counters that should be up in a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::realm) struct WantedCounters {
    /// By address.
    counters: BTreeMap<u64, CountedCounter>,
    /// There are more, which are not mapped.
    awaits: bool,
}

impl Target {
    /// The counters that links want up here, where their probes are not refused. Mirrors
    /// kernel/events/uprobes.c:uprobe_write_opcode and update_ref_ctr (v6.18): each place of a probe counts once.
    pub(in crate::realm) fn wanted_counters(
        &self,
        links: &BTreeMap<AttachmentId, Link>,
        mappings: &[inject::Mapping],
    ) -> WantedCounters {
        let mut wanted = WantedCounters::default();
        let mut counted = BTreeSet::new();
        for (id, spec) in self.links_for(links) {
            let Point::Probe(probe) = &spec.point else { continue };
            if probe.counter == 0 || links[&id].refused.contains_key(&self.pid) {
                continue;
            }
            let placed = places(mappings, self.pid, probe.id, probe.offset, HookKind::Probe);
            for _ in placed.into_iter().filter(|place| counted.insert(place.address)) {
                match counter_of(mappings, self.pid, probe) {
                    Some(counter) => wanted.counters.entry(counter.address).or_insert(counter).count += 1,
                    None => wanted.awaits = true,
                }
            }
        }
        wanted
    }

    /// Whether these counters and no others are up. (One whose mapping was made anew since is not.)
    pub(in crate::realm) fn has_counters(&self, wanted: &WantedCounters) -> bool {
        let is_up = |counter: &&CountedCounter| counter.count != 0;
        let table = if self.counts { table(self.pid, self.region) } else { vec![] };
        table.iter().filter(is_up).all(|counter| {
            let now = read_value::<i16>(self.pid, counter.address).unwrap_or(0);
            wanted.counters.get(&counter.address) == Some(counter) && i64::from(now) >= counter.count as i64
        }) && table.iter().filter(is_up).count() == wanted.counters.len()
    }

    /// The agent tells of writable mappings while counters are awaited.
    pub(in crate::realm) fn await_counters(&self, wanted: &WantedCounters) {
        let at = offset_of!(ControlHeader, awaits_counters) as u64;
        self.control.word32(at).store(wanted.awaits.into(), Ordering::SeqCst);
    }

    /// Counts counters of the stopped process up and down, so that those are up whose links are not refused.
    pub(in crate::realm) fn reconcile_counters(
        &mut self,
        stopped: &mut inject::Stopped,
        links: &mut BTreeMap<AttachmentId, Link>,
    ) {
        let has_any = |link: &Link| matches!(&link.spec.point, Point::Probe(probe) if probe.counter != 0);
        if !self.counts && !links.values().any(has_any) {
            return;
        }
        let counted = stopped.mappings().and_then(|mappings| {
            let wanted = self.wanted_counters(links, &mappings);
            self.counts |= !wanted.counters.is_empty();
            self.await_counters(&wanted);
            count(stopped, self.region, &mappings, wanted.counters)
        });
        let refusal = match counted {
            Ok(left) if left.is_empty() => return,
            Ok(left) => {
                let what = "counters of probes (USDT semaphores) are more than can be up at a time";
                Refusal::new(Errno::ENOSPC, format!("{} {what}, {COUNTERS_MAX}", left.len()))
            }
            Err(error) => Refusal::new(Errno::EINVAL, format!("counters of probes (USDT semaphores): {error}")),
        };
        let ids: Vec<AttachmentId> = links.iter().filter(|(_, link)| has_any(link)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| refuse(links, id, self.pid, refusal.clone()));
    }
}

impl Cleaning {
    /// All counters that are up go down.
    pub(in crate::realm) fn restore_counters(self, stopped: &mut inject::Stopped) -> Result<(), inject::Error> {
        if table(self.pid, self.region).is_empty() {
            return Ok(());
        }
        let mappings = stopped.mappings()?;
        count(stopped, self.region, &mappings, BTreeMap::new()).map(drop)
    }
}

/// Where a process has the counter of a probe mapped. Mirrors kernel/events/uprobes.c:find_ref_ctr_vma (v6.18): in the first
/// private and writable mapping.
fn counter_of(mappings: &[inject::Mapping], pid: u32, probe: &ProbePoint) -> Option<CountedCounter> {
    let holds = |mapping: &&inject::Mapping| {
        let inside = probe.counter.checked_sub(mapping.offset);
        inside.is_some_and(|inside| inside < mapping.range.end - mapping.range.start)
            && may_hold_counters(mapping)
            && is_of_file(mapping, pid, probe.id)
    };
    let mapping = mappings.iter().find(holds)?;
    Some(CountedCounter {
        address: mapping.range.start + probe.counter - mapping.offset,
        dev: mapping.dev,
        inode: mapping.inode,
        offset: probe.counter,
        count: 0,
    })
}

fn may_hold_counters(mapping: &inject::Mapping) -> bool {
    mapping.is_writable() && !mapping.is_shared()
}

/// Whether a counter is still where it was.
fn is_mapped(counter: &CountedCounter, mappings: &[inject::Mapping]) -> bool {
    let Some(mapping) = mappings.iter().find(|mapping| mapping.range.contains(&counter.address)) else {
        return false;
    };
    may_hold_counters(mapping)
        && (mapping.dev, mapping.inode) == (counter.dev, counter.inode)
        && mapping.offset + (counter.address - mapping.range.start) == counter.offset
}

/// The counters that a process has been counted up, and free entries. (It can write this table, and harms itself by that.)
fn table(pid: u32, region: u64) -> Vec<CountedCounter> {
    let at = region + COUNTERS_OFFSET;
    let used = read_value::<CountersHeader>(pid, at).map_or(0, |header| header.used.min(COUNTERS_MAX.into()));
    let mut bytes = vec![0u8; used as usize * size_of::<CountedCounter>()];
    match read_process(pid, at + entry_offset(0), &mut bytes) {
        Ok(()) => bytes.chunks_exact(size_of::<CountedCounter>()).filter_map(value_from).collect(),
        Err(_) => vec![],
    }
}

/// Counts counters up and down. An entry is written before its counter goes up, and freed after that went down: whoever is killed
/// meanwhile leaves a counter below its entry, of which nothing is taken. The result is what has no room in the table.
fn count(
    stopped: &mut inject::Stopped,
    region: u64,
    mappings: &[inject::Mapping],
    mut wanted: BTreeMap<u64, CountedCounter>,
) -> Result<Vec<CountedCounter>, inject::Error> {
    let mut entries = table(stopped.pid(), region);
    for (index, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| entry.count != 0) {
        let is_same = |want: &CountedCounter| CountedCounter { count: entry.count, ..*want } == *entry;
        let want = wanted.get(&entry.address).copied().filter(is_same);
        if want.is_some() {
            wanted.remove(&entry.address);
        }
        let count = want.map_or(0, |want| want.count);
        if is_mapped(entry, mappings) {
            change(stopped, entry, count)?;
        }
        entry.count = count;
        write_entry(stopped, region, index, *entry)?;
    }
    let mut left = vec![];
    for want in wanted.into_values() {
        let index = entries.iter().position(|entry| entry.count == 0).unwrap_or(entries.len());
        if index >= COUNTERS_MAX as usize {
            left.push(want);
            continue;
        }
        entries.resize(entries.len().max(index + 1), want);
        entries[index] = want;
        write_entry(stopped, region, index, want)?;
        let header = CountersHeader { used: entries.len() as u64 };
        stopped.write(region + COUNTERS_OFFSET, header.as_bytes())?;
        change(stopped, &CountedCounter { count: 0, ..want }, want.count)?;
    }
    Ok(left)
}

fn write_entry(
    stopped: &mut inject::Stopped,
    region: u64,
    index: usize,
    entry: CountedCounter,
) -> Result<(), inject::Error> {
    stopped.write(region + COUNTERS_OFFSET + entry_offset(index as u64), entry.as_bytes())
}

/// Changes a counter by what another count than the known one adds. One that is below that was mapped anew, and has nothing of
/// ours. Mirrors kernel/events/uprobes.c:__update_ref_ctr (v6.18), which lets none go negative.
fn change(stopped: &mut inject::Stopped, known: &CountedCounter, count: u64) -> Result<(), inject::Error> {
    let mut word = [0u8; 2];
    stopped.read(known.address, &mut word)?;
    let now = i64::from(i16::from_le_bytes(word));
    let known_count = if now < known.count as i64 { 0 } else { known.count as i64 };
    let then = now + count as i64 - known_count;
    if then == now {
        return Ok(());
    }
    if then < 0 {
        let (pid, at) = (stopped.pid(), known.address);
        tracing::warn!(pid, "the counter of a probe at {at:#x} would go negative: {now} is left there");
        return Ok(());
    }
    stopped.write(known.address, &(then as u16).to_le_bytes())
}
