//! Opening files whose paths others name, targets for instance: they may put at a path whatever they like.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file to read it. Nothing else is opened: that could wait for ever (a FIFO) or have effects (a device). Nor does this
/// wait for somebody who has a lease of the file (fcntl(2), `F_SETLEASE`).
///
/// # Errors
/// Those of open(2); `EINVAL` for what is no regular file; `EWOULDBLOCK` for a file with a lease.
pub(in crate::realm) fn open(path: &Path) -> io::Result<File> {
    let seen = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    if !seen.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let path = format!("/proc/self/fd/{}", seen.as_raw_fd());
    Ok(File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let directory = std::env::temp_dir().join(format!("ring3-regular-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("made");
        let [file, fifo, link] = ["file", "fifo", "link"].map(|name| directory.join(name));
        std::fs::write(&file, "text").expect("written");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).expect("made");
        std::os::unix::fs::symlink(&fifo, &link).expect("made");
        let errno = |path: &Path| open(path).err().and_then(|error| error.raw_os_error());
        let fails = [&fifo, &link, &directory].map(|path| errno(path));
        assert_eq!((errno(&file), fails), (None, [Some(libc::EINVAL); 3]));
        assert_eq!(errno(&directory.join("missing")), Some(libc::ENOENT));
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
