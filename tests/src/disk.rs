//! A file system that can be cut off from its disk, as by a loss of power: ext4 on a loop device
//! (`tests/victims/cut_disk.c`). What was not written to the device is gone, and the journal is replayed when it is mounted again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::victim;

/// How long those who used the file system may take to leave it.
const LEFT_WITHIN: Duration = Duration::from_secs(20);

/// The file system; it is left when this is dropped.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// Makes one in a directory that exists, and mounts it.
    ///
    /// # Errors
    /// The command that failed, and what it said: to mount needs root, and a kernel with loop devices and ext4.
    pub fn new(directory: &Path, bytes: u64) -> Result<Disk, String> {
        let disk = Disk { image: directory.join("disk"), mount: directory.join("mounted") };
        let text = |error: std::io::Error| format!("{}: {error}", directory.display());
        std::fs::File::create(&disk.image).and_then(|file| file.set_len(bytes)).map_err(text)?;
        std::fs::create_dir(&disk.mount).map_err(text)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk.image))?;
        disk.mount()?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.mount
    }

    fn mount(&self) -> Result<(), String> {
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.mount))
    }

    fn unmount(&self) -> Result<(), String> {
        let deadline = Instant::now() + LEFT_WITHIN;
        loop {
            match run(Command::new("umount").arg(&self.mount)) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                result => return result,
            }
        }
    }

    /// Cuts it off.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn cut(&self) -> Result<(), String> {
        run(Command::new(victim("cut_disk", "gcc", "cut_disk.c", &[])).arg(&self.mount))
    }

    /// Mounts it as a machine does that has power again, when all that used it have ended.
    ///
    /// # Errors
    /// It is still used, or cannot be mounted.
    pub fn mount_again(&self) -> Result<(), String> {
        self.unmount()?;
        self.mount()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // (What could not be mounted is not mounted.)
        let is_mounted = std::fs::read_to_string("/proc/mounts")
            .is_ok_and(|mounts| mounts.lines().any(|line| line.split(' ').nth(1) == self.mount.to_str()));
        if is_mounted && self.unmount().is_err() {
            let _ = run(Command::new("umount").arg("-l").arg(&self.mount));
        }
    }
}

/// Runs a command; what it says if it fails.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {said}")) }
}
