//! The file in a layer that a file of an overlay is, by the options with which the overlay was mounted.
//!
//! For overlays of whose files the kernel gives no handle (`raw_id.rs`): those that were mounted in a user namespace, and all before
//! Linux 6.6. The options are what somebody has said, and name directories as who mounted it saw them. So what they lead to is the file
//! only if it has the same number, and was last changed at the same time.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A mount of a process: a line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
struct Mount<'a> {
    dev: u64,
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// `None` also for one whose names have characters that are written otherwise there.
    fn of(line: &'a str) -> Option<Mount<'a>> {
        let (mount, what) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(2);
        let (major, minor) = words.next()?.split_once(':')?;
        let dev = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let (root, point) = (words.next()?, words.next()?);
        let mut what = what.split(' ');
        let (kind, options) = (what.next()?, what.nth(1)?);
        (!line.contains('\\')).then_some(Mount { dev, root, point, kind, options })
    }

    /// Where a file of the process is in the mounted file system, without `/` at the beginning.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(self.point).ok()?;
        Some(Path::new(self.root.trim_start_matches('/')).join(below))
    }

    /// The layers, the uppermost first.
    fn layers(&self) -> impl Iterator<Item = &'a Path> {
        let value = |name: &'static str| self.options.split(',').filter_map(move |option| option.strip_prefix(name));
        let lower = value("lowerdir=").flat_map(|all| all.split(':')).chain(value("lowerdir+="));
        value("upperdir=").chain(lower).map(Path::new)
    }
}

/// The process by whose mounts a path is to be understood, and the path there.
fn whose(path: &Path) -> (String, PathBuf) {
    let of_other = || {
        let mut parts = path.strip_prefix("/proc").ok()?.components();
        let process = parts.next()?.as_os_str().to_str()?.parse::<u32>().ok()?;
        (parts.next()?.as_os_str() == "root").then(|| (process.to_string(), Path::new("/").join(parts.as_path())))
    };
    of_other().unwrap_or_else(|| ("self".into(), path.to_owned()))
}

/// The file in a layer; `None`: it is not in an overlay, or not found.
pub(super) fn file_in_layer(path: &Path, meta: &Metadata) -> Option<PathBuf> {
    let (process, path) = whose(path);
    let mounts = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).ok()?;
    let is_it = |mount: &Mount<'_>| mount.kind == "overlay" && mount.dev == meta.dev();
    let mounts = mounts.lines().filter_map(Mount::of).filter(is_it);
    let times = |meta: &Metadata| (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
    let is_same = |layers: &PathBuf| {
        layers.symlink_metadata().is_ok_and(|found| {
            found.is_file() && (found.ino(), found.len(), times(&found)) == (meta.ino(), meta.len(), times(meta))
        })
    };
    let mut found = mounts.filter_map(|mount| {
        let inside = mount.inside(&path)?;
        mount.layers().filter(|layer| layer.is_absolute()).map(|layer| layer.join(&inside)).find(is_same)
    });
    found.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_tell_their_layers() {
        let line =
            "91 67 0:41 /a /mnt rw,relatime shared:1 - overlay overlay rw,lowerdir=/l/1:/l/2,upperdir=/u,workdir=/w";
        let mount = Mount::of(line).expect("a mount");
        assert_eq!((mount.dev, mount.kind), (rustix::fs::makedev(0, 41), "overlay"));
        assert_eq!(mount.inside(Path::new("/mnt/b/c")), Some("a/b/c".into()));
        assert_eq!(mount.inside(Path::new("/other")), None);
        assert_eq!(mount.layers().collect::<Vec<_>>(), ["/u", "/l/1", "/l/2"].map(Path::new));
        let added = "91 67 0:41 / / rw - overlay overlay rw,lowerdir+=/l/1,lowerdir+=/l/2";
        assert_eq!(Mount::of(added).expect("a mount").layers().count(), 2);
        assert!(Mount::of("91 67 0:41 / /a\\040b rw - overlay overlay rw").is_none());
    }

    #[test]
    fn a_process_in_a_path_says_whose_mounts_count() {
        assert_eq!(whose(Path::new("/proc/7/root/bin/a")), ("7".into(), "/bin/a".into()));
        assert_eq!(whose(Path::new("/bin/a")), ("self".into(), "/bin/a".into()));
    }
}
