//! The maps of a target: their files as they are sent to it, and where it has them.

use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring3_inject as inject;
use ring3_layout::control::ControlHeader;
use ring3_layout::region::{CONTROL_OFFSET, got_offset, view_offset};
use ring3_maps::{Geometry, View};
use ring3_uapi::Errno;

use super::protection::Protection;
use crate::realm::refusal::refusal_of;
use crate::realm::target::{STOP_WITHIN, Target};
use crate::realm::{Isolation, MapFile, MapSlot, Refusal, Shared};

/// What is sent to a target for files that it may only read: descriptors that cannot write, or it could make its mappings writable.
pub(in crate::realm) fn opened_for_targets(
    files: &[(MapSlot, Arc<MapFile>)],
) -> Result<Vec<Option<OwnedFd>>, Refusal> {
    use std::os::fd::AsRawFd;
    let open = |(_, file): &(MapSlot, Arc<MapFile>)| {
        if file.writable {
            return Ok(None);
        }
        let path = format!("/proc/self/fd/{}", file.memfd.as_raw_fd());
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map(Some)
    };
    let opened: Result<Vec<_>, _> = files.iter().map(open).collect();
    opened.map_err(|error| Refusal::new(Errno(error.raw_os_error()), format!("a map for a target: {error}")))
}

/// Maps as they are sent to a target.
pub(in crate::realm) fn sources<'f>(
    files: &'f [(MapSlot, Arc<MapFile>)],
    opened: &'f [Option<OwnedFd>],
    protection: &Protection,
) -> Vec<inject::MapSource<'f>> {
    let source = |((_, file), opened): (&'f (MapSlot, Arc<MapFile>), &'f Option<OwnedFd>)| {
        let fd = opened.as_ref().map_or(file.memfd.as_fd(), |opened| opened.as_fd());
        let key = protection.key().filter(|_| file.isolation != Isolation::None);
        inject::MapSource { file: fd, bytes: file.geometry.file_bytes(), writable: file.writable, key }
    };
    files.iter().zip(opened).map(source).collect()
}

impl Target {
    /// Says where maps will be mapped. Whoever cleans up after this server goes by it ([`recovery`]), even if the server is gone
    /// before they are in use.
    pub(in crate::realm) fn announce_maps(&self, slots: impl Iterator<Item = MapSlot>, addresses: &[u64]) {
        for (slot, address) in slots.zip(addresses) {
            self.control.word32(offset_of!(ControlHeader, maps) as u64).fetch_max(slot.0 + 1, Ordering::SeqCst);
            self.control.word(got_offset(slot.0) - CONTROL_OFFSET + 8).store(*address, Ordering::SeqCst);
        }
    }

    pub(in crate::realm) fn note_map(&mut self, slot: MapSlot, address: u64, geometry: &Geometry) {
        self.maps.insert(slot, (address, geometry.file_bytes()));
        let (got, view) = (got_offset(slot.0) - CONTROL_OFFSET, view_offset(slot.0));
        self.control.write(view - CONTROL_OFFSET, View { base: address, geometry: *geometry });
        self.control.word(got).store(self.region + view, Ordering::SeqCst);
    }

    pub(in crate::realm) fn map_missing(
        &mut self,
        shared: &Shared,
        stopped: &mut inject::Stopped,
        slots: &[MapSlot],
    ) -> Result<(), Refusal> {
        let files = shared.map_files(slots, &self.domain)?;
        if files.is_empty() {
            return Ok(());
        }
        self.protect(stopped, &files)?;
        let opened = opened_for_targets(&files)?;
        let sent = sources(&files, &opened, &self.protection);
        let announce = |addresses: &[u64]| self.announce_maps(files.iter().map(|(slot, _)| *slot), addresses);
        let addresses = inject::map_files(stopped, &sent, announce).map_err(refusal_of)?;
        for ((slot, file), address) in files.iter().zip(addresses) {
            self.note_map(*slot, address, &file.geometry);
        }
        Ok(())
    }

    /// Unmaps maps that no program here uses any more.
    pub(in crate::realm) fn unmap(&mut self, slots: &[MapSlot]) -> Result<(), inject::Error> {
        inject::while_stopped(inject::Pid(self.pid), STOP_WITHIN, |stopped| match self.is_present() {
            true => self.forget_maps(stopped, slots),
            false => Ok(()),
        })?
    }

    /// Unmaps them from the stopped process.
    pub(super) fn forget_maps(
        &mut self,
        stopped: &mut inject::Stopped,
        slots: &[MapSlot],
    ) -> Result<(), inject::Error> {
        for slot in slots {
            let Some((address, bytes)) = self.maps.remove(slot) else { continue };
            let got = got_offset(slot.0) - CONTROL_OFFSET;
            self.control.word(got).store(0, Ordering::SeqCst);
            stopped.unmap(address, bytes)?;
            self.control.word(got + 8).store(0, Ordering::SeqCst);
        }
        Ok(())
    }
}
