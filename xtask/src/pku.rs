//! `cargo xtask pku`: the tests of extensions on a CPU with protection keys, which QEMU emulates (`-cpu max`).
//!
//! The guest runs a kernel of Debian's and sees the files of this machine, which it cannot change. Wants Debian's packages
//! qemu-system-x86 and busybox-static, and a kernel package: one that is installed, or else `apt-get download` fetches it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{build_ring3, built_test, cargo_messages, llvm_features, root, run};

/// What the guest needs to see this machine's files.
const MODULES: [&str; 11] = [
    "virtio",
    "virtio_ring",
    "virtio_pci",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "9pnet",
    "9pnet_virtio",
    "netfs",
    "fscache",
    "9p",
    "overlay",
];
/// Tests that count on the speed of a real CPU.
const SKIPPED: [&str; 2] = ["loops_have_an_end", "threads_run_while_extensions_come_and_go"];
/// The line that the guest prints at its end.
const ENDED: &str = "guest: exit status ";

/// What `cargo xtask pku` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A directory with boot/vmlinuz-* and lib/modules/* of a kernel
    #[arg(long, value_name = "DIRECTORY")]
    kernel: Option<PathBuf>,
    /// Minutes until the guest is given up
    #[arg(long, value_name = "N", default_value_t = 20)]
    minutes: u32,
    /// Only tests whose names contain this
    filter: Option<String>,
}

pub(crate) fn pku(options: &Options) -> Result<(), String> {
    build_ring3()?;
    let directory = root().join("target/pku");
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let kernel = match &options.kernel {
        Some(kernel) => kernel.clone(),
        None => find_kernel(&directory)?,
    };
    let test = build_test(options.filter.as_deref())?;
    let image = initial_image(&directory, &kernel)?;
    let filter = options.filter.as_deref().unwrap_or_default();
    // (The kernel takes no blanks there.)
    let skipped: String = SKIPPED.iter().map(|test| format!("|--skip|{test}")).collect();
    let directory = root().display().to_string();
    let command = format!("cd|{directory}/tests;exec|{}|--nocapture{skipped}|{filter}", test.display());
    let mut qemu = Command::new("timeout");
    qemu.args(["-s", "KILL", &format!("{}m", options.minutes), "qemu-system-x86_64"]);
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3G", "-nographic", "-no-reboot"]);
    qemu.arg("-kernel").arg(file_in(&kernel.join("boot"), "vmlinuz-")?).arg("-initrd").arg(image);
    qemu.args(["-append", &format!("console=ttyS0 quiet panic=-1 ring3={command}")]);
    qemu.args(["-virtfs", "local,path=/,mount_tag=files,security_model=none,readonly=on,multidevs=remap"]);
    let complain = |error| format!("qemu-system-x86_64: {error} (apt-get install qemu-system-x86)");
    let mut guest = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(complain)?;
    let mut status = None;
    for line in BufReader::new(guest.stdout.take().expect("it is piped")).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        println!("{line}");
        if let Some((_, code)) = line.split_once(ENDED) {
            status = Some(code.to_owned());
        }
    }
    guest.wait().map_err(|error| error.to_string())?;
    match status.as_deref() {
        Some("0") => Ok(()),
        Some(code) => Err(format!("the tests in the guest ended with exit status {code}")),
        None => Err("the guest did not get to the end of the tests".to_owned()),
    }
}

/// Builds the tests, and runs them here: they leave their victims compiled. The test's file.
fn build_test(filter: Option<&str>) -> Result<PathBuf, String> {
    // (As all tests are built: other features would have everything built anew.)
    let all = ["test", "--workspace", "--exclude", "ring3-agent"];
    let test = [&all[..], llvm_features(), &["--test", "extensions"]].concat();
    run("cargo", &[&test[..], filter.as_slice()].concat())?;
    let output = Command::new("cargo")
        .args(&test)
        .args(["--no-run", "--quiet", "--message-format=json"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    cargo_messages(&output.stdout)
        .iter()
        .find_map(built_test)
        .ok_or_else(|| "cargo does not say where the test is".to_owned())
}

/// The only file of a directory whose name begins so.
fn file_in(directory: &Path, beginning: &str) -> Result<PathBuf, String> {
    let found = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = found
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning)))
        .collect();
    found.sort();
    found.pop().ok_or_else(|| format!("{}: there is no {beginning}*", directory.display()))
}

/// A kernel that is installed, or one that was fetched, now or earlier.
fn find_kernel(directory: &Path) -> Result<PathBuf, String> {
    let fetched = directory.join("kernel");
    for place in [Path::new("/"), &fetched] {
        let is_whole = file_in(&place.join("boot"), "vmlinuz-").is_ok() && !modules(place).is_empty();
        if is_whole {
            return Ok(place.to_owned());
        }
    }
    let output = Command::new("apt-cache").args(["depends", "linux-image-amd64"]).output();
    let output = output.map_err(|error| format!("apt-cache: {error}; name a kernel with --kernel"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let package = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image"));
    let package =
        package.ok_or("apt knows no linux-image-amd64: run `apt-get update`, or name a kernel with --kernel")?;
    let package = format!("linux-image{package}");
    let status = Command::new("apt-get").args(["download", &package]).current_dir(directory).status();
    if !status.is_ok_and(|status| status.success()) {
        return Err(format!("apt-get download {package} failed; name a kernel with --kernel"));
    }
    let file = file_in(directory, &format!("{package}_"))?;
    run("dpkg", &["-x", &file.to_string_lossy(), &fetched.to_string_lossy()])?;
    Ok(fetched)
}

/// The files of the modules that the guest needs. (A kernel may have some of them built in.)
fn modules(kernel: &Path) -> Vec<PathBuf> {
    let wanted: Vec<String> = MODULES.iter().map(|module| format!("{module}.ko")).collect();
    let (mut found, mut open) = (vec![], vec![kernel.join("lib/modules")]);
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            } else if wanted.contains(&name) {
                found.push(entry.path());
            }
        }
    }
    found
}

/// What the guest begins with: busybox, the modules, and `guest.sh`.
fn initial_image(directory: &Path, kernel: &Path) -> Result<PathBuf, String> {
    let (files, image) = (directory.join("files"), directory.join("initrd"));
    let at = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let _ = std::fs::remove_dir_all(&files);
    for name in ["bin", "modules", "proc", "sys", "dev", "below", "changes", "root"] {
        std::fs::create_dir_all(files.join(name)).map_err(|error| at(&files, error))?;
    }
    let busybox = Path::new("/bin/busybox");
    std::fs::copy(busybox, files.join("bin/busybox"))
        .map_err(|error| format!("{} (apt-get install busybox-static)", at(busybox, error)))?;
    for module in modules(kernel) {
        let name = module.file_name().expect("a file");
        std::fs::copy(&module, files.join("modules").join(name)).map_err(|error| at(&module, error))?;
    }
    let init = files.join("init");
    std::fs::write(&init, include_str!("guest.sh")).map_err(|error| at(&init, error))?;
    run("chmod", &["755", &init.to_string_lossy()])?;
    let pack = "cd \"$1\" && find . | busybox cpio -o -H newc | gzip -1 > \"$2\"";
    run("sh", &["-c", pack, "sh", &files.to_string_lossy(), &image.to_string_lossy()])?;
    Ok(image)
}
