//! Containers: programs in namespaces of their own, with a root file system in layers and few privileges, as a container engine
//! makes them. `tests/victims/container.c` does it; its mounts are in a private mount namespace that ends with the container.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Bench, Process, is_root, victim};

/// As Docker has it: /proc, devices, its capabilities and refused calls, no new privileges.
pub const LIKE_DOCKER: &str = "pdcsn";
/// Without a shell, /proc, /tmp and devices, and nothing that can be written to.
pub const DISTROLESS: &str = "rcsn";

/// A program in a container, killed when dropped.
pub struct Container {
    /// What it reads and writes.
    pub process: Process,
    /// Its process id outside.
    pub pid: u32,
}

/// Whether containers can be made here; said loudly if not.
pub fn are_possible() -> bool {
    let can = is_root();
    if !can {
        println!("SKIPPED: containers need root");
    }
    can
}

/// Whether an ordinary user can make one, in a user namespace; said loudly if not.
pub fn are_possible_for(user: &Bench) -> bool {
    let mut unshare = user.command("unshare");
    let can = is_root() && unshare.args(["--user", "--mount", "true"]).status().is_ok_and(|status| status.success());
    if !can {
        println!("SKIPPED: this needs root, and user namespaces of ordinary users");
    }
    can
}

impl Container {
    /// Starts a program of an image, with the letters of `container.c`.
    pub fn start(bench: &Bench, letters: &str, image: &Path, program: &[&str]) -> Container {
        let mut process = Process::start(&mut Container::command(bench, letters, image, program));
        let pid = process.line();
        Container { pid: pid.parse().unwrap_or_else(|_| panic!("{pid}")), process }
    }

    /// The same, of `contained`, which is ready then.
    pub fn ready(bench: &Bench, letters: &str, image: &Path) -> Container {
        let mut container = Container::start(bench, letters, image, &["/bin/contained"]);
        assert_eq!(container.process.line(), "ready");
        container
    }

    /// The command by which the bench's user runs a program in a container; its first line is the process id.
    pub fn command(bench: &Bench, letters: &str, image: &Path, program: &[&str]) -> Command {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let scratch = bench.made_directory().join(format!("container-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        for directory in [&scratch, &scratch.join("shared")] {
            std::fs::create_dir(directory).expect("made");
            std::os::unix::fs::chown(directory, bench.user, bench.user).expect("given away");
        }
        let mut command = bench.command(victim("container", "gcc", "container.c", &["-static"]));
        command.arg(letters).arg(image).arg(scratch).args(program);
        command
    }

    /// Has it do something, and waits for its answer.
    pub fn told(&mut self, what: &str) -> String {
        self.process.say(what);
        self.process.line()
    }
}

fn image(bench: &Bench, files: &[(&Path, &str)]) -> PathBuf {
    let image = bench.made_directory().join("image");
    for (file, at) in files {
        let at = image.join(at);
        std::fs::create_dir_all(at.parent().expect("a directory")).expect("made");
        // (As `Bench::copy` does it.)
        assert!(Command::new("cp").arg(file).arg(&at).status().expect("cp runs").success(), "{}", at.display());
    }
    image
}

/// An image with one static program, `/bin/contained`, and nothing else.
pub fn distroless_image(bench: &Bench) -> PathBuf {
    image(bench, &[(&victim("contained", "gcc", "contained.c", &["-static"]), "bin/contained")])
}

/// An image with a program and a library on musl, and busybox as its shell; `None`, said loudly, if they are not installed.
pub fn musl_image(bench: &Bench) -> Option<PathBuf> {
    let loader = Path::new("/usr/lib/x86_64-linux-musl/libc.so");
    let busybox = Path::new("/usr/bin/busybox");
    if let Some(missing) = [loader, busybox].iter().find(|file| !file.exists()) {
        println!("SKIPPED: {} is not installed (musl-tools, busybox-static)", missing.display());
        return None;
    }
    let shared = ["-shared", "-fPIC", "-Wl,-soname,liblibrary.so"];
    let library = victim("liblibrary-musl.so", "musl-gcc", "library.c", &shared);
    let with_it = ["-DLIBRARY", "-Wl,--no-as-needed", library.to_str().expect("a plain name"), "-Wl,-rpath,/usr/lib"];
    let program = victim("contained-musl", "musl-gcc", "contained.c", &with_it);
    let files: [(&Path, &str); 5] = [
        (&program, "bin/contained"),
        (&library, "usr/lib/liblibrary.so"),
        (loader, "lib/ld-musl-x86_64.so.1"),
        (busybox, "bin/busybox"),
        (busybox, "bin/sh"),
    ];
    Some(image(bench, &files))
}
