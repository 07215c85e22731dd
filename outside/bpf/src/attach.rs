//! Links: of probes, tracepoints and samples.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ring3_uapi::attr::{Field, UPROBE_MULTI_RETURN, link_create, raw_tracepoint};
use ring3_uapi::bpf::{attach_type, cmd};
use ring3_uapi::perf;

use crate::raw_calls::{Attr, open_event};

/// Where the kernel's tracepoints are described.
const TRACEFS: &str = "/sys/kernel/tracing";

/// A place of a file, for a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Offset of the instruction in the file.
    pub offset: u64,
    /// Offset of a counter of those who watch the place (a USDT semaphore); 0: none.
    pub counter: u64,
    /// What `bpf_get_attach_cookie` says there.
    pub cookie: u64,
}

/// Attaches a program to a place of a file, in all processes or in one.
///
/// # Errors
/// As `BPF_LINK_CREATE`.
pub fn link_uprobe(program: &impl AsFd, path: &Path, offset: u64, ret: bool, pid: u32) -> io::Result<OwnedFd> {
    link_uprobes(program, path, &[Place { offset, ..Place::default() }], ret, pid)
}

/// Attaches a program to places of a file, in all processes or in one (`pid` is not 0).
///
/// # Errors
/// As `BPF_LINK_CREATE`.
pub fn link_uprobes(program: &impl AsFd, path: &Path, places: &[Place], ret: bool, pid: u32) -> io::Result<OwnedFd> {
    let path: Vec<u8> = path.as_os_str().as_bytes().iter().copied().chain([0]).collect();
    let column = |of: fn(&Place) -> u64| places.iter().flat_map(|place| of(place).to_ne_bytes()).collect::<Vec<u8>>();
    let offsets = column(|place| place.offset);
    let (counters, cookies) = (column(|place| place.counter), column(|place| place.cookie));
    let mut attr = Attr::new(cmd::LINK_CREATE);
    attr.word(link_create::PROG_FD, program.as_fd().as_raw_fd() as u32);
    attr.word(link_create::ATTACH_TYPE, attach_type::TRACE_UPROBE_MULTI);
    attr.buffer(link_create::UPROBE_MULTI_PATH, &path).buffer(link_create::UPROBE_MULTI_OFFSETS, &offsets);
    if places.iter().any(|place| place.counter != 0) {
        attr.buffer(link_create::UPROBE_MULTI_REF_CTR_OFFSETS, &counters);
    }
    if places.iter().any(|place| place.cookie != 0) {
        attr.buffer(link_create::UPROBE_MULTI_COOKIES, &cookies);
    }
    attr.word(link_create::UPROBE_MULTI_CNT, places.len() as u32).word(link_create::UPROBE_MULTI_PID, pid);
    attr.word(link_create::UPROBE_MULTI_FLAGS, if ret { UPROBE_MULTI_RETURN } else { 0 });
    attr.open()
}

/// Attaches a program to a tracepoint, in all processes or in one.
///
/// # Errors
/// There is no such tracepoint, or as perf_event_open(2) and `BPF_LINK_CREATE`.
pub fn link_tracepoint(program: &impl AsFd, category: &str, name: &str, pid: Option<u32>) -> io::Result<OwnedFd> {
    let id = std::fs::read_to_string(format!("{TRACEFS}/events/{category}/{name}/id"))?;
    let id = id.trim().parse().map_err(|_| io::Error::other(format!("the id of {category}:{name} is {id:?}")))?;
    // (All processes are those of a CPU; a program that is attached to the event of one CPU runs on all.)
    let (pid, cpu) = pid.map_or((-1, 0), |pid| (pid as i32, -1));
    link_event(program, &open_event(&event(perf::TYPE_TRACEPOINT, id), pid, cpu)?)
}

/// Attaches a program to tracepoints (`syscalls:sys_enter_read`), in all processes: to all of them, or to none. This is for ring3's
/// server: the kernel has no such links.
///
/// # Errors
/// As `BPF_LINK_CREATE`.
pub fn link_tracepoints<'n>(program: &impl AsFd, names: impl IntoIterator<Item = &'n str>) -> io::Result<OwnedFd> {
    let names: Vec<u8> = names.into_iter().flat_map(|name| name.bytes().chain([0])).collect();
    let mut attr = Attr::new(cmd::LINK_CREATE);
    attr.word(link_create::PROG_FD, program.as_fd().as_raw_fd() as u32);
    attr.word(link_create::ATTACH_TYPE, attach_type::RING3_TRACEPOINT_MULTI);
    attr.buffer(link_create::TRACEPOINT_MULTI_NAMES, &names);
    attr.word(link_create::TRACEPOINT_MULTI_BYTES, names.len() as u32);
    attr.open()
}

/// Attaches a program to the start of a function of the kernel (a kprobe).
///
/// # Errors
/// The kernel has no kprobes or no such function, or as perf_event_open(2) and `BPF_LINK_CREATE`.
pub fn link_function(program: &impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/kprobe/type")?;
    let kind = kind.trim().parse().map_err(|_| io::Error::other(format!("the type of kprobes is {kind:?}")))?;
    let name: Vec<u8> = name.bytes().chain([0]).collect();
    let mut attr = event(kind, 0);
    set(&mut attr, perf::CONFIG1, &(name.as_ptr().addr() as u64).to_ne_bytes());
    link_event(program, &open_event(&attr, -1, 0)?)
}

/// Attaches a program to a raw tracepoint.
///
/// # Errors
/// As `BPF_RAW_TRACEPOINT_OPEN`.
pub fn open_raw_tracepoint(program: &impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let name: Vec<u8> = name.bytes().chain([0]).collect();
    let mut attr = Attr::new(cmd::RAW_TRACEPOINT_OPEN);
    attr.word(raw_tracepoint::PROG_FD, program.as_fd().as_raw_fd() as u32).buffer(raw_tracepoint::NAME, &name);
    attr.open()
}

/// Runs a program on samples of a CPU: `frequency` a second of an event of `kind` (`PERF_TYPE_*`) and `config`.
///
/// # Errors
/// As perf_event_open(2) and `BPF_LINK_CREATE`.
pub fn link_sampling(program: &impl AsFd, kind: u32, config: u64, frequency: u64, cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = event(kind, config);
    set(&mut attr, perf::SAMPLE_PERIOD, &frequency.to_ne_bytes());
    set(&mut attr, perf::FLAGS, &perf::FLAG_FREQ.to_ne_bytes());
    link_event(program, &open_event(&attr, -1, cpu as i32)?)
}

/// `struct perf_event_attr` of an event. It is enabled from its beginning (`disabled` is 0): to do that later would be one more call
/// for the server to answer, for each of hundreds of links.
pub(crate) fn event(kind: u32, config: u64) -> [u8; perf::ATTR_BYTES] {
    let mut attr = [0; perf::ATTR_BYTES];
    set(&mut attr, perf::TYPE, &kind.to_ne_bytes());
    set(&mut attr, perf::SIZE, &(perf::ATTR_BYTES as u32).to_ne_bytes());
    set(&mut attr, perf::CONFIG, &config.to_ne_bytes());
    attr
}

/// Sets a member.
pub(crate) fn set(attr: &mut [u8; perf::ATTR_BYTES], field: Field, bytes: &[u8]) {
    attr[field.at..field.end()].copy_from_slice(bytes);
}

fn link_event(program: &impl AsFd, event: &OwnedFd) -> io::Result<OwnedFd> {
    let mut attr = Attr::new(cmd::LINK_CREATE);
    attr.word(link_create::PROG_FD, program.as_fd().as_raw_fd() as u32);
    attr.word(link_create::TARGET_FD, event.as_raw_fd() as u32);
    attr.word(link_create::ATTACH_TYPE, attach_type::PERF_EVENT);
    // (The link keeps the event.)
    attr.open()
}
