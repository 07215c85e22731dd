//! Ring buffers whose writers wait for the reader (`RING3_F_BLOCK`): nothing is lost, however slow the reader is, and no target waits
//! for a reader that is gone.
//!
//! A loader under ring3 makes the map and attaches the program; the reader is another process, which gets the map's descriptor. Both
//! are this file, executed again.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use ring3_bpf::{Loaded, RingBuffer};
use ring3_layout::ring::{RING3_F_BLOCK, RING3_RB_WAIT_CONSUMED};
use ring3_object::{MapDef, Object, Program};
use ring3_tests::{Bench, Process, victim, wait_until};
use ring3_uapi::bpf::{map_type, prog_type};
use rustix::process::Signal;

/// What a process of these tests is.
const ROLE: &str = "RING3_TEST_ROLE";
/// What stands before each line of a role: the test harness prints its own words.
const MARK: &str = "@@ ";
const RING_BYTES: u32 = 64 << 10;
/// Calls that fill the buffer more than once.
const MANY: u64 = 100_000;

#[test]
#[ignore = "not a test: what the tests below run in processes of their own"]
fn role() {
    let role = std::env::var(ROLE).expect("the tests name a role");
    match role.split_once(' ').expect("two words") {
        ("load", call) => load(call),
        (kind, path) => read(path, kind == "slow"),
    }
}

/// Makes the map and the program, and keeps them until the input ends. Then it tells how many records were lost.
fn load(call: &str) {
    let (call, flags) = match call.strip_suffix(" waiting") {
        Some(call) => (call, RING3_RB_WAIT_CONSUMED),
        None => (call, 0),
    };
    // (Of pwrite64 the number is in memory, and is not looked at.)
    let text = format!(
        "r6 = r1
         call bpf_get_current_pid_tgid
         *(u64 *)(r10 - 16) = r0
         r1 = *(u64 *)(r6 + 16)
         *(u64 *)(r10 - 8) = r1
         r1 = map[0]
         r2 = r10
         r2 += -16
         r3 = 16
         r4 = {flags:#x} ll
         call bpf_ringbuf_output
         if r0 == 0 goto end
         r1 = 0
         *(u32 *)(r10 - 4) = r1
         r1 = map[1]
         r2 = r10
         r2 += -4
         call bpf_map_lookup_elem
         if r0 == 0 goto end
         r1 = 1
         lock *(u64 *)(r0 + 0) += r1
         end:
         r0 = 0
         exit"
    );
    let ring = MapDef { map_flags: RING3_F_BLOCK, ..MapDef::new("ring", map_type::RINGBUF, (0, 0), RING_BYTES) };
    let lost = MapDef::new("lost", map_type::ARRAY, (4, 8), 1);
    let program = Program::new("tell", prog_type::TRACEPOINT, ring3_isa::assemble(&text).expect("assembled"));
    let object = Object { license: "GPL".into(), maps: vec![ring, lost], programs: vec![program], btf: None };
    let loaded = Loaded::load(&object).expect("loaded");
    let _link = ring3_bpf::link_tracepoint(&loaded.programs[0].1, "syscalls", call, None).expect("attached");
    println!("\n{MARK}/proc/{}/fd/{}", std::process::id(), loaded.maps[0].as_raw_fd());
    let _ = std::io::stdin().read_to_end(&mut vec![]);
    let mut lost = [0; 8];
    ring3_bpf::look_up(&loaded.maps[1], &0_u32.to_ne_bytes(), &mut lost).expect("the only element");
    println!("{MARK}lost {}", u64::from_ne_bytes(lost));
}

/// Reads records. A slow reader consumes them, with pauses, and tells when it is asked how many there were, and if they were in order.
/// Another one shows each, and consumes them when it is told to.
fn read(path: &str, is_slow: bool) {
    let map = std::fs::File::options().read(true).write(true).open(path).expect("the map");
    let mut ring = RingBuffer::receive(map.into()).expect("a reader");
    let (waker, (sender, receiver)) = (ring.waker(), channel());
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            sender.send(line.expect("a line")).expect("is listened to");
            waker.wake();
        }
    });
    println!("\n{MARK}reads");
    let (mut total, mut next, mut is_in_order) = (0_u64, BTreeMap::<(u64, u64), u64>::new(), true);
    let (mut end, mut asked) = (0, None);
    loop {
        while let Some((record, position)) = ring.read_next() {
            let [process, argument] = [0, 8].map(|at| u64::from_ne_bytes(record[at..at + 8].try_into().expect("8")));
            (total, end) = (total + 1, position);
            if is_slow {
                let next = next.entry((process >> 32, argument >> 32)).or_default();
                is_in_order &= *next <= argument & 0xffff_ffff;
                *next = (argument & 0xffff_ffff) + 1;
                if total.is_multiple_of(4096) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ring.consume_to(position);
            } else if total < 16 {
                println!("{MARK}saw {total}");
            }
        }
        match asked.take().as_deref() {
            None => {
                ring.wait(Duration::from_secs(1), || {
                    asked = receiver.try_recv().ok();
                    asked.is_some()
                });
            }
            Some("consume") => ring.consume_to(end),
            Some("leave") => break,
            Some(_) => println!("{MARK}{total} {is_in_order}"),
        }
    }
    drop(ring);
    println!("{MARK}left");
    let _ = receiver.recv();
}

/// A line of a role.
fn line(process: &mut Process) -> String {
    loop {
        if let Some(line) = process.line().strip_prefix(MARK) {
            return line.to_owned();
        }
    }
}

fn begin(mut command: std::process::Command, role: &str) -> (Process, String) {
    command.args(["--ignored", "--exact", "role", "--nocapture"]).env(ROLE, role);
    let mut process = Process::start(&mut command);
    let line = line(&mut process);
    (process, line)
}

/// A loader, and the path of the map's descriptor.
fn loader(bench: &Bench, call: &str) -> (Process, String) {
    begin(bench.load(std::env::current_exe().expect("this file")), &format!("load {call}"))
}

fn reader(map: &str, kind: &str) -> Process {
    begin(std::process::Command::new(std::env::current_exe().expect("this file")), &format!("{kind} {map}")).0
}

/// The victim, which is a target and waits for a word, and its process id.
fn target(bench: &Bench, arguments: &[&str]) -> (Process, u32) {
    let mut process = Process::start(bench.target(victim("waiting", "gcc", "waiting.c", &[])).args(arguments));
    let pid = process.line().parse().expect("its id");
    (process, pid)
}

fn asked(reader: &mut Process) -> (u64, bool) {
    reader.say("tell");
    let line = line(reader);
    let (total, is_in_order) = line.split_once(' ').expect("two words");
    (total.parse().expect("a number"), is_in_order == "true")
}

fn assert_all_came(reader: &mut Process, count: u64) {
    wait_until("all records are read", || asked(reader).0 >= count);
    assert_eq!(asked(reader), (count, true));
}

fn assert_done(process: Process) -> u64 {
    let (code, lines, errors) = process.finish();
    assert_eq!(code, Some(0), "{errors:?}");
    lines.last().and_then(|line| line.strip_prefix("done ")?.parse().ok()).expect("its last line")
}

/// Waits until a thread of a process sleeps on a futex, as in the agent. (The victim itself waits for its threads so, too, in one.)
fn await_waiting(pid: u32, threads: usize) {
    let is_waiting = |tid: String| {
        let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        call.starts_with("202 ")
    };
    wait_until("threads wait for the reader", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter(|task| is_waiting(task.file_name().to_string_lossy().into_owned())).count() >= threads
    });
}

#[test]
fn nothing_is_lost_in_a_million_calls_with_a_slow_reader() {
    let bench = Bench::ring3();
    let (_loader, map) = loader(&bench, "sys_enter_getpgid");
    let mut reader = reader(&map, "slow");
    let (mut target, _) = target(&bench, &["calls", "1000000"]);
    target.say("go");
    assert_done(target);
    assert_all_came(&mut reader, 1_000_000);
}

#[test]
fn a_call_is_not_made_before_the_reader_has_consumed_its_record() {
    let bench = Bench::ring3();
    let file = bench.made_directory().join("stored");
    std::fs::write(&file, 0_u64.to_ne_bytes()).expect("written");
    let stored = || u64::from_ne_bytes(std::fs::read(&file).expect("read").try_into().expect("8 bytes"));
    let (_loader, map) = loader(&bench, "sys_enter_pwrite64 waiting");
    let mut reader = reader(&map, "hold");
    let (mut target, _) = target(&bench, &["stores", "10", file.to_str().expect("plain")]);
    target.say("go");
    for number in 1..=10 {
        assert_eq!(line(&mut reader), format!("saw {number}"));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(stored(), number - 1, "the call waits");
        reader.say("consume");
    }
    assert_done(target);
    assert_eq!(stored(), 10);
}

#[test]
fn a_target_goes_on_when_the_reader_is_killed() {
    let bench = Bench::ring3();
    for call in ["sys_enter_getpgid", "sys_enter_getpgid waiting"] {
        let (_loader, map) = loader(&bench, call);
        let reader = reader(&map, "hold");
        let (mut target, pid) = target(&bench, &["calls", &MANY.to_string()]);
        target.say("go");
        await_waiting(pid, 1);
        // (It stays a zombie until this test ends.)
        reader.signal(Signal::KILL);
        assert_done(target);
    }
}

#[test]
fn a_target_goes_on_when_the_reader_stops_reading() {
    let bench = Bench::ring3();
    let (_loader, map) = loader(&bench, "sys_enter_getpgid waiting");
    let mut reader = reader(&map, "hold");
    let (mut target, pid) = target(&bench, &["calls", &MANY.to_string()]);
    target.say("go");
    await_waiting(pid, 1);
    reader.say("leave");
    while line(&mut reader) != "left" {}
    assert_done(target);
}

#[test]
fn a_target_goes_on_when_the_map_is_taken_away() {
    let bench = Bench::ring3();
    let (loader, map) = loader(&bench, "sys_enter_getpgid");
    let _reader = reader(&map, "hold");
    let (mut target, pid) = target(&bench, &["calls", &MANY.to_string()]);
    target.say("go");
    await_waiting(pid, 1);
    loader.finish();
    assert_done(target);
}

#[test]
fn a_stopped_reader_is_waited_for() {
    let bench = Bench::ring3();
    let (_loader, map) = loader(&bench, "sys_enter_getpgid");
    let mut reader = reader(&map, "slow");
    let (mut target, pid) = target(&bench, &["calls", &MANY.to_string()]);
    reader.signal(Signal::STOP);
    target.say("go");
    await_waiting(pid, 1);
    std::thread::sleep(Duration::from_secs(1));
    reader.signal(Signal::CONT);
    assert_done(target);
    assert_all_came(&mut reader, MANY);
}

#[test]
fn a_target_is_detached_while_its_threads_wait() {
    let bench = Bench::ring3();
    let (_loader, map) = loader(&bench, "sys_enter_getpgid");
    let _reader = reader(&map, "hold");
    let (mut target, pid) = target(&bench, &["threads", &MANY.to_string()]);
    target.say("go");
    await_waiting(pid, 5);
    let (code, out, errors) = bench.run(&["detach", "--verify", &pid.to_string()]);
    assert_eq!(code, Some(0), "{out}\n{errors}");
    assert_done(target);
}

#[test]
fn threads_of_several_processes_write_into_one_buffer() {
    let bench = Bench::ring3();
    let (_loader, map) = loader(&bench, "sys_enter_getpgid");
    let mut reader = reader(&map, "slow");
    let mut targets: Vec<Process> = (0..2).map(|_| target(&bench, &["threads", &MANY.to_string()]).0).collect();
    targets.iter_mut().for_each(|target| target.say("go"));
    for target in targets {
        assert_done(target);
    }
    assert_all_came(&mut reader, 8 * MANY);
}

#[test]
fn signal_handlers_run_and_make_calls_while_their_thread_waits() {
    let bench = Bench::ring3();
    for call in ["sys_enter_getpgid", "sys_enter_getpgid waiting"] {
        let (loader, map) = loader(&bench, call);
        let mut reader = reader(&map, "slow");
        let (mut target, _) = target(&bench, &["handler", &MANY.to_string()]);
        target.say("go");
        let handled = assert_done(target);
        assert!(handled > 0, "the timer has ended a wait");
        // (If a signal interrupts a program where it holds the lock of the ring's writers, a program of the handler cannot wait for it.)
        let (_, lines, _) = loader.finish();
        let lost = lines.iter().find_map(|line| line.strip_prefix(MARK)?.strip_prefix("lost ")?.parse::<u64>().ok());
        let lost = lost.expect("the loader tells");
        assert!(lost <= handled);
        assert_all_came(&mut reader, MANY + handled - lost);
    }
}
