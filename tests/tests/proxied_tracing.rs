//! Targets that another process traces: that one makes ring3's ptrace requests for them ("ptrace by proxy").
//!
//! The tracer is this test program again, run with `TRACER` in its environment: it traces as strace does, but for system calls.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;

use ring3_server::control::{Connection, Request};
use ring3_strace::raw_tracer::{Event, Tracer};
use ring3_tests::{Bench, Process, kill, programs, victim, wait_until};

const TRACER: &str = "RING3_TEST_TRACES";
const GETPPID: i64 = 110;
const GETPGID: i64 = 121;
const EXECVE: i64 = 59;
const SET_TID_ADDRESS: i64 = 218;

// ---- the tracer ----

#[test]
fn the_tracer_of_the_other_tests() {
    let Ok(pid) = std::env::var(TRACER) else { return };
    let pid: i32 = pid.parse().expect("a pid");
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (ours, servers) = socketpair(kind.0, kind.1, kind.2, None).expect("a pair");
    let tracer = Tracer::start(Some(ours), || (), |_| false).expect("a thread");
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there") {
        let name = thread.expect("read").file_name();
        let tid = name.to_str().and_then(|name| name.parse().ok()).expect("a number");
        let options = libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEEXIT;
        tracer.request(libc::PTRACE_SEIZE, tid, 0, options as usize).expect("seized");
    }
    // (The test harness writes the begin of a line at the same time.)
    println!("\ntraces {pid}");
    // (Behind this line: `obey` prints one at once.)
    std::thread::spawn(|| obey(servers));
    while tracer.has_tracees() {
        match tracer.try_event() {
            Some(event) => pass_on(&tracer, event),
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }
    println!("ended");
    // (The other thread waits for input.)
    std::process::exit(0);
}

/// Registers with the server, and asks it to attach processes, as it is told.
fn obey(servers: OwnedFd) {
    let connection = Connection::open().expect("a server").expect("a server");
    let own = std::process::id();
    let done = connection.ask(&Request::TraceThrough { tracer: own }, Some(servers.as_fd()));
    drop(servers);
    println!("registered {done:?}");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("text");
        let (pid, family) = line.split_once(' ').expect("two ids");
        let [pid, family] = [pid, family].map(|id| id.parse().expect("an id"));
        let request =
            Request::Attach { pid, follow: true, for_links: false, of_family: Some(family), before_program: false };
        match connection.ask(&request, None) {
            Ok(_) => println!("attached"),
            Err(why) => println!("refused: {why}"),
        }
    }
}

/// Tells of an event and resumes the tracee.
fn pass_on(tracer: &Tracer, Event { tid, status, .. }: Event) {
    let resume = |request, signal| {
        // (It may have been killed.)
        let _ = tracer.request(request, tid, 0, signal);
    };
    if !libc::WIFSTOPPED(status) {
        return println!("event end {tid}");
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => {
            println!("event call {tid}");
            resume(libc::PTRACE_CONT, 0);
        }
        0 => {
            println!("event signal {signal}");
            resume(libc::PTRACE_CONT, signal as usize);
        }
        libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => {
            println!("event stopped {tid}");
            resume(libc::PTRACE_LISTEN, 0);
        }
        event => {
            let mut message = 0u64;
            let done = tracer.request(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message).addr());
            match event {
                libc::PTRACE_EVENT_EXEC => println!("event exec {tid} {done:?} {message}"),
                libc::PTRACE_EVENT_STOP => println!("event interrupt {tid}"),
                libc::PTRACE_EVENT_FORK => println!("event fork {tid}"),
                libc::PTRACE_EVENT_VFORK => println!("event vfork {tid}"),
                libc::PTRACE_EVENT_CLONE => println!("event clone {tid}"),
                libc::PTRACE_EVENT_EXIT => println!("event exit {tid} {message}"),
                event => println!("event {event} {tid}"),
            }
            resume(libc::PTRACE_CONT, 0);
        }
    }
}

// ---- what it is tested with ----

/// A victim, its tracer, and a tool that counts its system calls.
struct Scene {
    tool: Process,
    tracer: Process,
    victim: Process,
    /// What the tracer has told of the victim.
    events: Vec<String>,
    bench: Bench,
}

impl Scene {
    /// Everything is there, and the victim not a target yet.
    fn new(bench: Bench) -> Scene {
        let library: PathBuf =
            victim("libproxied.so", "gcc", "proxied_library.c", &["-O1", "-g", "-shared", "-fPIC"]);
        let program = victim("proxied", "gcc", "proxied.c", &["-O1", "-g", "-pthread", "-ldl"]);
        let mut tool = Process::start(bench.load_with_tracefs(programs().join("calls")).arg("raw"));
        assert_eq!(tool.line(), "attached");
        let mut victim = Process::start(bench.command(program).arg(library));
        assert_eq!(victim.line(), "ready");
        let mut tracer = bench.command(std::env::current_exe().expect("a program"));
        tracer.args(["--exact", "the_tracer_of_the_other_tests", "--nocapture"]);
        let tracer = Process::start(tracer.env(TRACER, victim.pid().to_string()));
        let mut scene = Scene { tool, tracer, victim, events: vec![], bench };
        assert_eq!(scene.told(), format!("traces {}", scene.victim.pid()));
        assert_eq!(scene.told(), "registered Ok(Null)");
        scene
    }

    /// The victim is a target.
    fn attached() -> Scene {
        let mut scene = Scene::new(Bench::ring3());
        scene.attach(1);
        assert_eq!(scene.told(), "attached");
        scene
    }

    fn attach(&mut self, family: u32) {
        let line = format!("{} {family}", self.victim.pid());
        self.tracer.say(&line);
    }

    /// The next line of the tracer that tells of no event. (What the test program itself prints is left out.)
    fn told(&mut self) -> String {
        loop {
            let line = self.tracer.line();
            match line.strip_prefix("event ") {
                Some(event) => self.events.push(event.to_owned()),
                None if line.is_empty() || line.starts_with("running ") => {}
                None => {
                    return line.strip_prefix("test the_tracer_of_the_other_tests ... ").unwrap_or(&line).to_owned();
                }
            }
        }
    }

    /// Waits until the tracer has told of such an event.
    fn await_event(&mut self, event: &str) {
        wait_until(event, || {
            let new = self.tracer.lines_so_far();
            self.events.extend(new.iter().filter_map(|line| line.strip_prefix("event ").map(str::to_owned)));
            self.events.iter().any(|known| known.starts_with(event))
        });
    }

    fn has_event(&self, event: &str) -> bool {
        self.events.iter().any(|known| known.starts_with(event))
    }

    /// The victim does something, and says so.
    fn order(&mut self, order: &str) {
        self.victim.say(order);
        let expected = if order == "exec" { "ready" } else { "done" };
        assert_eq!(self.victim.line(), expected, "{order}");
    }

    /// How often each call began, and which ended, so far.
    fn counts(&mut self) -> BTreeMap<(String, i64), i64> {
        self.tool.say("");
        let mut counts = BTreeMap::new();
        loop {
            let line = self.tool.line();
            if line == "end" {
                return counts;
            }
            let words: Vec<&str> = line.rsplitn(3, ' ').collect();
            let [count, number, kind] = words[..] else { panic!("{line}") };
            counts.insert((kind.to_owned(), number.parse().expect("a number")), count.parse().expect("a count"));
        }
    }

    fn count(&mut self, number: i64) -> i64 {
        self.counts().get(&("raw enter".to_owned(), number)).copied().unwrap_or(0)
    }
}

#[test]
fn calls_of_a_process_that_another_one_traces_are_counted() {
    let mut scene = Scene::attached();
    scene.order("call 1000");
    assert_eq!(scene.count(GETPPID), 1000);
    scene.order("signal");
    assert_eq!(scene.count(GETPPID), 1001);
    scene.await_event(&format!("signal {}", libc::SIGUSR1));
    assert!(!scene.has_event("call"), "system call stops are the server's: {:?}", scene.events);
    assert!(!scene.has_event("interrupt"), "nobody has asked for one: {:?}", scene.events);
    let (_, shown, _) = scene.bench.run(&["status", "-v"]);
    assert!(shown.contains(&format!("traced through: process {}\n", scene.tracer.pid())), "{shown}");
    let (code, _, errors) = scene.victim.finish();
    assert_eq!(code, Some(0), "{errors:?}");
}

#[test]
fn an_ordinary_users_tracer_works_as_well() {
    if !ring3_tests::is_root() {
        println!("SKIPPED: the other tests run as an ordinary user already");
        return;
    }
    let mut scene = Scene::new(Bench::ring3_as(65534));
    scene.attach(1);
    assert_eq!(scene.told(), "attached");
    scene.order("call 100");
    assert_eq!(scene.count(GETPPID), 100);
}

#[test]
fn threads_and_children_that_the_tracer_gets_are_counted() {
    let mut scene = Scene::attached();
    for (done, order) in ["thread 100", "fork 100", "vfork 100", "thread 100", "fork 100"].iter().enumerate() {
        scene.order(order);
        assert_eq!(scene.count(GETPPID), 100 * (done as i64 + 1), "{order}");
    }
    ["clone", "fork", "vfork", "exit"].iter().for_each(|event| scene.await_event(event));
    assert!(!scene.has_event("call"), "{:?}", scene.events);
}

#[test]
fn what_a_traced_process_executes_is_counted_from_its_first_instruction() {
    let mut scene = Scene::attached();
    assert_eq!(scene.count(SET_TID_ADDRESS), 0);
    for times in 1..=3 {
        scene.order("exec");
        let pid = scene.victim.pid();
        scene.await_event(&format!("exec {pid} Ok(0) {pid}"));
        let counts = scene.counts();
        let count = |kind: &str, number| counts.get(&(kind.to_owned(), number)).copied().unwrap_or(0);
        // (The dynamic linker makes that call once.)
        assert_eq!(count("raw enter", SET_TID_ADDRESS), times);
        assert_eq!([count("raw enter", EXECVE), count("raw exit", EXECVE)], [times; 2], "begins and ends");
        scene.order("fork 10");
        assert_eq!(scene.count(GETPPID), 10 * times);
    }
}

#[test]
fn libraries_that_a_traced_process_loads_are_patched() {
    let mut scene = Scene::attached();
    scene.order("library 100");
    assert_eq!(scene.count(GETPGID), 100);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", scene.victim.pid())).expect("it is there");
    assert!(maps.contains("libproxied.so"));
    // Its code is not as in its file.
    assert!(ring3_tests::difference_from_files(scene.victim.pid()).is_some());
    assert!(!scene.has_event(&format!("signal {}", libc::SIGSYS)), "{:?}", scene.events);
}

#[test]
fn a_link_to_a_family_sees_a_process_that_was_attached_as_of_it() {
    let sleeper = Process::start(Command::new("sleep").arg("1000"));
    let mut scene = Scene::new(Bench::ring3());
    let family = sleeper.pid().to_string();
    let trace = Process::start(&mut scene.bench.ring3_command(&["trace", "-p", &family, "-e", "getppid"]));
    wait_until("the family is traced", || {
        let status = scene.bench.status();
        status["targets"].as_array().is_some_and(|all| all.iter().any(|one| one["pid"] == sleeper.pid()))
    });
    scene.attach(sleeper.pid());
    assert_eq!(scene.told(), "attached");
    scene.order("fork 2");
    trace.signal(Signal::INT);
    let (_, _, lines) = trace.finish();
    let calls = lines.iter().filter(|line| line.contains("getppid()"));
    assert_eq!(calls.count(), 2, "{lines:?}");
}

#[test]
fn a_victim_goes_on_when_its_tracer_is_killed_in_the_middle_of_an_attach() {
    for pause in 0..12 {
        let mut scene = Scene::new(Bench::ring3());
        scene.attach(1);
        std::thread::sleep(Duration::from_micros(pause * 700));
        kill(scene.tracer.pid());
        scene.order("fork 10");
        scene.order("thread 10");
        // Nothing is left that is in the way of another attach.
        let pid = scene.victim.pid().to_string();
        wait_until("it is attached without it", || scene.bench.run(&["attach", &pid]).0 == Some(0));
        let before = scene.count(GETPPID);
        scene.order("call 10");
        assert_eq!(scene.count(GETPPID), before + 10);
    }
}

#[test]
fn a_victim_and_its_tracer_go_on_when_the_server_is_killed() {
    for pause in 0..12 {
        let mut scene = Scene::new(Bench::ring3());
        let server = scene.bench.server();
        scene.attach(1);
        std::thread::sleep(Duration::from_micros(pause * 700));
        kill(server);
        scene.order("fork 10");
        scene.order("thread 10");
        scene.order("signal");
        scene.await_event(&format!("signal {}", libc::SIGUSR1));
        scene.order("exec");
        scene.await_event("exec");
    }
}

#[test]
fn a_stopped_tracer_holds_up_nobody_but_what_needs_it() {
    let mut scene = Scene::new(Bench::ring3());
    let pid = scene.victim.pid().to_string();
    scene.tracer.signal(Signal::STOP);
    let mut attach = Process::start(&mut scene.bench.ring3_command(&["attach", &pid]));
    for _ in 0..3 {
        assert!(scene.bench.server() > 0, "the server answers");
    }
    assert_eq!(attach.wait(), Some(1));
    scene.order("call 10");
    let (code, _, error) = scene.bench.run(&["attach", &pid]);
    assert_eq!(code, Some(1), "{error}");
    scene.tracer.signal(Signal::CONT);
    wait_until("it is attached", || scene.bench.run(&["attach", &pid]).0 == Some(0));
    let before = scene.count(GETPPID);
    scene.order("call 10");
    assert_eq!(scene.count(GETPPID), before + 10);
}

#[test]
fn a_stopped_process_is_attached_and_stays_stopped() {
    let mut scene = Scene::new(Bench::ring3());
    scene.victim.signal(Signal::STOP);
    scene.await_event("stopped");
    scene.attach(1);
    assert_eq!(scene.told(), "attached");
    scene.victim.say("call 10");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(scene.count(GETPPID), 0);
    let stops = scene.events.iter().filter(|event| event.starts_with("stopped")).count();
    assert_eq!(stops, 1, "its tracer has seen that once: {:?}", scene.events);
    scene.victim.signal(Signal::CONT);
    assert_eq!(scene.victim.line(), "done");
    assert_eq!(scene.count(GETPPID), 10);
}
