//! Where a target's stubs lie: areas of executable memory near the code that jumps to them.

use std::ops::Range;

use ring3_inject as inject;
use ring3_layout::PAGE_BYTES;
use ring3_layout::control::{STUB_AREAS_MAX, STUB_AREAS_OFFSET, StubArea};
use ring3_patch::RELAY_BYTES;
use ring3_uapi::Errno;

use super::code_memory::{CodeMemory, stopped_in};
use crate::realm::Refusal;
use crate::realm::refusal::refusal_of;
use crate::realm::target::Target;

/// Bytes of a stub area: the first one near some code is the smallest, and each further one as large as those before together, so
/// that few areas have room for any number of stubs.
const STUB_AREA_BYTES: std::ops::RangeInclusive<u64> = 0x1_0000..=0x100_0000;
/// Bytes of the area behind the region, which costs no call of its own. (Libraries are near there, most programs are not.)
pub(in crate::realm) const FIRST_STUB_AREA_BYTES: u64 = *STUB_AREA_BYTES.start();
/// Bytes of an area for stubs that have to lie at certain addresses.
const PLACED_AREA_BYTES: u64 = 0x4000;
/// Where the heap may grow, relays do not lie, bytes. (The kernel puts it up to 1 GiB behind the program. Allocators map
/// memory when it cannot grow on.)
const HEAP_GROWTH_BYTES: u64 = 1 << 26;
/// The same of stacks.
const STACK_GROWTH_BYTES: u64 = 1 << 28;
/// Where memory can be mapped.
const LOWEST: u64 = 0x1_0000;
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// Stubs start at multiples of this.
const STUB_ALIGN: u64 = 16;

/// Memory that holds stubs.
#[derive(Clone, Copy, Debug)]
pub(in crate::realm) struct Area {
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

/// Memory at an address that punned jumps lead to, with relays and stubs.
#[derive(Clone, Debug)]
pub(in crate::realm) struct RelayPage {
    range: Range<u64>,
    taken: Vec<Range<u64>>,
}

impl RelayPage {
    /// Where in a range so many bytes have room.
    fn free_in(&self, range: &Range<u64>, room: u64) -> Option<u64> {
        let last = self.range.end.checked_sub(room)?;
        let mut at = range.start.max(self.range.start);
        while range.contains(&at) && at <= last {
            let bytes = at..at + room;
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
        memory: &mut dyn CodeMemory,
        range: &Range<u64>,
    ) -> Result<u64, Refusal> {
        self.take_room_in(memory, range, RELAY_BYTES as u64)
    }

    /// So many bytes that begin at one of these addresses, and are taken from now on.
    pub(super) fn take_room_in(
        &mut self,
        memory: &mut dyn CodeMemory,
        range: &Range<u64>,
        bytes: u64,
    ) -> Result<u64, Refusal> {
        let mut places = self.relays.iter().enumerate();
        let found = places.find_map(|(page, relays)| Some((page, relays.free_in(range, bytes)?)));
        let (page, at) = match found {
            Some(found) => found,
            None => {
                let pages = self.map_relays(stopped_in(memory)?, range, bytes)?;
                let page = RelayPage { range: pages, taken: vec![] };
                let at =
                    page.free_in(range, bytes).ok_or_else(|| Refusal::new(Errno::ENOSPC, "no room for a relay"))?;
                self.relays.push(page);
                (self.relays.len() - 1, at)
            }
        };
        self.relays[page].taken.push(at..at + bytes);
        Ok(at)
    }

    /// Whether there is memory for so many bytes that begin in a range, and is not taken.
    pub(super) fn has_room_in(&self, range: &Range<u64>, bytes: u64) -> bool {
        self.relays.iter().any(|relays| relays.free_in(range, bytes).is_some())
    }

    /// Maps memory for so many bytes that begin in a range.
    fn map_relays(
        &mut self,
        stopped: &mut inject::Stopped,
        range: &Range<u64>,
        room: u64,
    ) -> Result<Range<u64>, Refusal> {
        /// What was mapped since the process was stopped, by ring3 itself, is not known here.
        const TRIES_MAX: usize = 16;
        let no_room = || Refusal::new(Errno::ENOSPC, "no room for a relay");
        let taken = self.taken_or_spared(stopped)?;
        let (mut at, mut tries) = (range.start, 0);
        while range.contains(&at) && tries < TRIES_MAX {
            let start = at / PAGE_BYTES * PAGE_BYTES;
            let pages = start..at.saturating_add(room).next_multiple_of(PAGE_BYTES);
            if is_free(&taken, &pages) {
                self.check_area_count()?;
                let mapped = inject::map_stub_areas_at(stopped, std::slice::from_ref(&pages)).map_err(refusal_of)?;
                if !mapped.is_empty() {
                    self.note_relay_area(&pages);
                    return Ok(pages);
                }
                tries += 1;
            }
            at = start.checked_add(PAGE_BYTES).ok_or_else(no_room)?;
        }
        Err(no_room())
    }

    /// Maps memory for relays and stubs at these addresses, but for those that are not free.
    pub(super) fn map_relay_pages(
        &mut self,
        stopped: &mut inject::Stopped,
        mut ranges: Vec<Range<u64>>,
    ) -> Result<(), Refusal> {
        if ranges.is_empty() {
            return Ok(());
        }
        let taken = self.taken_or_spared(stopped)?;
        ranges.retain(|pages| is_free(&taken, pages));
        ranges.truncate((STUB_AREAS_MAX as usize).saturating_sub(self.areas.len()));
        for pages in inject::map_stub_areas_at(stopped, &ranges).map_err(refusal_of)? {
            self.note_relay_area(&pages);
            self.relays.push(RelayPage { range: pages, taken: vec![] });
        }
        Ok(())
    }

    /// What is mapped, and where heaps and stacks may grow.
    fn taken_or_spared(&self, stopped: &inject::Stopped) -> Result<Vec<Range<u64>>, Refusal> {
        let mappings = stopped.mappings().map_err(refusal_of)?;
        let taken = mappings.iter().flat_map(|mapping| {
            let Range { start, end } = mapping.range;
            let spared = match &mapping.path[..] {
                "[heap]" => end..end + HEAP_GROWTH_BYTES,
                "[stack]" => start.saturating_sub(STACK_GROWTH_BYTES)..start,
                _ => start..end,
            };
            [start..end, spared]
        });
        Ok(taken.chain(self.stub_areas()).collect())
    }

    /// An area that relays fill has been mapped.
    fn note_relay_area(&mut self, pages: &Range<u64>) {
        let bytes = pages.end - pages.start;
        let index = self.note_area(pages.start, bytes);
        self.areas[index].used = bytes;
    }

    /// Where stubs lie.
    pub(in crate::realm) fn stub_areas(&self) -> impl Iterator<Item = Range<u64>> {
        self.areas.iter().map(|area| area.base..area.base + area.bytes)
    }

    /// Room for a stub within reach of a place: the address, and the index of its area.
    pub(in crate::realm) fn stub_room(
        &mut self,
        memory: &mut dyn CodeMemory,
        address: u64,
        mapping: Range<u64>,
        bytes: u64,
    ) -> Result<(u64, usize), Refusal> {
        let has_room = |area: &Area| area.is_near(address) && area.used + bytes <= area.bytes;
        let index = match self.areas.iter().rposition(has_room) {
            Some(index) => index,
            None => self.add_area(stopped_in(memory)?, address, mapping)?,
        };
        let Area { base, used, .. } = self.areas[index];
        Ok((base + used, index))
    }

    /// Room for a stub that begins at one of these addresses: which, and the index of its area.
    pub(super) fn stub_room_in(
        &mut self,
        memory: &mut dyn CodeMemory,
        range: Range<u64>,
        bytes: u64,
    ) -> Result<(u64, usize), Refusal> {
        let has_room = |area: &Area| range.contains(&(area.base + area.used)) && area.used + bytes <= area.bytes;
        let index = match self.areas.iter().position(has_room) {
            Some(index) => index,
            None => {
                self.check_area_count()?;
                let base =
                    inject::map_stub_area_in(stopped_in(memory)?, &range, PLACED_AREA_BYTES).map_err(refusal_of)?;
                self.note_area(base, PLACED_AREA_BYTES)
            }
        };
        let Area { base, used, .. } = self.areas[index];
        Ok((base + used, index))
    }

    /// Maps memory until there is room for so many bytes of stubs near each of these mappings.
    pub(in crate::realm) fn reserve_stub_room(
        &mut self,
        stopped: &mut inject::Stopped,
        needed: impl Iterator<Item = (Range<u64>, u64)>,
    ) -> Result<(), Refusal> {
        let mut free: Vec<u64> = self.areas.iter().map(|area| area.bytes - area.used).collect();
        for (mapping, mut bytes) in needed {
            while bytes > 0 {
                let is_near = |area: &Area| area.is_near(mapping.start) && area.is_near(mapping.end);
                let found = (0..free.len()).find(|index| free[*index] > 0 && is_near(&self.areas[*index]));
                let index = match found {
                    Some(index) => index,
                    None => {
                        let index = self.add_area(stopped, mapping.start, mapping.clone())?;
                        free.push(self.areas[index].bytes);
                        index
                    }
                };
                let taken = bytes.min(free[index]);
                (bytes, free[index]) = (bytes - taken, free[index] - taken);
            }
        }
        Ok(())
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
        // (What was mapped since the process was stopped is ours.)
        let mappings = stopped.mappings().map_err(refusal_of)?;
        let maps = self.maps.values().map(|(base, bytes)| *base..base + bytes);
        let taken = mappings.iter().map(|mapping| mapping.range.clone()).chain(self.own_ranges()).chain(maps);
        let mut taken: Vec<Range<u64>> = taken.collect();
        taken.sort_by_key(|range| range.start);
        let base = loop {
            match inject::map_stub_area(stopped, &taken, mapping.clone(), bytes) {
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
    pub(in crate::realm) fn note_area(&mut self, base: u64, bytes: u64) -> usize {
        let index = self.areas.len();
        self.control.write(STUB_AREAS_OFFSET + index as u64 * size_of::<StubArea>() as u64, StubArea { base, bytes });
        self.areas.push(Area { base, bytes, used: 0 });
        index
    }

    /// That many bytes of the room are in use now.
    pub(in crate::realm) fn take_stub_room(&mut self, area: usize, bytes: u64) {
        self.areas[area].used += bytes.next_multiple_of(STUB_ALIGN);
    }
}

fn is_free(taken: &[Range<u64>], pages: &Range<u64>) -> bool {
    let meets = |other: &Range<u64>| other.start < pages.end && pages.start < other.end;
    pages.start >= LOWEST && pages.end <= HIGHEST && !taken.iter().any(meets)
}
