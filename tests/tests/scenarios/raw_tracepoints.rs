//! Tracepoints of system calls: their files, events, programs and links.

use std::ffi::CString;

use ring3_btf::kind;
use ring3_uapi::Errno;
use ring3_uapi::attr::{self, Field};
use ring3_uapi::bpf::{attach_type, cmd, map_type, prog_type};
use ring3_uapi::perf as p;

use super::raw_calls::{EXIT, MARK, MOV_R0_0, close, create, id_of, load_attr, show, show_descriptor, show_fd};
use super::raw_events::{ioctl, open_event, perf_event, uprobe_type};
use crate::calls::raw_bpf::{Attr, address, bpf, result};
use crate::calls::site::site;

const ROOT: &str = "/sys/kernel/tracing";

/// Tracefs of this process's own, where it may mount it: nothing stays.
fn mount() {
    // SAFETY: takes no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return;
    }
    for (kind, at, flags) in
        [(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE), (c"tracefs", c"/sys/kernel/tracing", 0)]
    {
        // SAFETY: mount wants strings.
        let done = unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
        // (Where it is mounted already, it cannot be a second time.)
        assert!(done == 0 || result(done.into()) == Err(Errno::EBUSY), "{at:?}");
    }
}

/// What a loader finds of an event.
fn file(event: &str, name: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/events/{event}/{name}")).unwrap_or_default()
}

pub(super) fn id(event: &str) -> u64 {
    file(event, "id").trim_end().parse().unwrap_or(0)
}

pub(super) fn event(id: u64) -> [u8; 136] {
    perf_event(p::TYPE_TRACEPOINT, id, 0, 0)
}

fn open(event: &str) -> i64 {
    show_fd(event, open_event(&self::event(id(event)), -1, 0, -1, p::FLAG_FD_CLOEXEC))
}

/// Reads 8 bytes of the context.
fn load_at(offset: u64) -> u64 {
    0x1079 | offset << 16
}

fn program(what: &str, kind: u32, first: u64) -> i64 {
    show_fd(what, bpf(cmd::PROG_LOAD, &mut load_attr(kind, &[first, MOV_R0_0, EXIT])))
}

/// A call that wants a path and two numbers, first without and then with a directory before it.
fn both_ways(old: i64, new: i64, path: &str, numbers: [u64; 2]) -> [Result<i64, Errno>; 2] {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: the calls used here read a path and write to addresses of the caller's.
    let plain = result(unsafe { libc::syscall(old, path.as_ptr(), numbers[0], numbers[1]) });
    // SAFETY: as above.
    let at = result(unsafe { libc::syscall(new, libc::AT_FDCWD, path.as_ptr(), numbers[0], numbers[1]) });
    [plain, at]
}

pub(crate) fn tracepoints_have_files() {
    mount();
    for event in [
        "syscalls/sys_enter_openat",
        "syscalls/sys_exit_openat",
        "syscalls/sys_enter_getpid",
        "syscalls/sys_enter_newfstatat",
        "syscalls/sys_exit_umount",
        "raw_syscalls/sys_enter",
        "raw_syscalls/sys_exit",
        "sched/sched_process_exec",
        "sched/sched_process_exit",
        "sched/sched_process_fork",
        "signal/signal_generate",
        "syscalls/sys_enter_nothing",
        "nothing/sys_enter",
    ] {
        for line in file(event, "format").lines().filter(|line| !line.starts_with("ID: ")) {
            println!("{MARK}{event} {line}");
        }
        let same = file(event, "format").contains(&format!("\nID: {}\n", id(event)));
        println!("{MARK}{event} id {}, the same in both files {same}", id(event) > 0);
        for name in ["", "/id", "/format", "/nothing"] {
            file_is_looked_at(&format!("{ROOT}/events/{event}{name}"));
        }
    }
    let all = std::fs::read_to_string(format!("{ROOT}/available_events")).unwrap_or_default();
    for event in [
        "syscalls:sys_enter_openat",
        "raw_syscalls:sys_exit",
        "syscalls:sys_enter_nothing",
        "sched:sched_process_exit",
        "signal:signal_generate",
    ] {
        println!("{MARK}{event} is available: {}", all.lines().any(|line| line == event));
    }
    relative_paths_lead_there_too();
}

fn file_is_looked_at(path: &str) {
    for mode in [0, 4, 8] {
        for outcome in both_ways(libc::SYS_access, libc::SYS_faccessat, path, [mode, 0]) {
            show(&format!("access {path} {mode}"), outcome);
        }
    }
    let mut stat = [0u64; 18];
    for outcome in both_ways(libc::SYS_stat, libc::SYS_newfstatat, path, [stat.as_mut_ptr() as u64, 0]) {
        show(&format!("stat {path}"), outcome);
        println!("{MARK}  kind {:o}", stat[3] as u32 & libc::S_IFMT);
    }
    let name = CString::new(path).expect("no NUL");
    let mut words = [0u64; 32];
    let mask = libc::STATX_BASIC_STATS;
    // SAFETY: statx writes 256 bytes.
    let done = unsafe { libc::syscall(libc::SYS_statx, libc::AT_FDCWD, name.as_ptr(), 0, mask, words.as_mut_ptr()) };
    show("statx", result(done));
    println!("{MARK}  kind {:o}", (words[3] >> 32) as u32 & libc::S_IFMT);
    let how = [libc::O_CLOEXEC as u64, 0, 0];
    // SAFETY: openat2 reads the path and 24 bytes.
    let opened = unsafe { libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, name.as_ptr(), &how, 24) };
    close(show_fd("openat2", result(opened)));
    for outcome in both_ways(libc::SYS_open, libc::SYS_openat, path, [libc::O_CLOEXEC as u64, 0]) {
        let fd = show_fd("open", outcome);
        if fd >= 0 {
            // SAFETY: takes no memory.
            println!("{MARK}  flags {}", unsafe { libc::fcntl(fd as i32, libc::F_GETFD) });
            // SAFETY: takes no memory.
            println!("{MARK}  access {}", unsafe { libc::fcntl(fd as i32, libc::F_GETFL) } & libc::O_ACCMODE);
        }
        close(fd);
    }
    // SAFETY: statfs is made of integers.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: statfs wants a path and room for its answer.
    show("statfs", result(unsafe { libc::statfs(name.as_ptr(), &mut stat) }.into()));
    println!("{MARK}  {:#x} {} {}", stat.f_type, stat.f_bsize, stat.f_namelen);
}

fn relative_paths_lead_there_too() {
    let before = std::env::current_dir().expect("a folder");
    std::env::set_current_dir("/sys/kernel").expect("there");
    let id = |path: &str| std::fs::read(path).is_ok_and(|bytes| bytes.last() == Some(&b'\n'));
    println!("{MARK}from /sys/kernel: {}", id("./tracing/events/../events//syscalls/sys_enter_openat/id"));
    println!("{MARK}from /sys/kernel: {}", id("events/syscalls/sys_enter_openat/id"));
    std::env::set_current_dir(before).expect("still there");
    // SAFETY: open reads the path.
    let directory = unsafe { libc::open(c"/sys/kernel".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY) };
    // SAFETY: openat reads the path.
    let opened =
        unsafe { libc::openat(directory, c"tracing/events/raw_syscalls/sys_exit/id".as_ptr(), libc::O_RDONLY) };
    close(show_fd("from a folder", result(opened.into())));
    close(directory.into());
}

pub(crate) fn tracepoint_events_are_checked() {
    mount();
    let good = event(id("syscalls/sys_enter_acct"));
    for (pid, cpu, group, flags) in
        [(-1, -1, -1, 0), (-1, 0, -1, 0), (-1, 0, -1, 8), (-1, 0, -1, 1 << 10), (-1, 99999, -1, 0), (0, -1, -1, 0)]
    {
        let opened = open_event(&good, pid, cpu, group, flags);
        close(show_fd(&format!("pid {pid} cpu {cpu} flags {flags}"), opened));
    }
    for (pid, cpu) in [(-1, -2), (0, 0), (2_000_000_000, -1), (-2, 0)] {
        close(show_fd(&format!("pid {pid} cpu {cpu}"), open_event(&good, pid, cpu, -1, 0)));
    }
    for config in [0, 65_535, 0x1_ffff, id("syscalls/sys_enter_acct") | 1 << 32, u64::MAX] {
        close(show_fd("no such event", open_event(&event(config), -1, 0, -1, 0)));
    }
    let [enter, exit, short, raw] =
        ["syscalls/sys_enter_acct", "syscalls/sys_exit_acct", "syscalls/sys_enter_vhangup", "raw_syscalls/sys_enter"]
            .map(open);
    let (mut number, mut query) = (0u64, [0u32; 4]);
    for (what, request, argument) in [
        ("id", p::IOC_ID, &raw mut number as u64),
        ("query", p::IOC_QUERY_BPF, &raw mut query as u64),
        ("query nowhere", p::IOC_QUERY_BPF, 8),
        ("enable", p::IOC_ENABLE, 0),
        ("disable", p::IOC_DISABLE, 0),
        ("reset", p::IOC_RESET, 0),
        ("refresh", p::IOC_REFRESH, 1),
        ("unknown", 0x24ff, 0),
    ] {
        show(what, ioctl(enter, request, argument));
    }
    query[0] = 65;
    show("query much", ioctl(enter, p::IOC_QUERY_BPF, &raw mut query as u64));
    for (bytes, fds) in [(24, [enter, short]), (32, [exit, enter]), (72, [raw, exit])] {
        let program = program("long", prog_type::TRACEPOINT, load_at(bytes - 8));
        for fd in fds {
            // The first of each pair is 8 bytes short or more; what may be attached is looked at elsewhere.
            let outcome = ioctl(fd, p::IOC_SET_BPF, program as u64);
            if outcome.is_err_and(|errno| errno == Errno::EACCES) || bytes == 32 && fd == exit {
                show(&format!("{bytes} bytes"), outcome);
            }
        }
        close(program);
    }
    programs_of_other_types_are_refused(enter);
    raw_tracepoints_are_checked();
    questions_about_descriptors_are_checked();
    [enter, exit, short, raw].into_iter().for_each(close);
}

fn link(program: i64, target: i64, kind: u32, cookie: u64) -> Result<i64, Errno> {
    use attr::link_create as l;
    let attr = Attr::new().with(l::PROG_FD, program as u64).with(l::TARGET_FD, target as u64);
    bpf(cmd::LINK_CREATE, &mut attr.with(l::ATTACH_TYPE, kind.into()).with(l::PERF_EVENT_COOKIE, cookie))
}

fn programs_of_other_types_are_refused(event: i64) {
    let (path, offset) = site();
    let uprobe = perf_event(uprobe_type(), 0, address(path.to_bytes_with_nul()), offset);
    let uprobe = show_fd("uprobe", open_event(&uprobe, -1, 0, -1, 0));
    let traces = program("tracepoint program", prog_type::TRACEPOINT, MOV_R0_0);
    show("set on a uprobe", ioctl(uprobe, p::IOC_SET_BPF, traces as u64));
    show_fd("link to a uprobe", link(traces, uprobe, attach_type::PERF_EVENT, 0));
    show_fd("link to nothing", link(traces, -1, attach_type::PERF_EVENT, 0));
    show_fd("link of another type", link(traces, event, attach_type::TRACE_RAW_TP, 0));
    show("set nothing", ioctl(event, p::IOC_SET_BPF, u64::MAX));
    for kind in [prog_type::KPROBE, prog_type::RAW_TRACEPOINT, prog_type::SOCKET_FILTER, prog_type::PERF_EVENT] {
        let other = program("other program", kind, MOV_R0_0);
        show("set", ioctl(event, p::IOC_SET_BPF, other as u64));
        show_fd("link", link(other, event, attach_type::PERF_EVENT, 0));
        show_fd("link to nothing", link(other, -1, attach_type::PERF_EVENT, 0));
        show_fd("link of another type", link(other, event, attach_type::TRACE_RAW_TP, 0));
        close(other);
    }
    close(traces);
    close(uprobe);
}

fn open_raw(program: i64, name: u64, cookie: u64) -> Result<i64, Errno> {
    use attr::raw_tracepoint as r;
    let attr = Attr::new().with(r::PROG_FD, program as u64).with(r::NAME, name);
    bpf(cmd::RAW_TRACEPOINT_OPEN, &mut attr.with(r::COOKIE, cookie))
}

fn raw_tracepoints_are_checked() {
    let enter = address(c"sys_enter".to_bytes_with_nul());
    let good = program("raw program", prog_type::RAW_TRACEPOINT, MOV_R0_0);
    let long = program("long raw program", prog_type::RAW_TRACEPOINT, load_at(16));
    let other = program("other program", prog_type::TRACEPOINT, MOV_R0_0);
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 4, 1, 0)));
    let much = CString::new("a".repeat(300)).expect("no NUL");
    for (what, program, name) in [
        ("nothing", -1, enter),
        ("a map", map, enter),
        ("another program", other, enter),
        ("more than there is", long, enter),
        ("no name", good, 0),
        ("a bad name", good, 8),
        ("an empty name", good, address(c"".to_bytes_with_nul())),
        ("an unknown name", good, address(c"sys_enter_openat".to_bytes_with_nul())),
        ("a long name", good, address(much.to_bytes_with_nul())),
        ("a program of executions", good, address(c"sched_process_exec".to_bytes_with_nul())),
        ("a program of forks", good, address(c"sched_process_fork".to_bytes_with_nul())),
        ("a program of forks that reads too much", long, address(c"sched_process_fork".to_bytes_with_nul())),
        ("a program of ends", good, address(c"sched_process_exit".to_bytes_with_nul())),
        ("a program of signals", good, address(c"signal_generate".to_bytes_with_nul())),
    ] {
        show_fd(&format!("raw tracepoint with {what}"), open_raw(program, name, 0));
    }
    let tail = Field { at: 24, bytes: 4 };
    show("with a tail", bpf(cmd::RAW_TRACEPOINT_OPEN, &mut Attr::new().with(tail, 1)));
    [good, long, other, map].into_iter().for_each(close);
}

fn ask(pid: u32, fd: i64, flags: u64) -> Result<i64, Errno> {
    use attr::task_fd_query as q;
    let attr = Attr::new().with(q::PID, pid.into()).with(q::FD, fd as u64);
    bpf(cmd::TASK_FD_QUERY, &mut attr.with(q::FLAGS, flags))
}

fn questions_about_descriptors_are_checked() {
    let event = open("syscalls/sys_enter_acct");
    let own = std::process::id();
    for (what, pid, fd, flags) in [
        ("with flags", own, event, 1),
        ("of nobody", 2_000_000_000, event, 0),
        ("of pid 0", 0, event, 0),
        ("of no descriptor", own, 9999, 0),
        ("of a file", own, 0, 0),
        ("of an event without a program", own, event, 0),
    ] {
        show(&format!("query {what}"), ask(pid, fd, flags));
    }
    let (path, offset) = site();
    for ret in [0, 1] {
        let uprobe = perf_event(uprobe_type(), ret, address(path.to_bytes_with_nul()), offset);
        let uprobe = show_fd("uprobe", open_event(&uprobe, -1, 0, -1, 0));
        let program = program("probe program", prog_type::KPROBE, MOV_R0_0);
        show("query program", ask(own, program, 0));
        show("set", ioctl(uprobe, p::IOC_SET_BPF, program as u64));
        show_query(uprobe, program);
        close(uprobe);
        close(program);
    }
}

/// What `BPF_TASK_FD_QUERY` tells.
fn show_query(fd: i64, program: i64) {
    use attr::task_fd_query as q;
    for room in [0u64, 1, 5, 400] {
        let mut name = [b'#'; 400];
        let attr = Attr::new().with(q::PID, std::process::id().into()).with(q::FD, fd as u64).with(q::BUF_LEN, room);
        let mut attr = attr.with(q::BUF, name.as_mut_ptr() as u64);
        show(&format!("query with {room}"), bpf(cmd::TASK_FD_QUERY, &mut attr));
        let told = [q::BUF_LEN, q::FD_TYPE, q::PROBE_OFFSET, q::PROBE_ADDR].map(|field| attr.get(field));
        println!("{MARK}  {told:?} {} {:?}", attr.get(q::PROG_ID) == id_of(program), String::from_utf8_lossy(&name));
    }
}

/// What `BPF_OBJ_GET_INFO_BY_FD` tells of a link whose name's address and room are at these offsets.
fn show_link(link: i64, program: i64, name_at: usize, room_at: usize) {
    for room in [0u32, 4, 64] {
        let (mut told, mut name) = ([0u8; 64], [b'#'; 64]);
        if room > 0 {
            told[name_at..name_at + 8].copy_from_slice(&(name.as_mut_ptr() as u64).to_ne_bytes());
        }
        told[room_at..room_at + 4].copy_from_slice(&room.to_ne_bytes());
        let attr = Attr::new().with(attr::info::BPF_FD, link as u64).with(attr::info::INFO_LEN, 64);
        show("link info", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(attr::info::INFO, told.as_mut_ptr() as u64)));
        let same = u64::from(u32::from_ne_bytes(told[8..12].try_into().expect("4 bytes"))) == id_of(program);
        told[4..12].fill(0); // ids
        told[name_at..name_at + 8].fill(0);
        println!("{MARK}  {same} {told:?} {:?}", String::from_utf8_lossy(&name));
    }
    show("detach", bpf(cmd::LINK_DETACH, &mut Attr::new().with(attr::link_update::LINK_FD, link as u64)));
}

/// The programs of an event's tracepoint.
fn show_programs(what: &str, event: i64, programs: &[i64]) {
    for room in [0u32, 1, 4] {
        let mut query = [77u32; 6];
        query[0] = room;
        show(&format!("{what}, room for {room}"), ioctl(event, p::IOC_QUERY_BPF, &raw mut query as u64));
        let name = |id: u32| programs.iter().position(|program| id_of(*program) == u64::from(id));
        let (ids, rest) = query[2..].split_at(room as usize);
        println!("{MARK}  {} {:?} {rest:?}", query[1], ids.iter().map(|id| name(*id)).collect::<Vec<_>>());
    }
}

/// (At tracepoints that no other scenario has: the kernel's are everybody's.)
pub(crate) fn tracepoints_take_programs() {
    mount();
    let [first, second] = ["first", "second"].map(|name| program(name, prog_type::TRACEPOINT, load_at(16)));
    let programs = [first, second];
    let events = [(); 3].map(|()| open("syscalls/sys_enter_sethostname"));
    show_programs("nothing set", events[0], &programs);
    let set = ioctl(events[0], p::IOC_SET_BPF, first as u64);
    show("set", set);
    if set == Err(Errno::ENOTSUPP) {
        return;
    }
    show("set again", ioctl(events[0], p::IOC_SET_BPF, first as u64));
    show("set another", ioctl(events[0], p::IOC_SET_BPF, second as u64));
    show("the same at another event", ioctl(events[1], p::IOC_SET_BPF, first as u64));
    let made = show_fd("link", link(second, events[1], attach_type::PERF_EVENT, 0x1234_5678_9abc));
    show_fd("link again", link(second, events[1], attach_type::PERF_EVENT, 0));
    show_fd("link of the same at another event", link(second, events[2], attach_type::PERF_EVENT, 0));
    events.iter().for_each(|event| show_programs("both", *event, &programs));
    show_link(made, second, 24, 32);
    show("query the link", ask(std::process::id(), made, 0));
    show_query(events[0], first);
    show_query(events[1], second);
    let other = open("syscalls/sys_exit_sethostname");
    show("the same at another tracepoint", ioctl(other, p::IOC_SET_BPF, first as u64));
    close(made);
    ring3_tests::wait_until("free again", || link(second, events[2], attach_type::PERF_EVENT, 0).is_ok());
    show_programs("set anew", events[0], &programs);
    close(events[0]);
    raw_tracepoints_take_programs();
    events.into_iter().for_each(close);
    [other, first, second].into_iter().for_each(close);
}

fn raw_tracepoints_take_programs() {
    let program = program("raw program", prog_type::RAW_TRACEPOINT, load_at(8));
    for (name, cookie) in [(c"sys_enter", 0), (c"sys_enter", 7), (c"sys_exit", u64::MAX)] {
        let made = show_fd("raw tracepoint", open_raw(program, address(name.to_bytes_with_nul()), cookie));
        show_link(made, program, 16, 24);
        show_query(made, program);
        show_descriptor("link", made);
        close(made);
    }
    close(program);
}

/// The id of a type of the running kernel's.
pub(super) fn kernel_type(kind: u32, name: &str) -> u64 {
    let bytes = std::fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default();
    let types = ring3_btf::Btf::parse_any(bytes).expect("the kernel has types");
    types.find(name.as_bytes(), kind).expect("it has this one").into()
}

/// Loads a program of type `TRACING`.
fn load_typed(what: &str, attach: u32, id: u64, insns: &[u64], other: (Field, u64)) -> i64 {
    use attr::prog_load as l;
    let attr = load_attr(prog_type::TRACING, insns).with(l::EXPECTED_ATTACH_TYPE, attach.into());
    show_fd(what, bpf(cmd::PROG_LOAD, &mut attr.with(l::ATTACH_BTF_ID, id).with(other.0, other.1)))
}

/// Programs that name a tracepoint by its type, and find arguments with types.
pub(crate) fn programs_are_attached_by_types() {
    use attr::link_create as l;
    use attr::prog_load as load;
    let [enter, exit] =
        ["sys_enter", "sys_exit"].map(|name| kernel_type(kind::TYPEDEF, &format!("btf_trace_{name}")));
    let none = (load::PROG_FLAGS, 0);
    let good = load_typed("good", attach_type::TRACE_RAW_TP, enter, &[load_at(8), MOV_R0_0, EXIT], none);
    for (what, attach, id, other) in [
        ("no type", attach_type::TRACE_RAW_TP, 0, none),
        ("a type that is not there", attach_type::TRACE_RAW_TP, 1 << 30, none),
        ("an integer's type", attach_type::TRACE_RAW_TP, 1, none),
        ("a program to attach to", attach_type::TRACE_RAW_TP, enter, (load::ATTACH_PROG_FD, 9999)),
    ] {
        close(load_typed(what, attach, id, &[MOV_R0_0, EXIT], other));
    }
    // r1 = the registers; then r0 = what lies at an offset of them.
    let first = 0x1179;
    for (what, insns) in [
        ("the registers", vec![first, 0x70_1079, EXIT]),
        ("half a register", vec![first, 0x70_1061, EXIT]),
        ("the last register", vec![first, 0xa0_1079, EXIT]),
        ("behind the registers", vec![first, 0xa8_1079, EXIT]),
        ("before the registers", vec![first, 0xfff8_1079, EXIT]),
        ("a register written", vec![first, 0x1_0000_0070_017a, MOV_R0_0, EXIT]),
        ("the argument written", vec![0x1_0000_0000_017a, MOV_R0_0, EXIT]),
        ("half an address", vec![0x1061, EXIT]),
        ("one argument too many", vec![load_at(16), EXIT]),
        ("the address", vec![load_at(0), EXIT]),
    ] {
        close(load_typed(what, attach_type::TRACE_RAW_TP, enter, &insns, none));
    }
    close(load_typed("result", attach_type::TRACE_RAW_TP, exit, &[load_at(8), EXIT], none));
    show_fd("by a name", open_raw(good, address(c"sys_enter".to_bytes_with_nul()), 0));
    for (what, target, kind, flags) in [
        ("link", 0, attach_type::TRACE_RAW_TP, 0),
        ("link of another type", 0, attach_type::TRACE_FENTRY, 0),
        ("link with flags", 0, attach_type::TRACE_RAW_TP, 1),
        ("link to something", 9999, attach_type::TRACE_RAW_TP, 1),
    ] {
        let attr = Attr::new().with(l::PROG_FD, good as u64).with(l::TARGET_FD, target).with(l::FLAGS, flags);
        let made = show_fd(what, bpf(cmd::LINK_CREATE, &mut attr.with(l::ATTACH_TYPE, kind.into())));
        if made >= 0 {
            show_link(made, good, 16, 24);
            close(made);
        }
    }
    let made = show_fd("open", open_raw(good, 0, 5));
    show_link(made, good, 16, 24);
    show_query(made, good);
    show_descriptor("link", made);
    close(made);
    close(good);
}

/// A file of the kprobe PMU, a number behind some word.
fn of_kprobes(file: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/sys/bus/event_source/devices/kprobe/{file}")).ok()?;
    text.trim().trim_start_matches("config:").parse().ok()
}

pub(crate) fn functions_of_system_calls_are_probed() {
    let (kind, bit) = (of_kprobes("type").unwrap_or(0), of_kprobes("format/retprobe").unwrap_or(63));
    println!("{MARK}type {} bit {bit}", kind > 6);
    let kprobe = |name: u64, offset, config| perf_event(kind as u32, config, name, offset);
    let text = |name: &'static std::ffi::CStr| address(name.to_bytes_with_nul());
    let openat = text(c"__x64_sys_openat");
    for (what, name, offset, config) in [
        ("entry", openat, 0, 0),
        ("return", openat, 0, 1 << bit),
        ("no such function", text(c"__x64_sys_nothing"), 0, 0),
        ("no name", text(c""), 0, 0),
        ("bad name", 8, 0, 0),
    ] {
        close(show_fd(what, open_event(&kprobe(name, offset, config), -1, 0, -1, p::FLAG_FD_CLOEXEC)));
    }
    show_fd("no processor", open_event(&kprobe(openat, 0, 0), -1, -1, -1, 0));
    show_fd("no process", open_event(&kprobe(openat, 0, 0), 2_000_000_000, -1, -1, 0));
    let event = show_fd("again", open_event(&kprobe(openat, 0, 0), -1, 0, -1, 0));
    let mut query = [0u32; 4];
    show("query", ioctl(event, p::IOC_QUERY_BPF, &raw mut query as u64));
    show("ask", ask(std::process::id(), event, 0));
    for kind in [prog_type::TRACEPOINT, prog_type::RAW_TRACEPOINT] {
        let other = program("other program", kind, MOV_R0_0);
        show("set", ioctl(event, p::IOC_SET_BPF, other as u64));
        show_fd("link", link(other, event, attach_type::PERF_EVENT, 0));
        close(other);
    }
    close(event);
}
