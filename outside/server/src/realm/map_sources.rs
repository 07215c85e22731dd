//! The files of maps as they are sent to targets.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ring3_inject as inject;
use ring3_uapi::Errno;

use super::{MapFile, MapSlot, Refusal};

/// What is sent to a target for files that it may only read: descriptors that cannot write, or it could make its mappings writable.
pub(super) fn opened_for_targets(files: &[(MapSlot, Arc<MapFile>)]) -> Result<Vec<Option<OwnedFd>>, Refusal> {
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
pub(super) fn sources<'f>(
    files: &'f [(MapSlot, Arc<MapFile>)],
    opened: &'f [Option<OwnedFd>],
) -> Vec<inject::MapSource<'f>> {
    let source = |((_, file), opened): (&'f (MapSlot, Arc<MapFile>), &'f Option<OwnedFd>)| {
        let fd = opened.as_ref().map_or(file.memfd.as_fd(), |opened| opened.as_fd());
        (fd, file.geometry.file_bytes(), file.writable)
    };
    files.iter().zip(opened).map(source).collect()
}
