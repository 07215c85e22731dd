//! Where a target's stubs lie: areas of executable memory near the code that jumps to them.

use std::ops::Range;

use ring3_inject as inject;
use ring3_layout::PAGE_BYTES;
use ring3_layout::control::{STUB_AREAS_MAX, STUB_AREAS_OFFSET, StubArea};
use ring3_patch::RELAY_BYTES;
use ring3_uapi::Errno;

use super::Refusal;
use super::target::Target;
use super::tracer::refusal_of;

/// Bytes of a stub area: the first one near some code is the smallest, and each further one as large as those before together, so
/// that few areas have room for any number of stubs.
const STUB_AREA_BYTES: std::ops::RangeInclusive<u64> = 0x1_0000..=0x100_0000;
/// Bytes of an area for stubs that have to lie at certain addresses.
const PLACED_AREA_BYTES: u64 = 0x4000;
/// Where heaps and stacks may grow, relays do not lie, bytes.
const GROWTH_BYTES: u64 = 1 << 28;
/// Where memory can be mapped.
const LOWEST: u64 = 0x1_0000;
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// Stubs start at multiples of this.
const STUB_ALIGN: u64 = 16;

/// Memory that holds stubs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    base: u64,
    bytes: u64,
    used: u64,
}

impl Area {
    /// Whether a jump from an address reaches all of it.
    fn is_near(&self, address: u64) -> bool {
        const REACH: u64 = i32::MAX as u64 - (1 << 20);
        address.abs_diff(self.base) < REACH && address.abs_diff(self.base + self.bytes) < REACH
    }
}

/// Memory at an address that punned jumps lead to, with relays.
#[derive(Clone, Debug)]
pub(super) struct RelayPage {
    range: Range<u64>,
    taken: Vec<Range<u64>>,
}

impl RelayPage {
    /// Where in a range a relay has room.
    fn free_in(&self, range: &Range<u64>) -> Option<u64> {
        let last = self.range.end - RELAY_BYTES as u64;
        let mut at = range.start.max(self.range.start);
        while range.contains(&at) && at <= last {
            let bytes = at..at + RELAY_BYTES as u64;
            match self.taken.iter().find(|other| other.start < bytes.end && bytes.start < other.end) {
                Some(other) => at = other.end,
                None => return Some(at),
            }
        }
        None
    }
}

impl Target {
    /// Room for a relay at one of these addresses, which is taken from now on.
    pub(super) fn take_relay_room(
        &mut self,
        stopped: &mut inject::Stopped,
        range: &Range<u64>,
    ) -> Result<u64, Refusal> {
        let found = self.relays.iter().enumerate().find_map(|(page, relays)| Some((page, relays.free_in(range)?)));
        let (page, at) = match found {
            Some(found) => found,
            None => {
                let pages = self.map_relays(stopped, range)?;
                let page = RelayPage { range: pages, taken: vec![] };
                let at = page.free_in(range).ok_or_else(|| Refusal::new(Errno::ENOSPC, "no room for a relay"))?;
                self.relays.push(page);
                (self.relays.len() - 1, at)
            }
        };
        self.relays[page].taken.push(at..at + RELAY_BYTES as u64);
        Ok(at)
    }

    /// Maps memory for relays that begin in a range.
    fn map_relays(&mut self, stopped: &mut inject::Stopped, range: &Range<u64>) -> Result<Range<u64>, Refusal> {
        let no_room = || Refusal::new(Errno::ENOSPC, "no room for a relay");
        self.check_area_count()?;
        let relay = RELAY_BYTES as u64;
        let taken = inject::mappings(inject::Pid(self.pid)).map_err(refusal_of)?;
        let is_free = |pages: &Range<u64>| {
            let is_spared = |mapping: &inject::Mapping| match &mapping.path[..] {
                "[heap]" => mapping.range.end..mapping.range.end + GROWTH_BYTES,
                "[stack]" => mapping.range.start.saturating_sub(GROWTH_BYTES)..mapping.range.start,
                _ => 0..0,
            };
            let meets = |other: &Range<u64>| other.start < pages.end && pages.start < other.end;
            pages.start >= LOWEST
                && pages.end <= HIGHEST
                && !taken.iter().any(|mapping| meets(&mapping.range) || meets(&is_spared(mapping)))
        };
        let mut at = range.start;
        while range.contains(&at) {
            let start = at / PAGE_BYTES * PAGE_BYTES;
            let pages = start..(at.saturating_add(relay)).next_multiple_of(PAGE_BYTES);
            if is_free(&pages) {
                let bytes = pages.end - pages.start;
                let base = inject::map_stub_area_in(stopped, &(start..start + 1), bytes).map_err(refusal_of)?;
                self.note_area(base, bytes);
                let index = self.areas.len() - 1;
                self.areas[index].used = bytes;
                return Ok(pages);
            }
            at = start.checked_add(PAGE_BYTES).ok_or_else(no_room)?;
        }
        Err(no_room())
    }

    /// Where stubs lie.
    pub(super) fn stub_areas(&self) -> impl Iterator<Item = Range<u64>> {
        self.areas.iter().map(|area| area.base..area.base + area.bytes)
    }

    /// Room for a stub within reach of a place: the address, and the index of its area.
    pub(super) fn stub_room(
        &mut self,
        stopped: &mut inject::Stopped,
        address: u64,
        mapping: Range<u64>,
        bytes: u64,
    ) -> Result<(u64, usize), Refusal> {
        let has_room = |area: &Area| area.is_near(address) && area.used + bytes <= area.bytes;
        let index = match self.areas.iter().rposition(has_room) {
            Some(index) => index,
            None => self.add_area(stopped, address, mapping)?,
        };
        let Area { base, used, .. } = self.areas[index];
        Ok((base + used, index))
    }

    /// Room for a stub that begins at one of these addresses: which, and the index of its area.
    pub(super) fn stub_room_in(
        &mut self,
        stopped: &mut inject::Stopped,
        range: Range<u64>,
        bytes: u64,
    ) -> Result<(u64, usize), Refusal> {
        let has_room = |area: &Area| range.contains(&(area.base + area.used)) && area.used + bytes <= area.bytes;
        let index = match self.areas.iter().position(has_room) {
            Some(index) => index,
            None => {
                self.check_area_count()?;
                let base = inject::map_stub_area_in(stopped, &range, PLACED_AREA_BYTES).map_err(refusal_of)?;
                self.note_area(base, PLACED_AREA_BYTES)
            }
        };
        let Area { base, used, .. } = self.areas[index];
        Ok((base + used, index))
    }

    /// Maps a further stub area near a place; its index.
    fn add_area(
        &mut self,
        stopped: &mut inject::Stopped,
        address: u64,
        mapping: Range<u64>,
    ) -> Result<usize, Refusal> {
        self.check_area_count()?;
        let before: u64 = self.areas.iter().filter(|area| area.is_near(address)).map(|area| area.bytes).sum();
        let mut bytes = before.next_power_of_two().clamp(*STUB_AREA_BYTES.start(), *STUB_AREA_BYTES.end());
        let base = loop {
            match inject::map_stub_area(stopped, mapping.clone(), bytes) {
                // A smaller gap will do.
                Err(inject::Error::NoRoom { .. }) if bytes > *STUB_AREA_BYTES.start() => bytes /= 2,
                mapped => break mapped.map_err(refusal_of)?,
            }
        };
        Ok(self.note_area(base, bytes))
    }

    fn check_area_count(&self) -> Result<(), Refusal> {
        if self.areas.len() >= STUB_AREAS_MAX as usize {
            return Err(Refusal::new(Errno::ENOSPC, "too many stub areas in one process"));
        }
        Ok(())
    }

    /// A stub area has been mapped; its index.
    fn note_area(&mut self, base: u64, bytes: u64) -> usize {
        let index = self.areas.len();
        self.control.write(STUB_AREAS_OFFSET + index as u64 * size_of::<StubArea>() as u64, StubArea { base, bytes });
        self.areas.push(Area { base, bytes, used: 0 });
        index
    }

    /// That many bytes of the room are in use now.
    pub(super) fn take_stub_room(&mut self, area: usize, bytes: u64) {
        self.areas[area].used += bytes.next_multiple_of(STUB_ALIGN);
    }
}
