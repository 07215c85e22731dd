//! Jumps of which only one byte is written, because others write breakpoints, too.
//!
//! The kernel's uprobes take the file's bytes for what stands there. Over a 5-byte jump they go wrong twice: the kernel runs the
//! file's instruction and goes on behind it, which may be within the jump; and when a uprobe goes, the kernel writes the file's
//! byte, and the rest of the jump stays behind it. If only the first byte was ours, both are right. The other bytes of such a jump are
//! the file's, and so decide where its stub lies. That costs a thread nothing, but the process a page or two, and the time to
//! map them: a process has a limited number of such jumps. The other sites, and those whose stub's address is not free, have
//! plain ones.

use std::ops::Range;

use ring3_inject as inject;
use ring3_layout::PAGE_BYTES;
use ring3_patch::{JUMP_BYTES, RELAY_BYTES, Tactic};
use ring3_uapi::Errno;

use super::Refusal;
use super::site::{Site, WantedSite};
use super::sites::{Unplaced, WITHIN_JUMP};
use super::target::Target;
use super::tracer::refusal_of;

/// One-byte jumps in a process: each maps a page.
const ONE_BYTE_MAX: usize = 64;
/// Room that is mapped for the stub of one.
const STUB_BYTES: u64 = 512;

/// A stub that is to lead to the next one of its site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Earlier {
    /// Where it goes on.
    resume: u64,
    /// By this jump.
    jump: u64,
    /// Room for a relay near it.
    relay: u64,
}

impl Target {
    /// Maps memory for the stubs of new sites at once. Where that fails, sites do without.
    pub(super) fn map_one_byte_stubs(&mut self, stopped: &mut inject::Stopped, wanted: &[WantedSite]) {
        let known = self.sites.values().filter(|site| site.plan.tactic == Tactic::OneByte).count();
        let is_new = |want: &&WantedSite| !self.sites.contains_key(&want.place.address);
        let stubs = wanted.iter().filter(is_new).filter_map(WantedSite::one_byte_stub);
        let pages = |stub: u64| {
            let end = stub.checked_add(STUB_BYTES)?.checked_next_multiple_of(PAGE_BYTES)?;
            Some(stub / PAGE_BYTES * PAGE_BYTES..end)
        };
        let mut ranges: Vec<Range<u64>> = stubs.take(ONE_BYTE_MAX.saturating_sub(known)).filter_map(pages).collect();
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
    pub(super) fn has_one_byte_room(&self, stub: u64) -> bool {
        self.has_room_in(&(stub..stub.saturating_add(1)), STUB_BYTES)
    }

    /// Whether a new site may be a one-byte jump.
    pub(super) fn may_have_one_byte(&self, address: u64) -> bool {
        let count = self.sites.values().filter(|site| site.plan.tactic == Tactic::OneByte).count();
        count < ONE_BYTE_MAX && !self.is_crowded(address)
    }

    /// Whether bytes that a one-byte jump would rely on are, or may be, somebody else's.
    pub(super) fn is_crowded(&self, address: u64) -> bool {
        self.neighbours(address).next().is_some() || self.syscalls.overlap(&(address..address + JUMP_BYTES as u64))
    }

    /// Known sites whose jumps would overlap that of a site here.
    fn neighbours(&self, address: u64) -> impl Iterator<Item = u64> {
        let near = self.sites.range(address.saturating_sub(WITHIN_JUMP)..=address + WITHIN_JUMP);
        near.map(|(other, _)| *other).filter(move |other| *other != address)
    }

    /// One-byte jumps so near to a site that they cannot rely on the bytes behind them get plain ones.
    pub(super) fn make_neighbours_plain(
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
        // A thread in its stub goes on in the middle of the plain jump, if it is not led elsewhere.
        let (name, resume) = (site.name.clone(), site.plan.resume);
        let end = site.moved.last().copied().filter(|(original, _)| *original == resume);
        let relay = end.and_then(|(_, at)| self.take_room_in(stopped, &page_of(at), RELAY_BYTES as u64).ok());
        if end.is_some() && relay.is_none() && !self.is_nobody_inside(stopped) {
            let why = "a thread is in the code of a probe nearby; it is tried again";
            return Err(Refusal::new(Errno::EBUSY, format!("{name}: {why}")).into());
        }
        let before = self.sites[&address].copy();
        self.restore_bytes(stopped, address)?;
        self.become_plain(address);
        if let (Some((_, jump)), Some(relay), Some(site)) = (end, relay, self.sites.get_mut(&address)) {
            (site.resumed_before, site.earlier) = (0, Some(Earlier { resume, jump, relay }));
        }
        let patched = self.patch(stopped, address, vec![]);
        if patched.is_err() {
            self.sites.insert(address, Site { patched: false, ..before });
            if let Err(why) = self.patch(stopped, address, vec![]) {
                tracing::warn!(pid = self.pid, "a probe is lost: {why:?}");
            }
        }
        patched
    }

    /// An earlier stub of a site, which ends with a jump to what was not displaced then, goes on at the copy in the new stub. The
    /// relay is near the earlier stub; the new one need not be.
    pub(super) fn lead_on(
        &mut self,
        stopped: &mut inject::Stopped,
        address: u64,
        earlier: Earlier,
    ) -> Result<(), Refusal> {
        let mut moved = self.sites[&address].moved.iter();
        let Some((_, copy)) = moved.find(|(original, _)| *original == earlier.resume) else { return Ok(()) };
        stopped.write(earlier.relay, &ring3_patch::relay(*copy)).map_err(refusal_of)?;
        let distance = earlier.relay.wrapping_sub(earlier.jump + JUMP_BYTES as u64) as u32;
        stopped.write(earlier.jump + 1, &distance.to_le_bytes()).map_err(refusal_of)
    }

    /// From now on, the plan of a site that is not patched is the plain one. It has no stub.
    pub(super) fn become_plain(&mut self, address: u64) {
        let Some(site) = self.sites.get_mut(&address) else { return };
        let Some(plain) = site.plain.take() else { return };
        site.resumed_before = if site.stub == 0 { 0 } else { site.plan.resume };
        site.plan = plain;
        (site.stub, site.stub_bytes) = (0, 0);
        site.jump.clear();
        site.moved.clear();
    }
}

fn page_of(address: u64) -> Range<u64> {
    let start = address / PAGE_BYTES * PAGE_BYTES;
    start..start + PAGE_BYTES
}
