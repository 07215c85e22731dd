//! Reference counters of uprobes, and links to many uprobes.

use std::ffi::CStr;

use crate::calls::raw_bpf::{Attr, address, bpf};
use crate::calls::site::place;
use ring3_tests::wait_until;
use ring3_uapi::Errno;
use ring3_uapi::attr::{self, Field, info, link_create as c, link_info as l, prog_load};
use ring3_uapi::bpf::{attach_type, cmd, prog_type};

use super::raw_calls::{EXIT, MARK, MOV_R0_0, close, load_attr, show, show_descriptor, show_fd};
use super::raw_events::{open_event, perf_event, uprobe_type};

/// An offset that no file here has, so that nothing is counted there.
const NOWHERE: u64 = 0x7fff_0000;

/// What is probed here, and by no other scenario: all uprobes of a place have the same counter.
#[inline(never)]
extern "C" fn counted(value: u64) -> u64 {
    std::hint::black_box(value).rotate_left(9)
}

#[inline(never)]
extern "C" fn other(value: u64) -> u64 {
    std::hint::black_box(value).rotate_left(11)
}

#[inline(never)]
extern "C" fn third(value: u64) -> u64 {
    std::hint::black_box(value).rotate_left(13)
}

fn offset_of(function: extern "C" fn(u64) -> u64) -> u64 {
    place(std::hint::black_box(function) as usize as u64).1
}

pub(crate) fn counters_of_uprobes_are_checked() {
    let (path, offset) = place(std::hint::black_box(counted as extern "C" fn(u64) -> u64) as usize as u64);
    let text = address(path.to_bytes_with_nul());
    let open = |counter: u64, ret: u64| {
        open_event(&perf_event(uprobe_type(), counter << 32 | ret, text, offset), -1, 0, -1, 0)
    };
    show_fd("not aligned", open(NOWHERE + 1, 0));
    show_fd("not aligned, on return", open(0xffff_ffff, 1));
    let first = show_fd("nowhere", open(NOWHERE, 0));
    let second = show_fd("nowhere, on return", open(NOWHERE, 1));
    for (what, counter, ret) in [("another counter", NOWHERE + 2, 0), ("no counter", 0, 0), ("none, on return", 0, 1)]
    {
        show_fd(what, open(counter, ret));
    }
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT])));
    let link = Attr::new().with(c::PROG_FD, program as u64).with(c::TARGET_FD, second as u64);
    let mut link = link.with(c::ATTACH_TYPE, attach_type::PERF_EVENT.into()).with(c::PERF_EVENT_COOKIE, 5);
    let link = show_fd("link", bpf(cmd::LINK_CREATE, &mut link));
    let mut told = [0u8; 64];
    let ask = Attr::new().with(info::BPF_FD, link as u64).with(info::INFO_LEN, 64);
    show("info", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut ask.with(info::INFO, told.as_mut_ptr() as u64)));
    let word = |field: Field| u64::from_ne_bytes(told[field.at..field.end()].try_into().expect("8 bytes"));
    println!("{MARK}  counter {:#x}, cookie {}", word(l::UPROBE_REF_CTR_OFFSET), word(l::UPROBE_COOKIE));
    show_descriptor("event", second);
    show_descriptor("link", link);
    for fd in [link, second, first] {
        close(fd);
    }
    wait_until("the place is free again", || open(0, 0).map(close).is_ok());
    show("the place again", open(0, 0).map(|_| 0));
}

/// A program for links to many uprobes.
fn program_for(kind: u32) -> i64 {
    let mut attr = load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT]).with(prog_load::EXPECTED_ATTACH_TYPE, kind.into());
    show_fd("program", bpf(cmd::PROG_LOAD, &mut attr))
}

pub(crate) fn links_to_many_uprobes_are_checked() {
    let path = place(std::hint::black_box(other as extern "C" fn(u64) -> u64) as usize as u64).0;
    let offsets = [offset_of(other), offset_of(third), offset_of(other)];
    let (counters, cookies) = ([NOWHERE, NOWHERE + 2, NOWHERE], [7u64, 8, u64::MAX]);
    let program = program_for(attach_type::TRACE_UPROBE_MULTI);
    let good = || {
        Attr::new()
            .with(c::PROG_FD, program as u64)
            .with(c::ATTACH_TYPE, attach_type::TRACE_UPROBE_MULTI.into())
            .with(c::UPROBE_MULTI_PATH, address(path.to_bytes_with_nul()))
            .with(c::UPROBE_MULTI_OFFSETS, address(&offsets))
            .with(c::UPROBE_MULTI_CNT, 3)
    };
    let paths: [(&str, &CStr); 5] = [
        ("no path", c""),
        ("absent", c"/no/such/file"),
        ("a folder", c"/"),
        ("a device", c"/dev/null"),
        ("not a folder", c"/bin/true/x"),
    ];
    for (what, path) in paths {
        let mut attr = good().with(c::UPROBE_MULTI_PATH, address(path.to_bytes_with_nul()));
        show_fd(what, bpf(cmd::LINK_CREATE, &mut attr));
    }
    let odd = [NOWHERE + 1, 0, 0];
    let negative = [offsets[0], 1 << 63, 0];
    let differ = [NOWHERE, 0, NOWHERE + 2];
    for (what, field, value) in [
        ("link flags", c::FLAGS, 1),
        ("unknown flags", c::UPROBE_MULTI_FLAGS, 2),
        ("null path", c::UPROBE_MULTI_PATH, 0),
        ("bad path", c::UPROBE_MULTI_PATH, 8),
        ("null offsets", c::UPROBE_MULTI_OFFSETS, 0),
        ("bad offsets", c::UPROBE_MULTI_OFFSETS, 8),
        ("negative offset", c::UPROBE_MULTI_OFFSETS, address(&negative)),
        ("offset behind the file", c::UPROBE_MULTI_OFFSETS, address(&[offsets[0], 1 << 40, offsets[0]])),
        ("bad counters", c::UPROBE_MULTI_REF_CTR_OFFSETS, 8),
        ("negative counter", c::UPROBE_MULTI_REF_CTR_OFFSETS, address(&negative)),
        ("counter not aligned", c::UPROBE_MULTI_REF_CTR_OFFSETS, address(&odd)),
        ("counters that differ", c::UPROBE_MULTI_REF_CTR_OFFSETS, address(&differ)),
        ("bad cookies", c::UPROBE_MULTI_COOKIES, 8),
        ("none", c::UPROBE_MULTI_CNT, 0),
        ("too many", c::UPROBE_MULTI_CNT, (1 << 20) + 1),
        ("negative pid", c::UPROBE_MULTI_PID, u32::MAX.into()),
        ("no process", c::UPROBE_MULTI_PID, 2_000_000_000),
        ("no program", c::PROG_FD, u32::MAX.into()),
        ("another attach type", c::ATTACH_TYPE, attach_type::PERF_EVENT.into()),
        ("for kprobes", c::ATTACH_TYPE, attach_type::TRACE_KPROBE_MULTI.into()),
        ("a session", c::ATTACH_TYPE, attach_type::TRACE_UPROBE_SESSION.into()),
        ("behind the last member", attr::word(c::UPROBE_MULTI_PID.end()), 1),
    ] {
        show_fd(what, bpf(cmd::LINK_CREATE, &mut good().with(field, value)));
    }
    let plain = program_for(0);
    show_fd("a program for one", bpf(cmd::LINK_CREATE, &mut good().with(c::PROG_FD, plain as u64)));
    let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep runs");
    for (what, flags, pid) in [("on entry", 0, 0), ("on return", 1, 0), ("of a process", 0, sleeper.id())] {
        let attr = good().with(c::UPROBE_MULTI_FLAGS, flags).with(c::UPROBE_MULTI_PID, pid.into());
        let link = show_fd(what, bpf(cmd::LINK_CREATE, &mut attr.clone()));
        tell(link, pid, &path.to_string_lossy());
        close(link);
    }
    sleeper.kill().and_then(|()| sleeper.wait()).expect("ended");
    let attr = good().with(c::UPROBE_MULTI_REF_CTR_OFFSETS, address(&counters));
    let attr = attr.with(c::UPROBE_MULTI_COOKIES, address(&cookies));
    let mut made: Result<i64, Errno> = Err(Errno::EINVAL);
    wait_until("the places have no other counters", || {
        made = bpf(cmd::LINK_CREATE, &mut attr.clone());
        made.is_ok()
    });
    let link = show_fd("with counters and cookies", made);
    tell(link, 0, &path.to_string_lossy());
    show_descriptor("link", link);
    show("detach", bpf(cmd::LINK_DETACH, &mut Attr::new().with(c::PROG_FD, link as u64)));
    close(link);
}

/// What is told of a link, with room of many sizes.
fn tell(link: i64, pid: u32, file: &str) {
    let lists = [l::MULTI_OFFSETS, l::MULTI_REF_CTR_OFFSETS, l::MULTI_COOKIES];
    let ask = |room: u64, count: u32, bad: bool| {
        let (mut told, mut path, mut words) = ([0u8; 64], vec![0u8; 4096], [[1u64; 4]; 3]);
        let mut put = |field: Field, value: u64| {
            told[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
        };
        put(l::MULTI_PATH, if bad { 8 } else { path.as_mut_ptr() as u64 });
        put(l::MULTI_PATH_SIZE, room);
        put(l::MULTI_COUNT, count.into());
        for (field, words) in lists.into_iter().zip(&mut words).filter(|_| count != 0 || bad) {
            put(field, if bad { 8 } else { words.as_mut_ptr() as u64 });
        }
        if room == 0 && !bad {
            put(l::MULTI_PATH, 0);
        }
        let attr = Attr::new().with(info::BPF_FD, link as u64).with(info::INFO_LEN, 64);
        let asked = bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(info::INFO, told.as_mut_ptr() as u64));
        show(&format!("info with room for {room} and {count}, bad {bad}"), asked);
        let word = |field: Field| u32::from_ne_bytes(told[field.at..field.end()].try_into().expect("4 bytes"));
        let shown = String::from_utf8_lossy(&path);
        let shown = shown.trim_end_matches('\0');
        let size = word(l::MULTI_PATH_SIZE) as usize;
        println!(
            "{MARK}  type {} size {} path {} count {} flags {} pid {}",
            word(l::TYPE),
            size == file.len() + 1,
            shown == file,
            word(l::MULTI_COUNT),
            word(l::MULTI_FLAGS),
            word(l::MULTI_PID) == pid
        );
        let offsets = words[0].iter().map(|word| *word != 1).collect::<Vec<_>>();
        println!("{MARK}  {offsets:?} {:?} {:?}", words[1], words[2]);
    };
    for (room, count) in [(0, 0), (4096, 0), (4096, 3), (0, 3), (4096, 4), (0, 2), (5, 0)] {
        ask(room, count, false);
    }
    ask(4096, 3, true);
    ask(0, 0, true);
}
