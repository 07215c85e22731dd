//! Attacks of a hostile user or target on files and memory of ring3's: each must fail.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ring3_tests::{Bench, Process, is_root, ready, shapes, victim};
use rustix::fs::SealFlags;
use rustix::io::Errno;

/// Address ranges, permissions and paths of a process's mappings.
fn mappings(pid: u32) -> Vec<(String, String, String)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let row = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (range, permissions) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        Some((range, permissions, fields.nth(3).unwrap_or_default().to_owned()))
    };
    text.lines().filter_map(row).collect()
}

/// A target with probes and traced system calls.
fn traced(bench: &Bench) -> (Process, ring3_tests::Counter) {
    let target = ready(bench.target(victim("busy", "gcc", "busy.c", &[])).arg("2"));
    let probe = format!("{}:work", victim("busy", "gcc", "busy.c", &[]).display());
    let counter = bench.counting(&["-p", &target.pid().to_string(), &probe]);
    (target, counter)
}

#[test]
fn no_memory_is_writable_and_executable() {
    let bench = Bench::ring3();
    let (target, _counter) = traced(&bench);
    let server = bench.status()["server"]["pid"].as_u64().expect("a process") as u32;
    for pid in [target.pid(), server] {
        let all = mappings(pid);
        assert!(all.iter().any(|(_, _, path)| path.contains("ring3")), "{all:?}");
        let both = all.iter().filter(|(_, permissions, _)| permissions.contains('w') && permissions.contains('x'));
        assert_eq!(both.count(), 0, "{all:#?}");
    }
    // What a target runs lies in files that it can map only to read.
    let writable = mappings(target.pid()).into_iter().filter(|(_, permissions, _)| permissions.contains('w'));
    let writable: Vec<String> = writable.map(|(_, _, path)| path).filter(|path| path.contains("ring3")).collect();
    let is_code = |path: &String| path.contains("agent") || path.contains("text") || path.contains("control");
    assert!(!writable.iter().any(is_code), "{writable:?}");
}

#[test]
fn a_target_cannot_write_resize_or_seal_what_it_shares_with_others() {
    if !is_root() {
        println!("SKIPPED: only root opens files by their mappings (/proc/PID/map_files)");
        return;
    }
    let bench = Bench::ring3();
    let (target, _counter) = traced(&bench);
    let mut seen = 0;
    for (range, permissions, path) in mappings(target.pid()) {
        // (The witness file is the target's own, and has nothing in it: by sealing it, it hides its forks from the server's search.)
        if !path.starts_with("/memfd:ring3") || path.contains("witness") {
            continue;
        }
        let file = format!("/proc/{}/map_files/{range}", target.pid());
        let file = File::options().read(true).write(true).open(&file).expect("root opens it");
        seen += 1;
        assert_eq!(rustix::fs::ftruncate(&file, 4096), Err(Errno::PERM), "{path}");
        let added = rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE);
        assert_eq!(added, Err(Errno::PERM), "{path}: others could not map it any more");
        if !permissions.contains('w') {
            assert_eq!(rustix::io::pwrite(&file, b"\xcc", 0), Err(Errno::PERM), "{path}");
        }
    }
    assert!(seen >= 4, "agent, control page, realm block and text");
    let other = ready(&mut bench.command(shapes()));
    assert_eq!(bench.run(&["attach", &other.pid().to_string()]).0, Some(0));
}

/// A file of somebody else, and a symbolic link that leads to it.
struct Trap {
    file: PathBuf,
    link: PathBuf,
}

impl Trap {
    fn new(directory: &Path, link: PathBuf) -> Trap {
        let file = directory.join(format!("ring3-trap-{}", std::process::id()));
        std::fs::write(&file, "mine").expect("written");
        symlink(&file, &link).expect("linked");
        Trap { file, link }
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        let _ = (std::fs::remove_file(&self.link), std::fs::remove_file(&self.file));
    }
}

#[test]
fn a_perf_map_is_not_written_through_a_link() {
    let bench = Bench::ring3();
    let target = ready(bench.command(victim("busy", "gcc", "busy.c", &[])).arg("2"));
    let (pid, directory) = (target.pid(), std::env::temp_dir());
    let trap = Trap::new(&directory, format!("/tmp/perf-{pid}.map").into());
    let probe = format!("{}:work", victim("busy", "gcc", "busy.c", &[]).display());
    let mut loader = bench.load(ring3_tests::example("malloc"));
    let mut tool = Process::start(loader.args(["-p", &pid.to_string(), &probe]).env("RING3_PERF", "1"));
    assert!(tool.line().starts_with("attached"));
    assert_eq!(std::fs::read_to_string(&trap.file).expect("readable"), "mine");
    tool.signal(rustix::process::Signal::TERM);
    tool.wait();
    assert_eq!(std::fs::read_to_string(&trap.file).expect("readable"), "mine");
    assert!(trap.link.symlink_metadata().expect("it stays").is_symlink());
}

#[test]
fn a_link_is_no_runtime_directory() {
    let bench = Bench::ring3();
    let real = bench.directory().with_extension("real");
    std::fs::create_dir(&real).expect("made");
    symlink(&real, bench.directory()).expect("linked");
    let (code, _, error) = bench.run(&["status"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("must be a"), "{error}");
    assert_eq!(std::fs::read_dir(&real).expect("readable").count(), 0);
    std::fs::remove_file(bench.directory()).expect("ours");
    std::fs::remove_dir(&real).expect("empty");
}
