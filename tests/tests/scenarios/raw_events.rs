//! Perf events, links, and waiting for buffers.

use crate::calls::raw_bpf::{Attr, address, bpf, result};
use crate::calls::site::site;
use ring3_tests::wait_until;
use ring3_uapi::Errno;
use ring3_uapi::attr;
use ring3_uapi::attr::Field;
use ring3_uapi::bpf::{attach_type, cmd, map_type, prog_type};

use super::raw_calls::{EXIT, MARK, MOV_R0_0, close, create, element, load_attr, show, show_fd};

/// `struct perf_event_attr` of a uprobe.
pub(crate) fn perf_event(kind: u32, config: u64, path: u64, offset: u64) -> [u8; 136] {
    use ring3_uapi::perf as p;
    let mut attr = [0u8; 136];
    let mut put = |field: Field, value: u64| {
        attr[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
    };
    put(p::TYPE, kind.into());
    put(p::SIZE, 136);
    put(p::CONFIG, config);
    put(p::CONFIG1, path);
    put(p::CONFIG2, offset);
    attr
}

pub(crate) fn open_event(attr: &[u8; 136], pid: i32, cpu: i32, group: i32, flags: u64) -> Result<i64, Errno> {
    // SAFETY: perf_event_open reads 136 bytes at the address.
    result(unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), pid, cpu, group, flags) })
}

pub(crate) fn uprobe_type() -> u32 {
    let text = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

pub(crate) fn ioctl(fd: i64, request: u32, argument: u64) -> Result<i64, Errno> {
    // SAFETY: perf events' requests take numbers, or addresses that the kernel checks.
    result(i64::from(unsafe { libc::ioctl(fd as i32, libc::c_ulong::from(request), argument) }))
}

pub(crate) fn uprobe_events_are_checked() {
    let kind = uprobe_type();
    let (path, offset) = site();
    let text = address(path.to_bytes_with_nul());
    let paths: [(&str, &std::ffi::CStr); 6] = [
        ("none", c""),
        ("absent", c"/no/such/file"),
        ("folder", c"/usr"),
        ("device", c"/dev/null"),
        ("relative", c"bin/no"),
        ("not a folder", c"/bin/true/x"),
    ];
    for (what, path) in paths {
        let attr = perf_event(kind, 0, address(path.to_bytes_with_nul()), 0);
        close(show_fd(what, open_event(&attr, -1, 0, -1, 0)));
    }
    let attr = perf_event(kind, 0, text, 1 << 40);
    show_fd("offset behind the file", open_event(&attr, -1, 0, -1, 0));
    show_fd("no path", open_event(&perf_event(kind, 0, 0, 0), -1, 0, -1, 0));
    show_fd("bad path", open_event(&perf_event(kind, 0, 8, 0), -1, 0, -1, 0));
    let good = perf_event(kind, 0, text, offset);
    for (pid, cpu, group, flags) in [
        (-1, -1, -1, 0),
        (-1, 0, -1, 0),
        (-1, 0, -1, 8),
        (-1, 0, -1, 1 << 10),
        (-1, 99999, -1, 0),
        (-1, -2, -1, 0),
        (0, -1, -1, 0),
        (0, 0, -1, 0),
        (2_000_000_000, -1, -1, 0),
    ] {
        let fd = show_fd(
            &format!("pid {pid} cpu {cpu} group {group} flags {flags}"),
            open_event(&good, pid, cpu, group, flags),
        );
        if fd >= 0 {
            // SAFETY: takes no memory.
            println!("{MARK}  close on exec {}", unsafe { libc::fcntl(fd as i32, libc::F_GETFD) });
        }
        close(fd);
    }
    use ring3_uapi::perf as p;
    for (bytes, last) in [(8, 0), (63, 0), (72, 0), (136, 0), (300, 0), (300, 1), (4096, 0), (4097, 0)] {
        let (bytes, last): (u32, u8) = (bytes, last);
        let mut attr = [0u8; 5000];
        attr[..136].copy_from_slice(&good);
        attr[p::SIZE.at..p::SIZE.end()].copy_from_slice(&bytes.to_ne_bytes());
        attr[299] = last;
        // SAFETY: perf_event_open reads and writes at most 4097 bytes at the address.
        let opened = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_mut_ptr(), -1, 0, -1, 0) };
        close(show_fd(&format!("attr of {bytes} bytes, tail {last}"), result(opened)));
        println!("{MARK}  size {}", u32::from_ne_bytes(attr[4..8].try_into().expect("4 bytes")));
    }
    for (what, field, value) in [
        ("reserved flags", p::FLAGS, 1u64 << 63),
        ("disabled", p::FLAGS, 1),
        ("unknown sample type", p::SAMPLE_TYPE, 1 << 40),
        ("reserved word", ring3_uapi::attr::word(108), 1),
        ("config bits", p::CONFIG, 1 << 8),
    ] {
        let mut attr = good;
        attr[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
        close(show_fd(what, open_event(&attr, -1, 0, -1, 0)));
    }
    let ret = show_fd("on return", open_event(&perf_event(kind, 1, text, offset), -1, 0, -1, 0));
    let event = show_fd("good", open_event(&good, -1, 0, -1, 0));
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT])));
    let filter = show_fd("filter", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::SOCKET_FILTER, &[MOV_R0_0, EXIT])));
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 4, 1, 0)));
    let (mut id, mut query) = (0u64, [0u32; 4]);
    for (what, request, argument) in [
        ("id", p::IOC_ID, &raw mut id as u64),
        ("id nowhere", p::IOC_ID, 8),
        ("set filter", p::IOC_SET_BPF, filter as u64),
        ("set map", p::IOC_SET_BPF, map as u64),
        ("set nothing", p::IOC_SET_BPF, u64::MAX),
        ("set program", p::IOC_SET_BPF, program as u64),
        ("set program again", p::IOC_SET_BPF, program as u64),
        ("enable", p::IOC_ENABLE, 0),
        ("enable again", p::IOC_ENABLE, 0),
        ("disable", p::IOC_DISABLE, 0),
        ("reset", p::IOC_RESET, 0),
        ("refresh", p::IOC_REFRESH, 1),
        ("query", p::IOC_QUERY_BPF, &raw mut query as u64),
        ("unknown", 0x24ff, 0),
    ] {
        show(what, ioctl(event, request, argument));
    }
    links_are_checked(ret, event, program, filter, map);
    close(event);
    close(ret);
}

pub(crate) fn links_are_checked(ret: i64, event: i64, program: i64, filter: i64, map: i64) {
    use attr::link_create as l;
    let link = |program: i64, target: i64, kind: u32, flags: u64| {
        let attr = Attr::new().with(l::PROG_FD, program as u64).with(l::TARGET_FD, target as u64);
        bpf(
            cmd::LINK_CREATE,
            &mut attr.with(l::ATTACH_TYPE, kind.into()).with(l::FLAGS, flags).with(l::PERF_EVENT_COOKIE, 77),
        )
    };
    let kind = attach_type::PERF_EVENT;
    show_fd("link to nothing", link(program, -1, kind, 0));
    show_fd("link to a map", link(program, map, kind, 0));
    show_fd("link of no program", link(-1, event, kind, 0));
    show_fd("link of a map", link(map, event, kind, 0));
    show_fd("link of a filter", link(filter, ret, kind, 0));
    show_fd("link with flags", link(program, ret, kind, 1));
    show_fd("link of another type", link(program, ret, attach_type::XDP, 0));
    show_fd("link to a taken event", link(program, event, kind, 0));
    let made = show_fd("link", link(program, ret, kind, 0));
    show_fd("second link", link(program, ret, kind, 0));
    show("detach", bpf(cmd::LINK_DETACH, &mut Attr::new().with(l::PROG_FD, made as u64)));
    show("detach a map", bpf(cmd::LINK_DETACH, &mut Attr::new().with(l::PROG_FD, map as u64)));
    let mut told = [0u8; 64];
    let mut name = [0u8; 64];
    for room in [0u32, 5, 64] {
        told.fill(0);
        name.fill(0);
        if room > 0 {
            told[24..32].copy_from_slice(&(name.as_mut_ptr() as u64).to_ne_bytes());
            told[32..36].copy_from_slice(&room.to_ne_bytes());
        }
        let attr = Attr::new().with(attr::info::BPF_FD, made as u64).with(attr::info::INFO_LEN, 64);
        show("link info", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(attr::info::INFO, told.as_mut_ptr() as u64)));
        told[4..12].fill(0); // ids
        told[24..32].fill(0);
        println!("{MARK}  {told:?} {:?}", String::from_utf8_lossy(&name));
    }
    close(made);
    wait_until("free again", || match link(program, ret, kind, 0) {
        Ok(fd) => {
            close(fd);
            true
        }
        Err(_) => false,
    });
}

pub(crate) fn buffers_can_be_waited_for() {
    let ring = show_fd("ring", bpf(cmd::MAP_CREATE, &mut create(map_type::RINGBUF, 0, 0, 4096, 0)));
    // SAFETY: takes no memory.
    let ready = unsafe { libc::eventfd(1, 0) };
    let entry = |fd: i64| libc::pollfd { fd: fd as i32, events: libc::POLLIN, revents: 77 };
    for fds in [vec![ring], vec![ring, i64::from(ready)], vec![ring, 999], vec![-1, ring]] {
        let mut entries: Vec<libc::pollfd> = fds.iter().map(|fd| entry(*fd)).collect();
        for timeout in [0, 5] {
            // SAFETY: poll reads and writes the entries, whose number it is told.
            let polled = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout) };
            show("poll", result(polled.into()));
            println!("{MARK}  {:?}", entries.iter().map(|entry| entry.revents).collect::<Vec<_>>());
            let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(timeout) * 1_000_000 };
            // SAFETY: as for poll; the time is read.
            let polled =
                unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, &time, std::ptr::null()) };
            show("ppoll", result(polled.into()));
        }
    }
    select_waits(ring, ready);
    // SAFETY: takes no memory.
    let epoll = unsafe { libc::epoll_create1(0) };
    let control = |operation: i32, fd: i64, event: Option<&mut libc::epoll_event>| {
        let event = event.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: epoll_ctl reads the event where there is one.
        result(unsafe { libc::epoll_ctl(epoll, operation, fd as i32, event) }.into())
    };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 42 };
    show("modify before", control(libc::EPOLL_CTL_MOD, ring, Some(&mut event)));
    show("delete before", control(libc::EPOLL_CTL_DEL, ring, None));
    show("add without event", control(libc::EPOLL_CTL_ADD, ring, None));
    show("add", control(libc::EPOLL_CTL_ADD, ring, Some(&mut event)));
    show("add again", control(libc::EPOLL_CTL_ADD, ring, Some(&mut event)));
    show("unknown operation", control(9, ring, Some(&mut event)));
    // SAFETY: epoll_wait writes at most one event.
    show("wait", result(unsafe { libc::epoll_wait(epoll, &mut event, 1, 3) }.into()));
    show("modify", control(libc::EPOLL_CTL_MOD, ring, Some(&mut event)));
    show("delete", control(libc::EPOLL_CTL_DEL, ring, None));
    show("delete again", control(libc::EPOLL_CTL_DEL, ring, None));
    perf_buffers_can_be_waited_for(epoll);
}

pub(crate) fn select_waits(ring: i64, ready: i32) {
    // What a table has no room for is not waited for: give both sides' tables the same room, for 256 descriptors.
    // SAFETY: takes no memory.
    let high = unsafe { libc::dup2(ready, 200) };
    // SAFETY: takes no memory.
    unsafe { libc::close(high) };
    let set_of = |fds: &[i64]| {
        fds.iter().fold([0u64; 16], |mut set, fd| {
            set[*fd as usize / 64] |= 1 << (fd % 64);
            set
        })
    };
    let both = [ring, i64::from(ready)];
    for (read, write, fraction) in [
        (&both[..1], &both[..0], 3000u64),
        (&both[..], &both[..0], 3000),
        (&both[..], &both[..], 0),
        (&[ring, 100], &both[..0], 3000),
        (&[ring, 600], &both[..0], 3000),
        (&both[..1], &both[..0], u64::MAX),
        (&both[..1], &both[..0], 0),
    ] {
        for call in [libc::SYS_select, libc::SYS_pselect6] {
            let (mut reads, mut writes, mut time) = (set_of(read), set_of(write), [0u64, fraction]);
            let null = std::ptr::null_mut::<u64>();
            let (reads_at, writes_at, time_at) = (reads.as_mut_ptr(), writes.as_mut_ptr(), time.as_mut_ptr());
            // SAFETY: select reads and writes the sets, of 1024 bits, and the time.
            let done = unsafe { libc::syscall(call, 1024, reads_at, writes_at, null, time_at, null) };
            show("select", result(done));
            println!(
                "{MARK}  {:?} {:?} time left {}",
                reads == set_of(read),
                writes == set_of(write),
                time[1] == fraction
            );
        }
    }
}

pub(crate) fn perf_buffers_can_be_waited_for(epoll: i32) {
    use ring3_uapi::perf as p;
    let array = show_fd("perf array", bpf(cmd::MAP_CREATE, &mut create(map_type::PERF_EVENT_ARRAY, 4, 4, 2, 0)));
    let mut attr = perf_event(p::TYPE_SOFTWARE, p::COUNT_SW_BPF_OUTPUT, 0, 0);
    attr[p::SAMPLE_TYPE.at..p::SAMPLE_TYPE.end()].copy_from_slice(&(1u64 << 10).to_ne_bytes());
    let event = show_fd("output event", open_event(&attr, -1, 0, -1, p::FLAG_FD_CLOEXEC));
    let mut ready = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 42 };
    // SAFETY: epoll_ctl reads the event.
    let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event as i32, &mut ready) };
    show("add before mmap", result(added.into()));
    for (index, fd, flags) in
        [(0u32, event, 0u64), (5, event, 0), (0, event, 1), (0, array, 0), (0, -1, 0), (1, 0, 0), (1, event, 0)]
    {
        let mut value = (fd as i32).to_ne_bytes();
        let done = element(array, cmd::MAP_UPDATE_ELEM, Some(&index.to_ne_bytes()), &mut value, flags);
        show(&format!("event at {index} with {flags}"), done);
    }
    for (pages, offset) in [(3usize, 0), (4, 0), (5, 4096), (5, 0), (5, 0), (9, 0)] {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), pages * 4096, protection, libc::MAP_SHARED, event as i32, offset)
        };
        let made = if at == libc::MAP_FAILED { result(-1) } else { Ok(0) };
        show(&format!("mmap {pages} pages at {offset}"), made);
        if made.is_ok() {
            let page: *const [u64; 132] = at.cast_const().cast();
            // SAFETY: the first mapped page is a perf_event_mmap_page of more than 132 words.
            let page = unsafe { &*page };
            let (data_at, bytes) = (page[130], page[131]);
            println!("{MARK}  data at {data_at}, {bytes} bytes");
        }
    }
    for request in [p::IOC_ENABLE, p::IOC_DISABLE, p::IOC_RESET] {
        show("ioctl", ioctl(event, request, 0));
    }
    for index in [0u32, 0, 7] {
        let attr = Attr::new().with(attr::map_elem::MAP_FD, array as u64);
        let key = index.to_ne_bytes();
        show(
            &format!("delete {index}"),
            bpf(cmd::MAP_DELETE_ELEM, &mut attr.with(attr::map_elem::KEY, address(&key))),
        );
    }
    let mut entry = libc::pollfd { fd: event as i32, events: libc::POLLIN, revents: 0 };
    // SAFETY: poll reads and writes one entry.
    show("poll a perf buffer", result(unsafe { libc::poll(&mut entry, 1, 3) }.into()));
}
