//! Mapping ring3's memory into a stopped process, and taking it out again.
//!
//! Files come over a socket pair made inside the process, one end of which we take with `pidfd_getfd`: no
//! path is opened there, so it works in any mount, user or network namespace, and no descriptor stays.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use ring3_layout::PAGE_BYTES;
use ring3_layout::region::{
    AGENT_OFFSET, CONTROL_BYTES, CONTROL_OFFSET, GATES_BYTES, GATES_OFFSET, PROCESS_BYTES, PROCESS_OFFSET,
    REALM_BYTES, REALM_OFFSET, REGION_ALIGN, REGION_BYTES, STATE_BYTES, STATE_OFFSET, TEXT_BYTES, TEXT_OFFSET,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::Error;
use crate::process::{Pid, mappings};
use crate::raw_ptrace::get_fd;
use crate::stopped::Stopped;

/// File descriptors per message (the kernel's `SCM_MAX_FD` is 253).
const FDS_PER_MESSAGE: usize = 128;
/// How far a `jmp rel32` reaches, with a margin for the mapping's own size.
const REACH: u64 = (1 << 31) - (1 << 24);

/// A file descriptor inside the target; closed by [`Stopped::close_files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFd(pub i32);

/// The files that make up a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionFiles<'a> {
    /// The flat agent image.
    pub agent: BorrowedFd<'a>,
    /// Its bytes, whole pages.
    pub agent_bytes: u64,
    /// The target's control block.
    pub control: BorrowedFd<'a>,
    /// The realm block.
    pub realm: BorrowedFd<'a>,
    /// Compiled programs.
    pub text: BorrowedFd<'a>,
}

/// A map to be mapped: file, bytes, writable.
pub type MapSource<'a> = (BorrowedFd<'a>, u64, bool);

/// Where things were mapped.
#[derive(Clone, Debug)]
pub struct Region {
    /// Base of the region.
    pub base: u64,
    /// Addresses of the maps, in order.
    pub maps: Vec<u64>,
}

const PROT_NONE: u64 = libc::PROT_NONE as u64;
const READ: u64 = libc::PROT_READ as u64;
const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const READ_EXEC: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
const PRIVATE_ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl Stopped {
    /// `mmap` inside the process.
    pub fn map(
        &mut self,
        address: u64,
        bytes: u64,
        protection: u64,
        flags: i32,
        file: Option<(RemoteFd, u64)>,
    ) -> Result<u64, Error> {
        let (fd, offset) = file.map_or((u64::MAX, 0), |(RemoteFd(fd), offset)| (fd as u64, offset));
        self.syscall("mmap", libc::SYS_mmap, [address, bytes, protection, flags as u64, fd, offset])
    }

    /// `munmap` inside the process.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), Error> {
        self.syscall("munmap", libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]).map(drop)
    }

    /// Gives the process duplicates of files of ours. [`Stopped::close_files`] closes them.
    pub fn send_files(&mut self, files: &[BorrowedFd<'_>]) -> Result<Vec<RemoteFd>, Error> {
        let flags = PRIVATE_ANONYMOUS;
        let scratch = self.map(0, PAGE_BYTES, READ_WRITE, flags, None)?;
        let result = self.send_files_through(scratch, files);
        let unmapped = self.unmap(scratch, PAGE_BYTES);
        let received = result?;
        if let Err(error) = unmapped {
            self.close_files(&received);
            return Err(error);
        }
        Ok(received)
    }

    fn send_files_through(&mut self, scratch: u64, files: &[BorrowedFd<'_>]) -> Result<Vec<RemoteFd>, Error> {
        let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
        let unix = libc::AF_UNIX as u64;
        self.syscall("socketpair", libc::SYS_socketpair, [unix, kind, 0, scratch, 0, 0])?;
        let mut pair = [0u8; 8];
        self.read(scratch, &mut pair)?;
        let ends = [0, 4].map(|at| RemoteFd(i32::from_le_bytes(pair[at..at + 4].try_into().expect("4 bytes"))));
        let mut received = vec![];
        let result = self.pass(scratch, ends, files, &mut received);
        self.close_files(&ends);
        if let Err(error) = result {
            self.close_files(&received);
            return Err(error);
        }
        Ok(received)
    }

    fn pass(
        &mut self,
        scratch: u64,
        ends: [RemoteFd; 2],
        files: &[BorrowedFd<'_>],
        received: &mut Vec<RemoteFd>,
    ) -> Result<(), Error> {
        let pid =
            rustix::process::Pid::from_raw(self.pid() as i32).ok_or(Error::NoSuchProcess { pid: self.pid() })?;
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
            .map_err(|error| Error::io("pidfd_open", error.into()))?;
        let socket = get_fd(pidfd.as_fd(), ends[0].0).map_err(|error| Error::io("pidfd_getfd", error))?;
        for chunk in files.chunks(FDS_PER_MESSAGE) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(chunk));
            rustix::net::sendmsg(&socket, &[IoSlice::new(b"f")], &mut control, SendFlags::DONTWAIT)
                .map_err(|error| Error::io("sendmsg", error.into()))?;
            self.receive(scratch, ends[1], chunk.len(), received)?;
        }
        Ok(())
    }

    /// Remote `recvmsg`: message header at the scratch page's start, one data byte, then the control buffer.
    fn receive(
        &mut self,
        scratch: u64,
        socket: RemoteFd,
        count: usize,
        received: &mut Vec<RemoteFd>,
    ) -> Result<(), Error> {
        const IOVEC_AT: u64 = 64;
        const DATA_AT: u64 = 96;
        const CONTROL_AT: u64 = 128;
        const CMSG_HEADER_BYTES: usize = 16;
        let control_bytes = CMSG_HEADER_BYTES + count * 4;
        let words: [u64; 7] = [0, 0, scratch + IOVEC_AT, 1, scratch + CONTROL_AT, control_bytes as u64 + 8, 0];
        let header: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let iovec: Vec<u8> = [scratch + DATA_AT, 1].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        self.write(scratch, &header)?;
        self.write(scratch + IOVEC_AT, &iovec)?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        self.syscall("recvmsg", libc::SYS_recvmsg, [socket.0 as u64, scratch, flags, 0, 0, 0])?;
        let mut control = vec![0u8; control_bytes];
        self.read(scratch + CONTROL_AT, &mut control)?;
        let length = u64::from_le_bytes(control[..8].try_into().expect("8 bytes")) as usize;
        let arrived = length.saturating_sub(CMSG_HEADER_BYTES) / 4;
        received.extend(
            control[CMSG_HEADER_BYTES..]
                .chunks_exact(4)
                .take(arrived)
                .map(|fd| RemoteFd(i32::from_le_bytes(fd.try_into().expect("4 bytes")))),
        );
        if arrived < count {
            return Err(Error::RemoteCall { name: "recvmsg", errno: libc::EMFILE });
        }
        Ok(())
    }

    /// Closes descriptors inside the process.
    pub fn close_files(&mut self, files: &[RemoteFd]) {
        for RemoteFd(fd) in files {
            if let Err(error) = self.syscall("close", libc::SYS_close, [*fd as u64, 0, 0, 0, 0, 0]) {
                tracing::warn!(pid = self.pid(), fd, "descriptor left open: {error}");
            }
        }
    }
}

/// Maps the region and `maps` into the process. On failure nothing stays mapped. `announce` is told the base before
/// anything but the reservation is there: the control block, which comes first, can say then whose region it is.
pub fn map_region(
    stopped: &mut Stopped,
    files: &RegionFiles<'_>,
    maps: &[MapSource<'_>],
    announce: impl FnOnce(u64),
) -> Result<Region, Error> {
    let mut sent = vec![files.agent, files.control, files.realm, files.text];
    sent.extend(maps.iter().map(|(file, _, _)| *file));
    let remote = stopped.send_files(&sent)?;
    let result = map_received(stopped, files, &remote, maps, announce);
    stopped.close_files(&remote);
    result
}

fn map_received(
    stopped: &mut Stopped,
    files: &RegionFiles<'_>,
    remote: &[RemoteFd],
    maps: &[MapSource<'_>],
    announce: impl FnOnce(u64),
) -> Result<Region, Error> {
    let raw = stopped.map(0, REGION_BYTES + REGION_ALIGN, PROT_NONE, PRIVATE_ANONYMOUS, None)?;
    let base = raw.next_multiple_of(REGION_ALIGN);
    if base > raw {
        stopped.unmap(raw, base - raw)?;
    }
    let tail = raw + REGION_ALIGN - base;
    if tail > 0 {
        stopped.unmap(base + REGION_BYTES, tail)?;
    }
    announce(base);
    let filled = fill_region(stopped, base, files, remote).and_then(|()| map_sources(stopped, &remote[4..], maps));
    match filled {
        Ok(maps) => Ok(Region { base, maps }),
        Err(error) => {
            let _ = stopped.unmap(base, REGION_BYTES);
            Err(error)
        }
    }
}

fn fill_region(stopped: &mut Stopped, base: u64, files: &RegionFiles<'_>, remote: &[RemoteFd]) -> Result<(), Error> {
    let fixed = libc::MAP_FIXED;
    let shared = libc::MAP_SHARED | fixed;
    let mut put = |offset: u64, bytes: u64, protection: u64, flags: i32, file: Option<RemoteFd>| {
        stopped.map(base + offset, bytes, protection, flags, file.map(|fd| (fd, 0))).map(drop)
    };
    put(CONTROL_OFFSET, CONTROL_BYTES, READ, shared, Some(remote[1]))?;
    put(AGENT_OFFSET, files.agent_bytes, READ_EXEC, shared, Some(remote[0]))?;
    put(REALM_OFFSET, REALM_BYTES, READ_WRITE, shared, Some(remote[2]))?;
    put(TEXT_OFFSET, TEXT_BYTES, READ_EXEC, shared, Some(remote[3]))?;
    put(GATES_OFFSET, GATES_BYTES, READ_EXEC, PRIVATE_ANONYMOUS | fixed, None)?;
    put(PROCESS_OFFSET, PROCESS_BYTES, READ_WRITE, PRIVATE_ANONYMOUS | fixed, None)?;
    put(STATE_OFFSET, STATE_BYTES, READ_WRITE, PRIVATE_ANONYMOUS | fixed, None)?;
    let wipe = libc::MADV_WIPEONFORK as u64;
    stopped.syscall("madvise", libc::SYS_madvise, [base + PROCESS_OFFSET, PROCESS_BYTES, wipe, 0, 0, 0]).map(drop)
}

fn map_sources(stopped: &mut Stopped, remote: &[RemoteFd], maps: &[MapSource<'_>]) -> Result<Vec<u64>, Error> {
    let mut addresses: Vec<u64> = vec![];
    for (fd, (_, bytes, writable)) in remote.iter().zip(maps) {
        let protection = if *writable { READ_WRITE } else { READ };
        match stopped.map(0, *bytes, protection, libc::MAP_SHARED, Some((*fd, 0))) {
            Ok(address) => addresses.push(address),
            Err(error) => {
                for (address, (_, bytes, _)) in addresses.iter().zip(maps) {
                    let _ = stopped.unmap(*address, *bytes);
                }
                return Err(error);
            }
        }
    }
    Ok(addresses)
}

/// Maps further maps; all or none.
pub fn map_files(stopped: &mut Stopped, maps: &[MapSource<'_>]) -> Result<Vec<u64>, Error> {
    let files: Vec<BorrowedFd<'_>> = maps.iter().map(|(file, _, _)| *file).collect();
    let remote = stopped.send_files(&files)?;
    let result = map_sources(stopped, &remote, maps);
    stopped.close_files(&remote);
    result
}

/// Gives a fork its own control block in place of its parent's.
pub fn replace_control(stopped: &mut Stopped, base: u64, control: BorrowedFd<'_>) -> Result<(), Error> {
    let remote = stopped.send_files(&[control])?;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    let result = stopped.map(base + CONTROL_OFFSET, CONTROL_BYTES, READ, flags, Some((remote[0], 0)));
    stopped.close_files(&remote);
    result.map(drop)
}

/// Unmaps a region.
pub fn unmap_region(stopped: &mut Stopped, base: u64) -> Result<(), Error> {
    stopped.unmap(base, REGION_BYTES)
}

/// Maps `bytes` of executable memory within reach of a `jmp rel32` from all of `near`, filled by [`Stopped::write`].
pub fn map_stub_area(stopped: &mut Stopped, near: Range<u64>, bytes: u64) -> Result<u64, Error> {
    let taken: Vec<Range<u64>> = mappings(Pid(stopped.pid()))?.into_iter().map(|mapping| mapping.range).collect();
    let flags = PRIVATE_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    for address in room_near(&taken, &near, bytes) {
        match stopped.map(address, bytes, READ_EXEC, flags, None) {
            Ok(at) if at == address => return Ok(address),
            Ok(elsewhere) => stopped.unmap(elsewhere, bytes)?,
            Err(Error::RemoteCall { errno: libc::EEXIST | libc::EPERM | libc::ENOMEM, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::NoRoom { what: format!("stubs within 2 GiB of {:#x}", near.start) })
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
        end = range.end;
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
