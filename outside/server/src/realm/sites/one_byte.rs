//! Jumps of which only one byte is written, because others write breakpoints, too.
//!
//! The kernel's uprobes take the file's bytes for what stands there. Over a 5-byte jump they go wrong twice: the kernel runs the
//! file's instruction and goes on behind it, which may be within the jump; and when a uprobe goes, the kernel writes the file's
//! byte, and the rest of the jump stays behind it. If only the first byte was ours, both are right. The other bytes of such a jump are
//! the file's, and so decide where its stub lies. That costs a thread nothing, but the process a page or two, and the time to
//! map them: a process has a limited number of such jumps. The other sites, and those whose stub's address is not free, have
//! plain ones.
//!
//! The stub runs copies of all instructions that a plain jump would displace. If it went back into the jump's bytes, the CPU would
//! predict there the jump that it has seen end a few bytes on, and begin again at each hit: 10 ns.

use std::ops::Range;

use ring3_inject as inject;
use ring3_layout::PAGE_BYTES;
use ring3_patch::{JUMP_BYTES, Tactic};

use super::site::{Site, WantedSite};
use super::writing::{Unplaced, WITHIN_JUMP};
use crate::realm::target::Target;

/// One-byte jumps in a process: each maps a page.
const ONE_BYTE_MAX: usize = 64;
/// In a process with so many sites no further one gets one: they are counted for each new site.
const SITES_MAX: usize = 1024;
/// Room that is mapped for the stub of one.
const STUB_BYTES: u64 = ring3_patch::STUB_BYTES_MAX as u64;

impl Target {
    /// Maps memory for the stubs of new sites at once. Where that fails, sites do without.
    pub(in crate::realm) fn map_one_byte_stubs(&mut self, stopped: &mut inject::Stopped, wanted: &[WantedSite]) {
        let is_new = |want: &&WantedSite| !self.sites.contains_key(&want.place.address);
        let stubs = wanted.iter().filter(is_new).filter_map(WantedSite::one_byte_stub);
        let pages = |stub: u64| {
            let end = stub.checked_add(STUB_BYTES)?.checked_next_multiple_of(PAGE_BYTES)?;
            Some(stub / PAGE_BYTES * PAGE_BYTES..end)
        };
        let mut ranges: Vec<Range<u64>> = stubs.take(self.one_byte_left()).filter_map(pages).collect();
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges.dedup_by(|next, range| {
            let meets = next.start <= range.end;
            range.end = if meets { range.end.max(next.end) } else { range.end };
            meets
        });
        if let Err(refusal) = self.map_relay_pages(stopped, ranges) {
            tracing::debug!(pid = self.pid, "no room for one-byte jumps: {refusal}");
        }
    }

    /// Whether memory for such a stub at an address is mapped, and free.
    pub(in crate::realm) fn has_one_byte_room(&self, stub: u64) -> bool {
        self.has_room_in(&(stub..stub.saturating_add(1)), STUB_BYTES)
    }

    /// Whether a new site may be a one-byte jump.
    pub(in crate::realm) fn may_have_one_byte(&self, address: u64) -> bool {
        self.one_byte_left() > 0 && !self.is_crowded(address)
    }

    /// How many more there can be.
    fn one_byte_left(&self) -> usize {
        if self.sites.len() >= SITES_MAX {
            return 0;
        }
        let count = self.sites.values().filter(|site| site.plan.tactic == Tactic::OneByte).count();
        ONE_BYTE_MAX.saturating_sub(count)
    }

    /// Whether bytes that a one-byte jump would rely on are, or may be, somebody else's.
    pub(in crate::realm) fn is_crowded(&self, address: u64) -> bool {
        self.neighbours(address).next().is_some() || self.syscalls.overlap(&(address..address + JUMP_BYTES as u64))
    }

    /// Known sites whose jumps would overlap that of a site here.
    fn neighbours(&self, address: u64) -> impl Iterator<Item = u64> {
        let near = self.sites.range(address.saturating_sub(WITHIN_JUMP)..=address + WITHIN_JUMP);
        near.map(|(other, _)| *other).filter(move |other| *other != address)
    }

    /// One-byte jumps so near to a site that they cannot rely on the bytes behind them get plain ones.
    pub(in crate::realm) fn make_neighbours_plain(
        &mut self,
        stopped: &mut inject::Stopped,
        address: u64,
    ) -> Result<(), Unplaced> {
        for other in self.neighbours(address).collect::<Vec<_>>() {
            self.make_plain(stopped, other)?;
        }
        Ok(())
    }

    /// A one-byte jump becomes what the site would be without that tactic; if that fails, it stays as it was.
    pub(super) fn make_plain(&mut self, stopped: &mut inject::Stopped, address: u64) -> Result<(), Unplaced> {
        let site = &self.sites[&address];
        if site.plan.tactic != Tactic::OneByte {
            return Ok(());
        }
        if !site.patched {
            self.become_plain(address);
            return Ok(());
        }
        // (A thread in the old stub goes on behind the plain jump, too: both displace the same instructions.)
        let before = self.sites[&address].copy();
        self.restore_bytes(stopped, address)?;
        self.become_plain(address);
        let patched = self.patch(stopped, address, vec![]);
        if patched.is_err() {
            self.sites.insert(address, Site { patched: false, ..before });
            if let Err(why) = self.patch(stopped, address, vec![]) {
                tracing::warn!(pid = self.pid, "a probe is lost: {why:?}");
            }
        }
        patched
    }

    /// From now on, the plan of a site that is not patched is the plain one. It has no stub.
    pub(in crate::realm) fn become_plain(&mut self, address: u64) {
        let Some(site) = self.sites.get_mut(&address) else { return };
        let Some(plain) = site.plain.take() else { return };
        site.plan = plain;
        (site.stub, site.stub_bytes) = (0, 0);
        site.jump.clear();
        site.moved.clear();
    }
}
