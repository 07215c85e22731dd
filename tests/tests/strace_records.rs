//! Records of system calls have all memory that strace reads at the starts and ends of calls: strace that is given these records
//! instead of the memory shows the same.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ring3_bpf::RingBuffer;
use ring3_recorder::stops::record;
use ring3_tests::{Bench, Process, victim};
use ring3_trace::{StopsOptions, StopsSession};
use ring3_uapi::syscalls::{TABLE, by_number};

/// What the collector is told: the file that it writes, and strace's `-s`.
const FILE: &str = "RING3_TEST_RECORDS";
const BYTES_MAX: &str = "RING3_TEST_BYTES_MAX";
const RING_BYTES: u32 = 64 << 20;
/// What the victim closes before the calls that count.
const MARK: u32 = -12345_i32 as u32;

/// Calls whose results differ in two runs: only the shape of what is shown counts.
const VARYING: &[&str] = &[
    "stat",
    "lstat",
    "fstat",
    "newfstatat",
    "statx",
    "statfs",
    "fstatfs",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "times",
    "getrusage",
    "sysinfo",
    "getrandom",
    "getpid",
    "gettid",
    "getcpu",
    "clone",
    "fork",
    "wait4",
    "waitid",
    "tgkill",
    "brk",
    "arch_prctl",
    "set_tid_address",
];

/// The loader: this test's own program runs it again under `ring3 load`.
#[test]
#[ignore = "a part of the other tests, which run it under ring3"]
fn collects() {
    let Ok(file) = std::env::var(FILE) else { return };
    let bytes_max = std::env::var(BYTES_MAX).expect("given").parse().expect("a number");
    let numbers = TABLE.iter().map(|call| call.number).collect();
    let session = StopsSession::open(&StopsOptions { numbers, bytes_max, exact: false, ring_bytes: RING_BYTES });
    let session = session.unwrap_or_else(|why| panic!("{why}"));
    let mut ring = RingBuffer::receive(session.ring_fd().try_clone_to_owned().expect("another")).expect("mapped");
    println!("\nready");
    let done = std::sync::Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let done = done.clone();
        move || {
            let mut all = vec![];
            loop {
                let last = done.load(Ordering::Acquire);
                ring.take(|bytes| {
                    all.extend_from_slice(&(bytes.len() as u32).to_ne_bytes());
                    all.extend_from_slice(bytes);
                });
                if last {
                    return all;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    std::io::stdin().read_to_end(&mut vec![]).expect("the end");
    done.store(true, Ordering::Release);
    std::fs::write(file, reader.join().expect("read")).expect("written");
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Records, each without its length.
fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut all = vec![];
    while !bytes.is_empty() {
        let length = word(bytes, 0) as usize;
        all.push(&bytes[4..4 + length]);
        bytes = &bytes[4 + length..];
    }
    all
}

/// The records of the victim's calls from its mark on, in a file.
fn collected(bench: &Bench, directory: &Path, bytes_max: u32) -> PathBuf {
    let file = bench.made_directory().join(format!("records-{bytes_max}"));
    let mut loader = bench.load(std::env::current_exe().expect("this test"));
    loader.args(["--exact", "collects", "--ignored", "--nocapture"]);
    loader.env(FILE, &file).env(BYTES_MAX, bytes_max.to_string());
    let mut loader = Process::start(&mut loader);
    while loader.line() != "ready" {}
    let target = bench.target(calling()).arg(directory).stdin(Stdio::null()).output().expect("runs");
    assert!(target.status.success(), "{target:?}");
    let (code, lines, errors) = loader.finish();
    assert_eq!(code, Some(0), "{lines:?}\n{errors:?}");
    let bytes = std::fs::read(&file).expect("records");
    let all = split(&bytes);
    let is_mark = |of: &&&[u8]| {
        word(of, record::KIND) == record::START
            && long(of, record::NUMBER) == 3
            && long(of, record::VALUES) as u32 == MARK
    };
    let thread = word(all.iter().find(is_mark).expect("a mark"), record::TID);
    let of_thread = all.iter().filter(|of| word(of, record::TID) == thread);
    let counted: Vec<u8> = of_thread
        .skip_while(|of| !is_mark(of))
        .flat_map(|of| [&(of.len() as u32).to_le_bytes(), *of].concat())
        .collect();
    std::fs::write(&file, counted).expect("written");
    file
}

fn calling() -> PathBuf {
    victim("stopped", "gcc", "stopped.c", &["-O1"])
}

/// What strace shows of the victim's calls that count, and on standard error. None without strace.
fn strace(options: &[&str], directory: &Path, answers: Option<(&Path, u8)>) -> Option<(Vec<String>, String)> {
    let output = directory.with_extension("strace");
    let mut strace = Command::new("strace");
    strace.env_remove("LD_LIBRARY_PATH").args(options).arg("-o").arg(&output);
    strace.args(["-E", "LD_PRELOAD", "-E", "RING3_RECORDS"]).arg(calling()).arg(directory);
    if let Some((records, fill)) = answers {
        let library = victim("answers.so", "gcc", "answers.c", &["-O1", "-shared", "-fPIC"]);
        strace.env("LD_PRELOAD", library).env("RING3_RECORDS", records).env("FILL", fill.to_string());
    }
    let done = match strace.stdin(Stdio::null()).output() {
        Ok(done) => done,
        Err(error) => {
            println!("SKIPPED: strace does not run: {error}");
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{:?}: {errors}", done.status);
    let text = std::fs::read(&output).expect("a trace");
    let lines = String::from_utf8_lossy(&text)
        .lines()
        .filter(|line| !line.starts_with("---"))
        .map(shape)
        .collect::<Vec<String>>();
    // (A child's end may be reported before or after the call that waits for it.)
    let counted = |line: &String| line.starts_with("close(-12345)");
    Some((lines.into_iter().skip_while(|line| !counted(line)).collect(), errors))
}

/// A line; of what varies only how it is built.
fn shape(line: &str) -> String {
    let name = line.split('(').next().unwrap_or_default();
    if !VARYING.contains(&name) && !line.starts_with('+') {
        return line.to_owned();
    }
    let (mut text, mut quoted, mut in_number, mut last) = (String::new(), false, false, ' ');
    for each in line.chars() {
        quoted ^= each == '"' && last != '\\';
        in_number = each.is_ascii_digit() || in_number && (each.is_ascii_hexdigit() || each == 'x');
        let shown = if in_number { '0' } else { each };
        let is_repeated = matches!(shown, '0' | ' ') && text.ends_with(shown);
        let is_random = quoted && name == "getrandom";
        if !is_repeated && !is_random {
            text.push(shown);
        }
        last = each;
    }
    text.replace(" /* 0.0 s */", "")
}

fn assert_strace_needs_nothing_else(options: &[&str], bytes_max: u32) {
    let bench = Bench::ring3();
    let directory = bench.made_directory().join("called");
    let Some((native, native_errors)) = strace(options, &directory, None) else { return };
    let records = collected(&bench, &directory, bytes_max);
    report(&records);
    for fill in [0xa5, 0x5a] {
        let Some((lines, errors)) = strace(options, &directory, Some((&records, fill))) else { return };
        let differing: Vec<String> =
            lines.iter().zip(&native).filter_map(|(ours, theirs)| difference(ours, theirs)).collect();
        assert!(
            differing.is_empty(),
            "{} lines:\n{}",
            differing.len(),
            differing[..differing.len().min(20)].join("\n")
        );
        assert_eq!(lines.len(), native.len());
        assert_eq!(errors, native_errors);
    }
}

/// Where two lines begin to differ.
fn difference(ours: &str, theirs: &str) -> Option<String> {
    let same = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count();
    let part = |line: &str| {
        String::from_utf8_lossy(&line.as_bytes()[same.saturating_sub(30)..]).chars().take(90).collect::<String>()
    };
    let name = ours.split('(').next().unwrap_or_default();
    (ours != theirs).then(|| format!("{name}: with records {:?}, else {:?}", part(ours), part(theirs)))
}

/// Says how many calls of each kind were recorded, and how many WAIT.
fn report(records: &Path) {
    let bytes = std::fs::read(records).expect("records");
    let (mut streamed, mut waiting) = (BTreeMap::<&str, u32>::new(), BTreeMap::<&str, u32>::new());
    for of in split(&bytes) {
        let name = by_number(long(of, record::NUMBER) as u32).expect("a call").name;
        let waits = word(of, record::FLAGS) & record::WAITS != 0;
        *if waits { &mut waiting } else { &mut streamed }.entry(name).or_default() += 1;
    }
    println!("{} calls' records have all: {streamed:?}\nthese WAIT: {waiting:?}", streamed.len());
}

#[test]
fn strace_reads_nothing_that_records_do_not_have() {
    assert_strace_needs_nothing_else(&[], 32);
}

#[test]
fn strace_that_shows_all_fields_reads_nothing_else() {
    assert_strace_needs_nothing_else(&["-v", "-x"], 32);
}

#[test]
fn strace_that_shows_longer_or_shorter_texts_reads_nothing_else() {
    for bytes_max in [0, 5, 400] {
        assert_strace_needs_nothing_else(&["-s", &bytes_max.to_string()], bytes_max);
    }
}
