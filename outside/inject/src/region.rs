//! Mapping ring3's memory into a stopped process, and taking it out again.
//!
//! Files come over a socket pair made inside the process ([`crate::calls`]): no path is opened there, so it works in any mount,
//! user or network namespace, and no descriptor stays.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use ring3_layout::PAGE_BYTES;
use ring3_layout::region::{
    AGENT_OFFSET, CONTROL_BYTES, CONTROL_OFFSET, CONTROL_PATH, PROCESS_BYTES, PROCESS_OFFSET, REALM_BYTES,
    REALM_OFFSET, REGION_ALIGN, REGION_BYTES, RESCUE_BYTES, RESCUE_OFFSET, STATE_BYTES, STATE_OFFSET, TEXT_BYTES,
    TEXT_OFFSET, TRAMPOLINES_OFFSET, UNWIND_BYTES, UNWIND_OFFSET, WITNESS_FILE_BYTES, WITNESS_FILE_OFFSET,
    WITNESS_OFFSET,
};

use crate::Error;
use crate::calls::{Call, RemoteFd, Unfinished, close_calls};
use crate::filters::UNCAUGHT_MAPPING;
use crate::keys::ProtectionKey;
use crate::process::{Pid, mappings};
use crate::stopped::Stopped;

/// How far a `jmp rel32` reaches, with a margin for the mapping's own size.
const REACH: u64 = (1 << 31) - (1 << 24);

/// The files that make up a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionFiles<'a> {
    /// The flat agent image.
    pub agent: BorrowedFd<'a>,
    /// Its bytes, whole pages.
    pub agent_bytes: u64,
    /// The files that are the target's own.
    pub own: OwnFiles<'a>,
    /// The realm block.
    pub realm: BorrowedFd<'a>,
    /// Compiled programs.
    pub text: BorrowedFd<'a>,
    /// Unwind tables.
    pub unwind: BorrowedFd<'a>,
}

/// The files of a region that belong to one target, and to its forks until they are given their own.
#[derive(Clone, Copy, Debug)]
pub struct OwnFiles<'a> {
    /// The control page.
    pub control: BorrowedFd<'a>,
    /// The witness file, writable.
    pub witness: BorrowedFd<'a>,
}

/// A map to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct MapSource<'a> {
    /// Its file.
    pub file: BorrowedFd<'a>,
    /// How much of it.
    pub bytes: u64,
    /// Whether the process may write it.
    pub writable: bool,
    /// The protection key that the mapping gets.
    pub key: Option<ProtectionKey>,
}

/// Where things were mapped.
#[derive(Clone, Debug)]
pub struct Region {
    /// Base of the region.
    pub base: u64,
    /// Addresses of the maps, in order.
    pub maps: Vec<u64>,
    /// Executable memory behind them, filled by [`Stopped::write`]: for stubs of code that is near.
    pub stubs: Range<u64>,
}

const NOTHING: i32 = libc::PROT_NONE;
const READ: i32 = libc::PROT_READ;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const READ_EXEC: i32 = libc::PROT_READ | libc::PROT_EXEC;
const SHARED_FIXED: i32 = libc::MAP_SHARED | libc::MAP_FIXED | UNCAUGHT_MAPPING;
const PRIVATE_ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
/// Of private memory that is written: what may grow down is no data for `RLIMIT_DATA` (mm/mmap.c:may_expand_vm), of which programs have all
/// that they may. (A mapping that replaces another is let past the limit: the program's next one fails.) It does not grow: the region has no
/// gap below it.
const NO_DATA: i32 = PRIVATE_ANONYMOUS | libc::MAP_GROWSDOWN | libc::MAP_FIXED;

impl Stopped {
    /// `munmap` inside the process.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), Error> {
        self.move_rescue_frame_out_of(&(address..address + bytes))?;
        self.make(Call::munmap(address, bytes)).map(drop)
    }
}

/// Maps the region, `maps`, and `stub_bytes` of memory for stubs into the process. On failure nothing stays mapped. `announce` is
/// told what will be where, before anything but the reservation is there: whoever finds the control page, which comes first, finds
/// all the rest by it.
pub fn map_region(
    stopped: &mut Stopped,
    files: &RegionFiles<'_>,
    maps: &[MapSource<'_>],
    stub_bytes: u64,
    announce: impl FnOnce(&Region),
) -> Result<Region, Error> {
    let mut sent = vec![files.agent, files.own.control, files.own.witness, files.realm, files.text, files.unwind];
    sent.extend(maps.iter().map(|map| map.file));
    let maps_bytes = REGION_BYTES + bytes_of(maps);
    let bytes = maps_bytes + stub_bytes;
    // Few messages: to each the thread has to wake up, and we to its answer.
    let (remote, raw) = stopped.send_files_and_call(&sent, Some(reserve(bytes + REGION_ALIGN)))?;
    let base = raw.next_multiple_of(REGION_ALIGN);
    let stubs = base + maps_bytes..base + bytes;
    let region = Region { base, maps: addresses(base + REGION_BYTES, maps), stubs: stubs.clone() };
    announce(&region);
    let (head, tail) = (base - raw, raw + REGION_ALIGN - base);
    let rest = [(raw, head), (base + bytes, tail)].into_iter().filter(|(_, bytes)| *bytes > 0);
    let mut calls: Vec<Call> = rest.map(|(address, bytes)| Call::munmap(address, bytes)).collect();
    calls.extend(region_calls(base, files, &remote));
    calls.extend(map_calls(&remote[6..], maps, &region.maps));
    if stub_bytes > 0 {
        calls.push(Call::mmap(stubs.start, stub_bytes, READ_EXEC, PRIVATE_ANONYMOUS | libc::MAP_FIXED, None));
    }
    calls.extend(close_calls(&remote));
    let mapped = stopped.syscalls(&calls).map(drop).map_err(|unfinished| unfinished.error);
    if mapped.is_err() {
        stopped.close_files(&remote);
    }
    match mapped.and_then(|()| renew_witness(stopped, base)) {
        Ok(()) => Ok(region),
        Err(error) => {
            let _ = stopped.unmap(base, bytes);
            Err(error)
        }
    }
}

/// Gives the process a witness page that no other process has.
fn renew_witness(stopped: &mut Stopped, base: u64) -> Result<(), Error> {
    const WORD: u64 = u64::from_le_bytes(*b"ring3wit");
    stopped.write(base + WITNESS_OFFSET, &WORD.to_le_bytes())
}

/// The place for a rescue frame in the region that is mapped in a process, if there is one.
pub(crate) fn rescue_place(mappings: &[crate::process::Mapping]) -> Option<Range<u64>> {
    let control = mappings.iter().find(|mapping| mapping.path.starts_with(CONTROL_PATH))?;
    let start = control.range.start.checked_sub(CONTROL_OFFSET)? + RESCUE_OFFSET;
    let place = start..start + RESCUE_BYTES;
    let holds =
        |mapping: &&crate::process::Mapping| mapping.range.start <= place.start && place.end <= mapping.range.end;
    let is_private_code = |mapping: &crate::process::Mapping| mapping.inode == 0 && mapping.is_executable();
    mappings.iter().find(holds).filter(|mapping| is_private_code(mapping)).map(|_| place)
}

/// Takes addresses that nothing is mapped at yet.
fn reserve(bytes: u64) -> Call {
    Call::mmap(0, bytes, NOTHING, PRIVATE_ANONYMOUS, None)
}

fn bytes_of(maps: &[MapSource<'_>]) -> u64 {
    maps.iter().map(|map| map.bytes.next_multiple_of(PAGE_BYTES)).sum()
}

/// The addresses of maps, one behind the other from `start`.
fn addresses(start: u64, maps: &[MapSource<'_>]) -> Vec<u64> {
    (0..maps.len()).map(|index| start + bytes_of(&maps[..index])).collect()
}

/// What fills a region.
fn region_calls(base: u64, files: &RegionFiles<'_>, remote: &[RemoteFd]) -> Vec<Call> {
    let private = PRIVATE_ANONYMOUS | libc::MAP_FIXED;
    let [map_control, leave_control_out, map_witness] = own_calls(base, remote[1], remote[2]);
    vec![
        map_control,
        leave_control_out,
        map_witness,
        Call::mmap(base + AGENT_OFFSET, files.agent_bytes, READ_EXEC, SHARED_FIXED, Some(remote[0])),
        Call::mmap(base + REALM_OFFSET, REALM_BYTES, READ_WRITE, SHARED_FIXED, Some(remote[3])),
        Call::mmap(base + TEXT_OFFSET, TEXT_BYTES, READ_EXEC, SHARED_FIXED, Some(remote[4])),
        Call::mmap(base + UNWIND_OFFSET, UNWIND_BYTES, READ, SHARED_FIXED, Some(remote[5])),
        Call::mmap(base + TRAMPOLINES_OFFSET, WITNESS_FILE_OFFSET - TRAMPOLINES_OFFSET, READ_EXEC, private, None),
        Call::mmap(base + PROCESS_OFFSET, PROCESS_BYTES, READ_WRITE, NO_DATA, None),
        Call::mmap(base + STATE_OFFSET, STATE_BYTES, READ_WRITE, NO_DATA, None),
        Call::madvise(base + PROCESS_OFFSET, PROCESS_BYTES, libc::MADV_WIPEONFORK),
    ]
}

/// What maps the target's own files. A core dump would have all of the control page, and take memory for what nobody uses.
fn own_calls(base: u64, control: RemoteFd, witness: RemoteFd) -> [Call; 3] {
    [
        Call::mmap(base + CONTROL_OFFSET, CONTROL_BYTES, READ, SHARED_FIXED, Some(control)),
        Call::madvise(base + CONTROL_OFFSET, CONTROL_BYTES, libc::MADV_DONTDUMP),
        Call::mmap(base + WITNESS_FILE_OFFSET, WITNESS_FILE_BYTES, NOTHING, SHARED_FIXED, Some(witness)),
    ]
}

fn map_calls(remote: &[RemoteFd], maps: &[MapSource<'_>], addresses: &[u64]) -> Vec<Call> {
    let calls = |((fd, map), address): ((&RemoteFd, &MapSource<'_>), &u64)| {
        let access = if map.writable { READ_WRITE } else { READ };
        let mmap = |access| Call::mmap(*address, map.bytes, access, SHARED_FIXED, Some(*fd));
        match map.key {
            None => vec![mmap(access)],
            // (Nobody reads it before it has the key.)
            Some(key) => vec![mmap(NOTHING), Call::pkey_mprotect(*address, map.bytes, access, key)],
        }
    };
    remote.iter().zip(maps).zip(addresses).flat_map(calls).collect()
}

/// Maps further maps; all or none. `announce` is told their addresses before they are there.
pub fn map_files(
    stopped: &mut Stopped,
    maps: &[MapSource<'_>],
    announce: impl FnOnce(&[u64]),
) -> Result<Vec<u64>, Error> {
    let files: Vec<BorrowedFd<'_>> = maps.iter().map(|map| map.file).collect();
    let remote = stopped.send_files(&files)?;
    let result = map_reserved(stopped, &remote, maps, announce);
    stopped.close_files(&remote);
    result
}

fn map_reserved(
    stopped: &mut Stopped,
    remote: &[RemoteFd],
    maps: &[MapSource<'_>],
    announce: impl FnOnce(&[u64]),
) -> Result<Vec<u64>, Error> {
    let start = stopped.make(reserve(bytes_of(maps)))?;
    let addresses = addresses(start, maps);
    announce(&addresses);
    match stopped.syscalls(&map_calls(remote, maps, &addresses)) {
        Ok(_) => Ok(addresses),
        Err(Unfinished { error, .. }) => {
            let _ = stopped.unmap(start, bytes_of(maps));
            Err(error)
        }
    }
}

/// Maps other files in place of what is mapped at these addresses.
pub fn replace_files(stopped: &mut Stopped, files: &[(u64, MapSource<'_>)]) -> Result<(), Error> {
    let sent: Vec<BorrowedFd<'_>> = files.iter().map(|(_, map)| map.file).collect();
    let remote = stopped.send_files(&sent)?;
    let (addresses, maps): (Vec<u64>, Vec<MapSource<'_>>) = files.iter().copied().unzip();
    let calls = map_calls(&remote, &maps, &addresses);
    let result = stopped.syscalls(&calls);
    stopped.close_files(&remote);
    result.map(drop).map_err(|unfinished| unfinished.error)
}

/// Gives a fork its own files in place of its parent's.
pub fn replace_own(stopped: &mut Stopped, base: u64, own: OwnFiles<'_>) -> Result<(), Error> {
    let remote = stopped.send_files(&[own.control, own.witness])?;
    let result = stopped.syscalls(&own_calls(base, remote[0], remote[1]));
    stopped.close_files(&remote);
    result.map_err(|unfinished| unfinished.error)?;
    renew_witness(stopped, base)
}

/// Unmaps a region.
pub fn unmap_region(stopped: &mut Stopped, base: u64) -> Result<(), Error> {
    stopped.unmap(base, REGION_BYTES)
}

/// Maps `bytes` of executable memory within reach of a `jmp rel32` from all of `near`, filled by [`Stopped::write`], off all that is
/// `taken`, in order. (What is missing there costs a call that fails.)
pub fn map_stub_area(
    stopped: &mut Stopped,
    taken: &[Range<u64>],
    near: Range<u64>,
    bytes: u64,
) -> Result<u64, Error> {
    let flags = PRIVATE_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    for address in room_near(taken, &near, bytes) {
        match stopped.make(Call::mmap(address, bytes, READ_EXEC, flags, None)) {
            Ok(at) if at == address => return Ok(address),
            Ok(elsewhere) => stopped.unmap(elsewhere, bytes)?,
            Err(Error::RemoteCall { errno: libc::EEXIST | libc::EPERM | libc::ENOMEM, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::NoRoom { what: format!("stubs within 2 GiB of {:#x}", near.start) })
}

/// Maps `bytes` of executable memory that begin in a range, filled by [`Stopped::write`].
pub fn map_stub_area_in(stopped: &mut Stopped, range: &Range<u64>, bytes: u64) -> Result<u64, Error> {
    let taken: Vec<Range<u64>> = mappings(Pid(stopped.pid()))?.into_iter().map(|mapping| mapping.range).collect();
    let no_room = || Error::NoRoom { what: format!("stubs that begin in {range:#x?}") };
    let address = room_in(&taken, range, bytes).ok_or_else(no_room)?;
    let flags = PRIVATE_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let at = stopped.make(Call::mmap(address, bytes, READ_EXEC, flags, None))?;
    if at == address {
        return Ok(address);
    }
    stopped.unmap(at, bytes)?;
    Err(no_room())
}

/// Maps executable memory at each of these ranges, filled by [`Stopped::write`]. Those that are taken are left out of the result.
pub fn map_stub_areas_at(stopped: &mut Stopped, ranges: &[Range<u64>]) -> Result<Vec<Range<u64>>, Error> {
    let flags = PRIVATE_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let call = |range: &Range<u64>| Call::mmap(range.start, range.end - range.start, READ_EXEC, flags, None);
    let mut mapped = vec![];
    let mut rest = ranges;
    while !rest.is_empty() {
        let calls: Vec<Call> = rest.iter().map(call).collect();
        let (done, error) = match stopped.syscalls(&calls) {
            Ok(done) => (done, None),
            Err(Unfinished { done, error }) => (done, Some(error)),
        };
        for (at, range) in done.iter().zip(rest) {
            if *at == range.start {
                mapped.push(range.clone());
            } else {
                stopped.unmap(*at, range.end - range.start)?;
            }
        }
        rest = &rest[done.len()..];
        match error {
            None => break,
            Some(Error::RemoteCall { errno: libc::EEXIST | libc::EPERM | libc::ENOMEM, .. }) => rest = &rest[1..],
            Some(error) => return Err(error),
        }
    }
    Ok(mapped)
}

/// The first free address in a range for `bytes`.
fn room_in(taken: &[Range<u64>], range: &Range<u64>, bytes: u64) -> Option<u64> {
    const LOWEST: u64 = 0x1_0000;
    const HIGHEST: u64 = 0x7fff_ffff_f000;
    let mut at = range.start.max(LOWEST).checked_next_multiple_of(PAGE_BYTES)?;
    for other in taken.iter().filter(|other| other.start < HIGHEST) {
        if other.start < at.checked_add(bytes)? && at < other.end {
            at = other.end;
        }
    }
    (range.contains(&at) && at + bytes <= HIGHEST).then_some(at)
}

/// Free addresses for `bytes` near a mapping, nearest first. The heap's and the stack's room to grow is spared
/// by keeping a distance above and below what is mapped where that is possible.
fn room_near(taken: &[Range<u64>], near: &Range<u64>, bytes: u64) -> Vec<u64> {
    const LOWEST: u64 = 0x1_0000;
    const HIGHEST: u64 = 0x7fff_ffff_f000;
    let low = near.end.saturating_sub(REACH).max(LOWEST);
    let high = near.start.saturating_add(REACH).min(HIGHEST);
    let mut gaps = vec![];
    let mut end = LOWEST;
    for range in taken.iter().filter(|range| range.start < HIGHEST) {
        gaps.push(end..range.start);
        end = end.max(range.end);
    }
    gaps.push(end..HIGHEST);
    let mut candidates = vec![];
    for gap in gaps {
        let start = gap.start.max(low).next_multiple_of(REGION_ALIGN);
        let last = gap.end.min(high).saturating_sub(bytes) / REGION_ALIGN * REGION_ALIGN;
        if start <= last && gap.start < gap.end {
            // Just below what follows is best: heaps grow up from what precedes.
            candidates.push(last);
            candidates.push(start);
        }
    }
    candidates.sort_by_key(|address| address.abs_diff(near.start));
    candidates.dedup();
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_stubs_is_found_in_reach_and_off_everything_mapped() {
        let taken = [0x5555_0000_0000..0x5555_0010_0000, 0x7fff_0000_0000..0x7fff_0100_0000];
        let found = room_near(&taken, &taken[1], 0x1_0000);
        assert!(!found.is_empty());
        for address in found {
            assert!(address.abs_diff(taken[1].start) < REACH);
            assert!(taken.iter().all(|range| address + 0x1_0000 <= range.start || address >= range.end));
        }
    }

    #[test]
    fn a_full_neighbourhood_has_no_room() {
        let everything = std::slice::from_ref(&(0..u64::MAX / 2));
        assert!(room_near(everything, &(0x1000_0000..0x1000_1000), 0x1_0000).is_empty());
    }
}
