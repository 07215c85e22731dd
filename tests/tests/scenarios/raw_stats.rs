//! `BPF_ENABLE_STATS`: runs of programs are counted and timed while somebody holds its descriptor.

use crate::calls::raw_bpf::{Attr, address, bpf};
use crate::calls::site::place;
use ring3_tests::wait_until;
use ring3_uapi::attr::{Field, info, link_create as c, prog_info as i, test_run as t};
use ring3_uapi::bpf::{attach_type, cmd, prog_type};
use ring3_uapi::perf as p;

use super::raw_calls::{MARK, close, id_of, show, show_descriptor, show_fd};
use super::raw_events::{ioctl, open_event, perf_event, uprobe_type};
use super::raw_sampled::clock;
use super::raw_test_runs::load;
use super::raw_tracepoints::{event, id};

/// `type` of `BPF_ENABLE_STATS`.
const TYPE: Field = Field { at: 0, bytes: 4 };
/// `enum bpf_stats_type`
const RUN_TIME: u64 = 0;

/// What is probed here, and by no other scenario.
#[inline(never)]
extern "C" fn entered(value: u64) -> u64 {
    std::hint::black_box(value).rotate_left(17)
}

fn enable() -> i64 {
    show_fd("enable", bpf(cmd::ENABLE_STATS, &mut Attr::new().with(TYPE, RUN_TIME)))
}

/// Runs of a program, how long they took, and runs that recursion prevented.
fn told(program: i64) -> [u64; 3] {
    let mut told = [0u8; 232];
    let ask = Attr::new().with(info::BPF_FD, program as u64).with(info::INFO_LEN, 232);
    bpf(cmd::OBJ_GET_INFO_BY_FD, &mut ask.with(info::INFO, told.as_mut_ptr() as u64)).expect("it is told");
    let word = |field: Field| u64::from_ne_bytes(told[field.at..field.end()].try_into().expect("8 bytes"));
    [i::RUN_CNT, i::RUN_TIME_NS, i::RECURSION_MISSES].map(word)
}

fn show_runs(what: &str, program: i64) {
    let [count, time, misses] = told(program);
    println!("{MARK}{what}: {count} runs, {misses} missed, timed {}", time > 0);
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{program}")).unwrap_or_default();
    let same = [("run_time_ns", time), ("run_cnt", count), ("recursion_misses", misses)]
        .map(|(name, value)| text.contains(&format!("\n{name}:\t{value}\n")));
    println!("{MARK}  in its file, too: {same:?}");
}

/// A child that calls [`entered`], and getpgrp(2) as often. (A loader that waits for the server cannot be made a target.)
struct Victim {
    pid: i32,
    pipes: [i32; 2],
}

impl Victim {
    fn new() -> Victim {
        let [mut here, mut there] = [[0; 2]; 2];
        for ends in [&mut here, &mut there] {
            // SAFETY: pipe writes two numbers.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        }
        // SAFETY: the child makes plain system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut times = 0u8;
            close(there[1].into());
            // SAFETY: room for the byte.
            while unsafe { libc::read(there[0], (&raw mut times).cast(), 1) } == 1 {
                for value in 0..times.into() {
                    std::hint::black_box(entered(value));
                    // SAFETY: takes no memory.
                    unsafe { libc::syscall(libc::SYS_getpgrp) };
                }
                // SAFETY: as above.
                unsafe { libc::write(here[1], (&raw const times).cast(), 1) };
            }
            // SAFETY: takes no memory.
            unsafe { libc::_exit(0) };
        }
        close(there[0].into());
        close(here[1].into());
        Victim { pid, pipes: [here[0], there[1]] }
    }

    fn enter(&self, times: u8) {
        let mut done = times;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::write(self.pipes[1], (&raw const done).cast(), 1) }, 1);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::read(self.pipes[0], (&raw mut done).cast(), 1) }, 1);
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.pipes.into_iter().for_each(|pipe| close(pipe.into()));
        // SAFETY: a child of this process's; its status is not asked for.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// Probes [`entered`], or its return, in the victim.
fn probe(victim: &Victim, what: &str, ret: u64) -> [i64; 3] {
    let (path, offset) = place(std::hint::black_box(entered as extern "C" fn(u64) -> u64) as usize as u64);
    let attr = perf_event(uprobe_type(), ret, address(path.to_bytes_with_nul()), offset);
    let program = load(what, prog_type::KPROBE, "r0 = 0\nexit");
    let event = show_fd(what, open_event(&attr, victim.pid, -1, -1, 0));
    let attr = Attr::new().with(c::PROG_FD, program as u64).with(c::TARGET_FD, event as u64);
    let mut attr = attr.with(c::ATTACH_TYPE, attach_type::PERF_EVENT.into());
    [program, event, show_fd(what, bpf(cmd::LINK_CREATE, &mut attr))]
}

pub(crate) fn runs_are_counted() {
    // (First: it must not have any of the descriptors.)
    let victim = Victim::new();
    let wrong = |field: Field, value: u64| bpf(cmd::ENABLE_STATS, &mut Attr::new().with(field, value));
    for kind in [1, 2, u64::from(u32::MAX)] {
        show_fd(&format!("type {kind}"), wrong(TYPE, kind));
    }
    show_fd("an unknown field", wrong(Field { at: 4, bytes: 4 }, 1));
    let first = enable();
    show_descriptor("what is had", first);
    // SAFETY: takes no memory.
    println!("{MARK}close on exec {}", unsafe { libc::fcntl(first as i32, libc::F_GETFD) });
    let mut room = [0u8; 232];
    let ask = Attr::new().with(info::BPF_FD, first as u64).with(info::INFO_LEN, 232);
    show("its information", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut ask.with(info::INFO, room.as_mut_ptr() as u64)));

    let program = load("of a call", prog_type::SYSCALL, "r0 = 0\nexit");
    show_runs("a new program", program);
    for _ in 0..3 {
        show("run", bpf(cmd::PROG_TEST_RUN, &mut Attr::new().with(t::PROG_FD, program as u64)));
    }
    show_runs("run by itself", program);
    let packets = load("of packets", prog_type::XDP, "r0 = 2\nexit");
    let packet = [0u8; 60];
    let run = Attr::new().with(t::PROG_FD, packets as u64).with(t::DATA_IN, address(&packet));
    show("run", bpf(cmd::PROG_TEST_RUN, &mut run.with(t::DATA_SIZE_IN, 60).with(t::REPEAT, 5)));
    show_runs("run by itself five times", packets);

    let (at_entry, at_return) = (probe(&victim, "entry", 0), probe(&victim, "return", 1));
    victim.enter(7);
    show_runs("of an entry", at_entry[0]);
    show_runs("of a return", at_return[0]);
    let second = enable();
    close(first);
    victim.enter(2);
    show_runs("while somebody else still wants it", at_entry[0]);
    show_runs("of the others nothing changed", program);
    drop(victim);
    show_runs("its process has ended", at_entry[0]);
    let again = bpf(cmd::PROG_GET_FD_BY_ID, &mut Attr::new().with(TYPE, id_of(at_return[0])));
    show_runs("by another descriptor", show_fd("again", again));
    let ticks = load("of a clock", prog_type::PERF_EVENT, "r0 = 0\nexit");
    let clock = show_fd("clock", open_event(&clock(&[(p::SAMPLE_PERIOD, 1_000_000)]), -1, 0, -1, 0));
    show("set", ioctl(clock, p::IOC_SET_BPF, ticks as u64));
    wait_until("it runs on the clock", || told(ticks)[0] >= 3);
    for fd in [program, packets, clock, ticks, second].into_iter().chain(at_entry).chain(at_return) {
        close(fd);
    }
}

/// (Of the kernel, anybody else on the machine may want runs counted meanwhile.)
pub(crate) fn runs_are_counted_at_no_other_time() {
    let run = |program: i64| bpf(cmd::PROG_TEST_RUN, &mut Attr::new().with(t::PROG_FD, program as u64));
    let alone = load("alone", prog_type::SYSCALL, "r0 = 0\nexit");
    let victim = Victim::new();
    let probed = probe(&victim, "entry", 0);
    let call = load("call", prog_type::TRACEPOINT, "r0 = 0\nexit");
    let event = event(id("syscalls/sys_enter_getpgrp"));
    let event = show_fd("call", open_event(&event, victim.pid, -1, -1, 0));
    show("call", ioctl(event, p::IOC_SET_BPF, call as u64));
    let programs = [alone, probed[0], call];
    let both = || {
        show("run", run(alone));
        victim.enter(5);
    };
    both();
    println!("{MARK}before: {:?}", programs.map(told));
    let stats = enable();
    // SAFETY: duplicates a number.
    let copy = i64::from(unsafe { libc::dup(stats as i32) });
    both();
    close(stats);
    both();
    println!("{MARK}meanwhile: {:?}", programs.map(|program| told(program)[0]));
    close(copy);
    wait_until("nobody wants it any more", || {
        let before = programs.map(told);
        let _ = run(alone);
        victim.enter(1);
        before == programs.map(told)
    });
    let kept = programs.map(told);
    both();
    println!("{MARK}afterwards: {:?}, kept {}", kept.map(|[_, time, _]| time > 0), programs.map(told) == kept);
    let stats = enable();
    let before = programs.map(told);
    both();
    let more = programs.map(told);
    println!("{MARK}again: {:?}", [0, 1, 2].map(|at| (more[at][0] - before[at][0], more[at][1] > before[at][1])));
    for fd in [stats, alone, event, call].into_iter().chain(probed) {
        close(fd);
    }
    let other = load("another, perhaps in the place of one of these", prog_type::SYSCALL, "r0 = 0\nexit");
    println!("{MARK}a new one: {:?}", told(other));
}
