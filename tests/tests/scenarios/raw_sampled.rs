//! Programs of perf events that the kernel counts: clocks, and others that it samples.

use crate::calls::raw_bpf::{Attr, address, bpf};
use ring3_tests::wait_until;
use ring3_uapi::Errno;
use ring3_uapi::attr::{self, Field, task_fd_query as q};
use ring3_uapi::bpf::{attach_type, cmd, map_type, prog_type};
use ring3_uapi::perf as p;

use super::raw_calls::{MARK, close, create, element, show, show_descriptor, show_fd};
use super::raw_events::{ioctl, open_event, perf_event};
use super::raw_test_runs::load;

const MILLISECOND: u64 = 1_000_000;

fn event(kind: u32, config: u64, fields: &[(Field, u64)]) -> [u8; 136] {
    let mut attr = perf_event(kind, config, 0, 0);
    for (field, value) in fields {
        attr[field.at..field.end()].copy_from_slice(&value.to_ne_bytes()[..field.bytes]);
    }
    attr
}

pub(super) fn clock(fields: &[(Field, u64)]) -> [u8; 136] {
    event(p::TYPE_SOFTWARE, p::COUNT_SW_CPU_CLOCK, fields)
}

/// A map of words, and a program that adds its cookie and one to the first word and to the second.
fn counter() -> (i64, i64) {
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 16, 1, 0)));
    let text = format!(
        "
        r6 = r1
        *(u32 *)(r10 -4) = 0
        r2 = r10
        r2 += -4
        r1 = map[fd:{map}]
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r7 = r0
        r1 = r6
        call bpf_get_attach_cookie
        lock *(u64 *)(r7 +0) += r0
        r1 = 1
        lock *(u64 *)(r7 +8) += r1
    out:
        r0 = 0
        exit"
    );
    (map, load("counter", prog_type::PERF_EVENT, &text))
}

/// The sum of cookies, and how often the program ran.
fn counted(map: i64) -> (u64, u64) {
    let mut value = [0; 16];
    element(map, cmd::MAP_LOOKUP_ELEM, Some(&[0; 4]), &mut value, 0).expect("there is one");
    let word = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().expect("8 bytes"));
    (word(0), word(8))
}

/// Waits until the program has run some more times.
fn runs(what: &str, map: i64) {
    let before = counted(map).1;
    wait_until(what, || counted(map).1 >= before + 3);
    println!("{MARK}{what}: it runs");
}

/// Waits until the program runs no more: in as long as it would have run for many times.
fn rests(what: &str, map: i64) {
    wait_until(what, || {
        let before = counted(map).1;
        std::thread::sleep(std::time::Duration::from_millis(50));
        counted(map).1 == before
    });
    println!("{MARK}{what}: it rests");
}

pub(crate) fn clocks_run_programs() {
    for (what, fields, cpu) in [
        ("period", &[(p::SAMPLE_PERIOD, MILLISECOND)][..], 0),
        ("frequency", &[(p::SAMPLE_PERIOD, 1000), (p::FLAGS, p::FLAG_FREQ)], 0),
        ("too high a frequency", &[(p::SAMPLE_PERIOD, 1 << 40), (p::FLAGS, p::FLAG_FREQ)], 0),
        ("too long a period", &[(p::SAMPLE_PERIOD, 1 << 63)], 0),
        ("no such CPU", &[(p::SAMPLE_PERIOD, MILLISECOND)], 99_999),
        ("every CPU", &[(p::SAMPLE_PERIOD, MILLISECOND)], -1),
        ("reserved flags", &[(p::SAMPLE_PERIOD, MILLISECOND), (p::FLAGS, 1 << 63)], 0),
    ] {
        close(show_fd(what, open_event(&clock(fields), -1, cpu, -1, 0)));
    }
    let (map, program) = counter();
    let filter = load("filter", prog_type::SOCKET_FILTER, "r0 = 0\nexit");
    let probe = load("kprobe", prog_type::KPROBE, "r0 = 0\nexit");
    let disabled = clock(&[(p::SAMPLE_PERIOD, MILLISECOND), (p::FLAGS, p::FLAG_DISABLED)]);
    let event = show_fd("event", open_event(&disabled, -1, 0, -1, p::FLAG_FD_CLOEXEC));
    for (what, set) in [
        ("filter", filter),
        ("kprobe", probe),
        ("map", map),
        ("nothing", -1),
        ("program", program),
        ("again", program),
    ] {
        show(&format!("set {what}"), ioctl(event, p::IOC_SET_BPF, set as u64));
    }
    rests("before it is enabled", map);
    show("enable", ioctl(event, p::IOC_ENABLE, 0));
    runs("enabled", map);
    show("enable again", ioctl(event, p::IOC_ENABLE, 0));
    show("disable", ioctl(event, p::IOC_DISABLE, 0));
    rests("disabled", map);
    show("refresh", ioctl(event, p::IOC_REFRESH, 1));
    runs("refreshed", map);
    requests_are_checked(event);
    runs("with another period", map);
    links_run_programs(event, map, program);
    close(event);
    rests("closed", map);
    for fd in [map, program, filter, probe] {
        close(fd);
    }
}

fn requests_are_checked(event: i64) {
    let (mut id, mut query) = (0u64, [0u32; 4]);
    for (what, request, argument) in [
        ("id", p::IOC_ID, &raw mut id as u64),
        ("id nowhere", p::IOC_ID, 8),
        ("reset", p::IOC_RESET, 0),
        ("no output", p::IOC_SET_OUTPUT, u64::MAX),
        ("pause", p::IOC_PAUSE_OUTPUT, 1),
        ("query", p::IOC_QUERY_BPF, &raw mut query as u64),
        ("no period", p::IOC_PERIOD, address(&0u64)),
        ("too long a period", p::IOC_PERIOD, address(&(1u64 << 63))),
        ("a period nowhere", p::IOC_PERIOD, 8),
        ("a period", p::IOC_PERIOD, address(&(2 * MILLISECOND))),
        ("unknown", 0x24ff, 0),
    ] {
        show(what, ioctl(event, request, argument));
    }
    let pid = u64::from(std::process::id());
    show("ask", bpf(cmd::TASK_FD_QUERY, &mut Attr::new().with(q::PID, pid).with(q::FD, event as u64)));
}

fn links_run_programs(taken: i64, map: i64, program: i64) {
    use attr::link_create as l;
    let link = |target: i64| {
        let attr = Attr::new().with(l::PROG_FD, program as u64).with(l::TARGET_FD, target as u64);
        bpf(
            cmd::LINK_CREATE,
            &mut attr.with(l::ATTACH_TYPE, attach_type::PERF_EVENT.into()).with(l::PERF_EVENT_COOKIE, 7),
        )
    };
    show_fd("link to a taken event", link(taken));
    show("disable", ioctl(taken, p::IOC_DISABLE, 0));
    rests("disabled again", map);
    let enabled = clock(&[(p::SAMPLE_PERIOD, MILLISECOND)]);
    let event = show_fd("another event", open_event(&enabled, -1, 0, -1, 0));
    let before = counted(map);
    let made = show_fd("link", link(event));
    show_fd("second link", link(event));
    show("set by the link", ioctl(event, p::IOC_SET_BPF, program as u64));
    runs("linked", map);
    let mut told = [0u8; 64];
    let attr = Attr::new().with(attr::info::BPF_FD, made as u64).with(attr::info::INFO_LEN, 64);
    show("link info", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(attr::info::INFO, told.as_mut_ptr() as u64)));
    told[4..12].fill(0); // ids
    // The type of the event: the kernel tells a number of its own, which nobody else knows.
    told[32..36].fill(0);
    println!("{MARK}  {told:?}");
    show_descriptor("event", event);
    show_descriptor("link", made);
    close(event);
    runs("linked, and the event is closed", map);
    close(made);
    rests("the link is closed", map);
    let after = counted(map);
    println!("{MARK}cookies: {}", (after.0 - before.0) == 7 * (after.1 - before.1));
}

/// What only root may ask: what threads do.
pub(crate) fn sampled_events_run_programs() {
    const ME: i32 = 0;
    let (map, program) = counter();
    let seen = show_fd("words", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 72, 1, 0)));
    let asks = load(
        "asks",
        prog_type::PERF_EVENT,
        &format!(
            "
        r6 = r1
        *(u32 *)(r10 -4) = 0
        r2 = r10
        r2 += -4
        r1 = map[fd:{seen}]
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r7 = r0
        call bpf_get_current_pid_tgid
        *(u64 *)(r7 +0) = r0
        call bpf_get_current_uid_gid
        *(u64 *)(r7 +8) = r0
        r1 = r7
        r1 += 16
        r2 = 16
        call bpf_get_current_comm
        r3 = *(u64 *)(r6 +152)
        r1 = r7
        r1 += 40
        r2 = 8
        call bpf_probe_read_user
        *(u64 *)(r7 +48) = r0
        r1 = r6
        r2 = 0
        r3 = 0
        r4 = 1
        call bpf_read_branch_records
        *(u64 *)(r7 +56) = r0
        r1 = r6
        r2 = 0
        r3 = 0
        r4 = 2
        call bpf_read_branch_records
        *(u64 *)(r7 +64) = r0
        r1 = *(u64 *)(r6 +168)
        *(u64 *)(r7 +32) = r1
    out:
        r0 = 0
        exit"
        ),
    );
    let faults = event(p::TYPE_SOFTWARE, 2, &[(p::SAMPLE_PERIOD, 10)]);
    for (what, pid, cpu) in [("me", ME, -1), ("no process", 2_000_000_000, -1), ("nobody anywhere", -1, -1)] {
        close(show_fd(what, open_event(&faults, pid, cpu, -1, 0)));
    }
    let exclude_kernel = 1 << 5;
    let mine = event(p::TYPE_SOFTWARE, 2, &[(p::SAMPLE_PERIOD, 10), (p::FLAGS, exclude_kernel)]);
    let own = show_fd("my page faults", open_event(&mine, ME, -1, -1, 0));
    show("set", ioctl(own, p::IOC_SET_BPF, program as u64));
    let clock = clock(&[(p::SAMPLE_PERIOD, MILLISECOND), (p::FLAGS, exclude_kernel)]);
    let time = show_fd("my time", open_event(&clock, ME, -1, -1, 0));
    show("set", ioctl(time, p::IOC_SET_BPF, asks as u64));
    fault(1000);
    wait_until("every tenth fault has been seen", || counted(map).1 >= 100);
    let few = counted(map).1 < 500;
    println!("{MARK}faults: {few}");
    let mut value = [0u8; 72];
    wait_until("something was seen", || {
        std::hint::black_box((0..100_000u64).sum::<u64>());
        element(seen, cmd::MAP_LOOKUP_ELEM, Some(&[0; 4]), &mut value, 0).expect("there is one");
        value[32] | value[33] | value[34] != 0
    });
    // Once more: the program may run on another CPU while a value is copied. It writes the period last.
    element(seen, cmd::MAP_LOOKUP_ELEM, Some(&[0; 4]), &mut value, 0).expect("there is one");
    let word = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().expect("8 bytes"));
    // SAFETY: takes no memory.
    let tid = unsafe { libc::gettid() } as u64;
    println!("{MARK}me: {}", word(0) == u64::from(std::process::id()) << 32 | tid);
    println!("{MARK}user: {} period: {}", word(8), word(32));
    let name = std::fs::read_to_string("/proc/thread-self/comm").expect("it has one");
    println!("{MARK}name: {}", value[16..32].starts_with(name.trim_end().as_bytes()));
    println!("{MARK}my stack was read: {}", word(48) as i64);
    println!("{MARK}branches: {} {}", word(56) as i64, word(64) as i64);
    for fd in [own, time] {
        close(fd);
    }
    rests("closed", map);
    for fd in [map, program, seen, asks] {
        close(fd);
    }
}

/// Touches pages that were not there.
fn fault(pages: usize) {
    // SAFETY: asks for memory that nobody has.
    let at = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), pages * 4096, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    // SAFETY: a range that was just mapped; huge pages would make fewer faults.
    unsafe { libc::madvise(at, pages * 4096, libc::MADV_NOHUGEPAGE) };
    for page in 0..pages {
        // SAFETY: inside the mapping.
        unsafe { at.cast::<u8>().wrapping_add(page * 4096).write_volatile(1) };
    }
}

/// A program that asks what the CPU was doing, on a clock of a CPU: the outcome is all that is told.
pub(crate) fn a_program_asks_who_runs() {
    let asks = load("asks", prog_type::PERF_EVENT, "call bpf_get_current_pid_tgid\nr0 = 0\nexit");
    let clock = clock(&[(p::SAMPLE_PERIOD, MILLISECOND)]);
    let time = show_fd("clock", open_event(&clock, -1, 0, -1, 0));
    show("set", ioctl(time, p::IOC_SET_BPF, asks as u64));
    let faults = event(p::TYPE_SOFTWARE, 2, &[(p::SAMPLE_PERIOD, 10)]);
    let other: Result<i64, Errno> = open_event(&faults, -1, 0, -1, 0);
    close(show_fd("faults", other));
    close(time);
    close(asks);
}
